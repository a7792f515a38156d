//! Large stacks: resident pages that no function uses, and the functions that touched them.

use std::cmp::Reverse;
use std::collections::HashMap;
use std::time::Duration;

use pagewise_model::evidence::StackUse;
use pagewise_model::traced::Frame;
use pagewise_model::trim::UnusedStack;
use pagewise_model::{Absent, AddrRange, Bytes, Mapping, Pid, Reading, Snapshot};
use pagewise_proc::{ProcRoot, unused_stacks};
use pagewise_scan::memory::Memory;
use pagewise_scan::running::RunningMemory;
use pagewise_trace::{ProcessCode, StackFrame};

/// Smaller stacks do not matter.
const LARGE: Bytes = Bytes::mib(1);
/// Number of stacks whose functions are looked up, largest first.
const MAX_STACKS: usize = 4;
/// Bytes of a stack that are read, from its deepest resident page up, and bytes of one step.
const MAX_READ: u64 = 2 << 20;
const STEP: u64 = 256 << 10;
/// Return addresses of a stack whose functions are looked up, most frequent first.
const MAX_ADDRESSES: usize = 24;
/// Functions of a stack in the evidence.
const MAX_FUNCTIONS: usize = 4;

/// Reads the large stacks of a process; also the longest pause.
pub(crate) fn read(root: &ProcRoot, snapshot: &Snapshot) -> (Reading<Vec<StackUse>>, Duration) {
    let mappings = match (&snapshot.mappings, &snapshot.threads) {
        (Ok(mappings), Ok(_)) => mappings,
        (Err(why), _) | (_, Err(why)) => return (Err(why.clone()), Duration::ZERO),
    };
    let pid = snapshot.process.pid;
    let page_size = snapshot.provenance.page_size;
    let threads = snapshot.threads.as_deref().unwrap_or_default();
    let unused = match unused_stacks::read(root, pid, mappings, threads, page_size) {
        Ok(Ok(unused)) => unused,
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
    let mut large: Vec<UnusedStack> = unused.threads;
    large.retain(|stack| stack.resident >= LARGE);
    large.sort_by_key(|stack| Reverse(stack.resident));
    let mut search = StackSearch { memory: &memory, mappings, pid, code: None };
    let stacks = large.into_iter().enumerate().filter_map(|(at, stack)| {
        let mapping = mappings.iter().find(|it| it.range.contains(stack.range.start))?;
        let functions = if at < MAX_STACKS { search.functions(stack.range) } else { Vec::new() };
        Some(StackUse {
            tid: stack.tid,
            name: stack.name,
            range: mapping.range,
            resident: mapping.rss().unwrap_or(stack.resident),
            unused: stack.resident,
            functions,
        })
    });
    let stacks = stacks.collect();
    (Ok(stacks), Duration::from_nanos(memory.longest_call_ns()))
}

struct StackSearch<'a> {
    memory: &'a RunningMemory<'a>,
    mappings: &'a [Mapping],
    pid: Pid,
    code: Option<ProcessCode>,
}

impl StackSearch<'_> {
    /// Functions to which words of a range lead as return addresses, most frequent first.
    fn functions(&mut self, range: AddrRange) -> Vec<(Frame, u64)> {
        let mut counts: HashMap<u64, u64> = HashMap::new();
        let (mut start, mut read) = (range.start, 0);
        while start < range.end && read < MAX_READ {
            let end = range.end.min(start.saturating_add(STEP));
            self.memory.visit(AddrRange { start, end }, &mut |_, bytes| {
                read += bytes.len() as u64;
                for word in bytes.as_chunks().0 {
                    let word = u64::from_le_bytes(*word);
                    if self.is_code(word) {
                        *counts.entry(word).or_default() += 1;
                    }
                }
            });
            start = end;
        }
        let mut addresses: Vec<(u64, u64)> = counts.into_iter().collect();
        addresses.sort_by_key(|(address, count)| (Reverse(*count), *address));
        addresses.truncate(MAX_ADDRESSES);
        self.named(&addresses)
    }

    /// True if an address is in code. Most words of a stack are not.
    fn is_code(&self, address: u64) -> bool {
        let at = self.mappings.partition_point(|it| it.range.end <= address);
        self.mappings.get(at).is_some_and(|it| it.range.contains(address) && it.prot.exec)
    }

    fn named(&mut self, addresses: &[(u64, u64)]) -> Vec<(Frame, u64)> {
        let code =
            self.code.get_or_insert_with(|| ProcessCode::of_process(self.pid, self.mappings));
        let mut functions: Vec<(Frame, u64)> = Vec::new();
        for &(address, count) in addresses {
            let place = StackFrame { address, returns: true, stack_pointer: 0 };
            let Some(frame) = code.functions(&place).into_iter().next() else { continue };
            let is_same = |known: &Frame| {
                known.function.is_some()
                    && (&known.function, &known.module) == (&frame.function, &frame.module)
            };
            match functions.iter_mut().find(|(known, _)| is_same(known)) {
                Some((_, sum)) => *sum += count,
                None => functions.push((frame, count)),
            }
        }
        functions.sort_by_key(|(_, count)| Reverse(*count));
        functions.truncate(MAX_FUNCTIONS);
        functions
    }
}
