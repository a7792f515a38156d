//! Text formats of metric families: OpenMetrics 1.0 and the Prometheus text format 0.0.4.

use std::borrow::Cow;
use std::fmt::{self, Write};
use std::sync::Arc;

use pagewise_model::name::escape;

/// Maximum length of a label value in bytes. Longer values are cut.
const MAX_LABEL_BYTES: usize = 1024;

/// A text format of metrics.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ExpositionFormat {
    /// OpenMetrics 1.0.
    OpenMetrics,
    /// The text format of Prometheus, version 0.0.4.
    Prometheus,
}

impl ExpositionFormat {
    /// Value of the HTTP header `Content-Type`.
    pub const fn content_type(self) -> &'static str {
        match self {
            ExpositionFormat::OpenMetrics => {
                "application/openmetrics-text; version=1.0.0; charset=utf-8"
            }
            ExpositionFormat::Prometheus => "text/plain; version=0.0.4; charset=utf-8",
        }
    }
}

/// Kind of the values of a family.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MetricKind {
    /// A value that can increase and decrease.
    Gauge,
    /// A value that only increases. Its samples have the suffix `_total`.
    Counter,
}

/// Metrics with one name.
#[derive(Clone, Debug, PartialEq)]
pub struct MetricFamily {
    /// Name of the metric, without `_total`. It ends with the unit.
    pub name: &'static str,
    /// Meaning of the metric in one sentence.
    pub help: &'static str,
    /// Unit of the values; empty if the values have none.
    pub unit: &'static str,
    /// Kind of the values.
    pub kind: MetricKind,
    /// The series of the metric, one for each set of labels.
    pub samples: Vec<MetricSample>,
}

/// One series: labels and a value.
#[derive(Clone, Debug, PartialEq)]
pub struct MetricSample {
    /// Labels that several series share.
    pub labels: Arc<LabelSet>,
    /// A label that distinguishes this series from others with the same `labels`; `None` if
    /// `labels` already distinguish it.
    pub extra: Option<(&'static str, Cow<'static, str>)>,
    /// Value of the series.
    pub value: MetricValue,
}

/// Value of a series.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum MetricValue {
    /// An integer: a count or a size.
    Whole(u64),
    /// A floating-point number; it can be infinite.
    Real(f64),
}

impl MetricValue {
    /// Converts nanoseconds to seconds.
    #[expect(clippy::cast_precision_loss, reason = "a float of 53 bits is what the formats have")]
    pub fn seconds(nanoseconds: u64) -> MetricValue {
        MetricValue::Real(nanoseconds as f64 / 1e9)
    }
}

impl From<u64> for MetricValue {
    fn from(value: u64) -> MetricValue {
        MetricValue::Whole(value)
    }
}

impl From<f64> for MetricValue {
    fn from(value: f64) -> MetricValue {
        MetricValue::Real(value)
    }
}

impl fmt::Display for MetricValue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            MetricValue::Whole(value) => write!(f, "{value}"),
            MetricValue::Real(value) if value.is_nan() => f.write_str("NaN"),
            MetricValue::Real(value) if value.is_infinite() => {
                f.write_str(if *value > 0.0 { "+Inf" } else { "-Inf" })
            }
            // The shortest text that is parsed as the same floating-point number.
            MetricValue::Real(value) => write!(f, "{value}"),
        }
    }
}

/// Labels with their values. A value can contain any text, such as the name of a process.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LabelSet(Vec<(&'static str, String)>);

impl LabelSet {
    /// Creates an empty set of labels.
    pub fn new() -> LabelSet {
        LabelSet::default()
    }

    /// Adds a label. A label with an empty value is omitted, because it is equal to a missing
    /// label.
    ///
    /// Control characters and bytes that are not valid UTF-8 become `\n`, `\x1b`, `\xff`. A long
    /// value is cut.
    #[must_use]
    pub fn with(mut self, name: &'static str, value: &[u8]) -> LabelSet {
        if !value.is_empty() {
            self.0.push((name, label_text(value)));
        }
        self
    }

    /// Names and values of the labels, in the order in which they were added.
    pub fn pairs(&self) -> impl Iterator<Item = (&'static str, &str)> {
        self.0.iter().map(|(name, value)| (*name, value.as_str()))
    }
}

/// Converts bytes to the text of a label value.
pub(crate) fn label_text(value: &[u8]) -> String {
    let text = escape(value);
    if text.len() <= MAX_LABEL_BYTES {
        return text.into_owned();
    }
    let is_end = |at: &usize| text.is_char_boundary(*at);
    let end = (0..=MAX_LABEL_BYTES).rev().find(is_end).unwrap_or(0);
    format!("{}…", &text[..end])
}

impl MetricFamily {
    /// Adds a series with these labels.
    pub fn push(&mut self, labels: &Arc<LabelSet>, value: impl Into<MetricValue>) {
        let labels = Arc::clone(labels);
        self.samples.push(MetricSample { labels, extra: None, value: value.into() });
    }

    /// Adds a series with these labels and one more label.
    pub fn push_with(
        &mut self,
        labels: &Arc<LabelSet>,
        extra: (&'static str, impl Into<Cow<'static, str>>),
        value: impl Into<MetricValue>,
    ) {
        let labels = Arc::clone(labels);
        let extra = Some((extra.0, extra.1.into()));
        self.samples.push(MetricSample { labels, extra, value: value.into() });
    }
}

/// Appends families in a text format, without the end mark. Families without series are omitted.
pub fn write_families(out: &mut String, families: &[MetricFamily], format: ExpositionFormat) {
    for family in families.iter().filter(|family| !family.samples.is_empty()) {
        write_family(out, family, format);
    }
}

/// Appends the end mark, which only OpenMetrics has: `# EOF`.
pub fn write_end(out: &mut String, format: ExpositionFormat) {
    if format == ExpositionFormat::OpenMetrics {
        out.push_str("# EOF\n");
    }
}

fn write_family(out: &mut String, family: &MetricFamily, format: ExpositionFormat) {
    let (kind, suffix) = match family.kind {
        MetricKind::Gauge => ("gauge", ""),
        MetricKind::Counter => ("counter", "_total"),
    };
    let name = family.name;
    let header_suffix = if format == ExpositionFormat::OpenMetrics { "" } else { suffix };
    put(out, format_args!("# HELP {name}{header_suffix} {}\n", family.help));
    put(out, format_args!("# TYPE {name}{header_suffix} {kind}\n"));
    if format == ExpositionFormat::OpenMetrics && !family.unit.is_empty() {
        put(out, format_args!("# UNIT {name} {}\n", family.unit));
    }
    for sample in &family.samples {
        out.push_str(name);
        out.push_str(suffix);
        write_labels(out, sample);
        put(out, format_args!(" {}\n", sample.value));
    }
}

fn write_labels(out: &mut String, sample: &MetricSample) {
    let extra = sample.extra.iter().map(|(name, value)| (*name, value.as_ref()));
    let mut before = '{';
    for (name, value) in sample.labels.pairs().chain(extra) {
        out.push(before);
        out.push_str(name);
        out.push_str("=\"");
        write_label_value(out, value);
        out.push('"');
        before = ',';
    }
    if before == ',' {
        out.push('}');
    }
}

/// OpenMetrics and the Prometheus text format escape `\`, `"` and the newline in the same way.
fn write_label_value(out: &mut String, value: &str) {
    for c in value.chars() {
        match c {
            '\\' => out.push_str("\\\\"),
            '"' => out.push_str("\\\""),
            '\n' => out.push_str("\\n"),
            c => out.push(c),
        }
    }
}

fn put(out: &mut String, text: fmt::Arguments<'_>) {
    out.write_fmt(text).expect("a String takes all");
}

#[cfg(test)]
mod tests {
    use super::*;

    fn family() -> MetricFamily {
        let mut family = MetricFamily {
            name: "pagewise_x_seconds",
            help: "Time.",
            unit: "seconds",
            kind: MetricKind::Counter,
            samples: Vec::new(),
        };
        let labels = Arc::new(LabelSet::new().with("name", b"a\"b\\c\nd\xff").with("none", b""));
        family.push_with(&labels, ("kind", "some"), 1.5);
        family.push(&Arc::default(), f64::INFINITY);
        family
    }

    #[test]
    fn open_metrics_has_units_and_names_without_total() {
        let mut text = String::new();
        write_families(&mut text, &[family()], ExpositionFormat::OpenMetrics);
        write_end(&mut text, ExpositionFormat::OpenMetrics);
        let expected = concat!(
            "# HELP pagewise_x_seconds Time.\n",
            "# TYPE pagewise_x_seconds counter\n",
            "# UNIT pagewise_x_seconds seconds\n",
            r#"pagewise_x_seconds_total{name="a\"b\\c\\nd\\xff",kind="some"} 1.5"#,
            "\npagewise_x_seconds_total +Inf\n# EOF\n",
        );
        assert_eq!(text, expected);
    }

    #[test]
    fn the_text_format_of_prometheus_names_the_series_in_its_headers() {
        let mut text = String::new();
        write_families(&mut text, &[family()], ExpositionFormat::Prometheus);
        write_end(&mut text, ExpositionFormat::Prometheus);
        assert!(text.starts_with("# HELP pagewise_x_seconds_total Time.\n"), "{text}");
        assert!(!text.contains("UNIT") && !text.contains("EOF"), "{text}");
    }

    #[test]
    fn a_long_value_is_cut_between_characters() {
        let text = label_text("é".repeat(2000).as_bytes());
        assert_eq!(text.chars().count(), 513);
    }
}
