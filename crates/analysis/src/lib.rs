//! Analyses: model values to reports. Pure: no I/O, no clock.
#![forbid(unsafe_code)]
