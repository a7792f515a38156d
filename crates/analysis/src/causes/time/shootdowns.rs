//! TLB shootdowns: the thread and the function that request them, and the threads that lose time
//! because shootdowns interrupt them.

use std::collections::BTreeMap;

use pagewise_model::cause::{Cause, CauseCost, CauseObject, Confidence, Verdict};
use pagewise_model::evidence::{Gathered, Instrument};
use pagewise_model::report::CellValue;
use pagewise_model::shootdowns::{FlushThread, ShootdownRecording};
use pagewise_model::traced::Frame;

use super::{lost, milliseconds, missing, per_second};
use crate::causes::responsible::responsible;
use crate::causes::signs::{rate_fact, share_of_run_time};
use crate::causes::{CauseEvidence, cause, remedy_code};
use crate::cells::text;
use crate::explain::fact;
use crate::findings::shootdowns::advice;
use crate::shootdowns::causes::Cause as FlushCause;
use crate::shootdowns::{FlushSum, ShootdownCauses};

/// Time in seconds that an interrupted CPU loses: the interrupt, the flush, and the refill of the
/// TLB.
const INTERRUPT_SECONDS: f64 = 4e-6;
/// Minimum lost share of one CPU for which shootdowns are trouble.
const MUCH_LOST: f64 = 0.01;
/// Minimum number of flush requests per second: with fewer, shootdowns are rare.
const MANY_REQUESTS: f64 = 300.0;
/// Maximum number of interrupted threads in the evidence.
const SHOWN_VICTIMS: usize = 3;

pub(super) fn tlb_shootdowns(evidence: &CauseEvidence<'_>) -> Verdict {
    if evidence.now.process.threads < 2 {
        return Verdict::NotApplicable;
    }
    let recording = match &evidence.all.shootdowns {
        Gathered::Value(recording) => recording,
        Gathered::NotNeeded => {
            return Verdict::RuledOut(vec![text("few TLB shootdowns on the machine")]);
        }
        Gathered::Missing(why) => {
            return missing(evidence, Instrument::Shootdowns, why.to_string());
        }
    };
    let all = ShootdownCauses::from_recording(recording);
    let own = own_causes(&all);
    let sum = own.iter().fold(Sum::default(), |sum, (_, more)| sum.with(more));
    let rate = per_second(sum.requests, recording.took_ns);
    let lost_each = lost(per_second(sum.ipis, recording.took_ns), INTERRUPT_SECONDS);
    let waited = per_second(sum.waited, recording.took_ns) / 1e9;
    let demand = evidence.demand();
    if rate * demand < MANY_REQUESTS || (lost_each * demand).max(waited) < MUCH_LOST {
        return Verdict::RuledOut(vec![
            CellValue::Rate(rate),
            text(" shootdowns, "),
            CellValue::Share(lost_each.max(waited)),
            text(" of a CPU lost"),
        ]);
    }
    if by_copies(&own) * 2 >= sum.ipis.max(1)
        && matches!(super::copies::cow_storm(evidence), Verdict::Present(_))
    {
        let line = vec![
            CellValue::Rate(rate),
            text(
                " shootdowns, most of them by the copies after fork, which the cause cow-storm explains",
            ),
        ];
        return Verdict::RuledOut(line);
    }
    let Some(((kind, frame), _)) = own.iter().max_by_key(|(_, sum)| (sum.ipis, sum.requests))
    else {
        return Verdict::RuledOut(vec![text("no shootdown of the process itself")]);
    };
    shootdown_cause(evidence, recording, &(kind, *frame), [rate, lost_each, waited]).into()
}

/// Number of interrupts of CPUs by copies on write, and by forks that write-protect pages.
fn by_copies(own: &[((&FlushCause, Option<&Frame>), Sum)]) -> u64 {
    own.iter().filter(|((kind, _), _)| is_copy(kind)).map(|(_, sum)| sum.ipis).sum()
}

fn is_copy(kind: &FlushCause) -> bool {
    match kind {
        FlushCause::Write => true,
        FlushCause::Call { name, .. } => {
            ["fork", "vfork", "clone", "clone3"].contains(&name.as_str())
        }
        _ => false,
    }
}

/// Sums over the flush requests with one origin.
#[derive(Clone, Copy, Debug, Default)]
struct Sum {
    requests: u64,
    ipis: u64,
    waited: u64,
}

impl Sum {
    fn with(self, more: &Sum) -> Sum {
        Sum {
            requests: self.requests + more.requests,
            ipis: self.ipis + more.ipis,
            waited: self.waited.saturating_add(more.waited),
        }
    }
}

/// Sums the flush requests by the cause and the function that made them. Excludes flushes that the
/// kernel makes on its own, which have separate causes.
fn own_causes<'a>(all: &'a ShootdownCauses<'a>) -> Vec<((&'a FlushCause, Option<&'a Frame>), Sum)> {
    let mut sums: BTreeMap<(&FlushCause, Option<&Frame>), Sum> = BTreeMap::new();
    for (site, kind) in all.recording.sites.iter().zip(&all.causes) {
        let is_own =
            matches!(kind, FlushCause::Call { .. } | FlushCause::Write | FlushCause::Hidden);
        if !is_own {
            continue;
        }
        let stack: Vec<&Frame> = all
            .recording
            .stacks
            .get(site.stack)
            .map(|stack| stack.iter().collect())
            .unwrap_or_default();
        let sum = sums.entry((kind, responsible(&stack))).or_default();
        // Without the tracepoint `csd:csd_queue_cpu`, the number of interrupted CPUs is unknown, so
        // the number of requests replaces it.
        let ipis = if all.has_queue() { site.ipis } else { site.sends };
        *sum = sum.with(&Sum { requests: site.sends, ipis, waited: site.waited });
    }
    sums.into_iter().collect()
}

fn shootdown_cause(
    evidence: &CauseEvidence<'_>,
    recording: &ShootdownRecording,
    (kind, frame): &(&FlushCause, Option<&Frame>),
    [rate, lost_each, waited]: [f64; 3],
) -> Cause {
    let process = &evidence.now.process;
    let object = frame.map_or_else(
        || CauseObject::Process(process.pid, process.name.clone()),
        |frame| CauseObject::Function(frame.clone()),
    );
    let victims = victims(evidence, recording);
    let mut sentence = vec![
        text(kind.name()),
        text(" makes the kernel interrupt the CPUs of the other threads: "),
        CellValue::Rate(rate),
        text(" shootdowns"),
    ];
    if let Some((victim, share)) = victims.first() {
        sentence.push(text(", by which thread "));
        sentence.push(CellValue::Name(victim.name.clone()));
        sentence.push(text(format!(" ({}) loses ", victim.tid)));
        sentence.push(CellValue::Share(*share));
        sentence.push(text(" of its time"));
    }
    sentence.push(text("."));
    let mut found = cause("tlb-shootdowns", object, Confidence::Certain, sentence);
    found.cost = CauseCost::of_time(share_of_run_time(evidence, lost_each + waited));
    found.evidence = vec![
        rate_fact("shootdowns_per_s", "shootdowns", rate),
        fact("lost_ms_per_s", "time lost by the others in ms per s", milliseconds(lost_each), ""),
        fact("waited_ms_per_s", "time waited for them in ms per s", milliseconds(waited), ""),
        fact(
            "victims",
            "interrupted threads",
            CellValue::List(victims.iter().map(victim_cell).collect()),
            "",
        ),
    ];
    if let Some(initiator) =
        recording.threads.iter().max_by_key(|thread| thread.ipis.max(thread.sends))
    {
        let name = CellValue::Name(initiator.name.clone());
        found.evidence.push(fact("initiator", "most of them from thread", name, ""));
        found.evidence.push(
            fact("initiator_tid", "", CellValue::Count(initiator.tid.into()), "").for_programs(),
        );
    }
    let pages = FlushSum::default();
    found.code = remedy_code([text(
        advice(kind, &pages)
            .map_or("Make the call less often, or for larger ranges at once.", |(_, words)| words),
    )]);
    found
}

fn victim_cell((thread, share): &(&FlushThread, f64)) -> CellValue {
    CellValue::Record(vec![
        ("thread".into(), CellValue::Name(thread.name.clone())),
        ("tid".into(), CellValue::Count(thread.tid.into())),
        ("lost".into(), CellValue::Share(*share)),
    ])
}

/// Returns the threads of the process that were interrupted most, with the share of the time that
/// each thread lost.
fn victims<'a>(
    evidence: &CauseEvidence<'_>,
    recording: &'a ShootdownRecording,
) -> Vec<(&'a FlushThread, f64)> {
    let is_own = |thread: &&FlushThread| {
        let process = recording.processes.get(thread.process);
        thread.received > 0 && process.is_some_and(|it| it.pid == evidence.pid())
    };
    let mut victims: Vec<&FlushThread> = recording.threads.iter().filter(is_own).collect();
    victims.sort_by_key(|thread| (std::cmp::Reverse(thread.received), thread.tid));
    let share = |thread: &'a FlushThread| {
        (thread, lost(per_second(thread.received, recording.took_ns), INTERRUPT_SECONDS))
    };
    victims.into_iter().take(SHOWN_VICTIMS).map(share).collect()
}
