//! Rows in the order of a tree: children below their parent.

use std::collections::{HashMap, HashSet};

use pagewise_model::sweep::Sweep;
use pagewise_model::top::{TopKey, TopQuery, TopRow};
use pagewise_model::{Name, Pid};

use super::order::{RowFilter, compare};

/// Deeper levels are not indented further, so that a chain of processes cannot take all memory.
const MAX_DEPTH: usize = 32;

/// Arranges rows as a tree. The filter keeps rows that match it, and their ancestors.
pub(super) fn arrange(sweep: &Sweep, rows: Vec<TopRow>, query: &TopQuery) -> Vec<TopRow> {
    let parents = parents(sweep, &rows);
    let kept = kept(&rows, &parents, &RowFilter::new(&query.filter));
    let mut children: HashMap<Option<usize>, Vec<usize>> = HashMap::new();
    for index in kept {
        children.entry(parents[index]).or_default().push(index);
    }
    for siblings in children.values_mut() {
        siblings.sort_by(|&a, &b| compare(&rows[a], &rows[b], query));
    }
    let mut rows: Vec<Option<TopRow>> = rows.into_iter().map(Some).collect();
    let mut arranged = Vec::with_capacity(rows.len());
    // Rows to place, the next one last: the index and the tree branches of each.
    let mut waiting: Vec<(usize, Vec<bool>)> = Vec::new();
    let push =
        |waiting: &mut Vec<(usize, Vec<bool>)>, siblings: &[usize], above: Option<&[bool]>| {
            for (at, &index) in siblings.iter().enumerate().rev() {
                let branches = above.map_or_else(Vec::new, |above| {
                    let mut branches = above.to_vec();
                    if branches.len() < MAX_DEPTH {
                        branches.push(at + 1 < siblings.len());
                    }
                    branches
                });
                waiting.push((index, branches));
            }
        };
    push(&mut waiting, children.get(&None).map_or(&[], Vec::as_slice), None);
    while let Some((index, branches)) = waiting.pop() {
        let below = children.get(&Some(index)).map_or(&[][..], Vec::as_slice);
        push(&mut waiting, below, Some(&branches));
        arranged.extend(rows[index].take().map(|row| TopRow { branches, ..row }));
    }
    arranged
}

/// For each row the index of the row of its parent.
fn parents(sweep: &Sweep, rows: &[TopRow]) -> Vec<Option<usize>> {
    let by_pid: HashMap<Pid, usize> =
        rows.iter().enumerate().filter_map(|(index, row)| Some((row.pid()?, index))).collect();
    let by_path: HashMap<&Name, usize> = rows
        .iter()
        .enumerate()
        .filter_map(|(index, row)| match &row.key {
            TopKey::Cgroup(path) => Some((path, index)),
            _ => None,
        })
        .collect();
    let parent = |index: usize, row: &TopRow| -> Option<usize> {
        let parent = match &row.key {
            TopKey::Process(key) => *by_pid.get(&sweep.process(*key)?.identity.parent)?,
            TopKey::Cgroup(path) => *by_path.get(&folder_of(path)?)?,
            TopKey::Group(_) => return None,
        };
        (parent != index).then_some(parent)
    };
    let mut parents: Vec<Option<usize>> =
        rows.iter().enumerate().map(|(index, row)| parent(index, row)).collect();
    cut_cycles(&mut parents);
    parents
}

/// Makes roots of rows that are their own ancestors: the parents of a sweep are of different times,
/// so a reused PID can close a cycle.
fn cut_cycles(parents: &mut [Option<usize>]) {
    let mut is_settled = vec![false; parents.len()];
    for start in 0..parents.len() {
        let mut path = Vec::new();
        let mut on_path = HashSet::new();
        let mut at = start;
        while !is_settled[at] && on_path.insert(at) {
            path.push(at);
            match parents[at] {
                Some(parent) if on_path.contains(&parent) => {
                    parents[at] = None;
                    break;
                }
                Some(parent) => at = parent,
                None => break,
            }
        }
        path.into_iter().for_each(|index| is_settled[index] = true);
    }
}

/// The parent directory of a path; `None` for the root.
fn folder_of(path: &Name) -> Option<Name> {
    let bytes = path.as_bytes();
    match bytes.iter().rposition(|&b| b == b'/') {
        Some(0) if bytes.len() > 1 => Some(Name::from("/")),
        Some(at) if at > 0 => Some(Name::new(&bytes[..at])),
        _ => None,
    }
}

/// Rows that match the filter, and their ancestors, in the order of the rows.
fn kept(rows: &[TopRow], parents: &[Option<usize>], filter: &RowFilter) -> Vec<usize> {
    let mut is_kept = vec![false; rows.len()];
    for (index, row) in rows.iter().enumerate() {
        if !filter.matches(row) {
            continue;
        }
        let mut next = Some(index);
        while let Some(at) = next.filter(|&at| !is_kept[at]) {
            is_kept[at] = true;
            next = parents[at];
        }
    }
    (0..rows.len()).filter(|&index| is_kept[index]).collect()
}
