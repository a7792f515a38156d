//! The functions of C and of Rust must write the same bytes into TLSF pools.

use std::alloc::Layout;
use std::ffi::c_void;
use std::ops::Range;
use std::ptr::NonNull;

use pagewise::tlsf as api;
use pagewise::tlsf::CTlsf;
use pagewise_alloc::SourceBlock;

use crate::loaded::LoadedC;

/// `struct library` of `ctests/same/tlsf.c`.
#[repr(C)]
struct TlsfLibrary {
    alloc: unsafe extern "C" fn(*mut CTlsf, usize, usize) -> *mut c_void,
    free: unsafe extern "C" fn(*mut CTlsf, *mut c_void),
}

/// `struct step` of `ctests/same/tlsf.c`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
struct TlsfStep {
    kind: usize,
    place: usize,
    size: usize,
}

const ALLOCATE: usize = 0;
const FREE: usize = 1;
const FREE_SIZED: usize = 2;

const PLACES: usize = 300;
const BUFFER: usize = 1 << 20;
/// Range of a pool that is not compared: the fields behind the cached blocks, which depend on the
/// process and the buffer.
const OTHER: Range<usize> = 8336..size_of::<CTlsf>() + size_of::<SourceBlock>();

fn program(mut seed: u64) -> Vec<TlsfStep> {
    let mut random = move |below: usize| {
        seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        usize::try_from(seed >> 33).unwrap() % below
    };
    let mut sizes = [None; PLACES];
    let step = |_| {
        let place = random(PLACES);
        let largest = if random(20) == 0 { 5_000 } else { 560 };
        let (kind, size) = match sizes[place].take() {
            Some(size) => (if random(2) == 0 { FREE } else { FREE_SIZED }, size),
            None => (ALLOCATE, *sizes[place].insert(random(largest))),
        };
        TlsfStep { kind, place, size }
    };
    (0..20_000).map(step).collect()
}

/// Executes the steps as `run_all` of the program in C does.
fn run_in_rust(pool: &mut CTlsf, steps: &[TlsfStep]) -> usize {
    let mut blocks = [NonNull::<u8>::dangling(); PLACES];
    let mut live = 0;
    for step in steps {
        let layout = Layout::from_size_align(step.size, 16).unwrap();
        if step.kind == ALLOCATE {
            let block = pool.allocate(layout).unwrap();
            // SAFETY: the block has this size.
            unsafe { block.write_bytes(step.place.to_le_bytes()[0], step.size) };
            blocks[step.place] = block;
            live += 1;
        } else {
            // SAFETY: the block is of this pool, has this layout, and is freed once.
            unsafe { pool.free(blocks[step.place], layout) };
            live -= 1;
        }
    }
    live
}

/// Runs a program on a pool in the buffer, and returns the number of live blocks and the content of
/// the buffer.
fn bytes_after(buffer: &mut [u8], run: impl FnOnce(&mut CTlsf) -> usize) -> (usize, Vec<u8>) {
    buffer.fill(0);
    let start = buffer.as_mut_ptr();
    // SAFETY: no other code uses the buffer.
    let pool = unsafe { api::pw_tlsf_create_in(start.cast(), BUFFER) };
    // SAFETY: the pool was created above; if it is NULL, the test ends.
    let live = run(unsafe { pool.as_mut() }.unwrap());
    // SAFETY: the pool was created above and is live.
    unsafe { api::pw_tlsf_check(pool) };
    // SAFETY: the buffer has this size, and is not written at the same time.
    let mut bytes = unsafe { std::slice::from_raw_parts(start, BUFFER) }.to_vec();
    let at = pool.addr() - start.addr();
    bytes[at..][OTHER].fill(0);
    // SAFETY: the pool was created above, and is not used any more.
    unsafe { api::pw_tlsf_destroy(pool) };
    (live, bytes)
}

#[test]
fn tlsf_pools_of_c_and_of_rust_leave_the_same_bytes() {
    let ours = TlsfLibrary { alloc: api::pw_tlsf_alloc_slow, free: api::pw_tlsf_free_slow };
    let Some(in_c) = LoadedC::load("tlsf.c", &ours) else { return };
    type RunAll = unsafe extern "C" fn(*mut CTlsf, *const TlsfStep, usize, *mut *mut u8) -> usize;
    // SAFETY: the loaded file defines `run_all` with this type.
    let run_all: RunAll = unsafe { in_c.function(c"run_all") };
    let mut buffer = vec![0_u8; BUFFER];
    for seed in 0..8 {
        let steps = program(seed);
        let mut blocks = [std::ptr::null_mut(); PLACES];
        let by_c = bytes_after(&mut buffer, |pool| {
            // SAFETY: the pool is a live `pw_tlsf`, the length is that of `steps`, and places are
            // below PLACES.
            unsafe { run_all(pool, steps.as_ptr(), steps.len(), blocks.as_mut_ptr()) }
        });
        let by_rust = bytes_after(&mut buffer, |pool| run_in_rust(pool, &steps));
        assert_eq!(by_c.0, by_rust.0, "live blocks");
        let differs = by_c.1.iter().zip(&by_rust.1).position(|(c, rust)| c != rust);
        assert_eq!(differs, None, "seed {seed}");
        assert!(by_c.1.iter().filter(|byte| **byte != 0).count() > 30_000);
    }
}
