//! Large stacks: their unused resident pages, and the functions whose frames touched these pages.

use std::cmp::Reverse;
use std::collections::HashMap;
use std::time::Duration;

use pagewise_model::evidence::StackUse;
use pagewise_model::process::Thread;
use pagewise_model::traced::Frame;
use pagewise_model::trim::UnusedStack;
use pagewise_model::{Absent, AddrRange, Bytes, Mapping, Pid, Reading, Snapshot};
use pagewise_proc::{ProcRoot, unused_stacks};
use pagewise_scan::memory::Memory;
use pagewise_scan::running::RunningMemory;
use pagewise_trace::{ProcessCode, StackFrame};

use crate::stack_words::{
    MAX_CALL, OwnedBytes, ReturnAddress, is_behind_call, leaf_target, owned_bytes,
};

/// Minimum size of the used or of the unused resident part of a stack: smaller parts are harmless.
const LARGE: Bytes = Bytes::mib(1);
/// Maximum number of stacks whose functions are looked up: those with most unused memory.
const MAX_STACKS: usize = 4;
/// Number of bytes that are read from the deepest resident page of a stack upwards.
const DEEP_END: u64 = 1 << 20;
/// Maximum number of bytes that one call of [`Memory::visit`] reads.
const STEP: u64 = 256 << 10;
/// Maximum number of samples of the pages above the [`DEEP_END`] bytes.
const SAMPLES: u64 = 32;
/// Size of a sample in bytes.
const SAMPLE: u64 = 16 << 10;
/// Maximum number of return addresses whose code is read to check for a call instruction.
const MAX_CHECKED: usize = 4000;
/// Maximum number of return addresses of a stack whose functions are looked up: those with the
/// largest frames.
const MAX_ADDRESSES: usize = 32;
/// Maximum number of functions of a stack in the evidence.
const MAX_FUNCTIONS: usize = 4;
/// Maximum number of bytes above a stack pointer that are searched for the control block of the
/// thread.
const MAX_BLOCK_SEARCH: u64 = 64 << 20;

/// Reads the large stacks of a process. Also returns the longest pause of the process.
pub(crate) fn read(root: &ProcRoot, snapshot: &Snapshot) -> (Reading<Vec<StackUse>>, Duration) {
    let (mappings, threads) = match (&snapshot.mappings, &snapshot.threads) {
        (Ok(mappings), Ok(threads)) => (mappings, threads),
        (Err(why), _) | (_, Err(why)) => return (Err(why.clone()), Duration::ZERO),
    };
    let pid = snapshot.process.pid;
    let page_size = snapshot.provenance.page_size;
    let unused = match unused_stacks::read(root, pid, mappings, threads, page_size) {
        Ok(Ok(unused)) => unused.threads,
        Ok(Err(why)) => return (Err(why), Duration::ZERO),
        Err(error) => {
            return (Err(Absent::NotSupported(error.to_string().into())), Duration::ZERO);
        }
    };
    let memory = match RunningMemory::open(root, pid, page_size, mappings) {
        Ok(memory) => memory,
        Err(error) => {
            return (Err(Absent::NotSupported(error.to_string().into())), Duration::ZERO);
        }
    };
    let mut large = large_stacks(mappings, threads, &unused, pid);
    large.retain_mut(|stack| stack.is_main || stack.ends_at_control_block(&memory));
    let mut search = StackSearch { memory: &memory, mappings, pid, code: None };
    let stacks = large.into_iter().enumerate().map(|(at, stack)| {
        let functions = if at < MAX_STACKS { search.functions(stack.searched) } else { Vec::new() };
        StackUse { functions, ..stack.used }
    });
    let stacks = stacks.collect();
    (Ok(stacks), Duration::from_nanos(memory.longest_call_ns()))
}

/// A stack with much resident memory.
struct LargeStack {
    used: StackUse,
    is_main: bool,
    /// The part in which functions are searched: the unused part if it is large, else the used
    /// part.
    searched: AddrRange,
    /// The used part: from the stack pointer to the end of the mapping.
    within: AddrRange,
}

/// Finds the stacks with a large used or unused resident part, those with most unused memory first.
fn large_stacks(
    mappings: &[Mapping],
    threads: &[Thread],
    unused: &[UnusedStack],
    pid: Pid,
) -> Vec<LargeStack> {
    let below = |thread: &Thread| unused.iter().find(|it| it.tid == thread.tid);
    let mut large: Vec<LargeStack> = threads
        .iter()
        .filter_map(|thread| large_stack(mappings, thread, below(thread), thread.tid == pid))
        .collect();
    large.sort_by_key(|stack| (Reverse(stack.used.unused), Reverse(stack.used.resident)));
    large
}

/// Returns the stack of a thread if its used or its unused resident part is large.
fn large_stack(
    mappings: &[Mapping],
    thread: &Thread,
    below: Option<&UnusedStack>,
    is_main: bool,
) -> Option<LargeStack> {
    let pointer = thread.stack_pointer.as_ref().ok().copied();
    let known = below.map(|it| it.range.end).or(pointer);
    let holds = |it: &&Mapping| match known {
        Some(address) => it.range.start < address && address <= it.range.end,
        // The stack pointer of a running thread is unknown, but the mapping of the main stack has a
        // name.
        None => is_main && it.name.as_bytes() == b"[stack]",
    };
    let mapping = mappings.iter().find(holds)?;
    let resident = mapping.rss().ok()?;
    let within = AddrRange { start: known.unwrap_or(mapping.range.start), end: mapping.range.end };
    let unused = below.map_or(Bytes::ZERO, |it| it.resident);
    let used = within.len().min(resident.saturating_sub(unused));
    if unused < LARGE && used < LARGE {
        return None;
    }
    let searched = below.filter(|_| unused >= LARGE).map_or(within, |below| below.range);
    let functions = Vec::new();
    let (tid, name, range) = (thread.tid, thread.name.clone(), mapping.range);
    let used = StackUse { tid, name, range, resident, unused, functions };
    Some(LargeStack { used, is_main, searched, within })
}

impl LargeStack {
    /// Ends the stack at the control block of its thread, because the mapping can contain other
    /// memory above the stack. False if no control block is found, or the stack is not large.
    fn ends_at_control_block(&mut self, memory: &RunningMemory<'_>) -> bool {
        let Some(block) = control_block(memory, self.within) else { return false };
        self.within.end = block;
        self.searched.end = self.searched.end.min(block);
        let used = self.within.len();
        self.used.resident = self.used.resident.min(self.used.unused + used);
        self.used.unused >= LARGE || used >= LARGE
    }
}

/// Finds the address of the control block of a thread above its stack pointer. A stack of a
/// coroutine or of a goroutine has no control block at its end, because it lies in memory that is
/// also used for other purposes.
fn control_block(memory: &RunningMemory<'_>, within: AddrRange) -> Option<u64> {
    let end = within.end.min(within.start.saturating_add(MAX_BLOCK_SEARCH));
    let (mut start, mut found) = (within.start, None);
    while start < end && found.is_none() {
        let part = AddrRange { start, end: end.min(start.saturating_add(STEP)) };
        memory.visit(part, &mut |address, bytes| {
            let words: Vec<u64> =
                bytes.as_chunks().0.iter().map(|word| u64::from_le_bytes(*word)).collect();
            let block = |(at, words): &(u64, &[u64])| is_control_block(memory, *at, words);
            let own = (address..).step_by(8).zip(words.windows(BLOCK_WORDS)).find(block);
            found = found.or(own.map(|(at, _)| at));
        });
        start = part.end;
    }
    found
}

/// Number of words at the beginning of a control block that identify it.
const BLOCK_WORDS: usize = 4;

/// True if words are the beginning of a control block. Its first word is the address of the control
/// block, and
/// - in glibc (`tcbhead_t` of x86-64) the third word is the same address, but the second word is
///   not, unlike in the head of an empty list,
/// - in musl (`struct pthread`) the third and fourth words link the control blocks of all threads.
fn is_control_block(memory: &dyn Memory, at: u64, words: &[u64]) -> bool {
    let [own, second, third, fourth] = words else { return false };
    let linked = |address: u64, offset: u64| memory.word(address.saturating_add(offset));
    *own == at
        && *second != at
        && (*third == at || linked(*third, 24) == Some(at) && linked(*fourth, 16) == Some(at))
}

struct StackSearch<'a> {
    memory: &'a RunningMemory<'a>,
    mappings: &'a [Mapping],
    pid: Pid,
    code: Option<ProcessCode>,
}

impl StackSearch<'_> {
    /// Finds the functions that contain the return addresses of a range, those with the largest
    /// frames first. Also returns the number of occurrences of each function's return addresses, at
    /// least 1.
    fn functions(&mut self, range: AddrRange) -> Vec<(Frame, u64)> {
        let mut words = StackWords::default();
        let mut start = range.start;
        while start < range.end && words.read < DEEP_END {
            let part = AddrRange { start, end: range.end.min(start.saturating_add(STEP)) };
            self.visit(part, &mut words);
            start = part.end;
        }
        let stride = (range.end.saturating_sub(start) / SAMPLES).max(SAMPLE);
        for number in 0..SAMPLES {
            let start = start.saturating_add(number * stride);
            if start < range.end {
                let part = AddrRange { start, end: range.end.min(start + SAMPLE) };
                self.visit(part, &mut words);
            }
        }
        let Some(first) = words.first else { return Vec::new() };
        let leaf = words.found.first().map(|it| it.address);
        let leaf = leaf.and_then(|address| leaf_target(address, &self.before(address)?));
        let owned = owned_bytes(first, &words.found, range.end, leaf);
        self.named(owned)
    }

    fn visit(&self, range: AddrRange, words: &mut StackWords) {
        self.memory.visit(range, &mut |start, bytes| {
            words.first.get_or_insert(start);
            words.read += bytes.len() as u64;
            let values = bytes.as_chunks().0.iter().map(|word| u64::from_le_bytes(*word));
            for (location, address) in (start..).step_by(8).zip(values) {
                if self.returns_to(address, &mut words.checked) {
                    words.found.push(ReturnAddress { location, address });
                }
            }
        });
    }

    /// True if an address follows a call instruction, or is in code that cannot be read.
    fn returns_to(&self, address: u64, checked: &mut HashMap<u64, bool>) -> bool {
        if !self.is_code(address) {
            return false;
        }
        if let Some(known) = checked.get(&address) {
            return *known;
        }
        if checked.len() >= MAX_CHECKED {
            return false;
        }
        // The kernel may have dropped the page of the code. Such an address cannot be checked, and
        // counts as a return address.
        let is_behind = self.before(address).is_none_or(|code| is_behind_call(&code));
        checked.insert(address, is_behind);
        is_behind
    }

    /// Returns the bytes of code before an address; `None` if their page is not present.
    fn before(&self, address: u64) -> Option<[u8; MAX_CALL]> {
        let mut code = [0; MAX_CALL];
        let start = address.checked_sub(MAX_CALL as u64)?;
        self.memory.read_present(start, &mut code).then_some(code)
    }

    /// True if an address is in an executable mapping. Most words of a stack are not addresses of
    /// code.
    fn is_code(&self, address: u64) -> bool {
        let at = self.mappings.partition_point(|it| it.range.end <= address);
        self.mappings.get(at).is_some_and(|it| it.range.contains(address) && it.prot.exec)
    }

    fn named(&mut self, mut owned: Vec<OwnedBytes>) -> Vec<(Frame, u64)> {
        owned.sort_by_key(|it| (Reverse(it.bytes), it.address));
        owned.truncate(MAX_ADDRESSES);
        let code =
            self.code.get_or_insert_with(|| ProcessCode::of_process(self.pid, self.mappings));
        let mut functions: Vec<(Frame, u64, u64)> = Vec::new();
        for it in owned {
            let place = StackFrame { address: it.address, returns: it.count > 0, stack_pointer: 0 };
            // The frame belongs to the outermost function, into which the other functions were
            // inlined.
            let Some(frame) = code.functions(&place).pop() else { continue };
            let is_same = |known: &Frame| {
                known.function.is_some()
                    && (&known.function, &known.module) == (&frame.function, &frame.module)
            };
            match functions.iter_mut().find(|(known, ..)| is_same(known)) {
                Some((_, bytes, count)) => {
                    *bytes += it.bytes;
                    *count += it.count;
                }
                None => functions.push((frame, it.bytes, it.count)),
            }
        }
        functions.sort_by_key(|(_, bytes, _)| Reverse(*bytes));
        functions.truncate(MAX_FUNCTIONS);
        functions.into_iter().map(|(frame, _, count)| (frame, count.max(1))).collect()
    }
}

/// Return addresses that were found in a stack, and the state of the search.
#[derive(Default)]
struct StackWords {
    /// The deepest address that was read; `None` before the first read.
    first: Option<u64>,
    /// Number of bytes that were read.
    read: u64,
    /// The addresses whose code was checked, with the results.
    checked: HashMap<u64, bool>,
    found: Vec<ReturnAddress>,
}

#[cfg(test)]
mod tests {
    use pagewise_scan::memory::ScannedThread;

    use super::*;

    const AT: u64 = 0x1000;

    /// Memory that contains only these words, from [`AT`] on.
    struct WordMemory(Vec<u64>);

    impl Memory for WordMemory {
        fn mappings(&self) -> &[Mapping] {
            &[]
        }

        fn threads(&self) -> &[ScannedThread] {
            &[]
        }

        fn visit(&self, _: AddrRange, _: &mut dyn FnMut(u64, &[u8])) {}

        fn read(&self, address: u64, into: &mut [u8]) -> bool {
            let at = address.checked_sub(AT).and_then(|offset| usize::try_from(offset / 8).ok());
            let word = at.and_then(|at| self.0.get(at));
            word.is_some_and(|word| {
                into.copy_from_slice(&word.to_le_bytes());
                true
            })
        }
    }

    fn is_block(words: [u64; 4]) -> bool {
        is_control_block(&WordMemory(words.to_vec()), AT, &words)
    }

    #[test]
    fn control_blocks_of_glibc_and_musl_are_recognized() {
        assert!(is_block([AT, 0x7f00, AT, 1]), "glibc");
        assert!(is_block([AT, 0x7f00, AT, AT]), "musl with one thread");
        let (other, dtv) = (AT + 32, 0x7f00);
        let both = WordMemory(vec![AT, dtv, other, other, other, dtv, AT, AT]);
        assert!(is_control_block(&both, AT, &both.0[..4]), "musl with two threads");
    }

    #[test]
    fn an_object_that_points_to_itself_is_not_a_control_block() {
        assert!(!is_block([AT, 5, 0, 0]), "Go");
        assert!(!is_block([AT, AT, AT, AT]), "the head of an empty list");
        assert!(!is_block([AT + 8, 5, AT, 0]));
        assert!(!is_block([AT, 5, u64::MAX, u64::MAX]));
    }
}
