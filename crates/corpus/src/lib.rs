//! The programs of `fixtures/sick`: their labels, their environment, and figures of the running
//! programs. A sick program has a known memory problem; its remedied form does not have this
//! problem. This crate draws no conclusion about the programs, and does not use pagewise.
#![forbid(unsafe_code)]
#![allow(clippy::print_stderr, reason = "the user of the corpus reads which tools are missing")]

pub mod build;
pub mod environment;
pub mod figures;
pub mod labels;
pub mod process;
mod undo;

use std::path::PathBuf;

use anyhow::{Context, Result};

pub use environment::Prepared;
pub use labels::{Label, RemediedForm};
pub use process::Running;
pub use undo::Undo;

/// Returns the root of the workspace.
fn root() -> PathBuf {
    PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/../.."))
}

/// Returns the labels of all programs, in the order of their names.
///
/// # Errors
///
/// If a label lacks data for a verdict.
pub fn labels() -> Result<Vec<Label>> {
    labels::read_all(&root().join("fixtures/sick"))
}

/// The form in which a program is started.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ProgramForm<'a> {
    /// The sick program with the variable of its label, if the label names one.
    Sick,
    /// The program with its argument `--remedied`.
    Remedied,
    /// The sick program with variables `NAME=VALUE` of the environment.
    Variables(Vec<&'a str>),
}

impl Label {
    /// Builds the program and starts it in an environment of its own. The inner error is the reason
    /// why this machine cannot run it.
    ///
    /// # Errors
    ///
    /// If the program does not compile, or does not become ready.
    pub fn start(
        &self,
        form: ProgramForm<'_>,
        may_change: bool,
    ) -> Result<std::result::Result<Running, String>> {
        let work = build::work_folder();
        let Some(line) = build::build(self, &work.join("build"))? else {
            return Ok(Err("a compiler or interpreter is missing".to_owned()));
        };
        let environment = match environment::prepare(&work, &self.needs, may_change)? {
            Ok(environment) => environment,
            Err(reason) => return Ok(Err(reason)),
        };
        let own = self.environment.as_deref();
        let (arguments, variables): (&[&str], Vec<&str>) = match form {
            ProgramForm::Sick => (&[], own.into_iter().collect()),
            ProgramForm::Remedied => (&["--remedied"], own.into_iter().collect()),
            ProgramForm::Variables(variables) => (&[], variables),
        };
        let running = Running::start(&line, arguments, &variables, environment);
        running.map(Ok).with_context(|| self.name.clone())
    }
}
