//! `perf_event_open`: counters of the CPU, of the kernel, and of its tracepoints.

use std::ffi::{CStr, c_int, c_ulong};
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

/// A type of event: `PERF_TYPE_*` of `linux/perf_event.h`, or the number of a PMU, which is in the
/// file `type` of the PMU in sysfs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct PerfType(pub u32);

impl PerfType {
    /// A generic event of the CPU: `config` is a `PERF_COUNT_HW_*`.
    pub const HARDWARE: PerfType = PerfType(0);
    /// An event that the kernel counts: `config` is a `PERF_COUNT_SW_*`.
    pub const SOFTWARE: PerfType = PerfType(1);
    /// A tracepoint: `config` is its `id` in tracefs.
    pub const TRACEPOINT: PerfType = PerfType(2);
    /// A generic event of a cache: `config` is cache | operation << 8 | result << 16.
    pub const CACHE: PerfType = PerfType(3);
    /// An event of the CPU, by the number in the manual of the CPU: `config` is that number.
    pub const RAW: PerfType = PerfType(4);
    /// An access to some bytes of memory: see [`PerfEvent::access`].
    pub const BREAKPOINT: PerfType = PerfType(5);
}

/// Event to count.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct PerfEvent {
    /// Type of the event.
    pub kind: PerfType,
    /// Number of the event; `kind` defines its meaning.
    pub config: u64,
    /// First extra parameter of a PMU, address of a breakpoint, or address of the path of a
    /// uprobe's file.
    pub config1: u64,
    /// Second extra parameter of a PMU, length of a breakpoint, or file offset of a uprobe.
    pub config2: u64,
    /// For a breakpoint, the kinds of accesses: `HW_BREAKPOINT_*` of `linux/hw_breakpoint.h`.
    pub accesses: u32,
}

/// `HW_BREAKPOINT_*` of `linux/hw_breakpoint.h`.
mod access {
    pub(super) const READ: u32 = 1;
    pub(super) const WRITE: u32 = 2;
    pub(super) const EXECUTE: u32 = 4;
}

impl PerfEvent {
    /// `PERF_COUNT_SW_BPF_OUTPUT`: output of a BPF program.
    pub const OUTPUT: PerfEvent = PerfEvent::new(PerfType::SOFTWARE, 10);

    /// An event that has no parameter except `config`.
    pub const fn new(kind: PerfType, config: u64) -> PerfEvent {
        PerfEvent { kind, config, config1: 0, config2: 0, accesses: 0 }
    }

    /// A data breakpoint: a write to any of 1, 2, 4 or 8 aligned bytes; with `reads`, also a read.
    pub const fn access(address: u64, length: u64, reads: bool) -> PerfEvent {
        let accesses = if reads { access::READ | access::WRITE } else { access::WRITE };
        PerfEvent {
            kind: PerfType::BREAKPOINT,
            config: 0,
            config1: address,
            config2: length,
            accesses,
        }
    }

    /// A uprobe: an instruction of a file is about to be executed, in any process that maps it.
    /// `kind` is the number of the PMU `uprobe`, from the file `type` in sysfs. The path lives as
    /// long as the process, since the event contains the address of the path.
    pub fn instruction(kind: PerfType, path: &'static CStr, offset: u64) -> PerfEvent {
        let config1 = path.as_ptr().addr() as u64;
        PerfEvent { kind, config: 0, config1, config2: offset, accesses: 0 }
    }

    /// An execution breakpoint: the instruction at `address` is about to be executed.
    pub const fn arrival(address: u64) -> PerfEvent {
        // The kernel requires the size of a `long` as the length of an execution breakpoint.
        let config2 = size_of::<std::ffi::c_long>() as u64;
        let (kind, accesses) = (PerfType::BREAKPOINT, access::EXECUTE);
        PerfEvent { kind, config: 0, config1: address, config2, accesses }
    }
}

/// Thread or CPU whose events are counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PerfScope {
    /// The thread that opens the counter.
    ThisThread,
    /// The thread with this thread ID, on any CPU.
    Thread(u32),
    /// The thread `thread` while it runs on the CPU `cpu`.
    ThreadOn {
        /// Thread id.
        thread: u32,
        /// CPU number.
        cpu: u32,
    },
    /// Everything that runs on the CPU with this number.
    Cpu(u32),
}

impl PerfScope {
    /// Returns the `pid` and `cpu` arguments of `perf_event_open`.
    fn numbers(self) -> io::Result<(libc::pid_t, c_int)> {
        const ANY: c_int = -1;
        let number = |number: u32| {
            c_int::try_from(number).map_err(|_| io::Error::from_raw_os_error(libc::ESRCH))
        };
        Ok(match self {
            PerfScope::ThisThread => (0, ANY),
            PerfScope::Thread(thread) => (number(thread)?, ANY),
            PerfScope::ThreadOn { thread, cpu } => (number(thread)?, number(cpu)?),
            PerfScope::Cpu(cpu) => (ANY, number(cpu)?),
        })
    }
}

/// Conditions under which a counter counts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Mode {
    /// Also counts the threads and children that the counted thread creates, and their descendants.
    pub inherit: bool,
    /// Does not count before [`PerfCounter::enable`], or before an `exec` with `enable_on_exec`.
    pub disabled: bool,
    /// Starts at the next `exec` of the counted thread; an inherited counter starts at the next
    /// `exec` of the child.
    pub enable_on_exec: bool,
    /// Counts in user mode only, which every user may do if `kernel.perf_event_paranoid` is at most
    /// 2.
    pub exclude_kernel: bool,
    /// Counts in the kernel only.
    pub exclude_user: bool,
}

/// `perf_event_attr` of `linux/perf_event.h`, with the fields that it had in Linux 4.1.
#[repr(C)]
#[derive(Default)]
pub(crate) struct PerfEventAttr {
    kind: u32,
    size: u32,
    config: u64,
    pub(crate) sample_period: u64,
    pub(crate) sample_type: u64,
    pub(crate) read_format: u64,
    pub(crate) flags: u64,
    pub(crate) wakeup_events: u32,
    breakpoint_type: u32,
    config1: u64,
    config2: u64,
    branch_sample_type: u64,
    pub(crate) sample_regs_user: u64,
    pub(crate) sample_stack_user: u32,
    pub(crate) clock_id: i32,
    pub(crate) sample_regs_interrupted: u64,
    aux_watermark: u32,
    pub(crate) sample_max_stack: u16,
    reserved: u16,
}

impl PerfEventAttr {
    /// Attributes that count `event` in `mode`.
    pub(crate) fn new(event: PerfEvent, mode: Mode) -> PerfEventAttr {
        let bits = [
            (mode.disabled, flag::DISABLED),
            (mode.inherit, flag::INHERIT),
            (mode.exclude_kernel, flag::EXCLUDE_KERNEL | flag::EXCLUDE_HYPERVISOR),
            (mode.exclude_user, flag::EXCLUDE_USER),
            (mode.enable_on_exec, flag::ENABLE_ON_EXEC),
        ];
        PerfEventAttr {
            kind: event.kind.0,
            size: ATTRIBUTES_SIZE,
            config: event.config,
            breakpoint_type: event.accesses,
            config1: event.config1,
            config2: event.config2,
            flags: bits.iter().filter(|(set, _)| *set).fold(0, |flags, (_, bit)| flags | bit),
            ..PerfEventAttr::default()
        }
    }
}

/// `PERF_ATTR_SIZE_VER5`.
const ATTRIBUTES_SIZE: u32 = 112;
const _: () = assert!(size_of::<PerfEventAttr>() == ATTRIBUTES_SIZE as usize);

/// Bits of the field `flags`.
mod flag {
    const fn bit(at: u32) -> u64 {
        1_u64 << at
    }

    pub(super) const DISABLED: u64 = bit(0);
    pub(super) const INHERIT: u64 = bit(1);
    pub(super) const EXCLUDE_USER: u64 = bit(4);
    pub(super) const EXCLUDE_KERNEL: u64 = bit(5);
    pub(super) const EXCLUDE_HYPERVISOR: u64 = bit(6);
    pub(super) const ENABLE_ON_EXEC: u64 = bit(12);
    pub(super) const INHERIT_THREAD: u64 = bit(35);
    pub(super) const REMOVE_ON_EXEC: u64 = bit(36);
    pub(super) const SIGTRAP: u64 = bit(37);
}

/// Bits of `read_format`: the times and the group counts that a read returns in addition to the
/// count.
pub(crate) const FORMAT_TOTAL_TIME_ENABLED: u64 = 1 << 0;
pub(crate) const FORMAT_TOTAL_TIME_RUNNING: u64 = 1 << 1;
const FORMAT_GROUP: u64 = 1 << 3;

const FLAG_FD_CLOEXEC: c_ulong = 1 << 3;

/// Requests `_IO('$', n)`, and `_IOW('$', 6, char *)`.
const IOC_ENABLE: libc::Ioctl = 0x2400;
const IOC_DISABLE: libc::Ioctl = 0x2401;
const IOC_RESET: libc::Ioctl = 0x2403;
const IOC_SET_FILTER: libc::Ioctl = 0x4008_2406;
/// Applies an ioctl of a leader to its whole group.
const IOC_FLAG_GROUP: c_ulong = 1;

/// Value of a counter.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PerfCount {
    /// Number of events while the counter was running.
    pub value: u64,
    /// Nanoseconds for which the counter was enabled.
    pub enabled: u64,
    /// Nanoseconds for which the counter counted: less than `enabled` if the kernel multiplexed
    /// more counters than the CPU has.
    pub running: u64,
}

/// An open counter. Dropping this value closes the counter; drop the leader of a group last.
#[derive(Debug)]
pub struct PerfCounter {
    fd: OwnedFd,
    group: bool,
}

impl PerfCounter {
    /// Opens a counter that is read alone. The counter joins the group of `leader`, or leads a new
    /// group if `leader` is `None`. All counters of a group run at the same time.
    ///
    /// # Errors
    /// `ENOENT`, `EOPNOTSUPP`, `ENODEV`: the event does not exist here; `EACCES`, `EPERM`: not
    /// permitted; `EINVAL`: invalid parameters; `EMFILE`; `ENOSYS`: the kernel lacks the call;
    /// `ESRCH`.
    pub fn open(
        event: PerfEvent,
        whose: PerfScope,
        mode: Mode,
        leader: Option<&PerfCounter>,
    ) -> io::Result<PerfCounter> {
        PerfCounter::open_as(event, whose, mode, leader, false)
    }

    /// Opens the leader of a group that is read in one call with [`PerfCounter::read_group`]. Open
    /// the members of the group with this function too, with the first counter as `leader`.
    ///
    /// # Errors
    /// As [`PerfCounter::open`]; `EINVAL` together with `inherit` before Linux 4.13.
    pub fn open_in_group(
        event: PerfEvent,
        whose: PerfScope,
        mode: Mode,
        leader: Option<&PerfCounter>,
    ) -> io::Result<PerfCounter> {
        PerfCounter::open_as(event, whose, mode, leader, true)
    }

    fn open_as(
        event: PerfEvent,
        whose: PerfScope,
        mode: Mode,
        leader: Option<&PerfCounter>,
        group: bool,
    ) -> io::Result<PerfCounter> {
        let attributes = PerfEventAttr {
            read_format: FORMAT_TOTAL_TIME_ENABLED
                | FORMAT_TOTAL_TIME_RUNNING
                | if group { FORMAT_GROUP } else { 0 },
            ..PerfEventAttr::new(event, mode)
        };
        PerfCounter::open_with(&attributes, whose, leader, group)
    }

    /// Makes the kernel send a SIGTRAP with the code `TRAP_PERF` (Linux 5.13) to a thread that is
    /// about to execute the instruction at `address`: to `thread`, and to the threads that it
    /// creates. The traps end when the counter is closed, also if this process is killed, and at an
    /// `exec` of the thread.
    ///
    /// # Errors
    /// As [`PerfCounter::open`]; `EINVAL` before 5.13.
    pub fn trap_at(thread: u32, address: u64) -> io::Result<PerfCounter> {
        let mode = Mode { inherit: true, exclude_kernel: true, ..Mode::default() };
        let mut attributes = PerfEventAttr::new(PerfEvent::arrival(address), mode);
        attributes.sample_period = 1;
        attributes.flags |= flag::INHERIT_THREAD | flag::REMOVE_ON_EXEC | flag::SIGTRAP;
        PerfCounter::open_with(&attributes, PerfScope::Thread(thread), None, false)
    }

    pub(crate) fn open_with(
        attributes: &PerfEventAttr,
        whose: PerfScope,
        leader: Option<&PerfCounter>,
        group: bool,
    ) -> io::Result<PerfCounter> {
        let (thread, cpu) = whose.numbers()?;
        let leader = leader.map_or(-1, |leader| leader.fd.as_raw_fd());
        // SAFETY: the first argument points to a struct of the number of bytes in its field `size`,
        // which the call reads.
        let fd = unsafe {
            libc::syscall(
                libc::SYS_perf_event_open,
                &raw const *attributes,
                thread,
                cpu,
                leader,
                FLAG_FD_CLOEXEC,
            )
        };
        let Ok(fd @ 0..) = c_int::try_from(fd) else {
            return Err(io::Error::last_os_error());
        };
        // SAFETY: the kernel has just created this file descriptor, and no other value owns it.
        let fd = unsafe { OwnedFd::from_raw_fd(fd) };
        Ok(PerfCounter { fd, group })
    }

    /// Reads a counter that was opened by [`PerfCounter::open`]. The count includes the counters
    /// that inherited from it.
    ///
    /// # Errors
    /// Those of `read`; `UnexpectedEof` for a pinned counter that could not run.
    pub fn read(&self) -> io::Result<PerfCount> {
        let mut words = [0; 3];
        self.read_words(&mut words)?;
        let [value, enabled, running] = words;
        Ok(PerfCount { value, enabled, running })
    }

    /// Reads a whole group from its leader in one call. `values` receives the counts in the order
    /// in which the counters were opened.
    ///
    /// # Errors
    /// Those of `read`; `InvalidData` if the number of members differs from the length of `values`,
    /// or if the counter was not opened by [`PerfCounter::open_in_group`].
    pub fn read_group(&self, values: &mut [u64]) -> io::Result<GroupTimes> {
        /// Maximum number of counters in a group: more do not fit the counters of any CPU.
        const MAX_GROUP: usize = 16;
        const HEAD: usize = 3;
        if !self.group || values.len() > MAX_GROUP {
            return Err(io::ErrorKind::InvalidData.into());
        }
        let mut words = [0; HEAD + MAX_GROUP];
        let words = &mut words[..HEAD + values.len()];
        self.read_words(words)?;
        if words[0] != values.len() as u64 {
            return Err(io::ErrorKind::InvalidData.into());
        }
        values.copy_from_slice(&words[HEAD..]);
        Ok(GroupTimes { enabled: words[1], running: words[2] })
    }

    fn read_words(&self, words: &mut [u64]) -> io::Result<()> {
        let mut bytes = [0; 19 * size_of::<u64>()];
        let bytes = &mut bytes[..size_of_val(words)];
        let read = rustix::io::read(&self.fd, &mut *bytes)?;
        if read != bytes.len() {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        for (word, bytes) in words.iter_mut().zip(bytes.chunks_exact(size_of::<u64>())) {
            *word = u64::from_ne_bytes(bytes.try_into().expect("each chunk is a word long"));
        }
        Ok(())
    }

    /// Starts counting. A leader also starts the members of its group that were not opened as
    /// disabled.
    ///
    /// # Errors
    /// Those of `ioctl`.
    pub fn enable(&self) -> io::Result<()> {
        self.control(IOC_ENABLE, 0)
    }

    /// Stops counting. Stopping a leader stops its whole group, since no member counts while the
    /// leader does not count.
    ///
    /// # Errors
    /// Those of `ioctl`.
    pub fn disable(&self) -> io::Result<()> {
        // PERF_IOC_FLAG_GROUP, which disables the members too, is not used: Linux 6.18 does not
        // enable a page-fault counter again in a group whose leader is the task clock.
        self.control(IOC_DISABLE, 0)
    }

    /// Sets the count to 0, but not the times. Resetting a leader resets all counts of its group.
    ///
    /// # Errors
    /// Those of `ioctl`.
    pub fn reset(&self) -> io::Result<()> {
        self.control(IOC_RESET, IOC_FLAG_GROUP)
    }

    pub(crate) fn control(&self, request: libc::Ioctl, flags: c_ulong) -> io::Result<()> {
        // SAFETY: these requests take a number and access no memory of this process.
        match unsafe { libc::ioctl(self.fd.as_raw_fd(), request, flags) } {
            -1 => Err(io::Error::last_os_error()),
            _ => Ok(()),
        }
    }

    /// Counts only events of a tracepoint whose fields match an expression such as `reason == 4`.
    ///
    /// # Errors
    /// `EINVAL` for an expression that the kernel rejects, or an event that is not a tracepoint.
    pub fn set_filter(&self, expression: &CStr) -> io::Result<()> {
        // SAFETY: the argument of the request points to a string that ends with NUL, which the
        // kernel reads.
        match unsafe { libc::ioctl(self.fd.as_raw_fd(), IOC_SET_FILTER, expression.as_ptr()) } {
            -1 => Err(io::Error::last_os_error()),
            _ => Ok(()),
        }
    }
}

impl AsFd for PerfCounter {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

/// Times of a group, in nanoseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct GroupTimes {
    /// Time for which the group was enabled; see [`PerfCount::enabled`].
    pub enabled: u64,
    /// Time for which the group counted; see [`PerfCount::running`].
    pub running: u64,
}

#[cfg(test)]
pub(crate) mod tests {
    use std::io::ErrorKind;

    use pagewise_skip::{Lack, skip};

    use super::*;

    /// True if this user may count events, which `kernel.perf_event_paranoid` can forbid. Records a
    /// skipped test if false.
    pub(crate) fn may_count() -> bool {
        match PerfCounter::open(MINOR_FAULTS, PerfScope::ThisThread, OFF, None) {
            Err(error) if error.kind() == ErrorKind::PermissionDenied => {
                skip(&Lack::Refused { call: "perf_event_open", error: &error });
                false
            }
            _ => true,
        }
    }

    /// `PERF_COUNT_SW_PAGE_FAULTS_MIN`.
    const MINOR_FAULTS: PerfEvent = PerfEvent::new(PerfType::SOFTWARE, 5);
    const OFF: Mode = Mode {
        inherit: false,
        disabled: true,
        enable_on_exec: false,
        exclude_kernel: true,
        exclude_user: false,
    };

    fn touch(pages: usize) {
        let page = usize::try_from(crate::system::page_size()).unwrap();
        let mut region = crate::region::AlignedRegion::map(pages * page, page).unwrap();
        region.advise(crate::madvise::Advice::NoHugePage).unwrap();
        for byte in region.bytes().iter_mut().step_by(page) {
            *byte = 1;
        }
    }

    #[test]
    fn faults_are_counted_while_it_is_on() {
        if !may_count() {
            return;
        }
        let counter = PerfCounter::open(MINOR_FAULTS, PerfScope::ThisThread, OFF, None).unwrap();
        touch(10);
        assert_eq!(counter.read().unwrap().value, 0);
        counter.enable().unwrap();
        touch(100);
        counter.disable().unwrap();
        let counted = counter.read().unwrap();
        assert!((100..110).contains(&counted.value), "{counted:?}");
        assert!(counted.enabled > 0 && counted.running == counted.enabled, "{counted:?}");
        counter.reset().unwrap();
        assert_eq!(counter.read().unwrap().value, 0);
    }

    #[test]
    fn a_group_is_switched_and_read_together_again_and_again() {
        /// `PERF_COUNT_SW_TASK_CLOCK`, `PERF_COUNT_SW_PAGE_FAULTS`.
        const KINDS: [u64; 2] = [1, 2];
        if !may_count() {
            return;
        }
        for leading in KINDS {
            let event = PerfEvent::new(PerfType::SOFTWARE, leading);
            let leader =
                PerfCounter::open_in_group(event, PerfScope::ThisThread, OFF, None).unwrap();
            let on = Mode { disabled: false, ..OFF };
            let _member =
                PerfCounter::open_in_group(MINOR_FAULTS, PerfScope::ThisThread, on, Some(&leader))
                    .unwrap();
            touch(50);
            for round in 1..=3 {
                leader.enable().unwrap();
                touch(50);
                leader.disable().unwrap();
                touch(50);
                let mut values = [0; 2];
                leader.read_group(&mut values).unwrap();
                let faults = round * 50..round * 60;
                assert!(faults.contains(&values[1]), "round {round}, led by {leading}: {values:?}");
            }
            assert!(leader.read_group(&mut [0]).is_err(), "a group of two is not one");
            assert!(leader.read_group(&mut [0; 17]).is_err());
            leader.reset().unwrap();
            let mut values = [7; 2];
            leader.read_group(&mut values).unwrap();
            assert_eq!(values, [0; 2]);
        }
    }

    #[test]
    fn an_uncounted_event_is_an_error() {
        for event in
            [PerfEvent::new(PerfType(u32::MAX), 0), PerfEvent::new(PerfType::SOFTWARE, 1 << 40)]
        {
            assert!(
                PerfCounter::open(event, PerfScope::ThisThread, OFF, None).is_err(),
                "{event:?}"
            );
        }
        let gone = PerfCounter::open(MINOR_FAULTS, PerfScope::Thread(u32::MAX), OFF, None);
        assert_eq!(gone.unwrap_err().raw_os_error(), Some(libc::ESRCH));
    }
}
