//! The memory cgroups to which the pages of a file are charged: `/proc/kpagecgroup`.

use std::collections::HashMap;
use std::fs::{self, File};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::Path;

use pagewise_model::account::{CachedFile, PageCharge};
use pagewise_model::{Absent, Name, PageSize, Reading};
use pagewise_sys::page_cache::FileWindow;
use pagewise_sys::system;
use rustix::fs::{Mode, OFlags};
use std::os::unix::ffi::OsStrExt;

use crate::ProcRoot;
use crate::cgroup::hierarchy::CgroupHierarchy;

/// Pages of a file that are looked at.
const SAMPLE: usize = 256;
/// Part of a file from which pages are taken.
const WINDOW: u64 = 1 << 30;
/// Bits of a word of `pagemap` with the frame number of a present page.
const FRAME: u64 = (1 << 55) - 1;
const PRESENT: u64 = 1 << 63;

/// Reads the charges of pages.
pub(crate) struct ChargeReader {
    pagemap: File,
    charges: File,
    cgroups: HashMap<u64, Name>,
    page_size: PageSize,
}

impl ChargeReader {
    /// Opens the files of the kernel.
    ///
    /// # Errors
    /// [`Absent`] without CAP_SYS_ADMIN, or if the kernel has no such file.
    pub(crate) fn open(root: &ProcRoot) -> Reading<ChargeReader> {
        let open = |path: &str| {
            File::open(path).map_err(|error| match error.kind() {
                std::io::ErrorKind::NotFound => Absent::NotInThisKernel("4.3".into()),
                _ => Absent::NotPermitted("CAP_SYS_ADMIN".into()),
            })
        };
        let hierarchy = CgroupHierarchy::find(root)?;
        let inode = |folder: &Path| fs::metadata(folder).ok().map(|it| it.ino());
        let folders = hierarchy.all();
        let cgroups = folders.iter().filter_map(|it| Some((inode(it)?, hierarchy.name(it))));
        Ok(ChargeReader {
            pagemap: open("/proc/self/pagemap")?,
            charges: open("/proc/kpagecgroup")?,
            cgroups: cgroups.collect(),
            page_size: PageSize::new(system::page_size()).expect("the kernel's is a power of two"),
        })
    }

    /// The cgroups of a sample of the cached pages of a file, those with most pages first.
    ///
    /// # Errors
    /// Those of the file.
    pub(crate) fn charges(&mut self, file: &CachedFile) -> std::io::Result<Vec<PageCharge>> {
        let path = Path::new(std::ffi::OsStr::from_bytes(file.path.as_bytes()));
        let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NOFOLLOW | OFlags::NONBLOCK;
        let opened = rustix::fs::open(path, flags, Mode::empty())?;
        let window = FileWindow::map(&opened, 0, file.size.0.clamp(1, WINDOW))?;
        let cached = window.cached_pages()?;
        let cached: Vec<usize> = (0..cached.len()).filter(|&page| cached[page]).collect();
        let step = cached.len().div_ceil(SAMPLE).max(1);
        let mut counts: HashMap<Option<Name>, u64> = HashMap::new();
        for &page in cached.iter().step_by(step) {
            // A page that was reclaimed meanwhile is read from the device again, and no other page:
            // the window was mapped without read-ahead.
            let Ok(address) = window.populate(page) else { continue };
            if let Some(cgroup) = self.cgroup_of(address) {
                *counts.entry(cgroup).or_default() += 1;
            }
        }
        let mut charges: Vec<PageCharge> =
            counts.into_iter().map(|(cgroup, pages)| PageCharge { cgroup, pages }).collect();
        charges.sort_by(|a, b| b.pages.cmp(&a.pages).then_with(|| a.cgroup.cmp(&b.cgroup)));
        Ok(charges)
    }

    /// The cgroup of the page at an address of ours; `None` if the kernel hides the frame.
    fn cgroup_of(&self, address: u64) -> Option<Option<Name>> {
        let word = word_at(&self.pagemap, address / self.page_size.bytes())?;
        let frame = word & FRAME;
        let inode =
            (word & PRESENT != 0 && frame != 0).then(|| word_at(&self.charges, frame))??;
        Some(self.cgroups.get(&inode).cloned())
    }
}

fn word_at(file: &File, index: u64) -> Option<u64> {
    let mut word = [0; 8];
    file.read_exact_at(&mut word, index.checked_mul(8)?).ok()?;
    Some(u64::from_ne_bytes(word))
}
