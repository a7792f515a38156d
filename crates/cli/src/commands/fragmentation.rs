//! `pagewise fragmentation`: free memory by block size, once or at intervals.

use std::path::PathBuf;
use std::process::ExitCode;
use std::thread;
use std::time::{Duration, Instant};

use clap::Args;
use pagewise_analysis::fragmentation::{fragmentation, series_row, since};
use pagewise_proc::{ProcRoot, fragmentation::read};
use pagewise_view::text::Units;

use crate::args::OutputArgs;
use crate::output::emit;
use crate::target::root;
use crate::terminal::TerminalLook;

#[derive(Debug, Args)]
pub(crate) struct FragmentationArgs {
    /// Repeat the report every TIME, with the counts since the previous report
    #[arg(long, value_name = "TIME", value_parser = humantime::parse_duration, conflicts_with = "root")]
    pub(crate) every: Option<Duration>,
    /// Stop after TIME, and report the counts since the start; default: continue until Ctrl-C
    #[arg(long = "for", value_name = "TIME", value_parser = humantime::parse_duration, requires = "every")]
    pub(crate) during: Option<Duration>,
    /// Read a copy of the /proc tree instead of /proc; DIR/sysfs holds the files of /sys
    #[arg(long, value_name = "DIR")]
    pub(crate) root: Option<PathBuf>,
    #[command(flatten)]
    pub(crate) output: OutputArgs,
}

/// Reports the free memory.
pub(crate) fn run(args: &FragmentationArgs, look: &TerminalLook) -> anyhow::Result<ExitCode> {
    match args.every {
        Some(every) => watch(args, every, look)?,
        None => {
            let root = root(args.root.as_deref());
            // A missing tree is an error. Without this check, the report would have only unknown
            // values.
            root.pids()?;
            let now = read(&root);
            emit(&fragmentation(&now), &args.output, look, Units::Human)?;
        }
    }
    Ok(ExitCode::SUCCESS)
}

/// Reports at each interval, and at the end the counts since the start.
fn watch(args: &FragmentationArgs, every: Duration, look: &TerminalLook) -> anyhow::Result<()> {
    let root = ProcRoot::live();
    let begin = Instant::now();
    let first = read(&root);
    let mut last = first.clone();
    while args.during.is_none_or(|during| begin.elapsed() + every <= during) {
        thread::sleep(every);
        let now = read(&root);
        emit(&series_row(&first, &last, &now), &args.output, look, Units::Human)?;
        last = now;
    }
    if args.output.json {
        Ok(())
    } else {
        emit(&since(&first, &last), &args.output, look, Units::Human)
    }
}
