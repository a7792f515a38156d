//! Pointer chases: places in memory that hold each other's addresses in a ring. The next address is known only when the last
//! one has come, so that a step takes as long as memory takes to answer.

use std::hint::black_box;
use std::marker::PhantomData;
use std::ptr::NonNull;

use crate::region::Region;

/// A place: it holds the address of the next.
#[derive(Clone, Copy, Debug)]
#[repr(transparent)]
struct Place(NonNull<Place>);

/// A ring of places in a region.
#[derive(Debug)]
pub struct Chase<'r> {
    /// It and all that it leads to were linked.
    at: NonNull<Place>,
    region: PhantomData<&'r mut Region>,
}

impl<'r> Chase<'r> {
    /// Bytes of a place: so far are places apart at least.
    pub const PLACE: usize = size_of::<Place>();

    /// Links places, by their offsets, in this order; from the last it goes on to the first. `None` where there is none.
    ///
    /// # Panics
    /// Where one lies beyond the region, or not at a multiple of [`Chase::PLACE`].
    pub fn link(region: &'r mut Region, places: &[usize]) -> Option<Chase<'r>> {
        let bytes = region.bytes();
        let length = bytes.len();
        let start = NonNull::from(bytes).cast::<Place>();
        let place = |offset: usize| {
            assert!(
                offset.is_multiple_of(Self::PLACE)
                    && offset.checked_add(Self::PLACE).is_some_and(|end| end <= length),
                "{offset} is no place"
            );
            // SAFETY: it lies in the region with all of its bytes, as was just checked.
            unsafe { start.byte_add(offset) }
        };
        let first = place(*places.first()?);
        let next = places[1..].iter().chain(&places[..1]);
        for (at, next) in places.iter().zip(next) {
            // SAFETY: the place lies in the region, which is mapped, aligned to pages, and borrowed for us alone.
            unsafe { place(*at).write(Place(place(*next))) };
        }
        Some(Chase { at: first, region: PhantomData })
    }

    /// Goes on by so many steps, rounded up to a multiple of 8.
    #[inline(never)]
    pub fn walk(&mut self, steps: usize) {
        let mut at = self.at;
        for _ in 0..steps.div_ceil(8) {
            at = follow(follow(follow(follow(follow(follow(follow(follow(at))))))));
        }
        self.at = black_box(at);
    }
}

/// `at` comes from [`Chase::link`].
#[inline(always)]
fn follow(at: NonNull<Place>) -> NonNull<Place> {
    // SAFETY: every place that a linked place leads to was linked, and nobody else writes to the region.
    unsafe { at.read() }.0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_chase_goes_round_and_round() {
        let mut region = Region::map(1 << 12, 1 << 12).unwrap();
        let start = usize::try_from(region.start()).unwrap();
        let places = [0, 512, 64, 4088];
        let mut chase = Chase::link(&mut region, &places).unwrap();
        assert_eq!(follow(chase.at).addr().get() - start, 512);
        assert_eq!(follow(follow(follow(chase.at))).addr().get() - start, 4088);
        chase.walk(1);
        assert_eq!(chase.at.addr().get(), start, "eight steps are two rounds");
        assert!(Chase::link(&mut region, &[]).is_none());
    }

    #[test]
    fn places_beyond_the_region_and_between_places_are_refused() {
        for offset in [1 << 12, 4092, usize::MAX & !7] {
            let linked = std::panic::catch_unwind(|| {
                let mut region = Region::map(1 << 12, 1 << 12).unwrap();
                Chase::link(&mut region, &[0, offset]).is_some()
            });
            assert!(linked.is_err(), "{offset}");
        }
    }
}
