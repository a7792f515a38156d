//! Tools that check each access: valgrind's memcheck, and AddressSanitizer; and the recorder of
//! heaps, which counts each block.
//!
//! A request to valgrind is a sequence of instructions that do nothing on a processor, and that
//! valgrind recognizes when it translates them. AddressSanitizer is present if its runtime is: its
//! two functions for custom allocators are looked up by name, so that a library that was built
//! without it serves programs that were built with it.

use core::cell::Cell;
use core::ptr::NonNull;

use crate::source::SourceBlock;

#[cfg(feature = "os")]
mod asan;
#[cfg(feature = "os")]
mod recorder;
#[cfg(feature = "os")]
mod valgrind;

/// Size of the red zone behind each block of a pool that is [`checked`], in bytes. Most guarded
/// pools have it too.
pub const GAP: usize = 16;

#[cfg(feature = "os")]
use core::sync::atomic::{AtomicU8, Ordering::Relaxed};

/// Result of the search for checkers; 0 is not known yet.
#[cfg(feature = "os")]
static FOUND: AtomicU8 = AtomicU8::new(0);
#[cfg(feature = "os")]
const NOBODY: u8 = 1;
#[cfg(feature = "os")]
const SOMEBODY: u8 = 2;

/// Disables the search for checkers, which may allocate: for a pool that is `malloc`.
#[cfg(feature = "os")]
pub fn ignore_checkers() {
    FOUND.store(NOBODY, Relaxed);
}

/// True if a checker observes accesses in this process: then every call must take a slow path.
#[cfg(feature = "os")]
#[inline]
pub fn checked() -> bool {
    match FOUND.load(Relaxed) {
        // Miri needs no reports.
        _ if cfg!(miri) => false,
        0 => search(),
        found => found == SOMEBODY,
    }
}

#[cfg(feature = "os")]
#[cold]
fn search() -> bool {
    // The recorder is always asked: it may be present beside a checker.
    let recorded = recorder::is_there();
    let found = valgrind::is_running() || asan::is_there() || recorded;
    FOUND.store(if found { SOMEBODY } else { NOBODY }, Relaxed);
    found
}

/// Without an operating system no checker is known.
#[cfg(not(feature = "os"))]
pub const fn checked() -> bool {
    false
}

/// While this value lives, the thread may access inaccessible memory.
#[derive(Debug)]
pub struct Quiet(bool);

/// Disables reports about this thread, for slow paths that access free memory.
pub fn quiet() -> Quiet {
    let checked = checked();
    #[cfg(feature = "os")]
    if checked {
        valgrind::report_errors(false);
    }
    Quiet(checked)
}

impl Drop for Quiet {
    fn drop(&mut self) {
        if self.0 {
            #[cfg(feature = "os")]
            valgrind::report_errors(true);
        }
    }
}

/// Defines a function that reports to all checkers that are present.
macro_rules! tell {
    ($($(#[$doc:meta])* $name:ident($($argument:ident: $type:ty),*);)*) => {
        $($(#[$doc])*
        pub(super) fn $name($($argument: $type),*) {
            #[cfg(feature = "os")]
            if checked() {
                asan::$name($($argument),*);
                valgrind::$name($($argument),*);
                recorder::$name($($argument),*);
            }
            #[cfg(not(feature = "os"))]
            let _ = ($($argument),*);
        })*
    };
}

tell! {
    taken(pool: &Cell<usize>, block: SourceBlock);
    given_back(block: SourceBlock);
    destroyed(pool: &Cell<usize>);
    allocated(pool: &Cell<usize>, start: NonNull<u8>, size: usize);
    resized(pool: &Cell<usize>, start: NonNull<u8>, old: usize, new: usize);
    freed(pool: &Cell<usize>, start: NonNull<u8>, size: usize);
    misused(pool: &Cell<usize>, start: NonNull<u8>);
    defined(start: NonNull<u8>, size: usize);
    hidden(start: NonNull<u8>, size: usize);
}
