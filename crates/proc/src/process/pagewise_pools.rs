//! The table of counters of the pools of pagewise's allocators, read from another process.
//! `watch::table::PoolTable` of `pagewise-alloc` defines its layout.

use std::ops::Range;

use pagewise_model::pagewise_pools::{Point, RegisteredPool, Registry};
use pagewise_model::{Absent, AddrRange, Bytes, Mapping, Name, Pid, Reading};
use pagewise_sys::remote;

use crate::capture::outline;
use crate::{ProcError, ProcRoot};

/// Name of the table in `maps`.
const NAME: &[u8] = b"/memfd:pagewise-pools (deleted)";

/// First word of a table: `PWPOOLS` and the version.
const MAGIC: u64 = u64::from_le_bytes(*b"PWPOOLS\x01");

const HEADER: usize = 64;
/// Layout of an entry: byte ranges and byte offsets of its fields, numbers of array elements
/// (`_COUNT`), and element sizes in bytes.
const KIND: Range<usize> = 8..24;
const LABEL: Range<usize> = 24..56;
const COUNTERS: usize = 56;
const SIZES: usize = 128;
const SIZES_COUNT: usize = 24;
const SAMPLES_USED: usize = 336;
const SAMPLES: usize = 512;
const SAMPLES_COUNT: usize = 64;
const SAMPLE: usize = 24;
const RANGES_LOST: usize = 344;
const RANGES: usize = SAMPLES + SAMPLES_COUNT * SAMPLE;
const RANGES_COUNT: usize = 128;
const RANGE: usize = 16;
const ENTRY: usize = RANGES + RANGES_COUNT * RANGE;

/// The states of an entry.
const LIVE: u32 = 1;
const ENDED: u32 = 2;

/// Maximum number of entries of a valid table.
const MAX_ENTRIES: usize = 1 << 16;

/// The pools of a running process.
///
/// # Errors
/// [`ProcError::NoSuchProcess`], [`ProcError::NotPermitted`] and others of reading a process. The
/// inner reading is absent where the process has no table, or one of another version.
pub fn read(root: &ProcRoot, pid: Pid) -> Result<Reading<Registry>, ProcError> {
    let (process, mappings) = outline(root, pid)?;
    let found = match mappings {
        Ok(mappings) => read_registry(root, pid, &mappings)?,
        Err(absent) => Err(absent),
    };
    Ok(found.map(|found| Registry { process: process.name, ..found }))
}

/// The pools of a process with these mappings. The result has no process name.
///
/// # Errors
/// As [`read`].
pub fn read_registry(
    root: &ProcRoot,
    pid: Pid,
    mappings: &[Mapping],
) -> Result<Reading<Registry>, ProcError> {
    let Some(table) = table_of(mappings).filter(|_| root.is_live()) else {
        let why = "it has no pools of pagewise's that count: they do with the feature `stats`";
        return Ok(Err(Absent::NotCollected(why.into())));
    };
    let explain = |error| root.explain(pid, &root.file(pid, "maps"), error);
    let AddrRange { start, end } = table.range;
    let header = piece(pid, start..start + HEADER as u64).map_err(explain)?;
    let Some(shape) = RegistryShape::from_header(&header, end - start) else {
        let why = "its table of pools is of another version of pagewise";
        return Ok(Err(Absent::NotSupported(why.into())));
    };
    let first = start + HEADER as u64;
    let length = (shape.used * shape.entry_size) as u64;
    let entries = piece(pid, first..first + length).map_err(explain)?;
    // The entries were read by PID: check that the PID still belongs to the same process.
    root.check(pid)?;
    let pools = shape.pools(&entries);
    Ok(Ok(Registry { pid, process: Name::default(), pools, lost: shape.lost }))
}

/// The mapping of the table, if the process has one.
pub fn table_of(mappings: &[Mapping]) -> Option<&Mapping> {
    mappings.iter().find(|mapping| mapping.name.as_bytes() == NAME)
}

/// Returns the pools of a table whose bytes are known; `None` for a table of another version.
pub fn parse_table(table: &[u8]) -> Option<Vec<RegisteredPool>> {
    let shape = RegistryShape::from_header(table, table.len() as u64)?;
    let entries = table.get(HEADER..HEADER + shape.used * shape.entry_size)?;
    Some(shape.pools(entries))
}

fn piece(pid: Pid, range: Range<u64>) -> std::io::Result<Vec<u8>> {
    let length = usize::try_from(range.end.saturating_sub(range.start)).unwrap_or(0);
    let mut bytes = vec![0; length];
    if length > 0 {
        let read = remote::read(pid.0, &[range], &mut bytes)?;
        bytes.truncate(read);
    }
    Ok(bytes)
}

/// Content of the header.
#[derive(Debug, PartialEq, Eq)]
struct RegistryShape {
    entry_size: usize,
    used: usize,
    lost: u32,
}

impl RegistryShape {
    fn pools(&self, entries: &[u8]) -> Vec<RegisteredPool> {
        entries.chunks_exact(self.entry_size).filter_map(parse).collect()
    }

    /// `None` for data that is not a table, or does not fit into the mapping.
    fn from_header(header: &[u8], mapping: u64) -> Option<RegistryShape> {
        let magic = u64_at(header, 0)?;
        let [entry_size, _, used, lost] = [8, 12, 16, 20].map(|at| u32_at(header, at));
        let entry_size = usize::try_from(entry_size?).ok()?;
        let used = usize::try_from(used?).ok()?;
        let fits = used <= MAX_ENTRIES
            && entry_size <= 1 << 16
            && (HEADER + used * entry_size) as u64 <= mapping;
        (magic == MAGIC && entry_size >= ENTRY && fits).then_some(RegistryShape {
            entry_size,
            used,
            lost: lost?,
        })
    }
}

/// Reads one entry; `None` if the entry was never used or is being initialized.
fn parse(entry: &[u8]) -> Option<RegisteredPool> {
    let state = u32_at(entry, 0)?;
    if state != LIVE && state != ENDED {
        return None;
    }
    let counter = |at: usize| u64_at(entry, COUNTERS + at * 8);
    let size = |at: usize| u64_at(entry, SIZES + at * 8);
    let points = u64_at(entry, SAMPLES_USED)?.min(SAMPLES_COUNT as u64);
    let point = |at: usize| {
        let word = |word: usize| u64_at(entry, SAMPLES + at * SAMPLE + word * 8);
        Some(Point { requests: word(0)?, live: Bytes(word(1)?), held: Bytes(word(2)?) })
    };
    let range = |at: usize| {
        let word = |word: usize| u64_at(entry, RANGES + at * RANGE + word * 8);
        Some(AddrRange { start: word(0)?, end: word(1)? })
    };
    let ranges: Vec<AddrRange> = (0..RANGES_COUNT).map(range).collect::<Option<_>>()?;
    let [requests, requested, returned, peak, held] = [0, 1, 2, 3, 4].map(counter);
    let live = requested?.wrapping_sub(returned?);
    // The current counters are the last point of the series, and can be the peak.
    let now = Point { requests: requests?, live: Bytes(live), held: Bytes(held?) };
    let past: Vec<Point> = (0..usize::try_from(points).ok()?).map(point).collect::<Option<_>>()?;
    Some(RegisteredPool {
        kind: text(&entry[KIND]),
        name: text(&entry[LABEL]),
        lives: state == LIVE,
        requests: requests?,
        requested: Bytes(requested?),
        returned: Bytes(returned?),
        peak_live: Bytes(peak?.max(live)),
        held: Bytes(held?),
        peak_held: Bytes(counter(5)?),
        blocks_taken: counter(6)?,
        blocks_returned: counter(7)?,
        slow_paths: counter(8)?,
        sizes: (0..SIZES_COUNT).map(size).collect::<Option<_>>()?,
        series: past
            .into_iter()
            .filter(|point| point.requests < now.requests)
            .chain([now])
            .collect(),
        ranges: ranges.into_iter().filter(|range| range.start < range.end).collect(),
        ranges_lost: u64_at(entry, RANGES_LOST)?,
    })
}

/// Text up to the first NUL.
fn text(bytes: &[u8]) -> Name {
    Name::new(bytes.split(|byte| *byte == 0).next().unwrap_or_default())
}

fn u64_at(bytes: &[u8], at: usize) -> Option<u64> {
    let word = bytes.get(at..at + 8)?;
    Some(u64::from_ne_bytes(word.try_into().ok()?))
}

fn u32_at(bytes: &[u8], at: usize) -> Option<u32> {
    let word = bytes.get(at..at + 4)?;
    Some(u32::from_ne_bytes(word.try_into().ok()?))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn header(magic: u64, entry_size: u32, used: u32) -> Vec<u8> {
        let mut header = magic.to_ne_bytes().to_vec();
        for word in [entry_size, 1024, used, 3] {
            header.extend(word.to_ne_bytes());
        }
        header
    }

    #[test]
    fn a_table_is_one_by_its_first_word_and_fits_its_mapping() {
        let shape = |entry_size, used, mapping| {
            RegistryShape::from_header(&header(MAGIC, entry_size, used), mapping)
        };
        assert_eq!(
            shape(4096, 2, 8256),
            Some(RegistryShape { entry_size: 4096, used: 2, lost: 3 })
        );
        assert_eq!(shape(4096, 2, 8255), None, "it is cut off");
        assert_eq!(shape(2048, 2, 1 << 20), None, "entries are smaller than those we know");
        assert_eq!(shape(u32::MAX, u32::MAX, u64::MAX), None);
        assert_eq!(RegistryShape::from_header(&header(MAGIC + (1 << 56), 4096, 2), 1 << 20), None);
        assert_eq!(RegistryShape::from_header(&[], 1 << 20), None);
    }

    proptest! {
        #[test]
        fn no_bytes_make_it_panic(mut entry in proptest::collection::vec(any::<u8>(), ENTRY), state in 0..4_u32) {
            entry[..4].copy_from_slice(&state.to_ne_bytes());
            let pool = parse(&entry);
            prop_assert_eq!(pool.is_some(), state == LIVE || state == ENDED);
            if let Some(pool) = pool {
                prop_assert!(pool.series.len() <= SAMPLES_COUNT + 1);
                let _ = pool.live();
            }
            let _ = parse(&entry[..entry.len() / 2]);
        }
    }
}
