//! Notebooks of the lab as reports: what there is to try, what came out, how two notebooks differ.

use pagewise_model::lab::{Arm, Claim, Environment, Experiment, Notebook, Plot, Quantity, Verdict};
use pagewise_model::report::{
    Audience, Axis, Bar, Bars, Block, Cells, Chart, Column, Facts, Label, Line, Paragraph, Report,
    Shape, Table, Unit, Value,
};
use pagewise_model::{Absent, Name, Reading};
use pagewise_stats::{Interval, Ratio, Summary, median_curve, median_interval, ratio_of_medians};

use crate::blocks::{facts_of, for_programs, table};
use crate::explain::fact;

/// Where the first touch of memory takes this many times the second, the host takes back what nobody uses.
const COLD: f64 = 3.0;

/// What can be tried: one row an experiment.
pub fn list(experiments: &[Experiment]) -> Report {
    let labels = |of: fn(&Experiment) -> Label| Cells::Labels(experiments.iter().map(of).collect());
    let skipped = experiments.iter().map(|experiment| match &experiment.skipped {
        Some(why) => Value::text(why.to_string()),
        None => Value::None,
    });
    let columns = vec![
        Column::new("name", "", labels(|experiment| experiment.name.clone())),
        Column::new("question", "", labels(|experiment| experiment.question.clone())),
        Column::new("skipped", "", Cells::Values(skipped.collect())),
    ];
    let asked = |experiment: &Experiment| {
        let why = experiment.skipped.as_ref().map(|why| format!(" (skipped: {why})"));
        let words = format!("{}{}", experiment.question, why.unwrap_or_default());
        fact("", experiment.name.clone(), Value::text(words), "")
    };
    let questions = facts_of("", "", Shape::List, experiments.iter().map(asked).collect());
    let hint =
        "`pagewise lab describe NAME` says what one expects, `pagewise lab run NAME` tries it";
    let blocks = vec![
        Block::Table(table("experiments", "", Audience::Programs, columns)),
        Block::Facts(Facts { audience: Audience::People, ..questions }),
        Block::Text(paragraph("", hint)),
    ];
    Report { schema: "pagewise.lab-list/1", title: vec![Value::text("Experiments")], blocks }
}

/// All that an experiment says of itself.
pub fn describe(experiment: &Experiment) -> Report {
    let named = |rows: Vec<(&Label, Value, &Label)>| {
        let (mut names, mut values, mut meanings) = (Vec::new(), Vec::new(), Vec::new());
        for (name, value, meaning) in rows {
            names.push(name.clone());
            values.push(value);
            meanings.push(meaning.clone());
        }
        (Cells::Labels(names), Cells::Values(values), Cells::Labels(meanings))
    };
    let parameters = experiment.parameters.iter();
    let (names, values, meanings) =
        named(parameters.map(|row| (&row.name, Value::Count(row.value), &row.meaning)).collect());
    let sizes = vec![
        Column::new("name", "PARAMETER", names),
        Column::new("value", "VALUE", values),
        Column::new("meaning", "MEANING", meanings),
    ];
    let quantities = experiment.quantities.iter();
    let (names, _, meanings) =
        named(quantities.map(|row| (&row.name, Value::None, &row.meaning)).collect());
    let measured =
        vec![Column::new("name", "MEASURED", names), Column::new("meaning", "MEANING", meanings)];
    let arms = experiment.arms.iter().map(|arm| Value::Text(arm.name.clone())).collect();
    // Names of conditions may have blanks and commas.
    let conditions: Vec<&str> = experiment.arms.iter().map(|arm| &*arm.name).collect();
    let facts = vec![
        fact("question", "question", Value::Text(experiment.question.clone()), ""),
        fact("expectation", "expectation", Value::Text(experiment.expectation.clone()), ""),
        fact("figures", "measured before", Value::Text(experiment.figures.clone()), "")
            .hidden_if(experiment.figures.is_empty()),
        fact("arms", "", Value::List(arms), "").for_programs(),
        fact("conditions", "conditions", Value::text(conditions.join("; ")), ""),
        fact("skipped", "not here", skipped(experiment), "")
            .hidden_if(experiment.skipped.is_none()),
        fact("rerun", "run it", Value::Text(experiment.rerun.clone()), ""),
    ];
    let mut blocks = vec![
        Block::Facts(Facts { shape: Shape::List, ..facts_of("", "", Shape::List, facts) }),
        Block::Table(table("parameters", "Sizes that can be set", Audience::Everyone, sizes)),
        Block::Table(table("quantities", "What is measured", Audience::Everyone, measured)),
    ];
    if experiment.parameters.is_empty() {
        blocks.remove(1);
    }
    let title = vec![Value::Text(experiment.name.clone())];
    Report { schema: "pagewise.lab-describe/1", title, blocks }
}

/// What came out: verdicts, claims, pictures and numbers.
pub fn report(notebook: &Notebook) -> Report {
    let mut blocks = vec![
        Block::Facts(environment(&notebook.environment)),
        Block::Table(verdicts(&notebook.experiments)),
        Block::Table(for_outside(&notebook.experiments)),
    ];
    blocks.extend(remarks(notebook).into_iter().map(Block::Text));
    for experiment in &notebook.experiments {
        blocks.extend(experiment_blocks(experiment));
    }
    Report { schema: "pagewise.lab/1", title: vec![Value::text("The lab")], blocks }
}

fn paragraph(title: impl Into<Label>, words: impl Into<Label>) -> Paragraph {
    let pieces = vec![Value::Text(words.into())];
    Paragraph { title: title.into(), pieces, audience: Audience::People }
}

fn environment(environment: &Environment) -> Facts {
    let name = |reading: &Reading<Name>| Value::of(reading.clone(), Value::Name);
    let caches = Value::of(environment.caches.clone(), |caches| {
        Value::Record(caches.into_iter().map(|(name, size)| (name, Value::Bytes(size.0))).collect())
    });
    let touch = |at: usize| Value::of(environment.first_touch.clone(), |ns| Value::Number(ns[at]));
    facts_of(
        "environment",
        "Where",
        Shape::Line,
        vec![
            fact("cpu", "CPU", name(&environment.cpu), ""),
            fact("cpus", "CPUs", Value::Count(environment.cpus.into()), ""),
            fact("caches", "caches", caches, ""),
            fact("memory", "memory", Value::bytes(environment.mem_total.clone()), ""),
            fact("page_size", "page", Value::Bytes(environment.page_size.0), ""),
            fact("kernel", "kernel", Value::Name(environment.kernel.clone()), ""),
            fact("thp", "huge pages", name(&environment.thp), ""),
            fact("governor", "governor", name(&environment.governor), ""),
            fact("hypervisor", "hypervisor", name(&environment.hypervisor), "")
                .hidden_if(environment.hypervisor.is_err()),
            fact("root", "root", Value::Flag(environment.root), ""),
            fact("first_touch_ns", "first touch of a page, ns", touch(0), ""),
            fact("second_touch_ns", "of warm memory", touch(1), ""),
            fact("unix_seconds", "at", Value::Count(environment.unix_seconds), "").for_programs(),
            fact("version", "pagewise", Value::Text(environment.version.clone()), ""),
        ],
    )
}

/// What matters to all experiments.
fn remarks(notebook: &Notebook) -> Vec<Paragraph> {
    let mut remarks = Vec::new();
    if let Ok([first, second]) = notebook.environment.first_touch
        && first > COLD * second
    {
        let times = first / second;
        remarks.push(paragraph("", format!(
            "The host takes back memory that nobody uses: its first touch takes {times:.0} times as long as later ones. \
             Memory was touched before each experiment."
        )));
    }
    if notebook.interrupted {
        remarks.push(paragraph("", "It was interrupted: what is missing was not run."));
    }
    remarks
}

/// One row an experiment.
fn verdicts(experiments: &[Experiment]) -> Table {
    let values =
        |of: &dyn Fn(&Experiment) -> Value| Cells::Values(experiments.iter().map(of).collect());
    let claims = |experiment: &Experiment| {
        let agree = experiment.claims.iter().filter(|c| c.verdict == Verdict::Agrees).count();
        match experiment.claims.len() {
            0 => Value::None,
            all => Value::text(format!("{agree} of {all}")),
        }
    };
    let noise = |experiment: &Experiment| experiment.noise.map_or(Value::None, Value::Share);
    let columns = vec![
        Column::new("name", "EXPERIMENT", values(&|e| Value::Text(e.name.clone()))),
        Column::new("verdict", "VERDICT", values(&|e| Value::Text(verdict(e)))),
        Column::new("claims", "CLAIMS HOLD", values(&claims)),
        Column::new("noise", "NOISE", values(&noise)),
        Column::new("took", "TOOK", values(&took)),
        Column::new("skipped", "", values(&skipped)),
    ];
    table("verdicts", "Verdicts", Audience::People, columns)
}

fn verdict(experiment: &Experiment) -> Label {
    match (&experiment.skipped, experiment.verdict()) {
        (Some(_), _) => "skipped".into(),
        (None, Some(verdict)) => verdict.words().into(),
        (None, None) => "no verdict".into(),
    }
}

/// What was skipped took no time, not 0 of it.
fn took(experiment: &Experiment) -> Value {
    if experiment.skipped.is_some() { Value::None } else { Value::Nanos(experiment.took_ns) }
}

fn skipped(experiment: &Experiment) -> Value {
    experiment.skipped.as_ref().map_or(Value::None, |why| Value::text(why.to_string()))
}

/// What programs read: everything, one row an experiment.
fn for_outside(experiments: &[Experiment]) -> Table {
    let values =
        |of: &dyn Fn(&Experiment) -> Value| Cells::Values(experiments.iter().map(of).collect());
    let list = |of: &dyn Fn(&Experiment) -> Vec<Value>| values(&|e| Value::List(of(e)));
    let parameters = |experiment: &Experiment| {
        let value =
            |row: &pagewise_model::lab::Parameter| (row.name.clone(), Value::Count(row.value));
        Value::Record(experiment.parameters.iter().map(value).collect())
    };
    let columns = vec![
        Column::new("name", "", values(&|e| Value::Text(e.name.clone()))),
        Column::new("verdict", "", values(&|e| Value::Text(verdict(e)))),
        Column::new("skipped", "", values(&skipped)),
        Column::new("question", "", values(&|e| Value::Text(e.question.clone()))),
        Column::new("claims", "", list(&|e| e.claims.iter().map(claim_record).collect())),
        Column::new("arms", "", list(&|e| e.arms.iter().map(|arm| arm_record(e, arm)).collect())),
        Column::new("parameters", "", values(&parameters)),
        Column::new("noise", "", values(&|e| e.noise.map_or(Value::None, Value::Share))),
        Column::new("took_ns", "", values(&took)),
        Column::new("rerun", "", values(&|e| Value::Text(e.rerun.clone()))),
    ];
    table("experiments", "", Audience::Programs, columns)
}

fn claim_record(claim: &Claim) -> Value {
    let agrees = match claim.verdict {
        Verdict::Agrees => Value::Flag(true),
        Verdict::Disagrees => Value::Flag(false),
        Verdict::CannotTell => Value::None,
    };
    let text = |text: &Label| Value::Text(text.clone());
    Value::Record(vec![
        ("text".into(), text(&claim.text)),
        ("source".into(), text(&claim.source)),
        ("expected".into(), text(&claim.expected)),
        ("measured".into(), text(&claim.measured)),
        ("verdict".into(), Value::text(claim.verdict.words())),
        ("agrees".into(), agrees),
        ("why".into(), text(&claim.why)),
    ])
}

fn arm_record(experiment: &Experiment, arm: &Arm) -> Value {
    let metric = |quantity: &Quantity| {
        let found = typical(arm, quantity);
        let [low, high] = match &found {
            Ok(Typical { interval: Some(ends), .. }) => [ends.low, ends.high].map(Value::Number),
            _ => [Value::None, Value::None],
        };
        Value::Record(vec![
            ("name".into(), Value::Text(quantity.name.clone())),
            ("median".into(), Value::of(found, |typical| Value::Number(typical.median))),
            ("low".into(), low),
            ("high".into(), high),
            (
                "values".into(),
                Value::List(arm.values(&quantity.name).into_iter().map(Value::Number).collect()),
            ),
        ])
    };
    let failures = arm.failures.iter().cloned().map(Value::Name).collect();
    Value::Record(vec![
        ("name".into(), Value::Text(arm.name.clone())),
        ("metrics".into(), Value::List(experiment.quantities.iter().map(metric).collect())),
        ("failures".into(), Value::List(failures)),
    ])
}

/// The median of a quantity in a condition.
struct Typical {
    median: f64,
    interval: Option<Interval>,
}

/// What is typical; the first reason where no run has a value.
fn typical(arm: &Arm, quantity: &Quantity) -> Reading<Typical> {
    let values = arm.values(&quantity.name);
    match Summary::of(&values) {
        Some(summary) => Ok(Typical { median: summary.median, interval: median_interval(&values) }),
        None => {
            let first = arm.runs.first().and_then(|run| run.values.get(&quantity.name));
            let why = first.and_then(|value| value.0.clone().err());
            Err(why.unwrap_or_else(|| Absent::NotCollected("no run measured it".into())))
        }
    }
}

fn experiment_blocks(experiment: &Experiment) -> Vec<Block> {
    let mut blocks = vec![
        Block::Part(format!("{}: {}", experiment.name, verdict(experiment)).into()),
        Block::Facts(said(experiment)),
    ];
    if experiment.skipped.is_some() {
        return blocks;
    }
    if !experiment.claims.is_empty() {
        blocks.push(Block::Claims(experiment.claims.clone()));
    }
    blocks.extend(experiment.plots.iter().filter_map(|plot| drawn(experiment, plot)));
    blocks.push(Block::Table(numbers(experiment)));
    blocks.extend(failures(experiment).map(Block::Text));
    blocks
}

/// What an experiment is about, in words.
fn said(experiment: &Experiment) -> Facts {
    let text = |key: &'static str, label: &'static str, text: &Label| {
        fact(key, label, Value::Text(text.clone()), "").for_people().hidden_if(text.is_empty())
    };
    let sizes = experiment.parameters.iter().map(|row| format!("{} {}", row.name, row.value));
    let sizes = Label::from(sizes.collect::<Vec<_>>().join(", "));
    let facts = vec![
        text("question", "question", &experiment.question),
        text("expectation", "expectation", &experiment.expectation),
        text("figures", "measured before", &experiment.figures),
        fact("skipped", "skipped", skipped(experiment), "").hidden_if(experiment.skipped.is_none()),
        text("sizes", "sizes", &sizes),
        text("rerun", "run it again", &experiment.rerun),
    ];
    Facts { audience: Audience::People, ..facts_of("", "", Shape::List, facts) }
}

/// Conditions by quantities.
fn numbers(experiment: &Experiment) -> Table {
    let arms = || experiment.arms.iter();
    let names = arms().map(|arm| arm.name.clone()).collect();
    let mut columns = vec![Column::new("arm", "CONDITION", Cells::Labels(names))];
    for quantity in &experiment.quantities {
        let value = |arm: &Arm| {
            Value::of(typical(arm, quantity), |found| value_of(quantity.unit, found.median))
        };
        columns.push(Column {
            meaning: quantity.meaning.clone(),
            ..Column::new(
                quantity.name.clone(),
                quantity.name.clone(),
                Cells::Values(arms().map(value).collect()),
            )
        });
    }
    let runs = arms().map(|arm| arm.runs.len() as u64).collect();
    columns.push(Column::new("runs", "runs", Cells::Counts(runs)));
    table("numbers", "Medians", Audience::People, columns)
}

fn value_of(unit: Unit, number: f64) -> Value {
    unit.value(number)
}

fn failures(experiment: &Experiment) -> impl Iterator<Item = Paragraph> + '_ {
    experiment.arms.iter().filter_map(|arm| {
        let first = arm.failures.first()?;
        let pieces = vec![
            Value::Text(arm.name.clone()),
            Value::text(": "),
            Value::Count(arm.failures.len() as u64),
            Value::text(" runs failed, the first with: "),
            Value::Name(first.clone()),
        ];
        Some(Paragraph { title: "".into(), pieces, audience: Audience::People })
    })
}

fn drawn(experiment: &Experiment, plot: &Plot) -> Option<Block> {
    match plot {
        Plot::Bars { quantity, scale } => {
            let quantity = experiment.quantities.iter().find(|row| row.name == *quantity)?;
            let bar = |arm: &Arm| {
                let Typical { median, interval } = typical(arm, quantity).ok()?;
                let interval = interval.map(|ends| (ends.low, ends.high));
                Some(Bar { label: arm.name.clone(), value: median, interval })
            };
            let bars: Vec<Bar> = experiment.arms.iter().filter_map(bar).collect();
            let title = vec![Value::Text(quantity.meaning.clone())];
            let axis = Axis { label: "".into(), unit: quantity.unit, scale: *scale };
            (!bars.is_empty()).then_some(Block::Bars(Bars { title, axis, bars }))
        }
        Plot::Curves { curve, x, y } => {
            let axis = |(label, unit, scale): &(Label, Unit, pagewise_model::report::Scale)| Axis {
                label: label.clone(),
                unit: *unit,
                scale: *scale,
            };
            let line = |arm: &Arm| {
                let points = median_curve(&arm.curves(curve));
                (!points.is_empty()).then(|| Line { label: arm.name.clone(), points })
            };
            let lines: Vec<Line> = experiment.arms.iter().filter_map(line).collect();
            let title = vec![Value::Text(curve.clone())];
            (!lines.is_empty())
                .then(|| Block::Chart(Chart { title, x: axis(x), y: axis(y), lines }))
        }
    }
}

/// How the medians of two notebooks compare.
pub fn compare(before: &Notebook, after: &Notebook) -> Report {
    let mut rows: Vec<Compared> = Vec::new();
    for old in &before.experiments {
        let Some(new) = after.experiments.iter().find(|new| new.name == old.name) else { continue };
        rows.extend(old.arms.iter().filter_map(|arm| Some((arm, new.arm(&arm.name)?))).flat_map(
            |(a, b)| old.quantities.iter().filter_map(|quantity| compared(old, quantity, a, b)),
        ));
    }
    let mut blocks = vec![Block::Table(compared_rows(&rows, "compared", Audience::Programs))];
    for rows in rows.chunk_by(|one, next| one.experiment == next.experiment) {
        let title = rows[0].experiment.clone();
        let table = compared_rows(rows, "", Audience::People);
        blocks.push(Block::Table(Table { title, ..table }));
    }
    let title = vec![Value::text("Two notebooks of the lab")];
    Report { schema: "pagewise.lab-compare/1", title, blocks }
}

fn compared_rows(rows: &[Compared], key: &'static str, audience: Audience) -> Table {
    let values = |of: &dyn Fn(&Compared) -> Value| Cells::Values(rows.iter().map(of).collect());
    let interval = |row: &Compared| match row.ratio.interval {
        Some(ends) if ends.low > 1.0 => Value::text("more"),
        Some(ends) if ends.high < 1.0 => Value::text("less"),
        Some(_) => Value::text("the same"),
        None => Value::text("too few runs"),
    };
    let columns = vec![
        for_programs(Column::new(
            "experiment",
            "",
            values(&|row| Value::Text(row.experiment.clone())),
        )),
        Column::new("arm", "CONDITION", values(&|row| Value::Text(row.arm.clone()))),
        Column::new("quantity", "QUANTITY", values(&|row| Value::Text(row.quantity.clone()))),
        Column::new("before", "BEFORE", values(&|row| value_of(row.unit, row.medians[0]))),
        Column::new("after", "AFTER", values(&|row| value_of(row.unit, row.medians[1]))),
        Column::new("ratio", "RATIO", values(&|row| Value::Number(row.ratio.median))),
        Column::new("change", "", values(&interval)),
    ];
    table(key, "", audience, columns)
}

/// A quantity of a condition in both.
struct Compared {
    experiment: Label,
    arm: Label,
    quantity: Label,
    unit: Unit,
    medians: [f64; 2],
    ratio: Ratio,
}

fn compared(
    experiment: &Experiment,
    quantity: &Quantity,
    before: &Arm,
    after: &Arm,
) -> Option<Compared> {
    let [a, b] = [before, after].map(|arm| arm.values(&quantity.name));
    Some(Compared {
        experiment: experiment.name.clone(),
        arm: before.name.clone(),
        quantity: quantity.name.clone(),
        unit: quantity.unit,
        medians: [Summary::of(&a)?.median, Summary::of(&b)?.median],
        ratio: ratio_of_medians(&b, &a)?,
    })
}
