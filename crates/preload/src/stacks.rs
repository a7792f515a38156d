//! The call stack of an allocation: remembered where it was seen before, followed frame by frame where not.
//!
//! Leaving a function is determined by its return address, its stack pointer, maybe its frame pointer, and the words of the
//! stack that its row reads. A [`Memo`] keeps these words for some frames one above the other, so that a stack that is the
//! same again is known by comparing them, at less than a nanosecond a frame. Stacks are cut into pieces at fixed addresses
//! (every [`WINDOW`] bytes), so that the outer frames are remembered once for all that is called from them:
//!
//! ```text
//!  stack pointer of the caller                                                       end of the stack
//!  | frames in the first window   | frames in the next window | ...                              |
//!  | memo: words, place of each --> memo: words, places      --> ...           --> nobody called  |
//! ```
//!
//! A thread has few memos. Where it goes more ways than these, it *glances*: it takes a hash of the words that lie where the
//! memos of other ways to the same depth have theirs. A stack is known by it if it was followed before, and its words were
//! found at these very places: then it was left by them, and is again, since all that is read on the way is the same. Two
//! stacks that are not the same are taken for each other with a probability of 2^-59.

use std::cell::Cell;

use pagewise_heaplog::recording::ROOT;
use pagewise_heaplog::tables::{INTERRUPTED, SITES, header};

use crate::shared::{self, Record};
use crate::{kernel, real, tree};

mod walk;

/// Bytes of stack that one memo covers at most, a power of two.
const WINDOW: u64 = 1 << 10;
/// Words that a memo compares, and frames that it holds.
const WORDS: usize = 32;
/// Memos of a thread.
const MEMOS: usize = 512;
/// Memos in a row that make up one call stack; what is above is cut.
const PIECES: usize = 128;
/// Stacks that a thread knows by glances, a power of two; the bits of a word that tell the site.
const GLANCES: usize = 1 << 16;
const SITE: u64 = SITES.room as u64 - 1;
const _: () = assert!(SITES.room.is_power_of_two());
/// In place of an offset: the frame pointer was not saved in this piece.
const UNSAVED: u16 = u16::MAX;
/// In place of a hash: that of no call, and none.
const OUTSIDE: u64 = 2;
const NOTHING: u64 = 0;
/// In place of a number.
const NONE: u32 = u32::MAX - 1;

/// Where a thread is in a function that has called.
#[derive(Clone, Copy, Debug)]
pub(crate) struct At {
    /// Where the call returns to.
    pub code: u64,
    /// The stack pointer after it returned.
    pub stack: u64,
    /// The frame pointer.
    pub frame: u64,
}

/// Some frames, one above the other, and the words that say that they are the same again.
#[repr(C, align(64))]
pub(crate) struct Memo {
    code: Cell<u64>,
    stack: Cell<u64>,
    frame: Cell<u64>,
    outer_code: Cell<u64>,
    outer_stack: Cell<u64>,
    record: Cell<*const u8>,
    /// All places as one word.
    calls: Cell<u64>,
    /// What stands for the places of its words, and for what they were as well.
    layout: Cell<u64>,
    glance: Cell<u64>,
    /// What stands for all calls of the pieces above, and for those and this one's.
    outer_hash: Cell<u64>,
    hash: Cell<u64>,
    node: Cell<u32>,
    site: Cell<u32>,
    /// The memo that was the next piece last time.
    next: Cell<u16>,
    uses_frame: Cell<bool>,
    is_cut: Cell<bool>,
    words: Cell<u8>,
    frames: Cell<u8>,
    reach: Cell<u16>,
    saved: Cell<u16>,
    offsets: [Cell<u16>; WORDS],
    values: [Cell<u64>; WORDS],
    places: [Cell<u32>; WORDS],
}

impl Memo {
    /// Whether its frames are there again.
    #[inline(always)]
    fn holds(&self, at: At, end: u64) -> bool {
        if self.code.get() != at.code
            || self.stack.get() != at.stack
            || (self.uses_frame.get() && self.frame.get() != at.frame)
            || at.stack + u64::from(self.reach.get()) * 8 > end
        {
            return false;
        }
        let count = usize::from(self.words.get()).min(WORDS);
        let offsets = self.offsets[..count].as_chunks::<4>().0;
        let values = self.values[..count].as_chunks::<4>().0;
        let differs = |offset: &Cell<u16>, value: &Cell<u64>| {
            word(at.stack + u64::from(offset.get()) * 8) ^ value.get()
        };
        // Two sums, so that one need not wait for the other.
        let (mut even, mut odd) = (0, 0);
        for ([o0, o1, o2, o3], [v0, v1, v2, v3]) in offsets.iter().zip(values) {
            even |= differs(o0, v0) | differs(o2, v2);
            odd |= differs(o1, v1) | differs(o3, v3);
        }
        even | odd == 0
    }

    /// What stands for the frames from `at` on, if their words lie where its own do; none where the stack ends before.
    #[inline(always)]
    fn glance_at(&self, at: At, end: u64) -> Option<u64> {
        if at.stack + u64::from(self.reach.get()) * 8 > end {
            return None;
        }
        // Two, so that one need not wait for the other.
        let (mut even, mut odd) = (at.code, at.stack);
        let count = usize::from(self.words.get()).min(WORDS);
        for [first, second] in self.offsets[..count].as_chunks::<2>().0 {
            even = tree::mix(even, word(at.stack + u64::from(first.get()) * 8));
            odd = tree::mix(odd, word(at.stack + u64::from(second.get()) * 8));
        }
        let frame = if self.uses_frame.get() { at.frame } else { 0 };
        Some([frame, odd, self.layout.get()].into_iter().fold(even, tree::mix))
    }

    /// Notes where its words lie, and what they are.
    #[inline(always)]
    fn keep_glance(&self, at: At, end: u64) {
        let mut layout = u64::from(self.words.get()) << 1 | u64::from(self.uses_frame.get());
        for four in self.offsets[..usize::from(self.words.get()).min(WORDS)].as_chunks::<4>().0 {
            let [a, b, c, d] = four.each_ref().map(|offset| u64::from(offset.get()));
            layout = tree::mix(layout, a | b << 16 | c << 32 | d << 48);
        }
        self.layout.set(layout);
        self.glance.set(self.glance_at(at, end).unwrap_or(NOTHING));
    }

    /// The node of its innermost call below `outer`, found call by call.
    #[cold]
    #[inline(never)]
    fn learn_run(&self, outer: u32) -> Option<u32> {
        let mut node = outer;
        for place in self.places[..usize::from(self.frames.get())].iter().rev() {
            node = tree::child(node, place.get())?;
        }
        tree::keep_run(self.hash.get(), node);
        Some(node)
    }

    /// The site that was found for it, and the thread's record of that.
    #[inline(always)]
    pub(crate) fn record(&self) -> Option<(u32, Record)> {
        let record = self.record.get();
        if record.is_null() {
            return None;
        }
        // SAFETY: only what `Record::address` gave is put there.
        Some((self.site.get(), unsafe { Record::at(record) }))
    }

    /// The node of its innermost frame.
    pub(crate) fn node(&self) -> u32 {
        self.node.get()
    }

    /// The site of its innermost frame; none where there is no more room.
    #[inline(always)]
    pub(crate) fn site(&self, kind: u32) -> Option<u32> {
        match self.site.get() {
            NONE => self.new_site(kind),
            site => Some(site),
        }
    }

    #[cold]
    #[inline(never)]
    fn new_site(&self, kind: u32) -> Option<u32> {
        let site = tree::site(self.node.get(), kind)?;
        tree::keep_site(self.hash.get(), self.node.get(), site);
        Some(site)
    }

    /// Notes what was found.
    pub(crate) fn keep(&self, site: u32, record: Record) {
        self.site.set(site);
        self.record.set(record.address());
    }

    fn clear(&self, at: At) {
        self.code.set(at.code);
        self.stack.set(at.stack);
        self.frame.set(at.frame);
        self.outer_code.set(0);
        self.outer_stack.set(0);
        self.outer_hash.set(NOTHING);
        self.hash.set(NOTHING);
        self.node.set(NONE);
        self.site.set(NONE);
        self.record.set(std::ptr::null());
        self.uses_frame.set(false);
        self.is_cut.set(false);
        self.words.set(0);
        self.frames.set(0);
        self.reach.set(0);
        self.saved.set(UNSAVED);
    }

    #[inline(always)]
    fn offset(&self, address: u64) -> Option<u16> {
        let words = address.checked_sub(self.stack.get())? / 8;
        u16::try_from(words).ok().filter(|&words| words < UNSAVED - 1)
    }

    /// Where its last frame returns to.
    fn outer(&self, at: At) -> At {
        let frame = match self.saved.get() {
            UNSAVED => at.frame,
            offset => word(at.stack + u64::from(offset) * 8),
        };
        At { code: self.outer_code.get(), stack: self.outer_stack.get(), frame }
    }

    /// Where its last frame would return to now, if it ended where it did; none where a signal or another stack is between.
    #[inline(always)]
    fn outer_now(&self, at: At, end: u64) -> Option<At> {
        let outer = self.outer(at);
        let is_call = outer.code & INTERRUPTED == 0 && outer.stack < end;
        is_call.then(|| At { code: word(outer.stack - 8), ..outer })
    }
}

/// A word of the stack.
#[inline(always)]
fn word(address: u64) -> u64 {
    let place: *const u64 = std::ptr::with_exposed_provenance(address as usize);
    // SAFETY: callers have checked that the address lies between a stack pointer of this thread and the end of that stack.
    unsafe { place.read_volatile() }
}

/// What a thread remembers of its stacks.
#[repr(C)]
pub(crate) struct Stacks {
    /// Where the stack in use begins at the lowest, and ends.
    low: Cell<u64>,
    end: Cell<u64>,
    others: [(Cell<u64>, Cell<u64>); 8],
    next_other: Cell<usize>,
    turn: Cell<usize>,
    /// How often calls were forgotten, and with them all glances.
    forgotten: Cell<u64>,
    /// The last glance.
    glance: Cell<u64>,
    memos: [Memo; MEMOS],
    /// Sites by glances, with as much of the glance as there is room for.
    glanced: [Cell<u64>; GLANCES],
}

/// What is known of a call stack.
pub(crate) enum Found<'a> {
    /// A memo, and its glance if that is new.
    Memo(&'a Memo, Option<Glance>),
    /// The site, which was known by a glance.
    Site(u32),
}

/// What stands for a whole call stack.
#[derive(Clone, Copy)]
pub(crate) struct Glance(u64);

#[inline(always)]
fn hash(at: At) -> usize {
    // Two memos that lie side by side take turns.
    let mixed = (at.code ^ at.stack.rotate_left(29)).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    ((mixed >> 40) as usize % MEMOS) & !1
}

impl Stacks {
    /// The memo of the innermost frames of a stack; none where it cannot be followed at all.
    pub(crate) fn memo(&self, at: At) -> Option<&Memo> {
        let end = self.end(at.stack)?;
        let held = self.held(at, end);
        self.whole(held, at, end)
            .or_else(|| Some(self.follow(at, end, held.map(|(index, _)| index))?.0))
    }

    /// What is known of a stack; none where it cannot be followed at all.
    #[inline(always)]
    pub(crate) fn find(&self, at: At) -> Option<Found<'_>> {
        let end = self.end(at.stack)?;
        let held = self.held(at, end);
        if let Some(memo) = self.whole(held, at, end) {
            return Some(Found::Memo(memo, None));
        }
        self.glance_or_follow(at, end, held.map(|(index, _)| index))
    }

    /// The memo that holds, where all pieces above it do as well.
    #[inline(always)]
    fn whole<'a>(&'a self, held: Option<(usize, &'a Memo)>, at: At, end: u64) -> Option<&'a Memo> {
        let (_, memo) = held?;
        // One that was only the caller of others may have no node yet.
        (self.outer_hold(memo, at, end) && memo.node.get() != NONE).then_some(memo)
    }

    #[inline(never)]
    fn glance_or_follow(&self, at: At, end: u64, held: Option<usize>) -> Option<Found<'_>> {
        if let Some(site) = self.glance(at, end, held) {
            return Some(Found::Site(site));
        }
        self.follow(at, end, held).map(|(memo, glance)| Found::Memo(memo, glance))
    }

    /// The site of a stack that is known by a glance, and is not the same as the last: that one shall have memos.
    #[inline(always)]
    fn glance(&self, mut at: At, mut end: u64, held: Option<usize>) -> Option<u32> {
        let mut held = held.map(|index| &self.memos[index]);
        let mut glance = self.forgotten.get();
        for _ in 0..PIECES {
            let (memo, piece) = match held {
                Some(memo) => (memo, memo.glance.get()),
                None => {
                    let memo = self.like(at)?;
                    (memo, memo.glance_at(at, end)?)
                }
            };
            glance = tree::mix(glance, piece);
            if memo.outer_code.get() == 0 {
                if memo.is_cut.get() || self.glance.replace(glance) == glance {
                    return None;
                }
                let known = self.glanced[glance as usize % GLANCES].get();
                let is_same = (known ^ glance) & !SITE == 0 && known != 0;
                return is_same.then_some((known & SITE) as u32);
            }
            at = match held {
                Some(memo) => memo.outer(at),
                None => memo.outer_now(at, end)?,
            };
            end = self.end(at.stack)?;
            held = self.held(at, end).map(|(_, memo)| memo);
        }
        None
    }

    /// A memo of frames that began where these do.
    #[inline(always)]
    fn like(&self, at: At) -> Option<&Memo> {
        let first = hash(at);
        let begins = |memo: &&Memo| memo.code.get() == at.code && memo.stack.get() == at.stack;
        self.memos[first..first + 2].iter().find(begins)
    }

    /// Notes the site of a stack that was followed.
    pub(crate) fn keep(&self, glance: Glance, site: u32) {
        let Glance(glance) = glance;
        self.glanced[glance as usize % GLANCES].set(glance & !SITE | u64::from(site));
    }

    /// The memo whose frames are there again, and its number.
    #[inline(always)]
    fn held(&self, at: At, end: u64) -> Option<(usize, &Memo)> {
        let first = hash(at);
        let memo = &self.memos[first];
        if memo.holds(at, end) {
            return Some((first, memo));
        }
        let memo = &self.memos[first + 1];
        memo.holds(at, end).then_some((first + 1, memo))
    }

    /// Whether all pieces above a memo that holds are as they were last time.
    #[inline(always)]
    fn outer_hold<'a>(&'a self, mut memo: &'a Memo, mut at: At, end: u64) -> bool {
        loop {
            if memo.outer_code.get() == 0 {
                return memo.outer_hash.get() == OUTSIDE && !memo.is_cut.get();
            }
            let next = &self.memos[usize::from(memo.next.get()) % MEMOS];
            if next.hash.get() != memo.outer_hash.get() {
                return false;
            }
            at = memo.outer(at);
            memo = next;
            if !memo.holds(at, end) {
                return false;
            }
        }
    }

    /// The memo of a stack of several pieces, or of one that was not seen before. `held` is the number of its first piece's,
    /// where that is there again.
    #[inline(never)]
    fn follow(
        &self,
        mut at: At,
        mut end: u64,
        mut held: Option<usize>,
    ) -> Option<(&Memo, Option<Glance>)> {
        let mut pieces = [0_u16; PIECES];
        let mut count = 0;
        let cut = loop {
            let index = held.unwrap_or_else(|| self.learn(at, end, &pieces[..count]));
            pieces[count] = index as u16;
            count += 1;
            let memo = &self.memos[index];
            if memo.outer_code.get() == 0 {
                break memo.is_cut.get();
            }
            if count == PIECES {
                break true;
            }
            at = memo.outer(at);
            match self.end(at.stack) {
                Some(known) => end = known,
                None => break true,
            }
            held = self.held(at, end).map(|(index, _)| index);
        };
        if cut {
            let count = shared::head(header::CUT_STACKS);
            count.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        }
        let mut hash = OUTSIDE;
        let mut next = 0;
        for &index in pieces[..count].iter().rev() {
            let memo = &self.memos[usize::from(index)];
            memo.next.set(next);
            next = index;
            if memo.outer_hash.get() != hash {
                memo.outer_hash.set(hash);
                memo.hash.set(tree::mix(hash, memo.calls.get()));
                memo.node.set(NONE);
                memo.site.set(NONE);
                memo.record.set(std::ptr::null());
            }
            hash = memo.hash.get();
        }
        let first = &self.memos[usize::from(pieces[0])];
        if first.node.get() == NONE {
            match tree::find_run(hash) {
                Some((node, site)) => {
                    first.node.set(node);
                    first.site.set(site.unwrap_or(NONE));
                }
                None => self.resolve(&pieces[..count])?,
            }
        }
        if cut || !first.record.get().is_null() {
            return Some((first, None));
        }
        let memos = pieces[..count].iter().map(|&index| &self.memos[usize::from(index)]);
        let add = |before, memo: &Memo| tree::mix(before, memo.glance.get());
        Some((first, Some(Glance(memos.fold(self.forgotten.get(), add)))))
    }

    /// Finds the nodes of all pieces, from the outermost on.
    #[cold]
    #[inline(never)]
    fn resolve(&self, pieces: &[u16]) -> Option<()> {
        let mut node = ROOT;
        for &index in pieces.iter().rev() {
            let memo = &self.memos[usize::from(index)];
            node = match tree::find_run(memo.hash.get()) {
                Some((node, _)) => node,
                None => memo.learn_run(node)?,
            };
            memo.node.set(node);
        }
        Some(())
    }

    /// Follows the frames from `at` on and has a memo remember them: its number. `taken` are not to be changed.
    #[inline(never)]
    fn learn(&self, at: At, end: u64, taken: &[u16]) -> usize {
        let turn = self.turn.get().wrapping_add(1);
        self.turn.set(turn);
        let mut index = hash(at) + (turn & 1);
        for _ in 0..MEMOS {
            if !taken.contains(&(index as u16)) {
                break;
            }
            index = (index + 1) % MEMOS;
        }
        let memo = &self.memos[index];
        memo.clear(at);
        walk::walk(memo, at, end);
        memo.keep_glance(at, end);
        index
    }

    /// Forgets what was called; the stack's bounds stay.
    pub(crate) fn forget_calls(&self) {
        self.forgotten.set(self.forgotten.get() + 1);
        for memo in &self.memos {
            // No call returns to the address 0.
            memo.code.set(0);
        }
    }

    /// Forgets all: records have moved.
    pub(crate) fn forget(&self) {
        self.forget_calls();
        // The next thread that uses this has another stack.
        for (low, end) in
            self.others.iter().map(|both| (&both.0, &both.1)).chain([(&self.low, &self.end)])
        {
            low.set(0);
            end.set(0);
        }
    }

    /// Where the stack that `stack` points into ends.
    #[inline(always)]
    fn end(&self, stack: u64) -> Option<u64> {
        if stack >= self.low.get() && stack < self.end.get() {
            Some(self.end.get())
        } else {
            self.find_end(stack)
        }
    }

    #[cold]
    #[inline(never)]
    fn find_end(&self, stack: u64) -> Option<u64> {
        let place = |low: u64, end: u64| low <= stack && stack < end;
        let (low, end) = self
            .others
            .iter()
            .map(|(low, end)| (low.get(), end.get()))
            .find(|&(low, end)| place(low, end))
            .or_else(|| bounds(stack))
            .filter(|&(low, end)| place(low, end))?;
        let next = self.next_other.get() % self.others.len();
        self.others[next].0.set(self.low.get());
        self.others[next].1.set(self.end.get());
        self.next_other.set(next + 1);
        self.low.set(low);
        self.end.set(end);
        Some(end)
    }
}

/// From where to where a stack is known to lie, by an address in it. Nothing outside is read, so it is not to be guessed: a
/// stack of the program's own may lie close to a thread's, with memory between that nobody may read.
fn bounds(stack: u64) -> Option<(u64, u64)> {
    const NEAR: u64 = 16 << 20;
    let near = |end: u64| {
        let below = end.checked_sub(stack).filter(|&below| below > 0 && below < NEAR)?;
        // Lower addresses are asked for again, with the same answer.
        Some((stack.saturating_sub(NEAR - below), end & !7))
    };
    // The first thread's stack ends where the loader says, and the kernel keeps others away from it.
    near(real::first_stack_end()).or_else(|| mapping(stack)).or_else(|| {
        // Without /proc: the C library puts a thread's own data at the end of its stack.
        near(real::thread_data()).filter(|_| kernel::thread() != kernel::process())
    })
}

/// The mapping that an address is in, by `/proc/self/maps`.
pub(crate) fn mapping(address: u64) -> Option<(u64, u64)> {
    let file = kernel::File::open(c"/proc/self/maps").ok()?;
    if let Ok(found) = file.mapping_at(address) {
        return Some(found);
    }
    let mut bytes = [0_u8; 512];
    let (mut low, mut end, mut part) = (0_u64, 0_u64, 0);
    loop {
        let count = file.read(&mut bytes).ok().filter(|&count| count > 0)?;
        for &byte in bytes.get(..count)? {
            match (part, byte) {
                (0, b'-') => part = 1,
                (1, b' ') => {
                    if low <= address && address < end {
                        return Some((low, end));
                    }
                    part = 2;
                }
                (_, b'\n') => (low, end, part) = (0, 0, 0),
                (0 | 1, byte) => {
                    let digit = u64::from(char::from(byte).to_digit(16)?);
                    let number = if part == 0 { &mut low } else { &mut end };
                    *number = *number << 4 | digit;
                }
                _ => {}
            }
        }
    }
}
