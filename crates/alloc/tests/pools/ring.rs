//! Tests of rings: frames of any size, released in any order, on other threads, and after the end
//! of the ring; exhausted memory.

use std::alloc::Layout;
use std::ptr::NonNull;
use std::sync::mpsc::{Receiver, channel};
use std::thread;

use pagewise_alloc::ring::{Message, Sealed};
use pagewise_alloc::source::FailAfter;
use pagewise_alloc::{Os, Ring, Source};
use proptest::prelude::*;

/// A block of a frame: its address, its size, and its fill byte.
#[derive(Clone, Copy, Debug)]
struct FilledBlock {
    start: NonNull<u8>,
    size: usize,
    byte: u8,
}

impl FilledBlock {
    fn write(&self) {
        // SAFETY: the block has this size, and no other code uses it.
        unsafe { self.start.write_bytes(self.byte, self.size) };
    }

    fn assert_intact(&self) {
        // SAFETY: the block has this size, was written, and was not released.
        let bytes = unsafe { std::slice::from_raw_parts(self.start.as_ptr(), self.size) };
        assert!(bytes.iter().all(|byte| *byte == self.byte), "a block of a sealed frame changed");
    }
}

/// A sealed frame and its blocks.
#[derive(Debug)]
struct ShadowFrame {
    blocks: Vec<FilledBlock>,
    frame: Sealed,
}

impl ShadowFrame {
    fn release(self) {
        self.blocks.iter().for_each(FilledBlock::assert_intact);
        drop(self.frame);
    }
}

/// Seals a frame with blocks of these sizes and alignments. Returns `None`, and releases the frame,
/// if memory is exhausted.
fn fill<S: Source + Send>(
    ring: &mut Ring<S>,
    shapes: &[(usize, usize)],
    byte: u8,
) -> Option<ShadowFrame> {
    let frame = ring.open()?;
    let mut blocks = Vec::new();
    for (size, align) in shapes {
        let start = frame.allocate(Layout::from_size_align(*size, *align).unwrap())?;
        assert!(start.addr().get().is_multiple_of(*align));
        let new = FilledBlock { start, size: *size, byte };
        new.write();
        blocks.push(new);
    }
    blocks.iter().for_each(FilledBlock::assert_intact);
    Some(ShadowFrame { blocks, frame: frame.seal() })
}

#[derive(Clone, Debug)]
enum RingStep {
    Frame(Vec<(usize, usize)>),
    Cancel(usize),
    Oldest,
    Any(usize),
    Trim,
}

fn steps() -> impl Strategy<Value = Vec<RingStep>> {
    let size = prop_oneof![8 => 0..200_usize, 2 => 0..5000_usize, 1 => 0..300_000_usize];
    let align = prop_oneof![8 => Just(3_u32), 2 => 0..7_u32, 1 => 7..14_u32];
    let shape = (size, align).prop_map(|(size, align)| (size, 1 << align));
    let step = prop_oneof![
        8 => prop::collection::vec(shape, 0..12).prop_map(RingStep::Frame),
        1 => (0..300_000_usize).prop_map(RingStep::Cancel),
        3 => Just(RingStep::Oldest),
        3 => any::<usize>().prop_map(RingStep::Any),
        1 => Just(RingStep::Trim),
    ];
    prop::collection::vec(step, 0..120)
}

fn run<S: Source + Send>(mut ring: Ring<S>, steps: &[RingStep]) {
    let mut frames = Vec::new();
    for (step, byte) in steps.iter().zip((0..=255).cycle()) {
        let n = frames.len().max(1);
        match step {
            RingStep::Frame(shapes) => frames.extend(fill(&mut ring, shapes, byte)),
            RingStep::Cancel(size) => {
                let open = ring.open();
                open.map(|open| open.allocate(Layout::from_size_align(*size, 1).unwrap()));
            }
            RingStep::Oldest if !frames.is_empty() => frames.remove(0).release(),
            RingStep::Any(at) if !frames.is_empty() => frames.swap_remove(at % n).release(),
            RingStep::Trim => ring.trim(),
            _ => {}
        }
        ring.check();
    }
    drop(ring);
    frames.into_iter().for_each(ShadowFrame::release);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn sealed_frames_keep_what_they_hold_until_they_are_released(steps in steps(), guarded: bool) {
        let ring = if guarded { Ring::guarded(Os) } else { Ring::unguarded(Os) };
        run(ring.unwrap(), &steps);
    }

    #[test]
    fn memory_may_run_out_at_any_time(steps in steps(), n in 1..8_usize, guarded: bool) {
        let source = FailAfter::new(Os, n);
        let ring = if guarded { Ring::guarded(source) } else { Ring::unguarded(source) };
        run(ring.unwrap(), &steps);
    }
}

/// Creates a message with a list of numbers.
fn numbers(ring: &mut Ring<Os>, job: usize) -> Message<[usize]> {
    let sizes = [3, 900, 40_000];
    ring.message(|frame| frame.alloc_slice_with(sizes[job % 3], |at| at ^ job))
}

fn assert_numbers(job: usize, numbers: &[usize]) {
    assert!(numbers.iter().enumerate().all(|(at, number)| *number == at ^ job));
}

/// Receives jobs, keeps some of them and releases the others, so that frames are released out of
/// order.
fn work(queue: &Receiver<(usize, Message<[usize]>)>) -> usize {
    let mut kept: Vec<(usize, Message<[usize]>)> = Vec::new();
    let mut done = 0;
    for (job, message) in queue {
        assert_numbers(job, &message);
        if job % 7 == 0 {
            kept.push((job, message));
        }
        if kept.len() > 20 {
            let (job, message) = kept.swap_remove(job % 20);
            assert_numbers(job, &message);
        }
        done += 1;
    }
    kept.iter().for_each(|(job, message)| assert_numbers(*job, message));
    done
}

#[test]
fn workers_release_messages_in_any_order_and_their_memory_is_used_again() {
    let jobs = if cfg!(miri) { 40 } else { 6000 };
    let mut ring = Ring::unguarded(Os).unwrap();
    thread::scope(|scope| {
        let workers = [(); 3].map(|()| {
            let (jobs, queue) = channel();
            (jobs, scope.spawn(move || work(&queue)))
        });
        for job in 0..jobs {
            let message = (job, numbers(&mut ring, job));
            workers[job % 3].0.send(message).unwrap();
            ring.check();
        }
        let done: usize = workers
            .into_iter()
            .map(|(jobs, worker)| {
                drop(jobs);
                worker.join().unwrap()
            })
            .sum();
        assert_eq!(done, jobs);
    });
    ring.trim();
    // Only the current block and the ring itself may be left.
    assert!(ring.held() <= 3 << 20, "{}", ring.held());
}

#[test]
fn a_ring_that_is_kept_up_with_holds_two_blocks() {
    let mut ring = Ring::unguarded(Os).unwrap();
    let mut last = None;
    for job in 0..100_000_u64 {
        last = Some(ring.message(|frame| frame.alloc([job; 8])));
    }
    assert_eq!(last.unwrap()[7], 99_999);
    assert!(ring.held() <= 3 << 16, "{}", ring.held());
}

#[test]
fn a_frame_that_is_kept_holds_its_own_blocks_and_no_others() {
    let mut ring = Ring::unguarded(Os).unwrap();
    let kept = ring.message(|frame| frame.alloc(7));
    for _ in 0..100 {
        drop(ring.message(|frame| frame.alloc_slice(&[1_u8; 50_000])));
    }
    assert!(ring.held() <= 4 << 16, "{}", ring.held());
    assert_eq!(*kept, 7);
}

#[test]
fn small_objects_cost_a_hundredth_more_than_their_size() {
    let objects = if cfg!(miri) { 1000 } else { 20_000_000 };
    let mut ring = Ring::unguarded(Os).unwrap();
    let frame = ring.open().unwrap();
    for _ in 0..objects {
        frame.allocate(Layout::new::<u64>()).unwrap();
    }
    let sealed = frame.seal();
    assert!(ring.held() <= objects * 8 / 100 * 101 + (1 << 17), "{}", ring.held());
    drop(sealed);
}

#[test]
fn a_message_outlives_its_ring() {
    let mut ring = Ring::new(Os).unwrap();
    let long = ring.message(|frame| frame.alloc_slice_with(100_000, |at| at));
    let text = ring.message(|frame| frame.alloc_str("still here"));
    drop(ring);
    assert_eq!(&*text, "still here");
    assert_numbers(0, &long);
    thread::spawn(move || drop(long)).join().unwrap();
    assert_eq!(&*text, "still here");
}

#[test]
fn an_open_frame_that_is_dropped_leaves_no_trace() {
    let mut ring = Ring::unguarded(Os).unwrap();
    let first = ring.message(|frame| frame.alloc(1_u64));
    let lost = ring.open().unwrap().allocate(Layout::new::<[u64; 100]>()).unwrap();
    let second = ring.open().unwrap().allocate(Layout::new::<u64>()).unwrap();
    assert_eq!(lost, second);
    assert_eq!(*first, 1);
}

#[test]
fn the_last_block_grows_in_its_place() {
    let mut ring = Ring::unguarded(Os).unwrap();
    let frame = ring.open().unwrap();
    let layout = |size| Layout::from_size_align(size, 8).unwrap();
    let block = frame.allocate(layout(100)).unwrap();
    // SAFETY: the block is of this frame, and is used only by its new address afterwards.
    let grown = unsafe { frame.resize(block, layout(100), layout(200)) }.unwrap();
    assert_eq!(grown, block);
    frame.allocate(layout(8)).unwrap();
    // SAFETY: the block is of this frame and has this layout.
    let moved = unsafe { frame.resize(grown, layout(200), layout(300)) }.unwrap();
    assert_ne!(moved, block);
}

#[test]
#[should_panic(expected = "was written beyond its bounds")]
fn a_write_past_the_end_is_found_when_the_frame_is_released() {
    let mut ring = Ring::guarded(Os).unwrap();
    let frame = ring.open().unwrap();
    let block = frame.allocate(Layout::new::<[u8; 10]>()).unwrap();
    // SAFETY: violated on purpose: the byte is a canary byte of the ring behind the block.
    unsafe { block.as_ptr().wrapping_add(10).write(1) };
    drop(frame.seal());
}

#[test]
#[should_panic(expected = "released twice")]
fn a_second_release_is_found_where_nothing_was_done_since() {
    let mut ring = Ring::guarded(Os).unwrap();
    let frame = ring.open().unwrap();
    frame.alloc(7);
    let raw = frame.seal().into_raw();
    let other = ring.message(|frame| frame.alloc(8));
    for _ in 0..2 {
        // SAFETY: the second release violates the contract on purpose: the ring must detect it.
        drop(unsafe { Sealed::from_raw(raw) });
    }
    drop(other);
}
