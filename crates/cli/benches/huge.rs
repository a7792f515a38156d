//! Speed of the search for zero pages: against a bare loop of `process_vm_readv` over the same
//! memory, in the same run.
//!
//! `cargo bench -p pagewise --bench huge`: 2 GiB of huge pages, once touched sparsely and once
//! written throughout.

#![expect(clippy::print_stdout, reason = "a benchmark reports on standard output")]

#[allow(dead_code, reason = "races of whole commands are another benchmark's")]
mod race;

use std::time::Instant;

use pagewise_model::thp::{HugePageLook, HugePages};
use pagewise_model::{Mapping, PageSize, Pid};
use pagewise_proc::pages::Pace;
use pagewise_proc::{ProcRoot, huge, maps};
use pagewise_sys::{remote, system};

use race::{RaceTarget, median};

const ROUNDS: usize = 15;
const MIB: u64 = 2048;
/// Number of bytes per read, as in the scan of pagewise.
const PIECE: u64 = 256 << 10;
const SAMPLE: u64 = 24_576;

fn main() {
    for (title, period, share) in [
        ("touched sparsely", "2048", 511.0 / 512.0),
        ("a quarter written", "16", 0.75),
        ("written throughout", "4", 0.0),
    ] {
        let target = RaceTarget::start("huge", &[&MIB.to_string(), period]);
        // A stopped target uses no CPU. Otherwise its thread that checks the written memory would.
        stop(target.pid());
        measure(title, &ScanSubject::for_process(Pid(target.pid())), share);
    }
}

fn stop(pid: u32) {
    let pid = i32::try_from(pid).ok().and_then(rustix::process::Pid::from_raw);
    let stop = rustix::process::Signal::STOP;
    rustix::process::kill_process(pid.expect("a pid"), stop).expect("the process lives");
}

/// The process, and its data that a scan needs.
struct ScanSubject {
    pid: Pid,
    mappings: Vec<Mapping>,
}

impl ScanSubject {
    fn for_process(pid: Pid) -> ScanSubject {
        let text = ProcRoot::live().read(pid, "maps").expect("the process lives");
        ScanSubject { pid, mappings: maps::parse(&text).mappings }
    }

    fn scan(&self, look: HugePageLook) -> (HugePages, f64) {
        let page_size = PageSize::new(system::page_size()).expect("the kernel's page size is one");
        let begin = Instant::now();
        let root = ProcRoot::live();
        let found = huge::scan(&root, self.pid, &self.mappings, page_size, look, &Pace::POLITE);
        let seconds = begin.elapsed().as_secs_f64();
        (found.expect("the process lives").expect("huge pages can be looked at"), seconds)
    }

    /// Reads every huge page without examining it.
    fn bare(&self, huge: &HugePages) -> f64 {
        let mut buffer = vec![0; usize::try_from(PIECE).expect("a piece is small")];
        let begin = Instant::now();
        for page in huge.mappings.iter().flat_map(|mapping| &mapping.pages) {
            for at in (page.start..page.start + huge.huge_size.0).step_by(buffer.len()) {
                let range = at..at + PIECE;
                let read = remote::read(self.pid.0, std::slice::from_ref(&range), &mut buffer);
                assert_eq!(read.expect("the process lives"), buffer.len());
            }
        }
        begin.elapsed().as_secs_f64()
    }
}

fn measure(title: &str, subject: &ScanSubject, share: f64) {
    let (huge, _) = subject.scan(HugePageLook::Exact);
    let gigabytes = huge.read.0 as f64 / 1e9;
    let (mut rates, mut ratios, mut samples, mut errors) = (vec![], vec![], vec![], vec![]);
    for _ in 0..ROUNDS {
        let bare = subject.bare(&huge);
        let (found, exact) = subject.scan(HugePageLook::Exact);
        assert_eq!(found.read, huge.read, "the target does not change");
        let (sample, seconds) = subject.scan(HugePageLook::Sample(SAMPLE));
        let sum = |of: fn(&pagewise_model::thp::HugeMapping) -> u64| -> u64 {
            sample.mappings.iter().map(of).sum()
        };
        let estimate = sum(|m| m.zero) as f64 / sum(|m| m.read) as f64;
        rates.push(gigabytes / exact);
        ratios.push(bare / exact);
        samples.push(seconds * 1e3);
        errors.push((estimate - share).abs() * 100.0);
    }
    let worst = errors.iter().copied().fold(0.0, f64::max);
    println!("\n{gigabytes:.1} GB of huge pages, {title} ({ROUNDS} interleaved rounds)");
    println!(
        "scan of every page      {:>6.2} GB/s, {:.2} of the bare loop's rate",
        median(&rates),
        median(&ratios)
    );
    println!(
        "sample of {SAMPLE} pages  {:>6.1} ms, off by {worst:.2} percentage points at most",
        median(&samples)
    );
    let met = |met| if met { "met" } else { "MISSED" };
    println!("goal {}: >= 0.9 of the bare loop", met(median(&ratios) >= 0.9));
    println!("goal {}: within 1 point in < 50 ms", met(worst <= 1.0 && median(&samples) < 50.0));
}
