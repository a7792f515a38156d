//! Collects the counts of recorders in programs, and writes them into files.
//!
//! A recorder connects to a socket and sends the file descriptor of its tables. From then on the
//! program need not respond: even if the program is killed, its tables remain until the collector
//! has read them for the last time.

use std::ffi::{OsStr, OsString};
use std::fs::{self, File};
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::MetadataExt;
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use pagewise_heaplog::recording::{
    Begin, LogAmount, LogBlock, LogEnd, LogEnding, LogLayout, LogLiveTree, LogSnapshot,
};
use pagewise_heaplog::tables::{self, greeting, header};
use pagewise_model::Pid;
use pagewise_model::units::nanoseconds;
use pagewise_proc::ProcRoot;

use crate::error::HeapError;
use crate::hook::{self, Hooked, LeftOut, Why};
use crate::layout;
use crate::library::RecorderLibrary;
use crate::memory;
use crate::names::Nameless;
use crate::output::{OutputFate, RecordingOutput};
use crate::rendezvous::{Client, Clients, Heard, Meeting};
use crate::tables::{CountedState, SharedTables};

/// Parameters of a recording.
#[derive(Clone, Debug)]
pub struct CollectRequest {
    /// The file that is written; see [`Collector::expect`].
    pub file: PathBuf,
    /// Mean number of bytes between samples; `None` to record every call.
    pub every_bytes: Option<u64>,
    /// True if children are recorded too, each into a file of its own.
    pub follow: bool,
    /// True to record mappings that the program itself creates by `mmap` and similar calls.
    pub mappings: bool,
    /// True if blocks of pagewise's own allocators are recorded.
    pub pools: bool,
    /// Location of the recorder.
    pub library: RecorderLibrary,
}

/// Waits for recorders, and collects their counts.
#[derive(Debug)]
pub struct Collector {
    request: CollectRequest,
    meeting: Meeting,
    listener: UnixListener,
    root: ProcRoot,
    /// PID of the process that was started or attached to; other recorded processes are its
    /// descendants.
    first: Option<u32>,
    /// Clients that have connected but not sent their request yet.
    coming: Clients,
    running: Vec<CollectedProcess>,
    finished: Vec<Finished>,
    /// True if the process ran before the recording began.
    attaches: bool,
    /// True while connections cannot be accepted.
    is_deaf: bool,
    greeted: usize,
    refused: usize,
    without_tables: Vec<u32>,
    not_hooked: Vec<(Vec<u8>, Why)>,
    left_out: Vec<LeftOut>,
    nameless: Vec<Nameless>,
}

/// A recording that has ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Finished {
    /// PID of the process.
    pub pid: u32,
    /// Path of the recording.
    pub file: PathBuf,
    /// Size of the file in bytes.
    pub bytes: u64,
    /// Cause of the end of the recording.
    pub how: LogEnding,
    /// Amount of all allocations.
    pub allocated: LogAmount,
    /// Live amount at the peak.
    pub peak: LogAmount,
    /// Live amount at the end.
    pub live: LogAmount,
    /// Reason why the recorder ended before its program; `None` if it did not.
    pub trouble: Option<RecorderTrouble>,
    /// True if the allocator has an `operator new` of its own, whose calls are not recorded.
    pub without_new: bool,
    /// True if the program has damaged the recorder's tables; the recording ends before the damage.
    pub broken: bool,
    /// True if the process executed another program, which did not load the recorder.
    pub became_another: bool,
}

impl Finished {
    /// A recording without counts.
    fn nothing(pid: u32, file: PathBuf, bytes: u64, how: LogEnding) -> Finished {
        let none = LogAmount::default();
        Finished {
            pid,
            file,
            bytes,
            how,
            allocated: none,
            peak: none,
            live: none,
            trouble: None,
            without_new: false,
            broken: false,
            became_another: false,
        }
    }
}

/// Reason why a recorder ended before its program.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RecorderTrouble {
    /// The recorder had no memory for its tables, so nothing was recorded.
    Memory,
    /// The program entered strict seccomp mode, which forbids system calls that the recorder needs,
    /// so later events were not recorded.
    Calls,
    /// The collector did not answer in time, so nothing was recorded.
    Late,
}

impl RecorderTrouble {
    fn from_head(word: u64) -> Option<RecorderTrouble> {
        match word {
            tables::trouble::MEMORY => Some(RecorderTrouble::Memory),
            tables::trouble::CALLS => Some(RecorderTrouble::Calls),
            tables::trouble::LATE => Some(RecorderTrouble::Late),
            _ => None,
        }
    }
}

/// Maximum time for answering connected recorders in one step.
const ANSWERING: Duration = Duration::from_millis(50);
/// Initial time between snapshots; it doubles after every [`MOMENTS`] snapshots.
pub(crate) const FIRST: Duration = Duration::from_millis(5);
pub(crate) const MOMENTS: u32 = 40;
/// Maximum number of reported processes that could not be recorded.
const MAX_TOLD: usize = 100;
/// Maximum fraction of the time that snapshots may take: one divided by this number.
const SHARE: u32 = 50;
/// Initial time between layout snapshots; it doubles after every [`LAYOUTS`] layout snapshots.
const FIRST_LAYOUT: Duration = Duration::from_millis(100);
const LAYOUTS: u32 = 20;
/// A layout snapshot is taken early if the live or the unused bytes exceed their previous maximum
/// by this fraction: one divided by this number.
const MORE: u64 = 4;
/// Maximum fraction of the time that layout snapshots may take: one divided by the first number;
/// with sampling, which must cost almost nothing, one divided by the second number.
const LAYOUT_SHARE: u32 = 50;
const SAMPLED_SHARE: u32 = 200;
/// Initial maximum of the live bytes and of the unused bytes, so that smaller heaps cause no early
/// layout snapshot.
const LITTLE: u64 = 1 << 20;
/// Maximum number of allocation sites in a snapshot. A site is listed only if it has at least one
/// `SMALLEST`-th of the live bytes.
const SITES: usize = 1000;
const SMALLEST: u64 = 2000;

/// Adds each element that the list lacks.
fn add_new<T: PartialEq>(list: &mut Vec<T>, more: impl IntoIterator<Item = T>) {
    for one in more {
        if !list.contains(&one) {
            list.push(one);
        }
    }
}

impl Collector {
    /// Creates the socket to which recorders connect.
    ///
    /// # Errors
    /// Returns an error if no socket can be created.
    pub fn open(request: CollectRequest) -> Result<Collector, HeapError> {
        let (meeting, listener) = Meeting::open(&request.library)?;
        Ok(Collector {
            request,
            meeting,
            listener,
            root: ProcRoot::live(),
            first: None,
            coming: Clients::default(),
            running: Vec::new(),
            finished: Vec::new(),
            attaches: false,
            is_deaf: false,
            greeted: 0,
            refused: 0,
            without_tables: Vec::new(),
            not_hooked: Vec::new(),
            left_out: Vec::new(),
            nameless: Vec::new(),
        })
    }

    /// Environment variables for a program that is to be recorded, in addition to those of this
    /// process.
    pub fn environment(&self) -> Vec<(OsString, OsString)> {
        self.meeting.environment(&self.settings_text())
    }

    /// Sets the process to record, and the file of its recording.
    pub fn expect(&mut self, pid: u32, file: PathBuf) {
        self.first = Some(pid);
        self.request.file = file;
    }

    /// Path of the recorder.
    pub(crate) fn library(&self) -> &Path {
        self.meeting.recorder()
    }

    /// Settings for a recorder, as the value of an environment variable.
    pub(crate) fn settings(&self) -> OsString {
        self.meeting.settings(&self.settings_text())
    }

    /// Formats the parameters of the recording as text.
    fn settings_text(&self) -> String {
        let every = self.request.every_bytes.unwrap_or(0);
        let follow = u8::from(self.request.follow);
        let maps = u8::from(self.request.mappings);
        let pools = u8::from(self.request.pools);
        format!("every={every},follow={follow},maps={maps},pools={pools}")
    }

    /// Makes the socket and the recorder available to a process with another root directory, in a
    /// folder in that root.
    pub(crate) fn move_into(&mut self, root: &ProcRoot, pid: u32) -> io::Result<()> {
        let library = &self.request.library;
        (self.meeting, self.listener) = Meeting::open_in_root(library, root, pid)?;
        Ok(())
    }

    /// Removes the folder in the target's root after the target has connected, unless its children
    /// are recorded, too.
    pub(crate) fn has_come(&mut self) {
        if !self.request.follow {
            self.meeting.clear_guest();
        }
    }

    /// Path of the socket.
    pub(crate) fn socket(&self) -> &Path {
        self.meeting.socket()
    }

    /// Permits a running process, which may be another user's, to connect to the socket.
    pub(crate) fn open_to(&mut self, root: &ProcRoot, pid: u32) -> Result<(), HeapError> {
        self.attaches = true;
        let owner = fs::metadata(root.file(Pid(pid), "mem")).map_err(HeapError::Socket)?;
        if owner.uid() == self.meeting.owner().map_err(HeapError::Socket)? {
            return Ok(());
        }
        self.meeting.invite(owner.uid())
    }

    /// The tables of a process.
    pub(crate) fn tables_of(&self, pid: u32) -> Option<&SharedTables> {
        self.running.iter().find(|recorded| recorded.pid == pid).map(|recorded| &recorded.tables)
    }

    /// PIDs of the children that are being recorded.
    pub fn children(&self) -> Vec<u32> {
        let pids = self.running.iter().map(|recorded| recorded.pid);
        pids.filter(|&pid| Some(pid) != self.first).collect()
    }

    /// A file descriptor that is readable when a recorder requests attention; `None` while
    /// connections cannot be accepted.
    pub fn attention(&self) -> Option<BorrowedFd<'_>> {
        // If connections cannot be accepted, a wait for a connection would return at once.
        (!self.is_deaf).then(|| self.listener.as_fd())
    }

    /// PIDs of processes that had no memory for the recorder's tables.
    pub fn without_tables(&self) -> &[u32] {
        &self.without_tables
    }

    /// Number of recorders that were answered, and number of recorders that were refused among
    /// them.
    pub fn greeted(&self) -> (usize, usize) {
        (self.greeted, self.refused)
    }

    /// Programs with a `malloc` of their own that could not be recorded, and the reason for each.
    pub fn not_hooked(&self) -> &[(Vec<u8>, Why)] {
        &self.not_hooked
    }

    /// Allocators that are not recorded although other allocators of the same program are recorded.
    pub fn left_out(&self) -> &[LeftOut] {
        &self.left_out
    }

    /// Allocators in files that have no symbols of the allocator's functions.
    pub fn nameless(&self) -> &[Nameless] {
        &self.nameless
    }

    /// Answers new recorders, and takes due snapshots. Returns the time until the next snapshot.
    ///
    /// # Errors
    /// Returns an error if a file cannot be written, or tables cannot be read.
    pub fn step(&mut self) -> Result<Duration, HeapError> {
        self.is_deaf = !self.meeting.accept(&self.listener, self.first, &mut self.coming);
        let until = Instant::now() + ANSWERING;
        for mut client in self.coming.all() {
            // A client that sends nothing takes almost no time here. Clients that remain when the
            // time limit is reached wait for the next step.
            let heard = match Instant::now() < until {
                true => self.hear(&mut client)?,
                false => Heard::Later,
            };
            self.coming.back(client, heard);
        }
        // The caller does not wait for data of connected clients, so the next step follows after
        // one millisecond while there are such clients.
        let soon = Duration::from_millis(if self.coming.is_empty() { 200 } else { 1 });
        let mut next = soon;
        let now = Instant::now();
        let mut gone = Vec::new();
        for (index, recorded) in self.running.iter_mut().enumerate() {
            if Some(recorded.pid) != self.first && !lives(&self.root, recorded.pid) {
                gone.push(index);
                continue;
            }
            if recorded.next <= now
                && let Err(error) = recorded.look(&self.root)
            {
                // An error about the tables of a child does not end the other recordings.
                if Some(recorded.pid) == self.first || !matches!(error, HeapError::Tables { .. }) {
                    return Err(error);
                }
                gone.push(index);
                continue;
            }
            next = next.min(recorded.next.saturating_duration_since(now));
        }
        for index in gone.into_iter().rev() {
            let recorded = self.running.swap_remove(index);
            let finished = self.end(recorded, LogEnding::Gone, OutputFate::Keep)?;
            self.finished.push(finished);
        }
        Ok(next)
    }

    fn hear(&mut self, client: &mut Client) -> Result<Heard, HeapError> {
        match hello(client) {
            Ok(Some((parent, file))) => self.greet(client, parent, file)?,
            Ok(None) => return Ok(Heard::More),
            // The client has gone, or is not a recorder.
            Err(_) => {}
        }
        Ok(Heard::Done)
    }

    fn greet(&mut self, client: &Client, parent: u32, file: File) -> Result<(), HeapError> {
        let pid = client.pid;
        if file.metadata().is_ok_and(|file| file.len() == 0) {
            if !self.without_tables.contains(&pid) && self.without_tables.len() < MAX_TOLD {
                self.without_tables.push(pid);
            }
            return Ok(());
        }
        self.greeted += 1;
        let is_first = self.first.is_none_or(|first| first == pid);
        if !is_first && !self.request.follow {
            self.refused += 1;
            client.answer(greeting::NO);
            return Ok(());
        }
        self.end_replaced(pid, is_first)?;
        let create = |begin: &Begin| match is_first {
            true => RecordingOutput::create(&self.request.file, begin),
            false => RecordingOutput::create_new(&self.beside(pid), begin),
        };
        let unread = |source| HeapError::Tables { pid, source };
        let begun = CollectedProcess::begin(pid, parent, create, file, &self.root, self.attaches);
        let recorded = match begun {
            // A program that is not a recorder must not end the other recordings.
            Err(_) if !is_first => {
                self.refused += 1;
                return Ok(());
            }
            Ok(Err(Unrecorded::NotHooked(program, why))) => {
                if self.not_hooked.len() < MAX_TOLD {
                    self.not_hooked.push((program, why));
                }
                client.answer(greeting::NO);
                return Ok(());
            }
            Ok(Err(Unrecorded::File(error))) => return Err(error),
            recorded => recorded.map_err(unread)?.ok(),
        };
        let Some((recorded, hooked)) = recorded else { return Ok(()) };
        add_new(&mut self.left_out, hooked.left_out);
        add_new(&mut self.nameless, hooked.nameless);
        // Other processes check by these words whether this collector still runs.
        if let Some(us) = Identity::of_process(&self.root, std::process::id()) {
            let words = [us.pid.into(), us.started, us.namespace];
            recorded.tables.answer(tables::collector::PID, &words).map_err(unread)?;
        }
        self.running.push(recorded);
        client.answer(greeting::YES);
        Ok(())
    }

    /// Ends the recording of a process with this PID, whose program another program has replaced by
    /// `execve`.
    fn end_replaced(&mut self, pid: u32, is_first: bool) -> Result<(), HeapError> {
        let Some(index) = self.running.iter().position(|recorded| recorded.pid == pid) else {
            return Ok(());
        };
        let recorded = self.running.swap_remove(index);
        let then = match self.request.follow {
            // The recording of a program before its `execve` gets a file name of its own.
            true if is_first => OutputFate::Move(self.beside(pid)),
            true => OutputFate::Keep,
            false => OutputFate::Discard,
        };
        let finished = self.end(recorded, LogEnding::Replaced, then)?;
        if self.request.follow {
            self.finished.push(finished);
        }
        Ok(())
    }

    /// Path for the recording of another process. A file with this path may exist already.
    fn beside(&self, pid: u32) -> PathBuf {
        let mut path = self.request.file.clone().into_os_string();
        path.push(format!(".{pid}"));
        path.into()
    }

    /// Ends a recording. If the tables of a child cannot be read, its file ends as if cut off.
    fn end(
        &self,
        recorded: CollectedProcess,
        how: LogEnding,
        then: OutputFate,
    ) -> Result<Finished, HeapError> {
        let is_first = Some(recorded.pid) == self.first;
        let (pid, path) = (recorded.pid, recorded.output.path().to_owned());
        match recorded.finish(how, then, &self.root) {
            Err(HeapError::Tables { .. }) if !is_first => {
                let bytes = fs::metadata(&path).map_or(0, |file| file.len());
                Ok(Finished { broken: true, ..Finished::nothing(pid, path, bytes, how) })
            }
            result => result,
        }
    }

    /// Stores the live blocks of all processes, which are written at the end of their recordings.
    /// Called before the recorders unmap their maps of live blocks.
    pub fn note_blocks(&mut self) {
        for recorded in &mut self.running {
            let blocks = layout::live_blocks(&self.root, Pid(recorded.pid), &recorded.tables);
            recorded.blocks = blocks.unwrap_or_default();
        }
    }

    /// Ends all recordings after the end of the first process. Returns the recordings; the
    /// recording of the first process comes first.
    ///
    /// # Errors
    /// Returns an error if a file cannot be written, or tables cannot be read.
    pub fn finish(mut self, how: LogEnding) -> Result<Vec<Finished>, HeapError> {
        /// Maximum number of further steps, which answer clients that connected before the end.
        const LAST_STEPS: usize = 20;
        for _ in 0..LAST_STEPS {
            self.step()?;
            if self.coming.is_empty() {
                break;
            }
        }
        let first = self.first;
        for recorded in std::mem::take(&mut self.running) {
            let ending = if Some(recorded.pid) == first {
                how
            } else if lives(&self.root, recorded.pid) {
                LogEnding::Detached
            } else {
                LogEnding::Gone
            };
            let finished = self.end(recorded, ending, OutputFate::Keep)?;
            self.finished.push(finished);
        }
        let mut finished = std::mem::take(&mut self.finished);
        finished.sort_by_key(|finished| finished.file != self.request.file);
        Ok(finished)
    }
}

/// Identity of a process: PID, start time in clock ticks, and inode of the PID namespace.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Identity {
    pid: u32,
    started: u64,
    namespace: u64,
}

impl Identity {
    fn of_process(root: &ProcRoot, pid: u32) -> Option<Identity> {
        let stat = pagewise_proc::stat::parse(&root.read(Pid(pid), "stat").ok()?).ok()?;
        let namespace = fs::metadata(root.file(Pid(pid), "ns/pid")).map_or(0, |it| it.ino());
        (!stat.has_ended()).then_some(Identity { pid, started: stat.start_ticks, namespace })
    }

    /// Decodes the identity that a collector has written into a recorder's tables.
    pub(crate) fn told([pid, started, namespace]: [u64; 3]) -> Option<Identity> {
        let pid = u32::try_from(pid).ok().filter(|&pid| pid != 0)?;
        Some(Identity { pid, started, namespace })
    }

    /// True if the process may still run. Processes of other PID namespaces are not visible, so the
    /// result is true for them.
    pub(crate) fn may_live(self, root: &ProcRoot) -> bool {
        let ours = Identity::of_process(root, std::process::id()).map(|us| us.namespace);
        ours != Some(self.namespace) || Identity::of_process(root, self.pid) == Some(self)
    }
}

/// True if a process has not ended.
pub(crate) fn lives(root: &ProcRoot, pid: u32) -> bool {
    let stat =
        root.read(Pid(pid), "stat").ok().and_then(|text| pagewise_proc::stat::parse(&text).ok());
    stat.is_some_and(|stat| !stat.has_ended())
}

/// Receives the request of a recorder: the PID of its parent, and the file of its tables. `None`
/// until the request is complete.
///
/// # Errors
/// Returns an error if the client is not a recorder.
pub(crate) fn hello(client: &mut Client) -> io::Result<Option<(u32, File)>> {
    const LENGTH: usize = 16;
    let broken = || io::Error::from(io::ErrorKind::InvalidData);
    let lives = client.receive(LENGTH);
    if client.bytes.len() < LENGTH {
        return if lives { Ok(None) } else { Err(broken()) };
    }
    let number = |at: usize| client.bytes[at..at + 4].try_into().map_or(0, u32::from_ne_bytes);
    let (said, parent) = (number(8), number(12));
    if client.bytes[..8] != greeting::HELLO {
        return Err(broken());
    }
    // A process in another PID namespace sends the PIDs of that namespace, so its parent is unknown
    // here.
    let parent = if client.pid == said { parent } else { 0 };
    let file = client.file.take().ok_or_else(broken)?;
    Ok(Some((parent, file.into())))
}

/// A process that is recorded.
#[derive(Debug)]
struct CollectedProcess {
    pid: u32,
    program: Vec<u8>,
    /// True if an `operator new` of the allocator is recorded.
    has_new: bool,
    tables: SharedTables,
    output: RecordingOutput,
    began: Instant,
    /// Time of the next snapshot, and time between snapshots.
    next: Instant,
    step: Duration,
    moments: u32,
    /// Age of the recording at which all counts are written again.
    checkpoint: Duration,
    peak: u32,
    peak_at_ns: Option<u64>,
    /// The snapshot with the largest live amount among those that were taken at a peak.
    highest: Highest,
    /// Device and inode of the executed file.
    executable: Option<(u64, u64)>,
    /// True if the process executes another program, whose memory is not recorded.
    became_another: bool,
    attached: bool,
    layouts: Layouts,
    /// Live blocks, stored before the recorder left the process.
    blocks: Vec<LogBlock>,
}

/// Schedule of the layout snapshots.
#[derive(Debug)]
struct Layouts {
    before: layout::LayoutHistory,
    /// Time of the next regular snapshot.
    next: Instant,
    step: Duration,
    /// Earliest time of the next snapshot, which limits the overhead.
    not_before: Instant,
    taken: u32,
    /// Maximum fraction of the time that snapshots may take: one divided by this number.
    share: u32,
    /// Maximum of the live bytes, and of the unused bytes of the footprint, over all layout
    /// snapshots.
    most: (u64, u64),
}

impl Layouts {
    fn begin(now: Instant, is_sampled: bool) -> Layouts {
        Layouts {
            before: layout::LayoutHistory::default(),
            next: now + FIRST_LAYOUT,
            step: FIRST_LAYOUT,
            not_before: now,
            taken: 0,
            share: if is_sampled { SAMPLED_SHARE } else { LAYOUT_SHARE },
            most: (LITTLE, LITTLE),
        }
    }

    /// True if a snapshot is due, given the live bytes and the footprint.
    fn is_time(&self, now: Instant, live: u64, held: Option<u64>) -> bool {
        let grew = |now: u64, most: u64| now >= most.saturating_add(most / MORE);
        let unused = held.unwrap_or(0).saturating_sub(live);
        now >= self.not_before
            && (now >= self.next || grew(live, self.most.0) || grew(unused, self.most.1))
    }

    fn note(&mut self, now: Instant, took: Duration, live: u64, held: Option<u64>) {
        self.taken += 1;
        if self.taken.is_multiple_of(LAYOUTS) {
            self.step *= 2;
        }
        self.next = now + self.step;
        self.not_before = now + took * self.share;
        let unused = held.unwrap_or(0).saturating_sub(live);
        self.most = (self.most.0.max(live), self.most.1.max(unused));
    }
}

/// Snapshot with the largest live amount.
#[derive(Debug, Default)]
struct Highest {
    peak: LogAmount,
    live: Vec<LogAmount>,
    time_ns: u64,
}

impl CollectedProcess {
    /// Begins a recording. The outer error is an error of the tables, the inner result an error of
    /// the recording.
    fn begin(
        pid: u32,
        parent: u32,
        create: impl FnOnce(&Begin) -> Result<RecordingOutput, HeapError>,
        file: File,
        root: &ProcRoot,
        attached: bool,
    ) -> io::Result<Result<(CollectedProcess, Hooked), Unrecorded>> {
        let tables = SharedTables::open(file)?;
        let program = fs::read_link(root.file(Pid(pid), "exe"))
            .map(|path| path.into_os_string().into_vec())
            .unwrap_or_default();
        let hooked = match hook::answer(&tables, pid, root, attached)? {
            Ok(hooked) => hooked,
            Err(why) => return Ok(Err(Unrecorded::NotHooked(program, why))),
        };
        let command = root.read(Pid(pid), "cmdline").unwrap_or_default();
        let command = command.strip_suffix(b"\0").unwrap_or(&command);
        let begin = Begin {
            pid,
            parent,
            began_ns: tables.head(header::BEGAN)?,
            page_size: rustix::param::page_size() as u64,
            every_bytes: tables.head(header::EVERY_BYTES)?,
            command: command.split(|&byte| byte == 0).map(<[u8]>::to_vec).collect(),
            program: program.clone(),
            allocator: allocator(&tables, &program, &hooked)?,
            lifetimes_every: u32::try_from(tables.head(header::LIFETIMES_EVERY)?).unwrap_or(0),
            attached,
        };
        let output = match create(&begin) {
            Ok(output) => output,
            Err(error) => return Ok(Err(Unrecorded::File(error))),
        };
        let now = Instant::now();
        let recorded = CollectedProcess {
            pid,
            program,
            has_new: hooked.has_new,
            tables,
            output,
            began: now,
            next: now + FIRST,
            step: FIRST,
            moments: 0,
            checkpoint: Duration::from_secs(1),
            peak: 0,
            peak_at_ns: None,
            highest: Highest::default(),
            executable: program_file(root, pid),
            became_another: false,
            attached,
            layouts: Layouts::begin(now, begin.every_bytes != 0),
            blocks: Vec::new(),
        };
        Ok(Ok((recorded, hooked)))
    }

    fn error(&self, source: io::Error) -> HeapError {
        HeapError::Tables { pid: self.pid, source }
    }

    /// Takes a snapshot.
    fn look(&mut self, root: &ProcRoot) -> Result<(), HeapError> {
        let before = Instant::now();
        let now = program_file(root, self.pid);
        if self.became_another || (now.is_some() && now != self.executable) {
            self.became_another = true;
            self.next = before + Duration::from_secs(1);
            return Ok(());
        }
        let spent = cpu_time();
        let time = before.duration_since(self.began);
        let mut state = self.tables.state(true).map_err(|source| self.error(source))?;
        self.settle_peak(&mut state, time);
        let memory = memory::read(root, Pid(self.pid), &self.tables, state.mapped);
        self.add(&state, time, &memory)?;
        let state_live = state.all_live();
        if time >= self.checkpoint {
            self.checkpoint = time * 2;
            self.counts(state, time)?;
        }
        self.moments += 1;
        if self.moments.is_multiple_of(MOMENTS) {
            self.step *= 2;
        }
        let took = cpu_time().saturating_sub(spent);
        self.next = before + self.step.max(took * SHARE);
        let live = state_live.bytes;
        if self.layouts.is_time(before, live, memory.held) {
            self.layout(root)?;
            let took = cpu_time().saturating_sub(spent);
            self.layouts.note(Instant::now(), took, live, memory.held);
        }
        Ok(())
    }

    /// Takes a layout snapshot.
    fn layout(&mut self, root: &ProcRoot) -> Result<(), HeapError> {
        let CollectedProcess { pid, tables, attached, layouts, .. } = self;
        let before = &mut layouts.before;
        let Some(layout) = layout::read(root, Pid(*pid), tables, *attached, before) else {
            return Ok(());
        };
        let time = self.began.elapsed();
        // The layout may refer to sites that are newer than the last snapshot.
        let new =
            tables.news(&self.program).map_err(|source| HeapError::Tables { pid: *pid, source })?;
        let layout = LogLayout { time_ns: nanoseconds(time), ..tables.known_only(layout) };
        let written =
            new.write(&mut self.output.writer).and_then(|()| self.output.writer.layout(&layout));
        written.map_err(|source| self.output.error(source))
    }

    /// Replaces the recorder's peak by the highest snapshot if this snapshot has more live bytes.
    /// With several threads, the recorder's peak is approximate.
    fn settle_peak(&mut self, state: &mut CountedState, time: Duration) {
        let peak = &mut state.counts.peak;
        if self.highest.peak.bytes > peak.bytes {
            *peak = self.highest.peak;
            let live =
                self.highest.live.iter().copied().chain(std::iter::repeat(LogAmount::default()));
            for (site, live) in state.counts.sites.iter_mut().zip(live) {
                site.at_peak = live;
            }
            self.peak = state.peak;
            self.peak_at_ns = Some(self.highest.time_ns);
            state.is_peak = false;
        } else if state.is_peak {
            let time_ns = nanoseconds(time);
            self.highest = Highest { peak: *peak, live: state.live.clone(), time_ns };
        }
    }

    /// Writes a snapshot.
    fn add(
        &mut self,
        state: &CountedState,
        time: Duration,
        memory: &memory::MemoryCopy,
    ) -> Result<(), HeapError> {
        let time_ns = nanoseconds(time);
        if state.peak != self.peak || state.is_peak {
            self.peak = state.peak;
            self.peak_at_ns = Some(time_ns);
        }
        let new = self.tables.news(&self.program).map_err(|source| self.error(source))?;
        let moment = LogSnapshot {
            time_ns,
            live: state.all_live(),
            allocated: state.all_allocated(),
            held: memory.held,
            resident: memory.resident,
            tree: Some(tree(&state.live)),
            older_freed: state.unknown_freed.filter(|_| self.attached),
        };
        let written =
            new.write(&mut self.output.writer).and_then(|()| self.output.writer.moment(&moment));
        written.map_err(|source| self.output.error(source))
    }

    fn counts(&mut self, state: CountedState, time: Duration) -> Result<(), HeapError> {
        let mut counts = state.counts;
        counts.time_ns = nanoseconds(time);
        counts.peak_at_ns = self.peak_at_ns;
        self.output.writer.counts(&counts).map_err(|source| self.output.error(source))
    }

    /// Writes the final state, and ends the file.
    fn finish(
        mut self,
        how: LogEnding,
        then: OutputFate,
        root: &ProcRoot,
    ) -> Result<Finished, HeapError> {
        let time = self.began.elapsed();
        let how = if self.became_another { LogEnding::Replaced } else { how };
        let runs_on = how == LogEnding::Detached;
        let mut state = self.tables.state(runs_on).map_err(|source| self.error(source))?;
        self.settle_peak(&mut state, time);
        let trouble = self.tables.head(header::TROUBLE).map_err(|source| self.error(source))?;
        let own_new = self.tables.head(header::OWN_NEW).map_err(|source| self.error(source))?;
        self.add(&state, time, &memory::MemoryCopy::default())?;
        if runs_on {
            self.layout(root)?;
            let blocks = self.tables.known_blocks(std::mem::take(&mut self.blocks));
            let written = self.output.writer.blocks(&blocks);
            written.map_err(|source| self.output.error(source))?;
        }
        let (allocated, peak, live) = (state.all_allocated(), state.counts.peak, state.all_live());
        self.counts(state, time)?;
        let CollectedProcess { pid, output, has_new, became_another, .. } = self;
        let (path, bytes) = output.end(&LogEnd { time_ns: nanoseconds(time), how }, then)?;
        let without_new = own_new != 0 && !has_new;
        let nothing = Finished::nothing(pid, path, bytes, how);
        Ok(Finished {
            allocated,
            peak,
            live,
            trouble: RecorderTrouble::from_head(trouble),
            without_new,
            became_another,
            ..nothing
        })
    }
}

/// Device and inode of the file that a process executes.
pub(crate) fn program_file(root: &ProcRoot, pid: u32) -> Option<(u64, u64)> {
    fs::metadata(root.file(Pid(pid), "exe")).ok().map(|file| (file.dev(), file.ino()))
}

/// Reason why a process is not recorded.
enum Unrecorded {
    /// Its `malloc` cannot be hooked: path of the program, and reason.
    NotHooked(Vec<u8>, Why),
    File(HeapError),
}

/// Allocators in use: the file that provides `malloc`, and allocators under other names.
fn allocator(tables: &SharedTables, program: &[u8], hooked: &Hooked) -> io::Result<Vec<u8>> {
    let mut allocator = tables.allocator()?;
    if allocator.is_empty() {
        allocator = program.to_vec();
    }
    let real = |path: &[u8]| fs::canonicalize(OsStr::from_bytes(path)).ok();
    let usual = real(&allocator);
    for (name, file) in &hooked.allocators {
        // The file that provides `malloc` is already in the list, perhaps by the path of a symbolic
        // link.
        if usual.is_none() || real(file.as_bytes()) != usual {
            allocator.extend([b", ", name.as_bytes(), b" of ", file.as_bytes()].concat());
        }
    }
    Ok(allocator)
}

/// CPU time of this thread.
fn cpu_time() -> Duration {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
    Duration::try_from(time).unwrap_or_default()
}

/// Live amount by site, for the largest sites.
pub(crate) fn tree(live: &[LogAmount]) -> LogLiveTree {
    let all: u64 = live.iter().map(|amount| amount.bytes).sum();
    let least = (all / SMALLEST).max(1);
    let numbered = (0_u32..).zip(live.iter().copied());
    let mut sites: Vec<_> = numbered.filter(|(_, amount)| amount.bytes >= least).collect();
    sites.sort_by_key(|&(site, amount)| (std::cmp::Reverse(amount.bytes), site));
    sites.truncate(SITES);
    let mut others =
        LogAmount { bytes: all, blocks: live.iter().map(|amount| amount.blocks).sum() };
    for (_, amount) in &sites {
        others.bytes -= amount.bytes;
        others.blocks = others.blocks.saturating_sub(amount.blocks);
    }
    LogLiveTree { sites, others }
}
