//! The page of a diagnosis: its report, followed by the reports of the instruments with their
//! pictures.

use pagewise_model::evidence::Evidence;
use pagewise_model::report::{Report, ReportBlock};

use super::ranking::Diagnosis;
use super::report::{DiagnosisOptions, report};
use crate::causes::latest;
use crate::explain::{ExplainOptions, explain};
use crate::faults::{FaultOptions, faults};
use crate::heap_scan::{HeapScanOptions, heap_scan};
use crate::shootdowns::{ShootdownOptions, shootdowns};
use crate::thp::thp;

/// Maximum number of rows in each table of an instrument.
const ROWS: Option<usize> = Some(20);

/// Returns the report of a diagnosis, followed by the report of each instrument that ran as a
/// separate part.
pub fn page(evidence: &Evidence, diagnosis: &Diagnosis) -> Report {
    let mut page = report(evidence, diagnosis, &DiagnosisOptions { all: true });
    let now = latest(evidence);
    let options = ExplainOptions { address_map: true, ..ExplainOptions::default() };
    let mut part = |title: &'static str, report: Option<Report>| {
        if let Some(report) = report {
            page.blocks.push(ReportBlock::Part(title.into()));
            page.blocks.extend(report.blocks);
        }
    };
    part("Memory at the end", Some(explain(now, &options)));
    let recording = evidence.faults.value();
    part("Page faults", recording.map(|it| faults(it, &FaultOptions { limit: ROWS })));
    let recording = evidence.shootdowns.value();
    part("TLB shootdowns", recording.map(|it| shootdowns(it, &ShootdownOptions { limit: ROWS })));
    let huge = evidence.huge_pages.value();
    part("Huge pages", huge.map(|it| thp(now, &Ok(it.clone()))));
    let scan = evidence.scan.value();
    part("Heap", scan.map(|it| heap_scan(it, None, &HeapScanOptions { limit: ROWS })));
    page
}
