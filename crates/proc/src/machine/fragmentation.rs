//! Free memory of a machine, from buddyinfo, pagetypeinfo, vmstat and the huge page statistics.

use std::path::Path;

use pagewise_model::fragmentation::{BootCounter, FreeMemory, SizeStats};
use pagewise_model::units::nanoseconds;
use pagewise_model::{Absent, Bytes, Name, PageSize, Reading};
use pagewise_sys::system;

use crate::root::NOT_COPIED;
use crate::text::number;
use crate::{ProcError, ProcRoot, buddyinfo, capture, vmstat};

/// The folder of transparent huge pages in `/sys`.
pub(crate) const THP: &str = "kernel/mm/transparent_hugepage";

/// Reads the free memory of a machine. A copied tree has files of `/sys` in `DIR/sysfs`.
pub fn read(root: &ProcRoot) -> FreeMemory {
    FreeMemory {
        page_size: page_size(root),
        huge_size: huge_size(root),
        since_boot_ns: since_boot_ns(root),
        zones: root.machine("buddyinfo").and_then(|text| parsed(buddyinfo::parse(&text))),
        types: root.machine("pagetypeinfo").and_then(|text| parsed(buddyinfo::parse_types(&text))),
        vmstat: root.machine("vmstat").map(|text| vmstat::parse(&text)),
        sizes: sizes(root),
    }
}

fn parsed<T>(result: Result<T, ProcError>) -> Reading<T> {
    result.map_err(|error| Absent::NotSupported(error.to_string().into()))
}

/// Returns the base page size of this machine. For a copied tree, returns the number in
/// `DIR/sysfs/page_size`, which `getconf PAGE_SIZE` prints: no file of `/proc` contains the page
/// size.
pub(crate) fn page_size(root: &ProcRoot) -> PageSize {
    let copied = (!root.is_live()).then(|| root.sysfs("page_size").ok()).flatten();
    let copied = copied.and_then(|text| PageSize::new(number(&text)?));
    copied.unwrap_or_else(|| {
        PageSize::new(system::page_size()).expect("the kernel's page size is one")
    })
}

pub(crate) fn huge_size(root: &ProcRoot) -> Reading<Bytes> {
    let text = root.sysfs(&format!("{THP}/hpage_pmd_size"))?;
    let size = number(&text).filter(|size| size.is_power_of_two());
    size.map(Bytes)
        .ok_or_else(|| Absent::NotSupported("hpage_pmd_size is not a power of two".into()))
}

fn since_boot_ns(root: &ProcRoot) -> Reading<u64> {
    let since = if root.is_live() { system::since_boot() } else { capture::uptime_of(root)? };
    Ok(nanoseconds(since))
}

/// The folders `hugepages-64kB` and so on, by size.
pub(crate) fn size_folders(root: &ProcRoot) -> Reading<Vec<(Bytes, String)>> {
    let folder = root.sysfs_path(THP);
    let entries = std::fs::read_dir(&folder).map_err(|_| match root.is_live() {
        true => Absent::NotInThisKernel("".into()),
        false => Absent::NotCollected(NOT_COPIED.into()),
    })?;
    let names = entries.filter_map(|entry| entry.ok()?.file_name().into_string().ok());
    let mut sizes: Vec<(Bytes, String)> = names
        .filter_map(|name| {
            let kib = name.strip_prefix("hugepages-")?.strip_suffix("kB")?;
            Some((Bytes::kib(number(kib.as_bytes())?), format!("{THP}/{name}")))
        })
        .collect();
    sizes.sort();
    if sizes.is_empty() { Err(Absent::NotInThisKernel("6.8".into())) } else { Ok(sizes) }
}

fn sizes(root: &ProcRoot) -> Reading<Vec<SizeStats>> {
    let stats = |(size, folder): (Bytes, String)| {
        let stats = format!("{folder}/stats");
        SizeStats { size, stats: counters(root, &stats) }
    };
    Ok(size_folders(root)?.into_iter().map(stats).collect())
}

/// The numbers in the files of a folder, by file name. Files that do not contain one number are
/// left out.
fn counters(root: &ProcRoot, folder: &str) -> Vec<BootCounter> {
    let entries = std::fs::read_dir(root.sysfs_path(folder)).into_iter().flatten();
    let names = entries.filter_map(|entry| entry.ok()?.file_name().into_string().ok());
    let mut counters: Vec<BootCounter> = names
        .filter_map(|name| {
            let path = Path::new(folder).join(&name);
            let count = number(&root.sysfs(path.to_str()?).ok()?)?;
            Some(BootCounter { name: Name::from(name.as_str()), count })
        })
        .collect();
    counters.sort_by(|a, b| a.name.cmp(&b.name));
    counters
}
