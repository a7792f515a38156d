//! Bytes of a file that a process may change while it is read.

use std::cell::Cell;
use std::fs::File;
use std::io;
use std::os::unix::fs::{FileExt, MetadataExt};

/// Source of a file's bytes.
#[derive(Debug)]
pub(crate) enum FileSource {
    /// A file.
    File(Original),
    /// Memory.
    Memory(Vec<u8>),
}

/// A file with the content that it had when it was opened. After a change every read fails: no name
/// is better than a wrong one, and code that reads a table twice relies on equal bytes.
#[derive(Debug)]
pub(crate) struct Original {
    file: File,
    /// Size, and modification time in seconds and nanoseconds.
    state: (u64, i64, i64),
    changed: Cell<bool>,
}

fn state(file: &File) -> (u64, i64, i64) {
    file.metadata().map_or((0, 0, 0), |it| (it.len(), it.mtime(), it.mtime_nsec()))
}

impl From<File> for FileSource {
    fn from(file: File) -> FileSource {
        let state = state(&file);
        FileSource::File(Original { file, state, changed: Cell::new(false) })
    }
}

impl Original {
    /// Reads available bytes and returns their number; `None` if the file cannot be read or has
    /// changed.
    fn read(&self, offset: u64, to: &mut [u8]) -> Option<usize> {
        let mut filled = 0;
        while filled < to.len() {
            let at = offset.checked_add(filled as u64)?;
            match self.file.read_at(&mut to[filled..], at) {
                Ok(0) => break,
                Ok(count) => filled += count,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(_) => return None,
            }
        }
        // Checked after the read, so that the returned bytes are from before any change.
        self.changed.set(self.changed.get() || state(&self.file) != self.state);
        (!self.changed.get()).then_some(filled)
    }
}

impl FileSource {
    /// Returns available bytes from an offset on, at least one. `None` at the end, or if the file
    /// cannot be read.
    pub(crate) fn read_into(&self, offset: u64, to: &mut [u8]) -> Option<usize> {
        let count = match self {
            FileSource::File(original) => original.read(offset, to)?,
            FileSource::Memory(bytes) => {
                let rest = bytes.get(usize::try_from(offset).ok()?..)?;
                let count = rest.len().min(to.len());
                to[..count].copy_from_slice(&rest[..count]);
                count
            }
        };
        (count > 0).then_some(count)
    }

    /// Up to `length` bytes from an offset on; fewer at the end of the file.
    pub(crate) fn read(&self, offset: u64, length: u64) -> Option<Vec<u8>> {
        // Allocate no more memory than the file has bytes.
        let length = self.size().checked_sub(offset)?.min(length);
        let mut bytes = vec![0; usize::try_from(length).ok()?];
        let count = self.read_into(offset, &mut bytes)?;
        bytes.truncate(count);
        Some(bytes)
    }

    /// Size when the file was opened, in bytes.
    pub(crate) fn size(&self) -> u64 {
        match self {
            FileSource::File(original) => original.state.0,
            FileSource::Memory(bytes) => bytes.len() as u64,
        }
    }

    /// True if a read failed because the file was changed after it was opened.
    pub(crate) fn has_changed(&self) -> bool {
        matches!(self, FileSource::File(original) if original.changed.get())
    }
}
