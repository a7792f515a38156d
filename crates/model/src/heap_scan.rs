//! The heap of a process from outside, at one time: its live blocks, and the free memory between
//! them.

use serde::{Deserialize, Serialize};

use crate::heap_graph::HeapGraph;
use crate::machine::ProcessMoment;
use crate::process::Process;
use crate::{Absent, Bytes, Name, PageSize};

/// The version of the form in which scans are saved.
pub const HEAP_SCAN_VERSION: u32 = 1;

/// A scan of a heap.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct HeapScan {
    /// [`HEAP_SCAN_VERSION`] of the writer.
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
    /// Duration of copy and walk in nanoseconds.
    pub took_ns: u64,
    /// The walked heap.
    pub heap: WalkedHeap,
    /// Pointers between the blocks, if they were searched.
    #[serde(default)]
    pub graph: Option<HeapGraph>,
}

impl HeapScan {
    /// True if the process was neither stopped nor forked for the copy: blocks that it allocated or
    /// freed meanwhile can appear unreachable.
    pub fn was_moving(&self) -> bool {
        self.moment == ProcessMoment::Running
            && self.copy.stops == 0
            && self.copy.snapshot_ns.is_none()
    }

    /// True if a thread may have been changing the heap at the time of the copy.
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
    /// Resident bytes that could not be read.
    pub unread: Bytes,
    /// The longest time for which the process was stopped, in nanoseconds, also for copies that
    /// were discarded.
    pub pause_ns: u64,
    /// The expected duration of the pause, in nanoseconds.
    pub expected_pause_ns: u64,
    /// Number of times that the process was stopped: again if a thread was changing the heap.
    pub stops: u64,
    /// Number of threads that may have been changing the heap at the time of the copy.
    pub unsettled_threads: u64,
    /// The time for which the snapshot lived that the process was made to fork, in nanoseconds;
    /// `None` if the process itself was copied.
    #[serde(default)]
    pub snapshot_ns: Option<u64>,
}

impl MemoryCopy {
    /// This copy with the pause and the stops of an `earlier` copy that was discarded: the process
    /// was stopped for it too.
    #[must_use]
    pub fn after(self, earlier: MemoryCopy) -> MemoryCopy {
        let pause_ns = self.pause_ns.max(earlier.pause_ns);
        MemoryCopy { pause_ns, stops: self.stops + earlier.stops, ..self }
    }
}

/// The heap of a process: all of its allocators.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct WalkedHeap {
    /// The allocators, and their layouts as far as these were detected.
    #[serde(default)]
    pub allocators: Vec<HeapAllocator>,
    /// Allocators that were found and could not be walked.
    #[serde(default)]
    pub refused: Vec<RefusedAllocator>,
    /// Arenas by allocator; of each the main arena first, then in order of address.
    pub arenas: Vec<WalkedArena>,
    /// Blocks with mappings of their own.
    pub mapped: MappedBlocks,
    /// Live blocks by usable size, in order of size.
    pub sizes: Vec<LiveSize>,
    /// Live Python objects by type, most bytes first, up to a limit.
    #[serde(default)]
    pub objects: Vec<LiveType>,
    /// Resident pages of arenas by their live share. Cell 0 counts pages without a live block, cell
    /// *n* those of which more than *n* - 1 eighths are live and no more than *n*.
    pub density: Vec<u64>,
    /// Contradictions in the data of the allocator, up to a limit.
    pub corruption: Vec<HeapCorruption>,
    /// Number of all contradictions.
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
    /// Number of other lists of thread caches and fastbins that could not be read to their ends.
    pub lists: u64,
    /// Blocks that the allocator has marked as cached. They count as free.
    pub marked: LiveAmount,
    /// The most live blocks that may be free blocks of these lists.
    pub unclear: LiveAmount,
}

/// An allocator that was walked.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct HeapAllocator {
    /// Its name.
    pub name: String,
    /// Layout of the thread caches; empty if no thread has one.
    pub thread_caches: String,
    /// True if links of singly linked free lists are mangled (safe-linking); `None` if no list
    /// shows it.
    pub mangles_links: Option<bool>,
    /// Its live blocks, without those that hold the memory of another allocator.
    #[serde(default)]
    pub live: LiveAmount,
    /// Live blocks of other allocators that hold its memory. The arenas of these allocators count
    /// them.
    #[serde(default)]
    pub nested: LiveAmount,
}

/// An allocator that was found and not walked.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct RefusedAllocator {
    /// Its name.
    pub name: String,
    /// Why it was not walked.
    pub why: String,
}

/// Number of blocks, and their usable bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct LiveAmount {
    /// Number of blocks.
    pub blocks: u64,
    /// Bytes that the program may use, as `malloc_usable_size` returns them.
    pub bytes: u64,
}

impl LiveAmount {
    /// Adds another amount.
    pub fn add(&mut self, other: LiveAmount) {
        self.blocks = self.blocks.saturating_add(other.blocks);
        self.bytes = self.bytes.saturating_add(other.bytes);
    }

    /// This amount without a part of it.
    #[must_use]
    pub fn without(self, part: LiveAmount) -> LiveAmount {
        LiveAmount {
            blocks: self.blocks.saturating_sub(part.blocks),
            bytes: self.bytes.saturating_sub(part.bytes),
        }
    }
}

/// Free bytes by the list that holds them, headers of chunks included.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct FreeBytes {
    /// In thread caches (tcache).
    pub tcache: u64,
    /// In fastbins.
    pub fastbins: u64,
    /// In the unsorted bin.
    pub unsorted: u64,
    /// In small bins.
    pub small_bins: u64,
    /// In large bins.
    pub large_bins: u64,
    /// In the last chunk (`top`).
    pub top: u64,
    /// Free by their headers, and in no list.
    pub unlisted: u64,
    /// In pages whose slots all have one size (slabs, spans, pools), beside other slots.
    #[serde(default)]
    pub slots: u64,
    /// In runs of whole free pages that the allocator keeps.
    #[serde(default)]
    pub pages: u64,
    /// Address space that the allocator keeps without memory: released pages, and pages that were
    /// never touched. It is not part of the total.
    #[serde(default)]
    pub retained: u64,
}

impl FreeBytes {
    /// Sum over all lists; `retained` does not count.
    pub fn total(&self) -> u64 {
        let FreeBytes { tcache, fastbins, unsorted, small_bins, large_bins, .. } = *self;
        let FreeBytes { top, unlisted, slots, pages, .. } = *self;
        [tcache, fastbins, unsorted, small_bins, large_bins, top, unlisted, slots, pages]
            .into_iter()
            .fold(0, u64::saturating_add)
    }

    /// Adds others.
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

/// An arena.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct WalkedArena {
    /// Index of its allocator in [`WalkedHeap::allocators`].
    #[serde(default)]
    pub allocator: usize,
    /// Its kind and name, if it is another arena than those of malloc.
    #[serde(default)]
    pub label: String,
    /// Start of its first part.
    pub start: u64,
    /// Address of its `malloc_state`.
    pub state: u64,
    /// True for the main arena.
    pub is_main: bool,
    /// Number of its parts: heaps, or ranges of the main arena.
    pub parts: u64,
    /// Bytes of its parts.
    pub held: Bytes,
    /// Resident part of these.
    pub resident: Bytes,
    /// Bytes that it has from the system by its own count (`system_mem`).
    pub system: Bytes,
    /// Live blocks.
    pub live: LiveAmount,
    /// Bytes of the chunks of live blocks: with headers and rounding.
    pub live_chunks: Bytes,
    /// Free bytes.
    pub free: FreeBytes,
    /// Bytes of the allocator itself: thread caches, the state of the arena, end marks.
    pub own: Bytes,
    /// Resident bytes that `malloc_trim(0)` would return.
    pub trimmable: Bytes,
    /// Part of these at the end of the arena (`top`), which `malloc_trim(PAD)` keeps up to PAD.
    pub trimmable_top: Bytes,
    /// Length of the longest range between two live blocks.
    pub largest_gap: Bytes,
    /// Number of threads that allocate from it.
    pub threads: u64,
    /// True if this number was counted in the data of the threads; false if it is the count of the
    /// arena.
    pub threads_seen: bool,
    /// True if a thread was working on the arena at the time of the scan (its lock was held).
    pub is_locked: bool,
}

/// Blocks with mappings of their own.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct MappedBlocks {
    /// Live blocks.
    pub live: LiveAmount,
    /// Free blocks in thread caches, which hold such blocks since glibc 2.43.
    #[serde(default)]
    pub cached: LiveAmount,
    /// Bytes of the mappings of both.
    pub held: Bytes,
    /// Resident part of these.
    pub resident: Bytes,
    /// Number and bytes by the allocator's own count; `None` if it was not found.
    pub counted: Option<LiveAmount>,
}

impl MappedBlocks {
    /// Adds those of another allocator.
    pub fn add(&mut self, other: &MappedBlocks) {
        // A sum is known only if each allocator with such blocks has counted its own.
        let count =
            |of: &MappedBlocks| of.counted.or((of.live.blocks == 0).then(LiveAmount::default));
        self.counted = match (self.counted, other.counted) {
            (None, None) => None,
            _ => count(self).zip(count(other)).map(|(mut own, other)| {
                own.add(other);
                own
            }),
        };
        self.live.add(other.live);
        self.held += other.held;
        self.resident += other.resident;
    }
}

/// Live blocks of one usable size.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct LiveSize {
    /// Usable bytes of each.
    pub size: u64,
    /// Number of blocks.
    pub blocks: u64,
}

/// Live objects of an interpreter that have one type.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct LiveType {
    /// Its name.
    pub name: Name,
    /// The blocks of the objects; other blocks that an object owns do not count.
    pub live: LiveAmount,
}

/// A contradiction in the data of an allocator.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct HeapCorruption {
    /// Address of the block, as the allocator returned it; of other data its address.
    pub block: u64,
    /// Address of the word that contradicts.
    pub address: u64,
    /// Expected value, in words.
    pub expected: String,
    /// The word.
    pub found: u64,
}

/// A part of a heap that was not walked.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct HeapGap {
    /// Its first address.
    pub start: u64,
    /// Its length.
    pub bytes: Bytes,
    /// Why.
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

    /// Live blocks of all arenas and mappings, without those that hold the memory of an allocator.
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

    /// Resident bytes of all arenas and mappings.
    pub fn resident(&self) -> Bytes {
        self.arenas.iter().map(|arena| arena.resident).sum::<Bytes>() + self.mapped.resident
    }
}

/// Both lists as one, in order of size.
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
