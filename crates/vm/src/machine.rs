//! A virtual machine before its boot, and its results.

use std::path::PathBuf;
use std::time::Duration;

use pagewise_model::Bytes;

use crate::qemu::QemuProcess;
use crate::{Accelerator, GuestFile, GuestKernel, GuestProgram, VmError};

/// The cgroup hierarchy that the guest mounts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum CgroupVersion {
    /// A hierarchy for each controller.
    V1,
    /// One hierarchy, with every controller that the kernel has.
    #[default]
    V2,
}

/// A virtual machine that runs one command.
///
/// ```no_run
/// use pagewise_vm::{GuestKernel, VirtualMachine};
/// let kernel = GuestKernel::find().ok_or("no kernel")?;
/// let command = ["cat", "/proc/version"].map(str::to_owned);
/// let result = VirtualMachine::new(kernel, command.to_vec()).run(&|| false)?;
/// println!("{}", String::from_utf8_lossy(&result.stdout));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug)]
pub struct VirtualMachine {
    /// The kernel to boot.
    pub kernel: GuestKernel,
    /// Memory of the guest at boot, the same on each NUMA node.
    pub memory: Bytes,
    /// Number of CPUs, the same on each NUMA node.
    pub cpus: u32,
    /// Number of NUMA nodes.
    pub nodes: u32,
    /// The cgroup hierarchy that the guest mounts.
    pub cgroups: CgroupVersion,
    /// Options for the kernel, in addition to those that every guest gets.
    pub kernel_options: String,
    /// Modules to load, in addition to the drivers of virtio. Modules that the kernel contains, or
    /// does not have, are left out.
    pub modules: Vec<String>,
    /// Empty disks: `/dev/vda` and so on. They are in memory of the host, as far as they are
    /// written.
    pub disks: Vec<Bytes>,
    /// Memory that the guest may get while it runs, by [`crate::GuestRequest`]. A machine with it
    /// also has a balloon.
    pub growth: Bytes,
    /// Programs of the host.
    pub programs: Vec<GuestProgram>,
    /// Files of the guest.
    pub files: Vec<GuestFile>,
    /// A static busybox for the architecture of the guest; the host's if `None`.
    pub busybox: Option<PathBuf>,
    /// The command, which runs as root. The folder that `PAGEWISE_RESULTS` names is for its result
    /// files.
    pub command: Vec<String>,
    /// The machine is ended after this time.
    pub time_limit: Duration,
    /// The means by which QEMU runs instructions.
    pub accelerator: Accelerator,
    /// True if an emulated CPU has every instruction that QEMU knows. Otherwise the CPU is an early
    /// x86-64, which is emulated faster.
    pub full_cpu: bool,
}

/// Default memory of a machine: enough for pagewise with debug information removed.
const USUAL_MEMORY: Bytes = Bytes::mib(384);
/// An emulated machine boots in a few seconds.
const USUAL_TIME_LIMIT: Duration = Duration::from_secs(120);

impl VirtualMachine {
    /// A machine with one CPU, one NUMA node and no programs but busybox.
    pub fn new(kernel: GuestKernel, command: Vec<String>) -> VirtualMachine {
        VirtualMachine {
            accelerator: Accelerator::detect(kernel.arch),
            kernel,
            memory: USUAL_MEMORY,
            cpus: 1,
            nodes: 1,
            cgroups: CgroupVersion::default(),
            kernel_options: String::new(),
            modules: Vec::new(),
            disks: Vec::new(),
            growth: Bytes::ZERO,
            programs: Vec::new(),
            files: Vec::new(),
            busybox: None,
            command,
            time_limit: USUAL_TIME_LIMIT,
            full_cpu: false,
        }
    }

    /// Boots the machine, and waits until it has ended. `interrupted` is called a hundred times a
    /// second; if it returns true, the machine is ended. QEMU ends if the calling thread ends.
    ///
    /// # Errors
    /// [`VmError::Missing`] if QEMU or busybox is not installed, [`VmError::Qemu`] if QEMU does not
    /// start the machine, [`VmError::System`] if a file cannot be read. The failure of the command
    /// is a result, not an error.
    pub fn run(&self, interrupted: &dyn Fn() -> bool) -> Result<VmResult, VmError> {
        QemuProcess::start(self)?.wait(self.time_limit, interrupted)
    }
}

/// Results of a machine.
#[derive(Clone, Debug)]
pub struct VmResult {
    /// The cause of the end.
    pub end: VmEnd,
    /// Standard output of the command.
    pub stdout: Vec<u8>,
    /// Standard error of the command.
    pub stderr: Vec<u8>,
    /// Messages of the kernel and of the first process.
    pub console: Vec<u8>,
    /// Files that the command left in the folder for results, with their paths there.
    pub files: Vec<(Vec<u8>, Vec<u8>)>,
    /// Time from the start of QEMU to its end.
    pub elapsed: Duration,
}

/// Cause of the end of a machine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum VmEnd {
    /// The command ended with this exit status; 128 + N if signal N killed it.
    Exited(u8),
    /// The kernel panicked, with this message.
    Panicked(String),
    /// The machine exceeded its time limit.
    TimedOut,
    /// The caller interrupted it.
    Interrupted,
    /// The machine exceeded the limit on its output.
    TooMuchOutput,
    /// The machine ended before the command did: the end of its console.
    Failed(String),
}

impl VmResult {
    /// True if the command ended with exit status 0.
    pub fn success(&self) -> bool {
        self.end == VmEnd::Exited(0)
    }

    /// A file of the results.
    pub fn file(&self, name: &str) -> Option<&[u8]> {
        let found = self.files.iter().find(|(path, _)| path == name.as_bytes());
        found.map(|(_, content)| content.as_slice())
    }

    /// Description of a failure, with the output that explains it.
    pub fn failure(&self) -> String {
        let stderr = String::from_utf8_lossy(&self.stderr);
        let stderr = stderr.trim();
        let end = match &self.end {
            VmEnd::Exited(status) => format!("the command in the machine ended with {status}"),
            VmEnd::Panicked(message) => format!("the kernel of the machine panicked: {message}"),
            VmEnd::TimedOut => "the machine exceeded its time limit".to_owned(),
            VmEnd::Interrupted => "the machine was interrupted".to_owned(),
            VmEnd::TooMuchOutput => "the machine wrote too much output".to_owned(),
            VmEnd::Failed(console) => {
                format!("the machine ended before its command; its console: {console}")
            }
        };
        // The kernel reports killed processes there.
        let console = String::from_utf8_lossy(&self.console);
        let last = console.lines().rev().find(|line| line.contains("Killed process"));
        let parts = [end.as_str(), stderr, last.unwrap_or_default()];
        let parts: Vec<&str> = parts.into_iter().filter(|part| !part.is_empty()).collect();
        parts.join(": ")
    }
}
