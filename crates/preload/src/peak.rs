//! Live bytes and their peak.
//!
//! The number of live bytes is [`header::UPPER`] minus the credit of all threads. The credit of a
//! thread is the number of bytes that it may allocate before it updates the header. While only one
//! thread records, its credit is the distance to the peak, so each new peak and each descent from
//! it is noticed at once. With several threads, each thread allocates and frees up to [`CREDIT`]
//! bytes between updates of the header, and the peak has an error of this size. A record contains
//! the counts of one thread for one allocating call stack. The epoch of peaks is a counter that is
//! incremented when the live bytes fall below a new peak: each record then keeps a copy of its
//! counts at the peak.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use pagewise_heaplog::tables::{CREDIT, header, thread};

use crate::shared::{head, peak_epoch, slot};
use crate::threads::ThreadData;

/// Number of threads that are being created and do not record yet.
pub(crate) static COMING: AtomicU64 = AtomicU64::new(0);

/// Value of [`COMING`] for an unknown number of threads that began before the recording.
const ANY_NUMBER: u64 = u64::MAX >> 1;

/// Number of live bytes of all threads at the last peak after which the live bytes fell; a lower
/// bound if the exact number is unknown. While several threads record, [`header::PEAK`] may be
/// larger than this number. `PEAK` then also counts the bytes that the threads were permitted to
/// allocate without an update of the header (their credit) and had not allocated.
static KEPT: AtomicU64 = AtomicU64::new(0);

/// Balance of ending threads: signed number of bytes that they have allocated and not freed, and
/// that the other threads have not accounted for yet.
static LATE: AtomicU64 = AtomicU64::new(0);

/// Assumes an unknown number of threads in a running program. Then no thread counts as the only
/// one, unless the collector, which has stopped all threads, changes [`COMING`].
pub(crate) fn any_may_come() {
    COMING.store(ANY_NUMBER, Relaxed);
    head(header::MANY).store(1, Relaxed);
}

/// True if a running program may have threads that do not record yet.
pub(crate) fn has_others() -> bool {
    COMING.load(Relaxed) > ANY_NUMBER / 2
}

/// Resets all counts. Called before a recording begins.
pub(crate) fn reset() {
    COMING.store(0, Relaxed);
    KEPT.store(0, Relaxed);
    LATE.store(0, Relaxed);
}

/// Counts a thread that is being created. From then on the number of live bytes is less exact, even
/// if the thread never records.
pub(crate) fn comes() {
    COMING.fetch_add(1, Relaxed);
    let running = head(header::RUNNING).load(Relaxed).max(1);
    head(header::MAX_LIVE_THREADS).fetch_max(running + 1, Relaxed);
}

/// Counts `size` more live bytes: reduces the credit of a thread.
#[inline(always)]
pub(crate) fn more(thread: &ThreadData, size: u64) {
    let room = thread.room().wrapping_sub(size.cast_signed());
    thread.set_room(room);
    if room < 0 {
        raise(thread, room);
    }
}

/// Counts `size` fewer live bytes: increases the credit of a thread.
#[inline(always)]
pub(crate) fn less(thread: &ThreadData, size: u64) {
    let room = thread.room().wrapping_add(size.cast_signed());
    thread.set_room(room);
    if room > thread.most_room.get() {
        fall(thread, room);
    }
}

#[inline(never)]
fn raise(thread: &ThreadData, room: i64) {
    if thread.is_late() {
        return;
    }
    if is_single() {
        let room = catch_up_with_late(room);
        if room >= 0 {
            thread.set_room(room);
            return;
        }
        let lacking = room.unsigned_abs();
        let peak = head(header::PEAK).load(Relaxed).wrapping_add(lacking);
        head(header::PEAK).store(peak, Relaxed);
        head(header::UPPER).store(peak, Relaxed);
        thread.set_room(0);
        thread.most_room.set(0);
        return;
    }
    take_late();
    let more = room.unsigned_abs() + CREDIT;
    let upper = head(header::UPPER).fetch_add(more, Relaxed).wrapping_add(more);
    thread.set_room(CREDIT.cast_signed());
    thread.most_room.set(2 * CREDIT.cast_signed());
    if upper > head(header::PEAK).load(Relaxed) {
        head(header::PEAK).fetch_max(upper, Relaxed);
        head(header::RISING).store(1, Relaxed);
    }
    try_single(thread);
}

#[inline(never)]
fn fall(thread: &ThreadData, room: i64) {
    if thread.is_late() {
        return;
    }
    if is_single() {
        thread.set_room(catch_up_with_late(room));
        KEPT.store(head(header::PEAK).load(Relaxed), Relaxed);
        peak_epoch().fetch_add(1, Relaxed);
        thread.most_room.set(i64::MAX);
        return;
    }
    take_late();
    give_back(thread, room);
    try_single(thread);
}

fn give_back(thread: &ThreadData, room: i64) {
    let back = room - CREDIT.cast_signed();
    if back > 0 {
        head(header::UPPER).fetch_sub(back.unsigned_abs(), Relaxed);
        thread.set_room(CREDIT.cast_signed());
    }
    thread.most_room.set(2 * CREDIT.cast_signed());
    keep_if_highest();
}

/// Increments the epoch of peaks, so that the records keep copies of their counts. Does nothing if
/// the program has not reached a new peak since the last call, or if the number of live bytes is
/// known and does not exceed [`KEPT`].
fn keep_if_highest() {
    if head(header::RISING).load(Relaxed) == 0 || head(header::RISING).swap(0, Relaxed) == 0 {
        return;
    }
    let kept = KEPT.load(Relaxed);
    let live = match live_now() {
        Some(live) if live <= kept => return,
        Some(live) => live,
        // The credit of a thread is at most twice `CREDIT`, so this is a lower bound.
        None => {
            let room = head(header::RUNNING).load(Relaxed).saturating_mul(2 * CREDIT);
            head(header::UPPER).load(Relaxed).saturating_sub(room)
        }
    };
    KEPT.store(live, Relaxed);
    peak_epoch().fetch_add(1, Relaxed);
}

/// Number of live bytes of all threads; `None` if there are more than `MAX_THREADS` threads, or if
/// a thread is changing its credit.
fn live_now() -> Option<u64> {
    const MAX_THREADS: u64 = 64;
    const TRIES: u32 = 4;
    let threads = usize::try_from(head(header::THREADS).load(Relaxed).min(MAX_THREADS + 1)).ok()?;
    if threads as u64 > MAX_THREADS {
        return None;
    }
    for _ in 0..TRIES {
        let upper = head(header::UPPER).load(Relaxed);
        // Slot 0 has no credit as long as no ending thread records.
        let rooms = (1..threads)
            .filter(|index| slot(*index, thread::RUNS).load(Relaxed) != 0)
            .map(|index| slot(index, thread::ROOM).load(Relaxed).cast_signed());
        let sum = rooms.into_iter().try_fold(0_u64, |sum, room| {
            let room = u64::try_from(room).ok().filter(|room| *room <= 2 * CREDIT)?;
            Some(sum + room)
        });
        if let Some(sum) = sum
            && upper == head(header::UPPER).load(Relaxed)
        {
            return upper.checked_sub(sum);
        }
    }
    None
}

fn is_single() -> bool {
    head(header::MANY).load(Relaxed) == 0
}

/// Reduces the credit of this thread, which was the distance to the peak. Called before another
/// thread begins.
pub(crate) fn make_many(thread: &ThreadData) {
    if !is_single() {
        return;
    }
    head(header::MANY).store(1, Relaxed);
    // If the live bytes are at the peak now, they count as a new peak.
    head(header::RISING).store(u64::from(thread.most_room.get() == 0), Relaxed);
    let back = thread.room() - CREDIT.cast_signed();
    if back > 0 {
        head(header::UPPER).fetch_sub(back.unsigned_abs(), Relaxed);
        thread.set_room(CREDIT.cast_signed());
    }
    thread.most_room.set(2 * CREDIT.cast_signed());
}

/// Returns to exact peaks if all threads except this one have ended.
fn try_single(thread: &ThreadData) {
    if thread.is_late() || head(header::RUNNING).load(Relaxed) != 1 || COMING.load(Relaxed) != 0 {
        return;
    }
    take_late();
    let live = head(header::UPPER).load(Relaxed).wrapping_sub(thread.room().cast_unsigned());
    // The maximum of `UPPER`, stored in `PEAK`, includes the credit of several threads: a lower
    // peak would not be noticed. So `PEAK` is set to the live bytes at the peak.
    let kept = KEPT.load(Relaxed);
    let peak = kept.max(live);
    head(header::RISING).store(0, Relaxed);
    head(header::PEAK).store(peak, Relaxed);
    head(header::UPPER).store(peak, Relaxed);
    thread.set_room(peak.wrapping_sub(live).cast_signed());
    thread.most_room.set(if live > kept { 0 } else { i64::MAX });
    head(header::MANY).store(0, Relaxed);
}

/// Updates the credit of a thread that allocates after other threads have ended.
pub(crate) fn settle(thread: &ThreadData) {
    if !is_single() {
        try_single(thread);
    } else if !thread.is_late() {
        let room = catch_up_with_late(thread.room());
        thread.set_room(room);
        if room < 0 {
            raise(thread, room);
        }
    }
}

/// Called when all threads except one have ended. The live bytes may be at a new peak now, and the
/// last thread may free many blocks before its next allocation, at which it would notice the peak.
pub(crate) fn one_is_left() {
    keep_if_highest();
}

/// Adds the balance of an ending thread to [`LATE`]. Returns true if the balance is not 0 and only
/// one thread is left, which must then account for it.
pub(crate) fn leave_late(late: &ThreadData) -> bool {
    let room = late.room();
    late.set_room(0);
    LATE.fetch_sub(room.cast_unsigned(), Relaxed);
    room != 0 && is_single()
}

/// Accounts for the balance of ending threads. Called while several threads run.
fn take_late() {
    if LATE.load(Relaxed) != 0 {
        head(header::UPPER).fetch_add(LATE.swap(0, Relaxed), Relaxed);
    }
}

/// Accounts for the balance of ending threads while one thread runs. Returns the distance of that
/// thread to the peak.
fn catch_up_with_late(room: i64) -> i64 {
    room.wrapping_sub(LATE.swap(0, Relaxed).cast_signed())
}

/// Returns the credit of an ending thread to the header.
pub(crate) fn leave(thread: &ThreadData) {
    head(header::UPPER).fetch_sub(thread.room().cast_unsigned(), Relaxed);
    thread.set_room(0);
    thread.most_room.set(0);
    // The ended thread may have been the only one. With `MANY` at 0, the credit of the next thread
    // would be mistaken for its distance to the peak.
    head(header::MANY).store(1, Relaxed);
}
