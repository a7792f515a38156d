//! The pools of pagewise's allocators in a process: live bytes, footprint, and their course over
//! the requests.

use std::cmp::Reverse;

use pagewise_model::pagewise_pools::{Point, RegisteredPool, Registry};
use pagewise_model::report::{
    Audience, Axis, AxisUnit, CellValue, Chart, ChartLine, ColumnCells, FactsShape, Findings,
    Label, NamedFacts, Paragraph, Report, ReportBlock, ReportTable, Scale, TableColumn,
};
use pagewise_model::{Bytes, Name};

use crate::blocks::{facts_of, for_programs, table};
use crate::cells::float;
use crate::explain::{fact, meaning};
use crate::findings::{Evidence, find};

/// Options of the report.
#[derive(Clone, Debug, Default)]
pub struct RegistryOptions {
    /// Bytes that the kind or the name of a pool must contain; empty for all pools.
    pub name: Name,
    /// Number of pools with charts of their growth: the largest ones.
    pub charts: usize,
}

/// The pools as a report: `process`, `totals`, `pools`, `findings`, and for people charts of the
/// largest.
pub fn pools(registry: &Registry, options: &RegistryOptions) -> Report {
    let wanted = |pool: &&RegisteredPool| {
        [&pool.kind, &pool.name].iter().any(|name| holds(name, &options.name))
    };
    let mut shown: Vec<&RegisteredPool> = registry.pools.iter().filter(wanted).collect();
    shown.sort_by_key(|pool| (!pool.lives, Reverse(pool.held), Reverse(pool.peak_held)));
    let mut blocks = vec![
        ReportBlock::Facts(process(registry)),
        ReportBlock::Facts(totals(&shown)),
        rows(&shown),
    ];
    for pool in shown.iter().filter(|pool| pool.series.len() > 1).take(options.charts) {
        blocks.push(ReportBlock::Chart(chart(pool)));
        blocks.push(ReportBlock::Table(sizes(pool)));
    }
    blocks.push(ReportBlock::Findings(findings(registry, &shown)));
    blocks.extend(lost(registry).map(ReportBlock::Text));
    let title = vec![
        CellValue::text("Pools of "),
        CellValue::Name(registry.process.clone()),
        CellValue::text(format!(" ({})", registry.pid)),
    ];
    Report { schema: "pagewise.pools/1", title, blocks }
}

fn holds(name: &Name, part: &Name) -> bool {
    let part = part.as_bytes();
    part.is_empty() || name.as_bytes().windows(part.len()).any(|bytes| bytes == part)
}

fn process(registry: &Registry) -> NamedFacts {
    let facts = facts_of(
        "process",
        "",
        FactsShape::Line,
        vec![
            fact("pid", "pid", CellValue::Count(registry.pid.0.into()), ""),
            fact("name", "name", CellValue::Name(registry.process.clone()), ""),
            fact("not_counted", "pools not counted", CellValue::Count(registry.lost.into()), ""),
        ],
    );
    NamedFacts { audience: Audience::Programs, ..facts }
}

/// Sums over the pools that live.
fn totals(pools: &[&RegisteredPool]) -> NamedFacts {
    let living = || pools.iter().filter(|pool| pool.lives);
    let sum = |bytes: fn(&RegisteredPool) -> Bytes| living().map(|pool| bytes(pool)).sum::<Bytes>();
    let requests = living().fold(0_u64, |sum, pool| sum.saturating_add(pool.requests));
    let [live, held] = [sum(RegisteredPool::live), sum(|pool| pool.held)];
    let named =
        |key: &'static str, label: &'static str, value| fact(key, label, value, meaning(key));
    facts_of(
        "totals",
        "",
        FactsShape::Columns,
        vec![
            fact("count", "POOLS", CellValue::Count(living().count() as u64), "Pools that live."),
            named("pool_live", "LIVE", CellValue::Bytes(live.0)),
            named("pool_held", "HELD", CellValue::Bytes(held.0)),
            named("pool_use", "USE", use_of(live, held)),
            named("requests", "REQUESTS", CellValue::Count(requests)),
        ],
    )
}

/// Share of the footprint that is live, at most 1: live bytes exceed the footprint if padding for
/// alignment counts as live.
#[expect(clippy::cast_precision_loss, reason = "a share needs few digits")]
fn use_of(live: Bytes, held: Bytes) -> CellValue {
    if held.0 == 0 {
        CellValue::None
    } else {
        CellValue::Share((live.0 as f64 / held.0 as f64).min(1.0))
    }
}

fn rows(pools: &[&RegisteredPool]) -> ReportBlock {
    let bytes = |value: fn(&RegisteredPool) -> Bytes| {
        ColumnCells::Bytes(pools.iter().map(|pool| value(pool).0).collect())
    };
    let counts = |value: fn(&RegisteredPool) -> u64| {
        ColumnCells::Counts(pools.iter().map(|pool| value(pool)).collect())
    };
    let values = |value: fn(&RegisteredPool) -> CellValue| {
        ColumnCells::Values(pools.iter().map(|pool| value(pool)).collect())
    };
    let mut columns = vec![
        TableColumn::new(
            "kind",
            "POOL",
            ColumnCells::Names(pools.iter().map(|p| p.kind.clone()).collect()),
        ),
        TableColumn::new("pool_live", "LIVE", bytes(RegisteredPool::live)),
        TableColumn::new("pool_peak", "PEAK", bytes(|pool| pool.peak_live)),
        TableColumn::new("pool_held", "HELD", bytes(|pool| pool.held)),
        TableColumn::new("pool_peak_held", "PEAK HELD", bytes(|pool| pool.peak_held)),
        TableColumn::new("pool_use", "USE", values(|pool| use_of(pool.live(), pool.held))),
        TableColumn::new("requests", "REQUESTS", counts(|pool| pool.requests)),
        TableColumn::new("mean_size", "MEAN", values(mean)),
        TableColumn::new("blocks_taken", "BLOCKS", counts(|pool| pool.blocks_taken)),
        TableColumn::new("slow_paths", "SLOW", counts(|pool| pool.slow_paths)),
        TableColumn::new("name", "NAME", values(name)),
        for_programs(TableColumn::new(
            "lives",
            "LIVES",
            values(|pool| CellValue::Flag(pool.lives)),
        )),
    ];
    columns.extend(details(pools).map(for_programs));
    ReportBlock::Table(table("pools", "Pools", Audience::Everyone, columns))
}

/// Columns that people see as charts.
fn details(pools: &[&RegisteredPool]) -> [TableColumn; 6] {
    let values = |value: fn(&RegisteredPool) -> CellValue| {
        ColumnCells::Values(pools.iter().map(|pool| value(pool)).collect())
    };
    let counts = |value: fn(&RegisteredPool) -> u64| {
        ColumnCells::Counts(pools.iter().map(|pool| value(pool)).collect())
    };
    [
        TableColumn::new("requested", "", counts(|pool| pool.requested.0)),
        TableColumn::new("returned", "", counts(|pool| pool.returned.0)),
        TableColumn::new("blocks_returned", "", counts(|pool| pool.blocks_returned)),
        TableColumn::new(
            "size_classes",
            "",
            values(|pool| CellValue::List(classes(pool).collect())),
        ),
        TableColumn::new(
            "series",
            "",
            values(|pool| CellValue::List(pool.series.iter().map(point).collect())),
        ),
        TableColumn::new("ranges", "", values(ranges)),
    ]
}

fn name(pool: &RegisteredPool) -> CellValue {
    match (pool.lives, pool.name.is_empty()) {
        (true, true) => CellValue::None,
        (true, false) => CellValue::Name(pool.name.clone()),
        (false, true) => CellValue::text("(ended)"),
        (false, false) => CellValue::Name(Name::new(&[pool.name.as_bytes(), b" (ended)"].concat())),
    }
}

fn mean(pool: &RegisteredPool) -> CellValue {
    pool.requested.0.checked_div(pool.requests).map_or(CellValue::None, CellValue::Bytes)
}

fn classes(pool: &RegisteredPool) -> impl Iterator<Item = CellValue> {
    let filled = pool.sizes.iter().enumerate().filter(|(_, count)| **count > 0);
    filled.map(|(power, count)| {
        let up_to = ("up_to".into(), largest(power, pool.sizes.len()));
        CellValue::Record(vec![up_to, ("requests".into(), CellValue::Count(*count))])
    })
}

/// The largest size of a size class; the last class has none.
fn largest(power: usize, classes: usize) -> CellValue {
    if power + 1 == classes { CellValue::None } else { CellValue::Bytes(1 << power) }
}

fn point(point: &Point) -> CellValue {
    CellValue::Record(vec![
        ("requests".into(), CellValue::Count(point.requests)),
        ("live".into(), CellValue::Bytes(point.live.0)),
        ("held".into(), CellValue::Bytes(point.held.0)),
    ])
}

fn ranges(pool: &RegisteredPool) -> CellValue {
    let range = |range: &pagewise_model::AddrRange| {
        CellValue::Record(vec![
            ("start".into(), CellValue::Address(range.start)),
            ("end".into(), CellValue::Address(range.end)),
        ])
    };
    CellValue::List(pool.ranges.iter().map(range).collect())
}

/// Name of a pool: its kind, and its own name if it has one.
pub(crate) fn called(pool: &RegisteredPool) -> Vec<CellValue> {
    let mut words = vec![CellValue::Name(pool.kind.clone())];
    if !pool.name.is_empty() {
        words.extend([CellValue::text(" "), CellValue::Name(pool.name.clone())]);
    }
    words
}

/// Live and held bytes over requests.
fn chart(pool: &RegisteredPool) -> Chart {
    let line = |label: &'static str, bytes: fn(&Point) -> Bytes| ChartLine {
        label: label.into(),
        points: pool.series.iter().map(|at| (float(at.requests), float(bytes(at).0))).collect(),
    };
    Chart {
        title: called(pool),
        x: Axis { label: "requests".into(), unit: AxisUnit::Count, scale: Scale::Linear },
        y: Axis { label: "memory".into(), unit: AxisUnit::Bytes, scale: Scale::Linear },
        lines: vec![line("live", |point| point.live), line("held", |point| point.held)],
    }
}

/// Number of requests by size.
#[expect(clippy::cast_precision_loss, reason = "a share needs few digits")]
fn sizes(pool: &RegisteredPool) -> ReportTable {
    let all = pool.sizes.iter().fold(0_u64, |sum, count| sum.saturating_add(*count)).max(1);
    let filled: Vec<(usize, u64)> =
        pool.sizes.iter().copied().enumerate().filter(|(_, count)| *count > 0).collect();
    let share = |count: u64| count as f64 / all as f64;
    let each = |value: &dyn Fn(usize, u64) -> CellValue| {
        ColumnCells::Values(filled.iter().map(|(power, count)| value(*power, *count)).collect())
    };
    let size = |power, _| match largest(power, pool.sizes.len()) {
        CellValue::None => CellValue::text("more"),
        size => size,
    };
    let columns = vec![
        TableColumn::new("up_to", "SIZE UP TO", each(&size)),
        TableColumn::new("count", "REQUESTS", each(&|_, count| CellValue::Count(count))),
        TableColumn::new("share", "SHARE", each(&|_, count| CellValue::Share(share(count)))),
        TableColumn::new("bar", "", each(&|_, count| CellValue::Bar(share(count)))),
    ];
    table("sizes", "Requests by size", Audience::People, columns)
}

/// Pools whose footprint far exceeds their live bytes.
fn findings(registry: &Registry, pools: &[&RegisteredPool]) -> Findings {
    let list = pools.iter().flat_map(|pool| find(Evidence::Pool(pool))).collect();
    let none = match registry.pools.is_empty() {
        true => "no pool has any memory yet",
        false => "nothing unusual: no pool holds much more than its live blocks",
    };
    Findings { list, none: Label::from(none) }
}

fn lost(registry: &Registry) -> Option<Paragraph> {
    (registry.lost > 0).then(|| Paragraph {
        title: "".into(),
        pieces: vec![
            CellValue::Count(registry.lost.into()),
            CellValue::text(" more pools are not counted: the table has 1024 entries."),
        ],
        audience: Audience::People,
    })
}

#[cfg(test)]
mod tests {
    use pagewise_model::{AddrRange, Pid};

    use super::*;

    fn pool(kind: &str, name: &str, live: u64, held: u64) -> RegisteredPool {
        let point = |requests, live, held| Point { requests, live: Bytes(live), held: Bytes(held) };
        let mut sizes = vec![0; 24];
        sizes[4] = 30;
        sizes[23] = 10;
        RegisteredPool {
            kind: kind.into(),
            name: name.into(),
            lives: true,
            requests: 40,
            requested: Bytes(live + 1000),
            returned: Bytes(1000),
            peak_live: Bytes(live * 2),
            held: Bytes(held),
            peak_held: Bytes(held),
            blocks_taken: 3,
            blocks_returned: 1,
            slow_paths: 7,
            sizes,
            series: vec![point(0, 0, 0), point(20, live * 2, held), point(40, live, held)],
            ranges: vec![AddrRange { start: 0x1000, end: 0x9000 }],
            ranges_lost: 0,
        }
    }

    fn registry(pools: Vec<RegisteredPool>) -> Registry {
        Registry { pid: Pid(42), process: "server".into(), pools, lost: 0 }
    }

    fn rows_of(report: &Report) -> &ReportTable {
        let table = |block: &ReportBlock| matches!(block, ReportBlock::Table(table) if table.key == "pools");
        let Some(ReportBlock::Table(table)) = report.blocks.iter().find(|block| table(block))
        else {
            panic!("every report has the table");
        };
        table
    }

    fn column(table: &ReportTable, key: &str) -> Vec<CellValue> {
        let column = table.columns.iter().find(|column| column.key == key).unwrap();
        (0..table.rows()).map(|row| column.value(row)).collect()
    }

    #[test]
    fn the_largest_pool_comes_first_and_ended_pools_last() {
        let ended = RegisteredPool { lives: false, ..pool("fifo", "old", 0, 1 << 30) };
        let registry =
            registry(vec![ended, pool("tlsf", "b", 10, 1000), pool("stack", "a", 10, 5000)]);
        let report = pools(&registry, &RegistryOptions::default());
        let table = rows_of(&report);
        let names = ["a", "b", "old (ended)"].map(|name| CellValue::Name(name.into()));
        assert_eq!(column(table, "name"), names);
        assert_eq!(column(table, "pool_live")[..2], [CellValue::Bytes(10), CellValue::Bytes(10)]);
        let options = RegistryOptions { name: "sta".into(), ..RegistryOptions::default() };
        assert_eq!(rows_of(&pools(&registry, &options)).rows(), 1);
    }

    #[test]
    fn a_pool_that_holds_much_for_little_is_a_finding() {
        let found = |live, held| {
            let registry = registry(vec![pool("tlsf", "", live, held)]);
            let found = findings(&registry, &registry.pools.iter().collect::<Vec<_>>());
            found.list.len()
        };
        assert_eq!(found(1 << 20, 64 << 20), 1);
        assert_eq!(found(32 << 20, 64 << 20), 0);
        assert_eq!(found(1, 4 << 20), 0, "what is small is not worth a word");
    }

    #[test]
    fn a_chart_shows_live_and_held_over_requests() {
        let registry = registry(vec![pool("ring", "jobs", 100, 1 << 20)]);
        let report = pools(&registry, &RegistryOptions { charts: 1, ..RegistryOptions::default() });
        let chart = report.blocks.iter().find_map(|block| match block {
            ReportBlock::Chart(chart) => Some(chart),
            _ => None,
        });
        let chart = chart.unwrap();
        assert_eq!(chart.lines[0].points, [(0.0, 0.0), (20.0, 200.0), (40.0, 100.0)]);
        assert_eq!(chart.lines[1].points.last(), Some(&(40.0, f64::from(1 << 20))));
        let sizes = sizes(&registry.pools[0]);
        assert_eq!(column(&sizes, "up_to"), [CellValue::Bytes(16), CellValue::text("more")]);
        assert_eq!(column(&sizes, "share"), [CellValue::Share(0.75), CellValue::Share(0.25)]);
    }
}
