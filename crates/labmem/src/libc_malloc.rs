//! The C library's heap as C programs use it: `malloc`, `calloc`, `free`, `mallopt`. For
//! experiments on the memory that it takes from the kernel and returns to it.

use std::hint::black_box;
use std::io;
use std::ops::Range;
use std::ptr::NonNull;

/// A block of the heap. It is freed when dropped.
#[derive(Debug)]
pub struct HeapBlock {
    start: NonNull<u8>,
    length: usize,
}

// SAFETY: any thread may free a block, and a `HeapBlock` is the only owner of its memory.
unsafe impl Send for HeapBlock {}

impl HeapBlock {
    /// Allocates a block with undefined content.
    ///
    /// # Errors
    /// `ENOMEM`.
    pub fn malloc(length: usize) -> io::Result<HeapBlock> {
        // SAFETY: the call takes a number.
        HeapBlock::from_allocation(unsafe { libc::malloc(length) }, length)
    }

    /// Allocates a zero-filled block.
    ///
    /// # Errors
    /// `ENOMEM`.
    pub fn calloc(length: usize) -> io::Result<HeapBlock> {
        // SAFETY: the call takes numbers.
        HeapBlock::from_allocation(unsafe { libc::calloc(1, length) }, length)
    }

    fn from_allocation(start: *mut libc::c_void, length: usize) -> io::Result<HeapBlock> {
        // The compiler would remove an unobserved allocation.
        let start = NonNull::new(black_box(start).cast()).ok_or_else(io::Error::last_os_error)?;
        Ok(HeapBlock { start, length })
    }

    /// Requested size in bytes.
    #[expect(clippy::len_without_is_empty, reason = "nobody asks for nothing")]
    pub fn len(&self) -> usize {
        self.length
    }

    /// Writes a byte.
    ///
    /// # Panics
    /// Panics if the offset is beyond the end.
    #[inline(always)]
    pub fn write(&mut self, at: usize, byte: u8) {
        assert!(at < self.length, "{at} is beyond the block");
        // SAFETY: `at` is below the size of the block, as was just checked.
        let place = unsafe { self.start.add(at) };
        // SAFETY: the block is ours alone, and any byte may be written. Volatile, so that it is
        // written.
        unsafe { place.write_volatile(byte) };
    }

    /// Writes 1 to every `step`-th byte.
    pub fn touch(&mut self, step: usize) {
        (0..self.length).step_by(step).for_each(|at| self.write(at, 1));
    }

    /// Fills a part, as `memset` does.
    ///
    /// # Panics
    /// Panics if the part ends beyond the block.
    pub fn fill(&mut self, part: Range<usize>, byte: u8) {
        assert!(part.start <= part.end && part.end <= self.length, "{part:?} is beyond the block");
        // SAFETY: `part.start` is at most the size of the block, as was just checked.
        let start = unsafe { self.start.add(part.start) };
        // SAFETY: the part ends inside the block, as was checked above; the block has no other
        // owner.
        unsafe { start.write_bytes(byte, part.len()) };
        black_box(&self.start);
    }
}

impl Drop for HeapBlock {
    fn drop(&mut self) {
        // SAFETY: it came from `malloc` or `calloc`, and nothing borrowed from it can outlive
        // `self`.
        unsafe { libc::free(self.start.as_ptr().cast()) };
    }
}

/// Parameter of `mallopt`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Tuning {
    /// `M_TRIM_THRESHOLD`: free bytes at the end of the heap above which `free` trims it; -1:
    /// never.
    TrimThreshold,
    /// `M_MMAP_MAX`: maximum number of blocks that are mappings of their own.
    MmapMax,
    /// `M_MMAP_THRESHOLD`: size in bytes from which a block is a mapping of its own.
    MmapThreshold,
}

/// Sets a parameter of the heap for the rest of this process.
///
/// # Errors
/// `Unsupported` if the C library is not glibc, `InvalidInput` if glibc rejects the value.
pub fn tune(what: Tuning, value: i32) -> io::Result<()> {
    mallopt(what, value)
}

#[cfg(target_env = "gnu")]
fn mallopt(what: Tuning, value: i32) -> io::Result<()> {
    let what = match what {
        Tuning::TrimThreshold => libc::M_TRIM_THRESHOLD,
        Tuning::MmapMax => libc::M_MMAP_MAX,
        Tuning::MmapThreshold => libc::M_MMAP_THRESHOLD,
    };
    // SAFETY: the call takes numbers; existing blocks do not change.
    let done = unsafe { libc::mallopt(what, value) };
    if done == 1 { Ok(()) } else { Err(io::ErrorKind::InvalidInput.into()) }
}

#[cfg(not(target_env = "gnu"))]
fn mallopt(_: Tuning, _: i32) -> io::Result<()> {
    Err(io::ErrorKind::Unsupported.into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_are_written_and_as_large_as_asked() {
        let mut block = HeapBlock::calloc(100).unwrap();
        block.touch(10);
        block.write(99, 7);
        block.fill(0..100, 0);
        assert_eq!((block.len(), HeapBlock::malloc(1).unwrap().len()), (100, 1));
        assert_eq!(HeapBlock::malloc(usize::MAX).unwrap_err().raw_os_error(), Some(libc::ENOMEM));
    }

    #[test]
    fn writes_beyond_the_end_panic() {
        let refused = |write: fn(&mut HeapBlock)| {
            std::panic::catch_unwind(|| write(&mut HeapBlock::malloc(8).unwrap())).is_err()
        };
        assert!(refused(|block| block.write(8, 0)));
        assert!(refused(|block| block.fill(7..9, 0)));
    }

    #[test]
    #[cfg(target_env = "gnu")]
    fn glibc_accepts_each_parameter() {
        let tuned = [(Tuning::TrimThreshold, -1), (Tuning::MmapMax, 0), (Tuning::MmapThreshold, 1)];
        tuned.into_iter().for_each(|(what, value)| tune(what, value).unwrap());
    }
}
