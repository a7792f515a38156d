//! The call by which a stopped thread creates an additional thread of its process, which runs a
//! function of the program and ends. None of the program's own threads waits for the function.

use std::io;

use super::{CHAINED, Tracee};
use crate::memory::TargetMemory;

/// Flags of `clone`: the new thread shares everything that threads share. The new thread is not
/// traced, and no `wait` call returns it.
const FLAGS: u64 = (libc::CLONE_VM
    | libc::CLONE_FS
    | libc::CLONE_FILES
    | libc::CLONE_SIGHAND
    | libc::CLONE_THREAD
    | libc::CLONE_SYSVSEM
    | libc::CLONE_SETTLS
    | libc::CLONE_CHILD_CLEARTID)
    .unsigned_abs() as u64;

/// Memory for a new thread.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ThreadMemory {
    /// Address of the memory for two saved contexts, which is also the end of the stack below. A
    /// multiple of 64.
    pub(crate) contexts: u64,
    /// Address of the C library's data of the thread (`fs`).
    pub(crate) thread_data: u64,
    /// Address of a word that the kernel clears when the thread does not use the memory any more.
    pub(crate) alive: u64,
}

impl Tracee {
    /// Creates a thread, which calls a function with one argument. The new thread has all signals
    /// blocked, so handlers of the program run on other threads.
    ///
    /// ```text
    ///  | stack of the function | -> exit | context of exit | -> function | context of the function |
    ///                          ^ stack pointer at its entry  ^ first stack pointer of the thread
    /// ```
    ///
    /// If the tracer dies meanwhile, the new thread still runs the function and ends.
    ///
    /// # Errors
    /// As `clone` and [`Tracee::call`]; other errors if the memory cannot be written.
    pub(crate) fn make_thread(
        &mut self,
        memory: &TargetMemory,
        place: &ThreadMemory,
        function: u64,
        argument: u64,
    ) -> io::Result<()> {
        let ThreadMemory { contexts, thread_data, alive } = *place;
        // Addresses of the return addresses: at the entry of a function, the stack pointer is 8
        // bytes below a multiple of 16.
        let [exit, call] = [contexts + 8, contexts + 8 + CHAINED];
        let exit_call = self.registers.for_call(self.code()?.syscall, libc::SYS_exit, [0; 6], exit);
        let function_call = self.registers.for_start(function, argument, exit);
        for (at, registers) in [(exit, exit_call), (call, function_call)] {
            let mut bytes = self.code()?.restore.to_le_bytes().to_vec();
            // The context has no vector registers, so the kernel sets their initial values.
            bytes.extend(registers.context(u64::MAX, 0, None));
            memory.write(at, &bytes)?;
        }
        // From here on all signals are blocked, also for the new thread.
        self.prepare_call(libc::SYS_getpid, [0; 6])?;
        self.call(libc::SYS_clone, [FLAGS, call, 0, alive, thread_data, 0]).map(drop)
    }
}
