//! Benchmark of a recording of a week: its size by table, the CPU time to write it, and the time to
//! read the sweep at any time of the week.
//!
//! `cargo bench -p pagewise-store --bench week`: a day with 300 idle processes, and a day with 60
//! busy processes and two short-lived processes in each sweep. Seven copies of the second day are
//! the week. `PAGEWISE_BENCH_SWEEPS` sets another number of sweeps in a day.

#![expect(clippy::print_stdout, reason = "a benchmark reports on standard output")]

use std::fs;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use pagewise_model::fragmentation::BootCounter;
use pagewise_model::settings::PressureFigures;
use pagewise_model::sweep::{
    BytesByPageKind, CgroupUsage, PagesReading, ProcessIdentity, ProcessKey, Sweep, SweepCgroup,
    SweepCost, SweepEvent, SweepEventKind, SweepMachine, SweepProcess, SweepTime,
};
use pagewise_model::{Absent, Bytes, Name, Pid};
use pagewise_store::{RecordReader, RecordWriter, WriterOptions};
use rusqlite::Connection;

const SECOND: u64 = 1_000_000_000;
const INTERVAL: u64 = 5;
/// Time of the first sweep in seconds since 1970: 2026-11-16 00:00 UTC.
const BEGIN: u64 = 1_794_787_200;
const DAY: u64 = 86_400;
const PROCESSES: u32 = 300;
/// Number of times of the week whose sweeps are read.
const MOMENTS: u64 = 60;

/// Parameters of a simulated set of processes.
struct ProcessLoad {
    name: &'static str,
    busy: u32,
    short_lived: u32,
}

const LOADS: [ProcessLoad; 2] = [
    ProcessLoad { name: "300 idle processes", busy: 0, short_lived: 0 },
    ProcessLoad { name: "300 processes, 60 busy, 2 short ones a sweep", busy: 60, short_lived: 2 },
];

fn main() {
    let sweeps = std::env::var("PAGEWISE_BENCH_SWEEPS");
    let sweeps = sweeps.map_or(DAY / INTERVAL, |it| it.parse().expect("a number"));
    let folders = LOADS.map(|load| {
        let folder = tempfile::tempdir().expect("a folder for temporary files");
        record(folder.path(), &load, sweeps);
        folder
    });
    let [_, busy] = &folders;
    week(busy.path());
    moments(busy.path(), sweeps);
}

fn record(folder: &Path, load: &ProcessLoad, sweeps: u64) {
    let mut writer = RecordWriter::open(folder, WriterOptions::default()).expect("a new folder");
    let mut machine = SimulatedMachine::new(load);
    let mut costs = Vec::new();
    for at in 0..sweeps {
        let (sweep, events) = machine.next(at);
        let before = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
        writer.append(&sweep, &events).expect("the disk has space");
        let after = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
        costs.push((after.tv_sec - before.tv_sec) * 1_000_000_000 + after.tv_nsec - before.tv_nsec);
    }
    let file = writer.current().expect("it was written to").path.clone();
    writer.close().expect("the disk has space");
    costs.sort_unstable();
    let per_day = |bytes: u64| (bytes * (DAY / INTERVAL) / sweeps) as f64 / 1e6;
    let size = fs::metadata(&file).map_or(0, |it| it.len());
    println!(
        "{}: {:.1} MB a day, {:.2} ms CPU for a sweep (median of {sweeps}; at most {:.1} ms)",
        load.name,
        per_day(size),
        costs[costs.len() / 2] as f64 / 1e6,
        costs[costs.len() - 1] as f64 / 1e6,
    );
    let connection = Connection::open(&file).expect("it was written above");
    let select = "SELECT name, sum(pgsize), sum(unused), sum(ncell) FROM dbstat GROUP BY name \
                  ORDER BY 2 DESC LIMIT 7";
    let mut statement = connection.prepare(select).expect("SQLite has dbstat");
    let mut rows = statement.query(()).expect("SQLite has dbstat");
    while let Ok(Some(row)) = rows.next() {
        let count = |at| row.get::<_, i64>(at).expect("a count").cast_unsigned();
        let (name, bytes): (String, u64) = (row.get(0).expect("a name"), count(1));
        println!(
            "  {name:<14} {:>6.2} MB a day, {:.0} % unused, {} bytes a cell",
            per_day(bytes),
            count(2) as f64 * 100.0 / bytes as f64,
            (bytes - count(2)) / count(3).max(1),
        );
    }
}

/// Copies the file of the first day to the six days after it.
fn week(folder: &Path) {
    let first = folder.join("2026-11-16.pagewise.db");
    for day in 1..7 {
        let copy = folder.join(format!("2026-11-{}.pagewise.db", 16 + day));
        fs::copy(&first, &copy).expect("the disk has space");
        let ns = (day * DAY * SECOND).cast_signed();
        let connection = Connection::open(&copy).expect("it was copied above");
        let update = "UPDATE sweep SET unix_ns = unix_ns + ?1, boot_ns = boot_ns + ?1";
        connection.execute(update, [ns]).expect("the disk has space");
    }
}

/// Reads sweeps at times that are spread over the week. Each reading opens a new reader, like
/// `pagewise replay --at`.
fn moments(folder: &Path, sweeps: u64) {
    let mut times: Vec<Duration> = (0..MOMENTS)
        .map(|at| {
            let day = at % 7;
            let second = at.wrapping_mul(0x9e37_79b9_7f4a_7c15) % (sweeps * INTERVAL);
            let unix_ns = (BEGIN + day * DAY + second) * SECOND;
            let begin = Instant::now();
            let reader = RecordReader::open(folder).expect("it was recorded above");
            let sweep = reader.at(unix_ns).expect("it was recorded above");
            assert!(sweep.is_some_and(|it| unix_ns - it.time.unix_ns < INTERVAL * SECOND));
            begin.elapsed()
        })
        .collect();
    times.sort_unstable();
    let ms = |at: usize| times[at].as_secs_f64() * 1e3;
    println!(
        "any moment of the week: {:.1} ms (median of {MOMENTS}), {:.1} ms at most: goal 100 ms {}",
        ms(times.len() / 2),
        ms(times.len() - 1),
        if ms(times.len() - 1) <= 100.0 { "met" } else { "MISSED" },
    );
}

/// A simulated machine whose processes change like those of real machines.
struct SimulatedMachine<'a> {
    load: &'a ProcessLoad,
    processes: Vec<SweepProcess>,
    next_pid: u32,
    seed: u64,
}

impl SimulatedMachine<'_> {
    fn new(load: &ProcessLoad) -> SimulatedMachine<'_> {
        let mut machine = SimulatedMachine { load, processes: Vec::new(), next_pid: 1, seed: 1 };
        for _ in 0..PROCESSES {
            let process = machine.start("/usr/lib/daemons/a-daemon", 0);
            machine.processes.push(process);
        }
        machine
    }

    fn below(&mut self, limit: u64) -> u64 {
        self.seed = self
            .seed
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        (self.seed >> 33) % limit
    }

    fn start(&mut self, program: &str, seconds: u64) -> SweepProcess {
        let pid = self.next_pid;
        self.next_pid += 1;
        let size = Bytes::kib(4000 + self.below(100_000));
        let kinds = BytesByPageKind { anonymous: size, file: Bytes::mib(3), shmem: Bytes::ZERO };
        let argument = format!("/var/lib/daemons/configuration-{pid}.conf");
        SweepProcess {
            key: ProcessKey { pid: Pid(pid), start_ticks: seconds * 100 },
            identity: Arc::new(ProcessIdentity {
                name: "a-daemon".into(),
                parent: Pid(pid / 2),
                command: Ok([program, "--config", &argument].map(Name::from).into()),
                exe: Ok(program.into()),
                uid: Ok(0),
                user: Some("root".into()),
                cgroup: Ok("/system.slice/a-daemon.service".into()),
                started_unix_ns: (BEGIN + seconds) * SECOND,
            }),
            state: 'S',
            threads: 4,
            virt: Bytes::gib(1),
            rss: kinds.total(),
            rss_by_kind: Ok(kinds),
            peak_rss: Ok(kinds.total()),
            pss: Ok(kinds),
            uss: Ok(size),
            uss_anonymous: Ok(size),
            pages: PagesReading::Now,
            swap: Ok(Bytes::ZERO),
            swap_shmem: Ok(Bytes::ZERO),
            minor_faults: 900,
            major_faults: 3,
            cpu_ns: 0,
            oom_score: Ok(667),
            oom_score_adj: Ok(0),
        }
    }

    /// Simulates a busy process: its anonymous memory changes slightly.
    fn work(&mut self, at: usize, boot_ns: u64) {
        let (grown, faults) = (self.below(64), self.below(900));
        let cpu_ns = self.below(80) * 10_000_000;
        let is_read = self.below(4) == 0;
        let process = &mut self.processes[at];
        if let Ok(kinds) = &mut process.rss_by_kind {
            kinds.anonymous = Bytes::kib((kinds.anonymous.0 >> 10) + grown - 31);
            process.rss = kinds.total();
            process.peak_rss = process.peak_rss.clone().map(|it| it.max(process.rss));
            if is_read {
                process.pss = Ok(*kinds);
                (process.uss, process.uss_anonymous) = (Ok(kinds.anonymous), Ok(kinds.anonymous));
            }
        }
        process.pages = match (is_read, process.pages) {
            (true, _) => PagesReading::Now,
            (false, PagesReading::Now) => PagesReading::Postponed(boot_ns - INTERVAL * SECOND),
            (false, pages) => pages,
        };
        process.minor_faults += faults;
        process.cpu_ns += cpu_ns;
    }

    fn next(&mut self, at: u64) -> (Sweep, Vec<SweepEvent>) {
        let seconds = at * INTERVAL;
        let boot_ns = (1000 + seconds) * SECOND;
        let time = SweepTime { unix_ns: (BEGIN + seconds) * SECOND, boot_ns };
        let mut events = Vec::new();
        let mut note = |event| events.push(SweepEvent { time, event });
        for ended in self.processes.drain(PROCESSES as usize..) {
            note(SweepEventKind::Exited {
                process: ended.key,
                name: ended.identity.name.clone(),
                peak_rss: ended.peak_rss.clone(),
                last_rss: ended.rss,
                lived_ns: INTERVAL * SECOND,
            });
        }
        for process in &mut self.processes {
            if process.pages == PagesReading::Now {
                process.pages = PagesReading::Unchanged(boot_ns - INTERVAL * SECOND);
            }
        }
        for _ in 0..self.load.short_lived {
            let process = self.start("/usr/bin/a-short-one", seconds);
            let (key, name) = (process.key, process.identity.name.clone());
            note(SweepEventKind::Started { process: key, name });
            self.processes.push(process);
        }
        for at in 0..self.load.busy {
            self.work(at as usize, boot_ns);
        }
        let sweep = Sweep {
            time,
            cost: SweepCost {
                took_ns: 9_000_000 + self.below(1_000_000),
                cpu_ns: 6_000_000 + self.below(1_000_000),
                longest_hold_ns: 90_000 + self.below(1000),
                pages_read: 15,
                postponed: self.below(45),
            },
            processes: self.processes.clone(),
            kernel_threads: 90,
            vanished: 0,
            hidden: 0,
            cgroups: Ok((0..40).map(|number| self.cgroup(number, at)).collect()),
            machine: self.machine(at),
        };
        (sweep, events)
    }

    /// Simulates a cgroup. One in eight cgroups is busy.
    fn cgroup(&mut self, number: u64, at: u64) -> SweepCgroup {
        let work = if number.is_multiple_of(8) { self.below(500) } else { 0 };
        let current = Bytes::kib(50_000 + number + work);
        SweepCgroup {
            path: format!("/system.slice/service-{number:02}.service").as_str().into(),
            current: Ok(current),
            peak: Ok(Bytes::mib(70)),
            limit: Ok(None),
            swap: Ok(Bytes::ZERO),
            usage: Ok(CgroupUsage {
                anonymous: current - Bytes::mib(20),
                file: Bytes::mib(20),
                shmem: Bytes::ZERO,
                inactive_file: Bytes::mib(9),
                slab: Some(Bytes::mib(2)),
            }),
            limit_hits: Ok(0),
            oom_kills: Ok(0),
            pressure: Ok(PressureFigures {
                some_us: if work > 0 { at * 40 } else { 0 },
                ..PressureFigures::default()
            }),
        }
    }

    /// Simulates the machine. One third of the lines of a real `meminfo` and half of the lines of
    /// `vmstat` change in 5 s.
    fn machine(&mut self, at: u64) -> SweepMachine {
        let mut counters = |count: u64, one_in: u64, start: &str| {
            let counter = |number: u64| BootCounter {
                name: format!("{start}{number}").as_str().into(),
                count: match number.is_multiple_of(one_in) {
                    true => (1_000_000 + at * 700 + self.below(600)) << 10,
                    false => 4 << 20,
                },
            };
            Ok((0..count).map(counter).collect())
        };
        SweepMachine {
            meminfo: counters(54, 3, "Memory"),
            vmstat: counters(60, 2, "pgevent_"),
            memory_pressure: Ok(PressureFigures::default()),
            io_pressure: Err(Absent::NotSupported("the simulation has none".into())),
            forks: Ok(at * 3),
        }
    }
}
