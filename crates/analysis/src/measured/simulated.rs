//! Results of simulators: misses of caches and TLBs, faults by page replacement. Always labeled as
//! simulated.

use pagewise_model::Absent;
use pagewise_model::report::{
    Audience, CellValue, ColumnCells, Fact, FactsShape, NamedFacts, Paragraph, Report, ReportBlock,
    TableColumn,
};
use pagewise_model::simulated::{
    AccessSplit, AccessStream, CacheResult, CacheRun, ReplacementResult, ReplacementRun,
    Simulation, TlbResult, TlbRun, Translation,
};

use crate::blocks::{facts_of, for_programs, table};
use crate::cells;
use crate::explain::{fact, meaning};

/// Assumptions of the simulation, which limit every count.
const OF_CACHES: &str = "Simulated, not measured. Writes allocate a line as reads do. Caches do not prefetch, and \
    nothing else runs on the CPU: no kernel, no page walks, no instructions. ";
const OF_TLBS: &str = "All memory is in pages of the one size. The access that comes first in the program's order \
    walks, although a CPU may let a load overtake a store. ";
const OF_MEMORY: &str = "Simulated, not measured. One process has the memory and nothing else wants any; no \
    read-ahead, no free frames in reserve. The first use of a page is no major fault. ";

/// TLB misses by size of page: `accesses`, `l1d_misses`, `dtlb_misses`, `stlb_misses`, `model`,
/// `pages[]`.
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
            ReportBlock::Facts(headline(simulation, people.collect())),
            ReportBlock::Facts(model(simulation)),
            ReportBlock::Table(by_page),
            ReportBlock::Text(assumptions(&[OF_CACHES, OF_TLBS, &of_prefetcher(simulation)])),
        ],
    )
}

/// Cache misses by policy: the keys of [`tlb`], with `policies[]` instead of `pages[]`.
pub fn cache(simulation: &Simulation) -> Report {
    let by_policy = table("policies", "By policy", Audience::Everyone, policies(simulation));
    report(
        "pagewise.sim.cache/1",
        "Simulated cache misses of ",
        &simulation.stream,
        vec![
            ReportBlock::Facts(headline(simulation, Vec::new())),
            ReportBlock::Facts(model(simulation)),
            ReportBlock::Table(by_policy),
            ReportBlock::Text(assumptions(&[OF_CACHES])),
        ],
    )
}

/// Faults by page replacement: `accesses`, `pages`, `model`, `policies[]`.
pub fn pages_kept(replacement: &ReplacementResult) -> Report {
    let mut facts = stream(&replacement.stream);
    let used = "Different pages that were used: each faults once in any case.";
    facts.push(fact("pages", "pages used", CellValue::Count(replacement.pages), used));
    let of_memory = facts_of(
        "model",
        "",
        FactsShape::Line,
        vec![
            fact("memory", "memory", CellValue::Bytes(replacement.memory.0), "How much there is."),
            fact("page_size", "in pages of", CellValue::Bytes(replacement.page.0), ""),
            fact("assumes", "", CellValue::text(OF_MEMORY.trim_end()), "").for_programs(),
        ],
    );
    let by_policy = table("policies", "By policy", Audience::Everyone, reclaimed(replacement));
    report(
        "pagewise.sim.pages/1",
        "Simulated page replacement of ",
        &replacement.stream,
        vec![
            ReportBlock::Facts(facts_of("", "", FactsShape::Line, facts)),
            ReportBlock::Facts(of_memory),
            ReportBlock::Table(by_policy),
            ReportBlock::Text(assumptions(&[OF_MEMORY])),
        ],
    )
}

fn report(
    schema: &'static str,
    subject: &'static str,
    stream: &AccessStream,
    mut blocks: Vec<ReportBlock>,
) -> Report {
    if stream.cut_off {
        let words = "Cut off: there were more accesses than --limit allows.";
        blocks.push(ReportBlock::Text(assumptions(&[words])));
    }
    let title = vec![CellValue::text(subject), CellValue::Name(stream.subject.clone())];
    Report { schema, title, blocks }
}

fn assumptions(sentences: &[&str]) -> Paragraph {
    let pieces = vec![CellValue::text(sentences.concat().trim_end().to_owned())];
    Paragraph { title: "".into(), pieces, audience: Audience::People }
}

fn stream(stream: &AccessStream) -> Vec<Fact> {
    let of = |key: &'static str, label: &'static str, count| {
        fact(key, label, CellValue::Count(count), meaning(key))
    };
    vec![
        of("accesses", "accesses", stream.accesses.total()),
        of("reads", "reads", stream.accesses.reads),
        of("writes", "writes", stream.accesses.writes),
        of("unknown_lines", "unknown lines", stream.unknown_lines)
            .hidden_if(stream.unknown_lines == 0),
        fact("cut_off", "cut off", CellValue::Flag(stream.cut_off), meaning("cut_off"))
            .for_programs(),
        fact("simulated", "", CellValue::Flag(true), "").for_programs(),
    ]
}

/// Misses for programs: those of the first cache policy, and of the smallest pages.
fn headline(simulation: &Simulation, for_people: Vec<Fact>) -> NamedFacts {
    let caches = simulation.caches.first();
    let l2 = caches.map_or(Err(not_simulated()), |run| run.l2.clone());
    let smallest = simulation.translations.first();
    let tlb = smallest.map_or(Err(not_simulated()), |translation| translation.tlb.clone());
    let l1d = caches.map(|run| run.l1d).ok_or_else(not_simulated);
    let total = |split: AccessSplit| CellValue::Count(split.total());
    let values = [
        ("l1d_misses", CellValue::from_reading(l1d.clone(), total)),
        (
            "l1d_misses_by_reads",
            CellValue::from_reading(l1d.clone(), |split| CellValue::Count(split.reads)),
        ),
        (
            "l1d_misses_by_writes",
            CellValue::from_reading(l1d, |split| CellValue::Count(split.writes)),
        ),
        ("l2_misses", CellValue::from_reading(l2, total)),
        ("dtlb_misses", CellValue::from_reading(tlb.clone(), |run| total(run.dtlb))),
        ("stlb_misses", CellValue::from_reading(tlb.clone(), |run| total(run.stlb))),
        (
            "stlb_misses_by_reads",
            CellValue::from_reading(tlb.clone(), |run| CellValue::Count(run.stlb.reads)),
        ),
        (
            "stlb_misses_by_writes",
            CellValue::from_reading(tlb, |run| CellValue::Count(run.stlb.writes)),
        ),
    ];
    let mut facts = stream(&simulation.stream);
    facts.extend(for_people);
    facts.extend(values.map(|(key, value)| fact(key, key, value, meaning(key)).for_programs()));
    facts_of("", "", FactsShape::Line, facts)
}

fn not_simulated() -> Absent {
    Absent::NotCollected("it was not simulated".into())
}

/// Parameters of the simulation.
fn model(simulation: &Simulation) -> NamedFacts {
    let cpu = &simulation.cpu;
    let prefetcher = simulation
        .translations
        .iter()
        .find_map(|translation| translation.tlb.as_ref().ok().and_then(|tlb| tlb.prefetcher));
    let prefetcher = prefetcher.map_or(CellValue::None, |(model, _)| {
        CellValue::Record(vec![
            ("after".into(), CellValue::Count(model.after)),
            ("share".into(), CellValue::Share(model.share)),
        ])
    });
    facts_of(
        "model",
        "",
        FactsShape::Line,
        vec![
            fact("cpu", "CPU", CellValue::text(cpu.name.clone()), "CPU with these sizes."),
            fact("l1d", "L1D", shape(cpu.l1d), "The first level of cache for data."),
            fact(
                "l2",
                "L2",
                CellValue::from_reading(cpu.l2.clone(), shape),
                "The second level of cache.",
            ),
            fact("policy", "policy", CellValue::text(cpu.policy.clone()), meaning("policy")),
            fact("prefetcher", "", prefetcher, "The page walker's, for base pages.").for_programs(),
            fact(
                "assumes",
                "",
                CellValue::text([OF_CACHES, OF_TLBS].concat().trim_end().to_owned()),
                "",
            )
            .for_programs(),
        ],
    )
}

fn shape(cache: CacheResult) -> CellValue {
    CellValue::Record(vec![
        ("size".into(), CellValue::Bytes(cache.size.0)),
        ("ways".into(), CellValue::Count(cache.ways)),
        ("line".into(), CellValue::Bytes(cache.line.0)),
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

fn share(part: AccessSplit, of: AccessSplit) -> CellValue {
    cells::share(part.total(), of.total())
}

/// `1,234 (5.6 %)`, as pieces.
fn missed_of(missed: AccessSplit, of: AccessSplit) -> CellValue {
    CellValue::List(vec![CellValue::Count(missed.total()), share(missed, of)])
}

fn pages(simulation: &Simulation) -> Vec<TableColumn> {
    let rows = &simulation.translations;
    let accesses = simulation.stream.accesses;
    let each = |key: &'static str, label: &'static str, value: &dyn Fn(&TlbRun) -> CellValue| {
        let cell = |row: &Translation| {
            CellValue::from_reading(row.tlb.as_ref().map_err(Clone::clone), value)
        };
        TableColumn::new(key, label, ColumnCells::Values(rows.iter().map(cell).collect()))
    };
    let second = |run: &TlbRun, part: fn(&TlbResult) -> u64| {
        CellValue::from_reading(run.second.as_ref().map_err(Clone::clone), |level| {
            CellValue::Count(part(level))
        })
    };
    let sizes = rows.iter().map(|row| row.page.0).collect();
    let prefetched = |run: &TlbRun| run.prefetcher.map_or(0, |(_, made)| made);
    vec![
        TableColumn::new("page_size", "PAGES", ColumnCells::Bytes(sizes)),
        each("dtlb_entries", "dTLB", &|run| CellValue::Count(run.first.entries)),
        for_programs(each("dtlb_ways", "", &|run| CellValue::Count(run.first.ways))),
        each("stlb_entries", "STLB", &|run| second(run, |level| level.entries)),
        for_programs(each("stlb_ways", "", &|run| second(run, |level| level.ways))),
        each("dtlb_misses", "dTLB MISSES", &|run| CellValue::Count(run.dtlb.total())),
        each("dtlb_miss_rate", "SHARE", &|run| share(run.dtlb, accesses)),
        each("stlb_misses", "WALKS", &|run| CellValue::Count(run.stlb.total())),
        each("stlb_miss_rate", "SHARE", &|run| share(run.stlb, accesses)),
        each("stlb_misses_by_reads", "READS", &|run| CellValue::Count(run.stlb.reads)),
        each("stlb_misses_by_writes", "WRITES", &|run| CellValue::Count(run.stlb.writes)),
        for_programs(each("prefetched", "", &|run| CellValue::Count(prefetched(run)))),
    ]
}

fn policies(simulation: &Simulation) -> Vec<TableColumn> {
    let rows = &simulation.caches;
    let accesses = simulation.stream.accesses;
    let each = |key: &'static str, label: &'static str, value: &dyn Fn(&CacheRun) -> CellValue| {
        TableColumn::new(key, label, ColumnCells::Values(rows.iter().map(value).collect()))
    };
    let l2 = |run: &CacheRun, value: &dyn Fn(AccessSplit) -> CellValue| {
        CellValue::from_reading(run.l2.clone(), value)
    };
    vec![
        each("policy", "POLICY", &|run| CellValue::text(run.policy.clone())),
        each("l1d_misses", "L1D MISSES", &|run| CellValue::Count(run.l1d.total())),
        each("l1d_miss_rate", "SHARE", &|run| share(run.l1d, accesses)),
        each("l1d_misses_by_reads", "READS", &|run| CellValue::Count(run.l1d.reads)),
        each("l1d_misses_by_writes", "WRITES", &|run| CellValue::Count(run.l1d.writes)),
        each("l2_misses", "L2 MISSES", &|run| l2(run, &|split| CellValue::Count(split.total()))),
        each("l2_miss_rate", "SHARE", &|run| l2(run, &|split| share(split, accesses))),
    ]
}

fn reclaimed(replacement: &ReplacementResult) -> Vec<TableColumn> {
    let rows = &replacement.policies;
    let each =
        |key: &'static str, label: &'static str, value: &dyn Fn(&ReplacementRun) -> CellValue| {
            TableColumn::new(key, label, ColumnCells::Values(rows.iter().map(value).collect()))
        };
    let least = rows.first().map(|run| run.back);
    let times =
        |run: &ReplacementRun| ratio(run.back, least).map_or(CellValue::None, CellValue::Number);
    vec![
        each("policy", "POLICY", &|run| CellValue::text(run.policy.clone())),
        each("refaults", "MAJOR FAULTS", &|run| CellValue::Count(run.back.total())),
        each("times_lru", "OF LRU", &times),
        each("refaults_by_reads", "READS", &|run| CellValue::Count(run.back.reads)),
        each("refaults_by_writes", "WRITES", &|run| CellValue::Count(run.back.writes)),
        each("written_back", "WRITTEN BACK", &|run| CellValue::Count(run.written)),
    ]
}

/// Ratio to LRU, the first policy; `None` if LRU never faults.
#[expect(clippy::cast_precision_loss, reason = "a ratio needs few digits")]
fn ratio(back: AccessSplit, least: Option<AccessSplit>) -> Option<f64> {
    let least = least.map(AccessSplit::total).filter(|total| *total > 0)?;
    Some(back.total() as f64 / least as f64)
}

#[cfg(test)]
mod tests;
