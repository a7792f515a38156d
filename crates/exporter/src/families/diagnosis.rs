//! Metrics of the slow cycle: the account of the machine's RAM, and findings.

use std::sync::Arc;

use pagewise_model::Bytes;

use super::{RowMetric, empty, gauge, of_one};
use crate::diagnosis::ExportedDiagnosis;
use crate::exposition::{LabelSet, MetricFamily, MetricKind, MetricValue, label_text};

const METRICS: [RowMetric<ExportedDiagnosis>; 6] = [
    gauge(
        "pagewise_diagnosis_timestamp_seconds",
        "seconds",
        "Time of the last diagnosis of the machine and of its account, in seconds since 1970.",
        |it, out| out.one(it.findings.as_ref().map(|_| MetricValue::seconds(it.unix_ns))),
    ),
    gauge(
        "pagewise_account_bytes",
        "bytes",
        "RAM by owner. All owners and the unaccounted memory add up to MemTotal.",
        |it, out| {
            for owner in it.account.iter().flat_map(|it| &it.owners) {
                out.each("owner", label_text(owner.id.as_bytes()), Some(owner.bytes.0));
            }
        },
    ),
    gauge(
        "pagewise_account_unaccounted_bytes",
        "bytes",
        "RAM without an owner; negative if the counters changed while they were read.",
        |it, out| out.one(it.account.as_ref().map(|it| real(it.unaccounted))),
    ),
    gauge(
        "pagewise_headroom_bytes",
        "bytes",
        "Memory that programs can still allocate before reclaim, before swap, and before an OOM kill.",
        |it, out| {
            let size = |it: Option<Bytes>| it.map(|it| it.0);
            out.each("before", "reclaim", size(it.headroom.before_reclaim));
            out.each("before", "swap", size(it.headroom.before_swap));
            out.each("before", "oom", size(it.headroom.before_oom));
        },
    ),
    gauge(
        "pagewise_free_huge_bytes",
        "bytes",
        "Free memory that huge pages can be made of without compaction.",
        |it, out| out.one(it.free.allocatable_huge.map(|it| it.0)),
    ),
    gauge(
        "pagewise_free_unusable_ratio",
        "ratio",
        "Share of the free memory in blocks that are smaller than a huge page, from 0 to 1.",
        |it, out| out.one(it.free.unusable_index),
    ),
];

#[expect(clippy::cast_precision_loss, reason = "sizes below 2^53 bytes")]
fn real(bytes: i64) -> f64 {
    bytes as f64
}

fn finding_family() -> MetricFamily {
    MetricFamily {
        name: "pagewise_finding",
        help: "1 for each sign of trouble that the last diagnosis of the machine found.",
        unit: "",
        kind: MetricKind::Gauge,
        samples: Vec::new(),
    }
}

/// Returns the families of a diagnosis with at most `max_series` series, and the number of findings
/// without series. The list is empty before the first diagnosis.
pub(crate) fn diagnosis_families(
    diagnosis: Option<&ExportedDiagnosis>,
    max_series: usize,
) -> (Vec<MetricFamily>, u64) {
    let Some(diagnosis) = diagnosis else { return (Vec::new(), 0) };
    let mut families = of_one(&METRICS, diagnosis);
    let fixed: usize = families.iter().map(|it| it.samples.len()).sum();
    let found = diagnosis.findings(max_series.saturating_sub(fixed));
    let mut findings = finding_family();
    for finding in &found.kept {
        let labels = LabelSet::new()
            .with("id", finding.id.as_bytes())
            .with("severity", finding.severity.key().as_bytes())
            .with("object", finding.object.as_bytes());
        findings.push(&Arc::new(labels), 1);
    }
    families.push(findings);
    (families, found.dropped)
}

/// The families of a diagnosis, without series.
pub(super) fn catalogue() -> Vec<MetricFamily> {
    let mut families = empty(&METRICS);
    families.push(finding_family());
    families
}
