//! `cargo bench -p pagewise-alloc [-- NAME..]`: runs the benchmarks of `bench/allocators`, a
//! workspace of its own because of the many compared allocators, and prints their output. Without
//! names it runs all, which takes some minutes, and first builds the compared allocators.

#![allow(clippy::print_stdout, clippy::print_stderr, reason = "a benchmark prints")]

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

/// Names of benchmarks that need a cargo feature, each with the name of its feature.
const FEATURES: &[(&str, &str)] = &[
    ("fifo", "ablation"),
    ("pages", "ablation"),
    ("ring", "ablation"),
    ("stack", "ablation"),
    ("stack_c", "c"),
];

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    // `cargo test --all-targets` also runs this program, but without `--bench`.
    if !arguments.iter().any(|argument| argument == "--bench") {
        return ExitCode::SUCCESS;
    }
    let named: Vec<&String> = arguments.iter().filter(|word| !word.starts_with('-')).collect();
    let mut races = races();
    if let Some(unknown) = named.iter().find(|name| !races.contains(name)) {
        eprintln!("no race is called {unknown}; there are {}", races.join(", "));
        return ExitCode::from(2);
    }
    races.retain(|race| named.is_empty() || named.contains(&race));
    if !cargo("fetch").status().is_ok_and(|status| status.success()) {
        eprintln!(
            "the peers of the races cannot be fetched: they are on crates.io, {} names them",
            manifest().display()
        );
        return ExitCode::FAILURE;
    }
    let failed: Vec<&String> = races.iter().filter(|race| !runs(race)).collect();
    failed.iter().for_each(|race| eprintln!("the race {race} did not end well"));
    if failed.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

fn manifest() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../bench/allocators/Cargo.toml")
}

/// Returns the names of the binaries of the benchmark package.
fn races() -> Vec<String> {
    let folder = manifest().with_file_name("src/bin");
    let files =
        fs::read_dir(&folder).unwrap_or_else(|error| panic!("{}: {error}", folder.display()));
    let name = |entry: fs::DirEntry| entry.path().file_stem()?.to_str().map(str::to_owned);
    let mut names: Vec<String> = files.filter_map(|entry| name(entry.ok()?)).collect();
    names.sort();
    names
}

fn cargo(command: &str) -> Command {
    let mut cargo = Command::new(env!("CARGO"));
    cargo.args([command, "--manifest-path"]).arg(manifest());
    cargo
}

/// Builds a benchmark and runs it.
fn runs(race: &str) -> bool {
    println!("\n== {race} ==");
    let mut run = cargo("run");
    run.args(["--release", "--quiet", "--bin", race]);
    if let Some((_, features)) = FEATURES.iter().find(|(of, _)| *of == race) {
        run.args(["--features", features]);
    }
    run.status().is_ok_and(|status| status.success())
}
