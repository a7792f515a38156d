//! Pages that are moved with their contents from one slot to another in one system call
//! (`UFFDIO_MOVE`, Linux 6.8). A slot is the address range for one guarded object
//! ([`super::pool`]).
//!
//! A `userfaultfd` makes the kernel raise `SIGBUS` at accesses to missing pages of a range, instead
//! of mapping zero pages. So a slot without a page is inaccessible without a guard marker, and
//! moving a page from the slot of a freed object to the slot of the next object changes the access
//! to both in one call.
//!
//! The file descriptor of the `userfaultfd` has a high number, because programs rely on the numbers
//! of their own descriptors, which are low. The collector holds a duplicate: if a program closed
//! the last descriptor of the `userfaultfd`, the range would become accessible. After a program has
//! closed the descriptor of its own process, no more pages can be moved. A child of `fork` inherits
//! the descriptor, which still controls the memory of the parent. Therefore the descriptor's number
//! is in memory that is zero-filled in a child.

use std::sync::atomic::{AtomicPtr, AtomicU32, Ordering::Relaxed};

use super::{pool::page, tell};
use crate::kernel::{self, Errno, OwnedFile};

/// Lowest number of the descriptor if the limit of descriptors permits it. Otherwise the number is
/// one of the last [`LEFT`] numbers below the limit.
const NUMBERS: usize = 1000;
const LEFT: usize = 24;

/// The descriptor's number plus 1, in memory that is zero-filled in a child of `fork`. A child
/// finds the parent's value in [`INHERITED`].
static NUMBER: AtomicPtr<AtomicU32> = AtomicPtr::new(std::ptr::null_mut());
static INHERITED: AtomicU32 = AtomicU32::new(0);
/// A zero-filled page, from which new pages are copied.
static ZEROS: AtomicPtr<u8> = AtomicPtr::new(std::ptr::null_mut());
/// 1 if pages can no longer be moved.
static IS_OVER: AtomicU32 = AtomicU32::new(0);

/// Prepares to move pages. Returns `None` if the kernel lacks the feature or refuses it.
pub(crate) fn begin() -> Option<()> {
    ZEROS.store(kernel::private(page()).ok()?, Relaxed);
    NUMBER.store(kernel::memory(size_of::<AtomicU32>()).ok()?.cast(), Relaxed);
    open()
}

fn number() -> Option<&'static AtomicU32> {
    // SAFETY: the pointer is null or refers to an `AtomicU32`, whose memory is unmapped only when
    // no thread is in the recorder.
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

/// Sends the descriptor to the collector, which keeps a duplicate open.
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

/// True if pages can still be moved.
pub(crate) fn can() -> bool {
    IS_OVER.load(Relaxed) == 0 && number().is_some_and(|number| number.load(Relaxed) != 0)
}

/// Replaces the inherited descriptor in a child of `fork`. The caller must register the child's
/// memory by [`add`].
pub(crate) fn forked() -> Option<()> {
    if let Some(inherited) = INHERITED.swap(0, Relaxed).checked_sub(1) {
        let file = OwnedFile::kept(inherited.cast_signed());
        // The program may have closed the descriptor, and another file may have the number now.
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
/// The pages must belong to the guard.
pub(crate) unsafe fn add(at: usize, length: usize) -> Option<()> {
    // SAFETY: the caller passes pages of the guard.
    unsafe { file()?.refuse_missing(at, length) }.ok().map(drop)
}

/// True if a call succeeded. After an error that will recur, no more pages are moved.
fn done(result: Result<usize, Errno>) -> bool {
    if let Err(Errno(libc::EBADF | libc::ENOTTY | libc::ENOENT | libc::EINVAL | libc::EPERM)) =
        result
    {
        end();
    }
    result.is_ok()
}

/// Maps a zero-filled page at an address without a page. Returns true if a page is there
/// afterwards.
///
/// # Safety
/// The page must belong to the guard.
pub(crate) unsafe fn put(to: usize) -> bool {
    let Some(file) = file() else { return false };
    let zeros = ZEROS.load(Relaxed).addr();
    // SAFETY: the caller passes the address of a page of the guard; `zeros` is a page that is only
    // read.
    let put = unsafe { file.put_page(zeros, to, page()) };
    put == Err(Errno(libc::EEXIST)) || done(put)
}

/// Moves a page to an address without a page. Returns true on success.
///
/// # Safety
/// Both pages must belong to the guard, and no thread may access the first page from now on.
pub(crate) unsafe fn go(from: usize, to: usize) -> bool {
    let Some(file) = file() else { return false };
    // SAFETY: the caller passes pages of the guard, and guarantees that no thread accesses the
    // first page.
    let moved = unsafe { file.move_page(from, to, page()) };
    // Pages that are shared with a child of `fork` cannot be moved; that is not a lasting error.
    moved.is_ok()
}

/// Queue of slots that already have a page for the next object, in order of use.
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

    /// Appends a slot; returns false if the queue is full. Requires the lock of the pool.
    pub(crate) fn push(&self, number: u32) -> bool {
        let count = self.count.load(Relaxed);
        if count as usize == MAX_READY_SLOTS {
            return false;
        }
        self.place(count).store(number, Relaxed);
        self.count.store(count + 1, Relaxed);
        true
    }

    /// Number of slots in the queue. Requires the lock of the pool.
    pub(crate) fn count(&self) -> u32 {
        self.count.load(Relaxed)
    }

    /// Removes and returns the first slot. Requires the lock of the pool.
    pub(crate) fn pop(&self) -> Option<u32> {
        let left = self.count.load(Relaxed).checked_sub(1)?;
        let number = self.place(0).load(Relaxed);
        self.first.store(self.first.load(Relaxed).wrapping_add(1), Relaxed);
        self.count.store(left, Relaxed);
        Some(number)
    }
}
