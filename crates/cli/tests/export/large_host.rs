//! A host of 10,000 processes and more than 1 TiB, as a tree of files.

use std::fmt::Write;
use std::fs;
use std::path::Path;
use std::time::Duration;

use pagewise_exporter::{
    ContainerSources, ExportedSweep, Exporter, ExporterOptions, ExpositionFormat, GroupRules,
    SeriesLimits,
};
use pagewise_proc::ProcRoot;
use pagewise_sampler::{Sampler, SamplerOptions};

const PROCESSES: u32 = 10_000;
/// A process is large if its PID is a multiple of this number.
const LARGE_EACH: u32 = 1000;
const LARGE_KIB: u64 = 110 << 20;
/// Number of different names of small processes.
const NAMES: u32 = 300;

fn rss_kib(pid: u32) -> u64 {
    if pid.is_multiple_of(LARGE_EACH) { LARGE_KIB } else { 2048 + u64::from(pid % 17) * 1024 }
}

fn name(pid: u32) -> String {
    if pid.is_multiple_of(LARGE_EACH) { "database".into() } else { format!("job{}", pid % NAMES) }
}

/// Writes the files of a process that a sweep reads.
fn add_process(tree: &Path, pid: u32) {
    let folder = tree.join(pid.to_string());
    fs::create_dir(&folder).unwrap();
    let rss = rss_kib(pid);
    let write = |file: &str, text: String| fs::write(folder.join(file), text).unwrap();
    let name = name(pid);
    let pages = rss / 4;
    let others = " 0".repeat(28);
    write(
        "stat",
        format!(
            "{pid} ({name}) S 1 1 1 0 -1 4194304 100 0 1 0 5 5 0 0 20 0 1 0 {pid} {} {pages}{others}\n",
            rss * 2048
        ),
    );
    write(
        "status",
        format!(
            "Name:\t{name}\nUid:\t7\t7\t7\t7\nVmHWM:\t{rss} kB\nVmRSS:\t{rss} kB\nRssAnon:\t{rss} kB\n\
             RssFile:\t0 kB\nRssShmem:\t0 kB\nVmSwap:\t0 kB\nThreads:\t1\n"
        ),
    );
    write(
        "smaps_rollup",
        format!(
            "00400000-7ffc5d1d4000 ---p 00000000 00:00 0  [rollup]\nRss: {rss} kB\nPss: {} kB\n\
             Pss_Anon: {} kB\nPss_File: 0 kB\nPss_Shmem: 0 kB\nPrivate_Clean: 0 kB\n\
             Private_Dirty: 512 kB\nAnonymous: {rss} kB\nSwap: 0 kB\nLocked: 0 kB\n",
            rss / 2,
            rss / 2
        ),
    );
}

/// Returns the sum of a metric over all series of groups, in KiB.
fn sum_kib(exported: &ExportedSweep, metric: &str) -> u64 {
    let text = exported.text(ExpositionFormat::Prometheus);
    let begin = format!("{metric}{{groupname=");
    let values = text.lines().filter(|line| line.starts_with(&begin));
    let bytes: u64 = values.map(|it| it.rsplit(' ').next().unwrap().parse::<u64>().unwrap()).sum();
    bytes >> 10
}

#[test]
fn a_host_of_a_tebibyte_has_bounded_series_and_every_byte_in_a_group() {
    let tree = tempfile::tempdir().unwrap();
    (1..=PROCESSES).for_each(|pid| add_process(tree.path(), pid));
    fs::write(tree.path().join("meminfo"), "MemTotal: 1610612736 kB\n").unwrap();
    let root = ProcRoot::at(tree.path());
    // Processes that have not changed are never read again.
    let options =
        SamplerOptions { held_files: 0, refresh: Duration::MAX, ..SamplerOptions::default() };
    let mut sampler = Sampler::new(&root, options).unwrap();
    let limits = SeriesLimits::default();
    let mut exporter = Exporter::new(ExporterOptions {
        rules: GroupRules::by_comm(),
        limits,
        containers: ContainerSources::default(),
    });
    let first = sampler.sweep().unwrap().sweep;
    let large = u64::from(PROCESSES / LARGE_EACH);
    assert_eq!(first.processes.len(), PROCESSES as usize);
    // The page tables of the large processes would take 7 s of CPU time, so these processes wait
    // for the budget.
    assert_eq!(first.cost.postponed, large);
    assert_eq!(first.cost.pages_read, u64::from(PROCESSES) - large);
    let mut said = String::new();
    writeln!(said, "first sweep {:.0} ms", first.cost.cpu_ns as f64 / 1e6).unwrap();
    let exported = exporter.export(first);

    let all: u64 = (1..=PROCESSES).map(rss_kib).sum();
    assert!(all > 1 << 30, "a tebibyte in KiB");
    let small = |pid: &u32| !pid.is_multiple_of(LARGE_EACH);
    let small_pss: u64 = (1..=PROCESSES).filter(small).map(|pid| rss_kib(pid) / 2).sum();
    assert_eq!(sum_kib(&exported, "pagewise_group_rss_bytes"), all, "RSS does not wait");
    assert_eq!(sum_kib(&exported, "pagewise_group_pss_bytes"), small_pss);
    let text = exported.text(ExpositionFormat::Prometheus);
    let series = text.lines().filter(|line| !line.starts_with('#')).count();
    assert!(series <= limits.max_series, "{series}");
    let without = "pagewise_group_processes_without_pss{groupname=\"database\"}";
    assert!(text.contains(&format!("{without} {large}\n")), "{said}");
    let merged = u64::from(NAMES) + 1 - limits.max_groups as u64;
    assert!(text.contains(&format!("pagewise_merged_groups {merged}\n")), "{said}");

    // No process has changed, so no pages are read. The large processes still wait for the budget.
    let second = sampler.sweep().unwrap().sweep;
    assert_eq!((second.cost.pages_read, second.cost.postponed), (0, large));
    writeln!(said, "next sweep {:.0} ms", second.cost.cpu_ns as f64 / 1e6).unwrap();
    let again = exporter.export(second);
    assert_eq!(sum_kib(&again, "pagewise_group_rss_bytes"), all);
    eprint!("{said}");
}
