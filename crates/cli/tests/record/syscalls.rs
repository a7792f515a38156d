//! `syscalls` reports every memory call and its effect, and does not disturb the target. Compared
//! with strace, the programs' own reading of their VIRT, and calls with known effects.

use crate::fixture;

use std::collections::BTreeMap;
use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::fs::{PermissionsExt, chown};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use pagewise_skip::{Lack, is_root, skip};
use rustix::process::{Pid, Signal, kill_process, kill_process_group};
use serde_json::Value;

use fixture::{copy_program, interruptible, number, pagewise, program, reported};

const KIB: i64 = 1 << 10;

/// Output and ending of a command, and the report of it.
struct SyscallsRun {
    status: ExitStatus,
    stdout: String,
    report: Value,
}

/// Runs `syscalls OPTIONS -- COMMAND` in a folder of its own, with the report in a file.
fn told(command: &[&str]) -> SyscallsRun {
    told_by(&[env!("CARGO_BIN_EXE_pagewise")], command)
}

/// Does the same as [`told`], with pagewise started by the command line `pagewise`.
fn told_by(pagewise: &[&str], command: &[&str]) -> SyscallsRun {
    let folder = tempfile::tempdir().unwrap();
    fs::set_permissions(folder.path(), fs::Permissions::from_mode(0o777)).unwrap();
    let (output, report) = reported(&folder, pagewise, &["syscalls"], command);
    SyscallsRun { status: output.status, stdout: String::from_utf8(output.stdout).unwrap(), report }
}

/// Returns the calls for which `fits` is true.
fn calls(report: &Value, fits: impl Fn(&Value) -> bool) -> Vec<&Value> {
    report["calls"].as_array().unwrap().iter().filter(|call| fits(call)).collect()
}

fn calls_program() -> String {
    program("calls").to_str().unwrap().to_owned()
}

/// Returns the number of calls, and of failed calls, by name.
fn counts(report: &Value) -> BTreeMap<String, (u64, u64)> {
    let rows = report["by_name"].as_array().unwrap().iter();
    let named = rows.filter(|row| row["name"] != "execve");
    named
        .map(|row| {
            (
                row["name"].as_str().unwrap().to_owned(),
                (number(row, "count"), number(row, "errors")),
            )
        })
        .collect()
}

/// Returns the counts of the same calls by strace; `None`, after printing a message, without
/// strace.
fn strace(command: &[&str]) -> Option<BTreeMap<String, (u64, u64)>> {
    const CALLS: &str = "brk,mmap,munmap,mremap,mprotect,madvise,msync,mlock,munlock,mincore,shmget,shmat,shmdt,\
                         shmctl,memfd_create,arch_prctl";
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("counts");
    let strace = Command::new("strace")
        .args(["-f", "-c", "-U", "name,calls,errors", "-e", &format!("trace={CALLS}"), "-o"])
        .arg(&file)
        .args(command)
        .current_dir(folder.path())
        .stdin(Stdio::null())
        .output();
    if strace.is_err() {
        skip(&Lack::Tool("strace"));
        return None;
    }
    let table = fs::read_to_string(file).unwrap();
    let row = |line: &str| {
        let mut words = line.split_whitespace();
        let (name, count) = (words.next()?, words.next()?.parse().ok()?);
        let errors = words.next().map_or(Some(0), |word| word.parse().ok())?;
        (name != "total").then(|| (name.to_owned(), (count, errors)))
    };
    Some(table.lines().filter_map(row).collect())
}

#[test]
fn calls_are_as_many_as_strace_counts() {
    let program = calls_program();
    let script = "ls / >/dev/null; (ls /; ls /) >/dev/null; exec true";
    for command in
        [&["true"][..], &[&program, "known"], &[&program, "vfork"], &["sh", "-c", script]]
    {
        let Some(theirs) = strace(command) else { return };
        assert!(theirs["mmap"].0 > 0);
        assert_eq!(counts(&told(command).report), theirs, "{command:?}");
    }
}

#[test]
fn virt_is_accounted_for_to_the_byte() {
    for act in ["known", "threads", "vfork"] {
        let told = told(&[&calls_program(), act]);
        assert_eq!(told.status.code(), Some(7));
        let virt: u64 = told.stdout.trim().strip_prefix("virt = ").unwrap().parse().unwrap();
        for process in told.report["processes"].as_array().unwrap() {
            assert_eq!(process["virt_otherwise"], 0, "{act}: {process}");
            let sum =
                process["virt_start"].as_i64().unwrap() + process["virt_change"].as_i64().unwrap();
            assert_eq!(Some(sum), process["virt_end"].as_i64(), "{act}");
        }
        assert_eq!(number(&told.report, "processes.0.virt_end"), virt, "{act}");
    }
}

#[test]
fn growth_of_the_stack_is_separate_from_the_effect_of_calls() {
    let told = told(&[&calls_program(), "stack"]);
    let otherwise = number(&told.report, "processes.0.virt_otherwise");
    // The stack grows by 1 MiB, of which a part was already mapped.
    assert!((800 << 10..=1100 << 10).contains(&otherwise), "{otherwise}");
    let virt = format!("virt = {}\n", number(&told.report, "processes.0.virt_end"));
    assert_eq!(told.stdout, virt);
}

#[test]
fn each_call_has_the_effect_that_it_is_known_to_have() {
    let page = i64::try_from(rustix::param::page_size()).unwrap();
    if page > 4 * KIB {
        return skip(&Lack::Machine("pages are larger than 4 KiB"));
    }
    let told = told(&[&calls_program(), "known"]);
    let mine = calls(&told.report, |call| call["phase"] == "program");
    // The calls after the call of the constructor: name, start of the arguments after the address,
    // bytes, effect.
    let expected = [
        (
            "mmap",
            ", 1024001, PROT_READ|PROT_WRITE, MAP_PRIVATE|MAP_ANONYMOUS, -1, 0",
            1024001,
            1000 * KIB + page,
        ),
        ("munmap", ", 102400", 100 * KIB, -100 * KIB),
        ("munmap", ", 204800", 200 * KIB, -100 * KIB),
        (
            "mmap",
            ", 307200, PROT_READ, MAP_PRIVATE|MAP_FIXED|MAP_ANONYMOUS, -1, 0",
            300 * KIB,
            100 * KIB,
        ),
        (
            "mmap",
            ", 65536, PROT_READ|PROT_WRITE, MAP_PRIVATE|MAP_ANONYMOUS, -1, 0",
            64 * KIB,
            64 * KIB,
        ),
        ("mremap", ", 65536, 524288, MREMAP_MAYMOVE", 512 * KIB, 448 * KIB),
        ("mremap", ", 524288, 131072, 0", 128 * KIB, -384 * KIB),
        ("mmap", ", 204800, PROT_NONE, MAP_PRIVATE|MAP_ANONYMOUS, -1, 0", 200 * KIB, 200 * KIB),
        ("mremap", ", 131072, 163840, MREMAP_MAYMOVE|MREMAP_FIXED, 0x", 160 * KIB, -128 * KIB),
        ("mremap", ", 163840, 163840, MREMAP_MAYMOVE|MREMAP_DONTUNMAP, NULL", 160 * KIB, 160 * KIB),
        ("brk", "", 0, 0),
        ("brk", "", 100 * KIB + 5, 100 * KIB + page),
        ("brk", "", 50 * KIB + 5, -(52 * KIB)),
        ("brk", "", 0, 0),
    ];
    for (call, (name, arguments, bytes, change)) in mine[1..].iter().zip(expected) {
        assert_eq!(call["name"], name);
        assert!(call["args"].as_str().unwrap().contains(arguments), "{call}");
        assert_eq!(
            (&call["bytes"], &call["virt_change"]),
            (&bytes.into(), &change.into()),
            "{call}"
        );
    }
    let sum = |name: &str, key: &str| -> i64 {
        mine.iter().filter(|call| call["name"] == name).filter_map(|call| call[key].as_i64()).sum()
    };
    assert_eq!((sum("shmat", "virt_change"), sum("shmdt", "virt_change")), (192 * KIB, -176 * KIB));
    assert_eq!((sum("shmat", "bytes"), sum("shmget", "bytes")), (192 * KIB, 96 * KIB));
    for name in ["madvise", "mprotect", "mlock", "munlock", "mincore", "msync", "memfd_create"] {
        assert_eq!(sum(name, "virt_change"), 0, "{name}");
    }
}

#[test]
fn arguments_are_words_and_errors_have_names() {
    let told = told(&[&calls_program(), "known"]);
    let has = |name: &str, words: &str| {
        let found = calls(&told.report, |call| {
            call["name"] == name && call["args"].as_str().unwrap().contains(words)
        });
        assert_eq!(found.len(), 1, "{name} {words}");
        found[0].clone()
    };
    has("mmap", "/calls\u{1b}[2J\nfile>, 0");
    has("mmap", "MAP_SHARED|MAP_POPULATE, 4</memfd:calls\tmemory (deleted)>");
    has("memfd_create", "\"calls\tmemory\", MFD_CLOEXEC");
    has("shmget", "IPC_PRIVATE, 98304, IPC_CREAT|0o600");
    has("shmat", "NULL, SHM_RDONLY");
    has("msync", ", 8192, MS_SYNC");
    for (name, words, error) in [
        ("munmap", "0x1, 1", "EINVAL"),
        ("madvise", "NULL, 45056, MADV_DONTNEED", "ENOMEM"),
        ("mmap", "NULL, 0, ", "EINVAL"),
        ("mmap", "999, 0", "EBADF"),
    ] {
        let call = has(name, words);
        assert_eq!(call["error"], error);
        assert!(call["result"].is_null() && call["bytes"].is_null(), "{call}");
    }
    let words = ["syscalls", "--calls", "all", "--", &calls_program(), "known"];
    let output = fixture::pagewise_aside(&words);
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(!text.contains('\u{1b}'), "a name steers the terminal");
}

#[test]
fn start_up_by_the_linker_is_separate_from_the_program() {
    let told = told(&[&calls_program(), "known"]);
    let of = |phase: &str| calls(&told.report, |call| call["phase"] == phase);
    assert_eq!(of("exec").len(), 1);
    let start_up = of("start-up");
    // The start-up of a dynamically linked program maps the C library. The calls of the program
    // itself follow.
    assert!(start_up.iter().any(|call| call["args"].as_str().unwrap().contains("libc.so")));
    assert!(start_up.iter().all(|call| call["by"].as_str().unwrap().contains("/ld")));
    let program = of("program");
    assert_eq!(program[0]["bytes"], 12 << 10, "what the program's constructor maps");
    assert!(program.iter().all(|call| call["by"].as_str().unwrap().contains("libc.so")));
    let sums = told.report["by_caller"].as_array().unwrap();
    let count: u64 = sums.iter().map(|row| number(row, "count")).sum();
    assert_eq!(count, told.report["calls"].as_array().unwrap().len() as u64);
}

#[test]
fn a_static_program_has_no_start_up() {
    let Some(program) = fixture::static_program("calls") else { return };
    let told = told(&[program.to_str().unwrap(), "vfork"]);
    let phases: Vec<&Value> =
        calls(&told.report, |_| true).iter().map(|call| &call["phase"]).collect();
    assert_eq!(phases[0], "exec");
    assert!(phases.len() > 2 && phases[1..].iter().all(|phase| *phase == "program"));
    assert_eq!(told.report["processes"][0]["virt_otherwise"], 0);
}

#[test]
fn libraries_loaded_later_are_the_linkers_work_in_the_programs_time() {
    let source =
        "#include <dlfcn.h>\nint main(void) { return dlopen(\"libm.so.6\", RTLD_NOW) ? 0 : 1; }\n";
    let folder = tempfile::tempdir().unwrap();
    let (file, program) = (folder.path().join("load.c"), folder.path().join("load"));
    fs::write(&file, source).unwrap();
    let built = Command::new("cc").arg("-o").arg(&program).arg(&file).arg("-ldl").status().unwrap();
    assert!(built.success());
    let told = told(&[program.to_str().unwrap()]);
    if told.status.code() != Some(0) {
        return skip(&Lack::Machine("the program found no libm.so.6"));
    }
    let loading = calls(&told.report, |call| {
        call["name"] == "mmap" && call["args"].as_str().unwrap().contains("/libm.so.6>")
    });
    assert!(!loading.is_empty());
    for call in loading {
        assert_eq!(call["phase"], "program");
        assert!(call["by"].as_str().unwrap().contains("/ld"), "{call}");
    }
}

#[test]
fn every_process_is_reported_with_its_parent() {
    let told = told(&["sh", "-c", "(ls / >/dev/null; exit 5); exec true"]);
    let processes = told.report["processes"].as_array().unwrap();
    assert_eq!(processes.len(), 3);
    assert_eq!(processes[1]["parent"], processes[0]["pid"]);
    assert_eq!(processes[2]["parent"], processes[1]["pid"]);
    let programs: Vec<&str> = processes
        .iter()
        .map(|process| process["program"].as_str().unwrap().rsplit('/').next().unwrap())
        .collect();
    assert_eq!((programs[0], programs[2]), ("true", "ls"));
    assert_eq!(processes[1]["ending"], "exit 5");
    // The calls of a child process are reported under the PID of the child.
    let of_ls = calls(&told.report, |call| call["pid"] == processes[2]["pid"]);
    assert!(of_ls.iter().any(|call| call["name"] == "execve"));
}

#[test]
fn exit_codes_are_returned_and_failures_reported_as_by_a_shell() {
    for (script, code) in [("exit 0", 0), ("exit 7", 7), ("kill -TERM $$", 143)] {
        assert_eq!(told(&["sh", "-c", script]).status.code(), Some(code), "{script}");
    }
    for (command, code) in [("/no/such/program", 127), ("/", 126)] {
        let output = pagewise(&["syscalls", "--", command]);
        assert_eq!(output.status.code(), Some(code));
        assert!(output.stdout.is_empty());
    }
    for usage in [&[][..], &["--calls", "few", "--", "true"], &["--for", "1s", "--", "true"]] {
        let output = pagewise(&[&["syscalls"], usage].concat());
        assert_eq!(output.status.code(), Some(2), "{usage:?}");
    }
}

/// Returns `pagewise syscalls` for a command, in a process group of its own. It writes the report
/// to the file `report` of the folder.
fn job(folder: &Path, command: &[&str]) -> Command {
    let mut pagewise = interruptible();
    pagewise.args(["syscalls", "--json", "--output"]).arg(folder.join("report")).arg("--");
    pagewise.args(command).process_group(0).stdin(Stdio::piped()).stdout(Stdio::piped());
    pagewise
}

#[test]
fn standard_input_and_output_are_the_commands() {
    let folder = tempfile::tempdir().unwrap();
    let mut child = job(folder.path(), &["cat"]).spawn().unwrap();
    child.stdin.take().unwrap().write_all(b"line\n").unwrap();
    let output = child.wait_with_output().unwrap();
    assert_eq!((output.stdout.as_slice(), output.status.code()), (&b"line\n"[..], Some(0)));
}

#[test]
fn an_interrupt_is_the_commands_and_the_report_is_still_written() {
    let handles = "trap 'exit 5' INT; echo; while :; do sleep 0.01; done";
    for (script, code) in [(handles, 5), ("echo; exec sleep 60", 130)] {
        let folder = tempfile::tempdir().unwrap();
        let mut child = job(folder.path(), &["sh", "-c", script]).spawn().unwrap();
        let mut line = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
        let group = Pid::from_raw(child.id().cast_signed()).unwrap();
        kill_process_group(group, Signal::INT).unwrap();
        assert_eq!(child.wait().unwrap().code(), Some(code), "{script}");
        let report: Value =
            serde_json::from_slice(&fs::read(folder.path().join("report")).unwrap()).unwrap();
        assert!(number(&report, "totals.calls") > 10);
    }
}

#[test]
fn a_terminal_stop_stops_the_command_and_us_and_a_continue_wakes_both() {
    let folder = tempfile::tempdir().unwrap();
    // The script starts no child: a shell in vfork stops only once the child has executed another
    // program, and a stopped child has not executed one.
    let script = "echo; while [ ! -e \"$0\" ]; do n=0; while [ $n -lt 20000 ]; do n=$((n+1)); done; done; exit 6";
    let done = folder.path().join("done");
    let words = ["sh", "-c", script, done.to_str().unwrap()];
    let mut child = job(folder.path(), &words).spawn().unwrap();
    let mut line = String::new();
    BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
    let group = Pid::from_raw(child.id().cast_signed()).unwrap();
    let stat = format!("/proc/{}/stat", child.id());
    let until = |wanted: &[char]| {
        let begin = Instant::now();
        loop {
            let text = fs::read_to_string(&stat).unwrap();
            let state = text.rsplit(") ").next().unwrap().chars().next().unwrap();
            if wanted.contains(&state) {
                return;
            }
            assert!(begin.elapsed() < Duration::from_secs(180), "never {wanted:?}, but {state}");
            std::thread::sleep(Duration::from_millis(2));
        }
    };
    for _ in 0..3 {
        kill_process_group(group, Signal::TSTP).unwrap();
        until(&['T']);
        kill_process_group(group, Signal::CONT).unwrap();
        until(&['S', 'R']);
    }
    fs::write(&done, "").unwrap();
    assert_eq!(child.wait().unwrap().code(), Some(6));
}

/// A program that maps and unmaps until its input closes.
struct Looping {
    child: Child,
    /// The pipe stays open as long as the program is to run.
    stdout: BufReader<std::process::ChildStdout>,
}

impl Looping {
    /// Starts the program. Returns `None`, after recording a skip, if only the parent of a process
    /// may trace it.
    fn start() -> Option<Looping> {
        let scope = fs::read_to_string("/proc/sys/kernel/yama/ptrace_scope").unwrap_or_default();
        if !matches!(scope.trim(), "" | "0") && !rustix::process::geteuid().is_root() {
            skip(&Lack::Machine("Yama lets only root trace processes of others"));
            return None;
        }
        let mut child = Command::new(program("calls"))
            .arg("loop")
            // The current folder is for the file that the program creates.
            .current_dir(env!("CARGO_TARGET_TMPDIR"))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut stdout = BufReader::new(child.stdout.take().unwrap());
        let mut line = String::new();
        stdout.read_line(&mut line).unwrap();
        assert_eq!(line, "ready\n");
        Some(Looping { child, stdout })
    }

    fn pid(&self) -> String {
        self.child.id().to_string()
    }

    /// Ends the program and checks that it ends as it does untraced.
    fn end(mut self) {
        drop(self.child.stdin.take());
        let mut rest = String::new();
        self.stdout.read_to_string(&mut rest).unwrap();
        assert!(rest.starts_with("virt = "), "{rest}");
        assert_eq!(self.child.wait().unwrap().code(), Some(7));
    }
}

#[test]
fn a_running_process_is_recorded_for_a_while_and_runs_on() {
    let Some(looping) = Looping::start() else { return };
    let begin = Instant::now();
    let report = fixture::json(&["syscalls", &looping.pid(), "--for", "300ms", "--json"]);
    assert!((Duration::from_millis(300)..Duration::from_secs(180)).contains(&begin.elapsed()));
    assert_eq!(report["recording"]["stopped_at"], "every system call");
    let counts = counts(&report);
    let (mapped, unmapped) = (counts["mmap"].0, counts["munmap"].0);
    assert!(mapped > 0 && mapped.abs_diff(unmapped) <= 1, "{counts:?}");
    for call in calls(&report, |call| call["name"] == "mmap") {
        assert_eq!(
            (call["phase"].as_str(), call["virt_change"].as_i64()),
            (Some("program"), Some(20 * KIB))
        );
    }
    assert_eq!(report["processes"][0]["ending"], "still running");
    looping.end();
}

#[test]
fn a_too_long_pause_is_refused_and_that_of_a_recording_is_reported() {
    let Some(looping) = Looping::start() else { return };
    let pid = looping.pid();
    let refused = pagewise(&["syscalls", &pid, "--for", "10ms", "--max-pause", "1us"]);
    let said = String::from_utf8(refused.stderr).unwrap();
    assert_eq!(refused.status.code(), Some(1), "{said}");
    assert!(said.contains("more than the 0.001 ms of --max-pause"), "{said}");
    let report = fixture::json(&["syscalls", &pid, "--for", "10ms", "--json"]);
    assert!(report["recording"]["longest_pause"].as_f64().unwrap() > 0.0, "{report}");
    let command = told(&["true"]).report;
    assert!(command["recording"]["longest_pause"].is_null(), "{command}");
    looping.end();
}

#[test]
fn an_interrupt_or_a_terminal_stop_ends_the_recording_and_not_the_process() {
    for signal in [Signal::INT, Signal::TSTP] {
        ends_the_recording_only(signal);
    }
}

fn ends_the_recording_only(signal: Signal) {
    let Some(looping) = Looping::start() else { return };
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("report");
    let mut recording = interruptible()
        .args(["syscalls", &looping.pid(), "--output", file.to_str().unwrap()])
        .process_group(0)
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    fixture::wait_until_recording(&mut recording);
    fixture::wait_for_work(looping.child.id());
    kill_process(Pid::from_raw(recording.id().cast_signed()).unwrap(), signal).unwrap();
    assert_eq!(recording.wait().unwrap().code(), Some(0));
    let text = fs::read_to_string(file).unwrap();
    assert!(text.contains("munmap") && text.contains("still running"), "{text}");
    looping.end();
}

#[test]
fn without_the_privilege_for_a_filter_the_counts_are_the_same() {
    if !is_root() || fixture::tool("setpriv", &["--version"]).is_none() {
        return;
    }
    let pagewise = env!("CARGO_BIN_EXE_pagewise");
    // Without CAP_SYS_ADMIN, the command is stopped at every system call.
    let program = calls_program();
    let usual = counts(&told(&[&program, "known"]).report);
    let tracer = ["setpriv", "--bounding-set", "-sys_admin", pagewise];
    let every = told_by(&tracer, &[&program, "known"]);
    assert_eq!(every.report["recording"]["stopped_at"], "every system call");
    assert_eq!((counts(&every.report), every.status.code()), (usual, Some(7)));
}

#[test]
fn a_program_that_would_lose_its_privilege_is_not_run() {
    if !is_root() {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    fs::set_permissions(folder.path(), fs::Permissions::from_mode(0o755)).unwrap();
    let (ours, program) = (folder.path().join("pagewise"), folder.path().join("program"));
    copy_program(Path::new(env!("CARGO_BIN_EXE_pagewise")), &ours);
    copy_program(Path::new("/usr/bin/env"), &program);
    const NOBODY: u32 = 65534;
    let run = |mode| {
        fs::set_permissions(&program, fs::Permissions::from_mode(mode)).unwrap();
        let mut command = Command::new(&ours);
        command.args(["syscalls", "--json", "--"]).arg(&program).arg("true");
        command.uid(NOBODY).gid(NOBODY).stdin(Stdio::null()).output().unwrap()
    };
    chown(&program, Some(0), Some(0)).unwrap();
    let refused = run(0o4755);
    let said = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert_eq!(refused.status.code(), Some(1), "{said}");
    assert!(refused.stdout.is_empty() && said.contains("was not run"), "{said}");
    let allowed = run(0o755);
    let report: Value = serde_json::from_slice(&allowed.stdout).unwrap();
    assert_eq!(report["recording"]["stopped_at"], "memory calls");
}

#[cfg(target_arch = "x86_64")]
#[test]
fn a_32_bit_program_is_said_not_to_be_recorded() {
    // The program calls brk(0), then exit(3).
    let source = "void _start(void) { __asm__ volatile(\"mov $45, %eax; xor %ebx, %ebx; int $0x80;\"\
                  \"mov $1, %eax; mov $3, %ebx; int $0x80\"); }\n";
    let folder = tempfile::tempdir().unwrap();
    let (file, program) = (folder.path().join("old.c"), folder.path().join("old"));
    fs::write(&file, source).unwrap();
    let mut cc = Command::new("cc");
    cc.args(["-m32", "-nostdlib", "-static", "-o"]).arg(&program).arg(&file);
    let is_built = cc.output().unwrap().status.success();
    if !is_built || Command::new(&program).status().is_err() {
        return skip(&Lack::Machine("no 32-bit program can be built and run"));
    }
    let told = told(&[program.to_str().unwrap()]);
    assert_eq!(told.status.code(), Some(3));
    let process = &told.report["processes"][0];
    assert_eq!((&process["recorded"], &process["calls"]), (&false.into(), &0.into()));
    assert!(process["virt_otherwise"]["absent"].is_string());
}

#[test]
fn terms_of_a_report_can_be_looked_up() {
    let told = told(&["true"]);
    for table in ["calls", "by_name", "by_caller", "processes"] {
        for key in told.report[table][0].as_object().unwrap().keys() {
            let output = pagewise(&["define", key]);
            assert!(output.status.success(), "{table}.{key}");
        }
    }
}
