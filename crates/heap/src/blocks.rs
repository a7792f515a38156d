//! Finds the heap block that contained an address at a given time, from the log of allocations and
//! frees that the recorder in the program writes.
//!
//! Each query has a time, and queries are made in order of time. The answer is valid for the
//! query's time, even if the block was freed or the process has ended since then.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::ffi::OsString;
use std::fs::{self, File};
use std::io;
use std::os::unix::ffi::OsStringExt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};

use pagewise_heaplog::recording::{Begin, LogRecording};
use pagewise_heaplog::tables::{greeting, header, trouble};
use pagewise_model::faults::{Allocation, Owner};
use pagewise_model::traced::Frame;
use pagewise_model::{Absent, Name, Pid};
use pagewise_proc::ProcRoot;
use pagewise_trace::FileSymbols;
use pagewise_trace::faults::{FaultsOutcome, HeapBlocks};

use crate::collector::hello;
use crate::error::HeapError;
use crate::hook::{self, Why};
use crate::library::{NAME, RecorderLibrary};
use crate::rendezvous::{Answered, Client, Heard};
use crate::tables::{Logged, SharedTables};

/// Maximum number of live blocks, so that a forged log cannot exhaust memory. Each block takes some
/// 40 bytes.
const MAX_LIVE_BLOCKS: usize = 1 << 19;
/// Maximum number of allocating call stacks; all further call stacks are counted as one. Each takes
/// some 100 bytes, and memory for its frames at the end.
const ALLOCATIONS: usize = 1 << 14;

/// Functions that the recorder interposes although they do not allocate: page faults in them are
/// not caused by the allocator.
const PASSES: [&str; 4] = ["pthread_create", "thrd_create", "dlclose", "prctl"];

/// Follows the blocks of one process.
#[derive(Debug)]
pub struct LiveBlocks {
    meeting: Answered,
    least: u64,
    expected: Arc<AtomicU32>,
    refused: Arc<AtomicUsize>,
    heard: Receiver<Result<RecordedProgram, Why>>,
    not_hooked: Option<Why>,
    /// The programs that the process has executed, in order.
    programs: Vec<RecordedProgram>,
    /// Events that may be later than the next query, in order of time.
    waiting: VecDeque<TimedBlockEvent>,
    /// Times of the last two calls of `drain`, the newer time first. All queries up to the older
    /// time have been made.
    asked: [u64; 2],
    /// Index of the program that the process ran at the time of the last query.
    current: Option<usize>,
    /// The blocks that were live at the time of the last query, by address: the end address and the
    /// allocation number of each block.
    live: BTreeMap<u64, (u64, u32)>,
    numbers: HashMap<(usize, u32), u32>,
    allocations: Vec<Made>,
    lost: u64,
}

/// Blocks of one call stack.
#[derive(Clone, Copy, Debug)]
struct Made {
    program: usize,
    site: u32,
    blocks: u64,
    bytes: u64,
}

/// A program with a recorder.
#[derive(Debug)]
struct RecordedProgram {
    tables: SharedTables,
    path: Vec<u8>,
    began_ns: u64,
    /// Times of the first and the last lost entry of its log; `None` if no entry was lost.
    lost: Option<(u64, u64)>,
    is_broken: bool,
}

#[derive(Clone, Copy, Debug)]
struct TimedBlockEvent {
    time: u64,
    program: usize,
    what: BlockEvent,
}

#[derive(Clone, Copy, Debug)]
enum BlockEvent {
    /// Log entries were lost at this time, so the live blocks are unknown from here on.
    Lost,
    Logged(Logged),
}

impl LiveBlocks {
    /// Opens the socket for a recorder, which will report blocks of `least` bytes and more.
    ///
    /// # Errors
    /// Returns an error if no socket can be created.
    pub fn open(library: &RecorderLibrary, least: u64) -> Result<LiveBlocks, HeapError> {
        let (expected, refused) = <(Arc<_>, Arc<_>)>::default();
        let (sender, heard) = channel();
        let root = ProcRoot::live();
        let (whom, others) = (Arc::clone(&expected), Arc::clone(&refused));
        let meeting =
            Answered::open(library, move |client| answer(client, &root, &whom, &others, &sender))?;
        Ok(LiveBlocks {
            meeting,
            least: least.max(1),
            expected,
            refused,
            heard,
            not_hooked: None,
            programs: Vec::new(),
            waiting: VecDeque::new(),
            asked: [0; 2],
            current: None,
            live: BTreeMap::new(),
            numbers: HashMap::new(),
            allocations: Vec::new(),
            lost: 0,
        })
    }

    /// Environment variables for the program, in addition to those of this process.
    pub fn environment(&self) -> Vec<(OsString, OsString)> {
        self.meeting.environment(&format!("every=0,follow=0,log={}", self.least))
    }

    /// Sets the process whose recorder is accepted.
    pub fn expect(&self, pid: u32) {
        self.expected.store(pid, Ordering::Release);
    }

    fn next_if(&mut self, fits: impl Fn(&TimedBlockEvent) -> bool) -> Option<TimedBlockEvent> {
        let is_next = self.waiting.front().is_some_and(fits);
        if is_next { self.waiting.pop_front() } else { None }
    }

    /// Applies the events up to a time.
    fn advance(&mut self, time: u64) {
        while let Some(event) = self.next_if(|event| event.time <= time) {
            match event.what {
                BlockEvent::Lost => self.live.clear(),
                // This is the first entry of the next program; all entries of the previous program
                // were read before.
                BlockEvent::Logged(_) if self.current != Some(event.program) => {
                    self.live.clear();
                    self.current = Some(event.program);
                }
                BlockEvent::Logged(logged) => self.note(event.program, logged),
            }
        }
    }

    fn note(&mut self, program: usize, Logged { address, size, site, .. }: Logged) {
        let Some(site) = site else {
            self.live.remove(&address);
            return;
        };
        let Some(end) = address.checked_add(size) else { return };
        // Blocks that overlap the new block were freed without a report.
        while let Some((start, (before, _))) = self.live.range(..end).next_back()
            && (*before > address || *start == address)
        {
            let start = *start;
            self.live.remove(&start);
        }
        if self.live.len() >= MAX_LIVE_BLOCKS {
            self.live.clear();
            self.lost += 1;
        }
        let made = Made { program, site, blocks: 0, bytes: 0 };
        let known = self.numbers.get(&(program, site)).copied();
        let number = known.unwrap_or_else(|| {
            if self.allocations.len() >= ALLOCATIONS {
                return u32::MAX;
            }
            let next = u32::try_from(self.allocations.len()).unwrap_or(u32::MAX);
            self.allocations.push(made);
            self.numbers.insert((program, site), next);
            next
        });
        if let Some(made) = self.allocations.get_mut(number as usize) {
            made.blocks = made.blocks.saturating_add(1);
            made.bytes = made.bytes.saturating_add(size);
        }
        self.live.insert(address, (end, number));
    }

    /// Reads the new entries of a program's log.
    fn read(&mut self, number: usize) {
        let program = &mut self.programs[number];
        if program.is_broken {
            return;
        }
        let Ok(new) = program.tables.log() else {
            // The program has overwritten its log, so no later entry can be trusted.
            program.is_broken = true;
            self.lost += 1;
            self.waiting.push_back(TimedBlockEvent {
                time: 0,
                program: number,
                what: BlockEvent::Lost,
            });
            return;
        };
        let mut lost = new.lost;
        if let Some(window) = lost {
            program.lost = Some(window);
            self.lost += 1;
        }
        for entry in new.entries {
            if let Some((time, _)) = lost.take_if(|(first, _)| *first < entry.time) {
                self.waiting.push_back(TimedBlockEvent {
                    time,
                    program: number,
                    what: BlockEvent::Lost,
                });
            }
            // Entries between the first and the last lost entry are ignored, because frees and
            // allocations between them are missing.
            let is_between = |(first, last)| first < entry.time && entry.time <= last;
            if !program.lost.is_some_and(is_between) {
                let what = BlockEvent::Logged(entry);
                self.waiting.push_back(TimedBlockEvent { time: entry.time, program: number, what });
            }
        }
        if let Some((time, _)) = lost {
            self.waiting.push_back(TimedBlockEvent {
                time,
                program: number,
                what: BlockEvent::Lost,
            });
        }
    }

    /// Returns the allocations with their call stacks, and the reasons for missing call stacks.
    fn allocations(&mut self) -> (Vec<Allocated>, Vec<Absent>) {
        let mut symbols = FileSymbols::default();
        let mut lacks = Vec::new();
        let mut all: Vec<Allocated> = self
            .allocations
            .iter()
            .map(|made| Allocated { blocks: made.blocks, bytes: made.bytes, frames: Vec::new() })
            .collect();
        for (number, program) in self.programs.iter_mut().enumerate() {
            let asked = self.allocations.iter().zip(&mut all);
            let asked: Vec<(u32, &mut Allocated)> = asked
                .filter(|(made, _)| made.program == number)
                .map(|(made, all)| (made.site, all))
                .collect();
            let new = match program.tables.news(&program.path) {
                Ok(new) => new,
                Err(error) => {
                    lacks.push(Absent::NotCollected(
                        format!("call stacks of blocks: {error}").into(),
                    ));
                    continue;
                }
            };
            if program.tables.head(header::TROUBLE).is_ok_and(|it| it == trouble::CALLS) {
                lacks.push(Absent::NotCollected(
                    "owners of memory after the program restricted its system calls (seccomp)"
                        .into(),
                ));
            }
            let recording = LogRecording {
                begin: Begin { began_ns: program.began_ns, ..Begin::default() },
                modules: new.modules,
                places: new.places,
                nodes: new.nodes,
                sites: new.sites,
                ..LogRecording::default()
            };
            let sites: Vec<u32> = asked.iter().map(|(site, _)| *site).collect();
            let stacks = pagewise_heapread::stacks(recording, &sites, &mut symbols, &mut lacks);
            for ((_, all), frames) in asked.into_iter().zip(stacks) {
                all.frames = frames;
            }
        }
        (all, lacks)
    }
}

/// An allocation with its call stack.
type Allocated = Allocation<Frame>;

impl HeapBlocks for LiveBlocks {
    fn drain(&mut self, now: u64) {
        while let Ok(program) = self.heard.try_recv() {
            let program = match program {
                Ok(program) => program,
                Err(why) => {
                    self.not_hooked = Some(why);
                    continue;
                }
            };
            let number = self.programs.len();
            self.programs.push(program);
            // Until this time the process ran the previous program, so the remaining entries of
            // that program's log are read.
            if let Some(before) = number.checked_sub(1) {
                self.read(before);
            }
        }
        if let Some(last) = self.programs.len().checked_sub(1) {
            self.read(last);
        }
        let [last, before] = self.asked;
        self.asked = [now, last];
        self.advance(before);
    }

    fn find(&mut self, pid: u32, time: u64, address: u64) -> Owner {
        if pid != self.expected.load(Ordering::Relaxed) {
            return Owner::Unrecorded;
        }
        self.advance(time);
        if self.current.is_none() {
            return Owner::Unrecorded;
        }
        match self.live.range(..=address).next_back() {
            Some((_, (end, number))) if address < *end => Owner::Block(*number),
            _ => Owner::Elsewhere,
        }
    }

    fn replaced(&mut self, pid: u32) {
        if pid == self.expected.load(Ordering::Relaxed)
            && let Some(current) = self.current.take()
        {
            self.live.clear();
            while self.next_if(|event| event.program <= current).is_some() {}
        }
    }

    fn is_recorder(&self, frame: &Frame) -> bool {
        let is_its = |module: &Name| module.base().starts_with(NAME.as_bytes());
        let passes = |name: &str| PASSES.contains(&name);
        frame.module.as_ref().is_some_and(is_its) && !frame.function.as_deref().is_some_and(passes)
    }

    fn finish(&mut self) -> FaultsOutcome {
        let (allocations, mut lacks) = self.allocations();
        let refused = self.refused.load(Ordering::Relaxed);
        if self.programs.is_empty() {
            let why = match self.not_hooked {
                Some(why) => format!("the command has a malloc of its own, and {why}"),
                None if refused > 0 => "only children of the command loaded the recorder".to_owned(),
                None => {
                    "the command did not load the recorder: it is linked statically, or gains privileges as it starts"
                        .to_owned()
                }
            };
            let text = format!("which allocations the memory is of: {why}");
            lacks.push(Absent::NotCollected(text.into()));
        }
        FaultsOutcome {
            is_known: !self.programs.is_empty(),
            least: self.least,
            lost: self.lost,
            refused: refused as u64,
            allocations,
            lacks,
        }
    }
}

/// Answers a recorder, which waits for the answer.
fn answer(
    client: &mut Client,
    root: &ProcRoot,
    expected: &AtomicU32,
    refused: &AtomicUsize,
    heard: &Sender<Result<RecordedProgram, Why>>,
) -> Heard {
    let (pid, file) = match hello(client) {
        Ok(Some((_, file))) => (client.pid, file),
        Ok(None) => return Heard::More,
        // The client has gone, or is not a recorder.
        Err(_) => return Heard::Done,
    };
    let is_it = pid == expected.load(Ordering::Acquire);
    let program = is_it.then(|| program(pid, file, root)).and_then(Result::ok);
    let is_recorded = matches!(program, Some(Ok(_)));
    refused.fetch_add(usize::from(!is_it), Ordering::Relaxed);
    // The receiver of this value reads the log of the program from now on.
    let is_heard = program.is_some_and(|program| heard.send(program).is_ok());
    let answer = if is_recorded && is_heard { greeting::YES } else { greeting::NO };
    client.answer(answer);
    Heard::Done
}

/// Returns a program that can be recorded; else the reason why its `malloc` cannot be hooked.
fn program(pid: u32, file: File, root: &ProcRoot) -> io::Result<Result<RecordedProgram, Why>> {
    let tables = SharedTables::open(file)?;
    if let Err(why) = hook::answer(&tables, pid, root, false)? {
        return Ok(Err(why));
    }
    let path = fs::read_link(root.file(Pid(pid), "exe"));
    Ok(Ok(RecordedProgram {
        path: path.map(|path| path.into_os_string().into_vec()).unwrap_or_default(),
        began_ns: tables.head(header::BEGAN)?,
        tables,
        lost: None,
        is_broken: false,
    }))
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::FileExt;

    use pagewise_heaplog::tables::{HEADER, LENGTH, LOG, MAGIC, log};
    use rustix::fs::{MemfdFlags, memfd_create};

    use super::*;

    /// Tables with the layout of a recorder's tables, which the test writes.
    struct TestTables(File);

    impl TestTables {
        fn new() -> TestTables {
            let file = memfd_create("pagewise-heap", MemfdFlags::CLOEXEC).unwrap();
            let file = File::from(file);
            file.set_len(LENGTH as u64).unwrap();
            let tables = TestTables(file);
            tables.head(header::MAGIC, MAGIC);
            tables
        }

        fn head(&self, number: usize, value: u64) {
            self.0.write_all_at(&value.to_ne_bytes(), HEADER.place(number) as u64).unwrap();
        }

        fn read(&self) -> u64 {
            let mut word = [0; 8];
            self.0.read_exact_at(&mut word, HEADER.place(header::LOG_READ) as u64).unwrap();
            u64::from_ne_bytes(word)
        }

        /// Writes entries after the first `written`: time, address, size, and site.
        fn log(&self, written: u64, entries: &[(u64, u64, u64, u64)]) -> u64 {
            for (at, (time, address, size, site)) in (written..).zip(entries) {
                let mut words = [0; log::WORDS];
                words[log::TIME] = *time;
                words[log::ADDRESS] = *address;
                words[log::SIZE] = *size;
                words[log::SITE] = *site;
                let bytes = words.map(u64::to_ne_bytes);
                let index = usize::try_from(at).unwrap() % LOG.room;
                self.0.write_all_at(bytes.as_flattened(), LOG.place(index) as u64).unwrap();
            }
            let written = written + entries.len() as u64;
            self.head(header::LOG_WRITTEN, written);
            written
        }

        fn program(&self) -> RecordedProgram {
            program(7, self.0.try_clone().unwrap(), &ProcRoot::live()).unwrap().unwrap()
        }
    }

    const NOW: u64 = 1_000_000;

    fn live(programs: Vec<RecordedProgram>) -> LiveBlocks {
        let mut live = LiveBlocks::open(&RecorderLibrary::File("/dev/null".into()), 1).unwrap();
        live.expect(7);
        live.programs = programs;
        live
    }

    /// Finds the owner of an address in process 7: the allocation number of a block, or another
    /// owner.
    fn find(live: &mut LiveBlocks, time: u64, address: u64) -> Result<u32, Owner> {
        match live.find(7, time, address) {
            Owner::Block(number) => Ok(number),
            owner => Err(owner),
        }
    }

    #[test]
    fn an_address_is_of_the_block_that_was_there_then() {
        let tables = TestTables::new();
        let mut live = live(vec![tables.program()]);
        tables.log(
            0,
            &[
                (10, 0, 0, 0),
                (20, 1000, 100, 5),
                (30, 1000, 0, 0),
                (40, 1050, 100, 6),
                (50, 990, 20, 5),
            ],
        );
        live.drain(NOW);
        assert_eq!(find(&mut live, 9, 1000), Err(Owner::Unrecorded));
        assert_eq!(find(&mut live, 10, 1000), Err(Owner::Elsewhere));
        assert_eq!(find(&mut live, 25, 1000), Ok(0));
        assert_eq!(find(&mut live, 25, 1099), Ok(0));
        assert_eq!(find(&mut live, 25, 1100), Err(Owner::Elsewhere));
        assert_eq!(find(&mut live, 25, 999), Err(Owner::Elsewhere));
        assert_eq!(find(&mut live, 35, 1000), Err(Owner::Elsewhere), "it was freed");
        assert_eq!(find(&mut live, 45, 1060), Ok(1));
        assert_eq!(find(&mut live, 55, 1000), Ok(0), "the same line again");
        assert_eq!(find(&mut live, 55, 1060), Ok(1));
        assert_eq!(live.find(8, 55, 1060), Owner::Unrecorded, "of another process");
        assert_eq!((live.allocations[0].blocks, live.allocations[0].bytes), (2, 120));
        assert_eq!(tables.read(), 5);
    }

    #[test]
    fn a_block_at_the_address_of_another_replaces_it() {
        let tables = TestTables::new();
        let mut live = live(vec![tables.program()]);
        tables.log(
            0,
            &[
                (1, 0, 0, 0),
                (2, 100, 50, 1),
                (3, 200, 50, 2),
                (4, 120, 100, 3),
                (5, u64::MAX, 9, 4),
            ],
        );
        live.drain(NOW);
        assert_eq!(find(&mut live, 9, 110), Err(Owner::Elsewhere));
        assert_eq!(find(&mut live, 9, 130), Ok(2));
        assert_eq!(find(&mut live, 9, 240), Err(Owner::Elsewhere));
        assert_eq!(live.live.len(), 1);
    }

    #[test]
    fn once_the_log_was_full_nothing_is_known_of_what_was_live() {
        let tables = TestTables::new();
        let mut live = live(vec![tables.program()]);
        let written = tables.log(0, &[(1, 0, 0, 0), (2, 100, 50, 1), (20, 300, 50, 1)]);
        tables.head(header::LOG_FIRST_LOST, 10);
        tables.head(header::LOG_LAST_LOST, 30);
        live.drain(NOW);
        assert_eq!(find(&mut live, 9, 110), Ok(0));
        assert_eq!(find(&mut live, 21, 110), Err(Owner::Elsewhere), "it may have been freed");
        assert_eq!(find(&mut live, 21, 310), Err(Owner::Elsewhere), "and so may this");
        tables.log(written, &[(29, 500, 50, 1), (31, 600, 50, 1)]);
        live.drain(NOW);
        assert_eq!(find(&mut live, 40, 510), Err(Owner::Elsewhere));
        assert_eq!(find(&mut live, 40, 610), Ok(0));
        assert_eq!(live.lost, 1);
    }

    #[test]
    fn a_log_goes_around() {
        let tables = TestTables::new();
        let mut live = live(vec![tables.program()]);
        let before = LOG.room as u64 - 2;
        tables.head(header::LOG_READ, before);
        tables.log(before, &[(1, 0, 0, 0), (2, 100, 50, 1), (3, 200, 50, 2), (4, 300, 50, 3)]);
        live.drain(NOW);
        let found = [110, 210, 310].map(|address| find(&mut live, 5, address));
        assert_eq!(found, [Ok(0), Ok(1), Ok(2)]);
    }

    #[test]
    fn implausible_values_are_discarded() {
        let tables = TestTables::new();
        let mut live = live(vec![tables.program()]);
        tables.log(0, &[(1, 0, 0, 0), (2, 100, 50, u64::MAX), (3, 200, 50, 1)]);
        live.drain(NOW);
        assert_eq!(find(&mut live, 5, 110), Err(Owner::Elsewhere));
        assert_eq!(find(&mut live, 5, 210), Ok(0));
        tables.head(header::LOG_WRITTEN, u64::MAX);
        live.drain(NOW);
        assert_eq!(find(&mut live, 6, 210), Err(Owner::Elsewhere));
        assert_eq!(live.lost, 1);
        let known = live.finish();
        // The site is not in the tables.
        assert_eq!(known.allocations[0].frames, []);
    }

    #[test]
    fn another_program_has_none_of_the_blocks_of_the_one_before() {
        let (first, second) = (TestTables::new(), TestTables::new());
        let mut live = live(vec![first.program()]);
        first.log(0, &[(1, 0, 0, 0), (2, 100, 50, 1)]);
        live.drain(NOW);
        assert_eq!(find(&mut live, 3, 110), Ok(0));
        second.log(0, &[(20, 0, 0, 0), (21, 100, 50, 1)]);
        live.programs.push(second.program());
        live.drain(NOW);
        live.replaced(7);
        assert_eq!(find(&mut live, 11, 110), Err(Owner::Unrecorded), "before its recorder begins");
        assert_eq!(find(&mut live, 20, 110), Err(Owner::Elsewhere));
        assert_eq!(find(&mut live, 22, 110), Ok(1), "another, though its number is the same");
    }
}
