//! Layout of an allocator's memory, and the density of its pages: read from outside, from the
//! recorder's map of live blocks, the words that glibc stores before blocks, and the page tables.
//!
//! The process runs at the same time. Implausible values are discarded, and blocks whose words
//! contradict each other are counted as unclear. Only resident pages are read, so reading changes
//! nothing.

mod glibc;
pub(crate) mod live;
mod pages;

use std::cell::Cell;
use std::collections::HashMap;
use std::fs::File;
use std::io;
use std::ops::Range;

use pagewise_heaplog::glibc_chunk::{self, MAPPED, MIN_CHUNK, OTHER_ARENA, UNIT};
use pagewise_heaplog::recording::{
    LogAmount, LogArea, LogAreaKind, LogBlock, LogLayout, MAX_BLOCKS,
};
use pagewise_heaplog::tables::live::{KIND, NARROW};
use pagewise_heaplog::tables::{allocator, header};
use pagewise_model::mapping::Sharing;
use pagewise_model::{Mapping, Name, Pid};
use pagewise_proc::{ProcRoot, maps};
use pagewise_sys::pagemap_scan::{Categories, ScanRegion, ScanRequest, scan};
use pagewise_sys::remote;

use crate::tables::SharedTables;
use live::LiveMapEntry;
use pages::Use;

/// Maximum numbers of extents and of resident ranges; reading more would take seconds.
const MAX_EXTENTS: usize = 1 << 13;
const MAX_RUNS: usize = 1 << 22;
/// Maximum number of times that mappings are read for one layout.
const READINGS: usize = 16;
/// Maximum number of bytes of block headers in one read, and maximum number of ranges in one read.
const PIECE: u64 = 1 << 20;
const PIECES: usize = 1000;

/// Data kept from one layout to the next.
#[derive(Debug, Default)]
pub(crate) struct LayoutHistory {
    /// Number of each arena, by the address of the arena.
    numbers: HashMap<u64, u32>,
}

/// A process whose heap layout is read.
#[derive(Debug)]
struct WalkedProcess {
    pid: u32,
    pagemap: File,
    page: u64,
}

impl WalkedProcess {
    fn open(root: &ProcRoot, pid: Pid) -> Option<WalkedProcess> {
        let pagemap = File::open(root.file(pid, "pagemap")).ok()?;
        Some(WalkedProcess { pid: pid.0, pagemap, page: rustix::param::page_size() as u64 })
    }

    /// The resident parts of a range, in order of address. Pages that were only read are excluded,
    /// because they map the kernel's shared zero page.
    fn present(&self, range: Range<u64>) -> io::Result<Vec<Range<u64>>> {
        const REGIONS: usize = 512;
        let (present, zero) = (Categories::PRESENT, Categories::PFNZERO);
        let request = ScanRequest { all_of: present, report: zero, ..ScanRequest::default() };
        let mut regions = [ScanRegion::default(); REGIONS];
        let mut runs: Vec<Range<u64>> = Vec::new();
        let down = |at: u64| at - at % self.page;
        let end = range.end.checked_next_multiple_of(self.page).unwrap_or(range.end);
        let mut at = down(range.start);
        while at < end {
            let scan = scan(&self.pagemap, at..end, &request, &mut regions)?;
            for region in regions.iter().take(scan.regions) {
                if region.categories.contains(zero) {
                    continue;
                }
                match runs.last_mut() {
                    Some(last) if last.end == region.start => last.end = region.end,
                    _ => runs.push(region.start..region.end),
                }
            }
            if runs.len() > MAX_RUNS {
                return Err(io::ErrorKind::OutOfMemory.into());
            }
            at = scan.walk_end.max(at + self.page);
        }
        Ok(runs)
    }

    /// Reads the bytes at an address; `None` if one of their pages is not resident.
    fn read<const N: usize>(&self, address: u64) -> Option<[u8; N]> {
        let end = address.checked_add(N as u64)?;
        let runs = self.present(address..end).ok()?;
        let is_there = matches!(runs.as_slice(), [run] if run.start <= address && end <= run.end);
        is_there.then(|| *remote::read_each::<N>(self.pid, &[address]).ok()?.first()?).flatten()
    }

    fn word(&self, address: u64) -> Option<u64> {
        self.read::<8>(address).map(u64::from_ne_bytes)
    }
}

/// A heap, or a mapping that contains blocks.
#[derive(Clone, Debug)]
struct BlockExtent {
    range: Range<u64>,
    /// Index of the area that the extent belongs to.
    area: usize,
    /// Resident ranges.
    runs: Vec<Range<u64>>,
    /// End of the last block so far.
    last: u64,
}

impl BlockExtent {
    fn resident(&self) -> u64 {
        self.runs.iter().map(|run| run.end - run.start).sum()
    }

    /// Replaces the resident ranges in `range`, whose ends are page boundaries.
    fn replace_runs(&mut self, range: &Range<u64>, runs: Vec<Range<u64>>) {
        let first = self.runs.partition_point(|run| run.end <= range.start);
        let end = self.runs.partition_point(|run| run.start < range.end);
        if self.runs.get(first..end) == Some(&runs[..]) {
            return;
        }
        let outside = self.runs.get(first..end).unwrap_or_default();
        let before = outside.first().map(|run| run.start..range.start.min(run.end));
        let after = outside.last().map(|run| range.end.max(run.start)..run.end);
        let kept = |run: Option<Range<u64>>| run.filter(|run| !run.is_empty());
        let new = kept(before).into_iter().chain(runs).chain(kept(after));
        self.runs.splice(first..end, new.collect::<Vec<_>>());
    }

    /// Number of resident bytes of a range.
    fn resident_in(&self, range: &Range<u64>) -> u64 {
        let first = self.runs.partition_point(|run| run.end <= range.start);
        let runs = self.runs[first..].iter().take_while(|run| run.start < range.end);
        runs.map(|run| run.end.min(range.end) - run.start.max(range.start)).sum()
    }
}

/// Sums over an area.
#[derive(Clone, Copy, Debug, Default)]
struct AreaSum {
    kind: LogAreaKind,
    number: u32,
    parts: u32,
    held: u64,
    resident: u64,
    /// Bytes and number of live blocks; with sampling, estimates for all live blocks.
    live: (f64, f64),
    /// Number of bytes of resident pages that contain live bytes.
    used: u64,
    gap: u64,
    top: Option<u64>,
    threads: Option<u64>,
}

/// A layout that is being read.
struct Looking<'a> {
    process: &'a WalkedProcess,
    root: &'a ProcRoot,
    mappings: Vec<Mapping>,
    /// Number of times that the mappings may still be read.
    readings: usize,
    before: &'a mut LayoutHistory,
    arenas: Vec<glibc::Arena>,
    sums: Vec<AreaSum>,
    /// The extents, in order of address.
    extents: Vec<BlockExtent>,
    /// Index of the extent that was found last: most blocks lie in the same extent as the previous
    /// block.
    last_extent: Cell<usize>,
    /// Address up to which the resident pages were read a second time, together with the blocks.
    renewed: u64,
    /// Buffer for reads, which is reused: page faults in fresh memory cost more than the read.
    buffer: Vec<u8>,
    /// Indices of the area for blocks with mappings of their own, and of the area for mappings of
    /// other allocators.
    alone: Option<usize>,
    others: Option<usize>,
    /// Requested sizes, by block address, from a separate table of the recorder. The table contains
    /// the blocks whose slack (usable size minus requested size) does not fit into the bits that
    /// the recorder's map of live blocks has for it.
    sizes: HashMap<u64, u64>,
    every: u64,
    uses: Use,
    unclear: u64,
}

/// The recorded blocks that are live now, in order of address; `None` if the recorder's map of live
/// blocks cannot be read, because the kernel is too old or the process has ended.
pub(crate) fn live_blocks(
    root: &ProcRoot,
    pid: Pid,
    tables: &SharedTables,
) -> Option<Vec<LogBlock>> {
    let map = tables.head(header::LIVE_MAP).ok().filter(|map| *map != 0)?;
    let process = WalkedProcess::open(root, pid)?;
    let mut blocks = Vec::new();
    live::each(&process, map & !KIND, map & KIND == NARROW, |entries| {
        let found = entries.iter().map(|it| LogBlock { address: it.address, site: it.site });
        blocks.extend(found.take(MAX_BLOCKS.saturating_sub(blocks.len())));
    })?;
    // The program runs meanwhile: a block may be freed and another block may get its address, so
    // the same address may occur twice.
    blocks.dedup_by_key(|block| block.address);
    blocks.is_sorted_by_key(|block| block.address).then_some(blocks)
}

/// Reads the layout; `None` if it cannot be read, because the kernel is too old or the process has
/// ended.
pub(crate) fn read(
    root: &ProcRoot,
    pid: Pid,
    tables: &SharedTables,
    attached: bool,
    before: &mut LayoutHistory,
) -> Option<LogLayout> {
    let is_glibc = tables.head(header::ALLOCATOR).ok()? == allocator::GLIBC;
    let map = tables.head(header::LIVE_MAP).ok()?;
    let every = tables.head(header::EVERY_BYTES).ok()?;
    let is_narrow = map & KIND == NARROW;
    if map == 0 || is_narrow != is_glibc {
        return None;
    }
    let process = WalkedProcess::open(root, pid)?;
    let mut looking = Looking {
        process: &process,
        root,
        mappings: Vec::new(),
        readings: READINGS,
        before,
        arenas: Vec::new(),
        sums: Vec::new(),
        extents: Vec::new(),
        last_extent: Cell::new(0),
        renewed: 0,
        buffer: Vec::new(),
        alone: None,
        others: None,
        sizes: live::sizes(&process, tables.head(header::LIVE_SIZES).ok()?),
        every,
        uses: Use::new(process.page),
        unclear: 0,
    };
    looking.read_mappings()?;
    if is_glibc {
        looking.sums.push(AreaSum::default());
        looking.find_arenas()?;
    }
    let all_known = !attached && every == 0;
    live::each(&process, map & !KIND, is_narrow, |blocks| looking.add_blocks(blocks, is_narrow))?;
    looking.renew_runs(u64::MAX)?;
    looking.close();
    looking.tops(all_known);
    Some(looking.finish(all_known, attached))
}

/// True if the mapping may belong to an allocator.
fn is_memory(mapping: &Mapping) -> bool {
    mapping.inode == 0
        && mapping.sharing == Sharing::Private
        && mapping.prot.write
        && (mapping.name.is_empty() || mapping.name.as_bytes().starts_with(b"[anon:"))
}

impl Looking<'_> {
    fn read_mappings(&mut self) -> Option<()> {
        let parsed = maps::parse(&self.root.read(Pid(self.process.pid), "maps").ok()?);
        self.readings -= 1;
        self.mappings = parsed.mappings;
        parsed.torn.is_none().then_some(())
    }

    /// Adds new heaps of glibc's arenas, and the growth of known heaps.
    fn find_arenas(&mut self) -> Option<()> {
        let heap = Name::new(b"[heap]");
        let main: Vec<Range<u64>> = self
            .mappings
            .iter()
            .filter(|mapping| mapping.name == heap)
            .map(|mapping| mapping.range.start..mapping.range.end)
            .collect();
        for range in main {
            let start = range.start;
            self.extend(0, range, start)?;
        }
        let heaps = glibc::heaps(self.process, &self.mappings)?;
        let mut new: Vec<u64> = heaps.iter().map(|heap| heap.arena).collect();
        new.sort_unstable();
        for arena in new {
            let numbers = &mut self.before.numbers;
            let next = u32::try_from(numbers.len()).unwrap_or(u32::MAX).saturating_add(1);
            numbers.entry(arena).or_insert(next);
        }
        for heap in &heaps {
            let number = self.before.numbers.get(&heap.arena).copied().unwrap_or_default();
            let known = self.arenas.iter().find(|arena| arena.address == heap.arena);
            let area = known.map(|arena| arena.area).unwrap_or_else(|| {
                let kind = LogAreaKind::Arena;
                self.sums.push(AreaSum { kind, number, ..AreaSum::default() });
                let area = self.sums.len() - 1;
                self.arenas.push(glibc::Arena { address: heap.arena, area });
                area
            });
            self.extend(area, heap.range.clone(), heap.first)?;
        }
        Some(())
    }

    /// Reads mappings and resident pages again, since the program runs meanwhile: heaps grow, and
    /// pages are touched.
    fn renew(&mut self, blocks: &[LiveMapEntry], is_narrow: bool) -> Option<()> {
        let Some(last) = blocks.last() else { return Some(()) };
        let is_new = |block: &LiveMapEntry| {
            self.extent(block.address).is_none() && self.mapping(block.address).is_none()
        };
        if is_narrow && self.readings > 0 && blocks.iter().any(is_new) {
            self.read_mappings()?;
            self.find_arenas()?;
        }
        let end = (last.address | (self.process.page - 1)).saturating_add(1);
        self.renew_runs(end)
    }

    /// Reads the resident pages again, from the end of the previous repeated read up to `end`.
    fn renew_runs(&mut self, end: u64) -> Option<()> {
        let begin = std::mem::replace(&mut self.renewed, end);
        for extent in &mut self.extents {
            let range = begin.max(extent.range.start)..end.min(extent.range.end);
            if range.is_empty() {
                continue;
            }
            let before = extent.resident_in(&range);
            let runs = self.process.present(range.clone()).ok()?;
            extent.replace_runs(&range, runs);
            let sum = &mut self.sums[extent.area];
            let now = extent.resident_in(&range);
            sum.resident = sum.resident.saturating_sub(before).saturating_add(now);
        }
        Some(())
    }

    /// Adds a range to an area. Blocks begin above `first`.
    fn extend(&mut self, area: usize, range: Range<u64>, first: u64) -> Option<()> {
        if self.extents.len() >= MAX_EXTENTS || range.is_empty() {
            return None;
        }
        if let Some(known) = self.extents.iter_mut().find(|it| it.range.start == range.start) {
            // Memory that is released during the scan keeps the counts of the first read.
            let more = range.end.saturating_sub(known.range.end);
            let behind = known.range.end..known.range.end + more;
            let runs = self.process.present(behind.clone()).ok()?;
            let sum = &mut self.sums[known.area];
            sum.held = sum.held.saturating_add(more);
            let resident: u64 = runs.iter().map(|run| run.end - run.start).sum();
            sum.resident = sum.resident.saturating_add(resident);
            known.runs.extend(runs);
            known.range.end = behind.end;
            return Some(());
        }
        let runs = self.process.present(range.clone()).ok()?;
        let extent = BlockExtent { range, area, runs, last: first };
        let sum = &mut self.sums[area];
        sum.parts += 1;
        sum.held = sum.held.saturating_add(extent.range.end - extent.range.start);
        sum.resident = sum.resident.saturating_add(extent.resident());
        let at = self.extents.partition_point(|it| it.range.start < extent.range.start);
        // The page to which `uses` still adds blocks may belong to an extent whose index increases
        // by the insertion.
        self.uses.moved(at);
        self.extents.insert(at, extent);
        Some(())
    }

    fn extent(&self, address: u64) -> Option<usize> {
        let last = self.last_extent.get();
        if self.extents.get(last).is_some_and(|it| it.range.contains(&address)) {
            return Some(last);
        }
        let at = self.extents.partition_point(|it| it.range.start <= address).checked_sub(1)?;
        self.last_extent.set(at);
        self.extents[at].range.contains(&address).then_some(at)
    }

    fn mapping(&self, address: u64) -> Option<Range<u64>> {
        let at = self.mappings.partition_point(|it| it.range.start <= address).checked_sub(1)?;
        let mapping = &self.mappings[at];
        let is_it = mapping.range.contains(address)
            && (is_memory(mapping) || mapping.name == Name::new(b"[heap]"));
        is_it.then_some(mapping.range.start..mapping.range.end)
    }

    /// Adds blocks in order of address. All of them must lie above the blocks that were added
    /// before.
    fn add_blocks(&mut self, blocks: &[LiveMapEntry], is_narrow: bool) {
        if self.renew(blocks, is_narrow).is_none() {
            self.unclear += blocks.len() as u64;
            return;
        }
        if !is_narrow {
            for block in blocks {
                match self.extent_or_new(block.address) {
                    Some(at) => {
                        let range = block.address..block.address.saturating_add(block.size);
                        self.add(at, range, block, block.size);
                    }
                    None => self.unclear += 1,
                }
            }
            return;
        }
        if blocks.iter().all(|block| self.extent(block.address).is_some()) {
            self.take_chunks(blocks);
            return;
        }
        let mut ready: Vec<LiveMapEntry> = Vec::new();
        for block in blocks {
            match self.extent(block.address) {
                Some(_) => ready.push(*block),
                None if self.takes_alone(block) => {}
                None => ready.push(*block),
            }
        }
        self.take_chunks(&ready);
    }

    /// Returns the index of the extent of a block. For allocators other than glibc's, the extent is
    /// the mapping that contains the block.
    fn extent_or_new(&mut self, address: u64) -> Option<usize> {
        if let Some(at) = self.extent(address) {
            return Some(at);
        }
        let range = self.mapping(address)?;
        let others = *self.others.get_or_insert_with(|| {
            self.sums.push(AreaSum { kind: LogAreaKind::Mappings, ..AreaSum::default() });
            self.sums.len() - 1
        });
        let start = range.start;
        self.extend(others, range, start)?;
        self.extent(address)
    }

    /// Handles a block outside of all known heaps. Adds the block if it has a mapping of its own.
    /// Counts it as unclear if its words cannot be read or contradict each other. Returns false for
    /// a block of the main arena in memory that replaces the `brk` heap: the mapping becomes an
    /// extent of that arena, and the caller adds the block.
    fn takes_alone(&mut self, block: &LiveMapEntry) -> bool {
        let Some(chunk) = block.address.checked_sub(UNIT) else { return true };
        let words =
            self.mapping(chunk).and_then(|range| Some((range, self.process.read::<16>(chunk)?)));
        let Some((range, words)) = words else {
            self.unclear += 1;
            return true;
        };
        let (before, head) = words.split_at(8);
        let word = |bytes: &[u8]| bytes.try_into().map_or(0, u64::from_ne_bytes);
        let (before, head) = (word(before), word(head));
        let size = glibc_chunk::size(head);
        let behind = match glibc_chunk::is_mapped(head) {
            true => glibc_chunk::behind_mapped(block.address, head),
            false => 0,
        };
        let end = chunk.checked_add(size).and_then(|end| end.checked_add(behind));
        let end = end.filter(|end| *end <= range.end && size >= MIN_CHUNK);
        let start = chunk.checked_sub(before).filter(|start| *start >= range.start);
        match (head & (MAPPED | OTHER_ARENA), end, start) {
            (MAPPED, Some(end), Some(start)) => {
                let resident = self.process.present(start..end).unwrap_or_default();
                let alone = *self.alone.get_or_insert_with(|| {
                    self.sums.push(AreaSum { kind: LogAreaKind::Mapped, ..AreaSum::default() });
                    self.sums.len() - 1
                });
                let live = self.size(block, glibc_chunk::room(block.address, head));
                let weight = self.weight(live);
                let sum = &mut self.sums[alone];
                sum.parts += 1;
                sum.held = sum.held.saturating_add(end - start);
                let resident: u64 = resident.iter().map(|run| run.end - run.start).sum();
                sum.resident = sum.resident.saturating_add(resident);
                sum.live = (sum.live.0 + real(live) * weight, sum.live.1 + weight);
                true
            }
            (0, Some(_), _) => {
                let start = range.start;
                if self.extend(0, range, start).is_none() {
                    self.unclear += 1;
                    return true;
                }
                false
            }
            _ => {
                self.unclear += 1;
                true
            }
        }
    }

    /// Adds blocks in heaps of glibc. The word before each block contains the size of its chunk.
    fn take_chunks(&mut self, blocks: &[LiveMapEntry]) {
        let page = self.process.page;
        let mut ranges: Vec<Range<u64>> = Vec::new();
        let mut first = 0;
        let mut bytes = 0;
        for (number, block) in blocks.iter().enumerate() {
            let head = block.address - 8;
            let start = head - head % page;
            let is_same = ranges.last().is_some_and(|last| start < last.end);
            if is_same {
                continue;
            }
            if bytes >= PIECE || ranges.len() >= PIECES {
                self.take_some(&blocks[first..number], &ranges);
                (first, bytes) = (number, 0);
                ranges.clear();
            }
            let is_there = self
                .extent(block.address)
                .is_some_and(|at| self.extents[at].resident_in(&(start..start + page)) > 0);
            if !is_there {
                // The page was not resident when it was checked. It may be swapped out, and a read
                // would then fault it in.
                continue;
            }
            bytes += page;
            match ranges.last_mut() {
                Some(last) if last.end == start => last.end += page,
                _ => ranges.push(start..start + page),
            }
        }
        self.take_some(&blocks[first..], &ranges);
    }

    /// Adds blocks whose size words lie in `ranges`. Other blocks are unclear.
    fn take_some(&mut self, blocks: &[LiveMapEntry], ranges: &[Range<u64>]) {
        let length: u64 = ranges.iter().map(|range| range.end - range.start).sum();
        let length = usize::try_from(length).unwrap_or(0);
        let mut buffer = std::mem::take(&mut self.buffer);
        if buffer.len() < length {
            buffer.resize(length, 0);
        }
        let got = match remote::read(self.process.pid, ranges, &mut buffer[..length]) {
            Ok(got) if !ranges.is_empty() => got,
            _ => 0,
        };
        let bytes = &buffer[..got];
        let mut rest = ranges.iter();
        let mut range = rest.next();
        let mut behind = 0;
        for block in blocks {
            let head = block.address - 8;
            while let Some(it) = range.filter(|it| it.end <= head) {
                behind += it.end - it.start;
                range = rest.next();
            }
            let place = range.filter(|it| it.contains(&head)).map(|it| behind + head - it.start);
            let place = place.and_then(|place| usize::try_from(place).ok());
            let word = place.and_then(|at| bytes.get(at..)?.first_chunk());
            match word.map(|word| u64::from_ne_bytes(*word)) {
                Some(word) => self.chunk(block, word),
                None => self.unclear += 1,
            }
        }
        self.buffer = buffer;
    }

    /// Adds a block of a heap. `word` is the size word before the block.
    fn chunk(&mut self, block: &LiveMapEntry, word: u64) {
        let Some(at) = self.extent(block.address) else {
            self.unclear += 1;
            return;
        };
        let (size, extent) = (glibc_chunk::size(word), &self.extents[at]);
        let end = (block.address - UNIT).checked_add(size);
        let fits = size >= MIN_CHUNK
            && size.is_multiple_of(UNIT)
            && !glibc_chunk::is_mapped(word)
            && end.is_some_and(|end| end <= extent.range.end)
            && block.address - 8 >= extent.last;
        if !fits {
            self.unclear += 1;
            return;
        }
        let live = self.size(block, size - 8);
        let start = block.address - 8;
        self.add(at, start..start + size, block, live);
    }

    /// Requested size of a block with `room` usable bytes.
    fn size(&self, block: &LiveMapEntry, room: u64) -> u64 {
        match block.slack {
            Some(slack) => room.saturating_sub(slack.into()),
            None => self.sizes.get(&block.address).copied().unwrap_or(room).min(room),
        }
    }

    /// Number of blocks that a sampled block of this size represents.
    fn weight(&self, size: u64) -> f64 {
        if self.every == 0 {
            return 1.0;
        }
        let probability = -(-real(size.max(1)) / real(self.every)).exp_m1();
        probability.max(f64::MIN_POSITIVE).recip()
    }

    /// Adds a block: the part of an extent that it occupies, and its requested size.
    fn add(&mut self, at: usize, range: Range<u64>, block: &LiveMapEntry, live: u64) {
        let weight = self.weight(live);
        let extent = &mut self.extents[at];
        let range = range.start..range.end.min(extent.range.end);
        let sum = &mut self.sums[extent.area];
        sum.live = (sum.live.0 + real(live) * weight, sum.live.1 + weight);
        sum.gap = sum.gap.max(range.start.saturating_sub(extent.last));
        extent.last = extent.last.max(range.end);
        let used = self.uses.add(&self.extents, at, &range, block.site);
        self.sums[self.extents[used.extent].area].used += used.bytes;
        self.sums[self.extents[at].area].used += used.whole;
    }

    /// Counts the last page, to which `uses` could still add blocks. Called after the last block.
    fn close(&mut self) {
        let used = self.uses.close(&self.extents);
        if let Some(extent) = self.extents.get(used.extent) {
            self.sums[extent.area].used += used.bytes;
        }
    }

    /// Finds the size of the top chunk and the number of threads of each arena.
    fn tops(&mut self, all_known: bool) {
        let mut states: Vec<(usize, glibc::GlibcArena)> = Vec::new();
        let arenas = &self.arenas;
        for arena in arenas {
            states.extend(glibc::state(self.process, arena.address).map(|it| (arena.area, it)));
        }
        // All arenas are linked in a ring. The arena in this ring that is in no heap is the main
        // arena, which lies in the data of the C library.
        let is_arena = |at: u64| arenas.iter().any(|arena| arena.address == at);
        let main = states.iter().map(|(_, state)| state.next).find(|next| !is_arena(*next));
        states.extend(main.and_then(|at| glibc::state(self.process, at)).map(|it| (0, it)));
        for (area, state) in &states {
            let held = self.extents.iter().filter(|it| it.area == *area);
            let ends = held.map(|it| it.range.clone());
            if let Some(top) = glibc::top(self.process, state.top, ends) {
                let sum = &mut self.sums[*area];
                sum.top = Some(top);
                sum.threads = Some(state.threads).filter(|_| state.system <= sum.held);
            }
        }
        let first = self.extents.iter().rfind(|it| it.area == 0 && self.sums[0].parts == 1);
        if let (Some(main), true, Some(None)) =
            (first, all_known, self.sums.first().map(|sum| sum.top))
            && self.sums[0].kind == LogAreaKind::Main
        {
            self.sums[0].top = glibc::walk(self.process, main.last..main.range.end);
        }
    }

    fn finish(self, all_known: bool, attached: bool) -> LogLayout {
        let page = self.process.page;
        let mut areas: Vec<LogArea> = self
            .sums
            .iter()
            .filter(|sum| sum.held > 0)
            .map(|sum| LogArea {
                kind: sum.kind,
                number: sum.number,
                parts: sum.parts,
                held: sum.held,
                resident: Some(sum.resident)
                    .filter(|_| self.every == 0 || sum.kind != LogAreaKind::Mapped),
                live: (!attached)
                    .then_some(LogAmount { bytes: whole(sum.live.0), blocks: whole(sum.live.1) }),
                empty: (all_known && sum.kind != LogAreaKind::Mapped)
                    .then(|| sum.resident.saturating_sub(sum.used)),
                top: sum.top,
                gap: Some(sum.gap).filter(|_| all_known && sum.kind != LogAreaKind::Mapped),
                threads: sum.threads,
            })
            .collect();
        let order = |kind| match kind {
            LogAreaKind::Main => 0,
            LogAreaKind::Arena => 1,
            LogAreaKind::Mappings => 2,
            LogAreaKind::Mapped => 3,
        };
        areas.sort_by_key(|area| (order(area.kind), area.number));
        let empty: u64 = areas.iter().filter_map(|area| area.empty).sum();
        let pages = all_known.then(|| self.uses.finish(empty / page));
        LogLayout { time_ns: 0, areas, pages, unclear: self.unclear }
    }
}

#[expect(clippy::cast_precision_loss, reason = "sums of samples are no more exact")]
fn real(number: u64) -> f64 {
    number as f64
}

#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "sums of sizes are not below 0, and above 2^64 become the end of the range"
)]
fn whole(number: f64) -> u64 {
    number.round() as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Ranges of the set bits of a number; each bit represents a page of 1 byte.
    fn runs_of_bits(pages: u32) -> Vec<Range<u64>> {
        let mut runs: Vec<Range<u64>> = Vec::new();
        for at in (0..32).filter(|at| pages >> at & 1 != 0) {
            match runs.last_mut() {
                Some(last) if last.end == at => last.end = at + 1,
                _ => runs.push(at..at + 1),
            }
        }
        runs
    }

    fn bits_of_runs(runs: &[Range<u64>]) -> u32 {
        runs.iter().flat_map(Clone::clone).map(|at| 1 << at).sum()
    }

    #[test]
    fn the_runs_of_a_range_are_replaced_and_the_others_kept() {
        let mut random = 0x2545_f491_u32;
        let mut draw = || {
            random ^= random << 13;
            random ^= random >> 17;
            random ^= random << 5;
            random
        };
        for _ in 0..10_000 {
            let (before, after, ends) = (draw(), draw(), draw());
            let (one, other) = (ends % 33, ends / 64 % 33);
            let range = u64::from(one.min(other))..u64::from(one.max(other));
            let inside = range.clone().map(|at| 1 << at).sum::<u32>();
            let mut extent =
                BlockExtent { range: 0..32, area: 0, runs: runs_of_bits(before), last: 0 };
            extent.replace_runs(&range, runs_of_bits(after & inside));
            assert_eq!(bits_of_runs(&extent.runs), before & !inside | after & inside);
            assert!(extent.runs.is_sorted_by(|one, other| one.end <= other.start));
        }
    }
}
