//! Pointers of roots grouped by the variable, stack frame or mapping that they lie in. An area is
//! the address range of a variable or of a stack frame.

use pagewise_model::AddrRange;

use super::edges::RootPointers;
use super::number;
use super::roots::{RootSpan, RootSpanKind};

/// Maximum number of pointers of a data span in which each pointer outside all areas is a root of
/// its own. In a span with more pointers, neighboring pointers outside all areas form one root.
const MAX_WORDS: usize = 4000;

/// A root: a group of pointers with a common name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RootEntity {
    /// Index of the span; `None` for the root of pointers that were not stored.
    pub span: Option<u32>,
    /// Part of the span that contains the pointers.
    pub part: RootPart,
    /// Address of the first pointer of the root; 0 for registers.
    pub address: u64,
    /// Index of the first pointer of the root.
    pub(super) first: u32,
}

impl RootEntity {
    pub(super) fn unrecorded(first: u32) -> RootEntity {
        RootEntity { span: None, part: RootPart::Rest, address: 0, first }
    }
}

/// Part of a span.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RootPart {
    /// The area with this index: a variable or a stack frame.
    Area(u32),
    /// A single pointer in data of an ELF object, outside all areas.
    Word,
    /// All pointers of the span, or all pointers between two areas.
    Rest,
}

/// Groups pointers of roots. The pointers of a root are consecutive.
pub(super) fn entities(
    roots: &RootPointers,
    spans: &[RootSpan],
    areas: &[AddrRange],
) -> Vec<RootEntity> {
    let ends = roots.runs.iter().skip(1).map(|run| run.1 as usize).chain([roots.targets.len()]);
    let mut entities: Vec<RootEntity> = Vec::new();
    for (&(span, start), end) in roots.runs.iter().zip(ends) {
        let Some(kind) = spans.get(span as usize).map(|span| span.kind) else { continue };
        let addresses = &roots.addresses[start as usize..end];
        let is_divided = matches!(kind, RootSpanKind::Data(_)) && addresses.len() <= MAX_WORDS;
        let first_of_run = entities.len();
        for (&address, at) in addresses.iter().zip(start..) {
            let part = match area_of(areas, kind, address) {
                Some(area) => RootPart::Area(area),
                None if is_divided => RootPart::Word,
                None => RootPart::Rest,
            };
            let is_same = entities[first_of_run..].last().is_some_and(|last| last.part == part);
            if !is_same || part == RootPart::Word {
                entities.push(RootEntity { span: Some(span), part, address, first: at });
            }
        }
    }
    entities
}

fn area_of(areas: &[AddrRange], kind: RootSpanKind, address: u64) -> Option<u32> {
    if matches!(kind, RootSpanKind::Registers(_) | RootSpanKind::Other(_)) {
        return None;
    }
    let at = areas.partition_point(|area| area.start <= address).checked_sub(1)?;
    areas[at].contains(address).then(|| number(at))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pointers_of_a_variable_are_one_root() {
        let range = |start, end| AddrRange { start, end };
        let spans = [
            RootSpan { kind: RootSpanKind::Registers(0), range: range(0, 0) },
            RootSpan { kind: RootSpanKind::Data(0), range: range(0x1000, 0x2000) },
            RootSpan { kind: RootSpanKind::Other(1), range: range(0x3000, 0x4000) },
        ];
        let roots = RootPointers {
            addresses: vec![0, 0, 0x1000, 0x1008, 0x1100, 0x1108, 0x3000, 0x3ff8],
            targets: vec![0; 8],
            runs: vec![(0, 0), (1, 2), (2, 6)],
        };
        let found = entities(&roots, &spans, &[range(0x1000, 0x1010), range(0x3000, 0x3010)]);
        let parts: Vec<_> = found.iter().map(|it| (it.span, it.part, it.first)).collect();
        let expected = [
            (Some(0), RootPart::Rest, 0),
            (Some(1), RootPart::Area(0), 2),
            (Some(1), RootPart::Word, 4),
            (Some(1), RootPart::Word, 5),
            (Some(2), RootPart::Rest, 6),
        ];
        assert_eq!(parts, expected);
    }
}
