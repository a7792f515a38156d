//! Events that change the state, and actions that the state asks for.

use std::sync::Arc;
use std::time::Duration;

use pagewise_model::Name;
use pagewise_model::report::Report;
use pagewise_model::sweep::ProcessKey;
use pagewise_model::top::{TopQuery, TopTable};

/// A key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KeyPress {
    /// A character, with Shift applied.
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
    /// A function key by its number.
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

/// The object of a page.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum PageSubject {
    /// A process.
    Process(ProcessKey),
    /// A cgroup.
    Cgroup(Name),
}

/// A command of pagewise whose output a pane shows.
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
    /// All, in the order of their panes.
    pub const ALL: [PageInstrument; 3] =
        [PageInstrument::Diagnose, PageInstrument::HeapScan, PageInstrument::Faults];
}

/// The reports about the process of a page, made from one snapshot.
#[derive(Clone, Debug)]
pub struct LiveReports {
    /// Memory by category, with the growth since the page was opened.
    pub overview: Report,
    /// `pagewise explain`.
    pub explain: Report,
    /// `pagewise diff` since the page was opened.
    pub growth: Report,
    /// The largest mappings.
    pub mappings: Report,
    /// Threads and their stacks.
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

/// End of a command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum InstrumentEnd {
    /// It printed its report.
    Done,
    /// It failed; its messages are part of its output.
    Failed,
    /// It was interrupted before it had a report.
    Interrupted,
}

/// A change from outside.
#[derive(Clone, Debug)]
pub enum TuiEvent {
    /// A key was pressed.
    Key(KeyPress),
    /// The mouse, with column and line.
    Pointer(PointerAction, u16, u16),
    /// The terminal has this number of columns and lines.
    Resize(u16, u16),
    /// The table of a new sweep, or of a changed query.
    Table(Arc<TopTable>),
    /// The time between sweeps changed, to keep to the CPU budget.
    Interval(Duration),
    /// Reports for the open page.
    Reports(PageSubject, Arc<LiveReports>),
    /// Why the object of the open page cannot be read.
    Unreadable(PageSubject, String),
    /// Output of a command, as it was printed.
    Output(PageSubject, PageInstrument, OutputStream, Vec<u8>),
    /// A command ended.
    Ended(PageSubject, PageInstrument, InstrumentEnd),
    /// A message for the bottom line.
    Message(String),
}

/// A step through a recording.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReplayStep {
    /// The previous sweep.
    Previous,
    /// The next sweep.
    Next,
    /// A minute back.
    MinuteBack,
    /// A minute forward.
    MinuteForward,
    /// The previous event.
    PreviousEvent,
    /// The next event.
    NextEvent,
    /// The first sweep.
    First,
    /// The last sweep.
    Last,
}

/// An action for the caller.
#[derive(Clone, Debug, PartialEq)]
pub enum TuiAction {
    /// End.
    Quit,
    /// Restore the terminal and stop this process, as Ctrl-Z does.
    Suspend,
    /// Draw every cell again.
    Redraw,
    /// Answer this query with a table.
    Query(TopQuery),
    /// Stop or continue the sweeps.
    Freeze(bool),
    /// Change the time between sweeps.
    Interval(Duration),
    /// Begin to make reports about an object.
    Open(PageSubject),
    /// Stop to make reports.
    Close,
    /// Start a command, whose output has at most this number of columns.
    Start(PageSubject, PageInstrument, u16),
    /// Interrupt a command.
    Stop(PageSubject, PageInstrument),
    /// Save a snapshot of a process.
    Save(ProcessKey),
    /// Go to another sweep of the recording.
    Step(ReplayStep),
}
