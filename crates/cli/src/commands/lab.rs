//! `pagewise lab`: experiments and their results.

mod vm;

use std::fs;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context, bail};
use clap::{Args, Subcommand};
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use pagewise_analysis::lab;
use pagewise_lab::runner::{self, LabPlan};
use pagewise_lab::{EXPERIMENTS, Journal, RunContext, Size, run_child};
use pagewise_model::lab::{NOTEBOOK_VERSION, Notebook};
use pagewise_sys::interrupt::NotedInterrupts;
use pagewise_view::text::Units;
use pagewise_view::{html, json, markdown};

use crate::args::OutputArgs;
use crate::commands::run_command::INTERRUPTED;
use crate::output::{emit, into_file, to_stdout};
use crate::terminal::TerminalLook;

#[derive(Debug, Args)]
pub(crate) struct LabArgs {
    #[command(subcommand)]
    pub(crate) command: LabCommand,
}

/// Help of `lab describe --change-system`.
const CHANGE_SYSTEM_HELP: &str =
    "Describe the experiment as `lab run --change-system` runs it; nothing is changed";

#[derive(Debug, Subcommand)]
pub(crate) enum LabCommand {
    /// List the experiments
    List {
        #[command(flatten)]
        output: OutputArgs,
    },
    /// Describe the question, expectation, method and requirements of an experiment
    #[command(
        mut_arg("quick", |arg| arg.help("Describe the experiment as `lab run --quick` runs it")),
        mut_arg("full", |arg| arg.help("Describe the experiment as `lab run --full` runs it")),
        mut_arg("set", |arg| arg.help("Describe the experiment with VALUE for its parameter KEY")),
        mut_arg("change_system", |arg| arg.help(CHANGE_SYSTEM_HELP)),
        mut_arg("disk", |arg| arg.help("No effect: `lab describe` writes no files"))
    )]
    Describe {
        /// The name of the experiment; `lab list` lists the names
        name: String,
        #[command(flatten)]
        how: LabSizes,
        #[command(flatten)]
        output: OutputArgs,
    },
    /// Run experiments and report which expectations hold on this machine
    Run(LabTry),
    /// List and run the experiments in virtual machines, and download, build and compare kernels
    Vm(vm::LabVmArgs),
    /// Show the results that `lab run --save` saved
    Report {
        /// Saved results; several files are shown as one report
        #[arg(value_name = "FILE", required = true)]
        files: Vec<PathBuf>,
        #[command(flatten)]
        output: LabOutput,
    },
    /// Compare two files of results that `lab run --save` saved
    Compare {
        /// The file of the earlier results
        before: PathBuf,
        /// The file of the later results
        after: PathBuf,
        #[command(flatten)]
        output: OutputArgs,
    },
}

#[derive(Debug, Args)]
pub(crate) struct LabTry {
    /// Names of experiments, or `all`
    #[arg(value_name = "NAME", required = true)]
    pub(crate) names: Vec<String>,
    /// With `all`: also run the experiments in virtual machines
    #[arg(long)]
    pub(crate) vm: bool,
    #[command(flatten)]
    pub(crate) how: LabSizes,
    /// Run each condition of an experiment (for example with and without huge pages) N times; the
    /// default depends on the experiment and is 1 to 10
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) runs: Option<u32>,
    /// Save every measured value to FILE, for `lab report` and `lab compare`
    #[arg(long, value_name = "FILE", help_heading = "Output")]
    pub(crate) save: Option<PathBuf>,
    #[command(flatten)]
    pub(crate) output: LabOutput,
}

/// The size of the experiments, and the changes that they may make.
#[derive(Debug, Args)]
pub(crate) struct LabSizes {
    /// Use small sizes: each experiment takes seconds and shows the direction of the effect
    #[arg(long, conflicts_with = "full")]
    pub(crate) quick: bool,
    /// Use large sizes: gigabytes of memory, and minutes for each experiment. Without --quick and
    /// --full, the sizes are for a machine with 2 CPUs and 2 GiB of memory
    #[arg(long)]
    pub(crate) full: bool,
    /// Set the parameter KEY of the experiments that have it; `lab describe` lists the parameters
    #[arg(long, value_name = "KEY=VALUE", value_parser = assignment)]
    pub(crate) set: Vec<(String, u64)>,
    /// Let experiments change system settings and add swap files. Every change is undone at the end
    /// of the experiment; after a crash, the next `lab run` undoes it
    #[arg(long)]
    pub(crate) change_system: bool,
    /// The directory for files of experiments, which must be on a disk (not tmpfs)
    #[arg(long, value_name = "DIR", default_value = "/var/tmp")]
    pub(crate) disk: PathBuf,
}

/// The destination of a report on saved results.
#[derive(Debug, Args)]
pub(crate) struct LabOutput {
    /// Print JSON to FILE or standard output; docs/json.md in pagewise's source documents the keys
    #[arg(long, value_name = "FILE", num_args = 0..=1, help_heading = "Output")]
    pub(crate) json: Option<Option<PathBuf>>,
    /// Write the report to FILE as one self-contained HTML page
    #[arg(long, value_name = "FILE", help_heading = "Output")]
    pub(crate) html: Option<PathBuf>,
    /// Write the report to FILE as Markdown
    #[arg(long, value_name = "FILE", help_heading = "Output")]
    pub(crate) markdown: Option<PathBuf>,
    /// Add the meaning of each number
    #[arg(long, short, help_heading = "Output")]
    pub(crate) long: bool,
}

#[derive(Debug, Args)]
pub(crate) struct LabOnce {
    pub(crate) experiment: String,
    pub(crate) arm: String,
    #[arg(long, value_parser = assignment)]
    pub(crate) set: Vec<(String, u64)>,
    #[arg(long)]
    pub(crate) journal: PathBuf,
    #[arg(long)]
    pub(crate) folder: PathBuf,
    #[arg(long)]
    pub(crate) cgroup: Option<PathBuf>,
}

/// `key=value`, the value a number.
fn assignment(text: &str) -> Result<(String, u64), String> {
    let (key, value) = text.split_once('=').ok_or("it is KEY=VALUE")?;
    let value = value.parse().map_err(|_| format!("{value} is not a number"))?;
    Ok((key.to_owned(), value))
}

/// Lists, describes, runs, shows or compares.
pub(crate) fn run(args: LabArgs, look: &TerminalLook) -> anyhow::Result<ExitCode> {
    match args.command {
        LabCommand::List { output } => {
            let plan = plan(all(), &LabSizes::usual(), None)?;
            emit(&lab::list(&runner::outlines(&plan)?), &output, look, Units::Human)?;
        }
        LabCommand::Describe { name, how, output } => {
            let plan = plan(vec![name], &how, None)?;
            for experiment in runner::outlines(&plan)? {
                emit(&lab::describe(&experiment), &output, look, Units::Human)?;
            }
        }
        LabCommand::Run(args) => {
            let names = if args.vm { all() } else { host_experiments() };
            return try_out(args, names, look);
        }
        LabCommand::Vm(args) => return vm::run(args, look),
        LabCommand::Report { files, output } => show(&opened_together(&files)?, &output, look)?,
        LabCommand::Compare { before, after, output } => {
            let report = lab::compare(&open(&before)?, &open(&after)?);
            emit(&report, &output, look, Units::Human)?;
        }
    }
    Ok(ExitCode::SUCCESS)
}

/// Runs one condition once, and writes the measured values to standard output.
pub(crate) fn run_once(args: LabOnce) -> anyhow::Result<ExitCode> {
    let LabOnce { experiment, arm, set, journal, folder, cgroup } = args;
    let child = RunContext { experiment, arm, parameters: set, journal, folder, cgroup };
    run_child(&child, &mut io::stdout().lock())?;
    Ok(ExitCode::SUCCESS)
}

/// Touches memory, and prints how many nanoseconds a page took.
pub(crate) fn touch(bytes: usize) -> anyhow::Result<ExitCode> {
    writeln!(io::stdout(), "{}", pagewise_lab::touch(bytes)?)?;
    Ok(ExitCode::SUCCESS)
}

/// Runs the named experiments; `all` are the experiments that the name `all` stands for.
fn try_out(mut args: LabTry, all: Vec<String>, look: &TerminalLook) -> anyhow::Result<ExitCode> {
    take_name_back(&mut args);
    let names = if args.names.iter().any(|name| name == "all") { all } else { args.names };
    let plan = plan(names, &args.how, args.runs)?;
    run_plan(&plan, args.save.as_deref(), &args.output, look)
}

/// Runs experiments with a progress bar, saves and shows their results.
fn run_plan(
    plan: &LabPlan,
    save: Option<&Path>,
    output: &LabOutput,
    look: &TerminalLook,
) -> anyhow::Result<ExitCode> {
    let interrupts = NotedInterrupts::note_all();
    let bar = bar();
    let notebook = runner::run(
        plan,
        &mut |progress| {
            bar.set_length(progress.of);
            bar.set_position(progress.done);
            bar.set_message(format!("{}: {}", progress.experiment, progress.arm));
        },
        &|| interrupts.came(),
    );
    bar.finish_and_clear();
    let notebook = notebook?;
    if let Some(path) = save {
        let text = serde_json::to_vec(&notebook).context("a notebook is JSON")?;
        into_file(path, |out| out.write_all(&text))?;
    }
    show(&notebook, output, look)?;
    // Exit code that a shell would report for a process ended by the signal.
    let signal = interrupts.signal().filter(|_| notebook.interrupted);
    let code = signal.map_or(Ok(0), |signal| u8::try_from(128 + signal));
    Ok(ExitCode::from(code.unwrap_or(INTERRUPTED)))
}

/// The file of `--json` is optional: clap takes the name of an experiment after `--json` as this
/// file. Moves such a name back to the names.
fn take_name_back(args: &mut LabTry) {
    if let Some(file @ Some(_)) = &mut args.output.json {
        let name = file.as_ref().and_then(|path| path.to_str());
        let is_name = |name: &&str| *name == "all" || pagewise_lab::find(name).is_ok();
        if let Some(name) = name.filter(is_name).map(str::to_owned) {
            args.names.push(name);
            *file = None;
        }
    }
}

fn all() -> Vec<String> {
    EXPERIMENTS.iter().map(|experiment| experiment.about().name.to_owned()).collect()
}

/// Names of the experiments that run on this system itself.
fn host_experiments() -> Vec<String> {
    let all = EXPERIMENTS.iter().map(|experiment| experiment.about());
    all.filter(|about| !about.is_virtual()).map(|about| about.name.to_owned()).collect()
}

fn plan(names: Vec<String>, how: &LabSizes, runs: Option<u32>) -> anyhow::Result<LabPlan> {
    Ok(LabPlan {
        program: std::env::current_exe().context("cannot find the path of pagewise")?,
        names,
        size: match (how.quick, how.full) {
            (true, _) => Size::Quick,
            (_, true) => Size::Full,
            _ => Size::Usual,
        },
        set: how.set.clone(),
        runs,
        change_system: how.change_system,
        disk: how.disk.clone(),
        journals: Journal::base(),
        kernels: None,
    })
}

impl LabSizes {
    fn usual() -> LabSizes {
        let (quick, full, set) = (false, false, Vec::new());
        LabSizes { quick, full, set, change_system: false, disk: PathBuf::new() }
    }
}

/// A progress bar, hidden if standard error is not a terminal.
fn bar() -> ProgressBar {
    let template = "{bar:20} {pos} of {len} runs, about {eta} left: {wide_msg}";
    let style =
        ProgressStyle::with_template(template).unwrap_or_else(|_| ProgressStyle::default_bar());
    let bar = ProgressBar::with_draw_target(Some(1), ProgressDrawTarget::stderr());
    bar.enable_steady_tick(Duration::from_millis(250));
    bar.with_style(style)
}

fn open(path: &Path) -> anyhow::Result<Notebook> {
    let text = fs::read(path).with_context(|| format!("cannot read {}", path.display()))?;
    let notebook: Notebook = serde_json::from_slice(&text)
        .with_context(|| format!("{} is not a lab notebook", path.display()))?;
    if notebook.pagewise_notebook > NOTEBOOK_VERSION {
        bail!("{} is of a newer version of pagewise", path.display());
    }
    Ok(notebook)
}

/// Merges notebooks into the first one, whose description of the machine stays.
fn opened_together(paths: &[PathBuf]) -> anyhow::Result<Notebook> {
    let mut notebooks = paths.iter().map(|path| open(path));
    let mut first = notebooks.next().context("the notebook does not exist")??;
    for notebook in notebooks {
        first.experiments.extend(notebook?.experiments);
    }
    Ok(first)
}

fn show(notebook: &Notebook, output: &LabOutput, look: &TerminalLook) -> anyhow::Result<()> {
    let report = lab::report(notebook);
    if let Some(path) = &output.html {
        into_file(path, |out| html::write(&report, out))?;
    }
    if let Some(path) = &output.markdown {
        into_file(path, |out| markdown::write(&report, out))?;
    }
    match &output.json {
        Some(Some(path)) => into_file(path, |out| json::write(&report, out)),
        Some(None) => to_stdout(|out| json::write(&report, out)),
        None => to_stdout(|out| {
            pagewise_view::text::write(&report, &look.style(output.long, Units::Human), out)
        }),
    }
}
