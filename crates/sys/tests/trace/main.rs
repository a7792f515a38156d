//! Traced commands behave like untraced commands, and stop while their memory is still readable.

#![expect(clippy::unwrap_used, reason = "what fails here fails a test")]
#![expect(clippy::print_stderr, reason = "tests say what they skip, and which of them hangs")]

mod behaves;
mod calls;
mod stops;
mod support;
mod terminal;
