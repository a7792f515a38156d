//! Reports about recordings of all processes: at one time, over a period, and between two times. A
//! recording consists of sweeps; a sweep is one reading of all processes.

mod account;
mod categories;
mod compared;
pub(crate) mod events;
mod moment;
mod period;
mod status;
#[cfg(test)]
mod tests;

use pagewise_model::civil::CivilTime;
use pagewise_model::report::{
    Audience, CellValue, ColumnCells, Fact, FactsShape, NamedFacts, ReportBlock, ReportTable,
    TableColumn,
};
use pagewise_model::sweep::{ProcessIdentity, SweepProcess, SweepTime};
use pagewise_model::{Bytes, Name, Pid, Reading};

use crate::blocks::{facts_of, for_people, for_programs};
use crate::cells::float;
use crate::explain::fact;
use crate::program_name::{program_name, whole_command};

pub use categories::categories;
pub use compared::{ComparedSweeps, compare};
pub use events::is_notable;
pub(crate) use moment::category_label;
pub use moment::{RecordedMoment, moment};
pub use period::{PeriodSummary, period};
pub use status::{RecordedFile, RecordingStatus, status};

/// Maximum age of a sample of a process's memory by category that counts for a sweep, in
/// nanoseconds before the sweep.
pub const CATEGORIES_NS: u64 = 900_000_000_000;
/// Examples of the year and the date in a time for people. Only their lengths matter.
const YEAR: &str = "2026-";
const MONTH_DAY: &str = "11-26 ";

/// Options of reports about recordings.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RecordOptions {
    /// Number of seconds by which the user's time zone is ahead of UTC.
    pub utc_offset: i64,
    /// Maximum number of rows of a table for people.
    pub rows: usize,
}

impl RecordOptions {
    /// Writes a time for people.
    fn time(self, unix_ns: u64) -> CellValue {
        CellValue::text(self.civil(unix_ns).to_string())
    }

    fn civil(self, unix_ns: u64) -> CivilTime {
        let seconds = i64::try_from(unix_ns / 1_000_000_000).unwrap_or(i64::MAX);
        CivilTime::new(seconds, self.utc_offset)
    }

    /// Returns the facts of a time, for people and for programs.
    fn time_facts(self, key: &'static str, label: &'static str, time: SweepTime) -> [Fact; 2] {
        [
            fact(key, label, self.time(time.unix_ns), "").for_people(),
            fact(key, label, seconds(time.unix_ns), "").for_programs(),
        ]
    }

    /// Builds the columns of times for people and for programs; `None` is an empty cell. People see
    /// the date only if the times have several dates, and the year only if they have several years.
    fn time_columns(
        self,
        key: &'static str,
        label: &'static str,
        times: &[Option<u64>],
    ) -> [TableColumn; 2] {
        let written: Vec<_> =
            times.iter().map(|it| it.map(|it| self.civil(it).to_string())).collect();
        let same = |length: usize| {
            let mut starts = written.iter().flatten().map(|it| it.get(..length));
            starts.next().is_none_or(|first| starts.all(|it| it == first))
        };
        let from = match (same(YEAR.len() + MONTH_DAY.len()), same(YEAR.len())) {
            (true, _) => YEAR.len() + MONTH_DAY.len(),
            (false, true) => YEAR.len(),
            (false, false) => 0,
        };
        let shown = |it: &String| CellValue::text(it.get(from..).unwrap_or(it).to_owned());
        let people = written.iter().map(|it| it.as_ref().map_or(CellValue::None, shown));
        let programs = times.iter().map(|it| it.map_or(CellValue::None, seconds));
        [
            for_people(TableColumn::new(key, label, ColumnCells::Values(people.collect()))),
            for_programs(TableColumn::new(key, label, ColumnCells::Values(programs.collect()))),
        ]
    }

    /// Returns the number of rows to show of a table with `all` rows, and a note on the other rows.
    fn shown(self, all: usize) -> (usize, String) {
        let shown = all.min(self.rows);
        let note = match all - shown {
            0 => String::new(),
            more => format!("{more} more: --rows all"),
        };
        (shown, note)
    }
}

/// Converts a time to seconds since 1970, for programs.
fn seconds(unix_ns: u64) -> CellValue {
    CellValue::Seconds(unix_ns)
}

/// Returns the user's name, or the UID if it has no name.
pub(crate) fn user(identity: &ProcessIdentity) -> CellValue {
    match (&identity.user, &identity.uid) {
        (Some(name), _) => CellValue::Name(name.clone()),
        (None, Ok(uid)) => CellValue::text(uid.to_string()),
        (None, Err(why)) => CellValue::Absent(why.clone()),
    }
}

fn pids(pids: impl Iterator<Item = Pid>) -> TableColumn {
    let cells = pids.map(|pid| u64::from(pid.0)).collect();
    TableColumn::new("pid", "PID", ColumnCells::Counts(cells))
}

fn values(
    key: &'static str,
    label: &'static str,
    cells: impl Iterator<Item = CellValue>,
) -> TableColumn {
    TableColumn::new(key, label, ColumnCells::Values(cells.collect()))
}

/// Builds the columns with the name and the command; people see a short command.
fn named<'a>(identities: impl Iterator<Item = &'a ProcessIdentity> + Clone) -> [TableColumn; 3] {
    let names = identities.clone().map(|it| it.name.clone()).collect();
    let whole = identities.clone().map(whole_command).collect();
    let short = identities.map(short_command).collect();
    [
        for_programs(TableColumn::new("name", "NAME", ColumnCells::Names(names))),
        for_people(TableColumn::new("command", "COMMAND", ColumnCells::Names(short))),
        for_programs(TableColumn::new("command", "COMMAND", ColumnCells::Names(whole))),
    ]
}

/// Returns the short command: the program is first and paths have no folders; a long command is
/// cut.
fn short_command(identity: &ProcessIdentity) -> Name {
    /// Maximum number of bytes of a short command: it fills two lines of a report.
    const LENGTH: usize = 160;
    let bytes = program_name(identity).line();
    if bytes.len() <= LENGTH {
        return Name::new(&bytes);
    }
    // A UTF-8 character is not split.
    let end = (0..=LENGTH).rev().find(|at| bytes[*at] & 0xc0 != 0x80).unwrap_or(LENGTH);
    Name::new(&[&bytes[..end], "…".as_bytes()].concat())
}

/// Difference of two numbers of bytes.
fn change(before: Bytes, after: Bytes) -> i64 {
    let change = i128::from(after.0) - i128::from(before.0);
    i64::try_from(change).unwrap_or(if change < 0 { i64::MIN } else { i64::MAX })
}

/// Converts a rate of bytes per minute to a cell with a sign.
#[expect(clippy::cast_possible_truncation, reason = "rates are shown with three digits")]
fn per_minute(rate: Reading<f64>) -> CellValue {
    CellValue::from_reading(rate, |rate| CellValue::Change(rate.round() as i64))
}

/// Returns the bytes that determine the order of processes: PSS if it is known, else RSS.
fn weight(process: &SweepProcess) -> Bytes {
    process.pss_total().unwrap_or(process.rss)
}

fn line(key: &'static str, title: &'static str, facts: Vec<Fact>) -> ReportBlock {
    ReportBlock::Facts(NamedFacts { ..facts_of(key, title, FactsShape::Line, facts) })
}

fn list_table(
    key: &'static str,
    title: &'static str,
    columns: Vec<TableColumn>,
    note: String,
) -> ReportTable {
    ReportTable {
        note: note.into(),
        ..crate::blocks::table(key, title, Audience::Everyone, columns)
    }
}

fn share_of(part: u64, whole: u64) -> Option<f64> {
    (whole > 0).then(|| float(part) / float(whole))
}
