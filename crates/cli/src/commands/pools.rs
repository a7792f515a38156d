//! `pagewise pools`: the pools of pagewise's allocators in a running process.

use std::process::ExitCode;

use anyhow::bail;
use clap::Args;
use pagewise_analysis::pagewise_pools::{self, RegistryOptions};
use pagewise_proc::{ProcRoot, target};
use pagewise_view::text::Units;

use crate::args::OutputArgs;
use crate::output::emit;
use crate::terminal::TerminalLook;

#[derive(Debug, Args)]
pub(crate) struct PoolsArgs {
    /// A PID, a process name, a part of a name that matches one process only, or `self` (pagewise)
    #[arg(value_name = "TARGET")]
    pub(crate) target: String,
    /// Show only pools whose type or name contains POOL
    #[arg(value_name = "POOL")]
    pub(crate) pool: Option<String>,
    /// Draw growth charts of the N largest pools; default: 1, or all matching pools if POOL is
    /// given
    #[arg(long, value_name = "N")]
    pub(crate) charts: Option<usize>,
    #[command(flatten)]
    pub(crate) output: OutputArgs,
}

/// Reads the counters of a process's pools from outside the process.
pub(crate) fn run(args: &PoolsArgs, look: &TerminalLook) -> anyhow::Result<ExitCode> {
    let (root, pid) = target::hold(&ProcRoot::live(), &args.target)?;
    root.check_access(pid)?;
    let registry = match pagewise_proc::pagewise_pools::read(&root, pid)? {
        Ok(registry) => registry,
        Err(absent) => bail!("its pools cannot be shown: {absent}"),
    };
    let named = args.pool.as_deref().unwrap_or_default();
    let charts = args.charts.unwrap_or(if named.is_empty() { 1 } else { usize::MAX });
    let options = RegistryOptions { name: named.into(), charts };
    emit(&pagewise_pools::pools(&registry, &options), &args.output, look, Units::Human)?;
    Ok(ExitCode::SUCCESS)
}
