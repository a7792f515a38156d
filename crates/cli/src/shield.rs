//! The shield: a helper process that traces a process whose memory is watched, if a hypervisor runs
//! this machine ([`pagewise_remote::TracingShield`]).

use std::io::{self, Read};
use std::process::{Child, ChildStdin, ExitCode};

use pagewise_remote::{self as remote, RemoteProcess};
use pagewise_sys::cpuid;

use crate::helper;
use crate::output::to_stdout;

/// The shield of a process. Dropping it ends the tracing.
#[derive(Debug)]
pub(crate) struct OptionalShield(Option<(Child, ChildStdin)>);

impl OptionalShield {
    /// Traces a process if a hypervisor runs this machine: the hypervisor can lose the cause of a
    /// SIGTRAP. Otherwise does nothing.
    ///
    /// # Errors
    /// If the process cannot be traced; the error has the reason.
    pub(crate) fn for_process(pid: u32) -> io::Result<OptionalShield> {
        if !cpuid::is_virtual() {
            return Ok(OptionalShield(None));
        }
        helper::start(&["shield", &pid.to_string()]).map(|started| OptionalShield(Some(started)))
    }
}

impl Drop for OptionalShield {
    fn drop(&mut self) {
        if let Some((mut child, input)) = self.0.take() {
            drop(input);
            let _ = child.wait();
        }
    }
}

/// Runs as the helper process until its standard input is closed.
pub(crate) fn run(pid: u32) -> anyhow::Result<ExitCode> {
    helper::leave_session();
    let shield = match RemoteProcess::open(pid, None)
        .and_then(|target| remote::TracingShield::seize(&target))
    {
        Ok(shield) => shield,
        Err(error) => {
            to_stdout(|out| writeln!(out, "{error}"))?;
            return Ok(ExitCode::FAILURE);
        }
    };
    helper::tell_ready()?;
    // When this process ends, the kernel ends the tracing.
    std::thread::spawn(|| {
        let mut nothing = Vec::new();
        let _ = io::stdin().take(1).read_to_end(&mut nothing);
        std::process::exit(0);
    });
    shield.run()?;
    Ok(ExitCode::SUCCESS)
}
