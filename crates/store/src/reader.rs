//! Reads sweeps back.

mod day;

use std::path::{Path, PathBuf};

use pagewise_model::sweep::{
    CategorySample, GapReason, Sweep, SweepEvent, SweepEventKind, SweepTime,
};

use self::day::DayReader;
use crate::day_file::{DayFile, day_of, files};
use crate::error::StoreError;

/// A recording: all files of a folder.
#[derive(Debug)]
pub struct RecordReader {
    folder: PathBuf,
    files: Vec<DayFile>,
}

/// The times of a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RecordSpan {
    /// The file.
    pub file: DayFile,
    /// Its first and last sweep and the number of sweeps; the reason if it cannot be read.
    pub sweeps: Result<(SweepTime, SweepTime, u64), String>,
}

impl RecordReader {
    /// Opens a folder.
    ///
    /// # Errors
    /// [`StoreError::Empty`] if it has no recording, [`StoreError::Io`].
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

    /// The folder.
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// The times of each file.
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

    /// The last sweep at a time or before; `None` if the recording begins later. With a clock that
    /// was set back, the sweep that was written last.
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

    /// The files of the days from one time to another. A file has sweeps of its day only, whatever
    /// the clock did.
    fn files_of(&self, from_ns: u64, to_ns: u64) -> impl DoubleEndedIterator<Item = &DayFile> {
        let (first, last) = (day_of(from_ns), day_of(to_ns));
        self.files.iter().filter(move |file| (&first..=&last).contains(&&file.day))
    }

    /// The time of the next sweep after a time.
    ///
    /// # Errors
    /// [`StoreError`]
    pub fn next_after(&self, unix_ns: u64) -> Result<Option<SweepTime>, StoreError> {
        let files = self.files_of(unix_ns, i64::MAX.cast_unsigned());
        nearest(files, |day| day.next_after(unix_ns), |it| it.unix_ns)
    }

    /// The time of the last sweep before a time.
    ///
    /// # Errors
    /// [`StoreError`]
    pub fn last_before(&self, unix_ns: u64) -> Result<Option<SweepTime>, StoreError> {
        let files = self.files_of(0, unix_ns).rev();
        nearest(files, |day| day.last_before(unix_ns), |it| u64::MAX - it.unix_ns)
    }

    /// The sweeps from one time to another, in the order in which they were written.
    pub fn sweeps(&self, from_ns: u64, to_ns: u64) -> RecordCursor {
        RecordCursor {
            files: self.files_of(from_ns, to_ns).rev().cloned().collect(),
            day: None,
            range: (from_ns, to_ns),
            last: None,
            gaps: Vec::new(),
        }
    }

    /// The events from one time to another. Files that cannot be read are left out.
    pub fn events(&self, from_ns: u64, to_ns: u64) -> Vec<SweepEvent> {
        self.collected((from_ns, to_ns), |day| day.events(from_ns, to_ns))
    }

    /// Categories of processes from one time to another.
    pub fn categories(&self, from_ns: u64, to_ns: u64) -> Vec<CategorySample> {
        self.collected((from_ns, to_ns), |day| day.categories(from_ns, to_ns))
    }

    /// Snapshots and diagnoses that triggers saved: the time, the kind, and the file.
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

/// The nearest time in files that are in order of their distance: that of the first day that has
/// one.
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

/// Sweeps one after the other. Each is made from the one before.
#[derive(Debug)]
pub struct RecordCursor {
    /// Files that are not open yet, the next one last.
    files: Vec<DayFile>,
    day: Option<DayReader>,
    range: (u64, u64),
    last: Option<SweepTime>,
    gaps: Vec<SweepEvent>,
}

impl RecordCursor {
    /// The next sweep; `None` at the end. Damaged rows are skipped: [`RecordCursor::gaps`].
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

    /// Gaps that damaged rows leave, so far.
    pub fn gaps(&self) -> &[SweepEvent] {
        &self.gaps
    }
}
