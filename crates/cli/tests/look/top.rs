//! `top` in a terminal of tmux: the table, a page, resizing, suspension, and the terminal after the
//! end.

use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::thread::sleep;
use std::time::Duration;

use crate::fixture::pagewise;
use crate::fixture::terminal::Terminal;

/// Starts `top`; its exit status is on the screen afterwards.
fn start_top(terminal: &Terminal, options: &str) {
    let program = env!("CARGO_BIN_EXE_pagewise");
    terminal.line(&format!("clear; {program} top {options}; echo status=$?"));
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
    start_top(&terminal, "");
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
    start_top(&terminal, &evil.pid().to_string());
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

/// An action of the mouse at a column and a line, from 1, as a terminal sends it.
fn mouse(terminal: &Terminal, button: u8, column: usize, line: usize) {
    for end in ["M", "m"] {
        terminal.tmux(&["send-keys", "-l", &format!("\x1b[<{button};{column};{line}{end}")]);
    }
}

#[test]
fn the_mouse_sorts_selects_opens_and_scrolls() {
    const LEFT: u8 = 0;
    const WHEEL_DOWN: u8 = 65;
    let evil = EvilProcess::start();
    let Some(terminal) = Terminal::start(80, 24) else { return };
    start_top(&terminal, "");
    let screen = terminal.wait_for("GROW/MIN");
    let heading = screen.lines().position(|line| line.contains("GROW/MIN")).unwrap();
    let column = screen.lines().nth(heading).unwrap().find("USS").unwrap();
    mouse(&terminal, LEFT, column + 2, heading + 1);
    terminal.wait_for("by USS");
    terminal.keys(&["/"]);
    terminal.line(&evil.pid().to_string());
    terminal.wait_for(r"evil\x1b[2J\x07 600");
    // The first click selects the row, the second one opens it.
    for _ in 0..2 {
        mouse(&terminal, LEFT, 20, heading + 2);
    }
    terminal.wait_for("Memory by category");
    terminal.keys(&["4"]);
    // The visible lines of a pane that does not fit.
    terminal.wait_for(" of ");
    let first = |page: &str| page.lines().take(4).any(|line| line.contains(" 1-"));
    assert!(first(&terminal.screen()), "{}", terminal.screen());
    mouse(&terminal, WHEEL_DOWN, 20, 12);
    terminal.wait_until("scrolled page", |page| !first(page));
    terminal.keys(&["C-c"]);
    terminal.assert_restored(0);
}

#[test]
fn the_view_survives_resizing_suspension_and_signals() {
    let Some(terminal) = Terminal::start(80, 24) else { return };
    start_top(&terminal, "");
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

/// True if an escape sequence on the screen sets a color; 39 and 49 are the default colors.
fn has_color(terminal: &Terminal) -> bool {
    let screen = terminal.tmux(&["capture-pane", "-p", "-e"]);
    let sequences = screen.split("\u{1b}[").skip(1).filter_map(|it| Some(it.split_once('m')?.0));
    let mut codes = sequences.flat_map(|it| it.split(';')).filter_map(|it| it.parse().ok());
    codes.any(|code: u32| matches!(code, 30..=38 | 40..=48 | 90..=107))
}

#[test]
fn with_no_color_the_view_has_no_color() {
    let Some(terminal) = Terminal::start(80, 24) else { return };
    for (value, is_colored) in [("", true), ("1", false)] {
        terminal.line(&format!("export NO_COLOR={value}"));
        start_top(&terminal, "");
        // The trend, from the second sample on.
        terminal.wait_for("▁");
        assert_eq!(has_color(&terminal), is_colored, "NO_COLOR={value}");
        terminal.keys(&["C-c"]);
        terminal.wait_for("status=0");
    }
}

#[test]
fn without_a_terminal_the_error_names_ps() {
    let output = pagewise(&["top"]);
    let error = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(1));
    assert!(error.contains("needs a terminal") && error.contains("`pagewise ps`"), "{error}");
    assert!(output.stdout.is_empty());
}
