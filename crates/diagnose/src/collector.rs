//! The garbage collector of a running process: reads the counters that the Java virtual machine, Go
//! and V8 keep in their memory. The counters distinguish objects that survive collections from
//! garbage.

mod go;
mod java;
mod v8;

use std::time::{Duration, Instant};

use pagewise_model::evidence::{CollectorPoint, Gathered};
use pagewise_model::units::nanoseconds;
use pagewise_model::{Absent, AddrRange, Mapping, Snapshot};
use pagewise_proc::capture::outline;
use pagewise_proc::{ProcRoot, variables};
use pagewise_scan::memory::Memory;
use pagewise_scan::running::RunningMemory;
use pagewise_sys::system::thread_cpu_time;

/// Minimum interval of the readings.
const INTERVAL: Duration = Duration::from_secs(1);
/// Minimum ratio of the interval between two readings to the CPU time of a reading.
const SHARE: u32 = 200;

/// Location of the counters of a collector, by runtime.
#[derive(Clone, Copy, Debug)]
enum CollectorSource {
    Java(AddrRange),
    Go(AddrRange),
    V8,
}

/// Readings of the counters of a collector over time.
#[derive(Debug)]
pub(crate) struct CollectorWatch {
    source: Gathered<CollectorSource>,
    points: Vec<CollectorPoint>,
    /// Time of the next reading, since the beginning of the diagnosis.
    next: Duration,
}

impl CollectorWatch {
    /// Finds the counters of the process.
    pub(crate) fn begin(root: &ProcRoot, snapshot: &Snapshot) -> CollectorWatch {
        let source = match root.is_live() {
            true => source_of(root, snapshot),
            false => Gathered::NotNeeded,
        };
        CollectorWatch { source, points: Vec::new(), next: Duration::ZERO }
    }

    /// Reads the counters if the next reading is due. Returns the longest pause of the process.
    pub(crate) fn step(
        &mut self,
        root: &ProcRoot,
        snapshot: &Snapshot,
        began: Instant,
    ) -> Duration {
        let Gathered::Value(source) = &self.source else { return Duration::ZERO };
        let at = began.elapsed();
        if at < self.next {
            return Duration::ZERO;
        }
        // The interval depends on CPU time only: the time that pagewise waits for a CPU costs the
        // target nothing.
        let before = thread_cpu_time();
        let (point, pause) = source.read(root, snapshot);
        let took = thread_cpu_time().saturating_sub(before);
        self.next = at + INTERVAL.max(took.saturating_mul(SHARE));
        let at_ns = nanoseconds(at);
        self.points.extend(point.map(|point| CollectorPoint { at_ns, ..point }));
        pause
    }

    /// Returns the readings, or the reason why the counters could not be read.
    pub(crate) fn finish(self) -> Gathered<Vec<CollectorPoint>> {
        match self.source {
            Gathered::Value(_) if self.points.is_empty() => {
                let why = "the counters of the garbage collector have another form";
                Gathered::Missing(Absent::NotSupported(why.into()))
            }
            Gathered::Value(_) => Gathered::Value(self.points),
            Gathered::NotNeeded => Gathered::NotNeeded,
            Gathered::Missing(why) => Gathered::Missing(why),
        }
    }
}

fn source_of(root: &ProcRoot, snapshot: &Snapshot) -> Gathered<CollectorSource> {
    let Ok(mappings) = &snapshot.mappings else { return Gathered::NotNeeded };
    let pid = snapshot.process.pid;
    if let Some(counters) = java::counters(mappings) {
        return Gathered::Value(CollectorSource::Java(counters));
    }
    if java::is_loaded(snapshot) {
        let why = "the virtual machine runs without -XX:+UsePerfData";
        return Gathered::Missing(Absent::NotCollected(why.into()));
    }
    if go::is_program(snapshot) {
        let found = variables::find(root, pid, mappings, b"runtime.memstats");
        return match found.first().and_then(|it| go::counters(it.address, it.size)) {
            Some(counters) => Gathered::Value(CollectorSource::Go(counters)),
            None => Gathered::Missing(Absent::NotSupported(
                "the Go program has no table of symbols".into(),
            )),
        };
    }
    let is_v8 = with_memory(root, snapshot, mappings, |memory| {
        v8::old_generation(memory, v8::MAX_TRIED_PAGES).map(|_| CollectorSource::V8)
    });
    is_v8.0.map_or(Gathered::NotNeeded, Gathered::Value)
}

impl CollectorSource {
    /// Reads the counters. Also returns the longest pause of the process.
    fn read(self, root: &ProcRoot, snapshot: &Snapshot) -> (Option<CollectorPoint>, Duration) {
        let fixed: &[Mapping] = snapshot.mappings.as_deref().unwrap_or_default();
        match self {
            CollectorSource::Java(range) => with_memory(root, snapshot, fixed, |memory| {
                java::point(&present_bytes(memory, range)?)
            }),
            CollectorSource::Go(range) => with_memory(root, snapshot, fixed, |memory| {
                let collections = Some(go::collections(&touched_bytes(memory, range)?)?);
                Some(CollectorPoint { collections, ..CollectorPoint::default() })
            }),
            CollectorSource::V8 => {
                let Ok((_, Ok(present))) = outline(root, snapshot.process.pid) else {
                    return (None, Duration::ZERO);
                };
                with_memory(root, snapshot, &present, |memory| {
                    let old = Some(v8::old_generation(memory, v8::MAX_PAGES)?);
                    Some(CollectorPoint { old, ..CollectorPoint::default() })
                })
            }
        }
    }
}

/// Returns the bytes of a range; `None` unless all of its pages are present.
fn present_bytes(memory: &RunningMemory<'_>, range: AddrRange) -> Option<Vec<u8>> {
    let mut bytes = vec![0; usize::try_from(range.len().0).ok()?];
    memory.read_present(range.start, &mut bytes).then_some(bytes)
}

/// Returns the bytes of a range of variables. Pages that the program has not touched are
/// zero-filled.
fn touched_bytes(memory: &RunningMemory<'_>, range: AddrRange) -> Option<Vec<u8>> {
    let mut bytes = vec![0; usize::try_from(range.len().0).ok()?];
    memory.visit(range, &mut |at, part| {
        let begin = usize::try_from(at.saturating_sub(range.start)).unwrap_or(usize::MAX);
        let end = bytes.len().min(begin.saturating_add(part.len()));
        if let Some(place) = bytes.get_mut(begin..end) {
            place.copy_from_slice(&part[..place.len()]);
        }
    });
    Some(bytes)
}

/// Calls a function with the memory of the process. Also returns the longest pause of the process.
fn with_memory<T>(
    root: &ProcRoot,
    snapshot: &Snapshot,
    mappings: &[Mapping],
    read: impl FnOnce(&RunningMemory<'_>) -> Option<T>,
) -> (Option<T>, Duration) {
    let page_size = snapshot.provenance.page_size;
    match RunningMemory::open(root, snapshot.process.pid, page_size, mappings) {
        Ok(memory) => (read(&memory), Duration::from_nanos(memory.longest_call_ns())),
        Err(_) => (None, Duration::ZERO),
    }
}
