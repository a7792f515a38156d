//! Findings about leaks, fragmentation and costly patterns in a recording of allocations.

use pagewise_model::heap::{
    AllocationKind, AllocationSite, AllocatorLayout, HeapAmount, HeapEnding, HeapRecording,
    HeapSnapshot,
};
use pagewise_model::report::{CellValue, Fact, Finding, Severity};

use super::{FindingRule, fact};
use crate::cells::{float, share, text};
use crate::heap::frames::Sites;
use crate::heap::layout::{self, LayoutSums};
use crate::heap::peak;

/// Rules of this module. Findings of the same severity are reported in this order.
pub(super) const RULES: &[FindingRule] = &[
    FindingRule::Heap(growth),
    FindingRule::Heap(leak),
    FindingRule::Heap(held),
    FindingRule::Heap(untouched),
    FindingRule::Heap(spike),
    FindingRule::Heap(temporary),
    FindingRule::Heap(hot),
];

/// Minimum number of bytes for a finding: smaller amounts are not a memory problem.
const LARGE: u64 = 16 << 20;
/// Minimum number of leaked bytes for a finding; less than [`LARGE`], because a leak grows.
const LEAK: u64 = 1 << 20;
/// Minimum number of allocations for a finding: fewer allocations take negligible time.
const MANY: u64 = 100_000;
/// Minimum share of all bytes or allocations for a finding: a smaller share is not the first cause
/// to examine.
const PART: f64 = 0.1;

fn bytes(key: &'static str, label: &'static str, bytes: u64) -> Fact {
    fact(key, label, CellValue::Bytes(bytes), "")
}

/// Returns a fact for the function with the largest part of an amount.
fn most_in(sites: &Sites<'_>, amount: impl Fn(&AllocationSite) -> HeapAmount) -> Option<Fact> {
    sites
        .largest_place(amount)
        .map(|(words, _)| fact("most_in", "most of it in", CellValue::Name(words), ""))
}

/// True if the process has ended, so that no more blocks are freed.
fn is_over(recording: &HeapRecording) -> bool {
    matches!(recording.ending, HeapEnding::Ended(_) | HeapEnding::Gone)
}

/// Reports memory that was not freed at the end, and did not grow during the whole recording.
fn leak(sites: &Sites<'_>) -> Option<Finding> {
    let recording = sites.recording;
    let leaked = recording.totals.leaked;
    let part = float(leaked.bytes) / float(recording.totals.peak.bytes.max(1));
    if leaked.bytes < LEAK || part < PART || !is_over(recording) || grows(recording).is_some() {
        return None;
    }
    // If the recorder attached to a running process, the blocks from before the recording are
    // unknown, so the peak of the live bytes is unknown as well.
    let claim = if recording.attached {
        vec![
            CellValue::Bytes(leaked.bytes),
            text(
                " of the blocks allocated since the recording began were not freed before the process ended.",
            ),
        ]
    } else {
        vec![
            CellValue::Bytes(leaked.bytes),
            text(" were not freed before the process ended: "),
            share(leaked.bytes, recording.totals.peak.bytes.max(leaked.bytes)),
            text(" of the peak of live bytes."),
        ]
    };
    let mut evidence = vec![
        bytes("leaked_bytes", "not freed", leaked.bytes),
        fact("leaked_blocks", "in blocks", CellValue::Count(leaked.blocks), ""),
    ];
    evidence.extend(most_in(sites, AllocationSite::leaked));
    Some(Finding {
        id: "not-freed",
        severity: Severity::Note,
        claim,
        evidence,
        next_step: vec![text(
            "Memory in use until the end need not be freed. A leak grows with the run: record a run twice as long, and \
             compare with `heap diff`.",
        )],
    })
}

/// Minimum of `of` over the snapshots in each quarter of the recording. `None` if a quarter has no
/// value, or if there are fewer than `MOMENTS` snapshots.
fn quarters(
    recording: &HeapRecording,
    of: impl Fn(&HeapSnapshot) -> Option<i128>,
) -> Option<[i128; 4]> {
    /// Minimum number of snapshots: with fewer, the minimum of a quarter is random.
    const MOMENTS: usize = 16;
    let moments = &recording.moments;
    if moments.len() < MOMENTS || recording.took_ns == 0 {
        return None;
    }
    let mut least = [None; 4];
    for moment in moments {
        let part = u128::from(moment.time_ns) * 4 / u128::from(recording.took_ns);
        let quarter = &mut least[usize::try_from(part).unwrap_or(3).min(3)];
        let Some(now) = of(moment) else { continue };
        *quarter = Some(quarter.map_or(now, |least: i128| least.min(now)));
    }
    let [Some(a), Some(b), Some(c), Some(d)] = least else { return None };
    Some([a, b, c, d])
}

/// True if the values, one for each quarter of the recording, grow by at least [`LEAK`] in total,
/// and each value exceeds the previous one by at least a tenth of the total growth.
fn is_steady([first, second, third, fourth]: [i128; 4]) -> bool {
    let gained = fourth - first;
    let step = (gained / 10).max(1);
    gained >= i128::from(LEAK)
        && [second - first, third - second, fourth - third].iter().all(|more| *more >= step)
}

/// Returns the minimum of the live bytes in each quarter of the recording; `None` if the memory
/// does not grow from each quarter to the next.
fn grows(recording: &HeapRecording) -> Option<[u64; 4]> {
    let live = quarters(recording, |moment| Some(moment.live.bytes.into()))?;
    let least = live.map(|bytes| u64::try_from(bytes).unwrap_or(0));
    if recording.attached {
        return grows_by(recording).map(|_| least);
    }
    let steps = least.windows(2).all(|pair| float(pair[1]) > float(pair[0]) * 1.1);
    (steps && least[3] >= least[1].saturating_mul(3) / 2 && least[3] - least[0] >= LEAK)
        .then_some(least)
}

/// Returns the growth in bytes of the heap of a process that was already running. Older blocks are
/// blocks that the process allocated before the recording. The evidence does not involve the live
/// older blocks, which are unknown.
///
/// In any program, the live bytes of blocks that were allocated since the start of the recording
/// grow until all older blocks are replaced. The heap grows if more bytes are allocated than freed,
/// including frees of older blocks. If frees of older blocks are not counted, the resident memory
/// of the process and the footprint of its allocator are the evidence. They do not grow if new
/// blocks only replace older blocks.
fn grows_by(recording: &HeapRecording) -> Option<u64> {
    // The counts of freed older blocks do not include mappings that were unmapped, and blocks of
    // pools from before the recording.
    let is_heap = recording.sites.iter().all(|site| site.kind == AllocationKind::Heap);
    let net = |moment: &HeapSnapshot| {
        let freed = moment.older_freed.filter(|_| is_heap)?;
        Some(i128::from(moment.live.bytes) - i128::from(freed.bytes))
    };
    if let Some(least) = quarters(recording, net) {
        let moments: Vec<i128> = recording.moments.iter().filter_map(net).collect();
        let gained = least[3] - least[0];
        // A decrease by more than half of the growth shows that the memory is freed again.
        let mut highest = i128::MIN;
        let falls = moments.iter().map(|now| {
            highest = highest.max(*now);
            highest - now
        });
        let fall = falls.max().unwrap_or(0);
        return (is_steady(least) && fall <= gained / 2)
            .then(|| u64::try_from(gained).unwrap_or(u64::MAX));
    }
    let resident = |moment: &HeapSnapshot| {
        let it = moment.resident.as_ref().ok()?;
        Some(i128::from(it.anonymous) + i128::from(it.shmem) + i128::from(it.swap))
    };
    let resident = quarters(recording, resident)?;
    let held = quarters(recording, |moment| Some(moment.held.as_ref().ok()?.0.into()));
    let gained = resident[3] - resident[0];
    let gained = held.map_or(gained, |held| gained.min(held[3] - held[0]));
    (is_steady(resident) && held.is_none_or(is_steady))
        .then(|| u64::try_from(gained).unwrap_or(u64::MAX))
}

/// Reports memory that grows during the whole recording.
fn growth(sites: &Sites<'_>) -> Option<Finding> {
    let recording = sites.recording;
    let quarters = grows(recording)?;
    let leaked = recording.totals.leaked;
    let by = if recording.attached { grows_by(recording) } else { None };
    // A program that grows until its end and then frees its memory builds a data structure, and
    // does not leak.
    if leaked.bytes < by.unwrap_or(quarters[3]) / 2 {
        return None;
    }
    let mut evidence: Vec<Fact> = Vec::new();
    if by.is_none() {
        evidence.extend([
            bytes("second_quarter", "least in the 2nd quarter", quarters[1]),
            bytes("third_quarter", "in the 3rd", quarters[2]),
            bytes("fourth_quarter", "in the 4th", quarters[3]),
        ]);
    }
    evidence.extend(by.map(|by| bytes("grew_by", "more than at the beginning", by)));
    evidence.extend(most_in(sites, AllocationSite::leaked));
    const CAUSES: &str = "a leak, an unbounded cache, or work whose memory grows with time.";
    let claim = match by {
        Some(by) => vec![
            text("Live bytes grew all the time, by "),
            CellValue::Bytes(by),
            text(" (allocations less frees, of older blocks too), and "),
            CellValue::Bytes(leaked.bytes),
            text(format!(" allocated since the recording began were live at the end: {CAUSES}")),
        ],
        None => vec![
            text("Live bytes grew all the time, and "),
            CellValue::Bytes(leaked.bytes),
            text(format!(" were live at the end: {CAUSES}")),
        ],
    };
    Some(Finding {
        id: "grows",
        severity: Severity::Warning,
        claim,
        evidence,
        next_step: vec![text(
            "Find the functions that allocated them in the table of blocks not freed, or with --at end. A longer run will need more memory.",
        )],
    })
}

fn time(moment: &HeapSnapshot) -> CellValue {
    CellValue::Nanos(moment.time_ns)
}

/// The snapshot with the most footprint bytes that are not live.
struct HeldUnused<'a> {
    worst: &'a HeapSnapshot,
    /// Bytes of the footprint in the snapshot.
    held: u64,
    /// Bytes of the footprint that are not live at the end of the recording.
    at_end: u64,
}

impl HeldUnused<'_> {
    /// Returns `None` if the unused part of the footprint was never at least [`LARGE`] and a third
    /// of the footprint.
    fn largest(moments: &[HeapSnapshot]) -> Option<HeldUnused<'_>> {
        // The live bytes are the bytes requested from `malloc` only. The footprint was read a
        // little after the live bytes, so the live bytes of the next snapshot may already be part
        // of the footprint.
        let free = |at: usize| {
            let held = moments[at].held.as_ref().ok()?.0;
            let next = moments.get(at + 1).map_or(0, |next| next.live.bytes);
            held.checked_sub(moments[at].live.bytes.max(next))
        };
        let at = (0..moments.len()).max_by_key(|at| free(*at))?;
        let (worst, unused) = (&moments[at], free(at)?);
        let held = worst.held.as_ref().ok()?.0;
        if unused < LARGE || float(unused) * 3.0 < float(held) {
            return None;
        }
        // The footprint is never smaller than the live bytes. A snapshot in which it is smaller
        // mixes two times, and is skipped.
        let at_end = (0..moments.len()).rev().find_map(free)?;
        Some(HeldUnused { worst, held, at_end })
    }
}

fn held_claim(
    live: u64,
    held: u64,
    resident: Option<u64>,
    layout: Option<&AllocatorLayout>,
    lasts: bool,
) -> Vec<CellValue> {
    let mut claim =
        vec![text("Live "), CellValue::Bytes(live), text(", held "), CellValue::Bytes(held)];
    if let Some(resident) = resident {
        claim.extend([text(", resident "), CellValue::Bytes(resident)]);
    }
    claim.push(text(match layout.and_then(layout::where_unused) {
        Some(place) => format!(": fragmentation, {place}."),
        None => ": fragmentation, or free memory that the allocator keeps for reuse.".to_owned(),
    }));
    if !lasts {
        claim.push(text(" At the end it had been released."));
    }
    claim
}

/// Reports a footprint of the allocator of which at least a third is not live.
fn held(sites: &Sites<'_>) -> Option<Finding> {
    let recording = sites.recording;
    // If the recorder attached to a running process, the older blocks are unknown, so the live
    // bytes cannot be compared with the footprint.
    if recording.attached {
        return None;
    }
    if recording.moments.iter().all(|moment| moment.held.is_err()) {
        return resident(sites);
    }
    let HeldUnused { worst, held, at_end } = HeldUnused::largest(&recording.moments)?;
    let lasts = at_end >= LARGE;
    let mut evidence = vec![
        fact("time", "at", time(worst), ""),
        bytes("live", "live", worst.live.bytes),
        bytes("held", "held", held),
    ];
    let resident = worst.resident.as_ref().ok().map(|it| it.rss());
    evidence.extend(resident.map(|resident| bytes("resident", "resident", resident)));
    evidence.push(bytes("unused_at_end", "unused at the end", at_end));
    let threads = recording.threads.len() as u64;
    evidence.push(fact("threads", "threads", CellValue::Count(threads), ""));
    // A layout of a time point with a much smaller footprint does not apply.
    let layout = layout::worst(recording).filter(|layout| {
        float(LayoutSums::from_layout(recording, layout).held) >= float(held) * 0.5
    });
    let mut advice = vec![text(
        "With glibc, malloc_trim(0) releases free whole pages: if that helps, lower MALLOC_TRIM_THRESHOLD_ and \
         MALLOC_MMAP_THRESHOLD_. If it does not, long-lived blocks lie between short-lived ones: keep them apart, in a pool of \
         each kind.",
    )];
    let is_many = layout.map_or(threads > 2, |layout| layout::arenas_of(layout) > 2);
    if let Some((facts, words)) = layout.and_then(|layout| lies(sites, layout)) {
        evidence.extend(facts);
        advice = words;
    }
    if is_many {
        advice.push(text(
            " Each thread may have an arena of its own: try MALLOC_ARENA_MAX=2 (M_ARENA_MAX).",
        ));
    }
    Some(Finding {
        id: "held-unused",
        severity: if lasts { Severity::Warning } else { Severity::Note },
        claim: held_claim(worst.live.bytes, held, resident, layout, lasts),
        evidence,
        next_step: advice,
    })
}

/// Does the same as [`held`] for an allocator of unknown footprint. The evidence is resident bytes
/// that are not live, in the mappings that contain blocks of the allocator.
fn resident(sites: &Sites<'_>) -> Option<Finding> {
    let recording = sites.recording;
    let layout = layout::worst(recording)?;
    let sums = LayoutSums::from_layout(recording, layout);
    let (live, resident) = (sums.live.ok()?.bytes, sums.resident.ok()?.0);
    let unused = resident.saturating_sub(live);
    if unused < LARGE || float(unused) * 3.0 < float(resident) {
        return None;
    }
    let (facts, advice) = lies(sites, layout)?;
    let mut evidence = vec![
        fact("time", "at", CellValue::Nanos(layout.time_ns), ""),
        bytes("live", "live", live),
        bytes("resident", "resident", resident),
    ];
    evidence.extend(facts);
    Some(Finding {
        id: "held-unused",
        severity: Severity::Warning,
        claim: vec![
            text("Live "),
            CellValue::Bytes(live),
            text(", resident "),
            CellValue::Bytes(resident),
            text(
                " in mappings with blocks in them: fragmentation, or free memory that the allocator keeps for reuse.",
            ),
        ],
        evidence,
        next_step: advice,
    })
}

/// Returns the state of the unused pages of the allocator, and the remedy; `None` if the state is
/// unknown.
fn lies(sites: &Sites<'_>, layout: &AllocatorLayout) -> Option<(Vec<Fact>, Vec<CellValue>)> {
    let sums = LayoutSums::from_layout(sites.recording, layout);
    let (empty, sparse) = (sums.empty.ok()?.0, sums.sparse.ok()?.0);
    let pinned = layout::pins_most(sites, layout);
    let mut facts = vec![
        bytes("empty", "in empty pages", empty),
        bytes("sparse", "in pages at most a quarter live", sparse),
    ];
    if let Some((place, _)) = &pinned {
        facts.push(fact("kept_by", "most of these kept in", place.clone(), ""));
    }
    let mut words = Vec::new();
    // Empty pages with less than a fifth of the bytes in sparse pages are not the first cause to
    // examine.
    if empty > 0 && empty >= sparse / 5 {
        words.extend([
            CellValue::Bytes(empty),
            text(if layout::arenas_of(layout) > 0 {
                " are in pages without a live block: malloc_trim(0) releases them, and a lower MALLOC_TRIM_THRESHOLD_ \
                 (M_TRIM_THRESHOLD) releases those at the end of an arena automatically."
            } else {
                " are in pages without a live block, which the allocator keeps for reuse: see how soon it releases such pages \
                 (jemalloc's dirty_decay_ms, mimalloc's purge_delay, tcmalloc's release rate)."
            }),
        ]);
    }
    if sparse > 0 && sparse >= empty / 5 {
        words.extend([
            text(if words.is_empty() { "" } else { " " }),
            CellValue::Bytes(sparse),
            text(" are in pages of which at most a quarter is live, and stay resident as long as those blocks live"),
        ]);
        if let Some((place, bytes)) = pinned {
            words.extend([
                text(": most of them, "),
                CellValue::Bytes(bytes),
                text(", by what was allocated in "),
                place,
                text(". Keep such blocks apart from short-lived ones, in a pool of their own."),
            ]);
        } else {
            words.push(text("."));
        }
    }
    (!words.is_empty()).then_some((facts, words))
}

/// Reports memory that was allocated and never touched.
fn untouched(sites: &Sites<'_>) -> Option<Finding> {
    let recording = sites.recording;
    let missing = |moment: &HeapSnapshot| {
        let it = moment.resident.as_ref().ok()?;
        moment.live.bytes.checked_sub(it.rss().saturating_add(it.swap))
    };
    let worst = recording.moments.iter().max_by_key(|moment| missing(moment))?;
    let untouched = missing(worst)?;
    if untouched < LARGE || float(untouched) < float(worst.live.bytes) * 0.25 {
        return None;
    }
    let mut evidence =
        vec![fact("time", "at", time(worst), ""), bytes("live", "live", worst.live.bytes)];
    evidence.extend(worst.resident.as_ref().ok().map(|it| bytes("resident", "resident", it.rss())));
    evidence.extend(most_in(sites, |site| site.at_peak));
    Some(Finding {
        id: "untouched",
        severity: Severity::Note,
        claim: vec![
            text("At least "),
            CellValue::Bytes(untouched),
            text(" of the live bytes were not resident: they were allocated and never touched."),
        ],
        evidence,
        next_step: vec![text(
            "It costs no memory, but address space and commit charge. Buffers may be far larger than their contents.",
        )],
    })
}

/// Reports a short peak: at least twice the median of the live bytes, with few snapshots above half
/// of the peak.
fn spike(sites: &Sites<'_>) -> Option<Finding> {
    let recording = sites.recording;
    // In a sampled recording, the highest estimate is too high by chance, so the lower bound is
    // used.
    let peak = peak::bounds(recording).map_or(recording.totals.peak.bytes, |it| it.least);
    let mut live: Vec<u64> = recording.moments.iter().map(|moment| moment.live.bytes).collect();
    // If the recorder attached to a running process, the contribution of older blocks to the peak
    // and to the median is unknown.
    if live.len() < 16 || peak < LARGE || recording.attached {
        return None;
    }
    live.sort_unstable();
    let median = live[live.len() / 2];
    if float(peak) < float(median) * 2.0 {
        return None;
    }
    let high = live.iter().filter(|live| **live > peak / 2).count();
    let part = float(high as u64) / float(live.len() as u64);
    if part > PART {
        return None;
    }
    let mut evidence = vec![
        bytes("peak", "peak", peak),
        bytes("median", "median", median),
        fact("share", "above half of the peak", CellValue::Share(part), ""),
    ];
    evidence.extend(most_in(sites, |site| site.at_peak));
    Some(Finding {
        id: "spike",
        severity: Severity::Note,
        claim: vec![
            text("More than half of the peak is needed only for a small part of the time ("),
            CellValue::Share(part),
            text(" of the samples)."),
        ],
        evidence,
        next_step: vec![text(
            "A lower peak lowers the memory that the program needs: the tree of the peak shows the blocks that are live at the same time.",
        )],
    })
}

/// Reports many allocations that are freed before the same thread allocates again.
fn temporary(sites: &Sites<'_>) -> Option<Finding> {
    let totals = &sites.recording.totals;
    if totals.temporary < MANY || float(totals.temporary) < float(totals.allocated.blocks) * 0.3 {
        return None;
    }
    let mut evidence = vec![
        fact("temporary", "temporary", CellValue::Count(totals.temporary), ""),
        fact("allocations", "allocations", CellValue::Count(totals.allocated.blocks), ""),
    ];
    evidence.extend(most_in(sites, |site| HeapAmount { bytes: site.temporary, blocks: 0 }));
    Some(Finding {
        id: "temporary",
        severity: Severity::Note,
        claim: vec![
            CellValue::Count(totals.temporary),
            text(" allocations ("),
            share(totals.temporary, totals.allocated.blocks),
            text(") were freed before the same thread allocated another."),
        ],
        evidence,
        next_step: vec![text(
            "Keep the buffer between calls, put it on the stack, or reserve its size at once: see the table of temporary allocations.",
        )],
    })
}

/// Reports a function that makes at least half of a very large number of allocations.
fn hot(sites: &Sites<'_>) -> Option<Finding> {
    let totals = &sites.recording.totals;
    if totals.allocated.blocks < 10 * MANY {
        return None;
    }
    let by_calls = |site: &AllocationSite| HeapAmount { bytes: site.allocated.blocks, blocks: 0 };
    let (place, calls) = sites.largest_place(by_calls)?;
    if float(calls.bytes) < float(totals.allocated.blocks) * 0.5 {
        return None;
    }
    Some(Finding {
        id: "hot-place",
        severity: Severity::Note,
        claim: vec![
            share(calls.bytes, totals.allocated.blocks),
            text(" of all allocations are made in "),
            CellValue::Name(place),
            text("."),
        ],
        evidence: vec![
            fact("calls", "calls", CellValue::Count(calls.bytes), ""),
            fact("allocations", "of", CellValue::Count(totals.allocated.blocks), ""),
        ],
        next_step: vec![text(
            "A pool for blocks of this one kind, or fewer and larger blocks, would save most of this time.",
        )],
    })
}
