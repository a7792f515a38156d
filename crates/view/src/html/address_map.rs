//! The address map in HTML: one SVG a cluster, drawn to scale, with what each mapping is on hover.

use pagewise_model::report::{AddressMap, Audience, Cluster, MapCell};

use super::{Page, WORDING, escaped};
use crate::palette::Palette;

/// The drawing's own units; the script uses the same.
const WIDTH: f64 = 1000.0;
const HEIGHT: f64 = 40.0;

/// The narrowest mapping that is still seen.
const SLIVER: f64 = 0.5;

impl Page<'_> {
    pub(super) fn address_map(&mut self, map: &AddressMap) {
        if map.clusters.is_empty() {
            return;
        }
        let palette = Palette::of(map);
        self.section(&map.title, Audience::Everyone);
        self.legend(&palette);
        map.clusters.iter().for_each(|cluster| self.cluster(cluster, &palette));
        self.end_section();
    }

    /// The colours and what they stand for. A hue is its pool's place times the golden angle, so
    /// that any number of pools have hues far apart.
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
        self.html.push_str("</ul>\n<p class=\"note\">What is resident has the strong colour; the rest of each mapping is pale.</p>\n");
    }

    fn cluster(&mut self, cluster: &Cluster, palette: &Palette) {
        let range = cluster.range;
        let span = crate::text::human(range.len());
        self.html.push_str(&format!(
            "<figure class=\"cluster\" data-start=\"{:x}\" data-span=\"{}\">\n\
             <figcaption><code>{range}</code> <span>{span}</span></figcaption>\n\
             <svg viewBox=\"0 0 {WIDTH} {HEIGHT}\" preserveAspectRatio=\"none\" role=\"img\" \
             aria-label=\"{} mappings in {range}\">\n",
            range.start,
            range.len().0,
            cluster.cells.len()
        ));
        cluster.cells.iter().for_each(|cell| self.map_cell(cluster, cell, palette));
        self.html.push_str("</svg>\n</figure>\n");
    }

    fn map_cell(&mut self, cluster: &Cluster, cell: &MapCell, palette: &Palette) {
        let Some(range) = cell.range.intersection(cluster.range) else { return };
        let [start, end] = [range.start, range.end].map(|at| at - cluster.range.start);
        let [left, right] = [start, end].map(|at| scaled(at, cluster.range.len().0));
        let width = (right - left).max(SLIVER);
        let filled = cell.filled.as_ref().map_or(0.0, |share| share.clamp(0.0, 1.0)) * HEIGHT;
        let unknown = if cell.filled.is_err() { " unknown" } else { "" };
        self.html.push_str(&format!(
            "<g class=\"p{}{unknown}\" data-from=\"{start}\" data-to=\"{end}\"><title>",
            palette.place(cell.pool)
        ));
        self.hover(cell);
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

#[expect(clippy::cast_precision_loss, reason = "a place in a drawing needs few digits")]
fn scaled(offset: u64, span: u64) -> f64 {
    offset as f64 / span.max(1) as f64 * WIDTH
}
