//! Compressed core files: decompressed into an unnamed temporary file.
//!
//! Pages of zeros become holes of that file, so a core that is mostly zeros takes little disk
//! space.

use std::fs::File;
use std::io::{self, BufRead, BufReader, Read};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use lz4_flex::frame::FrameDecoder;
use pagewise_model::Bytes;
use pagewise_model::core_dump::CoreCompression;
use pagewise_model::machine::Gap;
use ruzstd::decoding::StreamingDecoder;

use super::bytes::CoreBytes;
use super::{CoreProblem, gap};
use crate::ProcError;

/// Read and written at a time.
const PIECE: usize = 1 << 16;

/// Folder and sizes of a decompressed core.
#[derive(Clone, Debug)]
pub struct DecompressBounds {
    /// Folder of the temporary file.
    pub folder: PathBuf,
    /// The largest core, pages of zeros included.
    pub size: Bytes,
    /// The most disk space that it may take; also limited to half of what is free.
    pub disk: Bytes,
}

impl Default for DecompressBounds {
    fn default() -> DecompressBounds {
        DecompressBounds { folder: "/var/tmp".into(), size: Bytes::gib(256), disk: Bytes::gib(64) }
    }
}

/// Formats by their first bytes.
const XZ: &[u8] = b"\xfd7zXZ\0";
const GZIP: &[u8] = b"\x1f\x8b";
const BZIP2: &[u8] = b"BZh";
const ZSTD: &[u8] = b"\x28\xb5\x2f\xfd";
const LZ4: &[u8] = b"\x04\x22\x4d\x18";

/// Formats that need another program, and that program.
const FOREIGN: &[(&[u8], &str)] = &[(XZ, "xz -dk"), (GZIP, "gzip -dk"), (BZIP2, "bzip2 -dk")];

/// The bytes of a core file, decompressed if they are compressed.
pub(super) struct UnpackedCore {
    pub(super) bytes: CoreBytes,
    pub(super) compression: Option<CoreCompression>,
    /// The end of the data that could be decompressed, if there should be more.
    pub(super) gap: Option<Gap>,
}

/// Decompresses a file if it is compressed. The part before damaged data is kept.
pub(super) fn decompress(
    file: File,
    path: &Path,
    bounds: &DecompressBounds,
) -> Result<UnpackedCore, ProcError> {
    let failed = |source| ProcError::io(path, source);
    let mut start = [0; 8];
    let len = file.read_at(&mut start, 0).map_err(failed)?;
    let start = &start[..len];
    if let Some((_, program)) = FOREIGN.iter().find(|(magic, _)| start.starts_with(magic)) {
        let problem = format!("a compressed file; decompress it with `{program}` first");
        return Err(CoreProblem::new(0, problem).in_file(path));
    }
    let compression = match start {
        start if start.starts_with(ZSTD) => CoreCompression::Zstd,
        start if start.starts_with(LZ4) => CoreCompression::Lz4,
        _ => {
            let bytes = CoreBytes::of_file(file).map_err(failed)?;
            return Ok(UnpackedCore { bytes, compression: None, gap: None });
        }
    };
    let mut sink = SparseFile::create(bounds)?;
    let input = BufReader::with_capacity(PIECE, file);
    let read = unpack(input, compression, &mut sink);
    let located = |problem: String| CoreProblem::new(sink.size, problem).in_file(path);
    let gap = match read {
        Ok(()) => None,
        Err(UnpackError::Read(error)) => {
            let problem = format!("{} data is damaged or truncated: {error}", compression.key());
            if sink.size == 0 {
                return Err(located(problem));
            }
            let at = format!("{problem}; {} bytes could be decompressed", sink.size);
            Some(gap("compressed data", at))
        }
        Err(UnpackError::Bounds(problem)) => return Err(located(problem)),
        Err(UnpackError::Write(source)) => return Err(sink.failed(source)),
    };
    let bytes = sink.finish()?;
    Ok(UnpackedCore { bytes, compression: Some(compression), gap })
}

enum UnpackError {
    Read(io::Error),
    Write(io::Error),
    Bounds(String),
}

/// Decompresses all frames of the input.
fn unpack(
    mut input: impl BufRead,
    compression: CoreCompression,
    sink: &mut SparseFile,
) -> Result<(), UnpackError> {
    while !input.fill_buf().map_err(UnpackError::Read)?.is_empty() {
        match compression {
            CoreCompression::Zstd => {
                let decoder = StreamingDecoder::new(&mut input);
                sink.take(decoder.map_err(|e| UnpackError::Read(io::Error::other(e)))?)?;
            }
            CoreCompression::Lz4 => sink.take(FrameDecoder::new(&mut input))?,
        }
    }
    Ok(())
}

/// A temporary file with holes in place of zeros.
struct SparseFile {
    file: File,
    size: u64,
    written: u64,
    zeros: Vec<u8>,
    bounds: DecompressBounds,
}

impl SparseFile {
    fn create(bounds: &DecompressBounds) -> Result<SparseFile, ProcError> {
        let folder = &bounds.folder;
        let failed = |source| ProcError::Write { path: folder.clone(), source };
        let file = tempfile::tempfile_in(folder).map_err(failed)?;
        let space = rustix::fs::fstatvfs(&file).map_err(|e| failed(e.into()))?;
        let free = space.f_bavail.saturating_mul(space.f_frsize);
        let disk = bounds.disk.min(Bytes(free / 2));
        let bounds = DecompressBounds { disk, ..bounds.clone() };
        Ok(SparseFile { file, size: 0, written: 0, zeros: vec![0; PIECE], bounds })
    }

    fn failed(&self, source: io::Error) -> ProcError {
        ProcError::Write { path: self.bounds.folder.clone(), source }
    }

    /// The file, which ends with a hole if the core ends with zeros.
    fn finish(self) -> Result<CoreBytes, ProcError> {
        self.file.set_len(self.size).map_err(|source| self.failed(source))?;
        Ok(CoreBytes::File { size: self.size, file: self.file })
    }

    fn take(&mut self, mut input: impl Read) -> Result<(), UnpackError> {
        let mut piece = vec![0; PIECE];
        loop {
            let (len, error) = fill(&mut input, &mut piece);
            self.append(&piece[..len])?;
            match error {
                Some(error) => return Err(UnpackError::Read(error)),
                None if len < piece.len() => return Ok(()),
                None => {}
            }
        }
    }

    fn append(&mut self, piece: &[u8]) -> Result<(), UnpackError> {
        let len = piece.len() as u64;
        if self.size + len > self.bounds.size.0 {
            let problem = format!("the decompressed core exceeds {} bytes", self.bounds.size.0);
            return Err(UnpackError::Bounds(problem));
        }
        if *piece != self.zeros[..piece.len()] {
            if self.written + len > self.bounds.disk.0 {
                let problem = format!(
                    "the decompressed core takes more than {} bytes of disk space in {}",
                    self.bounds.disk.0,
                    crate::root::shown(&self.bounds.folder)
                );
                return Err(UnpackError::Bounds(problem));
            }
            self.file.write_all_at(piece, self.size).map_err(UnpackError::Write)?;
            self.written += len;
        }
        self.size += len;
        Ok(())
    }
}

/// Reads until the piece is full, the input ends, or an error. Returns the number of bytes read,
/// and the error.
fn fill(input: &mut impl Read, piece: &mut [u8]) -> (usize, Option<io::Error>) {
    let mut len = 0;
    while len < piece.len() {
        match input.read(&mut piece[len..]) {
            Ok(0) => break,
            Ok(more) => len += more,
            Err(error) => return (len, Some(error)),
        }
    }
    (len, None)
}
