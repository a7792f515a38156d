//! Reads and changes the system of a virtual machine, for experiments inside the machine. Changes
//! are not undone, because the machine ends after one run.

use std::collections::BTreeMap;
use std::fs;
use std::io::{PipeReader, PipeWriter, Read, Write};
use std::os::unix::fs::FileTypeExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use pagewise_labmem::fork::{ForkedChild, fork};
use pagewise_labmem::mapping::{MapRequest, OwnedMapping};
use pagewise_model::Bytes;
use pagewise_proc::{ProcRoot, meminfo, pressure, vmstat};
use pagewise_sys::madvise::Advice;
use rustix::process::{Resource, Rlimit, setrlimit};

use crate::error::While;
use crate::{Bench, LabError};

/// Mount point of the cgroup hierarchy.
const CGROUPS: &str = "/sys/fs/cgroup";

/// Memory that the kernel keeps free if nearly all memory is used.
const MIN_FREE: Bytes = Bytes::mib(2);

/// Minimum amount of memory that is locked.
const MIN_LOCKED: Bytes = Bytes::kib(512);
/// Maximum number of mappings in which memory is locked.
const MAX_LOCKED: usize = 10;

/// Time limit of [`wait_until`].
const PATIENCE: Duration = Duration::from_secs(60);

/// Counters of `/proc/vmstat` at one time point.
#[derive(Debug)]
pub(crate) struct VmCounters(BTreeMap<Vec<u8>, u64>);

impl VmCounters {
    pub(crate) fn read() -> Result<VmCounters, LabError> {
        let text = fs::read("/proc/vmstat").while_("cannot read /proc/vmstat")?;
        let rows = vmstat::parse(&text).into_iter();
        Ok(VmCounters(rows.map(|row| (row.name.as_bytes().to_vec(), row.count)).collect()))
    }

    /// Growth of a counter until now. `None` if this kernel does not have the counter.
    pub(crate) fn growth(&self, name: &str) -> Result<Option<u64>, LabError> {
        let now = VmCounters::read()?;
        let [before, after] = [self, &now].map(|counters| counters.0.get(name.as_bytes()));
        Ok(before.zip(after).map(|(before, after)| after.saturating_sub(*before)))
    }
}

/// Writes a value to a file of the kernel.
pub(crate) fn set(path: impl AsRef<Path>, value: impl ToString) -> Result<(), LabError> {
    let (path, value) = (path.as_ref(), value.to_string());
    fs::write(path, &value).while_(format!("cannot write {value} to {}", path.display()))
}

/// Reads the first number in a file of the kernel.
pub(crate) fn number(path: impl AsRef<Path>) -> Result<u64, LabError> {
    let path = path.as_ref();
    let text = fs::read_to_string(path).while_(format!("cannot read {}", path.display()))?;
    let word = text.split_whitespace().next().and_then(|word| word.parse().ok());
    word.ok_or_else(|| LabError::Failed(format!("{} has no number", path.display())))
}

/// Reads the number after a word, such as a counter of `memory.events`.
pub(crate) fn number_of(path: impl AsRef<Path>, word: &str) -> Result<u64, LabError> {
    let path = path.as_ref();
    let text = fs::read_to_string(path).while_(format!("cannot read {}", path.display()))?;
    let found = text.lines().find_map(|line| {
        let (name, value) = line.split_once(|c: char| c == ':' || c.is_whitespace())?;
        (name == word).then(|| value.split_whitespace().next()?.parse().ok())?
    });
    found.ok_or_else(|| LabError::Failed(format!("{} has no {word}", path.display())))
}

/// A size of `/proc/meminfo`.
pub(crate) fn memory(name: &str) -> Result<Bytes, LabError> {
    let text = fs::read("/proc/meminfo").while_("cannot read /proc/meminfo")?;
    meminfo::parse(&text, name).map_err(|why| LabError::Failed(why.to_string()))
}

/// Memory that programs can get without swap.
pub(crate) fn available() -> Result<Bytes, LabError> {
    let read = meminfo::machine(&ProcRoot::live()).mem_available;
    read.map_err(|why| LabError::Failed(why.to_string()))
}

/// A machine with swap on its first disk, and little memory for programs.
pub(crate) struct ScarceMemory {
    /// Number of bytes of `share` percent (a parameter) of the remaining memory, rounded up to
    /// whole pages.
    pub(crate) length: usize,
    _locked: Vec<OwnedMapping>,
}

impl ScarceMemory {
    /// Locks memory, until the value is dropped, so that only the amount of the parameter `room`
    /// remains.
    pub(crate) fn make(bench: &Bench) -> Result<ScarceMemory, LabError> {
        swap_on("/dev/vda")?;
        // No swap readahead: each page fault reads one page.
        set("/proc/sys/vm/page-cluster", 0)?;
        let (page, room) = (bench.page(), bench.size("room") << 20);
        let length = (room / 100 * bench.size("share")).next_multiple_of(page);
        Ok(ScarceMemory { length, _locked: leave(Bytes(room as u64), page)? })
    }
}

/// Locks memory until only `room` is left for programs, so that a small set of pages is too large
/// for the machine. Returns the locked memory.
fn leave(room: Bytes, page: usize) -> Result<Vec<OwnedMapping>, LabError> {
    shorten_cpu_lists()?;
    // By default, the kernel keeps more memory free than `MIN_FREE`.
    set("/proc/sys/vm/min_free_kbytes", MIN_FREE.0 >> 10)?;
    let mut locked = Vec::new();
    // Pages in the lists of CPUs do not count as available; the first mappings use these pages up.
    for _ in 0..MAX_LOCKED {
        let length = available()?.saturating_sub(room);
        if length < MIN_LOCKED {
            break;
        }
        let length = usize::try_from(length.0).unwrap_or(usize::MAX) / page * page;
        let mapping = OwnedMapping::map(&MapRequest { length, ..MapRequest::default() });
        let mapping = mapping.while_("cannot map memory")?;
        mapping.advise(0..length, Advice::NoHugePage).while_("madvise")?;
        mapping.lock().while_("cannot lock memory")?;
        locked.push(mapping);
    }
    Ok(locked)
}

/// Leaves few free pages in the list of each CPU. Since 6.7 the kernel lets these lists grow to
/// megabytes, which MemFree and MemAvailable do not count.
pub(crate) fn shorten_cpu_lists() -> Result<(), LabError> {
    // The setting exists since 5.14. With the value N, the lists of all CPUs together may have 1/N
    // of the pages of a zone.
    let path = Path::new("/proc/sys/vm/percpu_pagelist_high_fraction");
    if path.exists() { set(path, 5000) } else { Ok(()) }
}

/// Microseconds in which at least one thread waited for memory, since boot.
pub(crate) fn stalled_us() -> Result<u64, LabError> {
    let path = "/proc/pressure/memory";
    let text = fs::read(path).while_(format!("cannot read {path}"))?;
    let totals = pressure::parse_totals(&text);
    totals.map(|totals| totals.some_us).ok_or_else(|| LabError::Failed(format!("{path} is empty")))
}

/// Formats a block device as swap, and enables it.
pub(crate) fn swap_on(device: &str) -> Result<(), LabError> {
    call("mkswap", &[device])?;
    call("swapon", &[device])
}

/// Runs an applet of busybox.
pub(crate) fn call(program: &str, words: &[&str]) -> Result<(), LabError> {
    let mut command = Command::new(program);
    command.args(words).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped());
    let output = command.output().while_(format!("cannot run {program}"))?;
    if output.status.success() {
        return Ok(());
    }
    let message = String::from_utf8_lossy(&output.stderr).trim().to_owned();
    Err(LabError::Failed(format!("{program}: {message}")))
}

/// Sectors of 512 bytes that were written to a disk.
pub(crate) fn sectors_written(disk: &str) -> Result<u64, LabError> {
    let path = format!("/sys/block/{disk}/stat");
    let text = fs::read_to_string(&path).while_(format!("cannot read {path}"))?;
    let field = text.split_whitespace().nth(6).and_then(|word| word.parse().ok());
    field.ok_or_else(|| LabError::Failed(format!("{path} is too short")))
}

/// A block device of the machine.
pub(crate) fn disk(name: &str) -> Result<PathBuf, LabError> {
    let path = Path::new("/dev").join(name);
    let is_disk = fs::metadata(&path).is_ok_and(|found| found.file_type().is_block_device());
    let missing = || LabError::Failed(format!("the machine has no {}", path.display()));
    is_disk.then_some(path.clone()).ok_or_else(missing)
}

/// A new memory cgroup of the machine.
pub(crate) fn make_cgroup(name: &str) -> Result<PathBuf, LabError> {
    let path = Path::new(CGROUPS).join(name);
    fs::create_dir(&path).while_(format!("cannot make {}", path.display()))?;
    Ok(path)
}

/// Fills the buffers of pipes, whose pages the kernel cannot move.
pub(crate) fn fill_pipes(
    number: usize,
    capacity: usize,
) -> Result<Vec<(PipeReader, PipeWriter)>, LabError> {
    let files = Rlimit { current: Some(1 << 16), maximum: Some(1 << 16) };
    setrlimit(Resource::Nofile, files).while_("cannot raise the limit on open files")?;
    let content = vec![1; capacity];
    let full = || {
        let (reader, mut writer) = std::io::pipe()?;
        writer.write_all(&content)?;
        Ok((reader, writer))
    };
    let pipes: Result<_, std::io::Error> = (0..number).map(|_| full()).collect();
    pipes.while_("cannot fill pipes")
}

/// Waits until `is_so` returns true. Returns an error after [`PATIENCE`].
pub(crate) fn wait_until(
    what: &str,
    mut is_so: impl FnMut() -> Result<bool, LabError>,
) -> Result<(), LabError> {
    let deadline = Instant::now() + PATIENCE;
    while !is_so()? {
        if Instant::now() > deadline {
            return Err(LabError::Failed(format!("this did not happen in a minute: {what}")));
        }
        thread::sleep(Duration::from_millis(20));
    }
    Ok(())
}

/// A child process that reports when its preparation is done.
pub(crate) struct GuestProcess {
    child: Option<ForkedChild>,
}

impl GuestProcess {
    /// Starts a process, and waits until `prepare` has returned in it. The process then calls
    /// `work` with the result of `prepare`, repeatedly.
    pub(crate) fn start<T>(
        prepare: impl FnOnce() -> Result<T, LabError>,
        mut work: impl FnMut(&T),
    ) -> Result<GuestProcess, LabError> {
        let (mut ready, done) = std::io::pipe().while_("cannot make a pipe")?;
        let child = fork(move || {
            let Ok(prepared) = prepare() else { return 1 };
            drop(done);
            loop {
                work(&prepared);
            }
        });
        let process = GuestProcess { child: Some(child.while_("cannot start a process")?) };
        // The read returns when the process has closed its end of the pipe, or has ended.
        let _ = ready.read(&mut [0]);
        Ok(process)
    }

    pub(crate) fn pid(&self) -> u32 {
        self.child.as_ref().map_or(0, ForkedChild::pid)
    }

    /// True if the process has not ended.
    pub(crate) fn is_alive(&self) -> bool {
        let statm = fs::read_to_string(format!("/proc/{}/statm", self.pid()));
        statm.is_ok_and(|text| !text.starts_with("0 "))
    }
}

impl Drop for GuestProcess {
    fn drop(&mut self) {
        if let Some(child) = self.child.take() {
            child.kill();
        }
    }
}
