//! `pagewise heap`: recordings of heaps, and what they say.

mod attach;
mod export;
mod record;

use std::fs::File;
use std::io::Write;
use std::path::Path;
use std::process::ExitCode;

use anyhow::Context;
use pagewise_analysis::heap::{self, At, By, Changed, DiffOptions, Direction, Options};
use pagewise_heap::resolve;
use pagewise_heaplog::reader;
use pagewise_model::heap::Recording;
use pagewise_trace::FileSymbols;
use pagewise_view::html;
use pagewise_view::text::Units;

pub(crate) use record::NO_LIBRARY;

use crate::args::heap::{Grown, Heap, HeapDiff, HeapReport, Moment, Way, What};
use crate::args::{Limit, Output};
use crate::look::Look;
use crate::output::{emit, emit_with_page};
use crate::plan::Usage;

/// Rows that people read, and that programs do: stacks of some dozen calls each.
const ROWS: usize = 10;
const DIFF_ROWS: usize = 20;
const ROWS_IN_JSON: usize = 10_000;

/// Does what was asked for.
pub(crate) fn run(args: &Heap, look: &Look) -> anyhow::Result<ExitCode> {
    match args {
        Heap::Run(args) => return record::run(args),
        Heap::Attach(args) => attach::run(args)?,
        Heap::Report(args) => report(args, look)?,
        Heap::Diff(args) => diff(args, look)?,
        Heap::Export(args) => export::run(args)?,
    }
    Ok(ExitCode::SUCCESS)
}

/// Reads a recording and looks up its functions and lines.
pub(crate) fn open(path: &Path) -> anyhow::Result<Recording> {
    let cannot = || format!("cannot read {}", path.display());
    let file = reader::read(File::open(path).with_context(cannot)?).with_context(cannot)?;
    Ok(resolve(&file.recording, file.cut.as_ref(), &mut FileSymbols::default()))
}

fn rows(wanted: Option<Limit>, output: &Output, usual: usize) -> Option<usize> {
    let usual = if output.json { ROWS_IN_JSON } else { usual };
    wanted.map_or(Some(usual), |limit| limit.0)
}

fn report(args: &HeapReport, look: &Look) -> anyhow::Result<()> {
    if args.at.is_some() && !matches!(args.by, What::Live) {
        let words =
            "--at is for what is live: --by allocated, calls and temporary are of all the time";
        return Err(Usage(words.to_owned()).into());
    }
    let recording = open(&args.file)?;
    let options = Options {
        limit: rows(args.top, &args.output, ROWS),
        threshold: args.threshold / 100.0,
        at: match args.at {
            None | Some(Moment::Peak) => At::Peak,
            Some(Moment::End) => At::End,
            Some(Moment::Time(time)) => At::Time(time),
        },
        by: match args.by {
            What::Live => By::Live,
            What::Allocated => By::Allocated,
            What::Calls => By::Calls,
            What::Temporary => By::Temporary,
        },
        tree: match args.tree {
            Way::BottomUp => Direction::BottomUp,
            Way::TopDown => Direction::TopDown,
        },
    };
    let report = heap::report(&recording, &options);
    let page = |out: &mut dyn Write| html::write_heap(&report, &recording, out);
    emit_with_page(&report, &args.output, look, Units::Human, page)
}

fn diff(args: &HeapDiff, look: &Look) -> anyhow::Result<()> {
    let (before, after) = (open(&args.before)?, open(&args.after)?);
    let options = DiffOptions {
        limit: rows(args.top, &args.output, DIFF_ROWS),
        by: match args.by {
            Grown::Peak => Changed::Peak,
            Grown::Leaked => Changed::Leaked,
            Grown::Allocated => Changed::Allocated,
            Grown::Calls => Changed::Calls,
        },
    };
    emit(&heap::diff(&before, &after, &options), &args.output, look, Units::Human)
}
