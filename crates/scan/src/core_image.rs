//! Memory of a core file, read from the file on demand; the whole file is never in memory.
//!
//! Pages that are holes in the file were never touched: they read as zeros, and `visit` skips them.
//! Bytes that were not dumped are unknown, except in read-only segments whose mapped file has the
//! build ID that the core file records.

use std::sync::Mutex;

use pagewise_model::{AddrRange, Bytes, Mapping, PageSize, Snapshot};
use pagewise_proc::core_file::{self, CoreFile, ImageFiles, ThreadNote};

use crate::memory::{Memory, ScannedThread};

/// Number of bytes that are read at once and cached for later reads of nearby addresses.
const WINDOW: usize = 1 << 16;

/// A core file, presented as the memory of a process.
#[derive(Debug)]
pub struct CoreImage {
    core: CoreFile,
    images: ImageFiles,
    snapshot: Snapshot,
    mappings: Vec<Mapping>,
    threads: Vec<ScannedThread>,
    window: Mutex<Window>,
}

/// Bytes of the last read from the core file: successive chunk headers are often close to each
/// other.
#[derive(Debug, Default)]
struct Window {
    start: u64,
    bytes: Vec<u8>,
}

impl Window {
    fn get(&self, address: u64, len: usize) -> Option<&[u8]> {
        let offset = usize::try_from(address.checked_sub(self.start)?).ok()?;
        self.bytes.get(offset..offset.checked_add(len)?)
    }
}

impl CoreImage {
    /// Creates the memory of an open core file. Files in `images` supply the read-only segments
    /// that the core file lacks.
    pub fn new(core: CoreFile, images: ImageFiles) -> CoreImage {
        let mut snapshot = core_file::snapshot(&core, &images);
        // A core file contains the name of the first thread only.
        let named = core.notes().process.as_ref();
        let name = |tid| named.filter(|process| process.pid == tid).map(|it| &it.name);
        let thread = |note: &ThreadNote| ScannedThread {
            tid: note.tid.0,
            name: name(note.tid).map_or_else(Vec::new, |name| name.as_bytes().to_vec()),
            stack_pointer: note.stack_pointer,
            thread_pointer: note.thread_pointer,
            registers: in_sample_order(&note.registers),
        };
        let threads = core.notes().threads.iter().map(thread).collect();
        let mappings = std::mem::replace(&mut snapshot.mappings, Ok(Vec::new()));
        let mappings = mappings.unwrap_or_default();
        CoreImage { core, images, snapshot, mappings, threads, window: Mutex::default() }
    }

    /// Identity and properties of the process, without the mappings; [`Memory::mappings`] returns
    /// the mappings.
    pub fn snapshot(&self) -> &Snapshot {
        &self.snapshot
    }

    /// The files that the process had mapped.
    pub fn images(&self) -> &ImageFiles {
        &self.images
    }

    /// The base page size of the machine.
    pub fn page_size(&self) -> PageSize {
        self.snapshot.provenance.page_size
    }

    /// Number of bytes of memory that the core file contains.
    pub fn held(&self) -> Bytes {
        self.core.segments().iter().map(|segment| segment.held).sum()
    }

    /// Fills `into` from the core file through the cached window. Returns false if a byte is
    /// missing.
    fn read_core(&self, address: u64, into: &mut [u8]) -> bool {
        // A thread that finds the window in use reads from the file directly.
        let Ok(mut window) = self.window.try_lock() else { return self.core.read(address, into) };
        if let Some(bytes) = window.get(address, into.len()) {
            into.copy_from_slice(bytes);
            return true;
        }
        let rest = AddrRange { start: address, end: address.saturating_add(WINDOW as u64) };
        let held = self.core.held(rest).next().filter(|held| held.start == address);
        let len = held.map_or(0, |held| usize::try_from(held.len().0).unwrap_or(WINDOW));
        if len < into.len() {
            return self.core.read(address, into);
        }
        window.start = address;
        window.bytes.resize(len, 0);
        if !self.core.read(address, &mut window.bytes) {
            window.bytes.clear();
            return self.core.read(address, into);
        }
        into.copy_from_slice(&window.bytes[..into.len()]);
        true
    }

    /// Fills `into` from the core file, and from mapped files where the core file has no bytes.
    /// Returns false if a byte is in neither.
    fn read_pieces(&self, address: u64, into: &mut [u8]) -> bool {
        let Some(end) = address.checked_add(into.len() as u64) else { return false };
        let part = |range: AddrRange| {
            let offset = |at: u64| usize::try_from(at - address).unwrap_or(usize::MAX);
            offset(range.start)..offset(range.end)
        };
        let mut at = address;
        for held in self.core.held(AddrRange { start: address, end }) {
            let before = AddrRange { start: at, end: held.start };
            let is_read = (before.is_empty() || self.images.read(at, &mut into[part(before)]))
                && self.core.read(held.start, &mut into[part(held)]);
            if !is_read {
                return false;
            }
            at = held.end;
        }
        let rest = AddrRange { start: at, end };
        rest.is_empty() || self.images.read(at, &mut into[part(rest)])
    }

    /// Calls `each` for the bytes of `held` that are stored in the file, without holes.
    fn visit_held(&self, held: AddrRange, piece: &mut [u8], each: &mut dyn FnMut(u64, &[u8])) {
        let mut at = held.start;
        while let Some(stored) = self.core.next_stored(AddrRange { start: at, end: held.end }) {
            // Pieces begin at a multiple of 8. If the stored bytes begin within a word, the rest of
            // this word is skipped: the other bytes of the word are a hole, or outside of the range
            // `held`.
            let first = stored.start.checked_next_multiple_of(8);
            let mut next = first.unwrap_or(stored.end);
            while next < stored.end {
                let rest = usize::try_from(stored.end - next).unwrap_or(WINDOW);
                let piece = &mut piece[..rest.min(WINDOW)];
                if self.core.read(next, piece) {
                    each(next, piece);
                }
                next += piece.len() as u64;
            }
            at = stored.end;
            if at >= held.end {
                return;
            }
        }
    }
}

/// Converts the x86-64 registers of a core file to the order of perf samples. The order of a core
/// file is r15 to r12, bp, bx, r11 to r8, ax, cx, dx, si, di, ip, sp. Registers of other machines
/// keep their order.
fn in_sample_order(registers: &[u64]) -> Vec<u64> {
    const ORDER: [usize; 17] = [10, 5, 11, 12, 13, 14, 4, 16, 15, 9, 8, 7, 6, 3, 2, 1, 0];
    match <&[u64; 17]>::try_from(registers) {
        Ok(registers) => ORDER.iter().map(|&at| registers[at]).collect(),
        Err(_) => registers.to_vec(),
    }
}

impl Memory for CoreImage {
    fn mappings(&self) -> &[Mapping] {
        &self.mappings
    }

    fn threads(&self) -> &[ScannedThread] {
        &self.threads
    }

    /// Visits the bytes that the core file contains. The bytes of read-only segments that are only
    /// in mapped files are not visited: they contain no pointers to the heap.
    fn visit(&self, range: AddrRange, each: &mut dyn FnMut(u64, &[u8])) {
        let mut piece = vec![0; WINDOW];
        for held in self.core.held(range) {
            self.visit_held(held, &mut piece, each);
        }
    }

    fn read(&self, address: u64, into: &mut [u8]) -> bool {
        into.is_empty() || self.read_core(address, into) || self.read_pieces(address, into)
    }
}
