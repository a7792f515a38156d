//! How much is live, and when most was.
//!
//! What is live is [`header::UPPER`] less the room of all threads. While one thread records, its room is what is missing to
//! the peak, so that each new peak and each way down from one is noticed at once. While several do, each takes and gives back
//! [`CREDIT`] at a time, and the peak is known as well as that.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use pagewise_heaplog::tables::{CREDIT, header};

use crate::shared::{head, peak_epoch};
use crate::threads::Thread;

/// Threads that are being made, and did not begin to record yet.
pub(crate) static COMING: AtomicU64 = AtomicU64::new(0);

/// A thread is being made. Even if it never records, what is live is known less well from here on.
pub(crate) fn comes() {
    COMING.fetch_add(1, Relaxed);
    let running = head(header::RUNNING).load(Relaxed).max(1);
    head(header::MOST_THREADS).fetch_max(running + 1, Relaxed);
}

/// So many bytes more are live.
#[inline(always)]
pub(crate) fn more(thread: &Thread, size: u64) {
    let room = thread.room().wrapping_sub(size.cast_signed());
    thread.set_room(room);
    if room < 0 {
        raise(thread, room);
    }
}

/// So many bytes will be no more.
#[inline(always)]
pub(crate) fn less(thread: &Thread, size: u64) {
    let room = thread.room().wrapping_add(size.cast_signed());
    thread.set_room(room);
    if room > thread.most_room.get() {
        fall(thread, room);
    }
}

#[inline(never)]
fn raise(thread: &Thread, room: i64) {
    let lacking = room.unsigned_abs();
    if is_single() {
        let peak = head(header::PEAK).load(Relaxed).wrapping_add(lacking);
        head(header::PEAK).store(peak, Relaxed);
        head(header::UPPER).store(peak, Relaxed);
        thread.set_room(0);
        thread.most_room.set(0);
        return;
    }
    let more = lacking + CREDIT;
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
fn fall(thread: &Thread, room: i64) {
    if is_single() {
        peak_epoch().fetch_add(1, Relaxed);
        thread.most_room.set(i64::MAX);
        return;
    }
    give_back(thread, room);
    try_single(thread);
}

fn give_back(thread: &Thread, room: i64) {
    let back = room - CREDIT.cast_signed();
    if back > 0 {
        head(header::UPPER).fetch_sub(back.unsigned_abs(), Relaxed);
        thread.set_room(CREDIT.cast_signed());
    }
    thread.most_room.set(2 * CREDIT.cast_signed());
    if head(header::RISING).load(Relaxed) != 0 && head(header::RISING).swap(0, Relaxed) != 0 {
        peak_epoch().fetch_add(1, Relaxed);
    }
}

fn is_single() -> bool {
    head(header::MANY).load(Relaxed) == 0
}

/// Before another thread begins: this one's room is not to stand for what others allocate.
pub(crate) fn make_many(thread: &Thread) {
    if !is_single() {
        return;
    }
    head(header::MANY).store(1, Relaxed);
    // A peak that nothing came down from yet is still one.
    head(header::RISING).store(u64::from(thread.most_room.get() == 0), Relaxed);
    let back = thread.room() - CREDIT.cast_signed();
    if back > 0 {
        head(header::UPPER).fetch_sub(back.unsigned_abs(), Relaxed);
        thread.set_room(CREDIT.cast_signed());
    }
    thread.most_room.set(2 * CREDIT.cast_signed());
}

/// Once all others have ended: from here on everything is noticed at once again.
fn try_single(thread: &Thread) {
    if head(header::RUNNING).load(Relaxed) != 1 || COMING.load(Relaxed) != 0 {
        return;
    }
    let live = head(header::UPPER).load(Relaxed).wrapping_sub(thread.room().cast_unsigned());
    let peak = head(header::PEAK).load(Relaxed);
    head(header::UPPER).store(peak, Relaxed);
    thread.set_room(peak.wrapping_sub(live).cast_signed());
    let rising = head(header::RISING).swap(0, Relaxed) != 0;
    thread.most_room.set(if rising { thread.room() } else { i64::MAX });
    head(header::MANY).store(0, Relaxed);
}

/// A thread ends: its room is nobody's.
pub(crate) fn leave(thread: &Thread) {
    head(header::UPPER).fetch_sub(thread.room().cast_unsigned(), Relaxed);
    thread.set_room(0);
    thread.most_room.set(0);
    // Who is left may be nobody, whose room would stand for what is missing to the peak.
    head(header::MANY).store(1, Relaxed);
}
