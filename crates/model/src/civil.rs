//! Dates and times of day of the calendar, and their conversion to and from seconds since 1970.

use std::fmt;

/// A date and a time of day. The caller chooses the time zone.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct CivilTime {
    /// The year.
    pub year: i64,
    /// The month, from 1.
    pub month: u8,
    /// The day of the month, from 1.
    pub day: u8,
    /// The hour.
    pub hour: u8,
    /// The minute.
    pub minute: u8,
    /// The second.
    pub second: u8,
}

const DAY: i64 = 86_400;
/// Number of days from March 1 of the year 0 to January 1, 1970.
const TO_1970: i64 = 719_468;
/// Number of days in 400 years.
const ERA: i64 = 146_097;

impl CivilTime {
    /// The time in a zone that is `offset` seconds ahead of UTC.
    ///
    /// ```
    /// use pagewise_model::civil::CivilTime;
    /// assert_eq!(CivilTime::new(1_764_028_800, 3600).to_string(), "2025-11-25 01:00:00");
    /// ```
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "each is a remainder below 60 or a day or month"
    )]
    pub const fn new(unix_seconds: i64, offset: i64) -> CivilTime {
        let local = unix_seconds.saturating_add(offset);
        let (days, seconds) = (local.div_euclid(DAY), local.rem_euclid(DAY));
        // The computation begins each year on March 1, so that the leap day is the last day of a
        // year.
        let days = days + TO_1970;
        let (era, in_era) = (days.div_euclid(ERA), days.rem_euclid(ERA));
        let year = (in_era - in_era / 1460 + in_era / 36_524 - in_era / 146_096) / 365;
        let in_year = in_era - (365 * year + year / 4 - year / 100);
        let month = (5 * in_year + 2) / 153;
        let day = in_year - (153 * month + 2) / 5 + 1;
        let month = if month < 10 { month + 3 } else { month - 9 };
        let year = year + era * 400 + if month <= 2 { 1 } else { 0 };
        CivilTime {
            year,
            month: month as u8,
            day: day as u8,
            hour: (seconds / 3600) as u8,
            minute: (seconds / 60 % 60) as u8,
            second: (seconds % 60) as u8,
        }
    }

    /// Seconds since 1970 of this time, which is in a zone that is `offset` seconds ahead of UTC.
    pub fn unix_seconds(&self, offset: i64) -> i64 {
        let (month, day) = (i64::from(self.month), i64::from(self.day));
        let year = self.year - i64::from(month <= 2);
        let (era, in_era) = (year.div_euclid(400), year.rem_euclid(400));
        let in_year = (153 * (if month > 2 { month - 3 } else { month + 9 }) + 2) / 5 + day - 1;
        let days = era * ERA + in_era * 365 + in_era / 4 - in_era / 100 + in_year - TO_1970;
        let (hour, minute) = (i64::from(self.hour), i64::from(self.minute));
        days * DAY + hour * 3600 + minute * 60 + i64::from(self.second) - offset
    }

    /// The date without the time of day: `2026-11-25`.
    pub fn date(&self) -> String {
        format!("{:04}-{:02}-{:02}", self.year, self.month, self.day)
    }

    /// Parses `2026-11-25`, `2026-11-25 02:13`, `2026-11-25T02:13:05`, `02:13` or `02:13:05`. A
    /// time of day without a date gets the date of `today`.
    pub fn parse(text: &str, today: CivilTime) -> Option<CivilTime> {
        let (date, clock) = match text.split_once([' ', 'T']) {
            Some((date, clock)) => (Some(date), Some(clock)),
            None if text.contains(':') => (None, Some(text)),
            None => (Some(text), None),
        };
        let mut time = CivilTime { hour: 0, minute: 0, second: 0, ..today };
        if let Some(date) = date {
            let [year, month, day] = numbers(date, '-')?[..] else { return None };
            time.year = i64::from(year);
            time.month = u8::try_from(month).ok().filter(|it| (1..=12).contains(it))?;
            time.day = u8::try_from(day).ok().filter(|it| (1..=31).contains(it))?;
        }
        if let Some(clock) = clock {
            let parts = numbers(clock, ':')?;
            let (hour, minute, second) = match parts[..] {
                [hour, minute] => (hour, minute, 0),
                [hour, minute, second] => (hour, minute, second),
                _ => return None,
            };
            let below = |number: u32, limit| u8::try_from(number).ok().filter(|it| *it < limit);
            time.hour = below(hour, 24)?;
            time.minute = below(minute, 60)?;
            time.second = below(second, 60)?;
        }
        Some(time)
    }
}

fn numbers(text: &str, separator: char) -> Option<Vec<u32>> {
    let number = |part: &str| {
        let is_number = (1..=4).contains(&part.len()) && part.bytes().all(|b| b.is_ascii_digit());
        is_number.then(|| part.parse().ok()).flatten()
    };
    text.split(separator).map(number).collect()
}

impl fmt::Display for CivilTime {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {:02}:{:02}:{:02}", self.date(), self.hour, self.minute, self.second)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn days_are_those_of_the_calendar() {
        let date = |seconds| CivilTime::new(seconds, 0).date();
        assert_eq!(date(0), "1970-01-01");
        assert_eq!(date(-1), "1969-12-31");
        assert_eq!(date(951_782_400), "2000-02-29");
        assert_eq!(date(1_764_028_799), "2025-11-24");
        assert_eq!(date(4_102_444_800), "2100-01-01");
    }

    #[test]
    fn a_time_of_day_is_one_of_today() {
        let today = CivilTime::new(1_764_028_800 + 7, 0);
        let parsed = |text| CivilTime::parse(text, today).map(|it| it.to_string());
        assert_eq!(parsed("02:13").as_deref(), Some("2025-11-25 02:13:00"));
        assert_eq!(parsed("2024-02-29").as_deref(), Some("2024-02-29 00:00:00"));
        assert_eq!(parsed("2024-02-29T23:59:58").as_deref(), Some("2024-02-29 23:59:58"));
        for wrong in ["", "24:00", "2024-13-01", "1:2:3:4", "2024-02-29 x", "-1:00", "now"] {
            assert_eq!(parsed(wrong), None, "{wrong}");
        }
    }

    proptest! {
        #[test]
        fn both_directions_agree(seconds in -10_000_000_000_i64..100_000_000_000, offset in -50_000_i64..50_000) {
            let time = CivilTime::new(seconds, offset);
            prop_assert_eq!(time.unix_seconds(offset), seconds);
            prop_assert_eq!(CivilTime::parse(&time.to_string(), time), (time.year < 10_000 && time.year >= 0).then_some(time));
        }

        #[test]
        fn no_text_makes_it_panic(text: String) {
            let _ = CivilTime::parse(&text, CivilTime::new(0, 0));
        }
    }
}
