//! Receives the messages of guards: a process is guarded, a memory error occurred, a process ends.
//! A guard is the recorder library inside a program, in the mode that detects memory errors.

use std::collections::HashMap;
use std::ffi::OsString;
use std::fs;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStringExt;
use std::sync::mpsc::{Receiver, RecvTimeoutError, TrySendError, sync_channel};
use std::thread;
use std::time::Duration;

use pagewise_heaplog::guard::{
    MAGIC, MAX_MESSAGE_WORDS, MAX_MODULES, MAX_STACK_FRAMES, access, bug, kind, made_by, means,
    module, word,
};
use pagewise_heaplog::tables::{INTERRUPTED, greeting};
use pagewise_model::guard::{
    AllocatorCall, BugAccess, BugKind, Family, FreeMismatch, GuardMeans, GuardedObject, MemoryBug,
};
use pagewise_model::traced::Frame;
use pagewise_model::{Absent, Name, Pid, Reading};
use pagewise_proc::ProcRoot;
use pagewise_trace::{FileSymbols, MappedModule};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{PidfdFlags, pidfd_open};

use crate::error::HeapError;
use crate::library::{NAME, RecorderLibrary};
use crate::rendezvous::{Answered, Client, Heard};

/// Parameters of guarding.
#[derive(Clone, Debug)]
pub struct GuardOptions {
    /// Sampling rate: one in `rate` allocations is guarded on average; at least 1.
    pub rate: u64,
    /// Maximum number of bytes of memory for guarded objects.
    pub most_bytes: u64,
    /// True if the program continues after a memory error.
    pub goes_on: bool,
    /// Position of an object in its page.
    pub side: PageSide,
    /// Best permitted method of making pages inaccessible.
    pub means: GuardMeans,
    /// Location of the library that guards.
    pub library: RecorderLibrary,
}

/// Position of an object in its page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PageSide {
    /// At the end: an access beyond the object faults.
    End,
    /// At the beginning: an access before the object faults.
    Start,
    /// At the end or at the beginning, chosen at random for each object.
    Chance,
}

/// Message of a guard.
#[derive(Debug)]
pub enum GuardEvent {
    /// A process is guarded from now on.
    Hello {
        /// PID of the process.
        pid: u32,
        /// Method of making pages inaccessible.
        means: GuardMeans,
    },
    /// The process has a memory error.
    Bug(Box<UnresolvedBug>),
    /// A process ends normally.
    End {
        /// Number of objects that the process guarded.
        guarded: u64,
        /// Number of objects that were not guarded because the memory for guarded objects was full.
        left_out: u64,
        /// Maximum number of bytes in guarded objects at a time.
        most_bytes: u64,
    },
}

/// A memory error whose call stacks are not yet resolved.
#[derive(Debug)]
pub struct UnresolvedBug {
    bug: MemoryBug,
    modules: Vec<RawModule>,
    /// Call stacks of the access, the allocation and the free.
    stacks: [AddressStack; 3],
}

/// A call stack: the address of each frame, and the index of its module.
type AddressStack = Vec<(u64, Option<usize>)>;

#[derive(Debug)]
struct RawModule {
    path: Vec<u8>,
    build_id: Vec<u8>,
    bias: u64,
}

/// Receives messages of guards in a thread of its own, since guards wait for an answer.
#[derive(Debug)]
pub struct Listener {
    wanted: GuardOptions,
    meeting: Answered,
    heard: Receiver<GuardEvent>,
}

/// Maximum number of messages that wait to be received.
const MAX_EVENTS: usize = 64;
/// Maximum number of descriptors that are held for all processes, and for one process.
const MAX_HELD: usize = 256;
const MAX_HELD_FOR_ONE: usize = 4;

impl Listener {
    /// Begins to listen.
    ///
    /// # Errors
    /// Returns an error if no socket can be created.
    pub fn open(wanted: GuardOptions) -> Result<Listener, HeapError> {
        let (sender, heard) = sync_channel(MAX_EVENTS);
        let root = ProcRoot::live();
        let mut held = HeldDescriptors::default();
        let meeting = Answered::open(&wanted.library, move |client| {
            let words = match message(client) {
                Ok(Some(words)) => words,
                Ok(None) => return Heard::More,
                // A client that sends an invalid message is not a guard.
                Err(_) => return Heard::Done,
            };
            let is_heard = match client.file.take() {
                Some(file) => held.hold(client.pid, file).is_some(),
                None => match read(&words, &root).map(|event| sender.try_send(event)) {
                    // The queue is full; the guard waits for its answer until the message fits.
                    Some(Err(TrySendError::Full(_))) => return Heard::Later,
                    sent => matches!(sent, Some(Ok(()))),
                },
            };
            // Only a message that fits into the queue is answered.
            if is_heard {
                client.answer(greeting::YES);
            }
            Heard::Done
        })?;
        Ok(Listener { wanted, meeting, heard })
    }

    /// Environment variables for a program that is to be guarded, in addition to those of this
    /// process.
    pub fn environment(&self) -> Vec<(OsString, OsString)> {
        let GuardOptions { rate, most_bytes, goes_on, side, means, .. } = self.wanted;
        let means = match means {
            GuardMeans::Moves => "moves",
            GuardMeans::Marks => "marks",
            GuardMeans::Mappings => "mappings",
        };
        let then = if goes_on { "continue" } else { "abort" };
        let side = match side {
            PageSide::End => "end",
            PageSide::Start => "start",
            PageSide::Chance => "chance",
        };
        self.meeting.environment(&format!(
            "guard={rate},most={most_bytes},then={then},side={side},means={means}"
        ))
    }

    /// Returns the next message; `None` if no message arrives within `wait`.
    pub fn next(&self, wait: Duration) -> Option<GuardEvent> {
        match self.heard.recv_timeout(wait) {
            Ok(heard) => Some(heard),
            Err(RecvTimeoutError::Timeout) => None,
            Err(RecvTimeoutError::Disconnected) => {
                thread::sleep(wait);
                None
            }
        }
    }
}

/// Descriptors that this process keeps open for other processes until they end: PID, descriptor,
/// and the pidfd that shows the end of the process.
#[derive(Debug, Default)]
struct HeldDescriptors(Vec<(u32, OwnedFd, OwnedFd)>);

impl HeldDescriptors {
    fn hold(&mut self, pid: u32, file: OwnedFd) -> Option<()> {
        self.0.retain(|(_, process, _)| {
            let mut wanted = [PollFd::new(process, PollFlags::IN)];
            !poll(&mut wanted, Some(&Timespec::default())).is_ok_and(|ended| ended > 0)
        });
        let of_it = self.0.iter().filter(|(held_for, ..)| *held_for == pid).count();
        if self.0.len() >= MAX_HELD || of_it >= MAX_HELD_FOR_ONE {
            return None;
        }
        let process = rustix::process::Pid::from_raw(pid.cast_signed())?;
        self.0.push((pid, pidfd_open(process, PidfdFlags::empty()).ok()?, file));
        Some(())
    }
}

/// Receives the words of a message; `None` until it is complete.
///
/// # Errors
/// Returns an error if the message is invalid.
fn message(client: &mut Client) -> io::Result<Option<Vec<u64>>> {
    const HEADER: usize = 8 * (word::LENGTH + 1);
    let broken = || io::Error::from(io::ErrorKind::InvalidData);
    let words = |bytes: &[u8]| -> Vec<u64> {
        let word = |piece: &[u8]| piece.try_into().map_or(0, u64::from_ne_bytes);
        bytes.chunks_exact(8).map(word).collect()
    };
    let mut lives = client.receive(HEADER);
    if client.bytes.len() >= HEADER {
        let first = words(&client.bytes[..HEADER]);
        let length = usize::try_from(first[word::LENGTH]).unwrap_or(usize::MAX);
        if first[word::MAGIC] != MAGIC || length > MAX_MESSAGE_WORDS || length < first.len() {
            return Err(broken());
        }
        lives = client.receive(8 * length);
        if client.bytes.len() == 8 * length {
            return Ok(Some(words(&client.bytes)));
        }
    }
    if lives { Ok(None) } else { Err(broken()) }
}

/// Decodes the content of a message; `None` if the content is invalid.
fn read(words: &[u64], root: &ProcRoot) -> Option<GuardEvent> {
    let get = |number: usize| words.get(number).copied();
    let pid = u32::try_from(get(word::PID)?).ok()?;
    match get(word::KIND)? {
        kind::HELLO => {
            let means = match get(word::MEANS)? {
                means::MOVES => GuardMeans::Moves,
                means::MARKS => GuardMeans::Marks,
                _ => GuardMeans::Mappings,
            };
            Some(GuardEvent::Hello { pid, means })
        }
        kind::END => Some(GuardEvent::End {
            guarded: get(word::GUARDED)?,
            left_out: get(word::LEFT_OUT)?,
            most_bytes: get(word::PEAK_BYTES)?,
        }),
        kind::BUG => {
            let program = fs::read_link(root.file(Pid(pid), "exe"));
            let program = program.map(|path| path.into_os_string().into_vec()).unwrap_or_default();
            read_bug(words, Pid(pid), &program).map(|raw| GuardEvent::Bug(Box::new(raw)))
        }
        _ => None,
    }
}

fn read_bug(words: &[u64], pid: Pid, program: &[u8]) -> Option<UnresolvedBug> {
    let get = |number: usize| words.get(number).copied();
    let tid = |number: usize| get(number).and_then(|tid| u32::try_from(tid).ok()).map(Pid);
    let kind = bug_kind(get(word::BUG)?)?;
    let access = bug_access(get(word::ACCESS)?)?;
    let mut name = Vec::new();
    for word in words.get(word::NAME..word::NAME + 2)? {
        name.extend(word.to_ne_bytes());
    }
    let name = name.split(|&byte| byte == 0).next().unwrap_or_default();
    let mut rest = words.get(word::BUG_WORDS..)?;
    let modules = modules(&mut rest, get(word::MODULES)?, program)?;
    let counts = words.get(word::FRAMES..word::FRAMES + 3)?;
    let stacks = read_stacks(&mut rest, counts, modules.len())?;
    let unknown = || -> Reading<Vec<Frame>> {
        Err(Absent::NotCollected("the call stack could not be followed".into()))
    };
    let call = |by: usize| Some(AllocatorCall { tid: tid(by)?, stack: unknown() });
    let object = match get(word::OBJECT)? {
        0 => None,
        address => Some(GuardedObject {
            address,
            size: get(word::SIZE)?,
            allocated: call(word::ALLOCATED_BY)?,
            freed: if get(word::FREED_BY)? == 0 { None } else { call(word::FREED_BY) },
        }),
    };
    let family = |number: usize| match u32::try_from(get(number)?).ok()? {
        made_by::MALLOC => Some(Family::Malloc),
        made_by::NEW => Some(Family::New),
        made_by::NEW_ARRAY => Some(Family::NewArray),
        _ => None,
    };
    let mismatch = match kind {
        BugKind::Mismatch => Some(FreeMismatch {
            made_by: family(word::MADE_BY)?,
            freed_as: family(word::FREED_AS)?,
            freed_size: get(word::FREED_SIZE).filter(|size| *size != u64::MAX),
        }),
        _ => None,
    };
    let stack = match access {
        BugAccess::WrittenBeforeEnd => {
            Err(Absent::NotCollected("it was noticed only when the program ended".into()))
        }
        _ => unknown(),
    };
    Some(UnresolvedBug {
        bug: MemoryBug {
            time_ns: get(word::TIME)?,
            pid,
            program: Name::new(program),
            tid: tid(word::TID)?,
            thread: Name::new(name),
            kind,
            access,
            address: get(word::ADDRESS)?,
            stack,
            object,
            mismatch,
            goes_on: get(word::GOES_ON)? != 0,
        },
        modules,
        stacks,
    })
}

fn bug_kind(word: u64) -> Option<BugKind> {
    Some(match word {
        bug::OVERFLOW => BugKind::Overflow,
        bug::UNDERFLOW => BugKind::Underflow,
        bug::USE_AFTER_FREE => BugKind::UseAfterFree,
        bug::DOUBLE_FREE => BugKind::DoubleFree,
        bug::INVALID_FREE => BugKind::InvalidFree,
        bug::WILD => BugKind::Wild,
        bug::MISMATCH => BugKind::Mismatch,
        bug::FAULT => BugKind::Segv,
        bug::BUS_FAULT => BugKind::Bus,
        _ => return None,
    })
}

fn bug_access(word: u64) -> Option<BugAccess> {
    Some(match word {
        access::READ => BugAccess::Read,
        access::WRITE => BugAccess::Write,
        access::EXECUTE => BugAccess::Execute,
        access::FREE => BugAccess::Free,
        access::WRITTEN_BEFORE_FREE => BugAccess::WrittenBeforeFree,
        access::WRITTEN_BEFORE_END => BugAccess::WrittenBeforeEnd,
        _ => return None,
    })
}

/// Decodes the call stacks of the access, the allocation and the free. Each frame is an address,
/// and the index of its module plus one, or 0 without a module. `None` if the words end early, or
/// if a stack is too long.
fn read_stacks(rest: &mut &[u64], counts: &[u64], modules: usize) -> Option<[AddressStack; 3]> {
    let mut stacks = [const { Vec::new() }; 3];
    for (stack, count) in stacks.iter_mut().zip(counts) {
        let count = usize::try_from(*count).ok().filter(|count| *count <= MAX_STACK_FRAMES)?;
        for frame in split_words(rest, count * 2)?.chunks_exact(2) {
            let module = frame[1].checked_sub(1).and_then(|module| usize::try_from(module).ok());
            stack.push((frame[0], module.filter(|&module| module < modules)));
        }
    }
    Some(stacks)
}

/// Removes the next `count` words from `rest` and returns them; `None` if fewer words remain.
fn split_words<'a>(rest: &mut &'a [u64], count: usize) -> Option<&'a [u64]> {
    let (taken, others) = rest.split_at_checked(count)?;
    *rest = others;
    Some(taken)
}

fn modules(rest: &mut &[u64], count: u64, program: &[u8]) -> Option<Vec<RawModule>> {
    let count = usize::try_from(count).ok().filter(|&count| count <= MAX_MODULES)?;
    let mut modules = Vec::new();
    for _ in 0..count {
        let words = split_words(rest, module::WORDS)?;
        let mut text = |length: u64| -> Option<Vec<u8>> {
            let length = usize::try_from(length).ok()?;
            let words = split_words(rest, length.div_ceil(8))?;
            let mut bytes: Vec<u8> = words.iter().flat_map(|word| word.to_ne_bytes()).collect();
            bytes.truncate(length);
            Some(bytes)
        };
        let path = text(words[module::PATH_LENGTH])?;
        modules.push(RawModule {
            path: if path.is_empty() { program.to_vec() } else { path },
            build_id: text(words[module::BUILD_ID_LENGTH])?,
            bias: words[module::BIAS],
        });
    }
    Some(modules)
}

/// Resolves the call stacks of memory errors.
#[derive(Debug, Default)]
pub struct Resolver {
    symbols: FileSymbols,
    /// Frames that were resolved before, by path, build ID and address.
    known: HashMap<(Vec<u8>, Vec<u8>, u64), Vec<Frame>>,
}

impl Resolver {
    /// Resolves the functions and source lines of a memory error.
    pub fn resolve(&mut self, raw: UnresolvedBug) -> MemoryBug {
        let UnresolvedBug { mut bug, modules, stacks } = raw;
        let [access, allocated, freed] = stacks;
        let began_ns = bug.time_ns;
        let mut put = |stack: &[(u64, Option<usize>)], to: &mut Reading<_>| {
            if !stack.is_empty() {
                *to = Ok(self.stack(stack, &modules, began_ns));
            }
        };
        put(&access, &mut bug.stack);
        if let Some(object) = &mut bug.object {
            put(&allocated, &mut object.allocated.stack);
            if let Some(call) = &mut object.freed {
                put(&freed, &mut call.stack);
            }
        }
        bug
    }

    fn stack(
        &mut self,
        stack: &[(u64, Option<usize>)],
        modules: &[RawModule],
        ran_ns: u64,
    ) -> Vec<Frame> {
        let mut frames = Vec::new();
        for &(marked, module) in stack {
            // A return address follows the call, which may be the last instruction of its line or
            // function.
            let is_return = marked & INTERRUPTED == 0;
            let address = marked & !INTERRUPTED;
            let Some(module) = module.and_then(|module| modules.get(module)) else {
                let (function, line) = (None, None);
                frames.push(Frame {
                    function,
                    module: None,
                    offset: address,
                    line,
                    inlined: false,
                });
                continue;
            };
            let name = Name::new(&module.path);
            if name.base().starts_with(NAME.as_bytes()) {
                continue;
            }
            let offset = address.wrapping_sub(module.bias).wrapping_sub(is_return.into());
            let key = (module.path.clone(), module.build_id.clone(), offset);
            let symbols = &mut self.symbols;
            let found = self.known.entry(key).or_insert_with(|| {
                let file = MappedModule { path: &module.path, build_id: &module.build_id, ran_ns };
                symbols.frames(&file, &[offset]).0.into_iter().next().unwrap_or_default()
            });
            frames.extend(found.iter().cloned());
        }
        frames
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Message of a memory error with one module and a frame in each stack.
    fn message() -> Vec<u64> {
        let mut words = vec![0; word::BUG_WORDS];
        words[word::MAGIC] = MAGIC;
        words[word::KIND] = kind::BUG;
        words[word::PID] = 1;
        words[word::TID] = 2;
        words[word::NAME] = u64::from_ne_bytes(*b"worker\0\0");
        words[word::BUG] = bug::USE_AFTER_FREE;
        words[word::ACCESS] = access::READ;
        words[word::ADDRESS] = 0x1005;
        words[word::OBJECT] = 0x1000;
        words[word::SIZE] = 64;
        words[word::ALLOCATED_BY] = 2;
        words[word::FREED_BY] = 3;
        words[word::MODULES] = 1;
        for number in 0..3 {
            words[word::FRAMES + number] = 1;
        }
        let path = u64::from_ne_bytes(*b"/no/such");
        words.extend([0x5000, 0x9000, 0x4000, 8, 2, path, 0xabcd]);
        words.extend([INTERRUPTED | 0x5010, 1, 0x5020, 1, 0x7000_0000, 0]);
        words
    }

    fn bug_of(words: &[u64]) -> Option<MemoryBug> {
        Some(Resolver::default().resolve(read_bug(words, Pid(1), b"/the/program")?))
    }

    #[test]
    fn a_message_is_read() {
        let bug = bug_of(&message()).unwrap();
        assert_eq!((bug.kind, bug.access), (BugKind::UseAfterFree, BugAccess::Read));
        assert_eq!(bug.thread, Name::from("worker"));
        let object = bug.object.as_ref().unwrap();
        let freed = object.freed.as_ref().unwrap();
        assert_eq!((object.size, object.allocated.tid, freed.tid), (64, Pid(2), Pid(3)));
        let first = |stack: &Reading<Vec<Frame>>| stack.as_ref().unwrap()[0].clone();
        // The interrupted instruction, the call before a return address, and code outside of all
        // files.
        assert_eq!(first(&bug.stack).offset, 0x1010);
        assert_eq!(first(&object.allocated.stack).offset, 0x101f);
        assert_eq!(first(&freed.stack).module, None);
        assert_eq!(first(&freed.stack).offset, 0x7000_0000);
        assert_eq!(first(&bug.stack).module, Some(Name::from("/no/such")));
    }

    #[test]
    fn a_cut_message_is_refused_and_a_changed_one_does_no_harm() {
        let whole = message();
        for length in 0..whole.len() {
            assert!(bug_of(&whole[..length]).is_none(), "{length}");
        }
        for at in 0..whole.len() {
            for value in [0, 1, 255, 257, u64::from(u32::MAX), u64::MAX] {
                let mut changed = whole.clone();
                changed[at] = value;
                let _ = bug_of(&changed);
            }
        }
    }
}
