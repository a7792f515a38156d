//! Payload of each kind of frame: the writer, followed by the reader.
//!
//! Writer and reader keep a [`CodecState`] of the preceding frames, so that only differences are
//! written.

use crate::format::{Bad, In, Out, limit};
use crate::recording::{
    Begin, LogAddress, LogAmount, LogCallNode, LogCounts, LogEnd, LogEnding, LogKind, LogLiveTree,
    LogModule, LogResident, LogSite, LogSiteCounts, LogSnapshot, LogThread, ROOT,
};

/// Context of the preceding frames.
#[derive(Debug, Default)]
pub(crate) struct CodecState {
    pub(crate) modules: usize,
    pub(crate) places: usize,
    pub(crate) sites: usize,
    /// The last address outside of all modules, followed by the last address in each module.
    last_addresses: Vec<u64>,
    last_address: u64,
    pub(crate) nodes: Vec<LogCallNode>,
    followers: Followers,
    last_site: u64,
    last_moment: SnapshotSums,
    tree: Vec<(u32, LogAmount)>,
    pub(crate) leaves: usize,
    counts: Vec<LogSiteCounts>,
}

/// Values of a snapshot that are stored as differences.
#[derive(Clone, Copy, Debug, Default)]
struct SnapshotSums {
    time_ns: u64,
    live: LogAmount,
    allocated: LogAmount,
    held: u64,
    resident: [u64; 5],
}

/// For each return address: its followers, which are the return addresses of the next inner calls
/// on call stacks. The most recent follower is first. Most functions call few other functions, so
/// the position of a follower in this list is a small number.
#[derive(Debug, Default)]
struct Followers {
    /// List for [`ROOT`], followed by a list for each return address.
    lists: Vec<Vec<u32>>,
    /// Largest index of a return address so far, plus 1.
    new: u32,
}

impl Followers {
    /// Maximum length of a list.
    const MAX_FOLLOWERS: usize = 200;

    fn list(&mut self, parent: Option<u32>) -> &mut Vec<u32> {
        let at = parent.map_or(0, |place| place as usize + 1);
        if at >= self.lists.len() {
            self.lists.resize_with(at + 1, Vec::new);
        }
        &mut self.lists[at]
    }

    /// Rank of `place` among the followers of `parent`, most recent first; `None` if `place` is not
    /// in the list.
    fn rank(&mut self, parent: Option<u32>, place: u32) -> Option<u8> {
        let rank = self.list(parent).iter().position(|it| *it == place)?;
        u8::try_from(rank).ok()
    }

    /// Follower of `parent` with a given rank.
    fn at(&mut self, parent: Option<u32>, rank: u8) -> Option<u32> {
        self.list(parent).get(usize::from(rank)).copied()
    }

    fn note(&mut self, parent: Option<u32>, place: u32) {
        let list = self.list(parent);
        match list.iter().position(|it| *it == place) {
            Some(at) => list[..=at].rotate_right(1),
            None => {
                list.truncate(Followers::MAX_FOLLOWERS - 1);
                list.insert(0, place);
            }
        }
        self.new = self.new.max(place.saturating_add(1));
    }
}

pub(crate) fn write_begin(out: &mut Out, begin: &Begin) {
    out.number(begin.pid.into());
    out.number(begin.parent.into());
    out.number(begin.began_ns);
    out.number(begin.page_size);
    out.number(begin.every_bytes);
    out.number(begin.lifetimes_every.into());
    out.byte(begin.attached.into());
    out.text(&begin.program);
    out.text(&begin.allocator);
    out.count(begin.command.len());
    begin.command.iter().for_each(|word| out.text(word));
}

pub(crate) fn read_begin(input: &mut In<'_>) -> Result<Begin, Bad> {
    let mut begin = Begin {
        pid: input.number32()?,
        parent: input.number32()?,
        began_ns: input.number()?,
        page_size: input.number()?,
        every_bytes: input.number()?,
        lifetimes_every: input.number32()?,
        attached: input.flag()?,
        program: input.text()?,
        allocator: input.text()?,
        command: Vec::new(),
    };
    for _ in 0..input.count(1, limit::LIST)? {
        begin.command.push(input.text()?);
    }
    Ok(begin)
}

impl CodecState {
    pub(crate) fn write_modules(&mut self, out: &mut Out, modules: &[LogModule]) {
        out.count(modules.len());
        for module in modules {
            out.text(&module.path);
            out.text(&module.build_id);
            out.number(module.start);
            out.change(module.start, module.end);
            out.change(module.start, module.bias);
        }
        self.modules += modules.len();
    }

    pub(crate) fn read_modules(&mut self, input: &mut In<'_>) -> Result<Vec<LogModule>, Bad> {
        /// Minimum number of bytes of a module.
        const MIN_MODULE_BYTES: usize = 5;
        let count = input.count(MIN_MODULE_BYTES, limit::MODULES - self.modules)?;
        let mut modules = Vec::with_capacity(count);
        for _ in 0..count {
            let (path, build_id, start) = (input.text()?, input.text()?, input.number()?);
            let (end, bias) = (input.change(start)?, input.change(start)?);
            modules.push(LogModule { path, build_id, start, end, bias });
        }
        self.modules += count;
        Ok(modules)
    }

    /// The last address that was encoded for a module. For a module without such an address, the
    /// last address of all modules.
    fn last_address(&mut self, module: Option<u32>) -> &mut u64 {
        let at = module.map_or(0, |module| module as usize + 1);
        if at >= self.last_addresses.len() {
            self.last_addresses.resize(at + 1, self.last_address);
        }
        &mut self.last_addresses[at]
    }

    pub(crate) fn write_places(&mut self, out: &mut Out, places: &[LogAddress]) {
        out.count(places.len());
        for place in places {
            out.number(place.module.map_or(0, |module| u64::from(module) + 1));
        }
        for place in places {
            let last = self.last_address(place.module);
            out.change(*last, place.address);
            *last = place.address;
            self.last_address = place.address;
        }
        // List of the interrupted addresses, which are few. In older files the frame ends before
        // this list, and older readers ignore the list.
        let exact: Vec<usize> = (0..places.len()).filter(|at| places[*at].exact).collect();
        out.count(exact.len());
        let mut next = 0;
        for at in exact {
            out.count(at - next);
            next = at + 1;
        }
        self.places += places.len();
    }

    pub(crate) fn read_places(&mut self, input: &mut In<'_>) -> Result<Vec<LogAddress>, Bad> {
        let count = input.count(2, limit::PLACES - self.places)?;
        let mut places = Vec::with_capacity(count);
        for _ in 0..count {
            let module = input.number32()?.checked_sub(1);
            if module.is_some_and(|module| module as usize >= self.modules) {
                return Err("a place is in a module that is not there");
            }
            places.push(LogAddress { address: 0, exact: false, module });
        }
        for place in &mut places {
            let last = self.last_address(place.module);
            place.address = input.change(*last)?;
            *last = place.address;
            self.last_address = place.address;
        }
        let exact = if input.0.is_empty() { 0 } else { input.count(1, count)? };
        let mut next = 0_usize;
        for _ in 0..exact {
            let distance = usize::try_from(input.number()?).unwrap_or(usize::MAX);
            let at = next.checked_add(distance).filter(|at| *at < count);
            let at = at.ok_or("a place that is not there was interrupted")?;
            places[at].exact = true;
            next = at + 1;
        }
        self.places += count;
        Ok(places)
    }
}

/// Encoding of a node's parent.
mod up {
    /// Maximum number of steps from the preceding node up to its callers; 0 means that the
    /// preceding node itself is the parent.
    pub(super) const FARTHEST: u8 = 250;
    /// The node has no parent.
    pub(super) const ROOT: u8 = 251;
    /// The parent is not within [`FARTHEST`] steps; its distance follows in another column.
    pub(super) const BEFORE: u8 = 252;
}

/// Encoding of a node's return address: a rank among its parent's followers, or this value if the
/// index follows in another column.
const APART: u8 = 255;

impl CodecState {
    /// Number of steps from the last node up to `parent`; `None` if there are too many.
    fn climb(&self, parent: u32) -> Option<u8> {
        let mut at = u32::try_from(self.nodes.len()).ok()?.checked_sub(1)?;
        for steps in 0..=up::FARTHEST {
            if at == parent {
                return Some(steps);
            }
            // A parent has a smaller index than its children, so no further caller can be `parent`.
            if at < parent {
                return None;
            }
            at = self.nodes.get(at as usize)?.parent;
        }
        None
    }

    fn place_of(&self, node: u32) -> Option<u32> {
        self.nodes.get(node as usize).map(|node| node.place)
    }

    pub(crate) fn write_nodes(&mut self, out: &mut Out, nodes: &[LogCallNode]) {
        let (mut ups, mut before) = (Out::default(), Out::default());
        let (mut ranks, mut apart) = (Out::default(), Out::default());
        for node in nodes {
            let parent = self.place_of(node.parent);
            if node.parent == ROOT {
                ups.byte(up::ROOT);
            } else if let Some(steps) = self.climb(node.parent) {
                ups.byte(steps);
            } else {
                ups.byte(up::BEFORE);
                before.number((self.nodes.len() as u64).wrapping_sub(node.parent.into()));
            }
            if let Some(rank) = self.followers.rank(parent, node.place) {
                ranks.byte(rank);
            } else {
                ranks.byte(APART);
                apart.change(self.followers.new.into(), node.place.into());
            }
            self.followers.note(parent, node.place);
            self.nodes.push(*node);
        }
        out.count(nodes.len());
        for part in [ups, ranks, before, apart] {
            out.0.extend_from_slice(&part.0);
        }
    }

    pub(crate) fn read_nodes(&mut self, input: &mut In<'_>) -> Result<(), Bad> {
        let count = input.count(2, limit::NODES - self.nodes.len())?;
        let (ups, ranks) = (input.bytes(count)?, input.bytes(count)?);
        // `before` reads the column of distances. `input` skips this column and then reads the next
        // column, which contains indices of return addresses.
        let mut before = *input;
        for _ in ups.iter().filter(|up| **up == up::BEFORE) {
            input.number()?;
        }
        for (up, rank) in ups.iter().zip(ranks) {
            let now = self.nodes.len();
            let parent = match *up {
                up::ROOT => ROOT,
                up::BEFORE => {
                    let distance = usize::try_from(before.number()?).ok();
                    let parent = distance
                        .filter(|distance| *distance > 0)
                        .and_then(|distance| now.checked_sub(distance));
                    parent.and_then(|at| u32::try_from(at).ok()).ok_or("a call has no caller")?
                }
                steps @ 0..=up::FARTHEST => {
                    let last = now.checked_sub(1).and_then(|at| u32::try_from(at).ok());
                    let mut at = last.ok_or("a call has no caller")?;
                    for _ in 0..steps {
                        at = self.nodes.get(at as usize).ok_or("a call has no caller")?.parent;
                    }
                    if at == ROOT {
                        return Err("a call has no caller");
                    }
                    at
                }
                _ => return Err("a call has a caller of no kind"),
            };
            let caller = self.place_of(parent);
            let place = match *rank {
                APART => u32::try_from(input.change(self.followers.new.into())?).ok(),
                rank => self.followers.at(caller, rank),
            };
            let known = place.filter(|place| (*place as usize) < self.places);
            let place = known.ok_or("a call is at a place that is not there")?;
            self.followers.note(caller, place);
            self.nodes.push(LogCallNode { parent, place });
        }
        Ok(())
    }

    pub(crate) fn write_sites(&mut self, out: &mut Out, sites: &[LogSite]) {
        out.count(sites.len());
        sites.iter().for_each(|site| out.byte(kind_number(site.kind)));
        for site in sites {
            // An unknown call stack is written as 0 instead of [`ROOT`], so that differences stay
            // small.
            let node = if site.node == ROOT { 0 } else { u64::from(site.node) + 1 };
            out.change(self.last_site, node);
            self.last_site = node;
        }
        self.sites += sites.len();
    }

    pub(crate) fn read_sites(&mut self, input: &mut In<'_>) -> Result<Vec<LogSite>, Bad> {
        let count = input.count(2, limit::SITES - self.sites)?;
        let kinds = input.bytes(count)?;
        let mut sites = Vec::with_capacity(count);
        for kind in kinds {
            let kind = kind_of(*kind).ok_or("memory is of no kind")?;
            let node = input.change(self.last_site)?;
            if node > self.nodes.len() as u64 {
                return Err("a site is at a call that is not there");
            }
            self.last_site = node;
            let node = node.checked_sub(1).and_then(|node| u32::try_from(node).ok());
            sites.push(LogSite { node: node.unwrap_or(ROOT), kind });
        }
        self.sites += count;
        Ok(sites)
    }
}

fn kind_number(kind: LogKind) -> u8 {
    match kind {
        LogKind::Heap => 0,
        LogKind::Mapping => 1,
        LogKind::Pool => 2,
    }
}

fn kind_of(number: u8) -> Option<LogKind> {
    [LogKind::Heap, LogKind::Mapping, LogKind::Pool].get(usize::from(number)).copied()
}

/// Bit flags of the parts of a snapshot.
mod part {
    pub(super) const KEY: u8 = 1;
    pub(super) const HELD: u8 = 2;
    pub(super) const RESIDENT: u8 = 4;
    pub(super) const RECORDER: u8 = 8;
    pub(super) const TREE: u8 = 16;
    pub(super) const OLDER: u8 = 32;
}

fn change_amount(out: &mut Out, before: LogAmount, now: LogAmount) {
    out.change(before.bytes, now.bytes);
    out.change(before.blocks, now.blocks);
}

fn changed_amount(input: &mut In<'_>, before: LogAmount) -> Result<LogAmount, Bad> {
    Ok(LogAmount { bytes: input.change(before.bytes)?, blocks: input.change(before.blocks)? })
}

/// Sorts a tree: largest sites first, sites of equal size by index.
pub(crate) fn sort_tree(sites: &mut [(u32, LogAmount)]) {
    sites.sort_unstable_by_key(|(site, amount)| {
        (std::cmp::Reverse((amount.bytes, amount.blocks)), *site)
    });
}

/// True if a snapshot can be decoded without earlier snapshots.
pub(crate) fn is_key(payload: &[u8]) -> bool {
    payload.first().is_some_and(|parts| parts & part::KEY != 0)
}

impl CodecState {
    /// State of a reader that decodes only snapshots, and does not know the number of sites.
    pub(crate) fn of_any_sites() -> CodecState {
        CodecState { sites: limit::SITES, ..CodecState::default() }
    }

    /// Starts a key snapshot, which can be decoded without earlier snapshots.
    pub(crate) fn forget_moments(&mut self) {
        self.last_moment = SnapshotSums::default();
        self.tree.clear();
    }

    pub(crate) fn write_moment(&mut self, out: &mut Out, moment: &LogSnapshot, key: bool) {
        if key {
            self.forget_moments();
        }
        let resident = moment.resident;
        let recorder = resident.and_then(|it| it.recorder);
        let parts = [
            (part::KEY, key),
            (part::HELD, moment.held.is_some()),
            (part::RESIDENT, resident.is_some()),
            (part::RECORDER, recorder.is_some()),
            (part::TREE, moment.tree.is_some()),
            (part::OLDER, moment.older_freed.is_some()),
        ];
        out.byte(parts.iter().filter(|(_, there)| *there).map(|(part, _)| part).sum());
        let last = self.last_moment;
        out.change(last.time_ns, moment.time_ns);
        change_amount(out, last.live, moment.live);
        change_amount(out, last.allocated, moment.allocated);
        let mut now = SnapshotSums {
            time_ns: moment.time_ns,
            live: moment.live,
            allocated: moment.allocated,
            ..last
        };
        if let Some(held) = moment.held {
            out.change(last.held, held);
            now.held = held;
        }
        if let Some(it) = resident {
            now.resident =
                [it.anonymous, it.file, it.shmem, it.swap, recorder.unwrap_or(last.resident[4])];
            let pairs = last.resident.iter().zip(&now.resident);
            let shown = if recorder.is_some() { 5 } else { 4 };
            pairs.take(shown).for_each(|(before, now)| out.change(*before, *now));
        }
        self.last_moment = now;
        if let Some(tree) = &moment.tree {
            self.write_tree(out, tree);
        }
        if let Some(it) = moment.older_freed {
            out.number(it.bytes);
            out.number(it.blocks);
        }
    }

    pub(crate) fn read_moment(&mut self, input: &mut In<'_>) -> Result<LogSnapshot, Bad> {
        let parts = input.byte()?;
        let has = |part| parts & part != 0;
        if has(part::KEY) {
            self.forget_moments();
        }
        let last = self.last_moment;
        let mut now = SnapshotSums {
            time_ns: input.change(last.time_ns)?,
            live: changed_amount(input, last.live)?,
            allocated: changed_amount(input, last.allocated)?,
            ..last
        };
        let mut moment = LogSnapshot {
            time_ns: now.time_ns,
            live: now.live,
            allocated: now.allocated,
            ..LogSnapshot::default()
        };
        if has(part::HELD) {
            now.held = input.change(last.held)?;
            moment.held = Some(now.held);
        }
        if has(part::RESIDENT) {
            let shown = if has(part::RECORDER) { 5 } else { 4 };
            for value in &mut now.resident[..shown] {
                *value = input.change(*value)?;
            }
            let [anonymous, file, shmem, swap, recorder] = now.resident;
            let recorder = has(part::RECORDER).then_some(recorder);
            moment.resident = Some(LogResident { anonymous, file, shmem, swap, recorder });
        }
        self.last_moment = now;
        if has(part::TREE) {
            moment.tree = Some(self.read_tree(input)?);
        }
        if has(part::OLDER) {
            moment.older_freed =
                Some(LogAmount { bytes: input.number()?, blocks: input.number()? });
        }
        Ok(moment)
    }

    fn write_tree(&mut self, out: &mut Out, tree: &LogLiveTree) {
        let mut sites = tree.sites.clone();
        sites.sort_unstable_by_key(|(site, _)| *site);
        sites.dedup_by_key(|(site, _)| *site);
        let find = |list: &[(u32, LogAmount)], site: u32| {
            list.binary_search_by_key(&site, |(site, _)| *site).ok()
        };
        let stays: Vec<bool> =
            self.tree.iter().map(|(site, _)| find(&sites, *site).is_some()).collect();
        // Each removed site is written as the number of remaining sites between it and the previous
        // removed site.
        out.count(stays.iter().filter(|stays| !**stays).count());
        let mut run = 0;
        for stays in &stays {
            if *stays {
                run += 1;
            } else {
                out.number(run);
                run = 0;
            }
        }
        let kept: Vec<(LogAmount, LogAmount)> = self
            .tree
            .iter()
            .filter_map(|(site, amount)| Some((*amount, sites[find(&sites, *site)?].1)))
            .collect();
        kept.iter().for_each(|(before, now)| out.change(before.bytes, now.bytes));
        kept.iter().for_each(|(before, now)| out.change(before.blocks, now.blocks));
        let new: Vec<(u32, LogAmount)> =
            sites.iter().filter(|(site, _)| find(&self.tree, *site).is_none()).copied().collect();
        out.count(new.len());
        let mut last = 0;
        for (site, _) in &new {
            out.number(u64::from(*site) - last);
            last = u64::from(*site);
        }
        new.iter().for_each(|(_, amount)| out.number(amount.bytes));
        new.iter().for_each(|(_, amount)| out.number(amount.blocks));
        out.number(tree.others.bytes);
        out.number(tree.others.blocks);
        self.tree = sites;
    }

    fn read_tree(&mut self, input: &mut In<'_>) -> Result<LogLiveTree, Bad> {
        let mut kept = std::mem::take(&mut self.tree);
        let gone = input.count(1, kept.len())?;
        let mut stays = vec![true; kept.len()];
        let mut at = 0_usize;
        for _ in 0..gone {
            let run = usize::try_from(input.number()?).ok();
            let place = run.and_then(|run| at.checked_add(run)).filter(|at| *at < stays.len());
            at = place.ok_or("a site went that was not there")?;
            stays[at] = false;
            at += 1;
        }
        let mut stays = stays.iter();
        kept.retain(|_| stays.next().copied().unwrap_or(false));
        for (_, amount) in &mut kept {
            amount.bytes = input.change(amount.bytes)?;
        }
        for (_, amount) in &mut kept {
            amount.blocks = input.change(amount.blocks)?;
        }
        // Each item has at least three bytes: a site, its bytes and its blocks.
        let count = input.count(3, self.sites)?;
        let mut last = 0_u64;
        let first_new = kept.len();
        for _ in 0..count {
            last = last.checked_add(input.number()?).ok_or("a site that is not there")?;
            let site = u32::try_from(last).ok().filter(|site| (*site as usize) < self.sites);
            kept.push((site.ok_or("a tree has a site that is not there")?, LogAmount::default()));
        }
        for (_, amount) in &mut kept[first_new..] {
            amount.bytes = input.number()?;
        }
        for (_, amount) in &mut kept[first_new..] {
            amount.blocks = input.number()?;
        }
        let others = LogAmount { bytes: input.number()?, blocks: input.number()? };
        kept.sort_unstable_by_key(|(site, _)| *site);
        if kept.windows(2).any(|pair| pair[0].0 == pair[1].0) {
            return Err("a tree has a site twice");
        }
        self.leaves += kept.len();
        if self.leaves > limit::LEAVES {
            return Err("more call stacks over all time points than the limit");
        }
        self.tree.clone_from(&kept);
        sort_tree(&mut kept);
        Ok(LogLiveTree { sites: kept, others })
    }
}

/// Change of the blocks and of the bytes of an amount.
#[derive(Clone, Copy, Debug, Default)]
struct AmountChange {
    blocks: i64,
    bytes: i64,
}

impl AmountChange {
    fn between(before: LogAmount, now: LogAmount) -> AmountChange {
        let change = |before: u64, now: u64| now.wrapping_sub(before).cast_signed();
        AmountChange {
            blocks: change(before.blocks, now.blocks),
            bytes: change(before.bytes, now.bytes),
        }
    }

    fn less(self, other: AmountChange) -> AmountChange {
        AmountChange {
            blocks: self.blocks.wrapping_sub(other.blocks),
            bytes: self.bytes.wrapping_sub(other.bytes),
        }
    }

    fn onto(self, before: LogAmount) -> LogAmount {
        LogAmount {
            bytes: before.bytes.wrapping_add_signed(self.bytes),
            blocks: before.blocks.wrapping_add_signed(self.blocks),
        }
    }

    /// Number of bytes per block; without blocks, all bytes.
    fn size(self) -> i64 {
        if self.blocks == 0 { self.bytes } else { self.bytes.wrapping_div(self.blocks) }
    }

    /// Expected size for another change of the same site, because blocks of a site often have the
    /// same size.
    fn expected(self, other: AmountChange) -> i64 {
        if self.blocks == 0 || other.blocks == 0 { 0 } else { self.size() }
    }
}

/// Writes a signed number; numbers near 0 are short.
fn signed(out: &mut Out, number: i64) {
    out.change(0, number.cast_unsigned());
}

fn read_signed(input: &mut In<'_>) -> Result<i64, Bad> {
    Ok(input.change(0)?.cast_signed())
}

/// Writes three columns: blocks; bytes per block minus the expected size; the remainder of the
/// division of bytes by blocks.
fn write_changes(out: &mut Out, changes: &[AmountChange], like: &[AmountChange]) {
    changes.iter().for_each(|it| signed(out, it.blocks));
    let pairs = || changes.iter().zip(like);
    pairs().for_each(|(it, like)| signed(out, it.size().wrapping_sub(like.expected(*it))));
    for it in changes.iter().filter(|it| it.blocks != 0) {
        signed(out, it.bytes.wrapping_sub(it.size().wrapping_mul(it.blocks)));
    }
}

fn read_changes(input: &mut In<'_>, like: &[AmountChange]) -> Result<Vec<AmountChange>, Bad> {
    let mut changes = vec![AmountChange::default(); like.len()];
    for it in &mut changes {
        it.blocks = read_signed(input)?;
    }
    for (it, like) in changes.iter_mut().zip(like) {
        let size = read_signed(input)?.wrapping_add(like.expected(*it));
        it.bytes = if it.blocks == 0 { size } else { size.wrapping_mul(it.blocks) };
    }
    for it in changes.iter_mut().filter(|it| it.blocks != 0) {
        it.bytes = it.bytes.wrapping_add(read_signed(input)?);
    }
    Ok(changes)
}

impl CodecState {
    pub(crate) fn write_counts(&mut self, out: &mut Out, counts: &LogCounts) {
        out.number(counts.time_ns);
        out.number(counts.peak.bytes);
        out.number(counts.peak.blocks);
        out.number(counts.peak_within);
        out.option(counts.peak_at_ns);
        out.number(counts.unknown_frees);
        out.number(counts.cut_stacks);
        for cells in [&counts.sizes, &counts.lifetimes] {
            out.count(cells.len());
            cells.iter().for_each(|cell| out.number(*cell));
        }
        out.count(counts.threads.len());
        for thread in &counts.threads {
            out.number(thread.tid.into());
            out.text(&thread.name);
            for amount in [thread.allocated, thread.freed] {
                out.number(amount.bytes);
                out.number(amount.blocks);
            }
        }
        let sites = &counts.sites;
        let has_errors = sites.iter().any(|site| is_estimate(site.errors));
        out.byte(has_errors.into());
        out.count(sites.len());
        self.counts.resize(sites.len(), LogSiteCounts::default());
        let pairs = || self.counts.iter().zip(sites);
        let of = |pick: fn(&LogSiteCounts) -> LogAmount| -> Vec<AmountChange> {
            pairs().map(|(before, now)| AmountChange::between(pick(before), pick(now))).collect()
        };
        let (allocated, freed) = (of(|it| it.allocated), of(|it| it.freed));
        let live: Vec<AmountChange> =
            allocated.iter().zip(&freed).map(|(all, freed)| all.less(*freed)).collect();
        write_changes(out, &allocated, &vec![AmountChange::default(); sites.len()]);
        write_changes(out, &live, &allocated);
        write_changes(out, &of(|it| it.at_peak), &allocated);
        pairs().for_each(|(before, now)| out.change(before.temporary, now.temporary));
        if has_errors {
            sites.iter().for_each(|site| out.bits(site.errors.0));
            sites.iter().for_each(|site| out.bits(site.errors.1));
        }
        self.counts.clone_from(sites);
    }

    pub(crate) fn read_counts(&mut self, input: &mut In<'_>) -> Result<LogCounts, Bad> {
        let mut counts = LogCounts {
            time_ns: input.number()?,
            peak: LogAmount { bytes: input.number()?, blocks: input.number()? },
            peak_within: input.number()?,
            peak_at_ns: input.option()?,
            unknown_frees: input.number()?,
            cut_stacks: input.number()?,
            ..LogCounts::default()
        };
        for cells in [&mut counts.sizes, &mut counts.lifetimes] {
            for _ in 0..input.count(1, limit::LIST)? {
                cells.push(input.number()?);
            }
        }
        /// Minimum number of bytes of a thread.
        const THREAD: usize = 6;
        for _ in 0..input.count(THREAD, limit::THREADS)? {
            let (tid, name) = (input.number32()?, input.text()?);
            let allocated = LogAmount { bytes: input.number()?, blocks: input.number()? };
            let freed = LogAmount { bytes: input.number()?, blocks: input.number()? };
            counts.threads.push(LogThread { tid, name, allocated, freed });
        }
        let has_errors = input.flag()?;
        // Each item has at least seven bytes: blocks and sizes of three amounts, and temporary
        // blocks.
        let count = input.count(7, self.sites)?;
        self.counts.resize(count, LogSiteCounts::default());
        let allocated = read_changes(input, &vec![AmountChange::default(); count])?;
        let live = read_changes(input, &allocated)?;
        let at_peak = read_changes(input, &allocated)?;
        for (at, site) in self.counts.iter_mut().enumerate() {
            site.allocated = allocated[at].onto(site.allocated);
            site.freed = allocated[at].less(live[at]).onto(site.freed);
            site.at_peak = at_peak[at].onto(site.at_peak);
            site.temporary = input.change(site.temporary)?;
            site.errors = (0.0, 0.0);
        }
        if has_errors {
            for site in &mut self.counts {
                site.errors.0 = input.bits()?;
            }
            for site in &mut self.counts {
                site.errors.1 = input.bits()?;
            }
        }
        // An invalid standard error would make all sums with it invalid.
        if !self.counts.iter().all(|site| is_error(site.errors.0) && is_error(site.errors.1)) {
            return Err("a standard error is not a number");
        }
        counts.sites.clone_from(&self.counts);
        Ok(counts)
    }
}

/// True if the counts of a site are estimates, which have standard errors.
fn is_estimate((allocated, live): (f64, f64)) -> bool {
    allocated.to_bits() != 0 || live.to_bits() != 0
}

fn is_error(number: f64) -> bool {
    number.is_finite() && number >= 0.0
}

/// Codes of the endings.
mod how {
    pub(super) const EXITED: u8 = 0;
    pub(super) const KILLED: u8 = 1;
    pub(super) const REPLACED: u8 = 2;
    pub(super) const DETACHED: u8 = 3;
    pub(super) const GONE: u8 = 4;
}

pub(crate) fn write_end(out: &mut Out, end: &LogEnd) {
    out.number(end.time_ns);
    let (how, status) = match end.how {
        LogEnding::Exited(status) => (how::EXITED, status),
        LogEnding::Killed(signal) => (how::KILLED, signal),
        LogEnding::Replaced => (how::REPLACED, 0),
        LogEnding::Detached => (how::DETACHED, 0),
        LogEnding::Gone => (how::GONE, 0),
    };
    out.byte(how);
    signed(out, status.into());
}

pub(crate) fn read_end(input: &mut In<'_>) -> Result<LogEnd, Bad> {
    let (time_ns, how, status) = (input.number()?, input.byte()?, read_signed(input)?);
    let status = i32::try_from(status).map_err(|_| "a status has more than 32 bits")?;
    let how = match how {
        how::EXITED => LogEnding::Exited(status),
        how::KILLED => LogEnding::Killed(status),
        how::REPLACED => LogEnding::Replaced,
        how::DETACHED => LogEnding::Detached,
        how::GONE => LogEnding::Gone,
        _ => return Err("its kind of ending is unknown"),
    };
    Ok(LogEnd { time_ns, how })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn payload() -> (Vec<LogAddress>, Vec<u8>) {
        let place = |address, exact| LogAddress { address, exact, module: None };
        let places = [(0x10, false), (0x20, true), (0x40, false), (0x30, true)];
        let places = places.map(|(address, exact)| place(address, exact)).to_vec();
        let mut out = Out::default();
        CodecState::default().write_places(&mut out, &places);
        (places, out.0)
    }

    fn read(payload: &[u8]) -> Result<Vec<LogAddress>, Bad> {
        CodecState::default().read_places(&mut In(payload))
    }

    #[test]
    fn files_without_a_list_of_interrupted_places_are_read() {
        let (places, payload) = payload();
        assert_eq!(read(&payload).as_ref(), Ok(&places));
        // The list of the two interrupted places follows the count, four modules and four
        // addresses.
        let (before, list) = payload.split_at(payload.len() - 3);
        assert_eq!(list, [2, 1, 1]);
        let plain: Vec<_> =
            places.iter().map(|place| LogAddress { exact: false, ..*place }).collect();
        assert_eq!(read(before), Ok(plain));
    }

    #[test]
    fn a_list_with_missing_places_is_refused() {
        let (_, payload) = payload();
        let before = &payload[..payload.len() - 3];
        for list in [&[5, 0, 0, 0, 0, 0][..], &[1, 4], &[2, 3, 0], &[2, 1], &[1, 0xff]] {
            assert!(read(&[before, list].concat()).is_err(), "{list:?}");
        }
        let most = [before, &[1], &[0xff; 9][..], &[1]].concat();
        assert!(read(&most).is_err());
    }
}
