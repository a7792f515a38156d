//! What simulators counted: misses of caches and TLBs, faults by page replacement. Always said to be simulated.

use pagewise_model::Absent;
use pagewise_model::report::{
    Audience, Block, Cells, Column, Fact, Facts, Paragraph, Report, Shape, Value,
};
use pagewise_model::simulated::{
    Cache, CacheRun, Replacement, ReplacementRun, Simulation, Split, Stream, TlbLevel, TlbRun,
    Translation,
};

use crate::blocks::{facts_of, for_programs, table};
use crate::explain::{fact, meaning};

/// What every count leaves out.
const OF_CACHES: &str = "Simulated, not measured. Writes allocate a line as reads do. Caches do not prefetch, and \
    nothing else runs on the CPU: no kernel, no page walks, no instructions. ";
const OF_TLBS: &str = "All memory is in pages of the one size. The access that comes first in the program's order \
    walks, although a CPU may let a load overtake a store. ";
const OF_MEMORY: &str = "Simulated, not measured. One process has the memory and nothing else wants any; no \
    read-ahead, no free frames in reserve. The first use of a page is no major fault. ";

/// TLB misses by size of page: `accesses`, `l1d_misses`, `dtlb_misses`, `stlb_misses`, `model`, `pages[]`.
pub fn tlb(simulation: &Simulation) -> Report {
    let by_page = table("pages", "By size of page", Audience::Everyone, pages(simulation));
    let l1d = simulation.caches.first().map(|run| run.l1d);
    let l1d = l1d.map(|missed| missed_of(missed, simulation.stream.accesses));
    let people = l1d.into_iter().map(|text| fact("", "L1D misses", text, "").for_people());
    report(
        "pagewise.sim.tlb/1",
        "Simulated TLB misses of ",
        &simulation.stream,
        vec![
            Block::Facts(headline(simulation, people.collect())),
            Block::Facts(model(simulation)),
            Block::Table(by_page),
            Block::Text(assumptions(&[OF_CACHES, OF_TLBS, &of_prefetcher(simulation)])),
        ],
    )
}

/// Cache misses by policy: the same keys, and `policies[]`.
pub fn cache(simulation: &Simulation) -> Report {
    let by_policy = table("policies", "By policy", Audience::Everyone, policies(simulation));
    report(
        "pagewise.sim.cache/1",
        "Simulated cache misses of ",
        &simulation.stream,
        vec![
            Block::Facts(headline(simulation, Vec::new())),
            Block::Facts(model(simulation)),
            Block::Table(by_policy),
            Block::Text(assumptions(&[OF_CACHES])),
        ],
    )
}

/// Faults by page replacement: `accesses`, `pages`, `model`, `policies[]`.
pub fn pages_kept(replacement: &Replacement) -> Report {
    let mut facts = stream(&replacement.stream);
    let used = "Different pages that were used: each faults once in any case.";
    facts.push(fact("pages", "pages used", Value::Count(replacement.pages), used));
    let of_memory = facts_of(
        "model",
        "",
        Shape::Line,
        vec![
            fact("memory", "memory", Value::Bytes(replacement.memory.0), "How much there is."),
            fact("page_size", "in pages of", Value::Bytes(replacement.page.0), ""),
            fact("assumes", "", Value::text(OF_MEMORY.trim_end()), "").for_programs(),
        ],
    );
    let by_policy = table("policies", "By policy", Audience::Everyone, reclaimed(replacement));
    report(
        "pagewise.sim.pages/1",
        "Simulated page replacement of ",
        &replacement.stream,
        vec![
            Block::Facts(facts_of("", "", Shape::Line, facts)),
            Block::Facts(of_memory),
            Block::Table(by_policy),
            Block::Text(assumptions(&[OF_MEMORY])),
        ],
    )
}

fn report(
    schema: &'static str,
    subject: &'static str,
    stream: &Stream,
    mut blocks: Vec<Block>,
) -> Report {
    if stream.cut_off {
        let words = "Cut off: there were more accesses than --limit allows.";
        blocks.push(Block::Text(assumptions(&[words])));
    }
    let title = vec![Value::text(subject), Value::Name(stream.subject.clone())];
    Report { schema, title, blocks }
}

fn assumptions(sentences: &[&str]) -> Paragraph {
    let pieces = vec![Value::text(sentences.concat().trim_end().to_owned())];
    Paragraph { title: "".into(), pieces, audience: Audience::People }
}

fn stream(stream: &Stream) -> Vec<Fact> {
    let of = |key: &'static str, label: &'static str, count| {
        fact(key, label, Value::Count(count), meaning(key))
    };
    vec![
        of("accesses", "accesses", stream.accesses.total()),
        of("reads", "reads", stream.accesses.reads),
        of("writes", "writes", stream.accesses.writes),
        of("unknown_lines", "unknown lines", stream.unknown_lines)
            .hidden_if(stream.unknown_lines == 0),
        fact("cut_off", "cut off", Value::Flag(stream.cut_off), meaning("cut_off")).for_programs(),
        fact("simulated", "", Value::Flag(true), "").for_programs(),
    ]
}

/// What programs ask for first: of the caches of the headline, and of the smallest pages.
fn headline(simulation: &Simulation, for_people: Vec<Fact>) -> Facts {
    let caches = simulation.caches.first();
    let l2 = caches.map_or(Err(not_simulated()), |run| run.l2.clone());
    let smallest = simulation.translations.first();
    let tlb = smallest.map_or(Err(not_simulated()), |translation| translation.tlb.clone());
    let l1d = caches.map(|run| run.l1d).ok_or_else(not_simulated);
    let total = |split: Split| Value::Count(split.total());
    let values = [
        ("l1d_misses", Value::of(l1d.clone(), total)),
        ("l1d_misses_by_reads", Value::of(l1d.clone(), |split| Value::Count(split.reads))),
        ("l1d_misses_by_writes", Value::of(l1d, |split| Value::Count(split.writes))),
        ("l2_misses", Value::of(l2, total)),
        ("dtlb_misses", Value::of(tlb.clone(), |run| total(run.dtlb))),
        ("stlb_misses", Value::of(tlb.clone(), |run| total(run.stlb))),
        ("stlb_misses_by_reads", Value::of(tlb.clone(), |run| Value::Count(run.stlb.reads))),
        ("stlb_misses_by_writes", Value::of(tlb, |run| Value::Count(run.stlb.writes))),
    ];
    let mut facts = stream(&simulation.stream);
    facts.extend(for_people);
    facts.extend(values.map(|(key, value)| fact(key, key, value, meaning(key)).for_programs()));
    facts_of("", "", Shape::Line, facts)
}

fn not_simulated() -> Absent {
    Absent::NotCollected("it was not simulated".into())
}

/// What was simulated.
fn model(simulation: &Simulation) -> Facts {
    let cpu = &simulation.cpu;
    let prefetcher = simulation
        .translations
        .iter()
        .find_map(|translation| translation.tlb.as_ref().ok().and_then(|tlb| tlb.prefetcher));
    let prefetcher = prefetcher.map_or(Value::None, |(model, _)| {
        Value::Record(vec![
            ("after".into(), Value::Count(model.after)),
            ("share".into(), Value::Share(model.share)),
        ])
    });
    facts_of(
        "model",
        "",
        Shape::Line,
        vec![
            fact("cpu", "CPU", Value::text(cpu.name.clone()), "Whose sizes these are."),
            fact("l1d", "L1D", shape(cpu.l1d), "The first level of cache for data."),
            fact("l2", "L2", Value::of(cpu.l2.clone(), shape), "The second level of cache."),
            fact("policy", "policy", Value::text(cpu.policy.clone()), meaning("policy")),
            fact("prefetcher", "", prefetcher, "The page walker's, for base pages.").for_programs(),
            fact(
                "assumes",
                "",
                Value::text([OF_CACHES, OF_TLBS].concat().trim_end().to_owned()),
                "",
            )
            .for_programs(),
        ],
    )
}

fn shape(cache: Cache) -> Value {
    Value::Record(vec![
        ("size".into(), Value::Bytes(cache.size.0)),
        ("ways".into(), Value::Count(cache.ways)),
        ("line".into(), Value::Bytes(cache.line.0)),
    ])
}

fn of_prefetcher(simulation: &Simulation) -> String {
    let prefetched = |translation: &Translation| translation.tlb.as_ref().ok()?.prefetcher;
    match simulation.translations.iter().find_map(prefetched) {
        None => "The page walker does not prefetch.".to_owned(),
        Some((model, made)) => format!(
            "For the smallest pages the walker prefetches: after {} misses each a page further, the next page, \
             in time {:.0} times of 100 (an assumption); {made} pages so.",
            model.after,
            model.share * 100.0
        ),
    }
}

#[expect(clippy::cast_precision_loss, reason = "a share needs few digits")]
fn share(part: Split, of: Split) -> Value {
    match of.total() {
        0 => Value::None,
        all => Value::Share(part.total() as f64 / all as f64),
    }
}

/// `1,234 (5.6 %)`, as pieces.
fn missed_of(missed: Split, of: Split) -> Value {
    Value::List(vec![Value::Count(missed.total()), share(missed, of)])
}

fn pages(simulation: &Simulation) -> Vec<Column> {
    let rows = &simulation.translations;
    let accesses = simulation.stream.accesses;
    let each = |key: &'static str, label: &'static str, value: &dyn Fn(&TlbRun) -> Value| {
        let cell = |row: &Translation| Value::of(row.tlb.as_ref().map_err(Clone::clone), value);
        Column::new(key, label, Cells::Values(rows.iter().map(cell).collect()))
    };
    let second = |run: &TlbRun, part: fn(&TlbLevel) -> u64| {
        Value::of(run.second.as_ref().map_err(Clone::clone), |level| Value::Count(part(level)))
    };
    let sizes = rows.iter().map(|row| row.page.0).collect();
    let prefetched = |run: &TlbRun| run.prefetcher.map_or(0, |(_, made)| made);
    vec![
        Column::new("page_size", "PAGES", Cells::Bytes(sizes)),
        each("dtlb_entries", "dTLB", &|run| Value::Count(run.first.entries)),
        for_programs(each("dtlb_ways", "", &|run| Value::Count(run.first.ways))),
        each("stlb_entries", "STLB", &|run| second(run, |level| level.entries)),
        for_programs(each("stlb_ways", "", &|run| second(run, |level| level.ways))),
        each("dtlb_misses", "dTLB MISSES", &|run| Value::Count(run.dtlb.total())),
        each("dtlb_miss_rate", "SHARE", &|run| share(run.dtlb, accesses)),
        each("stlb_misses", "WALKS", &|run| Value::Count(run.stlb.total())),
        each("stlb_miss_rate", "SHARE", &|run| share(run.stlb, accesses)),
        each("stlb_misses_by_reads", "READS", &|run| Value::Count(run.stlb.reads)),
        each("stlb_misses_by_writes", "WRITES", &|run| Value::Count(run.stlb.writes)),
        for_programs(each("prefetched", "", &|run| Value::Count(prefetched(run)))),
    ]
}

fn policies(simulation: &Simulation) -> Vec<Column> {
    let rows = &simulation.caches;
    let accesses = simulation.stream.accesses;
    let each = |key: &'static str, label: &'static str, value: &dyn Fn(&CacheRun) -> Value| {
        Column::new(key, label, Cells::Values(rows.iter().map(value).collect()))
    };
    let l2 = |run: &CacheRun, value: &dyn Fn(Split) -> Value| Value::of(run.l2.clone(), value);
    vec![
        each("policy", "POLICY", &|run| Value::text(run.policy.clone())),
        each("l1d_misses", "L1D MISSES", &|run| Value::Count(run.l1d.total())),
        each("l1d_miss_rate", "SHARE", &|run| share(run.l1d, accesses)),
        each("l1d_misses_by_reads", "READS", &|run| Value::Count(run.l1d.reads)),
        each("l1d_misses_by_writes", "WRITES", &|run| Value::Count(run.l1d.writes)),
        each("l2_misses", "L2 MISSES", &|run| l2(run, &|split| Value::Count(split.total()))),
        each("l2_miss_rate", "SHARE", &|run| l2(run, &|split| share(split, accesses))),
    ]
}

fn reclaimed(replacement: &Replacement) -> Vec<Column> {
    let rows = &replacement.policies;
    let each =
        |key: &'static str, label: &'static str, value: &dyn Fn(&ReplacementRun) -> Value| {
            Column::new(key, label, Cells::Values(rows.iter().map(value).collect()))
        };
    let least = rows.first().map(|run| run.back);
    let times = |run: &ReplacementRun| ratio(run.back, least).map_or(Value::None, Value::Number);
    vec![
        each("policy", "POLICY", &|run| Value::text(run.policy.clone())),
        each("refaults", "MAJOR FAULTS", &|run| Value::Count(run.back.total())),
        each("times_lru", "OF LRU", &times),
        each("refaults_by_reads", "READS", &|run| Value::Count(run.back.reads)),
        each("refaults_by_writes", "WRITES", &|run| Value::Count(run.back.writes)),
        each("written_back", "WRITTEN BACK", &|run| Value::Count(run.written)),
    ]
}

/// How many times as often as LRU, the first; `None` where that never faults.
#[expect(clippy::cast_precision_loss, reason = "a ratio needs few digits")]
fn ratio(back: Split, least: Option<Split>) -> Option<f64> {
    let least = least.map(Split::total).filter(|total| *total > 0)?;
    Some(back.total() as f64 / least as f64)
}

#[cfg(test)]
mod tests;
