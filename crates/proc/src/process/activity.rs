//! Counters of a process at one time.

use pagewise_model::evidence::ActivityPoint;
use pagewise_model::process::ProcessStatus;
use pagewise_model::{Absent, Bytes, PageSize, Pid, Reading};
use pagewise_sys::system;

use crate::{ProcError, ProcRoot, stat, status};

/// Reads the counters of a process; `at_ns` is the time since the beginning of the observation.
///
/// # Errors
/// [`ProcError::NoSuchProcess`], [`ProcError::NotPermitted`], [`ProcError::Parse`]
pub fn point(
    root: &ProcRoot,
    pid: Pid,
    page_size: PageSize,
    at_ns: u64,
) -> Result<ActivityPoint, ProcError> {
    let stat = stat::parse(&root.read(pid, "stat")?)?;
    let statm = stat::parse_statm(&root.read(pid, "statm")?, page_size)?;
    let read = root.reading(pid, "status").map(|text| status::parse(&text));
    let read = read.as_ref().map_err(Clone::clone);
    let line = |line: fn(&ProcessStatus) -> &Reading<Bytes>| {
        read.clone().and_then(|read| line(&read.status).clone())
    };
    let waits = read
        .clone()
        .and_then(|read| read.waits.ok_or_else(|| Absent::NotInThisKernel("2.6.23".into())));
    let tick_ns = 1_000_000_000 / system::ticks_per_second().max(1);
    let io = root.reading(pid, "io").and_then(|text| traffic(&text, page_size));
    Ok(ActivityPoint {
        at_ns,
        mapped: statm.size,
        resident: statm.resident,
        anonymous: line(|status| &status.rss_anon),
        file: line(|status| &status.rss_file),
        shmem: line(|status| &status.rss_shmem),
        swap: line(|status| &status.vm_swap),
        peak: line(|status| &status.vm_hwm),
        minor_faults: stat.minor_faults,
        major_faults: stat.major_faults,
        user_ns: stat.user_ticks.saturating_mul(tick_ns),
        system_ns: stat.system_ticks.saturating_mul(tick_ns),
        threads: stat.threads,
        file_traffic: io.clone().map(|io| io.files),
        storage_traffic: io.clone().map(|io| io.storage),
        memory_writes: io.map(|io| io.memory_writes),
        main_thread_waits: waits,
    })
}

/// Bytes read and written, as [`ActivityPoint`] describes them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Traffic {
    files: Bytes,
    storage: Bytes,
    memory_writes: Bytes,
}

/// Bytes read and written by the text of `/proc/PID/io`.
fn traffic(text: &[u8], page_size: PageSize) -> Reading<Traffic> {
    let value = |name: &str| {
        let lines = text.split(|byte| *byte == b'\n');
        let value = lines.filter_map(|line| line.strip_prefix(name.as_bytes())).next()?;
        std::str::from_utf8(value).ok()?.trim().parse::<u64>().ok()
    };
    let both = |read, written| Some(value(read)?.saturating_add(value(written)?));
    let sums = || {
        // Each call counts as one page or more, because it fills at least one page of the page
        // cache.
        let calls = both("syscr:", "syscw:")?.saturating_mul(page_size.bytes());
        let transferred = both("rchar:", "wchar:")?;
        let storage = both("read_bytes:", "write_bytes:")?;
        let files = Bytes(transferred.max(calls).max(storage));
        let memory_writes = Bytes(value("wchar:")?.saturating_sub(value("write_bytes:")?));
        Some(Traffic { files, storage: Bytes(storage), memory_writes })
    };
    sums().ok_or_else(|| Absent::NotRecorded("/proc/PID/io".into()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn file_traffic_is_the_largest_of_calls_transfers_and_storage() {
        let page_size = PageSize::new(4 << 10).unwrap();
        let text = |transferred, calls, stored| {
            format!(
                "rchar: {transferred}\nwchar: 1\nsyscr: {calls}\nsyscw: 0\nread_bytes: {stored}\n\
                 write_bytes: 4096\ncancelled_write_bytes: 9999999\n"
            )
        };
        let traffic = |transferred, calls, stored| {
            let both = super::traffic(text(transferred, calls, stored).as_bytes(), page_size);
            both.map(|it| it.files)
        };
        assert_eq!(traffic(1_000_000, 2, 0), Ok(Bytes(1_000_001)));
        assert_eq!(traffic(10, 2, 0), Ok(Bytes(8192)));
        assert_eq!(traffic(10, 2, 81_920), Ok(Bytes(86_016)));
        assert!(super::traffic(b"rchar: 1\n", page_size).is_err());
        assert!(super::traffic(b"rchar: x\nwchar: \xff\n", page_size).is_err());
        // The traffic of storage excludes sockets and tmpfs.
        let both = super::traffic(text(1_000_000, 2, 8192).as_bytes(), page_size).unwrap();
        assert_eq!(both.storage, Bytes(8192 + 4096));
    }
}
