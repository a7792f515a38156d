//! Pointer chases: a ring of pointers in memory, each of which holds the address of the next. Each
//! load needs the result of the load before, so a step takes one memory latency.

use std::hint::black_box;
use std::marker::PhantomData;
use std::ptr::NonNull;

use pagewise_sys::region::AlignedRegion;

/// An element of the ring: the address of the next element.
#[derive(Clone, Copy, Debug)]
#[repr(transparent)]
struct RingPlace(NonNull<RingPlace>);

/// A ring of pointers in a region.
#[derive(Debug)]
pub struct RingChase<'r> {
    /// The current element. `link` wrote it and every element that it leads to.
    at: NonNull<RingPlace>,
    region: PhantomData<&'r mut AlignedRegion>,
}

impl<'r> RingChase<'r> {
    /// Size of an element in bytes, which is also the smallest distance between two of them.
    pub const PLACE: usize = size_of::<RingPlace>();

    /// Links the elements at these byte offsets in the given order; the last is linked to the
    /// first. `None` for an empty list.
    ///
    /// # Panics
    /// Panics if an offset is outside of the region, or not a multiple of [`RingChase::PLACE`].
    pub fn link(region: &'r mut AlignedRegion, places: &[usize]) -> Option<RingChase<'r>> {
        let bytes = region.bytes();
        let length = bytes.len();
        let start = NonNull::from(bytes).cast::<RingPlace>();
        let place = |offset: usize| {
            assert!(
                offset.is_multiple_of(Self::PLACE)
                    && offset.checked_add(Self::PLACE).is_some_and(|end| end <= length),
                "{offset} is no place"
            );
            // SAFETY: the whole element lies in the region, as was just checked.
            unsafe { start.byte_add(offset) }
        };
        let first = place(*places.first()?);
        let next = places[1..].iter().chain(&places[..1]);
        for (at, next) in places.iter().zip(next) {
            // SAFETY: the element lies in the region, which is mapped, aligned to pages, and
            // borrowed exclusively.
            unsafe { place(*at).write(RingPlace(place(*next))) };
        }
        Some(RingChase { at: first, region: PhantomData })
    }

    /// Follows `steps` links, rounded up to a multiple of 8.
    #[inline(never)]
    pub fn walk(&mut self, steps: usize) {
        let mut at = self.at;
        for _ in 0..steps.div_ceil(8) {
            at = follow(follow(follow(follow(follow(follow(follow(follow(at))))))));
        }
        self.at = black_box(at);
    }
}

/// Loads the next address. [`RingChase::link`] wrote the element `at`.
#[inline(always)]
fn follow(at: NonNull<RingPlace>) -> NonNull<RingPlace> {
    // SAFETY: `link` wrote every element of the ring, and no other code writes to the region.
    unsafe { at.read() }.0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_chase_goes_round_and_round() {
        let mut region = AlignedRegion::map(1 << 12, 1 << 12).unwrap();
        let start = usize::try_from(region.start()).unwrap();
        let places = [0, 512, 64, 4088];
        let mut chase = RingChase::link(&mut region, &places).unwrap();
        assert_eq!(follow(chase.at).addr().get() - start, 512);
        assert_eq!(follow(follow(follow(chase.at))).addr().get() - start, 4088);
        chase.walk(1);
        assert_eq!(chase.at.addr().get(), start, "eight steps are two rounds");
        assert!(RingChase::link(&mut region, &[]).is_none());
    }

    #[test]
    fn places_beyond_the_region_and_between_places_are_refused() {
        for offset in [1 << 12, 4092, usize::MAX & !7] {
            let linked = std::panic::catch_unwind(|| {
                let mut region = AlignedRegion::map(1 << 12, 1 << 12).unwrap();
                RingChase::link(&mut region, &[0, offset]).is_some()
            });
            assert!(linked.is_err(), "{offset}");
        }
    }
}
