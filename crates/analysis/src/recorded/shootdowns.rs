//! Report of TLB flushes: their number, causes, callers and duration, the interrupted CPUs, and
//! advice.

pub(crate) mod causes;
mod tables;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;

use pagewise_model::report::{
    Audience, Axis, AxisUnit, Bar, Bars, CellValue, Fact, FactsShape, Findings, NamedFacts,
    Paragraph, Report, ReportBlock, Scale,
};
use pagewise_model::shootdowns::{FlushSite, NO_PID, ShootdownRecording, TimedCallsMeans};
use pagewise_model::traced::{Frame, StackCount, StackProfile};
use pagewise_model::{Absent, Name, Reading};

use crate::blocks::{ended, facts_of, folded, folded_remarks, process, stacks_cut};
use crate::cells::{float, ratio};
use crate::explain::{fact, meaning};
use crate::findings::{Evidence, find};
use causes::Cause;

/// Name of the tracepoint of a flush.
const FLUSH: &str = "tlb:tlb_flush";
/// Name of the tracepoint of a request that is queued for a CPU.
const QUEUE: &str = "csd:csd_queue_cpu";
/// Name of the tracepoint of a CPU that has finished a request.
const DONE: &str = "csd:csd_function_exit";
/// Names of the tracepoints of the start and the end of a system call.
const CALLS: [&str; 2] = ["raw_syscalls:sys_enter", "raw_syscalls:sys_exit"];

/// Options of the report.
#[derive(Clone, Copy, Debug, Default)]
pub struct ShootdownOptions {
    /// Maximum number of rows of each table; `None` for all.
    pub limit: Option<usize>,
}

/// Reports flushes.
pub fn shootdowns(recording: &ShootdownRecording, options: &ShootdownOptions) -> Report {
    let told = ShootdownCauses::from_recording(recording);
    let mut blocks =
        vec![ReportBlock::Facts(recording_facts(recording)), ReportBlock::Facts(totals(&told))];
    blocks.push(ReportBlock::Facts(folded(&recording.folded)));
    let tables = [
        tables::by_cause(&told),
        tables::by_stack(&told, options),
        tables::calls(&told, options),
        tables::latency(&told, options),
    ];
    blocks.extend(tables.map(ReportBlock::Table));
    blocks.extend(waits(recording).map(ReportBlock::Bars));
    let tables = [
        tables::by_cpu(&told),
        tables::by_process(&told, options),
        tables::by_thread(&told, options),
        tables::by_reason(&told),
        tables::histograms(&told),
        tables::machine(&told),
    ];
    blocks.extend(tables.map(ReportBlock::Table));
    let none = match recording.has(FLUSH) {
        true => "Nothing here costs enough to change anything.",
        false => "Without these tracepoints no advice is possible.",
    };
    let none = none.into();
    blocks.push(ReportBlock::Findings(Findings { list: find(Evidence::Shootdowns(&told)), none }));
    blocks.extend(remarks(&told).into_iter().map(ReportBlock::Text));
    Report { schema: "pagewise.shootdowns/1", title: title(recording), blocks }
}

/// Returns the flush requests by call stack; the functions of the kernel are innermost. The
/// duration of a request is the time that it waited for other CPUs.
pub fn profile(recording: &ShootdownRecording) -> StackProfile {
    let told = ShootdownCauses::from_recording(recording);
    let mut stacks: Vec<Vec<Frame>> = Vec::new();
    let mut numbers: BTreeMap<(usize, usize), u32> = BTreeMap::new();
    let mut samples = Vec::new();
    for (site, cause) in told.sites().filter(|(site, _)| site.sends > 0) {
        let stack = *numbers.entry((site.chain, site.stack)).or_insert_with(|| {
            let chain = told.chain(site).iter().map(|function| kernel_frame(function));
            stacks.push(chain.chain(told.stack(site).iter().cloned()).collect());
            u32::try_from(stacks.len() - 1).unwrap_or(u32::MAX)
        });
        let process = recording.processes.get(site.process);
        let name = process.map_or_else(String::new, |process| process.name.escaped().into_owned());
        let mut labels = vec![("cause".to_owned(), cause.name()), ("process".to_owned(), name)];
        let pid = process.map_or(0, |process| process.pid);
        labels.extend((pid != NO_PID).then(|| ("pid".to_owned(), pid.to_string())));
        let took_ns = told.has_ends().then_some(site.waited);
        samples.push(StackCount { stack, count: site.sends, took_ns, thread: None, labels });
    }
    StackProfile {
        what: "orders to flush TLBs".to_owned(),
        began_ns: recording.began_ns,
        took_ns: recording.took_ns,
        stacks,
        samples,
    }
}

fn kernel_frame(function: &str) -> Frame {
    let module = Some("[kernel]".into());
    Frame { function: Some(function.to_owned()), module, offset: 0, line: None, inlined: false }
}

/// A recording, and the causes of its flush sites. A flush site is the set of flushes from one call
/// stack.
pub(crate) struct ShootdownCauses<'r> {
    pub(crate) recording: &'r ShootdownRecording,
    pub(crate) causes: Vec<Cause>,
    pub(crate) all: FlushSum,
}

/// Sums over flush sites.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct FlushSum {
    pub(crate) orders: u64,
    pub(crate) shootdowns: u64,
    pub(crate) ipis: u64,
    pub(crate) local: u64,
    pub(crate) full: u64,
    pub(crate) pages: u64,
    pub(crate) waited: u64,
}

impl FlushSum {
    fn add(&mut self, site: &FlushSite) {
        self.orders += site.sends;
        self.shootdowns += site.shootdowns;
        self.ipis += site.ipis;
        self.local += site.local;
        self.full += site.full;
        self.pages = self.pages.saturating_add(site.pages);
        self.waited = self.waited.saturating_add(site.waited);
    }

    /// Average number of pages per request, without full flushes.
    pub(crate) fn pages_per_order(&self) -> Option<f64> {
        let some = self.orders.checked_sub(self.full).filter(|some| *some > 0)?;
        Some(float(self.pages) / float(some))
    }
}

impl<'r> ShootdownCauses<'r> {
    pub(crate) fn from_recording(recording: &'r ShootdownRecording) -> ShootdownCauses<'r> {
        let causes = recording.sites.iter().map(|site| causes::cause_of(recording, site)).collect();
        let mut all = FlushSum::default();
        recording.sites.iter().for_each(|site| all.add(site));
        ShootdownCauses { recording, causes, all }
    }

    fn sites(&self) -> impl Iterator<Item = (&'r FlushSite, &Cause)> {
        self.recording.sites.iter().zip(&self.causes)
    }

    fn stack(&self, site: &FlushSite) -> &'r [Frame] {
        self.recording.stacks.get(site.stack).map_or(&[], Vec::as_slice)
    }

    fn chain(&self, site: &FlushSite) -> &'r [String] {
        let chains = self.recording.chains.as_ref();
        chains.ok().and_then(|chains| chains.get(site.chain)).map_or(&[], Vec::as_slice)
    }

    /// True if the recording includes the interrupts of CPUs.
    pub(crate) fn has_queue(&self) -> bool {
        self.recording.has(QUEUE)
    }

    /// True if the recording includes the ends of requests.
    fn has_ends(&self) -> bool {
        self.has_queue() && self.recording.has(DONE)
    }

    /// Returns `value`; absent if the recording has no flush events, on which the value depends.
    fn flushed(&self, value: CellValue) -> CellValue {
        let has_flushes = self.recording.has(FLUSH);
        if has_flushes { value } else { CellValue::Absent(self.recording.why_not(FLUSH)) }
    }

    /// Returns `value`; absent if the recording has no events of the CPU queues, on which the value
    /// depends.
    fn queued(&self, value: CellValue) -> CellValue {
        if self.has_queue() { value } else { CellValue::Absent(self.recording.why_not(QUEUE)) }
    }

    /// Returns `value`; absent if the recording has no ends of requests, on which the value
    /// depends.
    pub(crate) fn ended(&self, value: CellValue) -> CellValue {
        let missing = if self.has_queue() { DONE } else { QUEUE };
        if self.has_ends() { value } else { CellValue::Absent(self.recording.why_not(missing)) }
    }

    pub(crate) fn received(&self) -> u64 {
        self.recording.cpus.iter().map(|cpu| cpu.received).sum()
    }

    /// Returns the sums by cause, the largest number of interrupts first.
    pub(crate) fn by_cause(&self) -> Vec<(&Cause, FlushSum)> {
        let mut sums: BTreeMap<&Cause, FlushSum> = BTreeMap::new();
        for (site, cause) in self.recording.sites.iter().zip(&self.causes) {
            sums.entry(cause).or_default().add(site);
        }
        let mut sums: Vec<(&Cause, FlushSum)> = sums.into_iter().collect();
        sums.sort_by_key(|(_, sum)| std::cmp::Reverse((sum.ipis, sum.orders, sum.local)));
        sums
    }
}

fn title(recording: &ShootdownRecording) -> Vec<CellValue> {
    let Some(pid) = recording.pid else {
        return vec![CellValue::text("TLB shootdowns of the machine")];
    };
    let process = recording.processes.iter().find(|process| process.pid == pid.0);
    let name = match (recording.command.first(), process) {
        (Some(word), _) => Name::new(word.base()),
        (None, Some(process)) => process.name.clone(),
        (None, None) => Name::default(),
    };
    vec![
        CellValue::text("TLB shootdowns of "),
        CellValue::Name(name),
        CellValue::text(format!(" ({pid})")),
    ]
}

fn recording_facts(recording: &ShootdownRecording) -> NamedFacts {
    let text = |text: &str| CellValue::text(text.to_owned());
    let tracepoints = recording.tracepoints.iter().map(|name| text(name)).collect();
    let missing = recording.missing.iter().map(|(name, why)| {
        CellValue::Record(vec![
            ("tracepoint".into(), text(name)),
            ("why".into(), CellValue::Absent(why.clone())),
        ])
    });
    let scope = if recording.pid.is_some() { "process" } else { "machine" };
    let ending = recording.ending.map_or(CellValue::None, ended);
    let stacks = if recording.cut.is_some() { "unwind tables" } else { "frame pointers" };
    let [pid, command] = process(recording.pid, &recording.command);
    facts_of(
        "recording",
        "",
        FactsShape::Line,
        vec![
            fact("scope", "scope", CellValue::text(scope), "").for_programs(),
            pid,
            command,
            fact("ending", "ended", ending, "").hidden_if(recording.ending.is_none()),
            fact("seconds", "for", CellValue::Seconds(recording.took_ns), ""),
            fact("lost", "EVENTS LOST", CellValue::Count(recording.lost), "")
                .hidden_if(recording.lost == 0),
            fact("stacks", "stacks", CellValue::text(stacks), "").for_programs(),
            stacks_cut(recording.cut),
            fact("tracepoints", "tracepoints", CellValue::List(tracepoints), "").for_programs(),
            fact("missing", "missing", CellValue::List(missing.collect()), "").for_programs(),
            fact("user_wait", "in the program", around(recording), "").for_programs(),
        ],
    )
}

/// Describes the method of timing calls in the program.
fn around(recording: &ShootdownRecording) -> CellValue {
    CellValue::from_reading(recording.around.clone(), |around| {
        let function = |(name, file): (String, Name)| {
            CellValue::Record(vec![
                ("function".into(), CellValue::text(name)),
                ("file".into(), CellValue::Name(file)),
            ])
        };
        CellValue::Record(vec![
            ("cost_ns".into(), CellValue::from_reading(around.cost_ns, CellValue::Nanos)),
            (
                "functions".into(),
                CellValue::List(around.functions.into_iter().map(function).collect()),
            ),
        ])
    })
}

fn meant(key: &'static str, label: &'static str, value: CellValue) -> Fact {
    fact(key, label, value, meaning(key))
}

fn totals(told: &ShootdownCauses<'_>) -> NamedFacts {
    let ShootdownCauses { recording, all, .. } = told;
    let flushes = recording.reasons.iter().map(|reason| reason.flushes).sum();
    let per_order = all.pages_per_order().map_or(CellValue::None, CellValue::Number);
    let per_second = ratio(all.shootdowns, recording.took_ns);
    let per_second = per_second.map_or(CellValue::None, |per_ns| CellValue::Rate(per_ns * 1e9));
    let foreign = CellValue::from_reading(recording.foreign.clone(), CellValue::Count);
    let is_machine = recording.pid.is_none();
    facts_of(
        "totals",
        "",
        FactsShape::Columns,
        vec![
            meant("flush_orders", "REQUESTS", told.flushed(CellValue::Count(all.orders))),
            meant("shootdowns", "SHOOTDOWNS", told.queued(CellValue::Count(all.shootdowns))),
            meant("shootdowns_per_s", "PER S", told.queued(per_second)),
            meant("ipis", "IPIS", told.queued(CellValue::Count(all.ipis))),
            meant("waited", "WAITED", told.ended(CellValue::Seconds(all.waited))),
            meant("pages_per_order", "PAGES PER REQUEST", told.flushed(per_order)),
            meant("full_orders", "FULL FLUSHES", told.flushed(CellValue::Count(all.full))),
            meant("local_flushes", "LOCAL", told.flushed(CellValue::Count(all.local))),
            meant("received", "RECEIVED", told.flushed(CellValue::Count(told.received()))),
            meant("foreign", "FROM OTHERS", foreign).hidden_if(is_machine),
            meant("flushes", "FLUSHES", told.flushed(CellValue::Count(flushes))),
            meant("unseen", "UNSEEN", told.ended(CellValue::Count(recording.unseen)))
                .hidden_if(recording.unseen == 0),
            fact("sent", "sent", sent(recording), meaning("sent")).for_programs(),
            meant("machine_shootdowns", "MACHINE", on_machine(recording))
                .hidden_if(recording.has(FLUSH)),
        ],
    )
}

/// Number of TLB flush interrupts on all CPUs, for all processes.
fn on_machine(recording: &ShootdownRecording) -> CellValue {
    let all: Reading<u64> =
        recording.cpus.iter().map(|cpu| cpu.machine.clone()).sum::<Reading<u64>>();
    match recording.cpus.is_empty() {
        true => {
            CellValue::Absent(Absent::NotSupported("/proc/interrupts has no TLB row here".into()))
        }
        false => CellValue::from_reading(all, CellValue::Count),
    }
}

/// Returns the counts of interprocessor interrupts that were sent. Each tracepoint that counts them
/// has its own count, with the tracepoint's name as the key.
fn sent(recording: &ShootdownRecording) -> CellValue {
    let value = |(name, count): &(String, u64)| (name.clone().into(), CellValue::Count(*count));
    CellValue::Record(recording.sent.iter().map(value).collect())
}

/// Draws the durations of requests in bars; the limits of the bars are powers of two.
fn waits(recording: &ShootdownRecording) -> Option<Bars> {
    let mut powers: BTreeMap<u32, u64> = BTreeMap::new();
    for (longest, count) in recording.waits.cells() {
        *powers.entry(longest.max(1).ilog2()).or_default() += count;
    }
    let (first, last) = (*powers.keys().next()?, *powers.keys().next_back()?);
    let bar = |power: u32| Bar {
        label: format!("{} ns", 1_u64 << power).into(),
        value: float(powers.get(&power).copied().unwrap_or(0)),
        interval: None,
    };
    Some(Bars {
        title: vec![CellValue::text("Orders by how long the wait for other CPUs was: from")],
        axis: Axis { label: "orders".into(), unit: AxisUnit::Count, scale: Scale::Linear },
        bars: (first..=last).map(bar).collect(),
    })
}

/// Returns remarks that readers need to interpret the numbers correctly.
fn remarks(told: &ShootdownCauses<'_>) -> Vec<Paragraph> {
    let recording = told.recording;
    let mut remarks = Vec::new();
    if recording.lost > 0 {
        remarks.push(format!(
            "Events are missing, since the kernel found no room to write them down: {}. Every count here may be too low \
             by as many.",
            recording.lost
        ));
    }
    remarks.extend(folded_remarks(&recording.folded, "orders and calls"));
    if recording.has(FLUSH) {
        for (name, why) in &recording.missing {
            remarks.push(format!("Without the tracepoint {name}: {why}."));
        }
    } else {
        remarks.push(format!(
            "Only a count of the machine is known: interrupts to flush TLBs on all CPUs, by any process, from /proc/interrupts. \
             The initiator, the reason and the duration need the tracepoint {FLUSH}: {}.",
            recording.why_not(FLUSH)
        ));
    }
    if let Err(why) = &recording.chains
        && recording.has(FLUSH)
    {
        remarks.push(format!("Kernel functions have no names here ({why}): events outside of the recorded system calls have the cause `{}`.", Cause::Hidden.name()));
    }
    if told.all.orders > 0 {
        remarks.push(
            "Times include what it costs to record the events in between. Waits are from the order to the end of the last \
             CPU's flush; calls are from their entry to their exit."
                .to_owned(),
        );
    }
    match &recording.around {
        Ok(TimedCallsMeans { cost_ns: Ok(cost), .. }) => remarks.push(format!(
            "`in the program` is from the first instruction of the C library's function to its last. Calls that do nothing \
             take {cost} ns longer by that and by the recording of the call: so much of each time is not the program's."
        )),
        Ok(TimedCallsMeans { cost_ns: Err(why), .. }) => remarks.push(format!(
            "The overhead of taking times in the program is unknown: {why}."
        )),
        Err(Absent::NotCollected(_)) => {}
        Err(_) if !recording.has(FLUSH) => {}
        Err(why) => remarks.push(format!("Times in the program could not be taken: {why}.")),
    }
    let paragraph = |text: String| Paragraph {
        title: "".into(),
        pieces: vec![CellValue::text(text)],
        audience: Audience::People,
    };
    remarks.into_iter().map(paragraph).collect()
}

/// Returns the reading for a process that no longer exists.
fn unknown<T>() -> Reading<T> {
    Err(Absent::Vanished)
}
