//! Metrics of the exporter itself: its sweeps, its limits, and its scrapes.

use std::sync::Arc;

use pagewise_model::sweep::{Sweep, SweepCost, SweepTime};

use super::{RowMetric, counter, empty, gauge, of_one};
use crate::exposition::{LabelSet, MetricFamily, MetricKind, MetricValue};

/// Counts of the exporter since its start, and limits.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct SweepCounts {
    /// Number of sweeps.
    pub(crate) sweeps: u64,
    /// CPU time of the sweeps and of their conversion to metrics, in nanoseconds.
    pub(crate) cpu_ns: u64,
    /// Number of processes that ended while they were read.
    pub(crate) vanished: u64,
    /// Number of series of groups and cgroups that the last sweep lacks because of the limits.
    pub(crate) dropped_group_series: u64,
    pub(crate) dropped_cgroup_series: u64,
    /// Number of findings without series in the last sweep.
    pub(crate) dropped_findings: u64,
    /// Number of groups that the last sweep merged into `other`.
    pub(crate) merged_groups: u64,
    /// Number of cgroups without series in the last sweep.
    pub(crate) left_out_cgroups: u64,
    /// Maximum number of series.
    pub(crate) max_series: u64,
}

/// Data row: the last sweep and the counts.
#[derive(Clone, Copy, Debug)]
struct OurRow {
    time: SweepTime,
    cost: SweepCost,
    counts: SweepCounts,
}

const METRICS: [RowMetric<OurRow>; 13] = [
    gauge(
        "pagewise_sweep_timestamp_seconds",
        "seconds",
        "Start of the last sweep, in seconds since 1970.",
        |it, out| out.one(Some(MetricValue::seconds(it.time.unix_ns))),
    ),
    gauge(
        "pagewise_last_sweep_duration_seconds",
        "seconds",
        "Duration of the last sweep.",
        |it, out| out.one(Some(MetricValue::seconds(it.cost.took_ns))),
    ),
    gauge(
        "pagewise_last_sweep_cpu_seconds",
        "seconds",
        "CPU time of the last sweep.",
        |it, out| out.one(Some(MetricValue::seconds(it.cost.cpu_ns))),
    ),
    gauge(
        "pagewise_last_sweep_longest_hold_seconds",
        "seconds",
        "Longest system call of the last sweep that may have held the mmap lock of a process.",
        |it, out| out.one(Some(MetricValue::seconds(it.cost.longest_hold_ns))),
    ),
    gauge(
        "pagewise_last_sweep_pages_read_processes",
        "",
        "Number of processes whose pages the last sweep read.",
        |it, out| out.one(Some(MetricValue::Whole(it.cost.pages_read))),
    ),
    gauge(
        "pagewise_last_sweep_postponed_processes",
        "",
        "Number of processes whose pages changed and were not read, because of the budget.",
        |it, out| out.one(Some(MetricValue::Whole(it.cost.postponed))),
    ),
    counter("pagewise_sweeps", "", "Number of sweeps.", |it, out| {
        out.one(Some(MetricValue::Whole(it.counts.sweeps)))
    }),
    counter("pagewise_sweep_cpu_seconds", "seconds", "CPU time of all sweeps.", |it, out| {
        out.one(Some(MetricValue::seconds(it.counts.cpu_ns)))
    }),
    counter(
        "pagewise_vanished_processes",
        "",
        "Number of processes that ended while a sweep read them.",
        |it, out| out.one(Some(MetricValue::Whole(it.counts.vanished))),
    ),
    gauge(
        "pagewise_series_limit",
        "",
        "Limit of the number of series (--max-series).",
        |it, out| out.one(Some(MetricValue::Whole(it.counts.max_series))),
    ),
    gauge(
        "pagewise_merged_groups",
        "",
        "Number of groups that are summed as the group other.",
        |it, out| out.one(Some(MetricValue::Whole(it.counts.merged_groups))),
    ),
    gauge(
        "pagewise_left_out_cgroups",
        "",
        "Number of cgroups that have no series because of the limits.",
        |it, out| out.one(Some(MetricValue::Whole(it.counts.left_out_cgroups))),
    ),
    gauge(
        "pagewise_dropped_series",
        "",
        "Number of series that were left out of the last sweep because of the limits.",
        |it, out| {
            out.each("of", "groups", Some(it.counts.dropped_group_series));
            out.each("of", "cgroups", Some(it.counts.dropped_cgroup_series));
            out.each("of", "findings", Some(it.counts.dropped_findings));
        },
    ),
];

/// Computes the families of the last sweep's cost and of the limits.
pub(crate) fn sweep_families(sweep: &Sweep, counts: SweepCounts) -> Vec<MetricFamily> {
    let row = OurRow { time: sweep.time, cost: sweep.cost, counts };
    let mut families = of_one(&METRICS, &row);
    let mut version = version_family();
    let labels = LabelSet::new().with("version", env!("CARGO_PKG_VERSION").as_bytes());
    version.push(&Arc::new(labels), 1);
    families.push(version);
    families
}

/// Computes the families that change with each scrape.
pub(crate) fn tail_families(age_ns: u64, scrapes: u64) -> Vec<MetricFamily> {
    let mut age = family(
        "pagewise_sweep_age_seconds",
        "seconds",
        MetricKind::Gauge,
        "Time since the start of the sweep that this scrape shows.",
    );
    age.push(&Arc::default(), MetricValue::seconds(age_ns));
    let mut count = family(
        "pagewise_scrapes",
        "",
        MetricKind::Counter,
        "Number of scrapes, this one included.",
    );
    count.push(&Arc::default(), scrapes);
    vec![age, count]
}

fn family(
    name: &'static str,
    unit: &'static str,
    kind: MetricKind,
    help: &'static str,
) -> MetricFamily {
    MetricFamily { name, help, unit, kind, samples: Vec::new() }
}

fn version_family() -> MetricFamily {
    family("pagewise_build_info", "", MetricKind::Gauge, "Version of pagewise.")
}

/// The families of the exporter itself, without series.
pub(super) fn catalogue() -> Vec<MetricFamily> {
    let mut families = empty(&METRICS);
    families.push(version_family());
    families.extend(tail_families(0, 0));
    families.iter_mut().for_each(|it| it.samples.clear());
    families
}
