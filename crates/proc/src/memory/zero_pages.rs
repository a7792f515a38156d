//! A sample of the resident pages of large anonymous mappings: the part that is zero in every byte.
//!
//! Each page is read directly after `PAGEMAP_SCAN` has reported it as resident, so nothing is
//! faulted in.

use std::cmp::Reverse;
use std::slice;
use std::time::{Duration, Instant};

use pagewise_model::evidence::ZeroSample;
use pagewise_model::units::nanoseconds;
use pagewise_model::{Absent, AddrRange, Bytes, Mapping, PageSize, Pid, Reading};
use pagewise_sys::pagemap_scan::{Categories, ScanRequest};
use pagewise_sys::priority::briefly_raised;
use pagewise_sys::probe::Features;
use pagewise_sys::remote::OpenMemory;

use super::huge::{is_anonymous, is_zero};
use crate::pages::Pace;
use crate::pages::space::PageTables;
use crate::{ProcError, ProcRoot};

/// Minimum resident size of a mapping that is read.
const LARGE: Bytes = Bytes::mib(4);
/// Maximum number of mappings that are read: the largest ones.
const MAX_MAPPINGS: usize = 64;
/// Total number of pages that are read. [`MIN_PAGES`] is the minimum number for each mapping.
const PAGES: u64 = 1024;
const MIN_PAGES: u64 = 32;
/// Number of addresses that are tried for each page: few pages of a sparse mapping are resident.
const TRIES: u64 = 4;

/// Reads a sample, and measures the longest system call in nanoseconds.
///
/// # Errors
/// [`ProcError::NotPermitted`] if we may not read the memory of the process,
/// [`ProcError::NoSuchProcess`] if it is gone.
pub fn sample(
    root: &ProcRoot,
    pid: Pid,
    mappings: &[Mapping],
    page_size: PageSize,
) -> Result<Reading<(Vec<ZeroSample>, u64)>, ProcError> {
    let features = Features::detect();
    if !features.pagemap_scan {
        return Ok(Err(Absent::NotInThisKernel("6.7".into())));
    }
    if !root.has_our_ids() {
        return Ok(Err(Absent::NotSupported("/proc is not of this pid namespace".into())));
    }
    let mut large: Vec<(&Mapping, Bytes)> = mappings
        .iter()
        .filter(|mapping| is_anonymous(mapping))
        .filter_map(|mapping| Some((mapping, mapping.rss().ok()?)))
        .filter(|(_, resident)| *resident >= LARGE)
        .collect();
    large.sort_by_key(|(_, resident)| Reverse(*resident));
    large.truncate(MAX_MAPPINGS);
    let whole: Bytes = large.iter().map(|(_, resident)| *resident).sum();
    let memory = OpenMemory::open(pid.0)
        .map_err(|error| ProcError::of_process(error, pid, "mem".as_ref()))?;
    let mut sampler = PageSampler {
        // The pace has no sleeps because each call is short. The priority is raised once for two
        // calls.
        space: PageTables::open(&features, root, pid, page_size, &Pace::FAST)?,
        memory,
        page_size,
        random: fastrand::Rng::new(),
        buffer: vec![0; usize::try_from(page_size.bytes()).unwrap_or(0)],
        longest_ns: 0,
    };
    let mut samples = Vec::with_capacity(large.len());
    for (mapping, resident) in large {
        let share = u128::from(PAGES) * u128::from(resident.0) / u128::from(whole.0.max(1));
        let wanted = u64::try_from(share).unwrap_or(PAGES).max(MIN_PAGES);
        samples.push(sampler.one(mapping, resident, wanted)?);
    }
    Ok(Ok((samples, sampler.longest_ns)))
}

struct PageSampler {
    space: PageTables,
    memory: OpenMemory,
    page_size: PageSize,
    random: fastrand::Rng,
    buffer: Vec<u8>,
    longest_ns: u64,
}

impl PageSampler {
    fn one(
        &mut self,
        mapping: &Mapping,
        resident: Bytes,
        wanted: u64,
    ) -> Result<ZeroSample, ProcError> {
        let flags = mapping.smaps.as_ref().ok().and_then(|smaps| smaps.flags.as_ref());
        let mut sample = ZeroSample {
            range: mapping.range,
            resident,
            locked: flags.map(|flags| flags.has("lo")),
            read: 0,
            zero: 0,
        };
        let pages = self.page_size.count(mapping.size()).max(1);
        for _ in 0..wanted * TRIES {
            if sample.read == wanted {
                break;
            }
            let start = mapping.range.start + self.page_size.pages(self.random.u64(0..pages)).0;
            if let Some(zero) = self.read(start)? {
                sample.read += 1;
                sample.zero += u64::from(zero);
            }
        }
        Ok(sample)
    }

    /// True if the page is zero; `None` if it is not resident.
    fn read(&mut self, start: u64) -> Result<Option<bool>, ProcError> {
        let end = start + self.page_size.bytes();
        let request = ScanRequest {
            all_of: Categories::PRESENT,
            report: Categories::FILE | Categories::PFNZERO,
            ..ScanRequest::default()
        };
        let (space, memory, buffer) = (&mut self.space, &self.memory, &mut self.buffer);
        let (read, took) = briefly_raised(|| {
            let mut is_resident = false;
            space.each_region(AddrRange { start, end }, &request, |region| {
                is_resident = region.categories == Categories::default();
            })?;
            if !is_resident {
                return Ok((0, Duration::ZERO));
            }
            let began = Instant::now();
            // The kernel stops at a page that it cannot read, because the page is not mapped any
            // more.
            let read = memory.read(slice::from_ref(&(start..end)), buffer).unwrap_or(0);
            Ok::<_, ProcError>((read, began.elapsed()))
        })?;
        self.longest_ns = self.longest_ns.max(nanoseconds(took.max(self.space.longest())));
        Ok((read == self.buffer.len()).then(|| is_zero(&self.buffer)))
    }
}
