//! One walk over memory of every kind: the source of the memory decides when pages fault, and if
//! written pages go to the disk.

use std::cell::Cell;
use std::fs::File;
use std::hint::black_box;
use std::io;
use std::time::Instant;

use pagewise_model::Bytes;
use pagewise_model::lab::{ExperimentClaim, Plot};
use pagewise_model::report::{Scale, AxisUnit};
use pagewise_sim::geometry::TlbPageSize;
use pagewise_sim::workload::{self, Order};
use pagewise_sys::launch::KernelUsage;
use pagewise_labmem::mapping::{OwnedMapping, MapRequest};
use pagewise_sys::thp;

use super::RunExperiment;
use crate::bench::{count, nanos};
use crate::error::While;
use crate::results::Explained;
use crate::{files, simulated};
use crate::{ExperimentAbout, Bench, LabError, ParameterAbout, QuantityAbout, ExperimentResults};

/// See [`ABOUT`].
pub(super) struct MemAccessExperiment;

/// Every kind of memory, walked in both orders. The conditions `private` and `shared` map a file.
macro_rules! in_both_orders {
    ($($kind:literal)*) => { &[$(concat!($kind, ", random"), concat!($kind, ", sequential"),)*] };
}

const ARMS: &[&str] = in_both_orders! {
    "malloc"
    "malloc+fill"
    "anonymous"
    "anonymous+fill"
    "anonymous+populate"
    "anonymous+populate+fill"
    "private"
    "private+fill"
    "private+populate"
    "private+populate+fill"
    "shared"
    "shared+fill"
    "shared+populate"
    "shared+populate+fill"
    "simulated"
};

static ABOUT: ExperimentAbout = ExperimentAbout {
    name: "mem-access",
    question: "What does the same walk over memory cost, by where the memory comes from?",
    expectation: "malloc of a large block is an anonymous mapping: the same faults, one for each base page that is written, two \
        where a page is read first, since it is the page of zeros then. \
        MAP_POPULATE takes them out of the walk, but for shared files, whose pages tell the file when they are first written. \
        Of a private file nothing goes to the disk whatever is written; of a shared file every dirty page does, and memset with \
        msync has all of it written. The windows fit into the first-level cache, so that the order matters to the TLB alone, and a \
        simulation of the source's CPU, whose page walker fetches the next page too, counts what the source counted.",
    figures: "1 GiB: 262,214 faults by malloc; dTLB read misses 3,390,719 random, 517,335 sequential; oublock 0 for private \
        files, 2,097,152 to 2,997,152 for shared ones",
    needs: &[],
    parameters: &[
        ParameterAbout { name: "mib", meaning: "size of the region in MiB", values: [32, 256, 1024] },
        ParameterAbout {
            name: "rounds",
            meaning: "number of windows of 512 cache lines, each walked 16 times",
            values: [1 << 11, 1 << 15, 1 << 20],
        },
    ],
    quantities: &[
        QuantityAbout { name: "minflt", unit: AxisUnit::Count, meaning: "page faults of mapping, filling and walking" },
        QuantityAbout { name: "walk_minflt", unit: AxisUnit::Count, meaning: "page faults of the walk alone" },
        QuantityAbout { name: "oublock", unit: AxisUnit::Count, meaning: "blocks of 512 bytes that became dirty, for the disk" },
        QuantityAbout { name: "walk", unit: AxisUnit::Number, meaning: "nanoseconds for an access of the walk, faults included" },
        QuantityAbout { name: "wall", unit: AxisUnit::Nanos, meaning: "time of mapping, filling and walking" },
        QuantityAbout { name: "user", unit: AxisUnit::Nanos, meaning: "CPU time in user mode" },
        QuantityAbout { name: "sys", unit: AxisUnit::Nanos, meaning: "CPU time in the kernel" },
        QuantityAbout { name: "dtlb_read_misses", unit: AxisUnit::Count, meaning: "loads that missed all TLB levels" },
        QuantityAbout { name: "dtlb_write_misses", unit: AxisUnit::Count, meaning: "stores that missed all TLB levels" },
        QuantityAbout { name: "l1d_read_misses", unit: AxisUnit::Count, meaning: "lines that the first-level cache fetched" },
    ],
    arms: ARMS,
    runs: [2, 2, 5],
    timed: false,
    // A private file is in the page cache, and its written pages are copies.
    memory: |parameters| Bytes::mib(2 * parameters.get("mib")),
};

/// Number of bytes of a cache line of most CPUs, and of the CPU in the original measurement.
const LINE: usize = 64;
/// Number of lines of a window of 32 KiB.
const WINDOW: usize = 512;
/// Number of walks of a window.
const PASSES: usize = 16;
/// Number of accesses for each write.
const WRITES: usize = 8;
/// Number of windows in the original measurement.
const SOURCE_ROUNDS: f64 = 1_048_576.0;

/// Walks windows of `lines` lines: at random positions, or one after the other.
#[inline(always)]
fn walk(rounds: u64, lines: usize, random: bool, read: impl Fn(usize) -> u8, write: impl Fn(usize)) {
    let mut chance = fastrand::Rng::with_seed(1);
    let mut next = 0;
    for _ in 0..rounds {
        let first = if random { chance.usize(0..lines - WINDOW) } else { next };
        next = (first + WINDOW) % lines;
        for _ in 0..PASSES {
            for line in 0..WINDOW {
                let at = (first + line) * LINE;
                if line % WRITES == 0 {
                    write(at);
                } else {
                    black_box(read(at));
                }
            }
        }
    }
}

/// Kind of memory that one condition of the experiment walks.
struct WalkedMemory<'f> {
    heap: bool,
    filled: bool,
    random: bool,
    map: MapRequest<'f>,
}

impl WalkedMemory<'_> {
    fn for_arm<'f>(arm: &str, length: usize, file: Option<&'f File>) -> WalkedMemory<'f> {
        WalkedMemory {
            heap: arm.starts_with("malloc"),
            filled: arm.contains("+fill"),
            random: arm.ends_with("random"),
            map: MapRequest {
                length,
                file,
                shared: arm.starts_with("shared"),
                populate: arm.contains("+populate"),
                ..MapRequest::default()
            },
        }
    }

    /// Maps the memory and walks it. Returns the time of the walk alone, and its page faults.
    fn try_out(&self, rounds: u64) -> io::Result<(f64, u64)> {
        let lines = self.map.length / LINE;
        let measured = |walk: &dyn Fn()| {
            let (faults, begin) = (faults(), Instant::now());
            walk();
            (nanos(begin), self::faults() - faults)
        };
        if self.heap {
            let mut heap = vec![0_u8; self.map.length];
            if self.filled {
                heap.fill(1);
            }
            let cells = Cell::from_mut(heap.as_mut_slice()).as_slice_of_cells();
            return Ok(measured(&|| {
                walk(rounds, lines, self.random, |at| cells[at].get(), |at| cells[at].set(2));
            }));
        }
        let mut mapping = OwnedMapping::map(&self.map)?;
        if self.filled {
            mapping.fill(1);
            mapping.sync()?;
        }
        Ok(measured(&|| {
            walk(rounds, lines, self.random, |at| mapping.read(at), |at| mapping.write(at, 2));
        }))
    }
}

/// Simulates the walk of the original measurement over 1 GiB in the TLBs of its CPU, with base
/// pages. The simulation accesses no memory of the condition.
fn simulate(bench: &mut Bench, random: bool) -> Result<(), LabError> {
    let order = if random { Order::Random { seed: 1 } } else { Order::Sequential };
    let rounds = bench.parameter("rounds");
    let walk = workload::WindowWalk { rounds, ..workload::WindowWalk::original(order) };
    let misses = simulated::walks(TlbPageSize::Base, |sink| walk.play(sink))?;
    bench.record("dtlb_read_misses", count(misses.reads));
    bench.record("dtlb_write_misses", count(misses.writes));
    Ok(())
}

fn faults() -> u64 {
    KernelUsage::of_this_thread().minor_faults
}

impl RunExperiment for MemAccessExperiment {
    fn about(&self) -> &'static ExperimentAbout {
        &ABOUT
    }

    fn run(&self, arm: &str, bench: &mut Bench) -> Result<(), LabError> {
        if arm.starts_with("simulated") {
            return simulate(bench, arm.ends_with("random"));
        }
        // The original measurement used base pages, as its counts of page faults show.
        thp::allow(thp::AllowedHugePages::None).while_("PR_SET_THP_DISABLE")?;
        let (length, rounds) = (bench.size("mib") << 20, bench.parameter("rounds"));
        let file = match arm.starts_with("private") || arm.starts_with("shared") {
            true => {
                files::on_a_disk(bench.folder())?;
                Some(files::allocated(bench.folder(), length)?)
            }
            false => None,
        };
        let kind = WalkedMemory::for_arm(arm, length, file.as_ref());
        let (took, faults) = bench.measure(|| kind.try_out(rounds))?.while_("cannot map memory")?;
        bench.record("walk", took / count(rounds * (WINDOW * PASSES) as u64));
        bench.record("walk_minflt", count(faults));
        Ok(())
    }

    fn judge(&self, results: &ExperimentResults<'_>) -> Vec<ExperimentClaim> {
        let region = results.parameter("mib") * f64::from(1 << 20);
        let pages = region / count(pagewise_sys::system::page_size());
        let blocks = region / 512.0;
        let no_counters = "the CPU's counters are not to be had here: a virtual machine without a PMU";
        let windows = results.parameter("rounds") / SOURCE_ROUNDS;
        let misses = |over, under| results.ratio("dtlb_read_misses", over, under);
        vec![
            results
                .claim("malloc faults as an anonymous mapping does", "262,214 faults for 1 GiB by malloc")
                .counted()
                .the_same(0.05, results.ratio("minflt", "malloc, random", "anonymous, random")),
            results
                .claim("once for each page, where each is written first", "262,214 faults for 1 GiB")
                .near(pages, 0.05, results.value("minflt", "malloc, sequential")),
            results
                .claim("and more than once where pages are read before they are written", "")
                .counted()
                .more_than(1.1, results.ratio("minflt", "malloc, random", "malloc, sequential")),
            results
                .claim("MAP_POPULATE leaves the walk no faults, of anonymous memory", "")
                .at_most(0.01 * pages, results.value("walk_minflt", "anonymous+populate, random")),
            results
                .claim("and of private files", "")
                .at_most(0.01 * pages, results.value("walk_minflt", "private+populate, random")),
            results
                .claim("but not of shared files: the first write of a clean page is a fault", "")
                .at_least(1.0, results.value("walk_minflt", "shared+populate, random")),
            results
                .claim("Nothing that is written to a private file goes to the disk", "oublock 0")
                .at_most(0.0, results.value("oublock", "private, random")),
            results
                .claim("not even by memset and msync", "oublock 0")
                .at_most(0.0, results.value("oublock", "private+fill, random")),
            results
                .claim("Writes to a shared file mapping do", "68,856 and more")
                .at_least(1.0, results.value("oublock", "shared, random")),
            results
                .claim("with memset and msync all of it", "2,097,152 to 2,997,152 for 1 GiB")
                .at_least(0.99 * blocks, results.value("oublock", "shared+fill, random")),
            results
                .claim("Random windows miss the TLB more often than sequential ones", "3,390,719 against 517,335")
                .counted()
                .more_than(2.0, misses("malloc, random", "malloc, sequential"))
                .because(no_counters),
            results
                .claim("malloc misses as often as an anonymous mapping", "3,390,719 against 3,370,309")
                .counted()
                .the_same(0.1, misses("malloc, random", "anonymous, random"))
                .because(no_counters),
            results.claim("Simulated: reads of random windows miss as often as was counted", "3,390,719 of 2^20 windows")
                .near(3_390_719.0 * windows, 0.05, results.value("dtlb_read_misses", "simulated, random")),
            results.claim("Simulated: so do writes", "1,486,451 of 2^20 windows")
                .near(1_486_451.0 * windows, 0.05, results.value("dtlb_write_misses", "simulated, random")),
            results.claim(
                "Simulated: sequential windows walk as often, all of it by the writes that come to each page first",
                "517,335 by reads and 809,671 by writes of 2^20 windows",
            )
            .near((517_335.0 + 809_671.0) * windows, 0.05, results.value("dtlb_write_misses", "simulated, sequential")),
        ]
    }

    fn plots(&self) -> Vec<Plot> {
        vec![
            Plot::Bars { quantity: "walk_minflt".into(), scale: Scale::Linear },
            Plot::Bars { quantity: "oublock".into(), scale: Scale::Linear },
        ]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sequential_walk_comes_to_every_line_and_writes_every_eighth() {
        let lines = 4 * WINDOW;
        let touched = vec![Cell::new(0_usize); lines];
        let written = Cell::new(0);
        let touch = |at: usize| touched[at / LINE].set(touched[at / LINE].get() + 1);
        let write = |at| {
            touch(at);
            written.set(written.get() + 1);
        };
        let read = |at| {
            touch(at);
            0
        };
        walk(4, lines, false, read, write);
        assert!(touched.iter().all(|times| times.get() == PASSES));
        assert_eq!(written.get(), lines * PASSES / WRITES);
    }

    #[test]
    fn a_condition_says_what_to_map() {
        let kind = WalkedMemory::for_arm("shared+populate+fill, sequential", 1, None);
        assert!(kind.map.shared && kind.map.populate && kind.filled && !kind.random && !kind.heap);
        let kind = WalkedMemory::for_arm("malloc, random", 1, None);
        assert!(kind.heap && kind.random && !kind.filled && !kind.map.shared);
    }
}
