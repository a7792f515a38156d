//! General allocators under names of their own, side by side in one process.

use std::alloc::{GlobalAlloc, Layout, System};
use std::ffi::{CStr, c_void};
use std::mem::transmute_copy;
use std::sync::OnceLock;

/// A general allocator and its name.
pub type NamedAllocator = (&'static str, &'static dyn GlobalAlloc);

/// Every general allocator, for rounds in which an indirect call does not count.
pub const GENERAL: &[NamedAllocator] = &[
    ("glibc", &System),
    ("jemalloc", &tikv_jemallocator::Jemalloc),
    ("mimalloc", &mimalloc::MiMalloc),
    ("snmalloc", &snmalloc_rs::SnMalloc),
];

/// Calls a macro with the name and the value of every general allocator: rounds that are compiled
/// for each.
#[macro_export]
macro_rules! for_each_malloc {
    ($call:ident) => {
        $call!("glibc", std::alloc::System);
        $call!("jemalloc", tikv_jemallocator::Jemalloc);
        $call!("mimalloc", mimalloc::MiMalloc);
        $call!("snmalloc", snmalloc_rs::SnMalloc);
        if $crate::malloc::Tcmalloc::is_there() {
            $call!("tcmalloc", $crate::malloc::Tcmalloc);
        }
    };
}

/// tcmalloc, by the functions of its library, where that is installed (`libtcmalloc-minimal4`).
/// Each call is indirect, which costs it about a nanosecond.
#[derive(Clone, Copy, Debug)]
pub struct Tcmalloc;

/// The functions of tcmalloc.
struct TcmallocFunctions {
    malloc: unsafe extern "C" fn(usize) -> *mut c_void,
    calloc: unsafe extern "C" fn(usize, usize) -> *mut c_void,
    memalign: unsafe extern "C" fn(usize, usize) -> *mut c_void,
    free: unsafe extern "C" fn(*mut c_void),
}

impl Tcmalloc {
    /// True if it is installed; says so where not, once.
    pub fn is_there() -> bool {
        functions().is_some()
    }
}

fn functions() -> Option<&'static TcmallocFunctions> {
    static FUNCTIONS: OnceLock<Option<TcmallocFunctions>> = OnceLock::new();
    FUNCTIONS.get_or_init(load).as_ref()
}

fn load() -> Option<TcmallocFunctions> {
    // SAFETY: the name ends with NUL; the library does no harm when it is loaded.
    let library = unsafe { libc::dlopen(c"libtcmalloc_minimal.so.4".as_ptr(), libc::RTLD_NOW) };
    if library.is_null() {
        println!("left out: tcmalloc is not installed (libtcmalloc-minimal4)");
        return None;
    }
    // SAFETY: the functions of these names have these types, as gperftools/tcmalloc.h says.
    unsafe {
        Some(TcmallocFunctions {
            malloc: find(library, c"tc_malloc")?,
            calloc: find(library, c"tc_calloc")?,
            memalign: find(library, c"tc_memalign")?,
            free: find(library, c"tc_free")?,
        })
    }
}

/// # Safety
/// The function of this name is an `F`.
unsafe fn find<F: Copy>(library: *mut c_void, name: &CStr) -> Option<F> {
    // SAFETY: the library was loaded, and the name ends with NUL.
    let found = unsafe { libc::dlsym(library, name.as_ptr()) };
    assert_eq!(size_of::<F>(), size_of_val(&found));
    // SAFETY: the caller guarantees that the symbol has this type; the sizes were compared.
    (!found.is_null()).then(|| unsafe { transmute_copy(&found) })
}

// SAFETY: tcmalloc's functions do what those of the C library do.
unsafe impl GlobalAlloc for Tcmalloc {
    #[inline]
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        let Some(functions) = functions() else { return std::ptr::null_mut() };
        if layout.align() <= 16 {
            // SAFETY: `malloc` takes any size.
            unsafe { (functions.malloc)(layout.size()) }.cast()
        } else {
            // SAFETY: an alignment of a layout is a power of two.
            unsafe { (functions.memalign)(layout.align(), layout.size()) }.cast()
        }
    }

    #[inline]
    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        match functions() {
            // SAFETY: `calloc` takes any sizes.
            Some(functions) if layout.align() <= 16 => unsafe {
                (functions.calloc)(1, layout.size()).cast()
            },
            _ => {
                // SAFETY: the caller passes a layout with a size above 0.
                let block = unsafe { self.alloc(layout) };
                if !block.is_null() {
                    // SAFETY: the block has this size.
                    unsafe { block.write_bytes(0, layout.size()) };
                }
                block
            }
        }
    }

    #[inline]
    unsafe fn dealloc(&self, block: *mut u8, _layout: Layout) {
        if let Some(functions) = functions() {
            // SAFETY: the caller passes a block of tcmalloc's.
            unsafe { (functions.free)(block.cast()) };
        }
    }
}
