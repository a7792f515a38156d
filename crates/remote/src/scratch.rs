//! A mapping of ours in a target, for stacks of functions and for saved contexts.
//!
//! Its address is chosen, and noted by a [`Keeper`] outside of the target, before it is mapped. If
//! we are killed, the process that finds the note unmaps it.

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

/// The first argument of calls among [`StopPoint::registers`](crate::StopPoint).
const DI: usize = 5;
/// The longest pause for an undo.
const PAUSE: Duration = Duration::from_secs(1);

/// A mapping that is to be unmapped: `PID START-TICKS FIRST-LAST TID CHAIN RESTORE`, as text; the
/// last three words may be missing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MappingUndo {
    /// The process.
    pub pid: u32,
    /// When it started, in clock ticks since boot.
    pub start_ticks: u64,
    /// The mapping.
    pub range: AddrRange,
    /// The thread that maps it.
    pub by: Option<Returning>,
}

/// A thread that makes calls, and the address of the word by which the last one returns to a saved
/// context.
///
/// The word is on the thread's own stack. While the word is unchanged and the stack pointer is not
/// above it, the calls are still to be made: the thread may be in a signal handler, where its
/// registers do not show them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Returning {
    /// The thread.
    pub thread: u32,
    /// The address of the word.
    pub chain: u64,
    /// The word: the address of `rt_sigreturn` that was used. The C library and the loader have one
    /// each.
    pub restore: u64,
}

impl Returning {
    /// A thread that is this far above the word is on another stack.
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
    /// Unmaps the mapping once no thread uses it any more. False where there is nothing to do: it
    /// was never mapped, or the process has ended or become another program.
    ///
    /// # Errors
    /// As [`Undo::carry_out`].
    pub(crate) fn carry_out(&self, patience: Duration) -> Result<bool, RemoteError> {
        attempt_until(patience, &|| self.attempt())
    }

    /// True if it was unmapped; `None` where a thread uses it, has yet to map it, or none can make
    /// calls.
    fn attempt(&self) -> Result<Option<bool>, RemoteError> {
        let target = RemoteProcess::open(self.pid, Some(self.start_ticks))?;
        let stopped = target.stop_all(PAUSE)?;
        // A thread that has yet to map it has the address among the arguments of its call.
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

    /// Unmaps it by one of the threads that are stopped; false where none can make calls now.
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

    /// True if a mapping of exactly this range is there, private and of no file.
    fn is_mapped(&self, target: &RemoteProcess) -> Result<bool, RemoteError> {
        let mappings = target.mappings()?;
        let found = mappings.iter().find(|mapping| mapping.range == self.range);
        Ok(found.is_some_and(|it| it.inode == 0 && it.sharing == Sharing::Private))
    }
}

/// A mapping of ours in a target. It is unmapped by [`Scratch::unmap`] only.
#[derive(Debug)]
pub struct Scratch {
    undo: MappingUndo,
}

impl Scratch {
    /// Maps at least `length` bytes, writable, by a stopped thread that is ready to make calls.
    ///
    /// # Errors
    /// [`RemoteError::System`] where the kernel refuses, [`RemoteError::Gone`].
    pub fn map(
        target: &RemoteProcess,
        thread: &mut Tracee,
        length: u64,
        keeper: &mut dyn Keeper,
    ) -> Result<Scratch, RemoteError> {
        Scratch::map_with(target, thread, length, false, keeper)?.kept(thread, keeper)
    }

    /// As [`Scratch::map`], but executable: the code is written through [`RemoteProcess::memory`].
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
            // The thread may still map it: then the note stays.
            if !error.is_late() {
                keeper.strike(&Undo::Mapping(undo));
            }
            return Err(error);
        }
        Ok(Scratch { undo })
    }

    /// Notes another thread, which is ready for calls, as the one that is about to use it.
    pub(crate) fn note_user(&mut self, thread: &Tracee, keeper: &mut dyn Keeper) {
        let before = self.undo;
        self.undo.by = thread.returning();
        if self.undo != before {
            keeper.note(&Undo::Mapping(self.undo));
            keeper.strike(&Undo::Mapping(before));
        }
    }

    /// Excludes the mapping from children that are forked meanwhile (`MADV_DONTFORK`).
    pub(crate) fn keep_from_children(&self, thread: &mut Tracee) -> Result<(), RemoteError> {
        let kept = thread.keep_from_children(self.undo.range.start..self.undo.range.end);
        kept.map_err(RemoteError::system("it cannot map memory"))
    }

    /// Its addresses.
    pub fn range(&self) -> AddrRange {
        self.undo.range
    }

    /// Unmaps it.
    ///
    /// # Errors
    /// [`RemoteError::System`] where the kernel refuses; where the process is gone, so is the
    /// mapping.
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

    /// A process that ends with the test, also where that fails.
    struct ScratchChild(std::process::Child);

    impl ScratchChild {
        /// Starts it, and waits until its C library is loaded.
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

        /// Waits until its only thread is in a state, by the letter of `/proc/PID/stat`.
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

    /// Prepares a thread to map memory when it runs on, and leaves it as a killed tracer does.
    /// Returns the note of the mapping.
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
        // A process that a signal has stopped does not go on to the call when its tracer dies.
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
        // It is handled once the process goes on.
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
