//! Mappings of processes by address, updated by records.
//!
//! The kernel reports new mappings only. An unmapped range stays here until another mapping
//! replaces it: no event occurs at such addresses in between.

use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::rc::Rc;

use pagewise_model::mapping::{Device, Sharing};
use pagewise_model::{Mapping, Name, Pid};
use pagewise_proc::target_file::FileId;
use pagewise_proc::{ProcRoot, maps, mountinfo};

use crate::record::{MmapRecord, PerfRecord};

/// A mapping.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SpaceRegion {
    /// First address of the mapping.
    pub start: u64,
    /// Address behind the mapping.
    pub end: u64,
    /// Offset in the file at which the mapping begins.
    pub offset: u64,
    /// The file's inode; 0 if the mapping has no file.
    pub inode: u64,
    /// The device of the file's file system.
    pub device: Device,
    /// Path of the file, or the kernel's name for other memory: `[heap]`, `[stack]`; empty for
    /// anonymous memory.
    pub name: Name,
    /// True for a shared mapping.
    pub shared: bool,
    /// True if the mapping may contain code.
    pub execute: bool,
    /// True if the file is on tmpfs.
    pub on_tmpfs: bool,
}

impl SpaceRegion {
    /// Returns true if the mapping has a file.
    pub fn is_file(&self) -> bool {
        self.inode != 0
    }

    /// Identity of the mapped file.
    pub fn id(&self) -> FileId {
        FileId { device: self.device, inode: self.inode }
    }
}

/// The mappings of a process.
#[derive(Clone, Debug, Default)]
struct ProcessSpace {
    /// Number of the program: a child of `fork` has its parent's number until it executes another
    /// program.
    program: u32,
    /// Mappings by start address, shared with the parent until one of the two processes maps
    /// memory.
    regions: Rc<BTreeMap<u64, SpaceRegion>>,
    /// True if the first thread has ended: other threads may still run for a while.
    has_ended: bool,
}

/// The mappings of all traced processes.
///
/// The memory is bounded. Once there are too many mappings, those of ended processes are dropped.
/// Then the mappings of the largest process are read again; if they are still too many, those
/// without code are dropped.
#[derive(Clone, Debug)]
pub struct Spaces {
    spaces: BTreeMap<u32, ProcessSpace>,
    programs: u32,
    /// The devices of file systems in memory.
    tmpfs: BTreeSet<Device>,
    /// Maximum number of mappings. The field `added` is the number of new mappings since the last
    /// count.
    most: usize,
    added: usize,
    forgotten: u64,
}

/// Default maximum number of mappings.
const USUAL: usize = 1 << 17;
/// Approximate number of bytes of a mapping with its name.
pub(crate) const REGION: u64 = 160;

impl Default for Spaces {
    fn default() -> Spaces {
        Spaces::within(USUAL)
    }
}

impl Spaces {
    /// Keeps at most `most` mappings.
    pub(crate) fn within(most: usize) -> Spaces {
        Spaces {
            spaces: BTreeMap::new(),
            programs: 0,
            tmpfs: BTreeSet::new(),
            most,
            added: 0,
            forgotten: 0,
        }
    }

    /// Number of times that mappings of the largest process were discarded, because all processes
    /// together exceeded the limit.
    pub(crate) fn forgotten(&self) -> u64 {
        self.forgotten
    }

    /// Reads the devices of the tmpfs file systems.
    pub fn know_tmpfs(&mut self) {
        let text = std::fs::read("/proc/self/mountinfo").unwrap_or_default();
        let mounts = mountinfo::parse(&text).into_iter();
        self.tmpfs.extend(mounts.filter(|mount| mount.fs == b"tmpfs").map(|mount| mount.device));
    }

    /// Stores known mappings: those of a stopped process, or of a core file, which has no inodes.
    pub(crate) fn place(&mut self, pid: u32, mappings: &[Mapping]) {
        let regions = mappings.iter().map(|mapping| SpaceRegion {
            start: mapping.range.start,
            end: mapping.range.end,
            offset: mapping.offset,
            inode: mapping.inode,
            device: mapping.device,
            name: mapping.name.clone(),
            shared: mapping.sharing == Sharing::Shared,
            execute: mapping.prot.exec,
            on_tmpfs: mapping.on_tmpfs,
        });
        let regions = Rc::new(regions.map(|it| (it.start, it)).collect());
        let program = self.next_program();
        self.spaces.insert(pid, ProcessSpace { program, regions, has_ended: false });
    }

    /// Reads the present mappings of a process.
    pub fn read(&mut self, root: &ProcRoot, pid: u32) {
        let Ok(text) = root.read(Pid(pid), "maps") else { return };
        let regions = maps::parse(&text).mappings.into_iter().map(|mapping| SpaceRegion {
            start: mapping.range.start,
            end: mapping.range.end,
            offset: mapping.offset,
            inode: mapping.inode,
            device: mapping.device,
            name: mapping.name,
            shared: mapping.sharing == Sharing::Shared,
            execute: mapping.prot.exec,
            on_tmpfs: self.tmpfs.contains(&mapping.device),
        });
        let regions: BTreeMap<u64, SpaceRegion> = regions.map(|it| (it.start, it)).collect();
        self.added += regions.len();
        let program = self.next_program();
        self.spaces
            .insert(pid, ProcessSpace { program, regions: Rc::new(regions), has_ended: false });
    }

    /// Updates the mappings by a record.
    pub fn note(&mut self, record: &PerfRecord<'_>) {
        match *record {
            PerfRecord::Mapped(mapped) => {
                self.map(&mapped);
                if self.added > self.most / 8 {
                    self.make_room();
                }
            }
            PerfRecord::Named { pid, exec: true, .. } => {
                let program = self.next_program();
                self.spaces.insert(pid, ProcessSpace { program, ..ProcessSpace::default() });
            }
            PerfRecord::Forked { pid, parent, .. } if pid != parent => {
                let space = self.spaces.get(&parent).cloned().unwrap_or_default();
                self.spaces.insert(pid, ProcessSpace { has_ended: false, ..space });
                self.added += 1;
                if self.added > self.most / 8 {
                    self.make_room();
                }
            }
            PerfRecord::Ended { pid, tid } if pid == tid => {
                if let Some(space) = self.spaces.get_mut(&pid) {
                    space.has_ended = true;
                }
            }
            _ => {}
        }
    }

    /// Drops mappings if there are too many.
    fn make_room(&mut self) {
        self.added = 0;
        self.spaces.retain(|_, space| !space.has_ended);
        let mut reread = HashSet::new();
        while self.count() > self.most {
            let largest = self.spaces.iter().max_by_key(|(_, space)| space.regions.len());
            let Some((pid, before)) = largest.map(|(pid, space)| (*pid, space.clone())) else {
                return;
            };
            if reread.insert(pid) {
                // No record reports that a range was unmapped, so some stored mappings may be gone.
                // The process's present mappings replace them.
                self.read(&ProcRoot::live(), pid);
                if let Some(space) = self.spaces.get_mut(&pid) {
                    space.program = before.program;
                }
                continue;
            }
            self.forgotten += 1;
            let Some(space) = self.spaces.get_mut(&pid) else { return };
            let code = before.regions.iter().filter(|(_, region)| region.execute);
            let code: BTreeMap<u64, SpaceRegion> = code.map(|(at, it)| (*at, it.clone())).collect();
            let is_less = code.len() <= before.regions.len() / 2;
            space.regions = Rc::new(if is_less { code } else { BTreeMap::new() });
        }
        self.added = 0;
    }

    /// Number of stored mappings: those that processes share count once.
    fn count(&self) -> usize {
        let mut counted = HashSet::new();
        let each = self.spaces.values().map(|space| &space.regions);
        let each = each.filter(|regions| counted.insert(Rc::as_ptr(regions).addr()));
        each.map(|regions| regions.len()).sum::<usize>() + self.spaces.len()
    }

    fn next_program(&mut self) -> u32 {
        self.programs += 1;
        self.programs
    }

    fn map(&mut self, mapped: &MmapRecord<'_>) {
        let Some(end) = mapped.start.checked_add(mapped.length) else { return };
        // Records contain a name for every mapping, but in `maps` anonymous memory has none.
        let name = if mapped.name == b"//anon" { b"" } else { mapped.name };
        let device = Device { major: mapped.device.0, minor: mapped.device.1 };
        let region = SpaceRegion {
            start: mapped.start,
            end,
            offset: mapped.offset,
            inode: mapped.inode,
            device,
            name: Name::new(name),
            shared: mapped.access.shared,
            execute: mapped.access.execute,
            on_tmpfs: self.tmpfs.contains(&device),
        };
        let space = self.spaces.entry(mapped.pid).or_default();
        self.added += if Rc::strong_count(&space.regions) > 1 { space.regions.len() } else { 1 };
        let regions = Rc::make_mut(&mut space.regions);
        cut(regions, mapped.start, end);
        regions.insert(mapped.start, region);
    }

    /// Records that `mremap` moved or resized the mapping at `old`, to `new`. `stays` is true if
    /// the old range stays mapped.
    pub(crate) fn moved(
        &mut self,
        pid: u32,
        old: u64,
        old_length: u64,
        new: u64,
        length: u64,
        stays: bool,
    ) {
        let Some(space) = self.spaces.get_mut(&pid) else { return };
        let at = space.regions.range(..=old).next_back().map(|(_, region)| region);
        let Some(region) = at.filter(|region| old < region.end) else { return };
        let (Some(end), Some(old_end)) = (new.checked_add(length), old.checked_add(old_length))
        else {
            return;
        };
        let offset = region.offset.wrapping_add(old - region.start);
        let made = SpaceRegion { start: new, end, offset, ..region.clone() };
        self.added += if Rc::strong_count(&space.regions) > 1 { space.regions.len() } else { 1 };
        let regions = Rc::make_mut(&mut space.regions);
        if !stays {
            cut(regions, old, old_end);
        }
        if new < end {
            cut(regions, new, end);
            regions.insert(new, made);
        }
    }

    /// Reads mappings of a process that no record reported: `mremap` causes no record when it
    /// extends or moves a mapping. Known mappings at other addresses stay.
    pub fn fill(&mut self, root: &ProcRoot, pid: u32) {
        let Some(known) = self.spaces.remove(&pid) else { return self.read(root, pid) };
        self.read(root, pid);
        let filled = self.spaces.entry(pid).or_default();
        filled.program = known.program;
        let regions = Rc::make_mut(&mut filled.regions);
        for (start, region) in Rc::unwrap_or_clone(known.regions) {
            cut(regions, start, region.end);
            regions.insert(start, region);
        }
    }

    /// The mapping that an address is in.
    pub fn find(&self, pid: u32, address: u64) -> Option<&SpaceRegion> {
        let (_, region) = self.spaces.get(&pid)?.regions.range(..=address).next_back()?;
        (address < region.end).then_some(region)
    }

    /// Returns the number of the program that a process runs. A process gets a new number at
    /// `exec`, and a child has its parent's number until then.
    pub fn program(&self, pid: u32) -> u32 {
        self.spaces.get(&pid).map_or(0, |space| space.program)
    }
}

/// Removes the parts of all mappings from `start` up to `end`.
fn cut(regions: &mut BTreeMap<u64, SpaceRegion>, start: u64, end: u64) {
    while let Some((&first, region)) = regions.range(..end).next_back() {
        if region.end <= start {
            break;
        }
        let region = region.clone();
        regions.remove(&first);
        if region.end > end {
            let offset = region.offset + (end - first);
            regions.insert(end, SpaceRegion { start: end, offset, ..region.clone() });
        }
        if first < start {
            regions.insert(first, SpaceRegion { end: start, ..region });
            break;
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn mapped(start: u64, length: u64, inode: u64) -> PerfRecord<'static> {
        PerfRecord::Mapped(MmapRecord { pid: 7, start, length, inode, ..MmapRecord::default() })
    }

    proptest! {
        /// Compares the mappings with a table that has an entry for each address.
        #[test]
        fn the_last_mapping_of_an_address_is_the_one_it_is_in(
            mappings in prop::collection::vec((0_u64..64, 1_u64..32), 0..20),
        ) {
            let (mut spaces, mut table) = (Spaces::default(), [None; 100]);
            for ((start, length), number) in mappings.iter().zip(1..) {
                spaces.note(&mapped(*start, *length, number));
                (*start..start + length).for_each(|at| {
                    table[usize::try_from(at).unwrap()] = Some((number, at - start));
                });
            }
            for (at, expected) in (0..).zip(table) {
                let found = spaces.find(7, at).map(|it| (it.inode, it.offset + at - it.start));
                prop_assert_eq!(found, expected);
            }
        }
    }

    #[test]
    fn a_moved_or_extended_mapping_keeps_its_file_and_offset() {
        let mut spaces = Spaces::default();
        let at = |spaces: &Spaces, address| {
            spaces.find(7, address).map(|it| (it.inode, it.offset + address - it.start))
        };
        spaces.note(&mapped(0x1000, 0x3000, 5));
        spaces.note(&mapped(0x9000, 0x1000, 6));
        // The first mapping grows up to the second one. Then its second page is moved to another
        // address and grows over the second mapping.
        spaces.moved(7, 0x1000, 0x3000, 0x1000, 0x5000, false);
        assert_eq!(at(&spaces, 0x5fff), Some((5, 0x4fff)));
        spaces.moved(7, 0x2000, 0x1000, 0x8000, 0x3000, false);
        assert_eq!(
            [0x1000, 0x2000, 0x3000].map(|it| at(&spaces, it)),
            [Some((5, 0)), None, Some((5, 0x2000))]
        );
        assert_eq!(
            [0x8000, 0x9000, 0xafff].map(|it| at(&spaces, it)),
            [0x1000, 0x2000, 0x3fff].map(|it| Some((5, it)))
        );
        // A mapping that also stays at its old address is copied; an unknown mapping is not moved;
        // addresses do not overflow.
        spaces.moved(7, 0x1000, 0x1000, 0x20000, 0x1000, true);
        assert_eq!([0x1000, 0x20000].map(|it| at(&spaces, it)), [Some((5, 0)); 2]);
        spaces.moved(7, 0x70000, 0x1000, 0x80000, 0x1000, false);
        spaces.moved(8, 0x1000, 0x1000, 0x80000, 0x1000, false);
        spaces.moved(7, 0x1000, u64::MAX, u64::MAX - 5, 0x1000, false);
        assert_eq!([0x80000, u64::MAX - 2].map(|it| at(&spaces, it)), [None; 2]);
    }

    #[test]
    fn mappings_are_forgotten_with_their_process_and_never_become_too_many() {
        const MAX_REGIONS: usize = 1000;
        let mut spaces = Spaces::within(MAX_REGIONS);
        (0..100).for_each(|at| spaces.note(&mapped(at * 10, 10, at + 1)));
        for pid in (100..10_000).step_by(2) {
            for (child, parent) in [(pid, 7), (pid + 1, pid)] {
                spaces.note(&PerfRecord::Forked { pid: child, parent, tid: child });
            }
            assert_eq!(spaces.find(pid + 1, 5).map(|it| it.inode), Some(1));
            let new = MmapRecord { pid, start: 7, length: 1, inode: 9, ..MmapRecord::default() };
            spaces.note(&PerfRecord::Mapped(new));
            assert_eq!(spaces.find(pid, 7).map(|it| it.inode), Some(9));
            assert_eq!(spaces.find(pid + 1, 7).map(|it| it.inode), Some(1));
            for pid in [pid, pid + 1] {
                spaces.note(&PerfRecord::Ended { pid, tid: pid });
            }
            assert!(spaces.count() <= 2 * MAX_REGIONS, "{}", spaces.count());
        }
        assert_eq!((spaces.find(7, 995).map(|it| it.inode), spaces.forgotten()), (Some(100), 0));
        // A process maps more and more memory. No real process has this PID.
        let pid = u32::MAX;
        for at in 0..10 * MAX_REGIONS as u64 {
            let start = at * 10;
            spaces.note(&PerfRecord::Mapped(MmapRecord {
                pid,
                start,
                length: 10,
                ..MmapRecord::default()
            }));
            assert!(spaces.count() <= 2 * MAX_REGIONS, "{}", spaces.count());
        }
        assert!(spaces.forgotten() > 0);
        assert_eq!(spaces.find(7, 995).map(|it| it.inode), Some(100), "others keep theirs");
    }

    #[test]
    fn a_child_has_its_parents_mappings_until_it_starts_another_program() {
        let mut spaces = Spaces::default();
        spaces.note(&mapped(0, 10, 1));
        spaces.note(&PerfRecord::Forked { pid: 8, parent: 7, tid: 8 });
        assert_eq!(spaces.find(8, 5).unwrap().inode, 1);
        assert_eq!(spaces.program(8), spaces.program(7));
        spaces.note(&PerfRecord::Named { pid: 8, tid: 8, name: b"new", exec: true });
        assert_eq!(spaces.find(8, 5), None);
        assert_ne!(spaces.program(8), spaces.program(7));
        assert_eq!(spaces.find(7, 5).unwrap().inode, 1);
    }
}
