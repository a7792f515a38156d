//! Stacks: a list of 20 million nodes of 8 bytes, and frames in frames. With `--features ablation`
//! also what each policy gains.

#[cfg(feature = "ablation")]
mod ablation;

use std::alloc::{GlobalAlloc, Layout};
use std::cell::RefCell;
use std::ptr;
use std::time::Instant;

use blink_alloc::BlinkAlloc;
use bump_scope::traits::BumpAllocatorTyped;
use bump_scope::{Bump, BumpScope};
use bumpalo::Bump as Bumpalo;
use pagewise_alloc::stack::{Scope, Stack};
use pagewise_alloc::{Os, t_scope};
use pagewise_bench_allocators::{BenchRunner, black_box, for_each_malloc, race};
use typed_arena::Arena;

const ROUNDS: usize = 9;

/// The list.
const NODES: usize = 20_000_000;
/// More than the bytes of the nodes, for stacks with a size given in advance.
const ROOM: usize = NODES * 8 + (1 << 20);

/// A node of a list: where the next is.
#[derive(Clone, Copy)]
struct StackListNode(*mut StackListNode);

/// A function that builds a list, calls its argument, and frees the list.
type ListBuilder<'a> = RefCell<Box<dyn FnMut(&mut dyn FnMut()) + 'a>>;

/// Builds a list of what `allocate` makes of values.
#[inline(always)]
fn build(mut allocate: impl FnMut(StackListNode) -> *mut StackListNode) -> *mut StackListNode {
    let head = (0..NODES).fold(ptr::null_mut(), |head, _| allocate(StackListNode(head)));
    black_box(head)
}

/// Walks a list and frees each node.
fn walk(mut head: *mut StackListNode, free: impl Fn(*mut StackListNode)) {
    while !head.is_null() {
        // SAFETY: the list holds nodes that are written and not freed.
        let next = unsafe { (*head).0 };
        free(head);
        head = next;
    }
}

fn with_malloc(malloc: &impl GlobalAlloc, built: &mut dyn FnMut()) {
    let layout = Layout::new::<StackListNode>();
    let head = build(|node| {
        // SAFETY: a node has a size.
        let place = black_box(unsafe { malloc.alloc(layout) }).cast::<StackListNode>();
        // SAFETY: the memory is for one node and not used yet.
        unsafe { place.write(node) };
        place
    });
    built();
    // SAFETY: each node came from there, and is freed once.
    walk(head, |node| unsafe { malloc.dealloc(node.cast(), layout) });
}

/// Adds without looking whether there is room: nothing is faster.
struct StackFloor {
    next: *mut u8,
}

impl StackFloor {
    #[inline(always)]
    fn allocate(&mut self, size: usize) -> *mut u8 {
        let start = self.next;
        self.next = start.wrapping_add(size);
        start
    }
}

fn with_floor(memory: &mut [u64], built: &mut dyn FnMut()) {
    let mut floor = StackFloor { next: memory.as_mut_ptr().cast() };
    let floor = black_box(&mut floor);
    build(|node| {
        let place = floor.allocate(size_of::<StackListNode>()).cast::<StackListNode>();
        // SAFETY: the memory has room for all of them.
        unsafe { place.write(node) };
        place
    });
    built();
}

/// Time to build a list, or to free it, in nanoseconds per node.
fn lap(list: &ListBuilder<'_>, free: bool) -> f64 {
    let (begin, mut built) = (Instant::now(), None);
    (list.borrow_mut())(&mut || built = Some(Instant::now()));
    let (built, end) = (built.expect("it calls what it is given"), Instant::now());
    let lap = if free { end - built } else { built - begin };
    lap.as_secs_f64() * 1e9 / NODES as f64
}

fn lists() {
    let mut memory = vec![1_u64; ROOM / 8];
    let mut stack = Stack::new(Os);
    let mut told = Stack::new(Os);
    assert!(told.reserve(ROOM), "memory");
    let mut bump: Bump = Bump::with_size(ROOM);
    let mut bumpalo = Bumpalo::with_capacity(ROOM);
    let mut blink = BlinkAlloc::with_chunk_size(ROOM);
    let mut lists: Vec<(&str, ListBuilder<'_>)> = Vec::new();
    macro_rules! list {
        ($name:expr, $list:expr) => {
            lists.push(($name, RefCell::new(Box::new($list))));
        };
    }
    list!("floor: no check of free space", |built| with_floor(&mut memory, built));
    list!("pagewise", |built| stack.scope(|scope| {
        build(|node| scope.alloc(node));
        built();
    }));
    list!("pagewise, told the size", |built| told.scope(|scope| {
        build(|node| scope.alloc(node));
        built();
    }));
    list!("bump-scope, told the size", |built| bump.scoped(|scope| {
        build(|node| scope.alloc(node).into_mut());
        built();
    }));
    list!("bumpalo, told the size", |built| {
        build(|node| bumpalo.alloc(node));
        built();
        bumpalo.reset();
    });
    list!("blink-alloc, told the size", |built| {
        let layout = Layout::new::<StackListNode>();
        build(|node| {
            let place = blink.allocate(layout).expect("memory").cast::<StackListNode>();
            // SAFETY: the memory is for one node and not used yet.
            unsafe { place.write(node) };
            place.as_ptr()
        });
        built();
        blink.reset();
    });
    list!("typed-arena, cold", |built| {
        let arena = Arena::with_capacity(NODES);
        build(|node| arena.alloc(node));
        built();
    });
    macro_rules! general {
        ($name:literal, $malloc:expr) => {
            list!($name, |built| with_malloc(&$malloc, built));
        };
    }
    for_each_malloc!(general);
    let laps = |free: bool| -> Vec<BenchRunner<'_>> {
        lists.iter().map(|(name, list)| BenchRunner::timed(name, move || lap(list, free))).collect()
    };
    let built = race("list of 20M nodes of 8 bytes, warm: allocating a node", ROUNDS, laps(false));
    built.goal("pagewise", 1.0, "bump-scope, told the size");
    built.goal("pagewise, told the size", 1.0, "bumpalo, told the size");
    race("the same: walking and freeing, or popping", 3, laps(true));
}

/// The frames: 4 requests of 8 to 128 bytes in each of 32.
const DEPTH: usize = 32;
const REQUESTS: usize = 4;
/// Number of pushes and pops in a round.
const TIMES: usize = 4000;

type FrameSizes = [usize; REQUESTS];

/// Sizes that look random, in whole words.
fn levels() -> [FrameSizes; DEPTH] {
    let mut seed = 1_u64;
    [[(); REQUESTS]; DEPTH].map(|level| {
        level.map(|()| {
            seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            8 + 8 * (seed >> 60) as usize
        })
    })
}

#[inline(always)]
fn word_layout(size: usize) -> Layout {
    Layout::from_size_align(size, 8).expect("a small size")
}

/// Touches what was allocated.
#[inline(always)]
fn touch(place: *mut u8, size: usize) {
    // SAFETY: it is at least a word, and aligned to one.
    unsafe { place.cast::<usize>().write(size) };
}

fn ours(scope: &mut Scope<'_, Os>, levels: &[FrameSizes]) {
    let Some((level, rest)) = levels.split_first() else { return };
    scope.scope(|scope| {
        for size in level {
            touch(scope.allocate(word_layout(*size)).expect("memory").as_ptr(), *size);
        }
        ours(scope, rest);
    });
}

/// Each level looks the thread's stack up.
fn on_the_thread(levels: &[FrameSizes]) {
    let Some((level, rest)) = levels.split_first() else { return };
    t_scope(|scope| {
        for size in level {
            touch(scope.allocate(word_layout(*size)).expect("memory").as_ptr(), *size);
        }
        on_the_thread(rest);
    });
}

fn bump_scope(scope: &mut BumpScope, levels: &[FrameSizes]) {
    let Some((level, rest)) = levels.split_first() else { return };
    scope.scoped(|scope| {
        for size in level {
            touch(scope.allocate_layout(word_layout(*size)).as_ptr(), *size);
        }
        bump_scope(scope, rest);
    });
}

fn floor(stack: &mut StackFloor, levels: &[FrameSizes]) {
    let Some((level, rest)) = levels.split_first() else { return };
    let mark = stack.next;
    for size in level {
        touch(stack.allocate(*size), *size);
    }
    floor(stack, rest);
    stack.next = mark;
}

/// Without frames: all is freed at the end.
fn flat(levels: &[FrameSizes], allocate: &impl Fn(Layout) -> *mut u8) {
    let Some((level, rest)) = levels.split_first() else { return };
    for size in level {
        touch(allocate(word_layout(*size)), *size);
    }
    flat(rest, allocate);
}

fn general(malloc: &impl GlobalAlloc, levels: &[FrameSizes]) {
    let Some((level, rest)) = levels.split_first() else { return };
    // SAFETY: the sizes are not 0.
    let places = level.map(|size| black_box(unsafe { malloc.alloc(word_layout(size)) }));
    places.iter().zip(level).for_each(|(place, size)| touch(*place, *size));
    general(malloc, rest);
    for (place, size) in places.iter().zip(level).rev() {
        // SAFETY: it came from there, and is freed once.
        unsafe { malloc.dealloc(*place, word_layout(*size)) };
    }
}

fn frames() {
    let levels = black_box(levels());
    let levels = &levels[..];
    let mut memory = vec![1_u64; DEPTH * REQUESTS * 16];
    let mut stack = Stack::new(Os);
    let told = Stack::new(Os);
    assert!(told.reserve(ROOM), "memory");
    let mut bump: Bump = Bump::with_size(1 << 16);
    let mut bumpalo = Bumpalo::with_capacity(1 << 16);
    let mut blink = BlinkAlloc::with_chunk_size(1 << 16);
    let mut runners = Vec::new();
    macro_rules! runner {
        ($name:expr, || $once:expr) => {
            let round = || (0..TIMES).for_each(|_| _ = $once);
            runners.push(BenchRunner::new($name, TIMES * DEPTH * REQUESTS, round));
        };
    }
    runner!("floor: no check of free space", || {
        floor(black_box(&mut StackFloor { next: memory.as_mut_ptr().cast() }), levels);
    });
    runner!("pagewise", || stack.scope(|scope| ours(scope, levels)));
    runner!("pagewise, t_scope", || on_the_thread(levels));
    runner!("bump-scope", || bump.scoped(|scope| bump_scope(scope, levels)));
    runner!("bumpalo, reset at the top", || {
        flat(levels, &|layout| bumpalo.alloc_layout(layout).as_ptr());
        bumpalo.reset();
    });
    runner!("blink-alloc, reset at the top", || {
        flat(levels, &|layout| blink.allocate(layout).expect("memory").cast().as_ptr());
        blink.reset();
    });
    macro_rules! malloc {
        ($name:literal, $malloc:expr) => {
            runner!($name, || general(&$malloc, levels));
        };
    }
    for_each_malloc!(malloc);
    let results = race(
        "frames in frames, 32 deep, 4 requests of 8 to 128 bytes each: a request",
        15,
        runners,
    );
    results.goal("pagewise", 1.05, "bump-scope");
    results.goal("pagewise, t_scope", 1.05, "bump-scope");
}

fn main() {
    lists();
    frames();
    #[cfg(feature = "ablation")]
    ablation::ablation();
}
