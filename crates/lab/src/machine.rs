//! A small virtual machine for experiments that would harm a machine in use. It has a kernel, one
//! program and a fixed amount of memory; the program writes its results to the second serial port,
//! and the machine ends.
//!
//! QEMU's own processor is used (TCG), and counts a nanosecond for each instruction: so the
//! machine's clock counts work, the same on every host, however busy.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use pagewise_sys::parent_death::end_with_parent;
use pagewise_vm::{ArchiveWriter, GuestKernel};

use crate::LabError;
use crate::error::While;

/// Program that runs machines.
pub(crate) const QEMU: &str = "qemu-system-x86_64";

/// Kernel command line. Random addresses would make machines differ; devices and self-tests would
/// triple the time to boot.
const COMMAND_LINE: &str = "rdinit=/init console=ttyS0 quiet panic=-1 nokaslr norandmaps mitigations=off \
    cryptomgr.notests no_timer_check tsc=reliable acpi=off pci=off";

/// A machine.
#[derive(Debug)]
pub(crate) struct VirtualMachine<'a> {
    /// Its memory.
    pub(crate) mib: u64,
    /// The source of its one program, in C.
    pub(crate) program: &'a str,
    /// Environment of the program.
    pub(crate) settings: &'a [(&'a str, u64)],
}

impl VirtualMachine<'_> {
    /// Runs it, and returns what its program said: a name and a number a line.
    ///
    /// # Errors
    /// [`LabError::Failed`] where it ended before its program did.
    pub(crate) fn run(&self, folder: &Path) -> Result<Vec<u8>, LabError> {
        let initramfs = initramfs(folder, self.program)?;
        let kernel = kernel().ok_or_else(|| LabError::Failed("no kernel found".to_owned()))?;
        let [console, said] = ["console", "said"].map(|name| folder.join(name));
        let serial = |path: &Path| format!("file:{}", path.display());
        let settings = self.settings.iter().map(|(name, value)| format!(" {name}={value}"));
        let line = format!("{COMMAND_LINE}{}", settings.collect::<String>());
        let mut qemu = Command::new(QEMU);
        end_with_parent(&mut qemu);
        let ended = qemu
            .args(["-accel", "tcg,tb-size=64", "-icount", "shift=0,sleep=off"])
            .args(["-rtc", "base=2026-01-01,clock=vm", "-smp", "1"])
            .args(["-nodefaults", "-display", "none", "-no-reboot"])
            .args(["-m", &format!("{}M", self.mib), "-append", &line])
            .args(["-serial", &serial(&console), "-serial", &serial(&said)])
            .arg("-kernel")
            .arg(kernel)
            .arg("-initrd")
            .arg(initramfs)
            .stdin(Stdio::null())
            .status()
            .while_(format!("cannot run {QEMU}"))?;
        // A terminal has lines end with a return too.
        let mut said = fs::read(said).while_("the machine printed nothing")?;
        said.retain(|byte| *byte != b'\r');
        if ended.success() && said.ends_with(b"done 1\n") {
            return Ok(said);
        }
        said.extend(fs::read(console).unwrap_or_default());
        let words = String::from_utf8_lossy(&said);
        Err(LabError::Failed(format!("the machine ended early: {ended}: {words}")))
    }
}

/// The kernel for machines.
pub(crate) fn kernel() -> Option<PathBuf> {
    GuestKernel::find().map(|kernel| kernel.image)
}

/// True if C programs can be linked with all that they need: the compiler knows where the library
/// lies.
pub(crate) fn links_statically() -> bool {
    let asked = Command::new("cc").arg("-print-file-name=libc.a").stdin(Stdio::null()).output();
    asked.is_ok_and(|answer| answer.stdout.starts_with(b"/"))
}

/// Compiles a program and packs it as the first file system of a machine; once for all runs.
fn initramfs(folder: &Path, program: &str) -> Result<PathBuf, LabError> {
    let [source, init, packed] = ["init.c", "init", "initramfs"].map(|name| folder.join(name));
    if packed.exists() {
        return Ok(packed);
    }
    fs::write(&source, program).while_(format!("cannot write {}", source.display()))?;
    let mut compiler = Command::new("cc");
    compiler.args(["-O2", "-static", "-o"]).arg(&init).arg(&source).stdin(Stdio::null());
    let compiled = compiler.output().while_("cannot run cc")?;
    if !compiled.status.success() {
        return Err(LabError::Failed(String::from_utf8_lossy(&compiled.stderr).into_owned()));
    }
    let init = fs::read(&init).while_("cannot read the program")?;
    let archive = || {
        let mut archive = ArchiveWriter::new(File::create(&packed)?);
        archive.file("/init", 0o755, &init)?;
        archive.finish()
    };
    archive().while_("cannot write the initramfs")?;
    Ok(packed)
}
