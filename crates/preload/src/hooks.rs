//! Recording hooks of `malloc`'s family. Each hook calls the underlying allocator.

use std::ffi::c_void;
use std::sync::atomic::Ordering::Relaxed;

use pagewise_heaplog::tables::header;

use crate::begin;
use crate::next_alloc;
use crate::sampling;
use crate::shared::head;
use crate::stacks::CallPoint;
use crate::thread_cache;
use crate::threads::{self, ThreadData};

/// Values by which stubs distinguish functions with equal signatures.
pub(crate) const CALLOC: usize = 0;
pub(crate) const REALLOC: usize = 1;
pub(crate) const MEMALIGN: usize = 2;
pub(crate) const ALIGNED_ALLOC: usize = 3;
pub(crate) const VALLOC: usize = 4;
pub(crate) const PVALLOC: usize = 5;

/// Returns the call point in the program. `stack` is the stack pointer, which points at the return
/// address.
#[inline(always)]
pub(crate) fn at(stack: u64, frame: u64) -> CallPoint {
    let back: *const u64 = std::ptr::with_exposed_provenance(stack as usize);
    // SAFETY: the stub passes its stack pointer, which points to the return address of the call.
    CallPoint { code: unsafe { back.read_volatile() }, stack: stack + 8, frame }
}

// The hooks are compiled twice. With `USUAL`, every call is recorded and the allocator is glibc's;
// without it, both conditions are checked at run time.

#[inline(always)]
pub(crate) fn note<const USUAL: bool>(block: *mut c_void, size: usize, stack: u64, frame: u64) {
    if block.is_null() {
        return;
    }
    if let Some(thread) = threads::enter_own() {
        record::<USUAL>(thread, block, size, stack, frame);
        threads::leave_own(thread);
    } else {
        note_first(block, size, stack, frame);
    }
}

#[cold]
#[inline(never)]
fn note_first(block: *mut c_void, size: usize, stack: u64, frame: u64) {
    if let Some(entered) = threads::enter_first() {
        record::<false>(entered.thread(), block, size, stack, frame);
        threads::leave(entered);
    }
}

#[inline(always)]
fn record<const USUAL: bool>(
    thread: &ThreadData,
    block: *mut c_void,
    size: usize,
    stack: u64,
    frame: u64,
) {
    if !USUAL && sampling::is_on() {
        sampling::allocated(thread, block.addr() as u64, size as u64, at(stack, frame));
    } else {
        thread.allocated::<USUAL>(block.addr() as u64, size as u64, at(stack, frame));
    }
}

pub(crate) unsafe extern "C" fn malloc<const USUAL: bool>(
    size: usize,
    stack: u64,
    frame: u64,
) -> *mut c_void {
    let block = next_alloc::malloc(size);
    note::<USUAL>(block, size, stack, frame);
    block
}

pub(crate) unsafe extern "C" fn free<const USUAL: bool>(block: *mut c_void, stack: u64) {
    if block.is_null() {
        return;
    }
    freed::<USUAL>(block, Some(stack));
    if next_alloc::may_be_boot() && next_alloc::is_boot(block) {
        return;
    }
    next_alloc::free(block);
}

/// Counts a block that is about to be freed. `stack` is the stack pointer at the entry of `free`;
/// `None` if another function frees the block.
#[inline(always)]
pub(crate) fn freed<const USUAL: bool>(block: *mut c_void, stack: Option<u64>) {
    let address = block.addr() as u64;
    if let Some(thread) = threads::enter_own() {
        count_freed::<USUAL>(thread, address, stack);
        threads::leave_own(thread);
    } else {
        freed_first(address, stack);
    }
}

#[cold]
#[inline(never)]
fn freed_first(address: u64, stack: Option<u64>) {
    if let Some(entered) = threads::enter_first() {
        count_freed::<false>(entered.thread(), address, stack);
        threads::leave(entered);
    }
}

#[inline(always)]
fn count_freed<const USUAL: bool>(thread: &ThreadData, address: u64, stack: Option<u64>) {
    match thread.remove_block::<USUAL>(address) {
        Some(known) => thread.freed::<USUAL>(address, known),
        None => unknown_freed(address, stack),
    }
}

#[cold]
#[inline(never)]
fn unknown_freed(address: u64, stack: Option<u64>) {
    if sampling::is_on() || stack.is_some_and(|stack| thread_cache::is_emptied(address, stack)) {
        return;
    }
    unknown(begin::room(address));
}

/// Counts a free of a block whose allocation was not recorded. `room` is the usable size of the
/// block.
#[cold]
fn unknown(room: u64) {
    if !sampling::is_on() {
        head(header::UNKNOWN_FREES).fetch_add(1, Relaxed);
        head(header::UNKNOWN_FREED).fetch_add(room, Relaxed);
    }
}

pub(crate) unsafe extern "C" fn one(
    size: usize,
    stack: u64,
    frame: u64,
    which: usize,
) -> *mut c_void {
    let block = match which {
        VALLOC => next_alloc::valloc(size),
        _ => next_alloc::pvalloc(size),
    };
    note::<false>(block, size, stack, frame);
    block
}

pub(crate) unsafe extern "C" fn two(
    first: usize,
    second: usize,
    stack: u64,
    frame: u64,
    which: usize,
) -> *mut c_void {
    let (block, size) = match which {
        // If the product overflows, the call returns null.
        CALLOC => (next_alloc::calloc(first, second), first.checked_mul(second).unwrap_or(0)),
        REALLOC => {
            return realloc(std::ptr::with_exposed_provenance_mut(first), second, stack, frame);
        }
        MEMALIGN => (next_alloc::memalign(first, second), second),
        _ => (next_alloc::aligned_alloc(first, second), second),
    };
    note::<false>(block, size, stack, frame);
    block
}

pub(crate) unsafe extern "C" fn posix_memalign(
    to: *mut *mut c_void,
    align: usize,
    size: usize,
    stack: u64,
    frame: u64,
) -> i32 {
    let result = next_alloc::posix_memalign(to, align, size);
    if result == 0 {
        // SAFETY: the call has succeeded, so the pointer was written.
        let block = unsafe { to.read() };
        note::<false>(block, size, stack, frame);
    }
    result
}

fn realloc(old: *mut c_void, size: usize, stack: u64, frame: u64) -> *mut c_void {
    if next_alloc::may_be_boot() && next_alloc::is_boot(old) {
        return begin::from_boot(old, size);
    }
    resize(old, stack, frame, || {
        let new = next_alloc::realloc(old, size);
        (new, ResizeOutcome::usual(new, size))
    })
}

/// Result of a resize of a block.
#[derive(Clone, Copy, Debug)]
pub(crate) enum ResizeOutcome {
    /// The block has this size in bytes now, at the same or another address.
    Resized(usize),
    /// The block was freed.
    Freed,
    /// The block is unchanged.
    Kept,
}

impl ResizeOutcome {
    /// Outcome of a call of the C library's `realloc` that returned `new`.
    pub(crate) fn usual(new: *mut c_void, size: usize) -> ResizeOutcome {
        match (new.is_null(), size) {
            (false, _) => ResizeOutcome::Resized(size),
            (true, 0) => ResizeOutcome::Freed,
            (true, _) => ResizeOutcome::Kept,
        }
    }
}

/// Resizes a block by `call` and counts a free and an allocation. If `old` is null, counts only an
/// allocation.
pub(crate) fn resize(
    old: *mut c_void,
    stack: u64,
    frame: u64,
    call: impl FnOnce() -> (*mut c_void, ResizeOutcome),
) -> *mut c_void {
    if old.is_null() {
        let (new, outcome) = call();
        if let ResizeOutcome::Resized(size) = outcome {
            note::<false>(new, size, stack, frame);
        }
        return new;
    }
    let address = old.addr() as u64;
    // Another thread may get the address before the call returns, so the block is removed from the
    // live blocks before the call.
    let known = threads::enter().and_then(|entered| {
        let known = entered.thread().remove_block::<false>(address);
        threads::leave(entered);
        known
    });
    let room = if known.is_none() { begin::room(address) } else { 0 };
    let (new, outcome) = call();
    let Some(entered) = threads::enter() else { return new };
    let thread = entered.thread();
    match (outcome, known) {
        (ResizeOutcome::Kept, Some(block)) => thread.put_back(address, block),
        (ResizeOutcome::Kept, None) => {}
        (ResizeOutcome::Freed | ResizeOutcome::Resized(_), Some(block)) => {
            thread.freed::<false>(address, block);
        }
        (ResizeOutcome::Freed | ResizeOutcome::Resized(_), None) => unknown(room),
    }
    if let ResizeOutcome::Resized(size) = outcome {
        record::<false>(thread, new, size, stack, frame);
    }
    threads::leave(entered);
    new
}
