//! `pagewise stat`: the costs of runs of a command.

use std::ffi::OsString;
use std::process::ExitCode;
use std::time::Duration;

use clap::Args;
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use pagewise_analysis::stat;
use pagewise_measure::runner::{MeasurePlan, MeasureProgress, MeasuredCommand, RunCount, measure};
use pagewise_measure::{MeasureError, events};
use pagewise_model::measured::Measurement;
use pagewise_view::text::Units;

use crate::args::{OutputArgs, percent_above_zero};
use crate::commands::run_command::{INTERRUPTED, NotRun};
use crate::output::{emit_beside, emit_csv};
use crate::target::UsageError;
use crate::terminal::TerminalLook;

#[derive(Debug, Args)]
pub(crate) struct StatArgs {
    /// Run the command N times; `auto` runs it until the median wall time is as precise as
    /// --precision requires, or until the time of --for is over
    #[arg(short = 'n', long = "runs", value_name = "N|auto", default_value = "1", value_parser = how_often)]
    pub(crate) runs: HowOften,
    /// With `-n auto`: run until the half-width of the 95 % confidence interval is at most PERCENT
    /// of the median wall time (with --vs: of the ratio of both)
    #[arg(long, value_name = "PERCENT", default_value_t = 1.0, value_parser = percent_above_zero)]
    pub(crate) precision: f64,
    /// With `-n auto`: start no run after TIME
    #[arg(long = "for", value_name = "TIME", default_value = "1m", value_parser = humantime::parse_duration)]
    pub(crate) time: Duration,
    /// Run the command N times before the measured runs
    #[arg(long, value_name = "N", default_value_t = 0)]
    pub(crate) warmup: u32,
    /// Run the command on CPU N only
    #[arg(long, value_name = "N")]
    pub(crate) cpu: Option<u32>,
    /// Events to count, separated by commas: names, sets (`usual`, `software`, `tracepoints`,
    /// `hardware`, `all`, `none`), `system:tracepoint`, `r1a2`, `cpu/event=0xd0/`; see
    /// `pagewise events`. Default: `usual`
    #[arg(long, short, value_name = "EVENTS")]
    pub(crate) events: Option<String>,
    /// Compare with COMMAND, in interleaved runs. pagewise splits COMMAND into words as a shell
    /// does, but runs no shell
    #[arg(long, value_name = "COMMAND")]
    pub(crate) vs: Option<String>,
    /// Read the memory of the command and its descendants every TIME (10ms if TIME is omitted), and
    /// report the peak PSS and, for the largest process near the peak, private anonymous, private
    /// file, shared anonymous and shared file memory
    #[arg(long, value_name = "TIME", num_args = 0..=1, require_equals = true, default_missing_value = "10ms", value_parser = humantime::parse_duration)]
    pub(crate) sample: Option<Duration>,
    /// Print CSV with one row for each metric
    #[arg(long, help_heading = "Output", conflicts_with = "json")]
    pub(crate) csv: bool,
    #[command(flatten)]
    pub(crate) output: OutputArgs,
    /// The command and its arguments
    #[arg(
        value_name = "COMMAND",
        required = true,
        trailing_var_arg = true,
        allow_hyphen_values = true
    )]
    pub(crate) command: Vec<OsString>,
}

/// `-n` of `stat`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum HowOften {
    Times(u32),
    Auto,
}

fn how_often(text: &str) -> Result<HowOften, String> {
    match (text, text.parse()) {
        ("auto", _) => Ok(HowOften::Auto),
        (_, Ok(n @ 1..)) => Ok(HowOften::Times(n)),
        _ => Err("expected a number from 1, or `auto`".to_owned()),
    }
}

/// Runs the command, reports, and passes on its exit status.
///
/// # Errors
/// If the command cannot be run (exit codes 127 and 126, as a shell's), or an event is unknown.
pub(crate) fn run(args: &StatArgs, look: &TerminalLook) -> anyhow::Result<ExitCode> {
    let plan = plan(args)?;
    let measurement = run_all(&plan)?;
    if args.csv {
        emit_csv(&stat::table(&measurement), &args.output)?;
    } else {
        emit_beside(&stat::stat(&measurement), &args.output, look, Units::Human)?;
    }
    let status = match stat::exit_status(&measurement) {
        0 if measurement.conditions.interrupted => INTERRUPTED.into(),
        status => status,
    };
    Ok(ExitCode::from(u8::try_from(status).unwrap_or(1)))
}

fn plan(args: &StatArgs) -> anyhow::Result<MeasurePlan> {
    let mut commands = vec![command(args.command.clone())?];
    if let Some(other) = &args.vs {
        let words = shlex::split(other)
            .ok_or_else(|| UsageError(format!("--vs: quotes do not match: {other}")))?;
        commands.push(command(words.into_iter().map(OsString::from).collect())?);
    }
    let runs = match args.runs {
        HowOften::Times(n) => RunCount::Exactly(n),
        HowOften::Auto => RunCount::Until { precision: args.precision / 100.0, time: args.time },
    };
    Ok(MeasurePlan {
        commands,
        runs,
        warmups: args.warmup,
        cpu: args.cpu,
        events: match &args.events {
            Some(words) => events::choose(words)?,
            None => events::usual(runs),
        },
        sample: args.sample.map(|every| every.max(MIN_SAMPLE_TIME)),
    })
}

/// More frequent samples would mainly measure the sampling itself.
const MIN_SAMPLE_TIME: Duration = Duration::from_millis(1);

fn command(words: Vec<OsString>) -> anyhow::Result<MeasuredCommand> {
    let mut words = words.into_iter();
    let program = words.next().ok_or_else(|| UsageError("no command to run".to_owned()))?;
    Ok(MeasuredCommand { program, arguments: words.collect() })
}

fn run_all(plan: &MeasurePlan) -> anyhow::Result<Measurement> {
    let bar = bar(plan);
    let measured = measure(plan, &mut |progress| show(&bar, &progress));
    bar.finish_and_clear();
    measured.map_err(|error| match error {
        MeasureError::NotRun { program, error } => NotRun::new(&program, error).into(),
        error => error.into(),
    })
}

/// A progress bar, hidden for a single run, or if standard error is not a terminal.
fn bar(plan: &MeasurePlan) -> ProgressBar {
    let total = match plan.runs {
        RunCount::Exactly(1) => return ProgressBar::hidden(),
        RunCount::Exactly(n) => {
            (u64::from(n) + u64::from(plan.warmups)) * plan.commands.len() as u64
        }
        RunCount::Until { time, .. } => millis(time),
    };
    let template = "{bar:30} {msg}  {elapsed} of about {duration}";
    let style =
        ProgressStyle::with_template(template).unwrap_or_else(|_| ProgressStyle::default_bar());
    ProgressBar::with_draw_target(Some(total), ProgressDrawTarget::stderr()).with_style(style)
}

fn show(bar: &ProgressBar, progress: &MeasureProgress) {
    let MeasureProgress { done, of, elapsed, precision, .. } = *progress;
    match (of, precision) {
        (Some(of), _) => bar.set_message(format!("run {done} of {of}")),
        (None, Some(precision)) => {
            bar.set_message(format!("{done} runs, ±{:.1} %", precision * 100.0))
        }
        (None, None) => bar.set_message(format!("{done} runs")),
    }
    bar.set_position(if of.is_some() { done } else { millis(elapsed) });
}

fn millis(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}
