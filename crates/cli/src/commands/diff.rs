//! `pagewise diff`: memory growth between two snapshots, or of a running process.

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::thread;
use std::time::{Duration, Instant};

use clap::Args;
use pagewise_analysis::diff::{self, SnapshotDiffOptions};
use pagewise_model::Report;
use pagewise_model::report::ReportBlock;
use pagewise_proc::capture::{CaptureRequest, capture};
use pagewise_proc::{ProcError, ProcRoot, saved, target};
use pagewise_view::text::{Units, write_series_line};

use crate::args::{OutputArgs, ReadingArgs};
use crate::output::{emit, to_stdout};
use crate::target::wish;
use crate::terminal::TerminalLook;

#[derive(Debug, Args)]
pub(crate) struct Diff {
    /// The earlier snapshot: a file that `pagewise explain --save` wrote. With --every, the
    /// process: a PID, a process name, or a part of a name that matches one process only
    #[arg(value_name = "A")]
    pub(crate) before: String,
    /// The later snapshot, also a file
    #[arg(value_name = "B", required_unless_present = "every", conflicts_with = "every")]
    pub(crate) after: Option<PathBuf>,
    /// Read the process every TIME, and report the growth since the previous reading
    #[arg(long, value_name = "TIME", value_parser = humantime::parse_duration)]
    pub(crate) every: Option<Duration>,
    /// Stop after TIME, and report the growth since the start; default: stop when the process ends
    #[arg(long = "for", value_name = "TIME", value_parser = humantime::parse_duration, requires = "every")]
    pub(crate) during: Option<Duration>,
    /// Show the mappings that have another address in the later snapshot, for example by ASLR
    #[arg(long)]
    pub(crate) layout: bool,
    #[command(flatten)]
    pub(crate) reading: ReadingArgs,
    #[command(flatten)]
    pub(crate) output: OutputArgs,
}

/// Maximum number of pools and mappings in the text report; programs get all.
const ROWS: usize = 15;
/// Number of lines of a series after which the column labels are printed again.
const LABELS_EVERY: u32 = 20;

/// Compares two files, or watches a process.
pub(crate) fn run(args: &Diff, look: &TerminalLook) -> anyhow::Result<ExitCode> {
    let largest = if args.output.json { usize::MAX } else { ROWS };
    let options = SnapshotDiffOptions { largest, layout: args.layout };
    match (&args.after, args.every) {
        (Some(after), _) => {
            let before = saved::open(Path::new(&args.before))?;
            let report = diff::diff(&before, &saved::open(after)?, &options);
            emit(&report, &args.output, look, Units::Human)?;
        }
        (None, every) => watch(args, every.unwrap_or_default(), &options, look)?,
    }
    Ok(ExitCode::SUCCESS)
}

/// Prints a line for each reading, and at the end the changes from the first reading to the last
/// one.
fn watch(
    args: &Diff,
    every: Duration,
    options: &SnapshotDiffOptions,
    look: &TerminalLook,
) -> anyhow::Result<()> {
    let (root, pid) = target::hold(&ProcRoot::live(), &args.before)?;
    root.check_access(pid)?;
    let request = CaptureRequest { wish: wish(&args.reading), ..CaptureRequest::default() };
    let begin = Instant::now();
    let first = capture(&root, pid, &request)?;
    let mut last = first.clone();
    let mut lines = 0;
    while args.during.is_none_or(|during| begin.elapsed() + every <= during) {
        thread::sleep(every);
        let now = match capture(&root, pid, &request) {
            Ok(now) => now,
            // The end of the process is the end of the series, not a failure.
            Err(ProcError::NoSuchProcess { .. }) => break,
            Err(error) => return Err(error.into()),
        };
        let line = diff::series_row(&first, &last, &now);
        if args.output.json {
            emit(&line, &args.output, look, Units::Human)?;
        } else {
            print_line(&line, lines % LABELS_EVERY == 0, args, look)?;
        }
        lines += 1;
        last = now;
    }
    if args.output.json {
        Ok(())
    } else {
        emit(&diff::diff(&first, &last, options), &args.output, look, Units::Human)
    }
}

/// Prints one line of the series on standard output.
fn print_line(
    line: &Report,
    has_labels: bool,
    args: &Diff,
    look: &TerminalLook,
) -> anyhow::Result<()> {
    let style = look.style(args.output.long, Units::Human);
    let facts = line.blocks.iter().filter_map(|block| match block {
        ReportBlock::Facts(facts) => Some(facts),
        _ => None,
    });
    facts
        .into_iter()
        .try_for_each(|facts| to_stdout(|out| write_series_line(facts, &style, has_labels, out)))
}
