//! The table: selection, order, filter, groups.

use std::sync::Arc;
use std::time::Duration;

use pagewise_model::Name;
use pagewise_model::top::{TopColumn, TopGrouping, TopKey, TopQuery, TopSubject, TopTable};

use super::{INTERVALS, TopOverlay, TopState, subject_of};
use crate::event::TuiAction;
use crate::keys::UserCommand;
use crate::layout::TableLayout;

impl TopState {
    /// Shows a new table. The selection follows its row, or stays at the top.
    pub(super) fn show(&mut self, table: Arc<TopTable>) {
        if let Some(key) = &self.followed {
            match table.rows.iter().position(|row| row.key == *key) {
                Some(index) => self.selected = index,
                None => self.followed = None,
            }
        }
        self.selected = self.selected.min(table.rows.len().saturating_sub(1));
        self.table = Some(table);
        if let Some(mut page) = self.page.take() {
            page.count_sweep();
            // The process may have executed another program.
            if let Some(title) = self.title_of(&page.subject) {
                page.title = title;
            }
            self.page = Some(page);
        }
        self.keep_selection_visible();
    }

    pub(super) fn table_command(&mut self, command: UserCommand) -> Vec<TuiAction> {
        let rows = usize::from(TableLayout::of(self).rows).max(1);
        match command {
            UserCommand::Up => self.move_selection(false, 1),
            UserCommand::Down => self.move_selection(true, 1),
            UserCommand::PageUp => self.move_selection(false, rows),
            UserCommand::PageDown => self.move_selection(true, rows),
            UserCommand::First => {
                self.select(0);
                self.followed = None;
            }
            UserCommand::Last => self.move_selection(true, usize::MAX),
            UserCommand::Open => return self.open_selected(),
            UserCommand::SortRight => return self.sort_by_neighbor(true),
            UserCommand::SortLeft => return self.sort_by_neighbor(false),
            UserCommand::Filter => self.overlay = TopOverlay::Filter,
            UserCommand::Freeze => return self.freeze(),
            UserCommand::Faster => return self.change_interval(false),
            UserCommand::Slower => return self.change_interval(true),
            UserCommand::Reverse => return self.change(|query| query.reversed = !query.reversed),
            UserCommand::Group => return self.change(next_group),
            UserCommand::Tree => return self.change(toggle_tree),
            UserCommand::Subject => return self.change(other_subject),
            _ => {}
        }
        Vec::new()
    }

    fn change(&mut self, change: impl FnOnce(&mut TopQuery)) -> Vec<TuiAction> {
        change(&mut self.query);
        self.asked()
    }

    pub(super) fn asked(&self) -> Vec<TuiAction> {
        vec![TuiAction::Query(self.query.clone())]
    }

    fn freeze(&mut self) -> Vec<TuiAction> {
        if self.is_replay() {
            return self.refuse("a recording stands still: use [ and ]");
        }
        self.is_frozen = !self.is_frozen;
        vec![TuiAction::Freeze(self.is_frozen)]
    }

    fn change_interval(&mut self, is_longer: bool) -> Vec<TuiAction> {
        if self.is_replay() {
            return Vec::new();
        }
        let now = u64::try_from(self.interval.as_millis()).unwrap_or(u64::MAX);
        let next = match is_longer {
            true => INTERVALS.into_iter().find(|&it| it > now),
            false => INTERVALS.into_iter().rev().find(|&it| it < now),
        };
        let Some(next) = next else { return Vec::new() };
        self.interval = Duration::from_millis(next);
        self.actual_interval = self.interval;
        self.message = Some(format!("reads every {:?}", self.interval));
        vec![TuiAction::Interval(self.interval)]
    }

    fn open_selected(&mut self) -> Vec<TuiAction> {
        let Some(row) = self.selected_row() else { return Vec::new() };
        match row.key.clone() {
            TopKey::Process(key) => self.open_page(super::PageSubject::Process(key), None),
            TopKey::Cgroup(path) => self.change(|query| {
                query.subject = TopSubject::Processes;
                query.sort = TopColumn::Pss;
                query.cgroup = Some(path);
                query.filter.clear();
            }),
            TopKey::Group(name) => self.change(|query| enter_group(query, &name)),
        }
    }

    /// Removes the innermost limit of the rows: the filter, the cgroup, the groups or the tree.
    pub(super) fn widen(&mut self) -> Vec<TuiAction> {
        let query = &mut self.query;
        if !query.filter.is_empty() {
            query.filter.clear();
        } else if query.cgroup.take().is_some() || query.grouping.take().is_some() {
            // The condition has removed it.
        } else if query.tree {
            query.tree = false;
        } else {
            return Vec::new();
        }
        self.asked()
    }

    /// Sorts by the next or the previous visible column.
    fn sort_by_neighbor(&mut self, is_right: bool) -> Vec<TuiAction> {
        let known = self.table.as_deref().map_or(&TopColumn::ALL[..], |table| &table.columns);
        let columns: Vec<TopColumn> = known.iter().copied().filter(|it| it.sorts()).collect();
        let count = columns.len();
        let Some(at) = columns.iter().position(|it| *it == self.query.sort) else {
            return self.sort_by(columns.first().copied().unwrap_or(TopColumn::Name));
        };
        let next = if is_right { at + 1 } else { at + count - 1 } % count;
        self.sort_by(columns[next])
    }

    fn sort_by(&mut self, column: TopColumn) -> Vec<TuiAction> {
        self.change(|query| {
            query.reversed = query.sort == column && !query.reversed;
            query.sort = column;
        })
    }

    pub(super) fn move_selection(&mut self, is_down: bool, count: usize) {
        let index = match is_down {
            true => self.selected.saturating_add(count),
            false => self.selected.saturating_sub(count),
        };
        self.select(index);
    }

    fn select(&mut self, index: usize) {
        let rows = self.table.as_ref().map_or(0, |table| table.rows.len());
        self.selected = index.min(rows.saturating_sub(1));
        self.followed = self.selected_row().map(|row| row.key.clone());
        self.keep_selection_visible();
    }

    pub(super) fn keep_selection_visible(&mut self) {
        let visible = usize::from(TableLayout::of(self).rows).max(1);
        let rows = self.table.as_ref().map_or(0, |table| table.rows.len());
        let lowest = (self.selected + 1).saturating_sub(visible);
        self.scroll = self.scroll.clamp(lowest, self.selected).min(rows.saturating_sub(1));
        // No empty lines below the last row.
        self.scroll = self.scroll.min(rows.saturating_sub(visible));
    }

    /// A press of the mouse: a heading sorts, a row is selected, the selected row is opened.
    pub(super) fn press_at(&mut self, x: u16, y: u16) -> Vec<TuiAction> {
        self.message = None;
        let layout = TableLayout::of(self);
        if y == layout.heading_line {
            return match layout.column_at(x).filter(|column| column.sorts()) {
                Some(column) => self.sort_by(column),
                None => Vec::new(),
            };
        }
        let line = y.checked_sub(layout.first_row_line).filter(|line| *line < layout.rows);
        let Some(line) = line else { return Vec::new() };
        let index = self.scroll + usize::from(line);
        let rows = self.table.as_ref().map_or(0, |table| table.rows.len());
        if index >= rows {
            return Vec::new();
        }
        let is_selected = index == self.selected && self.followed.is_some();
        self.select(index);
        if is_selected && self.selected_row().and_then(|row| subject_of(&row.key)).is_some() {
            return self.open_selected();
        }
        Vec::new()
    }
}

fn next_group(query: &mut TopQuery) {
    query.subject = TopSubject::Processes;
    let at = query.grouping.and_then(|now| TopGrouping::ALL.iter().position(|it| *it == now));
    query.grouping = match at {
        None => Some(TopGrouping::ALL[0]),
        Some(at) => TopGrouping::ALL.get(at + 1).copied(),
    };
}

fn toggle_tree(query: &mut TopQuery) {
    query.tree = !query.tree;
    query.grouping = None;
}

fn other_subject(query: &mut TopQuery) {
    query.grouping = None;
    (query.subject, query.sort) = match query.subject {
        TopSubject::Processes => (TopSubject::Cgroups, TopColumn::Current),
        TopSubject::Cgroups => (TopSubject::Processes, TopColumn::Pss),
    };
    query.reversed = false;
}

/// Shows the processes of a group.
fn enter_group(query: &mut TopQuery, name: &Name) {
    match query.grouping.take() {
        Some(TopGrouping::Cgroup) => query.cgroup = Some(name.clone()),
        Some(TopGrouping::User) => query.filter = name.escaped().into_owned(),
        Some(TopGrouping::Exe) => {
            query.filter = Name::new(name.base()).escaped().into_owned();
        }
        None => {}
    }
}
