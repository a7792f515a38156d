//! General allocators under names of their own, side by side in one process.

use std::alloc::{GlobalAlloc, System};

/// A general allocator and its name.
pub type Named = (&'static str, &'static dyn GlobalAlloc);

/// Every general allocator, for rounds in which an indirect call does not count.
pub const GENERAL: &[Named] = &[
    ("glibc", &System),
    ("jemalloc", &tikv_jemallocator::Jemalloc),
    ("mimalloc", &mimalloc::MiMalloc),
    ("snmalloc", &snmalloc_rs::SnMalloc),
];

/// Calls a macro with the name and the value of every general allocator: rounds that are compiled for each.
#[macro_export]
macro_rules! for_each_malloc {
    ($call:ident) => {
        $call!("glibc", std::alloc::System);
        $call!("jemalloc", tikv_jemallocator::Jemalloc);
        $call!("mimalloc", mimalloc::MiMalloc);
        $call!("snmalloc", snmalloc_rs::SnMalloc);
    };
}
