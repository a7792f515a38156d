//! Positions on the screen, computed only from the size of the terminal. Drawing and mouse handling
//! use the same positions.

use pagewise_model::top::{TopColumn, TopQuery, TopSubject};

use crate::state::TopState;

/// Height of the title and of the bottom line, in lines.
const ONE: u16 = 1;
/// Minimum width of the name column. Other columns are omitted if the name would get less.
const NAME_WIDTH: u16 = 25;
/// Minimum width of the name column on a wide terminal.
const WIDE_NAME_WIDTH: u16 = 34;
/// Minimum width of a wide terminal, on which columns are wider.
const WIDE: u16 = 120;

/// Position of a table column on the screen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ColumnSpan {
    pub(crate) column: TopColumn,
    pub(crate) x: u16,
    pub(crate) width: u16,
}

/// Positions of the table's parts on the screen.
#[derive(Clone, Debug)]
pub(crate) struct TableLayout {
    /// Number of lines with values of the machine. They begin at line 1.
    pub(crate) figure_lines: u16,
    /// Index of the line with the kind of the rows, their order and the filter.
    pub(crate) status_line: u16,
    /// Index of the line with the headings.
    pub(crate) heading_line: u16,
    /// Index of the line with the first row.
    pub(crate) first_row_line: u16,
    /// Number of rows that fit on the screen.
    pub(crate) rows: u16,
    /// Index of the line with the last event; `None` if the table has no event.
    pub(crate) event_line: Option<u16>,
    /// Index of the bottom line.
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

    /// The column at a horizontal position; `None` between columns.
    pub(crate) fn column_at(&self, x: u16) -> Option<TopColumn> {
        let last = self.columns.iter().rev().find(|span| span.x <= x.saturating_add(1))?;
        Some(last.column)
    }
}

/// Width of a column; 0 for the name, which gets the remaining width.
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

/// Columns of tables of processes, in the order in which they are added while they fit. The name is
/// always shown.
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

/// Columns of tables of cgroups, in the order in which they are added while they fit. Pressure and
/// charge belong to a cgroup itself, while RSS and the OOM rank belong to its processes.
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

/// Selects and positions the columns that fit: first the column by which the rows are sorted, then
/// by importance.
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

/// Positions of the page's parts on the screen: title, panes, body, bottom line.
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
