//! Small files of many processes, read again and again with few system calls and no allocation.

use std::fmt::Write;
use std::os::fd::{AsFd, OwnedFd};
use std::time::Instant;

use pagewise_model::units::nanoseconds;
use pagewise_model::{Absent, Name, Pid, Reading, Smaps};
use pagewise_sys::priority::briefly_raised;
use rustix::fs::{AtFlags, FileType, Mode, OFlags, fstat, openat, readlinkat_raw, statat};
use rustix::io::{Errno, pread, read};

use crate::root::{NOT_COPIED, PTRACE};
use crate::{ProcError, ProcRoot, smaps};

/// Number of bytes of a buffer for files of one record, which the kernel returns in one read.
const BUFFER: usize = 16 << 10;
/// Maximum number of bytes of a file; larger files are cut unless the reader is
/// [whole](QuickReader::whole). `cmdline` can have 2 MiB.
const MAX_FILE: usize = 256 << 10;

/// Reads files of processes, and of the machine, below one root.
#[derive(Debug)]
pub struct QuickReader {
    root: OwnedFd,
    path: String,
    buffer: Vec<u8>,
    limit: usize,
    /// True for a copied tree, which can have anything in place of a file: a FIFO, a device.
    is_copied: bool,
}

/// Condition that marks the end of a file.
#[derive(Clone, Copy, PartialEq, Eq)]
enum FileEnd {
    /// A read that does not fill the buffer marks the end, for files of one record.
    ShortRead,
    /// A read without bytes: the kernel returns files of several records in pieces.
    EmptyRead,
}

impl QuickReader {
    /// A reader for a tree.
    ///
    /// # Errors
    /// [`ProcError::Io`] if the tree does not exist.
    pub fn new(root: &ProcRoot) -> Result<QuickReader, ProcError> {
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let folder = rustix::fs::open(root.path(), flags, Mode::empty())
            .map_err(|error| ProcError::io(root.path(), error.into()))?;
        Ok(QuickReader {
            root: folder,
            path: String::new(),
            buffer: vec![0; BUFFER],
            limit: MAX_FILE,
            is_copied: !root.is_live(),
        })
    }

    /// Returns a reader that cuts no file.
    ///
    /// # Errors
    /// As [`QuickReader::new`].
    pub fn whole(root: &ProcRoot) -> Result<QuickReader, ProcError> {
        Ok(QuickReader { limit: usize::MAX, ..QuickReader::new(root)? })
    }

    /// Opens a file of a process. The descriptor stays bound to this process: once the process has
    /// been reaped, a read fails.
    ///
    /// # Errors
    /// [`Absent`]
    pub fn open(&mut self, pid: Pid, name: &str) -> Reading<OwnedFd> {
        self.name(pid, name);
        let opened = self.open_path();
        opened.map_err(|error| self.absence(Some(pid), error))
    }

    fn name(&mut self, pid: Pid, name: &str) {
        self.path.clear();
        write!(self.path, "{pid}/{name}").expect("a String takes all");
    }

    /// Reads a file of a process that is one record, such as `status`. The kernel returns it in one
    /// piece, so that a second read to find the end is not needed.
    ///
    /// # Errors
    /// [`Absent`]
    pub fn read(&mut self, pid: Pid, name: &str) -> Reading<&[u8]> {
        let file = self.open(pid, name)?;
        match self.fill(&file, FileEnd::ShortRead) {
            Ok(length) => Ok(&self.buffer[..length]),
            Err(error) => Err(self.absence(Some(pid), error)),
        }
    }

    /// Reads a file of a process that has several records, such as `maps`. The kernel returns it in
    /// pieces.
    ///
    /// # Errors
    /// [`Absent`]
    pub fn records(&mut self, pid: Pid, name: &str) -> Reading<&[u8]> {
        let file = self.open(pid, name)?;
        match self.fill(&file, FileEnd::EmptyRead) {
            Ok(length) => Ok(&self.buffer[..length]),
            Err(error) => Err(self.absence(Some(pid), error)),
        }
    }

    /// The sums of `smaps_rollup`, and the time of the call in nanoseconds: the kernel holds the
    /// mmap lock while it walks a mapping.
    ///
    /// # Errors
    /// [`Absent`]
    pub(crate) fn rollup(&mut self, pid: Pid) -> (Reading<Smaps>, u64) {
        let begin = Instant::now();
        let read = briefly_raised(|| self.read(pid, "smaps_rollup"));
        let hold_ns = nanoseconds(begin.elapsed());
        // If the process ends meanwhile, the text is empty or incomplete.
        (read.and_then(|text| smaps::parse_rollup(text).ok_or(Absent::Vanished)), hold_ns)
    }

    /// Target of a symbolic link of a process.
    ///
    /// # Errors
    /// [`Absent`]
    pub fn link(&mut self, pid: Pid, name: &str) -> Reading<Name> {
        self.name(pid, name);
        match readlinkat_raw(&self.root, self.path.as_str(), &mut self.buffer[..]) {
            Ok(length) => Ok(Name::new(&self.buffer[..length])),
            Err(Errno::NOENT) if self.is_copied => Err(Absent::NotCollected(NOT_COPIED.into())),
            Err(error) => Err(self.absence(Some(pid), error)),
        }
    }

    /// Reads a file of the machine.
    ///
    /// # Errors
    /// [`Absent`]
    pub fn machine(&mut self, name: &str) -> Reading<&[u8]> {
        self.path.clear();
        self.path.push_str(name);
        match self.open_path().and_then(|file| self.fill(&file, FileEnd::EmptyRead)) {
            Ok(length) => Ok(&self.buffer[..length]),
            Err(error) => Err(self.absence(None, error)),
        }
    }

    /// Reads an open file of one record, such as `stat`, from its beginning.
    ///
    /// # Errors
    /// [`Absent`]
    pub fn again(&mut self, file: impl AsFd) -> Reading<&[u8]> {
        match pread(file, &mut self.buffer[..BUFFER], 0) {
            Ok(length) => Ok(&self.buffer[..length]),
            Err(error) => Err(self.absence(None, error)),
        }
    }

    fn open_path(&self) -> Result<OwnedFd, Errno> {
        let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NONBLOCK | OFlags::NOCTTY;
        let file = openat(&self.root, self.path.as_str(), flags, Mode::empty())?;
        if self.is_copied && !FileType::from_raw_mode(fstat(&file)?.st_mode).is_file() {
            return Err(Errno::INVAL);
        }
        Ok(file)
    }

    /// Reads the whole file into the buffer.
    fn fill(&mut self, file: &OwnedFd, end: FileEnd) -> Result<usize, Errno> {
        let mut filled = 0;
        loop {
            match read(file, &mut self.buffer[filled..]) {
                Ok(0) => return Ok(filled),
                Ok(length) => filled += length,
                Err(Errno::INTR) => continue,
                Err(error) => return Err(error),
            }
            if filled < self.buffer.len() && end == FileEnd::ShortRead {
                return Ok(filled);
            }
            if filled == self.buffer.len() {
                if filled >= self.limit {
                    return Ok(filled);
                }
                self.buffer.resize(filled * 2, 0);
            }
        }
    }

    fn absence(&self, pid: Option<Pid>, error: Errno) -> Absent {
        match error {
            Errno::SRCH => Absent::Vanished,
            Errno::PERM | Errno::ACCESS => Absent::NotPermitted(PTRACE.into()),
            Errno::NOENT | Errno::NOTDIR => {
                let folder = pid.map(|pid| pid.to_string());
                let lives = |it: &String| statat(&self.root, it.as_str(), AtFlags::empty()).is_ok();
                match folder {
                    Some(folder) if !lives(&folder) => Absent::Vanished,
                    _ => Absent::NotInThisKernel("".into()),
                }
            }
            error => Absent::NotSupported(std::io::Error::from(error).to_string().into()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_of_a_process_and_of_the_machine_are_read() {
        let ourselves = Pid(std::process::id());
        let mut reader = QuickReader::new(&ProcRoot::live()).unwrap();
        assert!(reader.read(ourselves, "cmdline").unwrap().ends_with(b"\0"));
        assert!(reader.machine("vmstat").unwrap().starts_with(b"nr_"));
        let file = reader.open(ourselves, "stat").unwrap();
        let start = format!("{ourselves} (");
        for _ in 0..2 {
            assert!(reader.again(&file).unwrap().starts_with(start.as_bytes()));
        }
    }

    #[test]
    fn an_ended_process_has_vanished_and_a_missing_file_is_not_in_this_kernel() {
        let mut reader = QuickReader::new(&ProcRoot::live()).unwrap();
        let mut child = std::process::Command::new("true").spawn().unwrap();
        let file = reader.open(Pid(child.id()), "stat").unwrap();
        child.wait().unwrap();
        assert_eq!(reader.again(&file), Err(Absent::Vanished));
        assert_eq!(reader.read(Pid(child.id()), "stat"), Err(Absent::Vanished));
        let missing = reader.read(Pid(std::process::id()), "no_such_file");
        assert!(matches!(missing, Err(Absent::NotInThisKernel(_))));
    }

    #[test]
    fn a_file_larger_than_the_buffer_is_read_in_full() {
        let tree = tempfile::tempdir().unwrap();
        std::fs::create_dir(tree.path().join("7")).unwrap();
        std::fs::write(tree.path().join("7/maps"), vec![b'x'; 3 * BUFFER]).unwrap();
        let mut reader = QuickReader::new(&ProcRoot::at(tree.path())).unwrap();
        assert_eq!(reader.read(Pid(7), "maps").unwrap().len(), 3 * BUFFER);
    }

    #[test]
    fn a_whole_reader_cuts_no_file() {
        let tree = tempfile::tempdir().unwrap();
        std::fs::create_dir(tree.path().join("7")).unwrap();
        std::fs::write(tree.path().join("7/cmdline"), vec![b'x'; MAX_FILE + 1]).unwrap();
        let root = ProcRoot::at(tree.path());
        let mut cutting = QuickReader::new(&root).unwrap();
        assert_eq!(cutting.read(Pid(7), "cmdline").unwrap().len(), MAX_FILE);
        let mut whole = QuickReader::whole(&root).unwrap();
        assert_eq!(whole.read(Pid(7), "cmdline").unwrap().len(), MAX_FILE + 1);
        assert_eq!(whole.records(Pid(7), "cmdline").unwrap().len(), MAX_FILE + 1);
    }

    #[test]
    fn a_link_leads_to_the_program() {
        let ourselves = Pid(std::process::id());
        let mut reader = QuickReader::new(&ProcRoot::live()).unwrap();
        let program = std::env::current_exe().unwrap().into_os_string().into_encoded_bytes();
        assert_eq!(reader.link(ourselves, "exe"), Ok(Name::new(&program)));
    }

    #[test]
    fn only_files_of_a_copied_tree_are_read() {
        let tree = tempfile::tempdir().unwrap();
        std::fs::create_dir_all(tree.path().join("7/status")).unwrap();
        let mut reader = QuickReader::new(&ProcRoot::at(tree.path())).unwrap();
        assert!(matches!(reader.read(Pid(7), "status"), Err(Absent::NotSupported(_))));
        assert!(matches!(reader.link(Pid(7), "exe"), Err(Absent::NotCollected(_))));
        assert_eq!(reader.read(Pid(8), "status"), Err(Absent::Vanished));
    }
}
