//! Changes from one recording to another: by call stack, matched by function names, so that it
//! works across builds.

use std::cmp::{Ordering, Reverse};
use std::collections::HashMap;

use pagewise_model::Name;
use pagewise_model::heap::{AllocationKind, HeapAmount, HeapRecording};
use pagewise_model::report::{
    Audience, CellValue, ColumnCells, Fact, FactsShape, Label, NamedFacts, Paragraph, Report,
    ReportBlock, ReportTable, TableColumn,
};

use super::frames::{SiteSum, Sites, name, short};
use super::{kind_word, meaning, table, within};
use crate::blocks::{facts_of, first, for_people, for_programs};
use crate::cells::text;
use crate::explain::fact;
use pagewise_model::traced::Frame;

/// Options of a comparison.
#[derive(Clone, Copy, Debug)]
pub struct DiffOptions {
    /// Maximum number of rows; `None` for all.
    pub limit: Option<usize>,
    /// Sort order of the rows.
    pub by: GrownQuantity,
}

/// Quantity that may have grown.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GrownQuantity {
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
type StackKey = (AllocationKind, Vec<u32>);

/// The functions of both recordings. A function without a name has that of its file.
#[derive(Default)]
struct FunctionNumbers {
    names: Vec<Name>,
    numbers: HashMap<Name, u32>,
}

impl FunctionNumbers {
    /// The number of each frame's function.
    fn number_functions(&mut self, recording: &HeapRecording) -> Vec<u32> {
        let word = |frame: &Frame| match (&frame.function, &frame.module) {
            (None, Some(module)) => Name::new(&[b"?? in ", module.base()].concat()),
            (None, None) => Name::new(b"?? in memory of no file"),
            (Some(_), _) => name(frame),
        };
        recording.frames.iter().map(|frame| self.number(word(frame))).collect()
    }

    fn number(&mut self, name: Name) -> u32 {
        // There are at most as many names as frames, which have numbers of 32 bits.
        let next = u32::try_from(self.names.len()).unwrap_or(u32::MAX);
        *self.numbers.entry(name).or_insert_with_key(|name| {
            self.names.push(name.clone());
            next
        })
    }

    fn function_names(&self, key: &StackKey) -> impl Iterator<Item = Name> {
        let kind = kind_word(key.0).map(|word| Name::new(word.as_bytes()));
        let names = key.1.iter().filter_map(|number| self.names.get(*number as usize).cloned());
        kind.into_iter().chain(names)
    }

    /// Function that allocates.
    fn first(&self, key: &StackKey) -> Name {
        let first = self.function_names(key).next();
        first.map_or_else(|| self.brief(key), |word| Name::new(short(&word.escaped()).as_bytes()))
    }

    fn brief(&self, key: &StackKey) -> Name {
        /// More callers do not make a line clearer.
        const MAX_CALLERS: usize = 4;
        let words: Vec<Name> = self.function_names(key).take(MAX_CALLERS).collect();
        if words.is_empty() {
            return Name::new(b"[unknown callers]");
        }
        let words: Vec<String> = words.iter().map(|word| short(&word.escaped())).collect();
        Name::new(words.join(" ← ").as_bytes())
    }
}

/// Before and after.
type SumPair = (SiteSum, SiteSum);

/// Changes: `totals` and `stacks`.
pub fn diff(before: &HeapRecording, after: &HeapRecording, options: &DiffOptions) -> Report {
    let (before, after) = (Sites::from_recording(before), Sites::from_recording(after));
    let mut pairs: HashMap<StackKey, SumPair> = HashMap::new();
    let mut functions = FunctionNumbers::default();
    collect(&before, &mut functions, |key, site| pairs.entry(key).or_default().0.add(site));
    collect(&after, &mut functions, |key, site| pairs.entry(key).or_default().1.add(site));
    let mut rows: Vec<(StackKey, SumPair)> =
        pairs.into_iter().filter(|(_, (before, after))| is_other(before, after)).collect();
    rows.sort_by_cached_key(|(key, pair)| {
        let grown = change(options.by, pair);
        // Largest growth first, largest decrease last; unchanged rows in between.
        (Reverse(grown), Reverse(change(GrownQuantity::Allocated, pair)), key.clone())
    });
    let recordings = (before.recording, after.recording);
    let mut blocks = vec![
        ReportBlock::Text(summary(recordings, &rows, &functions)),
        ReportBlock::Facts(run("before", recordings.0)),
        ReportBlock::Facts(run("after", recordings.1)),
        ReportBlock::Table(totals(recordings)),
    ];
    blocks.push(ReportBlock::Table(stacks(&rows, &functions, options)));
    let estimated = [recordings.0, recordings.1].iter().any(|it| it.every_bytes.is_some());
    if estimated {
        blocks.push(ReportBlock::Text(paragraph(vec![text(
            "Allocations were sampled: numbers are estimates, and a change within ± may be chance.",
        )])));
    }
    let title = |recording: &HeapRecording| {
        let name = recording.command.first().unwrap_or(&recording.program);
        CellValue::text(format!("{} ({})", Name::new(name.base()).escaped(), recording.pid))
    };
    let title = vec![text("Heap: from "), title(recordings.0), text(" to "), title(recordings.1)];
    Report { schema: "pagewise.heap-diff/1", title, blocks }
}

fn paragraph(pieces: Vec<CellValue>) -> Paragraph {
    Paragraph { title: "".into(), pieces, audience: Audience::People }
}

fn collect(
    sites: &Sites<'_>,
    functions: &mut FunctionNumbers,
    mut note: impl FnMut(StackKey, &pagewise_model::heap::AllocationSite),
) {
    let numbers = functions.number_functions(sites.recording);
    for site in &sites.recording.sites {
        let asking = sites.asking(site).iter();
        let stack = asking.filter_map(|frame| numbers.get(*frame as usize).copied()).collect();
        note((site.kind, stack), site);
    }
}

fn is_other(before: &SiteSum, after: &SiteSum) -> bool {
    let of = |sum: &SiteSum| (sum.allocated, sum.at_peak, sum.leaked);
    of(before) != of(after)
}

/// Growth of a quantity from before to after.
fn change(of: GrownQuantity, (before, after): &SumPair) -> i64 {
    let pick = |sum: &SiteSum| match of {
        GrownQuantity::Peak => sum.at_peak.bytes,
        GrownQuantity::Leaked => sum.leaked.bytes,
        GrownQuantity::Allocated => sum.allocated.bytes,
        GrownQuantity::Calls => sum.allocated.blocks,
    };
    difference(pick(before), pick(after))
}

fn difference(before: u64, after: u64) -> i64 {
    let size = i64::try_from(after.abs_diff(before)).unwrap_or(i64::MAX);
    if after < before { -size } else { size }
}

/// A change of a number of things, which has no unit.
#[expect(clippy::cast_precision_loss, reason = "what is shown has few digits")]
fn count_change(before: u64, after: u64) -> CellValue {
    CellValue::Number(difference(before, after) as f64)
}

fn summary(
    (before, after): (&HeapRecording, &HeapRecording),
    rows: &[(StackKey, SumPair)],
    functions: &FunctionNumbers,
) -> Paragraph {
    let changed = |before: u64, after: u64| match after.cmp(&before) {
        Ordering::Equal => [text("as much as before"), text("")],
        Ordering::Greater => [CellValue::Bytes(after - before), text(" more")],
        Ordering::Less => [CellValue::Bytes(before - after), text(" less")],
    };
    let peak = |it: &HeapRecording| it.totals.peak.bytes;
    let leaked = |it: &HeapRecording| it.totals.leaked.bytes;
    let mut pieces = vec![text("Live at the peak: ")];
    pieces.extend(changed(peak(before), peak(after)));
    pieces.push(text(". Not freed at the end: "));
    pieces.extend(changed(leaked(before), leaked(after)));
    pieces.push(text("."));
    let grown = rows.iter().max_by_key(|(_, pair)| change(GrownQuantity::Peak, pair));
    if let Some((key, pair)) = grown.filter(|(_, pair)| change(GrownQuantity::Peak, pair) > 0) {
        pieces.extend([
            text(" Most grew in "),
            CellValue::Name(functions.first(key)),
            text(": by "),
            CellValue::Bytes(change(GrownQuantity::Peak, pair).unsigned_abs()),
            text(" at the peak."),
        ]);
    }
    paragraph(pieces)
}

/// Identity of a recording.
fn run(key: &'static str, recording: &HeapRecording) -> NamedFacts {
    let command = recording.command.iter().cloned().map(CellValue::Name).collect();
    let facts: Vec<Fact> = vec![
        fact("pid", "pid", CellValue::Count(recording.pid.0.into()), ""),
        fact("command", "command", CellValue::List(command), ""),
        fact("ending", "ended", text(super::ending(recording)), ""),
        fact("seconds", "after", CellValue::Seconds(recording.took_ns), ""),
        fact("estimated", "estimated", CellValue::Flag(recording.every_bytes.is_some()), "")
            .for_programs(),
    ];
    let title = if key == "before" { "Before" } else { "After" };
    facts_of(key, title, FactsShape::Line, facts)
}

/// The sums before and after.
fn totals((before, after): (&HeapRecording, &HeapRecording)) -> ReportTable {
    /// A number of a recording.
    type Pick = fn(&HeapRecording) -> u64;
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
        let value = if at < bytes.len() { CellValue::Bytes } else { CellValue::Count };
        keys.push(key.into());
        labels.push(Label::from(label));
        first.push(value(was));
        second.push(value(is));
        changes.push(if at < bytes.len() {
            CellValue::Change(difference(was, is))
        } else {
            count_change(was, is)
        });
    }
    let columns = vec![
        for_people(TableColumn::new("what", "", ColumnCells::Labels(labels))),
        TableColumn::new("before", "BEFORE", ColumnCells::Values(first)),
        TableColumn::new("after", "AFTER", ColumnCells::Values(second)),
        TableColumn::new("change", "CHANGE", ColumnCells::Values(changes)),
    ];
    ReportTable { row_keys: Some(keys), ..table("totals", "", Audience::Everyone, columns) }
}

/// Changes by call stack.
fn stacks(
    rows: &[(StackKey, SumPair)],
    functions: &FunctionNumbers,
    options: &DiffOptions,
) -> ReportTable {
    let (shown, note) = first(rows, options.limit, "--top");
    let columns = [
        amounts(shown, ("peak", "PEAK"), |sum| sum.at_peak),
        amounts(shown, ("leaked", "NOT FREED"), |sum| sum.leaked),
        amounts(shown, ("allocated", "ALLOCATED"), |sum| sum.allocated),
    ];
    let mut columns: Vec<TableColumn> = columns.into_iter().flatten().collect();
    let calls = |pick: fn(&SumPair) -> u64| {
        ColumnCells::Counts(shown.iter().map(|(_, pair)| pick(pair)).collect())
    };
    let changes = shown
        .iter()
        .map(|(_, (before, after))| count_change(before.allocated.blocks, after.allocated.blocks));
    let error = |(_, (before, after)): &(StackKey, SumPair)| {
        let error = before.errors.0.hypot(after.errors.0);
        if error > 0.0 { CellValue::Bytes(within(error)) } else { CellValue::None }
    };
    columns.extend([
        TableColumn::new("allocations_change", "CALLS", ColumnCells::Values(changes.collect())),
        for_programs(TableColumn::new(
            "allocations_before",
            "",
            calls(|pair| pair.0.allocated.blocks),
        )),
        for_programs(TableColumn::new(
            "allocations_after",
            "",
            calls(|pair| pair.1.allocated.blocks),
        )),
        {
            let column = TableColumn::new(
                "allocated_within",
                "±",
                ColumnCells::Values(shown.iter().map(error).collect()),
            );
            let known = shown.iter().any(|(_, (a, b))| a.errors.0.hypot(b.errors.0) > 0.0);
            if known { column } else { for_programs(column) }
        },
        for_programs(TableColumn::new(
            "stack",
            "CALL STACK",
            ColumnCells::Values(
                shown
                    .iter()
                    .map(|(key, _)| {
                        CellValue::List(
                            functions.function_names(key).map(CellValue::Name).collect(),
                        )
                    })
                    .collect(),
            ),
        )),
        for_people(TableColumn::new(
            "where",
            "ALLOCATED IN ← CALLED BY",
            ColumnCells::Names(shown.iter().map(|(key, _)| functions.brief(key)).collect()),
        )),
    ]);
    let audience = if rows.is_empty() { Audience::Programs } else { Audience::Everyone };
    ReportTable { note, ..table("stacks", "Changes by call stack", audience, columns) }
}

/// Columns of an amount: the change for everyone, before and after for programs.
fn amounts(
    rows: &[(StackKey, SumPair)],
    (key, label): (&'static str, &'static str),
    pick: fn(&SiteSum) -> HeapAmount,
) -> [TableColumn; 3] {
    let changes = rows.iter().map(|(_, (before, after))| {
        CellValue::Change(difference(pick(before).bytes, pick(after).bytes))
    });
    let bytes = |which: fn(&SumPair) -> &SiteSum| {
        ColumnCells::Bytes(rows.iter().map(|(_, pair)| pick(which(pair)).bytes).collect())
    };
    let column = |what: &str, label: &'static str, cells| TableColumn {
        meaning: meaning(&format!("{key}_{what}")).into(),
        ..TableColumn::new(format!("{key}_{what}"), label, cells)
    };
    [
        column("change", label, ColumnCells::Values(changes.collect())),
        for_programs(column("before", "", bytes(|pair| &pair.0))),
        for_programs(column("after", "", bytes(|pair| &pair.1))),
    ]
}
