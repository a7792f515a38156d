//! Common code of the pools that are allocators of collections, by the traits of `allocator-api2`.

#[cfg(feature = "allocator-api2-04")]
mod api04;

use core::alloc::Layout;
use core::ptr::NonNull;

use allocator_api2::alloc::AllocError;

#[cfg(feature = "allocator-api2-04")]
pub use api04::Api04;

/// A block as the functions of the trait return it: a slice of exactly the requested size.
pub(crate) fn slice(
    block: Option<NonNull<u8>>,
    layout: Layout,
) -> Result<NonNull<[u8]>, AllocError> {
    Ok(NonNull::slice_from_raw_parts(block.ok_or(AllocError)?, layout.size()))
}

/// Copies the contents, as far as both blocks have room for them.
///
/// # Safety
/// Each has the size of its layout, and they do not overlap.
pub(crate) unsafe fn carry_over(old: (NonNull<u8>, Layout), new: (NonNull<u8>, Layout)) {
    let kept = old.1.size().min(new.1.size());
    // SAFETY: the caller guarantees that the old block has `kept` bytes; the new one has as many
    // and is another.
    unsafe { new.0.copy_from_nonoverlapping(old.0, kept) };
}

/// Defines `grow` and `shrink`, both by one call that resizes a block.
///
/// The call is unsafe like these functions: the caller passes a block of this pool with the old
/// layout.
macro_rules! resize_by {
    (|$pool:ident, $block:ident, $old:ident, $new:ident| $resize:expr) => {
        $crate::collections::resize_by!(grow | $pool, $block, $old, $new | $resize);
        $crate::collections::resize_by!(shrink | $pool, $block, $old, $new | $resize);
    };
    ($name:ident |$pool:ident, $block:ident, $old:ident, $new:ident| $resize:expr) => {
        unsafe fn $name(
            &self,
            $block: ::core::ptr::NonNull<u8>,
            $old: ::core::alloc::Layout,
            $new: ::core::alloc::Layout,
        ) -> Result<::core::ptr::NonNull<[u8]>, ::allocator_api2::alloc::AllocError> {
            let $pool = self;
            // SAFETY: the caller guarantees that the block came from this pool with this layout.
            $crate::collections::slice(unsafe { $resize }, $new)
        }
    };
}
pub(crate) use resize_by;
