//! Metrics for Prometheus: sweeps over all processes and cgroups as OpenMetrics text, served over
//! HTTP, written to a file or pushed by OTLP.
//!
//! A sweep reads the memory use of all processes and cgroups once. A scrape never starts a sweep:
//! it is answered with the text of the last sweep.
#![forbid(unsafe_code)]

mod bundle;
mod container;
mod container_api;
mod diagnosis;
mod exporter;
mod exposition;
mod families;
mod groups;
mod headroom;
mod http;
mod limits;
mod otlp;
mod textfile;

pub use bundle::anonymous;
pub use container::{CgroupOwner, ContainerSources};
pub use diagnosis::{
    ExportedDiagnosis, ExportedFinding, ExportedFreeMemory, ExportedHeadroom, FindingObject,
};
pub use exporter::{ExportedSweep, Exporter, ExporterOptions, scrape_tail};
pub use exposition::{
    ExpositionFormat, LabelSet, MetricFamily, MetricKind, MetricSample, MetricValue, write_end,
    write_families,
};
pub use families::metric_catalogue;
pub use groups::{GroupAssignment, GroupConfigError, GroupName, GroupRules, TemplateError};
pub use http::{PublishedScrape, ScrapeServer, WebConfig, WebConfigError};
pub use limits::SeriesLimits;
pub use otlp::{OtlpEndpoint, OtlpError, otlp_json};
pub use textfile::write_textfile;
