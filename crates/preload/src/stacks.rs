//! Call stack of an allocation: looked up by a hash of the words that determine it, and unwound
//! frame by frame if it is new.
//!
//! A frame is determined by the return address, the stack pointer, sometimes the frame pointer, and
//! the stack words that its unwind row reads. So the first walk of a stack records the addresses of
//! these words. The next time that the stack pointer and the return address are equal, the words at
//! the recorded addresses are hashed. If a stack with this hash was walked before, a new walk would
//! read the same words and find the same frames, so the stack is known.
//!
//! Stacks are divided into pieces at fixed addresses (every [`WINDOW`] bytes), so that all stacks
//! with the same outer frames share the pieces of these frames:
//!
//! ```text
//!  stack pointer of the caller                                                  end of the stack
//!  | frames in the first window | frames in the next window | ...                           |
//!  | layout: offsets of words     --> layout: offsets         --> ...         --> no caller |
//!  | hash of the piece            --> hash of the piece       --> ...                       |
//!  \___________________ hash of the stack --> site ________________________________________/
//! ```
//!
//! The layout of a piece is the list of the offsets of these words. Several layouts can begin with
//! the same stack pointer and return address, because the outer frames differ in size. The hash is
//! first computed with the most recently used layouts. If no known stack has this hash,
//! [`ThreadStacks::follow`] chooses for each piece a layout with which the hash of the piece is
//! known. If no layout is suitable, it walks the frames of the piece.
//!
//! A lookup has no branch that depends on the known stack that it finds, and the products of the
//! hash are independent of each other. So programs that use many stacks in random order suffer
//! neither branch mispredictions nor long latency chains. Two different stacks have the same hash
//! with a probability of 2^-58.

use std::arch::asm;
use std::cell::Cell;
use std::ops::Range;
use std::sync::atomic::Ordering::Relaxed;

use pagewise_heaplog::recording::ROOT;
use pagewise_heaplog::tables::{INTERRUPTED, SITES, header};

use crate::shared;
use crate::{kernel, next_alloc, tree};

#[cfg(test)]
mod tests;
mod walk;

/// Maximum number of stack bytes in one piece, a power of two: 512 words. With a smaller value,
/// most stacks have several pieces, each of which costs as much as ten words. With a larger value,
/// fewer stacks share their outer pieces.
const WINDOW: u64 = 512 * 8;
/// Maximum number of words that determine a piece, and maximum number of its frames.
const WORDS: usize = 32;
/// Number of layouts of a thread, in sets of `WAYS`. A hash of the start address selects the set.
const LAYOUTS: usize = WAYS << 10;
const WAYS: usize = 4;
/// Maximum number of pieces of one call stack; further outer frames are cut off.
const PIECES: usize = 128;
/// Number of sets of pieces that a thread caches. Each set has [`PIECE_WAYS`] pieces, which fill a
/// cache line.
const PIECE_SETS: usize = 1 << 11;
const PIECE_WAYS: usize = 4;
/// Number of stacks that a thread caches, a power of two, in sets that fill a cache line. [`SITE`]
/// is the mask of the bits of an entry that contain the site.
const STACKS: usize = 1 << 16;
const STACK_WAYS: usize = 8;
const SITE: u64 = SITES.room as u64 - 1;
const _: () = assert!(SITES.room.is_power_of_two());
/// Value of an offset if the frame pointer was not saved in this piece.
const UNSAVED: u16 = u16::MAX;
/// Initial hash, before any frame.
const OUTSIDE: u64 = 2;
/// Keys of the hash: fixed random numbers, one for each word.
static KEYS: [u64; WORDS] = generate_keys();

/// Returns the keys, at an address that is opaque to the compiler. An addition then reads a key
/// from memory in one instruction; a 64-bit constant would need another instruction of 10 bytes.
#[inline(always)]
fn keys() -> &'static [u64; WORDS] {
    let place: *const [u64; WORDS];
    // SAFETY: the instruction only computes an address.
    unsafe {
        asm!("lea {}, [rip + {}]", out(reg) place, sym KEYS,
            options(pure, nomem, nostack, preserves_flags));
    }
    // SAFETY: `place` is the address of `KEYS`.
    unsafe { &*place }
}

/// Generates the keys by `splitmix64`.
const fn generate_keys() -> [u64; WORDS] {
    let mut keys = [0; WORDS];
    let mut state = 0_u64;
    let mut index = 0;
    while index < WORDS {
        state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (state ^ state >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        keys[index] = mixed ^ mixed >> 31;
        index += 1;
    }
    keys
}

/// Position of a thread in a function that has called another function.
#[derive(Clone, Copy, Debug)]
pub(crate) struct CallPoint {
    /// Return address of the call.
    pub code: u64,
    /// Stack pointer after the return of the call.
    pub stack: u64,
    /// The frame pointer.
    pub frame: u64,
}

/// Kind of the end of a piece.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum PieceEnd {
    /// The last frame of the piece has no caller.
    #[default]
    Outside,
    /// The last frame of the piece cannot be unwound.
    Cut,
    /// The caller of the last frame is in the next piece.
    Call,
    /// The last frame of the piece is a signal frame: the kernel has saved the position at which
    /// the next piece begins.
    Signal,
}

/// Offsets in words from the saved frame pointer to other registers that the kernel saves for a
/// signal handler (`struct ucontext` of x86-64).
const SIGNAL_STACK: u64 = 5;
const SIGNAL_CODE: u64 = 6;

/// Offsets, from the stack pointer of a piece, of the words that determine the frames of the piece.
#[repr(C, align(128))]
struct WordLayout {
    code: Cell<u64>,
    stack: Cell<u64>,
    /// Value of [`ThreadStacks::epoch`] when the layout was recorded.
    epoch: Cell<u64>,
    /// Hash of the layout, which is part of the hash of a piece.
    key: Cell<u64>,
    /// Number of bytes from the stack pointer to that of the next piece.
    length: Cell<u32>,
    words: Cell<u8>,
    uses_frame: Cell<bool>,
    end: Cell<PieceEnd>,
    /// True if other layouts begin with the same stack pointer and return address.
    has_rivals: Cell<bool>,
    /// Number of words from the stack pointer to the end of the stack memory that is read.
    reach: Cell<u16>,
    /// Offset in words of the saved frame pointer, or [`UNSAVED`].
    saved: Cell<u16>,
    offsets: [Cell<u16>; WORDS],
}

impl WordLayout {
    #[inline(always)]
    fn begins(&self, code: u64, stack: u64, epoch: u64) -> bool {
        self.code.get() == code && self.stack.get() == stack && self.epoch.get() == epoch
    }

    /// Hash of the frames from `at` on, if they have this layout; `None` if the layout extends
    /// beyond the end of the stack.
    ///
    /// The hash is NH of UMAC: a sum of independent products of pairs of words, each word plus a
    /// key. If the products of two stacks differ, their sums have a given difference with a
    /// probability of at most 2^-64, so the frame pointer can be added without a key.
    #[inline(always)]
    fn hash(&self, at: CallPoint, end: u64) -> Option<u64> {
        if at.stack + u64::from(self.reach.get()) * 8 > end {
            return None;
        }
        let key = self.key.get();
        let frame = if self.uses_frame.get() { at.frame } else { 0 };
        let mut sum = HashSum { low: frame, high: 0 };
        let count = usize::from(self.words.get()).min(WORDS);
        let word = |offset: &Cell<u16>| word(at.stack + u64::from(offset.get()) * 8);
        let offsets = self.offsets[..count].as_chunks::<4>().0;
        for ([o0, o1, o2, o3], &[k0, k1, k2, k3]) in offsets.iter().zip(keys().as_chunks::<4>().0) {
            sum.add_product(k0.wrapping_add(word(o0)), k1.wrapping_add(word(o1)));
            sum.add_product(k2.wrapping_add(word(o2)), k3.wrapping_add(word(o3)));
        }
        Some(tree::mix(sum.low ^ key, sum.high))
    }

    /// Call point of the next piece; `None` for the last piece. Correct if the frames have this
    /// layout, or a layout with the same words up to that call point.
    #[inline(always)]
    fn outer(&self, at: CallPoint) -> Option<CallPoint> {
        let frame = match self.saved.get() {
            UNSAVED => at.frame,
            offset => word(at.stack + u64::from(offset) * 8),
        };
        match self.end.get() {
            PieceEnd::Call => {
                let stack = at.stack + u64::from(self.length.get());
                Some(CallPoint { code: word(stack - 8), stack, frame })
            }
            PieceEnd::Signal => Some(self.interrupted(at, frame)),
            PieceEnd::Outside | PieceEnd::Cut => None,
        }
    }

    #[cold]
    fn interrupted(&self, at: CallPoint, frame: u64) -> CallPoint {
        let saved = at.stack + u64::from(self.saved.get()) * 8;
        let stack = word(saved + SIGNAL_STACK * 8);
        CallPoint { code: word(saved + SIGNAL_CODE * 8) | INTERRUPTED, stack, frame }
    }

    /// Slot of the layouts that begin at the same call point as this one and have the same caller;
    /// `None` if the word with the caller is beyond the end of the stack.
    #[inline(always)]
    fn rivals(&self, at: CallPoint, end: u64) -> Option<usize> {
        let place = at.stack + u64::from(self.offsets[0].get()) * 8;
        let caller = if place < end { word(place) } else { return None };
        Some(slot(CallPoint { code: at.code ^ caller.rotate_left(13), ..at }))
    }

    fn clear(&self, at: CallPoint, epoch: u64) {
        self.code.set(at.code);
        self.stack.set(at.stack);
        self.epoch.set(epoch);
        self.length.set(0);
        self.words.set(0);
        self.uses_frame.set(false);
        self.end.set(PieceEnd::Outside);
        self.reach.set(0);
        self.saved.set(UNSAVED);
    }

    fn set(&self, other: &WordLayout) {
        self.code.set(other.code.get());
        self.stack.set(other.stack.get());
        self.epoch.set(other.epoch.get());
        self.key.set(other.key.get());
        self.length.set(other.length.get());
        self.words.set(other.words.get());
        self.uses_frame.set(other.uses_frame.get());
        self.end.set(other.end.get());
        self.reach.set(other.reach.get());
        self.saved.set(other.saved.get());
        self.has_rivals.set(false);
        for (to, from) in self.offsets.iter().zip(&other.offsets) {
            to.set(from.get());
        }
    }

    #[inline(always)]
    fn offset(&self, address: u64) -> Option<u16> {
        let words = address.checked_sub(self.stack.get())? / 8;
        u16::try_from(words).ok().filter(|&words| words < UNSAVED - 1)
    }

    /// Computes the key. Called after all other fields were set.
    fn seal(&self) {
        let flags = u64::from(self.words.get()) << 8
            | u64::from(self.uses_frame.get()) << 2
            | self.end.get() as u64;
        let sizes = u64::from(self.length.get()) | u64::from(self.saved.get()) << 32;
        let begin = [self.code.get(), self.stack.get(), self.epoch.get(), flags, sizes];
        let begin = begin.into_iter().fold(OUTSIDE, tree::mix);
        let offsets = self.offsets[..usize::from(self.words.get()).min(WORDS)].as_chunks::<4>().0;
        self.key.set(offsets.iter().fold(begin, |key, four| {
            let [a, b, c, d] = four.each_ref().map(|offset| u64::from(offset.get()));
            tree::mix(key, a | b << 16 | c << 32 | d << 48)
        }));
    }
}

/// A piece whose frames were walked.
#[repr(C)]
struct StackPiece {
    layout: WordLayout,
    /// Hash of the indices of the return addresses of all frames.
    calls: Cell<u64>,
    frames: Cell<u8>,
    places: [Cell<u32>; WORDS],
}

/// A sum of 128-bit products, modulo 2^128.
#[derive(Clone, Copy)]
struct HashSum {
    low: u64,
    high: u64,
}

impl HashSum {
    /// Adds a product. Equivalent to an addition of `u128` values, for which the compiler would
    /// copy both halves of the sum and of the product each time.
    #[inline(always)]
    fn add_product(&mut self, first: u64, second: u64) {
        // SAFETY: the instructions only multiply and add registers.
        unsafe {
            asm!("mul {second}", "add {low}, rax", "adc {high}, rdx",
                second = in(reg) second, low = inout(reg) self.low, high = inout(reg) self.high,
                inout("rax") first => _, out("rdx") _, options(pure, nomem, nostack));
        }
    }
}

/// Reads a word of the stack.
#[inline(always)]
fn word(address: u64) -> u64 {
    let place: *const u64 = std::ptr::with_exposed_provenance(address as usize);
    // SAFETY: callers have checked that the address is between a stack pointer of this thread and
    // the end of that stack.
    unsafe { place.read_volatile() }
}

/// Stacks that a thread caches.
#[repr(C)]
pub(crate) struct ThreadStacks {
    /// Lowest address known to belong to the current stack, and the end of this stack.
    low: Cell<u64>,
    end: Cell<u64>,
    others: [(Cell<u64>, Cell<u64>); 8],
    next_other: Cell<usize>,
    turn: Cell<usize>,
    /// Number of invalidations. Layouts of an earlier epoch are not used, and hashes of different
    /// epochs differ.
    epoch: Cell<u64>,
    layouts: [WordLayout; LAYOUTS],
    /// For each slot, the index of the layout that was used last.
    last: [Cell<u16>; LAYOUTS],
    /// Site of each cached stack, in the bits of [`SITE`]; the other bits contain bits of its hash.
    stacks: [[Cell<u64>; STACK_WAYS]; STACKS / STACK_WAYS],
    /// For each cached piece: its hash, and the hash of the indices of its return addresses.
    pieces: [[(Cell<u64>, Cell<u64>); PIECE_WAYS]; PIECE_SETS],
    /// Data of the stack that is being walked: for each piece the hash of its return addresses
    /// (`calls`) and the index of its first return address in `places`.
    calls: [Cell<u64>; PIECES],
    begins: [Cell<u16>; PIECES],
    places: [Cell<u32>; PIECES * WORDS],
    piece: StackPiece,
}

/// Result of a lookup of a call stack.
pub(crate) enum StackLookup {
    /// A known stack with this site.
    Site(u32),
    /// A new stack. The caller must pass its site to [`ThreadStacks::keep`].
    New(NewStack),
}

/// A call stack that this thread has walked.
#[derive(Clone, Copy)]
pub(crate) struct NewStack {
    hash: u64,
    /// Hash of the indices of the return addresses of all frames.
    calls: u64,
    node: u32,
    site: Option<u32>,
}

impl NewStack {
    /// Returns the site of the stack, and creates it if necessary; `None` if the table is full.
    pub(crate) fn site(self, kind: u32) -> Option<u32> {
        self.site.or_else(|| {
            let site = tree::site(self.node, kind)?;
            tree::keep_site(self.calls, self.node, site);
            Some(site)
        })
    }
}

/// Slot of a call point. The layouts that begin at the call point are in the set that contains the
/// layout with the index of the slot.
#[inline(always)]
fn slot(at: CallPoint) -> usize {
    let mixed = (at.code ^ at.stack.rotate_left(29)).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    (mixed >> 40) as usize % LAYOUTS
}

/// Indices of the layouts in the set of a slot.
fn set(slot: usize) -> Range<usize> {
    let begin = slot / WAYS * WAYS;
    begin..begin + WAYS
}

#[cold]
#[inline(never)]
fn count_cut() {
    shared::head(header::CUT_STACKS).fetch_add(1, Relaxed);
}

impl ThreadStacks {
    /// Site of the call stack from `at` on, if the stack is known by the most recently used
    /// layouts.
    #[inline(always)]
    pub(crate) fn known_site(&self, at: CallPoint) -> Option<u32> {
        let (site, is_cut) = self.known(at)?;
        if is_cut {
            count_cut();
        }
        Some(site)
    }

    /// Looks up the call stack from `at` on; `None` if the innermost frame cannot be unwound.
    pub(crate) fn find(&self, at: CallPoint) -> Option<StackLookup> {
        self.follow(at, true)
    }

    /// Call tree node of the innermost frame; `None` if this frame cannot be unwound.
    pub(crate) fn node(&self, at: CallPoint) -> Option<u32> {
        match self.follow(at, false)? {
            StackLookup::New(new) => Some(new.node),
            StackLookup::Site(_) => None,
        }
    }

    /// Site of a stack that is known by the most recently used layouts, and true if the stack is
    /// cut off.
    #[inline(always)]
    fn known(&self, mut at: CallPoint) -> Option<(u32, bool)> {
        let epoch = self.epoch.get();
        let mut end = self.end(at.stack)?;
        let mut hash = OUTSIDE;
        for _ in 0..PIECES {
            let layout = self.layout(at, end, epoch)?;
            hash = tree::mix(hash, layout.hash(at, end)?);
            match layout.outer(at) {
                Some(outer) => at = outer,
                None => return Some((self.site(hash)?, layout.end.get() == PieceEnd::Cut)),
            }
            match self.end(at.stack) {
                Some(known) => end = known,
                None => break,
            }
        }
        Some((self.site(hash)?, true))
    }

    /// Layout that the stack most probably has from `at` on.
    #[inline(always)]
    fn layout(&self, at: CallPoint, end: u64, epoch: u64) -> Option<&WordLayout> {
        let layout = self.in_slot(slot(at), at, epoch)?;
        if layout.has_rivals.get() {
            return Some(self.rival(layout, at, end, epoch).unwrap_or(layout));
        }
        Some(layout)
    }

    /// Layout that was used last at a slot.
    #[inline(always)]
    fn last(&self, slot: usize) -> &WordLayout {
        &self.layouts[usize::from(self.last[slot].get()) % LAYOUTS]
    }

    /// Layout that begins at `at`: the one that was used last, or else any other in the set.
    #[inline(always)]
    fn in_slot(&self, slot: usize, at: CallPoint, epoch: u64) -> Option<&WordLayout> {
        let layout = self.last(slot);
        if layout.begins(at.code, at.stack, epoch) {
            return Some(layout);
        }
        self.in_set(slot, at.code, at.stack, epoch)
    }

    /// A layout in the set of a slot that begins at this call point. Called if the layout used last
    /// at the slot does not begin there.
    #[inline(never)]
    fn in_set(&self, slot: usize, code: u64, stack: u64, epoch: u64) -> Option<&WordLayout> {
        self.layouts[set(slot)].iter().find(|layout| layout.begins(code, stack, epoch))
    }

    /// Layout that was used last among those that begin at `at` and have the same caller.
    fn rival(
        &self,
        layout: &WordLayout,
        at: CallPoint,
        end: u64,
        epoch: u64,
    ) -> Option<&WordLayout> {
        self.in_slot(layout.rivals(at, end)?, at, epoch)
    }

    /// Site of a stack with this hash.
    #[inline(always)]
    fn site(&self, hash: u64) -> Option<u32> {
        let set = &self.stacks[hash as usize / STACK_WAYS % (STACKS / STACK_WAYS)];
        let own = hash as usize % STACK_WAYS;
        for way in 0..STACK_WAYS {
            let known = set[own ^ way].get();
            if (known ^ hash) & !SITE == 0 && known != 0 {
                if way != 0 {
                    // The next lookup of this stack then finds it first.
                    set[own ^ way].set(set[own].get());
                    set[own].set(known);
                }
                return Some((known & SITE) as u32);
            }
        }
        None
    }

    /// Caches the site of a stack.
    #[cold]
    #[inline(never)]
    pub(crate) fn keep(&self, NewStack { hash, .. }: NewStack, site: u32) {
        let set = &self.stacks[hash as usize / STACK_WAYS % (STACKS / STACK_WAYS)];
        let own = hash as usize % STACK_WAYS;
        let free = (0..STACK_WAYS).map(|way| own ^ way).find(|way| set[*way].get() == 0);
        set[free.unwrap_or(own)].set(hash & !SITE | u64::from(site));
    }

    /// Returns a layout by which the piece at `at` is cached, the hash of the piece, and the hash
    /// of its return addresses.
    fn held(&self, at: CallPoint, end: u64) -> Option<(&WordLayout, u64, u64)> {
        let (first, epoch) = (slot(at), self.epoch.get());
        let layout = self.in_slot(first, at, epoch)?;
        let rivals = layout.rivals(at, end).filter(|_| layout.has_rivals.get());
        if let Some(found) = rivals.and_then(|rivals| self.held_in(rivals, at, end)) {
            return Some(found);
        }
        let found = self.held_in(first, at, end)?;
        // Otherwise the next lookup would first try another layout with the same caller.
        if let Some(rivals) = rivals.filter(|rivals| self.in_slot(*rivals, at, epoch).is_some()) {
            self.keep_in(rivals, found.0);
        }
        Some(found)
    }

    /// Returns a layout in the set of one slot by which the piece at `at` is cached, the hash of
    /// the piece, and the hash of its return addresses.
    fn held_in(&self, slot: usize, at: CallPoint, end: u64) -> Option<(&WordLayout, u64, u64)> {
        let last = usize::from(self.last[slot].get()) % LAYOUTS;
        [last].into_iter().chain(set(slot)).find_map(|number| {
            let layout = &self.layouts[number];
            if !layout.begins(at.code, at.stack, self.epoch.get()) {
                return None;
            }
            let hash = layout.hash(at, end)?;
            let pieces = &self.pieces[hash as usize % PIECE_SETS];
            let (_, calls) = pieces.iter().find(|(known, _)| known.get() == hash)?;
            self.last[slot].set(number as u16);
            Some((layout, hash, calls.get()))
        })
    }

    /// Looks up the call stack from `at` on, piece by piece. Returns `None` if the innermost frame
    /// cannot be unwound. If `by_site` is true and the site is known, the result is the site;
    /// otherwise the result contains the node.
    #[inline(never)]
    fn follow(&self, begin: CallPoint, by_site: bool) -> Option<StackLookup> {
        let mut at = begin;
        let mut end = self.end(at.stack)?;
        let mut hash = OUTSIDE;
        let mut count = 0;
        // Index of the last walked piece, whose data is still in `self.piece`.
        let mut walked = None;
        let is_cut = loop {
            let held = self.held(at, end);
            if held.is_none() {
                walked = Some(count);
            }
            let (layout, piece, calls) = held.or_else(|| self.learn(at, end))?;
            self.calls[count].set(calls);
            count += 1;
            hash = tree::mix(hash, piece);
            match layout.outer(at) {
                Some(outer) => at = outer,
                None => break layout.end.get() == PieceEnd::Cut,
            }
            if count == PIECES {
                break true;
            }
            match self.end(at.stack) {
                Some(known) => end = known,
                None => break true,
            }
        };
        if is_cut {
            count_cut();
        }
        if by_site && let Some(site) = self.site(hash) {
            return Some(StackLookup::Site(site));
        }
        // From here on, `self.calls[number]` is the hash of all calls from the outermost one to the
        // innermost one of the piece `number`.
        for number in (0..count).rev() {
            let outer = self.calls.get(number + 1).filter(|_| number + 1 < count);
            let calls = &self.calls[number];
            calls.set(tree::mix(outer.map_or(OUTSIDE, Cell::get), calls.get()));
        }
        let calls = self.calls[0].get();
        let (node, site) = match tree::find_run(calls) {
            Some(known) => known,
            None => (self.resolve(begin, count, walked == Some(0))?, None),
        };
        Some(StackLookup::New(NewStack { hash, calls, node, site }))
    }

    /// Finds or creates the node of a stack of `count` pieces whose hashes are in
    /// [`ThreadStacks::calls`]. Searches outward for the first piece whose calls, together with all
    /// outer calls, have a known node. Walks the pieces inside of it again to get their return
    /// addresses. If `is_walked` is true, the innermost piece is still in [`ThreadStacks::piece`]
    /// and is not walked again.
    #[cold]
    #[inline(never)]
    fn resolve(&self, begin: CallPoint, count: usize, is_walked: bool) -> Option<u32> {
        let known = (1..count).find_map(|number| {
            let (node, _) = tree::find_run(self.calls[number].get())?;
            Some((number, node))
        });
        let (unknown, mut node) = known.unwrap_or((count, ROOT));
        let mut at = begin;
        let mut used = 0;
        for number in 0..unknown {
            if number > 0 || !is_walked {
                self.walk(at, self.end(at.stack)?);
            }
            self.begins[number].set(used as u16);
            let frames = usize::from(self.piece.frames.get());
            for (to, from) in self.places[used..].iter().zip(&self.piece.places[..frames]) {
                to.set(from.get());
            }
            used += frames;
            if number + 1 < unknown {
                at = self.piece.layout.outer(at)?;
            }
        }
        for number in (0..unknown).rev() {
            let begin = usize::from(self.begins[number].get());
            for place in self.places[begin..used].iter().rev() {
                node = tree::child(node, place.get())?;
            }
            used = begin;
            tree::keep_run(self.calls[number].get(), node);
        }
        Some(node)
    }

    /// Walks the frames of the piece at `at`.
    fn walk(&self, at: CallPoint, end: u64) {
        self.piece.layout.clear(at, self.epoch.get());
        walk::walk(&self.piece, at, end, &self.last(slot(at)).offsets);
        self.piece.layout.seal();
    }

    /// Walks the frames of the piece at `at`, and caches the layout and the piece.
    #[inline(never)]
    fn learn(&self, at: CallPoint, end: u64) -> Option<(&WordLayout, u64, u64)> {
        self.walk(at, end);
        let piece = &self.piece;
        let layout = self.keep_layout(&piece.layout, at, end);
        let hash = layout.hash(at, end)?;
        let pieces = &self.pieces[hash as usize % PIECE_SETS];
        let unused = pieces.iter().position(|(known, _)| known.get() == 0);
        let (to_hash, to_calls) =
            &pieces[unused.unwrap_or(hash as usize / PIECE_SETS % PIECE_WAYS)];
        to_hash.set(hash);
        to_calls.set(piece.calls.get());
        Some((layout, hash, piece.calls.get()))
    }

    /// Caches a layout. If other layouts begin at the same call point, the layout is stored in the
    /// slot for layouts with the same caller.
    fn keep_layout(&self, layout: &WordLayout, at: CallPoint, end: u64) -> &WordLayout {
        let epoch = self.epoch.get();
        let mut slot = slot(at);
        if let Some(rival) = self.in_slot(slot, at, epoch)
            && rival.key.get() != layout.key.get()
            && let Some(rivals) = layout.rivals(at, end)
        {
            rival.has_rivals.set(true);
            slot = rivals;
        }
        self.keep_in(slot, layout)
    }

    fn keep_in(&self, slot: usize, layout: &WordLayout) -> &WordLayout {
        let epoch = self.epoch.get();
        let find = |wanted: &dyn Fn(&WordLayout) -> bool| {
            set(slot).find(|number| wanted(&self.layouts[*number]))
        };
        let number = find(&|there| there.key.get() == layout.key.get()).unwrap_or_else(|| {
            let unused = find(&|there| there.epoch.get() != epoch || there.code.get() == 0);
            let number = unused.unwrap_or_else(|| {
                self.turn.set(self.turn.get().wrapping_add(1));
                set(slot).start + self.turn.get() % WAYS
            });
            self.layouts[number].set(layout);
            number
        });
        self.last[slot].set(number as u16);
        &self.layouts[number]
    }

    /// Clears all data, because another thread is going to use this value.
    pub(crate) fn forget(&self) {
        self.forget_calls();
        for (low, end) in
            self.others.iter().map(|both| (&both.0, &both.1)).chain([(&self.low, &self.end)])
        {
            low.set(0);
            end.set(0);
        }
    }

    /// Invalidates all cached stacks, but keeps the bounds of the thread's stacks.
    pub(crate) fn forget_calls(&self) {
        self.epoch.set(self.epoch.get() + 1);
    }

    /// End of the stack that contains the address `stack`.
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

/// Bounds of the stack that contains an address. Only memory within these bounds is read, so they
/// must be certain: a stack that the program has mapped may be close to the thread's own, with
/// unreadable memory between them.
fn bounds(stack: u64) -> Option<(u64, u64)> {
    const NEAR: u64 = 16 << 20;
    let near = |end: u64| {
        let below = end.checked_sub(stack).filter(|&below| below > 0 && below < NEAR)?;
        // A lower address causes another lookup, with the same end.
        Some((stack.saturating_sub(NEAR - below), end & !7))
    };
    // The first thread's stack ends at the address that the loader reports, and the kernel places
    // no mapping close below it.
    near(next_alloc::first_stack_end()).or_else(|| mapping(stack)).or_else(|| {
        // If /proc is missing: the C library places the control block of a thread at the end of its
        // stack.
        near(next_alloc::thread_data()).filter(|_| kernel::thread() != kernel::process())
    })
}

/// Bounds of the mapping that contains an address, from `/proc/self/maps`.
pub(crate) fn mapping(address: u64) -> Option<(u64, u64)> {
    let file = kernel::OwnedFile::open(c"/proc/self/maps").ok()?;
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
