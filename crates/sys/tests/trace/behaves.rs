//! A traced command behaves like an untraced command.

use std::fs;
use std::io::{self, Write};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, Output, Stdio};
use std::thread;
use std::time::Duration;

use pagewise_skip::is_root;
use pagewise_sys::trace::{Stopped, TraceEnding, Traced};

use crate::support::{
    acts, copy_program, kill, spawn, state, tracer, until, untraced_ending, within_patience,
    write_program,
};

#[test]
fn a_missing_program_is_distinguished_from_one_that_cannot_run() {
    let dir = tempfile::tempdir().unwrap();
    let plain = dir.path().join("plain");
    fs::write(&plain, "text").unwrap();
    for (program, kind) in [
        ("no-such-program-anywhere", io::ErrorKind::NotFound),
        ("/no/such/program", io::ErrorKind::NotFound),
        ("", io::ErrorKind::NotFound),
        ("/", io::ErrorKind::PermissionDenied),
        (plain.to_str().unwrap(), io::ErrorKind::PermissionDenied),
        ("a\0b", io::ErrorKind::InvalidInput),
    ] {
        let error = Traced::spawn(program.as_ref(), &[]).unwrap_err();
        assert_eq!(error.kind(), kind, "{program:?}: {error}");
    }
}

#[test]
fn a_script_without_a_first_line_runs_in_the_shell() {
    within_patience(|| {
        let dir = tempfile::tempdir().unwrap();
        let script = dir.path().join("script");
        write_program(&script, "exit $1\n");
        let traced = Traced::spawn(script.as_os_str(), &["9".into()]).unwrap();
        assert_eq!(traced.finish().unwrap(), TraceEnding::Exited(9));
    });
}

#[test]
fn every_signal_reaches_its_handler_once() {
    let Some(acts) = acts() else { return };
    within_patience(|| {
        let dir = tempfile::tempdir().unwrap();
        let [traced_counts, plain_counts] = ["traced", "plain"].map(|name| dir.path().join(name));
        let mut traced = spawn(acts, &format!("signals 100 {}", traced_counts.display()));
        assert_eq!(traced.run(None).unwrap(), Stopped::AtExit);
        assert_eq!(traced.finish().unwrap(), TraceEnding::Exited(0));
        untraced_ending(acts, &format!("signals 100 {}", plain_counts.display()));
        let counts = fs::read_to_string(traced_counts).unwrap();
        assert_eq!(counts, "usr1 100 rt 1000 chld 100 trap 100\n");
        assert_eq!(counts, fs::read_to_string(plain_counts).unwrap());
    });
}

#[test]
fn another_process_can_stop_and_continue_it() {
    let Some(acts) = acts() else { return };
    within_patience(|| {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("counters");
        let mut traced = spawn(acts, &format!("count 4 {}", file.display()));
        let pid = traced.pid();
        let counts = file.clone();
        let outside = thread::spawn(move || {
            let count = || fs::read(&counts).unwrap_or_default();
            let moves = || {
                let before = count();
                thread::sleep(Duration::from_millis(100));
                before != count()
            };
            until("it runs", moves);
            for _ in 0..3 {
                kill(pid, "STOP");
                until("it stops", || !moves());
                thread::sleep(Duration::from_millis(200));
                assert!(!moves(), "it stays stopped");
                kill(pid, "CONT");
                until("it runs on", moves);
            }
            kill(pid, "STOP");
            kill(pid, "KILL");
        });
        traced.run(None).unwrap();
        outside.join().unwrap();
        assert_eq!(traced.finish().unwrap(), TraceEnding::Killed { signal: 9, core: false });
    });
}

#[test]
fn a_stopped_command_can_be_frozen_and_stays_stopped() {
    let Some(acts) = acts() else { return };
    within_patience(|| {
        let mut traced = spawn(acts, "pause");
        let soon = || Some(std::time::Instant::now() + Duration::from_millis(100));
        assert_eq!(traced.run(soon()).unwrap(), Stopped::TimeIsUp);
        kill(traced.pid(), "STOP");
        assert_eq!(traced.run(soon()).unwrap(), Stopped::TimeIsUp);
        assert_eq!(traced.freeze().unwrap(), Stopped::AtTime);
        let pid = traced.pid();
        traced.let_go();
        until("the stop survives us", || state(pid) == 'T');
        // The stop of a command that is not traced any more does not count as an event.
        assert_eq!(traced.run(soon()).unwrap(), Stopped::TimeIsUp);
        kill(pid, "CONT");
        until("and ends as usual", || state(pid) == 'S');
        kill(pid, "TERM");
        assert_eq!(traced.finish().unwrap(), TraceEnding::Killed { signal: 15, core: false });
    });
}

/// Output of a command with the tracer, and without it.
fn with_and_without(arrange: impl Fn(&mut Command), program: &Path, words: &[&str]) -> [Output; 2] {
    let mut traced = tracer();
    traced.arg(program).args(words);
    let mut plain = Command::new(program);
    plain.args(words).stdin(Stdio::null()).stdout(Stdio::piped());
    [traced, plain].map(|mut command| {
        arrange(&mut command);
        command.output().unwrap()
    })
}

#[test]
fn signals_and_descriptors_are_inherited_as_they_were() {
    let Some(acts) = acts() else { return };
    let [traced, plain] = with_and_without(|_| {}, acts, &["inherited"]);
    let stderr = String::from_utf8_lossy(&traced.stderr).into_owned();
    assert!(stderr.starts_with("resident at exit: "), "{stderr}");
    assert_eq!(String::from_utf8_lossy(&traced.stdout), String::from_utf8_lossy(&plain.stdout));
}

#[test]
fn signals_that_a_shell_ignores_stay_ignored() {
    let Some(acts) = acts() else { return };
    let acts = acts.display().to_string();
    let traced = format!("{} {acts}", Path::new(tracer().get_program()).display());
    let [traced, plain] = [traced, acts].map(|command| {
        let line = format!("trap '' INT QUIT HUP TSTP; {command} inherited");
        Command::new("sh").args(["-c", &line]).stderr(Stdio::null()).output().unwrap().stdout
    });
    assert_eq!(String::from_utf8_lossy(&traced), String::from_utf8_lossy(&plain));
    assert!(!plain.is_empty());
}

#[test]
fn standard_input_and_output_pass_through() {
    let mut cat = tracer().arg("cat").stdin(Stdio::piped()).spawn().unwrap();
    let text = "line\n".repeat(100_000);
    let mut stdin = cat.stdin.take().unwrap();
    let sent = text.clone();
    let writer = thread::spawn(move || stdin.write_all(sent.as_bytes()));
    let output = cat.wait_with_output().unwrap();
    writer.join().unwrap().unwrap();
    assert!(output.stdout == text.as_bytes());
    assert_eq!(output.status.code(), Some(0));
}

#[test]
fn a_set_user_id_program_keeps_its_privilege() {
    if !is_root() {
        return;
    }
    let Some(acts) = acts() else { return };
    let dir = tempfile::tempdir().unwrap();
    fs::set_permissions(dir.path(), fs::Permissions::from_mode(0o755)).unwrap();
    let install = |name: &str, owner: u32, mode: u32| {
        let file = dir.path().join(name);
        copy_program(acts, &file);
        std::os::unix::fs::chown(&file, Some(owner), Some(owner)).unwrap();
        fs::set_permissions(&file, fs::Permissions::from_mode(mode)).unwrap();
        file
    };
    let tracer_file = dir.path().join("tracer");
    copy_program(tracer().get_program().as_ref(), &tracer_file);
    const ROOT: u32 = 0;
    const NOBODY: u32 = 65534;
    // Each row: user that runs the program, owner, mode; output, and true if the program is stopped
    // at its exit.
    for (user, owner, mode, ids, seen) in [
        (NOBODY, ROOT, 0o4755, "euid 0 egid 65534 tracer 0\n", false),
        (NOBODY, ROOT, 0o2755, "euid 65534 egid 0 tracer 0\n", false),
        (NOBODY, ROOT, 0o755, "euid 65534 egid 65534 tracer 1\n", true),
        (NOBODY, NOBODY, 0o4755, "euid 65534 egid 65534 tracer 1\n", true),
        (ROOT, NOBODY, 0o6755, "euid 65534 egid 65534 tracer 1\n", true),
    ] {
        let program = install("program", owner, mode);
        let mut command = Command::new(&tracer_file);
        command.arg(program).arg("ids").uid(user).gid(user).stdin(Stdio::null());
        let output = command.output().unwrap();
        let stderr = String::from_utf8_lossy(&output.stderr);
        assert_eq!(String::from_utf8_lossy(&output.stdout), ids, "{mode:o}: {stderr}");
        assert_eq!(stderr.starts_with("resident at exit: "), seen, "{mode:o}: {stderr}");
        assert_eq!(stderr.starts_with("not traced: "), !seen, "{mode:o}: {stderr}");
        assert!(output.status.success());
    }
}
