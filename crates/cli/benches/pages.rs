//! Time to examine every page: the whole command against one bare walk of `PAGEMAP_SCAN`, in the
//! same run.
//!
//! `cargo bench -p pagewise --bench pages`: 8 GiB of 4 KiB pages (`PAGEWISE_BENCH_GIB` sets another
//! size).

#![expect(clippy::print_stdout, reason = "a benchmark reports on standard output")]

#[allow(dead_code, reason = "races of whole commands are another benchmark's")]
mod race;

use std::fs::File;
use std::process::{Command, Stdio};
use std::time::Instant;

use pagewise_sys::pagemap_scan::{Categories, ScanRegion, ScanRequest, scan};

use race::{RaceTarget, median};

const PAGEWISE: &str = env!("CARGO_BIN_EXE_pagewise");
const ROUNDS: usize = 15;

fn main() {
    let gib = std::env::var("PAGEWISE_BENCH_GIB").map_or(8, |n| n.parse().expect("a number"));
    let target = RaceTarget::start("big", &[&(gib * 1024_u64).to_string()]);
    let pid = target.pid();
    let commands = [vec!["--fast"], vec![], vec!["--by=scan", "--fast"]];
    let mut walls = vec![Vec::new(); commands.len() + 1];
    for round in 0..=ROUNDS {
        let mut wall = vec![bare(pid)];
        wall.extend(commands.iter().map(|options| command(pid, options)));
        if round > 0 {
            walls.iter_mut().zip(wall).for_each(|(walls, wall)| walls.push(wall * 1e3));
        }
    }
    println!("\n{gib} GiB of 4 KiB pages ({ROUNDS} interleaved rounds)");
    println!("{:<34}{:>8.1} ms", "one bare PAGEMAP_SCAN walk", median(&walls[0]));
    for (options, own) in commands.iter().zip(&walls[1..]) {
        let ratios: Vec<f64> = own.iter().zip(&walls[0]).map(|(own, bare)| own / bare).collect();
        let name = format!("pagewise pages {}", options.join(" "));
        println!("{name:<34}{:>8.1} ms{:>8.2}x", median(own), median(&ratios));
        // Only `--fast` has a goal: by default, pagewise sleeps between chunks, which takes wall
        // time.
        if options.first() == Some(&"--fast") {
            let met = if median(&ratios) <= 1.3 { "met" } else { "MISSED" };
            println!("goal {met}: <= 1.3x");
        }
    }
}

/// Walks every page once by `PAGEMAP_SCAN`, with the page categories that the command requests.
fn bare(pid: u32) -> f64 {
    const TOP: u64 = 0x7fff_ffff_f000;
    let pagemap = File::open(format!("/proc/{pid}/pagemap")).expect("the process lives");
    let kinds = Categories::PRESENT | Categories::FILE | Categories::PFNZERO;
    let request = ScanRequest {
        any_of: Categories::PRESENT | Categories::SWAPPED,
        report: kinds | Categories::HUGE | Categories::SWAPPED,
        ..ScanRequest::default()
    };
    let mut regions = vec![ScanRegion::default(); 1 << 16];
    let begin = Instant::now();
    let found = scan(&pagemap, 0..TOP, &request, &mut regions).expect("Linux 6.7 or later");
    assert!(found.walk_end >= TOP, "every page was walked");
    begin.elapsed().as_secs_f64()
}

fn command(pid: u32, options: &[&str]) -> f64 {
    let begin = Instant::now();
    let mut pagewise = Command::new(PAGEWISE);
    pagewise.arg("pages").arg(pid.to_string()).args(options);
    let status = pagewise.stdin(Stdio::null()).stdout(Stdio::null()).status();
    assert!(status.is_ok_and(|status| status.success()));
    begin.elapsed().as_secs_f64()
}
