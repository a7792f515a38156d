//! Sweeps over all processes in SQLite files, one a day, and the same values read back.
//!
//! A row has only the values that changed since the row before of the same process or cgroup. At
//! intervals, a sweep has complete rows, from which a reader starts. docs/record.md documents the
//! tables.
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
