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
use pagewise_model::name::escape;
use pagewise_model::traced::{Frame, StackCount, StackProfile};

use crate::json::push_string;

/// Checks the counts of a profile: sums of readers end at 2^63.
fn checked(profile: &StackProfile) -> io::Result<()> {
    addable(profile.samples.iter().map(|counted| counted.count))?;
    addable(profile.samples.iter().filter_map(|counted| counted.took_ns))
}

/// Numbers refused where no reader could add them up.
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

/// The frames of what was counted, the innermost first. None where the profile has no such stack.
fn frames<'p>(profile: &'p StackProfile, counted: &StackCount) -> &'p [Frame] {
    let stack = usize::try_from(counted.stack).ok().and_then(|at| profile.stacks.get(at));
    stack.map_or(&[], Vec::as_slice)
}

/// Text with nothing in it that steers a terminal or that XML does not allow.
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

/// No characters, as Unicode has it, and not allowed in XML.
const NONE: [char; 2] = ['\u{fffe}', '\u{ffff}'];

/// Name of a frame: the function, else its file.
fn called(function: Option<&str>, module: Option<&Name>) -> String {
    match (function, module) {
        (Some(function), _) if !function.is_empty() => plain(function.as_bytes()).into_owned(),
        (_, Some(module)) => format!("[{}]", plain(module.base())),
        _ => "[unknown]".to_owned(),
    }
}

/// Packs what is written by gzip, as readers of [`heaptrack`] expect of files whose names end in
/// `.gz`.
///
/// # Errors
/// Returns the error of `write` and `out`.
pub fn packed<T>(
    out: &mut dyn Write,
    write: impl FnOnce(&mut dyn Write) -> io::Result<T>,
) -> io::Result<T> {
    // No moment and no name of a file: the same makes the same bytes.
    let mut gzip = GzBuilder::new().write(out, Compression::default());
    let written = write(&mut gzip)?;
    gzip.finish()?;
    Ok(written)
}
