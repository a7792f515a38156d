//! Types of values in a heap, and pointers that are offsets in the file, not addresses.

use core::fmt;
use core::marker::PhantomData;

/// Type of values in a heap: any bytes are a valid value, and it has no pointers to the outside.
///
/// # Safety
/// Any bit pattern is a value, the type has no padding, and no reference, pointer or lifetime is
/// inside.
pub unsafe trait PlainData: Copy + 'static {}

macro_rules! plain {
    ($($type:ty)*) => { $(
        // SAFETY: a number, of which any bits are one.
        unsafe impl PlainData for $type {}
    )* };
}

plain!(u8 u16 u32 u64 u128 usize i8 i16 i32 i64 i128 isize f32 f64);

// SAFETY: an array has its items and nothing between.
unsafe impl<T: PlainData, const N: usize> PlainData for [T; N] {}
// SAFETY: a number of 64 bits; what it leads to is checked whenever it is followed.
unsafe impl<T: 'static> PlainData for Rel<T> {}

/// A pointer to a `T` in a heap: the offset of the `T` in the file, so that the pointer may lie in
/// the heap itself. 0 is null.
#[repr(transparent)]
pub struct Rel<T> {
    offset: u64,
    _to: PhantomData<fn() -> T>,
}

impl<T> Rel<T> {
    /// Points to nothing.
    pub const NULL: Rel<T> = Rel { offset: 0, _to: PhantomData };

    /// Pointer to an offset in the file. The target is checked when the pointer is followed.
    pub const fn from_offset(offset: u64) -> Rel<T> {
        Rel { offset, _to: PhantomData }
    }

    /// Distance from the start of the file.
    pub const fn offset(self) -> u64 {
        self.offset
    }

    /// True if it points to nothing.
    pub const fn is_null(self) -> bool {
        self.offset == 0
    }

    /// The same offset, as a pointer to a `U`.
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
