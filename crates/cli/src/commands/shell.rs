//! `pagewise completions` and `pagewise man`: both generated from the options themselves.

use std::io;
use std::path::Path;
use std::process::ExitCode;

use anyhow::Context;
use clap::CommandFactory;

use crate::args::Cli;
use crate::output::{into_file, to_stdout};

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
                .with_context(|| format!("cannot write the manual pages into {}", dir.display()))?;
            let mut command = Cli::command().disable_help_subcommand(true);
            command.build();
            pages(&command, dir)?;
        }
        None => to_stdout(|out| render(out))?,
    }
    Ok(ExitCode::SUCCESS)
}

/// Writes the page of a command and those of its subcommands.
fn pages(command: &clap::Command, dir: &Path) -> anyhow::Result<()> {
    for subcommand in command.get_subcommands().filter(|it| !it.is_hide_set()) {
        pages(subcommand, dir)?;
    }
    let page = clap_mangen::Man::new(command.clone());
    into_file(&dir.join(page.get_filename()), |mut out| page.render(&mut out))
}

fn render(mut out: &mut dyn io::Write) -> io::Result<()> {
    clap_mangen::Man::new(Cli::command()).render(&mut out)
}
