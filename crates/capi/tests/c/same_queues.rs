//! The functions of C and of Rust must write the same bytes into FIFO pools and rings.

use std::alloc::Layout;
use std::ffi::{c_int, c_void};
use std::ptr::{self, NonNull};

use pagewise::{fifo, ring};
use pagewise_alloc::ring::Sealed;
use pagewise_alloc::source::SystemOrBuffer;
use pagewise_alloc::{Fifo, Ring};

use crate::loaded::LoadedC;

/// Number of bytes of a buffer. It is large, because a buffer reuses only the last block that it
/// provided.
const BUFFER: usize = 64 << 20;
const PLACES: usize = 600;
const STEPS: usize = 20_000;

/// Returns a generator of pseudo-random numbers.
fn numbers(mut seed: u64) -> impl FnMut(usize) -> usize {
    move |below| {
        seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        usize::try_from(seed >> 33).unwrap() % below
    }
}

/// Memory in which one pool after the other is created, so that both have the same address.
struct Buffer(Vec<u8>);

impl Buffer {
    fn new() -> Buffer {
        Buffer(vec![0; BUFFER])
    }

    fn clear(&mut self) -> SystemOrBuffer {
        self.0.fill(0);
        // SAFETY: the buffer is used by one pool after the other.
        unsafe { SystemOrBuffer::buffer(NonNull::from(&mut self.0[..]).cast(), BUFFER) }
    }

    /// Returns the content of the buffer without the pool itself, which contains addresses of
    /// functions and similar values.
    fn pages(&self) -> Vec<u8> {
        self.0[4096..].to_vec()
    }
}

fn assert_same(seed: u64, by_c: &[u8], by_rust: &[u8]) {
    assert!(by_c[..1 << 20].iter().filter(|byte| **byte != 0).count() > 100_000);
    if by_c != by_rust {
        let differs = by_c.iter().zip(by_rust).position(|(c, rust)| c != rust);
        panic!("seed {seed}: they differ at {differs:?}");
    }
}

/// `struct library` of `ctests/same/fifo.c`.
#[repr(C)]
struct FifoLibrary {
    alloc: unsafe extern "C" fn(*mut fifo::RawFifo, usize, usize) -> *mut c_void,
    zalloc: unsafe extern "C" fn(*mut fifo::RawFifo, usize, usize) -> *mut c_void,
    free: unsafe extern "C" fn(*mut fifo::RawFifo, *mut c_void, usize),
}

/// `struct step` of `ctests/same/fifo.c`.
#[repr(C)]
struct ReplaceStep {
    place: usize,
    size: usize,
    align: usize,
    zeroed: usize,
    late: usize,
    fill: usize,
}

/// `struct live` of `ctests/same/fifo.c`.
#[repr(C)]
#[derive(Clone, Copy)]
struct LiveInC {
    block: *mut c_void,
    size: usize,
}

/// Returns steps that replace blocks in the order of a queue, then in random order, then in the
/// order of a queue again.
fn replacements(seed: u64) -> Vec<ReplaceStep> {
    let mut random = numbers(seed);
    let step = |at: usize| {
        let in_order = at / (STEPS / 3) != 1;
        let place = if in_order { at % PLACES } else { random(PLACES) };
        let largest = if random(100) == 0 { 100_000 } else { 600 };
        let powers = if random(8) == 0 { 7 } else { 4 };
        let (size, align) = (random(largest), 1 << random(powers));
        let (zeroed, late) = (usize::from(random(4) == 0), usize::from(random(8) == 0));
        ReplaceStep { place, size, align, zeroed, late, fill: at % 255 + 1 }
    };
    (0..STEPS).map(step).collect()
}

/// Executes the steps as `run_all` of the program in C does.
fn replace_in_rust(pool: &Fifo<SystemOrBuffer>, steps: &[ReplaceStep]) {
    let mut live: Vec<Option<(NonNull<u8>, Layout)>> = vec![None; PLACES];
    for step in steps {
        match live[step.place] {
            // SAFETY: the block is live, and is not used any more.
            Some((block, layout)) if step.late > 0 => unsafe {
                pagewise_alloc::fifo::free(block, layout);
            },
            // SAFETY: the block is of this pool and has this layout.
            Some((block, layout)) => unsafe { pool.free(block, layout) },
            None => {}
        }
        let layout = Layout::from_size_align(step.size, step.align).unwrap();
        let block = match step.zeroed {
            0 => pool.allocate(layout),
            _ => pool.allocate_zeroed(layout),
        };
        let block = block.unwrap();
        if step.zeroed == 0 {
            // SAFETY: the block has this size.
            unsafe { block.write_bytes(u8::try_from(step.fill).unwrap(), step.size) };
        }
        live[step.place] = Some((block, layout));
    }
}

#[test]
fn fifo_pools_of_c_and_of_rust_leave_the_same_bytes() {
    let library = FifoLibrary {
        alloc: fifo::pw_fifo_alloc_slow,
        zalloc: fifo::pw_fifo_zalloc_slow,
        free: fifo::pw_fifo_free_slow,
    };
    let Some(in_c) = LoadedC::load("fifo.c", &library) else { return };
    // SAFETY: the loaded file defines `run_all` with this type.
    let run_all: unsafe extern "C" fn(
        *mut c_void,
        *mut LiveInC,
        *const ReplaceStep,
        usize,
    ) -> c_int = unsafe { in_c.function(c"run_all") };
    let mut buffer = Buffer::new();
    for seed in 0..3 {
        let steps = replacements(seed);
        let pool = Fifo::unguarded(buffer.clear()).unwrap().into_raw();
        let mut live = [LiveInC { block: ptr::null_mut(), size: 0 }; PLACES];
        // SAFETY: the pool has the layout of `pw_fifo`, the length is that of `steps`, and `live`
        // has an element for each place.
        let done = unsafe {
            run_all(pool.as_ptr().cast(), live.as_mut_ptr(), steps.as_ptr(), steps.len())
        };
        assert_eq!(done, 1);
        // SAFETY: `into_raw` has returned this pointer above, and gave up the pool.
        let pool: Fifo<SystemOrBuffer> = unsafe { Fifo::from_raw(pool) };
        pool.check();
        let by_c = buffer.pages();
        std::mem::forget(pool);
        let pool = Fifo::unguarded(buffer.clear()).unwrap();
        replace_in_rust(&pool, &steps);
        assert_same(seed, &by_c, &buffer.pages());
        std::mem::forget(pool);
    }
}

/// `struct library` of `ctests/same/ring.c`.
#[repr(C)]
struct RingLibrary {
    alloc: unsafe extern "C" fn(*mut ring::RawRing, usize, usize) -> *mut c_void,
    open: unsafe extern "C" fn(*mut ring::RawRing) -> c_int,
    seal: unsafe extern "C" fn(*mut ring::RawRing) -> *mut ring::RawFrame,
    release: unsafe extern "C" fn(*mut ring::RawFrame),
}

/// `struct step` of `ctests/same/ring.c`.
#[repr(C)]
struct FillStep {
    place: usize,
    blocks: usize,
    size: usize,
    align: usize,
    fill: usize,
}

fn fills(seed: u64) -> Vec<FillStep> {
    let mut random = numbers(seed);
    let step = |at: usize| {
        let place = if at < STEPS / 2 { at % PLACES } else { random(PLACES) };
        let largest = if random(200) == 0 { 10_000 } else { 100 };
        let size = random(largest);
        FillStep { place, blocks: random(12), size, align: 1 << random(7), fill: at % 255 + 1 }
    };
    (0..STEPS).map(step).collect()
}

/// Executes the steps as `run_all` of the program in C does.
fn fill_in_rust(
    ring: &mut Ring<SystemOrBuffer>,
    frames: &mut [Option<Sealed>],
    steps: &[FillStep],
) {
    for step in steps {
        frames[step.place] = None;
        let frame = ring.open().unwrap();
        let layout = Layout::from_size_align(step.size, step.align).unwrap();
        for _ in 0..step.blocks {
            let block = frame.allocate(layout).unwrap();
            // SAFETY: the block has this size.
            unsafe { block.write_bytes(u8::try_from(step.fill).unwrap(), step.size) };
        }
        frames[step.place] = Some(frame.seal());
    }
}

#[test]
fn rings_of_c_and_of_rust_leave_the_same_bytes() {
    let library = RingLibrary {
        alloc: ring::pw_ring_alloc_slow,
        open: ring::pw_ring_open,
        seal: ring::pw_ring_seal,
        release: ring::pw_ring_release,
    };
    let Some(in_c) = LoadedC::load("ring.c", &library) else { return };
    // SAFETY: the loaded file defines `run_all` with this type.
    let run_all: unsafe extern "C" fn(
        *mut c_void,
        *mut *mut ring::RawFrame,
        *const FillStep,
        usize,
    ) -> c_int = unsafe { in_c.function(c"run_all") };
    let mut buffer = Buffer::new();
    for seed in 0..3 {
        let steps = fills(seed);
        let ring = Ring::unguarded(buffer.clear()).unwrap().into_raw();
        let mut frames = [ptr::null_mut(); PLACES];
        // SAFETY: the ring has the layout of `pw_ring`, the length is that of `steps`, and `frames`
        // has an element for each place.
        let done = unsafe {
            run_all(ring.as_ptr().cast(), frames.as_mut_ptr(), steps.as_ptr(), steps.len())
        };
        assert_eq!(done, 1);
        let by_c = buffer.pages();
        let mut ring = Ring::unguarded(buffer.clear()).unwrap();
        let mut frames: Vec<Option<Sealed>> = (0..PLACES).map(|_| None).collect();
        fill_in_rust(&mut ring, &mut frames, &steps);
        ring.check();
        assert_same(seed, &by_c, &buffer.pages());
    }
}
