//! A command in a terminal of its own.

use std::process::{Child, Command, Stdio};

/// Starts a command in a terminal of 140 columns that `script` of util-linux makes. The output of
/// the command is that of the child.
pub(crate) fn start(line: &str) -> Child {
    let line = format!("stty cols 140 rows 50; exec {line}");
    let mut command = Command::new("script");
    command.args(["-qec", &line, "/dev/null"]).env("TERM", "xterm-256color");
    // The input stays open: its end would end the command.
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null());
    command.spawn().expect("script of util-linux is installed")
}
