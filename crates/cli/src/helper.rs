//! Helper processes, which run this program again. A helper works until its standard input is
//! closed.

use std::ffi::OsStr;
use std::io::{self, BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, Command, Stdio};

use pagewise_sys::interrupt::ignore_requests_to_end;

/// The line that a helper prints when it is ready.
const READY: &str = "ready";

/// Starts a helper process and waits until it is ready. Returns it with its standard input.
///
/// # Errors
/// If the helper cannot be started, or prints a reason instead of [`READY`].
pub(crate) fn start<I: AsRef<OsStr>>(args: &[I]) -> io::Result<(Child, ChildStdin)> {
    let mut command = Command::new("/proc/self/exe");
    command.args(args).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null());
    let mut child = command.current_dir("/").spawn()?;
    let pipes = child.stdin.take().zip(child.stdout.take());
    let (input, output) = pipes.ok_or(io::ErrorKind::BrokenPipe)?;
    let mut line = String::new();
    BufReader::new(output).read_line(&mut line)?;
    let said = line.trim_end();
    if said == READY {
        return Ok((child, input));
    }
    // The helper ends when its input is closed.
    drop(input);
    let _ = child.wait();
    Err(if said.is_empty() { io::ErrorKind::BrokenPipe.into() } else { io::Error::other(said) })
}

/// Moves this process to a session of its own, and ignores signals that request its end: a terminal
/// or shell that ends pagewise does not end the helper.
pub(crate) fn leave_session() {
    ignore_requests_to_end();
    // Fails only if this process is already the leader of a process group.
    let _ = rustix::process::setsid();
}

/// Reports to the process that started this helper that the helper is ready.
///
/// # Errors
/// A broken pipe if that process has ended.
pub(crate) fn tell_ready() -> io::Result<()> {
    let mut output = io::stdout();
    writeln!(output, "{READY}")?;
    output.flush()
}
