//! The time line of a heap as counters: JSON trace events that Perfetto and `chrome://tracing` draw
//! as tracks.

use std::io::{self, Write};

use pagewise_model::heap::{HeapRecording, HeapSnapshot};

use super::string;

/// Writes a track each for live, held and resident bytes, for live blocks and for allocations.
/// Times are those since the recording began.
///
/// A snapshot in which a value is unknown has no event on its track: viewers keep the value before.
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
            // Viewers leave an argument with the name `value` out of the name of its track.
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

/// The tracks of a moment by name.
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

/// Microseconds, with all digits.
fn micros(nanos: u64) -> String {
    format!("{}.{:03}", nanos / 1000, nanos % 1000)
}
