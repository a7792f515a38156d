//! Plans of changes to huge pages: the memory to change, and the memory to spare.

use pagewise_model::thp::{Action, FixPlan, HugeMapping, HugePage, HugePages};
use pagewise_model::{AddrRange, Backing, Bytes, Mapping, Reading, Sharing, SmapsCounter};

/// Plans to release the zero-filled base pages of sparse huge pages: at least the share `sparse` of
/// their base pages is zero-filled.
///
/// Other huge pages are spared: splitting them frees little memory and costs the process its huge
/// pages. With `hold`, the plan also forbids huge pages: in a whole mapping if most of its huge
/// pages are sparse, else only at the sparse huge pages.
pub fn shrink(huge: &HugePages, page_size: Bytes, sparse: f64, hold: bool) -> FixPlan {
    let per_huge = u32::try_from(huge.huge_size.0 / page_size.0.max(1)).unwrap_or(u32::MAX);
    let is_sparse =
        |page: &&HugePage| page.zero > 0 && f64::from(page.zero) >= sparse * f64::from(per_huge);
    let range = |page: &HugePage| AddrRange {
        start: page.start,
        end: page.start.saturating_add(huge.huge_size.0),
    };
    let mut plan = FixPlan {
        action: Action::Shrink,
        ranges: Vec::new(),
        hold: Vec::new(),
        change: Ok(Bytes::ZERO),
        spared: Bytes::ZERO,
    };
    let mut freed = 0_u64;
    for mapping in &huge.mappings {
        let sparse: Vec<AddrRange> = mapping.pages.iter().filter(is_sparse).map(range).collect();
        freed += mapping.pages.iter().filter(is_sparse).map(|p| u64::from(p.zero)).sum::<u64>();
        let treated: Bytes = sparse.iter().map(|range| range.len()).sum();
        plan.spared += mapping.anonymous.saturating_sub(treated);
        if hold && !sparse.is_empty() {
            plan.hold.extend(held(mapping, &sparse));
        }
        plan.ranges.extend(sparse);
    }
    plan.change = Ok(Bytes(freed.saturating_mul(page_size.0)));
    plan
}

fn held(mapping: &HugeMapping, sparse: &[AddrRange]) -> Vec<AddrRange> {
    if sparse.len() * 2 >= mapping.pages.len() {
        return vec![mapping.range];
    }
    joined(sparse)
}

/// Merges adjacent ranges. Requires that the ranges are sorted.
fn joined(ranges: &[AddrRange]) -> Vec<AddrRange> {
    let mut all: Vec<AddrRange> = Vec::new();
    for range in ranges {
        match all.last_mut() {
            Some(last) if last.end == range.start => last.end = range.end,
            _ => all.push(*range),
        }
    }
    all
}

/// Plans to collapse `blocks` into huge pages. Requires that each block has the size of a huge page
/// and is fully resident in base pages.
pub fn collapse(blocks: Vec<AddrRange>, spared: Bytes) -> FixPlan {
    FixPlan {
        action: Action::Collapse,
        ranges: blocks,
        hold: Vec::new(),
        change: Ok(Bytes::ZERO),
        spared,
    }
}

/// Plans to reclaim the private anonymous mappings that were not referenced and are not locked; the
/// other mappings are spared.
///
/// Requires that `mappings` are from `smaps`, read some time after the referenced bits were
/// cleared.
///
/// # Errors
/// The reason why a counter of `smaps` is absent.
pub fn page_out(mappings: &[Mapping]) -> Reading<FixPlan> {
    let mut plan = FixPlan {
        action: Action::PageOut,
        ranges: Vec::new(),
        hold: Vec::new(),
        change: Ok(Bytes::ZERO),
        spared: Bytes::ZERO,
    };
    let mut cold = Bytes::ZERO;
    for mapping in mappings {
        let [referenced, anonymous, locked] =
            [SmapsCounter::Referenced, SmapsCounter::Anonymous, SmapsCounter::Locked]
                .map(|c| mapping.counter(c));
        let (referenced, anonymous, locked) = (referenced?, anonymous?, locked?);
        let own = mapping.sharing == Sharing::Private && mapping.backing() == Backing::Anonymous;
        if !own || anonymous.is_zero() {
            continue;
        }
        if referenced.is_zero() && locked.is_zero() {
            cold += anonymous;
            plan.ranges.push(mapping.range);
        } else {
            plan.spared += anonymous;
        }
    }
    plan.change = Ok(cold);
    Ok(plan)
}
