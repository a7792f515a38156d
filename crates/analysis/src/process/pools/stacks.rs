//! Thread stacks. A stack pointer identifies a stack; guard and size identify the stack of a
//! running thread whose stack pointer is unknown.
//!
//! ```text
//! | guard, no access | stack, grows down <- stack pointer | thread-local variables |
//! ```

use std::collections::HashSet;

use pagewise_model::process::Thread;
use pagewise_model::{Bytes, Mapping, Name, Pid};

use super::anonymous::{LARGEST_GUARD, index_at};
use super::{PoolKind, PoolMark, Sorter};

/// Default size of thread stacks with the default RLIMIT_STACK.
const USUAL_STACK: Bytes = Bytes::mib(8);

/// Assigns the stacks of all threads except the first, with their guards.
pub(super) fn place(sorter: &mut Sorter<'_>) {
    let Ok(threads) = &sorter.snapshot.threads else { return };
    let found = by_pointer(sorter, threads);
    let usual = usual_sizes(sorter, &found);
    for stack in found.iter().flat_map(|f| f.stack) {
        if let Some(guard) = guard_of(sorter, stack) {
            sorter.homes[guard] = sorter.homes[stack];
        }
    }
    let pid = sorter.snapshot.process.pid;
    let known = found.iter().map(|f| f.thread.tid).chain([pid]).collect::<HashSet<_>>();
    let unknown = threads.iter().filter(|t| !known.contains(&t.tid)).count();
    by_guard(sorter, unknown, &usual);
}

/// A thread whose stack pointer is known, and the index of the mapping that contains the stack
/// pointer, if that mapping is a stack.
struct ThreadStack<'a> {
    thread: &'a Thread,
    stack: Option<usize>,
}

fn by_pointer<'a>(sorter: &mut Sorter<'_>, threads: &'a [Thread]) -> Vec<ThreadStack<'a>> {
    let mut found = Vec::new();
    for thread in threads {
        let Ok(pointer) = thread.stack_pointer else { continue };
        let index = index_at(sorter.mappings, pointer);
        let stack = index.filter(|&i| sorter.is_free_anonymous(i) && sorter.mappings[i].prot.write);
        found.push(ThreadStack { thread, stack });
    }
    let mut stacks: Vec<_> = found.iter().filter_map(|f| Some((f.stack?, f.thread))).collect();
    stacks.sort_by_key(|&(index, thread)| (index, thread.tid));
    // Without guards, the kernel merges adjacent stacks into one mapping.
    for sharers in stacks.chunk_by(|a, b| a.0 == b.0) {
        let (index, first) = sharers[0];
        let mark = PoolMark::Number(u64::from(first.tid.0));
        let name = || stack_name(&first.name, first.tid, sharers.len() - 1);
        sorter.put_marked(index, PoolKind::ThreadStack, mark, name);
    }
    found
}

/// Name of a mapping that contains the stack of a thread, and the stacks of `others` other threads.
pub(crate) fn stack_name(thread: &Name, tid: Pid, others: usize) -> Name {
    let mut name = match thread.as_bytes() {
        // A core file contains the name of the first thread only.
        b"" => format!("thread {tid}").into_bytes(),
        name => [name, format!(" ({tid})").as_bytes()].concat(),
    };
    if others > 0 {
        name.extend(format!(" and {others} more").bytes());
    }
    Name::new(&name)
}

/// Sizes of the stacks of this process, including their guards.
fn usual_sizes(sorter: &Sorter<'_>, found: &[ThreadStack<'_>]) -> HashSet<Bytes> {
    let limit = sorter.snapshot.limits.as_ref().ok().and_then(|l| l.stack.soft).map(Bytes);
    let stacks = found.iter().filter_map(|f| f.stack);
    let sizes = stacks.filter_map(|stack| {
        let guard = guard_of(sorter, stack)?;
        Some(sorter.mappings[guard].size() + sorter.mappings[stack].size())
    });
    sizes.chain(limit).chain([USUAL_STACK]).collect()
}

/// Index of the mapping directly below a stack, if it is inaccessible, small enough for a guard and
/// without a pool.
fn guard_of(sorter: &Sorter<'_>, stack: usize) -> Option<usize> {
    let index = stack.checked_sub(1)?;
    let guard = &sorter.mappings[index];
    let touches = guard.range.end == sorter.mappings[stack].range.start;
    let is_guard = touches && guard.prot.is_none() && guard.size() <= LARGEST_GUARD;
    (is_guard && sorter.is_free_anonymous(index)).then_some(index)
}

/// Assigns mappings with a guard to threads whose stack pointer is unknown; `unknown` is the number
/// of these threads. Mappings of a usual size come first. The remaining mappings of a usual size
/// are stacks that the C library caches for new threads.
fn by_guard(sorter: &mut Sorter<'_>, mut unknown: usize, usual: &HashSet<Bytes>) {
    let is_candidate = |(index, mapping): &(usize, &Mapping)| {
        mapping.prot.read && mapping.prot.write && sorter.is_free_anonymous(*index)
    };
    let candidates = sorter.mappings.iter().enumerate().filter(is_candidate);
    let pairs = candidates.filter_map(|(stack, _)| Some((guard_of(sorter, stack)?, stack)));
    let is_usual = |(guard, stack): &(usize, usize)| {
        let stack = sorter.mappings[*stack].size();
        // glibc 2.27 and newer add the guard to the requested size; older versions include the
        // guard in the size.
        usual.contains(&stack) || usual.contains(&(sorter.mappings[*guard].size() + stack))
    };
    let (likely, others): (Vec<_>, Vec<_>) = pairs.partition(is_usual);
    for (guard, stack) in likely {
        let kind = if unknown > 0 { PoolKind::ThreadStack } else { PoolKind::CachedStack };
        put_both(sorter, guard, stack, kind);
        unknown = unknown.saturating_sub(1);
    }
    for (guard, stack) in others.into_iter().take(unknown) {
        put_both(sorter, guard, stack, PoolKind::ThreadStack);
    }
}

fn put_both(sorter: &mut Sorter<'_>, guard: usize, stack: usize, kind: PoolKind) {
    let name = match kind {
        PoolKind::CachedStack => "of ended threads",
        _ => "of running threads",
    };
    sorter.put(guard, kind, name);
    sorter.put(stack, kind, name);
}
