//! Exported entry points of the functions. Each jumps to the target for the current recording mode,
//! and passes the stack pointer and the frame pointer.
//!
//! [`TARGETS`] contains the target of each function: first [`crate::begin`], then a hook, or the
//! next allocator if calls are not recorded. Hooks receive the stack pointer and the frame pointer
//! of their caller as additional arguments.
//!
//! A thread's own words are in memory that the loader allocates before the thread runs
//! (thread-local storage of the initial-exec model). An access takes two instructions and no call
//! that could allocate.

use std::arch::{asm, global_asm, naked_asm};
use std::sync::atomic::{AtomicPtr, Ordering};

use crate::{begin, hooks, sampling};

global_asm!(
    ".pushsection .tbss.pw_own,\"awT\",@nobits",
    ".balign 64",
    ".hidden pw_own",
    ".globl pw_own",
    ".type pw_own, @object",
    ".size pw_own, 64",
    "pw_own: .zero 64",
    ".popsection",
);

/// Thread-local words; the values are their offsets in bytes.
#[derive(Clone, Copy, Debug)]
#[repr(usize)]
pub(crate) enum Own {
    /// Address of the thread's data; null if the thread is not recorded.
    Thread = 0,
    /// Number of bytes until the next sample, or number of allocations until the next guarded one.
    Left = 8,
    /// State of the thread ([`crate::threads`]).
    Stage = 16,
    /// Nesting depth in hooked functions ([`crate::inline`]).
    Within = 24,
}

/// Value of a word of this thread.
#[inline(always)]
pub(crate) fn own<const WORD: usize>() -> u64 {
    let value: u64;
    // SAFETY: the word is within this thread's block of words, which has 64 bytes.
    unsafe {
        asm!("mov {value}, qword ptr [rip + pw_own@GOTTPOFF]", "mov {value}, qword ptr fs:[{value} + {word}]",
             value = out(reg) value, word = const WORD, options(nostack, readonly, preserves_flags));
    }
    value
}

/// Changes a word of this thread.
#[inline(always)]
pub(crate) fn set_own<const WORD: usize>(value: u64) {
    // SAFETY: the word is within this thread's block of words, which no other thread writes.
    unsafe {
        asm!("mov {at}, qword ptr [rip + pw_own@GOTTPOFF]", "mov qword ptr fs:[{at} + {word}], {value}",
             at = out(reg) _, value = in(reg) value, word = const WORD, options(nostack, preserves_flags));
    }
}

/// Functions that a program calls and that have stubs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(usize)]
pub(crate) enum EntryFunction {
    Malloc,
    Free,
    Calloc,
    Realloc,
    Memalign,
    AlignedAlloc,
    PosixMemalign,
    Valloc,
    Pvalloc,
}

/// Number of functions in [`EntryFunction`].
pub(crate) const FUNCTIONS: usize = 9;

/// Target of each function.
pub(crate) static TARGETS: [AtomicPtr<()>; FUNCTIONS] = [
    AtomicPtr::new(first::<0> as *mut ()),
    AtomicPtr::new(first::<1> as *mut ()),
    AtomicPtr::new(first::<2> as *mut ()),
    AtomicPtr::new(first::<3> as *mut ()),
    AtomicPtr::new(first::<4> as *mut ()),
    AtomicPtr::new(first::<5> as *mut ()),
    AtomicPtr::new(first::<6> as *mut ()),
    AtomicPtr::new(first::<7> as *mut ()),
    AtomicPtr::new(first::<8> as *mut ()),
];

/// Sets the targets of all functions.
pub(crate) fn aim(targets: [*mut (); FUNCTIONS]) {
    for (target, to) in TARGETS.iter().zip(targets) {
        target.store(to, Ordering::Release);
    }
}

/// Targets if every call is recorded. `usual` is true if the allocator is the C library's.
pub(crate) fn every(usual: bool) -> [*mut (); FUNCTIONS] {
    let (malloc, free) = if usual {
        (usual_malloc as *mut (), every_free::<true> as *mut ())
    } else {
        (every_malloc as *mut (), every_free::<false> as *mut ())
    };
    [
        malloc,
        free,
        two::<{ hooks::CALLOC }> as *mut (),
        two::<{ hooks::REALLOC }> as *mut (),
        two::<{ hooks::MEMALIGN }> as *mut (),
        two::<{ hooks::ALIGNED_ALLOC }> as *mut (),
        three_posix_memalign as *mut (),
        one::<{ hooks::VALLOC }> as *mut (),
        one::<{ hooks::PVALLOC }> as *mut (),
    ]
}

/// First target of each function: starts the recorder, then jumps to the new target.
#[unsafe(naked)]
unsafe extern "C" fn first<const FUNCTION: usize>() {
    naked_asm!(
        "push rdi", "push rsi", "push rdx", "push rcx", "sub rsp, 8",
        "call {begin}",
        "add rsp, 8", "pop rcx", "pop rdx", "pop rsi", "pop rdi",
        "jmp qword ptr [rip + {targets} + 8 * {function}]",
        begin = sym begin::begin, targets = sym TARGETS, function = const FUNCTION,
    )
}

macro_rules! exported {
    ($($name:ident $number:expr;)*) => {$(
        /// Exported function that programs call.
        ///
        /// # Safety
        /// The requirements of the C library's function.
        #[cfg(not(test))]
        #[unsafe(no_mangle)]
        #[unsafe(naked)]
        pub(crate) unsafe extern "C" fn $name() {
            naked_asm!("jmp qword ptr [rip + {targets} + 8 * {function}]",
                targets = sym TARGETS, function = const $number as usize)
        }
    )*};
}

exported! {
    malloc EntryFunction::Malloc;
    free EntryFunction::Free;
    cfree EntryFunction::Free;
    calloc EntryFunction::Calloc;
    realloc EntryFunction::Realloc;
    memalign EntryFunction::Memalign;
    aligned_alloc EntryFunction::AlignedAlloc;
    posix_memalign EntryFunction::PosixMemalign;
    valloc EntryFunction::Valloc;
    pvalloc EntryFunction::Pvalloc;
}

#[unsafe(naked)]
unsafe extern "C" fn usual_malloc() {
    naked_asm!("mov rsi, rsp", "mov rdx, rbp", "jmp {hook}", hook = sym hooks::malloc::<true>)
}

#[unsafe(naked)]
unsafe extern "C" fn every_malloc() {
    naked_asm!("mov rsi, rsp", "mov rdx, rbp", "jmp {hook}", hook = sym hooks::malloc::<false>)
}

/// Target of `free`. It passes the stack pointer, from which the hook reads the caller if the freed
/// block is unknown.
#[unsafe(naked)]
unsafe extern "C" fn every_free<const USUAL: bool>() {
    naked_asm!("mov rsi, rsp", "jmp {hook}", hook = sym hooks::free::<USUAL>)
}

/// Target of a function with one argument.
#[unsafe(naked)]
unsafe extern "C" fn one<const HOOK: usize>() {
    naked_asm!("mov rsi, rsp", "mov rdx, rbp", "mov ecx, {hook}", "jmp {dispatch}",
        hook = const HOOK, dispatch = sym hooks::one)
}

/// Target of a function with two arguments.
#[unsafe(naked)]
unsafe extern "C" fn two<const HOOK: usize>() {
    naked_asm!("mov rdx, rsp", "mov rcx, rbp", "mov r8d, {hook}", "jmp {dispatch}",
        hook = const HOOK, dispatch = sym hooks::two)
}

#[unsafe(naked)]
unsafe extern "C" fn three_posix_memalign() {
    naked_asm!("mov rcx, rsp", "mov r8, rbp", "jmp {hook}", hook = sym hooks::posix_memalign)
}

/// Target of `malloc` with sampling: most calls only subtract from the byte counter.
#[unsafe(naked)]
pub(crate) unsafe extern "C" fn sampled_malloc() {
    naked_asm!(
        "mov rax, qword ptr [rip + pw_own@GOTTPOFF]",
        "sub qword ptr fs:[rax + {left}], rdi",
        "js 2f",
        "jmp qword ptr [rip + {real}]",
        "2:",
        "mov rsi, rsp", "mov rdx, rbp", "jmp {hook}",
        left = const Own::Left as usize, real = sym crate::next_alloc::MALLOC, hook = sym sampling::malloc,
    )
}

/// Target of `calloc` with sampling. A call whose product overflows allocates nothing, and is not
/// counted.
#[unsafe(naked)]
pub(crate) unsafe extern "C" fn sampled_calloc() {
    naked_asm!(
        "mov rax, rdi",
        "mul rsi",
        "jo 3f",
        "mov rcx, qword ptr [rip + pw_own@GOTTPOFF]",
        "sub qword ptr fs:[rcx + {left}], rax",
        "js 2f",
        "3:",
        "jmp qword ptr [rip + {others} + 8 * {function}]",
        "2:",
        "mov rdx, rsp", "mov rcx, rbp", "jmp {hook}",
        left = const Own::Left as usize, others = sym crate::next_alloc::OTHERS,
        function = const EntryFunction::Calloc as usize, hook = sym sampling::calloc,
    )
}

/// Continues if the block in the first argument is certainly not sampled. Otherwise jumps to label
/// 2.
macro_rules! on_if_no_sample {
    () => {
        "mov eax, edi
         shr eax, {bits}
         movzx eax, ax
         lea rcx, [rip + {filter}]
         cmp byte ptr [rcx + rax], 0
         jne 2f"
    };
}

/// Target of `realloc` with sampling: calls the hook only if the old block may be sampled or the
/// new block is due.
#[unsafe(naked)]
pub(crate) unsafe extern "C" fn sampled_realloc() {
    naked_asm!(
        on_if_no_sample!(),
        "mov rax, qword ptr [rip + pw_own@GOTTPOFF]",
        "sub qword ptr fs:[rax + {left}], rsi",
        "js 3f",
        "jmp qword ptr [rip + {others} + 8 * {function}]",
        // The hook subtracts the size itself, so the stub reverses its subtraction.
        "3:", "add qword ptr fs:[rax + {left}], rsi",
        "2:", "mov rdx, rsp", "mov rcx, rbp", "mov r8d, {hook}", "jmp {dispatch}",
        bits = const sampling::FILTER_BITS, filter = sym sampling::FILTER,
        left = const Own::Left as usize, others = sym crate::next_alloc::OTHERS,
        function = const EntryFunction::Realloc as usize, hook = const hooks::REALLOC, dispatch = sym hooks::two,
    )
}

/// Target of `free` with sampling: most blocks are not sampled.
#[unsafe(naked)]
pub(crate) unsafe extern "C" fn sampled_free() {
    naked_asm!(
        on_if_no_sample!(),
        "jmp qword ptr [rip + {real}]",
        "2:",
        "mov rsi, rsp",
        "jmp {hook}",
        bits = const sampling::FILTER_BITS, filter = sym sampling::FILTER, real = sym crate::next_alloc::FREE, hook = sym hooks::free::<false>,
    )
}
