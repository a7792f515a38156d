//! Snapshots made by hand. Sizes are in KiB, as smaps prints them.

use std::sync::Arc;

use pagewise_model::machine::{MachineSettings, ProcessMoment, Provenance, ReadMethod};
use pagewise_model::mapping::MappingPages;
use pagewise_model::object::{Elf, ElfObject, LoadSegment, OnDisk};
use pagewise_model::process::{
    Process, ProcessStatus, ResourceLimit, ResourceLimits, Statm, Thread,
};
use pagewise_model::report::{CellValue, Finding, Report, ReportBlock, ReportTable};
use pagewise_model::snapshot::{MappingHead, SNAPSHOT_VERSION};
use pagewise_model::{
    Absent, AddrRange, Breakdown, Bytes, Device, Mapping, Name, PageSize, Pid, Prot, Reading,
    Sharing, Smaps, SmapsCounter, Snapshot, VmFlags,
};

pub(crate) const PAGE: u64 = 4096;

pub(crate) fn absent<T>() -> Reading<T> {
    Err(Absent::NotCollected("the test leaves it out".into()))
}

/// A mapping of `kib` KiB; a name that starts with `/` gets an inode made of its bytes.
pub(crate) fn map(start: u64, kib: u64, mode: &str, name: &str) -> Mapping {
    let letter = |at: usize| mode.as_bytes()[at];
    let file = name.starts_with('/');
    let inode = name.bytes().fold(7, |sum: u64, b| sum.wrapping_mul(31) ^ u64::from(b)) >> 1;
    Mapping {
        range: AddrRange { start, end: start + (kib << 10) },
        prot: Prot { read: letter(0) == b'r', write: letter(1) == b'w', exec: letter(2) == b'x' },
        sharing: if letter(3) == b's' { Sharing::Shared } else { Sharing::Private },
        offset: 0,
        device: if file { Device { major: 8, minor: 1 } } else { Device::default() },
        inode: if file { inode } else { 0 },
        name: name.into(),
        on_tmpfs: false,
        smaps: Ok(Arc::new(usage(&[]))),
        pages: absent(),
    }
}

/// An entry of smaps: these counters in KiB, the others that quadrants need 0.
pub(crate) fn usage(counters: &[(SmapsCounter, u64)]) -> Smaps {
    use SmapsCounter::*;
    let mut smaps = Smaps::default();
    for counter in [
        Rss,
        Pss,
        SharedClean,
        SharedDirty,
        PrivateClean,
        PrivateDirty,
        Anonymous,
        AnonHugePages,
        Swap,
    ] {
        smaps.set(counter, 0);
    }
    for (counter, kib) in counters {
        smaps.set(*counter, kib << 10);
    }
    smaps
}

/// Chained changes to a mapping.
pub(crate) trait ChangeMapping: Sized {
    fn at_offset(self, offset: u64) -> Self;
    fn using(self, counters: &[(SmapsCounter, u64)]) -> Self;
    /// Anonymous pages that only this process maps, all dirty.
    fn anonymous(self, kib: u64) -> Self;
    /// Clean file pages: exclusive, co-mapped, and the share.
    fn file(self, exclusive: u64, co_mapped: u64, pss: u64) -> Self;
    fn flags(self, codes: &str) -> Self;
    /// Read from page tables: exclusive and co-mapped, anonymous and of a file, in KiB.
    fn pages(self, anon: [u64; 2], file: [u64; 2], pss: Reading<Bytes>) -> Self;
}

impl ChangeMapping for Mapping {
    fn at_offset(self, offset: u64) -> Mapping {
        Mapping { offset, ..self }
    }

    fn using(self, counters: &[(SmapsCounter, u64)]) -> Mapping {
        Mapping { smaps: Ok(Arc::new(usage(counters))), ..self }
    }

    fn anonymous(self, kib: u64) -> Mapping {
        use SmapsCounter::*;
        self.using(&[(Rss, kib), (Pss, kib), (PrivateDirty, kib), (Anonymous, kib)])
    }

    fn file(self, exclusive: u64, co_mapped: u64, pss: u64) -> Mapping {
        use SmapsCounter::*;
        let rss = exclusive + co_mapped;
        self.using(&[(Rss, rss), (Pss, pss), (PrivateClean, exclusive), (SharedClean, co_mapped)])
    }

    fn flags(mut self, codes: &str) -> Mapping {
        let mut flags = VmFlags::default();
        for code in codes.split(' ') {
            flags.insert(code.as_bytes().try_into().expect("two letters"));
        }
        Arc::make_mut(self.smaps.as_mut().expect("built with smaps")).flags = Some(flags);
        self
    }

    fn pages(self, anon: [u64; 2], file: [u64; 2], pss: Reading<Bytes>) -> Mapping {
        let breakdown = Breakdown {
            anon_exclusive: Bytes::kib(anon[0]),
            anon_co_mapped: Bytes::kib(anon[1]),
            file_exclusive: Bytes::kib(file[0]),
            file_co_mapped: Bytes::kib(file[1]),
            ..Breakdown::default()
        };
        let pages = MappingPages {
            breakdown,
            pss,
            pss_anon: absent(),
            swap: Ok(Bytes::ZERO),
            anon_huge: Ok(Bytes::ZERO),
        };
        Mapping { smaps: absent(), pages: Ok(Arc::new(pages)), ..self }
    }
}

/// A snapshot in which all files agree, and the rollup lost nothing by rounding.
pub(crate) fn snapshot(mappings: Vec<Mapping>) -> Snapshot {
    let unlimited = ResourceLimit { soft: None, hard: None };
    let mut snapshot = Snapshot {
        pagewise_snapshot: SNAPSHOT_VERSION,
        provenance: Provenance {
            kernel: "6.18.0".into(),
            page_size: PageSize::new(PAGE).expect("a power of two"),
            euid: 0,
            sees_frames: true,
            method: ReadMethod::Full,
            unix_seconds: 0,
            took_ns: 1000,
            longest_hold_ns: Ok(500),
            root: "/proc".into(),
            moment: ProcessMoment::Running,
            gaps: Vec::new(),
        },
        machine: MachineSettings {
            mem_total: Ok(Bytes::gib(16)),
            mem_available: Ok(Bytes::gib(8)),
            swap_total: Ok(Bytes::gib(1)),
            swap_free: Ok(Bytes::gib(1)),
            max_map_count: Ok(65530),
            nodes: Ok(1),
            thp_enabled: Ok("always".into()),
        },
        process: Process {
            pid: Pid(1234),
            ns_pids: vec![Pid(1234)],
            parent: Pid(1),
            name: "prog".into(),
            command: Ok(vec!["prog".into()]),
            exe: Ok("/usr/bin/prog".into()),
            uid: 1000,
            user: None,
            state: 'S',
            threads: 1,
            age_ns: Ok(5_000_000_000),
            start_ticks: 1,
            kernel_thread: false,
        },
        statm: absent(),
        status: Ok(ProcessStatus {
            vm_hwm: Ok(Bytes::mib(64)),
            vm_lck: Ok(Bytes::ZERO),
            vm_pin: Ok(Bytes::ZERO),
            vm_pte: Ok(Bytes::kib(60)),
            vm_swap: Ok(Bytes::ZERO),
            hugetlb: Ok(Bytes::ZERO),
            ..ProcessStatus::from_lines(|_, _| absent())
        }),
        rollup: absent(),
        walk: absent(),
        mappings: Ok(mappings),
        threads: Ok(vec![thread(1234, "prog", 0)]),
        objects: Vec::new(),
        heads: Vec::new(),
        pools: Vec::new(),
        heap_sample: absent(),
        core: None,
        limits: Ok(ResourceLimits {
            stack: ResourceLimit { soft: Some(8 << 20), hard: None },
            address_space: unlimited,
            data: unlimited,
            locked: unlimited,
            locks_freely: Some(false),
        }),
        cgroup: absent(),
        ksm: absent(),
        numa: absent(),
    };
    agree(&mut snapshot);
    snapshot
}

/// Sets `statm` and the rollup to the sums over the mappings.
pub(crate) fn agree(snapshot: &mut Snapshot) {
    let mappings = snapshot.mappings.as_ref().expect("built with mappings");
    let sum = |of: &dyn Fn(&Mapping) -> Reading<Bytes>| {
        mappings.iter().map(|m| of(m).unwrap_or_default()).sum::<Bytes>()
    };
    snapshot.statm = Ok(Statm {
        size: mappings
            .iter()
            .filter(|m| m.name.as_bytes() != b"[vsyscall]")
            .map(Mapping::size)
            .sum(),
        resident: sum(&Mapping::rss),
        shared: sum(&Mapping::rss) - sum(&|m| m.counter(SmapsCounter::Anonymous)),
        text: Bytes::kib(4),
        data: Bytes::kib(4),
    });
    let mut rollup = Smaps::default();
    for counter in
        SmapsCounter::ALL.iter().filter(|c| mappings.iter().any(|m| m.counter(**c).is_ok()))
    {
        rollup.set(*counter, sum(&|m| m.counter(*counter)).0);
    }
    snapshot.rollup = match mappings.iter().all(|m| m.smaps.is_ok()) {
        true => Ok(Box::new(rollup)),
        false => absent(),
    };
}

pub(crate) fn rollup(snapshot: &mut Snapshot) -> &mut Smaps {
    snapshot.rollup.as_mut().expect("built with a rollup")
}

pub(crate) fn thread(tid: u32, name: &str, stack_pointer: u64) -> Thread {
    Thread { tid: Pid(tid), name: name.into(), stack_pointer: Ok(stack_pointer) }
}

pub(crate) fn running(tid: u32, name: &str) -> Thread {
    Thread { tid: Pid(tid), name: name.into(), stack_pointer: absent() }
}

pub(crate) fn head(address: u64, words: [u64; 2]) -> MappingHead {
    MappingHead { address, words }
}

/// A load segment: address, offset, size in the file, size in memory, flags.
pub(crate) fn segment(
    address: u64,
    offset: u64,
    file: u64,
    memory: u64,
    flags: &str,
) -> LoadSegment {
    LoadSegment {
        range: AddrRange { start: address, end: address + memory },
        offset,
        file_size: file,
        read: flags.contains('r'),
        write: flags.contains('w'),
        exec: flags.contains('x'),
    }
}

/// The object behind a mapping, with these segments.
pub(crate) fn object(mapping: &Mapping, segments: Vec<LoadSegment>) -> ElfObject {
    ElfObject {
        device: mapping.device,
        inode: mapping.inode,
        name: mapping.name.clone(),
        on_disk: Ok(OnDisk::Same),
        elf: Ok(Elf {
            segments,
            sections: Vec::new(),
            relro: None,
            is_static: false,
            allocator: None,
        }),
    }
}

/// Adds a library with one page of code, for tests that need only its name.
pub(crate) fn library(snapshot: &mut Snapshot, start: u64, path: &str) {
    let mapping = map(start, 4, "r-xp", path).file(0, 4, 1);
    let object = object(&mapping, vec![segment(0, 0, PAGE, PAGE, "rx")]);
    snapshot.objects.push(object);
    let mappings = snapshot.mappings.as_mut().expect("built with mappings");
    let at = mappings.partition_point(|m| m.range.start < start);
    mappings.insert(at, mapping);
    agree(snapshot);
}

/// The table with that key; the first, where people and programs have one each.
pub(crate) fn table<'r>(report: &'r Report, key: &str) -> &'r ReportTable {
    let tables = report.blocks.iter().filter_map(|block| match block {
        ReportBlock::Table(table) => Some(table),
        _ => None,
    });
    tables.into_iter().find(|table| table.key == key).unwrap_or_else(|| panic!("no table {key}"))
}

/// The values of a column.
pub(crate) fn column(table: &ReportTable, key: &str) -> Vec<CellValue> {
    let column = table.columns.iter().find(|c| c.key == key).expect("a column with that key");
    (0..table.rows()).map(|row| column.value(row)).collect()
}

/// The value of a fact, `totals.pss`.
pub(crate) fn value(report: &Report, key: &str, fact: &str) -> CellValue {
    let facts = report.blocks.iter().filter_map(|block| match block {
        ReportBlock::Facts(facts) if facts.key == key => Some(facts),
        _ => None,
    });
    let mut facts = facts.flat_map(|f| &f.facts);
    facts.find(|f| f.key == fact).map(|f| f.value.clone()).expect("a fact with that key")
}

pub(crate) fn findings(report: &Report) -> &[Finding] {
    let found = report.blocks.iter().find_map(|block| match block {
        ReportBlock::Findings(findings) => Some(findings),
        _ => None,
    });
    &found.expect("every report with mappings has findings").list
}

pub(crate) fn name(text: &str) -> CellValue {
    CellValue::Name(Name::from(text))
}
