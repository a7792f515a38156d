//! An address space that calls change: the mapped ranges, their names and their total size.

use std::collections::BTreeMap;

use pagewise_model::{AddrRange, Bytes, Name};

/// Mapped ranges. Requires that each range consists of whole pages.
#[derive(Clone, Debug, Default)]
pub(super) struct AddressSpace {
    /// Mapped ranges by their first address; they do not overlap.
    pieces: BTreeMap<u64, SpacePiece>,
    total: u64,
    claims: Vec<RangeClaim>,
    /// The program break; `None` if it is unknown.
    pub(super) brk: Option<u64>,
}

#[derive(Clone, Debug)]
struct SpacePiece {
    end: u64,
    name: Name,
}

/// A range that the kernel returned for a new mapping, although [`AddressSpace`] still contains an
/// older mapping of the range. A call of another thread has unmapped the older mapping, but the
/// return of that call is not recorded yet. When the return is recorded, the replay must not remove
/// the new mapping.
#[derive(Clone, Copy, Debug)]
struct RangeClaim {
    range: AddrRange,
    time_ns: u64,
}

impl AddressSpace {
    /// Returns the copy that `fork` creates. The total size excludes ranges that other threads have
    /// already unmapped. The copy has no claims, because it has only the forking thread.
    pub(super) fn fork(&self) -> AddressSpace {
        let gone: Bytes = self.claims.iter().map(|claim| claim.range.len()).sum();
        let total = self.total.saturating_sub(gone.0);
        AddressSpace { total, claims: Vec::new(), pieces: self.pieces.clone(), brk: self.brk }
    }

    /// Number of mapped bytes (VIRT).
    pub(super) fn size(&self) -> u64 {
        self.total
    }

    /// The name of the mapping at an address.
    pub(super) fn name_at(&self, address: u64) -> Option<&Name> {
        let (_, piece) = self.pieces.range(..=address).next_back()?;
        (address < piece.end).then_some(&piece.name)
    }

    /// Maps a range in place of any existing mappings.
    pub(super) fn replace(&mut self, range: AddrRange, name: &Name) {
        self.remove_range(range);
        self.insert(range, name.clone());
    }

    /// Maps a range that the kernel found free at `time_ns`; see [`RangeClaim`].
    pub(super) fn place(&mut self, range: AddrRange, name: &Name, time_ns: u64) {
        for (range, _) in self.remove_range(range) {
            self.total = self.total.saturating_add(range.len().0);
            self.claims.push(RangeClaim { range, time_ns });
        }
        self.insert(range, name.clone());
    }

    /// Unmaps a range by a call that began at `began_ns`. Returns the removed pieces.
    pub(super) fn remove(&mut self, range: AddrRange, began_ns: u64) -> Vec<(AddrRange, Name)> {
        let mut taken = Vec::new();
        for free in self.settle(range, began_ns) {
            taken.extend(self.remove_range(free));
        }
        taken
    }

    /// Returns the pieces of mapped ranges that are in a range.
    pub(super) fn pieces_in(&self, range: AddrRange) -> Vec<(AddrRange, Name)> {
        let first = self.pieces.range(..=range.start).next_back().map_or(0, |(&start, _)| start);
        let overlapping = self.pieces.range(first..range.end.max(first));
        let cut = overlapping.filter_map(|(&start, piece)| {
            let whole = AddrRange { start, end: piece.end };
            whole.intersection(range).map(|part| (part, piece.name.clone()))
        });
        cut.collect()
    }

    /// Removes the claims on a range that a call has unmapped: at each address, the oldest claim. A
    /// claim from before `began_ns`, the start of the call, belongs to a different call. Returns
    /// the parts of the range in which no claim was removed.
    fn settle(&mut self, range: AddrRange, began_ns: u64) -> Vec<AddrRange> {
        let mut free = vec![range];
        let mut left = Vec::new();
        for claim in std::mem::take(&mut self.claims) {
            let mut unsettled = vec![claim.range];
            if claim.time_ns >= began_ns {
                for part in free.iter().filter_map(|part| part.intersection(claim.range)) {
                    self.total = self.total.saturating_sub(part.len().0);
                    unsettled = without_each(unsettled, part);
                }
                free = without_each(free, claim.range);
            }
            left.extend(unsettled.into_iter().map(|range| RangeClaim { range, ..claim }));
        }
        self.claims = left;
        free
    }

    fn insert(&mut self, range: AddrRange, name: Name) {
        if !range.is_empty() {
            self.total = self.total.saturating_add(range.len().0);
            self.pieces.insert(range.start, SpacePiece { end: range.end, name });
        }
    }

    /// Removes all mappings in a range, and splits mappings at the ends of the range.
    fn remove_range(&mut self, range: AddrRange) -> Vec<(AddrRange, Name)> {
        let taken = self.pieces_in(range);
        for (part, name) in &taken {
            let Some((start, piece)) = self.remove_piece_at(part.start) else { continue };
            self.total = self.total.saturating_sub(piece.end - start);
            for rest in without(AddrRange { start, end: piece.end }, *part) {
                self.insert(rest, name.clone());
            }
        }
        taken
    }

    fn remove_piece_at(&mut self, address: u64) -> Option<(u64, SpacePiece)> {
        let (&start, _) = self.pieces.range(..=address).next_back()?;
        self.pieces.remove(&start).map(|piece| (start, piece))
    }
}

/// Returns the parts of `whole` that are not in `part`.
fn without(whole: AddrRange, part: AddrRange) -> impl Iterator<Item = AddrRange> {
    let before = AddrRange { start: whole.start, end: whole.end.min(part.start) };
    let after = AddrRange { start: whole.start.max(part.end), end: whole.end };
    [before, after].into_iter().filter(|range| !range.is_empty())
}

fn without_each(ranges: Vec<AddrRange>, part: AddrRange) -> Vec<AddrRange> {
    ranges.into_iter().flat_map(|range| without(range, part)).collect()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn range(start: usize, len: usize) -> AddrRange {
        AddrRange { start: start as u64, end: (start + len) as u64 }
    }

    /// Returns a start page, a number of pages, and a name to map them, or `None` to unmap them.
    fn act() -> impl Strategy<Value = (usize, usize, Option<u8>)> {
        (0..64_usize, 0..20_usize, any::<Option<u8>>())
    }

    proptest! {
        #[test]
        fn a_space_agrees_with_an_array_of_pages(acts in proptest::collection::vec(act(), 0..60)) {
            let mut space = AddressSpace::default();
            let mut pages = [None; 100];
            for (at, len, name) in acts {
                let there = pages[at..at + len].iter().flatten().count();
                match name {
                    Some(name) => space.replace(range(at, len), &Name::new(&[name])),
                    None => {
                        let taken = space.remove(range(at, len), 0);
                        let taken: u64 = taken.iter().map(|(part, _)| part.len().0).sum();
                        prop_assert_eq!(taken, there as u64);
                    }
                }
                pages[at..at + len].fill(name);
                prop_assert_eq!(space.size(), pages.iter().flatten().count() as u64);
                for (address, page) in pages.iter().enumerate() {
                    let name = space.name_at(address as u64).map(|name| name.as_bytes()[0]);
                    prop_assert_eq!(name, *page);
                }
            }
        }
    }

    #[test]
    fn an_address_reused_before_its_unmapping_was_seen_stays_mapped() {
        let mut space = AddressSpace::default();
        space.replace(range(0, 10), &"old".into());
        // A munmap of 2..8 by another thread began at time 5. The kernel has executed it, but its
        // return is not recorded yet.
        space.place(range(4, 3), &"new".into(), 7);
        assert_eq!((space.size(), space.fork().size()), (13, 10));
        space.remove(range(2, 6), 5);
        assert_eq!(space.size(), 7);
        assert_eq!(space.name_at(4), Some(&"new".into()));
        assert_eq!(space.name_at(3), None);
        // A munmap that begins later than the claim removes the new mapping.
        space.remove(range(4, 3), 9);
        assert_eq!((space.size(), space.name_at(5)), (4, None));
    }

    /// A call of a thread: the time at which it begins, and the time at which its return is
    /// recorded.
    #[derive(Clone, Copy, Debug)]
    struct TimedCall {
        range: AddrRange,
        maps: bool,
        began: u64,
        seen: u64,
    }

    /// Simulates threads that map pages at free addresses of the kernel's choice, and that unmap
    /// ranges whose mapping is recorded. Each entry of `choices` selects a step of a thread, and
    /// its index is the time of the step.
    fn threads(choices: &[(usize, bool)]) -> (Vec<TimedCall>, [bool; 8]) {
        #[derive(Clone, Copy)]
        enum ThreadCallState {
            Idle,
            Begun(u64, Option<AddrRange>),
            Done(TimedCall),
        }
        let mut states = [ThreadCallState::Idle; 4];
        let mut pages = [false; 8];
        let mut mapped: Vec<AddrRange> = Vec::new();
        let mut done = Vec::new();
        for (time, &(thread, maps)) in (0..).zip(choices) {
            states[thread] = match states[thread] {
                ThreadCallState::Idle if maps || mapped.is_empty() => {
                    ThreadCallState::Begun(time, None)
                }
                ThreadCallState::Idle => ThreadCallState::Begun(time, Some(mapped.remove(0))),
                ThreadCallState::Begun(began, Some(range)) => {
                    pages[usize::try_from(range.start).unwrap()] = false;
                    ThreadCallState::Done(TimedCall { range, maps: false, began, seen: 0 })
                }
                ThreadCallState::Begun(began, None) => {
                    match pages.iter().position(|taken| !taken) {
                        None => ThreadCallState::Idle,
                        Some(free) => {
                            pages[free] = true;
                            ThreadCallState::Done(TimedCall {
                                range: range(free, 1),
                                maps: true,
                                began,
                                seen: 0,
                            })
                        }
                    }
                }
                ThreadCallState::Done(call) => {
                    done.push(TimedCall { seen: time, ..call });
                    mapped.extend(call.maps.then_some(call.range));
                    ThreadCallState::Idle
                }
            };
        }
        // The returns of calls that the kernel has executed are recorded at the end.
        let rest = states.into_iter().filter_map(|state| match state {
            ThreadCallState::Done(call) => Some(TimedCall { seen: u64::MAX, ..call }),
            ThreadCallState::Idle | ThreadCallState::Begun(..) => None,
        });
        done.extend(rest);
        (done, pages)
    }

    proptest! {
        #[test]
        fn calls_recorded_in_another_order_than_executed_add_up(
            choices in proptest::collection::vec((0..4_usize, any::<bool>()), 0..300)
        ) {
            let (calls, pages) = threads(&choices);
            let mut space = AddressSpace::default();
            for call in calls {
                if call.maps {
                    space.place(call.range, &"".into(), call.seen);
                } else {
                    space.remove(call.range, call.began);
                }
            }
            prop_assert_eq!(space.size(), pages.iter().filter(|taken| **taken).count() as u64);
            for (address, taken) in pages.iter().enumerate() {
                prop_assert_eq!(space.name_at(address as u64).is_some(), *taken);
            }
        }
    }

    #[test]
    fn ranges_at_the_end_of_the_address_space_do_not_overflow() {
        let mut space = AddressSpace::default();
        space.replace(AddrRange { start: 9, end: u64::MAX }, &"".into());
        space.remove(AddrRange { start: 20, end: 10 }, 0);
        space.place(AddrRange { start: 0, end: u64::MAX }, &"".into(), 0);
        space.place(AddrRange { start: 0, end: u64::MAX }, &"".into(), 0);
        space.remove(AddrRange { start: 0, end: u64::MAX }, 0);
        assert_eq!(space.name_at(u64::MAX - 1), Some(&"".into()));
    }
}
