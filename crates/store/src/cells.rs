//! Values of a sweep as integer columns, with one list of columns for each type of row.
//!
//! A number below [`ABSENT`] represents the reason of an absent value.

use std::collections::HashMap;
use std::sync::Arc;

use pagewise_model::fragmentation::BootCounter;
use pagewise_model::settings::PressureFigures;
use pagewise_model::sweep::{
    CgroupUsage, PagesReading, ProcessIdentity, ProcessKey, SweepCgroup, SweepMachine, SweepProcess,
};
use pagewise_model::{Absent, Bytes, Name, Pid, Reading};

/// The integer of an absent value is `ABSENT` minus the ID of the reason.
pub(crate) const ABSENT: i64 = -1_000_000;

/// A value in a row: an integer, or the reason of its absence.
pub(crate) type Cell = Reading<i64>;

/// A column: its name, the conversion of a value to a cell, and the conversion of a cell to a
/// value.
pub(crate) struct RowColumn<T> {
    pub(crate) name: &'static str,
    pub(crate) get: fn(&T) -> Cell,
    pub(crate) set: fn(&mut T, Cell),
}

fn whole(number: u64) -> i64 {
    i64::try_from(number).unwrap_or(i64::MAX)
}

fn number(cell: i64) -> u64 {
    u64::try_from(cell).unwrap_or(0)
}

fn kib(bytes: Bytes) -> i64 {
    whole(bytes.0 >> 10)
}

fn bytes(cell: i64) -> Bytes {
    Bytes::kib(number(cell))
}

/// Column of a field that is a number.
macro_rules! plain_number {
    ($name:literal, $field:ident) => {
        RowColumn {
            name: $name,
            get: |it| Ok(whole(it.$field)),
            set: |it, cell| it.$field = number(cell.unwrap_or(0)),
        }
    };
}

/// Column of a field that is a reading of bytes, stored in KiB.
macro_rules! size {
    ($name:literal, $field:ident) => {
        RowColumn {
            name: $name,
            get: |it| it.$field.clone().map(kib),
            set: |it, cell| it.$field = cell.map(bytes),
        }
    };
}

/// Column of a field that is a reading of a count.
macro_rules! count {
    ($name:literal, $field:ident) => {
        RowColumn {
            name: $name,
            get: |it| it.$field.clone().map(whole),
            set: |it, cell| it.$field = cell.map(number),
        }
    };
}

/// Column of one field of the structure in a reading, stored in KiB. If the reading is absent, all
/// these columns are absent.
macro_rules! part {
    ($name:literal, $field:ident . $part:ident) => {
        RowColumn {
            name: $name,
            get: |it| it.$field.as_ref().map(|it| kib(it.$part)).map_err(Clone::clone),
            set: |it, cell| match cell {
                Ok(cell) => it.$field.get_or_insert_default().$part = bytes(cell),
                Err(why) => it.$field = Err(why),
            },
        }
    };
}

/// Access to the value of a reading. An absent reading is replaced by a default value first.
trait GetOrInsertDefault<T> {
    fn get_or_insert_default(&mut self) -> &mut T;
}

impl<T: Default> GetOrInsertDefault<T> for Reading<T> {
    fn get_or_insert_default(&mut self) -> &mut T {
        if self.is_err() {
            *self = Ok(T::default());
        }
        self.as_mut().expect("it was set above")
    }
}

/// Columns of the table `process_row`.
pub(crate) const PROCESS: [RowColumn<SweepProcess>; 21] = [
    RowColumn {
        name: "parent",
        get: |it| Ok(i64::from(it.identity.parent.0)),
        set: |it, cell| {
            let parent = Pid(u32::try_from(cell.unwrap_or(0)).unwrap_or(0));
            if it.identity.parent != parent {
                Arc::make_mut(&mut it.identity).parent = parent;
            }
        },
    },
    plain_number!("threads", threads),
    RowColumn {
        name: "virt_kib",
        get: |it| Ok(kib(it.virt)),
        set: |it, cell| it.virt = cell.map_or(Bytes::ZERO, bytes),
    },
    RowColumn {
        name: "rss_kib",
        get: |it| Ok(kib(it.rss)),
        set: |it, cell| it.rss = cell.map_or(Bytes::ZERO, bytes),
    },
    part!("rss_anonymous_kib", rss_by_kind.anonymous),
    part!("rss_file_kib", rss_by_kind.file),
    part!("rss_shmem_kib", rss_by_kind.shmem),
    size!("peak_rss_kib", peak_rss),
    part!("pss_anonymous_kib", pss.anonymous),
    part!("pss_file_kib", pss.file),
    part!("pss_shmem_kib", pss.shmem),
    size!("uss_kib", uss),
    size!("uss_anonymous_kib", uss_anonymous),
    size!("swap_kib", swap),
    size!("swap_shmem_kib", swap_shmem),
    plain_number!("minor_faults", minor_faults),
    plain_number!("major_faults", major_faults),
    // The kernel counts CPU time in ticks of ten milliseconds.
    RowColumn {
        name: "cpu_ms",
        get: |it| Ok(whole(it.cpu_ns / 1_000_000)),
        set: |it, cell| it.cpu_ns = number(cell.unwrap_or(0)).saturating_mul(1_000_000),
    },
    RowColumn {
        name: "state",
        get: |it| Ok(i64::from(u32::from(it.state))),
        set: |it, cell| {
            let code = u32::try_from(cell.unwrap_or(0)).ok().and_then(char::from_u32);
            it.state = code.unwrap_or('?');
        },
    },
    count!("oom_score", oom_score),
    RowColumn {
        name: "oom_score_adj",
        get: |it| it.oom_score_adj.clone(),
        set: |it, cell| it.oom_score_adj = cell,
    },
];

/// Number of columns of the table `process_row`.
pub(crate) const PROCESS_CELLS: usize = PROCESS.len();

/// Integer for an unlimited limit, and for a slab size that the kernel does not count.
const UNLIMITED: i64 = -1;

/// Column of a field of a pressure reading.
macro_rules! pressure {
    ($name:literal, $field:ident, $get:expr, $set:expr) => {
        RowColumn {
            name: $name,
            get: |it| {
                let get: fn(&PressureFigures) -> u64 = $get;
                it.$field.as_ref().map(|it| whole(get(it))).map_err(Clone::clone)
            },
            set: |it, cell| match cell {
                Ok(cell) => {
                    let set: fn(&mut PressureFigures, u64) = $set;
                    set(it.$field.get_or_insert_default(), number(cell));
                }
                Err(why) => it.$field = Err(why),
            },
        }
    };
}

/// Columns of the table `cgroup_row`.
pub(crate) const CGROUP: [RowColumn<SweepCgroup>; 15] = [
    size!("current_kib", current),
    size!("peak_kib", peak),
    RowColumn {
        name: "limit_kib",
        get: |it| it.limit.clone().map(|limit| limit.map_or(UNLIMITED, kib)),
        set: |it, cell| it.limit = cell.map(|cell| (cell != UNLIMITED).then(|| bytes(cell))),
    },
    size!("swap_kib", swap),
    part!("anonymous_kib", usage.anonymous),
    part!("file_kib", usage.file),
    part!("shmem_kib", usage.shmem),
    part!("inactive_file_kib", usage.inactive_file),
    RowColumn {
        name: "slab_kib",
        get: |it| {
            let usage = it.usage.as_ref().map_err(Clone::clone)?;
            Ok(usage.slab.map_or(UNLIMITED, kib))
        },
        set: |it, cell| match cell {
            Ok(cell) => {
                let usage: &mut CgroupUsage = it.usage.get_or_insert_default();
                usage.slab = (cell != UNLIMITED).then(|| bytes(cell));
            }
            Err(why) => it.usage = Err(why),
        },
    },
    count!("limit_hits", limit_hits),
    count!("oom_kills", oom_kills),
    pressure!("some_avg10", pressure, |it| it.avg10.some, |it, to| it.avg10.some = to),
    pressure!("full_avg10", pressure, |it| it.avg10.full, |it, to| it.avg10.full = to),
    pressure!("some_us", pressure, |it| it.some_us, |it, to| it.some_us = to),
    pressure!("full_us", pressure, |it| it.full_us, |it, to| it.full_us = to),
];

/// Columns of the table `machine_row` in all files. The columns after them depend on the kernel's
/// `meminfo` and `vmstat`.
pub(crate) const MACHINE: [RowColumn<SweepMachine>; 11] = [
    RowColumn {
        name: "meminfo",
        get: |it| it.meminfo.as_ref().map(|_| 0).map_err(Clone::clone),
        set: |it, cell| it.meminfo = cell.map(|_| Vec::new()),
    },
    RowColumn {
        name: "vmstat",
        get: |it| it.vmstat.as_ref().map(|_| 0).map_err(Clone::clone),
        set: |it, cell| it.vmstat = cell.map(|_| Vec::new()),
    },
    count!("forks", forks),
    pressure!("memory_some_avg10", memory_pressure, |it| it.avg10.some, |it, to| it.avg10.some =
        to),
    pressure!("memory_full_avg10", memory_pressure, |it| it.avg10.full, |it, to| it.avg10.full =
        to),
    pressure!("memory_some_us", memory_pressure, |it| it.some_us, |it, to| it.some_us = to),
    pressure!("memory_full_us", memory_pressure, |it| it.full_us, |it, to| it.full_us = to),
    pressure!("io_some_avg10", io_pressure, |it| it.avg10.some, |it, to| it.avg10.some = to),
    pressure!("io_full_avg10", io_pressure, |it| it.avg10.full, |it, to| it.avg10.full = to),
    pressure!("io_some_us", io_pressure, |it| it.some_us, |it, to| it.some_us = to),
    pressure!("io_full_us", io_pressure, |it| it.full_us, |it, to| it.full_us = to),
];

/// Prefixes of the names of `machine_row` columns for lines of `meminfo` and `vmstat`.
const MEMINFO: &str = "meminfo_";
const VMSTAT: &str = "vmstat_";
/// Suffix of the name of a column in KiB. Lines of `meminfo` without a unit are numbers of pages.
const KIB: &str = "_kib";

/// Name and value of the column for a line of `meminfo` or `vmstat`; `None` if the line's name
/// cannot be a column name.
fn line(start: &str, counter: &BootCounter) -> Option<(String, Cell)> {
    let name = std::str::from_utf8(counter.name.as_bytes()).ok()?;
    let is_plain =
        name.bytes().all(|b| b.is_ascii_alphanumeric() || matches!(b, b'_' | b'(' | b')'));
    if !is_plain {
        return None;
    }
    Some(match start == MEMINFO && !name.starts_with("HugePages_") {
        true => (format!("{start}{name}{KIB}"), Ok(kib(Bytes(counter.count)))),
        false => (format!("{start}{name}"), Ok(whole(counter.count))),
    })
}

/// Names and values of the columns for all lines of `meminfo` and `vmstat`.
pub(crate) fn machine_lines(machine: &SweepMachine) -> Vec<(String, Cell)> {
    let meminfo = machine.meminfo.iter().flatten().filter_map(|it| line(MEMINFO, it));
    let vmstat = machine.vmstat.iter().flatten().filter_map(|it| line(VMSTAT, it));
    meminfo.chain(vmstat).collect()
}

/// Adds the value of a column to `meminfo` or `vmstat` of the machine.
pub(crate) fn set_machine_line(machine: &mut SweepMachine, column: &str, cell: i64) {
    if let (Some(name), Ok(lines)) = (column.strip_prefix(MEMINFO), &mut machine.meminfo) {
        let (name, count) = match name.strip_suffix(KIB) {
            Some(name) => (name, bytes(cell).0),
            None => (name, number(cell)),
        };
        lines.push(BootCounter { name: name.into(), count });
    } else if let (Some(name), Ok(lines)) = (column.strip_prefix(VMSTAT), &mut machine.vmstat) {
        lines.push(BootCounter { name: name.into(), count: number(cell) });
    }
}

/// A machine without values.
pub(crate) fn blank_machine() -> SweepMachine {
    let none = || Absent::NotRecorded("the recording".into());
    SweepMachine {
        meminfo: Err(none()),
        vmstat: Err(none()),
        memory_pressure: Err(none()),
        io_pressure: Err(none()),
        forks: Err(none()),
    }
}

/// A cgroup without values.
pub(crate) fn blank_cgroup(path: Name) -> SweepCgroup {
    let none = || Absent::NotRecorded("the recording".into());
    SweepCgroup {
        path,
        current: Err(none()),
        peak: Err(none()),
        limit: Err(none()),
        swap: Err(none()),
        usage: Err(none()),
        limit_hits: Err(none()),
        oom_kills: Err(none()),
        pressure: Err(none()),
    }
}

/// IDs of the reasons of absent values in one file.
#[derive(Debug, Default)]
pub(crate) struct AbsentIds {
    ids: HashMap<Absent, i64>,
    reasons: HashMap<i64, Absent>,
}

impl AbsentIds {
    /// Adds a reason that was read from the file.
    pub(crate) fn add(&mut self, id: i64, why: Absent) {
        self.ids.insert(why.clone(), id);
        self.reasons.insert(id, why);
    }

    /// Integer of a cell. If the cell has a reason that the file does not contain, also returns the
    /// new ID and the reason.
    pub(crate) fn code(&mut self, cell: Cell) -> (i64, Option<(i64, Absent)>) {
        let why = match cell {
            Ok(value) => return (value, None),
            Err(why) => why,
        };
        if let Some(id) = self.ids.get(&why) {
            return (ABSENT - id, None);
        }
        let id = whole(self.ids.len() as u64) + 1;
        self.add(id, why.clone());
        (ABSENT - id, Some((id, why)))
    }

    /// Converts an integer of a column to a cell: the value, or the reason of its absence.
    pub(crate) fn cell(&self, code: i64) -> Cell {
        if code > ABSENT {
            return Ok(code);
        }
        let reason = self.reasons.get(&(ABSENT - code)).cloned();
        Err(reason.unwrap_or_else(|| Absent::NotRecorded("the recording".into())))
    }
}

/// A process without values.
pub(crate) fn blank_process(key: ProcessKey, identity: Arc<ProcessIdentity>) -> SweepProcess {
    let none = || Absent::NotRecorded("the recording".into());
    SweepProcess {
        key,
        identity,
        state: '?',
        threads: 0,
        virt: Bytes::ZERO,
        rss: Bytes::ZERO,
        rss_by_kind: Err(none()),
        peak_rss: Err(none()),
        pss: Err(none()),
        uss: Err(none()),
        uss_anonymous: Err(none()),
        pages: PagesReading::Never,
        swap: Err(none()),
        swap_shmem: Err(none()),
        minor_faults: 0,
        major_faults: 0,
        cpu_ns: 0,
        oom_score: Err(none()),
        oom_score_adj: Err(none()),
    }
}
