//! Writes a recording to a file while the program runs.

use std::io::{self, Write};

use crate::format::{MAGIC, Out, VERSION, frame, kind, limit};
use crate::layouts;
use crate::recording::{
    Begin, LogAddress, LogBlock, LogCallNode, LogCounts, LogEnd, LogLayout, LogModule, LogSite,
    LogSnapshot,
};
use crate::shapes::{self, CodecState};

/// A file to which data is only appended, so that it is readable whenever the writing ends.
///
/// Each call adds only new modules, addresses, calls or sites. The entries of each table are
/// numbered from 0 in the order in which they are added. These entries are buffered until an entry
/// that may refer to them is written, or until there are many of them.
///
/// ```
/// # use pagewise_heaplog::recording::{Begin, LogCounts, LogEnd, LogEnding, LogSnapshot};
/// # use pagewise_heaplog::{reader, writer::LogWriter};
/// let begin = Begin { pid: 7, ..Begin::default() };
/// let mut writer = LogWriter::create(Vec::new(), &begin)?;
/// writer.moment(&LogSnapshot::default())?;
/// writer.counts(&LogCounts::default())?;
/// let file = writer.end(&LogEnd { time_ns: 9, how: LogEnding::Exited(0) })?;
/// assert_eq!(reader::read(&file[..])?.recording.begin, begin);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct LogWriter<W> {
    out: W,
    /// Number of bytes written.
    at: u64,
    state: CodecState,
    modules: Vec<LogModule>,
    places: Vec<LogAddress>,
    nodes: Vec<LogCallNode>,
    sites: Vec<LogSite>,
    moments: u64,
    /// Number of trees since the last key snapshot; `None` before the first key snapshot.
    trees: Option<u32>,
    index: Vec<WrittenKeyFrame>,
}

/// A snapshot that can be decoded without earlier snapshots.
#[derive(Clone, Copy, Debug)]
struct WrittenKeyFrame {
    moment: u64,
    time_ns: u64,
    offset: u64,
}

/// Maximum number of calls, addresses or sites that are buffered.
const HELD_BACK: usize = 1 << 15;
/// Maximum number of live blocks in a frame.
const BLOCKS_IN_FRAME: usize = 1 << 18;
/// Maximum number of trees, and of snapshots, from one key snapshot to the next. A reader that
/// seeks to a time starts at a key snapshot, so these limits bound the data that it reads.
const KEY_TREES: u32 = 16;
const KEY_MOMENTS: u64 = 256;

impl<W: Write> LogWriter<W> {
    /// Begins a file.
    ///
    /// # Errors
    /// Returns the error of the writing.
    pub fn create(mut out: W, begin: &Begin) -> io::Result<LogWriter<W>> {
        out.write_all(&MAGIC)?;
        out.write_all(&[VERSION])?;
        let mut writer = LogWriter {
            out,
            at: MAGIC.len() as u64 + 1,
            state: CodecState::default(),
            modules: Vec::new(),
            places: Vec::new(),
            nodes: Vec::new(),
            sites: Vec::new(),
            moments: 0,
            trees: None,
            index: Vec::new(),
        };
        let mut payload = Out::default();
        shapes::write_begin(&mut payload, begin);
        writer.frame(kind::BEGIN, &payload)?;
        writer.out.flush()?;
        Ok(writer)
    }

    fn frame(&mut self, kind: u8, payload: &Out) -> io::Result<()> {
        let bytes = frame(kind, &payload.0)?;
        self.out.write_all(&bytes)?;
        self.at += bytes.len() as u64;
        Ok(())
    }

    /// Size of the file in bytes.
    pub fn written(&self) -> u64 {
        self.at
    }

    /// Adds modules.
    ///
    /// # Errors
    /// Returns the error of the writing.
    pub fn modules(&mut self, new: &[LogModule]) -> io::Result<()> {
        self.modules.extend_from_slice(new);
        self.hold_back()
    }

    /// Adds addresses in modules that were added before.
    ///
    /// # Errors
    /// Returns the error of the writing.
    pub fn places(&mut self, new: &[LogAddress]) -> io::Result<()> {
        self.places.extend_from_slice(new);
        self.hold_back()
    }

    /// Adds calls at addresses that were added before; a caller comes before its callees.
    ///
    /// # Errors
    /// Returns the error of the writing.
    pub fn nodes(&mut self, new: &[LogCallNode]) -> io::Result<()> {
        self.nodes.extend_from_slice(new);
        self.hold_back()
    }

    /// Adds sites. The call nodes to which they refer must have been added before.
    ///
    /// # Errors
    /// Returns the error of the writing.
    pub fn sites(&mut self, new: &[LogSite]) -> io::Result<()> {
        self.sites.extend_from_slice(new);
        self.hold_back()
    }

    fn hold_back(&mut self) -> io::Result<()> {
        let most = self.nodes.len().max(self.places.len()).max(self.sites.len());
        if most >= HELD_BACK { self.let_go() } else { Ok(()) }
    }

    /// Writes the buffered entries.
    fn let_go(&mut self) -> io::Result<()> {
        let (modules, places) =
            (std::mem::take(&mut self.modules), std::mem::take(&mut self.places));
        let (nodes, sites) = (std::mem::take(&mut self.nodes), std::mem::take(&mut self.sites));
        if !modules.is_empty() {
            let mut payload = Out::default();
            self.state.write_modules(&mut payload, &modules);
            self.frame(kind::MODULES, &payload)?;
        }
        // Many entries are divided among several frames, because a reader refuses a frame that is
        // too large.
        for places in places.chunks(HELD_BACK) {
            let mut payload = Out::default();
            self.state.write_places(&mut payload, places);
            self.frame(kind::PLACES, &payload)?;
        }
        for nodes in nodes.chunks(HELD_BACK) {
            let mut payload = Out::default();
            self.state.write_nodes(&mut payload, nodes);
            self.frame(kind::NODES, &payload)?;
        }
        for sites in sites.chunks(HELD_BACK) {
            let mut payload = Out::default();
            self.state.write_sites(&mut payload, sites);
            self.frame(kind::SITES, &payload)?;
        }
        Ok(())
    }

    /// Adds a snapshot, which must not be earlier than the previous one. Its tree may refer to
    /// sites that were added before. A reader returns the tree in order of size; sites of equal
    /// size are in order of index.
    ///
    /// # Errors
    /// Returns the error of the writing.
    pub fn moment(&mut self, moment: &LogSnapshot) -> io::Result<()> {
        let has_tree = moment.tree.is_some();
        if has_tree {
            self.let_go()?;
        }
        let key = self.moments.is_multiple_of(KEY_MOMENTS)
            || has_tree && self.trees.is_none_or(|trees| trees >= KEY_TREES);
        if key {
            self.index.push(WrittenKeyFrame {
                moment: self.moments,
                time_ns: moment.time_ns,
                offset: self.at,
            });
            self.trees = None;
        }
        if has_tree {
            self.trees = Some(self.trees.map_or(1, |trees| trees + 1));
        }
        let mut payload = Out::default();
        self.state.write_moment(&mut payload, moment, key);
        self.frame(kind::MOMENT, &payload)?;
        self.moments += 1;
        self.out.flush()
    }

    /// Adds a layout, which must not be earlier than the previous one. It may refer to sites that
    /// were added before.
    ///
    /// # Errors
    /// Returns the error of the writing.
    pub fn layout(&mut self, layout: &LogLayout) -> io::Result<()> {
        self.let_go()?;
        let mut payload = Out::default();
        layouts::write(&mut payload, layout);
        self.frame(kind::LAYOUT, &payload)?;
        self.out.flush()
    }

    /// Adds live blocks, which must be in order of address, without duplicates. The blocks may
    /// refer to sites that were added before. Blocks after the first
    /// [`MAX_BLOCKS`](crate::recording::MAX_BLOCKS) are ignored.
    ///
    /// # Errors
    /// Returns the error of the writing.
    pub fn blocks(&mut self, blocks: &[LogBlock]) -> io::Result<()> {
        self.let_go()?;
        let blocks = &blocks[..blocks.len().min(limit::BLOCKS)];
        for blocks in blocks.chunks(BLOCKS_IN_FRAME) {
            let mut payload = Out::default();
            layouts::write_blocks(&mut payload, blocks);
            self.frame(kind::BLOCKS, &payload)?;
        }
        self.out.flush()
    }

    /// Writes all counts so far: a reader uses the last complete counts. Unchanged counts need
    /// almost no space.
    ///
    /// # Errors
    /// Returns the error of the writing.
    pub fn counts(&mut self, counts: &LogCounts) -> io::Result<()> {
        self.let_go()?;
        let mut payload = Out::default();
        self.state.write_counts(&mut payload, counts);
        self.frame(kind::COUNTS, &payload)?;
        self.out.flush()
    }

    /// Ends the file, and returns the underlying output.
    ///
    /// # Errors
    /// Returns the error of the writing.
    pub fn end(mut self, end: &LogEnd) -> io::Result<W> {
        self.let_go()?;
        let mut payload = Out::default();
        shapes::write_end(&mut payload, end);
        self.frame(kind::END, &payload)?;
        let offset = self.at;
        let mut payload = Out::default();
        payload.number(self.moments);
        payload.count(self.index.len());
        let mut last = WrittenKeyFrame { moment: 0, time_ns: 0, offset: 0 };
        for key in &self.index {
            payload.change(last.moment, key.moment);
            payload.change(last.time_ns, key.time_ns);
            payload.change(last.offset, key.offset);
            last = *key;
        }
        self.frame(kind::INDEX, &payload)?;
        self.frame(kind::TRAILER, &Out(offset.to_le_bytes().to_vec()))?;
        self.out.flush()?;
        Ok(self.out)
    }
}
