//! Tests of the guarantees of each function of the persistent heap.

use std::alloc::Layout;
use std::fs;
use std::io;
use std::mem;
use std::ptr;

use pagewise_alloc::persistent::{
    Durability, Persistent, PersistentError, PersistentOptions, PersistentUsage, PlainData, Rel, Tx,
};

use crate::child::HeapChild;
use crate::{HeapPath, SMALL, open};

/// A link of a list in the heap.
#[repr(C)]
#[derive(Clone, Copy)]
struct HeapLink {
    number: u64,
    next: Rel<HeapLink>,
}

// SAFETY: the type consists of two words without padding, every bit pattern is valid, and it
// contains no pointer of this process.
unsafe impl PlainData for HeapLink {}

fn bytes(size: usize) -> Layout {
    Layout::from_size_align(size, 8).unwrap()
}

fn push(tx: &mut Tx<'_>, number: u64) -> Result<(), PersistentError> {
    let next = tx.root("list")?.unwrap_or(Rel::NULL);
    let link = tx.make(HeapLink { number, next })?;
    tx.set_root("list", link)
}

fn numbers(heap: &Persistent) -> Vec<u64> {
    let mut numbers = Vec::new();
    let mut at = heap.root::<HeapLink>("list").unwrap().unwrap_or(Rel::NULL);
    while !at.is_null() {
        let link = heap.get(at).unwrap();
        numbers.push(link.number);
        at = link.next;
    }
    numbers
}

#[test]
fn a_list_is_there_again_wherever_the_file_is_mapped() {
    let place = HeapPath::new();
    let mut heap = place.open(&SMALL).unwrap();
    let mut tx = heap.begin();
    (0..100).for_each(|number| push(&mut tx, number).unwrap());
    tx.commit().unwrap();
    heap.close().unwrap();
    // Two heaps that are open at the same time are mapped at different addresses.
    let copy = HeapPath::new();
    fs::copy(&place.path, &copy.path).unwrap();
    let heaps = [&place, &copy].map(|place| place.open(&SMALL).unwrap());
    assert_ne!(heaps[0].base(), heaps[1].base());
    for heap in heaps {
        assert!(numbers(&heap).into_iter().eq((0..100).rev()));
        assert_eq!(heap.check().unwrap().blocks, 100);
    }
}

#[test]
fn a_transaction_that_is_dropped_aborted_or_forgotten_never_happened() {
    let place = HeapPath::new();
    let mut heap = place.open(&SMALL).unwrap();
    let mut tx = heap.begin();
    push(&mut tx, 1).unwrap();
    tx.commit().unwrap();
    let before = heap.check().unwrap();
    let ends: [fn(Tx<'_>); 3] = [|tx| drop(tx), |tx| tx.abort().unwrap(), |tx| mem::forget(tx)];
    for end in ends {
        let mut tx = heap.begin();
        let list = tx.root::<HeapLink>("list").unwrap().unwrap();
        (0..500).for_each(|number| {
            tx.alloc(bytes(40)).unwrap();
            tx.change(list).unwrap().number = number;
        });
        tx.alloc(bytes(100_000)).unwrap();
        tx.change_slice(list.cast::<u64>(), 2).unwrap().fill(7);
        tx.set_root("list", Rel::<HeapLink>::NULL).unwrap();
        tx.free(list).unwrap();
        end(tx);
        // The next transaction finds the heap unchanged.
        heap.begin().commit().unwrap();
        let after = heap.check().unwrap();
        assert_eq!((after.blocks, after.bytes), (before.blocks, before.bytes));
        assert_eq!(numbers(&heap), [1]);
    }
    drop(heap);
    assert_eq!(numbers(&place.open(&SMALL).unwrap()), [1]);
}

#[test]
fn a_block_that_is_freed_can_be_read_until_the_commit_and_then_be_had_again() {
    let place = HeapPath::new();
    let mut heap = place.open(&SMALL).unwrap();
    let mut tx = heap.begin();
    let block = tx.make(77_u64).unwrap();
    tx.commit().unwrap();
    let mut tx = heap.begin();
    // A second free in the same transaction has no effect.
    tx.free(block).unwrap();
    tx.free(block).unwrap();
    assert_eq!(*tx.get(block).unwrap(), 77);
    assert_ne!(tx.make(1_u64).unwrap(), block);
    tx.commit().unwrap();
    assert_eq!(heap.block_size(block), Err(PersistentError::NotABlock));
    assert_eq!(heap.begin().free(block), Err(PersistentError::NotABlock));
    assert_eq!(heap.begin().make(2_u64).unwrap(), block);
}

#[test]
fn every_class_run_and_alignment_keeps_what_is_written_and_gives_its_room_back() {
    let place = HeapPath::new();
    let mut heap = place.open(&PersistentOptions { log: 1 << 20, ..SMALL }).unwrap();
    for round in 0..3 {
        let mut tx = heap.begin();
        let mut blocks = Vec::new();
        for (size, align) in (0..16).flat_map(|bit| [(1 << bit, 8), (3 << bit, 1 << bit.min(14))]) {
            let block = tx.alloc(Layout::from_size_align(size, align).unwrap()).unwrap();
            let place = tx.fill(block, size).unwrap();
            assert!(place.as_ptr().addr().is_multiple_of(align));
            place.fill(u8::try_from(size % 251).unwrap());
            blocks.push((block, size));
        }
        tx.commit().unwrap();
        for (block, size) in &blocks {
            let content = heap.slice(*block, *size).unwrap();
            assert!(content.iter().all(|byte| usize::from(*byte) == size % 251), "{size}");
        }
        assert_eq!(heap.check().unwrap().blocks, blocks.len(), "round {round}");
        let mut tx = heap.begin();
        blocks.iter().for_each(|(block, _)| tx.free(*block).unwrap());
        tx.commit().unwrap();
        let PersistentUsage { blocks, bytes, .. } = heap.check().unwrap();
        assert_eq!((blocks, bytes), (0, 0));
    }
}

#[test]
fn a_block_that_is_resized_keeps_its_place_or_its_contents() {
    let place = HeapPath::new();
    let mut heap = place.open(&SMALL).unwrap();
    let mut tx = heap.begin();
    let block = tx.alloc(bytes(100)).unwrap();
    tx.fill(block, 100).unwrap().fill(5);
    assert_eq!(tx.resize(block, bytes(112)).unwrap(), block);
    for size in [50_000, 60, 5000, 16_384, 16_384] {
        let kept = size.min(60);
        let moved = tx.resize(block, bytes(size)).unwrap();
        assert!(tx.block_size(moved).unwrap() >= size);
        assert!(tx.slice(moved, kept).unwrap().iter().all(|byte| *byte == 5));
    }
    let huge = Layout::from_size_align(1 << 40, 8).unwrap();
    assert_eq!(tx.resize(block, huge), Err(PersistentError::Full));
    assert_eq!(tx.slice(block, 1).unwrap(), [5]);
}

#[test]
fn names_lead_to_blocks_and_nowhere_else() {
    let place = HeapPath::new();
    let mut heap = place.open(&SMALL).unwrap();
    let mut tx = heap.begin();
    let block = tx.make([1_u8; 20]).unwrap();
    for name in ["", "a\0b", &"x".repeat(41)] {
        assert_eq!(tx.set_root(name, block), Err(PersistentError::Name));
        assert_eq!(tx.root::<u8>(name), Err(PersistentError::Name));
    }
    let inside = Rel::<u8>::from_offset(block.offset() + 8);
    assert_eq!(tx.set_root("inside", inside), Err(PersistentError::NotABlock));
    (0..64).for_each(|number| tx.set_root(&number.to_string(), block).unwrap());
    assert_eq!(tx.set_root("one more", block), Err(PersistentError::TooManyRoots));
    assert_eq!(tx.root::<[u8; 20]>("63"), Ok(Some(block)));
    assert_eq!(tx.root::<[u8; 100]>("63"), Err(PersistentError::OutOfRange));
    assert_eq!(tx.root::<u8>("64"), Ok(None));
    assert_eq!(tx.free(block), Err(PersistentError::Named));
    (0..64).for_each(|number| tx.set_root(&number.to_string(), Rel::<u8>::NULL).unwrap());
    tx.free(block).unwrap();
    assert_eq!(tx.set_root("freed", block), Err(PersistentError::NotABlock));
    tx.commit().unwrap();
    assert_eq!(heap.check().unwrap().blocks, 0);
}

#[test]
fn pointers_out_of_the_heap_or_not_aligned_are_refused() {
    let place = HeapPath::new();
    let mut heap = place.open(&SMALL).unwrap();
    let block = heap.begin().make(1_u64).unwrap();
    let end = heap.check().unwrap().file as u64;
    for offset in [0, 8, 1 << 16, block.offset() + 1, end - 7, end, end + 8, u64::MAX, u64::MAX - 7]
    {
        let pointer = Rel::<u64>::from_offset(offset);
        assert_eq!(heap.get(pointer), Err(PersistentError::OutOfRange), "{pointer:?}");
        assert_eq!(heap.begin().change(pointer).err(), Some(PersistentError::OutOfRange));
    }
    let mut tx = heap.begin();
    tx.change_slice(Rel::<u64>::from_offset(end), 0).unwrap().fill(1);
    tx.change(Rel::<[u64; 0]>::from_offset(end)).unwrap().fill(1);
    tx.change_slice(Rel::<u8>::from_offset(end - 3), 3).unwrap().fill(1);
    tx.pause();
    drop(heap);
    let heap = place.open(&SMALL).unwrap();
    assert_eq!(heap.slice(Rel::<u8>::from_offset(end - 3), 3), Ok(&[0_u8; 3][..]));
    assert_eq!(heap.slice(block, usize::MAX), Err(PersistentError::OutOfRange));
    assert_eq!(heap.slice(block, 1 << 59), Err(PersistentError::OutOfRange));
    assert!(heap.get(Rel::<u64>::from_offset(end - 8)).is_ok());
}

#[test]
fn a_transaction_that_is_too_large_says_so_and_can_be_undone_or_committed() {
    let place = HeapPath::new();
    let mut heap = place.open(&SMALL).unwrap();
    let mut tx = heap.begin();
    let block = tx.alloc(bytes(200_000)).unwrap().cast::<u64>();
    tx.fill(block, 25_000).unwrap().fill(1);
    tx.commit().unwrap();
    let mut tx = heap.begin();
    assert_eq!(tx.change_slice(block, 25_000).err(), Some(PersistentError::LogFull));
    tx.change_slice(block, 5000).unwrap().fill(2);
    let full = (0..1000).find_map(|_| tx.change_slice(block, 100).err());
    assert_eq!(full, Some(PersistentError::LogFull));
    tx.abort().unwrap();
    assert!(heap.slice(block, 25_000).unwrap().iter().all(|word| *word == 1));
    let taken = heap.begin().alloc(bytes(5 << 20));
    assert_eq!(taken, Err(PersistentError::Full));
    let odd = Layout::from_size_align(8, 1 << 15).unwrap();
    assert_eq!(heap.begin().alloc(odd), Err(PersistentError::Alignment));
    assert_eq!(heap.check().unwrap().blocks, 1);
}

#[test]
fn a_heap_is_open_once_at_a_time_and_an_open_that_waits_gets_it_next() {
    let place = HeapPath::new();
    let heap = place.open(&SMALL).unwrap();
    assert_eq!(place.open(&SMALL).err(), Some(PersistentError::Busy));
    let wait = PersistentOptions { wait: true, ..SMALL };
    let waits = HeapChild::run(|| i32::from(place.open(&wait).is_err()));
    drop(heap);
    assert_eq!(waits.wait(), 0);
    mem::forget(waits);
}

#[test]
fn a_child_that_inherits_a_heap_neither_damages_nor_locks_it() {
    let place = HeapPath::new();
    let mut heap = Some(place.open(&SMALL).unwrap());
    let mut tx = heap.as_mut().unwrap().begin();
    push(&mut tx, 1).unwrap();
    tx.commit().unwrap();
    let mut tx = heap.as_mut().unwrap().begin();
    push(&mut tx, 2).unwrap();
    mem::forget(tx);
    // The parent has an open transaction. If closing the heap in the child had an effect, it would
    // undo the transaction.
    let child = HeapChild::run(|| {
        drop(heap.take());
        0
    });
    assert_eq!(child.wait(), 0);
    mem::forget(child);
    assert_eq!(numbers(heap.as_ref().unwrap()), [2, 1]);
    let lives_on = HeapChild::run(|| {
        // SAFETY: `pause` takes no arguments, and returns only after a signal.
        unsafe { libc::pause() };
        0
    });
    drop(heap);
    assert_eq!(numbers(&place.open(&SMALL).unwrap()), [1]);
    drop(lives_on);
}

#[test]
fn a_file_that_is_not_a_heap_is_reported() {
    let place = HeapPath::new();
    let absent = PersistentOptions { create: false, ..SMALL };
    let missing = PersistentError::Os { call: "open", errno: libc::ENOENT };
    assert_eq!(place.open(&absent).err(), Some(missing));
    let folder = PersistentError::Os { call: "open", errno: libc::EISDIR };
    assert_eq!(open(c"/tmp", &SMALL).err(), Some(folder));
    assert_eq!(open(c"/dev/null", &SMALL).err(), Some(PersistentError::Foreign));
    fs::write(&place.path, "").unwrap();
    assert_eq!(place.open(&SMALL).err(), Some(PersistentError::Foreign));
    fs::write(&place.path, "some text that somebody wrote").unwrap();
    assert_eq!(place.open(&SMALL).err(), Some(PersistentError::Foreign));
    assert_eq!(fs::read_to_string(&place.path).unwrap(), "some text that somebody wrote");
    fs::remove_file(&place.path).unwrap();
    // SAFETY: the name is a C string.
    assert_eq!(unsafe { libc::mkfifo(place.name.as_ptr(), 0o600) }, 0);
    assert_eq!(place.open(&SMALL).err(), Some(PersistentError::Foreign));
}

#[test]
fn sizes_that_can_be_no_heap_are_refused() {
    let place = HeapPath::new();
    for (capacity, log) in [(0, 1), (1 << 39, 1), (1 << 20, 1 << 32), (1 << 20, usize::MAX)] {
        let options = PersistentOptions { capacity: Some(capacity), log, ..SMALL };
        assert_eq!(place.open(&options).err(), Some(PersistentError::Options));
    }
    assert_eq!(fs::metadata(&place.path).unwrap_err().kind(), io::ErrorKind::NotFound);
}

#[test]
fn a_heap_that_is_safe_against_a_loss_of_power_is_the_same_heap() {
    let place = HeapPath::new();
    let power = PersistentOptions { durability: Durability::Power, ..SMALL };
    for (number, options) in [power, SMALL, power].into_iter().enumerate() {
        let mut heap = place.open(&options).unwrap();
        let mut tx = heap.begin();
        push(&mut tx, number as u64).unwrap();
        tx.alloc(bytes(100_000)).unwrap();
        tx.commit().unwrap();
        push(&mut heap.begin(), 100).unwrap();
        heap.sync().unwrap();
        assert_eq!(heap.check().unwrap().blocks, 2 * (number + 1));
    }
    assert_eq!(numbers(&place.open(&SMALL).unwrap()), [2, 1, 0]);
}

#[test]
fn a_heap_may_have_a_name_without_a_folder_and_go_to_another_thread() {
    let place = HeapPath::new();
    let folder = place.folder();
    // This part runs in a child process, since all threads of a process share its current
    // directory.
    let child = HeapChild::run(|| {
        // SAFETY: the path is a C string.
        let moved = unsafe { libc::chdir(folder.as_ptr()) } == 0;
        let power = PersistentOptions { durability: Durability::Power, ..SMALL };
        i32::from(!moved || open(place.last_name(), &power).is_err())
    });
    assert_eq!(child.wait(), 0);
    mem::forget(child);
    let heap = place.open(&SMALL).unwrap();
    let checked = std::thread::spawn(move || heap.check().unwrap()).join().unwrap();
    assert_eq!(checked.blocks, 0);
}

#[test]
fn less_address_space_is_reserved_if_it_is_scarce() {
    let place = HeapPath::new();
    // This part runs in a child process, since the limit of the address space cannot be undone.
    let scarce = HeapChild::run(|| {
        let limit = libc::rlimit { rlim_cur: 4 << 30, rlim_max: 4 << 30 };
        // SAFETY: the call only reads `limit`.
        unsafe { libc::setrlimit(libc::RLIMIT_AS, ptr::from_ref(&limit)) };
        let Ok(mut heap) = place.open(&PersistentOptions::DEFAULT) else { return 1 };
        let mut tx = heap.begin();
        let refused = PersistentError::Os { call: "mmap", errno: libc::ENOMEM };
        let large = tx.alloc(bytes(8 << 30)) == Err(refused);
        let small = tx.alloc(bytes(1 << 20)).is_ok();
        i32::from(!(large && small && tx.commit().is_ok()))
    });
    assert_eq!(scarce.wait(), 0);
    mem::forget(scarce);
    assert_eq!(place.open(&PersistentOptions::DEFAULT).unwrap().check().unwrap().blocks, 1);
}

#[test]
fn a_limit_on_the_size_of_files_is_an_error_and_no_signal() {
    let place = HeapPath::new();
    let limited = HeapChild::run(|| {
        let limit = libc::rlimit { rlim_cur: 4 << 20, rlim_max: 4 << 20 };
        // SAFETY: the call only reads `limit`.
        unsafe { libc::setrlimit(libc::RLIMIT_FSIZE, ptr::from_ref(&limit)) };
        let small = PersistentOptions { capacity: Some(16 << 20), ..SMALL };
        let Ok(mut heap) = place.open(&small) else { return 1 };
        let mut tx = heap.begin();
        let refused = PersistentError::Os { call: "posix_fallocate", errno: libc::EFBIG };
        i32::from(tx.alloc(bytes(8 << 20)) != Err(refused) || tx.alloc(bytes(1 << 20)).is_err())
    });
    assert_eq!(limited.wait(), 0);
    mem::forget(limited);
}
