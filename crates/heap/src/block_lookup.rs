//! The block that an address of a running process lies in now, where a recorder in the process
//! keeps a map of them.

use std::fs;
use std::io;
use std::os::unix::ffi::OsStringExt;

use pagewise_heaplog::glibc_chunk::{self, HEADER, MIN_CHUNK, PREVIOUS_IN_USE, UNIT};
use pagewise_heaplog::recording::LogRecording;
use pagewise_heaplog::tables::header;
use pagewise_heaplog::tables::live::{KIND, LEAF, NARROW, SPACE};
use pagewise_model::watched::WatchedBlock;
use pagewise_model::{AddrRange, Pid};
use pagewise_proc::target_file::{self, FileId};
use pagewise_proc::{ProcRoot, maps};
use pagewise_sys::remote;
use pagewise_trace::FileSymbols;

use crate::layout::live::{self, LiveMapEntry};
use crate::tables::{self, SharedTables};

/// Number of bytes of cells that are read at a time, and at most.
const PIECE: u64 = 4 << 10;
const MAX_MAP_BYTES: u64 = 16 << 20;

/// The block at an address; `None` without a recorder, outside of blocks, and if the block is
/// uncertain.
pub fn block_at(root: &ProcRoot, pid: Pid, address: u64) -> Option<WatchedBlock> {
    let mappings = maps::parse(&root.read(pid, "maps").ok()?).mappings;
    let range = tables::mapping(&mappings)?;
    let tables = mappings.iter().find(|mapping| mapping.range == range)?;
    let file = target_file::open_range(root, pid, range, FileId::of_mapping(tables)).ok()?;
    let mut tables = SharedTables::open(file).ok()?;
    let map = tables.head(header::LIVE_MAP).ok()?;
    let mapping = mappings.iter().find(|mapping| mapping.range.contains(address))?.range;
    let process = LookupProcess { pid: pid.0 };
    let is_narrow = map & KIND == NARROW;
    let found = process.find(map & !KIND, is_narrow, mapping, address);
    // Small blocks of other allocators that begin between multiples of 16 are in the other half of
    // the table.
    let other = || {
        let other = (map & !KIND).checked_add(8 << (SPACE - LEAF))?;
        process.find(other, false, mapping, address)
    };
    let found = found.or_else(|| if is_narrow { None } else { other() })?;
    let path = fs::read_link(root.file(pid, "exe")).ok()?.into_os_string().into_vec();
    let new = tables.news(&path).ok()?;
    let recording = LogRecording {
        modules: new.modules,
        places: new.places,
        nodes: new.nodes,
        sites: new.sites,
        ..LogRecording::default()
    };
    let mut symbols = FileSymbols::default();
    let stacks = pagewise_heapread::stacks(recording, &[found.site], &mut symbols, &mut Vec::new());
    let frames = stacks.into_iter().next()?;
    Some(WatchedBlock { start: found.start, size: found.size, room: found.room, frames })
}

/// A block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct LookedUpBlock {
    start: u64,
    /// One of these is known.
    size: Option<u64>,
    room: Option<u64>,
    site: u32,
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

    /// The nearest block that begins at an address or before it in a mapping, if it reaches so far.
    fn find(
        self,
        map: u64,
        is_glibc: bool,
        mapping: AddrRange,
        address: u64,
    ) -> Option<LookedUpBlock> {
        let (shift, width) = if is_glibc { (5, 4) } else { (4, 8) };
        // Behind the last cell to look at.
        let mut end = (address >> shift) + 1;
        let first = mapping.start >> shift;
        let mut read = 0;
        while end > first && read < MAX_MAP_BYTES {
            let in_leaf = LEAF - shift;
            let number = (end - 1) >> in_leaf;
            let begin = first.max(number << in_leaf).max(end.saturating_sub(PIECE / width));
            if number >> (SPACE - LEAF) != 0 {
                return None;
            }
            let leaf = self.word(map.checked_add(number * 8)?)?;
            if leaf != 0 {
                let place = leaf.checked_add((begin - (number << in_leaf)) * width)?;
                let bytes = self.read(place, (end - begin) * width).ok()?;
                let cells = bytes.chunks_exact(usize::try_from(width).ok()?);
                let cells: Vec<(u64, &[u8])> = (begin..end).zip(cells).collect();
                for (at, cell) in cells.into_iter().rev() {
                    if cell.iter().any(|&byte| byte != 0) {
                        let read = if is_glibc { live::narrow } else { live::wide };
                        match self.block(read(at << shift, cell)?, is_glibc, mapping)? {
                            // It begins behind the address.
                            found if found.start > address => continue,
                            found => {
                                let length = found.size.or(found.room)?;
                                let ends = found.start.saturating_add(length);
                                return Some(found).filter(|_| address < ends);
                            }
                        }
                    }
                }
            }
            read += PIECE;
            end = begin;
        }
        None
    }

    /// The block of a cell.
    fn block(self, raw: LiveMapEntry, is_glibc: bool, mapping: AddrRange) -> Option<LookedUpBlock> {
        let LiveMapEntry { address: start, site, slack, size } = raw;
        if !is_glibc {
            return Some(LookedUpBlock { start, size: Some(size), room: None, site });
        }
        let room = self.room(start, mapping)?;
        // For larger differences between size and usable size the recorder stores the size
        // elsewhere.
        let size = match slack {
            Some(slack) => Some(room.checked_sub(slack.into())?),
            None => None,
        };
        Some(LookedUpBlock { start, size, room: Some(room), site })
    }

    /// Usable size of a block of the C library that begins here; `None` unless its header and the
    /// following one are valid.
    fn room(self, start: u64, mapping: AddrRange) -> Option<u64> {
        let chunk = start.checked_sub(HEADER).filter(|chunk| *chunk >= mapping.start)?;
        let head = self.word(start - 8)?;
        let (size, is_mapped) = (glibc_chunk::size(head), glibc_chunk::is_mapped(head));
        let end = chunk.checked_add(size).filter(|end| *end <= mapping.end)?;
        if size < MIN_CHUNK || !size.is_multiple_of(UNIT) {
            return None;
        }
        if is_mapped {
            return Some(glibc_chunk::room(head));
        }
        // The last chunk of a heap is never an allocated one, so another follows.
        let next = self.word(end + 8).filter(|_| end < mapping.end)?;
        let makes_sense =
            next & PREVIOUS_IN_USE != 0 && glibc_chunk::size(next).is_multiple_of(UNIT);
        makes_sense.then_some(glibc_chunk::room(head))
    }
}
