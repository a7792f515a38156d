//! The libraries as C and C++ programs use them: installed, found by pkg-config, linked both ways.

#![allow(clippy::unwrap_used, clippy::print_stderr, reason = "these are tests, their helpers too")]

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::OnceLock;

use tempfile::TempDir;

const C: &[&str] = &["-std=c11", "-Wall", "-Wextra", "-Wpedantic", "-Werror", "-pthread"];
const CPP: &[&str] = &["-std=c++20", "-Wall", "-Wextra", "-Wpedantic", "-Werror", "-pthread"];

#[derive(Clone, Copy, Debug, PartialEq)]
enum Linked {
    Shared,
    Static,
}

/// Whether there is a tool; says so where not. Where every tool was to be there, that is a failure.
fn has(tool: &str) -> bool {
    let has = Command::new(tool).arg("--version").output().is_ok();
    let required = std::env::var_os("PAGEWISE_REQUIRE_TOOLS").is_some_and(|value| value == "1");
    assert!(has || !required, "PAGEWISE_REQUIRE_TOOLS is set, but {tool} is not installed");
    if !has {
        eprintln!("skipped: {tool} is not installed");
    }
    has
}

fn api() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

fn run(command: &mut Command) -> Output {
    let output = command.output().unwrap();
    let (out, err) = (text(&output.stdout), text(&output.stderr));
    assert!(output.status.success(), "{command:?}: {}\n{out}{err}", output.status);
    output
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// Below which the libraries of this build are installed: once for all tests.
fn prefix() -> Option<&'static Path> {
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

/// The static library that was built for these tests: cargo puts a hash into its name, and leaves those of other builds.
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

/// What pkg-config says.
fn flags(prefix: &Path, linked: Linked) -> Vec<String> {
    let mut tool = Command::new("pkg-config");
    tool.env("PKG_CONFIG_PATH", prefix.join("lib/pkgconfig")).args(["--cflags", "--libs"]);
    if linked == Linked::Static {
        tool.arg("--static");
    }
    text(&run(tool.arg("pagewise")).stdout).split_whitespace().map(str::to_owned).collect()
}

/// Compiles a program, ready to be run.
fn compile(compiler: &str, standard: &[&str], source: &Path, linked: Linked) -> Option<Command> {
    let prefix = prefix()?;
    has(compiler).then_some(())?;
    let folder = tempfile::tempdir_in(prefix).unwrap().keep();
    let program = folder.join("program");
    let mut command = Command::new(compiler);
    command.args(standard).args(["-g", "-o"]).arg(&program).arg(source);
    if linked == Linked::Static {
        command.arg("-static");
    }
    run(command.args(flags(prefix, linked)));
    let mut program = Command::new(program);
    if linked == Linked::Shared {
        program.env("LD_LIBRARY_PATH", prefix.join("lib"));
    }
    Some(program)
}

/// Compiles a program of `ctests` and runs it with either library.
fn compile_and_run(compiler: &str, standard: &[&str], source: &str) {
    for linked in [Linked::Shared, Linked::Static] {
        let program = compile(compiler, standard, &api().join("ctests").join(source), linked);
        program.map(|mut program| run(&mut program));
    }
}

#[test]
fn a_c_program_measures_known_costs_with_the_shared_library_and_with_the_static_one() {
    compile_and_run("cc", C, "measure.c");
}

#[test]
fn a_cpp_program_measures_known_costs_with_the_shared_library_and_with_the_static_one() {
    compile_and_run("c++", CPP, "measure.cpp");
}

#[test]
fn valgrind_finds_no_leak_and_no_wrong_access() {
    let source = api().join("ctests/measure.c");
    if let Some(program) = compile("cc", C, &source, Linked::Shared).filter(|_| has("valgrind")) {
        let mut valgrind = Command::new("valgrind");
        valgrind.args(["-q", "--leak-check=full", "--error-exitcode=9"]).arg(program.get_program());
        let environment = program.get_envs().filter_map(|(name, value)| Some((name, value?)));
        run(valgrind.envs(environment).arg("watched"));
    }
}

#[test]
fn the_example_of_the_readme_compiles_and_prints_what_it_says() {
    let readme = fs::read_to_string(api().join("../../README.md")).unwrap();
    let (_, after) = readme.split_once("```c\n").expect("the README has an example in C");
    let (example, _) = after.split_once("```").unwrap();
    let folder = tempfile::tempdir().unwrap();
    let source = folder.path().join("example.c");
    fs::write(&source, example).unwrap();
    if let Some(mut program) = compile("cc", C, &source, Linked::Shared) {
        let said = text(&run(&mut program).stdout);
        let count = said.strip_suffix(" page faults\n").and_then(|count| count.parse::<u64>().ok());
        assert!(count.is_some_and(|count| count > 0), "{said}");
    }
}

#[test]
fn the_shared_library_exports_what_the_header_declares_under_a_version_and_nothing_else() {
    let Some(prefix) = prefix().filter(|_| has("nm") && has("readelf")) else { return };
    let library = prefix.join("lib/libpagewise.so");
    let symbols =
        text(&run(Command::new("nm").args(["-D", "--defined-only"]).arg(&library)).stdout);
    let exported = symbols.lines().filter_map(|line| line.split(' ').nth(2));
    let exported: BTreeSet<&str> = exported.filter(|name| *name != "PAGEWISE_0.1").collect();
    let header = fs::read_to_string(api().join("include/pagewise/measure.h")).unwrap();
    let declared = declared(&header);
    assert!(declared.len() >= 8, "{declared:?}");
    let expected: BTreeSet<String> =
        declared.iter().map(|name| format!("{name}@@PAGEWISE_0.1")).collect();
    assert_eq!(exported, expected.iter().map(String::as_str).collect());
    let dynamic = text(&run(Command::new("readelf").arg("-d").arg(&library)).stdout);
    assert!(dynamic.contains("soname: [libpagewise.so.0.1]"), "{dynamic}");
}

/// The functions that a header declares: a line that starts with a type and names `pw_..(`.
fn declared(header: &str) -> BTreeSet<&str> {
    let lines = header.lines().filter(|line| !line.starts_with(' ') && line.ends_with(");"));
    lines
        .filter_map(|line| line.split('(').next()?.rsplit([' ', '*']).next())
        .filter(|name| name.starts_with("pw_"))
        .collect()
}

#[test]
fn an_installation_holds_every_file_and_may_be_moved() {
    let Some(prefix) = prefix() else { return };
    for file in [
        "include/pagewise/measure.h",
        "lib/libpagewise.a",
        "lib/libpagewise.so",
        "lib/libpagewise.so.0.1",
        "lib/libpagewise.so.0.1.0",
        "lib/pkgconfig/pagewise.pc",
    ] {
        assert!(prefix.join(file).is_file(), "{file}");
    }
    let moved = tempfile::tempdir().unwrap();
    let to: PathBuf = moved.path().join("elsewhere");
    run(Command::new("cp").arg("-a").arg(prefix.join("lib")).arg(moved.path().join("lib")));
    fs::rename(moved.path().join("lib"), &to).unwrap();
    let flags = text(
        &run(Command::new("pkg-config")
            .env("PKG_CONFIG_PATH", to.join("pkgconfig"))
            .args(["--libs", "pagewise"]))
        .stdout,
    );
    assert!(flags.contains(&moved.path().display().to_string()), "{flags}");
}
