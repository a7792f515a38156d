//! Records of the perf ring buffers: `PERF_RECORD_*` of `linux/perf_event.h`, parsed from bytes.

use pagewise_sys::perf_ring::{Carries, PerfRecordHeader};

/// A record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PerfRecord<'a> {
    /// An event that was asked for.
    Sample(PerfSample<'a>),
    /// A new mapping.
    Mapped(MmapRecord<'a>),
    /// A thread has another name; with `exec`, its process another program.
    Named {
        /// Its process.
        pid: u32,
        /// The thread.
        tid: u32,
        /// The name.
        name: &'a [u8],
        /// True if it is a new program.
        exec: bool,
    },
    /// A new thread or process.
    Forked {
        /// Its process.
        pid: u32,
        /// The process that made it.
        parent: u32,
        /// The thread.
        tid: u32,
    },
    /// A thread ended.
    Ended {
        /// Its process.
        pid: u32,
        /// The thread.
        tid: u32,
    },
    /// Number of missing events.
    Lost(u64),
    /// Anything else.
    Other,
}

/// Contents of the samples of an event, and its index in the request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Carried {
    /// Which of the events.
    pub which: usize,
    /// Contents of its samples.
    pub carries: Carries,
}

/// A sample of an event.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PerfSample<'a> {
    /// Index of the event in the request.
    pub which: usize,
    /// Instruction pointer, in user mode or in the kernel.
    pub ip: u64,
    /// The process.
    pub pid: u32,
    /// The thread.
    pub tid: u32,
    /// Time in nanoseconds of `CLOCK_MONOTONIC`.
    pub time: u64,
    /// Number of the CPU.
    pub cpu: u32,
    /// The address of the access, if samples contain it.
    pub address: u64,
    callers: &'a [u8],
    /// The fields of a tracepoint, if samples contain them.
    pub raw: &'a [u8],
    registers: &'a [u8],
    /// Stack contents from the stack pointer on.
    pub stack: &'a [u8],
    registers_there: &'a [u8],
}

/// A new mapping.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MmapRecord<'a> {
    /// The process.
    pub pid: u32,
    /// First address.
    pub start: u64,
    /// Length.
    pub length: u64,
    /// Offset in the file at which the mapping begins.
    pub offset: u64,
    /// Major and minor number of the file's device.
    pub device: (u32, u32),
    /// The file's inode; 0 if the mapping has no file.
    pub inode: u64,
    /// Access rights, and private or shared.
    pub access: MmapAccess,
    /// The file's path, or what else it is: `//anon`, `[heap]`, `[stack]`.
    pub name: &'a [u8],
}

/// Access rights of a mapping.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MmapAccess {
    /// `PROT_WRITE`.
    pub write: bool,
    /// `PROT_EXEC`.
    pub execute: bool,
    /// `MAP_SHARED`.
    pub shared: bool,
}

/// `PERF_RECORD_*`.
mod kind {
    pub(super) const LOST: u32 = 2;
    pub(super) const COMM: u32 = 3;
    pub(super) const EXIT: u32 = 4;
    pub(super) const FORK: u32 = 7;
    pub(super) const SAMPLE: u32 = 9;
    pub(super) const MMAP2: u32 = 10;
    pub(super) const LOST_SAMPLES: u32 = 13;
}

/// No record is of this kind.
pub(crate) const NOTHING: u32 = 0;

pub(crate) fn is_sample(header: PerfRecordHeader) -> bool {
    header.kind == kind::SAMPLE
}

/// True if the record reports that earlier records are missing.
pub(crate) fn is_loss(header: PerfRecordHeader) -> bool {
    matches!(header.kind, kind::LOST | kind::LOST_SAMPLES)
}

/// `PERF_RECORD_MISC_COMM_EXEC`, `PERF_RECORD_MISC_MMAP_BUILD_ID`.
const MISC_COMM_EXEC: u16 = 1 << 13;
const MISC_MMAP_BUILD_ID: u16 = 1 << 14;

/// `PERF_CONTEXT_*`: markers among addresses, which state the mode of the addresses that follow.
mod context {
    pub(super) const KERNEL: u64 = 128_u64.wrapping_neg();
    pub(super) const USER: u64 = 512_u64.wrapping_neg();
    /// `PERF_CONTEXT_MAX`: words from here on are markers.
    pub(super) const FIRST: u64 = 4095_u64.wrapping_neg();
}

/// Trailer of records that are not samples: thread, time, CPU, identifier.
const TRAILER: usize = 4 * 8;

/// Bytes that are read from the front.
struct RecordCursor<'a>(&'a [u8]);

impl<'a> RecordCursor<'a> {
    fn take_bytes(&mut self, bytes: usize) -> Option<&'a [u8]> {
        let (taken, rest) = self.0.split_at_checked(bytes)?;
        self.0 = rest;
        Some(taken)
    }

    fn u64(&mut self) -> Option<u64> {
        self.take_bytes(8)?.try_into().ok().map(u64::from_ne_bytes)
    }

    fn u32(&mut self) -> Option<u32> {
        self.take_bytes(4)?.try_into().ok().map(u32::from_ne_bytes)
    }
}

/// Time and event identifier of a record. Their positions do not depend on the event.
pub(crate) fn stamp(header: PerfRecordHeader, bytes: &[u8]) -> Option<(u64, u64)> {
    let word =
        |at: usize| bytes.get(at..)?.first_chunk::<8>().map(|bytes| u64::from_ne_bytes(*bytes));
    if header.kind == kind::SAMPLE {
        return Some((word(3 * 8)?, word(0)?));
    }
    let trailer = bytes.len().checked_sub(TRAILER)?;
    Some((word(trailer + 8)?, word(trailer + 24)?))
}

/// Parses a record. `None` if it is too short for its fields.
pub(crate) fn parse<'a>(
    header: PerfRecordHeader,
    bytes: &'a [u8],
    event: Carried,
) -> Option<PerfRecord<'a>> {
    if header.kind == kind::SAMPLE {
        return sample(bytes, event).map(PerfRecord::Sample);
    }
    let mut body = RecordCursor(bytes.get(..bytes.len().checked_sub(TRAILER)?)?);
    Some(match header.kind {
        kind::LOST => PerfRecord::Lost(body.u64().and_then(|_| body.u64())?),
        kind::LOST_SAMPLES => PerfRecord::Lost(body.u64()?),
        kind::COMM => {
            let (pid, tid) = (body.u32()?, body.u32()?);
            let exec = header.misc & MISC_COMM_EXEC != 0;
            PerfRecord::Named { pid, tid, name: string(body.0), exec }
        }
        kind::FORK | kind::EXIT => {
            let (pid, parent, tid) = (body.u32()?, body.u32()?, body.u32()?);
            match header.kind {
                kind::FORK => PerfRecord::Forked { pid, parent, tid },
                _ => PerfRecord::Ended { pid, tid },
            }
        }
        kind::MMAP2 => PerfRecord::Mapped(mapped(header, body)?),
        _ => PerfRecord::Other,
    })
}

fn mapped<'a>(header: PerfRecordHeader, mut body: RecordCursor<'a>) -> Option<MmapRecord<'a>> {
    const WRITE: u32 = 2;
    const EXECUTE: u32 = 4;
    const SHARED: u32 = 1;
    let (pid, _tid) = (body.u32()?, body.u32()?);
    let (start, length, offset) = (body.u64()?, body.u64()?, body.u64()?);
    let mut file = RecordCursor(body.take_bytes(24)?);
    let (device, inode) = match header.misc & MISC_MMAP_BUILD_ID {
        0 => ((file.u32()?, file.u32()?), file.u64()?),
        _ => ((0, 0), 0),
    };
    let (prot, flags) = (body.u32()?, body.u32()?);
    let has = |bits: u32, bit| bits & bit != 0;
    let access = MmapAccess {
        write: has(prot, WRITE),
        execute: has(prot, EXECUTE),
        shared: has(flags, SHARED),
    };
    Some(MmapRecord { pid, start, length, offset, device, inode, access, name: string(body.0) })
}

/// A string that is padded with NUL.
fn string(bytes: &[u8]) -> &[u8] {
    bytes.split(|byte| *byte == 0).next().unwrap_or_default()
}

fn sample<'a>(bytes: &'a [u8], event: Carried) -> Option<PerfSample<'a>> {
    let mut cursor = RecordCursor(bytes);
    let Carries { address, callers, raw, registers, registers_there, stack, .. } = event.carries;
    let _identifier = cursor.u64()?;
    let ip = cursor.u64()?;
    let (pid, tid) = (cursor.u32()?, cursor.u32()?);
    let time = cursor.u64()?;
    let mut sample = PerfSample { which: event.which, ip, pid, tid, time, ..PerfSample::default() };
    if address {
        sample.address = cursor.u64()?;
    }
    (sample.cpu, _) = (cursor.u32()?, cursor.u32()?);
    if callers > 0 {
        let count = usize::try_from(cursor.u64()?).ok()?;
        sample.callers = cursor.take_bytes(count.checked_mul(8)?)?;
    }
    if raw {
        let size = usize::try_from(cursor.u32()?).ok()?;
        sample.raw = cursor.take_bytes(size)?;
    }
    if registers > 0 {
        // No registers if the thread has no user mode.
        let count = if cursor.u64()? == 0 { 0 } else { registers.count_ones() as usize };
        sample.registers = cursor.take_bytes(count * 8)?;
    }
    if stack > 0 {
        let size = usize::try_from(cursor.u64()?).ok()?;
        let whole = cursor.take_bytes(size)?;
        let used = if size == 0 { 0 } else { usize::try_from(cursor.u64()?).ok()? };
        sample.stack = whole.get(..used.min(size))?;
    }
    if registers_there > 0 {
        let count = if cursor.u64()? == 0 { 0 } else { registers_there.count_ones() as usize };
        sample.registers_there = cursor.take_bytes(count * 8)?;
    }
    Some(sample)
}

fn words_of(bytes: &[u8]) -> impl Iterator<Item = u64> + '_ {
    bytes.as_chunks().0.iter().map(|word| u64::from_ne_bytes(*word))
}

impl PerfSample<'_> {
    /// Instruction pointer in user mode, then the return addresses of its callers. Empty if samples
    /// do not contain them.
    pub fn callers(&self) -> impl Iterator<Item = u64> + '_ {
        self.callers_in(context::USER)
    }

    /// Instruction pointer in the kernel, then the return addresses of its callers. Empty if
    /// samples do not contain them.
    pub fn kernel_callers(&self) -> impl Iterator<Item = u64> + '_ {
        self.callers_in(context::KERNEL)
    }

    /// True if the event happened in the kernel.
    pub fn is_in_kernel(&self) -> bool {
        /// From here on addresses are the kernel's.
        const KERNEL: u64 = 1 << 63;
        self.ip >= KERNEL
    }

    fn callers_in(&self, wanted: u64) -> impl Iterator<Item = u64> + '_ {
        let mut now = context::USER;
        words_of(self.callers).filter(move |&word| {
            if word >= context::FIRST {
                now = word;
            }
            now == wanted && word < context::FIRST
        })
    }

    /// The registers that were asked for, in the order of their numbers. Empty where the thread has
    /// no user mode.
    pub fn registers(&self) -> impl Iterator<Item = u64> + '_ {
        words_of(self.registers)
    }

    /// The registers at the event itself, which may have been in the kernel.
    pub fn registers_there(&self) -> impl Iterator<Item = u64> + '_ {
        words_of(self.registers_there)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const ALL: Carries = Carries {
        address: true,
        callers: 8,
        kernel: true,
        raw: true,
        registers: 0b101,
        registers_there: 0b10,
        stack: 16,
    };

    fn bytes(words: &[u64]) -> Vec<u8> {
        words.iter().flat_map(|word| word.to_ne_bytes()).collect()
    }

    #[test]
    fn a_sample_with_all_it_can_carry_reads_as_the_kernel_lays_it_out() {
        let mut text = bytes(&[77, 0x1000, 5 << 32 | 4, 99, 0xabc, 3]);
        text.extend(bytes(&[5, 128_u64.wrapping_neg(), 0xf000, 512_u64.wrapping_neg()]));
        text.extend(bytes(&[0x1000, 0x2000]));
        text.extend(12_u32.to_ne_bytes());
        text.extend(*b"twelve bytes");
        text.extend(bytes(&[2, 10, 30]));
        text.extend(bytes(&[16, 1, 2, 8]));
        text.extend(bytes(&[2, 20]));
        let header = PerfRecordHeader { kind: kind::SAMPLE, misc: 0 };
        assert_eq!(stamp(header, &text), Some((99, 77)));
        let event = Carried { which: 6, carries: ALL };
        let Some(PerfRecord::Sample(sample)) = parse(header, &text, event) else {
            panic!("no sample")
        };
        assert_eq!((sample.which, sample.ip, sample.pid, sample.tid), (6, 0x1000, 4, 5));
        assert_eq!((sample.time, sample.cpu, sample.address), (99, 3, 0xabc));
        assert!(sample.callers().eq([0x1000, 0x2000]));
        assert!(sample.kernel_callers().eq([0xf000]));
        assert_eq!(sample.raw, b"twelve bytes");
        assert!(sample.registers().eq([10, 30]));
        assert!(sample.registers_there().eq([20]));
        assert_eq!(sample.stack, bytes(&[1]));
    }

    #[test]
    fn a_mapping_reads_as_the_kernel_lays_it_out() {
        let mut text = bytes(&[8 << 32 | 7, 0x1000, 0x2000, 0x3000]);
        text.extend([1_u32, 2].into_iter().flat_map(u32::to_ne_bytes));
        text.extend(bytes(&[42, 0]));
        text.extend([5_u32, 1].into_iter().flat_map(u32::to_ne_bytes));
        text.extend(*b"/bin/a\0\0");
        text.extend(bytes(&[8 << 32 | 7, 99, 0, 77]));
        let header = PerfRecordHeader { kind: kind::MMAP2, misc: 0 };
        assert_eq!(stamp(header, &text), Some((99, 77)));
        let event = Carried { which: 0, carries: ALL };
        let expected = MmapRecord {
            pid: 7,
            start: 0x1000,
            length: 0x2000,
            offset: 0x3000,
            device: (1, 2),
            inode: 42,
            access: MmapAccess { write: false, execute: true, shared: true },
            name: b"/bin/a",
        };
        assert_eq!(parse(header, &text, event), Some(PerfRecord::Mapped(expected)));
    }

    proptest! {
        #[test]
        fn any_bytes_are_read_or_refused(
            kind in 0_u32..16,
            misc: u16,
            bytes: Vec<u8>,
        ) {
            let header = PerfRecordHeader { kind, misc };
            let _ = stamp(header, &bytes);
            let event = Carried { which: 0, carries: ALL };
            if let Some(PerfRecord::Sample(sample)) = parse(header, &bytes, event) {
                let _ = (sample.callers().count(), sample.registers().count());
            }
        }
    }
}
