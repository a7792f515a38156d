//! Inline hooks of functions that allocate under other names, such as those of a jemalloc or
//! mimalloc that is linked into a program.
//!
//! The collector finds these functions, and writes the meaning of each ([`role`]) and the
//! instructions that a jump would overwrite ([`named`]). All hooked functions jump to one entry
//! function here, and pass their number:
//!
//! ```text
//!  mi_malloc:  jmp part    near page:  part:   mov r11d, number; jmp entry, which records a call,
//!  behind:     ...                             or, within a call of this thread, jumps to `moved`
//!                          near page:  moved:  the first instructions, jmp behind
//! ```
//!
//! If one of these functions calls another, the program has not made this call, and it is not
//! recorded. [`Own::Within`] marks a call in progress, of these functions and of `malloc` and its
//! family ([`gated`]).

use std::arch::naked_asm;
use std::ffi::{CStr, c_void};
use std::sync::atomic::{AtomicPtr, AtomicU64, AtomicUsize, Ordering::Relaxed};

use pagewise_heaplog::tables::named::{self, MAX_CHUNKS, role, row};

use crate::hooks::{self, ResizeOutcome};
use crate::inline;
use crate::kernel;
use crate::sampling;
use crate::shared::head;
use crate::stubs::{FUNCTIONS, Own, own, set_own};

/// Address of the trampoline of each function.
static MOVED: [AtomicPtr<()>; MAX_CHUNKS] =
    [const { AtomicPtr::new(std::ptr::null_mut()) }; MAX_CHUNKS];
/// The words of each row of the tables, up to [`row::CODE`].
static ROWS: [[AtomicU64; row::CODE]; MAX_CHUNKS] =
    [const { [const { AtomicU64::new(0) }; row::CODE] }; MAX_CHUNKS];
/// Number of trampolines. The trampolines stay mapped as long as threads may be in them.
static COUNT: AtomicUsize = AtomicUsize::new(0);
/// Address and length in bytes of each code area that contains trampolines.
static ROOMS: [[AtomicU64; 2]; named::MAX_ROOMS] =
    [const { [const { AtomicU64::new(0) }; 2] }; named::MAX_ROOMS];
static ROOM_COUNT: AtomicUsize = AtomicUsize::new(0);

/// Targets of the stubs of `malloc` and its family for a call of the program. [`BEHIND`]: targets
/// for a nested call.
static HOOKS: [AtomicPtr<()>; FUNCTIONS] =
    [const { AtomicPtr::new(std::ptr::null_mut()) }; FUNCTIONS];
static BEHIND: [AtomicPtr<()>; FUNCTIONS] =
    [const { AtomicPtr::new(std::ptr::null_mut()) }; FUNCTIONS];

/// Arguments of a function that are in registers.
type Arguments = [usize; 6];
type NamedFn = unsafe extern "C" fn(usize, usize, usize, usize, usize, usize) -> usize;

/// The function that the hook calls.
#[derive(Clone, Copy)]
enum NextFunction {
    /// The hooked function itself, through the trampoline with this number.
    Behind(usize),
    /// Another function that throws no exception: an exception could not pass through this code.
    Instead(NamedFn),
}

/// Result of a hooked call. If `goes_on` is 1, the function must still be called. Otherwise `value`
/// is its return value.
#[repr(C)]
struct Answer {
    value: usize,
    goes_on: usize,
}

/// Target of the jump in a hooked function; the number of the function is in `r11`.
#[unsafe(naked)]
unsafe extern "C" fn entry() {
    naked_asm!(
        "mov rax, qword ptr [rip + pw_own@GOTTPOFF]",
        "cmp qword ptr fs:[rax + {within}], 0",
        "jne 3f",
        // Seven words align the stack for the call.
        "push r9", "push r8", "push rcx", "push rdx", "push rsi", "push rdi", "push r11",
        "lea rdi, [rsp + 8]",
        "lea rsi, [rsp + 56]",
        "mov rdx, rbp",
        "mov rcx, r11",
        "call {called}",
        "pop r11",
        "test rdx, rdx",
        "jne 2f",
        "add rsp, 48",
        "ret",
        "2:",
        "pop rdi", "pop rsi", "pop rdx", "pop rcx", "pop r8", "pop r9",
        "3:",
        "lea rax, [rip + {moved}]",
        "jmp qword ptr [rax + 8 * r11]",
        within = const Own::Within as usize, called = sym called, moved = sym MOVED,
    )
}

/// Calls the trampoline of the function whose number is on the stack. The address of the trampoline
/// is never in a register, for the reason that [`inline`] states.
#[unsafe(naked)]
unsafe extern "C" fn behind(
    a: usize,
    b: usize,
    c: usize,
    d: usize,
    e: usize,
    f: usize,
    number: usize,
) -> usize {
    naked_asm!(
        "mov r11, qword ptr [rsp + 8]",
        "lea rax, [rip + {moved}]",
        "jmp qword ptr [rax + 8 * r11]",
        moved = sym MOVED,
    )
}

/// Target of the stubs of `malloc` and its family: the hook, or the next function if this thread is
/// within a call.
#[unsafe(naked)]
unsafe extern "C" fn gate<const FUNCTION: usize>() {
    naked_asm!(
        "mov rax, qword ptr [rip + pw_own@GOTTPOFF]",
        "cmp qword ptr fs:[rax + {within}], 0",
        "jne 2f",
        "jmp qword ptr [rip + {hooks} + 8 * {function}]",
        "2:",
        "jmp qword ptr [rip + {behind} + 8 * {function}]",
        within = const Own::Within as usize, hooks = sym HOOKS, behind = sym BEHIND, function = const FUNCTION,
    )
}

/// Makes the hooks of `malloc` and its family record only calls from outside of these functions.
pub(crate) fn gated(
    hooks: [*mut (); FUNCTIONS],
    behind: [*mut (); FUNCTIONS],
) -> [*mut (); FUNCTIONS] {
    for (to, from) in HOOKS.iter().zip(hooks).chain(BEHIND.iter().zip(behind)) {
        to.store(from, Relaxed);
    }
    inline::table!(gate)
}

/// True if the process has hooked functions of this kind.
pub(crate) fn are_some() -> bool {
    COUNT.load(Relaxed) != 0
}

/// Requests hooks for functions under other names from the collector.
pub(crate) fn ask() {
    head(named::ENTRY).store((entry as *const ()).addr() as u64, Relaxed);
    let count = COUNT.load(Relaxed);
    head(named::READY).store(u64::from(count != 0), Relaxed);
    head(named::COUNT).store(count as u64, Relaxed);
    let rooms = ROOM_COUNT.load(Relaxed);
    head(named::ROOM_COUNT).store(rooms as u64, Relaxed);
    for (number, room) in ROOMS.iter().enumerate().take(rooms) {
        for (word, value) in room.iter().enumerate() {
            head(named::ROOMS + 2 * number + word).store(value.load(Relaxed), Relaxed);
        }
    }
    for (number, words) in ROWS.iter().enumerate().take(count) {
        for (word, value) in words.iter().enumerate() {
            self::word(number, word).store(value.load(Relaxed), Relaxed);
        }
    }
}

/// A word of a row in the tables.
fn word(number: usize, word: usize) -> &'static AtomicU64 {
    head(named::ROWS + number * row::WORDS + word)
}

/// Prepares the trampolines from the collector's answer. Returns `None` if memory is exhausted.
pub(crate) fn prepare_trampolines() -> Option<()> {
    if are_some() {
        return Some(());
    }
    let count = usize::try_from(head(named::COUNT).load(Relaxed)).unwrap_or(0).min(MAX_CHUNKS);
    let rooms = usize::try_from(head(named::ROOM_COUNT).load(Relaxed)).unwrap_or(0);
    let room = |number: usize| {
        let word = |at| head(named::ROOMS + 2 * number + at).load(Relaxed);
        (word(0), word(1) as usize)
    };
    let rooms = rooms.min(named::MAX_ROOMS);
    for (number, known) in ROOMS.iter().enumerate().take(rooms) {
        let (at, length) = room(number);
        kernel::memory_at(at, length).ok()?;
        for (to, word) in known.iter().zip([at, length as u64]) {
            to.store(word, Relaxed);
        }
        ROOM_COUNT.store(number + 1, Relaxed);
    }
    for number in 0..count {
        let place = word(number, row::PLACE).load(Relaxed);
        let length = named::STRIDE as u64;
        let is_in_room = (0..rooms).map(room).any(|(at, room)| {
            place >= at && place.saturating_add(length) <= at.saturating_add(room as u64)
        });
        if !is_in_room {
            return None;
        }
        for index in 0..named::STRIDE / 8 {
            let code = word(number, row::CODE + index).load(Relaxed);
            let to = std::ptr::with_exposed_provenance_mut::<u64>(place as usize + index * 8);
            // SAFETY: the address was checked to be in a code area, which belongs to the recorder,
            // and no thread executes it yet.
            unsafe { to.write_volatile(code) };
        }
        for (index, to) in ROWS[number].iter().enumerate() {
            to.store(word(number, index).load(Relaxed), Relaxed);
        }
        let moved = place as usize + named::MOVED;
        MOVED[number].store(std::ptr::with_exposed_provenance_mut(moved), Relaxed);
    }
    for number in 0..rooms {
        let (at, length) = room(number);
        kernel::protect_code(at, length, libc::PROT_READ | libc::PROT_EXEC).ok()?;
    }
    COUNT.store(count, Relaxed);
    Some(())
}

/// Unmaps the trampolines. Called after the original prologues were restored. The next recording
/// looks up the functions again.
///
/// # Safety
/// No thread may execute a trampoline, have a return address in one, or be within the recorder.
pub(crate) unsafe fn forget() {
    let count = COUNT.swap(0, Relaxed);
    // Hooks that threads are still executing call the functions directly, because the original
    // prologues were restored.
    for (moved, words) in MOVED.iter().zip(&ROWS).take(count) {
        let function = words[row::AT].load(Relaxed) as usize;
        moved.store(std::ptr::with_exposed_provenance_mut(function), Relaxed);
    }
    let rooms = ROOM_COUNT.swap(0, Relaxed);
    for room in ROOMS.iter().take(rooms) {
        let [at, length] = room.each_ref().map(|word| word.load(Relaxed) as usize);
        // SAFETY: `length` bytes were mapped at `at`, and the caller guarantees that no thread
        // executes them.
        unsafe { kernel::unmap(std::ptr::with_exposed_provenance_mut(at), length) };
    }
}

/// Writes the jumps into the functions. Requires that no other thread runs.
pub(crate) fn patch() -> Option<()> {
    hooked().try_for_each(|(at, to, _)| inline::hook(at, to))
}

/// Restores the first bytes of the functions. Requires that no other thread runs.
pub(crate) fn unpatch() -> Option<()> {
    hooked().try_for_each(|(at, to, before)| inline::unhook(at, to, before))
}

/// Yields the hooked functions: address, target of the jump, and original first bytes.
fn hooked() -> impl Iterator<Item = (u64, u64, u64)> {
    ROWS.iter().take(COUNT.load(Relaxed)).filter_map(|words| {
        let [at, to, before] =
            [row::AT, row::PLACE, row::BEFORE].map(|word| words[word].load(Relaxed));
        (at != 0).then_some((at, to, before))
    })
}

/// Calls the underlying function, and marks the thread as within a call. So calls that this
/// function itself makes are not recorded.
#[inline(always)]
fn call(function: NextFunction, [a, b, c, d, e, f]: Arguments) -> usize {
    set_own::<{ Own::Within as usize }>(own::<{ Own::Within as usize }>().wrapping_add(1));
    let value = match function {
        // SAFETY: the program called the hooked function with these arguments, and a trampoline
        // with this number exists.
        NextFunction::Behind(number) => unsafe { behind(a, b, c, d, e, f, number) },
        // SAFETY: the function has the same parameters as the function that the program called.
        NextFunction::Instead(function) => unsafe { function(a, b, c, d, e, f) },
    };
    set_own::<{ Own::Within as usize }>(own::<{ Own::Within as usize }>().wrapping_sub(1));
    value
}

unsafe extern "C" fn called(
    arguments: *const Arguments,
    stack: u64,
    frame: u64,
    number: usize,
) -> Answer {
    // The words are read one by one, as the stub has written them: a larger read would wait for the
    // pending writes.
    let read = |at: usize| {
        let place = arguments.cast::<usize>().wrapping_add(at);
        // SAFETY: the stub has written the arguments to these addresses.
        unsafe { place.read_volatile() }
    };
    let arguments: Arguments = std::array::from_fn(read);
    let words = &ROWS[number % MAX_CHUNKS];
    let instead = words[row::INSTEAD].load(Relaxed) as usize;
    let function = match instead {
        0 => NextFunction::Behind(number % MAX_CHUNKS),
        instead => {
            let instead = std::ptr::with_exposed_provenance_mut(instead);
            // SAFETY: the function has at most these parameters, all in registers, and returns one
            // word.
            NextFunction::Instead(unsafe { std::mem::transmute::<*mut (), NamedFn>(instead) })
        }
    };
    let what = words[row::ROLE].load(Relaxed);
    let argument = |which| arguments.get(role::argument(what, which) as usize).copied();
    // The size is `None` if the product overflows: no block can have this size.
    let size = || argument(0).unwrap_or(0).checked_mul(argument(1).unwrap_or(1));
    let block = std::ptr::with_exposed_provenance_mut::<c_void>;
    let note = |address: usize, size: usize| {
        if sampling::is_due(size) {
            hooks::note::<false>(block(address), size, stack, frame);
        }
    };
    let value = match role::what(what) {
        role::ALLOCATES => {
            let value = call(function, arguments);
            note(value, size().unwrap_or(0));
            value
        }
        role::ALLOCATES_INTO => {
            let value = call(function, arguments);
            if value as u32 == 0 {
                let to: *const usize = std::ptr::with_exposed_provenance(arguments[0]);
                // SAFETY: the call succeeded, so it has written the pointer.
                note(unsafe { to.read() }, size().unwrap_or(0));
            }
            value
        }
        kind @ (role::RESIZES | role::RESIZES_OR_FREES) => {
            let old = block(argument(2).unwrap_or(0));
            let new = hooks::resize(old, stack, frame, || {
                let new = block(call(function, arguments));
                let outcome = match ResizeOutcome::usual(new, size().unwrap_or(usize::MAX)) {
                    ResizeOutcome::Kept if kind == role::RESIZES_OR_FREES => ResizeOutcome::Freed,
                    outcome => outcome,
                };
                (new, outcome)
            });
            new.expose_provenance()
        }
        role::RESIZES_IN_PLACE => resize_in_place(function, arguments, stack, frame),
        role::FREES => {
            let old = block(argument(2).unwrap_or(0));
            if !old.is_null() && sampling::may_be_one(old.addr() as u64) {
                hooks::freed::<false>(old, None);
            }
            call(function, arguments)
        }
        role::COPIES_TEXT => {
            let value = call(function, arguments);
            if value != 0 {
                let text = std::ptr::with_exposed_provenance(value);
                // SAFETY: the function returned text that ends with a zero byte.
                note(value, unsafe { CStr::from_ptr(text) }.count_bytes() + 1);
            }
            value
        }
        _ => call(function, arguments),
    };
    let goes_on = usize::from(instead != 0 && value == 0);
    Answer { value, goes_on }
}

/// Records jemalloc's `xallocx(block, size, extra, flags)`, which returns the new size of the
/// block. The new size is less than `size` if the block could not grow.
fn resize_in_place(function: NextFunction, arguments: Arguments, stack: u64, frame: u64) -> usize {
    let [old, size, extra, ..] = arguments;
    let mut room = 0;
    let old = std::ptr::with_exposed_provenance_mut::<c_void>(old);
    hooks::resize(old, stack, frame, || {
        room = call(function, arguments);
        let outcome = match room < size {
            true => ResizeOutcome::Kept,
            false => ResizeOutcome::Resized(room.min(size.saturating_add(extra))),
        };
        (old, outcome)
    });
    room
}
