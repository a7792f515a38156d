//! Data of a thread: its counters and its cache of call stacks; start and end of threads. The
//! counters are in chunks of the shared tables; a chunk contains the records of a group of sites.

use std::cell::Cell;
use std::ffi::c_void;
use std::sync::atomic::{
    AtomicPtr, AtomicU32, AtomicU64, Ordering::Acquire, Ordering::Relaxed, Ordering::Release,
};

use pagewise_heaplog::tables::{
    CELLS, CHUNKS, RECORDS, SITES, THREADS, header, hooks, kind, record, thread,
};

use crate::begin::{self, StartStage};
use crate::live::{self, RecordedBlock};
use crate::lock::Lock;
use crate::shared::{self, SiteRecord, head, slot};
use crate::stacks::{CallPoint, StackLookup, ThreadStacks};
use crate::stubs::{Own, own, set_own};
use crate::{kernel, linker, log, modules, next_alloc, peak, sampling};

/// Data of a thread, in memory that is zero-filled in a child of `fork`.
#[repr(C)]
pub(crate) struct ThreadData {
    /// [`READY`] or [`BUSY_NOW`]; 0 in a child of `fork`. `heap attach` reads this word of each
    /// thread, at the address in [`Own::Thread`].
    state: Cell<u32>,
    /// Address of the words of the thread's slot in the shared tables.
    own: Cell<*const AtomicU64>,
    /// Index of the thread's slot.
    slot: Cell<usize>,
    /// Address of the last allocated block.
    last: Cell<u64>,
    /// With sampling: number of bytes until the next sample at the time of the last allocation.
    last_left: Cell<u64>,
    /// Credit in bytes above which the thread returns a part of its credit.
    pub most_room: Cell<i64>,
    /// Number of allocations until the next one whose lifetime is measured.
    until_timed: Cell<u32>,
    /// Index plus 1 of the thread's first chunk, and number of its chunks.
    first_chunk: Cell<u32>,
    chunks: Cell<u32>,
    /// State of the random number generator.
    random: Cell<u64>,
    /// 1 if the thread has drawn its first number of bytes to a sample.
    samples: Cell<u64>,
    /// Value of [`GENERATION`] when the thread last noticed a change.
    generation: Cell<u64>,
    /// Value of [`CODE`] when the thread last invalidated its cached stacks.
    code: Cell<u64>,
    /// Next element in the list [`WAITING`].
    next: Cell<*mut ThreadData>,
    stacks: ThreadStacks,
    /// For each group of `RECORDS` sites: index plus 1 of the thread's chunk.
    directory: [Cell<u32>; SITES.room / RECORDS],
}

/// State of a thread that may record.
const READY: u32 = 1;
/// State of a thread that is recording: allocations during this time are not recorded.
const BUSY_NOW: u32 = hooks::NOW;
/// Average number of allocations for each allocation whose lifetime is measured.
pub(crate) const TIMED_EVERY: u32 = 128;
/// Number of chunks of all threads together above which a thread hands its chunks over to [`LATE`].
/// [`FEWEST_CHUNKS`]: number of chunks that each thread may always have.
const MAX_THREAD_CHUNKS: u64 = 8 << 10;
const FEWEST_CHUNKS: u64 = 64;
/// Minimum size in bytes of blocks that are checked for a mapping of their own. A smaller block has
/// one only if the program sets a lower `M_MMAP_THRESHOLD`.
pub(crate) const LARGE: u64 = 64 << 10;
/// If at least this number of slots was used, slots of ended threads are reused.
const MANY_SLOTS: u64 = (THREADS.room / 2) as u64;

/// Held while threads begin and end, and while chunks are handed over.
static LOCK: Lock = Lock::new();
/// List of the data of ended threads, which new threads reuse.
static WAITING: AtomicPtr<ThreadData> = AtomicPtr::new(std::ptr::null_mut());
/// Index plus 1 of the first free chunk; each free chunk links to the next one.
static FREE_CHUNK: AtomicU32 = AtomicU32::new(0);
/// Data with which ending threads record, and to which threads hand over their chunks. Requires
/// [`LATE_LOCK`].
static LATE: AtomicPtr<ThreadData> = AtomicPtr::new(std::ptr::null_mut());
/// Held by a thread that uses [`LATE`].
static LATE_LOCK: Lock = Lock::new();
/// For each chunk: index plus 1 of the next chunk of the same thread.
static NEXT_CHUNK: AtomicPtr<AtomicU32> = AtomicPtr::new(std::ptr::null_mut());
/// Key whose destructor the C library calls when a thread ends.
static KEY: AtomicU32 = AtomicU32::new(u32::MAX);

/// Value of [`Own::Stage`]: the thread has not recorded yet.
const NEW: u64 = 0;
/// Value of [`Own::Stage`]: the thread records.
const RECORDS_NOW: u64 = 1;
/// Value of [`Own::Stage`]: the thread is ending.
const ENDING: u64 = 2;
/// Value of [`Own::Stage`]: the thread is not recorded, because it is being set up, could not be
/// set up, or is recording with the data of ending threads.
const BUSY: u64 = 3;

/// Data with which this thread is recording. The thread cannot enter again before [`leave`].
#[derive(Clone, Copy)]
pub(crate) enum Entered {
    /// The thread's own data.
    Own(&'static ThreadData),
    /// The data of ending threads, whose lock is held.
    Late(&'static ThreadData),
}

impl Entered {
    #[inline(always)]
    pub(crate) fn thread(self) -> &'static ThreadData {
        match self {
            Entered::Own(thread) | Entered::Late(thread) => thread,
        }
    }
}

/// Begins to record a call. Returns `None` within the recorder, before the recording begins, and in
/// a child of `fork` that is not recorded.
#[inline(always)]
pub(crate) fn enter() -> Option<Entered> {
    enter_own().map(Entered::Own).or_else(enter_first)
}

/// Begins to record in a thread that has recorded before. If this returns `None`, [`enter_first`]
/// may still succeed.
#[inline(always)]
pub(crate) fn enter_own() -> Option<&'static ThreadData> {
    let thread: *const ThreadData =
        std::ptr::with_exposed_provenance(own::<{ Own::Thread as usize }>() as usize);
    if thread.is_null() {
        return None;
    }
    // SAFETY: this is the data of this thread, which is unmapped only when no thread is in the
    // recorder.
    let thread = unsafe { &*thread };
    if thread.state.get() != READY {
        return None;
    }
    thread.state.set(BUSY_NOW);
    Some(thread)
}

/// Ends a recording that [`enter_own`] began.
#[inline(always)]
pub(crate) fn leave_own(thread: &ThreadData) {
    // If `fork` created this process meanwhile, the state is 0 and stays 0.
    thread.state.set(thread.state.get() * READY / BUSY_NOW);
}

/// Ends a recording that [`enter`] began.
#[inline(always)]
pub(crate) fn leave(entered: Entered) {
    match entered {
        Entered::Own(thread) => leave_own(thread),
        Entered::Late(late) => {
            if peak::leave_late(late) {
                GENERATION.fetch_add(1, Release);
            }
            leave_late();
        }
    }
}

#[cold]
#[inline(never)]
fn leave_late() {
    set_own::<{ Own::Stage as usize }>(ENDING);
    // SAFETY: `enter_first` left the lock held by this thread.
    unsafe { LATE_LOCK.open() };
}

/// Begins to record if [`enter_own`] cannot: in a new thread, or on behalf of an ending thread.
#[cold]
#[inline(never)]
pub(crate) fn enter_first() -> Option<Entered> {
    if !begin::is_recording() {
        return None;
    }
    match own::<{ Own::Stage as usize }>() {
        NEW => {}
        ENDING => {
            set_own::<{ Own::Stage as usize }>(BUSY);
            std::mem::forget(LATE_LOCK.hold());
            let late = late();
            if late.is_none() {
                leave_late();
            }
            return late.map(Entered::Late);
        }
        // The thread is recording, is being set up, or could not be set up.
        _ => return None,
    }
    set_own::<{ Own::Stage as usize }>(BUSY);
    let thread = begin_thread();
    if let Some(thread) = thread {
        set_own::<{ Own::Thread as usize }>(std::ptr::from_ref(thread).expose_provenance() as u64);
    }
    set_own::<{ Own::Stage as usize }>(if thread.is_some() { RECORDS_NOW } else { BUSY });
    thread.map(Entered::Own)
}

fn late() -> Option<&'static ThreadData> {
    let late = LATE.load(Relaxed);
    if !late.is_null() {
        // SAFETY: the lock is held, and the data is unmapped only when no thread is in the
        // recorder.
        return Some(unsafe { &*late });
    }
    let late = new_thread()?;
    late.take_slot(0);
    LATE.store(std::ptr::from_ref(late).cast_mut(), Relaxed);
    Some(late)
}

fn new_thread() -> Option<&'static ThreadData> {
    let memory = kernel::memory(size_of::<ThreadData>()).ok()?.cast::<ThreadData>();
    // SAFETY: all-zero bytes are valid data of a thread without chunks, and the memory is unmapped
    // only when no thread is in the recorder.
    let thread = unsafe { &*memory };
    thread.state.set(BUSY_NOW);
    Some(thread)
}

fn begin_thread() -> Option<&'static ThreadData> {
    let held = LOCK.hold();
    let waiting = WAITING.load(Relaxed);
    let thread = if waiting.is_null() {
        new_thread()?
    } else {
        // SAFETY: the lock is held, and the data is unmapped only when no thread is in the
        // recorder.
        let thread = unsafe { &*waiting };
        WAITING.store(thread.next.get(), Relaxed);
        thread
    };
    let used = head(header::THREADS).load(Relaxed);
    // The first slot belongs to no thread.
    let index = if used < MANY_SLOTS || (waiting.is_null() && used < THREADS.room as u64) {
        head(header::THREADS).store(used + 1, Release);
        usize::try_from(used).ok()?
    } else if waiting.is_null() {
        return None;
    } else {
        let index = thread.slot.get();
        empty_slot(index);
        index
    };
    thread.take_slot(index);
    thread.last.set(0);
    thread.samples.set(0);
    thread.most_room.set(0);
    thread.random.set(u64::from(kernel::thread()) << 32 | 0x9e37_79b9 ^ index as u64);
    thread.until_timed.set(thread.next_timed());
    slot(index, thread::ROOM).store(0, Relaxed);
    name(index);
    slot(index, thread::TID).store(u64::from(kernel::thread()), Relaxed);
    slot(index, thread::RUNS).store(1, Relaxed);
    let running = head(header::RUNNING).fetch_add(1, Relaxed) + 1;
    // A running program may have more threads, which do not record yet.
    let most = running + u64::from(peak::has_others());
    head(header::MAX_LIVE_THREADS).fetch_max(most, Relaxed);
    if running > 1 {
        head(header::MANY).store(1, Relaxed);
    }
    let _ = peak::COMING.fetch_update(Relaxed, Relaxed, |coming| coming.checked_sub(1));
    drop(held);
    if KEY.load(Relaxed) != u32::MAX {
        // The C library calls the destructor only if the value is not null.
        linker::set_key(KEY.load(Relaxed), std::ptr::from_ref(thread).cast::<c_void>());
    }
    Some(thread)
}

fn name(index: usize) {
    for (number, word) in kernel::thread_name().chunks_exact(8).enumerate() {
        let word = word.try_into().map_or(0, u64::from_ne_bytes);
        slot(index, thread::NAME + number).store(word, Relaxed);
    }
}

/// Adds the counts in a slot to the counts of ended threads.
fn empty_slot(index: usize) {
    let (begin, end) = (thread::ALLOCATED, thread::WORDS);
    for number in begin..end {
        slot(0, number).fetch_add(slot(index, number).swap(0, Relaxed), Relaxed);
    }
}

/// Prepares the recording of threads. Called before the first thread records.
pub(crate) fn begin() -> Option<()> {
    let next = kernel::memory(CHUNKS.room * size_of::<AtomicU32>()).ok()?;
    NEXT_CHUNK.store(next.cast(), Relaxed);
    head(header::THREADS).store(1, Relaxed);
    if KEY.load(Relaxed) == u32::MAX
        && let Some(key) = linker::create_key(ends)
    {
        KEY.store(key, Relaxed);
    }
    Some(())
}

/// Clears the state in a child of `fork`.
pub(crate) fn reset() {
    LOCK.reset();
    LATE_LOCK.reset();
    WAITING.store(std::ptr::null_mut(), Relaxed);
    FREE_CHUNK.store(0, Relaxed);
    LATE.store(std::ptr::null_mut(), Relaxed);
    peak::reset();
    GOING.store(0, Relaxed);
    // Lifetimes of the parent's blocks are not measured any more.
    for (key, _) in &BORN {
        key.store(0, Relaxed);
    }
    set_own::<{ Own::Thread as usize }>(0);
    set_own::<{ Own::Stage as usize }>(NEW);
}

/// Ends the recording of a thread: its counts are added to those of ended threads.
unsafe extern "C" fn ends(_value: *mut c_void) {
    if begin::stage() != StartStage::Records {
        return;
    }
    let Some(Entered::Own(thread)) = enter() else { return };
    set_own::<{ Own::Stage as usize }>(ENDING);
    let index = thread.slot.get();
    name(index);
    std::mem::forget(LATE_LOCK.hold());
    if let Some(late) = late() {
        let _held = LOCK.hold();
        thread.hand_over(late);
        peak::leave(thread);
        thread.stacks.forget();
        slot(index, thread::RUNS).store(0, Relaxed);
        if head(header::RUNNING).fetch_sub(1, Relaxed) == 2 {
            peak::one_is_left();
            // The last thread returns to exact counts at its next allocation.
            GENERATION.fetch_add(1, Release);
        }
        thread.next.set(WAITING.load(Relaxed));
        WAITING.store(std::ptr::from_ref(thread).cast_mut(), Relaxed);
    }
    // SAFETY: this thread acquired the lock above and forgot the guard.
    unsafe { LATE_LOCK.open() };
}

fn next_chunk(chunk: u32) -> &'static AtomicU32 {
    let place = NEXT_CHUNK.load(Relaxed).wrapping_add(chunk as usize);
    // SAFETY: the array has a word for each chunk and is unmapped only when no thread is in the
    // recorder.
    unsafe { &*place }
}

impl ThreadData {
    #[inline(always)]
    fn slot(&self, number: usize) -> &'static AtomicU64 {
        debug_assert!(number < thread::WORDS);
        let place = self.own.get().wrapping_add(number);
        // SAFETY: the pointer refers to the words of the slot in the tables, which stay mapped.
        unsafe { &*place }
    }

    /// Assigns a slot to this thread.
    fn take_slot(&self, index: usize) {
        self.slot.set(index);
        self.own.set(slot(index, 0));
    }

    #[inline(always)]
    pub(crate) fn room(&self) -> i64 {
        self.slot(thread::ROOM).load(Relaxed).cast_signed()
    }

    #[inline(always)]
    pub(crate) fn set_room(&self, room: i64) {
        self.slot(thread::ROOM).store(room.cast_unsigned(), Relaxed);
    }

    /// Draws a pseudorandom number (xorshift).
    pub(crate) fn draw(&self) -> u64 {
        let mut random = self.random.get() | 1;
        random ^= random << 13;
        random ^= random >> 7;
        random ^= random << 17;
        self.random.set(random);
        random.wrapping_mul(0x2545_f491_4f6c_dd1d)
    }

    fn next_timed(&self) -> u32 {
        1 + (self.draw() >> 32) as u32 % (2 * TIMED_EVERY - 1)
    }

    /// This thread's record of a site; `None` if the table is full.
    #[inline(always)]
    fn record(&self, site: u32) -> Option<SiteRecord> {
        let site = site as usize;
        match self.directory.get(site / RECORDS)?.get() {
            0 => self.new_chunk(site),
            chunk => Some(SiteRecord::at_number(chunk as usize - 1, site % RECORDS)),
        }
    }

    #[cold]
    #[inline(never)]
    fn new_chunk(&self, site: usize) -> Option<SiteRecord> {
        let threads = head(header::RUNNING).load(Relaxed).max(1);
        if u64::from(self.chunks.get()) >= (MAX_THREAD_CHUNKS / threads).max(FEWEST_CHUNKS)
            && self.slot.get() != 0
            && head(header::MAX_LIVE_THREADS).load(Relaxed) > 1
        {
            std::mem::forget(LATE_LOCK.hold());
            if let Some(late) = late() {
                let _held = LOCK.hold();
                self.hand_over(late);
            }
            // SAFETY: this thread acquired the lock above and forgot the guard.
            unsafe { LATE_LOCK.open() };
        }
        let _held = LOCK.hold();
        let chunk = match FREE_CHUNK.load(Relaxed).checked_sub(1) {
            Some(chunk) => {
                FREE_CHUNK.store(next_chunk(chunk).load(Relaxed), Relaxed);
                chunk
            }
            None => {
                let used = head(header::CHUNKS).load(Relaxed);
                if used >= CHUNKS.room as u64 {
                    return None;
                }
                head(header::CHUNKS).store(used + 1, Release);
                u32::try_from(used).ok()?
            }
        };
        self.adopt(chunk, site / RECORDS);
        Some(SiteRecord::at_number(chunk as usize, site % RECORDS))
    }

    /// Adds a chunk to this thread. Requires [`LOCK`].
    fn adopt(&self, chunk: u32, sites: usize) {
        let (whose_sites, whose) = shared::owner(chunk as usize);
        whose.store(self.slot.get() as u32, Relaxed);
        whose_sites.store(sites as u32 + 1, Release);
        next_chunk(chunk).store(self.first_chunk.get(), Relaxed);
        self.first_chunk.set(chunk + 1);
        self.chunks.set(self.chunks.get() + 1);
        self.directory[sites].set(chunk + 1);
    }

    /// Hands all chunks over to `to`, which no other thread uses. Requires [`LOCK`] and
    /// [`LATE_LOCK`].
    fn hand_over(&self, to: &ThreadData) {
        let [mut allocations, mut allocated, mut frees, mut freed] = [0_u64; 4];
        head(header::CHANGES).fetch_add(1, Release);
        let mut next = self.first_chunk.get();
        while let Some(chunk) = next.checked_sub(1) {
            next = next_chunk(chunk).load(Relaxed);
            let (whose_sites, whose) = shared::owner(chunk as usize);
            let sites = (whose_sites.load(Relaxed) as usize).wrapping_sub(1);
            let Some(entry) = self.directory.get(sites) else { continue };
            entry.set(0);
            for number in 0..RECORDS {
                let record = SiteRecord::at_number(chunk as usize, number);
                allocations = allocations.wrapping_add(record.get(record::ALLOCATIONS));
                allocated = allocated.wrapping_add(record.get(record::ALLOCATED));
                frees = frees.wrapping_add(record.get(record::FREES));
                freed = freed.wrapping_add(record.get(record::FREED));
            }
            match to.directory[sites].get().checked_sub(1) {
                None => to.adopt(chunk, sites),
                Some(into) => {
                    for number in 0..RECORDS {
                        SiteRecord::at_number(into as usize, number)
                            .absorb(SiteRecord::at_number(chunk as usize, number));
                    }
                    whose_sites.store(0, Relaxed);
                    whose.store(0, Relaxed);
                    next_chunk(chunk).store(FREE_CHUNK.load(Relaxed), Relaxed);
                    FREE_CHUNK.store(chunk + 1, Relaxed);
                }
            }
        }
        self.first_chunk.set(0);
        self.chunks.set(0);
        let sums = [allocated, allocations, freed, frees];
        for (number, sum) in (thread::ALLOCATED..).zip(sums) {
            self.slot(number).fetch_add(sum, Relaxed);
        }
        head(header::CHANGES).fetch_add(1, Release);
    }

    /// Counts an allocated block.
    #[inline(always)]
    pub(crate) fn allocated<const USUAL: bool>(&self, address: u64, size: u64, at: CallPoint) {
        let Some((site, record)) = self.site(at) else { return };
        record.roll();
        record.add(record::ALLOCATIONS, 1);
        record.add(record::ALLOCATED, size);
        let cell = thread::SIZES + (u64::BITS - size.leading_zeros()) as usize;
        let count = self.slot(cell);
        count.store(count.load(Relaxed) + 1, Relaxed);
        self.last.set(address);
        let until = self.until_timed.get() - 1;
        self.until_timed.set(until);
        let timed = until == 0 && self.time(address);
        let room = if USUAL { next_alloc::glibc_room(address) } else { begin::room(address) };
        let known = live::put::<USUAL>(address, RecordedBlock { site, size, timed }, room);
        if !USUAL && known && log::wants(size) {
            log::allocated(address, size, site);
        }
        if size >= LARGE {
            count_mapped(address, size, false);
        }
        peak::more(self, size);
    }

    /// Site of a call stack for heap memory, and this thread's record of it.
    #[inline(always)]
    pub(crate) fn site(&self, at: CallPoint) -> Option<(u32, SiteRecord)> {
        self.site_of(at, kind::HEAP)
    }

    /// Site of a call stack for a kind of memory, and this thread's record of it.
    #[inline(always)]
    pub(crate) fn site_of(&self, at: CallPoint, kind: u32) -> Option<(u32, SiteRecord)> {
        if self.generation.get() != GENERATION.load(Relaxed) {
            self.catch_up();
        }
        let site = match self.stacks.known_site(at) {
            Some(site) => site,
            None => self.find_site(at, kind)?,
        };
        Some((site, self.record(site)?))
    }

    /// Site of a call stack that the fast lookup did not find; `None` if the table is full.
    #[inline(never)]
    fn find_site(&self, at: CallPoint, kind: u32) -> Option<u32> {
        match self.stacks.find(at) {
            Some(StackLookup::Site(site)) => Some(site),
            Some(StackLookup::New(new)) => {
                let site = new.site(kind)?;
                self.stacks.keep(new, site);
                Some(site)
            }
            None => {
                head(header::CUT_STACKS).fetch_add(1, Relaxed);
                Some(0)
            }
        }
    }

    /// Call tree node of the innermost call of a stack; [`pagewise_heaplog::recording::ROOT`] for
    /// an empty stack.
    pub(crate) fn node(&self, at: CallPoint) -> u32 {
        if self.generation.get() != GENERATION.load(Relaxed) {
            self.catch_up();
        }
        self.stacks.node(at).unwrap_or(pagewise_heaplog::recording::ROOT)
    }

    /// Notices changes since the last allocation. Invalidates the cached stacks if code was
    /// unloaded or is being unloaded: other code may be mapped at its addresses before the
    /// unloading thread reports it. If this thread is the only one left, it returns to exact peaks.
    #[cold]
    #[inline(never)]
    fn catch_up(&self) {
        let generation = GENERATION.load(Acquire);
        let code = CODE.load(Relaxed);
        let is_going = GOING.load(Relaxed) != 0;
        if is_going {
            modules::forget_unloaded();
        }
        self.generation.set(if is_going { u64::MAX } else { generation });
        if is_going || self.code.get() != code {
            self.code.set(code);
            self.stacks.forget_calls();
        }
        peak::settle(self);
    }

    /// True if this is the data of ending threads, which use it one after another.
    pub(crate) fn is_late(&self) -> bool {
        self.slot.get() == 0
    }

    /// ID of the thread.
    pub(crate) fn tid(&self) -> u32 {
        self.slot(thread::TID).load(Relaxed) as u32
    }

    /// Removes a block from the live blocks without counting a free.
    #[inline(always)]
    pub(crate) fn remove_block<const USUAL: bool>(&self, address: u64) -> Option<RecordedBlock> {
        let block = live::remove_block::<USUAL>(address, || next_alloc::glibc_room(address))?;
        if !USUAL && log::wants(block.size) {
            log::freed(address);
        }
        if block.size >= LARGE {
            count_mapped(address, block.size, true);
        }
        Some(block)
    }

    /// Adds a block to the live blocks again. Called if the block was not freed after all.
    pub(crate) fn put_back(&self, address: u64, block: RecordedBlock) {
        if live::put::<false>(address, block, begin::room(address)) && log::wants(block.size) {
            log::allocated(address, block.size, block.site);
        }
        if block.size >= LARGE {
            count_mapped(address, block.size, false);
        }
    }

    /// Counts a free of a block.
    #[inline(always)]
    pub(crate) fn freed<const USUAL: bool>(&self, address: u64, block: RecordedBlock) {
        if !USUAL && sampling::is_on() {
            sampling::freed(self, address, block);
            return;
        }
        peak::less(self, block.size);
        let Some(record) = self.record(block.site) else { return };
        record.roll();
        record.add(record::FREES, 1);
        record.add(record::FREED, block.size);
        if self.last.get() == address {
            record.add(record::TEMPORARY, 1);
        }
        if block.timed {
            self.timed(address);
        }
    }

    /// This thread's record of a site; `None` if the table is full.
    pub(crate) fn record_of(&self, site: u32) -> Option<SiteRecord> {
        self.record(site)
    }

    /// True if a block is this thread's last allocation, after which `left` bytes were left until
    /// the next sample.
    pub(crate) fn is_last(&self, address: u64, left: u64) -> bool {
        self.last.get() == address && self.last_left.get() == left
    }

    pub(crate) fn set_last(&self, address: u64, left: u64) {
        self.last.set(address);
        self.last_left.set(left);
    }

    pub(crate) fn count_size(&self, size: u64, times: u64) {
        let cell = thread::SIZES + (u64::BITS - size.leading_zeros()) as usize;
        self.slot(cell).fetch_add(times, Relaxed);
    }

    /// Stores the time of an allocation. Returns false if the entry for its address is in use.
    #[cold]
    #[inline(never)]
    fn time(&self, address: u64) -> bool {
        self.until_timed.set(self.next_timed());
        let (key, began) = birth(address);
        if key.compare_exchange(0, address, Relaxed, Relaxed).is_err() {
            return false;
        }
        began.store(kernel::clock(libc::CLOCK_MONOTONIC), Relaxed);
        true
    }

    /// Counts the lifetime of a freed block that was measured.
    #[cold]
    #[inline(never)]
    fn timed(&self, address: u64) {
        let (key, began) = birth(address);
        let began = began.load(Relaxed);
        if key.compare_exchange(address, 0, Relaxed, Relaxed).is_err() {
            return;
        }
        let lived = kernel::clock(libc::CLOCK_MONOTONIC).saturating_sub(began);
        let cell = (u64::BITS - lived.leading_zeros()) as usize;
        debug_assert!(cell < CELLS);
        self.slot(thread::LIFETIMES + cell).fetch_add(1, Relaxed);
    }

    /// True at the first call only: the thread must then draw its first number of bytes to a
    /// sample.
    pub(crate) fn begins_sampling(&self) -> bool {
        self.samples.replace(1) == 0
    }
}

/// Counts an allocation of a large block that has its own mapping, or its free if `gone` is true.
#[cold]
#[inline(never)]
pub(crate) fn count_mapped(address: u64, size: u64, gone: bool) {
    let Some(bytes) = begin::mapped(address) else { return };
    let bytes = if sampling::is_on() { sampling::scaled(bytes, size) } else { bytes };
    let mapped = head(header::MAPPED);
    if gone {
        mapped.fetch_sub(bytes, Relaxed)
    } else {
        mapped.fetch_add(bytes, Relaxed)
    };
}

/// Number of changes that threads must notice at their next allocation: code was unloaded, or only
/// one thread is left.
static GENERATION: AtomicU64 = AtomicU64::new(0);

/// Number of times that code was unloaded.
static CODE: AtomicU64 = AtomicU64::new(0);

/// Number of calls in progress that unload code.
static GOING: AtomicU64 = AtomicU64::new(0);

/// Called before code is unloaded. [`code_has_gone`] must be called afterwards.
pub(crate) fn code_goes() {
    GOING.fetch_add(1, Relaxed);
    CODE.fetch_add(1, Relaxed);
    GENERATION.fetch_add(1, Release);
}

/// Called after code was unloaded: cached stacks may contain its addresses.
pub(crate) fn code_has_gone() {
    let _ = GOING.fetch_update(Relaxed, Relaxed, |going| going.checked_sub(1));
    CODE.fetch_add(1, Relaxed);
    GENERATION.fetch_add(1, Release);
}

/// Number of entries of [`BORN`]: addresses of blocks whose lifetime is measured, and the times of
/// their allocation. If the entry is in use, the block is not measured; this choice does not depend
/// on the lifetime of the block.
const BIRTHS: usize = 1 << 13;
static BORN: [(AtomicU64, AtomicU64); BIRTHS] =
    [const { (AtomicU64::new(0), AtomicU64::new(0)) }; BIRTHS];

/// Clears all measured blocks.
pub(crate) fn forget_births() {
    for (key, _) in &BORN {
        key.store(0, Relaxed);
    }
}

fn birth(address: u64) -> &'static (AtomicU64, AtomicU64) {
    &BORN[(address.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 40) as usize % BIRTHS]
}
