//! Profiles in the formats of other tools. [`collapsed`], [`flamegraph`], [`pprof`] and [`perfetto`] take the same
//! [`Profile`], and give the same counts.
//!
//! | format | opened by | merges | keeps |
//! |---|---|---|---|
//! | [`collapsed`] | flamegraph.pl, inferno, speedscope, `grep` | frames of one name | counts |
//! | [`flamegraph`] | any browser | frames of one name | counts, as far as they are wide enough to be seen |
//! | [`pprof`] | `go tool pprof`, pprof.me, Perfetto since the end of 2025, as a flame graph | nothing | all |
//! | [`perfetto`] | Perfetto of any version, `chrome://tracing`, on a track for each thread | places on one line | all but offsets |

pub mod collapsed;
pub mod flamegraph;
pub mod perfetto;
pub mod pprof;

use std::borrow::Cow;
use std::io;

use pagewise_model::name::escape;
use pagewise_model::traced::{Counted, Frame, Profile};

/// What a profile counts, refused where no reader could add it up: their numbers end at 2^63.
fn checked(profile: &Profile) -> io::Result<()> {
    let all = |of: &dyn Fn(&Counted) -> u64| {
        let sum = profile.samples.iter().try_fold(0, |sum: u64, it| sum.checked_add(of(it)));
        sum.and_then(|sum| i64::try_from(sum).ok()).is_some()
    };
    if all(&|it| it.count) && all(&|it| it.took_ns.unwrap_or(0)) {
        return Ok(());
    }
    Err(io::Error::new(
        io::ErrorKind::InvalidData,
        "the counts of this profile add up to more than 2^63",
    ))
}

/// The frames of what was counted, the innermost first. None where the profile has no such stack.
fn frames<'p>(profile: &'p Profile, counted: &Counted) -> &'p [Frame] {
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

/// No characters, as Unicode has it, and not allowed in XML.
const NONE: [char; 2] = ['\u{fffe}', '\u{ffff}'];

/// What a frame is called: the function, else the file that it is in.
fn called(frame: &Frame) -> String {
    match (&frame.function, &frame.module) {
        (Some(function), _) if !function.is_empty() => plain(function.as_bytes()).into_owned(),
        (_, Some(module)) => format!("[{}]", plain(module.base())),
        _ => "[unknown]".to_owned(),
    }
}
