//! The C API of pagewise: `libpagewise.a` and `libpagewise.so`. What each function promises is in `include/pagewise/*.h`.

mod failure;
pub mod measure;
pub mod persistent;
pub mod stack;

pub use failure::pw_error_message;
