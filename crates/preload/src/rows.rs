//! Unwind rows by return address, read from unwind tables once and then cached.

use std::sync::atomic::Ordering;

use pagewise_heaplog::tables::{INTERRUPTED, PLACES, header};

use crate::cfi::{self, PLAIN, UnwindRow};
use crate::lock::Lock;
use crate::map::{View, WordMap};
use crate::modules;
use crate::objects;
use crate::shared;

/// Protects additions of rows, return addresses, modules and strings.
pub(crate) static LOCK: Lock = Lock::new();

/// Unwind row of each return address; the upper half of a value is the index of the return address
/// in the tables.
static KNOWN: WordMap = WordMap::new();

/// Value of [`AddressRow::place`] for a return address in the recorder. Frames of the recorder
/// occur on a stack between frames of the program and frames of the C library.
pub(crate) const OURS: u32 = u32::MAX;

/// Unwind data of a return address.
#[derive(Clone, Copy, Debug)]
pub(crate) struct AddressRow {
    /// Rule to unwind the function that contains the return address.
    pub row: UnwindRow,
    /// Index of the return address in the tables, or [`OURS`].
    pub place: u32,
}

impl AddressRow {
    /// Packs the data into one word. The recorder's own return addresses never have the bit
    /// [`PLAIN`].
    fn pack(self) -> u64 {
        let row = if self.place == OURS { self.row.pack() & !PLAIN } else { self.row.pack() };
        u64::from(row) | u64::from(self.place) << 32
    }

    #[inline(always)]
    fn unpack(found: u64) -> AddressRow {
        AddressRow { row: UnwindRow::unpack(found as u32), place: (found >> 32) as u32 }
    }
}

/// Data of the most frequent frames: in the program, with a [`PLAIN`] row that is cached.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PlainFrame {
    /// Number of bytes from the stack pointer to the end of the frame; greater than 0.
    pub length: u64,
    /// Number of bytes from the end of the frame down to the saved frame pointer, at most `length`;
    /// 0 if the frame pointer is unchanged.
    pub saved: u64,
    /// Index of the return address in the tables.
    pub place: u32,
}

/// The cached rows at one time, for one walk of a stack.
#[derive(Clone, Copy)]
pub(crate) struct RowCache(View);

impl RowCache {
    /// Current cache; `None` if it contains no row.
    #[inline(always)]
    pub(crate) fn now() -> Option<RowCache> {
        KNOWN.view().map(RowCache)
    }

    /// Data of a return address if its row is cached and [`PLAIN`]. [`get`] returns the data of any
    /// address.
    #[inline(always)]
    pub(crate) fn plain(self, address: u64) -> Option<PlainFrame> {
        let found = self.0.find(address)?;
        let (offset, saved) = UnwindRow::unpack_plain(found as u32)?;
        let place = (found >> 32) as u32;
        Some(PlainFrame { length: u64::from(offset) * 8, saved: u64::from(saved) * 8, place })
    }
}

/// Cached data of a return address; `None` if it is not cached.
#[inline(always)]
fn find(address: u64) -> Option<AddressRow> {
    KNOWN.find(address).map(AddressRow::unpack)
}

/// Returns the data of a return address, and computes and caches it if necessary.
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
    // The call instruction precedes its return address, which may belong to the next function.
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
    // The kernel has set this return address, so no call instruction precedes it.
    let mark = if row == UnwindRow::Signal { INTERRUPTED } else { 0 };
    to.store(address | mark, Ordering::Relaxed);
    of.store(module, Ordering::Relaxed);
    shared::head(header::PLACES).store(number + 1, Ordering::Release);
    keep(address, AddressRow { row, place: index as u32 })
}

/// Adds the data of an address to the cache. Requires [`LOCK`].
fn keep(address: u64, known: AddressRow) -> Option<AddressRow> {
    KNOWN.insert(address, known.pack())?;
    Some(AddressRow::unpack(known.pack()))
}

/// True if an object is this library.
fn is_ours(object: &modules::LoaderObject) -> bool {
    // In tests, this code and the tests are one program.
    !cfg!(test) && (object.start..object.end).contains(&(is_ours as *const () as usize))
}

/// Removes all addresses from `start` to `end`, whose code was unloaded. Requires [`LOCK`].
pub(crate) fn forget(start: u64, end: u64) {
    KNOWN.take_out(|address| (start..end).contains(&(address & !INTERRUPTED)));
}

/// Clears the state in a child of `fork`.
pub(crate) fn reset() {
    LOCK.reset();
    objects::reset();
    KNOWN.reset();
}
