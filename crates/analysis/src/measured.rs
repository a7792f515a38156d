//! Reports about runs that were measured or simulated.

pub mod lab;
pub mod simulated;
pub mod stat;
