//! Strip of a mapping: its pages in one line of cells. Each cell represents an equal part of the
//! mapping.

use pagewise_model::page_map::{PageMapKind, PageRun, PageRuns};
use pagewise_model::{AddrRange, PageSize};

/// Maximum number of cells of a strip; a mapping with fewer pages has one cell per page.
const CELLS: u64 = 24;

/// Legend of the cells.
pub(super) const LEGEND: &str = "Each cell of a strip is an equal part: · untouched, ░ ▒ ▓ █ up to a quarter, half, \
nearly all and all of it resident, H in huge pages, z the zero page, s in swap, g guard.";

/// Draws the strip of a mapping.
pub(super) fn draw(runs: &PageRuns, page_size: PageSize) -> String {
    let whole = runs.range();
    if whole.is_empty() {
        return String::new();
    }
    let size = whole.len().0;
    let cells = page_size.count(whole.len()).clamp(1, CELLS);
    let bound = |i: u64| whole.start + share(size, i, cells);
    let mut rest = runs.iter().peekable();
    (0..cells)
        .map(|i| {
            let cell = AddrRange { start: bound(i), end: bound(i + 1) };
            let glyph = glyph(cell, rest.clone());
            while rest.next_if(|run| run.range.end <= cell.end).is_some() {}
            glyph
        })
        .collect()
}

/// Computes `size * part / of` without overflow.
fn share(size: u64, part: u64, of: u64) -> u64 {
    let exact = u128::from(size) * u128::from(part) / u128::from(of);
    u64::try_from(exact).unwrap_or(u64::MAX)
}

fn glyph(cell: AddrRange, runs: impl Iterator<Item = PageRun>) -> char {
    let mut by_kind = [0_u64; PageMapKind::ALL.len()];
    let mut huge = 0;
    let near = runs.take_while(|run| run.range.start < cell.end);
    for run in near {
        let Some(part) = run.range.intersection(cell) else { continue };
        by_kind[run.state.kind as usize] += part.len().0;
        if run.state.huge == Some(true) && run.state.kind.is_resident() {
            huge += part.len().0;
        }
    }
    let of = |kind: PageMapKind| by_kind[kind as usize];
    let resident: u64 = PageMapKind::ALL.into_iter().filter(|k| k.is_resident()).map(of).sum();
    let size = cell.len().0.max(1);
    let other = [(PageMapKind::Zero, 'z'), (PageMapKind::Swapped, 's'), (PageMapKind::Guard, 'g')];
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

    fn runs(lengths: &[(u64, PageMapKind, bool)]) -> PageRuns {
        let mut runs = PageRuns::new(0x10000);
        for &(length, kind, huge) in lengths {
            let state = PageState { kind, huge: Some(huge), ..PageState::default() };
            runs.push(length * 4096, state);
        }
        runs
    }

    fn strip(lengths: &[(u64, PageMapKind, bool)]) -> String {
        draw(&runs(lengths), PageSize::new(4096).unwrap())
    }

    #[test]
    fn each_cell_shows_the_state_of_most_of_its_pages() {
        use PageMapKind::{Anonymous, Guard, Swapped, Untouched, Zero};
        let all = [
            (8, Anonymous, false),
            (8, Untouched, false),
            (8, Swapped, false),
            (8, Guard, false),
            (8, Zero, false),
            (8, Anonymous, true),
        ];
        assert_eq!(strip(&all), "████····ssssggggzzzzHHHH");
        assert_eq!(strip(&[(1, Anonymous, false), (3, Untouched, false)]), "█···");
    }

    #[test]
    fn a_large_mapping_has_a_bounded_strip() {
        let sparse =
            strip(&[(1, PageMapKind::Anonymous, false), (1 << 40, PageMapKind::Untouched, false)]);
        assert_eq!(sparse.chars().count(), 24);
        assert!(sparse.starts_with('░') && sparse.ends_with("···"));
        let full = strip(&[(1 << 50, PageMapKind::File, false)]);
        assert!(full.chars().all(|glyph| glyph == '█'));
        assert_eq!(strip(&[]), "");
    }
}
