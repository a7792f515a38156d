//! Style of output, resolved from options, the environment and the terminal.

use std::io::{self, IsTerminal};
use std::os::fd::AsFd;
use std::time::{Duration, Instant};

use pagewise_view::text::{Style, Units};
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use crate::args;
use crate::output::write_stderr;

/// Default width without a terminal.
const PIPE_WIDTH: u16 = 100;
/// Wider lines are hard to read, and most tables are complete by then.
const WIDEST: u16 = 200;
const NARROWEST: u16 = 60;

/// Color, width and units, before a command adds its own wishes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct TerminalLook {
    color: bool,
    width: u16,
    units: Option<Units>,
}

impl TerminalLook {
    /// For output to standard output.
    pub(crate) fn resolve(args: &args::LookArgs) -> TerminalLook {
        TerminalLook::on(args, &io::stdout())
    }

    /// For output to standard error, if standard output is used by a command.
    pub(crate) fn on_stderr(args: &args::LookArgs) -> TerminalLook {
        TerminalLook::on(args, &io::stderr())
    }

    fn on(args: &args::LookArgs, out: &(impl IsTerminal + AsFd)) -> TerminalLook {
        let terminal = out.is_terminal();
        let color = match args.color {
            args::ColorWhen::Always => true,
            args::ColorWhen::Never => false,
            args::ColorWhen::Auto => terminal && !is_set("NO_COLOR") && !is_dumb(),
        };
        let width =
            args.width.or_else(|| terminal.then(|| terminal_width(out)).flatten().map(clamp));
        let units = args.units.map(|unit| match unit {
            args::UnitArg::Human => Units::Human,
            args::UnitArg::Kib => Units::KiB,
            args::UnitArg::Bytes => Units::Bytes,
        });
        TerminalLook { color, width: width.unwrap_or(PIPE_WIDTH), units }
    }

    /// The style of a page on standard output.
    pub(crate) fn style(&self, long: bool, usual: Units) -> Style {
        Style {
            width: usize::from(self.width),
            color: self.color,
            long,
            units: self.units.unwrap_or(usual),
        }
    }

    /// The style of a page in a file: no terminal, so no color.
    pub(crate) fn for_file(self) -> TerminalLook {
        TerminalLook { color: false, ..self }
    }
}

/// True if a person can answer a question.
pub(crate) fn can_ask() -> bool {
    io::stdin().is_terminal() && io::stderr().is_terminal()
}

/// A question without an answer counts as refused after this time.
const ANSWER_TIME: Duration = Duration::from_secs(60);
/// Interval of checks for an interrupt.
const POLL_TIME: Timespec = Timespec { tv_sec: 0, tv_nsec: 100_000_000 };

/// Asks a question on the terminal; true only if the answer is `y` or `yes`.
pub(crate) fn confirm(question: &str, is_interrupted: &dyn Fn() -> bool) -> bool {
    write_stderr(&format!("pagewise: {question} [y/N] "));
    let (stdin, began) = (io::stdin(), Instant::now());
    while began.elapsed() < ANSWER_TIME && !is_interrupted() {
        let mut input = [PollFd::new(&stdin, PollFlags::IN)];
        if matches!(poll(&mut input, Some(&POLL_TIME)), Ok(1..)) {
            let mut answer = String::new();
            let is_read = stdin.read_line(&mut answer).is_ok();
            return is_read && matches!(answer.trim(), "y" | "Y" | "yes");
        }
    }
    write_stderr("\n");
    false
}

fn clamp(columns: u16) -> u16 {
    columns.clamp(NARROWEST, WIDEST)
}

fn terminal_width(out: &impl AsFd) -> Option<u16> {
    let size = rustix::termios::tcgetwinsize(out).ok()?;
    (size.ws_col != 0).then_some(size.ws_col)
}

fn is_set(variable: &str) -> bool {
    std::env::var_os(variable).is_some_and(|value| !value.is_empty())
}

fn is_dumb() -> bool {
    std::env::var_os("TERM").is_some_and(|term| term == "dumb")
}
