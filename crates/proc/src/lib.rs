//! Sources: files of `/proc` and ELF headers to model values. Interprets nothing.
#![forbid(unsafe_code)]
