//! Memory errors and the pools that detect them, one `MisuseCase` for each. A misused pool is
//! leaked, since the state of its memory is unknown.

#![allow(clippy::unwrap_used, reason = "these are tests, their helpers too")]
#![cfg(all(feature = "os", not(miri)))]

use std::alloc::Layout;
use std::mem::{ManuallyDrop, forget};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::ptr::NonNull;

use pagewise_alloc::pages::PAGE;
use pagewise_alloc::{Fifo, LockedTlsf, Os, Pages, Ring, Stack, Tlsf, misuse::Misuse};

/// A memory error in the use of a pool.
struct MisuseCase {
    pool: &'static str,
    error: &'static str,
    /// Texts that the message must contain.
    says: &'static [&'static str],
    /// True if the message names the source location of the allocation in debug builds.
    names_site: bool,
    /// True if release builds detect the error too.
    in_release: bool,
    does: fn(),
}

const BYTES: Layout = Layout::new::<[u8; 100]>();
const RUN: Layout = match Layout::from_size_align(10 * PAGE, PAGE) {
    Ok(layout) => layout,
    Err(_) => panic!("the alignment is a power of two"),
};

fn tlsf(body: impl FnOnce(&mut Tlsf<Os>, NonNull<u8>)) {
    let mut pool = ManuallyDrop::new(Tlsf::guarded(Os));
    let block = pool.allocate(BYTES).unwrap();
    body(&mut pool, block);
}

fn fifo(body: impl FnOnce(&Fifo<Os>, NonNull<u8>)) {
    let pool = ManuallyDrop::new(Fifo::guarded(Os).unwrap());
    let _older = pool.allocate(BYTES);
    let block = pool.allocate(BYTES).unwrap();
    body(&pool, block);
}

fn pages(body: impl FnOnce(&Pages<Os>, NonNull<u8>)) {
    let pool = ManuallyDrop::new(Pages::new(Os));
    let run = pool.allocate(RUN).unwrap();
    body(&pool, run);
}

fn guarded_pages(body: impl FnOnce(&Pages<Os>, NonNull<u8>)) {
    let pool = ManuallyDrop::new(Pages::guarded(Os));
    let run = pool.allocate(RUN).unwrap();
    body(&pool, run);
}

/// Writes `size` bytes at an offset from a block.
fn write(block: NonNull<u8>, offset: usize, size: usize) {
    for at in offset..offset + size {
        // SAFETY: violated on purpose if the offset is outside of the block; the memory still
        // belongs to the pool.
        unsafe { block.as_ptr().wrapping_add(at).write(0x11) };
    }
}

fn local() -> NonNull<u8> {
    static ELSEWHERE: [u64; 64] = [0; 64];
    NonNull::from(&ELSEWHERE[32]).cast()
}

const CASES: &[MisuseCase] = &[
    MisuseCase {
        pool: "tlsf",
        error: "double free",
        says: &["tlsf: 0x", "was freed before", "100 bytes"],
        names_site: true,
        in_release: true,
        does: || {
            tlsf(|pool, block| {
                // SAFETY: the second call violates the contract on purpose: the pool must detect
                // it.
                (0..2).for_each(|_| unsafe { pool.free(block, BYTES) });
            });
        },
    },
    MisuseCase {
        pool: "tlsf",
        error: "double free of a block that was merged",
        says: &["tlsf: 0x"],
        names_site: true,
        in_release: true,
        does: || {
            tlsf(|pool, block| {
                // SAFETY: the block is live.
                unsafe { pool.free(block, BYTES) };
                for _ in 0..100 {
                    let other = pool.allocate(BYTES).unwrap();
                    // SAFETY: the block is live.
                    unsafe { pool.free(other, BYTES) };
                }
                // SAFETY: violated on purpose, since the block was freed before: the pool must
                // detect it.
                unsafe { pool.free(block, BYTES) };
            });
        },
    },
    MisuseCase {
        pool: "tlsf",
        error: "write behind the block",
        says: &["tlsf: 0x", "was written beyond its bounds", "100 bytes"],
        names_site: true,
        in_release: true,
        does: || {
            tlsf(|pool, block| {
                write(block, 100, 4);
                // SAFETY: the block is live.
                unsafe { pool.free(block, BYTES) };
            });
        },
    },
    MisuseCase {
        pool: "tlsf",
        error: "write after free",
        says: &["tlsf: 0x", "was written to after it was freed"],
        names_site: true,
        in_release: true,
        does: || {
            tlsf(|pool, block| {
                // SAFETY: the block is live.
                unsafe { pool.free(block, BYTES) };
                write(block, 10, 4);
                pool.check();
            });
        },
    },
    MisuseCase {
        pool: "tlsf",
        error: "wrong size",
        says: &["tlsf: 0x", "was not allocated with 8 bytes", "100 bytes"],
        names_site: true,
        in_release: true,
        does: || {
            // SAFETY: violated on purpose by a wrong layout: the pool must detect it.
            tlsf(|pool, block| unsafe { pool.free(block, Layout::new::<u64>()) });
        },
    },
    MisuseCase {
        pool: "tlsf",
        error: "foreign address",
        says: &["tlsf: 0x", "is not a block of this pool"],
        names_site: false,
        in_release: true,
        does: || {
            // SAFETY: violated on purpose by a foreign address: the pool must detect it.
            tlsf(|pool, _| unsafe { pool.free(local(), BYTES) });
        },
    },
    MisuseCase {
        pool: "locked tlsf",
        error: "double free",
        says: &["tlsf: 0x", "was freed before"],
        names_site: true,
        in_release: true,
        does: || {
            let pool: ManuallyDrop<LockedTlsf<Os>> = ManuallyDrop::new(LockedTlsf::guarded(Os));
            let block = pool.with(|pool| pool.allocate(BYTES)).unwrap();
            let free = || -> Result<(), Misuse> {
                // SAFETY: the second call violates the contract on purpose: the pool must detect
                // it.
                pool.with(|pool| unsafe { pool.try_free(block, BYTES) })
            };
            free().unwrap();
            free().unwrap_err().panic();
        },
    },
    MisuseCase {
        pool: "fifo",
        error: "double free",
        says: &["fifo: 0x", "was freed before", "100 bytes"],
        names_site: true,
        in_release: true,
        does: || {
            fifo(|pool, block| {
                // SAFETY: the second call violates the contract on purpose: the pool must detect
                // it.
                (0..2).for_each(|_| unsafe { pool.free(block, BYTES) });
            });
        },
    },
    MisuseCase {
        pool: "fifo",
        error: "write behind the block",
        says: &["fifo: 0x", "was written beyond its bounds"],
        names_site: true,
        in_release: true,
        does: || {
            fifo(|pool, block| {
                write(block, 100, 4);
                // SAFETY: the block is live.
                unsafe { pool.free(block, BYTES) };
            });
        },
    },
    MisuseCase {
        pool: "fifo",
        error: "wrong size",
        says: &["fifo: 0x", "was not allocated with 8 bytes"],
        names_site: true,
        in_release: true,
        does: || {
            // SAFETY: violated on purpose by a wrong layout: the pool must detect it.
            fifo(|pool, block| unsafe { pool.free(block, Layout::new::<u64>()) });
        },
    },
    MisuseCase {
        pool: "fifo",
        error: "foreign address",
        says: &["fifo: 0x", "is not a block of this pool"],
        names_site: false,
        in_release: false,
        does: || {
            // SAFETY: violated on purpose by a foreign address: the pool must detect it.
            fifo(|pool, _| unsafe { pool.free(local(), BYTES) });
        },
    },
    MisuseCase {
        pool: "fifo",
        error: "block of another pool",
        says: &["fifo: 0x", "is not a block of this pool"],
        names_site: false,
        in_release: true,
        does: || {
            let other = ManuallyDrop::new(Fifo::unguarded(Os).unwrap());
            let _older = other.allocate(BYTES);
            let block = other.allocate(BYTES).unwrap();
            // SAFETY: violated on purpose by a block of another pool: the pool must detect it.
            fifo(|pool, _| unsafe { pool.free(block, BYTES) });
        },
    },
    MisuseCase {
        pool: "stack",
        error: "write behind an allocation",
        says: &["stack: 0x", "was written beyond its bounds", "13 bytes"],
        names_site: true,
        in_release: true,
        does: || {
            let mut stack = Stack::guarded(Os);
            let popped = catch_unwind(AssertUnwindSafe(|| {
                stack.scope(|scope| {
                    let start = NonNull::from(scope.alloc([0_u8; 13])).cast();
                    write(start, 13, 1);
                });
            }));
            forget(stack);
            std::panic::resume_unwind(popped.unwrap_err());
        },
    },
    MisuseCase {
        pool: "ring",
        error: "write behind a block",
        says: &["ring: 0x", "was written beyond its bounds", "100 bytes"],
        names_site: true,
        in_release: true,
        does: || {
            let mut ring = ManuallyDrop::new(Ring::guarded(Os).unwrap());
            let frame = ring.open().unwrap();
            write(frame.allocate(BYTES).unwrap(), 100, 4);
            drop(frame.seal());
        },
    },
    MisuseCase {
        pool: "pages",
        error: "double free",
        says: &["pages: 0x", "was freed before"],
        names_site: true,
        in_release: true,
        does: || {
            pages(|pool, run| {
                // SAFETY: the second call violates the contract on purpose: the pool must detect
                // it.
                (0..2).for_each(|_| unsafe { pool.free(run, RUN.size()) });
            });
        },
    },
    MisuseCase {
        pool: "pages",
        error: "foreign address",
        says: &["pages: 0x", "is not a block of this pool"],
        names_site: false,
        in_release: true,
        does: || {
            // SAFETY: violated on purpose by a foreign address: the pool must detect it.
            pages(|pool, _| unsafe { pool.free(local(), RUN.size()) });
        },
    },
    MisuseCase {
        pool: "pages",
        error: "write behind the run",
        says: &["pages: 0x", "was written beyond its bounds", "40960 bytes"],
        names_site: true,
        in_release: true,
        does: || {
            guarded_pages(|pool, run| {
                let _next = pool.allocate(RUN);
                write(run, RUN.size(), 4);
                // SAFETY: the run is live.
                unsafe { pool.free(run, RUN.size()) };
            });
        },
    },
    MisuseCase {
        pool: "pages",
        error: "write behind the run that is freed in parts",
        says: &["pages: 0x", "was written beyond its bounds"],
        names_site: true,
        in_release: true,
        does: || {
            guarded_pages(|pool, run| {
                write(run, RUN.size() + 100, 4);
                let last = run.as_ptr().wrapping_add(RUN.size() - PAGE);
                // SAFETY: the page belongs to the live run.
                unsafe { pool.free_part(NonNull::new(last).unwrap(), PAGE) };
            });
        },
    },
    MisuseCase {
        pool: "pages",
        error: "wrong size",
        says: &["pages: 0x", "was not allocated with 8192 bytes", "40960 bytes"],
        names_site: true,
        in_release: true,
        does: || {
            // SAFETY: violated on purpose by a wrong size: the pool must detect it.
            guarded_pages(|pool, run| unsafe { pool.free(run, 2 * PAGE) });
        },
    },
    MisuseCase {
        pool: "pages",
        error: "address inside of a run",
        says: &["pages: 0x", "is not a block of this pool"],
        names_site: false,
        in_release: true,
        does: || {
            guarded_pages(|pool, run| {
                let inside = NonNull::new(run.as_ptr().wrapping_add(PAGE)).unwrap();
                // SAFETY: violated on purpose by an address inside of a run: the pool must detect
                // it.
                unsafe { pool.free(inside, RUN.size() - PAGE) };
            });
        },
    },
    MisuseCase {
        pool: "pages",
        error: "double free of a part",
        says: &["pages: 0x", "was freed before"],
        names_site: true,
        in_release: false,
        does: || {
            pages(|pool, run| {
                // SAFETY: the second call violates the contract on purpose: the pool must detect
                // it.
                (0..2).for_each(|_| unsafe { pool.free_part(run, PAGE) });
            });
        },
    },
];

#[test]
fn every_memory_error_is_reported_with_its_block_and_its_call_sites() {
    for case in CASES.iter().filter(|case| case.in_release || cfg!(debug_assertions)) {
        let name = (case.pool, case.error);
        let panic = catch_unwind(case.does).expect_err(&format!("{name:?} was not detected"));
        let said = panic.downcast_ref::<String>().cloned().unwrap_or_default();
        let is_known = case.says.iter().all(|part| said.contains(part));
        assert!(is_known, "{name:?}: {said:?}");
        let site = said.contains(concat!("allocated at ", file!()));
        assert_eq!(site, case.names_site && cfg!(debug_assertions), "{name:?}: {said:?}");
    }
}
