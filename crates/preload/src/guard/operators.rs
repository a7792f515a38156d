//! C++'s `operator new` and `operator delete`, under all names that compilers call. The data of a
//! guarded object (its slot, [`super::pool`]) contains the family of the operator that allocated
//! the object. It is compared with the family of the operator that frees the object.
//!
//! The program calls our functions, which call the next functions, those of the C++ library.
//! Guarded objects are allocated here, so that their slots store the family of the operator. A free
//! by an operator of another family, or with another size, is reported. A program with its own
//! operators calls these instead, and its objects are not checked for this error.

use std::arch::naked_asm;
use std::ffi::{CStr, c_void};
use std::sync::atomic::{AtomicPtr, AtomicUsize, Ordering::Relaxed};

use pagewise_heaplog::guard::{access, bug, made_by};

use super::{ALIGN, count, free_guarded, goes_on, guarded_by, node, pool, tell};
use crate::inline::table;
use crate::stubs::Own;
use crate::{modules, next_alloc};

/// Number of functions: 8 that allocate objects, followed by 12 that free objects.
const FUNCTIONS: usize = 20;
/// Names of the functions. Every second function is for arrays.
const NAMES: [&CStr; FUNCTIONS] = [
    c"_Znwm",
    c"_Znam",
    c"_ZnwmRKSt9nothrow_t",
    c"_ZnamRKSt9nothrow_t",
    c"_ZnwmSt11align_val_t",
    c"_ZnamSt11align_val_t",
    c"_ZnwmSt11align_val_tRKSt9nothrow_t",
    c"_ZnamSt11align_val_tRKSt9nothrow_t",
    c"_ZdlPv",
    c"_ZdaPv",
    c"_ZdlPvm",
    c"_ZdaPvm",
    c"_ZdlPvRKSt9nothrow_t",
    c"_ZdaPvRKSt9nothrow_t",
    c"_ZdlPvSt11align_val_t",
    c"_ZdaPvSt11align_val_t",
    c"_ZdlPvmSt11align_val_t",
    c"_ZdaPvmSt11align_val_t",
    c"_ZdlPvSt11align_val_tRKSt9nothrow_t",
    c"_ZdaPvSt11align_val_tRKSt9nothrow_t",
];
const FIRST_DELETE: usize = 8;

/// True if the second argument of a function is the size of the object. For the argument with the
/// alignment see [`is_aligned`].
const fn is_sized(function: usize) -> bool {
    matches!(function, 10 | 11 | 16 | 17)
}

const fn is_aligned(function: usize) -> bool {
    matches!(function, 4..8)
}

/// Target of each function: the next function in load order, or the guard.
static TARGETS: [AtomicPtr<()>; FUNCTIONS] = table_of_first();
/// Next functions in load order.
static BEHIND: [AtomicPtr<()>; FUNCTIONS] = table_of_first();
/// Start and end of the C++ library's code; 0 if unknown.
static LIBRARY: [AtomicUsize; 2] = [const { AtomicUsize::new(0) }; 2];

const fn table_of_first() -> [AtomicPtr<()>; FUNCTIONS] {
    let functions = table!(first, 0 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 19);
    let mut table = [const { AtomicPtr::new(std::ptr::null_mut()) }; FUNCTIONS];
    let mut index = 0;
    while index < FUNCTIONS {
        table[index] = AtomicPtr::new(functions[index]);
        index += 1;
    }
    table
}

/// Functions that programs call.
#[cfg(not(test))]
mod exported {
    use std::arch::naked_asm;

    use super::TARGETS;

    macro_rules! exported {
        ($($name:ident $number:literal;)*) => {$(
            /// Exported function that programs call.
            ///
            /// # Safety
            /// The requirements of the C++ library's function.
            #[unsafe(no_mangle)]
            #[unsafe(naked)]
            pub(crate) unsafe extern "C" fn $name() {
                naked_asm!("jmp qword ptr [rip + {targets} + 8 * {function}]",
                    targets = sym TARGETS, function = const $number)
            }
        )*};
    }

    exported! {
        _Znwm 0;
        _Znam 1;
        _ZnwmRKSt9nothrow_t 2;
        _ZnamRKSt9nothrow_t 3;
        _ZnwmSt11align_val_t 4;
        _ZnamSt11align_val_t 5;
        _ZnwmSt11align_val_tRKSt9nothrow_t 6;
        _ZnamSt11align_val_tRKSt9nothrow_t 7;
        _ZdlPv 8;
        _ZdaPv 9;
        _ZdlPvm 10;
        _ZdaPvm 11;
        _ZdlPvRKSt9nothrow_t 12;
        _ZdaPvRKSt9nothrow_t 13;
        _ZdlPvSt11align_val_t 14;
        _ZdaPvSt11align_val_t 15;
        _ZdlPvmSt11align_val_t 16;
        _ZdaPvmSt11align_val_t 17;
        _ZdlPvSt11align_val_tRKSt9nothrow_t 18;
        _ZdaPvSt11align_val_tRKSt9nothrow_t 19;
    }
}

/// First target of each function. It looks up the next function at the first call, because the C++
/// library may be loaded late.
#[unsafe(naked)]
unsafe extern "C" fn first<const FUNCTION: usize>() {
    naked_asm!(
        "push rdi", "push rsi", "push rdx",
        "mov edi, {function}",
        "call {find}",
        "pop rdx", "pop rsi", "pop rdi",
        "jmp qword ptr [rip + {behind} + 8 * {function}]",
        find = sym find, behind = sym BEHIND, function = const FUNCTION,
    )
}

unsafe extern "C" fn find(function: usize) {
    let (Some(name), Some(behind), Some(target)) =
        (NAMES.get(function), BEHIND.get(function), TARGETS.get(function))
    else {
        return;
    };
    let before = behind.load(Relaxed);
    let found = next_alloc::behind_ours(name, &LIBRARIES).cast::<()>();
    let found = match (found.is_null(), function) {
        (false, _) => found,
        (true, ..FIRST_DELETE) => {
            if is_aligned(function) {
                plain_aligned_new as *mut ()
            } else {
                plain_new as *mut ()
            }
        }
        (true, _) => plain_delete as *mut (),
    };
    behind.store(found, Relaxed);
    // The target stays as it is if guarding has set another one meanwhile.
    let _ = target.compare_exchange(before, found, Relaxed, Relaxed);
}

/// File names of C++ libraries. A library that was loaded in a local scope (`RTLD_LOCAL`) is
/// searched by its name.
const LIBRARIES: [&CStr; 3] = [c"libstdc++.so.6", c"libc++abi.so.1", c"libc++.so.1"];

// The following functions replace the operators if no C++ library is loaded.

unsafe extern "C" fn plain_new(size: usize) -> *mut c_void {
    // SAFETY: `malloc` accepts any size.
    or_abort(unsafe { libc::malloc(size.max(1)) })
}

unsafe extern "C" fn plain_aligned_new(size: usize, align: usize) -> *mut c_void {
    // SAFETY: `aligned_alloc` accepts any size, and the alignment is a power of two.
    or_abort(unsafe { libc::aligned_alloc(align, size.max(1).next_multiple_of(align.max(1))) })
}

fn or_abort(block: *mut c_void) -> *mut c_void {
    if block.is_null() {
        // SAFETY: `abort` has no preconditions; it ends the program like an uncaught exception.
        unsafe { libc::abort() }
    }
    block
}

unsafe extern "C" fn plain_delete(block: *mut c_void) {
    // SAFETY: the program passes a block that it frees.
    unsafe { libc::free(block) };
}

/// Begins to guard objects of these operators, if the program calls our functions and has no
/// operators of its own.
pub(crate) fn begin() {
    if !NAMES.iter().all(|name| next_alloc::is_called_ours(name)) {
        return;
    }
    let behind = next_alloc::behind_ours(NAMES[0], &LIBRARIES);
    if let Some(library) = modules::find(behind.addr() as u64) {
        LIBRARY[0].store(library.start, Relaxed);
        LIBRARY[1].store(library.end, Relaxed);
    }
    let guards = table!(guard, 0 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 19);
    for (target, guard) in TARGETS.iter().zip(guards) {
        target.store(guard, Relaxed);
    }
}

/// True if `code` is in the C++ library, which calls `malloc` and `free` for its own operators.
pub(crate) fn is_library(code: u64) -> bool {
    let [start, end] = [LIBRARY[0].load(Relaxed), LIBRARY[1].load(Relaxed)];
    (start..end).contains(&(code as usize))
}

/// Allocates a guarded object if one is due, or frees a guarded object. Otherwise jumps to the next
/// function. An exception never passes through this function: its frame is on the stack only while
/// the guard runs, and the guard throws no exception.
#[unsafe(naked)]
unsafe extern "C" fn guard<const FUNCTION: usize>() {
    naked_asm!(
        // A function that allocates counts the allocation down here only if a guarded object is
        // due. Otherwise the next function calls `malloc`, which counts it down.
        ".if {function} < {first_delete}",
        "mov rax, qword ptr [rip + pw_own@GOTTPOFF]",
        "cmp qword ptr fs:[rax + {left}], 1",
        "jge 3f",
        ".else",
        "mov rax, rdi",
        "sub rax, qword ptr [rip + {base}]",
        "cmp rax, qword ptr [rip + {length}]",
        "jae 3f",
        ".endif",
        "push rdi", "push rsi", "push rdx",
        "lea rdx, [rsp + 24]", "mov rcx, rbp", "mov r8d, {function}",
        ".if {function} < {first_delete}",
        "call {make}",
        "pop rdx", "pop rsi", "pop rdi",
        "test rax, rax", "jz 3f",
        "ret",
        ".else",
        "call {delete}",
        "pop rdx", "pop rsi", "pop rdi",
        "ret",
        ".endif",
        "3:", "jmp qword ptr [rip + {behind} + 8 * {function}]",
        function = const FUNCTION, first_delete = const FIRST_DELETE,
        left = const Own::Left as usize, base = sym pool::BASE, length = sym pool::LENGTH,
        make = sym make, delete = sym delete, behind = sym BEHIND,
    )
}

/// The family of an operator: `NEW` for single objects, `NEW_ARRAY` for arrays.
fn family(function: usize) -> u32 {
    let is_array = !function.is_multiple_of(2);
    match (function < FIRST_DELETE, is_array) {
        (_, false) => made_by::NEW,
        (_, true) => made_by::NEW_ARRAY,
    }
}

unsafe extern "C" fn make(
    size: usize,
    align: usize,
    stack: u64,
    frame: u64,
    function: usize,
) -> *mut c_void {
    let align = if is_aligned(function) { align } else { ALIGN };
    if !align.is_power_of_two() {
        return std::ptr::null_mut();
    }
    count();
    guarded_by(size, align, stack, frame, family(function)).unwrap_or(std::ptr::null_mut())
}

unsafe extern "C" fn delete(
    block: *mut c_void,
    size: usize,
    stack: u64,
    frame: u64,
    function: usize,
) {
    let address = block.addr();
    let Some(id) = pool::find(address) else { return };
    let size = is_sized(function).then_some(size);
    if let Some(bug) = mismatch(id, address, family(function), size) {
        report(bug, stack, frame);
    }
    free_guarded(id, address, stack, frame);
}

/// A free of an object by a function or with a size that does not match its allocation.
struct FreedBy {
    id: pool::Id,
    address: usize,
    by: u32,
    size: Option<usize>,
}

fn mismatch(id: pool::Id, address: usize, by: u32, size: Option<usize>) -> Option<FreedBy> {
    let slot = id.slot();
    if slot.state.load(Relaxed) != pool::state::LIVE || slot.address.load(Relaxed) != address {
        // `release` reports that the address is not that of a live object.
        return None;
    }
    let made = slot.made_by.load(Relaxed);
    let is_known = made != made_by::ANY;
    let differs = made != by || size.is_some_and(|size| size != slot.size.load(Relaxed));
    (is_known && differs).then_some(FreedBy { id, address, by, size })
}

fn report(it: FreedBy, stack: u64, frame: u64) {
    tell::tell(&tell::ObjectBug {
        bug: bug::MISMATCH,
        access: access::FREE,
        address: it.address,
        object: Some(it.id),
        node: node(stack, frame),
        goes_on: goes_on(),
        freed_by: it.by,
        freed_size: it.size,
    });
    tell::after_a_call();
}

/// Reports an object that `free` or `realloc` frees and that an operator allocated.
pub(crate) fn check_free(id: pool::Id, address: usize, stack: u64, frame: u64) {
    let Some(bug) = mismatch(id, address, made_by::MALLOC, None) else { return };
    let back: *const u64 = std::ptr::with_exposed_provenance(stack as usize);
    // SAFETY: the stub has passed its stack pointer, where the call put its return address.
    if !is_library(unsafe { back.read_volatile() }) {
        report(bug, stack, frame);
    }
}
