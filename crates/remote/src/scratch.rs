//! A mapping that pagewise creates in a target, for stacks of functions and for saved contexts.
//!
//! Before the mapping is created, its address is chosen, and a [`Keeper`] notes the address outside
//! of the target. If pagewise is killed, the process that finds the note unmaps the mapping.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use pagewise_model::AddrRange;
use pagewise_model::mapping::Sharing;
use pagewise_sys::system::page_size;

use crate::code::free_range;
use crate::thread::Tracee;
use crate::undo::{Keeper, Undo, attempt_until};
use crate::{RemoteError, RemoteProcess};

/// Index of the register with the first argument of a system call in
/// [`StopPoint::registers`](crate::StopPoint).
const DI: usize = 5;
/// Maximum time for which an undo stops the process.
const PAUSE: Duration = Duration::from_secs(1);

/// A mapping that is to be unmapped. Its text form is `PID START-TICKS FIRST-LAST TID CHAIN
/// RESTORE`; the last three words may be missing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MappingUndo {
    /// PID of the process.
    pub pid: u32,
    /// Start time of the process, in clock ticks since boot.
    pub start_ticks: u64,
    /// Addresses of the mapping.
    pub range: AddrRange,
    /// Thread that creates the mapping.
    pub by: Option<Returning>,
}

/// A thread that makes calls, and the address of the word by which its last call returns to a saved
/// context.
///
/// The word is on the thread's own stack. While the word is unchanged and the stack pointer is not
/// above it, the thread has not finished its calls. It may be in a signal handler, where its
/// registers do not show the pending calls.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Returning {
    /// ID of the thread.
    pub thread: u32,
    /// Address of the word.
    pub chain: u64,
    /// Value of the word: the address of code that calls `rt_sigreturn`. Both the C library and the
    /// loader contain such code, so the address that was used is stored here.
    pub restore: u64,
}

impl Returning {
    /// Distance in bytes from the word; a stack pointer that is further above the word belongs to
    /// another stack.
    const MAX_STACK: u64 = 64 << 20;

    fn is_pending(&self, target: &RemoteProcess, stopped: &[Tracee]) -> bool {
        let is_it = |thread: &&Tracee| thread.thread() == self.thread;
        let Some(thread) = stopped.iter().find(is_it) else { return false };
        let stack = thread.place().stack;
        let is_above = stack > self.chain && stack - self.chain < Returning::MAX_STACK;
        let mut word = [0; 8];
        let is_there = target.memory().read(self.chain, &mut word).is_ok();
        !is_above && is_there && u64::from_le_bytes(word) == self.restore
    }
}

impl fmt::Display for MappingUndo {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {} {}", self.pid, self.start_ticks, self.range)?;
        match self.by {
            Some(Returning { thread, chain, restore }) => {
                write!(f, " {thread} {chain:x} {restore:x}")
            }
            None => Ok(()),
        }
    }
}

impl FromStr for MappingUndo {
    type Err = ();

    fn from_str(text: &str) -> Result<MappingUndo, ()> {
        let mut words = text.split(' ');
        let mut word = || words.next().ok_or(());
        let pid = word()?.parse().map_err(drop)?;
        let start_ticks = word()?.parse().map_err(drop)?;
        let (start, end) = word()?.split_once('-').ok_or(())?;
        let address = |digits| u64::from_str_radix(digits, 16).map_err(drop);
        let range = AddrRange { start: address(start)?, end: address(end)? };
        let by = match word() {
            Ok(thread) => {
                let thread = thread.parse().map_err(drop)?;
                Some(Returning { thread, chain: address(word()?)?, restore: address(word()?)? })
            }
            Err(()) => None,
        };
        Ok(MappingUndo { pid, start_ticks, range, by })
    }
}

impl MappingUndo {
    /// Unmaps the mapping once no thread uses it any more. False if the mapping was never created,
    /// or if the process has ended or executed another program.
    ///
    /// # Errors
    /// As [`Undo::carry_out`].
    pub(crate) fn carry_out(&self, patience: Duration) -> Result<bool, RemoteError> {
        attempt_until(patience, &|| self.attempt())
    }

    /// True if the mapping was unmapped; `None` if a thread uses it or may still create it, or if
    /// no thread can make calls.
    fn attempt(&self) -> Result<Option<bool>, RemoteError> {
        let target = RemoteProcess::open(self.pid, Some(self.start_ticks))?;
        let stopped = target.stop_all(PAUSE)?;
        // A thread that is about to create the mapping has the address in the first argument of its
        // call.
        let maps = |thread: &Tracee| thread.place().registers[DI] == self.range.start;
        let uses = |thread: &Tracee| {
            let place = thread.place();
            self.range.contains(place.stack) || self.range.contains(place.instruction)
        };
        let is_pending = self.by.is_some_and(|by| by.is_pending(&target, &stopped));
        if !self.is_mapped(&target)? {
            return Ok((!is_pending && !stopped.iter().any(maps)).then_some(false));
        }
        if is_pending || stopped.iter().any(uses) {
            return Ok(None);
        }
        Ok(self.unmap_by(&target, stopped)?.then_some(true))
    }

    /// Makes one of the stopped threads unmap the mapping; false if no thread can make calls now.
    fn unmap_by(
        &self,
        target: &RemoteProcess,
        mut stopped: Vec<Tracee>,
    ) -> Result<bool, RemoteError> {
        for thread in &mut stopped {
            match target.prepare(thread) {
                Ok(()) => {
                    let range = self.range.start..self.range.end;
                    thread
                        .unmap(range)
                        .map_err(RemoteError::system("cannot unmap what was left"))?;
                    return Ok(true);
                }
                Err(RemoteError::NoStack(_) | RemoteError::Restartable(_)) => {}
                Err(error) => return Err(error),
            }
        }
        Ok(false)
    }

    /// True if the process has a private anonymous mapping of exactly this range.
    fn is_mapped(&self, target: &RemoteProcess) -> Result<bool, RemoteError> {
        let mappings = target.mappings()?;
        let found = mappings.iter().find(|mapping| mapping.range == self.range);
        Ok(found.is_some_and(|it| it.inode == 0 && it.sharing == Sharing::Private))
    }
}

/// A mapping that pagewise has created in a target. Only [`Scratch::unmap`] unmaps it.
#[derive(Debug)]
pub struct Scratch {
    undo: MappingUndo,
}

impl Scratch {
    /// Makes a stopped thread, which must be ready to make calls, map at least `length` writable
    /// bytes.
    ///
    /// # Errors
    /// [`RemoteError::System`] if the kernel refuses the mapping, [`RemoteError::Gone`].
    pub fn map(
        target: &RemoteProcess,
        thread: &mut Tracee,
        length: u64,
        keeper: &mut dyn Keeper,
    ) -> Result<Scratch, RemoteError> {
        Scratch::map_with(target, thread, length, false, keeper)?.kept(thread, keeper)
    }

    /// Creates a mapping like [`Scratch::map`], but executable and not writable: write the code
    /// through [`RemoteProcess::memory`].
    ///
    /// # Errors
    /// As [`Scratch::map`].
    pub fn map_code(
        target: &RemoteProcess,
        thread: &mut Tracee,
        length: u64,
        keeper: &mut dyn Keeper,
    ) -> Result<Scratch, RemoteError> {
        Scratch::map_with(target, thread, length, true, keeper)?.kept(thread, keeper)
    }

    fn kept(self, thread: &mut Tracee, keeper: &mut dyn Keeper) -> Result<Scratch, RemoteError> {
        match self.keep_from_children(thread) {
            Ok(()) => Ok(self),
            Err(error) => {
                self.unmap(thread, keeper)?;
                Err(error)
            }
        }
    }

    /// Maps memory by a single call.
    pub(crate) fn map_with(
        target: &RemoteProcess,
        thread: &mut Tracee,
        length: u64,
        execute: bool,
        keeper: &mut dyn Keeper,
    ) -> Result<Scratch, RemoteError> {
        let page = page_size();
        let length = length.next_multiple_of(page);
        let range = free_range(&target.mappings()?, length, page);
        let range = range.ok_or(RemoteError::Unsupported("its address space is full"))?;
        let by = thread.returning();
        let undo = MappingUndo { pid: target.pid(), start_ticks: target.start_ticks(), range, by };
        keeper.note(&Undo::Mapping(undo));
        if let Err(error) = thread.map_at(range.start..range.end, execute) {
            let error = RemoteError::system("it cannot map memory")(error);
            // If the call is late, the thread may still create the mapping, so the note stays.
            if !error.is_late() {
                keeper.strike(&Undo::Mapping(undo));
            }
            return Err(error);
        }
        Ok(Scratch { undo })
    }

    /// Notes another thread, which must be ready for calls, as the thread that is about to use the
    /// mapping.
    pub(crate) fn note_user(&mut self, thread: &Tracee, keeper: &mut dyn Keeper) {
        let before = self.undo;
        self.undo.by = thread.returning();
        if self.undo != before {
            keeper.note(&Undo::Mapping(self.undo));
            keeper.strike(&Undo::Mapping(before));
        }
    }

    /// Excludes the mapping from children that the target forks meanwhile (`MADV_DONTFORK`).
    pub(crate) fn keep_from_children(&self, thread: &mut Tracee) -> Result<(), RemoteError> {
        let kept = thread.keep_from_children(self.undo.range.start..self.undo.range.end);
        kept.map_err(RemoteError::system("it cannot map memory"))
    }

    /// Addresses of the mapping.
    pub fn range(&self) -> AddrRange {
        self.undo.range
    }

    /// Unmaps the mapping.
    ///
    /// # Errors
    /// [`RemoteError::System`] if the kernel refuses. Returns `Ok` if the process has ended,
    /// because its mappings are gone.
    pub fn unmap(self, thread: &mut Tracee, keeper: &mut dyn Keeper) -> Result<(), RemoteError> {
        let range = self.undo.range;
        match thread
            .unmap(range.start..range.end)
            .map_err(RemoteError::system("cannot unmap memory"))
        {
            Ok(()) | Err(RemoteError::Gone) => {
                keeper.strike(&Undo::Mapping(self.undo));
                Ok(())
            }
            refused => refused,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::process::Command;
    use std::thread::sleep;

    use pagewise_skip::{Lack, skip};

    use crate::on_tracer_thread;

    use super::*;

    /// A process that ends with the test, also if the test fails.
    struct ScratchChild(std::process::Child);

    impl ScratchChild {
        /// Starts the process, and waits until its C library is loaded.
        fn start(command: &mut Command) -> (ScratchChild, RemoteProcess) {
            let child = ScratchChild(command.spawn().unwrap());
            let ready = (0..30_000).find_map(|_| {
                sleep(Duration::from_millis(2));
                RemoteProcess::open(child.0.id(), None)
                    .ok()
                    .filter(|target| target.any_thread().is_ok())
            });
            (child, ready.expect("it can make calls"))
        }

        /// Waits until the process's only thread has a state, given by its letter in
        /// `/proc/PID/stat`.
        fn wait_for(&self, state: &str) {
            let path = format!("/proc/{}/stat", self.0.id());
            let is_it = |text: String| text.rsplit(") ").next().unwrap().starts_with(state);
            while !is_it(std::fs::read_to_string(&path).unwrap()) {
                sleep(Duration::from_millis(1));
            }
        }

        fn signal(&self, name: &str) {
            let pid = self.0.id().to_string();
            assert!(Command::new("kill").args(["-s", name, &pid]).status().unwrap().success());
        }
    }

    impl Drop for ScratchChild {
        fn drop(&mut self) {
            let _ = self.0.kill();
            let _ = self.0.wait();
        }
    }

    /// Prepares a thread to create a mapping when it is resumed, and leaves the thread as a killed
    /// tracer does. Returns the note of the mapping.
    fn left_behind(target: &RemoteProcess, is_masked: bool) -> MappingUndo {
        let length = 16 * page_size();
        let range = free_range(&target.mappings().unwrap(), length, page_size()).unwrap();
        on_tracer_thread(|| {
            let mut thread = target.any_thread().unwrap();
            let (protection, flags) = (libc::PROT_READ, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
            let arguments = [
                range.start,
                length,
                protection.cast_unsigned().into(),
                (flags | libc::MAP_FIXED_NOREPLACE).cast_unsigned().into(),
                u64::MAX,
                0,
            ];
            let by = thread.returning();
            match is_masked {
                true => thread.prepare_call(libc::SYS_mmap, arguments).unwrap(),
                false => thread.commit(libc::SYS_mmap, arguments, by.unwrap().chain).unwrap(),
            }
            std::mem::forget(thread);
            MappingUndo { pid: target.pid(), start_ticks: target.start_ticks(), range, by }
        })
    }

    #[test]
    fn a_mapping_is_undone_that_a_thread_has_yet_to_make() {
        if cfg!(not(target_arch = "x86_64")) {
            return;
        }
        let (sleeper, target) = ScratchChild::start(Command::new("sleep").arg("60"));
        // A process that a signal has stopped does not make the call when its tracer is killed.
        sleeper.signal("STOP");
        sleeper.wait_for("T");
        let undo = left_behind(&target, true);
        let error = undo.carry_out(Duration::from_millis(100)).unwrap_err();
        assert!(matches!(error, RemoteError::NotStopped(_)), "{error}");
        sleeper.signal("CONT");
        assert!(undo.carry_out(Duration::from_secs(60)).unwrap());
        assert!(!undo.is_mapped(&target).unwrap());
        drop(sleeper);
        assert!(!undo.carry_out(Duration::from_secs(1)).unwrap(), "it has ended");
    }

    #[test]
    fn a_mapping_is_undone_that_a_thread_makes_after_a_signal_handler() {
        if cfg!(not(target_arch = "x86_64")) {
            return;
        }
        let folder = tempfile::tempdir().unwrap();
        let [source, program] = ["handler.c", "handler"].map(|name| folder.path().join(name));
        let text = "#include <signal.h>\n#include <time.h>\n#include <unistd.h>\n\
                    static void handle(int number) {\n\
                        struct timespec time = {0, 500000000};\n\
                        (void)number;\n\
                        while (nanosleep(&time, &time)) { }\n\
                    }\n\
                    int main(void) { signal(SIGUSR1, handle); for (;;) pause(); }\n";
        std::fs::write(&source, text).unwrap();
        let built = Command::new("cc").arg("-o").args([&program, &source]).status();
        if !built.is_ok_and(|status| status.success()) {
            return skip(&Lack::Tool("cc"));
        }
        let (child, target) = ScratchChild::start(&mut Command::new(&program));
        child.wait_for("S");
        child.signal("STOP");
        child.wait_for("T");
        // The process handles the signal when it is resumed.
        child.signal("USR1");
        let undo = left_behind(&target, false);
        child.signal("CONT");
        child.wait_for("S");
        assert!(undo.carry_out(Duration::from_secs(60)).unwrap(), "it waits for the handler");
        assert!(!undo.is_mapped(&target).unwrap());
    }

    #[test]
    fn a_note_is_read_as_it_was_written() {
        let range = AddrRange { start: 0x7f00_0000_0000, end: 0x7f00_0000_2000 };
        let by = Some(Returning { thread: 8, chain: 0x7ffc_1234_5678, restore: 0x7f12 });
        let undo = MappingUndo { pid: 7, start_ticks: 99, range, by };
        assert_eq!(undo.to_string().parse(), Ok(undo));
        for text in ["", "7", "7 99", "7 99 5", "7 99 x-y", "a 99 1-2"] {
            assert_eq!(text.parse::<MappingUndo>(), Err(()), "{text}");
        }
    }
}
