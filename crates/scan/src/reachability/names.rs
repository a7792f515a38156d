//! Names of roots: variables, and the functions of stack frames and registers.

use pagewise_model::data_types::TypedVariable;
use pagewise_model::heap_graph::RootFrame;
use pagewise_model::{AddrRange, Name};
use pagewise_proc::data_symbols::{NamedVariable, NamedVariables};

use super::GraphRequest;
use crate::graph::{HeapPointers, RootSpan, RootSpanKind};
use crate::memory::Memory;

/// Maximum number of thread-local variables in all threads together.
const MAX_THREAD_LOCALS: usize = 1 << 18;

/// Part of a stack that belongs to one function.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FrameArea {
    /// Address range.
    pub range: AddrRange,
    /// Function of the frame.
    pub frame: RootFrame,
}

/// Functions on the stacks of threads.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ThreadFrames {
    /// Frames that contain a requested address.
    pub areas: Vec<FrameArea>,
    /// Innermost function of each thread, in the order of [`Memory::threads`]. Roots in registers
    /// are named by this function. Empty if no thread is known.
    pub innermost: Vec<Option<RootFrame>>,
}

/// Request for the functions of stack addresses.
#[expect(missing_debug_implementations, reason = "it holds the memory of a process")]
pub struct FrameRequest<'a> {
    /// Memory of the process.
    pub memory: &'a dyn Memory,
    /// Stack ranges, each with the index of its thread.
    pub stacks: &'a [(u32, AddrRange)],
    /// Addresses of pointers, in ascending order.
    pub addresses: &'a [u64],
}

/// Name of an area.
pub(super) enum AreaName {
    Variable(NamedVariable),
    Frame(RootFrame),
}

/// Names of areas and registers.
#[derive(Default)]
pub(super) struct RootNames {
    /// Areas in order of address: variables, thread-local variables of each thread, stack frames.
    pub(super) areas: Vec<AddrRange>,
    /// The name of each area.
    pub(super) named: Vec<AreaName>,
    /// Innermost function of each thread.
    pub(super) innermost: Vec<Option<RootFrame>>,
}

impl RootNames {
    /// Names the areas: variables `found` by symbols, variables `typed` by debug information, and
    /// stack frames.
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
    // Leaks need no names of roots.
    if !request.retained && request.why.is_none() {
        return ThreadFrames::default();
    }
    let mut addresses: Vec<u64> = pointers.stack_addresses(spans).collect();
    addresses.sort_unstable();
    let stacks = thread_stacks(spans);
    let wanted = FrameRequest { memory, stacks: &stacks, addresses: &addresses };
    (request.frames)(&wanted)
}

/// Returns the used parts of stacks, each with the index of its thread.
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
