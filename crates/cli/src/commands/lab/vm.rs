//! `pagewise lab vm`: the experiments that run in a virtual machine, and the kernels for it.

use std::process::ExitCode;

use anyhow::Context;
use clap::{Args, Subcommand};
use pagewise_analysis::lab;
use pagewise_lab::{EXPERIMENTS, runner};
use pagewise_view::text::Units;
use pagewise_vm::fetch_kernel;

use super::{LabSizes, LabTry, plan, try_out};
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
}

/// Lists, runs or downloads.
pub(super) fn run(args: LabVmArgs, look: &TerminalLook) -> anyhow::Result<ExitCode> {
    match args.command {
        LabVmCommand::List { output } => {
            let plan = plan(virtual_experiments(), &LabSizes::usual(), None)?;
            emit(&lab::list(&runner::outlines(&plan)?), &output, look, Units::Human)?;
        }
        LabVmCommand::Run(args) => return try_out(args, virtual_experiments(), look),
        LabVmCommand::FetchKernel { series } => {
            let kernel = fetch_kernel(series.as_deref()).context("cannot download a kernel")?;
            to_stdout(|out| writeln!(out, "{}", kernel.image.display()))?;
        }
    }
    Ok(ExitCode::SUCCESS)
}

/// Names of the experiments that run in a virtual machine.
fn virtual_experiments() -> Vec<String> {
    let all = EXPERIMENTS.iter().map(|experiment| experiment.about());
    all.filter(|about| about.is_virtual()).map(|about| about.name.to_owned()).collect()
}
