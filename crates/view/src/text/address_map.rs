//! An address map as strips of characters: one line a cluster, each to its own scale.

use pagewise_model::AddrRange;
use pagewise_model::report::{AddressMap, CellValue, Cluster};

use super::page::{Ink, TextPage};
use crate::palette::Palette;
use crate::words::{clean, width};

/// The patterns of the widest pools; all further pools share the last one.
const PATTERNS: [char; 12] = ['█', '▓', '▒', '░', '▚', '◆', '▄', '▀', '▌', '○', '≡', '*'];

/// Character for a hole.
const HOLE: char = '·';

/// The widest strip, however wide the terminal.
const STRIP: usize = 120;

pub(super) fn draw(page: &mut TextPage<'_>, map: &AddressMap) {
    if map.clusters.is_empty() {
        return;
    }
    page.heading(&map.title);
    let palette = Palette::for_map(map);
    let rows: Vec<[String; 2]> = map.clusters.iter().map(|c| label(page, c.range)).collect();
    let widths = [0, 1].map(|column| rows.iter().map(|row| width(&row[column])).max());
    let [range_width, span_width] = widths.map(|w| w.unwrap_or(0));
    for (cluster, [range, span]) in map.clusters.iter().zip(&rows) {
        let start = page.indent();
        page.ink_cut(Ink::Plain, range);
        page.pad_to(start + range_width + 2 + span_width - width(span));
        page.ink_cut(Ink::Plain, span);
        page.pad_to(start + range_width + span_width + 4);
        page.ink(Ink::Plain, &strip(cluster, &palette, page.room().min(STRIP)));
        page.newline();
    }
    legend(page, &palette);
}

/// The address range and its length.
fn label(page: &TextPage<'_>, range: AddrRange) -> [String; 2] {
    [range.to_string(), page.wording().value(&CellValue::Bytes(range.len().0))]
}

fn pattern(place: usize) -> char {
    PATTERNS[place.min(PATTERNS.len() - 1)]
}

/// Each character stands for an equal part of the range, and shows the pool that has most of it.
fn strip(cluster: &Cluster, palette: &Palette, room: usize) -> String {
    let mut shares = vec![vec![0u64; PATTERNS.len()]; room];
    for cell in &cluster.cells {
        let place = palette.place(cell.pool).min(PATTERNS.len() - 1);
        let Some(range) = cell.range.intersection(cluster.range).filter(|_| room > 0) else {
            continue;
        };
        let [first, last] = [range.start, range.end - 1].map(|at| slot(cluster.range, at, room));
        for (at, shares) in (first..).zip(&mut shares[first..=last]) {
            let part = part(cluster.range, at, room).intersection(range);
            shares[place] += part.map_or(0, |p| p.len().0);
        }
    }
    shares.iter().map(|shares| most(shares).map_or(HOLE, pattern)).collect()
}

/// The index of the largest share, the first of equals; `None` if all are 0.
fn most(shares: &[u64]) -> Option<usize> {
    let place = (0..shares.len()).rev().max_by_key(|&place| shares[place])?;
    (shares[place] > 0).then_some(place)
}

/// Index of the part that contains an address, if `whole` is divided into `count` equal parts.
fn slot(whole: AddrRange, address: u64, count: usize) -> usize {
    let offset = u128::from(address - whole.start);
    let slot = offset * count as u128 / u128::from(whole.len().0.max(1));
    usize::try_from(slot).map_or(0, |slot| slot.min(count.saturating_sub(1)))
}

/// The addresses of one of `count` equal parts of `whole`: those with this [`slot`].
fn part(whole: AddrRange, at: usize, count: usize) -> AddrRange {
    let edge = |at: usize| {
        let offset = (at as u128 * u128::from(whole.len().0)).div_ceil(count as u128);
        whole.start.saturating_add(u64::try_from(offset).unwrap_or(u64::MAX))
    };
    AddrRange { start: edge(at), end: edge(at + 1) }
}

fn legend(page: &mut TextPage<'_>, palette: &Palette) {
    let alone = palette.pools.len().min(PATTERNS.len() - 1);
    let (alone, others) = if palette.pools.len() == PATTERNS.len() {
        (palette.pools.as_slice(), [].as_slice())
    } else {
        palette.pools.split_at(alone)
    };
    for (place, pool) in alone.iter().enumerate() {
        entry(page, pattern(place), &clean(pool.replace('_', " ").as_bytes()));
    }
    if !others.is_empty() {
        entry(page, pattern(PATTERNS.len()), "other");
    }
    entry(page, HOLE, "hole");
    page.newline();
}

fn entry(page: &mut TextPage<'_>, pattern: char, name: &str) {
    let entry = format!("{pattern} {name}");
    page.make_room(width(&entry), 2);
    page.ink_cut(Ink::Dim, &entry);
}
