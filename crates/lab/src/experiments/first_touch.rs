//! The life of a mapping, for each kind of memory: reserved, read, written, shared with a child by
//! fork, dropped. VIRT, RES, SHR and DATA are recorded after each step.

use std::thread;
use std::time::{Duration, Instant};

use pagewise_measure::pin::PinnedThread;
use pagewise_model::lab::{ExperimentClaim, Plot};
use pagewise_model::report::{Scale, AxisUnit};
use pagewise_model::process::Statm;
use pagewise_model::{Bytes, SmapsCounter};
use pagewise_labmem::fork::fork;
use pagewise_sys::launch::KernelUsage;
use pagewise_sys::madvise::Advice;
use pagewise_labmem::mapping::{OwnedMapping, MapRequest};

use super::RunExperiment;
use crate::bench::count;
use crate::error::While;
use crate::files;
use crate::{ExperimentAbout, Bench, LabError, ParameterAbout, QuantityAbout, ExperimentResults};

/// See [`ABOUT`].
pub(super) struct FirstTouch;

const PRIVATE: &str = "private anonymous";
const SHARED: &str = "shared anonymous";
const PRIVATE_FILE: &str = "private file";
const SHARED_FILE: &str = "shared file";

static ABOUT: ExperimentAbout = ExperimentAbout {
    name: "first-touch",
    question: "When does reserved memory become resident, which column shows it, and which process has it after fork?",
    expectation: "Reserving makes VIRT alone, and DATA where it is private. Reading private anonymous memory maps the page of \
        zeros, which counts nowhere; reading any other kind brings pages, seen in RES and SHR: shared anonymous memory is a \
        file of tmpfs. Writing a private page of a file copies it: it becomes anonymous, and leaves SHR. A child of fork has \
        the private pages too, and copies those that it writes; what it writes to shared ones its parent sees. A dropped page \
        is zero again, or what the file says, or what was written to what is shared.",
    figures: "50 MiB touched of shared anonymous memory: 50 MiB in RES and in SHR",
    needs: &[],
    parameters: &[ParameterAbout {
        name: "mib",
        meaning: "reserved memory, in MiB",
        values: [16, 50, 50],
    }],
    quantities: &[
        QuantityAbout { name: "virt", unit: AxisUnit::Bytes, meaning: "VIRT, once it is reserved" },
        QuantityAbout { name: "data", unit: AxisUnit::Bytes, meaning: "DATA, once it is reserved" },
        QuantityAbout { name: "reserved", unit: AxisUnit::Bytes, meaning: "RES, once it is reserved" },
        QuantityAbout { name: "read", unit: AxisUnit::Bytes, meaning: "RES, once every page was read" },
        QuantityAbout { name: "written", unit: AxisUnit::Bytes, meaning: "RES, once every page was written" },
        QuantityAbout { name: "read_shr", unit: AxisUnit::Bytes, meaning: "SHR, once every page was read" },
        QuantityAbout { name: "written_shr", unit: AxisUnit::Bytes, meaning: "SHR, once every page was written" },
        QuantityAbout { name: "forked", unit: AxisUnit::Bytes, meaning: "PSS of it, once there is a child" },
        QuantityAbout { name: "copied", unit: AxisUnit::Bytes, meaning: "PSS of it, once the child wrote a quarter" },
        QuantityAbout { name: "seen", unit: AxisUnit::Bytes, meaning: "part of the child's writes that its parent sees" },
        QuantityAbout { name: "dropped", unit: AxisUnit::Bytes, meaning: "RES, once it was dropped" },
        QuantityAbout { name: "kept", unit: AxisUnit::Bytes, meaning: "part that reads back as written" },
        QuantityAbout { name: "read_minflt", unit: AxisUnit::Count, meaning: "page faults of reading every page" },
        QuantityAbout { name: "write_minflt", unit: AxisUnit::Count, meaning: "page faults of writing every page" },
    ],
    arms: &[PRIVATE, SHARED, PRIVATE_FILE, SHARED_FILE],
    runs: [3, 5, 5],
    timed: false,
    memory: |parameters| Bytes::mib(3 * parameters.get("mib")),
};

/// Messages between parent and child, in a shared page, in this order: the child may write, it
/// wrote, it may end.
const WRITE: u8 = 1;
const WROTE: u8 = 2;
const END: u8 = 3;

/// Value that the child writes.
const CHILDREN: u8 = 7;

/// The stages, in the order of the curves' x axis.
#[derive(Clone, Copy)]
enum TouchStage {
    Reserved = 1,
    Read,
    Written,
    Forked,
    Dropped,
}

/// A mapping, and the `statm` of the process before the mapping.
struct Life<'b> {
    bench: &'b mut Bench,
    mapping: OwnedMapping,
    page: usize,
    before: Statm,
}

impl Life<'_> {
    /// Growth of VIRT, RES, SHR and DATA since `before`, in bytes.
    fn columns(&self) -> Result<[f64; 4], LabError> {
        let (now, before) = (self.bench.columns()?, self.before);
        let of = |column: fn(&Statm) -> Bytes| count(column(&now).0) - count(column(&before).0);
        Ok([of(|s| s.size), of(|s| s.resident), of(|s| s.shared), of(|s| s.data)])
    }

    fn pss(&self) -> Result<f64, LabError> {
        self.bench.memory_at(self.mapping.start(), SmapsCounter::Pss)
    }

    /// Ends a stage: records RES, SHR and PSS as points of curves. Returns VIRT, RES, SHR and DATA.
    fn stage(&mut self, stage: TouchStage) -> Result<[f64; 4], LabError> {
        let columns = self.columns()?;
        let pss = self.pss()?;
        let x = f64::from(stage as u8);
        for (name, value) in [("RES", columns[1]), ("SHR", columns[2]), ("PSS", pss)] {
            self.bench.point(name, x, value);
        }
        Ok(columns)
    }

    /// The whole mapping.
    fn all(&self) -> std::ops::Range<usize> {
        0..self.mapping.len()
    }

    fn reserve(&mut self) -> Result<(), LabError> {
        let [virt, res, _, data] = self.stage(TouchStage::Reserved)?;
        self.bench.record("virt", virt);
        self.bench.record("data", data);
        self.bench.record("reserved", res);
        Ok(())
    }

    fn read(&mut self) -> Result<(), LabError> {
        let faults = faults();
        self.mapping.look(self.all(), self.page);
        self.bench.record("read_minflt", count(self::faults() - faults));
        let [_, res, shr, _] = self.stage(TouchStage::Read)?;
        self.bench.record("read", res);
        self.bench.record("read_shr", shr);
        Ok(())
    }

    fn write(&mut self) -> Result<(), LabError> {
        let faults = faults();
        self.mapping.touch(self.all(), self.page);
        self.bench.record("write_minflt", count(self::faults() - faults));
        let [_, res, shr, _] = self.stage(TouchStage::Written)?;
        self.bench.record("written", res);
        self.bench.record("written_shr", shr);
        Ok(())
    }

    /// Forks a child, which writes a quarter of the mapping and stays until its parent has
    /// measured.
    fn fork(&mut self) -> Result<(), LabError> {
        let talk = MapRequest { length: self.page, shared: true, ..MapRequest::default() };
        let talk = OwnedMapping::map(&talk).while_("cannot map a page")?;
        let quarter = (0..self.mapping.len() / 4).step_by(self.page);
        let (mapping, quarters) = (&self.mapping, quarter.clone());
        let child = fork(|| {
            wait_for(&talk, WRITE);
            quarters.for_each(|at| mapping.write(at, CHILDREN));
            talk.write(0, WROTE);
            wait_for(&talk, END);
            0
        });
        let child = child.while_("cannot fork")?;
        self.stage(TouchStage::Forked)?;
        let forked = self.pss()?;
        talk.write(0, WRITE);
        wait_for(&talk, WROTE);
        let copied = self.pss()?;
        let seen = quarter.filter(|at| self.mapping.read(*at) == CHILDREN).count();
        talk.write(0, END);
        child.wait().while_("cannot wait for the child")?;
        self.bench.record("forked", forked);
        self.bench.record("copied", copied);
        self.bench.record("seen", count((seen * self.page) as u64));
        Ok(())
    }

    fn forget(&mut self) -> Result<(), LabError> {
        self.mapping.touch(self.all(), self.page);
        self.mapping.advise(self.all(), Advice::DontNeed).while_("MADV_DONTNEED")?;
        let [_, res, _, _] = self.stage(TouchStage::Dropped)?;
        self.bench.record("dropped", res);
        let kept = self.all().step_by(self.page).filter(|at| self.mapping.read(*at) == 1).count();
        self.bench.record("kept", count((kept * self.page) as u64));
        Ok(())
    }
}

/// Waits for a message of the other process, for a limited time, since that process may be gone.
fn wait_for(talk: &OwnedMapping, word: u8) {
    let begin = Instant::now();
    while talk.read(0) != word && begin.elapsed() < Duration::from_secs(20) {
        thread::sleep(Duration::from_micros(100));
    }
}

fn faults() -> u64 {
    KernelUsage::of_this_thread().minor_faults
}

impl RunExperiment for FirstTouch {
    fn about(&self) -> &'static ExperimentAbout {
        &ABOUT
    }

    fn run(&self, arm: &str, bench: &mut Bench) -> Result<(), LabError> {
        let (length, page) = (bench.size("mib") << 20, bench.page());
        let file = match arm.ends_with("file") {
            true => Some(files::allocated(bench.folder(), length)?),
            false => None,
        };
        // Each CPU keeps a part of the counts that statm shows, so the thread stays on one CPU.
        let _pinned = PinnedThread::here()?;
        let shared = arm.starts_with("shared");
        let wanted = MapRequest { length, shared, file: file.as_ref(), ..MapRequest::default() };
        // The first reading of the columns makes further pages of this program resident; it is done
        // before the measurement.
        let other = OwnedMapping::map(&wanted).while_("cannot map memory")?;
        bench.memory_at(other.start(), SmapsCounter::Pss)?;
        bench.columns()?;
        drop(other);
        let before = bench.columns()?;
        let mapping = OwnedMapping::map(&wanted).while_("cannot map memory")?;
        // With base pages, each touch faults exactly one page.
        mapping.advise(0..length, Advice::NoHugePage).while_("madvise")?;
        let mut life = Life { bench, mapping, page, before };
        life.reserve()?;
        life.read()?;
        life.write()?;
        life.fork()?;
        life.forget()
    }

    fn judge(&self, results: &ExperimentResults<'_>) -> Vec<ExperimentClaim> {
        let all = results.parameter("mib") * f64::from(1 << 20);
        let pages = all / count(pagewise_sys::system::page_size());
        let little = 0.05 * all;
        let says = |text, quantity, arm, expected| {
            let value = results.value(quantity, arm);
            let asked = results.claim(text, "");
            if expected == 0.0 { asked.at_most(little, value) } else { asked.near(expected, 0.05, value) }
        };
        let touched = "50 MiB touched: 50 MiB in RES and in SHR";
        vec![
            says("Reserving makes VIRT", "virt", PRIVATE, all),
            says("and DATA, where it is private", "data", PRIVATE, all),
            says("but not where it is shared", "data", SHARED, 0.0),
            says("and nothing resident", "reserved", PRIVATE, 0.0),
            says("Reading private anonymous memory brings nothing", "read", PRIVATE, 0.0),
            says("though every page is a fault: the page of zeros is mapped", "read_minflt", PRIVATE, pages),
            says("Reading shared anonymous memory brings pages", "read", SHARED, all),
            says("Written private anonymous memory is in RES", "written", PRIVATE, all),
            says("and not in SHR", "written_shr", PRIVATE, 0.0),
            results
                .claim("Written shared anonymous memory is in RES", touched)
                .near(all, 0.05, results.value("written", SHARED)),
            results.claim("and in SHR", touched).near(all, 0.05, results.value("written_shr", SHARED)),
            says("A private page of a file is in SHR when it was read", "read_shr", PRIVATE_FILE, all),
            says("and leaves SHR when it is written: a copy, and anonymous", "written_shr", PRIVATE_FILE, 0.0),
            says("A shared page of a file stays in SHR", "written_shr", SHARED_FILE, all),
            says("After fork parent and child have half of each private page", "forked", PRIVATE, 0.5 * all),
            says("and what the child writes each has a copy of", "copied", PRIVATE, 0.625 * all),
            says("none of which the parent sees", "seen", PRIVATE, 0.0),
            says("A child has shared pages only once it touches them", "forked", SHARED, all),
            says("and shares them then, copying nothing", "copied", SHARED, 0.875 * all),
            says("so that the parent sees what it wrote", "seen", SHARED, 0.25 * all),
            says("Dropped pages are in RES no more", "dropped", SHARED, 0.0),
            says("private ones are zeros when read again", "kept", PRIVATE, 0.0),
            says("private file pages have the content of the file", "kept", PRIVATE_FILE, 0.0),
            says("shared ones are what was written", "kept", SHARED, all),
        ]
    }

    fn plots(&self) -> Vec<Plot> {
        let curve = |name: &'static str| Plot::Curves {
            curve: name.into(),
            x: ("reserved, read, written, forked, dropped".into(), AxisUnit::Count, Scale::Linear),
            y: (name.into(), AxisUnit::Bytes, Scale::Linear),
        };
        vec![curve("RES"), curve("SHR"), curve("PSS")]
    }
}
