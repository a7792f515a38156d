//! Bytes of a core file: read by offset, from a file or from memory.

use std::fs::File;
use std::ops::Range;
use std::os::unix::fs::FileExt;

use rustix::fs::{SeekFrom, seek};
use rustix::io::Errno;

/// A core file's contents.
#[derive(Debug)]
pub(super) enum CoreBytes {
    File { file: File, size: u64 },
    Memory(Vec<u8>),
}

impl CoreBytes {
    pub(super) fn of_file(file: File) -> std::io::Result<CoreBytes> {
        let size = file.metadata()?.len();
        Ok(CoreBytes::File { file, size })
    }

    pub(super) fn len(&self) -> u64 {
        match self {
            CoreBytes::File { size, .. } => *size,
            CoreBytes::Memory(bytes) => bytes.len() as u64,
        }
    }

    /// Fills `into`. Returns false if the file ends too early or cannot be read.
    pub(super) fn read_exact(&self, offset: u64, into: &mut [u8]) -> bool {
        match self {
            CoreBytes::File { file, .. } => file.read_exact_at(into, offset).is_ok(),
            CoreBytes::Memory(bytes) => {
                let from = usize::try_from(offset).ok().and_then(|from| bytes.get(from..));
                let found = from.and_then(|rest| rest.get(..into.len()));
                found.is_some_and(|found| {
                    into.copy_from_slice(found);
                    true
                })
            }
        }
    }

    /// The `N` bytes at an offset, if the file has them.
    pub(super) fn array<const N: usize>(&self, offset: u64) -> Option<[u8; N]> {
        let mut bytes = [0; N];
        self.read_exact(offset, &mut bytes).then_some(bytes)
    }

    /// Returns the bytes at an offset, or `None` if the file ends too early. The caller limits the
    /// length.
    pub(super) fn vec(&self, offset: u64, len: usize) -> Option<Vec<u8>> {
        // The length is checked before memory is allocated.
        if offset.checked_add(len as u64)? > self.len() {
            return None;
        }
        let mut bytes = vec![0; len];
        self.read_exact(offset, &mut bytes).then_some(bytes)
    }

    /// The first part of `start..end` that lies in no hole of the file.
    pub(super) fn next_stored(&self, start: u64, end: u64) -> Option<Range<u64>> {
        let CoreBytes::File { file, .. } = self else { return (start < end).then_some(start..end) };
        let data = match seek(file, SeekFrom::Data(start)) {
            Ok(data) => data,
            Err(Errno::NXIO) => return None,
            Err(_) => start,
        };
        let hole = seek(file, SeekFrom::Hole(data)).unwrap_or(end).min(end);
        (data < hole).then_some(data..hole)
    }
}

/// A little-endian number of up to 8 bytes at an offset; `None` beyond the end.
pub(super) fn number<const N: usize>(bytes: &[u8], at: usize) -> Option<u64> {
    let found = bytes.get(at..at.checked_add(N)?)?;
    let mut word = [0; 8];
    word[..N].copy_from_slice(found);
    Some(u64::from_le_bytes(word))
}

pub(super) fn u32_at(bytes: &[u8], at: usize) -> Option<u32> {
    number::<4>(bytes, at).and_then(|number| u32::try_from(number).ok())
}

pub(super) fn u64_at(bytes: &[u8], at: usize) -> Option<u64> {
    number::<8>(bytes, at)
}
