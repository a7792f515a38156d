//! Tests of the statistics: error rates, laws, and comparison with SciPy.

mod calibration;
mod laws;
mod reference;
