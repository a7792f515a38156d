//! Resolves options to the process or file to inspect, and takes the snapshot.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use anyhow::Context;
use pagewise_model::machine::ProcessMoment;
use pagewise_model::{Absent, Pid, Snapshot};
use pagewise_proc::capture::{CaptureRequest, Wish, capture};
use pagewise_proc::core_file::{self, CoreFile, DecompressBounds, ImageFiles};
use pagewise_proc::{CAP_SYS_PTRACE, ProcError, ProcRoot, saved, target};
use pagewise_scan::core_image::CoreImage;
use pagewise_scan::sample;

use crate::args;
use crate::commands::run_command;

/// Wrong usage that clap does not detect: the exit code is 2.
#[derive(Debug)]
pub(crate) struct UsageError(pub(crate) String);

impl std::fmt::Display for UsageError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for UsageError {}

/// Object to inspect.
#[derive(Debug)]
pub(crate) enum InspectedTarget {
    /// A snapshot saved earlier.
    Saved(PathBuf),
    /// A process of a live or copied `/proc`.
    Process { root: ProcRoot, name: String },
    /// A core file, and its program.
    Core { path: PathBuf, exe: Option<PathBuf> },
    /// A command to run.
    Command { program: OsString, arguments: Vec<OsString>, when: CommandMoment },
}

/// The time point of the snapshot of a command that pagewise runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum CommandMoment {
    AtExit,
    After(Duration),
    AtPeak,
}

/// A snapshot, and the exit code of pagewise after the report.
#[derive(Debug)]
pub(crate) struct TakenSnapshot {
    pub(crate) snapshot: Snapshot,
    pub(crate) exit: ExitCode,
    /// The error if the kernel denies access to the memory of the process.
    pub(crate) denied: Option<ProcError>,
}

impl TakenSnapshot {
    /// Returns the snapshot, for commands whose report needs the mappings.
    ///
    /// # Errors
    /// If the kernel denies access to the memory of the process.
    pub(crate) fn with_mappings(self) -> Result<TakenSnapshot, ProcError> {
        match self.denied {
            Some(denied) => Err(denied),
            None => Ok(self),
        }
    }
}

/// Resolves the source options, takes the snapshot, and saves it if --save is given.
///
/// If `sums` is true, the snapshot also has totals and a sample of the heap. A saved snapshot
/// always has them.
pub(crate) fn look_at(source: args::SourceArgs, sums: bool) -> anyhow::Result<TakenSnapshot> {
    let request = CaptureRequest {
        wish: wish(&source.reading),
        sums: sums || source.save.is_some(),
        ..CaptureRequest::default()
    };
    let save = source.save.clone();
    let seen = match subject(source)? {
        InspectedTarget::Saved(path) => {
            TakenSnapshot { snapshot: saved::open(&path)?, exit: ExitCode::SUCCESS, denied: None }
        }
        InspectedTarget::Core { path, exe } => {
            let snapshot = read_core(&path, exe.as_deref(), request.sums)?;
            TakenSnapshot { snapshot, exit: ExitCode::SUCCESS, denied: None }
        }
        InspectedTarget::Process { root, name } => process(&root, &name, &request)?,
        InspectedTarget::Command { program, arguments, when } => {
            run_command::run(&program, &arguments, when, &request)?
        }
    };
    if let Some(path) = save {
        saved::save(&seen.snapshot, &path)?;
    }
    Ok(seen)
}

fn subject(source: args::SourceArgs) -> anyhow::Result<InspectedTarget> {
    if let Some(path) = source.from {
        return Ok(InspectedTarget::Saved(path));
    }
    if let Some(path) = source.core.core {
        return Ok(InspectedTarget::Core { path, exe: source.core.exe });
    }
    if let Some((program, arguments)) = source.command.split_first() {
        let when = match source.moment {
            args::MomentArgs { at: Some(after), .. } => CommandMoment::After(after),
            args::MomentArgs { at_peak: true, .. } => CommandMoment::AtPeak,
            args::MomentArgs { .. } => CommandMoment::AtExit,
        };
        return Ok(InspectedTarget::Command {
            program: program.clone(),
            arguments: arguments.to_vec(),
            when,
        });
    }
    let name = source.target.context("no target was given")?;
    Ok(InspectedTarget::Process { root: root(source.root.as_deref()), name })
}

/// Returns the snapshot of a core file, with a sample of its heap if `sums` is true.
fn read_core(path: &Path, exe: Option<&Path>, sums: bool) -> Result<Snapshot, ProcError> {
    let (core, images) = open_core(path, exe)?;
    let mut snapshot = core_file::snapshot(&core, &images);
    if sums {
        sample::add_of_core(&CoreImage::new(core, images), &mut snapshot);
    }
    Ok(snapshot)
}

/// Reads a process, with a sample of its heap if the request has `sums`. The snapshots from which
/// `--at-peak` chooses have no sample, because the sample would stop the process for longer.
pub(crate) fn captured(
    root: &ProcRoot,
    pid: Pid,
    request: &CaptureRequest,
) -> Result<Snapshot, ProcError> {
    let mut snapshot = capture(root, pid, request)?;
    if request.sums && !matches!(request.moment, ProcessMoment::AtPeak(_)) {
        sample::add(root, &mut snapshot);
    }
    Ok(snapshot)
}

/// Opens a core file, and the files that it had mapped. `exe` is its program.
pub(crate) fn open_core(
    path: &Path,
    exe: Option<&Path>,
) -> Result<(CoreFile, ImageFiles), ProcError> {
    let core = CoreFile::open(path, &decompress_bounds())?;
    let images = ImageFiles::find(&core, exe)?;
    Ok((core, images))
}

/// Returns the bounds of decompression. The decompressed core file is in `$TMPDIR`, else in the
/// default folder.
fn decompress_bounds() -> DecompressBounds {
    let default = DecompressBounds::default();
    let folder = std::env::var_os("TMPDIR").filter(|folder| !folder.is_empty());
    DecompressBounds { folder: folder.map_or(default.folder, PathBuf::from), ..default }
}

fn process(root: &ProcRoot, name: &str, request: &CaptureRequest) -> anyhow::Result<TakenSnapshot> {
    let (root, pid) = target::hold(root, name)?;
    let snapshot = captured(&root, pid, request)?;
    let denied = match &snapshot.mappings {
        Err(Absent::NotPermitted(_)) if root.is_live() => {
            Some(ProcError::no_access(&root, pid, CAP_SYS_PTRACE))
        }
        _ => None,
    };
    Ok(TakenSnapshot { snapshot, exit: ExitCode::SUCCESS, denied })
}

/// Returns the copy of /proc in `copy`; without a copy, `/proc` itself.
pub(crate) fn root(copy: Option<&Path>) -> ProcRoot {
    copy.map_or_else(ProcRoot::live, ProcRoot::at)
}

/// Returns the method of reading that the options select.
pub(crate) fn wish(reading: &args::ReadingArgs) -> Wish {
    match reading {
        args::ReadingArgs { polite: true, .. } => Wish::Polite,
        args::ReadingArgs { fast: true, .. } => Wish::Fast,
        args::ReadingArgs { full: true, .. } => Wish::Full,
        args::ReadingArgs { .. } => Wish::Auto,
    }
}
