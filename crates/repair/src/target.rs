//! The process to change, checked by its start time so that a reused PID is rejected.

use std::fs;

use pagewise_model::mapping::MappingPages;
use pagewise_model::{AddrRange, Bytes, Mapping, PageSize, Pid};
use pagewise_proc::pages::{self, Pace};
use pagewise_proc::{ProcRoot, huge, maps, stat};
use pagewise_remote as remote;
use pagewise_sys::madvise::PidfdProcess;
use pagewise_sys::system;

use crate::RepairError;

/// A running process and its pidfd, through which no advice reaches another process that reuses the
/// PID.
#[derive(Debug)]
pub struct RepairTarget {
    root: ProcRoot,
    pid: Pid,
    start_ticks: u64,
    process: PidfdProcess,
    page_size: PageSize,
}

impl RepairTarget {
    /// Opens the process `pid` that started at `start_ticks`, the `starttime` of
    /// `/proc/<pid>/stat`.
    ///
    /// # Errors
    /// [`pagewise_proc::ProcError::NoSuchProcess`] if the process has ended or another one has its
    /// PID.
    pub fn open(pid: Pid, start_ticks: u64) -> Result<RepairTarget, RepairError> {
        let root = ProcRoot::live();
        let process = PidfdProcess::open(pid.0)
            .map_err(|e| RepairError::system("cannot open it by its PID", e))?;
        let page_size = PageSize::new(system::page_size()).expect("the kernel's page size is one");
        let now = stat::parse(&root.read(pid, "stat")?)?;
        if now.start_ticks != start_ticks || now.has_ended() {
            return Err(pagewise_proc::ProcError::NoSuchProcess { pid }.into());
        }
        Ok(RepairTarget { root, pid, start_ticks, process, page_size })
    }

    pub(crate) const fn pid(&self) -> Pid {
        self.pid
    }

    pub(crate) const fn start_ticks(&self) -> u64 {
        self.start_ticks
    }

    pub(crate) const fn process(&self) -> &PidfdProcess {
        &self.process
    }

    pub(crate) const fn page_size(&self) -> PageSize {
        self.page_size
    }

    pub(crate) fn is_gone(&self) -> bool {
        let stat = self.root.read(self.pid, "stat").and_then(|text| stat::parse(&text));
        stat.map_or(true, |stat| stat.has_ended())
    }

    /// Content of `/proc/<pid>/<name>`.
    pub(crate) fn read(&self, name: &str) -> Result<Vec<u8>, RepairError> {
        Ok(self.root.read(self.pid, name)?)
    }

    pub(crate) fn mappings(&self) -> Result<Vec<Mapping>, RepairError> {
        Ok(maps::parse(&self.read("maps")?).mappings)
    }

    /// Its resident memory, counted by page: `statm` may lag behind.
    ///
    /// # Errors
    /// As reading its pages.
    pub fn resident(&self) -> Result<Bytes, RepairError> {
        Ok(self.total()?.breakdown.resident())
    }

    /// Page counts of all mappings, summed.
    pub(crate) fn total(&self) -> Result<MappingPages, RepairError> {
        let mut mappings = self.mappings()?;
        let (root, pid) = (&self.root, self.pid);
        let walk = pages::read(root, pid, &mut mappings, self.page_size, &Pace::POLITE)?;
        walk.total.map_err(RepairError::Refused)
    }

    /// Number of `blocks` that the page tables still map as huge pages.
    pub(crate) fn still_huge(&self, blocks: &[AddrRange]) -> Result<u64, RepairError> {
        Ok(huge::count(&self.root, self.pid, self.page_size, blocks)?)
    }

    /// Targets of its open file descriptors.
    pub(crate) fn open_files(&self) -> Vec<Vec<u8>> {
        use std::os::unix::ffi::OsStringExt;
        let links = fs::read_dir(self.root.file(self.pid, "fd")).into_iter().flatten();
        let target = |entry: std::io::Result<fs::DirEntry>| fs::read_link(entry.ok()?.path()).ok();
        links.filter_map(target).map(|path| path.into_os_string().into_vec()).collect()
    }

    /// The process, for remote calls.
    pub(crate) fn remote(&self) -> Result<remote::RemoteProcess, remote::RemoteError> {
        remote::RemoteProcess::open(self.pid.0, Some(self.start_ticks))
    }
}
