//! Reports of memory errors, which are sent with all call stacks to the collector's socket before
//! the program continues or ends.

use std::sync::atomic::{AtomicU8, AtomicU64, Ordering::Relaxed};

use pagewise_heaplog::guard::{
    self, MAGIC, MAX_MESSAGE_WORDS, MAX_MODULES, MAX_STACK_FRAMES, access, bug, kind, made_by,
    module, word,
};
use pagewise_heaplog::recording::ROOT;
use pagewise_heaplog::tables::{INTERRUPTED, greeting, module as entry};

use super::{goes_on, pool};
use crate::kernel::{self, OwnedFile};
use crate::lock::Lock;
use crate::shared;
use crate::stacks::CallPoint;
use crate::threads;

/// Access to an object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ObjectAccess {
    Read,
    Write,
    Execute,
}

impl ObjectAccess {
    fn number(self) -> u64 {
        match self {
            ObjectAccess::Read => access::READ,
            ObjectAccess::Write => access::WRITE,
            ObjectAccess::Execute => access::EXECUTE,
        }
    }
}

/// A memory error in an object, or at an address without an object.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ObjectBug {
    pub bug: u64,
    pub access: u64,
    pub address: usize,
    pub object: Option<pool::Id>,
    /// Call tree node of the erroneous access or call.
    pub node: u32,
    pub goes_on: bool,
    /// Family of the function that frees the object, and the size that the function was passed.
    pub freed_by: u32,
    pub freed_size: Option<usize>,
}

impl ObjectBug {
    /// Creates an error without an object.
    pub(crate) fn new(
        bug: u64,
        access: u64,
        address: usize,
        node: u32,
        goes_on: bool,
    ) -> ObjectBug {
        let (freed_by, freed_size) = (made_by::MALLOC, None);
        ObjectBug { bug, access, address, object: None, node, goes_on, freed_by, freed_size }
    }
}

/// Path of the socket, with a terminating zero byte.
static PATH: [AtomicU8; 109] = [const { AtomicU8::new(0) }; 109];
/// Protects [`MESSAGE`].
static LOCK: Lock = Lock::new();
static MESSAGE: [AtomicU64; MAX_MESSAGE_WORDS] = [const { AtomicU64::new(0) }; MAX_MESSAGE_WORDS];
/// Hashes of reported errors, so that an error in a loop is reported once.
static TOLD: [AtomicU64; 512] = [const { AtomicU64::new(0) }; 512];
/// Maximum number of bytes of a path in a message.
const MAX_TEXT_BYTES: usize = 4 << 10;

/// Sets the socket for reports. Returns `None` if the path is too long.
pub(crate) fn begin(path: &[u8]) -> Option<()> {
    for (to, from) in PATH.iter().zip(path) {
        to.store(*from, Relaxed);
    }
    (path.len() < PATH.len()).then_some(())
}

/// Resets the lock in a child of `fork`.
pub(crate) fn forked() {
    LOCK.reset();
}

/// The message in [`MESSAGE`] while it is being built. Requires [`LOCK`].
struct BugMessage {
    used: usize,
}

impl BugMessage {
    fn new(kind: u64, words: usize) -> BugMessage {
        let mut message = BugMessage { used: words };
        for number in 0..words {
            message.set(number, 0);
        }
        message.set(word::MAGIC, MAGIC);
        message.set(word::KIND, kind);
        message.set(word::PID, u64::from(kernel::process()));
        message.set(word::TIME, kernel::clock(libc::CLOCK_REALTIME));
        message
    }

    fn set(&mut self, number: usize, value: u64) {
        if let Some(to) = MESSAGE.get(number) {
            to.store(value, Relaxed);
        }
    }

    fn push(&mut self, value: u64) {
        self.set(self.used, value);
        self.used += 1;
    }

    fn bytes(&mut self, at: u64, length: usize) {
        for begin in (0..length).step_by(8) {
            let mut word = [0_u8; 8];
            for (number, byte) in word.iter_mut().enumerate().take(length - begin) {
                *byte = shared::byte(at as usize + begin + number);
            }
            self.push(u64::from_ne_bytes(word));
        }
    }

    /// Sends the message and waits for the answer. Returns true if the collector has received the
    /// message.
    fn send(self) -> bool {
        self.send_with(None)
    }

    /// Sends the message together with a file descriptor, and waits for the answer.
    fn send_with(mut self, file: Option<&OwnedFile>) -> bool {
        self.set(word::LENGTH, self.used as u64);
        let mut path = [0_u8; 109];
        for (to, from) in path.iter_mut().zip(&PATH) {
            *to = from.load(Relaxed);
        }
        let end = path.iter().position(|&byte| byte == 0).unwrap_or(0);
        let words = self.used.min(MAX_MESSAGE_WORDS);
        // SAFETY: the array has at least `words` words of eight bytes, and changes only under the
        // lock, which is held.
        let bytes = unsafe { std::slice::from_raw_parts(MESSAGE.as_ptr().cast(), words * 8) };
        let say = || {
            let socket = OwnedFile::connect(path.get(..end)?).ok()?;
            let sent = match file {
                Some(file) => socket.send(bytes, file).ok()?,
                None => 0,
            };
            socket.say(bytes.get(sent..)?).ok()?;
            let mut answer = [0_u8];
            socket.read(&mut answer).ok()?;
            (answer == [greeting::YES]).then_some(())
        };
        say().is_some()
    }
}

/// Asks the collector for permission to guard this process. Returns true if it agrees.
pub(crate) fn hello() -> bool {
    let _held = LOCK.hold();
    let mut message = BugMessage::new(kind::HELLO, word::HELLO_WORDS);
    message.set(word::PARENT, u64::from(kernel::parent()));
    message.set(word::MEANS, pool::means());
    message.send()
}

/// Sends a descriptor to the collector, which keeps a duplicate open until this process ends.
pub(crate) fn hold(file: &OwnedFile) {
    let _held = LOCK.hold();
    BugMessage::new(kind::HOLD, word::HOLD_WORDS).send_with(Some(file));
}

/// Reports the end of the program, with the counts of objects.
pub(crate) fn end() {
    let _held = LOCK.hold();
    let (guarded, left_out, most) = pool::counts();
    let mut message = BugMessage::new(kind::END, word::END_WORDS);
    message.set(word::GUARDED, guarded);
    message.set(word::LEFT_OUT, left_out);
    message.set(word::PEAK_BYTES, most);
    message.send();
}

/// Handles an access to guarded memory that raised SIGSEGV. Returns true if the program can
/// continue because the page is accessible now.
pub(crate) fn access(address: usize, at: CallPoint, how: ObjectAccess) -> bool {
    let goes_on = goes_on();
    let meant = pool::meant(address).map(|(id, _)| id);
    let bug = meant.map_or(bug::WILD, |id| {
        let slot = id.slot();
        let start = slot.address.load(Relaxed);
        let end = start + slot.size.load(Relaxed);
        if slot.state.load(Relaxed) == pool::state::FREED {
            bug::USE_AFTER_FREE
        } else if address < start {
            bug::UNDERFLOW
        } else if address >= end {
            bug::OVERFLOW
        } else {
            // Another thread has freed the object and reused the slot meanwhile, so the current
            // object is not the one that the program accessed.
            bug::WILD
        }
    });
    let node = interrupted(at);
    tell(&ObjectBug { object: meant, ..ObjectBug::new(bug, how.number(), address, node, goes_on) });
    goes_on && pool::find(address).is_some_and(|id| id.let_in(address))
}

/// Reports an access to unguarded memory, which ends the program by `signal`.
pub(crate) fn fault(signal: i32, address: usize, at: CallPoint, how: ObjectAccess) {
    let bug = if signal == libc::SIGBUS { bug::BUS_FAULT } else { bug::FAULT };
    tell(&ObjectBug::new(bug, how.number(), address, interrupted(at), false));
}

/// Returns the call tree node of an instruction that was interrupted.
fn interrupted(at: CallPoint) -> u32 {
    let at = CallPoint { code: at.code | INTERRUPTED, ..at };
    threads::enter().map_or(ROOT, |entered| {
        let node = entered.thread().node(at);
        threads::leave(entered);
        node
    })
}

/// Reports a memory error, unless it was reported before.
pub(crate) fn tell(bug: &ObjectBug) {
    let _held = LOCK.hold();
    let object = bug.object.map(pool::Id::slot);
    let allocated_at = object.map_or(ROOT, |slot| slot.allocated_at.load(Relaxed));
    if was_told([bug.bug, bug.access, u64::from(bug.node), u64::from(allocated_at)]) {
        return;
    }
    let mut message = BugMessage::new(kind::BUG, word::BUG_WORDS);
    message.set(word::TID, u64::from(kernel::thread()));
    for (number, part) in kernel::thread_name().chunks_exact(8).enumerate() {
        message.set(word::NAME + number, part.try_into().map_or(0, u64::from_ne_bytes));
    }
    message.set(word::BUG, bug.bug);
    message.set(word::ACCESS, bug.access);
    message.set(word::ADDRESS, bug.address as u64);
    message.set(word::GOES_ON, u64::from(bug.goes_on));
    message.set(word::FREED_AS, u64::from(bug.freed_by));
    message.set(word::FREED_SIZE, bug.freed_size.map_or(u64::MAX, |size| size as u64));
    let mut stacks = [bug.node, ROOT, ROOT];
    if let Some(slot) = object {
        message.set(word::OBJECT, slot.address.load(Relaxed) as u64);
        message.set(word::SIZE, slot.size.load(Relaxed) as u64);
        message.set(word::ALLOCATED_BY, u64::from(slot.allocated_by.load(Relaxed)));
        message.set(word::FREED_BY, u64::from(slot.freed_by.load(Relaxed)));
        message.set(word::MADE_BY, u64::from(slot.made_by.load(Relaxed)));
        stacks[1] = allocated_at;
        if slot.freed_by.load(Relaxed) != 0 {
            stacks[2] = slot.freed_at.load(Relaxed);
        }
    }
    put_stacks(stacks, &mut message);
    if !message.send() {
        kernel::complain(
            b"pagewise guard: a memory error was detected, but no collector receives its report\n",
        );
    }
}

/// Adds the frames of the call stacks to a message, and the modules that contain their code.
fn put_stacks(stacks: [u32; 3], message: &mut BugMessage) {
    let mut modules = Modules { known: [0; MAX_MODULES], count: 0 };
    for node in stacks {
        for place in (StackNodes { node, left: MAX_STACK_FRAMES }) {
            modules.number(shared::place(place).1.load(Relaxed));
        }
    }
    for index in 0..modules.count {
        modules.put(index, message);
    }
    message.set(word::MODULES, modules.count as u64);
    for (number, node) in stacks.into_iter().enumerate() {
        let mut frames = 0;
        for place in (StackNodes { node, left: MAX_STACK_FRAMES }) {
            let (address, module) = shared::place(place);
            message.push(address.load(Relaxed));
            message.push(modules.number(module.load(Relaxed)));
            frames += 1;
        }
        message.set(word::FRAMES + number, frames);
    }
}

fn was_told(words: [u64; 4]) -> bool {
    let mix =
        |hash: u64, word: u64| (hash ^ word).wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(29);
    let hash = words.into_iter().fold(1, mix) | 1;
    for told in &TOLD {
        match told.load(Relaxed) {
            0 => {
                told.store(hash, Relaxed);
                return false;
            }
            known if known == hash => return true,
            _ => {}
        }
    }
    // The table is full, so further errors are not reported.
    true
}

/// Yields the indices of the return addresses of a call stack, from the innermost one outward.
struct StackNodes {
    node: u32,
    left: usize,
}

impl Iterator for StackNodes {
    type Item = usize;

    fn next(&mut self) -> Option<usize> {
        if self.node == ROOT {
            return None;
        }
        self.left = self.left.checked_sub(1)?;
        let (parent, place) = shared::node(self.node as usize);
        self.node = parent.load(Relaxed);
        Some(place.load(Relaxed) as usize)
    }
}

/// Modules in a message, each as its number in the tables plus 1.
struct Modules {
    known: [u64; MAX_MODULES],
    count: usize,
}

impl Modules {
    /// Converts the number plus 1 of a module in the tables to its number plus 1 in the message.
    /// Returns 0 for 0, and if the message has no space for another module.
    fn number(&mut self, module: u64) -> u64 {
        if module == 0 {
            return 0;
        }
        let known = self.known.iter().take(self.count).position(|&known| known == module);
        match known {
            Some(index) => index as u64 + 1,
            None if self.count < MAX_MODULES => {
                self.known[self.count] = module;
                self.count += 1;
                self.count as u64
            }
            None => 0,
        }
    }

    fn put(&self, index: usize, message: &mut BugMessage) {
        let number = self.known[index] as usize - 1;
        let get = |word| shared::module(number, word).load(Relaxed);
        let path = (get(entry::PATH_LENGTH) as usize).min(MAX_TEXT_BYTES);
        let id = (get(entry::BUILD_ID_LENGTH) as usize).min(64);
        // Paths may be long, and the message must keep space for the frames.
        let room = MAX_MESSAGE_WORDS
            - 2 * 3 * MAX_STACK_FRAMES
            - (MAX_MODULES - index) * (module::WORDS + 16);
        let path = if message.used + path / 8 > room { 0 } else { path };
        for value in [get(entry::START), get(entry::END), get(entry::BIAS), path as u64, id as u64]
        {
            message.push(value);
        }
        message.bytes(get(entry::PATH), path);
        message.bytes(get(entry::BUILD_ID), id);
    }
}

/// Aborts the program after an erroneous call, unless it is set to continue.
pub(crate) fn after_a_call() {
    if !goes_on() {
        // SAFETY: `abort` has no preconditions; the C library also ends the program at such errors.
        unsafe { libc::abort() }
    }
}

const _: () =
    assert!(guard::MAX_STACK_FRAMES * 6 + guard::MAX_MODULES * 32 < guard::MAX_MESSAGE_WORDS);
