//! The file that a recording is written to: readable at any time up to where it is cut off, and its owner's alone.

use std::fs::File;
use std::io::{self, BufWriter, IntoInnerError};
use std::path::{Path, PathBuf};

use pagewise_heaplog::recording::{Begin, End};
use pagewise_heaplog::writer::Writer;
use pagewise_sys::output_file::Growing;

use crate::error::Error;

/// A recording that is being written.
#[derive(Debug)]
pub(crate) struct Output {
    growing: Growing,
    /// Writes into it.
    pub(crate) writer: Writer<BufWriter<File>>,
}

/// What becomes of a recording that has ended.
#[derive(Clone, Debug)]
pub(crate) enum Then {
    /// It has the name that it was made for, from now on at the latest.
    Keep,
    /// It gets this name, or one that is free beside it.
    Move(PathBuf),
    /// It is removed.
    Discard,
}

impl Output {
    /// Begins a recording of this name; a file that has it stays until the recording is complete.
    pub(crate) fn create(path: &Path, begin: &Begin) -> Result<Output, Error> {
        Output::begin(path, Growing::create(path), begin)
    }

    /// Begins a recording of this name, or of one that is free beside it: what is there is never written to.
    pub(crate) fn create_new(path: &Path, begin: &Begin) -> Result<Output, Error> {
        Output::begin(path, Growing::create_new(path), begin)
    }

    fn begin(
        path: &Path,
        made: io::Result<(Growing, File)>,
        begin: &Begin,
    ) -> Result<Output, Error> {
        let error = |source| Error::File { path: path.to_owned(), source };
        let (growing, file) = made.map_err(error)?;
        match Writer::create(BufWriter::new(file), begin) {
            Ok(writer) => Ok(Output { growing, writer }),
            Err(source) => {
                growing.discard();
                Err(error(source))
            }
        }
    }

    /// Where it is now.
    pub(crate) fn path(&self) -> &Path {
        self.growing.path()
    }

    /// An error of writing it.
    pub(crate) fn error(&self, source: io::Error) -> Error {
        Error::File { path: self.path().to_owned(), source }
    }

    /// Ends it. Where it is from now on, and how many bytes it has.
    pub(crate) fn end(self, end: &End, then: Then) -> Result<(PathBuf, u64), Error> {
        let Output { growing, writer } = self;
        let path = growing.path().to_owned();
        let written = || -> io::Result<(PathBuf, u64)> {
            let file = writer.end(end)?.into_inner().map_err(IntoInnerError::into_error)?;
            let bytes = file.metadata()?.len();
            let path = match then {
                Then::Keep => growing.complete(&file)?,
                Then::Move(to) => growing.complete_at(&file, &to)?,
                Then::Discard => {
                    let path = growing.path().to_owned();
                    growing.discard();
                    path
                }
            };
            Ok((path, bytes))
        };
        written().map_err(|source| Error::File { path, source })
    }
}
