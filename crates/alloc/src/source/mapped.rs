//! Memory of the operating system with special properties: huge pages, memory that is populated
//! when it is mapped, locked memory, or memory of chosen NUMA nodes.

use core::alloc::Layout;
use core::fmt;
use core::ptr::NonNull;

use super::{Source, SourceBlock, discard, page_size, resident, unmap};

/// A source of anonymous mappings with chosen properties, which may be combined.
///
/// ```
/// use pagewise_alloc::{Pages, source::MappedSource};
///
/// let kind = MappedSource::ANONYMOUS.transparent_huge().populated();
/// match kind.probe() {
///     Ok(()) => _ = Pages::new(kind),
///     Err(refused) => eprintln!("{refused}"),
/// }
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MappedSource {
    pages: BackingPages,
    populated: bool,
    locked: bool,
    /// Bitmap of the NUMA nodes from which memory may come; 0 permits all nodes.
    nodes: u64,
}

/// Page size with which the kernel backs a mapping.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum BackingPages {
    Small,
    /// Transparent huge pages, if the kernel has free ones, by `madvise`.
    Transparent,
    /// Huge pages from the kernel's reserve; the value is the binary logarithm of their size in
    /// bytes.
    Reserved(u8),
}

impl MappedSource {
    /// Mappings without special properties, as [`super::Os`] creates them.
    pub const ANONYMOUS: MappedSource =
        MappedSource { pages: BackingPages::Small, populated: false, locked: false, nodes: 0 };

    /// Adds transparent huge pages, if the kernel has free ones: `MADV_HUGEPAGE`. Idle memory stays
    /// resident until it is trimmed, since releasing a part of a huge page would split it.
    pub const fn transparent_huge(self) -> MappedSource {
        MappedSource { pages: BackingPages::Transparent, ..self }
    }

    /// Adds reserved huge pages (`/proc/sys/vm/nr_hugepages`) of 2^`power` bytes: 21 selects 2 MiB.
    pub const fn reserved_huge(self, power: u8) -> MappedSource {
        MappedSource { pages: BackingPages::Reserved(power), ..self }
    }

    /// Populates memory when it is mapped, so that no first access is a page fault:
    /// `MADV_POPULATE_WRITE`.
    pub const fn populated(self) -> MappedSource {
        MappedSource { populated: true, ..self }
    }

    /// Locks memory, so that it is never swapped or written back: `mlock`. RLIMIT_MEMLOCK limits
    /// its size.
    pub const fn locked(self) -> MappedSource {
        MappedSource { locked: true, ..self }
    }

    /// Takes memory only from these NUMA nodes, a bit for each: `mbind` with `MPOL_BIND`.
    pub const fn on_nodes(self, nodes: u64) -> MappedSource {
        MappedSource { nodes, ..self }
    }

    /// Takes a block with these properties and releases it, to check that the system can provide
    /// one.
    ///
    /// # Errors
    /// Returns the reason if the system cannot provide a block now.
    pub fn probe(&self) -> Result<(), MapRefused> {
        let block = self.map(Layout::new::<u8>())?;
        unmap(block.start, block.size);
        Ok(())
    }

    /// Returns the alignment of mappings in bytes. The size of each mapping is a multiple of it.
    fn page(&self) -> usize {
        let small = page_size();
        match self.pages {
            BackingPages::Small => small,
            // The size that an entry of the second-lowest page table level covers: a page full of
            // page table entries of 8 bytes, each of which covers a page.
            BackingPages::Transparent => small * (small / size_of::<u64>()),
            BackingPages::Reserved(power) => 1_usize.checked_shl(power.into()).unwrap_or(small),
        }
    }

    fn flags(&self) -> libc::c_int {
        match self.pages {
            BackingPages::Reserved(power) => {
                libc::MAP_HUGETLB | libc::c_int::from(power) << libc::MAP_HUGE_SHIFT
            }
            BackingPages::Small | BackingPages::Transparent => 0,
        }
    }

    fn map(&self, layout: Layout) -> Result<SourceBlock, MapRefused> {
        let mapped = super::map_aligned(layout, self.page(), self.flags());
        let block = mapped.ok_or_else(|| MapRefused::now(MapStep::Map))?;
        let steps = [
            (self.pages == BackingPages::Transparent, MapStep::Advise),
            (self.nodes != 0, MapStep::Bind),
            (self.locked, MapStep::Lock),
            (self.populated, MapStep::Populate),
        ];
        for (_, step) in steps.iter().filter(|(wanted, _)| *wanted) {
            if !self.take_step(*step, block) {
                let refused = MapRefused::now(*step);
                unmap(block.start, block.size);
                return Err(refused);
            }
        }
        Ok(block)
    }

    fn take_step(&self, step: MapStep, block: SourceBlock) -> bool {
        let (start, size) = (block.start.as_ptr().cast(), block.size);
        match step {
            MapStep::Map | MapStep::Open | MapStep::Reserve => true,
            // SAFETY: the range is a mapping of this source, and the advice does not change its
            // contents.
            MapStep::Advise => unsafe { libc::madvise(start, size, libc::MADV_HUGEPAGE) == 0 },
            MapStep::Bind => self.bind(start, size),
            // SAFETY: the range is a mapping of this source, whose contents do not change.
            MapStep::Lock => unsafe { libc::mlock(start, size) == 0 },
            MapStep::Populate => populate(block),
        }
    }

    fn bind(&self, start: *mut libc::c_void, size: usize) -> bool {
        const BIND: libc::c_int = 2;
        // Number of bits of the set plus 1, since the kernel ignores the last of the given number
        // of bits.
        const BITS: libc::c_ulong = 65;
        let nodes: *const u64 = &raw const self.nodes;
        // SAFETY: the kernel reads 64 bits, and changes only the NUMA policy of this mapping.
        unsafe { libc::syscall(libc::SYS_mbind, start, size, BIND, nodes, BITS, 0) == 0 }
    }

    /// True if no page is backed before the first access to it.
    fn is_lazy(&self) -> bool {
        !self.populated && !self.locked && !matches!(self.pages, BackingPages::Reserved(_))
    }
}

/// Populates a mapping. On kernels before Linux 5.14, which lack `MADV_POPULATE_WRITE`, this
/// function writes to every page.
fn populate(block: SourceBlock) -> bool {
    let start = block.start.as_ptr();
    // SAFETY: the mapping is new, and no other code uses it.
    if unsafe { libc::madvise(start.cast(), block.size, libc::MADV_POPULATE_WRITE) } == 0 {
        return true;
    }
    if errno() != libc::EINVAL {
        return false;
    }
    for page in (0..block.size).step_by(page_size()) {
        // SAFETY: `page` is below the size of the block.
        let place = unsafe { start.add(page) };
        // SAFETY: the byte is inside the mapping, and already has the value 0.
        unsafe { place.write_volatile(0) };
    }
    true
}

// SAFETY: each block is a separate mapping, which is zero-filled and stays until it is unmapped.
unsafe impl Source for MappedSource {
    fn take(&self, layout: Layout) -> Option<SourceBlock> {
        self.map(layout).ok()
    }

    unsafe fn give_back(&self, block: SourceBlock) {
        unmap(block.start, block.size);
    }

    fn ahead(&self, _align: usize) -> usize {
        if self.is_lazy() { usize::MAX } else { 0 }
    }

    fn discards(&self) -> bool {
        self.is_lazy() && self.pages == BackingPages::Small
    }

    unsafe fn discard(&self, start: NonNull<u8>, size: usize) -> bool {
        // SAFETY: the caller passes pages of a private anonymous mapping, which are not in use.
        self.discards() && unsafe { discard(start, size) }
    }

    fn resident(&self, start: NonNull<u8>, size: usize) -> usize {
        if self.is_lazy() { resident(start, size) } else { size }
    }
}

/// Steps of creating a mapping, in order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum MapStep {
    Open,
    Reserve,
    Map,
    Advise,
    Bind,
    Lock,
    Populate,
}

/// Reason why the system has no memory with the requested properties: the failed call, and its
/// error number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MapRefused {
    step: MapStep,
    number: i32,
}

impl MapRefused {
    /// Returns the reason of a call that has just failed in this thread.
    pub(super) fn now(step: MapStep) -> MapRefused {
        MapRefused { step, number: errno() }
    }

    /// Returns the error number, as in `errno.h`.
    pub const fn number(&self) -> i32 {
        self.number
    }
}

fn errno() -> i32 {
    // SAFETY: `__errno_location` takes no arguments, and returns an address that is valid in this
    // thread.
    let place = unsafe { libc::__errno_location() };
    // SAFETY: the address is that of this thread's `errno`, which no other thread writes.
    unsafe { place.read() }
}

/// Name of the system call of each step.
const CALLS: &[(MapStep, &str)] = &[
    (MapStep::Open, "open"),
    (MapStep::Reserve, "fallocate"),
    (MapStep::Map, "mmap"),
    (MapStep::Advise, "madvise(MADV_HUGEPAGE)"),
    (MapStep::Bind, "mbind"),
    (MapStep::Lock, "mlock"),
    (MapStep::Populate, "madvise(MADV_POPULATE_WRITE)"),
];

/// Meaning of an error number of a step.
const REASONS: &[(MapStep, i32, &str)] = &[
    (MapStep::Open, libc::EOPNOTSUPP, "the file system has no unnamed files (O_TMPFILE)"),
    (MapStep::Open, libc::ENOENT, "the folder does not exist"),
    (MapStep::Open, libc::EACCES, "the folder may not be written to"),
    (MapStep::Reserve, libc::ENOSPC, "the file system is full"),
    (MapStep::Reserve, libc::EOPNOTSUPP, "the file system cannot reserve space"),
    (MapStep::Map, libc::EINVAL, "the kernel has no huge pages of this size"),
    (
        MapStep::Map,
        libc::ENOMEM,
        "no memory, or too few huge pages are reserved: see /proc/sys/vm/nr_hugepages",
    ),
    (MapStep::Advise, libc::EINVAL, "the kernel has no transparent huge pages"),
    (MapStep::Bind, libc::ENOSYS, "the kernel has no NUMA support"),
    (MapStep::Bind, libc::EPERM, "this process may not choose nodes: containers often forbid it"),
    (
        MapStep::Bind,
        libc::EINVAL,
        "no such NUMA node, or none with memory: see /sys/devices/system/node/has_memory",
    ),
    (MapStep::Lock, libc::ENOMEM, "more than RLIMIT_MEMLOCK allows: see ulimit -l"),
    (MapStep::Lock, libc::EPERM, "RLIMIT_MEMLOCK is 0: see ulimit -l"),
    (MapStep::Lock, libc::EAGAIN, "there is not enough memory that can be locked"),
    (MapStep::Populate, libc::ENOMEM, "there is not enough memory"),
    (MapStep::Populate, libc::EFAULT, "there is not enough memory on the nodes"),
];

impl fmt::Display for MapRefused {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let call = CALLS.iter().find(|(step, _)| *step == self.step).map_or("", |(_, call)| call);
        let known = |(step, number, _): &&(MapStep, i32, &str)| {
            (*step, *number) == (self.step, self.number)
        };
        match REASONS.iter().find(known) {
            Some((_, _, reason)) => write!(f, "{call}: {reason}"),
            None => write!(f, "{call}: error {} of errno.h", self.number),
        }
    }
}

impl core::error::Error for MapRefused {}
