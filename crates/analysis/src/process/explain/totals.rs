//! The memory columns of `top`, and more exact totals.

use pagewise_model::process::{ProcessStatus, Statm};
use pagewise_model::report::{Audience, CellValue, Fact, FactsShape, NamedFacts};
use pagewise_model::{Absent, Bytes, Reading, Snapshot};

use crate::swapped;

use super::{ExplainSubject, fact, meaning};

pub(super) fn totals(
    snapshot: &Snapshot,
    subject: Result<&ExplainSubject<'_>, &Absent>,
) -> NamedFacts {
    let statm = |of: fn(&Statm) -> Bytes| snapshot.statm.as_ref().map(of).map_err(Clone::clone);
    let status = |of: fn(&ProcessStatus) -> &Reading<Bytes>| {
        snapshot.status.as_ref().map_err(Clone::clone).and_then(|s| of(s).clone())
    };
    let subject = subject.map_err(Clone::clone);
    let pss = subject.clone().and_then(|s| s.pss.total.clone());
    let uss = subject.and_then(|s| s.total.uss.clone());
    let swap = swapped::total(snapshot);
    let facts = vec![
        bytes("virt", "VIRT", statm(|s| s.size)),
        bytes("res", "RES", statm(|s| s.resident)),
        bytes("shr", "SHR", statm(|s| s.shared)),
        bytes("data", "DATA", statm(|s| s.data)),
        bytes("code", "CODE", statm(|s| s.text)),
        bytes("swap", "SWAP", swap.clone()),
        private_swap(snapshot, &swap),
        fact("mem_share", "%MEM", mem_share(snapshot), meaning("%MEM")),
        bytes("pss", "PSS", pss),
        bytes("uss", "USS", uss),
        bytes("peak_res", "peak RES", status(|s| &s.vm_hwm)),
        bytes("page_tables", "page tables", status(|s| &s.vm_pte)),
        rare(bytes("locked", "locked", status(|s| &s.vm_lck))),
        rare(bytes("hugetlb", "hugetlb", status(|s| &s.hugetlb))),
    ];
    NamedFacts {
        key: "totals".into(),
        title: "Memory".into(),
        audience: Audience::Everyone,
        shape: FactsShape::Columns,
        facts,
    }
}

fn bytes(key: &'static str, label: &'static str, reading: Reading<Bytes>) -> Fact {
    fact(key, label, CellValue::bytes(reading), meaning(label))
}

/// Builds the fact `VmSwap`. It is shown by default only if it differs from the swapped bytes of
/// the mappings.
fn private_swap(snapshot: &Snapshot, swap: &Reading<Bytes>) -> Fact {
    let private = swapped::private(snapshot);
    let differs = private.is_ok() && private != *swap;
    let audience = if differs { Audience::Everyone } else { Audience::Long };
    Fact { audience, ..bytes("swap_private", "SWAP (private)", private) }
}

/// Hides a fact from people who do not use `--long`, if its value is 0 or unknown.
fn rare(fact: Fact) -> Fact {
    let audience = match fact.value {
        CellValue::Bytes(1..) => Audience::Everyone,
        _ => Audience::Long,
    };
    Fact { audience, ..fact }
}

fn mem_share(snapshot: &Snapshot) -> CellValue {
    let statm = snapshot.statm.as_ref().map_err(Clone::clone);
    let share = statm.and_then(|statm| {
        let total = snapshot.machine.mem_total.clone()?;
        let none = || Absent::NotSupported("MemTotal is 0".into());
        statm.resident.fraction_of(total).ok_or_else(none)
    });
    CellValue::from_reading(share, CellValue::Share)
}
