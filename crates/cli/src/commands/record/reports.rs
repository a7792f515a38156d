//! Reports of a recording.

use std::process::ExitCode;

use anyhow::{Context, bail};
use pagewise_analysis::sweeps::{
    self, CATEGORIES_NS, ComparedSweeps, PeriodSummary, RecordOptions, RecordedMoment,
};
use pagewise_model::sweep::{CategorySample, Sweep};
use pagewise_model::units::nanoseconds;
use pagewise_model::{Name, Report};
use pagewise_store::RecordReader;
use pagewise_view::text::Units;

use super::args::{RecordDiffArgs, ReplayArgs, ReportArgs, RowArgs};
use super::times::{self, now_ns, time};
use crate::args::OutputArgs;
#[cfg(feature = "top")]
use crate::commands::top;
use crate::output::emit;
use crate::target::UsageError;
use crate::terminal::TerminalLook;

/// Time before and after the shown time, in nanoseconds, whose events are shown too.
const AROUND_NS: u64 = 300_000_000_000;
/// Usual time between two sweeps, in nanoseconds, to estimate the number of sweeps.
const USUAL_INTERVAL_NS: u64 = 5_000_000_000;

fn look_at(output: &OutputArgs, rows: &RowArgs, at_ns: u64) -> RecordOptions {
    let options = times::options(rows, at_ns);
    // JSON has all rows.
    RecordOptions { rows: if output.json { usize::MAX } else { options.rows }, ..options }
}

fn print(report: &Report, output: &OutputArgs, look: &TerminalLook) -> anyhow::Result<ExitCode> {
    emit(report, output, look, Units::Human)?;
    Ok(ExitCode::SUCCESS)
}

/// Reports a period of a recording.
pub(super) fn report(args: &ReportArgs, look: &TerminalLook) -> anyhow::Result<ExitCode> {
    let now = now_ns();
    let (from, to) = (time(&args.from, now)?, time(&args.to, now)?);
    if from >= to {
        return Err(UsageError("--from must be before --to".into()).into());
    }
    let reader = RecordReader::open(&times::folder(&args.folder))?;
    let mut summary = PeriodSummary::new(reader.events(from, to), (to - from) / USUAL_INTERVAL_NS);
    let mut cursor = reader.sweeps(from, to);
    let mut sweeps = 0;
    while let Some(sweep) = cursor.next_sweep() {
        summary.add(sweep);
        sweeps += 1;
    }
    if sweeps == 0 {
        bail!("the recording in {} has no sweeps of this time", reader.folder().display());
    }
    summary.add_gaps(cursor.gaps());
    let categories = reader.categories(from, to);
    let saved: Vec<_> = reader
        .saved_files(from, to)
        .into_iter()
        .map(|(time, kind, file)| (time, kind, Name::new(file.as_os_str().as_encoded_bytes())))
        .collect();
    let options = look_at(&args.output, &args.rows, to);
    let report = sweeps::period(&summary, &categories, &saved, options);
    print(&report, &args.output, look)
}

/// Shows all processes at one time of a recording.
pub(super) fn replay(args: &ReplayArgs, look: &TerminalLook) -> anyhow::Result<ExitCode> {
    let at = time(&args.at, now_ns())?;
    let reader = RecordReader::open(&times::folder(&args.folder))?;
    #[cfg(feature = "top")]
    if top::is_for_terminal(&args.output) {
        let offset = times::utc_offset(at);
        return top::replay(top::StoredSweeps(reader), Some(at), offset, look);
    }
    let sweep = sweep_at(&reader, at)?;
    let over = nanoseconds(args.over).max(1);
    let earlier = |at_ns| reader.at(at_ns).ok().flatten();
    let before = earlier(sweep.time.unix_ns.saturating_sub(over))
        .or_else(|| earlier(reader.last_before(sweep.time.unix_ns).ok().flatten()?.unix_ns));
    // Counters since boot cannot be compared across a reboot.
    let before = before.filter(|it| it.time.boot_ns < sweep.time.boot_ns);
    let around = sweep.time.unix_ns;
    let events = reader.events(around.saturating_sub(AROUND_NS), around.saturating_add(AROUND_NS));
    let categories: Vec<CategorySample> =
        reader.categories(around.saturating_sub(CATEGORIES_NS), around);
    let options = look_at(&args.output, &args.rows, around);
    let recorded = RecordedMoment {
        asked_ns: at,
        sweep: &sweep,
        before: before.as_ref(),
        events: &events,
        categories: &categories,
    };
    print(&sweeps::moment(&recorded, options), &args.output, look)
}

/// Compares two times of a recording.
pub(super) fn diff(args: &RecordDiffArgs, look: &TerminalLook) -> anyhow::Result<ExitCode> {
    let now = now_ns();
    let (before, after) = (time(&args.before, now)?, time(&args.after, now)?);
    let reader = RecordReader::open(&times::folder(&args.folder))?;
    let other = args.other_dir.as_deref().map(RecordReader::open).transpose()?;
    let first = sweep_at(&reader, before)?;
    let second = sweep_at(other.as_ref().unwrap_or(&reader), after)?;
    let compared = ComparedSweeps { before: &first, after: &second, same_host: other.is_none() };
    let options = look_at(&args.output, &args.rows, second.time.unix_ns);
    print(&sweeps::compare(compared, options), &args.output, look)
}

fn sweep_at(reader: &RecordReader, at_ns: u64) -> anyhow::Result<Sweep> {
    let folder = reader.folder().display();
    reader.at(at_ns)?.with_context(|| format!("the recording in {folder} begins after this time"))
}
