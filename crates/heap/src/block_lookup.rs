//! Live blocks of a running process, and the call stacks that allocated them, from the map that a
//! recorder in the process keeps. The map has a cell for each 16 or 32 bytes of addresses; a cell
//! contains the allocation site of the block that begins there.

use std::cmp::Reverse;
use std::collections::{BTreeMap, HashMap};
use std::fs;
use std::io;
use std::os::unix::ffi::OsStringExt;

use pagewise_heaplog::glibc_chunk::{self, HEADER, MIN_CHUNK, PREVIOUS_IN_USE, UNIT};
use pagewise_heaplog::recording::LogRecording;
use pagewise_heaplog::tables::live::{KIND, LEAF, NARROW, SPACE};
use pagewise_heaplog::tables::{collector, header};
use pagewise_model::heap_graph::{AllocationStacks, not_recorded};
use pagewise_model::traced::Frame;
use pagewise_model::watched::WatchedBlock;
use pagewise_model::{Absent, AddrRange, Mapping, Pid, Reading};
use pagewise_proc::{ProcRoot, elf, maps, target_file};
use pagewise_sys::remote;
use pagewise_trace::FileSymbols;

use crate::attach::own_number;
use crate::collector::Identity;
use crate::layout::live::{self, LiveMapEntry};
use crate::safe_call::is_recorder;
use crate::tables::{self, MappedTables, SharedTables};

/// Number of bytes of cells in one read, and maximum number of bytes of cells in one search.
const PIECE: u64 = 4 << 10;
const MAX_MAP_BYTES: u64 = 16 << 20;
/// Maximum number of allocation sites whose call stacks are resolved; the sites with the most
/// blocks come first.
const MAX_SITES: usize = 10_000;

/// Finds the block that contains an address. `None` if no recorder records the process, if the
/// address is in no recorded block, or if the data about the block is inconsistent.
pub fn block_at(root: &ProcRoot, pid: Pid, address: u64) -> Option<WatchedBlock> {
    RecordedProcess::open(root, pid)?.block_at(address)
}

/// The call stacks that allocated the blocks which begin at `starts`, in order of address.
///
/// # Errors
/// Returns the reason if no recorder records the process.
pub fn allocation_stacks(root: &ProcRoot, pid: Pid, starts: &[u64]) -> Reading<AllocationStacks> {
    let mut recorded = RecordedProcess::open(root, pid).ok_or_else(not_recorded)?;
    let sites = recorded.sites(starts);
    let asked = most_frequent(&sites);
    let stacks = recorded.call_stacks(&asked).unwrap_or_default();
    Ok(numbered(&sites, &asked, stacks))
}

/// Like [`allocation_stacks`], but uses the blocks that were live at the end of a recording, after
/// which the recorder left the process. If a newer block has the address of one of these blocks, it
/// is reported with the call stack of the older block.
///
/// # Errors
/// Returns the reason if the recording has no blocks.
pub fn stacks_of_recording(recording: &LogRecording, starts: &[u64]) -> Reading<AllocationStacks> {
    if recording.blocks.is_empty() {
        let why = "blocks and their call stacks: the recording has no blocks that were live at its end; `pagewise heap attach` \
                   stores them on Linux 6.7 or newer";
        return Err(Absent::NotCollected(why.into()));
    }
    let site = |start: &u64| {
        let at = recording.blocks.binary_search_by_key(start, |block| block.address).ok()?;
        Some(recording.blocks[at].site)
    };
    let sites: Vec<Option<u32>> = starts.iter().map(site).collect();
    let asked = most_frequent(&sites);
    let code = LogRecording {
        modules: recording.modules.clone(),
        places: recording.places.clone(),
        nodes: recording.nodes.clone(),
        sites: recording.sites.clone(),
        ..LogRecording::default()
    };
    let mut symbols = FileSymbols::default();
    let stacks = pagewise_heapread::stacks(code, &asked, &mut symbols, &mut Vec::new());
    Ok(numbered(&sites, &asked, stacks))
}

/// The sites with the most blocks, at most [`MAX_SITES`].
fn most_frequent(sites: &[Option<u32>]) -> Vec<u32> {
    let mut counts: BTreeMap<u32, u64> = BTreeMap::new();
    for site in sites.iter().flatten() {
        *counts.entry(*site).or_default() += 1;
    }
    let mut sites: Vec<(u32, u64)> = counts.into_iter().collect();
    sites.sort_by_key(|&(_, count)| Reverse(count));
    sites.into_iter().map(|(site, _)| site).take(MAX_SITES).collect()
}

/// Assigns equal call stacks of several sites the same number. An empty call stack is unknown.
fn numbered(sites: &[Option<u32>], asked: &[u32], stacks: Vec<Vec<Frame>>) -> AllocationStacks {
    let mut found = AllocationStacks::default();
    let mut of_stacks: HashMap<Vec<Frame>, u32> = HashMap::new();
    let mut of_sites: HashMap<u32, u32> = HashMap::new();
    let known = asked.iter().zip(stacks).filter(|(_, stack)| !stack.is_empty());
    for (number, (site, stack)) in (0..).zip(known) {
        of_sites.insert(*site, *of_stacks.entry(stack.clone()).or_insert(number));
        found.stacks.push(stack);
    }
    let of_block = |site: &Option<u32>| site.and_then(|site| of_sites.get(&site).copied());
    found.of_blocks = sites.iter().map(of_block).collect();
    found
}

/// A process whose heap is being recorded.
#[derive(Debug)]
struct RecordedProcess {
    process: LookupProcess,
    mappings: Vec<Mapping>,
    tables: SharedTables<MappedTables>,
    cells: CellMap,
    /// Path of the program.
    program: Vec<u8>,
}

impl RecordedProcess {
    fn open(root: &ProcRoot, pid: Pid) -> Option<RecordedProcess> {
        let mappings = maps::parse(&root.read(pid, "maps").ok()?).mappings;
        let tables = shared_tables(pid, &mappings)?;
        if !is_recording(root, pid, &tables).ok()? {
            return None;
        }
        let map = tables.head(header::LIVE_MAP).ok()?;
        let program = fs::read_link(root.file(pid, "exe")).ok()?.into_os_string().into_vec();
        let cells = CellMap { table: map & !KIND, is_narrow: map & KIND == NARROW };
        let process = LookupProcess { pid: pid.0 };
        Some(RecordedProcess { process, mappings, tables, cells, program })
    }

    fn block_at(mut self, address: u64) -> Option<WatchedBlock> {
        let mapping = self.mappings.iter().find(|mapping| mapping.range.contains(address))?.range;
        let found = self.process.find(self.cells, mapping, address);
        let halves = || self.process.find(self.cells.halves()?, mapping, address);
        let found = found.or_else(halves)?;
        let frames = self.call_stacks(&[found.site])?.into_iter().next()?;
        Some(WatchedBlock { start: found.start, size: found.size, room: found.room, frames })
    }

    /// The allocation sites of the blocks that begin at `starts`, which are in ascending order.
    fn sites(&self, starts: &[u64]) -> Vec<Option<u32>> {
        let mut wholes = CellPiece::new(self.process, self.cells);
        let mut halves = self.cells.halves().map(|cells| CellPiece::new(self.process, cells));
        let mut entry = |start| {
            let found = wholes.entry_at(start);
            found.or_else(|| halves.as_mut().and_then(|halves| halves.entry_at(start)))
        };
        starts.iter().map(|&start| entry(start).map(|entry| entry.site)).collect()
    }

    /// The call stacks of sites.
    fn call_stacks(&mut self, sites: &[u32]) -> Option<Vec<Vec<Frame>>> {
        let new = self.tables.news(&self.program).ok()?;
        let recording = LogRecording {
            modules: new.modules,
            places: new.places,
            nodes: new.nodes,
            sites: new.sites,
            ..LogRecording::default()
        };
        let mut symbols = FileSymbols::default();
        Some(pagewise_heapread::stacks(recording, sites, &mut symbols, &mut Vec::new()))
    }
}

fn shared_tables(pid: Pid, mappings: &[Mapping]) -> Option<SharedTables<MappedTables>> {
    SharedTables::open_mapped(pid.0, tables::mapping(mappings)?).ok()
}

/// Memory of a recorder in a process: its tables, its library, and memory that it has mapped.
/// Addresses of blocks in this memory are not pointers of the program.
pub fn recorder_memory(root: &ProcRoot, pid: Pid) -> Vec<AddrRange> {
    let Ok(text) = root.read(pid, "maps") else { return Vec::new() };
    let mappings = maps::parse(&text).mappings;
    let own = shared_tables(pid, &mappings).and_then(|tables| tables.own().ok()?);
    let own = own.unwrap_or_default().into_iter();
    let own = own.map(|(start, length)| AddrRange { start, end: start.saturating_add(length) });
    let shared = tables::mapping(&mappings).map(|mapping| mapping.range);
    own.chain(shared).chain(library(root, pid, &mappings)).collect()
}

/// The address range of the recorder's library, including its `.bss`, which the kernel may have
/// merged with other anonymous memory. Excludes the `.bss` if the library's file is gone.
fn library(root: &ProcRoot, pid: Pid, mappings: &[Mapping]) -> Option<AddrRange> {
    let mut parts = mappings.iter().filter(|mapping| is_recorder(&mapping.name));
    let first = parts.next()?;
    let of_parts = parts.next_back().unwrap_or(first).range.end;
    let end = library_length(root, pid, first).and_then(|it| first.range.start.checked_add(it));
    Some(AddrRange { start: first.range.start, end: end.unwrap_or(of_parts) })
}

/// Number of bytes from the start of the first segment of a library to the end of its last segment.
fn library_length(root: &ProcRoot, pid: Pid, first: &Mapping) -> Option<u64> {
    let file = target_file::open_mapped(root, pid, first).ok()?;
    let segments = elf::of_file(&file, false).ok()?.segments;
    segments.last()?.range.end.checked_sub(segments.first()?.range.start)
}

/// True if the recorder of a process still records. The tables may stay in the process after a
/// recording; they then no longer change.
fn is_recording(
    root: &ProcRoot,
    pid: Pid,
    tables: &SharedTables<MappedTables>,
) -> io::Result<bool> {
    let who = [
        tables.head(collector::PID)?,
        tables.head(collector::STARTED)?,
        tables.head(collector::NAMESPACE)?,
    ];
    let lives = Identity::told(who).is_some_and(|who| who.may_live(&ProcRoot::live()));
    // Until a forked child begins to record, it has the tables of its parent.
    let is_its_own = own_number(root, pid.0) == Some(tables.head(header::PID)?);
    Ok(lives && is_its_own && tables.head(header::TROUBLE)? == 0)
}

/// A block that was found in the map.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct LookedUpBlock {
    start: u64,
    /// The requested size; `size` or `room` (the usable size) is known.
    size: Option<u64>,
    room: Option<u64>,
    site: u32,
}

/// The cells of live blocks in a process.
#[derive(Clone, Copy, Debug)]
struct CellMap {
    /// Address of the table of leaves.
    table: u64,
    /// True if the cells have the format for blocks of glibc.
    is_narrow: bool,
}

impl CellMap {
    /// Binary logarithm of the number of bytes of memory that a cell covers, and number of bytes of
    /// a cell.
    const fn cell(self) -> (u32, u64) {
        if self.is_narrow { (5, 4) } else { (4, 8) }
    }

    /// Map of the blocks whose addresses are not multiples of 16, which glibc never returns.
    fn halves(self) -> Option<CellMap> {
        let table = self.table.checked_add(8 << (SPACE - LEAF)).filter(|_| !self.is_narrow)?;
        Some(CellMap { table, ..self })
    }

    fn entry(self, index: u64, cell: &[u8]) -> Option<LiveMapEntry> {
        let read = if self.is_narrow { live::narrow } else { live::wide };
        read(index << self.cell().0, cell)
    }
}

/// Cache of the cells that were read last, for lookups in order of address.
#[derive(Debug)]
struct CellPiece {
    process: LookupProcess,
    map: CellMap,
    /// Index of the first cached cell.
    first: Option<u64>,
    bytes: Vec<u8>,
}

impl CellPiece {
    const fn new(process: LookupProcess, map: CellMap) -> CellPiece {
        CellPiece { process, map, first: None, bytes: Vec::new() }
    }

    /// The block that begins at an address.
    fn entry_at(&mut self, start: u64) -> Option<LiveMapEntry> {
        let (shift, width) = self.map.cell();
        let (index, count) = (start >> shift, PIECE / width);
        let first = index - index % count;
        if self.first != Some(first) {
            let bytes = self.process.cells(self.map, first, first + count);
            self.bytes = bytes.unwrap_or_default();
            self.first = Some(first);
        }
        let at = usize::try_from((index - first) * width).ok()?;
        let cell = self.bytes.get(at..)?.get(..usize::try_from(width).ok()?)?;
        self.map.entry(index, cell).filter(|entry| entry.address == start)
    }
}

#[derive(Clone, Copy, Debug)]
struct LookupProcess {
    pid: u32,
}

impl LookupProcess {
    fn word(self, address: u64) -> Option<u64> {
        let read = remote::read_each::<8>(self.pid, &[address]).ok()?;
        read.first()?.map(u64::from_ne_bytes)
    }

    fn read(self, address: u64, length: u64) -> io::Result<Vec<u8>> {
        let mut bytes = vec![0; usize::try_from(length).unwrap_or(0)];
        let range = address..address.saturating_add(length);
        let got = remote::read(self.pid, std::slice::from_ref(&range), &mut bytes)?;
        bytes.truncate(got);
        Ok(bytes)
    }

    /// Reads the cells of one leaf from index `begin` up to `end`. Empty if the leaf does not
    /// exist, `None` if the leaf cannot be read.
    fn cells(self, map: CellMap, begin: u64, end: u64) -> Option<Vec<u8>> {
        let (shift, width) = map.cell();
        let number = begin >> (LEAF - shift);
        if number >> (SPACE - LEAF) != 0 {
            return None;
        }
        let leaf = self.word(map.table.checked_add(number * 8)?)?;
        if leaf == 0 {
            return Some(Vec::new());
        }
        let place = leaf.checked_add((begin - (number << (LEAF - shift))) * width)?;
        self.read(place, (end - begin) * width).ok()
    }

    /// Finds the block of a mapping that contains an address. Only the nearest block that begins at
    /// or before the address is considered.
    fn find(self, map: CellMap, mapping: AddrRange, address: u64) -> Option<LookedUpBlock> {
        let (shift, width) = map.cell();
        // Exclusive end of the cells that are still to be searched.
        let mut end = (address >> shift) + 1;
        let first = mapping.start >> shift;
        let mut read = 0;
        while end > first && read < MAX_MAP_BYTES {
            let leaf_start = (end - 1) >> (LEAF - shift) << (LEAF - shift);
            let begin = first.max(leaf_start).max(end.saturating_sub(PIECE / width));
            let bytes = self.cells(map, begin, end)?;
            let cells = bytes.chunks_exact(usize::try_from(width).ok()?);
            let cells: Vec<(u64, &[u8])> = (begin..end).zip(cells).collect();
            for (at, cell) in cells.into_iter().rev() {
                if cell.iter().any(|&byte| byte != 0) {
                    match self.block(map.entry(at, cell)?, map.is_narrow, mapping)? {
                        // The block begins above the address.
                        found if found.start > address => {}
                        found => {
                            let length = found.size.or(found.room)?;
                            let ends = found.start.saturating_add(length);
                            return Some(found).filter(|_| address < ends);
                        }
                    }
                }
            }
            read += PIECE;
            end = begin;
        }
        None
    }

    /// Decodes the block of a cell.
    fn block(self, raw: LiveMapEntry, is_glibc: bool, mapping: AddrRange) -> Option<LookedUpBlock> {
        let LiveMapEntry { address: start, site, slack, size } = raw;
        if !is_glibc {
            return Some(LookedUpBlock { start, size: Some(size), room: None, site });
        }
        let room = self.room(start, mapping)?;
        // For larger differences between size and usable size the recorder stores the size in a
        // separate table.
        let size = match slack {
            Some(slack) => Some(room.checked_sub(slack.into())?),
            None => None,
        };
        Some(LookedUpBlock { start, size, room: Some(room), site })
    }

    /// Usable size of a block of the C library that begins at `start`; `None` unless its header and
    /// the header of the following block are valid.
    fn room(self, start: u64, mapping: AddrRange) -> Option<u64> {
        let chunk = start.checked_sub(HEADER).filter(|chunk| *chunk >= mapping.start)?;
        let head = self.word(start - 8)?;
        let (size, is_mapped) = (glibc_chunk::size(head), glibc_chunk::is_mapped(head));
        let end = chunk.checked_add(size).filter(|end| *end <= mapping.end)?;
        if size < MIN_CHUNK || !size.is_multiple_of(UNIT) {
            return None;
        }
        if is_mapped {
            return Some(glibc_chunk::room(start, head));
        }
        // The last chunk of a heap is its top chunk, which is never allocated. So another chunk
        // follows each allocated chunk.
        let next = self.word(end + 8).filter(|_| end < mapping.end)?;
        let makes_sense =
            next & PREVIOUS_IN_USE != 0 && glibc_chunk::size(next).is_multiple_of(UNIT);
        makes_sense.then_some(glibc_chunk::room(start, head))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A table of leaves in this process, with one leaf for all addresses below 128 MiB.
    fn table(leaf: u64) -> Vec<u64> {
        let mut table = vec![0; 2 << (SPACE - LEAF)];
        table[0] = leaf;
        table
    }

    const US: fn() -> LookupProcess = || LookupProcess { pid: std::process::id() };

    #[test]
    fn a_site_is_that_of_the_block_that_begins_at_the_address() {
        let mut leaf = vec![0_u32; 1 << (LEAF - 5)];
        // A block at 0x40 of site 6, and one at 0x8010 of site 8.
        leaf[2] = 7 << 6;
        leaf[0x8010 >> 5] = 9 << 6 | 1 << 31;
        let table = table(leaf.as_ptr().addr() as u64);
        let map = CellMap { table: table.as_ptr().addr() as u64, is_narrow: true };
        let mut piece = CellPiece::new(US(), map);
        let mut site = |start| piece.entry_at(start).map(|entry| entry.site);
        assert_eq!(site(0x40), Some(6));
        assert_eq!([site(0x50), site(0x60)], [None, None]);
        assert_eq!(site(0x8010), Some(8));
        // Addresses without a leaf, and beyond the last leaf.
        assert_eq!([site(1 << 30), site(u64::MAX)], [None, None]);
    }

    #[test]
    fn blocks_of_other_allocators_may_begin_between_multiples_of_16() {
        let cell = |site: u64| (site + 1) << 38 | 8;
        let (mut leaf, mut halves) = (vec![0_u64; 1 << (LEAF - 4)], vec![0_u64; 1 << (LEAF - 4)]);
        leaf[4] = cell(6);
        halves[4] = cell(7) | 1 << 63;
        let mut table = table(leaf.as_ptr().addr() as u64);
        table[1 << (SPACE - LEAF)] = halves.as_ptr().addr() as u64;
        let map = CellMap { table: table.as_ptr().addr() as u64, is_narrow: false };
        let site =
            |map: CellMap, start| CellPiece::new(US(), map).entry_at(start).map(|entry| entry.site);
        assert_eq!([site(map, 0x40), site(map, 0x48)], [Some(6), None]);
        let halves = map.halves().unwrap();
        assert_eq!([site(halves, 0x40), site(halves, 0x48)], [None, Some(7)]);
    }

    #[test]
    fn leaves_that_are_not_mapped_have_no_blocks() {
        for leaf in [8, u64::MAX - 8] {
            let table = table(leaf);
            let address = table.as_ptr().addr() as u64;
            for is_narrow in [true, false] {
                let map = CellMap { table: address, is_narrow };
                assert_eq!(CellPiece::new(US(), map).entry_at(0x40), None);
            }
        }
        let map = CellMap { table: u64::MAX - 8, is_narrow: false };
        assert!(map.halves().is_none());
        assert_eq!(CellPiece::new(US(), map).entry_at(0x7fff_ffff_fff0), None);
    }

    #[test]
    fn equal_call_stacks_get_one_number_and_empty_ones_none() {
        let frame = |name: &str| Frame {
            function: Some(name.into()),
            module: None,
            offset: 0,
            line: None,
            inlined: false,
        };
        let sites = [Some(3), Some(5), None, Some(9), Some(5), Some(7)];
        let asked = most_frequent(&sites);
        assert_eq!(asked, [5, 3, 7, 9]);
        let stacks = vec![vec![frame("a")], vec![frame("b")], vec![], vec![frame("a")]];
        let found = numbered(&sites, &asked, stacks);
        let name = |number: u32| found.stacks[number as usize][0].function.clone().unwrap();
        let names: Vec<Option<String>> =
            found.of_blocks.iter().map(|number| number.map(name)).collect();
        let names: Vec<Option<&str>> = names.iter().map(Option::as_deref).collect();
        assert_eq!(names, [Some("b"), Some("a"), None, Some("a"), Some("a"), None]);
        assert_eq!(found.of_blocks[1], found.of_blocks[3]);
    }
}
