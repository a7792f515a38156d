//! Reads a recording from a file, as far as it can be read.
//!
//! A file may be cut off, broken or made to harm. What is read is checked before it is kept: each number that names
//! something names what is there. Memory grows with what is in the file, at most some 16 KiB for a byte of it and 1 GiB in
//! all: lengths are believed when the bytes are there, and a file has so many sites, calls and trees at most (`limit` in
//! `format.rs`).

use std::fmt;
use std::io::{self, Read, Seek, SeekFrom};

use crate::format::{self, In, MAGIC, Next, VERSION, kind, limit};
use crate::recording::{Moment, Recording};
use crate::shapes::{self, State};

/// What was read.
#[derive(Clone, Debug, PartialEq)]
pub struct File {
    /// Everything up to where the file ends or is broken.
    pub recording: Recording,
    /// Where and why no more was read; none where the file is whole to its end.
    pub cut: Option<Cut>,
}

/// Where a file cannot be read on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Cut {
    /// So many bytes were read.
    pub offset: u64,
    /// What is wrong with those behind.
    pub why: &'static str,
}

/// Why nothing can be read.
#[derive(Debug)]
#[non_exhaustive]
pub enum Error {
    /// The reading failed.
    Io(io::Error),
    /// It is no recording of a heap.
    Other,
    /// It is of a later version of the format.
    Later(u8),
    /// It is broken at its beginning: what was recorded is not known.
    Broken(&'static str),
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Error::Io(error) => error.fmt(f),
            Error::Other => write!(f, "it is no recording of a heap"),
            Error::Later(version) => {
                write!(f, "it is of version {version} of the format, this reader knows {VERSION}")
            }
            Error::Broken(why) => write!(f, "it says nothing of what was recorded: {why}"),
        }
    }
}

impl std::error::Error for Error {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Error::Io(error) => Some(error),
            _ => None,
        }
    }
}

impl From<io::Error> for Error {
    fn from(error: io::Error) -> Error {
        Error::Io(error)
    }
}

/// Reads a file from its beginning to its end, or to where it is broken.
///
/// # Errors
/// [`Error`], where not even its beginning can be read.
pub fn read(input: impl Read) -> Result<File, Error> {
    let mut input = io::BufReader::new(input);
    let mut offset = head(&mut input)?;
    let mut reader = Reader::default();
    let cut = loop {
        let why = match format::next(&mut input)? {
            Next::Nothing if reader.recording.end.is_none() => {
                "the file was cut off between two frames"
            }
            Next::Nothing => break None,
            Next::Broken(why) => why,
            Next::Frame(kind, payload, length) => match reader.take(kind, &payload) {
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
        (true, _) => Ok(File { recording: reader.finish(), cut }),
        (false, Some(cut)) => Err(Error::Broken(cut.why)),
        (false, None) => Err(Error::Broken("there is no first frame")),
    }
}

/// Reads what each file begins with, and how many bytes that is.
fn head(input: &mut impl Read) -> Result<u64, Error> {
    let mut head = [0; MAGIC.len() + 1];
    if !format::fill(input, &mut head)? || head[..MAGIC.len()] != MAGIC {
        return Err(Error::Other);
    }
    match head[MAGIC.len()] {
        0 => Err(Error::Other),
        version if version > VERSION => Err(Error::Later(version)),
        _ => Ok(head.len() as u64),
    }
}

#[derive(Debug, Default)]
struct Reader {
    has_begun: bool,
    recording: Recording,
    state: State,
}

impl Reader {
    fn take(&mut self, kind: u8, payload: &[u8]) -> Result<(), format::Bad> {
        let mut input = In(payload);
        let Reader { has_begun, recording, state } = self;
        match kind {
            kind::BEGIN if *has_begun => return Err("it begins twice"),
            kind::BEGIN => {
                recording.begin = shapes::read_begin(&mut input)?;
                *has_begun = true;
            }
            // What comes before the beginning is of nothing.
            kind::MODULES..=kind::END | kind::LAYOUT if !*has_begun => {
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
            kind::COUNTS => recording.counts = state.read_counts(&mut input)?,
            kind::END => recording.end = Some(shapes::read_end(&mut input)?),
            // Of a later writer, which has more to say, or for those who seek.
            _ => {}
        }
        Ok(())
    }

    fn finish(mut self) -> Recording {
        self.recording.nodes = std::mem::take(&mut self.state.nodes);
        self.recording
    }
}

/// Where the moments of a file are, as it says at its end.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Index {
    moments: u64,
    keys: Vec<Key>,
}

/// A moment that can be read without those before it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Key {
    moment: u64,
    time_ns: u64,
    offset: u64,
}

/// What the last frame of a file takes: a kind, two lengths of a byte, a checksum and an offset.
const TRAILER: i64 = 1 + 2 + 4 + 8;

impl Index {
    /// Reads it. None where a file has none that can be read: then it has to be read from its beginning.
    ///
    /// # Errors
    /// Of the reading.
    pub fn read(input: &mut (impl Read + Seek)) -> io::Result<Option<Index>> {
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
        Ok(Index::parse(In(&payload)).ok())
    }

    fn parse(mut input: In<'_>) -> Result<Index, format::Bad> {
        let moments = input.number()?;
        let mut keys = Vec::new();
        let mut last = Key { moment: 0, time_ns: 0, offset: 0 };
        for _ in 0..input.count(3, limit::MOMENTS)? {
            last = Key {
                moment: input.change(last.moment)?,
                time_ns: input.change(last.time_ns)?,
                offset: input.change(last.offset)?,
            };
            keys.push(last);
        }
        Ok(Index { moments, keys })
    }

    /// How many moments the file has.
    pub fn moments(&self) -> u64 {
        self.moments
    }

    /// Reads the last moment that has a tree and is no later than a time, and none of what is far from it. The sites of its
    /// tree are not looked at: whether there are such is for who knows the sites. None where there is no such moment, or
    /// it cannot be read.
    ///
    /// # Errors
    /// Of the reading.
    pub fn tree_at(
        &self,
        input: &mut (impl Read + Seek),
        time_ns: u64,
    ) -> io::Result<Option<Moment>> {
        let after = self.keys.partition_point(|key| key.time_ns <= time_ns);
        // Behind the last key moment there may be no tree yet.
        for key in self.keys[..after].iter().rev() {
            input.seek(SeekFrom::Start(key.offset))?;
            if let Some(found) = last_tree(&mut io::BufReader::new(&mut *input), time_ns)? {
                return Ok(Some(found));
            }
        }
        Ok(None)
    }
}

/// The last moment with a tree from here to a time, or to the next key moment.
fn last_tree(input: &mut impl Read, time_ns: u64) -> io::Result<Option<Moment>> {
    let mut state = State::of_any_sites();
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
