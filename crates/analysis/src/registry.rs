//! The pools of pagewise's allocators in a process: what is out, what they hold for it, and how that came to be.

use std::cmp::Reverse;

use pagewise_model::registry::{Point, Pool, Registry};
use pagewise_model::report::{
    Audience, Axis, Block, Cells, Chart, Column, Facts, Finding, Findings, Label, Line, Paragraph,
    Report, Scale, Severity, Shape, Table, Unit, Value,
};
use pagewise_model::{Bytes, Name};

use crate::blocks::{facts_of, for_programs, table};
use crate::explain::{fact, meaning};

/// What to show.
#[derive(Clone, Debug, Default)]
pub struct Options {
    /// Only pools whose kind or name holds these bytes; all where it is empty.
    pub name: Name,
    /// Of how many pools to draw how they grew: of those that hold most.
    pub charts: usize,
}

/// A pool that holds this often what is out, and as much as this, holds too much.
const IDLE_TIMES: u64 = 4;
const IDLE_BYTES: Bytes = Bytes(8 << 20);

/// The pools as a report: `process`, `totals`, `pools`, `findings`, and for people charts of the largest.
pub fn pools(registry: &Registry, options: &Options) -> Report {
    let wanted =
        |pool: &&Pool| [&pool.kind, &pool.name].iter().any(|name| holds(name, &options.name));
    let mut shown: Vec<&Pool> = registry.pools.iter().filter(wanted).collect();
    shown.sort_by_key(|pool| (!pool.lives, Reverse(pool.held), Reverse(pool.peak_held)));
    let mut blocks =
        vec![Block::Facts(process(registry)), Block::Facts(totals(&shown)), rows(&shown)];
    for pool in shown.iter().filter(|pool| pool.series.len() > 1).take(options.charts) {
        blocks.push(Block::Chart(chart(pool)));
        blocks.push(Block::Table(sizes(pool)));
    }
    blocks.push(Block::Findings(findings(registry, &shown)));
    blocks.extend(lost(registry).map(Block::Text));
    let title = vec![
        Value::text("Pools of "),
        Value::Name(registry.process.clone()),
        Value::text(format!(" ({})", registry.pid)),
    ];
    Report { schema: "pagewise.pools/1", title, blocks }
}

fn holds(name: &Name, part: &Name) -> bool {
    let part = part.as_bytes();
    part.is_empty() || name.as_bytes().windows(part.len()).any(|bytes| bytes == part)
}

fn process(registry: &Registry) -> Facts {
    let facts = facts_of(
        "process",
        "",
        Shape::Line,
        vec![
            fact("pid", "pid", Value::Count(registry.pid.0.into()), ""),
            fact("name", "name", Value::Name(registry.process.clone()), ""),
            fact("not_counted", "pools not counted", Value::Count(registry.lost.into()), ""),
        ],
    );
    Facts { audience: Audience::Programs, ..facts }
}

/// Sums over the pools that live.
fn totals(pools: &[&Pool]) -> Facts {
    let living = || pools.iter().filter(|pool| pool.lives);
    let sum = |bytes: fn(&Pool) -> Bytes| living().map(|pool| bytes(pool)).sum::<Bytes>();
    let requests = living().fold(0_u64, |sum, pool| sum.saturating_add(pool.requests));
    let [live, held] = [sum(Pool::live), sum(|pool| pool.held)];
    let named =
        |key: &'static str, label: &'static str, value| fact(key, label, value, meaning(key));
    facts_of(
        "totals",
        "",
        Shape::Columns,
        vec![
            fact("count", "POOLS", Value::Count(living().count() as u64), "Pools that live."),
            named("pool_live", "LIVE", Value::Bytes(live.0)),
            named("pool_held", "HELD", Value::Bytes(held.0)),
            named("pool_use", "USE", use_of(live, held)),
            named("requests", "REQUESTS", Value::Count(requests)),
        ],
    )
}

/// Which share of what is held is out. More may be out than is held where what aligns blocks counts.
#[expect(clippy::cast_precision_loss, reason = "a share needs few digits")]
fn use_of(live: Bytes, held: Bytes) -> Value {
    if held.0 == 0 { Value::None } else { Value::Share((live.0 as f64 / held.0 as f64).min(1.0)) }
}

fn rows(pools: &[&Pool]) -> Block {
    let bytes =
        |value: fn(&Pool) -> Bytes| Cells::Bytes(pools.iter().map(|pool| value(pool).0).collect());
    let counts =
        |value: fn(&Pool) -> u64| Cells::Counts(pools.iter().map(|pool| value(pool)).collect());
    let values =
        |value: fn(&Pool) -> Value| Cells::Values(pools.iter().map(|pool| value(pool)).collect());
    let mut columns = vec![
        Column::new("kind", "POOL", Cells::Names(pools.iter().map(|p| p.kind.clone()).collect())),
        Column::new("pool_live", "LIVE", bytes(Pool::live)),
        Column::new("pool_peak", "PEAK", bytes(|pool| pool.peak_live)),
        Column::new("pool_held", "HELD", bytes(|pool| pool.held)),
        Column::new("pool_peak_held", "PEAK HELD", bytes(|pool| pool.peak_held)),
        Column::new("pool_use", "USE", values(|pool| use_of(pool.live(), pool.held))),
        Column::new("requests", "REQUESTS", counts(|pool| pool.requests)),
        Column::new("mean_size", "MEAN", values(mean)),
        Column::new("blocks_taken", "BLOCKS", counts(|pool| pool.blocks_taken)),
        Column::new("slow_paths", "SLOW", counts(|pool| pool.slow_paths)),
        Column::new("name", "NAME", values(name)),
        for_programs(Column::new("lives", "LIVES", values(|pool| Value::Flag(pool.lives)))),
    ];
    columns.extend(details(pools).map(for_programs));
    Block::Table(table("pools", "Pools", Audience::Everyone, columns))
}

/// What people see as charts.
fn details(pools: &[&Pool]) -> [Column; 6] {
    let values =
        |value: fn(&Pool) -> Value| Cells::Values(pools.iter().map(|pool| value(pool)).collect());
    let counts =
        |value: fn(&Pool) -> u64| Cells::Counts(pools.iter().map(|pool| value(pool)).collect());
    [
        Column::new("requested", "", counts(|pool| pool.requested.0)),
        Column::new("returned", "", counts(|pool| pool.returned.0)),
        Column::new("blocks_returned", "", counts(|pool| pool.blocks_returned)),
        Column::new("size_classes", "", values(|pool| Value::List(classes(pool).collect()))),
        Column::new(
            "series",
            "",
            values(|pool| Value::List(pool.series.iter().map(point).collect())),
        ),
        Column::new("ranges", "", values(ranges)),
    ]
}

fn name(pool: &Pool) -> Value {
    match (pool.lives, pool.name.is_empty()) {
        (true, true) => Value::None,
        (true, false) => Value::Name(pool.name.clone()),
        (false, true) => Value::text("(ended)"),
        (false, false) => Value::Name(Name::new(&[pool.name.as_bytes(), b" (ended)"].concat())),
    }
}

fn mean(pool: &Pool) -> Value {
    pool.requested.0.checked_div(pool.requests).map_or(Value::None, Value::Bytes)
}

fn classes(pool: &Pool) -> impl Iterator<Item = Value> {
    let filled = pool.sizes.iter().enumerate().filter(|(_, count)| **count > 0);
    filled.map(|(power, count)| {
        let up_to = ("up_to".into(), largest(power, pool.sizes.len()));
        Value::Record(vec![up_to, ("requests".into(), Value::Count(*count))])
    })
}

/// The largest size of a class; the last has none.
fn largest(power: usize, classes: usize) -> Value {
    if power + 1 == classes { Value::None } else { Value::Bytes(1 << power) }
}

fn point(point: &Point) -> Value {
    Value::Record(vec![
        ("requests".into(), Value::Count(point.requests)),
        ("live".into(), Value::Bytes(point.live.0)),
        ("held".into(), Value::Bytes(point.held.0)),
    ])
}

fn ranges(pool: &Pool) -> Value {
    let range = |range: &pagewise_model::AddrRange| {
        Value::Record(vec![
            ("start".into(), Value::Address(range.start)),
            ("end".into(), Value::Address(range.end)),
        ])
    };
    Value::List(pool.ranges.iter().map(range).collect())
}

/// What a pool is called: its kind, and its name where it has one.
fn called(pool: &Pool) -> Vec<Value> {
    let mut words = vec![Value::Name(pool.kind.clone())];
    if !pool.name.is_empty() {
        words.extend([Value::text(" "), Value::Name(pool.name.clone())]);
    }
    words
}

/// What was out and what was held, over requests.
fn chart(pool: &Pool) -> Chart {
    let line = |label: &'static str, bytes: fn(&Point) -> Bytes| Line {
        label: label.into(),
        points: pool.series.iter().map(|at| (real(at.requests), real(bytes(at).0))).collect(),
    };
    Chart {
        title: called(pool),
        x: Axis { label: "requests".into(), unit: Unit::Count, scale: Scale::Linear },
        y: Axis { label: "memory".into(), unit: Unit::Bytes, scale: Scale::Linear },
        lines: vec![line("live", |point| point.live), line("held", |point| point.held)],
    }
}

#[expect(clippy::cast_precision_loss, reason = "a place in a drawing needs few digits")]
fn real(number: u64) -> f64 {
    number as f64
}

/// How many requests of which size.
#[expect(clippy::cast_precision_loss, reason = "a share needs few digits")]
fn sizes(pool: &Pool) -> Table {
    let all = pool.sizes.iter().fold(0_u64, |sum, count| sum.saturating_add(*count)).max(1);
    let filled: Vec<(usize, u64)> =
        pool.sizes.iter().copied().enumerate().filter(|(_, count)| *count > 0).collect();
    let share = |count: u64| count as f64 / all as f64;
    let each = |value: &dyn Fn(usize, u64) -> Value| {
        Cells::Values(filled.iter().map(|(power, count)| value(*power, *count)).collect())
    };
    let size = |power, _| match largest(power, pool.sizes.len()) {
        Value::None => Value::text("more"),
        size => size,
    };
    let columns = vec![
        Column::new("up_to", "UP TO", each(&size)),
        Column::new("count", "REQUESTS", each(&|_, count| Value::Count(count))),
        Column::new("share", "SHARE", each(&|_, count| Value::Share(share(count)))),
        Column::new("bar", "", each(&|_, count| Value::Bar(share(count)))),
    ];
    table("sizes", "Requests by size", Audience::People, columns)
}

/// Pools that hold much for little.
fn findings(registry: &Registry, pools: &[&Pool]) -> Findings {
    let is_idle = |pool: &&&Pool| {
        let enough = Bytes(pool.live().0.saturating_mul(IDLE_TIMES)).max(IDLE_BYTES);
        pool.lives && pool.held >= enough
    };
    let list = pools.iter().filter(is_idle).map(|pool| idle(pool)).collect();
    let none = match registry.pools.is_empty() {
        true => "no pool has any memory yet",
        false => "nothing to say: no pool holds much more than is out",
    };
    Findings { list, none: Label::from(none) }
}

fn idle(pool: &Pool) -> Finding {
    let mut claim = called(pool);
    claim.extend([
        Value::text(" holds "),
        Value::Bytes(pool.held.0),
        Value::text(" for "),
        Value::Bytes(pool.live().0),
        Value::text(" that are out"),
    ]);
    Finding {
        id: "idle-pool",
        severity: Severity::Note,
        claim,
        evidence: vec![
            fact("live", "live", Value::Bytes(pool.live().0), ""),
            fact("held", "held", Value::Bytes(pool.held.0), ""),
            fact("peak_live", "at most", Value::Bytes(pool.peak_live.0), ""),
        ],
        next_step: vec![Value::text(
            "where it will not soon be as full again, trim it: that gives back what nothing lies in",
        )],
    }
}

fn lost(registry: &Registry) -> Option<Paragraph> {
    (registry.lost > 0).then(|| Paragraph {
        title: "".into(),
        pieces: vec![
            Value::Count(registry.lost.into()),
            Value::text(" more pools are not counted: the table has room for 1024 at a time."),
        ],
        audience: Audience::People,
    })
}

#[cfg(test)]
mod tests {
    use pagewise_model::{AddrRange, Pid};

    use super::*;

    fn pool(kind: &str, name: &str, live: u64, held: u64) -> Pool {
        let point = |requests, live, held| Point { requests, live: Bytes(live), held: Bytes(held) };
        let mut sizes = vec![0; 24];
        sizes[4] = 30;
        sizes[23] = 10;
        Pool {
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

    fn registry(pools: Vec<Pool>) -> Registry {
        Registry { pid: Pid(42), process: "server".into(), pools, lost: 0 }
    }

    fn rows_of(report: &Report) -> &Table {
        let table = |block: &Block| matches!(block, Block::Table(table) if table.key == "pools");
        let Some(Block::Table(table)) = report.blocks.iter().find(|block| table(block)) else {
            panic!("every report has the table");
        };
        table
    }

    fn column(table: &Table, key: &str) -> Vec<Value> {
        let column = table.columns.iter().find(|column| column.key == key).unwrap();
        (0..table.rows()).map(|row| column.value(row)).collect()
    }

    #[test]
    fn the_largest_comes_first_and_what_ended_last() {
        let ended = Pool { lives: false, ..pool("fifo", "old", 0, 1 << 30) };
        let registry =
            registry(vec![ended, pool("tlsf", "b", 10, 1000), pool("stack", "a", 10, 5000)]);
        let report = pools(&registry, &Options::default());
        let table = rows_of(&report);
        let names = ["a", "b", "old (ended)"].map(|name| Value::Name(name.into()));
        assert_eq!(column(table, "name"), names);
        assert_eq!(column(table, "pool_live")[..2], [Value::Bytes(10), Value::Bytes(10)]);
        let options = Options { name: "sta".into(), ..Options::default() };
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
        let report = pools(&registry, &Options { charts: 1, ..Options::default() });
        let chart = report.blocks.iter().find_map(|block| match block {
            Block::Chart(chart) => Some(chart),
            _ => None,
        });
        let chart = chart.unwrap();
        assert_eq!(chart.lines[0].points, [(0.0, 0.0), (20.0, 200.0), (40.0, 100.0)]);
        assert_eq!(chart.lines[1].points.last(), Some(&(40.0, f64::from(1 << 20))));
        let sizes = sizes(&registry.pools[0]);
        assert_eq!(column(&sizes, "up_to"), [Value::Bytes(16), Value::text("more")]);
        assert_eq!(column(&sizes, "share"), [Value::Share(0.75), Value::Share(0.25)]);
    }
}
