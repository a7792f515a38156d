//! Findings about the heap of a process, from a sample of the heap. The rules and limits are the
//! same as for a whole scan ([`super::heap_scan`]). Each rule uses the bound of the estimate that
//! makes a finding less likely.

use pagewise_model::heap_sample::{BytesEstimate, HeapSample};
use pagewise_model::machine::ProcessMoment;
use pagewise_model::report::{Fact, Finding, Severity};
use pagewise_model::{Bytes, Reading};

use super::heap_scan::{COPY_SURVIVORS, LARGE, PART, TRIM_IN_PROGRAM};
use super::{FindingRule, command, fact, finding, size};
use crate::cells::{share, text};
use crate::explain::ExplainSubject;
use crate::explain::heap::{estimate_cell, estimate_words};

/// Rules of this module. Findings of the same severity are reported in this order.
pub(super) const RULES: &[FindingRule] =
    &[FindingRule::Snapshot(trimmable), FindingRule::Snapshot(fragmented)];

/// Minimum share of RES for a finding.
const PART_OF_RES: f64 = 0.1;

fn is_large(subject: &ExplainSubject<'_>, sample: &HeapSample, amount: Bytes) -> bool {
    let is_part = |whole: Bytes, part: f64| amount.fraction_of(whole).is_some_and(|it| it >= part);
    let resident = subject.snapshot.statm.as_ref().map(|statm| statm.resident);
    amount >= LARGE
        && is_part(sample.resident, PART)
        && resident.map_or(true, |resident| is_part(resident, PART_OF_RES))
}

/// Returns the facts of the sample that support a finding.
fn evidence(
    sample: &HeapSample,
    of: [(&'static str, &'static str, BytesEstimate); 2],
) -> Vec<Fact> {
    let mut facts = vec![size("resident", "resident heap", sample.resident)];
    for (key, label, estimate) in of {
        facts.push(fact(key, label, estimate_cell(estimate), ""));
    }
    let read = share(sample.windows, sample.population);
    facts.push(fact("sampled", "part of the heap that was read", read, ""));
    facts
}

/// Reports whole free pages that `malloc_trim(0)` would release. A core file is skipped, because it
/// does not record which pages were resident.
fn trimmable(subject: &ExplainSubject<'_>) -> Option<Finding> {
    let sample = sample_of(subject).as_ref().ok()?;
    let moment = subject.snapshot.provenance.moment;
    let amount = sample.trimmable;
    if moment == ProcessMoment::CoreDumped || !is_large(subject, sample, amount.low) {
        return None;
    }
    let mut claim = estimate_words(amount);
    claim.extend([
        text(" of the heap are whole pages of free blocks: at least "),
        share(amount.low.0, sample.resident.0),
        text(" of its resident memory. `malloc_trim(0)` returns them to the system."),
    ]);
    let mut next_step = Vec::new();
    if moment == ProcessMoment::Running {
        next_step.extend(command(
            "Run `pagewise trim ",
            subject,
            " --heap --yes`: the running process calls `malloc_trim(0)`, which returns ",
        ));
        next_step.extend(estimate_words(amount));
        next_step.extend(command(
            ". If the program uses the memory again every few seconds, this costs page faults: `pagewise diagnose ",
            subject,
            "` observes it. ",
        ));
    }
    next_step.push(text(TRIM_IN_PROGRAM));
    let evidence =
        evidence(sample, [("live", "live", sample.live), ("trimmable", "trimmable", amount)]);
    Some(finding("trimmable-heap", Severity::Warning, claim, evidence, next_step))
}

/// Reports free bytes in pages that live blocks pin.
fn fragmented(subject: &ExplainSubject<'_>) -> Option<Finding> {
    let sample = sample_of(subject).as_ref().ok()?;
    let amount = sample.pinned;
    if !is_large(subject, sample, amount.low) {
        return None;
    }
    let mut claim = vec![text("Memory fragmentation: ")];
    claim.extend(estimate_words(amount));
    claim.push(text(
        " of the heap are free and cannot be returned, because they share pages with live blocks, which take ",
    ));
    claim.extend(estimate_words(sample.live));
    claim.push(text("."));
    let mut next_step = vec![text(COPY_SURVIVORS)];
    if subject.snapshot.provenance.moment == ProcessMoment::Running {
        next_step.extend(command(
            " `pagewise heap scan ",
            subject,
            "` counts the live blocks by size, to find the ones that stay, and `pagewise diagnose ",
        ));
        next_step.extend(command(
            "",
            subject,
            "` shows whether the program uses the free memory again.",
        ));
    }
    let evidence = evidence(sample, [("live", "live", sample.live), ("pinned", "pinned", amount)]);
    Some(finding("fragmented-heap", Severity::Warning, claim, evidence, next_step))
}

fn sample_of<'a>(subject: &ExplainSubject<'a>) -> &'a Reading<HeapSample> {
    &subject.snapshot.heap_sample
}
