//! The heap over time as counters: JSON trace events that Perfetto and `chrome://tracing` draw as
//! tracks.

use std::io::{self, Write};

use pagewise_model::heap::{HeapRecording, HeapSnapshot};

use super::string;

/// Writes one track for each of these values: live bytes, allocator footprint, resident bytes in
/// total and by kind, live blocks, allocations. Times are relative to the start of the recording.
///
/// If a value is unknown at a snapshot, its track has no event there, and viewers continue the
/// previous value.
///
/// # Errors
/// Returns the error of `out`.
pub fn write(recording: &HeapRecording, out: &mut dyn Write) -> io::Result<()> {
    let pid = recording.pid.0;
    let words: Vec<_> = recording.command.iter().map(|word| word.escaped()).collect();
    writeln!(out, "{{\"displayTimeUnit\":\"ns\",\"traceEvents\":[")?;
    write!(out, "{{\"ph\":\"M\",\"name\":\"process_name\",\"pid\":{pid},\"args\":{{\"name\":")?;
    out.write_all(&string(&words.join(" ")))?;
    out.write_all(b"}}")?;
    for moment in &recording.moments {
        for (name, value) in tracks(moment) {
            let Some(value) = value else { continue };
            let time = micros(moment.time_ns);
            // Viewers add the name of an argument to the track's name, unless the argument is
            // `value`.
            write!(
                out,
                ",\n{{\"ph\":\"C\",\"pid\":{pid},\"name\":\"{name}\",\"ts\":{time},\"args\":{{\"value\":{value}}}}}"
            )?;
        }
    }
    if let Ok(at) = &recording.peak_at_ns {
        write!(
            out,
            ",\n{{\"ph\":\"i\",\"s\":\"p\",\"pid\":{pid},\"tid\":{pid},\"name\":\"peak\",\"ts\":{},\"args\":{{\"live_bytes\":{},\"live_blocks\":{}}}}}",
            micros(*at),
            recording.totals.peak.bytes,
            recording.totals.peak.blocks
        )?;
    }
    out.write_all(b"\n]}\n")
}

/// Names and values of all tracks at a snapshot.
fn tracks(moment: &HeapSnapshot) -> [(&'static str, Option<u64>); 9] {
    let resident = moment.resident.as_ref().ok();
    [
        ("live bytes", Some(moment.live.bytes)),
        ("held bytes", moment.held.as_ref().ok().map(|held| held.0)),
        ("resident bytes", resident.map(|it| it.rss())),
        ("RssAnon bytes", resident.map(|it| it.anonymous)),
        ("RssFile bytes", resident.map(|it| it.file)),
        ("RssShmem bytes", resident.map(|it| it.shmem)),
        ("VmSwap bytes", resident.map(|it| it.swap)),
        ("live blocks", Some(moment.live.blocks)),
        ("allocations", Some(moment.allocated.blocks)),
    ]
}

/// Microseconds with three decimals.
fn micros(nanos: u64) -> String {
    format!("{}.{:03}", nanos / 1000, nanos % 1000)
}
