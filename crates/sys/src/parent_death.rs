//! Commands that end with the thread that started them (`PR_SET_PDEATHSIG`).

use std::io;
use std::os::unix::process::CommandExt;
use std::process::Command;

/// Makes the kernel kill the command when the thread that starts it ends, also if that thread is
/// killed.
///
/// Start the command in a thread that waits for the command's end: the kernel kills the command
/// when that thread ends, even if this process continues. The command must not change its user ID,
/// which would cancel the signal.
pub fn end_with_parent(command: &mut Command) {
    let parent = std::process::id();
    let prepare = move || {
        rustix::process::set_parent_process_death_signal(Some(rustix::process::Signal::KILL))?;
        // If the parent ended before the call of `prctl`, the kernel sends no signal.
        let own = rustix::process::getppid().map(|pid| pid.as_raw_nonzero().get().cast_unsigned());
        if own == Some(parent) { Ok(()) } else { Err(io::ErrorKind::Interrupted.into()) }
    };
    // SAFETY: the closure makes two system calls and allocates nothing.
    unsafe { command.pre_exec(prepare) };
}

#[cfg(test)]
mod tests {
    use std::os::unix::process::ExitStatusExt;
    use std::process::Stdio;
    use std::thread;

    use super::*;

    #[test]
    fn the_command_ends_with_its_thread() {
        let start = || {
            let mut command = Command::new("sleep");
            end_with_parent(&mut command);
            command.arg("60").stdin(Stdio::null()).spawn().unwrap()
        };
        let mut child = thread::spawn(start).join().unwrap();
        assert_eq!(child.wait().unwrap().signal(), Some(libc::SIGKILL));
    }
}
