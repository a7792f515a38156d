//! The counters of Go's garbage collector in the variable `runtime.memstats`. The offsets differ
//! between versions of Go, so the array in front of the number of collections locates this number:
//!
//! ```text
//! pause_end [256]uint64   time of the end of each collection, in a ring
//! numgc     uint32        number of collections
//! ```

use pagewise_model::{AddrRange, Snapshot};

/// Maximum plausible size of `memstats` in bytes; it has 10 KiB in Go 1.26.
const MAX_BYTES: u64 = 128 << 10;
/// Number of elements of `pause_end`.
const RING: usize = 256;
/// Plausible times in nanoseconds since 1970: from the beginning of 2020 to the beginning of 2100.
const TIMES: std::ops::Range<u64> = 1_577_836_800_000_000_000..4_102_444_800_000_000_000;

/// True if the Go toolchain built a program or library that the process has mapped.
pub(super) fn is_program(snapshot: &Snapshot) -> bool {
    let sections = snapshot.objects.iter().filter_map(|object| object.elf.as_ref().ok());
    sections.flat_map(|elf| &elf.sections).any(|it| it.name.as_bytes() == b".gopclntab")
}

/// Returns the address range of `memstats`; `None` if its size is implausible.
pub(super) fn counters(address: u64, size: u64) -> Option<AddrRange> {
    let is_plausible = (RING as u64 * 8..=MAX_BYTES).contains(&size);
    let end = address.checked_add(size).filter(|_| is_plausible)?;
    Some(AddrRange { start: address, end })
}

/// Returns the number of collections since the start of the program. `None` if the bytes contain
/// plausible times, but not in a ring that matches the number of collections.
pub(super) fn collections(memstats: &[u8]) -> Option<u64> {
    let words: Vec<u64> =
        memstats.as_chunks().0.iter().map(|word| u64::from_le_bytes(*word)).collect();
    if !words.iter().any(|word| TIMES.contains(word)) {
        return Some(0);
    }
    words.windows(RING + 1).find_map(|window| {
        let (ring, behind) = (&window[..RING], window[RING]);
        let filled = ring.iter().take_while(|time| TIMES.contains(*time)).count();
        let is_ring = filled > 0 && ring[filled..].iter().all(|time| *time == 0);
        let count = behind & u64::from(u32::MAX);
        let fits = match filled {
            RING => count >= RING as u64,
            _ => count == filled as u64,
        };
        (is_ring && fits).then_some(count)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns synthetic bytes of `memstats` after this number of collections.
    fn memstats(collections: u64) -> Vec<u8> {
        let now = TIMES.start + 1_000_000_000;
        let in_ring = |at: u64| at < collections;
        let mut words = vec![7_u64; 100];
        words.push(if collections > 0 { now } else { 0 });
        words.extend((0..256).map(|at| if in_ring(at) { 50_000 + at } else { 0 }));
        words.extend((0..256).map(|at| if in_ring(at) { now + at } else { 0 }));
        words.extend([collections | 3 << 32, 0, 9]);
        words.iter().flat_map(|word| word.to_le_bytes()).collect()
    }

    #[test]
    fn collections_are_found_by_the_ring_of_their_times() {
        for count in [0, 1, 5, 255, 256, 100_000] {
            assert_eq!(collections(&memstats(count)), Some(count), "{count}");
        }
    }

    #[test]
    fn a_ring_that_contradicts_the_count_is_rejected() {
        let mut bytes = memstats(5);
        let end = bytes.len();
        bytes[end - 24] = 9;
        assert_eq!(collections(&bytes), None);
        assert_eq!(collections(&[]), Some(0));
    }
}
