//! Calls by one thread of a process while its other threads do not run, even if the tracer is
//! killed.
//!
//! A call that drops memory is correct only while nothing else writes to that memory. If the other
//! threads were merely stopped, they would run on beside the call when the tracer is killed. So
//! each of them gets registers with which it first waits on a futex, the gate, until the calling
//! thread opens it:
//!
//! ```text
//!  calling thread   [call by the tracer]  -> FUTEX_WAKE_OP: gate = open, wake all -> own registers
//!  other threads                             FUTEX_WAIT while the gate is shut    -> own registers
//! ```
//!
//! The gate is shut only once all of them are prepared and have blocked their signals, and it is
//! open before the first is restored. A tracer that lives restores all of them itself, and none of
//! these futex calls is made.

use std::io;
use std::ops::Range;
use std::time::Duration;

use pagewise_model::AddrRange;
use pagewise_sys::madvise::Advice;

use crate::thread::{CHAINED, Tracee};
use crate::{RemoteError, RemoteProcess, Scratch};

/// The offset of the gate in the scratch mapping: a word of a futex.
const GATE: u64 = 64;
const SHUT: u32 = 0;
const OPEN: u32 = 1;
/// Saved contexts begin here.
const SLOTS: u64 = 512;
/// Room below a saved context for a chained one, and its return address.
const BELOW: u64 = CHAINED + 64;

/// All threads of a process, stopped, and one of them to make calls. They run on when the value is
/// dropped.
#[derive(Debug)]
pub struct Alone<'a> {
    target: &'a RemoteProcess,
    gate: u64,
    caller: Option<Tracee>,
    others: Vec<Tracee>,
}

impl<'a> Alone<'a> {
    /// The bytes that a scratch mapping needs for a number of threads.
    ///
    /// # Errors
    /// [`RemoteError::Gone`]
    pub fn scratch_size(thread: &mut Tracee, threads: usize) -> Result<u64, RemoteError> {
        Ok(SLOTS + slot_size(thread)? * threads as u64)
    }

    /// Prepares the stopped threads, which are all of the process. `None` if the scratch mapping is
    /// too small for their number.
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
        // Any system call serves: from now on the thread opens the gate before it goes on, if we
        // die.
        caller.prepare_call(libc::SYS_getpid, [0; 6])
    }

    fn set_gate(&self, state: u32) -> io::Result<()> {
        self.target.memory().write(self.gate, &state.to_ne_bytes())
    }

    /// `madvise` by one of the threads. After an error other than the call's own no further call
    /// can be made.
    ///
    /// # Errors
    /// As [`Tracee::call`].
    pub fn advise(&mut self, range: Range<u64>, advice: Advice) -> io::Result<()> {
        let Some(caller) = &mut self.caller else { return Err(io::ErrorKind::NotFound.into()) };
        let done = caller.advise(range, advice);
        if done.as_ref().is_err_and(|error| error.kind() == io::ErrorKind::TimedOut) {
            // The thread still runs the call and then opens the gate; the others wait until then.
            self.caller = None;
            self.others.drain(..).for_each(Tracee::abandon);
        }
        done
    }

    /// True if a call took too long and the threads were left to finish it: until then they use the
    /// scratch mapping.
    pub fn is_left(&self) -> bool {
        self.caller.is_none()
    }

    /// Lets all threads run on. Returns the longest time that one was stopped for.
    pub fn end(mut self) -> Duration {
        self.restore()
    }

    fn restore(&mut self) -> Duration {
        // Fails only where the process is gone.
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

/// `futex(gate, FUTEX_WAIT_PRIVATE, SHUT, no time limit)`.
fn wait(gate: u64) -> [u64; 6] {
    let operation = libc::FUTEX_WAIT | libc::FUTEX_PRIVATE_FLAG;
    [gate, operation.cast_unsigned().into(), SHUT.into(), 0, 0, 0]
}

/// `futex(gate, FUTEX_WAKE_OP_PRIVATE, all, none, gate, gate = OPEN)`.
fn open(gate: u64) -> [u64; 6] {
    /// `FUTEX_OP(FUTEX_OP_SET, OPEN, FUTEX_OP_CMP_EQ, 0)` of `<linux/futex.h>`.
    const SET_OPEN: u64 = (OPEN as u64) << 12;
    const ALL: u64 = i32::MAX as u64;
    let operation = libc::FUTEX_WAKE_OP | libc::FUTEX_PRIVATE_FLAG;
    [gate, operation.cast_unsigned().into(), ALL, 0, gate, SET_OPEN]
}

/// Bytes of a slot: contexts, and vector registers that are alike in length for all threads of a
/// machine.
fn slot_size(thread: &mut Tracee) -> Result<u64, RemoteError> {
    let size =
        thread.size_of_context().map_err(RemoteError::system("cannot read its registers"))?;
    Ok((BELOW + size).next_multiple_of(64))
}
