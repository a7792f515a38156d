//! Comparison of the whole graph with simple second implementations, on random heaps.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet, VecDeque};

use pagewise_model::AddrRange;
use proptest::prelude::*;

use super::image::{TestImage, table};
use super::*;

const HEAP: u64 = 0x5555_0000_0000;
const DATA: u64 = 0x5554_0000_0000;
const DATA_BYTES: u64 = 0x1000;

/// Input of a test: the gap before each block and its size in words, and pointers. A pointer leads
/// from a word of a block (`pointers`) or of data (`roots`) to a byte of a block.
#[derive(Clone, Debug)]
struct RandomHeap {
    blocks: Vec<(u64, u64)>,
    pointers: Vec<(prop::sample::Index, u64, prop::sample::Index, u64)>,
    roots: Vec<(u64, prop::sample::Index, u64)>,
}

fn random_heap(most: usize) -> impl Strategy<Value = RandomHeap> {
    let blocks = proptest::collection::vec((0..3_u64, 1..9_u64), 1..most);
    let index = any::<prop::sample::Index>;
    let pointers = proptest::collection::vec((index(), 0..9_u64, index(), 0..80_u64), 0..3 * most);
    let roots = proptest::collection::vec((0..DATA_BYTES / 8, index(), 0..80_u64), 0..6);
    (blocks, pointers, roots).prop_map(|(blocks, pointers, roots)| RandomHeap {
        blocks,
        pointers,
        roots,
    })
}

struct BuiltHeap {
    image: TestImage,
    blocks: BlockTable,
    /// Expected pointers of each block.
    edges: BTreeMap<u32, BTreeSet<u32>>,
    roots: BTreeMap<u64, u32>,
}

impl RandomHeap {
    fn build(&self) -> BuiltHeap {
        let mut ranges = Vec::new();
        let mut at = HEAP;
        for &(gap, words) in &self.blocks {
            at += gap * 8 * 100;
            ranges.push((at, words * 8));
            at += words * 8;
        }
        let mut image = TestImage::default();
        image.map(DATA, DATA_BYTES, "/bin/program");
        image.map(HEAP, (at - HEAP).next_multiple_of(0x1000), "[heap]");
        let mut words: BTreeMap<(u32, u64), u32> = BTreeMap::new();
        let mut roots = BTreeMap::new();
        for (from, word, to, byte) in &self.pointers {
            let (from, to) = (from.index(ranges.len()), to.index(ranges.len()));
            let word = word % (ranges[from].1 / 8);
            image.store(ranges[from].0 + word * 8, ranges[to].0 + byte % ranges[to].1);
            words.insert((number(from), word), number(to));
        }
        for (word, to, byte) in &self.roots {
            let to = to.index(ranges.len());
            image.store(DATA + word * 8, ranges[to].0 + byte % ranges[to].1);
            roots.insert(DATA + word * 8, number(to));
        }
        let mut edges: BTreeMap<u32, BTreeSet<u32>> = BTreeMap::new();
        for ((from, _), to) in words {
            if from != to {
                edges.entry(from).or_default().insert(to);
            }
        }
        BuiltHeap { image, blocks: table(ranges), edges, roots }
    }
}

impl BuiltHeap {
    fn graph(&self) -> PointerGraph {
        let allocator = [self.image.mappings()[1].range];
        let spans = root_spans(&self.image, &allocator, 0);
        let pointers = heap_pointers(&self.image, &self.blocks, &spans).unwrap();
        PointerGraph::new(pointers, &spans, &[])
    }

    /// Returns the blocks that are reachable without the node `without`, by a search over hash
    /// maps.
    fn reachable(&self, without: Option<PlainNode>) -> HashSet<u32> {
        let allowed = |node| Some(node) != without;
        let roots = self.roots.iter().filter(|(address, _)| allowed(PlainNode::Word(**address)));
        let mut queue: VecDeque<u32> = roots.map(|(_, &to)| to).collect();
        let mut seen = HashSet::new();
        while let Some(block) = queue.pop_front() {
            if allowed(PlainNode::Block(block)) && seen.insert(block) {
                queue.extend(self.edges.get(&block).into_iter().flatten());
            }
        }
        seen
    }

    fn reachable_from(&self, block: u32) -> BTreeSet<u32> {
        let mut seen = BTreeSet::from([block]);
        let mut stack = vec![block];
        while let Some(block) = stack.pop() {
            let targets = self.edges.get(&block).into_iter().flatten().copied();
            stack.extend(targets.filter(|&target| seen.insert(target)));
        }
        seen
    }

    fn bytes_of<'a>(&self, blocks: impl IntoIterator<Item = &'a u32>) -> u64 {
        blocks.into_iter().map(|&block| self.blocks.get(block as usize).unwrap().size).sum()
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum PlainNode {
    Block(u32),
    Word(u64),
}

proptest! {
    #[test]
    fn reachable_blocks_are_those_of_a_plain_search(heap in random_heap(40)) {
        let heap = heap.build();
        let graph = heap.graph();
        for block in 0..number(graph.blocks()) {
            let found: BTreeSet<u32> = graph.targets_of(block).iter().copied().collect();
            prop_assert_eq!(found, heap.edges.get(&block).cloned().unwrap_or_default());
        }
        let traversal = Traversal::new(&graph);
        let found = (0..number(graph.blocks())).filter(|&block| traversal.reaches(block));
        prop_assert_eq!(found.collect::<HashSet<u32>>(), heap.reachable(None));
    }

    #[test]
    fn a_node_retains_what_is_unreachable_without_it(heap in random_heap(30)) {
        let heap = heap.build();
        let graph = heap.graph();
        let (traversal, tree) = dominators(&graph);
        let retained = RetainedSizes::new(&traversal, &tree, &heap.blocks);
        let all = heap.reachable(None);
        for node in 0..number(graph.nodes()) {
            let Some(number) = traversal.number(node) else { continue };
            let plain = match graph.root_of(node) {
                Some(root) => PlainNode::Word(root.address),
                None => PlainNode::Block(node),
            };
            let without = heap.reachable(Some(plain));
            let lost: Vec<u32> = all.difference(&without).copied().collect();
            prop_assert_eq!(retained.blocks(number), lost.len() as u64, "{:?}", plain);
            prop_assert_eq!(retained.bytes(number), heap.bytes_of(&lost));
        }
        prop_assert_eq!(reachable(&retained), (all.len() as u64, heap.bytes_of(&all)));
    }

    #[test]
    fn the_immediate_dominator_is_the_closest_of_all(heap in random_heap(24)) {
        let heap = heap.build();
        let graph = heap.graph();
        let (traversal, tree) = dominators(&graph);
        // A block dominates the blocks that are unreachable without it.
        let mut dominated: HashMap<u32, BTreeSet<u32>> = HashMap::new();
        let all = heap.reachable(None);
        for &block in &all {
            for &lost in all.difference(&heap.reachable(Some(PlainNode::Block(block)))) {
                dominated.entry(lost).or_default().insert(block);
            }
        }
        for &block in &all {
            let mut chain = BTreeSet::new();
            let mut at = traversal.number(block).unwrap();
            while at != VIRTUAL_ROOT {
                chain.extend(traversal.node(at).filter(|&node| graph.root_of(node).is_none()));
                at = tree.parent(at);
            }
            prop_assert_eq!(&chain, &dominated[&block]);
        }
    }

    #[test]
    fn leaks_divide_the_unreachable_blocks_among_their_heads(heap in random_heap(30)) {
        let heap = heap.build();
        let graph = heap.graph();
        let leaks = HeapLeaks::new(&graph, &Traversal::new(&graph), &heap.blocks);
        let reachable = heap.reachable(None);
        let lost: BTreeSet<u32> = (0..number(graph.blocks())).filter(|it| !reachable.contains(it)).collect();
        prop_assert_eq!((leaks.blocks, leaks.bytes), (lost.len() as u64, heap.bytes_of(&lost)));
        prop_assert_eq!(leaks.leaks.iter().map(|leak| leak.blocks).sum::<u64>(), leaks.blocks);
        prop_assert_eq!(leaks.leaks.iter().map(|leak| leak.bytes).sum::<u64>(), leaks.bytes);
        // A head is a leaked block that only blocks in its own cycle reach, and the lowest block of
        // that cycle.
        let reach: HashMap<u32, BTreeSet<u32>> = lost.iter().map(|&it| (it, heap.reachable_from(it))).collect();
        let is_head = |block: &u32| {
            let to_it = lost.iter().filter(|from| reach[from].contains(block));
            to_it.clone().all(|from| reach[block].contains(from)) && to_it.min() == Some(block)
        };
        let heads: Vec<u32> = lost.iter().filter(|block| is_head(block)).copied().collect();
        prop_assert_eq!(leaks.leaks.iter().map(|leak| leak.head).collect::<Vec<u32>>(), heads);
    }

    #[test]
    fn paths_lead_from_each_root_over_pointers(heap in random_heap(30), block in any::<prop::sample::Index>()) {
        let heap = heap.build();
        let graph = heap.graph();
        let block = number(block.index(graph.blocks()));
        let paths = paths_to(&graph, block, usize::MAX);
        let starts = heap.roots.values().filter(|to| heap.reachable_from(**to).contains(&block));
        prop_assert_eq!(paths.len(), starts.count());
        for path in &paths {
            prop_assert_eq!(path.nodes.last(), Some(&block));
            prop_assert!(graph.root_of(path.nodes[0]).is_some());
            prop_assert!(path.nodes.windows(2).all(|step| graph.targets_of(step[0]).contains(&step[1])));
        }
        prop_assert!(paths.is_sorted_by_key(|path| path.nodes.len()));
    }

    #[test]
    fn the_retention_tree_loses_no_block(heap in random_heap(40)) {
        let heap = heap.build();
        let graph = heap.graph();
        let (traversal, tree) = dominators(&graph);
        let retention = RetentionTree::new(&graph, &traversal, &tree, &heap.blocks);
        let all = heap.reachable(None);
        prop_assert_eq!(retention.entries.iter().map(|it| it.bytes).sum::<u64>(), heap.bytes_of(&all));
        let tops = retention.entries.iter().filter(|it| it.parent.is_none());
        prop_assert_eq!(tops.map(|it| it.retained_blocks).sum::<u64>(), all.len() as u64);
        let retained = RetainedSizes::new(&traversal, &tree, &heap.blocks);
        for top in retention.entries.iter().filter(|it| it.parent.is_none() && !it.is_shared()) {
            let number = traversal.number(top.first).unwrap();
            prop_assert_eq!(top.retained_bytes, retained.bytes(number));
        }
    }

    #[test]
    fn pointers_beyond_the_bound_hide_no_reachable_block(heap in random_heap(40), most in 0..60_u64) {
        let heap = heap.build();
        let allocator = [heap.image.mappings()[1].range];
        let spans = root_spans(&heap.image, &allocator, 0);
        let pointers = edges::pointers(&heap.image, &heap.blocks, &spans, most);
        let stored = pointers.targets.len() + pointers.roots.targets.len();
        prop_assert!(stored as u64 <= most);
        let graph = PointerGraph::new(pointers, &spans, &[]);
        let traversal = Traversal::new(&graph);
        prop_assert!(heap.reachable(None).iter().all(|&block| traversal.reaches(block)));
        if graph.unrecorded() == 0 {
            prop_assert_eq!(graph, heap.graph());
        }
    }

    #[test]
    fn memory_of_any_words_is_searched(
        words in proptest::collection::vec(prop_oneof![any::<u64>(), HEAP..HEAP + 0x2000], 0x200),
        blocks in proptest::collection::vec((0..5_u64, 0..40_u64), 0..60),
    ) {
        let mut image = TestImage::default();
        image.map(HEAP, 0x1000, "[heap]");
        for (word, to) in words.iter().zip(image.bytes(0).chunks_exact_mut(8)) {
            to.copy_from_slice(&word.to_le_bytes());
        }
        image.thread(words[0], words[1], &words[..20]);
        let mut at = HEAP;
        let ranges = blocks.iter().map(|&(gap, size)| {
            at += gap * 8;
            let start = at;
            at += size * 8;
            (start, size * 8)
        });
        let blocks = table(ranges.collect::<Vec<_>>());
        let spans = root_spans(&image, &[], 0);
        let graph = PointerGraph::new(heap_pointers(&image, &blocks, &spans).unwrap(), &spans, &[]);
        let (traversal, tree) = dominators(&graph);
        let retained = RetainedSizes::new(&traversal, &tree, &blocks);
        let leaks = HeapLeaks::new(&graph, &traversal, &blocks);
        prop_assert_eq!(reachable(&retained).0 + leaks.blocks, blocks.len() as u64);
    }
}

/// Creates a thread's stack with a pointer at each of `addresses`, each to a different block.
fn stack_image() -> (TestImage, BlockTable) {
    const STACK: u64 = 0x7000_0000_0000;
    let mut image = TestImage::default();
    image.map(HEAP, 0x1000, "[heap]");
    image.map(STACK - 0x1000, 0x1000, "").prot = pagewise_model::Prot::default();
    image.map(STACK, 0x8000, "");
    let pointer = STACK + 0x4000;
    let slots = [pointer - 136, pointer - 128, pointer + 8, pointer + 0x2f00, pointer + 0x3000];
    let blocks = (0..6).map(|block| (HEAP + block * 0x100, 0x40));
    for (slot, block) in slots.into_iter().zip(0..) {
        image.store(slot, HEAP + block * 0x100 + 8);
    }
    image.thread(pointer, pointer + 0x3000, &[7, HEAP + 5 * 0x100, pointer]);
    (image, table(blocks))
}

#[test]
fn a_stack_holds_roots_from_its_red_zone_on() {
    let (image, blocks) = stack_image();
    let heap = [AddrRange { start: HEAP, end: HEAP + 0x1000 }];
    let spans = root_spans(&image, &heap, 0x200);
    let graph = PointerGraph::new(heap_pointers(&image, &blocks, &spans).unwrap(), &spans, &[]);
    let traversal = Traversal::new(&graph);
    let reached: Vec<bool> = (0..6).map(|block| traversal.reaches(block)).collect();
    assert_eq!(reached, [false, true, true, true, true, true]);
    let kinds = graph.roots().iter().map(|root| spans[root.span.unwrap() as usize].kind);
    let expected =
        [RootSpanKind::Registers(0), RootSpanKind::Stack(0), RootSpanKind::ThreadLocal(0)];
    assert_eq!(kinds.collect::<Vec<_>>(), expected);
}

#[test]
fn the_stack_of_a_finished_thread_holds_its_table_of_thread_local_storage_alone() {
    const STACK: u64 = 0x7000_0000_0000;
    let spans_with = |own: u64| {
        let mut image = TestImage::default();
        image.map(STACK - 0x1000, 0x1000, "").prot = pagewise_model::Prot::default();
        image.map(STACK, 0x8000, "");
        image.store(STACK + 0x100, HEAP);
        let control = STACK + 0x7700;
        image.store(control, own);
        image.store(control + 16, own);
        let spans = root_spans(&image, &[], 0);
        spans.iter().map(|span| (span.range.start, span.range.end)).collect::<Vec<_>>()
    };
    assert_eq!(spans_with(STACK + 0x7700), [(STACK + 0x7708, STACK + 0x7710)]);
    assert_eq!(spans_with(0), [(STACK, STACK + 0x8000)]);
}

#[test]
fn a_list_of_a_million_blocks_needs_no_call_stack() {
    const COUNT: u64 = 1_000_000;
    let mut image = TestImage::default();
    image.map(DATA, 0x1000, "/bin/program");
    image.map(HEAP, COUNT * 16, "[heap]");
    image.store(DATA, HEAP);
    for block in 0..COUNT - 1 {
        let next = HEAP + (block + 1) * 16;
        let at = usize::try_from(block * 16).unwrap();
        image.bytes(1)[at..at + 8].copy_from_slice(&next.to_le_bytes());
        // Each block also points back to the first block.
        image.bytes(1)[at + 8..at + 16].copy_from_slice(&HEAP.to_le_bytes());
    }
    let blocks = table((0..COUNT).map(|block| (HEAP + block * 16, 16)));
    let heap = [image.mappings()[1].range];
    let spans = root_spans(&image, &heap, 0);
    let graph = PointerGraph::new(heap_pointers(&image, &blocks, &spans).unwrap(), &spans, &[]);
    let (traversal, tree) = dominators(&graph);
    let retention = RetentionTree::new(&graph, &traversal, &tree, &blocks);
    let sizes: Vec<_> = retention.entries.iter().map(|it| (it.blocks, it.retained_bytes)).collect();
    assert_eq!(sizes, [(0, COUNT * 16), (COUNT, COUNT * 16)]);
    assert_eq!(paths_to(&graph, 999_999, 9)[0].nodes.len(), 1_000_001);
}
