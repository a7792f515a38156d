//! `pagewise ps`: every process.

use std::process::ExitCode;

use pagewise_analysis::ps::{self, Group, Options};
use pagewise_proc::listing;
use pagewise_view::text::Units;

use crate::args::{Ps, PsGroup};
use crate::commands::maps::sort_key;
use crate::look::Look;
use crate::output::emit;
use crate::plan::{Usage, root, wish};

/// Reads every process and lists them.
pub(crate) fn run(args: &Ps, look: &Look) -> anyhow::Result<ExitCode> {
    let listing = listing::list(&root(args.root.as_deref()), wish(&args.reading))?;
    let group = args.group.map(|group| match group {
        PsGroup::User => Group::User,
        PsGroup::Name => Group::Name,
        PsGroup::Cgroup => Group::Cgroup,
        PsGroup::Exe => Group::Exe,
    });
    let options = Options { sort: sort_key(&args.sort), group, limit: args.limit };
    let report = ps::ps(&listing, &options).map_err(|e| Usage(e.to_string()))?;
    emit(&report, &args.output, look, Units::Human)?;
    Ok(ExitCode::SUCCESS)
}
