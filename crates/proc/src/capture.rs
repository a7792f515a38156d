//! One process at one moment: every source of this crate put together into a [`Snapshot`].

mod memory;

use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use pagewise_model::machine::{Gap, Method, Moment, Provenance};
use pagewise_model::mapping::Mapping;
use pagewise_model::object::Object;
use pagewise_model::process::{Ksm, NodeShare, Process, Statm};
use pagewise_model::registry::Pool;
use pagewise_model::snapshot::{Head, SNAPSHOT_VERSION, Snapshot};
use pagewise_model::{Absent, Bytes, Counter, Name, PageSize, Pid, Reading, parallel};
use pagewise_sys::probe::Features;
use pagewise_sys::{libraries, system};

use self::memory::{Memory, NOT_COPIED, Reader};
use crate::mountinfo::Mount;
use crate::stat::Stat;
use crate::stream::LongestRead;
use crate::users::Users;
use crate::{
    Error, ProcRoot, cgroup, elf, heads, ksm, limits, meminfo, mountinfo, registry, stat, status,
    threads,
};

/// Up to here a full reading holds the target for well below a millisecond a mapping.
const SMALL: Bytes = Bytes::mib(64);

/// Which reading to use.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Wish {
    /// In full where the process is small, politely where it is not.
    #[default]
    Auto,
    /// [`Method::Polite`]
    Polite,
    /// [`Method::Fast`]
    Fast,
    /// [`Method::Full`]
    Full,
}

impl Wish {
    /// The reading for a process with that much resident.
    pub fn method(self, resident: Bytes) -> Method {
        match self {
            Wish::Polite => Method::Polite,
            Wish::Fast => Method::Fast,
            Wish::Full => Method::Full,
            Wish::Auto if resident <= SMALL => Method::Full,
            Wish::Auto => Method::Polite,
        }
    }
}

/// What to read, and when that is in the life of the target.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Request {
    /// Which reading.
    pub wish: Wish,
    /// The moment, for the record.
    pub moment: Moment,
    /// Whether a full reading reads `smaps_rollup` too. It walks all pages once more: totals and checks need it,
    /// a list of mappings does not.
    pub sums: bool,
}

impl Default for Request {
    fn default() -> Request {
        Request { wish: Wish::Auto, moment: Moment::Running, sums: true }
    }
}

/// Reads a process.
///
/// What may not be read, or is not there, is absent with its reason; only a process of which nothing can be read is
/// an error.
///
/// # Errors
/// [`Error::NoSuchProcess`] where it is not there or ends meanwhile, [`Error::Io`] and [`Error::Parse`] where even
/// `stat` cannot be read.
pub fn capture(root: &ProcRoot, pid: Pid, request: &Request) -> Result<Snapshot, Error> {
    if root.ourselves() == Some(pid) {
        // Our own memory grows as it is read. The allocator keeps what a reading took, so that
        // after two of them a third finds its room made.
        for _ in 0..2 {
            drop(read(root, pid, request)?);
        }
    }
    read(root, pid, request)
}

/// Takes this process out of the shares of other processes, whose libraries it maps too. Whether it is out.
fn leave_shares(root: &ProcRoot, pid: Pid) -> bool {
    !root.is_live() || root.ourselves() == Some(pid) || libraries::copy_libraries()
}

fn read(root: &ProcRoot, pid: Pid, request: &Request) -> Result<Snapshot, Error> {
    let begin = Instant::now();
    let unix_seconds = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |t| t.as_secs());
    let mut capture = Capture::begin(root, pid, request)?;
    if !leave_shares(root, pid) {
        let why = "pagewise maps libraries that it could not copy: what the process shares with it counts as shared";
        capture.miss("shares of libraries", Absent::NotSupported(why.into()));
    }
    let (memory, numa, ksm) = capture.memory()?;
    let statm = capture.statm();
    let process = capture.process();
    Ok(Snapshot {
        pagewise_snapshot: SNAPSHOT_VERSION,
        machine: meminfo::machine(root),
        statm,
        status: root.reading(capture.holder, "status").map(|text| status::parse(&text).status),
        rollup: memory.rollup,
        walk: memory.walk,
        threads: threads::read(root, pid),
        objects: capture.objects(&memory.mappings, &process),
        heads: capture.heads(&memory.mappings),
        pools: capture.pools(&memory.mappings),
        mappings: memory.mappings,
        limits: root.reading(pid, "limits").and_then(|text| {
            limits::parse(&text).map_err(|error| Absent::NotSupported(error.to_string().into()))
        }),
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
            took_ns: nanos(begin),
            longest_hold_ns: capture.longest_hold(),
            root: Name::new(root.path().as_os_str().as_encoded_bytes()),
            moment: request.moment,
            gaps: capture.end()?,
        },
    })
}

/// What of a process is resident now: one small read, for those who look often.
///
/// # Errors
/// [`Error::NoSuchProcess`], [`Error::NotPermitted`], [`Error::Parse`]
pub fn resident(root: &ProcRoot, pid: Pid) -> Result<Bytes, Error> {
    let page_size = PageSize::new(system::page_size()).expect("the kernel's page size is one");
    Ok(stat::parse_statm(&root.read(pid, "statm")?, page_size)?.resident)
}

/// Who a process is, and its mappings without a look at their pages.
///
/// # Errors
/// As [`capture`].
pub fn outline(root: &ProcRoot, pid: Pid) -> Result<(Process, Reading<Vec<Mapping>>), Error> {
    let mut capture = Capture::begin(root, pid, &Request::default())?;
    let mappings = capture.reader().maps()?;
    let process = capture.process();
    capture.end()?;
    Ok((process, mappings))
}

/// The pages of each NUMA node.
type ByNode = Reading<Vec<NodeShare>>;

/// A reading under way.
struct Capture<'a> {
    root: &'a ProcRoot,
    pid: Pid,
    /// The thread to ask for what is in memory.
    holder: Pid,
    stat: Stat,
    mounts: Vec<Mount>,
    features: Features,
    page_size: PageSize,
    method: Method,
    wants_sums: bool,
    is_large: bool,
    longest: LongestRead,
    gaps: Vec<Gap>,
}

/// Why no system call is made on a process.
const OTHER_IDS: &str = "/proc is of another pid namespace";

impl<'a> Capture<'a> {
    fn begin(root: &'a ProcRoot, pid: Pid, request: &Request) -> Result<Capture<'a>, Error> {
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
            method: Method::Full,
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

    fn reader(&self) -> Reader<'_> {
        Reader {
            root: self.root,
            pid: self.holder,
            features: self.features,
            mounts: &self.mounts,
            page_size: self.page_size,
            wants_sums: self.wants_sums,
            is_large: self.is_large,
            longest: LongestRead::default(),
            gaps: Vec::new(),
        }
    }

    /// The mappings, their pages by node, and the pages that KSM merged.
    fn memory(&mut self) -> Result<(Memory, ByNode, Reading<Ksm>), Error> {
        let mut reader = self.reader();
        // Linux 6.18 walks all mappings to print `ksm_stat`: 4 ms for 65,000 of them.
        let (ksm, memory) =
            parallel::both(self.is_large, || self.ksm(), || reader.read(self.method));
        let memory = memory?;
        let numa = reader.numa(self.method);
        let Reader { longest, mut gaps, .. } = reader;
        self.longest = longest;
        self.gaps.append(&mut gaps);
        if !self.root.is_live() {
            self.find_page_size(memory.mappings.as_deref().unwrap_or_default());
        }
        Ok((memory, numa, ksm))
    }

    fn ksm(&self) -> Reading<Ksm> {
        let text = self.root.reading(self.holder, "ksm_stat")?;
        ksm::parse(&text).ok_or(Absent::NotInThisKernel("6.1".into()))
    }

    /// The base page size of the machine that a tree was copied from: only `smaps` tells.
    fn find_page_size(&mut self, mappings: &[Mapping]) {
        let sizes = mappings.iter().filter_map(|m| m.counter(Counter::KernelPageSize).ok());
        match sizes.min().and_then(|size| PageSize::new(size.0)) {
            Some(size) => self.page_size = size,
            None => self.miss("page size", Absent::Ambiguous("taken to be this machine's".into())),
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
        // The kernel's own word for "no user".
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
        let since_boot = u64::try_from(since_boot.as_nanos()).unwrap_or(u64::MAX);
        let tick_ns = 1_000_000_000 / system::ticks_per_second().max(1);
        Ok(since_boot.saturating_sub(self.stat.start_ticks.saturating_mul(tick_ns)))
    }

    fn objects(&self, mappings: &Reading<Vec<Mapping>>, process: &Process) -> Vec<Object> {
        let mappings = mappings.as_deref().unwrap_or_default();
        elf::objects(self.root, self.holder, mappings, process.exe.as_ref().ok(), &self.mounts)
    }

    /// The pools of pagewise's allocators; none where they cannot be read.
    fn pools(&self, mappings: &Reading<Vec<Mapping>>) -> Vec<Pool> {
        let Ok(mappings) = mappings else { return Vec::new() };
        let read = registry::of(self.root, self.pid, mappings);
        read.ok().and_then(Result::ok).map_or_else(Vec::new, |registry| registry.pools)
    }

    fn heads(&self, mappings: &Reading<Vec<Mapping>>) -> Vec<Head> {
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
            0 => Err(Absent::NotCollected("nothing that takes its lock could be read".into())),
            longest => Ok(longest),
        }
    }

    fn miss(&mut self, what: &str, why: Absent) {
        self.gaps.push(Gap { what: what.into(), why });
    }

    /// The gaps, once it is sure that the process is still the one that was begun with, and did not end meanwhile.
    fn end(self) -> Result<Vec<Gap>, Error> {
        let now = stat::parse(&self.root.read(self.pid, "stat")?)?;
        if now.start_ticks != self.stat.start_ticks || now.has_ended() && !self.stat.has_ended() {
            return Err(Error::NoSuchProcess { pid: self.pid });
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

/// The time since boot when a tree was copied.
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

fn nanos(since: Instant) -> u64 {
    u64::try_from(since.elapsed().as_nanos()).unwrap_or(u64::MAX)
}
