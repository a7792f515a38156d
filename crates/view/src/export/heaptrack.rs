//! File format of heaptrack 1.4: `heaptrack_print` and heaptrack_gui read it.
//!
//! The format is one of events, and a recording has none: the events are constructed, as few as
//! possible that give the recorded numbers. Exact by call stack are the bytes at the peak and at
//! the end, and, up to [`MAX_ALLOCATIONS`], the number of allocations and of temporary ones. The
//! sums over time are those of the snapshots. The order of events between two trees is a guess:
//! growth until the next tree is assumed to come first.
//!
//! Rules of the reader, on which this depends (`accumulatedtracedata.cpp`, file version 3): `+`
//! adds one allocation and the bytes of the allocation's kind; `-` subtracts the bytes, and is a
//! temporary one if the preceding line with a sign was `+` of the same kind. A kind is a line
//! `a SIZE TRACE`, and two of them may be equal: freed blocks use the second, so that nothing
//! counts as temporary by chance. heaptrack_gui counts the allocations of each kind in a list that
//! grows by one element at each kind's first `+`, and indexes it unchecked by the number of the
//! kind. So kinds are numbered in the order of their first `+`, kinds that are only freed come
//! last, and the events are constructed twice: first to number the kinds, then to be written. The
//! peak is the first time at which the sum is highest.

use std::collections::HashMap;
use std::io::{self, Write};

use pagewise_model::heap::{AllocationSite, HeapAmount, HeapRecording};
use pagewise_model::traced::Frame;

use super::snapshots::{ExportSnapshot, SnapshotTime, snapshots, sum};
use super::{addable, packed, plain};

/// Maximum number of allocations that are written: the reader goes through them three times. If a
/// recording has more, each written allocation represents several.
pub const MAX_ALLOCATIONS: u64 = 8_000_000;

/// Maximum number of recorded snapshots at which short-lived blocks are written.
const PARTS: u64 = 200;

/// Deviations of the file from the recording.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct HeaptrackLosses {
    /// Number of allocations that each written one represents; 1 if all were written.
    pub each: u64,
    /// Number of temporary allocations that are not marked as temporary, since their blocks were
    /// live at the peak.
    pub not_temporary: u64,
}

/// Writes a recording. If it has more than `most` allocations, each written one represents several.
///
/// # Errors
/// Returns the error of `out`; `InvalidData` for numbers whose sum exceeds 2^63.
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

/// Number of allocations that each written one represents.
fn each(sites: &[AllocationSite], most: u64) -> u64 {
    sites
        .iter()
        .fold(0_u64, |sum, site| sum.saturating_add(site.allocated.blocks))
        .div_ceil(most)
        .max(1)
}

/// Written and remaining events of a site.
#[derive(Clone, Debug)]
struct HeaptrackSite {
    trace: u32,
    /// The bytes that are live now.
    level: u64,
    /// The bytes at the next tree.
    goal: u64,
    /// Allocations that are to be written yet, and those of them that are temporary.
    left: u64,
    temporary: u64,
    /// Number of allocations in total, which are spread over time.
    all: u64,
    all_temporary: u64,
    temporary_lost: u64,
    /// Mean size of a block.
    size: u64,
    at_peak: u64,
    leaked: u64,
    /// True if the next tree lists the site.
    is_listed: bool,
}

/// Role of a kind: allocations or frees use it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Half {
    Allocated,
    Freed,
}

/// Kinds of one role, as size and trace, in the order of their first use.
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
    /// Kinds for allocations, and for frees.
    kinds: [Kinds; 2],
    /// Live bytes.
    live: u64,
    /// Live bytes at the peak.
    limit: u64,
    /// Last written time in milliseconds.
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

    /// The kinds of all events, found by a run whose output is discarded.
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

    /// Sets the live bytes that each site has at the next tree.
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
        // Sites outside of the list are small. They keep their amounts, as far as the total
        // permits, or grow.
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

    /// Goal of the live bytes, and true if each site must reach its goal.
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

    /// Upper bound of the live bytes: before the peak less than at it, since the reader takes the
    /// first highest sum.
    fn most(&self) -> u64 {
        if self.peak_is_over { self.limit } else { self.limit.saturating_sub(1) }
    }

    /// Frees the bytes above the goals.
    fn free(&mut self, wanted: u64, exact: bool) -> io::Result<()> {
        for at in 0..self.states.len() {
            let over = self.states[at].level.saturating_sub(self.states[at].goal);
            let spare = if exact { over } else { self.live.saturating_sub(wanted) };
            self.write_allocation(at, over.min(spare).min(self.loose(at)))?;
        }
        if !exact {
            // More live bytes than wanted are left: free blocks of any site.
            for at in 0..self.states.len() {
                let bytes = self.loose(at).min(self.live.saturating_sub(wanted));
                self.write_allocation(at, bytes)?;
            }
        }
        Ok(())
    }

    /// Bytes of a site that can be freed: not bytes live at the end, if no allocation is left that
    /// could restore them.
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

    /// Allocates the bytes below the goals.
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
            // More live bytes are wanted than the goals allow: use the site with the largest goal
            // that has allocations left.
            let order = |at: &usize| (self.spare(*at) > 0, self.states[*at].goal, self.spare(*at));
            let most = (0..self.states.len()).max_by_key(order);
            if let Some(at) = most.filter(|at| self.spare(*at) > 0) {
                self.give(at, wanted - self.live)?;
            }
        }
        Ok(())
    }

    /// Site that allocates the bytes of the peak, and frees them before any other allocation.
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

    /// Number of allocations of a site beyond those for the peak and for the bytes live at the end.
    fn beyond(&self, at: usize) -> u64 {
        let state = &self.states[at];
        let peak = !self.peak_is_over && state.at_peak > 0;
        state.left.saturating_sub(u64::from(peak) + u64::from(state.leaked > 0))
    }

    /// Number of them that need not be temporary.
    fn spare(&self, at: usize) -> u64 {
        self.beyond(at).saturating_sub(self.states[at].temporary)
    }

    /// Allocates bytes, in blocks of the usual size where there are allocations left.
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
        // An allocation that was planned as temporary was used here.
        let lost = state.temporary.saturating_sub(state.left);
        state.temporary -= lost;
        state.temporary_lost += lost;
        state.level += bytes;
        self.live += bytes;
        Ok(())
    }

    /// Writes short-lived blocks in proportion to the allocations so far.
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

    /// Writes blocks that are freed at once, temporary ones and others.
    fn pass(&mut self, at: usize, temporary: u64, pairs: u64) -> io::Result<()> {
        if temporary == 0 && pairs == 0 {
            return Ok(());
        }
        // The live bytes that the reader sums up must not exceed the upper bound.
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

    /// The number of a kind. Allocated kinds are numbered by their first `+`, which the caller
    /// writes next.
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

/// The next number; numbers begin at 1.
fn next<T>(known: &HashMap<T, u32>) -> u32 {
    u32::try_from(known.len()).unwrap_or(u32::MAX - 1) + 1
}

/// The addresses of a site's stack as numbers of frames: each with all functions that are inlined
/// there. For an unknown stack, one address without frames.
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

/// Strings by number; 0 is the empty string.
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

    /// Writes an instruction pointer: its address, its file, and function, source and line of each
    /// frame there.
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

/// Writes a recording as [`write`] does, with at most [`MAX_ALLOCATIONS`] allocations. Returns
/// notes on what the file does not hold.
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
