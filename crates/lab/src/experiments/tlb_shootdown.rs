//! Unmapping pages of a process whose threads run on other CPUs: each of these CPUs must be
//! interrupted, and the caller waits for it.

use std::sync::Barrier;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::thread;
use std::time::{Duration, Instant};

use pagewise_measure::pin::PinnedThread;
use pagewise_model::{Absent, Bytes};
use pagewise_model::lab::{ExperimentClaim, Plot};
use pagewise_model::report::{Scale, AxisUnit};
use pagewise_model::units::nanoseconds;
use pagewise_proc::interrupts;
use pagewise_sys::madvise::Advice;
use pagewise_labmem::mapping::{PageAccess, OwnedMapping, MapRequest};

use super::RunExperiment;
use crate::error::While;
use crate::results::Explained;
use crate::{ExperimentAbout, Bench, LabError, Need, ParameterAbout, QuantityAbout, ExperimentResults};

/// See [`ABOUT`].
pub(super) struct TlbShootdown;

static ABOUT: ExperimentAbout = ExperimentAbout {
    name: "tlb-shootdown",
    question: "What does unmapping a page cost while other threads of the process run?",
    expectation: "Alone, the kernel flushes the TLB of its own CPU. Where another thread of the process runs, its CPU may have \
        the page in its TLB: it gets an interrupt, and the caller waits for the answer. A thread that sleeps costs next to \
        nothing: its CPU flushes when it comes back.",
    figures: "2 threads on 2 CPUs: mean 1,398 ns in the flush; 8: 3,891 ns; 14: 6,610 ns (1 M × madvise(DONTNEED) each)",
    needs: &[Need::Cpus(2)],
    parameters: &[ParameterAbout {
        name: "calls",
        meaning: "number of times a page is touched and unmapped",
        values: [20_000, 200_000, 1_000_000],
    }],
    quantities: &[
        QuantityAbout { name: "call", unit: AxisUnit::Number, meaning: "nanoseconds for taking a page away, while the sibling does what it should" },
        QuantityAbout { name: "slowest", unit: AxisUnit::Number, meaning: "nanoseconds of the slowest of a thousand such calls" },
        QuantityAbout {
            name: "met",
            unit: AxisUnit::Number,
            meaning: "share of such calls; a sibling that should run waits for its CPU on a busy machine",
        },
        QuantityAbout { name: "ipis", unit: AxisUnit::Number, meaning: "interrupts for TLB shootdowns on all CPUs, for each such call" },
    ],
    arms: &["alone", "sleeping sibling", "running sibling", "mprotect, running sibling", "munmap, running sibling"],
    runs: [5, 7, 7],
    timed: true,
    memory: |_| Bytes::mib(1),
};

/// Activity of another thread during the measurement.
#[derive(Clone, Copy, PartialEq)]
enum Sibling {
    None,
    Sleeps,
    Runs,
}

/// Unmaps a page that was just touched, or briefly removes its write permission.
fn take_away(how: &str, page: usize, mapping: &OwnedMapping) -> std::io::Result<()> {
    match how {
        "mprotect" => {
            mapping.protect(0..page, PageAccess::Read)?;
            mapping.protect(0..page, PageAccess::Write)
        }
        _ => mapping.advise(0..page, Advice::DontNeed),
    }
}

impl RunExperiment for TlbShootdown {
    fn about(&self) -> &'static ExperimentAbout {
        &ABOUT
    }

    fn run(&self, arm: &str, bench: &mut Bench) -> Result<(), LabError> {
        let (page, calls) = (bench.page(), bench.size("calls"));
        let (how, sibling) = arm.split_once(", ").unwrap_or(("madvise", arm));
        let sibling = match sibling {
            "alone" => Sibling::None,
            "sleeping sibling" => Sibling::Sleeps,
            _ => Sibling::Runs,
        };
        let (ready, done) = (Barrier::new(2), AtomicBool::new(false));
        let beats = AtomicU64::new(0);
        let mut timed = Vec::with_capacity(calls);
        let before = shootdowns();
        thread::scope(|scope| {
            let _pinned = PinnedThread::to(0)?;
            if sibling != Sibling::None {
                scope.spawn(|| be_a_sibling(sibling, &ready, &done, &beats));
                ready.wait();
            }
            let all = take_often((how, sibling), (page, calls), &beats, &mut timed);
            done.store(true, Relaxed);
            all
        })?;
        let ipis = shootdowns().zip(before).map(|(after, before)| after.saturating_sub(before));
        let mut times = timed;
        times.sort_unstable();
        let met = crate::bench::count(times.len() as u64);
        bench.record("met", met / crate::bench::count(calls as u64));
        let Some(slowest) = times.len().checked_sub(1 + times.len() / 1000) else {
            let busy = || Absent::NotSupported("the sibling ran during none of the calls: its CPU was busy".into());
            ["call", "slowest", "ipis"].into_iter().for_each(|quantity| bench.missing(quantity, busy()));
            return Ok(());
        };
        let each = |n: u64| crate::bench::count(n) / met;
        bench.record("call", each(times.iter().sum()));
        bench.record("slowest", crate::bench::count(times[slowest]));
        match ipis {
            Some(ipis) => bench.record("ipis", each(ipis)),
            None => bench.missing("ipis", Absent::NotSupported("/proc/interrupts has no row TLB".into())),
        }
        Ok(())
    }

    fn judge(&self, results: &ExperimentResults<'_>) -> Vec<ExperimentClaim> {
        let ratio = |over| results.ratio("call", over, "alone");
        vec![
            results
                .claim("A sibling that runs makes it slower", "1,398 ns a flush with 2 threads")
                .more_than(1.5, ratio("running sibling"))
                .because("between the CPUs of a virtual machine an interrupt costs what the hypervisor makes of it"),
            results
                .claim("because its CPU is interrupted", "an interrupt for each call that finds it running")
                .at_least(0.5, results.value("ipis", "running sibling")),
            results
                .claim("A sibling that sleeps is not interrupted", "")
                .at_most(0.1, results.value("ipis", "sleeping sibling")),
            results
                .claim("mprotect pays as madvise does", "")
                .more_than(1.5, ratio("mprotect, running sibling")),
        ]
    }

    fn plots(&self) -> Vec<Plot> {
        vec![
            Plot::Bars { quantity: "call".into(), scale: Scale::Linear },
            Plot::Bars { quantity: "ipis".into(), scale: Scale::Linear },
        ]
    }
}

/// Touches a page and unmaps it, again and again, and records the time of each unmapping. If the
/// sibling should run, only calls during which its counter changed are recorded: on a busy machine
/// the sibling waits for its CPU most of the time, and the kernel interrupts no CPU on which the
/// sibling does not run.
fn take_often(
    (how, sibling): (&str, Sibling),
    (page, calls): (usize, usize),
    beats: &AtomicU64,
    times: &mut Vec<u64>,
) -> Result<(), LabError> {
    let map = || OwnedMapping::map(&MapRequest { length: page, ..MapRequest::default() }).while_("cannot map a page");
    let mut mapping = map()?;
    for _ in 0..calls {
        mapping.touch(0..page, page);
        // For munmap, only the unmapping is timed.
        let next = if how == "munmap" { Some(map()?) } else { None };
        let before = beats.load(Relaxed);
        let begin = Instant::now();
        match next {
            Some(next) => mapping = next,
            None => take_away(how, page, &mapping).while_("cannot unmap a page")?,
        }
        let time = nanoseconds(begin.elapsed());
        if sibling != Sibling::Runs || beats.load(Relaxed) != before {
            times.push(time);
        }
    }
    Ok(())
}

/// Runs in another thread of the process, on another CPU. Counts in `beats` while it runs.
fn be_a_sibling(sibling: Sibling, ready: &Barrier, done: &AtomicBool, beats: &AtomicU64) {
    let _pinned = PinnedThread::to(1);
    ready.wait();
    while !done.load(Relaxed) {
        match sibling {
            Sibling::Sleeps => thread::sleep(Duration::from_millis(5)),
            _ => _ = beats.fetch_add(1, Relaxed),
        }
    }
}

/// Number of TLB shootdown interrupts so far, on all CPUs.
fn shootdowns() -> Option<u64> {
    interrupts::parse(&std::fs::read("/proc/interrupts").ok()?, "TLB")
}
