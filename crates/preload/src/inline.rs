//! Inline hooks for programs that have a `malloc` of their own: a jump to our hook replaces the
//! first instructions of each function.
//!
//! The recorder writes the addresses of the functions and of a page that it mapped near them. The
//! collector reads their code and writes the instructions that a jump would overwrite, relocated to
//! that page ([`hooks`]): a trampoline. The C library's own functions are hooked in the same way in
//! a program that runs already.
//!
//! ```text
//!  malloc:  jmp entry           near page:  entry:  jmp entry_of::<0>      -> hook, or on where this thread is within a call
//!  behind:  ...                             moved:  the first instructions, jmp behind
//! ```
//!
//! An allocator's functions may call each other: calls inside a recorded call are not the
//! program's, so a thread's word ([`Own::Within`]) marks that it is in one.

use std::arch::{asm, naked_asm};
use std::sync::atomic::{AtomicPtr, AtomicU64, Ordering::Relaxed};

use pagewise_heaplog::tables::hooks;

use crate::aux_hooks::{self, FIRST_OF_MAPPINGS, OTHERS};
use crate::kernel;
use crate::shared::head;
use crate::stubs::{FUNCTIONS, Own, TARGETS};

/// All functions that may be hooked: `malloc`'s family, followed by [`aux_hooks`].
pub(crate) const ALL: usize = hooks::FUNCTIONS;
const _: () = assert!(FUNCTIONS == hooks::FAMILY && FUNCTIONS + OTHERS == ALL, "these are all");

/// Trampolines: the relocated prologue of each function.
static MOVED: [AtomicPtr<()>; ALL] = [const { AtomicPtr::new(std::ptr::null_mut()) }; ALL];
/// Replacements of the other functions.
static STUBS: [AtomicPtr<()>; OTHERS] = [const { AtomicPtr::new(std::ptr::null_mut()) }; OTHERS];
/// Address of each function, number of moved bytes, and the original first bytes.
static KNOWN: [[AtomicU64; 3]; ALL] = [const { [const { AtomicU64::new(0) }; 3] }; ALL];
const AT: usize = 0;
const LENGTH: usize = 1;
const BEFORE: usize = 2;
/// Address of a page near `malloc`'s family, and of one near the other functions if the first is
/// out of reach; 0 if not allocated.
static NEAR: [AtomicU64; 2] = [const { AtomicU64::new(0) }; 2];
/// 1 if the trampolines exist: threads may be in them.
static READY: AtomicU64 = AtomicU64::new(0);

/// Target of the jump in a patched function.
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

/// The same for functions outside of the allocator.
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

/// Calls the trampoline of a function, whose own calls of other functions are not the program's.
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
/// The address of a trampoline is in memory only. A hook that had it in a register could leave it
/// on the stack, where it resembles a return address, and the trampoline could not be unmapped.
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

/// Requests hooks for these functions (null for missing ones); for the others only in a program
/// that runs already, and for the mapping functions only if they are recorded. `None` without
/// memory near them.
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
        // Without hooks of the other functions, the recording has less data.
        of_others.store(room_near(address(far)).unwrap_or(0), Relaxed);
    }
    let none = [std::ptr::null_mut(); OTHERS];
    let functions: [*mut (); ALL] = std::array::from_fn(|index| {
        let others = others.unwrap_or(&none);
        family.get(index).or_else(|| others.get(index - FUNCTIONS)).copied().unwrap_or_default()
    });
    for (index, function) in functions.iter().enumerate().filter(|_| !is_ready) {
        // One function of several names has one hook.
        let is_first = !functions[..index].contains(function);
        let at = if is_first { address(function) } else { 0 };
        KNOWN[index][AT].store(at, Relaxed);
        KNOWN[index][LENGTH].store(0, Relaxed);
        if at != 0 {
            let code: *const u64 = std::ptr::with_exposed_provenance(function.addr());
            // SAFETY: eight bytes are mapped there: the function is longer, or other code follows
            // it.
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

/// Address of a function's part of the page near it.
fn part(index: usize) -> u64 {
    part_in(NEAR.each_ref().map(|near| near.load(Relaxed)), index)
}

fn part_in([of_family, of_others]: [u64; 2], index: usize) -> u64 {
    let near = if index < FUNCTIONS || of_others == 0 { of_family } else { of_others };
    near + (index * hooks::STRIDE) as u64
}

/// Addresses of the pages that are mapped.
fn rooms() -> impl Iterator<Item = u64> {
    NEAR.iter().map(|near| near.load(Relaxed)).filter(|&near| near != 0)
}

/// Writes the data of the functions into new tables.
pub(crate) fn tell(wanted: u64) {
    let address = |function: &*mut ()| function.addr() as u64;
    let own: u64;
    // SAFETY: the loader has written the offset of `pw_own` from the thread pointer there.
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

/// Writes the relocated prologues into the pages near the functions. In each page only the parts of
/// nearby functions are used.
fn write_moved_code() -> Option<()> {
    for near in rooms() {
        for index in 0..hooks::CODE_WORDS {
            let word = head(hooks::CODE + index).load(Relaxed);
            let place = std::ptr::with_exposed_provenance_mut::<u64>(near as usize + index * 8);
            // SAFETY: the page near the functions is ours and long enough, and no thread executes
            // it yet.
            unsafe { place.write_volatile(word) };
        }
        kernel::protect_code(near, hooks::CODE_WORDS * 8, libc::PROT_READ | libc::PROT_EXEC)
            .ok()?;
    }
    Some(())
}

/// Installs the trampolines from the collector's answer. Returns the functions that call them;
/// `None` if a required function cannot be hooked.
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
            // A missing hook would record frees without allocations, or the reverse.
            if !function.is_null() {
                return None;
            }
            continue;
        }
        MOVED[index].store(moved(first), Relaxed);
        all[index] = table[index];
    }
    // Without a hook of one of the other functions, the recording has less data.
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

/// True if there are trampolines: threads may be in them.
pub(crate) fn is_ready() -> bool {
    READY.load(Relaxed) != 0
}

/// Unmaps the trampolines. The functions have their original prologues again, and the next
/// recording looks them up anew.
///
/// # Safety
/// No thread is in that code or returns into it, and none is within the recorder.
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
        // SAFETY: `CODE_WORDS` words were mapped at `at`, and the caller excludes that a thread
        // executes them.
        unsafe { kernel::unmap(at, hooks::CODE_WORDS * 8) };
    }
}

/// Makes hooks that threads have not left yet call the functions directly, since these have their
/// original prologues again.
fn lead_to_functions(rooms: [u64; 2]) {
    let trampolines = MOVED.each_ref().map(|moved| moved.load(Relaxed).addr() as u64);
    for (index, known) in KNOWN.iter().enumerate() {
        let function = std::ptr::with_exposed_provenance_mut(known[AT].load(Relaxed) as usize);
        let own = part_in(rooms, index) + hooks::MOVED as u64;
        // A function of several names has one trampoline.
        for (moved, _) in MOVED.iter().zip(trampolines).filter(|(_, to)| *to == own) {
            moved.store(function, Relaxed);
        }
    }
}

/// Wraps functions so that calls inside of them are not the program's: they may be hooked under
/// other names.
pub(crate) fn surround(functions: &[*mut (); FUNCTIONS]) -> [*mut (); FUNCTIONS] {
    for (to, function) in MOVED.iter().zip(functions) {
        to.store(*function, Relaxed);
    }
    again(functions)
}

/// The wrappers of functions that have a trampoline, and the other functions unchanged.
fn again(functions: &[*mut (); FUNCTIONS]) -> [*mut (); FUNCTIONS] {
    let table = table!(behind);
    std::array::from_fn(|index| match MOVED[index].load(Relaxed).is_null() {
        true => functions[index],
        false => table[index],
    })
}

/// Bytes of a jump.
const JUMP: usize = 5;

/// Writes the jumps into the functions. No other thread may run.
pub(crate) fn patch() -> Option<()> {
    hooked().try_for_each(|(at, to, _)| hook(at, to))
}

/// Restores the first bytes of the functions. No other thread may run.
pub(crate) fn unpatch() -> Option<()> {
    hooked().try_for_each(|(at, to, before)| unhook(at, to, before))
}

/// Hooked functions: address, target of the jump, and original first bytes.
fn hooked() -> impl Iterator<Item = (u64, u64, u64)> {
    KNOWN.iter().enumerate().filter_map(|(index, known)| {
        let [at, length, before] = [AT, LENGTH, BEFORE].map(|word| known[word].load(Relaxed));
        let to = part(index);
        // A function out of reach of a jump keeps its first bytes.
        (at != 0 && length != 0 && jump_to(at, to).is_some()).then_some((at, to, before))
    })
}

/// A jump at one address to another; `None` if the distance exceeds 32 bits.
fn jump_to(at: u64, to: u64) -> Option<[u8; JUMP]> {
    let distance = to.wrapping_sub(at + JUMP as u64).cast_signed();
    let mut jump = [0xe9; JUMP];
    jump[1..].copy_from_slice(&i32::try_from(distance).ok()?.to_le_bytes());
    Some(jump)
}

/// Writes the jump into a function whose first bytes were moved. No other thread may run.
pub(crate) fn hook(at: u64, to: u64) -> Option<()> {
    write(at, jump_to(at, to)?)
}

/// Restores the first bytes of a function, if it begins with that jump. No other thread may run.
pub(crate) fn unhook(at: u64, to: u64, before: u64) -> Option<()> {
    let code: *const [u8; JUMP] = std::ptr::with_exposed_provenance(at as usize);
    // SAFETY: the function is at least as long.
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
        // SAFETY: the bytes were just made writable, are covered by what was moved, and no thread
        // runs them.
        unsafe { code.wrapping_add(offset).write_volatile(byte) };
    }
    kernel::protect_code(at, JUMP, libc::PROT_READ | libc::PROT_EXEC).ok()
}

/// Maximum distance of a page from the functions that jump to it.
const FARTHEST: u64 = 1 << 30;

/// A page that jumps of 32 bits reach from `address`.
fn room_near(address: u64) -> Option<u64> {
    const STEP: u64 = 1 << 20;
    (1..FARTHEST / STEP).find_map(|step| {
        let below = (address & !(STEP - 1)).checked_sub(step * STEP)?;
        let above = (address & !(STEP - 1)).checked_add(step * STEP)?;
        [below, above].into_iter().find_map(|at| kernel::memory_at(at, hooks::CODE_WORDS * 8).ok())
    })
}
