//! The heap of a process, read from outside at one time: its live blocks, and the free memory
//! between them.

use serde::{Deserialize, Serialize};

use crate::heap_graph::HeapGraph;
use crate::machine::ProcessMoment;
use crate::process::Process;
use crate::{Absent, Bytes, Name, PageSize};

/// Version of the file format in which scans are saved.
pub const HEAP_SCAN_VERSION: u32 = 1;

/// A scan of a heap.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct HeapScan {
    /// [`HEAP_SCAN_VERSION`] of the program that saved the scan.
    pub pagewise_heap_scan: u32,
    /// The process.
    pub process: Process,
    /// Time of the scan in the life of the process.
    pub moment: ProcessMoment,
    /// Nanoseconds since 1970 at the beginning of the scan.
    pub time_ns: u64,
    /// The base page size.
    pub page_size: PageSize,
    /// The copy of the memory that was scanned.
    pub copy: MemoryCopy,
    /// Duration of the copy and of the walk in nanoseconds.
    pub took_ns: u64,
    /// Result of the heap walk.
    pub heap: WalkedHeap,
    /// Pointers between the blocks; absent if they were not searched.
    #[serde(default)]
    pub graph: Option<HeapGraph>,
}

impl HeapScan {
    /// True if the copy was read from the process itself while it was running. Blocks that the
    /// process allocated or freed during the copy can then appear unreachable. False if the process
    /// was stopped, or if a forked child served as a snapshot.
    pub fn was_moving(&self) -> bool {
        self.moment == ProcessMoment::Running
            && self.copy.stops == 0
            && self.copy.snapshot_ns.is_none()
    }

    /// True if a thread may have been changing the heap when the memory was copied.
    pub fn may_be_in_change(&self) -> bool {
        self.copy.unsettled_threads > 0 || self.heap.arenas.iter().any(|arena| arena.is_locked)
    }
}

/// A copy of the memory of a process.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct MemoryCopy {
    /// Copied bytes.
    pub copied: Bytes,
    /// Bytes in swap, which were not copied.
    pub swapped: Bytes,
    /// Resident bytes that could not be copied.
    pub unread: Bytes,
    /// The longest time for which the process was stopped, in nanoseconds. Discarded copies count
    /// too.
    pub pause_ns: u64,
    /// Expected duration of the stop in nanoseconds.
    pub expected_pause_ns: u64,
    /// Number of times that the process was stopped. A stop is repeated if a thread was changing
    /// the heap.
    pub stops: u64,
    /// Number of threads that may have been changing the heap when the memory was copied.
    pub unsettled_threads: u64,
    /// Lifetime of the forked child that served as a snapshot, in nanoseconds; `None` if the
    /// process itself was copied.
    #[serde(default)]
    pub snapshot_ns: Option<u64>,
}

impl MemoryCopy {
    /// Returns this copy with the stops of `earlier` (a discarded copy) added, and with the longer
    /// of the two pauses.
    #[must_use]
    pub fn after(self, earlier: MemoryCopy) -> MemoryCopy {
        let pause_ns = self.pause_ns.max(earlier.pause_ns);
        MemoryCopy { pause_ns, stops: self.stops + earlier.stops, ..self }
    }
}

/// Result of the walk of all heaps of a process.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct WalkedHeap {
    /// Allocators that were walked.
    #[serde(default)]
    pub allocators: Vec<HeapAllocator>,
    /// Allocators that were found but could not be walked.
    #[serde(default)]
    pub refused: Vec<RefusedAllocator>,
    /// Arenas by allocator. The main arena of each allocator is the first; the other arenas follow
    /// in order of address.
    pub arenas: Vec<WalkedArena>,
    /// Blocks with their own mappings.
    pub mapped: MappedBlocks,
    /// Live blocks by usable size, in order of size.
    pub sizes: Vec<LiveSize>,
    /// Live Python objects by type, most bytes first, up to a limit.
    #[serde(default)]
    pub objects: Vec<LiveType>,
    /// Number of resident pages of arenas by their live share. Cell 0 counts pages without a live
    /// block. Cell *n* counts pages of which more than *n* - 1 eighths and at most *n* eighths are
    /// live.
    pub density: Vec<u64>,
    /// Contradictions in the data of the allocator, up to a limit.
    pub corruption: Vec<HeapCorruption>,
    /// Number of all contradictions, including those that are not listed.
    pub corrupted: u64,
    /// Parts of the heap that could not be walked, with the reason.
    pub gaps: Vec<HeapGap>,
    /// Free lists that could not be read.
    #[serde(default)]
    pub unread_lists: UnreadLists,
}

/// Free lists that could not be read, and the blocks that they may hold.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct UnreadLists {
    /// Number of threads whose cache could not be read.
    pub threads: u64,
    /// Number of other thread-cache lists and fastbins that could not be read to their ends.
    pub lists: u64,
    /// Blocks that are free because the allocator marked them as cached.
    pub marked: LiveAmount,
    /// Upper bound of the blocks that count as live but may be free blocks of the unread lists.
    pub unclear: LiveAmount,
}

/// An allocator that was walked.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct HeapAllocator {
    /// Name of the allocator.
    pub name: String,
    /// Layout of the thread caches; empty if no thread has a cache.
    pub thread_caches: String,
    /// True if the links of singly linked free lists are mangled (safe-linking); `None` if the free
    /// lists do not show it.
    pub mangles_links: Option<bool>,
    /// Live blocks of the allocator, without the blocks that contain the memory of another
    /// allocator.
    #[serde(default)]
    pub live: LiveAmount,
    /// Live blocks of other allocators that contain memory of this allocator. The arenas of the
    /// other allocators count these blocks.
    #[serde(default)]
    pub nested: LiveAmount,
}

/// An allocator that was found and not walked.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct RefusedAllocator {
    /// Name of the allocator.
    pub name: String,
    /// Reason why the allocator was not walked.
    pub why: String,
}

/// Number of blocks, and their usable bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct LiveAmount {
    /// Number of blocks.
    pub blocks: u64,
    /// Usable bytes, as `malloc_usable_size` returns them.
    pub bytes: u64,
}

impl LiveAmount {
    /// Adds another amount.
    pub fn add(&mut self, other: LiveAmount) {
        self.blocks = self.blocks.saturating_add(other.blocks);
        self.bytes = self.bytes.saturating_add(other.bytes);
    }

    /// Subtracts `part`, which is a part of this amount.
    #[must_use]
    pub fn without(self, part: LiveAmount) -> LiveAmount {
        LiveAmount {
            blocks: self.blocks.saturating_sub(part.blocks),
            bytes: self.bytes.saturating_sub(part.bytes),
        }
    }
}

/// Free bytes by the list that contains them. The bytes include the headers of chunks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct FreeBytes {
    /// Bytes in thread caches (tcache).
    pub tcache: u64,
    /// Bytes in fastbins.
    pub fastbins: u64,
    /// Bytes in the unsorted bin.
    pub unsorted: u64,
    /// Bytes in small bins.
    pub small_bins: u64,
    /// Bytes in large bins.
    pub large_bins: u64,
    /// Bytes of the last chunk (`top`).
    pub top: u64,
    /// Bytes of chunks that their headers mark as free and that are in no list.
    pub unlisted: u64,
    /// Free bytes of pages that are divided into slots of one size (slabs, spans, pools).
    #[serde(default)]
    pub slots: u64,
    /// Bytes in runs of whole free pages that the allocator keeps.
    #[serde(default)]
    pub pages: u64,
    /// Address space that the allocator keeps without memory: released pages, and pages that were
    /// never accessed. `total` excludes it.
    #[serde(default)]
    pub retained: u64,
}

impl FreeBytes {
    /// Sum over all lists, without `retained`.
    pub fn total(&self) -> u64 {
        let FreeBytes { tcache, fastbins, unsorted, small_bins, large_bins, .. } = *self;
        let FreeBytes { top, unlisted, slots, pages, .. } = *self;
        [tcache, fastbins, unsorted, small_bins, large_bins, top, unlisted, slots, pages]
            .into_iter()
            .fold(0, u64::saturating_add)
    }

    /// Adds another set of free bytes.
    pub fn add(&mut self, other: &FreeBytes) {
        let sum = |own: &mut u64, other: u64| *own = own.saturating_add(other);
        sum(&mut self.tcache, other.tcache);
        sum(&mut self.fastbins, other.fastbins);
        sum(&mut self.unsorted, other.unsorted);
        sum(&mut self.small_bins, other.small_bins);
        sum(&mut self.large_bins, other.large_bins);
        sum(&mut self.top, other.top);
        sum(&mut self.unlisted, other.unlisted);
        sum(&mut self.slots, other.slots);
        sum(&mut self.pages, other.pages);
        sum(&mut self.retained, other.retained);
    }
}

/// An arena that was walked.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct WalkedArena {
    /// Index of the arena's allocator in [`WalkedHeap::allocators`].
    #[serde(default)]
    pub allocator: usize,
    /// Kind and name of the arena; empty for an arena of `malloc`.
    #[serde(default)]
    pub label: String,
    /// First address of the arena's first part.
    pub start: u64,
    /// Address of the arena's `malloc_state`.
    pub state: u64,
    /// True if the arena is the main arena.
    pub is_main: bool,
    /// Number of parts of the arena: heaps, or address ranges of the main arena.
    pub parts: u64,
    /// Total bytes of the parts.
    pub held: Bytes,
    /// Resident bytes of the parts.
    pub resident: Bytes,
    /// Bytes that the arena got from the system, by its own count (`system_mem`).
    pub system: Bytes,
    /// Live blocks of the arena.
    pub live: LiveAmount,
    /// Bytes of the chunks of live blocks, with headers and rounding.
    pub live_chunks: Bytes,
    /// Free bytes of the arena.
    pub free: FreeBytes,
    /// Bytes that the allocator itself uses: thread caches, the state of the arena, end marks.
    pub own: Bytes,
    /// Resident bytes that `malloc_trim(0)` would return.
    pub trimmable: Bytes,
    /// Part of `trimmable` at the end of the arena (`top`). `malloc_trim(PAD)` keeps up to PAD
    /// bytes of it.
    pub trimmable_top: Bytes,
    /// Length of the longest range between two live blocks, in bytes.
    pub largest_gap: Bytes,
    /// Number of threads that allocate from the arena.
    pub threads: u64,
    /// True if `threads` was counted in the data of the threads; false if the arena counted them.
    pub threads_seen: bool,
    /// True if the arena's lock was held at the time of the scan, so a thread was changing the
    /// arena.
    pub is_locked: bool,
}

/// Blocks with their own mappings.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct MappedBlocks {
    /// Live blocks with their own mappings.
    pub live: LiveAmount,
    /// Free blocks with their own mappings that are in thread caches (since glibc 2.43).
    #[serde(default)]
    pub cached: LiveAmount,
    /// Bytes of the mappings of live and cached blocks.
    pub held: Bytes,
    /// Resident bytes of these mappings.
    pub resident: Bytes,
    /// Number and bytes of the blocks by the allocator's own count; `None` if the count was not
    /// found.
    pub counted: Option<LiveAmount>,
}

impl MappedBlocks {
    /// Adds the blocks of another allocator.
    pub fn add(&mut self, other: &MappedBlocks) {
        // The sum of counts is known only if each allocator that has blocks with their own mappings
        // also has a count.
        let count = |of: &MappedBlocks| {
            let has_none = of.live.blocks == 0 && of.cached.blocks == 0;
            of.counted.or(has_none.then(LiveAmount::default))
        };
        self.counted = match (self.counted, other.counted) {
            (None, None) => None,
            _ => count(self).zip(count(other)).map(|(mut own, other)| {
                own.add(other);
                own
            }),
        };
        self.live.add(other.live);
        self.cached.add(other.cached);
        self.held += other.held;
        self.resident += other.resident;
    }
}

/// Live blocks of one usable size.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct LiveSize {
    /// Usable bytes of each block.
    pub size: u64,
    /// Number of blocks.
    pub blocks: u64,
}

/// Live objects of one type of an interpreter.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct LiveType {
    /// Name of the type.
    pub name: Name,
    /// Blocks that contain the objects. Blocks that the objects own are excluded.
    pub live: LiveAmount,
}

/// A contradiction in the data of an allocator.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct HeapCorruption {
    /// Address of the block, as the allocator returned it; address of the contradictory data if no
    /// block contains the data.
    pub block: u64,
    /// Address of the contradictory word.
    pub address: u64,
    /// Description of the expected value.
    pub expected: String,
    /// Value of the word.
    pub found: u64,
}

/// A part of a heap that was not walked.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct HeapGap {
    /// First address of the part.
    pub start: u64,
    /// Length of the part.
    pub bytes: Bytes,
    /// Reason why the part was not walked.
    pub why: Absent,
}

impl UnreadLists {
    fn add(&mut self, other: UnreadLists) {
        self.threads = self.threads.saturating_add(other.threads);
        self.lists = self.lists.saturating_add(other.lists);
        self.marked.add(other.marked);
        self.unclear.add(other.unclear);
    }
}

impl WalkedHeap {
    /// Adds the heap of another allocator.
    pub fn merge(&mut self, other: WalkedHeap) {
        let allocators = self.allocators.len();
        self.allocators.extend(other.allocators);
        self.refused.extend(other.refused);
        self.arenas.extend(
            other
                .arenas
                .into_iter()
                .map(|arena| WalkedArena { allocator: arena.allocator + allocators, ..arena }),
        );
        self.mapped.add(&other.mapped);
        self.sizes = merged_sizes(&self.sizes, &other.sizes);
        self.objects.extend(other.objects);
        if self.density.len() < other.density.len() {
            self.density.resize(other.density.len(), 0);
        }
        self.density.iter_mut().zip(&other.density).for_each(|(own, other)| *own += other);
        self.corruption.extend(other.corruption);
        self.corrupted = self.corrupted.saturating_add(other.corrupted);
        self.gaps.extend(other.gaps);
        self.gaps.sort_by_key(|gap| gap.start);
        self.unread_lists.add(other.unread_lists);
    }

    /// Live blocks of all arenas and mappings, without the blocks that contain the memory of
    /// another allocator.
    pub fn live(&self) -> LiveAmount {
        let all = self.arenas.iter().fold(self.mapped.live, |mut sum, arena| {
            sum.add(arena.live);
            sum
        });
        self.allocators.iter().fold(all, |sum, allocator| sum.without(allocator.nested))
    }

    /// Free bytes of all arenas.
    pub fn free(&self) -> FreeBytes {
        self.arenas.iter().fold(FreeBytes::default(), |mut sum, arena| {
            sum.add(&arena.free);
            sum
        })
    }

    /// Resident bytes that `malloc_trim(0)` would return.
    pub fn trimmable(&self) -> Bytes {
        self.arenas.iter().map(|arena| arena.trimmable).sum()
    }

    /// Resident bytes of all arenas, and of the mappings of single blocks.
    pub fn resident(&self) -> Bytes {
        self.arenas.iter().map(|arena| arena.resident).sum::<Bytes>() + self.mapped.resident
    }
}

/// Merges two lists into one in order of size; equal sizes are added.
fn merged_sizes(one: &[LiveSize], other: &[LiveSize]) -> Vec<LiveSize> {
    let mut all = [one, other].concat();
    all.sort_by_key(|it| it.size);
    let mut sums: Vec<LiveSize> = Vec::with_capacity(all.len());
    for entry in all {
        match sums.last_mut().filter(|last| last.size == entry.size) {
            Some(last) => last.blocks = last.blocks.saturating_add(entry.blocks),
            None => sums.push(entry),
        }
    }
    sums
}

#[cfg(test)]
mod tests {
    use super::*;

    fn heap(name: &str, sizes: &[(u64, u64)], counted: Option<u64>) -> WalkedHeap {
        let allocator = HeapAllocator { name: name.to_owned(), ..HeapAllocator::default() };
        let amount = |blocks| LiveAmount { blocks, bytes: blocks * 8 };
        WalkedHeap {
            allocators: vec![allocator],
            arenas: vec![WalkedArena::default()],
            mapped: MappedBlocks {
                live: amount(counted.unwrap_or(2)),
                cached: amount(1),
                counted: counted.map(amount),
                ..MappedBlocks::default()
            },
            sizes: sizes.iter().map(|&(size, blocks)| LiveSize { size, blocks }).collect(),
            density: vec![1; 9],
            ..WalkedHeap::default()
        }
    }

    #[test]
    fn heaps_of_two_allocators_merge() {
        let mut merged = WalkedHeap::default();
        merged.merge(heap("one", &[(8, 1), (16, 2)], Some(3)));
        merged.merge(heap("two", &[(16, 5), (32, 1)], Some(4)));
        let names: Vec<&str> = merged.allocators.iter().map(|it| it.name.as_str()).collect();
        assert_eq!(names, ["one", "two"]);
        assert_eq!(merged.arenas.iter().map(|it| it.allocator).collect::<Vec<_>>(), [0, 1]);
        let sizes: Vec<(u64, u64)> = merged.sizes.iter().map(|it| (it.size, it.blocks)).collect();
        assert_eq!(sizes, [(8, 1), (16, 7), (32, 1)]);
        assert_eq!(merged.density, [2; 9]);
        assert_eq!(merged.mapped.cached, LiveAmount { blocks: 2, bytes: 16 });
        assert_eq!(merged.mapped.counted.unwrap().blocks, 7);
    }

    #[test]
    fn a_missing_count_of_one_allocator_leaves_the_sum_unknown() {
        let mut merged = heap("one", &[], Some(3));
        merged.merge(heap("two", &[], None));
        assert_eq!(merged.mapped.counted, None);
        assert_eq!(merged.mapped.live.blocks, 5);
    }
}
