//! The counters from which the account of a machine's RAM is made.

use std::cmp::Reverse;
use std::collections::HashMap;
use std::thread;
use std::time::{Duration, Instant};

use pagewise_model::account::{
    ProcessShare, ProcessSums, SYSTEM_VERSION, SystemReading, VmstatPoint,
};
use pagewise_model::fragmentation::BootCounter;
use pagewise_model::listing::Listing;
use pagewise_model::units::nanoseconds;
use pagewise_model::{Absent, Bytes, Name, PageSize, Pid, Reading};

use crate::cached_files::{self, FileSearch};
use crate::capture::{self, Wish};
use crate::process::same_memory;
use crate::text::number;
use crate::{
    ProcError, ProcRoot, buddyinfo, fragmentation, kernel_log, kernel_memory, listing, meminfo,
    oom_reading, pressure, shmem_uses, slabinfo, swaps, vmstat, zoneinfo,
};

/// Options of a reading.
#[derive(Clone, Copy, Debug)]
pub struct SystemRequest {
    /// Method by which processes are read.
    pub wish: Wish,
    /// Time between the two readings of rates, for which the reading lasts at least.
    pub sample: Duration,
    /// Number of largest processes to keep.
    pub largest: usize,
    /// Search for the page cache of files; `None` without one.
    pub files: Option<FileSearch>,
}

/// Settings that influence reclaim and the amount of memory that can be allocated.
const SETTINGS: [&str; 6] = [
    "sys/vm/swappiness",
    "sys/vm/overcommit_memory",
    "sys/vm/overcommit_ratio",
    "sys/vm/min_free_kbytes",
    "sys/vm/watermark_scale_factor",
    "sys/vm/vfs_cache_pressure",
];

/// Reads a machine.
///
/// # Errors
/// [`ProcError`] where the tree cannot be listed, or has no `meminfo`.
pub fn read(root: &ProcRoot, request: &SystemRequest) -> Result<SystemReading, ProcError> {
    let begin = Instant::now();
    let page_size = fragmentation::page_size(root);
    let first = vmstat_point(root, begin);
    let meminfo_before = meminfo::all(&root.machine("meminfo").unwrap_or_default());
    let listing = listing::list(root, request.wish)?;
    let (processes, largest) = shares(root, &listing, request.largest);
    let text = root.machine("meminfo").map_err(|_| ProcError::Io {
        path: root.path().join("meminfo"),
        source: std::io::ErrorKind::NotFound.into(),
    })?;
    // The counters that belong together are read one directly after the other.
    let meminfo = meminfo::all(&text);
    let zones = root.machine("zoneinfo").map(|text| zoneinfo::parse(&text));
    let slabs = slabinfo::read(root, page_size);
    let pids: Vec<Pid> = listing.processes.iter().map(|it| it.pid).collect();
    let file = |name: &str| root.machine(name);
    let mut reading = SystemReading {
        pagewise_system: SYSTEM_VERSION,
        kernel: capture::kernel(root),
        page_size,
        meminfo_before,
        meminfo,
        vmstat: [first, VmstatPoint::default()],
        zones,
        free_blocks: file("buddyinfo").and_then(|text| parsed(buddyinfo::parse(&text))),
        huge_size: fragmentation::huge_size(root),
        slabs,
        processes,
        largest,
        oom: oom_reading::processes(root, &listing, &HashMap::new()),
        shmem: shmem_uses::read(root, &pids),
        hugetlb: kernel_memory::hugetlb(root),
        zram: kernel_memory::zram(root),
        balloon_in_total: kernel_memory::balloon_in_total(root),
        stacks_in_vmalloc: kernel_memory::stacks_in_vmalloc(root),
        percpu_at_boot: percpu_at_boot(root, page_size),
        sockets: file("net/sockstat").map(|text| kernel_memory::sockets(&text, page_size)),
        files: Err(Absent::NotCollected("ask for --files".into())),
        pressure: file("pressure/memory").and_then(|text| {
            pressure::parse_all(&text).ok_or(Absent::NotSupported("not in the form of PSI".into()))
        }),
        swaps: file("swaps").and_then(|text| parsed(swaps::parse(&text))),
        settings: SETTINGS.iter().filter_map(|name| setting(root, name)).collect(),
        took_ns: 0,
        longest_hold_ns: listing.longest_hold_ns.clone(),
    };
    if let Some(search) = &request.files {
        reading.files = cached_files::find(root, page_size, search);
    }
    if root.is_live() {
        thread::sleep(request.sample.saturating_sub(begin.elapsed()));
    }
    reading.vmstat[1] = vmstat_point(root, begin);
    reading.took_ns = nanoseconds(begin.elapsed());
    Ok(reading)
}

fn vmstat_point(root: &ProcRoot, begin: Instant) -> VmstatPoint {
    let counters = root.machine("vmstat").map(|text| vmstat::parse(&text)).unwrap_or_default();
    VmstatPoint { at_ns: nanoseconds(begin.elapsed()), counters }
}

fn setting(root: &ProcRoot, name: &str) -> Option<(Name, u64)> {
    let value = number(&root.machine(name).ok()?)?;
    Some((Name::from(format!("/proc/{name}").as_str()), value))
}

fn parsed<T>(result: Result<T, ProcError>) -> Reading<T> {
    result.map_err(|error| Absent::NotSupported(error.to_string().into()))
}

fn percpu_at_boot(root: &ProcRoot, page_size: PageSize) -> Reading<Bytes> {
    kernel_memory::percpu_at_boot(&kernel_log::of(root)?, page_size)
        .ok_or(Absent::NotSupported("the kernel log has lost its beginning".into()))
}

/// The memory of all processes together, and the largest.
fn shares(root: &ProcRoot, listing: &Listing, kept: usize) -> (ProcessSums, Vec<ProcessShare>) {
    let mut sums = ProcessSums { unread: listing.hidden, ..ProcessSums::default() };
    let sized = listing.processes.iter().filter_map(|it| {
        let key = (it.rss.clone().ok()?, it.uss.clone().ok()?, it.pss.clone().ok()?);
        (!key.0.is_zero()).then_some((it.pid, key))
    });
    let same = same_memory::of_earlier(root, sized);
    let mut shares = Vec::new();
    for process in &listing.processes {
        match (&process.shares, &process.pss) {
            _ if same.contains_key(&process.pid) => sums.same_memory += 1,
            (Ok(kinds), Ok(pss)) => {
                sums.read += 1;
                sums.anonymous += kinds.anonymous;
                sums.file += kinds.file;
                sums.shmem += kinds.shmem;
                shares.push(ProcessShare {
                    pid: process.pid,
                    name: process.name.clone(),
                    pss: *pss,
                    anonymous: kinds.anonymous,
                    file: kinds.file,
                    shmem: kinds.shmem,
                });
            }
            // A process that ended while it was read has no memory any more.
            (Err(Absent::Vanished), _) | (_, Err(Absent::Vanished)) => {}
            _ => {
                sums.unread += 1;
                sums.unread_rss += process.rss.clone().unwrap_or_default();
            }
        }
    }
    shares.sort_by(|a, b| Reverse(a.pss).cmp(&Reverse(b.pss)).then_with(|| a.pid.cmp(&b.pid)));
    shares.truncate(kept);
    (sums, shares)
}

/// The counters of `meminfo` at one time.
pub(crate) fn meminfo_of(root: &ProcRoot) -> Vec<BootCounter> {
    meminfo::all(&root.machine("meminfo").unwrap_or_default())
}
