//! Counters of chosen events, opened on a process before it executes and read after its end.

use std::ffi::CString;
use std::io;

use pagewise_model::measured::{Count, MeasuredMetric, MetricScope, Share};
use pagewise_model::{Absent, Reading};
use pagewise_sys::perf_event::{Mode, PerfCount, PerfCounter, PerfScope};

use crate::events::{EventCatalogue, ResolvedEvent, WantedEvent};
use crate::why;

/// Events, each with its counting method or the reason why it cannot be counted.
#[derive(Debug)]
pub(crate) struct Counters {
    chosen: Vec<ChosenEvent>,
}

#[derive(Debug)]
struct ChosenEvent {
    wanted: WantedEvent,
    how: Reading<CountingWay>,
}

/// Method of counting an event.
#[derive(Debug)]
struct CountingWay {
    known: ResolvedEvent,
    user_mode_only: bool,
    /// An idle counter that stays open between runs. After the last counter of a tracepoint is
    /// closed, the kernel waits about 40 ms until no CPU is in the tracepoint; the next open waits
    /// for that too.
    _keeper: PerfCounter,
}

impl Counters {
    /// Opens each event once, on the calling thread, to find its counting method.
    pub(crate) fn from_wanted(wanted: Vec<WantedEvent>, catalogue: &EventCatalogue) -> Counters {
        let chosen = wanted.into_iter().map(|wanted| {
            let how = way(&wanted, catalogue);
            ChosenEvent { wanted, how }
        });
        Counters { chosen: chosen.collect() }
    }

    /// Each event with the scope of its count, or with the reason why it is not counted.
    pub(crate) fn each(&self) -> impl Iterator<Item = (&WantedEvent, Reading<MetricScope>)> {
        self.chosen.iter().map(|chosen| {
            let how = chosen.how.as_ref().map_err(Clone::clone);
            (&chosen.wanted, how.map(|way| scope(way.user_mode_only)))
        })
    }

    pub(crate) fn metrics(&self) -> impl Iterator<Item = MeasuredMetric> {
        self.each().map(|(wanted, scope)| MeasuredMetric {
            name: wanted.name.clone(),
            unit: wanted.unit,
            scope: scope.unwrap_or(MetricScope::Process),
            origin: wanted.origin(),
        })
    }

    /// Opens all counters on a process that has not yet executed its program.
    pub(crate) fn open(&self, pid: u32) -> OpenCounters {
        let mut counters: Vec<Reading<PerfCounter>> = Vec::with_capacity(self.chosen.len());
        let mut leader: Option<(u8, usize)> = None;
        for (at, chosen) in self.chosen.iter().enumerate() {
            let group = chosen.wanted.group;
            let led_by = leader.filter(|(led, _)| group > 0 && *led == group);
            let led_by = led_by.and_then(|(_, at)| counters[at].as_ref().ok());
            let counter = match &chosen.how {
                Ok(way) => open(way, pid, led_by),
                Err(absent) => Err(absent.clone()),
            };
            if led_by.is_none() && counter.is_ok() {
                leader = Some((group, at));
            }
            counters.push(counter);
        }
        OpenCounters { counters }
    }
}

fn scope(user_mode_only: bool) -> MetricScope {
    if user_mode_only { MetricScope::ProcessUser } else { MetricScope::Process }
}

/// Finds how to count an event: in user mode and in the kernel where that is allowed, else in user
/// mode only.
fn way(wanted: &WantedEvent, catalogue: &EventCatalogue) -> Reading<CountingWay> {
    if let Some(absent) = &wanted.left_out {
        return Err(absent.clone());
    }
    let known = catalogue.find(&wanted.how)?;
    let of_the_cpu = wanted.origin() == pagewise_model::measured::MetricOrigin::Hardware;
    let explain = |error: &io::Error| why::event(error, of_the_cpu, catalogue.pmus());
    let attempt =
        |user_mode_only| open_on(known, PerfScope::ThisThread, mode(user_mode_only), None);
    match attempt(false) {
        Ok(keeper) => Ok(CountingWay { known, user_mode_only: false, _keeper: keeper }),
        Err(error) if is_refusal(&error) && wanted.is_in_kernel() => Err(why::user_mode_only()),
        Err(error) if is_refusal(&error) => match attempt(true) {
            Ok(keeper) => Ok(CountingWay { known, user_mode_only: true, _keeper: keeper }),
            Err(error) => Err(explain(&error)),
        },
        Err(error) => Err(explain(&error)),
    }
}

fn is_refusal(error: &io::Error) -> bool {
    error.kind() == io::ErrorKind::PermissionDenied
}

/// Returns the mode that counts from the next `exec` on, in children too.
fn mode(user_mode_only: bool) -> Mode {
    Mode {
        inherit: true,
        disabled: true,
        enable_on_exec: true,
        exclude_kernel: user_mode_only,
        exclude_user: false,
    }
}

fn open(way: &CountingWay, pid: u32, leader: Option<&PerfCounter>) -> Reading<PerfCounter> {
    let open =
        |leader| open_on(way.known, PerfScope::Thread(pid), mode(way.user_mode_only), leader);
    // If the CPU has too few counters for the group, the event is counted outside of the group.
    let opened =
        open(leader).or_else(|error| if leader.is_some() { open(None) } else { Err(error) });
    opened.map_err(|error| Absent::NotSupported(error.to_string().into()))
}

fn open_on(
    known: ResolvedEvent,
    whose: PerfScope,
    mode: Mode,
    leader: Option<&PerfCounter>,
) -> io::Result<PerfCounter> {
    let counter = PerfCounter::open(known.event, whose, mode, leader)?;
    if let Some(filter) = known.filter {
        counter.set_filter(&CString::new(filter)?)?;
    }
    Ok(counter)
}

/// Counters of one run.
#[derive(Debug)]
pub(crate) struct OpenCounters {
    counters: Vec<Reading<PerfCounter>>,
}

impl OpenCounters {
    /// Count of each event in the command and its children.
    pub(crate) fn read(self) -> Vec<Reading<Count>> {
        let read = |counter: Reading<PerfCounter>| {
            let counted = counter?.read();
            counted.map(count).map_err(|error| Absent::NotSupported(error.to_string().into()))
        };
        self.counters.into_iter().map(read).collect()
    }
}

fn count(counted: PerfCount) -> Count {
    let PerfCount { value, enabled, running } = counted;
    Count { value, share: Some(Share { enabled, running }) }
}
