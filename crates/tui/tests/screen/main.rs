//! Tests of the frames and keys of the live view, with a constructed machine.

#![allow(clippy::unwrap_used, reason = "a test may panic")]

mod frames;
mod keys;
mod made;
mod random;
