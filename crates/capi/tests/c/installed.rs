//! Tests of the installed files and of the symbols that the libraries export.

use std::collections::BTreeSet;
use std::fs;
use std::path::PathBuf;
use std::process::Command;

use crate::build::{has, prefix, programs, run, text};

#[test]
fn the_shared_library_exports_what_the_headers_declare_under_a_version_and_nothing_else() {
    let Some(prefix) = prefix().filter(|_| has("nm") && has("readelf")) else { return };
    let library = prefix.join("lib/libpagewise.so");
    let symbols =
        text(&run(Command::new("nm").args(["-D", "--defined-only"]).arg(&library)).stdout);
    let exported = symbols.lines().filter_map(|line| line.split(' ').nth(2));
    let exported: BTreeSet<&str> = exported.filter(|name| *name != "PAGEWISE_0.1").collect();
    let headers = programs("include/pagewise", "h");
    let headers: Vec<String> =
        headers.iter().map(|header| fs::read_to_string(header).unwrap()).collect();
    let declared: BTreeSet<&str> = headers.iter().flat_map(|header| declared(header)).collect();
    assert!(declared.len() >= 8, "{declared:?}");
    let expected: BTreeSet<String> =
        declared.iter().map(|name| format!("{name}@@PAGEWISE_0.1")).collect();
    assert_eq!(exported, expected.iter().map(String::as_str).collect());
    let dynamic = text(&run(Command::new("readelf").arg("-d").arg(&library)).stdout);
    assert!(dynamic.contains("soname: [libpagewise.so.0.1]"), "{dynamic}");
}

/// Returns the functions of the library that a header declares: the names before `(` in unindented
/// lines that end with `);`, except `PW_ASSERT`.
fn declared(header: &str) -> BTreeSet<&str> {
    let is_one = |line: &&str| !line.starts_with([' ', '/', '#']) && line.ends_with(");");
    let lines = header.lines().filter(is_one).filter(|line| !line.starts_with("PW_ASSERT("));
    lines
        .filter_map(|line| line.split('(').next()?.rsplit([' ', '*']).next())
        .filter(|name| name.starts_with("pw_"))
        .collect()
}

#[test]
fn an_installation_holds_every_file_and_may_be_moved() {
    let Some(prefix) = prefix() else { return };
    for header in programs("include/pagewise", "h") {
        let name = header.file_name().unwrap();
        assert!(prefix.join("include/pagewise").join(name).is_file(), "{header:?}");
    }
    for file in [
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
