//! Mappings of hugetlb memory, which `Rss` leaves out.

use std::fs::{self, File};
use std::path::Path;

use pagewise_model::{Absent, Mapping, PageSize, Pid, Reading};
use pagewise_sys::procmap_query;

use crate::ProcRoot;

/// Distinguishes huge TLB mappings from others.
#[derive(Debug)]
pub(crate) struct Hugetlb {
    /// The smallest page of a pool that has any; `None` where no mapping can hold one.
    smallest: Option<u64>,
    page_size: PageSize,
    maps: Option<File>,
}

impl Hugetlb {
    pub(crate) fn new(root: &ProcRoot, pid: Pid, page_size: PageSize) -> Hugetlb {
        let smallest = smallest_pool(Path::new("/sys/kernel/mm/hugepages"));
        let maps =
            smallest.and_then(|_| File::open(root.path().join(pid.to_string()).join("maps")).ok());
        Hugetlb { smallest, page_size, maps }
    }

    /// True if the mapping is hugetlb memory. Asks the kernel only if name and alignment fit.
    pub(crate) fn holds(&self, mapping: &Mapping) -> Reading<bool> {
        let Some(smallest) = self.smallest else { return Ok(false) };
        let name = mapping.name.as_bytes();
        let edges = mapping.range.start | mapping.range.end | mapping.offset;
        if !name.starts_with(b"/") || !edges.is_multiple_of(smallest) {
            return Ok(false);
        }
        let found = self.maps.as_ref().map(|maps| procmap_query::at(maps, mapping.range.start));
        match found {
            Some(Ok(found)) => {
                Ok(found.is_some_and(|found| found.page_size > self.page_size.bytes()))
            }
            _ if name.starts_with(b"/anon_hugepage") => Ok(true),
            _ => Err(Absent::NotInThisKernel("6.11".into())),
        }
    }
}

/// The smallest page size with pages in its pool.
fn smallest_pool(pools: &Path) -> Option<u64> {
    let pools = fs::read_dir(pools).ok()?.filter_map(Result::ok);
    let filled = pools.filter(|pool| {
        fs::read_to_string(pool.path().join("nr_hugepages")).is_ok_and(|n| n.trim() != "0")
    });
    filled.filter_map(|pool| page_size_of(pool.file_name().to_str()?)).min()
}

/// 2097152 from `hugepages-2048kB`.
fn page_size_of(pool: &str) -> Option<u64> {
    let kib: u64 = pool.strip_prefix("hugepages-")?.strip_suffix("kB")?.parse().ok()?;
    kib.checked_mul(1 << 10).filter(|size| *size > 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_page_size_of_a_pool_is_in_its_name() {
        assert_eq!(page_size_of("hugepages-2048kB"), Some(2 << 20));
        assert_eq!(page_size_of("hugepages-0kB"), None);
        assert_eq!(page_size_of("hugepages-99999999999999999999kB"), None);
    }
}
