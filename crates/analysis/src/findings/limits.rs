//! Findings of a process that is near a limit.

use pagewise_model::process::{ResourceLimit, ResourceLimits};
use pagewise_model::report::{CellValue, Finding, Severity};
use pagewise_model::{Bytes, Reading};

use super::{FindingRule, bytes, command, fact, finding, size};
use crate::cells::text;
use crate::explain::ExplainSubject;
use crate::pools::PoolKind;

/// The rules, in the order of their reports.
pub(super) const RULES: &[FindingRule] = &[
    FindingRule::Snapshot(map_count),
    FindingRule::Snapshot(cgroup),
    FindingRule::Limits(resource_limits),
];

/// From this share of a limit on, doubling a buffer can reach the limit.
pub(crate) const NEAR: f64 = 0.8;
/// From this share on, a small request can reach the limit.
const AT: f64 = 0.95;
/// Page cache fills a cgroup and is reclaimed, so a cgroup is normally closer to its limit than a
/// process.
const NEAR_CGROUP: f64 = 0.9;

fn severity(share: f64) -> Severity {
    if share >= AT { Severity::Critical } else { Severity::Warning }
}

/// The used share of a limit, if it is at least `from`.
fn near(used: Bytes, limit: Bytes, from: f64) -> Option<f64> {
    used.fraction_of(limit).filter(|&share| share >= from)
}

/// A limit, and the amount that counts against it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct LimitUse {
    pub(crate) used: u64,
    pub(crate) limit: u64,
}

impl LimitUse {
    /// The used share; more than 1 if the limit was lowered since.
    pub(crate) fn share(self) -> f64 {
        Bytes(self.used).fraction_of(Bytes(self.limit)).unwrap_or(1.0)
    }
}

/// Number of mappings, and `vm.max_map_count`; `None` if the limit is unknown.
pub(crate) fn map_count_use(subject: &ExplainSubject<'_>) -> Option<LimitUse> {
    let limit = *subject.snapshot.machine.max_map_count.as_ref().ok()?;
    Some(LimitUse { used: subject.mappings.len() as u64, limit })
}

/// Number of mappings near `vm.max_map_count`.
fn map_count(subject: &ExplainSubject<'_>) -> Option<Finding> {
    let LimitUse { used: count, limit } = map_count_use(subject)?;
    let share = near(Bytes(count), Bytes(limit), NEAR)?;
    Some(finding(
        "near-max-map-count",
        severity(share),
        [
            CellValue::Count(count),
            text(" mappings of the "),
            CellValue::Count(limit),
            text(" that vm.max_map_count allows: mmap fails at the limit."),
        ],
        [
            fact("mappings", "mappings", CellValue::Count(count), ""),
            fact("limit", "limit", CellValue::Count(limit), ""),
        ],
        command(
            "See the largest groups of mappings with `pagewise maps ",
            subject,
            " --group file`, or raise vm.max_map_count.",
        ),
    ))
}

/// A memory cgroup near its limit.
fn cgroup(subject: &ExplainSubject<'_>) -> Option<Finding> {
    let cgroup = subject.snapshot.cgroup.as_ref().ok()?;
    let (limit, usage) = (cgroup.limit?, *cgroup.usage.as_ref().ok()?);
    let share = near(usage, limit, NEAR_CGROUP)?;
    let resident = subject.snapshot.statm.as_ref().map(|s| s.resident).map_err(Clone::clone);
    Some(finding(
        "near-cgroup-limit",
        severity(share),
        [
            text("Its memory cgroup uses "),
            bytes(usage),
            text(" of "),
            bytes(limit),
            text(
                ", page cache included: at the limit the kernel reclaims memory, then kills a process.",
            ),
        ],
        [
            size("usage", "usage", usage),
            size("limit", "limit", limit),
            fact("resident", "this process", CellValue::bytes(resident), ""),
            fact("cgroup", "cgroup", CellValue::Name(cgroup.path.clone()), ""),
        ],
        vec![text(
            "Raise the limit, or find the process that grows with `pagewise ps --group cgroup`.",
        )],
    ))
}

/// A resource limit, the amount that it bounds, and the effect of reaching it.
pub(crate) struct LimitBound {
    pub(crate) id: &'static str,
    pub(crate) name: &'static str,
    /// Amount of the process that counts against it.
    used: fn(&ExplainSubject<'_>) -> Option<Bytes>,
    pub(crate) limit: fn(&ResourceLimits) -> ResourceLimit,
    pub(crate) then: &'static str,
    next_step: &'static str,
}

pub(crate) const BOUNDS: [LimitBound; 4] = [
    LimitBound {
        id: "near-stack-limit",
        name: "RLIMIT_STACK",
        used: main_stack,
        limit: |limits| limits.stack,
        then: ": a deeper call ends the process with SIGSEGV.",
        next_step: "Raise it with `ulimit -s` before the program starts, or search for deep recursion and large local arrays.",
    },
    LimitBound {
        id: "near-address-space-limit",
        name: "RLIMIT_AS",
        used: |subject| statm(subject).map(|s| s.size).ok(),
        limit: |limits| limits.address_space,
        then: ": mmap and brk fail at the limit, whether pages are resident or not.",
        next_step: "Raise it with `ulimit -v`; a memory cgroup limits what is resident instead.",
    },
    LimitBound {
        id: "near-data-limit",
        name: "RLIMIT_DATA",
        used: |subject| statm(subject).map(|s| s.data).ok(),
        limit: |limits| limits.data,
        then: ": brk and private writable mmap fail at the limit.",
        next_step: "Raise it with `ulimit -d`.",
    },
    LimitBound {
        id: "near-locked-limit",
        name: "RLIMIT_MEMLOCK",
        used: locked,
        limit: |limits| limits.locked,
        then: ": mlock fails at the limit.",
        next_step: "Raise it with `ulimit -l`, or give the program CAP_IPC_LOCK.",
    },
];

fn statm<'a>(subject: &ExplainSubject<'a>) -> Reading<&'a pagewise_model::process::Statm> {
    subject.snapshot.statm.as_ref().map_err(Clone::clone)
}

/// Locked memory; `None` if the limit does not apply.
///
/// A process that has locked more than its limit had CAP_IPC_LOCK, or the limit was lowered: in
/// snapshots without capabilities the process counts as exempt.
fn locked(subject: &ExplainSubject<'_>) -> Option<Bytes> {
    let locked = subject.snapshot.status.as_ref().ok()?.vm_lck.clone().ok()?;
    let limits = subject.snapshot.limits.as_ref().ok()?;
    let is_over = limits.locked.soft.is_some_and(|limit| locked.0 > limit);
    (!limits.locks_freely.unwrap_or(is_over)).then_some(locked)
}

/// The touched part of the main stack. Its size says less: Ruby touches one page at the limit when
/// it starts, so that the stack has this size without a deep call.
fn main_stack(subject: &ExplainSubject<'_>) -> Option<Bytes> {
    let mut pools = subject.pools.list().iter().zip(&subject.sums);
    let (_, sums) = pools.find(|(pool, _)| pool.kind == PoolKind::MainStack)?;
    Some(match (&sums.resident, &sums.swap) {
        (Ok(resident), Ok(swapped)) => *resident + *swapped,
        _ => sums.reserved,
    })
}

/// RLIMIT_STACK, RLIMIT_AS, RLIMIT_DATA and RLIMIT_MEMLOCK.
fn resource_limits(subject: &ExplainSubject<'_>) -> Vec<Finding> {
    let Ok(limits) = &subject.snapshot.limits else { return Vec::new() };
    BOUNDS.iter().filter_map(|bound| resource_limit(subject, limits, bound)).collect()
}

/// `None` without a limit, if it does not apply, or if the used amount is unknown.
pub(crate) fn bound_use(
    subject: &ExplainSubject<'_>,
    limits: &ResourceLimits,
    bound: &LimitBound,
) -> Option<LimitUse> {
    let limit = (bound.limit)(limits).soft?;
    Some(LimitUse { used: (bound.used)(subject)?.0, limit })
}

fn resource_limit(
    subject: &ExplainSubject<'_>,
    limits: &ResourceLimits,
    bound: &LimitBound,
) -> Option<Finding> {
    let LimitUse { used, limit } = bound_use(subject, limits, bound)?;
    let (used, limit) = (Bytes(used), Bytes(limit));
    let share = near(used, limit, NEAR)?;
    Some(finding(
        bound.id,
        severity(share),
        [
            bytes(used),
            text(" of the "),
            bytes(limit),
            text(" that "),
            text(bound.name),
            text(" allows"),
            text(bound.then),
        ],
        [size("used", "used", used), size("limit", "limit", limit)],
        vec![text(bound.next_step)],
    ))
}
