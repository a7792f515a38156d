//! Call stacks as a tree of calls, with one node for each pair of caller and return address; and
//! the allocation sites, which are nodes that allocate.

use std::sync::atomic::{AtomicPtr, AtomicU32, AtomicUsize, Ordering};

use pagewise_heaplog::recording::ROOT;
use pagewise_heaplog::tables::{NODES, SITES, header};

use crate::kernel;
use crate::lock::Lock;
use crate::map::WordMap;
use crate::shared;

static LOCK: Lock = Lock::new();

/// Hash table of nodes: each slot contains the index of a node plus 1. It is read without a lock.
static INDEX: AtomicPtr<AtomicU32> = AtomicPtr::new(std::ptr::null_mut());
static MASK: AtomicUsize = AtomicUsize::new(0);
/// For each node: index of its site plus 1; 0 without a site.
static SITE_OF: AtomicPtr<AtomicU32> = AtomicPtr::new(std::ptr::null_mut());

/// Nodes by the hash of all calls down to them (see [`mix`]), so that one lookup replaces one
/// lookup for each call. Two different stacks have the same hash with a probability of 2^-64.
static RUNS: WordMap = WordMap::new();

/// Combines a number with the hash of all numbers before it.
#[inline(always)]
pub(crate) fn mix(before: u64, number: u64) -> u64 {
    let mixed = (before.rotate_left(23) ^ number).wrapping_mul(0xd6e8_feb8_6659_fd93);
    mixed ^ mixed >> 32
}

/// Key for a hash: 0 and 1 are not valid keys.
fn key(calls: u64) -> u64 {
    calls.max(2)
}

/// Node for a hash of calls, and its site if it is known; `None` if the hash is unknown.
#[inline(always)]
pub(crate) fn find_run(calls: u64) -> Option<(u32, Option<u32>)> {
    let both = RUNS.find(key(calls))?;
    Some((both as u32, ((both >> 32) as u32).checked_sub(1)))
}

/// Adds the node for a hash of calls.
#[cold]
pub(crate) fn keep_run(calls: u64, node: u32) {
    let _held = LOCK.hold();
    if RUNS.find(key(calls)).is_none() {
        // If memory is exhausted, the node is looked up call by call each time.
        let _ = RUNS.insert(key(calls), u64::from(node));
    }
}

/// Sets the site for a hash of calls.
#[cold]
pub(crate) fn keep_site(calls: u64, node: u32, site: u32) {
    let _held = LOCK.hold();
    RUNS.change(key(calls), u64::from(node) | u64::from(site + 1) << 32);
}

/// Number of slots of the first hash table.
const FIRST: usize = 1 << 13;

#[inline(always)]
fn hash(parent: u32, place: u32) -> usize {
    let both = u64::from(parent) << 32 | u64::from(place);
    (both.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32) as usize
}

/// An element of an array of the recorder. Requires an index below the length of the array.
#[inline(always)]
fn element(array: *mut AtomicU32, index: usize) -> &'static AtomicU32 {
    let place = array.wrapping_add(index);
    // SAFETY: callers pass an index below the length, and an array is unmapped only when no thread
    // is in the recorder.
    unsafe { &*place }
}

/// Returns the node of a call from `parent`, and creates it if necessary; `None` if the table is
/// full.
#[inline(always)]
pub(crate) fn child(parent: u32, place: u32) -> Option<u32> {
    find(parent, place).or_else(|| insert(parent, place))
}

/// Node of a call if it exists. Slot 0 of the hash table contains the mask; nodes begin in the next
/// slot.
fn find(parent: u32, place: u32) -> Option<u32> {
    let index = INDEX.load(Ordering::Acquire);
    if index.is_null() {
        return None;
    }
    let mask = element(index, 0).load(Ordering::Relaxed) as usize;
    let mut at = hash(parent, place) & mask;
    loop {
        let number = element(index, at + 1).load(Ordering::Acquire).checked_sub(1)?;
        let (its_parent, its_place) = shared::node(number as usize);
        if its_place.load(Ordering::Relaxed) == place
            && its_parent.load(Ordering::Relaxed) == parent
        {
            return Some(number);
        }
        at = (at + 1) & mask;
    }
}

#[cold]
#[inline(never)]
fn insert(parent: u32, place: u32) -> Option<u32> {
    let _held = LOCK.hold();
    if let Some(node) = find(parent, place) {
        return Some(node);
    }
    let count = shared::head(header::NODES).load(Ordering::Relaxed);
    let used = usize::try_from(count).ok().filter(|&used| used < NODES.room)?;
    if INDEX.load(Ordering::Relaxed).is_null() || used * 3 > MASK.load(Ordering::Relaxed) * 2 {
        grow(used)?;
    }
    let (to_parent, to_place) = shared::node(used);
    to_parent.store(parent, Ordering::Relaxed);
    to_place.store(place, Ordering::Relaxed);
    let number = u32::try_from(used).ok()?;
    put(INDEX.load(Ordering::Relaxed), MASK.load(Ordering::Relaxed), number, parent, place);
    shared::head(header::NODES).store(count + 1, Ordering::Release);
    Some(number)
}

fn put(index: *mut AtomicU32, mask: usize, number: u32, parent: u32, place: u32) {
    let mut at = hash(parent, place) & mask;
    while element(index, at + 1).load(Ordering::Relaxed) != 0 {
        at = (at + 1) & mask;
    }
    element(index, at + 1).store(number + 1, Ordering::Release);
}

#[cold]
fn grow(used: usize) -> Option<()> {
    let old = INDEX.load(Ordering::Relaxed);
    let old_mask = MASK.load(Ordering::Relaxed);
    let mut count = if old.is_null() { FIRST } else { (old_mask + 1) * 2 };
    // A child of `fork` that keeps its parent's nodes begins with many nodes.
    while used * 3 > (count - 1) * 2 {
        count *= 2;
    }
    let index = kernel::memory((count + 1) * size_of::<AtomicU32>()).ok()?.cast::<AtomicU32>();
    let mask = count - 1;
    element(index, 0).store(u32::try_from(mask).ok()?, Ordering::Relaxed);
    for number in 0..used {
        let (parent, place) = shared::node(number);
        let number = u32::try_from(number).ok()?;
        put(index, mask, number, parent.load(Ordering::Relaxed), place.load(Ordering::Relaxed));
    }
    if SITE_OF.load(Ordering::Relaxed).is_null() {
        let sites = kernel::memory(NODES.room * size_of::<AtomicU32>()).ok()?;
        SITE_OF.store(sites.cast(), Ordering::Release);
    }
    MASK.store(mask, Ordering::Relaxed);
    INDEX.store(index, Ordering::Release);
    if !old.is_null() {
        // SAFETY: the memory belongs to `kernel::memory`, and readers treat zeros as free slots.
        unsafe { kernel::forget(old.cast(), (old_mask + 2) * size_of::<AtomicU32>()) };
    }
    Some(())
}

/// Returns the site of a node and a kind of memory, and creates it if necessary; `None` if the
/// table is full. Calls without a call stack have site 0.
pub(crate) fn site(node: u32, kind: u32) -> Option<u32> {
    if node == ROOT {
        return Some(0);
    }
    let sites = SITE_OF.load(Ordering::Acquire);
    let word = element(sites, node as usize);
    match word.load(Ordering::Relaxed) {
        0 => new_site(word, node, kind),
        site => Some(site - 1),
    }
}

#[cold]
fn new_site(word: &AtomicU32, node: u32, kind: u32) -> Option<u32> {
    let _held = LOCK.hold();
    if let Some(site) = word.load(Ordering::Relaxed).checked_sub(1) {
        return Some(site);
    }
    let site = add_site(node, kind)?;
    word.store(site + 1, Ordering::Relaxed);
    Some(site)
}

fn add_site(node: u32, kind: u32) -> Option<u32> {
    let count = shared::head(header::SITES).load(Ordering::Relaxed);
    let index = usize::try_from(count).ok().filter(|&index| index < SITES.room)?;
    let (to_node, to_kind) = shared::site(index);
    to_node.store(node, Ordering::Relaxed);
    to_kind.store(kind, Ordering::Relaxed);
    shared::head(header::SITES).store(count + 1, Ordering::Release);
    u32::try_from(index).ok()
}

/// Adds site 0, which is for allocations without a call stack.
pub(crate) fn begin() {
    let _held = LOCK.hold();
    add_site(ROOT, pagewise_heaplog::tables::kind::HEAP);
}

/// Clears the state in a child of `fork`, where all memory of the recorder is zero-filled.
pub(crate) fn reset() {
    LOCK.reset();
    INDEX.store(std::ptr::null_mut(), Ordering::Relaxed);
    MASK.store(0, Ordering::Relaxed);
    SITE_OF.store(std::ptr::null_mut(), Ordering::Relaxed);
    RUNS.reset();
}
