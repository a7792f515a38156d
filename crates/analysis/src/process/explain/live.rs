//! Reports for the page of a running process: memory by category with its growth, the largest
//! mappings, the stacks of threads.

use std::cmp::Reverse;
use std::collections::BTreeMap;

use pagewise_model::process::Thread;
use pagewise_model::report::{
    Audience, CellValue, ColumnCells, Label, Report, ReportBlock, ReportTable, TableColumn,
};
use pagewise_model::{Absent, Bytes, Reading, Snapshot};

use super::core::mapping_at;
use super::{ExplainSubject, findings, nothing_there, paragraph, tables, totals, withheld};
use crate::blocks::table;
use crate::pools::{PoolKind, PoolSums};

/// Maximum number of rows of the largest mappings.
const MAPPINGS: usize = 500;
/// Threads in the list.
const THREADS: usize = 500;
const SCHEMA: &str = "pagewise.top.process/1";

/// Memory of a process by category, with its growth since an earlier snapshot, and the findings.
pub fn overview(first: &Snapshot, now: &Snapshot) -> Report {
    let subject = ExplainSubject::from_snapshot(now);
    let mut blocks = vec![ReportBlock::Facts(totals::totals(now, subject.as_ref()))];
    blocks.extend(nothing_there(now).map(ReportBlock::Text));
    match &subject {
        Ok(subject) => {
            let before = ExplainSubject::from_snapshot(first).map(|it| by_kind(&it));
            blocks.push(ReportBlock::Table(categories(before, by_kind(subject))));
            blocks.push(findings(subject));
        }
        Err(absent) => blocks.extend(withheld(now, absent)),
    }
    Report { schema: SCHEMA, title: Vec::new(), blocks }
}

/// The largest mappings of a process.
pub fn largest_mappings(snapshot: &Snapshot) -> Report {
    let blocks = match ExplainSubject::from_snapshot(snapshot) {
        Ok(subject) => {
            let largest = tables::largest(&subject, MAPPINGS);
            largest.into_iter().map(ReportBlock::Table).collect()
        }
        Err(absent) => withheld(snapshot, &absent),
    };
    Report { schema: SCHEMA, title: Vec::new(), blocks }
}

/// The threads of a process and their stacks, the largest resident stack first.
pub fn threads(snapshot: &Snapshot) -> Report {
    let subject = ExplainSubject::from_snapshot(snapshot);
    let block = match (&subject, &snapshot.threads) {
        (Ok(subject), Ok(threads)) => ReportBlock::Table(thread_table(subject, threads)),
        (Err(absent), _) | (_, Err(absent)) => ReportBlock::Text(paragraph(vec![
            CellValue::text("The threads cannot be shown: "),
            CellValue::text(absent.to_string()),
        ])),
    };
    Report { schema: SCHEMA, title: Vec::new(), blocks: vec![block] }
}

type KindSums = BTreeMap<PoolKind, PoolSums>;

fn by_kind(subject: &ExplainSubject<'_>) -> KindSums {
    let mut sums = KindSums::new();
    for (pool, more) in subject.pools.list().iter().zip(&subject.sums) {
        sums.entry(pool.kind).or_insert(PoolSums::NONE).add(more);
    }
    sums
}

/// One category.
struct CategoryRow {
    label: Label,
    resident: Reading<Bytes>,
    pss: Reading<Bytes>,
    swap: Reading<Bytes>,
    change: Reading<i64>,
}

fn categories(before: Reading<KindSums>, now: KindSums) -> ReportTable {
    let mut rows = category_rows(&before, &now);
    rows.sort_by_key(|row| Reverse(row.resident.clone().unwrap_or_default()));
    let total: Bytes = rows.iter().filter_map(|row| row.resident.clone().ok()).sum();
    let bars = rows.iter().map(|row| {
        let share = row.resident.clone().ok().and_then(|bytes| bytes.fraction_of(total));
        share.map_or(CellValue::None, CellValue::Bar)
    });
    let changes = rows.iter().map(|row| {
        CellValue::from_reading(row.change.clone(), |change| match change {
            0 => CellValue::None,
            change => CellValue::Change(change),
        })
    });
    let labels = rows.iter().map(|row| row.label.clone()).collect();
    let swap = rows.iter().map(|row| row.swap.clone());
    let has_swap = rows.iter().any(|row| row.swap.clone().is_ok_and(|swap| !swap.is_zero()));
    let swap_audience = if has_swap { Audience::Everyone } else { Audience::Programs };
    let columns = vec![
        TableColumn::new("category", "Category", ColumnCells::Labels(labels)),
        TableColumn::bytes("resident", "RSS", rows.iter().map(|row| row.resident.clone())),
        TableColumn::new("share", "", ColumnCells::Values(bars.collect())),
        TableColumn::new("change", "Change", ColumnCells::Values(changes.collect())),
        TableColumn::bytes("pss", "PSS", rows.iter().map(|row| row.pss.clone())),
        TableColumn { audience: swap_audience, ..TableColumn::bytes("swap", "Swap", swap) },
    ];
    ReportTable {
        note: "Change: of RSS, since this page was opened.".into(),
        ..table("categories", "Memory by category", Audience::Everyone, columns)
    }
}

/// The categories that have resident or swapped memory now, or had it before.
fn category_rows(before: &Reading<KindSums>, now: &KindSums) -> Vec<CategoryRow> {
    let mut kinds: Vec<PoolKind> = now.keys().copied().collect();
    let gone = before.iter().flat_map(BTreeMap::keys).filter(|kind| !now.contains_key(kind));
    kinds.extend(gone);
    let rows = kinds.into_iter().map(|kind| {
        let sums = now.get(&kind).unwrap_or(&PoolSums::NONE);
        let change = before.clone().and_then(|before| {
            let before = before.get(&kind).unwrap_or(&PoolSums::NONE).resident.clone()?;
            Ok(difference(before, sums.resident.clone()?))
        });
        CategoryRow {
            label: kind.label().into(),
            resident: sums.resident.clone(),
            pss: sums.pss.clone(),
            swap: sums.swap.clone(),
            change,
        }
    });
    let is_shown = |row: &CategoryRow| {
        let is_some = |reading: &Reading<Bytes>| *reading != Ok(Bytes::ZERO);
        is_some(&row.resident) || is_some(&row.swap) || !matches!(row.change, Ok(0))
    };
    rows.filter(is_shown).collect()
}

/// `after` minus `before`, clamped to the range of `i64`.
fn difference(before: Bytes, after: Bytes) -> i64 {
    let size = i64::try_from(before.0.abs_diff(after.0)).unwrap_or(i64::MAX);
    if after < before { -size } else { size }
}

/// The stack of a thread.
struct StackRow<'a> {
    thread: &'a Thread,
    reserved: Reading<Bytes>,
    resident: Reading<Bytes>,
    used: Reading<Bytes>,
}

fn thread_table(subject: &ExplainSubject<'_>, threads: &[Thread]) -> ReportTable {
    let mut rows: Vec<StackRow<'_>> = threads.iter().map(|it| stack_row(subject, it)).collect();
    rows.sort_by_key(|row| (Reverse(row.resident.clone().ok()), row.thread.tid));
    let left_out = rows.len().saturating_sub(THREADS);
    rows.truncate(THREADS);
    let tids = rows.iter().map(|row| row.thread.tid.0.into()).collect();
    let names = rows.iter().map(|row| row.thread.name.clone()).collect();
    let column =
        |key: &'static str, label: &'static str, of: fn(&StackRow<'_>) -> Reading<Bytes>| {
            TableColumn::bytes(key, label, rows.iter().map(of))
        };
    let columns = vec![
        TableColumn::new("tid", "Thread", ColumnCells::Counts(tids)),
        column("resident", "Resident", |row| row.resident.clone()),
        column("used", "In use", |row| row.used.clone()),
        column("reserved", "Reserved", |row| row.reserved.clone()),
        TableColumn::new("name", "Name", ColumnCells::Names(names)),
    ];
    let note = match left_out {
        0 => "In use: from the stack pointer to the end of the stack.".into(),
        more => format!("{more} more threads with smaller stacks.").into(),
    };
    ReportTable { note, ..table("threads", "Stacks of threads", Audience::Everyone, columns) }
}

fn stack_row<'a>(subject: &ExplainSubject<'_>, thread: &'a Thread) -> StackRow<'a> {
    let stack = thread.stack_pointer.clone().and_then(|pointer| {
        let is_stack = |index: &usize| {
            let kind = subject.pools.pool_of(*index).kind;
            matches!(kind, PoolKind::MainStack | PoolKind::ThreadStack)
        };
        let index = mapping_at(subject.mappings, pointer).filter(is_stack);
        let index = index
            .ok_or_else(|| Absent::Ambiguous("the stack pointer is not in a known stack".into()))?;
        Ok((pointer, &subject.mappings[index]))
    });
    StackRow {
        thread,
        reserved: stack.clone().map(|(_, mapping)| mapping.size()),
        resident: stack.clone().and_then(|(_, mapping)| mapping.rss()),
        used: stack.map(|(pointer, mapping)| Bytes(mapping.range.end - pointer)),
    }
}

#[cfg(test)]
mod tests {
    use pagewise_model::Pid;

    use super::*;
    use crate::sample;

    fn table_of(report: &Report, key: &str) -> ReportTable {
        let mut tables = report.blocks.iter().filter_map(|block| match block {
            ReportBlock::Table(table) if table.key == key => Some(table.clone()),
            _ => None,
        });
        tables.next().unwrap()
    }

    fn column(table: &ReportTable, key: &str) -> Vec<CellValue> {
        let column = table.columns.iter().find(|it| it.key == key).unwrap();
        (0..table.rows()).map(|row| column.value(row)).collect()
    }

    #[test]
    fn a_category_shows_its_growth_since_the_first_snapshot() {
        let heap = |bytes| sample::resident("1000-900000 rw-p 0 0 [heap]", bytes);
        let stack = || sample::resident("7000000-7100000 rw-p 0 0 [stack]", 0x3000);
        let first = sample::snapshot(vec![heap(0x10_0000), stack()]);
        let now = sample::snapshot(vec![heap(0x40_0000), stack()]);
        let table = table_of(&overview(&first, &now), "categories");
        assert_eq!(column(&table, "category")[0], CellValue::text("brk heap"));
        assert_eq!(column(&table, "change"), [CellValue::Change(0x30_0000), CellValue::None]);
        let shares = column(&table, "share");
        assert!(matches!(shares[0], CellValue::Bar(share) if share > 0.99), "{shares:?}");
    }

    #[test]
    fn a_thread_uses_its_stack_from_the_stack_pointer_on() {
        let mut now =
            sample::snapshot(vec![sample::resident("7000000-7100000 rw-p 0 0 [stack]", 0x3000)]);
        let thread = |tid, stack_pointer| Thread { tid: Pid(tid), name: "a".into(), stack_pointer };
        let running = Absent::Ambiguous("the thread runs".into());
        now.threads = Ok(vec![thread(7, Err(running.clone())), thread(8, Ok(0x70f_f000))]);
        let table = table_of(&threads(&now), "threads");
        assert_eq!(column(&table, "tid"), [CellValue::Count(8), CellValue::Count(7)]);
        let used = column(&table, "used");
        assert_eq!(used[0], CellValue::Bytes(0x1000));
        assert_eq!(used[1], CellValue::Absent(running));
    }
}
