//! Files that a process has mapped: ELF headers, symbols, and safe ways to open them. Core files.

pub mod core_file;
pub mod data_symbols;
pub mod elf;
pub mod target_file;
pub mod variables;
