//! Table of processes or cgroups over time: the query, and the rows that answer it.

use crate::report::{CellValue, Fact};
use crate::sweep::ProcessKey;
use crate::{Absent, Bytes, Name, Pid, Reading};

/// Rows that a table shows, and their order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TopQuery {
    /// Objects of the rows.
    pub subject: TopSubject,
    /// Column by which the rows are sorted.
    pub sort: TopColumn,
    /// True to reverse the usual order of the column.
    pub reversed: bool,
    /// Only rows that contain this text in the name, the user, the cgroup, or as the PID.
    pub filter: String,
    /// One row for each group of processes.
    pub grouping: Option<TopGrouping>,
    /// True to show children below their parents.
    pub tree: bool,
    /// Only processes of this cgroup and of the cgroups below it.
    pub cgroup: Option<Name>,
}

impl Default for TopQuery {
    fn default() -> TopQuery {
        TopQuery {
            subject: TopSubject::Processes,
            sort: TopColumn::Pss,
            reversed: false,
            filter: String::new(),
            grouping: None,
            tree: false,
            cgroup: None,
        }
    }
}

/// Objects of the rows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TopSubject {
    /// Processes, or groups of processes.
    Processes,
    /// Memory cgroups.
    Cgroups,
}

/// Property that the processes of a group have in common.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TopGrouping {
    /// The real user.
    User,
    /// The memory cgroup.
    Cgroup,
    /// The program file.
    Exe,
}

impl TopGrouping {
    /// All groupings.
    pub const ALL: [TopGrouping; 3] = [TopGrouping::User, TopGrouping::Cgroup, TopGrouping::Exe];

    /// The name in headings.
    pub const fn label(self) -> &'static str {
        match self {
            TopGrouping::User => "user",
            TopGrouping::Cgroup => "cgroup",
            TopGrouping::Exe => "program",
        }
    }
}

/// A column of the table.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum TopColumn {
    /// The PID, or the number of processes of a group.
    Pid,
    /// The user.
    User,
    /// Proportional set size.
    Pss,
    /// Unique set size.
    Uss,
    /// Resident set size.
    Rss,
    /// Swapped bytes.
    Swap,
    /// `memory.current` of a cgroup.
    Current,
    /// Limit of a cgroup.
    Limit,
    /// Change of the memory per minute.
    Growth,
    /// The memory over time.
    Trend,
    /// Minor page faults per second.
    Minor,
    /// Major page faults per second.
    Major,
    /// Memory pressure.
    Pressure,
    /// Position in the order in which the kernel's OOM killer chooses processes.
    OomRank,
    /// Name.
    Name,
}

/// Heading, meaning and order of a column.
#[derive(Clone, Copy, Debug)]
pub struct TopColumnAbout {
    /// Heading for processes and groups.
    pub label: &'static str,
    /// One sentence for the help.
    pub meaning: &'static str,
    /// True if the smallest value or the first name comes first.
    pub ascending: bool,
}

impl TopColumn {
    /// All columns, in the order of the table.
    pub const ALL: [TopColumn; 15] = [
        TopColumn::Pid,
        TopColumn::User,
        TopColumn::Pss,
        TopColumn::Uss,
        TopColumn::Rss,
        TopColumn::Swap,
        TopColumn::Current,
        TopColumn::Limit,
        TopColumn::Growth,
        TopColumn::Trend,
        TopColumn::Minor,
        TopColumn::Major,
        TopColumn::Pressure,
        TopColumn::OomRank,
        TopColumn::Name,
    ];

    /// Heading and meaning.
    pub const fn about(self) -> TopColumnAbout {
        let (label, ascending, meaning) = match self {
            TopColumn::Pid => ("PID", true, "Process ID."),
            TopColumn::User => ("USER", true, "Real user."),
            TopColumn::Pss => {
                ("PSS", false, "Resident pages, each divided by the number of its mappings.")
            }
            TopColumn::Uss => ("USS", false, "Resident pages that only this process maps."),
            TopColumn::Rss => ("RSS", false, "Resident pages."),
            TopColumn::Swap => ("SWAP", false, "Pages in swap."),
            TopColumn::Current => {
                ("CURRENT", false, "Memory that the kernel charges to the cgroup.")
            }
            TopColumn::Limit => ("LIMIT", false, "Memory limit of the cgroup itself."),
            TopColumn::Growth => ("GROW/MIN", false, "Change per minute, over the last 5 to 60 s."),
            TopColumn::Trend => ("TREND", false, "Memory at the last samples."),
            TopColumn::Minor => ("MINOR/S", false, "Minor page faults per second."),
            TopColumn::Major => {
                ("MAJOR/S", false, "Major page faults per second: reads of a disk.")
            }
            TopColumn::Pressure => (
                "PSI",
                false,
                "Share of the last 10 s in which a task of the cgroup waited for memory.",
            ),
            TopColumn::OomRank => {
                ("OOM", true, "1 is the process that the kernel would kill first.")
            }
            TopColumn::Name => ("NAME", true, "Program and arguments, without folders."),
        };
        TopColumnAbout { label, meaning, ascending }
    }

    /// True if rows can be sorted by it.
    pub const fn sorts(self) -> bool {
        !matches!(self, TopColumn::Trend)
    }
}

/// Identity of a row, which stays the same from one table to the next.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum TopKey {
    /// A process.
    Process(ProcessKey),
    /// A group of processes.
    Group(Name),
    /// A cgroup.
    Cgroup(Name),
}

/// One row.
#[derive(Clone, Debug, PartialEq)]
pub struct TopRow {
    /// Identity.
    pub key: TopKey,
    /// In a tree: for each ancestor below the root and for the row itself, true if a sibling
    /// follows. Empty for a root.
    pub branches: Vec<bool>,
    /// Name of the program, the group or the cgroup.
    pub name: Name,
    /// Arguments, without folders; empty for groups.
    pub arguments: Name,
    /// The user, or the user ID as text.
    pub user: Name,
    /// Number of processes; 1 for a process.
    pub processes: u64,
    /// Proportional set size; the sum of a group.
    pub pss: Reading<Bytes>,
    /// Unique set size; the sum of a group.
    pub uss: Reading<Bytes>,
    /// The time since `pss` and `uss` were read, in nanoseconds, if they are outdated; in a group,
    /// that of the oldest of the outdated ones.
    pub outdated_ns: Option<u64>,
    /// Resident set size; the sum of a group counts shared pages several times.
    pub rss: Reading<Bytes>,
    /// Bytes in swap.
    pub swap: Reading<Bytes>,
    /// `memory.current`, of a cgroup only.
    pub current: Reading<Bytes>,
    /// Memory limit, of a cgroup only; `None` is unlimited.
    pub limit: Reading<Option<Bytes>>,
    /// Bytes per minute.
    pub growth: Reading<i64>,
    /// Memory at the last samples, oldest first; `None` for a sample without this row.
    pub trend: Vec<Option<u64>>,
    /// Minor page faults per second.
    pub minor: Reading<f64>,
    /// Major page faults per second.
    pub major: Reading<f64>,
    /// Share of time, from 0 to 1, in which a task of the cgroup waited for memory.
    pub pressure: Reading<f64>,
    /// Position in the order of the OOM killer, from 1.
    pub oom_rank: Reading<u64>,
}

impl TopRow {
    /// The process ID; `None` for groups and cgroups.
    pub const fn pid(&self) -> Option<Pid> {
        match self.key {
            TopKey::Process(key) => Some(key.pid),
            TopKey::Group(_) | TopKey::Cgroup(_) => None,
        }
    }
}

/// The rows at one time.
#[derive(Clone, Debug, PartialEq)]
pub struct TopTable {
    /// Nanoseconds since 1970 at which the counters were read.
    pub unix_ns: u64,
    /// The rows, in order.
    pub rows: Vec<TopRow>,
    /// Number of rows that the filter leaves out.
    pub filtered: u64,
    /// Reason of a table without rows, if the sweep has no objects of this kind.
    pub missing: Option<Absent>,
    /// Number of processes whose memory cannot be read, and the reason for the first.
    pub unreadable: Option<(u64, Absent)>,
    /// Number of processes whose memory was not read yet, to keep to the budget.
    pub postponed: u64,
    /// Processes with outdated PSS and USS.
    pub outdated: OutdatedProcesses,
    /// Columns for which at least one row has a value, in the order of [`TopColumn::ALL`].
    pub columns: Vec<TopColumn>,
    /// Figures of the machine, the most important first.
    pub machine: Vec<Fact>,
    /// Latest events, oldest first.
    pub events: Vec<TopEvent>,
}

/// Processes whose PSS and USS are of an earlier sweep, although they have changed since.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct OutdatedProcesses {
    /// Their number.
    pub count: u64,
    /// The time since the oldest of these values was read, in nanoseconds.
    pub oldest_ns: u64,
}

/// An event of the last minutes.
#[derive(Clone, Debug, PartialEq)]
pub struct TopEvent {
    /// Nanoseconds from the sweep that found it to the sweep of the table.
    pub age_ns: u64,
    /// The event as a sentence.
    pub sentence: Vec<CellValue>,
}
