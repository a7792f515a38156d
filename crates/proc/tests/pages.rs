//! Compares the page reading with the kernel's own `smaps` and `smaps_rollup`, to the byte, on a
//! stopped process that has every kind of page.
#![expect(clippy::unwrap_used, reason = "a test that cannot go on may panic anywhere")]

use std::fs;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::{Mutex, MutexGuard};
use std::time::Duration;

use pagewise_model::mapping::MappingPages;
use pagewise_model::{
    Absent, AddrRange, Backing, Bytes, Device, Mapping, PageSize, Pid, Prot, Reading, Sharing,
    parallel,
};
use pagewise_proc::pages::{Pace, PageWalk, read, read_with};
use pagewise_proc::{ProcError, ProcRoot};
use pagewise_skip::{Lack, is_root, skip};
use pagewise_sys::probe::Features;
use pagewise_sys::system;
use rustix::process::{Signal, kill_process};

/// The targets share library pages, so only one target runs at a time. Otherwise the PSS of a
/// target would change during a reading.
static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());

/// The program `kinds`, stopped; killed when dropped.
struct KindsTarget {
    child: Child,
    has_guards: bool,
    _alone: MutexGuard<'static, ()>,
}

impl KindsTarget {
    fn start() -> KindsTarget {
        KindsTarget::from(Command::new(kinds()))
    }

    fn from(mut program: Command) -> KindsTarget {
        let alone = ONE_AT_A_TIME.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        let mut child = program.arg(folder_of_files()).stdout(Stdio::piped()).spawn().unwrap();
        let mut line = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
        assert!(line.starts_with("ready"), "{line:?}");
        let target = KindsTarget { child, has_guards: line == "ready\n", _alone: alone };
        kill_process(rustix::process::Pid::from_child(&target.child), Signal::STOP).unwrap();
        while !target.stat().contains(") T ") {
            std::thread::sleep(Duration::from_millis(1));
        }
        target
    }

    fn pid(&self) -> Pid {
        Pid(self.child.id())
    }

    fn stat(&self) -> String {
        self.text("stat")
    }

    fn text(&self, file: &str) -> String {
        fs::read_to_string(format!("/proc/{}/{file}", self.pid())).unwrap()
    }
}

impl Drop for KindsTarget {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Returns the folder of the build, whose files are on a disk. A machine that did not build the
/// tests has no such folder.
fn folder_of_files() -> PathBuf {
    let of_build = Path::new(env!("CARGO_TARGET_TMPDIR"));
    if of_build.is_dir() { of_build.to_owned() } else { std::env::temp_dir() }
}

fn kinds() -> String {
    // On a machine without a compiler, the variable names a folder with the built program.
    if let Ok(folder) = std::env::var("PAGEWISE_TEST_PROGRAMS") {
        return format!("{folder}/kinds");
    }
    static BUILT: Mutex<bool> = Mutex::new(false);
    let mut built = BUILT.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
    let program = format!("{}/kinds", env!("CARGO_TARGET_TMPDIR"));
    if !*built {
        let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/programs/kinds.c");
        let status = Command::new("cc").arg("-O1").arg("-o").arg(&program).arg(source).status();
        assert!(status.expect("a C compiler is installed").success());
        *built = true;
    }
    program
}

/// The lines of one `smaps` entry that the page reading must reproduce, in kB.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct ExpectedEntry {
    header: String,
    lines: Vec<(String, u64)>,
}

impl ExpectedEntry {
    fn bytes(&self, names: &[&str]) -> Bytes {
        let wanted = self.lines.iter().filter(|(name, _)| names.contains(&name.as_str()));
        wanted.map(|(_, kib)| Bytes::kib(*kib)).sum()
    }

    fn mapping(&self) -> Mapping {
        let words: Vec<&str> = self.header.splitn(6, ' ').collect();
        let (start, end) = words[0].split_once('-').unwrap();
        let hex = |text: &str| u64::from_str_radix(text, 16).unwrap();
        let mode = words[1].as_bytes();
        Mapping {
            range: AddrRange { start: hex(start), end: hex(end) },
            prot: Prot { read: mode[0] == b'r', write: mode[1] == b'w', exec: mode[2] == b'x' },
            sharing: if mode[3] == b's' { Sharing::Shared } else { Sharing::Private },
            offset: hex(words[2]),
            device: Device::default(),
            inode: words[4].parse().unwrap(),
            name: words[5].trim_start().into(),
            on_tmpfs: false,
            smaps: Err(Absent::NotCollected("".into())),
            pages: Err(Absent::NotCollected("".into())),
        }
    }
}

fn entries(smaps: &str) -> Vec<ExpectedEntry> {
    let mut entries: Vec<ExpectedEntry> = Vec::new();
    for line in smaps.lines() {
        match line.split_once(':') {
            Some((name, value)) if !name.contains(' ') => {
                // "Referenced" changes by itself, and `VmFlags` is not a number.
                if let Some(kib) = value.trim().strip_suffix(" kB").filter(|_| name != "Referenced")
                {
                    let entry = entries.last_mut().unwrap();
                    entry.lines.push((name.to_owned(), kib.parse().unwrap()));
                }
            }
            _ => {
                entries.push(ExpectedEntry { header: line.to_owned(), ..ExpectedEntry::default() })
            }
        }
    }
    entries
}

/// One reading, and the values of the kernel before and after it.
struct PageReading {
    entries: Vec<ExpectedEntry>,
    rollup: ExpectedEntry,
    mappings: Vec<Mapping>,
    walk: PageWalk,
}

impl PageReading {
    /// Returns true if only the PSS of file pages differs from the kernel's values: a process that
    /// maps the same library starts and ends between the readings. The caller checks all other
    /// values.
    fn has_other_shares_of_files(&self) -> bool {
        let private = |entry: &ExpectedEntry| entry.bytes(&["Private_Clean", "Private_Dirty"]);
        let is_pss = |pages: &MappingPages, entry: &ExpectedEntry| {
            pages.pss.as_ref().map_or(true, |pss| *pss == entry.bytes(&["Pss"]))
        };
        let is_same = |pages: &MappingPages, entry| {
            pages.breakdown.exclusive() == private(entry) && is_pss(pages, entry)
        };
        let shared = |it: &Mapping| matches!(it.backing(), Backing::File | Backing::Special);
        let mut files = self.mappings.iter().zip(&self.entries).filter(|(it, _)| shared(it));
        let is_other_file = files.any(|(mapping, entry)| {
            mapping.pages.as_ref().is_ok_and(|pages| !is_same(pages, entry))
        });
        // The total of anonymous memory is checked separately.
        let is_other_total = self.walk.total.as_ref().is_ok_and(|total| {
            let anonymous = self.rollup.bytes(&["Pss_Anon"]);
            let is_anonymous_same =
                total.pss_anon.as_ref().is_ok_and(|pss| Bytes::kib(pss.0 >> 10) == anonymous);
            is_anonymous_same && !is_pss(total, &self.rollup)
        });
        let private_of_all: Bytes = self.entries.iter().map(private).sum();
        is_other_file || is_other_total || private_of_all != private(&self.rollup)
    }
}

/// Repeats the reading until nothing changed meanwhile: other processes map and unmap the same
/// libraries.
fn see(
    target: &KindsTarget,
    reading: impl Fn(&mut [Mapping]) -> Result<PageWalk, ProcError>,
) -> PageReading {
    let mut last = None;
    for _ in 0..100 {
        let before = entries(&target.text("smaps"));
        let mut mappings: Vec<Mapping> = before.iter().map(ExpectedEntry::mapping).collect();
        let walk = reading(&mut mappings).unwrap();
        let rollup = entries(&target.text("smaps_rollup")).remove(0);
        if entries(&target.text("smaps")) == before {
            let reading = PageReading { entries: before, rollup, mappings, walk };
            if !reading.has_other_shares_of_files() {
                return reading;
            }
            last = Some(reading);
        }
    }
    last.expect("the pages of a stopped process come to rest")
}

fn see_with(target: &KindsTarget, features: Features, pace: Pace) -> PageReading {
    see(target, |mappings| {
        read_with(&features, &ProcRoot::live(), target.pid(), mappings, page_size(), &pace)
    })
}

fn page_size() -> PageSize {
    PageSize::new(system::page_size()).unwrap()
}

/// Asserts the values that need no privilege.
fn assert_counts(pages: &MappingPages, entry: &ExpectedEntry) {
    let parts = &pages.breakdown;
    assert_eq!(parts.resident(), entry.bytes(&["Rss"]), "Rss of {}", entry.header);
    let anonymous = parts.anon_exclusive + parts.anon_co_mapped;
    assert_eq!(anonymous, entry.bytes(&["Anonymous"]), "Anonymous of {}", entry.header);
    match &pages.swap {
        Ok(swap) => assert_eq!(*swap, entry.bytes(&["Swap"]), "Swap of {}", entry.header),
        // Page tables do not show swapped pages of tmpfs, so a total over such a mapping is
        // unknown.
        Err(why) => {
            assert!(matches!(why, Absent::NotCollected(_)), "{why:?}");
            let has_tmpfs =
                entry.header.ends_with("[rollup]") || entry.mapping().backing() == Backing::Shmem;
            assert!(has_tmpfs && swap_is_in_use(), "Swap of {}: {why}", entry.header);
        }
    }
}

fn swap_is_in_use() -> bool {
    let text = fs::read_to_string("/proc/meminfo").unwrap();
    let line =
        |name: &str| text.lines().find(|line| line.starts_with(name)).map(|it| &it[name.len()..]);
    line("SwapTotal:") != line("SwapFree:")
}

fn assert_exclusive(pages: &MappingPages, entry: &ExpectedEntry) {
    let private = entry.bytes(&["Private_Clean", "Private_Dirty"]);
    assert_eq!(pages.breakdown.exclusive(), private, "Private of {}", entry.header);
}

fn assert_pss(pages: &MappingPages, entry: &ExpectedEntry) {
    assert_eq!(pages.pss, Ok(entry.bytes(&["Pss"])), "Pss of {}", entry.header);
    // Only `smaps_rollup` splits `Pss` by page kind.
    if entry.header.ends_with("[rollup]") {
        let kib = |bytes: Bytes| Bytes::kib(bytes.0 >> 10);
        let anonymous = entry.bytes(&["Pss_Anon"]);
        assert_eq!(pages.pss_anon.clone().map(kib), Ok(anonymous), "Pss_Anon");
    }
}

fn assert_huge(pages: &MappingPages, entry: &ExpectedEntry) {
    let huge = entry.bytes(&["AnonHugePages"]);
    assert_eq!(pages.anon_huge, Ok(huge), "AnonHugePages of {}", entry.header);
}

fn each(
    seen: &PageReading,
) -> impl Iterator<Item = (&Reading<std::sync::Arc<MappingPages>>, &ExpectedEntry)> {
    seen.mappings.iter().map(|mapping| &mapping.pages).zip(&seen.entries)
}

/// True if the kernel has what a test needs; records a skipped test if not.
fn has(needed: Features) -> bool {
    let there = Features::detect();
    if needed.pagemap_scan && !there.pagemap_scan {
        skip(&Lack::Kernel(6, 7));
        return false;
    }
    !needed.frames || there.frames || is_root()
}

const ALL: Features = Features { pagemap_scan: true, frames: true };

#[test]
fn every_mapping_and_their_total_are_what_smaps_says_to_the_byte() {
    if !has(ALL) {
        return;
    }
    let target = KindsTarget::start();
    for pace in [Pace::FAST, Pace::POLITE] {
        let seen = see_with(&target, ALL, pace);
        for (pages, entry) in each(&seen) {
            let pages = pages.as_ref().unwrap();
            assert_counts(pages, entry);
            assert_exclusive(pages, entry);
            assert_pss(pages, entry);
            assert_huge(pages, entry);
        }
        assert_eq!(seen.walk.doubt, None);
        let total = seen.walk.total.unwrap();
        assert_counts(&total, &seen.rollup);
        assert_exclusive(&total, &seen.rollup);
        assert_pss(&total, &seen.rollup);
        assert_huge(&total, &seen.rollup);
    }
}

#[test]
fn the_target_has_every_kind_of_page() {
    if !has(ALL) {
        return;
    }
    let total = see_with(&KindsTarget::start(), ALL, Pace::FAST).walk.total.unwrap();
    let parts = total.breakdown;
    for bytes in [
        parts.anon_exclusive,
        parts.anon_co_mapped,
        parts.file_exclusive,
        parts.file_co_mapped,
        parts.zero,
    ] {
        assert!(bytes > page_size().pages(4), "{parts:?}");
    }
}

#[test]
fn without_page_frames_only_the_share_of_co_mapped_pages_is_missing() {
    if !has(Features { frames: false, ..ALL }) {
        return;
    }
    let target = KindsTarget::start();
    let seen = see_with(&target, Features { frames: false, ..ALL }, Pace::POLITE);
    for (pages, entry) in each(&seen) {
        let pages = pages.as_ref().unwrap();
        assert_counts(pages, entry);
        assert_huge(pages, entry);
        if !entry.bytes(&["AnonHugePages"]).is_zero() {
            assert!(seen.walk.doubt.is_some(), "a huge page that is shared in part");
        } else if pages.breakdown.resident() == pages.breakdown.exclusive() {
            assert_exclusive(pages, entry);
            assert_pss(pages, entry);
        } else {
            assert_exclusive(pages, entry);
            assert!(matches!(pages.pss, Err(Absent::NotPermitted(_))), "{pages:?}");
        }
    }
    assert_counts(&seen.walk.total.unwrap(), &seen.rollup);
}

#[test]
fn without_the_capability_the_reading_says_what_it_needs_and_counts_the_rest() {
    let unprivileged = "setpriv --bounding-set=-all --inh-caps=-all --ambient-caps=-all --";
    let mut words = unprivileged.split(' ');
    if !has(Features { frames: false, ..ALL }) {
        return;
    }
    if !Path::new("/usr/bin/setpriv").exists() {
        return skip(&Lack::Tool("/usr/bin/setpriv"));
    }
    let mut program = Command::new(words.next().unwrap());
    program.args(words).arg(kinds());
    let target = KindsTarget::from(program);
    let seen =
        std::thread::scope(|scope| scope.spawn(|| see_unprivileged(&target)).join()).unwrap();
    for (pages, entry) in each(&seen) {
        assert_counts(pages.as_ref().unwrap(), entry);
    }
    assert!(matches!(seen.walk.total.unwrap().pss, Err(Absent::NotPermitted(_))));
}

/// Drops the capabilities of this thread only: capabilities belong to a thread.
fn see_unprivileged(target: &KindsTarget) -> PageReading {
    let none = rustix::thread::CapabilitySet::empty();
    let sets =
        rustix::thread::CapabilitySets { effective: none, permitted: none, inheritable: none };
    rustix::thread::set_capabilities(None, sets).unwrap();
    assert!(!Features::detect().frames);
    see(target, |mappings| {
        read(&ProcRoot::live(), target.pid(), mappings, page_size(), &Pace::POLITE)
    })
}

#[test]
fn before_pagemap_scan_large_holes_are_left_out_and_said() {
    if !has(Features { pagemap_scan: false, ..ALL }) {
        return;
    }
    let target = KindsTarget::start();
    let seen = see_with(&target, Features { pagemap_scan: false, frames: true }, Pace::FAST);
    for (mapping, (pages, entry)) in seen.mappings.iter().zip(each(&seen)) {
        if mapping.size() > Bytes::gib(64) {
            assert!(matches!(pages, Err(Absent::NotCollected(_))), "{pages:?}");
            continue;
        }
        let pages = pages.as_ref().unwrap();
        assert_counts(pages, entry);
        assert_exclusive(pages, entry);
        assert_pss(pages, entry);
        match &pages.anon_huge {
            Ok(none) => assert_eq!(*none, entry.bytes(&["AnonHugePages"])),
            Err(why) => assert_eq!(*why, Absent::NotInThisKernel("6.7".into())),
        }
    }
    assert!(matches!(seen.walk.total, Err(Absent::NotCollected(_))));
}

#[test]
fn with_neither_scan_nor_frames_nothing_is_guessed() {
    let target = KindsTarget::start();
    let seen = see_with(&target, Features { pagemap_scan: false, frames: false }, Pace::FAST);
    for (pages, entry) in each(&seen) {
        match pages {
            Ok(pages) => assert_counts(pages, entry),
            Err(why) => {
                assert!(matches!(why, Absent::NotPermitted(_) | Absent::NotCollected(_)), "{why}");
            }
        }
    }
    let anonymous = seen.mappings.iter().filter(|m| m.backing() == Backing::Anonymous);
    assert!(anonymous.filter(|m| m.pages.is_ok()).count() > 0);
}

#[test]
fn sixteen_tebibytes_of_nothing_are_read_at_once() {
    let features = Features::detect();
    if !has(Features { frames: false, ..ALL }) {
        return;
    }
    let target = KindsTarget::start();
    // A separate read for each entry would take hours.
    let seen = see_with(&target, features, Pace::POLITE);
    let large = seen.mappings.iter().filter(|mapping| mapping.size() > Bytes::gib(1 << 10));
    let guards: Bytes = large.map(|m| m.pages.as_ref().unwrap().breakdown.guard).sum();
    assert_eq!(guards, page_size().pages(if target.has_guards { 2 } else { 0 }));
}

#[test]
fn mappings_out_of_order_are_all_filled_in() {
    let target = KindsTarget::start();
    let mut mappings: Vec<Mapping> =
        entries(&target.text("smaps")).iter().map(ExpectedEntry::mapping).collect();
    let read = |mappings: &mut [Mapping]| {
        read(&ProcRoot::live(), target.pid(), mappings, page_size(), &Pace::FAST).unwrap();
    };
    let mut in_order = mappings.clone();
    read(&mut in_order);
    mappings.reverse();
    mappings.rotate_left(7);
    // A second copy follows, whose first mapping lies below the last mapping of the first copy.
    mappings.extend(in_order.clone());
    read(&mut mappings);
    for mapping in mappings.iter().filter(|it| it.backing() != Backing::File) {
        let known = in_order.iter().find(|it| it.range == mapping.range).unwrap();
        assert_eq!(mapping.pages, known.pages, "{:?}", mapping.range);
    }
}

#[test]
fn many_mappings_are_read_on_two_threads_with_the_same_result() {
    if !has(ALL) {
        return;
    }
    let target = KindsTarget::start();
    let mut few: Vec<Mapping> =
        entries(&target.text("smaps")).iter().map(ExpectedEntry::mapping).collect();
    let copies = parallel::MIN_ROWS.div_ceil(few.len());
    let mut many: Vec<Mapping> = (0..copies).flat_map(|_| few.clone()).collect();
    let read = |mappings: &mut [Mapping], pace| {
        read(&ProcRoot::live(), target.pid(), mappings, page_size(), pace).unwrap().total.unwrap()
    };
    let once = read(&mut few, &Pace::POLITE);
    let all = read(&mut many, &Pace::FAST);
    for (at, mapping) in many.iter().enumerate() {
        let known = &few[at % few.len()];
        // Other processes that start and end meanwhile share the pages of libraries.
        if known.backing() != Backing::File {
            assert_eq!(mapping.pages, known.pages, "{at}: {:?}", mapping.range);
        }
    }
    let copied = |bytes: Bytes| Bytes(bytes.0 * copies as u64);
    let (one, total) = (once.breakdown, all.breakdown);
    assert_eq!(total.resident(), copied(one.resident()));
    assert_eq!(total.anon_exclusive, copied(one.anon_exclusive));
    assert_eq!((total.swapped, total.zero), (copied(one.swapped), copied(one.zero)));
}

#[test]
fn zombies_and_ended_processes_are_not_processes() {
    let mut target = KindsTarget::start();
    let pid = target.pid();
    let mut mappings: Vec<Mapping> =
        entries(&target.text("smaps")).iter().map(ExpectedEntry::mapping).collect();
    let mut reading =
        || read(&ProcRoot::live(), pid, &mut mappings, page_size(), &Pace::FAST).unwrap_err();
    target.child.kill().unwrap();
    while !target.stat().contains(") Z ") {
        std::thread::sleep(Duration::from_millis(1));
    }
    assert!(matches!(reading(), ProcError::NoSuchProcess { .. }));
    target.child.wait().unwrap();
    assert!(matches!(reading(), ProcError::NoSuchProcess { .. }));
}
