//! What changed from one recording to another: by call stack, known by its functions, so that it works across builds.

use std::cmp::{Ordering, Reverse};
use std::collections::HashMap;

use pagewise_model::Name;
use pagewise_model::heap::{Amount, Kind, Recording};
use pagewise_model::report::{
    Audience, Block, Cells, Column, Fact, Facts, Label, Paragraph, Report, Shape, Table, Value,
};

use super::frames::{Sites, Sum, name, short};
use super::{kind_word, meaning, table, text, within};
use crate::blocks::{facts_of, first, for_programs};
use crate::explain::fact;
use pagewise_model::traced::Frame;

/// What to show of a difference.
#[derive(Clone, Copy, Debug)]
pub struct DiffOptions {
    /// So many rows; all where there is no limit.
    pub limit: Option<usize>,
    /// What the rows are in order of.
    pub by: Changed,
}

/// What may have grown.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Changed {
    /// Bytes that were live at the peak.
    Peak,
    /// Bytes that were never freed.
    Leaked,
    /// All bytes that were allocated.
    Allocated,
    /// Allocations.
    Calls,
}

/// A call stack by the numbers of its functions.
type Key = (Kind, Vec<u32>);

/// The functions of both: of those that have no name, their files.
#[derive(Default)]
struct Functions {
    names: Vec<Name>,
    numbers: HashMap<Name, u32>,
}

impl Functions {
    /// The number of each frame's function.
    fn of(&mut self, recording: &Recording) -> Vec<u32> {
        let word = |frame: &Frame| match (&frame.function, &frame.module) {
            (None, Some(module)) => Name::new(&[b"?? in ", module.base()].concat()),
            (None, None) => Name::new(b"?? in memory of no file"),
            (Some(_), _) => name(frame),
        };
        recording.frames.iter().map(|frame| self.number(word(frame))).collect()
    }

    fn number(&mut self, name: Name) -> u32 {
        // There are fewer than frames, which have numbers of 32 bits.
        let next = u32::try_from(self.names.len()).unwrap_or(u32::MAX);
        *self.numbers.entry(name).or_insert_with_key(|name| {
            self.names.push(name.clone());
            next
        })
    }

    fn words(&self, key: &Key) -> impl Iterator<Item = Name> {
        let kind = kind_word(key.0).map(|word| Name::new(word.as_bytes()));
        let names = key.1.iter().filter_map(|number| self.names.get(*number as usize).cloned());
        kind.into_iter().chain(names)
    }

    /// Who asks for memory.
    fn first(&self, key: &Key) -> Name {
        let first = self.words(key).next();
        first.map_or_else(|| self.brief(key), |word| Name::new(short(&word.escaped()).as_bytes()))
    }

    fn brief(&self, key: &Key) -> Name {
        /// With more a line does not say more.
        const SHOWN: usize = 4;
        let words: Vec<Name> = self.words(key).take(SHOWN).collect();
        if words.is_empty() {
            return Name::new(b"[unknown callers]");
        }
        let words: Vec<String> = words.iter().map(|word| short(&word.escaped())).collect();
        Name::new(words.join(" ← ").as_bytes())
    }
}

/// Before and after.
type Pair = (Sum, Sum);

/// What changed: `totals` and `stacks`.
pub fn diff(before: &Recording, after: &Recording, options: &DiffOptions) -> Report {
    let (before, after) = (Sites::of(before), Sites::of(after));
    let mut pairs: HashMap<Key, Pair> = HashMap::new();
    let mut functions = Functions::default();
    collect(&before, &mut functions, |key, site| pairs.entry(key).or_default().0.add(site));
    collect(&after, &mut functions, |key, site| pairs.entry(key).or_default().1.add(site));
    let mut rows: Vec<(Key, Pair)> =
        pairs.into_iter().filter(|(_, (before, after))| is_other(before, after)).collect();
    rows.sort_by_cached_key(|(key, pair)| {
        let grown = change(options.by, pair);
        // What grew most first, what shrank most last: those that did not change stand between.
        (Reverse(grown), Reverse(change(Changed::Allocated, pair)), key.clone())
    });
    let recordings = (before.recording, after.recording);
    let mut blocks = vec![
        Block::Text(summary(recordings, &rows, &functions)),
        Block::Facts(run("before", recordings.0)),
        Block::Facts(run("after", recordings.1)),
        Block::Table(totals(recordings)),
    ];
    blocks.push(Block::Table(stacks(&rows, &functions, options)));
    let estimated = [recordings.0, recordings.1].iter().any(|it| it.every_bytes.is_some());
    if estimated {
        blocks.push(Block::Text(paragraph(vec![text(
            "Samples were taken: numbers are estimates, and a change within ± may be none.",
        )])));
    }
    let title = |recording: &Recording| {
        let name = recording.command.first().unwrap_or(&recording.program);
        Value::text(format!("{} ({})", Name::new(name.base()).escaped(), recording.pid))
    };
    let title = vec![text("Heap: from "), title(recordings.0), text(" to "), title(recordings.1)];
    Report { schema: "pagewise.heap-diff/1", title, blocks }
}

fn paragraph(pieces: Vec<Value>) -> Paragraph {
    Paragraph { title: "".into(), pieces, audience: Audience::People }
}

fn collect(
    sites: &Sites<'_>,
    functions: &mut Functions,
    mut note: impl FnMut(Key, &pagewise_model::heap::Site),
) {
    let numbers = functions.of(sites.recording);
    for site in &sites.recording.sites {
        let asking = sites.asking(site).iter();
        let stack = asking.filter_map(|frame| numbers.get(*frame as usize).copied()).collect();
        note((site.kind, stack), site);
    }
}

fn is_other(before: &Sum, after: &Sum) -> bool {
    let of = |sum: &Sum| (sum.allocated, sum.at_peak, sum.leaked);
    of(before) != of(after)
}

/// By how much something grew.
fn change(of: Changed, (before, after): &Pair) -> i64 {
    let pick = |sum: &Sum| match of {
        Changed::Peak => sum.at_peak.bytes,
        Changed::Leaked => sum.leaked.bytes,
        Changed::Allocated => sum.allocated.bytes,
        Changed::Calls => sum.allocated.blocks,
    };
    difference(pick(before), pick(after))
}

fn difference(before: u64, after: u64) -> i64 {
    let size = i64::try_from(after.abs_diff(before)).unwrap_or(i64::MAX);
    if after < before { -size } else { size }
}

/// A change of a number of things, which has no unit.
#[expect(clippy::cast_precision_loss, reason = "what is shown has few digits")]
fn count_change(before: u64, after: u64) -> Value {
    Value::Number(difference(before, after) as f64)
}

fn summary(
    (before, after): (&Recording, &Recording),
    rows: &[(Key, Pair)],
    functions: &Functions,
) -> Paragraph {
    let changed = |before: u64, after: u64| match after.cmp(&before) {
        Ordering::Equal => [text("as much as before"), text("")],
        Ordering::Greater => [Value::Bytes(after - before), text(" more")],
        Ordering::Less => [Value::Bytes(before - after), text(" less")],
    };
    let peak = |it: &Recording| it.totals.peak.bytes;
    let leaked = |it: &Recording| it.totals.leaked.bytes;
    let mut pieces = vec![text("Live at the peak: ")];
    pieces.extend(changed(peak(before), peak(after)));
    pieces.push(text(". Not freed at the end: "));
    pieces.extend(changed(leaked(before), leaked(after)));
    pieces.push(text("."));
    let grown = rows.iter().max_by_key(|(_, pair)| change(Changed::Peak, pair));
    if let Some((key, pair)) = grown.filter(|(_, pair)| change(Changed::Peak, pair) > 0) {
        pieces.extend([
            text(" Most grew in "),
            Value::Name(functions.first(key)),
            text(": by "),
            Value::Bytes(change(Changed::Peak, pair).unsigned_abs()),
            text(" at the peak."),
        ]);
    }
    paragraph(pieces)
}

/// Which recording it is.
fn run(key: &'static str, recording: &Recording) -> Facts {
    let command = recording.command.iter().cloned().map(Value::Name).collect();
    let facts: Vec<Fact> = vec![
        fact("pid", "pid", Value::Count(recording.pid.0.into()), ""),
        fact("command", "command", Value::List(command), ""),
        fact("ending", "ended", text(super::ending(recording)), ""),
        fact("seconds", "after", Value::Seconds(recording.took_ns), ""),
        fact("estimated", "estimated", Value::Flag(recording.every_bytes.is_some()), "")
            .for_programs(),
    ];
    let title = if key == "before" { "Before" } else { "After" };
    facts_of(key, title, Shape::Line, facts)
}

/// The sums before and after.
fn totals((before, after): (&Recording, &Recording)) -> Table {
    /// A number of a recording.
    type Pick = fn(&Recording) -> u64;
    let bytes: [(&str, &str, Pick); 3] = [
        ("peak_bytes", "live at the peak", |it| it.totals.peak.bytes),
        ("leaked_bytes", "not freed", |it| it.totals.leaked.bytes),
        ("allocated_bytes", "allocated", |it| it.totals.allocated.bytes),
    ];
    let counts: [(&str, &str, Pick); 4] = [
        ("leaked_blocks", "blocks not freed", |it| it.totals.leaked.blocks),
        ("allocations", "allocations", |it| it.totals.allocated.blocks),
        ("frees", "frees", |it| it.totals.freed.blocks),
        ("temporary", "temporary allocations", |it| it.totals.temporary),
    ];
    let mut keys: Vec<Label> = Vec::new();
    let (mut labels, mut first, mut second, mut changes) =
        (Vec::new(), Vec::new(), Vec::new(), Vec::new());
    for (at, (key, label, pick)) in bytes.into_iter().chain(counts).enumerate() {
        let (was, is) = (pick(before), pick(after));
        let value = if at < bytes.len() { Value::Bytes } else { Value::Count };
        keys.push(key.into());
        labels.push(Label::from(label));
        first.push(value(was));
        second.push(value(is));
        changes.push(if at < bytes.len() {
            Value::Change(difference(was, is))
        } else {
            count_change(was, is)
        });
    }
    let columns = vec![
        Column { audience: Audience::People, ..Column::new("what", "", Cells::Labels(labels)) },
        Column::new("before", "BEFORE", Cells::Values(first)),
        Column::new("after", "AFTER", Cells::Values(second)),
        Column::new("change", "CHANGE", Cells::Values(changes)),
    ];
    Table { row_keys: Some(keys), ..table("totals", "", Audience::Everyone, columns) }
}

/// What changed by call stack.
fn stacks(rows: &[(Key, Pair)], functions: &Functions, options: &DiffOptions) -> Table {
    let (shown, note) = first(rows, options.limit, "--top");
    let columns = [
        amounts(shown, ("peak", "PEAK"), |sum| sum.at_peak),
        amounts(shown, ("leaked", "NOT FREED"), |sum| sum.leaked),
        amounts(shown, ("allocated", "ALLOCATED"), |sum| sum.allocated),
    ];
    let mut columns: Vec<Column> = columns.into_iter().flatten().collect();
    let calls =
        |pick: fn(&Pair) -> u64| Cells::Counts(shown.iter().map(|(_, pair)| pick(pair)).collect());
    let changes = shown
        .iter()
        .map(|(_, (before, after))| count_change(before.allocated.blocks, after.allocated.blocks));
    let error = |(_, (before, after)): &(Key, Pair)| {
        let error = before.errors.0.hypot(after.errors.0);
        if error > 0.0 { Value::Bytes(within(error)) } else { Value::None }
    };
    columns.extend([
        Column::new("allocations_change", "CALLS", Cells::Values(changes.collect())),
        for_programs(Column::new("allocations_before", "", calls(|pair| pair.0.allocated.blocks))),
        for_programs(Column::new("allocations_after", "", calls(|pair| pair.1.allocated.blocks))),
        {
            let column = Column::new(
                "allocated_within",
                "±",
                Cells::Values(shown.iter().map(error).collect()),
            );
            let known = shown.iter().any(|(_, (a, b))| a.errors.0.hypot(b.errors.0) > 0.0);
            if known { column } else { for_programs(column) }
        },
        for_programs(Column::new(
            "stack",
            "CALL STACK",
            Cells::Values(
                shown
                    .iter()
                    .map(|(key, _)| Value::List(functions.words(key).map(Value::Name).collect()))
                    .collect(),
            ),
        )),
        Column {
            audience: Audience::People,
            ..Column::new(
                "where",
                "ALLOCATED IN ← CALLED BY",
                Cells::Names(shown.iter().map(|(key, _)| functions.brief(key)).collect()),
            )
        },
    ]);
    let audience = if rows.is_empty() { Audience::Programs } else { Audience::Everyone };
    Table { note, ..table("stacks", "What changed", audience, columns) }
}

/// Columns of an amount: the change for everyone, before and after for programs.
fn amounts(
    rows: &[(Key, Pair)],
    (key, label): (&'static str, &'static str),
    pick: fn(&Sum) -> Amount,
) -> [Column; 3] {
    let changes = rows.iter().map(|(_, (before, after))| {
        Value::Change(difference(pick(before).bytes, pick(after).bytes))
    });
    let bytes = |which: fn(&Pair) -> &Sum| {
        Cells::Bytes(rows.iter().map(|(_, pair)| pick(which(pair)).bytes).collect())
    };
    let column = |what: &str, label: &'static str, cells| Column {
        meaning: meaning(&format!("{key}_{what}")).into(),
        ..Column::new(format!("{key}_{what}"), label, cells)
    };
    [
        column("change", label, Cells::Values(changes.collect())),
        for_programs(column("before", "", bytes(|pair| &pair.0))),
        for_programs(column("after", "", bytes(|pair| &pair.1))),
    ]
}
