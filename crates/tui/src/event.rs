//! Events that change the state of the screen, and actions that the caller must carry out.

use std::sync::Arc;
use std::time::Duration;

use pagewise_model::Name;
use pagewise_model::report::Report;
use pagewise_model::sweep::ProcessKey;
use pagewise_model::top::{TopQuery, TopTable};

/// A key that was pressed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KeyPress {
    /// A character; Shift is already applied.
    Char(char),
    /// A letter with Ctrl.
    Ctrl(char),
    /// Enter.
    Enter,
    /// Escape.
    Esc,
    /// Backspace.
    Backspace,
    /// Tab.
    Tab,
    /// Tab with Shift.
    BackTab,
    /// Arrow up.
    Up,
    /// Arrow down.
    Down,
    /// Arrow left.
    Left,
    /// Arrow right.
    Right,
    /// Page up.
    PageUp,
    /// Page down.
    PageDown,
    /// Home.
    Home,
    /// End.
    End,
    /// A function key, with its number.
    Function(u8),
}

/// An action of the mouse.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PointerAction {
    /// The left button was pressed.
    Press,
    /// The wheel was turned up.
    WheelUp,
    /// The wheel was turned down.
    WheelDown,
}

/// The process or cgroup of a page.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum PageSubject {
    /// A process.
    Process(ProcessKey),
    /// A cgroup.
    Cgroup(Name),
}

/// A pagewise command whose output is shown in a pane of the page.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum PageInstrument {
    /// `pagewise diagnose`.
    Diagnose,
    /// `pagewise heap scan`.
    HeapScan,
    /// `pagewise faults`.
    Faults,
}

impl PageInstrument {
    /// All commands, in the order of their panes.
    pub const ALL: [PageInstrument; 3] =
        [PageInstrument::Diagnose, PageInstrument::HeapScan, PageInstrument::Faults];
}

/// The reports about the process of a page, computed from one snapshot.
#[derive(Clone, Debug)]
pub struct LiveReports {
    /// Memory by category, with the growth since the page was opened.
    pub overview: Report,
    /// The report of `pagewise explain`.
    pub explain: Report,
    /// The report of `pagewise diff`: changes since the page was opened.
    pub growth: Report,
    /// The largest mappings of the process.
    pub mappings: Report,
    /// The threads of the process and their stacks.
    pub threads: Report,
}

/// Stream of a command's output.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OutputStream {
    /// Standard output: the report.
    Report,
    /// Standard error: progress and errors.
    Messages,
}

/// End of a command that a pane shows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum InstrumentEnd {
    /// The command printed its report.
    Done,
    /// The command failed. Its messages are part of its output.
    Failed,
    /// The command was interrupted before it had a report.
    Interrupted,
}

/// An event that the caller passes to [`TopState::apply`](crate::TopState::apply).
#[derive(Clone, Debug)]
pub enum TuiEvent {
    /// A key was pressed.
    Key(KeyPress),
    /// An action of the mouse, with its column and line.
    Pointer(PointerAction, u16, u16),
    /// The size of the terminal changed to this number of columns and lines.
    Resize(u16, u16),
    /// A table for a new sweep or for a changed query.
    Table(Arc<TopTable>),
    /// The interval between sweeps changed, to stay within the CPU budget.
    Interval(Duration),
    /// Reports for the open page.
    Reports(PageSubject, Arc<LiveReports>),
    /// The process or cgroup of the open page cannot be read, with the reason.
    Unreadable(PageSubject, String),
    /// Output of a command, unchanged.
    Output(PageSubject, PageInstrument, OutputStream, Vec<u8>),
    /// A command of a pane ended.
    Ended(PageSubject, PageInstrument, InstrumentEnd),
    /// A message for the bottom line.
    Message(String),
}

/// A step to another sweep of a recording.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReplayStep {
    /// The previous sweep.
    Previous,
    /// The next sweep.
    Next,
    /// The sweep one minute earlier.
    MinuteBack,
    /// The sweep one minute later.
    MinuteForward,
    /// The sweep of the previous event.
    PreviousEvent,
    /// The sweep of the next event.
    NextEvent,
    /// The first sweep.
    First,
    /// The last sweep.
    Last,
}

/// An action that the caller must carry out.
#[derive(Clone, Debug, PartialEq)]
pub enum TuiAction {
    /// Quit the program.
    Quit,
    /// Restore the terminal and stop this process, as Ctrl-Z does.
    Suspend,
    /// Redraw every cell.
    Redraw,
    /// Build the table of this query, and pass it as [`TuiEvent::Table`].
    Query(TopQuery),
    /// Stop the sweeps (true) or continue them (false).
    Freeze(bool),
    /// Change the interval between sweeps.
    Interval(Duration),
    /// Begin to compute reports about a process or cgroup.
    Open(PageSubject),
    /// Stop computing reports.
    Close,
    /// Start a command for a process or cgroup. Its output has at most this number of columns.
    Start(PageSubject, PageInstrument, u16),
    /// Interrupt a command of a pane.
    Stop(PageSubject, PageInstrument),
    /// Save a snapshot of a process.
    Save(ProcessKey),
    /// Move to another sweep of the recording.
    Step(ReplayStep),
}
