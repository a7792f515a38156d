//! Positions on the screen, from the size of the terminal alone: drawing and mouse share them.

use pagewise_model::top::{TopColumn, TopQuery, TopSubject};

use crate::state::TopState;

/// Lines of a title and of a bottom line.
const ONE: u16 = 1;
/// Columns of a name below which other columns are left out.
const NAME_WIDTH: u16 = 25;
/// Columns of a name on a wide terminal.
const WIDE_NAME_WIDTH: u16 = 34;
/// Terminals from this width on have wide columns.
const WIDE: u16 = 120;

/// A column of the table on the screen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ColumnSpan {
    pub(crate) column: TopColumn,
    pub(crate) x: u16,
    pub(crate) width: u16,
}

/// The table on the screen.
#[derive(Clone, Debug)]
pub(crate) struct TableLayout {
    /// Lines with figures of the machine, from line 1 on.
    pub(crate) figure_lines: u16,
    /// The line that names the rows, their order and the filter.
    pub(crate) status_line: u16,
    /// The line with the headings.
    pub(crate) heading_line: u16,
    /// The first line with a row.
    pub(crate) first_row_line: u16,
    /// Number of rows that fit.
    pub(crate) rows: u16,
    /// The line of the last event, if there is one.
    pub(crate) event_line: Option<u16>,
    /// The bottom line.
    pub(crate) bottom_line: u16,
    pub(crate) columns: Vec<ColumnSpan>,
}

impl TableLayout {
    pub(crate) fn of(state: &TopState) -> TableLayout {
        let (width, height) = state.size;
        let figure_lines = if height < 12 {
            0
        } else if width < WIDE {
            2
        } else {
            1
        };
        let status_line = ONE + figure_lines;
        let heading_line = status_line + 1;
        let first_row_line = heading_line + 1;
        let bottom_line = height.saturating_sub(1);
        let table = state.table.as_deref();
        let has_event = table.is_some_and(|table| !table.events.is_empty()) && height >= 12;
        let event_line = has_event.then(|| bottom_line.saturating_sub(1));
        let end = event_line.unwrap_or(bottom_line);
        let known = table.map_or(&TopColumn::ALL[..], |table| &table.columns);
        TableLayout {
            figure_lines,
            status_line,
            heading_line,
            first_row_line,
            rows: end.saturating_sub(first_row_line),
            event_line,
            bottom_line,
            columns: columns(width, known, &state.query),
        }
    }

    /// The column under a position.
    pub(crate) fn column_at(&self, x: u16) -> Option<TopColumn> {
        let last = self.columns.iter().rev().find(|span| span.x <= x.saturating_add(1))?;
        Some(last.column)
    }
}

/// Width of a column other than the name.
const fn width_of(column: TopColumn, is_wide: bool) -> u16 {
    match column {
        TopColumn::Pid => 7,
        TopColumn::User => 9,
        TopColumn::Pss | TopColumn::Uss | TopColumn::Rss | TopColumn::Swap => 5,
        TopColumn::Current => 7,
        TopColumn::Limit => 5,
        TopColumn::Growth => 8,
        TopColumn::Trend => {
            if is_wide {
                16
            } else {
                8
            }
        }
        TopColumn::Minor | TopColumn::Major => 7,
        TopColumn::Pressure => 6,
        TopColumn::OomRank => 4,
        TopColumn::Name => 0,
    }
}

/// Columns by their importance on a narrow terminal. The name is always shown.
const IMPORTANCE: [TopColumn; 14] = [
    TopColumn::Pid,
    TopColumn::Current,
    TopColumn::Pss,
    TopColumn::Growth,
    TopColumn::Trend,
    TopColumn::Limit,
    TopColumn::Uss,
    TopColumn::Rss,
    TopColumn::Swap,
    TopColumn::OomRank,
    TopColumn::Pressure,
    TopColumn::Major,
    TopColumn::Minor,
    TopColumn::User,
];

/// The same of cgroups: a cgroup has pressure and a charge of its own, while RSS and the order of
/// the OOM killer are those of its processes.
const IMPORTANCE_OF_CGROUPS: [TopColumn; 13] = [
    TopColumn::Pid,
    TopColumn::Current,
    TopColumn::Pss,
    TopColumn::Growth,
    TopColumn::Trend,
    TopColumn::Limit,
    TopColumn::Uss,
    TopColumn::Swap,
    TopColumn::Pressure,
    TopColumn::OomRank,
    TopColumn::Rss,
    TopColumn::Major,
    TopColumn::Minor,
];

/// The columns that fit: the column of the order first, then the most important ones.
fn columns(width: u16, known: &[TopColumn], query: &TopQuery) -> Vec<ColumnSpan> {
    let is_wide = width >= WIDE;
    let name_width = if is_wide { WIDE_NAME_WIDTH } else { NAME_WIDTH };
    let mut room = width.saturating_sub(name_width);
    let mut chosen = vec![TopColumn::Name];
    let importance: &[TopColumn] = match query.subject {
        TopSubject::Processes => &IMPORTANCE,
        TopSubject::Cgroups => &IMPORTANCE_OF_CGROUPS,
    };
    let by_importance = [query.sort].into_iter().chain(importance.iter().copied());
    for column in by_importance.filter(|column| known.contains(column)) {
        let needed = width_of(column, is_wide) + 1;
        if !chosen.contains(&column) && needed <= room {
            chosen.push(column);
            room -= needed;
        }
    }
    let mut x = 0;
    let mut spans = Vec::new();
    for column in TopColumn::ALL.into_iter().filter(|column| chosen.contains(column)) {
        let width = match column {
            TopColumn::Name => width.saturating_sub(x),
            column => width_of(column, is_wide),
        };
        spans.push(ColumnSpan { column, x, width });
        x += width + 1;
    }
    spans
}

/// A page on the screen: title, panes, body, bottom line.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PageLayout {
    pub(crate) tab_line: u16,
    pub(crate) first_line: u16,
    pub(crate) lines: u16,
    pub(crate) bottom_line: u16,
}

impl PageLayout {
    pub(crate) const fn of(size: (u16, u16)) -> PageLayout {
        let bottom_line = size.1.saturating_sub(1);
        let first_line = 3;
        PageLayout {
            tab_line: 1,
            first_line,
            lines: bottom_line.saturating_sub(first_line),
            bottom_line,
        }
    }
}
