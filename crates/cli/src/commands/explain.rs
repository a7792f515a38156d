//! `pagewise explain`: where a process's memory is.

use std::mem::ManuallyDrop;
use std::process::ExitCode;

use pagewise_analysis::explain::{self, Options};
use pagewise_view::text::Units;

use crate::args::Explain;
use crate::look::Look;
use crate::output::{emit, note};
use crate::plan::{self, Seen};

/// Takes the snapshot, explains it, and passes on the exit code of a command that was run.
pub(crate) fn run(args: Explain, look: &Look) -> anyhow::Result<ExitCode> {
    let Seen { snapshot, mut exit, denied } = plan::look_at(args.source, true)?;
    if let Some(denied) = denied {
        // VIRT, RES and the limits are still known.
        note(denied);
        exit = ExitCode::FAILURE;
    }
    // The program ends after the report: giving 65,000 mappings back one by one would only cost time.
    let snapshot = ManuallyDrop::new(snapshot);
    let options = Options {
        largest: args.largest,
        all_mappings: args.output.json,
        address_map: args.output.html.is_some(),
    };
    let report = ManuallyDrop::new(explain::explain(&snapshot, &options));
    emit(&report, &args.output, look, Units::Human)?;
    Ok(exit)
}
