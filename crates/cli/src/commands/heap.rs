//! `pagewise heap`: recordings of heaps and their reports, and scans of heaps from outside.

pub(crate) mod args;
pub(crate) mod attach;
pub(crate) mod export;
mod record;
pub(crate) mod scan;
mod scan_code;

use std::fs::File;
use std::io::Write;
use std::path::Path;
use std::process::ExitCode;

use anyhow::Context;
use pagewise_analysis::heap::{
    self, DiffOptions, Direction, GrownQuantity, HeapOptions, TreeMoment, TreeQuantity,
};
use pagewise_heaplog::reader;
use pagewise_heapread::resolve;
use pagewise_model::heap::HeapRecording;
use pagewise_trace::FileSymbols;
use pagewise_view::html;
use pagewise_view::text::Units;

pub(crate) use record::NO_LIBRARY;

use crate::args::{OutputArgs, RowLimit};
use crate::commands::heap::args::{
    Grown, HeapCommand, HeapDiff, HeapReport, TimePoint, TreeRoot, TreeSum,
};
use crate::output::{emit, emit_with_page};
use crate::target::UsageError;
use crate::terminal::TerminalLook;

/// Default numbers of rows in text reports and in JSON. A row has a call stack of some dozen
/// frames.
const ROWS: usize = 10;
const DIFF_ROWS: usize = 20;
const ROWS_IN_JSON: usize = 10_000;

/// Runs a subcommand.
pub(crate) fn run(args: &HeapCommand, look: &TerminalLook) -> anyhow::Result<ExitCode> {
    match args {
        HeapCommand::Run(args) => return record::run(args),
        HeapCommand::Scan(args) => return scan::run(args, look),
        HeapCommand::Attach(args) => attach::run(args)?,
        HeapCommand::Report(args) => report(args, look)?,
        HeapCommand::Diff(args) => diff(args, look)?,
        HeapCommand::Export(args) => export::run(args)?,
    }
    Ok(ExitCode::SUCCESS)
}

/// Reads a recording and looks up its functions and lines.
pub(crate) fn open(path: &Path) -> anyhow::Result<HeapRecording> {
    let cannot = || format!("cannot read {}", path.display());
    let file = reader::read(File::open(path).with_context(cannot)?).with_context(cannot)?;
    Ok(resolve(&file.recording, file.cut.as_ref(), &mut FileSymbols::default()))
}

fn rows(wanted: Option<RowLimit>, output: &OutputArgs, usual: usize) -> Option<usize> {
    let usual = if output.json { ROWS_IN_JSON } else { usual };
    wanted.map_or(Some(usual), |limit| limit.0)
}

fn report(args: &HeapReport, look: &TerminalLook) -> anyhow::Result<()> {
    if args.at.is_some() && !matches!(args.by, TreeSum::Live) {
        let words =
            "--at is for what is live: --by allocated, calls and temporary are of all the time";
        return Err(UsageError(words.to_owned()).into());
    }
    let recording = open(&args.file)?;
    let options = HeapOptions {
        limit: rows(args.top, &args.output, ROWS),
        threshold: args.threshold / 100.0,
        at: match args.at {
            None | Some(TimePoint::Peak) => TreeMoment::Peak,
            Some(TimePoint::End) => TreeMoment::End,
            Some(TimePoint::Time(time)) => TreeMoment::Time(time),
        },
        by: match args.by {
            TreeSum::Live => TreeQuantity::Live,
            TreeSum::Allocated => TreeQuantity::Allocated,
            TreeSum::Calls => TreeQuantity::Calls,
            TreeSum::Temporary => TreeQuantity::Temporary,
        },
        tree: match args.tree {
            TreeRoot::BottomUp => Direction::BottomUp,
            TreeRoot::TopDown => Direction::TopDown,
        },
    };
    let report = heap::report(&recording, &options);
    let page = |out: &mut dyn Write| html::write_heap(&report, &recording, out);
    emit_with_page(&report, &args.output, look, Units::Human, page)
}

fn diff(args: &HeapDiff, look: &TerminalLook) -> anyhow::Result<()> {
    let (before, after) = (open(&args.before)?, open(&args.after)?);
    let options = DiffOptions {
        limit: rows(args.top, &args.output, DIFF_ROWS),
        by: match args.by {
            Grown::Peak => GrownQuantity::Peak,
            Grown::Leaked => GrownQuantity::Leaked,
            Grown::Allocated => GrownQuantity::Allocated,
            Grown::Calls => GrownQuantity::Calls,
        },
    };
    emit(&heap::diff(&before, &after, &options), &args.output, look, Units::Human)
}
