//! The root file system of a guest, as an archive that the kernel unpacks into memory.

use std::fs::{self, File};
use std::io::BufWriter;

use crate::archive::ArchiveWriter;
use crate::error::WhileDoing;
use crate::machine::{CgroupVersion, VirtualMachine};
use crate::modules::modules;
use crate::programs::find_busybox;
use crate::{VmError, VmRequirement};

/// Shell script that runs as the first process (PID 1) of the guest.
const INIT: &str = include_str!("init.sh");

const PASSWD: &str = "root:x:0:0::/:/bin/sh\nuser:x:1000:1000::/tmp:/bin/sh\n\
    nobody:x:65534:65534::/:/bin/sh\n";
const GROUP: &str = "root:x:0:\nuser:x:1000:\nnogroup:x:65534:\n";

/// Folders that exist before any program runs. Some of them are mount points.
const FOLDERS: &[&str] = &["/bin", "/dev", "/etc", "/proc", "/sys", "/tmp", "/var/tmp", "/root"];

/// A file of the guest.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GuestFile {
    /// Path in the guest.
    pub path: String,
    /// Permission bits.
    pub mode: u32,
    /// Content of the file.
    pub content: Vec<u8>,
}

impl GuestFile {
    /// Creates a file of the guest from its path, permission bits and content.
    pub fn new(path: impl Into<String>, mode: u32, content: impl Into<Vec<u8>>) -> GuestFile {
        GuestFile { path: path.into(), mode, content: content.into() }
    }
}

/// Writes the initramfs of a machine.
///
/// # Errors
/// [`VmError::Missing`] without busybox; [`VmError::System`] if a file cannot be read.
pub(crate) fn write_initramfs(machine: &VirtualMachine, out: &File) -> Result<(), VmError> {
    let mut archive = ArchiveWriter::new(BufWriter::with_capacity(1 << 20, out));
    let writing = "cannot write the initramfs";
    for folder in FOLDERS {
        archive.folder(folder).while_doing(writing)?;
    }
    let mut put =
        |file: &GuestFile| archive.file(&file.path, file.mode, &file.content).while_doing(writing);
    for file in own_files(machine)? {
        put(&file)?;
    }
    for (at, module) in guest_modules(machine)?.into_iter().enumerate() {
        // The init script loads the modules in the order of their names.
        let path = format!("/pagewise/modules/{at:02}-{}.ko", module.name);
        put(&GuestFile::new(path, 0o644, module.content))?;
    }
    for program in &machine.programs {
        for file in program.files()? {
            put(&file)?;
        }
    }
    for file in &machine.files {
        put(file)?;
    }
    archive.finish().while_doing(writing)?;
    Ok(())
}

fn own_files(machine: &VirtualMachine) -> Result<Vec<GuestFile>, VmError> {
    let busybox = machine.busybox.clone().or_else(find_busybox);
    let busybox = busybox.ok_or(VmError::Missing(VmRequirement::Busybox))?;
    let busybox = fs::read(&busybox).while_doing(format!("cannot read {}", busybox.display()))?;
    let cgroups = match machine.cgroups {
        CgroupVersion::V1 => "v1",
        CgroupVersion::V2 => "v2",
    };
    Ok(vec![
        GuestFile::new("/bin/busybox", 0o755, busybox),
        GuestFile::new("/init", 0o755, INIT),
        GuestFile::new("/etc/passwd", 0o644, PASSWD),
        GuestFile::new("/etc/group", 0o644, GROUP),
        GuestFile::new("/pagewise/cgroups", 0o644, cgroups),
        GuestFile::new("/pagewise/command", 0o644, shell_line(&machine.command)),
    ])
}

fn guest_modules(machine: &VirtualMachine) -> Result<Vec<crate::modules::KernelModule>, VmError> {
    let Some(folder) = &machine.kernel.modules else { return Ok(Vec::new()) };
    let mut wanted = vec!["virtio_pci", "virtio_console"];
    if !machine.disks.is_empty() {
        wanted.push("virtio_blk");
    }
    if !machine.growth.is_zero() {
        wanted.push("virtio_balloon");
    }
    wanted.extend(machine.modules.iter().map(String::as_str));
    modules(folder, &wanted)
}

/// Formats a command as a line of the shell, with each word in single quotes.
fn shell_line(words: &[String]) -> String {
    let quoted: Vec<String> =
        words.iter().map(|word| format!("'{}'", word.replace('\'', r"'\''"))).collect();
    format!("exec {}\n", quoted.join(" "))
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use super::*;

    #[test]
    fn the_shell_gets_the_words_of_a_command_unchanged() {
        let words = ["printf", "%s|", "a b", "it's", "$HOME", "\"`'*\\", "two\nlines"];
        let line = shell_line(&words.map(str::to_owned));
        let printed = Command::new("sh").args(["-c", &line]).output().unwrap();
        let expected: String = words[2..].iter().map(|word| format!("{word}|")).collect();
        assert_eq!(String::from_utf8_lossy(&printed.stdout), expected);
    }
}
