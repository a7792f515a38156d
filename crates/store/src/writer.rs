//! Appends sweeps to the files of a recording.

use std::fs::{self, File, OpenOptions};
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::thread::sleep;
use std::time::Duration;

use pagewise_model::Bytes;
use pagewise_model::sweep::{
    CategorySample, GapReason, Sweep, SweepEvent, SweepEventKind, SweepTime,
};
use rustix::fs::{FlockOperation, flock};

use crate::day_file::{DayFile, day_of, files};
use crate::day_rows::DayRows;
use crate::error::StoreError;

/// Name of the file that a recorder locks.
const LOCK: &str = "recorder.lock";
/// Number of attempts to take the lock, and the time between two attempts.
const LOCK_TRIES: usize = 10;
const LOCK_PAUSE: Duration = Duration::from_millis(50);

/// Parameters of a [`RecordWriter`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WriterOptions {
    /// Time between two complete sweeps. A reader can begin at a complete sweep.
    pub full_every: Duration,
    /// File size in bytes above which a new part of the day begins.
    pub part_size: Bytes,
}

impl Default for WriterOptions {
    fn default() -> WriterOptions {
        WriterOptions { full_every: Duration::from_secs(900), part_size: Bytes::mib(256) }
    }
}

/// Writer of a recording in a folder. When [`RecordWriter::append`] returns, the sweep is on the
/// disk.
#[derive(Debug)]
pub struct RecordWriter {
    folder: PathBuf,
    options: WriterOptions,
    open: Option<OpenDay>,
    /// Time of the last sweep that was written, in this run or in the previous one.
    last: Option<SweepTime>,
    /// Reason why no sweeps were written since `last`; `None` if no sweep is missing.
    missing: Option<GapReason>,
    on_open: Option<fn(&DayFile)>,
    /// Lock of the folder, which the kernel releases when the recorder ends.
    _lock: File,
}

#[derive(Debug)]
struct OpenDay {
    file: DayFile,
    rows: DayRows,
    full_ns: Option<u64>,
    sweeps: u64,
}

impl RecordWriter {
    /// Opens a folder to write a recording, and creates the folder if it does not exist.
    ///
    /// # Errors
    /// [`StoreError::Locked`] if another recorder is writing to the folder, [`StoreError::Io`].
    pub fn open(folder: &Path, options: WriterOptions) -> Result<RecordWriter, StoreError> {
        // Command lines may contain secrets, so only the owner may read the folder.
        let made = fs::DirBuilder::new().recursive(true).mode(0o700).create(folder);
        made.map_err(|error| StoreError::io(folder, error))?;
        let path = folder.join(LOCK);
        let lock = OpenOptions::new().create(true).truncate(false).write(true).open(&path);
        let lock = lock.map_err(|error| StoreError::io(&path, error))?;
        if !(0..LOCK_TRIES).any(|_| is_locked_now(&lock)) {
            return Err(StoreError::Locked { path: folder.to_owned() });
        }
        Ok(RecordWriter {
            last: last_time(folder),
            missing: Some(GapReason::NotRunning),
            folder: folder.to_owned(),
            options,
            open: None,
            on_open: None,
            _lock: lock,
        })
    }

    /// Sets a function that is called with each file before the file is opened. SQLite then holds
    /// POSIX locks on the [`DayFile::paths`] of this file. This process must not open and close
    /// these files elsewhere, because the kernel would release the locks.
    pub fn on_open(&mut self, call: fn(&DayFile)) {
        self.on_open = Some(call);
    }

    /// Path of the folder.
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// The file that is being written; `None` before the first sweep.
    pub fn current(&self) -> Option<&DayFile> {
        self.open.as_ref().map(|it| &it.file)
    }

    /// Appends a sweep and its events. After an error, the next call tries again and also stores an
    /// event for the gap.
    ///
    /// # Errors
    /// [`StoreError`]
    pub fn append(&mut self, sweep: &Sweep, events: &[SweepEvent]) -> Result<(), StoreError> {
        let written = self.try_append(sweep, events);
        match &written {
            Ok(()) => {
                self.last = Some(sweep.time);
                self.missing = None;
            }
            Err(error) => {
                self.missing = Some(match error.is_damage() {
                    true => GapReason::Damaged,
                    false => GapReason::NotWritable,
                });
                // The last rows in memory may differ from the file, so the file is opened again.
                self.open = None;
            }
        }
        written
    }

    fn try_append(&mut self, sweep: &Sweep, events: &[SweepEvent]) -> Result<(), StoreError> {
        let gap = self.gap(sweep.time);
        let mut events = events.to_vec();
        events.extend(gap.map(|event| SweepEvent { time: sweep.time, event }));
        let full_every = u64::try_from(self.options.full_every.as_nanos()).unwrap_or(u64::MAX);
        let day = self.day(sweep.time)?;
        let is_full =
            day.full_ns.is_none_or(|at| sweep.time.boot_ns.saturating_sub(at) >= full_every);
        let appended = day.rows.append(sweep, &events, is_full);
        appended.map_err(|error| StoreError::sqlite(&day.file.path, error))?;
        if is_full {
            day.full_ns = Some(sweep.time.boot_ns);
        }
        day.sweeps += 1;
        Ok(())
    }

    /// Appends categories, events and names of saved files to the last sweep.
    ///
    /// # Errors
    /// [`StoreError`]
    pub fn append_to_last(
        &mut self,
        categories: &[CategorySample],
        events: &[SweepEventKind],
        saved: &[(String, String)],
    ) -> Result<(), StoreError> {
        let Some(day) = &mut self.open else { return Ok(()) };
        let appended = day.rows.append_to_last(categories, events, saved);
        let path = day.file.path.clone();
        appended.map_err(|error| {
            self.open = None;
            self.missing = Some(GapReason::NotWritable);
            StoreError::sqlite(&path, error)
        })
    }

    /// Ends the recording.
    ///
    /// # Errors
    /// [`StoreError`]
    pub fn close(mut self) -> Result<(), StoreError> {
        self.close_day()
    }

    fn close_day(&mut self) -> Result<(), StoreError> {
        let Some(day) = self.open.take() else { return Ok(()) };
        day.rows.close().map_err(|error| StoreError::sqlite(&day.file.path, error))
    }

    /// The gap event before the next sweep; `None` without a gap.
    fn gap(&self, now: SweepTime) -> Option<SweepEventKind> {
        let (from, reason) = (self.last?, self.missing?);
        // The time since boot is lower than before if the machine was restarted.
        let is_reboot = reason == GapReason::NotRunning && now.boot_ns < from.boot_ns;
        let reason = if is_reboot { GapReason::Reboot } else { reason };
        Some(SweepEventKind::Gap { from, reason })
    }

    /// The file for the sweep. A new file begins if the day changes in either direction, or if the
    /// file is too large.
    fn day(&mut self, now: SweepTime) -> Result<&mut OpenDay, StoreError> {
        let day = day_of(now.unix_ns);
        let part_size = self.options.part_size.0;
        if let Some(open) = &self.open {
            // The size is checked every 16 sweeps, because the check takes three system calls.
            let is_large = open.sweeps % 16 == 15 && open.file.size() > part_size;
            if open.file.day != day || is_large {
                self.close_day()?;
            }
        }
        if self.open.is_none() {
            self.open = Some(self.open_day(&day)?);
        }
        Ok(self.open.as_mut().expect("it was opened above"))
    }

    /// Opens the last part of a day, or a new part if the last one is damaged or too large.
    fn open_day(&self, day: &str) -> Result<OpenDay, StoreError> {
        let last = files(&self.folder)?.into_iter().rfind(|file| file.day == day);
        let part = last.as_ref().map_or(1, |file| file.part);
        let is_large = last.as_ref().is_some_and(|file| file.size() > self.options.part_size.0);
        let file = DayFile::new(&self.folder, day, part);
        let opened = match is_large {
            true => None,
            false => match self.open_rows(&file) {
                Ok(rows) => Some(rows),
                Err(error) if error.is_damage() => None,
                Err(error) => return Err(error),
            },
        };
        let (file, rows) = match opened {
            Some(rows) => (file, rows),
            // The damaged part is kept, because readers can use the rows that are left.
            None => {
                let file = DayFile::new(&self.folder, day, part + 1);
                let rows = self.open_rows(&file)?;
                (file, rows)
            }
        };
        Ok(OpenDay { file, rows, full_ns: None, sweeps: 0 })
    }

    fn open_rows(&self, file: &DayFile) -> Result<DayRows, StoreError> {
        if let Some(call) = self.on_open {
            call(file);
        }
        DayRows::new(file.open()?).map_err(|error| StoreError::sqlite(&file.path, error))
    }
}

/// Tries to take the lock. [`is_recording`] may hold the lock for a short time, so the function
/// sleeps for [`LOCK_PAUSE`] after a failed attempt.
fn is_locked_now(lock: &File) -> bool {
    let locked = flock(lock, FlockOperation::NonBlockingLockExclusive).is_ok();
    if !locked {
        sleep(LOCK_PAUSE);
    }
    locked
}

/// True if a recorder is writing to the folder.
pub fn is_recording(folder: &Path) -> bool {
    let Ok(lock) = File::open(folder.join(LOCK)) else { return false };
    flock(&lock, FlockOperation::NonBlockingLockShared).is_err()
}

/// Time of the last sweep in the folder; `None` if no file has a sweep that can be read.
fn last_time(folder: &Path) -> Option<SweepTime> {
    let files = files(folder).ok()?;
    files.iter().rev().find_map(|file| {
        let connection = file.open_to_read().ok()?;
        DayRows::new(connection).ok()?.last_time().ok()?
    })
}
