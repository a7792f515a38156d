//! Evidence, and values that several rules derive from it.

use std::collections::HashMap;

use pagewise_model::cause::CauseObject;
use pagewise_model::evidence::{
    ActivityPoint, CallProfileRow, CpuWaits, Evidence, MachinePoint, counter,
};
use pagewise_model::faults::{FaultMapping, FaultRecording, FaultRow};
use pagewise_model::heap_sample::HeapSample;
use pagewise_model::traced::Frame;
use pagewise_model::{Bytes, Reading, Snapshot};

use super::responsible::responsible;
use crate::cells::float;
use crate::explain::ExplainSubject;

const NS_PER_SECOND: f64 = 1e9;

/// Evidence, and values that are computed from it once for all rules.
pub(crate) struct CauseEvidence<'a> {
    pub(crate) all: &'a Evidence,
    /// The latest snapshot.
    pub(crate) now: &'a Snapshot,
    /// Pools and quadrants of the latest snapshot.
    pub(crate) subject: &'a Reading<ExplainSubject<'a>>,
    /// Pools and quadrants of the first snapshot, if the evidence has two snapshots.
    pub(crate) before: Option<&'a ExplainSubject<'a>>,
}

/// Events for which one function is responsible, as a part of all events.
#[derive(Clone, Copy, Debug)]
pub(crate) struct FunctionShare<'a> {
    /// Stack frame of the responsible function.
    pub(crate) frame: &'a Frame,
    /// Number of events of the function.
    pub(crate) count: u64,
    /// Number of events of all functions.
    pub(crate) all: u64,
}

impl FunctionShare<'_> {
    /// Share of the function in all events, from 0 to 1.
    pub(crate) fn share(&self) -> f64 {
        if self.all == 0 { 0.0 } else { float(self.count) / float(self.all) }
    }

    /// Returns the function as the object of a cause.
    pub(crate) fn object(&self) -> CauseObject {
        CauseObject::Function(with_public_name(self.frame))
    }
}

/// Replaces the internal name of a function of glibc by its public name: the debug symbols have
/// internal names, such as `__GI___strdup` and `__strdup`.
fn with_public_name(frame: &Frame) -> Frame {
    let mut named = frame.clone();
    let is_of_glibc = frame.module.as_ref().is_some_and(|it| it.base().starts_with(b"libc.so"));
    if let Some(name) = named.function.as_mut().filter(|_| is_of_glibc) {
        let public = name.strip_prefix("__GI_").unwrap_or(name);
        let public =
            public.strip_prefix("__").filter(|it| !it.starts_with("libc_")).unwrap_or(public);
        if !public.is_empty() {
            *name = public.to_owned();
        }
    }
    named
}

/// The latest snapshot of the evidence.
pub(crate) fn latest(evidence: &Evidence) -> &Snapshot {
    evidence.last.value().map_or(&evidence.first, |last| last)
}

impl<'a> CauseEvidence<'a> {
    /// Resident memory (RES) of the process at the end of the observation.
    pub(crate) fn resident(&self) -> Option<Bytes> {
        self.now.statm.as_ref().ok().map(|statm| statm.resident)
    }

    /// Duration of the observation in seconds; `None` if the counters were read fewer than two
    /// times.
    pub(crate) fn seconds(&self) -> Option<f64> {
        let (first, last) = self.ends()?;
        let span = last.at_ns.checked_sub(first.at_ns).filter(|span| *span > 0)?;
        Some(float(span) / NS_PER_SECOND)
    }

    /// The first and the last reading of the counters of the process.
    pub(crate) fn ends(&self) -> Option<(&'a ActivityPoint, &'a ActivityPoint)> {
        match self.all.activity.as_slice() {
            [first, .., last] => Some((first, last)),
            _ => None,
        }
    }

    /// Factor by which the rates of the process would be higher if CPUs were free. Rules multiply
    /// rates by this factor so that the load of other processes does not hide trouble.
    pub(crate) fn demand(&self) -> f64 {
        self.all.cpu_waits.value().map_or(1.0, CpuWaits::demand)
    }

    /// Increase per second of a counter of the process.
    pub(crate) fn rate(&self, value: impl Fn(&ActivityPoint) -> u64) -> Option<f64> {
        let (first, last) = self.ends()?;
        Some(float(value(last).saturating_sub(value(first))) / self.seconds()?)
    }

    /// Growth of a size of the process in bytes per second, negative if the size shrinks.
    pub(crate) fn growth(&self, value: impl Fn(&ActivityPoint) -> Option<Bytes>) -> Option<f64> {
        let (first, last) = self.ends()?;
        let (before, after) = (value(first)?, value(last)?);
        Some((float(after.0) - float(before.0)) / self.seconds()?)
    }

    /// Share of the intervals between consecutive readings in which a size grew, from 0 to 1. The
    /// share of steady growth is near 1.
    pub(crate) fn growing_share(
        &self,
        value: impl Fn(&ActivityPoint) -> Option<Bytes>,
    ) -> Option<f64> {
        let values: Option<Vec<Bytes>> = self.all.activity.iter().map(value).collect();
        let values = values.filter(|values| values.len() > 1)?;
        let grown = values.windows(2).filter(|pair| pair[1] > pair[0]).count();
        Some(float(grown as u64) / float(values.len() as u64 - 1))
    }

    /// Increase per second of a counter in `/proc/vmstat`.
    pub(crate) fn vmstat_rate(&self, name: &str) -> Option<f64> {
        self.machine_rate(|point| counter(&point.vmstat, name))
    }

    /// Increase per second of a counter of the machine.
    pub(crate) fn machine_rate(&self, value: impl Fn(&MachinePoint) -> Option<u64>) -> Option<f64> {
        let [first, last] = &self.all.machine;
        let span = last.at_ns.checked_sub(first.at_ns).filter(|span| *span > 0)?;
        let increase = value(last)?.saturating_sub(value(first)?);
        Some(float(increase) * NS_PER_SECOND / float(span))
    }

    /// The latest sample of the heap.
    pub(crate) fn heap_sample(&self) -> Option<&'a HeapSample> {
        self.now.heap_sample.as_ref().or(self.all.first.heap_sample.as_ref()).ok()
    }

    /// The recording of page faults.
    pub(crate) fn faults(&self) -> Option<&'a FaultRecording> {
        self.all.faults.value().map(|recording| &**recording)
    }

    /// Returns the function that is responsible for most of the page faults that a filter selects.
    pub(crate) fn faulting_function(
        &self,
        is_meant: impl Fn(&FaultRow, Option<&FaultMapping>) -> bool,
    ) -> Option<FunctionShare<'a>> {
        let recording = self.faults()?;
        let rows = recording
            .rows
            .iter()
            .filter(|row| is_meant(row, recording.mappings.get(row.mapping as usize)));
        most(rows.map(|row| (row.stack, row.count)), &recording.stacks, &recording.frames)
    }

    /// Returns the function that is responsible for most of the memory system calls that a filter
    /// selects.
    pub(crate) fn calling_function(
        &self,
        is_meant: impl Fn(&CallProfileRow) -> bool,
    ) -> Option<FunctionShare<'a>> {
        let profile = self.all.calls.value()?;
        let rows = profile.rows.iter().filter(|row| is_meant(row));
        most(rows.map(|row| (row.stack, row.count)), &profile.stacks, &profile.frames)
    }

    /// Returns the function that allocated most of the bytes that were not freed during the
    /// recording of allocations. The number of events is the number of live bytes.
    pub(crate) fn allocating_function(&self) -> Option<FunctionShare<'a>> {
        let profile = self.all.allocations.value()?;
        let rows = profile.rows.iter().map(|row| (row.stack, row.live.0));
        most(rows, &profile.stacks, &profile.frames).filter(|function| function.count > 0)
    }

    /// Process ID, for the text of commands.
    pub(crate) fn pid(&self) -> u32 {
        self.now.process.pid.0
    }
}

/// Returns the responsible function with the most events. Each item of `events` is the index of a
/// stack and its number of events.
pub(super) fn most<'a>(
    events: impl Iterator<Item = (u32, u64)>,
    stacks: &'a [Vec<u32>],
    frames: &'a [Frame],
) -> Option<FunctionShare<'a>> {
    let mut by_stack: HashMap<u32, u64> = HashMap::new();
    let mut all = 0;
    for (stack, count) in events {
        *by_stack.entry(stack).or_default() += count;
        all += count;
    }
    // Frames of one function can have different source lines. Their events are summed, and the
    // frame with the most events represents the function.
    let mut functions: HashMap<_, (u64, u64, &Frame)> = HashMap::new();
    for (stack, count) in by_stack {
        let Some(stack) = stacks.get(stack as usize) else { continue };
        let stack: Vec<&Frame> =
            stack.iter().filter_map(|frame| frames.get(*frame as usize)).collect();
        let Some(frame) = responsible(&stack) else { continue };
        let offset = if frame.function.is_none() { frame.offset } else { 0 };
        let entry = functions
            .entry((frame.function.as_deref(), frame.module.as_ref(), offset))
            .or_insert((0, 0, frame));
        entry.0 += count;
        if count > entry.1 {
            (entry.1, entry.2) = (count, frame);
        }
    }
    let (count, _, frame) =
        functions.into_values().max_by_key(|(count, _, frame)| (*count, frame.offset))?;
    Some(FunctionShare { frame, count, all })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn functions_of_glibc_have_the_names_that_programs_call() {
        let named = |function: &str, module: &str| {
            let frame = Frame {
                function: Some(function.to_owned()),
                module: Some(module.into()),
                offset: 0,
                line: None,
                inlined: false,
            };
            FunctionShare { frame: &frame, count: 1, all: 1 }.object().function().map(str::to_owned)
        };
        let glibc = "/usr/lib/libc.so.6";
        for name in ["__GI___strdup", "__GI_strdup", "__strdup", "strdup"] {
            assert_eq!(named(name, glibc).as_deref(), Some("strdup"), "{name}");
        }
        assert_eq!(named("__libc_malloc", glibc).as_deref(), Some("__libc_malloc"));
        assert_eq!(named("__init", "/app").as_deref(), Some("__init"));
    }
}
