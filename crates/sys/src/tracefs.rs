//! tracefs, the file system that lists the tracepoints of the kernel: an existing mount, or a
//! detached mount.

use std::fs::File;
use std::io::{self, Read};
use std::os::fd::OwnedFd;

use rustix::fs::{CWD, Mode, OFlags, openat, statfs};
use rustix::mount::{FsMountFlags, FsOpenFlags, MountAttrFlags, fsconfig_create, fsmount, fsopen};

/// Usual mount points.
const PLACES: [&str; 2] = ["/sys/kernel/tracing", "/sys/kernel/debug/tracing"];

/// `TRACEFS_MAGIC` of `linux/magic.h`.
const MAGIC: i64 = 0x7472_6163;

/// An open tracefs.
#[derive(Debug)]
pub struct TraceFs {
    folder: OwnedFd,
}

impl TraceFs {
    /// Opens tracefs. If it is not mounted, a detached mount is created, which is visible to this
    /// process only and disappears when the value is dropped.
    ///
    /// # Errors
    /// `EACCES` or `EPERM` without permission; `ENODEV` if the kernel has no tracefs.
    pub fn open() -> io::Result<TraceFs> {
        let mounted =
            PLACES.iter().find(|place| statfs(**place).is_ok_and(|fs| fs.f_type == MAGIC));
        let folder = match mounted {
            Some(place) => openat(CWD, *place, OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())?,
            None => detached()?,
        };
        Ok(TraceFs { folder })
    }

    /// True if tracefs has tracepoints. A kernel that was booted with `lockdown=confidentiality`
    /// leaves it empty.
    pub fn has_events(&self) -> bool {
        openat(&self.folder, "events", OFlags::PATH | OFlags::CLOEXEC, Mode::empty()).is_ok()
    }

    /// Reads a whole file, such as `events/tlb/tlb_flush/id`.
    ///
    /// # Errors
    /// `ENOENT` if the file does not exist; `EACCES`.
    pub fn read(&self, path: &str) -> io::Result<Vec<u8>> {
        let file = openat(&self.folder, path, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty())?;
        let mut text = Vec::new();
        File::from(file).read_to_end(&mut text)?;
        Ok(text)
    }

    /// Lists the names in a folder, such as `events/tlb`.
    ///
    /// # Errors
    /// `ENOENT` if the folder does not exist; `EACCES`.
    pub fn list(&self, path: &str) -> io::Result<Vec<Vec<u8>>> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let folder = openat(&self.folder, path, flags, Mode::empty())?;
        let mut names = Vec::new();
        for entry in rustix::fs::Dir::new(folder)? {
            let entry = entry?;
            names.push(entry.file_name().to_bytes().to_vec());
        }
        names.retain(|name| name != b"." && name != b"..");
        Ok(names)
    }
}

/// Creates a tracefs mount that is attached to no folder.
fn detached() -> io::Result<OwnedFd> {
    let context = fsopen("tracefs", FsOpenFlags::FSOPEN_CLOEXEC)?;
    fsconfig_create(&context)?;
    Ok(fsmount(&context, FsMountFlags::FSMOUNT_CLOEXEC, MountAttrFlags::empty())?)
}

#[cfg(test)]
mod tests {
    use pagewise_skip::{Lack, skip};

    use super::*;
    use crate::system::{CapabilitySet, has_capability};

    #[test]
    fn a_tracepoint_has_its_number_mounted_or_not_and_nothing_gets_mounted() {
        // The test compares only tracefs mounts: other programs may mount other file systems
        // meanwhile.
        let mounts = || {
            let text = std::fs::read_to_string("/proc/self/mounts").unwrap();
            let is_tracefs = |line: &&str| line.split(' ').nth(2) == Some("tracefs");
            text.lines().filter(is_tracefs).map(str::to_owned).collect::<Vec<_>>()
        };
        let before = mounts();
        if !has_capability(CapabilitySet::SYS_ADMIN) {
            assert!(TraceFs::open().is_err() || !before.is_empty());
            return;
        }
        let tracefs = TraceFs::open().unwrap();
        if !tracefs.has_events() {
            return skip(&Lack::KernelFile("/sys/kernel/tracing/events"));
        }
        let id = tracefs.read("events/exceptions/page_fault_user/id").unwrap();
        assert!(std::str::from_utf8(&id).unwrap().trim().parse::<u64>().unwrap() > 0);
        let reasons = tracefs.list("events/tlb").unwrap();
        assert!(reasons.iter().any(|name| name == b"tlb_flush"), "{reasons:?}");
        assert_eq!(mounts(), before);
        let missing = tracefs.read("events/no/such/id").unwrap_err();
        assert_eq!(missing.kind(), io::ErrorKind::NotFound);
    }
}
