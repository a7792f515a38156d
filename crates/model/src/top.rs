//! A table of processes or cgroups that is updated over time: the query, and its rows.

use crate::report::{CellValue, Fact};
use crate::sweep::ProcessKey;
use crate::{Absent, Bytes, Name, Pid, Reading};

/// Selection and order of the rows of a table.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TopQuery {
    /// Objects of the rows.
    pub subject: TopSubject,
    /// Column by which the rows are sorted.
    pub sort: TopColumn,
    /// True to reverse the default order of the column.
    pub reversed: bool,
    /// Text that a row must contain in its name, user, cgroup or PID; empty for all rows.
    pub filter: String,
    /// Property by which processes are grouped; `None` for one row per process.
    pub grouping: Option<TopGrouping>,
    /// True to show children below their parents.
    pub tree: bool,
    /// Path of a cgroup: only its processes and those of its descendants are shown. `None` for all.
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
    /// Real user of the process.
    User,
    /// Memory cgroup of the process.
    Cgroup,
    /// Path of the program file.
    Exe,
}

impl TopGrouping {
    /// All groupings.
    pub const ALL: [TopGrouping; 3] = [TopGrouping::User, TopGrouping::Cgroup, TopGrouping::Exe];

    /// Name of the grouping in headings.
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
    /// Name of the user.
    User,
    /// Proportional set size.
    Pss,
    /// Unique set size.
    Uss,
    /// Resident set size.
    Rss,
    /// Swapped bytes.
    Swap,
    /// Charged memory of a cgroup (`memory.current`).
    Current,
    /// Memory limit of a cgroup.
    Limit,
    /// Growth of the memory in bytes per minute.
    Growth,
    /// Memory at the last samples, as a picture.
    Trend,
    /// Number of minor page faults per second.
    Minor,
    /// Number of major page faults per second.
    Major,
    /// Memory pressure of a cgroup.
    Pressure,
    /// Position in the order in which the OOM killer would select processes, from 1.
    OomRank,
    /// Name of the program, group or cgroup.
    Name,
}

/// Heading, meaning and default order of a column.
#[derive(Clone, Copy, Debug)]
pub struct TopColumnAbout {
    /// Heading in tables of processes and groups.
    pub label: &'static str,
    /// One sentence for the help.
    pub meaning: &'static str,
    /// True if the default order is ascending: smallest value or first name first.
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

    /// Heading, meaning and default order of the column.
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

    /// True if rows can be sorted by the column.
    pub const fn sorts(self) -> bool {
        !matches!(self, TopColumn::Trend)
    }
}

/// Identity of a row, which does not change between updates of the table.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum TopKey {
    /// Identity of a process.
    Process(ProcessKey),
    /// Name of a group of processes.
    Group(Name),
    /// Path of a cgroup.
    Cgroup(Name),
}

/// A row of the table.
#[derive(Clone, Debug, PartialEq)]
pub struct TopRow {
    /// Identity of the row.
    pub key: TopKey,
    /// Data to draw the tree: for each ancestor except the root and for the row itself, true if a
    /// sibling follows below. Empty for a root.
    pub branches: Vec<bool>,
    /// Name of the program, the group or the cgroup.
    pub name: Name,
    /// Command-line arguments, without folders in their paths; empty for groups and cgroups.
    pub arguments: Name,
    /// Name of the user, or the user ID as text.
    pub user: Name,
    /// Number of processes in the row; 1 for a process.
    pub processes: u64,
    /// Proportional set size; for a group the sum.
    pub pss: Reading<Bytes>,
    /// Unique set size; for a group the sum.
    pub uss: Reading<Bytes>,
    /// Time since `pss` and `uss` were read, in nanoseconds; `None` if they are not outdated. In a
    /// group, the longest time of its processes with outdated values.
    pub outdated_ns: Option<u64>,
    /// Resident set size; for a group the sum, which counts shared pages several times.
    pub rss: Reading<Bytes>,
    /// Swapped bytes.
    pub swap: Reading<Bytes>,
    /// `memory.current`; only cgroups have it.
    pub current: Reading<Bytes>,
    /// Memory limit; only cgroups have it. `None` is unlimited.
    pub limit: Reading<Option<Bytes>>,
    /// Growth of the memory in bytes per minute.
    pub growth: Reading<i64>,
    /// Memory at the last samples, oldest first; `None` for a sample without this row.
    pub trend: Vec<Option<u64>>,
    /// Number of minor page faults per second.
    pub minor: Reading<f64>,
    /// Number of major page faults per second.
    pub major: Reading<f64>,
    /// Share of time in which a task of the cgroup waited for memory, from 0 to 1.
    pub pressure: Reading<f64>,
    /// Position in the order in which the OOM killer would select processes, from 1.
    pub oom_rank: Reading<u64>,
}

impl TopRow {
    /// PID of the process; `None` for groups and cgroups.
    pub const fn pid(&self) -> Option<Pid> {
        match self.key {
            TopKey::Process(key) => Some(key.pid),
            TopKey::Group(_) | TopKey::Cgroup(_) => None,
        }
    }
}

/// The table at one time.
#[derive(Clone, Debug, PartialEq)]
pub struct TopTable {
    /// Nanoseconds since 1970 at which the counters were read.
    pub unix_ns: u64,
    /// The rows, in the order of the query.
    pub rows: Vec<TopRow>,
    /// Number of rows that the filter of the query hides.
    pub filtered: u64,
    /// Reason why the table has no rows; `None` if the sweep has objects of this kind.
    pub missing: Option<Absent>,
    /// Number of processes whose memory cannot be read, and the reason for the first one.
    pub unreadable: Option<(u64, Absent)>,
    /// Number of processes whose memory has not been read yet, to stay within the budget of CPU
    /// time.
    pub postponed: u64,
    /// Processes with outdated PSS and USS.
    pub outdated: OutdatedProcesses,
    /// Columns with a value in at least one row, in the order of [`TopColumn::ALL`].
    pub columns: Vec<TopColumn>,
    /// Values of the machine, most important first.
    pub machine: Vec<Fact>,
    /// Latest events of the recorder, oldest first.
    pub events: Vec<TopEvent>,
}

/// Processes whose PSS and USS are from an earlier sweep, although their memory has changed since.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct OutdatedProcesses {
    /// Number of processes.
    pub count: u64,
    /// Time since the oldest of these PSS and USS values were read, in nanoseconds.
    pub oldest_ns: u64,
}

/// An event of the last minutes, as a sentence.
#[derive(Clone, Debug, PartialEq)]
pub struct TopEvent {
    /// Time from the sweep that found the event to the sweep of the table, in nanoseconds.
    pub age_ns: u64,
    /// The event as a sentence.
    pub sentence: Vec<CellValue>,
}
