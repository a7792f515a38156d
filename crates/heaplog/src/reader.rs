//! Reads a recording from a file, up to the end of the file or to the first error.
//!
//! A file may be truncated, damaged or hostile. Data is checked before it is stored: each index
//! must refer to an existing entry. Memory grows with the bytes of the file, at most some 16 KiB
//! for each byte and 1 GiB in total: a length is trusted only if its bytes are present, and the
//! numbers of sites, calls and trees of a file are limited (`limit` in `format.rs`).

use std::fmt;
use std::io::{self, Read, Seek, SeekFrom};

use crate::format::{self, In, MAGIC, Next, VERSION, kind, limit};
use crate::recording::{LogRecording, LogSnapshot};
use crate::shapes::{self, CodecState};

/// Content of a file.
#[derive(Clone, Debug, PartialEq)]
pub struct LogFile {
    /// The content up to the end of the file, or up to the first error.
    pub recording: LogRecording,
    /// Position and cause of an early end of the content; `None` if the file is complete.
    pub cut: Option<Cut>,
}

/// Position from which a file cannot be read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Cut {
    /// Number of bytes that were read without an error.
    pub offset: u64,
    /// Problem with the following bytes.
    pub why: &'static str,
}

/// Reason why nothing can be read.
#[derive(Debug)]
#[non_exhaustive]
pub enum LogError {
    /// Reading the file failed.
    Io(io::Error),
    /// The file is not a heap recording.
    Other,
    /// The file has a later version of the format.
    Later(u8),
    /// The file is damaged at its beginning, so that the recorded process is unknown.
    Broken(&'static str),
}

impl fmt::Display for LogError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            LogError::Io(error) => error.fmt(f),
            LogError::Other => write!(f, "it is not a heap recording"),
            LogError::Later(version) => {
                write!(f, "it has format version {version}, this program reads version {VERSION}")
            }
            LogError::Broken(why) => {
                write!(f, "its description of the recording is unreadable: {why}")
            }
        }
    }
}

impl std::error::Error for LogError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            LogError::Io(error) => Some(error),
            _ => None,
        }
    }
}

impl From<io::Error> for LogError {
    fn from(error: io::Error) -> LogError {
        LogError::Io(error)
    }
}

/// Reads a file from its beginning to its end, or to the first error.
///
/// # Errors
/// [`LogError`] if the beginning of the file cannot be read.
pub fn read(input: impl Read) -> Result<LogFile, LogError> {
    let mut input = io::BufReader::new(input);
    let mut offset = head(&mut input)?;
    let mut reader = LogReader::default();
    let cut = loop {
        let why = match format::next(&mut input)? {
            Next::Nothing if reader.recording.end.is_none() => {
                "the file was cut off between two frames"
            }
            Next::Nothing => break None,
            Next::Broken(why) => why,
            Next::Frame(kind, payload, length) => match reader.apply_record(kind, &payload) {
                Ok(()) => {
                    offset += length;
                    continue;
                }
                Err(why) => why,
            },
        };
        break Some(Cut { offset, why });
    };
    match (reader.has_begun, &cut) {
        (true, _) => Ok(LogFile { recording: reader.finish(), cut }),
        (false, Some(cut)) => Err(LogError::Broken(cut.why)),
        (false, None) => Err(LogError::Broken("the first frame is missing")),
    }
}

/// Checks the magic number and the version of a file. Returns their length in bytes.
fn head(input: &mut impl Read) -> Result<u64, LogError> {
    let mut head = [0; MAGIC.len() + 1];
    if !format::fill(input, &mut head)? || head[..MAGIC.len()] != MAGIC {
        return Err(LogError::Other);
    }
    match head[MAGIC.len()] {
        0 => Err(LogError::Other),
        version if version > VERSION => Err(LogError::Later(version)),
        _ => Ok(head.len() as u64),
    }
}

#[derive(Debug, Default)]
struct LogReader {
    has_begun: bool,
    recording: LogRecording,
    state: CodecState,
}

impl LogReader {
    fn apply_record(&mut self, kind: u8, payload: &[u8]) -> Result<(), format::Bad> {
        let mut input = In(payload);
        let LogReader { has_begun, recording, state } = self;
        match kind {
            kind::BEGIN if *has_begun => return Err("it begins twice"),
            kind::BEGIN => {
                recording.begin = shapes::read_begin(&mut input)?;
                *has_begun = true;
            }
            // These frames are invalid before the `BEGIN` frame.
            kind::MODULES..=kind::END | kind::LAYOUT | kind::BLOCKS if !*has_begun => {
                return Err("it does not begin");
            }
            kind::MODULES => recording.modules.extend(state.read_modules(&mut input)?),
            kind::PLACES => recording.places.extend(state.read_places(&mut input)?),
            kind::NODES => state.read_nodes(&mut input)?,
            kind::SITES => recording.sites.extend(state.read_sites(&mut input)?),
            kind::MOMENT if recording.moments.len() >= limit::MOMENTS => {
                return Err("too many moments");
            }
            kind::MOMENT => {
                let moment = state.read_moment(&mut input)?;
                if recording.moments.last().is_some_and(|last| last.time_ns > moment.time_ns) {
                    return Err("a moment is before the one before it");
                }
                recording.moments.push(moment);
            }
            kind::LAYOUT if recording.layouts.len() >= limit::LAYOUTS => {
                return Err("too many layouts");
            }
            kind::LAYOUT => {
                let layout = state.read_layout(&mut input)?;
                if recording.layouts.last().is_some_and(|last| last.time_ns > layout.time_ns) {
                    return Err("a layout is before the one before it");
                }
                recording.layouts.push(layout);
            }
            kind::BLOCKS => state.read_blocks(&mut input, &mut recording.blocks)?,
            kind::COUNTS => recording.counts = state.read_counts(&mut input)?,
            kind::END => recording.end = Some(shapes::read_end(&mut input)?),
            // Frame kinds that a newer writer added, and frames of the snapshot index, are ignored.
            _ => {}
        }
        Ok(())
    }

    fn finish(mut self) -> LogRecording {
        self.recording.nodes = std::mem::take(&mut self.state.nodes);
        self.recording
    }
}

/// Index of the snapshots of a file, stored at its end.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SnapshotIndex {
    moments: u64,
    keys: Vec<ReadKeyFrame>,
}

/// A snapshot that can be decoded without earlier snapshots.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct ReadKeyFrame {
    moment: u64,
    time_ns: u64,
    offset: u64,
}

/// Number of bytes of the last frame of a file: a kind, two lengths of one byte each, a checksum
/// and an offset.
const TRAILER: i64 = 1 + 2 + 4 + 8;

impl SnapshotIndex {
    /// Reads the index of a file. `None` if the file has no readable index; the file must then be
    /// read from its beginning.
    ///
    /// # Errors
    /// Returns the error of the read.
    pub fn read(input: &mut (impl Read + Seek)) -> io::Result<Option<SnapshotIndex>> {
        let length = input.seek(SeekFrom::End(0))?;
        if length < TRAILER.unsigned_abs() {
            return Ok(None);
        }
        input.seek(SeekFrom::End(-TRAILER))?;
        let Next::Frame(kind::TRAILER, payload, _) = format::next(input)? else { return Ok(None) };
        let Some(offset) = payload.first_chunk().map(|bytes| u64::from_le_bytes(*bytes)) else {
            return Ok(None);
        };
        if offset >= length {
            return Ok(None);
        }
        input.seek(SeekFrom::Start(offset))?;
        let Next::Frame(kind::INDEX, payload, _) = format::next(input)? else { return Ok(None) };
        Ok(SnapshotIndex::parse(In(&payload)).ok())
    }

    fn parse(mut input: In<'_>) -> Result<SnapshotIndex, format::Bad> {
        let moments = input.number()?;
        let mut keys = Vec::new();
        let mut last = ReadKeyFrame { moment: 0, time_ns: 0, offset: 0 };
        for _ in 0..input.count(3, limit::MOMENTS)? {
            last = ReadKeyFrame {
                moment: input.change(last.moment)?,
                time_ns: input.change(last.time_ns)?,
                offset: input.change(last.offset)?,
            };
            keys.push(last);
        }
        Ok(SnapshotIndex { moments, keys })
    }

    /// Number of snapshots in the file.
    pub fn moments(&self) -> u64 {
        self.moments
    }

    /// Reads the last snapshot that has a tree of live amounts and is not later than a time. Starts
    /// at the last key snapshot that is not later than this time; a key snapshot can be decoded
    /// without earlier snapshots. The caller must check that the sites of the tree exist. `None` if
    /// such a snapshot does not exist or cannot be read.
    ///
    /// # Errors
    /// Returns the error of the read.
    pub fn tree_at(
        &self,
        input: &mut (impl Read + Seek),
        time_ns: u64,
    ) -> io::Result<Option<LogSnapshot>> {
        let after = self.keys.partition_point(|key| key.time_ns <= time_ns);
        // There may be no tree between the last key snapshot and the time, so earlier key snapshots
        // are tried too.
        for key in self.keys[..after].iter().rev() {
            input.seek(SeekFrom::Start(key.offset))?;
            if let Some(found) = last_tree(&mut io::BufReader::new(&mut *input), time_ns)? {
                return Ok(Some(found));
            }
        }
        Ok(None)
    }
}

/// Reads from the current position up to a time, or to the next key snapshot, and returns the last
/// snapshot with a tree.
fn last_tree(input: &mut impl Read, time_ns: u64) -> io::Result<Option<LogSnapshot>> {
    let mut state = CodecState::of_any_sites();
    let (mut found, mut is_first) = (None, true);
    loop {
        match format::next(input)? {
            Next::Frame(kind::MOMENT, payload, _) => {
                if !is_first && shapes::is_key(&payload) {
                    return Ok(found);
                }
                is_first = false;
                let Ok(moment) = state.read_moment(&mut In(&payload)) else { return Ok(found) };
                if moment.time_ns > time_ns {
                    return Ok(found);
                }
                if moment.tree.is_some() {
                    found = Some(moment);
                }
            }
            Next::Frame(kind::END, ..) | Next::Nothing | Next::Broken(_) => return Ok(found),
            Next::Frame(..) => {}
        }
    }
}
