//! `pagewise/ring.h`: what its inline functions call where they do not know what to do.

use std::alloc::Layout;
use std::ffi::{c_int, c_void};
use std::mem::ManuallyDrop;
use std::ptr::{self, NonNull};

use pagewise_alloc::Ring;
use pagewise_alloc::ring::{Open, Sealed};
use pagewise_alloc::source::Memory;

use crate::common::{functions, layout, pointer};
use crate::failure::or_abort;

/// What `pw_ring` is the beginning of.
type CRing = Ring<Memory>;

/// `pw_ring`, of which nothing is known here.
#[derive(Debug)]
#[repr(C)]
pub struct Raw([u8; 0]);

/// `pw_ring_frame`, which is no address.
#[derive(Debug)]
#[repr(C)]
pub struct RawFrame([u8; 0]);

fn create(memory: Memory) -> *mut Raw {
    pointer(Ring::unguarded(memory).map(Ring::into_raw)).cast()
}

/// The ring behind a pointer, which stays.
///
/// # Safety
/// It came from `create`.
unsafe fn ring(raw: *const Raw) -> ManuallyDrop<CRing> {
    // SAFETY: as the caller says, so it is not NULL.
    let raw = unsafe { NonNull::new_unchecked(raw.cast_mut()) };
    // SAFETY: as the caller says; it is not dropped.
    ManuallyDrop::new(unsafe { Ring::from_raw(raw.cast()) })
}

/// The open frame, which stays so.
///
/// # Panics
/// Where none is open.
fn open(ring: &CRing) -> ManuallyDrop<Open<'_, Memory>> {
    assert!(ring.is_open(), "ring: no frame is open");
    // SAFETY: one is, of which C has no other handle.
    ManuallyDrop::new(unsafe { Open::resume(ring) })
}

/// See `pagewise/ring.h`.
#[unsafe(no_mangle)]
pub extern "C" fn pw_ring_create() -> *mut Raw {
    create(Memory::system())
}

/// See `pagewise/ring.h`.
///
/// # Safety
/// As the header says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pw_ring_create_in(buffer: *mut c_void, size: usize) -> *mut Raw {
    let Some(start) = NonNull::new(buffer.cast()) else { return ptr::null_mut() };
    // SAFETY: as the header says.
    create(unsafe { Memory::buffer(start, size) })
}

/// See `pagewise/ring.h`.
///
/// # Safety
/// As the header says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pw_ring_destroy(raw: *mut Raw) {
    if !raw.is_null() {
        // SAFETY: as the header says.
        let ring = unsafe { ring(raw) };
        or_abort(|| drop(ManuallyDrop::into_inner(ring)));
    }
}

functions! {
    see "ring.h", ring(*mut Raw);
    guard pw_ring_guard,
    trim pw_ring_trim,
    held pw_ring_held,
    set_name pw_ring_set_name,
    check pw_ring_check,
}

/// See `pagewise/ring.h`.
///
/// # Safety
/// As the header says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pw_ring_open(raw: *mut Raw) -> c_int {
    // SAFETY: as the header says.
    let mut ring = unsafe { ring(raw) };
    or_abort(|| {
        assert!(!ring.is_open(), "ring: a frame is opened while one is open");
        // It stays open.
        ring.open().map(ManuallyDrop::new).map_or(libc::ENOMEM, |_| 0)
    })
}

/// See `pagewise/ring.h`.
///
/// # Safety
/// As the header says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pw_ring_seal(raw: *mut Raw) -> *mut RawFrame {
    // SAFETY: as the header says.
    let ring = unsafe { ring(raw) };
    or_abort(|| ManuallyDrop::into_inner(open(&ring)).seal().into_raw().as_ptr().cast())
}

/// See `pagewise/ring.h`.
///
/// # Safety
/// As the header says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pw_ring_cancel(raw: *mut Raw) {
    // SAFETY: as the header says.
    let ring = unsafe { ring(raw) };
    or_abort(|| drop(ManuallyDrop::into_inner(open(&ring))));
}

/// See `pagewise/ring.h`.
///
/// # Safety
/// As the header says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pw_ring_release(frame: *mut RawFrame) {
    if let Some(raw) = NonNull::new(frame.cast()) {
        // SAFETY: it was sealed and not released, says the header.
        or_abort(|| drop(unsafe { Sealed::from_raw(raw) }));
    }
}

/// See `pagewise/ring.h`.
///
/// # Safety
/// As the header says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pw_ring_realloc(
    raw: *mut Raw,
    block: *mut c_void,
    old: usize,
    size: usize,
    align: usize,
) -> *mut c_void {
    let layouts = [old, size].map(|size| Layout::from_size_align(size, align));
    let [Ok(old), Ok(new)] = layouts else { return ptr::null_mut() };
    // SAFETY: as the header says.
    let ring = unsafe { ring(raw) };
    or_abort(|| {
        let frame = open(&ring);
        pointer(match NonNull::new(block.cast()) {
            None => frame.allocate(new),
            // SAFETY: the block is of the open frame and has this size, says the header.
            Some(block) => unsafe { frame.resize(block, old, new) },
        })
    })
}

/// See `pagewise/ring.h`.
///
/// # Safety
/// As the header says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pw_ring_alloc_slow(
    raw: *mut Raw,
    size: usize,
    align: usize,
) -> *mut c_void {
    let layout = layout(size, align);
    // SAFETY: as the header says.
    let ring = unsafe { ring(raw) };
    or_abort(|| pointer(layout.and_then(|layout| open(&ring).allocate(layout))))
}
