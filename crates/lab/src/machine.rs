//! A small virtual machine for experiments that would harm a machine in use. It has a kernel, one
//! program and a fixed amount of memory; the program writes its results to the second serial port,
//! and the machine ends.
//!
//! QEMU's own processor is used (TCG), and counts a nanosecond for each instruction: so the
//! machine's clock counts work, the same on every host, however busy.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use pagewise_sys::system;

use crate::LabError;
use crate::error::While;

/// Program that runs machines.
pub(crate) const QEMU: &str = "qemu-system-x86_64";

/// Names a kernel that is not in `/boot`.
pub(crate) const KERNEL: &str = "PAGEWISE_KERNEL";

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
        let ended = Command::new(QEMU)
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

/// The first kernel of: what the environment names, that of the running system, any in `/boot`.
pub(crate) fn kernel() -> Option<PathBuf> {
    let named = std::env::var_os(KERNEL).map(PathBuf::from);
    let release = String::from_utf8_lossy(&system::kernel_release()).into_owned();
    let in_boot = fs::read_dir("/boot").into_iter().flatten().flatten().map(|file| file.path());
    let is_kernel = |path: &PathBuf| {
        path.file_name().is_some_and(|name| name.as_encoded_bytes().starts_with(b"vmlinuz"))
    };
    let running = Path::new("/boot").join(format!("vmlinuz-{release}"));
    let mut others: Vec<PathBuf> = in_boot.filter(is_kernel).collect();
    others.sort();
    named.into_iter().chain([running]).chain(others).find(|path| path.is_file())
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
    fs::write(&packed, archive("init", &init)).while_("cannot write the initramfs")?;
    Ok(packed)
}

/// The magic number of the only format that kernels take: `newc` of cpio.
const MAGIC: &str = "070701";
/// A regular file that may be run.
const MODE: u32 = 0o100_755;

/// An archive with one file. Each header is a magic number and 13 numbers of 8 hexadecimal digits;
/// names and contents end at multiples of 4 bytes.
fn archive(name: &str, content: &[u8]) -> Vec<u8> {
    let mut archive = Vec::new();
    for (number, mode, name, content) in [(1, MODE, name, content), (0, 0, "TRAILER!!!", &[])] {
        let size = u32::try_from(content.len()).unwrap_or(u32::MAX);
        let name_size = u32::try_from(name.len() + 1).unwrap_or(u32::MAX);
        // inode, mode, user, group, links, time, size, 4 devices, size of the name, checksum
        let header = [number, mode, 0, 0, 1, 0, size, 0, 0, 0, 0, name_size, 0];
        archive.extend_from_slice(MAGIC.as_bytes());
        header
            .iter()
            .for_each(|field| archive.extend_from_slice(format!("{field:08x}").as_bytes()));
        archive.extend_from_slice(name.as_bytes());
        archive.push(0);
        archive.resize(archive.len().next_multiple_of(4), 0);
        archive.extend_from_slice(content);
        archive.resize(archive.len().next_multiple_of(4), 0);
    }
    archive
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use pagewise_skip::{Lack, skip};

    use super::*;

    #[test]
    fn cpio_unpacks_what_was_packed() {
        let folder = tempfile::tempdir().unwrap();
        let mut command = Command::new("cpio");
        command.args(["-i", "--quiet"]).current_dir(&folder).stdin(Stdio::piped());
        let Ok(mut cpio) = command.spawn() else {
            return skip(&Lack::Tool("cpio"));
        };
        cpio.stdin.take().unwrap().write_all(&archive("init", b"12345")).unwrap();
        assert!(cpio.wait().unwrap().success());
        assert_eq!(fs::read(folder.path().join("init")).unwrap(), b"12345");
    }
}
