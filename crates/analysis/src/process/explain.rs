//! Report about the memory of a process: findings, identity, the columns of `top` and more exact
//! totals, the quadrants, the pools, the largest mappings, and the method of the reading.

pub(crate) mod core;
pub(crate) mod heap;
pub mod live;
mod tables;
mod totals;
pub(crate) mod who;

use pagewise_model::machine::ProcessMoment;
use pagewise_model::report::{
    Audience, CellValue, Fact, FactsShape, Findings, Label, NamedFacts, Paragraph, Report,
    ReportBlock,
};
use pagewise_model::{Absent, Mapping, Reading, Snapshot, parallel};

use self::core::CoreCoverage;
use crate::address_map;
use crate::findings::{Evidence, find};
use crate::invariants::{self, Invariants};
use crate::pools::{self, PoolMap, PoolSums};
use crate::pss::{self, Pss};
use crate::quadrants::{self, Quadrants};

/// Name and version of the JSON form.
pub const SCHEMA: &str = "pagewise.explain/1";

/// Options of the report.
#[derive(Clone, Copy, Debug)]
pub struct ExplainOptions {
    /// Maximum number of rows in "largest mappings".
    pub largest: usize,
    /// True to list every mapping, for programs.
    pub all_mappings: bool,
    /// True to draw the address space.
    pub address_map: bool,
}

impl Default for ExplainOptions {
    fn default() -> ExplainOptions {
        ExplainOptions { largest: 8, all_mappings: false, address_map: false }
    }
}

/// A snapshot and the values computed from its mappings.
#[derive(Debug)]
pub(crate) struct ExplainSubject<'a> {
    pub(crate) snapshot: &'a Snapshot,
    pub(crate) mappings: &'a [Mapping],
    pub(crate) pss: Pss,
    pub(crate) pools: PoolMap,
    /// Sums of each pool, in the order of [`PoolMap::list`].
    pub(crate) sums: Vec<PoolSums>,
    /// Sum over all pools.
    pub(crate) total: PoolSums,
    pub(crate) quadrants: Quadrants,
    pub(crate) invariants: Invariants,
    /// The contents of the core file; `None` if the snapshot is of a running process.
    pub(crate) coverage: Option<CoreCoverage<'a>>,
}

impl<'a> ExplainSubject<'a> {
    /// True if a second thread saves time in a pass over all mappings.
    pub(crate) fn is_large(&self) -> bool {
        self.mappings.len() >= parallel::MIN_ROWS
    }

    pub(crate) fn from_snapshot(snapshot: &'a Snapshot) -> Reading<ExplainSubject<'a>> {
        let mappings = snapshot.mappings.as_ref().map_err(Clone::clone)?;
        let pss = pss::shares(snapshot, mappings);
        let by_quadrant = || {
            let quadrants = quadrants::quadrants_of(snapshot, mappings, &pss);
            (quadrants, invariants::torn(snapshot, mappings, &pss))
        };
        let by_pool = || {
            let pools = pools::classify(snapshot);
            let sums = pools::sums(&pools, mappings, &pss);
            (pools, sums)
        };
        let is_large = mappings.len() >= parallel::MIN_ROWS;
        let ((quadrants, torn), (pools, sums)) = parallel::both(is_large, by_quadrant, by_pool);
        let total = pools::total(&sums);
        let invariants = Invariants { torn, drift: invariants::drift(snapshot, &total) };
        let core = snapshot.core.as_deref();
        let coverage = core.map(|dump| CoreCoverage::new(dump, mappings));
        Ok(ExplainSubject {
            snapshot,
            mappings,
            pss,
            pools,
            sums,
            total,
            quadrants,
            invariants,
            coverage,
        })
    }
}

/// Reports the uses of a process's memory.
///
/// # Complexity
/// O(n log n) in the number of mappings; some microseconds per mapping.
pub fn explain(snapshot: &Snapshot, options: &ExplainOptions) -> Report {
    let subject = ExplainSubject::from_snapshot(snapshot);
    if let Ok(subject) = &subject
        && let Some(coverage) = &subject.coverage
    {
        return explain_core(subject, coverage, options);
    }
    let mut blocks = vec![ReportBlock::Facts(who::process(&snapshot.process))];
    let is_large = subject.as_ref().is_ok_and(ExplainSubject::is_large);
    let (findings, body) = parallel::both(
        is_large,
        || subject.as_ref().ok().map(findings),
        || match &subject {
            Ok(subject) => body(subject, options),
            Err(absent) => withheld(snapshot, absent),
        },
    );
    blocks.extend(findings);
    blocks.push(ReportBlock::Facts(totals::totals(snapshot, subject.as_ref())));
    blocks.extend(nothing_there(snapshot).map(ReportBlock::Text));
    blocks.extend(body);
    blocks.push(ReportBlock::Facts(who::provenance(snapshot, subject.as_ref())));
    Report { schema: SCHEMA, title: who::title(snapshot), blocks }
}

/// Reports the memory of a core file. The signal that ended the process is first. Columns that need
/// a running process are for programs, with the reason for their absence.
fn explain_core(
    subject: &ExplainSubject<'_>,
    coverage: &CoreCoverage<'_>,
    options: &ExplainOptions,
) -> Report {
    let snapshot = subject.snapshot;
    let totals = totals::totals(snapshot, Ok(subject));
    let mut blocks = vec![
        ReportBlock::Facts(who::process(&snapshot.process)),
        findings(subject),
        ReportBlock::Facts(core::facts(subject, coverage)),
        ReportBlock::Facts(NamedFacts { audience: Audience::Programs, ..totals }),
        ReportBlock::Facts(absent_for_programs(&["quadrants"], &not_in_core())),
    ];
    blocks.extend(tables::pools(subject));
    blocks.extend(tables::largest(subject, options.largest).map(ReportBlock::Table));
    blocks.extend(heap::blocks(subject));
    blocks.extend(core::threads(subject, coverage.dump));
    blocks.extend(drawings(subject, options));
    blocks.push(ReportBlock::Facts(who::provenance(snapshot, Ok(subject))));
    Report { schema: SCHEMA, title: who::title(snapshot), blocks }
}

/// Returns the reason for the absence of values that core files do not contain.
fn not_in_core() -> Absent {
    Absent::NotRecorded("a core file".into())
}

fn findings(subject: &ExplainSubject<'_>) -> ReportBlock {
    let process = &subject.snapshot.process;
    let lives = subject.snapshot.provenance.moment == ProcessMoment::Running
        && !process.kernel_thread
        && !matches!(process.state, 'Z' | 'X');
    let none = match lives {
        true => format!(
            "Nothing unusual in this snapshot. If the process grows or is slow: `pagewise diagnose {}`.",
            process.pid
        )
        .into(),
        false => "Nothing unusual in this snapshot.".into(),
    };
    ReportBlock::Findings(Findings { list: find(Evidence::Snapshot(subject)), none })
}

/// Builds the list of mappings for programs, and the address map.
fn drawings(subject: &ExplainSubject<'_>, options: &ExplainOptions) -> Vec<ReportBlock> {
    let list = || ReportBlock::Table(tables::mappings(subject));
    let map = || ReportBlock::AddressMap(address_map::address_map(subject));
    let list = options.all_mappings.then(list);
    list.into_iter().chain(options.address_map.then(map)).collect()
}

fn body(subject: &ExplainSubject<'_>, options: &ExplainOptions) -> Vec<ReportBlock> {
    let mut blocks = tables::quadrants(&subject.quadrants, !subject.mappings.is_empty());
    blocks.extend(tables::pools(subject));
    blocks.extend(tables::largest(subject, options.largest).map(ReportBlock::Table));
    if options.all_mappings {
        blocks.push(ReportBlock::Table(tables::mappings(subject)));
    }
    blocks.extend(heap::blocks(subject));
    if options.address_map {
        blocks.push(ReportBlock::AddressMap(address_map::address_map(subject)));
    }
    blocks
}

/// Explains that a process has no memory of its own; `None` for other processes.
fn nothing_there(snapshot: &Snapshot) -> Option<Paragraph> {
    let process = &snapshot.process;
    let text = match process.state {
        _ if process.kernel_thread => {
            "A kernel thread: it runs in the kernel's memory and has no address space of its own."
        }
        'Z' | 'X' => "It has ended and its memory is freed; its parent has not yet waited for it.",
        _ => return None,
    };
    Some(paragraph(vec![CellValue::text(text)]))
}

/// Builds the blocks that replace the mappings if these are absent, for people and for programs.
fn withheld(snapshot: &Snapshot, absent: &Absent) -> Vec<ReportBlock> {
    let facts = absent_for_programs(&["quadrants", "pools", "mappings", "findings"], absent);
    let mut blocks = vec![ReportBlock::Facts(facts), ReportBlock::Facts(heap::missing(absent))];
    if nothing_there(snapshot).is_none() {
        let pieces = vec![
            CellValue::text("Its mappings cannot be shown ("),
            CellValue::text(absent.to_string()),
            CellValue::text("), so the use of this memory is unknown."),
        ];
        blocks.push(ReportBlock::Text(paragraph(pieces)));
    }
    blocks
}

/// Builds facts for the keys of the report that have no value.
fn absent_for_programs(keys: &[&'static str], absent: &Absent) -> NamedFacts {
    let fact = |key: &&'static str| fact(*key, *key, CellValue::Absent(absent.clone()), "");
    NamedFacts {
        key: "".into(),
        title: "".into(),
        audience: Audience::Programs,
        shape: FactsShape::List,
        facts: keys.iter().map(fact).collect(),
    }
}

fn paragraph(pieces: Vec<CellValue>) -> Paragraph {
    Paragraph { title: "".into(), pieces, audience: Audience::People }
}

/// Builds a fact for all readers.
pub(crate) fn fact(
    key: impl Into<Label>,
    label: impl Into<Label>,
    value: CellValue,
    meaning: impl Into<Label>,
) -> Fact {
    Fact {
        key: key.into(),
        label: label.into(),
        value,
        meaning: meaning.into(),
        audience: Audience::Everyone,
    }
}

/// Returns the meaning of a column from `FIELDS`.
pub(crate) fn meaning(column: &str) -> &'static str {
    pagewise_model::fields::named(column).next().map_or("", |field| field.meaning)
}
