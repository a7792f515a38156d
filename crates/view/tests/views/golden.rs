//! One report, every view: what it looks like is reviewed like code.

use crate::common;

use pagewise_model::Report;
use pagewise_view::text::{Style, Units};
use pagewise_view::{html, json, text};

fn drawn(report: &Report, style: Style) -> String {
    let mut out = Vec::new();
    text::write(report, &style, &mut out).unwrap();
    String::from_utf8(out).unwrap()
}

#[test]
fn text_at_60_columns() {
    insta::assert_snapshot!(drawn(&common::sample(), Style { width: 60, ..Style::default() }));
}

#[test]
fn text_at_80_columns() {
    insta::assert_snapshot!(drawn(&common::sample(), Style::default()));
}

#[test]
fn text_at_140_columns_in_kib() {
    let style = Style { width: 140, units: Units::KiB, ..Style::default() };
    insta::assert_snapshot!(drawn(&common::sample(), style));
}

#[test]
fn long_text_in_color_and_bytes() {
    let style = Style { width: 100, units: Units::Bytes, color: true, long: true };
    insta::assert_snapshot!(drawn(&common::sample(), style).replace('\x1b', "^["));
}

#[test]
fn json_nests_by_key() {
    let mut out = Vec::new();
    json::write(&common::sample(), &mut out).unwrap();
    insta::assert_snapshot!(String::from_utf8(out).unwrap());
}

#[test]
fn html_is_one_page() {
    let mut out = Vec::new();
    html::write(&common::sample(), &mut out).unwrap();
    let page = String::from_utf8(out).unwrap();
    let (_, body) = page.split_once("<body>").unwrap();
    let (body, _) = body.split_once("<script>").unwrap();
    insta::assert_snapshot!(body);
}
