//! Conversion of a sweep to OTLP (JSON encoding), which is pushed to an OpenTelemetry collector
//! over HTTP.

mod endpoint;

use serde_json::{Value, json};

use crate::exporter::ExportedSweep;
use crate::exposition::{MetricFamily, MetricKind, MetricSample, MetricValue};
pub use endpoint::{OtlpEndpoint, OtlpError};

/// Converts a sweep to an `ExportMetricsServiceRequest`. Counters begin at `started_unix_ns`.
pub fn otlp_json(sweep: &ExportedSweep, started_unix_ns: u64) -> Value {
    let families = sweep.families.iter().filter(|it| !it.samples.is_empty());
    let metrics: Vec<Value> =
        families.map(|it| metric(it, sweep.unix_ns, started_unix_ns)).collect();
    json!({"resourceMetrics": [{
        "resource": {"attributes": [attribute("service.name", "pagewise")]},
        "scopeMetrics": [{
            "scope": {"name": "pagewise", "version": env!("CARGO_PKG_VERSION")},
            "metrics": metrics,
        }],
    }]})
}

fn metric(family: &MetricFamily, unix_ns: u64, started_unix_ns: u64) -> Value {
    let points: Vec<Value> =
        family.samples.iter().map(|it| point(it, family.kind, unix_ns, started_unix_ns)).collect();
    let data = match family.kind {
        MetricKind::Gauge => json!({"dataPoints": points}),
        // 2 is the value of AGGREGATION_TEMPORALITY_CUMULATIVE.
        MetricKind::Counter => {
            json!({"dataPoints": points, "aggregationTemporality": 2, "isMonotonic": true})
        }
    };
    let key = if family.kind == MetricKind::Counter { "sum" } else { "gauge" };
    json!({"name": family.name, "description": family.help, "unit": unit(family.unit), key: data})
}

/// Converts a unit to the Unified Code for Units of Measure, which OTLP requires.
fn unit(unit: &str) -> &str {
    match unit {
        "bytes" => "By",
        "seconds" => "s",
        "bytes_per_second" => "By/s",
        _ => "1",
    }
}

fn point(sample: &MetricSample, kind: MetricKind, unix_ns: u64, started_unix_ns: u64) -> Value {
    let extra = sample.extra.iter().map(|(name, value)| (*name, value.as_ref()));
    let attributes: Vec<Value> =
        sample.labels.pairs().chain(extra).map(|(name, value)| attribute(name, value)).collect();
    // In OTLP's JSON encoding, 64-bit integers are strings.
    let mut point = json!({"attributes": attributes, "timeUnixNano": unix_ns.to_string()});
    match sample.value {
        MetricValue::Whole(value) => point["asInt"] = value.min(i64::MAX as u64).to_string().into(),
        MetricValue::Real(value) if value.is_finite() => point["asDouble"] = value.into(),
        MetricValue::Real(value) => {
            let text = if value.is_nan() {
                "NaN"
            } else if value > 0.0 {
                "Infinity"
            } else {
                "-Infinity"
            };
            point["asDouble"] = text.into();
        }
    }
    if kind == MetricKind::Counter {
        point["startTimeUnixNano"] = started_unix_ns.to_string().into();
    }
    point
}

fn attribute(name: &str, value: &str) -> Value {
    json!({"key": name, "value": {"stringValue": value}})
}
