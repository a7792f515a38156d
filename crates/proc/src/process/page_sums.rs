//! Sums of the pages of a process, for frequent readings of many processes: PSS by page kind, USS.

use pagewise_model::sweep::BytesByPageKind;
use pagewise_model::{
    Absent, Backing, Bytes, Mapping, PageSize, Pid, Reading, Smaps, SmapsCounter,
};
use pagewise_sys::probe::Features;

use crate::pages::{self, Pace};
use crate::quick_reader::QuickReader;
use crate::tmpfs::TmpfsDevices;
use crate::{ProcError, ProcRoot, maps};

/// Sums of pages, rounded down to KiB.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PageSums {
    /// PSS by page kind.
    pub pss: Reading<BytesByPageKind>,
    /// Pages that only this process maps.
    pub uss: Reading<Bytes>,
    /// Anonymous part of `uss`.
    pub uss_anonymous: Reading<Bytes>,
    /// Pages of mapped tmpfs files and shared memory in swap.
    pub swap_shmem: Reading<Bytes>,
    /// Duration of the longest system call that may have held the mmap lock of the process.
    pub longest_hold_ns: u64,
}

/// Reads sums of pages.
#[derive(Debug)]
pub struct PageSumReader {
    features: Features,
    page_size: PageSize,
    tmpfs: TmpfsDevices,
}

impl PageSumReader {
    /// Detects the interfaces of the kernel.
    pub fn new(page_size: PageSize) -> PageSumReader {
        PageSumReader { features: Features::detect(), page_size, tmpfs: TmpfsDevices::default() }
    }

    /// Reads the sums from `smaps_rollup`. The kernel holds the mmap lock while it walks a mapping.
    /// `swap` is the anonymous memory in swap. The sum of swapped memory in the file includes it.
    ///
    /// # Errors
    /// [`Absent`]
    pub fn by_rollup(
        &self,
        reader: &mut QuickReader,
        pid: Pid,
        swap: &Reading<Bytes>,
    ) -> Reading<PageSums> {
        let (rollup, hold_ns) = reader.rollup(pid);
        Ok(of_rollup(&rollup?, swap, hold_ns))
    }

    /// Reads the sums from the page tables, in pieces with sleeps between them.
    ///
    /// # Errors
    /// [`Absent`]
    pub fn politely(&self, root: &ProcRoot, pid: Pid) -> Reading<PageSums> {
        let text = root.reading(pid, "maps")?;
        let mut mappings = maps::parse(&text).mappings;
        drop(text);
        self.tmpfs.mark(root, pid, &mut mappings);
        let (features, page_size) = (&self.features, self.page_size);
        let walk = pages::read_with(features, root, pid, &mut mappings, page_size, &Pace::POLITE)
            .map_err(|error| match error {
            ProcError::NoSuchProcess { .. } => Absent::Vanished,
            ProcError::NotPermitted { .. } | ProcError::NoAccess { .. } => {
                Absent::NotPermitted(crate::root::PTRACE.into())
            }
            other => Absent::NotSupported(other.to_string().into()),
        })?;
        let total = walk.total?;
        let shares = total.pss.and_then(|pss| by_kind(pss, total.pss_anon?, &mappings));
        Ok(PageSums {
            pss: shares,
            uss: Ok(whole_kib(total.breakdown.exclusive())),
            uss_anonymous: Ok(whole_kib(total.breakdown.anon_exclusive)),
            swap_shmem: swap_of_shmem(&mappings),
            longest_hold_ns: walk.longest_hold_ns,
        })
    }
}

/// Splits the PSS by page kind. The PSS of mappings of tmpfs files counts as shared memory.
fn by_kind(pss: Bytes, anonymous: Bytes, mappings: &[Mapping]) -> Reading<BytesByPageKind> {
    let mut shmem = Bytes::ZERO;
    for mapping in mappings.iter().filter(|it| it.backing() == Backing::Shmem) {
        let pages = mapping.pages.as_ref().map_err(Clone::clone)?;
        shmem += pages.pss.clone()? - pages.pss_anon.clone()?;
    }
    let (anonymous, shmem) = (whole_kib(anonymous), whole_kib(shmem));
    Ok(BytesByPageKind { anonymous, shmem, file: whole_kib(pss) - anonymous - shmem })
}

/// The page tables do not show pages of shared memory in swap: only `smaps` counts them.
fn swap_of_shmem(mappings: &[Mapping]) -> Reading<Bytes> {
    match mappings.iter().any(|it| it.backing() == Backing::Shmem) {
        false => Ok(Bytes::ZERO),
        true => Err(Absent::NotCollected("pagewise explain --full".into())),
    }
}

fn of_rollup(rollup: &Smaps, swap: &Reading<Bytes>, longest_hold_ns: u64) -> PageSums {
    let line = |counter| rollup.bytes(counter);
    // Before Linux 5.4 the rollup has one line for all kinds.
    let pss = || {
        Ok(BytesByPageKind {
            anonymous: line(SmapsCounter::PssAnon)?,
            file: line(SmapsCounter::PssFile)?,
            shmem: line(SmapsCounter::PssShmem)?,
        })
    };
    let uss = || Ok(line(SmapsCounter::PrivateClean)? + line(SmapsCounter::PrivateDirty)?);
    PageSums {
        pss: pss(),
        uss: uss(),
        uss_anonymous: anonymous_exclusive(rollup, uss()),
        swap_shmem: (|| Ok(line(SmapsCounter::Swap)? - swap.clone()?))(),
        longest_hold_ns,
    }
}

/// Exclusive anonymous pages, if the sums alone determine them.
///
/// A co-mapped page adds at most half of its size to `Pss_Anon`, and rounding reduces `Pss_Anon` by
/// less than half a page. So no anonymous page is co-mapped if `Pss_Anon` equals `Anonymous`.
fn anonymous_exclusive(rollup: &Smaps, exclusive: Reading<Bytes>) -> Reading<Bytes> {
    let (exclusive, anonymous) = (exclusive?, rollup.bytes(SmapsCounter::Anonymous)?);
    let is_all = rollup.bytes(SmapsCounter::PssAnon)? == anonymous
        || exclusive == rollup.bytes(SmapsCounter::Rss)?;
    match is_all {
        true => Ok(anonymous),
        false if exclusive.is_zero() => Ok(Bytes::ZERO),
        false => Err(Absent::Ambiguous("pagewise ps".into())),
    }
}

fn whole_kib(bytes: Bytes) -> Bytes {
    Bytes::kib(bytes.0 >> 10)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::smaps;

    #[test]
    fn a_rollup_has_shares_by_page_kind() {
        let text = b"559d7a2e8000-7ffc5d1d4000 ---p 00000000 00:00 0  [rollup]\nRss: 100 kB\nPss: 60 kB\nPss_Anon: 40 kB\nPss_File: 18 kB\nPss_Shmem: 2 kB\nPrivate_Clean: 8 kB\nPrivate_Dirty: 40 kB\nAnonymous: 40 kB\nSwap: 4 kB\nLocked: 0 kB\n";
        let sums = of_rollup(&smaps::parse_rollup(text).unwrap(), &Ok(Bytes::kib(1)), 7);
        let kib = Bytes::kib;
        let pss = BytesByPageKind { anonymous: kib(40), file: kib(18), shmem: kib(2) };
        assert_eq!((sums.pss, sums.uss, sums.swap_shmem), (Ok(pss), Ok(kib(48)), Ok(kib(3))));
        assert_eq!(sums.uss_anonymous, Ok(kib(40)));
    }

    #[test]
    fn pages_that_fork_left_shared_are_not_divided_by_guess() {
        let text = b"559d7a2e8000-7ffc5d1d4000 ---p 00000000 00:00 0  [rollup]\nRss: 100 kB\nPss: 60 kB\nPss_Anon: 38 kB\nPss_File: 22 kB\nPss_Shmem: 0 kB\nPrivate_Clean: 8 kB\nPrivate_Dirty: 36 kB\nAnonymous: 40 kB\nSwap: 0 kB\nLocked: 0 kB\n";
        let sums = of_rollup(&smaps::parse_rollup(text).unwrap(), &Ok(Bytes::kib(1)), 7);
        assert!(matches!(sums.uss_anonymous, Err(Absent::Ambiguous(_))));
    }

    #[test]
    fn both_readings_of_our_own_process_agree() {
        let page_size = PageSize::new(pagewise_sys::system::page_size()).unwrap();
        let (root, ourselves) = (ProcRoot::live(), Pid(std::process::id()));
        let mut reader = QuickReader::new(&root).unwrap();
        let sums = PageSumReader::new(page_size);
        let mut by_rollup = || sums.by_rollup(&mut reader, ourselves, &Ok(Bytes::ZERO)).unwrap();
        // Other tests in this process allocate and free between the readings, and processes that
        // map the same libraries start and end.
        let mut readings = Vec::new();
        let mut agree = || {
            let before = by_rollup();
            let polite = sums.politely(&root, ourselves).unwrap();
            let after = by_rollup();
            let is_between = |size: fn(&PageSums) -> Reading<Bytes>| {
                let [one, other] = [&before, &after].map(|sums| size(sums).unwrap());
                let slack = Bytes::mib(1);
                size(&polite).map_or(true, |size| {
                    size + slack >= one.min(other) && size <= one.max(other) + slack
                })
            };
            assert!(polite.uss.is_ok());
            let agree = is_between(|sums| sums.uss.clone())
                && is_between(|sums| Ok(sums.pss.clone()?.anonymous))
                && is_between(|sums| Ok(sums.pss.clone()?.file));
            readings.push([before, polite, after]);
            agree
        };
        let is_equal = (0..20).any(|_| agree());
        assert!(is_equal, "{readings:?}");
    }
}
