//! Fuzzed files: cut, flipped, invented, with right checksums and wrong ones. Opening reports the
//! problem, or the heap is usable; nothing panics or hangs.

extern crate std;

use core::alloc::Layout;
use core::ops::Range;
use std::vec;
use std::vec::Vec;

use proptest::prelude::*;

use super::format::{
    CHUNK, CHUNKS, CLASSES, ChunkState, FixedHeader, GENERATION, HeapShape, MAX_CHUNKS,
    MAX_LOG_BYTES, NAME, NamedRoot, ROOT_COUNT, ROOTS, SEAL, VERSION, checked,
};
use super::log::LogEntryKind;
use super::replay::{MemoryFile, SMALL, empty};
use super::{Persistent, PersistentError, PersistentOptions, Rel};

const ROOT: usize = size_of::<NamedRoot>();

/// A heap with blocks of many sizes, runs, and roots.
fn filled() -> Persistent {
    let memory = MemoryFile::new(&empty(&SMALL));
    let mut heap = memory.open(&SMALL).unwrap();
    let mut tx = heap.begin();
    let mut blocks = Vec::new();
    for size in [1, 40, 40, 40, 100, 300, 1000, 2000, 5000, 9000, 40_000, 9000] {
        blocks.push(tx.alloc(Layout::from_size_align(size, 8).unwrap()).unwrap());
    }
    tx.set_root("first", blocks[0]).unwrap();
    tx.set_root("run", blocks[10]).unwrap();
    tx.commit().unwrap();
    let mut tx = heap.begin();
    [1, 5, 9].into_iter().for_each(|at: usize| tx.free(blocks[at]).unwrap());
    tx.commit().unwrap();
    heap
}

/// The file of a heap that was closed.
fn closed() -> Vec<u8> {
    let mut heap = filled();
    heap.seal().unwrap();
    image(heap)
}

/// The file of a heap as it is, as a killed process leaves it.
fn image(mut heap: Persistent) -> Vec<u8> {
    heap.opened = false;
    let end = heap.mapping.file.size().unwrap();
    (0..end).step_by(8).flat_map(|place| heap.mapping.load(place).to_le_bytes()).collect()
}

/// Opens a file and, if it is accepted as a heap, uses it in every way.
fn open(image: &[u8]) -> Result<(), PersistentError> {
    let memory = MemoryFile::new(image);
    let mut heap = memory.open(&SMALL)?;
    heap.check()?;
    for place in (0..image.len() as u64 + 100).step_by(1000) {
        let pointer = Rel::<[u64; 40]>::from_offset(place);
        let _ = (heap.get(pointer), heap.block_size(pointer), heap.slice(pointer, 1000));
    }
    for name in ["first", "run", "none"] {
        let _ = heap.root::<[u8; 30]>(name);
    }
    for commits in [false, true, true] {
        let mut tx = heap.begin();
        for size in (0..20).map(|step| 1 << step) {
            if let Ok(block) = tx.alloc(Layout::from_size_align(size, 8).unwrap()) {
                let _ = tx.fill(block, size).map(|bytes| bytes.fill(1));
                let _ = tx.set_root("none", block);
            }
        }
        for place in (0..image.len() as u64).step_by(16) {
            let _ = tx.free(Rel::<u8>::from_offset(place));
        }
        if commits {
            tx.commit()?
        } else {
            tx.abort()?
        }
        heap.check()?;
    }
    heap.close()?;
    memory.open(&SMALL).map(|_| ())
}

/// Ranges that the seal covers.
fn described(heap: &Persistent) -> Vec<Range<usize>> {
    let (shape, chunks) = (heap.shape, heap.index.chunks());
    let mut ranges = vec![
        0..size_of::<FixedHeader>(),
        GENERATION..SEAL + 8,
        ROOTS..ROOTS + ROOT_COUNT * ROOT,
        shape.table()..shape.entry(chunks),
    ];
    let is_slab = |chunk: &usize| matches!(heap.state(*chunk), Ok(ChunkState::Slab(_)));
    let slabs = (0..chunks).filter(is_slab);
    ranges.extend(slabs.map(|chunk| shape.bitmap(chunk)..shape.bitmap(chunk + 1)));
    ranges
}

fn config(cases: u32) -> ProptestConfig {
    ProptestConfig { cases, failure_persistence: None, ..ProptestConfig::default() }
}

/// Offsets in the file: those of metadata are more frequent than those of blocks.
fn place() -> impl Strategy<Value = usize> {
    let heap = filled();
    let (shape, chunks) = (heap.shape, heap.index.chunks());
    let anywhere = (0..shape.with(chunks)).boxed();
    let logs = (super::format::LOG..super::format::LOG + 600).boxed();
    let other_log = (super::format::LOG + shape.log..super::format::LOG + shape.log + 600).boxed();
    let described = described(&heap).into_iter().map(|range| range.boxed());
    proptest::strategy::Union::new(described.chain([anywhere, logs, other_log]))
}

#[test]
fn a_flipped_bit_of_what_describes_a_closed_heap_is_an_error() {
    let (image, ranges) = (closed(), described(&filled()));
    open(&image).unwrap();
    proptest!(config(600), |(range in 0..ranges.len(), at: prop::sample::Index, bit in 0u8..8)| {
        let mut image = image.clone();
        let place = ranges[range].start + at.index(ranges[range].len());
        image[place] ^= 1 << bit;
        prop_assert!(open(&image).is_err(), "bit {bit} of byte {place} was not seen");
    });
}

#[test]
fn a_flipped_bit_of_a_block_is_an_error_where_contents_are_checked() {
    let checked = PersistentOptions { check_data: true, ..SMALL };
    let mut heap = filled();
    heap.check_data = true;
    heap.seal().unwrap();
    let ranges: Vec<Range<usize>> =
        (0..heap.index.chunks()).flat_map(|chunk| heap.blocks_of(chunk)).collect();
    let image = image(heap);
    MemoryFile::new(&image).open(&checked).unwrap();
    proptest!(config(600), |(range in 0..ranges.len(), at: prop::sample::Index, bit in 0u8..8)| {
        let mut image = image.clone();
        let place = ranges[range].start + at.index(ranges[range].len());
        image[place] ^= 1 << bit;
        let found = MemoryFile::new(&image).open(&checked).map(|_| ());
        let is_seen = matches!(found, Err(PersistentError::Corrupt { what, .. })
            if what == "the contents of a block");
        prop_assert!(is_seen, "bit {bit} of byte {place}: {found:?}");
        prop_assert!(MemoryFile::new(&image).open(&SMALL).is_ok());
    });
}

#[test]
fn a_hash_of_contents_that_an_earlier_close_left_means_nothing() {
    let checked = PersistentOptions { check_data: true, ..SMALL };
    let memory = MemoryFile::new(&closed());
    memory.open(&checked).unwrap().close().unwrap();
    let mut heap = memory.open(&SMALL).unwrap();
    let place = heap.root::<[u8; 1]>("first").unwrap().unwrap();
    let mut tx = heap.begin();
    tx.change(place).unwrap()[0] ^= 1;
    tx.commit().unwrap();
    heap.close().unwrap();
    memory.open(&checked).unwrap().close().unwrap();
}

#[test]
fn a_file_that_was_cut_is_said_to_be_shorter_than_it_should() {
    let image = closed();
    let whole = image.len() as u64;
    proptest!(config(100), |(len in size_of::<FixedHeader>()..image.len())| {
        match open(&image[..len]) {
            Err(PersistentError::CutOff { expected, found }) => {
                prop_assert!(found == len as u64 && found < expected && expected <= whole);
            }
            other => prop_assert!(false, "{other:?}"),
        }
    });
    (0..size_of::<FixedHeader>())
        .for_each(|len| assert_eq!(open(&image[..len]), Err(PersistentError::Foreign)));
}

#[test]
fn any_bytes_of_a_heap_may_be_damaged_and_nothing_panics() {
    let images = [closed(), image(filled())];
    let damage = || prop::collection::vec((place(), any::<u8>()), 1..20);
    proptest!(config(200), |(image in 0..2usize, damage in damage(), cut in 0..3000usize)| {
        let mut image = images[image].clone();
        damage.into_iter().for_each(|(place, byte)| image[place] = byte);
        let len = image.len() - cut.saturating_sub(2000) * 100;
        let _ = open(&image[..len]);
    });
}

#[test]
fn a_file_of_any_bytes_is_foreign() {
    proptest!(config(100), |(bytes in prop::collection::vec(any::<u8>(), 0..300))| {
        prop_assert_eq!(open(&bytes), Err(PersistentError::Foreign));
    });
    let magic = super::format::MAGIC;
    proptest!(config(100), |(bytes in prop::collection::vec(any::<u8>(), 32..100_000))| {
        prop_assert!(open(&[&magic[..], &bytes].concat()).is_err());
    });
}

#[test]
fn a_format_of_the_future_is_said_to_be_newer_and_not_to_be_damaged() {
    let mut image = closed();
    image[8..12].copy_from_slice(&(VERSION + 1).to_le_bytes());
    assert_eq!(open(&image), Err(PersistentError::Newer { version: VERSION + 1 }));
}

/// Wrong metadata with a valid checksum.
#[derive(Clone, Debug)]
enum Lie {
    State { chunk: usize, kind: usize, length: usize },
    Root { at: usize, offset: u64 },
    Bits { place: usize, bits: u64 },
    Log { kind: usize, place: usize, len: usize },
    Commit,
    Chunks { chunks: u64 },
}

fn lie() -> impl Strategy<Value = Lie> {
    let heap = filled();
    let (shape, chunks) = (heap.shape, heap.index.chunks());
    let end = shape.with(chunks);
    let root = (0..ROOT_COUNT, prop_oneof![0..end as u64, any::<u64>()]);
    let bits = (shape.bitmap(0)..shape.bitmap(chunks), any::<u64>());
    let log = (1..4usize, 0..end + CHUNK, prop_oneof![Just(0usize), Just(8), 0..5000usize]);
    prop_oneof![
        (0..chunks, 0..CLASSES + 2, 0..chunks + 9).prop_map(|(chunk, kind, length)| Lie::State {
            chunk,
            kind,
            length
        }),
        root.prop_map(|(at, offset)| Lie::Root { at, offset }),
        bits.prop_map(|(place, bits)| Lie::Bits { place, bits }),
        log.clone().prop_map(|(kind, place, len)| Lie::Log { kind, place, len }),
        log.prop_map(|(kind, place, len)| Lie::Log { kind, place, len }),
        Just(Lie::Commit),
        (0..chunks as u64 + 3).prop_map(|chunks| Lie::Chunks { chunks }),
    ]
}

impl Lie {
    fn tell(self, heap: &mut Persistent) {
        let shape = heap.shape;
        match self {
            Lie::State { chunk, kind, length } => {
                let state = match kind {
                    0 => ChunkState::Free,
                    kind if kind <= CLASSES => ChunkState::Slab(kind - 1),
                    _ => ChunkState::Run(length),
                };
                let place = shape.entry(chunk);
                heap.mapping.store(place, state.word(place));
            }
            Lie::Root { at, offset } => {
                let mut name = [0; NAME];
                name[..3].copy_from_slice(b"lie");
                name[3] = u8::try_from(at).unwrap() + 1;
                for (word, value) in NamedRoot::new(name, offset).as_words().into_iter().enumerate()
                {
                    heap.mapping.store(ROOTS + at * ROOT + word * 8, value);
                }
            }
            Lie::Bits { place, bits } => heap.mapping.store(place & !7, bits),
            Lie::Log { kind, place, len } => {
                let kind = [LogEntryKind::Bytes, LogEntryKind::Free, LogEntryKind::Take][kind - 1];
                let len = if kind == LogEntryKind::Bytes { len & !7 } else { 0 };
                let place = (place & !7).min(shape.with(heap.index.chunks()) - len);
                // A full log has enough false entries.
                let _ = heap.note(kind, place, len);
            }
            Lie::Commit => {
                heap.generation = super::format::next(heap.generation, 1);
                heap.mapping.store(GENERATION, checked(GENERATION, heap.generation));
                heap.log.begin(heap.shape, heap.generation);
            }
            Lie::Chunks { chunks } => heap.mapping.store(CHUNKS, checked(CHUNKS, chunks)),
        }
    }
}

#[test]
fn a_file_may_lie_with_right_checks_and_nothing_panics() {
    proptest!(config(300), |(lies in prop::collection::vec(lie(), 1..30))| {
        let mut heap = filled();
        lies.into_iter().for_each(|lie| lie.tell(&mut heap));
        let _ = open(&image(heap));
    });
}

#[test]
fn the_largest_heap_there_may_be_is_opened_at_once() {
    let shape = HeapShape::new(MAX_CHUNKS, MAX_LOG_BYTES).unwrap();
    let head = [
        (GENERATION, checked(GENERATION, 1)),
        (CHUNKS, checked(CHUNKS, 1000)),
        (shape.entry(0), ChunkState::Run(1000).word(shape.entry(0))),
    ];
    let fixed = FixedHeader::new(shape).as_words().into_iter().enumerate();
    let memory =
        MemoryFile::sparse(shape.with(1000), fixed.map(|(at, word)| (at * 8, word)).chain(head));
    let mut heap = memory.open(&SMALL).unwrap();
    assert_eq!(heap.check().unwrap().bytes, 1000 * CHUNK);
    let mut tx = heap.begin();
    tx.free(Rel::<u8>::from_offset(shape.chunk(0) as u64)).unwrap();
    tx.commit().unwrap();
    assert_eq!(heap.check().unwrap().blocks, 0);
}
