//! A function that a process runs on an additional thread, which ends with the function.
//!
//! If a thread of the program ran the function, its own work would wait: on busy CPUs for hundreds
//! of milliseconds. So an additional thread runs the function. Its stack, and its thread data (the
//! C library's `struct pthread`, whose address is in register `fs`), are in a mapping that pagewise
//! creates:
//!
//! ```text
//!  | alive | .......... stack | contexts: the function, exit | variables of libraries | struct pthread |
//!                                ^ first stack pointer                                ^ fs
//! ```
//!
//! After `clone`, the new thread executes `rt_sigreturn`, as remote calls do, and gets registers
//! that call the function. When the function returns, the thread executes `rt_sigreturn` again, and
//! gets registers that call `exit`. So the thread needs no code of pagewise, and its stack pointer
//! is in the mapping from the first to the last instruction.
//!
//! The thread data are zero-filled, except the words that code of the C library reads in every
//! thread. These words are the address of the data, and a flag that the process has several
//! threads, so that locks are not skipped. All other thread-local variables are zero, also those
//! with another initial value. So the function must belong to the C library, and must use no
//! thread-local variable except `errno`.
//!
//! A [`Keeper`] notes the mapping before pagewise creates it. If pagewise is killed, the process
//! that finds the note unmaps the mapping. It does so only when no thread uses the mapping, and no
//! thread is about to create the additional thread.

use std::io;
use std::thread::sleep;
use std::time::{Duration, Instant};

use pagewise_model::Mapping;
use pagewise_sys::priority::briefly_raised;

use crate::process::on_tracer_thread;
use crate::thread::spawn::ThreadMemory;
use crate::{Keeper, RemoteError, RemoteProcess, Scratch, Tracee};

/// Size of the mapping in bytes.
const SIZE: u64 = 1 << 20;
/// Offset of the end of the stack in the mapping, where the contexts begin.
const CONTEXTS: u64 = SIZE / 2;
/// Offset of the data of the thread (`fs`). The C library's `struct pthread` of about 2.3 KiB
/// begins there.
const THREAD_DATA: u64 = SIZE - (16 << 10);
/// Maximum size in bytes of the thread-local variables of all libraries, which lie below the data
/// of the thread.
const MAX_THREAD_VARIABLES: u64 = 256 << 10;
/// Interval at which the end of the function is polled.
const POLL: Duration = Duration::from_micros(500);

/// Offset of the word that the kernel clears at the end of the thread (`CLONE_CHILD_CLEARTID`).
const ALIVE: u64 = 0;

/// An additional thread of a process, which runs a function.
#[derive(Debug)]
pub struct FunctionThread<'a> {
    target: &'a RemoteProcess,
    memory: Scratch,
    longest_stop: Duration,
}

impl<'a> FunctionThread<'a> {
    /// Makes a process run a function of its C library with one argument, on an additional thread.
    /// A thread of the process is stopped a few times, each time for short calls.
    ///
    /// # Errors
    /// Those of [`RemoteProcess::any_thread`] and [`Scratch::map`]; [`RemoteError::System`] if the
    /// kernel creates no thread; the function is then not run.
    pub fn start(
        target: &'a RemoteProcess,
        function: u64,
        argument: u64,
        keeper: &mut (dyn Keeper + Send),
    ) -> Result<FunctionThread<'a>, RemoteError> {
        if thread_variables(target, &target.mappings()?) > MAX_THREAD_VARIABLES {
            return Err(RemoteError::Unsupported(
                "its libraries have large thread-local variables",
            ));
        }
        let mut longest_stop = Duration::ZERO;
        let memory = short_stop(target, &mut longest_stop, |thread| {
            Scratch::map_with(target, thread, SIZE, false, &mut *keeper)
        })?;
        let mut made = FunctionThread { target, memory, longest_stop };
        match made.run(function, argument, keeper) {
            Ok(()) => Ok(made),
            // A thread may still be about to create the additional thread, so the keeper unmaps the
            // memory later.
            Err(error) if error.is_late() => Err(error),
            Err(error) => {
                made.unmap(keeper);
                Err(error)
            }
        }
    }

    fn run(
        &mut self,
        function: u64,
        argument: u64,
        keeper: &mut (dyn Keeper + Send),
    ) -> Result<(), RemoteError> {
        let FunctionThread { target, memory, longest_stop } = self;
        let start = memory.range().start;
        let thread_data = start + THREAD_DATA;
        short_stop(target, longest_stop, |thread| memory.keep_from_children(thread))?;
        write(target, start, thread_data).map_err(RemoteError::system(NOT_WRITTEN))?;
        let contexts =
            ThreadMemory { contexts: start + CONTEXTS, thread_data, alive: start + ALIVE };
        short_stop(target, longest_stop, |thread| {
            // From here on, the thread that creates the additional thread uses the mapping.
            memory.note_user(thread, keeper);
            thread
                .make_thread(target.memory(), &contexts, function, argument)
                .map_err(RemoteError::system("it cannot make a thread"))
        })
    }

    /// Waits for the end of the function, for at most `limit`. Returns false if it still runs.
    ///
    /// # Errors
    /// [`RemoteError::Gone`]
    pub fn wait(&self, limit: Duration) -> Result<bool, RemoteError> {
        let begin = Instant::now();
        loop {
            let mut alive = [0; 4];
            let read = self.target.memory().read(self.memory.range().start + ALIVE, &mut alive);
            read.map_err(|_| RemoteError::Gone)?;
            if alive == [0; 4] || begin.elapsed() >= limit {
                return Ok(alive == [0; 4]);
            }
            sleep(POLL);
        }
    }

    /// Unmaps the memory of the additional thread. Called only after the function has ended.
    /// Returns the longest time for which a thread of the process was stopped.
    pub fn unmap(self, keeper: &mut (dyn Keeper + Send)) -> Duration {
        let FunctionThread { target, memory, mut longest_stop } = self;
        // If the call fails, the keeper unmaps the memory.
        let unmapped =
            short_stop(target, &mut longest_stop, |thread| memory.unmap(thread, &mut *keeper));
        drop(unmapped);
        longest_stop
    }

    /// Leaves the function running; the keeper unmaps the memory after its end. Returns the longest
    /// time for which a thread of the process was stopped.
    pub fn leave(self) -> Duration {
        self.longest_stop
    }
}

const NOT_WRITTEN: &str = "cannot write to its memory";

/// Writes the data of the additional thread to the mapping.
fn write(target: &RemoteProcess, start: u64, thread_data: u64) -> io::Result<()> {
    /// Offsets in `tcbhead_t` of glibc (sysdeps/x86_64/nptl/tls.h): two words that contain the
    /// address of the struct itself, and `multiple_threads`.
    const OWN_ADDRESS: [u64; 2] = [0, 16];
    const SEVERAL_THREADS: u64 = 24;
    let memory = target.memory();
    memory.write(start + ALIVE, &1_u64.to_le_bytes())?;
    for offset in OWN_ADDRESS {
        memory.write(thread_data + offset, &thread_data.to_le_bytes())?;
    }
    memory.write(thread_data + SEVERAL_THREADS, &1_u32.to_le_bytes())
}

/// Stops a thread of the process, runs `act` with it, and resumes it. Only this thread is stopped.
fn short_stop<T: Send>(
    target: &RemoteProcess,
    longest: &mut Duration,
    act: impl FnOnce(&mut Tracee) -> Result<T, RemoteError> + Send,
) -> Result<T, RemoteError> {
    // The priority is raised, because the target's thread stays stopped while this thread waits for
    // a CPU.
    let stop = || {
        let mut thread = target.any_thread()?;
        let done = act(&mut thread);
        *longest = thread.release().max(*longest);
        done
    };
    on_tracer_thread(|| briefly_raised(stop))
}

/// Number of bytes of the thread-local variables of all mapped files, from their ELF headers in
/// memory.
fn thread_variables(target: &RemoteProcess, mappings: &[Mapping]) -> u64 {
    let first = mappings.iter().filter(|it| it.inode != 0 && it.offset == 0);
    let sizes = first.map(|mapping| {
        thread_variables_of(&target.memory().read_up_to(mapping.range.start, HEADERS)).unwrap_or(0)
    });
    sizes.fold(0, u64::saturating_add)
}

/// Number of bytes at the start of a file that contain its program headers.
const HEADERS: usize = 4 << 10;

/// Number of bytes of the thread-local variables (`PT_TLS`) of a 64-bit ELF file, rounded up to
/// their alignment.
fn thread_variables_of(head: &[u8]) -> Option<u64> {
    const PT_TLS: u32 = 7;
    /// Offsets of `e_phoff`, `e_phentsize` and `e_phnum`, and of `p_memsz` and `p_align`.
    const TABLE: usize = 32;
    const ENTRY_SIZE: usize = 54;
    const ENTRY_COUNT: usize = 56;
    const BYTES: usize = 40;
    const ALIGNMENT: usize = 48;
    let word = |at: usize| Some(u64::from_le_bytes(*head.get(at..)?.first_chunk()?));
    let half = |at: usize| Some(u16::from_le_bytes(*head.get(at..)?.first_chunk()?).into());
    head.strip_prefix(b"\x7fELF\x02")?;
    let table = usize::try_from(word(TABLE)?).ok()?;
    let (size, count): (usize, usize) = (half(ENTRY_SIZE)?, half(ENTRY_COUNT)?);
    let entries = (0..count).map_while(|index| {
        let entry = table.checked_add(index * size)?;
        let kind = u32::from_le_bytes(*head.get(entry..)?.first_chunk()?);
        let bytes = word(entry.checked_add(BYTES)?)?.saturating_add(word(entry + ALIGNMENT)?);
        Some(if kind == PT_TLS { bytes } else { 0 })
    });
    Some(entries.fold(0, u64::saturating_add))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_size_of_thread_local_variables_is_in_the_program_headers() {
        let mut head = vec![0; HEADERS];
        head[..5].copy_from_slice(b"\x7fELF\x02");
        head[32..40].copy_from_slice(&64_u64.to_le_bytes());
        head[54..58].copy_from_slice(&[56, 0, 2, 0]);
        head[64 + 56..64 + 60].copy_from_slice(&7_u32.to_le_bytes());
        head[64 + 56 + 40..64 + 56 + 48].copy_from_slice(&1000_u64.to_le_bytes());
        head[64 + 56 + 48..64 + 56 + 56].copy_from_slice(&16_u64.to_le_bytes());
        assert_eq!(thread_variables_of(&head), Some(1016));
        assert_eq!(thread_variables_of(&head[..100]), Some(0), "cut off");
        head[32..40].fill(0xff);
        assert_eq!(thread_variables_of(&head), Some(0), "a table at no place");
        assert_eq!(thread_variables_of(b"#!/bin/sh"), None);
    }
}
