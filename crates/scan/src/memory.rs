//! Memory, mappings and threads of a process at one time, from any source.

use pagewise_model::{AddrRange, Mapping};
use pagewise_proc::variables::FileFunction;

use crate::graph::range_without;

/// A thread at the time of the scan.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ScannedThread {
    /// Its ID.
    pub tid: u32,
    /// Its name (`comm`); empty if unknown.
    pub name: Vec<u8>,
    /// The stack pointer.
    pub stack_pointer: u64,
    /// The base of thread-local storage (`fs` on x86-64).
    pub thread_pointer: u64,
    /// General registers, the stack pointer included. On x86-64 these are 17 in the order of perf
    /// samples: ax, bx, cx, dx, si, di, bp, sp, ip, r8 to r15. Elsewhere their order is arbitrary.
    pub registers: Vec<u64>,
}

/// The memory of a process at one time. Its contents are hostile: every value that is read may be
/// anything.
pub trait Memory: Sync {
    /// All mappings, in order of address.
    fn mappings(&self) -> &[Mapping];

    /// All threads.
    fn threads(&self) -> &[ScannedThread];

    /// Calls `each(address, bytes)` for the known bytes of `range`, in order of address. Pieces
    /// start at multiples of 8 and do not overlap. Pages that are not resident, and bytes that the
    /// source lacks, are left out: a page that was never touched holds no pointer.
    fn visit(&self, range: AddrRange, each: &mut dyn FnMut(u64, &[u8]));

    /// Fills `into` with the bytes at `address`. Returns false if any of them is not known.
    fn read(&self, address: u64, into: &mut [u8]) -> bool;

    /// As [`Memory::read`], also for bytes of mapped files that the process has not changed.
    fn read_constant(&self, address: u64, into: &mut [u8]) -> bool {
        self.read(address, into)
    }

    /// The word at `address`, if it is known.
    fn word(&self, address: u64) -> Option<u64> {
        let mut bytes = [0; 8];
        self.read(address, &mut bytes).then(|| u64::from_le_bytes(bytes))
    }
}

/// Memory without some ranges, which appear unknown.
#[expect(missing_debug_implementations, reason = "it holds any memory")]
pub struct MaskedMemory<'a> {
    memory: &'a dyn Memory,
    /// In order of address.
    hidden: &'a [AddrRange],
}

impl<'a> MaskedMemory<'a> {
    /// Hides ranges, which are in order of address.
    pub fn new(memory: &'a dyn Memory, hidden: &'a [AddrRange]) -> MaskedMemory<'a> {
        MaskedMemory { memory, hidden }
    }
}

impl Memory for MaskedMemory<'_> {
    fn mappings(&self) -> &[Mapping] {
        self.memory.mappings()
    }

    fn threads(&self) -> &[ScannedThread] {
        self.memory.threads()
    }

    fn visit(&self, range: AddrRange, each: &mut dyn FnMut(u64, &[u8])) {
        range_without(range, self.hidden)
            .into_iter()
            .for_each(|part| self.memory.visit(part, each));
    }

    fn read(&self, address: u64, into: &mut [u8]) -> bool {
        let end = address.saturating_add(into.len() as u64);
        let at = self.hidden.partition_point(|range| range.end <= address);
        let is_hidden = self.hidden.get(at).is_some_and(|range| range.start < end);
        !is_hidden && self.memory.read(address, into)
    }
}

/// The word at an offset of bytes; 0 behind their end.
pub(crate) fn word(bytes: &[u8], at: u64) -> u64 {
    let rest = usize::try_from(at).ok().and_then(|at| bytes.get(at..)?.first_chunk());
    rest.map_or(0, |word| u64::from_le_bytes(*word))
}

/// The 4 bytes at an offset of bytes; 0 behind their end.
pub(crate) fn half(bytes: &[u8], at: u64) -> u32 {
    let rest = usize::try_from(at).ok().and_then(|at| bytes.get(at..)?.first_chunk());
    rest.map_or(0, |word| u32::from_le_bytes(*word))
}

/// The bytes of a range; unknown ones, such as those of pages that were never touched, are 0.
pub(crate) fn read_sparse(memory: &dyn Memory, range: AddrRange) -> Vec<u8> {
    let mut all = vec![0; usize::try_from(range.len().0).unwrap_or(0)];
    memory.visit(range, &mut |start, bytes| {
        let at = usize::try_from(start - range.start).unwrap_or(usize::MAX);
        if let Some(part) = at.checked_add(bytes.len()).and_then(|end| all.get_mut(at..end)) {
            part.copy_from_slice(bytes);
        }
    });
    all
}

/// The addresses of a function of the file of a mapping.
pub(crate) fn mapped_function(function: &FileFunction, mapping: &Mapping) -> Option<AddrRange> {
    let offset = function.offset.checked_sub(mapping.offset)?;
    let start = mapping.range.start.checked_add(offset)?;
    AddrRange { start, end: start.saturating_add(function.size) }.intersection(mapping.range)
}

/// The last component of a path.
pub(crate) fn file_name(path: &[u8]) -> &[u8] {
    let start = path.iter().rposition(|byte| *byte == b'/').map_or(0, |slash| slash + 1);
    &path[start..]
}

/// Consecutive words, if all of them are known.
pub(crate) fn words<const N: usize>(memory: &dyn Memory, address: u64) -> Option<[u64; N]> {
    let mut bytes = [[0; 8]; N];
    memory.read(address, bytes.as_flattened_mut()).then(|| bytes.map(u64::from_le_bytes))
}

/// Bytes that are read at a time in search of a word.
const SEARCH_STEP: u64 = 64 << 10;

/// The first word of a range that satisfies a condition, of those at a distance of `stride` from
/// each other, and its index. The bytes that are read are taken from `budget`.
pub(crate) fn first_word(
    memory: &dyn Memory,
    range: AddrRange,
    stride: u64,
    budget: &mut u64,
    is_it: &dyn Fn(u64) -> bool,
) -> Option<(u64, u64)> {
    let mut start = range.start;
    while start < range.end && *budget > 0 {
        let part = AddrRange { start, end: range.end.min(start + SEARCH_STEP) };
        let mut first = None;
        memory.visit(part, &mut |address, bytes| {
            if first.is_none() {
                let words = bytes.as_chunks().0.iter().map(|word| u64::from_le_bytes(*word));
                let offsets = (address - range.start..).step_by(8);
                let mut elements =
                    offsets.zip(words).filter(|(offset, _)| offset.is_multiple_of(stride));
                first = elements.find(|(_, word)| is_it(*word));
                *budget = budget.saturating_sub(bytes.len() as u64);
            }
        });
        if let Some((offset, word)) = first {
            return Some((offset / stride, word));
        }
        start = part.end;
    }
    None
}
