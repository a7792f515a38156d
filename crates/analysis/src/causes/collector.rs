//! The growth of a collected heap, judged by the counters of its garbage collector: either objects
//! that survive collections, or garbage that the next collection frees.

use pagewise_model::Bytes;
use pagewise_model::evidence::CollectorPoint;
use pagewise_model::report::CellValue;

use super::CauseEvidence;
use super::signs::{cpu_shares, private_memory};
use super::trend::{
    GrownMemory, MemoryTrend, SteadyGrowth, grown_most, is_steady_number, steady_growth_of,
    stepped_growth, stepped_growth_of, trend,
};
use crate::cells::{float, text, whole_bytes};

/// After this number of collections since its start, a program has filled its heap for the first
/// time. Each collection computes, from the live objects, the heap size at which the next
/// collection begins.
const ESTABLISHED: u64 = 3;
/// Minimum growth as a share of the old generation. Smaller growth is promoted garbage: objects
/// that were moved to the old generation and then became unreachable.
const MIN_SHARE: f64 = 0.03;
/// Minimum growth as a share of the old generation if the number of collections is unknown.
const MIN_SHARE_UNCOUNTED: f64 = 0.1;
/// Growth of the private memory in a few large steps, as a share of the runtime's memory, that
/// shows objects which survive collections. Less growth is ordinary variation, and more growth is a
/// heap that is filled for the first time.
const SHARE_OF_STEPS: std::ops::Range<f64> = 0.05..0.25;
/// Minimum size in bytes of the old generation: a smaller old generation is filled for the first
/// time with promoted garbage.
const MIN_OLD: Bytes = Bytes::mib(24);
/// Minimum size of a Go heap that shows that the collector is off, if no collection happened: by
/// default, the first collection begins at 4 MiB.
const MUST_BE_COLLECTED: Bytes = Bytes::mib(32);
/// Maximum growth in bytes that counts as garbage if no collection happened, such as the growth of
/// a service that was busy at its start.
const MAX_GARBAGE: Bytes = Bytes::mib(2);
const NS_PER_SECOND: f64 = 1e9;
/// Maximum number of readings for which the observation cannot be divided into parts.
const MAX_FEW: usize = 4;

/// The conclusion about the growth of a collected heap.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum CollectedGrowth {
    /// The objects that survive collections grow by this amount. The second value is the proof.
    Survivors(SteadyGrowth, SurvivalProof),
    /// The counters show only garbage. The value is the report's line that excludes the cause.
    Garbage(Vec<CellValue>),
    /// The old generation grows, and no full collection happened meanwhile. Earlier full
    /// collections freed garbage of the old generation, so the growth may be garbage.
    BeforeFullCollection,
    /// The counters do not show whether the growth is garbage.
    Unknown,
}

/// Reason why the growth is not garbage.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum SurvivalProof {
    /// This number of collections during the observation did not free the growth.
    Collections(u64),
    /// The old generation was larger after each of this number of full collections than after the
    /// previous one.
    FullCollections(u64),
    /// This number of collections since the start of the program has set the size of the heap.
    SinceStart(u64),
    /// The growth is in the old generation. The number of collections is unknown.
    OldGeneration,
    /// The collector never ran.
    NeverCollected,
    /// The growth is memory of malloc: the old generation does not grow.
    OutsideHeap,
    /// This number of classes was loaded and not unloaded during the observation.
    Classes(u64),
}

impl SurvivalProof {
    /// Returns the reason in words, for the end of a sentence.
    pub(super) fn words(self) -> Vec<CellValue> {
        match self {
            SurvivalProof::Collections(count) => {
                vec![
                    CellValue::Count(count),
                    text(" garbage collections meanwhile did not free them"),
                ]
            }
            SurvivalProof::FullCollections(count) => vec![
                text("after each of "),
                CellValue::Count(count),
                text(" full garbage collections meanwhile, they were more"),
            ],
            SurvivalProof::SinceStart(count) => vec![
                text("they survive garbage collections, of which there were "),
                CellValue::Count(count),
                text(" since the start"),
            ],
            SurvivalProof::OldGeneration => {
                vec![text("they survived collections of the young generation")]
            }
            SurvivalProof::OutsideHeap => vec![text(
                "the memory lies outside of the collected heap, in buffers that malloc allocates for objects",
            )],
            SurvivalProof::Classes(count) => vec![
                CellValue::Count(count),
                text(
                    " classes were loaded meanwhile, whose loaders are still reachable: their metadata and code lie outside of the \
                     collected heap",
                ),
            ],
            SurvivalProof::NeverCollected => vec![text(
                "the garbage collector has not run since the start, so that garbage stays (GOGC=off, or a large GOGC)",
            )],
        }
    }
}

/// Judges the growth by the counters. `memory` is the size of the memory of the runtime.
pub(super) fn collected_growth(evidence: &CauseEvidence<'_>, memory: Bytes) -> CollectedGrowth {
    let Some([first, .., last]) = evidence.all.collector.value().map(Vec::as_slice) else {
        return CollectedGrowth::Unknown;
    };
    let during = last.collections.zip(first.collections);
    let during = during.map(|(now, before)| now.saturating_sub(before));
    match (last.old, last.collections) {
        (Some(old), _) => of_old_generation(evidence, old, during),
        (None, Some(0)) if memory >= MUST_BE_COLLECTED => {
            of_private_memory(evidence, SurvivalProof::NeverCollected)
        }
        (None, Some(count)) if count >= ESTABLISHED => {
            match (of_private_memory(evidence, SurvivalProof::SinceStart(count)), during) {
                (CollectedGrowth::Survivors(growth, _), Some(0)) if growth.bytes < MAX_GARBAGE => {
                    CollectedGrowth::Garbage(between_collections(growth))
                }
                (CollectedGrowth::Unknown, Some(during)) => in_steps(evidence, memory, during),
                (found, _) => found,
            }
        }
        (None, _) => CollectedGrowth::Unknown,
    }
}

/// Returns the line that excludes a cause because growth is small and no collection happened.
fn between_collections(growth: SteadyGrowth) -> Vec<CellValue> {
    vec![
        text("the heap grew by "),
        CellValue::Bytes(growth.bytes.0),
        text(" without a garbage collection meanwhile: this may be garbage"),
    ]
}

fn of_old_generation(
    evidence: &CauseEvidence<'_>,
    old: Bytes,
    during: Option<u64>,
) -> CollectedGrowth {
    let points = evidence.all.collector.value().map_or(&[][..], Vec::as_slice);
    let least = if during.is_some() { MIN_SHARE } else { MIN_SHARE_UNCOUNTED };
    if let Some((growth, count)) = class_growth(evidence, points) {
        return CollectedGrowth::Survivors(growth, SurvivalProof::Classes(count));
    }
    let growth = old_growth(points).or_else(|| rising(evidence, points)).filter(|growth| {
        old >= MIN_OLD && growth.bytes.fraction_of(old).is_some_and(|share| share >= least)
    });
    let full = FullCollections::of(points);
    if let Some(growth) = full.growth {
        return CollectedGrowth::Survivors(growth, SurvivalProof::FullCollections(full.during));
    }
    match (growth, during) {
        (_, Some(0)) => CollectedGrowth::Unknown,
        (Some(_), _) if full.during == 0 && full.before >= MIN_FULL => {
            CollectedGrowth::BeforeFullCollection
        }
        (Some(growth), Some(count)) => {
            CollectedGrowth::Survivors(growth, SurvivalProof::Collections(count))
        }
        (Some(growth), None) => CollectedGrowth::Survivors(growth, SurvivalProof::OldGeneration),
        (None, _) => CollectedGrowth::Garbage(vec![
            text("the old generation has "),
            CellValue::Bytes(old.0),
            text(
                " and does not grow steadily: the objects that survive collections do not become more",
            ),
        ]),
    }
}

/// Minimum number of full collections before the observation that shows that the old generation
/// fills with garbage: a virtual machine may make one at its start.
const MIN_FULL: u64 = 2;

/// Full collections of the old generation.
struct FullCollections {
    before: u64,
    during: u64,
    /// Growth of the old generation from the first full collection of the observation to the last
    /// one; `None` if the old generation was not larger after each of at least two.
    growth: Option<SteadyGrowth>,
}

impl FullCollections {
    fn of(points: &[CollectorPoint]) -> FullCollections {
        let count = |point: Option<&CollectorPoint>| point.and_then(|it| it.full).unwrap_or(0);
        let before = count(points.first());
        let is_first_after = |pair: &&[CollectorPoint]| pair[1].full > pair[0].full;
        let after: Vec<(u64, Bytes)> = points
            .windows(2)
            .filter(is_first_after)
            .filter_map(|pair| Some((pair[1].at_ns, pair[1].old?)))
            .collect();
        let is_rising = after.len() >= 2 && after.windows(2).all(|pair| pair[0].1 < pair[1].1);
        let growth = after.first().zip(after.last()).filter(|_| is_rising);
        let growth = growth.filter(|((_, first), (_, last))| {
            *last >= MIN_OLD && (*last - *first).fraction_of(*last).unwrap_or(0.0) >= MIN_SHARE
        });
        let growth = growth.map(|((began, first), (ended, last))| SteadyGrowth {
            bytes: *last - *first,
            seconds: float(ended.saturating_sub(*began)) / NS_PER_SECOND,
        });
        FullCollections { before, during: count(points.last()).saturating_sub(before), growth }
    }
}

/// Time from the first to the last reading.
fn seconds_of(points: &[CollectorPoint]) -> Option<f64> {
    let (first, last) = (points.first()?, points.last()?);
    Some(float(last.at_ns.saturating_sub(first.at_ns)) / NS_PER_SECOND)
}

/// Returns the growth of the old generation if the growth is steady or in a few large steps; else
/// `None`.
fn old_growth(points: &[CollectorPoint]) -> Option<SteadyGrowth> {
    let values: Option<Vec<f64>> = points.iter().map(|it| Some(float(it.old?.0))).collect();
    let (values, seconds) = (values?, seconds_of(points)?);
    steady_growth_of(&values, seconds).or_else(|| stepped_growth_of(&values, seconds))
}

/// Minimum number of newly loaded classes per second that counts as growth by classes.
const MANY_CLASSES: f64 = 10.0;
/// Minimum number of bytes that a class takes: with less growth per class, the growth has another
/// reason.
const BYTES_PER_CLASS: u64 = 2048;
/// Minimum share of a CPU that a starting program uses: a starting program loads classes, too.
const STARTING: f64 = 0.5;

/// Returns the growth of the private memory by classes that are loaded steadily and not unloaded,
/// and the number of these classes.
fn class_growth(
    evidence: &CauseEvidence<'_>,
    points: &[CollectorPoint],
) -> Option<(SteadyGrowth, u64)> {
    let (first, last) = (points.first()?, points.last()?);
    let values: Option<Vec<f64>> = points.iter().map(|it| Some(float(it.classes?))).collect();
    let count = last.classes?.checked_sub(first.classes?)?;
    let seconds = seconds_of(points)?;
    let is_steady = is_steady_number(&values?, seconds) && float(count) >= MANY_CLASSES * seconds;
    let is_starting =
        cpu_shares(evidence).is_none_or(|(all, _)| all * evidence.demand() >= STARTING);
    let rate = evidence.growth(private_memory)?;
    let seconds = evidence.seconds()?;
    let bytes = whole_bytes(rate * seconds);
    let explains = bytes.0 >= count.saturating_mul(BYTES_PER_CLASS);
    (is_steady && !is_starting && explains).then_some((SteadyGrowth { bytes, seconds }, count))
}

/// Returns the growth of the old generation if there are few readings, as for a large heap on a
/// busy machine. Each reading must be higher than the previous one, and the private memory must
/// grow steadily.
fn rising(evidence: &CauseEvidence<'_>, points: &[CollectorPoint]) -> Option<SteadyGrowth> {
    const MIN_POINTS: usize = 3;
    let MemoryTrend::Steady(of_memory) = trend(evidence) else { return None };
    let values: Option<Vec<u64>> = points.iter().map(|it| Some(it.old?.0)).collect();
    let values = values.filter(|values| (MIN_POINTS..=MAX_FEW).contains(&values.len()))?;
    let bytes = Bytes(values.last()?.saturating_sub(*values.first()?));
    let is_rising = values.windows(2).all(|pair| pair[0] < pair[1]);
    is_rising.then_some(SteadyGrowth { bytes, ..of_memory })
}

/// Returns the growth of the private memory, unless it is memory of malloc. The collector neither
/// allocates nor frees blocks of malloc, such as those of C code that a Go program calls.
fn of_private_memory(evidence: &CauseEvidence<'_>, proof: SurvivalProof) -> CollectedGrowth {
    let is_of_malloc = matches!(grown_most(evidence), Some((GrownMemory::Malloc, _)));
    match trend(evidence) {
        MemoryTrend::Steady(growth) if !is_of_malloc => CollectedGrowth::Survivors(growth, proof),
        MemoryTrend::Steady(_) => CollectedGrowth::Unknown,
        MemoryTrend::Bounded(..) | MemoryTrend::Unknown => CollectedGrowth::Unknown,
    }
}

/// Judges the growth of a heap that grows in steps: after a collection, the heap does not grow
/// until the program has reused the freed memory. Without a collection during the observation,
/// steps prove nothing.
fn in_steps(evidence: &CauseEvidence<'_>, memory: Bytes, during: u64) -> CollectedGrowth {
    let fits = |growth: &SteadyGrowth| {
        growth.bytes.fraction_of(memory).is_some_and(|share| SHARE_OF_STEPS.contains(&share))
    };
    match stepped_growth(evidence).filter(fits) {
        Some(growth) if during > 0 => {
            CollectedGrowth::Survivors(growth, SurvivalProof::Collections(during))
        }
        _ => CollectedGrowth::Unknown,
    }
}

#[cfg(test)]
mod tests {
    use pagewise_model::evidence::{Evidence, Gathered};

    use super::*;
    use crate::causes::made::{activity, evidence, present, verdict};
    use crate::sample::{resident, snapshot};
    use pagewise_model::cause::Verdict;

    const MIB: u64 = 1 << 20;

    /// Returns synthetic evidence of a process whose memory grows from 60 MiB by this number of MiB
    /// in 10 s, with counters of its collector each second.
    fn growing(
        program: &str,
        mib: u64,
        point: impl Fn(u64) -> (Option<u64>, Option<u64>),
    ) -> Evidence {
        let at = |mib: u64| {
            let line = format!("7f0000000000-{:x} rw-p 0 0 ", 0x7f00_0000_0000 + mib * MIB);
            let mut made = snapshot(vec![resident(&line, mib * MIB)]);
            made.process.exe = Ok(program.into());
            made
        };
        let mut made = evidence(at(60), at(60 + mib));
        made.activity = activity((0..40).map(|step| 60 * MIB + step * mib * MIB / 39));
        let points = (0..10).map(|second| {
            let (collections, old) = point(second);
            let old = old.map(Bytes::mib);
            let at_ns = second * 1_000_000_000;
            CollectorPoint { at_ns, collections, old, ..CollectorPoint::default() }
        });
        made.collector = Gathered::Value(points.collect());
        made
    }

    #[test]
    fn an_old_generation_that_grows_over_collections_is_a_cause() {
        let made = growing("/usr/bin/node", 40, |second| (None, Some(40 + second)));
        assert_eq!(present(&made, "foreign-heap").confidence.key(), "possible");
        let made = growing("/usr/bin/node", 40, |second| (Some(20 + second), Some(40 + second)));
        assert_eq!(present(&made, "foreign-heap").confidence.key(), "likely");
    }

    #[test]
    fn an_old_generation_that_grows_in_steps_is_a_cause() {
        let steps = [32, 43, 43, 43, 43, 44, 55, 55, 55, 55];
        let at = |second: u64| steps[usize::try_from(second).unwrap()];
        present(&growing("/usr/bin/node", 40, |second| (None, Some(at(second)))), "foreign-heap");
        // One step may be the start of the program, and a step that is freed later is garbage.
        for old in
            [[32, 43, 43, 43, 43, 43, 43, 43, 43, 43], [32, 48, 56, 57, 40, 41, 42, 58, 58, 44]]
        {
            let at = |second: u64| old[usize::try_from(second).unwrap()];
            let made = growing("/usr/bin/node", 40, |second| (None, Some(at(second))));
            assert!(matches!(verdict(&made, "foreign-heap"), Verdict::RuledOut(_)), "{old:?}");
        }
    }

    #[test]
    fn growth_before_a_full_collection_may_be_garbage() {
        let with = |full: [u64; 10], old: [u64; 10]| {
            let at = |second: u64| usize::try_from(second).unwrap();
            let mut made = growing("/usr/lib/jvm/bin/java", 2, |second| {
                (Some(20 + second), Some(old[at(second)]))
            });
            let mut machine = crate::causes::made::glibc();
            machine.name = "/usr/lib/jvm/lib/server/libjvm.so".into();
            for taken in [Some(&mut made.first), last_of(&mut made.last)].into_iter().flatten() {
                taken.objects.push(machine.clone());
            }
            if let Gathered::Value(points) = &mut made.collector {
                for (point, full) in points.iter_mut().zip(full) {
                    point.full = Some(full);
                }
            }
            verdict(&made, "foreign-heap")
        };
        let rising = [40, 44, 48, 52, 56, 60, 64, 68, 72, 76];
        assert!(matches!(with([6; 10], rising), Verdict::Unknown(..)));
        assert!(matches!(with([0; 10], rising), Verdict::Present(_)));
        // Two full collections of this observation leave more and more objects.
        let full = [6, 6, 6, 7, 7, 7, 7, 8, 8, 8];
        let lows = [60, 75, 90, 40, 55, 70, 85, 46, 60, 75];
        assert!(matches!(with(full, lows), Verdict::Present(_)));
        let same_lows = [60, 75, 90, 40, 55, 70, 85, 40, 55, 70];
        assert!(matches!(with(full, same_lows), Verdict::RuledOut(_)));
    }

    #[test]
    fn few_readings_must_rise_with_the_memory() {
        let with = |mib, old: [u64; 4]| {
            let mut made = growing("/usr/bin/node", mib, |_| (None, Some(0)));
            let at = |(at, old): (u64, u64)| CollectorPoint {
                at_ns: at * 3_000_000_000,
                old: Some(Bytes::mib(old)),
                ..CollectorPoint::default()
            };
            made.collector = Gathered::Value((0..).zip(old).map(at).collect());
            verdict(&made, "foreign-heap")
        };
        assert!(matches!(with(40, [66, 73, 93, 102]), Verdict::Present(_)));
        assert!(matches!(with(40, [66, 93, 73, 102]), Verdict::RuledOut(_)));
        assert!(matches!(with(0, [66, 73, 93, 102]), Verdict::RuledOut(_)));
    }

    #[test]
    fn classes_that_are_loaded_steadily_are_a_cause() {
        let with = |classes: fn(u64) -> u64, cpu: f64| {
            let mut made = growing("/usr/lib/jvm/bin/java", 18, |_| (Some(3), Some(10)));
            // The young generation grows in one step during the observation.
            let memory = |step: u64| (60 + step / 8 + u64::from(step > 20) * 12) * MIB;
            made.activity = activity((0..40).map(memory));
            crate::causes::made_recordings::add_work(&mut made, 0, 0.0, cpu);
            let mut machine = crate::causes::made::glibc();
            machine.name = "/usr/lib/jvm/lib/server/libjvm.so".into();
            for taken in [Some(&mut made.first), last_of(&mut made.last)].into_iter().flatten() {
                taken.objects.push(machine.clone());
            }
            if let Gathered::Value(points) = &mut made.collector {
                for (second, point) in (0..).zip(points) {
                    point.classes = Some(classes(second));
                }
            }
            made
        };
        let found = present(&with(|second| 2000 + 80 * second, 0.03), "foreign-heap");
        assert_eq!(found.confidence.key(), "possible");
        let is_quiet = |made: &Evidence| {
            matches!(verdict(made, "foreign-heap"), Verdict::RuledOut(_) | Verdict::Unknown(..))
        };
        assert!(is_quiet(&with(|second| 2000 + 80 * second, 0.9)), "it starts");
        assert!(is_quiet(&with(|second| 2000 + 800 * second.min(2), 0.03)), "a first use");
        assert!(is_quiet(&with(|second| 2000 + second, 0.03)), "few");
    }

    #[test]
    fn memory_that_grows_beside_a_constant_old_generation_is_healthy() {
        let made = growing("/usr/bin/node", 10, |second| (Some(20 + second), Some(40)));
        assert!(matches!(verdict(&made, "foreign-heap"), Verdict::RuledOut(_)));
        // The old generation is collected every four seconds.
        let made = growing("/usr/bin/node", 10, |second| (None, Some(40 + second % 4 * 8)));
        assert!(matches!(verdict(&made, "foreign-heap"), Verdict::RuledOut(_)));
    }

    #[test]
    fn growth_of_malloc_in_a_process_that_collects_nothing_is_outside_of_its_heap() {
        // Functions of the virtual machine touch the heap first.
        let with = |mib: u64| {
            let heap = |mib: u64| {
                let mut made =
                    snapshot(vec![resident("5000000-15000000 rw-p 0 0 [heap]", mib * MIB)]);
                let mut machine = crate::causes::made::glibc();
                machine.name = "/usr/lib/jvm/lib/server/libjvm.so".into();
                made.objects.push(machine);
                made
            };
            let mut made = growing("/usr/lib/jvm/bin/java", mib, |_| (Some(0), Some(0)));
            (made.first, made.last) = (heap(60), Gathered::Value(Box::new(heap(60 + mib))));
            let place = pagewise_model::Quadrant::PrivateAnonymous;
            let kind = pagewise_model::faults::FaultKind::Anonymous;
            made.faults = crate::causes::made_recordings::faults(kind, 300, "[heap]", place);
            let Gathered::Value(recording) = &mut made.faults else { panic!("it was made") };
            recording.frames[0].module = Some("/usr/lib/jvm/lib/server/libjvm.so".into());
            made
        };
        for mib in [6, 12, 36] {
            assert_eq!(present(&with(mib), "foreign-heap").confidence.key(), "possible");
        }
        for mib in [4, 80] {
            assert!(matches!(verdict(&with(mib), "foreign-heap"), Verdict::RuledOut(_)), "{mib}");
        }
    }

    #[test]
    fn a_heap_without_generations_is_judged_by_the_number_of_collections() {
        let go = |count: u64, mib| {
            let mut made = growing("/usr/bin/app", mib, |_| (Some(count), None));
            for taken in [Some(&mut made.first), last_of(&mut made.last)].into_iter().flatten() {
                taken.objects.push(crate::causes::made::go_program());
            }
            made
        };
        assert_eq!(present(&go(5, 10), "foreign-heap").confidence.key(), "likely");
        assert_eq!(present(&go(0, 10), "foreign-heap").confidence.key(), "certain");
        assert!(matches!(verdict(&go(1, 30), "foreign-heap"), Verdict::RuledOut(_)), "it fills");
        let few = "garbage that waits for the next collection";
        // A program that grows from 60 MiB to 61 MiB without a collection.
        assert!(matches!(verdict(&go(5, 1), "foreign-heap"), Verdict::RuledOut(_)), "{few}");
        assert!(matches!(verdict(&go(5, 0), "foreign-heap"), Verdict::RuledOut(_)), "no growth");
    }

    #[test]
    fn blocks_of_malloc_in_a_program_of_go_are_no_objects_of_its_heap() {
        let heap = |mib: u64| {
            let mut made = snapshot(vec![resident("5000000-15000000 rw-p 0 0 [heap]", mib * MIB)]);
            made.process.exe = Ok("/usr/bin/app".into());
            made.objects = vec![crate::causes::made::go_program(), crate::causes::made::glibc()];
            made
        };
        for collections in [0, 28] {
            let mut made = growing("/usr/bin/app", 40, |_| (Some(collections), None));
            (made.first, made.last) = (heap(60), Gathered::Value(Box::new(heap(100))));
            assert!(matches!(verdict(&made, "foreign-heap"), Verdict::RuledOut(_)));
            present(&made, "leak");
        }
    }

    #[test]
    fn a_heap_of_go_that_grows_in_steps_over_collections_is_a_cause() {
        // Readings every 0.75 s of a Go service that keeps strings.
        let steps = [150, 156, 156, 156, 156, 156, 156, 156, 156, 156, 156, 160, 165, 169];
        // Readings every 0.75 s of a Go cache of fixed size that is being filled.
        let filling = [19, 20, 25, 35, 42, 49, 53, 53, 68, 71, 73, 73, 76, 76];
        let go = |steps: [u64; 14], first_count: u64| {
            let count = |second: u64| first_count + u64::from(second >= 2);
            let grown = steps[13] - 60;
            let mut made = growing("/usr/bin/app", grown, |second| (Some(count(second)), None));
            let mib = |step: usize| steps[(step / 3).min(steps.len() - 1)] * MIB;
            made.activity = activity((0..40).map(mib));
            for taken in [Some(&mut made.first), last_of(&mut made.last)].into_iter().flatten() {
                taken.objects.push(crate::causes::made::go_program());
            }
            made
        };
        assert_eq!(present(&go(steps, 9), "foreign-heap").confidence.key(), "likely");
        for fills in [go(steps, 1), go(filling, 9)] {
            assert!(matches!(verdict(&fills, "foreign-heap"), Verdict::RuledOut(_)), "it fills");
        }
        let mut without = go(steps, 9);
        if let Gathered::Value(points) = &mut without.collector {
            points.iter_mut().for_each(|point| point.collections = Some(9));
        }
        assert!(matches!(verdict(&without, "foreign-heap"), Verdict::RuledOut(_)), "one step");
    }

    fn last_of(
        last: &mut Gathered<Box<pagewise_model::Snapshot>>,
    ) -> Option<&mut pagewise_model::Snapshot> {
        match last {
            Gathered::Value(taken) => Some(taken),
            _ => None,
        }
    }
}
