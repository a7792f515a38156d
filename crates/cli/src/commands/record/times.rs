//! Folders and times as the user gives them.

use std::path::PathBuf;
use std::time::{SystemTime, UNIX_EPOCH};

use pagewise_analysis::sweeps::RecordOptions;
use pagewise_model::civil::CivilTime;
use pagewise_model::units::nanoseconds;
use pagewise_sys::system;

use super::args::{FolderArgs, RowArgs};
use crate::target::UsageError;

/// The folder of recordings of root, which is the `StateDirectory` of the service.
pub(super) const SYSTEM_FOLDER: &str = "/var/lib/pagewise";

/// Returns the folder of a recording.
pub(super) fn folder(args: &FolderArgs) -> PathBuf {
    if let Some(folder) = &args.dir {
        return folder.clone();
    }
    if system::euid() == 0 {
        return SYSTEM_FOLDER.into();
    }
    let set = |name| std::env::var_os(name).filter(|it| !it.is_empty()).map(PathBuf::from);
    let state = set("XDG_STATE_HOME").or_else(|| Some(set("HOME")?.join(".local/state")));
    state.map_or_else(|| SYSTEM_FOLDER.into(), |state| state.join("pagewise"))
}

/// Returns the present time in nanoseconds since 1970.
pub(super) fn now_ns() -> u64 {
    nanoseconds(SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default())
}

/// Parses a time. Returns nanoseconds since 1970; for the text `now`, `now_ns`.
///
/// # Errors
/// [`UsageError`] if the text is not a time.
pub(super) fn time(text: &str, now_ns: u64) -> Result<u64, UsageError> {
    if text == "now" {
        return Ok(now_ns);
    }
    if let Ok(before) = humantime::parse_duration(text) {
        return Ok(now_ns.saturating_sub(nanoseconds(before)));
    }
    let now = i64::try_from(now_ns / 1_000_000_000).unwrap_or(i64::MAX);
    let today = CivilTime::new(now, system::utc_offset(now));
    let wrong = || {
        let expected = "`now`, `02:13`, `2026-11-25 02:13:05`, or a duration before now (`2h`)";
        UsageError(format!("{text} is not a time: expected {expected}"))
    };
    let civil = CivilTime::parse(text, today).ok_or_else(wrong)?;
    // The UTC offset of the given time counts: summer time may have begun since.
    let guess = civil.unix_seconds(system::utc_offset(now));
    let mut seconds = civil.unix_seconds(system::utc_offset(guess));
    // A time of day that is later than now means yesterday.
    if seconds > now && !text.contains('-') {
        seconds -= 86_400;
    }
    let seconds = u64::try_from(seconds).map_err(|_| wrong())?;
    Ok(seconds.saturating_mul(1_000_000_000))
}

/// Returns the number of seconds by which local time is ahead of UTC at a time.
pub(super) fn utc_offset(at_ns: u64) -> i64 {
    system::utc_offset(i64::try_from(at_ns / 1_000_000_000).unwrap_or(i64::MAX))
}

/// Returns the options of reports.
pub(super) fn options(rows: &RowArgs, at_ns: u64) -> RecordOptions {
    RecordOptions { utc_offset: utc_offset(at_ns), rows: rows.rows.0.unwrap_or(usize::MAX) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_before_now() {
        let now = 1_764_028_800_000_000_000;
        assert_eq!(time("now", now).unwrap(), now);
        assert_eq!(time("2h", now).unwrap(), now - 7_200_000_000_000);
        for text in ["00:00", "23:59", "12:00:01"] {
            let found = time(text, now).unwrap();
            assert!(found <= now && now - found <= 86_400_000_000_000, "{text}");
        }
        assert!(time("tomorrow", now).is_err());
    }
}
