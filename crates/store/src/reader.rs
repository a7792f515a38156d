//! Reads recorded sweeps.

mod day;

use std::path::{Path, PathBuf};

use pagewise_model::sweep::{
    CategorySample, GapReason, Sweep, SweepEvent, SweepEventKind, SweepTime,
};

use self::day::DayReader;
use crate::day_file::{DayFile, day_of, files};
use crate::error::StoreError;

/// A reader of a recording: all files of a folder.
#[derive(Debug)]
pub struct RecordReader {
    folder: PathBuf,
    files: Vec<DayFile>,
}

/// First and last sweep of a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RecordSpan {
    /// The file.
    pub file: DayFile,
    /// Times of the first and the last sweep, and the number of sweeps; an error message if the
    /// file cannot be read.
    pub sweeps: Result<(SweepTime, SweepTime, u64), String>,
}

impl RecordReader {
    /// Opens the recording in a folder.
    ///
    /// # Errors
    /// [`StoreError::Empty`] if the folder contains no recording, [`StoreError::Io`].
    pub fn open(folder: &Path) -> Result<RecordReader, StoreError> {
        let empty = || StoreError::Empty { path: folder.to_owned() };
        let files = match files(folder) {
            Err(StoreError::Io { source, .. }) if source.kind() == std::io::ErrorKind::NotFound => {
                return Err(empty());
            }
            files => files?,
        };
        if files.is_empty() {
            return Err(empty());
        }
        Ok(RecordReader { folder: folder.to_owned(), files })
    }

    /// Path of the folder.
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// First and last sweep of each file.
    pub fn spans(&self) -> Vec<RecordSpan> {
        let span = |file: &DayFile| RecordSpan {
            file: file.clone(),
            sweeps: DayReader::open(file)
                .and_then(|mut day| day.span())
                .map_err(|error| error.to_string())
                .and_then(|span| span.ok_or_else(|| "it has no sweeps".to_owned())),
        };
        self.files.iter().map(span).collect()
    }

    /// The last sweep at or before the time `unix_ns`; `None` if the recording begins later. If the
    /// clock was set back, sweeps overlap in time; the result is the sweep that was written last.
    ///
    /// # Errors
    /// [`StoreError`] if no file can be read.
    pub fn at(&self, unix_ns: u64) -> Result<Option<Sweep>, StoreError> {
        let mut damage = None;
        for file in self.files_of(0, unix_ns).rev() {
            let found = DayReader::open(file).and_then(|mut day| {
                let id = day.id_at(unix_ns)?;
                id.map(|id| day.sweep(id)).transpose()
            });
            match found {
                Ok(Some(sweep)) => return Ok(Some(sweep)),
                Ok(None) => {}
                Err(error) => damage = Some(error),
            }
        }
        damage.map_or(Ok(None), Err)
    }

    /// Files of the days from `from_ns` to `to_ns`. Each file contains sweeps of one day only, even
    /// if the clock was set.
    fn files_of(&self, from_ns: u64, to_ns: u64) -> impl DoubleEndedIterator<Item = &DayFile> {
        let (first, last) = (day_of(from_ns), day_of(to_ns));
        self.files.iter().filter(move |file| (&first..=&last).contains(&&file.day))
    }

    /// Time of the first sweep after the time `unix_ns`; `None` if no sweep is later.
    ///
    /// # Errors
    /// [`StoreError`]
    pub fn next_after(&self, unix_ns: u64) -> Result<Option<SweepTime>, StoreError> {
        let files = self.files_of(unix_ns, i64::MAX.cast_unsigned());
        nearest(files, |day| day.next_after(unix_ns), |it| it.unix_ns)
    }

    /// Time of the last sweep before the time `unix_ns`; `None` if no sweep is earlier.
    ///
    /// # Errors
    /// [`StoreError`]
    pub fn last_before(&self, unix_ns: u64) -> Result<Option<SweepTime>, StoreError> {
        let files = self.files_of(0, unix_ns).rev();
        nearest(files, |day| day.last_before(unix_ns), |it| u64::MAX - it.unix_ns)
    }

    /// Iterates over the sweeps from `from_ns` to `to_ns`, in the order in which they were written.
    pub fn sweeps(&self, from_ns: u64, to_ns: u64) -> RecordCursor {
        RecordCursor {
            files: self.files_of(from_ns, to_ns).rev().cloned().collect(),
            day: None,
            range: (from_ns, to_ns),
            last: None,
            gaps: Vec::new(),
        }
    }

    /// Events from `from_ns` to `to_ns`. Files that cannot be read are skipped.
    pub fn events(&self, from_ns: u64, to_ns: u64) -> Vec<SweepEvent> {
        self.collected((from_ns, to_ns), |day| day.events(from_ns, to_ns))
    }

    /// Memory by category of processes from `from_ns` to `to_ns`. Files that cannot be read are
    /// skipped.
    pub fn categories(&self, from_ns: u64, to_ns: u64) -> Vec<CategorySample> {
        self.collected((from_ns, to_ns), |day| day.categories(from_ns, to_ns))
    }

    /// Snapshots and diagnoses that triggers saved from `from_ns` to `to_ns`: time, kind, and file
    /// name.
    pub fn saved_files(&self, from_ns: u64, to_ns: u64) -> Vec<(SweepTime, String, PathBuf)> {
        let found = self.collected((from_ns, to_ns), |day| day.saved_files(from_ns, to_ns));
        let path =
            |(time, kind, file): (SweepTime, String, String)| (time, kind, self.folder.join(file));
        found.into_iter().map(path).collect()
    }

    fn collected<T>(
        &self,
        (from_ns, to_ns): (u64, u64),
        read: impl Fn(&mut DayReader) -> Result<Vec<T>, StoreError>,
    ) -> Vec<T> {
        let days = self.files_of(from_ns, to_ns).filter_map(|file| DayReader::open(file).ok());
        days.flat_map(|mut day| read(&mut day).unwrap_or_default()).collect()
    }
}

/// Returns the time with the smallest `distance` among the times that `find` returns for the files
/// of one day: the first day that has such a time. `files` must be in order of distance.
fn nearest<'f>(
    files: impl Iterator<Item = &'f DayFile>,
    find: impl Fn(&mut DayReader) -> Result<Option<SweepTime>, StoreError>,
    distance: impl Fn(&SweepTime) -> u64,
) -> Result<Option<SweepTime>, StoreError> {
    let mut best: Option<(&str, SweepTime)> = None;
    let mut damage = None;
    for file in files {
        if best.is_some_and(|(day, _)| day != file.day) {
            break;
        }
        match DayReader::open(file).and_then(|mut day| find(&mut day)) {
            Ok(found) => {
                let found = found.map(|time| (file.day.as_str(), time));
                best = best.into_iter().chain(found).min_by_key(|(_, it)| distance(it));
            }
            Err(error) => damage = Some(error),
        }
    }
    match (best, damage) {
        (None, Some(error)) => Err(error),
        (best, _) => Ok(best.map(|(_, time)| time)),
    }
}

/// Cursor over sweeps. It computes each sweep from the previous one.
#[derive(Debug)]
pub struct RecordCursor {
    /// Files that are not open yet. The last element is the next file.
    files: Vec<DayFile>,
    day: Option<DayReader>,
    range: (u64, u64),
    last: Option<SweepTime>,
    gaps: Vec<SweepEvent>,
}

impl RecordCursor {
    /// The next sweep; `None` at the end. Damaged rows are skipped and become
    /// [`RecordCursor::gaps`].
    pub fn next_sweep(&mut self) -> Option<&Sweep> {
        loop {
            if self.day.is_none() {
                let file = self.files.pop()?;
                match DayReader::open(&file).and_then(|mut day| {
                    day.begin(self.range.0, self.range.1)?;
                    Ok(day)
                }) {
                    Ok(day) => self.day = Some(day),
                    Err(_) => {
                        self.note_damage();
                        continue;
                    }
                }
            }
            let day = self.day.as_mut()?;
            match day.step() {
                Ok(true) => break,
                Ok(false) => {
                    let is_cut = day.is_cut();
                    self.day = None;
                    if is_cut {
                        self.note_damage();
                    }
                }
                Err(_) => {
                    let is_over = !matches!(day.skip_damage(), Ok(true));
                    if is_over {
                        self.day = None;
                    }
                    self.note_damage();
                }
            }
        }
        let sweep = self.day.as_ref()?.current();
        self.last = Some(sweep.time);
        Some(sweep)
    }

    fn note_damage(&mut self) {
        let time = self.last.unwrap_or_default();
        let event = SweepEventKind::Gap { from: time, reason: GapReason::Damaged };
        self.gaps.push(SweepEvent { time, event });
    }

    /// Gaps of damaged rows that were found until now.
    pub fn gaps(&self) -> &[SweepEvent] {
        &self.gaps
    }
}
