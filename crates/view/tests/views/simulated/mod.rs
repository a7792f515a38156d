//! A program that allocates by chance, counted plainly: recordings with known answers.
#![allow(clippy::unwrap_used, reason = "a part of tests")]
#![allow(dead_code, reason = "each file of tests uses some of it")]

use std::collections::BTreeMap;

use pagewise_model::ending::ProgramEnding;
use pagewise_model::heap::*;
use pagewise_model::traced::{Frame, SourcePosition};
use pagewise_model::{Absent, Bytes, Name, PageSize, Pid};

/// The functions; a frame has the index of its name.
pub(crate) const FUNCTIONS: [&str; 5] = ["main", "read_all", "grow", "parse(char const*)", "leaf"];

/// Call stacks, the allocation's first. Two have one function at different depths.
pub(crate) const STACKS: [&[u32]; 6] =
    [&[1, 0], &[2, 1, 0], &[2, 3, 0], &[4, 3, 0], &[4, 4, 3, 0], &[0]];

/// A step of a program: of thread `thread`, which allocates at a call stack, or frees a block.
#[derive(Clone, Copy, Debug)]
pub(crate) enum AllocationStep {
    Allocate { thread: u8, stack: u8, bytes: u16 },
    Free { thread: u8, which: u16 },
}

/// Allocations of a call stack, by plain counting.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct CountedStack {
    pub(crate) allocations: u64,
    pub(crate) temporary: u64,
    pub(crate) peak: u64,
    pub(crate) leaked: u64,
}

pub(crate) fn frame(number: u32, function: &str) -> Frame {
    Frame {
        function: Some(function.to_owned()),
        module: Some("/usr/bin/chance".into()),
        offset: 0x1100 + u64::from(number) * 16,
        line: Some(SourcePosition { file: "/src/chance.c".into(), number: 10 + number }),
        inlined: false,
    }
}

pub(crate) fn empty() -> HeapRecording {
    let numbered = (0..).zip(FUNCTIONS);
    HeapRecording {
        pid: Pid(4242),
        command: vec!["./chance".into(), Name::new(b"two words")],
        program: "/usr/bin/chance".into(),
        allocator: "glibc 2.36".into(),
        page_size: PageSize::new(4096).unwrap(),
        began_ns: 1_700_000_000_000_000_000,
        took_ns: 0,
        every_bytes: None,
        attached: false,
        ending: HeapEnding::Ended(ProgramEnding::Exited(0)),
        totals: Totals::default(),
        peak_at_ns: Ok(0),
        frames: numbered.map(|(number, name)| frame(number, name)).collect(),
        stacks: STACKS.iter().map(|stack| stack.to_vec()).collect(),
        sites: Vec::new(),
        moments: Vec::new(),
        layouts: Vec::new(),
        sizes: vec![0; 65],
        lifetimes: Vec::new(),
        lifetimes_every: 0,
        threads: Vec::new(),
        lacks: Vec::new(),
    }
}

/// Runs a program of a step each millisecond, with a snapshot after each `every` steps and a tree
/// at each third of them.
pub(crate) fn run(steps: &[AllocationStep], every: usize) -> HeapRecording {
    let mut recording = empty();
    let mut sites: Vec<AllocationSite> = (0..)
        .zip(STACKS)
        .map(|(stack, _)| AllocationSite {
            stack,
            kind: AllocationKind::Heap,
            allocated: HeapAmount::default(),
            freed: HeapAmount::default(),
            temporary: 0,
            at_peak: HeapAmount::default(),
            errors: None,
        })
        .collect();
    let mut blocks: Vec<(usize, u64, u64)> = Vec::new();
    let mut last: BTreeMap<u8, u64> = BTreeMap::new();
    let mut live = HeapAmount::default();
    let mut totals = Totals::default();
    for (at, step) in steps.iter().enumerate() {
        let now = (at as u64 + 1) * 1_000_000;
        match *step {
            AllocationStep::Allocate { thread, stack, bytes } => {
                let (site, bytes) = (usize::from(stack) % sites.len(), u64::from(bytes));
                blocks.push((site, bytes, now));
                last.insert(thread, now);
                add(&mut sites[site].allocated, bytes);
                add(&mut totals.allocated, bytes);
                add(&mut live, bytes);
                recording.sizes[64 - bytes.leading_zeros() as usize] += 1;
                if live.bytes > totals.peak.bytes {
                    totals.peak = live;
                    recording.peak_at_ns = Ok(now);
                    for (at, site) in sites.iter_mut().enumerate() {
                        site.at_peak = of_site(&blocks, at);
                    }
                }
            }
            AllocationStep::Free { thread, which } => {
                if blocks.is_empty() {
                    continue;
                }
                let (site, bytes, made) = blocks.swap_remove(usize::from(which) % blocks.len());
                add(&mut sites[site].freed, bytes);
                add(&mut totals.freed, bytes);
                live = HeapAmount { bytes: live.bytes - bytes, blocks: live.blocks - 1 };
                if last.get(&thread) == Some(&made) {
                    sites[site].temporary += 1;
                    totals.temporary += 1;
                }
            }
        }
        if (at + 1) % every == 0 {
            let tree = ((at + 1) / every).is_multiple_of(3).then(|| tree(&blocks, sites.len()));
            let held = Bytes(live.bytes + 10_000);
            let resident =
                ResidentBytes { anonymous: live.bytes + 50_000, file: 70_000, shmem: 0, swap: 0 };
            let allocated = totals.allocated;
            recording.moments.push(HeapSnapshot {
                time_ns: now,
                live,
                allocated,
                held: if at < every {
                    Err(Absent::NotCollected("not yet".into()))
                } else {
                    Ok(held)
                },
                resident: Ok(resident),
                tree,
                older_freed: None,
            });
        }
        recording.took_ns = now;
    }
    totals.leaked = live;
    recording.totals = totals;
    recording.sites = sites;
    recording
}

fn add(amount: &mut HeapAmount, bytes: u64) {
    amount.bytes += bytes;
    amount.blocks += 1;
}

fn of_site(blocks: &[(usize, u64, u64)], site: usize) -> HeapAmount {
    let mut sum = HeapAmount::default();
    blocks.iter().filter(|block| block.0 == site).for_each(|block| add(&mut sum, block.1));
    sum
}

/// The live amounts of all sites except the smallest.
fn tree(blocks: &[(usize, u64, u64)], sites: usize) -> LiveTree {
    let amounts = (0..).zip(0..sites).map(|(number, site)| (number, of_site(blocks, site)));
    let mut amounts: Vec<(u32, HeapAmount)> = amounts.filter(|(_, it)| it.blocks > 0).collect();
    amounts.sort_by_key(|(_, amount)| std::cmp::Reverse(amount.bytes));
    let others = if amounts.len() > 2 { amounts.pop().unwrap().1 } else { HeapAmount::default() };
    LiveTree { sites: amounts, others }
}

/// Amounts of each call stack, by its functions from the outermost on.
pub(crate) fn told(recording: &HeapRecording) -> BTreeMap<String, CountedStack> {
    let mut told: BTreeMap<String, CountedStack> = BTreeMap::new();
    for site in &recording.sites {
        let stack = &recording.stacks[site.stack as usize];
        let names: Vec<&str> = stack.iter().rev().map(|at| FUNCTIONS[*at as usize]).collect();
        let told = told.entry(names.join(";")).or_default();
        told.allocations += site.allocated.blocks;
        told.temporary += site.temporary;
        told.peak += site.at_peak.bytes;
        told.leaked += site.leaked().bytes;
    }
    told.retain(|_, it| it.allocations > 0);
    told
}

/// Steps by a generator that always gives the same.
pub(crate) fn steps(count: usize, seed: u64) -> Vec<AllocationStep> {
    let mut state = seed | 1;
    let mut next = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        (state >> 24) as u32
    };
    (0..count)
        .map(|at| {
            let thread = (next() % 3) as u8;
            // More is allocated than freed in the first half, and the other way round in the
            // second.
            if next() % 10 < if at < count / 2 { 6 } else { 4 } {
                let stack = (next() % 6) as u8;
                AllocationStep::Allocate { thread, stack, bytes: (next() % 5000) as u16 }
            } else {
                AllocationStep::Free {
                    thread,
                    which: if next() % 3 == 0 { u16::MAX } else { next() as u16 },
                }
            }
        })
        .collect()
}

/// As many call stacks as a compiler has: `stacks` of `deep` calls that begin alike, and moments
/// with trees at some of them.
pub(crate) fn large(stacks: u32, deep: usize, moments: u64) -> HeapRecording {
    let mut recording = empty();
    recording.frames =
        (0..2000).map(|number| frame(number, &format!("function_{number}"))).collect();
    (recording.stacks, recording.sites) = (Vec::new(), Vec::new());
    let mut state = 88_172_645_463_325_252_u64;
    for stack in 0..stacks {
        let mut calls = vec![0];
        for _ in 1..deep {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            // Two at each place, so that stacks begin alike.
            let callee = (u64::from(*calls.last().unwrap()) * 31 + state % 2 + 1) % 2000;
            calls.push(u32::try_from(callee).unwrap());
        }
        calls.reverse();
        recording.stacks.push(calls);
        let bytes = state % 10_000;
        let at_peak = HeapAmount { bytes, blocks: 3 };
        recording.sites.push(AllocationSite {
            stack,
            kind: AllocationKind::Heap,
            allocated: HeapAmount { bytes: bytes * 5, blocks: 15 },
            freed: HeapAmount { bytes: bytes * 4, blocks: 12 },
            temporary: 2,
            at_peak,
            errors: None,
        });
    }
    let sum = |of: fn(&AllocationSite) -> HeapAmount| {
        recording.sites.iter().map(of).fold(HeapAmount::default(), |a, b| HeapAmount {
            bytes: a.bytes + b.bytes,
            blocks: a.blocks + b.blocks,
        })
    };
    let (allocated, peak) = (sum(|it| it.allocated), sum(|it| it.at_peak));
    recording.totals =
        Totals { allocated, peak, leaked: sum(AllocationSite::leaked), ..Totals::default() };
    recording.took_ns = moments * 20_000_000;
    recording.peak_at_ns = Ok(recording.took_ns / 2);
    let half = (moments / 2).max(1);
    for at in 1..=moments {
        let part = |of: u64| of / half * if at > half { moments - at } else { at };
        let listed = recording.sites.iter().enumerate().take(2000).map(|(site, it)| {
            let bytes = part(it.at_peak.bytes);
            (u32::try_from(site).unwrap(), HeapAmount { bytes, blocks: bytes.min(3) })
        });
        let tree = at.is_multiple_of(20).then(|| LiveTree {
            sites: listed.collect(),
            others: HeapAmount { bytes: part(peak.bytes) / 2, blocks: 9 },
        });
        let live = HeapAmount { bytes: part(peak.bytes), blocks: part(peak.blocks) };
        recording.moments.push(HeapSnapshot {
            time_ns: at * 20_000_000,
            live,
            allocated: HeapAmount {
                bytes: allocated.bytes / moments * at,
                blocks: allocated.blocks / moments * at,
            },
            held: Ok(Bytes(live.bytes * 2)),
            resident: Ok(ResidentBytes { anonymous: live.bytes * 2, ..ResidentBytes::default() }),
            tree,
            older_freed: None,
        });
    }
    recording
}
