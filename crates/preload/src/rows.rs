//! How to leave a function, by the address that a call returns to: read from tables once, then looked up.

use std::sync::atomic::Ordering;

use pagewise_heaplog::tables::{INTERRUPTED, PLACES, header};

use crate::cfi::{self, Row};
use crate::lock::Lock;
use crate::map::Map;
use crate::modules;
use crate::shared;

/// Rows and places that are known, and all that belongs to them, are added under this lock.
pub(crate) static LOCK: Lock = Lock::new();

/// For each address its row, and the number of its place in the upper half.
static KNOWN: Map = Map::new();

/// In place of a number: the code is the recorder's own, which stands between functions of the program and of the C library.
pub(crate) const OURS: u32 = u32::MAX;

/// What is known of an address.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Known {
    /// How to leave.
    pub row: Row,
    /// The number of the place, or [`OURS`].
    pub place: u32,
}

impl Known {
    #[inline(always)]
    fn unpack(found: u64) -> Known {
        Known { row: Row::unpack(found as u32), place: (found >> 32) as u32 }
    }
}

/// What is known of the place that a call returns to.
#[inline(always)]
fn find(address: u64) -> Option<Known> {
    KNOWN.find(address).map(Known::unpack)
}

/// What is known of a place, learned now where it is not known yet.
#[inline(always)]
pub(crate) fn get(address: u64) -> Option<Known> {
    match find(address) {
        Some(known) => Some(known),
        None => learn(address),
    }
}

#[cold]
#[inline(never)]
fn learn(address: u64) -> Option<Known> {
    let _held = LOCK.hold();
    if let Some(known) = find(address) {
        return Some(known);
    }
    // A call's address lies before the one that it returns to, which may be another function's.
    let code =
        if address & INTERRUPTED == 0 { address.wrapping_sub(1) } else { address & !INTERRUPTED };
    let object = modules::find(code);
    let row = match &object {
        Some(object) => cfi::row(&object.image, object.header, usize::try_from(code).ok()?),
        None => Row::Unknown,
    };
    if object.as_ref().is_some_and(is_ours) {
        let found = u64::from(row.pack()) | u64::from(OURS) << 32;
        KNOWN.insert(address, found)?;
        return Some(Known::unpack(found));
    }
    let module = object.map_or(0, |object| modules::number(&object).map_or(0, |number| number + 1));
    let number = shared::head(header::PLACES).load(Ordering::Relaxed);
    let index = usize::try_from(number).ok().filter(|&index| index < PLACES.room)?;
    let (to, of) = shared::place(index);
    // The kernel made this return address: no call lies before the function that it leads to.
    let mark = if row == Row::Signal { INTERRUPTED } else { 0 };
    to.store(address | mark, Ordering::Relaxed);
    of.store(module, Ordering::Relaxed);
    shared::head(header::PLACES).store(number + 1, Ordering::Release);
    let found = u64::from(row.pack()) | number << 32;
    KNOWN.insert(address, found)?;
    Some(Known::unpack(found))
}

/// Whether an object is this library.
fn is_ours(object: &modules::Object) -> bool {
    // Tests are one program with it.
    !cfg!(test) && (object.start..object.end).contains(&(is_ours as *const () as usize))
}

/// Forgets all addresses from `start` to `end`: their code is gone. The lock is held.
pub(crate) fn forget(start: u64, end: u64) {
    KNOWN.take_out(|address| (start..end).contains(&(address & !INTERRUPTED)));
}

/// Forgets everything, in a child of `fork`.
pub(crate) fn reset() {
    LOCK.reset();
    KNOWN.reset();
}
