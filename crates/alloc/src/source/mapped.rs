//! Memory of the operating system that is to be more than memory: huge pages, there from the start, locked, of one NUMA node.

use core::alloc::Layout;
use core::fmt;
use core::ptr::NonNull;

use super::{Block, Source, discard, page_size, resident, unmap};

/// Anonymous mappings of a kind. Kinds may be combined.
///
/// ```
/// use pagewise_alloc::{Pages, source::Mapped};
///
/// let kind = Mapped::ANONYMOUS.transparent_huge().populated();
/// match kind.probe() {
///     Ok(()) => _ = Pages::new(kind),
///     Err(refused) => eprintln!("{refused}"),
/// }
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Mapped {
    pages: PageKind,
    populated: bool,
    locked: bool,
    /// A bit for each NUMA node from which memory may come; 0 is any.
    nodes: u64,
}

/// By which pages a mapping is backed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum PageKind {
    Small,
    /// Huge where the kernel has some, by advice.
    Transparent,
    /// Of the kernel's reserve, of this power of two.
    Reserved(u8),
}

impl Mapped {
    /// As [`super::Os`] maps.
    pub const ANONYMOUS: Mapped =
        Mapped { pages: PageKind::Small, populated: false, locked: false, nodes: 0 };

    /// With transparent huge pages, where the kernel has some: `MADV_HUGEPAGE`. What becomes idle stays resident until it is
    /// trimmed, since to take a part of a huge page away is to split it.
    pub const fn transparent_huge(self) -> Mapped {
        Mapped { pages: PageKind::Transparent, ..self }
    }

    /// Of huge pages that were reserved (`/proc/sys/vm/nr_hugepages`), as large as this power of two: 21 for 2 MiB.
    pub const fn reserved_huge(self, power: u8) -> Mapped {
        Mapped { pages: PageKind::Reserved(power), ..self }
    }

    /// There from the start, so that no first touch is a page fault: `MADV_POPULATE_WRITE`.
    pub const fn populated(self) -> Mapped {
        Mapped { populated: true, ..self }
    }

    /// Never swapped or written back: `mlock`. As much as RLIMIT_MEMLOCK allows.
    pub const fn locked(self) -> Mapped {
        Mapped { locked: true, ..self }
    }

    /// Only of these NUMA nodes, a bit each, where any other would do harm: `mbind` with `MPOL_BIND`.
    pub const fn on_nodes(self, nodes: u64) -> Mapped {
        Mapped { nodes, ..self }
    }

    /// Asks the system for a page of this kind, and gives it back.
    ///
    /// # Errors
    /// Why there is none. Later there may be.
    pub fn probe(&self) -> Result<(), Refused> {
        let block = self.map(Layout::new::<u8>())?;
        unmap(block.start, block.size);
        Ok(())
    }

    /// Bytes of a page: what mappings are multiples of, and aligned to.
    fn page(&self) -> usize {
        let small = page_size();
        match self.pages {
            PageKind::Small => small,
            // A table of page-table entries of a word each: what one entry of the next level covers.
            PageKind::Transparent => small * (small / size_of::<u64>()),
            PageKind::Reserved(power) => 1_usize.checked_shl(power.into()).unwrap_or(small),
        }
    }

    fn flags(&self) -> libc::c_int {
        match self.pages {
            PageKind::Reserved(power) => {
                libc::MAP_HUGETLB | libc::c_int::from(power) << libc::MAP_HUGE_SHIFT
            }
            PageKind::Small | PageKind::Transparent => 0,
        }
    }

    fn map(&self, layout: Layout) -> Result<Block, Refused> {
        let mapped = super::map_aligned(layout, self.page(), self.flags());
        let block = mapped.ok_or_else(|| Refused::now(Step::Map))?;
        let steps = [
            (self.pages == PageKind::Transparent, Step::Advise),
            (self.nodes != 0, Step::Bind),
            (self.locked, Step::Lock),
            (self.populated, Step::Populate),
        ];
        for (_, step) in steps.iter().filter(|(wanted, _)| *wanted) {
            if !self.take_step(*step, block) {
                let refused = Refused::now(*step);
                unmap(block.start, block.size);
                return Err(refused);
            }
        }
        Ok(block)
    }

    fn take_step(&self, step: Step, block: Block) -> bool {
        let (start, size) = (block.start.as_ptr().cast(), block.size);
        match step {
            Step::Map | Step::Open | Step::Reserve => true,
            // SAFETY: advice on a mapping of our own.
            Step::Advise => unsafe { libc::madvise(start, size, libc::MADV_HUGEPAGE) == 0 },
            Step::Bind => self.bind(start, size),
            // SAFETY: the mapping is ours.
            Step::Lock => unsafe { libc::mlock(start, size) == 0 },
            Step::Populate => populate(block),
        }
    }

    fn bind(&self, start: *mut libc::c_void, size: usize) -> bool {
        const BIND: libc::c_int = 2;
        // The kernel takes one bit less than it is told.
        const BITS: libc::c_ulong = 65;
        let nodes: *const u64 = &raw const self.nodes;
        // SAFETY: the kernel reads 64 bits, and changes nothing but where memory of this mapping comes from.
        unsafe { libc::syscall(libc::SYS_mbind, start, size, BIND, nodes, BITS, 0) == 0 }
    }

    /// Whether nothing of it is there before it is touched.
    fn is_lazy(&self) -> bool {
        !self.populated && !self.locked && !matches!(self.pages, PageKind::Reserved(_))
    }
}

/// Has the kernel back a mapping; a kernel before 5.14 does when every page is written to.
fn populate(block: Block) -> bool {
    let start = block.start.as_ptr();
    // SAFETY: the mapping is ours, and holds nothing that anyone reads.
    if unsafe { libc::madvise(start.cast(), block.size, libc::MADV_POPULATE_WRITE) } == 0 {
        return true;
    }
    if errno() != libc::EINVAL {
        return false;
    }
    for page in (0..block.size).step_by(page_size()) {
        // SAFETY: inside of the block, which is ours.
        let place = unsafe { start.add(page) };
        // SAFETY: as above; every byte of it is 0 already.
        unsafe { place.write_volatile(0) };
    }
    true
}

// SAFETY: the kernel gives each mapping to one taker, zeroed, and it stays until it is unmapped.
unsafe impl Source for Mapped {
    fn take(&self, layout: Layout) -> Option<Block> {
        self.map(layout).ok()
    }

    unsafe fn give_back(&self, block: Block) {
        unmap(block.start, block.size);
    }

    fn ahead(&self, _align: usize) -> usize {
        if self.is_lazy() { usize::MAX } else { 0 }
    }

    fn discards(&self) -> bool {
        self.is_lazy() && self.pages == PageKind::Small
    }

    unsafe fn discard(&self, start: NonNull<u8>, size: usize) -> bool {
        // SAFETY: the caller passes pages of a private anonymous mapping, which nobody uses.
        self.discards() && unsafe { discard(start, size) }
    }

    fn resident(&self, start: NonNull<u8>, size: usize) -> usize {
        if self.is_lazy() { resident(start, size) } else { size }
    }
}

/// What is done for a mapping of a kind, one after the other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Step {
    Open,
    Reserve,
    Map,
    Advise,
    Bind,
    Lock,
    Populate,
}

/// Why the system gives no memory of a kind: which call it refused, and the number of its error.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Refused {
    step: Step,
    number: i32,
}

impl Refused {
    /// What the last call of this thread was refused for.
    pub(super) fn now(step: Step) -> Refused {
        Refused { step, number: errno() }
    }

    /// The number of the error, as in `errno.h`.
    pub const fn number(&self) -> i32 {
        self.number
    }
}

fn errno() -> i32 {
    // SAFETY: the C library has a place for each thread.
    let place = unsafe { libc::__errno_location() };
    // SAFETY: as above; nobody else writes to this thread's.
    unsafe { place.read() }
}

/// What a step is called.
const CALLS: &[(Step, &str)] = &[
    (Step::Open, "open"),
    (Step::Reserve, "fallocate"),
    (Step::Map, "mmap"),
    (Step::Advise, "madvise(MADV_HUGEPAGE)"),
    (Step::Bind, "mbind"),
    (Step::Lock, "mlock"),
    (Step::Populate, "madvise(MADV_POPULATE_WRITE)"),
];

/// What an error of a step means.
const REASONS: &[(Step, i32, &str)] = &[
    (Step::Open, libc::EOPNOTSUPP, "the file system has no unnamed files (O_TMPFILE)"),
    (Step::Open, libc::ENOENT, "there is no such folder"),
    (Step::Open, libc::EACCES, "the folder may not be written to"),
    (Step::Reserve, libc::ENOSPC, "the file system is full"),
    (Step::Reserve, libc::EOPNOTSUPP, "the file system cannot reserve space"),
    (Step::Map, libc::EINVAL, "the kernel has no huge pages of this size"),
    (
        Step::Map,
        libc::ENOMEM,
        "no memory, or too few huge pages are reserved: see /proc/sys/vm/nr_hugepages",
    ),
    (Step::Advise, libc::EINVAL, "the kernel has no transparent huge pages"),
    (Step::Bind, libc::ENOSYS, "the kernel has no NUMA support"),
    (Step::Bind, libc::EPERM, "this process may not choose nodes: containers often forbid it"),
    (
        Step::Bind,
        libc::EINVAL,
        "no such NUMA node, or none with memory: see /sys/devices/system/node/has_memory",
    ),
    (Step::Lock, libc::ENOMEM, "more than RLIMIT_MEMLOCK allows: see ulimit -l"),
    (Step::Lock, libc::EPERM, "RLIMIT_MEMLOCK is 0: see ulimit -l"),
    (Step::Lock, libc::EAGAIN, "there is not enough memory that can be locked"),
    (Step::Populate, libc::ENOMEM, "there is not enough memory"),
    (Step::Populate, libc::EFAULT, "there is not enough memory on the nodes"),
];

impl fmt::Display for Refused {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let call = CALLS.iter().find(|(step, _)| *step == self.step).map_or("", |(_, call)| call);
        let known =
            |(step, number, _): &&(Step, i32, &str)| (*step, *number) == (self.step, self.number);
        match REASONS.iter().find(known) {
            Some((_, _, reason)) => write!(f, "{call}: {reason}"),
            None => write!(f, "{call}: error {} of errno.h", self.number),
        }
    }
}

impl core::error::Error for Refused {}
