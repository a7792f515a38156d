//! Tests of recordings: readers get the written values, also after damage.

#![allow(clippy::unwrap_used, reason = "tests may do it")]

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use pagewise_model::fragmentation::BootCounter;
use pagewise_model::settings::{Pressure, PressureFigures};
use pagewise_model::sweep::{
    BytesByPageKind, CategoryBytes, CategorySample, CgroupUsage, GapReason, PagesReading,
    ProcessIdentity, ProcessKey, Sweep, SweepCgroup, SweepCost, SweepEvent, SweepEventKind,
    SweepMachine, SweepProcess, SweepTime, SweepTrigger, TriggerTarget,
};
use pagewise_model::{Absent, Bytes, Name, Pid, Reading};
use pagewise_store::{RecordReader, RecordWriter, StoreError, WriterOptions, files};
use proptest::prelude::*;

const SECOND: u64 = 1_000_000_000;
/// Start of the recorded day in seconds since 1970: 2026-11-25 00:00 UTC.
const DAY: u64 = 1_795_564_800;

/// Generator of pseudorandom numbers.
struct Numbers(u64);

impl Numbers {
    fn below(&mut self, limit: u64) -> u64 {
        self.0 =
            self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % limit
    }

    fn size(&mut self) -> Bytes {
        Bytes::kib(self.below(1 << 30))
    }

    fn reading<T>(&mut self, make: impl FnOnce(&mut Numbers) -> T) -> Reading<T> {
        match self.below(6) {
            0 => Err(Absent::NotPermitted("root".into())),
            1 => Err(Absent::Vanished),
            _ => Ok(make(self)),
        }
    }

    fn name(&mut self) -> Name {
        match self.below(5) {
            0 => Name::new(b"new\nline\x1b[2J\xff"),
            1 => Name::new(b"zero\0byte"),
            2 => Name::new("ü \"quoted\"".as_bytes()),
            n => format!("name{n}").as_str().into(),
        }
    }

    fn pressure(&mut self) -> PressureFigures {
        PressureFigures {
            avg10: Pressure { some: self.below(10_000), full: self.below(10_000) },
            longer: None,
            some_us: self.below(1 << 40),
            full_us: self.below(1 << 40),
        }
    }

    fn kinds(&mut self) -> BytesByPageKind {
        BytesByPageKind { anonymous: self.size(), file: self.size(), shmem: self.size() }
    }

    fn identity(&mut self, started_unix_ns: u64) -> Arc<ProcessIdentity> {
        Arc::new(ProcessIdentity {
            name: self.name(),
            parent: Pid(u32::try_from(self.below(3)).unwrap()),
            command: self.reading(|it| vec![it.name(), it.name()]),
            exe: self.reading(Numbers::name),
            uid: self.reading(|it| u32::try_from(it.below(1000)).unwrap()),
            user: (self.below(2) == 0).then(|| self.name()),
            cgroup: self.reading(Numbers::name),
            started_unix_ns,
        })
    }

    fn process(&mut self, pid: u32, boot_ns: u64) -> SweepProcess {
        SweepProcess {
            key: ProcessKey { pid: Pid(pid), start_ticks: self.below(3) },
            identity: self.identity(u64::from(pid)),
            state: 'S',
            threads: self.below(9),
            virt: self.size(),
            rss: self.size(),
            rss_by_kind: self.reading(Numbers::kinds),
            peak_rss: self.reading(Numbers::size),
            pss: self.reading(Numbers::kinds),
            uss: self.reading(Numbers::size),
            uss_anonymous: self.reading(Numbers::size),
            pages: match self.below(4) {
                0 => PagesReading::Never,
                1 => PagesReading::Postponed(boot_ns / 2),
                2 => PagesReading::Unchanged(boot_ns / 3),
                _ => PagesReading::Now,
            },
            swap: self.reading(Numbers::size),
            swap_shmem: self.reading(Numbers::size),
            minor_faults: self.below(1 << 40),
            major_faults: self.below(1 << 20),
            cpu_ns: self.below(1 << 40) * 10_000_000,
            oom_score: self.reading(|it| it.below(2000)),
            oom_score_adj: self.reading(|it| it.below(2000).cast_signed() - 1000),
        }
    }

    fn cgroup(&mut self, path: &str) -> SweepCgroup {
        SweepCgroup {
            path: path.into(),
            current: self.reading(Numbers::size),
            peak: self.reading(Numbers::size),
            limit: self.reading(|it| (it.below(2) == 0).then(|| it.size())),
            swap: self.reading(Numbers::size),
            usage: self.reading(|it| CgroupUsage {
                anonymous: it.size(),
                file: it.size(),
                shmem: it.size(),
                inactive_file: it.size(),
                slab: (it.below(2) == 0).then(|| it.size()),
            }),
            limit_hits: self.reading(|it| it.below(99)),
            oom_kills: self.reading(|it| it.below(9)),
            pressure: self.reading(Numbers::pressure),
        }
    }

    fn sweep(&mut self, seconds: u64) -> Sweep {
        let time = SweepTime { unix_ns: (DAY + seconds) * SECOND, boot_ns: (seconds + 7) * SECOND };
        let counter = |name: &str, count| BootCounter { name: name.into(), count };
        let pids: Vec<u32> = (1..9).filter(|_| self.below(4) > 0).collect();
        Sweep {
            time,
            cost: SweepCost {
                took_ns: self.below(1 << 30),
                cpu_ns: self.below(1 << 30),
                longest_hold_ns: self.below(1 << 30),
                pages_read: self.below(9),
                postponed: self.below(9),
            },
            processes: pids.iter().map(|pid| self.process(*pid, time.boot_ns)).collect(),
            kernel_threads: self.below(99),
            vanished: self.below(9),
            hidden: 0,
            cgroups: match self.below(9) {
                0 => Err(Absent::NotSupported("no memory cgroup is mounted here".into())),
                _ => {
                    let mut cgroups = Vec::new();
                    for path in ["/", "/a", "/a/b"] {
                        if self.below(5) > 0 {
                            cgroups.push(self.cgroup(path));
                        }
                    }
                    Ok(cgroups)
                }
            },
            machine: SweepMachine {
                meminfo: Ok(vec![
                    counter("MemFree", self.size().0),
                    counter("Active(anon)", self.size().0),
                    counter("HugePages_Total", self.below(9)),
                ]),
                vmstat: self.reading(|it| vec![counter("pgfault", it.below(1 << 50))]),
                memory_pressure: self.reading(Numbers::pressure),
                io_pressure: self.reading(Numbers::pressure),
                forks: self.reading(|it| it.below(1 << 30)),
            },
        }
    }

    /// The sweep after `before`, in which some processes are unchanged.
    fn next(&mut self, before: &Sweep, seconds: u64) -> Sweep {
        let mut sweep = self.sweep(seconds);
        for process in &mut sweep.processes {
            if let Some(old) = before.process(process.key)
                && self.below(3) > 0
            {
                *process = old.clone();
                if old.pages == PagesReading::Now {
                    process.pages = PagesReading::Unchanged(before.time.boot_ns);
                }
            }
        }
        sweep
    }
}

fn made(seed: u64, count: u64) -> Vec<Sweep> {
    let mut numbers = Numbers(seed);
    let mut sweeps = vec![numbers.sweep(0)];
    for at in 1..count {
        let next = numbers.next(&sweeps[sweeps.len() - 1], at * 5);
        sweeps.push(next);
    }
    sweeps
}

fn options() -> WriterOptions {
    WriterOptions { full_every: Duration::from_secs(40), ..WriterOptions::default() }
}

fn record(folder: &Path, sweeps: &[Sweep]) -> RecordWriter {
    let mut writer = RecordWriter::open(folder, options()).unwrap();
    for sweep in sweeps {
        writer.append(sweep, &[]).unwrap();
    }
    writer
}

fn read_all(folder: &Path) -> (Vec<Sweep>, Vec<SweepEvent>) {
    let mut cursor = RecordReader::open(folder).unwrap().sweeps(0, u64::MAX);
    let mut sweeps = Vec::new();
    while let Some(sweep) = cursor.next_sweep() {
        sweeps.push(sweep.clone());
    }
    (sweeps, cursor.gaps().to_vec())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]
    #[test]
    fn readers_get_the_written_values(seed: u64) {
        let folder = tempfile::tempdir().unwrap();
        let sweeps = made(seed, 20);
        let writer = record(folder.path(), &sweeps);
        prop_assert_eq!(&read_all(folder.path()).0, &sweeps, "while the recorder runs");
        writer.close().unwrap();
        prop_assert_eq!(&read_all(folder.path()).0, &sweeps);
        let reader = RecordReader::open(folder.path()).unwrap();
        for sweep in &sweeps {
            let found = reader.at(sweep.time.unix_ns + SECOND).unwrap();
            prop_assert_eq!(found.as_ref(), Some(sweep));
        }
        prop_assert_eq!(reader.at(DAY * SECOND - 1).unwrap(), None);
    }
}

#[test]
fn readers_get_events_categories_and_files() {
    let folder = tempfile::tempdir().unwrap();
    let sweeps = made(7, 3);
    let mut writer = record(folder.path(), &sweeps[..2]);
    let process = sweeps[2].processes[0].key;
    let gone = sweeps[1].processes.iter().find(|it| sweeps[2].process(it.key).is_none());
    let gone = gone.map_or(process, |it| it.key);
    let time = sweeps[2].time;
    let kinds = vec![
        SweepEventKind::Started { process, name: Name::new(b"a\xff") },
        SweepEventKind::Exited {
            process: gone,
            name: "b".into(),
            peak_rss: Err(Absent::Vanished),
            last_rss: Bytes::kib(9),
            lived_ns: 77,
        },
        SweepEventKind::ShortLived { count: 10_000 },
        SweepEventKind::OomKill { cgroup: None, kills: 1 },
        SweepEventKind::OomKill { cgroup: Some("/new".into()), kills: 2 },
        SweepEventKind::LimitHit { cgroup: "/a".into(), hits: 3, limit: Ok(None) },
        SweepEventKind::LimitHit { cgroup: "/a".into(), hits: 3, limit: Ok(Some(Bytes::kib(4))) },
        SweepEventKind::ClockSet { by_ns: -5 },
        SweepEventKind::OomReport { explanation: Name::new(b"killed \xff") },
    ];
    let events: Vec<SweepEvent> =
        kinds.into_iter().map(|event| SweepEvent { time, event }).collect();
    writer.append(&sweeps[2], &events).unwrap();
    let sample = CategorySample {
        time,
        process,
        categories: vec![
            CategoryBytes {
                category: "heap".into(),
                rss: Ok(Bytes::kib(9)),
                pss: Err(Absent::Vanished),
                swap: Ok(Bytes::ZERO),
            },
            CategoryBytes {
                category: "stack".into(),
                rss: Ok(Bytes::kib(4)),
                pss: Ok(Bytes::kib(4)),
                swap: Ok(Bytes::ZERO),
            },
        ],
    };
    let triggered = SweepEventKind::Triggered {
        trigger: SweepTrigger::Growth,
        target: TriggerTarget::Process(process),
    };
    let saved = [("snapshot".to_owned(), "x.json".to_owned())];
    writer
        .append_to_last(std::slice::from_ref(&sample), std::slice::from_ref(&triggered), &saved)
        .unwrap();
    let reader = RecordReader::open(folder.path()).unwrap();
    let mut expected = events;
    expected.push(SweepEvent { time, event: triggered });
    assert_eq!(reader.events(time.unix_ns, time.unix_ns), expected);
    assert_eq!(reader.categories(0, u64::MAX), [sample]);
    let saved = reader.saved_files(0, u64::MAX);
    assert_eq!(saved, [(time, "snapshot".to_owned(), folder.path().join("x.json"))]);
}

#[test]
fn a_killed_recorder_continues_and_records_the_gap() {
    let folder = tempfile::tempdir().unwrap();
    let sweeps = made(3, 12);
    // The writer is neither closed nor dropped, as after a SIGKILL. Only the lock is released.
    let copy = tempfile::tempdir().unwrap();
    let writer = record(folder.path(), &sweeps[..8]);
    for entry in fs::read_dir(folder.path()).unwrap().flatten() {
        fs::copy(entry.path(), copy.path().join(entry.file_name())).unwrap();
    }
    drop(writer);
    let mut writer = RecordWriter::open(copy.path(), options()).unwrap();
    for sweep in &sweeps[8..] {
        writer.append(sweep, &[]).unwrap();
    }
    writer.close().unwrap();
    assert_eq!(read_all(copy.path()).0, sweeps);
    let events = RecordReader::open(copy.path()).unwrap().events(0, u64::MAX);
    let gap = SweepEventKind::Gap { from: sweeps[7].time, reason: GapReason::NotRunning };
    assert_eq!(events, [SweepEvent { time: sweeps[8].time, event: gap }]);
}

/// Number of POSIX locks that this process holds on a file.
fn locks(path: &Path) -> usize {
    let (pid, inode) = (std::process::id().to_string(), fs::metadata(path).unwrap().ino());
    let text = fs::read_to_string("/proc/locks").unwrap();
    let words = text.lines().map(|line| line.split_whitespace().collect::<Vec<_>>());
    words.filter(|it| it[4] == pid && it[5].ends_with(&format!(":{inode}"))).count()
}

#[test]
fn a_reader_of_the_same_process_releases_no_lock_of_the_recorder() {
    let folder = tempfile::tempdir().unwrap();
    let writer = record(folder.path(), &made(8, 2));
    let paths = writer.current().unwrap().paths();
    let before: Vec<usize> = paths.iter().map(|path| locks(path)).collect();
    assert_eq!(before, [1, 0, 1], "the database and its shared memory");
    assert_eq!(read_all(folder.path()).0.len(), 2);
    let after: Vec<usize> = paths.iter().map(|path| locks(path)).collect();
    assert_eq!(after, before);
}

#[test]
fn a_folder_has_one_recorder_at_a_time() {
    let folder = tempfile::tempdir().unwrap();
    let writer = RecordWriter::open(folder.path(), options()).unwrap();
    let second = RecordWriter::open(folder.path(), options());
    assert!(matches!(second, Err(StoreError::Locked { .. })));
    drop(writer);
    RecordWriter::open(folder.path(), options()).unwrap();
}

/// Copies a recording, and cuts the file `name` to `length` bytes.
fn cut(folder: &Path, name: &str, length: usize) -> tempfile::TempDir {
    let copy = tempfile::tempdir().unwrap();
    for entry in fs::read_dir(folder).unwrap().flatten() {
        let mut bytes = fs::read(entry.path()).unwrap();
        let file = entry.file_name().into_string().unwrap();
        if file.ends_with("-shm") {
            continue;
        }
        if file == name {
            bytes.truncate(length);
        }
        fs::write(copy.path().join(file), bytes).unwrap();
    }
    copy
}

#[test]
fn a_write_ahead_log_that_is_cut_loses_only_what_was_cut() {
    let folder = tempfile::tempdir().unwrap();
    let sweeps = made(5, 16);
    let mut writer = RecordWriter::open(folder.path(), options()).unwrap();
    let log = folder.path().join("2026-11-25.pagewise.db-wal");
    let mut ends = Vec::new();
    for sweep in &sweeps {
        writer.append(sweep, &[]).unwrap();
        ends.push(usize::try_from(fs::metadata(&log).unwrap().len()).unwrap());
    }
    let whole = *ends.last().unwrap();
    for step in 0..60 {
        let length = whole * step / 59;
        let copy = cut(folder.path(), "2026-11-25.pagewise.db-wal", length);
        let kept = ends.iter().filter(|end| **end <= length).count();
        let next = Numbers(9).sweep(1000);
        let mut writer = RecordWriter::open(copy.path(), options()).unwrap();
        writer.append(&next, &[]).unwrap();
        let (read, _) = read_all(copy.path());
        assert_eq!(read.len(), kept + 1, "cut at {length} of {whole}");
        assert_eq!(read[..kept], sweeps[..kept]);
        assert_eq!(read[kept], next);
    }
}

#[test]
fn a_file_that_is_cut_at_any_byte_opens_and_the_damage_is_marked() {
    let folder = tempfile::tempdir().unwrap();
    let sweeps = made(5, 60);
    record(folder.path(), &sweeps).close().unwrap();
    let name = "2026-11-25.pagewise.db";
    let whole = fs::read(folder.path().join(name)).unwrap().len();
    let mut most = 0;
    for step in 0..80 {
        let length = whole * step / 80;
        let copy = cut(folder.path(), name, length);
        let next = Numbers(9).sweep(1000);
        let mut writer = RecordWriter::open(copy.path(), options()).unwrap();
        writer.append(&next, &[]).unwrap();
        drop(writer);
        let (read, gaps) = read_all(copy.path());
        assert_eq!(read.last(), Some(&next), "cut at {length} of {whole}");
        let kept = &read[..read.len() - 1];
        assert!(kept.len() < sweeps.len());
        assert!(kept.iter().all(|it| sweeps.contains(it)), "cut at {length} of {whole}");
        assert!(!gaps.is_empty() || length == 0, "cut at {length} of {whole}");
        most = most.max(kept.len());
    }
    assert!(most > 20, "{most} of {} sweeps were readable", sweeps.len());
}

#[test]
fn a_clock_that_jumps_loses_no_sweep() {
    let folder = tempfile::tempdir().unwrap();
    let mut sweeps = made(11, 12);
    let day = 86_400 * SECOND;
    for (at, sweep) in sweeps.iter_mut().enumerate() {
        match at {
            3..6 => sweep.time.unix_ns += 3650 * day,
            6..9 => sweep.time.unix_ns -= 2 * day,
            _ => {}
        }
    }
    let mut writer = RecordWriter::open(folder.path(), options()).unwrap();
    for sweep in &sweeps {
        writer.append(sweep, &[]).unwrap();
    }
    writer.close().unwrap();
    assert_eq!(files(folder.path()).unwrap().len(), 3);
    let (mut read, gaps) = read_all(folder.path());
    read.sort_by_key(|it| it.time.boot_ns);
    assert_eq!(read, sweeps);
    assert!(gaps.is_empty());
    let reader = RecordReader::open(folder.path()).unwrap();
    assert_eq!(reader.at(sweeps[7].time.unix_ns).unwrap().as_ref(), Some(&sweeps[7]));
    assert_eq!(reader.at(sweeps[11].time.unix_ns).unwrap().as_ref(), Some(&sweeps[11]));
}

#[test]
fn a_folder_without_a_recording_is_an_error() {
    let folder = tempfile::tempdir().unwrap();
    for path in [folder.path().to_owned(), folder.path().join("none")] {
        assert!(matches!(RecordReader::open(&path), Err(StoreError::Empty { .. })));
    }
    fs::write(folder.path().join("2026-11-25.pagewise.db"), "no database at all").unwrap();
    let reader = RecordReader::open(folder.path()).unwrap();
    assert!(reader.at(u64::MAX).is_err());
    assert!(reader.spans()[0].sweeps.is_err());
    assert!(read_all(folder.path()).0.is_empty());
}
