//! The loop of `pagewise replay` on a terminal: the screen of `top`, with steps through a recording
//! in place of new sweeps.

use std::ffi::c_int;
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::mpsc;
use std::time::Duration;

use anyhow::{Context, bail};
use pagewise_analysis::top::{self, ReplayCursor};
use pagewise_model::report::Report;
use pagewise_model::sweep_source::SweepSource;
use pagewise_model::top::TopQuery;
use pagewise_tui::{
    LiveReports, PageSubject, ReplayStep, TopOptions, TopState, TuiAction, TuiEvent,
};
use pagewise_view::text::Units;
use signal_hook::consts::{SIGCONT, SIGTSTP};
use signal_hook::low_level::emulate_default_handler;

use super::live::LiveEvent;
use super::screen::FullScreen;
use super::{input, require_terminal};
use crate::terminal::TerminalLook;

const MINUTE_NS: u64 = 60_000_000_000;

/// A recording on the screen.
struct ReplayTop<S> {
    cursor: ReplayCursor<S>,
    state: TopState,
    screen: FullScreen,
    /// The object whose page is open.
    open: Option<PageSubject>,
}

/// Shows a recording, beginning at the time `at` in nanoseconds since 1970, until the user quits.
/// `utc_offset` is the offset of the time zone in seconds.
pub(crate) fn run<S: SweepSource>(
    source: S,
    at: Option<u64>,
    utc_offset: i64,
    look: &TerminalLook,
) -> anyhow::Result<ExitCode> {
    require_terminal("replay")?;
    let Some(cursor) = ReplayCursor::new(source, at)? else {
        bail!("the recording has no samples");
    };
    let style = look.style(false, Units::Human);
    let (sender, receiver) = mpsc::channel();
    let screen = FullScreen::enter().context("cannot draw on the terminal")?;
    input::start(&sender).context("cannot read the terminal")?;
    let state = TopState::new(TopOptions {
        size: screen.size()?,
        color: style.color,
        units: style.units,
        interval: Duration::ZERO,
        query: TopQuery::default(),
        recording: Some(cursor.span()),
        utc_offset,
    });
    let mut replay = ReplayTop { cursor, state, screen, open: None };
    replay.show_table()?;
    let signal = loop {
        replay.screen.draw(&replay.state).context("cannot draw on the terminal")?;
        match receiver.recv().context("no source of events is left")? {
            LiveEvent::Screen(event) => {
                if replay.apply(event)? {
                    break None;
                }
            }
            LiveEvent::Signal(SIGTSTP) => replay.screen.suspend(&mut replay.state)?,
            LiveEvent::Signal(SIGCONT) => replay.screen.resume(&mut replay.state)?,
            LiveEvent::Signal(signal) => break Some(signal),
            LiveEvent::InputEnded => break None,
            LiveEvent::Sweep { .. } | LiveEvent::SweepFailed(_) => {}
        }
    };
    replay.screen.leave();
    ended(signal)
}

/// Returns a page whose first pane has the recorded values. A recording has no values for the other
/// panes.
fn page_of(overview: Report) -> LiveReports {
    let absent = || Report { schema: overview.schema, title: Vec::new(), blocks: Vec::new() };
    LiveReports {
        explain: absent(),
        growth: absent(),
        mappings: absent(),
        threads: absent(),
        overview,
    }
}

/// Ends this process by the signal that it received, so that its parent sees the signal in the exit
/// status. Returns success without a signal.
fn ended(signal: Option<c_int>) -> anyhow::Result<ExitCode> {
    if let Some(signal) = signal {
        emulate_default_handler(signal)?;
    }
    Ok(ExitCode::SUCCESS)
}

impl<S: SweepSource> ReplayTop<S> {
    /// Applies an event of the screen. Returns true if the user quits.
    fn apply(&mut self, event: TuiEvent) -> anyhow::Result<bool> {
        for action in self.state.apply(event) {
            match action {
                TuiAction::Quit => return Ok(true),
                TuiAction::Suspend => self.screen.suspend(&mut self.state)?,
                TuiAction::Redraw => self.screen.clear()?,
                TuiAction::Query(_) => self.show_table()?,
                TuiAction::Step(step) => self.step(step)?,
                TuiAction::Open(subject) => {
                    self.open = Some(subject);
                    self.show_page()?;
                }
                TuiAction::Close => self.open = None,
                // A recording has no processes to read or to measure.
                TuiAction::Freeze(_)
                | TuiAction::Interval(_)
                | TuiAction::Start(..)
                | TuiAction::Stop(..)
                | TuiAction::Save(_) => {}
            }
        }
        Ok(false)
    }

    /// Shows the page of the open object at the time of the cursor.
    fn show_page(&mut self) -> anyhow::Result<()> {
        let Some(subject) = self.open.clone() else { return Ok(()) };
        let report = match &subject {
            PageSubject::Process(key) => {
                let categories = self.cursor.categories(*key)?;
                top::recorded_process(self.cursor.history(), *key, categories.as_ref())
            }
            PageSubject::Cgroup(_) => None,
        };
        let event = match report {
            Some(overview) => TuiEvent::Reports(subject, Arc::new(page_of(overview))),
            None => {
                let why = match &subject {
                    PageSubject::Process(_) => "the process did not run at this time",
                    PageSubject::Cgroup(_) => "a recording has only the figures of the table",
                };
                TuiEvent::Unreadable(subject, why.to_owned())
            }
        };
        self.state.apply(event);
        Ok(())
    }

    fn show_table(&mut self) -> anyhow::Result<()> {
        self.show_page()?;
        if let Some(table) = top::table(self.cursor.history(), self.state.query()) {
            self.state.apply(TuiEvent::Table(Arc::new(table)));
        }
        Ok(())
    }

    fn step(&mut self, step: ReplayStep) -> anyhow::Result<()> {
        let now = self.cursor.time();
        let cursor = &mut self.cursor;
        let has_event = match step {
            ReplayStep::Next => cursor.step_forward().map(|()| true),
            ReplayStep::Previous => cursor.step_back().map(|()| true),
            ReplayStep::MinuteForward => {
                cursor.go(now.saturating_add(MINUTE_NS))?;
                // If the next sweep is more than a minute away, the cursor moves to this sweep.
                let is_stuck = cursor.time() == now;
                if is_stuck { cursor.step_forward() } else { Ok(()) }.map(|()| true)
            }
            ReplayStep::MinuteBack => cursor.go(now.saturating_sub(MINUTE_NS)).map(|()| true),
            ReplayStep::NextEvent => cursor.next_event(),
            ReplayStep::PreviousEvent => cursor.previous_event(),
            ReplayStep::First => cursor.go(0).map(|()| true),
            ReplayStep::Last => cursor.go(u64::MAX).map(|()| true),
        }?;
        if !has_event {
            self.state.apply(TuiEvent::Message("no further event".to_owned()));
        }
        self.show_table()
    }
}
