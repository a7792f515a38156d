//! The live view of `pagewise top` and `pagewise replay`: a state machine for keys, tables and
//! pages, and functions that draw it. They do not access files, clocks or the terminal. The caller
//! reads all processes at intervals (a sweep), and passes the values of each sweep as a table.
//!
//! [`TopState::apply`] takes an event and returns the actions that the caller must carry out.
//! [`draw`] draws the state into a frame. Text from outside is escaped before it is written to a
//! frame.
#![forbid(unsafe_code)]

mod draw;
mod event;
mod keys;
mod layout;
mod palette;
mod sgr;
mod state;

pub use draw::draw;
pub use event::{
    InstrumentEnd, KeyPress, LiveReports, OutputStream, PageInstrument, PageSubject, PointerAction,
    ReplayStep, TuiAction, TuiEvent,
};
pub use keys::{KEY_GROUPS, KeyBinding, KeyBindings, KeyGroup};
pub use state::{MIN_COLUMNS, MIN_LINES, TopOptions, TopState};
