//! Finds the functions of stack frames, and the types of data, of a scanned process: joins the
//! memory that `scan` copied with the tables and debug information that `trace` reads.

use std::cell::RefCell;
use std::collections::HashMap;

use pagewise_model::data_types::DataTypes;
use pagewise_model::heap_graph::RootFrame;
use pagewise_model::traced::Frame;
use pagewise_model::{AddrRange, Name};
use pagewise_scan::memory::{Memory, ScannedThread};
use pagewise_scan::reachability::{FrameArea, FrameRequest, ThreadFrames, WantedTypes};
use pagewise_trace::{ProcessCode, StackFrame, TypedData};

/// Maximum number of bytes of a stack, from the stack pointer on, that are unwound.
const MAX_STACK: u64 = 1 << 20;
/// Maximum number of threads whose stacks are unwound.
const MAX_THREADS: usize = 1 << 14;
/// Maximum number of frames that get the name of their function.
const MAX_FRAMES: usize = 1 << 16;

/// The code of a scanned process; `None` after [`ScannedCode::frames`].
pub(super) struct ScannedCode(RefCell<Option<ProcessCode>>);

impl ScannedCode {
    pub(super) fn new(code: ProcessCode) -> ScannedCode {
        ScannedCode(RefCell::new(Some(code)))
    }

    pub(super) fn data_types(&self, wanted: &WantedTypes<'_>) -> DataTypes {
        let mut code = self.0.borrow_mut();
        let Some(code) = code.as_mut() else { return DataTypes::default() };
        let threads = threads_with_stacks(wanted.memory, wanted.stacks);
        let stacks: Vec<Vec<StackFrame>> =
            threads.map(|(thread, stack)| unwound(code, wanted.memory, thread, stack)).collect();
        let WantedTypes { addresses, classes, .. } = *wanted;
        code.data_types(&TypedData { addresses, classes, stacks: &stacks })
    }

    /// Returns the frames that contain one of the wanted addresses, and the innermost function of
    /// each thread.
    pub(super) fn frames(&self, wanted: &FrameRequest<'_>) -> ThreadFrames {
        let mut found = ThreadFrames::default();
        // This is the last use of the process's code. Its debug information takes several MiB,
        // which are released before the search of dominators needs the most memory.
        let Some(code) = &mut self.0.take() else { return found };
        for (thread, stack) in threads_with_stacks(wanted.memory, wanted.stacks) {
            let frames = unwound(code, wanted.memory, thread, stack);
            found.innermost.push(frames.first().map(|frame| named(code, frame, 0)));
            for (depth, frame) in (0_u32..).zip(&frames) {
                let range = range_of(&frames, depth, stack);
                let next = wanted.addresses.partition_point(|&it| it < range.start);
                let is_wanted = wanted.addresses.get(next).is_some_and(|&it| range.contains(it));
                if is_wanted && found.areas.len() < MAX_FRAMES {
                    let frame = named(code, frame, depth);
                    found.areas.push(FrameArea { range, frame });
                }
            }
        }
        found
    }
}

/// Returns the threads whose stacks are unwound, each with the used part of its stack.
fn threads_with_stacks<'a>(
    memory: &'a dyn Memory,
    stacks: &[(u32, AddrRange)],
) -> impl Iterator<Item = (&'a ScannedThread, AddrRange)> + use<'a> {
    let stacks: HashMap<u32, AddrRange> = stacks.iter().copied().collect();
    memory.threads().iter().zip(0_u32..).take(MAX_THREADS).map(move |(thread, at)| {
        let stack = stacks.get(&at).copied();
        (thread, stack.unwrap_or_else(|| mapped_stack(memory, thread)))
    })
}

/// Returns the mapped memory from the stack pointer of a thread on. Used if the bounds of the stack
/// are unknown.
fn mapped_stack(memory: &dyn Memory, thread: &ScannedThread) -> AddrRange {
    let start = thread.stack_pointer;
    let mapping = memory.mappings().iter().find(|it| it.range.contains(start));
    AddrRange { start, end: mapping.map_or(start, |it| it.range.end) }
}

fn unwound(
    code: &mut ProcessCode,
    memory: &dyn Memory,
    thread: &ScannedThread,
    stack: AddrRange,
) -> Vec<StackFrame> {
    let Ok(registers) = <&[u64; 17]>::try_from(thread.registers.as_slice()) else {
        return Vec::new();
    };
    let start = thread.stack_pointer;
    let length = stack.end.saturating_sub(start).min(MAX_STACK);
    let range = AddrRange { start, end: start.saturating_add(length) };
    // Pages that were never touched are not in the copy: they are zero-filled.
    let mut bytes = vec![0; usize::try_from(length).unwrap_or(0)];
    memory.visit(range, &mut |address, piece| {
        let at = address.checked_sub(start).and_then(|at| usize::try_from(at).ok());
        let rest = at.and_then(|at| bytes.get_mut(at..)).unwrap_or_default();
        let length = rest.len().min(piece.len());
        rest[..length].copy_from_slice(&piece[..length]);
    });
    code.frames(registers, &bytes)
}

/// Returns the addresses of a frame: from its stack pointer to the stack pointer of its caller. The
/// innermost frame also contains the red zone.
fn range_of(frames: &[StackFrame], depth: u32, stack: AddrRange) -> AddrRange {
    let depth = depth as usize;
    let start = if depth == 0 { stack.start } else { frames[depth].stack_pointer };
    let end = frames.get(depth + 1).map_or(stack.end, |caller| caller.stack_pointer);
    AddrRange { start: start.min(end), end }
}

/// Returns the function of a frame. If functions were inlined into this function, they share the
/// frame, and the outermost function is returned.
fn named(code: &mut ProcessCode, frame: &StackFrame, depth: u32) -> RootFrame {
    let functions = code.functions(frame);
    let outer = functions.last();
    let name = |text: &String| Name::from(text.as_str());
    let line = outer.and_then(|it| it.line.as_ref());
    RootFrame {
        depth,
        function: outer.and_then(|it: &Frame| it.function.as_ref()).map(name),
        module: outer.and_then(|it| it.module.clone()),
        source: line.map(|line| name(&line.file)),
        line: line.map_or(0, |line| line.number),
    }
}
