//! One process at one moment: every source of this crate put together into a [`Snapshot`].

mod memory;

use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use pagewise_model::machine::{Gap, ProcessMoment, Provenance, ReadMethod};
use pagewise_model::mapping::Mapping;
use pagewise_model::object::ElfObject;
use pagewise_model::pagewise_pools::RegisteredPool;
use pagewise_model::process::{KsmStat, NodeShare, Process, ResourceLimits, Statm};
use pagewise_model::snapshot::{MappingHead, SNAPSHOT_VERSION, Snapshot};
use pagewise_model::units::nanoseconds;
use pagewise_model::{Absent, Bytes, Name, PageSize, Pid, Reading, SmapsCounter, parallel};
use pagewise_sys::probe::Features;
use pagewise_sys::{libraries, system};

use self::memory::{MemoryReader, NO_SUMS, ReadMemory};
use crate::mountinfo::Mount;
use crate::pages::Pace;
use crate::root::NOT_COPIED;
use crate::stat::PidStat;
use crate::stream::LongestRead;
use crate::users::Users;
use crate::{
    ProcError, ProcRoot, cgroup, elf, heads, ksm, limits, meminfo, mountinfo, pagewise_pools, stat,
    status, threads,
};

/// Maximum resident size at which a full reading blocks the target for much less than 1 ms per
/// mapping.
const SMALL: Bytes = Bytes::mib(64);

/// Choice of the reading method.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Wish {
    /// [`ReadMethod::Full`] for a small process, [`ReadMethod::Polite`] for a large one.
    #[default]
    Auto,
    /// [`ReadMethod::Polite`]
    Polite,
    /// [`ReadMethod::Fast`]
    Fast,
    /// [`ReadMethod::Full`]
    Full,
}

impl Wish {
    /// The method for a process with this resident size.
    pub fn method(self, resident: Bytes) -> ReadMethod {
        match self {
            Wish::Polite => ReadMethod::Polite,
            Wish::Fast => ReadMethod::Fast,
            Wish::Full => ReadMethod::Full,
            Wish::Auto if resident <= SMALL => ReadMethod::Full,
            Wish::Auto => ReadMethod::Polite,
        }
    }
}

/// Parts to read, and the moment in the life of the target.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CaptureRequest {
    /// Choice of the reading method.
    pub wish: Wish,
    /// Moment that the snapshot records.
    pub moment: ProcessMoment,
    /// The pace of a polite reading.
    pub pace: Pace,
    /// True if a reading includes the sums that the kernel computes by another walk over all
    /// mappings: `ksm_stat`, and for a full reading `smaps_rollup`. Totals and checks need these
    /// files, a list of mappings does not.
    pub sums: bool,
}

impl Default for CaptureRequest {
    fn default() -> CaptureRequest {
        CaptureRequest {
            wish: Wish::Auto,
            moment: ProcessMoment::Running,
            pace: Pace::POLITE,
            sums: true,
        }
    }
}

/// Reads a process.
///
/// A part that may not be read, or does not exist, is absent with the reason. An error is returned
/// only if nothing of the process can be read.
///
/// # Errors
/// [`ProcError::NoSuchProcess`] if the process does not exist or ends meanwhile, [`ProcError::Io`]
/// and [`ProcError::Parse`] if even `stat` cannot be read.
pub fn capture(root: &ProcRoot, pid: Pid, request: &CaptureRequest) -> Result<Snapshot, ProcError> {
    if root.ourselves() == Some(pid) {
        // A reading of this process makes its own memory grow. The allocator keeps the memory of
        // each reading, so a third reading needs no more.
        for _ in 0..2 {
            drop(read(root, pid, request)?);
        }
    }
    read(root, pid, request)
}

/// Replaces the pages of libraries that this process shares with other processes by private copies,
/// so that this process does not reduce the `Pss` of the other processes. Returns true on success.
fn leave_shares(root: &ProcRoot, pid: Pid) -> bool {
    !root.is_live() || root.ourselves() == Some(pid) || libraries::copy_libraries()
}

fn read(root: &ProcRoot, pid: Pid, request: &CaptureRequest) -> Result<Snapshot, ProcError> {
    let begin = Instant::now();
    let unix_seconds = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |t| t.as_secs());
    let mut capture = Capture::begin(root, pid, request)?;
    if !leave_shares(root, pid) {
        let why = "pagewise maps libraries that it could not copy: what the process shares with it counts as shared";
        capture.miss("shares of libraries", Absent::NotSupported(why.into()));
    }
    let (memory, numa) = capture.memory()?;
    let statm = capture.statm();
    let process = capture.process();
    // Linux 6.18 walks all mappings to print `ksm_stat`: 4 ms for 65,000 of them.
    let (ksm, (objects, heads, pools)) = parallel::both(
        capture.is_large,
        || capture.ksm(),
        || {
            let mappings = &memory.mappings;
            let objects = capture.objects(mappings, &process);
            (objects, capture.heads(mappings), capture.pools(mappings))
        },
    );
    let status = root.reading(capture.holder, "status").map(|text| status::parse(&text));
    let limits = root.reading(pid, "limits").and_then(|text| {
        limits::parse(&text).map_err(|error| Absent::NotSupported(error.to_string().into()))
    });
    let locks_freely = status.as_ref().ok().and_then(|parsed| parsed.locks_freely);
    Ok(Snapshot {
        pagewise_snapshot: SNAPSHOT_VERSION,
        machine: meminfo::machine(root),
        statm,
        status: status.as_ref().map(|parsed| parsed.status.clone()).map_err(Clone::clone),
        rollup: memory.rollup,
        walk: memory.walk,
        threads: threads::read(root, pid),
        objects,
        heads,
        pools,
        heap_sample: Err(Absent::NotCollected("this reading does not sample the heap".into())),
        core: None,
        mappings: memory.mappings,
        limits: limits.map(|limits| ResourceLimits { locks_freely, ..limits }),
        cgroup: cgroup::read(root, pid),
        ksm,
        numa,
        process,
        provenance: Provenance {
            kernel: kernel(root),
            page_size: capture.page_size,
            euid: system::euid(),
            sees_frames: capture.features.frames && root.is_live(),
            method: capture.method,
            unix_seconds,
            took_ns: nanoseconds(begin.elapsed()),
            longest_hold_ns: capture.longest_hold(),
            root: Name::new(root.path().as_os_str().as_encoded_bytes()),
            moment: request.moment,
            gaps: capture.end()?,
        },
    })
}

/// Resident memory of a process now: one small read, for frequent samples.
///
/// # Errors
/// [`ProcError::NoSuchProcess`], [`ProcError::NotPermitted`], [`ProcError::Parse`]
pub fn resident(root: &ProcRoot, pid: Pid) -> Result<Bytes, ProcError> {
    let page_size = PageSize::new(system::page_size()).expect("the kernel's page size is one");
    Ok(stat::parse_statm(&root.read(pid, "statm")?, page_size)?.resident)
}

/// Identity of a process, and its mappings without the data of their pages.
///
/// # Errors
/// As [`capture`].
pub fn outline(root: &ProcRoot, pid: Pid) -> Result<(Process, Reading<Vec<Mapping>>), ProcError> {
    let mut capture = Capture::begin(root, pid, &CaptureRequest::default())?;
    let mappings = capture.reader().maps()?;
    let process = capture.process();
    capture.end()?;
    Ok((process, mappings))
}

/// The pages of each NUMA node.
type ByNode = Reading<Vec<NodeShare>>;

/// A reading in progress.
struct Capture<'a> {
    root: &'a ProcRoot,
    pid: Pid,
    /// Thread whose files show the memory of the process.
    holder: Pid,
    stat: PidStat,
    mounts: Vec<Mount>,
    features: Features,
    page_size: PageSize,
    method: ReadMethod,
    pace: Pace,
    wants_sums: bool,
    is_large: bool,
    longest: LongestRead,
    gaps: Vec<Gap>,
}

/// Reason for making no system call on a process.
const OTHER_IDS: &str = "/proc is of another pid namespace";

impl<'a> Capture<'a> {
    fn begin(
        root: &'a ProcRoot,
        pid: Pid,
        request: &CaptureRequest,
    ) -> Result<Capture<'a>, ProcError> {
        let stat = stat::parse(&root.read(pid, "stat")?)?;
        let mounts = root.reading(pid, "mountinfo").map(|text| mountinfo::parse(&text));
        let mut capture = Capture {
            root,
            pid,
            holder: root.holder(pid, stat.has_ended(), stat.threads),
            stat,
            mounts: mounts.unwrap_or_default(),
            features: Features::detect(),
            page_size: PageSize::new(system::page_size()).expect("the kernel's page size is one"),
            method: ReadMethod::Full,
            pace: request.pace,
            wants_sums: request.sums,
            is_large: false,
            longest: LongestRead::default(),
            gaps: Vec::new(),
        };
        if root.is_live() {
            let resident = capture.statm().map_or(Bytes::ZERO, |statm| statm.resident);
            capture.method = request.wish.method(resident);
            capture.is_large = resident > SMALL;
            if !root.has_our_ids() {
                capture.miss("the first words of mappings", Absent::NotSupported(OTHER_IDS.into()));
            }
        }
        Ok(capture)
    }

    fn reader(&self) -> MemoryReader<'_> {
        MemoryReader {
            root: self.root,
            pid: self.holder,
            features: self.features,
            mounts: &self.mounts,
            page_size: self.page_size,
            pace: self.pace,
            wants_sums: self.wants_sums,
            is_large: self.is_large,
            longest: LongestRead::default(),
            gaps: Vec::new(),
        }
    }

    /// The mappings, and their pages by node.
    fn memory(&mut self) -> Result<(ReadMemory, ByNode), ProcError> {
        let mut reader = self.reader();
        let memory = reader.read(self.method)?;
        let numa = reader.numa(self.method);
        let MemoryReader { longest, mut gaps, .. } = reader;
        self.longest = longest;
        self.gaps.append(&mut gaps);
        if !self.root.is_live() {
            self.find_page_size(memory.mappings.as_deref().unwrap_or_default());
        }
        Ok((memory, numa))
    }

    fn ksm(&self) -> Reading<KsmStat> {
        if !self.wants_sums {
            return Err(Absent::NotCollected(NO_SUMS.into()));
        }
        ksm_stat(self.root, self.holder)
    }

    /// Finds the base page size of the machine that a tree was copied from. Only `smaps` contains
    /// this size.
    fn find_page_size(&mut self, mappings: &[Mapping]) {
        let sizes = mappings.iter().filter_map(|m| m.counter(SmapsCounter::KernelPageSize).ok());
        match sizes.min().and_then(|size| PageSize::new(size.0)) {
            Some(size) => self.page_size = size,
            None => {
                self.miss("page size", Absent::Ambiguous("assumed to be this machine's".into()))
            }
        }
    }

    fn statm(&self) -> Reading<Statm> {
        let text = self.root.reading(self.holder, "statm")?;
        stat::parse_statm(&text, self.page_size)
            .map_err(|e| Absent::NotSupported(e.to_string().into()))
    }

    fn process(&mut self) -> Process {
        let status = self.root.reading(self.pid, "status").map(|text| status::parse(&text));
        let (uid, threads, mut ns_pids) = match status {
            Ok(status) => (status.uid, status.threads, status.ns_pids),
            Err(why) => {
                self.miss("status", why);
                (None, None, Vec::new())
            }
        };
        if ns_pids.is_empty() {
            ns_pids.push(self.pid);
        }
        // The kernel's value for an invalid user ID.
        let uid = uid.unwrap_or(u32::MAX);
        let users = if self.root.is_live() { Users::read() } else { Users::default() };
        Process {
            pid: self.pid,
            ns_pids,
            parent: self.stat.parent,
            name: self.stat.name.clone(),
            command: self.root.reading(self.holder, "cmdline").map(|text| arguments(&text)),
            exe: self.exe(),
            uid,
            user: users.name(uid).cloned(),
            state: self.stat.state,
            threads: threads.unwrap_or(self.stat.threads),
            age_ns: self.age(),
            start_ticks: self.stat.start_ticks,
            kernel_thread: self.stat.is_kernel_thread(),
        }
    }

    fn exe(&self) -> Reading<Name> {
        self.root.link(self.holder, "exe").map_err(|why| match why {
            Absent::NotInThisKernel(_) => Absent::NotSupported("it runs no program".into()),
            why => why,
        })
    }

    fn age(&self) -> Reading<u64> {
        let since_boot =
            if self.root.is_live() { system::since_boot() } else { uptime_of(self.root)? };
        let since_boot = nanoseconds(since_boot);
        let tick_ns = 1_000_000_000 / system::ticks_per_second().max(1);
        Ok(since_boot.saturating_sub(self.stat.start_ticks.saturating_mul(tick_ns)))
    }

    fn objects(&self, mappings: &Reading<Vec<Mapping>>, process: &Process) -> Vec<ElfObject> {
        let mappings = mappings.as_deref().unwrap_or_default();
        elf::objects(self.root, self.holder, mappings, process.exe.as_ref().ok(), &self.mounts)
    }

    /// Returns the pools of pagewise's allocators. The list is empty if the pools cannot be read.
    fn pools(&self, mappings: &Reading<Vec<Mapping>>) -> Vec<RegisteredPool> {
        let Ok(mappings) = mappings else { return Vec::new() };
        let read = pagewise_pools::read_registry(self.root, self.pid, mappings);
        read.ok().and_then(Result::ok).map_or_else(Vec::new, |registry| registry.pools)
    }

    fn heads(&self, mappings: &Reading<Vec<Mapping>>) -> Vec<MappingHead> {
        match mappings {
            Ok(mappings) if self.root.has_our_ids() => {
                heads::read(self.root, self.holder, mappings, self.page_size)
            }
            _ => Vec::new(),
        }
    }

    fn longest_hold(&self) -> Reading<u64> {
        match self.longest.0 {
            _ if !self.root.is_live() => Err(Absent::NotCollected(NOT_COPIED.into())),
            0 => Err(Absent::NotCollected("files that take its mmap lock were not read".into())),
            longest => Ok(longest),
        }
    }

    fn miss(&mut self, what: &str, why: Absent) {
        self.gaps.push(Gap { what: what.into(), why });
    }

    /// Returns the gaps, after a check that the process has not ended and still has its PID.
    fn end(self) -> Result<Vec<Gap>, ProcError> {
        let now = stat::parse(&self.root.read(self.pid, "stat")?)?;
        if now.start_ticks != self.stat.start_ticks || now.has_ended() && !self.stat.has_ended() {
            return Err(ProcError::NoSuchProcess { pid: self.pid });
        }
        Ok(self.gaps)
    }
}

/// The kernel's release.
pub(crate) fn kernel(root: &ProcRoot) -> Name {
    if root.is_live() {
        return Name::new(&system::kernel_release());
    }
    let text = root.machine("sys/kernel/osrelease").unwrap_or_default();
    Name::new(text.trim_ascii())
}

/// Returns the time since boot at which a tree was copied.
pub(crate) fn uptime_of(root: &ProcRoot) -> Reading<Duration> {
    uptime(&root.machine("uptime")?).ok_or(Absent::NotCollected(NOT_COPIED.into()))
}

/// The first number of `/proc/uptime`: seconds since boot, suspend included.
fn uptime(text: &[u8]) -> Option<Duration> {
    let first = text.split(|byte| byte.is_ascii_whitespace()).next()?;
    let seconds: f64 = std::str::from_utf8(first).ok()?.parse().ok()?;
    Duration::try_from_secs_f64(seconds).ok()
}

fn arguments(cmdline: &[u8]) -> Vec<Name> {
    let text = cmdline.strip_suffix(b"\0").unwrap_or(cmdline);
    if text.is_empty() { Vec::new() } else { text.split(|&b| b == 0).map(Name::new).collect() }
}

/// Reads `ksm_stat`, to print which Linux walks all mappings of the process.
///
/// # Errors
/// The reason for the missing value, as in [`Snapshot::ksm`].
pub fn ksm_stat(root: &ProcRoot, pid: Pid) -> Reading<KsmStat> {
    let text = root.reading(pid, "ksm_stat")?;
    ksm::parse(&text).ok_or(Absent::NotInThisKernel("6.1".into()))
}
