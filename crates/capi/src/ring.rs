//! `pagewise/ring.h`: the functions of the header, with the slow paths of its inline functions.

use std::ffi::{c_int, c_void};
use std::mem::ManuallyDrop;
use std::ptr::{self, NonNull};

use pagewise_alloc::Ring;
use pagewise_alloc::ring::{OpenRingFrame, Sealed};
use pagewise_alloc::source::SystemOrBuffer;

use crate::common::{functions, layout, layouts, pointer, pool};
use crate::failure::or_abort;

/// `pw_ring` is the beginning of this type.
type CRing = Ring<SystemOrBuffer>;

pool! {
    see "ring.h", Ring as CRing;
    raw RawRing,
    get ring,
    create pw_ring_create,
    create_in pw_ring_create_in,
    destroy pw_ring_destroy,
}

/// `pw_ring_frame`, an opaque type.
#[derive(Debug)]
#[repr(C)]
pub struct RawFrame([u8; 0]);

/// The open frame, which stays open.
///
/// # Panics
/// Panics if no frame is open.
fn open(ring: &CRing) -> ManuallyDrop<OpenRingFrame<'_, SystemOrBuffer>> {
    assert!(ring.is_open(), "ring: no frame is open");
    // SAFETY: a frame is open, and C has no other handle to it.
    ManuallyDrop::new(unsafe { OpenRingFrame::resume(ring) })
}

functions! {
    see "ring.h", ring(*mut RawRing);
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
pub unsafe extern "C" fn pw_ring_open(raw: *mut RawRing) -> c_int {
    // SAFETY: the header requires a live ring.
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
pub unsafe extern "C" fn pw_ring_seal(raw: *mut RawRing) -> *mut RawFrame {
    // SAFETY: the header requires a live ring.
    let ring = unsafe { ring(raw) };
    or_abort(|| ManuallyDrop::into_inner(open(&ring)).seal().into_raw().as_ptr().cast())
}

/// See `pagewise/ring.h`.
///
/// # Safety
/// As the header says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pw_ring_cancel(raw: *mut RawRing) {
    // SAFETY: the header requires a live ring.
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
        // SAFETY: the header requires a frame that was sealed and not released.
        or_abort(|| drop(unsafe { Sealed::from_raw(raw) }));
    }
}

/// See `pagewise/ring.h`.
///
/// # Safety
/// As the header says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pw_ring_realloc(
    raw: *mut RawRing,
    block: *mut c_void,
    old: usize,
    size: usize,
    align: usize,
) -> *mut c_void {
    let Some([old, new]) = layouts(old, size, align) else { return ptr::null_mut() };
    // SAFETY: the header requires a live ring.
    let ring = unsafe { ring(raw) };
    or_abort(|| {
        let frame = open(&ring);
        pointer(match NonNull::new(block.cast()) {
            None => frame.allocate(new),
            // SAFETY: the header requires a block of the open frame with this size.
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
    raw: *mut RawRing,
    size: usize,
    align: usize,
) -> *mut c_void {
    let layout = layout(size, align);
    // SAFETY: the header requires a live ring.
    let ring = unsafe { ring(raw) };
    or_abort(|| pointer(layout.and_then(|layout| open(&ring).allocate(layout))))
}
