//! Archives of cpio in the format `newc`, the only one that kernels unpack as initramfs.
//!
//! Each header is a magic number and 13 numbers of 8 hexadecimal digits. Names and contents end at
//! multiples of 4 bytes (Documentation/driver-api/early-userspace/buffer-format.rst).

use std::collections::BTreeSet;
use std::io::{self, Write};

use crate::VmError;

const MAGIC: &[u8] = b"070701";
/// Length of a header: the magic number and the 13 numbers.
const HEADER: usize = 6 + 13 * 8;
/// Name of the last entry.
const TRAILER: &[u8] = b"TRAILER!!!";

const FOLDER: u32 = 0o040_755;
const FILE: u32 = 0o100_000;
/// Bits of the mode that contain the type of a file.
const TYPE: u32 = 0o170_000;

/// Writes an archive. All files belong to root.
#[derive(Debug)]
pub struct ArchiveWriter<W> {
    out: W,
    written: usize,
    inode: u32,
    folders: BTreeSet<String>,
}

impl<W: Write> ArchiveWriter<W> {
    /// An empty archive.
    pub fn new(out: W) -> ArchiveWriter<W> {
        ArchiveWriter { out, written: 0, inode: 0, folders: BTreeSet::new() }
    }

    /// Adds a folder and the folders that contain it. The path begins with a slash.
    ///
    /// # Errors
    /// Those of the destination.
    pub fn folder(&mut self, path: &str) -> io::Result<()> {
        let path = path.trim_matches('/');
        if path.is_empty() || self.folders.contains(path) {
            return Ok(());
        }
        if let Some((parent, _)) = path.rsplit_once('/') {
            self.folder(parent)?;
        }
        self.folders.insert(path.to_owned());
        self.entry(path, FOLDER, b"")
    }

    /// Adds a file with these permissions.
    ///
    /// # Errors
    /// Those of the destination; [`io::ErrorKind::FileTooLarge`] for 4 GiB or more.
    pub fn file(&mut self, path: &str, mode: u32, content: &[u8]) -> io::Result<()> {
        self.in_folder(path)?;
        self.entry(path.trim_matches('/'), FILE | mode, content)
    }

    /// Writes the last entry, and returns the destination.
    ///
    /// # Errors
    /// Those of the destination.
    pub fn finish(mut self) -> io::Result<W> {
        self.inode = 0;
        self.header(0, TRAILER.len(), 0, 1)?;
        self.name(TRAILER)?;
        self.out.flush()?;
        Ok(self.out)
    }

    fn in_folder(&mut self, path: &str) -> io::Result<()> {
        path.rsplit_once('/').map_or(Ok(()), |(folder, _)| self.folder(folder))
    }

    fn entry(&mut self, path: &str, mode: u32, content: &[u8]) -> io::Result<()> {
        self.inode += 1;
        self.header(mode, path.len(), content.len(), 1)?;
        self.name(path.as_bytes())?;
        self.put(content)?;
        self.align()
    }

    fn header(&mut self, mode: u32, name: usize, size: usize, links: u32) -> io::Result<()> {
        let field = |n: usize| u32::try_from(n).map_err(|_| io::ErrorKind::FileTooLarge);
        let (size, name) = (field(size)?, field(name + 1)?);
        // inode, mode, user, group, links, time, size, 4 device numbers, size of the name, checksum
        let fields = [self.inode, mode, 0, 0, links, 0, size, 0, 0, 0, 0, name, 0];
        let digits: String = fields.iter().map(|field| format!("{field:08x}")).collect();
        self.put(MAGIC)?;
        self.put(digits.as_bytes())
    }

    fn name(&mut self, name: &[u8]) -> io::Result<()> {
        self.put(name)?;
        self.put(&[0])?;
        self.align()
    }

    fn align(&mut self) -> io::Result<()> {
        self.put(&[0; 3][..self.written.next_multiple_of(4) - self.written])
    }

    fn put(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.written += bytes.len();
        self.out.write_all(bytes)
    }
}

/// A file of an archive.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ArchiveEntry<'a> {
    /// Path as the archive has it, without `./` at its start.
    pub path: &'a [u8],
    /// Permissions.
    pub mode: u32,
    /// Content of the file.
    pub content: &'a [u8],
}

/// The regular files of an archive. Folders, links and devices are left out.
///
/// # Errors
/// [`VmError::Format`] if the archive is truncated or has another format.
pub fn read_archive(archive: &[u8]) -> Result<Vec<ArchiveEntry<'_>>, VmError> {
    let mut reader = ArchiveReader { archive, at: 0 };
    let mut entries = Vec::new();
    while let Some(entry) = reader.next_entry()? {
        if entry.mode & TYPE == FILE {
            entries.push(ArchiveEntry { mode: entry.mode & !TYPE, ..entry });
        }
    }
    Ok(entries)
}

struct ArchiveReader<'a> {
    archive: &'a [u8],
    at: usize,
}

impl<'a> ArchiveReader<'a> {
    /// The next entry; `None` at the last.
    fn next_entry(&mut self) -> Result<Option<ArchiveEntry<'a>>, VmError> {
        let header = self.take(HEADER)?;
        if !header.starts_with(MAGIC) {
            return Err(self.wrong("expected the magic number of an entry"));
        }
        let [mode, size, name_size] = [1, 6, 11].map(|field| {
            let digits = &header[MAGIC.len() + field * 8..][..8];
            std::str::from_utf8(digits).ok().and_then(|text| u32::from_str_radix(text, 16).ok())
        });
        let (Some(mode), Some(size), Some(name_size)) = (mode, size, name_size) else {
            return Err(self.wrong("expected hexadecimal digits"));
        };
        let name = self.take(name_size as usize)?;
        let name = name.strip_suffix(&[0]).unwrap_or(name);
        self.align();
        let content = self.take(size as usize)?;
        self.align();
        let path = name.strip_prefix(b"./").unwrap_or(name);
        Ok((name != TRAILER).then_some(ArchiveEntry { path, mode, content }))
    }

    fn take(&mut self, length: usize) -> Result<&'a [u8], VmError> {
        let end = self.at.checked_add(length);
        let taken = end.and_then(|end| self.archive.get(self.at..end));
        let taken = taken.ok_or_else(|| self.wrong("the archive ends within an entry"))?;
        self.at += length;
        Ok(taken)
    }

    /// The padding of the last entry may be missing.
    fn align(&mut self) {
        self.at = self.at.next_multiple_of(4).min(self.archive.len());
    }

    fn wrong(&self, what: &str) -> VmError {
        VmError::Format(format!("cpio archive, byte {}: {what}", self.at))
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::PermissionsExt;
    use std::process::{Command, Stdio};

    use pagewise_skip::{Lack, skip};

    use super::*;

    fn sample() -> Vec<u8> {
        let mut writer = ArchiveWriter::new(Vec::new());
        writer.file("/a/b/file", 0o755, b"12345").unwrap();
        writer.file("/a/b/empty", 0o644, b"").unwrap();
        writer.folder("/a").unwrap();
        writer.finish().unwrap()
    }

    #[test]
    fn cpio_unpacks_the_written_files() {
        let folder = tempfile::tempdir().unwrap();
        let mut command = Command::new("cpio");
        command.args(["-i", "--quiet"]).current_dir(&folder).stdin(Stdio::piped());
        let Ok(mut cpio) = command.spawn() else {
            return skip(&Lack::Tool("cpio"));
        };
        cpio.stdin.take().unwrap().write_all(&sample()).unwrap();
        assert!(cpio.wait().unwrap().success());
        assert_eq!(fs::read(folder.path().join("a/b/file")).unwrap(), b"12345");
        assert_eq!(fs::read(folder.path().join("a/b/empty")).unwrap(), b"");
        let file = fs::metadata(folder.path().join("a/b/file")).unwrap();
        assert_eq!(file.permissions().mode() & 0o777, 0o755);
    }

    #[test]
    fn files_read_back_as_they_were_written() {
        let archive = sample();
        let entries = read_archive(&archive).unwrap();
        let file = ArchiveEntry { path: b"a/b/file", mode: 0o755, content: b"12345" };
        assert_eq!(entries[0], file);
        assert_eq!(entries[1].path, b"a/b/empty");
        assert_eq!(entries.len(), 2);
    }

    #[test]
    fn archives_of_cpio_are_read() {
        let folder = tempfile::tempdir().unwrap();
        fs::write(folder.path().join("one"), "1").unwrap();
        let pack = "find . | cpio -o --quiet -H newc";
        let packed = Command::new("sh").args(["-c", pack]).current_dir(&folder).output().unwrap();
        if !packed.status.success() {
            return skip(&Lack::Tool("cpio"));
        }
        let entries = read_archive(&packed.stdout).unwrap();
        assert_eq!(entries.len(), 1);
        assert_eq!((entries[0].path, entries[0].content), (&b"one"[..], &b"1"[..]));
    }

    #[test]
    fn a_damaged_archive_is_an_error() {
        let archive = sample();
        for length in (0..archive.len() - TRAILER.len()).step_by(7) {
            assert!(read_archive(&archive[..length]).is_err(), "{length}");
        }
        let mut damaged = archive.clone();
        damaged[MAGIC.len() + 6 * 8] = b'x';
        assert!(read_archive(&damaged).is_err());
        damaged[MAGIC.len() + 6 * 8] = b'f';
        assert!(read_archive(&damaged).is_err());
    }
}
