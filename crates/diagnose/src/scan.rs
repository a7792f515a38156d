//! The decision on a heap scan, which is the most expensive instrument.

use std::time::Duration;

use pagewise_model::evidence::ActivityPoint;
use pagewise_model::heap_scan::WalkedHeap;
use pagewise_model::{Absent, Bytes, Mapping};
use pagewise_scan::sample::is_private_memory;

use crate::ScanBounds;

/// Minimum size of the private memory for which the reachability of its blocks matters.
const LARGE: Bytes = Bytes::mib(24);
/// Minimum growth for which the reachability of smaller private memory matters.
const GROWTH: Bytes = Bytes(256 << 10);
/// CPU time per GiB to copy and walk the heap, search its pointers, and compute dominators, for
/// blocks of 1 KiB.
const CPU_PER_GIB: Duration = Duration::from_millis(1500);
/// CPU time of each mapping that is copied: two walks of its page tables, the copy of a range, and
/// the search for pointers in this range.
const CPU_PER_MAPPING: Duration = Duration::from_micros(12);
/// Pause of a stopped process per GiB of its private memory.
const PAUSE_PER_GIB: Duration = Duration::from_millis(150);
/// Pause for stopping the process and letting it continue, without the copy.
const PAUSE_OF_STOP: Duration = Duration::from_millis(1);

/// Bounds of the first and of the second attempt at a heap scan.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ScanChoice {
    pub(crate) first: ScanBounds,
    /// The bounds of a second attempt if the first scan is refused; `None` without a second
    /// attempt.
    pub(crate) otherwise: Option<ScanBounds>,
}

/// Chooses the bounds of a scan; `None` if reachability does not matter.
///
/// # Errors
/// The scan would take more than the CPU time that remains in the budget.
pub(crate) fn decide(
    mappings: &[Mapping],
    activity: &[ActivityPoint],
    cpu_left: Duration,
    pause: Duration,
) -> Result<Option<ScanChoice>, Absent> {
    let private = private_memory(mappings);
    let growth = match activity {
        [first, .., last] => {
            let ends = last.anonymous.as_ref().ok().zip(first.anonymous.as_ref().ok());
            ends.map(|(after, before)| after.saturating_sub(*before))
        }
        _ => None,
    };
    if private < LARGE && growth.is_none_or(|growth| growth < GROWTH) {
        return Ok(None);
    }
    let gib = private.fraction_of(Bytes::gib(1)).unwrap_or(0.0);
    let count = mappings.iter().filter(|it| is_private_memory(it)).count();
    let needed = CPU_PER_GIB.mul_f64(gib)
        + CPU_PER_MAPPING.saturating_mul(u32::try_from(count).unwrap_or(u32::MAX));
    if needed > cpu_left {
        let why = format!(
            "a heap scan of {} MiB in {count} mappings needs about {} ms of CPU time, and the budget has {} ms left",
            private.0 >> 20,
            needed.as_millis(),
            cpu_left.as_millis()
        );
        return Err(Absent::NotCollected(why.into()));
    }
    let stopped = PAUSE_OF_STOP + PAUSE_PER_GIB.mul_f64(gib);
    let running = ScanBounds::Running(Bytes(private.0.saturating_mul(2)));
    Ok(Some(match stopped <= pause {
        true => ScanChoice { first: ScanBounds::Stopped(pause), otherwise: Some(running) },
        false => ScanChoice { first: running, otherwise: None },
    }))
}

fn private_memory(mappings: &[Mapping]) -> Bytes {
    let own = mappings.iter().filter(|it| is_private_memory(it));
    own.filter_map(|it| it.rss().ok()).sum()
}

/// Returns the reason to reject a scan: an allocator could not be walked, and most of the private
/// memory may belong to it. Such a scan misses the leaked and the free blocks of this allocator.
pub(crate) fn unseen_heap(heap: &WalkedHeap, mappings: &[Mapping]) -> Option<Absent> {
    let refused = heap.refused.first()?;
    let is_small = heap.resident().0 < private_memory(mappings).0 / 2;
    let why = || format!("the heap of {} could not be walked: {}", refused.name, refused.why);
    is_small.then(|| Absent::NotSupported(why().into()))
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use pagewise_model::heap_scan::{RefusedAllocator, WalkedArena};
    use pagewise_model::mapping::{Breakdown, MappingPages};
    use pagewise_proc::maps;

    use super::*;

    /// Returns private mappings, each with this number of resident bytes.
    fn mappings(count: u64, resident: Bytes) -> Vec<Mapping> {
        let line = |at: u64| format!("{at:x}000-{:x}000 rw-p 00000000 00:00 0\n", at + 0x1000);
        let text: String = (1..=count).map(|at| line(at << 13)).collect();
        let pages = Arc::new(MappingPages {
            breakdown: Breakdown { anon_exclusive: resident, ..Breakdown::default() },
            pss: Ok(resident),
            pss_anon: Ok(resident),
            swap: Ok(Bytes::ZERO),
            anon_huge: Ok(Bytes::ZERO),
        });
        let mut read = maps::parse(text.as_bytes()).mappings;
        read.iter_mut().for_each(|mapping| mapping.pages = Ok(Arc::clone(&pages)));
        read
    }

    #[test]
    fn the_cost_of_a_scan_grows_with_its_mappings() {
        let left = Duration::from_millis(400);
        let choose = |count, resident| {
            decide(&mappings(count, resident), &[], left, Duration::from_millis(5))
        };
        let few = choose(100, Bytes::kib(1200)).unwrap().unwrap();
        assert!(matches!(few.first, ScanBounds::Running(_)), "{few:?}");
        let many = choose(62_500, Bytes::kib(2)).unwrap_err();
        assert!(many.to_string().contains("in 62500 mappings"), "{many}");
        assert_eq!(choose(100, Bytes::kib(2)), Ok(None), "a small heap");
    }

    #[test]
    fn a_scan_without_most_of_the_heap_is_rejected() {
        let mappings = mappings(100, Bytes::mib(1));
        let heap = |mib, refused: &[&str]| WalkedHeap {
            arenas: vec![WalkedArena { resident: Bytes::mib(mib), ..WalkedArena::default() }],
            refused: refused
                .iter()
                .map(|name| RefusedAllocator { name: (*name).into(), why: "no layout fits".into() })
                .collect(),
            ..WalkedHeap::default()
        };
        assert_eq!(unseen_heap(&heap(1, &[]), &mappings), None);
        assert_eq!(unseen_heap(&heap(60, &["CPython"]), &mappings), None);
        let why = unseen_heap(&heap(1, &["jemalloc"]), &mappings).unwrap().to_string();
        assert!(why.contains("the heap of jemalloc could not be walked: no layout fits"), "{why}");
    }
}
