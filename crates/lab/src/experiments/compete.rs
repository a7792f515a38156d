//! A program whose memory does not fit: alone with too small a limit, or beside another program
//! that wants as much. Each page that is missing must be read from the disk, where it had to be
//! written before.

use std::fs::File;
use std::io::{Read, Write};
use std::time::Instant;

use pagewise_model::Bytes;
use pagewise_model::lab::{ExperimentClaim, Plot};
use pagewise_model::report::{Scale, AxisUnit};
use pagewise_labmem::fork::{ForkedChild, fork};
use pagewise_sys::madvise::Advice;
use pagewise_labmem::mapping::{OwnedMapping, MapRequest};
use rustix::fs::{FallocateFlags, fallocate};

use super::RunExperiment;
use crate::bench::{count, join};
use crate::error::While;
use crate::{ExperimentAbout, Bench, LabError, Need, ParameterAbout, Parameters, QuantityAbout, ExperimentResults};

/// See [`ABOUT`].
pub(super) struct Compete;

static ABOUT: ExperimentAbout = ExperimentAbout {
    name: "compete",
    question: "What does a program pay when its memory does not fit, or when another program wants it too?",
    expectation: "Pages that do not fit go to the swap file, those of a shared file to the file. Who touches pages at random, all \
        equally often, finds the share limit / set of them in memory, whatever the kernel chooses to keep; each other touch is a \
        major fault: n × (1 - limit / set) in all. A competitor takes pages away from the program as it takes them from the \
        competitor. Blocks written are counted where a page of a file becomes dirty; writes to swap are charged to no program.",
    figures: "256 MiB for 400 MiB touched 50,000 times: 18,172 ± 48 major faults where 18,000 are predicted; beside a competitor run \
        time explodes, majflt and oublock rise, most for file-backed mappings",
    needs: &[Need::Root, Need::Cgroup, Need::ChangeSystem],
    parameters: &[
        ParameterAbout { name: "set", meaning: "memory that the program touches, in MiB", values: [200, 400, 3200] },
        ParameterAbout { name: "limit", meaning: "memory limit that is too small for it, in MiB", values: [128, 256, 2048] },
        ParameterAbout { name: "touches", meaning: "number of touches of a page", values: [20_000, 50_000, 400_000] },
        ParameterAbout { name: "beside", meaning: "and how often beside a competitor", values: [2_000, 20_000, 400_000] },
    ],
    quantities: &[
        QuantityAbout { name: "majflt", unit: AxisUnit::Count, meaning: "page faults that waited for the disk" },
        QuantityAbout { name: "touch", unit: AxisUnit::Nanos, meaning: "time for a touch" },
        QuantityAbout { name: "oublock", unit: AxisUnit::Count, meaning: "blocks of 512 bytes that became dirty" },
        QuantityAbout { name: "dirtied", unit: AxisUnit::Share, meaning: "writes that made a page dirty" },
        QuantityAbout { name: "inblock", unit: AxisUnit::Count, meaning: "blocks of 512 bytes that were read" },
    ],
    arms: &["alone", "too little memory", "competitor", "file, alone", "file, competitor"],
    runs: [3, 5, 5],
    timed: false,
    memory: |parameters| room(parameters),
};

/// Memory that is enough for one program, and not for two.
fn room(parameters: &Parameters) -> Bytes {
    Bytes::mib(parameters.get("set") * 5 / 4)
}

/// One in this number of touches writes, the others read.
const WRITES: usize = 8;

/// Unit of the block counts in `getrusage`, in bytes.
const BLOCK: u64 = 512;

impl RunExperiment for Compete {
    fn about(&self) -> &'static ExperimentAbout {
        &ABOUT
    }

    fn run(&self, arm: &str, bench: &mut Bench) -> Result<(), LabError> {
        let [set, limit] = ["set", "limit"].map(|name| bench.size(name) << 20);
        let touches = bench.size(if arm.ends_with("competitor") { "beside" } else { "touches" });
        let limit = if arm == "too little memory" { limit } else { set * 5 / 4 };
        if !arm.ends_with("alone") {
            let swap = make_file(bench, "swap", 2 * set)?.1;
            bench.journal().swap_on(&swap)?;
        }
        let file = if arm.starts_with("file") { Some(make_file(bench, "data", set)?.0) } else { None };
        let cgroup = bench.make_cgroup(Bytes(limit as u64), true)?;
        let cgroup = cgroup.ok_or_else(|| LabError::Failed("no cgroup".to_owned()))?;
        join(&cgroup, std::process::id())?;
        let memory = CompeteMemory::map(set, bench.page(), file.as_ref())?;
        memory.fill();
        let competitor = arm.ends_with("competitor").then(|| Competitor::start(set, bench.page()));
        let _competitor = competitor.transpose()?;
        let dirty = bench.usage().blocks_out;
        let begin = Instant::now();
        bench.measure(|| memory.touch_at_random(touches))?;
        bench.each("touch", begin, touches as u64);
        let dirtied = (bench.usage().blocks_out - dirty) * BLOCK / bench.page() as u64;
        bench.record("dirtied", count(dirtied) / count((touches / WRITES).max(1) as u64));
        Ok(())
    }

    fn judge(&self, results: &ExperimentResults<'_>) -> Vec<ExperimentClaim> {
        let [set, limit] = ["set", "limit"].map(|name| results.parameter(name));
        let [touches, beside] = ["touches", "beside"].map(|name| results.parameter(name));
        let value = |quantity, arm| results.value(quantity, arm);
        let rise = "beside a competitor majflt and oublock rise, most for file-backed mappings";
        vec![
            results
                .claim(
                    "With too little memory, n × (1 - limit / set) touches wait for the disk",
                    "18,172 ± 48 where 18,000 are predicted",
                )
                .near(touches * (1.0 - limit / set), 0.02, value("majflt", "too little memory")),
            results
                .claim("With enough, next to none do", "")
                .at_most(touches / 1000.0, value("majflt", "alone")),
            results
                .claim("Beside a competitor many do, though the program alone would have enough", rise)
                .at_least(beside / 10.0, value("majflt", "competitor")),
            results
                .claim("and its time explodes", "run time explodes")
                .more_than(10.0, results.ratio("touch", "competitor", "alone")),
            results
                .claim("File pages, unmapped in between, become dirty again and again", rise)
                .at_least(0.5, value("dirtied", "file, competitor")),
            results
                .claim("Pages that go to swap are charged to no process", "")
                .at_most(0.01, value("dirtied", "competitor")),
        ]
    }

    fn plots(&self) -> Vec<Plot> {
        let bars = |quantity: &'static str, scale| Plot::Bars { quantity: quantity.into(), scale };
        vec![bars("majflt", Scale::Linear), bars("touch", Scale::Log), bars("oublock", Scale::Linear)]
    }
}

/// A file without holes.
fn make_file(bench: &Bench, name: &str, length: usize) -> Result<(File, std::path::PathBuf), LabError> {
    let path = bench.folder().join(name);
    let make = || {
        let mut options = File::options();
        let file = options.read(true).write(true).create(true).truncate(true).open(&path)?;
        fallocate(&file, FallocateFlags::empty(), 0, length as u64)?;
        Ok::<_, std::io::Error>(file)
    };
    Ok((make().while_(format!("cannot make {}", path.display()))?, path))
}

/// Memory that a program touches.
pub(super) struct CompeteMemory {
    mapping: OwnedMapping,
    page: usize,
}

impl CompeteMemory {
    /// Memory without huge pages, which the kernel would split at reclaim, and without readahead,
    /// which would read megabytes for each missing page of a file.
    pub(super) fn map(length: usize, page: usize, file: Option<&File>) -> Result<CompeteMemory, LabError> {
        let shared = file.is_some();
        CompeteMemory::map_as(&MapRequest { length, file, shared, ..MapRequest::default() }, page)
    }

    /// Memory without a file that processes can share.
    pub(super) fn map_shared(length: usize, page: usize) -> Result<CompeteMemory, LabError> {
        CompeteMemory::map_as(&MapRequest { length, shared: true, ..MapRequest::default() }, page)
    }

    fn map_as(wanted: &MapRequest<'_>, page: usize) -> Result<CompeteMemory, LabError> {
        let wanted = MapRequest { no_reserve: true, ..*wanted };
        let length = wanted.length;
        let mapping = OwnedMapping::map(&wanted).while_("cannot map memory")?;
        mapping.advise(0..length, Advice::NoHugePage).while_("madvise")?;
        mapping.advise(0..length, Advice::Random).while_("madvise")?;
        Ok(CompeteMemory { mapping, page })
    }

    /// Writes each page once.
    pub(super) fn fill(&self) {
        self.mapping.touch(0..self.mapping.len(), self.page);
    }

    /// Number of its pages.
    pub(super) fn pages(&self) -> usize {
        self.mapping.len() / self.page
    }

    /// Reads and writes the page of this number.
    pub(super) fn touch_page(&self, number: usize) {
        let at = number * self.page;
        self.mapping.write(at, self.mapping.read(at).wrapping_add(1));
    }

    pub(super) fn touch_at_random(&self, times: usize) {
        let mut random = fastrand::Rng::new();
        for time in 0..times {
            let at = random.usize(0..self.mapping.len() / self.page) * self.page;
            let byte = self.mapping.read(at);
            if time % WRITES == 0 {
                self.mapping.write(at, byte.wrapping_add(1));
            }
        }
    }
}

/// Another program that wants as much memory, in the cgroup of the process that starts it.
struct Competitor(ForkedChild);

impl Competitor {
    /// Starts the program, and waits until it has touched all of its memory.
    fn start(length: usize, page: usize) -> Result<Competitor, LabError> {
        let (mut ready, mut tell) = std::io::pipe().while_("cannot make a pipe")?;
        let child = fork(move || {
            let Ok(memory) = CompeteMemory::map(length, page, None) else { return 1 };
            memory.fill();
            let _ = tell.write_all(&[0]);
            loop {
                memory.touch_at_random(1000);
            }
        });
        let competitor = Competitor(child.while_("cannot start a competitor")?);
        ready.read_exact(&mut [0]).while_("the competitor has no memory")?;
        Ok(competitor)
    }
}

impl Drop for Competitor {
    fn drop(&mut self) {
        self.0.kill();
    }
}
