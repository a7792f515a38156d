//! Where a process's memory is: who it is, the columns of top and better ones, the quadrants, the
//! pools, the largest mappings, and what is worth knowing about them.

mod tables;
mod totals;
pub(crate) mod who;

use pagewise_model::report::{
    Audience, Block, Fact, Facts, Findings, Label, Paragraph, Report, Shape, Value,
};
use pagewise_model::{Absent, Mapping, Reading, Snapshot, parallel};

use crate::invariants::{self, Invariants};
use crate::pools::{self, Pools, Sums};
use crate::pss::{self, Pss};
use crate::quadrants::{self, Quadrants};
use crate::{address_map, findings};

/// Name and version of the JSON form.
pub const SCHEMA: &str = "pagewise.explain/1";

/// What to show.
#[derive(Clone, Copy, Debug)]
pub struct Options {
    /// Rows in "largest mappings".
    pub largest: usize,
    /// Whether to list every mapping, for programs.
    pub all_mappings: bool,
    /// Whether to draw the address space.
    pub address_map: bool,
}

impl Default for Options {
    fn default() -> Options {
        Options { largest: 8, all_mappings: false, address_map: false }
    }
}

/// A snapshot and what is reckoned from its mappings.
#[derive(Debug)]
pub(crate) struct Subject<'a> {
    pub(crate) snapshot: &'a Snapshot,
    pub(crate) mappings: &'a [Mapping],
    pub(crate) pss: Pss,
    pub(crate) pools: Pools,
    /// In the order of [`Pools::list`].
    pub(crate) sums: Vec<Sums>,
    /// All pools together.
    pub(crate) total: Sums,
    pub(crate) quadrants: Quadrants,
    pub(crate) invariants: Invariants,
}

impl<'a> Subject<'a> {
    pub(crate) fn of(snapshot: &'a Snapshot) -> Reading<Subject<'a>> {
        let mappings = snapshot.mappings.as_ref().map_err(Clone::clone)?;
        let pss = pss::shares(snapshot, mappings);
        let by_quadrant = || quadrants::of(snapshot, mappings, &pss);
        let by_pool = || {
            let pools = pools::classify(snapshot);
            let sums = pools::sums(&pools, mappings, &pss);
            (pools, sums)
        };
        let is_large = mappings.len() >= parallel::MIN_ROWS;
        let (quadrants, (pools, sums)) = parallel::both(is_large, by_quadrant, by_pool);
        let total = pools::total(&sums);
        let invariants = invariants::check(snapshot, mappings, &pss, &total);
        Ok(Subject { snapshot, mappings, pss, pools, sums, total, quadrants, invariants })
    }
}

/// Explains where a process's memory is.
///
/// # Complexity
/// O(n log n) in the number of mappings; some microseconds each.
pub fn explain(snapshot: &Snapshot, options: &Options) -> Report {
    let subject = Subject::of(snapshot);
    let mut blocks = vec![
        Block::Facts(who::process(&snapshot.process)),
        Block::Facts(who::provenance(snapshot, subject.as_ref())),
        Block::Facts(totals::totals(snapshot, subject.as_ref())),
    ];
    blocks.extend(nothing_there(snapshot).map(Block::Text));
    match &subject {
        Ok(subject) => blocks.extend(body(subject, options)),
        Err(absent) => blocks.extend(withheld(snapshot, absent)),
    }
    Report { schema: SCHEMA, title: who::title(snapshot), blocks }
}

fn body(subject: &Subject<'_>, options: &Options) -> Vec<Block> {
    let mut blocks = tables::quadrants(&subject.quadrants, !subject.mappings.is_empty());
    blocks.extend(tables::pools(subject));
    blocks.extend(tables::largest(subject, options.largest).map(Block::Table));
    if options.all_mappings {
        blocks.push(Block::Table(tables::mappings(subject)));
    }
    blocks.push(Block::Findings(Findings {
        list: findings::findings(subject),
        none: "Nothing unusual.".into(),
    }));
    if options.address_map {
        blocks.push(Block::AddressMap(address_map::address_map(subject)));
    }
    blocks
}

/// What people are told of a process that has no memory to explain.
fn nothing_there(snapshot: &Snapshot) -> Option<Paragraph> {
    let process = &snapshot.process;
    let text = match process.state {
        _ if process.kernel_thread => {
            "A kernel thread: it runs in the kernel's memory and has none of its own."
        }
        'Z' | 'X' => {
            "It has ended and given its memory back; its parent has yet to ask how it ended."
        }
        _ => return None,
    };
    Some(paragraph(vec![Value::text(text)]))
}

/// What stands where the mappings would be, for people and for programs.
fn withheld(snapshot: &Snapshot, absent: &Absent) -> Vec<Block> {
    let keys = ["quadrants", "pools", "mappings", "findings"];
    let fact = |key: &'static str| fact(key, key, Value::Absent(absent.clone()), "");
    let facts = Facts {
        key: "".into(),
        title: "".into(),
        audience: Audience::Programs,
        shape: Shape::List,
        facts: keys.map(fact).to_vec(),
    };
    let mut blocks = vec![Block::Facts(facts)];
    if nothing_there(snapshot).is_none() {
        let pieces = vec![
            Value::text("Its mappings cannot be shown ("),
            Value::text(absent.to_string()),
            Value::text("), so nobody can tell from here what this memory is for."),
        ];
        blocks.push(Block::Text(paragraph(pieces)));
    }
    blocks
}

fn paragraph(pieces: Vec<Value>) -> Paragraph {
    Paragraph { title: "".into(), pieces, audience: Audience::People }
}

/// A fact for everyone.
pub(crate) fn fact(
    key: impl Into<Label>,
    label: impl Into<Label>,
    value: Value,
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

/// What a column of ours means, from the one table of fields.
pub(crate) fn meaning(column: &str) -> &'static str {
    pagewise_model::fields::named(column).next().map_or("", |field| field.meaning)
}
