//! Causes: sparse huge pages, and memory that lacks huge pages.

use pagewise_model::cause::{Cause, CauseCost, CauseObject, Confidence, Verdict};
use pagewise_model::evidence::{Gathered, Instrument};
use pagewise_model::faults::FaultKind;
use pagewise_model::report::CellValue;
use pagewise_model::thp::{HugeMapping, HugePages};
use pagewise_model::{Bytes, Mapping, Name};

use super::evidence::FunctionShare;
use super::heap::is_large;
use super::{CauseEvidence, CauseRow, cause, remedy_code, remedy_now};
use crate::cells::text;
use crate::explain::{ExplainSubject, fact};
use crate::pools::PoolKind;
use crate::thp::{HugeRequest, NOTABLE, ZeroEstimate, huge_request};

/// The rows of the table of causes.
pub(super) const ROWS: &[CauseRow] = &[
    CauseRow {
        id: "thp-bloat-requested",
        title: "sparse huge pages, requested by the program",
        meaning: "The program requests huge pages (MADV_HUGEPAGE, MADV_COLLAPSE) for memory that it uses sparsely.",
        needs: &[Instrument::Snapshot, Instrument::HugePages],
        excluded_by: "less than 16 MiB, or less than 10 % of RES, of zero-filled pages in huge pages of mappings with the flag hg, or of all mappings without the setting `always`",
        source: "Documentation/admin-guide/mm/transhuge.rst; zero-filled base pages are counted in a sample",
        rule: requested,
    },
    CauseRow {
        id: "thp-bloat-system",
        title: "sparse huge pages, by the system's setting",
        meaning: "The setting `always` gives huge pages to memory that the program uses sparsely.",
        needs: &[Instrument::Snapshot, Instrument::HugePages],
        excluded_by: "less than 16 MiB, or less than 10 % of RES, of zero-filled pages in huge pages of mappings without the flag hg",
        source: "Documentation/admin-guide/mm/transhuge.rst; zero-filled base pages are counted in a sample",
        rule: by_system,
    },
    CauseRow {
        id: "thp-missing",
        title: "missing huge pages",
        meaning: "Large, dense memory that the program uses all the time lies on small pages, so that TLB misses take time.",
        needs: &[Instrument::Snapshot, Instrument::Activity],
        excluded_by: "less than 128 MiB of dense memory on small pages in one mapping, or little CPU time",
        source: "a TLB of 1536 entries covers 6 MiB with small pages; no counter of TLB misses is read",
        rule: missing,
    },
];

/// Returns the sample of huge pages. If huge pages were not sampled, returns the verdict on the
/// cause.
fn sampled<'a>(evidence: &CauseEvidence<'a>) -> Result<&'a HugePages, Verdict> {
    match &evidence.all.huge_pages {
        Gathered::Value(huge) => Ok(huge),
        Gathered::NotNeeded => Err(Verdict::RuledOut(vec![text("few or no huge pages")])),
        Gathered::Missing(why) => Err(Verdict::Unknown(
            why.to_string().into(),
            format!("pagewise thp {}", evidence.pid()).into(),
        )),
    }
}

/// Huge pages with one origin (a request by the program, or the setting of the system), and the
/// estimate of their zero-filled part.
struct HugeBloat<'a> {
    zero: ZeroEstimate,
    huge: Bytes,
    worst: &'a HugeMapping,
    /// True if `VmFlags` or the setting of the system prove the origin.
    is_certain: bool,
}

fn mapping_of<'a>(
    subject: &ExplainSubject<'a>,
    huge: &HugeMapping,
) -> Option<(usize, &'a Mapping)> {
    let at = subject.mappings.partition_point(|mapping| mapping.range.end <= huge.range.start);
    subject.mappings.get(at).filter(|it| it.range.start < huge.range.end).map(|it| (at, it))
}

/// Sums the huge pages with the origin `origin`. If huge pages were not sampled or their
/// zero-filled part is small, returns the verdict on the cause.
fn bloat<'a>(evidence: &CauseEvidence<'a>, origin: HugeRequest) -> Result<HugeBloat<'a>, Verdict> {
    let pages = sampled(evidence)?;
    let Ok(subject) = evidence.subject else {
        return Err(Verdict::RuledOut(vec![text("no mappings")]));
    };
    let request = |huge: &HugeMapping| {
        mapping_of(subject, huge)
            .map_or(HugeRequest::Unknown, |(_, mapping)| huge_request(evidence.now, mapping))
    };
    // The setting of the system is the likely origin if the mapping does not show its origin.
    let fits = |huge: &&HugeMapping| match request(huge) {
        HugeRequest::Unknown => origin == HugeRequest::System,
        known => known == origin,
    };
    let ours = || pages.mappings.iter().filter(fits);
    let huge: Bytes = ours().map(|it| it.anonymous).sum();
    let Ok(zero) = ZeroEstimate::over(ours(), pages.huge_size) else {
        return Err(Verdict::RuledOut(vec![text("no huge page was read")]));
    };
    let worst = ours().max_by_key(|it| zero_of(it, pages.huge_size));
    let is_notable = zero.bytes.fraction_of(huge).is_some_and(|share| share >= NOTABLE);
    match worst {
        Some(worst) if is_notable && is_large(evidence, zero.low) => {
            Ok(HugeBloat { zero, huge, worst, is_certain: request(worst) != HugeRequest::Unknown })
        }
        _ => Err(Verdict::RuledOut(vec![
            CellValue::Bytes(zero.bytes.0),
            text(" zero-filled in "),
            CellValue::Bytes(huge.0),
            text(" of such huge pages"),
        ])),
    }
}

fn zero_of(huge: &HugeMapping, size: Bytes) -> Bytes {
    ZeroEstimate::over(std::iter::once(huge), size).map_or(Bytes::ZERO, |it| it.bytes)
}

fn requested(evidence: &CauseEvidence<'_>) -> Verdict {
    let found = match bloat(evidence, HugeRequest::Program) {
        Ok(found) => found,
        Err(verdict) => return verdict,
    };
    let function = advising_function(evidence, &found);
    let mut cause = bloat_cause(evidence, &found, "thp-bloat-requested");
    cause.sentence.push(text(
        "the program requests huge pages (MADV_HUGEPAGE or MADV_COLLAPSE) and uses them sparsely.",
    ));
    if let Some(function) = function {
        let share = CellValue::Share(function.share());
        cause.evidence.push(fact("function_share", "calls or faults of the function", share, ""));
        cause.object = function.object();
    }
    cause.code = remedy_code([text(
        "Do not call madvise with MADV_HUGEPAGE or MADV_COLLAPSE for sparse memory, or only for the part that is filled.",
    )]);
    cause.into()
}

fn by_system(evidence: &CauseEvidence<'_>) -> Verdict {
    let found = match bloat(evidence, HugeRequest::System) {
        Ok(found) => found,
        Err(verdict) => return verdict,
    };
    let mut cause = bloat_cause(evidence, &found, "thp-bloat-system");
    cause.sentence.push(text(
        "the setting /sys/kernel/mm/transparent_hugepage/enabled gives huge pages to memory that is used sparsely.",
    ));
    if !found.is_certain {
        let command = format!("pagewise explain {} --full", evidence.pid());
        cause.confidence = Confidence::Likely(command.into());
    }
    cause.code = remedy_code([text(
        "Call madvise(MADV_NOHUGEPAGE) for sparse memory, or prctl(PR_SET_THP_DISABLE, 1, 0, 0, 0) at the start of main. \
         For the whole machine: `echo madvise >/sys/kernel/mm/transparent_hugepage/enabled`; then programs that profit \
         must request huge pages.",
    )]);
    cause.into()
}

fn bloat_cause(evidence: &CauseEvidence<'_>, found: &HugeBloat<'_>, id: &'static str) -> Cause {
    let HugeBloat { zero, huge, worst, .. } = found;
    let sentence = vec![
        CellValue::Bytes(zero.bytes.0),
        text(" of "),
        CellValue::Bytes(huge.0),
        text(" in huge pages are zero-filled: "),
    ];
    let name = evidence.subject.as_ref().ok().and_then(|subject| {
        let (index, mapping) = mapping_of(subject, worst)?;
        Some(subject.pools.known_as(index, mapping))
    });
    let object =
        CauseObject::Mapping(worst.range, name.unwrap_or_else(|| Name::from("[anonymous]")));
    let mut cause = cause(id, object, Confidence::Certain, sentence);
    cause.cost = CauseCost::of_memory(zero.low, evidence.resident().unwrap_or_default());
    cause.evidence = vec![
        fact("zero", "zero-filled", CellValue::Bytes(zero.bytes.0), ""),
        fact("huge", "in huge pages", CellValue::Bytes(huge.0), ""),
    ];
    cause.now = remedy_now(
        format!("pagewise thp {} --fix --hold --yes", evidence.pid()),
        [text(
            "Split the sparse huge pages, release their zero-filled pages, and forbid huge pages for these mappings.",
        )],
        false,
    );
    if let Some(now) = &mut cause.now {
        now.effect = vec![text("returns about "), CellValue::Bytes(zero.low.0)];
    }
    cause
}

/// Values of the `advice` argument for MADV_HUGEPAGE and MADV_COLLAPSE.
const REQUESTS: [u64; 2] = [14, 25];

/// Returns the function that calls `madvise` for huge pages most often; else the function that
/// first touches most huge pages of the worst mapping.
fn advising_function<'a>(
    evidence: &CauseEvidence<'a>,
    found: &HugeBloat<'_>,
) -> Option<FunctionShare<'a>> {
    let advises =
        || evidence.calling_function(|row| row.call == "madvise" && REQUESTS.contains(&row.detail));
    let touches = || {
        let range = found.worst.range;
        evidence.faulting_function(|row, mapping| {
            let is_there = mapping.is_some_and(|it| it.range.intersection(range).is_some());
            row.kind == FaultKind::Huge && is_there
        })
    };
    advises().or_else(touches)
}

/// Minimum resident size of a dense mapping in bytes: the page tables of less memory fit into the
/// caches of the CPU, so that TLB misses cost little.
const MUCH_DENSE: Bytes = Bytes::mib(128);
/// Minimum resident share of a dense mapping.
const DENSE: f64 = 0.9;
/// Minimum share of one CPU in user mode for a program that uses its memory.
const BUSY: f64 = 0.15;
/// Maximum number of page faults per second of a program that uses its memory: with more faults,
/// the program fills its memory.
const FILLING: f64 = 100.0;

/// Finds the largest dense mapping of the program with few huge pages. Returns its index, the
/// mapping, and its resident bytes.
fn largest_dense<'a>(subject: &ExplainSubject<'a>) -> Option<(usize, &'a Mapping, Bytes)> {
    let is_own = |index: usize| {
        matches!(subject.pools.pool_of(index).kind, PoolKind::Anonymous | PoolKind::MallocChunk)
    };
    let dense = subject.mappings.iter().enumerate().filter_map(|(index, mapping)| {
        let resident = mapping.rss().ok()?;
        let huge = mapping.anon_huge().unwrap_or_default();
        let is_dense = resident.fraction_of(mapping.size()).is_some_and(|it| it >= DENSE);
        let has_few_huge = huge.fraction_of(resident).is_some_and(|it| it < NOTABLE);
        (is_own(index) && is_dense && has_few_huge).then_some((index, mapping, resident))
    });
    dense.max_by_key(|(_, _, resident)| *resident)
}

/// Judges missing huge pages. The confidence is "possible" at most, because pagewise reads no
/// counter of TLB misses, which most virtual machines lack.
fn missing(evidence: &CauseEvidence<'_>) -> Verdict {
    let Ok(subject) = evidence.subject else { return Verdict::NotApplicable };
    let Some((index, mapping, resident)) =
        largest_dense(subject).filter(|(_, _, resident)| *resident >= MUCH_DENSE)
    else {
        let line = [text("no dense mapping of 128 MiB lies on small pages")];
        return Verdict::RuledOut(line.to_vec());
    };
    let Some(busy) = evidence.rate(|point| point.user_ns).map(|ns| ns / 1e9) else {
        let command = format!("pagewise diagnose {} --for 10s", evidence.pid());
        return Verdict::Unknown("CPU time was not read twice".into(), command.into());
    };
    let faults = evidence.rate(|point| point.minor_faults).unwrap_or(0.0);
    if busy < BUSY || faults > FILLING {
        return Verdict::RuledOut(vec![
            text(format!("{:.0} % of a CPU in user mode, ", busy * 100.0)),
            CellValue::Rate(faults),
            text(" page faults per second"),
        ]);
    }
    let pid = evidence.pid();
    let name = subject.pools.known_as(index, mapping);
    let sentence = [
        CellValue::Bytes(resident.0),
        text(
            " of dense memory lie on small pages, and the program is busy: TLB misses may take up to a third of its time.",
        ),
    ];
    let object = CauseObject::Mapping(mapping.range, name);
    let decides = format!("perf stat -e dTLB-load-misses,cycles -p {pid} sleep 5");
    let mut found = cause("thp-missing", object, Confidence::Possible(decides.into()), sentence);
    found.cost = CauseCost::of_time((busy * TLB_SHARE).min(TLB_SHARE));
    found.evidence = vec![
        fact("dense", "dense memory", CellValue::Bytes(resident.0), ""),
        fact("busy", "CPU time in user mode", CellValue::Share(busy.min(1.0)), ""),
    ];
    found.now = remedy_now(
        format!("pagewise thp {pid} --collapse --yes"),
        [text("Collapse the small pages into huge pages, and compare the time of the same work.")],
        false,
    );
    found.code = remedy_code([text(
        "Call madvise(MADV_HUGEPAGE) for the memory before it is filled, aligned to 2 MiB.",
    )]);
    found.into()
}

/// Share of the CPU time that random accesses to much memory lose by TLB misses: a page walk has
/// two cache misses in addition to the cache miss of the access.
const TLB_SHARE: f64 = 0.3;

#[cfg(test)]
mod tests {
    use pagewise_model::evidence::Evidence;
    use pagewise_model::thp::HugePageLook;
    use pagewise_model::{Absent, AddrRange, SmapsCounter, Snapshot};

    use super::*;
    use crate::causes::made::{activity, evidence, present, verdict};
    use crate::sample::{mapping, snapshot, with_smaps};

    const MIB: u64 = 1 << 20;
    const TABLE: &str = "7f0000000000-7f000c800000 rw-p 0 0 ";

    /// Returns evidence of a process with 200 MiB in huge pages, of which this percentage is
    /// zero-filled.
    fn with_huge(flags: &str, enabled: Option<&str>, zero: u64) -> Evidence {
        let counters = [(SmapsCounter::Rss, 200 * MIB), (SmapsCounter::AnonHugePages, 200 * MIB)];
        let table = with_smaps(mapping(TABLE), &counters, flags);
        with_mapping(table, enabled, zero)
    }

    fn with_mapping(table: Mapping, enabled: Option<&str>, zero: u64) -> Evidence {
        let range = table.range;
        let mut taken: Snapshot = snapshot(vec![table]);
        if let Some(enabled) = enabled {
            taken.machine.thp_enabled = Ok(enabled.into());
        }
        if let Ok(statm) = &mut taken.statm {
            statm.resident = Bytes::mib(200);
        }
        let mut made = evidence(taken.clone(), taken);
        made.huge_pages = Gathered::Value(HugePages {
            huge_size: Bytes::mib(2),
            mappings: vec![HugeMapping {
                range,
                name: Name::from(""),
                anonymous: Bytes::mib(200),
                file: Bytes::ZERO,
                read: 1000,
                zero: zero * 10,
                pages: Vec::new(),
            }],
            sizes: Err(Absent::NotCollected("a sample".into())),
            look: HugePageLook::Sample(1000),
            read: Bytes::mib(4),
            took_ns: 0,
            longest_hold_ns: 0,
            gaps: Vec::new(),
        });
        made
    }

    #[test]
    fn the_flag_of_the_mapping_decides_between_program_and_system() {
        let made = with_huge("hg", Some("always"), 90);
        assert_eq!(present(&made, "thp-bloat-requested").confidence, Confidence::Certain);
        assert!(matches!(verdict(&made, "thp-bloat-system"), Verdict::RuledOut(_)));
        let made = with_huge("rd wr", Some("always"), 90);
        assert_eq!(present(&made, "thp-bloat-system").confidence, Confidence::Certain);
        assert!(matches!(verdict(&made, "thp-bloat-requested"), Verdict::RuledOut(_)));
    }

    #[test]
    fn huge_pages_that_the_setting_does_not_give_are_requested() {
        // MADV_COLLAPSE sets no flag in `VmFlags`.
        for enabled in ["madvise", "never"] {
            let made = with_huge("rd wr", Some(enabled), 90);
            present(&made, "thp-bloat-requested");
            assert!(matches!(verdict(&made, "thp-bloat-system"), Verdict::RuledOut(_)));
        }
    }

    #[test]
    fn without_flags_the_setting_of_the_system_decides() {
        let unread = || {
            let mut table = mapping(TABLE);
            table.pages = Err(Absent::NotCollected("a sample".into()));
            table
        };
        let made = with_mapping(unread(), Some("madvise"), 90);
        present(&made, "thp-bloat-requested");
        let made = with_mapping(unread(), Some("always"), 90);
        assert_eq!(present(&made, "thp-bloat-system").confidence.key(), "likely");
    }

    #[test]
    fn dense_huge_pages_are_healthy() {
        for id in ["thp-bloat-requested", "thp-bloat-system"] {
            assert!(matches!(verdict(&with_huge("hg", None, 5), id), Verdict::RuledOut(_)), "{id}");
        }
    }

    /// Returns evidence of a process that uses 256 MiB in base pages, and this percentage of a CPU.
    fn busy_with(percent: u64, minor_faults: u64) -> Evidence {
        let range = AddrRange { start: 0x7f00_0000_0000, end: 0x7f00_1000_0000 };
        let line = format!("{:x}-{:x} rw-p 0 0 ", range.start, range.end);
        let taken = snapshot(vec![crate::sample::resident(&line, 256 * MIB)]);
        let mut made = evidence(taken.clone(), taken);
        made.activity = activity((0..20).map(|_| 256 * MIB));
        for (number, point) in (0_u64..).zip(&mut made.activity) {
            point.user_ns = number * 2_500_000 * percent;
            point.minor_faults = number * minor_faults;
        }
        made
    }

    #[test]
    fn busy_dense_memory_may_lack_huge_pages() {
        assert_eq!(present(&busy_with(60, 0), "thp-missing").confidence.key(), "possible");
        for made in [busy_with(2, 0), busy_with(90, 2000)] {
            assert!(matches!(verdict(&made, "thp-missing"), Verdict::RuledOut(_)));
        }
    }
}
