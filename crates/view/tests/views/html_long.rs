//! Tables and address maps of very many mappings: small pages, with every row in them.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::process::Command;

use pagewise_model::report::{
    AddressMap, Audience, CellValue, Cluster, ColumnCells, Gaps, MapCell, ReportBlock, ReportTable,
    TableColumn,
};
use pagewise_model::{Absent, AddrRange, Name, Report};
use pagewise_skip::{Lack, skip};
use pagewise_view::html;
use serde_json::Value as Json;

const ROWS: u64 = 65_400;
const BASE: u64 = 0x7000_0000_0000;
const STEP: u64 = 12 << 10;

/// Sizes that repeat, as those of mappings do; the row in the middle has the largest.
fn size(row: u64) -> u64 {
    if row == ROWS / 2 { 777 << 20 } else { (row % 1000) << 12 }
}

fn report() -> Report {
    let names = (0..ROWS).map(|row| match row {
        41_999 => Name::new(b"/lib/</script><b>&\"\\\x1b[2Jevil.so"),
        row => Name::new(format!("/usr/lib/lib{}.so", row % 300).as_bytes()),
    });
    let gaps = BTreeMap::from([(3, Absent::NotPermitted("root".into()))]);
    let sizes = TableColumn::new("rss", "RSS", ColumnCells::Bytes((0..ROWS).map(size).collect()));
    let table = ReportTable {
        key: "mappings".into(),
        title: "Mappings".into(),
        audience: Audience::Everyone,
        columns: vec![
            TableColumn::new(
                "start",
                "start",
                ColumnCells::Addresses((0..ROWS).map(|row| BASE + row * STEP).collect()),
            ),
            TableColumn { gaps: Gaps::Some(gaps), ..sizes },
            TableColumn::new(
                "share",
                "share",
                ColumnCells::Values(
                    (0..ROWS).map(|row| CellValue::Share((row % 7) as f64 / 10.0)).collect(),
                ),
            ),
            TableColumn::new("name", "name", ColumnCells::Names(names.collect())),
        ],
        row_keys: None,
        total: None,
        note: "".into(),
    };
    let cell = |row: u64| MapCell {
        range: AddrRange { start: BASE + row * STEP, end: BASE + row * STEP + 4096 },
        pool: if row.is_multiple_of(2) { "stacks" } else { "guards" },
        label: vec![CellValue::text("a mapping")],
        filled: Ok(0.5),
        facts: Vec::new(),
    };
    let cluster = Cluster {
        range: AddrRange { start: BASE, end: BASE + ROWS * STEP },
        cells: (0..ROWS).map(cell).collect(),
    };
    let map = AddressMap { title: "Address map".into(), clusters: vec![cluster] };
    Report {
        schema: "pagewise.explain/1",
        title: vec![CellValue::text("long")],
        blocks: vec![ReportBlock::Table(table), ReportBlock::AddressMap(map)],
    }
}

fn page() -> String {
    let mut out = Vec::new();
    html::write(&report(), &mut out).unwrap();
    String::from_utf8(out).unwrap()
}

/// The data of the table.
fn data(page: &str) -> Json {
    let (_, rest) = page.split_once("<script type=\"application/json\">\n").unwrap();
    let (text, _) = rest.split_once("\n</script>").unwrap();
    serde_json::from_str(text).unwrap()
}

#[test]
fn a_page_of_very_many_mappings_is_small() {
    let page = page();
    assert!(page.len() < 3 << 20, "{} bytes", page.len());
    assert!(page.matches("<tr>").count() <= 201);
    assert!(page.contains("The first 200 of 65400 rows"), "readers without scripts are told");
    let drawn = page.matches("<g class").count();
    assert!((500..=4000).contains(&drawn), "{drawn} drawings");
    assert!(page.contains("65400 mappings; small neighbors are drawn together"));
    let title = page.split("<g class").nth(1).unwrap();
    assert!(title.contains(" mappings\n70000000"), "{}", &title[..200]);
}

#[test]
fn every_cell_of_a_long_table_is_in_its_data() {
    let page = page();
    let data = data(&page);
    assert_eq!(data["rows"], ROWS);
    let columns = data["columns"].as_array().unwrap();
    let steps: Vec<&str> = columns[0]["steps"].as_str().unwrap().split(' ').collect();
    let mut address = 0;
    for (row, step) in (0..).zip(&steps) {
        address += u64::from_str_radix(step, 16).unwrap();
        assert_eq!(address, BASE + row * STEP);
    }
    assert_eq!(steps.len() as u64, ROWS);
    let cell = |column: &Json, row: u64| -> Json {
        let number = column["numbers"][usize::try_from(row).unwrap()].as_u64().unwrap();
        column["cells"][usize::try_from(number).unwrap()].clone()
    };
    for row in 0..ROWS {
        let wanted = match row {
            3 => serde_json::json!({"mark": "?", "why": "not permitted: needs root"}),
            row => size(row).into(),
        };
        assert_eq!(cell(&columns[1], row), wanted, "row {row}");
    }
    assert_eq!(cell(&columns[2], 2), serde_json::json!(["20.0%", 0.2]));
    let hostile = cell(&columns[3], 41_999);
    assert_eq!(hostile, "/lib/</script><b>&\"\\\\x1b[2Jevil.so");
    assert_eq!(page.matches("</script>").count(), 2, "no name ends the data");
}

/// Actions of a reader, as a script that writes its results into an element of its own.
const ACTS: &str = r#"<script>
const says = [];
const body = document.querySelector("tbody");
const input = document.querySelector("input[type=search]");
const place = document.querySelector(".pages output");
const heads = [...document.querySelectorAll("thead button")];
const row = (at) => [...body.rows[at].cells].map((cell) => cell.textContent).join(" ");
says.push(`${body.rows.length} rows`, place.textContent, row(0), row(3));
document.querySelector("[aria-label='Rows after']").click();
says.push(place.textContent, row(0));
heads[1].click();
says.push(row(0), body.rows[0].cells[1].dataset.v);
heads[0].click();
says.push(row(0));
input.value = "EVIL";
input.dispatchEvent(new Event("input"));
setTimeout(() => {
  says.push(place.textContent, row(0));
  const out = document.createElement("pre");
  out.id = "says";
  out.textContent = says.join("\n");
  document.body.append(out);
}, 500);
</script>"#;

#[test]
fn a_browser_pages_sorts_and_filters_a_long_table() {
    let browser = ["chromium", "chromium-browser", "google-chrome"].into_iter().find(|name| {
        Command::new(name).arg("--version").output().is_ok_and(|output| output.status.success())
    });
    let Some(browser) = browser else {
        skip(&Lack::Tool("chromium"));
        return;
    };
    let path = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join("long.html");
    std::fs::write(&path, page().replace("</body>", &format!("{ACTS}</body>"))).unwrap();
    let folder = tempfile::tempdir().unwrap();
    let output = Command::new(browser)
        .args(["--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"])
        .arg(format!("--user-data-dir={}", folder.path().display()))
        .args(["--virtual-time-budget=5000", "--dump-dom"])
        .arg(format!("file://{}", path.display()))
        .output()
        .unwrap();
    let dom = String::from_utf8_lossy(&output.stdout);
    let (_, says) = dom.split_once("<pre id=\"says\">").unwrap_or_else(|| panic!("no script ran"));
    let says: Vec<&str> = says.split_once("</pre>").unwrap().0.lines().collect();
    let expected = [
        "200 rows",
        "1–200 of 65400",
        "700000000000 0 0.0% /usr/lib/lib0.so",
        "700000009000 ? 30.0% /usr/lib/lib3.so",
        "201–400 of 65400",
        "700000258000 800K 40.0% /usr/lib/lib200.so",
        "700017f34000 777M 30.0% /usr/lib/lib0.so",
        "814743552",
        "70002fe65000 1.6M 50.0% /usr/lib/lib299.so",
        "1–1 of 1",
    ];
    assert_eq!(says[..expected.len()], expected);
    assert!(says[10].contains("/lib/&lt;/script&gt;&lt;b&gt;&amp;"), "{}", says[10]);
}
