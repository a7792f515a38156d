//! The C API of pagewise: `libpagewise.a` and `libpagewise.so`. `include/pagewise/*.h` document
//! each function.

mod common;
mod failure;
pub mod fifo;
mod home;
pub mod measure;
pub mod pages;
pub mod persistent;
pub mod ring;
pub mod stack;
pub mod tlsf;

pub use failure::pw_error_message;
