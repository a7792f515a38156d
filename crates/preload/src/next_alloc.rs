//! The next allocator: the functions that a program would call without this library.

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

// Functions and data of the C library that older ones lack: 0 there.
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
    // SAFETY: the table has eight words, which the loader wrote before any code ran.
    let address = unsafe { WEAK.get(index).copied() }?;
    (address != 0).then(|| std::ptr::with_exposed_provenance(address))
}

/// The next `malloc`. Stubs jump to it and to [`FREE`], so both have a variable of their own;
/// [`OTHERS`] has all functions in the order of [`EntryFunction`].
pub(crate) static MALLOC: AtomicPtr<c_void> = AtomicPtr::new(std::ptr::null_mut());
pub(crate) static FREE: AtomicPtr<c_void> = AtomicPtr::new(std::ptr::null_mut());
pub(crate) static OTHERS: [AtomicPtr<c_void>; FUNCTIONS] =
    [const { AtomicPtr::new(std::ptr::null_mut()) }; FUNCTIONS];

/// Provider of `malloc`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum MallocOwner {
    /// The C library.
    Glibc,
    /// A library that was loaded after this one.
    Library,
    /// The program itself, or a library before this one: the program does not call our `malloc`.
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
        // The boot allocator serves allocations of the look-up.
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

/// Finds the functions that the program calls, if they are in the object that has its `malloc`:
/// others may be another allocator's.
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

/// True if the program calls our functions: it was started with this library, and the next
/// functions were found then.
pub(crate) fn calls_us() -> bool {
    if !CALLED.load(Relaxed) {
        return false;
    }
    // A library that was loaded later has its names in a scope of its own, not in the program's.
    let program = linker::open_loaded(None);
    // SAFETY: the program itself is loaded, and stays; a null handle is a constant.
    !unsafe { linker::dlsym(program, c"pagewise_heap_wants_pools") }.is_null()
}

/// True if this library's `malloc` was the first one when the next functions were found.
static CALLED: AtomicBool = AtomicBool::new(false);

/// A function that a running program calls; null if it is missing.
pub(crate) fn running(name: &CStr) -> *mut c_void {
    let found = linker::first(name);
    if !found.is_null() && describe(found).is_some_and(|(_, is_stub)| is_stub) {
        return linker::next(name);
    }
    found
}

/// Finds the functions that a running program calls. Returns true if they are the C library's.
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

/// True if the program has a `malloc` of its own.
pub(crate) fn is_theirs() -> bool {
    IS_THEIRS.load(Relaxed) != 0
}

/// The next functions as they were found.
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

/// True if the allocator has an `operator new` of its own, which calls no `malloc` that could be
/// interposed.
pub(crate) fn has_own_new() -> bool {
    let new = behind_ours(c"_Znwm", &[]);
    let object = |address: usize| modules::find(address as u64).map(|it| it.start);
    !new.is_null() && object(new.addr()) == object(MALLOC.load(Relaxed).addr())
}

/// The function that a program would call by a name that this library exports too: the program's
/// own, or that of a later library, or else of one of these libraries that are loaded in a local
/// scope. Null if it is missing.
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
            // SAFETY: the handle is open.
            let found = unsafe { linker::dlsym(handle, name) };
            if !found.is_null() {
                return found;
            }
        }
    }
    std::ptr::null_mut()
}

/// True if programs call our function by this name, and not one of their own.
pub(crate) fn is_called_ours(name: &CStr) -> bool {
    let first = linker::first(name);
    !first.is_null() && is_ours(first)
}

/// True if a function that was found by its name is ours. Its address cannot be compared with that
/// of our own function of this name, which the loader looks up by name, too.
fn is_ours(found: *const c_void) -> bool {
    let Some((theirs, is_stub)) = describe(found) else { return true };
    let own: *const c_void = (resolve as *const ()).cast();
    let is_same = describe(own).is_none_or(|(own, _)| std::ptr::eq(own, theirs));
    // Such a stub leads to this library.
    is_same || is_stub
}

/// Start address of a function's file, and true if the function is only a stub: a program that is
/// not position-independent has one for each function of another file whose address it uses.
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
    // musl has no such function. Its programs call functions of other files by stubs, too, whose
    // address is the program's own.
    let Some(describe) = describe else {
        let object = modules::find(address.addr() as u64)?;
        let is_program = modules::path(&object).is_some_and(<[u8]>::is_empty);
        return Some((std::ptr::without_provenance(object.start), is_program && is_stub(address)));
    };
    let mut info = std::mem::MaybeUninit::<libc::Dl_info>::zeroed();
    let mut symbol: *const libc::Elf64_Sym = std::ptr::null();
    // SAFETY: the function writes what it found to both places.
    let found = unsafe { describe(address, info.as_mut_ptr(), &raw mut symbol, SYMBOL) };
    // SAFETY: all zeros is a value of it, and the call may have written over it.
    let base = (found != 0).then(|| unsafe { info.assume_init() }.dli_fbase)?;
    // SAFETY: symbols are of the object's own table, which stays.
    let is_stub = !symbol.is_null() && unsafe { (*symbol).st_shndx } == 0;
    Some((base.cast_const(), is_stub))
}

/// True if the code at a function's address is a jump through a word of memory.
fn is_stub(function: *const c_void) -> bool {
    let mut code = [0; 11];
    if kernel::read_own(function.addr(), &mut code).is_err() {
        return false;
    }
    // `endbr64` and the prefix `bnd`, which some linkers add.
    let code = code.strip_prefix(b"\xf3\x0f\x1e\xfa").unwrap_or(&code);
    code.strip_prefix(b"\xf2").unwrap_or(code).starts_with(b"\xff\x25")
}

fn same_code(found: *const c_void, weak: Option<*const c_void>) -> bool {
    weak.is_some_and(|weak| std::ptr::eq(found, weak))
}

/// The function that finds loaded objects; `None` before glibc 2.35, and of musl.
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

/// End of the first thread's stack, 0 if unknown.
pub(crate) fn first_stack_end() -> u64 {
    let Some(variable) = weak(7) else { return 0 };
    // SAFETY: the loader's variable is a pointer.
    unsafe { variable.cast::<usize>().read() as u64 }
}

/// The thread pointer: address of this thread's control block.
pub(crate) fn thread_data() -> u64 {
    let address: u64;
    // SAFETY: the first word there is its own address, by the ABI of thread-local storage.
    unsafe {
        std::arch::asm!("mov {}, fs:[0]", out(reg) address, options(nostack, readonly, preserves_flags))
    };
    address
}

/// Targets without a recording: the next functions.
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
            // SAFETY: the program called it with these arguments.
            unsafe { function($($argument),*) }
        }
    }};
}

type OneArgumentFn = unsafe extern "C" fn(usize) -> *mut c_void;
type Two = unsafe extern "C" fn(usize, usize) -> *mut c_void;

#[inline(always)]
pub(crate) fn malloc(size: usize) -> *mut c_void {
    let function = MALLOC.load(Relaxed);
    // SAFETY: the symbol of this name has this type; nothing comes here before it is found.
    let function = unsafe { std::mem::transmute::<*mut c_void, OneArgumentFn>(function) };
    // SAFETY: the program called it with this argument.
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

/// Writes the block to `to`. Returns 0 or the error number.
pub(crate) fn posix_memalign(to: *mut *mut c_void, align: usize, size: usize) -> i32 {
    let function = OTHERS[EntryFunction::PosixMemalign as usize].load(Relaxed);
    if function.is_null() {
        return libc::ENOMEM;
    }
    type PosixMemalignFn = unsafe extern "C" fn(*mut *mut c_void, usize, usize) -> i32;
    // SAFETY: the symbol of this name has this type.
    let function = unsafe { std::mem::transmute::<*mut c_void, PosixMemalignFn>(function) };
    // SAFETY: the program called it with these arguments.
    unsafe { function(to, align, size) }
}

#[inline(always)]
pub(crate) fn free(block: *mut c_void) {
    let function = FREE.load(Relaxed);
    // SAFETY: the symbol of this name has this type; it is null only before there is any block.
    let function =
        unsafe { std::mem::transmute::<*mut c_void, unsafe extern "C" fn(*mut c_void)>(function) };
    // SAFETY: the program frees the block.
    unsafe { function(block) }
}

/// The word before a block: the size word of its chunk.
#[inline(always)]
pub(crate) fn glibc_size(address: u64) -> u64 {
    let header: *const u64 = std::ptr::with_exposed_provenance(address as usize - 8);
    // SAFETY: the word before a live block is its header.
    unsafe { header.read_volatile() }
}

/// Length of a block's own mapping.
pub(crate) fn glibc_mapped(address: u64) -> Option<u64> {
    let word = glibc_size(address);
    let length = || glibc_chunk::size(word) + glibc_chunk::behind_mapped(address, word);
    glibc_chunk::is_mapped(word).then(length)
}

/// Usable size of a block of the C library, from its header; [`has_headers`] has verified the
/// format.
#[inline(always)]
pub(crate) fn glibc_room(address: u64) -> u64 {
    glibc_chunk::room(address, glibc_size(address))
}

/// True if the sizes in the headers of blocks are those that `malloc_usable_size` returns.
pub(crate) fn has_headers() -> bool {
    type UsableSize = unsafe extern "C" fn(*mut c_void) -> usize;
    // A call by name would come to the function of this library.
    let usable = behind_ours(c"malloc_usable_size", &[]);
    // SAFETY: the symbol of this name has this type; a null pointer becomes `None`.
    let usable = unsafe { std::mem::transmute::<*mut c_void, Option<UsableSize>>(usable) };
    let Some(usable) = usable else { return false };
    // No large block: its free would raise the threshold for mappings of the C library
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

/// Bytes of the boot allocator, which serves allocations while the next functions are looked up:
/// the loader needs some for a few messages.
const BOOT: usize = 64 << 10;
#[repr(C, align(64))]
struct Boot(std::cell::UnsafeCell<[u8; BOOT]>);
// SAFETY: pieces of it are handed out once each, by an atomic counter.
unsafe impl Sync for Boot {}
static BOOT_MEMORY: Boot = Boot(std::cell::UnsafeCell::new([0; BOOT]));
static BOOT_USED: AtomicUsize = AtomicUsize::new(0);
/// 1 if the boot allocator was used.
static IN_BOOT: AtomicU8 = AtomicU8::new(0);

fn boot(size: usize, align: usize) -> *mut c_void {
    IN_BOOT.store(1, Relaxed);
    let align = align.clamp(16, 1 << 16);
    // Sizes lie before the blocks, for realloc.
    let used = BOOT_USED.fetch_add(size.saturating_add(16 + align).next_multiple_of(16), Relaxed);
    let base = BOOT_MEMORY.0.get().cast::<u8>();
    let start = (base.addr() + used + 16).next_multiple_of(align) - base.addr();
    if start.saturating_add(size) > BOOT {
        return std::ptr::null_mut();
    }
    let block = base.wrapping_add(start);
    // SAFETY: the words before the block are of this piece.
    unsafe { block.wrapping_sub(16).cast::<usize>().write(size) };
    block.cast()
}

/// True if a block is of the boot allocator.
pub(crate) fn is_boot(block: *const c_void) -> bool {
    let base = BOOT_MEMORY.0.get().addr();
    (base..base + BOOT).contains(&block.addr())
}

/// Size of a block of the boot allocator.
pub(crate) fn boot_size(block: *const c_void) -> usize {
    // SAFETY: the size lies before each block of that memory.
    unsafe { block.cast::<u8>().wrapping_sub(16).cast::<usize>().read() }
}

unsafe extern "C" fn boot_one(size: usize) -> *mut c_void {
    boot(size, 16)
}

unsafe extern "C" fn boot_calloc(count: usize, size: usize) -> *mut c_void {
    // The boot allocator uses no memory twice, so a block is zero-filled.
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
        // SAFETY: both blocks have as many bytes.
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
    // SAFETY: the caller's pointer is to be written.
    unsafe { to.write(block) };
    0
}

/// Functions of the boot allocator.
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

/// `free` that ignores blocks of the boot allocator.
unsafe extern "C" fn checked_free(block: *mut c_void) {
    if !is_boot(block) {
        free(block);
    }
}

/// True if there are blocks of the boot allocator.
#[inline(always)]
pub(crate) fn may_be_boot() -> bool {
    IN_BOOT.load(Relaxed) != 0
}
