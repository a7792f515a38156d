//! Call stacks as a tree, from the allocating function to its callers or from the outermost
//! function to its callees, with small branches summed.

use std::cmp::Reverse;
use std::collections::HashMap;

use pagewise_model::Name;
use pagewise_model::heap::{AllocationKind, HeapAmount};
use pagewise_model::name::escape;
use pagewise_model::report::{
    Audience, CellValue, ColumnCells, Fact, FactsShape, NamedFacts, ReportBlock, ReportTable,
    TableColumn,
};

use super::frames::{Sites, function, plus};
use super::{Direction, HeapOptions, TreeMoment, TreeQuantity, kind_word, no_tree, table};
use crate::blocks::facts_of;
use crate::cells::{float, share, text};
use crate::explain::fact;

/// Maximum depth of the tree: programs that read JSON limit nesting to some hundred levels.
const DEEPEST: usize = 48;
/// Maximum number of shown callers in a chain of single callers; further callers are counted.
const RUN: usize = 4;
/// Ratio of the maximum number of lines of the tree to the maximum number of rows of the other
/// tables.
const LINES: usize = 4;

/// The call that a node of a tree represents.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
enum TreeCall {
    /// Memory that is not from `malloc`. It replaces the innermost function.
    Kind(AllocationKind),
    Frame(u32),
    /// A call of an unknown function.
    Unknown,
}

#[derive(Clone, Copy, Debug)]
struct TreeNode {
    parent: u32,
    call: TreeCall,
    sum: HeapAmount,
}

/// A tree of call stacks with sums.
pub(super) struct CallTree<'a> {
    sites: &'a Sites<'a>,
    /// Nodes of the tree: the root is first, and a parent precedes its children.
    nodes: Vec<TreeNode>,
    /// Indices of all nodes except the root, sorted by parent; the largest child is first. `starts`
    /// has the index in `order` of each parent's first child.
    order: Vec<u32>,
    starts: Vec<u32>,
    /// Part of the root's amount with unknown call stacks.
    others: HeapAmount,
}

impl<'a> CallTree<'a> {
    /// Builds a tree of `amounts`: the index of a site, its bytes (or another sum), and its number
    /// of blocks.
    pub(super) fn from_sites(
        sites: &'a Sites<'a>,
        amounts: &[(usize, u64, u64)],
        others: HeapAmount,
        direction: Direction,
    ) -> CallTree<'a> {
        let root = TreeNode { parent: 0, call: TreeCall::Unknown, sum: others };
        let mut nodes = vec![root];
        let mut known: HashMap<(u32, TreeCall), u32> = HashMap::new();
        let mut calls = Vec::new();
        for (at, bytes, blocks) in amounts {
            let Some(site) = sites.recording.sites.get(*at) else { continue };
            let amount = HeapAmount { bytes: *bytes, blocks: *blocks };
            if amount == HeapAmount::default() {
                continue;
            }
            calls.clear();
            calls.extend(kind_word(site.kind).map(|_| TreeCall::Kind(site.kind)));
            calls.extend(sites.asking(site).iter().map(|number| TreeCall::Frame(*number)));
            if calls.is_empty() {
                calls.push(TreeCall::Unknown);
            }
            if direction == Direction::TopDown {
                calls.reverse();
            }
            plus(&mut nodes[0].sum, amount);
            let mut parent = 0;
            for call in &calls {
                // All call stacks together have fewer than 2^32 calls.
                let next = u32::try_from(nodes.len()).unwrap_or(u32::MAX);
                parent = *known.entry((parent, *call)).or_insert_with(|| {
                    nodes.push(TreeNode { parent, call: *call, sum: HeapAmount::default() });
                    next
                });
                plus(&mut nodes[parent as usize].sum, amount);
            }
        }
        drop(known);
        let mut order: Vec<u32> = (1..).take(nodes.len() - 1).collect();
        order.sort_unstable_by_key(|at| {
            let TreeNode { parent, call, sum } = nodes[*at as usize];
            (parent, Reverse((sum.bytes, sum.blocks)), call)
        });
        let mut starts = vec![0; nodes.len() + 1];
        nodes[1..].iter().for_each(|node| starts[node.parent as usize + 1] += 1);
        for at in 1..starts.len() {
            starts[at] += starts[at - 1];
        }
        CallTree { sites, nodes, order, starts, others }
    }

    /// Returns the children of a node, the largest first.
    fn children(&self, node: u32) -> &[u32] {
        let [start, end] = [0, 1].map(|next| self.starts[node as usize + next] as usize);
        &self.order[start..end]
    }

    fn all(&self) -> u64 {
        self.nodes[0].sum.bytes
    }

    /// Returns the children of a node that reach the threshold, the number of the other children,
    /// and the sum of the other children.
    fn branches(&self, node: u32, threshold: f64) -> (&[u32], usize, HeapAmount) {
        let children = self.children(node);
        let least = float(self.all()) * threshold;
        let is_large = |at: &u32| float(self.nodes[*at as usize].sum.bytes) >= least;
        let (large, small) = children.split_at(children.partition_point(is_large));
        let mut left_out = HeapAmount::default();
        small.iter().for_each(|at| plus(&mut left_out, self.nodes[*at as usize].sum));
        if node == 0 {
            plus(&mut left_out, self.others);
        }
        (large, small.len(), left_out)
    }

    fn call_text(&self, call: TreeCall) -> Name {
        match call {
            TreeCall::Kind(kind) => Name::new(kind_word(kind).unwrap_or("malloc").as_bytes()),
            TreeCall::Frame(number) => self.sites.frame_text(Some(number)),
            TreeCall::Unknown => self.sites.frame_text(None),
        }
    }

    /// Returns the tree as an object for programs.
    pub(super) fn value(&self, threshold: f64) -> CellValue {
        self.object(0, 0, threshold)
    }

    fn object(&self, at: u32, depth: usize, threshold: f64) -> CellValue {
        let TreeNode { call, sum, .. } = self.nodes[at as usize];
        let mut members = Vec::new();
        if at != 0 {
            members.extend(self.who(call));
        }
        members.extend([
            ("bytes".into(), CellValue::Bytes(sum.bytes)),
            ("blocks".into(), CellValue::Count(sum.blocks)),
            ("share".into(), share(sum.bytes, self.all())),
        ]);
        let (large, small, left_out) = self.branches(at, threshold);
        if depth < DEEPEST {
            let children = large.iter().map(|child| self.object(*child, depth + 1, threshold));
            members.push(("children".into(), CellValue::List(children.collect())));
            if left_out != HeapAmount::default() {
                let rest = vec![
                    ("places".into(), CellValue::Count(small as u64)),
                    ("bytes".into(), CellValue::Bytes(left_out.bytes)),
                    ("blocks".into(), CellValue::Count(left_out.blocks)),
                ];
                members.push(("left_out".into(), CellValue::Record(rest)));
            }
        } else {
            members.push(("children".into(), CellValue::List(Vec::new())));
        }
        CellValue::Record(members)
    }

    fn who(&self, call: TreeCall) -> Vec<(std::borrow::Cow<'static, str>, CellValue)> {
        let frame = match call {
            TreeCall::Frame(number) => self.sites.frame(number),
            _ => None,
        };
        let Some(frame) = frame else {
            return vec![("function".into(), CellValue::Name(self.call_text(call)))];
        };
        let line = frame.line.as_ref();
        vec![
            ("function".into(), function(frame)),
            (
                "file".into(),
                line.map_or(CellValue::None, |it| CellValue::Name(Name::new(it.file.as_bytes()))),
            ),
            ("line".into(), line.map_or(CellValue::None, |it| CellValue::Count(it.number.into()))),
            ("module".into(), frame.module.clone().map_or(CellValue::None, CellValue::Name)),
            ("offset".into(), CellValue::Count(frame.offset)),
        ]
    }

    /// Returns the lines of the tree, and the minimum share of a branch. If the tree has more lines
    /// than the limit, the minimum share is increased.
    fn rows(&self, options: &HeapOptions) -> (Vec<HeapTreeLine>, f64) {
        let draw = |threshold: f64| {
            let mut drawn = Drawn { threshold, rows: Vec::new(), options: *options };
            self.draw(0, (0, 0), 0, &mut drawn);
            drawn.rows
        };
        let most = options.limit.map_or(usize::MAX, |limit| limit.saturating_mul(LINES));
        let mut threshold = options.threshold;
        let mut rows = draw(threshold);
        while rows.len() > most && threshold < 0.5 {
            threshold = (threshold * 1.5).max(0.001);
            rows = draw(threshold);
        }
        rows.truncate(most);
        (rows, threshold)
    }

    fn draw(&self, at: u32, (depth, indent): (usize, usize), run: usize, drawn: &mut Drawn) {
        let (large, small, left_out) = self.branches(at, drawn.threshold);
        let here = self.nodes[at as usize].sum;
        let arrow = match (depth, drawn.options.tree) {
            (0, _) => "",
            (_, Direction::BottomUp) => "← ",
            (_, Direction::TopDown) => "→ ",
        };
        if depth >= DEEPEST {
            return;
        }
        for child in large {
            let TreeNode { call, sum, .. } = self.nodes[*child as usize];
            // A single caller has the same amount as its callee, and the same indentation.
            let is_same = depth > 0 && sum == here;
            let is_alone = depth > 0 && large.len() == 1;
            let run = if is_same { run + 1 } else { 0 };
            let deeper = if is_alone { indent } else { indent + 1 };
            if run > RUN
                && drawn.options.limit.is_some()
                && let Some((last, skipped)) = self.end_of_run(*child, drawn.threshold)
            {
                drawn.line(indent, arrow, &format!("… {skipped} more calls …"), None);
                self.draw(last, (depth + skipped, deeper), 0, drawn);
                continue;
            }
            let words = self.call_text(call);
            drawn.line(indent, arrow, &escape(words.as_bytes()), (!is_same).then_some(sum));
            self.draw(*child, (depth + 1, deeper), run, drawn);
        }
        let is_large = float(left_out.bytes) >= float(self.all()) * drawn.threshold;
        if left_out != HeapAmount::default() && is_large && (at == 0 || !large.is_empty()) {
            let what = match small {
                0 => "in call stacks that were not stored one by one".to_owned(),
                1 => "in 1 other function".to_owned(),
                small => format!("in {small} other functions"),
            };
            drawn.line(indent, arrow, &what, Some(left_out));
        }
    }

    /// Returns the last call of a chain of calls with one caller each, and the number of calls;
    /// `None` for a chain of one call.
    fn end_of_run(&self, start: u32, threshold: f64) -> Option<(u32, usize)> {
        let (mut at, mut count) = (start, 1);
        while let ([only], _, _) = self.branches(at, threshold)
            && self.nodes[*only as usize].sum == self.nodes[at as usize].sum
        {
            at = *only;
            count += 1;
        }
        (count > 1).then_some((at, count))
    }
}

/// Lines of a tree while it is drawn.
struct Drawn {
    threshold: f64,
    options: HeapOptions,
    rows: Vec<HeapTreeLine>,
}

impl Drawn {
    fn line(&mut self, indent: usize, arrow: &str, what: &str, sum: Option<HeapAmount>) {
        let what = format!("{}{arrow}{what}", "  ".repeat(indent));
        self.rows.push(HeapTreeLine { sum, what });
    }
}

struct HeapTreeLine {
    sum: Option<HeapAmount>,
    what: String,
}

/// Content of a tree: amounts by site, the amount without a site, and a heading.
struct TreeContent {
    amounts: Vec<(usize, u64, u64)>,
    others: HeapAmount,
    title: String,
    /// Time of the amounts, in nanoseconds since the start of the recording.
    time_ns: Option<u64>,
}

fn chosen(sites: &Sites<'_>, options: &HeapOptions) -> Option<TreeContent> {
    let recording = sites.recording;
    let by = |pick: &dyn Fn(&pagewise_model::heap::AllocationSite) -> (u64, u64)| {
        let each = recording.sites.iter().enumerate();
        each.map(|(at, site)| (at, pick(site).0, pick(site).1)).collect()
    };
    let of = |amount: HeapAmount| (amount.bytes, amount.blocks);
    let (amounts, title) = match (options.by, options.at) {
        (TreeQuantity::Live, TreeMoment::Peak) => {
            let others = missing_at_peak(recording);
            let (amounts, title) = (by(&|it| of(it.at_peak)), "Live at the peak".to_owned());
            return Some(TreeContent { amounts, others, title, time_ns: None });
        }
        (TreeQuantity::Live, TreeMoment::End) => (by(&|it| of(it.leaked())), "Live at the end"),
        (TreeQuantity::Allocated, _) => (by(&|it| of(it.allocated)), "All that was allocated"),
        (TreeQuantity::Calls, _) => {
            (by(&|it| (it.allocated.blocks, it.allocated.blocks)), "All allocations")
        }
        (TreeQuantity::Temporary, _) => {
            (by(&|it| (it.temporary, it.temporary)), "Temporary allocations")
        }
        (TreeQuantity::Live, TreeMoment::Time(time)) => {
            let mut moments = recording.moments.iter().filter(|it| it.time_ns <= time);
            let moment = moments.rfind(|moment| moment.tree.is_some())?;
            let tree = moment.tree.as_ref()?;
            let amounts = tree.sites.iter().map(|(at, it)| (*at as usize, it.bytes, it.blocks));
            return Some(TreeContent {
                amounts: amounts.collect(),
                others: tree.others,
                title: format!("Live {:.3} s after the beginning", float(moment.time_ns) / 1e9),
                time_ns: Some(moment.time_ns),
            });
        }
    };
    let time_ns = Some(recording.took_ns);
    Some(TreeContent { amounts, others: HeapAmount::default(), title: title.to_owned(), time_ns })
}

/// Part of the peak that belongs to no site, because threads allocate at the same time, or because
/// the recording was cut off.
pub(super) fn missing_at_peak(recording: &pagewise_model::heap::HeapRecording) -> HeapAmount {
    let mut sum = HeapAmount::default();
    recording.sites.iter().for_each(|site| plus(&mut sum, site.at_peak));
    let peak = recording.totals.peak;
    HeapAmount {
        bytes: peak.bytes.saturating_sub(sum.bytes),
        blocks: peak.blocks.saturating_sub(sum.blocks),
    }
}

/// Builds the tree that the options select, for people. The tree is also for programs if it is not
/// the tree of the peak.
pub(super) fn blocks(sites: &Sites<'_>, options: &HeapOptions) -> Vec<ReportBlock> {
    let is_usual = (options.by, options.at) == (TreeQuantity::Live, TreeMoment::Peak);
    let Some(chosen) = chosen(sites, options) else {
        let absent = fact("tree", "call stacks then", CellValue::Absent(no_tree()), "");
        return vec![ReportBlock::Facts(facts_of("selected", "", FactsShape::Line, vec![absent]))];
    };
    let tree = CallTree::from_sites(sites, &chosen.amounts, chosen.others, options.tree);
    let mut blocks = vec![ReportBlock::Table(people(&tree, &chosen, options))];
    if !is_usual {
        let facts: Vec<Fact> = vec![
            fact("what", "what", text(chosen.title), ""),
            fact("time", "time", chosen.time_ns.map_or(CellValue::None, CellValue::Seconds), ""),
            fact("tree", "tree", tree.value(options.threshold), ""),
        ];
        let facts = facts_of("selected", "", FactsShape::Line, facts);
        blocks.push(ReportBlock::Facts(NamedFacts { audience: Audience::Programs, ..facts }));
    }
    blocks
}

fn people(tree: &CallTree<'_>, chosen: &TreeContent, options: &HeapOptions) -> ReportTable {
    let (rows, threshold) = tree.rows(options);
    let counts_calls = matches!(options.by, TreeQuantity::Calls | TreeQuantity::Temporary);
    let value = |pick: &dyn Fn(HeapAmount) -> CellValue| {
        let each = rows.iter().map(|row| row.sum.map_or(CellValue::None, pick));
        ColumnCells::Values(each.collect())
    };
    let mut columns = vec![if counts_calls {
        TableColumn::new("calls", "CALLS", value(&|sum| CellValue::Count(sum.bytes)))
    } else {
        TableColumn::new("bytes", "BYTES", value(&|sum| CellValue::Bytes(sum.bytes)))
    }];
    columns.push(TableColumn::new("share", "SHARE", value(&|sum| share(sum.bytes, tree.all()))));
    if !counts_calls {
        columns.push(TableColumn::new(
            "blocks",
            "BLOCKS",
            value(&|sum| CellValue::Count(sum.blocks)),
        ));
    }
    let label = match options.tree {
        Direction::BottomUp => "ALLOCATED IN, CALLED BY",
        Direction::TopDown => "FUNCTION, CALLS",
    };
    let pictures = rows.iter().map(|row| CellValue::Picture(row.what.clone().into()));
    columns.push(TableColumn::new("function", label, ColumnCells::Values(pictures.collect())));
    let percent = format!("{:.1}", threshold * 100.0);
    let percent = percent.trim_end_matches(".0");
    let note = match threshold {
        0.0 => String::new(),
        _ if threshold > options.threshold => {
            format!(
                "Left out: what is below {percent} % of all. --top all shows all from --threshold on."
            )
        }
        _ => format!("Left out: what is below {percent} % of all (--threshold)."),
    };
    let audience = if rows.is_empty() { Audience::Programs } else { Audience::People };
    if rows.is_empty() {
        columns.clear();
    }
    ReportTable {
        title: chosen.title.clone().into(),
        note: note.into(),
        ..table("shown_tree", "", audience, columns)
    }
}
