//! Copied memory of a process.

use pagewise_model::heap_scan::MemoryCopy;
use pagewise_model::process::Process;
use pagewise_model::{AddrRange, Mapping, PageSize};

use super::constants::MappedFiles;
use super::plan::CopyPlan;
use super::transfer::CopyBuffer;
use crate::memory::{Memory, ScannedThread};

/// Memory of a process, copied while the process was stopped.
#[derive(Debug)]
pub struct ProcessCopy {
    /// Identity of the process.
    pub process: Process,
    /// Page size of the process.
    pub page_size: PageSize,
    /// Size and duration of the copy.
    pub measured: MemoryCopy,
    mappings: Vec<Mapping>,
    threads: Vec<ScannedThread>,
    /// Copied ranges in order of address.
    pieces: Vec<CopiedPiece>,
    buffer: CopyBuffer,
    files: Option<MappedFiles>,
}

/// A copied range.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct CopiedPiece {
    range: AddrRange,
    /// Offset of the first byte of the range in the buffer.
    offset: u64,
}

impl ProcessCopy {
    pub(super) fn new(
        process: Process,
        page_size: PageSize,
        plan: CopyPlan,
        threads: Vec<ScannedThread>,
        buffer: CopyBuffer,
        unread: &[AddrRange],
        measured: MemoryCopy,
    ) -> ProcessCopy {
        let CopyPlan { mappings, ranges, .. } = plan;
        let pieces = pieces(&ranges, unread);
        ProcessCopy { process, page_size, measured, mappings, threads, pieces, buffer, files: None }
    }

    /// Makes `read_constant` use `files` for bytes that were not copied.
    pub(super) fn with_files(self, files: MappedFiles) -> ProcessCopy {
        ProcessCopy { files: Some(files), ..self }
    }

    /// Releases the unused memory that was prepared for growth of the process.
    pub(super) fn release_spare(&mut self) {
        let end = |piece: &CopiedPiece| piece.offset + piece.range.len().0;
        self.buffer.release_spare(self.pieces.iter().map(end).max().unwrap_or(0));
    }

    fn bytes(&self, piece: &CopiedPiece, part: AddrRange) -> &[u8] {
        let offset = piece.offset + (part.start - piece.range.start);
        let bounds = (usize::try_from(offset), usize::try_from(part.len().0));
        let (Ok(offset), Ok(length)) = bounds else { return &[] };
        self.buffer.as_bytes().get(offset..offset + length).unwrap_or_default()
    }

    /// The copied bytes from `address` to the end of the range that contains it; empty if none
    /// does.
    fn from(&self, address: u64) -> &[u8] {
        let at = self.pieces.partition_point(|piece| piece.range.end <= address);
        match self.pieces.get(at).filter(|piece| piece.range.contains(address)) {
            Some(piece) => self.bytes(piece, AddrRange { start: address, end: piece.range.end }),
            None => &[],
        }
    }
}

/// Returns the ranges with their offsets in the buffer, without the pages in `unread`.
fn pieces(ranges: &[AddrRange], unread: &[AddrRange]) -> Vec<CopiedPiece> {
    let mut pieces = Vec::new();
    let mut holes = unread.iter().peekable();
    let mut offset = 0;
    for range in ranges {
        let mut start = range.start;
        let mut push = |start: u64, end: u64| {
            if start < end {
                let range_offset = offset + (start - range.start);
                pieces.push(CopiedPiece { range: AddrRange { start, end }, offset: range_offset });
            }
        };
        while let Some(hole) = holes.next_if(|hole| hole.start < range.end) {
            push(start, hole.start);
            start = hole.end;
        }
        push(start, range.end);
        offset += range.len().0;
    }
    pieces
}

impl Memory for ProcessCopy {
    fn mappings(&self) -> &[Mapping] {
        &self.mappings
    }

    fn threads(&self) -> &[ScannedThread] {
        &self.threads
    }

    fn visit(&self, range: AddrRange, each: &mut dyn FnMut(u64, &[u8])) {
        let first = self.pieces.partition_point(|piece| piece.range.end <= range.start);
        for piece in self.pieces[first..].iter().take_while(|it| it.range.start < range.end) {
            // Callers require pieces that start at multiples of 8.
            let start = range.start.max(piece.range.start).next_multiple_of(8);
            let part = AddrRange { start, end: range.end.min(piece.range.end) };
            if !part.is_empty() {
                each(start, self.bytes(piece, part));
            }
        }
    }

    fn read(&self, address: u64, into: &mut [u8]) -> bool {
        let (mut address, mut into) = (address, into);
        while !into.is_empty() {
            let known = self.from(address);
            let length = known.len().min(into.len());
            if length == 0 {
                return false;
            }
            let (now, later) = into.split_at_mut(length);
            now.copy_from_slice(&known[..length]);
            into = later;
            address += length as u64;
        }
        true
    }

    fn read_constant(&self, address: u64, into: &mut [u8]) -> bool {
        if self.read(address, into) {
            return true;
        }
        let at = self.mappings.partition_point(|mapping| mapping.range.end <= address);
        let mapping = self.mappings.get(at).filter(|mapping| mapping.range.contains(address));
        // A page that the process has changed is missing in the copy only if it is in swap or could
        // not be read. If all such pages were copied, all missing bytes are as in the mapped file.
        let all_copied = self.measured.swapped.is_zero() && self.measured.unread.is_zero();
        let mapping = mapping.filter(|mapping| all_copied || !mapping.prot.write);
        let found = mapping.zip(self.files.as_ref());
        found.is_some_and(|(mapping, files)| files.read(mapping, address, into))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unread_pages_are_in_no_piece() {
        let range = |start, end| AddrRange { start, end };
        let found = pieces(
            &[range(0x1000, 0x4000), range(0x8000, 0x9000)],
            &[range(0x2000, 0x3000), range(0x8000, 0x9000)],
        );
        let piece = |start, end, offset| CopiedPiece { range: range(start, end), offset };
        assert_eq!(found, [piece(0x1000, 0x2000, 0), piece(0x3000, 0x4000, 0x2000)]);
    }
}
