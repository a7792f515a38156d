//! Call stacks as a tree for people: the function that faulted, and below it who called it.

use std::cmp::Reverse;
use std::collections::HashMap;

use pagewise_model::name::escape;
use pagewise_model::report::{Audience, Cells, Column, Label, Table, Value};
use pagewise_model::traced::Frame;

use super::places::{Frames, Function, called, function, innermost};
use super::{Options, share};
use crate::blocks::table;

/// Branches with less than this share are left out.
const LEAST: f64 = 0.01;
/// No more callers than so many are shown.
const DEEPEST: usize = 24;
/// As many lines for each row of other tables.
const LINES: usize = 3;

#[derive(Default)]
struct Node<'a> {
    count: u64,
    callers: HashMap<Function<'a>, Node<'a>>,
}

/// A line: how many, and what with its indentation. A lone caller has no number: it is its callee's.
type Row = (Option<u64>, String);

/// The tree; none where no function is known.
pub(super) fn tree(frames: &Frames<'_>, options: &Options) -> Option<Table> {
    let mut root = Node::default();
    for (stack, sum) in &frames.stacks {
        let mut node = &mut root;
        let mut last: Option<Function<'_>> = None;
        let callers = stack.iter().skip(1).map(|frame| function(frame));
        for place in std::iter::once(innermost(stack)).chain(callers) {
            // Of a function that calls itself the depth says nothing.
            if last != Some(place) {
                node = node.callers.entry(place).or_default();
                node.count += sum.count;
            }
            last = Some(place);
        }
    }
    let is_known = |frame: &&Frame| frame.function.is_some();
    if !frames.stacks.iter().any(|(stack, _)| stack.iter().any(is_known)) {
        return None;
    }
    let mut rows = Vec::new();
    let least = (super::real(frames.all) * LEAST).max(1.0);
    draw(&root, 0, 0, least, &mut rows);
    let most = options.limit.unwrap_or(usize::MAX).saturating_mul(LINES);
    let more = rows.len().saturating_sub(most);
    rows.truncate(most);
    let note = match more {
        0 => "".to_owned(),
        more => format!("{more} more lines: --rows all"),
    };
    let number = |row: &Row| row.0.map_or(Value::None, Value::Count);
    let part = |row: &Row| row.0.map_or(Value::None, |count| share(count, frames.all));
    let columns = vec![
        Column::new("faults", "FAULTS", Cells::Values(rows.iter().map(number).collect())),
        Column::new("share", "SHARE", Cells::Values(rows.iter().map(part).collect())),
        Column {
            meaning: "The function that faulted, and below it those that called it.".into(),
            ..Column::new(
                "function",
                "FUNCTION, CALLED BY",
                Cells::Values(
                    rows.iter().map(|(_, what)| Value::Picture(what.clone().into())).collect(),
                ),
            )
        },
    ];
    let note = Label::from(note);
    Some(Table { note, ..table("callers", "By call stack", Audience::People, columns) })
}

fn draw(node: &Node<'_>, depth: usize, indent: usize, least: f64, rows: &mut Vec<Row>) {
    if depth > DEEPEST {
        return;
    }
    let mut callers: Vec<(&Function<'_>, &Node<'_>)> = node.callers.iter().collect();
    callers.retain(|(_, caller)| super::real(caller.count) >= least);
    callers.sort_by_key(|(place, caller)| (Reverse(caller.count), **place));
    for (place, caller) in &callers {
        let is_alone = depth > 0 && callers.len() == 1 && caller.count == node.count;
        let called = called(**place);
        let name = escape(called.as_bytes());
        let arrow = if depth == 0 { "" } else { "← " };
        let what = format!("{}{arrow}{name}", "  ".repeat(indent));
        rows.push(((!is_alone).then_some(caller.count), what));
        let deeper = if is_alone { indent } else { indent + 1 };
        draw(caller, depth + 1, deeper, least, rows);
    }
}
