//! Tests with arbitrary reports: a view neither panics nor outputs sequences that could control a
//! terminal or a browser.

use crate::common;

use std::collections::BTreeMap;
use std::sync::Arc;

use pagewise_model::Report;
use pagewise_model::name::is_plain;
use pagewise_model::report::*;
use pagewise_view::text::{Style, Units};
use pagewise_view::{html, json, text};
use proptest::prelude::*;
use serde_json::{Map, Value as Json, json};
use unicode_width::UnicodeWidthStr;

fn as_text(report: &Report, style: &Style) -> String {
    let mut out = Vec::new();
    text::write(report, style, &mut out).unwrap();
    String::from_utf8(out).unwrap()
}

fn as_json(report: &Report) -> String {
    let mut out = Vec::new();
    json::write(report, &mut out).unwrap();
    String::from_utf8(out).unwrap()
}

fn as_html(report: &Report) -> String {
    let mut out = Vec::new();
    html::write(report, &mut out).unwrap();
    String::from_utf8(out).unwrap()
}

fn any_style() -> impl Strategy<Value = Style> {
    let units = prop_oneof![Just(Units::Human), Just(Units::KiB), Just(Units::Bytes)];
    (20..220usize, any::<bool>(), units).prop_map(|(width, long, units)| Style {
        width,
        color: false,
        long,
        units,
    })
}

/// Removes the views' own color sequences, and the spaces before them at the end of a line.
fn without_colors(text: &str) -> String {
    let mut plain = text.to_owned();
    for code in ["0", "1", "2", "32", "33", "36", "1;31"] {
        plain = plain.replace(&format!("\x1b[{code}m"), "");
    }
    plain.lines().map(|line| format!("{}\n", line.trim_end_matches(' '))).collect()
}

/// Expected JSON, computed differently: as a tree.
fn expected(report: &Report) -> Json {
    let mut root = Map::new();
    root.insert("schema".into(), json!(report.schema));
    for block in &report.blocks {
        match block {
            ReportBlock::Facts(facts) if facts.audience != Audience::People => {
                let keys: Vec<&str> = facts.key.split('.').collect();
                descend(&mut root, &keys).extend(facts_object(&facts.facts));
            }
            ReportBlock::Table(table) if table.audience != Audience::People => {
                let keys: Vec<&str> = table.key.split('.').collect();
                let (key, path) = keys.split_last().unwrap();
                if let Some(row_keys) = &table.row_keys {
                    let rows = row_keys.iter().map(|key| key.to_string()).zip(table_rows(table));
                    descend(&mut root, &keys).extend(rows);
                } else {
                    descend(&mut root, path).insert((*key).to_owned(), table_rows(table).collect());
                }
            }
            ReportBlock::Findings(findings) => {
                let list = findings.list.iter().map(|f| {
                    let step = text::inline(&f.next_step);
                    json!({"id": f.id, "severity": f.severity.key(), "claim": text::inline(&f.claim),
                           "evidence": facts_object(&f.evidence), "next_step": if step.is_empty() { Json::Null } else { json!(step) }})
                });
                match root.get_mut("findings") {
                    Some(Json::Array(so_far)) => so_far.extend(list),
                    _ => {
                        root.insert("findings".into(), list.collect());
                    }
                }
            }
            _ => {}
        }
    }
    Json::Object(root)
}

fn descend<'m>(mut object: &'m mut Map<String, Json>, path: &[&str]) -> &'m mut Map<String, Json> {
    for key in path.iter().filter(|key| !key.is_empty()) {
        let is_table_or_value = !matches!(object.get(*key), Some(Json::Object(_)));
        if is_table_or_value {
            object.insert((*key).to_owned(), json!({}));
        }
        object = object.get_mut(*key).unwrap().as_object_mut().unwrap();
    }
    object
}

fn facts_object(facts: &[Fact]) -> Map<String, Json> {
    facts
        .iter()
        .filter(|f| f.audience != Audience::People)
        .map(|f| (f.key.to_string(), value(&f.value)))
        .collect()
}

fn table_rows(table: &ReportTable) -> impl Iterator<Item = Json> {
    (0..table.columns.first().map_or(0, |c| c.cells.len())).map(|row| {
        let columns = table.columns.iter().filter(|c| c.audience != Audience::People);
        let cells: Map<String, Json> = columns
            .map(|c| {
                let is_there = c.gap(row).is_some() || row < c.cells.len();
                (c.key.to_string(), if is_there { value(&c.value(row)) } else { Json::Null })
            })
            .collect();
        Json::Object(cells)
    })
}

fn value(value_: &CellValue) -> Json {
    match value_ {
        CellValue::None => Json::Null,
        CellValue::Bytes(n) | CellValue::Count(n) | CellValue::Address(n) | CellValue::Nanos(n) => {
            json!(n)
        }
        CellValue::Change(n) => json!(n),
        CellValue::Seconds(ns) => {
            let text = format!("{}.{:09}", ns / 1_000_000_000, ns % 1_000_000_000);
            serde_json::from_str(&text).unwrap()
        }
        CellValue::Number(number) if number.fract() == 0.0 && number.abs() < 1e15 => {
            serde_json::from_str(&format!("{number:.0}")).unwrap()
        }
        CellValue::Share(number)
        | CellValue::Rate(number)
        | CellValue::Number(number)
        | CellValue::Bar(number) => {
            json!(number)
        }
        CellValue::Flag(flag) => json!(flag),
        CellValue::Text(text) | CellValue::Picture(text) => json!(text),
        CellValue::Name(name) => match std::str::from_utf8(name.as_bytes()) {
            Ok(text) => json!(text),
            Err(_) => json!(name.escaped()),
        },
        CellValue::List(values) => values.iter().map(value).collect(),
        CellValue::Sentence(pieces) => json!(text::inline(pieces)),
        CellValue::Record(members) => {
            members.iter().map(|(key, member)| (key.to_string(), value(member))).collect()
        }
        CellValue::Absent(absent) => json!({"absent": absent.to_string()}),
    }
}

/// True if two JSON values are equal. Floating-point numbers may differ in the last digit, because
/// `serde_json` does not parse this digit exactly.
fn same(a: &Json, b: &Json) -> bool {
    match (a, b) {
        (Json::Number(a), Json::Number(b)) => {
            let (x, y) = (a.as_f64().unwrap(), b.as_f64().unwrap());
            // `serde_json` may be wrong by the last digit. The smallest numbers have only this
            // digit.
            let last_digit = (x.abs() * 2.0 * f64::EPSILON).max(f64::from_bits(4));
            a == b || (a.is_f64() || b.is_f64()) && (x - y).abs() <= last_digit
        }
        (Json::Array(a), Json::Array(b)) => {
            a.len() == b.len() && a.iter().zip(b).all(|(a, b)| same(a, b))
        }
        (Json::Object(a), Json::Object(b)) => {
            a.len() == b.len() && a.iter().all(|(key, a)| b.get(key).is_some_and(|b| same(a, b)))
        }
        _ => a == b,
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 128, failure_persistence: None, ..Default::default() })]

    #[test]
    fn no_line_is_wider_than_asked(report in common::any_report(), style in any_style()) {
        for line in as_text(&report, &style).lines() {
            prop_assert!(line.width() <= style.width, "{} > {}: {line}", line.width(), style.width);
        }
    }

    #[test]
    fn text_holds_only_plain_characters_and_our_own_colors(report in common::any_report(), style in any_style()) {
        let plain = as_text(&report, &style);
        let colored = as_text(&report, &Style { color: true, ..style });
        prop_assert_eq!(without_colors(&colored), plain.as_str());
        prop_assert!(plain.chars().all(|c| c == '\n' || is_plain(c)));
    }

    #[test]
    fn no_line_ends_in_blanks(report in common::any_report(), style in any_style()) {
        for line in as_text(&report, &style).lines() {
            prop_assert!(!line.ends_with(' '), "{line:?}");
        }
    }

    #[test]
    fn coded_cells_are_written_as_the_cells_of_other_columns(
        sizes in proptest::collection::vec(any::<u64>(), 4),
        names in proptest::collection::vec(common::any_name(), 4),
        codes in proptest::collection::vec(0..4_u32, 1..9),
        style in any_style(),
    ) {
        let all_codes = Arc::new(codes.clone());
        let coded = |value: &dyn Fn(usize) -> CellValue| {
            // A value that no row uses would still widen its column, so the value of a used code
            // replaces it.
            let values = (0..4).map(|code| match codes.contains(&code) {
                true => value(code as usize),
                false => value(codes[0] as usize),
            });
            ColumnCells::Coded(CodedCells { values: values.collect(), codes: all_codes.clone() })
        };
        let report = |cells: [ColumnCells; 4]| {
            let column = |(at, cells)| TableColumn::new(format!("c{at}"), format!("C{at}"), cells);
            let columns = cells.into_iter().enumerate().map(column).collect();
            let table = ReportTable {
                key: "mappings".into(),
                title: "Sizes".into(),
                audience: Audience::Everyone,
                columns,
                row_keys: None,
                total: None,
                note: "".into(),
            };
            Report { schema: "pagewise.maps/1", title: vec![], blocks: vec![ReportBlock::Table(table)] }
        };
        let first = || ColumnCells::Counts(codes.iter().map(|code| u64::from(*code)).collect());
        let with_codes = report([
            coded(&|code| CellValue::Name(names[code].clone())),
            first(),
            coded(&|code| CellValue::Bytes(sizes[code])),
            coded(&|code| CellValue::Count(sizes[code])),
        ]);
        let without = report([
            ColumnCells::Names(codes.iter().map(|code| names[*code as usize].clone()).collect()),
            first(),
            ColumnCells::Bytes(codes.iter().map(|code| sizes[*code as usize]).collect()),
            ColumnCells::Counts(codes.iter().map(|code| sizes[*code as usize]).collect()),
        ]);
        prop_assert_eq!(as_text(&with_codes, &style), as_text(&without, &style));
        prop_assert_eq!(as_json(&with_codes), as_json(&without));
        prop_assert_eq!(as_html(&with_codes), as_html(&without));
    }

    #[test]
    fn json_has_the_exact_values(report in common::any_report()) {
        let text = as_json(&report);
        let found: Json = serde_json::from_str(&text).unwrap();
        let wanted = expected(&report);
        prop_assert!(same(&found, &wanted), "{text}\n{wanted}");
        prop_assert!(text.chars().all(|c| c == '\n' || is_plain(c)));
    }

    #[test]
    fn html_is_well_formed_with_any_text(report in common::any_report()) {
        let page = as_html(&report);
        prop_assert!(page.chars().all(|c| c == '\n' || is_plain(c)));
        let (body, _) = page.split_once("<script>\n").unwrap();
        if let Err(fault) = balanced(body.split_once("<main>").unwrap().1) {
            prop_assert!(false, "{}\n{}", fault, page);
        }
    }
}

/// Checks that each `<` begins a tag of the view, that all attributes are quoted and that all tags
/// are closed. Text that is not escaped would violate this.
fn balanced(mut html: &str) -> Result<(), String> {
    let mut open: Vec<&str> = vec!["main"];
    while let Some(at) = html.find('<') {
        html = &html[at + 1..];
        let end = tag_end(html).ok_or("a tag does not end")?;
        let (tag, rest) = html.split_at(end);
        html = &rest[1..];
        let name = tag.trim_matches('/').split([' ', '\n']).next().unwrap_or("");
        const OURS: &[&str] = &[
            "a",
            "abbr",
            "article",
            "b",
            "circle",
            "code",
            "dd",
            "div",
            "dl",
            "dt",
            "figcaption",
            "figure",
            "g",
            "h2",
            "h3",
            "li",
            "line",
            "main",
            "nav",
            "p",
            "polyline",
            "rect",
            "section",
            "span",
            "style",
            "svg",
            "table",
            "tbody",
            "td",
            "text",
            "tfoot",
            "th",
            "thead",
            "title",
            "tr",
            "ul",
        ];
        if !OURS.contains(&name) {
            return Err(format!("<{tag}> is not ours"));
        }
        match (tag.starts_with('/'), tag.ends_with('/')) {
            (true, _) if open.pop() != Some(name) => return Err(format!("<{tag}> closes another")),
            (false, false) => open.push(name),
            _ => {}
        }
    }
    if open.is_empty() { Ok(()) } else { Err(format!("{open:?} stay open")) }
}

/// Index of the end of the tag: the first `>` outside of quotes.
fn tag_end(html: &str) -> Option<usize> {
    let mut quoted = false;
    html.bytes().position(|b| {
        quoted ^= b == b'"';
        b == b'>' && !quoted
    })
}

#[test]
fn every_view_escapes_hostile_text() {
    let report = common::sample();
    let style = Style { width: 200, color: true, long: true, ..Style::default() };
    let page = as_html(&report);
    for (view, text) in [
        ("text", without_colors(&as_text(&report, &style))),
        ("json", as_json(&report)),
        ("html", page),
    ] {
        assert!(
            text.contains(r"\x1b[2J\nevil") || text.contains(r"\\x1b[2J\\nevil"),
            "{view} shows the name"
        );
        for raw in ['\x1b', '\u{202e}', '\u{9b}'] {
            assert!(!text.contains(raw), "{view} has a raw {raw:?}");
        }
    }
    assert!(!as_html(&report).contains("<script>alert"));
}

#[test]
fn a_page_loads_nothing_from_elsewhere() {
    let page = as_html(&common::sample());
    for lure in ["http:", "https:", "//cdn", "src=", "@import", "url("] {
        assert!(!page.contains(lure), "{lure}");
    }
    assert!(page.contains("default-src 'none'"));
}

#[test]
fn a_missing_value_is_never_drawn_as_nothing_or_zero() {
    let gaps = BTreeMap::from([(1, pagewise_model::Absent::Vanished)]);
    let column = TableColumn {
        gaps: Gaps::Some(gaps),
        ..TableColumn::new("rss", "RSS", ColumnCells::Bytes(vec![7, 0]))
    };
    let table = ReportTable {
        key: "t".into(),
        title: "".into(),
        audience: Audience::Everyone,
        columns: vec![column],
        row_keys: None,
        total: None,
        note: "".into(),
    };
    let report = Report {
        schema: "pagewise.test/1",
        title: vec![],
        blocks: vec![ReportBlock::Table(table)],
    };
    assert_eq!(
        as_text(&report, &Style::default()),
        "RSS\n  7\n  ?\n? vanished while it was read\n"
    );
    assert!(as_json(&report).contains(r#"{"rss": {"absent": "vanished while it was read"}}"#));
    assert!(
        as_html(&report).contains(r#"<td><abbr title="vanished while it was read">?</abbr></td>"#)
    );
}

#[test]
fn an_unlimited_width_cuts_nothing() {
    let style = Style { width: usize::MAX, ..Style::default() };
    let text = as_text(&common::sample(), &style);
    assert!(!text.contains('…') && !text.contains("Not shown"));
}

#[test]
fn the_rows_of_a_long_table_stand_in_order_with_their_gaps() {
    const ROWS: usize = 2 * pagewise_model::parallel::MIN_ROWS + 77;
    let is_missing = |row: usize| row % 3 == 1 || row / 600 == 4;
    let missing = (0..ROWS).filter(|&row| is_missing(row));
    let gaps = missing.map(|row| (row, pagewise_model::Absent::Vanished)).collect();
    let cells = ColumnCells::Bytes((0..ROWS as u64).map(|row| row << 10).collect());
    let names = (0..ROWS).map(|row| format!("name {row}").as_str().into()).collect();
    let table = ReportTable {
        key: "t".into(),
        title: "".into(),
        audience: Audience::Everyone,
        columns: vec![
            TableColumn { gaps: Gaps::Some(gaps), ..TableColumn::new("rss", "RSS", cells) },
            TableColumn::new("name", "Name", ColumnCells::Names(names)),
        ],
        row_keys: None,
        total: None,
        note: "".into(),
    };
    let report = Report {
        schema: "pagewise.test/1",
        title: vec![],
        blocks: vec![ReportBlock::Table(table)],
    };
    let text = as_text(&report, &Style { units: Units::KiB, ..Style::default() });
    let expected = (0..ROWS).map(|row| {
        let size = if is_missing(row) { "?".to_owned() } else { row.to_string() };
        format!("{size:>4}  name {row}")
    });
    let lines: Vec<&str> = text.lines().collect();
    let header = lines.iter().position(|line| line.ends_with("Name")).unwrap();
    for (line, expected) in lines[header + 1..].iter().zip(expected.collect::<Vec<_>>()) {
        assert_eq!(*line, expected);
    }
    assert_eq!(lines.len(), header + 1 + ROWS + 1, "and the footnote");

    // The output fails in the middle of a table: the error is returned, and no thread waits
    // forever.
    struct FullWriter(usize);
    impl std::io::Write for FullWriter {
        fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
            self.0 = self.0.checked_sub(bytes.len()).ok_or(std::io::ErrorKind::StorageFull)?;
            Ok(bytes.len())
        }
        fn flush(&mut self) -> std::io::Result<()> {
            Ok(())
        }
    }
    let style = Style { units: Units::KiB, ..Style::default() };
    let error = pagewise_view::text::write(&report, &style, &mut FullWriter(20_000)).unwrap_err();
    assert_eq!(error.kind(), std::io::ErrorKind::StorageFull);
}
