//! A trace that Perfetto and `chrome://tracing` open: a track for each thread, call stacks as slices in each other, as wide
//! as what was counted in them.
//!
//! It is of JSON trace events, and of complete events only. Both viewers read these, in every version; samples of call
//! stacks (`P`, `stackFrames`) Perfetto does not read from JSON, and its own samples have one moment each: a hundred
//! thousand page faults would become as many packets, and how long they took would be lost. Where the flame graph is wanted,
//! and not tracks and SQL, Perfetto opens [`super::pprof`].
//!
//! **The axis is no time.** What was counted has no order any more: a microsecond is one of it. Each slice says the exact
//! count.

use std::io::{self, Write};

use pagewise_model::Name;
use pagewise_model::traced::{Counted, Frame, Line, Profile};

use super::{called, checked, frames, plain, string};

/// Writes a profile. What has labels or a duration is a slice of its own in the innermost frame.
///
/// # Errors
/// What `out` returns; `InvalidData` for counts that add up to more than 2^63.
pub fn write(profile: &Profile, out: &mut dyn Write) -> io::Result<()> {
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

/// A process and a thread.
type Thread = Option<(u32, u32)>;

/// Something to draw.
#[derive(Debug)]
enum Slice<'p> {
    /// What a process is called. Tracks of one thread say what the axis is.
    Process {
        thread: Thread,
    },
    Frame {
        thread: Thread,
        start: u64,
        count: u64,
        frame: &'p Frame,
    },
    Sample {
        thread: Thread,
        start: u64,
        counted: &'p Counted,
    },
}

/// What tells frames apart that are drawn next to each other. Places on one line of a function are drawn as one.
type Key<'p> = (Option<&'p str>, Option<&'p Name>, Option<&'p Line>, Option<u64>);

fn key(frame: &Frame) -> Key<'_> {
    let offset = frame.function.is_none().then_some(frame.offset);
    (frame.function.as_deref(), frame.module.as_ref(), frame.line.as_ref(), offset)
}

/// All slices, each before those in it.
fn slices(profile: &Profile) -> Vec<Slice<'_>> {
    let samples = profile.samples.iter().filter(|counted| counted.count > 0);
    let path = |counted: &Counted| frames(profile, counted).iter().rev().map(key).collect();
    let mut rows: Vec<(Thread, Vec<Key<'_>>, &Counted)> =
        samples.map(|counted| (counted.thread, path(counted), counted)).collect();
    rows.sort_by(|a, b| (a.0, &a.1, &a.2.labels).cmp(&(b.0, &b.1, &b.2.labels)));
    let mut slices = Vec::new();
    // The frames that are open, by their places among the slices.
    let mut open: Vec<(Key<'_>, usize)> = Vec::new();
    let mut last = None;
    let mut now = 0;
    for (thread, path, counted) in rows {
        if last != Some(thread) {
            if last.flatten().map(|(pid, _)| pid) != thread.map(|(pid, _)| pid) || last.is_none() {
                slices.push(Slice::Process { thread });
            }
            (last, now) = (Some(thread), 0);
            open.clear();
        }
        let same = open.iter().zip(&path).take_while(|((open, _), key)| open == *key).count();
        open.truncate(same);
        let stack = frames(profile, counted).iter().rev().zip(&path).skip(same);
        for (frame, key) in stack {
            open.push((*key, slices.len()));
            slices.push(Slice::Frame { thread, start: now, count: 0, frame });
        }
        for (_, at) in &open {
            if let Some(Slice::Frame { count, .. }) = slices.get_mut(*at) {
                *count += counted.count;
            }
        }
        if path.is_empty() || counted.took_ns.is_some() || !counted.labels.is_empty() {
            slices.push(Slice::Sample { thread, start: now, counted });
        }
        now += counted.count;
    }
    slices
}

impl Slice<'_> {
    fn write(&self, what: &str, out: &mut dyn Write) -> io::Result<()> {
        match self {
            Slice::Process { thread } => {
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
            Slice::Frame { thread, start, count, frame } => {
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
            Slice::Sample { thread, start, counted } => {
                let values: Vec<&str> = counted.labels.iter().map(|(_, value)| &**value).collect();
                let name = if values.is_empty() { what.to_owned() } else { values.join(", ") };
                let words = counted.labels.iter().map(|(key, value)| (&**key, value.clone()));
                complete(out, (*thread, *start, counted.count), &name, counted.took_ns, words)
            }
        }
    }
}

/// Where nothing tells threads apart, numbers that no process has: they end at 2^22, and viewers have a meaning for 0.
fn numbers(thread: Thread) -> (u32, u32) {
    thread.unwrap_or((1 << 30, 1 << 30))
}

fn complete<'a>(
    out: &mut dyn Write,
    (thread, start, count): (Thread, u64, u64),
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
