//! A process that is tracked over several sweeps.

use std::collections::HashSet;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::Duration;

use pagewise_model::sweep::{
    BytesByPageKind, PagesReading, ProcessIdentity, ProcessKey, SweepProcess,
};
use pagewise_model::{Absent, Bytes, Name, Pid, Reading};
use pagewise_proc::page_sums::{PageSumReader, PageSums};
use pagewise_proc::quick_reader::QuickReader;
use pagewise_proc::stat::PidStat;
use pagewise_proc::status::MemoryStatus;
use pagewise_proc::users::Users;
use pagewise_proc::{ProcRoot, cgroup};

/// Maximum RSS for which reading `smaps_rollup` holds the mmap lock for much less than a
/// millisecond.
const SMALL: Bytes = Bytes::mib(32);
/// Maximum number of bytes of a command line that are kept.
const MAX_COMMAND: usize = 256;
/// Assumed CPU time in nanoseconds to read a resident page, until the time has been measured.
const NANOSECONDS_PER_PAGE: u64 = 25;

/// A process or kernel thread that a sweep has found.
#[derive(Debug)]
pub(crate) enum TrackedTask {
    /// A process with memory of its own.
    Process(Box<TrackedProcess>),
    /// A kernel thread.
    KernelThread,
    /// A process whose files this process may not read, not even `stat`.
    Hidden,
}

/// Counters of `stat` that change when the memory of a process changes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct ChangeMark {
    minor_faults: u64,
    major_faults: u64,
    ticks: u64,
    virt: Bytes,
    resident_pages: u64,
}

impl ChangeMark {
    fn of(stat: &PidStat) -> ChangeMark {
        ChangeMark {
            minor_faults: stat.minor_faults,
            major_faults: stat.major_faults,
            ticks: stat.user_ticks.saturating_add(stat.system_ticks),
            virt: stat.virt,
            resident_pages: stat.resident_pages,
        }
    }

    /// True if the process may have different pages. CPU time alone does not change the pages.
    fn has_other_pages(&self, other: &ChangeMark) -> bool {
        ChangeMark { ticks: 0, ..*self } != ChangeMark { ticks: 0, ..*other }
    }
}

/// A process with memory of its own.
#[derive(Debug)]
pub(crate) struct TrackedProcess {
    /// Values of the process in the last sweep.
    pub(crate) values: SweepProcess,
    /// Open file `stat`. It ensures that no other process with the same PID is read.
    pub(crate) stat: Option<OwnedFd>,
    mark: ChangeMark,
    /// Time at which the pages were read; `None` if they have not been read.
    pub(crate) pages_ns: Option<u64>,
    /// True if the pages may have changed since they were read.
    pub(crate) is_stale: bool,
    /// True if the pages must be read again although the process has not changed.
    pub(crate) is_due: bool,
    /// Time of the last refresh in nanoseconds since boot.
    refreshed_ns: u64,
    /// CPU time of the last reading of the pages; `None` if they have not been read.
    cost: Option<Duration>,
    /// The thread whose files contain the memory. It is another thread than the main thread if the
    /// main thread has ended.
    memory: Pid,
}

/// Readers and constants that all tracked processes share.
#[derive(Debug)]
pub(crate) struct ProcessReader {
    pub(crate) root: ProcRoot,
    pub(crate) files: QuickReader,
    pub(crate) pages: PageSumReader,
    pub(crate) users: Users,
    pub(crate) names: SharedNames,
    pub(crate) page_bytes: u64,
    pub(crate) tick_ns: u64,
    /// Time in nanoseconds after which an unchanged process is read again.
    pub(crate) refresh_ns: u64,
    /// Time of the current sweep in nanoseconds since boot.
    pub(crate) now_ns: u64,
    pub(crate) unix_ns: u64,
}

impl TrackedProcess {
    /// Creates a process that no earlier sweep contained. Its pages are not read here.
    pub(crate) fn new(
        reader: &mut ProcessReader,
        pid: Pid,
        stat: &PidStat,
        file: Option<OwnedFd>,
    ) -> TrackedProcess {
        let key = ProcessKey { pid, start_ticks: stat.start_ticks };
        let unread = || Absent::NotCollected("the pages were not read yet".into());
        let identity = ProcessIdentity {
            name: stat.name.clone(),
            parent: stat.parent,
            command: Ok(Vec::new()),
            exe: Err(Absent::Vanished),
            uid: Err(Absent::Vanished),
            user: None,
            cgroup: Err(Absent::Vanished),
            started_unix_ns: reader.started(stat.start_ticks),
        };
        let mut process = TrackedProcess {
            values: SweepProcess {
                key,
                identity: Arc::new(identity),
                state: stat.state,
                threads: stat.threads,
                virt: stat.virt,
                rss: Bytes::ZERO,
                rss_by_kind: Err(Absent::Vanished),
                peak_rss: Err(Absent::Vanished),
                pss: Err(unread()),
                uss: Err(unread()),
                uss_anonymous: Err(unread()),
                pages: PagesReading::Never,
                swap: Err(Absent::Vanished),
                swap_shmem: Err(unread()),
                minor_faults: 0,
                major_faults: 0,
                cpu_ns: 0,
                oom_score: Err(Absent::Vanished),
                oom_score_adj: Err(Absent::Vanished),
            },
            stat: file,
            mark: ChangeMark::of(stat),
            pages_ns: None,
            is_stale: true,
            is_due: false,
            // Refreshes are spread over the interval, so that one sweep does not refresh all
            // processes.
            refreshed_ns: reader.now_ns.saturating_sub(spread(pid, reader.refresh_ns)),
            cost: None,
            memory: pid,
        };
        process.count(reader, stat);
        process.read_all(reader, stat);
        process
    }

    /// Stores the values of a new `stat`, and reads the sizes if they may have changed.
    pub(crate) fn update(&mut self, reader: &mut ProcessReader, stat: &PidStat) {
        let mark = ChangeMark::of(stat);
        let has_another_name = *stat.name.as_bytes() != *self.values.identity.name.as_bytes();
        let is_other_state = stat.has_ended() != self.values.is_zombie();
        if mark != self.mark || has_another_name || is_other_state {
            self.is_stale |= mark.has_other_pages(&self.mark) || has_another_name || is_other_state;
            let status = self.read_sizes(reader, stat);
            if has_another_name {
                self.read_identity(reader, stat, &status);
            }
        }
        if stat.parent != self.values.identity.parent {
            Arc::make_mut(&mut self.values.identity).parent = stat.parent;
        }
        self.mark = mark;
        self.count(reader, stat);
    }

    fn count(&mut self, reader: &ProcessReader, stat: &PidStat) {
        let values = &mut self.values;
        values.state = stat.state;
        values.threads = stat.threads;
        values.virt = stat.virt;
        values.minor_faults = stat.minor_faults;
        values.major_faults = stat.major_faults;
        let ticks = stat.user_ticks.saturating_add(stat.system_ticks);
        values.cpu_ns = ticks.saturating_mul(reader.tick_ns);
        values.pages = match self.pages_ns {
            None => PagesReading::Never,
            Some(at) if at == reader.now_ns => PagesReading::Now,
            Some(at) if self.is_stale => PagesReading::Postponed(at),
            Some(at) => PagesReading::Unchanged(at),
        };
    }

    /// Reads the sizes and the identity.
    fn read_all(&mut self, reader: &mut ProcessReader, stat: &PidStat) {
        let status = self.read_sizes(reader, stat);
        self.read_identity(reader, stat, &status);
    }

    /// Reads the sizes from `status`, and computes the values that follow from them. Returns the
    /// content of `status`.
    fn read_sizes(&mut self, reader: &mut ProcessReader, stat: &PidStat) -> Reading<MemoryStatus> {
        let pid = self.values.key.pid;
        self.memory = reader.memory_thread(pid, stat);
        let status = reader.files.read(self.memory, "status").map(MemoryStatus::parse);
        let page_bytes = reader.page_bytes;
        let values = &mut self.values;
        let exact = status.as_ref().ok().and_then(|it| it.resident);
        // `status` has no `VmRSS` line if the process has no memory of its own or has ended.
        values.rss = match (&status, exact) {
            (_, Some(rss)) => rss,
            (Ok(_), None) => Bytes::ZERO,
            (Err(_), None) => Bytes(stat.resident_pages.saturating_mul(page_bytes)),
        };
        let has_memory = exact.is_some();
        let line = |line: fn(&MemoryStatus) -> Option<Bytes>, since: &'static str| {
            let status = status.as_ref().map_err(Clone::clone)?;
            match line(status) {
                Some(size) => Ok(size),
                None if has_memory => Err(Absent::NotInThisKernel(since.into())),
                None => Ok(Bytes::ZERO),
            }
        };
        values.rss_by_kind = (|| {
            Ok(BytesByPageKind {
                anonymous: line(|it| it.anonymous, "4.5")?,
                file: line(|it| it.file, "4.5")?,
                shmem: line(|it| it.shmem, "4.5")?,
            })
        })();
        values.swap = line(|it| it.swap, "2.6.34");
        let peak = line(|it| it.peak, "");
        // `status` of a zombie has no `VmHWM`, so the last value is kept.
        if has_memory || !matches!(values.peak_rss, Ok(size) if !size.is_zero()) {
            values.peak_rss = peak;
        }
        values.oom_score = reader.files.read(pid, "oom_score").and_then(number);
        values.oom_score_adj = reader.files.read(pid, "oom_score_adj").and_then(number);
        status
    }

    /// Reads command, user and cgroup. Consecutive sweeps share the value if it is unchanged.
    fn read_identity(
        &mut self,
        reader: &mut ProcessReader,
        stat: &PidStat,
        status: &Reading<MemoryStatus>,
    ) {
        let pid = self.values.key.pid;
        let uid = status
            .as_ref()
            .map_err(Clone::clone)
            .and_then(|status| status.uid.ok_or_else(|| Absent::NotInThisKernel("".into())));
        let group = reader.files.read(pid, "cgroup").and_then(|text| {
            let member = cgroup::parse(text);
            member.map(|it| it.path).ok_or_else(cgroup::no_memory_cgroup)
        });
        let command = reader.files.read(self.memory, "cmdline").map(command);
        let exe = reader.root.link(self.memory, "exe");
        let names = &mut reader.names;
        let identity = ProcessIdentity {
            name: names.shared(stat.name.clone()),
            parent: stat.parent,
            command: command.map(|words| words.into_iter().map(|it| names.shared(it)).collect()),
            exe: exe.map(|it| names.shared(it)),
            user: uid.as_ref().ok().and_then(|uid| reader.users.name(*uid).cloned()),
            uid,
            cgroup: group.map(|it| names.shared(it)),
            started_unix_ns: self.values.identity.started_unix_ns,
        };
        if *self.values.identity != identity {
            self.values.identity = Arc::new(identity);
        }
    }

    /// If the refresh interval has passed, reads all values that can change without a change of
    /// `stat`.
    pub(crate) fn refresh(&mut self, reader: &mut ProcessReader, stat: &PidStat) {
        if reader.now_ns.saturating_sub(self.refreshed_ns) < reader.refresh_ns {
            return;
        }
        self.refreshed_ns = reader.now_ns;
        // If the pages have been due since the last refresh, the budget did not permit a reading.
        // They now count as changed, so they are read before pages that are only due.
        self.is_stale |= self.is_due;
        self.is_due = true;
        self.read_all(reader, stat);
    }

    /// True if the pages are read in chunks with pauses instead of by `smaps_rollup`.
    pub(crate) fn is_large(&self) -> bool {
        self.values.rss > SMALL
    }

    /// CPU time that reading the pages is expected to take.
    pub(crate) fn expected_cost(&self, page_bytes: u64) -> Duration {
        self.cost.unwrap_or_else(|| {
            Duration::from_nanos((self.values.rss.0 / page_bytes.max(1)) * NANOSECONDS_PER_PAGE)
        })
    }

    /// Reads the pages. Returns the longest time in nanoseconds for which the mmap lock may have
    /// been held.
    pub(crate) fn read_pages(&mut self, reader: &mut ProcessReader) -> u64 {
        let sums = if self.values.has_lost_memory() {
            Ok(nothing())
        } else if self.is_large() {
            reader.pages.politely(&reader.root, self.memory)
        } else {
            reader.pages.by_rollup(&mut reader.files, self.memory, &self.values.swap)
        };
        let was_stale = self.is_stale;
        (self.is_stale, self.is_due) = (false, false);
        let values = &mut self.values;
        match sums {
            // If the pages were not marked as changed and the sums are equal, the time of the
            // earlier reading is kept, so that a recorder does not write the sums again.
            Ok(sums)
                if !was_stale
                    && (&sums.pss, &sums.uss, &sums.uss_anonymous, &sums.swap_shmem)
                        == (
                            &values.pss,
                            &values.uss,
                            &values.uss_anonymous,
                            &values.swap_shmem,
                        ) =>
            {
                sums.longest_hold_ns
            }
            Ok(sums) => {
                values.pss = sums.pss;
                values.uss = sums.uss;
                values.uss_anonymous = sums.uss_anonymous;
                values.swap_shmem = sums.swap_shmem;
                self.pages_ns = Some(reader.now_ns);
                values.pages = PagesReading::Now;
                sums.longest_hold_ns
            }
            Err(why) => {
                values.pss = Err(why.clone());
                values.uss = Err(why.clone());
                values.uss_anonymous = Err(why.clone());
                values.swap_shmem = Err(why);
                self.pages_ns = None;
                values.pages = PagesReading::Never;
                0
            }
        }
    }

    /// Stores the CPU time of the last reading of the pages.
    pub(crate) fn note_cost(&mut self, cost: Duration) {
        self.cost = Some(cost);
    }

    /// Marks the pages as read in an earlier sweep if they may have changed since.
    pub(crate) fn postpone(&mut self) {
        if !self.is_stale {
            return;
        }
        self.values.pages = match self.pages_ns {
            Some(at) => PagesReading::Postponed(at),
            None => PagesReading::Never,
        };
        if self.pages_ns.is_none() {
            let why = || Absent::NotCollected("the budget does not suffice yet".into());
            self.values.pss = Err(why());
            self.values.uss = Err(why());
            self.values.uss_anonymous = Err(why());
            self.values.swap_shmem = Err(why());
        }
    }
}

/// Interned names that processes have in common: programs, users, cgroups.
#[derive(Debug, Default)]
pub(crate) struct SharedNames(HashSet<Name>);

impl SharedNames {
    /// Number of names at which all names are removed, because most of them then belong to ended
    /// processes.
    const MAX: usize = 5000;

    fn shared(&mut self, name: Name) -> Name {
        if let Some(known) = self.0.get(&name) {
            return known.clone();
        }
        if self.0.len() >= SharedNames::MAX {
            self.0.clear();
        }
        self.0.insert(name.clone());
        name
    }
}

impl ProcessReader {
    fn started(&self, start_ticks: u64) -> u64 {
        let age = self.now_ns.saturating_sub(start_ticks.saturating_mul(self.tick_ns));
        self.unix_ns.saturating_sub(age)
    }

    fn memory_thread(&self, pid: Pid, stat: &PidStat) -> Pid {
        self.root.holder(pid, stat.has_ended(), stat.threads)
    }
}

/// An offset within an interval that differs between processes.
fn spread(pid: Pid, interval: u64) -> u64 {
    u64::from(pid.0).wrapping_mul(0x9e37_79b9_7f4a_7c15) % interval.max(1)
}

fn nothing() -> PageSums {
    PageSums {
        pss: Ok(BytesByPageKind::default()),
        uss: Ok(Bytes::ZERO),
        uss_anonymous: Ok(Bytes::ZERO),
        swap_shmem: Ok(Bytes::ZERO),
        longest_hold_ns: 0,
    }
}

/// Arguments of a `cmdline`, at most [`MAX_COMMAND`] bytes. An ellipsis replaces the omitted
/// arguments.
fn command(text: &[u8]) -> Vec<Name> {
    let is_cut = text.len() > MAX_COMMAND;
    let text = &text[..text.len().min(MAX_COMMAND)];
    let text = text.strip_suffix(b"\0").unwrap_or(text);
    if text.is_empty() {
        return Vec::new();
    }
    let mut words: Vec<Name> = text.split(|&b| b == 0).map(Name::new).collect();
    if is_cut {
        words.push("…".into());
    }
    words
}

fn number<T: std::str::FromStr>(text: &[u8]) -> Reading<T> {
    let number = std::str::from_utf8(text.trim_ascii()).ok().and_then(|text| text.parse().ok());
    number.ok_or_else(|| Absent::NotSupported("not a number".into()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_long_command_line_is_cut_and_ends_with_an_ellipsis() {
        assert_eq!(command(b"a\0b\0"), [Name::from("a"), Name::from("b")]);
        assert!(command(b"").is_empty());
        let long = command(&b"x\0".repeat(4 * MAX_COMMAND));
        assert_eq!(long.last(), Some(&Name::from("…")));
        assert!(long.len() <= MAX_COMMAND);
    }

    #[test]
    fn cpu_time_alone_does_not_make_the_pages_stale() {
        let mark = ChangeMark {
            minor_faults: 1,
            major_faults: 0,
            ticks: 5,
            virt: Bytes(1),
            resident_pages: 7,
        };
        assert!(!mark.has_other_pages(&ChangeMark { ticks: 6, ..mark }));
        assert!(mark.has_other_pages(&ChangeMark { minor_faults: 2, ..mark }));
        assert!(mark.has_other_pages(&ChangeMark { resident_pages: 6, ..mark }));
    }
}
