//! Unwind rows by return address: read from tables once, then looked up.

use std::sync::atomic::Ordering;

use pagewise_heaplog::tables::{INTERRUPTED, PLACES, header};

use crate::cfi::{self, PLAIN, UnwindRow};
use crate::lock::Lock;
use crate::map::{View, WordMap};
use crate::modules;
use crate::objects;
use crate::shared;

/// Protects additions of rows, places, modules and strings.
pub(crate) static LOCK: Lock = Lock::new();

/// For each address its row, and the number of its place in the upper half.
static KNOWN: WordMap = WordMap::new();

/// In place of a number: the code is the recorder's own, whose frames are between those of the
/// program and those of the C library.
pub(crate) const OURS: u32 = u32::MAX;

/// Unwind data of an address.
#[derive(Clone, Copy, Debug)]
pub(crate) struct AddressRow {
    /// Rule to unwind the function.
    pub row: UnwindRow,
    /// The number of the place, or [`OURS`].
    pub place: u32,
}

impl AddressRow {
    /// Packs the data into one word. Places of the recorder are never plain.
    fn pack(self) -> u64 {
        let row = if self.place == OURS { self.row.pack() & !PLAIN } else { self.row.pack() };
        u64::from(row) | u64::from(self.place) << 32
    }

    #[inline(always)]
    fn unpack(found: u64) -> AddressRow {
        AddressRow { row: UnwindRow::unpack(found as u32), place: (found >> 32) as u32 }
    }
}

/// Data of most frames: plain, in the program, and seen before.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PlainFrame {
    /// Bytes from the stack pointer to the frame's end, more than 0.
    pub length: u64,
    /// Bytes from there down to the saved frame pointer, at most `length`; 0 if the frame pointer
    /// is unchanged.
    pub saved: u64,
    /// The number of the place.
    pub place: u32,
}

/// The rows that are known at one time, for one walk of a stack.
#[derive(Clone, Copy)]
pub(crate) struct RowCache(View);

impl RowCache {
    /// `None` if no row is known.
    #[inline(always)]
    pub(crate) fn now() -> Option<RowCache> {
        KNOWN.view().map(RowCache)
    }

    /// Data of a return address if it is plain; [`get`] returns the data of any address.
    #[inline(always)]
    pub(crate) fn plain(self, address: u64) -> Option<PlainFrame> {
        let found = self.0.find(address)?;
        let (offset, saved) = UnwindRow::unpack_plain(found as u32)?;
        let place = (found >> 32) as u32;
        Some(PlainFrame { length: u64::from(offset) * 8, saved: u64::from(saved) * 8, place })
    }
}

/// Cached data of a return address.
#[inline(always)]
fn find(address: u64) -> Option<AddressRow> {
    KNOWN.find(address).map(AddressRow::unpack)
}

/// Data of a return address, computed if it is not cached.
#[inline(always)]
pub(crate) fn get(address: u64) -> Option<AddressRow> {
    match find(address) {
        Some(known) => Some(known),
        None => learn(address),
    }
}

#[cold]
#[inline(never)]
fn learn(address: u64) -> Option<AddressRow> {
    let _held = LOCK.hold();
    if let Some(known) = find(address) {
        return Some(known);
    }
    // The call lies before its return address, which may belong to the next function.
    let code =
        if address & INTERRUPTED == 0 { address.wrapping_sub(1) } else { address & !INTERRUPTED };
    let object = modules::find(code);
    let row = match &object {
        Some(object) => cfi::row(&object.image, object.header, usize::try_from(code).ok()?),
        None => UnwindRow::Unknown,
    };
    if object.as_ref().is_some_and(is_ours) {
        return keep(address, AddressRow { row, place: OURS });
    }
    let module = object.map_or(0, |object| modules::number(&object).map_or(0, |number| number + 1));
    let number = shared::head(header::PLACES).load(Ordering::Relaxed);
    let index = usize::try_from(number).ok().filter(|&index| index < PLACES.room)?;
    let (to, of) = shared::place(index);
    // The kernel set this return address, so that no call lies before it.
    let mark = if row == UnwindRow::Signal { INTERRUPTED } else { 0 };
    to.store(address | mark, Ordering::Relaxed);
    of.store(module, Ordering::Relaxed);
    shared::head(header::PLACES).store(number + 1, Ordering::Release);
    keep(address, AddressRow { row, place: index as u32 })
}

/// Adds the row of an address; the lock is held.
fn keep(address: u64, known: AddressRow) -> Option<AddressRow> {
    KNOWN.insert(address, known.pack())?;
    Some(AddressRow::unpack(known.pack()))
}

/// True if an object is this library.
fn is_ours(object: &modules::LoaderObject) -> bool {
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
    objects::reset();
    KNOWN.reset();
}
