//! One pass over memory that finds the pointers from blocks and roots to blocks.
//!
//! A pointer is an aligned word whose value is an address in a block; the address need not be the
//! start of the block. The memory is divided into pieces in order of address, which several threads
//! read. The concatenated results are in order of the pointing block.

use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::thread;

use pagewise_model::{AddrRange, Backing, Mapping};

use super::index::{BlockIndex, WORD_GROUP};
use super::roots::{RootSpan, RootSpanKind};
use crate::blocks::BlockTable;
use crate::memory::Memory;

/// Target size of a piece in bytes.
const PIECE_BYTES: u64 = 16 << 20;
/// Maximum number of pieces of one span.
const MAX_SPAN_PIECES: u64 = 1 << 16;
/// Maximum number of blocks of a piece.
const PIECE_BLOCKS: u64 = 64 << 10;
/// Number of pointers of a piece for which capacity is reserved. An allocation of this size has its
/// own mapping, so unused capacity takes no physical memory, and freeing the allocation unmaps it.
const PIECE_POINTERS: usize = 256 << 10;
/// Maximum number of unused bytes between two blocks that are read in one request: a second request
/// takes about as long as reading this number of bytes.
const MAX_READ_GAP: u64 = 64 << 10;
/// Maximum number of threads: memory bandwidth limits any further threads.
const MAX_THREADS: usize = 8;
/// Number of words that are looked up together, so that their cache misses overlap.
const BATCH: usize = 256;
/// Maximum number of stored pointers for each block, on average.
const POINTERS_PER_BLOCK: u64 = 16;
/// Number of pointers that are stored in addition, so that small heaps have a sufficient limit.
const MIN_POINTERS: u64 = 1 << 20;

/// Pointers from blocks and roots to blocks.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct HeapPointers {
    /// Index in `targets` of the first pointer of each block, and as last entry the number of
    /// pointers.
    pub(super) offsets: Vec<u32>,
    /// Target blocks of the pointers in blocks, in order of the pointing block.
    pub(super) targets: Vec<u32>,
    /// Pointers of roots, in order of the spans that contain them.
    pub(super) roots: RootPointers,
    /// Pointers that were not stored because the limit of stored pointers was reached.
    pub unrecorded: UnrecordedPointers,
    /// Types of blocks.
    pub types: BlockTypes,
}

/// Types of blocks. The first word of an object with virtual functions points to the virtual table
/// of its class, which is read-only data of an ELF object.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct BlockTypes {
    /// Type number of each block; 0 for a block without a type. Empty if no block has a type.
    numbers: Vec<u32>,
    /// First word of the blocks of each type.
    words: Vec<u64>,
}

impl BlockTypes {
    /// Type number of a block; 0 if the block has no type.
    pub fn number(&self, block: u32) -> u32 {
        self.numbers.get(block as usize).copied().unwrap_or(0)
    }

    /// First word of a block if it points to read-only data of an ELF object.
    pub fn word(&self, block: u32) -> Option<u64> {
        let number = self.number(block).checked_sub(1)?;
        self.words.get(number as usize).copied()
    }

    /// Blocks whose first word points to read-only data of an ELF object, each with this word.
    pub fn firsts(&self) -> impl Iterator<Item = (u32, u64)> + '_ {
        let numbers = (0..).zip(&self.numbers);
        numbers.filter_map(|(block, _)| Some((block, self.word(block)?)))
    }

    /// Sets the type of a block whose type was found by debug information, not by its first word.
    /// The numbers of these types are higher than those of the types found by first words.
    pub(crate) fn set(&mut self, blocks: usize, block: u32, number: u32) {
        if self.numbers.is_empty() {
            self.numbers = vec![0; blocks];
        }
        if let Some(known) = self.numbers.get_mut(block as usize) {
            *known = number;
        }
    }

    /// First words of all types, in order of type number.
    pub fn words(&self) -> &[u64] {
        &self.words
    }

    fn new(blocks: usize, firsts: impl Iterator<Item = (u32, u64)>) -> BlockTypes {
        let mut types = BlockTypes::default();
        let mut known = std::collections::HashMap::new();
        for (block, word) in firsts {
            let number = *known.entry(word).or_insert_with(|| {
                types.words.push(word);
                super::number(types.words.len())
            });
            if types.numbers.is_empty() {
                types.numbers = vec![0; blocks];
            }
            types.numbers[block as usize] = number;
        }
        types
    }
}

/// Read-only data of ELF objects, in order of address: virtual tables are in such data.
fn constant_data(memory: &dyn Memory) -> Vec<AddrRange> {
    let mappings = memory.mappings().iter();
    let is_constant = |it: &&Mapping| {
        let prot = it.prot;
        prot.read && !prot.write && !prot.exec && it.backing() == Backing::File
    };
    mappings.filter(is_constant).map(|mapping| mapping.range).collect()
}

impl HeapPointers {
    /// Addresses of the pointers in data of ELF objects.
    pub fn data_addresses(&self, spans: &[RootSpan]) -> impl Iterator<Item = u64> {
        self.addresses(spans, |kind| matches!(kind, RootSpanKind::Data(_)))
    }

    /// Addresses of the pointers on stacks.
    pub fn stack_addresses(&self, spans: &[RootSpan]) -> impl Iterator<Item = u64> {
        self.addresses(spans, |kind| matches!(kind, RootSpanKind::Stack(_)))
    }

    fn addresses(
        &self,
        spans: &[RootSpan],
        is_wanted: fn(RootSpanKind) -> bool,
    ) -> impl Iterator<Item = u64> {
        let runs = &self.roots.runs;
        let ends = runs.iter().skip(1).map(|run| run.1 as usize).chain([self.roots.targets.len()]);
        let is_wanted =
            move |span: u32| spans.get(span as usize).is_some_and(|span| is_wanted(span.kind));
        let runs = runs.iter().zip(ends).filter(move |((span, _), _)| is_wanted(*span));
        runs.flat_map(|(&(_, start), end)| {
            self.roots.addresses[start as usize..end].iter().copied()
        })
    }
}

/// Pointers of roots to blocks.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct RootPointers {
    /// Addresses of the pointers; 0 for pointers in registers.
    pub(super) addresses: Vec<u64>,
    /// Target block of each pointer.
    pub(super) targets: Vec<u32>,
    /// Index of the span of each run of pointers, and index of the first pointer of the run.
    pub(super) runs: Vec<(u32, u32)>,
}

/// Pointers that were not stored because the limit of stored pointers was reached. Their targets
/// count as reachable, so such a pointer can hide a leak but cannot cause a false leak.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct UnrecordedPointers {
    /// Number of pointers that were not stored.
    pub count: u64,
    /// Target blocks of the pointers that were not stored, without duplicates.
    pub(super) targets: Vec<u32>,
}

/// Reads all blocks and roots once, with several threads.
pub(super) fn pointers(
    memory: &dyn Memory,
    blocks: &BlockTable,
    spans: &[RootSpan],
    most_pointers: u64,
) -> HeapPointers {
    let index = BlockIndex::new(blocks);
    let pieces = pieces(blocks, spans);
    let pass = PointerPass {
        memory,
        blocks,
        index,
        pieces,
        constants: constant_data(memory),
        next: AtomicUsize::new(0),
        stored: AtomicU64::new(0),
        most_pointers,
        unrecorded: (0..blocks.len().div_ceil(64)).map(|_| AtomicU64::new(0)).collect(),
        unrecorded_count: AtomicU64::new(0),
    };
    let mut results = pass.run();
    results.sort_unstable_by_key(|result| result.piece);
    pass.joined(results, spans)
}

/// Maximum number of stored pointers for a number of blocks.
pub(super) fn most_pointers(blocks: usize) -> u64 {
    let bound = (blocks as u64).saturating_mul(POINTERS_PER_BLOCK).saturating_add(MIN_POINTERS);
    bound.min(u64::from(u32::MAX / 2))
}

/// A piece of work for one thread.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct ScanPiece {
    /// Address range of the piece. Blocks and spans can extend beyond both ends.
    range: AddrRange,
    contents: PieceContents,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum PieceContents {
    /// Indices of the first block of the piece and of the first block after it.
    Blocks(usize, usize),
    /// Index of a span with roots.
    Span(u32),
}

fn pieces(blocks: &BlockTable, spans: &[RootSpan]) -> Vec<ScanPiece> {
    let mut pieces = pieces_of_blocks(blocks);
    for (number, span) in (0..).zip(spans) {
        // A mapping in a core file can have any size while the file contains little of it.
        let share = span.range.len().0 / MAX_SPAN_PIECES;
        let bytes = share.checked_next_multiple_of(PIECE_BYTES).unwrap_or(share).max(PIECE_BYTES);
        let mut at = span.range.start;
        while at < span.range.end {
            let end = at.saturating_add(bytes).min(span.range.end);
            let contents = PieceContents::Span(number);
            pieces.push(ScanPiece { range: AddrRange { start: at, end }, contents });
            at = end;
        }
    }
    pieces
}

/// Divides the blocks into pieces of about [`PIECE_BYTES`]. A larger block is in several pieces.
fn pieces_of_blocks(blocks: &BlockTable) -> Vec<ScanPiece> {
    let mut pieces = Vec::new();
    // State of the current piece: index of its first block, start address, bytes, number of blocks.
    let mut open: Option<(usize, u64, u64, u64)> = None;
    let mut end = 0;
    let piece = |first: usize, last: usize, start: u64, end: u64| ScanPiece {
        range: AddrRange { start, end },
        contents: PieceContents::Blocks(first, last + 1),
    };
    for (at, block) in (0..blocks.len()).filter_map(|at| Some((at, blocks.get(at)?))) {
        let block_end = block.start.saturating_add(block.size);
        let mut from = block.start;
        if block.size > PIECE_BYTES {
            if let Some((first, start, ..)) = open.take() {
                pieces.push(piece(first, at - 1, start, end));
            }
            while block_end - from > PIECE_BYTES {
                pieces.push(piece(at, at, from, from + PIECE_BYTES));
                from += PIECE_BYTES;
            }
        }
        let (first, start, bytes, count) = open.unwrap_or((at, from, 0, 0));
        let (bytes, count) = (bytes + (block_end - from), count + 1);
        end = block_end;
        open = Some((first, start, bytes, count));
        if bytes >= PIECE_BYTES || count >= PIECE_BLOCKS {
            pieces.push(piece(first, at, start, end));
            open = None;
        }
    }
    if let Some((first, start, ..)) = open {
        pieces.push(piece(first, blocks.len() - 1, start, end));
    }
    pieces
}

/// Pointers found in one piece.
#[derive(Debug, Default)]
struct PieceResult {
    piece: usize,
    targets: Vec<u32>,
    /// Number of pointers of each block; empty for a span.
    counts: Vec<u32>,
    /// Address of each pointer of a span; empty for blocks.
    addresses: Vec<u64>,
    /// Index and first word of the blocks whose first word points to read-only data of an ELF
    /// object.
    firsts: Vec<(u32, u64)>,
}

/// Data that all threads of the pass share.
struct PointerPass<'a> {
    memory: &'a dyn Memory,
    blocks: &'a BlockTable,
    index: BlockIndex<'a>,
    pieces: Vec<ScanPiece>,
    constants: Vec<AddrRange>,
    next: AtomicUsize,
    stored: AtomicU64,
    most_pointers: u64,
    /// One bit for each block: 1 if a pointer to the block was not stored.
    unrecorded: Vec<AtomicU64>,
    unrecorded_count: AtomicU64,
}

impl PointerPass<'_> {
    fn run(&self) -> Vec<PieceResult> {
        let threads = thread::available_parallelism().map_or(1, usize::from);
        let threads = threads.min(MAX_THREADS).min(self.pieces.len());
        thread::scope(|scope| {
            let start = || thread::Builder::new().spawn_scoped(scope, || self.work());
            let others: Vec<_> = (1..threads).filter_map(|_| start().ok()).collect();
            let mut results = self.work();
            for other in others {
                let joined = other.join();
                results.extend(joined.unwrap_or_else(|panic| std::panic::resume_unwind(panic)));
            }
            results
        })
    }

    /// Processes pieces until none is left.
    fn work(&self) -> Vec<PieceResult> {
        let mut results = Vec::new();
        loop {
            let number = self.next.fetch_add(1, Ordering::Relaxed);
            let Some(&piece) = self.pieces.get(number) else { return results };
            let found = match piece.contents {
                PieceContents::Blocks(first, end) => self.of_blocks(piece.range, first, end),
                PieceContents::Span(_) => self.of_span(piece.range),
            };
            results.push(PieceResult { piece: number, ..found });
        }
    }

    fn of_blocks(&self, range: AddrRange, first: usize, end: usize) -> PieceResult {
        let words = usize::try_from(range.len().0 / 8).unwrap_or(usize::MAX);
        let mut reader = BlockReader {
            pass: self,
            range,
            first,
            current: first,
            end,
            pending: Vec::with_capacity(BATCH),
            buckets: Vec::with_capacity(BATCH),
            result: PieceResult {
                counts: vec![0; end - first],
                targets: Vec::with_capacity(PIECE_POINTERS.min(words)),
                ..PieceResult::default()
            },
        };
        let mut at = first;
        while let Some((run, after)) = self.run_of_blocks(at, end, range) {
            if !run.is_empty() {
                self.memory.visit(run, &mut |address, bytes| reader.read(address, bytes));
            }
            at = after;
        }
        reader.look_up();
        reader.result
    }

    /// Address range of block `at` and the following blocks up to the first large gap, and the
    /// index of the next block.
    fn run_of_blocks(
        &self,
        at: usize,
        end: usize,
        within: AddrRange,
    ) -> Option<(AddrRange, usize)> {
        let block_range = |at: usize| {
            let block = self.blocks.get(at).filter(|_| at < end)?;
            let range =
                AddrRange { start: block.start, end: block.start.saturating_add(block.size) };
            Some(AddrRange { start: range.start.max(within.start), end: range.end.min(within.end) })
        };
        let mut run = block_range(at)?;
        let mut after = at + 1;
        while let Some(next) = block_range(after) {
            if next.start.saturating_sub(run.end) > MAX_READ_GAP {
                break;
            }
            run.end = run.end.max(next.end);
            after += 1;
        }
        run.start = aligned_up(run.start);
        Some((run, after))
    }

    fn of_span(&self, range: AddrRange) -> PieceResult {
        let mut result = PieceResult::default();
        self.memory.visit(range, &mut |start, bytes| {
            for (address, word) in (start..).step_by(8).zip(bytes.chunks_exact(8)) {
                self.root_word(address, word_of(word), &mut result);
            }
        });
        result
    }

    fn root_word(&self, address: u64, word: u64, result: &mut PieceResult) {
        if !self.index.may_contain(word) {
            return;
        }
        let Some(target) = self.index.containing(word) else { return };
        if self.takes(1, &[target]) {
            result.addresses.push(address);
            result.targets.push(target);
        }
    }

    /// Returns true if `count` more pointers can be stored. Otherwise marks their targets as
    /// unrecorded.
    fn takes(&self, count: u64, targets: &[u32]) -> bool {
        if self.stored.fetch_add(count, Ordering::Relaxed) + count <= self.most_pointers {
            return true;
        }
        self.unrecorded_count.fetch_add(count, Ordering::Relaxed);
        for &target in targets {
            let (bits, bit) = (&self.unrecorded[target as usize / 64], 1 << (target % 64));
            if bits.load(Ordering::Relaxed) & bit == 0 {
                bits.fetch_or(bit, Ordering::Relaxed);
            }
        }
        false
    }

    fn of_registers(&self, spans: &[RootSpan]) -> Vec<(u32, PieceResult)> {
        let results = (0..).zip(spans).map(|(number, span)| {
            let mut result = PieceResult::default();
            if let RootSpanKind::Registers(thread) = span.kind {
                let thread = &self.memory.threads()[thread as usize];
                for &word in &thread.registers {
                    self.root_word(0, word, &mut result);
                }
            }
            (number, result)
        });
        results.collect()
    }

    /// Concatenates the results of all pieces.
    fn joined(self, results: Vec<PieceResult>, spans: &[RootSpan]) -> HeapPointers {
        let mut all = HeapPointers::default();
        let mut counts = vec![0_u32; self.blocks.len() + 1];
        let stored = results.iter().filter(|it| !it.counts.is_empty()).map(|it| it.targets.len());
        all.targets.reserve_exact(stored.sum());
        for (span, result) in self.of_registers(spans) {
            all.roots.append(span, &result);
        }
        let firsts = results.iter().flat_map(|result| result.firsts.iter().copied());
        all.types = BlockTypes::new(self.blocks.len(), firsts);
        for result in results {
            match self.pieces[result.piece].contents {
                PieceContents::Blocks(first, _) => {
                    all.targets.extend_from_slice(&result.targets);
                    for (sum, count) in counts[first..].iter_mut().zip(&result.counts) {
                        *sum += count;
                    }
                }
                PieceContents::Span(span) => all.roots.append(span, &result),
            }
        }
        let mut sum = 0;
        for count in &mut counts {
            sum += std::mem::replace(count, sum);
        }
        all.offsets = counts;
        all.unrecorded = self.unrecorded();
        all
    }

    fn unrecorded(self) -> UnrecordedPointers {
        let mut targets = Vec::new();
        for (base, bits) in (0_u32..).step_by(64).zip(self.unrecorded) {
            let bits = bits.into_inner();
            targets.extend((0..64).filter(|bit| bits >> bit & 1 == 1).map(|bit| base + bit));
        }
        UnrecordedPointers { count: self.unrecorded_count.into_inner(), targets }
    }
}

impl RootPointers {
    fn append(&mut self, span: u32, result: &PieceResult) {
        if result.targets.is_empty() {
            return;
        }
        if self.runs.last().is_none_or(|&(last, _)| last != span) {
            self.runs.push((span, u32::try_from(self.targets.len()).unwrap_or(u32::MAX)));
        }
        self.addresses.extend_from_slice(&result.addresses);
        self.targets.extend_from_slice(&result.targets);
    }
}

/// Finds the pointers of consecutive blocks.
struct BlockReader<'a> {
    pass: &'a PointerPass<'a>,
    range: AddrRange,
    first: usize,
    current: usize,
    end: usize,
    /// Words that may be pointers, each with the index of its block relative to `first`.
    pending: Vec<(u32, u64)>,
    /// For each pending word: the indices of the blocks in its bucket of [`BlockIndex`].
    buckets: Vec<(u32, u32)>,
    result: PieceResult,
}

impl BlockReader<'_> {
    /// Searches the blocks in `bytes`, which begin at `address`.
    fn read(&mut self, address: u64, bytes: &[u8]) {
        let end = address.saturating_add(bytes.len() as u64).min(self.range.end);
        while let Some(block) =
            self.pass.blocks.get(self.current).filter(|_| self.current < self.end)
        {
            let block_end = block.start.saturating_add(block.size);
            let from = aligned_up(block.start.max(address).max(self.range.start));
            let to = block_end.min(end);
            if from < to {
                let part = usize::try_from(from - address).unwrap_or(0)
                    ..usize::try_from(to - address).unwrap_or(0);
                let words = &bytes[part];
                if from == block.start {
                    self.first_word(words);
                }
                self.words(words);
            }
            if block_end > end {
                return;
            }
            self.current += 1;
        }
    }

    #[inline]
    fn first_word(&mut self, bytes: &[u8]) {
        let Some(word) = bytes.first_chunk().map(|word| u64::from_le_bytes(*word)) else { return };
        let constants = &self.pass.constants;
        let after = constants.partition_point(|range| range.start <= word);
        if after.checked_sub(1).is_some_and(|at| constants[at].contains(word)) {
            self.result.firsts.push((super::number(self.current), word));
        }
    }

    #[inline]
    fn words(&mut self, bytes: &[u8]) {
        let source = u32::try_from(self.current - self.first).unwrap_or(u32::MAX);
        let (groups, others) = bytes.as_chunks::<8>().0.as_chunks::<WORD_GROUP>();
        for group in groups {
            if self.pass.index.may_contain_any(group) {
                self.pending_words(source, group);
            }
        }
        self.pending_words(source, others);
    }

    #[inline]
    fn pending_words(&mut self, source: u32, words: &[[u8; 8]]) {
        for word in words.iter().map(|word| u64::from_le_bytes(*word)) {
            if self.pass.index.may_contain(word) {
                self.pending.push((source, word));
                if self.pending.len() == BATCH {
                    self.look_up();
                }
            }
        }
    }

    #[inline(never)]
    fn look_up(&mut self) {
        let before = self.result.targets.len();
        let index = &self.pass.index;
        self.buckets.clear();
        self.buckets.extend(self.pending.iter().map(|&(_, word)| index.bucket(word)));
        index.read(&self.buckets);
        let mut last = None;
        for ((source, word), &bucket) in self.pending.drain(..).zip(&self.buckets) {
            let Some(target) = index.in_bucket(word, bucket) else { continue };
            let is_own = self.first + source as usize == target as usize;
            if is_own || last.replace((source, target)) == Some((source, target)) {
                continue;
            }
            self.result.targets.push(target);
            self.result.counts[source as usize] += 1;
        }
        let new = &self.result.targets[before..];
        if let Some((source, _)) = last
            && !self.pass.takes(new.len() as u64, new)
        {
            self.drop_targets(before, source as usize);
        }
    }

    /// Removes the targets from index `before` on, and subtracts them from the counts of the blocks
    /// up to `source`.
    fn drop_targets(&mut self, before: usize, source: usize) {
        let mut excess = self.result.targets.len() - before;
        self.result.targets.truncate(before);
        for count in self.result.counts[..=source].iter_mut().rev() {
            if excess == 0 {
                break;
            }
            let part = excess.min(*count as usize);
            *count -= u32::try_from(part).unwrap_or(u32::MAX);
            excess -= part;
        }
    }
}

fn word_of(bytes: &[u8]) -> u64 {
    bytes.try_into().map_or(0, u64::from_le_bytes)
}

fn aligned_up(address: u64) -> u64 {
    address.saturating_add(7) & !7
}
