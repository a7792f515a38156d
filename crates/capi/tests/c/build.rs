//! Access of tests to C programs: the libraries installed for this test, and compilers that link
//! with them.

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

/// True if a tool is installed; records a skipped test if not.
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

/// Prefix of the libraries of this build, which are installed once for all tests.
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

/// The static library that was built for these tests: cargo puts a hash into its name, and leaves
/// those of other builds.
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

/// Output of pkg-config.
fn flags(prefix: &Path, linked: CLinkage) -> Vec<String> {
    let mut tool = Command::new("pkg-config");
    tool.env("PKG_CONFIG_PATH", prefix.join("lib/pkgconfig")).args(["--cflags", "--libs"]);
    if linked == CLinkage::Static {
        tool.arg("--static");
    }
    text(&run(tool.arg("pagewise")).stdout).split_whitespace().map(str::to_owned).collect()
}

/// Compiles a program, ready to be run. `None`, with a recorded skip, without the compiler.
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

/// The programs in a folder of the crate, by the end of their names.
pub(crate) fn programs(folder: &str, extension: &str) -> Vec<PathBuf> {
    let files = fs::read_dir(api().join(folder)).unwrap().map(|entry| entry.unwrap().path());
    let mut programs: Vec<PathBuf> =
        files.filter(|path| path.extension().is_some_and(|end| end == extension)).collect();
    programs.sort();
    assert!(!programs.is_empty(), "{folder} holds programs");
    programs
}

/// The variables that were set for a command.
pub(crate) fn environment(command: &Command) -> impl Iterator<Item = (&OsStr, &OsStr)> {
    command.get_envs().filter_map(|(name, value)| Some((name, value?)))
}

/// Command that runs a program with these arguments under valgrind.
pub(crate) fn under_valgrind(program: &Command, arguments: &[&str]) -> Command {
    let mut valgrind = Command::new("valgrind");
    valgrind
        .args(["-q", "--leak-check=full", "--num-callers=40", "--error-exitcode=9"])
        .arg(program.get_program());
    valgrind.envs(environment(program)).args(arguments);
    valgrind
}

/// Options for sanitizers that end a program at their first finding.
pub(crate) const SANITIZED: &[&str] =
    &["-O1", "-fsanitize=address,undefined", "-fno-sanitize-recover=all"];
