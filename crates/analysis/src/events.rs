//! What can be counted on a machine, and why the rest cannot.

use pagewise_model::measured::{Countable, Origin, Pmu, Scope, Survey};
use pagewise_model::report::{
    Audience, Block, Cells, Column, Label, Paragraph, Report, Shape, Table, Value,
};
use pagewise_model::{Absent, Name};

use crate::blocks::{facts_of, for_programs, table};
use crate::explain::{fact, meaning};

/// Name and version of the JSON form.
pub const SCHEMA: &str = "pagewise.events/1";

/// Those who count, with a heading.
const ORIGINS: &[(Origin, &str, &str)] = &[
    (Origin::Software, "software", "Counted by the kernel"),
    (Origin::Tracepoint, "tracepoint", "Tracepoints"),
    (Origin::Hardware, "hardware", "Counted by the CPU"),
];

/// A survey as a report: the tables `events` and `pmus`.
pub fn events(survey: &Survey) -> Report {
    let mut blocks = vec![Block::Facts(facts_of(
        "",
        "",
        Shape::Line,
        vec![
            fact("kernel", "Linux", Value::Name(survey.kernel.clone()), "The kernel's release."),
            fact(
                "perf_event_paranoid",
                "perf_event_paranoid",
                Value::of(survey.paranoid.clone(), |level| Value::text(level.to_string())),
                "What those without CAP_PERFMON may count: above 1 only in user mode, above 2 nothing on some kernels.",
            ),
            fact(
                "tracepoints",
                "tracepoints",
                Value::of(survey.tracepoints.clone(), Value::Count),
                "How many the kernel has: `pagewise events kmem:` lists those that have these letters.",
            ),
        ],
    ))];
    for (origin, _, title) in ORIGINS {
        let of_it = survey.events.iter().filter(|event| event.origin == *origin);
        let (works, fails): (Vec<_>, Vec<_>) = of_it.partition(|event| event.scope.is_ok());
        if !works.is_empty() {
            blocks.push(Block::Table(for_people(title, &works)));
        }
        blocks.extend(reasons(&fails).into_iter().map(Block::Text));
    }
    blocks.push(Block::Table(for_all(&survey.events)));
    blocks.extend(pmus(&survey.pmus).map(Block::Text));
    blocks.push(Block::Table(units(&survey.pmus)));
    Report { schema: SCHEMA, title: vec![Value::text("What can be counted here")], blocks }
}

fn counted(scope: Scope) -> &'static str {
    match scope {
        Scope::Process | Scope::Machine => "yes",
        Scope::ProcessUser => "in user mode",
    }
}

fn for_people(title: &'static str, events: &[&Countable]) -> Table {
    let usual = |event: &&Countable| Label::from(if event.usual { "usual" } else { "" });
    let partly = |event: &&Countable| event.scope.as_ref().is_ok_and(|s| *s == Scope::ProcessUser);
    let names = events.iter().map(|event| event.name.clone()).collect();
    let means = events.iter().map(|event| meaning(&event.name.escaped()).into()).collect();
    let mut columns = vec![
        Column::new("name", "", Cells::Names(names)),
        Column::new("usual", "", Cells::Labels(events.iter().map(usual).collect())),
        Column::new("meaning", "", Cells::Labels(means)),
    ];
    if events.iter().any(partly) {
        let how = |event: &&Countable| event.scope.as_ref().map_or("", |scope| counted(*scope));
        let how = events.iter().map(|event| how(event).into()).collect();
        columns.insert(2, Column::new("counted", "counted", Cells::Labels(how)));
    }
    table("", title, Audience::People, columns)
}

/// A sentence for each reason, with the events that it keeps from being counted.
fn reasons(events: &[&Countable]) -> Vec<Paragraph> {
    let mut reasons: Vec<(&Absent, Vec<&Name>)> = Vec::new();
    for event in events {
        let Err(absent) = &event.scope else { continue };
        match reasons.iter_mut().find(|(reason, _)| *reason == absent) {
            Some((_, names)) => names.push(&event.name),
            None => reasons.push((absent, vec![&event.name])),
        }
    }
    reasons.into_iter().map(|(absent, names)| sentence(absent, &names)).collect()
}

fn sentence(absent: &Absent, names: &[&Name]) -> Paragraph {
    let mut pieces = vec![Value::text(format!("{absent}: "))];
    for (at, name) in names.iter().enumerate() {
        pieces.push(Value::text(if at == 0 { "" } else { ", " }));
        pieces.push(Value::Name((*name).clone()));
    }
    pieces.push(Value::text("."));
    Paragraph { title: "Not here".into(), pieces, audience: Audience::People }
}

fn for_all(events: &[Countable]) -> Table {
    let origin = |event: &Countable| {
        let row = ORIGINS.iter().find(|(origin, ..)| *origin == event.origin);
        Label::from(row.map_or("", |(_, key, _)| key))
    };
    let scope =
        |event: &Countable| Value::of(event.scope.clone(), |scope| Value::text(scope.key()));
    let columns = vec![
        Column::new("name", "", Cells::Names(events.iter().map(|e| e.name.clone()).collect())),
        Column::new("origin", "", Cells::Labels(events.iter().map(origin).collect())),
        Column::new(
            "usual",
            "",
            Cells::Values(events.iter().map(|e| Value::Flag(e.usual)).collect()),
        ),
        Column::new("scope", "", Cells::Values(events.iter().map(scope).collect())),
    ];
    table("events", "", Audience::Programs, columns)
}

/// The PMUs whose events can be named.
fn pmus(pmus: &[Pmu]) -> Option<Paragraph> {
    let named = pmus.iter().filter(|pmu| !pmu.terms.is_empty() || !pmu.events.is_empty());
    let mut pieces = Vec::new();
    for pmu in named {
        pieces.extend([Value::Name(pmu.name.clone()), Value::text("/")]);
        let words = pmu.events.iter().chain(&pmu.terms).cloned().map(Value::Name);
        pieces.extend([Value::List(words.collect()), Value::text("/  ")]);
    }
    let title = "PMUs, with the events and terms of each: --events cpu/event=0xd0,umask=0x11/";
    (!pieces.is_empty()).then(|| Paragraph {
        title: title.into(),
        pieces,
        audience: Audience::People,
    })
}

fn units(pmus: &[Pmu]) -> Table {
    let list = |names: &[Name]| Value::List(names.iter().cloned().map(Value::Name).collect());
    let columns = vec![
        Column::new("name", "", Cells::Names(pmus.iter().map(|pmu| pmu.name.clone()).collect())),
        for_programs(Column::new(
            "events",
            "",
            Cells::Values(pmus.iter().map(|p| list(&p.events)).collect()),
        )),
        for_programs(Column::new(
            "terms",
            "",
            Cells::Values(pmus.iter().map(|p| list(&p.terms)).collect()),
        )),
    ];
    table("pmus", "", Audience::Programs, columns)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn event(name: &str, scope: pagewise_model::Reading<Scope>) -> Countable {
        Countable { name: name.into(), origin: Origin::Hardware, usual: true, scope }
    }

    #[test]
    fn events_that_share_a_reason_share_a_sentence() {
        let no_pmu = || Absent::NotSupported("this VM has no PMU".into());
        let survey = Survey {
            kernel: "6.18".into(),
            paranoid: Ok(2),
            events: vec![
                event("cycles", Err(no_pmu())),
                event("r1", Ok(Scope::ProcessUser)),
                event("instructions", Err(no_pmu())),
            ],
            pmus: vec![],
            tracepoints: Ok(7),
        };
        let report = events(&survey);
        let texts: Vec<_> = report
            .blocks
            .iter()
            .filter_map(|block| match block {
                Block::Text(text) => Some(&text.pieces),
                _ => None,
            })
            .collect();
        assert_eq!(texts.len(), 1, "{texts:?}");
        assert_eq!(texts[0][0], Value::text("not supported: this VM has no PMU: "));
        let names = texts[0].iter().filter(|piece| matches!(piece, Value::Name(_))).count();
        assert_eq!(names, 2);
    }
}
