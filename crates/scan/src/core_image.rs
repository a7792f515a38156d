//! Memory of a core file: read from the file on request, never copied as a whole.
//!
//! Pages that the file has as a hole were never touched: they read as zeros, and `visit` leaves
//! them out. Bytes that were not dumped are unknown, except those of read-only segments whose file
//! has the recorded build ID.

use std::sync::Mutex;

use pagewise_model::{AddrRange, Bytes, Mapping, PageSize, Snapshot};
use pagewise_proc::core_file::{self, CoreFile, ImageFiles, ThreadNote};

use crate::memory::{Memory, ScannedThread};

/// Bytes read at a time, and kept for the next read nearby.
const WINDOW: usize = 1 << 16;

/// A core file as the memory of a process.
#[derive(Debug)]
pub struct CoreImage {
    core: CoreFile,
    images: ImageFiles,
    snapshot: Snapshot,
    mappings: Vec<Mapping>,
    threads: Vec<ScannedThread>,
    window: Mutex<Window>,
}

/// The bytes of the core that were read last: chunk headers are read one after the other.
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
    /// The memory of an open core file. `images` fill in read-only segments.
    pub fn new(core: CoreFile, images: ImageFiles) -> CoreImage {
        let mut snapshot = core_file::snapshot(&core, &images);
        // A core file has the name of the first thread only.
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

    /// Identity and properties of the process, without the mappings, which [`Memory::mappings`]
    /// has.
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

    /// Bytes of memory that the core has.
    pub fn held(&self) -> Bytes {
        self.core.segments().iter().map(|segment| segment.held).sum()
    }

    /// Fills `into` from the core, through the window.
    fn read_core(&self, address: u64, into: &mut [u8]) -> bool {
        // A thread that finds the window in use reads past it.
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

    /// Fills `into` piece by piece: held bytes from the core, the others from files.
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

    /// Calls `each` for the stored bytes of a range that the core holds.
    fn visit_held(&self, held: AddrRange, piece: &mut [u8], each: &mut dyn FnMut(u64, &[u8])) {
        let mut at = held.start;
        while let Some(stored) = self.core.next_stored(AddrRange { start: at, end: held.end }) {
            // Pieces hold whole words: the words at the border of a hole are zeros or cut off.
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

/// Registers of x86-64 in the order of perf samples. A core file has r15 to r12, bp, bx, r11 to r8,
/// ax, cx, dx, si, di, ip, sp. Those of other machines stay as they are.
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

    /// Visits what the core has. Read-only segments in files hold no pointers to the heap.
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
