//! Layout of the file, and encoding of words with a checksum. The functions do not access the file.
//!
//! ```text
//!        0  fixed part: magic, version, chunk size, capacity, size of a log, check. Never changes
//!     2^12  generation | chunks | seal: one checked word each; data seal | its seal
//!     2^13  roots: 64 of {name 40 bytes, offset, tag, check}
//!     2^16  log of even generations, then log of odd generations
//!           table: a checked word for each chunk that there may ever be
//!           bitmaps: 64 bytes for each
//!           chunks of 16 KiB: the blocks. The file grows here
//! ```
//!
//! The logs and the parts behind them start at multiples of 64 KiB, which is a multiple of every
//! common page size. All numbers are little-endian, as on the supported machines. The file is
//! mapped as a whole, which requires 64-bit addresses.

use core::mem::offset_of;

/// Unit of allocation: a chunk is free, or contains blocks of one size, or belongs to a run of
/// chunks that is one block.
pub(super) const CHUNK: usize = 1 << 14;
/// Alignment in bytes of the logs and of the parts of the file behind them.
pub(super) const AREA: usize = 1 << 16;
/// The first bytes of every heap.
pub(super) const MAGIC: [u8; 8] = *b"pwheap\r\n";
/// Version of the only supported format.
pub(super) const VERSION: u32 = 1;
/// Offset in the file of the generation of the open transaction.
pub(super) const GENERATION: usize = 4 << 10;
/// Offset in the file of the number of chunks.
pub(super) const CHUNKS: usize = GENERATION + 8;
/// Offset in the file of the seal: a hash over the metadata of the heap; 0 while the heap is open.
pub(super) const SEAL: usize = GENERATION + 16;
/// Offset in the file of the hash over the contents of all blocks. A copy of the seal follows this
/// hash; if it differs from the seal, the hash has no meaning.
pub(super) const DATA_SEAL: usize = GENERATION + 24;
pub(super) const DATA_SEALED: usize = GENERATION + 32;
/// Offset of the roots.
pub(super) const ROOTS: usize = 1 << 13;
/// Maximum number of roots.
pub(super) const ROOT_COUNT: usize = 64;
/// Maximum length of the name of a root in bytes.
pub(super) const NAME: usize = 40;
/// Offset of the logs.
pub(super) const LOG: usize = AREA;
/// Number of bytes in the bitmap of a chunk.
pub(super) const BITMAP: usize = 64;
/// Maximum number of chunks of a heap: 256 GiB.
pub(super) const MAX_CHUNKS: usize = 1 << 24;
/// Maximum number of bytes of each log: 2 GiB.
pub(super) const MAX_LOG_BYTES: usize = 1 << 31;

const _: () = assert!(ROOTS + ROOT_COUNT * size_of::<NamedRoot>() <= LOG);

/// First part of the file, which never changes.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub(super) struct FixedHeader {
    pub(super) magic: [u8; 8],
    pub(super) version: u32,
    pub(super) chunk: u32,
    pub(super) capacity: u64,
    pub(super) log: u64,
    pub(super) check: u64,
}

const _: () = assert!(size_of::<FixedHeader>() == 40 && offset_of!(FixedHeader, check) == 32);

impl FixedHeader {
    pub(super) fn new(shape: HeapShape) -> FixedHeader {
        let (capacity, log) = (shape.capacity as u64, shape.log as u64);
        let chunk = 1 << CHUNK.trailing_zeros();
        let fixed = FixedHeader { magic: MAGIC, version: VERSION, chunk, capacity, log, check: 0 };
        FixedHeader { check: fixed.hash(), ..fixed }
    }

    /// Returns the words of the header in the order of the file.
    pub(super) fn as_words(&self) -> [u64; 5] {
        let sizes = u64::from(self.chunk) << 32 | u64::from(self.version);
        [u64::from_le_bytes(self.magic), sizes, self.capacity, self.log, self.check]
    }

    /// Returns the hash of all fields except `check`.
    pub(super) fn hash(&self) -> u64 {
        self.as_words()[..4].iter().fold(1, |hash, word| mix(hash, *word))
    }
}

/// A root: a named block.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct NamedRoot {
    /// Name, which ends at the first NUL. An empty name marks an unused entry.
    pub(super) name: [u8; NAME],
    pub(super) offset: u64,
    /// Reserved: 0.
    pub(super) tag: u64,
    pub(super) check: u64,
}

const _: () = assert!(size_of::<NamedRoot>() == 64 && offset_of!(NamedRoot, offset) == 40);

impl NamedRoot {
    pub(super) const NONE: NamedRoot = NamedRoot { name: [0; NAME], offset: 0, tag: 0, check: 0 };

    pub(super) fn new(name: [u8; NAME], offset: u64) -> NamedRoot {
        let root = NamedRoot { name, offset, ..NamedRoot::NONE };
        NamedRoot { check: root.hash(), ..root }
    }

    pub(super) fn from_words(words: [u64; 8]) -> NamedRoot {
        let mut name = [0; NAME];
        for (bytes, word) in name.chunks_exact_mut(8).zip(words) {
            bytes.copy_from_slice(&word.to_le_bytes());
        }
        NamedRoot { name, offset: words[5], tag: words[6], check: words[7] }
    }

    pub(super) fn as_words(&self) -> [u64; 8] {
        let [a, b, c, d, e] = words_of(&self.name);
        [a, b, c, d, e, self.offset, self.tag, self.check]
    }

    /// Returns the hash of all fields except `check`.
    pub(super) fn hash(&self) -> u64 {
        self.as_words()[..7].iter().fold(2, |hash, word| mix(hash, *word))
    }
}

/// Returns a name as words of 8 bytes, in the byte order of the file.
pub(super) fn words_of(name: &[u8; NAME]) -> [u64; NAME / 8] {
    let mut words = [0; NAME / 8];
    for (word, bytes) in words.iter_mut().zip(name.chunks_exact(8)) {
        *word = bytes.iter().rev().fold(0, |word, byte| word << 8 | u64::from(*byte));
    }
    words
}

/// Sizes and offsets of the parts of a heap.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct HeapShape {
    /// Maximum number of chunks.
    pub(super) capacity: usize,
    /// Number of bytes of each log, a multiple of `AREA`.
    pub(super) log: usize,
    bitmaps: usize,
    data: usize,
}

impl HeapShape {
    /// Returns the shape of a heap with this maximum number of chunks and this number of bytes per
    /// log; `None` if a value is out of range.
    pub(super) fn new(capacity: usize, log: usize) -> Option<HeapShape> {
        let fits = (1..=MAX_CHUNKS).contains(&capacity) && (AREA..=MAX_LOG_BYTES).contains(&log);
        if !fits || !log.is_multiple_of(AREA) {
            return None;
        }
        let bitmaps = LOG + 2 * log + (capacity * 8).next_multiple_of(AREA);
        let data = bitmaps + (capacity * BITMAP).next_multiple_of(AREA);
        Some(HeapShape { capacity, log, bitmaps, data })
    }

    /// Offset of the table.
    #[inline]
    pub(super) fn table(self) -> usize {
        LOG + 2 * self.log
    }

    /// Offset of the bitmaps.
    #[inline]
    pub(super) fn bitmaps(self) -> usize {
        self.bitmaps
    }

    /// Offset of the chunks.
    #[inline]
    pub(super) fn data(self) -> usize {
        self.data
    }

    /// Returns the size in bytes of a file with this number of chunks.
    #[inline]
    pub(super) fn with(self, chunks: usize) -> usize {
        self.data() + chunks * CHUNK
    }

    /// Offset of the word of a chunk in the table.
    #[inline]
    pub(super) fn entry(self, chunk: usize) -> usize {
        self.table() + chunk * 8
    }

    /// Offset of a chunk's bitmap.
    #[inline]
    pub(super) fn bitmap(self, chunk: usize) -> usize {
        self.bitmaps() + chunk * BITMAP
    }

    /// Offset of a chunk.
    #[inline]
    pub(super) fn chunk(self, chunk: usize) -> usize {
        self.data() + chunk * CHUNK
    }
}

/// Mask of the bits of a checked word that contain its value. The bits above contain its check.
pub(super) const VALUE: u64 = (1 << 52) - 1;

/// Returns a checked word: a 52-bit value and, in the upper 12 bits, a check over the value and the
/// word's offset in the file. One instruction stores the word, so that it is never half written.
#[inline]
pub(super) fn checked(place: usize, value: u64) -> u64 {
    let value = value & VALUE;
    value | mix(place as u64, value) & !VALUE
}

/// Returns the generation `by` after `generation`. Generations repeat after 2^52; by then no log
/// contains an entry of the earlier transaction.
#[inline]
pub(super) fn next(generation: u64, by: u64) -> u64 {
    generation.wrapping_add(by) & VALUE
}

/// Returns the value of a checked word; `None` if its check is wrong.
pub(super) fn value(place: usize, word: u64) -> Option<u64> {
    (checked(place, word) == word).then_some(word & VALUE)
}

/// Adds a word to a hash: combines the two halves of a product, so that each input bit changes half
/// of the output bits on average.
#[inline]
pub(super) fn mix(hash: u64, word: u64) -> u64 {
    let product =
        u128::from(hash ^ 0x9e37_79b9_7f4a_7c15) * u128::from(word ^ 0xd6e8_feb8_6659_fd93);
    #[expect(clippy::cast_possible_truncation, reason = "the lower half is what is meant")]
    let (low, high) = (product as u64, (product >> 64) as u64);
    low ^ high.rotate_left(29)
}

/// State of a chunk in the table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ChunkState {
    /// Free, or a chunk of a run other than its first chunk.
    Free,
    /// Contains blocks of this size class.
    Slab(usize),
    /// The first chunk of a run of this number of chunks, which is one block.
    Run(usize),
}

impl ChunkState {
    /// Returns the word of the table at an offset in the file. The word of a free chunk is 0, as in
    /// a new file.
    pub(super) fn word(self, place: usize) -> u64 {
        match self {
            ChunkState::Free => 0,
            ChunkState::Slab(class) => checked(place, class as u64 + 1),
            ChunkState::Run(chunks) => checked(place, (chunks as u64) << 8),
        }
    }

    /// Returns the state that a word of the table encodes; `None` if no state has this encoding.
    pub(super) fn read(place: usize, word: u64) -> Option<ChunkState> {
        if word == 0 {
            return Some(ChunkState::Free);
        }
        let value = usize::try_from(value(place, word)?).ok()?;
        match (value & 0xff, value >> 8) {
            (0, chunks) if chunks > 0 => Some(ChunkState::Run(chunks)),
            (class, 0) if (1..=CLASSES).contains(&class) => Some(ChunkState::Slab(class - 1)),
            _ => None,
        }
    }
}

/// Sizes in bytes of blocks that share a chunk. From 64 to 2336, each size exceeds the one before
/// by an eighth to a quarter. From 2336 on, the sizes fit 7 to 2 times into a chunk.
pub(super) const SIZES: [u16; CLASSES] = [
    32,
    48,
    64,
    80,
    96,
    112,
    128,
    160,
    192,
    224,
    256,
    320,
    384,
    448,
    512,
    640,
    768,
    896,
    1024,
    1280,
    1536,
    1792,
    2048,
    2336,
    2720,
    3264,
    4 << 10,
    5456,
    8192,
];
/// Number of size classes.
pub(super) const CLASSES: usize = 29;
/// Maximum size in bytes of a block that shares a chunk.
pub(super) const SHARED: usize = SIZES[CLASSES - 1] as usize;

/// Precomputed values of a size class.
#[derive(Clone, Copy, Debug)]
pub(super) struct ChunkClass {
    /// Size of a block in bytes.
    pub(super) size: usize,
    /// Number of blocks in a chunk.
    pub(super) slots: usize,
    /// Number of words in the bitmap of a chunk.
    pub(super) words: usize,
    /// Mask of the bits of the last word that correspond to no block. They are always set.
    pub(super) beyond: u64,
    /// 2^24 / size, rounded up. Multiplying an offset in a chunk by this value replaces a division.
    inverse: usize,
}

impl ChunkClass {
    /// Returns the index of the block that starts at an offset in a chunk; `None` if no block
    /// starts there.
    #[inline]
    pub(super) fn slot(&self, offset: usize) -> Option<usize> {
        let slot = (offset * self.inverse) >> 24;
        (slot < self.slots && slot * self.size == offset).then_some(slot)
    }

    /// Returns a word of the bitmap of a chunk in which no block is allocated.
    pub(super) fn empty(&self, word: usize) -> u64 {
        if word + 1 == self.words { self.beyond } else { 0 }
    }
}

/// Precomputed values of each size class.
pub(super) static TABLE: [ChunkClass; CLASSES] = {
    let none = ChunkClass { size: 0, slots: 0, words: 0, beyond: 0, inverse: 0 };
    let mut table = [none; CLASSES];
    let mut class = 0;
    while class < CLASSES {
        let size = SIZES[class] as usize;
        let slots = CHUNK / size;
        let beyond = if slots.is_multiple_of(64) { 0 } else { !0 << (slots % 64) };
        let inverse = (1usize << 24).div_ceil(size);
        table[class] = ChunkClass { size, slots, words: slots.div_ceil(64), beyond, inverse };
        class += 1;
    }
    table
};

/// Size class for each size; the index is the size in units of 16 bytes.
const OF_SIZE: [u8; SHARED / 16 + 1] = {
    let mut classes = [0; SHARED / 16 + 1];
    let (mut units, mut class) = (0, 0);
    while units < classes.len() {
        if units * 16 > SIZES[class] as usize {
            class += 1;
        }
        #[expect(clippy::cast_possible_truncation, reason = "there are 29")]
        let found = class as u8;
        classes[units] = found;
        units += 1;
    }
    classes
};

/// Returns the smallest size class for a size and an alignment; `None` if the block takes whole
/// chunks.
#[inline]
pub(super) fn class_of(size: usize, align: usize) -> Option<usize> {
    let class = usize::from(*OF_SIZE.get(size.div_ceil(16))?);
    if align <= 16 {
        return Some(class);
    }
    (class..CLASSES).find(|class| TABLE[*class].size.is_multiple_of(align))
}

/// Returns the size in bytes of the block for a size and an alignment; `None` if the alignment or
/// the size is too large.
pub(super) fn rounded(size: usize, align: usize) -> Option<usize> {
    match class_of(size, align) {
        Some(class) => Some(TABLE[class].size),
        None => size.checked_next_multiple_of(CHUNK).filter(|_| align <= CHUNK),
    }
}

#[cfg(test)]
mod tests {
    extern crate std;

    use super::*;

    #[test]
    fn every_size_has_the_smallest_class_that_fits() {
        for size in 0..=SHARED {
            let class = class_of(size, 8).unwrap();
            assert!(TABLE[class].size >= size && (class == 0 || TABLE[class - 1].size < size));
        }
        assert_eq!(class_of(SHARED + 1, 8), None);
    }

    #[test]
    fn every_class_is_aligned_as_asked() {
        for align in (4..14).map(|bit| 1 << bit) {
            for size in [1, 33, 100, 1000, 5000] {
                let class = class_of(size, align);
                assert!(class.is_none_or(|class| TABLE[class].size.is_multiple_of(align)));
            }
        }
    }

    #[test]
    fn slots_are_found_by_multiplication_as_by_division() {
        for class in &TABLE {
            assert!(class.words <= BITMAP / 8);
            for offset in 0..CHUNK {
                let exact = offset % class.size == 0 && offset / class.size < class.slots;
                assert_eq!(class.slot(offset), exact.then_some(offset / class.size));
            }
        }
    }

    #[test]
    fn a_checked_word_knows_its_place_and_a_flipped_bit_is_nearly_always_seen() {
        let word = checked(CHUNKS, 1234);
        assert_eq!((value(CHUNKS, word), value(SEAL, word)), (Some(1234), None));
        let missed = (0..64).filter(|bit| value(CHUNKS, word ^ 1 << bit).is_some()).count();
        assert!(missed <= 1, "{missed}");
    }

    #[test]
    fn states_survive_their_words_and_others_are_refused() {
        let states = (0..CLASSES).map(ChunkState::Slab).chain([
            ChunkState::Free,
            ChunkState::Run(1),
            ChunkState::Run(1 << 24),
        ]);
        for state in states {
            assert_eq!(ChunkState::read(64, state.word(64)), Some(state));
        }
        for odd in [0xff, 1 << 8 | 1, CLASSES as u64 + 1] {
            assert_eq!(ChunkState::read(64, checked(64, odd)), None);
        }
    }

    #[test]
    fn the_description_has_the_places_and_the_classes_that_there_are() {
        let text = include_str!("../../../../docs/persistent.md");
        let row = |name: &str, number: fn(&ChunkClass) -> usize, classes: &[ChunkClass]| {
            let numbers = classes.iter().map(|class| std::format!(" {} |", number(class)));
            std::format!("| {name} |{}\n", numbers.collect::<std::string::String>())
        };
        for classes in [&TABLE[..15], &TABLE[15..]] {
            assert!(text.contains(&row("bytes of a block", |class| class.size, classes)));
            assert!(text.contains(&row("blocks of a chunk", |class| class.slots, classes)));
        }
        let places = [
            (GENERATION, "8"),
            (CHUNKS, "8"),
            (SEAL, "8"),
            (DATA_SEAL, "16"),
            (ROOTS, "64 × 64"),
            (LOG, "`log`"),
        ];
        for (place, size) in places {
            assert!(text.contains(&std::format!("\n| {place} | {size} |")), "{place}");
        }
        let magic = MAGIC.map(|byte| std::format!("{byte:02x}")).join(" ");
        assert!(text.contains(&std::format!("`{magic}`")));
        assert!(text.contains(&std::format!("| 8 | 4 | format: {VERSION} |")));
    }
}
