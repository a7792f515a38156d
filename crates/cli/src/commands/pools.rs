//! `pagewise pools`: the pools of pagewise's allocators in a running process.

use std::process::ExitCode;

use anyhow::bail;
use pagewise_analysis::registry::{self, Options};
use pagewise_proc::{ProcRoot, target};
use pagewise_view::text::Units;

use crate::args::Pools;
use crate::look::Look;
use crate::output::emit;

/// Reads the counters of a process's pools, without its doing.
pub(crate) fn run(args: &Pools, look: &Look) -> anyhow::Result<ExitCode> {
    let (root, pid) = target::hold(&ProcRoot::live(), &args.target)?;
    root.check_access(pid)?;
    let registry = match pagewise_proc::registry::read(&root, pid)? {
        Ok(registry) => registry,
        Err(absent) => bail!("its pools cannot be shown: {absent}"),
    };
    let named = args.pool.as_deref().unwrap_or_default();
    let charts = args.charts.unwrap_or(if named.is_empty() { 1 } else { usize::MAX });
    let options = Options { name: named.into(), charts };
    emit(&registry::pools(&registry, &options), &args.output, look, Units::Human)?;
    Ok(ExitCode::SUCCESS)
}
