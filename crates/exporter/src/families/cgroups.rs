//! Metrics of memory cgroups.

use std::cmp::Reverse;
use std::collections::HashMap;
use std::sync::Arc;

use pagewise_model::sweep::{Sweep, SweepCgroup};
use pagewise_model::{Bytes, Reading};

use super::groups::headroom;
use super::machine::stalls;
use super::{RowMetric, RowValues, append, counter, empty, gauge, series, values};
use crate::container::{CgroupOwner, ContainerNameTable};
use crate::exposition::{LabelSet, MetricFamily, MetricKind};
use crate::headroom::Headroom;
use crate::limits::SeriesBudget;

/// The families of all cgroups.
pub(crate) struct CgroupFamilies {
    pub(crate) families: Vec<MetricFamily>,
    /// Number of cgroups without series, because the limits were reached.
    pub(crate) left_out: u64,
    /// True if a cgroup belongs to a container whose names are unknown.
    pub(crate) has_unnamed: bool,
}

/// Data row of a cgroup: the cgroup, and values that depend on other values of the sweep.
#[derive(Clone, Debug)]
struct CgroupRow {
    cgroup: SweepCgroup,
    processes: u64,
    headroom: Option<u64>,
}

const METRICS: [RowMetric<CgroupRow>; 11] = [
    gauge(
        "pagewise_cgroup_memory_bytes",
        "bytes",
        "Bytes that are charged to the cgroup and its children.",
        |it, out| bytes(out, &it.cgroup.current),
    ),
    gauge(
        "pagewise_cgroup_memory_peak_bytes",
        "bytes",
        "The highest number of charged bytes so far.",
        |it, out| bytes(out, &it.cgroup.peak),
    ),
    gauge(
        "pagewise_cgroup_memory_limit_bytes",
        "bytes",
        "Memory limit of the cgroup itself; +Inf if it has none.",
        |it, out| {
            let limit = it.cgroup.limit.as_ref().ok();
            headroom(out, limit.map(|it| it.map_or(u64::MAX, |it| it.0)));
        },
    ),
    gauge(
        "pagewise_cgroup_limit_headroom_bytes",
        "bytes",
        "Bytes until the nearest limit of the cgroup or an ancestor; +Inf without a limit.",
        |it, out| headroom(out, it.headroom),
    ),
    gauge(
        "pagewise_cgroup_usage_bytes",
        "bytes",
        "Charged bytes by use. Page cache (file) does not include tmpfs (shmem).",
        |it, out| {
            let usage = it.cgroup.usage.as_ref().ok();
            out.each("kind", "anonymous", usage.map(|it| it.anonymous.0));
            out.each("kind", "file", usage.map(|it| it.file.saturating_sub(it.shmem).0));
            out.each("kind", "shmem", usage.map(|it| it.shmem.0));
            out.each("kind", "slab", usage.and_then(|it| it.slab).map(|it| it.0));
        },
    ),
    gauge(
        "pagewise_cgroup_inactive_file_bytes",
        "bytes",
        "Page cache that was not used lately, which the kernel reclaims first.",
        |it, out| out.one(it.cgroup.usage.as_ref().ok().map(|it| it.inactive_file.0)),
    ),
    gauge("pagewise_cgroup_swap_bytes", "bytes", "Charged bytes in swap.", |it, out| {
        bytes(out, &it.cgroup.swap);
    }),
    gauge(
        "pagewise_cgroup_processes",
        "",
        "Number of processes in the cgroup itself.",
        |it, out| out.one(Some(it.processes)),
    ),
    counter(
        "pagewise_cgroup_limit_hits",
        "",
        "Number of times that the limit was reached.",
        |it, out| out.one(it.cgroup.limit_hits.as_ref().ok().copied()),
    ),
    counter(
        "pagewise_cgroup_oom_kills",
        "",
        "Number of OOM kills of processes of the cgroup.",
        |it, out| out.one(it.cgroup.oom_kills.as_ref().ok().copied()),
    ),
    counter(
        "pagewise_cgroup_memory_stall_seconds",
        "seconds",
        "Time in which tasks of the cgroup waited for memory (PSI): at least one task, or all.",
        |it, out| stalls(out, &it.cgroup.pressure),
    ),
];

fn bytes(out: &mut RowValues, value: &Reading<Bytes>) {
    out.one(value.as_ref().ok().map(|it| it.0));
}

/// Computes the families of the cgroups of a sweep. Cgroups with the most charged memory get series
/// first.
pub(crate) fn cgroup_families(
    sweep: &Sweep,
    names: &ContainerNameTable,
    max_cgroups: usize,
    budget: &mut SeriesBudget,
) -> CgroupFamilies {
    let headroom = Headroom::of(sweep);
    let mut processes: HashMap<&[u8], u64> = HashMap::new();
    for process in &sweep.processes {
        if let Ok(path) = &process.identity.cgroup {
            *processes.entry(path.as_bytes()).or_default() += 1;
        }
    }
    let mut ranked: Vec<&SweepCgroup> = sweep.cgroups.iter().flatten().collect();
    ranked.sort_by_key(|it| Reverse(it.current.as_ref().map_or(0, |it| it.0)));

    let mut families = empty(&METRICS);
    let mut info = info_family();
    let (mut exported, mut left_out, mut has_unnamed) = (0, 0, false);
    for cgroup in ranked {
        let row = CgroupRow {
            cgroup: cgroup.clone(),
            processes: processes.get(cgroup.path.as_bytes()).copied().unwrap_or(0),
            headroom: headroom.at(&cgroup.path),
        };
        let values = values(&METRICS, &row);
        if !budget.take(series(&values) + 1, exported < max_cgroups) {
            left_out += 1;
            continue;
        }
        exported += 1;
        let owner = CgroupOwner::of(cgroup.path.as_bytes());
        has_unnamed |= !owner.container_id.is_empty() && names.get(owner.container_id).is_none();
        append(&mut families, &labels(cgroup, &owner, names), values);
        info.push(&Arc::new(info_labels(cgroup, &owner, names)), 1);
    }
    families.push(info);
    CgroupFamilies { families, left_out, has_unnamed }
}

/// Labels of each series of a cgroup: its path, and names of its unit, container and pod.
fn labels(
    cgroup: &SweepCgroup,
    owner: &CgroupOwner<'_>,
    names: &ContainerNameTable,
) -> Arc<LabelSet> {
    let set = LabelSet::new().with("cgroup", cgroup.path.as_bytes());
    let set = match names.get(owner.container_id) {
        Some(names) => set
            .with("namespace", &names.namespace)
            .with("pod", &names.pod)
            .with("container", &names.container),
        None if owner.container_id.is_empty() => set.with("unit", owner.unit),
        None => set,
    };
    Arc::new(set)
}

fn info_labels(
    cgroup: &SweepCgroup,
    owner: &CgroupOwner<'_>,
    names: &ContainerNameTable,
) -> LabelSet {
    let image = names.get(owner.container_id).map_or(&b""[..], |it| it.image.as_slice());
    LabelSet::new()
        .with("cgroup", cgroup.path.as_bytes())
        .with("slice", owner.slice)
        .with("unit", owner.unit)
        .with("runtime", owner.runtime.as_bytes())
        .with("container_id", owner.container_id)
        .with("image", image)
        .with("pod_uid", owner.pod_uid.as_bytes())
        .with("qos", owner.qos.as_bytes())
}

fn info_family() -> MetricFamily {
    MetricFamily {
        name: "pagewise_cgroup_info",
        help: "Systemd unit, container and pod of a cgroup, by its path.",
        unit: "",
        kind: MetricKind::Gauge,
        samples: Vec::new(),
    }
}

/// The families of cgroups, without series.
pub(super) fn catalogue() -> Vec<MetricFamily> {
    let mut families = empty(&METRICS);
    families.push(info_family());
    families
}
