//! Notebooks of `pagewise lab` (files with experiments and their results) as reports, and the
//! comparison of two notebooks.

use pagewise_model::lab::{
    ClaimVerdict, Environment, ExperimentArm, ExperimentClaim, ExperimentQuantity,
    ExperimentRecord, Notebook, Plot,
};
use pagewise_model::report::{
    Audience, Axis, AxisUnit, Bar, Bars, CellValue, Chart, ChartLine, ColumnCells, FactsShape,
    Label, NamedFacts, Paragraph, Report, ReportBlock, ReportTable, TableColumn,
};
use pagewise_model::{Absent, Name, Reading};
use pagewise_stats::{Interval, Ratio, Summary, median_curve, median_interval, ratio_of_medians};

use crate::blocks::{facts_of, for_programs, table};
use crate::explain::fact;

/// Minimum ratio of the time of the first touch of memory to the time of the second touch. A higher
/// ratio shows that the host reclaims unused guest memory.
const COLD: f64 = 3.0;

/// Lists experiments: one row each.
pub fn list(experiments: &[ExperimentRecord]) -> Report {
    let labels = |of: fn(&ExperimentRecord) -> Label| {
        ColumnCells::Labels(experiments.iter().map(of).collect())
    };
    let skipped = experiments.iter().map(|experiment| match &experiment.skipped {
        Some(why) => CellValue::text(why.to_string()),
        None => CellValue::None,
    });
    let columns = vec![
        TableColumn::new("name", "", labels(|experiment| experiment.name.clone())),
        TableColumn::new("question", "", labels(|experiment| experiment.question.clone())),
        TableColumn::new("skipped", "", ColumnCells::Values(skipped.collect())),
    ];
    let asked = |experiment: &ExperimentRecord| {
        let mark = if experiment.skipped.is_some() { " (skipped)" } else { "" };
        let words = format!("{}{mark}", experiment.question);
        fact("", experiment.name.clone(), CellValue::text(words), "")
    };
    let questions = facts_of("", "", FactsShape::List, experiments.iter().map(asked).collect());
    let hint = "`pagewise lab describe NAME` shows the expectation, `pagewise lab run NAME` runs the experiment";
    let mut blocks = vec![
        ReportBlock::Table(table("experiments", "", Audience::Programs, columns)),
        ReportBlock::Facts(NamedFacts { audience: Audience::People, ..questions }),
    ];
    blocks.extend(skip_reasons(experiments).into_iter().map(ReportBlock::Text));
    blocks.push(ReportBlock::Text(paragraph("", hint)));
    Report { schema: "pagewise.lab-list/1", title: vec![CellValue::text("Experiments")], blocks }
}

/// Returns a paragraph for each reason for which experiments are skipped, with the names of these
/// experiments.
fn skip_reasons(experiments: &[ExperimentRecord]) -> Vec<Paragraph> {
    let mut reasons: Vec<(String, Vec<&str>)> = Vec::new();
    for experiment in experiments {
        let Some(why) = experiment.skipped.as_ref().map(Absent::to_string) else { continue };
        match reasons.iter_mut().find(|(known, _)| *known == why) {
            Some((_, names)) => names.push(&experiment.name),
            None => reasons.push((why, vec![&experiment.name])),
        }
    }
    let paragraph = |(why, names): (String, Vec<&str>)| {
        paragraph("", format!("Skipped ({}): {why}", names.join(", ")))
    };
    reasons.into_iter().map(paragraph).collect()
}

/// Describes an experiment, without results.
pub fn describe(experiment: &ExperimentRecord) -> Report {
    let named = |rows: Vec<(&Label, CellValue, &Label)>| {
        let (mut names, mut values, mut meanings) = (Vec::new(), Vec::new(), Vec::new());
        for (name, value, meaning) in rows {
            names.push(name.clone());
            values.push(value);
            meanings.push(meaning.clone());
        }
        (ColumnCells::Labels(names), ColumnCells::Values(values), ColumnCells::Labels(meanings))
    };
    let parameters = experiment.parameters.iter();
    let (names, values, meanings) = named(
        parameters.map(|row| (&row.name, CellValue::Count(row.value), &row.meaning)).collect(),
    );
    let sizes = vec![
        TableColumn::new("name", "PARAMETER", names),
        TableColumn::new("value", "VALUE", values),
        TableColumn::new("meaning", "MEANING", meanings),
    ];
    let quantities = experiment.quantities.iter();
    let (names, _, meanings) =
        named(quantities.map(|row| (&row.name, CellValue::None, &row.meaning)).collect());
    let measured = vec![
        TableColumn::new("name", "MEASURED", names),
        TableColumn::new("meaning", "MEANING", meanings),
    ];
    let arms = experiment.arms.iter().map(|arm| CellValue::Text(arm.name.clone())).collect();
    // Names of conditions may contain blanks and commas, so they are not joined by commas.
    let conditions: Vec<&str> = experiment.arms.iter().map(|arm| &*arm.name).collect();
    let facts = vec![
        fact("question", "question", CellValue::Text(experiment.question.clone()), ""),
        fact("expectation", "expectation", CellValue::Text(experiment.expectation.clone()), ""),
        fact("figures", "measured before", CellValue::Text(experiment.figures.clone()), "")
            .hidden_if(experiment.figures.is_empty()),
        fact("arms", "", CellValue::List(arms), "").for_programs(),
        fact("conditions", "conditions", CellValue::text(conditions.join("; ")), ""),
        fact("skipped", "not here", skipped(experiment), "")
            .hidden_if(experiment.skipped.is_none()),
        fact("rerun", "run it", CellValue::Text(experiment.rerun.clone()), ""),
    ];
    let mut blocks = vec![
        ReportBlock::Facts(NamedFacts {
            shape: FactsShape::List,
            ..facts_of("", "", FactsShape::List, facts)
        }),
        ReportBlock::Table(table("parameters", "Parameters", Audience::Everyone, sizes)),
        ReportBlock::Table(table(
            "quantities",
            "Measured quantities",
            Audience::Everyone,
            measured,
        )),
    ];
    if experiment.parameters.is_empty() {
        blocks.remove(1);
    }
    let title = vec![CellValue::Text(experiment.name.clone())];
    Report { schema: "pagewise.lab-describe/1", title, blocks }
}

/// Reports results: verdicts, claims, plots and numbers.
pub fn report(notebook: &Notebook) -> Report {
    let mut blocks = vec![
        ReportBlock::Facts(environment(&notebook.environment)),
        ReportBlock::Table(verdicts(&notebook.experiments)),
        ReportBlock::Table(for_outside(&notebook.experiments)),
    ];
    blocks.extend(remarks(notebook).into_iter().map(ReportBlock::Text));
    for experiment in &notebook.experiments {
        blocks.extend(experiment_blocks(experiment));
    }
    Report { schema: "pagewise.lab/1", title: vec![CellValue::text("The lab")], blocks }
}

fn paragraph(title: impl Into<Label>, words: impl Into<Label>) -> Paragraph {
    let pieces = vec![CellValue::Text(words.into())];
    Paragraph { title: title.into(), pieces, audience: Audience::People }
}

fn environment(environment: &Environment) -> NamedFacts {
    let name = |reading: &Reading<Name>| CellValue::from_reading(reading.clone(), CellValue::Name);
    let caches = CellValue::from_reading(environment.caches.clone(), |caches| {
        CellValue::Record(
            caches.into_iter().map(|(name, size)| (name, CellValue::Bytes(size.0))).collect(),
        )
    });
    let touch = |at: usize| {
        CellValue::from_reading(environment.first_touch.clone(), |ns| CellValue::Number(ns[at]))
    };
    facts_of(
        "environment",
        "Where",
        FactsShape::Line,
        vec![
            fact("cpu", "CPU", name(&environment.cpu), ""),
            fact("cpus", "CPUs", CellValue::Count(environment.cpus.into()), ""),
            fact("caches", "caches", caches, ""),
            fact("memory", "memory", CellValue::bytes(environment.mem_total.clone()), ""),
            fact("page_size", "page", CellValue::Bytes(environment.page_size.0), ""),
            fact("kernel", "kernel", CellValue::Name(environment.kernel.clone()), ""),
            fact("thp", "huge pages", name(&environment.thp), ""),
            fact("governor", "governor", name(&environment.governor), ""),
            fact("hypervisor", "hypervisor", name(&environment.hypervisor), "")
                .hidden_if(environment.hypervisor.is_err()),
            fact("root", "root", CellValue::Flag(environment.root), ""),
            fact("first_touch_ns", "first touch of a page, ns", touch(0), ""),
            fact("second_touch_ns", "of warm memory", touch(1), ""),
            fact("unix_seconds", "at", CellValue::Count(environment.unix_seconds), "")
                .for_programs(),
            fact("version", "pagewise", CellValue::Text(environment.version.clone()), ""),
        ],
    )
}

/// Returns remarks that apply to all experiments.
fn remarks(notebook: &Notebook) -> Vec<Paragraph> {
    let mut remarks = Vec::new();
    if let Ok([first, second]) = notebook.environment.first_touch
        && first > COLD * second
    {
        let times = first / second;
        remarks.push(paragraph("", format!(
            "The host takes back unused memory: its first touch takes {times:.0} times as long as later ones. \
             Memory was touched before each experiment."
        )));
    }
    if notebook.interrupted {
        remarks.push(paragraph("", "It was interrupted: what is missing was not run."));
    }
    remarks
}

/// Builds the table of verdicts: one row per experiment.
fn verdicts(experiments: &[ExperimentRecord]) -> ReportTable {
    let values = |of: &dyn Fn(&ExperimentRecord) -> CellValue| {
        ColumnCells::Values(experiments.iter().map(of).collect())
    };
    let claims = |experiment: &ExperimentRecord| {
        let agree = experiment.claims.iter().filter(|c| c.verdict == ClaimVerdict::Agrees).count();
        match experiment.claims.len() {
            0 => CellValue::None,
            all => CellValue::text(format!("{agree} of {all}")),
        }
    };
    let noise =
        |experiment: &ExperimentRecord| experiment.noise.map_or(CellValue::None, CellValue::Share);
    let columns = vec![
        TableColumn::new("name", "EXPERIMENT", values(&|e| CellValue::Text(e.name.clone()))),
        TableColumn::new("verdict", "VERDICT", values(&|e| CellValue::Text(verdict(e)))),
        TableColumn::new("claims", "CLAIMS CONFIRMED", values(&claims)),
        TableColumn::new("noise", "NOISE", values(&noise)),
        TableColumn::new("took", "TOOK", values(&took)),
        TableColumn::new("skipped", "", values(&skipped)),
    ];
    table("verdicts", "Verdicts", Audience::People, columns)
}

fn verdict(experiment: &ExperimentRecord) -> Label {
    match (&experiment.skipped, experiment.verdict()) {
        (Some(_), _) => "skipped".into(),
        (None, Some(verdict)) => verdict.describe().into(),
        (None, None) => "no verdict".into(),
    }
}

/// Duration of an experiment. A skipped experiment does not have a duration, so its cell is empty.
fn took(experiment: &ExperimentRecord) -> CellValue {
    if experiment.skipped.is_some() {
        CellValue::None
    } else {
        CellValue::Nanos(experiment.took_ns)
    }
}

fn skipped(experiment: &ExperimentRecord) -> CellValue {
    experiment.skipped.as_ref().map_or(CellValue::None, |why| CellValue::text(why.to_string()))
}

/// Builds the table for programs: all data, one row per experiment.
fn for_outside(experiments: &[ExperimentRecord]) -> ReportTable {
    let values = |of: &dyn Fn(&ExperimentRecord) -> CellValue| {
        ColumnCells::Values(experiments.iter().map(of).collect())
    };
    let list =
        |of: &dyn Fn(&ExperimentRecord) -> Vec<CellValue>| values(&|e| CellValue::List(of(e)));
    let parameters = |experiment: &ExperimentRecord| {
        let value = |row: &pagewise_model::lab::ParameterValue| {
            (row.name.clone(), CellValue::Count(row.value))
        };
        CellValue::Record(experiment.parameters.iter().map(value).collect())
    };
    let columns = vec![
        TableColumn::new("name", "", values(&|e| CellValue::Text(e.name.clone()))),
        TableColumn::new("verdict", "", values(&|e| CellValue::Text(verdict(e)))),
        TableColumn::new("skipped", "", values(&skipped)),
        TableColumn::new("question", "", values(&|e| CellValue::Text(e.question.clone()))),
        TableColumn::new("claims", "", list(&|e| e.claims.iter().map(claim_record).collect())),
        TableColumn::new(
            "arms",
            "",
            list(&|e| e.arms.iter().map(|arm| arm_record(e, arm)).collect()),
        ),
        TableColumn::new("parameters", "", values(&parameters)),
        TableColumn::new(
            "noise",
            "",
            values(&|e| e.noise.map_or(CellValue::None, CellValue::Share)),
        ),
        TableColumn::new("took_ns", "", values(&took)),
        TableColumn::new("rerun", "", values(&|e| CellValue::Text(e.rerun.clone()))),
        TableColumn::new("kernels", "", values(&kernels)),
    ];
    table("experiments", "", Audience::Programs, columns)
}

/// Lists the kernels of the virtual machines of an experiment.
fn kernels(experiment: &ExperimentRecord) -> CellValue {
    CellValue::List(experiment.kernels.iter().cloned().map(CellValue::Name).collect())
}

fn claim_record(claim: &ExperimentClaim) -> CellValue {
    let agrees = match claim.verdict {
        ClaimVerdict::Agrees => CellValue::Flag(true),
        ClaimVerdict::Disagrees => CellValue::Flag(false),
        ClaimVerdict::CannotTell => CellValue::None,
    };
    let text = |text: &Label| CellValue::Text(text.clone());
    CellValue::Record(vec![
        ("text".into(), text(&claim.text)),
        ("source".into(), text(&claim.source)),
        ("expected".into(), text(&claim.expected)),
        ("measured".into(), text(&claim.measured)),
        ("verdict".into(), CellValue::text(claim.verdict.describe())),
        ("agrees".into(), agrees),
        ("why".into(), text(&claim.why)),
    ])
}

fn arm_record(experiment: &ExperimentRecord, arm: &ExperimentArm) -> CellValue {
    let metric = |quantity: &ExperimentQuantity| {
        let found = typical(arm, quantity);
        let [low, high] = match &found {
            Ok(Typical { interval: Some(ends), .. }) => {
                [ends.low, ends.high].map(CellValue::Number)
            }
            _ => [CellValue::None, CellValue::None],
        };
        CellValue::Record(vec![
            ("name".into(), CellValue::Text(quantity.name.clone())),
            (
                "median".into(),
                CellValue::from_reading(found, |typical| CellValue::Number(typical.median)),
            ),
            ("low".into(), low),
            ("high".into(), high),
            (
                "values".into(),
                CellValue::List(
                    arm.values(&quantity.name).into_iter().map(CellValue::Number).collect(),
                ),
            ),
        ])
    };
    let failures = arm.failures.iter().cloned().map(CellValue::Name).collect();
    CellValue::Record(vec![
        ("name".into(), CellValue::Text(arm.name.clone())),
        ("metrics".into(), CellValue::List(experiment.quantities.iter().map(metric).collect())),
        ("failures".into(), CellValue::List(failures)),
    ])
}

/// The median of a quantity under a condition.
struct Typical {
    median: f64,
    interval: Option<Interval>,
}

/// Returns the median; if all runs lack a value, the reason of the first run.
fn typical(arm: &ExperimentArm, quantity: &ExperimentQuantity) -> Reading<Typical> {
    let values = arm.values(&quantity.name);
    match Summary::from_values(&values) {
        Some(summary) => Ok(Typical { median: summary.median, interval: median_interval(&values) }),
        None => {
            let first = arm.runs.first().and_then(|run| run.values.get(&quantity.name));
            let why = first.and_then(|value| value.0.clone().err());
            Err(why.unwrap_or_else(|| Absent::NotCollected("no run measured it".into())))
        }
    }
}

fn experiment_blocks(experiment: &ExperimentRecord) -> Vec<ReportBlock> {
    let mut blocks = vec![
        ReportBlock::Part(format!("{}: {}", experiment.name, verdict(experiment)).into()),
        ReportBlock::Facts(said(experiment)),
    ];
    if experiment.skipped.is_some() {
        return blocks;
    }
    if !experiment.claims.is_empty() {
        blocks.push(ReportBlock::Claims(experiment.claims.clone()));
    }
    blocks.extend(experiment.plots.iter().filter_map(|plot| drawn(experiment, plot)));
    blocks.push(ReportBlock::Table(numbers(experiment)));
    blocks.extend(failures(experiment).map(ReportBlock::Text));
    blocks
}

/// Describes an experiment.
fn said(experiment: &ExperimentRecord) -> NamedFacts {
    let text = |key: &'static str, label: &'static str, text: &Label| {
        fact(key, label, CellValue::Text(text.clone()), "").for_people().hidden_if(text.is_empty())
    };
    let sizes = experiment.parameters.iter().map(|row| format!("{} {}", row.name, row.value));
    let sizes = Label::from(sizes.collect::<Vec<_>>().join(", "));
    let facts = vec![
        text("question", "question", &experiment.question),
        text("expectation", "expectation", &experiment.expectation),
        text("figures", "measured before", &experiment.figures),
        fact("skipped", "skipped", skipped(experiment), "").hidden_if(experiment.skipped.is_none()),
        text("sizes", "sizes", &sizes),
        fact("kernels", "kernel in the VM", kernels(experiment), "")
            .for_people()
            .hidden_if(experiment.kernels.is_empty()),
        text("rerun", "run it again", &experiment.rerun),
    ];
    NamedFacts { audience: Audience::People, ..facts_of("", "", FactsShape::List, facts) }
}

/// Builds the table of numbers: one row per condition, one column per quantity.
fn numbers(experiment: &ExperimentRecord) -> ReportTable {
    let arms = || experiment.arms.iter();
    let names = arms().map(|arm| arm.name.clone()).collect();
    let mut columns = vec![TableColumn::new("arm", "CONDITION", ColumnCells::Labels(names))];
    for quantity in &experiment.quantities {
        let value = |arm: &ExperimentArm| {
            CellValue::from_reading(typical(arm, quantity), |found| {
                value_of(quantity.unit, found.median)
            })
        };
        columns.push(TableColumn {
            meaning: quantity.meaning.clone(),
            ..TableColumn::new(
                quantity.name.clone(),
                quantity.name.clone(),
                ColumnCells::Values(arms().map(value).collect()),
            )
        });
    }
    let runs = arms().map(|arm| arm.runs.len() as u64).collect();
    columns.push(TableColumn::new("runs", "runs", ColumnCells::Counts(runs)));
    table("numbers", "Medians", Audience::People, columns)
}

fn value_of(unit: AxisUnit, number: f64) -> CellValue {
    unit.value(number)
}

fn failures(experiment: &ExperimentRecord) -> impl Iterator<Item = Paragraph> + '_ {
    experiment.arms.iter().filter_map(|arm| {
        let first = arm.failures.first()?;
        let pieces = vec![
            CellValue::Text(arm.name.clone()),
            CellValue::text(": "),
            CellValue::Count(arm.failures.len() as u64),
            CellValue::text(" runs failed, the first with: "),
            CellValue::Name(first.clone()),
        ];
        Some(Paragraph { title: "".into(), pieces, audience: Audience::People })
    })
}

fn drawn(experiment: &ExperimentRecord, plot: &Plot) -> Option<ReportBlock> {
    match plot {
        Plot::Bars { quantity, scale } => {
            let quantity = experiment.quantities.iter().find(|row| row.name == *quantity)?;
            let bar = |arm: &ExperimentArm| {
                let Typical { median, interval } = typical(arm, quantity).ok()?;
                let interval = interval.map(|ends| (ends.low, ends.high));
                Some(Bar { label: arm.name.clone(), value: median, interval })
            };
            let bars: Vec<Bar> = experiment.arms.iter().filter_map(bar).collect();
            let title = vec![CellValue::Text(quantity.meaning.clone())];
            let axis = Axis { label: "".into(), unit: quantity.unit, scale: *scale };
            (!bars.is_empty()).then_some(ReportBlock::Bars(Bars { title, axis, bars }))
        }
        Plot::Curves { curve, x, y } => {
            let axis = |(label, unit, scale): &(Label, AxisUnit, pagewise_model::report::Scale)| {
                Axis { label: label.clone(), unit: *unit, scale: *scale }
            };
            let line = |arm: &ExperimentArm| {
                let points = median_curve(&arm.curves(curve));
                (!points.is_empty()).then(|| ChartLine { label: arm.name.clone(), points })
            };
            let lines: Vec<ChartLine> = experiment.arms.iter().filter_map(line).collect();
            let title = vec![CellValue::Text(curve.clone())];
            (!lines.is_empty())
                .then(|| ReportBlock::Chart(Chart { title, x: axis(x), y: axis(y), lines }))
        }
    }
}

/// Compares the medians of two notebooks.
pub fn compare(before: &Notebook, after: &Notebook) -> Report {
    let mut rows: Vec<ComparedQuantity> = Vec::new();
    for old in &before.experiments {
        let Some(new) = after.experiments.iter().find(|new| new.name == old.name) else { continue };
        rows.extend(old.arms.iter().filter_map(|arm| Some((arm, new.arm(&arm.name)?))).flat_map(
            |(a, b)| old.quantities.iter().filter_map(|quantity| compared(old, quantity, a, b)),
        ));
    }
    let mut blocks = vec![ReportBlock::Table(compared_rows(&rows, "compared", Audience::Programs))];
    for rows in rows.chunk_by(|one, next| one.experiment == next.experiment) {
        let title = rows[0].experiment.clone();
        let table = compared_rows(rows, "", Audience::People);
        blocks.push(ReportBlock::Table(ReportTable { title, ..table }));
    }
    let title = vec![CellValue::text("Two notebooks of the lab")];
    Report { schema: "pagewise.lab-compare/1", title, blocks }
}

fn compared_rows(rows: &[ComparedQuantity], key: &'static str, audience: Audience) -> ReportTable {
    let values = |of: &dyn Fn(&ComparedQuantity) -> CellValue| {
        ColumnCells::Values(rows.iter().map(of).collect())
    };
    let interval = |row: &ComparedQuantity| match row.ratio.interval {
        Some(ends) if ends.low > 1.0 => CellValue::text("more"),
        Some(ends) if ends.high < 1.0 => CellValue::text("less"),
        Some(_) => CellValue::text("the same"),
        None => CellValue::text("too few runs"),
    };
    let columns = vec![
        for_programs(TableColumn::new(
            "experiment",
            "",
            values(&|row| CellValue::Text(row.experiment.clone())),
        )),
        TableColumn::new("arm", "CONDITION", values(&|row| CellValue::Text(row.arm.clone()))),
        TableColumn::new(
            "quantity",
            "QUANTITY",
            values(&|row| CellValue::Text(row.quantity.clone())),
        ),
        TableColumn::new("before", "BEFORE", values(&|row| value_of(row.unit, row.medians[0]))),
        TableColumn::new("after", "AFTER", values(&|row| value_of(row.unit, row.medians[1]))),
        TableColumn::new("ratio", "RATIO", values(&|row| CellValue::Number(row.ratio.median))),
        TableColumn::new("change", "", values(&interval)),
    ];
    table(key, "", audience, columns)
}

/// Medians of a quantity under one condition, in both notebooks.
struct ComparedQuantity {
    experiment: Label,
    arm: Label,
    quantity: Label,
    unit: AxisUnit,
    medians: [f64; 2],
    ratio: Ratio,
}

fn compared(
    experiment: &ExperimentRecord,
    quantity: &ExperimentQuantity,
    before: &ExperimentArm,
    after: &ExperimentArm,
) -> Option<ComparedQuantity> {
    let [a, b] = [before, after].map(|arm| arm.values(&quantity.name));
    Some(ComparedQuantity {
        experiment: experiment.name.clone(),
        arm: before.name.clone(),
        quantity: quantity.name.clone(),
        unit: quantity.unit,
        medians: [Summary::from_values(&a)?.median, Summary::from_values(&b)?.median],
        ratio: ratio_of_medians(&b, &a)?,
    })
}
