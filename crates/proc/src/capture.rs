//! One process at one moment: every source of this crate put together into a [`Snapshot`].

use std::io::ErrorKind;
use std::time::{Instant, SystemTime, UNIX_EPOCH};

use pagewise_model::machine::{Gap, Method, Moment, Provenance};
use pagewise_model::mapping::{Backing, Mapping, Pages};
use pagewise_model::process::{NodeShare, Process, Statm};
use pagewise_model::snapshot::{SNAPSHOT_VERSION, Snapshot};
use pagewise_model::{Absent, Bytes, Counter, Name, PageSize, Pid, Reading, Smaps};
use pagewise_sys::probe::Features;
use pagewise_sys::system;

use crate::maps::Parsed;
use crate::pages::{self, Pace, Walk};
use crate::stat::Stat;
use crate::stream::{LongestRead, stream};
use crate::users::Users;
use crate::{
    Error, ProcRoot, cgroup, elf, heads, ksm, limits, maps, meminfo, mountinfo, numa, smaps, stat,
    status, threads,
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
}

impl Default for Request {
    fn default() -> Request {
        Request { wish: Wish::Auto, moment: Moment::Running }
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
    let begin = Instant::now();
    let unix_seconds = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |t| t.as_secs());
    let mut capture = Capture::begin(root, pid, request.wish)?;
    let memory = capture.memory()?;
    let snapshot = Snapshot {
        pagewise_snapshot: SNAPSHOT_VERSION,
        machine: meminfo::machine(root),
        process: capture.process()?,
        statm: memory.statm,
        status: root.reading(pid, "status").map(|text| status::parse(&text).status),
        rollup: memory.rollup,
        walk: memory.walk,
        threads: threads::read(root, pid),
        objects: memory.mappings.as_ref().map_or_else(|_| vec![], |m| elf::objects(root, pid, m)),
        heads: capture.heads(&memory.mappings),
        mappings: memory.mappings,
        limits: root.reading(pid, "limits").and_then(|text| {
            limits::parse(&text).map_err(|error| Absent::NotSupported(error.to_string().into()))
        }),
        cgroup: cgroup::read(root, pid),
        ksm: root
            .reading(pid, "ksm_stat")
            .and_then(|text| ksm::parse(&text).ok_or(Absent::NotInThisKernel("6.1".into()))),
        numa: capture.numa(),
        provenance: Provenance {
            kernel: capture.kernel(),
            page_size: capture.page_size,
            euid: system::euid(),
            sees_frames: capture.features.frames,
            method: capture.method,
            unix_seconds,
            took_ns: nanos(begin),
            longest_hold_ns: memory.longest_hold_ns,
            root: Name::new(root.path().as_os_str().as_encoded_bytes()),
            moment: request.moment,
            gaps: capture.end()?,
        },
    };
    Ok(snapshot)
}

/// What of a process is resident now: one small read, for those who look often.
///
/// # Errors
/// [`Error::NoSuchProcess`], [`Error::NotPermitted`], [`Error::Parse`]
pub fn resident(root: &ProcRoot, pid: Pid) -> Result<Bytes, Error> {
    let page_size = PageSize::new(system::page_size()).expect("the kernel's page size is one");
    Ok(stat::parse_statm(&root.read(pid, "statm")?, page_size)?.resident)
}

/// A reading under way.
struct Capture<'a> {
    root: &'a ProcRoot,
    pid: Pid,
    stat: Stat,
    features: Features,
    page_size: PageSize,
    method: Method,
    gaps: Vec<Gap>,
}

/// What was read of the memory.
struct Memory {
    mappings: Reading<Vec<Mapping>>,
    rollup: Reading<Box<Smaps>>,
    walk: Reading<Box<Pages>>,
    statm: Reading<Statm>,
    longest_hold_ns: Reading<u64>,
}

impl<'a> Capture<'a> {
    fn begin(root: &'a ProcRoot, pid: Pid, wish: Wish) -> Result<Capture<'a>, Error> {
        let stat = stat::parse(&root.read(pid, "stat")?)?;
        let page_size = PageSize::new(system::page_size()).expect("the kernel's page size is one");
        let mut capture = Capture {
            root,
            pid,
            stat,
            features: Features::detect(),
            page_size,
            method: Method::Full,
            gaps: Vec::new(),
        };
        if root.is_live() {
            let resident = capture.statm().map_or(Bytes::ZERO, |statm| statm.resident);
            capture.method = wish.method(resident);
        }
        Ok(capture)
    }

    fn statm(&self) -> Reading<Statm> {
        let text = self.root.reading(self.pid, "statm")?;
        stat::parse_statm(&text, self.page_size)
            .map_err(|e| Absent::NotSupported(e.to_string().into()))
    }

    fn memory(&mut self) -> Result<Memory, Error> {
        let mut memory = match self.method {
            Method::Full => self.full()?,
            Method::Fast => self.by_pages(&Pace::FAST)?,
            Method::Polite => self.by_pages(&Pace::POLITE)?,
        };
        if let Ok(mappings) = &mut memory.mappings {
            self.find_tmpfs(mappings);
            self.find_page_size(mappings);
        }
        memory.statm = self.statm();
        Ok(memory)
    }

    /// `smaps` and `smaps_rollup`; the page tables only of what they cannot split.
    fn full(&mut self) -> Result<Memory, Error> {
        let mut parser = smaps::Parser::default();
        let (mappings, mut longest) = match self.stream("smaps", |piece| parser.push(piece)) {
            Ok(longest) => (Ok(self.whole(parser.finish())), longest),
            Err(Error::Io { source, .. }) if source.kind() == ErrorKind::NotFound => {
                self.miss("smaps", Absent::NotInThisKernel("2.6.14".into()));
                self.maps()?
            }
            Err(error) => (Err(refused(error)?), LongestRead::default()),
        };
        let mut rollup = Vec::new();
        let rolled = self.stream("smaps_rollup", |piece| rollup.extend_from_slice(piece));
        if let Ok(read) = &rolled {
            longest = longest.max(*read);
        }
        let missing = || {
            if self.root.is_live() { Absent::NotInThisKernel("4.14".into()) } else { not_copied() }
        };
        let rollup = match rolled {
            Ok(_) => smaps::parse_rollup(&rollup).map(Box::new).ok_or_else(missing),
            Err(Error::Io { .. }) => Err(missing()),
            // What a kernel thread and a zombie get too; `end` tells whether the process is gone.
            Err(Error::NoSuchProcess { .. }) => {
                Err(Absent::NotSupported("it has no memory".into()))
            }
            Err(error) => Err(refused(error)?),
        };
        let mut memory = Memory {
            mappings,
            rollup,
            walk: Err(Absent::NotCollected("read with --fast or --polite".into())),
            statm: Err(Absent::Vanished),
            longest_hold_ns: self.hold(longest.0),
        };
        if let Ok(mappings) = &mut memory.mappings {
            let held = self.split_mixed(mappings);
            memory.longest_hold_ns = memory.longest_hold_ns.map(|ns| ns.max(held));
        }
        Ok(memory)
    }

    /// `maps` and the page tables; `smaps` is left alone.
    fn by_pages(&mut self, pace: &Pace) -> Result<Memory, Error> {
        let (mut mappings, longest) = self.maps()?;
        let mut longest = longest.0;
        let mut walk = Err(Absent::NotCollected("the page tables were not read".into()));
        if let Ok(mappings) = &mut mappings {
            self.find_tmpfs(mappings);
            walk = match pages::read(self.root, self.pid, mappings, self.page_size, pace) {
                Ok(Walk { longest_hold_ns, total, doubt }) => {
                    longest = longest.max(longest_hold_ns);
                    self.gaps.extend(doubt.map(|why| Gap { what: "huge pages".into(), why }));
                    total.map(Box::new)
                }
                Err(error) => Err(refused(error)?),
            };
        }
        Ok(Memory {
            mappings,
            rollup: Err(Absent::NotCollected(USE_FULL.into())),
            walk,
            statm: Err(Absent::Vanished),
            longest_hold_ns: self.hold(longest),
        })
    }

    /// The mappings without their pages.
    fn maps(&mut self) -> Result<(Reading<Vec<Mapping>>, LongestRead), Error> {
        let mut parser = maps::Parser::new(Absent::NotCollected(USE_FULL.into()));
        match self.stream("maps", |piece| parser.push(piece)) {
            Ok(longest) => Ok((Ok(self.whole(parser.finish())), longest)),
            // What a stranger copied of a process has no maps.
            Err(Error::Io { source, .. })
                if !self.root.is_live() && source.kind() == ErrorKind::NotFound =>
            {
                Ok((Err(not_copied()), LongestRead::default()))
            }
            Err(error) => Ok((Err(refused(error)?), LongestRead::default())),
        }
    }

    fn stream(&self, name: &str, consume: impl FnMut(&[u8])) -> Result<LongestRead, Error> {
        let file = self.root.open(self.pid, name)?;
        let path = || self.root.file(self.pid, name);
        stream(file, consume).map_err(|e| self.root.explain(self.pid, &path(), e))
    }

    /// The mappings that were read; what was torn or repeated becomes a gap.
    fn whole(&mut self, parsed: Parsed) -> Vec<Mapping> {
        if let Some(torn) = parsed.torn {
            self.miss(
                "the mappings after the last one",
                Absent::NotSupported(torn.to_string().into()),
            );
        }
        if parsed.repeated > 0 {
            let why = format!("{} mappings moved while they were read", parsed.repeated);
            self.miss("some mappings", Absent::Ambiguous(why.into()));
        }
        parsed.mappings
    }

    /// Reads the page tables of mappings that hold file pages and copies of them: `smaps` adds the two up.
    fn split_mixed(&mut self, mappings: &mut [Mapping]) -> u64 {
        if !self.root.is_live() {
            return 0;
        }
        let mut longest = 0;
        for run in mappings.chunk_by_mut(|a, b| is_mixed(a) == is_mixed(b)) {
            if !is_mixed(&run[0]) {
                continue;
            }
            let read = pages::read_with(
                &self.features,
                self.root,
                self.pid,
                run,
                self.page_size,
                &Pace::FAST,
            );
            longest = longest.max(read.map_or(0, |walk| walk.longest_hold_ns));
        }
        longest
    }

    fn find_tmpfs(&self, mappings: &mut [Mapping]) {
        let Ok(text) = self.root.reading(self.pid, "mountinfo") else { return };
        let mounts = mountinfo::parse(&text);
        let tmpfs: Vec<_> = mounts.iter().filter(|m| m.fs == b"tmpfs").map(|m| m.device).collect();
        for mapping in mappings.iter_mut().filter(|m| m.inode != 0) {
            mapping.on_tmpfs = tmpfs.contains(&mapping.device);
        }
    }

    /// A copied tree comes from a machine whose base page size only `smaps` tells.
    fn find_page_size(&mut self, mappings: &[Mapping]) {
        if self.root.is_live() {
            return;
        }
        let sizes = mappings.iter().filter_map(|m| m.counter(Counter::KernelPageSize).ok());
        match sizes.min().and_then(|size| PageSize::new(size.0)) {
            Some(size) => self.page_size = size,
            None => self.miss("page size", Absent::Ambiguous("taken to be this machine's".into())),
        }
    }

    fn process(&mut self) -> Result<Process, Error> {
        let status = self.root.reading(self.pid, "status").map(|text| status::parse(&text));
        let (uid, threads, ns_pids) = match status {
            Ok(status) => (status.uid, status.threads, status.ns_pids),
            Err(why) => {
                self.miss("status", why);
                (None, None, Vec::new())
            }
        };
        let uid = uid.unwrap_or(u32::MAX);
        let users = if self.root.is_live() { Users::read() } else { Users::default() };
        Ok(Process {
            pid: self.pid,
            ns_pids,
            parent: self.stat.parent,
            name: self.stat.name.clone(),
            command: self.root.reading(self.pid, "cmdline").map(|text| arguments(&text)),
            exe: self.root.link(self.pid, "exe"),
            uid,
            user: users.name(uid).cloned(),
            state: self.stat.state,
            threads: threads.unwrap_or(self.stat.threads),
            age_ns: self.age(),
            start_ticks: self.stat.start_ticks,
            kernel_thread: self.stat.is_kernel_thread(),
        })
    }

    fn age(&self) -> Reading<u64> {
        if !self.root.is_live() {
            return Err(not_copied());
        }
        let since_boot = u64::try_from(system::since_boot().as_nanos()).unwrap_or(u64::MAX);
        let tick_ns = 1_000_000_000 / system::ticks_per_second().max(1);
        Ok(since_boot.saturating_sub(self.stat.start_ticks.saturating_mul(tick_ns)))
    }

    fn heads(&self, mappings: &Reading<Vec<Mapping>>) -> Vec<pagewise_model::snapshot::Head> {
        match mappings {
            Ok(mappings) if self.root.is_live() => {
                heads::read(self.root, self.pid, mappings, self.page_size)
            }
            _ => Vec::new(),
        }
    }

    /// The pages by node. Walking them holds the target like `smaps`, so only a full reading asks.
    fn numa(&self) -> Reading<Vec<NodeShare>> {
        if self.method != Method::Full {
            return Err(Absent::NotCollected(USE_FULL.into()));
        }
        match meminfo::nodes_online(self.root)? {
            0 | 1 => Err(Absent::NotSupported("the machine has one NUMA node".into())),
            _ => Ok(numa::parse(&self.root.reading(self.pid, "numa_maps")?, self.page_size)),
        }
    }

    fn kernel(&self) -> Name {
        if self.root.is_live() {
            return Name::new(&system::kernel_release());
        }
        let text = self.root.machine("sys/kernel/osrelease").unwrap_or_default();
        Name::new(text.trim_ascii())
    }

    fn hold(&self, nanos: u64) -> Reading<u64> {
        if self.root.is_live() { Ok(nanos) } else { Err(not_copied()) }
    }

    fn miss(&mut self, what: &str, why: Absent) {
        self.gaps.push(Gap { what: what.into(), why });
    }

    /// The gaps, once it is sure that the process is still the one that was begun with.
    fn end(self) -> Result<Vec<Gap>, Error> {
        let now = stat::parse(&self.root.read(self.pid, "stat")?)?;
        if now.start_ticks != self.stat.start_ticks {
            return Err(Error::NoSuchProcess { pid: self.pid });
        }
        Ok(self.gaps)
    }
}

/// What only a full reading tells.
const USE_FULL: &str = "only smaps has it: use --full";

fn not_copied() -> Absent {
    Absent::NotCollected("not in the copied tree".into())
}

/// The absence that a refusal is; any other error stays one.
fn refused(error: Error) -> Result<Absent, Error> {
    match error {
        Error::NotPermitted { .. } => Ok(Absent::NotPermitted(crate::root::PTRACE.into())),
        error => Err(error),
    }
}

/// Whether a mapping holds pages of its file and copies that were written, as far as `smaps` tells.
fn is_mixed(mapping: &Mapping) -> bool {
    let bytes = |counter| mapping.counter(counter).unwrap_or_default();
    let (anonymous, rss) = (bytes(Counter::Anonymous), bytes(Counter::Rss));
    mapping.backing() != Backing::Anonymous && !anonymous.is_zero() && anonymous < rss
}

fn arguments(cmdline: &[u8]) -> Vec<Name> {
    let text = cmdline.strip_suffix(b"\0").unwrap_or(cmdline);
    if text.is_empty() { Vec::new() } else { text.split(|&b| b == 0).map(Name::new).collect() }
}

fn nanos(since: Instant) -> u64 {
    u64::try_from(since.elapsed().as_nanos()).unwrap_or(u64::MAX)
}
