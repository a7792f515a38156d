//! A mapping's pages in one line: each cell is an equal part of it.

use pagewise_model::AddrRange;
use pagewise_model::page_map::{PageKind, PageRun};

/// How many cells a strip has at the most; a small mapping has one a page.
const CELLS: u64 = 32;

/// What the cells mean.
pub(super) const LEGEND: &str = "Each cell of a strip is an equal part: · untouched, ░ ▒ ▓ █ up to a quarter, half, \
nearly all and all of it resident, H in huge pages, z the zero page, s in swap, g guard.";

/// Draws the strip of a mapping.
pub(super) fn draw(runs: &[PageRun]) -> String {
    let (Some(first), Some(last)) = (runs.first(), runs.last()) else { return String::new() };
    let whole = AddrRange { start: first.range.start, end: last.range.end };
    let size = whole.len().0;
    let smallest = runs.iter().map(|run| run.range.len().0).min().unwrap_or(size).max(1);
    let cells = CELLS.min(size.div_ceil(smallest)).max(1);
    let bound = |i: u64| whole.start + share(size, i, cells);
    let mut rest = runs;
    (0..cells)
        .map(|i| {
            let cell = AddrRange { start: bound(i), end: bound(i + 1) };
            let glyph = glyph(cell, rest);
            let passed = rest.iter().take_while(|run| run.range.end <= cell.end).count();
            rest = &rest[passed..];
            glyph
        })
        .collect()
}

/// `size * part / of`, without overflow.
fn share(size: u64, part: u64, of: u64) -> u64 {
    let exact = u128::from(size) * u128::from(part) / u128::from(of);
    u64::try_from(exact).unwrap_or(u64::MAX)
}

fn glyph(cell: AddrRange, runs: &[PageRun]) -> char {
    let mut by_kind = [0_u64; PageKind::ALL.len()];
    let mut huge = 0;
    let near = runs.iter().take_while(|run| run.range.start < cell.end);
    for run in near {
        let Some(part) = run.range.intersection(cell) else { continue };
        by_kind[run.state.kind as usize] += part.len().0;
        if run.state.huge == Some(true) && run.state.kind.is_resident() {
            huge += part.len().0;
        }
    }
    let of = |kind: PageKind| by_kind[kind as usize];
    let resident: u64 = PageKind::ALL.into_iter().filter(|k| k.is_resident()).map(of).sum();
    let size = cell.len().0.max(1);
    let other = [(PageKind::Zero, 'z'), (PageKind::Swapped, 's'), (PageKind::Guard, 'g')];
    match other.into_iter().max_by_key(|(kind, _)| of(*kind)) {
        Some((kind, glyph)) if of(kind) > resident => glyph,
        _ if huge > size / 2 => 'H',
        _ => match share(resident, 100, size) {
            0 if resident == 0 => '·',
            0..=25 => '░',
            26..=50 => '▒',
            51..=98 => '▓',
            _ => '█',
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use pagewise_model::page_map::PageState;

    fn runs(lengths: &[(u64, PageKind, bool)]) -> Vec<PageRun> {
        let mut at = 0x10000;
        lengths
            .iter()
            .map(|&(length, kind, huge)| {
                let range = AddrRange { start: at, end: at + length };
                at += length;
                let state = PageState { kind, huge: Some(huge), ..PageState::default() };
                PageRun { range, state }
            })
            .collect()
    }

    #[test]
    fn each_cell_says_what_most_of_it_is() {
        use PageKind::{Anonymous, Guard, Swapped, Untouched, Zero};
        let all = [
            (4, Anonymous, false),
            (4, Untouched, false),
            (4, Swapped, false),
            (4, Guard, false),
            (4, Zero, false),
            (4, Anonymous, true),
        ];
        assert_eq!(draw(&runs(&all)), "█·sgzH");
        assert_eq!(draw(&runs(&[(1, Anonymous, false), (3, Untouched, false)])), "█···");
    }

    #[test]
    fn a_large_mapping_has_a_bounded_strip() {
        let sparse = [(1, PageKind::Anonymous, false), (1 << 40, PageKind::Untouched, false)];
        let strip = draw(&runs(&sparse));
        assert_eq!(strip.chars().count(), 32);
        assert!(strip.starts_with('░') && strip.ends_with("···"));
        let full = draw(&runs(&[(u64::MAX / 2, PageKind::File, false)]));
        assert!(full.chars().all(|glyph| glyph == '█'));
        assert_eq!(draw(&[]), "");
    }
}
