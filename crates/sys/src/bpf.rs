//! `bpf`: BPF programs that the kernel runs at perf events. One program copies bytes of user memory
//! into the event's ring buffer, before the next instruction can change them. Another program
//! writes a sample for each uprobe hit, so that one uprobe serves all CPUs and many uprobes are
//! removed at once.

use std::ffi::{CStr, c_char, c_long};
use std::io;
use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd, RawFd};

use crate::descriptor_holder::{DescriptorHolder, HolderReport};
use crate::perf_event::{PerfCounter, PerfScope};
use crate::perf_ring::{self, Sampling};

/// Maximum number of bytes that a program copies: the bytes that four breakpoints can cover.
pub const MAX_COPIED_BYTES: usize = 4 * 8;
/// Offset of the buffer of [`MAX_COPIED_BYTES`] from the BPF frame pointer.
const ROOM: i32 = -4 * 8;

/// License of the programs. The kernel lets a program call the helper functions used here only if
/// its license is compatible with the GPL; the licenses of this project apply too.
const LICENSE: &CStr = c"Dual MIT/GPL";

/// Commands of `enum bpf_cmd`.
const MAP_CREATE: c_long = 0;
const MAP_UPDATE_ELEM: c_long = 2;
const PROG_LOAD: c_long = 5;
const LINK_CREATE: c_long = 28;
/// `BPF_MAP_TYPE_PERF_EVENT_ARRAY`, `BPF_PROG_TYPE_PERF_EVENT`, `BPF_PROG_TYPE_KPROBE`.
const PERF_EVENT_ARRAY: u32 = 4;
const PERF_EVENT: u32 = 7;
const KPROBE: u32 = 2;
/// `BPF_TRACE_UPROBE_MULTI`, and `BPF_F_UPROBE_MULTI_RETURN`.
const UPROBE_MULTI: u32 = 48;
const MULTI_RETURN: u32 = 1;
/// Size in bytes of a key, and of a value, of a map.
const WORD: u32 = 4;
/// `_IOW('$', 8, __u32)`.
const IOC_SET_BPF: libc::Ioctl = 0x4004_2408;

/// Fields of `union bpf_attr` that create a map.
#[repr(C)]
struct MapCreate {
    map_type: u32,
    key_size: u32,
    value_size: u32,
    max_entries: u32,
}

/// Fields of `union bpf_attr` that update an element of a map.
#[repr(C)]
struct MapUpdate<'a> {
    map: u32,
    pad: u32,
    key: &'a u32,
    value: &'a u32,
    flags: u64,
}

/// Fields of `union bpf_attr` that load a program.
#[repr(C)]
struct ProgLoad {
    kind: u32,
    count: u32,
    instructions: *const u64,
    license: *const std::ffi::c_char,
    log_level: u32,
    log_size: u32,
    log: u64,
    version: u32,
    flags: u32,
    name: [u8; 16],
    interface: u32,
    attach_type: u32,
}

/// Fields of `union bpf_attr` that create a `uprobe_multi` link.
#[repr(C)]
struct MultiLink {
    program: u32,
    target: u32,
    attach_type: u32,
    flags: u32,
    path: *const c_char,
    offsets: *const u64,
    counters: u64,
    cookies: u64,
    count: u32,
    probe_flags: u32,
    pid: u32,
    pad: u32,
}

/// A program that copies bytes from the process in which an event happens, and the map of the
/// output events that receive the bytes. Dropping this value removes the output events from the
/// map.
#[derive(Debug)]
pub struct Copies {
    program: OwnedFd,
    outputs: OwnedFd,
}

impl Copies {
    /// Loads a program that copies `length` bytes, 1 to [`MAX_COPIED_BYTES`], from `address` on. It
    /// runs on CPUs with numbers below `cpus`.
    ///
    /// # Errors
    /// `EPERM` without CAP_BPF and CAP_PERFMON, `ENOSYS`, `EINVAL` before Linux 5.5 and for other
    /// lengths.
    pub fn for_address(address: u64, length: usize, cpus: u32) -> io::Result<Copies> {
        let size = i32::try_from(length).ok().filter(|_| (1..=MAX_COPIED_BYTES).contains(&length));
        let size = size.ok_or_else(|| io::Error::from_raw_os_error(libc::EINVAL))?;
        let outputs = outputs(cpus)?;
        let program = load(PERF_EVENT, 0, &program(address, size, outputs.as_raw_fd()))?;
        Ok(Copies { program, outputs })
    }

    /// Sets the event that receives the bytes copied on a CPU: a
    /// [`PerfEvent::OUTPUT`](crate::perf_event::PerfEvent::OUTPUT) event that was opened for that
    /// whole CPU ([`PerfScope::Cpu`]).
    ///
    /// # Errors
    /// Returns the errors of `bpf`.
    pub fn write_to(&self, cpu: u32, output: &PerfCounter) -> io::Result<()> {
        set_output(&self.outputs, cpu, output)
    }

    /// Runs the program at each event of a sampled counter, before the kernel writes the sample;
    /// also at the events of counters that inherit from this counter.
    ///
    /// # Errors
    /// Returns the errors of `ioctl`.
    pub fn run_at(&self, counter: &PerfCounter) -> io::Result<()> {
        let program = self.program.as_raw_fd().unsigned_abs();
        counter.control(IOC_SET_BPF, program.into())
    }
}

/// A program that writes one sample for each uprobe hit, on the CPU of the hit. Dropping this value
/// ends the samples: the kernel empties the map of output events when the map's last descriptor is
/// closed.
#[derive(Debug)]
pub struct UprobeSamples {
    program: OwnedFd,
    outputs: OwnedFd,
}

/// Method of attaching the program of [`UprobeSamples`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Attachment {
    /// One link for all instructions of a file (Linux 6.6).
    Link,
    /// One perf event for each instruction.
    Events,
}

impl UprobeSamples {
    /// Loads the program, which runs on CPUs with numbers below `cpus`.
    ///
    /// # Errors
    /// `EPERM` without CAP_BPF and CAP_PERFMON; `ENOSYS`.
    pub fn load(attachment: Attachment, cpus: u32) -> io::Result<UprobeSamples> {
        let outputs = outputs(cpus)?;
        let attach_type = match attachment {
            Attachment::Link => UPROBE_MULTI,
            Attachment::Events => 0,
        };
        let program = load(KPROBE, attach_type, &sample_program(outputs.as_raw_fd()))?;
        Ok(UprobeSamples { program, outputs })
    }

    /// Sets the event that writes the samples of a CPU: a
    /// [`PerfEvent::OUTPUT`](crate::perf_event::PerfEvent::OUTPUT) event that was opened for that
    /// whole CPU. The samples contain the user registers and stack if that event asks for them.
    ///
    /// # Errors
    /// Returns the errors of `bpf`.
    pub fn write_to(&self, cpu: u32, output: &PerfCounter) -> io::Result<()> {
        set_output(&self.outputs, cpu, output)
    }

    /// Places uprobes at `offsets` of a file, or at the return of the functions that begin there:
    /// in one process (before Linux 6.10, only its first thread runs the program), or in every
    /// process that maps the file. The uprobes exist as long as the returned value.
    ///
    /// # Errors
    /// `EINVAL` before Linux 6.6; `EBADF`, `ENOENT` if the path does not name a file; `ESRCH` if
    /// the process does not exist; and the errors of [`DescriptorHolder`].
    pub fn link(
        &self,
        path: &CStr,
        offsets: &[u64],
        at_return: bool,
        pid: Option<u32>,
    ) -> io::Result<DescriptorHolder> {
        let invalid = || io::Error::from_raw_os_error(libc::EINVAL);
        let link = MultiLink {
            program: self.program.as_raw_fd().unsigned_abs(),
            target: 0,
            attach_type: UPROBE_MULTI,
            flags: 0,
            path: path.as_ptr(),
            offsets: offsets.as_ptr(),
            counters: 0,
            cookies: 0,
            count: u32::try_from(offsets.len()).map_err(|_| invalid())?,
            probe_flags: if at_return { MULTI_RETURN } else { 0 },
            pid: pid.unwrap_or(0),
            pad: 0,
        };
        let open = |_: &mut HolderReport| {
            // SAFETY: `path` is a NUL-terminated string and `offsets` has `count` numbers; the
            // kernel copies both.
            unsafe { raw_bpf(LINK_CREATE, &link) }.map(|_| ())
        };
        // SAFETY: `open` only makes one system call.
        unsafe { DescriptorHolder::start(open) }.map(|(holder, _)| holder)
    }

    /// Opens uprobe events on one CPU, and runs the program at each hit on any CPU. The uprobes
    /// exist as long as the returned value.
    ///
    /// # Errors
    /// Returns the errors of [`perf_ring::open`], `ioctl` and [`DescriptorHolder`].
    pub fn run_at(&self, uprobes: &[Sampling], cpu: u32) -> io::Result<DescriptorHolder> {
        let program = self.program.as_raw_fd().unsigned_abs();
        let open = |_: &mut HolderReport| {
            uprobes.iter().try_for_each(|uprobe| {
                let uprobe = perf_ring::open(uprobe, PerfScope::Cpu(cpu))?;
                uprobe.control(IOC_SET_BPF, program.into())?;
                // The file descriptor stays open until the child ends.
                std::mem::forget(uprobe);
                Ok(())
            })
        };
        // SAFETY: `open` makes system calls only.
        unsafe { DescriptorHolder::start(open) }.map(|(holder, _)| holder)
    }
}

/// Creates a map from the number of a CPU to the output event of that CPU.
fn outputs(cpus: u32) -> io::Result<OwnedFd> {
    let map = MapCreate {
        map_type: PERF_EVENT_ARRAY,
        key_size: WORD,
        value_size: WORD,
        max_entries: cpus,
    };
    // SAFETY: `MapCreate` contains numbers only, so the kernel follows no pointer.
    unsafe { bpf(MAP_CREATE, &map) }
}

fn set_output(outputs: &OwnedFd, cpu: u32, output: &PerfCounter) -> io::Result<()> {
    let value = output.as_fd().as_raw_fd().unsigned_abs();
    let map = outputs.as_raw_fd().unsigned_abs();
    let update = MapUpdate { map, pad: 0, key: &cpu, value: &value, flags: 0 };
    // SAFETY: both pointers are to numbers of the size with which the map was created.
    unsafe { raw_bpf(MAP_UPDATE_ELEM, &update) }.map(|_| ())
}

fn load(kind: u32, attach_type: u32, code: &[u64]) -> io::Result<OwnedFd> {
    let load = ProgLoad {
        kind,
        count: u32::try_from(code.len()).expect("it has some twenty"),
        instructions: code.as_ptr(),
        license: LICENSE.as_ptr(),
        log_level: 0,
        log_size: 0,
        log: 0,
        version: 0,
        flags: 0,
        name: [0; 16],
        interface: 0,
        attach_type,
    };
    // SAFETY: `instructions` points to `count` words and `license` to a string; the kernel copies
    // both.
    unsafe { bpf(PROG_LOAD, &load) }
}

/// BPF register R10: the frame pointer, which points to the end of the stack. R0 holds results, R1
/// to R5 arguments; calls preserve R6 to R9.
const STACK: u8 = 10;

/// Encodes an instruction: opcode, destination register, source register, jump offset, immediate.
const fn step(code: u8, to: u8, from: u8, jump: i16, number: i32) -> u64 {
    let [a, b] = jump.to_le_bytes();
    let [c, d, e, f] = number.to_le_bytes();
    u64::from_ne_bytes([code, registers(to, from), a, b, c, d, e, f])
}

/// The two register fields of 4 bits each; `to` is in the lower bits on little-endian machines.
const fn registers(to: u8, from: u8) -> u8 {
    if cfg!(target_endian = "little") { to | from << 4 } else { to << 4 | from }
}

/// Opcodes, and the numbers of helper functions.
mod code {
    pub(super) const MOVE: u8 = 0xbf;
    pub(super) const NUMBER: u8 = 0xb7;
    pub(super) const SHORT_NUMBER: u8 = 0xb4;
    pub(super) const ADD: u8 = 0x07;
    pub(super) const LONG_NUMBER: u8 = 0x18;
    pub(super) const CALL: u8 = 0x85;
    pub(super) const UNLESS_EQUAL: u8 = 0x55;
    pub(super) const EXIT: u8 = 0x95;
    pub(super) const READ_USER: i32 = 112;
    pub(super) const OUTPUT: i32 = 25;
    /// `BPF_PSEUDO_MAP_FD`: the immediate is the file descriptor of a map.
    pub(super) const MAP: u8 = 1;
    pub(super) const STORE: u8 = 0x7a;
}

/// `bpf_perf_event_output(context, outputs, this CPU, stack, 8); 0`. The sample contains the 8
/// bytes only if the output event asks for raw data.
fn sample_program(outputs: RawFd) -> Vec<u64> {
    use code::{ADD, CALL, EXIT, LONG_NUMBER, MAP, MOVE, NUMBER, OUTPUT, SHORT_NUMBER, STORE};
    const WORD: i32 = 8;
    vec![
        step(STORE, STACK, 0, -8, 0),
        step(LONG_NUMBER, 2, MAP, 0, outputs),
        step(0, 0, 0, 0, 0),
        // `BPF_F_CURRENT_CPU`: 32 ones.
        step(SHORT_NUMBER, 3, 0, 0, -1),
        step(MOVE, 4, STACK, 0, 0),
        step(ADD, 4, 0, 0, -WORD),
        step(NUMBER, 5, 0, 0, WORD),
        step(CALL, 0, 0, 0, OUTPUT),
        // If the program returns 0, the uprobe event itself writes no sample.
        step(NUMBER, 0, 0, 0, 0),
        step(EXIT, 0, 0, 0, 0),
    ]
}

/// `if bpf_probe_read_user(stack, length, address) == 0 { bpf_perf_event_output(context, outputs,
/// this CPU, stack, length) }; 1`
fn program(address: u64, length: i32, outputs: RawFd) -> Vec<u64> {
    use code::{
        ADD, CALL, EXIT, LONG_NUMBER, MAP, MOVE, NUMBER, OUTPUT, READ_USER, SHORT_NUMBER,
        UNLESS_EQUAL,
    };
    let half = |bytes: [u8; 4]| i32::from_ne_bytes(bytes);
    let [a, b, c, d, e, f, g, h] = address.to_le_bytes();
    let (low, high) = (
        half(u32::from_le_bytes([a, b, c, d]).to_ne_bytes()),
        half(u32::from_le_bytes([e, f, g, h]).to_ne_bytes()),
    );
    vec![
        step(MOVE, 6, 1, 0, 0),
        step(MOVE, 1, STACK, 0, 0),
        step(ADD, 1, 0, 0, ROOM),
        step(NUMBER, 2, 0, 0, length),
        step(LONG_NUMBER, 3, 0, 0, low),
        step(0, 0, 0, 0, high),
        step(CALL, 0, 0, 0, READ_USER),
        step(UNLESS_EQUAL, 0, 0, 8, 0),
        step(MOVE, 1, 6, 0, 0),
        step(LONG_NUMBER, 2, MAP, 0, outputs),
        step(0, 0, 0, 0, 0),
        // `BPF_F_CURRENT_CPU`: 32 ones.
        step(SHORT_NUMBER, 3, 0, 0, -1),
        step(MOVE, 4, STACK, 0, 0),
        step(ADD, 4, 0, 0, ROOM),
        step(NUMBER, 5, 0, 0, length),
        step(CALL, 0, 0, 0, OUTPUT),
        // If the program returned 0, the kernel would drop the sample.
        step(NUMBER, 0, 0, 0, 1),
        step(EXIT, 0, 0, 0, 0),
    ]
}

/// Makes a `bpf` call that returns a new file descriptor.
///
/// # Safety
/// The requirements of [`raw_bpf`].
unsafe fn bpf<T>(command: c_long, attributes: &T) -> io::Result<OwnedFd> {
    // SAFETY: the caller passes the command with the attributes that the kernel reads for it.
    let fd = unsafe { raw_bpf(command, attributes) }?;
    // SAFETY: the kernel has just created this file descriptor (close-on-exec), and no other value
    // owns it.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// # Safety
/// The targets of the pointers in the attributes must have the types that the command expects.
unsafe fn raw_bpf<T>(command: c_long, attributes: &T) -> io::Result<RawFd> {
    // SAFETY: the last argument is the size of the struct that the call reads; the caller
    // guarantees the targets of the pointers in it.
    let result =
        unsafe { libc::syscall(libc::SYS_bpf, command, &raw const *attributes, size_of::<T>()) };
    match RawFd::try_from(result) {
        Ok(fd @ 0..) => Ok(fd),
        _ => Err(io::Error::last_os_error()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_jump_over_the_output_lands_on_the_return_value() {
        let code = program(0x1234_5678_9abc_def0, 8, 7);
        let at = code.iter().position(|step| step.to_ne_bytes()[0] == 0x55).unwrap();
        assert_eq!(code[at + 1 + 8].to_ne_bytes()[0], 0xb7);
        assert_eq!(code[at + 1 + 8].to_ne_bytes()[4..], 1_i32.to_ne_bytes());
        assert_eq!(code[4].to_ne_bytes()[4..], 0x9abc_def0_u32.to_ne_bytes());
        assert_eq!(code[5].to_ne_bytes()[4..], 0x1234_5678_u32.to_ne_bytes());
    }

    #[test]
    fn lengths_out_of_range_are_refused() {
        for length in [0, MAX_COPIED_BYTES + 1, usize::MAX] {
            assert!(Copies::for_address(0x1000, length, 1).is_err());
        }
    }
}
