//! Memory whose pointers keep blocks alive: registers, stacks, thread-local storage, data of ELF
//! objects, and other mappings that the allocator does not manage.

use pagewise_model::{AddrRange, Backing, Mapping, Sharing};

use crate::memory::{Memory, ScannedThread};

/// Number of bytes below the stack pointer that a function may use without moving the stack pointer
/// (System V ABI of x86-64).
const RED_ZONE: u64 = 128;
/// Upper bound in bytes of glibc's `struct pthread`, which begins at the thread pointer and has
/// 2,304 bytes in glibc 2.36.
const THREAD_CONTROL_BLOCK: u64 = 4 << 10;
/// Number of bytes at the end of a mapping that are searched for the control block of a thread that
/// has ended.
const CONTROL_BLOCK_SEARCH: u64 = 16 << 10;

/// Kind of memory that contains roots.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum RootSpanKind {
    /// General registers of the thread with this index in [`Memory::threads`].
    Registers(u32),
    /// The used part of the stack of the thread with this index.
    Stack(u32),
    /// Thread-local variables and control block of the thread with this index.
    ThreadLocal(u32),
    /// Data of an ELF object (`.data`, `.bss`, and data that the loader relocates) in the mapping
    /// with this index.
    Data(u32),
    /// The mapping with this index, if it is neither a stack nor data.
    Other(u32),
}

/// An address range that contains roots.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RootSpan {
    /// Kind of memory.
    pub kind: RootSpanKind,
    /// Address range; empty for registers.
    pub range: AddrRange,
}

/// Returns all memory that contains roots: registers first, then ranges in order of address.
/// `allocator` are the ranges that an allocator manages, in order of address. They contain no
/// roots, because the pointers of free lists do not keep blocks alive.
pub fn root_spans(memory: &dyn Memory, allocator: &[AddrRange], tls_bytes: u64) -> Vec<RootSpan> {
    let threads = memory.threads();
    let registers = (0..).zip(threads).map(|(thread, _)| RootSpan {
        kind: RootSpanKind::Registers(thread),
        range: AddrRange { start: 0, end: 0 },
    });
    let mut spans: Vec<RootSpan> = registers.collect();
    let mappings = memory.mappings();
    for at in 0..mappings.len() {
        if !may_hold_roots(mappings, at) {
            continue;
        }
        for span in of_mapping(memory, at, tls_bytes) {
            let without = range_without(span.range, allocator);
            spans.extend(without.into_iter().map(|range| RootSpan { range, ..span }));
        }
    }
    spans
}

/// True if the program can have stored pointers in the mapping, including memory that became
/// read-only later.
fn may_hold_roots(mappings: &[Mapping], at: usize) -> bool {
    let mapping = &mappings[at];
    let is_kept = mapping.prot.read && mapping.backing() != Backing::Special;
    is_kept
        && (mapping.prot.write
            || mapping.sharing == Sharing::Private && mapping.backing() == Backing::Anonymous
            || is_relocated(mappings, at))
}

/// True if the mapping is the part of an object's data that the loader makes read-only after
/// relocation (`PT_GNU_RELRO`): it lies directly below the writable part.
fn is_relocated(mappings: &[Mapping], at: usize) -> bool {
    let mapping = &mappings[at];
    mappings.get(at + 1).is_some_and(|next| {
        next.prot.write
            && mapping.inode != 0
            && !mapping.prot.exec
            && next.range.start == mapping.range.end
            && (next.device, next.inode) == (mapping.device, mapping.inode)
    })
}

/// True if the mapping is data of an ELF object: a private mapping of a file, or the anonymous
/// mapping directly after it, which is the end of `.bss`.
pub(crate) fn is_data(mappings: &[Mapping], at: usize) -> bool {
    let mapping = &mappings[at];
    // A core file contains neither inodes nor the sharing of file mappings.
    let of_file = |it: &Mapping| match it.sharing {
        Sharing::Private => it.inode != 0,
        Sharing::Unknown => it.backing() == Backing::File,
        Sharing::Shared => false,
    };
    let before = at.checked_sub(1).map(|before| &mappings[before]);
    let is_bss = before.is_some_and(|before| {
        mapping.name.is_empty()
            && mapping.inode == 0
            && of_file(before)
            && before.prot.write
            && before.range.end == mapping.range.start
    });
    of_file(mapping) || is_bss
}

fn of_mapping(memory: &dyn Memory, at: usize, tls_bytes: u64) -> Vec<RootSpan> {
    let mappings = memory.mappings();
    let mapping = &mappings[at];
    let index = u32::try_from(at).unwrap_or(u32::MAX);
    let stacks = stacks(memory.threads(), mappings, at);
    if stacks.is_empty() {
        if let Some(control_block) = finished_thread(memory, at) {
            // Only one word of the control block keeps a block alive: the address of the thread's
            // table of thread-local storage, which the next thread on this stack reuses. All other
            // data of the stack is dead.
            let start = control_block.saturating_add(8);
            let range = AddrRange { start, end: start.saturating_add(8) };
            return vec![RootSpan { kind: RootSpanKind::Other(index), range }];
        }
        let kind = if is_data(mappings, at) {
            RootSpanKind::Data(index)
        } else {
            RootSpanKind::Other(index)
        };
        return with_thread_local(
            memory.threads(),
            RootSpan { kind, range: mapping.range },
            tls_bytes,
        );
    }
    stacks
        .into_iter()
        .flat_map(|stack| with_thread_local(memory.threads(), stack, tls_bytes))
        .collect()
}

/// Returns the used parts of the stacks in a mapping. Several stacks separated by guard regions can
/// share a mapping. Returns no stack for a mapping that is not a thread's own stack, even if a
/// stack pointer points into it. Such a mapping can contain stacks of suspended coroutines, so no
/// part of it counts as unused.
fn stacks(threads: &[ScannedThread], mappings: &[Mapping], at: usize) -> Vec<RootSpan> {
    let mapping = mappings[at].range;
    let is_main = mappings[at].name.as_bytes() == b"[stack]";
    let is_guarded = is_guarded(mappings, at);
    let is_stack = |it: &ScannedThread| {
        let has_control_block =
            it.stack_pointer < it.thread_pointer && mapping.contains(it.thread_pointer);
        mapping.contains(it.stack_pointer) && (is_main || is_guarded && has_control_block)
    };
    let inside = (0_u32..).zip(threads).filter(|(_, it)| is_stack(it));
    let mut inside: Vec<(u64, u32, u64)> =
        inside.map(|(index, it)| (it.stack_pointer, index, it.thread_pointer)).collect();
    inside.sort_unstable();
    let next = inside.iter().skip(1).map(|&(start, ..)| start.saturating_sub(RED_ZONE));
    let bounds: Vec<u64> = next.chain([mapping.end]).collect();
    let spans = inside.iter().zip(bounds).map(|(&(pointer, index, thread_pointer), bound)| {
        let start = pointer.saturating_sub(RED_ZONE).max(mapping.start) & !7;
        // A stack contains no data of its thread above the thread's control block.
        let has_control_block = pointer < thread_pointer && thread_pointer < bound;
        let top = thread_pointer.saturating_add(THREAD_CONTROL_BLOCK);
        let end = if has_control_block { bound.min(top) } else { bound };
        RootSpan { kind: RootSpanKind::Stack(index), range: AddrRange { start, end } }
    });
    spans.filter(|span| !span.range.is_empty()).collect()
}

/// Splits a span at the thread-local storage in it. The storage of a thread consists of the
/// `tls_bytes` bytes below its thread pointer, and of the control block, which begins at the thread
/// pointer.
fn with_thread_local(threads: &[ScannedThread], span: RootSpan, tls_bytes: u64) -> Vec<RootSpan> {
    let mut areas: Vec<(AddrRange, u32)> = (0_u32..)
        .zip(threads)
        .filter(|(_, thread)| span.range.contains(thread.thread_pointer))
        .filter_map(|(index, thread)| {
            let area = AddrRange {
                start: thread.thread_pointer.saturating_sub(tls_bytes) & !7,
                end: thread.thread_pointer.saturating_add(THREAD_CONTROL_BLOCK),
            };
            Some((area.intersection(span.range)?, index))
        })
        .collect();
    areas.sort_unstable();
    let mut parts = Vec::new();
    let mut at = span.range.start;
    for (area, thread) in areas {
        let area = AddrRange { start: area.start.max(at), end: area.end };
        if area.is_empty() {
            continue;
        }
        parts.push(RootSpan { range: AddrRange { start: at, end: area.start }, ..span });
        parts.push(RootSpan { kind: RootSpanKind::ThreadLocal(thread), range: area });
        at = area.end;
    }
    parts.push(RootSpan { range: AddrRange { start: at, end: span.range.end }, ..span });
    parts.retain(|part| !part.range.is_empty());
    parts
}

/// True if a guard page is directly below the mapping.
fn is_guarded(mappings: &[Mapping], at: usize) -> bool {
    let below = at.checked_sub(1).map(|below| &mappings[below]);
    below.is_some_and(|it| it.prot.is_none() && it.range.end == mappings[at].range.start)
}

/// Returns the address of the control block of an ended thread in a stack that glibc keeps for the
/// next thread. A guard page is below such a stack, and the control block still contains its own
/// address at offsets 0 and 16 (`tcbhead_t`).
fn finished_thread(memory: &dyn Memory, at: usize) -> Option<u64> {
    let mapping = &memory.mappings()[at];
    let is_large = mapping.range.len().0 >= CONTROL_BLOCK_SEARCH;
    if !(is_guarded(memory.mappings(), at) && is_large && mapping.backing() == Backing::Anonymous) {
        return None;
    }
    let end = mapping.range.end;
    let search = AddrRange { start: (end - CONTROL_BLOCK_SEARCH).max(mapping.range.start), end };
    let is_live = |address| memory.threads().iter().any(|it| it.thread_pointer == address);
    let mut found = None;
    memory.visit(search, &mut |start, bytes| {
        let words = (start..).step_by(8).zip(bytes.chunks_exact(8));
        let own = words.filter(|(address, word)| address.to_le_bytes() == **word);
        let is_control_block = |address: u64| {
            memory.word(address.saturating_add(16)) == Some(address) && !is_live(address)
        };
        found = found.or_else(|| own.map(|(address, _)| address).find(|it| is_control_block(*it)));
    });
    found
}

/// Returns the parts of `range` that are not in `taken`, which is in order of address.
pub fn range_without(range: AddrRange, taken: &[AddrRange]) -> Vec<AddrRange> {
    let mut parts = Vec::new();
    let mut at = range.start;
    let first = taken.partition_point(|it| it.end <= range.start);
    for it in taken[first..].iter().take_while(|it| it.start < range.end) {
        parts.push(AddrRange { start: at, end: it.start.min(range.end) });
        at = at.max(it.end);
    }
    parts.push(AddrRange { start: at, end: range.end });
    parts.retain(|part| !part.is_empty());
    parts
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_of_the_allocator_are_cut_out() {
        let range = |start, end| AddrRange { start, end };
        let taken = [range(0, 10), range(20, 30), range(40, 50), range(90, 120)];
        assert_eq!(
            range_without(range(5, 100), &taken),
            [range(10, 20), range(30, 40), range(50, 90)]
        );
        assert_eq!(range_without(range(22, 28), &taken), []);
        assert_eq!(range_without(range(60, 70), &taken), [range(60, 70)]);
    }
}
