//! Frames and keys of the live view, on a fixed machine.

#![allow(clippy::unwrap_used, reason = "these are tests, their helpers too")]

mod frames;
mod keys;
mod made;
mod random;
