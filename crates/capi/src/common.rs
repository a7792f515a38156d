//! Common code of the pools for C programs: conversion of memory and sizes, and the calls that all
//! of them have.

use std::alloc::Layout;
use std::ffi::c_void;
use std::ptr::{self, NonNull};

/// Memory for C: NULL without a block.
pub(crate) fn pointer(block: Option<NonNull<u8>>) -> *mut c_void {
    block.map_or(ptr::null_mut(), |block| block.as_ptr().cast())
}

/// A size and an alignment; `None` where no memory can have them.
pub(crate) fn layout(size: usize, align: usize) -> Option<Layout> {
    Layout::from_size_align(size, align).ok()
}

/// Calls that are alike for every pool: `functions!(see "stack.h", stack(*mut CStack); held
/// pw_stack_held, ..)`, where `stack` makes the pool of a pointer.
macro_rules! functions {
    (see $header:literal, $pool:ident($raw:ty); $($what:ident $name:ident),* $(,)?) => {
        $($crate::common::functions!(@$what $header, $pool, $raw, $name);)*
    };
    (@held $header:literal, $pool:ident, $raw:ty, $name:ident) => {
        $crate::common::functions!(@define $header, fn $name(raw: $raw) -> usize {
            // SAFETY: the header requires a live pool.
            unsafe { $pool(raw) }.held()
        });
    };
    (@guard $header:literal, $pool:ident, $raw:ty, $name:ident) => {
        $crate::common::functions!(@define $header, fn $name(raw: $raw) -> ::std::ffi::c_int {
            // SAFETY: the header requires a live pool.
            unsafe { $pool(raw) }.guard().into()
        });
    };
    (@trim $header:literal, $pool:ident, $raw:ty, $name:ident) => {
        $crate::common::functions!(@define $header, fn $name(raw: $raw) -> () {
            // SAFETY: the header requires a live pool.
            unsafe { $pool(raw) }.trim();
        });
    };
    (@check $header:literal, $pool:ident, $raw:ty, $name:ident) => {
        $crate::common::functions!(@define $header, fn $name(raw: $raw) -> () {
            // SAFETY: the header requires a live pool.
            let pool = unsafe { $pool(raw) };
            $crate::failure::or_abort(|| pool.check());
        });
    };
    (@set_name $header:literal, $pool:ident, $raw:ty, $called:ident) => {
        $crate::common::functions!(@define $header, fn $called(raw: $raw, name: *const ::std::ffi::c_char) -> () {
            // SAFETY: the header requires a string; it is not NULL.
            let name = unsafe { ::std::ffi::CStr::from_ptr(name) };
            // SAFETY: the header requires a live pool.
            unsafe { $pool(raw) }.set_name(&name.to_string_lossy());
        });
    };
    (@define $header:literal, fn $name:ident($($argument:ident: $type:ty),*) -> $result:ty $body:block) => {
        #[doc = concat!("See `pagewise/", $header, "`.")]
        ///
        /// # Safety
        /// As the header says.
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $name($($argument: $type),*) -> $result $body
    };
}
pub(crate) use functions;
