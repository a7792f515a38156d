//! File format of heaptrack 1.4, for `heaptrack_print` and heaptrack_gui.
//!
//! The format consists of events, but a recording has none. So events are constructed: the minimum
//! number of events that results in the recorded numbers. By call stack, the bytes at the peak and
//! at the end are exact, as are the numbers of allocations and of temporary allocations up to
//! [`MAX_ALLOCATIONS`]. The sums over time are those of the snapshots. A tree is the list of live
//! bytes by call stack that some snapshots contain. The order of events between two trees is
//! unknown: each call stack reaches its bytes of the next tree as early as the sums permit.
//!
//! The events depend on these rules of heaptrack (`accumulatedtracedata.cpp`, file version 3). A
//! kind is a line `a SIZE TRACE`. An event `+` adds one allocation and the bytes of its kind. An
//! event `-` subtracts the bytes, and counts as a temporary allocation if the preceding event was
//! `+` of the same kind. Two kinds can have equal SIZE and TRACE: freed blocks use the second kind,
//! so that no free counts as temporary by chance. heaptrack_gui counts the allocations of each kind
//! in a list, which grows by one element at the first `+` of each kind and is indexed unchecked by
//! the number of the kind. So kinds are numbered in the order of their first `+`, kinds that are
//! only freed come last, and the events are constructed twice: first to number the kinds, then to
//! write the events. The peak is the first time at which the live bytes are at their maximum.

use std::collections::HashMap;
use std::io::{self, Write};

use pagewise_model::heap::{AllocationSite, HeapAmount, HeapRecording};
use pagewise_model::traced::Frame;

use super::snapshots::{ExportSnapshot, SnapshotTime, snapshots, sum};
use super::{addable, packed, plain};

/// Maximum number of allocations in the file, because heaptrack reads them three times. If a
/// recording has more allocations, each written allocation represents several.
pub const MAX_ALLOCATIONS: u64 = 8_000_000;

/// Maximum number of recorded snapshots at which short-lived blocks are written.
const PARTS: u64 = 200;

/// Deviations of the file from the recording.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct HeaptrackLosses {
    /// Number of recorded allocations that each written allocation represents; 1 if all are
    /// written.
    pub each: u64,
    /// Number of temporary allocations that are not marked as temporary, because their blocks were
    /// live at the peak.
    pub not_temporary: u64,
}

/// Writes a recording. If it has more than `most` allocations, each written allocation represents
/// several.
///
/// # Errors
/// Returns the error of `out`; `InvalidData` for numbers whose sum reaches 2^63.
pub fn write(
    recording: &HeapRecording,
    most: u64,
    out: &mut dyn Write,
) -> io::Result<HeaptrackLosses> {
    for of in [
        AllocationSite::leaked as fn(&AllocationSite) -> HeapAmount,
        |site| site.at_peak,
        |site| site.allocated,
    ] {
        addable(recording.sites.iter().map(|site| of(site).bytes))?;
        addable(recording.sites.iter().map(|site| of(site).blocks))?;
    }
    let each = each(&recording.sites, most.max(1));
    let words: Vec<_> = recording.command.iter().map(|word| plain(word.as_bytes())).collect();
    writeln!(out, "v 10400 3\nX {}", words.join(" "))?;
    if each > 1 {
        writeln!(out, "# Each allocation stands for {each}.")?;
    }
    writeln!(out, "I {:x} 0", recording.page_size.bytes())?;
    if recording.attached {
        writeln!(out, "A")?;
    }
    let mut stream = HeaptrackStream::new(recording, each, out);
    stream.traces()?;
    let snapshots = snapshots(recording);
    let kinds = stream.numbered(&snapshots)?;
    stream.kinds = kinds;
    stream.write_kinds()?;
    stream.run(&snapshots)?;
    let not_temporary = stream.states.iter().map(|state| state.temporary_lost).sum();
    Ok(HeaptrackLosses { each, not_temporary })
}

/// Number of recorded allocations that each written allocation represents, so that at most about
/// `most` are written.
fn each(sites: &[AllocationSite], most: u64) -> u64 {
    sites
        .iter()
        .fold(0_u64, |sum, site| sum.saturating_add(site.allocated.blocks))
        .div_ceil(most)
        .max(1)
}

/// Events of a site: those already written, and those still to be written.
#[derive(Clone, Debug)]
struct HeaptrackSite {
    trace: u32,
    /// Live bytes according to the events written so far.
    level: u64,
    /// Live bytes at the next snapshot with a tree.
    goal: u64,
    /// Number of allocations still to be written; `temporary` counts those of them that are
    /// temporary.
    left: u64,
    temporary: u64,
    /// Total number of allocations of the site, which are distributed over time.
    all: u64,
    all_temporary: u64,
    temporary_lost: u64,
    /// Mean size of a block in bytes.
    size: u64,
    at_peak: u64,
    leaked: u64,
    /// True if the tree of the next snapshot with a tree lists the site.
    is_listed: bool,
}

/// Role of a kind: allocations or frees use the kind.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Half {
    Allocated,
    Freed,
}

/// Kinds of one role, as pairs of size and trace, with numbers in the order of their first use.
#[derive(Debug, Default)]
struct Kinds {
    numbers: HashMap<(u64, u32), u64>,
    in_order: Vec<(u64, u32)>,
}

impl Kinds {
    fn number(&mut self, kind: (u64, u32)) -> u64 {
        *self.numbers.entry(kind).or_insert_with(|| {
            self.in_order.push(kind);
            u64::try_from(self.in_order.len()).expect("a length fits") - 1
        })
    }
}

struct HeaptrackStream<'r, 'o> {
    recording: &'r HeapRecording,
    out: &'o mut dyn Write,
    states: Vec<HeaptrackSite>,
    /// Kinds of allocations, then kinds of frees.
    kinds: [Kinds; 2],
    /// Live bytes according to the events written so far.
    live: u64,
    /// Live bytes of all sites at the peak.
    limit: u64,
    /// Last written time in milliseconds since the start of the recording.
    now: u64,
    peak_is_over: bool,
}

impl<'r, 'o> HeaptrackStream<'r, 'o> {
    fn new(
        recording: &'r HeapRecording,
        each: u64,
        out: &'o mut dyn Write,
    ) -> HeaptrackStream<'r, 'o> {
        let state = |site: &AllocationSite| {
            let all = site.allocated.blocks.div_ceil(each);
            let temporary = if each == 1 { site.temporary } else { site.temporary / each };
            let temporary = temporary.min(all);
            HeaptrackSite {
                trace: 0,
                level: 0,
                goal: 0,
                left: all,
                temporary,
                all,
                all_temporary: temporary,
                temporary_lost: 0,
                size: site.allocated.bytes.checked_div(site.allocated.blocks).unwrap_or(0),
                at_peak: site.at_peak.bytes,
                leaked: site.leaked().bytes,
                is_listed: false,
            }
        };
        let states: Vec<HeaptrackSite> = recording.sites.iter().map(state).collect();
        let limit = sum_of(&states, |state| state.at_peak);
        HeaptrackStream {
            recording,
            out,
            states,
            kinds: Default::default(),
            live: 0,
            limit,
            now: 0,
            peak_is_over: false,
        }
    }

    /// Writes names, instruction pointers and call stacks.
    fn traces(&mut self) -> io::Result<()> {
        let mut names = StringNumbers { known: HashMap::new() };
        let mut places: HashMap<Vec<u32>, u32> = HashMap::new();
        let mut traces: HashMap<(u32, u32), u32> = HashMap::new();
        let mut of_stack: HashMap<u32, u32> = HashMap::new();
        let sites = self.recording.sites.iter().enumerate();
        for (at, site) in sites.filter(|(_, site)| site.allocated != HeapAmount::default()) {
            if let Some(trace) = of_stack.get(&site.stack) {
                self.states[at].trace = *trace;
                continue;
            }
            let mut trace = 0;
            for place in places_of(self.recording, site).iter().rev() {
                let number = match places.get(place) {
                    Some(number) => *number,
                    None => {
                        names.place(self.recording, place, self.out)?;
                        let number = next(&places);
                        places.insert(place.clone(), number);
                        number
                    }
                };
                trace = match traces.get(&(number, trace)) {
                    Some(known) => *known,
                    None => {
                        writeln!(self.out, "t {number:x} {trace:x}")?;
                        let known = next(&traces);
                        traces.insert((number, trace), known);
                        known
                    }
                };
            }
            of_stack.insert(site.stack, trace);
            self.states[at].trace = trace;
        }
        Ok(())
    }

    /// Kinds of all events, from a dry run whose output is discarded.
    fn numbered(&self, snapshots: &[ExportSnapshot]) -> io::Result<[Kinds; 2]> {
        let mut stream = HeaptrackStream {
            recording: self.recording,
            out: &mut io::sink(),
            states: self.states.clone(),
            kinds: Default::default(),
            ..*self
        };
        stream.run(snapshots)?;
        Ok(stream.kinds)
    }

    fn write_kinds(&mut self) -> io::Result<()> {
        for (size, trace) in self.kinds.iter().flat_map(|kinds| &kinds.in_order) {
            writeln!(self.out, "a {size:x} {trace:x}")?;
        }
        Ok(())
    }

    fn run(&mut self, snapshots: &[ExportSnapshot]) -> io::Result<()> {
        let all = self.recording.totals.allocated.blocks;
        let mut passed = 0;
        for (at, snapshot) in snapshots.iter().enumerate() {
            self.time(snapshot.time_ns)?;
            if let Some(resident) = snapshot.resident {
                writeln!(self.out, "R {:x}", resident / self.recording.page_size.bytes().max(1))?;
            }
            let is_new = at.checked_sub(1).is_none_or(|before| snapshots[before].sites.is_some());
            if is_new {
                self.set_goals(&snapshots[at..]);
            }
            let (wanted, exact) = self.wanted(snapshot);
            self.free(wanted, exact)?;
            let now = snapshot.allocations.min(all);
            if snapshot.what != SnapshotTime::Moment || now.saturating_sub(passed) > all / PARTS {
                passed = now;
                self.churn(snapshot.what, (now, all))?;
            }
            self.allocate(wanted, exact, snapshot.what)?;
            if snapshot.what == SnapshotTime::Peak {
                self.peak_is_over = true;
            }
        }
        Ok(())
    }

    fn time(&mut self, nanos: u64) -> io::Result<()> {
        let millis = nanos / 1_000_000;
        if millis > self.now {
            self.now = millis;
            writeln!(self.out, "c {millis:x}")?;
        }
        Ok(())
    }

    /// Sets the goal of each site: its live bytes at the next snapshot with a tree.
    fn set_goals(&mut self, ahead: &[ExportSnapshot]) {
        let Some(next) = ahead.iter().find(|snapshot| snapshot.sites.is_some()) else { return };
        let sites = next.sites.as_deref().unwrap_or_default();
        for state in &mut self.states {
            state.goal = 0;
            state.is_listed = next.what != SnapshotTime::Moment;
        }
        for (at, bytes) in sites {
            self.states[*at].goal = *bytes;
            self.states[*at].is_listed = true;
        }
        // Sites that the tree does not list are small. They keep their live bytes up to `room`. The
        // remaining `room` lets sites grow that have more live bytes at the peak or at the end.
        let mut room = next.bytes.saturating_sub(sum(sites));
        let peak_is_over = self.peak_is_over;
        for state in self.states.iter_mut().filter(|state| !state.is_listed) {
            state.goal = state.level.min(room);
            room -= state.goal;
        }
        for state in self.states.iter_mut().filter(|state| !state.is_listed) {
            let later = if peak_is_over { state.leaked } else { state.at_peak };
            let more = later.saturating_sub(state.goal).min(room);
            state.goal += more;
            room -= more;
        }
    }

    /// Goal of the live bytes in total, and true if each site must reach its own goal.
    fn wanted(&self, snapshot: &ExportSnapshot) -> (u64, bool) {
        let goals = sum_of(&self.states, |state| state.goal);
        match snapshot.what {
            SnapshotTime::Begin => (0, false),
            SnapshotTime::Moment => {
                let most = self.most();
                (snapshot.bytes.min(most), snapshot.sites.is_some() && goals <= most)
            }
            SnapshotTime::Peak | SnapshotTime::End => (goals, true),
        }
    }

    /// Upper bound of the live bytes. Before the peak it is less than the live bytes at the peak,
    /// because heaptrack takes the first maximum as the peak.
    fn most(&self) -> u64 {
        if self.peak_is_over { self.limit } else { self.limit.saturating_sub(1) }
    }

    /// Writes frees of the bytes above the goals.
    fn free(&mut self, wanted: u64, exact: bool) -> io::Result<()> {
        for at in 0..self.states.len() {
            let over = self.states[at].level.saturating_sub(self.states[at].goal);
            let spare = if exact { over } else { self.live.saturating_sub(wanted) };
            self.write_allocation(at, over.min(spare).min(self.loose(at)))?;
        }
        if !exact {
            // More bytes are live than wanted: free blocks of any site.
            for at in 0..self.states.len() {
                let bytes = self.loose(at).min(self.live.saturating_sub(wanted));
                self.write_allocation(at, bytes)?;
            }
        }
        Ok(())
    }

    /// Bytes of a site that may be freed. Bytes that are live at the end are excluded if no later
    /// allocation could restore them.
    fn loose(&self, at: usize) -> u64 {
        let state = &self.states[at];
        let is_last = self.peak_is_over && state.left <= state.temporary;
        state.level.saturating_sub(if is_last { state.leaked } else { 0 })
    }

    fn write_allocation(&mut self, at: usize, bytes: u64) -> io::Result<()> {
        if bytes == 0 {
            return Ok(());
        }
        self.states[at].level -= bytes;
        self.live -= bytes;
        let kind = self.kind(at, bytes, Half::Freed);
        writeln!(self.out, "- {kind:x}")
    }

    /// Writes allocations of the bytes below the goals.
    fn allocate(&mut self, wanted: u64, exact: bool, what: SnapshotTime) -> io::Result<()> {
        let must = matches!(what, SnapshotTime::Peak | SnapshotTime::End);
        let last = (what == SnapshotTime::Peak).then(|| self.temporary_at_peak()).flatten();
        for at in (0..self.states.len()).filter(|at| Some(*at) != last) {
            let state = &self.states[at];
            let under = state.goal.saturating_sub(state.level);
            let lacks = wanted.saturating_sub(self.live);
            let bytes = if exact { under } else { under.min(lacks) };
            if bytes > 0 && (must || self.spare(at) > 0) {
                self.give(at, bytes)?;
            }
        }
        if let Some(at) = last {
            return self.give_for_a_while(at);
        }
        if !must && self.live < wanted {
            // More live bytes are wanted than the goals permit. They are allocated by the site with
            // the largest goal among the sites with remaining allocations.
            let order = |at: &usize| (self.spare(*at) > 0, self.states[*at].goal, self.spare(*at));
            let most = (0..self.states.len()).max_by_key(order);
            if let Some(at) = most.filter(|at| self.spare(*at) > 0) {
                self.give(at, wanted - self.live)?;
            }
        }
        Ok(())
    }

    /// Index of a site that allocates bytes for the peak and frees them before its next allocation.
    fn temporary_at_peak(&self) -> Option<usize> {
        self.states.iter().position(|state| {
            let is_only_temporary = state.left > 0 && state.left <= state.temporary;
            is_only_temporary && state.goal > state.level && state.leaked <= state.level
        })
    }

    fn give_for_a_while(&mut self, at: usize) -> io::Result<()> {
        let bytes = self.states[at].goal - self.states[at].level;
        let kind = self.kind(at, bytes, Half::Allocated);
        self.states[at].left -= 1;
        self.states[at].temporary -= 1;
        write!(self.out, "+ {kind:x}\n- {kind:x}\n")
    }

    /// Number of remaining allocations of a site that neither the peak nor the bytes live at the
    /// end need.
    fn beyond(&self, at: usize) -> u64 {
        let state = &self.states[at];
        let peak = !self.peak_is_over && state.at_peak > 0;
        state.left.saturating_sub(u64::from(peak) + u64::from(state.leaked > 0))
    }

    /// Number of the allocations in [`HeaptrackStream::beyond`] that need not be temporary.
    fn spare(&self, at: usize) -> u64 {
        self.beyond(at).saturating_sub(self.states[at].temporary)
    }

    /// Writes allocations of `bytes`, in blocks of the site's mean size while the site has
    /// allocations left.
    fn give(&mut self, at: usize, bytes: u64) -> io::Result<()> {
        let usual = bytes.checked_div(self.states[at].size).unwrap_or(0);
        let count = usual.min(self.spare(at)).max(1);
        let each = bytes / count;
        let kind = if count > 1 { self.kind(at, each, Half::Allocated) } else { 0 };
        for _ in 1..count {
            writeln!(self.out, "+ {kind:x}")?;
        }
        let kind = self.kind(at, bytes - each * (count - 1), Half::Allocated);
        writeln!(self.out, "+ {kind:x}")?;
        let state = &mut self.states[at];
        state.left = state.left.saturating_sub(count);
        // Planned temporary allocations that exceed the remaining allocations are lost.
        let lost = state.temporary.saturating_sub(state.left);
        state.temporary -= lost;
        state.temporary_lost += lost;
        state.level += bytes;
        self.live += bytes;
        Ok(())
    }

    /// Writes short-lived blocks, in proportion to the number of allocations up to this snapshot.
    fn churn(&mut self, what: SnapshotTime, (now, all): (u64, u64)) -> io::Result<()> {
        for at in 0..self.states.len() {
            let state = &self.states[at];
            let (temporary, pairs) = if what == SnapshotTime::End {
                let kept = u64::from(state.leaked > state.level);
                let left = state.left.saturating_sub(kept);
                let temporary = state.temporary.min(left);
                (temporary, left - temporary)
            } else {
                let by_now = share(state.all_temporary, now, all);
                let written = state.all_temporary - state.temporary - state.temporary_lost;
                let temporary = by_now.saturating_sub(written).min(state.temporary);
                let temporary = temporary.min(self.beyond(at));
                let written = state.all - state.left - written;
                let by_now = share(state.all - state.all_temporary, now, all);
                (temporary, by_now.saturating_sub(written).min(self.spare(at)))
            };
            self.pass(at, temporary, pairs)?;
        }
        Ok(())
    }

    /// Writes blocks that are freed immediately: `temporary` blocks that count as temporary, and
    /// `pairs` blocks that do not.
    fn pass(&mut self, at: usize, temporary: u64, pairs: u64) -> io::Result<()> {
        if temporary == 0 && pairs == 0 {
            return Ok(());
        }
        // The live bytes that heaptrack sums up must not exceed the upper bound.
        let size = self.states[at].size.min(self.most().saturating_sub(self.live));
        let kind = self.kind(at, size, Half::Allocated);
        for _ in 0..temporary {
            write!(self.out, "+ {kind:x}\n- {kind:x}\n")?;
        }
        if pairs > 0 {
            let freed = self.kind(at, size, Half::Freed);
            for _ in 0..pairs {
                write!(self.out, "+ {kind:x}\n- {freed:x}\n")?;
            }
        }
        let state = &mut self.states[at];
        state.left -= temporary + pairs;
        state.temporary -= temporary;
        Ok(())
    }

    /// Number of the kind with this site and size. The kinds of allocations are numbered by their
    /// first `+`, so the caller must write the event next.
    fn kind(&mut self, at: usize, size: u64, half: Half) -> u64 {
        let kind = (size, self.states[at].trace);
        let [allocated, freed] = &mut self.kinds;
        match half {
            Half::Allocated => allocated.number(kind),
            Half::Freed => {
                let before = u64::try_from(allocated.in_order.len()).expect("a length fits");
                before + freed.number(kind)
            }
        }
    }
}

/// `count` times `now` divided by `all`, rounded down.
#[expect(clippy::cast_possible_truncation, reason = "no more than `count`")]
fn share(count: u64, now: u64, all: u64) -> u64 {
    let part = u128::from(count) * u128::from(now.min(all));
    part.checked_div(u128::from(all)).unwrap_or(0) as u64
}

fn sum_of(states: &[HeaptrackSite], of: impl Fn(&HeaptrackSite) -> u64) -> u64 {
    states.iter().fold(0, |sum, state| sum.saturating_add(of(state)))
}

/// The number of a new item; numbers begin at 1.
fn next<T>(known: &HashMap<T, u32>) -> u32 {
    u32::try_from(known.len()).unwrap_or(u32::MAX - 1) + 1
}

/// Call stack of a site as a list of addresses. An address is the list of the frames at it: inlined
/// functions, then the function that contains the code. An unknown call stack has one address
/// without frames.
fn places_of(recording: &HeapRecording, site: &AllocationSite) -> Vec<Vec<u32>> {
    let stack = usize::try_from(site.stack).ok().and_then(|at| recording.stacks.get(at));
    let stack = stack.map_or(&[][..], Vec::as_slice);
    let inlined = |at: &u32| frame(recording, *at).is_some_and(|frame| frame.inlined);
    let places: Vec<Vec<u32>> =
        stack.split_inclusive(|at| !inlined(at)).map(<[u32]>::to_vec).collect();
    if places.is_empty() { vec![Vec::new()] } else { places }
}

fn frame(recording: &HeapRecording, at: u32) -> Option<&Frame> {
    recording.frames.get(usize::try_from(at).ok()?)
}

/// Numbers of strings in the file; 0 is the empty string.
struct StringNumbers {
    known: HashMap<String, u32>,
}

impl StringNumbers {
    fn name(&mut self, text: &[u8], out: &mut dyn Write) -> io::Result<u32> {
        let text = plain(text).into_owned();
        if text.is_empty() {
            return Ok(0);
        }
        if let Some(number) = self.known.get(&text) {
            return Ok(*number);
        }
        writeln!(out, "s {:x} {text}", text.len())?;
        let number = next(&self.known);
        self.known.insert(text, number);
        Ok(number)
    }

    /// Writes an instruction pointer: its address, its file, and the function, source file and line
    /// of each frame at the address.
    fn place(
        &mut self,
        recording: &HeapRecording,
        place: &[u32],
        out: &mut dyn Write,
    ) -> io::Result<()> {
        let frames: Vec<&Frame> = place.iter().filter_map(|at| frame(recording, *at)).collect();
        let outermost = frames.last();
        let module = outermost.and_then(|frame| frame.module.as_ref());
        let module = self.name(module.map_or(&[][..], |name| name.as_bytes()), out)?;
        let mut line = format!("i {:x} {module:x}", outermost.map_or(0, |frame| frame.offset));
        for frame in &frames {
            let function = frame.function.as_deref().unwrap_or_default();
            if function.is_empty() && frame.line.is_none() {
                continue;
            }
            let function = self.name(function.as_bytes(), out)?;
            let (file, number) = match &frame.line {
                Some(line) => (self.name(line.file.as_bytes(), out)?, line.number),
                None => (0, 0),
            };
            line.push_str(&format!(" {function:x} {file:x} {number:x}"));
        }
        if frames.is_empty() {
            let unknown = self.name(b"[unknown]", out)?;
            line.push_str(&format!(" {unknown:x} 0 0"));
        }
        writeln!(out, "{line}")
    }
}

/// Like [`write`], with at most [`MAX_ALLOCATIONS`] allocations. Returns notes on the deviations of
/// the file from the recording.
///
/// # Errors
/// Returns the error of `out`.
pub(super) fn write_with_notes(
    recording: &HeapRecording,
    is_packed: bool,
    out: &mut dyn Write,
) -> io::Result<Vec<String>> {
    let write_all = |out: &mut dyn Write| write(recording, MAX_ALLOCATIONS, out);
    let losses = if is_packed { packed(out, write_all)? } else { write_all(out)? };
    let HeaptrackLosses { each, not_temporary } = losses;
    let mut notes = Vec::new();
    if each > 1 {
        notes.push(format!(
            "an allocation in the file for heaptrack stands for {each}; bytes are exact"
        ));
    }
    if not_temporary > 0 {
        notes.push(format!(
            "{not_temporary} temporary allocations are not marked as temporary in the file for heaptrack: they were live at the peak"
        ));
    }
    Ok(notes)
}
