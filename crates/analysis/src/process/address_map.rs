//! The address space as a picture: clusters of neighbors, and holes too wide to draw between them.

use pagewise_model::report::{AddressMap, CellValue, Cluster, Fact, MapCell};
use pagewise_model::{AddrRange, Bytes, Mapping, Reading};

use crate::explain::{ExplainSubject, fact};
use crate::maps::mode;
use crate::quadrants::counts_in_virt;

/// A wider hole splits: drawn to scale, it would leave little width for its neighbors.
const WIDE_HOLE: Bytes = Bytes::mib(64);

/// A narrower hole splits too if it is wider than this multiple of the larger of its neighbors.
const HOLE_TO_CLUSTER: u64 = 16;

/// Draws the address space of a process.
pub(crate) fn address_map(subject: &ExplainSubject<'_>) -> AddressMap {
    let counted = subject.mappings.iter().enumerate().filter(|(_, m)| counts_in_virt(m));
    clustered(counted.map(|(index, mapping)| cell(subject, index, mapping)))
}

/// Cells in the order of their addresses, with neighbors together.
pub(crate) fn clustered(cells: impl Iterator<Item = MapCell>) -> AddressMap {
    let mut clusters: Vec<Cluster> = Vec::new();
    for cell in cells {
        match clusters.last_mut().filter(|cluster| is_near(cluster.range, cell.range)) {
            Some(cluster) => {
                cluster.range.end = cluster.range.end.max(cell.range.end);
                cluster.cells.push(cell);
            }
            None => clusters.push(Cluster { range: cell.range, cells: vec![cell] }),
        }
    }
    AddressMap { title: "Address space".into(), clusters }
}

fn is_near(cluster: AddrRange, next: AddrRange) -> bool {
    let hole = next.start.saturating_sub(cluster.end);
    let larger = cluster.len().0.max(next.len().0);
    hole <= WIDE_HOLE.0 && hole <= larger.saturating_mul(HOLE_TO_CLUSTER)
}

fn cell(subject: &ExplainSubject<'_>, index: usize, mapping: &Mapping) -> MapCell {
    let pool = subject.pools.pool_of(index);
    let name = if mapping.name.is_empty() { &pool.name } else { &mapping.name };
    let kind = CellValue::text(pool.kind.label());
    MapCell {
        range: mapping.range,
        pool: pool.id(),
        label: vec![kind, CellValue::text(": "), CellValue::Name(name.clone())],
        filled: filled(mapping),
        facts: facts(mapping),
    }
}

fn filled(mapping: &Mapping) -> Reading<f64> {
    mapping.rss().map(|rss| rss.fraction_of(mapping.size()).unwrap_or(0.0).min(1.0))
}

fn facts(mapping: &Mapping) -> Vec<Fact> {
    vec![
        fact("mode", "mode", CellValue::Text(mode(mapping)), ""),
        fact("size", "size", CellValue::Bytes(mapping.size().0), ""),
        fact("rss", "RSS", CellValue::bytes(mapping.rss()), ""),
        fact("pss", "PSS", CellValue::bytes(mapping.pss()), ""),
        fact("swap", "swap", CellValue::bytes(mapping.swap()), ""),
    ]
}
