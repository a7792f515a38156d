//! Layouts of segments, pages and heaps: include/mimalloc/types.h, on 64-bit machines.
//!
//! ```text
//!  slice, and the page that begins in it      plain  with keys  plain  with keys  with keys
//!                                          to 2.1.3  to 2.1.3  since 2.1.4  ..    to 2.0.8
//!  slices of the page (4 bytes)                   0          0      0          0          0
//!  distance from the page, in bytes (4)           4          4      4          4          4
//!  blocks carved so far (2)                      10         10     10         10         10
//!  blocks that fit (2)                           12         12     12         12         12
//!  free list                                     16         16     16         16         16
//!  blocks in use                             24 (4)     24 (4) 32 (2)     32 (2)     40 (4)
//!  size of a block                           28 (4)     28 (4)     40         40     44 (4)
//!  free list of the owner                        32         32     24         24         48
//!  first block                                    -          -     48         48          -
//!  keys                                           -         40      -         56         24
//!  free list of other threads                    40         56     56         72         56
//!  heap                                          48         64     64         80         64
//!  bytes                                         80         96     96        112         96
//! ```

/// Number of bytes of a slice.
pub(super) const SLICE: u64 = 64 << 10;
/// Offsets of fields that are equal in all layouts.
pub(super) const SLICE_COUNT: u64 = 0;
pub(super) const SLICE_DISTANCE: u64 = 4;
pub(super) const CAPACITY: u64 = 10;
pub(super) const RESERVED: u64 = 12;
pub(super) const FREE: u64 = 16;
/// Value of the block size field if the size does not fit into 4 bytes: the block fills its page.
pub(super) const HUGE_BLOCK: u64 = 2 << 30;

/// Offsets of fields in a slice entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct PageLayout {
    pub(super) bytes: u64,
    pub(super) used: u64,
    /// True if the number of used blocks and the block size are 4-byte fields. Otherwise they have
    /// 2 and 8 bytes.
    pub(super) has_halves: bool,
    pub(super) block_size: u64,
    pub(super) local_free: u64,
    pub(super) first_block: Option<u64>,
    pub(super) keys: Option<u64>,
    pub(super) thread_free: u64,
    pub(super) heap: u64,
}

const PLAIN: PageLayout = PageLayout {
    bytes: 80,
    used: 24,
    has_halves: true,
    block_size: 28,
    local_free: 32,
    first_block: None,
    keys: None,
    thread_free: 40,
    heap: 48,
};
const KEYED: PageLayout =
    PageLayout { bytes: 96, keys: Some(40), thread_free: 56, heap: 64, ..PLAIN };
const OLD_KEYED: PageLayout =
    PageLayout { used: 40, block_size: 44, local_free: 48, keys: Some(24), ..KEYED };
const WIDE: PageLayout = PageLayout {
    bytes: 96,
    used: 32,
    has_halves: false,
    block_size: 40,
    local_free: 24,
    first_block: Some(48),
    keys: None,
    thread_free: 56,
    heap: 64,
};
const WIDE_KEYED: PageLayout =
    PageLayout { bytes: 112, keys: Some(56), thread_free: 72, heap: 80, ..WIDE };

/// Offsets of fields in a segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct SegmentLayout {
    /// Versions with this layout, for the report.
    pub(super) name: &'static str,
    /// Size and alignment in bytes of all segments except those of huge blocks.
    pub(super) bytes: u64,
    pub(super) cookie: u64,
    pub(super) slice_count: u64,
    pub(super) info_slices: u64,
    pub(super) is_huge: u64,
    pub(super) entries: u64,
    pub(super) thread: u64,
    pub(super) slices: u64,
    pub(super) page: PageLayout,
}

const fn segment(name: &'static str, page: PageLayout) -> SegmentLayout {
    SegmentLayout {
        name,
        bytes: 32 << 20,
        cookie: 216,
        slice_count: 224,
        info_slices: 232,
        is_huge: 240,
        entries: 248,
        thread: 256,
        slices: 264,
        page,
    }
}

const fn with_subprocess(name: &'static str, page: PageLayout) -> SegmentLayout {
    SegmentLayout {
        cookie: 224,
        slice_count: 248,
        info_slices: 256,
        is_huge: 264,
        entries: 272,
        thread: 280,
        slices: 288,
        ..segment(name, page)
    }
}

const fn large(name: &'static str, page: PageLayout) -> SegmentLayout {
    SegmentLayout {
        bytes: 64 << 20,
        cookie: 320,
        slice_count: 328,
        info_slices: 336,
        is_huge: 344,
        thread: 352,
        entries: 360,
        slices: 368,
        ..segment(name, page)
    }
}

impl SegmentLayout {
    /// All layouts. Among layouts of equal size, those whose pages have more fields to check come
    /// first.
    pub(super) const ALL: [SegmentLayout; 8] = [
        with_subprocess("mimalloc 2.2 to 2.3", WIDE),
        with_subprocess("mimalloc 2.2 to 2.3, encoded lists", WIDE_KEYED),
        segment("mimalloc 2.1.4 to 2.1.9", WIDE),
        segment("mimalloc 2.1.4 to 2.1.9, encoded lists", WIDE_KEYED),
        segment("mimalloc 2.0.9 to 2.1.3", PLAIN),
        segment("mimalloc 2.0.9 to 2.1.3, encoded lists", KEYED),
        large("mimalloc 2.0.6 to 2.0.7", PLAIN),
        large("mimalloc 2.0.6 to 2.0.7, encoded lists", OLD_KEYED),
    ];
    /// Smallest segment alignment in bytes of all layouts.
    pub(super) const MIN_ALIGNMENT: u64 = 32 << 20;

    /// Number of slices of a segment, except segments of huge blocks.
    pub(super) const fn max_entries(&self) -> u64 {
        self.bytes / SLICE
    }
}

/// Rule of versions that do not store the address of the first block of a page: a function from the
/// block size to the distance of the first block from the start of its page.
pub(super) type FirstBlockRule = fn(u64) -> u64;

/// Rules of 2.1.1 to 2.1.3, of 2.0.9, and of 2.0.7.
pub(super) const FIRST_BLOCK_RULES: [FirstBlockRule; 3] = [
    |size| match size {
        0..8 => 0,
        8..=64 => 3 * size,
        65..=512 => size,
        _ => 0,
    },
    |size| if (8..=1024).contains(&size) { 384 } else { 0 },
    |size| if (8..=1024).contains(&size) { 128 } else { 0 },
];

/// Possible offsets in a heap of its list of blocks that other threads freed. The word after the
/// head of this list is the thread pointer of the heap's thread. In older versions the page tables
/// precede the list, and their size depends on padding.
pub(super) const DELAYED_FREE: [u64; 3] = [8, 2840, 2848];
/// Distance in bytes in a heap from its list of blocks that other threads freed to its keys.
pub(super) const DELAYED_KEYS: u64 = 32;
