//! Pages that are moved with their contents from one slot to another, in one system call
//! (`UFFDIO_MOVE`, Linux 6.8).
//!
//! A `userfaultfd` makes the kernel refuse accesses to missing pages of a range (`SIGBUS`), instead
//! of providing zero pages. So a slot without a page is inaccessible without a guard marker, and
//! the call that makes the slot of a freed object inaccessible makes that of the next object
//! accessible.
//!
//! The descriptor of the `userfaultfd` has a high number, since programs rely on low ones. The
//! collector holds it as well: if a program that closes all its descriptors closed the last one,
//! the range would become accessible. After that no more pages can be moved. A child of `fork`
//! inherits the descriptor, which controls its parent's memory: so the number is in memory that is
//! zero-filled in a child.

use std::sync::atomic::{AtomicPtr, AtomicU32, Ordering::Relaxed};

use super::{pool::page, tell};
use crate::kernel::{self, Errno, OwnedFile};

/// Lowest number of the descriptor if the limit of descriptors allows it; else it is one of the
/// last [`LEFT`] numbers below the limit.
const NUMBERS: usize = 1000;
const LEFT: usize = 24;

/// The descriptor's number plus 1, in memory that is zero-filled in a child of `fork`.
/// [`INHERITED`] keeps the number in a child.
static NUMBER: AtomicPtr<AtomicU32> = AtomicPtr::new(std::ptr::null_mut());
static INHERITED: AtomicU32 = AtomicU32::new(0);
/// A page of zeros.
static ZEROS: AtomicPtr<u8> = AtomicPtr::new(std::ptr::null_mut());
/// 1 if no more pages can be moved.
static IS_OVER: AtomicU32 = AtomicU32::new(0);

/// Prepares to move pages; `None` if the kernel cannot, or refuses to.
pub(crate) fn begin() -> Option<()> {
    ZEROS.store(kernel::private(page()).ok()?, Relaxed);
    NUMBER.store(kernel::memory(size_of::<AtomicU32>()).ok()?.cast(), Relaxed);
    open()
}

fn number() -> Option<&'static AtomicU32> {
    // SAFETY: it is null or of memory that is never unmapped, which holds one.
    unsafe { NUMBER.load(Relaxed).as_ref() }
}

fn open() -> Option<()> {
    let file = OwnedFile::of_missing_pages().ok()?;
    let least = kernel::most_files().min(NUMBERS + LEFT).saturating_sub(LEFT);
    let file = file.with_number(least).unwrap_or(file);
    let number = number()?;
    let its = u32::try_from(file.keep()).ok()? + 1;
    number.store(its, Relaxed);
    INHERITED.store(its, Relaxed);
    IS_OVER.store(0, Relaxed);
    Some(())
}

/// Sends the descriptor to the collector, which holds it as well.
pub(crate) fn have_held() {
    if let Some(file) = file() {
        tell::hold(&file);
    }
}

/// Moves no pages from now on.
pub(crate) fn end() {
    IS_OVER.store(1, Relaxed);
}

fn file() -> Option<std::mem::ManuallyDrop<OwnedFile>> {
    let number = number()?.load(Relaxed).checked_sub(1)?;
    Some(OwnedFile::kept(number.cast_signed()))
}

/// True if pages can be moved.
pub(crate) fn can() -> bool {
    IS_OVER.load(Relaxed) == 0 && number().is_some_and(|number| number.load(Relaxed) != 0)
}

/// Replaces the inherited descriptor in a child of `fork`, whose memory is not registered until
/// [`add`] is called.
pub(crate) fn forked() -> Option<()> {
    if let Some(inherited) = INHERITED.swap(0, Relaxed).checked_sub(1) {
        let file = OwnedFile::kept(inherited.cast_signed());
        // The program may have closed it, and something else may have the number now.
        if file.is_of_missing_pages() {
            drop(std::mem::ManuallyDrop::into_inner(file));
        }
    }
    open()?;
    have_held();
    Some(())
}

/// Makes accesses to missing pages of a range raise SIGBUS.
///
/// # Safety
/// The pages are the guard's own.
pub(crate) unsafe fn add(at: usize, length: usize) -> Option<()> {
    // SAFETY: the caller passes pages of the guard.
    unsafe { file()?.refuse_missing(at, length) }.ok().map(drop)
}

/// True if a call succeeded. After an error that will recur, no pages are moved any more.
fn done(result: Result<usize, Errno>) -> bool {
    if let Err(Errno(libc::EBADF | libc::ENOTTY | libc::ENOENT | libc::EINVAL | libc::EPERM)) =
        result
    {
        end();
    }
    result.is_ok()
}

/// Maps a zero-filled page at an address without one.
///
/// # Safety
/// The page is the guard's own.
pub(crate) unsafe fn put(to: usize) -> bool {
    let Some(file) = file() else { return false };
    let zeros = ZEROS.load(Relaxed).addr();
    // SAFETY: the caller passes a page of the guard; `zeros` is a page that is only read.
    let put = unsafe { file.put_page(zeros, to, page()) };
    put == Err(Errno(libc::EEXIST)) || done(put)
}

/// Moves a page to an address without one.
///
/// # Safety
/// Both belong to the guard, and no thread accesses the first from now on.
pub(crate) unsafe fn go(from: usize, to: usize) -> bool {
    let Some(file) = file() else { return false };
    // SAFETY: the caller passes pages of the guard, the first of which no thread accesses.
    let moved = unsafe { file.move_page(from, to, page()) };
    // Pages that are shared with a child of `fork` stay where they are.
    moved.is_ok()
}

/// Queue of slots that have a page each and wait for the next objects, in the order of use.
pub(crate) struct Ready {
    first: AtomicU32,
    count: AtomicU32,
    numbers: [AtomicU32; MAX_READY_SLOTS],
}

pub(crate) const MAX_READY_SLOTS: usize = 32;

pub(crate) static READY: Ready = Ready {
    first: AtomicU32::new(0),
    count: AtomicU32::new(0),
    numbers: [const { AtomicU32::new(0) }; MAX_READY_SLOTS],
};

impl Ready {
    fn place(&self, number: u32) -> &AtomicU32 {
        &self.numbers[(self.first.load(Relaxed) + number) as usize % MAX_READY_SLOTS]
    }

    /// Appends a slot; returns false if the queue is full. Under the pool's lock.
    pub(crate) fn push(&self, number: u32) -> bool {
        let count = self.count.load(Relaxed);
        if count as usize == MAX_READY_SLOTS {
            return false;
        }
        self.place(count).store(number, Relaxed);
        self.count.store(count + 1, Relaxed);
        true
    }

    /// Number of slots in the queue. Under the pool's lock.
    pub(crate) fn count(&self) -> u32 {
        self.count.load(Relaxed)
    }

    /// Takes the first. Under the pool's lock.
    pub(crate) fn pop(&self) -> Option<u32> {
        let left = self.count.load(Relaxed).checked_sub(1)?;
        let number = self.place(0).load(Relaxed);
        self.first.store(self.first.load(Relaxed).wrapping_add(1), Relaxed);
        self.count.store(left, Relaxed);
        Some(number)
    }
}
