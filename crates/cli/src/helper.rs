//! Helper processes: this program again, which works until its standard input is closed, or with
//! what comes there.

use std::ffi::OsStr;
use std::io::{self, BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, Command, Stdio};

use pagewise_sys::interrupt::ignore_requests_to_end;

/// A helper's first word, once it works.
const READY: &str = "ready";

/// Starts a helper process and waits until it works. Returns it with its standard input.
///
/// # Errors
/// That it could not be started, or what it printed instead of the first word.
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
    // It ends as its input is closed.
    drop(input);
    let _ = child.wait();
    Err(if said.is_empty() { io::ErrorKind::BrokenPipe.into() } else { io::Error::other(said) })
}

/// Makes this process one of its own session that ignores requests to end: a terminal or a shell
/// ends it together with no other.
pub(crate) fn leave_session() {
    ignore_requests_to_end();
    // It fails only where it is one of its own session already.
    let _ = rustix::process::setsid();
}

/// Reports to the process that started this helper that it works.
///
/// # Errors
/// A broken pipe if that process has ended.
pub(crate) fn tell_ready() -> io::Result<()> {
    let mut output = io::stdout();
    writeln!(output, "{READY}")?;
    output.flush()
}
