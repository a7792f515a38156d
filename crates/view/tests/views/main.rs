//! Tests of the views, one module for each format or kind of report.

#![allow(clippy::unwrap_used, reason = "a test stops at what it did not expect")]

mod any_report;
mod common;
mod export;
mod golden;
mod heap;
mod heap_page;
mod html_long;
#[allow(dead_code, reason = "the tests read some of it")]
mod profile;
#[allow(clippy::cast_possible_truncation, reason = "numbers of a test")]
mod simulated;
mod speed;
