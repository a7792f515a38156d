//! Large folios by size: memory that base page table entries map, and that the kernel manages as
//! one unit ("mTHP").
//!
//! The sizes of folios follow from the flags in `/proc/kpageflags`, which needs CAP_SYS_ADMIN. The
//! search is skipped if the kernel's counts show that the whole machine has no such folio.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use pagewise_model::thp::{FolioSize, HugeMapping};
use pagewise_model::{Absent, AddrRange, Bytes, Mapping, PageSize, Pid, Reading};
use pagewise_sys::pagemap_scan::{Categories, ScanRegion};
use pagewise_sys::remote::OpenMemory;

use super::{count_one, index, is_anonymous, resident_request};
use crate::pages::entry::{Word, frame};
use crate::pages::flags::FrameFlagsFile;
use crate::pages::space::PageTables;
use crate::{ProcError, ProcRoot};

/// Folder with the kernel's counts of folios by size.
const STATS: &str = "/sys/kernel/mm/transparent_hugepage";

/// Anonymous memory in large folios, by size and by how it is mapped.
///
/// # Errors
/// The errors of reading the pages of the process.
pub(super) fn sizes(
    root: &ProcRoot,
    space: &mut PageTables,
    mappings: &[Mapping],
    found: &[HugeMapping],
    huge_size: Bytes,
    mut zeros: Option<Zeros>,
) -> Result<Reading<Vec<FolioSize>>, ProcError> {
    let huge: Bytes = found.iter().map(|mapping| mapping.anonymous).sum();
    let zero = found.iter().map(|mapping| mapping.zero).sum();
    let page_size = space.page_size();
    let mut sizes = BTreeMap::new();
    if !huge.is_zero() {
        let pages = page_size.count(huge);
        sizes.insert((huge_size, true), FolioTally { pages, zero });
    }
    if machine_has_others(Path::new(STATS), huge_size, huge) {
        match FrameFlagsFile::open(root.path()) {
            Some(flags) => survey(&flags, space, mappings, &mut zeros, &mut sizes)?,
            None => {
                let needs = "CAP_SYS_ADMIN, to see in which folios base pages lie";
                return Ok(Err(Absent::NotPermitted(needs.into())));
            }
        }
    }
    let unread = || Absent::NotCollected("a sample does not show it: omit --sample".into());
    let row = |((size, one_entry), tally): ((Bytes, bool), FolioTally)| FolioSize {
        size,
        one_entry,
        resident: page_size.pages(tally.pages),
        zero: zeros.as_ref().map(|_| page_size.pages(tally.zero)).ok_or_else(unread),
    };
    Ok(Ok(sizes.into_iter().map(row).collect()))
}

/// Numbers of base pages in folios of one size: all pages, and zero-filled ones.
#[derive(Clone, Copy, Debug, Default)]
struct FolioTally {
    pages: u64,
    zero: u64,
}

/// Reads pages and counts those that are zero.
pub(super) struct Zeros {
    pub(super) pid: Pid,
    pub(super) buffer: Vec<u8>,
}

/// Folios by size. The flag is true for folios that one huge entry (a page-table entry of a huge
/// page) maps.
type FolioSizes = BTreeMap<(Bytes, bool), FolioTally>;

/// True if any process of the machine may have large anonymous folios that no huge entry maps:
/// folios of other sizes than `huge_size`, or more than `huge` bytes in folios of `huge_size`.
fn machine_has_others(stats: &Path, huge_size: Bytes, huge: Bytes) -> bool {
    let Ok(folders) = fs::read_dir(stats) else { return false };
    folders.filter_map(Result::ok).any(|folder| {
        let name = folder.file_name();
        let Some(size) = name.to_str().and_then(folio_size) else { return false };
        let count = fs::read_to_string(folder.path().join("stats/nr_anon"));
        // Linux 6.8 to 6.11 have these sizes but do not count the folios, so the pages must be
        // searched.
        let count = count.ok().and_then(|text| text.trim().parse::<u64>().ok());
        let mapped = if size == huge_size { huge.0 / huge_size.0.max(1) } else { 0 };
        count.is_none_or(|count| count > mapped)
    })
}

/// Returns the size in bytes: 65536 for `hugepages-64kB`.
fn folio_size(folder: &str) -> Option<Bytes> {
    let kib: u64 = folder.strip_prefix("hugepages-")?.strip_suffix("kB")?.parse().ok()?;
    kib.checked_mul(1 << 10).map(Bytes)
}

/// Adds up the large folios that base entries map.
fn survey(
    flags: &FrameFlagsFile,
    space: &mut PageTables,
    mappings: &[Mapping],
    zeros: &mut Option<Zeros>,
    sizes: &mut FolioSizes,
) -> Result<(), ProcError> {
    let request = resident_request();
    let mut words = space.chunk_words();
    for mapping in mappings.iter().filter(|mapping| is_anonymous(mapping)) {
        let mut runs = Vec::new();
        space.each_region(mapping.range, &request, |region: &ScanRegion| {
            if region.categories == Categories::default() {
                runs.push(AddrRange { start: region.start, end: region.end });
            }
        })?;
        for run in runs {
            count(flags, space, run, &mut words, zeros, sizes)?;
        }
    }
    Ok(())
}

/// Adds up the folios of a run of pages.
fn count(
    flags: &FrameFlagsFile,
    space: &mut PageTables,
    mut run: AddrRange,
    words: &mut [Word],
    zeros: &mut Option<Zeros>,
    sizes: &mut FolioSizes,
) -> Result<(), ProcError> {
    let page_size = space.page_size();
    while !run.is_empty() {
        let most = page_size.pages(words.len() as u64).0;
        let end = run.end.min(run.start.saturating_add(most));
        let read = space.read(AddrRange { start: run.start, end }, words)?;
        let mut at = run.start;
        for frames in consecutive(read) {
            let count = frames.end - frames.start;
            let around = flags.around(frames.start, count);
            let mut i = 0;
            while i < count {
                // Pages of one folio lie together.
                let pages = around.folio(index(i));
                let alike = (i + 1..count).take_while(|&i| around.folio(index(i)) == pages);
                let length = 1 + alike.count() as u64;
                let bytes = page_size.pages(length).0;
                if pages > 1 {
                    let tally = sizes.entry((page_size.pages(pages.into()), false)).or_default();
                    tally.pages += length;
                    tally.zero += zero_pages(zeros, page_size, at..at + bytes)?;
                }
                at += bytes;
                i += length;
            }
        }
        run.start = end;
    }
    Ok(())
}

fn zero_pages(
    zeros: &mut Option<Zeros>,
    page_size: PageSize,
    range: std::ops::Range<u64>,
) -> Result<u64, ProcError> {
    let Some(Zeros { pid, buffer }) = zeros else { return Ok(0) };
    let memory = OpenMemory::open(pid.0);
    let counted = memory.and_then(|memory| count_one(&memory, page_size, range, buffer));
    let failed = |error| ProcError::of_process(error, *pid, "mem".as_ref());
    counted.map(|counted| counted.zero).map_err(failed)
}

/// Returns the runs of consecutive frame numbers in page-table entries.
fn consecutive(words: &[Word]) -> Vec<std::ops::Range<u64>> {
    let mut runs: Vec<std::ops::Range<u64>> = Vec::new();
    for frame in words.iter().map(frame) {
        match runs.last_mut() {
            Some(run) if run.end == frame => run.end += 1,
            _ => runs.push(frame..frame + 1),
        }
    }
    runs
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_size_of_folios_is_in_the_name_of_their_folder() {
        assert_eq!(folio_size("hugepages-64kB"), Some(Bytes::kib(64)));
        assert_eq!(folio_size("khugepaged"), None);
        assert_eq!(folio_size("hugepages-18446744073709551615kB"), None);
    }

    #[test]
    fn only_a_machine_without_other_folios_need_not_be_searched() {
        let folder = tempfile::tempdir().unwrap();
        let write = |name: &str, count: &str| {
            let stats = folder.path().join(name).join("stats");
            fs::create_dir_all(&stats).unwrap();
            fs::write(stats.join("nr_anon"), count).unwrap();
        };
        let has = |huge| machine_has_others(folder.path(), Bytes::mib(2), Bytes::mib(huge));
        assert!(!has(0));
        write("hugepages-2048kB", "3\n");
        assert!(has(4) && !has(6));
        write("hugepages-64kB", "0\n");
        assert!(!has(6));
        write("hugepages-64kB", "1\n");
        assert!(has(6));
    }

    #[test]
    fn frames_that_follow_each_other_are_one_run() {
        let words: Vec<Word> = [7_u64, 8, 9, 20, 21, 8].map(u64::to_ne_bytes).to_vec();
        let runs: Vec<_> = consecutive(&words).into_iter().map(|r| (r.start, r.end)).collect();
        assert_eq!(runs, [(7, 10), (20, 22), (8, 9)]);
    }
}
