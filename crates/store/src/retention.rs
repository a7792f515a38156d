//! Deletes the oldest files of a recording.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

use pagewise_model::Bytes;

use crate::day_file::{DayFile, files};
use crate::error::StoreError;

/// Maximum age and size of a recording.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RetentionLimits {
    /// Maximum number of days with records; the latest ones are kept. Days are counted by files and
    /// not by the clock, so that a clock with a wrong time deletes at most the oldest day.
    pub days: usize,
    /// Maximum size of all files in bytes.
    pub size: Bytes,
}

impl Default for RetentionLimits {
    fn default() -> RetentionLimits {
        RetentionLimits { days: 8, size: Bytes::mib(512) }
    }
}

/// Deletes the oldest files above the limits, with the snapshots and diagnoses of the deleted days.
/// The file `current` is never deleted. Returns the number of deleted files.
///
/// # Errors
/// [`StoreError::Io`]
pub fn apply(
    folder: &Path,
    limits: RetentionLimits,
    current: Option<&DayFile>,
) -> Result<usize, StoreError> {
    let all = files(folder)?;
    let days: BTreeSet<&str> = all.iter().map(|file| file.day.as_str()).collect();
    let first_kept = days.iter().rev().nth(limits.days.max(1) - 1).copied().unwrap_or_default();
    let saved = saved_files(folder);
    let mut size: u64 = all.iter().map(DayFile::size).sum();
    size += saved.iter().map(|(_, size)| size).sum::<u64>();
    let mut deleted = 0;
    for file in &all {
        let is_old = file.day.as_str() < first_kept;
        if Some(file) == current || !(is_old || size > limits.size.0) {
            continue;
        }
        let freed = file.size();
        file.remove()?;
        deleted += 1;
        size = size.saturating_sub(freed);
        let is_last = !all.iter().any(|other| other.day == file.day && other.part > file.part);
        for (name, freed) in saved.iter().filter(|(name, _)| is_last && name.starts_with(&file.day))
        {
            if fs::remove_file(folder.join(name)).is_ok() {
                size = size.saturating_sub(*freed);
                deleted += 1;
            }
        }
    }
    Ok(deleted)
}

/// Names and sizes in bytes of saved snapshots and diagnoses.
fn saved_files(folder: &Path) -> Vec<(String, u64)> {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    let saved = entries.filter_map(|entry| {
        let name = entry.file_name().into_string().ok()?;
        let is_saved = name.ends_with(".json");
        is_saved.then(|| (name, entry.metadata().map_or(0, |it| it.len())))
    });
    saved.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn folder(files: &[(&str, usize)]) -> tempfile::TempDir {
        let folder = tempfile::tempdir().unwrap();
        for (name, size) in files {
            fs::write(folder.path().join(name), vec![0; *size]).unwrap();
        }
        folder
    }

    fn names(folder: &Path) -> Vec<String> {
        files(folder).unwrap().into_iter().map(|it| it.day).collect()
    }

    #[test]
    fn the_latest_days_are_kept_whatever_the_clock_says() {
        let all = ["2026-11-23", "2026-11-24", "2026-11-25", "2036-01-01"];
        let made: Vec<_> = all.map(|day| (format!("{day}.pagewise.db"), 1)).into();
        let made: Vec<_> = made.iter().map(|(name, size)| (name.as_str(), *size)).collect();
        let folder = folder(&made);
        let limits = RetentionLimits { days: 3, size: Bytes::mib(1) };
        assert_eq!(apply(folder.path(), limits, None).unwrap(), 1);
        assert_eq!(names(folder.path()), all[1..]);
    }

    #[test]
    fn the_oldest_files_go_first_with_their_snapshots_and_the_current_one_stays() {
        let folder = folder(&[
            ("2026-11-24.pagewise.db", 600),
            ("2026-11-24T02-13-00-growth-7-snapshot.json", 300),
            ("2026-11-25.pagewise.db", 600),
            ("2026-11-25T02-13-00-growth-7-snapshot.json", 300),
        ]);
        let current = files(folder.path()).unwrap().pop().unwrap();
        let limits = RetentionLimits { days: 9, size: Bytes(1000) };
        assert_eq!(apply(folder.path(), limits, Some(&current)).unwrap(), 2);
        assert_eq!(names(folder.path()), ["2026-11-25"]);
        let tight = RetentionLimits { size: Bytes(1), ..limits };
        assert_eq!(apply(folder.path(), tight, Some(&current)).unwrap(), 0);
    }
}
