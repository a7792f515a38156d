//! Cleanup that also happens if xtask is killed.

use std::io::Write;
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Stdio};

use anyhow::{Context, Result};

/// Script of the shell: it collects lines until its input ends, then runs the lines, the last one
/// first.
const SHELL: &str = r#"undo=
while IFS= read -r line; do undo="$line
$undo"; done
eval "$undo" >/dev/null 2>&1"#;

/// A shell that waits for the end of its input and then runs the lines that [`Undo::later`] sent.
/// The input ends when this value is dropped, and also when xtask dies by any signal. The shell is
/// in a process group of its own, so that Ctrl-C does not end it.
#[derive(Debug)]
pub struct Undo {
    shell: Child,
}

impl Undo {
    /// Starts the shell.
    ///
    /// # Errors
    ///
    /// If the shell cannot be started.
    pub fn new() -> Result<Undo> {
        let shell = Command::new("sh")
            .args(["-c", SHELL])
            .stdin(Stdio::piped())
            .process_group(0)
            .spawn()
            .context("sh")?;
        Ok(Undo { shell })
    }

    /// Makes the shell run `line` at the end, before the lines that were sent earlier.
    ///
    /// # Errors
    ///
    /// If the shell has ended.
    pub fn later(&mut self, line: &str) -> Result<()> {
        let input = self.shell.stdin.as_mut().context("the shell has no input")?;
        writeln!(input, "{line}").context("the shell of the cleanup has ended")
    }
}

impl Drop for Undo {
    fn drop(&mut self) {
        drop(self.shell.stdin.take());
        // The exit status does not matter: `kill` in a line fails if its process has already ended.
        let _ = self.shell.wait();
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn lines_run_at_the_end_and_the_last_one_first() {
        let path = std::env::temp_dir().join(format!("pagewise-undo-{}", std::process::id()));
        fs::write(&path, "").unwrap();
        let mut undo = Undo::new().unwrap();
        for word in ["first", "second"] {
            undo.later(&format!("echo {word} >>'{}'", path.display())).unwrap();
        }
        assert_eq!(fs::read_to_string(&path).unwrap(), "");
        drop(undo);
        assert_eq!(fs::read_to_string(&path).unwrap(), "second\nfirst\n");
        fs::remove_file(path).unwrap();
    }
}
