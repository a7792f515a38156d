//! Conversion of a sweep to metric families.
//!
//! Each metric is a row of a table: its name, help and unit, and a function that computes its
//! values from a row of data. An absent value creates no series.

mod cgroups;
mod diagnosis;
mod groups;
mod machine;
mod ourselves;

use std::borrow::Cow;
use std::sync::Arc;

use crate::exposition::{LabelSet, MetricFamily, MetricKind, MetricSample, MetricValue};

pub(crate) use cgroups::cgroup_families;
pub(crate) use diagnosis::diagnosis_families;
pub(crate) use groups::{GroupTotals, group_families};
pub(crate) use machine::machine_families;
pub(crate) use ourselves::{SweepCounts, sweep_families, tail_families};

/// One metric, whose values are computed from a data row of type `R`.
pub(crate) struct RowMetric<R> {
    name: &'static str,
    unit: &'static str,
    kind: MetricKind,
    help: &'static str,
    values: fn(&R, &mut RowValues),
}

const fn gauge<R>(
    name: &'static str,
    unit: &'static str,
    help: &'static str,
    values: fn(&R, &mut RowValues),
) -> RowMetric<R> {
    RowMetric { name, unit, kind: MetricKind::Gauge, help, values }
}

const fn counter<R>(
    name: &'static str,
    unit: &'static str,
    help: &'static str,
    values: fn(&R, &mut RowValues),
) -> RowMetric<R> {
    RowMetric { name, unit, kind: MetricKind::Counter, help, values }
}

/// Values of one metric for one data row, each with an optional label.
#[derive(Default)]
pub(crate) struct RowValues(Vec<(Option<ExtraLabel>, MetricValue)>);

type ExtraLabel = (&'static str, Cow<'static, str>);

impl RowValues {
    /// Adds the only value of a metric; adds nothing if the value is absent.
    fn one(&mut self, value: Option<impl Into<MetricValue>>) {
        self.0.extend(value.map(|value| (None, value.into())));
    }

    /// Adds one of several values of a metric, which a label distinguishes.
    fn each(
        &mut self,
        label: &'static str,
        of: impl Into<Cow<'static, str>>,
        value: Option<impl Into<MetricValue>>,
    ) {
        self.0.extend(value.map(|value| (Some((label, of.into())), value.into())));
    }
}

/// The families of a table of metrics, without series.
pub(crate) fn empty<R>(metrics: &[RowMetric<R>]) -> Vec<MetricFamily> {
    let family = |it: &RowMetric<R>| MetricFamily {
        name: it.name,
        help: it.help,
        unit: it.unit,
        kind: it.kind,
        samples: Vec::new(),
    };
    metrics.iter().map(family).collect()
}

/// All families that the exporter can have, without series.
pub fn metric_catalogue() -> Vec<MetricFamily> {
    let mut families = machine::catalogue();
    families.extend(groups::catalogue());
    families.extend(cgroups::catalogue());
    families.extend(diagnosis::catalogue());
    families.extend(ourselves::catalogue());
    families
}

/// Values of a data row, one element for each metric.
pub(crate) fn values<R>(metrics: &[RowMetric<R>], row: &R) -> Vec<RowValues> {
    let each = metrics.iter().map(|metric| {
        let mut values = RowValues::default();
        (metric.values)(row, &mut values);
        values
    });
    each.collect()
}

/// Number of series of these values.
pub(crate) fn series(values: &[RowValues]) -> usize {
    values.iter().map(|it| it.0.len()).sum()
}

/// Adds the values of a data row to the families of its table.
pub(crate) fn append(
    families: &mut [MetricFamily],
    labels: &Arc<LabelSet>,
    values: Vec<RowValues>,
) {
    for (family, values) in families.iter_mut().zip(values) {
        let samples = values.0.into_iter();
        family.samples.extend(samples.map(|(extra, value)| MetricSample {
            labels: Arc::clone(labels),
            extra,
            value,
        }));
    }
}

/// The families of a table for its only data row, which has no labels.
pub(crate) fn of_one<R>(metrics: &[RowMetric<R>], row: &R) -> Vec<MetricFamily> {
    let mut families = empty(metrics);
    append(&mut families, &Arc::default(), values(metrics, row));
    families
}
