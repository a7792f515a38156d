//! `cargo xtask capture --qemu`: the same captures on Debian's stock kernel, booted under QEMU.
//!
//! The machine is an initramfs with busybox, the C library and the fixture programs. It sends
//! what it captured through its second serial port and switches itself off. No KVM is needed.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail, ensure};

use crate::capture::{CAPTURED, WORK, call, compile, keep, script, start_afresh};

/// The package whose one dependency is Debian's newest kernel for virtual machines.
const KERNEL: &str = "linux-image-cloud-amd64";

/// Files of this machine in the initramfs. The programs are linked with its C library.
const FILES: &[&str] =
    &["/bin/busybox", "/lib64/ld-linux-x86-64.so.2", "/lib/x86_64-linux-gnu/libc.so.6"];

const PASSWD: &str = "root:x:0:0::/:/bin/sh\nnobody:x:65534:65534::/:/bin/sh\n";

/// Booting takes seconds; something is wrong with a machine that is not done after this.
const MAX_SECONDS: &str = "300";

/// Captures on Debian's kernel.
pub(crate) fn run() -> Result<()> {
    let work = Path::new(WORK);
    start_afresh(work)?;
    let kernel = fetch_kernel(work)?;
    let initramfs = build_initramfs(work)?;
    let sent = boot(&kernel, &initramfs, work)?;
    let out = work.join("out");
    unpack(&sent, &out)?;
    keep(&out)?;
    fs::remove_dir_all(work).with_context(|| WORK.to_owned())
}

/// Fetches the kernel's package with apt and unpacks it; nothing is installed.
fn fetch_kernel(work: &Path) -> Result<PathBuf> {
    let answer =
        Command::new("apt-cache").args(["depends", KERNEL]).output().context("apt-cache")?;
    let answer = String::from_utf8_lossy(&answer.stdout).into_owned();
    let image = answer
        .lines()
        .find_map(|line| line.trim().strip_prefix("Depends: "))
        .with_context(|| format!("apt does not know {KERNEL}: is this Debian, and up to date?"))?;
    call(
        Command::new("apt-get")
            .args(["-qq", "-o", "APT::Sandbox::User=root", "download", image])
            .current_dir(work),
    )?;
    let package = find(work, |name| name.ends_with(".deb"))?;
    let unpacked = work.join("kernel");
    call(Command::new("dpkg-deb").arg("-x").args([&package, &unpacked]))?;
    find(&unpacked.join("boot"), |name| name.starts_with("vmlinuz"))
}

fn find(folder: &Path, wanted: impl Fn(&str) -> bool) -> Result<PathBuf> {
    for entry in fs::read_dir(folder).with_context(|| folder.display().to_string())? {
        let entry = entry?;
        if wanted(&entry.file_name().to_string_lossy()) {
            return Ok(entry.path());
        }
    }
    bail!("{}: what was to be there is not", folder.display())
}

/// Runs as the first process. The root is ramfs, whose pages count as file pages as a disk's do.
fn init() -> String {
    format!(
        "#!/bin/busybox sh
/bin/busybox --install -s /bin
mount -t proc proc /proc
mount -t sysfs sysfs /sys
mount -t devtmpfs devtmpfs /dev
mkdir -p /dev/shm
mount -t tmpfs -o mode=1777 tmpfs /dev/shm
sh /capture.sh {WORK}/bin /out
stty -F /dev/ttyS1 raw
tar -C /out -czf - . | base64 >/dev/ttyS1
sync
poweroff -f
"
    )
}

/// Packs the initramfs.
fn build_initramfs(work: &Path) -> Result<PathBuf> {
    let root = work.join("initramfs");
    for folder in ["bin", "dev", "etc", "proc", "sys", "tmp"] {
        fs::create_dir_all(root.join(folder))?;
    }
    for file in FILES {
        let inside = root.join(&file[1..]);
        fs::create_dir_all(inside.parent().context("a file is in a folder")?)?;
        fs::copy(file, &inside).with_context(|| (*file).to_owned())?;
    }
    compile(&root.join(&WORK[1..]).join("bin"), CAPTURED)?;
    fs::copy(script()?, root.join("capture.sh"))?;
    fs::write(root.join("etc/passwd"), PASSWD)?;
    fs::write(root.join("init"), init())?;
    fs::set_permissions(root.join("init"), fs::Permissions::from_mode(0o755))?;
    let packed = work.join("initramfs.gz");
    let pack = "find . | busybox cpio -o -H newc 2>/dev/null | gzip -1 >../initramfs.gz";
    call(Command::new("sh").args(["-c", pack]).current_dir(&root))?;
    Ok(packed)
}

/// Boots, waits for the machine to switch itself off, and returns what it sent.
fn boot(kernel: &Path, initramfs: &Path, work: &Path) -> Result<PathBuf> {
    let (console, sent) = (work.join("console"), work.join("sent"));
    let serial = |path: &Path| format!("file:{}", path.display());
    let booted = Command::new("timeout")
        .args([MAX_SECONDS, "qemu-system-x86_64", "-accel", "tcg", "-m", "1G", "-smp", "2"])
        .args(["-nodefaults", "-display", "none", "-no-reboot"])
        .args(["-serial", &serial(&console), "-serial", &serial(&sent)])
        .args(["-append", "console=ttyS0 quiet panic=-1 rootfstype=ramfs rdinit=/init"])
        .arg("-kernel")
        .arg(kernel)
        .arg("-initrd")
        .arg(initramfs)
        .stdin(Stdio::null())
        .status()
        .context("qemu-system-x86_64")?;
    let said = fs::read(&console).unwrap_or_default();
    ensure!(
        booted.success(),
        "qemu: {booted}; the console says:\n{}",
        String::from_utf8_lossy(&said)
    );
    Ok(sent)
}

/// Unpacks what the machine sent: a tar archive in base64.
fn unpack(sent: &Path, out: &Path) -> Result<()> {
    fs::create_dir_all(out)?;
    let unpack = "base64 --decode --ignore-garbage <\"$1\" | tar -C \"$2\" -xzf -";
    call(Command::new("sh").args(["-c", unpack, "sh"]).arg(sent).arg(out))
        .context("what the machine sent is no archive")
}
