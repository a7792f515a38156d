//! A memory cgroup at one time, with the reasons of its absent values.

use std::path::Path;

use pagewise_model::evidence::counter;
use pagewise_model::fragmentation::BootCounter;
use pagewise_model::sweep::{CgroupUsage, SweepCgroup};
use pagewise_model::{Absent, Bytes, Reading};

use super::hierarchy::CgroupHierarchy;
use super::{UNLIMITED, swapped};
use crate::root::read_all;
use crate::text::number;
use crate::{pressure, vmstat};

impl CgroupHierarchy {
    /// Returns the charged bytes of a cgroup, by one small read. The value is absent for the root
    /// of v2, which counts no charges.
    ///
    /// # Errors
    /// [`Absent::Vanished`] if the cgroup was removed.
    pub fn charged(&self, folder: &Path) -> Reading<Bytes> {
        size(folder, self.files().usage)
    }

    /// All counters of a cgroup.
    pub fn read(&self, folder: &Path) -> SweepCgroup {
        let files = self.files();
        let stat = read_all(&folder.join("memory.stat")).map(|text| vmstat::parse(&text));
        SweepCgroup {
            path: self.name(folder),
            current: self.charged(folder),
            peak: size(folder, files.peak),
            limit: limit(folder, files.limit),
            swap: swapped(folder, files),
            usage: stat
                .map_err(|error| absence(folder, &error))
                .and_then(|stat| self.usage(&stat).ok_or_else(no_line)),
            limit_hits: event(folder, files.limit_hits),
            oom_kills: event(folder, files.oom_kills),
            pressure: match self.is_v1() {
                true => Err(Absent::NotSupported("cgroup v1 has none".into())),
                false => text(folder, "memory.pressure")
                    .and_then(|text| pressure::parse_totals(&text).ok_or_else(no_line)),
            },
        }
    }

    fn usage(&self, stat: &[BootCounter]) -> Option<CgroupUsage> {
        let kib = |name| counter(stat, name).map(|bytes| Bytes::kib(bytes >> 10));
        Some(match self.is_v1() {
            true => CgroupUsage {
                anonymous: kib("total_rss")?,
                file: kib("total_cache")?,
                shmem: kib("total_shmem")?,
                inactive_file: kib("total_inactive_file")?,
                slab: None,
            },
            false => CgroupUsage {
                anonymous: kib("anon")?,
                file: kib("file")?,
                shmem: kib("shmem")?,
                inactive_file: kib("inactive_file")?,
                slab: kib("slab"),
            },
        })
    }
}

fn no_line() -> Absent {
    Absent::NotInThisKernel("".into())
}

fn absence(folder: &Path, error: &std::io::Error) -> Absent {
    use std::io::ErrorKind::{NotFound, PermissionDenied};
    match error.kind() {
        NotFound if folder.exists() => no_line(),
        // ENODEV: the cgroup was removed while the file was open.
        NotFound => Absent::Vanished,
        PermissionDenied => Absent::NotPermitted("root".into()),
        _ if error.raw_os_error() == Some(19) => Absent::Vanished,
        _ => Absent::NotSupported(error.to_string().into()),
    }
}

fn text(folder: &Path, file: &str) -> Reading<Vec<u8>> {
    read_all(&folder.join(file)).map_err(|error| absence(folder, &error))
}

fn size(folder: &Path, file: &str) -> Reading<Bytes> {
    number(&text(folder, file)?).map(Bytes).ok_or_else(no_line)
}

fn limit(folder: &Path, file: &str) -> Reading<Option<Bytes>> {
    Ok(number(&text(folder, file)?).filter(|&n| n < UNLIMITED).map(Bytes))
}

/// Returns the count of an event. `memory.events.local` (since 5.2) counts events of the cgroup
/// itself, `memory.events` also those of its children.
fn event(folder: &Path, (file, key): (&str, &str)) -> Reading<u64> {
    match key {
        "" => number(&text(folder, file)?).ok_or_else(no_line),
        _ => {
            let own = text(folder, &format!("{file}.local"));
            let lines = vmstat::parse(&own.or_else(|_| text(folder, file))?);
            counter(&lines, key).ok_or_else(no_line)
        }
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn events_of_the_cgroup_itself_come_first() {
        let top = tempfile::tempdir().unwrap();
        fs::write(top.path().join("memory.events"), "max 9\noom_kill 4\n").unwrap();
        assert_eq!(event(top.path(), ("memory.events", "max")), Ok(9));
        fs::write(top.path().join("memory.events.local"), "max 2\noom_kill 1\n").unwrap();
        assert_eq!(event(top.path(), ("memory.events", "max")), Ok(2));
        assert!(event(top.path(), ("memory.events", "none")).is_err());
    }

    #[test]
    fn an_unlimited_cgroup_differs_from_one_without_the_file() {
        let top = tempfile::tempdir().unwrap();
        assert!(limit(top.path(), "memory.max").is_err());
        fs::write(top.path().join("memory.max"), "max\n").unwrap();
        assert_eq!(limit(top.path(), "memory.max"), Ok(None));
        assert_eq!(size(&top.path().join("gone"), "memory.current"), Err(Absent::Vanished));
    }
}
