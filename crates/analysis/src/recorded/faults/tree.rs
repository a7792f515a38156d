//! Call stacks as a tree for people: the functions that faulted, and their callers below them.

use std::cmp::Reverse;
use std::collections::HashMap;

use pagewise_model::name::escape;
use pagewise_model::report::{Audience, CellValue, ColumnCells, Label, ReportTable, TableColumn};
use pagewise_model::traced::Frame;

use super::FaultOptions;
use super::places::{FaultFrames, FunctionKey, called, function, innermost};
use crate::blocks::table;
use crate::cells::{float, share};

/// Minimum share of all faults: smaller branches are left out.
const MIN_SHARE: f64 = 0.01;
/// Maximum number of callers below a function.
const DEEPEST: usize = 24;
/// Ratio of the maximum number of lines of the tree to the maximum number of rows of the other
/// tables.
const LINES: usize = 3;

#[derive(Default)]
struct CallerNode<'a> {
    count: u64,
    callers: HashMap<FunctionKey<'a>, CallerNode<'a>>,
}

/// A line: a count, and a function with its indentation. A single caller has no count, because its
/// count is that of its callee.
type TreeLine = (Option<u64>, String);

/// Builds the tree; `None` if no function is known.
pub(super) fn tree(frames: &FaultFrames<'_>, options: &FaultOptions) -> Option<ReportTable> {
    let mut root = CallerNode::default();
    for (stack, sum) in &frames.stacks {
        let mut node = &mut root;
        let mut last: Option<FunctionKey<'_>> = None;
        let callers = stack.iter().skip(1).map(|frame| function(frame));
        for place in std::iter::once(innermost(stack)).chain(callers) {
            // Consecutive frames of the same function are one node, because the depth of a
            // recursion adds no information.
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
    let least = (float(frames.all) * MIN_SHARE).max(1.0);
    draw(&root, 0, 0, least, &mut rows);
    let most = options.limit.unwrap_or(usize::MAX).saturating_mul(LINES);
    let more = rows.len().saturating_sub(most);
    rows.truncate(most);
    let note = match more {
        0 => "".to_owned(),
        more => format!("{more} more lines: --rows all"),
    };
    let number = |row: &TreeLine| row.0.map_or(CellValue::None, CellValue::Count);
    let part = |row: &TreeLine| row.0.map_or(CellValue::None, |count| share(count, frames.all));
    let columns = vec![
        TableColumn::new(
            "faults",
            "FAULTS",
            ColumnCells::Values(rows.iter().map(number).collect()),
        ),
        TableColumn::new("share", "SHARE", ColumnCells::Values(rows.iter().map(part).collect())),
        TableColumn {
            meaning: "The function that faulted, and below it those that called it.".into(),
            ..TableColumn::new(
                "function",
                "FUNCTION, CALLED BY",
                ColumnCells::Values(
                    rows.iter().map(|(_, what)| CellValue::Picture(what.clone().into())).collect(),
                ),
            )
        },
    ];
    let note = Label::from(note);
    Some(ReportTable { note, ..table("callers", "By call stack", Audience::People, columns) })
}

fn draw(node: &CallerNode<'_>, depth: usize, indent: usize, least: f64, rows: &mut Vec<TreeLine>) {
    if depth > DEEPEST {
        return;
    }
    let mut callers: Vec<(&FunctionKey<'_>, &CallerNode<'_>)> = node.callers.iter().collect();
    callers.retain(|(_, caller)| float(caller.count) >= least);
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
