//! Canary bytes in the unused part of an object's pages: written at the allocation, checked at the
//! free.
//!
//! Bytes near the object have values that programs rarely write; bytes further away are zeros.

/// Bytes on each side that are filled.
const NEAR: usize = 64;

/// Canary byte of an address: not a text character, not zero, and different from its neighbors.
fn filling(address: usize) -> u8 {
    (address as u8).wrapping_mul(0x9d) ^ 0xc3 | 0x80
}

fn near(from: usize, start: usize, end: usize, to: usize) -> [std::ops::Range<usize>; 2] {
    [from.max(start.saturating_sub(NEAR))..start, end..to.min(end + NEAR)]
}

/// Fills the bytes around the object from `start` to `end` in the accessible pages from `from` to
/// `to`.
pub(crate) fn fill(from: usize, start: usize, end: usize, to: usize) {
    for range in near(from, start, end, to) {
        for address in range {
            let byte: *mut u8 = std::ptr::with_exposed_provenance_mut(address);
            // SAFETY: the page is accessible, and not in use by another thread yet.
            unsafe { byte.write_volatile(filling(address)) };
        }
    }
}

/// Fills pages with zeros.
pub(crate) fn clear(from: usize, to: usize) {
    let bytes: *mut u8 = std::ptr::with_exposed_provenance_mut(from);
    // SAFETY: the pages are accessible, and not in use by another thread yet.
    unsafe { bytes.write_bytes(0, to - from) };
}

fn is_changed(address: usize) -> bool {
    let byte: *const u8 = std::ptr::with_exposed_provenance(address);
    // SAFETY: the caller has these pages, which are accessible.
    unsafe { byte.read_volatile() != filling(address) }
}

fn is_zero(from: usize, to: usize) -> bool {
    let bytes: *const u8 = std::ptr::with_exposed_provenance(from);
    // SAFETY: the caller owns these pages, which are accessible; a correct program does not write
    // to them.
    let bytes = unsafe { std::slice::from_raw_parts(bytes, to - from) };
    bytes.iter().fold(0, |all, byte| all | byte) == 0
}

/// The changed byte that is nearest to the object, behind it or before it.
pub(crate) fn broken(from: usize, start: usize, end: usize, to: usize) -> Option<usize> {
    let [mut before, mut behind] = near(from, start, end, to);
    let far_before = from..before.start;
    let far_behind = behind.end..to;
    let far = |range: std::ops::Range<usize>| !is_zero(range.start, range.end);
    behind
        .find(|&address| is_changed(address))
        .or_else(|| before.rfind(|&address| is_changed(address)))
        .or_else(|| {
            far(far_behind.clone())
                .then_some(far_behind)
                .and_then(|mut range| range.find(|&address| !is_zero(address, address + 1)))
        })
        .or_else(|| {
            far(far_before.clone())
                .then_some(far_before)
                .and_then(|mut range| range.rfind(|&address| !is_zero(address, address + 1)))
        })
}
