//! The mappings in which there were faults, each with a number.
//!
//! A file has one number wherever it is mapped. Memory of no file changes its bounds while it is used, as the kernel makes
//! one mapping of neighbours: those that touch or overlap in one program are one.

use std::collections::{BTreeMap, HashMap};

use pagewise_model::faults::Mapped;
use pagewise_model::mapping::{AddrRange, Device, Mapping, Quadrant, Sharing};
use pagewise_model::{Absent, Name, Pid, Prot};

use crate::spaces::Region;

/// A file and whether it is shared.
type File = (Name, u64, bool);

#[derive(Debug)]
pub(super) struct Mappings {
    list: Vec<Mapped>,
    /// Into which one was made; itself where into none.
    merged: Vec<u32>,
    files: HashMap<File, (u32, u32)>,
    /// By program, name, and start: the end, and the number.
    hulls: BTreeMap<(u32, Name, u64), (u64, u32)>,
    /// By program and start, the one that was found last.
    known: HashMap<(u32, u64), (u64, u64, u32)>,
    nowhere: Option<u32>,
}

/// So many are remembered by where they start.
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

    /// The number of the mapping, and what it is.
    pub(super) fn number(
        &mut self,
        pid: u32,
        program: u32,
        region: Option<&Region>,
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
        let number = self.add(Mapped { pid: Pid(0), range, name, quadrant: None });
        self.nowhere = Some(number);
        number
    }

    fn add(&mut self, mapped: Mapped) -> u32 {
        let number = u32::try_from(self.list.len()).unwrap_or(u32::MAX);
        self.list.push(mapped);
        self.merged.push(number);
        number
    }

    fn find(&mut self, pid: u32, program: u32, region: &Region) -> u32 {
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

    /// Start, end and number of those that a region overlaps or lies beside.
    fn touching(&self, program: u32, region: &Region) -> Vec<(u64, u64, u32)> {
        let key = |start| (program, region.name.clone(), start);
        let before = self.hulls.range(..=key(region.end)).rev();
        let same =
            before.take_while(|((other, name, _), _)| (*other, name) == (program, &region.name));
        // What is known does not touch itself: the one before a gap is the last.
        let touching = same.take_while(|(_, (end, _))| *end >= region.start);
        touching.map(|((.., start), (end, number))| (*start, *end, *number)).collect()
    }

    fn widen(&mut self, number: u32, range: AddrRange) {
        let known = &mut self.list[number as usize].range;
        known.start = known.start.min(range.start);
        known.end = known.end.max(range.end);
    }

    /// All, and which of them each number is.
    pub(super) fn finish(self) -> (Vec<Mapped>, Vec<u32>) {
        let mut list = Vec::new();
        let mut places = HashMap::new();
        let root = |mut number: u32| {
            while self.merged[number as usize] != number {
                number = self.merged[number as usize];
            }
            number
        };
        let count = u32::try_from(self.merged.len()).unwrap_or(u32::MAX);
        let numbers = (0..count).map(|number| {
            let root = root(number);
            *places.entry(root).or_insert_with(|| {
                list.push(self.list[root as usize].clone());
                u32::try_from(list.len() - 1).unwrap_or(u32::MAX)
            })
        });
        let numbers = numbers.collect();
        (list, numbers)
    }
}

fn mapped(pid: u32, region: &Region) -> Mapped {
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
    Mapped { pid: Pid(pid), range, name: region.name.clone(), quadrant }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn region(start: u64, end: u64, inode: u64) -> Region {
        let name = if inode == 0 { "" } else { "/a" };
        Region {
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
    fn neighbours_of_no_file_are_one_and_a_file_is_one_everywhere() {
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
