//! `pagewise heap attach`: records the heap of a program that runs already.

use std::cmp::Reverse;
use std::fs::DirBuilder;
use std::io;
use std::os::unix::fs::DirBuilderExt;
use std::path::PathBuf;
use std::thread::sleep;
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use pagewise_heap::safe_call::recorder_addresses;
use pagewise_heap::{
    AttachRefused, Attached, CollectRequest, Collector, Finished, HeapError, LeftBehind, PauseMeter,
};
use pagewise_heaplog::recording::LogEnding;
use pagewise_model::evidence::{AllocationProfile, AllocationProfileRow};
use pagewise_model::{Bytes, Pid};
use pagewise_proc::{ProcError, ProcRoot};
use pagewise_sys::interrupt::NotedInterrupts;

use super::record::{tell, tell_not_recorded, the_library, usual_name};
use crate::commands::heap::args::{HeapAttach, RecordArgs};
use crate::keeper::{KeeperProcess, has_ended};
use crate::output::{note, note_begin};
use crate::pause;

/// Interval of checks for the end of the recording.
const POLL_INTERVAL: Duration = Duration::from_millis(20);

/// Collects the events of the recorders until `left` returns 0. `left` returns the remaining time
/// of the recording.
fn collect(
    collector: &mut Collector,
    keeper: &mut KeeperProcess,
    left: impl Fn() -> Duration,
) -> Result<(), HeapError> {
    loop {
        let next = collector.step()?;
        keeper.note_heaps(&collector.children());
        let left = left();
        if left.is_zero() {
            return Ok(());
        }
        sleep(next.min(left).min(POLL_INTERVAL));
    }
}

/// Detaches the recorder from the process and its children. Returns the state of the process, and
/// true if memory of the recorder stays mapped in the process or in a child.
fn detach(
    attached: Attached,
    children: &[u32],
    mut keeper: KeeperProcess,
) -> (Result<LeftBehind, AttachRefused>, bool) {
    let children = children.iter().map(|child| attached.child(*child));
    let children: Vec<Attached> = children.filter_map(Result::ok).collect();
    let ended = attached.end(&mut keeper);
    let mut stays = matches!(ended, Ok(LeftBehind::MemoryStays) | Err(_));
    for child in children {
        // An error is ignored: the child has then ended, and with it the memory of the recorder.
        stays |= matches!(child.end(&mut keeper), Ok(LeftBehind::MemoryStays));
    }
    match stays {
        true => keeper.leave_the_rest(),
        false => keeper.dismiss(),
    }
    (ended, stays)
}

/// Returns the path of the program of a process. Fails if the process is not visible to this user.
fn program_of(root: &ProcRoot, pid: u32) -> anyhow::Result<PathBuf> {
    if !root.has_our_ids() {
        bail!("/proc is not of this pid namespace: the process would not be found in it");
    }
    match root.check_access(Pid(pid)) {
        Err(denied @ ProcError::NoAccess { .. }) => return Err(denied.into()),
        // `is_visible` reports every error other than denied access.
        _ => pagewise_heap::is_visible(pid)?,
    }
    std::fs::read_link(root.file(Pid(pid), "exe"))
        .with_context(|| format!("cannot see the program of process {pid}"))
}

/// Average number of allocated bytes for each sample of a diagnosis: a growth of 1 MiB has some
/// dozen samples.
const PROFILE_BYTES: u64 = 32 << 10;
/// Maximum number of call stacks in a profile.
const MAX_PROFILE_ROWS: usize = 256;

/// Samples the allocations of a process for some time, and returns those that were not freed.
/// `pauses` notes the time for which the process is stopped.
pub(crate) fn profile(
    pid: Pid,
    time: Duration,
    max_pause: Duration,
    pauses: &PauseMeter,
) -> anyhow::Result<AllocationProfile> {
    let folder = PrivateFolder::create(pid).context("cannot create a folder for the recording")?;
    let file = folder.0.join("heap.pwh");
    let record =
        RecordArgs { output: Some(file.clone()), sample: Some(PROFILE_BYTES), mmap: false };
    let attach = HeapAttach { pid: pid.0, time: Some(time), record, follow: false, max_pause };
    let recorded = record_until_the_end(&attach, pauses)?;
    // The recording is a temporary file, so the error does not name it.
    if recorded.finished.is_empty() {
        bail!("the process ended, or runs another program");
    }
    let recording = super::open(&file)?;
    let mut rows: Vec<AllocationProfileRow> = recording
        .sites
        .iter()
        .map(|site| AllocationProfileRow {
            stack: site.stack,
            live: Bytes(site.leaked().bytes),
            live_blocks: site.leaked().blocks,
            allocated: Bytes(site.allocated.bytes),
        })
        .collect();
    rows.sort_by_key(|row| Reverse((row.live, row.allocated)));
    rows.truncate(MAX_PROFILE_ROWS);
    Ok(AllocationProfile {
        took_ns: recording.took_ns,
        every_bytes: recording.every_bytes,
        frames: recording.frames,
        stacks: recording.stacks,
        rows,
    })
}

/// A folder that only this user can enter, removed at the end.
struct PrivateFolder(PathBuf);

impl PrivateFolder {
    fn create(pid: Pid) -> io::Result<PrivateFolder> {
        let name = format!("pagewise-diagnose-{}-{pid}", std::process::id());
        let path = std::env::temp_dir().join(name);
        // Fails if the folder exists: another user may have made it.
        DirBuilder::new().mode(0o700).create(&path)?;
        Ok(PrivateFolder(path))
    }
}

impl Drop for PrivateFolder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// The recordings that were written, the number of processes that loaded the recorder, and the
/// number of processes that were refused.
struct RecordedFiles {
    finished: Vec<Finished>,
    greeted: usize,
    refused: usize,
}

/// Records until the time is over, a signal interrupts, or the process ends.
pub(crate) fn run(args: &HeapAttach) -> anyhow::Result<()> {
    let RecordedFiles { finished, greeted, refused } =
        record_until_the_end(args, &PauseMeter::default())?;
    tell(&finished, greeted, refused, &[], false);
    Ok(())
}

fn record_until_the_end(args: &HeapAttach, pauses: &PauseMeter) -> anyhow::Result<RecordedFiles> {
    let root = ProcRoot::live();
    let pid = args.pid;
    let program = program_of(&root, pid)?;
    let file = args.record.output.clone().unwrap_or_else(|| usual_name(&program, pid));
    // A signal must not end pagewise before the hooks are removed from the target.
    let interrupts = NotedInterrupts::note_all();
    let request = CollectRequest {
        file: file.clone(),
        every_bytes: args.record.sample,
        follow: args.follow,
        mappings: args.record.mmap,
        // Existing pools have decided already whether they report to a recorder.
        pools: false,
        library: the_library()?,
    };
    let mut collector = Collector::open(request)?;
    collector.expect(pid, file);
    // The keeper, which removes the recorder if pagewise is killed, starts before the target is
    // changed.
    let mut keeper = KeeperProcess::start();
    keeper.note_heaps(&[pid]);
    pause::announce(&root, Pid(pid));
    let begun = Attached::begin(&mut collector, pid, args.max_pause, pauses, &mut keeper);
    let attached = match begun {
        Ok(attached) => attached,
        Err(error) => {
            keeper.leave_the_rest();
            return Err(error.into());
        }
    };
    note_begin(format_args!("the heap of process {pid}"), args.time);
    let deadline = args.time.map(|time| Instant::now() + time);
    let left = || {
        if interrupts.came() || has_ended(&root, pid) {
            return Duration::ZERO;
        }
        deadline.map_or(Duration::MAX, |it| it.saturating_duration_since(Instant::now()))
    };
    let recorded = collect(&mut collector, &mut keeper, left);
    collector.note_blocks();
    // The hooks are removed even if `recorded` is an error; the error is returned afterwards.
    let (ended, stays) = detach(attached, &collector.children(), keeper);
    let ended = ended?;
    recorded?;
    let how = match ended {
        LeftBehind::Whole | LeftBehind::MemoryStays => LogEnding::Detached,
        LeftBehind::NotThere if has_ended(&root, pid) => LogEnding::Gone,
        LeftBehind::NotThere => LogEnding::Replaced,
    };
    if stays {
        note(format_args!(
            "a thread of process {pid}, or of a child of it, has not left the recorder yet: the recorder's memory stays mapped until it does; a process \
             of pagewise waits 90 s for that, and `pagewise keep` unmaps it later"
        ));
    }
    let library = recorder_addresses(&root, pid);
    if !library.is_zero() && !stays {
        note(format_args!(
            "the recorder library stays loaded in process {pid}, off: {} KiB of addresses; all other memory of the recording is unmapped",
            library.0.div_ceil(1 << 10)
        ));
    }
    let (greeted, refused) = collector.greeted();
    tell_not_recorded(&collector);
    Ok(RecordedFiles { finished: collector.finish(how)?, greeted, refused })
}
