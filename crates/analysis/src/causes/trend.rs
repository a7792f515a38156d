//! The growth of a process during the observation: steady growth, or a warm-up that ends.

use pagewise_model::evidence::ActivityPoint;
use pagewise_model::report::CellValue;
use pagewise_model::{Bytes, Reading};

use super::CauseEvidence;
use super::signs::cpu_shares;
use crate::cells::{float, text};
use crate::pools::PoolKind;

/// Minimum duration in seconds: a shorter observation cannot distinguish growth from a burst of
/// work.
const MIN_SECONDS: f64 = 2.5;
/// Number of equal parts into which the observation is divided.
const PARTS: usize = 4;
/// Minimum rate of growth in bytes per second: 64 KiB per second are 5 GiB per day, which fills
/// most machines and cgroups within a week. Slower growth needs an observation of minutes.
const MIN_RATE: f64 = 65536.0;
/// Minimum growth in bytes: smaller growth may be one arena of CPython, or a few buffers.
const MIN_GROWTH: Bytes = Bytes::mib(1);
/// Minimum growth in bytes for which leaked blocks of at least the same size show a leak.
const MIN_SLOW_GROWTH: Bytes = Bytes::kib(256);
/// Minimum growth of each part of the observation, as a share of the average growth of the parts.
/// One part may grow less.
const STEADY: f64 = 0.25;
/// Minimum growth of the last part of the observation, as a share of the average growth of the
/// parts.
const STEADY_AT_END: f64 = 0.5;
/// Minimum growth of the second half, as a share of the growth of the first half: a process that
/// warms up grows less and less.
const SECOND_HALF: f64 = 0.5;
/// Maximum drop of a size as a share of its growth: the size of a heap that is collected has larger
/// drops.
const DROP: f64 = 0.3;

/// Growth of private memory, resident or in swap.
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

/// Development of the private memory during the observation.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum MemoryTrend {
    /// The memory grows all the time.
    Steady(SteadyGrowth),
    /// The memory does not grow, or not all the time: the change in bytes, and the duration in
    /// seconds.
    Bounded(i64, f64),
    /// The observation is too short, or has too few readings.
    Unknown,
}

/// Private memory of a process at one time point, in bytes.
fn private(point: &ActivityPoint) -> Bytes {
    let anonymous = point.anonymous.clone().unwrap_or(point.resident);
    anonymous + point.swap.clone().unwrap_or_default()
}

/// Private memory at each reading, in bytes.
fn private_values(evidence: &CauseEvidence<'_>) -> Vec<f64> {
    evidence.all.activity.iter().map(|point| float(private(point).0)).collect()
}

/// Judges the development of the private memory during the observation.
pub(super) fn trend(evidence: &CauseEvidence<'_>) -> MemoryTrend {
    let points = &evidence.all.activity;
    let Some(seconds) = evidence.seconds().filter(|it| *it >= MIN_SECONDS) else {
        return MemoryTrend::Unknown;
    };
    if points.len() <= 2 * PARTS {
        return MemoryTrend::Unknown;
    }
    let values = private_values(evidence);
    match steady_growth_of(&values, seconds) {
        Some(growth) => MemoryTrend::Steady(growth),
        None => MemoryTrend::Bounded(whole(values[values.len() - 1] - values[0]), seconds),
    }
}

/// Returns the growth of the private memory if it is steady but too small for
/// [`MemoryTrend::Steady`].
pub(super) fn slow_growth(evidence: &CauseEvidence<'_>) -> Option<SteadyGrowth> {
    let values = private_values(evidence);
    let growth = steady_growth_from(&values, evidence.seconds()?, MIN_SLOW_GROWTH);
    growth.filter(|growth| values.len() > 2 * PARTS && growth.bytes < MIN_GROWTH)
}

/// Returns the growth of the private memory if it grows in a few large steps.
pub(super) fn stepped_growth(evidence: &CauseEvidence<'_>) -> Option<SteadyGrowth> {
    stepped_growth_of(&private_values(evidence), evidence.seconds()?)
}

/// Returns the growth of a size if it is steady. Requires readings at equal intervals.
pub(super) fn steady_growth_of(values: &[f64], seconds: f64) -> Option<SteadyGrowth> {
    steady_growth_from(values, seconds, MIN_GROWTH)
}

/// Returns the growth of a size if it is steady and at least `least`.
fn steady_growth_from(values: &[f64], seconds: f64, least: Bytes) -> Option<SteadyGrowth> {
    if values.len() <= PARTS || seconds < MIN_SECONDS {
        return None;
    }
    let change = values[values.len() - 1] - values[0];
    let is_large = change >= float(least.0) && change / seconds >= MIN_RATE;
    let bytes = Bytes(whole(change).unsigned_abs());
    (is_large && is_steady(values)).then_some(SteadyGrowth { bytes, seconds })
}

/// True if a number grows steadily. Requires readings at equal intervals.
pub(super) fn is_steady_number(values: &[f64], seconds: f64) -> bool {
    values.len() > PARTS
        && seconds >= MIN_SECONDS
        && values[values.len() - 1] > values[0]
        && is_steady(values)
}

/// Returns the growth of a size that grows in a few large steps, such as that of an old generation,
/// which grows only at collections. The size must grow in both halves of the observation, without a
/// large drop.
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

/// Minimum size in bytes of an established heap. A smaller heap that more than doubles within a
/// short observation is filled for the first time: its growth may end.
const ESTABLISHED: Bytes = Bytes::mib(64);
/// Minimum size in bytes of an established heap of a process that began less than
/// [`JUST_BEGUN_SECONDS`] ago.
const ESTABLISHED_EARLY: Bytes = Bytes::mib(128);
/// Age in seconds up to which a server may still fill its caches for the first time.
const JUST_BEGUN_SECONDS: f64 = 60.0;
/// Minimum growth of a heap that is filled for the first time, as a share of the private memory.
const FILLING: f64 = 0.5;
/// Maximum duration in seconds of the first filling of a small heap.
const FILLING_SECONDS: f64 = 30.0;

/// True if most of the memory is new, so that the growth may be that of a cache up to its bound.
pub(super) fn is_first_filling(evidence: &CauseEvidence<'_>, growth: SteadyGrowth) -> bool {
    is_filling_below(ESTABLISHED, evidence, growth)
}

/// True for [`is_first_filling`], and for a larger heap of a process that has just begun. Requires
/// that the program still reaches the blocks that grow.
pub(super) fn may_fill_a_cache(evidence: &CauseEvidence<'_>, growth: SteadyGrowth) -> bool {
    let has_just_begun = age_seconds(evidence).is_some_and(|age| age < JUST_BEGUN_SECONDS);
    let established = if has_just_begun { ESTABLISHED_EARLY } else { ESTABLISHED };
    is_filling_below(established, evidence, growth)
}

fn is_filling_below(
    established: Bytes,
    evidence: &CauseEvidence<'_>,
    growth: SteadyGrowth,
) -> bool {
    let is_new = |share| share > FILLING && growth.seconds < FILLING_SECONDS;
    part_of_small_memory(established, evidence, growth)
        .is_some_and(|share| is_new(share) || is_starved(evidence, growth, share))
}

/// Returns the growth as a share of the private memory; `None` if the private memory is established
/// by its size.
fn part_of_small_memory(
    established: Bytes,
    evidence: &CauseEvidence<'_>,
    growth: SteadyGrowth,
) -> Option<f64> {
    let now = evidence.all.activity.last().map(private)?;
    (now < established).then(|| growth.bytes.fraction_of(now).unwrap_or(1.0))
}

/// Minimum time in seconds for which a process must get CPUs. In less time, its growth may cover
/// only a part of one period of its work.
const MIN_OWN_SECONDS: f64 = 0.5;

/// True if the process waited for CPUs nearly all the time while its memory grew by a notable
/// share.
fn is_starved(evidence: &CauseEvidence<'_>, growth: SteadyGrowth, share: f64) -> bool {
    share > FILLING / 2.0 && growth.seconds / evidence.demand() < MIN_OWN_SECONDS
}

/// True if a small heap grew while the process waited for CPUs nearly all the time.
pub(super) fn is_starved_filling(evidence: &CauseEvidence<'_>, growth: SteadyGrowth) -> bool {
    let share = part_of_small_memory(ESTABLISHED, evidence, growth);
    share.is_some_and(|share| is_starved(evidence, growth, share))
}

/// Maximum age in seconds of a program that works through its input, such as a compiler: an older
/// program is a service.
const MAX_WORK_SECONDS: f64 = 120.0;
/// Maximum number of waits per second of a program that computes without waiting.
const FEW_WAITS: f64 = 4.0;
/// Minimum share of a CPU that a program which computes uses, or would use if CPUs were free.
const COMPUTES: f64 = 0.1;

/// True for a young program with one thread that computes without waiting: its memory grows with
/// its work, and is released at the end of the work.
pub(super) fn works_through_input(evidence: &CauseEvidence<'_>) -> bool {
    let Some((first, last)) = evidence.ends() else { return false };
    let waits = first.main_thread_waits.clone().ok().zip(last.main_thread_waits.clone().ok());
    let Some(((before, after), seconds)) = waits.zip(evidence.seconds()) else { return false };
    let is_young = age_seconds(evidence).is_some_and(|age| age <= MAX_WORK_SECONDS);
    let computes = |(all, _): (f64, f64)| all * evidence.demand() >= COMPUTES;
    let computes = cpu_shares(evidence).is_some_and(computes);
    let waits = float(after.saturating_sub(before)) / seconds;
    is_young && computes && last.threads == 1 && waits < FEW_WAITS
}

/// Returns the age of the process at the end of the observation.
fn age_seconds(evidence: &CauseEvidence<'_>) -> Option<f64> {
    evidence.now.process.age_ns.as_ref().ok().map(|age| float(*age) / 1e9)
}

/// True if values grow in all parts of the observation except at most one, not much more slowly at
/// the end, and without a large drop.
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

/// Returns the largest drop from a value to any later value.
fn largest_drop(values: &[f64]) -> f64 {
    let mut highest = f64::MIN;
    let mut drop = 0.0_f64;
    for value in values {
        highest = highest.max(*value);
        drop = drop.max(highest - value);
    }
    drop
}

/// Kind of memory that grows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum GrownMemory {
    /// Blocks of malloc: of glibc, or of another allocator.
    Malloc,
    /// Memory of a language runtime.
    Runtime,
    /// Mappings that the program itself requested.
    Mappings,
    /// Stacks of threads, including those of ended threads.
    Stacks,
    /// Memory whose growth is bounded: variables, copies of file pages.
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

/// Growth of one kind of memory between two snapshots.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct KindGrowth {
    /// Change of resident and swapped memory in bytes.
    pub(super) used: i64,
    /// Change of address space in bytes.
    pub(super) reserved: i64,
    /// Change of the number of mappings.
    pub(super) mappings: i64,
}

/// Returns the growth of a kind of memory between the two snapshots; `None` without two snapshots.
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

/// Returns the kind of memory that grew most between the two snapshots, and its growth.
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

/// Returns the name of the limit that the growth reaches first, and the seconds until then.
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

/// Risk that growth ends the process, by the time until the limit in seconds.
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

/// Formats a duration in words with one unit.
pub(super) fn duration_words(seconds: f64) -> String {
    let units = [(86400.0, "days"), (3600.0, "hours"), (60.0, "minutes")];
    let fits = units.into_iter().find(|(unit, _)| seconds >= 2.0 * unit);
    let (unit, name) = fits.unwrap_or((1.0, "seconds"));
    format!("{:.0} {name}", seconds / unit)
}

/// Returns the line that excludes growth, with the change in bytes and the duration.
pub(super) fn no_growth(change: i64, seconds: f64) -> Vec<CellValue> {
    vec![
        text("private memory changed by "),
        CellValue::Change(change),
        text(format!(" in {seconds:.0} s, not steadily upwards")),
    ]
}
