//! Writes sweeps over all processes to SQLite files, one for each day, and reads them back without
//! loss.
//!
//! A row contains only the values that changed since the previous row of the same process or
//! cgroup. At intervals, all rows of a sweep are complete, so that a reader can begin there.
//! docs/record.md documents the tables.
#![forbid(unsafe_code)]

mod cells;
mod day_file;
mod day_rows;
mod error;
mod reader;
mod retention;
mod schema;
mod writer;

pub use day_file::{DayFile, day_of, files};
pub use error::StoreError;
pub use reader::{RecordCursor, RecordReader, RecordSpan};
pub use retention::{RetentionLimits, apply as apply_retention};
pub use writer::{RecordWriter, WriterOptions, is_recording};
