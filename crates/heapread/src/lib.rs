//! Adds functions and source lines to heap recordings: looks up the recorded addresses in the files
//! that were mapped at these addresses. Reads no process.
#![forbid(unsafe_code)]

use std::collections::HashMap;
use std::hash::{Hash, Hasher};
use std::ops::Range;
use std::rc::Rc;

use pagewise_heaplog::reader::Cut;
use pagewise_heaplog::recording::{self as raw, LogRecording, ROOT};
use pagewise_heaplog::tables::{NODES, PLACES, RECORDER_FILE, SITES, TableRange};
use pagewise_model::ending::ProgramEnding;
use pagewise_model::heap::{
    self, AllocationKind, AllocationSite, AllocatorArea, AllocatorAreaKind, AllocatorLayout,
    HeapAmount, HeapEnding, HeapSnapshot, HeapThread, LiveTree, PageDensity, PinnedPages,
    ResidentBytes, Totals,
};
use pagewise_model::traced::Frame;
use pagewise_model::{Absent, Bytes, Name, PageSize, Pid, Reading};
use pagewise_trace::{FileSymbols, MappedModule, Unusable};

/// Maximum number of stored frames of a call stack, innermost first: deeper frames of a recursion
/// add no information.
const DEEPEST: usize = 1024;
/// Maximum number of stored frames of all call stacks: a bound for hostile files.
const CALLS: usize = 1 << 26;

/// Maximum number of stored frames for [`stacks`], whose call stacks are not shared.
const CALLS_OF_SITES: usize = 1 << 19;

/// Page size of a recording that does not contain one.
const SMALLEST_PAGE: PageSize = match PageSize::new(512) {
    Some(size) => size,
    None => panic!("512 is a power of two"),
};

/// Looks up each address of a recording once. Merges call stacks whose frames have equal functions
/// and lines.
pub fn resolve(
    recording: &LogRecording,
    cut: Option<&Cut>,
    symbols: &mut FileSymbols,
) -> heap::HeapRecording {
    let mut lacks = Vec::new();
    let frames = AddressFrames::resolve(recording, symbols, &mut lacks);
    let mut stacks = StackTable::default();
    let numbers = sites(recording, &frames, &mut stacks);
    if stacks.is_full {
        lacks.push(lack("some callers: the call stacks are too long to be kept"));
    }
    let counts = &recording.counts;
    let is_sampled = recording.begin.every_bytes > 0;
    let mut sites: Vec<AllocationSite> = Vec::new();
    for (stack, kind) in &numbers.keys {
        sites.push(AllocationSite { stack: *stack, kind: *kind, ..nothing(is_sampled) });
    }
    for (raw, number) in counts.sites.iter().zip(&numbers.of_sites) {
        add(&mut sites[*number as usize], raw);
    }
    if let Some(cut) = cut {
        lacks.push(lack(&format!("the rest after byte {}: {}", cut.offset, cut.why)));
    }
    let last_moment = recording.moments.last().map_or(0, |moment| moment.time_ns);
    let mut totals = totals(counts, &sites, is_sampled);
    let mut peak_at_ns = counts.peak_at_ns;
    if recording.end.is_none() && counts.time_ns < last_moment {
        lacks.push(lack(&format!(
            "allocations by call stack in the last {:.3} s",
            seconds(last_moment - counts.time_ns)
        )));
        catch_up(recording, &numbers.of_sites, &mut totals, &mut peak_at_ns, &mut sites);
    }
    let is_full = |count: usize, table: &TableRange| count >= table.room;
    if is_full(recording.sites.len(), &SITES)
        || is_full(recording.nodes.len(), &NODES)
        || is_full(recording.places.len(), &PLACES)
    {
        lacks.push(lack(&format!(
            "the callers of allocations whose call stacks came when the recorder's tables were full: they hold {} call stacks of {} \
             calls",
            SITES.room, NODES.room
        )));
    }
    if counts.cut_stacks > 0 {
        lacks.push(lack(&format!("the whole call stack of {} allocations", counts.cut_stacks)));
    }
    let begin = &recording.begin;
    let page_size = PageSize::new(begin.page_size).unwrap_or_else(|| {
        lacks.push(lack(&format!("the page size {} is invalid", begin.page_size)));
        SMALLEST_PAGE
    });
    heap::HeapRecording {
        pid: Pid(begin.pid),
        command: begin.command.iter().map(|word| Name::new(word)).collect(),
        program: Name::new(&begin.program),
        allocator: Name::new(&begin.allocator),
        page_size,
        began_ns: begin.began_ns,
        took_ns: recording.end.map_or(0, |end| end.time_ns).max(counts.time_ns).max(last_moment),
        every_bytes: is_sampled.then_some(begin.every_bytes),
        attached: begin.attached,
        ending: recording.end.map_or(HeapEnding::CutOff, |end| ending(end.how)),
        totals,
        peak_at_ns: peak_at_ns.ok_or_else(|| lack("when most was live")),
        frames: frames.finish(),
        stacks: stacks.finish(),
        layouts: recording.layouts.iter().map(|it| layout(it, begin, &numbers.of_sites)).collect(),
        moments: recording.moments.iter().map(|it| moment(it, &numbers.of_sites)).collect(),
        sites,
        sizes: counts.sizes.clone(),
        lifetimes: counts.lifetimes.clone(),
        lifetimes_every: begin.lifetimes_every,
        threads: counts.threads.iter().map(thread).collect(),
        lacks,
    }
}

/// Returns the call stacks of some sites. The stack is empty for a site that does not exist, or
/// whose call stack exceeds the limit of stored frames.
pub fn stacks(
    mut recording: LogRecording,
    asked: &[u32],
    symbols: &mut FileSymbols,
    lacks: &mut Vec<Absent>,
) -> Vec<Vec<Frame>> {
    let nodes: Vec<u32> = asked
        .iter()
        .map(|site| recording.sites.get(*site as usize).map_or(ROOT, |site| site.node))
        .collect();
    // Skip addresses that only other sites contain.
    let mut is_asked = vec![false; recording.places.len()];
    for mut at in nodes.iter().copied() {
        while let Some(node) = recording.nodes.get(at as usize) {
            if let Some(is_asked) = is_asked.get_mut(node.place as usize) {
                *is_asked = true;
            }
            if node.parent >= at {
                break;
            }
            at = node.parent;
        }
    }
    for (place, _) in recording.places.iter_mut().zip(is_asked).filter(|(_, is_asked)| !is_asked) {
        place.module = None;
    }
    let frames = AddressFrames::resolve(&recording, symbols, lacks);
    let frame = |number: &u32| frames.all.get(*number as usize).map(|frame| (**frame).clone());
    let mut room = CALLS_OF_SITES;
    let all = nodes.iter().map(|node| stack(&recording, &frames, *node));
    all.map(|stack| match room.checked_sub(stack.len()) {
        Some(left) => {
            room = left;
            stack.iter().filter_map(frame).collect()
        }
        None => Vec::new(),
    })
    .collect()
}

fn lack(what: &str) -> Absent {
    Absent::NotCollected(what.into())
}

#[expect(clippy::cast_precision_loss, reason = "what is shown has few digits")]
fn seconds(nanos: u64) -> f64 {
    nanos as f64 / 1e9
}

/// The frames of each address of the recording.
#[derive(Debug, Default)]
struct AddressFrames {
    all: Vec<Rc<Frame>>,
    numbers: HashMap<AlikeFrame, u32>,
    /// Frame numbers, innermost inlined frame first; `of_places` has the range of each address.
    flat: Vec<u32>,
    of_places: Vec<Range<u32>>,
    /// True if an address is in the recorder's library.
    is_recorder: Vec<bool>,
}

/// A frame that is compared by its visible data: if the function is known, the offset is ignored.
#[derive(Debug)]
struct AlikeFrame(Rc<Frame>);

impl AlikeFrame {
    fn key(&self) -> impl Hash + Eq + '_ {
        let Frame { function, module, offset, line, inlined } = &*self.0;
        let offset = if function.is_some() { 0 } else { *offset };
        (function, module, offset, line, *inlined)
    }
}

impl Hash for AlikeFrame {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.key().hash(state);
    }
}

impl PartialEq for AlikeFrame {
    fn eq(&self, other: &AlikeFrame) -> bool {
        self.key() == other.key()
    }
}

impl Eq for AlikeFrame {}

impl AddressFrames {
    fn resolve(
        recording: &LogRecording,
        symbols: &mut FileSymbols,
        lacks: &mut Vec<Absent>,
    ) -> AddressFrames {
        let LogRecording { modules, places, .. } = recording;
        let mut frames = AddressFrames {
            of_places: vec![0..0; places.len()],
            is_recorder: vec![false; places.len()],
            ..AddressFrames::default()
        };
        let mut by_module: Vec<Vec<usize>> = vec![Vec::new(); modules.len()];
        for (at, place) in places.iter().enumerate() {
            match place.module.and_then(|module| by_module.get_mut(module as usize)) {
                Some(places) => places.push(at),
                None => {
                    let frame = Frame {
                        function: None,
                        module: None,
                        offset: place.address,
                        line: None,
                        inlined: false,
                    };
                    frames.keep(at, vec![frame]);
                }
            }
        }
        let mut unusable: Vec<(Unusable, Name)> = Vec::new();
        for (module, asked) in modules.iter().zip(&by_module).filter(|(_, asked)| !asked.is_empty())
        {
            let name = Name::new(&module.path);
            // Frames in the recorder's library do not belong to the program.
            let is_recorder = name.base().starts_with(RECORDER_FILE.as_bytes());
            // A return address follows the call instruction, which may be the last of its line or
            // function: look up the byte before.
            let instruction = |at: &usize| {
                let place = places[*at];
                place.address.wrapping_sub(module.bias).wrapping_sub(u64::from(!place.exact))
            };
            let addresses: Vec<u64> = asked.iter().map(instruction).collect();
            let file = MappedModule {
                path: &module.path,
                build_id: &module.build_id,
                ran_ns: recording.begin.began_ns,
            };
            let (found, why) = symbols.frames(&file, &addresses);
            unusable.extend(
                why.filter(|_| !is_recorder && is_file(&module.path)).map(|why| (why, name)),
            );
            for (at, found) in asked.iter().zip(found) {
                frames.keep(*at, found);
                frames.is_recorder[*at] = is_recorder;
            }
        }
        // The same file may have been mapped more than once.
        unusable.dedup();
        lacks.extend(
            unusable.iter().map(|(why, name)| {
                lack(&format!("functions and lines of {}: {why}", name.escaped()))
            }),
        );
        frames
    }

    fn keep(&mut self, place: usize, found: Vec<Frame>) {
        // The inlined functions of all addresses are fewer than 2^32: each function takes more than
        // a byte of a file.
        let end = |flat: &Vec<u32>| u32::try_from(flat.len()).unwrap_or(u32::MAX);
        let start = end(&self.flat);
        for frame in found {
            let number = self.number(frame);
            self.flat.push(number);
        }
        self.of_places[place] = start..end(&self.flat);
    }

    /// Returns the number of a frame; equal frames have the same number.
    fn number(&mut self, frame: Frame) -> u32 {
        let frame = Rc::new(frame);
        let next = u32::try_from(self.all.len()).unwrap_or(u32::MAX);
        *self.numbers.entry(AlikeFrame(Rc::clone(&frame))).or_insert_with(|| {
            self.all.push(frame);
            next
        })
    }

    fn of_place(&self, place: usize) -> &[u32] {
        let range = self.of_places.get(place).cloned().unwrap_or_default();
        self.flat.get(range.start as usize..range.end as usize).unwrap_or_default()
    }

    fn finish(self) -> Vec<Frame> {
        drop(self.numbers);
        self.all.into_iter().map(Rc::unwrap_or_clone).collect()
    }
}

/// True if a module has a path: the kernel's own code has a name in brackets.
fn is_file(path: &[u8]) -> bool {
    path.starts_with(b"/")
}

/// Call stacks, each with a number.
#[derive(Debug, Default)]
struct StackTable {
    all: Vec<Rc<Vec<u32>>>,
    numbers: HashMap<Rc<Vec<u32>>, u32>,
    calls: usize,
    is_full: bool,
}

impl StackTable {
    fn number(&mut self, mut stack: Vec<u32>) -> u32 {
        let room = CALLS - self.calls.min(CALLS);
        if stack.len() > room {
            self.is_full = true;
            stack.truncate(room);
        }
        if let Some(number) = self.numbers.get(&stack) {
            return *number;
        }
        // There are fewer stacks than sites, and fewer than 2^32 sites.
        let number = u32::try_from(self.all.len()).unwrap_or(u32::MAX);
        self.calls += stack.len();
        stack.shrink_to_fit();
        let stack = Rc::new(stack);
        self.all.push(Rc::clone(&stack));
        self.numbers.insert(stack, number);
        number
    }

    fn finish(self) -> Vec<Vec<u32>> {
        drop(self.numbers);
        self.all.into_iter().map(Rc::unwrap_or_clone).collect()
    }
}

/// Distinct sites: those with equal call stack and kind are merged.
#[derive(Debug, Default)]
struct SiteNumbers {
    keys: Vec<(u32, AllocationKind)>,
    /// Index into `keys`, by site number of the recording.
    of_sites: Vec<u32>,
}

fn sites(recording: &LogRecording, frames: &AddressFrames, stacks: &mut StackTable) -> SiteNumbers {
    let mut numbers = SiteNumbers::default();
    let mut known: HashMap<(u32, AllocationKind), u32> = HashMap::new();
    for site in &recording.sites {
        let stack = stacks.number(stack(recording, frames, site.node));
        let kind = match site.kind {
            raw::LogKind::Heap => AllocationKind::Heap,
            raw::LogKind::Mapping => AllocationKind::Mapping,
            raw::LogKind::Pool => AllocationKind::Pool,
        };
        let next = u32::try_from(numbers.keys.len()).unwrap_or(u32::MAX);
        let number = *known.entry((stack, kind)).or_insert_with(|| {
            numbers.keys.push((stack, kind));
            next
        });
        numbers.of_sites.push(number);
    }
    numbers
}

/// The frames from a call to its outermost caller, without frames of the recorder.
fn stack(recording: &LogRecording, frames: &AddressFrames, node: u32) -> Vec<u32> {
    let mut stack = Vec::new();
    let mut at = node;
    while at != ROOT && stack.len() < DEEPEST {
        let Some(node) = recording.nodes.get(at as usize) else { break };
        let place = node.place as usize;
        if !frames.is_recorder.get(place).copied().unwrap_or(false) {
            stack.extend(frames.of_place(place));
        }
        // A parent has a lower index than its children, so a valid chain of calls has no cycle.
        if node.parent != ROOT && node.parent >= at {
            break;
        }
        at = node.parent;
    }
    stack.truncate(DEEPEST);
    stack
}

fn nothing(is_sampled: bool) -> AllocationSite {
    AllocationSite {
        stack: 0,
        kind: AllocationKind::Heap,
        allocated: HeapAmount::default(),
        freed: HeapAmount::default(),
        temporary: 0,
        at_peak: HeapAmount::default(),
        errors: is_sampled.then_some((0.0, 0.0)),
    }
}

fn amount(raw: raw::LogAmount) -> HeapAmount {
    HeapAmount { bytes: raw.bytes, blocks: raw.blocks }
}

fn plus(sum: &mut HeapAmount, more: HeapAmount) {
    sum.bytes = sum.bytes.saturating_add(more.bytes);
    sum.blocks = sum.blocks.saturating_add(more.blocks);
}

/// Adds the counts of a site to those of the merged site. Errors of independent estimates add up as
/// squares.
fn add(site: &mut AllocationSite, raw: &raw::LogSiteCounts) {
    plus(&mut site.allocated, amount(raw.allocated));
    plus(&mut site.freed, amount(raw.freed));
    plus(&mut site.at_peak, amount(raw.at_peak));
    site.temporary = site.temporary.saturating_add(raw.temporary);
    if let Some((allocated, live)) = &mut site.errors {
        *allocated = allocated.hypot(raw.errors.0);
        *live = live.hypot(raw.errors.1);
    }
}

fn totals(counts: &raw::LogCounts, sites: &[AllocationSite], is_sampled: bool) -> Totals {
    let mut totals = Totals {
        peak: amount(counts.peak),
        peak_within: counts.peak_within,
        unknown_frees: counts.unknown_frees,
        errors: is_sampled.then_some((0.0, 0.0)),
        ..Totals::default()
    };
    for site in sites {
        plus(&mut totals.allocated, site.allocated);
        plus(&mut totals.freed, site.freed);
        plus(&mut totals.leaked, site.leaked());
        totals.temporary = totals.temporary.saturating_add(site.temporary);
        if let (Some(sum), Some(errors)) = (&mut totals.errors, site.errors) {
            *sum = (sum.0.hypot(errors.0), sum.1.hypot(errors.1));
        }
    }
    totals
}

/// In a recording that was cut off, snapshots may be later than the last counts. Then the totals,
/// and the live amount at the peak, are taken from the snapshots.
fn catch_up(
    recording: &LogRecording,
    of_sites: &[u32],
    totals: &mut Totals,
    peak_at_ns: &mut Option<u64>,
    sites: &mut [AllocationSite],
) {
    let Some(last) = recording.moments.last() else { return };
    // Snapshots contain no error bounds.
    totals.errors = None;
    totals.allocated = amount(last.allocated);
    totals.leaked = amount(last.live);
    totals.freed = HeapAmount {
        bytes: last.allocated.bytes.saturating_sub(last.live.bytes),
        blocks: last.allocated.blocks.saturating_sub(last.live.blocks),
    };
    let most = recording.moments.iter().max_by_key(|moment| moment.live.bytes);
    let Some(most) = most.filter(|moment| moment.live.bytes > totals.peak.bytes) else { return };
    totals.peak = amount(most.live);
    *peak_at_ns = Some(most.time_ns);
    sites.iter_mut().for_each(|site| site.at_peak = HeapAmount::default());
    for (site, amount) in most.tree.iter().flat_map(|tree| merged(tree, of_sites).sites) {
        if let Some(site) = sites.get_mut(site as usize) {
            site.at_peak = amount;
        }
    }
}

fn moment(raw: &raw::LogSnapshot, of_sites: &[u32]) -> HeapSnapshot {
    let resident = |it: raw::LogResident| ResidentBytes {
        anonymous: it.anonymous.saturating_sub(it.recorder.unwrap_or(0)),
        file: it.file,
        shmem: it.shmem,
        swap: it.swap,
    };
    // While the process exited, earlier versions of the recorder wrote an incomplete footprint: 0,
    // or only the large blocks.
    let is_whole = |held: &u64| raw.resident.is_some() || (*held != 0 && *held >= raw.live.bytes);
    let held = raw.held.filter(is_whole);
    let ended = held.is_none() && raw.resident.is_none();
    let held: Reading<Bytes> = held.map(Bytes).ok_or_else(|| {
        if ended {
            lack("the process had ended")
        } else {
            Absent::NotSupported("the allocator does not report its footprint".into())
        }
    });
    HeapSnapshot {
        time_ns: raw.time_ns,
        live: amount(raw.live),
        allocated: amount(raw.allocated),
        held,
        resident: raw.resident.map(resident).ok_or_else(|| {
            lack(if ended { "the process had ended" } else { "/proc/PID/status could not be read" })
        }),
        tree: raw.tree.as_ref().map(|tree| merged(tree, of_sites)),
        older_freed: raw.older_freed.map(amount),
    }
}

/// A tree in which the amounts of merged sites are added up.
fn merged(tree: &raw::LogLiveTree, of_sites: &[u32]) -> LiveTree {
    let mut sums: HashMap<u32, HeapAmount> = HashMap::new();
    for (site, raw) in &tree.sites {
        if let Some(number) = of_sites.get(*site as usize) {
            plus(sums.entry(*number).or_default(), amount(*raw));
        }
    }
    let mut sites: Vec<(u32, HeapAmount)> = sums.into_iter().collect();
    sites.sort_unstable_by_key(|(site, it)| (std::cmp::Reverse((it.bytes, it.blocks)), *site));
    LiveTree { sites, others: amount(tree.others) }
}

fn layout(raw: &raw::LogLayout, begin: &raw::Begin, of_sites: &[u32]) -> AllocatorLayout {
    // If only some blocks are known, the gaps between them may contain unknown blocks.
    let blocks = || match (begin.attached, begin.every_bytes) {
        (true, _) => lack("blocks allocated before the recording began"),
        (_, 1..) => lack("all blocks: allocations were sampled"),
        _ => lack("the program ran on while it was read"),
    };
    let area = |raw: &raw::LogArea| {
        let glibc = |unknown: bool| {
            if unknown && matches!(raw.kind, raw::LogAreaKind::Main | raw::LogAreaKind::Arena) {
                lack("glibc's arena could not be made out")
            } else {
                Absent::NotSupported("only glibc's arenas provide it".into())
            }
        };
        let bytes = |raw: Option<u64>, why: Absent| raw.map(Bytes).ok_or(why);
        let mapped = raw.kind == raw::LogAreaKind::Mapped;
        let between = || {
            if mapped {
                Absent::NotSupported("a block with a mapping of its own fills it".into())
            } else {
                blocks()
            }
        };
        AllocatorArea {
            kind: match raw.kind {
                raw::LogAreaKind::Main => AllocatorAreaKind::Main,
                raw::LogAreaKind::Arena => AllocatorAreaKind::Arena(raw.number),
                raw::LogAreaKind::Mapped => AllocatorAreaKind::Mapped,
                raw::LogAreaKind::Mappings => AllocatorAreaKind::Mappings,
            },
            parts: raw.parts,
            held: Bytes(raw.held),
            resident: bytes(raw.resident, blocks()),
            live: raw.live.map(amount).ok_or_else(blocks),
            empty: bytes(raw.empty, between()),
            top: bytes(raw.top, glibc(raw.top.is_none())),
            gap: bytes(raw.gap, between()),
            threads: raw.threads.ok_or_else(|| glibc(true)),
        }
    };
    let pages = raw.pages.as_ref().map(|raw| {
        let mut sums: HashMap<u32, PinnedPages> = HashMap::new();
        for it in &raw.pinned {
            if let Some(number) = of_sites.get(it.site as usize) {
                let sum = sums.entry(*number).or_default();
                sum.site = *number;
                sum.bytes = sum.bytes.saturating_add(it.bytes);
                plus(&mut sum.live, amount(it.live));
            }
        }
        let mut pinned: Vec<PinnedPages> = sums.into_values().collect();
        pinned.sort_unstable_by_key(|it| (std::cmp::Reverse(it.bytes), it.site));
        let others =
            PinnedPages { site: 0, bytes: raw.others.bytes, live: amount(raw.others.live) };
        PageDensity { cells: raw.cells.to_vec(), pinned, others }
    });
    AllocatorLayout {
        time_ns: raw.time_ns,
        areas: raw.areas.iter().map(area).collect(),
        pages: pages.ok_or_else(blocks),
        unclear: raw.unclear,
    }
}

fn thread(raw: &raw::LogThread) -> HeapThread {
    HeapThread {
        tid: raw.tid,
        name: Name::new(&raw.name),
        allocated: amount(raw.allocated),
        freed: amount(raw.freed),
    }
}

fn ending(how: raw::LogEnding) -> HeapEnding {
    match how {
        raw::LogEnding::Exited(status) => HeapEnding::Ended(ProgramEnding::Exited(status)),
        raw::LogEnding::Killed(signal) => HeapEnding::Ended(ProgramEnding::Killed(signal)),
        raw::LogEnding::Replaced => HeapEnding::Replaced,
        raw::LogEnding::Detached => HeapEnding::Detached,
        raw::LogEnding::Gone => HeapEnding::Gone,
    }
}
