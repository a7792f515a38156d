//! `pagewise stat`: what runs of a command cost.

use std::ffi::OsString;
use std::process::ExitCode;
use std::time::Duration;

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use pagewise_analysis::stat;
use pagewise_measure::runner::{Command, Plan, Progress, Runs, measure};
use pagewise_measure::{Error, events};
use pagewise_model::measured::Measurement;
use pagewise_view::text::Units;

use crate::args::{HowOften, Stat};
use crate::commands::run_command::{INTERRUPTED, NotRun};
use crate::look::Look;
use crate::output::{emit_beside, emit_csv};
use crate::plan::Usage;

/// Runs the command, reports, and passes on its exit status.
///
/// # Errors
/// That the command could not be run (exit codes 127 and 126, as a shell's), or an event is not known.
pub(crate) fn run(args: &Stat, look: &Look) -> anyhow::Result<ExitCode> {
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

fn plan(args: &Stat) -> anyhow::Result<Plan> {
    let mut commands = vec![command(args.command.clone())?];
    if let Some(other) = &args.vs {
        let words = shlex::split(other)
            .ok_or_else(|| Usage(format!("--vs: quotes do not match: {other}")))?;
        commands.push(command(words.into_iter().map(OsString::from).collect())?);
    }
    let runs = match args.runs {
        HowOften::Times(n) => Runs::Exactly(n),
        HowOften::Auto => Runs::Until { precision: args.precision / 100.0, time: args.time },
    };
    Ok(Plan {
        commands,
        runs,
        warmups: args.warmup,
        cpu: args.cpu,
        events: match &args.events {
            Some(words) => events::choose(words)?,
            None => events::usual(runs),
        },
        sample: args.sample.map(|every| every.max(SHORTEST_SAMPLE)),
    })
}

/// Looking more often would measure the looking.
const SHORTEST_SAMPLE: Duration = Duration::from_millis(1);

fn command(words: Vec<OsString>) -> anyhow::Result<Command> {
    let mut words = words.into_iter();
    let program = words.next().ok_or_else(|| Usage("there is no command to run".to_owned()))?;
    Ok(Command { program, arguments: words.collect() })
}

fn run_all(plan: &Plan) -> anyhow::Result<Measurement> {
    let bar = bar(plan);
    let measured = measure(plan, &mut |progress| show(&bar, &progress));
    bar.finish_and_clear();
    measured.map_err(|error| match error {
        Error::NotRun { program, error } => NotRun::new(&program, error).into(),
        error => error.into(),
    })
}

/// A bar on the terminal; none for a single run, or where standard error is no terminal.
fn bar(plan: &Plan) -> ProgressBar {
    let total = match plan.runs {
        Runs::Exactly(1) => return ProgressBar::hidden(),
        Runs::Exactly(n) => (u64::from(n) + u64::from(plan.warmups)) * plan.commands.len() as u64,
        Runs::Until { time, .. } => millis(time),
    };
    let template = "{bar:30} {msg}  {elapsed} of about {duration}";
    let style =
        ProgressStyle::with_template(template).unwrap_or_else(|_| ProgressStyle::default_bar());
    ProgressBar::with_draw_target(Some(total), ProgressDrawTarget::stderr()).with_style(style)
}

fn show(bar: &ProgressBar, progress: &Progress) {
    let Progress { done, of, elapsed, precision, .. } = *progress;
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
