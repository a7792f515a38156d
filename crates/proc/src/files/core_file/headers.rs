//! The ELF header and the program headers of a core file.
//!
//! Linux writes 64-bit little-endian cores on the machines that pagewise runs on.

use pagewise_model::Bytes;
use pagewise_model::core_dump::CoreSegment;
use pagewise_model::machine::Gap;
use pagewise_model::mapping::{AddrRange, Prot};

use super::bytes::{CoreBytes, number, u32_at, u64_at};
use super::{CoreProblem, gap};

/// More load segments than `vm.max_map_count` allows on any machine we know of.
const MAX_SEGMENTS: usize = 1 << 20;
/// The kernel writes one segment of notes.
const MAX_NOTE_SEGMENTS: usize = 64;
/// Program headers read at a time.
const HEADERS_AT_ONCE: usize = 1024;

const HEADER_SIZE: usize = 64;
const PROGRAM_HEADER_SIZE: usize = 56;

const ET_CORE: u64 = 4;
const PT_LOAD: u32 = 1;
const PT_NOTE: u32 = 4;
const PF_X: u32 = 1;
const PF_W: u32 = 2;
const PF_R: u32 = 4;
/// `e_phnum` where the number does not fit: it is in the first section header.
const PN_XNUM: u64 = 0xffff;
/// Offset of `sh_info` in a section header.
const SH_INFO: u64 = 44;

/// Machine of a core file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum CoreMachine {
    X86,
    Arm,
    Other(u64),
}

/// The parts of the ELF header that matter.
#[derive(Debug)]
pub(super) struct CoreHeader {
    pub(super) machine: CoreMachine,
    table: u64,
    count: u64,
}

/// The load segments and the segments of notes.
#[derive(Debug, Default)]
pub(super) struct ProgramHeaders {
    pub(super) loads: Vec<LoadHeader>,
    /// Offset and length in the file.
    pub(super) notes: Vec<(u64, u64)>,
}

/// A load segment as its header describes it.
#[derive(Clone, Copy, Debug)]
pub(super) struct LoadHeader {
    pub(super) range: AddrRange,
    pub(super) prot: Prot,
    offset: u64,
    dumped: u64,
}

impl LoadHeader {
    /// The segment in a file of that size.
    pub(super) fn segment(&self, size: u64) -> CoreSegment {
        let held = self.dumped.min(size.saturating_sub(self.offset));
        CoreSegment {
            range: self.range,
            offset: self.offset,
            dumped: Bytes(self.dumped),
            held: Bytes(held),
        }
    }
}

/// Reads the ELF header.
pub(super) fn header(bytes: &CoreBytes) -> Result<CoreHeader, CoreProblem> {
    let Some(header) = bytes.array::<HEADER_SIZE>(0) else {
        let problem = format!("expected an ELF header of {HEADER_SIZE} bytes, found the end");
        return Err(CoreProblem::new(bytes.len(), problem));
    };
    let number = |problem: &'static str, at: u64| CoreProblem::new(at, problem);
    match header {
        [0x7f, b'E', b'L', b'F', 2, 1, ..] => {}
        [0x7f, b'E', b'L', b'F', 1, ..] => {
            return Err(number("a 32-bit core file; only 64-bit ones can be read", 4));
        }
        [0x7f, b'E', b'L', b'F', 2, ..] => {
            return Err(number("a big-endian core file; only little-endian ones can be read", 5));
        }
        _ => return Err(number("expected an ELF core file, found another format", 0)),
    }
    let field = |at: usize| number16(&header, at);
    if field(16) != ET_CORE {
        let problem = format!("expected a core file (ELF type 4), found ELF type {}", field(16));
        return Err(CoreProblem::new(16, problem));
    }
    let machine = match field(18) {
        62 => CoreMachine::X86,
        183 => CoreMachine::Arm,
        other => CoreMachine::Other(other),
    };
    if field(54) != PROGRAM_HEADER_SIZE as u64 {
        let problem = format!(
            "expected program headers of {PROGRAM_HEADER_SIZE} bytes, found {} bytes",
            field(54)
        );
        return Err(CoreProblem::new(54, problem));
    }
    let table = u64_at(&header, 32).unwrap_or(0);
    let count = count(bytes, &header, field(56))?;
    Ok(CoreHeader { machine, table, count })
}

fn number16(bytes: &[u8], at: usize) -> u64 {
    number::<2>(bytes, at).unwrap_or(0)
}

/// The number of program headers.
fn count(bytes: &CoreBytes, header: &[u8], short: u64) -> Result<u64, CoreProblem> {
    let count = match short {
        PN_XNUM => {
            let at = u64_at(header, 40).unwrap_or(0).saturating_add(SH_INFO);
            let count = bytes.array::<4>(at).map(|word| u64::from(u32::from_le_bytes(word)));
            let missing = "expected the number of program headers, found the end of the file";
            count.ok_or_else(|| CoreProblem::new(at, missing))?
        }
        short => short,
    };
    match usize::try_from(count) {
        Ok(0) => Err(CoreProblem::new(56, "the file has no program headers")),
        Ok(1..=MAX_SEGMENTS) => Ok(count),
        _ => {
            let problem = format!("{count} program headers; at most {MAX_SEGMENTS} can be read");
            Err(CoreProblem::new(56, problem))
        }
    }
}

/// Reads the program headers. Those behind the end of a truncated file become a gap.
pub(super) fn programs(
    bytes: &CoreBytes,
    header: &CoreHeader,
    gaps: &mut Vec<Gap>,
) -> Result<ProgramHeaders, CoreProblem> {
    let room = bytes.len().saturating_sub(header.table) / PROGRAM_HEADER_SIZE as u64;
    let present = header.count.min(room);
    if present == 0 {
        let problem = "expected program headers, found the end of the file";
        return Err(CoreProblem::new(header.table, problem));
    }
    if present < header.count {
        let reason = format!("the file is truncated: {present} of {} are there", header.count);
        gaps.push(gap("program headers", reason));
    }
    let mut found = ProgramHeaders::default();
    let mut read = 0;
    while read < present {
        let now = (present - read).min(HEADERS_AT_ONCE as u64);
        let offset = header.table + read * PROGRAM_HEADER_SIZE as u64;
        let len = usize::try_from(now).unwrap_or(HEADERS_AT_ONCE) * PROGRAM_HEADER_SIZE;
        let Some(piece) = bytes.vec(offset, len) else {
            gaps.push(gap("program headers", format!("cannot read {len} bytes at {offset:#x}")));
            break;
        };
        piece.chunks_exact(PROGRAM_HEADER_SIZE).for_each(|one| found.add(one));
        read += now;
    }
    let overlapping = found.sort();
    if overlapping > 0 {
        let reason = format!("{overlapping} overlap others or have no valid range: left out");
        gaps.push(gap("load segments", reason));
    }
    Ok(found)
}

impl ProgramHeaders {
    fn add(&mut self, header: &[u8]) {
        let word = |at| u64_at(header, at).unwrap_or(0);
        let [kind, flags] = [0, 4].map(|at| u32_at(header, at).unwrap_or(0));
        let (offset, address, in_file, in_memory) = (word(8), word(16), word(32), word(40));
        match kind {
            PT_NOTE if self.notes.len() < MAX_NOTE_SEGMENTS => self.notes.push((offset, in_file)),
            PT_LOAD if in_memory > 0 => self.loads.push(LoadHeader {
                range: AddrRange { start: address, end: address.wrapping_add(in_memory) },
                prot: Prot {
                    read: flags & PF_R != 0,
                    write: flags & PF_W != 0,
                    exec: flags & PF_X != 0,
                },
                offset,
                dumped: in_file.min(in_memory),
            }),
            _ => {}
        }
    }

    /// Sorts the load segments by address. Returns the number of those that it drops.
    fn sort(&mut self) -> usize {
        let all = self.loads.len();
        self.loads.sort_by_key(|load| load.range);
        let mut end = 0;
        // The end offset must not overflow.
        self.loads.retain(|load| {
            let is_valid = load.range.start >= end
                && !load.range.is_empty()
                && load.offset.checked_add(load.dumped).is_some();
            if is_valid {
                end = load.range.end;
            }
            is_valid
        });
        all - self.loads.len()
    }
}
