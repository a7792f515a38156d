//! What is kept apart of faults, in bounded memory: where there is too much, what counts least becomes part of sums.

use std::collections::{HashMap, HashSet};

use pagewise_model::bounds::{Folded, MemoryLimit};
use pagewise_model::faults::{Owner, Thread};

use crate::faults::mappings::Mappings;
use crate::faults::state::{Key, Pending, Sum};
use crate::heaviest::{Heaviest, sums};
use crate::stacks::{StackId, Stacks};

/// All threads that are not kept apart, as the number of one.
pub(super) const OTHER_THREADS: u32 = u32::MAX;
/// All allocations that are not kept apart, as the number of one.
const OTHER_ALLOCATIONS: u32 = u32::MAX;

/// How much there may be of each; a row takes about 100 bytes, a thread and a mapping some 200.
#[derive(Clone, Copy, Debug)]
pub(super) struct Limits {
    pub(super) rows: usize,
    pub(super) threads: usize,
    pub(super) mappings: usize,
    /// Threads that are in a fault, or in a call.
    pub(super) pending: usize,
}

impl Limits {
    pub(super) fn of(limit: MemoryLimit) -> Limits {
        Limits {
            rows: limit.part(2 << 10),
            threads: limit.part(8 << 10),
            mappings: limit.part(16 << 10),
            pending: limit.part(4 << 10),
        }
    }
}

/// What is summed up by parts of a key.
type Rows = HashMap<Key, Sum>;

fn rekey(rows: &mut Rows, key: impl Fn(Key) -> Key) {
    let old = std::mem::take(rows);
    for (before, sum) in old {
        rows.entry(key(before)).or_default().add(sum);
    }
}

/// Keeps the stacks apart of which most is counted, in so many bytes. Those of faults that are not over stay.
pub(super) fn stacks(
    rows: &mut Rows,
    stacks: &mut Stacks,
    pending: &HashMap<u32, Pending>,
    bytes: usize,
    folded: &mut Folded,
) {
    let counted = rows.iter().map(|(key, sum)| (key.stack, sum.count));
    let mut sums = sums(counted);
    sums.remove(&StackId::OTHER);
    let heaviest = Heaviest::of(sums, bytes, |id| stacks.bytes_of(id));
    folded.stacks += heaviest.folded;
    folded.stack_error += heaviest.largest;
    rekey(rows, |key| match heaviest.has(key.stack) {
        true => key,
        false => Key { stack: StackId::OTHER, ..key },
    });
    let open: HashSet<StackId> = pending.values().map(|pending| pending.stack).collect();
    stacks.retain(|id| heaviest.has(id) || open.contains(&id));
}

/// Keeps the threads apart of which most is counted, at most so many.
pub(super) fn threads(
    rows: &mut Rows,
    threads: &mut Vec<Thread>,
    living: &mut HashMap<u32, u32>,
    most: usize,
) {
    let mut sums = sums(rows.iter().map(|(key, sum)| (key.thread, sum.count)));
    sums.remove(&OTHER_THREADS);
    // Those that live and did nothing yet have a name that we know.
    for at in living.values() {
        sums.entry(*at).or_default();
    }
    let heaviest = Heaviest::of(sums, most, |_| 1);
    let old = std::mem::take(threads);
    let mut numbers = Vec::with_capacity(old.len());
    for (at, thread) in (0_u32..).zip(old) {
        let is_kept = heaviest.has(at);
        let number = u32::try_from(threads.len()).unwrap_or(OTHER_THREADS);
        numbers.push(if is_kept { number } else { OTHER_THREADS });
        threads.extend(is_kept.then_some(thread));
    }
    let number = |at: u32| numbers.get(at as usize).copied().unwrap_or(OTHER_THREADS);
    rekey(rows, |key| Key { thread: number(key.thread), ..key });
    living.retain(|_, at| {
        *at = number(*at);
        *at != OTHER_THREADS
    });
}

/// Keeps the mappings apart of which most is counted, at most so many; the others are one of each quadrant.
pub(super) fn mappings(
    rows: &mut Rows,
    mappings: &mut Mappings,
    pending: &mut HashMap<u32, Pending>,
    most: usize,
) {
    let mut weights = vec![0_u64; mappings.len()];
    for (key, sum) in rows.iter() {
        weights[key.mapping as usize] += sum.count;
    }
    let numbers = mappings.fold(&weights, most);
    let number = |at: u32| numbers[at as usize];
    rekey(rows, |key| Key { mapping: number(key.mapping), ..key });
    pending.values_mut().for_each(|it| it.mapping = number(it.mapping));
}

/// Leaves at most so many rows, where few stacks, threads and mappings are combined in many ways: the rows that count least go
/// without their stack, then without their thread, then without the allocation.
pub(super) fn rows(rows: &mut Rows, most: usize, folded: &mut Folded) {
    let without: [fn(Key) -> Key; 3] = [
        |key| Key { stack: StackId::OTHER, ..key },
        |key| Key { thread: OTHER_THREADS, ..key },
        |key| match key.owner {
            Owner::Block(_) => Key { owner: Owner::Block(OTHER_ALLOCATIONS), ..key },
            Owner::Allocator(_) => Key { owner: Owner::Allocator(OTHER_ALLOCATIONS), ..key },
            _ => key,
        },
    ];
    for (at, without) in without.into_iter().enumerate() {
        if rows.len() <= most {
            return;
        }
        let mut counts: Vec<u64> = rows.values().map(|sum| sum.count).collect();
        counts.sort_unstable();
        let highest = counts[counts.len() - most / 2];
        let goes = |key: &Key| rows.get(key).is_some_and(|sum| sum.count <= highest);
        let gone: HashSet<Key> = rows.keys().filter(|key| goes(key)).copied().collect();
        if at == 0 {
            let counted = gone.iter().filter(|key| key.stack != StackId::OTHER);
            let by_stack = sums(counted.map(|key| (key.stack, rows[key].count)));
            folded.stack_error += by_stack.values().copied().max().unwrap_or(0);
            folded.stacks += by_stack.len() as u64;
        }
        rekey(rows, |key| if gone.contains(&key) { without(key) } else { key });
    }
}
