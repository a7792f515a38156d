//! A trace for Perfetto and `chrome://tracing`: one track for each thread, and call stacks as
//! nested slices whose widths are counts.
//!
//! The file contains only complete JSON trace events, which all versions of both viewers read.
//! Perfetto ignores samples of call stacks (`P`, `stackFrames`) in JSON. Its own format needs one
//! packet with a time for each sample, so a hundred thousand page faults would become as many
//! packets, without durations. For a flame graph without tracks and SQL, Perfetto opens the format
//! of [`super::pprof`].
//!
//! **The axis is not time.** The counts have no order: a microsecond represents one event. Each
//! slice has the exact count.

use std::io::{self, Write};

use pagewise_model::Name;
use pagewise_model::traced::{Frame, SourcePosition, StackCount, StackProfile};

use super::{called, checked, frames, plain, string};

/// Writes a profile. Counts with labels or a duration become separate slices inside the slice of
/// the innermost frame.
///
/// # Errors
/// Returns the error of `out`; `InvalidData` for counts whose sum reaches 2^63.
pub fn write(profile: &StackProfile, out: &mut dyn Write) -> io::Result<()> {
    checked(profile)?;
    let what = if profile.what.is_empty() { "samples" } else { &profile.what };
    out.write_all(b"{\"displayTimeUnit\":\"ns\",\"otherData\":{\"axis\":")?;
    out.write_all(&string(&format!("1 us is one of: {what}")))?;
    out.write_all(b",\"took_ns\":")?;
    out.write_all(&string(&profile.took_ns.to_string()))?;
    out.write_all(b"},\"traceEvents\":[")?;
    for (at, slice) in slices(profile).iter().enumerate() {
        out.write_all(if at > 0 { b",\n" } else { b"\n" })?;
        slice.write(what, out)?;
    }
    out.write_all(b"\n]}\n")
}

/// PID and thread ID; `None` if the profile does not distinguish threads.
type TrackThread = Option<(u32, u32)>;

/// An event of the trace file.
#[derive(Debug)]
enum TrackSlice<'p> {
    /// Sets the name of a process, which also states the unit of the axis.
    Process {
        thread: TrackThread,
    },
    Frame {
        thread: TrackThread,
        start: u64,
        count: u64,
        frame: &'p Frame,
    },
    Sample {
        thread: TrackThread,
        start: u64,
        counted: &'p StackCount,
    },
}

/// Identity of a frame for merging adjacent frames: function, file, source line, and the offset if
/// the function is unknown.
type SliceFrame<'p> = (Option<&'p str>, Option<&'p Name>, Option<&'p SourcePosition>, Option<u64>);

fn key(frame: &Frame) -> SliceFrame<'_> {
    let offset = frame.function.is_none().then_some(frame.offset);
    (frame.function.as_deref(), frame.module.as_ref(), frame.line.as_ref(), offset)
}

/// All slices. Each slice precedes the slices inside it.
fn slices(profile: &StackProfile) -> Vec<TrackSlice<'_>> {
    let samples = profile.samples.iter().filter(|counted| counted.count > 0);
    let path = |counted: &StackCount| frames(profile, counted).iter().rev().map(key).collect();
    let mut rows: Vec<(TrackThread, Vec<SliceFrame<'_>>, &StackCount)> =
        samples.map(|counted| (counted.thread, path(counted), counted)).collect();
    rows.sort_by(|a, b| (a.0, &a.1, &a.2.labels).cmp(&(b.0, &b.1, &b.2.labels)));
    let mut slices = Vec::new();
    // Frames of the current call stack, with their indices in `slices`.
    let mut open: Vec<(SliceFrame<'_>, usize)> = Vec::new();
    let mut last = None;
    let mut now = 0;
    for (thread, path, counted) in rows {
        if last != Some(thread) {
            if last.flatten().map(|(pid, _)| pid) != thread.map(|(pid, _)| pid) || last.is_none() {
                slices.push(TrackSlice::Process { thread });
            }
            (last, now) = (Some(thread), 0);
            open.clear();
        }
        let same = open.iter().zip(&path).take_while(|((open, _), key)| open == *key).count();
        open.truncate(same);
        let stack = frames(profile, counted).iter().rev().zip(&path).skip(same);
        for (frame, key) in stack {
            open.push((*key, slices.len()));
            slices.push(TrackSlice::Frame { thread, start: now, count: 0, frame });
        }
        for (_, at) in &open {
            if let Some(TrackSlice::Frame { count, .. }) = slices.get_mut(*at) {
                *count += counted.count;
            }
        }
        if path.is_empty() || counted.took_ns.is_some() || !counted.labels.is_empty() {
            slices.push(TrackSlice::Sample { thread, start: now, counted });
        }
        now += counted.count;
    }
    slices
}

impl TrackSlice<'_> {
    fn write(&self, what: &str, out: &mut dyn Write) -> io::Result<()> {
        match self {
            TrackSlice::Process { thread } => {
                let (pid, tid) = numbers(*thread);
                let name = match thread {
                    Some((pid, _)) => format!("{pid}: {what}, 1 us each"),
                    None => format!("{what}, 1 us each"),
                };
                write!(
                    out,
                    "{{\"ph\":\"M\",\"name\":\"process_name\",\"pid\":{pid},\"tid\":{tid},\"args\":{{\"name\":"
                )?;
                out.write_all(&string(&name))?;
                out.write_all(b"}}")
            }
            TrackSlice::Frame { thread, start, count, frame } => {
                let called = called(frame.function.as_deref(), frame.module.as_ref());
                let name = match &frame.function {
                    Some(_) => called,
                    None => format!("{called}+{:#x}", frame.offset),
                };
                let module = frame.module.as_ref().map(|name| plain(name.as_bytes()).into_owned());
                let source =
                    frame.line.as_ref().map(|line| format!("{}:{}", line.file, line.number));
                let inlined = frame.inlined.then(|| "yes".to_owned());
                let words = [("module", module), ("source", source), ("inlined", inlined)];
                let words = words.into_iter().filter_map(|(key, value)| Some((key, value?)));
                complete(out, (*thread, *start, *count), &name, None, words)
            }
            TrackSlice::Sample { thread, start, counted } => {
                let values: Vec<&str> = counted.labels.iter().map(|(_, value)| &**value).collect();
                let name = if values.is_empty() { what.to_owned() } else { values.join(", ") };
                let words = counted.labels.iter().map(|(key, value)| (&**key, value.clone()));
                complete(out, (*thread, *start, counted.count), &name, counted.took_ns, words)
            }
        }
    }
}

/// PID and thread ID of a track. If the profile does not distinguish threads, both are 2^30: real
/// PIDs are below 2^22, and viewers treat 0 specially.
fn numbers(thread: TrackThread) -> (u32, u32) {
    thread.unwrap_or((1 << 30, 1 << 30))
}

fn complete<'a>(
    out: &mut dyn Write,
    (thread, start, count): (TrackThread, u64, u64),
    name: &str,
    took_ns: Option<u64>,
    words: impl Iterator<Item = (&'a str, String)>,
) -> io::Result<()> {
    let (pid, tid) = numbers(thread);
    write!(
        out,
        "{{\"ph\":\"X\",\"pid\":{pid},\"tid\":{tid},\"ts\":{start},\"dur\":{count},\"name\":"
    )?;
    out.write_all(&string(name))?;
    write!(out, ",\"args\":{{\"count\":{count}")?;
    if let Some(took) = took_ns {
        write!(out, ",\"took_ns\":{took}")?;
    }
    for (key, value) in words {
        out.write_all(b",")?;
        out.write_all(&string(key))?;
        out.write_all(b":")?;
        out.write_all(&string(&value))?;
    }
    out.write_all(b"}}")
}
