//! A file that is not in memory is mapped and read, with and without hints: what a hint makes the
//! kernel read, and how often the program waits for the disk.

use pagewise_model::Bytes;
use pagewise_model::lab::{ExperimentClaim, Plot};
use pagewise_model::report::{Scale, AxisUnit};
use pagewise_sys::launch::KernelUsage;
use pagewise_sys::madvise::Advice;
use pagewise_labmem::mapping::{OwnedMapping, MapRequest};

use super::RunExperiment;
use crate::bench::count;
use crate::error::While;
use crate::files;
use crate::results::Explained;
use crate::{ExperimentAbout, Bench, LabError, ParameterAbout, QuantityAbout, ExperimentResults};

/// See [`ABOUT`].
pub(super) struct Readahead;

static ABOUT: ExperimentAbout = ExperimentAbout {
    name: "readahead",
    question: "What does the kernel read when a mapped file is touched, and what do hints change?",
    expectation: "A fault on a page that is not in the page cache reads its neighbors too: good for who goes on, wasted on \
        who jumps. MADV_RANDOM reads what is touched and nothing else, so that going through the file waits for the disk at \
        every page. MADV_WILLNEED reads without waiting, but of a large range only the first piece, as large as the disk's \
        readahead (read_ahead_kb): it must be given piece by piece. MADV_POPULATE_READ reads all, and fills page tables: \
        nothing is left to fault.",
    figures: "",
    needs: &[],
    parameters: &[
        ParameterAbout { name: "mib", meaning: "size of the file in MiB", values: [32, 128, 1024] },
        ParameterAbout {
            name: "jumps",
            meaning: "number of pages touched in random order",
            values: [32, 64, 256],
        },
    ],
    quantities: &[
        QuantityAbout { name: "majflt", unit: AxisUnit::Count, meaning: "page faults that read the disk" },
        QuantityAbout { name: "minflt", unit: AxisUnit::Count, meaning: "page faults that found their page in memory" },
        QuantityAbout { name: "faults", unit: AxisUnit::Count, meaning: "page faults of either kind after the hint" },
        QuantityAbout { name: "read", unit: AxisUnit::Bytes, meaning: "bytes read from the disk" },
        QuantityAbout { name: "touched", unit: AxisUnit::Bytes, meaning: "touched pages" },
        QuantityAbout { name: "wall", unit: AxisUnit::Nanos, meaning: "time of hint and reading" },
    ],
    arms: &[
        "all, no hint",
        "all, sequential",
        "all, random",
        "all, populate",
        "jumps, no hint",
        "jumps, random",
        "jumps, will need",
        "jumps, will need by pieces",
    ],
    runs: [3, 5, 5],
    timed: false,
    memory: |parameters| Bytes::mib(parameters.get("mib")),
};

/// Less than any disk's readahead, which is 128 KiB mostly.
const PIECE: usize = 64 << 10;

/// Gives a hint on all of a mapping.
fn hint(mapping: &OwnedMapping, hint: &str) -> std::io::Result<()> {
    let all = 0..mapping.len();
    match hint {
        "sequential" => mapping.advise(all, Advice::Sequential),
        "random" => mapping.advise(all, Advice::Random),
        "will need" => mapping.advise(all, Advice::WillNeed),
        "will need by pieces" => all.step_by(PIECE).try_for_each(|at| {
            mapping.advise(at..(at + PIECE).min(mapping.len()), Advice::WillNeed)
        }),
        "populate" => mapping.advise(all, Advice::PopulateRead),
        _ => Ok(()),
    }
}

fn faults() -> u64 {
    let usage = KernelUsage::of_this_thread();
    usage.minor_faults + usage.major_faults
}

impl RunExperiment for Readahead {
    fn about(&self) -> &'static ExperimentAbout {
        &ABOUT
    }

    fn run(&self, arm: &str, bench: &mut Bench) -> Result<(), LabError> {
        let (length, page) = (bench.size("mib") << 20, bench.page());
        let (way, how) = arm.split_once(", ").unwrap_or((arm, ""));
        files::on_a_disk(bench.folder())?;
        let file = files::written(bench.folder(), length, page)?;
        files::drop_cached(&file)?;
        let mapping = OwnedMapping::map(&MapRequest { length, file: Some(&file), ..MapRequest::default() });
        let mapping = mapping.while_("cannot map a file")?;
        // Addresses far from each other, from the last to the first: readahead cannot predict the
        // next.
        let step = if way == "jumps" { length / bench.size("jumps").max(1) } else { page };
        let step = step.next_multiple_of(page);
        let places: Vec<usize> = (0..length).step_by(step).collect();
        let blocks = bench.usage().blocks_in;
        let (read, faults) = bench
            .measure(|| {
                hint(&mapping, how)?;
                let before = faults();
                let read: u64 = match way {
                    "jumps" => places.iter().rev().map(|at| u64::from(mapping.read(*at))).sum(),
                    _ => mapping.look(0..length, page),
                };
                Ok::<_, std::io::Error>((read, faults() - before))
            })?
            .while_("madvise")?;
        let touched = places.len() as u64;
        if read != touched {
            return Err(LabError::Failed("the file does not hold what was written".to_owned()));
        }
        bench.record("faults", count(faults));
        bench.record("touched", count(touched) * count(page as u64));
        bench.record("read", count(bench.usage().blocks_in - blocks) * 512.0);
        Ok(())
    }

    fn judge(&self, results: &ExperimentResults<'_>) -> Vec<ExperimentClaim> {
        let file = results.parameter("mib") * f64::from(1 << 20);
        let touched = |arm| results.median("touched", arm).unwrap_or(f64::NAN);
        let pages = file / count(pagewise_sys::system::page_size());
        let kept = "the disk driver does not count reads, or other programs read the file";
        let reading = |arm| results.value("read", arm);
        let waits = |arm| results.value("majflt", arm);
        vec![
            results
                .claim("A file is read once, also with MADV_RANDOM", "")
                .near(file, 0.02, reading("all, random"))
                .because(kept),
            results.claim("but a page at a time", "").near(pages, 0.02, waits("all, random")),
            results
                .claim("Without a hint there are many fewer waits", "")
                .more_than(10.0, results.ratio("majflt", "all, random", "all, no hint"))
                .because("the disk's read_ahead_kb is small, or 0"),
            results
                .claim("Jumping with MADV_RANDOM reads what is touched", "")
                .near(touched("jumps, random"), 0.02, reading("jumps, random"))
                .because(kept),
            results
                .claim("Jumping without a hint reads many times that", "")
                .more_than(4.0, results.ratio("read", "jumps, no hint", "jumps, random"))
                .because("the disk's read_ahead_kb is small, or 0"),
            results
                .claim("MADV_WILLNEED by pieces leaves nothing to wait for", "")
                .at_most(0.0, waits("jumps, will need by pieces")),
            results
                .claim("on all of it it reads the first piece only, as large as read_ahead_kb", "")
                .at_least(1.0, waits("jumps, will need"))
                .because("the file is smaller than the disk's readahead"),
            results
                .claim("MADV_POPULATE_READ leaves nothing to fault, but for pages of the program itself", "")
                .at_most(0.01 * pages, results.value("faults", "all, populate")),
        ]
    }

    fn plots(&self) -> Vec<Plot> {
        vec![
            Plot::Bars { quantity: "majflt".into(), scale: Scale::Log },
            Plot::Bars { quantity: "read".into(), scale: Scale::Log },
            Plot::Bars { quantity: "wall".into(), scale: Scale::Linear },
        ]
    }
}
