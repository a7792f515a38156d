//! The counters of a probe, in groups that are enabled and disabled together: a group of kernel
//! events, and groups of CPU events whose ratios must be exact.

use std::ffi::CString;
use std::io;

use pagewise_model::Reading;
use pagewise_model::measured::{Count, MetricOrigin, Share};
use pagewise_sys::perf_event::{GroupTimes, Mode, PerfCount, PerfCounter, PerfScope as Thread};
use pagewise_sys::perf_page::PerfPage;

use super::{ProbeOptions, ProbeQuantity, ProbeScope};
use crate::events::{EventCatalogue, ResolvedEvent, WantedEvent};
use crate::why;

/// Maximum number of counters of a group: that of [`PerfCounter::read_group`].
const LARGEST: usize = 16;

/// Every counter of a probe.
#[derive(Debug)]
pub(super) struct Groups {
    groups: Vec<CounterGroup>,
    /// Position of each event's counter: its group, and its index there.
    places: Vec<Reading<(usize, usize)>>,
}

/// Group that a counter belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kinship {
    /// Counted by the kernel, which needs no hardware counter.
    Kernel,
    /// Counted by the CPU, in one group with the events of the same group number.
    Cpu(u8),
    /// Counted by the CPU in a group of its own.
    Alone,
}

impl Kinship {
    fn of_event(wanted: &WantedEvent) -> Kinship {
        match (wanted.origin(), wanted.group) {
            (MetricOrigin::Hardware, 0) => Kinship::Alone,
            (MetricOrigin::Hardware, group) => Kinship::Cpu(group),
            _ => Kinship::Kernel,
        }
    }
}

impl Groups {
    /// Opens the counter of each event, if possible, and describes each event's quantity.
    pub(super) fn open(
        options: &ProbeOptions,
        catalogue: &EventCatalogue,
    ) -> io::Result<(Groups, Vec<ProbeQuantity>)> {
        let mut groups = Groups { groups: Vec::new(), places: Vec::new() };
        let mut quantities = Vec::new();
        for wanted in &options.events {
            let opened = groups.add(wanted, options, catalogue);
            quantities.push(ProbeQuantity {
                name: wanted.name.clone(),
                unit: wanted.unit,
                user_mode_only: opened.as_ref().is_ok_and(|(_, user_mode_only)| *user_mode_only),
            });
            groups.places.push(opened.map(|(place, _)| place));
        }
        groups.groups.iter_mut().try_for_each(CounterGroup::read_in_user_mode_if_possible)?;
        Ok((groups, quantities))
    }

    /// Opens the counter of an event, in an existing group if possible. Returns its position, and
    /// true if it counts user mode only.
    fn add(
        &mut self,
        wanted: &WantedEvent,
        options: &ProbeOptions,
        catalogue: &EventCatalogue,
    ) -> Reading<((usize, usize), bool)> {
        let kinship = Kinship::of_event(wanted);
        let opening = Opening {
            known: catalogue.find(&wanted.how)?,
            whose: options.whose,
            modes: match (kinship, options.in_kernel, wanted.is_in_kernel()) {
                (Kinship::Cpu(_) | Kinship::Alone, false, _) => &[true],
                (_, _, true) => &[false],
                (_, _, false) => &[false, true],
            },
        };
        let takes = |group: &CounterGroup| {
            group.kinship == kinship && kinship != Kinship::Alone && group.counters.len() < LARGEST
        };
        // If the CPU has too few counters for the group, the event begins a new group.
        if let Some(at) = self.groups.iter().rposition(takes)
            && let Ok((counter, user_mode_only)) = opening.open(Some(self.groups[at].leader()))
        {
            return Ok(((at, self.groups[at].push(counter)), user_mode_only));
        }
        let (counter, user_mode_only) = opening.open(None).map_err(|error| match error.kind() {
            io::ErrorKind::PermissionDenied if wanted.is_in_kernel() => why::user_mode_only(),
            _ => why::event(&error, kinship != Kinship::Kernel, catalogue.pmus()),
        })?;
        let mut group = CounterGroup::new(kinship);
        group.push(counter);
        self.groups.push(group);
        Ok(((self.groups.len() - 1, 0), user_mode_only))
    }

    pub(super) fn start(&mut self) -> io::Result<()> {
        self.groups.iter_mut().try_for_each(CounterGroup::start)
    }

    /// Stops the groups, in the reverse order of their start.
    pub(super) fn freeze(&mut self) -> io::Result<()> {
        self.groups.iter_mut().rev().try_for_each(CounterGroup::freeze)
    }

    pub(super) fn read_counts(&mut self) -> io::Result<()> {
        self.groups.iter_mut().try_for_each(CounterGroup::read_counts)
    }

    /// Count of each event between the last start and the last reading.
    pub(super) fn counts(&self) -> impl Iterator<Item = Reading<Count>> {
        self.places.iter().map(|place| match place {
            Ok((group, counter)) => Ok(self.groups[*group].count(*counter)),
            Err(absent) => Err(absent.clone()),
        })
    }
}

/// Parameters of opening an event's counter.
struct Opening {
    known: ResolvedEvent,
    whose: ProbeScope,
    /// True to count user mode only: the values are tried in order until the kernel accepts one.
    modes: &'static [bool],
}

impl Opening {
    fn open(&self, leader: Option<&PerfCounter>) -> io::Result<(PerfCounter, bool)> {
        let mut refused = io::ErrorKind::PermissionDenied.into();
        for user_mode_only in self.modes {
            match self.open_so(*user_mode_only, leader) {
                Ok(counter) => return Ok((counter, *user_mode_only)),
                Err(error) if error.kind() == io::ErrorKind::PermissionDenied => refused = error,
                Err(error) => return Err(error),
            }
        }
        Err(refused)
    }

    fn open_so(
        &self,
        user_mode_only: bool,
        leader: Option<&PerfCounter>,
    ) -> io::Result<PerfCounter> {
        let mode = Mode {
            inherit: self.whose == ProbeScope::Process,
            // Enabling the leader enables the whole group.
            disabled: leader.is_none(),
            enable_on_exec: false,
            exclude_kernel: user_mode_only,
            exclude_user: false,
        };
        let ResolvedEvent { event, filter } = self.known;
        let counter = PerfCounter::open_in_group(event, Thread::ThisThread, mode, leader)?;
        if let Some(filter) = filter {
            counter.set_filter(&CString::new(filter)?)?;
        }
        Ok(counter)
    }
}

/// Counters that one system call enables or disables, and that are read by one system call or in
/// user mode.
#[derive(Debug)]
struct CounterGroup {
    kinship: Kinship,
    /// Counters of the group, the leader first.
    counters: Vec<PerfCounter>,
    /// One page per counter if all are read in user mode: then the counters always run. Otherwise
    /// empty.
    pages: Vec<PerfPage>,
    before: Vec<PerfCount>,
    now: Vec<PerfCount>,
}

impl CounterGroup {
    fn new(kinship: Kinship) -> CounterGroup {
        CounterGroup { kinship, counters: vec![], pages: vec![], before: vec![], now: vec![] }
    }

    fn leader(&self) -> &PerfCounter {
        &self.counters[0]
    }

    /// Adds a counter and returns its index in the group.
    fn push(&mut self, counter: PerfCounter) -> usize {
        self.counters.push(counter);
        self.before.push(PerfCount::default());
        self.now.push(PerfCount::default());
        self.counters.len() - 1
    }

    /// If all CPU counters of the group can be read by `rdpmc`, starts them and maps their pages.
    fn read_in_user_mode_if_possible(&mut self) -> io::Result<()> {
        if self.kinship == Kinship::Kernel {
            return Ok(());
        }
        let page =
            |counter| PerfPage::map_counter(counter).ok().filter(|page| page.read().is_some());
        let Some(pages) = self.counters.iter().map(page).collect() else { return Ok(()) };
        self.pages = pages;
        self.leader().enable()
    }

    fn start(&mut self) -> io::Result<()> {
        if self.pages.is_empty() {
            // `before` is still valid: the group did not run since its last reading.
            return self.leader().enable();
        }
        read_pages(&self.pages, &mut self.before)
    }

    fn freeze(&mut self) -> io::Result<()> {
        if self.pages.is_empty() {
            return self.leader().disable();
        }
        read_pages(&self.pages, &mut self.now)
    }

    fn read_counts(&mut self) -> io::Result<()> {
        if self.pages.is_empty() {
            self.before.copy_from_slice(&self.now);
            let mut values = [0; LARGEST];
            let values = &mut values[..self.counters.len()];
            let GroupTimes { enabled, running } = self.leader().read_group(values)?;
            for (now, value) in self.now.iter_mut().zip(values) {
                *now = PerfCount { value: *value, enabled, running };
            }
        }
        Ok(())
    }

    fn count(&self, counter: usize) -> Count {
        let (before, now) = (self.before[counter], self.now[counter]);
        let share = Share {
            enabled: now.enabled.saturating_sub(before.enabled),
            running: now.running.saturating_sub(before.running),
        };
        Count { value: now.value.wrapping_sub(before.value), share: Some(share) }
    }
}

impl Drop for CounterGroup {
    /// The leader is closed last.
    fn drop(&mut self) {
        while self.counters.pop().is_some() {}
    }
}

/// Reads each counter in user mode.
fn read_pages(pages: &[PerfPage], into: &mut [PerfCount]) -> io::Result<()> {
    for (page, counted) in pages.iter().zip(into) {
        // A counter that could be read in user mode when it was opened can still be read: the
        // kernel keeps the page while it is mapped.
        *counted = page.read().ok_or(io::ErrorKind::Unsupported)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::events::choose;

    fn group(before: PerfCount, now: PerfCount) -> CounterGroup {
        let mut group = CounterGroup::new(Kinship::Alone);
        group.before.push(before);
        group.now.push(now);
        group
    }

    #[test]
    fn a_count_is_what_was_added_and_for_how_much_of_the_time() {
        let before = PerfCount { value: 1_000, enabled: 50, running: 40 };
        let now = PerfCount { value: 1_700, enabled: 150, running: 65 };
        let share = Some(Share { enabled: 100, running: 25 });
        assert_eq!(group(before, now).count(0), Count { value: 700, share });
    }

    #[test]
    fn a_counter_that_wraps_has_still_counted() {
        let before = PerfCount { value: u64::MAX - 1, ..PerfCount::default() };
        let now = PerfCount { value: 3, ..PerfCount::default() };
        assert_eq!(group(before, now).count(0).value, 5);
    }

    #[test]
    fn kernel_events_share_a_group_and_cpu_events_are_grouped_by_number() {
        let kinship = |name| Kinship::of_event(&choose(name).unwrap()[0]);
        assert_eq!(kinship("page_faults"), Kinship::Kernel);
        assert_eq!(kinship("kmem:mm_page_alloc"), Kinship::Kernel);
        assert_eq!(kinship("cycles"), kinship("instructions"));
        assert_ne!(kinship("cycles"), kinship("dtlb_reads"));
        assert_eq!(kinship("r1a2"), Kinship::Alone);
    }

    #[test]
    fn every_event_has_a_place_or_a_reason_in_the_order_of_the_events() {
        let events = choose("page_faults,r1ffffffffff,minor_faults").unwrap();
        let options = ProbeOptions { events, ..ProbeOptions::default() };
        let (groups, quantities) = Groups::open(&options, &EventCatalogue::open()).unwrap();
        let names: Vec<&str> = quantities.iter().map(|quantity| &*quantity.name).collect();
        assert_eq!(names, ["page_faults", "r1ffffffffff", "minor_faults"]);
        if let Some(Err(pagewise_model::Absent::NotPermitted(needs))) = groups.counts().next() {
            let why = format!("this user may count no events: that needs {needs}");
            return pagewise_skip::skip(&pagewise_skip::Lack::Machine(&why));
        }
        let there: Vec<bool> = groups.counts().map(|count| count.is_ok()).collect();
        assert_eq!(there, [true, false, true]);
        assert_eq!(groups.groups.len(), 1, "one call switches both");
    }
}
