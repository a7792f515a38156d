//! Code that all pools for C programs share: conversions of addresses and sizes, and functions of
//! the same form for every pool.

use std::alloc::Layout;
use std::ffi::c_void;
use std::ptr::{self, NonNull};

use pagewise_alloc::misuse::CallSite;

/// Returns the address of a block for C; NULL without a block.
pub(crate) fn pointer(block: Option<NonNull<u8>>) -> *mut c_void {
    block.map_or(ptr::null_mut(), |block| block.as_ptr().cast())
}

/// Returns the layout of this size and alignment; `None` if the size is too large or the alignment
/// is not a power of two.
pub(crate) fn layout(size: usize, align: usize) -> Option<Layout> {
    Layout::from_size_align(size, align).ok()
}

/// Returns the old and the new layout of a block that is resized.
pub(crate) fn layouts(old: usize, new: usize, align: usize) -> Option<[Layout; 2]> {
    Some([layout(old, align)?, layout(new, align)?])
}

/// Defines functions that pass their return address on as an additional argument: `call_sites!(see
/// "tlsf.h"; pw_tlsf_free_slow(pool: *mut CTlsf, block: *mut c_void) => free_slow, "rdx", "x2";)`,
/// where the strings are the registers of that argument on x86-64 and AArch64. The return address
/// lies in the code of the program, also if an inline function of a header contains the call.
macro_rules! call_sites {
    (see $header:literal; $($name:ident($($argument:ident: $type:ty),*) $(-> $result:ty)? => $inner:ident, $x86:literal, $arm:literal;)*) => {
        $(
            #[doc = concat!("See `pagewise/", $header, "`.")]
            ///
            /// # Safety
            /// As the header says.
            #[cfg(target_arch = "x86_64")]
            #[unsafe(naked)]
            #[unsafe(no_mangle)]
            pub unsafe extern "C" fn $name($($argument: $type),*) $(-> $result)? {
                ::core::arch::naked_asm!(
                    "endbr64",
                    concat!("mov ", $x86, ", qword ptr [rsp]"),
                    "jmp {inner}",
                    inner = sym $inner,
                )
            }

            #[doc = concat!("See `pagewise/", $header, "`.")]
            ///
            /// # Safety
            /// As the header says.
            #[cfg(target_arch = "aarch64")]
            #[unsafe(naked)]
            #[unsafe(no_mangle)]
            pub unsafe extern "C" fn $name($($argument: $type),*) $(-> $result)? {
                ::core::arch::naked_asm!(
                    // `bti c`, the landing pad of branch target identification.
                    "hint 34",
                    concat!("mov ", $arm, ", x30"),
                    "b {inner}",
                    inner = sym $inner,
                )
            }

            #[doc = concat!("See `pagewise/", $header, "`.")]
            ///
            /// # Safety
            /// As the header says.
            #[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
            #[unsafe(no_mangle)]
            pub unsafe extern "C" fn $name($($argument: $type),*) $(-> $result)? {
                // SAFETY: the caller passes what the header requires.
                unsafe { $inner($($argument,)* 0) }
            }
        )*
    };
}
pub(crate) use call_sites;

/// Returns the call site of a return address in C; an unknown call site if it is 0.
pub(crate) fn site(return_address: usize) -> CallSite {
    if return_address == 0 { CallSite::NONE } else { CallSite::return_address(return_address) }
}

/// Defines functions that have the same form for every pool: `functions!(see "stack.h", stack(*mut
/// CStack); held pw_stack_held, ..)`, where `stack` returns the pool behind a pointer.
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
            // SAFETY: the header requires a C string, and the name is not NULL.
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

/// Defines a pool that is a pointer in C: its opaque type, access to the pool behind a pointer, and
/// the functions that create and destroy it.
macro_rules! pool {
    (see $header:literal, $pool:ident as $of_c:ident; raw $raw:ident, get $get:ident, create $create:ident,
        create_in $create_in:ident, destroy $destroy:ident $(,)?) => {
        #[doc = concat!("The type that `pagewise/", $header, "` declares and does not define.")]
        #[derive(Debug)]
        #[repr(C)]
        pub struct $raw([u8; 0]);

        fn create(memory: ::pagewise_alloc::source::SystemOrBuffer) -> *mut $raw {
            $crate::common::pointer($pool::unguarded(memory).map($pool::into_raw)).cast()
        }

        /// Returns the pool behind a pointer, without dropping it.
        ///
        /// # Safety
        /// `create` returned the pointer, and the pool was not destroyed.
        unsafe fn $get(raw: *const $raw) -> ::std::mem::ManuallyDrop<$of_c> {
            // SAFETY: the caller passes a live pool, so it is not NULL.
            let raw = unsafe { ::std::ptr::NonNull::new_unchecked(raw.cast_mut()) };
            // SAFETY: the caller passes a live pool; the value is not dropped.
            ::std::mem::ManuallyDrop::new(unsafe { $pool::from_raw(raw.cast()) })
        }

        #[doc = concat!("See `pagewise/", $header, "`.")]
        #[unsafe(no_mangle)]
        pub extern "C" fn $create() -> *mut $raw {
            create(::pagewise_alloc::source::SystemOrBuffer::system())
        }

        #[doc = concat!("See `pagewise/", $header, "`.")]
        ///
        /// # Safety
        /// As the header says.
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $create_in(
            buffer: *mut ::std::ffi::c_void,
            size: usize,
        ) -> *mut $raw {
            let Some(start) = ::std::ptr::NonNull::new(buffer.cast()) else {
                return ::std::ptr::null_mut();
            };
            // SAFETY: the header requires that the buffer is writable and that only the pool uses
            // it.
            create(unsafe { ::pagewise_alloc::source::SystemOrBuffer::buffer(start, size) })
        }

        #[doc = concat!("See `pagewise/", $header, "`.")]
        ///
        /// # Safety
        /// As the header says.
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $destroy(raw: *mut $raw) {
            if !raw.is_null() {
                // SAFETY: the header requires a live pool.
                let pool = unsafe { $get(raw) };
                $crate::failure::or_abort(|| drop(::std::mem::ManuallyDrop::into_inner(pool)));
            }
        }
    };
}
pub(crate) use pool;
