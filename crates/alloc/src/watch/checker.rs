//! Tools that observe each block or access: memcheck of valgrind, AddressSanitizer, and the heap
//! recorder of pagewise, which counts each block.
//!
//! A request to valgrind is a sequence of instructions that has no effect on a processor; valgrind
//! recognizes the sequence when it translates the program. AddressSanitizer is present if its
//! runtime is loaded. Its two functions for custom allocators are looked up by name, so a library
//! that was built without AddressSanitizer works in programs that were built with it.

use core::cell::Cell;
use core::ptr::NonNull;

use crate::source::SourceBlock;

#[cfg(feature = "os")]
mod asan;
#[cfg(feature = "os")]
mod recorder;
#[cfg(feature = "os")]
mod valgrind;

/// Size in bytes of the red zone behind each block of a pool if [`checked`]. Most guarded pools
/// also have this red zone.
pub const GAP: usize = 16;

#[cfg(feature = "os")]
use core::sync::atomic::{AtomicU8, Ordering::Relaxed};

/// Result of the search for checkers: `NOBODY` or `SOMEBODY`; 0 before the search.
#[cfg(feature = "os")]
static FOUND: AtomicU8 = AtomicU8::new(0);
#[cfg(feature = "os")]
const NOBODY: u8 = 1;
#[cfg(feature = "os")]
const SOMEBODY: u8 = 2;

/// Disables the search for checkers: for a pool that implements `malloc`, since the search may
/// allocate.
#[cfg(feature = "os")]
pub fn ignore_checkers() {
    FOUND.store(NOBODY, Relaxed);
}

/// True if a checker is present in this process: then every call must take a slow path.
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
    // The recorder is always searched for, because it may be present together with another checker.
    let recorded = recorder::is_there();
    let found = valgrind::is_running() || asan::is_there() || recorded;
    FOUND.store(if found { SOMEBODY } else { NOBODY }, Relaxed);
    found
}

/// Always false: without an operating system the library cannot search for checkers.
#[cfg(not(feature = "os"))]
pub const fn checked() -> bool {
    false
}

/// While this guard lives, checkers do not report accesses of this thread to inaccessible memory.
#[derive(Debug)]
pub struct Quiet(bool);

/// Disables reports about this thread until the returned guard is dropped, for slow paths that
/// access free memory.
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

/// Defines a function that calls the function of the same name for each checker that is present.
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
