//! Converts consecutive sweeps to the text of scrapes.

use pagewise_model::sweep::Sweep;

use crate::container::{ContainerNameTable, ContainerSources};
use crate::diagnosis::ExportedDiagnosis;
use crate::exposition::{ExpositionFormat, MetricFamily, write_end, write_families};
use crate::families::{
    GroupTotals, SweepCounts, cgroup_families, diagnosis_families, group_families,
    machine_families, sweep_families, tail_families,
};
use crate::groups::{GroupAssignment, GroupRules};
use crate::limits::{SeriesBudget, SeriesLimits};

/// Configuration of an exporter.
#[derive(Clone, Debug)]
pub struct ExporterOptions {
    /// Rules for groups of processes.
    pub rules: GroupRules,
    /// Limits of the number of series.
    pub limits: SeriesLimits,
    /// Sources of container names.
    pub containers: ContainerSources,
}

/// Converts consecutive sweeps to metrics. It keeps the state that counters need.
#[derive(Debug)]
pub struct Exporter {
    options: ExporterOptions,
    names: ContainerNameTable,
    assignment: GroupAssignment,
    totals: GroupTotals,
    counts: SweepCounts,
    previous: Option<Sweep>,
    diagnosis: Option<ExportedDiagnosis>,
}

/// The metrics of one sweep.
#[derive(Clone, Debug, Default)]
pub struct ExportedSweep {
    /// Metric families, without those that are computed at each scrape.
    pub families: Vec<MetricFamily>,
    /// Start of the sweep in nanoseconds since 1970.
    pub unix_ns: u64,
    /// Start of the sweep in nanoseconds since boot.
    pub boot_ns: u64,
}

impl Exporter {
    /// Creates an exporter, before the first sweep.
    pub fn new(options: ExporterOptions) -> Exporter {
        let mut names = ContainerNameTable::default();
        names.refresh(&options.containers);
        let max_series = options.limits.max_series as u64;
        Exporter {
            options,
            names,
            assignment: GroupAssignment::default(),
            totals: GroupTotals::default(),
            counts: SweepCounts { max_series, ..SweepCounts::default() },
            previous: None,
            diagnosis: None,
        }
    }

    /// Sets the results of the slow cycle: the account of the machine's RAM, and findings. All
    /// later sweeps export these results.
    pub fn set_diagnosis(&mut self, diagnosis: ExportedDiagnosis) {
        self.diagnosis = Some(diagnosis);
    }

    /// Converts the next sweep to metrics.
    pub fn export(&mut self, sweep: Sweep) -> ExportedSweep {
        self.counts.sweeps += 1;
        self.counts.cpu_ns = self.counts.cpu_ns.saturating_add(sweep.cost.cpu_ns);
        self.counts.vanished += sweep.vanished;
        let limits = self.options.limits;
        let mut families = machine_families(&sweep);
        let fixed = count(&families) + count(&sweep_families(&sweep, self.counts)) + TAIL_SERIES;
        let left = limits.max_series.saturating_sub(fixed);
        // The diagnosis gets at most a quarter of the remaining series; groups and cgroups get all
        // others.
        let (diagnosis, dropped) = diagnosis_families(self.diagnosis.as_ref(), left / 4);
        self.counts.dropped_findings = dropped;
        let left = left.saturating_sub(count(&diagnosis));
        families.extend(diagnosis);

        // Groups get at most half of the remaining series; cgroups get the other half and those
        // that groups leave.
        let mut budget = SeriesBudget::new(left / 2);
        self.assignment = self.options.rules.assign(&sweep, &self.assignment);
        let groups = group_families(
            &sweep,
            self.previous.as_ref(),
            &self.assignment,
            &mut self.totals,
            limits.max_groups,
            &mut budget,
        );
        self.counts.dropped_group_series = budget.dropped;
        self.counts.merged_groups = groups.merged;

        let mut budget = SeriesBudget::new(left - left / 2 + budget.left());
        let cgroups = cgroup_families(&sweep, &self.names, limits.max_cgroups, &mut budget);
        self.counts.dropped_cgroup_series = budget.dropped;
        self.counts.left_out_cgroups = cgroups.left_out;
        if cgroups.has_unnamed && !self.options.containers.is_empty() {
            self.names.refresh(&self.options.containers);
        }

        families.extend(groups.families);
        families.extend(cgroups.families);
        families.extend(sweep_families(&sweep, self.counts));
        let (unix_ns, boot_ns) = (sweep.time.unix_ns, sweep.time.boot_ns);
        self.previous = Some(sweep);
        ExportedSweep { families, unix_ns, boot_ns }
    }
}

/// Number of series that are computed at each scrape.
const TAIL_SERIES: usize = 2;

fn count(families: &[MetricFamily]) -> usize {
    families.iter().map(|it| it.samples.len()).sum()
}

impl ExportedSweep {
    /// Text of all families, without the end mark.
    pub fn text(&self, format: ExpositionFormat) -> String {
        let mut text = String::with_capacity(count(&self.families) * 96);
        write_families(&mut text, &self.families, format);
        text.shrink_to_fit();
        text
    }

    /// Text of a complete scrape.
    pub fn scrape(&self, format: ExpositionFormat, age_ns: u64, scrapes: u64) -> String {
        let mut text = self.text(format);
        text.push_str(&scrape_tail(format, age_ns, scrapes));
        text
    }
}

/// Text at the end of each scrape: the metrics that are computed at each scrape, and the end mark.
pub fn scrape_tail(format: ExpositionFormat, age_ns: u64, scrapes: u64) -> String {
    let mut text = String::new();
    write_families(&mut text, &tail_families(age_ns, scrapes), format);
    write_end(&mut text, format);
    text
}
