//! Runs the tool under test on a process.

use std::ffi::OsString;
use std::os::unix::process::CommandExt;
use std::process::{Command, Stdio};
use std::time::Instant;

use anyhow::{Context, Result, ensure};

use pagewise_corpus::Undo;
use pagewise_corpus::figures::children_cpu_ms;

use super::judge::{JudgedRun, ToolAnswer, Verdict, read_answer};

const DEFAULT_COMMAND: &str = "pagewise diagnose {pid} --json --for 10s";

/// Time limit of a tool, in seconds.
const MAX_SECONDS: &str = "150";

/// The command line of the tool, for the shell.
#[derive(Debug)]
pub(crate) struct DiagnosingTool {
    command: String,
    path: OsString,
}

impl DiagnosingTool {
    /// Returns the tool that `command` starts; without `command`, pagewise.
    ///
    /// # Errors
    ///
    /// If the command does not contain `{pid}`.
    pub(crate) fn new(command: Option<&str>) -> Result<DiagnosingTool> {
        let command = command.unwrap_or(DEFAULT_COMMAND).to_owned();
        ensure!(command.contains("{pid}"), "the command does not contain {{pid}}");
        Ok(DiagnosingTool { command, path: search_path()? })
    }

    /// The command, with `{pid}` for the process ID.
    pub(crate) fn command(&self) -> &str {
        &self.command
    }

    /// Runs the tool on `pid`, and writes its answer, costs and the verdict of `judge` to `run`.
    /// `is_alone` is true if no other child of this process ends meanwhile: only then the CPU time
    /// of the tool can be measured.
    pub(crate) fn examine(
        &self,
        pid: u32,
        run: &mut JudgedRun,
        is_alone: bool,
        judge: impl Fn(&ToolAnswer) -> Verdict,
    ) {
        let began = Instant::now();
        let cpu_before = children_cpu_ms();
        let answer = self.ask(pid);
        run.wall = began.elapsed();
        run.cpu_ms = match (cpu_before, children_cpu_ms()) {
            (Ok(before), Ok(after)) if is_alone => Some(after.saturating_sub(before)),
            _ => None,
        };
        match answer {
            Ok(answer) => {
                run.verdict = judge(&answer);
                run.cpu_ms = run.cpu_ms.or(answer.cpu_ms);
                run.answer = answer;
            }
            Err(error) => run.verdict = Verdict::NoAnswer(format!("{error:#}")),
        }
    }

    /// Runs the tool, and reads its answer. Ignores the exit status: many tools report a found
    /// problem by a status other than 0.
    fn ask(&self, pid: u32) -> Result<ToolAnswer> {
        let command = self.command.replace("{pid}", &pid.to_string());
        let mut undo = Undo::new()?;
        let child = Command::new("timeout")
            .args(["--kill-after=5", MAX_SECONDS, "sh", "-c", &command])
            .env("PATH", &self.path)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .process_group(0)
            .spawn()
            .context("timeout")?;
        // Processes that the tool left behind are ended too.
        undo.later(&format!("kill -s KILL -- -{}", child.id()))?;
        let output = child.wait_with_output().context("timeout")?;
        let text = String::from_utf8_lossy(&output.stdout);
        read_answer(&text).with_context(|| {
            let messages = String::from_utf8_lossy(&output.stderr);
            let first = messages.lines().next().unwrap_or_default().to_owned();
            format!("{}: {first}", output.status)
        })
    }
}

/// Returns the search path with the pagewise of this workspace in front, the release build first.
pub(crate) fn search_path() -> Result<OsString> {
    let target = crate::root()?.join("target");
    let path = std::env::var_os("PATH").unwrap_or_default();
    let folders = [target.join("release"), target.join("debug")];
    std::env::join_paths(folders.into_iter().chain(std::env::split_paths(&path))).context("PATH")
}
