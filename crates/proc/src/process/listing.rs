//! A listing with one line for each process, made with as few reads as possible.
//!
//! `smaps_rollup` contains RSS, PSS, USS and swap. The quadrants ([`pagewise_model::Quadrant`])
//! follow from these sums alone if the process has no tmpfs pages, if all its exclusive pages are
//! anonymous, and if the sums determine the number of exclusive anonymous pages (see
//! `Rollup::anon_exclusive`). Otherwise `maps` is read, and then the pages of those mappings whose
//! quadrants `maps` does not determine.
//!
//! `smaps_rollup` holds the target's mmap lock, so big processes are read page by page instead,
//! unless the caller wishes otherwise.

use std::io;
use std::num::NonZero;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::Instant;

use pagewise_model::listing::{ByQuadrant, Listing, ProcessSummary, PssByKind};
use pagewise_model::machine::ReadMethod;
use pagewise_model::mapping::{Breakdown, MappingPages};
use pagewise_model::units::nanoseconds;
use pagewise_model::{
    Absent, Backing, Bytes, Mapping, Name, PageSize, Pid, Reading, Sharing, Smaps, SmapsCounter,
    reading,
};
use pagewise_sys::probe::Features;
use pagewise_sys::{libraries, system};

use crate::capture::Wish;
use crate::pages::{self, Pace};
use crate::quick_reader::QuickReader;
use crate::root::PTRACE;
use crate::text::{field, kilobytes, lines, number};
use crate::tmpfs::TmpfsDevices;
use crate::users::Users;
use crate::{ProcError, ProcRoot, cgroup, maps, meminfo};

/// Reads every process.
///
/// # Errors
/// [`ProcError::Io`] where the tree cannot be listed. A process that cannot be read is in the
/// listing, with the reason.
pub fn list(root: &ProcRoot, wish: Wish) -> Result<Listing, ProcError> {
    let begin = Instant::now();
    if root.is_live() {
        // If the libraries of this process cannot be copied, pages that a process shares only with
        // this one count as shared.
        libraries::copy_libraries();
    }
    let pids = root.pids()?;
    let machine = ListingShared::new(root, wish);
    let (mut seen, hold) = machine.read_all(&pids)?;
    seen.sort_unstable_by_key(|(pid, _)| *pid);
    let mut listing = Listing {
        processes: Vec::with_capacity(seen.len()),
        kernel_threads: 0,
        vanished: 0,
        hidden: 0,
        mem_total: root.machine("meminfo").and_then(|text| meminfo::parse(&text, "MemTotal")),
        took_ns: 0,
        longest_hold_ns: if root.is_live() {
            Ok(hold)
        } else {
            Err(Absent::NotCollected("a copied tree has no processes to hold".into()))
        },
    };
    for (_, seen) in seen {
        match seen {
            PidOutcome::Process(summary) => listing.processes.push(*summary),
            PidOutcome::KernelThread => listing.kernel_threads += 1,
            PidOutcome::Vanished => listing.vanished += 1,
            PidOutcome::Hidden => listing.hidden += 1,
        }
    }
    listing.took_ns = nanoseconds(begin.elapsed());
    Ok(listing)
}

/// Result for a PID.
enum PidOutcome {
    Process(Box<ProcessSummary>),
    KernelThread,
    Vanished,
    /// Not even the `status` of the process may be read.
    Hidden,
}

/// State that all reading threads share.
struct ListingShared<'a> {
    root: &'a ProcRoot,
    wish: Wish,
    features: Features,
    page_size: PageSize,
    users: Users,
    tmpfs: TmpfsDevices,
}

impl<'a> ListingShared<'a> {
    fn new(root: &'a ProcRoot, wish: Wish) -> ListingShared<'a> {
        ListingShared {
            root,
            wish,
            features: Features::detect(),
            page_size: PageSize::new(system::page_size()).expect("the kernel's is a power of two"),
            users: if root.is_live() { Users::read() } else { Users::default() },
            tmpfs: TmpfsDevices::default(),
        }
    }

    /// Reads the processes with one thread per CPU. Also returns the longest time for which a call
    /// held an mmap lock, in nanoseconds.
    fn read_all(&self, pids: &[Pid]) -> Result<(Vec<(Pid, PidOutcome)>, u64), ProcError> {
        let next = AtomicUsize::new(0);
        let work = || {
            let mut reader = ListingReader::new(self)?;
            let mut seen = Vec::new();
            while let Some(&pid) = pids.get(next.fetch_add(1, Ordering::Relaxed)) {
                seen.push((pid, reader.process(pid)));
            }
            Ok((seen, reader.longest_hold_ns))
        };
        let cpus = thread::available_parallelism().map_or(1, NonZero::get);
        thread::scope(|scope| {
            let others: Vec<_> = (1..cpus).map(|_| scope.spawn(work)).collect();
            let (mut seen, mut hold) = work()?;
            for other in others {
                let (more, longest) = other.join().expect("a reader does not panic")?;
                seen.extend(more);
                hold = hold.max(longest);
            }
            Ok((seen, hold))
        })
    }
}

/// The lines of `status` that a listing needs.
#[derive(Debug, Default, PartialEq, Eq)]
struct ListingStatus {
    name: Name,
    state: char,
    uid: u32,
    threads: u64,
    kernel_thread: Option<bool>,
    rss: Option<Bytes>,
    shmem: Option<Bytes>,
    swap: Option<Bytes>,
}

impl ListingStatus {
    /// Returns this status with the memory of `holder`, the status of another thread: the status of
    /// a first thread that has ended contains no memory.
    fn with_memory_of(self, holder: ListingStatus) -> ListingStatus {
        ListingStatus { rss: holder.rss, shmem: holder.shmem, swap: holder.swap, ..self }
    }

    fn parse(text: &[u8]) -> ListingStatus {
        let mut status = ListingStatus { state: '?', ..ListingStatus::default() };
        let size = |value| kilobytes(value).map(Bytes);
        for (name, value) in lines(text).filter_map(|(_, line)| field(line)) {
            match name {
                b"Name" => status.name = Name::new(&unescape(value)),
                b"State" => status.state = value.first().map_or('?', |&b| char::from(b)),
                b"Uid" => {
                    status.uid = first(value).and_then(|n| u32::try_from(n).ok()).unwrap_or(0)
                }
                b"Kthread" => status.kernel_thread = Some(value == b"1"),
                b"VmRSS" => status.rss = size(value),
                b"RssShmem" => status.shmem = size(value),
                b"VmSwap" => status.swap = size(value),
                // The lines after `Threads:` are about signals and scheduling.
                b"Threads" => {
                    status.threads = number(value).unwrap_or(1);
                    break;
                }
                _ => {}
            }
        }
        status
    }

    /// Returns true for a kernel thread. Before Linux 6.8, `status` has no line `Kthread`: a live
    /// process without memory then counts as a kernel thread.
    fn is_kernel_thread(&self) -> bool {
        let has_ended = matches!(self.state, 'Z' | 'X');
        self.kernel_thread.unwrap_or(self.rss.is_none() && !has_ended)
    }
}

fn first(value: &[u8]) -> Option<u64> {
    number(value.split(u8::is_ascii_whitespace).next()?)
}

/// The kernel escapes newline and backslash in `Name:`.
fn unescape(value: &[u8]) -> Vec<u8> {
    let mut plain = Vec::with_capacity(value.len());
    let mut rest = value;
    while let Some((&byte, tail)) = rest.split_first() {
        (rest, _) = match (byte, tail.first()) {
            (b'\\', Some(b'n')) => (&tail[1..], plain.push(b'\n')),
            (b'\\', Some(b'\\')) => (&tail[1..], plain.push(b'\\')),
            _ => (tail, plain.push(byte)),
        };
    }
    plain
}

/// Result of reading a process's memory.
struct ListingMemory {
    method: ReadMethod,
    uss: Reading<Bytes>,
    pss: Reading<Bytes>,
    rss: Reading<Bytes>,
    swap: Reading<Bytes>,
    shares: Reading<PssByKind>,
    quadrants: ByQuadrant,
}

/// State of one reading thread.
struct ListingReader<'a> {
    shared: &'a ListingShared<'a>,
    files: QuickReader,
    longest_hold_ns: u64,
}

impl<'a> ListingReader<'a> {
    fn new(shared: &'a ListingShared<'a>) -> Result<ListingReader<'a>, ProcError> {
        let files = QuickReader::whole(shared.root)?;
        Ok(ListingReader { shared, files, longest_hold_ns: 0 })
    }

    fn process(&mut self, pid: Pid) -> PidOutcome {
        let mut status = match self.status(pid) {
            Ok(status) => status,
            Err(Absent::NotPermitted(_)) => return PidOutcome::Hidden,
            Err(_) => return PidOutcome::Vanished,
        };
        if status.is_kernel_thread() {
            return PidOutcome::KernelThread;
        }
        let ended = matches!(status.state, 'Z' | 'X');
        let holder = self.shared.root.holder(pid, ended, status.threads);
        let of_holder = if holder == pid { None } else { self.status(holder).ok() };
        let memory = if let Some(of_holder) = of_holder {
            status = status.with_memory_of(of_holder);
            self.memory(holder, &status)
        } else if ended {
            Ok(nothing())
        } else {
            self.memory(pid, &status)
        };
        PidOutcome::Process(Box::new(self.summary(pid, holder, status, memory)))
    }

    fn status(&mut self, pid: Pid) -> Reading<ListingStatus> {
        self.files.read(pid, "status").map(ListingStatus::parse)
    }

    fn summary(
        &mut self,
        pid: Pid,
        holder: Pid,
        status: ListingStatus,
        memory: Reading<ListingMemory>,
    ) -> ProcessSummary {
        let command = self.files.read(holder, "cmdline").map(split_names);
        // A first thread that has ended is in the root cgroup.
        let group = self.files.read(holder, "cgroup").and_then(|text| {
            let member = cgroup::parse(text);
            member.map(|m| m.path).ok_or_else(cgroup::no_memory_cgroup)
        });
        let user = self.shared.users.name(status.uid).cloned();
        let (method, memory) = match memory {
            Ok(memory) => (Ok(memory.method), memory),
            Err(why) => (Err(why.clone()), unread(&status, &why)),
        };
        ProcessSummary {
            pid,
            state: status.state,
            uid: status.uid,
            user,
            command,
            exe: self.files.link(holder, "exe"),
            cgroup: group,
            memory: method,
            uss: memory.uss,
            pss: memory.pss,
            rss: memory.rss,
            swap: memory.swap,
            shares: memory.shares,
            quadrants: memory.quadrants,
            name: status.name,
        }
    }

    fn memory(&mut self, pid: Pid, status: &ListingStatus) -> Reading<ListingMemory> {
        match self.shared.wish.method(status.rss.unwrap_or_default()) {
            ReadMethod::Full => match self.read_rollup(pid, status) {
                // Before 4.14 the rollup does not exist.
                Err(Absent::NotInThisKernel(_)) => self.read_pages(pid, ReadMethod::Polite),
                other => other,
            },
            method => self.read_pages(pid, method),
        }
    }

    fn read_rollup(&mut self, pid: Pid, status: &ListingStatus) -> Reading<ListingMemory> {
        let (rollup, hold_ns) = self.files.rollup(pid);
        self.longest_hold_ns = self.longest_hold_ns.max(hold_ns);
        let rollup = rollup?;
        let quadrants =
            Rollup::from_rollup(&rollup, status).and_then(|sums| self.quadrants(pid, &sums));
        Ok(ListingMemory {
            method: ReadMethod::Full,
            uss: exclusive(&rollup),
            pss: rollup.bytes(SmapsCounter::Pss),
            rss: rollup.bytes(SmapsCounter::Rss),
            swap: rollup.bytes(SmapsCounter::Swap),
            shares: shares_of(&rollup),
            quadrants: quadrants.unwrap_or_else(|why| ByQuadrant::absent(&why)),
        })
    }

    /// Splits the sums of a rollup by quadrant.
    fn quadrants(&mut self, pid: Pid, sums: &Rollup) -> Reading<ByQuadrant> {
        let anon = sums.anon_exclusive();
        let mut found =
            PageFigures { anon_exclusive: anon.unwrap_or_default(), ..PageFigures::default() };
        if sums.has_no_shmem && anon == Some(sums.exclusive) {
            return Ok(sums.split(&found));
        }
        let mut mappings = self.mappings(pid)?;
        let asks = |m: &Mapping| match m.backing() {
            // The mapping may contain exclusive anonymous pages, and the sums do not contain their
            // number.
            _ if anon.is_none() && m.sharing == Sharing::Private => true,
            // The mapping may contain tmpfs pages, or exclusive pages of a shared file mapping.
            Backing::Shmem => true,
            Backing::File | Backing::Special => {
                m.sharing == Sharing::Shared && sums.exclusive > anon.unwrap_or_default()
            }
            Backing::Anonymous => false,
        };
        mappings.retain(asks);
        if !mappings.is_empty() {
            self.walk(pid, &mut mappings, &Pace::FAST)?;
        }
        for mapping in &mappings {
            let pages = mapping.pages.as_ref().map_err(Clone::clone)?;
            found.add(mapping, &pages.breakdown, anon.is_none());
        }
        Ok(sums.split(&found))
    }

    fn read_pages(&mut self, pid: Pid, method: ReadMethod) -> Reading<ListingMemory> {
        let mut mappings = self.mappings(pid)?;
        let pace = if method == ReadMethod::Fast { Pace::FAST } else { Pace::POLITE };
        let total = self.walk(pid, &mut mappings, &pace)?.total?;
        let mut quadrants = [Bytes::ZERO; 4];
        let mut shmem = Ok(Bytes::ZERO);
        for mapping in &mappings {
            let pages = mapping.pages.as_ref().map_err(Clone::clone)?;
            for (sum, more) in quadrants.iter_mut().zip(effective(mapping, &pages.breakdown)) {
                *sum += more;
            }
            if mapping.backing() == Backing::Shmem {
                shmem = reading::sum(shmem, file_share(pages));
            }
        }
        Ok(ListingMemory {
            method,
            shares: shmem.and_then(|shmem| {
                let file = file_share(&total)? - shmem;
                Ok(PssByKind { anonymous: total.pss_anon.clone()?, file, shmem })
            }),
            uss: Ok(total.breakdown.exclusive()),
            pss: total.pss,
            rss: Ok(total.breakdown.resident()),
            swap: total.swap,
            quadrants: by_quadrant(quadrants),
        })
    }

    fn mappings(&mut self, pid: Pid) -> Reading<Vec<Mapping>> {
        let mut parsed = maps::parse(self.files.records(pid, "maps")?);
        if let Some(torn) = parsed.torn {
            return Err(Absent::Ambiguous(torn.to_string().into()));
        }
        self.shared.tmpfs.mark(self.shared.root, pid, &mut parsed.mappings);
        Ok(parsed.mappings)
    }

    fn walk(
        &mut self,
        pid: Pid,
        mappings: &mut [Mapping],
        pace: &Pace,
    ) -> Reading<pages::PageWalk> {
        let ListingShared { root, features, page_size, .. } = self.shared;
        let walk =
            pages::read_with(features, root, pid, mappings, *page_size, pace).map_err(why)?;
        self.longest_hold_ns = self.longest_hold_ns.max(walk.longest_hold_ns);
        Ok(walk)
    }
}

/// The PSS of a rollup by kind of page (since 5.4).
fn shares_of(rollup: &Smaps) -> Reading<PssByKind> {
    Ok(PssByKind {
        anonymous: rollup.bytes(SmapsCounter::PssAnon)?,
        file: rollup.bytes(SmapsCounter::PssFile)?,
        shmem: rollup.bytes(SmapsCounter::PssShmem)?,
    })
}

/// The PSS of the pages that are not anonymous.
fn file_share(pages: &MappingPages) -> Reading<Bytes> {
    Ok(pages.pss.clone()? - pages.pss_anon.clone()?)
}

/// Converts the error of a read to the reason why the values are absent.
fn why(error: ProcError) -> Absent {
    match error {
        ProcError::NoSuchProcess { .. } => Absent::Vanished,
        ProcError::NotPermitted { .. } | ProcError::NoAccess { .. } => {
            Absent::NotPermitted(PTRACE.into())
        }
        ProcError::Io { source, .. } if source.kind() == io::ErrorKind::NotFound => {
            Absent::NotInThisKernel("".into())
        }
        other => Absent::NotSupported(other.to_string().into()),
    }
}

/// The words of a `cmdline`, which ends each with a NUL.
pub(crate) fn split_names(text: &[u8]) -> Vec<Name> {
    let text = text.strip_suffix(b"\0").unwrap_or(text);
    if text.is_empty() { Vec::new() } else { text.split(|&b| b == 0).map(Name::new).collect() }
}

/// Values from `status` for a process whose memory may not be read.
fn unread(status: &ListingStatus, why: &Absent) -> ListingMemory {
    let or_why = |size: Option<Bytes>| size.ok_or_else(|| why.clone());
    ListingMemory {
        method: ReadMethod::Full,
        uss: Err(why.clone()),
        pss: Err(why.clone()),
        rss: or_why(status.rss),
        swap: or_why(status.swap),
        shares: Err(why.clone()),
        quadrants: ByQuadrant::absent(why),
    }
}

/// The values of a process that has ended and has no memory.
fn nothing() -> ListingMemory {
    let none = || Ok(Bytes::ZERO);
    ListingMemory {
        method: ReadMethod::Full,
        uss: none(),
        pss: none(),
        rss: none(),
        swap: none(),
        shares: Ok(PssByKind::default()),
        quadrants: ByQuadrant::all(none()),
    }
}

fn exclusive(rollup: &Smaps) -> Reading<Bytes> {
    Ok(rollup.bytes(SmapsCounter::PrivateClean)? + rollup.bytes(SmapsCounter::PrivateDirty)?)
}

/// The sums of a rollup that decide the quadrants.
struct Rollup {
    resident: Bytes,
    exclusive: Bytes,
    anon: Bytes,
    anon_share: Option<Bytes>,
    /// True if the kernel's count of tmpfs pages and their PSS are both 0.
    has_no_shmem: bool,
}

impl Rollup {
    fn from_rollup(rollup: &Smaps, status: &ListingStatus) -> Reading<Rollup> {
        let shmem = rollup.bytes(SmapsCounter::PssShmem).ok();
        Ok(Rollup {
            resident: rollup.bytes(SmapsCounter::Rss)?,
            exclusive: exclusive(rollup)?,
            anon: rollup.bytes(SmapsCounter::Anonymous)?,
            anon_share: rollup.bytes(SmapsCounter::PssAnon).ok(),
            has_no_shmem: status.shmem == Some(Bytes::ZERO) && shmem == Some(Bytes::ZERO),
        })
    }

    /// The exclusive anonymous pages, if the sums alone determine them.
    ///
    /// A co-mapped page adds at most half of its size to `Pss_Anon`, and rounding reduces
    /// `Pss_Anon` by less than half a page. So no anonymous page is co-mapped if `Pss_Anon` equals
    /// `Anonymous`.
    fn anon_exclusive(&self) -> Option<Bytes> {
        if self.anon_share == Some(self.anon) || self.exclusive == self.resident {
            Some(self.anon)
        } else if self.exclusive.is_zero() {
            Some(Bytes::ZERO)
        } else {
            None
        }
    }

    /// Returns the quadrants, which add up to the rollup's `Rss` even if the process changed while
    /// its pages were read.
    fn split(&self, found: &PageFigures) -> ByQuadrant {
        let least = |a: Bytes, b: Bytes| if a < b { a } else { b };
        let anon_exclusive = least(found.anon_exclusive, self.anon);
        let page_cache = self.resident - self.anon;
        let shmem = least(found.shmem, page_cache);
        let file = page_cache - shmem;
        let elsewhere = anon_exclusive + found.shmem_exclusive + found.shared_file_exclusive;
        let private_file = least(self.exclusive - elsewhere, file);
        by_quadrant([
            anon_exclusive,
            self.anon - anon_exclusive + shmem,
            private_file,
            file - private_file,
        ])
    }
}

/// Values that only a reading of the pages provides, and not the rollup.
#[derive(Debug, Default)]
struct PageFigures {
    anon_exclusive: Bytes,
    shmem: Bytes,
    shmem_exclusive: Bytes,
    shared_file_exclusive: Bytes,
}

impl PageFigures {
    fn add(&mut self, mapping: &Mapping, pages: &Breakdown, counts_anon: bool) {
        if counts_anon {
            self.anon_exclusive += pages.anon_exclusive;
        }
        if mapping.backing() == Backing::Shmem {
            self.shmem += pages.file_exclusive + pages.file_co_mapped;
            self.shmem_exclusive += pages.file_exclusive;
        } else if mapping.sharing == Sharing::Shared {
            self.shared_file_exclusive += pages.file_exclusive;
        }
    }
}

/// The resident pages of a mapping by quadrant, in the order of [`pagewise_model::Quadrant::ALL`].
fn effective(mapping: &Mapping, pages: &Breakdown) -> [Bytes; 4] {
    let file = pages.file_exclusive + pages.file_co_mapped;
    let co_mapped = pages.anon_co_mapped;
    match (mapping.backing(), mapping.sharing) {
        (Backing::Shmem, _) => [pages.anon_exclusive, co_mapped + file, Bytes::ZERO, Bytes::ZERO],
        (_, Sharing::Shared) => [pages.anon_exclusive, co_mapped, Bytes::ZERO, file],
        (_, Sharing::Private | Sharing::Unknown) => {
            [pages.anon_exclusive, co_mapped, pages.file_exclusive, pages.file_co_mapped]
        }
    }
}

fn by_quadrant(
    [private_anonymous, shared_anonymous, private_file, shared_file]: [Bytes; 4],
) -> ByQuadrant {
    ByQuadrant {
        private_anonymous: Ok(private_anonymous),
        shared_anonymous: Ok(shared_anonymous),
        private_file: Ok(private_file),
        shared_file: Ok(shared_file),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_comes_out_of_status_as_the_process_wrote_it() {
        let status = ListingStatus::parse(
            b"Name:\ta\\nb\\\\c\nState:\tS (sleeping)\nUid:\t7\t8\t9\t9\nThreads:\t3\n",
        );
        assert_eq!(status.name, Name::new(b"a\nb\\c"));
        assert_eq!((status.state, status.uid, status.threads), ('S', 7, 3));
    }

    #[test]
    fn a_kernel_thread_is_recognized_with_and_without_its_line() {
        let is = |text: &[u8]| ListingStatus::parse(text).is_kernel_thread();
        assert!(is(b"State:\tI (idle)\nKthread:\t1\n"));
        assert!(is(b"State:\tI (idle)\nThreads:\t1\n"));
        assert!(!is(b"State:\tZ (zombie)\nThreads:\t1\n"));
        assert!(!is(b"State:\tS (sleeping)\nVmRSS:\t       4 kB\nThreads:\t1\n"));
        assert!(!is(b"State:\tS (sleeping)\nKthread:\t0\n"));
    }

    fn sums(resident: u64, exclusive: u64, anon: u64, share: u64) -> Rollup {
        let kib = Bytes::kib;
        Rollup {
            resident: kib(resident),
            exclusive: kib(exclusive),
            anon: kib(anon),
            anon_share: Some(kib(share)),
            has_no_shmem: true,
        }
    }

    #[test]
    fn the_share_shows_whether_any_anonymous_page_is_co_mapped() {
        assert_eq!(sums(100, 50, 40, 40).anon_exclusive(), Some(Bytes::kib(40)));
        // One page of 4 KiB is mapped twice.
        assert_eq!(sums(100, 50, 40, 38).anon_exclusive(), None);
        assert_eq!(sums(100, 100, 40, 40).anon_exclusive(), Some(Bytes::kib(40)));
        assert_eq!(sums(100, 0, 40, 20).anon_exclusive(), Some(Bytes::ZERO));
    }

    #[test]
    fn quadrants_add_up_to_rss_even_where_the_process_changed_meanwhile() {
        let found = PageFigures {
            anon_exclusive: Bytes::kib(900),
            shmem: Bytes::kib(900),
            shmem_exclusive: Bytes::kib(900),
            shared_file_exclusive: Bytes::kib(900),
        };
        for found in [found, PageFigures::default()] {
            let quadrants = sums(100, 50, 40, 38).split(&found);
            let all = pagewise_model::Quadrant::ALL.map(|q| quadrants.get(q).clone().unwrap());
            assert_eq!(all.into_iter().sum::<Bytes>(), Bytes::kib(100), "{quadrants:?}");
        }
    }

    #[test]
    fn a_command_line_is_cut_at_its_nuls() {
        assert_eq!(split_names(b"a\0\0b c\0"), ["a", "", "b c"].map(Name::from));
        assert!(split_names(b"").is_empty());
        assert_eq!(split_names(b"overwritten"), [Name::from("overwritten")]);
    }
}
