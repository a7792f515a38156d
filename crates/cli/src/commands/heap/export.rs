//! `pagewise heap export`: recordings of heaps for other tools.

use std::io::{self, IsTerminal, Write};
use std::path::{Path, PathBuf};

use anyhow::bail;
use pagewise_model::Name;
use pagewise_model::heap::{Of, Recording};
use pagewise_view::export::heaptrack::{MOST, Written};
use pagewise_view::export::{collapsed, counters, flamegraph, heaptrack, massif, packed, pprof};

use super::open;
use crate::args::heap::{HeapExport, OfArg};
use crate::output::{into_file, note, to_stdout};

/// Writes each format that was asked for.
pub(super) fn run(args: &HeapExport) -> anyhow::Result<()> {
    let asked = [
        &args.massif,
        &args.heaptrack,
        &args.perfetto,
        &args.pprof,
        &args.collapsed,
        &args.flamegraph,
    ];
    if asked.iter().filter(|out| matches!(out, Some(None))).count() > 1 {
        bail!("only one format can go to one place: give the others a file each");
    }
    let is_to_terminal = args.output.is_none() && io::stdout().is_terminal();
    if args.pprof == Some(None) && is_to_terminal {
        bail!("a terminal cannot show a profile for pprof: give it a file");
    }
    let recording = open(&args.file)?;
    let of = match args.of {
        OfArg::Peak => Of::Peak,
        OfArg::Leaked => Of::Leaked,
        OfArg::Allocated => Of::Allocated,
        OfArg::Allocations => Of::Allocations,
        OfArg::Temporary => Of::Temporary,
    };
    let place = |out: &Option<Option<PathBuf>>| {
        out.as_ref().map(|out| Place(out.clone().or_else(|| args.output.clone())))
    };
    if let Some(place) = place(&args.massif) {
        place.write(|out| massif::write(&recording, args.threshold, out))?;
    }
    if let Some(place) = place(&args.heaptrack) {
        export_heaptrack(&recording, &place)?;
    }
    if let Some(place) = place(&args.perfetto) {
        place.write(|out| counters::write(&recording, out))?;
    }
    if let Some(place) = place(&args.pprof) {
        place.write(|out| pprof::write_heap(&recording, out))?;
    }
    if let Some(place) = place(&args.collapsed) {
        place.write(|out| collapsed::write_heap(&recording, of, out))?;
    }
    if let Some(place) = place(&args.flamegraph) {
        let words: Vec<_> = recording.command.iter().map(Name::escaped).collect();
        let title = format!("Heap of {}: {}", words.join(" "), of.what());
        place.write(|out| flamegraph::write_heap(&recording, of, &title, out))?;
    }
    Ok(())
}

/// A file, or standard output.
struct Place(Option<PathBuf>);

impl Place {
    fn write(&self, draw: impl FnOnce(&mut dyn Write) -> io::Result<()>) -> anyhow::Result<()> {
        match &self.0 {
            Some(path) => into_file(path, draw),
            None => to_stdout(draw),
        }
    }

    fn is_packed(&self) -> bool {
        let extension = self.0.as_deref().and_then(Path::extension);
        extension.is_some_and(|extension| extension == "gz")
    }
}

/// Writes for heaptrack, and says what is not as it was.
fn export_heaptrack(recording: &Recording, place: &Place) -> anyhow::Result<()> {
    let mut written = Written::default();
    let is_packed = place.is_packed();
    place.write(|out| {
        written = if is_packed {
            packed(out, |out| heaptrack::write(recording, MOST, out))?
        } else {
            heaptrack::write(recording, MOST, out)?
        };
        Ok(())
    })?;
    if written.each > 1 {
        let each = written.each;
        note(format_args!(
            "an allocation in the file for heaptrack stands for {each}; bytes are exact"
        ));
    }
    if written.not_temporary > 0 {
        let count = written.not_temporary;
        note(format_args!(
            "{count} temporary allocations are no such in the file for heaptrack: they were live at the peak"
        ));
    }
    Ok(())
}
