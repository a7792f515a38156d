//! Checks and chores of the workspace: `cargo xtask ci`, `test`, `tidy`, `words`, `capture`,
//! `corpus`, `kernels`, `static`, `install`.
#![forbid(unsafe_code)]
#![allow(clippy::print_stdout, clippy::print_stderr, reason = "a command line speaks to its user")]

mod capture;
mod ci;
mod code;
mod corpus;
mod features;
mod graph;
mod install;
mod kernels;
mod portable;
mod prose;
mod tidy;
mod time_limit;
mod words;

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::{Context, Result};

use install::InstallFrom;

const USAGE: &str = "\
Usage: cargo xtask COMMAND

  ci              every check: format, tidy, lints, documents, tests
  test            the tests of `ci` alone
  tidy            the rules of this workspace that no other tool knows
  words           spelling and grammar, by typos and harper
  capture         copy the /proc of the fixture programs on this kernel (as root)
  capture --qemu  the same on Debian's kernel for virtual machines, booted under QEMU
  corpus [OPTIONS]
                  run a diagnosing tool at programs whose trouble is known (`corpus --help`)
  kernels [--no-tests] [--no-features] [--machine=NAME] [BZIMAGE...]
                  what works on which kernel, in virtual machines: docs/kernels.md
  kernels --table
                  write the tables anew from the results that are kept
  static [--debug]
                  build `pagewise` as one file that needs no library
  install --prefix DIR
                  build and install the C libraries and their headers
  install --prefix DIR --command
                  the same and the command, which takes longer to build
  install --prefix DIR --from BUILT
                  the same of what lies in a folder already
";

fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let args: Vec<&str> = args.iter().map(String::as_str).collect();
    let done = match args[..] {
        ["ci"] => ci::run(),
        ["test"] => ci::run_tests(),
        ["tidy"] => tidy::run().map(|()| ExitCode::SUCCESS),
        ["words"] => words::run(true).map(|()| ExitCode::SUCCESS),
        ["capture"] => capture::run().map(|()| ExitCode::SUCCESS),
        ["capture", "--qemu"] => capture::run_in_machine().map(|()| ExitCode::SUCCESS),
        ["kernels", ref words @ ..] => kernels::run(words).map(|()| ExitCode::SUCCESS),
        ["static"] => portable::run(true).map(|()| ExitCode::SUCCESS),
        ["static", "--debug"] => portable::run(false).map(|()| ExitCode::SUCCESS),
        ["corpus", "--help"] => {
            print!("{}", corpus::USAGE);
            Ok(ExitCode::SUCCESS)
        }
        ["corpus", ref options @ ..] => corpus::run(options),
        ["install", "--prefix", prefix] => install(prefix, InstallFrom::Libraries),
        ["install", "--prefix", prefix, "--command"] => install(prefix, InstallFrom::WithCommand),
        ["install", "--prefix", prefix, "--from", built] => {
            install(prefix, InstallFrom::Folder(built.as_ref()))
        }
        _ => {
            eprint!("{USAGE}");
            return ExitCode::from(2);
        }
    };
    done.unwrap_or_else(|error| {
        eprintln!("xtask: {error:#}");
        ExitCode::FAILURE
    })
}

fn install(prefix: &str, from: InstallFrom<'_>) -> Result<ExitCode> {
    install::run(prefix.as_ref(), from).map(|()| ExitCode::SUCCESS)
}

/// The root of the workspace. Cargo says where this package is, both to `run` and to `test`.
fn root() -> Result<PathBuf> {
    let package = std::env::var_os("CARGO_MANIFEST_DIR").context("run me as `cargo xtask`")?;
    let root =
        PathBuf::from(package).parent().context("xtask is a folder of the workspace")?.to_owned();
    Ok(root)
}

/// Cargo, the same that started us.
fn cargo() -> std::process::Command {
    std::process::Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()))
}
