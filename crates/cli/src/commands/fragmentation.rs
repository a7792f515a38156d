//! `pagewise fragmentation`: free memory by block size, once or again and again.

use std::process::ExitCode;
use std::thread;
use std::time::{Duration, Instant};

use pagewise_analysis::fragmentation::{fragmentation, series_row, since};
use pagewise_proc::{ProcRoot, fragmentation::read};
use pagewise_view::text::Units;

use crate::args::Fragmentation;
use crate::look::Look;
use crate::output::emit;
use crate::plan::root;

/// Reads the free memory and draws it.
pub(crate) fn run(args: &Fragmentation, look: &Look) -> anyhow::Result<ExitCode> {
    match args.every {
        Some(every) => watch(args, every, look)?,
        None => {
            let root = root(args.root.as_deref());
            // A tree that is not there is an error, not a machine of which nothing is known.
            root.pids()?;
            let now = read(&root);
            emit(&fragmentation(&now), &args.output, look, Units::Human)?;
        }
    }
    Ok(ExitCode::SUCCESS)
}

/// A line each time, and at the end what was counted from first to last.
fn watch(args: &Fragmentation, every: Duration, look: &Look) -> anyhow::Result<()> {
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
