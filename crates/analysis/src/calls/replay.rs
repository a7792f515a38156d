//! A recording played again: each call with its effect, who made it, and in which phase of its program.

use std::cell::RefCell;
use std::collections::HashMap;
use std::rc::Rc;

use pagewise_model::calls::{Call, Ending, Event, Image, Recording, What};
use pagewise_model::{Bytes, Name, Pid};

use super::effect::{self, Effect, Rounding};
use super::space::Space;

/// A line of the time line.
#[derive(Clone, Debug)]
pub(super) struct Row<'r> {
    pub(super) event: &'r Event,
    pub(super) act: Act<'r>,
    pub(super) phase: Phase,
    /// The file that the code is in which made the call; empty for code in no file, and for the kernel.
    pub(super) by: Name,
    pub(super) effect: Effect,
}

/// What was done.
#[derive(Clone, Copy, Debug)]
pub(super) enum Act<'r> {
    Call(&'r Call),
    Executed(&'r Image),
}

/// Where in the life of a program.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Phase {
    /// The kernel maps the program.
    Exec,
    /// From there to the program's entry point: the dynamic linker, and what it calls.
    StartUp,
    /// From the entry point on.
    Program,
}

impl Phase {
    pub(super) const fn name(self) -> &'static str {
        match self {
            Phase::Exec => "exec",
            Phase::StartUp => "start-up",
            Phase::Program => "program",
        }
    }
}

/// A process of a recording.
#[derive(Clone, Debug)]
pub(super) struct Process {
    pub(super) pid: Pid,
    pub(super) parent: Option<Pid>,
    /// The file of the program that it runs, or ran last.
    pub(super) program: Name,
    /// Whether the calls of all its programs are recorded.
    pub(super) is_native: bool,
    pub(super) calls: u64,
    /// VIRT when it came to be; 0 of a command, which begins with its program.
    pub(super) virt_start: u64,
    /// By how much programs and calls changed that: its own, and of others that use the same memory.
    pub(super) virt_change: i64,
    /// By how much something else did; `None` where the kernel did not tell VIRT at the end.
    pub(super) virt_otherwise: Option<i64>,
    pub(super) virt_end: Option<Bytes>,
    /// `None` where it runs on.
    pub(super) ending: Option<Ending>,
}

/// What is known of a process while it lives.
#[derive(Clone, Debug)]
struct Live {
    /// Its place among all processes.
    at: usize,
    space: Rc<RefCell<Space>>,
    has_begun: bool,
    begin_is_told: bool,
    interpreter: Option<Name>,
}

/// All calls, and all processes.
pub(super) struct Played<'r> {
    pub(super) rows: Vec<Row<'r>>,
    pub(super) processes: Vec<Process>,
}

/// Plays a recording.
pub(super) fn play(recording: &Recording) -> Played<'_> {
    let rounding = Rounding::of(recording);
    let played = Played { rows: Vec::new(), processes: Vec::new() };
    let is_whole = recording.lost == 0;
    let mut player = Player { is_whole, rounding, live: HashMap::new(), played };
    for event in &recording.events {
        player.event(event);
    }
    player.played
}

struct Player<'r> {
    /// Whether no call is missing.
    is_whole: bool,
    rounding: Rounding,
    live: HashMap<Pid, Live>,
    played: Played<'r>,
}

impl<'r> Player<'r> {
    fn event(&mut self, event: &'r Event) {
        match &event.what {
            What::Born { by, shares_memory } => self.born(event.pid, *by, *shares_memory),
            What::Image(image) => self.image(event, image),
            What::Begun => {
                if let Some(live) = self.live.get_mut(&event.pid) {
                    live.has_begun = true;
                }
            }
            What::Call(call) => self.call(event, call),
            What::Ended { ending, virt } => self.end(event.pid, Some(*ending), *virt),
            What::Left { virt } => self.end(event.pid, None, *virt),
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
        let process = Process {
            pid,
            parent: Some(by),
            virt_start: space.borrow().size(),
            ..Process::new(pid, maker.program.clone())
        };
        self.live.insert(pid, Live { at: self.played.processes.len(), space, ..parent });
        self.played.processes.push(process);
    }

    /// A program is there. What is mapped then took the place of what was before, if that was ours to see.
    fn image(&mut self, event: &'r Event, image: &'r Image) {
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
            let process = Process::new(event.pid, program.clone());
            self.played.processes.push(Process { virt_start: before, ..process });
        }
        let live = Live {
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
            self.played.rows.push(Row {
                event,
                act: Act::Executed(image),
                phase: Phase::Exec,
                by: Name::default(),
                effect: Effect { bytes: None, change: is_known.then_some(change) },
            });
        }
    }

    fn call(&mut self, event: &'r Event, call: &'r Call) {
        let Some(live) = self.live.get_mut(&event.pid) else { return };
        let mut space = live.space.borrow_mut();
        let by = space.name_at(call.caller).cloned().unwrap_or_default();
        // Without a word of it, the program begins with the first call that is not the linker's.
        live.has_begun |= !live.begin_is_told && live.interpreter.as_ref() != Some(&by);
        let phase = if live.has_begun { Phase::Program } else { Phase::StartUp };
        let effect = effect::apply(call, event.time_ns, &mut space, self.rounding);
        let process = &mut self.played.processes[live.at];
        process.calls += 1;
        self.played.rows.push(Row { event, act: Act::Call(call), phase, by, effect });
    }

    fn end(&mut self, pid: Pid, ending: Option<Ending>, virt: Option<Bytes>) {
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

impl Process {
    fn new(pid: Pid, program: Name) -> Process {
        Process {
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

/// `after - before`, as near as a signed number comes.
fn difference(after: u64, before: u64) -> i64 {
    let distance = i64::try_from(after.abs_diff(before)).unwrap_or(i64::MAX);
    if after >= before { distance } else { -distance }
}
