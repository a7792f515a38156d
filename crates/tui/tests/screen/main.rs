//! Frames and keys of the live view, on a fixed machine.

#![allow(clippy::unwrap_used, reason = "a test may panic")]

mod frames;
mod keys;
mod made;
mod random;
