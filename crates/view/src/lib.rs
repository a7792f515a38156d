//! Views: a report as text, JSON or HTML. They draw and never compute.
//!
//! [`text`] is for terminals, [`json`] for programs, [`html`] for one page to keep or to send.
//! All three take the same [`Report`](pagewise_model::Report), so a number is in each or in none.
//! Formatting a number for people is drawing; adding two numbers up is not, and is done nowhere
//! here. Words from outside leave this crate escaped.
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
