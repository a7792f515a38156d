//! The heat map: a row for sizes and live blocks, a column for everything else.

use std::fmt::Write;

use crate::CellResult;

/// Names of the rows or columns, in the order in which they first appear.
fn names(results: &[CellResult], name: fn(&CellResult) -> String) -> Vec<String> {
    let mut names = Vec::new();
    for name in results.iter().map(name) {
        if !names.contains(&name) {
            names.push(name);
        }
    }
    names
}

fn row(result: &CellResult) -> String {
    format!("{}, {} live", result.cell.sizes, result.cell.live)
}

fn column(result: &CellResult) -> String {
    let cell = &result.cell;
    let touched = if cell.touched { "touched" } else { "8 B" };
    format!("{} / {} / {} T / {touched}", cell.order, cell.align, cell.threads)
}

fn find<'a>(results: &'a [CellResult], at: (&str, &str)) -> Option<&'a CellResult> {
    results.iter().find(|result| (row(result).as_str(), column(result).as_str()) == at)
}

/// Prints the ratios.
pub(crate) fn print(results: &[CellResult]) {
    let (rows, columns) = (names(results, row), names(results, column));
    println!(
        "\nbest compared allocator / best of ours; columns: order / alignment / threads / written bytes"
    );
    for (at, name) in columns.iter().enumerate() {
        println!("  {at:>2}: {name}");
    }
    print!("{:<44}", "");
    (0..columns.len()).for_each(|at| print!("{at:>6}"));
    println!();
    for row in &rows {
        print!("{row:<44}");
        for column in &columns {
            match find(results, (row, column)) {
                Some(result) => print!("{:>6.2}", result.ratio()),
                None => print!("{:>6}", "-"),
            }
        }
        println!();
    }
}

/// A color from red, half as fast, over white to green, twice as fast.
fn color(ratio: f64) -> String {
    let share = (ratio.log2().clamp(-1.0, 1.0) * 155.0) as i32;
    if share < 0 {
        format!("rgb(255,{0},{0})", 255 + share)
    } else {
        format!("rgb({0},255,{0})", 255 - share)
    }
}

/// A page with the same map, in colors.
pub(crate) fn html(results: &[CellResult]) -> String {
    let (rows, columns) = (names(results, row), names(results, column));
    let mut page = String::from(
        "<!doctype html><meta charset=utf-8><title>Grid of allocators</title>\
         <style>body{font:13px sans-serif}td,th{padding:2px 5px;text-align:right}\
         th.c{writing-mode:vertical-rl}</style>\
         <p>Time of the best compared allocator divided by that of the best pagewise pool: green \
         is faster, red slower.<table><tr><th>",
    );
    columns.iter().for_each(|column| _ = write!(page, "<th class=c>{column}"));
    for row in &rows {
        _ = write!(page, "<tr><th>{row}");
        for column in &columns {
            let Some(result) = find(results, (row, column)) else {
                page.push_str("<td>");
                continue;
            };
            let [ours, other] = [true, false].map(|ours| result.best(ours));
            let name = |best: Option<(crate::Contestant, f64)>| {
                best.map_or(String::new(), |(who, time)| format!("{} {time:.1} ns", who.name))
            };
            _ = write!(
                page,
                "<td style='background:{}' title='{}, {}'>{:.2}",
                color(result.ratio()),
                name(ours),
                name(other),
                result.ratio()
            );
        }
    }
    page.push_str("</table>\n");
    page
}
