//! The process of QEMU: its options, the memory files by which it gets and returns data, its end.

use std::fs::File;
use std::io::{Read, Seek};
use std::os::fd::AsRawFd;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use pagewise_model::Bytes;
use pagewise_sys::parent_death::end_with_parent;
use rustix::fs::{MemfdFlags, memfd_create};

use crate::error::WhileDoing;
use crate::initramfs::write_initramfs;
use crate::monitor::{MAX_MODULES, MemoryMonitor};
use crate::{
    Accelerator, GuestArch, VirtualMachine, VmEnd, VmError, VmRequirement, VmResult, read_archive,
};

/// Option of the kernel that every guest of pagewise has, and no host.
pub const GUEST_OPTION: &str = "pagewise.guest=1";

/// Options for every kernel. A kernel that panics resets the machine at once, and QEMU then ends.
/// The root is ramfs: unlike tmpfs, the kernel swaps no pages of it. Self-tests and mitigations
/// would only make the boot slower. The check of the timer counts interrupts in a short time: on a
/// busy host, where an emulated CPU is slow, it fails, and the kernel panics.
const KERNEL_OPTIONS: &str = "rdinit=/init rootfstype=ramfs quiet panic=-1 oops=panic \
    no_timer_check mitigations=off cryptomgr.notests random.trust_cpu=on";

/// The ports of virtio-serial, in the order of [`QemuFiles::ports`].
const PORTS: [&str; 3] = ["out", "err", "archive"];

/// A guest that writes more than this is ended.
const MAX_OUTPUT: Bytes = Bytes::mib(512);

/// Interval at which the process is polled.
const INTERVAL: Duration = Duration::from_millis(10);

/// Length of the end of a console that explains a failure.
const CONSOLE_TAIL: usize = 2000;

/// A file in memory, which QEMU opens by its descriptor.
struct MemoryFile(File);

impl MemoryFile {
    /// The descriptor stays open in programs that are executed, so that QEMU has it.
    fn new(name: &str) -> Result<MemoryFile, VmError> {
        let file = memfd_create(name, MemfdFlags::empty());
        Ok(MemoryFile(file.while_doing("cannot make a file in memory")?.into()))
    }

    /// Path of the file in QEMU.
    fn path(&self) -> String {
        format!("/proc/self/fd/{}", self.0.as_raw_fd())
    }

    fn length(&self) -> u64 {
        self.0.metadata().map_or(0, |metadata| metadata.len())
    }

    fn content(&mut self) -> Result<Vec<u8>, VmError> {
        let mut content = Vec::new();
        let read = self.0.rewind().and_then(|()| self.0.read_to_end(&mut content));
        read.while_doing("cannot read the output of the machine")?;
        Ok(content)
    }
}

/// The memory files of a machine.
struct QemuFiles {
    initramfs: MemoryFile,
    console: MemoryFile,
    ports: [MemoryFile; 3],
    disks: Vec<MemoryFile>,
    monitor: Option<MemoryMonitor>,
}

impl QemuFiles {
    fn make(machine: &VirtualMachine) -> Result<QemuFiles, VmError> {
        let initramfs = MemoryFile::new("initramfs")?;
        write_initramfs(machine, &initramfs.0)?;
        let disk = |size: &Bytes| {
            let disk = MemoryFile::new("disk")?;
            disk.0.set_len(size.0).while_doing("cannot make a disk")?;
            Ok(disk)
        };
        let [out, err, archive] = PORTS.map(MemoryFile::new);
        let monitor = (!machine.growth.is_zero()).then(MemoryMonitor::new).transpose()?;
        Ok(QemuFiles {
            initramfs,
            monitor,
            console: MemoryFile::new("console")?,
            ports: [out?, err?, archive?],
            disks: machine.disks.iter().map(disk).collect::<Result<_, VmError>>()?,
        })
    }

    fn output_length(&self) -> u64 {
        self.ports.iter().chain([&self.console]).map(MemoryFile::length).sum()
    }
}

/// A running QEMU. Dropping the value ends it.
pub(crate) struct QemuProcess {
    child: Child,
    files: QemuFiles,
    begin: Instant,
}

impl QemuProcess {
    /// Starts QEMU.
    pub(crate) fn start(machine: &VirtualMachine) -> Result<QemuProcess, VmError> {
        let files = QemuFiles::make(machine)?;
        let guest = machine.kernel.arch;
        let mut command = Command::new(guest.qemu());
        command.args(options(machine, &files));
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped());
        end_with_parent(&mut command);
        let begin = Instant::now();
        let child = match command.spawn() {
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
                return Err(VmError::Missing(VmRequirement::Qemu(guest)));
            }
            child => child.while_doing(format!("cannot run {}", guest.qemu()))?,
        };
        Ok(QemuProcess { child, files, begin })
    }

    /// Waits for the end of the machine and returns its results.
    pub(crate) fn wait(
        mut self,
        limit: Duration,
        interrupted: &dyn Fn() -> bool,
    ) -> Result<VmResult, VmError> {
        let deadline = self.begin + limit;
        let ended = loop {
            if let Some(status) = self.child.try_wait().while_doing("cannot wait for QEMU")? {
                break Ok(status);
            }
            if interrupted() {
                break Err(VmEnd::Interrupted);
            }
            if Instant::now() > deadline {
                break Err(VmEnd::TimedOut);
            }
            if let Some(monitor) = &mut self.files.monitor {
                monitor.poll();
            }
            if self.files.output_length() > MAX_OUTPUT.0 {
                break Err(VmEnd::TooMuchOutput);
            }
            thread::sleep(INTERVAL);
        };
        let elapsed = self.begin.elapsed();
        self.end();
        if let Ok(status) = ended {
            self.check(status)?;
        }
        self.results(ended.err(), elapsed)
    }

    /// An error if QEMU itself failed.
    fn check(&mut self, status: ExitStatus) -> Result<(), VmError> {
        if status.success() {
            return Ok(());
        }
        let mut message = String::new();
        if let Some(stderr) = &mut self.child.stderr {
            let _ = stderr.take(1 << 16).read_to_string(&mut message);
        }
        let (status, message) = (status.to_string(), message.trim().to_owned());
        Err(VmError::Qemu { status, message })
    }

    fn results(&mut self, end: Option<VmEnd>, elapsed: Duration) -> Result<VmResult, VmError> {
        let console = self.files.console.content()?;
        let [out, err, archive] = &mut self.files.ports;
        let archive = archive.content()?;
        let entries = if archive.is_empty() { Ok(Vec::new()) } else { read_archive(&archive) };
        // An archive that the guest did not finish has no results.
        let entries = entries.unwrap_or_default();
        let status = entries.iter().find(|entry| entry.path == b"status");
        let status =
            status.and_then(|entry| str::from_utf8(entry.content).ok()?.trim().parse().ok());
        let end = end.or(status.map(VmEnd::Exited)).unwrap_or_else(|| early_end(&console));
        let files = entries.iter().filter_map(|entry| {
            Some((entry.path.strip_prefix(b"files/")?.to_vec(), entry.content.to_vec()))
        });
        let files = files.collect();
        Ok(VmResult {
            end,
            stdout: out.content()?,
            stderr: err.content()?,
            console,
            files,
            elapsed,
        })
    }

    fn end(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Drop for QemuProcess {
    fn drop(&mut self) {
        self.end();
    }
}

/// The end of a machine whose command did not end.
fn early_end(console: &[u8]) -> VmEnd {
    let text = String::from_utf8_lossy(console);
    let panic = text.lines().find_map(|line| line.split_once("Kernel panic - not syncing: "));
    match panic {
        Some((_, message)) => VmEnd::Panicked(message.trim().to_owned()),
        None => {
            let tail = &console[console.len().saturating_sub(CONSOLE_TAIL)..];
            VmEnd::Failed(String::from_utf8_lossy(tail).trim().to_owned())
        }
    }
}

/// All options of QEMU.
fn options(machine: &VirtualMachine, files: &QemuFiles) -> Vec<String> {
    let mut options = Vec::new();
    let mut add = |option: &str, value: String| options.extend([option.to_owned(), value]);
    add("-machine", board(machine.kernel.arch).to_owned());
    add("-accel", machine.accelerator.option().to_owned());
    add("-cpu", cpu(machine).to_owned());
    add("-smp", machine.cpus.to_string());
    add("-m", memory(machine));
    if machine.accelerator == Accelerator::CountingTcg {
        add("-icount", "shift=0,sleep=off".to_owned());
        add("-rtc", "base=2026-01-01,clock=vm".to_owned());
    }
    add("-display", "none".to_owned());
    add("-chardev", format!("file,id=console,path={}", files.console.path()));
    add("-serial", "chardev:console".to_owned());
    add("-device", "virtio-serial-pci".to_owned());
    for (name, file) in PORTS.iter().zip(&files.ports) {
        add("-chardev", format!("file,id={name},path={}", file.path()));
        add("-device", format!("virtserialport,chardev={name},name=pagewise.{name}"));
    }
    for (at, disk) in files.disks.iter().enumerate() {
        let path = disk.path();
        let drive = format!("id=disk{at},if=none,format=raw,file.locking=off,file={path}");
        add("-drive", drive);
        add("-device", format!("virtio-blk-pci,drive=disk{at}"));
    }
    for (option, value) in files.monitor.iter().flat_map(MemoryMonitor::options) {
        add(option, value);
    }
    for (option, value) in numa(machine) {
        add(option, value);
    }
    add("-kernel", machine.kernel.image.display().to_string());
    add("-initrd", files.initramfs.path());
    let console = console_device(machine.kernel.arch);
    let own = &machine.kernel_options;
    add(
        "-append",
        format!("console={console} {GUEST_OPTION} {KERNEL_OPTIONS} {own}").trim().to_owned(),
    );
    options.extend(["-nodefaults", "-no-user-config", "-no-reboot"].map(str::to_owned));
    options
}

/// Memory at boot, and the memory that it may grow to.
fn memory(machine: &VirtualMachine) -> String {
    let [memory, growth] = [machine.memory, machine.growth].map(|bytes| bytes.0 >> 20);
    match growth {
        0 => format!("{memory}M"),
        _ => format!("{memory}M,slots={MAX_MODULES},maxmem={}M", memory + growth),
    }
}

fn board(guest: GuestArch) -> &'static str {
    match guest {
        GuestArch::X86_64 => "pc",
        GuestArch::Aarch64 => "virt",
    }
}

fn console_device(guest: GuestArch) -> &'static str {
    match guest {
        GuestArch::X86_64 => "ttyS0",
        GuestArch::Aarch64 => "ttyAMA0",
    }
}

/// The CPU of the guest. TCG emulates a simple one faster. With `rdrand` the kernel has random
/// numbers at once.
fn cpu(machine: &VirtualMachine) -> &'static str {
    match (machine.accelerator, machine.kernel.arch) {
        (Accelerator::Kvm, _) => "host",
        (_, GuestArch::X86_64) if machine.full_cpu => "max",
        (_, GuestArch::X86_64) => "qemu64,+rdrand",
        (_, GuestArch::Aarch64) => "max,pauth-impdef=on",
    }
}

/// Options that divide memory and CPUs between NUMA nodes.
fn numa(machine: &VirtualMachine) -> Vec<(&'static str, String)> {
    let nodes = machine.nodes;
    if nodes < 2 {
        return Vec::new();
    }
    let memory = (machine.memory.0 >> 20) / u64::from(nodes);
    let each = (machine.cpus / nodes).max(1);
    let node = |node: u32| {
        let cpus = match node * each {
            first if first < machine.cpus => format!(",cpus={first}-{}", first + each - 1),
            _ => String::new(),
        };
        [
            ("-object", format!("memory-backend-ram,id=node{node},size={memory}M")),
            ("-numa", format!("node,nodeid={node},memdev=node{node}{cpus}")),
        ]
    };
    (0..nodes).flat_map(node).collect()
}
