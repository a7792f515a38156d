//! Causes: limits that the process has nearly reached.

use pagewise_model::cause::{CauseCost, CauseObject, Confidence, Verdict};
use pagewise_model::evidence::Instrument;
use pagewise_model::report::CellValue;

use super::signs::{behind_growth, count_fact};
use super::{CauseEvidence, CauseRow, cause, remedy_code, remedy_now};
use crate::cells::{float, text};
use crate::explain::fact;
use crate::findings::limits::{BOUNDS, LimitBound, LimitUse, NEAR, bound_use, map_count_use};

/// The rows of the table of causes.
pub(super) const ROWS: &[CauseRow] = &[
    CauseRow {
        id: "near-max-map-count",
        title: "number of mappings",
        meaning: "The process has nearly as many mappings as the kernel allows: mmap fails next.",
        needs: &[Instrument::Snapshot],
        excluded_by: "fewer than 80 % of vm.max_map_count",
        source: "Documentation/admin-guide/sysctl/vm.rst, max_map_count",
        rule: max_map_count,
    },
    CauseRow {
        id: "near-rlimit-as",
        title: "address space limit",
        meaning: "The address space nearly reaches RLIMIT_AS: mmap and brk fail next.",
        needs: &[Instrument::Snapshot],
        excluded_by: "no limit, or less than 80 % of it",
        source: "getrlimit(2)",
        rule: |evidence| resource_limit(evidence, "near-rlimit-as"),
    },
    CauseRow {
        id: "near-rlimit-data",
        title: "data limit",
        meaning: "Private writable memory nearly reaches RLIMIT_DATA: mmap and brk fail next.",
        needs: &[Instrument::Snapshot],
        excluded_by: "no limit, or less than 80 % of it",
        source: "getrlimit(2)",
        rule: |evidence| resource_limit(evidence, "near-rlimit-data"),
    },
    CauseRow {
        id: "near-rlimit-stack",
        title: "stack limit",
        meaning: "The main stack nearly reaches RLIMIT_STACK: a deeper call ends the process.",
        needs: &[Instrument::Snapshot],
        excluded_by: "no limit, or less than 80 % of it",
        source: "getrlimit(2)",
        rule: |evidence| resource_limit(evidence, "near-rlimit-stack"),
    },
    CauseRow {
        id: "near-rlimit-memlock",
        title: "limit of locked memory",
        meaning: "Locked memory nearly reaches RLIMIT_MEMLOCK: mlock fails next.",
        needs: &[Instrument::Snapshot],
        excluded_by: "no limit, CAP_IPC_LOCK, or less than 80 % of the limit",
        source: "mlock(2); CAP_IPC_LOCK exempts the process",
        rule: |evidence| resource_limit(evidence, "near-rlimit-memlock"),
    },
];

/// Returns twice a limit, which leaves the process space to double.
fn doubled(limit: u64) -> u64 {
    limit.saturating_mul(2)
}

/// Returns the risk of a used share of a limit. The risk is lower if the process grows steadily,
/// because the growth is then the cause.
fn danger(evidence: &CauseEvidence<'_>, used: &LimitUse) -> CauseCost {
    CauseCost::of_risk(used.share().min(1.0) * behind_growth(evidence))
}

fn max_map_count(evidence: &CauseEvidence<'_>) -> Verdict {
    let Ok(subject) = evidence.subject else { return no_snapshot(evidence) };
    let Some(used) = map_count_use(subject) else { return no_snapshot(evidence) };
    if used.share() < NEAR {
        let line = [CellValue::Count(used.used), text(" of "), CellValue::Count(used.limit)];
        return Verdict::RuledOut(line.to_vec());
    }
    let setting = CauseObject::Setting("vm.max_map_count".into());
    let sentence = [
        CellValue::Count(used.used),
        text(" mappings of the "),
        CellValue::Count(used.limit),
        text(" that vm.max_map_count allows: mmap, mprotect and pthread_create fail at the limit."),
    ];
    let mut found = cause("near-max-map-count", setting, Confidence::Certain, sentence);
    // Growth of memory does not explain the number of mappings, so it does not lower the risk.
    found.cost = CauseCost::of_risk(used.share());
    found.evidence = vec![
        count_fact("mappings", "mappings", used.used),
        count_fact("limit", "limit", used.limit),
    ];
    let before = evidence.before.map(|before| before.mappings.len() as u64);
    if let Some(new) = before.and_then(|before| used.used.checked_sub(before)).filter(|it| *it > 0)
    {
        found.evidence.push(count_fact("new_mappings", "new during the observation", new));
    }
    let is_splitting =
        |call: &str| ["mmap", "mprotect", "madvise", "munmap", "mremap"].contains(&call);
    let caller = evidence.calling_function(|row| is_splitting(&row.call));
    if let Some(name) = caller.and_then(|caller| caller.frame.function.clone()) {
        found.evidence.push(fact(
            "function",
            "most calls from",
            CellValue::Name(name.as_str().into()),
            "",
        ));
    }
    found.now = remedy_now(
        format!("sysctl -w vm.max_map_count={}", doubled(used.limit)),
        [text(
            "Raise the limit of every process; a mapping takes about 200 bytes of kernel memory.",
        )],
        true,
    );
    found.code = remedy_code([text(
        "Map fewer, larger areas: mprotect, MADV_DONTFORK and MADV_HUGEPAGE on parts of a mapping split it.",
    )]);
    found.into()
}

fn no_snapshot(evidence: &CauseEvidence<'_>) -> Verdict {
    let command = format!("pagewise explain {}", evidence.pid());
    Verdict::Unknown("the mappings or the limit could not be read".into(), command.into())
}

/// A resource limit as a cause.
struct LimitCause {
    id: &'static str,
    /// Name of the finding with the same condition.
    finding: &'static str,
    /// Name of the option of prlimit(1).
    option: &'static str,
    code: &'static str,
}

const LIMIT_CAUSES: [LimitCause; 4] = [
    LimitCause {
        id: "near-rlimit-as",
        finding: "near-address-space-limit",
        option: "as",
        code: "Limit what is resident with a memory cgroup instead: address space that is not touched costs nothing.",
    },
    LimitCause {
        id: "near-rlimit-data",
        finding: "near-data-limit",
        option: "data",
        code: "Reserve less private writable memory, or raise the limit with setrlimit before the program starts.",
    },
    LimitCause {
        id: "near-rlimit-stack",
        finding: "near-stack-limit",
        option: "stack",
        code: "Bound the recursion, and allocate large local arrays on the heap.",
    },
    LimitCause {
        id: "near-rlimit-memlock",
        finding: "near-locked-limit",
        option: "memlock",
        code: "Lock only the pages that must stay (mlock2 with MLOCK_ONFAULT), or give the program CAP_IPC_LOCK.",
    },
];

fn resource_limit(evidence: &CauseEvidence<'_>, id: &'static str) -> Verdict {
    let limit = LIMIT_CAUSES.iter().find(|limit| limit.id == id);
    let bound = limit.and_then(|limit| BOUNDS.iter().find(|bound| bound.id == limit.finding));
    let (Some(limit), Some(bound)) = (limit, bound) else { return Verdict::NotApplicable };
    let (Ok(subject), Ok(limits)) = (evidence.subject, &evidence.now.limits) else {
        return no_snapshot(evidence);
    };
    if (bound.limit)(limits).soft.is_none() {
        return Verdict::RuledOut(vec![text(format!("{} is unlimited", bound.name))]);
    }
    match bound_use(subject, limits, bound) {
        Some(used) if used.share() >= NEAR => near(evidence, limit, bound, &used),
        Some(used) => Verdict::RuledOut(vec![
            CellValue::Bytes(used.used),
            text(" of "),
            CellValue::Bytes(used.limit),
        ]),
        None if limits.locks_freely == Some(true) && id == "near-rlimit-memlock" => {
            Verdict::RuledOut(vec![text("CAP_IPC_LOCK exempts the process from the limit")])
        }
        None => no_snapshot(evidence),
    }
}

fn near(
    evidence: &CauseEvidence<'_>,
    limit: &LimitCause,
    bound: &LimitBound,
    used: &LimitUse,
) -> Verdict {
    let sentence = [
        CellValue::Bytes(used.used),
        text(" of the "),
        CellValue::Bytes(used.limit),
        text(" that "),
        text(bound.name),
        text(" allows"),
        text(bound.then),
    ];
    let setting = CauseObject::Setting(bound.name.into());
    let mut found = cause(limit.id, setting, Confidence::Certain, sentence);
    found.cost = danger(evidence, used);
    found.evidence = vec![
        fact("used", "used", CellValue::Bytes(used.used), ""),
        fact("limit", "limit", CellValue::Bytes(used.limit), ""),
        fact("share", "share", CellValue::Share(float(used.used) / float(used.limit.max(1))), ""),
    ];
    found.now = raise(evidence, limit, bound, used);
    found.code = remedy_code([text(limit.code)]);
    found.into()
}

/// Returns the command that raises the soft limit, and also the hard limit if it is lower.
fn raise(
    evidence: &CauseEvidence<'_>,
    limit: &LimitCause,
    bound: &LimitBound,
    used: &LimitUse,
) -> Option<pagewise_model::cause::Remedy> {
    let limits = evidence.now.limits.as_ref().ok()?;
    let soft = doubled(used.limit.max(used.used));
    let hard = (bound.limit)(limits).hard;
    let mut change = "Raise the limit of the running process.".to_owned();
    if hard.is_some_and(|hard| hard < soft) {
        change +=
            " To raise its hard limit needs CAP_SYS_RESOURCE, which root in a container may lack.";
    }
    let hard = hard.map_or("unlimited".to_owned(), |hard| hard.max(soft).to_string());
    remedy_now(
        format!("prlimit --pid {} --{}={soft}:{hard}", evidence.pid(), limit.option),
        [text(change)],
        true,
    )
}

#[cfg(test)]
mod tests {
    use pagewise_model::Bytes;
    use pagewise_model::process::{ProcessStatus, ResourceLimit, ResourceLimits};

    use super::*;
    use crate::causes::made::verdict;
    use crate::causes::made_recordings::steady;

    fn locked(locks_freely: Option<bool>, locked: u64) -> Verdict {
        let mut evidence = steady(1 << 20);
        let none = ResourceLimit { soft: None, hard: None };
        let mut snapshot = (*evidence.last.value().unwrap().clone()).clone();
        let absent = || pagewise_model::Absent::NotCollected("a sample".into());
        let status = ProcessStatus::from_lines(|_, _| Err(absent()));
        snapshot.status = Ok(ProcessStatus { vm_lck: Ok(Bytes(locked)), ..status });
        snapshot.limits = Ok(ResourceLimits {
            stack: none,
            address_space: none,
            data: none,
            locked: ResourceLimit { soft: Some(1000), hard: Some(1000) },
            locks_freely,
        });
        evidence.last = pagewise_model::evidence::Gathered::Value(Box::new(snapshot));
        verdict(&evidence, "near-rlimit-memlock")
    }

    #[test]
    fn a_process_with_cap_ipc_lock_is_not_near_the_limit_of_locked_memory() {
        assert!(matches!(locked(Some(false), 990), Verdict::Present(_)));
        assert!(matches!(locked(Some(false), 100), Verdict::RuledOut(_)));
        assert!(matches!(locked(Some(true), 990), Verdict::RuledOut(_)));
        // A process can lock more than its limit only if CAP_IPC_LOCK exempts it.
        assert!(!matches!(locked(None, 5000), Verdict::Present(_)));
    }

    #[test]
    fn the_limit_of_mappings_is_near_from_four_fifths_on() {
        for (limit, is_near) in [(1, true), (2, false), (65530, false)] {
            let mut evidence = steady(1 << 20);
            let mut snapshot = (*evidence.last.value().unwrap().clone()).clone();
            snapshot.machine.max_map_count = Ok(limit);
            evidence.last = pagewise_model::evidence::Gathered::Value(Box::new(snapshot));
            let found = verdict(&evidence, "near-max-map-count");
            assert_eq!(matches!(found, Verdict::Present(_)), is_near, "{limit}: {found:?}");
        }
    }
}
