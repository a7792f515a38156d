//! Errors of remote calls.

use std::io;
use std::time::Duration;

/// Reason why a process was not stopped, or made no remote call.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RemoteError {
    /// The process has ended, or another process has its PID now.
    #[error("the process has ended")]
    Gone,
    /// Tracing the process is not permitted.
    #[error(
        "tracing it is not permitted: pagewise needs the rights of its user or CAP_SYS_PTRACE, and no other tracer may be attached"
    )]
    NotPermitted,
    /// The process restricts its system calls.
    #[error("it is in {mode} seccomp mode, in which an injected system call could kill it")]
    Seccomp {
        /// `strict` or `filter`.
        mode: &'static str,
    },
    /// The process uses shadow stacks, which forbid a return without a matching call.
    #[error("it uses shadow stacks (CET), which do not permit injected calls")]
    ShadowStack,
    /// Remote calls are not possible in this program, or on this machine.
    #[error("remote calls are not possible: {0}")]
    Unsupported(&'static str),
    /// A thread of the process waits inside the kernel.
    #[error("its threads wait inside the kernel and did not stop within {} ms", .0.as_millis())]
    NotStopped(Duration),
    /// Stopping all threads of the process would take, or took, too long.
    #[error(
        "stopping its {threads} threads would take about {} ms, more than the {} ms of --max-pause",
        .takes.as_millis(), .limit.as_millis()
    )]
    PauseTooLong {
        /// Number of threads of the process.
        threads: usize,
        /// Time that stopping the threads takes, estimated or measured.
        takes: Duration,
        /// Maximum time that the caller permits.
        limit: Duration,
    },
    /// No thread has enough free stack.
    #[error("no thread was on a stack of its own with {0} bytes to spare")]
    NoStack(u64),
    /// A thread was inside a restartable sequence at each stop.
    #[error("thread {0} was within a restartable sequence each time")]
    Restartable(u32),
    /// The kernel refused an operation.
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

    /// True if a call took too long, so that its thread was left to make or finish the call by
    /// itself.
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
