//! The working set of an interval: what was referenced, mapping by mapping.

use pagewise_model::page_map::Touched;
use pagewise_model::report::{
    Audience, Block, Cells, Column, Paragraph, Report, Shape, Table, Value,
};
use pagewise_model::{Bytes, Counter, Mapping, Reading};

use super::{SCHEMA, name};
use crate::blocks::{facts_of, for_programs, table};
use crate::explain::{fact, meaning, who};

/// What a process used in an interval, as a report: facts `process`, `interval` and `total`, table `mappings`.
pub fn touched(touched: &Touched) -> Report {
    let total = |counter| -> Reading<Bytes> {
        touched.mappings.iter().map(|mapping| mapping.counter(counter)).sum()
    };
    let (resident, referenced) = (total(Counter::Rss), total(Counter::Referenced));
    let written = touched.written.clone().map(|written| written.into_iter().sum());
    let interval = vec![
        fact("interval_ns", "interval", Value::Nanos(touched.interval_ns), ""),
        fact(
            "clear_ns",
            "clearing took",
            Value::Nanos(touched.clear_ns),
            "The process could not map memory for so long, and every CPU it runs on flushed its TLB.",
        ),
        fact(
            "read_ns",
            "reading took",
            Value::Nanos(touched.read_ns),
            "It could not map memory while one of its mappings was read.",
        ),
    ];
    let totals = vec![
        fact("resident", "Resident", Value::bytes(resident), meaning("resident")),
        fact("touched", "Touched", Value::bytes(referenced), meaning("touched")),
        fact("written", "Written", Value::bytes(written), meaning("written")),
    ];
    Report {
        schema: SCHEMA,
        title: who::title_of(&touched.process, "what it touched"),
        blocks: vec![
            Block::Facts(who::process(&touched.process)),
            Block::Facts(facts_of("interval", "Seen", Shape::Line, interval)),
            Block::Facts(facts_of("total", "Total", Shape::Columns, totals)),
            Block::Table(mappings(touched)),
            Block::Text(Paragraph {
                title: "".into(),
                pieces: vec![Value::text(
                    "The referenced bits were cleared at the start (clear_refs), so the kernel takes what was not \
                     touched since for unused, and reclaims it first when memory is short.",
                )],
                audience: Audience::People,
            }),
        ],
    }
}

/// The mappings that were touched, the most touched first.
fn mappings(touched: &Touched) -> Table {
    let bytes = |mapping: &Mapping| mapping.counter(Counter::Referenced);
    let mut rows: Vec<usize> = (0..touched.mappings.len())
        .filter(|&row| bytes(&touched.mappings[row]) != Ok(Bytes::ZERO))
        .collect();
    rows.sort_by_key(|&row| std::cmp::Reverse(bytes(&touched.mappings[row]).unwrap_or_default()));
    let each = || rows.iter().map(|&row| &touched.mappings[row]);
    let share = |mapping: &Mapping| -> Reading<Value> {
        Ok(bytes(mapping)?.fraction_of(mapping.rss()?).map_or(Value::None, Value::Share))
    };
    let written = |&row: &usize| touched.written.as_ref().map_err(Clone::clone).map(|all| all[row]);
    let written = Column::bytes("written", "Written", rows.iter().map(written));
    let names = each().map(name).collect();
    let columns = vec![
        Column::new("start", "Address", Cells::Addresses(each().map(|m| m.range.start).collect())),
        for_programs(Column::new(
            "end",
            "End",
            Cells::Addresses(each().map(|m| m.range.end).collect()),
        )),
        Column::new("size", "Size", Cells::Bytes(each().map(|m| m.size().0).collect())),
        Column::bytes("rss", "RSS", each().map(Mapping::rss)),
        Column::bytes("touched", "Touched", each().map(bytes)),
        Column::new(
            "share",
            "Of RSS",
            Cells::Values(each().map(|m| share(m).unwrap_or_else(Value::Absent)).collect()),
        ),
        if touched.written.is_ok() { written } else { for_programs(written) },
        Column::new("name", "Mapping", Cells::Names(names)),
    ];
    table("mappings", "Mappings that were touched", Audience::Everyone, columns)
}
