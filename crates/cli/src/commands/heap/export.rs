//! `pagewise heap export`: recordings of heaps for other tools.

use std::io::{self, IsTerminal, Write};
use std::path::{Path, PathBuf};

use anyhow::bail;
use pagewise_model::heap::{HeapRecording, Of};
use pagewise_view::export::{HeapFormat, HeapFormatOptions};

use super::open;
use crate::commands::heap::args::{HeapExport, OfArg};
use crate::output::{into_file, note, to_stdout};

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
        let options = HeapFormatOptions {
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
    options: &HeapFormatOptions,
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
