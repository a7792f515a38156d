//! TLB flushes told: how many and why, who asked for them, whom they interrupted, how long they took, and what to change.

mod advice;
mod causes;
mod tables;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;

use pagewise_model::report::{
    Audience, Axis, Bar, Bars, Block, Fact, Facts, Findings, Paragraph, Report, Scale, Shape, Unit,
    Value,
};
use pagewise_model::shootdowns::{Around, NO_PID, Recording, Site};
use pagewise_model::traced::{Counted, Frame, Profile};
use pagewise_model::{Absent, Name, Reading};

use crate::blocks::{ended, facts_of, folded, folded_remarks, process};
use crate::explain::{fact, meaning};
use causes::Cause;

/// The tracepoint of flushes.
const FLUSH: &str = "tlb:tlb_flush";
/// The tracepoint that says which CPU is asked.
const QUEUE: &str = "csd:csd_queue_cpu";
/// The tracepoint that says that a CPU is done.
const DONE: &str = "csd:csd_function_exit";
/// The tracepoints of the ends of system calls.
const CALLS: [&str; 2] = ["raw_syscalls:sys_enter", "raw_syscalls:sys_exit"];

/// What to show.
#[derive(Clone, Copy, Debug, Default)]
pub struct Options {
    /// So many rows of each table; all where there is no limit.
    pub limit: Option<usize>,
}

/// Flushes as a report.
pub fn shootdowns(recording: &Recording, options: &Options) -> Report {
    let told = Told::of(recording);
    let mut blocks = vec![Block::Facts(about(recording)), Block::Facts(totals(&told))];
    blocks.push(Block::Facts(folded(&recording.folded)));
    let tables = [
        tables::by_cause(&told),
        tables::by_stack(&told, options),
        tables::calls(&told, options),
        tables::latency(&told, options),
    ];
    blocks.extend(tables.map(Block::Table));
    blocks.extend(waits(recording).map(Block::Bars));
    let tables = [
        tables::by_cpu(&told),
        tables::by_process(&told, options),
        tables::by_thread(&told, options),
        tables::by_reason(&told),
        tables::histograms(&told),
        tables::machine(&told),
    ];
    blocks.extend(tables.map(Block::Table));
    let none = match recording.has(FLUSH) {
        true => "Nothing here costs enough to change anything.",
        false => "What could be changed is not known without these tracepoints.",
    };
    let none = none.into();
    blocks.push(Block::Findings(Findings { list: advice::all(&told), none }));
    blocks.extend(remarks(&told).into_iter().map(Block::Text));
    Report { schema: "pagewise.shootdowns/1", title: title(recording), blocks }
}

/// The orders to flush by call stack, with the functions of the kernel on top; how long they took is the wait for the other
/// CPUs.
pub fn profile(recording: &Recording) -> Profile {
    let told = Told::of(recording);
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
        samples.push(Counted { stack, count: site.sends, took_ns, thread: None, labels });
    }
    Profile {
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

/// A recording, with the cause of each of its sites.
struct Told<'r> {
    recording: &'r Recording,
    causes: Vec<Cause>,
    all: Sum,
}

/// Sites added up.
#[derive(Clone, Copy, Debug, Default)]
struct Sum {
    orders: u64,
    shootdowns: u64,
    ipis: u64,
    local: u64,
    full: u64,
    pages: u64,
    waited: u64,
}

impl Sum {
    fn add(&mut self, site: &Site) {
        self.orders += site.sends;
        self.shootdowns += site.shootdowns;
        self.ipis += site.ipis;
        self.local += site.local;
        self.full += site.full;
        self.pages = self.pages.saturating_add(site.pages);
        self.waited = self.waited.saturating_add(site.waited);
    }

    /// How many pages an order is for, of those that are not for all.
    fn pages_per_order(&self) -> Option<f64> {
        let some = self.orders.checked_sub(self.full).filter(|some| *some > 0)?;
        Some(float(self.pages) / float(some))
    }
}

impl<'r> Told<'r> {
    fn of(recording: &'r Recording) -> Told<'r> {
        let causes = recording.sites.iter().map(|site| causes::of(recording, site)).collect();
        let mut all = Sum::default();
        recording.sites.iter().for_each(|site| all.add(site));
        Told { recording, causes, all }
    }

    fn sites(&self) -> impl Iterator<Item = (&'r Site, &Cause)> {
        self.recording.sites.iter().zip(&self.causes)
    }

    fn stack(&self, site: &Site) -> &'r [Frame] {
        self.recording.stacks.get(site.stack).map_or(&[], Vec::as_slice)
    }

    fn chain(&self, site: &Site) -> &'r [String] {
        let chains = self.recording.chains.as_ref();
        chains.ok().and_then(|chains| chains.get(site.chain)).map_or(&[], Vec::as_slice)
    }

    /// Whether CPUs that are asked are told.
    fn has_queue(&self) -> bool {
        self.recording.has(QUEUE)
    }

    /// Whether it is told when CPUs are done.
    fn has_ends(&self) -> bool {
        self.has_queue() && self.recording.has(DONE)
    }

    /// A number that only flushes tell.
    fn flushed(&self, value: Value) -> Value {
        let has_flushes = self.recording.has(FLUSH);
        if has_flushes { value } else { Value::Absent(self.recording.why_not(FLUSH)) }
    }

    /// A number that only the queues of CPUs tell.
    fn queued(&self, value: Value) -> Value {
        if self.has_queue() { value } else { Value::Absent(self.recording.why_not(QUEUE)) }
    }

    /// A time that only the ends tell.
    fn ended(&self, value: Value) -> Value {
        let missing = if self.has_queue() { DONE } else { QUEUE };
        if self.has_ends() { value } else { Value::Absent(self.recording.why_not(missing)) }
    }

    fn received(&self) -> u64 {
        self.recording.cpus.iter().map(|cpu| cpu.received).sum()
    }

    /// The sums by cause, the most orders first.
    fn by_cause(&self) -> Vec<(&Cause, Sum)> {
        let mut sums: BTreeMap<&Cause, Sum> = BTreeMap::new();
        for (site, cause) in self.recording.sites.iter().zip(&self.causes) {
            sums.entry(cause).or_default().add(site);
        }
        let mut sums: Vec<(&Cause, Sum)> = sums.into_iter().collect();
        sums.sort_by_key(|(_, sum)| std::cmp::Reverse((sum.ipis, sum.orders, sum.local)));
        sums
    }
}

#[expect(clippy::cast_precision_loss, reason = "what is shown has three digits")]
fn float(number: u64) -> f64 {
    number as f64
}

fn share(part: u64, whole: u64) -> Option<f64> {
    (whole > 0).then(|| float(part) / float(whole))
}

fn title(recording: &Recording) -> Vec<Value> {
    let Some(pid) = recording.pid else {
        return vec![Value::text("TLB shootdowns of the machine")];
    };
    let process = recording.processes.iter().find(|process| process.pid == pid.0);
    let name = match (recording.command.first(), process) {
        (Some(word), _) => Name::new(word.base()),
        (None, Some(process)) => process.name.clone(),
        (None, None) => Name::default(),
    };
    vec![Value::text("TLB shootdowns of "), Value::Name(name), Value::text(format!(" ({pid})"))]
}

fn about(recording: &Recording) -> Facts {
    let text = |text: &str| Value::text(text.to_owned());
    let tracepoints = recording.tracepoints.iter().map(|name| text(name)).collect();
    let missing = recording.missing.iter().map(|(name, why)| {
        Value::Record(vec![
            ("tracepoint".into(), text(name)),
            ("why".into(), Value::Absent(why.clone())),
        ])
    });
    let scope = if recording.pid.is_some() { "process" } else { "machine" };
    let ending = recording.ending.map_or(Value::None, ended);
    let stacks = if recording.cut.is_some() { "unwind tables" } else { "frame pointers" };
    let [pid, command] = process(recording.pid, &recording.command);
    facts_of(
        "recording",
        "",
        Shape::Line,
        vec![
            fact("scope", "scope", Value::text(scope), "").for_programs(),
            pid,
            command,
            fact("ending", "ended", ending, "").hidden_if(recording.ending.is_none()),
            fact("seconds", "for", Value::Seconds(recording.took_ns), ""),
            fact("lost", "EVENTS LOST", Value::Count(recording.lost), "")
                .hidden_if(recording.lost == 0),
            fact("stacks", "stacks", Value::text(stacks), "").for_programs(),
            fact(
                "stacks_cut",
                "stacks cut off",
                recording.cut.map_or(Value::None, Value::Count),
                "",
            )
            .hidden_if(recording.cut.is_none_or(|cut| cut == 0)),
            fact("tracepoints", "tracepoints", Value::List(tracepoints), "").for_programs(),
            fact("missing", "missing", Value::List(missing.collect()), "").for_programs(),
            fact("user_wait", "in the program", around(recording), "").for_programs(),
        ],
    )
}

/// How calls were timed in the program.
fn around(recording: &Recording) -> Value {
    Value::of(recording.around.clone(), |around| {
        let function = |(name, file): (String, Name)| {
            Value::Record(vec![
                ("function".into(), Value::text(name)),
                ("file".into(), Value::Name(file)),
            ])
        };
        Value::Record(vec![
            ("cost_ns".into(), Value::of(around.cost_ns, Value::Nanos)),
            ("functions".into(), Value::List(around.functions.into_iter().map(function).collect())),
        ])
    })
}

fn meant(key: &'static str, label: &'static str, value: Value) -> Fact {
    fact(key, label, value, meaning(key))
}

fn totals(told: &Told<'_>) -> Facts {
    let Told { recording, all, .. } = told;
    let flushes = recording.reasons.iter().map(|reason| reason.flushes).sum();
    let per_order = all.pages_per_order().map_or(Value::None, Value::Number);
    let per_second = share(all.shootdowns, recording.took_ns);
    let per_second = per_second.map_or(Value::None, |per_ns| Value::Rate(per_ns * 1e9));
    let foreign = Value::of(recording.foreign.clone(), Value::Count);
    let is_machine = recording.pid.is_none();
    facts_of(
        "totals",
        "",
        Shape::Columns,
        vec![
            meant("flush_orders", "ORDERS", told.flushed(Value::Count(all.orders))),
            meant("shootdowns", "SHOOTDOWNS", told.queued(Value::Count(all.shootdowns))),
            meant("shootdowns_per_s", "PER S", told.queued(per_second)),
            meant("ipis", "IPIS", told.queued(Value::Count(all.ipis))),
            meant("waited", "WAITED", told.ended(Value::Seconds(all.waited))),
            meant("pages_per_order", "PAGES EACH", told.flushed(per_order)),
            meant("full_orders", "FULL", told.flushed(Value::Count(all.full))),
            meant("local_flushes", "LOCAL", told.flushed(Value::Count(all.local))),
            meant("received", "RECEIVED", told.flushed(Value::Count(told.received()))),
            meant("foreign", "FROM OTHERS", foreign).hidden_if(is_machine),
            meant("flushes", "FLUSHES", told.flushed(Value::Count(flushes))),
            meant("unseen", "UNSEEN", told.ended(Value::Count(recording.unseen)))
                .hidden_if(recording.unseen == 0),
            fact("sent", "sent", sent(recording), meaning("sent")).for_programs(),
            meant("machine_shootdowns", "MACHINE", on_machine(recording))
                .hidden_if(recording.has(FLUSH)),
        ],
    )
}

/// Interrupts to flush TLBs of all CPUs, whoever ran.
fn on_machine(recording: &Recording) -> Value {
    let all: Reading<u64> =
        recording.cpus.iter().map(|cpu| cpu.machine.clone()).sum::<Reading<u64>>();
    match recording.cpus.is_empty() {
        true => Value::Absent(Absent::NotSupported("/proc/interrupts has no TLB row here".into())),
        false => Value::of(all, Value::Count),
    }
}

/// Interrupts that were sent to call a function, by tracepoint.
fn sent(recording: &Recording) -> Value {
    let value = |(name, count): &(String, u64)| (name.clone().into(), Value::Count(*count));
    Value::Record(recording.sent.iter().map(value).collect())
}

/// How long orders took, by powers of two.
fn waits(recording: &Recording) -> Option<Bars> {
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
        title: vec![Value::text("Orders by how long the wait for other CPUs was: from")],
        axis: Axis { label: "orders".into(), unit: Unit::Count, scale: Scale::Linear },
        bars: (first..=last).map(bar).collect(),
    })
}

/// What a reader must know to read the numbers right.
fn remarks(told: &Told<'_>) -> Vec<Paragraph> {
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
            "Only what the machine counts is told: interrupts to flush TLBs on all CPUs, whoever caused them, from /proc/interrupts. \
             Who flushes, why and how long it takes is told by the tracepoint {FLUSH}: {}.",
            recording.why_not(FLUSH)
        ));
    }
    if let Err(why) = &recording.chains
        && recording.has(FLUSH)
    {
        remarks.push(format!("Functions of the kernel have no names here ({why}): what is no system call that is recorded has the cause `{}`.", Cause::Hidden.name()));
    }
    if told.all.orders > 0 {
        remarks.push(
            "Times include what it costs to record the events in between. Waits are from the order to the end of the last \
             CPU's flush; calls are from their entry to their exit."
                .to_owned(),
        );
    }
    match &recording.around {
        Ok(Around { cost_ns: Ok(cost), .. }) => remarks.push(format!(
            "`in the program` is from the first instruction of the C library's function to its last. Calls that do nothing \
             take {cost} ns longer by that and by the recording of the call: so much of each time is not the program's."
        )),
        Ok(Around { cost_ns: Err(why), .. }) => remarks.push(format!(
            "What taking times in the program adds to them is not known: {why}."
        )),
        Err(Absent::NotCollected(_)) => {}
        Err(_) if !recording.has(FLUSH) => {}
        Err(why) => remarks.push(format!("Times in the program could not be taken: {why}.")),
    }
    let paragraph = |text: String| Paragraph {
        title: "".into(),
        pieces: vec![Value::text(text)],
        audience: Audience::People,
    };
    remarks.into_iter().map(paragraph).collect()
}

/// Why a process is not known.
fn unknown<T>() -> Reading<T> {
    Err(Absent::Vanished)
}
