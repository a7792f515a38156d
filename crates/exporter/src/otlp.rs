//! Push to an OpenTelemetry collector: OTLP over HTTP, JSON encoding.

use std::io::{self, Read, Write};
use std::net::{TcpStream, ToSocketAddrs};
use std::time::Duration;

use serde_json::{Value, json};

use crate::exporter::ExportedSweep;
use crate::exposition::{MetricFamily, MetricKind, MetricSample, MetricValue};

/// Time to connect, and for each read and write.
const TIMEOUT: Duration = Duration::from_secs(5);
/// Bytes of an answer that are read.
const MAX_ANSWER: u64 = 4 << 10;

/// Address of a collector.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OtlpEndpoint {
    authority: String,
    path: String,
}

/// Why a push failed.
#[derive(Debug, thiserror::Error)]
pub enum OtlpError {
    /// The URL is of a form that is not supported.
    #[error("expected http://HOST:PORT or http://HOST:PORT/PATH, found {0}")]
    Url(String),
    /// The collector cannot be reached.
    #[error("cannot push to {0}: {1}")]
    Io(String, io::Error),
    /// The collector refused the metrics.
    #[error("{0} answered {1}")]
    Refused(String, String),
}

impl OtlpEndpoint {
    /// Reads a URL. Without a path, metrics go to `/v1/metrics`.
    ///
    /// # Errors
    /// [`OtlpError::Url`]. TLS is not supported: a collector on the same host adds it.
    pub fn parse(url: &str) -> Result<OtlpEndpoint, OtlpError> {
        let refuse = || OtlpError::Url(url.into());
        let rest = url.strip_prefix("http://").ok_or_else(refuse)?;
        let (authority, path) = rest.split_once('/').unwrap_or((rest, "v1/metrics"));
        let is_plain = |text: &str| text.bytes().all(|b| b.is_ascii_graphic());
        if authority.is_empty() || authority.contains('@') || !is_plain(rest) {
            return Err(refuse());
        }
        let port = if authority.rsplit_once(':').is_some_and(|(_, it)| it.parse::<u16>().is_ok()) {
            ""
        } else {
            ":4318"
        };
        let path = if path.is_empty() { "v1/metrics" } else { path };
        Ok(OtlpEndpoint { authority: format!("{authority}{port}"), path: format!("/{path}") })
    }

    /// Pushes the metrics of a sweep.
    ///
    /// # Errors
    /// [`OtlpError`] if the collector cannot be reached or refuses the metrics.
    pub fn push(&self, sweep: &ExportedSweep, started_unix_ns: u64) -> Result<(), OtlpError> {
        let body = otlp_json(sweep, started_unix_ns).to_string();
        let answer = self
            .post(body.as_bytes())
            .map_err(|error| OtlpError::Io(self.authority.clone(), error))?;
        let status = answer.lines().next().unwrap_or_default();
        if status.split(' ').nth(1).is_some_and(|code| code.starts_with('2')) {
            return Ok(());
        }
        Err(OtlpError::Refused(self.authority.clone(), status.chars().take(200).collect()))
    }

    fn post(&self, body: &[u8]) -> io::Result<String> {
        let mut last = io::Error::new(io::ErrorKind::NotFound, "the host has no address");
        for address in self.authority.to_socket_addrs()? {
            match TcpStream::connect_timeout(&address, TIMEOUT) {
                Ok(stream) => return self.post_to(stream, body),
                Err(error) => last = error,
            }
        }
        Err(last)
    }

    fn post_to(&self, mut stream: TcpStream, body: &[u8]) -> io::Result<String> {
        stream.set_read_timeout(Some(TIMEOUT))?;
        stream.set_write_timeout(Some(TIMEOUT))?;
        let head = format!(
            "POST {} HTTP/1.1\r\nHost: {}\r\nContent-Type: application/json\r\n\
             Content-Length: {}\r\nConnection: close\r\n\r\n",
            self.path,
            self.authority,
            body.len()
        );
        stream.write_all(head.as_bytes())?;
        stream.write_all(body)?;
        let mut answer = Vec::new();
        stream.take(MAX_ANSWER).read_to_end(&mut answer)?;
        Ok(String::from_utf8_lossy(&answer).into_owned())
    }
}

/// A sweep as `ExportMetricsServiceRequest`. Counters count from `started_unix_ns`.
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
        // 2 is AGGREGATION_TEMPORALITY_CUMULATIVE.
        MetricKind::Counter => {
            json!({"dataPoints": points, "aggregationTemporality": 2, "isMonotonic": true})
        }
    };
    let key = if family.kind == MetricKind::Counter { "sum" } else { "gauge" };
    json!({"name": family.name, "description": family.help, "unit": unit(family.unit), key: data})
}

/// Units of the Unified Code for Units of Measure, which OTLP uses.
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
    // 64-bit integers are strings in this encoding.
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_url_has_a_host_and_defaults_for_port_and_path() {
        let of = |url: &str| OtlpEndpoint::parse(url).ok().map(|it| (it.authority, it.path));
        let pair = |a: &str, b: &str| Some((a.to_owned(), b.to_owned()));
        assert_eq!(of("http://localhost"), pair("localhost:4318", "/v1/metrics"));
        assert_eq!(of("http://[::1]:9/otlp/v1/metrics"), pair("[::1]:9", "/otlp/v1/metrics"));
        for wrong in ["https://x", "x", "http://", "http://a b", "http://user@x", "http://a\r\nb"] {
            assert_eq!(of(wrong), None, "{wrong}");
        }
    }
}
