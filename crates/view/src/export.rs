//! Profiles and heaps in the formats of other tools. [`collapsed`], [`flamegraph`], [`pprof`] and
//! [`perfetto`] take the same [`StackProfile`], and give the same counts.
//!
//! | format | opened by | merges | keeps |
//! |---|---|---|---|
//! | [`collapsed`] | flamegraph.pl, inferno, speedscope, `grep` | frames of one name | counts |
//! | [`flamegraph`] | any browser | frames of one name | counts, as far as they are wide enough to be seen |
//! | [`pprof`] | `go tool pprof`, pprof.me, Perfetto since the end of 2025, as a flame graph | nothing | all |
//! | [`perfetto`] | Perfetto of any version, `chrome://tracing`, on a track for each thread | places on one line | all but offsets |
//!
//! For a heap recording, [`collapsed`] and [`flamegraph`] show one number of each call stack. These
//! formats keep more of it:
//!
//! | format | opened by | keeps |
//! |---|---|---|
//! | [`pprof`] | `go tool pprof` | allocated, at the end, at the peak, by call stack; no time |
//! | [`massif`] | `ms_print`, massif-visualizer | sums over time, call stacks where they were taken |
//! | [`heaptrack`] | `heaptrack_print`, heaptrack_gui | allocations, peak, leaks, temporary ones by call stack; sums over time |
//! | [`counters`] | Perfetto, `chrome://tracing` | sums over time |

pub mod collapsed;
pub mod counters;
pub mod flamegraph;
pub mod heaptrack;
pub mod massif;
pub mod perfetto;
pub mod pprof;
mod snapshots;

use std::borrow::Cow;
use std::io::{self, Write};

use flate2::{Compression, GzBuilder};
use pagewise_model::Name;
use pagewise_model::heap::{HeapRecording, Of};
use pagewise_model::name::escape;
use pagewise_model::traced::{Frame, StackCount, StackProfile};

use crate::json::push_string;

/// A format of another tool for recordings of heaps.
#[derive(Debug)]
pub struct HeapFormat {
    /// Name of the option.
    pub name: &'static str,
    /// Its description in the help text.
    pub help: &'static str,
    /// Its heading in the help text: [`OVER_TIME`] or [`CALL_STACKS`].
    pub heading: &'static str,
    /// True if a terminal cannot show the format.
    pub is_binary: bool,
    /// Writes a recording; returns notes on what the format cannot hold.
    pub write: HeapFormatWriter,
}

/// Writes a recording; returns notes on what the format cannot hold.
pub type HeapFormatWriter =
    fn(&HeapRecording, &HeapFormatOptions, &mut dyn Write) -> io::Result<Vec<String>>;

/// Options that several formats share.
#[derive(Clone, Copy, Debug)]
pub struct HeapFormatOptions {
    /// Quantity of formats that hold one number of each call stack.
    pub of: Of,
    /// Share of the total below which a branch of a tree is left out.
    pub threshold: f64,
    /// True if the name of the file ends in `.gz`.
    pub is_packed: bool,
}

/// Heading of formats that show the heap over time.
pub const OVER_TIME: &str = "Over time";
/// Heading of formats that show call stacks.
pub const CALL_STACKS: &str = "Call stacks";

/// The formats, in the order of the help text.
pub const HEAP_FORMATS: &[HeapFormat] = &[
    HeapFormat {
        name: "massif",
        help: "Write a massif file, for ms_print and massif-visualizer",
        heading: OVER_TIME,
        is_binary: false,
        write: |recording, options, out| {
            massif::write(recording, options.threshold, out).map(no_notes)
        },
    },
    HeapFormat {
        name: "heaptrack",
        help: "Write a heaptrack file, for heaptrack_print and heaptrack_gui; compressed if OUT ends in .gz",
        heading: OVER_TIME,
        is_binary: false,
        write: |recording, options, out| {
            heaptrack::write_with_notes(recording, options.is_packed, out)
        },
    },
    HeapFormat {
        name: "perfetto",
        help: "Write a trace for ui.perfetto.dev: live bytes, allocator footprint and resident bytes over time",
        heading: OVER_TIME,
        is_binary: false,
        write: |recording, _, out| counters::write(recording, out).map(no_notes),
    },
    HeapFormat {
        name: "pprof",
        help: "Write a profile for `go tool pprof`: bytes allocated, live at the end, live at the peak",
        heading: CALL_STACKS,
        is_binary: true,
        write: |recording, _, out| pprof::write_heap(recording, out).map(no_notes),
    },
    HeapFormat {
        name: "collapsed",
        help: "Write one line for each call stack with its quantity (--of), for flamegraph.pl and speedscope",
        heading: CALL_STACKS,
        is_binary: false,
        write: |recording, options, out| {
            collapsed::write_heap(recording, options.of, out).map(no_notes)
        },
    },
    HeapFormat {
        name: "flamegraph",
        help: "Write a flame graph as SVG, for any browser",
        heading: CALL_STACKS,
        is_binary: false,
        write: |recording, options, out| {
            let words: Vec<_> = recording.command.iter().map(Name::escaped).collect();
            let title = format!("Heap of {}: {}", words.join(" "), options.of.what());
            flamegraph::write_heap(recording, options.of, &title, out).map(no_notes)
        },
    },
];

fn no_notes((): ()) -> Vec<String> {
    Vec::new()
}

/// Checks the counts of a profile: readers sum them up in signed 64-bit numbers.
fn checked(profile: &StackProfile) -> io::Result<()> {
    addable(profile.samples.iter().map(|counted| counted.count))?;
    addable(profile.samples.iter().filter_map(|counted| counted.took_ns))
}

/// Refuses numbers whose sum exceeds `i64::MAX`.
fn addable(mut numbers: impl Iterator<Item = u64>) -> io::Result<()> {
    let sum = numbers.try_fold(0, |sum: u64, number| sum.checked_add(number));
    match sum.map(i64::try_from) {
        Some(Ok(_)) => Ok(()),
        _ => Err(io::Error::new(
            io::ErrorKind::InvalidData,
            "the counts of this profile add up to more than 2^63",
        )),
    }
}

/// The frames of a count, the innermost first; empty if the profile does not have the stack.
fn frames<'p>(profile: &'p StackProfile, counted: &StackCount) -> &'p [Frame] {
    let stack = usize::try_from(counted.stack).ok().and_then(|at| profile.stacks.get(at));
    stack.map_or(&[], Vec::as_slice)
}

/// Text without control characters and without characters that XML does not allow.
fn plain(text: &[u8]) -> Cow<'_, str> {
    match escape(text) {
        text if text.contains(NONE) => text.replace(NONE, "\u{fffd}").into(),
        text => text,
    }
}

/// Text as a string of JSON.
fn string(text: &str) -> Vec<u8> {
    let mut out = Vec::new();
    push_string(&mut out, text);
    out
}

/// Unicode noncharacters that XML does not allow.
const NONE: [char; 2] = ['\u{fffe}', '\u{ffff}'];

/// Name of a frame: the function, else its file.
fn called(function: Option<&str>, module: Option<&Name>) -> String {
    match (function, module) {
        (Some(function), _) if !function.is_empty() => plain(function.as_bytes()).into_owned(),
        (_, Some(module)) => format!("[{}]", plain(module.base())),
        _ => "[unknown]".to_owned(),
    }
}

/// Compresses the output of `write` with gzip, as readers of [`heaptrack`] expect of files whose
/// names end in `.gz`.
///
/// # Errors
/// Returns the error of `write` and `out`.
pub fn packed<T>(
    out: &mut dyn Write,
    write: impl FnOnce(&mut dyn Write) -> io::Result<T>,
) -> io::Result<T> {
    // Without a time and a file name in the header, equal input gives equal bytes.
    let mut gzip = GzBuilder::new().write(out, Compression::default());
    let written = write(&mut gzip)?;
    gzip.finish()?;
    Ok(written)
}
