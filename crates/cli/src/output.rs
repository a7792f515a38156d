//! Destinations of a report: standard output or files, as text, JSON or HTML.

use std::fmt::Display;
use std::io::{self, BufWriter, Write};
use std::path::Path;
use std::time::Duration;

use anyhow::Context;
use pagewise_model::Report;
use pagewise_model::report::ReportTable;
use pagewise_model::traced::StackProfile;
use pagewise_sys::output_file::{self, FileReaders};
use pagewise_view::text::Units;
use pagewise_view::{csv, export, html, json, text};

use crate::args;
use crate::terminal::TerminalLook;

/// Large enough that a page of 65,000 rows takes few system calls.
const BUFFER: usize = 256 << 10;

/// Writes a report as its options say. `--html` alone prints nothing on standard output.
pub(crate) fn emit(
    report: &Report,
    output: &args::OutputArgs,
    look: &TerminalLook,
    usual: Units,
) -> anyhow::Result<()> {
    emit_with_page(report, output, look, usual, |out| html::write(report, out))
}

/// [`emit`] for reports whose HTML page has more than the report.
pub(crate) fn emit_with_page(
    report: &Report,
    output: &args::OutputArgs,
    look: &TerminalLook,
    usual: Units,
    page: impl FnOnce(&mut dyn Write) -> io::Result<()>,
) -> anyhow::Result<()> {
    if let Some(path) = &output.html {
        into_file(path, page)?;
    }
    let draw = |out: &mut dyn Write, look: &TerminalLook| {
        if output.json {
            json::write(report, out)
        } else {
            text::write(report, &look.style(output.long, usual), out)
        }
    };
    match &output.output {
        Some(path) => into_file(path, |out| draw(out, &look.for_file())),
        None if output.html.is_some() && !output.json => Ok(()),
        None => to_stdout(|out| draw(out, look)),
    }
}

/// [`emit`] for commands of pagewise that run a command: the text report goes to standard error, so
/// that standard output has only the output of that command.
pub(crate) fn emit_beside(
    report: &Report,
    output: &args::OutputArgs,
    look: &TerminalLook,
    usual: Units,
) -> anyhow::Result<()> {
    let goes_to_stderr = output.output.is_none() && output.html.is_none() && !output.json;
    if !goes_to_stderr {
        return emit(report, output, look, usual);
    }
    let mut out = BufWriter::with_capacity(BUFFER, io::stderr().lock());
    let drawn = text::write(report, &look.style(output.long, usual), &mut out);
    drawn.and_then(|()| out.flush()).context("cannot write to standard error")
}

/// Writes a table as CSV to standard output or where the options say.
pub(crate) fn emit_csv(table: &ReportTable, output: &args::OutputArgs) -> anyhow::Result<()> {
    match &output.output {
        Some(path) => into_file(path, |out| csv::write(table, out)),
        None => to_stdout(|out| csv::write(table, out)),
    }
}

/// Writes call stacks to the requested files. `profile` is called only if a file is requested.
pub(crate) fn export(
    exports: &args::Exports,
    title: &str,
    profile: impl FnOnce() -> StackProfile,
) -> anyhow::Result<()> {
    let args::Exports { flamegraph, collapsed, pprof, perfetto } = exports;
    if [flamegraph, collapsed, pprof, perfetto].into_iter().all(Option::is_none) {
        return Ok(());
    }
    let profile = profile();
    if let Some(path) = flamegraph {
        into_file(path, |out| export::flamegraph::write(&profile, title, out))?;
    }
    if let Some(path) = collapsed {
        into_file(path, |out| export::collapsed::write(&profile, out))?;
    }
    if let Some(path) = pprof {
        into_file(path, |out| export::pprof::write(&profile, out))?;
    }
    if let Some(path) = perfetto {
        into_file(path, |out| export::perfetto::write(&profile, out))?;
    }
    Ok(())
}

/// Writes to standard output and flushes it, so that a full disk or a closed pipe is noticed.
pub(crate) fn to_stdout(draw: impl FnOnce(&mut dyn Write) -> io::Result<()>) -> anyhow::Result<()> {
    let mut out = BufWriter::with_capacity(BUFFER, io::stdout().lock());
    draw(&mut out).and_then(|()| out.flush()).context("cannot write to standard output")
}

/// Writes a report into a file; see [`output_file`].
pub(crate) fn into_file(
    path: &Path,
    draw: impl FnOnce(&mut dyn Write) -> io::Result<()>,
) -> anyhow::Result<()> {
    write_file(path, FileReaders::Umask, draw)
}

/// Writes a recording into a file, which its owner alone can read.
pub(crate) fn save(
    path: &Path,
    draw: impl FnOnce(&mut dyn Write) -> io::Result<()>,
) -> anyhow::Result<()> {
    write_file(path, FileReaders::Owner, draw)
}

fn write_file(
    path: &Path,
    access: FileReaders,
    draw: impl FnOnce(&mut dyn Write) -> io::Result<()>,
) -> anyhow::Result<()> {
    let written = output_file::write(path, access, draw);
    written.with_context(|| format!("cannot write {}", path.display()))
}

/// Prints a line for people on standard error. An error is ignored: it could not be reported
/// elsewhere.
pub(crate) fn note(text: impl Display) {
    write_stderr(&format!("pagewise: {text}\n"));
}

/// Prints that a recording has begun, and when it ends. From then on, no event is missed.
pub(crate) fn note_begin(recorded: impl Display, during: Option<Duration>) {
    match during {
        Some(time) => {
            note(format_args!("recording {recorded} for {}", humantime::format_duration(time)));
        }
        None => note(format_args!("recording {recorded}; Ctrl-C ends it")),
    }
}

/// Prints text on standard error as it is; see [`note`].
pub(crate) fn write_stderr(text: &str) {
    let _ = io::stderr().lock().write_all(text.as_bytes());
}
