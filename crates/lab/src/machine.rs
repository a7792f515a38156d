//! A C program of an experiment, in a virtual machine of its own: the experiment harms the machine
//! that it runs on.
//!
//! The CPU is emulated even where the host has virtualization, and counts a nanosecond for each
//! instruction. The clock of the machine therefore counts work, the same on every host, however
//! busy.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use pagewise_model::Bytes;
use pagewise_vm::{Accelerator, GuestProgram};

use crate::LabError;
use crate::error::While;
use crate::guest::{TIME_LIMIT, failed, usual_kernel};

/// Kernel options: random addresses would make machines differ.
const KERNEL_OPTIONS: &str = "nokaslr norandmaps tsc=reliable";
/// Path of the program in the machine.
const PROGRAM: &str = "/bin/program";

/// A virtual machine whose clock counts instructions.
#[derive(Debug)]
pub(crate) struct CountingMachine<'a> {
    /// Its memory.
    pub(crate) memory: Bytes,
    /// The source of its one program, in C.
    pub(crate) program: &'a str,
    /// Environment of the program.
    pub(crate) settings: &'a [(&'a str, u64)],
}

impl CountingMachine<'_> {
    /// Runs the machine, and returns the output of its program: a name and a number a line. The
    /// program is compiled in `folder`, once for all runs.
    ///
    /// # Errors
    /// [`LabError::Failed`] if the program does not compile, or fails in the machine.
    pub(crate) fn run(&self, folder: &Path) -> Result<Vec<u8>, LabError> {
        let host = compiled(folder, self.program)?;
        let settings = self.settings.iter().map(|(name, value)| format!("{name}={value}"));
        let command = ["env".to_owned()].into_iter().chain(settings).chain([PROGRAM.to_owned()]);
        let machine = pagewise_vm::VirtualMachine {
            memory: self.memory,
            kernel_options: KERNEL_OPTIONS.to_owned(),
            programs: vec![GuestProgram::new(&host, PROGRAM)],
            accelerator: Accelerator::CountingTcg,
            time_limit: TIME_LIMIT,
            ..pagewise_vm::VirtualMachine::new(usual_kernel()?, command.collect())
        };
        let result = machine.run(&|| false).map_err(|error| failed(&error))?;
        if result.success() { Ok(result.stdout) } else { Err(LabError::Failed(result.failure())) }
    }
}

/// True if C programs can be linked statically: the compiler finds the static C library.
pub(crate) fn links_statically() -> bool {
    let asked = Command::new("cc").arg("-print-file-name=libc.a").stdin(Stdio::null()).output();
    asked.is_ok_and(|answer| answer.stdout.starts_with(b"/"))
}

/// Compiles a program, unless an earlier run has.
fn compiled(folder: &Path, program: &str) -> Result<PathBuf, LabError> {
    let [source, new, built] = ["program.c", "program.new", "program"].map(|it| folder.join(it));
    if built.exists() {
        return Ok(built);
    }
    fs::write(&source, program).while_(format!("cannot write {}", source.display()))?;
    let mut compiler = Command::new("cc");
    compiler.args(["-O2", "-static", "-o"]).arg(&new).arg(&source).stdin(Stdio::null());
    let output = compiler.output().while_("cannot run cc")?;
    if !output.status.success() {
        return Err(LabError::Failed(String::from_utf8_lossy(&output.stderr).into_owned()));
    }
    fs::rename(&new, &built).while_(format!("cannot write {}", built.display()))?;
    Ok(built)
}
