//! Call stacks, each with a number.

use std::collections::HashMap;
use std::hash::{Hash, Hasher};
use std::rc::Rc;

use crate::files::CodeFiles;
use crate::spaces::Spaces;
use crate::symbols::{CodePlace, Symbols};

/// Number of a call stack, from 0. The number of a dropped stack may be used for another one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct StackId(pub u32);

impl StackId {
    /// All stacks that are not stored separately because memory is limited.
    pub const OTHER: StackId = StackId(u32::MAX);

    /// Returns the number as an index.
    pub fn index(self) -> usize {
        self.0 as usize
    }
}

/// Default memory for call stacks, in bytes.
const USUAL: usize = 64 << 20;

/// Code locations of a stack, compared by address: equal locations are stored once.
#[derive(Clone, Debug)]
struct Kept(Rc<[Rc<CodePlace>]>);

impl Kept {
    fn addresses(&self) -> impl Iterator<Item = usize> + '_ {
        self.0.iter().map(|place| Rc::as_ptr(place).addr())
    }
}

impl PartialEq for Kept {
    fn eq(&self, other: &Kept) -> bool {
        self.addresses().eq(other.addresses())
    }
}

impl Eq for Kept {}

impl Hash for Kept {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.addresses().for_each(|address| state.write_usize(address));
    }
}

/// Recorded call stacks. A new stack is resolved to locations in files at once, and the files are
/// opened: later its process may be gone. Equal stacks of several processes have one number, so
/// that memory does not grow with the number of processes.
///
/// The memory of the stacks is bounded: once [`RecordedStacks::is_full`] returns true, the caller
/// chooses the stacks to keep with `retain`. Otherwise new stacks soon become [`StackId::OTHER`].
#[derive(Debug)]
pub struct RecordedStacks {
    /// Numbers of stacks, by program and addresses.
    numbers: HashMap<Box<[u64]>, StackId>,
    /// Number of bytes of `numbers`. The table is emptied at `most_number_bytes`: most stacks occur
    /// once, or belong to programs that have ended.
    number_bytes: usize,
    most_number_bytes: usize,
    known: HashMap<CodePlace, Rc<CodePlace>>,
    alike: HashMap<Kept, StackId>,
    /// Code locations of each stack, by number. A dropped stack is empty, and its number is in
    /// `free`.
    places: Vec<Rc<[Rc<CodePlace>]>>,
    free: Vec<StackId>,
    /// Number of bytes of stacks and locations. The field `most_bytes` is their maximum.
    bytes: usize,
    most_bytes: usize,
    /// Files of the locations.
    files: CodeFiles,
    /// Buffer for a key of `numbers`: the program, then addresses.
    key: Vec<u64>,
}

impl Default for RecordedStacks {
    fn default() -> RecordedStacks {
        RecordedStacks::within(USUAL)
    }
}

/// Approximate bytes of a stack: its locations, reference counts, and entries in two tables.
fn bytes_of(stack: &[Rc<CodePlace>]) -> usize {
    size_of_val(stack) + 96
}

/// Approximate bytes of a location with its table entry.
const PLACE: usize = 2 * size_of::<CodePlace>() + 48;

impl RecordedStacks {
    /// Creates a table of the given size in bytes.
    pub fn within(bytes: usize) -> RecordedStacks {
        RecordedStacks {
            numbers: HashMap::new(),
            number_bytes: 0,
            most_number_bytes: bytes / 4,
            known: HashMap::new(),
            alike: HashMap::new(),
            places: Vec::new(),
            free: Vec::new(),
            bytes: 0,
            most_bytes: bytes / 2,
            files: CodeFiles::default(),
            key: Vec::new(),
        }
    }

    /// The number of a stack: the instruction pointer, then the return addresses of its callers.
    pub fn number(
        &mut self,
        spaces: &Spaces,
        pid: u32,
        addresses: impl Iterator<Item = u64>,
    ) -> StackId {
        self.key.clear();
        self.key.push(spaces.program(pid).into());
        self.key.extend(addresses);
        if let Some(number) = self.numbers.get(self.key.as_slice()) {
            return *number;
        }
        // New stacks are not stored if the caller does not drop others.
        if self.bytes > self.most_bytes + self.most_bytes / 4 {
            return StackId::OTHER;
        }
        let number = self.resolve(spaces, pid);
        let bytes = size_of_val(self.key.as_slice()) + 64;
        if self.number_bytes + bytes > self.most_number_bytes {
            self.numbers = HashMap::new();
            self.number_bytes = 0;
        }
        self.numbers.insert(self.key.as_slice().into(), number);
        self.number_bytes += bytes;
        number
    }

    /// True if the stacks exceed their memory limit.
    pub fn is_full(&self) -> bool {
        self.bytes > self.most_bytes
    }

    /// Number of bytes of a stack, as [`RecordedStacks::room`] counts them.
    pub(crate) fn bytes_of(&self, id: StackId) -> usize {
        self.places.get(id.index()).map_or(0, |stack| bytes_of(stack))
    }

    /// Number of bytes that stacks may occupy before the table is full.
    pub(crate) fn room(&self) -> usize {
        self.most_bytes
    }

    /// Drops all stacks except those that `is_kept` selects. The numbers of dropped stacks are used
    /// again.
    pub(crate) fn retain(&mut self, is_kept: impl Fn(StackId) -> bool) {
        let nothing: Rc<[Rc<CodePlace>]> = Rc::new([]);
        let RecordedStacks { numbers, number_bytes, known, alike, places, free, bytes, .. } = self;
        *numbers = HashMap::new();
        *number_bytes = 0;
        alike.retain(|stack, id| {
            let is_kept = is_kept(*id);
            if !is_kept {
                *bytes = bytes.saturating_sub(bytes_of(&stack.0));
                places[id.index()] = Rc::clone(&nothing);
                free.push(*id);
            }
            is_kept
        });
        let before = known.len();
        known.retain(|_, place| Rc::strong_count(place) > 1);
        *bytes = bytes.saturating_sub((before - known.len()) * PLACE);
    }

    /// Returns the number of the stack in `key`. Stacks with equal code locations have one number.
    fn resolve(&mut self, spaces: &Spaces, pid: u32) -> StackId {
        let RecordedStacks { known, alike, places, free, files, key, bytes, .. } = self;
        // Code without frame pointers leaves arbitrary values in their place: an address outside of
        // code ends the stack.
        let is_code = |address: &u64| spaces.find(pid, *address).is_some_and(|it| it.execute);
        let addresses = &key[1..];
        let calls = match addresses.first().is_some_and(is_code) {
            true => addresses.iter().position(|address| !is_code(address)),
            false => None,
        };
        let addresses = &addresses[..calls.unwrap_or(addresses.len())];
        let place = |(address, depth): (&u64, usize)| {
            let place = CodePlace::locate(spaces, pid, *address, depth > 0);
            let key = place.key();
            if let Some(known) = known.get(&key) {
                return Rc::clone(known);
            }
            place.keep(files);
            *bytes += PLACE;
            let place = Rc::new(place);
            known.insert(key, Rc::clone(&place));
            place
        };
        let stack: Rc<[Rc<CodePlace>]> = addresses.iter().zip(0_usize..).map(place).collect();
        *alike.entry(Kept(stack)).or_insert_with_key(|Kept(stack)| {
            *bytes += bytes_of(stack);
            if let Some(id) = free.pop() {
                places[id.index()] = Rc::clone(stack);
                return id;
            }
            places.push(Rc::clone(stack));
            StackId(u32::try_from(places.len() - 1).unwrap_or(u32::MAX))
        })
    }

    /// Symbol lookup for the addresses, in files that were opened when they first occurred.
    pub fn symbols(&self) -> Symbols {
        Symbols::with(self.files.clone())
    }

    /// The code locations of all stacks, by number; empty for dropped stacks.
    pub fn places(&self) -> &[Rc<[Rc<CodePlace>]>] {
        &self.places
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{MmapAccess, MmapRecord};

    #[test]
    fn a_stack_has_one_number_in_all_programs_that_have_it_in_the_same_places() {
        let (mut stacks, mut spaces) = (RecordedStacks::default(), Spaces::default());
        let a = stacks.number(&spaces, 7, [1, 2, 3].into_iter());
        let b = stacks.number(&spaces, 7, [1, 2].into_iter());
        assert_eq!(stacks.number(&spaces, 7, [1, 2, 3].into_iter()), a);
        assert_ne!(a, b);
        spaces.note(&crate::PerfRecord::Named { pid: 7, tid: 7, name: b"", exec: true });
        assert_eq!(stacks.number(&spaces, 7, [1, 2].into_iter()), b, "of no file, in one process");
        spaces.note(&crate::PerfRecord::Named { pid: 8, tid: 8, name: b"", exec: true });
        assert_ne!(stacks.number(&spaces, 8, [1, 2].into_iter()), b, "of no file, in another");
        assert_eq!(stacks.places().len(), 3);
        let mapped = |pid, start| {
            let access = MmapAccess { execute: true, ..MmapAccess::default() };
            let name = b"/a";
            let mapped = MmapRecord {
                pid,
                start,
                length: 100,
                inode: 5,
                name,
                access,
                ..MmapRecord::default()
            };
            crate::PerfRecord::Mapped(mapped)
        };
        spaces.note(&mapped(7, 1000));
        spaces.note(&mapped(8, 2000));
        let c = stacks.number(&spaces, 7, [1003, 1050].into_iter());
        assert_eq!(stacks.number(&spaces, 8, [2003, 2050].into_iter()), c, "of a file");
        let d = stacks.number(&spaces, 8, [2003, 2050, 5, 2051].into_iter());
        assert_eq!(d, c, "what is no code is no caller");
    }

    #[test]
    fn stacks_that_are_forgotten_leave_their_memory_and_numbers_to_others() {
        const ROOM: usize = 1 << 20;
        let (mut stacks, spaces) = (RecordedStacks::within(ROOM), Spaces::default());
        let hot = stacks.number(&spaces, 7, 1..40);
        let mut kept = 1;
        for number in 0..100_000 {
            let id = stacks.number(&spaces, 7, [number % 300, 1000, number].into_iter());
            assert_ne!(id, StackId::OTHER);
            kept += 1;
            if stacks.is_full() {
                stacks.retain(|id| id == hot);
                kept = 1;
            }
            if number % 1000 > 0 {
                continue;
            }
            let bytes: usize = stacks.places.iter().map(|stack| bytes_of(stack)).sum();
            assert!(bytes + stacks.known.len() * PLACE <= ROOM, "{bytes}");
        }
        assert_eq!(stacks.number(&spaces, 7, 1..40), hot);
        assert_eq!(stacks.alike.len(), kept);
        assert!(stacks.places.len() < 10_000, "numbers are used again");
    }

    #[test]
    fn without_retention_new_stacks_become_other_stacks() {
        let (mut stacks, spaces) = (RecordedStacks::within(1 << 16), Spaces::default());
        let first = stacks.number(&spaces, 7, [1].into_iter());
        let last = (2..10_000).map(|at| stacks.number(&spaces, 7, [at].into_iter())).last();
        assert_eq!(last, Some(StackId::OTHER));
        assert_eq!(stacks.number(&spaces, 7, [1].into_iter()), first);
    }
}
