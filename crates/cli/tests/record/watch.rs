//! `watch` reports every access with its value, its thread and its call stack. Compared with
//! programs that print their writes, and with gdb.

use crate::fixture;

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Child, ChildStdin, ChildStdout, Command, ExitStatus, Stdio};

use pagewise_skip::{Lack, is_root, skip, skip_part};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

use fixture::{interruptible, number, pagewise, program, skip_without_events};

/// Records a skip because no breakpoint is available. The reason is from the message of the
/// command.
fn cannot_watch(printed: &str) {
    // Other tests and debuggers use the few breakpoint registers of a CPU.
    if printed.contains("No space left on device") {
        return skip(&Lack::Chance("all breakpoint registers are in use"));
    }
    skip_without_events("/sys/bus/event_source/devices/breakpoint/type");
}

/// A program that has printed the addresses of its words, and waits for a byte.
struct WaitingWords {
    child: Child,
    stdin: Option<ChildStdin>,
    stdout: BufReader<ChildStdout>,
    facts: BTreeMap<String, u64>,
}

impl WaitingWords {
    fn start(program: &Path, args: &[&str]) -> WaitingWords {
        let mut command = Command::new(program);
        let command = command.args(args).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command.spawn().unwrap();
        let mut held = WaitingWords {
            stdin: child.stdin.take(),
            stdout: BufReader::new(child.stdout.take().unwrap()),
            child,
            facts: BTreeMap::new(),
        };
        loop {
            let line = held.line();
            match line.split_once(" = ") {
                Some((key, value)) => held.facts.insert(key.to_owned(), value.parse().unwrap()),
                None => break assert_eq!(line, "ready"),
            };
        }
        held
    }

    fn line(&mut self) -> String {
        let mut line = String::new();
        self.stdout.read_line(&mut line).unwrap();
        line.trim_end().to_owned()
    }

    fn pid(&self) -> String {
        self.child.id().to_string()
    }

    fn go(&mut self) {
        self.stdin.as_mut().unwrap().write_all(b"\n").unwrap();
    }

    /// Waits until the program has done its work, and lets it end.
    fn finish(mut self) {
        let line = self.line();
        assert!(line == "done" || line.is_empty(), "{line}");
        self.stdin.take();
        assert!(self.child.wait().unwrap().success());
    }
}

impl Drop for WaitingWords {
    fn drop(&mut self) {
        // Both calls fail only if the process has ended.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A running `pagewise watch` that has begun to watch.
struct Watching(Child);

impl Watching {
    /// Starts to watch. Returns `None`, after recording a skip, if no breakpoint is available.
    fn begin(args: &[&str]) -> Option<Watching> {
        let mut command = interruptible();
        let command = command.args(["watch", "--json"]).args(args).stdin(Stdio::null());
        let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        let mut line = String::new();
        let mut stderr = BufReader::new(child.stderr.take().unwrap());
        stderr.read_line(&mut line).unwrap();
        if line.contains("cannot watch") {
            cannot_watch(&line);
            let _ = child.wait();
            return None;
        }
        assert!(line.starts_with("watching "), "{line}");
        Some(Watching(child))
    }

    fn report(mut self) -> Value {
        let mut text = String::new();
        self.0.stdout.take().unwrap().read_to_string(&mut text).unwrap();
        assert!(self.0.wait().unwrap().success());
        serde_json::from_str(&text).unwrap()
    }
}

/// Watches a program while it does its work.
fn watched(held: WaitingWords, args: &[&str]) -> Option<Value> {
    let mut held = held;
    let pid = held.pid();
    let watching = Watching::begin(&[&[pid.as_str()], args].concat())?;
    held.go();
    held.finish();
    let report = watching.report();
    (!has_lost_some(&report)).then_some(report)
}

/// Records a skipped test and returns true if an ordinary user's recording lost accesses.
/// `kernel.perf_event_mlock_kb` bounds the ring buffers of ordinary users: they overflow if other
/// programs keep the CPUs busy. A recording of root must lose nothing.
fn has_lost_some(report: &Value) -> bool {
    let lost = number(report, "watched.lost");
    if lost > 0 && !rustix::process::geteuid().is_root() {
        skip(&Lack::Chance(&format!("the small ring buffers of this user lost {lost} accesses")));
        return true;
    }
    assert_eq!(lost, 0);
    false
}

fn writers(args: &[&str]) -> WaitingWords {
    WaitingWords::start(&program("writers"), args)
}

fn hits(report: &Value) -> &[Value] {
    report["hits"].as_array().unwrap()
}

fn values(report: &Value) -> Vec<u64> {
    hits(report).iter().map(|hit| number(hit, "value")).collect()
}

/// Returns the frames of an access: function and line.
fn frames(report: &Value, hit: &Value) -> Vec<(String, u64)> {
    let stacks = report["stacks"].as_array().unwrap();
    let stack = stacks.iter().find(|stack| stack["stack"] == hit["stack"]).unwrap();
    let frame = |frame: &Value| {
        let function = frame["function"].as_str().unwrap_or_default().to_owned();
        (function, frame["line"].as_u64().unwrap_or(0))
    };
    stack["frames"].as_array().unwrap().iter().map(frame).collect()
}

/// Returns the line of a fixture that has some words.
fn line_with(source: &str, words: &str) -> u64 {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fixtures/programs");
    let text = fs::read_to_string(folder.join(source)).unwrap();
    text.lines().zip(1..).find(|(line, _)| line.contains(words)).unwrap().1
}

/// Runs a command under `watch`. Returns its exit status, its output, and the report.
fn command(args: &[&str], command: &[&str]) -> Option<(ExitStatus, String, Value)> {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("report.json");
    let mut all = vec!["watch", "--json", "--output", path.to_str().unwrap()];
    all.extend(args.iter().chain(&["--"]).chain(command));
    let output = pagewise(&all);
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    if said.contains("cannot watch") {
        cannot_watch(&said);
        return None;
    }
    let report = fs::read(path).unwrap_or_else(|_| panic!("no report: {said}"));
    let stdout = String::from_utf8(output.stdout).unwrap();
    Some((output.status, stdout, serde_json::from_slice(&report).unwrap()))
}

#[test]
fn each_write_of_each_thread_is_reported_once_with_its_result() {
    let Some(report) = watched(writers(&["500", "2"]), &["counted"]) else { return };
    assert_eq!(values(&report), (1..=1000).collect::<Vec<u64>>());
    assert_eq!(number(&report, "hits.0.old"), 0);
    let mut by_thread: BTreeMap<u64, usize> = BTreeMap::new();
    for hit in hits(&report) {
        *by_thread.entry(number(hit, "tid")).or_default() += 1;
        assert_eq!(frames(&report, hit)[0].0, "add_one");
        assert_eq!(frames(&report, hit)[1].0, "adds");
    }
    // Both threads were created after the watch began.
    assert!(!by_thread.contains_key(&number(&report, "watched.pid")));
    assert_eq!(by_thread.into_values().collect::<Vec<usize>>(), [500, 500]);
}

#[test]
fn stored_values_are_reported_exactly() {
    let Some(report) = watched(writers(&["300", "1"]), &["sequence"]) else { return };
    assert_eq!(values(&report), (1..=300).collect::<Vec<u64>>());
    assert_eq!(number(&report, "watched.length"), 4);
    let old: Vec<u64> = hits(&report).iter().map(|hit| number(hit, "old")).collect();
    assert_eq!(old, (0..300).collect::<Vec<u64>>());
    if cfg!(target_arch = "x86_64") {
        assert!(hits(&report).iter().all(|hit| hit["known"] == "stored"));
    }
    let line = line_with("writers.c", "sequence = value;");
    assert_eq!(frames(&report, &hits(&report)[0])[0], ("set_sequence".to_owned(), line));
}

/// Returns the values of the word after each store, which `stores` printed.
fn said(stdout: &str) -> Vec<(&str, u64)> {
    let line = |line| -> Option<(&str, u64)> {
        let (name, value) = str::split_once(line, ' ')?;
        Some((name, value.parse().ok()?))
    };
    stdout.lines().filter_map(line).collect()
}

#[test]
fn all_kinds_of_stores_are_reported_with_their_values_at_any_rate() {
    if !is_root() {
        return;
    }
    let stores = program("stores");
    let words = [stores.to_str().unwrap(), "200"];
    let Some((status, stdout, report)) = command(&["--symbol", "words+16", "8"], &words) else {
        return;
    };
    assert!(status.success());
    assert_eq!(number(&report, "watched.lost"), 0);
    let said = said(&stdout);
    assert_eq!((said.len(), hits(&report).len()), (2400, 2400));
    let is_copied = hits(&report).iter().any(|hit| hit["known"] == "copied");
    for ((name, value), hit) in said.iter().zip(hits(&report)) {
        // Without a BPF program, values of vector stores and exchanges may stay unknown.
        if is_copied || hit["known"] != "no" {
            assert_eq!((hit["value"].as_u64(), *name), (Some(*value), *name), "{hit}");
        }
    }
    if !is_copied {
        skip_part(&Lack::Machine("no BPF program can be loaded"));
    }
}

#[test]
fn values_derived_from_code_need_no_rights_and_are_right() {
    let folder = fixture::readable_copies(&[&program("stores")]);
    let [ours, theirs, report] = ["pagewise", "stores", "report"].map(|it| folder.path().join(it));
    fs::write(&report, "").unwrap();
    fs::set_permissions(&report, fs::Permissions::from_mode(0o666)).unwrap();
    let output = fixture::as_nobody()
        .arg(&ours)
        .args(["watch", "--json", "--output"])
        .arg(&report)
        .args(["--symbol", "words+16", "8", "--"])
        .arg(&theirs)
        // An unprivileged user has small ring buffers.
        .arg("2")
        .output();
    let Ok(output) = output else { return skip(&Lack::Tool("setpriv")) };
    let stderr = String::from_utf8_lossy(&output.stderr);
    if stderr.contains("setpriv:") {
        return skip(&Lack::Machine(&stderr));
    }
    if stderr.contains("cannot watch") {
        let level = fs::read_to_string("/proc/sys/kernel/perf_event_paranoid").unwrap();
        assert!(level.trim().parse::<i32>().unwrap() > 2, "{stderr}");
        return skip(&Lack::Machine("only root may record events (perf_event_paranoid)"));
    }
    let stdout = String::from_utf8(output.stdout).unwrap();
    let report: Value = serde_json::from_slice(&fs::read(&report).unwrap())
        .unwrap_or_else(|error| panic!("{error}: {stderr}"));
    let said = said(&stdout);
    assert_eq!((said.len(), hits(&report).len()), (24, 24));
    for ((name, value), hit) in said.iter().zip(hits(&report)) {
        let told = hit["value"].as_u64();
        assert!(told.is_none() || told == Some(*value), "{name}: {value}, {hit}");
        if cfg!(target_arch = "x86_64") && ["mov", "cmpxchg", "fill"].contains(name) {
            assert_eq!((told, &hit["known"]), (Some(*value), &"stored".into()), "{name}: {hit}");
        }
    }
}

#[test]
fn pieces_of_all_sizes_and_several_at_once_are_watched_also_in_threads_made_later() {
    for (place, length, expected) in
        [("byte_one", "1", u64::from(b'x')), ("two_bytes", "2", 513), ("wide+8", "8", 2)]
    {
        let Some(report) = watched(writers(&["1", "1"]), &[place, length]) else { return };
        assert_eq!(values(&report), [expected], "{place}");
        assert_ne!(hits(&report)[0]["tid"], report["watched"]["pid"]);
    }
    let Some(report) = watched(writers(&["1", "1"]), &["wide"]) else { return };
    let told: Vec<&str> = hits(&report).iter().map(|hit| hit["value"].as_str().unwrap()).collect();
    let (one, two, none) = ("0100000000000000", "0200000000000000", "0000000000000000");
    assert_eq!(told, [format!("{one}{none}"), format!("{one}{two}")]);
}

#[test]
fn writes_of_the_kernel_are_reported_with_the_system_call() {
    if !is_root() {
        return;
    }
    let mut held = writers(&["1", "1"]);
    let Some(watching) = Watching::begin(&[&held.pid(), "filled", "--count", "1"]) else { return };
    held.go();
    // The value is read from memory, which exists until the program ends.
    let report = watching.report();
    held.finish();
    assert_eq!(values(&report), [u64::from_le_bytes(*b"abcdefgh")]);
    let hit = &hits(&report)[0];
    assert_eq!(hit["call"], "read");
    // A BPF program copied the value, if the kernel allows one.
    assert!(hit["known"] == "copied" || hit["known"] == "read", "{hit}");
    let main = ("main".to_owned(), line_with("writers.c", "read(ends[0]"));
    assert!(frames(&report, hit).contains(&main), "{report}");
}

#[test]
fn a_write_to_the_stack_of_a_returned_function_is_attributed() {
    let mut held = WaitingWords::start(&program("overwritten"), &["hold"]);
    let address = held.facts["message.address"].to_string();
    let Some(watching) = Watching::begin(&[&held.pid(), &address, "1", "--count", "1"]) else {
        return;
    };
    held.go();
    let report = watching.report();
    held.finish();
    assert_eq!(report["watched"]["mapping"], "[stack]");
    assert_eq!(report["watched"]["ending"], "enough hits");
    assert_eq!(values(&report), [u64::from(b'#')]);
    let frames = frames(&report, &hits(&report)[0]);
    let line = line_with("overwritten.c", "/* overwrites */");
    assert_eq!(frames[0], ("tidies_up".to_owned(), line));
    let callers: Vec<&str> = frames[1..3].iter().map(|(function, _)| function.as_str()).collect();
    assert_eq!(callers, ["works_on", "main"]);
}

#[test]
fn a_condition_chooses_and_a_count_ends() {
    let when = ["counted", "--when", "value >= 10 && value < 13 || old == 0x63"];
    let Some(report) = watched(writers(&["50", "2"]), &when) else { return };
    assert_eq!(values(&report), [10, 11, 12, 100]);
    assert_eq!(number(&report, "watched.passed_over"), 96);
    let Some(report) = watched(writers(&["50", "2"]), &["counted", "--count", "7"]) else { return };
    assert_eq!(values(&report), (1..=7).collect::<Vec<u64>>());
    let Some(report) = watched(writers(&["50", "2"]), &["counted", "--when", "value > 900"]) else {
        return;
    };
    assert_eq!((hits(&report).len(), number(&report, "watched.passed_over")), (0, 100));
}

#[test]
fn reads_are_reported_on_request_and_change_nothing() {
    let Some(report) = watched(writers(&["1", "1"]), &["wide", "8", "--rw"]) else { return };
    assert_eq!(values(&report), [1]);
    let Some(report) = watched(writers(&["20", "1"]), &["limit_of_writes", "--rw"]) else { return };
    if cfg!(target_arch = "x86_64") {
        assert!(hits(&report).len() >= 20);
        assert!(hits(&report).iter().all(|hit| hit["access"] == "read" && hit["value"] == 20));
        assert!(hits(&report).iter().all(|hit| hit["known"] == "unchanged" && hit["old"] == 20));
    }
}

#[test]
fn a_command_is_watched_from_before_its_first_instruction_and_its_exit_status_is_ours() {
    let overwritten = program("overwritten");
    let told = command(&["--symbol", "elsewhere"], &[overwritten.to_str().unwrap()]);
    let Some((status, stdout, report)) = told else { return };
    assert_eq!((status.code(), stdout.as_str()), (Some(0), ""));
    assert_eq!(values(&report), [u64::from(b'#'), u64::from(b'#') + 1]);
    assert_eq!(report["watched"]["ending"], "exit 0");
    // This watch is on an address that is known before the command starts. The command fails with
    // an exit status.
    let shell = ["sh", "-c", "echo out; exit 3"];
    let Some((status, stdout, report)) = command(&["--at", "0x1000", "8"], &shell) else { return };
    assert_eq!((status.code(), stdout.as_str()), (Some(3), "out\n"));
    assert!(hits(&report).is_empty());
    let failed = pagewise(&["watch", "--at", "0x1001", "8", "--", "sh", "-c", "echo ran"]);
    assert_eq!(failed.status.code(), Some(1));
    assert!(failed.stdout.is_empty(), "a command that cannot be watched is not run");
    // A library that is loaded later could have the variable, so the command runs.
    let failed = pagewise(&["watch", "--symbol", "nowhere", "--", "sh", "-c", "echo ran"]);
    let said = String::from_utf8(failed.stderr).unwrap();
    assert_eq!(
        (failed.status.code(), failed.stdout.as_slice()),
        (Some(1), &b"ran\n"[..]),
        "{said}"
    );
    assert!(said.contains("was not watched") && said.contains("nowhere"), "{said}");
}

#[test]
fn a_variable_of_a_library_is_watched_from_before_its_code_runs_whenever_a_command_loads_it() {
    let folder = tempfile::tempdir_in(fixture::disk()).unwrap();
    let at = |name: &str| folder.path().join(name).to_str().unwrap().to_owned();
    // The constructor of the library writes each time the library is loaded, for `user` before
    // main.
    let library = "int in_library;\n__attribute__((constructor)) static void first(void) { in_library = 41; }\n\
                   void set(int value) { in_library = value; }\n";
    let user = "void set(int);\nint main(void) { set(1); set(2); return 7; }\n";
    let later = "#include <dlfcn.h>\n#include <pthread.h>\n\
                 static void *loads(void *path) {\n  void *it = dlopen(path, RTLD_NOW);\n  if (!it) return it;\n  \
                 ((void (*)(int))dlsym(it, \"set\"))(5);\n  return path;\n}\n\
                 int main(int n, char **words) {\n  pthread_t thread;\n  dlopen(\"libm.so.6\", RTLD_NOW);\n  \
                 pthread_create(&thread, 0, loads, words[n - 1]);\n  pthread_join(thread, 0);\n  return 3;\n}\n";
    for (name, text) in [("library.c", library), ("user.c", user), ("later.c", later)] {
        fs::write(at(name), text).unwrap();
    }
    let cc = |args: &[&str]| {
        assert!(Command::new("cc").args(args).current_dir(&folder).status().unwrap().success());
    };
    cc(&["-O1", "-g", "-shared", "-fPIC", "-o", "libwatched.so", "library.c"]);
    cc(&["-O1", "-o", "user", "user.c", "-L.", "-lwatched", "-Wl,-rpath,$ORIGIN"]);
    cc(&["-O1", "-pthread", "-o", "later", "later.c", "-ldl"]);
    let symbol = &["--symbol", "in_library"];
    let through_shell = format!("exec {}", at("user"));
    for (words, expected, status) in [
        (&[at("user").as_str()][..], &[41, 1, 2][..], 7),
        (&["sh", "-c", &through_shell], &[41, 1, 2], 7),
        (&[&at("later"), &at("libwatched.so")], &[41, 5], 3),
    ] {
        let Some((ended, _, report)) = command(symbol, words) else { return };
        assert_eq!(
            (values(&report).as_slice(), ended.code()),
            (expected, Some(status)),
            "{words:?}"
        );
        assert_eq!(frames(&report, &hits(&report)[0])[0].0, "first");
    }
}

#[test]
fn each_hit_is_printed_as_it_comes_and_its_callers_once() {
    let mut held = writers(&["3", "1"]);
    let mut command = interruptible();
    let command = command.args(["watch", &held.pid(), "counted"]).stdin(Stdio::null());
    let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let mut said = String::new();
    BufReader::new(child.stderr.take().unwrap()).read_line(&mut said).unwrap();
    if said.contains("cannot watch") {
        cannot_watch(&said);
        child.wait().unwrap();
        return;
    }
    held.go();
    assert_eq!(held.line(), "done");
    // The program and the watch still run.
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines().map(Result::unwrap);
    let mut next = || lines.next().unwrap();
    let first = next();
    let line = line_with("writers.c", "__atomic_fetch_add");
    assert!(first.contains(&format!("  0 → 1  add_one writers.c:{line}  computed  ")), "{first}");
    assert!(next().starts_with("        adds writers.c:"));
    let rest: Vec<String> =
        std::iter::from_fn(|| Some(next())).take_while(|it| !it.contains("2 → 3")).collect();
    assert_eq!(rest.iter().filter(|line| line.contains("1 → 2")).count(), 1, "{rest:?}");
    assert_eq!(rest.last().map(|line| line.starts_with(' ')), Some(false), "{rest:?}");
    held.stdin.take();
    assert!(held.child.wait().unwrap().success());
    let report: Vec<String> = lines.collect();
    assert!(child.wait().unwrap().success());
    assert!(report.iter().any(|line| line.contains("hits 3")), "{report:?}");
    assert!(!report.iter().any(|line| line.contains("VALUE FROM")), "{report:?}");
}

#[test]
fn variables_are_found_in_programs_of_any_kind_and_in_libraries() {
    let folder = tempfile::tempdir_in(fixture::disk()).unwrap();
    let at = |name: &str| folder.path().join(name).to_str().unwrap().to_owned();
    let library = "int in_library; void set(int value) { in_library = value; }";
    let user = "#include <stdio.h>\nvoid set(int);\nint main(void) {\n  char b;\n  puts(\"ready\"); fflush(stdout);\n  \
                if (scanf(\"%c\", &b) < 0) return 1;\n  set(1); set(2);\n  return 0;\n}\n";
    fs::write(at("library.c"), library).unwrap();
    fs::write(at("user.c"), user).unwrap();
    let cc = |args: &[&str]| {
        assert!(Command::new("cc").args(args).current_dir(&folder).status().unwrap().success());
    };
    cc(&["-O1", "-g", "-shared", "-fPIC", "-o", "libwatched.so", "library.c"]);
    cc(&["-O1", "-o", "user", "user.c", "-L.", "-lwatched", "-Wl,-rpath,$ORIGIN"]);
    let user = WaitingWords::start(Path::new(&at("user")), &[]);
    let Some(report) = watched(user, &["in_library"]) else { return };
    assert_eq!(values(&report), [1, 2]);
    assert!(report["watched"]["mapping"].as_str().unwrap().contains("libwatched.so"));

    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fixtures/programs/writers.c");
    for (kind, name) in [("-no-pie", "fixed"), ("-pie", "anywhere")] {
        cc(&["-O2", "-g", "-pthread", "-fPIE", kind, "-o", name, source.to_str().unwrap()]);
        let held = WaitingWords::start(Path::new(&at(name)), &["5", "1"]);
        let expected = held.facts["counted.address"];
        let Some(report) = watched(held, &["counted"]) else { return };
        assert_eq!(number(&report, "watched.address"), expected, "{kind}");
        assert_eq!(values(&report), [1, 2, 3, 4, 5], "{kind}");
    }
}

#[test]
fn an_impossible_watch_is_refused_with_a_message() {
    let held = writers(&["1", "1"]);
    let pid = held.pid();
    for (args, words) in [
        (&["0x100001", "4"][..], "not aligned"),
        (&["0x100002", "4"], "not aligned"),
        (&["0x100000", "40"], "breakpoints"),
        (&["0x100000", "0"], "no bytes"),
        (&["of_each_thread"], "each thread has"),
        (&["no_such_variable"], "no file that process"),
        (&["counted+8"], "has 8 bytes"),
        (&["\u{1b}[2J"], "no file that process"),
        (&["counted", "--when", "valu == 0"], "did you mean value"),
        (&["wide", "--when", "value == 0"], "no more than 8 bytes"),
    ] {
        let output = pagewise(&[&["watch", &pid], args].concat());
        let said = String::from_utf8(output.stderr).unwrap();
        assert!(matches!(output.status.code(), Some(1 | 2)), "{args:?}");
        assert!(said.contains(words) && !said.contains('\u{1b}'), "{args:?}: {said}");
    }
}

#[test]
fn an_interrupted_recording_is_reported_up_to_the_interruption() {
    let held = writers(&["1", "1"]);
    let Some(watching) = Watching::begin(&[&held.pid(), "counted", "--for", "10ms"]) else {
        return;
    };
    assert_eq!(watching.report()["watched"]["ending"], "time is up");
    let Some(watching) = Watching::begin(&[&held.pid(), "counted"]) else { return };
    let pid = Pid::from_raw(watching.0.id().cast_signed()).unwrap();
    kill_process(pid, Signal::INT).unwrap();
    assert_eq!(watching.report()["watched"]["ending"], "interrupted");
}

/// Returns two facts from the `status` of a process: true if it has a tracer, and true if it is
/// stopped.
fn traced_and_stopped(pid: u32) -> (bool, bool) {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let field =
        |name: &str| status.lines().find_map(|line| line.strip_prefix(name)).unwrap().trim();
    (field("TracerPid:") != "0", field("State:").starts_with(['T', 't']))
}

#[test]
fn sigtraps_caused_by_a_hypervisor_do_not_reach_the_process() {
    if !pagewise_sys::cpuid::is_virtual() {
        return skip(&Lack::Machine("no hypervisor runs it"));
    }
    let mut command = Command::new(program("trapped"));
    let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines().map(Result::unwrap);
    assert_eq!(lines.next().unwrap(), "ready");
    let watching = Watching::begin(&[&child.id().to_string(), "watched"]);
    assert_eq!(traced_and_stopped(child.id()).0, watching.is_some());
    drop(child.stdin.take());
    assert_eq!(lines.next().unwrap(), "stop");
    let id = Pid::from_raw(child.id().cast_signed()).unwrap();
    while !traced_and_stopped(child.id()).1 {
        std::thread::yield_now();
    }
    // A process that a signal has stopped stays stopped.
    std::thread::sleep(std::time::Duration::from_millis(100));
    assert!(traced_and_stopped(child.id()).1);
    kill_process(id, Signal::CONT).unwrap();
    let counts = lines.next().unwrap();
    assert!(child.wait().unwrap().success());
    let Some(watching) = watching else { return };
    assert_eq!(counts, "main 0 thread 0 child 0 instructions 2 others 100");
    let report = watching.report();
    // Both threads write; the child process writes to its own copy.
    if !has_lost_some(&report) {
        assert_eq!(number(&report, "watched.count"), 200);
    }
}

#[test]
fn a_process_is_traced_no_more_after_it_was_watched() {
    let held = WaitingWords::start(&program("trapped"), &[]);
    let pid = held.pid();
    let output = pagewise(&["watch", &pid, "watched", "--for", "10ms"]);
    if !output.status.success() {
        return cannot_watch(&String::from_utf8_lossy(&output.stderr));
    }
    assert!(!traced_and_stopped(pid.parse().unwrap()).0);
}

#[test]
fn gdb_sees_the_same_values() {
    const WRITES: &str = "6";
    let writers = program("writers");
    let folder = tempfile::tempdir().unwrap();
    let input = folder.path().join("input");
    fs::write(&input, "\n").unwrap();
    let mut gdb = Command::new("gdb");
    gdb.args(["-nx", "-batch", "-ex", "watch sequence"]);
    gdb.args(["-ex", &format!("run {WRITES} 1 < {}", input.to_str().unwrap())]);
    for _ in 0..8 {
        gdb.args(["-ex", "continue"]);
    }
    let Ok(output) = gdb.arg(&writers).env("LC_ALL", "C").stdin(Stdio::null()).output() else {
        return skip(&Lack::Tool("gdb"));
    };
    let said = String::from_utf8_lossy(&output.stdout);
    let theirs: BTreeSet<u64> =
        said.lines().filter_map(|line| line.strip_prefix("New value = ")?.parse().ok()).collect();
    if theirs.is_empty() {
        return skip(&Lack::Ability { of: "gdb", what: "cannot watch" });
    }
    let words = [writers.to_str().unwrap(), WRITES, "1"];
    let Some((_, _, report)) = command(&["--symbol", "sequence"], &words) else { return };
    assert_eq!(values(&report), theirs.into_iter().collect::<Vec<u64>>());
}
