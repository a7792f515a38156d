//! Charts in HTML: an SVG with lines or bars, and their numbers on hover.

use pagewise_model::report::{Audience, Axis, Bar, Bars, Chart, ChartLine, Scale};

use super::{HtmlPage, WORDING, escaped};

/// Size of the drawing area in SVG units.
const WIDTH: f64 = 720.0;
const HEIGHT: f64 = 240.0;
/// Room for the numbers beside and below it.
const LEFT: f64 = 72.0;
const BELOW: f64 = 36.0;
/// Room for half a number above.
const ABOVE: f64 = 10.0;

/// Maximum number of points of a line that are marked, each with its numbers.
const MARKED: usize = 200;

/// Number of parts into which grid lines divide the height.
const PARTS: u32 = 4;

/// Height of a bar, including the distance to the next.
const BAR: f64 = 26.0;
/// Room for the labels of bars.
const LABELS: f64 = 190.0;

impl HtmlPage<'_> {
    pub(super) fn chart(&mut self, chart: &Chart) {
        let Some((wide, tall)) = chart.width().zip(chart.height()) else { return };
        let title = WORDING.sentence(&chart.title);
        self.section(&title, Audience::Everyone);
        self.html.push_str("<ul class=\"legend\">\n");
        for (at, line) in chart.lines.iter().enumerate() {
            let label = escaped(&line.label);
            self.html.push_str(&format!("<li style=\"{}\">{label}</li>\n", hue(at)));
        }
        self.html.push_str("</ul>\n");
        self.svg(&title, LEFT + WIDTH + LEFT / 2.0, ABOVE + HEIGHT + BELOW);
        let area = SvgArea { chart, wide, tall };
        self.grid(&area);
        for (at, line) in chart.lines.iter().enumerate() {
            self.line(&area, line, at);
        }
        self.html.push_str("</svg>\n");
        let up = named(&chart.y);
        if !up.is_empty() {
            self.html.push_str(&format!("<p class=\"note\">↑ {up}</p>\n"));
        }
        self.end_section();
    }

    fn svg(&mut self, title: &str, width: f64, height: f64) {
        self.html.push_str(&format!(
            "<svg class=\"chart\" viewBox=\"0 0 {width:.0} {height:.0}\" role=\"img\" aria-label=\"{}\">\n",
            escaped(title)
        ));
    }

    /// Horizontal lines with their values, and the ends of the horizontal axis.
    fn grid(&mut self, area: &SvgArea<'_>) {
        for part in 0..=PARTS {
            let place = f64::from(part) / f64::from(PARTS);
            let y = ABOVE + (1.0 - place) * HEIGHT;
            self.html.push_str(&format!(
                "<line x1=\"{LEFT}\" x2=\"{:.1}\" y1=\"{y:.1}\" y2=\"{y:.1}\"/>\
                 <text x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"end\">{}</text>\n",
                LEFT + WIDTH,
                LEFT - 6.0,
                y + 4.0,
                number(&area.chart.y, area.chart.y.number(place, area.tall))
            ));
        }
        let below = ABOVE + HEIGHT + 18.0;
        for (place, anchor) in [(0.0, "start"), (1.0, "end")] {
            self.html.push_str(&format!(
                "<text x=\"{:.1}\" y=\"{below}\" text-anchor=\"{anchor}\">{}</text>\n",
                LEFT + place * WIDTH,
                number(&area.chart.x, area.chart.x.number(place, area.wide))
            ));
        }
        self.html.push_str(&format!(
            "<text x=\"{:.1}\" y=\"{below}\" text-anchor=\"middle\">{}</text>\n",
            LEFT + WIDTH / 2.0,
            named(&area.chart.x)
        ));
    }

    fn line(&mut self, area: &SvgArea<'_>, line: &ChartLine, at: usize) {
        self.html.push_str(&format!("<g style=\"{}\"><polyline points=\"", hue(at)));
        for (x, y) in line.points.iter().filter_map(|point| area.at(*point)) {
            self.html.push_str(&format!("{x:.1},{y:.1} "));
        }
        self.html.push_str("\"/>\n");
        for point in line.points.iter().take(MARKED) {
            let Some((x, y)) = area.at(*point) else { continue };
            self.html.push_str(&format!(
                "<circle cx=\"{x:.1}\" cy=\"{y:.1}\" r=\"3\"><title>{}: {} at {} {}</title></circle>\n",
                escaped(&line.label),
                number(&area.chart.y, point.1),
                number(&area.chart.x, point.0),
                escaped(&area.chart.x.label)
            ));
        }
        self.html.push_str("</g>\n");
    }

    pub(super) fn bars(&mut self, bars: &Bars) {
        let Some(ends) = bars.ends() else { return };
        let title = WORDING.sentence(&bars.title);
        self.section(&title, Audience::Everyone);
        let rows = bars.bars.iter().fold(0.0, |sum, _| sum + BAR);
        self.svg(&title, LABELS + WIDTH, rows + 4.0);
        let mut top = 0.0;
        for bar in &bars.bars {
            self.bar(bars, bar, ends, top);
            top += BAR;
        }
        self.html.push_str("</svg>\n");
        let axis = named(&bars.axis);
        if !axis.is_empty() {
            self.html.push_str(&format!("<p class=\"note\">{axis}</p>\n"));
        }
        self.end_section();
    }

    /// A bar with its label, its interval as a whisker, and its number behind it.
    fn bar(&mut self, bars: &Bars, bar: &Bar, ends: (f64, f64), top: f64) {
        // The number needs room behind the longest bar.
        let room = WIDTH - LABELS;
        let place = |number: f64| bars.axis.place(number, ends).unwrap_or(0.0) * room;
        let (length, middle) = (place(bar.value), top + BAR / 2.0);
        self.html.push_str(&format!(
            "<text x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"end\">{}</text>\
             <g style=\"{}\"><rect x=\"{LABELS}\" y=\"{:.1}\" width=\"{length:.1}\" height=\"{:.1}\"/></g>\n",
            LABELS - 8.0,
            middle + 4.0,
            escaped(&bar.label),
            hue(0),
            top + 4.0,
            BAR - 8.0
        ));
        let mut reach = length;
        if let Some((low, high)) = bar.interval {
            let [low, high] = [low, high].map(place);
            reach = reach.max(high);
            self.html.push_str(&format!(
                "<line class=\"whisker\" x1=\"{:.1}\" x2=\"{:.1}\" y1=\"{middle:.1}\" y2=\"{middle:.1}\"/>\n",
                LABELS + low,
                LABELS + high
            ));
        }
        self.html.push_str(&format!(
            "<text x=\"{:.1}\" y=\"{:.1}\">{}</text>\n",
            LABELS + reach + 8.0,
            middle + 4.0,
            number(&bars.axis, bar.value)
        ));
    }
}

/// Area of the lines.
struct SvgArea<'c> {
    chart: &'c Chart,
    wide: (f64, f64),
    tall: (f64, f64),
}

impl SvgArea<'_> {
    /// Position of a point in the drawing; `None` if the scale cannot show it.
    fn at(&self, (x, y): (f64, f64)) -> Option<(f64, f64)> {
        let x = self.chart.x.place(x, self.wide)?;
        let y = self.chart.y.place(y, self.tall)?;
        Some((LEFT + x * WIDTH, ABOVE + (1.0 - y) * HEIGHT))
    }
}

/// Hue of a line: its index times the golden angle, as for the pools of an address map.
fn hue(at: usize) -> String {
    format!("--hue:{};--more:0%", (210 + at * 137) % 360)
}

fn number(axis: &Axis, number: f64) -> String {
    escaped(&WORDING.value(&axis.unit.value(number)))
}

/// Name of an axis, and its scale if it is not linear.
fn named(axis: &Axis) -> String {
    let label = escaped(&axis.label);
    match axis.scale {
        Scale::Log if label.is_empty() => "log scale".to_owned(),
        Scale::Log => format!("{label} (log)"),
        Scale::Linear => label,
    }
}
