//! The mappings in which there were faults, each with a number.
//!
//! A file has one number wherever it is mapped. The bounds of a mapping without a file can change
//! while the program runs, because the kernel merges neighbors. So mappings of one program that
//! touch or overlap have one number.

use std::collections::{BTreeMap, HashMap};

use pagewise_model::bounds::OTHER_MAPPINGS;
use pagewise_model::faults::FaultMapping;
use pagewise_model::mapping::{AddrRange, Device, Mapping, Quadrant, Sharing};
use pagewise_model::{Absent, Name, Pid, Prot};

use crate::spaces::SpaceRegion;

/// Name and inode of a file, and true for a shared mapping.
type FaultFile = (Name, u64, bool);

#[derive(Debug)]
pub(super) struct Mappings {
    list: Vec<FaultMapping>,
    /// For each number: the number that it was merged into, or the number itself.
    merged: Vec<u32>,
    files: HashMap<FaultFile, (u32, u32)>,
    /// End and number of each range, by program, name and start.
    hulls: BTreeMap<(u32, Name, u64), (u64, u32)>,
    /// End, inode and number of the mapping that was found last, by program and start.
    known: HashMap<(u32, u64), (u64, u64, u32)>,
    nowhere: Option<u32>,
}

/// Number of mappings that are remembered by their start address.
const KEPT: usize = 1 << 16;

impl Mappings {
    pub(super) fn new() -> Mappings {
        Mappings {
            list: Vec::new(),
            merged: Vec::new(),
            files: HashMap::new(),
            hulls: BTreeMap::new(),
            known: HashMap::new(),
            nowhere: None,
        }
    }

    /// The number of the mapping, and its quadrant.
    pub(super) fn number(
        &mut self,
        pid: u32,
        program: u32,
        region: Option<&SpaceRegion>,
    ) -> (u32, Option<Quadrant>) {
        let number = match region {
            None => self.nowhere(),
            Some(region) => {
                let key = (program, region.start);
                let last = self.known.get(&key).copied();
                match last.filter(|(end, inode, _)| (*end, *inode) == (region.end, region.inode)) {
                    Some((.., number)) => number,
                    None => {
                        let number = self.find(pid, program, region);
                        if self.known.len() >= KEPT {
                            self.known.clear();
                        }
                        self.known.insert(key, (region.end, region.inode, number));
                        number
                    }
                }
            }
        };
        (number, self.list[number as usize].quadrant)
    }

    fn nowhere(&mut self) -> u32 {
        if let Some(number) = self.nowhere {
            return number;
        }
        let range = AddrRange { start: 0, end: 0 };
        let name = Name::default();
        let number = self.add(FaultMapping { pid: Pid(0), range, name, quadrant: None });
        self.nowhere = Some(number);
        number
    }

    fn add(&mut self, mapped: FaultMapping) -> u32 {
        let number = u32::try_from(self.list.len()).unwrap_or(u32::MAX);
        self.list.push(mapped);
        self.merged.push(number);
        number
    }

    fn find(&mut self, pid: u32, program: u32, region: &SpaceRegion) -> u32 {
        let range = AddrRange { start: region.start, end: region.end };
        if region.is_file() {
            let file = (region.name.clone(), region.inode, region.shared);
            if let Some((number, first)) = self.files.get(&file).copied() {
                if first == program {
                    self.widen(number, range);
                }
                return number;
            }
            let number = self.add(mapped(pid, region));
            self.files.insert(file, (number, program));
            return number;
        }
        let touching = self.touching(program, region);
        let number = match touching.first() {
            Some((.., number)) => *number,
            None => self.add(mapped(pid, region)),
        };
        let mut hull = range;
        for (start, end, other) in touching {
            hull = AddrRange { start: hull.start.min(start), end: hull.end.max(end) };
            self.hulls.remove(&(program, region.name.clone(), start));
            if other != number {
                self.merged[other as usize] = number;
            }
        }
        self.hulls.insert((program, region.name.clone(), hull.start), (hull.end, number));
        self.widen(number, hull);
        number
    }

    /// Start, end and number of the known ranges that a region overlaps or touches.
    fn touching(&self, program: u32, region: &SpaceRegion) -> Vec<(u64, u64, u32)> {
        let key = |start| (program, region.name.clone(), start);
        let before = self.hulls.range(..=key(region.end)).rev();
        let same =
            before.take_while(|((other, name, _), _)| (*other, name) == (program, &region.name));
        // Known ranges do not touch each other, so the search ends at the first gap.
        let touching = same.take_while(|(_, (end, _))| *end >= region.start);
        touching.map(|((.., start), (end, number))| (*start, *end, *number)).collect()
    }

    fn widen(&mut self, number: u32, range: AddrRange) {
        let known = &mut self.list[number as usize].range;
        known.start = known.start.min(range.start);
        known.end = known.end.max(range.end);
    }

    /// Number of mappings, merged ones included.
    pub(super) fn len(&self) -> usize {
        self.list.len()
    }

    /// The number that a number was merged into.
    fn root(&self, mut number: u32) -> u32 {
        while self.merged[number as usize] != number {
            number = self.merged[number as usize];
        }
        number
    }

    /// Keeps the mappings with the largest counts, at most `most`; the others of each quadrant are
    /// merged. `weights` are indexed by number. Returns the new number of each mapping.
    pub(super) fn fold(&mut self, weights: &[u64], most: usize) -> Vec<u32> {
        let roots: Vec<u32> = (0_u32..).take(self.list.len()).map(|at| self.root(at)).collect();
        let mut sums = vec![0_u64; roots.len()];
        for (root, weight) in roots.iter().zip(weights) {
            sums[*root as usize] += weight;
        }
        // Entries that already sum other mappings are not merged again.
        let is_other = |it: &FaultMapping| it.name.as_bytes() == OTHER_MAPPINGS.as_bytes();
        let mut order: Vec<u32> = (0_u32..)
            .zip(&self.list)
            .filter(|(at, it)| roots[*at as usize] == *at && !is_other(it))
            .map(|(at, _)| at)
            .collect();
        order.sort_by_key(|at| (std::cmp::Reverse(sums[*at as usize]), *at));
        order.truncate(most);
        order.sort_unstable();
        let old = std::mem::take(&mut self.list);
        self.merged.clear();
        self.known.clear();
        let mut new_of: HashMap<u32, u32> = HashMap::new();
        for at in order {
            let new = self.add(old[at as usize].clone());
            new_of.insert(at, new);
        }
        self.nowhere = self.nowhere.and_then(|at| new_of.get(&at).copied());
        let mut others: HashMap<Option<Quadrant>, u32> = HashMap::new();
        let mut numbers = Vec::with_capacity(old.len());
        for root in &roots {
            let quadrant = old[*root as usize].quadrant;
            let new = new_of.get(root).copied();
            numbers.push(new.unwrap_or_else(|| {
                *others.entry(quadrant).or_insert_with(|| {
                    let range = AddrRange { start: 0, end: 0 };
                    self.add(FaultMapping {
                        pid: Pid(0),
                        range,
                        name: OTHER_MAPPINGS.into(),
                        quadrant,
                    })
                })
            }));
        }
        self.files.retain(|_, (number, _)| new_of.get(number).map(|new| *number = *new).is_some());
        let hulls = std::mem::take(&mut self.hulls).into_iter();
        let kept =
            hulls.filter_map(|(key, (end, number))| Some((key, (end, *new_of.get(&number)?))));
        self.hulls = kept.collect();
        numbers
    }

    /// All mappings, and the index of each number in them.
    pub(super) fn finish(self) -> (Vec<FaultMapping>, Vec<u32>) {
        let mut list = Vec::new();
        let mut places = HashMap::new();
        let count = u32::try_from(self.merged.len()).unwrap_or(u32::MAX);
        let numbers = (0..count).map(|number| {
            let root = self.root(number);
            *places.entry(root).or_insert_with(|| {
                list.push(self.list[root as usize].clone());
                u32::try_from(list.len() - 1).unwrap_or(u32::MAX)
            })
        });
        let numbers = numbers.collect();
        (list, numbers)
    }
}

fn mapped(pid: u32, region: &SpaceRegion) -> FaultMapping {
    let range = AddrRange { start: region.start, end: region.end };
    let unread = || Absent::NotCollected("".into());
    let mapping = Mapping {
        range,
        prot: Prot::default(),
        sharing: if region.shared { Sharing::Shared } else { Sharing::Private },
        offset: region.offset,
        device: Device::default(),
        inode: region.inode,
        name: region.name.clone(),
        on_tmpfs: region.on_tmpfs,
        smaps: Err(unread()),
        pages: Err(unread()),
    };
    let quadrant = Some(mapping.declared());
    FaultMapping { pid: Pid(pid), range, name: region.name.clone(), quadrant }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn region(start: u64, end: u64, inode: u64) -> SpaceRegion {
        let name = if inode == 0 { "" } else { "/a" };
        SpaceRegion {
            start,
            end,
            offset: 0,
            inode,
            device: pagewise_model::Device::default(),
            name: name.into(),
            shared: false,
            execute: false,
            on_tmpfs: false,
        }
    }

    #[test]
    fn mappings_of_which_little_is_counted_become_one_of_their_quadrant() {
        let mut mappings = Mappings::new();
        let numbers: Vec<u32> = (0..50_u64)
            .map(|at| {
                let region = region(at * 1000, at * 1000 + 10, if at % 2 == 0 { 0 } else { at });
                mappings.number(7, 1, Some(&region)).0
            })
            .collect();
        let nowhere = mappings.number(7, 1, None).0;
        // Merged neighbors count together.
        let joined = mappings.number(7, 1, Some(&region(10, 2000, 0))).0;
        let mut weights = vec![1; mappings.len()];
        weights[numbers[7] as usize] = 100;
        let new = mappings.fold(&weights, 2);
        let of = |number: u32| new[number as usize];
        assert!([numbers[0], numbers[2]].iter().all(|it| of(*it) == of(joined)));
        assert!([numbers[4], numbers[6]].iter().all(|it| of(*it) == of(numbers[8])));
        assert!([numbers[9], numbers[11]].iter().all(|it| of(*it) == of(numbers[13])));
        assert_eq!(mappings.number(7, 1, Some(&region(7000, 7010, 7))).0, of(numbers[7]));
        let again = mappings.number(7, 1, Some(&region(8000, 8010, 0))).0;
        assert_ne!(again, of(numbers[8]), "it is kept apart from now on");
        let quadrant = |number: u32| mappings.list[number as usize].quadrant;
        assert_eq!(quadrant(of(numbers[8])), Some(Quadrant::PrivateAnonymous));
        assert_eq!(quadrant(of(numbers[9])), Some(Quadrant::PrivateFile));
        assert_eq!(quadrant(of(nowhere)), None);
        assert_eq!(mappings.list.len(), 2 + 3 + 1);
    }

    #[test]
    fn neighbors_of_no_file_are_one_and_a_file_is_one_everywhere() {
        let mut mappings = Mappings::new();
        let mut number = |program, start, end, inode| {
            mappings.number(7, program, Some(&region(start, end, inode))).0
        };
        let numbers = [
            number(1, 100, 200, 0),
            number(1, 300, 400, 0),
            number(1, 200, 300, 0),
            number(1, 500, 600, 0),
            number(2, 100, 200, 0),
            number(1, 1000, 1100, 5),
            number(2, 5000, 5100, 5),
            number(1, 1200, 1300, 5),
        ];
        let nowhere = mappings.number(7, 1, None);
        assert_eq!(nowhere.1, None);
        let (list, places) = mappings.finish();
        let ranges = numbers.map(|number| list[places[number as usize] as usize].range);
        let ranges = ranges.map(|range| (range.start, range.end));
        let (all, file) = ((100, 400), (1000, 1300));
        assert_eq!(ranges, [all, all, all, (500, 600), (100, 200), file, file, file]);
        assert_eq!(list.len(), 5);
    }
}
