//! Tests of the simulators against second implementations.

#![allow(clippy::unwrap_used, reason = "tests may do that")]

mod cachegrind;
mod mem_access;
mod naive;
mod replacement;
