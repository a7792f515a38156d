//! The next allocator: functions that a program would call without this library.

use std::arch::global_asm;
use std::ffi::{CStr, c_void};
use std::sync::atomic::{
    AtomicBool, AtomicPtr, AtomicU8, AtomicUsize, Ordering::Acquire, Ordering::Relaxed,
    Ordering::Release,
};

use pagewise_heaplog::glibc_chunk;

use crate::kernel;
use crate::linker;
use crate::modules::{self, FindObject};
use crate::stubs::{EntryFunction, FUNCTIONS};

// Weak symbols of functions and data that older C libraries lack: their addresses are 0 there.
global_asm!(
    ".weak __libc_malloc",
    ".weak __libc_free",
    ".weak __libc_calloc",
    ".weak __libc_realloc",
    ".weak __libc_memalign",
    ".weak __libc_valloc",
    ".weak __libc_pvalloc",
    ".weak __libc_stack_end",
    ".pushsection .data.rel.pw_weak,\"aw\"",
    ".balign 8",
    ".hidden pw_weak",
    ".globl pw_weak",
    ".type pw_weak, @object",
    ".size pw_weak, 64",
    "pw_weak:",
    ".quad __libc_malloc, __libc_free, __libc_calloc, __libc_realloc, __libc_memalign",
    ".quad __libc_valloc, __libc_pvalloc, __libc_stack_end",
    ".popsection",
);

unsafe extern "C" {
    #[link_name = "pw_weak"]
    static WEAK: [usize; 8];
}

fn weak(index: usize) -> Option<*const c_void> {
    // SAFETY: the table has eight words, which the loader wrote before any code of this library
    // ran.
    let address = unsafe { WEAK.get(index).copied() }?;
    (address != 0).then(|| std::ptr::with_exposed_provenance(address))
}

/// The next `malloc` and the next `free`, to which stubs jump directly. [`OTHERS`] contains all
/// next functions in the order of [`EntryFunction`].
pub(crate) static MALLOC: AtomicPtr<c_void> = AtomicPtr::new(std::ptr::null_mut());
pub(crate) static FREE: AtomicPtr<c_void> = AtomicPtr::new(std::ptr::null_mut());
pub(crate) static OTHERS: [AtomicPtr<c_void>; FUNCTIONS] =
    [const { AtomicPtr::new(std::ptr::null_mut()) }; FUNCTIONS];

/// Provider of the program's `malloc`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum MallocOwner {
    /// The C library.
    Glibc,
    /// A library after this one in load order.
    Library,
    /// The program itself, or a library before this one in load order: the program does not call
    /// our `malloc`.
    Theirs,
}

const NAMES: [&CStr; FUNCTIONS] = [
    c"malloc",
    c"free",
    c"calloc",
    c"realloc",
    c"memalign",
    c"aligned_alloc",
    c"posix_memalign",
    c"valloc",
    c"pvalloc",
];

/// Finds the next functions.
pub(crate) fn resolve() -> MallocOwner {
    for (index, name) in NAMES.iter().enumerate() {
        // Allocations during the lookup are served by the boot allocator.
        let found = linker::next(name);
        OTHERS[index].store(found, Relaxed);
    }
    let found = |function: EntryFunction| OTHERS[function as usize].load(Relaxed);
    let is_glibc = same_code(found(EntryFunction::Malloc).cast_const(), weak(0))
        && same_code(found(EntryFunction::Free).cast_const(), weak(1));
    MALLOC.store(found(EntryFunction::Malloc), Relaxed);
    FREE.store(found(EntryFunction::Free), Relaxed);
    let first = linker::first(c"malloc");
    if !is_ours(first.cast_const()) {
        find_theirs(first, &NAMES);
        MallocOwner::Theirs
    } else {
        CALLED.store(true, Relaxed);
        if is_glibc { MallocOwner::Glibc } else { MallocOwner::Library }
    }
}

/// Stores the functions that the program calls, if they are in the same object as its `malloc`:
/// functions in other objects may belong to another allocator.
fn find_theirs(malloc: *mut c_void, names: &[&CStr; FUNCTIONS]) {
    let object = |address: *mut c_void| modules::find(address.addr() as u64).map(|it| it.start);
    let whose = object(malloc);
    for (to, name) in OTHERS.iter().zip(names) {
        let found = running(name);
        let is_theirs = !found.is_null() && object(found) == whose;
        to.store(if is_theirs { found } else { std::ptr::null_mut() }, Relaxed);
    }
    MALLOC.store(malloc, Relaxed);
    IS_THEIRS.store(1, Relaxed);
}

/// True if the program calls our functions because it was started with this library. In this case
/// the next functions were found at the start.
pub(crate) fn calls_us() -> bool {
    if !CALLED.load(Relaxed) {
        return false;
    }
    // The symbols of a library that was loaded later are in a scope of its own, not in the
    // program's.
    let program = linker::open_loaded(None);
    // SAFETY: the program itself is never unloaded, and a null handle is the constant
    // `RTLD_DEFAULT`.
    !unsafe { linker::dlsym(program, c"pagewise_heap_wants_pools") }.is_null()
}

/// True if this library's `malloc` was first in load order when the next functions were looked up.
static CALLED: AtomicBool = AtomicBool::new(false);

/// Function that a running program calls by this name; null if it is missing.
pub(crate) fn running(name: &CStr) -> *mut c_void {
    let found = linker::first(name);
    if !found.is_null() && describe(found).is_some_and(|(_, is_stub)| is_stub) {
        return linker::next(name);
    }
    found
}

/// Finds the functions that a running program calls. Returns true if they belong to the C library.
pub(crate) fn find_running() -> bool {
    find_theirs(running(c"malloc"), &NAMES);
    let found = |function: EntryFunction| OTHERS[function as usize].load(Relaxed).cast_const();
    FREE.store(found(EntryFunction::Free).cast_mut(), Relaxed);
    let is_glibc = same_code(found(EntryFunction::Malloc), weak(0))
        && same_code(found(EntryFunction::Free), weak(1));
    IS_THEIRS.store(u8::from(!is_glibc), Relaxed);
    is_glibc
}

static IS_THEIRS: AtomicU8 = AtomicU8::new(0);

/// True if the program has its own `malloc`.
pub(crate) fn is_theirs() -> bool {
    IS_THEIRS.load(Relaxed) != 0
}

/// The next functions found by the lookup.
pub(crate) fn found() -> [*mut (); FUNCTIONS] {
    std::array::from_fn(|index| OTHERS[index].load(Relaxed).cast())
}

/// Replaces the next functions.
pub(crate) fn replace(functions: [*mut (); FUNCTIONS]) {
    for (to, function) in OTHERS.iter().zip(functions) {
        to.store(function.cast(), Relaxed);
    }
    MALLOC.store(functions[EntryFunction::Malloc as usize].cast(), Relaxed);
    FREE.store(functions[EntryFunction::Free as usize].cast(), Relaxed);
}

/// True if the allocator has its own `operator new` that does not call an interposed `malloc`.
pub(crate) fn has_own_new() -> bool {
    let new = behind_ours(c"_Znwm", &[]);
    let object = |address: usize| modules::find(address as u64).map(|it| it.start);
    !new.is_null() && object(new.addr()) == object(MALLOC.load(Relaxed).addr())
}

/// Function that a program would call without this library by a name that this library also
/// exports: the program's own, or that of a later library. If both are missing, the function of
/// one of `libraries` that is loaded in a local scope. Null if it is missing.
pub(crate) fn behind_ours(name: &CStr, libraries: &[&CStr]) -> *mut c_void {
    let first = linker::first(name);
    if !first.is_null() && !is_ours(first) {
        return first;
    }
    let next = linker::next(name);
    if !next.is_null() {
        return next;
    }
    for library in libraries {
        let handle = linker::open_loaded(Some(library));
        if !handle.is_null() {
            // SAFETY: the handle is that of an open library.
            let found = unsafe { linker::dlsym(handle, name) };
            if !found.is_null() {
                return found;
            }
        }
    }
    std::ptr::null_mut()
}

/// True if programs that call this name call our function and not their own.
pub(crate) fn is_called_ours(name: &CStr) -> bool {
    let first = linker::first(name);
    !first.is_null() && is_ours(first)
}

/// True if the function at `found`, which was looked up by name, is ours. A comparison with the
/// address of our own function is not possible, because the loader also looks up that address by
/// name.
fn is_ours(found: *const c_void) -> bool {
    let Some((theirs, is_stub)) = describe(found) else { return true };
    let own: *const c_void = (resolve as *const ()).cast();
    let is_same = describe(own).is_none_or(|(own, _)| std::ptr::eq(own, theirs));
    // Such a stub calls the function of this library.
    is_same || is_stub
}

/// Start address of the file that contains a function, and true if the function is only a stub. A
/// program that is not position-independent has a stub for each function of another file whose
/// address it uses.
fn describe(address: *const c_void) -> Option<(*const c_void, bool)> {
    type Describe = unsafe extern "C" fn(
        *const c_void,
        *mut libc::Dl_info,
        *mut *const libc::Elf64_Sym,
        i32,
    ) -> i32;
    const SYMBOL: i32 = 1;
    let describe = linker::first(c"dladdr1");
    // SAFETY: the symbol of this name has this type; a null pointer becomes `None`.
    let describe = unsafe { std::mem::transmute::<*mut c_void, Option<Describe>>(describe) };
    // musl lacks this function. Programs of musl also call functions of other files through stubs,
    // whose addresses are in the program.
    let Some(describe) = describe else {
        let object = modules::find(address.addr() as u64)?;
        let is_program = modules::path(&object).is_some_and(<[u8]>::is_empty);
        return Some((std::ptr::without_provenance(object.start), is_program && is_stub(address)));
    };
    let mut info = std::mem::MaybeUninit::<libc::Dl_info>::zeroed();
    let mut symbol: *const libc::Elf64_Sym = std::ptr::null();
    // SAFETY: the function writes its results to `info` and `symbol`.
    let found = unsafe { describe(address, info.as_mut_ptr(), &raw mut symbol, SYMBOL) };
    // SAFETY: all-zero bytes are a valid `Dl_info`, and the call may have written to it.
    let base = (found != 0).then(|| unsafe { info.assume_init() }.dli_fbase)?;
    // SAFETY: the symbol is in the object's own symbol table, which stays mapped.
    let is_stub = !symbol.is_null() && unsafe { (*symbol).st_shndx } == 0;
    Some((base.cast_const(), is_stub))
}

/// True if the code at `function` is an indirect jump through a word in memory.
fn is_stub(function: *const c_void) -> bool {
    let mut code = [0; 11];
    if kernel::read_own(function.addr(), &mut code).is_err() {
        return false;
    }
    // Some linkers add `endbr64` and the prefix `bnd`.
    let code = code.strip_prefix(b"\xf3\x0f\x1e\xfa").unwrap_or(&code);
    code.strip_prefix(b"\xf2").unwrap_or(code).starts_with(b"\xff\x25")
}

fn same_code(found: *const c_void, weak: Option<*const c_void>) -> bool {
    weak.is_some_and(|weak| std::ptr::eq(found, weak))
}

/// The loader's function that finds loaded objects; `None` before glibc 2.35 and with musl.
pub(crate) fn find_object() -> Option<FindObject> {
    static FOUND: AtomicPtr<c_void> = AtomicPtr::new(std::ptr::null_mut());
    static WAS_SOUGHT: AtomicBool = AtomicBool::new(false);
    if !WAS_SOUGHT.load(Acquire) {
        FOUND.store(linker::first(c"_dl_find_object"), Relaxed);
        WAS_SOUGHT.store(true, Release);
    }
    // SAFETY: the symbol of this name has this type since glibc 2.35; a null pointer becomes
    // `None`.
    unsafe { std::mem::transmute::<*mut c_void, Option<FindObject>>(FOUND.load(Relaxed)) }
}

/// End address of the first thread's stack; 0 if unknown.
pub(crate) fn first_stack_end() -> u64 {
    let Some(variable) = weak(7) else { return 0 };
    // SAFETY: the loader's variable contains a pointer.
    unsafe { variable.cast::<usize>().read() as u64 }
}

/// Thread pointer: the address of this thread's control block.
pub(crate) fn thread_data() -> u64 {
    let address: u64;
    // SAFETY: by the ABI of thread-local storage, the first word of the control block is its own
    // address.
    unsafe {
        std::arch::asm!("mov {}, fs:[0]", out(reg) address, options(nostack, readonly, preserves_flags))
    };
    address
}

/// Targets of the stubs without a recording: the next functions.
pub(crate) fn targets() -> [*mut (); FUNCTIONS] {
    std::array::from_fn(|index| match index {
        1 if may_be_boot() => checked_free as *mut (),
        _ => OTHERS[index].load(Relaxed).cast(),
    })
}

macro_rules! call {
    ($function:expr, $kind:ty, $($argument:expr),*) => {{
        let function = OTHERS[$function as usize].load(Relaxed);
        if function.is_null() {
            std::ptr::null_mut()
        } else {
            // SAFETY: the symbol of this name has this type.
            let function = unsafe { std::mem::transmute::<*mut c_void, $kind>(function) };
            // SAFETY: the program called the hooked function with these arguments.
            unsafe { function($($argument),*) }
        }
    }};
}

type OneArgumentFn = unsafe extern "C" fn(usize) -> *mut c_void;
type Two = unsafe extern "C" fn(usize, usize) -> *mut c_void;

#[inline(always)]
pub(crate) fn malloc(size: usize) -> *mut c_void {
    let function = MALLOC.load(Relaxed);
    // SAFETY: the symbol of this name has this type, and it was found before any call.
    let function = unsafe { std::mem::transmute::<*mut c_void, OneArgumentFn>(function) };
    // SAFETY: the program called the hooked function with this argument.
    unsafe { function(size) }
}

#[inline(always)]
pub(crate) fn calloc(count: usize, size: usize) -> *mut c_void {
    call!(EntryFunction::Calloc, Two, count, size)
}

#[inline(always)]
pub(crate) fn realloc(block: *mut c_void, size: usize) -> *mut c_void {
    call!(
        EntryFunction::Realloc,
        unsafe extern "C" fn(*mut c_void, usize) -> *mut c_void,
        block,
        size
    )
}

pub(crate) fn memalign(align: usize, size: usize) -> *mut c_void {
    call!(EntryFunction::Memalign, Two, align, size)
}

pub(crate) fn aligned_alloc(align: usize, size: usize) -> *mut c_void {
    call!(EntryFunction::AlignedAlloc, Two, align, size)
}

pub(crate) fn valloc(size: usize) -> *mut c_void {
    call!(EntryFunction::Valloc, OneArgumentFn, size)
}

pub(crate) fn pvalloc(size: usize) -> *mut c_void {
    call!(EntryFunction::Pvalloc, OneArgumentFn, size)
}

/// Calls the next `posix_memalign`, which writes the block to `to`. Returns 0 or the error number.
pub(crate) fn posix_memalign(to: *mut *mut c_void, align: usize, size: usize) -> i32 {
    let function = OTHERS[EntryFunction::PosixMemalign as usize].load(Relaxed);
    if function.is_null() {
        return libc::ENOMEM;
    }
    type PosixMemalignFn = unsafe extern "C" fn(*mut *mut c_void, usize, usize) -> i32;
    // SAFETY: the symbol of this name has this type.
    let function = unsafe { std::mem::transmute::<*mut c_void, PosixMemalignFn>(function) };
    // SAFETY: the program called the hooked function with these arguments.
    unsafe { function(to, align, size) }
}

#[inline(always)]
pub(crate) fn free(block: *mut c_void) {
    let function = FREE.load(Relaxed);
    // SAFETY: the symbol of this name has this type. It is null only before the first allocation.
    let function =
        unsafe { std::mem::transmute::<*mut c_void, unsafe extern "C" fn(*mut c_void)>(function) };
    // SAFETY: the program passes a block that it frees.
    unsafe { function(block) }
}

/// The word before a block: the size word of its chunk in glibc.
#[inline(always)]
pub(crate) fn glibc_size(address: u64) -> u64 {
    let header: *const u64 = std::ptr::with_exposed_provenance(address as usize - 8);
    // SAFETY: the word before a live block of glibc is its header.
    unsafe { header.read_volatile() }
}

/// Length in bytes of the mapping of a block, if glibc created a mapping for this block only;
/// `None` for other blocks.
pub(crate) fn glibc_mapped(address: u64) -> Option<u64> {
    let word = glibc_size(address);
    let length = || glibc_chunk::size(word) + glibc_chunk::behind_mapped(address, word);
    glibc_chunk::is_mapped(word).then(length)
}

/// Usable size in bytes of a block of the C library, from its header. Requires that [`has_headers`]
/// has verified the format.
#[inline(always)]
pub(crate) fn glibc_room(address: u64) -> u64 {
    glibc_chunk::room(address, glibc_size(address))
}

/// True if the sizes in block headers agree with the results of `malloc_usable_size`.
pub(crate) fn has_headers() -> bool {
    type UsableSize = unsafe extern "C" fn(*mut c_void) -> usize;
    // A call by name would reach the function of this library.
    let usable = behind_ours(c"malloc_usable_size", &[]);
    // SAFETY: the symbol of this name has this type; a null pointer becomes `None`.
    let usable = unsafe { std::mem::transmute::<*mut c_void, Option<UsableSize>>(usable) };
    let Some(usable) = usable else { return false };
    // The test uses no large block: its free would raise the C library's threshold for mappings
    // (M_MMAP_THRESHOLD).
    [24_usize, 1000].iter().all(|&size| {
        let block = malloc(size);
        if block.is_null() {
            return false;
        }
        // SAFETY: the block is live.
        let said = unsafe { usable(block) };
        let same = glibc_room(block.addr() as u64) == said as u64;
        free(block);
        same
    })
}

/// Number of bytes of the boot allocator, which serves allocations during the lookup of the next
/// functions. The loader allocates a few bytes, for messages.
const BOOT: usize = 64 << 10;
#[repr(C, align(64))]
struct Boot(std::cell::UnsafeCell<[u8; BOOT]>);
// SAFETY: an atomic counter hands out each piece of the memory only once.
unsafe impl Sync for Boot {}
static BOOT_MEMORY: Boot = Boot(std::cell::UnsafeCell::new([0; BOOT]));
static BOOT_USED: AtomicUsize = AtomicUsize::new(0);
/// 1 if the boot allocator was used.
static IN_BOOT: AtomicU8 = AtomicU8::new(0);

fn boot(size: usize, align: usize) -> *mut c_void {
    IN_BOOT.store(1, Relaxed);
    let align = align.clamp(16, 1 << 16);
    // Each block is preceded by its size, which `realloc` needs.
    let used = BOOT_USED.fetch_add(size.saturating_add(16 + align).next_multiple_of(16), Relaxed);
    let base = BOOT_MEMORY.0.get().cast::<u8>();
    let start = (base.addr() + used + 16).next_multiple_of(align) - base.addr();
    if start.saturating_add(size) > BOOT {
        return std::ptr::null_mut();
    }
    let block = base.wrapping_add(start);
    // SAFETY: the words before the block belong to the same piece.
    unsafe { block.wrapping_sub(16).cast::<usize>().write(size) };
    block.cast()
}

/// True if a block belongs to the boot allocator.
pub(crate) fn is_boot(block: *const c_void) -> bool {
    let base = BOOT_MEMORY.0.get().addr();
    (base..base + BOOT).contains(&block.addr())
}

/// Size in bytes of a block of the boot allocator.
pub(crate) fn boot_size(block: *const c_void) -> usize {
    // SAFETY: each block of the boot allocator is preceded by its size.
    unsafe { block.cast::<u8>().wrapping_sub(16).cast::<usize>().read() }
}

unsafe extern "C" fn boot_one(size: usize) -> *mut c_void {
    boot(size, 16)
}

unsafe extern "C" fn boot_calloc(count: usize, size: usize) -> *mut c_void {
    // The boot allocator never reuses memory, so a block is zero-filled.
    boot(count.saturating_mul(size), 16)
}

unsafe extern "C" fn boot_aligned(align: usize, size: usize) -> *mut c_void {
    boot(size, align)
}

unsafe extern "C" fn boot_free(_block: *mut c_void) {}

unsafe extern "C" fn boot_realloc(block: *mut c_void, size: usize) -> *mut c_void {
    let new = boot(size, 16);
    if is_boot(block) && !new.is_null() {
        let old = boot_size(block);
        // SAFETY: both blocks have at least this number of bytes.
        unsafe {
            std::ptr::copy_nonoverlapping(block.cast::<u8>(), new.cast::<u8>(), old.min(size))
        };
    }
    new
}

unsafe extern "C" fn boot_posix_memalign(to: *mut *mut c_void, align: usize, size: usize) -> i32 {
    let block = boot(size, align);
    if block.is_null() {
        return libc::ENOMEM;
    }
    // SAFETY: the program passes a pointer to which the address may be written.
    unsafe { to.write(block) };
    0
}

/// Targets of the stubs during the lookup: the functions of the boot allocator.
pub(crate) fn boot_targets() -> [*mut (); FUNCTIONS] {
    [
        boot_one as *mut (),
        boot_free as *mut (),
        boot_calloc as *mut (),
        boot_realloc as *mut (),
        boot_aligned as *mut (),
        boot_aligned as *mut (),
        boot_posix_memalign as *mut (),
        boot_one as *mut (),
        boot_one as *mut (),
    ]
}

/// Calls the next `free`, except for blocks of the boot allocator, which are never freed.
unsafe extern "C" fn checked_free(block: *mut c_void) {
    if !is_boot(block) {
        free(block);
    }
}

/// True if the boot allocator has allocated blocks.
#[inline(always)]
pub(crate) fn may_be_boot() -> bool {
    IN_BOOT.load(Relaxed) != 0
}
