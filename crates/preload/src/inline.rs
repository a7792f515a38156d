//! Inline hooks for programs with their own `malloc`: a jump to our hook replaces the first
//! instructions of each function.
//!
//! The recorder passes the addresses of the functions, and of a page that it has mapped near them,
//! to the collector. The collector reads the code of the functions, relocates to that page the
//! instructions that a jump would overwrite ([`hooks`]), and adds a jump back: a trampoline. In a
//! running program, the functions of the C library are hooked in the same way.
//!
//! ```text
//!  malloc:  jmp entry      near page:  entry:  jmp entry_of::<0>, which jumps to the hook, or,
//!  behind:  ...                                within a call of this thread, to `moved`
//!                          near page:  moved:  the first instructions, jmp behind
//! ```
//!
//! An allocator's functions may call each other. A call inside of a recorded call is not a call of
//! the program, so each thread has a word ([`Own::Within`]) that marks a call in progress.

use std::arch::{asm, naked_asm};
use std::sync::atomic::{AtomicPtr, AtomicU64, Ordering::Relaxed};

use pagewise_heaplog::tables::hooks;

use crate::aux_hooks::{self, FIRST_OF_MAPPINGS, OTHERS};
use crate::kernel;
use crate::shared::head;
use crate::stubs::{FUNCTIONS, Own, TARGETS};

/// Number of functions that may be hooked: `malloc`'s family, followed by those of [`aux_hooks`].
pub(crate) const ALL: usize = hooks::FUNCTIONS;
const _: () = assert!(FUNCTIONS == hooks::FAMILY && FUNCTIONS + OTHERS == ALL, "these are all");

/// Address of the trampoline of each function: its relocated prologue; null without one.
static MOVED: [AtomicPtr<()>; ALL] = [const { AtomicPtr::new(std::ptr::null_mut()) }; ALL];
/// Hooks of the functions in [`aux_hooks`].
static STUBS: [AtomicPtr<()>; OTHERS] = [const { AtomicPtr::new(std::ptr::null_mut()) }; OTHERS];
/// Address of each function, number of relocated bytes, and the original first bytes.
static KNOWN: [[AtomicU64; 3]; ALL] = [const { [const { AtomicU64::new(0) }; 3] }; ALL];
const AT: usize = 0;
const LENGTH: usize = 1;
const BEFORE: usize = 2;
/// Address of a page near `malloc`'s family, and of a page near the other functions if the first
/// page is out of their reach; 0 without such a page.
static NEAR: [AtomicU64; 2] = [const { AtomicU64::new(0) }; 2];
/// 1 if the trampolines exist and threads may be in them.
static READY: AtomicU64 = AtomicU64::new(0);

/// Target of the jump in a hooked function: the hook, or the trampoline if this thread is within a
/// call.
#[unsafe(naked)]
unsafe extern "C" fn entry_of<const FUNCTION: usize>() {
    naked_asm!(
        "mov rax, qword ptr [rip + pw_own@GOTTPOFF]",
        "cmp qword ptr fs:[rax + {within}], 0",
        "jne 2f",
        "jmp qword ptr [rip + {targets} + 8 * {function}]",
        "2:",
        "jmp qword ptr [rip + {moved} + 8 * {function}]",
        within = const Own::Within as usize, targets = sym TARGETS, moved = sym MOVED, function = const FUNCTION,
    )
}

/// Target of the jump in a hooked function outside of the allocator.
#[unsafe(naked)]
unsafe extern "C" fn entry_of_other<const FUNCTION: usize>() {
    naked_asm!(
        "mov rax, qword ptr [rip + pw_own@GOTTPOFF]",
        "cmp qword ptr fs:[rax + {within}], 0",
        "jne 2f",
        "jmp qword ptr [rip + {stubs} + 8 * {function}]",
        "2:",
        "jmp qword ptr [rip + {moved} + 8 * ({family} + {function})]",
        within = const Own::Within as usize, stubs = sym STUBS, moved = sym MOVED, family = const FUNCTIONS,
        function = const FUNCTION,
    )
}

/// Calls the trampoline of a function, and marks the thread as within a call. So calls that the
/// function itself makes are not recorded.
#[unsafe(naked)]
unsafe extern "C" fn behind<const FUNCTION: usize>() {
    naked_asm!(
        "mov rax, qword ptr [rip + pw_own@GOTTPOFF]",
        "inc qword ptr fs:[rax + {within}]",
        "sub rsp, 8",
        "call qword ptr [rip + {moved} + 8 * {function}]",
        "add rsp, 8",
        "mov rcx, qword ptr [rip + pw_own@GOTTPOFF]",
        "dec qword ptr fs:[rcx + {within}]",
        "ret",
        within = const Own::Within as usize, moved = sym MOVED, function = const FUNCTION,
    )
}

/// Jumps to the trampoline of a function outside of the allocator.
///
/// The address of the trampoline is never in a register: a hook could store such a register on the
/// stack, where the value would resemble a return address, and the trampoline could not be
/// unmapped.
#[unsafe(naked)]
unsafe extern "C" fn behind_other<const FUNCTION: usize>() {
    naked_asm!(
        "jmp qword ptr [rip + {moved} + 8 * ({family} + {function})]",
        moved = sym MOVED, family = const FUNCTIONS, function = const FUNCTION,
    )
}

macro_rules! table {
    ($function:ident) => {
        $crate::inline::table!($function, 0 1 2 3 4 5 6 7 8)
    };
    ($function:ident, $($number:literal)*) => {
        [$($function::<$number> as *mut ()),*]
    };
}
pub(crate) use table;

/// Requests hooks for the functions in `family` (null for missing ones). In a running program also
/// requests hooks for the functions of [`aux_hooks`], including those that change mappings if
/// mappings are recorded. Returns `None` if no memory near the functions can be mapped.
pub(crate) fn ask(
    family: &[*mut (); FUNCTIONS],
    others: Option<&[*mut (); OTHERS]>,
    mappings: bool,
) -> Option<()> {
    let address = |function: &*mut ()| function.addr() as u64;
    let is_ready = READY.load(Relaxed) != 0;
    let [of_family, of_others] = &NEAR;
    if of_family.load(Relaxed) == 0 {
        of_family.store(room_near(address(family.first()?))?, Relaxed);
    }
    let far = others.into_iter().flatten().find(|other| {
        !other.is_null() && address(other).abs_diff(of_family.load(Relaxed)) > FARTHEST
    });
    if let Some(far) = far.filter(|_| !is_ready && of_others.load(Relaxed) == 0) {
        // Without hooks of the functions outside of the allocator, the recording is incomplete but
        // correct.
        of_others.store(room_near(address(far)).unwrap_or(0), Relaxed);
    }
    let none = [std::ptr::null_mut(); OTHERS];
    let functions: [*mut (); ALL] = std::array::from_fn(|index| {
        let others = others.unwrap_or(&none);
        family.get(index).or_else(|| others.get(index - FUNCTIONS)).copied().unwrap_or_default()
    });
    for (index, function) in functions.iter().enumerate().filter(|_| !is_ready) {
        // A function with several names has one hook.
        let is_first = !functions[..index].contains(function);
        let at = if is_first { address(function) } else { 0 };
        KNOWN[index][AT].store(at, Relaxed);
        KNOWN[index][LENGTH].store(0, Relaxed);
        if at != 0 {
            let code: *const u64 = std::ptr::with_exposed_provenance(function.addr());
            // SAFETY: at least eight bytes are mapped at `code`: the function is longer, or other
            // code follows it.
            KNOWN[index][BEFORE].store(unsafe { code.read_unaligned() }, Relaxed);
        }
    }
    for (stub, to) in STUBS.iter().zip(aux_hooks::stubs()) {
        stub.store(to, Relaxed);
    }
    let without = if mappings { 0 } else { u64::MAX << (FUNCTIONS + FIRST_OF_MAPPINGS) };
    let wanted = ((1 << ALL) - 1) & !without;
    tell(wanted);
    Some(())
}

/// Address of a function's part of the page near it: the entry and the trampoline.
fn part(index: usize) -> u64 {
    part_in(NEAR.each_ref().map(|near| near.load(Relaxed)), index)
}

fn part_in([of_family, of_others]: [u64; 2], index: usize) -> u64 {
    let near = if index < FUNCTIONS || of_others == 0 { of_family } else { of_others };
    near + (index * hooks::STRIDE) as u64
}

/// Addresses of the mapped pages.
fn rooms() -> impl Iterator<Item = u64> {
    NEAR.iter().map(|near| near.load(Relaxed)).filter(|&near| near != 0)
}

/// Writes the data of the functions into new tables.
pub(crate) fn tell(wanted: u64) {
    let address = |function: &*mut ()| function.addr() as u64;
    let own: u64;
    // SAFETY: the instruction reads the offset of `pw_own` from the thread pointer, which the
    // loader has written.
    unsafe {
        asm!("mov {}, qword ptr [rip + pw_own@GOTTPOFF]", out(reg) own, options(nostack, readonly, preserves_flags));
    }
    head(hooks::OWN).store(own, Relaxed);
    let [of_family, of_others] = NEAR.each_ref().map(|near| near.load(Relaxed));
    if of_family == 0 {
        return;
    }
    for (index, known) in KNOWN.iter().enumerate() {
        for (table, number) in [(hooks::AT, AT), (hooks::LENGTHS, LENGTH), (hooks::BEFORE, BEFORE)]
        {
            head(table + index).store(known[number].load(Relaxed), Relaxed);
        }
    }
    let entries = table!(entry_of).into_iter().chain(table!(entry_of_other));
    for (index, entry) in entries.enumerate() {
        head(hooks::ENTRIES + index).store(address(&entry), Relaxed);
    }
    head(hooks::WANTED).store(wanted, Relaxed);
    head(hooks::READY).store(READY.load(Relaxed), Relaxed);
    head(hooks::NEAR_OTHERS).store(of_others, Relaxed);
    head(hooks::NEAR).store(of_family, Relaxed);
}

/// Writes the relocated prologues into the pages near the functions. Each page contains only the
/// parts of the functions near it.
fn write_moved_code() -> Option<()> {
    for near in rooms() {
        for index in 0..hooks::CODE_WORDS {
            let word = head(hooks::CODE + index).load(Relaxed);
            let place = std::ptr::with_exposed_provenance_mut::<u64>(near as usize + index * 8);
            // SAFETY: the page near the functions is the recorder's own and long enough, and no
            // thread executes it yet.
            unsafe { place.write_volatile(word) };
        }
        kernel::protect_code(near, hooks::CODE_WORDS * 8, libc::PROT_READ | libc::PROT_EXEC)
            .ok()?;
    }
    Some(())
}

/// Installs the trampolines from the collector's answer. Returns functions that call them; `None`
/// if a required function cannot be hooked.
pub(crate) fn install_hooks(functions: &[*mut (); FUNCTIONS]) -> Option<[*mut (); FUNCTIONS]> {
    if READY.load(Relaxed) != 0 {
        return Some(again(functions));
    }
    write_moved_code()?;
    for moved in &MOVED {
        moved.store(std::ptr::null_mut(), Relaxed);
    }
    let length = |index: usize| head(hooks::LENGTHS + index).load(Relaxed);
    let moved = |index: usize| {
        let at = part(index) + hooks::MOVED as u64;
        std::ptr::with_exposed_provenance_mut::<()>(at as usize)
    };
    let mut all = *functions;
    let table = table!(behind);
    for (index, function) in functions.iter().enumerate() {
        let first = functions.iter().position(|other| other == function).unwrap_or(index);
        if length(first) == 0 {
            // If one hook were missing, frees without allocations would be recorded, or allocations
            // without frees.
            if !function.is_null() {
                return None;
            }
            continue;
        }
        MOVED[index].store(moved(first), Relaxed);
        all[index] = table[index];
    }
    // Without a hook of one of these functions, the recording is incomplete but correct.
    for (other, behind) in table!(behind_other).into_iter().enumerate() {
        let index = FUNCTIONS + other;
        if length(index) != 0 {
            MOVED[index].store(moved(index), Relaxed);
            aux_hooks::replace(other, behind);
        }
    }
    for (index, known) in KNOWN.iter().enumerate() {
        known[LENGTH].store(length(index), Relaxed);
    }
    READY.store(1, Relaxed);
    Some(all)
}

/// True if the trampolines exist and threads may be in them.
pub(crate) fn is_ready() -> bool {
    READY.load(Relaxed) != 0
}

/// Unmaps the trampolines. Called after the original prologues were restored. The next recording
/// looks up the functions again.
///
/// # Safety
/// No thread may execute a trampoline, have a return address in one, or be within the recorder.
pub(crate) unsafe fn forget() {
    let rooms = NEAR.each_ref().map(|near| near.swap(0, Relaxed));
    if rooms[0] == 0 {
        return;
    }
    READY.store(0, Relaxed);
    lead_to_functions(rooms);
    aux_hooks::forget();
    for near in rooms.into_iter().filter(|&near| near != 0) {
        let at = std::ptr::with_exposed_provenance_mut(near as usize);
        // SAFETY: `CODE_WORDS` words were mapped at `at`, and the caller guarantees that no thread
        // executes them.
        unsafe { kernel::unmap(at, hooks::CODE_WORDS * 8) };
    }
}

/// Replaces each trampoline by the function itself, whose original prologue was restored. Threads
/// that are still executing a hook then call the function directly.
fn lead_to_functions(rooms: [u64; 2]) {
    let trampolines = MOVED.each_ref().map(|moved| moved.load(Relaxed).addr() as u64);
    for (index, known) in KNOWN.iter().enumerate() {
        let function = std::ptr::with_exposed_provenance_mut(known[AT].load(Relaxed) as usize);
        let own = part_in(rooms, index) + hooks::MOVED as u64;
        // A function with several names has one trampoline.
        for (moved, _) in MOVED.iter().zip(trampolines).filter(|(_, to)| *to == own) {
            moved.store(function, Relaxed);
        }
    }
}

/// Wraps functions so that calls that they make themselves are not recorded: the called functions
/// may be hooked under other names.
pub(crate) fn surround(functions: &[*mut (); FUNCTIONS]) -> [*mut (); FUNCTIONS] {
    for (to, function) in MOVED.iter().zip(functions) {
        to.store(*function, Relaxed);
    }
    again(functions)
}

/// Returns the wrapper of each function that has a trampoline, and the other functions unchanged.
fn again(functions: &[*mut (); FUNCTIONS]) -> [*mut (); FUNCTIONS] {
    let table = table!(behind);
    std::array::from_fn(|index| match MOVED[index].load(Relaxed).is_null() {
        true => functions[index],
        false => table[index],
    })
}

/// Number of bytes of a jump instruction.
const JUMP: usize = 5;

/// Writes the jumps into the functions. Requires that no other thread runs.
pub(crate) fn patch() -> Option<()> {
    hooked().try_for_each(|(at, to, _)| hook(at, to))
}

/// Restores the first bytes of the functions. Requires that no other thread runs.
pub(crate) fn unpatch() -> Option<()> {
    hooked().try_for_each(|(at, to, before)| unhook(at, to, before))
}

/// Yields the hooked functions: address, target of the jump, and original first bytes.
fn hooked() -> impl Iterator<Item = (u64, u64, u64)> {
    KNOWN.iter().enumerate().filter_map(|(index, known)| {
        let [at, length, before] = [AT, LENGTH, BEFORE].map(|word| known[word].load(Relaxed));
        let to = part(index);
        // A function that is too far away for the jump keeps its first bytes.
        (at != 0 && length != 0 && jump_to(at, to).is_some()).then_some((at, to, before))
    })
}

/// Encodes a jump from `at` to `to`; `None` if the distance exceeds 32 bits.
fn jump_to(at: u64, to: u64) -> Option<[u8; JUMP]> {
    let distance = to.wrapping_sub(at + JUMP as u64).cast_signed();
    let mut jump = [0xe9; JUMP];
    jump[1..].copy_from_slice(&i32::try_from(distance).ok()?.to_le_bytes());
    Some(jump)
}

/// Writes the jump into a function whose first bytes were relocated. Requires that no other thread
/// runs.
pub(crate) fn hook(at: u64, to: u64) -> Option<()> {
    write(at, jump_to(at, to)?)
}

/// Restores the first bytes of a function if it begins with the jump from `at` to `to`. Requires
/// that no other thread runs.
pub(crate) fn unhook(at: u64, to: u64, before: u64) -> Option<()> {
    let code: *const [u8; JUMP] = std::ptr::with_exposed_provenance(at as usize);
    // SAFETY: the function is at least as long as a jump.
    if unsafe { code.read() } == jump_to(at, to)? {
        write(at, *before.to_le_bytes().first_chunk()?)?;
    }
    Some(())
}

fn write(at: u64, bytes: [u8; JUMP]) -> Option<()> {
    let all = libc::PROT_READ | libc::PROT_WRITE | libc::PROT_EXEC;
    kernel::protect_code(at, JUMP, all).ok()?;
    let code: *mut u8 = std::ptr::with_exposed_provenance_mut(at as usize);
    for (offset, byte) in bytes.into_iter().enumerate() {
        // SAFETY: the bytes were just made writable, the relocated bytes cover them, and no thread
        // executes them.
        unsafe { code.wrapping_add(offset).write_volatile(byte) };
    }
    kernel::protect_code(at, JUMP, libc::PROT_READ | libc::PROT_EXEC).ok()
}

/// Maximum distance in bytes of a page from the functions that jump to it.
const FARTHEST: u64 = 1 << 30;

/// Maps a page that 32-bit jumps from `address` can reach, and returns its address.
fn room_near(address: u64) -> Option<u64> {
    const STEP: u64 = 1 << 20;
    (1..FARTHEST / STEP).find_map(|step| {
        let below = (address & !(STEP - 1)).checked_sub(step * STEP)?;
        let above = (address & !(STEP - 1)).checked_add(step * STEP)?;
        [below, above].into_iter().find_map(|at| kernel::memory_at(at, hooks::CODE_WORDS * 8).ok())
    })
}
