//! The growth of a process over the observation: steady, or a warm-up that ends.

use pagewise_model::evidence::ActivityPoint;
use pagewise_model::report::CellValue;
use pagewise_model::{Bytes, Reading};

use super::CauseEvidence;
use super::signs::cpu_shares;
use crate::cells::{float, text};
use crate::pools::PoolKind;

/// Shorter observations cannot distinguish growth from one burst of work.
const MIN_SECONDS: f64 = 2.5;
/// The observation is divided into this number of equal parts.
const PARTS: usize = 4;
/// 64 KiB per second are 5 GiB per day: most machines and cgroups are full within a week. Smaller
/// rates need an observation of minutes.
const MIN_RATE: f64 = 65536.0;
/// Less growth than this is one arena of CPython, or a few buffers.
const MIN_GROWTH: Bytes = Bytes::mib(1);
/// Each part of a steady growth has at least this share of the average, and the last part has more.
const STEADY: f64 = 0.25;
const STEADY_AT_END: f64 = 0.5;
/// A process that warms up grows less and less: its second half has less than this share of the
/// first.
const SECOND_HALF: f64 = 0.5;
/// A heap that is collected shrinks from time to time: by more than this share of the growth.
const DROP: f64 = 0.3;

/// Growth of the private memory of a process, in memory and in swap.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct SteadyGrowth {
    pub(super) bytes: Bytes,
    pub(super) seconds: f64,
}

impl SteadyGrowth {
    /// Bytes per second.
    pub(super) fn rate(self) -> f64 {
        float(self.bytes.0) / self.seconds
    }
}

/// Development of the private memory.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum MemoryTrend {
    /// It grows all the time.
    Steady(SteadyGrowth),
    /// It does not grow, or not all the time: the change in bytes, and the seconds.
    Bounded(i64, f64),
    /// The observation was too short.
    Unknown,
}

/// Private memory of a process at one time.
fn private(point: &ActivityPoint) -> Bytes {
    let anonymous = point.anonymous.clone().unwrap_or(point.resident);
    anonymous + point.swap.clone().unwrap_or_default()
}

/// The development of the private memory over the observation.
pub(super) fn trend(evidence: &CauseEvidence<'_>) -> MemoryTrend {
    let points = &evidence.all.activity;
    let Some(seconds) = evidence.seconds().filter(|it| *it >= MIN_SECONDS) else {
        return MemoryTrend::Unknown;
    };
    if points.len() <= 2 * PARTS {
        return MemoryTrend::Unknown;
    }
    let values: Vec<f64> = points.iter().map(|point| float(private(point).0)).collect();
    match steady_growth_of(&values, seconds) {
        Some(growth) => MemoryTrend::Steady(growth),
        None => MemoryTrend::Bounded(whole(values[values.len() - 1] - values[0]), seconds),
    }
}

/// The growth of the private memory in few large steps.
pub(super) fn stepped_growth(evidence: &CauseEvidence<'_>) -> Option<SteadyGrowth> {
    let values: Vec<f64> =
        evidence.all.activity.iter().map(|point| float(private(point).0)).collect();
    stepped_growth_of(&values, evidence.seconds()?)
}

/// The growth of a size that was read at equal distances of time, if it is steady.
pub(super) fn steady_growth_of(values: &[f64], seconds: f64) -> Option<SteadyGrowth> {
    if values.len() <= PARTS || seconds < MIN_SECONDS {
        return None;
    }
    let change = values[values.len() - 1] - values[0];
    let is_large = change >= float(MIN_GROWTH.0) && change / seconds >= MIN_RATE;
    let bytes = Bytes(whole(change).unsigned_abs());
    (is_large && is_steady(values)).then_some(SteadyGrowth { bytes, seconds })
}

/// True if a number that was read at equal distances of time grows steadily.
pub(super) fn is_steady_number(values: &[f64], seconds: f64) -> bool {
    values.len() > PARTS
        && seconds >= MIN_SECONDS
        && values[values.len() - 1] > values[0]
        && is_steady(values)
}

/// The growth of a size that changes in few large steps, such as that of an old generation, which
/// grows at collections only: it grows in both halves, and does not drop.
pub(super) fn stepped_growth_of(values: &[f64], seconds: f64) -> Option<SteadyGrowth> {
    if values.len() <= PARTS || seconds < MIN_SECONDS {
        return None;
    }
    let last = values.len() - 1;
    let change = values[last] - values[0];
    let is_large = change >= float(MIN_GROWTH.0) && change / seconds >= MIN_RATE;
    let first = values[last.div_ceil(2)] - values[0];
    let grows = first >= change * STEADY && change - first >= change * STEADY;
    let bytes = Bytes(whole(change).unsigned_abs());
    (is_large && grows && largest_drop(values) <= change * DROP)
        .then_some(SteadyGrowth { bytes, seconds })
}

#[expect(clippy::cast_possible_truncation, reason = "a difference of two sizes")]
fn whole(change: f64) -> i64 {
    change as i64
}

/// Smaller heaps that more than double within a short observation are filled for the first time:
/// the growth does not show yet whether it ends.
const ESTABLISHED: Bytes = Bytes::mib(64);
const FILLING: f64 = 0.5;
/// A small heap is filled for the first time within less than this time.
const FILLING_SECONDS: f64 = 30.0;

/// True if the memory that grows is mostly new, so that a cache that is filled up to its bound
/// looks the same.
pub(super) fn is_first_filling(evidence: &CauseEvidence<'_>, growth: SteadyGrowth) -> bool {
    let is_new = |share| share > FILLING && growth.seconds < FILLING_SECONDS;
    part_of_small_memory(evidence, growth)
        .is_some_and(|share| is_new(share) || is_starved(evidence, growth, share))
}

/// The growth as a part of the private memory, if that is small.
fn part_of_small_memory(evidence: &CauseEvidence<'_>, growth: SteadyGrowth) -> Option<f64> {
    let now = evidence.all.activity.last().map(private)?;
    (now < ESTABLISHED).then(|| growth.bytes.fraction_of(now).unwrap_or(1.0))
}

/// Seconds for which a process must run undisturbed, so that its growth in them is more than a part
/// of one period of its work.
const MIN_OWN_SECONDS: f64 = 0.5;

/// True if the process waited for CPUs nearly all the time while its memory grew notably.
fn is_starved(evidence: &CauseEvidence<'_>, growth: SteadyGrowth, share: f64) -> bool {
    share > FILLING / 2.0 && growth.seconds / evidence.demand() < MIN_OWN_SECONDS
}

/// True if a small heap grew while the process waited for CPUs nearly all the time.
pub(super) fn is_starved_filling(evidence: &CauseEvidence<'_>, growth: SteadyGrowth) -> bool {
    part_of_small_memory(evidence, growth).is_some_and(|share| is_starved(evidence, growth, share))
}

/// A program that has run for longer is a service, and not a piece of work such as the compilation
/// of a file.
const MAX_WORK_SECONDS: f64 = 120.0;
/// A program with one thread that waits less often than this per second waits for nothing.
const FEW_WAITS: f64 = 4.0;
/// A program that computes uses at least this share of a CPU, or asks for it on a busy machine.
const COMPUTES: f64 = 0.1;

/// True for a young program with one thread that computes without waiting: its memory grows with
/// the piece of work that it does, and is released at its end.
pub(super) fn works_through_input(evidence: &CauseEvidence<'_>) -> bool {
    let Some((first, last)) = evidence.ends() else { return false };
    let waits = first.main_thread_waits.clone().ok().zip(last.main_thread_waits.clone().ok());
    let Some(((before, after), seconds)) = waits.zip(evidence.seconds()) else { return false };
    let is_young = match &evidence.now.process.age_ns {
        Ok(age) => float(*age) / 1e9 <= MAX_WORK_SECONDS,
        Err(_) => false,
    };
    let computes = |(all, _): (f64, f64)| all * evidence.demand() >= COMPUTES;
    let computes = cpu_shares(evidence).is_some_and(computes);
    let waits = float(after.saturating_sub(before)) / seconds;
    is_young && computes && last.threads == 1 && waits < FEW_WAITS
}

/// True if values grow in nearly all parts, no slower at the end, and without a large drop.
fn is_steady(values: &[f64]) -> bool {
    let last = values.len() - 1;
    let at = |part: usize| values[last * part / PARTS];
    let change = values[last] - values[0];
    let average = change / float(PARTS as u64);
    let grown = (0..PARTS).filter(|part| at(part + 1) - at(*part) >= average * STEADY).count();
    let (half, second) = (at(PARTS / 2) - values[0], values[last] - at(PARTS / 2));
    let at_end = values[last] - at(PARTS - 1);
    grown + 1 >= PARTS
        && at_end >= average * STEADY_AT_END
        && second >= half * SECOND_HALF
        && largest_drop(values) <= change * DROP
}

/// The largest difference between a value and one after it that is lower.
fn largest_drop(values: &[f64]) -> f64 {
    let mut highest = f64::MIN;
    let mut drop = 0.0_f64;
    for value in values {
        highest = highest.max(*value);
        drop = drop.max(highest - value);
    }
    drop
}

/// Kind of the memory that grows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum GrownMemory {
    /// Blocks of malloc, of glibc or of another allocator.
    Malloc,
    /// Memory of a language runtime.
    Runtime,
    /// Mappings of the program's own.
    Mappings,
    /// Stacks of threads, of ended ones too.
    Stacks,
    /// Memory that cannot grow without bound: variables, copies of file pages.
    Bounded,
}

impl GrownMemory {
    pub(super) const fn of(kind: PoolKind) -> GrownMemory {
        match kind {
            PoolKind::Heap
            | PoolKind::MallocArena
            | PoolKind::MallocChunk
            | PoolKind::Allocator
            | PoolKind::Pagewise => GrownMemory::Malloc,
            PoolKind::Runtime | PoolKind::Go | PoolKind::Jit => GrownMemory::Runtime,
            PoolKind::Anonymous | PoolKind::Named | PoolKind::Sanitizer => GrownMemory::Mappings,
            PoolKind::MainStack | PoolKind::ThreadStack | PoolKind::CachedStack => {
                GrownMemory::Stacks
            }
            _ => GrownMemory::Bounded,
        }
    }
}

/// Growth of one kind of memory between the two snapshots.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct KindGrowth {
    /// Change of memory in pages and in swap.
    pub(super) used: i64,
    /// Change of address space.
    pub(super) reserved: i64,
    /// Change of the number of mappings.
    pub(super) mappings: i64,
}

/// Growth of a kind of memory between the two snapshots; `None` without two snapshots.
pub(super) fn growth_of(evidence: &CauseEvidence<'_>, memory: GrownMemory) -> Option<KindGrowth> {
    let now = evidence.subject.as_ref().ok()?;
    let before = evidence.before?;
    let sums = |subject: &crate::explain::ExplainSubject<'_>| {
        let mut sum = [0_i64; 3];
        for (pool, sums) in subject.pools.list().iter().zip(&subject.sums) {
            if GrownMemory::of(pool.kind) == memory {
                let used = known(&sums.resident) + known(&sums.swap);
                sum[0] = sum[0].saturating_add_unsigned(used.0);
                sum[1] = sum[1].saturating_add_unsigned(sums.reserved.0);
                sum[2] = sum[2].saturating_add_unsigned(sums.mappings);
            }
        }
        sum
    };
    let (now, before) = (sums(now), sums(before));
    Some(KindGrowth {
        used: now[0] - before[0],
        reserved: now[1] - before[1],
        mappings: now[2] - before[2],
    })
}

fn known(reading: &Reading<Bytes>) -> Bytes {
    reading.clone().unwrap_or_default()
}

/// The kind of memory that grew most between the two snapshots.
pub(super) fn grown_most(evidence: &CauseEvidence<'_>) -> Option<(GrownMemory, KindGrowth)> {
    let kinds = [
        GrownMemory::Malloc,
        GrownMemory::Runtime,
        GrownMemory::Mappings,
        GrownMemory::Stacks,
        GrownMemory::Bounded,
    ];
    let grown = kinds.into_iter().filter_map(|kind| Some((kind, growth_of(evidence, kind)?)));
    grown.max_by_key(|(_, growth)| growth.used)
}

/// The limit that the growth reaches first, and the seconds until then.
pub(super) fn time_to_limit(
    evidence: &CauseEvidence<'_>,
    growth: SteadyGrowth,
) -> Option<(&'static str, f64)> {
    let cgroup = evidence.now.cgroup.as_ref().ok();
    let in_cgroup = cgroup.and_then(|cgroup| {
        let free = cgroup.limit?.saturating_sub(*cgroup.usage.as_ref().ok()?);
        Some(("the limit of the cgroup", free))
    });
    let machine = &evidence.now.machine;
    let in_ram =
        machine.mem_available.as_ref().ok().map(|free| ("the memory of the machine", *free));
    let room = in_cgroup.into_iter().chain(in_ram).min_by_key(|(_, free)| *free)?;
    Some((room.0, float(room.1.0) / growth.rate()))
}

/// Danger that a growth ends the process, by the time until the limit.
pub(super) fn risk_of(seconds: Option<f64>) -> f64 {
    const MINUTE: f64 = 60.0;
    const DAY: f64 = 86400.0;
    match seconds {
        Some(seconds) if seconds < 10.0 * MINUTE => 1.0,
        Some(seconds) if seconds < 60.0 * MINUTE => 0.9,
        Some(seconds) if seconds < DAY => 0.8,
        Some(seconds) if seconds < 7.0 * DAY => 0.6,
        Some(_) | None => 0.4,
    }
}

/// A duration in words, with one unit.
pub(super) fn duration_words(seconds: f64) -> String {
    let units = [(86400.0, "days"), (3600.0, "hours"), (60.0, "minutes")];
    let fits = units.into_iter().find(|(unit, _)| seconds >= 2.0 * unit);
    let (unit, name) = fits.unwrap_or((1.0, "seconds"));
    format!("{:.0} {name}", seconds / unit)
}

/// A line that excludes growth, with its figure.
pub(super) fn no_growth(change: i64, seconds: f64) -> Vec<CellValue> {
    vec![
        text("private memory changed by "),
        CellValue::Change(change),
        text(format!(" in {seconds:.0} s, not steadily upwards")),
    ]
}
