//! Keys: one table for the dispatch of commands, the help and the bottom line.

use KeyPress::{Char, Ctrl, Function};
use UserCommand as Do;

use crate::event::{KeyPress, PageInstrument, ReplayStep};

/// A command that the user gives by a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum UserCommand {
    Quit,
    Back,
    Up,
    Down,
    PageUp,
    PageDown,
    First,
    Last,
    Open,
    SortLeft,
    SortRight,
    Reverse,
    Filter,
    Group,
    Tree,
    Subject,
    Freeze,
    Faster,
    Slower,
    Help,
    Run(PageInstrument),
    Save,
    NextTab,
    PreviousTab,
    Suspend,
    Redraw,
    Step(ReplayStep),
}

/// The screen on which a group of keys works.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KeyGroup {
    /// All screens.
    All,
    /// The screen with the table.
    Table,
    /// The screen with the page of a process or a cgroup.
    Page,
    /// All screens of a recording.
    Replay,
}

/// The keys of one command.
#[derive(Debug)]
pub struct KeyBinding {
    pub(crate) keys: &'static [KeyPress],
    pub(crate) command: UserCommand,
    /// The keys in the form of the help.
    pub shown: &'static str,
    /// One word for the bottom line; empty if the bottom line omits the keys.
    pub word: &'static str,
    /// Description of the command for the help.
    pub help: &'static str,
}

/// A heading of the help, the screen on which the keys work, and the keys.
pub type KeyBindings = (&'static str, KeyGroup, &'static [KeyBinding]);

/// All keys, in the order of the help.
pub const KEY_GROUPS: &[KeyBindings] = &[
    ("Table", KeyGroup::Table, TABLE),
    ("Page", KeyGroup::Page, PAGE),
    ("Recording", KeyGroup::Replay, REPLAY),
    ("All screens", KeyGroup::All, ALL),
];

const fn key(
    keys: &'static [KeyPress],
    command: UserCommand,
    shown: &'static str,
    word: &'static str,
    help: &'static str,
) -> KeyBinding {
    KeyBinding { keys, command, shown, word, help }
}

const TABLE: &[KeyBinding] = &[
    key(
        &[KeyPress::Enter],
        Do::Open,
        "Enter",
        "open",
        "open the page of a process; list the processes of a cgroup or group",
    ),
    key(&[Char('>'), KeyPress::Right], Do::SortRight, "> →", "sort", "sort by the next column"),
    key(&[Char('<'), KeyPress::Left], Do::SortLeft, "< ←", "", "sort by the previous column"),
    key(&[Char('r')], Do::Reverse, "r", "", "reverse the order"),
    key(
        &[Char('/')],
        Do::Filter,
        "/",
        "filter",
        "show only rows with a text in name, user or PID; Esc clears it",
    ),
    key(&[Char('g')], Do::Group, "g", "group", "group by user, by cgroup, by program, not at all"),
    key(&[Char('t')], Do::Tree, "t", "tree", "show children below their parents"),
    key(
        &[Char('v'), KeyPress::Tab, KeyPress::BackTab],
        Do::Subject,
        "v",
        "cgroups",
        "switch between processes and cgroups; also Tab",
    ),
    key(&[Char(' ')], Do::Freeze, "Space", "freeze", "stop reading, or continue"),
    key(&[Char('+')], Do::Faster, "+", "", "read more often"),
    key(&[Char('-')], Do::Slower, "-", "", "read less often"),
    key(&[Char('q')], Do::Quit, "q", "quit", "quit"),
];

const PAGE: &[KeyBinding] = &[
    key(
        &[KeyPress::Tab, KeyPress::Right, Char('>')],
        Do::NextTab,
        "Tab",
        "next pane",
        "next pane; a digit selects a pane",
    ),
    key(
        &[KeyPress::BackTab, KeyPress::Left, Char('<')],
        Do::PreviousTab,
        "Shift-Tab",
        "",
        "previous pane",
    ),
    key(&[Char('q'), KeyPress::Backspace], Do::Back, "q", "back", "back to the table"),
];

const REPLAY: &[KeyBinding] = &[
    key(&[Char(']')], Do::Step(ReplayStep::Next), "]", "step", "next sample"),
    key(&[Char('[')], Do::Step(ReplayStep::Previous), "[", "", "previous sample"),
    key(&[Char(')')], Do::Step(ReplayStep::MinuteForward), ")", "minute", "one minute forward"),
    key(&[Char('(')], Do::Step(ReplayStep::MinuteBack), "(", "", "one minute back"),
    key(
        &[Char('}')],
        Do::Step(ReplayStep::NextEvent),
        "}",
        "event",
        "next event: OOM kill, limit, gap, trigger",
    ),
    key(&[Char('{')], Do::Step(ReplayStep::PreviousEvent), "{", "", "previous event"),
    key(&[Char('^')], Do::Step(ReplayStep::First), "^", "", "first sample"),
    key(&[Char('$')], Do::Step(ReplayStep::Last), "$", "", "last sample"),
];

const ALL: &[KeyBinding] = &[
    key(
        &[Char('d')],
        Do::Run(PageInstrument::Diagnose),
        "d",
        "diagnose",
        "diagnose the process or cgroup for 10 s",
    ),
    key(
        &[Char('h')],
        Do::Run(PageInstrument::HeapScan),
        "h",
        "heap",
        "scan the heap of the process",
    ),
    key(
        &[Char('f')],
        Do::Run(PageInstrument::Faults),
        "f",
        "faults",
        "record the page faults of the process for 5 s",
    ),
    key(
        &[Char('s')],
        Do::Save,
        "s",
        "save",
        "save a snapshot of the process, for `pagewise explain --from`",
    ),
    key(&[Char('?'), Function(1)], Do::Help, "?", "help", "this help; also F1"),
    key(&[KeyPress::Up, Char('k')], Do::Up, "↑ k", "", "up"),
    key(&[KeyPress::Down, Char('j')], Do::Down, "↓ j", "", "down"),
    key(&[KeyPress::PageUp, Ctrl('b')], Do::PageUp, "PgUp", "", "one screen up"),
    key(&[KeyPress::PageDown, Ctrl('f')], Do::PageDown, "PgDn", "", "one screen down"),
    key(&[KeyPress::Home], Do::First, "Home", "", "first row"),
    key(&[KeyPress::End, Char('G')], Do::Last, "End G", "", "last row"),
    key(
        &[KeyPress::Esc],
        Do::Back,
        "Esc",
        "",
        "interrupt the command of the pane; else back, or clear the filter",
    ),
    key(&[Ctrl('l')], Do::Redraw, "Ctrl-L", "", "draw the screen again"),
    key(&[Ctrl('z')], Do::Suspend, "Ctrl-Z", "", "suspend"),
    key(&[Ctrl('c')], Do::Quit, "Ctrl-C", "", "quit"),
];

/// Returns the command of a key on a screen; `None` if the key has no command there.
pub(crate) fn command_of(
    press: KeyPress,
    screen: KeyGroup,
    is_replay: bool,
) -> Option<UserCommand> {
    let works = |group: KeyGroup| {
        group == KeyGroup::All || group == screen || (is_replay && group == KeyGroup::Replay)
    };
    let bindings = KEY_GROUPS.iter().filter(|(_, group, _)| works(*group));
    let mut keys = bindings.flat_map(|(_, _, keys)| keys.iter());
    keys.find(|binding| binding.keys.contains(&press)).map(|binding| binding.command)
}

/// The keys that the bottom line shows on a screen.
pub(crate) fn hints(screen: KeyGroup, is_replay: bool) -> Vec<&'static KeyBinding> {
    let order = [(KeyGroup::Replay, is_replay), (screen, true), (KeyGroup::All, true)];
    let wanted = order.iter().filter(|(_, is_wanted)| *is_wanted).map(|(group, _)| *group);
    let groups =
        wanted.filter_map(|wanted| KEY_GROUPS.iter().find(|(_, group, _)| *group == wanted));
    let needs_process =
        |it: &KeyBinding| matches!(it.command, UserCommand::Run(_) | UserCommand::Save);
    let is_hint = |it: &&KeyBinding| !(it.word.is_empty() || is_replay && needs_process(it));
    groups.flat_map(|(_, _, keys)| keys.iter()).filter(is_hint).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_has_one_command_on_a_screen() {
        for screen in [KeyGroup::Table, KeyGroup::Page] {
            let groups = [screen, KeyGroup::All, KeyGroup::Replay];
            let groups = KEY_GROUPS.iter().filter(|(_, group, _)| groups.contains(group));
            let mut seen: Vec<KeyPress> = Vec::new();
            for key in groups.flat_map(|(_, _, keys)| keys.iter()).flat_map(|it| it.keys) {
                assert!(!seen.contains(key), "{key:?} twice on {screen:?}");
                seen.push(*key);
            }
        }
    }
}
