//! `heap` and `guard` of a program with hostile names of functions and files: output to a terminal
//! has no escape sequence, and other tools accept the exports. Further tests record as a user
//! without rights.

use crate::fixture;

use std::ffi::{OsStr, OsString};
use std::fmt::Write as _;
use std::fs::{self, Permissions};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use pagewise_skip::{Lack, is_root, skip};
use serde_json::Value;
use tempfile::TempDir;

use fixture::{program, tool};

/// Hostile names of functions.
const NAMES: &[&[u8]] = &[
    b"\x1b[31mred\x1b]0;title\x07",
    b"new\nline\r\ttab 1000",
    b"<script>alert(1)</script><!--",
    b"not-utf8-\xff\xfe\xc3(",
    b"c1-\xc2\x9b31m-\xe2\x80\xae-rtl",
    b"_ZN4evilIXadL_Z3fooEEE99999999999999999E",
    b"_ZN\x1b[2JIiEE_$$<u>",
    b"_RNvNvNvNtCsX\x1b[7mbad4main",
    b"semi;colon;\"quote\\back' 12",
    b"{{name}} ${x} %s%n `id`",
    b"]]>&amp;&#27;&#x1b;</svg>",
];
/// Hostile file names of the program and of its library.
const PROGRAM: &[u8] = b"prog\x1b[2J\n<u>;\"\xff";
const LIBRARY: &[u8] = b"lib\x1b[31m\n<script>alert(2)<!--\xff.so";
const SOURCE: &[u8] = b"source\x1b]0;x\x07\n<i>\".c";

/// The program and its library, each in a folder of its own.
struct Hostile {
    folder: TempDir,
    program: PathBuf,
    library: PathBuf,
}

impl Hostile {
    /// Compiles the program with valid names, and replaces the names by hostile names of the same
    /// length. Returns `None`, after printing a message, without a compiler.
    fn build() -> Option<Hostile> {
        let folder = tempfile::tempdir_in("/tmp").unwrap();
        fs::set_permissions(folder.path(), Permissions::from_mode(0o755)).unwrap();
        let at = |name: &[u8]| folder.path().join(OsStr::from_bytes(name));
        let stand_in = |number: usize| {
            let name = format!("name_{number}_");
            format!("{name:q<length$}", length = NAMES[number].len())
        };
        let long = format!("long{}", "o".repeat(10_000));
        let functions: Vec<String> = (0..NAMES.len()).map(stand_in).chain([long]).collect();
        let mut source = String::from(
            "#include <dlfcn.h>\n#include <pthread.h>\n#include <stdlib.h>\n#include <sys/prctl.h>\n\
             static void *volatile keep[64];\nstatic int n;\n",
        );
        for (number, function) in functions.iter().enumerate() {
            let size = 1000 * (number + 1);
            writeln!(
                source,
                "__attribute__((noinline)) void {function}(void) {{ keep[n++] = malloc({size}); __asm__(\"\"); }}"
            )
            .unwrap();
        }
        let calls: String = functions.iter().map(|function| format!("{function}();")).collect();
        writeln!(
            source,
            "static void *thread(void *argument) {{ prctl(PR_SET_NAME, \"e\\033[7m\\n<i>\\\"\\xff\"); {}(); return argument; }}\n\
             int main(int argc, char **argv) {{ {calls}\n\
             void *library = dlopen(argv[1], RTLD_NOW); ((void (*)(void))dlsym(library, \"in_library\"))();\n\
             pthread_t it; pthread_create(&it, 0, thread, 0); pthread_join(it, 0);\n\
             if (argc > 2) ((volatile char *)keep[0])[1000] = 1;\nreturn 0; }}",
            functions[0]
        )
        .unwrap();
        let text = at(SOURCE);
        fs::write(&text, source).unwrap();
        let inner = at(b"library.c");
        let library = "#include <stdlib.h>\nvoid *volatile k;\nvoid in_library(void) { k = malloc(77777); }\n";
        fs::write(&inner, library).unwrap();
        let (plain, library) = (at(b"plain"), at(LIBRARY));
        let words = |words: &[&str], from: &Path, to: &Path| -> bool {
            let mut cc = Command::new("cc");
            cc.args(["-g", "-O1", "-w"]).args(words).arg("-o").arg(to).arg(from).arg("-ldl");
            match cc.status() {
                Ok(status) => status.success(),
                Err(_) => false,
            }
        };
        if !words(&["-pthread"], &text, &plain) || !words(&["-shared", "-fPIC"], &inner, &library) {
            skip(&Lack::Tool("cc"));
            return None;
        }
        let mut bytes = fs::read(&plain).unwrap();
        for (number, name) in NAMES.iter().enumerate() {
            let stand_in = stand_in(number);
            let mut places = 0;
            let mut at = 0;
            while let Some(found) =
                bytes[at..].windows(name.len()).position(|it| it == stand_in.as_bytes())
            {
                bytes[at + found..][..name.len()].copy_from_slice(name);
                at += found + name.len();
                places += 1;
            }
            assert!(places > 0, "{stand_in}");
        }
        let changed = at(b"changed");
        fs::write(&changed, bytes).unwrap();
        fs::set_permissions(&changed, Permissions::from_mode(0o755)).unwrap();
        let program = at(PROGRAM);
        fixture::copy_program(&changed, &program);
        Some(Hostile { folder, program, library })
    }

    fn at(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn pagewise(&self, words: &[&str], command: &[&OsStr]) -> Output {
        let mut pagewise = Command::new(env!("CARGO_BIN_EXE_pagewise"));
        pagewise.args(words).args(command).stdin(Stdio::null()).current_dir(self.folder.path());
        pagewise.output().unwrap()
    }

    /// Runs the program under pagewise.
    fn run(&self, words: &[&str], more: &[&str]) -> Output {
        let mut command =
            vec![OsStr::new("--"), self.program.as_os_str(), self.library.as_os_str()];
        command.extend(more.iter().map(OsStr::new));
        self.pagewise(words, &command)
    }

    /// Returns the content of a file, after checking that it has no terminal escape sequences.
    fn read(&self, name: &str) -> String {
        harmless(name, &fs::read(self.at(name)).unwrap())
    }
}

/// Asserts that text has no character that controls a terminal. Returns the text.
fn harmless(what: &str, bytes: &[u8]) -> String {
    let text = std::str::from_utf8(bytes).unwrap_or_else(|error| panic!("{what}: {error}"));
    let harms = |it: char| {
        let turns = matches!(it, '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}');
        turns || (it.is_control() && !matches!(it, '\n' | '\t'))
    };
    if let Some(at) = text.find(harms) {
        let before: String = text[..at].chars().rev().take(80).collect();
        panic!("{what}: at {at}, behind {:?}", before.chars().rev().collect::<String>());
    }
    text.to_owned()
}

/// Returns both output streams of a command, which must have succeeded.
fn printed(what: &str, output: &Output) -> String {
    let said = harmless(what, &output.stderr);
    assert!(output.status.success(), "{what}: {said}");
    harmless(what, &output.stdout) + &said
}

fn tags(page: &str, tag: &str) -> usize {
    page.to_lowercase().matches(tag).count()
}

#[test]
fn hostile_names_do_no_harm() {
    let Some(hostile) = Hostile::build() else { return };
    printed("run", &hostile.run(&["heap", "run", "-o", "h.pwh"], &[]));
    for words in [
        &["report", "h.pwh", "--top", "1000"][..],
        &["report", "h.pwh", "--threshold", "0", "--tree", "top-down", "--by", "calls"],
        &["diff", "h.pwh", "h.pwh"],
        &["export", "h.pwh", "--collapsed"],
    ] {
        printed(words[0], &hostile.pagewise(&[&["heap"], words].concat(), &[]));
    }
    let words = ["heap", "report", "h.pwh", "--json", "--threshold", "0"];
    let report: Value =
        serde_json::from_str(&printed("json", &hostile.pagewise(&words, &[]))).unwrap();
    // Each function has its own name, except for names that are not text.
    let sites = report["sites"].as_array().unwrap();
    for name in NAMES.iter().filter_map(|name| std::str::from_utf8(name).ok()) {
        let is_it = |site: &Value| site["stack"][0].as_str().unwrap().starts_with(name);
        assert!(sites.iter().any(is_it), "{name:?}");
    }
    let page = "h.html";
    printed(page, &hostile.pagewise(&["heap", "report", "h.pwh", "--html", page], &[]));
    let plain = program("heap_known");
    let words = ["heap", "run", "-o", "plain.pwh", "--"];
    hostile.pagewise(&words, &[plain.as_os_str()]);
    printed(
        "plain",
        &hostile.pagewise(&["heap", "report", "plain.pwh", "--html", "plain.html"], &[]),
    );
    let (page, plain) = (hostile.read(page), hostile.read("plain.html"));
    for tag in ["<script", "</script", "<!--", "<img", "<u>", "<i>"] {
        assert_eq!(tags(&page, tag), tags(&plain, tag), "{tag}");
    }
    // The number of charts is not compared with the plain page: a short recording may have no chart
    // of its timeline.
    assert_eq!(tags(&page, "<svg"), tags(&page, "</svg"));
}

#[test]
fn other_tools_accept_exports_with_hostile_names() {
    let Some(hostile) = Hostile::build() else { return };
    printed("run", &hostile.run(&["heap", "run", "-o", "h.pwh"], &[]));
    let export = |of: &str, words: &[&str]| {
        let words = [&["heap", "export", "h.pwh", "--of", of], words].concat();
        printed(of, &hostile.pagewise(&words, &[]))
    };
    for of in ["peak", "leaked", "allocated", "allocations", "temporary"] {
        let collapsed = export(of, &["--collapsed"]);
        for line in collapsed.lines() {
            let (stack, count) = line.rsplit_once(' ').unwrap();
            assert!(count.parse::<u64>().is_ok(), "{line}");
            // No name contains the separator of calls.
            assert!(stack.split(';').all(|call| call != "colon" && !call.is_empty()), "{line}");
        }
        export(of, &["--flamegraph=f.svg"]);
        let script = "import sys, xml.dom.minidom as m; m.parse(sys.argv[1])";
        let path = hostile.at("f.svg");
        hostile.read("f.svg");
        let _ = tool("python3", &["-c", script, path.to_str().unwrap()]);
    }
    export("peak", &["--perfetto=p.json"]);
    let _: Value = serde_json::from_str(&hostile.read("p.json")).unwrap();
    export("peak", &["--massif=m.out", "--heaptrack=h.heaptrack", "--pprof=p.pb.gz"]);
    hostile.read("m.out");
    hostile.read("h.heaptrack");
    let at = |name: &str| hostile.at(name).to_str().unwrap().to_owned();
    if let Some(printed) = tool("ms_print", &[&at("m.out")]) {
        harmless("ms_print", printed.as_bytes());
        assert!(printed.contains("in_library (library.c:3)"), "{printed}");
    }
    if let Some(printed) = tool("heaptrack_print", &["-f", &at("h.heaptrack")]) {
        harmless("heaptrack_print", printed.as_bytes());
        assert!(printed.contains("in_library"), "{printed}");
    }
    let words = ["tool", "pprof", "-symbolize=none", "-top", &at("p.pb.gz")];
    if let Some(printed) = tool("go", &words) {
        harmless("pprof", printed.as_bytes());
        assert!(printed.contains("in_library"), "{printed}");
    }
}

#[test]
fn a_guard_prints_hostile_names_without_escape_sequences() {
    let Some(hostile) = Hostile::build() else { return };
    let words = ["guard", "--rate", "1", "--then", "continue", "--error-exitcode", "7"];
    let output = hostile.run(&words, &["x"]);
    assert_eq!(output.status.code(), Some(7));
    let said = harmless("guard", &output.stderr);
    assert!(said.contains(r"\x1b[31mred") && said.contains(r"prog\x1b[2J"), "{said}");
    for (option, file) in [("--json", "g.json"), ("--html", "g.html")] {
        let to = if option == "--json" { vec![option, "-o", file] } else { vec![option, file] };
        let output = hostile.run(&[&words[..], &to].concat(), &["x"]);
        assert_eq!(output.status.code(), Some(7));
        harmless(file, &output.stderr);
        hostile.read(file);
    }
    let _: Value = serde_json::from_str(&hostile.read("g.json")).unwrap();
    let page = hostile.read("g.html");
    assert_eq!((tags(&page, "<script>alert"), tags(&page, "<i>\"")), (0, 0));
}

/// Runs pagewise as a user without rights, in a folder of this user.
fn as_nobody(folder: &Path, words: &[&str]) -> Output {
    let mut pagewise = Command::new("setpriv");
    pagewise.args(["--reuid=65534", "--regid=65534", "--clear-groups", "--bounding-set=-all"]);
    pagewise.arg(folder.join("pagewise")).args(words).stdin(Stdio::null()).current_dir(folder);
    let cache: OsString = folder.join("cache").into();
    pagewise.env("XDG_CACHE_HOME", cache).env("TMPDIR", folder).env("HOME", "/nonexistent");
    pagewise.output().unwrap()
}

#[test]
fn an_unprivileged_user_records_its_own_programs_in_full() {
    if !is_root() || tool("setpriv", &["--version"]).is_none() {
        return;
    }
    let folder = tempfile::tempdir_in("/tmp").unwrap();
    std::os::unix::fs::chown(folder.path(), Some(65534), Some(65534)).unwrap();
    fs::set_permissions(folder.path(), Permissions::from_mode(0o755)).unwrap();
    fixture::copy_program(
        Path::new(env!("CARGO_BIN_EXE_pagewise")),
        &folder.path().join("pagewise"),
    );
    for name in ["heap_known", "misuse"] {
        fixture::copy_program(&program(name), &folder.path().join(name));
    }
    let output = as_nobody(folder.path(), &["heap", "run", "-o", "h.pwh", "--", "./heap_known"]);
    assert_eq!(output.status.code(), Some(3), "{}", harmless("run", &output.stderr));
    let output =
        as_nobody(folder.path(), &["heap", "report", "h.pwh", "--json", "--threshold", "0"]);
    let report: Value = serde_json::from_str(&printed("report", &output)).unwrap();
    let functions = fixture::recorder::by_function(&report);
    assert_eq!(functions["once"], [1000, 48_000, 1000]);
    assert_eq!(functions["zeros"], [300, 9000, 290]);
    assert_eq!(functions["in_thread"][..2], [400, 51_200]);
    // A user may inspect the memory of its own processes.
    let moments = report["timeline"].as_array().unwrap();
    assert!(!moments.is_empty());
    let words = ["guard", "--rate", "1", "--json", "-o", "g.json", "--", "./misuse", "double_free"];
    let output = as_nobody(folder.path(), &words);
    let guarded = fs::read(folder.path().join("g.json"))
        .unwrap_or_else(|error| panic!("{error}: {output:?}"));
    let guarded: Value = serde_json::from_slice(&guarded).unwrap();
    assert_eq!(guarded["bugs"].as_array().unwrap().len(), 1, "{guarded:#}");
    // A process of another user cannot be attached to; the error gives the reason.
    let words = ["heap", "attach", "1", "--for", "10ms"];
    let output = as_nobody(folder.path(), &words);
    let said = harmless("attach", &output.stderr);
    assert_eq!(output.status.code(), Some(1), "{said}");
    assert!(said.contains("cannot read PID 1 (owner root)"), "{said}");
}
