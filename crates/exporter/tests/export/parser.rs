//! Parser of OpenMetrics 1.0 and of the Prometheus text format, written from their specifications.
//! It accepts only gauges and counters, because the exporter writes no other types.

use std::collections::{BTreeMap, BTreeSet};

/// Values of series by name and labels. Label values are not escaped.
pub(crate) type ParsedSeries = BTreeMap<(String, Vec<(String, String)>), f64>;

/// Parses a text; returns the first invalid line as the error.
pub(crate) fn parse(text: &str, is_open_metrics: bool) -> Result<ParsedSeries, String> {
    let mut series = ParsedSeries::new();
    let mut names: BTreeSet<String> = BTreeSet::new();
    let mut family = ParsedFamily::default();
    let mut has_ended = false;
    if !text.ends_with('\n') {
        return Err("no newline at the end".into());
    }
    for line in text.lines() {
        let fail = |why: &str| Err(format!("{why}: {line}"));
        if has_ended {
            return fail("a line after the end mark");
        }
        if line == "# EOF" {
            has_ended = true;
        } else if let Some(rest) = line.strip_prefix("# ") {
            let (keyword, rest) = rest.split_once(' ').ok_or("a comment without a keyword")?;
            let (name, text) = rest.split_once(' ').ok_or("a comment without a text")?;
            if keyword == "HELP" {
                if !names.insert(name.into()) {
                    return fail("a family that is not in one piece");
                }
                family = ParsedFamily { name: name.into(), ..ParsedFamily::default() };
            }
            if family.name != name {
                return fail("another family");
            }
            match keyword {
                "HELP" if text.contains('"') => return fail("a quote in the help"),
                "HELP" => {}
                "TYPE" => family.kind = text.into(),
                "UNIT" if is_open_metrics && name.ends_with(&format!("_{text}")) => {}
                _ => return fail("an unexpected comment"),
            }
        } else {
            let (name, labels, value) = sample(line)?;
            let expected = match (family.kind.as_str(), is_open_metrics) {
                ("gauge", _) | ("counter", false) => family.name.clone(),
                ("counter", true) => format!("{}_total", family.name),
                _ => return fail("a sample without a type"),
            };
            if name != expected || (family.kind == "counter" && !name.ends_with("_total")) {
                return fail("a sample of another family");
            }
            if family.kind == "counter" && (value.is_nan() || value < 0.0) {
                return fail("a counter below 0");
            }
            if series.insert((name, labels), value).is_some() {
                return fail("a series twice");
            }
        }
    }
    if has_ended != is_open_metrics {
        return Err("the end mark".into());
    }
    Ok(series)
}

#[derive(Default)]
struct ParsedFamily {
    name: String,
    kind: String,
}

type ParsedSample = (String, Vec<(String, String)>, f64);

fn sample(line: &str) -> Result<ParsedSample, String> {
    let fail = |why: &str| format!("{why}: {line}");
    let end = line.find(['{', ' ']).ok_or_else(|| fail("no value"))?;
    let (name, mut rest) = line.split_at(end);
    if !is_name(name) {
        return Err(fail("the name of a metric"));
    }
    let mut labels = Vec::new();
    if let Some(mut inner) = rest.strip_prefix('{') {
        loop {
            let (label, after) = inner.split_once("=\"").ok_or_else(|| fail("a label"))?;
            if !is_name(label) || label.contains(':') {
                return Err(fail("the name of a label"));
            }
            let (value, after) = quoted(after).ok_or_else(|| fail("the value of a label"))?;
            if labels.iter().any(|(other, _)| other == label) {
                return Err(fail("a label twice"));
            }
            labels.push((label.to_owned(), value));
            match after.strip_prefix(',') {
                Some(next) => inner = next,
                None => {
                    rest = after.strip_prefix('}').ok_or_else(|| fail("the end of labels"))?;
                    break;
                }
            }
        }
    }
    let value = rest.strip_prefix(' ').ok_or_else(|| fail("a blank before the value"))?;
    let value = match value {
        "+Inf" => f64::INFINITY,
        "-Inf" => f64::NEG_INFINITY,
        "NaN" => f64::NAN,
        number if number.starts_with(|c: char| c.is_ascii_digit() || c == '-') => {
            number.parse().map_err(|_| fail("a number"))?
        }
        _ => return Err(fail("a number")),
    };
    Ok((name.into(), labels, value))
}

/// Returns the text up to the closing quote, and the text after the quote.
fn quoted(text: &str) -> Option<(String, &str)> {
    let mut value = String::new();
    let mut chars = text.char_indices();
    while let Some((at, c)) = chars.next() {
        match c {
            '"' => return Some((value, &text[at + 1..])),
            '\\' => match chars.next()?.1 {
                'n' => value.push('\n'),
                c @ ('"' | '\\') => value.push(c),
                _ => return None,
            },
            c => value.push(c),
        }
    }
    None
}

fn is_name(name: &str) -> bool {
    let mut bytes = name.bytes();
    bytes.next().is_some_and(|b| b.is_ascii_alphabetic() || b == b'_' || b == b':')
        && bytes.all(|b| b.is_ascii_alphanumeric() || b == b'_' || b == b':')
}
