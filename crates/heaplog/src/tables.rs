//! Counters of a recorder: tables in memory that it shares with the collector.
//!
//! The tables are in a sparse file without a name (`memfd_create`). They follow each other at fixed
//! offsets, in this order:
//!
//! | table | contents |
//! |---|---|
//! | [`HEADER`] | parameters, numbers of entries, and words for inline hooks |
//! | [`THREADS`] | one slot for each thread, with its counts |
//! | [`MODULES`] | files of code and their address ranges |
//! | [`STRINGS`] | paths and build IDs of the modules |
//! | [`PLACES`] | return addresses |
//! | [`NODES`] | calls: a return address and the node of the caller |
//! | [`SITES`] | call stacks that allocated: the innermost call's node and the kind of memory |
//! | [`OWNERS`] | for each chunk: the thread that writes it, and the sites that it counts |
//! | [`CHUNKS`] | chunks of records; a record contains the counters of one thread for one site |
//! | [`OWN`] | address ranges that the recorder itself uses in the process |
//! | [`LOG`] | allocations and frees of large blocks in order of time, if requested |
//!
//! The recorder only appends to the tables from [`MODULES`] to [`SITES`]. It writes an entry first,
//! and then increases the number of entries in the header. Counters are words of 8 bytes in the
//! machine's byte order. Only one thread at a time writes a counter.
//!
//! # Live amounts at the peak
//!
//! A [`record`] has the current counters, a copy of the live amount, and the epoch of this copy.
//! The header has the current epoch of peaks. When the live bytes first fall after a new peak, the
//! recorder adds one to the epoch in the header. Before a thread changes a record with an older
//! epoch, the thread copies the live amount and stores the new epoch. So if the record's epoch
//! equals the header's epoch, the copy is the live amount at the peak. Otherwise the record has not
//! changed since the peak, and the current live amount is also the live amount at the peak. The
//! collector increases a second epoch to read all records as of one time point: the recorder makes
//! a second copy in the same way.

/// The first word of the header: `pwheap` and the version of this layout.
pub const MAGIC: u64 = u64::from_le_bytes(*b"pwheap\x00\x03");

/// Bit in an address that marks an instruction which was interrupted and is not a call. Addresses
/// of programs never have this bit.
pub const INTERRUPTED: u64 = 1 << 63;

/// Offset, entry size and capacity of a table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TableRange {
    /// Offset from the beginning of the file in bytes.
    pub at: usize,
    /// Number of bytes in an entry.
    pub entry: usize,
    /// Maximum number of entries.
    pub room: usize,
}

impl TableRange {
    const fn behind(before: TableRange, entry: usize, room: usize) -> TableRange {
        TableRange { at: before.at + before.entry * before.room, entry, room }
    }

    /// Offset of an entry.
    pub const fn place(&self, index: usize) -> usize {
        self.at + index * self.entry
    }
}

/// Words of [`header`].
pub const HEADER: TableRange = TableRange { at: 0, entry: 8, room: 24 << 10 };
/// Slots of threads. Each slot consists of the words that [`thread`] numbers.
pub const THREADS: TableRange = TableRange::behind(HEADER, 2 << 10, 8 << 10);
/// Files of code, words of [`module`].
pub const MODULES: TableRange = TableRange::behind(THREADS, 64, 16 << 10);
/// Bytes of paths and build IDs.
pub const STRINGS: TableRange = TableRange::behind(MODULES, 1, 4 << 20);
/// Return addresses: the address, then the module's number plus 1 (0 for none), a word each.
pub const PLACES: TableRange = TableRange::behind(STRINGS, 16, 1 << 20);
/// Nodes: the number of the parent ([`crate::recording::ROOT`] without a parent), and the number of
/// the return address in [`PLACES`], 4 bytes each.
pub const NODES: TableRange = TableRange::behind(PLACES, 8, 2 << 20);
/// Sites: the number of the node, and the kind ([`kind`]), 4 bytes each.
pub const SITES: TableRange = TableRange::behind(NODES, 8, 512 << 10);
/// Owner of each chunk: the index of the chunk's group of [`RECORDS`] sites plus 1 (0 if the chunk
/// is unused), and the slot of the thread that owns the chunk, 4 bytes each.
pub const OWNERS: TableRange = TableRange::behind(SITES, 8, 192 << 10);
/// Chunks of records.
pub const CHUNKS: TableRange = TableRange::behind(OWNERS, RECORDS * record::SIZE, 192 << 10);
/// Memory of the recorder's own in the process: the address and the length, a word each; both are 0
/// while an entry is being added.
pub const OWN: TableRange = TableRange::behind(CHUNKS, 16, 4 << 10);
/// Allocations and frees, words of [`log`], in a ring buffer. The header has the numbers of entries
/// that were written and read.
pub const LOG: TableRange = TableRange::behind(OWN, 8 * log::WORDS, 256 << 10);
/// Number of bytes of the whole file.
pub const LENGTH: usize = LOG.at + LOG.entry * LOG.room;

/// Number of records in a chunk, and of sites in a group: group *n* begins with site `n * RECORDS`.
pub const RECORDS: usize = 32;

/// Indices of the header's words.
pub mod header {
    /// [`super::MAGIC`], written last when the recorder begins.
    pub const MAGIC: usize = 0;
    /// PID of the process.
    pub const PID: usize = 1;
    /// Start time of the recording, in nanoseconds since 1970.
    pub const BEGAN: usize = 2;
    /// Start time of the recording by `CLOCK_MONOTONIC`, in nanoseconds.
    pub const BEGAN_MONOTONIC: usize = 3;
    /// Mean number of bytes between samples; 0 if every call is recorded.
    pub const EVERY_BYTES: usize = 4;
    /// Average number of allocations per measured lifetime.
    pub const LIFETIMES_EVERY: usize = 5;
    /// Number of entries of [`super::MODULES`].
    pub const MODULES: usize = 6;
    /// Number of bytes of [`super::STRINGS`].
    pub const STRINGS: usize = 7;
    /// Number of entries of [`super::PLACES`].
    pub const PLACES: usize = 8;
    /// Number of entries of [`super::NODES`].
    pub const NODES: usize = 9;
    /// Number of entries of [`super::SITES`].
    pub const SITES: usize = 10;
    /// Number of entries of [`super::OWNERS`] and [`super::CHUNKS`] that were ever used.
    pub const CHUNKS: usize = 11;
    /// Number of slots of [`super::THREADS`] that were ever used.
    pub const THREADS: usize = 12;
    /// Number of threads that record now.
    pub const RUNNING: usize = 13;
    /// Number of frees of blocks whose allocation was not recorded.
    pub const UNKNOWN_FREES: usize = 14;
    /// Number of allocations whose call stack was cut.
    pub const CUT_STACKS: usize = 15;
    /// Reason why the recorder ended early ([`super::trouble`]); 0 if it did not.
    pub const TROUBLE: usize = 16;
    /// Number of entries that were added to [`super::OWN`], including entries that did not fit.
    pub const OWN: usize = 17;
    /// Address of the map of live blocks, and in the lowest bits its format ([`super::live`]): for
    /// readers of the process's memory.
    pub const LIVE_MAP: usize = 18;
    /// Provider of `malloc`: [`super::allocator`].
    pub const ALLOCATOR: usize = 19;
    /// Name of the file that provides `malloc`: its offset in [`super::STRINGS`] (low half), and
    /// its length (high half).
    pub const ALLOCATOR_NAME: usize = 20;

    /// Odd while records move from one chunk to another. The collector must read again if the value
    /// has changed.
    pub const CHANGES: usize = 22;
    /// Number of bytes in separate mappings that the C library created for live blocks.
    pub const MAPPED: usize = 23;
    /// 1 if the library that provides `malloc` has an `operator new`, too, whose calls are not
    /// recorded.
    pub const OWN_NEW: usize = 24;

    /// Address of the table of sizes that do not fit into cells of live blocks. The lowest bits
    /// contain the binary logarithm of the number of entries. Each entry contains the address and
    /// the size of a block. It is at the index [`super::live::place`] of the address, or at one of
    /// the following indices. 0 if the table is not allocated yet.
    pub const LIVE_SIZES: usize = 25;
    /// Number of usable bytes of the blocks of [`UNKNOWN_FREES`], if the C library provides
    /// `malloc`.
    pub const UNKNOWN_FREED: usize = 26;

    // Each of the following groups has a cache line of its own.
    /// The epochs: of peaks (low half, written by the recorder), of snapshots (high half, written
    /// by the collector).
    pub const EPOCHS: usize = 32;
    /// Live bytes, plus the credit of all threads ([`super::thread::ROOM`]).
    pub const UPPER: usize = 40;
    /// Maximum of [`UPPER`] so far.
    pub const PEAK: usize = 41;
    /// 1 until the first free after a new peak.
    pub const RISING: usize = 43;
    /// 1 once several threads may record at a time. The error of the peak then depends on the
    /// credit of the threads ([`super::CREDIT`]).
    pub const MANY: usize = 44;
    /// Maximum number of threads that recorded at a time.
    pub const MAX_LIVE_THREADS: usize = 45;

    /// Number of entries that were ever written to [`super::LOG`].
    pub const LOG_WRITTEN: usize = 48;
    /// Number of entries that were lost because the log was not read in time.
    pub const LOG_LOST: usize = 49;
    /// Time of the first lost entry, by `CLOCK_MONOTONIC`; the reader sets it to 0 again.
    pub const LOG_FIRST_LOST: usize = 50;
    /// Time of the last lost entry, by `CLOCK_MONOTONIC`.
    pub const LOG_LAST_LOST: usize = 51;
    /// Number of entries that were read; the collector writes this word.
    pub const LOG_READ: usize = 56;
}

/// Words of the header for inline hooks. The hooked functions are those that a preloaded library
/// cannot interpose.
///
/// The recorder writes the addresses of the functions and of free memory near them: the code area.
/// The collector answers with code for that memory: for each function a jump to its replacement,
/// and the relocated first instructions of the function.
pub mod hooks {
    /// Number of functions: `malloc`, `free`, `calloc`, `realloc`, `memalign`, `aligned_alloc`,
    /// `posix_memalign`, `valloc`, `pvalloc`, and in programs that run already `pthread_create`,
    /// `thrd_create`, `prctl`, `dlclose`, `mmap`, `munmap`, `mremap`, `brk`, `sbrk`.
    pub const FUNCTIONS: usize = 18;
    /// Number of functions of `malloc`'s family. If one of them cannot be hooked, nothing is
    /// recorded.
    pub const FAMILY: usize = 9;
    /// Address of the code area near `malloc`'s family; 0 if not requested.
    pub const NEAR: usize = 1024;
    /// Address of the code area near the other functions, with the same layout; 0 if they use the
    /// code area at [`NEAR`].
    pub const NEAR_OTHERS: usize = 1031;
    /// Address of each function; 0 for a function that is not hooked.
    pub const AT: usize = 1040;
    /// Address of the replacement of each function.
    pub const ENTRIES: usize = 1064;
    /// Number of bytes of each function's relocated instructions, in the collector's answer; 0 if
    /// the function cannot be hooked.
    pub const LENGTHS: usize = 1088;
    /// The first 8 bytes of each function before the function was hooked for the first time.
    pub const BEFORE: usize = 1112;
    /// Functions to hook in this recording, one bit for each function.
    pub const WANTED: usize = 1027;
    /// Address of the number of threads that exist but do not record yet, in programs that run
    /// already.
    pub const COMING: usize = 1028;
    /// Address of the function that ends the recording: calls are not recorded after it returns.
    pub const DETACH: usize = 1029;
    /// Address of the function that unmaps all memory of the recorder. It must be called after
    /// [`DETACH`].
    pub const RELEASE: usize = 1030;
    /// Contents of the code area, in the collector's answer.
    pub const CODE: usize = 2048;
    /// 1 if the code area has its contents already.
    pub const READY: usize = 1025;
    /// Signed distance in bytes of the recorder's thread-local words from the thread pointer
    /// (`fs`). While a thread is inside the recorder, its first word is the address of 4 bytes with
    /// the value [`NOW`], or its third word is [`BUSY`].
    pub const OWN: usize = 1026;
    /// Value of the 4 bytes to which the first word of [`OWN`] points, while a thread is inside the
    /// recorder.
    pub const NOW: u32 = 2;
    /// Value of the third word of [`OWN`] while a thread is inside the recorder.
    pub const BUSY: u64 = 3;
    /// Length of the code area in words.
    pub const CODE_WORDS: usize = FUNCTIONS * STRIDE / 8;
    /// Number of bytes of the code area for each function, which begin with a jump to its
    /// replacement.
    pub const STRIDE: usize = 192;
    /// Offset of the relocated instructions in the [`STRIDE`] bytes of a function.
    pub const MOVED: usize = 16;
}

/// Words of the header that identify the collector, which writes them. Other processes use them to
/// check if the collector still runs.
pub mod collector {
    /// PID of the collector; 0 before its answer.
    pub const PID: usize = 1032;
    /// Start time of the collector, in clock ticks since boot.
    pub const STARTED: usize = 1033;
    /// Inode of the PID namespace of the collector.
    pub const NAMESPACE: usize = 1034;
}

/// Words of the header for inline hooks of functions that allocate under other names than
/// `malloc`'s family, or under these names without being exported.
///
/// The collector finds them by the symbols of the program's files, and writes their roles and the
/// addresses of free memory near them: the code areas. It relocates their first instructions to the
/// code areas, as it does for [`hooks`]. The recorder maps the code areas.
pub mod named {
    /// Address of the recorder's code to which the hooks jump.
    pub const ENTRY: usize = 1200;
    /// 1 if the functions of the rows are hooked already.
    pub const READY: usize = 1201;
    /// Number of rows that the collector has written.
    pub const COUNT: usize = 1202;
    /// Number of code areas (ranges of memory for relocated instructions) that the collector has
    /// chosen.
    pub const ROOM_COUNT: usize = 1203;
    /// Address and length in bytes of each code area that the collector has chosen, in turn.
    pub const ROOMS: usize = 5000;
    /// Maximum number of code areas.
    pub const MAX_ROOMS: usize = 32;
    /// The rows, one for each hooked function. Each row consists of the words that [`row`] numbers.
    pub const ROWS: usize = 8192;
    /// Maximum number of rows.
    pub const MAX_CHUNKS: usize = 384;
    /// Number of bytes of each function's part of a code area.
    pub const STRIDE: usize = super::hooks::STRIDE;
    /// Offset of the relocated instructions in this part. Before them is a jump to [`ENTRY`] with
    /// the row's number in `r11`.
    pub const MOVED: usize = 32;

    /// Indices of the words of a row.
    pub mod row {
        /// Address of the function; 0 if the row is unused.
        pub const AT: usize = 0;
        /// Number of bytes of the function's relocated instructions.
        pub const LENGTH: usize = 1;
        /// Meaning of the function: [`super::role`].
        pub const ROLE: usize = 2;
        /// For a function that throws an exception on failure: address of the variant that returns
        /// 0 instead, which the recorder calls. 0 for other functions.
        pub const INSTEAD: usize = 3;
        /// Address of the function's part of a code area.
        pub const PLACE: usize = 4;
        /// The first 8 bytes of the function before it was hooked.
        pub const BEFORE: usize = 5;
        /// Code for the function's part of the code area.
        pub const CODE: usize = 8;
        /// Number of words of a row.
        pub const WORDS: usize = CODE + super::STRIDE / 8;
    }

    /// Meanings of functions: a number in the lowest 8 bits, and the indices of arguments in the
    /// bits above. Below, `argument(n)` stands for the value of the argument that has this index.
    pub mod role {
        /// Returns a block of `argument(0)` bytes, or of the product with `argument(1)`.
        pub const ALLOCATES: u64 = 1;
        /// Stores the address of a block of `argument(0)` bytes at the address in the first
        /// argument, and returns 0.
        pub const ALLOCATES_INTO: u64 = 2;
        /// Resizes the block `argument(2)` to `argument(0)` bytes, or to the product with
        /// `argument(1)`. The block may move.
        pub const RESIZES: u64 = 3;
        /// Resizes the block like [`RESIZES`], but frees it on failure.
        pub const RESIZES_OR_FREES: u64 = 4;
        /// Resizes the block in the first argument in place to the size in the second argument, and
        /// if possible to a size that is larger by up to the third argument. Returns the resulting
        /// size in bytes.
        pub const RESIZES_IN_PLACE: u64 = 5;
        /// Frees the block `argument(2)`.
        pub const FREES: u64 = 6;
        /// Returns a copy of a string in a new block.
        pub const COPIES_TEXT: u64 = 7;
        /// Index that means that the function has no such argument.
        pub const NONE: u64 = 7;

        /// Meaning of a function, with the indices of three arguments: the size, the factor of the
        /// size, and the block.
        pub const fn new(what: u64, size: u64, times: u64, block: u64) -> u64 {
            what | size << 8 | times << 16 | block << 24
        }

        /// Index of an argument: the size (`which` is 0), the factor of the size (1), or the block
        /// (2).
        pub const fn argument(role: u64, which: u32) -> u64 {
            role >> (8 + 8 * which) & 7
        }

        /// Kind of the function, one of the constants above.
        pub const fn what(role: u64) -> u64 {
            role & 0xff
        }
    }
}

/// Credit of a thread: bytes that it may allocate and free before it updates the shared counters,
/// while several threads run.
pub const CREDIT: u64 = 64 << 10;

/// Number of cells of a histogram by powers of two: cell 0 counts zeros, cell *n* counts 2^(n-1) ..
/// 2^n - 1.
pub const CELLS: usize = 65;

/// Indices of the words of a thread's slot.
pub mod thread {
    /// TID of the thread; 0 if the slot is free. Slot 0 belongs to no thread: it has the counts of
    /// ended threads.
    pub const TID: usize = 0;
    /// 1 while the thread runs.
    pub const RUNS: usize = 1;
    /// Name of the thread: 16 bytes that end with a zero.
    pub const NAME: usize = 2;
    /// Number of bytes that the thread may allocate before it must update the header.
    pub const ROOM: usize = 4;
    /// Amount allocated according to the chunks that the thread no longer owns: bytes, blocks.
    pub const ALLOCATED: usize = 5;
    /// Amount freed according to the chunks that the thread no longer owns: bytes, blocks.
    pub const FREED: usize = 7;
    /// Number of allocations by size.
    pub const SIZES: usize = 16;
    /// Number of measured lifetimes, by nanoseconds.
    pub const LIFETIMES: usize = SIZES + super::CELLS;
    /// Number of words of a slot.
    pub const WORDS: usize = LIFETIMES + super::CELLS;
}

/// Indices of the words of an entry of the log. The first entry has no block; its time is the start
/// of the log.
pub mod log {
    /// Time in nanoseconds of `CLOCK_MONOTONIC`, not before the time of the previous entry.
    pub const TIME: usize = 0;
    /// Address of the block.
    pub const ADDRESS: usize = 1;
    /// Requested size in bytes.
    pub const SIZE: usize = 2;
    /// Index of the block's site plus 1; 0 if the entry is a free.
    pub const SITE: usize = 3;
    /// Number of words of an entry.
    pub const WORDS: usize = 4;
}

/// Indices of the words of a module.
pub mod module {
    /// First address of the module.
    pub const START: usize = 0;
    /// End address of the module (exclusive).
    pub const END: usize = 1;
    /// Difference between an address in memory and the address in the file.
    pub const BIAS: usize = 2;
    /// Offset of the path in [`super::STRINGS`].
    pub const PATH: usize = 3;
    /// Number of bytes of the path.
    pub const PATH_LENGTH: usize = 4;
    /// Offset of the build ID in [`super::STRINGS`].
    pub const BUILD_ID: usize = 5;
    /// Number of bytes of the build ID.
    pub const BUILD_ID_LENGTH: usize = 6;
}

/// Indices of the words of a record. A record has two cache lines, and most calls use only the
/// first line.
pub mod record {
    /// Number of blocks that were allocated.
    pub const ALLOCATIONS: usize = 0;
    /// Number of bytes that were allocated.
    pub const ALLOCATED: usize = 1;
    /// Number of blocks that were freed.
    pub const FREES: usize = 2;
    /// Number of bytes that were freed. A thread that frees a block of another thread counts the
    /// block in its own record, so only the sums over all records of a site are meaningful.
    pub const FREED: usize = 3;
    /// Number of blocks that were freed before the thread allocated another block.
    pub const TEMPORARY: usize = 4;
    /// The epochs for which the copies below were made, as in [`super::header::EPOCHS`].
    pub const EPOCHS: usize = 5;
    /// With sampling: the variance of allocated bytes, an `f64`.
    pub const VARIANCE: usize = 6;
    /// With sampling: the variance of live bytes.
    pub const LIVE_VARIANCE: usize = 7;
    /// Live amount at the epoch's peak: bytes, blocks.
    pub const AT_PEAK: usize = 8;
    /// Live amount at the epoch's snapshot: bytes, blocks.
    pub const AT_MOMENT: usize = 10;
    /// Number of bytes in a record.
    pub const SIZE: usize = 128;
}

/// Values of the kind of a site.
pub mod kind {
    /// `malloc` and the other allocation functions.
    pub const HEAP: u32 = 0;
    /// `mmap` and similar calls.
    pub const MAPPING: u32 = 1;
    /// Blocks of a pool.
    pub const POOL: u32 = 2;
}

/// Providers of `malloc`.
pub mod allocator {
    /// The C library.
    pub const GLIBC: u64 = 1;
    /// Another library that was loaded.
    pub const LIBRARY: u64 = 2;
    /// The program itself.
    pub const PROGRAM: u64 = 3;
    /// One of the other providers, and further allocators under names of their own
    /// ([`super::named`]).
    pub const SEVERAL: u64 = 4;
}

/// The map of live blocks, in the process's own memory: a table with the addresses of 2^20 leaves,
/// each of which covers 128 MiB of addresses.
pub mod live {
    /// Number of address bits within a leaf.
    pub const LEAF: u32 = 27;
    /// Number of bits of a user-space address.
    pub const SPACE: u32 = 47;
    /// Mask of the bits of [`super::header::LIVE_MAP`] that contain the format.
    pub const KIND: u64 = 3;
    /// A leaf has a cell of 4 bytes for each 32 bytes of addresses, which is the minimum distance
    /// between glibc's blocks. A cell contains the usable size minus the requested size
    /// ([`SLACK`]), [`TIMED`], the site's number plus 1 ([`SITE_BITS`] bits from [`SITE_SHIFT`]
    /// on), and [`ODD`].
    pub const NARROW: u64 = 1;
    /// A leaf has a cell of 8 bytes for each 16 bytes of addresses. A cell contains the requested
    /// size ([`SIZE_BITS`]), a bit that is set if the lifetime is being measured, the site's number
    /// plus 1, and [`HALF`]. Blocks that begin 8 bytes after a multiple of 16 have leaves of their
    /// own, in a second table after the first table.
    pub const WIDE: u64 = 2;
    /// Mask of the usable size minus the requested size. If all bits are set, the requested size is
    /// in [`super::header::LIVE_SIZES`].
    pub const SLACK: u32 = 0x1f;
    /// Flag: the lifetime of the block is being measured.
    pub const TIMED: u32 = 0x20;
    /// Position of the site in a cell of 4 bytes.
    pub const SITE_SHIFT: u32 = 6;
    /// Number of bits of the site.
    pub const SITE_BITS: u32 = 22;
    /// Flag: the block begins 16 bytes above the first address of the cell.
    pub const ODD: u32 = 1 << 31;
    /// Number of bits of the size in a cell of 8 bytes.
    pub const SIZE_BITS: u32 = 37;
    /// Flag: the block begins 8 bytes above the first address of the cell.
    pub const HALF: u64 = 1 << 63;

    /// First index at which an address is looked up among `entries` entries (a power of two).
    #[inline(always)]
    pub const fn place(address: u64, entries: u64) -> u64 {
        address.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32 & (entries - 1)
    }
}

/// Return values of `pagewise_heap_attach`, which is called in programs that run already.
pub mod attached {
    /// The recorder records for the calling collector.
    pub const YES: u64 = 0;
    /// The recorder already records for another collector.
    pub const BUSY: u64 = 1;
    /// The recorder has no socket or no memory.
    pub const FAILED: u64 = 2;
    /// The collector did not answer in time.
    pub const LATE: u64 = 3;
}

/// File name of the recorder.
pub const RECORDER_FILE: &str = "libpagewise_preload.so";

/// Reasons why a recorder ends before its program.
pub mod trouble {
    /// The recorder had no memory for its tables.
    pub const MEMORY: u64 = 1;
    /// The program entered strict seccomp mode, which forbids system calls that the recorder needs.
    pub const CALLS: u64 = 2;
    /// The collector did not answer in time: nothing was recorded.
    pub const LATE: u64 = 3;
}

/// Messages between a recorder and a collector at the start of a recording, on a Unix socket.
///
/// The recorder connects and sends one message: [`greeting::HELLO`], its PID, and the PID of its
/// parent, in 4 bytes each. The message carries the file descriptor of the tables as ancillary data
/// (`SCM_RIGHTS`). The recorder then waits for one byte: it records if this byte is
/// [`greeting::YES`].
pub mod greeting {
    /// Environment variable with the path of the socket and the recording parameters: words
    /// separated by commas, the path last: `every=0,follow=0,socket=/run/x`. With `log=4096`,
    /// blocks of 4096 bytes and more are written to [`super::LOG`].
    pub const VARIABLE: &str = "PAGEWISE_HEAP";
    /// First bytes of the recorder's message.
    pub const HELLO: [u8; 8] = *b"pwheap\x00\x01";
    /// Answer: record.
    pub const YES: u8 = b'y';
    /// Answer: do not record.
    pub const NO: u8 = b'n';
}

const _: () = {
    assert!(thread::WORDS * 8 <= THREADS.entry, "a slot has all its words");
    assert!(CHUNKS.at.is_multiple_of(64 << 10), "chunks are aligned to pages");
    assert!(THREADS.at.is_multiple_of(64 << 10), "so are slots");
    assert!(SITES.room < 1 << live::SITE_BITS, "a cell has room for each site");
    assert!(hooks::CODE + hooks::CODE_WORDS <= named::ROOMS, "words of the header are apart");
    assert!(named::ROOMS + 2 * named::MAX_ROOMS <= named::ROWS, "so are these");
    assert!(
        named::ROWS + named::MAX_CHUNKS * named::row::WORDS <= HEADER.room,
        "and all have room"
    );
    assert!(hooks::BEFORE + hooks::FUNCTIONS <= named::ENTRY, "and these");
};

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tables_lie_behind_each_other() {
        let tables =
            [HEADER, THREADS, MODULES, STRINGS, PLACES, NODES, SITES, OWNERS, CHUNKS, OWN, LOG];
        for pair in tables.windows(2) {
            assert_eq!(pair[0].place(pair[0].room), pair[1].at);
        }
        assert_eq!(LENGTH, LOG.place(LOG.room));
    }
}
