//! Reports of made-up runs, with every kind of gap.

use pagewise_model::measured::{
    Count, MeasuredMetric, MeasuredRun, MetricOrigin, MetricScope, MetricUnit, RunConditions, Share,
};
use pagewise_model::report::Fact;
use pagewise_model::{Bytes, PageSize};

use super::*;

fn metric(name: &'static str, unit: MetricUnit, origin: MetricOrigin) -> MeasuredMetric {
    let scope =
        if origin == MetricOrigin::Machine { MetricScope::Machine } else { MetricScope::Process };
    MeasuredMetric { name: name.into(), unit, scope, origin }
}

/// A metric and its value in each run.
type Values = (MeasuredMetric, Vec<Option<u64>>);

/// A measurement with these values for each metric, one per run; `None` stands for a machine
/// without a PMU.
fn measured(arms: &[&[Values]]) -> Measurement {
    let no_pmu = || Absent::NotSupported("this VM has no PMU".into());
    let arm = |columns: &[Values]| MeasuredArm {
        command: vec!["bench".into(), "-x".into()],
        runs: (0..columns[0].1.len())
            .map(|run| MeasuredRun {
                at: run as u64,
                ending: ProgramEnding::Exited(0),
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
        conditions: RunConditions {
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
    (metric("wall", MetricUnit::Nanos, MetricOrigin::Rusage), some(values))
}

/// The value that programs find at a key.
fn at<'r>(report: &'r Report, key: &str, name: &str) -> &'r CellValue {
    let facts = report.blocks.iter().filter_map(|block| match block {
        ReportBlock::Facts(facts) if facts.key == key => Some(&facts.facts),
        _ => None,
    });
    let fact: &Fact = facts.flatten().find(|fact| fact.key == name).expect("it is there");
    &fact.value
}

/// A member of one of the records below `metrics`.
fn member<'r>(report: &'r Report, metric: &str, name: &str) -> Option<&'r CellValue> {
    let CellValue::List(records) = at(report, "", "metrics") else { panic!("metrics is a list") };
    let record = records.iter().find_map(|record| match record {
        CellValue::Record(members) if members[0].1 == CellValue::text(metric.to_owned()) => {
            Some(members)
        }
        _ => None,
    });
    let (_, value) = record.expect("the metric is there").iter().find(|(key, _)| key == name)?;
    Some(value)
}

fn doubts(report: &Report) -> Vec<&'static str> {
    let found = report.blocks.iter().filter_map(|block| match block {
        ReportBlock::Findings(findings) => Some(&findings.list),
        _ => None,
    });
    found.flatten().map(|finding| finding.id).collect()
}

#[test]
fn a_metric_has_numbers_or_the_reason_of_their_absence() {
    let cycles = metric("cycles", MetricUnit::Count, MetricOrigin::Hardware);
    let report = stat(&measured(&[&[wall(&[30, 10, 20]), (cycles, vec![None; 3])]]));
    assert_eq!(member(&report, "wall", "median"), Some(&CellValue::Seconds(20)));
    assert_eq!(member(&report, "wall", "mad"), Some(&CellValue::Seconds(10)));
    assert_eq!(member(&report, "wall", "sd"), Some(&CellValue::Seconds(10)));
    assert_eq!(member(&report, "wall", "n"), Some(&CellValue::Count(3)));
    assert_eq!(member(&report, "wall", "unit"), Some(&CellValue::text("s")));
    assert_eq!(member(&report, "wall", "absent"), None);
    let why = CellValue::text("not supported: this VM has no PMU");
    assert_eq!(member(&report, "cycles", "absent"), Some(&why));
    assert_eq!(member(&report, "cycles", "median"), None, "what is absent is not 0");
}

#[test]
fn one_run_has_no_spread() {
    let report = stat(&measured(&[&[wall(&[30])]]));
    assert_eq!(member(&report, "wall", "sd"), Some(&CellValue::None));
    assert_eq!(member(&report, "wall", "median"), Some(&CellValue::Seconds(30)));
}

#[test]
fn a_count_that_was_scaled_says_so() {
    let mut measurement = measured(&[&[
        wall(&[10, 10]),
        (metric("instructions", MetricUnit::Count, MetricOrigin::Hardware), some(&[100, 100])),
    ]]);
    let share = Some(Share { enabled: 1000, running: 250 });
    measurement.arms[0].runs[1].values[1] = Ok(Count { value: 100, share });
    let report = stat(&measurement);
    assert_eq!(member(&report, "instructions", "max"), Some(&CellValue::Number(400.0)));
    assert_eq!(member(&report, "instructions", "scaled"), Some(&CellValue::Number(4.0)));
    assert!(doubts(&report).contains(&"multiplexed"));
    // A counter that never ran counted nothing, which is not 0.
    let share = Some(Share { enabled: 1000, running: 0 });
    measurement.arms[0].runs[1].values[1] = Ok(Count { value: 0, share });
    let report = stat(&measurement);
    assert_eq!(member(&report, "instructions", "n"), Some(&CellValue::Count(1)));
    assert_eq!(member(&report, "instructions", "min"), Some(&CellValue::Number(100.0)));
}

#[test]
fn derived_metrics_are_computed_for_each_run() {
    let count = |name, values: &[u64]| {
        (metric(name, MetricUnit::Count, MetricOrigin::Rusage), some(values))
    };
    let report = stat(&measured(&[&[
        wall(&[1_000_000_000, 2_000_000_000, 1_000_000_000]),
        count("minflt", &[1024, 2048, 0]),
        count("majflt", &[0, 0, 0]),
        (
            metric("peak_res", MetricUnit::Bytes, MetricOrigin::Rusage),
            some(&[4 << 20, 8 << 20, 1 << 20]),
        ),
        (metric("tlb_shootdowns", MetricUnit::Count, MetricOrigin::Machine), some(&[10, 40, 10])),
        count("instructions", &[4, 4, 4]),
        count("cycles", &[2, 0, 8]),
    ]]));
    let values = |name| member(&report, name, "values").cloned();
    let numbers = |numbers: &[f64]| {
        Some(CellValue::List(numbers.iter().map(|n| CellValue::Number(*n)).collect()))
    };
    assert_eq!(values("faults_per_mib"), numbers(&[256.0, 256.0, 0.0]));
    assert_eq!(member(&report, "faults_per_s", "max"), Some(&CellValue::Rate(1024.0)));
    assert_eq!(member(&report, "tlb_shootdowns_per_s", "max"), Some(&CellValue::Rate(20.0)));
    assert_eq!(member(&report, "tlb_shootdowns_per_s", "scope"), Some(&CellValue::text("machine")));
    // A run without cycles has no instructions per cycle.
    assert_eq!(member(&report, "ipc", "n"), Some(&CellValue::Count(2)));
    assert_eq!(member(&report, "ipc", "max"), Some(&CellValue::Number(2.0)));
}

#[test]
fn runs_that_stand_out_drift_or_fail_are_doubted() {
    let of = |walls: &[u64]| doubts(&stat(&measured(&[&[wall(walls)]])));
    assert_eq!(of(&[100, 101, 99, 100, 102, 98, 100]), [""; 0]);
    assert_eq!(of(&[300, 101, 99, 100, 102, 98, 100]), ["cold-first-run"]);
    assert_eq!(of(&[100, 101, 99, 300, 102, 98, 100]), ["outliers"]);
    assert_eq!(of(&[100, 110, 121, 130, 142, 150, 161, 170, 181, 190]), ["drift"]);
    let mut failing = measured(&[&[wall(&[1, 1, 1])]]);
    failing.arms[0].runs[1].ending = ProgramEnding::Exited(3);
    failing.arms[0].runs[2].ending = ProgramEnding::Killed(9);
    assert_eq!(doubts(&stat(&failing)), ["failed-runs"]);
    assert_eq!(exit_status(&failing), 3, "the first that is not 0");
    assert_eq!(at(&stat(&failing), "", "exit_status"), &CellValue::Count(3));
}

#[test]
fn a_difference_is_reported_only_if_the_interval_excludes_one() {
    let verdict = |one: &[u64], other: &[u64]| {
        let report = stat(&measured(&[&[wall(one)], &[wall(other)]]));
        let CellValue::Text(verdict) = at(&report, "ratio", "verdict").clone() else {
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
    let CellValue::Number(ratio) = at(&report, "ratio", "median") else { panic!("a number") };
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
        (CellValue::text("A"), CellValue::text("B"))
    );
    assert_eq!(column("max").value(1), CellValue::Seconds(4));
}
