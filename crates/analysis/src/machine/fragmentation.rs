//! Free memory by block size: the part that is available in large blocks, and the kernel's counters
//! of compaction and reclaim.
//!
//! All sums count free blocks. Less can be allocated, because the kernel keeps a reserve
//! (watermarks, reserve of low zones). More large blocks can become available, because compaction
//! moves movable pages.

mod counters;
mod zones;

use pagewise_model::account::SystemReading;
use pagewise_model::fragmentation::{FreeMemory, Zone};
use pagewise_model::report::{
    Audience, CellValue, FactsShape, Label, NamedFacts, Paragraph, Report, ReportBlock,
};
use pagewise_model::{Absent, Bytes, PageSize, Reading};

use crate::blocks::facts_of;
use crate::explain::fact;

/// Name and version of the JSON form.
pub const SCHEMA: &str = "pagewise.fragmentation/1";

/// The size of a block of an order.
pub fn block(order: usize, page_size: PageSize) -> Bytes {
    let pages = u32::try_from(order).ok().and_then(|order| 1_u64.checked_shl(order));
    page_size.pages(pages.unwrap_or(u64::MAX))
}

/// All free memory of a zone.
pub fn free(zone: &Zone, page_size: PageSize) -> Bytes {
    allocatable(zone, 0, page_size)
}

/// Free memory of a zone that is available in blocks of `order` without compaction: a block of
/// order k >= `order` is `2^(k - order)` of them.
pub fn allocatable(zone: &Zone, order: usize, page_size: PageSize) -> Bytes {
    let counts = zone.free.iter().enumerate().skip(order);
    counts.map(|(order, &count)| Bytes(block(order, page_size).0.saturating_mul(count))).sum()
}

/// The share of free memory that is of no use to a request of an order: 1 - allocatable / free, as
/// the kernel's `unusable_index` in debugfs. `None` where nothing is free.
pub fn unusable_index(free: Bytes, allocatable: Bytes) -> Option<f64> {
    allocatable.fraction_of(free).map(|usable| 1.0 - usable)
}

/// The free memory of a machine, and the part that huge pages can be made of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FreeForHugePages {
    /// All free memory.
    pub free: Bytes,
    /// The part in free blocks that hold a huge page.
    pub allocatable: Bytes,
}

impl FreeForHugePages {
    /// See [`unusable_index`].
    pub fn unusable_index(self) -> Option<f64> {
        unusable_index(self.free, self.allocatable)
    }
}

/// Free memory in huge pages, over all zones of a machine.
///
/// # Errors
/// [`Absent`] without the counts of free blocks or the size of a huge page.
pub fn huge_of_free(reading: &SystemReading) -> Reading<FreeForHugePages> {
    let page_size = reading.page_size;
    let zones = reading.free_blocks.as_ref().map_err(Clone::clone)?;
    let order = huge_order(reading.huge_size.clone()?, page_size)?;
    Ok(FreeForHugePages {
        free: zones.iter().map(|zone| free(zone, page_size)).sum(),
        allocatable: zones.iter().map(|zone| allocatable(zone, order, page_size)).sum(),
    })
}

/// The reason why a request of an order fails in a zone: near 0 for lack of memory, near 1 for
/// fragmentation. `None` if the request would not fail, or no block is free.
///
/// The kernel's `extfrag_index`: `1 - (1 + free pages / requested pages) / free blocks`. It
/// compacts a zone instead of reclaiming where this exceeds `vm.extfrag_threshold` / 1000.
#[expect(clippy::cast_precision_loss, reason = "an index is shown with three digits")]
pub fn fragmentation_index(zone: &Zone, order: usize, page_size: PageSize) -> Option<f64> {
    let blocks = zone.free.iter().fold(0_u64, |sum, count| sum.saturating_add(*count));
    let fails = allocatable(zone, order, page_size).is_zero();
    let requested = block(order, page_size).0 as f64;
    let index = 1.0 - (1.0 + free(zone, page_size).0 as f64 / requested) / blocks as f64;
    (fails && blocks > 0).then_some(index.clamp(0.0, 1.0))
}

/// The order of a huge page.
pub fn huge_order(huge_size: Bytes, page_size: PageSize) -> Reading<usize> {
    let pages = page_size.count(huge_size);
    match usize::try_from(pages.trailing_zeros()) {
        Ok(order) if pages.is_power_of_two() => Ok(order),
        _ => Err(Absent::NotSupported("a huge page is no power of two of base pages".into())),
    }
}

/// The zones, and the order of a huge page.
struct ZoneSubject<'a> {
    all: &'a FreeMemory,
    zones: &'a [Zone],
    huge_order: Reading<usize>,
}

impl<'a> ZoneSubject<'a> {
    fn from_fragmentation(all: &'a FreeMemory) -> Reading<ZoneSubject<'a>> {
        let zones = all.zones.as_ref().map_err(Clone::clone)?;
        let huge_order = all.huge_size.clone().and_then(|size| huge_order(size, all.page_size));
        Ok(ZoneSubject { all, zones, huge_order })
    }

    fn free(&self) -> Bytes {
        self.at_order(0)
    }

    /// Memory available in blocks of an order, over all zones.
    fn at_order(&self, order: usize) -> Bytes {
        self.zones.iter().map(|zone| allocatable(zone, order, self.all.page_size)).sum()
    }

    fn huge(&self) -> Reading<Bytes> {
        self.huge_order.clone().map(|order| self.at_order(order))
    }
}

/// The free memory of a machine as a report: facts at the top level, tables `nodes`, `orders`,
/// `types`, `counters` and `sizes`.
pub fn fragmentation(now: &FreeMemory) -> Report {
    report(None, now)
}

/// [`fragmentation`] of `now`, with the increase of the counters since `before`.
pub fn since(before: &FreeMemory, now: &FreeMemory) -> Report {
    report(Some(before), now)
}

fn report(before: Option<&FreeMemory>, now: &FreeMemory) -> Report {
    let mut blocks = match ZoneSubject::from_fragmentation(now) {
        Ok(subject) => body(&subject),
        Err(absent) => withheld(now, &absent),
    };
    blocks.extend(counters::blocks(before, now));
    Report { schema: SCHEMA, title: vec![CellValue::text("Free memory by block size")], blocks }
}

fn body(subject: &ZoneSubject<'_>) -> Vec<ReportBlock> {
    let mut blocks = vec![
        ReportBlock::Facts(totals(subject)),
        ReportBlock::Text(verdict(subject)),
        ReportBlock::Table(zones::nodes(subject)),
        ReportBlock::Table(zones::zones(subject)),
        ReportBlock::Table(zones::orders(subject)),
    ];
    blocks.extend(zones::types(subject));
    blocks
}

fn withheld(now: &FreeMemory, absent: &Absent) -> Vec<ReportBlock> {
    let mut facts =
        vec![fact("page_size", "page size", CellValue::Bytes(now.page_size.bytes()), "")];
    let why = absent.to_string();
    let absent = |key: &'static str| fact(key, key, CellValue::Absent(absent.clone()), "");
    facts.extend(["free", "allocatable_huge", "nodes", "orders", "types"].map(absent));
    let pieces = vec![
        CellValue::text("Free memory cannot be shown: "),
        CellValue::text(why),
        CellValue::text("."),
    ];
    vec![
        ReportBlock::Facts(NamedFacts {
            audience: Audience::Programs,
            ..facts_of("", "", FactsShape::Line, facts)
        }),
        ReportBlock::Text(Paragraph { title: "".into(), pieces, audience: Audience::People }),
    ]
}

fn totals(subject: &ZoneSubject<'_>) -> NamedFacts {
    let all = subject.all;
    let order = subject.huge_order.clone();
    let unusable = subject.huge().map(|huge| unusable_index(subject.free(), huge));
    let facts = vec![
        fact("page_size", "page size", CellValue::Bytes(all.page_size.bytes()), "The base page."),
        fact(
            "huge_size",
            "huge page",
            CellValue::bytes(all.huge_size.clone()),
            "Size that one PMD entry maps.",
        ),
        fact(
            "huge_order",
            "its order",
            CellValue::from_reading(order, |order| CellValue::Count(order as u64)),
            "A huge page is 2^order base pages.",
        ),
        fact("free", "free", CellValue::Bytes(subject.free().0), "In free blocks of any order.")
            .for_programs(),
        fact(
            "allocatable_huge",
            "in huge pages",
            CellValue::bytes(subject.huge()),
            "Huge pages that free blocks provide without compaction.",
        )
        .for_programs(),
        fact(
            "unusable_index",
            "unusable for it",
            CellValue::from_reading(unusable, |index| {
                index.map_or(CellValue::None, CellValue::Share)
            }),
            "The share of free memory in blocks that are too small: 1 - allocatable / free.",
        ),
    ];
    facts_of("", "", FactsShape::Line, facts)
}

fn verdict(subject: &ZoneSubject<'_>) -> Paragraph {
    let pieces = match (subject.huge(), subject.all.huge_size.clone()) {
        (Ok(huge), Ok(size)) => vec![
            CellValue::text("Allocatable as "),
            CellValue::Bytes(size.0),
            CellValue::text(" pages without compaction: "),
            CellValue::Bytes(huge.0),
            CellValue::text(" of "),
            CellValue::Bytes(subject.free().0),
            CellValue::text(" free, less what the kernel keeps back."),
        ],
        (Err(absent), _) | (_, Err(absent)) => {
            vec![CellValue::text("No huge pages here: "), CellValue::Absent(absent.clone())]
        }
    };
    Paragraph { title: "".into(), pieces, audience: Audience::People }
}

/// One line of a live series: memory available now, and counters that increased since `before`. The
/// elapsed time counts from `first`.
pub fn series_row(first: &FreeMemory, before: &FreeMemory, now: &FreeMemory) -> Report {
    let elapsed = counters::elapsed_ns(first, now);
    let mut line =
        vec![fact("elapsed_ns", "+", CellValue::from_reading(elapsed, CellValue::Nanos), "")];
    let mut blocks = Vec::new();
    match ZoneSubject::from_fragmentation(now) {
        Ok(subject) => {
            line.push(fact("free", "free", CellValue::Bytes(subject.free().0), ""));
            line.push(fact(
                "allocatable_huge",
                "in huge pages",
                CellValue::bytes(subject.huge()),
                "",
            ));
            let nodes = zones::nodes(&subject);
            blocks.push(ReportBlock::Table(nodes));
        }
        Err(absent) => line.push(fact("allocatable_huge", "", CellValue::Absent(absent), "")),
    }
    line.extend(counters::moving(before, now));
    blocks.insert(0, ReportBlock::Facts(facts_of("", "", FactsShape::Line, line)));
    blocks.extend(counters::programs(Some(before), now).map(ReportBlock::Table));
    Report { schema: "pagewise.fragmentation.series/1", title: Vec::new(), blocks }
}

/// An index from 0 to 1 as a cell.
fn index(value: Option<f64>) -> CellValue {
    value.map_or(CellValue::None, CellValue::Share)
}

fn label(text: &str) -> Label {
    text.to_owned().into()
}

#[cfg(test)]
mod tests {
    use pagewise_model::fragmentation::BootCounter;
    use proptest::prelude::*;

    use super::*;

    const PAGE: PageSize = PageSize::new(4096).expect("a power of two");
    const HUGE: Bytes = Bytes::mib(2);

    fn zone(free: &[u64]) -> Zone {
        Zone { node: 0, name: "Normal".into(), free: free.to_vec() }
    }

    fn machine(zones: Vec<Zone>) -> FreeMemory {
        let none = || Absent::NotCollected("a sample".into());
        FreeMemory {
            page_size: PAGE,
            huge_size: Ok(HUGE),
            since_boot_ns: Ok(0),
            zones: Ok(zones),
            types: Err(none()),
            vmstat: Ok(Vec::new()),
            sizes: Err(none()),
        }
    }

    fn top_level(report: &Report, key: &str) -> CellValue {
        let facts = report.blocks.iter().filter_map(|block| match block {
            ReportBlock::Facts(facts) if facts.key.is_empty() => Some(&facts.facts),
            _ => None,
        });
        let fact = facts.flatten().find(|fact| fact.key == key);
        fact.unwrap_or_else(|| panic!("no {key}")).value.clone()
    }

    #[test]
    fn a_block_of_a_higher_order_holds_several_huge_pages() {
        let mut counts = vec![0; 11];
        counts[8] = 100;
        counts[10] = 2565;
        let mut others = vec![5000; 3];
        others.resize(11, 0);
        others[10] = 1199;
        let machine = machine(vec![zone(&counts), zone(&others)]);
        let huge = top_level(&fragmentation(&machine), "allocatable_huge");
        assert_eq!(huge, CellValue::Bytes((2565 + 1199) * (4 << 20)));
    }

    #[test]
    fn allocatable_memory_decreases_with_the_order() {
        let zone = zone(&[1, 1, 1]);
        let at = |order| allocatable(&zone, order, PAGE);
        assert_eq!([0, 1, 2, 3].map(at), [7, 6, 4, 0].map(|pages| PAGE.pages(pages)));
    }

    #[test]
    fn the_fragmentation_index_separates_lack_of_memory_from_fragmentation() {
        // 1 - (1 + 1000/512) / 1000: much memory is free, in single pages.
        let scattered = fragmentation_index(&zone(&[1000]), 9, PAGE).unwrap();
        assert!((scattered - 0.997_046_875).abs() < 1e-9, "{scattered}");
        // A single free block: 1 - (1 + 1/512) / 1 is below 0, and is clamped.
        assert_eq!(fragmentation_index(&zone(&[1]), 9, PAGE), Some(0.0));
        let mut served = vec![0; 10];
        served[9] = 1;
        assert_eq!(fragmentation_index(&zone(&served), 9, PAGE), None);
        assert_eq!(fragmentation_index(&zone(&[]), 9, PAGE), None);
    }

    #[test]
    fn nothing_is_unusable_for_a_single_page() {
        assert_eq!(unusable_index(Bytes(8), Bytes(8)), Some(0.0));
        assert_eq!(unusable_index(Bytes(8), Bytes(2)), Some(0.75));
        assert_eq!(unusable_index(Bytes(0), Bytes(0)), None);
    }

    #[test]
    fn a_huge_page_size_that_is_not_a_power_of_two_has_no_order() {
        assert_eq!(huge_order(HUGE, PAGE), Ok(9));
        assert!(huge_order(Bytes(4096 * 3), PAGE).is_err());
        assert!(huge_order(Bytes(1), PAGE).is_err());
    }

    #[test]
    fn rates_are_by_the_clock_of_the_readings() {
        let count = |count| vec![BootCounter { name: "thp_fault_alloc".into(), count }];
        let before = FreeMemory { vmstat: Ok(count(10)), ..machine(Vec::new()) };
        let now = FreeMemory {
            vmstat: Ok(count(40)),
            since_boot_ns: Ok(2_000_000_000),
            ..machine(Vec::new())
        };
        let row = series_row(&before, &before, &now);
        assert_eq!(top_level(&row, "thp_fault_alloc"), CellValue::Rate(15.0));
        assert_eq!(top_level(&row, "elapsed_ns"), CellValue::Nanos(2_000_000_000));
    }

    #[test]
    fn an_unreadable_value_is_absent_and_not_0() {
        let hidden =
            FreeMemory { zones: Err(Absent::NotPermitted("root".into())), ..machine(Vec::new()) };
        let report = fragmentation(&hidden);
        for key in ["free", "allocatable_huge", "nodes", "types", "sizes"] {
            assert!(matches!(top_level(&report, key), CellValue::Absent(_)), "{key}");
        }
    }

    proptest! {
        #[test]
        fn any_counts_are_added_up_without_a_panic(counts in prop::collection::vec(any::<u64>(), 0..80), huge: u64) {
            let zone = zone(&counts);
            let machine = FreeMemory { huge_size: Ok(Bytes(huge)), ..machine(vec![zone.clone(), zone.clone()]) };
            fragmentation(&machine);
            for order in 0..counts.len() {
                prop_assert!(allocatable(&zone, order, PAGE) >= allocatable(&zone, order + 1, PAGE));
                let index = fragmentation_index(&zone, order, PAGE);
                prop_assert!(index.is_none_or(|index| (0.0..=1.0).contains(&index)));
            }
        }
    }
}
