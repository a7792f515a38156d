//! The process that is to be changed: surely the one that was looked at.

use std::fs;
use std::ops::Range;

use pagewise_model::{AddrRange, Bytes, Mapping, PageSize, Pid};
use pagewise_proc::pages::{self, Pace};
use pagewise_proc::{ProcRoot, huge, maps, stat};
use pagewise_sys::borrow::Borrowed;
use pagewise_sys::madvise::Process;
use pagewise_sys::system;

use crate::Error;

/// A running process, held by its pidfd: its id is not given to another meanwhile.
#[derive(Debug)]
pub struct Target {
    root: ProcRoot,
    pid: Pid,
    process: Process,
    page_size: PageSize,
}

impl Target {
    /// Takes hold of the process `pid` that started at `start_ticks`, the `starttime` of `/proc/<pid>/stat`.
    ///
    /// # Errors
    /// [`pagewise_proc::Error::NoSuchProcess`] where it is gone, or another one has its id now.
    pub fn open(pid: Pid, start_ticks: u64) -> Result<Target, Error> {
        let root = ProcRoot::live();
        let process =
            Process::open(pid.0).map_err(|e| Error::system("cannot take hold of it", e))?;
        let page_size = PageSize::new(system::page_size()).expect("the kernel's page size is one");
        let now = stat::parse(&root.read(pid, "stat")?)?;
        if now.start_ticks != start_ticks || now.has_ended() {
            return Err(pagewise_proc::Error::NoSuchProcess { pid }.into());
        }
        Ok(Target { root, pid, process, page_size })
    }

    pub(crate) const fn pid(&self) -> Pid {
        self.pid
    }

    pub(crate) const fn process(&self) -> &Process {
        &self.process
    }

    pub(crate) const fn page_size(&self) -> PageSize {
        self.page_size
    }

    pub(crate) fn is_gone(&self) -> bool {
        let stat = self.root.read(self.pid, "stat").and_then(|text| stat::parse(&text));
        stat.map_or(true, |stat| stat.has_ended())
    }

    /// A file of it, as text.
    pub(crate) fn read(&self, name: &str) -> Result<Vec<u8>, Error> {
        Ok(self.root.read(self.pid, name)?)
    }

    pub(crate) fn mappings(&self) -> Result<Vec<Mapping>, Error> {
        Ok(maps::parse(&self.read("maps")?).mappings)
    }

    /// What it has resident, counted page by page: `statm` may lag behind.
    ///
    /// # Errors
    /// As reading its pages.
    pub fn resident(&self) -> Result<Bytes, Error> {
        let mut mappings = self.mappings()?;
        let (root, pid) = (&self.root, self.pid);
        let walk = pages::read(root, pid, &mut mappings, self.page_size, &Pace::POLITE)?;
        let total = walk.total.map_err(Error::Refused)?;
        Ok(total.breakdown.resident())
    }

    /// How many of the blocks are still mapped by a huge entry.
    pub(crate) fn still_huge(&self, blocks: &[AddrRange]) -> Result<u64, Error> {
        Ok(huge::count(&self.root, self.pid, self.page_size, blocks)?)
    }

    /// Where its files link to: what it has open.
    pub(crate) fn open_files(&self) -> Vec<Vec<u8>> {
        use std::os::unix::ffi::OsStringExt;
        let links = fs::read_dir(self.root.file(self.pid, "fd")).into_iter().flatten();
        let target = |entry: std::io::Result<fs::DirEntry>| fs::read_link(entry.ok()?.path()).ok();
        links.filter_map(target).map(|path| path.into_os_string().into_vec()).collect()
    }

    /// The ids of its threads that can stop soon: not those that wait inside the kernel.
    pub(crate) fn threads(&self) -> Result<Vec<u32>, Error> {
        let folder = self.root.file(self.pid, "task");
        let tasks =
            fs::read_dir(folder).map_err(|e| Error::system("cannot list its threads", e))?;
        let tids = tasks.filter_map(|task| task.ok()?.file_name().to_str()?.parse().ok());
        Ok(tids.filter(|&tid| !self.has_ended(tid)).collect())
    }

    fn has_ended(&self, tid: u32) -> bool {
        let stat = self.root.read(Pid(tid), "stat").and_then(|text| stat::parse(&text));
        stat.map_or(true, |stat| stat.has_ended())
    }

    /// Stops one of its threads.
    pub(crate) fn borrow(&self, tid: u32) -> std::io::Result<Borrowed> {
        Borrowed::stop(tid, self.vdso().unwrap_or_default())
    }

    fn vdso(&self) -> Option<Range<u64>> {
        let mappings = self.mappings().ok()?;
        let vdso = mappings.iter().find(|mapping| mapping.name.as_bytes() == b"[vdso]")?;
        Some(vdso.range.start..vdso.range.end)
    }
}
