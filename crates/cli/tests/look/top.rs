//! `top` in a terminal of tmux: the table, a page, resizing, suspension, and the terminal after the
//! end.

use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

use pagewise_skip::{Lack, skip};
use tempfile::TempDir;

use crate::fixture::pagewise;

/// Time for the terminal to show something, on a busy machine.
const PATIENCE: Duration = Duration::from_secs(30);

/// A shell in a terminal.
struct Terminal {
    folder: TempDir,
}

impl Terminal {
    /// A terminal of this size; `None` without tmux.
    fn start(columns: u16, lines: u16) -> Option<Terminal> {
        if Command::new("tmux").arg("-V").output().is_err() {
            skip(&Lack::Tool("tmux"));
            return None;
        }
        let terminal = Terminal { folder: TempDir::new().unwrap() };
        let (columns, lines) = (columns.to_string(), lines.to_string());
        let shell = "exec env PS1='$ ' bash --norc --noprofile -i";
        terminal.tmux(&["new-session", "-d", "-x", &columns, "-y", &lines, shell]);
        terminal.wait_for("$");
        Some(terminal)
    }

    fn tmux(&self, words: &[&str]) -> String {
        let mut command = Command::new("tmux");
        command.arg("-S").arg(self.folder.path().join("socket")).args(["-f", "/dev/null", "-u"]);
        command.env_remove("TMUX").env_remove("NO_COLOR").env("TERM", "xterm-256color");
        let output = command.args(words).output().unwrap();
        assert!(output.status.success(), "tmux {words:?}: {output:?}");
        String::from_utf8(output.stdout).unwrap()
    }

    /// Types a line.
    fn line(&self, text: &str) {
        self.tmux(&["send-keys", "-l", text]);
        self.keys(&["Enter"]);
    }

    /// Presses keys by the names that tmux has for them.
    fn keys(&self, names: &[&str]) {
        self.tmux(&[&["send-keys"], names].concat());
    }

    fn screen(&self) -> String {
        self.tmux(&["capture-pane", "-p"])
    }

    fn wait_until(&self, wanted: &str, is_there: impl Fn(&str) -> bool) -> String {
        let begin = Instant::now();
        loop {
            let screen = self.screen();
            if is_there(&screen) {
                return screen;
            }
            assert!(begin.elapsed() < PATIENCE, "no {wanted} on the screen:\n{screen}");
            sleep(Duration::from_millis(50));
        }
    }

    fn wait_for(&self, text: &str) -> String {
        self.wait_until(text, |screen| screen.contains(text))
    }

    /// Starts `top`; its exit status is on the screen afterwards.
    fn top(&self, options: &str) {
        let program = env!("CARGO_BIN_EXE_pagewise");
        self.line(&format!("clear; {program} top {options}; echo status=$?"));
    }

    /// The terminal modes that a shell needs, once `top` has ended.
    fn assert_restored(&self, status: u8) {
        self.wait_for(&format!("status={status}"));
        self.line("clear; stty -a");
        let modes = self.wait_for("icanon");
        let is_on = |mode: &str| modes.split([' ', '\n', ';']).any(|word| word == mode);
        assert!(is_on("icanon") && is_on("echo") && is_on("isig"), "{modes}");
        let mouse =
            self.tmux(&["display-message", "-p", "#{mouse_any_flag}#{alternate_on}#{cursor_flag}"]);
        assert_eq!(mouse.trim(), "001", "mouse, alternate screen, cursor");
    }
}

impl Drop for Terminal {
    fn drop(&mut self) {
        let mut command = Command::new("tmux");
        command.arg("-S").arg(self.folder.path().join("socket")).arg("kill-server");
        let _ = command.stdout(Stdio::null()).stderr(Stdio::null()).status();
    }
}

/// A process whose name has an escape sequence that clears the screen.
struct EvilProcess(Child);

impl EvilProcess {
    fn start() -> EvilProcess {
        let script = "exec -a $'evil\\e[2J\\a' sleep 600";
        let child = Command::new("bash").args(["-c", script]).stdin(Stdio::null()).spawn().unwrap();
        let process = EvilProcess(child);
        let command = PathBuf::from(format!("/proc/{}/cmdline", process.pid()));
        while !std::fs::read(&command).unwrap().starts_with(b"evil") {
            sleep(Duration::from_millis(5));
        }
        process
    }

    fn pid(&self) -> u32 {
        self.0.id()
    }
}

impl Drop for EvilProcess {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn a_process_is_found_and_its_page_opened() {
    let evil = EvilProcess::start();
    let Some(terminal) = Terminal::start(80, 24) else { return };
    terminal.top("");
    terminal.wait_for("GROW/MIN");
    terminal.keys(&["/"]);
    terminal.line(&evil.pid().to_string());
    terminal.wait_for(r"evil\x1b[2J\x07 600");
    terminal.keys(&["Enter"]);
    let page = terminal.wait_for("Memory by category");
    assert!(page.contains(&format!(r"{} evil\x1b[2J\x07 600", evil.pid())), "{page}");
    terminal.keys(&["5"]);
    terminal.wait_for("Stacks of threads");
    terminal.keys(&["q"]);
    terminal.wait_for("GROW/MIN");
    terminal.keys(&["q"]);
    terminal.assert_restored(0);
}

#[test]
fn a_command_runs_in_a_pane_and_is_interrupted() {
    let evil = EvilProcess::start();
    let Some(terminal) = Terminal::start(80, 24) else { return };
    terminal.top(&evil.pid().to_string());
    terminal.wait_for("Overview");
    terminal.keys(&["d"]);
    terminal.wait_for("Esc interrupts");
    // From then on the command handles the signal.
    terminal.wait_for("counters over time");
    terminal.keys(&["Escape"]);
    terminal.wait_until("report of the diagnosis", |it| !it.contains("Esc interrupts"));
    terminal.wait_for("Diagnosis");
    terminal.keys(&["C-c"]);
    terminal.assert_restored(0);
}

#[test]
fn the_view_survives_resizing_suspension_and_signals() {
    let Some(terminal) = Terminal::start(80, 24) else { return };
    terminal.top("");
    terminal.wait_for("GROW/MIN");
    for (columns, heading) in [("140", "MINOR/S"), ("60", "TREND")] {
        terminal.tmux(&["resize-window", "-x", columns, "-y", "30"]);
        terminal.wait_until(heading, |screen| {
            screen.contains(heading) && screen.contains("MINOR/S") == (columns == "140")
        });
    }
    terminal.keys(&["C-z"]);
    terminal.wait_for("Stopped");
    assert!(!terminal.screen().contains("GROW/MIN"));
    let file = terminal.folder.path().join("pid");
    terminal.line(&format!("clear; jobs -p > {}; fg", file.display()));
    terminal.wait_for("GROW/MIN");
    let child = std::fs::read_to_string(file).unwrap();
    let signal = |name: &str| {
        let status = Command::new("kill").args([name, child.trim()]).status().unwrap();
        assert!(status.success());
    };
    signal("-TSTP");
    terminal.wait_for("Stopped");
    terminal.line("clear; fg; echo status=$?");
    terminal.wait_for("GROW/MIN");
    signal("-TERM");
    terminal.assert_restored(143);
}

#[test]
fn without_a_terminal_the_error_names_ps() {
    let output = pagewise(&["top"]);
    let error = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(1));
    assert!(error.contains("needs a terminal") && error.contains("`pagewise ps`"), "{error}");
    assert!(output.stdout.is_empty());
}
