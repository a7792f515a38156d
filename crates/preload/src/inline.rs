//! Programs that have a `malloc` of their own: jumps over the first instructions of its functions, to our hooks.
//!
//! We say where the functions are and where near them there is room for a page; who looks on reads their code and says which
//! instructions a jump would cover, moved to that room ([`hooks`]). Where the C library's own functions are to be recorded in a
//! program that runs already, the same is done to them.
//!
//! ```text
//!  malloc:  jmp entry           near page:  entry:  jmp entry_of::<0>      -> hook, or on where this thread is within a call
//!  behind:  ...                             moved:  the first instructions, jmp behind
//! ```
//!
//! An allocator's functions may call each other: what they do within a call of ours is none of the program's calls, so a
//! thread's word ([`Own::Within`]) says that it is in one.

use std::arch::{asm, naked_asm};
use std::sync::atomic::{AtomicPtr, AtomicU64, Ordering::Relaxed};

use pagewise_heaplog::tables::hooks;

use crate::enter::{FUNCTIONS, Own, TARGETS};
use crate::kernel;
use crate::shared::head;

/// Where the functions' own code goes on.
static MOVED: [AtomicPtr<()>; FUNCTIONS] =
    [const { AtomicPtr::new(std::ptr::null_mut()) }; FUNCTIONS];
/// Room for a page near the functions; 0 while there is none.
static NEAR: AtomicU64 = AtomicU64::new(0);
/// 1 once the moved code is there: threads may be within it.
static READY: AtomicU64 = AtomicU64::new(0);

/// What a patched function jumps to.
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

/// The function behind, which may call others of its kind.
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

macro_rules! table {
    ($function:ident) => {
        [
            $function::<0> as *mut (),
            $function::<1> as *mut (),
            $function::<2> as *mut (),
            $function::<3> as *mut (),
            $function::<4> as *mut (),
            $function::<5> as *mut (),
            $function::<6> as *mut (),
            $function::<7> as *mut (),
            $function::<8> as *mut (),
        ]
    };
}

/// Asks for hooks at these functions, null where there is none. None where there is no room near them.
pub(crate) fn ask(functions: &[*mut (); FUNCTIONS]) -> Option<()> {
    let address = |function: &*mut ()| function.addr() as u64;
    if NEAR.load(Relaxed) == 0 {
        NEAR.store(room_near(address(functions.first()?))?, Relaxed);
    }
    head(hooks::NEAR).store(NEAR.load(Relaxed), Relaxed);
    for (index, function) in functions.iter().enumerate() {
        // One function of several names has one hook.
        let is_first = !functions[..index].contains(function);
        head(hooks::AT + index).store(if is_first { address(function) } else { 0 }, Relaxed);
    }
    let own: u64;
    // SAFETY: the loader has written there how far from a thread's data its own words are.
    unsafe {
        asm!("mov {}, qword ptr [rip + pw_own@GOTTPOFF]", out(reg) own, options(nostack, readonly, preserves_flags));
    }
    head(hooks::OWN).store(own, Relaxed);
    head(hooks::READY).store(READY.load(Relaxed), Relaxed);
    for (index, entry) in table!(entry_of).into_iter().enumerate() {
        head(hooks::ENTRIES + index).store(address(&entry), Relaxed);
    }
    Some(())
}

/// Makes the moved code ready, as it was answered. The functions behind, in place of those that were asked for; none
/// where one has to be hooked and cannot be.
pub(crate) fn take(functions: &[*mut (); FUNCTIONS]) -> Option<[*mut (); FUNCTIONS]> {
    let near = NEAR.load(Relaxed);
    if READY.load(Relaxed) != 0 {
        return Some(again(functions));
    }
    for index in 0..hooks::CODE_WORDS {
        let word = head(hooks::CODE + index).load(Relaxed);
        let place = std::ptr::with_exposed_provenance_mut::<u64>(near as usize + index * 8);
        // SAFETY: the page near the functions is ours, as long as this, and nobody runs it yet.
        unsafe { place.write_volatile(word) };
    }
    kernel::protect_code(near, hooks::CODE_WORDS * 8, libc::PROT_READ | libc::PROT_EXEC).ok()?;
    let mut all = *functions;
    let table = table!(behind);
    for (index, function) in functions.iter().enumerate() {
        let first = functions.iter().position(|other| other == function).unwrap_or(index);
        if head(hooks::LENGTHS + first).load(Relaxed) == 0 {
            // Who frees what was not seen, or allocates unseen, makes a wrong recording.
            if !function.is_null() {
                return None;
            }
            continue;
        }
        let moved = near + ((first * hooks::STRIDE + hooks::MOVED) as u64);
        MOVED[index].store(std::ptr::with_exposed_provenance_mut(moved as usize), Relaxed);
        all[index] = table[index];
    }
    READY.store(1, Relaxed);
    Some(all)
}

/// The functions behind, where they were hooked before.
fn again(functions: &[*mut (); FUNCTIONS]) -> [*mut (); FUNCTIONS] {
    let table = table!(behind);
    std::array::from_fn(|index| match MOVED[index].load(Relaxed).is_null() {
        true => functions[index],
        false => table[index],
    })
}

/// Has the functions begin with jumps to the page near them. Nobody else may run.
pub(crate) fn patch() -> Option<()> {
    const LENGTH: usize = 5;
    for index in 0..FUNCTIONS {
        let at = head(hooks::AT + index).load(Relaxed);
        if at == 0 {
            continue;
        }
        let to = NEAR.load(Relaxed) + (index * hooks::STRIDE) as u64;
        let distance = to.wrapping_sub(at + LENGTH as u64).cast_signed();
        let distance = i32::try_from(distance).ok()?.to_le_bytes();
        let all = libc::PROT_READ | libc::PROT_WRITE | libc::PROT_EXEC;
        kernel::protect_code(at, LENGTH, all).ok()?;
        let code: *mut u8 = std::ptr::with_exposed_provenance_mut(at as usize);
        for (offset, byte) in [0xe9].into_iter().chain(distance).enumerate() {
            // SAFETY: the bytes were just made writable, are covered by what was moved, and no thread runs them.
            unsafe { code.wrapping_add(offset).write_volatile(byte) };
        }
        kernel::protect_code(at, LENGTH, libc::PROT_READ | libc::PROT_EXEC).ok()?;
    }
    Some(())
}

/// A page that jumps of 32 bits reach from `address`.
fn room_near(address: u64) -> Option<u64> {
    const STEP: u64 = 1 << 20;
    const FARTHEST: u64 = 1 << 30;
    (1..FARTHEST / STEP).find_map(|step| {
        let below = (address & !(STEP - 1)).checked_sub(step * STEP)?;
        let above = (address & !(STEP - 1)).checked_add(step * STEP)?;
        [below, above].into_iter().find_map(|at| kernel::memory_at(at, hooks::CODE_WORDS * 8).ok())
    })
}
