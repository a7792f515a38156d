//! Sizes of caches and TLBs, as data.

use std::fmt;

use crate::RecencyPolicy;
use crate::prefetch::NextPagePrefetcher;
use crate::table::LookupLevel;

/// Reason why a cache or TLB cannot be simulated.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Unfit(pub &'static str);

impl fmt::Display for Unfit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.0)
    }
}

impl std::error::Error for Unfit {}

/// Sizes of a cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CacheShape {
    /// Size in bytes.
    pub size: u64,
    /// Number of lines in a set.
    pub ways: usize,
    /// Number of bytes in a line.
    pub line: u64,
}

/// Data caches of a CPU that are simulated.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CacheShapes {
    /// First-level cache.
    pub l1d: CacheShape,
    /// Second-level cache; `None` if it is not simulated.
    pub l2: Option<CacheShape>,
}

/// Sizes of a TLB level.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TlbShapeLevel {
    /// Number of entries.
    pub entries: usize,
    /// Associativity; equal to `entries` for a fully associative TLB.
    pub ways: usize,
}

/// Data TLB of a CPU for one page size.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TlbShape {
    /// Page size in bytes, a power of two.
    pub page: u64,
    /// First-level TLB.
    pub first: TlbShapeLevel,
    /// Second-level TLB, simulated as if it held only pages of this size; `None` if it holds no
    /// such pages.
    pub second: Option<TlbShapeLevel>,
}

/// A page size of x86-64.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TlbPageSize {
    /// Pages of 4 KiB.
    Base,
    /// Pages of 2 MiB.
    Huge,
    /// Pages of 1 GiB.
    Giant,
}

impl TlbPageSize {
    /// All page sizes, the smallest first.
    pub const ALL: [TlbPageSize; 3] = [TlbPageSize::Base, TlbPageSize::Huge, TlbPageSize::Giant];

    /// Page size in bytes.
    pub const fn bytes(self) -> u64 {
        match self {
            TlbPageSize::Base => 4 << 10,
            TlbPageSize::Huge => 2 << 20,
            TlbPageSize::Giant => 1 << 30,
        }
    }
}

/// Sizes of the simulated parts of a CPU.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct CpuShape<'a> {
    /// Name of the CPU.
    pub name: &'a str,
    /// Data caches.
    pub caches: CacheShapes,
    /// Data TLBs, one for each page size.
    pub tlbs: &'a [TlbShape],
    /// Assumed prefetcher of the page walker for base pages; `None` if unknown.
    pub next_page: Option<NextPagePrefetcher>,
}

impl CpuShape<'_> {
    /// Returns the TLB for a page size.
    ///
    /// # Errors
    /// Returns an error if the TLB for this page size is unknown.
    pub fn tlb(&self, page: TlbPageSize) -> Result<TlbShape, Unfit> {
        let found = self.tlbs.iter().find(|shape| shape.page == page.bytes());
        found.copied().ok_or(Unfit("the TLB for pages of this size is unknown for this CPU"))
    }
}

const fn level(entries: usize, ways: usize) -> TlbShapeLevel {
    TlbShapeLevel { entries, ways }
}

/// Broadwell-E. Sizes of the caches and of the TLB for 4 KiB pages are from the vendor's tables;
/// sizes of the TLBs for larger pages are from the optimization manual for its family.
///
/// The prefetcher is fitted to page walks that were counted on such a CPU for
/// [`crate::workload::WindowWalk`]: `share` is fitted to the walks of sequential windows, and
/// `after` to the walks that reads of random windows cause.
pub const I7_6800K: CpuShape<'static> = CpuShape {
    name: "i7-6800K",
    caches: CacheShapes {
        l1d: CacheShape { size: 32 << 10, ways: 8, line: 64 },
        l2: Some(CacheShape { size: 256 << 10, ways: 8, line: 64 }),
    },
    tlbs: &[
        TlbShape {
            page: TlbPageSize::Base.bytes(),
            first: level(64, 4),
            second: Some(level(1536, 6)),
        },
        TlbShape {
            page: TlbPageSize::Huge.bytes(),
            first: level(32, 4),
            second: Some(level(1536, 6)),
        },
        TlbShape {
            page: TlbPageSize::Giant.bytes(),
            first: level(4, 4),
            second: Some(level(16, 4)),
        },
    ],
    next_page: Some(NextPagePrefetcher { after: 3, share: 0.84 }),
};

impl CacheShape {
    pub(crate) fn table(&self, policy: RecencyPolicy) -> Result<Box<dyn LookupLevel>, Unfit> {
        let lines = usize::try_from(self.size.checked_div(self.line).unwrap_or(0));
        table(lines.unwrap_or(usize::MAX), self.ways, self.line, policy)
    }
}

impl TlbShapeLevel {
    pub(crate) fn table(
        &self,
        policy: RecencyPolicy,
        page: u64,
    ) -> Result<Box<dyn LookupLevel>, Unfit> {
        table(self.entries, self.ways, page, policy)
    }
}

/// Maximum number of entries of a cache or TLB: no cache has more, and simulating more would need
/// much memory.
const MAX_TLB_ENTRIES: usize = 1 << 24;

/// Maximum number of ways: the largest fully associative TLBs have about a hundred.
const MAX_WAYS: usize = 128;

/// Minimum size in bytes of a line or page.
const MIN_BLOCK_BYTES: u64 = 16;

/// Creates a table for a number of blocks of a given size.
fn table(
    entries: usize,
    ways: usize,
    block: u64,
    policy: RecencyPolicy,
) -> Result<Box<dyn LookupLevel>, Unfit> {
    let fits = |fit: bool, why| if fit { Ok(()) } else { Err(Unfit(why)) };
    fits(block.is_power_of_two(), "lines and pages must be a power of two bytes")?;
    fits(block >= MIN_BLOCK_BYTES, "lines and pages must be 16 bytes or more")?;
    fits((1..=MAX_WAYS).contains(&ways), "a set must have 1 to 128 ways")?;
    fits((1..=MAX_TLB_ENTRIES).contains(&entries), "a level must have 1 to 16 M entries")?;
    fits(entries.is_multiple_of(ways), "the entries must be a multiple of the ways")?;
    Ok(policy.table(entries / ways, ways, block.ilog2()))
}
