//! Reports of OOM kills in the kernel log, for the recording: the log loses them after some time,
//! and when the machine restarts.

use pagewise_analysis::oom::past::explanation;
use pagewise_model::Name;
use pagewise_model::oom::OomReport;
use pagewise_model::sweep::SweepEventKind;
use pagewise_proc::{ProcRoot, kernel_log, oom_log};
use pagewise_view::text::inline;

/// Reports that one sweep adds at most. The kernel prints ten in five seconds.
const MAX_REPORTS: usize = 20;

/// Remembers which reports the recording has.
#[derive(Debug)]
pub(super) struct OomReports {
    /// Time of the last report, in seconds since boot by the clock of the log.
    last_seconds: f64,
}

impl OomReports {
    /// Skips the reports that the log already has.
    pub(super) fn new(root: &ProcRoot) -> OomReports {
        let mut reports = OomReports { last_seconds: f64::MIN };
        reports.take(root);
        reports
    }

    /// The events of reports since the last call; none if the log cannot be read.
    pub(super) fn take(&mut self, root: &ProcRoot) -> Vec<SweepEventKind> {
        let log = kernel_log::of(root).unwrap_or_default();
        let mut reports = oom_log::parse(&log);
        reports.retain(|it| it.at_seconds.is_some_and(|at| at > self.last_seconds));
        let times = reports.iter().filter_map(|it| it.at_seconds);
        self.last_seconds = times.fold(self.last_seconds, f64::max);
        let first = reports.len().saturating_sub(MAX_REPORTS);
        reports[first..].iter().map(event).collect()
    }
}

fn event(report: &OomReport) -> SweepEventKind {
    let words = inline(&explanation(report, &[]));
    SweepEventKind::OomReport { explanation: Name::new(words.as_bytes()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_report_is_taken_once() {
        let folder = tempfile::tempdir().unwrap();
        let report = |at, pid| {
            format!(
                "[  {at}.000000] a invoked oom-killer: gfp_mask=0xcc0(GFP_KERNEL), order=0, \
                 oom_score_adj=0\n[  {at}.000001] Out of memory: Killed process {pid} (leak) \
                 total-vm:9kB, anon-rss:8kB, file-rss:0kB, shmem-rss:0kB\n"
            )
        };
        let write = |text: &str| std::fs::write(folder.path().join("kmsg"), text).unwrap();
        let root = ProcRoot::at(folder.path());
        write(&report(5, 11));
        let mut reports = OomReports::new(&root);
        assert_eq!(reports.take(&root), []);
        write(&[report(5, 11), report(6, 12)].concat());
        let [SweepEventKind::OomReport { explanation }] = &reports.take(&root)[..] else {
            panic!("one report is new")
        };
        let words = explanation.escaped();
        assert!(words.contains("The kernel killed leak (12)"), "{words}");
        assert_eq!(reports.take(&root), []);
    }
}
