//! `pagewise/pages.h`: the functions for runs of pages.

use std::alloc::Layout;
use std::ffi::{CStr, c_char, c_int, c_uint, c_void};
use std::mem::offset_of;
use std::ptr::{self, NonNull};

use pagewise_alloc::pages::{PAGE, run_size};
use pagewise_alloc::source::{MapRefused, MappedSource, SystemOrBuffer, UnnamedFile};
use pagewise_alloc::{Os, Pages, Source, SourceBlock};

use crate::common::{call_sites, functions, layout, pointer, site};
use crate::failure::{Failure, call, or_abort};
use crate::home;

/// Source of the memory of a pool of pages.
#[derive(Debug)]
pub enum PwPagesSource {
    /// A buffer of the caller.
    Buffer(SystemOrBuffer),
    /// Memory of the system.
    Mapped(MappedSource),
    /// Memory of a file without a name.
    File(UnnamedFile),
}

/// Calls a method of the source that the enum contains.
macro_rules! of_kind {
    ($kind:ident, $source:ident => $call:expr) => {
        match $kind {
            PwPagesSource::Buffer($source) => $call,
            PwPagesSource::Mapped($source) => $call,
            PwPagesSource::File($source) => $call,
        }
    };
}

// SAFETY: every kind of source gives a block to only one caller until the block is released.
unsafe impl Source for PwPagesSource {
    fn take(&self, layout: Layout) -> Option<SourceBlock> {
        of_kind!(self, source => source.take(layout))
    }

    unsafe fn give_back(&self, block: SourceBlock) {
        // SAFETY: the caller passes a block of this source.
        of_kind!(self, source => unsafe { source.give_back(block) });
    }

    fn ahead(&self, align: usize) -> usize {
        of_kind!(self, source => source.ahead(align))
    }

    fn discards(&self) -> bool {
        of_kind!(self, source => source.discards())
    }

    unsafe fn discard(&self, start: NonNull<u8>, size: usize) -> bool {
        // SAFETY: the caller passes pages of a block of this source.
        of_kind!(self, source => unsafe { source.discard(start, size) })
    }

    fn resident(&self, start: NonNull<u8>, size: usize) -> usize {
        of_kind!(self, source => source.resident(start, size))
    }
}

/// `pw_pages`.
pub type CPages = Pages<PwPagesSource>;

/// `pw_pages_options`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct PwPagesOptions {
    folder: *const c_char,
    nodes: u64,
    flags: c_uint,
    huge_power: c_uint,
}

/// `pw_pages_usage`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct PwPagesUsage {
    live: usize,
    idle: usize,
    held: usize,
}

const _: () = assert!(size_of::<PwPagesOptions>() == 24 && offset_of!(PwPagesOptions, nodes) == 8);
const _: () = assert!(
    offset_of!(PwPagesOptions, flags) == 16 && offset_of!(PwPagesOptions, huge_power) == 20
);
const _: () = assert!(size_of::<PwPagesUsage>() == 24 && offset_of!(PwPagesUsage, held) == 16);

/// A flag `PW_PAGES_*` of the header, and the function that adds its property to a source.
struct PagesFlag {
    bit: c_uint,
    with: fn(MappedSource) -> MappedSource,
}

const FLAGS: &[PagesFlag] = &[
    PagesFlag { bit: 1, with: MappedSource::transparent_huge },
    PagesFlag { bit: 2, with: MappedSource::populated },
    PagesFlag { bit: 4, with: MappedSource::locked },
];

/// `PW_PAGES_GUARDED`: makes the pool guarded, and does not change the kind of its memory.
const GUARDED: c_uint = 8;

impl From<MapRefused> for Failure {
    fn from(refused: MapRefused) -> Failure {
        Failure::new(refused.number(), refused.to_string())
    }
}

/// Returns the source that the options select.
///
/// # Safety
/// The folder is NULL or a C string.
unsafe fn kind(options: &PwPagesOptions) -> Result<PwPagesSource, Failure> {
    let unknown = FLAGS.iter().fold(options.flags & !GUARDED, |left, flag| left & !flag.bit);
    if unknown != 0 {
        return Err(Failure::invalid(format!("flags has bits of no meaning: {unknown:#x}")));
    }
    let chosen = FLAGS.iter().filter(|flag| options.flags & flag.bit != 0);
    let mut mapped = chosen.fold(MappedSource::ANONYMOUS, |kind, flag| (flag.with)(kind));
    mapped = mapped.on_nodes(options.nodes);
    if options.huge_power != 0 {
        if options.flags & 1 != 0 {
            return Err(Failure::invalid("huge pages are transparent or reserved, not both"));
        }
        let power = u8::try_from(options.huge_power).unwrap_or(u8::MAX);
        mapped = mapped.reserved_huge(power);
    }
    if options.folder.is_null() {
        mapped.probe()?;
        return Ok(PwPagesSource::Mapped(mapped));
    }
    if mapped != MappedSource::ANONYMOUS {
        return Err(Failure::invalid("memory of a file cannot have another kind"));
    }
    // SAFETY: the caller passes a C string, and it is not NULL.
    Ok(PwPagesSource::File(UnnamedFile::unnamed(unsafe { CStr::from_ptr(options.folder) })?))
}

/// Returns the pool behind a pointer.
///
/// # Safety
/// `pages` is a `pw_pages` that was created and not destroyed.
unsafe fn pool<'a>(pages: *const CPages) -> &'a CPages {
    // SAFETY: the caller passes a live pool; any thread may use it.
    unsafe { &*pages }
}

/// See `pagewise/pages.h`.
///
/// # Safety
/// The pointers are NULL or what the header says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pw_pages_create(
    pages: *mut *mut CPages,
    options: *const PwPagesOptions,
) -> c_int {
    call(|| {
        if pages.is_null() {
            return Err(Failure::invalid("pages is NULL"));
        }
        // SAFETY: the header requires a writable address, and it is not NULL.
        unsafe { pages.write(ptr::null_mut()) };
        // SAFETY: the header requires options, or NULL.
        let kind = match unsafe { options.as_ref() } {
            // SAFETY: the header requires that the folder is NULL or a C string.
            Some(options) => unsafe { kind(options) }?,
            None => PwPagesSource::Mapped(MappedSource::ANONYMOUS),
        };
        // SAFETY: the header requires options, or NULL.
        let is_guarded =
            unsafe { options.as_ref() }.is_some_and(|options| options.flags & GUARDED != 0);
        let make = if is_guarded { Pages::guarded } else { Pages::unguarded };
        // The pool takes the memory of its runs from `kind`, but the `CPages` value itself lies in
        // memory of the system.
        let placed = home::place(SystemOrBuffer::system(), |_| make(kind));
        let placed = placed.ok_or_else(|| Failure::new(libc::ENOMEM, "no memory for the pool"))?;
        // SAFETY: the header requires a writable address; it was checked not to be NULL.
        unsafe { pages.write(placed.as_ptr()) };
        Ok(())
    })
}

/// See `pagewise/pages.h`.
///
/// # Safety
/// As the header says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pw_pages_create_in(buffer: *mut c_void, size: usize) -> *mut CPages {
    let Some(start) = NonNull::new(buffer.cast()) else { return ptr::null_mut() };
    // SAFETY: the header requires that the buffer is writable and that only the pool uses it.
    let memory = unsafe { SystemOrBuffer::buffer(start, size) };
    let placed = home::place(memory, |memory| Pages::unguarded(PwPagesSource::Buffer(memory)));
    placed.map_or(ptr::null_mut(), NonNull::as_ptr)
}

/// See `pagewise/pages.h`.
///
/// # Safety
/// As the header says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pw_pages_destroy(pages: *mut CPages) {
    let Some(placed) = NonNull::new(pages) else { return };
    // SAFETY: the header requires a live pool.
    let in_buffer =
        unsafe { pool(pages) }.with_source(|kind| matches!(kind, PwPagesSource::Buffer(_)));
    // SAFETY: the header requires a live pool, and the library placed it.
    let block = unsafe { home::end(placed) };
    if !in_buffer {
        // SAFETY: the pool lay in memory of the system, and has ended.
        unsafe { home::give_back_to_system(block) };
    }
}

/// See `pagewise/pages.h`.
#[unsafe(no_mangle)]
pub extern "C" fn pw_pages_size(size: usize) -> usize {
    run_size(size).unwrap_or(0)
}

call_sites! {
    see "pages.h";
    pw_pages_alloc(pages: *mut CPages, size: usize) -> *mut c_void => allocate, "rdx", "x2";
    pw_pages_free(pages: *mut CPages, run: *mut c_void, size: usize) => free, "rcx", "x3";
}

/// # Safety
/// As the header says.
unsafe extern "C" fn allocate(pages: *mut CPages, size: usize, caller: usize) -> *mut c_void {
    // SAFETY: the header requires a live pool.
    let pool = unsafe { pool(pages) };
    pointer(layout(size, 1).and_then(|layout| pool.allocate_at(layout, site(caller))))
}

/// # Safety
/// As the header says.
unsafe extern "C" fn free(pages: *mut CPages, run: *mut c_void, size: usize, caller: usize) {
    if let Some(run) = NonNull::new(run.cast()) {
        // SAFETY: the header requires a live pool.
        let pool = unsafe { pool(pages) };
        // SAFETY: the header requires a run of this pool with this size.
        or_abort(|| unsafe { pool.free_at(run, size, site(caller)) });
    }
}

/// See `pagewise/pages.h`.
///
/// # Safety
/// As the header says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pw_pages_zalloc(pages: *mut CPages, size: usize) -> *mut c_void {
    // SAFETY: the header requires a live pool.
    pointer(layout(size, 1).and_then(|layout| unsafe { pool(pages) }.allocate_zeroed(layout)))
}

/// See `pagewise/pages.h`.
///
/// # Safety
/// As the header says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pw_pages_aligned_alloc(
    pages: *mut CPages,
    align: usize,
    size: usize,
) -> *mut c_void {
    // SAFETY: the header requires a live pool.
    pointer(layout(size, align).and_then(|layout| unsafe { pool(pages) }.allocate(layout)))
}

/// See `pagewise/pages.h`.
///
/// # Safety
/// As the header says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pw_pages_free_part(pages: *mut CPages, start: *mut c_void, size: usize) {
    if let Some(start) = NonNull::new(start.cast()) {
        // SAFETY: the header requires a live pool.
        let pool = unsafe { pool(pages) };
        // SAFETY: the header requires pages of a run of this pool.
        or_abort(|| unsafe { pool.free_part(start, size) });
    }
}

/// See `pagewise/pages.h`.
///
/// # Safety
/// As the header says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pw_pages_extend(
    pages: *mut CPages,
    run: *mut c_void,
    old: usize,
    size: usize,
) -> c_int {
    let Some(run) = NonNull::new(run.cast()) else { return 0 };
    // SAFETY: the header requires a live pool.
    let pool = unsafe { pool(pages) };
    // SAFETY: the header requires a run of this pool with this size.
    c_int::from(unsafe { pool.extend(run, old, size) })
}

/// See `pagewise/pages.h`.
///
/// # Safety
/// As the header says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pw_pages_realloc(
    pages: *mut CPages,
    run: *mut c_void,
    old: usize,
    size: usize,
) -> *mut c_void {
    let Some(run) = NonNull::new(run.cast()) else {
        // SAFETY: the header requires a live pool.
        return unsafe { allocate(pages, size, 0) };
    };
    // SAFETY: the header requires a live pool.
    let pool = unsafe { pool(pages) };
    let Some(layout) = layout(old, PAGE) else { return ptr::null_mut() };
    // SAFETY: the header requires a run of this pool with this size.
    or_abort(|| pointer(unsafe { pool.reallocate(run, layout, size) }))
}

/// See `pagewise/pages.h`.
///
/// # Safety
/// As the header says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pw_pages_keep(pages: *mut CPages, percent: c_uint) {
    // SAFETY: the header requires a live pool.
    unsafe { pool(pages) }.keep(u8::try_from(percent).unwrap_or(u8::MAX));
}

functions! {
    see "pages.h", pool(*mut CPages);
    trim pw_pages_trim,
    set_name pw_pages_set_name,
    check pw_pages_check,
}

/// See `pagewise/pages.h`.
///
/// # Safety
/// As the header says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pw_pages_get_usage(pages: *mut CPages) -> PwPagesUsage {
    // SAFETY: the header requires a live pool.
    let usage = unsafe { pool(pages) }.usage();
    PwPagesUsage { live: usage.live, idle: usage.idle, held: usage.held }
}

/// See `pagewise/pages.h`.
#[unsafe(no_mangle)]
pub extern "C" fn pw_system_trim() {
    Os::trim();
}

/// See `pagewise/pages.h`.
#[unsafe(no_mangle)]
pub extern "C" fn pw_system_keep(percent: c_uint) {
    Os::keep(u8::try_from(percent).unwrap_or(u8::MAX));
}

#[cfg(test)]
mod tests {
    use super::*;

    const HEADER: &str = include_str!("../include/pagewise/pages.h");

    #[test]
    fn flags_are_those_of_the_header() {
        let defined = HEADER.lines().filter_map(|line| {
            let (_, value) = line.strip_prefix("#define PW_PAGES_")?.split_once(' ')?;
            value.split_once('u')?.0.parse::<c_uint>().ok()
        });
        let bits: Vec<c_uint> = FLAGS.iter().map(|flag| flag.bit).chain([GUARDED]).collect();
        assert_eq!(defined.collect::<Vec<_>>(), bits);
    }
}
