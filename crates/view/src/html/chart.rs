//! A chart in HTML: an SVG with a line for each of its lines, and their numbers on hover.

use pagewise_model::report::{Audience, Axis, Chart, Line};

use super::{Page, WORDING, escaped};

/// The drawing's own units.
const WIDTH: f64 = 720.0;
const HEIGHT: f64 = 240.0;
/// Room for the numbers beside and below it.
const LEFT: f64 = 64.0;
const BELOW: f64 = 36.0;
/// Room for half a number above.
const ABOVE: f64 = 10.0;

/// Up to how many points of a line are marked, each with its numbers.
const MARKED: usize = 200;

/// Into how many parts lines divide the height.
const PARTS: u64 = 4;

impl Page<'_> {
    pub(super) fn chart(&mut self, chart: &Chart) {
        let Some(ends) = chart.width() else { return };
        let title = WORDING.sentence(&chart.title);
        self.section(&title, Audience::Everyone);
        self.html.push_str("<ul class=\"legend\">\n");
        for (at, line) in chart.lines.iter().enumerate() {
            let label = escaped(&line.label);
            self.html.push_str(&format!("<li style=\"{}\">{label}</li>\n", hue(at)));
        }
        self.html.push_str(&format!(
            "</ul>\n<svg class=\"chart\" viewBox=\"0 0 {:.0} {:.0}\" role=\"img\" aria-label=\"{}\">\n",
            LEFT + WIDTH + LEFT / 2.0,
            ABOVE + HEIGHT + BELOW,
            escaped(&title)
        ));
        let scale = Scale { ends, tall: chart.height().max(1) };
        self.grid(chart, &scale);
        for (at, line) in chart.lines.iter().enumerate() {
            self.line(chart, line, at, &scale);
        }
        self.html.push_str("</svg>\n");
        self.end_section();
    }

    /// Lines across with their heights, and the ends of the axis below.
    fn grid(&mut self, chart: &Chart, scale: &Scale) {
        for part in 0..=PARTS {
            let height = scale.tall / PARTS * part + scale.tall % PARTS * part / PARTS;
            let y = scale.y(height);
            self.html.push_str(&format!(
                "<line x1=\"{LEFT}\" x2=\"{:.1}\" y1=\"{y:.1}\" y2=\"{y:.1}\"/>\
                 <text x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"end\">{}</text>\n",
                LEFT + WIDTH,
                LEFT - 6.0,
                y + 4.0,
                number(&chart.y, height)
            ));
        }
        let below = ABOVE + HEIGHT + 18.0;
        for (x, anchor) in [(scale.ends.0, "start"), (scale.ends.1, "end")] {
            self.html.push_str(&format!(
                "<text x=\"{:.1}\" y=\"{below}\" text-anchor=\"{anchor}\">{}</text>\n",
                scale.x(x),
                number(&chart.x, x)
            ));
        }
        self.html.push_str(&format!(
            "<text x=\"{:.1}\" y=\"{below}\" text-anchor=\"middle\">{}</text>\n",
            LEFT + WIDTH / 2.0,
            escaped(&chart.x.label)
        ));
    }

    fn line(&mut self, chart: &Chart, line: &Line, at: usize, scale: &Scale) {
        self.html.push_str(&format!("<g style=\"{}\"><polyline points=\"", hue(at)));
        for (x, y) in &line.points {
            self.html.push_str(&format!("{:.1},{:.1} ", scale.x(*x), scale.y(*y)));
        }
        self.html.push_str("\"/>\n");
        for (x, y) in line.points.iter().take(MARKED) {
            self.html.push_str(&format!(
                "<circle cx=\"{:.1}\" cy=\"{:.1}\" r=\"3\"><title>{}: {} at {} {}</title></circle>\n",
                scale.x(*x),
                scale.y(*y),
                escaped(&line.label),
                number(&chart.y, *y),
                number(&chart.x, *x),
                escaped(&chart.x.label)
            ));
        }
        self.html.push_str("</g>\n");
    }
}

/// Where numbers are in the drawing.
struct Scale {
    ends: (u64, u64),
    tall: u64,
}

impl Scale {
    fn x(&self, x: u64) -> f64 {
        LEFT + share(x.saturating_sub(self.ends.0), self.ends.1 - self.ends.0) * WIDTH
    }

    fn y(&self, y: u64) -> f64 {
        ABOVE + (1.0 - share(y, self.tall)) * HEIGHT
    }
}

#[expect(clippy::cast_precision_loss, reason = "a place in a drawing needs few digits")]
fn share(part: u64, whole: u64) -> f64 {
    part as f64 / whole.max(1) as f64
}

/// A line's hue: its place times the golden angle, as the pools of an address map have theirs.
fn hue(at: usize) -> String {
    format!("--hue:{};--more:0%", (210 + at * 137) % 360)
}

fn number(axis: &Axis, number: u64) -> String {
    escaped(&WORDING.value(&axis.unit.value(number)))
}
