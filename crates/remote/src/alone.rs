//! Remote calls by one thread of a process while its other threads do not run, even if the tracer
//! is killed.
//!
//! A call that discards memory is correct only while no other thread writes to that memory. If the
//! other threads were merely stopped, they would run on during the call if the tracer is killed. So
//! each of the other threads gets registers with which it first waits on a futex, the gate, until
//! the calling thread opens the gate:
//!
//! ```text
//!  calling thread   [call by the tracer]  -> FUTEX_WAKE_OP: gate = open, wake all -> own registers
//!  other threads                             FUTEX_WAIT while the gate is shut    -> own registers
//! ```
//!
//! The tracer shuts the gate only after all threads are prepared and have blocked their signals,
//! and opens it before it restores the first thread. A tracer that is not killed restores all
//! threads itself, and the threads make none of these futex calls.

use std::io;
use std::ops::Range;
use std::time::Duration;

use pagewise_model::AddrRange;
use pagewise_sys::madvise::Advice;

use crate::thread::{CHAINED, Tracee};
use crate::{RemoteError, RemoteProcess, Scratch};

/// Offset of the gate, a futex word, in the scratch mapping.
const GATE: u64 = 64;
const SHUT: u32 = 0;
const OPEN: u32 = 1;
/// Offset of the first saved context in the scratch mapping.
const SLOTS: u64 = 512;
/// Number of bytes below a saved context, for the context of a futex call and its return address.
const BELOW: u64 = CHAINED + 64;

/// All threads of a process, stopped, one of which makes calls. The threads run on when the value
/// is dropped.
#[derive(Debug)]
pub struct Alone<'a> {
    target: &'a RemoteProcess,
    gate: u64,
    caller: Option<Tracee>,
    others: Vec<Tracee>,
}

impl<'a> Alone<'a> {
    /// Number of bytes that a scratch mapping needs for `threads` threads.
    ///
    /// # Errors
    /// [`RemoteError::Gone`]
    pub fn scratch_size(thread: &mut Tracee, threads: usize) -> Result<u64, RemoteError> {
        Ok(SLOTS + slot_size(thread)? * threads as u64)
    }

    /// Prepares the stopped threads, which must be all threads of the process. `None` if the
    /// scratch mapping is too small for their number.
    ///
    /// # Errors
    /// [`RemoteError::Gone`]; [`RemoteError::System`] where memory cannot be written.
    pub fn begin(
        target: &'a RemoteProcess,
        scratch: &Scratch,
        mut threads: Vec<Tracee>,
    ) -> Result<Option<Alone<'a>>, RemoteError> {
        let AddrRange { start, end } = scratch.range();
        let failed = RemoteError::system("cannot prepare its threads");
        let Some(first) = threads.first_mut() else { return Err(RemoteError::Gone) };
        let slot = slot_size(first)?;
        if start + SLOTS + slot * threads.len() as u64 > end {
            return Ok(None);
        }
        let caller = threads.swap_remove(0);
        let gate = start + GATE;
        let mut alone = Alone { target, gate, caller: Some(caller), others: threads };
        alone.set_gate(OPEN).map_err(&failed)?;
        alone.prepare(start + SLOTS, slot).map_err(&failed)?;
        alone.set_gate(SHUT).map_err(&failed)?;
        Ok(Some(alone))
    }

    fn prepare(&mut self, slots: u64, slot: u64) -> io::Result<()> {
        let memory = self.target.memory();
        let at = |index: usize| slots + slot * index as u64 + BELOW;
        for (index, thread) in self.others.iter_mut().enumerate() {
            thread.save_at(memory, at(index))?;
            thread.prepare_call(libc::SYS_futex, wait(self.gate))?;
        }
        let caller = self.caller.as_mut().ok_or(io::ErrorKind::NotFound)?;
        caller.save_with_call(memory, at(self.others.len()), libc::SYS_futex, open(self.gate))?;
        // `prepare_call` requires a system call, and `getpid` has no effect. From now on, if the
        // tracer is killed, the calling thread opens the gate before it restores its registers.
        caller.prepare_call(libc::SYS_getpid, [0; 6])
    }

    fn set_gate(&self, state: u32) -> io::Result<()> {
        self.target.memory().write(self.gate, &state.to_ne_bytes())
    }

    /// Makes the calling thread call `madvise`. After any error except an error of `madvise`, no
    /// further call can be made.
    ///
    /// # Errors
    /// As [`Tracee::call`].
    pub fn advise(&mut self, range: Range<u64>, advice: Advice) -> io::Result<()> {
        let Some(caller) = &mut self.caller else { return Err(io::ErrorKind::NotFound.into()) };
        let done = caller.advise(range, advice);
        if done.as_ref().is_err_and(|error| error.kind() == io::ErrorKind::TimedOut) {
            // The calling thread finishes the call and then opens the gate, for which the other
            // threads wait.
            self.caller = None;
            self.others.drain(..).for_each(Tracee::abandon);
        }
        done
    }

    /// True if a call took too long and the threads were left to restore their own registers. Until
    /// all threads have done so, they use the scratch mapping.
    pub fn is_left(&self) -> bool {
        self.caller.is_none()
    }

    /// Resumes all threads. Returns the longest time for which a thread was stopped.
    pub fn end(mut self) -> Duration {
        self.restore()
    }

    fn restore(&mut self) -> Duration {
        // The write fails only if the process has ended.
        let _ = self.set_gate(OPEN);
        let all = self.caller.take().into_iter().chain(self.others.drain(..));
        all.map(Tracee::release).max().unwrap_or_default()
    }
}

impl Drop for Alone<'_> {
    fn drop(&mut self) {
        if !self.is_left() {
            self.restore();
        }
    }
}

/// Arguments of `futex(gate, FUTEX_WAIT_PRIVATE, SHUT, no time limit)`.
fn wait(gate: u64) -> [u64; 6] {
    let operation = libc::FUTEX_WAIT | libc::FUTEX_PRIVATE_FLAG;
    [gate, operation.cast_unsigned().into(), SHUT.into(), 0, 0, 0]
}

/// Arguments of `futex(gate, FUTEX_WAKE_OP_PRIVATE, all, none, gate, gate = OPEN)`.
fn open(gate: u64) -> [u64; 6] {
    /// `FUTEX_OP(FUTEX_OP_SET, OPEN, FUTEX_OP_CMP_EQ, 0)` of `<linux/futex.h>`.
    const SET_OPEN: u64 = (OPEN as u64) << 12;
    const ALL: u64 = i32::MAX as u64;
    let operation = libc::FUTEX_WAKE_OP | libc::FUTEX_PRIVATE_FLAG;
    [gate, operation.cast_unsigned().into(), ALL, 0, gate, SET_OPEN]
}

/// Size in bytes of a slot: two contexts and vector registers, whose size is the same for all
/// threads of a machine.
fn slot_size(thread: &mut Tracee) -> Result<u64, RemoteError> {
    let size =
        thread.size_of_context().map_err(RemoteError::system("cannot read its registers"))?;
    Ok((BELOW + size).next_multiple_of(64))
}
