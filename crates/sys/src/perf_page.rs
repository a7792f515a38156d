//! The page that the kernel shares with the owner of a counter, to read a hardware counter without
//! a system call.
//!
//! ```text
//! struct perf_event_mmap_page   0 version   4 compat_version   8 lock   12 index   16 offset
//!                              24 time_enabled   32 time_running   40 capabilities
//!                              48 pmc_width   50 time_shift   52 time_mult   56 time_offset
//! ```
//!
//! `lock` changes whenever the kernel writes the page. The kernel writes on the CPU of the reading
//! thread, in an interrupt or while another thread runs. So fields read between two equal values of
//! `lock` are consistent.

use std::io;
use std::mem::offset_of;
use std::os::fd::AsFd;
use std::ptr::{self, NonNull};
use std::sync::atomic::{AtomicI64, AtomicU16, AtomicU32, AtomicU64, Ordering, fence};

use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};

use crate::perf_event::{PerfCount, PerfCounter};

/// The head of `perf_event_mmap_page` of `linux/perf_event.h`. Its fields are atomics, since the
/// kernel writes them while this process reads.
#[repr(C)]
#[derive(Debug, Default)]
struct PerfPageHead {
    version: u32,
    compat_version: u32,
    lock: AtomicU32,
    index: AtomicU32,
    offset: AtomicI64,
    time_enabled: AtomicU64,
    time_running: AtomicU64,
    capabilities: AtomicU64,
    pmc_width: AtomicU16,
    time_shift: AtomicU16,
    time_mult: AtomicU32,
    time_offset: AtomicU64,
}

const _: () = assert!(
    offset_of!(PerfPageHead, capabilities) == 40 && offset_of!(PerfPageHead, time_offset) == 56
);

/// Bits of `capabilities`: `rdpmc` is permitted; the page has the factors that convert the time
/// stamp counter to nanoseconds.
const CAP_USER_RDPMC: u64 = 1 << 2;
const CAP_USER_TIME: u64 = 1 << 3;

/// The mapped page of a counter.
#[derive(Debug)]
pub struct PerfPage {
    head: NonNull<PerfPageHead>,
    length: usize,
}

impl PerfPage {
    /// Maps the page of a counter of the calling thread. The mapping may outlive the counter; the
    /// values in the page then no longer change.
    ///
    /// A child made by `fork` does not inherit the mapping.
    ///
    /// # Errors
    /// `EINVAL` for a counter that new threads inherit; `EPERM` beyond
    /// `kernel.perf_event_mlock_kb`; `ENOMEM`.
    pub fn map_counter(counter: &PerfCounter) -> io::Result<PerfPage> {
        let length = rustix::param::page_size();
        let (fd, shared) = (counter.as_fd(), MapFlags::SHARED);
        // SAFETY: the kernel chooses a free address, so the new mapping replaces no existing one.
        let start = unsafe { mmap(ptr::null_mut(), length, ProtFlags::READ, shared, fd, 0) }?;
        let head =
            NonNull::new(start.cast::<PerfPageHead>()).expect("the kernel maps nothing at 0");
        Ok(PerfPage { head, length })
    }

    /// Reads the counter in user mode, with its times up to the current time. `None` if only a
    /// system call can read the counter: a software event, `rdpmc` not allowed, or a CPU other than
    /// x86-64.
    ///
    /// Only the thread that the counter counts may call this.
    #[inline]
    pub fn read(&self) -> Option<PerfCount> {
        // SAFETY: the page is mapped for reading until `self` is dropped, the kernel initialized
        // the page, and every field that changes is atomic.
        let head = unsafe { self.head.as_ref() };
        // SAFETY: `read` passes a number only if the page permits `rdpmc`, which stays permitted
        // while the page is mapped.
        let pmc = |number| unsafe { instructions::pmc(number) };
        read(head, pmc, instructions::time_stamp)
    }
}

impl Drop for PerfPage {
    fn drop(&mut self) {
        // SAFETY: this is the whole mapping, and nothing borrowed from it can outlive `self`. The
        // call cannot fail, because the range is one mapping.
        let _ = unsafe { munmap(self.head.as_ptr().cast(), self.length) };
    }
}

/// Reads the page, and repeats the read if the kernel wrote the page meanwhile. `pmc` reads a
/// counter of the CPU by its number.
#[inline]
fn read(
    head: &PerfPageHead,
    pmc: impl Fn(u32) -> u64,
    time_stamp: impl Fn() -> u64,
) -> Option<PerfCount> {
    loop {
        let lock = head.lock.load(Ordering::Acquire);
        let counted = read_once(head, &pmc, &time_stamp);
        fence(Ordering::Acquire);
        if head.lock.load(Ordering::Relaxed) == lock {
            return counted;
        }
    }
}

#[inline]
fn read_once(
    head: &PerfPageHead,
    pmc: impl Fn(u32) -> u64,
    time_stamp: impl Fn() -> u64,
) -> Option<PerfCount> {
    const NEEDED: u64 = CAP_USER_RDPMC | CAP_USER_TIME;
    if head.capabilities.load(Ordering::Relaxed) & NEEDED != NEEDED || !instructions::EXIST {
        return None;
    }
    let since = nanoseconds(head, time_stamp());
    let enabled = head.time_enabled.load(Ordering::Relaxed).wrapping_add(since);
    let mut running = head.time_running.load(Ordering::Relaxed);
    let mut value = head.offset.load(Ordering::Relaxed);
    // Index 0 means that no CPU counts the event now, and `offset` is the whole count.
    if let Some(number) = head.index.load(Ordering::Relaxed).checked_sub(1) {
        let width = u32::from(head.pmc_width.load(Ordering::Relaxed));
        value = value.wrapping_add(sign_extended(pmc(number), width));
        running = running.wrapping_add(since);
    }
    Some(PerfCount { value: value.cast_unsigned(), enabled, running })
}

/// Extends the sign of a value of `width` bits: the kernel starts a CPU counter below 0, so that
/// the counter overflows at the end of a period.
fn sign_extended(value: u64, width: u32) -> i64 {
    let unused = 64_u32.saturating_sub(width).min(63);
    (value << unused).cast_signed() >> unused
}

/// Nanoseconds from the time at which the kernel wrote the times until the time stamp `cycles`.
fn nanoseconds(head: &PerfPageHead, cycles: u64) -> u64 {
    let shift = u32::from(head.time_shift.load(Ordering::Relaxed)).min(63);
    let mult = u64::from(head.time_mult.load(Ordering::Relaxed));
    // The multiplication is done in two parts, so that the product does not overflow.
    let whole = (cycles >> shift).wrapping_mul(mult);
    let rest = (cycles & ((1 << shift) - 1)).wrapping_mul(mult) >> shift;
    head.time_offset.load(Ordering::Relaxed).wrapping_add(whole).wrapping_add(rest)
}

#[cfg(target_arch = "x86_64")]
mod instructions {
    pub(super) const EXIST: bool = true;

    /// `rdpmc`.
    ///
    /// # Safety
    /// The kernel must permit this process to read the counter with that number.
    #[inline]
    pub(super) unsafe fn pmc(number: u32) -> u64 {
        let (low, high): (u32, u32);
        // SAFETY: the caller guarantees that the instruction is permitted; it changes registers
        // only.
        unsafe {
            std::arch::asm!("rdpmc", in("ecx") number, out("eax") low, out("edx") high,
                options(nostack, nomem, preserves_flags));
        }
        u64::from(high) << 32 | u64::from(low)
    }

    /// `rdtsc`.
    #[inline]
    pub(super) fn time_stamp() -> u64 {
        // SAFETY: every x86-64 CPU has the instruction, and the capability bits of the page permit
        // it in user mode.
        unsafe { std::arch::x86_64::_rdtsc() }
    }
}

#[cfg(not(target_arch = "x86_64"))]
mod instructions {
    pub(super) const EXIST: bool = false;

    pub(super) unsafe fn pmc(_: u32) -> u64 {
        0
    }

    pub(super) fn time_stamp() -> u64 {
        0
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::*;
    use crate::perf_event::{Mode, PerfEvent, PerfScope, PerfType};

    /// A page of a counter of 48 bits that runs on CPU counter 2, written at 1,000 ns when the time
    /// stamp was 4,000: a cycle takes half a nanosecond.
    fn running() -> PerfPageHead {
        PerfPageHead {
            lock: 6.into(),
            index: 3.into(),
            offset: (1_i64 << 47).into(),
            time_enabled: 1_000.into(),
            time_running: 900.into(),
            capabilities: (CAP_USER_RDPMC | CAP_USER_TIME).into(),
            pmc_width: 48.into(),
            time_shift: 10.into(),
            time_mult: 512.into(),
            time_offset: 0_u64.wrapping_sub(2_000).into(),
            ..PerfPageHead::default()
        }
    }

    /// Value of the CPU counter after 77 events: the kernel sets counters to minus half their
    /// range.
    fn after_77(number: u32) -> u64 {
        assert_eq!(number, 2);
        (1 << 47) + 77
    }

    #[test]
    #[cfg(target_arch = "x86_64")]
    fn a_running_counter_is_offset_plus_what_the_cpu_has_and_its_times_go_on() {
        let found = read(&running(), after_77, || 4_000 + 3_000).unwrap();
        assert_eq!(found, PerfCount { value: 77, enabled: 2_500, running: 2_400 });
    }

    #[test]
    #[cfg(target_arch = "x86_64")]
    fn a_counter_that_waits_for_its_turn_is_what_it_was_and_only_time_enabled_goes_on() {
        let head = PerfPageHead { index: 0.into(), offset: 55.into(), ..running() };
        let found = read(&head, |_| panic!("it is on no CPU"), || 7_000).unwrap();
        assert_eq!(found, PerfCount { value: 55, enabled: 2_500, running: 900 });
    }

    #[test]
    #[cfg(target_arch = "x86_64")]
    fn a_page_written_during_the_reading_is_read_again() {
        let head = running();
        let reads = Cell::new(0);
        let pmc = |_| {
            if reads.replace(reads.get() + 1) == 0 {
                // Between two loads of this thread, the kernel stops the counter and starts it
                // again.
                head.lock.store(8, Ordering::Relaxed);
                head.offset.store((1 << 47) + 1_000, Ordering::Relaxed);
            }
            1 << 47
        };
        let found = read(&head, pmc, || 4_000).unwrap();
        assert_eq!((found.value, reads.get()), (1_000, 2));
    }

    #[test]
    fn without_either_capability_the_kernel_must_be_asked() {
        for capabilities in [0, CAP_USER_RDPMC, CAP_USER_TIME] {
            let head = PerfPageHead { capabilities: capabilities.into(), ..running() };
            assert_eq!(read(&head, |_| panic!("rdpmc would fault"), || 0), None);
        }
    }

    #[test]
    fn counters_are_signed_in_their_own_width() {
        assert_eq!(sign_extended(0xffff_ffff_fffe, 48), -2);
        assert_eq!(sign_extended(0x7fff_ffff_ffff, 48), 0x7fff_ffff_ffff);
        assert_eq!(sign_extended(0xff_ffff_ffff, 40), -1);
        assert_eq!(sign_extended(u64::MAX, 64), -1);
        assert_eq!(sign_extended(5, 64), 5);
    }

    #[test]
    fn extreme_values_of_a_page_do_not_panic() {
        for width in [0, 1, 63, 64, 65, u16::MAX] {
            let head = PerfPageHead {
                pmc_width: width.into(),
                time_shift: width.into(),
                time_mult: u32::MAX.into(),
                time_offset: u64::MAX.into(),
                offset: i64::MAX.into(),
                ..running()
            };
            read(&head, |_| u64::MAX, || u64::MAX);
        }
    }

    #[test]
    fn a_software_counter_cannot_be_read_in_user_mode() {
        if !crate::perf_event::tests::may_count() {
            return;
        }
        let off = Mode {
            inherit: false,
            disabled: false,
            enable_on_exec: false,
            exclude_kernel: true,
            exclude_user: false,
        };
        let faults = PerfEvent::new(PerfType::SOFTWARE, 2);
        let counter = PerfCounter::open(faults, PerfScope::ThisThread, off, None).unwrap();
        let page = PerfPage::map_counter(&counter).unwrap();
        assert_eq!(page.read(), None);
    }
}
