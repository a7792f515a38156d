//! Locks that `fork` takes before it forks and releases afterwards: the child has only the thread
//! that forked, so a lock that another thread held would stay taken there.
//!
//! The locks are taken in the order of [`ForkOrder`], which is the order in which pools nest them.

use core::ffi::c_void;
use core::mem::MaybeUninit;
use core::ptr;
use core::sync::atomic::{AtomicBool, AtomicPtr, AtomicUsize, Ordering};

/// Position of a lock among those of a fork: a pool holds its lock while it asks its source.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ForkOrder {
    /// A pool of blocks.
    Blocks,
    /// A pool of pages.
    Pages,
    /// The pool of pages behind the system's source.
    System,
}

const ORDERS: usize = 3;
/// Maximum number of locks of an order. Children of `fork` must not use further pools.
const MAX_LOCKS: usize = 16;

/// Registered locks: in each row the first ones, then null pointers.
static LOCKS: [[AtomicPtr<AtomicBool>; MAX_LOCKS]; ORDERS] =
    [const { [const { AtomicPtr::new(ptr::null_mut()) }; MAX_LOCKS] }; ORDERS];

/// Locks of each row that the running fork has taken.
static HELD: [AtomicUsize; ORDERS] = [const { AtomicUsize::new(0) }; ORDERS];

/// Makes each fork take a lock. The caller holds no lock, since the C library may allocate here.
///
/// A pool that lies in no loaded object, such as a local variable, may move: it is left out.
#[cold]
pub(crate) fn register(lock: &AtomicBool, order: ForkOrder) {
    if cfg!(miri) {
        // Miri has neither forks nor the loader's tables.
        return;
    }
    static HANDLED: AtomicBool = AtomicBool::new(false);
    let address = ptr::from_ref(lock).cast_mut();
    // The system's pool is static, also where the loader has no tables: in a static program.
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

/// The locks of a row, up to the first empty slot.
fn row(order: usize) -> impl Iterator<Item = &'static AtomicBool> {
    let registered = LOCKS[order].iter().map(|slot| slot.load(Ordering::Acquire));
    registered.take_while(|lock| !lock.is_null()).map(|lock| {
        // SAFETY: only locks of static pools are registered. A library that contains a pool must
        // not be unloaded: Rust libraries stay loaded.
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
