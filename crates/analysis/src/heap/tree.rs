//! Call stacks as a tree: who asks and who called it, or the other way round, with what is too small added up.

use std::cmp::Reverse;
use std::collections::HashMap;

use pagewise_model::Name;
use pagewise_model::heap::{Amount, Kind};
use pagewise_model::name::escape;
use pagewise_model::report::{Audience, Block, Cells, Column, Fact, Facts, Shape, Table, Value};

use super::frames::{Sites, function, plus};
use super::{At, By, Direction, Options, kind_word, no_tree, share, table, text};
use crate::blocks::facts_of;
use crate::explain::fact;

/// No more calls below each other than so many are shown: programs that read JSON nest no deeper than some hundred.
const DEEPEST: usize = 48;
/// After so many lone callers below each other, the others are counted.
const RUN: usize = 4;
/// As many lines of a tree for each row of other tables.
const LINES: usize = 4;

/// A call in a tree.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
enum Call {
    /// A kind of memory other than `malloc`'s, as if it were what is called last.
    Kind(Kind),
    Frame(u32),
    /// Nobody knows who.
    Unknown,
}

#[derive(Clone, Copy, Debug)]
struct Node {
    parent: u32,
    call: Call,
    sum: Amount,
}

/// A tree of call stacks and what is added up in it.
pub(super) struct Tree<'a> {
    sites: &'a Sites<'a>,
    /// The root first; a parent before its children.
    nodes: Vec<Node>,
    /// All but the root by parent, the largest first, and where those of each parent begin.
    order: Vec<u32>,
    starts: Vec<u32>,
    /// What of the root is at call stacks that are not known.
    others: Amount,
}

impl<'a> Tree<'a> {
    /// Of sites by number, with bytes (or whatever is added up) and blocks.
    pub(super) fn of(
        sites: &'a Sites<'a>,
        amounts: &[(usize, u64, u64)],
        others: Amount,
        direction: Direction,
    ) -> Tree<'a> {
        let root = Node { parent: 0, call: Call::Unknown, sum: others };
        let mut nodes = vec![root];
        let mut known: HashMap<(u32, Call), u32> = HashMap::new();
        let mut calls = Vec::new();
        for (at, bytes, blocks) in amounts {
            let Some(site) = sites.recording.sites.get(*at) else { continue };
            let amount = Amount { bytes: *bytes, blocks: *blocks };
            if amount == Amount::default() {
                continue;
            }
            calls.clear();
            calls.extend(kind_word(site.kind).map(|_| Call::Kind(site.kind)));
            calls.extend(sites.asking(site).iter().map(|number| Call::Frame(*number)));
            if calls.is_empty() {
                calls.push(Call::Unknown);
            }
            if direction == Direction::TopDown {
                calls.reverse();
            }
            plus(&mut nodes[0].sum, amount);
            let mut parent = 0;
            for call in &calls {
                // There are fewer calls than 2^32 in all stacks together.
                let next = u32::try_from(nodes.len()).unwrap_or(u32::MAX);
                parent = *known.entry((parent, *call)).or_insert_with(|| {
                    nodes.push(Node { parent, call: *call, sum: Amount::default() });
                    next
                });
                plus(&mut nodes[parent as usize].sum, amount);
            }
        }
        drop(known);
        let mut order: Vec<u32> = (1..).take(nodes.len() - 1).collect();
        order.sort_unstable_by_key(|at| {
            let Node { parent, call, sum } = nodes[*at as usize];
            (parent, Reverse((sum.bytes, sum.blocks)), call)
        });
        let mut starts = vec![0; nodes.len() + 1];
        nodes[1..].iter().for_each(|node| starts[node.parent as usize + 1] += 1);
        for at in 1..starts.len() {
            starts[at] += starts[at - 1];
        }
        Tree { sites, nodes, order, starts, others }
    }

    /// The children of a node, the largest first.
    fn children(&self, node: u32) -> &[u32] {
        let [start, end] = [0, 1].map(|next| self.starts[node as usize + next] as usize);
        &self.order[start..end]
    }

    fn all(&self) -> u64 {
        self.nodes[0].sum.bytes
    }

    /// The children of a node that are large enough, and how many others there are, with what they have together.
    fn branches(&self, node: u32, threshold: f64) -> (&[u32], usize, Amount) {
        let children = self.children(node);
        let least = super::real(self.all()) * threshold;
        let is_large = |at: &u32| super::real(self.nodes[*at as usize].sum.bytes) >= least;
        let (large, small) = children.split_at(children.partition_point(is_large));
        let mut left_out = Amount::default();
        small.iter().for_each(|at| plus(&mut left_out, self.nodes[*at as usize].sum));
        if node == 0 {
            plus(&mut left_out, self.others);
        }
        (large, small.len(), left_out)
    }

    fn words(&self, call: Call) -> Name {
        match call {
            Call::Kind(kind) => Name::new(kind_word(kind).unwrap_or("malloc").as_bytes()),
            Call::Frame(number) => self.sites.words(Some(number)),
            Call::Unknown => self.sites.words(None),
        }
    }

    /// The tree as an object for programs.
    pub(super) fn value(&self, threshold: f64) -> Value {
        self.object(0, 0, threshold)
    }

    fn object(&self, at: u32, depth: usize, threshold: f64) -> Value {
        let Node { call, sum, .. } = self.nodes[at as usize];
        let mut members = Vec::new();
        if at != 0 {
            members.extend(self.who(call));
        }
        members.extend([
            ("bytes".into(), Value::Bytes(sum.bytes)),
            ("blocks".into(), Value::Count(sum.blocks)),
            ("share".into(), share(sum.bytes, self.all())),
        ]);
        let (large, small, left_out) = self.branches(at, threshold);
        if depth < DEEPEST {
            let children = large.iter().map(|child| self.object(*child, depth + 1, threshold));
            members.push(("children".into(), Value::List(children.collect())));
            if left_out != Amount::default() {
                let rest = vec![
                    ("places".into(), Value::Count(small as u64)),
                    ("bytes".into(), Value::Bytes(left_out.bytes)),
                    ("blocks".into(), Value::Count(left_out.blocks)),
                ];
                members.push(("left_out".into(), Value::Record(rest)));
            }
        } else {
            members.push(("children".into(), Value::List(Vec::new())));
        }
        Value::Record(members)
    }

    fn who(&self, call: Call) -> Vec<(std::borrow::Cow<'static, str>, Value)> {
        let frame = match call {
            Call::Frame(number) => self.sites.frame(number),
            _ => None,
        };
        let Some(frame) = frame else {
            return vec![("function".into(), Value::Name(self.words(call)))];
        };
        let line = frame.line.as_ref();
        vec![
            ("function".into(), function(frame)),
            (
                "file".into(),
                line.map_or(Value::None, |it| Value::Name(Name::new(it.file.as_bytes()))),
            ),
            ("line".into(), line.map_or(Value::None, |it| Value::Count(it.number.into()))),
            ("module".into(), frame.module.clone().map_or(Value::None, Value::Name)),
            ("offset".into(), Value::Count(frame.offset)),
        ]
    }

    /// The lines of the tree, at most so many: where there are more, branches have to be larger to be shown. With how large
    /// they had to be.
    fn rows(&self, options: &Options) -> (Vec<Row>, f64) {
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
            let Node { call, sum, .. } = self.nodes[*child as usize];
            // A lone caller has its callee's numbers, and stands below it.
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
            let words = self.words(call);
            drawn.line(indent, arrow, &escape(words.as_bytes()), (!is_same).then_some(sum));
            self.draw(*child, (depth + 1, deeper), run, drawn);
        }
        let is_large = super::real(left_out.bytes) >= super::real(self.all()) * drawn.threshold;
        if left_out != Amount::default() && is_large && (at == 0 || !large.is_empty()) {
            let what = match small {
                0 => "in places that were not taken down one by one".to_owned(),
                1 => "in 1 other place".to_owned(),
                small => format!("in {small} other places"),
            };
            drawn.line(indent, arrow, &what, Some(left_out));
        }
    }

    /// The last of calls each of which has one caller alone, and how many they are; none where there is just this one.
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

/// Lines of a tree as they are drawn.
struct Drawn {
    threshold: f64,
    options: Options,
    rows: Vec<Row>,
}

impl Drawn {
    fn line(&mut self, indent: usize, arrow: &str, what: &str, sum: Option<Amount>) {
        let what = format!("{}{arrow}{what}", "  ".repeat(indent));
        self.rows.push(Row { sum, what });
    }
}

struct Row {
    sum: Option<Amount>,
    what: String,
}

/// What a tree shows: its amounts by site, those of no site, and a heading. None where nothing was taken down.
struct Chosen {
    amounts: Vec<(usize, u64, u64)>,
    others: Amount,
    title: String,
    /// When it was so.
    time_ns: Option<u64>,
}

fn chosen(sites: &Sites<'_>, options: &Options) -> Option<Chosen> {
    let recording = sites.recording;
    let by = |pick: &dyn Fn(&pagewise_model::heap::Site) -> (u64, u64)| {
        let each = recording.sites.iter().enumerate();
        each.map(|(at, site)| (at, pick(site).0, pick(site).1)).collect()
    };
    let of = |amount: Amount| (amount.bytes, amount.blocks);
    let (amounts, title) = match (options.by, options.at) {
        (By::Live, At::Peak) => {
            let others = missing_at_peak(recording);
            let (amounts, title) = (by(&|it| of(it.at_peak)), "Live at the peak".to_owned());
            return Some(Chosen { amounts, others, title, time_ns: None });
        }
        (By::Live, At::End) => (by(&|it| of(it.leaked())), "Live at the end"),
        (By::Allocated, _) => (by(&|it| of(it.allocated)), "All that was allocated"),
        (By::Calls, _) => (by(&|it| (it.allocated.blocks, it.allocated.blocks)), "All allocations"),
        (By::Temporary, _) => (by(&|it| (it.temporary, it.temporary)), "Temporary allocations"),
        (By::Live, At::Time(time)) => {
            let mut moments = recording.moments.iter().filter(|it| it.time_ns <= time);
            let moment = moments.rfind(|moment| moment.tree.is_some())?;
            let tree = moment.tree.as_ref()?;
            let amounts = tree.sites.iter().map(|(at, it)| (*at as usize, it.bytes, it.blocks));
            return Some(Chosen {
                amounts: amounts.collect(),
                others: tree.others,
                title: format!(
                    "Live {:.3} s after the beginning",
                    super::real(moment.time_ns) / 1e9
                ),
                time_ns: Some(moment.time_ns),
            });
        }
    };
    let time_ns = Some(recording.took_ns);
    Some(Chosen { amounts, others: Amount::default(), title: title.to_owned(), time_ns })
}

/// What of the peak is at no site: where threads allocate at the same time, or the recording was cut off.
pub(super) fn missing_at_peak(recording: &pagewise_model::heap::Recording) -> Amount {
    let mut sum = Amount::default();
    recording.sites.iter().for_each(|site| plus(&mut sum, site.at_peak));
    let peak = recording.totals.peak;
    Amount {
        bytes: peak.bytes.saturating_sub(sum.bytes),
        blocks: peak.blocks.saturating_sub(sum.blocks),
    }
}

/// The tree that was chosen, for people; and for programs, where it is not the one of the peak.
pub(super) fn blocks(sites: &Sites<'_>, options: &Options) -> Vec<Block> {
    let is_usual = (options.by, options.at) == (By::Live, At::Peak);
    let Some(chosen) = chosen(sites, options) else {
        let absent = fact("tree", "call stacks then", Value::Absent(no_tree()), "");
        return vec![Block::Facts(facts_of("selected", "", Shape::Line, vec![absent]))];
    };
    let tree = Tree::of(sites, &chosen.amounts, chosen.others, options.tree);
    let mut blocks = vec![Block::Table(people(&tree, &chosen, options))];
    if !is_usual {
        let facts: Vec<Fact> = vec![
            fact("what", "what", text(chosen.title), ""),
            fact("time", "time", chosen.time_ns.map_or(Value::None, Value::Seconds), ""),
            fact("tree", "tree", tree.value(options.threshold), ""),
        ];
        let facts = facts_of("selected", "", Shape::Line, facts);
        blocks.push(Block::Facts(Facts { audience: Audience::Programs, ..facts }));
    }
    blocks
}

fn people(tree: &Tree<'_>, chosen: &Chosen, options: &Options) -> Table {
    let (rows, threshold) = tree.rows(options);
    let counts_calls = matches!(options.by, By::Calls | By::Temporary);
    let value = |pick: &dyn Fn(Amount) -> Value| {
        let each = rows.iter().map(|row| row.sum.map_or(Value::None, pick));
        Cells::Values(each.collect())
    };
    let mut columns = vec![if counts_calls {
        Column::new("calls", "CALLS", value(&|sum| Value::Count(sum.bytes)))
    } else {
        Column::new("bytes", "BYTES", value(&|sum| Value::Bytes(sum.bytes)))
    }];
    columns.push(Column::new("share", "SHARE", value(&|sum| share(sum.bytes, tree.all()))));
    if !counts_calls {
        columns.push(Column::new("blocks", "BLOCKS", value(&|sum| Value::Count(sum.blocks))));
    }
    let label = match options.tree {
        Direction::BottomUp => "ALLOCATED IN, CALLED BY",
        Direction::TopDown => "FUNCTION, CALLS",
    };
    let pictures = rows.iter().map(|row| Value::Picture(row.what.clone().into()));
    columns.push(Column::new("function", label, Cells::Values(pictures.collect())));
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
    Table {
        title: chosen.title.clone().into(),
        note: note.into(),
        ..table("shown_tree", "", audience, columns)
    }
}
