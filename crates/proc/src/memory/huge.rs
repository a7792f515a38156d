//! The transparent huge pages of a process, and which of their base pages are zero in every byte.
//!
//! Only pages that `PAGEMAP_SCAN` has just reported as mapped by a huge entry (a page-table entry
//! of a huge page) are read, so the reads fault no page in: the resident memory of the process
//! stays the same.

mod folios;

use std::num::NonZero;
use std::ops::Range;
use std::time::Instant;
use std::{fs, io, slice, thread};

use pagewise_model::machine::Gap;
use pagewise_model::thp::{HugeMapping, HugePage, HugePageLook, HugePages};
use pagewise_model::units::nanoseconds;
use pagewise_model::{Absent, AddrRange, Backing, Bytes, Mapping, PageSize, Pid, Reading, Sharing};
use pagewise_sys::pagemap_scan::{Categories, ScanRegion, ScanRequest};
use pagewise_sys::probe::Features;
use pagewise_sys::remote::OpenMemory;

use crate::pages::Pace;
use crate::pages::hugetlb::Hugetlb;
use crate::pages::space::PageTables;
use crate::{ProcError, ProcRoot};

/// Number of bytes that are read in one call: few enough to be still in the CPU cache when they are
/// examined.
const PIECE: usize = 256 << 10;

/// Number of huge pages that a scan collects before their contents are read.
const READ_TOGETHER: usize = 64;

/// Number of reading threads: two saturate the memory bandwidth available to one process.
const MAX_READER_THREADS: usize = 2;

/// Number of single pages that are read in one call.
const BATCH: usize = 1024;

/// Upper bound of user addresses on every 64-bit machine. `[vsyscall]` lies above it.
const KERNEL_HALF: u64 = 1 << 63;

/// Finds every huge page, and reads all huge pages or a sample of their base pages.
///
/// The result is absent if the kernel has no huge pages, if it cannot locate them, or if `/proc`
/// belongs to another PID namespace.
///
/// # Errors
/// [`ProcError::NotPermitted`] where we may not trace the process, [`ProcError::NoSuchProcess`]
/// where it is gone.
///
/// # Complexity
/// Time of a scan of the page tables, and of reading the huge pages at about 9 GB per second.
pub fn scan(
    root: &ProcRoot,
    pid: Pid,
    mappings: &[Mapping],
    page_size: PageSize,
    look: HugePageLook,
    pace: &Pace,
) -> Result<Reading<HugePages>, ProcError> {
    let begin = Instant::now();
    let features = Features::detect();
    let huge_size = match prepare(root, &features) {
        Ok(size) => size,
        Err(absent) => return Ok(Err(absent)),
    };
    let mut scanner = Scanner {
        space: PageTables::open(&features, root, pid, page_size, pace)?,
        hugetlb: Hugetlb::new(root, pid, page_size),
        reader: ContentReader {
            pid,
            page_size,
            huge_size,
            buffers: vec![vec![0; PIECE]; MAX_READER_THREADS],
            read: 0,
            lost: 0,
        },
        gaps: Vec::new(),
    };
    let mut found = scanner.all(mappings, look == HugePageLook::Exact)?;
    if let HugePageLook::Sample(wanted) = look {
        scanner.reader.sample(&mut found, wanted)?;
    }
    for (mapping, _) in &mut found {
        if look != HugePageLook::Exact {
            mapping.pages.clear();
        }
    }
    let found: Vec<HugeMapping> = found.into_iter().map(|(mapping, _)| mapping).collect();
    let buffer = std::mem::take(&mut scanner.reader.buffers[0]);
    let zeros = (look == HugePageLook::Exact).then_some(folios::Zeros { pid, buffer });
    let size = Bytes(huge_size);
    let sizes = folios::sizes(root, &mut scanner.space, mappings, &found, size, zeros)?;
    Ok(Ok(HugePages { sizes, ..scanner.finish(found, look, begin) }))
}

/// The size of a huge page that one PMD entry maps, if the machine has all that a scan needs.
fn prepare(root: &ProcRoot, features: &Features) -> Reading<u64> {
    if !root.has_our_ids() {
        return Err(Absent::NotSupported("/proc is not of this pid namespace".into()));
    }
    if !features.pagemap_scan {
        return Err(Absent::NotInThisKernel("6.7".into()));
    }
    let text = fs::read_to_string("/sys/kernel/mm/transparent_hugepage/hpage_pmd_size");
    let size = text.ok().and_then(|text| text.trim().parse().ok());
    size.filter(|size: &u64| size.is_power_of_two())
        .ok_or_else(|| Absent::NotSupported("this kernel has no transparent huge pages".into()))
}

/// A mapping with huge pages, and the addresses of its anonymous huge pages.
type HugeMappingPages = (HugeMapping, Vec<u64>);

struct Scanner {
    space: PageTables,
    hugetlb: Hugetlb,
    reader: ContentReader,
    gaps: Vec<Gap>,
}

impl Scanner {
    /// Returns the mappings with huge pages. If `exact` is true, the zero-filled pages of each
    /// mapping are counted.
    fn all(
        &mut self,
        mappings: &[Mapping],
        exact: bool,
    ) -> Result<Vec<HugeMappingPages>, ProcError> {
        let mut found = Vec::new();
        for mapping in mappings {
            let can_hold = mapping.size().0 >= self.reader.huge_size;
            if mapping.range.end > KERNEL_HALF || !can_hold {
                continue;
            }
            match self.hugetlb.holds(mapping) {
                Ok(true) => {}
                Ok(false) => found.extend(self.one(mapping, exact)?),
                Err(why) => self.gaps.push(Gap { what: mapping.name.clone(), why }),
            }
        }
        Ok(found)
    }

    fn one(
        &mut self,
        mapping: &Mapping,
        exact: bool,
    ) -> Result<Option<HugeMappingPages>, ProcError> {
        let request = ScanRequest {
            all_of: Categories::HUGE | Categories::PRESENT,
            report: Categories::FILE | Categories::PFNZERO,
            ..ScanRequest::default()
        };
        let mut huge = HugeMapping {
            range: mapping.range,
            name: mapping.name.clone(),
            anonymous: Bytes::ZERO,
            file: Bytes::ZERO,
            read: 0,
            zero: 0,
            pages: Vec::new(),
        };
        let (space, reader) = (&mut self.space, &mut self.reader);
        let mut failed = Ok(());
        let mut starts = Vec::new();
        space.each_region(mapping.range, &request, |region: &ScanRegion| {
            let length = Bytes(region.end.saturating_sub(region.start));
            if region.categories.contains(Categories::FILE) {
                huge.file += length;
            } else if !region.categories.contains(Categories::PFNZERO) {
                huge.anonymous += length;
                reader.note(region.start..region.end, &mut starts);
                // The pages are read soon after the scan, while they are still resident.
                let fresh = &starts[huge.pages.len().min(starts.len())..];
                if exact && failed.is_ok() && fresh.len() >= READ_TOGETHER {
                    failed = reader.count(fresh, &mut huge);
                }
            }
        })?;
        failed?;
        if exact {
            reader.count(&starts[huge.pages.len().min(starts.len())..], &mut huge)?;
        }
        let has_any = huge.anonymous + huge.file > Bytes::ZERO;
        Ok(has_any.then_some((huge, starts)))
    }

    fn finish(
        mut self,
        mappings: Vec<HugeMapping>,
        look: HugePageLook,
        begin: Instant,
    ) -> HugePages {
        if self.reader.lost > 0 {
            let pages = format!("{} pages went away while they were read", self.reader.lost);
            self.gaps.push(Gap {
                what: "contents of huge pages".into(),
                why: Absent::Ambiguous(pages.into()),
            });
        }
        HugePages {
            huge_size: Bytes(self.reader.huge_size),
            mappings,
            sizes: Ok(Vec::new()),
            look,
            read: self.reader.page_size.pages(self.reader.read),
            took_ns: nanoseconds(begin.elapsed()),
            longest_hold_ns: nanoseconds(self.space.longest()),
            gaps: self.gaps,
        }
    }
}

/// Reads the contents of pages.
struct ContentReader {
    pid: Pid,
    page_size: PageSize,
    huge_size: u64,
    /// One buffer for each thread.
    buffers: Vec<Vec<u8>>,
    /// Number of base pages read.
    read: u64,
    /// Number of base pages that could not be read.
    lost: u64,
}

impl ContentReader {
    fn memory(&self) -> Result<OpenMemory, ProcError> {
        OpenMemory::open(self.pid.0).map_err(|error| self.failure(error))
    }

    fn failure(&self, error: io::Error) -> ProcError {
        ProcError::of_process(error, self.pid, "mem".as_ref())
    }

    /// Adds the start addresses of the huge pages in a run that a scan reported. If a scan reports
    /// one huge page in two runs, its address is added once.
    fn note(&self, run: Range<u64>, starts: &mut Vec<u64>) {
        for piece in pieces(run, self.huge_size) {
            let start = piece.start & !(self.huge_size - 1);
            if starts.last() != Some(&start) {
                starts.push(start);
            }
        }
    }

    /// Reads huge pages from end to end and counts their zero pages, with several threads if there
    /// are several CPUs.
    fn count(&mut self, starts: &[u64], huge: &mut HugeMapping) -> Result<(), ProcError> {
        let threads =
            thread::available_parallelism().map_or(1, NonZero::get).min(MAX_READER_THREADS);
        let share = starts.len().div_ceil(threads).max(1);
        let (page_size, huge_size) = (self.page_size, self.huge_size);
        let memory = &self.memory()?;
        let buffers = self.buffers.iter_mut();
        let counted: Vec<_> = thread::scope(|scope| {
            let work =
                |(starts, buffer): (&[u64], &mut Vec<u8>)| -> io::Result<Vec<BasePageCounts>> {
                    let count =
                        |&start| count_one(memory, page_size, start..start + huge_size, buffer);
                    starts.iter().map(count).collect()
                };
            let mut shares = starts.chunks(share).zip(buffers);
            let own = shares.next();
            let others: Vec<_> = shares.map(|share| scope.spawn(move || work(share))).collect();
            let own = own.map(work);
            let others =
                others.into_iter().map(|other| other.join().expect("counting never panics"));
            own.into_iter().chain(others).collect()
        });
        let counted = counted.into_iter().collect::<io::Result<Vec<_>>>();
        let counted = counted.map_err(|error| self.failure(error))?;
        for (&start, counted) in starts.iter().zip(counted.into_iter().flatten()) {
            huge.read += counted.read;
            huge.zero += counted.zero;
            self.read += counted.read;
            self.lost += page_size.count(Bytes(huge_size)).saturating_sub(counted.read);
            let zero = u32::try_from(counted.zero).unwrap_or(u32::MAX);
            huge.pages.push(HugePage { start, zero });
        }
        Ok(())
    }

    /// Reads `wanted` base pages: all huge pages are divided into that number of equal parts, and a
    /// random page of each part is read.
    fn sample(&mut self, found: &mut [HugeMappingPages], wanted: u64) -> Result<(), ProcError> {
        let per_huge = self.huge_size / self.page_size.bytes();
        let starts: Vec<(usize, u64)> = found
            .iter()
            .enumerate()
            .flat_map(|(owner, (_, starts))| starts.iter().map(move |&start| (owner, start)))
            .collect();
        let all = (starts.len() as u64).saturating_mul(per_huge);
        let wanted = wanted.min(all);
        let mut random = fastrand::Rng::new();
        let bound = |i: u64| i.saturating_mul(all) / wanted.max(1);
        let picks: Vec<(usize, Range<u64>)> = (0..wanted)
            .map(|i| {
                let pick = random.u64(bound(i)..bound(i + 1).max(bound(i) + 1));
                let (owner, start) = starts[index(pick / per_huge)];
                let address = start + self.page_size.pages(pick % per_huge).0;
                (owner, address..address + self.page_size.bytes())
            })
            .collect();
        let memory = self.memory()?;
        let buffer = &mut self.buffers[0];
        buffer.resize(BATCH * index(self.page_size.bytes()), 0);
        let mut rest = picks.as_slice();
        while !rest.is_empty() {
            let ranges: Vec<Range<u64>> =
                rest.iter().take(BATCH).map(|(_, range)| range.clone()).collect();
            let read = memory
                .read(&ranges, buffer)
                .map_err(|e| ProcError::of_process(e, self.pid, "mem".as_ref()))?;
            let pages = buffer[..read].chunks_exact(index(self.page_size.bytes()));
            let count = pages.len();
            for ((owner, _), page) in rest.iter().zip(pages) {
                let huge = &mut found[*owner].0;
                huge.read += 1;
                huge.zero += u64::from(is_zero(page));
            }
            self.read += count as u64;
            // The kernel stops at the first page that it cannot read. This page is left out.
            let stopped_early = count < ranges.len();
            self.lost += u64::from(stopped_early);
            rest = &rest[count + usize::from(stopped_early)..];
        }
        Ok(())
    }
}

/// Counts of a huge page, in base pages.
#[derive(Clone, Copy, Debug, Default)]
struct BasePageCounts {
    read: u64,
    zero: u64,
}

/// Reads one huge page from end to end.
fn count_one(
    memory: &OpenMemory,
    page_size: PageSize,
    page: Range<u64>,
    buffer: &mut [u8],
) -> io::Result<BasePageCounts> {
    let mut counted = BasePageCounts::default();
    for piece in pieces(page, PIECE as u64) {
        let read = memory.read(slice::from_ref(&piece), buffer)?;
        let pages = buffer[..read].chunks_exact(index(page_size.bytes()));
        counted.read += pages.len() as u64;
        counted.zero += pages.filter(|page| is_zero(page)).count() as u64;
    }
    Ok(counted)
}

/// A range cut at every multiple of `size`, a power of two.
fn pieces(range: Range<u64>, size: u64) -> impl Iterator<Item = Range<u64>> {
    let mut at = range.start;
    std::iter::from_fn(move || {
        let end = (at | (size - 1)).saturating_add(1).min(range.end);
        (at < end).then(|| std::mem::replace(&mut at, end)..end)
    })
}

/// Returns a request for the resident pages that also identifies file pages, zero pages and huge
/// pages.
fn resident_request() -> ScanRequest {
    ScanRequest {
        all_of: Categories::PRESENT,
        report: Categories::FILE | Categories::PFNZERO | Categories::HUGE,
        ..ScanRequest::default()
    }
}

/// True for anonymous memory of the program, which the kernel may keep in huge pages.
pub(super) fn is_anonymous(mapping: &Mapping) -> bool {
    mapping.sharing == Sharing::Private
        && mapping.backing() == Backing::Anonymous
        && mapping.range.end <= KERNEL_HALF
}

/// Finds memory that could be mapped by huge pages: blocks of the size of a huge page that are
/// completely resident in anonymous base pages. Also returns the resident bytes of anonymous base
/// pages outside of these blocks.
///
/// # Errors
/// As [`scan`].
pub fn dense_blocks(
    root: &ProcRoot,
    pid: Pid,
    mappings: &[Mapping],
    page_size: PageSize,
    pace: &Pace,
) -> Result<Reading<(Vec<AddrRange>, Bytes)>, ProcError> {
    let features = Features::detect();
    let huge_size = match prepare(root, &features) {
        Ok(size) => size,
        Err(absent) => return Ok(Err(absent)),
    };
    let mut space = PageTables::open(&features, root, pid, page_size, pace)?;
    let request = resident_request();
    let can_be_huge = |mapping: &&Mapping| is_anonymous(mapping) && mapping.size().0 >= huge_size;
    let (mut blocks, mut resident) = (Vec::new(), Bytes::ZERO);
    for mapping in mappings.iter().filter(can_be_huge) {
        let mut run = AddrRange { start: 0, end: 0 };
        space.each_region(mapping.range, &request, |region: &ScanRegion| {
            if region.categories != Categories::default() {
                return;
            }
            resident += Bytes(region.end.saturating_sub(region.start));
            if run.end != region.start {
                blocks.extend(whole_blocks(run, huge_size));
                run.start = region.start;
            }
            run.end = region.end;
        })?;
        blocks.extend(whole_blocks(run, huge_size));
    }
    let inside: Bytes = blocks.iter().map(|block| block.len()).sum();
    Ok(Ok((blocks, resident.saturating_sub(inside))))
}

/// Returns the blocks of `size` bytes, aligned to `size`, that lie completely in a run.
fn whole_blocks(run: AddrRange, size: u64) -> impl Iterator<Item = AddrRange> {
    let first = run.start.div_ceil(size).saturating_mul(size);
    let count = run.end.saturating_sub(first) / size;
    (0..count).map(move |i| AddrRange { start: first + i * size, end: first + (i + 1) * size })
}

/// Number of blocks, each as large as a huge page, that are mapped by a huge entry.
///
/// # Errors
/// As [`scan`].
pub fn count(
    root: &ProcRoot,
    pid: Pid,
    page_size: PageSize,
    blocks: &[AddrRange],
) -> Result<u64, ProcError> {
    let mut space = PageTables::open(&Features::detect(), root, pid, page_size, &Pace::FAST)?;
    let huge = blocks.iter().map(|block| space.is_huge(block.start).map(u64::from));
    huge.sum()
}

/// Returns true if every byte is 0. The bytes of a block are combined without a branch, which
/// compiles to vector instructions.
pub fn is_zero(page: &[u8]) -> bool {
    let (blocks, rest) = page.as_chunks::<256>();
    let is_zero = |bytes: &[u8]| bytes.iter().fold(0, |sum, byte| sum | byte) == 0;
    blocks.iter().all(|block| is_zero(block)) && is_zero(rest)
}

fn index(number: u64) -> usize {
    usize::try_from(number).unwrap_or(usize::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_page_is_zero_only_where_every_byte_is() {
        let mut page = vec![0_u8; 4096];
        assert!(is_zero(&page) && is_zero(&[]));
        for at in [0, 1, 255, 256, 4095] {
            page[at] = 1;
            assert!(!is_zero(&page), "{at}");
            page[at] = 0;
        }
        assert!(!is_zero(&[0; 300][..].iter().map(|_| 9).collect::<Vec<u8>>()));
    }

    #[test]
    fn only_whole_blocks_of_a_run_are_taken() {
        let blocks = |start, end| {
            whole_blocks(AddrRange { start, end }, 16).map(|b| (b.start, b.end)).collect::<Vec<_>>()
        };
        assert_eq!(blocks(8, 50), [(16, 32), (32, 48)]);
        assert_eq!(blocks(16, 32), [(16, 32)]);
        assert_eq!(blocks(17, 47), []);
        assert_eq!(blocks(0, 0), []);
    }

    #[test]
    fn ranges_are_cut_at_multiples() {
        let cut = |range| -> Vec<(u64, u64)> {
            pieces(range, 16).map(|piece| (piece.start, piece.end)).collect()
        };
        assert_eq!(cut(8..40), [(8, 16), (16, 32), (32, 40)]);
        assert_eq!(cut(16..32), [(16, 32)]);
        assert_eq!(cut(5..5), []);
        assert_eq!(cut(u64::MAX - 3..u64::MAX), [(u64::MAX - 3, u64::MAX)]);
    }
}
