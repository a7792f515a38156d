//! A command in a terminal of its own.

use std::process::{Child, Command, Stdio};

/// Starts a command in a terminal of 140 columns, which `script` of util-linux provides. The
/// standard output of the returned child has the output of the command.
pub(crate) fn start(line: &str) -> Child {
    let line = format!("stty cols 140 rows 50; exec {line}");
    let mut command = Command::new("script");
    command.args(["-qec", &line, "/dev/null"]).env("TERM", "xterm-256color");
    // The input stays open: its end would end the command.
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null());
    command.spawn().expect("script of util-linux is installed")
}
