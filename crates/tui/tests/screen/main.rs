//! Frames and keys of the live view, on a fixed machine.

mod frames;
mod keys;
mod made;
mod random;
