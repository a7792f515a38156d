//! Page replacement against plain second implementations, against what must hold for all, and
//! against what is known.

use std::collections::VecDeque;

use pagewise_sim::replacement::{PageReplacement, ReplacementCounts, SimulatedMemory};
use pagewise_sim::workload::Uniform;
use pagewise_sim::{MemoryAccess, ReadWriteCounts};
use proptest::prelude::*;

const PAGE: u64 = 4096;

/// A page in memory, in the plain implementations.
#[derive(Clone, Copy, Debug, PartialEq)]
struct NaivePage {
    number: u64,
    accessed: bool,
    referenced: bool,
}

/// Lists of pages, the next victim last. The policy determines the use of each list.
#[derive(Debug, Default)]
struct NaiveMemory {
    lists: [VecDeque<NaivePage>; 2],
}

impl NaiveMemory {
    fn find(&mut self, number: u64) -> Option<&mut NaivePage> {
        self.lists.iter_mut().flatten().find(|page| page.number == number)
    }

    /// True if a page was there. It is there afterwards.
    fn touch(&mut self, policy: PageReplacement, frames: usize, number: u64) -> bool {
        if let Some(page) = self.find(number) {
            page.accessed = true;
            if policy == PageReplacement::Lru {
                let at = self.lists[0].iter().position(|page| page.number == number).unwrap();
                let page = self.lists[0].remove(at).unwrap();
                self.lists[0].push_front(page);
            }
            return true;
        }
        if self.lists.iter().map(VecDeque::len).sum::<usize>() == frames {
            self.reclaim(policy);
        }
        let page = NaivePage { number, accessed: true, referenced: false };
        self.lists[0].push_front(page);
        false
    }

    fn reclaim(&mut self, policy: PageReplacement) {
        match policy {
            PageReplacement::Lru => drop(self.lists[0].pop_back()),
            PageReplacement::Clock => loop {
                let page = self.lists[0].pop_back().unwrap();
                if !page.accessed {
                    return;
                }
                self.lists[0].push_front(NaivePage { accessed: false, ..page });
            },
            PageReplacement::TwoLists => self.reclaim_of_two(true),
            PageReplacement::ActivateReclaimed => self.reclaim_of_two(false),
            PageReplacement::Generations => unreachable!("held to other tests"),
        }
    }

    fn reclaim_of_two(&mut self, activates: bool) {
        loop {
            while self.lists[0].len() < self.lists[1].len() {
                let page = self.lists[1].pop_back().unwrap();
                self.lists[0].push_front(NaivePage { accessed: false, ..page });
            }
            let page = self.lists[0].pop_back().unwrap();
            let next = NaivePage { accessed: false, referenced: true, ..page };
            match (page.accessed, page.referenced) {
                (true, false) => self.lists[0].push_front(next),
                (true, true) if activates => self.lists[1].push_front(next),
                _ => return,
            }
        }
    }
}

/// The fewest faults that any policy can have: with knowledge of what comes (Belady).
fn least_faults(pages: &[u64], frames: usize) -> u64 {
    let mut held: Vec<u64> = Vec::new();
    let mut faults = 0;
    for (at, page) in pages.iter().enumerate() {
        if held.contains(page) {
            continue;
        }
        faults += 1;
        if held.len() == frames {
            let next =
                |held: &u64| pages[at..].iter().position(|p| p == held).unwrap_or(usize::MAX);
            let farthest = (0..frames).max_by_key(|way| next(&held[*way])).unwrap();
            held.swap_remove(farthest);
        }
        held.push(*page);
    }
    faults
}

fn play(memory: &mut SimulatedMemory, pages: &[u64]) -> u64 {
    let block: Vec<MemoryAccess> =
        pages.iter().map(|page| MemoryAccess::read(page * PAGE, 8)).collect();
    memory.play(&block);
    faults(memory.counts())
}

fn faults(counts: ReplacementCounts) -> u64 {
    counts.first + counts.back.total()
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, ..ProptestConfig::default() })]

    #[test]
    fn faults_are_those_of_plain_lists(
        frames in 1..30_usize,
        pages in prop::collection::vec(0..40_u64, 1..800),
    ) {
        for policy in PageReplacement::ALL.into_iter().filter(|p| *p != PageReplacement::Generations) {
            let mut memory = SimulatedMemory::new(frames, PAGE, policy).unwrap();
            let mut naive = NaiveMemory::default();
            let mut expected = 0;
            let mut last = None;
            for page in &pages {
                // To use the same page again changes nothing, as its accessed bit is set.
                if last != Some(page) {
                    expected += u64::from(!naive.touch(policy, frames, *page));
                }
                last = Some(page);
                prop_assert_eq!(play(&mut memory, &[*page]), expected, "{:?}", policy);
            }
        }
    }

    #[test]
    fn no_policy_does_better_than_one_that_knows_the_future(
        frames in 1..20_usize,
        pages in prop::collection::vec(0..30_u64, 1..400),
    ) {
        let least = least_faults(&pages, frames);
        let mut different = pages.clone();
        different.sort_unstable();
        different.dedup();
        for policy in PageReplacement::ALL {
            let mut memory = SimulatedMemory::new(frames, PAGE, policy).unwrap();
            let faults = play(&mut memory, &pages);
            prop_assert!(faults >= least, "{:?}: {} < {}", policy, faults, least);
            prop_assert_eq!(memory.counts().first, different.len() as u64);
            prop_assert!(frames < different.len() || faults == different.len() as u64);
        }
    }
}

#[test]
fn uniform_use_faults_by_the_share_that_does_not_fit() {
    let stream = Uniform { bytes: 400 << 20, accesses: 400_000, seed: 1 };
    let pages = (400_u64 << 20) / PAGE;
    for policy in PageReplacement::ALL {
        let mut memory = SimulatedMemory::new(256 << 8, PAGE, policy).unwrap();
        // First until every page was used at least once or nearly so, then counted.
        stream.play(&mut |block| memory.play(block));
        let before = memory.counts();
        Uniform { seed: 2, ..stream }.play(&mut |block| memory.play(block));
        let faults = (faults(memory.counts()) - faults(before)) as f64;
        let expected = 400_000.0 * (1.0 - 65_536.0 / pages as f64);
        let ratio = faults / expected;
        assert!((0.98..1.02).contains(&ratio), "{policy:?}: {faults} of {expected}");
    }
}

#[test]
fn a_loop_larger_than_memory_defeats_lru() {
    let rounds: Vec<u64> = (0..20).flat_map(|_| 0..110).collect();
    let mut memory = SimulatedMemory::new(100, PAGE, PageReplacement::Lru).unwrap();
    assert_eq!(play(&mut memory, &rounds), 20 * 110);
}

#[test]
fn a_stream_pushes_out_used_pages_only_without_activation() {
    // Ten pages that are used all the time, and ten thousand of which each is used once.
    let pages: Vec<u64> = (0..10_000).flat_map(|n| [n % 10, 100 + n]).collect();
    let back = |policy| {
        let mut memory = SimulatedMemory::new(40, PAGE, policy).unwrap();
        play(&mut memory, &pages) - 10_010
    };
    let backs = PageReplacement::ALL.map(back);
    let [lru, clock, two_lists, changed, generations] = backs;
    assert_eq!(lru, 0);
    assert!(clock < 1_000 && two_lists < 100 && generations < 100, "{backs:?}");
    assert!(changed > 1_000, "{backs:?}");
}

#[test]
fn only_pages_that_were_written_are_written_back_and_once() {
    let mut memory = SimulatedMemory::new(1, PAGE, PageReplacement::Lru).unwrap();
    memory.play(&[
        MemoryAccess::write(0, 8),
        MemoryAccess::read(PAGE, 8),
        MemoryAccess::read(0, 8),
        MemoryAccess::write(PAGE - 4, 8),
    ]);
    let back = ReadWriteCounts { reads: 1, writes: 1 };
    assert_eq!(memory.counts(), ReplacementCounts { first: 2, back, written: 2 });
}

#[test]
fn memory_without_frames_is_refused() {
    assert!(SimulatedMemory::new(0, PAGE, PageReplacement::Lru).is_err());
    assert!(SimulatedMemory::new(usize::MAX, PAGE, PageReplacement::Lru).is_err());
    assert!(SimulatedMemory::new(1, 1000, PageReplacement::Lru).is_err());
}
