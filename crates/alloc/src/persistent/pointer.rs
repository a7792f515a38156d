//! Types of values in a heap, and pointers that are offsets in the file instead of addresses.

use core::fmt;
use core::marker::PhantomData;

/// Marks types of values in a heap: every bit pattern is a valid value, and no value contains a
/// reference or pointer to memory outside of the heap.
///
/// # Safety
/// Every bit pattern is a valid value, the type has no padding, and it contains no reference,
/// pointer or lifetime.
pub unsafe trait PlainData: Copy + 'static {}

macro_rules! plain {
    ($($type:ty)*) => { $(
        // SAFETY: every bit pattern is a valid number, and a number has no padding.
        unsafe impl PlainData for $type {}
    )* };
}

plain!(u8 u16 u32 u64 u128 usize i8 i16 i32 i64 i128 isize f32 f64);

// SAFETY: an array consists of its elements, without padding between them.
unsafe impl<T: PlainData, const N: usize> PlainData for [T; N] {}
// SAFETY: the type is a number of 64 bits, and the heap checks the target whenever a pointer is
// followed.
unsafe impl<T: 'static> PlainData for Rel<T> {}

/// A pointer to a `T` in a heap: the offset of the `T` in the file. Unlike an address, it stays
/// valid when the file is mapped elsewhere, so it may be stored in the heap itself. 0 is null.
#[repr(transparent)]
pub struct Rel<T> {
    offset: u64,
    _to: PhantomData<fn() -> T>,
}

impl<T> Rel<T> {
    /// The null pointer.
    pub const NULL: Rel<T> = Rel { offset: 0, _to: PhantomData };

    /// Creates a pointer to an offset in the file. The target is checked when the pointer is
    /// followed.
    pub const fn from_offset(offset: u64) -> Rel<T> {
        Rel { offset, _to: PhantomData }
    }

    /// Returns the offset of the target from the start of the file; 0 for the null pointer.
    pub const fn offset(self) -> u64 {
        self.offset
    }

    /// True if this is the null pointer.
    pub const fn is_null(self) -> bool {
        self.offset == 0
    }

    /// Returns a pointer to a `U` at the same offset.
    pub const fn cast<U>(self) -> Rel<U> {
        Rel::from_offset(self.offset)
    }

    pub(super) fn place(self) -> usize {
        usize::try_from(self.offset).unwrap_or(usize::MAX)
    }
}

impl<T> Clone for Rel<T> {
    fn clone(&self) -> Rel<T> {
        *self
    }
}

impl<T> Copy for Rel<T> {}

impl<T> Default for Rel<T> {
    fn default() -> Rel<T> {
        Rel::NULL
    }
}

impl<T> PartialEq for Rel<T> {
    fn eq(&self, other: &Rel<T>) -> bool {
        self.offset == other.offset
    }
}

impl<T> Eq for Rel<T> {}

impl<T> fmt::Debug for Rel<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Rel({:#x})", self.offset)
    }
}
