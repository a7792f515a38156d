//! `pagewise maps`: the mappings of a process.

use std::mem::ManuallyDrop;
use std::process::ExitCode;

use pagewise_analysis::filter::Filter;
use pagewise_analysis::maps::{self, Columns, Options};
use pagewise_view::text::Units;

use crate::args::{MapGroup, Maps};
use crate::look::Look;
use crate::output::emit;
use crate::plan::{self, Seen, Usage};

/// Takes the snapshot and lists its mappings.
pub(crate) fn run(mut args: Maps, look: &Look) -> anyhow::Result<ExitCode> {
    let columns = columns(&args.columns);
    // Every line of smaps can only come from smaps.
    if matches!(columns, Columns::All) && !args.source.reading.is_chosen() {
        args.source.reading.full = true;
    }
    let options = Options {
        columns,
        sort: args.sort.as_deref().map(sort_key),
        filter: args
            .filter
            .as_deref()
            .map(Filter::parse)
            .transpose()
            .map_err(|e| Usage(e.to_string()))?,
        group_by_file: matches!(args.group, Some(MapGroup::File)),
        sections: args.sections,
    };
    let Seen { snapshot, exit, .. } = plan::look_at(args.source, false)?.with_mappings()?;
    // As in `explain`: the program ends here, so nothing is given back piece by piece.
    let snapshot = ManuallyDrop::new(snapshot);
    let report = maps::maps(&snapshot, &options).map_err(|e| Usage(e.to_string()))?;
    emit(&ManuallyDrop::new(report), &args.output, look, Units::KiB)?;
    Ok(exit)
}

fn columns(text: &str) -> Columns {
    match text {
        "default" => Columns::Default,
        "all" => Columns::All,
        list => Columns::List(list.split(',').map(|name| name.trim().to_owned()).collect()),
    }
}

/// `rss` and `-rss` sort the largest first, `+rss` the smallest.
pub(crate) fn sort_key(text: &str) -> (String, bool) {
    match text.strip_prefix('+') {
        Some(key) => (key.to_owned(), false),
        None => (text.strip_prefix('-').unwrap_or(text).to_owned(), true),
    }
}
