//! Time for a large table. Ignored, since it depends on the machine's load: `cargo test --release
//! -p pagewise-view --test views speed -- --ignored --nocapture`.

use crate::common;

use std::io::{self, Write};
use std::time::{Duration, Instant};

use pagewise_model::Report;
use pagewise_view::text::{Style, Units};
use pagewise_view::{html, json, text};

/// Counts the written bytes.
struct CountingSink(usize);

impl Write for CountingSink {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0 += bytes.len();
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// The median and the best of 21 runs, and the bytes of one.
fn time(draw: impl Fn(&mut CountingSink)) -> ([Duration; 2], usize) {
    let mut runs = Vec::new();
    let mut bytes = 0;
    for _ in 0..21 {
        let mut sink = CountingSink(0);
        let start = Instant::now();
        draw(&mut sink);
        runs.push(start.elapsed());
        bytes = sink.0;
    }
    runs.sort_unstable();
    ([runs[runs.len() / 2], runs[0]], bytes)
}

#[test]
#[ignore = "a measurement"]
fn a_table_of_65_000_rows_and_30_columns() {
    let report: Report = common::big_table(65_000, 30);
    for units in [Units::Human, Units::KiB, Units::Bytes] {
        let style = Style { width: 400, units, ..Style::default() };
        let (took, bytes) = time(|sink| text::write(&report, &style, sink).unwrap());
        println!("text {units:?}: {took:?}, {bytes} bytes");
    }
    let (took, bytes) = time(|sink| json::write(&report, sink).unwrap());
    println!("json: {took:?}, {bytes} bytes");
    let (took, bytes) = time(|sink| html::write(&report, sink).unwrap());
    println!("html: {took:?}, {bytes} bytes");
    assert!(bytes > 1_000_000, "the table was drawn");
}
