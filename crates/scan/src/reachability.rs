//! The pointer graph of a heap as a model value: leaks, retained bytes and paths, with names of
//! roots and types.

mod names;
mod thread_storage;
mod types;

use std::cmp::Reverse;
use std::collections::HashMap;
use std::time::Instant;

use pagewise_model::data_types::DataTypes;
use pagewise_model::heap_graph::{
    AllocationStacks, HeapGraph, HeapRoot, KeptBlock, KeptStep, LeakGroup, RetainingRoot,
    RetentionEntry, RetentionStep, RootKind, RootPath,
};
use pagewise_model::heap_scan::LiveAmount;
use pagewise_model::traced::Frame;
use pagewise_model::units::nanoseconds;
use pagewise_model::{Absent, AddrRange, Name, Reading};
use pagewise_proc::data_symbols::{NamedVariable, NamedVariables};

use names::{AreaName, RootNames};
pub use names::{FrameArea, FrameRequest, ThreadFrames};
use types::{HeapTypes, TypingMemory};

use crate::ScanError;
use crate::blocks::BlockTable;
use crate::graph::{
    BlockRounding, DominatorTree, HeapLeaks, KeepPath, NodeClass, PathSearch, PointerGraph,
    RetainedSizes, RetentionNode, RetentionTree, RootPart, RootSpan, RootSpanKind, Traversal,
    dominators, heap_pointers, root_spans,
};
use crate::leak_sample::leak_sample;
use crate::memory::Memory;

/// Maximum number of groups of leaks, and of roots, in a scan.
const MAX_ROWS: usize = 10_000;
/// Maximum number of entries in the tree of retained bytes.
const MAX_ENTRIES: usize = 5000;
/// Inverse of the minimum share of an entry: an entry retains at least 1/N of all retained bytes.
const MIN_ENTRY_PART: u64 = 5000;
/// Maximum number of paths to a block.
const MAX_PATHS: usize = 16;
/// Limits for blocks that several roots keep alive. `MAX_SEVERAL` is the maximum number of named
/// roots of a row, `MAX_NAMED_ROWS` that of rows with named roots, and `MAX_NAME_NODES` that of
/// nodes that the search for the roots of one row visits.
const MAX_SEVERAL: usize = 4;
const MAX_NAMED_ROWS: usize = 100;
const MAX_NAME_NODES: usize = 1 << 17;
/// Number of blocks that are reported from each end of a path. The blocks between them are omitted.
const PATH_END: usize = 16;
/// Number of leading bytes of a leaked block that are reported.
const FIRST_BYTES: usize = 16;

/// Request for the types of variables and classes.
#[derive(Clone, Copy)]
#[expect(missing_debug_implementations, reason = "it holds the memory of a process")]
pub struct WantedTypes<'a> {
    /// Addresses in global and static variables, in ascending order.
    pub addresses: &'a [u64],
    /// Names of the classes.
    pub classes: &'a [Name],
    /// Memory of the process, with the threads whose local and thread-local variables are
    /// requested.
    pub memory: &'a dyn Memory,
    /// Stack ranges, each with the index of its thread.
    pub stacks: &'a [(u32, AddrRange)],
}

/// Finds the types of variables and of classes.
pub type FindTypes<'a> = dyn Fn(&WantedTypes<'_>) -> DataTypes + 'a;

/// Finds the call stacks that allocated the blocks at these start addresses.
pub type FindAllocations<'a> = dyn Fn(&[u64]) -> Reading<AllocationStacks> + 'a;

/// Analyses of a pointer graph to carry out.
#[expect(missing_debug_implementations, reason = "it holds functions")]
pub struct GraphRequest<'a> {
    /// True to compute retained bytes.
    pub retained: bool,
    /// Address to which paths are searched.
    pub why: Option<u64>,
    /// Finds the variables that contain the given addresses, which are in ascending order.
    pub variables: &'a dyn Fn(&[u64]) -> NamedVariables,
    /// Finds the functions on the stacks of threads.
    pub frames: &'a dyn Fn(&FrameRequest<'_>) -> ThreadFrames,
    /// Finds types; `None` if types are not wanted.
    pub types: Option<&'a FindTypes<'a>>,
    /// Finds the call stacks that allocated leaked blocks, whose addresses are in ascending order.
    pub allocations: &'a FindAllocations<'a>,
    /// Memory of a heap recorder in the process, which contains no roots.
    pub recorder: &'a [AddrRange],
    /// Demangles a symbol name.
    pub demangle: &'a dyn Fn(&str) -> String,
}

/// Analyzes the pointers of a heap. `managed` is the memory of the allocators, in order of address.
/// `rounding` is the allocators' rounding of block sizes.
///
/// # Errors
/// [`ScanError::NoHeap`] if the heap has more blocks than a graph can contain.
///
/// # Complexity
/// Linear in the memory; O(n log n) in the number of pointers for the dominators.
pub fn heap_graph(
    memory: &dyn Memory,
    blocks: &BlockTable,
    managed: &[AddrRange],
    rounding: BlockRounding,
    request: &GraphRequest<'_>,
) -> Result<HeapGraph, ScanError> {
    let began = Instant::now();
    let thread_local_bytes = (request.variables)(&[]).thread_local_bytes;
    let taken = joined(managed.iter().chain(request.recorder).copied().collect());
    let spans = root_spans(memory, &taken, thread_local_bytes.saturating_add(TLS_SURPLUS));
    let mut pointers = heap_pointers(memory, blocks, &spans)
        .ok_or(ScanError::NoHeap("it has too many blocks to search their pointers"))?;
    let data = sorted(pointers.data_addresses(&spans));
    let words = pointers.types.words().iter().copied();
    let found = (request.variables)(&sorted(data.iter().copied().chain(words)));
    let mut types = HeapTypes::of_classes(&pointers, &found, request);
    let input = TypingMemory { memory, blocks, rounding, spans: &spans, addresses: &data };
    types.add_data_types(&input, &mut pointers, request);
    let names = RootNames::new(memory, &spans, &pointers, request, found, types.variables());
    let graph = PointerGraph::new(pointers, &spans, &names.areas);
    let described = DescribedGraph {
        memory,
        blocks,
        spans: &spans,
        graph: &graph,
        names: &names,
        types: &types,
        allocations: request.allocations,
    };
    let mut found = if request.retained || request.why.is_some() {
        let (traversal, tree) = dominators(&graph);
        let mut found = described.reachability(&traversal);
        let mut shared = Vec::new();
        if request.retained {
            (found.retained, shared, found.retention) = described.retention(&traversal, &tree);
        }
        let of_block = request.why.map(|asked| described.retained_by(asked, &traversal, &tree));
        // These two values are freed first, because the search for paths needs as much memory as
        // they take.
        drop((traversal, tree));
        described.name_several(&mut found.retained, &shared);
        found.why = request.why.zip(of_block).map(|(asked, amount)| described.kept(asked, amount));
        found
    } else {
        described.reachability(&Traversal::new(&graph))
    };
    found.types = types.summary(blocks, |block| graph.types().number(block));
    found.took_ns = nanoseconds(began.elapsed());
    Ok(found)
}

/// Returns ranges in order of address; overlapping and adjacent ranges are joined.
fn joined(mut ranges: Vec<AddrRange>) -> Vec<AddrRange> {
    ranges.sort_unstable();
    ranges.dedup_by(|next, last| {
        let touches = next.start <= last.end;
        if touches {
            last.end = last.end.max(next.end);
        }
        touches
    });
    ranges
}

fn sorted(addresses: impl Iterator<Item = u64>) -> Vec<u64> {
    let mut addresses: Vec<u64> = addresses.collect();
    addresses.sort_unstable();
    addresses.dedup();
    addresses
}

/// Number of bytes that glibc reserves below the thread pointer for variables of libraries that are
/// loaded later (1,664 in glibc 2.36), rounded down. The frames of a thread begin below this space.
const TLS_SURPLUS: u64 = 1600;

fn variable_at(variables: &[NamedVariable], address: u64) -> Option<&NamedVariable> {
    let after = variables.partition_point(|variable| variable.range.start <= address);
    variables[..after].last().filter(|variable| variable.range.contains(address))
}

/// A graph with the data that describes its nodes.
struct DescribedGraph<'a> {
    memory: &'a dyn Memory,
    blocks: &'a BlockTable,
    spans: &'a [RootSpan],
    graph: &'a PointerGraph,
    names: &'a RootNames,
    types: &'a HeapTypes,
    allocations: &'a FindAllocations<'a>,
}

/// Call stacks that allocated the heads of leaks, in the order of the leaks.
struct LeakStacks(Reading<AllocationStacks>);

impl LeakStacks {
    fn number(&self, leak: usize) -> Option<u32> {
        self.0.as_ref().ok()?.of_blocks.get(leak).copied().flatten()
    }

    fn stack(&self, number: Option<u32>) -> Reading<Vec<Frame>> {
        let known = self.0.as_ref().map_err(Absent::clone)?;
        let stack = number.and_then(|number| known.stacks.get(number as usize)).cloned();
        stack.ok_or_else(|| {
            Absent::NotCollected(
                "no call stack of this block was recorded: it is older than the recording or newer, or sampling left it out"
                    .into(),
            )
        })
    }
}

impl DescribedGraph<'_> {
    fn reachability(&self, traversal: &Traversal) -> HeapGraph {
        let leaks = HeapLeaks::new(self.graph, traversal, self.blocks);
        let all = (0..self.blocks.len()).filter_map(|at| self.blocks.get(at));
        let bytes: u64 = all.map(|block| block.size).sum();
        HeapGraph {
            reachable: LiveAmount {
                blocks: self.blocks.len() as u64 - leaks.blocks,
                bytes: bytes - leaks.bytes,
            },
            leaked: LiveAmount { blocks: leaks.blocks, bytes: leaks.bytes },
            leaks: self.leak_groups(&leaks),
            leak_sample: leak_sample(self.memory, self.blocks, &leaks),
            roots: self.graph.roots().len() as u64,
            pointers: self.graph.pointers() as u64,
            unrecorded: self.graph.unrecorded(),
            ..HeapGraph::default()
        }
    }

    fn leak_groups(&self, leaks: &HeapLeaks) -> Vec<LeakGroup> {
        let mut groups: HashMap<(u64, u32, Option<u32>), LeakGroup> = HashMap::new();
        let stacks = self.leak_stacks(leaks);
        for (at, leak) in leaks.leaks.iter().enumerate() {
            let Some(block) = self.blocks.get(leak.head as usize) else { continue };
            let block_type = self.graph.types().number(leak.head);
            let stack = stacks.number(at);
            let key = (block.size, block_type, stack);
            let group = groups.entry(key).or_insert_with(|| LeakGroup {
                leaks: 0,
                blocks: 0,
                bytes: 0,
                size: block.size,
                block_type: self.type_name(block_type),
                address: block.start,
                first_bytes: self.first_bytes(block.start, block.size),
                stack: stacks.stack(stack),
            });
            group.leaks += 1;
            group.blocks += leak.blocks;
            group.bytes += leak.bytes;
        }
        let mut groups: Vec<LeakGroup> = groups.into_values().collect();
        groups.sort_by_key(|group| (Reverse(group.bytes), group.size, group.address));
        groups.truncate(MAX_ROWS);
        groups
    }

    fn leak_stacks(&self, leaks: &HeapLeaks) -> LeakStacks {
        if leaks.leaks.is_empty() {
            return LeakStacks(Ok(AllocationStacks::default()));
        }
        let start = |head: u32| self.blocks.get(head as usize).map_or(0, |block| block.start);
        let starts: Vec<u64> = leaks.leaks.iter().map(|leak| start(leak.head)).collect();
        LeakStacks((self.allocations)(&starts))
    }

    fn first_bytes(&self, address: u64, size: u64) -> Vec<u8> {
        let mut bytes = vec![0; usize::try_from(size).unwrap_or(usize::MAX).min(FIRST_BYTES)];
        let is_read = self.memory.read(address, &mut bytes);
        bytes.truncate(if is_read { FIRST_BYTES } else { 0 });
        bytes
    }

    fn type_name(&self, number: u32) -> Option<Name> {
        self.types.name(number)
    }

    fn step(&self, block: u32) -> KeptStep {
        let found = self.blocks.get(block as usize);
        KeptStep {
            address: found.map_or(0, |block| block.start),
            size: found.map_or(0, |block| block.size),
            block_type: self.type_name(self.graph.types().number(block)),
            member: None,
        }
    }

    /// Name of the member of a node (a block or a root) that points to the block `to`.
    fn member(&self, node: u32, to: u32) -> Option<Name> {
        match self.graph.root_of(node) {
            None => self.types.member(self.memory, self.blocks, node, to),
            Some(_) => {
                let address = self.graph.root_pointer(node, to)?;
                self.types.variable_member(self.memory, self.blocks, address, to)
            }
        }
    }

    fn root(&self, node: u32) -> HeapRoot {
        let several = HeapRoot {
            kind: RootKind::Several,
            name: Name::default(),
            module: None,
            source: None,
            frame: None,
            tid: None,
            address: 0,
        };
        let Some(root) = self.graph.root_of(node) else { return several };
        let span = root.span.and_then(|span| self.spans.get(span as usize));
        let Some(span) = span else { return HeapRoot { kind: RootKind::Unrecorded, ..several } };
        let area = match root.part {
            RootPart::Area(area) => self.names.named.get(area as usize),
            RootPart::Word | RootPart::Rest => None,
        };
        let (variable, mut frame) = match area {
            Some(AreaName::Variable(variable)) => (Some(variable), None),
            Some(AreaName::Frame(frame)) => (None, Some(frame)),
            None => (None, None),
        };
        if let RootSpanKind::Registers(thread) = span.kind {
            frame = self.names.innermost.get(thread as usize).and_then(Option::as_ref);
        }
        let (kind, thread, mapping) = match span.kind {
            RootSpanKind::Registers(thread) => (RootKind::Register, Some(thread), None),
            RootSpanKind::Stack(thread) => (RootKind::Stack, Some(thread), None),
            RootSpanKind::ThreadLocal(thread) => (RootKind::ThreadLocal, Some(thread), None),
            RootSpanKind::Data(mapping) => (RootKind::Data, None, Some(mapping)),
            RootSpanKind::Other(mapping) => (RootKind::Mapping, None, Some(mapping)),
        };
        let thread = thread.and_then(|thread| self.memory.threads().get(thread as usize));
        let thread_name = thread.map(|thread| Name::from(thread.name.as_slice()));
        let mapping_name = mapping.map(|mapping| self.mapping_name(mapping));
        HeapRoot {
            kind: if variable.is_some() && kind == RootKind::Data {
                RootKind::Variable
            } else {
                kind
            },
            name: variable
                .map(|variable| variable.name.clone())
                .or(thread_name)
                .or(mapping_name)
                .unwrap_or_default(),
            module: variable.map(|variable| variable.module.clone()),
            source: variable.and_then(|variable| variable.source.clone()),
            frame: frame.cloned(),
            tid: thread.map(|thread| thread.tid),
            address: root.address,
        }
    }

    /// Name of a mapping. For the anonymous end of `.bss` it is the name of the mapping before it.
    fn mapping_name(&self, mapping: u32) -> Name {
        let mappings = self.memory.mappings();
        let mapping = mapping as usize;
        let Some(own) = mappings.get(mapping) else { return Name::default() };
        let before = mapping.checked_sub(1).and_then(|before| mappings.get(before));
        match before
            .filter(|it| own.name.is_empty() && it.inode != 0 && it.range.end == own.range.start)
        {
            Some(before) => before.name.clone(),
            None => own.name.clone(),
        }
    }

    /// Returns the rows of retained bytes; the index and first block of each row whose blocks
    /// several roots keep alive; and the tree of retained bytes.
    fn retention(
        &self,
        traversal: &Traversal,
        tree: &DominatorTree,
    ) -> (Vec<RetainingRoot>, Vec<(usize, u32)>, Vec<RetentionEntry>) {
        let retention = RetentionTree::new(self.graph, traversal, tree, self.blocks);
        let below = LargestBelow::new(&retention);
        let mut tops: Vec<usize> = (0..retention.entries.len())
            .filter(|&at| {
                retention.entries[at].parent.is_none() && retention.entries[at].retained_blocks > 0
            })
            .collect();
        tops.sort_by_key(|&at| Reverse(retention.entries[at].retained_bytes));
        tops.truncate(MAX_ROWS);
        let roots = tops.iter().map(|&at| {
            let entry = &retention.entries[at];
            RetainingRoot {
                root: self.root(entry.first),
                retained: retained_of(entry),
                path: self.path_down(&retention, &below, at, traversal),
                roots: Vec::new(),
                has_more_roots: false,
            }
        });
        let shared = tops.iter().map(|&at| &retention.entries[at]).enumerate();
        let shared = shared.filter(|(_, entry)| entry.is_shared());
        let shared = shared.map(|(row, entry)| (row, entry.first)).take(MAX_NAMED_ROWS).collect();
        (roots.collect(), shared, self.entries(&retention, traversal))
    }

    /// Fills in the names of the roots in rows whose blocks several roots keep alive.
    fn name_several(&self, rows: &mut [RetainingRoot], shared: &[(usize, u32)]) {
        if shared.is_empty() {
            return;
        }
        let mut search = PathSearch::new(self.graph);
        for &(row, block) in shared {
            let paths = search.paths_to(block, MAX_SEVERAL + 1, MAX_NAME_NODES);
            let row = &mut rows[row];
            // If fewer than two roots were found, the other roots are beyond the visited nodes.
            row.has_more_roots = paths.len() > MAX_SEVERAL || paths.len() < 2;
            let named = paths.iter().take(MAX_SEVERAL);
            row.roots = named.map(|path| self.root_path(path).root).collect();
        }
    }

    /// Returns the entries from a root down, as long as an entry retains at least half of the
    /// root's bytes.
    fn path_down(
        &self,
        retention: &RetentionTree,
        below: &LargestBelow,
        top: usize,
        traversal: &Traversal,
    ) -> Vec<RetentionStep> {
        let all = retention.entries[top].retained_bytes;
        let largest = |&at: &usize| below.0[at].map(|next| next as usize);
        let entries = std::iter::successors(Some(top), largest);
        let large = entries.take_while(|&at| retention.entries[at].retained_bytes >= all / 2);
        large.filter_map(|at| self.retention_step(&retention.entries[at], traversal)).collect()
    }

    fn retention_step(
        &self,
        entry: &RetentionNode,
        traversal: &Traversal,
    ) -> Option<RetentionStep> {
        let NodeClass::Block { size, block_type } = entry.class else { return None };
        let number = traversal.number(entry.first);
        let from = number.and_then(|number| traversal.node(traversal.parent(number)));
        Some(RetentionStep {
            member: from.and_then(|from| self.member(from, entry.first)),
            address: self.step(entry.first).address,
            size,
            block_type: self.type_name(block_type),
            blocks: entry.blocks,
            retained: retained_of(entry),
        })
    }

    /// Returns the entries with the most retained bytes, which include the ancestors of each entry.
    fn entries(&self, retention: &RetentionTree, traversal: &Traversal) -> Vec<RetentionEntry> {
        let tops = retention.entries.iter().filter(|entry| entry.parent.is_none());
        let all: u64 = tops.map(|entry| entry.retained_bytes).sum();
        let mut sizes: Vec<u64> =
            retention.entries.iter().map(|entry| entry.retained_bytes).collect();
        sizes.sort_unstable_by_key(|&size| Reverse(size));
        let least = sizes.get(MAX_ENTRIES).map_or(1, |&size| size + 1).max(all / MIN_ENTRY_PART);
        let mut kept = Vec::new();
        let mut numbers: HashMap<u32, u32> = HashMap::new();
        for (at, entry) in (0..).zip(&retention.entries) {
            if entry.retained_bytes < least {
                continue;
            }
            let parent = entry.parent.and_then(|parent| numbers.get(&parent).copied());
            numbers.insert(at, u32::try_from(kept.len()).unwrap_or(u32::MAX));
            let is_root = matches!(entry.class, NodeClass::Root(_));
            kept.push(RetentionEntry {
                parent,
                root: (is_root || entry.parent.is_none()).then(|| self.root(entry.first)),
                blocks: self.retention_step(entry, traversal),
                retained: retained_of(entry),
            });
        }
        kept
    }

    fn retained_by(&self, asked: u64, traversal: &Traversal, tree: &DominatorTree) -> LiveAmount {
        let retained = RetainedSizes::new(traversal, tree, self.blocks);
        let block = self.blocks.containing(asked).and_then(|block| u32::try_from(block).ok());
        let number = block.and_then(|block| traversal.number(block));
        number.map_or_else(LiveAmount::default, |number| LiveAmount {
            blocks: retained.blocks(number),
            bytes: retained.bytes(number),
        })
    }

    fn kept(&self, asked: u64, retained: LiveAmount) -> KeptBlock {
        let block = self.blocks.containing(asked).and_then(|block| u32::try_from(block).ok());
        let mut search = PathSearch::new(self.graph);
        let paths = block.map(|block| search.paths_to(block, MAX_PATHS + 1, usize::MAX));
        let mut paths = paths.unwrap_or_default();
        let has_more_roots = paths.len() > MAX_PATHS;
        paths.truncate(MAX_PATHS);
        KeptBlock {
            asked,
            block: block.map(|block| self.step(block)),
            paths: paths.iter().map(|path| self.root_path(path)).collect(),
            retained,
            has_more_roots,
        }
    }

    fn root_path(&self, path: &KeepPath) -> RootPath {
        let (&root, blocks) = path.nodes.split_first().unwrap_or((&u32::MAX, &[]));
        let steps = path
            .nodes
            .windows(2)
            .map(|pair| KeptStep { member: self.member(pair[0], pair[1]), ..self.step(pair[1]) });
        let omitted = blocks.len().saturating_sub(2 * PATH_END);
        let is_end = |at: usize| at < PATH_END || at >= blocks.len() - PATH_END;
        let steps = steps.enumerate().filter(|(at, _)| omitted == 0 || is_end(*at));
        let mut root = HeapRoot { ..self.root(root) };
        let pointer =
            blocks.first().and_then(|&block| self.graph.root_pointer(path.nodes[0], block));
        root.address = pointer.unwrap_or(root.address);
        RootPath { root, steps: steps.map(|(_, step)| step).collect(), omitted: omitted as u64 }
    }
}

fn retained_of(entry: &RetentionNode) -> LiveAmount {
    LiveAmount { blocks: entry.retained_blocks, bytes: entry.retained_bytes }
}

/// For each entry: the child with the most retained bytes.
struct LargestBelow(Vec<Option<u32>>);

impl LargestBelow {
    fn new(retention: &RetentionTree) -> LargestBelow {
        let mut largest: Vec<Option<u32>> = vec![None; retention.entries.len()];
        let bytes = |at: u32| retention.entries[at as usize].retained_bytes;
        for (at, entry) in (0..).zip(&retention.entries) {
            let Some(parent) = entry.parent else { continue };
            let known = &mut largest[parent as usize];
            if known.is_none_or(|known| bytes(known) < bytes(at)) {
                *known = Some(at);
            }
        }
        LargestBelow(largest)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_that_overlap_are_joined() {
        let range = |start, end| AddrRange { start, end };
        let ranges = vec![range(40, 50), range(0, 30), range(5, 10), range(30, 35), range(9, 8)];
        assert_eq!(joined(ranges), [range(0, 35), range(40, 50)]);
    }
}
