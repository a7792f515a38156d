//! The address map in HTML: one SVG for each cluster, drawn to scale, with the details of each
//! mapping on hover.

use std::collections::BTreeMap;

use pagewise_model::AddrRange;
use pagewise_model::report::{AddressMap, Audience, Cluster, MapCell};

use super::{HtmlPage, WORDING, escaped};
use crate::palette::Palette;

/// The drawing's own units; the script uses the same.
const WIDTH: f64 = 1000.0;
const HEIGHT: f64 = 40.0;

/// The narrowest mapping that is still seen.
const SLIVER: f64 = 0.5;

/// In a cluster with more mappings, neighbors that would be slivers are drawn together: 65,000
/// drawings are 20 MB, and slow in any browser.
const MANY: usize = 4000;

impl HtmlPage<'_> {
    pub(super) fn address_map(&mut self, map: &AddressMap) {
        if map.clusters.is_empty() {
            return;
        }
        let palette = Palette::for_map(map);
        self.section(&map.title, Audience::Everyone);
        self.legend(&palette);
        map.clusters.iter().for_each(|cluster| self.cluster(cluster, &palette));
        self.end_section();
    }

    /// The colors of the pools. A hue is the index of the pool times the golden angle, so that any
    /// number of pools have hues far apart.
    fn legend(&mut self, palette: &Palette) {
        self.html.push_str("<style>\n");
        for place in 0..palette.pools.len() {
            let (hue, light) = (210 + place * 137, place % 3 * 9);
            self.html.push_str(&format!(".p{place}{{--hue:{};--more:{light}%}}\n", hue % 360));
        }
        self.html.push_str("</style>\n<ul class=\"legend\">\n");
        for (place, pool) in palette.pools.iter().enumerate() {
            let pool = escaped(&pool.replace('_', " "));
            self.html.push_str(&format!("<li class=\"p{place}\">{pool}</li>\n"));
        }
        self.html.push_str("</ul>\n<p class=\"note\">The resident part of each mapping has the strong color; the rest is pale.</p>\n");
    }

    fn cluster(&mut self, cluster: &Cluster, palette: &Palette) {
        let range = cluster.range;
        let span = crate::text::human(range.len());
        let is_crowded = cluster.cells.len() > MANY;
        let together = match is_crowded {
            true => format!(
                " <span>{} mappings; small neighbors are drawn together</span>",
                cluster.cells.len()
            ),
            false => String::new(),
        };
        self.html.push_str(&format!(
            "<figure class=\"cluster\" data-start=\"{:x}\" data-span=\"{}\">\n\
             <figcaption><code>{range}</code> <span>{span}</span>{together}</figcaption>\n\
             <svg viewBox=\"0 0 {WIDTH} {HEIGHT}\" preserveAspectRatio=\"none\" role=\"img\" \
             aria-label=\"{} mappings in {range}\">\n",
            range.start,
            range.len().0,
            cluster.cells.len()
        ));
        if is_crowded {
            let sliver = scaled_back(SLIVER, range.len().0);
            for group in groups(&cluster.cells, sliver) {
                match group {
                    [cell] => self.map_cell(cluster, cell, palette),
                    cells => self.map_group(cluster, cells, palette),
                }
            }
        } else {
            cluster.cells.iter().for_each(|cell| self.map_cell(cluster, cell, palette));
        }
        self.html.push_str("</svg>\n</figure>\n");
    }

    fn map_cell(&mut self, cluster: &Cluster, cell: &MapCell, palette: &Palette) {
        let filled = cell.filled.as_ref().ok().copied();
        self.drawing(cluster, cell.range, palette.place(cell.pool), filled, |page| {
            page.hover(cell)
        });
    }

    /// Draws neighbors as one, in the color of the pool with the most bytes.
    fn map_group(&mut self, cluster: &Cluster, cells: &[MapCell], palette: &Palette) {
        let ([first, ..], [.., last]) = (cells, cells) else { return };
        let range = AddrRange { start: first.range.start, end: last.range.end };
        let mut pools: BTreeMap<usize, u64> = BTreeMap::new();
        for cell in cells {
            *pools.entry(palette.place(cell.pool)).or_default() += cell.range.len().0;
        }
        let pool = pools.iter().max_by_key(|(_, bytes)| **bytes).map_or(0, |(place, _)| *place);
        let known = || cells.iter().filter(|cell| cell.filled.is_ok());
        let size: f64 = known().map(length).sum();
        let part = |cell: &MapCell| length(cell) * cell.filled.as_ref().copied().unwrap_or(0.0);
        let filled = (size > 0.0).then(|| known().map(part).sum::<f64>() / size);
        self.drawing(cluster, range, pool, filled, |page| {
            page.html.push_str(&format!("{} mappings\n{range}", cells.len()));
        });
    }

    fn drawing(
        &mut self,
        cluster: &Cluster,
        range: AddrRange,
        pool: usize,
        filled: Option<f64>,
        hover: impl FnOnce(&mut Self),
    ) {
        let Some(range) = range.intersection(cluster.range) else { return };
        let [start, end] = [range.start, range.end].map(|at| at - cluster.range.start);
        let [left, right] = [start, end].map(|at| scaled(at, cluster.range.len().0));
        let width = (right - left).max(SLIVER);
        let unknown = if filled.is_none() { " unknown" } else { "" };
        let filled = filled.map_or(0.0, |share| share.clamp(0.0, 1.0)) * HEIGHT;
        self.html.push_str(&format!(
            "<g class=\"p{pool}{unknown}\" data-from=\"{start}\" data-to=\"{end}\"><title>"
        ));
        hover(self);
        self.html.push_str(&format!(
            "</title><rect x=\"{left:.4}\" width=\"{width:.4}\" height=\"{HEIGHT}\"/>\
             <rect class=\"filled\" x=\"{left:.4}\" y=\"{:.2}\" width=\"{width:.4}\" height=\"{filled:.2}\"/></g>\n",
            HEIGHT - filled
        ));
    }

    fn hover(&mut self, cell: &MapCell) {
        self.html.push_str(&escaped(&WORDING.sentence(&cell.label)));
        let pool = escaped(&cell.pool.replace('_', " "));
        self.html.push_str(&format!("\n{}\n{pool}", cell.range));
        for fact in &cell.facts {
            let value = escaped(&WORDING.value(&fact.value));
            self.html.push_str(&format!("\n{} {value}", escaped(&fact.label)));
        }
    }
}

/// Cells, those of small neighbors together: each group spans no more than `sliver` bytes or is
/// one cell.
fn groups(mut cells: &[MapCell], sliver: u64) -> impl Iterator<Item = &[MapCell]> {
    std::iter::from_fn(move || {
        let start = cells.first()?.range.start;
        let small = |cell: &&MapCell| cell.range.end.saturating_sub(start) <= sliver;
        let count = cells.iter().take_while(small).count().max(1);
        let (group, rest) = cells.split_at(count);
        cells = rest;
        Some(group)
    })
}

#[expect(clippy::cast_precision_loss, reason = "a place in a drawing needs few digits")]
fn length(cell: &MapCell) -> f64 {
    cell.range.len().0 as f64
}

/// The bytes of a part of a drawing's width.
#[expect(
    clippy::cast_precision_loss,
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "a part of the span, about"
)]
fn scaled_back(width: f64, span: u64) -> u64 {
    (width / WIDTH * span as f64) as u64
}

#[expect(clippy::cast_precision_loss, reason = "a place in a drawing needs few digits")]
fn scaled(offset: u64, span: u64) -> f64 {
    offset as f64 / span.max(1) as f64 * WIDTH
}
