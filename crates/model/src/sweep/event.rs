//! Events of processes, cgroups and the machine between two sweeps.

use serde::{Deserialize, Serialize};

use super::{ProcessKey, SweepTime};
use crate::reading::plain;
use crate::{Bytes, Name, Reading};

/// An event, and the time of the sweep that found it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SweepEvent {
    /// Time of the sweep that found the event. The event happened after the previous sweep.
    pub time: SweepTime,
    /// The event.
    pub event: SweepEventKind,
}

/// Events of processes, cgroups, the machine, and the recorder.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum SweepEventKind {
    /// A process began.
    Started {
        /// Identity of the process.
        process: ProcessKey,
        /// `comm` of the process.
        name: Name,
    },
    /// A process ended.
    Exited {
        /// Identity of the process.
        process: ProcessKey,
        /// `comm` of the process.
        name: Name,
        /// `VmHWM` at the last sweep with the process. A later peak is unknown.
        #[serde(with = "plain")]
        peak_rss: Reading<Bytes>,
        /// Resident bytes at the last sweep with the process.
        last_rss: Bytes,
        /// Time from the start of the process to the last sweep with the process, in nanoseconds.
        lived_ns: u64,
    },
    /// Processes or threads began and ended between two sweeps.
    ShortLived {
        /// Number of processes or threads.
        count: u64,
    },
    /// The kernel killed processes because memory was exhausted.
    OomKill {
        /// Path of the memory cgroup; `None` if only the machine's counter of OOM kills increased.
        cgroup: Option<Name>,
        /// Number of OOM kills since the last sweep.
        kills: u64,
    },
    /// The kernel log contains a report of an OOM kill that the same sweep found.
    OomReport {
        /// The report in words: the process that requested memory, the limit that was reached, and
        /// the killed processes.
        explanation: Name,
    },
    /// A cgroup reached its limit.
    LimitHit {
        /// Path of the cgroup.
        cgroup: Name,
        /// Number of times that the limit was reached since the last sweep.
        hits: u64,
        /// Limit in bytes; `None` is unlimited.
        #[serde(with = "plain")]
        limit: Reading<Option<Bytes>>,
    },
    /// No sweep was made between `from` and the time of the event.
    Gap {
        /// Time of the last sweep before the gap.
        from: SweepTime,
        /// Reason of the gap.
        reason: GapReason,
    },
    /// The clock of the machine was set.
    ClockSet {
        /// Change in nanoseconds; negative if it was set back.
        by_ns: i64,
    },
    /// A trigger fired. The recorder then makes a snapshot and a diagnosis.
    Triggered {
        /// The trigger that fired.
        trigger: SweepTrigger,
        /// The process, cgroup or machine that made the trigger fire.
        target: TriggerTarget,
    },
    /// The snapshot or diagnosis after a trigger could not be saved.
    NotSaved {
        /// Kind of the missing file: snapshot or diagnosis.
        kind: PostMortemKind,
        /// Identity of the process.
        process: ProcessKey,
        /// Reason of the failure, from the child process that was to save the file.
        reason: Name,
    },
}

impl SweepEventKind {
    /// The event's name in JSON and in the database.
    pub const fn key(&self) -> &'static str {
        match self {
            SweepEventKind::Started { .. } => "started",
            SweepEventKind::Exited { .. } => "exited",
            SweepEventKind::ShortLived { .. } => "short-lived",
            SweepEventKind::OomKill { .. } => "oom-kill",
            SweepEventKind::OomReport { .. } => "oom-report",
            SweepEventKind::LimitHit { .. } => "limit-hit",
            SweepEventKind::Gap { .. } => "gap",
            SweepEventKind::ClockSet { .. } => "clock-set",
            SweepEventKind::Triggered { .. } => "triggered",
            SweepEventKind::NotSaved { .. } => "not-saved",
        }
    }
}

/// Reason for a time without sweeps.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum GapReason {
    /// The recorder was not running, or was killed.
    NotRunning,
    /// The machine was switched off or restarted.
    Reboot,
    /// The machine was suspended.
    Suspended,
    /// The recorder got no CPU time.
    Delayed,
    /// The disk was full or refused writes.
    NotWritable,
    /// Rows of the database are damaged.
    Damaged,
}

impl GapReason {
    /// The name in reports and in the database.
    pub const fn key(self) -> &'static str {
        match self {
            GapReason::NotRunning => "recorder not running",
            GapReason::Reboot => "reboot",
            GapReason::Suspended => "machine suspended",
            GapReason::Delayed => "recorder delayed",
            GapReason::NotWritable => "disk full or not writable",
            GapReason::Damaged => "damaged rows",
        }
    }
}

/// Condition under which the recorder saves a snapshot and a diagnosis.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum SweepTrigger {
    /// The memory of a process grows fast.
    Growth,
    /// Tasks wait for memory.
    Pressure,
    /// A cgroup has nearly reached its limit.
    NearLimit,
}

impl SweepTrigger {
    /// The name in reports and in the database.
    pub const fn key(self) -> &'static str {
        match self {
            SweepTrigger::Growth => "growth",
            SweepTrigger::Pressure => "pressure",
            SweepTrigger::NearLimit => "near-limit",
        }
    }
}

/// Kind of file that the recorder saves after a trigger. Snapshots are made before diagnoses.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum PostMortemKind {
    /// A snapshot with all mappings of the process, like those of `pagewise explain --save`.
    Snapshot,
    /// The evidence of a diagnosis, like that of `pagewise diagnose --save`.
    Diagnosis,
}

impl PostMortemKind {
    /// The name in reports, in the database and in file names.
    pub const fn key(self) -> &'static str {
        match self {
            PostMortemKind::Snapshot => "snapshot",
            PostMortemKind::Diagnosis => "diagnosis",
        }
    }
}

/// The process, cgroup or machine that made a trigger fire.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum TriggerTarget {
    /// A process.
    Process(ProcessKey),
    /// A cgroup.
    Cgroup(Name),
    /// The machine.
    Machine,
}
