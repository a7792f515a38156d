//! The guarding mode of this library: randomly chosen objects, or all objects, are on separate
//! pages, so that an access past the end of an object or after its free is detected at once.
//!
//! ```text
//!  guard      selection of allocations, and the functions of malloc's family for guarded objects
//!  pool       memory of objects, guard pages around them, and quarantine of freed objects
//!  moves      pages that move from one object to the next
//!  canary     canary bytes in the unused part of an object's pages, checked at its free
//!  signals    SIGSEGV and SIGBUS of guarded memory, and the program's own handlers
//!  operators  the C++ operators that allocate and free objects
//!  tell       report of a memory error with its call stacks, before the program continues or ends
//! ```
//! Each thread draws a random number from a geometric distribution, counts it down by one at each
//! allocation, and guards the allocation at which the count ends. Then it draws a new number. So
//! every allocation is guarded with the same probability. An allocation that is not guarded costs
//! two more instructions.

mod canary;
mod moves;
mod operators;
mod pool;
mod signals;
mod tell;

use std::arch::naked_asm;
use std::ffi::{c_int, c_void};
use std::sync::atomic::{AtomicPtr, AtomicU8, AtomicU64, Ordering::Relaxed};

use pagewise_heaplog::guard::{access, bug, made_by};
use pagewise_heaplog::recording::ROOT;

use crate::begin::{self, StartStage};
use crate::hooks::at;
use crate::sampling::logarithm;
use crate::stubs::{EntryFunction, FUNCTIONS, Own, own, set_own};
use crate::threads::{self, ThreadData};
use crate::{aux_hooks, kernel, modules, next_alloc, stacks};

use pool::{Id, NotFreed};

/// Parameters of guarding.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct GuardConfig {
    /// Sampling interval: one in `rate` allocations is guarded on average; 0 guards no allocation.
    pub rate: u64,
    /// Limit in bytes of the memory for guarding.
    pub most: u64,
    /// True if the program continues after a memory error.
    pub goes_on: bool,
    /// Best permitted method of making pages inaccessible.
    pub means: Option<pool::ProtectMeans>,
    /// Position of objects in their pages, as parsed by [`side`].
    pub side: u8,
}

/// Values of [`SIDE`]: objects are at the end of their pages, at the start, or randomly at either.
const AT_END: u8 = 0;
const AT_START: u8 = 1;
const BY_CHANCE: u8 = 2;

/// Parses the setting for the position of objects in their pages.
pub(crate) fn side(word: &[u8]) -> Option<u8> {
    match word {
        b"end" => Some(AT_END),
        b"start" => Some(AT_START),
        b"chance" => Some(BY_CHANCE),
        _ => None,
    }
}

/// Parses the setting for the best permitted method of making pages inaccessible.
pub(crate) fn means(word: &[u8]) -> Option<pool::ProtectMeans> {
    match word {
        b"moves" => Some(pool::ProtectMeans::Moves),
        b"marks" => Some(pool::ProtectMeans::Marks),
        b"mappings" => Some(pool::ProtectMeans::Mappings),
        _ => None,
    }
}

/// Alignment in bytes that `malloc` guarantees.
const ALIGN: usize = 16;

static RATE: AtomicU64 = AtomicU64::new(0);
/// Value of 1 / ln(1 - 1/rate), as the bits of an `f64`.
static SCALE: AtomicU64 = AtomicU64::new(0);
static GOES_ON: AtomicU8 = AtomicU8::new(0);
static SIDE: AtomicU8 = AtomicU8::new(AT_END);
/// 1 if the next allocator is glibc's, whose blocks have headers.
static IS_GLIBC: AtomicU8 = AtomicU8::new(0);
/// Next functions, which handle unguarded blocks.
static PASS: [AtomicPtr<()>; FUNCTIONS] =
    [const { AtomicPtr::new(std::ptr::null_mut()) }; FUNCTIONS];

/// True if guarding is on in this process.
pub(crate) fn is_on() -> bool {
    RATE.load(Relaxed) != 0 && begin::stage() == StartStage::Records
}

fn goes_on() -> bool {
    GOES_ON.load(Relaxed) != 0
}

/// True if every allocation is guarded. Freed addresses are then also checked more strictly.
fn is_strict() -> bool {
    RATE.load(Relaxed) == 1
}

/// Begins to guard. Returns the targets of the stubs, or `None` if the collector refuses this
/// process or guarding is not possible.
pub(crate) fn begin(
    wanted: &GuardConfig,
    socket: &[u8],
    is_glibc: bool,
) -> Option<[*mut (); FUNCTIONS]> {
    pool::begin(wanted.most, wanted.means.unwrap_or(pool::ProtectMeans::Moves))?;
    tell::begin(socket)?;
    if !tell::hello() {
        return None;
    }
    moves::have_held();
    signals::begin()?;
    operators::begin();
    let chance = 1.0 / wanted.rate as f64;
    let scale = if wanted.rate > 1 { 1.0 / logarithm(1.0 - chance) } else { 0.0 };
    SCALE.store(scale.to_bits(), Relaxed);
    GOES_ON.store(u8::from(wanted.goes_on), Relaxed);
    SIDE.store(wanted.side, Relaxed);
    IS_GLIBC.store(u8::from(is_glibc), Relaxed);
    RATE.store(wanted.rate, Relaxed);
    let mut targets = next_alloc::targets();
    for (pass, target) in PASS.iter().zip(targets) {
        pass.store(target, Relaxed);
    }
    let is_careful = wanted.rate == 1 || next_alloc::may_be_boot();
    let mut aim = |function: EntryFunction, target: unsafe extern "C" fn()| {
        targets[function as usize] = target as *mut ();
    };
    aim(EntryFunction::Malloc, enter_malloc);
    aim(EntryFunction::Free, if is_careful { enter_any_free } else { enter_free });
    aim(EntryFunction::Calloc, enter_calloc);
    aim(EntryFunction::Realloc, if is_careful { enter_any_realloc } else { enter_realloc });
    aim(EntryFunction::Memalign, enter_memalign);
    aim(EntryFunction::AlignedAlloc, enter_aligned_alloc);
    aim(EntryFunction::PosixMemalign, enter_posix_memalign);
    aim(EntryFunction::Valloc, enter_valloc);
    aim(EntryFunction::Pvalloc, enter_pvalloc);
    Some(targets)
}

/// Looks up the next functions of the exported functions that programs call even without guarding.
pub(crate) fn find() {
    signals::find();
    aux_hooks::behind(&FORK, c"fork");
    aux_hooks::behind(&USABLE_SIZE, c"malloc_usable_size");
}

/// Resets the state in a child of `fork`.
pub(crate) fn forked() {
    pool::forked();
    signals::forked();
    tell::forked();
}

/// Entry of `malloc`: most calls only count the allocation down.
#[unsafe(naked)]
unsafe extern "C" fn enter_malloc() {
    naked_asm!(
        "mov rax, qword ptr [rip + pw_own@GOTTPOFF]",
        "sub qword ptr fs:[rax + {left}], 1",
        "js 2f",
        "jmp qword ptr [rip + {pass} + 8 * {function}]",
        "2:", "mov rsi, rsp", "mov rdx, rbp", "jmp {hook}",
        left = const Own::Left as usize, pass = sym PASS, function = const EntryFunction::Malloc as usize,
        hook = sym malloc,
    )
}

#[unsafe(naked)]
unsafe extern "C" fn enter_calloc() {
    naked_asm!(
        "mov rax, qword ptr [rip + pw_own@GOTTPOFF]",
        "sub qword ptr fs:[rax + {left}], 1",
        "js 2f",
        "jmp qword ptr [rip + {pass} + 8 * {function}]",
        "2:", "mov rdx, rsp", "mov rcx, rbp", "jmp {hook}",
        left = const Own::Left as usize, pass = sym PASS, function = const EntryFunction::Calloc as usize,
        hook = sym calloc,
    )
}

/// Entry of `free`: most blocks are not guarded.
#[unsafe(naked)]
unsafe extern "C" fn enter_free() {
    naked_asm!(
        "mov rax, rdi",
        "sub rax, qword ptr [rip + {base}]",
        "cmp rax, qword ptr [rip + {length}]",
        "jb 2f",
        "jmp qword ptr [rip + {pass} + 8 * {function}]",
        "2:", "mov rsi, rsp", "mov rdx, rbp", "jmp {hook}",
        base = sym pool::BASE, length = sym pool::LENGTH, pass = sym PASS,
        function = const EntryFunction::Free as usize, hook = sym free,
    )
}

#[unsafe(naked)]
unsafe extern "C" fn enter_any_free() {
    naked_asm!("mov rsi, rsp", "mov rdx, rbp", "jmp {hook}", hook = sym free)
}

#[unsafe(naked)]
unsafe extern "C" fn enter_realloc() {
    naked_asm!(
        "mov rax, qword ptr [rip + pw_own@GOTTPOFF]",
        "sub qword ptr fs:[rax + {left}], 1",
        "js 2f",
        "mov rax, rdi",
        "sub rax, qword ptr [rip + {base}]",
        "cmp rax, qword ptr [rip + {length}]",
        "jb 2f",
        "jmp qword ptr [rip + {pass} + 8 * {function}]",
        "2:", "mov rdx, rsp", "mov rcx, rbp", "jmp {hook}",
        left = const Own::Left as usize, base = sym pool::BASE, length = sym pool::LENGTH, pass = sym PASS,
        function = const EntryFunction::Realloc as usize, hook = sym realloc,
    )
}

#[unsafe(naked)]
unsafe extern "C" fn enter_any_realloc() {
    naked_asm!(
        "mov rax, qword ptr [rip + pw_own@GOTTPOFF]",
        "sub qword ptr fs:[rax + {left}], 1",
        "mov rdx, rsp", "mov rcx, rbp", "jmp {hook}",
        left = const Own::Left as usize, hook = sym realloc,
    )
}

#[unsafe(naked)]
unsafe extern "C" fn enter_memalign() {
    naked_asm!("mov rdx, rsp", "mov rcx, rbp", "jmp {hook}", hook = sym memalign)
}

#[unsafe(naked)]
unsafe extern "C" fn enter_aligned_alloc() {
    naked_asm!("mov rdx, rsp", "mov rcx, rbp", "jmp {hook}", hook = sym aligned_alloc)
}

#[unsafe(naked)]
unsafe extern "C" fn enter_posix_memalign() {
    naked_asm!("mov rcx, rsp", "mov r8, rbp", "jmp {hook}", hook = sym posix_memalign)
}

#[unsafe(naked)]
unsafe extern "C" fn enter_valloc() {
    naked_asm!("mov rsi, rsp", "mov rdx, rbp", "jmp {hook}", hook = sym valloc)
}

#[unsafe(naked)]
unsafe extern "C" fn enter_pvalloc() {
    naked_asm!("mov rsi, rsp", "mov rdx, rbp", "jmp {hook}", hook = sym pvalloc)
}

/// Returns a random number of allocations to skip before the next guarded one.
fn draw(thread: &ThreadData) -> u64 {
    if is_strict() {
        return 0;
    }
    // The interval of `uniform` is (0, 1].
    let uniform = ((thread.draw() >> 11) + 1) as f64 / (1_u64 << 53) as f64;
    let scale = f64::from_bits(SCALE.load(Relaxed));
    let passed = logarithm(uniform) * scale;
    (passed as i64).max(0).cast_unsigned()
}

/// Returns true if the allocation that was just counted down must be guarded, and then draws the
/// number for the next one.
fn is_due(thread: &ThreadData) -> bool {
    if own::<{ Own::Left as usize }>().cast_signed() >= 0 {
        return false;
    }
    let passed = draw(thread);
    if thread.begins_sampling() && passed > 0 {
        // The thread had no random number yet, so its first allocation must be guarded with the
        // same probability as any other.
        set_own::<{ Own::Left as usize }>(passed - 1);
        return false;
    }
    set_own::<{ Own::Left as usize }>(passed);
    true
}

/// Thread ID of this thread.
fn number(thread: &ThreadData) -> u32 {
    match thread.tid() {
        // Ending threads share one `ThreadData`, so the kernel is asked.
        0 => kernel::thread(),
        tid => tid,
    }
}

/// Returns a guarded object if the allocation is due and the pool has space. Called after the
/// allocation was counted down.
fn guarded(size: usize, align: usize, stack: u64, frame: u64) -> Option<*mut c_void> {
    guarded_by(size, align, stack, frame, made_by::MALLOC)
}

/// Returns a guarded object like [`guarded`], for an allocation by a function of the family
/// `made_by`.
fn guarded_by(
    size: usize,
    align: usize,
    stack: u64,
    frame: u64,
    made_by: u32,
) -> Option<*mut c_void> {
    let Some(entered) = threads::enter() else {
        // With the count at 0, the thread guards its next allocation instead.
        set_own::<{ Own::Left as usize }>(0);
        return None;
    };
    let thread = entered.thread();
    let object = is_due(thread).then(|| {
        let first = match SIDE.load(Relaxed) {
            AT_END => false,
            AT_START => true,
            _ => thread.draw() >> 63 != 0,
        };
        let at = at(stack, frame);
        // The C++ library's own operators also call `malloc`, unless the program replaces them.
        let made_by = if operators::is_library(at.code) { made_by::ANY } else { made_by };
        let node = thread.node(at);
        let call = pool::AllocatingCall { node, thread: number(thread), made_by };
        pool::allocate(size, align.max(ALIGN), first, call)
    });
    threads::leave(entered);
    object.flatten().map(std::ptr::with_exposed_provenance_mut)
}

/// Counts down an allocation. Called for functions whose stub does not count.
fn count() {
    let left = own::<{ Own::Left as usize }>();
    set_own::<{ Own::Left as usize }>(left.wrapping_sub(1));
}

unsafe extern "C" fn malloc(size: usize, stack: u64, frame: u64) -> *mut c_void {
    guarded(size, ALIGN, stack, frame).unwrap_or_else(|| next_alloc::malloc(size))
}

unsafe extern "C" fn calloc(number: usize, size: usize, stack: u64, frame: u64) -> *mut c_void {
    // Pages of guarded objects are zero-filled.
    let object = number.checked_mul(size).and_then(|all| guarded(all, ALIGN, stack, frame));
    object.unwrap_or_else(|| next_alloc::calloc(number, size))
}

/// Returns a guarded object with this alignment; `None` if the alignment is not a power of two.
fn aligned(align: usize, size: usize, stack: u64, frame: u64) -> Option<*mut c_void> {
    count();
    align.is_power_of_two().then(|| guarded(size, align, stack, frame)).flatten()
}

unsafe extern "C" fn memalign(align: usize, size: usize, stack: u64, frame: u64) -> *mut c_void {
    let object = aligned(align, size, stack, frame);
    object.unwrap_or_else(|| next_alloc::memalign(align, size))
}

unsafe extern "C" fn aligned_alloc(
    align: usize,
    size: usize,
    stack: u64,
    frame: u64,
) -> *mut c_void {
    let object = aligned(align, size, stack, frame);
    object.unwrap_or_else(|| next_alloc::aligned_alloc(align, size))
}

unsafe extern "C" fn posix_memalign(
    to: *mut *mut c_void,
    align: usize,
    size: usize,
    stack: u64,
    frame: u64,
) -> c_int {
    if !align.is_multiple_of(size_of::<usize>()) {
        return libc::EINVAL;
    }
    let Some(object) = aligned(align, size, stack, frame) else {
        return next_alloc::posix_memalign(to, align, size);
    };
    // SAFETY: the program passes a pointer to which the address may be written.
    unsafe { to.write(object) };
    0
}

unsafe extern "C" fn valloc(size: usize, stack: u64, frame: u64) -> *mut c_void {
    aligned(pool::page(), size, stack, frame).unwrap_or_else(|| next_alloc::valloc(size))
}

unsafe extern "C" fn pvalloc(size: usize, stack: u64, frame: u64) -> *mut c_void {
    let whole = size.max(1).checked_next_multiple_of(pool::page());
    let object = whole.and_then(|size| aligned(pool::page(), size, stack, frame));
    object.unwrap_or_else(|| next_alloc::pvalloc(size))
}

unsafe extern "C" fn free(block: *mut c_void, stack: u64, frame: u64) {
    let address = block.addr();
    if let Some(id) = pool::find(address) {
        operators::check_free(id, address, stack, frame);
        free_guarded(id, address, stack, frame);
        return;
    }
    if block.is_null() || (next_alloc::may_be_boot() && next_alloc::is_boot(block)) {
        return;
    }
    if is_strict() && is_no_block(address, stack, frame) {
        return;
    }
    next_alloc::free(block);
}

/// Returns the call tree node of the program's call.
fn node(stack: u64, frame: u64) -> u32 {
    threads::enter().map_or(ROOT, |entered| {
        let node = entered.thread().node(at(stack, frame));
        threads::leave(entered);
        node
    })
}

fn free_guarded(id: Id, address: usize, stack: u64, frame: u64) {
    if !release(id, address, stack, frame) {
        return;
    }
    let broken = pool::broken(id);
    if let Some(place) = broken {
        tell_broken(id, place, node(stack, frame), access::WRITTEN_BEFORE_FREE);
    }
    match threads::enter() {
        Some(entered) => {
            let thread = entered.thread();
            pool::free(id, thread.node(at(stack, frame)), number(thread), true);
            threads::leave(entered);
        }
        None => pool::free(id, ROOT, kernel::thread(), false),
    }
    if broken.is_some() {
        tell::after_a_call();
    }
}

/// Claims an object that is to be freed. If the address is not that of a live object, reports an
/// error, ends the program unless it is set to continue, and returns false.
fn release(id: Id, address: usize, stack: u64, frame: u64) -> bool {
    let Err(why) = pool::free_object(id, address) else { return true };
    let bug = match why {
        NotFreed::Freed => bug::DOUBLE_FREE,
        NotFreed::NoObject => bug::INVALID_FREE,
    };
    tell_free(bug, address, pool::meant(address).map(|(id, _)| id), node(stack, frame));
    false
}

fn tell_free(bug: u64, address: usize, object: Option<Id>, node: u32) {
    let access = access::FREE;
    tell::tell(&tell::ObjectBug {
        object,
        ..tell::ObjectBug::new(bug, access, address, node, goes_on())
    });
    tell::after_a_call();
}

fn tell_broken(id: Id, address: usize, node: u32, access: u64) {
    let is_before = address < id.slot().address.load(Relaxed);
    let bug = if is_before { bug::UNDERFLOW } else { bug::OVERFLOW };
    let goes_on = goes_on() || access == access::WRITTEN_BEFORE_END;
    tell::tell(&tell::ObjectBug {
        object: Some(id),
        ..tell::ObjectBug::new(bug, access, address, node, goes_on)
    });
}

/// Returns true, after reporting the error, for an address that `malloc` cannot have returned: it
/// is unaligned, is on the stack, is in the data of an ELF object, is unmapped, or is at the start
/// of a page without a block header before it.
fn is_no_block(address: usize, stack: u64, frame: u64) -> bool {
    let has_no_header = || {
        IS_GLIBC.load(Relaxed) != 0
            && address.is_multiple_of(pool::page())
            && !has_glibc_header(address)
    };
    let is_none = !address.is_multiple_of(ALIGN)
        || modules::find(address as u64).is_some()
        || (address as u64 >= stack && is_on_stack(address as u64, stack))
        || !kernel::is_mapped(address & !(pool::page() - 1), pool::page())
        || has_no_header();
    if is_none {
        tell_free(bug::INVALID_FREE, address, None, node(stack, frame));
    }
    is_none
}

/// True if the word before an address can be the size of a glibc chunk. The page that contains the
/// word can be unmapped, unreadable, or part of any other mapping.
fn has_glibc_header(address: usize) -> bool {
    /// Mask of the flags in the lowest bits of a chunk size.
    const FLAGS: usize = 7;
    /// Size in bytes of the smallest chunk.
    const MIN_CHUNK: usize = 4 * size_of::<usize>();
    let before = address.wrapping_sub(size_of::<usize>());
    let mut size = [0; size_of::<usize>()];
    match kernel::read_own(before, &mut size) {
        Ok(()) => {
            let size = usize::from_ne_bytes(size) & !FLAGS;
            size >= MIN_CHUNK && size.is_multiple_of(ALIGN)
        }
        Err(kernel::Errno(libc::EFAULT)) => false,
        // A seccomp filter can forbid `process_vm_readv`.
        Err(_) => kernel::is_mapped(before & !(pool::page() - 1), pool::page()),
    }
}

/// True if an address above the stack pointer is on the same stack. Other memory may directly
/// follow a stack, so only stacks with a known end are checked: the first thread's stack, and a
/// stack that ends at the control block of this thread.
fn is_on_stack(address: u64, stack: u64) -> bool {
    /// Maximum distance in bytes from the stack pointer.
    const FAR: u64 = 64 << 20;
    let ends = [next_alloc::thread_data(), next_alloc::first_stack_end()];
    if address - stack > FAR || !ends.iter().any(|&end| address < end) {
        return false;
    }
    stacks::mapping(stack).is_some_and(|(low, high)| {
        ends.iter().any(|&end| low <= stack && end <= high && (stack..end).contains(&address))
    })
}

unsafe extern "C" fn realloc(old: *mut c_void, size: usize, stack: u64, frame: u64) -> *mut c_void {
    let address = old.addr();
    if old.is_null() {
        return guarded(size, ALIGN, stack, frame)
            .unwrap_or_else(|| next_alloc::realloc(old, size));
    }
    if next_alloc::may_be_boot() && next_alloc::is_boot(old) {
        return begin::from_boot(old, size);
    }
    let Some(id) = pool::find(address) else {
        if is_strict() && is_no_block(address, stack, frame) {
            return std::ptr::null_mut();
        }
        // SAFETY: the program passes a block of the next allocator.
        return unsafe { realloc_other(old, size, stack, frame) };
    };
    let length = match pool::length(id, address) {
        Some(length) => length,
        None => {
            release(id, address, stack, frame);
            return std::ptr::null_mut();
        }
    };
    operators::check_free(id, address, stack, frame);
    if size == 0 {
        // Size 0 frees the block, as in the C library.
        free_guarded(id, address, stack, frame);
        return std::ptr::null_mut();
    }
    let new = guarded(size, ALIGN, stack, frame).unwrap_or_else(|| next_alloc::malloc(size));
    if !new.is_null() {
        // SAFETY: both objects are live, and have at least the given number of bytes.
        unsafe { copy(old, new, length.min(size)) };
        free_guarded(id, address, stack, frame);
    }
    new
}

unsafe fn copy(from: *const c_void, to: *mut c_void, length: usize) {
    // SAFETY: the caller guarantees that both blocks are different and have `length` bytes.
    unsafe { std::ptr::copy_nonoverlapping(from.cast::<u8>(), to.cast::<u8>(), length) };
}

unsafe fn realloc_other(old: *mut c_void, size: usize, stack: u64, frame: u64) -> *mut c_void {
    let object = if size == 0 { None } else { guarded(size, ALIGN, stack, frame) };
    let Some(new) = object else { return next_alloc::realloc(old, size) };
    // SAFETY: the block is live.
    let length = unsafe { malloc_usable_size(old) }.min(size);
    // SAFETY: both blocks are live, and have at least `length` bytes.
    unsafe { copy(old, new, length) };
    next_alloc::free(old);
    new
}

static USABLE_SIZE: AtomicPtr<c_void> = AtomicPtr::new(std::ptr::null_mut());
static FORK: AtomicPtr<c_void> = AtomicPtr::new(std::ptr::null_mut());

/// Returns the usable size of a block in bytes.
///
/// # Safety
/// The requirements of the C library's function.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub(crate) unsafe extern "C" fn malloc_usable_size(block: *mut c_void) -> usize {
    let address = block.addr();
    if let Some(id) = pool::find(address) {
        return pool::length(id, address).unwrap_or(0);
    }
    let function = aux_hooks::behind(&USABLE_SIZE, c"malloc_usable_size");
    if function.is_null() || block.is_null() {
        return 0;
    }
    type UsableSizeFn = unsafe extern "C" fn(*mut c_void) -> usize;
    // SAFETY: the symbol of this name has this type.
    let function = unsafe { std::mem::transmute::<*mut c_void, UsableSizeFn>(function) };
    // SAFETY: the program passes a block of the C library, or NULL.
    unsafe { function(block) }
}

/// Creates a child process, which inherits the guarded objects.
///
/// # Safety
/// The requirements of the C library's function.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub(crate) unsafe extern "C" fn fork() -> c_int {
    let function = aux_hooks::behind(&FORK, c"fork");
    if function.is_null() {
        return -1;
    }
    // SAFETY: the symbol of this name has this type.
    let function =
        unsafe { std::mem::transmute::<*mut c_void, unsafe extern "C" fn() -> c_int>(function) };
    let entered = if is_on() { threads::enter() } else { None };
    let Some(entered) = entered else {
        // SAFETY: `fork` has no arguments, and the program called it at this point.
        return unsafe { function() };
    };
    pool::hold_for_fork();
    // SAFETY: `fork` has no arguments, and the program called it at this point. The lock of the
    // pool is held.
    let result = unsafe { function() };
    // SAFETY: this thread, or the parent's thread of which it is a copy, acquired the lock above.
    unsafe { pool::go_on_after_fork() };
    // In the child, this thread's data are zero-filled. The child is set up at once, because freed
    // objects must stay inaccessible.
    if result == 0 {
        let _ = begin::is_recording();
    } else {
        threads::leave(entered);
    }
    result
}

/// Runs at the normal exit of the program.
#[cfg(not(test))]
#[used]
#[unsafe(link_section = ".fini_array")]
static AT_END_OF_PROGRAM: unsafe extern "C" fn() = at_end;

unsafe extern "C" fn at_end() {
    // `is_recording` sets up a child of `fork` that has not allocated yet.
    if RATE.load(Relaxed) == 0 || !begin::is_recording() {
        return;
    }
    pool::each_live(|id| {
        if let Some(place) = pool::broken(id) {
            tell_broken(id, place, ROOT, access::WRITTEN_BEFORE_END);
        }
    });
    tell::end();
}
