//! Memory in a process for functions that one of its threads is made to call: a stack, and the code
//! by which the thread returns to its own registers.

use std::io;
use std::time::Duration;

use pagewise_remote::{Keeper, RemoteError, RemoteFunction, RemoteProcess, Scratch, Tracee};

/// Number of bytes of the mapping for strings, the functions' stack, and the saved context.
const STACK: u64 = 1 << 20;

/// A function of the process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ProcessFunction {
    /// Address of the function.
    pub(crate) address: u64,
    /// See [`RemoteFunction::lock_wait`].
    pub(crate) lock_wait: Option<Duration>,
}

impl ProcessFunction {
    /// A function that may hold a lock while it waits for another lock.
    pub(crate) fn at(address: u64) -> ProcessFunction {
        ProcessFunction { address, lock_wait: None }
    }
}

/// A stack and code in the process for functions that one of its threads is made to call.
#[derive(Debug)]
pub(crate) struct CallRoom {
    stack: Scratch,
    code: Scratch,
    /// End of the functions' stack. Above it is the context by which the thread restores its own
    /// registers.
    top: u64,
}

impl CallRoom {
    /// Maps the stack and the code, by a thread that must be ready for calls.
    pub(crate) fn make(
        target: &RemoteProcess,
        thread: &mut Tracee,
        keeper: &mut dyn Keeper,
    ) -> Result<CallRoom, RemoteError> {
        let page = rustix::param::page_size() as u64;
        let stack = Scratch::map(target, thread, STACK, keeper)?;
        let code = match Scratch::map_code(target, thread, page, keeper) {
            Ok(code) => code,
            Err(error) => {
                // If the unmap also fails, the keeper (a process that undoes changes of pagewise)
                // unmaps the stack later.
                let _ = stack.unmap(thread, keeper);
                return Err(error);
            }
        };
        let top = stack.range().start + STACK / 2;
        let room = CallRoom { stack, code, top };
        let written = thread.save_at(target.memory(), top).and_then(|()| {
            let code = RemoteFunction::code(top, room.words());
            target.memory().write(room.code.range().start, &code)
        });
        match written {
            Ok(()) => Ok(room),
            Err(source) => {
                room.unmap(thread, keeper);
                Err(RemoteError::System { what: "cannot write to its memory", source })
            }
        }
    }

    /// Address of memory for short strings that functions read: the lower end of the stack, which
    /// grows towards this address.
    pub(crate) fn text(&self) -> u64 {
        self.stack.range().start
    }

    /// Address of the words that the code writes, above the context.
    fn words(&self) -> u64 {
        self.top + STACK / 4
    }

    /// Calls a function: see [`Tracee::run`].
    pub(crate) fn call(
        &self,
        thread: &mut Tracee,
        function: &ProcessFunction,
        arguments: [u64; 5],
        idle: &mut dyn FnMut(),
    ) -> io::Result<u64> {
        let ProcessFunction { address, lock_wait } = *function;
        // The return address of remote calls is directly below the context.
        let stack = self.top - 64;
        let (code, words) = (self.code.range().start, self.words());
        let function = RemoteFunction { address, code, words, stack, lock_wait };
        thread.run(&function, arguments, idle)
    }

    /// Unmaps the stack and the code. If a thread was left to finish a function by itself, the
    /// keeper unmaps them later.
    pub(crate) fn unmap(self, thread: &mut Tracee, keeper: &mut dyn Keeper) {
        if thread.use_own_stack() {
            // Both calls fail only if the process has ended.
            let _ = self.stack.unmap(thread, keeper);
            let _ = self.code.unmap(thread, keeper);
        }
    }
}
