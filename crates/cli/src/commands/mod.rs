//! One file for each command: it collects data as the options request, makes a report from the
//! data, and writes the report to its output.

pub(crate) mod define;
pub(crate) mod diagnose;
pub(crate) mod diff;
pub(crate) mod doctor;
pub(crate) mod events;
pub(crate) mod explain;
#[cfg(feature = "export")]
pub(crate) mod export;
pub(crate) mod faults;
pub(crate) mod fragmentation;
pub(crate) mod guard;
pub(crate) mod heap;
pub(crate) mod lab;
pub(crate) mod maps;
pub(crate) mod oom;
pub(crate) mod pages;
pub(crate) mod pools;
pub(crate) mod ps;
#[cfg(feature = "record")]
pub(crate) mod record;
pub(crate) mod run;
pub(crate) mod run_command;
pub(crate) mod shell;
pub(crate) mod shootdowns;
pub(crate) mod sim;
pub(crate) mod stat;
pub(crate) mod syscalls;
pub(crate) mod system;
pub(crate) mod table;
pub(crate) mod thp;
#[cfg(feature = "top")]
pub(crate) mod top;
pub(crate) mod trim;
pub(crate) mod watch;

use pagewise_model::Pid;
use pagewise_proc::ProcRoot;

/// Returns the error if a recorder of a process's events cannot be opened. If rights are missing,
/// the error names the capability that grants them.
fn not_recorded(
    root: &ProcRoot,
    pid: Pid,
    error: pagewise_trace::TraceError,
    needs: &'static str,
) -> anyhow::Error {
    if error.is_denied() {
        pagewise_proc::ProcError::no_access(root, pid, needs).into()
    } else {
        error.into()
    }
}
