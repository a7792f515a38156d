//! Page faults as they come, added up by call stack, mapping, kind and thread.
//!
//! With rights, a fault is told twice: by a tracepoint when it begins, with what the program wanted to do and its call stack,
//! and by an event of the kernel when it ends, where that says more:
//!
//! ```text
//! user mode    page_fault_user ──── mm_page_alloc (order 9) ──── major-faults [minor-faults, for the latency]
//! the kernel   page_fault_kernel ──────────────────────────────── major-faults or minor-faults
//! ```
//!
//! A thread has one fault at a time, so what comes next of the same thread belongs to it. In the kernel only faults that end
//! count: others are tries of a system call that may not wait, and are done again.
//!
//! Without rights there are the events at the end only.

mod calls;
mod fold;
mod kinds;
mod mappings;
mod moves;
mod owners;
mod plan;
mod state;
mod time_line;

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use pagewise_model::bounds::MemoryLimit;
use pagewise_model::calls::Ending;
use pagewise_model::faults::{Allocation, Owner, Recording, Source, VERSION};
use pagewise_model::traced::Frame;
use pagewise_model::{Absent, Name, PageSize, Pid, Reading};
use pagewise_sys::system;

use crate::Error;
use crate::session::{self, Session, Target};
use crate::unwind::Unwinder;
use plan::Plan;
use state::{Found, State};

/// The part of the memory limit that all rings take together: the more there is, the longer we may be kept from reading.
const RINGS: u64 = 4;
/// Who waits for a ring is woken when this part of it is full.
const WAKE_AT: usize = 8;
/// Of one ring: what anyone may have is much less than what root may.
const LARGEST: usize = 32 << 20;
const SMALLEST: usize = 1 << 17;

/// So many bytes of a stack are copied if nothing else is said: six in seven stacks of a Python and a shell without frame
/// pointers are whole, and recording is some 2 % slower than with 512 bytes; with 8 KiB it would be 20 %. See `docs/performance.md`.
pub const STACK: u16 = 2048;

/// What to record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Request {
    /// Whose faults.
    pub target: Target,
    /// Each of so many: 1 for all.
    pub every: u64,
    /// Whether to time each.
    pub latency: bool,
    /// So many bytes of the stack are copied with each, to find callers that keep no frame pointers: at most 65528.
    pub stack: u16,
    /// Whether to follow `mremap`, which takes every system call of the machine some time.
    pub mremap: bool,
    /// The most memory to take.
    pub limit: MemoryLimit,
}

/// Knows which block of a heap an address was in.
pub trait Blocks: std::fmt::Debug {
    /// Takes in what is known by now. What is asked next is not earlier than `asked` (`CLOCK_MONOTONIC`).
    fn drain(&mut self, asked: u64);

    /// Whose an address of a process was at a time. What is asked next is not earlier.
    fn find(&mut self, pid: u32, time: u64, address: u64) -> Owner;

    /// The process is another program from now on.
    fn replaced(&mut self, pid: u32);

    /// Whether a call is one of the recorder in the program.
    fn is_recorder(&self, frame: &Frame) -> bool;

    /// All that is known in the end.
    fn finish(&mut self) -> Known;
}

/// What is known in the end.
#[derive(Clone, Debug, Default)]
pub struct Known {
    /// Whether anything was recorded.
    pub is_known: bool,
    /// Blocks of fewer bytes are not told of.
    pub least: u64,
    /// How often what was live came to be unknown.
    pub lost: u64,
    /// Processes that were not recorded, though they might have been.
    pub refused: u64,
    /// Who allocated, by the number that [`Owner::Block`] has.
    pub allocations: Vec<Allocation<Frame>>,
    /// What could not be learned.
    pub lacks: Vec<Absent>,
}

/// What of the end of a recording only its maker knows.
#[derive(Clone, Debug)]
pub struct About {
    /// The command, or the process that was running.
    pub pid: Pid,
    /// The command's words.
    pub command: Vec<Name>,
    /// How it ended; none where it runs on.
    pub ending: Option<Ending>,
    /// Minor and major faults as the kernel counted them for the command.
    pub usage: Reading<(u64, u64)>,
}

/// Records page faults.
#[derive(Debug)]
pub struct Recorder {
    request: Request,
    /// Whether stacks come along, so that it is known which are not whole.
    counts_cut: bool,
    session: Session,
    state: State,
    source: Source,
    lacks: Vec<Absent>,
    began_ns: Option<u64>,
    stopped: Option<u64>,
}

impl Recorder {
    /// Opens the events that may be watched. Nothing is recorded before [`Recorder::start`], or the command's `exec`.
    ///
    /// # Errors
    /// Those of [`Session::open`], where no events may be watched at all.
    pub fn open(request: Request) -> Result<Recorder, Error> {
        let plans: [&dyn Fn() -> Result<Plan, Error>; 3] =
            [&|| Plan::tracepoints(&request), &|| Ok(Plan::counters(&request, false)), &|| {
                Ok(Plan::counters(&request, true))
            }];
        let mut last = None;
        for plan in plans {
            match plan().and_then(|mut plan| Ok((open(&request, &mut plan)?, plan))) {
                Ok((session, plan)) => {
                    let counts_cut = plan.source == Source::Tracepoints;
                    return Ok(Recorder {
                        counts_cut,
                        request,
                        session,
                        state: State::new(
                            plan.roles,
                            request.every,
                            request.latency,
                            request.limit,
                        ),
                        source: plan.source,
                        lacks: plan.lacks,
                        began_ns: None,
                        stopped: None,
                    });
                }
                Err(error @ Error::Gone { .. }) => return Err(error),
                Err(error) => last = Some(error),
            }
        }
        Err(last.expect("three were tried"))
    }

    /// Asks this whose the memory is that faults.
    pub fn ask(&mut self, blocks: Box<dyn Blocks>) {
        self.state.ask(blocks);
    }

    /// Begins to record.
    ///
    /// # Errors
    /// [`Error::System`]
    pub fn start(&mut self) -> Result<(), Error> {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).ok();
        self.began_ns = now.and_then(|now| u64::try_from(now.as_nanos()).ok());
        self.state.begin(session::now());
        match self.request.target {
            // It begins with its `exec`.
            Target::Command(_) => {}
            Target::Machine => self.session.enable()?,
            Target::Process(pid) => {
                self.session.enable()?;
                // Mappings that are made from here on are told; what was there is read.
                self.state.know(pid);
            }
        }
        Ok(())
    }

    /// Waits for faults until there are many, or so long, and takes them in.
    pub fn step(&mut self, at_most: Duration) {
        if self.stopped.is_some() {
            return std::thread::sleep(at_most);
        }
        self.session.wait(at_most);
        let Recorder { session, state, .. } = self;
        // Nothing is handed on that happened after this: of what did before, it is known whose the memory was.
        let now = session::now();
        state.drain(session.handed_on());
        session.drain_until(now, &mut |record| state.note(&record));
    }

    /// Records nothing from now on.
    pub fn stop(&mut self) {
        if self.stopped.is_none() {
            // Who cannot be told has nothing more to say.
            let _ = self.session.disable();
        }
        self.stopped.get_or_insert_with(session::now);
        let state = &mut self.state;
        state.drain(self.session.handed_on());
        self.session.finish(&mut |record| state.note(&record));
    }

    /// Ends it.
    pub fn finish(mut self, about: About) -> Recording {
        self.stop();
        let stopped = self.stopped.unwrap_or_else(session::now);
        let took_ns = stopped.saturating_sub(self.state.begin_ns());
        let counted = self.session.total(0).filter(|_| self.source == Source::Tracepoints);
        // The kernel says that events are lost with the next that is not.
        let missing = counted.filter(|_| self.request.every == 1);
        let missing = missing.map_or(0, |all| all.saturating_sub(self.state.seen()));
        let is_copied = self.counts_cut && Unwinder::carries(self.request.stack).stack > 0;
        let cut = is_copied.then(|| self.state.cut());
        let Recorder { request, session, state, source, lacks: mut all_lacks, began_ns, .. } = self;
        let lost = session.lost().max(missing);
        // The rings leave their memory to what looks up functions.
        drop(session);
        let found = state.finish(took_ns);
        let Found {
            frames,
            stacks,
            mappings,
            threads,
            heap,
            rows,
            latencies,
            time_line,
            lacks,
            folded,
        } = found;
        all_lacks.extend(lacks);
        Recording {
            version: VERSION,
            pid: about.pid,
            command: about.command,
            page_size: PageSize::new(system::page_size()).expect("the kernel's page size is one"),
            huge_page: plan::huge_page(),
            began_ns,
            took_ns,
            ending: about.ending,
            source,
            every: request.every,
            lost,
            counted,
            stack_bytes: if is_copied { u32::from(request.stack) & !7 } else { 0 },
            cut,
            usage: about.usage,
            frames,
            stacks,
            mappings,
            threads,
            heap,
            rows,
            latencies,
            time_line,
            folded,
            lacks: all_lacks,
        }
    }
}

/// Opens the events of a plan with the largest rings that we may have.
fn open(request: &Request, plan: &mut Plan) -> Result<Session, Error> {
    let cpus = std::thread::available_parallelism().map_or(1, usize::from);
    let rings = request.limit.part(RINGS);
    // The largest power of two that leaves all together within it.
    let most = (rings / cpus).clamp(SMALLEST, LARGEST);
    let mut ring = 1 << most.ilog2();
    loop {
        for wanted in &mut plan.wanted {
            wanted.sampling.wake_at = u32::try_from(ring / WAKE_AT).unwrap_or(u32::MAX);
        }
        match Session::open_any(request.target, &plan.wanted, ring) {
            Ok(session) => {
                for (which, filter) in &plan.filters {
                    session.filter(*which, filter)?;
                }
                return Ok(session);
            }
            Err(Error::NotWatched { .. }) if ring > SMALLEST => ring /= 2,
            Err(error) => return Err(error),
        }
    }
}
