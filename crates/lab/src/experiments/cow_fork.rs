//! Copy-on-write: a child of `fork` has the memory of its parent as of the fork, and the kernel
//! copies only pages that are written afterwards. Databases use this for snapshots.

use std::hint::black_box;
use std::io;
use std::thread;
use std::time::{Duration, Instant};

use pagewise_model::histogram::TimeHistogram;
use pagewise_model::lab::{ExperimentClaim, Plot};
use pagewise_model::report::{Scale, AxisUnit};
use pagewise_model::{Bytes, SmapsCounter};
use pagewise_model::units::nanoseconds;
use pagewise_labmem::fork::{ForkedChild, fork};
use pagewise_sys::madvise::Advice;
use pagewise_labmem::mapping::{OwnedMapping, MapRequest};
use pagewise_sys::region::AlignedRegion;

use super::RunExperiment;
use crate::bench::{count, nanos};
use crate::error::While;
use crate::results::Explained;
use crate::{ExperimentAbout, Bench, LabError, Need, ParameterAbout, QuantityAbout, ExperimentResults};

/// See [`ABOUT`].
pub(super) struct CowFork;

const HUGE: usize = 2 << 20;

static ABOUT: ExperimentAbout = ExperimentAbout {
    name: "cow-fork",
    question: "What does a snapshot by fork cost, at the fork and afterwards?",
    expectation: "fork copies page tables, not pages: with huge pages there are 512 times fewer entries to copy. Both have every \
        page read-only then; the first write of either is a fault that copies the page, so that memory grows by what is \
        written while the snapshot lives, and writes are slower for so long. Since Linux 5.8 a write to a huge page that is \
        shared so splits it and copies 4 KiB; before, it copied 2 MiB.",
    figures: "here: 2.4 to 2.8 µs for each page of 4 KiB that is written after a fork",
    needs: &[Need::Thp],
    parameters: &[ParameterAbout {
        name: "mib",
        meaning: "the memory of the parent, in MiB",
        values: [64, 256, 2048],
    }],
    quantities: &[
        QuantityAbout { name: "first", unit: AxisUnit::Nanos, meaning: "the first write to a page after the fork" },
        QuantityAbout { name: "second", unit: AxisUnit::Nanos, meaning: "the second write to the same pages" },
        QuantityAbout { name: "times", unit: AxisUnit::Number, meaning: "time of the first write divided by that of the second" },
        QuantityAbout { name: "fork", unit: AxisUnit::Nanos, meaning: "fork itself, for each MiB of the parent" },
        QuantityAbout { name: "faults", unit: AxisUnit::Number, meaning: "page faults for each page that was written" },
        QuantityAbout { name: "copied", unit: AxisUnit::Bytes, meaning: "memory that was copied, for each page that was written" },
        QuantityAbout { name: "quiet", unit: AxisUnit::Nanos, meaning: "a write of a busy server, clock included" },
        QuantityAbout { name: "busy", unit: AxisUnit::Nanos, meaning: "the same while a snapshot is read" },
        QuantityAbout { name: "slower", unit: AxisUnit::Number, meaning: "that time divided by the time of an undisturbed write" },
        QuantityAbout { name: "slowest", unit: AxisUnit::Nanos, meaning: "99.9th percentile of the time of a write during that time" },
        QuantityAbout { name: "grown", unit: AxisUnit::Share, meaning: "by which share of itself the memory of both grew then" },
        QuantityAbout { name: "changed", unit: AxisUnit::Count, meaning: "snapshots that were not as memory was at the fork" },
    ],
    arms: &["4 KiB pages", "huge pages"],
    runs: [5, 7, 7],
    timed: true,
    memory: |parameters| Bytes::mib(2 * parameters.get("mib") + 16),
};

/// Content of a page at the time of the snapshot, and the value written afterwards.
const OLD: u8 = 1;
const NEW: u8 = 2;

/// Number of forks, of which only the fastest is recorded: the kernel chooses at random which of
/// the two processes gets the CPU.
const FORKS: usize = 5;

/// After the first fork, one page in this number of pages is written.
const WRITTEN: usize = 4;

/// Messages from the parent to the child: indices of bytes in shared memory.
const READ: usize = 0;
const END: usize = 1;

/// Maximum lifetime of a snapshot, in case its parent is killed.
const MAX_SNAPSHOT_LIFE: Duration = Duration::from_secs(300);

/// Maps memory in pages of the requested size, and writes the byte `OLD` to each page.
fn memory(length: usize, page: usize, huge: bool) -> Result<AlignedRegion, LabError> {
    let mut memory = AlignedRegion::map(length, HUGE).while_("cannot map memory")?;
    let advice = if huge { Advice::HugePage } else { Advice::NoHugePage };
    memory.advise(advice).while_("madvise")?;
    memory.bytes().iter_mut().step_by(page).for_each(|byte| *byte = OLD);
    Ok(memory)
}

/// A child process with the memory as of the fork.
struct ForkedSnapshot {
    told: OwnedMapping,
    child: ForkedChild,
}

impl ForkedSnapshot {
    /// Forks a child that reads all memory on a message, and ends on another message. Its exit
    /// status is 1 if it found a changed byte.
    fn fork_from(memory: &mut AlignedRegion, page: usize) -> io::Result<ForkedSnapshot> {
        let told = OwnedMapping::map(&MapRequest { length: page, shared: true, ..MapRequest::default() })?;
        let wait = |what| {
            let begin = Instant::now();
            while told.read(what) == 0 && begin.elapsed() < MAX_SNAPSHOT_LIFE {
                thread::sleep(Duration::from_micros(200));
            }
        };
        let child = fork(|| {
            wait(READ);
            let is_old = memory.bytes().iter().step_by(page).all(|byte| *byte == OLD);
            wait(END);
            u8::from(!is_old)
        })?;
        Ok(ForkedSnapshot { told, child })
    }

    fn read(&self) {
        self.told.write(READ, 1);
    }

    /// Ends the child. Returns 1 if the child found a changed byte, else 0.
    fn end(self) -> Result<f64, LabError> {
        self.told.write(READ, 1);
        self.told.write(END, 1);
        self.child.wait().map(f64::from).while_("cannot wait for the child")
    }
}

/// Writes a byte to each page of `pages`. Returns the nanoseconds per page.
fn write(memory: &mut AlignedRegion, pages: &[usize], byte: u8) -> f64 {
    let bytes = memory.bytes();
    let begin = Instant::now();
    pages.iter().for_each(|at| bytes[*at] = byte);
    black_box(bytes);
    nanos(begin) / count(pages.len() as u64)
}

/// Sequence of the pages that a busy server writes: four in five writes go to a fifth of the pages.
fn requests(length: usize, page: usize) -> Vec<usize> {
    let mut random = fastrand::Rng::with_seed(2);
    let pages = length / page;
    let mut request = || {
        let favorite = random.u8(..5) > 0;
        let place = random.usize(..if favorite { pages.div_ceil(5) } else { pages });
        // The multiplication distributes the frequently written pages over the memory: a factor
        // that is coprime to the number of pages reaches all pages.
        place * 7919 % pages * page
    };
    (0..pages).map(|_| request()).collect()
}

/// Serves requests one by one. Returns the mean nanoseconds per request, and a histogram of the
/// times.
fn serve(memory: &mut AlignedRegion, requests: &[usize], byte: u8) -> (f64, TimeHistogram) {
    let mut times = TimeHistogram::ready();
    let bytes = memory.bytes();
    let begin = Instant::now();
    for at in requests {
        let begin = Instant::now();
        bytes[*at] = byte;
        black_box(&mut *bytes);
        times.note(nanoseconds(begin.elapsed()));
    }
    (nanos(begin) / count(requests.len() as u64), times)
}

impl RunExperiment for CowFork {
    fn about(&self) -> &'static ExperimentAbout {
        &ABOUT
    }

    fn run(&self, arm: &str, bench: &mut Bench) -> Result<(), LabError> {
        let (length, page, huge) = (bench.size("mib") << 20, bench.page(), arm == "huge pages");
        let not_as_it_was = pages_written_after_a_fork(bench, memory(length, page, huge)?)?
            + requests_during_a_snapshot(bench, memory(length, page, huge)?)?;
        bench.record("changed", not_as_it_was);
        Ok(())
    }

    fn judge(&self, results: &ExperimentResults<'_>) -> Vec<ExperimentClaim> {
        let both = ABOUT.arms.iter().copied();
        let claims = both.flat_map(|arm| {
            [
                results
                    .claim(format!("{arm}: each page that is written after the fork is one fault"), "only pages written are copied")
                    .near(1.0, 0.02, results.value("faults", arm)),
                results
                    .claim(format!("{arm}: it copies one base page"), "2 MiB before Linux 5.8")
                    .near(count(pagewise_sys::system::page_size()), 0.02, results.value("copied", arm)),
                results
                    .claim(format!("{arm}: the first write takes longer than the second"), "2.4 to 2.8 µs for a page")
                    .at_least(2.0, results.value("times", arm)),
                results
                    .claim(format!("{arm}: the snapshot stays as memory was at the fork"), "")
                    .at_most(0.0, results.value("changed", arm)),
                results
                    .claim(format!("{arm}: while there is a snapshot, a server that writes is slower"), "")
                    .at_least(1.1, results.value("slower", arm)),
            ]
        });
        let cheaper = results
            .claim("fork is faster with huge pages", "a 512th of the page-table entries")
            .more_than(2.0, results.ratio("fork", "4 KiB pages", "huge pages"))
            .because("for a small parent, page tables are not the largest cost of fork");
        claims.chain([cheaper]).collect()
    }

    fn plots(&self) -> Vec<Plot> {
        let bars = |quantity: &'static str| Plot::Bars { quantity: quantity.into(), scale: Scale::Linear };
        let slower = Plot::Curves {
            curve: "one write in n during a snapshot".into(),
            x: ("n".into(), AxisUnit::Count, Scale::Log),
            y: ("takes longer than".into(), AxisUnit::Nanos, Scale::Log),
        };
        vec![bars("fork"), bars("first"), slower]
    }
}

/// Forks, then writes to some pages twice. Returns 1 if the snapshot changed, else 0.
fn pages_written_after_a_fork(bench: &mut Bench, mut memory: AlignedRegion) -> Result<f64, LabError> {
    let (length, page) = (memory.bytes().len(), bench.page());
    let mut pages: Vec<usize> = (0..length).step_by(page).collect();
    fastrand::Rng::with_seed(1).shuffle(&mut pages);
    pages.truncate(pages.len() / WRITTEN);
    let all = count(pages.len() as u64);

    let mut fastest = f64::INFINITY;
    for _ in 0..FORKS {
        let begin = Instant::now();
        let snapshot = ForkedSnapshot::fork_from(&mut memory, page).while_("cannot fork")?;
        fastest = fastest.min(nanos(begin));
        snapshot.end()?;
    }
    bench.record("fork", fastest / count((length >> 20) as u64));

    let snapshot = ForkedSnapshot::fork_from(&mut memory, page).while_("cannot fork")?;

    let (own, faults) = (bench.memory(SmapsCounter::PrivateDirty)?, bench.usage().minor_faults);
    let first = write(&mut memory, &pages, NEW);
    bench.record("faults", count(bench.usage().minor_faults - faults) / all);
    // Copied pages are private; all others are still shared with the child.
    bench.record("copied", (bench.memory(SmapsCounter::PrivateDirty)? - own) / all);
    let second = write(&mut memory, &pages, NEW);
    bench.record("first", first);
    bench.record("second", second);
    bench.record("times", first / second);
    snapshot.end()
}

/// Serves requests without a snapshot, and then while a snapshot is read. Returns 1 if the snapshot
/// changed, else 0.
fn requests_during_a_snapshot(bench: &mut Bench, mut memory: AlignedRegion) -> Result<f64, LabError> {
    let requests = requests(memory.bytes().len(), bench.page());
    let (quiet, _) = serve(&mut memory, &requests, OLD);
    let snapshot = ForkedSnapshot::fork_from(&mut memory, bench.page()).while_("cannot fork")?;
    let own = bench.memory(SmapsCounter::PrivateDirty)?;
    snapshot.read();
    let (busy, times) = serve(&mut memory, &requests, NEW);
    let grown = bench.memory(SmapsCounter::PrivateDirty)? - own;
    bench.record("grown", grown / count(memory.bytes().len() as u64));
    bench.record("quiet", quiet);
    bench.record("busy", busy);
    bench.record("slower", busy / quiet);
    let time = times.percentile(0.999);
    time.into_iter().for_each(|time| bench.record("slowest", count(time)));
    for (one_in, time) in times.tail() {
        bench.point("one write in n during a snapshot", one_in, count(time));
    }
    snapshot.end()
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;

    #[test]
    fn four_writes_in_five_go_to_a_fifth_of_the_pages() {
        const PAGE: usize = 4096;
        let mut writes: BTreeMap<usize, usize> = BTreeMap::new();
        requests(1000 * PAGE, PAGE).into_iter().for_each(|at| *writes.entry(at).or_default() += 1);
        assert!(writes.keys().all(|at| at % PAGE == 0 && *at < 1000 * PAGE));
        let mut often: Vec<usize> = writes.into_values().collect();
        often.sort_by(|a, b| b.cmp(a));
        let favorites: usize = often[..200].iter().sum();
        assert!((800..900).contains(&favorites), "{favorites} of 1000");
    }
}
