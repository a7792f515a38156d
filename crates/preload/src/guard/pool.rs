//! Memory of guarded objects: separate pages, with guard pages on both sides.
//!
//! One range of addresses is reserved at the start, so that one comparison distinguishes guarded
//! objects from other blocks. The range is divided into one part for each size class, and each part
//! into slots. A slot of class *c* has 2^*c* pages for one object, and the same number of pages
//! that are never accessible (three in class 0):
//!
//! ```text
//!  class 0  | guard | object | guard | guard |
//!                            ^ end of the object, unless it is at the start of its page
//!  class 2  | guard | object | object | object | object | guard | guard | guard |
//! ```
//!
//! Pages outside of the object stay inaccessible. The unused part of the object's own pages
//! contains canary bytes ([`super::canary`]). After the free, the pages of the object are
//! inaccessible and occupy no memory (quarantine). When a class has no unused slots left, slots of
//! freed objects are reused in the order of the frees.
//!
//! Objects smaller than a page, which are the most common ones, move from slot to slot with their
//! page ([`super::moves`], Linux 6.8). At a free, one system call moves the page to a slot that is
//! reserved for the next object, and the old slot is left without a page. All other pages are made
//! inaccessible by guard markers in the page tables if the kernel supports them
//! (`MADV_GUARD_INSTALL`, Linux 6.13). Otherwise `mprotect` is used, which splits mappings; a
//! process may have some 65,000 of them. Size classes whose slots would need whole page tables
//! always use `mprotect`.

use std::sync::atomic::{
    AtomicI64, AtomicPtr, AtomicU32, AtomicU64, AtomicUsize, Ordering::Acquire, Ordering::Relaxed,
    Ordering::Release,
};

use pagewise_heaplog::guard::means;

use super::{canary, moves};
use crate::kernel::{self, OwnedFile};
use crate::lock::Lock;
use moves::{MAX_READY_SLOTS, READY};

/// First address of the range. [`LENGTH`] is the length of the range in bytes, 0 if guarding is
/// off.
pub(crate) static BASE: AtomicUsize = AtomicUsize::new(0);
pub(crate) static LENGTH: AtomicUsize = AtomicUsize::new(0);

/// Number of size classes: an object has at most 2^15 pages.
const CLASSES: usize = 16;
/// First size class that always uses `mprotect`.
const LARGE: usize = 5;
/// Binary logarithm of the largest length of a part, which is tried first. [`SMALLEST_PART`] is the
/// binary logarithm of the smallest length.
const PART: u32 = 36;
const SMALLEST_PART: u32 = 28;
/// Values of `MADV_GUARD_INSTALL` and `MADV_GUARD_REMOVE` in `<linux/mman.h>`.
const INSTALL: i32 = 102;
const REMOVE: i32 = 103;
/// Number of mappings that are left to the program.
const MAPPINGS_LEFT: i64 = 5000;
/// Default limit of mappings of a process, which is assumed if the limit cannot be read.
const MAPPINGS_USUAL: i64 = 65_530;
/// Access rights of accessible pages.
const ALL_ACCESS: i32 = libc::PROT_READ | libc::PROT_WRITE;
/// Minimum number of slots of a size class.
const FEWEST: usize = 16;

static PART_BITS: AtomicU32 = AtomicU32::new(0);
static PAGE_BITS: AtomicU32 = AtomicU32::new(0);
static SLOTS: AtomicPtr<GuardSlot> = AtomicPtr::new(std::ptr::null_mut());
/// 1 if the kernel supports guard markers.
static HAS_MARKS: AtomicU32 = AtomicU32::new(0);
/// 1 if pages of objects smaller than a page are moved. It stays 1 after the kernel has refused
/// moves.
static HAS_MOVES: AtomicU32 = AtomicU32::new(0);
/// Number of bytes by which the accessible pages may still grow. [`MAPPINGS`] is the number of
/// objects that may still split mappings.
static ROOM: AtomicI64 = AtomicI64::new(0);
static MAPPINGS: AtomicI64 = AtomicI64::new(0);
static PEAK_BYTES: AtomicI64 = AtomicI64::new(0);
static MIN_ROOM: AtomicI64 = AtomicI64::new(0);
/// Number of guarded objects. [`LEFT_OUT`] is the number of objects that the pool had no space for.
static GUARDED: AtomicU64 = AtomicU64::new(0);
static LEFT_OUT: AtomicU64 = AtomicU64::new(0);

/// Protects the queues of slots.
static LOCK: Lock = Lock::new();

/// States of a slot.
pub(crate) mod state {
    /// The slot has never contained an object.
    pub(crate) const UNUSED: u32 = 0;
    /// The slot contains a live object.
    pub(crate) const LIVE: u32 = 1;
    /// The object of the slot was freed.
    pub(crate) const FREED: u32 = 2;
    /// The slot contains a live object whose canary bytes are being checked.
    pub(crate) const CHECKED: u32 = 3;
    /// A thread is allocating an object in the slot.
    pub(crate) const TAKEN: u32 = 4;
}

/// Data of a slot and of its object.
#[derive(Debug)]
#[repr(C, align(64))]
pub(crate) struct GuardSlot {
    pub state: AtomicU32,
    /// Number plus 1 of the next slot in a queue of freed slots; 0 in the last one.
    next: AtomicU32,
    pub address: AtomicUsize,
    pub size: AtomicUsize,
    /// Call tree nodes of the allocation and the free, and IDs of the threads that made them.
    pub allocated_at: AtomicU32,
    pub allocated_by: AtomicU32,
    pub freed_at: AtomicU32,
    pub freed_by: AtomicU32,
    /// Family of the function that allocated the object: `made_by` of `pagewise_heaplog::guard`.
    pub made_by: AtomicU32,
    /// 1 if the access rights of some pages of the slot were changed after a memory error.
    opened: AtomicU32,
}

/// Slots of a size class.
struct GuardClass {
    /// Maximum number of slots, and number of slots that were ever used.
    most: AtomicU32,
    used: AtomicU32,
    /// Numbers plus 1 of the first and the last slot in the queue of freed slots. `late` is the
    /// head of a list, newest first, of freed slots that are not in the queue yet.
    first: AtomicU32,
    last: AtomicU32,
    late: AtomicU32,
    /// Number of bytes of the part that are prepared: covered by guard markers, or registered for
    /// moves.
    marked: AtomicUsize,
}

static ALL: [GuardClass; CLASSES] = [const {
    GuardClass {
        most: AtomicU32::new(0),
        used: AtomicU32::new(0),
        first: AtomicU32::new(0),
        last: AtomicU32::new(0),
        late: AtomicU32::new(0),
        marked: AtomicUsize::new(0),
    }
}; CLASSES];

/// A slot, given by size class and number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Id {
    class: usize,
    number: u32,
}

fn page_bits() -> u32 {
    PAGE_BITS.load(Relaxed)
}

pub(crate) fn page() -> usize {
    1 << page_bits()
}

/// Binary logarithm of the length of a slot.
fn slot_bits(class: usize) -> u32 {
    page_bits() + (class as u32 + 1).max(2)
}

fn part_bits() -> u32 {
    PART_BITS.load(Relaxed)
}

/// Number of slots of a class that fit in a part.
fn slots_of(class: usize, part: u32) -> usize {
    1_usize.checked_shl(part.saturating_sub(slot_bits(class))).unwrap_or(0)
}

/// Method of making pages inaccessible.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum ProtectMeans {
    /// `mprotect`, which splits mappings.
    Mappings,
    /// Guard markers in the page tables.
    Marks,
    /// Moves of pages to other slots, which leave the slot without a page.
    Moves,
}

fn means_of(class: usize) -> ProtectMeans {
    if class == 0 && HAS_MOVES.load(Relaxed) != 0 {
        ProtectMeans::Moves
    } else if class < LARGE && HAS_MARKS.load(Relaxed) != 0 {
        ProtectMeans::Marks
    } else {
        ProtectMeans::Mappings
    }
}

/// Code of the method for size class 0, for reports.
pub(crate) fn means() -> u64 {
    match means_of(0) {
        ProtectMeans::Moves => means::MOVES,
        ProtectMeans::Marks => means::MARKS,
        ProtectMeans::Mappings => means::MAPPINGS,
    }
}

impl Id {
    /// Data of the slot and of its object.
    pub(crate) fn slot(self) -> &'static GuardSlot {
        let before: usize = (0..self.class).map(|class| slots_of(class, part_bits())).sum();
        let place = SLOTS.load(Relaxed).wrapping_add(before + self.number as usize);
        // SAFETY: the array has an element for each slot of each class, its fields are atomic, and
        // it is never unmapped.
        unsafe { &*place }
    }

    fn start(self) -> usize {
        let part = BASE.load(Relaxed) + (self.class << part_bits());
        part + ((self.number as usize) << slot_bits(self.class))
    }

    /// Address range of the pages that an object of the slot can use.
    fn objects(self) -> (usize, usize) {
        let start = self.start() + page();
        (start, start + (page() << self.class))
    }

    /// The slots directly before and after this one.
    fn neighbors(self) -> [Option<Id>; 2] {
        let behind = self.number + 1;
        let has_behind = (behind as usize) < slots_of(self.class, part_bits());
        [
            self.number.checked_sub(1).map(|number| Id { number, ..self }),
            has_behind.then_some(Id { number: behind, ..self }),
        ]
    }

    /// Address range of the pages that contain bytes of the slot's object.
    pub(crate) fn pages(self) -> (usize, usize) {
        let slot = self.slot();
        let start = slot.address.load(Relaxed);
        let end = start + slot.size.load(Relaxed).max(1);
        (start & !(page() - 1), end.next_multiple_of(page()))
    }

    /// Makes pages accessible. Returns true on success.
    fn open(self, from: usize, to: usize) -> bool {
        match means_of(self.class) {
            ProtectMeans::Moves => {
                (from..to).step_by(page()).all(|page| {
                    // SAFETY: the pages belong to this slot, and contain no bytes of a live object.
                    unsafe { moves::put(page) }
                })
            }
            // SAFETY: the pages belong to this slot, and contain no bytes of a live object.
            ProtectMeans::Marks => unsafe { kernel::advise(from, to - from, REMOVE) }.is_ok(),
            ProtectMeans::Mappings => {
                // SAFETY: the pages belong to this slot, and contain no bytes of a live object.
                unsafe { kernel::protect(from, to - from, ALL_ACCESS) }.is_ok()
            }
        }
    }

    /// Makes pages inaccessible and releases their memory.
    fn shut(self, from: usize, to: usize) {
        match means_of(self.class) {
            ProtectMeans::Moves => {}
            ProtectMeans::Marks => {
                // SAFETY: the pages belong to this slot, and contain no bytes of a live object.
                if unsafe { kernel::advise(from, to - from, INSTALL) }.is_ok() {
                    return;
                }
            }
            ProtectMeans::Mappings => {
                // SAFETY: the pages belong to this slot, and contain no bytes of a live object.
                let _ = unsafe { kernel::protect(from, to - from, libc::PROT_NONE) };
            }
        }
        // SAFETY: the pages belong to this slot, and contain no bytes of a live object.
        let _ = unsafe { kernel::advise(from, to - from, libc::MADV_DONTNEED) };
    }

    /// Makes all pages of the slot inaccessible again. Called for a slot whose access rights were
    /// changed after a memory error.
    fn clean(self) {
        let (from, to) = (self.start(), self.start() + (1 << slot_bits(self.class)));
        self.shut(from, to);
        if means_of(self.class) == ProtectMeans::Moves {
            // SAFETY: the pages belong to this slot, and contain no bytes of a live object.
            unsafe { unbar(from, to) };
        }
    }

    /// Makes the page of an address accessible after a memory error, so that the program can
    /// continue. Returns true on success.
    pub(crate) fn let_in(self, address: usize) -> bool {
        let from = address & !(page() - 1);
        self.slot().opened.store(1, Relaxed);
        if means_of(self.class) == ProtectMeans::Moves {
            // SAFETY: the page belongs to this slot, and contains no bytes of a live object.
            unsafe { unbar(from, from + page()) };
        }
        self.open(from, from + page())
    }

    /// Moves the page of a freed object to another slot for the next object. Returns true on
    /// success.
    fn hand_on(self) -> bool {
        let its = &ALL[self.class];
        let next = {
            let _held = LOCK.hold();
            let most = MAX_READY_SLOTS.min(its.most.load(Relaxed) as usize / 4);
            if READY.count() as usize >= most {
                return false;
            }
            its.pop_slot(self.class)
        };
        let Some(next) = next.map(|number| Id { number, ..self }) else { return false };
        if next.slot().opened.swap(0, Relaxed) != 0 {
            next.clean();
        }
        // SAFETY: the object in this slot was freed, and the slot `next` is unused.
        let moved = unsafe { moves::go(self.objects().0, next.objects().0) };
        let is_ready = moved && {
            let _held = LOCK.hold();
            READY.push(next.number)
        };
        if !is_ready {
            if moved {
                next.shut(next.objects().0, next.objects().1);
            }
            put_late(next);
        }
        moved
    }
}

/// Makes accesses to a page raise SIGSEGV, even if the page is missing. Returns true on success.
///
/// # Safety
/// The page must belong to [`reserve`](kernel::reserve), and must not contain a live object.
unsafe fn bar(at: usize) -> bool {
    let barred = if HAS_MARKS.load(Relaxed) != 0 {
        // SAFETY: the caller guarantees that the page belongs to `reserve` and contains no live
        // object.
        unsafe { kernel::advise(at, page(), INSTALL) }
    } else {
        // SAFETY: the caller guarantees that the page belongs to `reserve` and contains no live
        // object.
        unsafe { kernel::protect(at, page(), libc::PROT_NONE) }
    };
    barred.is_ok()
}

/// Reverses [`bar`] for a range of pages.
///
/// # Safety
/// The conditions of [`bar`] for each page.
unsafe fn unbar(from: usize, to: usize) {
    if HAS_MARKS.load(Relaxed) != 0 {
        // SAFETY: the caller guarantees that the pages belong to `reserve` and contain no live
        // object.
        let _ = unsafe { kernel::advise(from, to - from, REMOVE) };
    } else {
        // SAFETY: the caller guarantees that the pages belong to `reserve` and contain no live
        // object.
        let _ = unsafe { kernel::protect(from, to - from, ALL_ACCESS) };
    }
}

/// Prepares a missing page whose access raised SIGBUS. The thread then repeats the access: it
/// succeeds if a live object contains the page, and otherwise raises SIGSEGV. Returns false if the
/// pages of this size class do not move.
pub(crate) fn comes_again(address: usize) -> bool {
    let Some(id) = find(address).filter(|id| means_of(id.class) == ProtectMeans::Moves) else {
        return false;
    };
    let at = address & !(page() - 1);
    let slot = id.slot();
    let _held = LOCK.hold();
    if at == id.objects().0 {
        match slot.state.load(Acquire) {
            // Another thread is allocating an object in this slot.
            state::TAKEN => {
                kernel::give_way();
                return true;
            }
            // SAFETY: the page belongs to the guard, and an existing page stays unchanged.
            state::LIVE | state::CHECKED => return unsafe { moves::put(at) },
            _ => {}
        }
    }
    slot.opened.store(1, Relaxed);
    // SAFETY: the page contains no bytes of a live object.
    unsafe { bar(at) }
}

/// Prepares to guard objects in at most `most` bytes of memory, by methods up to `best`. Returns
/// `None` if that is not possible.
pub(crate) fn begin(most: u64, best: ProtectMeans) -> Option<()> {
    // SAFETY: `getauxval` only reads the auxiliary vector.
    let page = unsafe { libc::getauxval(libc::AT_PAGESZ) };
    if !page.is_power_of_two() {
        return None;
    }
    PAGE_BITS.store(page.trailing_zeros(), Relaxed);
    let (part, base) = (SMALLEST_PART..=PART)
        .rev()
        .step_by(2)
        .find_map(|part| kernel::reserve(CLASSES << part).ok().map(|base| (part, base)))?;
    let count: usize = (0..CLASSES).map(|class| slots_of(class, part)).sum();
    let Ok(slots) = kernel::private(count * size_of::<GuardSlot>()) else {
        // SAFETY: no other thread knows the address yet.
        unsafe { kernel::unmap(base, CLASSES << part) };
        return None;
    };
    SLOTS.store(slots.cast(), Relaxed);
    PART_BITS.store(part, Relaxed);
    let base = base.expose_provenance();
    HAS_MARKS.store(u32::from(best >= ProtectMeans::Marks && try_marks(base)), Relaxed);
    let moves = best >= ProtectMeans::Moves && moves::begin().is_some() && try_moves(base);
    HAS_MOVES.store(u32::from(moves), Relaxed);
    let most = i64::try_from(most).unwrap_or(i64::MAX);
    // The remaining quarter is for slots and their page tables.
    let room = most / 4 * 3;
    ROOM.store(room, Relaxed);
    MIN_ROOM.store(room, Relaxed);
    PEAK_BYTES.store(room, Relaxed);
    // Each object splits a mapping into three.
    MAPPINGS.store((mappings() - MAPPINGS_LEFT).max(0) / 2, Relaxed);
    let mut share = usize::try_from(most / 4).unwrap_or(usize::MAX);
    for (class, its) in ALL.iter().enumerate() {
        share /= 2;
        let tables = match means_of(class) {
            ProtectMeans::Mappings => 0,
            ProtectMeans::Marks | ProtectMeans::Moves => 8 << (slot_bits(class) - page_bits()),
        };
        let most =
            (share / (size_of::<GuardSlot>() + tables)).max(FEWEST).min(slots_of(class, part));
        its.most.store(u32::try_from(most).unwrap_or(u32::MAX), Relaxed);
    }
    BASE.store(base, Relaxed);
    LENGTH.store(CLASSES << part, Release);
    Some(())
}

/// True if this kernel supports guard markers. The test leaves a marker on the first page.
fn try_marks(base: usize) -> bool {
    let length = page();
    // SAFETY: no thread uses this memory yet.
    let opened = unsafe { kernel::protect(base, length, ALL_ACCESS) };
    // SAFETY: no thread uses this memory yet.
    opened.is_ok() && unsafe { kernel::advise(base, length, INSTALL) }.is_ok()
}

/// True if this kernel can move pages. The test uses the last two pages of size class 0 and
/// restores them.
fn try_moves(base: usize) -> bool {
    let page = page();
    let (first, length) = (base + (1 << part_bits()) - 2 * page, 2 * page);
    // SAFETY: no thread uses these slots yet.
    let opened = unsafe { kernel::protect(first, length, ALL_ACCESS) }.is_ok();
    // SAFETY: no thread uses these slots yet.
    let moves = opened
        && unsafe { moves::add(first, length) }.is_some()
        // SAFETY: no thread uses these slots yet.
        && unsafe { moves::put(first) }
        // SAFETY: no thread uses these slots yet.
        && unsafe { moves::go(first, first + page) };
    // SAFETY: no thread uses these slots yet.
    let _ = unsafe { kernel::advise(first, length, libc::MADV_DONTNEED) };
    // SAFETY: no thread uses these slots yet.
    let _ = unsafe { kernel::protect(first, length, libc::PROT_NONE) };
    if !moves {
        moves::end();
    }
    moves
}

/// Maximum number of mappings of a process (`vm.max_map_count`).
fn mappings() -> i64 {
    let read = || {
        let file = OwnedFile::open(c"/proc/sys/vm/max_map_count").ok()?;
        let mut bytes = [0_u8; 24];
        let count = file.read(&mut bytes).ok()?;
        let digits = bytes.get(..count)?.iter().take_while(|byte| byte.is_ascii_digit());
        Some(digits.fold(0_i64, |number, digit| {
            number.saturating_mul(10).saturating_add(i64::from(digit - b'0'))
        }))
    };
    read().filter(|&count| count > 0).unwrap_or(MAPPINGS_USUAL)
}

/// True if an address is in guarded memory.
#[inline(always)]
pub(crate) fn contains(address: usize) -> bool {
    address.wrapping_sub(BASE.load(Relaxed)) < LENGTH.load(Relaxed)
}

/// The slot that contains an address; `None` if the address is not in guarded memory.
pub(crate) fn find(address: usize) -> Option<Id> {
    let offset = address.wrapping_sub(BASE.load(Relaxed));
    if offset >= LENGTH.load(Relaxed) {
        return None;
    }
    let class = offset >> part_bits();
    let within = offset & ((1 << part_bits()) - 1);
    Some(Id { class, number: (within >> slot_bits(class)) as u32 })
}

/// Number of guarded objects, number of objects that the pool had no space for, and peak bytes of
/// accessible pages.
pub(crate) fn counts() -> (u64, u64, u64) {
    let most = PEAK_BYTES.load(Relaxed) - MIN_ROOM.load(Relaxed);
    (GUARDED.load(Relaxed), LEFT_OUT.load(Relaxed), most.cast_unsigned())
}

/// The call that allocates an object.
#[derive(Clone, Copy, Debug)]
pub(crate) struct AllocatingCall {
    /// Call tree node of the call.
    pub node: u32,
    pub thread: u32,
    /// Family of the allocating function.
    pub made_by: u32,
}

/// Allocates a guarded object; `None` if the pool is full. The object is at the start of its pages
/// if `first` is true, and otherwise at the end.
pub(crate) fn allocate(
    size: usize,
    align: usize,
    first: bool,
    call: AllocatingCall,
) -> Option<usize> {
    let placed = place(size, align);
    if placed.is_none() {
        LEFT_OUT.fetch_add(1, Relaxed);
    }
    let PlacedObject { id, bytes, mut is_ready } = placed?;
    let slot = id.slot();
    let (low, high) = id.objects();
    let address =
        if first { low.next_multiple_of(align) } else { (high - size.max(1)) & !(align - 1) };
    if slot.opened.swap(0, Relaxed) != 0 {
        id.clean();
        is_ready = false;
    }
    slot.address.store(address, Relaxed);
    slot.size.store(size, Relaxed);
    slot.allocated_at.store(call.node, Relaxed);
    slot.allocated_by.store(call.thread, Relaxed);
    slot.made_by.store(call.made_by, Relaxed);
    slot.freed_at.store(0, Relaxed);
    slot.freed_by.store(0, Relaxed);
    let (from, to) = id.pages();
    // For an alignment above the page size, more memory was accounted than the object uses.
    let exact = i64::try_from(to - from).unwrap_or(bytes);
    ROOM.fetch_add(bytes - exact, Relaxed);
    if is_ready {
        canary::clear(from, to);
    } else if !id.open(from, to) {
        give_back(id, exact);
        LEFT_OUT.fetch_add(1, Relaxed);
        slot.state.store(state::FREED, Relaxed);
        put_late(id);
        return None;
    }
    canary::fill(from, address, address + size, to);
    slot.state.store(state::LIVE, Release);
    GUARDED.fetch_add(1, Relaxed);
    Some(address)
}

/// A slot that was taken for an object.
struct PlacedObject {
    id: Id,
    /// Number of bytes of accessible pages that were accounted for the object.
    bytes: i64,
    /// True if the slot already has a page, which contains bytes of an earlier object.
    is_ready: bool,
}

fn place(size: usize, align: usize) -> Option<PlacedObject> {
    let more = if align > page() { align } else { 0 };
    let pages = size.max(1).checked_add(more)?.checked_add(page() - 1)? >> page_bits();
    let mut class = pages.checked_next_power_of_two()?.trailing_zeros() as usize;
    // The pages of objects of a page or more are not moved. A program may release a whole page of
    // its own object by `madvise`, and its next access to this page must not raise SIGBUS.
    if means_of(class) == ProtectMeans::Moves && (size.max(align) >= page() || !moves::can()) {
        class += 1;
    }
    let its = ALL.get(class)?;
    let bytes = i64::try_from(pages << page_bits()).ok()?;
    if ROOM.fetch_sub(bytes, Relaxed) < bytes {
        ROOM.fetch_add(bytes, Relaxed);
        return None;
    }
    let takes_mapping = means_of(class) == ProtectMeans::Mappings;
    if takes_mapping && MAPPINGS.fetch_sub(1, Relaxed) <= 0 {
        MAPPINGS.fetch_add(1, Relaxed);
        ROOM.fetch_add(bytes, Relaxed);
        return None;
    }
    MIN_ROOM.fetch_min(ROOM.load(Relaxed), Relaxed);
    let held = LOCK.hold();
    let ready = if means_of(class) == ProtectMeans::Moves { READY.pop() } else { None };
    let taken = ready.or_else(|| its.pop_slot(class)).map(|number| Id { class, number });
    if let Some(id) = taken {
        id.slot().state.store(state::TAKEN, Relaxed);
    }
    drop(held);
    let Some(id) = taken else {
        give_back(Id { class, number: 0 }, bytes);
        return None;
    };
    Some(PlacedObject { id, bytes, is_ready: ready.is_some() })
}

fn give_back(id: Id, bytes: i64) {
    ROOM.fetch_add(bytes, Relaxed);
    if means_of(id.class) == ProtectMeans::Mappings {
        MAPPINGS.fetch_add(1, Relaxed);
    }
}

impl GuardClass {
    /// Takes a slot. Requires [`LOCK`].
    fn pop_slot(&self, class: usize) -> Option<u32> {
        let used = self.used.load(Relaxed);
        if used < self.most.load(Relaxed) {
            self.mark(class, used)?;
            self.used.store(used + 1, Relaxed);
            return Some(used);
        }
        if self.first.load(Relaxed) == 0 {
            self.put_in_order(class);
        }
        let number = self.first.load(Relaxed).checked_sub(1)?;
        let next = Id { class, number }.slot().next.load(Relaxed);
        self.first.store(next, Relaxed);
        if next == 0 {
            self.last.store(0, Relaxed);
        }
        Some(number)
    }

    /// Appends the slots of `late` to the queue. Requires [`LOCK`].
    fn put_in_order(&self, class: usize) {
        // The list begins with the slot that was freed last.
        let newest = self.late.swap(0, Acquire);
        let (mut late, mut oldest) = (newest, 0);
        while let Some(number) = late.checked_sub(1) {
            late = Id { class, number }.slot().next.swap(oldest, Relaxed);
            oldest = number + 1;
        }
        if newest == 0 {
            return;
        }
        match self.last.swap(newest, Relaxed).checked_sub(1) {
            None => self.first.store(oldest, Relaxed),
            Some(last) => Id { class, number: last }.slot().next.store(oldest, Relaxed),
        }
    }

    /// Prepares the pages of a slot that is used for the first time, together with those of the
    /// following slots.
    fn mark(&self, class: usize, number: u32) -> Option<()> {
        const AT_ONCE: usize = 2 << 20;
        let means = means_of(class);
        if means == ProtectMeans::Mappings {
            return Some(());
        }
        let id = Id { class, number };
        let part = BASE.load(Relaxed) + (class << part_bits());
        let end = id.start() + (1 << slot_bits(class)) - part;
        let marked = self.marked.load(Relaxed);
        if end <= marked {
            return Some(());
        }
        // Guard markers require accessible pages. No thread knows the addresses of these pages yet.
        // SAFETY: these pages were never used.
        unsafe { kernel::protect(part + marked, AT_ONCE, ALL_ACCESS) }.ok()?;
        if means == ProtectMeans::Moves {
            // SAFETY: these pages were never used.
            unsafe { moves::add(part + marked, AT_ONCE) }?;
        } else {
            // SAFETY: these pages were never used.
            unsafe { kernel::advise(part + marked, AT_ONCE, INSTALL) }.ok()?;
        }
        self.marked.store(marked + AT_ONCE, Relaxed);
        Some(())
    }
}

/// Adds a freed slot to `late` without the lock. `put_in_order` later moves it to the queue under
/// the lock.
fn put_late(id: Id) {
    let late = &ALL[id.class].late;
    let mut first = late.load(Relaxed);
    loop {
        id.slot().next.store(first, Relaxed);
        match late.compare_exchange_weak(first, id.number + 1, Release, Relaxed) {
            Ok(_) => return,
            Err(now) => first = now,
        }
    }
}

/// Reason why an object cannot be freed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum NotFreed {
    /// No object begins at the address.
    NoObject,
    /// The object was freed before.
    Freed,
}

/// Length in bytes of the live object that begins at an address; `None` if none does.
pub(crate) fn length(id: Id, address: usize) -> Option<usize> {
    let slot = id.slot();
    let is_live = matches!(slot.state.load(Acquire), state::LIVE | state::CHECKED);
    (is_live && slot.address.load(Relaxed) == address).then(|| slot.size.load(Relaxed))
}

/// Claims an object that this thread is going to free. From then on it counts as freed for all
/// other threads.
pub(crate) fn free_object(id: Id, address: usize) -> Result<(), NotFreed> {
    let slot = id.slot();
    loop {
        let state = slot.state.load(Acquire);
        if matches!(state, state::UNUSED | state::TAKEN) || slot.address.load(Relaxed) != address {
            return Err(NotFreed::NoObject);
        }
        match slot.state.compare_exchange(state::LIVE, state::FREED, Acquire, Acquire) {
            Ok(_) => return Ok(()),
            Err(state::CHECKED) => kernel::give_way(),
            Err(_) => return Err(NotFreed::Freed),
        }
    }
}

/// Address of the changed canary byte nearest to an object; `None` if none was changed. Requires
/// that [`free_object`] has claimed the object, or that its state is `CHECKED`.
pub(crate) fn broken(id: Id) -> Option<usize> {
    let slot = id.slot();
    let address = slot.address.load(Relaxed);
    let (from, to) = id.pages();
    canary::broken(from, address, address + slot.size.load(Relaxed), to)
}

/// Frees an object that [`free_object`] has claimed. If `can_wait` is true, this thread may wait
/// for the lock.
pub(crate) fn free(id: Id, node: u32, thread: u32, can_wait: bool) {
    let slot = id.slot();
    slot.freed_at.store(node, Relaxed);
    slot.freed_by.store(thread, Relaxed);
    let (from, to) = id.pages();
    let can_move = can_wait && means_of(id.class) == ProtectMeans::Moves && moves::can();
    if !(can_move && id.hand_on()) {
        id.shut(from, to);
    }
    give_back(id, i64::try_from(to - from).unwrap_or(0));
    put_late(id);
}

/// Calls `look` with each live object, which no thread can free during the call.
pub(crate) fn each_live(mut look: impl FnMut(Id)) {
    for (class, its) in ALL.iter().enumerate() {
        for number in 0..its.used.load(Relaxed) {
            let id = Id { class, number };
            let state = &id.slot().state;
            if state.compare_exchange(state::LIVE, state::CHECKED, Acquire, Relaxed).is_ok() {
                look(id);
                state.store(state::LIVE, Release);
            }
        }
    }
}

/// Returns the object that an access to guarded memory was most probably intended for, and the
/// distance in bytes from the object to the address.
pub(crate) fn meant(address: usize) -> Option<(Id, usize)> {
    let here = find(address)?;
    let [before, behind] = here.neighbors();
    let distance = |id: &Id| {
        let slot = id.slot();
        let start = slot.address.load(Relaxed);
        let end = start + slot.size.load(Relaxed);
        match slot.state.load(Acquire) {
            state::UNUSED | state::TAKEN => None,
            _ if address < start => Some(start - address),
            _ if address >= end => Some(address - end + 1),
            _ => Some(0),
        }
    };
    let candidates = [Some(here), before, behind].into_iter().flatten();
    let known = candidates.filter_map(|id| distance(&id).map(|distance| (id, distance)));
    // A live object is a more probable target than a freed one, unless the access was to a page of
    // the freed object itself.
    known.min_by_key(|&(id, distance)| {
        let is_live = id.slot().state.load(Relaxed) == state::LIVE;
        let (from, to) = id.pages();
        let is_own_page = !is_live && (from..to).contains(&address);
        (!is_own_page && !is_live, distance)
    })
}

/// Acquires the lock before `fork`, so that the child is not created during an allocation of a
/// slot.
pub(crate) fn hold_for_fork() {
    std::mem::forget(LOCK.hold());
}

/// Releases the lock that [`hold_for_fork`] acquired.
///
/// # Safety
/// This thread must have called [`hold_for_fork`].
pub(crate) unsafe fn go_on_after_fork() {
    // SAFETY: this thread has held the lock since `hold_for_fork`.
    unsafe { LOCK.open() };
}

/// Sets up the pool in a child of `fork`, which has copies of its parent's objects.
pub(crate) fn forked() {
    LOCK.reset();
    GUARDED.store(0, Relaxed);
    LEFT_OUT.store(0, Relaxed);
    if means_of(0) != ProtectMeans::Moves {
        return;
    }
    // The parent's `userfaultfd` does not control the missing pages of the child.
    let (first, length) = (BASE.load(Relaxed), ALL[0].marked.load(Relaxed));
    let can_move = moves::forked().is_some();
    // SAFETY: the range belongs to the guard.
    if can_move && (length == 0 || unsafe { moves::add(first, length) }.is_some()) {
        return;
    }
    moves::end();
    for number in 0..ALL[0].used.load(Relaxed) {
        let id = Id { class: 0, number };
        let (start, end) = (id.start(), id.start() + (1 << slot_bits(0)));
        let is_live = matches!(id.slot().state.load(Relaxed), state::LIVE | state::CHECKED);
        let objects = if is_live { id.objects() } else { (end, end) };
        for at in (start..objects.0).chain(objects.1..end).step_by(page()) {
            // SAFETY: the page contains no bytes of a live object.
            unsafe { bar(at) };
        }
    }
}

#[cfg(test)]
#[allow(clippy::disallowed_types, reason = "tests may allocate")]
mod tests {
    use super::*;

    fn by(node: u32, thread: u32) -> AllocatingCall {
        AllocatingCall { node, thread, made_by: 0 }
    }

    fn one() -> usize {
        allocate(100, 16, false, by(7, 9)).unwrap()
    }

    fn release(address: usize) {
        let id = find(address).unwrap();
        free_object(id, address).unwrap();
        assert_eq!(broken(id), None);
        free(id, 8, 10, true);
    }

    /// One test calls all checks in turn, because there is only one pool.
    #[test]
    fn guarded_slots_work() {
        begin(1 << 20, ProtectMeans::Moves).unwrap();
        slots_are_used_again_late_and_in_order();
        an_object_ends_where_its_page_does();
        the_number_of_objects_is_limited();
    }

    fn slots_are_used_again_late_and_in_order() {
        let most = ALL[0].most.load(Relaxed) as usize;
        assert!(most > 1000, "{most}");
        let mut order = Vec::new();
        for _ in 0..2 * most {
            let address = one();
            order.push(address);
            release(address);
        }
        let (first, second) = order.split_at(most);
        let mut different = first.to_vec();
        different.sort_unstable();
        different.dedup();
        assert_eq!(different.len(), most);
        assert_eq!(first, second);
    }

    /// The object ends as close to the end of its page as its alignment permits.
    fn an_object_ends_where_its_page_does() {
        let address = one();
        assert_eq!((address + 100).next_multiple_of(16) % page(), 0);
        let id = find(address).unwrap();
        assert_eq!(length(id, address), Some(100));
        assert_eq!(find(address + 99), Some(id));
        assert_eq!(meant(address + 100 + page()).map(|(id, _)| id), Some(id));
        assert_eq!(free_object(id, address + 16), Err(NotFreed::NoObject));
        for wrong in [address - 1, address + 100, address - 300] {
            let byte: *mut u8 = std::ptr::with_exposed_provenance_mut(wrong);
            // SAFETY: the byte is on the object's own page, which is accessible.
            let before = unsafe { byte.read() };
            // SAFETY: the byte is on the object's own page, which is accessible.
            unsafe { byte.write(before ^ 1) };
            assert_eq!(broken(id), Some(wrong));
            // SAFETY: the byte is on the object's own page, which is accessible.
            unsafe { byte.write(before) };
        }
        assert_eq!(broken(id), None);
        release(address);
        assert_eq!(free_object(id, address), Err(NotFreed::Freed));
    }

    /// A free makes another allocation possible.
    fn the_number_of_objects_is_limited() {
        let mut live = Vec::new();
        while let Some(address) = allocate(3 * page(), 16, true, by(1, 1)) {
            live.push(address);
        }
        assert!(live.len() * 3 * page() <= 3 << 18);
        release(live.pop().unwrap());
        assert!(allocate(3 * page(), 16, true, by(1, 1)).is_some());
        assert_eq!(allocate(usize::MAX - 5, 16, false, by(1, 1)), None);
        assert_eq!(allocate(8, 1 << 62, false, by(1, 1)), None);
    }
}
