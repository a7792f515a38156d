//! Synthetic sweeps.

use std::sync::Arc;

use pagewise_exporter::{
    ContainerSources, ExportedSweep, Exporter, ExporterOptions, GroupRules, SeriesLimits,
};
use pagewise_model::fragmentation::BootCounter;
use pagewise_model::settings::PressureFigures;
use pagewise_model::sweep::{
    BytesByPageKind, CgroupUsage, PagesReading, ProcessIdentity, ProcessKey, Sweep, SweepCgroup,
    SweepCost, SweepMachine, SweepProcess, SweepTime,
};
use pagewise_model::{Absent, Bytes, Name, Pid};

/// A process with `mib` MiB of anonymous memory.
pub(crate) fn process(pid: u32, parent: u32, command: &[&str], mib: u64) -> SweepProcess {
    let words: Vec<Name> = command.iter().map(|it| Name::new(it.as_bytes())).collect();
    let base = command.first().map_or("", |it| it.rsplit('/').next().unwrap_or_default());
    let anonymous = BytesByPageKind { anonymous: Bytes::mib(mib), ..BytesByPageKind::default() };
    SweepProcess {
        key: ProcessKey { pid: Pid(pid), start_ticks: u64::from(pid) },
        identity: Arc::new(ProcessIdentity {
            name: Name::new(&base.as_bytes()[..base.len().min(15)]),
            parent: Pid(parent),
            command: Ok(words),
            exe: Err(Absent::NotPermitted("root".into())),
            uid: Ok(1000),
            user: Some("ann".into()),
            cgroup: Ok("/system.slice/web.service".into()),
            started_unix_ns: 1_709_208_000_000_000_000,
        }),
        state: 'S',
        threads: 2,
        virt: Bytes::mib(mib * 2),
        rss: Bytes::mib(mib),
        rss_by_kind: Ok(anonymous),
        peak_rss: Ok(Bytes::mib(mib)),
        pss: Ok(anonymous),
        uss: Ok(Bytes::mib(mib)),
        uss_anonymous: Ok(Bytes::mib(mib)),
        pages: PagesReading::Now,
        swap: Ok(Bytes(0)),
        swap_shmem: Ok(Bytes(0)),
        minor_faults: 100,
        major_faults: 1,
        cpu_ns: 1_500_000_000,
        oom_score: Ok(666),
        oom_score_adj: Ok(0),
    }
}

/// Replaces the `comm` of a process.
pub(crate) fn named(mut process: SweepProcess, name: &[u8]) -> SweepProcess {
    let mut identity = ProcessIdentity::clone(&process.identity);
    identity.name = Name::new(name);
    process.identity = Arc::new(identity);
    process
}

/// A cgroup with a limit.
pub(crate) fn cgroup(path: &str, mib: u64, limit: Option<u64>) -> SweepCgroup {
    SweepCgroup {
        path: path.into(),
        current: Ok(Bytes::mib(mib)),
        peak: Err(Absent::NotInThisKernel("5.19".into())),
        limit: Ok(limit.map(Bytes::mib)),
        swap: Ok(Bytes(0)),
        usage: Ok(CgroupUsage {
            anonymous: Bytes::mib(mib),
            file: Bytes::mib(3),
            shmem: Bytes::mib(1),
            inactive_file: Bytes::mib(1),
            slab: None,
        }),
        limit_hits: Ok(3),
        oom_kills: Ok(1),
        pressure: Ok(PressureFigures { some_us: 2_500_000, ..PressureFigures::default() }),
    }
}

/// A sweep at a time.
pub(crate) fn sweep(
    seconds: u64,
    processes: Vec<SweepProcess>,
    cgroups: Vec<SweepCgroup>,
) -> Sweep {
    let counter = |name: &str, count| BootCounter { name: name.into(), count };
    Sweep {
        time: SweepTime {
            unix_ns: 1_709_294_400_000_000_000 + seconds * 1_000_000_000,
            boot_ns: seconds * 1_000_000_000,
        },
        cost: SweepCost { took_ns: 9_000_000, cpu_ns: 5_000_000, ..SweepCost::default() },
        processes,
        kernel_threads: 4,
        vanished: 1,
        hidden: 0,
        cgroups: Ok(cgroups),
        machine: SweepMachine {
            meminfo: Ok(vec![counter("MemAvailable", 1 << 30), counter("HugePages_Total", 0)]),
            vmstat: Ok(vec![counter("pgfault", 7), counter("oom_kill", 0)]),
            memory_pressure: Ok(PressureFigures::default()),
            io_pressure: Err(Absent::NotInThisKernel("4.20".into())),
            forks: Ok(3),
        },
    }
}

/// An exporter with these rules and limits.
pub(crate) fn exporter(rules: GroupRules, limits: SeriesLimits) -> Exporter {
    Exporter::new(ExporterOptions { rules, limits, containers: ContainerSources::default() })
}

/// The metrics of one sweep with default rules.
pub(crate) fn export(sweep: Sweep) -> ExportedSweep {
    exporter(GroupRules::by_comm(), SeriesLimits::default()).export(sweep)
}
