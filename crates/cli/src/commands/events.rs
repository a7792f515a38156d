//! `pagewise events`: what can be counted here.

use std::process::ExitCode;

use pagewise_analysis::events;
use pagewise_measure::events::survey;
use pagewise_view::text::Units;

use crate::args::Events;
use crate::look::Look;
use crate::output::emit;

/// Tries each event and reports.
pub(crate) fn run(args: &Events, look: &Look) -> anyhow::Result<ExitCode> {
    let survey = survey(args.like.as_deref());
    emit(&events::events(&survey), &args.output, look, Units::Human)?;
    Ok(ExitCode::SUCCESS)
}
