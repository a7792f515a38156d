//! Tests that know every store: a heap's stores and flushes are recorded, and the heap is opened
//! from what the file held after each of them, and after those that a loss of power may have left.

extern crate std;

use core::cell::Cell;
use std::ffi::CString;
use std::os::unix::fs::FileExt;
use std::vec::Vec;
use std::{format, fs, vec};

use super::file::LockedFile;
use super::log::LogEntryKind;
use super::mapping::HeapFileMapping;
use super::open::adopt;
use super::{Durability, Persistent, PersistentError, PersistentOptions, PersistentUsage, Rel, Tx};

/// A store or a flush.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum StoreEvent {
    Store { place: usize, word: u64 },
    Sync { from: usize, to: usize },
}

/// All stores and flushes, in order.
pub(super) type Tape = Vec<StoreEvent>;

impl HeapFileMapping {
    pub(super) fn record(&mut self, place: usize, word: u64) {
        self.tape.iter_mut().for_each(|tape| tape.push(StoreEvent::Store { place, word }));
    }

    pub(super) fn record_sync(&mut self, from: usize, to: usize) {
        self.tape.iter_mut().for_each(|tape| tape.push(StoreEvent::Sync { from, to }));
    }
}

std::thread_local! {
    /// True if mappings record from their start.
    static RECORD: Cell<bool> = const { Cell::new(false) };
    /// Number of times that the disk still accepts data.
    static ALLOWED: Cell<Option<usize>> = const { Cell::new(None) };
}

/// The tape of a new mapping.
pub(super) fn new_tape() -> Option<Tape> {
    RECORD.get().then(Tape::new)
}

/// Fails if the simulated disk is full.
pub(super) fn refuse(call: &'static str) -> Result<(), PersistentError> {
    let full = PersistentError::Os { call, errno: libc::ENOSPC };
    ALLOWED.get().map_or(Ok(()), |left| {
        ALLOWED.set(Some(left.checked_sub(1).ok_or(full)?));
        Ok(())
    })
}

/// A file in memory, under a path that opens it.
pub(super) struct MemoryFile {
    file: fs::File,
    path: CString,
}

impl MemoryFile {
    /// A file of this length, with holes except for some words.
    pub(super) fn sparse(len: usize, words: impl Iterator<Item = (usize, u64)>) -> MemoryFile {
        let memory = MemoryFile::new(&[]);
        memory.file.set_len(len as u64).unwrap();
        words.for_each(|(place, word)| {
            memory.file.write_all_at(&word.to_le_bytes(), place as u64).unwrap();
        });
        memory
    }

    pub(super) fn new(image: &[u8]) -> MemoryFile {
        use std::os::fd::{AsRawFd, FromRawFd};
        // SAFETY: the name is a string.
        let fd = unsafe { libc::memfd_create(c"heap".as_ptr(), libc::MFD_CLOEXEC) };
        assert!(fd >= 0);
        // SAFETY: the descriptor was just opened and is not owned elsewhere.
        let file = unsafe { fs::File::from_raw_fd(fd) };
        file.write_all_at(image, 0).unwrap();
        let path = CString::new(format!("/proc/self/fd/{}", file.as_raw_fd())).unwrap();
        MemoryFile { file, path }
    }

    pub(super) fn read(&self) -> Vec<u8> {
        let size = self.file.metadata().unwrap().len();
        let mut image = vec![0; usize::try_from(size).unwrap()];
        self.file.read_exact_at(&mut image, 0).unwrap();
        image
    }

    pub(super) fn open(&self, options: &PersistentOptions) -> Result<Persistent, PersistentError> {
        adopt(LockedFile::open(&self.path, 0)?, options)
    }
}

pub(super) const SMALL: PersistentOptions =
    PersistentOptions { capacity: Some(1 << 20), log: 1, ..PersistentOptions::DEFAULT };

/// A new heap's file.
pub(super) fn empty(options: &PersistentOptions) -> Vec<u8> {
    let name = format!(
        "/tmp/pagewise-replay-{}-{:?}.heap",
        std::process::id(),
        std::thread::current().id()
    );
    let path = CString::new(name.clone()).unwrap();
    // SAFETY: the file is the test's own.
    drop(unsafe { Persistent::open(&path, options) }.unwrap());
    let image = fs::read(&name).unwrap();
    fs::remove_file(name).unwrap();
    image
}

/// Stores a word of a block so that the tape has it.
fn set(tx: &mut Tx<'_>, block: Rel<u64>, index: usize, word: u64) {
    let place = block.place() + index * 8;
    tx.resolve(Rel::<u64>::from_offset(place as u64), 1).unwrap();
    tx.heap.mapping.store(place, word);
}

fn change(
    tx: &mut Tx<'_>,
    block: Rel<u64>,
    index: usize,
    word: u64,
) -> Result<(), PersistentError> {
    tx.heap.note(LogEntryKind::Bytes, block.place() + index * 8, 8)?;
    set(tx, block, index, word);
    Ok(())
}

/// Expected content of a heap after a number of transactions, computed without a heap.
#[derive(Clone, Debug, Default, PartialEq)]
struct Model {
    done: u64,
    /// The size of each slot's block, and the word that it is filled with.
    slots: [(usize, u64); SLOTS],
}

const SLOTS: usize = 12;

fn random(seed: u64) -> u64 {
    super::format::mix(seed, 0x1234_5678)
}

impl Model {
    /// Effect of the next transaction: a slot gets a block of another size, or loses it.
    fn step(&mut self) -> (usize, usize) {
        self.done += 1;
        let dice = random(self.done);
        let slot = usize::try_from(dice % SLOTS as u64).unwrap();
        let sizes = [0, 32, 40, 200, 1000, 4000, 8000, 8192, 9000, 40_000, 150_000, 8192];
        let size = sizes[usize::try_from(dice >> 32).unwrap() % sizes.len()];
        self.slots[slot] = (size, dice | 1);
        (slot, size)
    }

    fn usage(&self) -> usize {
        1 + self.slots.iter().filter(|(size, _)| *size > 0).count()
    }
}

/// The ledger: {transactions, a pointer for each slot}.
fn ledger(heap: &Persistent) -> Option<Rel<u64>> {
    heap.root("ledger").unwrap()
}

fn start(heap: &mut Persistent) {
    let mut tx = heap.begin();
    let ledger = tx.make([0u64; 1 + SLOTS]).unwrap().cast::<u64>();
    (0..=SLOTS).for_each(|index| set(&mut tx, ledger, index, 0));
    tx.set_root("ledger", ledger).unwrap();
    tx.commit().unwrap();
}

/// Does a transaction of the model; every fifth is aborted first.
fn step(heap: &mut Persistent, model: &mut Model) {
    let ledger = ledger(heap).unwrap();
    if (model.done + 1).is_multiple_of(5) {
        attempt(heap.begin(), ledger, &mut model.clone()).abort().unwrap();
    }
    attempt(heap.begin(), ledger, model).commit().unwrap();
}

fn attempt<'h>(mut tx: Tx<'h>, ledger: Rel<u64>, model: &mut Model) -> Tx<'h> {
    let (slot, size) = model.step();
    let old = Rel::<u64>::from_offset(
        *tx.get(Rel::<u64>::from_offset(ledger.offset() + 8 + slot as u64 * 8)).unwrap(),
    );
    if !old.is_null() {
        tx.free(old).unwrap();
    }
    let mut new = Rel::NULL;
    if size > 0 {
        new = Rel::from_offset(tx.heap.allocate_place(size, 8).unwrap() as u64);
        (0..size / 8).step_by(31).for_each(|index| set(&mut tx, new, index, model.slots[slot].1));
    }
    change(&mut tx, ledger, 1 + slot, new.offset()).unwrap();
    change(&mut tx, ledger, 0, model.done).unwrap();
    tx
}

/// Panics unless a heap has exactly the content of the model.
fn agrees(heap: &Persistent, model: &Model) {
    let PersistentUsage { blocks, .. } = heap.check().unwrap();
    let ledger = heap.slice(ledger(heap).unwrap(), 1 + SLOTS).unwrap();
    assert_eq!(ledger[0], model.done);
    for ((size, word), block) in model.slots.iter().zip(&ledger[1..]) {
        assert_eq!(*size == 0, *block == 0);
        if *size > 0 {
            let block = Rel::<u64>::from_offset(*block);
            assert!(heap.block_size(block).unwrap() >= *size);
            let words = heap.slice(block, size / 8).unwrap();
            assert!(words.iter().step_by(31).all(|found| found == word));
        }
    }
    assert_eq!(blocks, model.usage(), "after {}", model.done);
}

/// The file of a heap before its use, the tape of its use, and the models of its content, each with
/// the tape position at which it was reached.
struct Story {
    before: Vec<u8>,
    tape: Tape,
    models: Vec<(usize, Model)>,
}

impl Story {
    fn new(durability: Durability, steps: usize) -> Story {
        let options = PersistentOptions { durability, ..SMALL };
        let memory = MemoryFile::new(&empty(&options));
        let mut heap = memory.open(&options).unwrap();
        start(&mut heap);
        // Allocates all its chunks: growth extends the file, which is not a store.
        let tx = heap.begin();
        tx.heap.allocate_place(60 << 14, 8).unwrap();
        tx.abort().unwrap();
        let before = memory.read();
        heap.mapping.tape = Some(Tape::new());
        let mut model = Model::default();
        let mut models = vec![(0, model.clone())];
        for _ in 0..steps {
            step(&mut heap, &mut model);
            models.push((heap.mapping.tape.as_ref().unwrap().len(), model.clone()));
        }
        agrees(&heap, &model);
        let tape = heap.mapping.tape.take().unwrap();
        Story { before, tape, models }
    }

    /// Checks that a heap with this file contains the transactions committed before a number of
    /// events, or also the one that was being committed.
    fn reopens(&self, image: &[u8], options: &PersistentOptions, events: usize) -> Tape {
        let memory = MemoryFile::new(image);
        let mut heap =
            memory.open(options).unwrap_or_else(|error| panic!("after {events}: {error}"));
        let recovery = heap.mapping.tape.take().unwrap_or_default();
        let done = *heap.get(ledger(&heap).unwrap()).unwrap();
        let committed = self.models.partition_point(|(end, _)| *end <= events);
        let candidates = &self.models[committed - 1..self.models.len().min(committed + 1)];
        let found = candidates.iter().find(|(_, model)| model.done == done);
        let (_, model) = found.unwrap_or_else(|| panic!("after {events}: {done} transactions"));
        agrees(&heap, model);
        // It must go on as if nothing had happened.
        let mut model = model.clone();
        step(&mut heap, &mut model);
        agrees(&heap, &model);
        recovery
    }
}

fn apply(image: &mut [u8], event: StoreEvent) {
    if let StoreEvent::Store { place, word } = event {
        image[place..place + 8].copy_from_slice(&word.to_le_bytes());
    }
}

#[test]
fn after_every_prefix_of_its_stores_a_heap_opens_with_what_was_committed_and_nothing_else() {
    let story = Story::new(Durability::Process, 30);
    let mut image = story.before.clone();
    for (events, event) in story.tape.iter().enumerate() {
        story.reopens(&image, &SMALL, events);
        apply(&mut image, *event);
    }
    assert!(story.tape.len() > 1000, "{}", story.tape.len());
}

#[test]
fn a_recovery_may_be_killed_after_every_prefix_of_its_own_stores() {
    let story = Story::new(Durability::Process, 30);
    let mut image = story.before.clone();
    let mut killed = 0;
    for (events, event) in story.tape.iter().enumerate() {
        if events % 23 == 0 {
            RECORD.set(true);
            let recovery = story.reopens(&image, &SMALL, events);
            RECORD.set(false);
            let mut again = image.clone();
            for event in recovery {
                apply(&mut again, event);
                story.reopens(&again, &SMALL, events);
                killed += 1;
            }
        }
        apply(&mut image, *event);
    }
    assert!(killed > 200, "{killed}");
}

/// Possible contents of a disk after a power failure: the flushed data, and any part of the data
/// stored since.
struct Disk {
    flushed: Vec<u8>,
    pending: Vec<StoreEvent>,
}

impl Disk {
    fn see(&mut self, event: StoreEvent) {
        let StoreEvent::Sync { from, to } = event else { return self.pending.push(event) };
        let (flushed, pending) = self.pending.iter().partition(|event| match event {
            StoreEvent::Store { place, .. } => (from..to).contains(place),
            StoreEvent::Sync { .. } => true,
        });
        self.pending = pending;
        Vec::into_iter(flushed).for_each(|event| apply(&mut self.flushed, event));
    }

    /// Contents with the pending stores that `kept` chooses by their number and offset.
    fn with(&self, kept: impl Fn(usize, usize) -> bool) -> Vec<u8> {
        let mut image = self.flushed.clone();
        for (number, event) in self.pending.iter().enumerate() {
            if let StoreEvent::Store { place, .. } = event
                && kept(number, *place)
            {
                apply(&mut image, *event);
            }
        }
        image
    }
}

#[test]
fn after_a_loss_of_power_a_heap_opens_with_what_was_committed_whatever_of_the_last_stores_was_written()
 {
    let options = PersistentOptions { durability: Durability::Power, ..SMALL };
    let story = Story::new(Durability::Power, 24);
    let mut disk = Disk { flushed: story.before.clone(), pending: Vec::new() };
    for (events, event) in story.tape.iter().enumerate() {
        let dice = random(events as u64);
        let chance = |what: usize| random(dice ^ what as u64) & 1 == 1;
        let image = match events % 4 {
            0 => disk.with(|_, _| false),
            1 => disk.with(|number, _| chance(number)),
            2 => disk.with(|_, place| chance(place >> 12)),
            _ => disk.with(|number, place| chance(place) || chance(number)),
        };
        story.reopens(&image, &options, events);
        disk.see(*event);
    }
    assert!(story.tape.len() > 800, "{}", story.tape.len());
}

#[test]
fn a_commit_is_flushed_before_it_returns_and_only_where_power_may_fail() {
    let syncs = |story: &Story| {
        let is_sync = |event: &&StoreEvent| matches!(event, StoreEvent::Sync { .. });
        story.tape.iter().filter(is_sync).count()
    };
    assert_eq!(syncs(&Story::new(Durability::Process, 10)), 0);
    assert!(syncs(&Story::new(Durability::Power, 10)) >= 10 * 4);
}

#[test]
fn a_full_disk_fails_the_transaction_and_nothing_else() {
    let memory = MemoryFile::new(&empty(&SMALL));
    let mut heap = memory.open(&SMALL).unwrap();
    start(&mut heap);
    let mut model = Model::default();
    for allowed in 0.. {
        ALLOWED.set(Some(allowed));
        let tx = heap.begin();
        let taken = (0..8).try_for_each(|_| tx.heap.allocate_place(100_000, 8).map(|_| ()));
        drop(tx);
        ALLOWED.set(None);
        agrees(&heap, &model);
        if taken.is_ok() {
            break;
        }
        assert_eq!(
            taken,
            Err(PersistentError::Os { call: "posix_fallocate", errno: libc::ENOSPC })
        );
        step(&mut heap, &mut model);
    }
    drop(heap);
    agrees(&memory.open(&SMALL).unwrap(), &model);
}
