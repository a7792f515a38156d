//! Each function of `malloc`'s family, recorded: what it does is done by the allocator behind.

use std::ffi::c_void;
use std::sync::atomic::Ordering::Relaxed;

use pagewise_heaplog::tables::header;

use crate::begin;
use crate::real;
use crate::sampling;
use crate::shared::head;
use crate::stacks::At;
use crate::threads::{self, Thread};

/// Numbers by which stubs tell functions of the same form apart.
pub(crate) const CALLOC: usize = 0;
pub(crate) const REALLOC: usize = 1;
pub(crate) const MEMALIGN: usize = 2;
pub(crate) const ALIGNED_ALLOC: usize = 3;
pub(crate) const VALLOC: usize = 4;
pub(crate) const PVALLOC: usize = 5;

/// Where the program is that calls us: `stack` is the stack pointer, which points at the return address.
#[inline(always)]
pub(crate) fn at(stack: u64, frame: u64) -> At {
    let back: *const u64 = std::ptr::with_exposed_provenance(stack as usize);
    // SAFETY: the stub has passed its stack pointer, where the call put its return address.
    At { code: unsafe { back.read_volatile() }, stack: stack + 8, frame }
}

// Hooks are made twice. With `USUAL` every call is recorded and the allocator is the C library's; without, both is asked.

#[inline(always)]
fn note<const USUAL: bool>(block: *mut c_void, size: usize, stack: u64, frame: u64) {
    if block.is_null() {
        return;
    }
    if let Some(entered) = threads::enter() {
        record::<USUAL>(entered.thread(), block, size, stack, frame);
        threads::leave(entered);
    }
}

#[inline(always)]
fn record<const USUAL: bool>(
    thread: &Thread,
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
    let block = real::malloc(if USUAL { size } else { begin::size(size) });
    note::<USUAL>(block, size, stack, frame);
    block
}

pub(crate) unsafe extern "C" fn free<const USUAL: bool>(block: *mut c_void) {
    if block.is_null() {
        return;
    }
    if let Some(entered) = threads::enter() {
        let thread = entered.thread();
        let address = block.addr() as u64;
        match thread.take::<USUAL>(address) {
            Some(known) => thread.freed::<USUAL>(address, known),
            None => unknown(),
        }
        threads::leave(entered);
    }
    if real::may_be_boot() && real::is_boot(block) {
        return;
    }
    real::free(block);
}

#[cold]
fn unknown() {
    if !sampling::is_on() {
        head(header::UNKNOWN_FREES).fetch_add(1, Relaxed);
    }
}

pub(crate) unsafe extern "C" fn one(
    size: usize,
    stack: u64,
    frame: u64,
    which: usize,
) -> *mut c_void {
    let block = match which {
        VALLOC => real::valloc(begin::size(size)),
        _ => real::pvalloc(begin::size(size)),
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
        CALLOC => {
            // Where it does not overflow, it is as much as is asked for at once.
            let both = first.checked_mul(second);
            let block = match both.filter(|&both| begin::size(both) != both) {
                Some(both) => real::calloc(1, begin::size(both)),
                None => real::calloc(first, second),
            };
            (block, both.unwrap_or(0))
        }
        REALLOC => {
            return realloc(std::ptr::with_exposed_provenance_mut(first), second, stack, frame);
        }
        MEMALIGN => (real::memalign(first, begin::size(second)), second),
        _ => (real::aligned_alloc(first, begin::size(second)), second),
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
    let result = real::posix_memalign(to, align, begin::size(size));
    if result == 0 {
        // SAFETY: the call has succeeded, so the pointer was written.
        let block = unsafe { to.read() };
        note::<false>(block, size, stack, frame);
    }
    result
}

fn realloc(old: *mut c_void, size: usize, stack: u64, frame: u64) -> *mut c_void {
    if old.is_null() {
        let block = real::realloc(old, begin::size(size));
        note::<false>(block, size, stack, frame);
        return block;
    }
    if real::may_be_boot() && real::is_boot(old) {
        return begin::from_boot(old, size);
    }
    let address = old.addr() as u64;
    // The block may be another's before the call returns: it is taken out before.
    let known = threads::enter().and_then(|entered| {
        let known = entered.thread().take::<false>(address);
        threads::leave(entered);
        known
    });
    let new = real::realloc(old, if size == 0 { 0 } else { begin::size(size) });
    let Some(entered) = threads::enter() else { return new };
    let thread = entered.thread();
    if new.is_null() && size != 0 {
        // The old block is as it was.
        if let Some(block) = known {
            thread.put_back(address, block);
        }
    } else {
        match known {
            Some(block) => thread.freed::<false>(address, block),
            None => unknown(),
        }
        if !new.is_null() {
            record::<false>(thread, new, size, stack, frame);
        }
    }
    threads::leave(entered);
    new
}
