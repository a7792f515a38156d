//! Time to read a process, against the lower bound (`cat smaps`) and other tools.
//!
//! `cargo bench -p pagewise --bench reading`: runs whole commands, whose output is discarded, on a
//! process with 65,000 mappings, then on a process with 8 GiB of 4 KiB pages (`PAGEWISE_BENCH_GIB`
//! sets another size), then runs `ps` with 300 processes.

#![expect(clippy::print_stdout, reason = "a benchmark reports on standard output")]

mod race;

use race::{RaceCommand, RaceTarget, goal, race};

const PAGEWISE: &str = env!("CARGO_BIN_EXE_pagewise");

fn main() {
    // Every runner is a process of its own. The runner for the procfs crate is this program,
    // started again with `--procfs-crate`.
    if let [_, flag, pid] = &std::env::args().collect::<Vec<_>>()[..]
        && flag == "--procfs-crate"
    {
        return read_with_procfs_crate(pid.parse().expect("a pid"));
    }
    let many = RaceTarget::start("many", &["65000"]);
    let results = race("65,000 mappings", 15, &readers(many.pid()));
    goal(&results, "pagewise explain --full", 1.3, None);
    goal(&results, "pagewise maps --columns all", 1.3, None);
    goal(&results, "pagewise explain --fast", 0.5, Some(16.0));
    drop(many);
    let gib = std::env::var("PAGEWISE_BENCH_GIB").map_or(8, |n| n.parse().expect("a number"));
    let big = RaceTarget::start("big", &[&(gib * 1024_u64).to_string()]);
    let results = race(&format!("{gib} GiB of 4 KiB pages"), 15, &readers(big.pid()));
    goal(&results, "pagewise explain --fast", 1.05, Some(16.0));
    drop(big);
    let _crowd: Vec<RaceTarget> = (0..300).map(|_| RaceTarget::start("big", &["1"])).collect();
    let results = race("every process, 300 more of them", 7, &listers());
    goal(&results, "pagewise ps", 1.2, None);
}

fn readers(pid: u32) -> Vec<RaceCommand> {
    let ours = |what: &str| {
        RaceCommand::new(&format!("pagewise {what}"), &format!("{PAGEWISE} {what} {pid}"))
    };
    let this = std::env::current_exe().expect("a bench knows where it lies");
    vec![
        RaceCommand::new("cat smaps (the floor)", &format!("cat /proc/{pid}/smaps")),
        ours("explain --full"),
        ours("maps --columns all"),
        ours("explain --fast"),
        ours("explain --polite"),
        RaceCommand::new("cat smaps_rollup", &format!("cat /proc/{pid}/smaps_rollup")),
        RaceCommand::new("pmap -X", &format!("pmap -X {pid}")),
        RaceCommand::new("procfs crate", &format!("{} --procfs-crate {pid}", this.display())),
    ]
}

fn listers() -> Vec<RaceCommand> {
    vec![
        RaceCommand::shell(
            "cat every smaps_rollup (the floor)",
            "cat /proc/[0-9]*/smaps_rollup 2>/dev/null; true",
        ),
        RaceCommand::new("pagewise ps", &format!("{PAGEWISE} ps")),
        RaceCommand::new("smem", "smem"),
        RaceCommand::new("ps_mem", "ps_mem"),
    ]
}

fn read_with_procfs_crate(pid: i32) {
    let process = procfs::process::Process::new(pid).expect("the process is there");
    let maps = process.smaps().expect("smaps can be read");
    std::hint::black_box(maps.0.len());
}
