//! `pagewise doctor`: the settings that cost latency or memory. Changes nothing.

use std::process::ExitCode;
use std::time::Duration;

use pagewise_analysis::doctor::{self, Options, Profile, doctor};
use pagewise_proc::capture::{Request, capture};
use pagewise_proc::{settings, target};
use pagewise_view::text::Units;

use crate::args::{Doctor, ProfileArg};
use crate::look::Look;
use crate::output::emit;
use crate::plan::root;

/// How long TLB shootdowns are counted: a rate of 100 a second still shows some.
const SAMPLE: Duration = Duration::from_millis(200);

/// Reads the settings and judges them.
pub(crate) fn run(args: &Doctor, look: &Look) -> anyhow::Result<ExitCode> {
    let root = root(args.root.as_deref());
    // A tree that is not there is an error, not a machine of which nothing is known.
    root.pids()?;
    let held = args.target.as_deref().map(|name| target::hold(&root, name)).transpose()?;
    let (root, pid) = held.map_or((root, None), |(root, pid)| (root, Some(pid)));
    let target = pid.map(|pid| capture(&root, pid, &Request::default())).transpose()?;
    let files = doctor::files();
    let process = pid.or_else(|| root.ourselves());
    let settings =
        settings::read(&root, &settings::Request { files: &files, process, sample: SAMPLE });
    let profile = args.profile.map(|profile| match profile {
        ProfileArg::Latency => Profile::Latency,
        ProfileArg::Density => Profile::Density,
    });
    let report = doctor(&settings, &Options { profile, target: target.as_ref() });
    emit(&report, &args.output, look, Units::Human)?;
    Ok(ExitCode::SUCCESS)
}
