//! Locks that `fork` takes before it forks and releases afterwards. The child has only the thread
//! that forked, so a lock that another thread held would never be released in the child.
//!
//! The locks are taken in the order of [`ForkOrder`], which is the order in which pools nest them.

use core::ffi::c_void;
use core::mem::MaybeUninit;
use core::ptr;
use core::sync::atomic::{AtomicBool, AtomicPtr, AtomicUsize, Ordering};

/// Position of a lock in the order in which a fork takes locks. A pool holds its lock while it
/// calls its source, so the lock of the pool precedes that of its source.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ForkOrder {
    /// A pool of blocks.
    Blocks,
    /// A pool of pages.
    Pages,
    /// The pool of pages of the source `Os`.
    System,
}

const ORDERS: usize = 3;
/// Maximum number of registered locks at each position of the order. A child of `fork` must not use
/// a pool whose lock was not registered because this number was reached.
const MAX_LOCKS: usize = 16;

/// Registered locks: a row for each [`ForkOrder`]. In each row the locks precede the null pointers.
static LOCKS: [[AtomicPtr<AtomicBool>; MAX_LOCKS]; ORDERS] =
    [const { [const { AtomicPtr::new(ptr::null_mut()) }; MAX_LOCKS] }; ORDERS];

/// Number of locks of each row that the running fork has taken.
static HELD: [AtomicUsize; ORDERS] = [const { AtomicUsize::new(0) }; ORDERS];

/// Makes each fork take a lock. Requires that the caller holds no lock, since the C library may
/// allocate in this function.
///
/// Ignores a lock that is not in a loaded object, because its pool may move: for example, a pool in
/// a local variable.
#[cold]
pub(crate) fn register(lock: &AtomicBool, order: ForkOrder) {
    if cfg!(miri) {
        // Miri supports neither `fork` nor `dladdr`.
        return;
    }
    static HANDLED: AtomicBool = AtomicBool::new(false);
    let address = ptr::from_ref(lock).cast_mut();
    // The pool of the source `Os` is always static, but `dladdr` does not find it in a statically
    // linked program.
    if order != ForkOrder::System && !is_static(address) {
        return;
    }
    if !HANDLED.swap(true, Ordering::Relaxed) {
        // SAFETY: the handlers are functions of this library, which take and release locks.
        unsafe { libc::pthread_atfork(Some(take_all), Some(release_all), Some(release_all)) };
    }
    let is_free = |slot: &&AtomicPtr<AtomicBool>| {
        slot.compare_exchange(ptr::null_mut(), address, Ordering::Release, Ordering::Relaxed)
            .is_ok()
    };
    _ = LOCKS[order as usize].iter().find(is_free);
}

/// True if an address lies in the program or in a loaded library.
fn is_static(address: *const AtomicBool) -> bool {
    let mut info = MaybeUninit::<libc::Dl_info>::uninit();
    // SAFETY: the call writes to `info`, and reads tables of the loader only.
    unsafe { libc::dladdr(address.cast::<c_void>(), info.as_mut_ptr()) != 0 }
}

/// Returns the locks of a row.
fn row(order: usize) -> impl Iterator<Item = &'static AtomicBool> {
    let registered = LOCKS[order].iter().map(|slot| slot.load(Ordering::Acquire));
    registered.take_while(|lock| !lock.is_null()).map(|lock| {
        // SAFETY: only locks of static pools are registered, and the library that contains a pool
        // is never unloaded.
        unsafe { &*lock }
    })
}

extern "C" fn take_all() {
    for (order, held) in HELD.iter().enumerate() {
        let mut count = 0;
        for lock in row(order) {
            crate::lock::take(lock);
            count += 1;
        }
        held.store(count, Ordering::Relaxed);
    }
}

extern "C" fn release_all() {
    for (order, held) in HELD.iter().enumerate() {
        let count = held.load(Ordering::Relaxed);
        row(order).take(count).for_each(|lock| lock.store(false, Ordering::Release));
    }
}
