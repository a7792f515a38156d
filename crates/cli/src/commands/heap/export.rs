//! `pagewise heap export`: recordings of heaps for other tools.

use std::io::{self, IsTerminal, Write};
use std::path::{Path, PathBuf};

use anyhow::bail;
use pagewise_model::Name;
use pagewise_model::heap::{HeapRecording, Of};
use pagewise_view::export::heaptrack::{HeaptrackLosses, MAX_ALLOCATIONS};
use pagewise_view::export::{collapsed, counters, flamegraph, heaptrack, massif, packed, pprof};

use super::open;
use crate::commands::heap::args::{HeapExport, OfArg};
use crate::output::{into_file, note, to_stdout};

/// A format of another tool, which is an option of `heap export`.
pub(crate) struct HeapFormat {
    /// Name of the option.
    pub(crate) name: &'static str,
    pub(crate) help: &'static str,
    pub(crate) heading: &'static str,
    /// True if a terminal cannot show the format.
    is_binary: bool,
    write: FormatWriter,
}

/// Writes a recording; returns notes on what the format cannot hold.
type FormatWriter = fn(&HeapRecording, &FormatOptions, &mut dyn Write) -> io::Result<Vec<String>>;

/// Options that several formats share.
struct FormatOptions {
    /// Quantity of formats that hold one number of each call stack.
    of: Of,
    /// Share of the total below which a branch of a tree is left out.
    threshold: f64,
    /// True if the name of the file ends in `.gz`.
    is_packed: bool,
}

/// Heading of formats that show the heap over time.
pub(crate) const OVER_TIME: &str = "Over time";
/// Heading of formats that show call stacks.
pub(crate) const CALL_STACKS: &str = "Call stacks";

/// The formats, in the order of the help text.
pub(crate) const FORMATS: &[HeapFormat] = &[
    HeapFormat {
        name: "massif",
        help: "Write a massif file, for ms_print and massif-visualizer",
        heading: OVER_TIME,
        is_binary: false,
        write: |recording, options, out| {
            massif::write(recording, options.threshold, out).map(no_notes)
        },
    },
    HeapFormat {
        name: "heaptrack",
        help: "Write a heaptrack file, for heaptrack_print and heaptrack_gui; compressed if OUT ends in .gz",
        heading: OVER_TIME,
        is_binary: false,
        write: export_heaptrack,
    },
    HeapFormat {
        name: "perfetto",
        help: "Write a trace for ui.perfetto.dev with live, allocator and resident bytes",
        heading: OVER_TIME,
        is_binary: false,
        write: |recording, _, out| counters::write(recording, out).map(no_notes),
    },
    HeapFormat {
        name: "pprof",
        help: "Write a profile for `go tool pprof`: bytes allocated, live at the end, live at the peak",
        heading: CALL_STACKS,
        is_binary: true,
        write: |recording, _, out| pprof::write_heap(recording, out).map(no_notes),
    },
    HeapFormat {
        name: "collapsed",
        help: "Write one line for each call stack with its number, for flamegraph.pl and speedscope",
        heading: CALL_STACKS,
        is_binary: false,
        write: |recording, options, out| {
            collapsed::write_heap(recording, options.of, out).map(no_notes)
        },
    },
    HeapFormat {
        name: "flamegraph",
        help: "Write a flame graph as SVG, for any browser",
        heading: CALL_STACKS,
        is_binary: false,
        write: |recording, options, out| {
            let words: Vec<_> = recording.command.iter().map(Name::escaped).collect();
            let title = format!("Heap of {}: {}", words.join(" "), options.of.what());
            flamegraph::write_heap(recording, options.of, &title, out).map(no_notes)
        },
    },
];

fn no_notes((): ()) -> Vec<String> {
    Vec::new()
}

/// Writes each requested format.
pub(super) fn run(args: &HeapExport) -> anyhow::Result<()> {
    let formats = &args.formats.0;
    if formats.iter().filter(|(_, out)| out.is_none()).count() > 1 {
        bail!("several formats: give each a file, `--pprof FILE`");
    }
    let is_to_terminal = args.output.is_none() && io::stdout().is_terminal();
    for (format, out) in formats {
        if format.is_binary && out.is_none() && is_to_terminal {
            bail!("a terminal cannot show this format: use --{} FILE", format.name);
        }
    }
    let recording = open(&args.file)?;
    for (format, out) in formats {
        let path = out.as_ref().or(args.output.as_ref());
        let options = FormatOptions {
            of: args.of.quantity(),
            threshold: args.threshold,
            is_packed: path.is_some_and(|path| path.extension().is_some_and(|it| it == "gz")),
        };
        write(format, &recording, &options, path.map(PathBuf::as_path))?;
    }
    Ok(())
}

/// Writes a format into a file, or to standard output.
fn write(
    format: &HeapFormat,
    recording: &HeapRecording,
    options: &FormatOptions,
    path: Option<&Path>,
) -> anyhow::Result<()> {
    let mut notes = Vec::new();
    let draw = |out: &mut dyn Write| {
        notes = (format.write)(recording, options, out)?;
        Ok(())
    };
    match path {
        Some(path) => into_file(path, draw)?,
        None => to_stdout(draw)?,
    }
    notes.iter().for_each(note);
    Ok(())
}

impl OfArg {
    fn quantity(self) -> Of {
        match self {
            OfArg::Peak => Of::Peak,
            OfArg::Leaked => Of::Leaked,
            OfArg::Allocated => Of::Allocated,
            OfArg::Allocations => Of::Allocations,
            OfArg::Temporary => Of::Temporary,
        }
    }
}

fn export_heaptrack(
    recording: &HeapRecording,
    options: &FormatOptions,
    out: &mut dyn Write,
) -> io::Result<Vec<String>> {
    let write = |out: &mut dyn Write| heaptrack::write(recording, MAX_ALLOCATIONS, out);
    let losses = if options.is_packed { packed(out, write)? } else { write(out)? };
    let HeaptrackLosses { each, not_temporary } = losses;
    let mut notes = Vec::new();
    if each > 1 {
        notes.push(format!(
            "an allocation in the file for heaptrack stands for {each}; bytes are exact"
        ));
    }
    if not_temporary > 0 {
        notes.push(format!(
            "{not_temporary} temporary allocations are not marked as temporary in the file for heaptrack: they were live at the peak"
        ));
    }
    Ok(notes)
}
