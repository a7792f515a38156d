//! Events between two sweeps.

use serde::{Deserialize, Serialize};

use super::{ProcessKey, SweepTime};
use crate::reading::plain;
use crate::{Bytes, Name, Reading};

/// An event, and the time of the sweep that found it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SweepEvent {
    /// The sweep that found it: the event is at most one interval older.
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
        /// The process.
        process: ProcessKey,
        /// `comm`.
        name: Name,
    },
    /// A process ended.
    Exited {
        /// The process.
        process: ProcessKey,
        /// `comm`.
        name: Name,
        /// `VmHWM` at its last reading. A later peak is not seen.
        #[serde(with = "plain")]
        peak_rss: Reading<Bytes>,
        /// Resident bytes at its last reading.
        last_rss: Bytes,
        /// Its lifetime, up to its last reading.
        lived_ns: u64,
    },
    /// Processes or threads that began and ended between two sweeps.
    ShortLived {
        /// Their number.
        count: u64,
    },
    /// The kernel killed processes because memory ran out.
    OomKill {
        /// The memory cgroup; `None` if the machine's counter alone grew.
        cgroup: Option<Name>,
        /// Number of kills.
        kills: u64,
    },
    /// The kernel's report of an OOM kill, which its log had with the sweep that found the kill.
    OomReport {
        /// The report in words: who asked for memory, which limit was reached, who was killed.
        explanation: Name,
    },
    /// A cgroup reached its limit.
    LimitHit {
        /// The cgroup.
        cgroup: Name,
        /// Number of times since the last sweep.
        hits: u64,
        /// The limit.
        #[serde(with = "plain")]
        limit: Reading<Option<Bytes>>,
    },
    /// No sweeps from `from` until the time of the event.
    Gap {
        /// The last sweep before it.
        from: SweepTime,
        /// The reason.
        reason: GapReason,
    },
    /// The clock of the machine was set.
    ClockSet {
        /// Change in nanoseconds; negative if it was set back.
        by_ns: i64,
    },
    /// A trigger fired, and the recorder makes a snapshot and a diagnosis.
    Triggered {
        /// The trigger.
        trigger: SweepTrigger,
        /// Its process or cgroup.
        target: TriggerTarget,
    },
    /// The snapshot or diagnosis after a trigger was not made.
    NotSaved {
        /// Snapshot or diagnosis.
        kind: PostMortemKind,
        /// Its process.
        process: ProcessKey,
        /// The reason, from the process that should have made it.
        reason: Name,
    },
}

impl SweepEventKind {
    /// The name in JSON and in the database.
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
    /// The recorder did not run, or was killed.
    NotRunning,
    /// The machine was off or started again.
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
    /// A process grows fast.
    Growth,
    /// Tasks wait for memory.
    Pressure,
    /// The limit of a cgroup is nearly reached.
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

/// File that the recorder saves after a trigger. Snapshots are made before diagnoses.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum PostMortemKind {
    /// All mappings of the process, as `pagewise explain --save` saves them.
    Snapshot,
    /// The evidence of `pagewise diagnose --save`.
    Diagnosis,
}

impl PostMortemKind {
    /// The name in reports, in the database, and in names of files.
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
