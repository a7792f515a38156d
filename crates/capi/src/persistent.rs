//! `pagewise/persistent.h`: a heap in a file. Its transaction is paused between calls.

use std::alloc::Layout;
use std::ffi::{CStr, c_char, c_int, c_uint, c_void};
use std::mem::offset_of;
use std::ptr;

use pagewise_alloc::persistent::{
    Durability, Persistent, PersistentError, PersistentOptions, Rel, Tx,
};

use crate::failure::{Failure, call};

/// `pw_persistent`.
#[repr(C)]
#[derive(Debug)]
pub struct CHeap {
    base: *mut u8,
    first: u64,
    end: u64,
    cold: *mut Persistent,
}

/// `pw_persistent_options`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct PwPersistentOptions {
    capacity: u64,
    log: u64,
    flags: c_uint,
}

/// `pw_persistent_usage`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct PwPersistentUsage {
    blocks: u64,
    bytes: u64,
    file: u64,
}

const _: () = assert!(size_of::<CHeap>() == 32 && offset_of!(CHeap, first) == 8);
const _: () = assert!(offset_of!(CHeap, end) == 16 && offset_of!(CHeap, cold) == 24);
const _: () =
    assert!(size_of::<PwPersistentOptions>() == 24 && offset_of!(PwPersistentOptions, flags) == 16);
const _: () =
    assert!(size_of::<PwPersistentUsage>() == 24 && offset_of!(PwPersistentUsage, file) == 16);

/// A `PW_PERSISTENT_*` of the header, and what it sets.
struct PersistentFlag {
    bit: c_uint,
    set: fn(&mut PersistentOptions),
}

const FLAGS: &[PersistentFlag] = &[
    PersistentFlag { bit: 1, set: |options| options.durability = Durability::Power },
    PersistentFlag { bit: 2, set: |options| options.wait = true },
    PersistentFlag { bit: 4, set: |options| options.create = false },
    PersistentFlag { bit: 8, set: |options| options.check_data = true },
];

impl From<PersistentError> for Failure {
    fn from(error: PersistentError) -> Failure {
        let number = match error {
            PersistentError::Os { errno, .. } => errno,
            PersistentError::Busy | PersistentError::Named => libc::EBUSY,
            PersistentError::Foreign => libc::EMEDIUMTYPE,
            PersistentError::Newer { .. } => libc::ENOTSUP,
            PersistentError::CutOff { .. } | PersistentError::Corrupt { .. } => libc::EUCLEAN,
            PersistentError::OutOfMemory => libc::ENOMEM,
            PersistentError::Full | PersistentError::TooManyRoots => libc::ENOSPC,
            PersistentError::LogFull => libc::ENOBUFS,
            PersistentError::OutOfRange => libc::EFAULT,
            _ => libc::EINVAL,
        };
        Failure::new(number, error.to_string())
    }
}

/// The options that a caller has chosen; a field of 0 keeps its default.
fn options(chosen: Option<&PwPersistentOptions>) -> Result<PersistentOptions, Failure> {
    let mut options = PersistentOptions::DEFAULT;
    let Some(chosen) = chosen else { return Ok(options) };
    let size = |bytes: u64| usize::try_from(bytes).unwrap_or(usize::MAX);
    if chosen.capacity > 0 {
        options.capacity = Some(size(chosen.capacity));
    }
    if chosen.log > 0 {
        options.log = size(chosen.log);
    }
    let unknown = FLAGS.iter().fold(chosen.flags, |left, flag| left & !flag.bit);
    if unknown != 0 {
        return Err(Failure::invalid(format!("flags has bits of no meaning: {unknown:#x}")));
    }
    let set = FLAGS.iter().filter(|flag| chosen.flags & flag.bit != 0);
    set.for_each(|flag| (flag.set)(&mut options));
    Ok(options)
}

/// The string behind a pointer.
///
/// # Safety
/// `text` is NULL, or a string that lives and does not change meanwhile.
unsafe fn string<'a>(text: *const c_char, what: &str) -> Result<&'a CStr, Failure> {
    if text.is_null() {
        return Err(Failure::invalid(format!("{what} is NULL")));
    }
    // SAFETY: the caller passes a string; it is not NULL.
    Ok(unsafe { CStr::from_ptr(text) })
}

/// A name of a root or of a pool.
///
/// # Safety
/// As for [`string`].
unsafe fn name<'a>(text: *const c_char) -> Result<&'a str, Failure> {
    // SAFETY: the caller passes a string, or NULL.
    let name = unsafe { string(text, "name") }?;
    name.to_str().map_err(|_| Failure::invalid("name is not UTF-8"))
}

/// The heap behind a pointer.
///
/// # Safety
/// `heap` is NULL, or a `pw_persistent` that is all zero or open, and not used by other threads at
/// the same time.
unsafe fn opened<'a>(heap: *const CHeap) -> Result<&'a mut Persistent, Failure> {
    // SAFETY: the caller passes a heap, or NULL.
    let heap = unsafe { heap.as_ref() }.ok_or_else(|| Failure::invalid("heap is NULL"))?;
    // SAFETY: it came from `Box::into_raw`, and is set to NULL when the box is dropped.
    let opened = unsafe { heap.cold.as_mut() };
    opened.ok_or_else(|| Failure::invalid("the heap is not open"))
}

/// Runs `work` on the open transaction of a heap, and updates the heap's extent for C. On an error
/// `failed` is returned, and `errno` is set.
///
/// # Safety
/// As for [`opened`].
unsafe fn with<T>(
    heap: *mut CHeap,
    failed: T,
    work: impl FnOnce(&mut Tx<'_>) -> Result<T, Failure>,
) -> T {
    let mut result = failed;
    let number = call(|| {
        // SAFETY: the caller passes an open heap, or NULL.
        let opened = unsafe { opened(heap) }?;
        let mut tx = opened.resume();
        let worked = work(&mut tx);
        tx.pause();
        // SAFETY: `heap` points to a heap, since `opened` has succeeded.
        unsafe { (*heap).end = opened.range().end };
        result = worked?;
        Ok(())
    });
    if number != 0 {
        // SAFETY: `__errno_location` takes nothing, and returns an address that is valid in this
        // thread.
        let errno = unsafe { libc::__errno_location() };
        // SAFETY: it is the thread's own.
        unsafe { errno.write(number) };
    }
    result
}

fn layout(size: usize, align: usize) -> Result<Layout, Failure> {
    Layout::from_size_align(size, align)
        .map_err(|_| Failure::invalid("an alignment is a power of 2, and a size not half of all"))
}

/// See `pagewise/persistent.h`.
///
/// # Safety
/// The pointers are NULL or what the header says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pw_persistent_open(
    heap: *mut CHeap,
    path: *const c_char,
    chosen: *const PwPersistentOptions,
) -> c_int {
    call(|| {
        if heap.is_null() {
            return Err(Failure::invalid("heap is NULL"));
        }
        let closed = CHeap { base: ptr::null_mut(), first: 0, end: 0, cold: ptr::null_mut() };
        // SAFETY: the header requires a writable address.
        unsafe { heap.write(closed) };
        // SAFETY: the header requires a string, or NULL.
        let path = unsafe { string(path, "path") }?;
        // SAFETY: the header requires options, or NULL.
        let options = options(unsafe { chosen.as_ref() })?;
        // SAFETY: the header requires that the file is changed through this library only.
        let opened = Box::new(unsafe { Persistent::open(path, &options) }?);
        let (base, range) = (opened.base().as_ptr(), opened.range());
        let cold = Box::into_raw(opened);
        // SAFETY: the header requires a writable address; it was written above.
        unsafe { heap.write(CHeap { base, first: range.start, end: range.end, cold }) };
        Ok(())
    })
}

/// See `pagewise/persistent.h`.
///
/// # Safety
/// `heap` is NULL, all zero, or open.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pw_persistent_close(heap: *mut CHeap) -> c_int {
    call(|| {
        // SAFETY: the header requires an open heap, or NULL.
        let opened = unsafe { opened(heap) }?;
        // SAFETY: the pointer came from `Box::into_raw`, and is overwritten below.
        let opened = unsafe { Box::from_raw(ptr::from_mut(opened)) };
        let closed = CHeap { base: ptr::null_mut(), first: 0, end: 0, cold: ptr::null_mut() };
        // SAFETY: `heap` is not NULL, since `opened` has succeeded.
        unsafe { heap.write(closed) };
        Ok(opened.close()?)
    })
}

/// See `pagewise/persistent.h`.
///
/// # Safety
/// `heap` is NULL, all zero, or open.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pw_persistent_alloc(heap: *mut CHeap, size: usize, align: usize) -> u64 {
    // SAFETY: the header requires an open heap, or NULL.
    unsafe { with(heap, 0, |tx| Ok(tx.alloc(layout(size, align)?)?.offset())) }
}

/// See `pagewise/persistent.h`.
///
/// # Safety
/// `heap` is NULL, all zero, or open.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pw_persistent_zalloc(heap: *mut CHeap, size: usize, align: usize) -> u64 {
    let zeroed = |tx: &mut Tx<'_>| {
        let block = tx.alloc(layout(size, align)?)?;
        tx.fill(block, size)?.fill(0);
        Ok(block.offset())
    };
    // SAFETY: the header requires an open heap, or NULL.
    unsafe { with(heap, 0, zeroed) }
}

/// See `pagewise/persistent.h`.
///
/// # Safety
/// `heap` is NULL, all zero, or open.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pw_persistent_resize(
    heap: *mut CHeap,
    block: u64,
    size: usize,
    align: usize,
) -> u64 {
    let block = Rel::<u8>::from_offset(block);
    // SAFETY: the header requires an open heap, or NULL.
    unsafe { with(heap, 0, |tx| Ok(tx.resize(block, layout(size, align)?)?.offset())) }
}

/// See `pagewise/persistent.h`.
///
/// # Safety
/// `heap` is NULL, all zero, or open.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pw_persistent_free(heap: *mut CHeap, block: u64) -> c_int {
    call(|| {
        if block == 0 {
            return Ok(());
        }
        // SAFETY: the header requires an open heap, or NULL.
        let mut tx = unsafe { opened(heap) }?.resume();
        let freed = tx.free(Rel::<u8>::from_offset(block));
        tx.pause();
        Ok(freed?)
    })
}

/// See `pagewise/persistent.h`.
///
/// # Safety
/// `heap` is NULL, all zero, or open.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pw_persistent_change(
    heap: *mut CHeap,
    place: u64,
    size: usize,
) -> *mut c_void {
    let place = Rel::<u8>::from_offset(place);
    let change = |tx: &mut Tx<'_>| Ok(tx.change_slice(place, size)?.as_mut_ptr().cast());
    // SAFETY: the header requires an open heap, or NULL.
    unsafe { with(heap, ptr::null_mut(), change) }
}

/// See `pagewise/persistent.h`.
///
/// # Safety
/// `heap` is NULL, all zero, or open.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pw_persistent_size(heap: *mut CHeap, block: u64) -> usize {
    // SAFETY: the header requires an open heap, or NULL.
    unsafe { with(heap, 0, |tx| Ok(tx.block_size(Rel::<u8>::from_offset(block))?)) }
}

/// See `pagewise/persistent.h`.
///
/// # Safety
/// `heap` is NULL, all zero, or open; `text` is NULL or a string.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pw_persistent_root(heap: *mut CHeap, text: *const c_char) -> u64 {
    let find = |tx: &mut Tx<'_>| {
        // SAFETY: the header requires a string, or NULL.
        let found = tx.root::<u8>(unsafe { name(text) }?)?;
        let none = || Failure::new(libc::ENOENT, "no block has that name");
        Ok(found.ok_or_else(none)?.offset())
    };
    // SAFETY: the header requires an open heap, or NULL.
    unsafe { with(heap, 0, find) }
}

/// See `pagewise/persistent.h`.
///
/// # Safety
/// `heap` is NULL, all zero, or open; `text` is NULL or a string.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pw_persistent_set_root(
    heap: *mut CHeap,
    text: *const c_char,
    block: u64,
) -> c_int {
    call(|| {
        // SAFETY: the header requires a string, or NULL.
        let name = unsafe { name(text) }?;
        // SAFETY: the header requires an open heap, or NULL.
        let mut tx = unsafe { opened(heap) }?.resume();
        let named = tx.set_root(name, Rel::<u8>::from_offset(block));
        tx.pause();
        Ok(named?)
    })
}

/// See `pagewise/persistent.h`.
///
/// # Safety
/// `heap` is NULL, all zero, or open.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pw_persistent_commit(heap: *mut CHeap) -> c_int {
    call(|| {
        // SAFETY: the header requires an open heap, or NULL.
        Ok(unsafe { opened(heap) }?.resume().commit()?)
    })
}

/// See `pagewise/persistent.h`.
///
/// # Safety
/// `heap` is NULL, all zero, or open.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pw_persistent_abort(heap: *mut CHeap) -> c_int {
    call(|| {
        // SAFETY: the header requires an open heap, or NULL.
        Ok(unsafe { opened(heap) }?.resume().abort()?)
    })
}

/// See `pagewise/persistent.h`.
///
/// # Safety
/// `heap` is NULL, all zero, or open.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pw_persistent_sync(heap: *mut CHeap) -> c_int {
    call(|| {
        // SAFETY: the header requires an open heap, or NULL.
        Ok(unsafe { opened(heap) }?.sync()?)
    })
}

/// See `pagewise/persistent.h`.
///
/// # Safety
/// `heap` is NULL, all zero, or open; `text` is NULL or a string.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pw_persistent_set_name(heap: *mut CHeap, text: *const c_char) -> c_int {
    call(|| {
        // SAFETY: the header requires a string, or NULL.
        let name = unsafe { name(text) }?;
        // SAFETY: the header requires an open heap, or NULL.
        unsafe { opened(heap) }?.set_name(name);
        Ok(())
    })
}

/// See `pagewise/persistent.h`.
///
/// # Safety
/// `heap` is NULL, all zero, or open; `usage` is NULL or may be written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pw_persistent_check(
    heap: *const CHeap,
    usage: *mut PwPersistentUsage,
) -> c_int {
    call(|| {
        // SAFETY: the header requires an open heap, or NULL.
        let found = unsafe { opened(heap) }?.check()?;
        if !usage.is_null() {
            let number = |size: usize| u64::try_from(size).unwrap_or(u64::MAX);
            let [blocks, bytes, file] = [found.blocks, found.bytes, found.file].map(number);
            // SAFETY: the header requires a writable address; it is not NULL.
            unsafe { usage.write(PwPersistentUsage { blocks, bytes, file }) };
        }
        Ok(())
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const HEADER: &str = include_str!("../include/pagewise/persistent.h");

    #[test]
    fn flags_are_those_of_the_header() {
        let defined = HEADER.lines().filter_map(|line| {
            let (_, value) = line.strip_prefix("#define PW_PERSISTENT_")?.split_once(' ')?;
            value.split_once('u')?.0.parse::<c_uint>().ok()
        });
        let bits: Vec<c_uint> = FLAGS.iter().map(|flag| flag.bit).collect();
        assert_eq!(defined.collect::<Vec<_>>(), bits);
    }
}
