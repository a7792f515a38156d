//! `pagewise system`: the RAM of the machine by owner, or by memory cgroup.

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::anyhow;
use clap::Args;
use pagewise_analysis::cgroup_report::cgroups;
use pagewise_analysis::system::{SystemOptions, system};
use pagewise_proc::ProcRoot;
use pagewise_proc::cached_files::FileSearch;
use pagewise_proc::cgroup::hierarchy::CgroupHierarchy;
use pagewise_proc::system_reading::{SystemRequest, read};
use pagewise_view::text::Units;

use crate::args::{OutputArgs, ReadingArgs, RowLimit, limit};
use crate::output::emit;
use crate::target::{UsageError, root, wish};
use crate::terminal::TerminalLook;

#[derive(Debug, Args)]
pub(crate) struct SystemArgs {
    /// Show the memory cgroups as a tree instead: those below PATH, or all
    #[arg(long, value_name = "PATH", num_args = 0..=1, default_missing_value = "/")]
    pub(crate) cgroup: Option<String>,
    /// Search the mounted file systems for files in the page cache, for at most TIME. No file is
    /// read, but the search fills the kernel's caches of names and inodes. With --cgroup, also
    /// report the cgroups that pay for the pages of the largest files
    #[arg(long, value_name = "TIME", num_args = 0..=1, default_missing_value = "10s", value_parser = humantime::parse_duration)]
    pub(crate) files: Option<Duration>,
    /// Measure the rates of reclaim and swap over TIME
    #[arg(long = "for", value_name = "TIME", default_value = "1s", value_parser = humantime::parse_duration)]
    pub(crate) during: Duration,
    /// Show at most N rows of each list, or `all`
    #[arg(long, value_name = "N", default_value = "10", value_parser = limit)]
    pub(crate) limit: RowLimit,
    /// Read a copy of the /proc tree instead of /proc; DIR/sysfs holds the files of /sys
    #[arg(long, value_name = "DIR", conflicts_with = "files")]
    pub(crate) root: Option<PathBuf>,
    #[command(flatten)]
    pub(crate) reading: ReadingArgs,
    #[command(flatten)]
    pub(crate) output: OutputArgs,
}

/// Number of the largest files that are kept.
const LARGEST_FILES: usize = 200;
/// Number of the largest processes that are kept, for the parts of an owner.
const LARGEST_PROCESSES: usize = 64;

/// Reads the machine and draws its account, or its cgroups.
pub(crate) fn run(args: &SystemArgs, look: &TerminalLook) -> anyhow::Result<ExitCode> {
    let root = root(args.root.as_deref());
    let options = SystemOptions { rows: args.limit.0, ourselves: root.ourselves() };
    let files = args.files.map(|limit| FileSearch {
        limit,
        largest: LARGEST_FILES,
        charges: args.cgroup.is_some(),
    });
    let request = SystemRequest {
        wish: wish(&args.reading),
        sample: args.during,
        largest: LARGEST_PROCESSES,
        files,
    };
    let report = match &args.cgroup {
        None => system(&read(&root, &request)?, &options),
        Some(path) => {
            // A missing tree is an error. Without this check, it would look like a machine without
            // cgroups.
            root.pids()?;
            let tree = tree(&root, path)?;
            let reading = match args.files {
                Some(_) => Some(read(&root, &request)?),
                None => None,
            };
            let rows =
                if args.output.json { SystemOptions { rows: None, ..options } } else { options };
            cgroups(&tree, reading.as_ref(), &rows)
        }
    };
    emit(&report, &args.output, look, Units::Human)?;
    Ok(ExitCode::SUCCESS)
}

fn tree(root: &ProcRoot, path: &str) -> anyhow::Result<pagewise_model::cgroup_tree::CgroupTree> {
    let hierarchy =
        CgroupHierarchy::find(root).map_err(|absent| anyhow!("memory cgroups: {absent}"))?;
    if path == "/" {
        return Ok(hierarchy.whole_tree());
    }
    let folder = hierarchy.folder(path);
    let folder = folder.ok_or_else(|| UsageError(format!("no memory cgroup {path}")))?;
    Ok(hierarchy.tree(&folder))
}
