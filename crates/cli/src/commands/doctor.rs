//! `pagewise doctor`: the settings that cost latency or memory. Changes nothing.

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use clap::{Args, ValueEnum};
use pagewise_analysis::doctor::{self, DoctorOptions, WorkloadProfile, doctor};
use pagewise_proc::capture::{CaptureRequest, capture};
use pagewise_proc::{settings, target};
use pagewise_view::text::Units;

use crate::args::OutputArgs;
use crate::output::emit;
use crate::target::root;
use crate::terminal::TerminalLook;

#[derive(Debug, Args)]
pub(crate) struct Doctor {
    /// Check the limits, cgroup and environment of this process too: a PID, a process name, a part
    /// of a name that matches one process only, or `self` (pagewise)
    #[arg(value_name = "TARGET")]
    pub(crate) target: Option<String>,
    /// The goal to optimize for; without --profile, only settings that are bad for both latency and
    /// memory are checked
    #[arg(long, value_enum, value_name = "PROFILE")]
    pub(crate) profile: Option<ProfileArg>,
    /// Read a copy of the /proc tree instead of /proc; DIR/sysfs holds the files of /sys
    #[arg(long, value_name = "DIR")]
    pub(crate) root: Option<PathBuf>,
    #[command(flatten)]
    pub(crate) output: OutputArgs,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
pub(crate) enum ProfileArg {
    /// Short and steady response times, at the cost of memory
    Latency,
    /// Many programs in little memory, at the cost of time
    Density,
}

/// Time for which TLB shootdowns are counted: enough to measure a rate of 100 per second.
const SAMPLE: Duration = Duration::from_millis(200);

/// Reads the settings and judges them.
pub(crate) fn run(args: &Doctor, look: &TerminalLook) -> anyhow::Result<ExitCode> {
    let root = root(args.root.as_deref());
    // A missing tree is an error. Without this check, the report would have only unknown values.
    root.pids()?;
    let held = args.target.as_deref().map(|name| target::hold(&root, name)).transpose()?;
    let (root, pid) = held.map_or((root, None), |(root, pid)| (root, Some(pid)));
    let target = pid.map(|pid| capture(&root, pid, &CaptureRequest::default())).transpose()?;
    let files = doctor::files();
    let process = pid.or_else(|| root.ourselves());
    let settings = settings::read(
        &root,
        &settings::SettingsRequest { files: &files, process, sample: SAMPLE },
    );
    let profile = args.profile.map(|profile| match profile {
        ProfileArg::Latency => WorkloadProfile::Latency,
        ProfileArg::Density => WorkloadProfile::Density,
    });
    let report = doctor(&settings, &DoctorOptions { profile, target: target.as_ref() });
    emit(&report, &args.output, look, Units::Human)?;
    Ok(ExitCode::SUCCESS)
}
