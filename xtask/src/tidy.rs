//! `cargo xtask tidy`: the rules of this workspace that no other tool checks.
//!
//! A rule looks at one file at a time and reports lines; adding one is a function and a row in
//! [`RULES`]. The rules about manifests are in [`crate::graph`] and [`crate::features`].

use std::collections::HashSet;
use std::fmt;
use std::fs;
use std::path::Path;

use anyhow::{Context, Result, bail};

use crate::code::{line_of, only_code, paths_of, test_modules, without_tests};
use crate::features;
use crate::graph;
use crate::prose;

/// A rule: its reason, and the function that finds problems in a file.
struct TidyRule {
    reason: &'static str,
    check: fn(&SourceFile, &mut RuleProblems),
}

const RULES: &[TidyRule] = &[
    TidyRule { reason: "a reader must know what a file is for", check: header },
    TidyRule {
        reason: "only crates whose work needs it may hold unsafe code",
        check: forbids_unsafe,
    },
    TidyRule { reason: "64 KiB pages exist: go through PageSize", check: page_size },
    TidyRule { reason: "the workspace must work in any folder", check: machine_paths },
    TidyRule { reason: "models, analyses, views and simulators are pure", check: purity },
    TidyRule {
        reason: "only the command line prints, by functions that do not panic",
        check: silence,
    },
    TidyRule { reason: "the language of STYLE.md", check: language },
    TidyRule { reason: "the names of STYLE.md", check: names },
];

/// The crates that may hold unsafe code.
const UNSAFE: &[&str] = &["sys", "labmem", "alloc", "capi", "malloc", "preload"];

/// Paths into the standard library that a crate must not name.
const IMPURE: &[(&str, &[&str])] = &[
    ("model", &["fs", "env", "net", "process", "time::Instant", "time::SystemTime"]),
    ("analysis", &["fs", "env", "net", "process", "time"]),
    ("view", &["fs", "env", "net", "process", "time"]),
    ("stats", &["fs", "env", "net", "process", "time"]),
    ("sim", &["fs", "env", "net", "process", "time"]),
    ("store", &["env", "net", "process", "time::Instant", "time::SystemTime"]),
];

/// The crates that must not print by the macros of the standard library.
const SILENT: &[&str] = &[
    "model", "sys", "proc", "repair", "measure", "heaplog", "stats", "sim", "analysis", "view",
    "capi", "heap", "heapread", "labmem", "trace", "sampler", "store", "exporter", "vm", "cli",
];

const PRINTS: &[&str] = &["print!", "println!", "eprint!", "eprintln!", "dbg!"];

/// Folders and files that do not meet the language rules yet. Entries are removed from this list,
/// never added.
const UNFINISHED: &[&str] = &["fixtures/"];

/// Spellings of the page size of x86 as a number.
const PAGE_SIZES: &[&str] = &["4096", "4_096", "0x1000", "1 << 12"];

/// Folders in which people and build machines keep their files. Each name is written in two parts,
/// since tidy also searches this file.
const HOMES: &[&str] = &[concat!("/ho", "me/"), concat!("/ro", "ot/"), concat!("/Us", "ers/")];

/// Prints the problems, and fails if there are any.
pub(crate) fn run() -> Result<()> {
    let problems = problems(&crate::root()?)?;
    for problem in &problems {
        println!("{problem}");
    }
    match problems.len() {
        0 => Ok(()),
        n => bail!("tidy: {n} to mend"),
    }
}

/// Returns all problems below `root`.
fn problems(root: &Path) -> Result<Vec<Problem>> {
    let mut problems: Vec<Problem> = graph::check(&graph::crates(root)?)
        .into_iter()
        .map(|(manifest, message)| Problem {
            path: Path::new(&manifest)
                .strip_prefix(root)
                .unwrap_or(manifest.as_ref())
                .display()
                .to_string(),
            line: 1,
            message,
            reason: "the graph of ARCHITECTURE.md",
        })
        .collect();
    problems.extend(features::check(root)?.into_iter().map(|message| Problem {
        path: "Cargo.toml".to_owned(),
        line: 1,
        message,
        reason: "commands and tests share the libraries that they are built from",
    }));
    for file in files(root)? {
        problems.extend(check(&file));
    }
    Ok(problems)
}

/// One problem. It prints as `file:line: what: why`, which editors can open.
#[derive(Debug, PartialEq, Eq)]
struct Problem {
    path: String,
    line: usize,
    message: String,
    reason: &'static str,
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}: {}: {}", self.path, self.line, self.message, self.reason)
    }
}

/// Findings of a rule: a line and a message.
type RuleProblems = Vec<(usize, String)>;

fn check(file: &SourceFile) -> Vec<Problem> {
    let mut problems = Vec::new();
    for rule in RULES {
        let mut found = RuleProblems::new();
        (rule.check)(file, &mut found);
        problems.extend(found.into_iter().map(|(line, message)| Problem {
            path: file.path.clone(),
            line,
            message,
            reason: rule.reason,
        }));
    }
    problems
}

/// One file of the workspace. Captured `/proc` trees hold any bytes, so the text may be lossy.
pub(crate) struct SourceFile {
    /// Path relative to the root, with `/`.
    pub(crate) path: String,
    text: String,
    /// The code that is built into the product; empty for files that are not Rust.
    product: String,
}

impl SourceFile {
    fn new(path: impl Into<String>, text: impl Into<String>) -> SourceFile {
        let (path, text) = (path.into(), text.into());
        let tests = ["tests/", "benches/", "examples/", "fixtures/", "fuzz/", "bench/"];
        let is_product = path.ends_with(".rs")
            && !tests.iter().any(|t| path.starts_with(t) || path.contains(&format!("/{t}")));
        let product = if is_product { without_tests(&only_code(&text)) } else { String::new() };
        SourceFile { path, text, product }
    }

    fn is(&self, extension: &str) -> bool {
        self.path.rsplit_once('.').is_some_and(|(_, found)| found == extension)
    }

    /// Returns the folder of the crate that the file belongs to.
    fn krate(&self) -> Option<&str> {
        let path = self.path.strip_prefix("crates/").unwrap_or(&self.path);
        path.split_once('/').map(|(krate, _)| krate)
    }

    /// Returns the paths of the files that this file includes for tests only.
    fn test_modules(&self) -> Vec<String> {
        let Some(stem) = self.path.strip_suffix(".rs") else { return Vec::new() };
        let folder = match stem.rsplit_once('/') {
            Some((folder, "lib" | "main" | "mod")) => folder,
            _ => stem,
        };
        test_modules(&only_code(&self.text)).map(|name| format!("{folder}/{name}.rs")).collect()
    }

    /// Returns true if the compiler starts from this file, which has the crate-wide attributes.
    fn is_crate_root(&self) -> bool {
        let Some((_, inside)) =
            self.path.strip_prefix("crates/").unwrap_or(&self.path).split_once('/')
        else {
            return false;
        };
        matches!(inside, "src/lib.rs" | "src/main.rs" | "build.rs")
            || inside.strip_prefix("src/bin/").is_some_and(|bin| bin.ends_with(".rs"))
    }
}

/// Returns every file of the workspace below `root`. Links and hidden folders except `.ci` and
/// `.cargo` are left out.
pub(crate) fn files(root: &Path) -> Result<Vec<SourceFile>> {
    let mut files = Vec::new();
    let mut folders = vec![root.to_owned()];
    while let Some(folder) = folders.pop() {
        let entries = fs::read_dir(&folder).with_context(|| folder.display().to_string())?;
        for entry in entries {
            let entry = entry?;
            let name = entry.file_name().to_string_lossy().into_owned();
            let kind = entry.file_type()?;
            let path = entry.path();
            if kind.is_dir() && is_ours(&name) {
                folders.push(path);
            } else if kind.is_file() {
                let bytes = fs::read(&path).with_context(|| path.display().to_string())?;
                let path = path.strip_prefix(root)?.display().to_string();
                files.push(SourceFile::new(path, String::from_utf8_lossy(&bytes)));
            }
        }
    }
    forgive_test_modules(&mut files);
    files.sort_by(|a, b| a.path.cmp(&b.path));
    Ok(files)
}

/// Removes the product code of files that another file includes for tests only.
fn forgive_test_modules(files: &mut [SourceFile]) {
    let for_tests: HashSet<String> = files.iter().flat_map(SourceFile::test_modules).collect();
    for file in files.iter_mut().filter(|file| for_tests.contains(&file.path)) {
        file.product.clear();
    }
}

fn is_ours(folder: &str) -> bool {
    matches!(folder, ".ci" | ".cargo") || !(folder == "target" || folder.starts_with('.'))
}

fn header(file: &SourceFile, found: &mut RuleProblems) {
    let first = file.text.lines().next().unwrap_or_default();
    let second = file.text.lines().nth(1).unwrap_or_default();
    let missing = match () {
        () if file.is("rs") => (!first.starts_with("//! ")).then_some("`//!`"),
        () if file.is("c") || file.is("h") => (!first.starts_with("/*")).then_some("a comment"),
        () if first.starts_with("#!/") => {
            (!second.starts_with("# ")).then_some("`#!` and a comment")
        }
        () => None,
    };
    if let Some(missing) = missing {
        found.push((1, format!("the file does not start with {missing}")));
    }
}

fn forbids_unsafe(file: &SourceFile, found: &mut RuleProblems) {
    let may = file.krate().is_some_and(|krate| UNSAFE.contains(&krate));
    if file.is_crate_root() && !may && !file.product.contains("#![forbid(unsafe_code)]") {
        found.push((1, "the crate does not `#![forbid(unsafe_code)]`".to_owned()));
    }
}

fn page_size(file: &SourceFile, found: &mut RuleProblems) {
    for size in PAGE_SIZES {
        for (at, _) in file.product.match_indices(size) {
            let before = file.product[..at].chars().next_back();
            let after = file.product[at + size.len()..].chars().next();
            let inside =
                |c: Option<char>| c.is_some_and(|c| c.is_ascii_hexdigit() || "_.x".contains(c));
            // A type may follow the digits: 4096_u64 and 4096u64 are the page size too.
            let typed =
                file.product[at + size.len()..].trim_start_matches('_').starts_with(['u', 'i']);
            if !inside(before) && (typed || !inside(after)) {
                found.push((line_of(&file.product, at), format!("literal {size}")));
            }
        }
    }
}

fn machine_paths(file: &SourceFile, found: &mut RuleProblems) {
    for home in HOMES {
        for (at, _) in file.text.match_indices(home) {
            found.push((line_of(&file.text, at), format!("a path below {home}")));
        }
    }
}

fn purity(file: &SourceFile, found: &mut RuleProblems) {
    let Some((krate, impure)) = IMPURE.iter().find(|(krate, _)| file.krate() == Some(*krate))
    else {
        return;
    };
    for (at, path) in paths_of("std", &file.product) {
        let inner = path.strip_prefix("std::").unwrap_or_default();
        if impure
            .iter()
            .any(|i| inner == *i || inner.strip_prefix(i).is_some_and(|r| r.starts_with("::")))
        {
            found.push((line_of(&file.product, at), format!("{krate} may not use {path}")));
        }
    }
}

fn silence(file: &SourceFile, found: &mut RuleProblems) {
    // Output of a build script is for cargo.
    let is_build_script = file.path.ends_with("/build.rs");
    if is_build_script || !file.krate().is_some_and(|krate| SILENT.contains(&krate)) {
        return;
    }
    for print in PRINTS {
        for (at, _) in file.product.match_indices(print) {
            if !file.product[..at].ends_with(|c: char| c.is_alphanumeric() || c == '_') {
                found.push((line_of(&file.product, at), format!("`{print}`")));
            }
        }
    }
}

fn language(file: &SourceFile, found: &mut RuleProblems) {
    let is_unfinished = UNFINISHED.iter().any(|folder| file.path.starts_with(folder));
    // STYLE.md lists the words that it replaces.
    if !is_unfinished && file.path != "STYLE.md" {
        found.extend(prose::check(&file.path, &file.text));
    }
}

fn names(file: &SourceFile, found: &mut RuleProblems) {
    if file.is("rs") {
        found.extend(prose::vague_names(&file.text));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the findings of the rules for a file, as `line: message`.
    fn said(path: &str, text: &str) -> Vec<String> {
        check(&SourceFile::new(path, text))
            .into_iter()
            .map(|problem| format!("{}: {}", problem.line, problem.message))
            .collect()
    }

    #[test]
    fn this_workspace_is_tidy() {
        let problems = problems(&crate::root().unwrap()).unwrap();
        let lines: Vec<String> = problems.iter().map(Problem::to_string).collect();
        assert!(lines.is_empty(), "\n{}", lines.join("\n"));
    }

    #[test]
    fn a_problem_prints_as_editors_expect() {
        let problems =
            check(&SourceFile::new("crates/proc/src/a.rs", "//! A.\nfn f() { print!() }"));
        assert_eq!(
            problems[0].to_string(),
            "crates/proc/src/a.rs:2: `print!`: only the command line prints, by functions that do not panic"
        );
    }

    #[test]
    fn each_kind_of_file_says_what_it_is_for() {
        assert_eq!(
            said("crates/proc/src/a.rs", "use a;"),
            ["1: the file does not start with `//!`"]
        );
        assert_eq!(said("fixtures/a.c", "int x;"), ["1: the file does not start with a comment"]);
        assert_eq!(
            said(".ci/run", "#!/bin/bash\nset -e"),
            ["1: the file does not start with `#!` and a comment"]
        );
        assert!(said(".ci/run", "#!/bin/bash\n# Checks.").is_empty());
        assert!(said("fixtures/a.c", "/* A. */").is_empty());
    }

    #[test]
    fn crates_forbid_unsafe_code_but_those_that_need_it() {
        let missing = ["1: the crate does not `#![forbid(unsafe_code)]`"];
        assert_eq!(said("crates/proc/src/lib.rs", "//! A."), missing);
        assert_eq!(said("xtask/src/main.rs", "//! A.\n// #![forbid(unsafe_code)]"), missing);
        assert!(said("crates/sys/src/lib.rs", "//! A.").is_empty());
        assert!(said("crates/proc/src/inner.rs", "//! A.").is_empty());
    }

    #[test]
    fn no_page_size_is_assumed_outside_tests() {
        let path = "crates/proc/src/a.rs";
        for literal in ["4096", "4096_u64", "4096u64", "4_096", "0x1000", "1 << 12"] {
            assert_eq!(said(path, &format!("//! A.\nlet x = {literal};")).len(), 1, "{literal}");
        }
        assert!(
            said(path, "//! A.\n// 4096\nlet x = (14096, 40960, 0x10000, 0x4096, \"4096\");")
                .is_empty()
        );
        assert!(said(path, "//! A.\n#[cfg(test)]\nmod tests { const X: u64 = 4096; }").is_empty());
        assert!(said("crates/proc/tests/a.rs", "//! A.\nconst X: u64 = 4096;").is_empty());
    }

    #[test]
    fn a_file_included_for_tests_only_may_assume_one() {
        let mut files = [
            SourceFile::new(
                "crates/proc/src/lib.rs",
                "//! A.\n#[cfg(test)]\nmod sample;\nmod real;",
            ),
            SourceFile::new("crates/proc/src/sample.rs", "//! A.\nconst X: u64 = 4096;"),
            SourceFile::new("crates/proc/src/real.rs", "//! A.\nconst X: u64 = 4096;"),
        ];
        forgive_test_modules(&mut files);
        assert!(check(&files[1]).is_empty());
        assert_eq!(check(&files[2]).len(), 1);
    }

    #[test]
    fn no_file_names_a_folder_of_one_machine() {
        for home in HOMES {
            let text = format!("first\nsee {home}someone");
            assert_eq!(said("README.md", &text), [format!("2: a path below {home}")]);
        }
        assert!(said("README.md", "/usr/bin/env, /tmp/x, /root").is_empty());
    }

    #[test]
    fn analyses_do_no_io() {
        let path = "crates/analysis/src/a.rs";
        for line in ["use std::fs;", "use std::{fmt, env};", "let t = std::time::Instant::now();"] {
            assert_eq!(said(path, &format!("//! A.\n{line}")).len(), 1, "{line}");
        }
        assert!(said(path, "//! A.\nuse std::{fmt, collections::BTreeMap};").is_empty());
        assert!(said("crates/proc/src/a.rs", "//! A.\nuse std::fs;").is_empty());
    }

    #[test]
    fn a_model_may_hold_a_duration_but_no_clock() {
        let path = "crates/model/src/a.rs";
        assert!(said(path, "//! A.\nuse std::time::Duration;").is_empty());
        assert_eq!(
            said(path, "//! A.\nuse std::time::{Duration, Instant};"),
            ["2: model may not use std::time::Instant"]
        );
    }

    #[test]
    fn neither_libraries_nor_the_command_line_print_by_macros() {
        for print in PRINTS {
            let text = format!("//! A.\nfn f() {{ {print}(\"x\") }}");
            assert_eq!(said("crates/view/src/a.rs", &text), [format!("2: `{print}`")]);
            assert_eq!(said("crates/cli/src/a.rs", &text), [format!("2: `{print}`")]);
            assert!(said("xtask/src/a.rs", &text).is_empty());
            let text = format!("//! A.\n#![forbid(unsafe_code)]\nfn f() {{ {print}(\"x\") }}");
            assert!(said("crates/heap/build.rs", &text).is_empty());
        }
    }
}
