//! `VmFlags` of mappings with huge pages, for readings of the page tables, which contain no flags.

use std::fs::File;
use std::time::Duration;

use pagewise_model::{Absent, Bytes, Mapping, Snapshot};

use crate::ProcRoot;
use crate::smaps::SmapsParser;
use crate::stream::stream;

/// Minimum amount of memory in base pages that the kernel walks in 1 ms, while it holds the mmap
/// lock of the process.
const WALKED_PER_MS: Bytes = Bytes::mib(64);
/// Maximum number of mappings of the process: the kernel needs some microseconds for each mapping,
/// even for an empty one.
const MAX_MAPPINGS: usize = 8192;

/// Adds the `smaps` entries of mappings with huge pages to a snapshot that was read from the page
/// tables. Nothing is added if a read is expected to hold the mmap lock for longer than
/// `max_pause`. Returns the longest time for which a read held the lock.
pub fn add(root: &ProcRoot, snapshot: &mut Snapshot, max_pause: Duration) -> Duration {
    let pid = snapshot.process.pid;
    let Ok(mappings) = &mut snapshot.mappings else { return Duration::ZERO };
    let is_wanted =
        |it: &Mapping| it.smaps.is_err() && it.anon_huge().is_ok_and(|huge| huge > Bytes::ZERO);
    let bound = u64::try_from(max_pause.as_millis()).unwrap_or(u64::MAX);
    let bound = Bytes(WALKED_PER_MS.0.saturating_mul(bound));
    let walked = |it: &Mapping| {
        let huge = it.anon_huge().unwrap_or_default();
        Bytes(it.rss().unwrap_or_default().0.saturating_sub(huge.0))
    };
    let is_cheap = mappings.len() <= MAX_MAPPINGS && mappings.iter().all(|it| walked(it) <= bound);
    if !is_cheap || !mappings.iter().any(is_wanted) {
        return Duration::ZERO;
    }
    let mut parser = SmapsParser::new(Absent::NotCollected("smaps was not read".into()));
    let Ok(file) = File::open(root.file(pid, "smaps")) else { return Duration::ZERO };
    let longest = stream(&file, |piece| parser.push(piece)).unwrap_or_default();
    for entry in parser.finish().mappings {
        let at = mappings.partition_point(|it| it.range.start < entry.range.start);
        let known = mappings.get_mut(at).filter(|it| it.range == entry.range && is_wanted(it));
        if let (Some(known), Ok(smaps)) = (known, entry.smaps) {
            known.smaps = Ok(smaps);
        }
    }
    Duration::from_nanos(longest.0)
}
