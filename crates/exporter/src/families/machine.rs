//! Metrics of the machine: meminfo, vmstat, pressure.

use pagewise_model::Reading;
use pagewise_model::fragmentation::BootCounter;
use pagewise_model::settings::PressureFigures;
use pagewise_model::sweep::Sweep;

use super::{RowMetric, RowValues, counter, empty, gauge, of_one};
use crate::exposition::{MetricFamily, MetricValue, label_text};

const METRICS: [RowMetric<Sweep>; 11] = [
    gauge("pagewise_meminfo_bytes", "bytes", "Sizes of /proc/meminfo.", |it, out| {
        for line in lines(&it.machine.meminfo).filter(|it| !is_huge_page_count(it)) {
            out.each("field", label_text(line.name.as_bytes()), Some(line.count));
        }
    }),
    gauge(
        "pagewise_hugetlb_pages",
        "",
        "Reserved huge pages (hugetlb) by state, as in /proc/meminfo.",
        |it, out| {
            for line in lines(&it.machine.meminfo).filter(|it| is_huge_page_count(it)) {
                out.each("field", label_text(line.name.as_bytes()), Some(line.count));
            }
        },
    ),
    counter(
        "pagewise_vmstat_events",
        "",
        "Counters of /proc/vmstat for paging, reclaim, swap and OOM kills.",
        |it, out| {
            for line in lines(&it.machine.vmstat) {
                out.each("counter", label_text(line.name.as_bytes()), Some(line.count));
            }
        },
    ),
    counter(
        "pagewise_memory_stall_seconds",
        "seconds",
        "Time in which tasks waited for memory (PSI): at least one task, or all.",
        |it, out| stalls(out, &it.machine.memory_pressure),
    ),
    gauge(
        "pagewise_memory_pressure_ratio",
        "ratio",
        "Share of the last 10 seconds in which tasks waited for memory (PSI), from 0 to 1.",
        |it, out| averages(out, &it.machine.memory_pressure),
    ),
    counter(
        "pagewise_io_stall_seconds",
        "seconds",
        "Time in which tasks waited for I/O (PSI): at least one task, or all.",
        |it, out| stalls(out, &it.machine.io_pressure),
    ),
    gauge(
        "pagewise_io_pressure_ratio",
        "ratio",
        "Share of the last 10 seconds in which tasks waited for I/O (PSI), from 0 to 1.",
        |it, out| averages(out, &it.machine.io_pressure),
    ),
    counter("pagewise_forks", "", "Processes and threads created since boot.", |it, out| {
        out.one(it.machine.forks.as_ref().ok().copied());
    }),
    gauge(
        "pagewise_processes",
        "",
        "Number of processes that have memory of their own, zombies included.",
        |it, out| out.one(Some(it.processes.len() as u64)),
    ),
    gauge("pagewise_kernel_threads", "", "Number of kernel threads.", |it, out| {
        out.one(Some(it.kernel_threads));
    }),
    gauge(
        "pagewise_hidden_processes",
        "",
        "Number of processes that the exporter may not read.",
        |it, out| out.one(Some(it.hidden)),
    ),
];

fn lines(list: &Reading<Vec<BootCounter>>) -> impl Iterator<Item = &BootCounter> {
    list.iter().flatten()
}

/// True for lines of meminfo that are numbers of pages; all other lines are sizes.
fn is_huge_page_count(line: &BootCounter) -> bool {
    line.name.as_bytes().starts_with(b"HugePages_")
}

pub(super) fn stalls(out: &mut RowValues, pressure: &Reading<PressureFigures>) {
    let pressure = pressure.as_ref().ok();
    out.each("tasks", "some", pressure.map(|it| microseconds(it.some_us)));
    out.each("tasks", "all", pressure.map(|it| microseconds(it.full_us)));
}

fn averages(out: &mut RowValues, pressure: &Reading<PressureFigures>) {
    let average = pressure.as_ref().ok().map(|it| it.avg10);
    out.each("tasks", "some", average.map(|it| ratio(it.some)));
    out.each("tasks", "all", average.map(|it| ratio(it.full)));
}

fn microseconds(value: u64) -> MetricValue {
    MetricValue::seconds(value.saturating_mul(1000))
}

/// Converts hundredths of a percent to a ratio from 0 to 1.
#[expect(clippy::cast_precision_loss, reason = "at most 10,000")]
fn ratio(hundredths: u64) -> f64 {
    hundredths as f64 / 10_000.0
}

/// Computes the families of the machine.
pub(crate) fn machine_families(sweep: &Sweep) -> Vec<MetricFamily> {
    of_one(&METRICS, sweep)
}

/// The families of the machine, without series.
pub(super) fn catalogue() -> Vec<MetricFamily> {
    empty(&METRICS)
}
