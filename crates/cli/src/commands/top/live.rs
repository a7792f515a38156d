//! The loop of a live view, which receives events and carries out actions. The loop waits only for
//! the next event.

use std::ffi::c_int;
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::mpsc::{self, Receiver, Sender};
use std::thread;
use std::time::Duration;

use anyhow::{Context, bail};
use pagewise_analysis::top::{self, TopHistory};
use pagewise_model::sweep::{ProcessKey, Sweep, SweepEvent, SweepEventKind};
use pagewise_model::top::TopQuery;
use pagewise_proc::ProcRoot;
use pagewise_sys::system::thread_cpu_time;
use pagewise_tui::{PageSubject, TopOptions, TopState, TuiAction, TuiEvent};
use pagewise_view::text::Units;
use signal_hook::consts::{SIGCONT, SIGTSTP};
use signal_hook::low_level::emulate_default_handler;

use super::input;
use super::instruments::InstrumentRuns;
use super::pace::{SweepCpu, SweepPace};
use super::reader::{self, PageReader};
use super::sampling::SamplingThread;
use super::screen::FullScreen;
use crate::terminal::TerminalLook;

/// An event for the loop.
#[derive(Debug)]
pub(super) enum LiveEvent {
    /// An event for [`TopState`].
    Screen(TuiEvent),
    /// A sweep, the events that it found, and its CPU time for reading pages.
    Sweep { sweep: Arc<Sweep>, events: Vec<SweepEvent>, pages_cpu: Duration },
    /// The processes cannot be listed.
    SweepFailed(String),
    /// A signal.
    Signal(c_int),
    /// The terminal is gone.
    InputEnded,
}

/// A live view.
pub(super) struct LiveTop {
    root: ProcRoot,
    state: TopState,
    history: TopHistory,
    pace: SweepPace,
    screen: FullScreen,
    sampling: SamplingThread,
    pages: PageReader,
    runs: InstrumentRuns,
    color: bool,
    /// For the last sweep: CPU time of this thread before it made the table of the sweep, CPU time
    /// of the sweep, and number of processes of the sweep.
    last_cost: Option<(Duration, SweepCpu, usize)>,
    sender: Sender<LiveEvent>,
    receiver: Receiver<LiveEvent>,
}

/// Reason for which the loop ends.
enum LiveEnd {
    Quit,
    Signal(c_int),
}

impl LiveTop {
    /// Takes the terminal over, and starts the threads that read processes and input.
    pub(super) fn start(
        root: &ProcRoot,
        interval: Duration,
        query: TopQuery,
        subject: Option<PageSubject>,
        look: &TerminalLook,
    ) -> anyhow::Result<LiveTop> {
        let (sender, receiver) = mpsc::channel();
        let style = look.style(false, Units::Human);
        let sampling = SamplingThread::start(root, interval, sender.clone())?;
        let pages = PageReader::start(root, sender.clone())?;
        let screen = FullScreen::enter().context("cannot draw on the terminal")?;
        input::start(&sender).context("cannot read the terminal")?;
        let state = TopState::new(TopOptions {
            size: screen.size()?,
            color: style.color,
            units: style.units,
            interval,
            query,
            recording: None,
            utc_offset: 0,
        });
        let mut live = LiveTop {
            root: root.clone(),
            state,
            history: TopHistory::default(),
            pace: SweepPace::new(interval),
            screen,
            sampling,
            pages,
            runs: InstrumentRuns::default(),
            color: style.color,
            last_cost: None,
            sender,
            receiver,
        };
        if let Some(subject) = subject {
            for action in live.state.open(subject) {
                live.carry_out(action)?;
            }
        }
        Ok(live)
    }

    /// Shows the view until the user quits.
    pub(super) fn run(mut self) -> anyhow::Result<ExitCode> {
        let end = self.show();
        self.runs.stop_all();
        self.screen.leave();
        match end? {
            LiveEnd::Quit => Ok(ExitCode::SUCCESS),
            LiveEnd::Signal(signal) => {
                // The parent learns from the status that a signal ended this process.
                emulate_default_handler(signal)?;
                Ok(ExitCode::FAILURE)
            }
        }
    }

    fn show(&mut self) -> anyhow::Result<LiveEnd> {
        loop {
            if FullScreen::has_panicked() {
                bail!("a thread of pagewise panicked");
            }
            self.screen.draw(&self.state).context("cannot draw on the terminal")?;
            self.adapt();
            let first = self.receiver.recv().context("no source of events is left")?;
            // All waiting events are applied before the next frame.
            let mut next = Some(first);
            while let Some(event) = next {
                if let Some(end) = self.take(event)? {
                    return Ok(end);
                }
                next = self.receiver.try_recv().ok();
            }
        }
    }

    fn take(&mut self, event: LiveEvent) -> anyhow::Result<Option<LiveEnd>> {
        match event {
            LiveEvent::Screen(event) => {
                if let TuiEvent::Ended(subject, instrument, _) = &event {
                    self.runs.forget(subject, *instrument);
                }
                for action in self.state.apply(event) {
                    if action == TuiAction::Quit {
                        return Ok(Some(LiveEnd::Quit));
                    }
                    self.carry_out(action)?;
                }
            }
            LiveEvent::Sweep { sweep, mut events, pages_cpu } => {
                // A gap in this view does not mean that the machine was stopped: the view was
                // frozen or suspended, or it reads less often.
                events.retain(|it| !matches!(it.event, SweepEventKind::Gap { .. }));
                self.add(sweep, &events, pages_cpu);
            }
            LiveEvent::SweepFailed(error) => {
                self.state.apply(TuiEvent::Message(error));
            }
            LiveEvent::Signal(SIGTSTP) => self.screen.suspend(&mut self.state)?,
            LiveEvent::Signal(SIGCONT) => self.screen.resume(&mut self.state)?,
            LiveEvent::Signal(signal) => return Ok(Some(LiveEnd::Signal(signal))),
            LiveEvent::InputEnded => return Ok(Some(LiveEnd::Quit)),
        }
        Ok(None)
    }

    fn add(&mut self, sweep: Arc<Sweep>, events: &[SweepEvent], pages_cpu: Duration) {
        let others = Duration::from_nanos(sweep.cost.cpu_ns).saturating_sub(pages_cpu);
        let cpu = SweepCpu { pages: pages_cpu, others };
        self.last_cost = Some((thread_cpu_time(), cpu, sweep.processes.len()));
        self.history.push(sweep, events);
        self.show_table();
    }

    /// Adapts the interval of sweeps to the cost of the last sweep and its frame.
    fn adapt(&mut self) {
        let Some((before, mut cpu, processes)) = self.last_cost.take() else { return };
        cpu.others += thread_cpu_time().saturating_sub(before);
        if let Some(interval) = self.pace.count(cpu, processes) {
            self.set_interval(interval);
        }
    }

    fn set_interval(&mut self, interval: Duration) {
        self.sampling.set_interval(interval);
        self.state.apply(TuiEvent::Interval(interval));
    }

    fn show_table(&mut self) {
        if let Some(table) = top::table(&self.history, self.state.query()) {
            self.state.apply(TuiEvent::Table(Arc::new(table)));
        }
    }

    fn carry_out(&mut self, action: TuiAction) -> anyhow::Result<()> {
        match action {
            // The caller ends the loop on this action.
            TuiAction::Quit => {}
            TuiAction::Suspend => self.screen.suspend(&mut self.state)?,
            TuiAction::Redraw => self.screen.clear()?,
            TuiAction::Query(_) => self.show_table(),
            TuiAction::Freeze(is_frozen) => self.sampling.pause(is_frozen),
            TuiAction::Interval(interval) => {
                self.pace.want(interval);
                self.set_interval(self.pace.interval());
            }
            TuiAction::Open(subject) => self.pages.open(Some(&subject)),
            TuiAction::Close => self.pages.open(None),
            TuiAction::Start(subject, instrument, columns) => {
                let run = (subject, instrument);
                self.runs.start(&self.root, run, (columns, self.color), &self.sender);
            }
            TuiAction::Stop(subject, instrument) => self.runs.stop(&subject, instrument),
            TuiAction::Save(key) => self.save(key),
            // Only a replay has steps.
            TuiAction::Step(_) => {}
        }
        Ok(())
    }

    /// Saves a snapshot in a thread of its own: a large process takes seconds.
    fn save(&self, key: ProcessKey) {
        let (root, sender) = (self.root.clone(), self.sender.clone());
        thread::spawn(move || {
            let message = match reader::save(&root, key) {
                Ok(path) => format!("saved: pagewise explain --from {}", path.display()),
                Err(error) => format!("not saved: {error:#}"),
            };
            let _ = sender.send(LiveEvent::Screen(TuiEvent::Message(message)));
        });
    }
}
