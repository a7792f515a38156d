//! Anonymous memory of this process: aligned, with advice by `madvise`, and unmapped when dropped.

use std::io;
use std::ptr::{self, NonNull};
use std::slice;

use crate::madvise::{Advice, advise_own};

/// A private anonymous mapping that starts at a multiple of its alignment and is zero-filled at
/// first.
#[derive(Debug)]
pub struct AlignedRegion {
    mapping: NonNull<u8>,
    mapped: usize,
    offset: usize,
    length: usize,
}

impl AlignedRegion {
    /// Maps `length` bytes at a multiple of `alignment`. The kernel mapping is larger than
    /// `length`, so that it contains an aligned start.
    ///
    /// # Errors
    /// `EINVAL` if `length` is 0 or `alignment` is not a power of two; `ENOMEM`.
    pub fn map(length: usize, alignment: usize) -> io::Result<AlignedRegion> {
        let mapped = length.checked_add(alignment).filter(|_| length > 0);
        let Some(mapped) = mapped.filter(|_| alignment.is_power_of_two()) else {
            return Err(io::Error::from_raw_os_error(libc::EINVAL));
        };
        // SAFETY: the kernel chooses a free address, so the new mapping replaces no existing one.
        let start = unsafe {
            libc::mmap(
                ptr::null_mut(),
                mapped,
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_PRIVATE | libc::MAP_ANONYMOUS,
                -1,
                0,
            )
        };
        if start == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        let mapping = NonNull::new(start.cast::<u8>()).expect("the kernel maps nothing at 0");
        let offset = mapping.addr().get().wrapping_neg() & (alignment - 1);
        Ok(AlignedRegion { mapping, mapped, offset, length })
    }

    /// The first address.
    pub fn start(&self) -> u64 {
        (self.mapping.addr().get() + self.offset) as u64
    }

    /// Returns the bytes of the region for reading and writing.
    pub fn bytes(&mut self) -> &mut [u8] {
        // SAFETY: `offset + length` is at most `mapped`, since the offset is below the alignment.
        let start = unsafe { self.mapping.add(self.offset) };
        // SAFETY: the bytes are mapped for reading and writing until `self` is dropped, every bit
        // pattern is valid, and no other reference to the bytes exists.
        unsafe { slice::from_raw_parts_mut(start.as_ptr(), self.length) }
    }

    /// Returns the bytes of the region for reading.
    pub fn as_bytes(&self) -> &[u8] {
        // SAFETY: `offset + length` is at most `mapped`, since the offset is below the alignment.
        let start = unsafe { self.mapping.add(self.offset) };
        // SAFETY: the bytes are mapped for reading until `self` is dropped, and every bit pattern
        // is valid. The bytes do not change while the returned slice borrows `self`: all functions
        // that write to them take `&mut self`.
        unsafe { slice::from_raw_parts(start.as_ptr(), self.length) }
    }

    /// Gives the kernel advice on the whole region.
    ///
    /// # Errors
    /// `EINVAL` for advice that the kernel does not know; and other errors of `madvise`.
    pub fn advise(&mut self, advice: Advice) -> io::Result<()> {
        advise_own(self.bytes(), advice)
    }
}

// SAFETY: the value owns the mapping, which is bound to no thread.
unsafe impl Send for AlignedRegion {}
// SAFETY: through a shared reference the bytes can only be read.
unsafe impl Sync for AlignedRegion {}

impl Drop for AlignedRegion {
    fn drop(&mut self) {
        // SAFETY: this is the whole mapping, and nothing borrowed from it can outlive `self`.
        unsafe { libc::munmap(self.mapping.as_ptr().cast(), self.mapped) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_region_is_aligned_and_zero_and_takes_advice() {
        let mut region = AlignedRegion::map(3 << 12, 1 << 21).unwrap();
        assert_eq!(region.start() % (1 << 21), 0);
        assert_eq!(region.bytes().len(), 3 << 12);
        assert!(region.bytes().iter().all(|&byte| byte == 0));
        region.bytes().fill(7);
        region.advise(Advice::DontNeed).unwrap();
        assert!(region.bytes().iter().all(|&byte| byte == 0));
    }

    #[test]
    fn an_impossible_mapping_is_an_error() {
        for (length, alignment) in [(0, 1), (1, 3), (usize::MAX, 1 << 12)] {
            assert!(AlignedRegion::map(length, alignment).is_err(), "{length} {alignment}");
        }
    }
}
