//! Code shared by all pools that implement the traits of `allocator-api2` for collections.

#[cfg(feature = "allocator-api2-04")]
mod api04;

use core::alloc::Layout;
use core::ptr::NonNull;

use allocator_api2::alloc::AllocError;

#[cfg(feature = "allocator-api2-04")]
pub use api04::Api04;

/// Returns a block in the form that the trait requires: a slice of exactly the requested size.
pub(crate) fn slice(
    block: Option<NonNull<u8>>,
    layout: Layout,
) -> Result<NonNull<[u8]>, AllocError> {
    Ok(NonNull::slice_from_raw_parts(block.ok_or(AllocError)?, layout.size()))
}

/// Copies the contents of the old block to the new block, up to the smaller of both sizes.
///
/// # Safety
/// Each block has the size of its layout, and the blocks do not overlap.
pub(crate) unsafe fn carry_over(old: (NonNull<u8>, Layout), new: (NonNull<u8>, Layout)) {
    let kept = old.1.size().min(new.1.size());
    // SAFETY: the caller guarantees that both blocks have at least `kept` bytes and do not overlap.
    unsafe { new.0.copy_from_nonoverlapping(old.0, kept) };
}

/// Defines `grow` and `shrink`, both by the expression `resize`, which resizes a block.
///
/// The expression is unsafe, as `grow` and `shrink` are: the block must be of this pool and have
/// the old layout.
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
