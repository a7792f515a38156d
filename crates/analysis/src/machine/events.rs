//! Countable events of a machine, and the reasons why others cannot be counted.

use pagewise_model::measured::{Countable, CountableSurvey, MetricOrigin, MetricScope, Pmu};
use pagewise_model::report::{
    Audience, CellValue, ColumnCells, FactsShape, Label, Paragraph, Report, ReportBlock,
    ReportTable, TableColumn,
};
use pagewise_model::{Absent, Name};

use crate::blocks::{facts_of, for_programs, table};
use crate::explain::{fact, meaning};

/// Name and version of the JSON form.
pub const SCHEMA: &str = "pagewise.events/1";

/// Origins of events, with their keys and headings.
const ORIGINS: &[(MetricOrigin, &str, &str)] = &[
    (MetricOrigin::Software, "software", "Counted by the kernel"),
    (MetricOrigin::Tracepoint, "tracepoint", "Tracepoints"),
    (MetricOrigin::Hardware, "hardware", "Counted by the CPU"),
];

/// A survey as a report: the tables `events` and `pmus`.
pub fn events(survey: &CountableSurvey) -> Report {
    let mut blocks = vec![ReportBlock::Facts(facts_of(
        "",
        "",
        FactsShape::Line,
        vec![
            fact(
                "kernel",
                "Linux",
                CellValue::Name(survey.kernel.clone()),
                "The kernel's release.",
            ),
            fact(
                "perf_event_paranoid",
                "perf_event_paranoid",
                CellValue::from_reading(survey.paranoid.clone(), |level| {
                    CellValue::text(level.to_string())
                }),
                "Events that a user without CAP_PERFMON may count: above 1 only in user mode, above 2 none on some kernels.",
            ),
            fact(
                "tracepoints",
                "tracepoints",
                CellValue::from_reading(survey.tracepoints.clone(), CellValue::Count),
                "Number of tracepoints of the kernel: `pagewise events kmem:` lists those whose name contains these letters.",
            ),
        ],
    ))];
    for (origin, _, title) in ORIGINS {
        let of_it = survey.events.iter().filter(|event| event.origin == *origin);
        let (works, fails): (Vec<_>, Vec<_>) = of_it.partition(|event| event.scope.is_ok());
        if !works.is_empty() {
            blocks.push(ReportBlock::Table(for_people(title, &works)));
        }
        blocks.extend(reasons(&fails).into_iter().map(ReportBlock::Text));
    }
    blocks.push(ReportBlock::Table(for_all(&survey.events)));
    blocks.extend(pmus(&survey.pmus).map(ReportBlock::Text));
    blocks.push(ReportBlock::Table(units(&survey.pmus)));
    Report { schema: SCHEMA, title: vec![CellValue::text("Available events")], blocks }
}

fn counted(scope: MetricScope) -> &'static str {
    match scope {
        MetricScope::Process | MetricScope::Machine => "yes",
        MetricScope::ProcessUser => "in user mode",
    }
}

fn for_people(title: &'static str, events: &[&Countable]) -> ReportTable {
    let usual = |event: &&Countable| Label::from(if event.usual { "usual" } else { "" });
    let partly =
        |event: &&Countable| event.scope.as_ref().is_ok_and(|s| *s == MetricScope::ProcessUser);
    let names = events.iter().map(|event| event.name.clone()).collect();
    let means = events.iter().map(|event| meaning(&event.name.escaped()).into()).collect();
    let mut columns = vec![
        TableColumn::new("name", "", ColumnCells::Names(names)),
        TableColumn::new("usual", "", ColumnCells::Labels(events.iter().map(usual).collect())),
        TableColumn::new("meaning", "", ColumnCells::Labels(means)),
    ];
    if events.iter().any(partly) {
        let how = |event: &&Countable| event.scope.as_ref().map_or("", |scope| counted(*scope));
        let how = events.iter().map(|event| how(event).into()).collect();
        columns.insert(2, TableColumn::new("counted", "counted", ColumnCells::Labels(how)));
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
    let mut pieces = vec![CellValue::text(format!("{absent}: "))];
    for (at, name) in names.iter().enumerate() {
        pieces.push(CellValue::text(if at == 0 { "" } else { ", " }));
        pieces.push(CellValue::Name((*name).clone()));
    }
    pieces.push(CellValue::text("."));
    Paragraph { title: "Unavailable events".into(), pieces, audience: Audience::People }
}

fn for_all(events: &[Countable]) -> ReportTable {
    let origin = |event: &Countable| {
        let row = ORIGINS.iter().find(|(origin, ..)| *origin == event.origin);
        Label::from(row.map_or("", |(_, key, _)| key))
    };
    let scope = |event: &Countable| {
        CellValue::from_reading(event.scope.clone(), |scope| CellValue::text(scope.key()))
    };
    let columns = vec![
        TableColumn::new(
            "name",
            "",
            ColumnCells::Names(events.iter().map(|e| e.name.clone()).collect()),
        ),
        TableColumn::new("origin", "", ColumnCells::Labels(events.iter().map(origin).collect())),
        TableColumn::new(
            "usual",
            "",
            ColumnCells::Values(events.iter().map(|e| CellValue::Flag(e.usual)).collect()),
        ),
        TableColumn::new("scope", "", ColumnCells::Values(events.iter().map(scope).collect())),
    ];
    table("events", "", Audience::Programs, columns)
}

/// The PMUs whose events can be named.
fn pmus(pmus: &[Pmu]) -> Option<Paragraph> {
    let named = pmus.iter().filter(|pmu| !pmu.terms.is_empty() || !pmu.events.is_empty());
    let mut pieces = Vec::new();
    for pmu in named {
        pieces.extend([CellValue::Name(pmu.name.clone()), CellValue::text("/")]);
        let words = pmu.events.iter().chain(&pmu.terms).cloned().map(CellValue::Name);
        pieces.extend([CellValue::List(words.collect()), CellValue::text("/  ")]);
    }
    let title = "PMUs, with the events and terms of each: --events cpu/event=0xd0,umask=0x11/";
    (!pieces.is_empty()).then(|| Paragraph {
        title: title.into(),
        pieces,
        audience: Audience::People,
    })
}

fn units(pmus: &[Pmu]) -> ReportTable {
    let list =
        |names: &[Name]| CellValue::List(names.iter().cloned().map(CellValue::Name).collect());
    let columns = vec![
        TableColumn::new(
            "name",
            "",
            ColumnCells::Names(pmus.iter().map(|pmu| pmu.name.clone()).collect()),
        ),
        for_programs(TableColumn::new(
            "events",
            "",
            ColumnCells::Values(pmus.iter().map(|p| list(&p.events)).collect()),
        )),
        for_programs(TableColumn::new(
            "terms",
            "",
            ColumnCells::Values(pmus.iter().map(|p| list(&p.terms)).collect()),
        )),
    ];
    table("pmus", "", Audience::Programs, columns)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn event(name: &str, scope: pagewise_model::Reading<MetricScope>) -> Countable {
        Countable { name: name.into(), origin: MetricOrigin::Hardware, usual: true, scope }
    }

    #[test]
    fn events_that_share_a_reason_share_a_sentence() {
        let no_pmu = || Absent::NotSupported("this VM has no PMU".into());
        let survey = CountableSurvey {
            kernel: "6.18".into(),
            paranoid: Ok(2),
            events: vec![
                event("cycles", Err(no_pmu())),
                event("r1", Ok(MetricScope::ProcessUser)),
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
                ReportBlock::Text(text) => Some(&text.pieces),
                _ => None,
            })
            .collect();
        assert_eq!(texts.len(), 1, "{texts:?}");
        assert_eq!(texts[0][0], CellValue::text("not supported: this VM has no PMU: "));
        let names = texts[0].iter().filter(|piece| matches!(piece, CellValue::Name(_))).count();
        assert_eq!(names, 2);
    }
}
