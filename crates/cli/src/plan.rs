//! Options resolved: which process or file to look at, how and when, and the snapshot that comes of it.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use anyhow::Context;
use pagewise_model::{Absent, Snapshot};
use pagewise_proc::capture::{Request, Wish, capture};
use pagewise_proc::{CAP_SYS_PTRACE, Error, ProcRoot, saved, target};

use crate::args;
use crate::commands::run_command;

/// The options were understood by clap and still make no sense together: exit code 2.
#[derive(Debug)]
pub(crate) struct Usage(pub(crate) String);

impl std::fmt::Display for Usage {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for Usage {}

/// What to look at.
#[derive(Debug)]
pub(crate) enum Subject {
    /// A snapshot saved earlier.
    Saved(PathBuf),
    /// A process of a live or copied `/proc`.
    Process { root: ProcRoot, name: String },
    /// A command to run.
    Command { program: OsString, arguments: Vec<OsString>, when: When },
}

/// When to look at a command that we run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum When {
    AtExit,
    After(Duration),
    AtPeak,
}

/// A snapshot, and what the program exits with once the report is out.
#[derive(Debug)]
pub(crate) struct Seen {
    pub(crate) snapshot: Snapshot,
    pub(crate) exit: ExitCode,
    /// That the kernel does not let us read the memory of the process.
    pub(crate) denied: Option<Error>,
}

impl Seen {
    /// The snapshot, for commands whose report needs the mappings.
    ///
    /// # Errors
    /// That the kernel does not let us read the memory of the process.
    pub(crate) fn with_mappings(self) -> Result<Seen, Error> {
        match self.denied {
            Some(denied) => Err(denied),
            None => Ok(self),
        }
    }
}

/// Resolves the source options, takes the snapshot, and saves it where asked.
///
/// `sums` says whether totals are wanted beside the mappings; what is saved always has them.
pub(crate) fn look_at(source: args::Source, sums: bool) -> anyhow::Result<Seen> {
    let request = Request {
        wish: wish(&source.reading),
        sums: sums || source.save.is_some(),
        ..Request::default()
    };
    let save = source.save.clone();
    let seen = match subject(source)? {
        Subject::Saved(path) => {
            Seen { snapshot: saved::open(&path)?, exit: ExitCode::SUCCESS, denied: None }
        }
        Subject::Process { root, name } => process(&root, &name, &request)?,
        Subject::Command { program, arguments, when } => {
            run_command::run(&program, &arguments, when, &request)?
        }
    };
    if let Some(path) = save {
        saved::save(&seen.snapshot, &path)?;
    }
    Ok(seen)
}

fn subject(source: args::Source) -> anyhow::Result<Subject> {
    if let Some(path) = source.from {
        return Ok(Subject::Saved(path));
    }
    if let Some((program, arguments)) = source.command.split_first() {
        let when = match source.moment {
            args::MomentArgs { at: Some(after), .. } => When::After(after),
            args::MomentArgs { at_peak: true, .. } => When::AtPeak,
            args::MomentArgs { .. } => When::AtExit,
        };
        return Ok(Subject::Command {
            program: program.clone(),
            arguments: arguments.to_vec(),
            when,
        });
    }
    let name = source.target.context("no target was given")?;
    Ok(Subject::Process { root: root(source.root.as_deref()), name })
}

fn process(root: &ProcRoot, name: &str, request: &Request) -> anyhow::Result<Seen> {
    let (root, pid) = target::hold(root, name)?;
    let snapshot = capture(&root, pid, request)?;
    let denied = match &snapshot.mappings {
        Err(Absent::NotPermitted(_)) if root.is_live() => {
            Some(Error::no_access(&root, pid, CAP_SYS_PTRACE))
        }
        _ => None,
    };
    Ok(Seen { snapshot, exit: ExitCode::SUCCESS, denied })
}

/// `/proc`, or the copy that was named.
pub(crate) fn root(copy: Option<&Path>) -> ProcRoot {
    copy.map_or_else(ProcRoot::live, ProcRoot::at)
}

/// The reading that was asked for.
pub(crate) fn wish(reading: &args::Reading) -> Wish {
    match reading {
        args::Reading { polite: true, .. } => Wish::Polite,
        args::Reading { fast: true, .. } => Wish::Fast,
        args::Reading { full: true, .. } => Wish::Full,
        args::Reading { .. } => Wish::Auto,
    }
}
