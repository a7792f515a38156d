//! The page of a process or a cgroup: panes with reports, and with the output of commands.

use std::sync::Arc;

use pagewise_model::report::Report;
use pagewise_view::text::{self, Style, Units};

use crate::event::{
    InstrumentEnd, LiveReports, OutputStream, PageInstrument, PageSubject, TuiAction, TuiEvent,
};
use crate::keys::UserCommand;
use crate::layout::PageLayout;
use crate::sgr::{self, StyledLine};

/// Bytes of the output of a command that are kept.
const MAX_OUTPUT: usize = 4 << 20;

/// A pane of the page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum PageTab {
    Overview,
    Explain,
    Growth,
    Mappings,
    Threads,
    Command(PageInstrument),
}

impl PageTab {
    const REPORTS: [PageTab; 5] =
        [PageTab::Overview, PageTab::Explain, PageTab::Growth, PageTab::Mappings, PageTab::Threads];

    pub(crate) const fn label(self) -> &'static str {
        match self {
            PageTab::Overview => "Overview",
            PageTab::Explain => "Explain",
            PageTab::Growth => "Growth",
            PageTab::Mappings => "Mappings",
            PageTab::Threads => "Threads",
            PageTab::Command(PageInstrument::Diagnose) => "Diagnose",
            PageTab::Command(PageInstrument::HeapScan) => "Heap",
            PageTab::Command(PageInstrument::Faults) => "Faults",
        }
    }

    const fn short_label(self) -> &'static str {
        match self {
            PageTab::Overview => "View",
            PageTab::Explain => "Expl",
            PageTab::Growth => "Grow",
            PageTab::Mappings => "Maps",
            PageTab::Threads => "Stack",
            PageTab::Command(PageInstrument::Diagnose) => "Diag",
            PageTab::Command(PageInstrument::HeapScan) => "Heap",
            PageTab::Command(PageInstrument::Faults) => "Flt",
        }
    }
}

/// A pane on the line of panes.
#[derive(Clone, Debug)]
pub(crate) struct TabSpan {
    pub(crate) index: usize,
    pub(crate) x: u16,
    pub(crate) width: u16,
    pub(crate) label: String,
}

/// The output of a command.
#[derive(Clone, Debug)]
pub(crate) struct CommandPane {
    pub(crate) instrument: PageInstrument,
    report: Vec<u8>,
    messages: Vec<u8>,
    pub(crate) end: Option<InstrumentEnd>,
    /// Number of sweeps since the command began.
    pub(crate) sweeps: usize,
}

impl CommandPane {
    fn add(&mut self, stream: OutputStream, text: &[u8]) {
        let kept = match stream {
            OutputStream::Report => &mut self.report,
            OutputStream::Messages => &mut self.messages,
        };
        let room = MAX_OUTPUT.saturating_sub(kept.len());
        kept.extend_from_slice(&text[..text.len().min(room)]);
    }

    /// The report of a finished command; otherwise the messages, then the report so far.
    fn lines(&self) -> Vec<StyledLine> {
        let mut lines = match self.end {
            Some(InstrumentEnd::Done) if !self.report.is_empty() => Vec::new(),
            _ => sgr::lines(&self.messages),
        };
        lines.extend(sgr::lines(&self.report));
        lines
    }
}

/// An open page.
#[derive(Clone, Debug)]
pub(crate) struct OpenPage {
    pub(crate) subject: PageSubject,
    /// The name of the object, escaped.
    pub(crate) title: String,
    pub(crate) tabs: Vec<PageTab>,
    pub(crate) tab: usize,
    reports: Option<Arc<LiveReports>>,
    /// Why the object cannot be read, escaped.
    pub(crate) failure: Option<String>,
    pub(crate) commands: Vec<CommandPane>,
    /// The lines of the selected pane.
    pub(crate) lines: Vec<StyledLine>,
    /// The first visible line.
    pub(crate) scroll: usize,
}

impl OpenPage {
    pub(super) fn new(subject: PageSubject, title: String) -> OpenPage {
        let tabs = match subject {
            PageSubject::Process(_) => PageTab::REPORTS.to_vec(),
            PageSubject::Cgroup(_) => Vec::new(),
        };
        OpenPage {
            subject,
            title,
            tabs,
            tab: 0,
            reports: None,
            failure: None,
            commands: Vec::new(),
            lines: Vec::new(),
            scroll: 0,
        }
    }

    pub(super) fn apply(&mut self, event: TuiEvent, size: (u16, u16), units: Units) {
        match event {
            TuiEvent::Reports(subject, reports) if subject == self.subject => {
                self.reports = Some(reports);
                self.failure = None;
            }
            TuiEvent::Unreadable(subject, why) if subject == self.subject => {
                self.failure = Some(super::plain(&why));
            }
            TuiEvent::Output(subject, instrument, stream, text) if subject == self.subject => {
                if let Some(pane) = self.pane_mut(instrument) {
                    pane.add(stream, &text);
                }
            }
            TuiEvent::Ended(subject, instrument, end) if subject == self.subject => {
                if let Some(pane) = self.pane_mut(instrument) {
                    pane.end = Some(end);
                }
            }
            _ => return,
        }
        self.render(size, units);
    }

    fn pane_mut(&mut self, instrument: PageInstrument) -> Option<&mut CommandPane> {
        self.commands.iter_mut().find(|pane| pane.instrument == instrument)
    }

    /// The output of the selected pane, if it is of a command.
    pub(crate) fn selected_command(&self) -> Option<&CommandPane> {
        let PageTab::Command(instrument) = *self.tabs.get(self.tab)? else { return None };
        self.commands.iter().find(|pane| pane.instrument == instrument)
    }

    /// The command that runs in the selected pane.
    pub(super) fn running_here(&self) -> Option<PageInstrument> {
        let pane = self.selected_command().filter(|pane| pane.end.is_none())?;
        Some(pane.instrument)
    }

    /// All commands that run.
    pub(super) fn running(&self) -> Vec<PageInstrument> {
        let running = self.commands.iter().filter(|pane| pane.end.is_none());
        running.map(|pane| pane.instrument).collect()
    }

    pub(super) fn count_sweep(&mut self) {
        for pane in self.commands.iter_mut().filter(|pane| pane.end.is_none()) {
            pane.sweeps += 1;
        }
    }

    /// Starts a command in a pane of its own, unless it runs already; selects the pane.
    pub(super) fn start(
        &mut self,
        instrument: PageInstrument,
        size: (u16, u16),
        units: Units,
    ) -> Vec<TuiAction> {
        let tab = PageTab::Command(instrument);
        let index = self.tabs.iter().position(|it| *it == tab).unwrap_or_else(|| {
            self.tabs.push(tab);
            self.tabs.len() - 1
        });
        let mut actions = Vec::new();
        if !self.running().contains(&instrument) {
            self.commands.retain(|pane| pane.instrument != instrument);
            let (report, messages) = (Vec::new(), Vec::new());
            let pane = CommandPane { instrument, report, messages, end: None, sweeps: 0 };
            self.commands.push(pane);
            actions.push(TuiAction::Start(self.subject.clone(), instrument, size.0));
        }
        self.select(index, size, units);
        actions
    }

    /// Leaves the first pane only: the others need the process itself.
    pub(super) fn keep_first_tab(&mut self) {
        self.tabs.truncate(1);
    }

    pub(super) fn select(&mut self, tab: usize, size: (u16, u16), units: Units) {
        if tab < self.tabs.len() && tab != self.tab {
            self.tab = tab;
            self.scroll = 0;
        }
        self.render(size, units);
    }

    pub(super) fn command(&mut self, command: UserCommand, size: (u16, u16), units: Units) {
        let page = usize::from(PageLayout::of(size).lines).max(1);
        let tabs = self.tabs.len().max(1);
        match command {
            UserCommand::Up => self.scroll_by(false, 1, size),
            UserCommand::Down => self.scroll_by(true, 1, size),
            UserCommand::PageUp => self.scroll_by(false, page, size),
            UserCommand::PageDown => self.scroll_by(true, page, size),
            UserCommand::First => self.scroll = 0,
            UserCommand::Last => self.scroll_by(true, usize::MAX, size),
            UserCommand::NextTab => self.select((self.tab + 1) % tabs, size, units),
            UserCommand::PreviousTab => self.select((self.tab + tabs - 1) % tabs, size, units),
            _ => {}
        }
    }

    pub(super) fn scroll_by(&mut self, is_down: bool, count: usize, size: (u16, u16)) {
        let visible = usize::from(PageLayout::of(size).lines).max(1);
        let last = self.lines.len().saturating_sub(visible);
        let scroll = match is_down {
            true => self.scroll.saturating_add(count),
            false => self.scroll.saturating_sub(count),
        };
        self.scroll = scroll.min(last);
    }

    /// The panes on their line. If they do not fit, all but the selected one have short names.
    pub(crate) fn tab_spans(&self, columns: u16) -> Vec<TabSpan> {
        let spans = self.spans_with(PageTab::label);
        match spans.last() {
            Some(last) if last.x + last.width > columns => self.spans_with(PageTab::short_label),
            _ => spans,
        }
    }

    fn spans_with(&self, name: fn(PageTab) -> &'static str) -> Vec<TabSpan> {
        let mut x = 0;
        let mut spans = Vec::new();
        for (index, &tab) in self.tabs.iter().enumerate() {
            let label = match name(tab) {
                short if short != tab.label() && index != self.tab => {
                    format!("{}{short} ", index + 1)
                }
                _ => format!(" {} {} ", index + 1, tab.label()),
            };
            let width = u16::try_from(label.len()).unwrap_or(u16::MAX);
            spans.push(TabSpan { index, x, width, label });
            x += width;
        }
        spans
    }

    pub(super) fn press(&mut self, x: u16, y: u16, size: (u16, u16), units: Units) {
        if y != PageLayout::of(size).tab_line {
            return;
        }
        let is_at = |span: &TabSpan| (span.x..span.x + span.width).contains(&x);
        if let Some(span) = self.tab_spans(size.0).into_iter().find(is_at) {
            self.select(span.index, size, units);
        }
    }

    /// Makes the lines of the selected pane.
    pub(super) fn render(&mut self, size: (u16, u16), units: Units) {
        self.lines = match self.tabs.get(self.tab) {
            Some(PageTab::Command(_)) => {
                self.selected_command().map(CommandPane::lines).unwrap_or_default()
            }
            Some(tab) => match &self.reports {
                Some(reports) => report_lines(report_of(*tab, reports), size.0, units),
                None => Vec::new(),
            },
            None => Vec::new(),
        };
        self.scroll_by(true, 0, size);
    }

    /// True if the selected pane waits for its first report.
    pub(crate) fn waits(&self) -> bool {
        let is_report = !matches!(self.tabs.get(self.tab), Some(PageTab::Command(_)) | None);
        is_report && self.reports.is_none() && self.failure.is_none()
    }
}

fn report_of(tab: PageTab, reports: &LiveReports) -> &Report {
    match tab {
        PageTab::Overview | PageTab::Command(_) => &reports.overview,
        PageTab::Explain => &reports.explain,
        PageTab::Growth => &reports.growth,
        PageTab::Mappings => &reports.mappings,
        PageTab::Threads => &reports.threads,
    }
}

/// A report as the text view draws it.
fn report_lines(report: &Report, width: u16, units: Units) -> Vec<StyledLine> {
    let style = Style { width: usize::from(width), color: true, long: false, units };
    let mut bytes = Vec::new();
    match text::write(report, &style, &mut bytes) {
        Ok(()) => sgr::lines(&bytes),
        // A vector takes all bytes.
        Err(_) => Vec::new(),
    }
}
