//! Small synthetic snapshots for tests, written as lines of `maps`.

use std::sync::Arc;

use pagewise_model::heap_scan::{HEAP_SCAN_VERSION, HeapScan, MemoryCopy, WalkedHeap};
use pagewise_model::machine::{MachineSettings, ProcessMoment, Provenance, ReadMethod};
use pagewise_model::process::{Process, Statm};
use pagewise_model::report::{CellValue, ReportBlock, ReportTable};
use pagewise_model::snapshot::SNAPSHOT_VERSION;
use pagewise_model::{
    Absent, AddrRange, Bytes, Device, Mapping, Name, PageSize, Pid, Prot, Sharing, Smaps,
    SmapsCounter, Snapshot, VmFlags,
};

fn nobody_read() -> Absent {
    Absent::NotCollected("a sample".into())
}

/// Parses a mapping from `START-END rwxp OFFSET INODE NAME`. The addresses are hexadecimal; the
/// name is optional.
pub(crate) fn mapping(line: &str) -> Mapping {
    let mut words = line.splitn(5, ' ');
    let mut next = || words.next().unwrap_or("");
    let hex = |text: &str| u64::from_str_radix(text, 16).expect("a hex number");
    let (start, end) = next().split_once('-').expect("a range");
    let mode = next().as_bytes().to_vec();
    let offset = hex(next());
    let inode = next().parse().expect("an inode");
    Mapping {
        range: AddrRange { start: hex(start), end: hex(end) },
        prot: Prot { read: mode[0] == b'r', write: mode[1] == b'w', exec: mode[2] == b'x' },
        sharing: if mode[3] == b's' { Sharing::Shared } else { Sharing::Private },
        offset,
        device: if inode == 0 { Device::default() } else { Device { major: 8, minor: 1 } },
        inode,
        name: Name::from(next()),
        on_tmpfs: false,
        smaps: Err(nobody_read()),
        pages: Err(nobody_read()),
    }
}

/// Adds a smaps entry with these counters and flags to a mapping.
pub(crate) fn with_smaps(
    mapping: Mapping,
    counters: &[(SmapsCounter, u64)],
    flags: &str,
) -> Mapping {
    let mut smaps = Smaps::default();
    for (counter, value) in counters {
        smaps.set(*counter, *value);
    }
    let mut set = VmFlags::default();
    for code in flags.split(' ').filter(|code| !code.is_empty()) {
        set.insert(code.as_bytes().try_into().expect("two letters"));
    }
    smaps.flags = Some(set);
    Mapping { smaps: Ok(Arc::new(smaps)), ..mapping }
}

/// Returns a mapping with this number of resident bytes. All of them are exclusive, and no page is
/// in swap.
pub(crate) fn resident(line: &str, bytes: u64) -> Mapping {
    let counters = [
        (SmapsCounter::Rss, bytes),
        (SmapsCounter::Pss, bytes),
        (SmapsCounter::SharedClean, 0),
        (SmapsCounter::SharedDirty, 0),
        (SmapsCounter::PrivateClean, 0),
        (SmapsCounter::PrivateDirty, bytes),
        (SmapsCounter::Anonymous, bytes),
        (SmapsCounter::Swap, 0),
    ];
    with_smaps(mapping(line), &counters, "")
}

/// Returns a snapshot of a process with these mappings.
pub(crate) fn snapshot(mappings: Vec<Mapping>) -> Snapshot {
    let size = mappings.iter().map(Mapping::size).sum();
    let resident = mappings.iter().filter_map(|m| m.rss().ok()).sum();
    Snapshot {
        pagewise_snapshot: SNAPSHOT_VERSION,
        provenance: Provenance {
            kernel: "6.18".into(),
            page_size: PageSize::new(4096).expect("a power of two"),
            euid: 0,
            sees_frames: true,
            method: ReadMethod::Full,
            unix_seconds: 0,
            took_ns: 0,
            longest_hold_ns: Err(nobody_read()),
            root: "/proc".into(),
            moment: ProcessMoment::Running,
            gaps: Vec::new(),
        },
        machine: MachineSettings {
            mem_total: Err(nobody_read()),
            mem_available: Err(nobody_read()),
            swap_total: Err(nobody_read()),
            swap_free: Err(nobody_read()),
            max_map_count: Err(nobody_read()),
            nodes: Err(nobody_read()),
            thp_enabled: Err(nobody_read()),
        },
        process: Process {
            pid: Pid(7),
            ns_pids: vec![Pid(7)],
            parent: Pid(1),
            name: "sample".into(),
            command: Err(nobody_read()),
            exe: Err(nobody_read()),
            uid: 0,
            user: None,
            state: 'S',
            threads: 1,
            age_ns: Err(nobody_read()),
            start_ticks: 1,
            kernel_thread: false,
        },
        statm: Ok(Statm {
            size,
            resident,
            shared: Bytes::ZERO,
            text: Bytes::ZERO,
            data: Bytes::ZERO,
        }),
        status: Err(nobody_read()),
        rollup: Err(nobody_read()),
        walk: Err(nobody_read()),
        mappings: Ok(mappings),
        threads: Err(nobody_read()),
        objects: Vec::new(),
        heads: Vec::new(),
        pools: Vec::new(),
        heap_sample: Err(nobody_read()),
        core: None,
        limits: Err(nobody_read()),
        cgroup: Err(nobody_read()),
        ksm: Err(nobody_read()),
        numa: Err(nobody_read()),
    }
}

/// Returns the table of a report with this key.
pub(crate) fn table<'a>(report: &'a pagewise_model::Report, key: &str) -> &'a ReportTable {
    let find = |block: &'a ReportBlock| match block {
        ReportBlock::Table(table) if table.key == key => Some(table),
        _ => None,
    };
    report.blocks.iter().find_map(find).expect("the table is there")
}

/// Returns the values of a column.
pub(crate) fn column(table: &ReportTable, key: &str) -> Vec<CellValue> {
    let column = table.columns.iter().find(|c| c.key == key).expect("the column is there");
    (0..table.rows()).map(|row| column.value(row)).collect()
}

/// Returns a scan of a running process with this heap.
pub(crate) fn heap_scan(heap: WalkedHeap) -> HeapScan {
    HeapScan {
        pagewise_heap_scan: HEAP_SCAN_VERSION,
        process: snapshot(Vec::new()).process,
        moment: ProcessMoment::Running,
        time_ns: 0,
        page_size: PageSize::new(4096).expect("a page size"),
        copy: MemoryCopy::default(),
        took_ns: 0,
        heap,
        graph: None,
    }
}
