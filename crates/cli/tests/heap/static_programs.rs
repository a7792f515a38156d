//! `pagewise heap run` of programs that load no library. Their allocations are known from the
//! source.

use crate::fixture;

use std::path::{Path, PathBuf};
use std::process::Command;

use fixture::number;
use fixture::recorder::{by_function, heap, report};
use pagewise_skip::{Lack, is_root, skip};
use serde_json::Value;

/// Keeps the compiled standard library of Go from one test to the next.
const GO_CACHE: &str = concat!(env!("CARGO_TARGET_TMPDIR"), "/go-cache");
/// The kind of events that uprobes are.
const UPROBES: &str = "/sys/bus/event_source/devices/uprobe/type";

fn has_probes() -> bool {
    let has = Path::new(UPROBES).exists();
    if !has {
        skip(&Lack::KernelFile(UPROBES));
    }
    has && is_root()
}

fn is_counted_by_function(program: &Path) {
    let report = counts_by_function(program);
    // Call stacks of the program's own functions lead to the start of the program or of a thread.
    for site in report["sites"].as_array().unwrap() {
        let stack = site["stack"].as_array().unwrap();
        let (first, last) = (stack[0].as_str().unwrap(), stack[stack.len() - 1].as_str().unwrap());
        assert!(
            !first.contains("heap_known.c") || last.contains("start") || last.contains("clone"),
            "{stack:?}"
        );
    }
}

/// Records `heap_known`, compares its counts, and returns the report.
pub(super) fn counts_by_function(program: &Path) -> Value {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("static.pwh");
    let output = heap(&["run", "-o", file.to_str().unwrap(), "--", program.to_str().unwrap()]);
    assert_eq!(output.status.code(), Some(3), "{output:?}");
    let report = report(&file);
    let functions = by_function(&report);
    assert_eq!(functions["once"], [1000, 48_000, 1000]);
    assert_eq!(functions["zeros"], [300, 9000, 290], "ten are never freed");
    assert_eq!(functions["grow"], [100, 400_000, 100]);
    assert_eq!(functions["align"], [50, 25_000, 50]);
    assert_eq!(functions["in_thread"], [400, 51_200, 400]);
    // glibc frees the blocks in the caches of the two threads again as they end. These frees are
    // not the program's.
    assert_eq!(number(&report, "totals.unknown_frees"), 0);
    // All of `once`, `zeros` and `grow` are live then; the C library has a few blocks of its own.
    let peak = number(&report, "totals.peak_bytes") - (48 * 900 + 9000 + 400_000);
    assert!(peak < 6000, "{peak} bytes more than the program's own");
    report
}

#[test]
fn a_program_that_is_linked_statically_is_counted_by_function() {
    let Some(program) = fixture::static_program("heap_known").filter(|_| has_probes()) else {
        return;
    };
    is_counted_by_function(&program);
}

#[test]
fn a_static_program_with_another_c_library_is_counted_by_function() {
    let folder = tempfile::tempdir().unwrap();
    let program = folder.path().join("known");
    let source =
        PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../fixtures/programs/heap_known.c");
    let built = Command::new("musl-gcc")
        .args(["-O1", "-g", "-static", "-o"])
        .arg(&program)
        .arg(source)
        .status();
    match built {
        Ok(status) => assert!(status.success()),
        Err(_) => return skip(&Lack::Tool("musl-gcc")),
    }
    if has_probes() {
        is_counted_by_function(&program);
    }
}

/// The reports of the recordings of `heap_forks`: of the first process, and of its children.
fn forks(more: &[&str]) -> Option<(Value, Vec<Value>)> {
    let program = fixture::static_program("heap_forks").filter(|_| has_probes())?;
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("static.pwh");
    let words = ["run", "-o", file.to_str().unwrap()];
    let output = heap(&[&words, more, &["--", program.to_str().unwrap()]].concat());
    assert_eq!(output.status.code(), Some(5), "{output:?}");
    let files = std::fs::read_dir(folder.path()).unwrap().map(|entry| entry.unwrap().path());
    let others = files.filter(|path| *path != file).map(|path| report(&path)).collect();
    Some((report(&file), others))
}

#[test]
fn children_of_a_static_program_have_a_recording_each() {
    let Some((last, others)) = forks(&["--follow"]) else { return };
    assert_eq!(by_function(&last)["after"], [50, 15_000, 0]);
    let ending = |report: &Value| report["recording"]["ending"].as_str().unwrap().to_owned();
    assert_eq!(ending(&last), "exit 5");
    let (first, children): (Vec<&Value>, Vec<&Value>) =
        others.iter().partition(|it| ending(it).starts_with("replaced"));
    assert_eq!((first.len(), children.len()), (1, 2));
    let functions = by_function(first[0]);
    assert_eq!(functions["before"], [100, 4000, 0], "what the children free is not the parent's");
    assert!(!functions.contains_key("in_child"));
    for child in children {
        assert_eq!(by_function(child)["in_child"], [200, 12_000, 200]);
        assert_eq!(number(child, "totals.unknown_frees"), 1, "a block of the parent's");
    }
}

#[test]
fn children_of_a_static_program_are_not_recorded_without_follow() {
    let Some((last, others)) = forks(&[]) else { return };
    assert_eq!(by_function(&last)["after"], [50, 15_000, 0]);
    assert!(others.is_empty(), "{others:?}");
}

#[test]
fn samples_of_a_static_program_are_unbiased() {
    const RUNS: u32 = 10;
    const BYTES: f64 = 48_000.0 + 9000.0 + 400_000.0 + 25_000.0 + 51_200.0;
    let Some(program) = fixture::static_program("heap_known").filter(|_| has_probes()) else {
        return;
    };
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("static.pwh");
    let (mut estimates, mut variances) = (0.0, 0.0);
    for _ in 0..RUNS {
        let words = ["run", "--sample", "4k", "-o", file.to_str().unwrap(), "--"];
        let output = heap(&[&words[..], &[program.to_str().unwrap()]].concat());
        assert_eq!(output.status.code(), Some(3), "{output:?}");
        let report = report(&file);
        assert_eq!(report["totals"]["estimated"], true);
        assert_eq!(number(&report, "totals.unknown_frees"), 0);
        let functions = by_function(&report);
        for function in ["once", "zeros", "grow", "align", "in_thread"] {
            estimates += functions.get(function).map_or(0.0, |sums| sums[1] as f64);
        }
        // Half of the interval of 95 %.
        let error = number(&report, "totals.allocated_within") as f64 / 1.96;
        variances += error * error;
    }
    // Standard errors: one in a million is further away than five of them.
    let away = (estimates - BYTES * f64::from(RUNS)).abs() / variances.sqrt();
    assert!(away < 5.0, "{estimates} of {} by {away}", BYTES * f64::from(RUNS));
    assert!(variances > 0.0);
}

#[test]
fn a_refused_watch_names_the_needed_rights() {
    let Some(program) = fixture::static_program("heap_known").filter(|_| has_probes()) else {
        return;
    };
    let folder = fixture::readable_copies(&[&program]);
    let writable = std::os::unix::fs::PermissionsExt::from_mode(0o777);
    std::fs::set_permissions(folder.path(), writable).unwrap();
    let known = folder.path().join(program.file_name().unwrap());
    let mut command = fixture::as_nobody();
    command.arg(folder.path().join("pagewise")).args(["heap", "run", "--"]).arg(&known);
    command.current_dir(folder.path());
    let Ok(output) = command.output() else { return skip(&Lack::Tool("setpriv")) };
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(1), "{said}");
    assert!(said.contains("need root or CAP_PERFMON"), "{said}");
    let left: Vec<_> = std::fs::read_dir(folder.path()).unwrap().collect();
    assert_eq!(left.len(), 2, "no recording is left of what did not run: {left:?}");
}

#[test]
fn an_impossible_watch_is_refused_with_a_reason() {
    let folder = tempfile::tempdir().unwrap();
    let refused = |program: &Path, expected: &str| {
        let output = heap(&["run", "--", program.to_str().unwrap()]);
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(1), "{said}");
        assert!(said.contains(expected), "{said}");
    };
    if let Some(program) = fixture::static_program("heap_known") {
        let stripped = folder.path().join("stripped");
        let status = Command::new("strip").arg("-o").arg(&stripped).arg(program).status();
        assert!(status.unwrap().success());
        refused(&stripped, "no symbols malloc and free");
    }
    let source = folder.path().join("main.go");
    std::fs::write(&source, "package main\nfunc main() { println(1) }\n").unwrap();
    let program = folder.path().join("go");
    let mut build = Command::new("go");
    build.args(["build", "-o"]).arg(&program).arg(&source).env("CGO_ENABLED", "0");
    build.env("GOCACHE", GO_CACHE).current_dir(folder.path());
    match build.output() {
        Ok(output) => assert!(output.status.success(), "{output:?}"),
        Err(_) => return skip(&Lack::Tool("go")),
    }
    refused(&program, "a Go program");
}

#[test]
fn the_heap_of_c_code_in_a_go_program_is_recorded() {
    let folder = tempfile::tempdir().unwrap();
    let source = folder.path().join("main.go");
    let text = r#"package main

// #include <stdlib.h>
// static void *of_c(void) { return malloc(777); }
import "C"

func main() {
	for i := 0; i < 100; i++ {
		p := C.of_c()
		if i%2 == 0 {
			C.free(p)
		}
	}
}
"#;
    std::fs::write(&source, text).unwrap();
    let (program, file) = (folder.path().join("go"), folder.path().join("go.pwh"));
    let mut build = Command::new("go");
    build.args(["build", "-o"]).arg(&program).arg(&source).env("CGO_ENABLED", "1");
    build.env("GOCACHE", GO_CACHE).current_dir(folder.path());
    match build.output() {
        Ok(output) => assert!(output.status.success(), "{output:?}"),
        Err(_) => return skip(&Lack::Tool("go")),
    }
    let output = heap(&["run", "-o", file.to_str().unwrap(), "--", program.to_str().unwrap()]);
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success() && said.contains("only allocations of its C code"), "{said}");
    let report = report(&file);
    let of_c = report["sites"].as_array().unwrap().iter();
    let of_c = of_c.filter(|site| number(site, "allocated_bytes").is_multiple_of(777));
    let sums: Vec<_> =
        of_c.map(|site| (number(site, "allocations"), number(site, "frees"))).collect();
    assert_eq!(sums, [(100, 50)], "{report}");
}
