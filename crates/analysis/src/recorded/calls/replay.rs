//! Replay of a recording: each call with its effect, its caller, and the phase of its program.

use std::cell::RefCell;
use std::collections::HashMap;
use std::rc::Rc;

use pagewise_model::calls::{CallEvent, CallEventKind, CallRecording, MemoryCall, ProgramImage};
use pagewise_model::ending::ProgramEnding;
use pagewise_model::{Bytes, Name, Pid};

use super::effect::{self, CallEffect, Rounding};
use super::space::AddressSpace;

/// A line of the time line.
#[derive(Clone, Debug)]
pub(super) struct TimelineRow<'r> {
    pub(super) event: &'r CallEvent,
    pub(super) act: TimelineAct<'r>,
    pub(super) phase: LifePhase,
    /// The file whose code made the call; empty for code in no file, and for the kernel.
    pub(super) by: Name,
    pub(super) effect: CallEffect,
}

/// Event of the time line.
#[derive(Clone, Copy, Debug)]
pub(super) enum TimelineAct<'r> {
    Call(&'r MemoryCall),
    Executed(&'r ProgramImage),
}

/// Phase in the life of a program.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum LifePhase {
    /// The kernel maps the program.
    Exec,
    /// Up to the program's entry point: the dynamic linker, and the code that it calls.
    StartUp,
    /// From the entry point on.
    Program,
}

impl LifePhase {
    pub(super) const fn name(self) -> &'static str {
        match self {
            LifePhase::Exec => "exec",
            LifePhase::StartUp => "start-up",
            LifePhase::Program => "program",
        }
    }
}

/// A process of a recording.
#[derive(Clone, Debug)]
pub(super) struct ReplayedProcess {
    pub(super) pid: Pid,
    pub(super) parent: Option<Pid>,
    /// The file of the program that it runs, or ran last.
    pub(super) program: Name,
    /// True if the calls of all its programs are recorded.
    pub(super) is_native: bool,
    pub(super) calls: u64,
    /// VIRT at the creation of the process; 0 for a command, which begins with its program.
    pub(super) virt_start: u64,
    /// Change of VIRT by programs and calls: its own, and those of processes that share its memory.
    pub(super) virt_change: i64,
    /// Amount by which other events changed it; `None` if the kernel did not provide VIRT at the
    /// end.
    pub(super) virt_otherwise: Option<i64>,
    pub(super) virt_end: Option<Bytes>,
    /// `None` where it runs on.
    pub(super) ending: Option<ProgramEnding>,
}

/// State of a live process.
#[derive(Clone, Debug)]
struct LiveProcess {
    /// Index in [`Played::processes`].
    at: usize,
    space: Rc<RefCell<AddressSpace>>,
    has_begun: bool,
    begin_is_told: bool,
    interpreter: Option<Name>,
}

/// All calls, and all processes.
pub(super) struct Played<'r> {
    pub(super) rows: Vec<TimelineRow<'r>>,
    pub(super) processes: Vec<ReplayedProcess>,
}

/// Plays a recording.
pub(super) fn play(recording: &CallRecording) -> Played<'_> {
    let rounding = Rounding::from_recording(recording);
    let played = Played { rows: Vec::new(), processes: Vec::new() };
    let is_whole = recording.lost == 0;
    let mut player = Player { is_whole, rounding, live: HashMap::new(), played };
    for event in &recording.events {
        player.event(event);
    }
    player.played
}

struct Player<'r> {
    /// True if no call is missing.
    is_whole: bool,
    rounding: Rounding,
    live: HashMap<Pid, LiveProcess>,
    played: Played<'r>,
}

impl<'r> Player<'r> {
    fn event(&mut self, event: &'r CallEvent) {
        match &event.what {
            CallEventKind::Born { by, shares_memory } => self.born(event.pid, *by, *shares_memory),
            CallEventKind::Image(image) => self.image(event, image),
            CallEventKind::Begun => {
                if let Some(live) = self.live.get_mut(&event.pid) {
                    live.has_begun = true;
                }
            }
            CallEventKind::Call(call) => self.call(event, call),
            CallEventKind::Ended { ending, virt } => self.end(event.pid, Some(*ending), *virt),
            CallEventKind::Left { virt } => self.end(event.pid, None, *virt),
        }
    }

    fn born(&mut self, pid: Pid, by: Pid, shares_memory: bool) {
        let Some(parent) = self.live.get(&by).cloned() else { return };
        let space = if shares_memory {
            parent.space
        } else {
            Rc::new(RefCell::new(parent.space.borrow().fork()))
        };
        let maker = &self.played.processes[parent.at];
        let process = ReplayedProcess {
            pid,
            parent: Some(by),
            virt_start: space.borrow().size(),
            ..ReplayedProcess::new(pid, maker.program.clone())
        };
        self.live.insert(pid, LiveProcess { at: self.played.processes.len(), space, ..parent });
        self.played.processes.push(process);
    }

    /// A program starts. Its initial mappings replaced those before, if the start was recorded.
    fn image(&mut self, event: &'r CallEvent, image: &'r ProgramImage) {
        let program = image.exe.clone().unwrap_or_default();
        let space = effect::space_of(image);
        let now = space.size();
        let known = self.live.get(&event.pid);
        let before = match known {
            Some(live) => live.space.borrow().size(),
            None if image.executed => 0,
            None => now,
        };
        let at = known.map_or(self.played.processes.len(), |live| live.at);
        if known.is_none() {
            let process = ReplayedProcess::new(event.pid, program.clone());
            self.played.processes.push(ReplayedProcess { virt_start: before, ..process });
        }
        let live = LiveProcess {
            at,
            space: Rc::new(RefCell::new(space)),
            has_begun: !image.executed || image.interpreter.is_none(),
            begin_is_told: image.begin_is_told,
            interpreter: image.interpreter.clone(),
        };
        self.live.insert(event.pid, live);
        let process = &mut self.played.processes[at];
        process.program = program;
        process.is_native &= image.is_native;
        if image.executed {
            let change = difference(now, before);
            let is_known = image.mapped.is_ok();
            self.played.rows.push(TimelineRow {
                event,
                act: TimelineAct::Executed(image),
                phase: LifePhase::Exec,
                by: Name::default(),
                effect: CallEffect { bytes: None, change: is_known.then_some(change) },
            });
        }
    }

    fn call(&mut self, event: &'r CallEvent, call: &'r MemoryCall) {
        let Some(live) = self.live.get_mut(&event.pid) else { return };
        let mut space = live.space.borrow_mut();
        let by = space.name_at(call.caller).cloned().unwrap_or_default();
        // If its entry is not recorded, the program begins with the first call from outside of the
        // dynamic linker.
        live.has_begun |= !live.begin_is_told && live.interpreter.as_ref() != Some(&by);
        let phase = if live.has_begun { LifePhase::Program } else { LifePhase::StartUp };
        let effect = effect::apply(call, event.time_ns, &mut space, self.rounding);
        let process = &mut self.played.processes[live.at];
        process.calls += 1;
        self.played.rows.push(TimelineRow {
            event,
            act: TimelineAct::Call(call),
            phase,
            by,
            effect,
        });
    }

    fn end(&mut self, pid: Pid, ending: Option<ProgramEnding>, virt: Option<Bytes>) {
        let Some(live) = self.live.remove(&pid) else { return };
        let process = &mut self.played.processes[live.at];
        process.ending = ending;
        process.virt_end = virt;
        let accounted = live.space.borrow().size();
        process.virt_change = difference(accounted, process.virt_start);
        process.virt_otherwise = virt
            .filter(|_| self.is_whole && process.is_native)
            .map(|virt| difference(virt.0, accounted));
    }
}

impl ReplayedProcess {
    fn new(pid: Pid, program: Name) -> ReplayedProcess {
        ReplayedProcess {
            pid,
            parent: None,
            program,
            is_native: true,
            calls: 0,
            virt_start: 0,
            virt_change: 0,
            virt_otherwise: None,
            virt_end: None,
            ending: None,
        }
    }
}

/// `after - before`, clamped to the range of `i64`.
fn difference(after: u64, before: u64) -> i64 {
    let distance = i64::try_from(after.abs_diff(before)).unwrap_or(i64::MAX);
    if after >= before { distance } else { -distance }
}
