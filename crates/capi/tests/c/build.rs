//! Support for tests of C programs: installs the libraries for this test, and compiles programs
//! that link with them.

#![allow(clippy::print_stderr, reason = "a part of tests, which say what they skip")]

use std::ffi::OsStr;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::OnceLock;

use pagewise_skip::{Lack, skip};
use tempfile::TempDir;

pub(crate) const C: &[&str] =
    &["-std=c11", "-Wall", "-Wextra", "-Wpedantic", "-Werror", "-pthread"];
pub(crate) const CPP: &[&str] =
    &["-std=c++20", "-Wall", "-Wextra", "-Wpedantic", "-Werror", "-pthread"];

#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum CLinkage {
    Shared,
    Static,
}

/// True if a tool is installed. Otherwise records that a test is skipped.
pub(crate) fn has(tool: &str) -> bool {
    let has = Command::new(tool).arg("--version").output().is_ok();
    if !has {
        skip(&Lack::Tool(tool));
    }
    has
}

pub(crate) fn api() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

pub(crate) fn run(command: &mut Command) -> Output {
    let output = command.output().unwrap();
    let (out, err) = (text(&output.stdout), text(&output.stderr));
    assert!(output.status.success(), "{command:?}: {}\n{out}{err}", output.status);
    output
}

pub(crate) fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// Returns the prefix of the installed libraries of this build, which are installed once for all
/// tests.
pub(crate) fn prefix() -> Option<&'static Path> {
    static PREFIX: OnceLock<Option<TempDir>> = OnceLock::new();
    let prefix = PREFIX.get_or_init(|| {
        if !has("cc") || !has("pkg-config") {
            return None;
        }
        let prefix = tempfile::tempdir().unwrap();
        let built = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
        fs::hard_link(archive(), built.path().join("libpagewise.a")).unwrap();
        let mut cargo = Command::new(env!("CARGO"));
        cargo.args(["xtask", "install", "--prefix"]).arg(prefix.path());
        run(cargo.arg("--from").arg(built.path()).current_dir(api()));
        Some(prefix)
    });
    prefix.as_ref().map(TempDir::path)
}

/// Returns the path of the static library that was built for these tests. Cargo puts a hash into
/// its name, and does not delete the libraries of other builds.
fn archive() -> PathBuf {
    let test = std::env::current_exe().unwrap();
    let files = fs::read_dir(test.parent().unwrap()).unwrap().map(|entry| entry.unwrap().path());
    let archives = files.filter(|path| {
        let name = path.file_name().unwrap().to_string_lossy();
        name.starts_with("libpagewise-") && name.ends_with(".a")
    });
    let newest = archives.max_by_key(|path| fs::metadata(path).unwrap().modified().unwrap());
    newest.expect("the tests depend on the library")
}

/// Returns the flags that pkg-config prints.
fn flags(prefix: &Path, linked: CLinkage) -> Vec<String> {
    let mut tool = Command::new("pkg-config");
    tool.env("PKG_CONFIG_PATH", prefix.join("lib/pkgconfig")).args(["--cflags", "--libs"]);
    if linked == CLinkage::Static {
        tool.arg("--static");
    }
    text(&run(tool.arg("pagewise")).stdout).split_whitespace().map(str::to_owned).collect()
}

/// Compiles a program, and returns the command that runs it. If no compiler is installed, records
/// that a test is skipped and returns `None`.
pub(crate) fn compile(
    compiler: &str,
    options: &[&str],
    source: &Path,
    linked: CLinkage,
) -> Option<Command> {
    let prefix = prefix()?;
    has(compiler).then_some(())?;
    let folder = tempfile::tempdir_in(prefix).unwrap().keep();
    let program = folder.join("program");
    let mut command = Command::new(compiler);
    command.args(options).args(["-g", "-o"]).arg(&program).arg(source);
    if linked == CLinkage::Static {
        command.arg("-static");
    }
    run(command.args(flags(prefix, linked)));
    let mut program = Command::new(program);
    if linked == CLinkage::Shared {
        program.env("LD_LIBRARY_PATH", prefix.join("lib"));
    }
    Some(program)
}

/// Returns the programs in a folder of the crate whose names have this extension.
pub(crate) fn programs(folder: &str, extension: &str) -> Vec<PathBuf> {
    let files = fs::read_dir(api().join(folder)).unwrap().map(|entry| entry.unwrap().path());
    let mut programs: Vec<PathBuf> =
        files.filter(|path| path.extension().is_some_and(|end| end == extension)).collect();
    programs.sort();
    assert!(!programs.is_empty(), "{folder} holds programs");
    programs
}

/// Returns the environment variables that were set for a command.
pub(crate) fn environment(command: &Command) -> impl Iterator<Item = (&OsStr, &OsStr)> {
    command.get_envs().filter_map(|(name, value)| Some((name, value?)))
}

/// Returns the command that runs a program with these arguments under valgrind.
pub(crate) fn under_valgrind(program: &Command, arguments: &[&str]) -> Command {
    let mut valgrind = Command::new("valgrind");
    valgrind
        .args(["-q", "--leak-check=full", "--num-callers=40", "--error-exitcode=9"])
        .arg(program.get_program());
    valgrind.envs(environment(program)).args(arguments);
    valgrind
}

/// Options of sanitizers that make them end a program at their first report.
pub(crate) const SANITIZED: &[&str] =
    &["-O1", "-fsanitize=address,undefined", "-fno-sanitize-recover=all"];
