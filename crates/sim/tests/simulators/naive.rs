//! The simulators compared with a second implementation, which is simple and slow.

use pagewise_sim::geometry::{
    CacheShape, CacheShapes, I7_6800K, TlbPageSize, TlbShape, TlbShapeLevel,
};
use pagewise_sim::{
    LevelCounts, Levels, MemoryAccess, NextPagePrefetcher, ReadWriteCounts, RecencyPolicy,
};
use proptest::prelude::*;

/// A set: its blocks, and the state of its policy.
#[derive(Clone, Debug, Default)]
struct NaiveSet {
    /// Block of each way.
    blocks: Vec<u64>,
    /// Ways in the order of replacement, for LRU and FIFO.
    queue: Vec<usize>,
    /// For tree-PLRU: each half, quarter and so on of the ways that was used last, as its first way
    /// and its number of ways.
    used: Vec<(usize, usize)>,
}

#[derive(Debug)]
struct NaiveTable {
    sets: Vec<NaiveSet>,
    ways: usize,
    policy: RecencyPolicy,
    chance: fastrand::Rng,
}

impl NaiveTable {
    fn new(entries: usize, ways: usize, policy: RecencyPolicy) -> NaiveTable {
        let seed = if let RecencyPolicy::Random { seed } = policy { seed } else { 0 };
        let chance = fastrand::Rng::with_seed(seed);
        NaiveTable { sets: vec![NaiveSet::default(); entries / ways], ways, policy, chance }
    }

    /// Uses a block. Returns true for a hit.
    fn touch(&mut self, block: u64) -> bool {
        let sets = self.sets.len() as u64;
        let set = &mut self.sets[usize::try_from(block % sets).unwrap()];
        let found = set.blocks.iter().position(|held| *held == block);
        let way = match found {
            Some(way) => way,
            None if set.blocks.len() < self.ways => {
                set.blocks.push(block);
                set.blocks.len() - 1
            }
            None => {
                let way = match self.policy {
                    RecencyPolicy::Lru | RecencyPolicy::Fifo => set.queue[0],
                    RecencyPolicy::TreePlru => {
                        least_recent_half(&set.used, 0, self.ways, self.ways)
                    }
                    RecencyPolicy::Random { .. } => self.chance.usize(..self.ways),
                };
                set.blocks[way] = block;
                way
            }
        };
        if found.is_none() || self.policy == RecencyPolicy::Lru {
            set.queue.retain(|queued| *queued != way);
            set.queue.push(way);
        }
        mark_used(&mut set.used, way, self.ways);
        found.is_some()
    }
}

/// Returns the way to replace. It is not in a half that was used last, if the other half has a way.
/// If neither half was used, it is in the first half.
fn least_recent_half(used: &[(usize, usize)], first: usize, size: usize, ways: usize) -> usize {
    let size = size.next_power_of_two();
    if size == 1 {
        return first;
    }
    let half = size / 2;
    let right = first + half;
    if used.contains(&(first, half)) && right < ways {
        least_recent_half(used, right, half, ways)
    } else {
        least_recent_half(used, first, half, ways)
    }
}

fn mark_used(used: &mut Vec<(usize, usize)>, way: usize, ways: usize) {
    let mut size = ways.next_power_of_two() / 2;
    while size > 0 {
        let mine = way / size * size;
        let sibling = mine ^ size;
        used.retain(|half| *half != (sibling, size) && *half != (mine, size));
        used.push((mine, size));
        size /= 2;
    }
}

/// Two levels of caches or TLBs.
#[derive(Debug)]
struct NaiveLevels {
    first: NaiveTable,
    second: Option<NaiveTable>,
    block: u64,
    foresees: Option<u32>,
    missed: Option<u64>,
    steps: u32,
    counts: LevelCounts,
}

impl NaiveLevels {
    fn play(&mut self, address: u64, size: u64, write: bool) {
        let add =
            |split: &mut ReadWriteCounts| if write { split.writes += 1 } else { split.reads += 1 };
        let last = (address + size.max(1) - 1) / self.block;
        let mut missed = false;
        for block in address / self.block..=last {
            if self.first.touch(block) {
                continue;
            }
            missed = true;
            if !self.second.as_mut().is_some_and(|second| second.touch(block)) {
                add(&mut self.counts.last);
            }
            self.foresee(block);
        }
        if missed {
            add(&mut self.counts.first);
        }
    }

    fn foresee(&mut self, block: u64) {
        let (Some(after), Some(second)) = (self.foresees, &mut self.second) else { return };
        let follows = block > 0 && self.missed == Some(block - 1);
        self.steps = if follows { self.steps + 1 } else { 0 };
        self.missed = Some(block);
        if self.steps >= after {
            self.counts.prefetched += 1;
            let next = block + 1;
            let set = usize::try_from(next % second.sets.len() as u64).unwrap();
            if !second.sets[set].blocks.contains(&next) {
                second.touch(next);
            }
        }
    }
}

fn policy() -> impl Strategy<Value = RecencyPolicy> {
    prop_oneof![
        Just(RecencyPolicy::Lru),
        Just(RecencyPolicy::TreePlru),
        Just(RecencyPolicy::Fifo),
        any::<u64>().prop_map(|seed| RecencyPolicy::Random { seed }),
    ]
}

/// Numbers of entries and of ways of a level.
fn level() -> impl Strategy<Value = (usize, usize)> {
    let sets = prop_oneof![(0..5_u32).prop_map(|log| 1 << log), 1..=24_usize];
    (sets, prop_oneof![1..=8_usize, 9..=20_usize, 96..=128_usize])
        .prop_map(|(sets, ways)| (ways * sets, ways))
}

/// Accesses of any size: most are near each other, so that blocks are used again, and some are far
/// away.
fn accesses() -> impl Strategy<Value = Vec<(u64, u16, bool)>> {
    let near = || 0..0x4000_u64;
    let address = prop_oneof![
        8 => near(),
        1 => near().prop_map(|address| address + (1 << 40)),
        2 => (0..64_u64).prop_map(|line| line << 16),
    ];
    prop::collection::vec((address, 0..100_u16, any::<bool>()), 1..1500)
}

fn access(address: u64, size: u16, write: bool) -> MemoryAccess {
    if write { MemoryAccess::write(address, size) } else { MemoryAccess::read(address, size) }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 150, ..ProptestConfig::default() })]

    #[test]
    fn caches_count_what_plain_caches_count(
        policy in policy(),
        first in level(),
        second in prop::option::of(level()),
        shift in 4..8_u32,
        accesses in accesses(),
    ) {
        let line = 1 << shift;
        let shape = |(entries, ways)| CacheShape { size: entries as u64 * line, ways, line };
        let shapes = CacheShapes { l1d: shape(first), l2: second.map(shape) };
        let mut levels = Levels::caches(&shapes, policy).unwrap();
        let table = |(entries, ways)| NaiveTable::new(entries, ways, policy);
        let mut naive = NaiveLevels {
            first: table(first),
            second: second.map(table),
            block: line,
            foresees: None,
            missed: None,
            steps: 0,
            counts: LevelCounts::default(),
        };
        for (address, size, write) in accesses {
            levels.play(&[access(address, size, write)]);
            naive.play(address, size.into(), write);
            prop_assert_eq!(levels.counts(), naive.counts, "at {:#x} {}", address, size);
        }
    }

    #[test]
    fn a_tlb_with_a_prefetcher_counts_what_a_plain_one_does(
        policy in policy(),
        first in level(),
        second in level(),
        after in 0..4_u32,
        accesses in accesses(),
    ) {
        let level = |(entries, ways)| TlbShapeLevel { entries, ways };
        let shape = TlbShape { page: 256, first: level(first), second: Some(level(second)) };
        let model = NextPagePrefetcher { after, share: 1.0 };
        let mut levels = Levels::tlb(&shape, policy).unwrap().prefetching(model);
        let table = |(entries, ways)| NaiveTable::new(entries, ways, policy);
        let mut naive = NaiveLevels {
            first: table(first),
            second: Some(table(second)),
            block: 256,
            foresees: Some(after),
            missed: None,
            steps: 0,
            counts: LevelCounts::default(),
        };
        // One call of `play` simulates all accesses, so `Levels` looks all of them up in the first
        // level before the second level.
        let block: Vec<MemoryAccess> = accesses.iter().map(|a| access(a.0, a.1, a.2)).collect();
        levels.play(&block);
        accesses.iter().for_each(|(address, size, write)| naive.play(*address, (*size).into(), *write));
        prop_assert_eq!(levels.counts(), naive.counts);
    }

    #[test]
    fn any_address_is_an_address(address in any::<u64>(), size in any::<u16>(), write in any::<bool>()) {
        for page in TlbPageSize::ALL {
            let mut tlb = Levels::tlb(&I7_6800K.tlb(page).unwrap(), RecencyPolicy::Lru).unwrap();
            tlb.play(&[access(address, size, write), access(u64::MAX, u16::MAX, write)]);
            prop_assert!(tlb.counts().first.total() > 0);
        }
    }
}

#[test]
fn the_share_of_prefetches_in_time_is_what_was_asked_for() {
    let shape = I7_6800K.tlb(TlbPageSize::Base).unwrap();
    let model = NextPagePrefetcher { after: 0, share: 0.25 };
    let mut tlb = Levels::tlb(&shape, RecencyPolicy::Lru).unwrap().prefetching(model);
    let pages: Vec<MemoryAccess> =
        (0..100_000).map(|page| MemoryAccess::read(page * 4096, 1)).collect();
    tlb.play(&pages);
    let walks = tlb.counts().last.total();
    assert!((74_000..76_000).contains(&walks), "{walks}");
    assert_eq!(tlb.counts().prefetched, 100_000 - walks, "but for the one past the end");
}

/// Sizes as `cpuid` reports them for EPYC CPUs: 3072 entries in sets of 24, 12 or 8, and in 192
/// sets of 16.
#[test]
fn a_tlb_with_any_number_of_sets_counts_like_a_plain_model() {
    for ways in [8, 12, 16, 24] {
        let second = TlbShapeLevel { entries: 3072, ways };
        let first = TlbShapeLevel { entries: 72, ways: 72 };
        let shape = TlbShape { page: 4096, first, second: Some(second) };
        let mut levels = Levels::tlb(&shape, RecencyPolicy::Lru).unwrap();
        let mut naive = NaiveLevels {
            first: NaiveTable::new(72, 72, RecencyPolicy::Lru),
            second: Some(NaiveTable::new(3072, ways, RecencyPolicy::Lru)),
            block: 4096,
            foresees: None,
            missed: None,
            steps: 0,
            counts: LevelCounts::default(),
        };
        let mut random = fastrand::Rng::with_seed(7);
        for _ in 0..40_000 {
            let address = random.u64(..3500) << 12;
            levels.play(&[access(address, 8, false)]);
            naive.play(address, 8, false);
        }
        assert_eq!(levels.counts(), naive.counts, "{ways} ways");
        let walks = levels.counts().last.total();
        assert!((3500..20_000).contains(&walks), "{ways} ways: {walks}");
        // A region that fits has no misses after the first pass, whatever its start: each set has
        // the same number of its pages.
        let fits: Vec<_> = (0..3072).map(|page| access((page + 12_345) << 12, 8, false)).collect();
        levels.play(&fits);
        let before = levels.counts().last.total();
        levels.play(&fits);
        assert_eq!(levels.counts().last.total(), before, "{ways} ways");
    }
}

#[test]
fn a_shape_that_no_hardware_has_is_refused_with_a_reason() {
    let good = CacheShape { size: 32 << 10, ways: 8, line: 64 };
    let bad = [
        (CacheShape { line: 48, ..good }, "power of two bytes"),
        (CacheShape { line: 0, ..good }, "power of two bytes"),
        (CacheShape { line: 8, ..good }, "16 bytes"),
        (CacheShape { ways: 0, ..good }, "1 to 128 ways"),
        (CacheShape { ways: 129, ..good }, "1 to 128 ways"),
        (CacheShape { size: 0, ..good }, "entries"),
        (CacheShape { size: u64::MAX, ..good }, "16 M entries"),
        (CacheShape { ways: 7, ..good }, "multiple of the ways"),
    ];
    assert!(Levels::caches(&CacheShapes { l1d: good, l2: Some(good) }, RecencyPolicy::Lru).is_ok());
    for (l1d, why) in bad {
        let error = Levels::caches(&CacheShapes { l1d, l2: None }, RecencyPolicy::Lru).unwrap_err();
        assert!(error.to_string().contains(why), "{l1d:?}: {error}");
    }
}
