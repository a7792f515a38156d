//! The tables that a recorder shares, read from outside.

use std::fs::File;
use std::io::{self, Write};
use std::ops::Range;
use std::os::unix::fs::{FileExt, MetadataExt};

use pagewise_heaplog::recording::{
    LogAddress, LogAmount, LogBlock, LogCallNode, LogCounts, LogKind, LogLayout, LogModule,
    LogSite, LogSiteCounts, LogThread, ROOT,
};
use pagewise_heaplog::tables::{
    self, CELLS, CHUNKS, CREDIT, HEADER, INTERRUPTED, LOG, MAGIC, MODULES, NODES, OWN, OWNERS,
    PLACES, RECORDS, SITES, STRINGS, THREADS, TableRange, header, kind, log, module, record,
    thread,
};
use pagewise_heaplog::writer::LogWriter;
use pagewise_model::Mapping;
use pagewise_model::mapping::Device;
use pagewise_proc::target_file::FileId;
use pagewise_sys::remote::OpenMemory;
use rustix::fs::{MemfdFlags, memfd_create};

/// Number of bytes of a table in one read.
const PIECE: usize = 1 << 20;
/// Number of attempts to read records that may change during the read.
const TRIES: usize = 5;

/// Source of the bytes of tables.
pub(crate) trait TableSource {
    /// Fills a buffer with the bytes from an offset.
    fn fill(&self, into: &mut [u8], at: u64) -> io::Result<()>;
}

/// The file that a recorder has sent.
impl TableSource for File {
    fn fill(&self, into: &mut [u8], at: u64) -> io::Result<()> {
        self.read_exact_at(into, at)
    }
}

/// Tables in the memory of a process that has mapped them. Opening the mapped file, which has no
/// name, would need `CAP_CHECKPOINT_RESTORE` or `CAP_SYS_ADMIN`; reading the memory needs only
/// ptrace access to the process.
#[derive(Debug)]
pub(crate) struct MappedTables {
    memory: OpenMemory,
    start: u64,
}

impl TableSource for MappedTables {
    // Entries in use are present pages of the file, so reading them makes the file no larger.
    fn fill(&self, into: &mut [u8], at: u64) -> io::Result<()> {
        let start = self.start.saturating_add(at);
        let range = start..start.saturating_add(into.len() as u64);
        let read = self.memory.read(std::slice::from_ref(&range), into)?;
        if read == into.len() { Ok(()) } else { Err(io::ErrorKind::UnexpectedEof.into()) }
    }
}

/// Tables of a process. After the end of the process they keep their last contents.
#[derive(Debug)]
pub(crate) struct SharedTables<S = File> {
    source: S,
    known: TableLengths,
    moment: u32,
    bytes: Vec<u8>,
}

/// Number of entries in use of each table.
#[derive(Clone, Copy, Debug, Default)]
struct TableLengths {
    modules: usize,
    places: usize,
    nodes: usize,
    sites: usize,
}

/// New entries since the last call.
#[derive(Debug, Default)]
pub(crate) struct NewEntries {
    pub modules: Vec<LogModule>,
    pub places: Vec<LogAddress>,
    pub nodes: Vec<LogCallNode>,
    pub sites: Vec<LogSite>,
}

/// An entry of the recorder's log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Logged {
    /// Time of the event, in nanoseconds of `CLOCK_MONOTONIC`.
    pub time: u64,
    pub address: u64,
    pub size: u64,
    /// The site that allocated the block; `None` if the entry is a free.
    pub site: Option<u32>,
}

/// New log entries since the last call.
#[derive(Debug, Default)]
pub(crate) struct NewLog {
    pub entries: Vec<Logged>,
    /// Times of the first and the last lost entry; `None` if no entry was lost.
    pub lost: Option<(u64, u64)>,
}

impl NewEntries {
    /// Writes the entries, which must precede all data that refers to them.
    pub(crate) fn write<W: Write>(&self, writer: &mut LogWriter<W>) -> io::Result<()> {
        writer.modules(&self.modules)?;
        writer.places(&self.places)?;
        writer.nodes(&self.nodes)?;
        writer.sites(&self.sites)
    }
}

/// Finds the mapping of a recorder's tables in a process; `None` without a recorder.
pub(crate) fn mapping(mappings: &[Mapping]) -> Option<&Mapping> {
    mappings.iter().find(|it| it.name.as_bytes().starts_with(b"/memfd:pagewise-heap"))
}

/// The device number of memory files (`memfd_create`), which files on disk do not have.
fn memory_device() -> io::Result<Device> {
    let file = memfd_create("pagewise-device", MemfdFlags::CLOEXEC)?;
    Ok(FileId::of_metadata(&File::from(file).metadata()?).device)
}

/// Current counts.
#[derive(Debug, Default)]
pub(crate) struct CountedState {
    /// Counts since the beginning of the recording.
    pub counts: LogCounts,
    /// Live amount by site at one time point.
    pub live: Vec<LogAmount>,
    /// Epoch of the last peak.
    pub peak: u32,
    /// True if the live bytes exceed all earlier peaks.
    pub is_peak: bool,
    /// Number of bytes in separate mappings that the allocator created for large blocks.
    pub mapped: u64,
    /// Frees of blocks whose allocation was not recorded, with the usable sizes of the blocks.
    /// `None` with sampling, since most frees are not recorded then, and for allocators other than
    /// glibc's.
    pub unknown_freed: Option<LogAmount>,
}

impl CountedState {
    /// Live amount of all sites.
    pub(crate) fn all_live(&self) -> LogAmount {
        sum(self.live.iter().copied())
    }

    /// Amount of all allocations.
    pub(crate) fn all_allocated(&self) -> LogAmount {
        sum(self.counts.sites.iter().map(|site| site.allocated))
    }
}

fn sum(amounts: impl Iterator<Item = LogAmount>) -> LogAmount {
    amounts.fold(LogAmount::default(), |sum, one| LogAmount {
        bytes: sum.bytes.wrapping_add(one.bytes),
        blocks: sum.blocks.wrapping_add(one.blocks),
    })
}

/// Sums of a site's records. A single record has no meaning by itself, since a thread may free
/// other threads' blocks.
#[derive(Clone, Copy, Debug, Default)]
struct SiteRecordSum {
    allocated: LogAmount,
    freed: LogAmount,
    temporary: u64,
    at_peak: LogAmount,
    at_moment: LogAmount,
    variances: (f64, f64),
}

fn less(more: LogAmount, less: LogAmount) -> LogAmount {
    LogAmount {
        bytes: more.bytes.wrapping_sub(less.bytes),
        blocks: more.blocks.wrapping_sub(less.blocks),
    }
}

fn add(to: &mut LogAmount, more: LogAmount) {
    to.bytes = to.bytes.wrapping_add(more.bytes);
    to.blocks = to.blocks.wrapping_add(more.blocks);
}

/// Replaces a negative sum by 0: a sum that is read while blocks are freed may be negative.
fn settled(amount: LogAmount) -> LogAmount {
    let settle = |value: u64| if value.cast_signed() < 0 { 0 } else { value };
    LogAmount { bytes: settle(amount.bytes), blocks: settle(amount.blocks) }
}

impl SharedTables<MappedTables> {
    /// Opens the tables that a process has mapped, for reading only.
    ///
    /// # Errors
    /// Returns an error if the mapping is not of a recorder's tables, if the tables have another
    /// version, or if the memory of the process may not be read.
    pub(crate) fn open_mapped(
        pid: u32,
        mapping: &Mapping,
    ) -> io::Result<SharedTables<MappedTables>> {
        // A file on disk can have the same name as the tables, and its file system may delay a read
        // forever.
        if mapping.device != memory_device()? {
            return Err(no_memory_file());
        }
        let whole = (tables::LENGTH as u64).next_multiple_of(rustix::param::page_size() as u64);
        if mapping.offset != 0 || mapping.range.len().0 != whole {
            return Err(another_version());
        }
        let memory = OpenMemory::open(pid)?;
        SharedTables::checked(MappedTables { memory, start: mapping.range.start })
    }
}

impl SharedTables {
    /// Opens the tables in a file that a recorder has sent.
    ///
    /// # Errors
    /// Returns an error if the tables have another version, or cannot be read.
    pub(crate) fn open(file: File) -> io::Result<SharedTables> {
        // Only memory files have seals. A memory file can be read without blocking, whichever
        // process sent it.
        if rustix::fs::fcntl_get_seals(&file).is_err() {
            return Err(no_memory_file());
        }
        if file.metadata()?.len() != tables::LENGTH as u64 {
            return Err(another_version());
        }
        SharedTables::checked(file)
    }

    /// Writes words of the header that the recorder expects as an answer.
    pub(crate) fn answer(&self, number: usize, words: &[u64]) -> io::Result<()> {
        let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_ne_bytes()).collect();
        self.source.write_all_at(&bytes, HEADER.place(number) as u64)
    }

    /// Number of bytes of RAM that the tables use.
    pub(crate) fn resident(&self) -> io::Result<u64> {
        // `st_blocks` counts blocks of 512 bytes on every file system.
        Ok(self.source.metadata()?.blocks() * 512)
    }

    /// Returns the log entries that are new since the last call. The recorder may overwrite them
    /// from now on.
    pub(crate) fn log(&mut self) -> io::Result<NewLog> {
        let read = self.head(header::LOG_READ)?;
        let written = self.head(header::LOG_WRITTEN)?;
        let mut new = NewLog::default();
        let count = usize::try_from(written.wrapping_sub(read)).unwrap_or(usize::MAX);
        if count > LOG.room {
            return Err(io::Error::new(io::ErrorKind::InvalidData, "the log makes no sense"));
        }
        let first = usize::try_from(read % LOG.room as u64).unwrap_or(0);
        let before_wrap = count.min(LOG.room - first);
        for (first, count) in [(first, before_wrap), (0, count - before_wrap)] {
            let bytes = self.entries(&LOG, first, first + count)?;
            new.entries.extend(bytes.chunks_exact(LOG.entry).map(|entry| {
                let entry: [u64; log::WORDS] = words_from_bytes(entry);
                Logged {
                    time: entry[log::TIME],
                    address: entry[log::ADDRESS],
                    size: entry[log::SIZE],
                    site: entry[log::SITE].checked_sub(1).and_then(|it| u32::try_from(it).ok()),
                }
            }));
        }
        self.set_head(header::LOG_READ, written)?;
        let first_lost = self.head(header::LOG_FIRST_LOST)?;
        if first_lost != 0 {
            // After this write, the recorder records the time of the next loss.
            self.set_head(header::LOG_FIRST_LOST, 0)?;
            new.lost = Some((first_lost, self.head(header::LOG_LAST_LOST)?));
        }
        Ok(new)
    }

    fn set_head(&self, number: usize, value: u64) -> io::Result<()> {
        self.source.write_all_at(&value.to_ne_bytes(), (HEADER.at + number * 8) as u64)
    }

    /// All counts. With `mark`, the recorder copies the live amount of each record before its next
    /// change, so that the live amounts of all sites are of one time point. Without `mark`, the
    /// process must have ended.
    pub(crate) fn state(&mut self, mark: bool) -> io::Result<CountedState> {
        // Each record contains a copy of an earlier live amount, and the number of the snapshot for
        // which the recorder made the copy. `read` uses the copy only if this number equals
        // `moment`. Without `mark`, the recorder has not received the new number, so `read` uses
        // the current live amounts of all records.
        self.moment = self.moment.wrapping_add(1);
        if mark {
            let at = HEADER.place(header::EPOCHS) + 4;
            self.source.write_all_at(&self.moment.to_ne_bytes(), at as u64)?;
        }
        let mut tries = 0;
        loop {
            let changes = self.head(header::CHANGES)?;
            let state = self.read()?;
            tries += 1;
            let moved = changes % 2 == 1 || self.head(header::CHANGES)? != changes;
            if !moved || !mark || tries == TRIES {
                return Ok(state);
            }
        }
    }
}

impl<S: TableSource> SharedTables<S> {
    fn checked(source: S) -> io::Result<SharedTables<S>> {
        let known = TableLengths::default();
        let tables = SharedTables { source, known, moment: 1, bytes: Vec::new() };
        if tables.head(header::MAGIC)? == MAGIC { Ok(tables) } else { Err(another_version()) }
    }

    /// Reads a word of the header.
    pub(crate) fn head(&self, number: usize) -> io::Result<u64> {
        let mut word = [0; 8];
        self.source.fill(&mut word, (HEADER.at + number * 8) as u64)?;
        Ok(u64::from_ne_bytes(word))
    }

    fn count(&self, number: usize, table: &TableRange) -> io::Result<usize> {
        let count = usize::try_from(self.head(number)?).unwrap_or(usize::MAX);
        Ok(count.min(table.room))
    }

    /// Memory of the recorder itself in the process: addresses and lengths. `None` if there are too
    /// many ranges to be stored.
    pub(crate) fn own(&self) -> io::Result<Option<Vec<(u64, u64)>>> {
        let count = usize::try_from(self.head(header::OWN)?).unwrap_or(usize::MAX);
        if count > OWN.room {
            return Ok(None);
        }
        let mut bytes = vec![0; count * OWN.entry];
        self.source.fill(&mut bytes, OWN.at as u64)?;
        let ranges =
            bytes.chunks_exact(OWN.entry).map(words_from_bytes).map(|[at, length]| (at, length));
        Ok(Some(ranges.filter(|&(_, length)| length > 0).collect()))
    }

    /// Path of the file that provides `malloc`.
    pub(crate) fn allocator(&self) -> io::Result<Vec<u8>> {
        let word = self.head(header::ALLOCATOR_NAME)?;
        self.string(word & u64::from(u32::MAX), word >> 32)
    }

    fn string(&self, at: u64, length: u64) -> io::Result<Vec<u8>> {
        let room = STRINGS.room as u64;
        if at > room || length > room - at {
            return Ok(Vec::new());
        }
        let mut bytes = vec![0; usize::try_from(length).unwrap_or(0)];
        self.source.fill(&mut bytes, STRINGS.at as u64 + at)?;
        Ok(bytes)
    }

    /// Entries of a table from `first` up to `end`, each in words of eight bytes.
    fn entries(&mut self, table: &TableRange, first: usize, end: usize) -> io::Result<&[u8]> {
        let length = (end.saturating_sub(first)) * table.entry;
        self.bytes.resize(length, 0);
        self.source.fill(&mut self.bytes, table.place(first) as u64)?;
        Ok(&self.bytes)
    }

    /// Decodes the entries of a table, read in pieces.
    fn each<T>(
        &mut self,
        table: &TableRange,
        entries: Range<usize>,
        read: impl Fn(&[u8]) -> T,
    ) -> io::Result<Vec<T>> {
        let mut all = Vec::with_capacity(entries.len());
        for first in entries.clone().step_by(PIECE / table.entry) {
            let end = entries.end.min(first + PIECE / table.entry);
            let bytes = self.entries(table, first, end)?;
            all.extend(bytes.chunks_exact(table.entry).map(&read));
        }
        Ok(all)
    }

    /// Returns the entries that are new since the last call. `program` is the path for modules
    /// without a path.
    pub(crate) fn news(&mut self, program: &[u8]) -> io::Result<NewEntries> {
        // Later tables refer to entries of earlier tables, so the entries of later tables are
        // counted first.
        let sites = self.count(header::SITES, &SITES)?;
        let nodes = self.count(header::NODES, &NODES)?;
        let places = self.count(header::PLACES, &PLACES)?;
        let modules = self.count(header::MODULES, &MODULES)?;
        let mut new = NewEntries::default();
        let known = self.known;
        let rows: Vec<[u64; 8]> = self
            .entries(&MODULES, known.modules, modules)?
            .chunks_exact(64)
            .map(words_from_bytes)
            .collect();
        for row in rows {
            let path = self.string(row[module::PATH], row[module::PATH_LENGTH])?;
            new.modules.push(LogModule {
                path: if path.is_empty() { program.to_vec() } else { path },
                build_id: self.string(row[module::BUILD_ID], row[module::BUILD_ID_LENGTH])?,
                start: row[module::START],
                end: row[module::END],
                bias: row[module::BIAS],
            });
        }
        let all_modules = modules as u64;
        new.places = self.each(&PLACES, known.places..places, |entry| {
            let [address, module] = words_from_bytes(entry);
            let module = module.checked_sub(1).filter(|&module| module < all_modules);
            LogAddress {
                address: address & !INTERRUPTED,
                exact: address & INTERRUPTED != 0,
                module: module.and_then(|module| u32::try_from(module).ok()),
            }
        })?;
        new.nodes = self.each(&NODES, known.nodes..nodes, |entry| {
            let [parent, place] = halves(entry);
            LogCallNode { parent, place }
        })?;
        new.sites = self.each(&SITES, known.sites..sites, |entry| {
            let [node, number] = halves(entry);
            let kind = match number {
                kind::MAPPING => LogKind::Mapping,
                kind::POOL => LogKind::Pool,
                _ => LogKind::Heap,
            };
            LogSite { node, kind }
        })?;
        self.known = TableLengths { modules, places, nodes, sites };
        check(&new, known, self.known)?;
        Ok(new)
    }

    /// Removes from a layout the sites that [`SharedTables::news`] has not returned. Such sites
    /// occur if the program has overwritten its map of blocks.
    pub(crate) fn known_only(&self, mut layout: LogLayout) -> LogLayout {
        if let Some(pages) = &mut layout.pages {
            pages.pinned.retain(|it| (it.site as usize) < self.known.sites);
        }
        layout
    }

    /// Keeps only the blocks of sites that [`SharedTables::news`] has returned.
    pub(crate) fn known_blocks(&self, mut blocks: Vec<LogBlock>) -> Vec<LogBlock> {
        blocks.retain(|block| (block.site as usize) < self.known.sites);
        blocks
    }

    fn read(&mut self) -> io::Result<CountedState> {
        let epochs = self.head(header::EPOCHS)?;
        let peak = low(epochs);
        let used = self.count(header::CHUNKS, &CHUNKS)?;
        let owners: Vec<[u32; 2]> =
            self.entries(&OWNERS, 0, used)?.chunks_exact(8).map(halves).collect();
        let slots = self.count(header::THREADS, &THREADS)?;
        let sites = self.count(header::SITES, &SITES)?.next_multiple_of(RECORDS);
        let mut sums: Vec<SiteRecordSum> = Vec::with_capacity(sites);
        let mut by_thread = vec![(LogAmount::default(), LogAmount::default()); slots];
        let moment = self.moment;
        let step = PIECE / CHUNKS.entry;
        for first in (0..used).step_by(step) {
            let end = used.min(first + step);
            let bytes = self.entries(&CHUNKS, first, end)?;
            for (chunk, owner) in bytes.chunks_exact(CHUNKS.entry).zip(&owners[first..end]) {
                let Some(sites) = owner[0].checked_sub(1) else { continue };
                let begin = (sites as usize).saturating_mul(RECORDS);
                if begin >= SITES.room {
                    continue;
                }
                if sums.len() < begin + RECORDS {
                    sums.resize(begin + RECORDS, SiteRecordSum::default());
                }
                let mut both = (LogAmount::default(), LogAmount::default());
                for (record, sum) in chunk.chunks_exact(record::SIZE).zip(&mut sums[begin..]) {
                    let one = one(&words_from_bytes(record), peak, moment);
                    add(&mut both.0, one.allocated);
                    add(&mut both.1, one.freed);
                    sum.add(&one);
                }
                if let Some(thread) = by_thread.get_mut(owner[1] as usize) {
                    add(&mut thread.0, both.0);
                    add(&mut thread.1, both.1);
                }
            }
        }
        sums.truncate(self.count(header::SITES, &SITES)?);
        self.finish(sums, by_thread, peak)
    }

    fn finish(
        &mut self,
        sums: Vec<SiteRecordSum>,
        by_thread: Vec<(LogAmount, LogAmount)>,
        peak: u32,
    ) -> io::Result<CountedState> {
        let most = self.head(header::MAX_LIVE_THREADS)?;
        let live: Vec<LogAmount> = sums.iter().map(|sum| settled(sum.at_moment)).collect();
        let unknown_frees = self.head(header::UNKNOWN_FREES)?;
        let is_glibc = self.head(header::ALLOCATOR)? == tables::allocator::GLIBC;
        let unknown_freed = self.head(header::UNKNOWN_FREED)?;
        // With sampling most frees are not recorded.
        let is_known = is_glibc && self.head(header::EVERY_BYTES)? == 0;
        let unknown_freed =
            is_known.then_some(LogAmount { bytes: unknown_freed, blocks: unknown_frees });
        let peak_live = sum(sums.iter().map(|sum| settled(sum.at_peak)));
        let mut counts = LogCounts {
            // The vector of sums is converted in place, because it may have many elements.
            sites: sums.into_iter().map(|sum| sum.counted()).collect(),
            peak: peak_live,
            // Each thread may allocate and free up to its credit before it updates the shared
            // counters.
            peak_within: if most > 1 { most * 2 * CREDIT } else { 0 },
            unknown_frees,
            cut_stacks: self.head(header::CUT_STACKS)?,
            sizes: vec![0; CELLS],
            lifetimes: vec![0; CELLS],
            ..LogCounts::default()
        };
        self.add_threads(&mut counts, by_thread)?;
        trim(&mut counts.sizes);
        trim(&mut counts.lifetimes);
        // The counter may be negative briefly.
        let mapped = self.head(header::MAPPED)?.cast_signed().max(0).cast_unsigned();
        let now = sum(live.iter().copied());
        // The recorder makes copies at the first free after a peak. Before this free, the current
        // values are the peak.
        let is_peak = now.bytes > counts.peak.bytes;
        if is_peak {
            counts.peak = now;
            for (site, live) in counts.sites.iter_mut().zip(&live) {
                site.at_peak = *live;
            }
        }
        Ok(CountedState { counts, live, peak, is_peak, mapped, unknown_freed })
    }

    /// Adds the counts of each thread: sizes and lifetimes to the sums, and a row for each thread
    /// that allocated or freed.
    fn add_threads(
        &mut self,
        counts: &mut LogCounts,
        by_thread: Vec<(LogAmount, LogAmount)>,
    ) -> io::Result<()> {
        let slots = by_thread.len();
        let words = THREADS.entry / 8;
        let read = self.entries(&THREADS, 0, slots)?.to_vec();
        for (index, (slot, (allocated, freed))) in
            read.chunks_exact(THREADS.entry).zip(by_thread).enumerate()
        {
            let slot: Vec<u64> = slot.chunks_exact(8).take(words).map(word).collect();
            for (sum, value) in counts.sizes.iter_mut().zip(&slot[thread::SIZES..]) {
                *sum += value;
            }
            for (sum, value) in counts.lifetimes.iter_mut().zip(&slot[thread::LIFETIMES..]) {
                *sum += value;
            }
            let mut told = LogThread {
                tid: u32::try_from(slot[thread::TID]).unwrap_or(0),
                name: name(&slot[thread::NAME..thread::NAME + 2]),
                allocated: LogAmount {
                    bytes: slot[thread::ALLOCATED],
                    blocks: slot[thread::ALLOCATED + 1],
                },
                freed: LogAmount { bytes: slot[thread::FREED], blocks: slot[thread::FREED + 1] },
            };
            // Slot 0 also owns chunks that other threads have handed over. The slots of these
            // threads already contain the counts of these chunks.
            if index > 0 {
                add(&mut told.allocated, allocated);
                add(&mut told.freed, freed);
            } else {
                let told_of = self.told(&read);
                told.allocated = less(allocated, told_of.0);
                told.freed = less(freed, told_of.1);
            }
            if told.allocated != LogAmount::default() || told.freed != LogAmount::default() {
                counts.threads.push(told);
            }
        }
        Ok(())
    }

    /// Sum of the counts in all slots but slot 0.
    fn told(&self, slots: &[u8]) -> (LogAmount, LogAmount) {
        let mut both = (LogAmount::default(), LogAmount::default());
        for slot in slots.chunks_exact(THREADS.entry).skip(1) {
            let at = |number: usize| word(&slot[number * 8..number * 8 + 8]);
            let amount = |number| LogAmount { bytes: at(number), blocks: at(number + 1) };
            add(&mut both.0, amount(thread::ALLOCATED));
            add(&mut both.1, amount(thread::FREED));
        }
        both
    }
}

impl SiteRecordSum {
    fn add(&mut self, one: &SiteRecordSum) {
        add(&mut self.allocated, one.allocated);
        add(&mut self.freed, one.freed);
        add(&mut self.at_peak, one.at_peak);
        add(&mut self.at_moment, one.at_moment);
        self.temporary = self.temporary.wrapping_add(one.temporary);
        self.variances.0 += one.variances.0;
        self.variances.1 += one.variances.1;
    }

    fn counted(&self) -> LogSiteCounts {
        LogSiteCounts {
            allocated: self.allocated,
            freed: self.freed,
            temporary: self.temporary,
            at_peak: settled(self.at_peak),
            errors: (self.variances.0.max(0.0).sqrt(), self.variances.1.max(0.0).sqrt()),
        }
    }
}

/// Decodes a record.
fn one(record: &[u64; record::SIZE / 8], peak: u32, moment: u32) -> SiteRecordSum {
    let amount =
        |bytes: usize, blocks: usize| LogAmount { bytes: record[bytes], blocks: record[blocks] };
    let allocated = amount(record::ALLOCATED, record::ALLOCATIONS);
    let freed = amount(record::FREED, record::FREES);
    let live = less(allocated, freed);
    let epochs = record[record::EPOCHS];
    let kept = |number: usize| amount(number, number + 1);
    SiteRecordSum {
        allocated,
        freed,
        temporary: record[record::TEMPORARY],
        at_peak: if low(epochs) == peak { kept(record::AT_PEAK) } else { live },
        at_moment: if low(epochs >> 32) == moment { kept(record::AT_MOMENT) } else { live },
        variances: (
            f64::from_bits(record[record::VARIANCE]),
            f64::from_bits(record[record::LIVE_VARIANCE]),
        ),
    }
}

/// Checks that all references are to existing entries, because readers of the file refuse invalid
/// references.
fn check(new: &NewEntries, known: TableLengths, all: TableLengths) -> io::Result<()> {
    let wrong = |what: &str| {
        let words = format!("the program has written into the recorder's tables: {what}");
        Err(io::Error::new(io::ErrorKind::InvalidData, words))
    };
    for (number, node) in (known.nodes..).zip(&new.nodes) {
        let parent = node.parent == ROOT || (node.parent as usize) < number;
        if !parent || node.place as usize >= all.places {
            return wrong("a call without a caller");
        }
    }
    if new.sites.iter().any(|site| site.node != ROOT && site.node as usize >= all.nodes) {
        return wrong("an allocation without a call");
    }
    Ok(())
}

fn trim(cells: &mut Vec<u64>) {
    let used = cells.iter().rposition(|&count| count != 0).map_or(0, |last| last + 1);
    cells.truncate(used);
}

fn word(bytes: &[u8]) -> u64 {
    bytes.try_into().map_or(0, u64::from_ne_bytes)
}

fn words_from_bytes<const N: usize>(bytes: &[u8]) -> [u64; N] {
    let mut words = [0; N];
    for (word, bytes) in words.iter_mut().zip(bytes.chunks_exact(8)) {
        *word = self::word(bytes);
    }
    words
}

fn no_memory_file() -> io::Error {
    let words = "the recorder in the program shares no memory";
    io::Error::new(io::ErrorKind::InvalidData, words)
}

fn another_version() -> io::Error {
    let words = "the recorder in the program is of another version";
    io::Error::new(io::ErrorKind::InvalidData, words)
}

/// The lower half of a word.
fn low(word: u64) -> u32 {
    u32::try_from(word & u64::from(u32::MAX)).unwrap_or(0)
}

fn halves(bytes: &[u8]) -> [u32; 2] {
    let [both] = words_from_bytes(bytes);
    [low(both), low(both >> 32)]
}

fn name(words: &[u64]) -> Vec<u8> {
    words.iter().flat_map(|word| word.to_ne_bytes()).take_while(|&byte| byte != 0).collect()
}

#[cfg(test)]
mod tests {
    use rustix::fs::ftruncate;

    use super::*;

    fn memory() -> File {
        let file = File::from(memfd_create("pagewise-heap", MemfdFlags::CLOEXEC).unwrap());
        ftruncate(&file, tables::LENGTH as u64).unwrap();
        file.write_all_at(&MAGIC.to_ne_bytes(), HEADER.place(header::MAGIC) as u64).unwrap();
        file
    }

    #[test]
    fn tables_that_are_cut_off_meanwhile_are_an_error() {
        let file = memory();
        let mut tables = SharedTables::open(file.try_clone().unwrap()).unwrap();
        assert!(tables.state(true).is_ok() && tables.news(b"x").is_ok());
        ftruncate(&file, 64).unwrap();
        assert!(tables.state(true).is_err());
        ftruncate(&file, 0).unwrap();
        assert!(tables.head(header::MAGIC).is_err() && tables.own().is_err());
    }

    #[test]
    fn memory_of_another_length_is_refused() {
        let on_disk = tempfile::tempfile_in("/var/tmp").unwrap();
        on_disk.set_len(tables::LENGTH as u64).unwrap();
        let (pipe, _writer) = io::pipe().unwrap();
        let short = memory();
        ftruncate(&short, tables::LENGTH as u64 - 1).unwrap();
        let long = memory();
        ftruncate(&long, tables::LENGTH as u64 + 1).unwrap();
        let pipe = File::from(std::os::fd::OwnedFd::from(pipe));
        let device = File::open("/dev/zero").unwrap();
        for file in [on_disk, pipe, device, short, long] {
            assert!(SharedTables::open(file).is_err());
        }
    }
}
