//! The C library's heap as C programs use it: `malloc`, `calloc`, `free`, `mallopt`. For
//! experiments on where it gets memory, and when it gives it back.

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

// SAFETY: the heap takes blocks back from any thread, and whoever has one has it alone.
unsafe impl Send for HeapBlock {}

impl HeapBlock {
    /// Memory that holds anything.
    ///
    /// # Errors
    /// `ENOMEM`.
    pub fn malloc(length: usize) -> io::Result<HeapBlock> {
        // SAFETY: the call takes a number.
        HeapBlock::from_allocation(unsafe { libc::malloc(length) }, length)
    }

    /// Memory that is zero.
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

    /// Its bytes, as they were asked for.
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

    /// Writes a byte in each step.
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
        // SAFETY: the part ends inside the block, as this line checks; the block is ours alone.
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
    /// `M_TRIM_THRESHOLD`: how many free bytes at the end of the heap stay there. -1: all.
    TrimThreshold,
    /// `M_MMAP_MAX`: how many blocks may be mappings of their own.
    MmapMax,
    /// `M_MMAP_THRESHOLD`: from how many bytes on a block is one.
    MmapThreshold,
}

/// Changes how the heap gets memory and gives it back, for the rest of this process.
///
/// # Errors
/// `Unsupported` where the C library is not glibc, `InvalidInput` where it does not take the value.
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
    // SAFETY: the call takes numbers; blocks that there are stay as they are.
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
    fn nobody_writes_beyond_the_end() {
        let refused = |write: fn(&mut HeapBlock)| {
            std::panic::catch_unwind(|| write(&mut HeapBlock::malloc(8).unwrap())).is_err()
        };
        assert!(refused(|block| block.write(8, 0)));
        assert!(refused(|block| block.fill(7..9, 0)));
    }

    #[test]
    #[cfg(target_env = "gnu")]
    fn glibc_takes_what_is_tuned() {
        let tuned = [(Tuning::TrimThreshold, -1), (Tuning::MmapMax, 0), (Tuning::MmapThreshold, 1)];
        tuned.into_iter().for_each(|(what, value)| tune(what, value).unwrap());
    }
}
