//! A sample of the heap of a running process. Limits on time and bytes make it cheap enough for
//! every report about the process.

pub(crate) mod estimate;

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use pagewise_model::heap_sample::{BytesEstimate, HeapSample};
use pagewise_model::units::nanoseconds;
use pagewise_model::{Absent, AddrRange, Backing, Bytes, Mapping, Reading, Sharing, Snapshot};
use pagewise_proc::{ProcRoot, stat};

use crate::core_image::CoreImage;
use crate::glibc;
use crate::memory::{Memory, ScannedThread};
use crate::running::RunningMemory;
use estimate::WindowSample;

/// Maximum duration of a sample, and maximum number of bytes that it reads.
const TIME: Duration = Duration::from_millis(50);
/// Maximum duration of a later sample of the same process.
const TIME_AGAIN: Duration = Duration::from_millis(15);
const BYTES: u64 = 64 << 20;
/// Minimum number of windows, which are read even beyond the time limit and take some milliseconds.
/// On a machine with busy CPUs the whole time can pass while pagewise waits for a CPU.
const MIN_WINDOWS: u64 = 64;
/// Minimum size of a heap that is sampled. A heap of at least [`SMALLEST`] is also sampled if it is
/// at least half of RES.
const LARGE: Bytes = Bytes::mib(64);
const SMALLEST: Bytes = Bytes::mib(8);

/// Samples the heap of the running process that `snapshot` describes.
pub fn add(root: &ProcRoot, snapshot: &mut Snapshot) {
    let began = Instant::now();
    let sample = of_process(root, snapshot, began, TIME);
    let seen = &mut snapshot.provenance;
    seen.took_ns = seen.took_ns.saturating_add(nanoseconds(began.elapsed()));
    if let (Ok(sample), Ok(longest)) = (&sample, &mut seen.longest_hold_ns) {
        *longest = sample.longest_hold_ns.max(*longest);
    }
    snapshot.heap_sample = sample;
}

/// Samples the heap again, in less time. `snapshot` describes the process at an earlier time.
///
/// # Errors
/// The reason for a missing sample, as in [`Snapshot::heap_sample`].
pub fn again(root: &ProcRoot, snapshot: &Snapshot) -> Reading<HeapSample> {
    of_process(root, snapshot, Instant::now(), TIME_AGAIN)
}

/// Samples the heap in a core file, and adds the sample to its snapshot.
pub fn add_of_core(image: &CoreImage, snapshot: &mut Snapshot) {
    let began = Instant::now();
    let subject = SampleSubject { snapshot, memory: image, began, time: TIME };
    snapshot.heap_sample = subject.sample(Some(image.held()));
    let seen = &mut snapshot.provenance;
    seen.took_ns = seen.took_ns.saturating_add(nanoseconds(began.elapsed()));
}

fn of_process(
    root: &ProcRoot,
    snapshot: &Snapshot,
    began: Instant,
    time: Duration,
) -> Reading<HeapSample> {
    if !root.is_live() {
        return Err(Absent::NotCollected("a copy of /proc has no memory".into()));
    }
    if !root.has_our_ids() {
        return Err(Absent::NotSupported("/proc is of another pid namespace".into()));
    }
    let mappings = snapshot.mappings.as_ref().map_err(Clone::clone)?;
    let private = || mappings.iter().filter(|mapping| is_private_memory(mapping));
    let resident: Bytes = private().map(|mapping| mapping.rss().unwrap_or_default()).sum();
    if resident < SMALLEST {
        return Err(too_small());
    }
    let pid = snapshot.process.pid;
    let page_size = snapshot.provenance.page_size;
    let memory = RunningMemory::open(root, pid, page_size, mappings)
        .map_err(|error| Absent::NotSupported(format!("its pagemap: {error}").into()))?;
    let sample =
        SampleSubject { snapshot, memory: &memory, began, time }.sample(resident_of(snapshot))?;
    let now = root.read(pid, "stat").ok().and_then(|text| stat::parse(&text).ok());
    match now {
        Some(now) if now.start_ticks == snapshot.process.start_ticks => {
            Ok(HeapSample { longest_hold_ns: memory.longest_call_ns(), ..sample })
        }
        _ => Err(Absent::Vanished),
    }
}

/// True for private anonymous memory that the process can write to.
pub fn is_private_memory(mapping: &Mapping) -> bool {
    mapping.prot.write
        && mapping.sharing == Sharing::Private
        && mapping.backing() == Backing::Anonymous
}

fn resident_of(snapshot: &Snapshot) -> Option<Bytes> {
    snapshot.statm.as_ref().ok().map(|statm| statm.resident)
}

fn too_small() -> Absent {
    Absent::NotCollected("the heap is smaller than 64 MiB and than half of RES".into())
}

/// A process to sample, and the source of its memory.
struct SampleSubject<'a> {
    snapshot: &'a Snapshot,
    memory: &'a dyn Memory,
    began: Instant,
    time: Duration,
}

impl SampleSubject<'_> {
    /// Samples the heap. `resident` is the resident memory of the whole process.
    fn sample(&self, resident: Option<Bytes>) -> Reading<HeapSample> {
        let memory = BoundedMemory { memory: self.memory, left: AtomicU64::new(BYTES) };
        let page_size = self.snapshot.provenance.page_size;
        let is_large = |heap: Bytes| {
            heap >= LARGE
                || heap >= SMALLEST && resident.is_some_and(|resident| heap.0 >= resident.0 / 2)
        };
        let goes_on = |windows: u64| {
            !memory.is_exhausted() && (windows < MIN_WINDOWS || self.began.elapsed() < self.time)
        };
        let found = glibc::sample(&memory, page_size, &is_large, &goes_on);
        if memory.is_exhausted() && found.is_err() {
            return Err(Absent::NotCollected(
                "the arenas were not found in the first 64 MiB of data".into(),
            ));
        }
        let SampledArenaWindows { arenas, resident, sample } = found?.ok_or_else(too_small)?;
        if (sample.windows.len() as u64) < MIN_WINDOWS.min(sample.population) {
            return Err(Absent::NotCollected("too little of the heap could be read".into()));
        }
        Ok(HeapSample {
            allocator: "glibc".to_owned(),
            arenas,
            read: Bytes(BYTES - memory.left.load(Ordering::Relaxed)),
            took_ns: nanoseconds(self.began.elapsed()),
            ..estimates(&sample, resident)
        })
    }
}

/// Result of sampling the arenas of a process.
pub(crate) struct SampledArenaWindows {
    /// Number of arenas.
    pub(crate) arenas: u64,
    /// Resident memory of the arenas; `None` if it must be estimated from the windows.
    pub(crate) resident: Option<Bytes>,
    pub(crate) sample: WindowSample,
}

fn estimates(sample: &WindowSample, resident: Option<Bytes>) -> HeapSample {
    let resident = resident.unwrap_or_else(|| sample.resident());
    let free = sample.estimate(resident, |window| window.free);
    HeapSample {
        resident,
        live: BytesEstimate { low: resident - free.high, high: resident - free.low },
        free,
        trimmable: sample.estimate(resident, |window| window.trimmable),
        pinned: sample.estimate(resident, |window| window.pinned),
        top: sample.estimate(resident, |window| window.top),
        windows: sample.windows.len() as u64,
        population: sample.population,
        free_pages: sample.free_pages.clone(),
        unsettled: sample.windows.iter().map(|window| Bytes(window.unsettled)).sum(),
        ..HeapSample::default()
    }
}

/// Memory of which only a limited number of bytes can be read.
struct BoundedMemory<'a> {
    memory: &'a dyn Memory,
    left: AtomicU64,
}

impl BoundedMemory<'_> {
    fn is_exhausted(&self) -> bool {
        self.left.load(Ordering::Relaxed) == 0
    }

    fn take(&self, bytes: usize) {
        let less = |left: u64| Some(left.saturating_sub(bytes as u64));
        let _ = self.left.fetch_update(Ordering::Relaxed, Ordering::Relaxed, less);
    }
}

impl Memory for BoundedMemory<'_> {
    fn mappings(&self) -> &[Mapping] {
        self.memory.mappings()
    }

    fn threads(&self) -> &[ScannedThread] {
        self.memory.threads()
    }

    fn visit(&self, range: AddrRange, each: &mut dyn FnMut(u64, &[u8])) {
        /// Maximum number of bytes between two checks of the limit in a large range.
        const STEP: u64 = 4 << 20;
        let mut start = range.start;
        while start < range.end && !self.is_exhausted() {
            let end = range.end.min(start.saturating_add(STEP));
            self.memory.visit(AddrRange { start, end }, &mut |address, bytes| {
                self.take(bytes.len());
                each(address, bytes);
            });
            start = end;
        }
    }

    fn read(&self, address: u64, into: &mut [u8]) -> bool {
        self.take(into.len());
        !self.is_exhausted() && self.memory.read(address, into)
    }
}
