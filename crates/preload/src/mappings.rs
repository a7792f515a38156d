//! Recording of mappings that the program makes itself, on request: `mmap`, `munmap`, `mremap`,
//! `brk`, `sbrk`.
//!
//! Internal calls of the C library, such as those of `malloc`, are not recorded. Ranges are stored
//! in an array in order of address, under a lock: programs have hundreds of them. A hole in the
//! middle of a range leaves two pieces, of which only the first counts as a block.

use std::ffi::{c_int, c_long, c_void};
use std::sync::atomic::{AtomicPtr, AtomicU8, AtomicUsize, Ordering::Relaxed};

use pagewise_heaplog::tables::{kind, record};

use crate::aux_hooks::Other;
use crate::begin::{self, StartStage};
use crate::hooks;
use crate::kernel;
use crate::lock::Lock;
use crate::modules;
use crate::peak;
use crate::threads::{self, ThreadData};

/// 1 if mappings are recorded.
static IS_ON: AtomicU8 = AtomicU8::new(0);

/// Switches the recording of mappings on or off.
pub(crate) fn switch(on: bool) {
    IS_ON.store(u8::from(on), Relaxed);
}

/// Clears the state in a child of `fork`.
pub(crate) fn reset() {
    LOCK.reset();
    ROOM.store(0, Relaxed);
    USED.store(0, Relaxed);
}

/// A piece of a mapping, with its allocation site.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
struct SitePiece {
    start: u64,
    end: u64,
    site: u32,
    /// 1 if the piece counts as a block; otherwise 0.
    blocks: u32,
}

static LOCK: Lock = Lock::new();
static PIECES: AtomicPtr<SitePiece> = AtomicPtr::new(std::ptr::null_mut());
static ROOM: AtomicUsize = AtomicUsize::new(0);
static USED: AtomicUsize = AtomicUsize::new(0);
/// Number of pieces that fit in the first array. [`MAX_PIECES`] exceeds the kernel's default limit
/// of mappings.
const FIRST: usize = 1 << 10;
const MAX_PIECES: usize = 1 << 17;

fn get(index: usize) -> SitePiece {
    // SAFETY: callers pass an index below the number of pieces, and hold the lock.
    unsafe { PIECES.load(Relaxed).wrapping_add(index).read() }
}

fn set(index: usize, piece: SitePiece) {
    // SAFETY: callers pass an index below the capacity, and hold the lock.
    unsafe { PIECES.load(Relaxed).wrapping_add(index).write(piece) };
}

/// Moves the piece at the index `from` and all later pieces, so that they begin at the index `to`.
fn shift(from: usize, to: usize) {
    let pieces = PIECES.load(Relaxed);
    let count = USED.load(Relaxed) - from;
    // SAFETY: callers guarantee that both ranges are within the capacity, and hold the lock.
    unsafe { std::ptr::copy(pieces.wrapping_add(from), pieces.wrapping_add(to), count) };
    USED.store(USED.load(Relaxed) + to - from, Relaxed);
}

/// Makes space for one more piece. Returns `None` if memory is exhausted.
fn make_room() -> Option<()> {
    let (used, room) = (USED.load(Relaxed), ROOM.load(Relaxed));
    if used < room {
        return Some(());
    }
    let more = (room * 2).max(FIRST);
    if more > MAX_PIECES {
        return None;
    }
    let new = kernel::memory(more * size_of::<SitePiece>()).ok()?.cast::<SitePiece>();
    let old = PIECES.load(Relaxed);
    if room > 0 {
        // SAFETY: both arrays have space for `used` pieces, and the lock is held.
        unsafe { std::ptr::copy_nonoverlapping(old, new, used) };
        // SAFETY: the old array belongs to `kernel::memory`, and is not read any more.
        unsafe { kernel::forget(old.cast(), room * size_of::<SitePiece>()) };
    }
    PIECES.store(new, Relaxed);
    ROOM.store(more, Relaxed);
    Some(())
}

/// Index of the first piece that ends above an address.
fn first_behind(address: u64) -> usize {
    let (mut low, mut high) = (0, USED.load(Relaxed));
    while low < high {
        let middle = low.midpoint(high);
        match get(middle).end > address {
            true => high = middle,
            false => low = middle + 1,
        }
    }
    low
}

/// Removes a range. Calls `tell` with the site, bytes and blocks of each removed part.
fn remove_range(start: u64, end: u64, tell: &mut dyn FnMut(u32, u64, u64)) {
    let mut index = first_behind(start);
    while index < USED.load(Relaxed) {
        let piece = get(index);
        if piece.start >= end {
            return;
        }
        let (from, to) = (piece.start.max(start), piece.end.min(end));
        match (piece.start < from, to < piece.end) {
            (false, false) => {
                tell(piece.site, to - from, piece.blocks.into());
                shift(index + 1, index);
            }
            (true, false) => {
                tell(piece.site, to - from, 0);
                set(index, SitePiece { end: from, ..piece });
                index += 1;
            }
            (false, true) => {
                tell(piece.site, to - from, 0);
                set(index, SitePiece { start: to, ..piece });
                return;
            }
            (true, true) => {
                // If memory is exhausted, the second part of the piece is removed too.
                let has_room = make_room().is_some();
                let gone = if has_room { to - from } else { piece.end - from };
                tell(piece.site, gone, 0);
                set(index, SitePiece { end: from, ..piece });
                if has_room {
                    shift(index + 1, index + 2);
                    set(index + 1, SitePiece { start: to, blocks: 0, ..piece });
                }
                return;
            }
        }
    }
}

/// Adds a range. Requires that it overlaps no other range. Returns `None` if memory is exhausted.
fn put(start: u64, end: u64, site: u32) -> Option<()> {
    make_room()?;
    let index = first_behind(start);
    shift(index, index + 1);
    set(index, SitePiece { start, end, site, blocks: 1 });
    Some(())
}

/// Start and end of a range: the start is rounded down, and the end is rounded up to a page
/// boundary.
fn range(start: u64, length: u64) -> (u64, u64) {
    // SAFETY: `getauxval` only reads the auxiliary vector.
    let page = unsafe { libc::getauxval(libc::AT_PAGESZ) };
    let end = start.saturating_add(length).checked_next_multiple_of(page).unwrap_or(u64::MAX);
    (start & !(page - 1), end)
}

fn gone(thread: &ThreadData, start: u64, end: u64) {
    let _held = LOCK.hold();
    remove_range(start, end, &mut |site, bytes, blocks| {
        peak::less(thread, bytes);
        let Some(record) = thread.record_of(site) else { return };
        record.roll();
        record.add(record::FREES, blocks);
        record.add(record::FREED, bytes);
    });
}

/// Removes a range that the program unmaps.
fn unmapped(start: u64, length: u64) {
    if let Some(entered) = threads::enter() {
        let (start, end) = range(start, length);
        gone(entered.thread(), start, end);
        threads::leave(entered);
    }
}

/// Records a new mapping, which replaces all earlier mappings in its range.
fn mapped(start: u64, length: u64, stack: u64, frame: u64) {
    let Some(entered) = threads::enter() else { return };
    let thread = entered.thread();
    let (start, end) = range(start, length);
    gone(thread, start, end);
    if let Some((site, record)) = thread.site_of(hooks::at(stack, frame), kind::MAPPING) {
        let held = LOCK.hold();
        let noted = put(start, end, site);
        drop(held);
        if noted.is_some() {
            record.roll();
            record.add(record::ALLOCATIONS, 1);
            record.add(record::ALLOCATED, end - start);
            peak::more(thread, end - start);
        }
    }
    threads::leave(entered);
}

/// Start addresses of the C library's files. If the functions are hooked inline, internal calls
/// from these files also reach the hooks.
static SYSTEM: [AtomicUsize; 3] = [const { AtomicUsize::new(0) }; 3];

/// Excludes calls from the files that contain these functions.
pub(crate) fn pass_over(functions: [*mut (); SYSTEM.len()]) {
    for (start, function) in SYSTEM.iter().zip(functions) {
        let file = modules::find(function.addr() as u64);
        start.store(file.map_or(0, |file| file.start), Relaxed);
    }
}

/// True if calls are recorded, and the caller is not in the C library.
fn is_recorded(stack: u64) -> bool {
    if IS_ON.load(Relaxed) == 0 || begin::stage() != StartStage::Records {
        return false;
    }
    if SYSTEM[0].load(Relaxed) == 0 {
        return true;
    }
    let caller = modules::find(hooks::at(stack, 0).code);
    caller.is_none_or(|file| !SYSTEM.iter().any(|start| start.load(Relaxed) == file.start))
}

macro_rules! behind {
    ($other:ident, $kind:ty) => {{
        let function = Other::$other.behind();
        // SAFETY: the symbol of this name has this type; a null pointer becomes `None`.
        unsafe { std::mem::transmute::<*mut c_void, Option<$kind>>(function) }
    }};
}

fn failed() -> *mut c_void {
    libc::MAP_FAILED
}

unsafe extern "C" fn on_mmap(
    at: *mut c_void,
    length: usize,
    protection: c_int,
    flags: c_int,
    file: c_int,
    offset: c_long,
    stack: u64,
    frame: u64,
) -> *mut c_void {
    type MmapFn =
        unsafe extern "C" fn(*mut c_void, usize, c_int, c_int, c_int, c_long) -> *mut c_void;
    let Some(function) = behind!(Mmap, MmapFn) else { return failed() };
    // SAFETY: the program called the hooked function with these arguments.
    let made = unsafe { function(at, length, protection, flags, file, offset) };
    if made != failed() && is_recorded(stack) {
        mapped(made.addr() as u64, length as u64, stack, frame);
    }
    made
}

unsafe extern "C" fn on_munmap(
    at: *mut c_void,
    length: usize,
    _: u64,
    _: u64,
    _: u64,
    _: u64,
    stack: u64,
    _frame: u64,
) -> c_int {
    type MunmapFn = unsafe extern "C" fn(*mut c_void, usize) -> c_int;
    let Some(function) = behind!(Munmap, MunmapFn) else { return -1 };
    // The range is removed before the call, because other threads may get its addresses before the
    // call returns. The kernel refuses an address that is not page-aligned, so such a call removes
    // nothing.
    let (start, _) = range(at.addr() as u64, 0);
    if is_recorded(stack) && start == at.addr() as u64 {
        unmapped(start, length as u64);
    }
    // SAFETY: the program called the hooked function with these arguments.
    unsafe { function(at, length) }
}

unsafe extern "C" fn on_mremap(
    old: *mut c_void,
    old_length: usize,
    new_length: usize,
    flags: c_int,
    to: *mut c_void,
    _: u64,
    stack: u64,
    frame: u64,
) -> *mut c_void {
    type MremapFn =
        unsafe extern "C" fn(*mut c_void, usize, usize, c_int, *mut c_void) -> *mut c_void;
    let Some(function) = behind!(Mremap, MremapFn) else { return failed() };
    let is_recorded = is_recorded(stack);
    let stays = flags & libc::MREMAP_DONTUNMAP != 0;
    if is_recorded && !stays && old_length != 0 {
        unmapped(old.addr() as u64, old_length as u64);
    }
    // SAFETY: the program called the hooked function with these arguments.
    let made = unsafe { function(old, old_length, new_length, flags, to) };
    if is_recorded {
        let (at, length) = match made == failed() {
            // With this flag the old range stays mapped.
            true => (old, if stays { 0 } else { old_length }),
            false => (made, new_length),
        };
        if length != 0 {
            mapped(at.addr() as u64, length as u64, stack, frame);
        }
    }
    made
}

/// Records a change of the program break.
fn moved(before: u64, after: u64, stack: u64, frame: u64) {
    if after > before {
        mapped(before, after - before, stack, frame);
    } else if after < before {
        unmapped(after, before - after);
    }
}

unsafe extern "C" fn on_sbrk(by: isize, stack: u64, frame: u64) -> *mut c_void {
    type SbrkFn = unsafe extern "C" fn(isize) -> *mut c_void;
    let Some(function) = behind!(Sbrk, SbrkFn) else { return failed() };
    // SAFETY: the program called the hooked function with this argument.
    let before = unsafe { function(by) };
    if before != failed() && by != 0 && is_recorded(stack) {
        let before = before.addr() as u64;
        moved(before, before.wrapping_add_signed(by as i64), stack, frame);
    }
    before
}

unsafe extern "C" fn on_brk(end: *mut c_void, stack: u64, frame: u64) -> c_int {
    type Now = unsafe extern "C" fn(isize) -> *mut c_void;
    type BrkFn = unsafe extern "C" fn(*mut c_void) -> c_int;
    let (Some(now), Some(function)) = (behind!(Sbrk, Now), behind!(Brk, BrkFn)) else {
        return -1;
    };
    // SAFETY: `sbrk(0)` returns the program break and does not move it.
    let before = unsafe { now(0) };
    // SAFETY: the program called the hooked function with this argument.
    let result = unsafe { function(end) };
    if result == 0 && is_recorded(stack) {
        moved(before.addr() as u64, end.addr() as u64, stack, frame);
    }
    result
}

/// Stub of a function with up to six arguments. It passes the stack pointer and the frame pointer
/// as two further arguments.
macro_rules! six {
    ($($stub:ident $hook:ident;)*) => {$(
        #[unsafe(naked)]
        unsafe extern "C" fn $stub() {
            std::arch::naked_asm!("mov rax, rsp", "sub rsp, 8", "push rbp", "push rax", "call {hook}", "add rsp, 24", "ret",
                hook = sym $hook)
        }
    )*};
}

/// Stub of a function with one argument.
macro_rules! one {
    ($($stub:ident $hook:ident;)*) => {$(
        #[unsafe(naked)]
        unsafe extern "C" fn $stub() {
            std::arch::naked_asm!("mov rsi, rsp", "mov rdx, rbp", "jmp {hook}", hook = sym $hook)
        }
    )*};
}

macro_rules! exported {
    ($($name:ident $stub:ident;)*) => {$(
        /// Exported function that programs call.
        ///
        /// # Safety
        /// The requirements of the C library's function.
        #[cfg(not(test))]
        #[unsafe(no_mangle)]
        #[unsafe(naked)]
        pub(crate) unsafe extern "C" fn $name() {
            std::arch::naked_asm!("jmp {stub}", stub = sym $stub)
        }
    )*};
}

six! {
    mmap_stub on_mmap;
    munmap_stub on_munmap;
    mremap_stub on_mremap;
}

one! {
    brk_stub on_brk;
    sbrk_stub on_sbrk;
}

exported! {
    mmap mmap_stub;
    mmap64 mmap_stub;
    munmap munmap_stub;
    mremap mremap_stub;
    brk brk_stub;
    sbrk sbrk_stub;
}

/// Hooks of `mmap`, `munmap`, `mremap`, `brk` and `sbrk`.
pub(crate) fn stubs() -> [*mut (); 5] {
    [
        mmap_stub as *mut (),
        munmap_stub as *mut (),
        mremap_stub as *mut (),
        brk_stub as *mut (),
        sbrk_stub as *mut (),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Compares the recorded ranges with a simple list of pages.
    #[test]
    fn ranges_agree_with_a_list_of_pages() {
        let mut pages = [None::<u32>; 64];
        let mut random = 1_u64;
        let mut draw = |below: u64| {
            random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            (random >> 33) % below
        };
        for turn in 0..5000_u32 {
            let start = draw(60);
            let end = start + 1 + draw(64 - start);
            let (from, to) = (start as usize, end as usize);
            let expected = pages[from..to].iter().flatten().count() as u64;
            let mut taken = 0;
            remove_range(start, end, &mut |_, bytes, _| taken += bytes);
            assert_eq!(taken, expected, "turn {turn}");
            pages[from..to].fill(None);
            if turn % 3 != 0 {
                put(start, end, turn).unwrap();
                pages[from..to].fill(Some(turn));
            }
            let mut found = [None; 64];
            for index in 0..USED.load(Relaxed) {
                let piece = get(index);
                found[piece.start as usize..piece.end as usize].fill(Some(piece.site));
            }
            assert_eq!(found, pages, "turn {turn}");
        }
    }
}
