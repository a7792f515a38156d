//! The state of the screen, and its changes.

mod page;
mod table;

use std::sync::Arc;
use std::time::Duration;

use pagewise_model::name::is_plain;
use pagewise_model::top::{TopKey, TopQuery, TopRow, TopSubject, TopTable};
use pagewise_view::text::Units;

use crate::event::{
    KeyPress, PageInstrument, PageSubject, PointerAction, ReplayStep, TuiAction, TuiEvent,
};
use crate::keys::{KeyGroup, UserCommand, command_of};
use crate::palette::Palette;
pub(crate) use page::OpenPage;

/// Narrower terminals show a message only.
pub const MIN_COLUMNS: u16 = 40;
/// Lower terminals show a message only.
pub const MIN_LINES: u16 = 6;

/// Times between sweeps that a user can choose, in milliseconds.
const INTERVALS: [u64; 7] = [500, 1000, 2000, 5000, 10_000, 30_000, 60_000];
/// Rows or lines that a turn of the wheel moves.
const WHEEL: usize = 3;
/// Length of a filter: no name is longer.
const MAX_FILTER: usize = 200;

/// Parameters of a state.
#[derive(Clone, Debug)]
pub struct TopOptions {
    /// Columns and lines of the terminal.
    pub size: (u16, u16),
    /// True to use colors.
    pub color: bool,
    /// Format of sizes.
    pub units: Units,
    /// Time between two sweeps.
    pub interval: Duration,
    /// The first query.
    pub query: TopQuery,
    /// Times of the first and the last sweep of a recording, in nanoseconds since 1970; `None` for
    /// the running machine.
    pub recording: Option<(u64, u64)>,
    /// Offset of the time zone from UTC, in seconds.
    pub utc_offset: i64,
}

/// A layer above the table or the page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum TopOverlay {
    None,
    /// The filter is being edited; each key changes the filter of the query.
    Filter,
    /// The help, from this line on.
    Help(usize),
}

/// The state of the screen.
#[derive(Clone, Debug)]
pub struct TopState {
    pub(crate) size: (u16, u16),
    pub(crate) palette: Palette,
    pub(crate) units: Units,
    pub(crate) recording: Option<(u64, u64)>,
    pub(crate) utc_offset: i64,
    pub(crate) query: TopQuery,
    pub(crate) table: Option<Arc<TopTable>>,
    /// The selected row.
    pub(crate) selected: usize,
    /// The identity of the selected row, which the selection follows; `None` to stay at the top.
    followed: Option<TopKey>,
    /// The first visible row.
    pub(crate) scroll: usize,
    pub(crate) page: Option<OpenPage>,
    pub(crate) overlay: TopOverlay,
    pub(crate) is_frozen: bool,
    /// The time between sweeps that the user chose.
    pub(crate) interval: Duration,
    /// The time between sweeps that keeps to the CPU budget.
    pub(crate) actual_interval: Duration,
    /// A message in place of the keys, until the next key.
    pub(crate) message: Option<String>,
}

impl TopState {
    /// The state before the first event.
    pub fn new(options: TopOptions) -> TopState {
        TopState {
            size: options.size,
            palette: Palette { color: options.color },
            units: options.units,
            recording: options.recording,
            utc_offset: options.utc_offset,
            query: options.query,
            table: None,
            selected: 0,
            followed: None,
            scroll: 0,
            page: None,
            overlay: TopOverlay::None,
            is_frozen: false,
            interval: options.interval,
            actual_interval: options.interval,
            message: None,
        }
    }

    /// The query that the table must answer.
    pub const fn query(&self) -> &TopQuery {
        &self.query
    }

    /// Opens the page of an object, as Enter on its row does.
    pub fn open(&mut self, subject: PageSubject) -> Vec<TuiAction> {
        self.open_page(subject, None)
    }

    /// Applies an event. The caller carries out the actions in their order.
    pub fn apply(&mut self, event: TuiEvent) -> Vec<TuiAction> {
        match event {
            TuiEvent::Key(press) => return self.press(press),
            TuiEvent::Pointer(action, x, y) => return self.point(action, x, y),
            TuiEvent::Resize(columns, lines) => self.resize(columns, lines),
            TuiEvent::Table(table) => self.show(table),
            TuiEvent::Interval(interval) => self.actual_interval = interval,
            TuiEvent::Message(text) => self.message = Some(plain(&text)),
            event => {
                if let Some(page) = &mut self.page {
                    page.apply(event, self.size, self.units);
                }
            }
        }
        Vec::new()
    }

    const fn screen(&self) -> KeyGroup {
        if self.page.is_some() { KeyGroup::Page } else { KeyGroup::Table }
    }

    pub(crate) const fn is_replay(&self) -> bool {
        self.recording.is_some()
    }

    fn resize(&mut self, columns: u16, lines: u16) {
        self.size = (columns, lines);
        if let Some(page) = &mut self.page {
            page.render(self.size, self.units);
        }
        self.keep_selection_visible();
    }

    fn press(&mut self, press: KeyPress) -> Vec<TuiAction> {
        self.message = None;
        match self.overlay {
            TopOverlay::Filter => return self.edit_filter(press),
            TopOverlay::Help(line) => return self.read_help(line, press),
            TopOverlay::None => {}
        }
        if let (Some(page), KeyPress::Char(digit)) = (&mut self.page, press)
            && let Some(tab) = digit.to_digit(10).filter(|digit| *digit > 0)
        {
            page.select(tab as usize - 1, self.size, self.units);
            return Vec::new();
        }
        match command_of(press, self.screen(), self.is_replay()) {
            Some(command) => self.command(command),
            None => Vec::new(),
        }
    }

    fn command(&mut self, command: UserCommand) -> Vec<TuiAction> {
        match command {
            UserCommand::Quit => vec![TuiAction::Quit],
            UserCommand::Suspend => vec![TuiAction::Suspend],
            UserCommand::Redraw => vec![TuiAction::Redraw],
            UserCommand::Help => {
                self.overlay = TopOverlay::Help(0);
                Vec::new()
            }
            UserCommand::Step(step) => self.step(step),
            UserCommand::Run(instrument) => self.run(instrument),
            UserCommand::Save => self.save(),
            UserCommand::Back => self.back(),
            command => match &mut self.page {
                Some(page) => {
                    page.command(command, self.size, self.units);
                    Vec::new()
                }
                None => self.table_command(command),
            },
        }
    }

    fn step(&mut self, step: ReplayStep) -> Vec<TuiAction> {
        if self.is_replay() { vec![TuiAction::Step(step)] } else { Vec::new() }
    }

    /// The object of the open page or of the selected row.
    fn subject(&self) -> Option<PageSubject> {
        match &self.page {
            Some(page) => Some(page.subject.clone()),
            None => subject_of(&self.selected_row()?.key),
        }
    }

    fn run(&mut self, instrument: PageInstrument) -> Vec<TuiAction> {
        if self.is_replay() {
            return self.refuse("a recording has no processes to measure");
        }
        match self.subject() {
            None => self.refuse("select a process or a cgroup first"),
            Some(PageSubject::Cgroup(_)) if instrument != PageInstrument::Diagnose => {
                self.refuse("select a process: of a cgroup, only `d` is possible")
            }
            Some(subject) => match &mut self.page {
                Some(page) => page.start(instrument, self.size, self.units),
                None => self.open_page(subject, Some(instrument)),
            },
        }
    }

    fn save(&mut self) -> Vec<TuiAction> {
        match self.subject() {
            _ if self.is_replay() => self.refuse("a recording has no processes to save"),
            Some(PageSubject::Process(key)) => {
                self.message = Some(format!("saving a snapshot of process {} …", key.pid));
                vec![TuiAction::Save(key)]
            }
            _ => self.refuse("select a process first"),
        }
    }

    fn refuse(&mut self, reason: &str) -> Vec<TuiAction> {
        self.message = Some(reason.to_owned());
        Vec::new()
    }

    fn open_page(
        &mut self,
        subject: PageSubject,
        instrument: Option<PageInstrument>,
    ) -> Vec<TuiAction> {
        let title = self.title_of(&subject).unwrap_or_else(|| match &subject {
            PageSubject::Process(key) => key.pid.to_string(),
            PageSubject::Cgroup(path) => path.escaped().into_owned(),
        });
        let mut page = OpenPage::new(subject.clone(), title);
        if self.is_replay() {
            page.keep_first_tab();
        }
        let mut actions = vec![TuiAction::Open(subject)];
        if let Some(instrument) = instrument {
            actions.extend(page.start(instrument, self.size, self.units));
        }
        page.render(self.size, self.units);
        self.page = Some(page);
        actions
    }

    /// The name of a process in the table, or of a cgroup, escaped.
    fn title_of(&self, subject: &PageSubject) -> Option<String> {
        match subject {
            PageSubject::Cgroup(path) => Some(format!("cgroup {}", path.escaped())),
            PageSubject::Process(key) => {
                let mut rows = self.table.iter().flat_map(|table| &table.rows);
                let row = rows.find(|row| row.key == TopKey::Process(*key))?;
                let (name, arguments) = (row.name.escaped(), row.arguments.escaped());
                Some(format!("{} {name} {arguments}", key.pid).trim_end().to_owned())
            }
        }
    }

    /// Leaves the innermost state: a running command, the page, the filter, the cgroup, the groups.
    fn back(&mut self) -> Vec<TuiAction> {
        let Some(page) = &self.page else { return self.widen() };
        if let Some(instrument) = page.running_here() {
            return vec![TuiAction::Stop(page.subject.clone(), instrument)];
        }
        let running = page.running();
        let subject = page.subject.clone();
        self.page = None;
        let stops = running.into_iter().map(|it| TuiAction::Stop(subject.clone(), it));
        stops.chain([TuiAction::Close]).collect()
    }

    fn edit_filter(&mut self, press: KeyPress) -> Vec<TuiAction> {
        match press {
            KeyPress::Ctrl('c') => return vec![TuiAction::Quit],
            KeyPress::Ctrl('z') => return vec![TuiAction::Suspend],
            KeyPress::Enter => self.overlay = TopOverlay::None,
            KeyPress::Esc => {
                self.overlay = TopOverlay::None;
                self.query.filter.clear();
            }
            KeyPress::Backspace => {
                self.query.filter.pop();
            }
            KeyPress::Ctrl('u') => self.query.filter.clear(),
            KeyPress::Char(letter) if is_plain(letter) && self.query.filter.len() < MAX_FILTER => {
                self.query.filter.push(letter);
            }
            KeyPress::Up => self.move_selection(false, 1),
            KeyPress::Down => self.move_selection(true, 1),
            _ => {}
        }
        self.asked()
    }

    fn read_help(&mut self, line: usize, press: KeyPress) -> Vec<TuiAction> {
        let page = usize::from(self.size.1.saturating_sub(2));
        let last = crate::draw::help_lines(self).saturating_sub(page);
        let line = match command_of(press, self.screen(), self.is_replay()) {
            Some(UserCommand::Down) => line + 1,
            Some(UserCommand::Up) => line.saturating_sub(1),
            Some(UserCommand::PageDown) => line + page,
            Some(UserCommand::PageUp) => line.saturating_sub(page),
            Some(UserCommand::First) => 0,
            Some(UserCommand::Last) => last,
            Some(UserCommand::Suspend) => return vec![TuiAction::Suspend],
            _ if press == KeyPress::Ctrl('c') => return vec![TuiAction::Quit],
            _ => {
                self.overlay = TopOverlay::None;
                return Vec::new();
            }
        };
        self.overlay = TopOverlay::Help(line.min(last));
        Vec::new()
    }

    fn point(&mut self, action: PointerAction, x: u16, y: u16) -> Vec<TuiAction> {
        if let TopOverlay::Help(line) = self.overlay {
            let press = match action {
                PointerAction::Press => KeyPress::Esc,
                PointerAction::WheelUp => KeyPress::Up,
                PointerAction::WheelDown => KeyPress::Down,
            };
            return self.read_help(line, press);
        }
        match (&mut self.page, action) {
            (Some(page), PointerAction::Press) => {
                page.press(x, y, self.size, self.units);
                Vec::new()
            }
            (Some(page), action) => {
                page.scroll_by(action == PointerAction::WheelDown, WHEEL, self.size);
                Vec::new()
            }
            (None, PointerAction::Press) => self.press_at(x, y),
            (None, action) => {
                self.move_selection(action == PointerAction::WheelDown, WHEEL);
                Vec::new()
            }
        }
    }

    /// The selected row.
    pub(crate) fn selected_row(&self) -> Option<&TopRow> {
        self.table.as_ref()?.rows.get(self.selected)
    }

    /// True if the table has cgroups.
    pub(crate) fn shows_cgroups(&self) -> bool {
        self.query.subject == TopSubject::Cgroups
    }
}

fn subject_of(key: &TopKey) -> Option<PageSubject> {
    match key {
        TopKey::Process(key) => Some(PageSubject::Process(*key)),
        TopKey::Cgroup(path) => Some(PageSubject::Cgroup(path.clone())),
        TopKey::Group(_) => None,
    }
}

/// A text without control characters.
pub(crate) fn plain(text: &str) -> String {
    pagewise_model::name::escape(text.as_bytes()).into_owned()
}
