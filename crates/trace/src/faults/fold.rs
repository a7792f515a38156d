//! Sums of faults in bounded memory: at the limit, the smallest entries are merged.

use std::collections::{HashMap, HashSet};

use pagewise_model::bounds::{Folded, MemoryLimit};
use pagewise_model::faults::{FaultThread, Owner};

use crate::faults::mappings::Mappings;
use crate::faults::state::{FaultKey, FaultSum, PendingFault};
use crate::heaviest::{Heaviest, sums};
use crate::stacks::{RecordedStacks, StackId};

/// Number of the row that sums all threads that are not listed separately.
pub(super) const OTHER_THREADS: u32 = u32::MAX;
/// Number of the row that sums all allocations that are not listed separately.
const OTHER_ALLOCATIONS: u32 = u32::MAX;

/// Maximum numbers of entries of the tables. A row takes about 100 bytes, a thread or a mapping
/// about 200.
#[derive(Clone, Copy, Debug)]
pub(super) struct FaultLimits {
    pub(super) rows: usize,
    pub(super) threads: usize,
    pub(super) mappings: usize,
    /// Maximum number of pending faults, one for each thread.
    pub(super) pending: usize,
}

impl FaultLimits {
    pub(super) fn for_memory(limit: MemoryLimit) -> FaultLimits {
        FaultLimits {
            rows: limit.part(2 << 10),
            threads: limit.part(8 << 10),
            mappings: limit.part(16 << 10),
            pending: limit.part(4 << 10),
        }
    }
}

type FaultRows = HashMap<FaultKey, FaultSum>;

fn rekey(rows: &mut FaultRows, key: impl Fn(FaultKey) -> FaultKey) {
    let old = std::mem::take(rows);
    for (before, sum) in old {
        rows.entry(key(before)).or_default().add(sum);
    }
}

/// Keeps the stacks with the largest counts that together take at most `bytes` bytes. Stacks of
/// pending faults are kept.
pub(super) fn stacks(
    rows: &mut FaultRows,
    stacks: &mut RecordedStacks,
    pending: &HashMap<u32, PendingFault>,
    bytes: usize,
    folded: &mut Folded,
) {
    let counted = rows.iter().map(|(key, sum)| (key.stack, sum.count));
    let mut sums = sums(counted);
    sums.remove(&StackId::OTHER);
    let heaviest = Heaviest::from_sums(sums, bytes, |id| stacks.bytes_of(id));
    folded.stacks += heaviest.folded;
    folded.stack_error += heaviest.largest;
    rekey(rows, |key| match heaviest.has(key.stack) {
        true => key,
        false => FaultKey { stack: StackId::OTHER, ..key },
    });
    let open: HashSet<StackId> = pending.values().map(|pending| pending.stack).collect();
    stacks.retain(|id| heaviest.has(id) || open.contains(&id));
}

/// Keeps the threads with the largest counts, at most `most`.
pub(super) fn threads(
    rows: &mut FaultRows,
    threads: &mut Vec<FaultThread>,
    living: &mut HashMap<u32, u32>,
    most: usize,
) {
    let mut sums = sums(rows.iter().map(|(key, sum)| (key.thread, sum.count)));
    sums.remove(&OTHER_THREADS);
    // Living threads without a fault keep their names if there is space.
    for at in living.values() {
        sums.entry(*at).or_default();
    }
    let heaviest = Heaviest::from_sums(sums, most, |_| 1);
    let old = std::mem::take(threads);
    let mut numbers = Vec::with_capacity(old.len());
    for (at, thread) in (0_u32..).zip(old) {
        let is_kept = heaviest.has(at);
        let number = u32::try_from(threads.len()).unwrap_or(OTHER_THREADS);
        numbers.push(if is_kept { number } else { OTHER_THREADS });
        threads.extend(is_kept.then_some(thread));
    }
    let number = |at: u32| numbers.get(at as usize).copied().unwrap_or(OTHER_THREADS);
    rekey(rows, |key| FaultKey { thread: number(key.thread), ..key });
    living.retain(|_, at| {
        *at = number(*at);
        *at != OTHER_THREADS
    });
}

/// Keeps the mappings with the largest counts, at most `most`; the others are merged into one for
/// each quadrant (private or shared, anonymous or file).
pub(super) fn mappings(
    rows: &mut FaultRows,
    mappings: &mut Mappings,
    pending: &mut HashMap<u32, PendingFault>,
    most: usize,
) {
    let mut weights = vec![0_u64; mappings.len()];
    for (key, sum) in rows.iter() {
        weights[key.mapping as usize] += sum.count;
    }
    let numbers = mappings.fold(&weights, most);
    let number = |at: u32| numbers[at as usize];
    rekey(rows, |key| FaultKey { mapping: number(key.mapping), ..key });
    pending.values_mut().for_each(|it| it.memory.mapping = number(it.memory.mapping));
}

/// Keeps at most `most` rows, which is necessary if few stacks, threads and mappings occur in many
/// combinations. The smallest rows lose their stack, then their thread, then their allocation.
pub(super) fn rows(rows: &mut FaultRows, most: usize, folded: &mut Folded) {
    let without: [fn(FaultKey) -> FaultKey; 3] = [
        |key| FaultKey { stack: StackId::OTHER, ..key },
        |key| FaultKey { thread: OTHER_THREADS, ..key },
        |key| match key.owner {
            Owner::Block(_) => FaultKey { owner: Owner::Block(OTHER_ALLOCATIONS), ..key },
            Owner::Allocator(_) => FaultKey { owner: Owner::Allocator(OTHER_ALLOCATIONS), ..key },
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
        let goes = |key: &FaultKey| rows.get(key).is_some_and(|sum| sum.count <= highest);
        let gone: HashSet<FaultKey> = rows.keys().filter(|key| goes(key)).copied().collect();
        if at == 0 {
            let counted = gone.iter().filter(|key| key.stack != StackId::OTHER);
            let by_stack = sums(counted.map(|key| (key.stack, rows[key].count)));
            folded.stack_error += by_stack.values().copied().max().unwrap_or(0);
            folded.stacks += by_stack.len() as u64;
        }
        rekey(rows, |key| if gone.contains(&key) { without(key) } else { key });
    }
}
