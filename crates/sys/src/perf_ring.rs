//! Samples of `perf_event_open`: a record for each sampled event, in a ring buffer that the kernel
//! writes and we read.

use std::io;
use std::mem::offset_of;
use std::os::fd::{AsFd, AsRawFd};
use std::ptr::{self, NonNull};
use std::sync::atomic::{AtomicU64, Ordering};

use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};

use crate::descriptor_holder::{DescriptorHolder, HolderReport};
use crate::perf_event::{
    FORMAT_TOTAL_TIME_ENABLED, FORMAT_TOTAL_TIME_RUNNING, Mode, PerfCounter, PerfEvent,
    PerfEventAttr, PerfScope,
};

/// Contents of a sample in addition to its event's [`id`], the instruction pointer, the thread, the
/// time, and the CPU.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Carries {
    /// The address of a page fault or an access.
    pub address: bool,
    /// Maximum number of callers in user mode, found by frame pointers.
    pub callers: u16,
    /// True to store callers in the kernel before those in user mode; `callers` limits the sum.
    pub kernel: bool,
    /// The fields of a tracepoint.
    pub raw: bool,
    /// Registers in user mode, as a bit mask of the numbers of `asm/perf_regs.h`.
    pub registers: u64,
    /// Registers at the event itself, which may be in the kernel, as such a bit mask.
    pub registers_there: u64,
    /// Number of bytes from the stack pointer on, a multiple of 8.
    pub stack: u32,
}

/// Events to sample, and contents of the samples.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sampling {
    /// Event to sample.
    pub event: PerfEvent,
    /// Sampling period N: one event in N is sampled. 0: events are only counted.
    pub every: u64,
    /// Contents of the samples.
    pub carries: Carries,
    /// When and where to count. With `inherit`, a ring can be mapped only if the scope has a CPU.
    pub mode: Mode,
    /// True if there are records of new mappings, programs, threads and their ends, too.
    pub tasks: bool,
    /// A waiting thread is woken when this number of bytes is in the ring.
    pub wake_at: u32,
}

const fn bit(at: u32) -> u64 {
    1_u64 << at
}

/// Bits of `sample_type`. The identifier comes first in samples and last in other records.
mod field {
    use super::bit;

    pub(super) const IP: u64 = bit(0);
    pub(super) const TID: u64 = bit(1);
    pub(super) const TIME: u64 = bit(2);
    pub(super) const ADDR: u64 = bit(3);
    pub(super) const CALLCHAIN: u64 = bit(5);
    pub(super) const CPU: u64 = bit(7);
    pub(super) const RAW: u64 = bit(10);
    pub(super) const REGS_USER: u64 = bit(12);
    pub(super) const STACK_USER: u64 = bit(13);
    pub(super) const REGS_INTR: u64 = bit(18);
    pub(super) const IDENTIFIER: u64 = bit(16);
}

/// Bits of `flags`.
mod flag {
    use super::bit;

    pub(super) const MMAP: u64 = bit(8);
    pub(super) const COMM: u64 = bit(9);
    pub(super) const TASK: u64 = bit(13);
    pub(super) const WATERMARK: u64 = bit(14);
    pub(super) const MMAP_DATA: u64 = bit(17);
    pub(super) const SAMPLE_ID_ALL: u64 = bit(18);
    pub(super) const EXCLUDE_CALLCHAIN_KERNEL: u64 = bit(21);
    pub(super) const MMAP2: u64 = bit(23);
    pub(super) const COMM_EXEC: u64 = bit(24);
    pub(super) const USE_CLOCKID: u64 = bit(25);
}

const TASKS: u64 =
    flag::MMAP | flag::COMM | flag::TASK | flag::MMAP_DATA | flag::MMAP2 | flag::COMM_EXEC;

/// `_IO('$', 5)`, and `_IOR('$', 7, __u64 *)`.
const IOC_SET_OUTPUT: libc::Ioctl = 0x2405;
// `libc::Ioctl` is signed with musl, and bit 31 of this number is set.
const IOC_ID: libc::Ioctl = libc::_IOR::<u64>(0x24, 7);

/// Opens an event that is sampled. [`PerfCounter::read`] returns the number of events, sampled or
/// not. Times are of `CLOCK_MONOTONIC`.
///
/// # Errors
/// As [`PerfCounter::open`]; `EMFILE`; `ENOSPC` for more breakpoints than the CPU has.
pub fn open(sampling: &Sampling, whose: PerfScope) -> io::Result<PerfCounter> {
    let Sampling { event, every, carries, mode, tasks, wake_at } = *sampling;
    let fields = [
        (carries.address, field::ADDR),
        (carries.callers > 0, field::CALLCHAIN),
        (carries.raw, field::RAW),
        (carries.registers > 0, field::REGS_USER),
        (carries.stack > 0, field::STACK_USER),
        (carries.registers_there > 0, field::REGS_INTR),
    ];
    let always = field::IP | field::TID | field::TIME | field::CPU | field::IDENTIFIER;
    let mut attributes = PerfEventAttr::new(event, mode);
    attributes.sample_period = every;
    attributes.read_format = FORMAT_TOTAL_TIME_ENABLED | FORMAT_TOTAL_TIME_RUNNING;
    attributes.sample_type =
        fields.iter().filter(|(wanted, _)| *wanted).fold(always, |bits, (_, bit)| bits | bit);
    attributes.flags |= flag::SAMPLE_ID_ALL
        | flag::WATERMARK
        | flag::USE_CLOCKID
        | if carries.kernel { 0 } else { flag::EXCLUDE_CALLCHAIN_KERNEL }
        | if tasks { TASKS } else { 0 };
    attributes.wakeup_events = wake_at;
    attributes.clock_id = libc::CLOCK_MONOTONIC;
    attributes.sample_regs_user = carries.registers;
    attributes.sample_regs_interrupted = carries.registers_there;
    attributes.sample_stack_user = carries.stack;
    attributes.sample_max_stack = carries.callers;
    PerfCounter::open_with(&attributes, whose, None, false)
}

/// Identifier of the records of an event.
///
/// # Errors
/// Those of `ioctl`.
pub fn id(counter: &PerfCounter) -> io::Result<u64> {
    let mut id = 0_u64;
    // SAFETY: the request writes a number to its argument, which is one.
    match unsafe { libc::ioctl(counter.as_fd().as_raw_fd(), IOC_ID, &raw mut id) } {
        -1 => Err(io::Error::last_os_error()),
        _ => Ok(id),
    }
}

/// Redirects the records of an event to the ring of another event of the same CPU.
///
/// # Errors
/// `EINVAL` for another CPU or clock.
pub fn redirect(counter: &PerfCounter, to: &PerfCounter) -> io::Result<()> {
    let fd = to.as_fd().as_raw_fd();
    counter.control(IOC_SET_OUTPUT, fd.unsigned_abs().into())
}

/// A sampled event that a [`DescriptorHolder`] opens.
#[derive(Clone, Copy, Debug)]
pub struct HeldEvent<'c> {
    /// The event and its fields.
    pub sampling: Sampling,
    /// The CPU.
    pub cpu: u32,
    /// The counter whose ring receives the records.
    pub ring: &'c PerfCounter,
}

/// Opens events in a child process. They exist as long as the returned value. Returns their
/// identifiers, as of [`id`], too.
///
/// # Errors
/// Those of [`open`], [`redirect`] and [`DescriptorHolder`].
pub fn open_held(events: &[HeldEvent<'_>]) -> io::Result<(DescriptorHolder, Vec<u64>)> {
    let open = |report: &mut HolderReport| {
        events.iter().try_for_each(|HeldEvent { sampling, cpu, ring }| {
            let counter = open(sampling, PerfScope::Cpu(*cpu))?;
            redirect(&counter, ring)?;
            report.number(id(&counter)?);
            // The end of the child closes it.
            std::mem::forget(counter);
            Ok(())
        })
    };
    // SAFETY: `open` makes system calls only.
    unsafe { DescriptorHolder::start(open) }
}

/// First word of a record, without its size.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PerfRecordHeader {
    /// Type of the record: `PERF_RECORD_*`.
    pub kind: u32,
    /// `PERF_RECORD_MISC_*`: the CPU mode, and bits that depend on the type.
    pub misc: u16,
}

/// Positions in `perf_event_mmap_page` at which the ring is written and read.
#[repr(C)]
struct PerfRingHead {
    page: [u64; 128],
    data_head: AtomicU64,
    data_tail: AtomicU64,
    data_offset: u64,
    data_size: u64,
}

const _: () = assert!(offset_of!(PerfRingHead, data_head) == 1024);

/// A mapped ring buffer; dropping it unmaps it.
#[derive(Debug)]
pub struct PerfRing {
    head: NonNull<PerfRingHead>,
    length: usize,
    /// Data area of the ring: offset from the start, and size in bytes, a power of 2.
    offset: usize,
    size: usize,
    /// Copy of the present record, which may wrap around the end of the ring.
    joined: Vec<u8>,
}

// SAFETY: the mapping belongs to the value alone; the kernel writes to it, whichever thread reads.
unsafe impl Send for PerfRing {}

impl PerfRing {
    /// Maps the ring of an event, of `size` bytes rounded up to pages in a power of 2.
    ///
    /// # Errors
    /// `EPERM` beyond `kernel.perf_event_mlock_kb` and what the user may lock; `EINVAL` for an
    /// inherited event of a scope without a CPU; `ENOMEM`.
    pub fn map_counter(counter: &PerfCounter, size: usize) -> io::Result<PerfRing> {
        let page = rustix::param::page_size();
        let size = size.next_multiple_of(page).next_power_of_two();
        let (length, access) = (page + size, ProtFlags::READ | ProtFlags::WRITE);
        let fd = counter.as_fd();
        // SAFETY: the kernel chooses a free address, so the new mapping replaces no existing one.
        let start = unsafe { mmap(ptr::null_mut(), length, access, MapFlags::SHARED, fd, 0) }?;
        let head =
            NonNull::new(start.cast::<PerfRingHead>()).expect("the kernel maps nothing at 0");
        // SAFETY: the kernel has filled in the page, and these two do not change.
        let PerfRingHead { data_offset, data_size, .. } = unsafe { head.as_ref() };
        let told = |bytes: u64, usual| match usize::try_from(bytes) {
            Ok(bytes @ 1..) => bytes,
            // Before Linux 4.1 neither is reported.
            _ => usual,
        };
        let (offset, size) = (told(*data_offset, page), told(*data_size, size));
        Ok(PerfRing { head, length, offset, size, joined: Vec::new() })
    }

    /// Number of bytes that the kernel can write before the first of them must have been read.
    pub fn capacity(&self) -> usize {
        self.size
    }

    /// Passes each record to `each`, in the order of writing: its first word, and the bytes after
    /// it. Returns the number of bytes read.
    pub fn drain(&mut self, each: &mut dyn FnMut(PerfRecordHeader, &[u8])) -> usize {
        self.drain_within(usize::MAX, each).0
    }

    /// As [`PerfRing::drain`], but ends with the record that reaches `at_most` bytes. Returns the
    /// number of bytes read, and true if records remain of those in the ring at the start.
    pub fn drain_within(
        &mut self,
        at_most: usize,
        each: &mut dyn FnMut(PerfRecordHeader, &[u8]),
    ) -> (usize, bool) {
        const WORD: usize = size_of::<u64>();
        // SAFETY: the page is mapped until `self` is dropped, and what is read of it changes as an
        // atomic only.
        let head = unsafe { self.head.as_ref() };
        let end = head.data_head.load(Ordering::Acquire);
        let begin = head.data_tail.load(Ordering::Relaxed);
        let mut at = begin;
        let at_most = at_most as u64;
        while end.wrapping_sub(at) >= WORD as u64 && at.wrapping_sub(begin) < at_most {
            let mut word = [0; WORD];
            self.copy(at, &mut word);
            let [a, b, c, d, e, f, g, h] = word;
            let header = PerfRecordHeader {
                kind: u32::from_ne_bytes([a, b, c, d]),
                misc: u16::from_ne_bytes([e, f]),
            };
            let size = u64::from(u16::from_ne_bytes([g, h]));
            if size < WORD as u64 || size > end.wrapping_sub(at) {
                // The kernel never writes this; the following records cannot be delimited.
                at = end;
                break;
            }
            let mut record = std::mem::take(&mut self.joined);
            record.resize(usize::from(u16::from_ne_bytes([g, h])) - WORD, 0);
            self.copy(at + WORD as u64, &mut record);
            each(header, &record);
            self.joined = record;
            at += size;
        }
        head.data_tail.store(at, Ordering::Release);
        let read = usize::try_from(at.wrapping_sub(begin)).unwrap_or(usize::MAX);
        (read, end.wrapping_sub(at) >= WORD as u64)
    }

    /// Copies bytes from a position on, and wraps around at the end of the ring.
    fn copy(&self, position: u64, to: &mut [u8]) {
        #[expect(clippy::cast_possible_truncation, reason = "what is cut off goes round")]
        let from = position as usize & (self.size - 1);
        let first = to.len().min(self.size - from);
        let data = self.head.cast::<u8>();
        let (before, behind) = to.split_at_mut(first);
        for (from, to) in [(from, before), (0, behind)] {
            // SAFETY: the offset and what follows lie in the ring, which is mapped.
            let from = unsafe { data.add(self.offset + from) };
            // SAFETY: the kernel does not write between tail and head, and `to` is ours.
            unsafe { ptr::copy_nonoverlapping(from.as_ptr(), to.as_mut_ptr(), to.len()) };
        }
    }
}

impl Drop for PerfRing {
    fn drop(&mut self) {
        // SAFETY: this is what was mapped, and nothing borrowed from it can outlive `self`.
        // It cannot fail: the range is one mapping.
        let _ = unsafe { munmap(self.head.as_ptr().cast(), self.length) };
    }
}

#[cfg(test)]
mod tests {
    use pagewise_skip::{Lack, skip};

    use super::*;
    use crate::perf_event::PerfType;

    /// `PERF_COUNT_SW_PAGE_FAULTS`, `PERF_RECORD_SAMPLE`.
    const FAULTS: PerfEvent = PerfEvent::new(PerfType::SOFTWARE, 2);
    const SAMPLE: u32 = 9;

    fn record_words(record: &[u8]) -> Vec<u64> {
        let word = |bytes: &[u8]| u64::from_ne_bytes(bytes.try_into().unwrap());
        record.chunks_exact(8).map(word).collect()
    }

    #[test]
    fn each_page_that_is_touched_is_a_sample_with_its_address_also_round_the_end() {
        let sampling = Sampling {
            event: FAULTS,
            every: 1,
            carries: Carries { address: true, ..Carries::default() },
            mode: Mode { exclude_kernel: true, ..Mode::default() },
            tasks: false,
            wake_at: 1,
        };
        let counter = match open(&sampling, PerfScope::ThisThread) {
            Ok(counter) => counter,
            Err(error) => return skip(&Lack::Refused { call: "perf_event_open", error: &error }),
        };
        let id = id(&counter).unwrap();
        let page = usize::try_from(crate::system::page_size()).unwrap();
        let mut ring = PerfRing::map_counter(&counter, page).unwrap();
        let mut pages = 0;
        for _ in 0..10 {
            let mut region = crate::region::AlignedRegion::map(32 * page, page).unwrap();
            region.advise(crate::madvise::Advice::NoHugePage).unwrap();
            let bytes = region.bytes();
            let start = bytes.as_ptr().addr() as u64;
            bytes.iter_mut().step_by(page).for_each(|byte| *byte = 1);
            let mut found = Vec::new();
            ring.drain(&mut |header, record| {
                assert_eq!(header.kind, SAMPLE);
                // Identifier, instruction pointer, thread, time, address, CPU.
                let words = record_words(record);
                assert_eq!((words[0], words.len()), (id, 6));
                found.push(words[4]);
            });
            let expected: Vec<u64> = (0..32).map(|at| start + at * page as u64).collect();
            found.retain(|address| expected.contains(address));
            assert_eq!(found, expected);
            pages += 32;
        }
        assert!(pages * 56 > 4 * page, "the ring was filled more than once");
        assert_eq!(ring.drain(&mut |_, _| panic!("it is empty")), 0);
    }
}
