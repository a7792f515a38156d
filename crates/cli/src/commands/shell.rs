//! `pagewise completions` and `pagewise man`: both generated from the options themselves.

use std::io;
use std::path::Path;
use std::process::ExitCode;

use anyhow::Context;
use clap::CommandFactory;

use crate::args::Cli;
use crate::output::to_stdout;

/// Prints a completion script.
pub(crate) fn completions(shell: clap_complete::Shell) -> anyhow::Result<ExitCode> {
    let mut script = Vec::new();
    clap_complete::generate(shell, &mut Cli::command(), "pagewise", &mut script);
    to_stdout(|out| out.write_all(&script))?;
    Ok(ExitCode::SUCCESS)
}

/// Prints `pagewise.1`, or writes it and a page for each command into `dir`.
pub(crate) fn man(dir: Option<&Path>) -> anyhow::Result<ExitCode> {
    match dir {
        Some(dir) => {
            std::fs::create_dir_all(dir)
                .and_then(|()| clap_mangen::generate_to(Cli::command(), dir))
                .with_context(|| format!("cannot write the manual pages into {}", dir.display()))?;
        }
        None => to_stdout(|out| render(out))?,
    }
    Ok(ExitCode::SUCCESS)
}

fn render(mut out: &mut dyn io::Write) -> io::Result<()> {
    clap_mangen::Man::new(Cli::command()).render(&mut out)
}
