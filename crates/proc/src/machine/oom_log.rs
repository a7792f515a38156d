//! Reports of the OOM killer in a kernel log, of Linux 5.10 and newer.
//!
//! A log is hostile: lines are missing, cut off, interleaved with other messages, and contain names
//! that processes chose. A line that does not read as it should is counted and left out.

mod lines_of_report;

use pagewise_model::oom::OomReport;
use pagewise_model::{Name, PageSize, Reading};

use crate::ProcRoot;
use crate::kernel_log::{self, split_line};
use crate::text::lines;

/// Reports that are kept: the last ones of a longer log.
const MAX_REPORTS: usize = 256;
/// Rows of a table that are kept.
const MAX_ROWS: usize = 1 << 16;
/// Lines of counters that are kept.
const MAX_COUNTERS: usize = 512;

/// Parts of a report. They determine the meaning of lines without a label.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum ReportSection {
    #[default]
    Beginning,
    CgroupCounters,
    Table {
        has_kinds: bool,
    },
    Ended,
}

/// A report that is being read.
#[derive(Debug, Default)]
struct OpenReport {
    report: OomReport,
    section: ReportSection,
    /// Counters of the machine in pages.
    pages: Vec<(Name, u64)>,
    /// The heading of the table was seen.
    has_heading: bool,
}

/// Reads all reports in the log of a machine, in order of time. Those of the running kernel have an
/// age.
///
/// # Errors
/// Those of [`kernel_log::of`].
pub fn of(root: &ProcRoot) -> Reading<Vec<OomReport>> {
    let mut reports = parse(&kernel_log::of(root)?);
    if root.is_live() {
        // The clock of the log stands still while the machine is suspended, as this one does.
        let now = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
        let now = now.tv_sec as f64 + now.tv_nsec as f64 / 1e9;
        for report in &mut reports {
            report.age_seconds = report.at_seconds.map(|at| (now - at).max(0.0));
        }
    }
    Ok(reports)
}

/// Reads all reports of a log, in order of time.
pub fn parse(log: &[u8]) -> Vec<OomReport> {
    let mut parser = LogParser::default();
    for (_, line) in lines(log) {
        let (time, text) = split_line(line);
        parser.line(time, text);
    }
    parser.finish()
}

#[derive(Debug, Default)]
struct LogParser {
    done: Vec<OomReport>,
    open: Option<OpenReport>,
}

impl LogParser {
    fn line(&mut self, time: Option<f64>, text: &[u8]) {
        if lines_of_report::reaper(
            text,
            self.open.as_mut().map(|it| &mut it.report),
            &mut self.done,
        ) {
            return;
        }
        if let Some(asker) = lines_of_report::asker(text) {
            self.close();
            let report = OomReport { at_seconds: time, asker: Some(asker), ..OomReport::default() };
            self.open = Some(OpenReport { report, ..OpenReport::default() });
            return;
        }
        if self.open.as_ref().is_some_and(|open| open.is_followed_by(text)) {
            self.close();
        }
        match &mut self.open {
            Some(open) => open.line(text),
            None if lines_of_report::is_part(text) => {
                let report =
                    OomReport { at_seconds: time, truncated: true, ..OomReport::default() };
                let mut open = OpenReport { report, ..OpenReport::default() };
                open.line(text);
                self.open = Some(open);
            }
            None => {}
        }
    }

    fn close(&mut self) {
        if let Some(open) = self.open.take() {
            if self.done.len() >= MAX_REPORTS {
                self.done.remove(0);
            }
            self.done.push(open.finish());
        }
    }

    fn finish(mut self) -> Vec<OomReport> {
        self.close();
        self.done
    }
}

impl OpenReport {
    /// True if the line is of another kill, whose report the kernel did not print: it prints at
    /// most ten in five seconds, but a line for each kill. If a whole cgroup is killed, all lines
    /// are of one report.
    fn is_followed_by(&self, text: &[u8]) -> bool {
        !self.report.kills_all && !self.report.victims.is_empty() && lines_of_report::is_part(text)
    }

    fn finish(mut self) -> OomReport {
        let report = &mut self.report;
        let has_ended = self.section == ReportSection::Ended || report.no_victim;
        report.truncated |= !has_ended;
        report.page_size = report.page_size.or_else(|| lines_of_report::page_size(report));
        if let Some(size) = report.page_size {
            lines_of_report::add_pages(report, &self.pages, size);
        }
        self.report
    }

    fn add_page_counter(&mut self, name: &[u8], pages: u64) {
        if self.pages.len() < MAX_COUNTERS {
            self.pages.push((Name::new(name), pages));
        }
    }

    /// Notes the page size that a counter in pages and in bytes shows.
    fn compare(&mut self, bytes: u64, name: &str) {
        let pages = self.pages.iter().find(|(it, _)| it.as_bytes() == name.as_bytes());
        if let Some((_, pages)) = pages.filter(|(_, pages)| *pages > 0)
            && bytes.is_multiple_of(*pages)
        {
            self.report.page_size = PageSize::new(bytes / pages);
        }
    }
}

#[cfg(test)]
mod tests;
