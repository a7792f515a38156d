//! Where a recorder counts: tables in memory that it shares with who looks on.
//!
//! One file without a name (`memfd_create`), sparse, with one table behind the other at fixed places ([`HEADER`] ..
//! [`LOG`]). The recorder only ever adds to the tables of modules, places, nodes and sites, and tells by a count in
//! the header how much of each is there: an entry is written before it is counted. Counters are words of 8 bytes in the
//! machine's own order, each written by one thread at a time.
//!
//! ```text
//!  0        header
//!  THREADS  a slot for each thread: its sums
//!  MODULES  files of code         STRINGS  their paths and build IDs
//!  PLACES   return addresses
//!  NODES    (parent, place)       SITES    (node, kind)
//!  OWNERS   whose each chunk is, and for which sites
//!  CHUNKS   pages of records: what sites count
//!  OWN      memory that the recorder has in the process
//!  LOG      where large blocks begin and end, one after the other, where that was asked for
//! ```
//!
//! # What was live at the peak
//!
//! A [`record`] has counters of the present and a copy of what was live at the last peak. Whenever the process goes down
//! from a new peak, the recorder adds one to the epoch of peaks in the header. Who next changes a record whose epoch is older
//! copies what was live first. So the state at the peak is: the copy where the record's epoch is the header's, and what
//! is live where it is older, since nothing changed. The collector uses a second epoch in the same way to have all
//! records as they were at one moment.

/// The first word of the header: `pwheap` and the version of this layout.
pub const MAGIC: u64 = u64::from_le_bytes(*b"pwheap\x00\x03");

/// Set in the address of a place that is an instruction which was interrupted: it has called nobody. No address of a program
/// has this bit.
pub const INTERRUPTED: u64 = 1 << 63;

/// A table: where it begins, how long an entry is, and how many there may be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Table {
    /// Bytes from the beginning of the file.
    pub at: usize,
    /// Bytes in an entry.
    pub entry: usize,
    /// Entries that it has room for.
    pub room: usize,
}

impl Table {
    const fn behind(before: Table, entry: usize, room: usize) -> Table {
        Table { at: before.at + before.entry * before.room, entry, room }
    }

    /// Where an entry begins.
    pub const fn place(&self, index: usize) -> usize {
        self.at + index * self.entry
    }
}

/// Words of [`header`].
pub const HEADER: Table = Table { at: 0, entry: 8, room: 24 << 10 };
/// Slots of threads, words of [`thread`].
pub const THREADS: Table = Table::behind(HEADER, 2 << 10, 8 << 10);
/// Files of code, words of [`module`].
pub const MODULES: Table = Table::behind(THREADS, 64, 16 << 10);
/// Bytes of paths and build IDs.
pub const STRINGS: Table = Table::behind(MODULES, 1, 4 << 20);
/// Return addresses: the address, then the module's number plus 1 (0 for none), a word each.
pub const PLACES: Table = Table::behind(STRINGS, 16, 1 << 20);
/// Nodes: the parent's number, [`crate::recording::ROOT`] for none, and the place's, 4 bytes each.
pub const NODES: Table = Table::behind(PLACES, 8, 2 << 20);
/// Sites: the node's number and the kind's ([`kind`]), 4 bytes each.
pub const SITES: Table = Table::behind(NODES, 8, 512 << 10);
/// Whose each chunk is: the number of the chunk's sites plus 1 (0: it is not used), and the thread's slot, 4 bytes each.
pub const OWNERS: Table = Table::behind(SITES, 8, 192 << 10);
/// Chunks of records.
pub const CHUNKS: Table = Table::behind(OWNERS, RECORDS * record::SIZE, 192 << 10);
/// Memory of the recorder's own in the process: the address and the length, a word each; zeros where one is being added.
pub const OWN: Table = Table::behind(CHUNKS, 16, 4 << 10);
/// Blocks that were allocated and freed, words of [`log`]: a ring, of which the header says how much was written and read.
pub const LOG: Table = Table::behind(OWN, 8 * log::WORDS, 256 << 10);
/// Bytes in the whole file.
pub const LENGTH: usize = LOG.at + LOG.entry * LOG.room;

/// Records in a chunk: those of sites `n * RECORDS` and up.
pub const RECORDS: usize = 32;

/// Numbers of the header's words.
pub mod header {
    /// [`super::MAGIC`], written last when the recorder begins.
    pub const MAGIC: usize = 0;
    /// The process.
    pub const PID: usize = 1;
    /// When it began, in nanoseconds since 1970.
    pub const BEGAN: usize = 2;
    /// When it began by `CLOCK_MONOTONIC`, in nanoseconds.
    pub const BEGAN_MONOTONIC: usize = 3;
    /// The mean number of bytes between samples; 0 for every call.
    pub const EVERY_BYTES: usize = 4;
    /// How many allocations there are to each whose lifetime is measured, in the mean.
    pub const LIFETIMES_EVERY: usize = 5;
    /// Entries of [`super::MODULES`].
    pub const MODULES: usize = 6;
    /// Bytes of [`super::STRINGS`].
    pub const STRINGS: usize = 7;
    /// Entries of [`super::PLACES`].
    pub const PLACES: usize = 8;
    /// Entries of [`super::NODES`].
    pub const NODES: usize = 9;
    /// Entries of [`super::SITES`].
    pub const SITES: usize = 10;
    /// Entries of [`super::OWNERS`] and [`super::CHUNKS`] that were ever used.
    pub const CHUNKS: usize = 11;
    /// Slots of [`super::THREADS`] that were ever used.
    pub const THREADS: usize = 12;
    /// Threads that record now.
    pub const RUNNING: usize = 13;
    /// Frees of blocks that the recorder did not see allocated.
    pub const UNKNOWN_FREES: usize = 14;
    /// Allocations whose call stack was cut.
    pub const CUT_STACKS: usize = 15;
    /// Why the recorder ended early ([`super::trouble`]); 0 where it did not.
    pub const TROUBLE: usize = 16;
    /// Entries of [`super::OWN`] that were added, or would have been if there were room.
    pub const OWN: usize = 17;
    /// Where the map of live blocks is, and in the lowest bits how it is made ([`super::live`]): for readers of the
    /// process's memory.
    pub const LIVE_MAP: usize = 18;
    /// What `malloc` is: [`super::allocator`].
    pub const ALLOCATOR: usize = 19;
    /// In [`super::STRINGS`], where the name of what has `malloc` begins (low half), and its length.
    pub const ALLOCATOR_NAME: usize = 20;
    /// Bytes that were allocated in all, in so far as threads told; of samples only.
    pub const PASSED: usize = 21;

    /// Odd while records move from one chunk to another: who looks on begins anew when it has changed.
    pub const CHANGES: usize = 22;
    /// Bytes in mappings of their own that the C library made for blocks that are live.
    pub const MAPPED: usize = 23;
    /// 1 where the library that has `malloc` has an `operator new`, too: what that allocates is not seen.
    pub const OWN_NEW: usize = 24;

    /// Where the sizes are that cells of live blocks have no room for, and in the lowest bits the number of entries as a
    /// power of two: an address and a size each, which is its place by [`super::live::place`] or one behind. 0: none yet.
    pub const LIVE_SIZES: usize = 25;
    /// Bytes that the allocator had given for the blocks of [`UNKNOWN_FREES`], where it is the C library.
    pub const UNKNOWN_FREED: usize = 26;

    // A line of the processor's cache each.
    /// The epochs: of peaks (low half, written by the recorder), of moments (high half, written by who looks on).
    pub const EPOCHS: usize = 32;
    /// What is live, plus the room of all threads ([`super::thread::ROOM`]).
    pub const UPPER: usize = 40;
    /// The most that [`UPPER`] ever was.
    pub const PEAK: usize = 41;
    /// When that was, in nanoseconds of `CLOCK_MONOTONIC`, as of the last moment or change of epoch.
    pub const PEAK_AT: usize = 42;
    /// 1 while nothing was given back since the last new peak.
    pub const RISING: usize = 43;
    /// 1 once several threads record at a time: the peak is then known to [`super::CREDIT`] bytes a thread.
    pub const MANY: usize = 44;
    /// The most threads that recorded at a time.
    pub const MOST_THREADS: usize = 45;

    /// Entries that were ever written into [`super::LOG`].
    pub const LOG_WRITTEN: usize = 48;
    /// Entries that were lost, since nobody had read as many.
    pub const LOG_LOST: usize = 49;
    /// When the first of these was lost, by `CLOCK_MONOTONIC`; who reads sets it to 0 again.
    pub const LOG_FIRST_LOST: usize = 50;
    /// When the last was.
    pub const LOG_LAST_LOST: usize = 51;
    /// Entries that were read, written by who reads.
    pub const LOG_READ: usize = 56;
}

/// Words of the header by which functions are hooked that a library loaded first does not stand before.
///
/// The recorder says where they are, and where near them it has room; who looks on answers with code for that room, which
/// begins with the first instructions of each function, moved there.
pub mod hooks {
    /// How many functions there are: `malloc`, `free`, `calloc`, `realloc`, `memalign`, `aligned_alloc`, `posix_memalign`,
    /// `valloc`, `pvalloc`, and of programs that run already `pthread_create`, `thrd_create`, `prctl`, `dlclose`, `mmap`,
    /// `munmap`, `mremap`, `brk`, `sbrk`.
    pub const FUNCTIONS: usize = 18;
    /// How many of these are of `malloc`'s family: without one of them nothing is recorded.
    pub const FAMILY: usize = 9;
    /// Where the room near `malloc`'s family is; 0 where nothing is asked for.
    pub const NEAR: usize = 1024;
    /// Where the room near the other functions is, laid out as the first; 0 where that is the same one.
    pub const NEAR_OTHERS: usize = 1031;
    /// Where each function is; 0 for those that are not to be hooked.
    pub const AT: usize = 1040;
    /// Where what takes its place is.
    pub const ENTRIES: usize = 1064;
    /// Answered, and from then on told: how many bytes of each function were moved; 0 where it cannot be hooked.
    pub const LENGTHS: usize = 1088;
    /// The first 8 bytes of each function as they were before it was ever hooked.
    pub const BEFORE: usize = 1112;
    /// Which functions are to be hooked this time, a bit each.
    pub const WANTED: usize = 1027;
    /// Where the number of threads is that are to come; of programs that run already.
    pub const COMING: usize = 1028;
    /// Address of the function that ends the recording: calls are no longer recorded when it returns.
    pub const DETACH: usize = 1029;
    /// Address of the function that unmaps all memory of the recorder after that.
    pub const RELEASE: usize = 1030;
    /// Answered: what goes into the room.
    pub const CODE: usize = 2048;
    /// 1 where that is there already.
    pub const READY: usize = 1025;
    /// How far a thread's own words are from its data (`fs`), as a number with a sign: while a thread is within the recorder,
    /// the first is the address of 4 bytes that are [`NOW`], or the third is [`BUSY`].
    pub const OWN: usize = 1026;
    /// What the bytes are then that the first leads to.
    pub const NOW: u32 = 2;
    /// What the third may be.
    pub const BUSY: u64 = 3;
    /// How long that is, in words.
    pub const CODE_WORDS: usize = FUNCTIONS * STRIDE / 8;
    /// Bytes for each function: first a jump to what takes its place.
    pub const STRIDE: usize = 192;
    /// Where the moved instructions begin.
    pub const MOVED: usize = 16;
}

/// Words of the header by which it is known who collects, written by it: whether it still lives others may want to know.
pub mod collector {
    /// Its process; 0 where nobody answered.
    pub const PID: usize = 1032;
    /// When that began, in ticks since the system did.
    pub const STARTED: usize = 1033;
    /// The number of its pid namespace.
    pub const NAMESPACE: usize = 1034;
}

/// Words of the header by which functions are hooked that allocate under other names than `malloc`'s family, or under these without
/// that other files see them.
///
/// Who looks on finds them by the symbols of the program's files, says what they do and where near them memory is free, and
/// moves their first instructions there, as for [`hooks`]. The recorder maps this memory.
pub mod named {
    /// Where the recorder's code is that they jump to.
    pub const ENTRY: usize = 1200;
    /// 1 where functions are hooked already; the rows then say which.
    pub const READY: usize = 1201;
    /// Answered: how many rows there are.
    pub const COUNT: usize = 1202;
    /// Answered: how many rooms there are.
    pub const ROOM_COUNT: usize = 1203;
    /// Answered: where rooms begin and how many bytes they have, in turn.
    pub const ROOMS: usize = 5000;
    /// How many rooms there may be.
    pub const MOST_ROOMS: usize = 32;
    /// Rows: words of [`row`].
    pub const ROWS: usize = 8192;
    /// How many there may be.
    pub const MOST: usize = 384;
    /// Bytes of each function's part of a room.
    pub const STRIDE: usize = super::hooks::STRIDE;
    /// Where the moved instructions begin in it; before them is a jump to [`ENTRY`] with the row's number in `r11`.
    pub const MOVED: usize = 32;

    /// Numbers of the words of a row.
    pub mod row {
        /// Where the function is; 0 where the row is not used.
        pub const AT: usize = 0;
        /// How many bytes of it were moved.
        pub const LENGTH: usize = 1;
        /// What it does: [`super::role`].
        pub const ROLE: usize = 2;
        /// The function to call instead, which returns 0 where this one throws; 0 for none.
        pub const INSTEAD: usize = 3;
        /// Where its part of a room is.
        pub const PLACE: usize = 4;
        /// The first 8 bytes of the function, as they were.
        pub const BEFORE: usize = 5;
        /// What goes there.
        pub const CODE: usize = 8;
        /// Words of all that.
        pub const WORDS: usize = CODE + super::STRIDE / 8;
    }

    /// What functions do: a number, and above it the numbers of their arguments.
    pub mod role {
        /// Returns a block of `argument(0)` bytes, or of the product with `argument(1)`.
        pub const ALLOCATES: u64 = 1;
        /// Writes where a block of `argument(0)` bytes is to where the first argument points, and returns 0.
        pub const ALLOCATES_INTO: u64 = 2;
        /// Has the block that is its `argument(2)` be `argument(0)` bytes long, or the product with `argument(1)`, here or elsewhere.
        pub const RESIZES: u64 = 3;
        /// As [`RESIZES`], but where it fails, the block is freed.
        pub const RESIZES_OR_FREES: u64 = 4;
        /// Has the block that is its first argument be as long as the second says and up to the third more, where it is, and returns
        /// how long it is then.
        pub const RESIZES_IN_PLACE: u64 = 5;
        /// Frees the block that is its `argument(2)`.
        pub const FREES: u64 = 6;
        /// Returns a text in a block that is just as long.
        pub const COPIES_TEXT: u64 = 7;
        /// No argument.
        pub const NONE: u64 = 7;

        /// What a function does, with numbers of arguments: of the size, of what to multiply it by, of the block.
        pub const fn new(what: u64, size: u64, times: u64, block: u64) -> u64 {
            what | size << 8 | times << 16 | block << 24
        }

        /// A number of an argument: of the size (0), of what to multiply it by (1), of the block (2).
        pub const fn argument(role: u64, which: u32) -> u64 {
            role >> (8 + 8 * which) & 7
        }

        /// The number of what it does.
        pub const fn what(role: u64) -> u64 {
            role & 0xff
        }
    }
}

/// Bytes that a thread may take and give back before it tells the others, while several run.
pub const CREDIT: u64 = 64 << 10;

/// Cells of a histogram by powers of two: cell 0 counts zeros, cell *n* counts 2^(n-1) .. 2^n - 1.
pub const CELLS: usize = 65;

/// Numbers of the words of a thread's slot.
pub mod thread {
    /// Its number (`gettid`); 0 where the slot is free. Slot 0 belongs to no thread: what ended threads counted is there.
    pub const TID: usize = 0;
    /// 1 while it runs.
    pub const RUNS: usize = 1;
    /// Its name, 16 bytes that end with a zero.
    pub const NAME: usize = 2;
    /// Bytes that it may allocate before it must tell.
    pub const ROOM: usize = 4;
    /// What it allocated before its chunks were last emptied: bytes, blocks.
    pub const ALLOCATED: usize = 5;
    /// What it freed until then: bytes, blocks.
    pub const FREED: usize = 7;
    /// Allocations by size.
    pub const SIZES: usize = 16;
    /// Measured lifetimes by nanoseconds.
    pub const LIFETIMES: usize = SIZES + super::CELLS;
    /// Words of all that.
    pub const WORDS: usize = LIFETIMES + super::CELLS;
}

/// Numbers of the words of an entry of the log. The first entry is of no block: it says from when on blocks are told of.
pub mod log {
    /// When, in nanoseconds of `CLOCK_MONOTONIC`: no entry is older than the one before.
    pub const TIME: usize = 0;
    /// Where the block begins.
    pub const ADDRESS: usize = 1;
    /// How many bytes were asked for.
    pub const SIZE: usize = 2;
    /// The number of its site plus 1; 0 where it is freed.
    pub const SITE: usize = 3;
    /// Words of an entry.
    pub const WORDS: usize = 4;
}

/// Numbers of the words of a module.
pub mod module {
    /// Its first address.
    pub const START: usize = 0;
    /// Behind its last.
    pub const END: usize = 1;
    /// What to take off an address to have the file's own.
    pub const BIAS: usize = 2;
    /// Where its path begins in [`super::STRINGS`].
    pub const PATH: usize = 3;
    /// The path's length.
    pub const PATH_LENGTH: usize = 4;
    /// Where its build ID begins.
    pub const BUILD_ID: usize = 5;
    /// The build ID's length.
    pub const BUILD_ID_LENGTH: usize = 6;
}

/// Numbers of the words of a record: two lines of the processor's cache, of which only the first is used by most calls.
pub mod record {
    /// Blocks that were allocated.
    pub const ALLOCATIONS: usize = 0;
    /// Bytes that were allocated.
    pub const ALLOCATED: usize = 1;
    /// Blocks that were freed.
    pub const FREES: usize = 2;
    /// Bytes that were freed. Who frees what another thread allocated counts it in a record of its own: only the sums of
    /// all records of a site mean something.
    pub const FREED: usize = 3;
    /// Blocks that were freed before the thread allocated another.
    pub const TEMPORARY: usize = 4;
    /// The epochs for which the copies below were made, as in [`super::header::EPOCHS`].
    pub const EPOCHS: usize = 5;
    /// Of samples: the variance of allocated bytes, an `f64`.
    pub const VARIANCE: usize = 6;
    /// Of samples: the variance of live bytes.
    pub const LIVE_VARIANCE: usize = 7;
    /// What was live at the epoch's peak: bytes, blocks.
    pub const AT_PEAK: usize = 8;
    /// What was live at the epoch's moment: bytes, blocks.
    pub const AT_MOMENT: usize = 10;
    /// Bytes in a record.
    pub const SIZE: usize = 128;
}

/// Numbers of kinds of sites.
pub mod kind {
    /// `malloc` and its kin.
    pub const HEAP: u32 = 0;
    /// `mmap` and its kin.
    pub const MAPPING: u32 = 1;
    /// A pool's.
    pub const POOL: u32 = 2;
}

/// Numbers of what has `malloc`.
pub mod allocator {
    /// The C library.
    pub const GLIBC: u64 = 1;
    /// Another library that was loaded.
    pub const LIBRARY: u64 = 2;
    /// The program itself.
    pub const PROGRAM: u64 = 3;
    /// Several: one of these, and others under names of their own ([`super::named`]).
    pub const SEVERAL: u64 = 4;
}

/// The map of live blocks, in the process's own memory: a table of 2^20 addresses of leaves, each for 128 MiB of addresses.
pub mod live {
    /// Bits of an address in a leaf.
    pub const LEAF: u32 = 27;
    /// Bits of an address of a program.
    pub const SPACE: u32 = 47;
    /// The lowest bits of [`super::header::LIVE_MAP`].
    pub const KIND: u64 = 3;
    /// A leaf has 4 bytes for each 32 bytes of addresses, as blocks of glibc's lie: how many bytes less than its room the block
    /// has ([`SLACK`]), [`TIMED`], the site's number plus 1 from [`SITE_SHIFT`] on ([`SITE_BITS`]), and [`ODD`].
    pub const NARROW: u64 = 1;
    /// A leaf has 8 bytes for each 16 bytes of addresses: the size ([`SIZE_BITS`]), a bit, the site's number plus 1, and in the
    /// highest bit whether it begins 8 bytes behind. Leaves with these are found in a second table behind the first.
    pub const WIDE: u64 = 2;
    /// How much smaller a block is than its room; all of these bits: see [`super::header::LIVE_SIZES`].
    pub const SLACK: u32 = 0x1f;
    /// Its lifetime is being measured.
    pub const TIMED: u32 = 0x20;
    /// Where the site is.
    pub const SITE_SHIFT: u32 = 6;
    /// How many bits it has.
    pub const SITE_BITS: u32 = 22;
    /// It begins 16 bytes behind.
    pub const ODD: u32 = 1 << 31;
    /// Bits of the size in a cell of 8 bytes.
    pub const SIZE_BITS: u32 = 37;
    /// It begins 8 bytes behind.
    pub const HALF: u64 = 1 << 63;

    /// Where among so many entries (a power of two) an address's size is looked for first.
    #[inline(always)]
    pub const fn place(address: u64, entries: u64) -> u64 {
        address.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32 & (entries - 1)
    }
}

/// What `pagewise_heap_attach` returns, which is called in programs that run already.
pub mod attached {
    /// It records.
    pub const YES: u64 = 0;
    /// It records for another collector.
    pub const BUSY: u64 = 1;
    /// It cannot: nobody answers, or there is no memory.
    pub const FAILED: u64 = 2;
}

/// Why a recorder ends before its program.
pub mod trouble {
    /// There is no memory for its tables.
    pub const MEMORY: u64 = 1;
    /// The program gave up the system calls that it needs.
    pub const CALLS: u64 = 2;
}

/// What a recorder and a collector say to each other when a recording begins, on a Unix socket.
///
/// The recorder connects, sends one message, [`greeting::HELLO`] followed by its process number and its parent's in 4 bytes each, with
/// the file of the tables as ancillary data (`SCM_RIGHTS`), and waits for one byte: [`greeting::YES`] to record.
pub mod greeting {
    /// The variable of the environment that says where the socket is, and by which rules to record: words with commas between,
    /// the socket's path last: `every=0,follow=0,socket=/run/x`. `log=4096` has blocks of so many bytes and more written into
    /// [`super::LOG`].
    pub const VARIABLE: &str = "PAGEWISE_HEAP";
    /// What a message begins with.
    pub const HELLO: [u8; 8] = *b"pwheap\x00\x01";
    /// Record.
    pub const YES: u8 = b'y';
    /// Do not.
    pub const NO: u8 = b'n';
}

const _: () = {
    assert!(thread::WORDS * 8 <= THREADS.entry, "a slot has all its words");
    assert!(CHUNKS.at.is_multiple_of(64 << 10), "chunks are aligned to pages");
    assert!(THREADS.at.is_multiple_of(64 << 10), "so are slots");
    assert!(SITES.room < 1 << live::SITE_BITS, "a cell has room for each site");
    assert!(hooks::CODE + hooks::CODE_WORDS <= named::ROOMS, "words of the header are apart");
    assert!(named::ROOMS + 2 * named::MOST_ROOMS <= named::ROWS, "so are these");
    assert!(named::ROWS + named::MOST * named::row::WORDS <= HEADER.room, "and all have room");
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
