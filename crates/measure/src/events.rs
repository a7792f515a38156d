//! The events that can be counted, one row each, and the words that choose them.

use std::cell::OnceCell;
use std::io;

use pagewise_model::measured::{Countable, CountableSurvey, MetricOrigin, MetricUnit, Pmu};
use pagewise_model::report::Label;
use pagewise_model::{Absent, Name, Reading};
use pagewise_sys::perf_event::{PerfEvent, PerfType};
use pagewise_sys::system::kernel_release;
use pagewise_sys::tracefs::TraceFs;

use crate::counters::Counters;
use crate::error::MeasureError;
use crate::pmu::{Pmus, Terms};
use crate::runner::RunCount;
use crate::why;

/// An event to which pagewise gives a name.
#[derive(Debug)]
pub struct EventRow {
    /// Name, such as `dtlb_read_misses`.
    pub name: &'static str,
    /// Event to count.
    pub what: EventSource,
    /// Unit of the event's values.
    pub unit: MetricUnit,
    /// Number of the group of CPU events that are counted at the same time, so that their ratios
    /// are exact; 0 for events that are counted alone.
    pub group: u8,
    /// True if `stat` counts the event by default.
    pub usual: bool,
}

/// Encoding of an event for the kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EventSource {
    /// A `PERF_COUNT_SW_*`.
    Software {
        /// Number of the event.
        config: u64,
        /// True if the event happens in the kernel, so that it cannot be counted in user mode only.
        in_kernel: bool,
    },
    /// A `PERF_COUNT_HW_*`.
    Hardware(u64),
    /// A `PERF_COUNT_HW_CACHE_*` cache, operation and result.
    Cache(PerfCache, Operation, CacheOutcome),
    /// A tracepoint below `events` in tracefs, and a filter on its fields.
    Tracepoint(&'static str, Option<&'static str>),
    /// Page walks after reads or writes that missed every TLB. The event number depends on the CPU
    /// model.
    PageWalks(Operation),
}

/// A cache, with its number in `perf_event_open`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PerfCache {
    /// The first level, for data.
    L1d = 0,
    /// The last level.
    Llc = 2,
    /// The TLB for data.
    Dtlb = 3,
}

/// Kind of access to a cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Operation {
    /// Loads.
    Read = 0,
    /// Stores.
    Write = 1,
    /// Loads by prefetch.
    Prefetch = 2,
}

/// Outcome of an access to a cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CacheOutcome {
    /// Hits and misses.
    Access = 0,
    /// Misses only.
    Miss = 1,
}

const fn software(config: u64) -> EventSource {
    EventSource::Software { config, in_kernel: false }
}

const fn in_kernel(config: u64) -> EventSource {
    EventSource::Software { config, in_kernel: true }
}

macro_rules! rows {
    ($($name:literal $what:expr, $unit:ident, $group:literal, $usual:literal;)*) => {
        &[$(EventRow {
            name: $name,
            what: $what,
            unit: MetricUnit::$unit,
            group: $group,
            usual: $usual,
        }),*]
    };
}

use CacheOutcome::{Access, Miss};
use EventSource::{Hardware, Tracepoint};
use Operation::{Prefetch, Read, Write};
use PerfCache::{Dtlb, L1d, Llc};

/// Tracepoint whose rows filter by flush reason.
const TLB_FLUSH: &str = "tlb/tlb_flush";
const TRACES_TLB_FLUSHES: bool = cfg!(any(target_arch = "x86", target_arch = "x86_64"));

/// Every event to which pagewise gives a name; `model::fields` describes their meanings. Numbers
/// are those of `linux/perf_event.h`, reasons those of `enum tlb_flush_reason`.
pub const EVENTS: &[EventRow] = rows! {
    "task_clock" software(1), Nanos, 0, true;
    "page_faults" software(2), Count, 0, true;
    "minor_faults" software(5), Count, 0, false;
    "major_faults" software(6), Count, 0, false;
    "context_switches" in_kernel(3), Count, 0, true;
    "cpu_migrations" in_kernel(4), Count, 0, true;
    "alignment_faults" software(7), Count, 0, false;
    "emulation_faults" software(8), Count, 0, false;

    "cycles" Hardware(0), Count, 1, true;
    "instructions" Hardware(1), Count, 1, true;
    "l1d_reads" EventSource::Cache(L1d, Read, Access), Count, 2, true;
    "l1d_read_misses" EventSource::Cache(L1d, Read, Miss), Count, 2, true;
    "l1d_writes" EventSource::Cache(L1d, Write, Access), Count, 3, true;
    "l1d_write_misses" EventSource::Cache(L1d, Write, Miss), Count, 3, true;
    "l1d_prefetches" EventSource::Cache(L1d, Prefetch, Access), Count, 4, true;
    "l1d_prefetch_misses" EventSource::Cache(L1d, Prefetch, Miss), Count, 4, true;
    "dtlb_reads" EventSource::Cache(Dtlb, Read, Access), Count, 5, true;
    "dtlb_read_misses" EventSource::Cache(Dtlb, Read, Miss), Count, 5, true;
    "dtlb_writes" EventSource::Cache(Dtlb, Write, Access), Count, 6, true;
    "dtlb_write_misses" EventSource::Cache(Dtlb, Write, Miss), Count, 6, true;
    "page_walks_read" EventSource::PageWalks(Read), Count, 7, true;
    "page_walks_write" EventSource::PageWalks(Write), Count, 7, true;
    "llc_reads" EventSource::Cache(Llc, Read, Access), Count, 8, true;
    "llc_read_misses" EventSource::Cache(Llc, Read, Miss), Count, 8, true;

    "page_fault_user" Tracepoint("exceptions/page_fault_user", None), Count, 0, true;
    "page_fault_kernel" Tracepoint("exceptions/page_fault_kernel", None), Count, 0, true;
    "tlb_flush_task_switch" Tracepoint(TLB_FLUSH, Some("reason == 0")), Count, 0, true;
    "tlb_flush_remote_received" Tracepoint(TLB_FLUSH, Some("reason == 1")), Count, 0, true;
    "tlb_flush_local" Tracepoint(TLB_FLUSH, Some("reason == 2")), Count, 0, true;
    "tlb_flush_local_mm" Tracepoint(TLB_FLUSH, Some("reason == 3")), Count, 0, true;
    "tlb_flush_remote_sent" Tracepoint(TLB_FLUSH, Some("reason == 4")), Count, 0, true;
    "tlb_flush_wrong_cpu" Tracepoint(TLB_FLUSH, Some("reason == 5")), Count, 0, true;
    "mm_page_alloc" Tracepoint("kmem/mm_page_alloc", None), Count, 0, true;
    "mm_compaction_begin" Tracepoint("compaction/mm_compaction_begin", None), Count, 0, true;
    "mm_direct_reclaim_begin" Tracepoint("vmscan/mm_vmscan_direct_reclaim_begin", None), Count, 0, true;
};

/// A requested event.
#[derive(Clone, Debug)]
pub struct WantedEvent {
    /// Name in [`EVENTS`], or the words that chose the event.
    pub name: Label,
    /// Unit of the event's values.
    pub unit: MetricUnit,
    /// As [`EventRow::group`].
    pub group: u8,
    /// Kernel encoding.
    pub how: How,
    /// Reason for not counting a requested event; `None` to count it.
    pub left_out: Option<Absent>,
}

/// Kernel encoding of an event.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum How {
    /// A row of [`EVENTS`].
    Known(EventSource),
    /// A tracepoint below `events` in tracefs.
    Tracepoint(String),
    /// An event of the CPU by its number.
    Raw(u64),
    /// An event of a PMU, by its terms in sysfs.
    Pmu(String, Terms),
}

impl WantedEvent {
    fn from_row(row: &EventRow) -> WantedEvent {
        WantedEvent {
            name: row.name.into(),
            unit: row.unit,
            group: row.group,
            how: How::Known(row.what),
            left_out: None,
        }
    }

    /// Origin of the event's values.
    pub fn origin(&self) -> MetricOrigin {
        match &self.how {
            How::Known(EventSource::Software { .. }) => MetricOrigin::Software,
            How::Known(EventSource::Tracepoint(..)) | How::Tracepoint(_) => {
                MetricOrigin::Tracepoint
            }
            How::Known(_) | How::Raw(_) | How::Pmu(..) => MetricOrigin::Hardware,
        }
    }

    /// Returns true if the event happens in the kernel, so that a count in user mode only would
    /// always be 0.
    pub(crate) fn is_in_kernel(&self) -> bool {
        matches!(
            self.how,
            How::Known(EventSource::Software { in_kernel: true, .. } | EventSource::Tracepoint(..))
                | How::Tracepoint(_)
        )
    }
}

/// The events that a list of words chooses.
///
/// The words, with commas between: names of [`EVENTS`]; sets of them (`usual`, `software`,
/// `hardware`, `tracepoints`, `all`, `none`); tracepoints as `kmem:mm_page_free`; raw events of the
/// CPU as `r01a2`; events of a PMU as `cpu/event=0xd0,umask=0x11/` or `cpu/mem-loads/`.
///
/// # Errors
/// [`MeasureError::UnknownEvent`].
pub fn choose(words: &str) -> Result<Vec<WantedEvent>, MeasureError> {
    let mut chosen: Vec<WantedEvent> = Vec::new();
    let tracefs = OnceCell::new();
    for word in split(words) {
        for wanted in chosen_by(word)? {
            if let How::Tracepoint(path) = &wanted.how
                && is_missing(tracefs.get_or_init(with_events).as_ref(), path)
            {
                return Err(MeasureError::UnknownEvent { word: word.to_owned() });
            }
            if !chosen.iter().any(|have| have.name == wanted.name) {
                chosen.push(wanted);
            }
        }
    }
    Ok(chosen)
}

/// Opens tracefs; `None` if it cannot be opened, or has no tracepoints.
fn with_events() -> Option<TraceFs> {
    TraceFs::open().ok().filter(TraceFs::has_events)
}

/// True if this kernel has no such tracepoint; false if tracefs cannot be read.
fn is_missing(tracefs: Option<&TraceFs>, path: &str) -> bool {
    let id = |tracefs: &TraceFs| tracefs.read(&format!("events/{path}/id"));
    tracefs.is_some_and(|tracefs| id(tracefs).is_err_and(|e| e.kind() == io::ErrorKind::NotFound))
}

/// Default events. For a single run, tracepoints are not counted: the kernel takes a quarter of a
/// second to close them once, which can exceed the duration of a short run.
pub fn usual(runs: RunCount) -> Vec<WantedEvent> {
    let mut wanted: Vec<WantedEvent> =
        EVENTS.iter().filter(|row| row.usual).map(WantedEvent::from_row).collect();
    if runs == RunCount::Exactly(1) {
        let why =
            "closing tracepoints takes 0.2 s, too long for a single run: --events all counts them";
        for wanted in wanted.iter_mut().filter(|wanted| wanted.origin() == MetricOrigin::Tracepoint)
        {
            wanted.left_out = Some(Absent::NotCollected(why.into()));
        }
    }
    wanted
}

/// Splits a list at its commas, except at commas between two slashes: these separate terms of a
/// PMU.
fn split(words: &str) -> Vec<&str> {
    let mut within = false;
    let parts = words.split(|c| {
        within ^= c == '/';
        c == ',' && !within
    });
    parts.map(str::trim).filter(|word| !word.is_empty()).collect()
}

fn chosen_by(word: &str) -> Result<Vec<WantedEvent>, MeasureError> {
    let set = |fits: fn(&EventRow) -> bool| {
        Ok(EVENTS.iter().filter(|r| fits(r)).map(WantedEvent::from_row).collect())
    };
    match word {
        "usual" => return set(|row| row.usual),
        "all" => return set(|_| true),
        "none" => return Ok(Vec::new()),
        "software" => return set(|row| matches!(row.what, EventSource::Software { .. })),
        "tracepoints" => return set(|row| matches!(row.what, EventSource::Tracepoint(..))),
        "hardware" => return set(|row| row.group > 0),
        _ => {}
    }
    if let Some(row) = EVENTS.iter().find(|row| row.name == word) {
        return Ok(vec![WantedEvent::from_row(row)]);
    }
    let unknown = || MeasureError::UnknownEvent { word: word.to_owned() };
    let how = by_number(word).or_else(|| by_terms(word)).or_else(|| by_path(word));
    let how = how.ok_or_else(unknown)?;
    Ok(vec![WantedEvent {
        name: word.to_owned().into(),
        unit: MetricUnit::Count,
        group: 0,
        how,
        left_out: None,
    }])
}

/// Parses a raw event of the CPU: `r01a2`.
fn by_number(word: &str) -> Option<How> {
    let digits = word.strip_prefix('r')?;
    u64::from_str_radix(digits, 16).ok().filter(|_| !digits.starts_with('+')).map(How::Raw)
}

/// Parses an event of a PMU: `cpu/event=0xd0,umask=0x11/`.
fn by_terms(word: &str) -> Option<How> {
    let (pmu, terms) = word.strip_suffix('/')?.split_once('/')?;
    let is_name = !pmu.is_empty() && !pmu.starts_with('.');
    Some(How::Pmu(pmu.to_owned(), Terms::parse(terms)?)).filter(|_| is_name)
}

/// Parses a tracepoint: `kmem:mm_page_free`.
fn by_path(word: &str) -> Option<How> {
    let (system, name) = word.split_once(':')?;
    let is_name = |word: &str| {
        !word.is_empty()
            && word.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'_' || b == b'-')
    };
    (is_name(system) && is_name(name)).then(|| How::Tracepoint(format!("{system}/{name}")))
}

/// An event in the encoding of `perf_event_open`, and a filter for a tracepoint.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ResolvedEvent {
    pub(crate) event: PerfEvent,
    pub(crate) filter: Option<&'static str>,
}

/// Tracepoints and PMUs of this machine.
#[derive(Debug)]
pub struct EventCatalogue {
    /// Opened when the first tracepoint is requested: if tracefs is not mounted, that takes
    /// milliseconds.
    tracefs: OnceCell<Reading<TraceFs>>,
    pmus: Pmus,
}

impl EventCatalogue {
    /// The catalogue of the running machine. Opens no tracefs yet.
    pub fn open() -> EventCatalogue {
        EventCatalogue { tracefs: OnceCell::new(), pmus: Pmus::of_this_machine() }
    }

    fn tracefs(&self) -> Reading<&TraceFs> {
        let open = || match TraceFs::open() {
            Ok(tracefs) if tracefs.has_events() => Ok(tracefs),
            Ok(_) => Err(why::empty_tracefs()),
            Err(error) => Err(why::tracefs(&error)),
        };
        self.tracefs.get_or_init(open).as_ref().map_err(Clone::clone)
    }

    /// Kernel encoding of an event, or the reason of its absence.
    pub(crate) fn find(&self, how: &How) -> Reading<ResolvedEvent> {
        let plain =
            |kind, config| ResolvedEvent { event: PerfEvent::new(kind, config), filter: None };
        match how {
            How::Known(EventSource::Software { config, .. }) => {
                Ok(plain(PerfType::SOFTWARE, *config))
            }
            How::Known(EventSource::Hardware(config)) => Ok(plain(PerfType::HARDWARE, *config)),
            How::Known(EventSource::Cache(cache, operation, outcome)) => {
                let config = *cache as u64 | (*operation as u64) << 8 | (*outcome as u64) << 16;
                Ok(plain(PerfType::CACHE, config))
            }
            How::Known(EventSource::Tracepoint(TLB_FLUSH, _)) if !TRACES_TLB_FLUSHES => {
                let why = "this architecture's kernel has the tracepoint and never passes it";
                Err(Absent::NotSupported(why.into()))
            }
            How::Known(EventSource::Tracepoint(path, filter)) => {
                Ok(ResolvedEvent { event: self.tracepoint(path)?, filter: *filter })
            }
            How::Known(EventSource::PageWalks(operation)) => {
                Ok(plain(PerfType::RAW, self.pmus.page_walks(*operation)?))
            }
            How::Tracepoint(path) => {
                Ok(ResolvedEvent { event: self.tracepoint(path)?, filter: None })
            }
            How::Raw(config) => Ok(plain(PerfType::RAW, *config)),
            How::Pmu(pmu, terms) => {
                Ok(ResolvedEvent { event: self.pmus.event(pmu, terms)?, filter: None })
            }
        }
    }

    fn tracepoint(&self, path: &str) -> Reading<PerfEvent> {
        let tracefs = self.tracefs()?;
        let text = tracefs.read(&format!("events/{path}/id")).map_err(|e| why::tracepoint(&e))?;
        let id = std::str::from_utf8(&text).ok().and_then(|text| text.trim().parse().ok());
        let id = id.ok_or_else(|| why::tracepoint(&std::io::ErrorKind::InvalidData.into()))?;
        Ok(PerfEvent::new(PerfType::TRACEPOINT, id))
    }

    /// Every tracepoint that has a number: `system:name`.
    fn tracepoints(&self) -> Reading<Vec<String>> {
        let tracefs = self.tracefs()?;
        let list = |path: &str| {
            let mut names: Vec<String> = tracefs
                .list(path)
                .map_err(|e| why::tracepoint(&e))?
                .into_iter()
                .filter_map(|name| String::from_utf8(name).ok())
                .collect();
            names.sort();
            Ok(names)
        };
        let mut found = Vec::new();
        for system in list("events")? {
            // Files beside the event folders control all events of the system.
            let names = list(&format!("events/{system}")).unwrap_or_default();
            let is_event = |name: &String| !is_switch(name);
            found.extend(names.into_iter().filter(is_event).map(|name| format!("{system}:{name}")));
        }
        Ok(found)
    }

    /// The machine's PMUs.
    pub(crate) fn pmus(&self) -> &Pmus {
        &self.pmus
    }
}

/// True for control files and for format files of the ring buffer, which lie beside the folders of
/// events.
fn is_switch(name: &str) -> bool {
    ["enable", "filter", "header_page", "header_event"].contains(&name)
}

/// Tries to count every event in [`EVENTS`], and returns the result for each event. If `like` is
/// given, tries only the events and the tracepoints whose names contain `like`.
pub fn survey(like: Option<&str>) -> CountableSurvey {
    let catalogue = EventCatalogue::open();
    let fits = |name: &str| like.is_none_or(|like| name.contains(like));
    let mut wanted: Vec<WantedEvent> =
        EVENTS.iter().filter(|row| fits(row.name)).map(WantedEvent::from_row).collect();
    let tracepoints = catalogue.tracepoints();
    if like.is_some() {
        let names = tracepoints.iter().flatten().filter(|name| fits(name));
        wanted.extend(names.filter_map(|name| chosen_by(name).ok()).flatten());
    }
    let counters = Counters::from_wanted(wanted, &catalogue);
    let events = counters.each().map(|(wanted, scope)| Countable {
        name: wanted.name.as_ref().into(),
        origin: wanted.origin(),
        usual: EVENTS.iter().any(|row| row.usual && row.name == wanted.name),
        scope,
    });
    let names = |names: Vec<String>| names.iter().map(|name| name.as_str().into()).collect();
    let pmus = &catalogue.pmus;
    CountableSurvey {
        kernel: Name::new(&kernel_release()),
        paranoid: why::paranoid(),
        events: events.collect(),
        pmus: pmus
            .names()
            .into_iter()
            .map(|pmu| Pmu {
                events: names(pmus.events(&pmu)),
                terms: names(pmus.terms(&pmu)),
                name: pmu.as_str().into(),
            })
            .collect(),
        tracepoints: tracepoints.map(|names| names.len() as u64),
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn names(words: &str) -> Vec<String> {
        choose(words).unwrap().into_iter().map(|wanted| wanted.name.into_owned()).collect()
    }

    #[test]
    fn words_choose_rows_sets_tracepoints_and_raw_events() {
        assert_eq!(names("cycles, page_faults ,cycles"), ["cycles", "page_faults"]);
        assert_eq!(names("none"), [""; 0]);
        assert_eq!(names("all").len(), EVENTS.len());
        let hows = |words| choose(words).unwrap().into_iter().map(|w| w.how).collect::<Vec<_>>();
        assert_eq!(hows("r1a2"), [How::Raw(0x1a2)]);
        assert_eq!(hows("kmem:mm_page_free"), [How::Tracepoint("kmem/mm_page_free".into())]);
        let terms = Terms::parse("event=0xd0,umask=0x11").unwrap();
        let pmu = How::Pmu("cpu".into(), terms);
        assert_eq!(hows("cpu/event=0xd0,umask=0x11/,r0"), [pmu, How::Raw(0)]);
    }

    #[test]
    fn an_unknown_event_is_an_error_that_names_it() {
        for word in
            ["no_such_event", "r", "rxyz", "r+1", "/x/", "../x/", "a:../../b", "a:b:c", "cpu/x"]
        {
            let error = choose(&format!("cycles,{word}")).unwrap_err().to_string();
            assert!(error.contains(word), "{error}");
        }
    }

    proptest! {
        #[test]
        fn no_words_make_it_panic(words in ".*", more in "[a-z:/,=0-9_r]{0,20}") {
            let _ = choose(&words);
            let _ = choose(&more);
        }
    }

    #[test]
    fn every_event_has_one_name_and_a_meaning_and_groups_fit_any_cpu() {
        for (at, row) in EVENTS.iter().enumerate() {
            assert!(EVENTS[..at].iter().all(|other| other.name != row.name), "{}", row.name);
            let meant = pagewise_model::fields::named(row.name).next();
            assert!(meant.is_some_and(|field| field.source == "stat"), "{}", row.name);
            assert!(row.group == 0 || EVENTS.iter().filter(|r| r.group == row.group).count() <= 4);
        }
    }
}
