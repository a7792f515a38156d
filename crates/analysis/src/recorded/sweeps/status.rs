//! State of a recording: its files, and the presence of a recorder.

use pagewise_model::Name;
use pagewise_model::report::{CellValue, ColumnCells, Report, ReportBlock, TableColumn};
use pagewise_model::sweep::SweepTime;

use super::{RecordOptions, line, list_table, values};
use crate::cells::text;
use crate::explain::fact;

/// State of a folder with a recording.
#[derive(Clone, Debug)]
pub struct RecordingStatus {
    /// Path of the folder.
    pub folder: Name,
    /// True if a recorder writes to the folder.
    pub is_recording: bool,
    /// Files of the recording, in the order of their times.
    pub files: Vec<RecordedFile>,
    /// The present time in nanoseconds since 1970.
    pub now_ns: u64,
}

/// A file of a recording, and its contents.
#[derive(Clone, Debug)]
pub struct RecordedFile {
    /// Path of the file.
    pub path: Name,
    /// Size of the file in bytes.
    pub size: u64,
    /// Time of the first sweep, time of the last sweep and number of sweeps; the reason if the file
    /// cannot be read.
    pub sweeps: Result<(SweepTime, SweepTime, u64), Name>,
}

/// Reports the state.
pub fn status(status: &RecordingStatus, options: RecordOptions) -> Report {
    let last = status.files.iter().filter_map(|it| it.sweeps.as_ref().ok()).map(|it| it.1).max();
    let size = status.files.iter().map(|it| it.size).sum();
    let sweeps = status.files.iter().filter_map(|it| it.sweeps.as_ref().ok()).map(|it| it.2).sum();
    let mut facts = vec![
        fact("folder", "folder", CellValue::Name(status.folder.clone()), ""),
        fact("recording", "", CellValue::Flag(status.is_recording), "").for_programs(),
        fact(
            "recording",
            "recorder",
            text(if status.is_recording { "running" } else { "not running" }),
            "",
        )
        .for_people(),
        fact("sweeps", "sweeps", CellValue::Count(sweeps), ""),
        fact("size", "size", CellValue::Bytes(size), ""),
    ];
    if let Some(last) = last {
        let age = status.now_ns.saturating_sub(last.unix_ns);
        facts.push(fact("last_age_ns", "time since the last sweep", CellValue::Nanos(age), ""));
    }
    let mut blocks = vec![line("recording", "", facts)];
    if !status.files.is_empty() {
        blocks.push(ReportBlock::Table(files(status, options)));
    }
    Report { schema: "pagewise.record-status/1", title: vec![text("Recording")], blocks }
}

fn files(status: &RecordingStatus, options: RecordOptions) -> pagewise_model::report::ReportTable {
    let each = || status.files.iter();
    let times = |pick: fn(&(SweepTime, SweepTime, u64)) -> u64| {
        each().map(|it| it.sweeps.as_ref().ok().map(pick)).collect::<Vec<_>>()
    };
    let sizes = each().map(|it| it.size).collect();
    let mut columns = vec![TableColumn::new("size", "SIZE", ColumnCells::Bytes(sizes))];
    columns.push(values(
        "sweeps",
        "SWEEPS",
        each().map(|it| match &it.sweeps {
            Ok((.., count)) => CellValue::Count(*count),
            Err(_) => CellValue::None,
        }),
    ));
    columns.extend(options.time_columns("from", "FROM", &times(|it| it.0.unix_ns)));
    columns.extend(options.time_columns("to", "TO", &times(|it| it.1.unix_ns)));
    let error = |it: &RecordedFile| match &it.sweeps {
        Ok(_) => CellValue::None,
        Err(why) => CellValue::Name(why.clone()),
    };
    if each().any(|it| it.sweeps.is_err()) {
        columns.push(values("error", "NOT READABLE", each().map(error)));
    }
    let names = each().map(|it| Name::new(it.path.base())).collect();
    columns.push(TableColumn::new("file", "FILE", ColumnCells::Names(names)));
    list_table("files", "Files", columns, String::new())
}
