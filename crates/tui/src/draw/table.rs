//! Draws the table of processes or cgroups.

use pagewise_model::civil::CivilTime;
use pagewise_model::report::{CellValue, Fact};
use pagewise_model::top::{TopColumn, TopGrouping, TopKey, TopRow, TopSubject, TopTable};
use pagewise_model::{Absent, Bytes, Name, Reading};
use pagewise_view::text;

use super::canvas::{Canvas, width};
use super::{bottom_line, cells};
use crate::keys::KeyGroup;
use crate::layout::{ColumnSpan, TableLayout};
use crate::palette::Paint;
use crate::state::{TopState, plain};

/// Maximum number of levels of a tree for which the indentation grows.
const MAX_INDENT: usize = 10;
/// Growth in bytes per minute from which on it is colored. A smaller growth is noise.
const MARKED_GROWTH: u64 = 1 << 20;

pub(super) fn draw(canvas: &mut Canvas<'_>, state: &TopState) {
    let layout = TableLayout::of(state);
    title(canvas, state);
    match &state.table {
        Some(table) => {
            figures(canvas, &table.machine, layout.figure_lines);
            status(canvas, state, table, layout.status_line);
            rows(canvas, state, table, &layout);
            if let Some(y) = layout.event_line {
                event(canvas, table, y);
            }
        }
        None => {
            let columns = canvas.size().0;
            canvas.put(0, layout.status_line, columns, "reading all processes …", Paint::Dim);
        }
    }
    heading(canvas, state, &layout);
    bottom_line(canvas, state, layout.bottom_line, KeyGroup::Table);
}

/// Draws the title: the command, and the time of the sweep or the interval.
fn title(canvas: &mut Canvas<'_>, state: &TopState) {
    let columns = canvas.size().0;
    let name = if state.is_replay() { "pagewise replay" } else { "pagewise top" };
    let mut x = canvas.put(0, 0, columns, name, Paint::Bold) + 2;
    if let Some((first, last)) = state.recording {
        let now = state.table.as_ref().map_or(first, |table| table.unix_ns);
        let seconds = i64::try_from(now / 1_000_000_000).unwrap_or(i64::MAX);
        let time = CivilTime::new(seconds, state.utc_offset).to_string();
        x += canvas.put(x, 0, canvas.rest(x), &time, Paint::Bold) + 2;
        timeline(canvas, x, (first, last), now);
        return;
    }
    let is_slower = state.actual_interval > state.interval;
    let reason = if is_slower { ", to use little CPU time" } else { "" };
    let interval = format!("every {:?}{reason}", state.actual_interval);
    x += canvas.put(x, 0, canvas.rest(x), &interval, Paint::Dim) + 2;
    if state.is_frozen {
        canvas.put(x, 0, canvas.rest(x), "FROZEN: Space continues", Paint::Rising);
    }
}

/// Draws the position of the time `now` between the start and the end of the recording.
fn timeline(canvas: &mut Canvas<'_>, x: u16, (first, last): (u64, u64), now: u64) {
    let room = canvas.rest(x);
    if room < 10 {
        return;
    }
    let steps = u128::from(room - 1);
    let span = u128::from(last.saturating_sub(first)).max(1);
    let at = u128::from(now.clamp(first, last.max(first)) - first) * steps / span;
    let at = u16::try_from(at).unwrap_or(0).min(room - 1);
    canvas.put(x, 0, room, &"─".repeat(usize::from(room)), Paint::Dim);
    canvas.put(x + at, 0, 1, "●", Paint::Accent);
}

/// Draws values of the machine, as many as fit into `lines` lines.
fn figures(canvas: &mut Canvas<'_>, facts: &[Fact], lines: u16) {
    let columns = canvas.size().0;
    let (mut x, mut line) = (0, 0);
    for fact in facts {
        let value = match &fact.value {
            CellValue::Absent(_) => continue,
            value => text::cell(value),
        };
        let needed = width(&fact.label) + 1 + width(&value);
        let needed = u16::try_from(needed).unwrap_or(columns);
        if x + needed > columns {
            (x, line) = (0, line + 1);
        }
        if line >= lines {
            return;
        }
        let y = 1 + line;
        x += canvas.put(x, y, canvas.rest(x), &fact.label, Paint::Dim) + 1;
        x += canvas.put(x, y, canvas.rest(x), &value, Paint::Plain) + 2;
    }
}

/// Draws the kind of the rows, their order, and the filters that apply.
fn status(canvas: &mut Canvas<'_>, state: &TopState, table: &TopTable, y: u16) {
    let query = &state.query;
    let mut parts: Vec<(String, Paint)> = Vec::new();
    let is_one = table.rows.len() == 1;
    let objects = match (query.subject, query.grouping) {
        (TopSubject::Cgroups, _) if is_one => "cgroup".to_owned(),
        (TopSubject::Cgroups, _) => "cgroups".to_owned(),
        (TopSubject::Processes, Some(group)) if is_one => format!("group by {}", group.label()),
        (TopSubject::Processes, Some(group)) => format!("groups by {}", group.label()),
        (TopSubject::Processes, None) if is_one => "process".to_owned(),
        (TopSubject::Processes, None) => "processes".to_owned(),
    };
    let tree = if query.tree && query.grouping.is_none() { " as a tree" } else { "" };
    let order = if query.reversed { " reversed" } else { "" };
    parts.push((
        format!("{} {objects}{tree} by {}{order}", table.rows.len(), query.sort.about().label),
        Paint::Plain,
    ));
    if let Some(cgroup) = &query.cgroup {
        parts.push((format!("in {}", cgroup.escaped()), Paint::Bold));
    }
    if !query.filter.is_empty() {
        let hidden = table.filtered;
        parts.push((format!("filter {} hides {hidden}", query.filter), Paint::Bold));
    }
    if table.postponed > 0 {
        parts.push((format!("{} PSS not read yet", table.postponed), Paint::Plain));
    }
    let outdated = table.outdated;
    if outdated.count > 0 {
        let age = cells::duration(outdated.oldest_ns);
        let mark = cells::OUTDATED;
        parts.push((format!("{mark}{} PSS up to {age} old", outdated.count), Paint::Plain));
    }
    if let Some((count, why)) = &table.unreadable {
        let why = match why {
            Absent::NotPermitted(needs) => format!("needs {needs}"),
            why => why.to_string(),
        };
        parts.push((plain(&format!("{count} PSS unknown: {why}")), Paint::Rising));
    }
    // If the line is too long, texts in its middle are omitted. The last text stays, because it has
    // the reason of unknown values, if there are any.
    let columns = usize::from(canvas.size().0);
    let length = |parts: &[(String, Paint)]| parts.iter().map(|it| width(&it.0) + 2).sum::<usize>();
    while parts.len() > 2 && length(&parts) > columns + 2 {
        parts.remove(parts.len() - 2);
    }
    let mut x = 0;
    for (text, paint) in parts {
        x += canvas.put(x, y, canvas.rest(x), &text, paint) + 2;
    }
}

fn heading(canvas: &mut Canvas<'_>, state: &TopState, layout: &TableLayout) {
    let y = layout.heading_line;
    for span in &layout.columns {
        let label = label_of(span.column, state);
        match span.column {
            TopColumn::Name | TopColumn::User | TopColumn::Trend => {
                canvas.put(span.x, y, span.width, label, Paint::Plain);
            }
            _ => canvas.put_right(span.x, y, span.width, label, Paint::Plain),
        }
    }
    canvas.paint_line(y, Paint::Reversed);
    if let Some(span) = layout.columns.iter().find(|span| span.column == state.query.sort) {
        canvas.paint(span.x, y, span.width, Paint::Bold);
    }
}

fn label_of(column: TopColumn, state: &TopState) -> &'static str {
    let counts = state.query.grouping.is_some() || state.shows_cgroups();
    match column {
        TopColumn::Pid if counts => "PROCS",
        TopColumn::Name if state.shows_cgroups() => "CGROUP",
        column => column.about().label,
    }
}

fn rows(canvas: &mut Canvas<'_>, state: &TopState, table: &TopTable, layout: &TableLayout) {
    if table.rows.is_empty() {
        let why = match &table.missing {
            Some(why) => format!("none: {why}"),
            None if table.filtered > 0 => "none that the filter shows; Esc clears it".to_owned(),
            None => "none".to_owned(),
        };
        let columns = canvas.size().0;
        canvas.put(0, layout.first_row_line, columns, &plain(&why), Paint::Plain);
    }
    let visible = table.rows.iter().enumerate().skip(state.scroll).take(layout.rows.into());
    for ((index, row), y) in visible.zip(layout.first_row_line..) {
        for span in &layout.columns {
            cell(canvas, state, row, span, y);
        }
        if index == state.selected {
            canvas.paint_line(y, Paint::Reversed);
        }
    }
}

fn cell(canvas: &mut Canvas<'_>, state: &TopState, row: &TopRow, span: &ColumnSpan, y: u16) {
    let mut right = |text: &str, paint: Paint| {
        canvas.put_right(span.x, y, span.width, text, paint);
    };
    let sized = |reading: &Reading<Bytes>| cells::reading(reading, |bytes| cells::bytes(bytes.0));
    match span.column {
        TopColumn::Pid => match row.key {
            TopKey::Process(key) => right(&key.pid.0.to_string(), Paint::Plain),
            _ => right(&row.processes.to_string(), Paint::Plain),
        },
        TopColumn::Pss | TopColumn::Uss => pages(canvas, row, span, y),
        TopColumn::Rss => right(&sized(&row.rss), Paint::Plain),
        TopColumn::Swap => right(&sized(&row.swap), Paint::Plain),
        TopColumn::Current => right(&sized(&row.current), Paint::Bold),
        TopColumn::Limit => {
            let limit = cells::reading(&row.limit, |limit| {
                limit.map_or_else(|| "max".to_owned(), |bytes| cells::bytes(bytes.0))
            });
            right(&limit, Paint::Plain);
        }
        TopColumn::Growth => {
            let (text, paint) = growth(row);
            right(&text, paint);
        }
        TopColumn::Minor => right(&cells::reading(&row.minor, |&it| cells::rate(it)), Paint::Plain),
        TopColumn::Major => {
            let is_some = row.major.as_ref().is_ok_and(|rate| *rate > 0.0);
            let paint = if is_some { Paint::Rising } else { Paint::Plain };
            right(&cells::reading(&row.major, |&it| cells::rate(it)), paint);
        }
        TopColumn::Pressure => {
            let is_some = row.pressure.as_ref().is_ok_and(|share| *share > 0.0);
            let paint = if is_some { Paint::Rising } else { Paint::Plain };
            right(&cells::reading(&row.pressure, |&it| cells::share(it)), paint);
        }
        TopColumn::OomRank => right(&cells::reading(&row.oom_rank, u64::to_string), Paint::Plain),
        TopColumn::User => {
            canvas.put(span.x, y, span.width, &row.user.escaped(), Paint::Plain);
        }
        TopColumn::Trend => {
            let trend = cells::trend(&row.trend, span.width.into());
            canvas.put(span.x, y, span.width, &trend, Paint::Bar);
        }
        TopColumn::Name => name(canvas, state, row, span, y),
    }
}

/// Draws PSS or USS, with a mark if it is outdated. The mark is in the gap before the column if the
/// value fills the column.
fn pages(canvas: &mut Canvas<'_>, row: &TopRow, span: &ColumnSpan, y: u16) {
    let (reading, paint) = match span.column {
        TopColumn::Pss => (&row.pss, Paint::Bold),
        _ => (&row.uss, Paint::Plain),
    };
    let text = cells::reading(reading, |bytes| cells::bytes(bytes.0));
    canvas.put_right(span.x, y, span.width, &text, paint);
    let used = u16::try_from(width(&text)).unwrap_or(span.width).min(span.width);
    if row.outdated_ns.is_some() && reading.is_ok() {
        let x = (span.x + span.width - used).saturating_sub(1);
        canvas.put(x, y, 1, cells::OUTDATED, Paint::Plain);
    }
}

/// Growth with its sign, and its color: small changes have no color.
fn growth(row: &TopRow) -> (String, Paint) {
    match &row.growth {
        Ok(0) => ("0".to_owned(), Paint::Dim),
        Ok(change) => {
            let paint = match change {
                _ if change.unsigned_abs() < MARKED_GROWTH => Paint::Plain,
                0.. => Paint::Rising,
                _ => Paint::Falling,
            };
            (cells::change(*change), paint)
        }
        Err(_) => (cells::ABSENT.to_owned(), Paint::Dim),
    }
}

fn name(canvas: &mut Canvas<'_>, state: &TopState, row: &TopRow, span: &ColumnSpan, y: u16) {
    let (mut x, end) = (span.x, span.x + span.width);
    x += canvas.put(x, y, end - x, &branches(&row.branches), Paint::Dim);
    let is_below = !row.branches.is_empty();
    let name = match &row.key {
        TopKey::Cgroup(path) if is_below => Name::new(path.base()),
        TopKey::Group(name) if state.query.grouping == Some(TopGrouping::Exe) => {
            Name::new(name.base())
        }
        _ => row.name.clone(),
    };
    let room = usize::from(end.saturating_sub(x));
    let shown = match &row.key {
        TopKey::Process(_) => name.escaped().into_owned(),
        // The end of a path contains more information than its start, so the middle is cut.
        TopKey::Group(_) | TopKey::Cgroup(_) => text::cut(&name.escaped(), room),
    };
    x += canvas.put(x, y, end.saturating_sub(x), &shown, Paint::Bold) + 1;
    if x < end {
        canvas.put(x, y, end - x, &row.arguments.escaped(), Paint::Plain);
    }
}

/// Lines of the tree that connect the row with its parent.
fn branches(branches: &[bool]) -> String {
    let Some((last, above)) = branches.split_last() else { return String::new() };
    let skipped = above.len().saturating_sub(MAX_INDENT);
    let mut text: String =
        above.iter().skip(skipped).map(|follows| if *follows { "│ " } else { "  " }).collect();
    text.push_str(if *last { "├─" } else { "└─" });
    text
}

/// Draws the last event.
fn event(canvas: &mut Canvas<'_>, table: &TopTable, y: u16) {
    let columns = canvas.size().0;
    if let Some(event) = table.events.last() {
        let x = canvas.put(0, y, columns, &cells::age(event.age_ns), Paint::Dim);
        canvas.put(x, y, canvas.rest(x), &text::inline(&event.sentence), Paint::Alarm);
    }
}
