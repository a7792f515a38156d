//! Views: a report as text, JSON or HTML. Views draw and never compute.
//!
//! [`text`] is for terminals, [`json`] is for programs, and [`html`] is one page to keep or to
//! send. All use the same [`Report`](pagewise_model::Report), so each number is either in all of
//! them or in none. Views format numbers, but never add them up. All text from outside is escaped.
#![forbid(unsafe_code)]

mod cells;
pub mod csv;
pub mod export;
mod footnotes;
pub mod html;
pub mod json;
pub mod markdown;
mod number;
mod palette;
pub mod text;
mod words;
