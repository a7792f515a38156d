//! A flame graph: one SVG file with search and zoom, which any browser opens without a network.

use std::io::{self, Write};

use inferno::flamegraph::{Options, from_lines};
use pagewise_model::heap::{HeapRecording, Of};
use pagewise_model::traced::StackProfile;

use super::collapsed::CollapsedStacks;
use super::plain;

/// Writes a profile as a flame graph. The title can contain text from outside.
///
/// Functions that are narrower than a hundredth of a percent are omitted, as in all flame graphs.
/// [`super::collapsed`] has complete counts.
///
/// # Errors
/// Returns the error of `out`; `InvalidData` for counts whose sum reaches 2^63.
pub fn write(profile: &StackProfile, title: &str, out: &mut dyn Write) -> io::Result<()> {
    let what = if profile.what.is_empty() { "samples" } else { &profile.what };
    draw(&CollapsedStacks::of_profile(profile)?, what, title, out)
}

/// Draws one number for each call stack of a heap.
///
/// # Errors
/// Returns the error of `out`; `InvalidData` for numbers whose sum reaches 2^63.
pub fn write_heap(
    recording: &HeapRecording,
    of: Of,
    title: &str,
    out: &mut dyn Write,
) -> io::Result<()> {
    draw(&CollapsedStacks::of_heap(recording, of)?, of.what(), title, out)
}

fn draw(
    stacks: &CollapsedStacks<'_>,
    what: &str,
    title: &str,
    out: &mut dyn Write,
) -> io::Result<()> {
    let mut options = Options::default();
    options.title = plain(title.as_bytes()).into_owned();
    options.count_name = plain(what.as_bytes()).into_owned();
    options.deterministic = true;
    // Lines that are sorted as text do not keep stacks with a common start together if a name
    // contains a character below `;`. A flame chart keeps the order of the lines, from the last to
    // the first.
    options.flame_chart = true;
    let lines: Vec<String> = stacks.lines().rev().collect();
    if lines.is_empty() {
        return empty(&options, out);
    }
    from_lines(&mut options, lines.iter().map(String::as_str), out)
}

/// Draws a profile without counts.
fn empty(options: &Options<'_>, out: &mut dyn Write) -> io::Result<()> {
    let [title, what] = [&options.title, &options.count_name].map(|text| escaped(text));
    writeln!(
        out,
        "<svg version=\"1.1\" width=\"600\" height=\"80\" xmlns=\"http://www.w3.org/2000/svg\">\
         <title>{title}</title><text x=\"20\" y=\"45\" font-family=\"monospace\">No {what}.</text></svg>"
    )
}

fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;")
}
