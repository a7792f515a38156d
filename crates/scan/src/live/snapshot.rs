//! Memory of a live process, copied from a child that the process was made to fork. The process is
//! stopped while the kernel copies its page tables; the pages are copied while it runs on.

use std::time::{Duration, Instant};

use pagewise_model::mapping::Sharing;
use pagewise_model::process::Process;
use pagewise_model::units::nanoseconds;
use pagewise_model::{AddrRange, Backing, Bytes, Mapping, Pid};
use pagewise_proc::fork_room::ForkRoom;
use pagewise_proc::{ProcRoot, maps, status};
use pagewise_remote::{ForkedSnapshot, Keeper, RemoteProcess, on_tracer_thread};
use pagewise_sys::ptrace::expected_pause;

use super::constants::MappedFiles;
use super::plan::PageScanner;
use super::{
    ATTEMPTS, CopyRequest, Pauses, Prepared, ProcessCopy, RESERVE, SettledStop, settled_stop,
};
use crate::ScanError;
use crate::memory::Memory;

/// Time that `fork` takes for a base page that is mapped: its page table entry and the counters of
/// the page. 60 to 130 ns were measured on a virtual machine with two busy CPUs (Linux 6.18).
const TIME_PER_PAGE: Duration = Duration::from_nanos(130);
/// Number of tasks that must be left for the process and its user.
const SPARE_TASKS: u64 = 8;
/// Number of times that a child of `vfork` is checked, until it has executed its program.
const VFORK_LOOKS: u32 = 20;
const BETWEEN_LOOKS: Duration = Duration::from_millis(5);

/// Copies a running process by a snapshot that it is made to fork. The calling thread may be any.
/// `keeper` notes the snapshot until it is gone.
///
/// # Errors
/// [`ScanError::ForkRefused`] with the reason where a fork is unsafe, or would fail; others as
/// [`super::copy_running`].
pub fn copy_forked(
    root: &ProcRoot,
    pid: Pid,
    request: &CopyRequest<'_>,
    keeper: &mut (dyn Keeper + Send),
) -> Result<ProcessCopy, ScanError> {
    let target = RemoteProcess::open(pid.0, None)?;
    target.permits_calls()?;
    let mut pauses = Pauses::default();
    for _ in 0..ATTEMPTS {
        let threads = target.threads()?.len();
        let private = private_pages(root, pid);
        let prepared = Prepared::new(root, pid, request, threads, &mut |plan, _| {
            expected_fork_pause(plan.bytes().max(private.0), threads)
        })?;
        permit_fork(root, pid, &prepared, private)?;
        (request.announce)(prepared.expected);
        let copied = on_tracer_thread(|| {
            prepared.copy_snapshot(root, &target, request, &mut pauses, keeper)
        })?;
        if let Some(copy) = copied {
            return Ok(copy);
        }
    }
    Err(ScanError::Grows)
}

/// Resident anonymous memory: that whose page table entries a fork copies, and that must be copied
/// if the process writes to all of it while the snapshot lives.
fn private_pages(root: &ProcRoot, pid: Pid) -> Bytes {
    let text = root.read(pid, "status").unwrap_or_default();
    status::parse(&text).status.rss_anon.unwrap_or_default()
}

fn expected_fork_pause(bytes: u64, threads: usize) -> Duration {
    let pages = u32::try_from(bytes >> 12).unwrap_or(u32::MAX);
    expected_pause(threads) + TIME_PER_PAGE.saturating_mul(pages)
}

/// Refuses a fork that would harm the process, or fail.
fn permit_fork(
    root: &ProcRoot,
    pid: Pid,
    prepared: &Prepared<'_>,
    private: Bytes,
) -> Result<(), ScanError> {
    let mut room = ForkRoom::read(root, pid);
    for _ in 0..VFORK_LOOKS {
        if room.in_vfork.is_none() {
            break;
        }
        std::thread::sleep(BETWEEN_LOOKS);
        room = ForkRoom::read(root, pid);
    }
    let committed = prepared.committed;
    refusal(&room, private, committed).map_or(Ok(()), |why| Err(ScanError::ForkRefused(why)))
}

/// The reason why a process with this amount of resident private memory and of committed memory
/// must not fork. The memory for the copy is allocated already.
fn refusal(room: &ForkRoom, private: Bytes, committed: Bytes) -> Option<String> {
    let mib = |bytes: Bytes| bytes.0.div_ceil(1 << 20);
    // Page tables take 1/512; twice that is required.
    let needed = private + Bytes(private.0 / 256) + RESERVE;
    let few = |left: &u64| *left < SPARE_TASKS;
    if let Some(thread) = room.in_vfork {
        return Some(format!(
            "thread {thread} waits for a child of vfork, which uses the memory of the process"
        ));
    }
    if room.handles_faults {
        return Some("it handles page faults itself (userfaultfd), which a fork waits for".into());
    }
    if let Some(left) = room.cgroup.filter(|left| *left < needed) {
        return Some(format!(
            "its memory cgroup has {} MiB left, and if it writes to all its memory while the snapshot lives, {} MiB are copied",
            mib(left),
            mib(needed)
        ));
    }
    if let Some(left) = room.available.as_ref().ok().filter(|left| **left < needed) {
        return Some(format!(
            "the machine has {} MiB available, and if it writes to all its memory while the snapshot lives, {} MiB are copied",
            mib(*left),
            mib(needed)
        ));
    }
    if let Some(left) = room.cgroup_tasks.filter(few) {
        return Some(format!("its pids cgroup has room for only {left} tasks"));
    }
    if let Some(left) = room.user_tasks.filter(few) {
        return Some(format!("its user may have only {left} more tasks (RLIMIT_NPROC)"));
    }
    if let Some(left) = room.commit.filter(|left| *left < committed + RESERVE) {
        return Some(format!(
            "vm.overcommit_memory is 2: {} MiB may still be committed, and a fork commits up to {} MiB",
            mib(left),
            mib(committed)
        ));
    }
    None
}

impl<'r> Prepared<'r> {
    /// Stops all threads, makes one fork, lets them run on, and copies the snapshot. `None` if the
    /// process has grown beyond the prepared memory.
    fn copy_snapshot(
        self,
        root: &'r ProcRoot,
        target: &RemoteProcess,
        request: &CopyRequest<'_>,
        pauses: &mut Pauses,
        keeper: &mut dyn Keeper,
    ) -> Result<Option<ProcessCopy>, ScanError> {
        let SettledStop { mut stopped, stops, since, unsettled } =
            settled_stop(target, self.reader, request, pauses)?;
        let forked = ForkedSnapshot::fork(target, &mut stopped, keeper);
        // The mappings at that time: they come and go while the process runs.
        let original = root.read(self.reader, "maps").unwrap_or_default();
        drop(stopped);
        pauses.add(since);
        let snapshot = forked?;
        let (planned, reader) = (self.planned.clone(), self.reader);
        let copied = self.of_snapshot(root, Pid(snapshot.child())).and_then(|prepared| {
            // Nothing waits for the copy any more.
            let request = CopyRequest { max_pause: Duration::MAX, ..*request };
            prepared.fill(root, &stops, Instant::now(), &request)
        });
        let lived = snapshot.end(keeper)?;
        let Some(copy) = copied? else { return Ok(None) };
        // The snapshot has ended, so the files are read by way of the process.
        let mut copy = copy.with_files(MappedFiles::new(root, reader));
        let original = maps::parse(&original).mappings;
        copy.measured.unread += kept_from_children(&planned, &original, copy.mappings())?;
        copy.release_spare();
        copy.measured.pause_ns = nanoseconds(pauses.longest);
        copy.measured.stops = pauses.count;
        copy.measured.unsettled_threads = unsettled;
        copy.measured.snapshot_ns = Some(nanoseconds(lived));
        Ok(Some(copy))
    }

    /// The same with the snapshot as the process whose memory is read.
    fn of_snapshot(self, root: &'r ProcRoot, snapshot: Pid) -> Result<Self, ScanError> {
        let process = Process { pid: snapshot, ..self.process.clone() };
        Ok(Prepared {
            reader: snapshot,
            scanner: PageScanner::open(root, &process, snapshot, self.page_size)?,
            ..self
        })
    }
}

/// Resident private memory of the process that is missing in the snapshot (`MADV_DONTFORK`).
///
/// # Errors
/// [`ScanError::ForkRefused`] if a part of the heap is missing, which would look empty.
fn kept_from_children(
    planned: &[AddrRange],
    original: &[Mapping],
    snapshot: &[Mapping],
) -> Result<Bytes, ScanError> {
    let of_heap: Vec<&Mapping> = original.iter().filter(|it| is_of_heap(it)).collect();
    let missing = missing_bytes(planned, &of_heap, snapshot);
    if !missing.is_zero() {
        return Err(ScanError::ForkRefused(format!(
            "it keeps {} KiB of its heap from forked children (madvise MADV_DONTFORK), so a snapshot lacks them",
            missing.0 >> 10
        )));
    }
    let is_private =
        |it: &&Mapping| it.sharing == Sharing::Private && it.backing() == Backing::Anonymous;
    Ok(missing_bytes(planned, &original.iter().filter(is_private).collect::<Vec<_>>(), snapshot))
}

/// True if a mapping is a part of an arena of glibc: the program break, or a heap of a further
/// arena, which begins at a multiple of its largest size.
fn is_of_heap(mapping: &Mapping) -> bool {
    const HEAP_MAX_SIZE: u64 = 64 << 20;
    let is_arena = mapping.inode == 0 && mapping.range.start.is_multiple_of(HEAP_MAX_SIZE);
    mapping.name.as_bytes() == b"[heap]" || is_arena && mapping.sharing == Sharing::Private
}

/// Bytes of the planned ranges that are in some mappings of the process, and in no mapping of the
/// snapshot.
fn missing_bytes(planned: &[AddrRange], original: &[&Mapping], snapshot: &[Mapping]) -> Bytes {
    let covered = |range: AddrRange| -> u64 {
        let parts = snapshot.iter().filter_map(|it| it.range.intersection(range));
        parts.map(|part| part.len().0).sum()
    };
    let parts = planned
        .iter()
        .flat_map(|range| original.iter().filter_map(|mapping| mapping.range.intersection(*range)));
    parts.map(|part| Bytes(part.len().0.saturating_sub(covered(part)))).sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn room() -> ForkRoom {
        ForkRoom {
            available: Ok(Bytes::mib(4096)),
            cgroup: None,
            cgroup_tasks: None,
            user_tasks: None,
            commit: None,
            in_vfork: None,
            handles_faults: false,
        }
    }

    #[test]
    fn each_lack_of_room_is_a_reason() {
        let why =
            |room: &ForkRoom| refusal(room, Bytes::mib(1024), Bytes::mib(1024)).unwrap_or_default();
        assert_eq!(why(&room()), "");
        let lacks: [(ForkRoom, &str); 7] = [
            (ForkRoom { available: Ok(Bytes::mib(900)), ..room() }, "has 900 MiB available"),
            (ForkRoom { cgroup: Some(Bytes::mib(900)), ..room() }, "memory cgroup has 900 MiB"),
            (ForkRoom { cgroup_tasks: Some(3), ..room() }, "room for only 3 tasks"),
            (ForkRoom { user_tasks: Some(0), ..room() }, "RLIMIT_NPROC"),
            (ForkRoom { commit: Some(Bytes::mib(900)), ..room() }, "overcommit_memory is 2"),
            (ForkRoom { in_vfork: Some(Pid(7)), ..room() }, "thread 7 waits for a child of vfork"),
            (ForkRoom { handles_faults: true, ..room() }, "userfaultfd"),
        ];
        for (room, expected) in lacks {
            assert!(why(&room).contains(expected), "{room:?}: {}", why(&room));
        }
    }

    #[test]
    fn memory_that_a_child_does_not_get_is_missing() {
        let mappings = |text: &[u8]| maps::parse(text).mappings;
        let range = |start, end| AddrRange { start, end };
        let original = mappings(
            b"1000-5000 rw-p 00000000 00:00 0\n6000-8000 rw-s 00000000 00:01 7 /dev/shm/x\n",
        );
        let snapshot = mappings(b"1000-3000 rw-p 00000000 00:00 0\n");
        let planned = [range(0x1000, 0x4000), range(0x6000, 0x7000), range(0x9000, 0xa000)];
        let missing = |snapshot: &[Mapping]| kept_from_children(&planned, &original, snapshot);
        assert_eq!(missing(&snapshot).unwrap(), Bytes(0x1000));
        assert_eq!(missing(&original).unwrap(), Bytes::ZERO);
        let heap = mappings(b"1000-5000 rw-p 00000000 00:00 0 [heap]\n");
        assert!(kept_from_children(&planned, &heap, &snapshot).is_err());
    }
}
