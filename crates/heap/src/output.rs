//! The file of a recording. An incomplete file is readable up to its end, and only its owner can
//! access it.

use std::fs::File;
use std::io::{self, BufWriter, IntoInnerError};
use std::path::{Path, PathBuf};

use pagewise_heaplog::recording::{Begin, LogEnd};
use pagewise_heaplog::writer::LogWriter;
use pagewise_sys::output_file::Growing;

use crate::error::HeapError;

/// A recording that is being written.
#[derive(Debug)]
pub(crate) struct RecordingOutput {
    growing: Growing,
    pub(crate) writer: LogWriter<BufWriter<File>>,
}

/// Destination of a recording that has ended.
#[derive(Clone, Debug)]
pub(crate) enum OutputFate {
    /// The file gets the name for which it was created, if it does not have it yet.
    Keep,
    /// The file gets this name, or a similar one that is free.
    Move(PathBuf),
    /// The file is removed.
    Discard,
}

impl RecordingOutput {
    /// Begins a recording of this name. An existing file of this name stays until the recording is
    /// complete.
    pub(crate) fn create(path: &Path, begin: &Begin) -> Result<RecordingOutput, HeapError> {
        RecordingOutput::begin(path, Growing::create(path), begin)
    }

    /// Begins a recording of this name, or of a similar one that is free. An existing file is never
    /// overwritten.
    pub(crate) fn create_new(path: &Path, begin: &Begin) -> Result<RecordingOutput, HeapError> {
        RecordingOutput::begin(path, Growing::create_new(path), begin)
    }

    fn begin(
        path: &Path,
        made: io::Result<(Growing, File)>,
        begin: &Begin,
    ) -> Result<RecordingOutput, HeapError> {
        let error = |source| HeapError::File { path: path.to_owned(), source };
        let (growing, file) = made.map_err(error)?;
        match LogWriter::create(BufWriter::new(file), begin) {
            Ok(writer) => Ok(RecordingOutput { growing, writer }),
            Err(source) => {
                growing.discard();
                Err(error(source))
            }
        }
    }

    /// Present path.
    pub(crate) fn path(&self) -> &Path {
        self.growing.path()
    }

    /// Adds the path to an error of writing the file.
    pub(crate) fn error(&self, source: io::Error) -> HeapError {
        HeapError::File { path: self.path().to_owned(), source }
    }

    /// Ends the file. Returns its final path and its size in bytes.
    pub(crate) fn end(self, end: &LogEnd, then: OutputFate) -> Result<(PathBuf, u64), HeapError> {
        let RecordingOutput { growing, writer } = self;
        let path = growing.path().to_owned();
        let written = || -> io::Result<(PathBuf, u64)> {
            let file = writer.end(end)?.into_inner().map_err(IntoInnerError::into_error)?;
            let bytes = file.metadata()?.len();
            let path = match then {
                OutputFate::Keep => growing.complete(&file)?,
                OutputFate::Move(to) => growing.complete_at(&file, &to)?,
                OutputFate::Discard => {
                    let path = growing.path().to_owned();
                    growing.discard();
                    path
                }
            };
            Ok((path, bytes))
        };
        written().map_err(|source| HeapError::File { path, source })
    }
}
