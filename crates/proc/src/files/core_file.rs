//! Core files: segments, notes, and the memory contents of the process.
//!
//! A core file may be damaged or hostile. The file is read by `pread` in pieces of limited size,
//! and no number in the file determines how much memory is allocated. The file is never mapped: if
//! a mapped file is truncated, an access to its mapping raises SIGBUS.

mod bytes;
mod compressed;
mod headers;
mod images;
mod mappings;
mod notes;
mod snapshot;

use std::path::{Path, PathBuf};

use pagewise_model::core_dump::{CoreCompression, CoreSegment};
use pagewise_model::machine::Gap;
use pagewise_model::mapping::AddrRange;
use pagewise_model::{Absent, Bytes, PageSize};

use self::bytes::CoreBytes;
pub use self::compressed::DecompressBounds;
use self::compressed::UnpackedCore;
use self::headers::LoadHeader;
pub use self::images::{ImageBuild, ImageFiles};
pub use self::notes::{CoreNotes, MappedFileNote, ProcessNote, SignalNote, ThreadNote};
pub use self::snapshot::snapshot;
use crate::ProcError;

/// Name of the source in the message that a value is absent because a core file does not contain
/// it.
pub(crate) const CORE_FILE: &str = "a core file";

/// An open core file.
///
/// ```no_run
/// use pagewise_proc::core_file::{CoreFile, DecompressBounds};
/// let core = CoreFile::open("core.1234".as_ref(), &DecompressBounds::default())?;
/// let mut word = [0; 8];
/// let known = core.read(0x7ffc_0000_1000, &mut word);
/// # Ok::<(), pagewise_proc::ProcError>(())
/// ```
#[derive(Debug)]
pub struct CoreFile {
    path: PathBuf,
    bytes: CoreBytes,
    compression: Option<CoreCompression>,
    segments: Vec<CoreSegment>,
    /// The headers of `segments`, in the same order.
    loads: Vec<LoadHeader>,
    notes: CoreNotes,
    gaps: Vec<Gap>,
}

impl CoreFile {
    /// Opens a core file. A compressed file is decompressed first.
    ///
    /// # Errors
    /// [`ProcError::Io`] if the file cannot be read, [`ProcError::CoreFile`] with the offset if it
    /// is not a core file, or decompressing it takes more than the bounds.
    pub fn open(path: &Path, bounds: &DecompressBounds) -> Result<CoreFile, ProcError> {
        let file = crate::root::open(path).map_err(|source| ProcError::io(path, source))?;
        let unpacked = compressed::decompress(file, path, bounds)?;
        CoreFile::parse(path, unpacked)
    }

    /// Parses a core file in memory.
    ///
    /// # Errors
    /// [`ProcError::CoreFile`]
    pub fn from_bytes(bytes: Vec<u8>) -> Result<CoreFile, ProcError> {
        let bytes = CoreBytes::Memory(bytes);
        CoreFile::parse(Path::new("core"), UnpackedCore { bytes, compression: None, gap: None })
    }

    fn parse(path: &Path, unpacked: UnpackedCore) -> Result<CoreFile, ProcError> {
        let UnpackedCore { bytes, compression, gap } = unpacked;
        let mut gaps: Vec<Gap> = gap.into_iter().collect();
        let located = |problem: CoreProblem| problem.in_file(path);
        let header = headers::header(&bytes).map_err(located)?;
        let programs = headers::programs(&bytes, &header, &mut gaps).map_err(located)?;
        let loads = programs.loads;
        let segments = loads.iter().map(|load| load.segment(bytes.len())).collect();
        let notes = notes::read(&bytes, header.machine, &programs.notes, &mut gaps);
        Ok(CoreFile { path: path.into(), bytes, compression, segments, loads, notes, gaps })
    }

    /// Returns the path of the core file.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Size of the (decompressed) core.
    pub fn size(&self) -> Bytes {
        Bytes(self.bytes.len())
    }

    /// The load segments, by address; they do not overlap.
    pub fn segments(&self) -> &[CoreSegment] {
        &self.segments
    }

    /// The notes: threads, process, mapped files, auxiliary vector, signal.
    pub fn notes(&self) -> &CoreNotes {
        &self.notes
    }

    /// Parts of the process's data that the file lacks, each with the reason.
    pub fn gaps(&self) -> &[Gap] {
        &self.gaps
    }

    /// The base page size of the machine, if the core records it.
    pub fn page_size(&self) -> Option<PageSize> {
        let recorded = self.notes.auxiliary(notes::AT_PAGESZ);
        recorded.and_then(PageSize::new).or_else(|| PageSize::new(self.notes.file_page_size))
    }

    /// Fills `into` with the bytes at `address`. Returns false if the file lacks any of them.
    pub fn read(&self, address: u64, into: &mut [u8]) -> bool {
        let mut filled = 0;
        while filled < into.len() {
            let Some(at) = address.checked_add(filled as u64) else { return false };
            let Some((offset, held)) = self.locate(at) else { return false };
            let rest = into.len() - filled;
            let len = usize::try_from(held).map_or(rest, |held| held.min(rest));
            if !self.bytes.read_exact(offset, &mut into[filled..filled + len]) {
                return false;
            }
            filled += len;
        }
        true
    }

    /// Returns the file offset of the byte at an address, and the number of bytes that the file
    /// contains from this offset to the end of the segment.
    fn locate(&self, address: u64) -> Option<(u64, u64)> {
        let after = self.segments.partition_point(|segment| segment.range.start <= address);
        let segment = &self.segments[after.checked_sub(1)?];
        let held = segment.held_range();
        held.contains(address)
            .then(|| (segment.offset + (address - held.start), held.end - address))
    }

    /// Returns the parts of an address range whose bytes the file contains, in order of address.
    pub fn held(&self, range: AddrRange) -> impl Iterator<Item = AddrRange> + '_ {
        let first = self.segments.partition_point(|segment| segment.range.end <= range.start);
        let overlapping = self.segments[first..].iter();
        overlapping
            .take_while(move |segment| segment.range.start < range.end)
            .filter_map(move |segment| segment.held_range().intersection(range))
    }

    /// Returns the first part of `range`, a range of [`CoreFile::held`], that lies outside the
    /// holes of the file. Core files have holes for pages that were never touched; holes read as
    /// zeros. Returns `None` if only holes are left, and the whole range if the file system does
    /// not report holes.
    pub fn next_stored(&self, range: AddrRange) -> Option<AddrRange> {
        let (offset, held) = self.locate(range.start)?;
        let end = offset + held.min(range.len().0);
        let stored = self.bytes.next_stored(offset, end)?;
        let start = range.start + (stored.start - offset);
        Some(AddrRange { start, end: start + (stored.end - stored.start) })
    }
}

/// A problem at an offset of a core file.
#[derive(Debug, PartialEq, Eq)]
struct CoreProblem {
    offset: u64,
    problem: String,
}

impl CoreProblem {
    fn new(offset: u64, problem: impl Into<String>) -> CoreProblem {
        CoreProblem { offset, problem: problem.into() }
    }

    fn in_file(self, path: &Path) -> ProcError {
        ProcError::CoreFile { path: path.into(), offset: self.offset, problem: self.problem }
    }
}

/// A part that the file lacks.
fn gap(part: impl AsRef<str>, reason: impl Into<String>) -> Gap {
    Gap { what: part.as_ref().into(), why: Absent::NotSupported(reason.into().into()) }
}

#[cfg(test)]
mod tests;
