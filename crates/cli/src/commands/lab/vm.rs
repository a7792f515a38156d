//! `pagewise lab vm`: the experiments that run in a virtual machine, and the kernels for it.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use anyhow::Context;
use clap::{Args, Subcommand};
use indicatif::{ProgressBar, ProgressDrawTarget};
use pagewise_analysis::lab;
use pagewise_lab::runner::LabPlan;
use pagewise_lab::{ComparedKernels, EXPERIMENTS, RECLAIM_PATCH, runner};
use pagewise_sys::interrupt::NotedInterrupts;
use pagewise_view::text::Units;
use pagewise_vm::{BuildProgress, GuestKernel, KernelBuild, build_kernel, fetch_kernel};

use super::{LabOutput, LabSizes, LabTry, plan, run_plan, try_out};
use crate::args::OutputArgs;
use crate::output::{emit, to_stdout};
use crate::terminal::TerminalLook;

#[derive(Debug, Args)]
pub(crate) struct LabVmArgs {
    #[command(subcommand)]
    command: LabVmCommand,
}

#[derive(Debug, Subcommand)]
pub(crate) enum LabVmCommand {
    /// List the experiments that run in a virtual machine
    List {
        #[command(flatten)]
        output: OutputArgs,
    },
    /// Run experiments in virtual machines and report which expectations hold there
    Run(LabTry),
    /// Download a kernel for virtual machines with apt-get; the system is not changed
    FetchKernel {
        /// The series of the kernel, such as `6.12`; without it, the series of this system
        #[arg(value_name = "SERIES")]
        series: Option<String>,
    },
    /// Build a small kernel 6.1 from Debian's sources and print its path; the system is not changed
    BuildKernel {
        #[command(flatten)]
        build: BuildArgs,
    },
    /// Build a kernel with and without a patch, boot both in turns, and compare how programs that
    /// compete for memory run on them
    Compare {
        #[command(flatten)]
        build: BuildArgs,
        /// Boot each kernel N times; fewer than 5 boots decide nothing
        #[arg(long, value_name = "N", default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..))]
        runs: u32,
        /// Save every measured value to FILE, for `lab report` and `lab compare`
        #[arg(long, value_name = "FILE", help_heading = "Output")]
        save: Option<PathBuf>,
        #[command(flatten)]
        output: LabOutput,
    },
}

/// The build of a kernel.
#[derive(Debug, Args)]
pub(crate) struct BuildArgs {
    /// Apply the patch in FILE, which `diff -u` or git made from the root of the sources. Without
    /// it, build-kernel builds the kernel as it is, and compare uses a patch of its own
    #[arg(long, value_name = "FILE")]
    patch: Option<PathBuf>,
    /// Run N compilers at a time; by default as many as there are CPUs
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    jobs: Option<u32>,
    /// End the build of a kernel after TIME
    #[arg(long, value_name = "TIME", default_value = "30m", value_parser = humantime::parse_duration)]
    build_limit: Duration,
}

/// Lists or runs experiments in virtual machines, or downloads, builds or compares kernels.
pub(super) fn run(args: LabVmArgs, look: &TerminalLook) -> anyhow::Result<ExitCode> {
    match args.command {
        LabVmCommand::List { output } => {
            let plan = plan(virtual_experiments(), &LabSizes::usual(), None)?;
            emit(&lab::list(&runner::outlines(&plan)?), &output, look, Units::Human)?;
        }
        LabVmCommand::Run(args) => return try_out(args, virtual_experiments(), look),
        LabVmCommand::FetchKernel { series } => {
            let kernel = fetch_kernel(series.as_deref()).context("cannot download a kernel")?;
            print_path(&kernel.image)?;
        }
        LabVmCommand::BuildKernel { build } => {
            let patch = build.patch()?;
            print_path(&build.kernel(patch.as_deref())?.image)?;
        }
        LabVmCommand::Compare { build, runs, save, output } => {
            let patch = build.patch()?.unwrap_or_else(|| RECLAIM_PATCH.to_vec());
            let plain = build.kernel(None)?.image;
            let patched = build.kernel(Some(&patch))?.image;
            let plan = plan(vec![COMPARISON.to_owned()], &LabSizes::usual(), Some(runs))?;
            let kernels = Some(ComparedKernels { plain, patched });
            let plan = LabPlan { kernels, disk: PathBuf::from(DISK), ..plan };
            return run_plan(&plan, save.as_deref(), &output, look);
        }
    }
    Ok(ExitCode::SUCCESS)
}

/// The experiment that compares two kernels, and the directory for its files.
const COMPARISON: &str = "vm-patch";
const DISK: &str = "/var/tmp";

fn print_path(path: &Path) -> anyhow::Result<()> {
    to_stdout(|out| writeln!(out, "{}", path.display()))
}

impl BuildArgs {
    fn patch(&self) -> anyhow::Result<Option<Vec<u8>>> {
        let read = |path: &PathBuf| {
            fs::read(path).with_context(|| format!("cannot read {}", path.display()))
        };
        self.patch.as_ref().map(read).transpose()
    }

    /// Builds a kernel and shows the progress on the terminal, or finds the kernel already built.
    fn kernel(&self, patch: Option<&[u8]>) -> anyhow::Result<GuestKernel> {
        let cpus = std::thread::available_parallelism().map_or(1, usize::from);
        let build = KernelBuild {
            patch,
            jobs: self.jobs.map_or(cpus, |jobs| jobs as usize),
            time_limit: self.build_limit,
        };
        let name = if patch.is_some() { "patched kernel" } else { "plain kernel" };
        let spinner = ProgressBar::with_draw_target(None, ProgressDrawTarget::stderr());
        spinner.enable_steady_tick(Duration::from_millis(250));
        let mut progress = |BuildProgress { step, files }: BuildProgress| match files {
            0 => spinner.set_message(format!("{name}: {step}")),
            _ => spinner.set_message(format!("{name}: {step}, {files} files compiled")),
        };
        let interrupts = NotedInterrupts::note_all();
        let kernel = build_kernel(&build, &mut progress, &|| interrupts.came());
        spinner.finish_and_clear();
        kernel.context("cannot build a kernel")
    }
}

/// Returns the names of the experiments that run in a virtual machine.
fn virtual_experiments() -> Vec<String> {
    let all = EXPERIMENTS.iter().map(|experiment| experiment.about());
    all.filter(|about| about.is_virtual()).map(|about| about.name.to_owned()).collect()
}
