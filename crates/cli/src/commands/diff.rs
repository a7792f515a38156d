//! `pagewise diff`: what grew between two snapshots, or in a process while it runs.

use std::path::Path;
use std::process::ExitCode;
use std::thread;
use std::time::{Duration, Instant};

use pagewise_analysis::diff::{self, Options};
use pagewise_model::Snapshot;
use pagewise_proc::capture::{Request, capture};
use pagewise_proc::{Error, ProcRoot, saved, target};
use pagewise_view::text::Units;

use crate::args::Diff;
use crate::look::Look;
use crate::output::emit;
use crate::plan::wish;

/// How many pools and mappings a page shows; programs get all.
const ROWS: usize = 15;

/// Compares two files, or watches a process.
pub(crate) fn run(args: &Diff, look: &Look) -> anyhow::Result<ExitCode> {
    let largest = if args.output.json { usize::MAX } else { ROWS };
    let options = Options { largest, layout: args.layout };
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

/// A line each time, and at the end what changed from first to last.
fn watch(args: &Diff, every: Duration, options: &Options, look: &Look) -> anyhow::Result<()> {
    let (root, pid) = target::hold(&ProcRoot::live(), &args.before)?;
    root.check_access(pid)?;
    let request = Request { wish: wish(&args.reading), ..Request::default() };
    let begin = Instant::now();
    let first = capture(&root, pid, &request)?;
    let mut last = first.clone();
    while args.during.is_none_or(|during| begin.elapsed() + every <= during) {
        thread::sleep(every);
        let now = match capture(&root, pid, &request) {
            Ok(now) => now,
            // The end of the process is the end of the series, not a failure.
            Err(Error::NoSuchProcess { .. }) => break,
            Err(error) => return Err(error.into()),
        };
        row(&first, &last, &now, args, look)?;
        last = now;
    }
    if args.output.json {
        Ok(())
    } else {
        emit(&diff::diff(&first, &last, options), &args.output, look, Units::Human)
    }
}

fn row(
    first: &Snapshot,
    before: &Snapshot,
    now: &Snapshot,
    args: &Diff,
    look: &Look,
) -> anyhow::Result<()> {
    emit(&diff::series_row(first, before, now), &args.output, look, Units::Human)
}
