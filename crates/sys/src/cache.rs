//! `clflush`: flushes memory from every cache of the CPU.

use std::io;

/// Writes back and invalidates the cache lines that contain `items`, in every cache level of every
/// CPU. `line` is the size of a cache line in bytes.
///
/// # Errors
/// `Unsupported` on other CPUs than x86; `InvalidInput` if `line` is 0.
pub fn flush<T>(items: &[T], line: usize) -> io::Result<()> {
    if line == 0 {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    flush_lines(items, line)
}

#[cfg(target_arch = "x86_64")]
fn flush_lines<T>(items: &[T], line: usize) -> io::Result<()> {
    use std::arch::x86_64::{_mm_clflush, _mm_mfence};

    let start = items.as_ptr().cast::<u8>();
    let bytes = size_of_val(items);
    // The last byte is flushed too: the last cache line of the slice may contain no offset that is
    // a multiple of `line`.
    for byte in (0..bytes).step_by(line).chain(bytes.checked_sub(1)) {
        // SAFETY: every x86-64 CPU has the instruction, the address is inside the borrowed slice,
        // and the instruction changes no value.
        unsafe { _mm_clflush(start.wrapping_add(byte)) };
    }
    // SAFETY: every x86-64 CPU has the instruction, which accesses no memory: it waits until the
    // lines are flushed.
    unsafe { _mm_mfence() };
    Ok(())
}

#[cfg(not(target_arch = "x86_64"))]
fn flush_lines<T>(_: &[T], _: usize) -> io::Result<()> {
    Err(io::ErrorKind::Unsupported.into())
}

#[cfg(test)]
mod tests {
    use std::hint::black_box;
    use std::time::{Duration, Instant};

    use pagewise_skip::{Lack, skip};

    use super::*;

    const LINE: usize = 64;

    /// Time to read each line once, one after another.
    fn time_to_read(bytes: &[u8]) -> Duration {
        let begin = Instant::now();
        let mut at = 0;
        while at < bytes.len() {
            // The next address depends on the byte that was read, so that reads do not overlap.
            at += LINE + usize::from(black_box(bytes[at]));
        }
        begin.elapsed()
    }

    #[test]
    #[cfg(target_arch = "x86_64")]
    fn flushed_lines_are_slower_to_read_than_cached_ones() {
        if crate::cpuid::is_emulated() {
            return skip(&Lack::Machine("QEMU emulates this CPU, and no caches"));
        }
        let bytes = vec![0; 16 << 10];
        // The measurements are interleaved, so that both minima are of the same CPU frequency.
        let rounds = (0..50).map(|_| {
            let cached = time_to_read(&bytes);
            flush(&bytes, LINE).unwrap();
            (cached, time_to_read(&bytes))
        });
        let (cached, flushed): (Vec<Duration>, Vec<Duration>) = rounds.unzip();
        assert!(flushed.iter().min() > cached.iter().min(), "{flushed:?} and {cached:?} cached");
    }

    #[test]
    fn empty_input_and_empty_lines_are_handled() {
        assert_eq!(flush::<u8>(&[], LINE).is_ok(), cfg!(target_arch = "x86_64"));
        assert_eq!(flush(&[1], 0).unwrap_err().kind(), io::ErrorKind::InvalidInput);
    }
}
