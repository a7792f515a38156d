//! Errors of remote calls.

use std::io;
use std::time::Duration;

/// Reason why a target was not stopped, or made no call.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RemoteError {
    /// The process has ended, or another one has its number now.
    #[error("the process has ended")]
    Gone,
    /// We may not trace it.
    #[error(
        "tracing it is not permitted: pagewise needs the rights of its user or CAP_SYS_PTRACE, and no other tracer may be attached"
    )]
    NotPermitted,
    /// It restricts its system calls.
    #[error("it is in {mode} seccomp mode, in which an injected system call could kill it")]
    Seccomp {
        /// `strict` or `filter`.
        mode: &'static str,
    },
    /// It uses shadow stacks, which forbid a return without a matching call.
    #[error("it uses shadow stacks (CET), which do not permit injected calls")]
    ShadowStack,
    /// Remote calls are not possible for such a program, or on this machine.
    #[error("remote calls are not possible: {0}")]
    Unsupported(&'static str),
    /// Its threads wait inside the kernel.
    #[error("its threads wait inside the kernel and did not stop within {} ms", .0.as_millis())]
    NotStopped(Duration),
    /// Stopping all threads would take, or took, too long.
    #[error(
        "stopping its {threads} threads would take about {} ms, more than the {} ms of --max-pause",
        .takes.as_millis(), .limit.as_millis()
    )]
    PauseTooLong {
        /// Number of threads of the process.
        threads: usize,
        /// The time that it takes, estimated or measured.
        takes: Duration,
        /// The longest time permitted.
        limit: Duration,
    },
    /// No thread has room on its stack.
    #[error("no thread was on a stack of its own with {0} bytes to spare")]
    NoStack(u64),
    /// A thread was always within a restartable sequence.
    #[error("thread {0} was within a restartable sequence each time")]
    Restartable(u32),
    /// The kernel refused something.
    #[error("{what}")]
    System {
        /// Attempted operation.
        what: &'static str,
        /// Error of the kernel.
        #[source]
        source: io::Error,
    },
}

impl RemoteError {
    pub(crate) fn system(what: &'static str) -> impl Fn(io::Error) -> RemoteError {
        move |source| match source.raw_os_error() {
            Some(libc::ESRCH) => RemoteError::Gone,
            _ => RemoteError::System { what, source },
        }
    }

    /// True if a call took too long: its thread was left to make or finish the call by itself.
    pub(crate) fn is_late(&self) -> bool {
        let late = io::ErrorKind::TimedOut;
        matches!(self, RemoteError::System { source, .. } if source.kind() == late)
    }

    /// Converts the error of seizing a thread, or of opening its memory.
    pub(crate) fn of_tracing(source: io::Error) -> RemoteError {
        match source.raw_os_error() {
            Some(libc::ESRCH | libc::ENOENT) => RemoteError::Gone,
            Some(libc::EPERM | libc::EACCES) => RemoteError::NotPermitted,
            _ => RemoteError::System { what: "cannot trace it", source },
        }
    }
}
