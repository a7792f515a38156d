//! Reports of runs that never were, with every kind of gap.

use pagewise_model::measured::{Conditions, Count, Metric, Origin, Run, Scope, Share, Unit};
use pagewise_model::report::Fact;
use pagewise_model::{Bytes, PageSize};

use super::*;

fn metric(name: &'static str, unit: Unit, origin: Origin) -> Metric {
    let scope = if origin == Origin::Machine { Scope::Machine } else { Scope::Process };
    Metric { name: name.into(), unit, scope, origin }
}

/// A metric and its value in each run.
type Values = (Metric, Vec<Option<u64>>);

/// Runs whose values are given a metric, one a run; `None` is a machine without a PMU.
fn measured(arms: &[&[Values]]) -> Measurement {
    let no_pmu = || Absent::NotSupported("this VM has no PMU".into());
    let arm = |columns: &[Values]| Arm {
        command: vec!["bench".into(), "-x".into()],
        runs: (0..columns[0].1.len())
            .map(|run| Run {
                at: run as u64,
                ending: Ending::Exited(0),
                floor: Bytes::kib(700),
                values: columns
                    .iter()
                    .map(|(_, values)| values[run].map(Count::exact).ok_or_else(no_pmu))
                    .collect(),
                at_peak: None,
            })
            .collect(),
    };
    Measurement {
        conditions: Conditions {
            kernel: "6.18".into(),
            page_size: PageSize::new(4096).unwrap(),
            cpus: 2,
            pinned: None,
            warmups: 0,
            sampled_every: None,
            governor: Err(Absent::NotSupported("none".into())),
            unix_seconds: 0,
            interrupted: false,
        },
        metrics: arms[0].iter().map(|(metric, _)| metric.clone()).collect(),
        arms: arms.iter().map(|columns| arm(columns)).collect(),
    }
}

fn some(values: &[u64]) -> Vec<Option<u64>> {
    values.iter().copied().map(Some).collect()
}

fn wall(values: &[u64]) -> Values {
    (metric("wall", Unit::Nanos, Origin::Rusage), some(values))
}

/// The value that programs find at a key.
fn at<'r>(report: &'r Report, key: &str, name: &str) -> &'r Value {
    let facts = report.blocks.iter().filter_map(|block| match block {
        Block::Facts(facts) if facts.key == key => Some(&facts.facts),
        _ => None,
    });
    let fact: &Fact = facts.flatten().find(|fact| fact.key == name).expect("it is there");
    &fact.value
}

/// A member of one of the records below `metrics`.
fn member<'r>(report: &'r Report, metric: &str, name: &str) -> Option<&'r Value> {
    let Value::List(records) = at(report, "", "metrics") else { panic!("metrics is a list") };
    let record = records.iter().find_map(|record| match record {
        Value::Record(members) if members[0].1 == Value::text(metric.to_owned()) => Some(members),
        _ => None,
    });
    let (_, value) = record.expect("the metric is there").iter().find(|(key, _)| key == name)?;
    Some(value)
}

fn doubts(report: &Report) -> Vec<&'static str> {
    let found = report.blocks.iter().filter_map(|block| match block {
        Block::Findings(findings) => Some(&findings.list),
        _ => None,
    });
    found.flatten().map(|finding| finding.id).collect()
}

#[test]
fn a_metric_is_its_numbers_or_the_reason_why_there_are_none() {
    let cycles = metric("cycles", Unit::Count, Origin::Hardware);
    let report = stat(&measured(&[&[wall(&[30, 10, 20]), (cycles, vec![None; 3])]]));
    assert_eq!(member(&report, "wall", "median"), Some(&Value::Seconds(20)));
    assert_eq!(member(&report, "wall", "mad"), Some(&Value::Seconds(10)));
    assert_eq!(member(&report, "wall", "sd"), Some(&Value::Seconds(10)));
    assert_eq!(member(&report, "wall", "n"), Some(&Value::Count(3)));
    assert_eq!(member(&report, "wall", "unit"), Some(&Value::text("s")));
    assert_eq!(member(&report, "wall", "absent"), None);
    let why = Value::text("not supported: this VM has no PMU");
    assert_eq!(member(&report, "cycles", "absent"), Some(&why));
    assert_eq!(member(&report, "cycles", "median"), None, "what is absent is not 0");
}

#[test]
fn one_run_has_no_spread() {
    let report = stat(&measured(&[&[wall(&[30])]]));
    assert_eq!(member(&report, "wall", "sd"), Some(&Value::None));
    assert_eq!(member(&report, "wall", "median"), Some(&Value::Seconds(30)));
}

#[test]
fn a_count_that_was_scaled_says_so() {
    let mut measurement = measured(&[&[
        wall(&[10, 10]),
        (metric("instructions", Unit::Count, Origin::Hardware), some(&[100, 100])),
    ]]);
    let share = Some(Share { enabled: 1000, running: 250 });
    measurement.arms[0].runs[1].values[1] = Ok(Count { value: 100, share });
    let report = stat(&measurement);
    assert_eq!(member(&report, "instructions", "max"), Some(&Value::Number(400.0)));
    assert_eq!(member(&report, "instructions", "scaled"), Some(&Value::Number(4.0)));
    assert!(doubts(&report).contains(&"multiplexed"));
    // A counter that never ran counted nothing, which is not 0.
    let share = Some(Share { enabled: 1000, running: 0 });
    measurement.arms[0].runs[1].values[1] = Ok(Count { value: 0, share });
    let report = stat(&measurement);
    assert_eq!(member(&report, "instructions", "n"), Some(&Value::Count(1)));
    assert_eq!(member(&report, "instructions", "min"), Some(&Value::Number(100.0)));
}

#[test]
fn what_follows_is_made_run_by_run() {
    let count = |name, values: &[u64]| (metric(name, Unit::Count, Origin::Rusage), some(values));
    let report = stat(&measured(&[&[
        wall(&[1_000_000_000, 2_000_000_000, 1_000_000_000]),
        count("minflt", &[1024, 2048, 0]),
        count("majflt", &[0, 0, 0]),
        (metric("peak_res", Unit::Bytes, Origin::Rusage), some(&[4 << 20, 8 << 20, 1 << 20])),
        (metric("tlb_shootdowns", Unit::Count, Origin::Machine), some(&[10, 40, 10])),
        count("instructions", &[4, 4, 4]),
        count("cycles", &[2, 0, 8]),
    ]]));
    let values = |name| member(&report, name, "values").cloned();
    let numbers =
        |numbers: &[f64]| Some(Value::List(numbers.iter().map(|n| Value::Number(*n)).collect()));
    assert_eq!(values("faults_per_mib"), numbers(&[256.0, 256.0, 0.0]));
    assert_eq!(member(&report, "faults_per_s", "max"), Some(&Value::Rate(1024.0)));
    assert_eq!(member(&report, "tlb_shootdowns_per_s", "max"), Some(&Value::Rate(20.0)));
    assert_eq!(member(&report, "tlb_shootdowns_per_s", "scope"), Some(&Value::text("machine")));
    // Nothing can be said of a run without cycles.
    assert_eq!(member(&report, "ipc", "n"), Some(&Value::Count(2)));
    assert_eq!(member(&report, "ipc", "max"), Some(&Value::Number(2.0)));
}

#[test]
fn runs_that_stand_out_drift_or_fail_are_doubted() {
    let of = |walls: &[u64]| doubts(&stat(&measured(&[&[wall(walls)]])));
    assert_eq!(of(&[100, 101, 99, 100, 102, 98, 100]), [""; 0]);
    assert_eq!(of(&[300, 101, 99, 100, 102, 98, 100]), ["cold-first-run"]);
    assert_eq!(of(&[100, 101, 99, 300, 102, 98, 100]), ["outliers"]);
    assert_eq!(of(&[100, 110, 121, 130, 142, 150, 161, 170, 181, 190]), ["drift"]);
    let mut failing = measured(&[&[wall(&[1, 1, 1])]]);
    failing.arms[0].runs[1].ending = Ending::Exited(3);
    failing.arms[0].runs[2].ending = Ending::Killed(9);
    assert_eq!(doubts(&stat(&failing)), ["failed-runs"]);
    assert_eq!(exit_status(&failing), 3, "the first that is not 0");
    assert_eq!(at(&stat(&failing), "", "exit_status"), &Value::Count(3));
}

#[test]
fn a_difference_is_told_only_where_the_interval_leaves_out_one() {
    let verdict = |one: &[u64], other: &[u64]| {
        let report = stat(&measured(&[&[wall(one)], &[wall(other)]]));
        let Value::Text(verdict) = at(&report, "ratio", "verdict").clone() else {
            panic!("a verdict is words");
        };
        verdict.into_owned()
    };
    let slow: Vec<u64> = (0..10).map(|n| 1000 + n % 3).collect();
    let fast: Vec<u64> = (0..10).map(|n| 500 + n % 4).collect();
    let noisy: Vec<u64> = (0..10).map(|n| 700 + n % 2 * 600).collect();
    assert_eq!(verdict(&fast, &slow), "faster");
    assert_eq!(verdict(&slow, &fast), "slower");
    assert_eq!(verdict(&slow, &noisy), "cannot tell");
    assert_eq!(verdict(&slow, &slow), "the same");
    assert_eq!(verdict(&fast[..3], &slow[..3]), "cannot tell", "three rounds are too few");
    let report = stat(&measured(&[&[wall(&fast)], &[wall(&slow)]]));
    let Value::Number(ratio) = at(&report, "ratio", "median") else { panic!("a number") };
    assert!((0.49..0.51).contains(ratio), "the first over the second: {ratio}");
}

#[test]
fn a_table_has_a_row_for_each_metric_of_each_command() {
    let flat = table(&measured(&[&[wall(&[1, 2])], &[wall(&[3, 4])]]));
    let column =
        |key: &str| flat.columns.iter().find(|column| column.key == key).expect("it is there");
    assert_eq!(flat.rows(), 2);
    assert_eq!(
        (column("arm").value(0), column("arm").value(1)),
        (Value::text("A"), Value::text("B"))
    );
    assert_eq!(column("max").value(1), Value::Seconds(4));
}
