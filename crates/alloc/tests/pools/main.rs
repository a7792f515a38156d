//! Tests of each allocator, in addition to those that every allocator passes: one module per
//! allocator.

#![allow(clippy::unwrap_used, clippy::print_stderr, reason = "these are tests, their helpers too")]

mod collections;
mod examples;
mod fifo;
mod pages;
mod retention;
mod ring;
mod sources;
mod stack;
mod tlsf;
