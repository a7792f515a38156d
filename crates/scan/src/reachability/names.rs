//! Names of roots: variables, and the functions of stack frames and registers.

use pagewise_model::data_types::TypedVariable;
use pagewise_model::heap_graph::RootFrame;
use pagewise_model::{AddrRange, Name};
use pagewise_proc::data_symbols::{NamedVariable, NamedVariables};

use super::GraphRequest;
use crate::graph::{HeapPointers, RootSpan, RootSpanKind};
use crate::memory::Memory;

/// Thread-local variables of all threads together.
const MAX_THREAD_LOCALS: usize = 1 << 18;

/// Part of a stack that a function uses.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FrameArea {
    /// Its addresses.
    pub range: AddrRange,
    /// The function.
    pub frame: RootFrame,
}

/// Functions of threads.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ThreadFrames {
    /// Frames that contain a wanted address.
    pub areas: Vec<FrameArea>,
    /// The innermost function of each thread, whose registers the thread has, in the order of
    /// [`Memory::threads`]; empty if no thread is known.
    pub innermost: Vec<Option<RootFrame>>,
}

/// The stacks of threads, and the addresses on them whose functions are wanted.
#[expect(missing_debug_implementations, reason = "it holds the memory of a process")]
pub struct FrameRequest<'a> {
    /// The memory.
    pub memory: &'a dyn Memory,
    /// Stacks: index of the thread, and the addresses.
    pub stacks: &'a [(u32, AddrRange)],
    /// Addresses of pointers, in order.
    pub addresses: &'a [u64],
}

/// The name of an area.
pub(super) enum AreaName {
    Variable(NamedVariable),
    Frame(RootFrame),
}

/// Names of areas.
#[derive(Default)]
pub(super) struct RootNames {
    /// In order of address: variables, the thread-local variables of each thread, stack frames.
    pub(super) areas: Vec<AddrRange>,
    /// The name of each area.
    pub(super) named: Vec<AreaName>,
    /// Functions of registers by thread.
    pub(super) innermost: Vec<Option<RootFrame>>,
}

impl RootNames {
    /// Names the variables `found` by symbols and `typed` by debug information, and the functions.
    pub(super) fn new(
        memory: &dyn Memory,
        spans: &[RootSpan],
        pointers: &HeapPointers,
        request: &GraphRequest<'_>,
        found: NamedVariables,
        typed: &[TypedVariable],
    ) -> RootNames {
        let locals = memory.threads().iter().flat_map(|thread| {
            found.thread_local.iter().map(|variable| NamedVariable {
                range: AddrRange {
                    start: thread.thread_pointer.wrapping_add(variable.range.start),
                    end: thread.thread_pointer.wrapping_add(variable.range.end),
                },
                ..variable.clone()
            })
        });
        let mut variables: Vec<NamedVariable> = locals.take(MAX_THREAD_LOCALS).collect();
        variables.sort_by_key(|it| it.range);
        let unnamed: Vec<&TypedVariable> = typed
            .iter()
            .filter(|it| super::variable_at(&found.variables, it.range.start).is_none())
            .filter(|it| super::variable_at(&variables, it.range.start).is_none())
            .collect();
        variables.extend(unnamed.into_iter().map(|it| NamedVariable {
            range: it.range,
            name: it.name.clone(),
            module: it.module.clone(),
            source: it.source.clone(),
        }));
        variables.extend(found.variables.iter().cloned());
        variables.retain(|variable| !variable.range.is_empty());
        for variable in &mut variables {
            let name = (request.demangle)(&String::from_utf8_lossy(variable.name.as_bytes()));
            variable.name = Name::from(name.as_str());
        }
        let frames = thread_frames(memory, spans, pointers, request);
        let variables = variables.into_iter().map(|it| (it.range, AreaName::Variable(it)));
        let frame_areas = frames.areas.into_iter().map(|it| (it.range, AreaName::Frame(it.frame)));
        let mut all: Vec<(AddrRange, AreaName)> = variables.chain(frame_areas).collect();
        all.sort_by_key(|(range, _)| *range);
        let (areas, named) = all.into_iter().unzip();
        RootNames { areas, named, innermost: frames.innermost }
    }
}

fn thread_frames(
    memory: &dyn Memory,
    spans: &[RootSpan],
    pointers: &HeapPointers,
    request: &GraphRequest<'_>,
) -> ThreadFrames {
    // Leaks have no roots.
    if !request.retained && request.why.is_none() {
        return ThreadFrames::default();
    }
    let mut addresses: Vec<u64> = pointers.stack_addresses(spans).collect();
    addresses.sort_unstable();
    let stacks = thread_stacks(spans);
    let wanted = FrameRequest { memory, stacks: &stacks, addresses: &addresses };
    (request.frames)(&wanted)
}

/// The used parts of stacks, each with the index of its thread.
pub(super) fn thread_stacks(spans: &[RootSpan]) -> Vec<(u32, AddrRange)> {
    let mut stacks: Vec<(u32, AddrRange)> = Vec::new();
    for span in spans {
        let RootSpanKind::Stack(thread) = span.kind else { continue };
        match stacks.last_mut() {
            Some((last, range)) if *last == thread => range.end = span.range.end,
            _ => stacks.push((thread, span.range)),
        }
    }
    stacks
}
