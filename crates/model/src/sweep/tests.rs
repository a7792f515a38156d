//! Tests of sweeps and of the differences between two sweeps.

use super::*;

fn process(pid: u32, start_ticks: u64, rss: u64) -> SweepProcess {
    SweepProcess {
        key: ProcessKey { pid: Pid(pid), start_ticks },
        identity: Arc::new(ProcessIdentity {
            name: "cat".into(),
            parent: Pid(1),
            command: Ok(vec!["cat".into()]),
            exe: Err(Absent::NotPermitted("root".into())),
            uid: Ok(7),
            user: None,
            cgroup: Ok("/a".into()),
            started_unix_ns: 5,
        }),
        state: 'S',
        threads: 1,
        virt: Bytes::mib(9),
        rss: Bytes(rss),
        rss_by_kind: Err(Absent::Vanished),
        peak_rss: Ok(Bytes(rss)),
        pss: Ok(BytesByPageKind { anonymous: Bytes(rss), ..BytesByPageKind::default() }),
        uss: Ok(Bytes(rss)),
        uss_anonymous: Ok(Bytes(rss)),
        pages: PagesReading::Now,
        swap: Err(Absent::NotInThisKernel("2.6.34".into())),
        swap_shmem: Err(Absent::NotInThisKernel("2.6.34".into())),
        minor_faults: rss,
        major_faults: 0,
        cpu_ns: rss,
        oom_score: Ok(666),
        oom_score_adj: Ok(0),
    }
}

fn sweep(seconds: u64, processes: Vec<SweepProcess>) -> Sweep {
    let counter = |name: &str, count| BootCounter { name: name.into(), count };
    Sweep {
        time: SweepTime { unix_ns: 0, boot_ns: seconds * 1_000_000_000 },
        cost: SweepCost::default(),
        processes,
        kernel_threads: 1,
        vanished: 0,
        hidden: 0,
        cgroups: Err(Absent::NotSupported("no memory cgroup is mounted here".into())),
        machine: SweepMachine {
            meminfo: Ok(vec![counter("MemAvailable", 1000 - seconds)]),
            vmstat: Ok(vec![counter("pgfault", seconds * 7), counter("oom_kill", 0)]),
            memory_pressure: Ok(PressureFigures {
                some_us: seconds * 250_000,
                ..PressureFigures::default()
            }),
            io_pressure: Err(Absent::NotInThisKernel("4.20".into())),
            forks: Ok(3),
        },
    }
}

#[test]
fn rates_follow_from_two_sweeps() {
    let before = sweep(10, vec![process(1, 1, 100), process(2, 1, 5), process(3, 1, 7)]);
    let after = sweep(20, vec![process(1, 1, 160), process(2, 9, 5)]);
    let delta = SweepDelta::between(&before, &after);
    assert_eq!(delta.elapsed_ns, 10_000_000_000);
    let first = &delta.processes[0];
    assert_eq!((first.rss_per_minute, first.minor_faults_per_second), (360.0, 6.0));
    assert_eq!(first.pss_per_minute, Ok(360.0));
    assert!(first.swap_per_minute.is_err());
    let key = |pid, start_ticks| ProcessKey { pid: Pid(pid), start_ticks };
    assert_eq!(delta.started, [key(2, 9)]);
    assert_eq!(delta.ended, [key(2, 1), key(3, 1)]);
    assert_eq!(delta.machine.available_per_minute, Ok(-60.0));
    assert_eq!(delta.machine.memory_stalled, Ok(0.25));
    assert!(delta.machine.io_stalled.is_err());
    assert_eq!(delta.machine.vmstat[0].per_second, 7.0);
    assert!(delta.process(key(1, 1)).is_some());
}

#[test]
fn a_postponed_reading_is_not_a_growth_of_0() {
    let before = sweep(1, vec![process(1, 1, 100)]);
    let mut after = sweep(2, vec![process(1, 1, 100)]);
    after.processes[0].pages = PagesReading::Postponed(1_000_000_000);
    let delta = SweepDelta::between(&before, &after);
    assert!(delta.processes[0].pss_per_minute.is_err());
}

#[test]
fn two_sweeps_at_one_time_have_no_rates() {
    let before = sweep(1, vec![process(1, 1, 100)]);
    let after = sweep(1, vec![process(1, 1, 200)]);
    let delta = SweepDelta::between(&before, &after);
    assert_eq!(delta.processes[0].rss_per_minute, 0.0);
}

#[test]
fn a_sweep_and_its_events_survive_json() {
    let before = sweep(1, vec![process(1, 1, 100)]);
    let json = serde_json::to_string(&before).unwrap();
    assert_eq!(serde_json::from_str::<Sweep>(&json).unwrap(), before, "{json}");
    for event in [
        SweepEventKind::ShortLived { count: 7 },
        SweepEventKind::Gap { from: before.time, reason: GapReason::Reboot },
        SweepEventKind::Triggered {
            trigger: SweepTrigger::Growth,
            target: TriggerTarget::Process(before.processes[0].key),
        },
        SweepEventKind::NotSaved {
            kind: PostMortemKind::Diagnosis,
            process: before.processes[0].key,
            reason: Name::new(b"\xff\x1b"),
        },
    ] {
        let event = SweepEvent { time: before.time, event };
        let json = serde_json::to_string(&event).unwrap();
        assert_eq!(serde_json::from_str::<SweepEvent>(&json).unwrap(), event, "{json}");
    }
}
