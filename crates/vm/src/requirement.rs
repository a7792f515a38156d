//! Programs and files that are required to boot a machine, and the commands that install them.

use std::fmt::{self, Display, Formatter};
use std::fs;

use crate::kernel::{GuestArch, GuestKernel, KERNEL_VARIABLE};
use crate::programs::{find_busybox, find_program};

/// A program or file that a virtual machine needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum VmRequirement {
    /// QEMU for the architecture of the guest.
    Qemu(GuestArch),
    /// A kernel that can be booted.
    Kernel,
    /// A statically linked busybox.
    Busybox,
    /// A program that uncompresses kernel modules.
    Unpacker(&'static str),
}

impl VmRequirement {
    /// Command that installs the requirement on this system. A kernel is only downloaded, so the
    /// host keeps its own kernel.
    pub fn install_command(self) -> String {
        let system = Distribution::of_host();
        let package = match self {
            VmRequirement::Qemu(guest) => system.qemu(guest),
            VmRequirement::Busybox if system == Distribution::Debian => "busybox-static",
            VmRequirement::Busybox => "busybox",
            VmRequirement::Unpacker("xz") if system == Distribution::Debian => "xz-utils",
            VmRequirement::Unpacker(name) => name,
            VmRequirement::Kernel if system == Distribution::Debian => {
                return "pagewise lab vm fetch-kernel".to_owned();
            }
            VmRequirement::Kernel => return format!("export {KERNEL_VARIABLE}=PATH_OF_A_BZIMAGE"),
        };
        format!("{} {package}", system.install())
    }
}

impl Display for VmRequirement {
    fn fmt(&self, to: &mut Formatter<'_>) -> fmt::Result {
        match self {
            VmRequirement::Qemu(guest) => write!(to, "{} is not installed", guest.qemu()),
            VmRequirement::Kernel => write!(
                to,
                "no kernel to boot: /boot has none that this user can read, and \
                 {KERNEL_VARIABLE} names none that can be booted"
            ),
            VmRequirement::Busybox => write!(to, "no statically linked busybox is installed"),
            VmRequirement::Unpacker(name) => write!(to, "{name} is not installed"),
        }?;
        write!(to, "; run `{}`", self.install_command())
    }
}

/// Returns the first requirement of a guest of the host's architecture that this host does not
/// meet.
pub fn missing_requirement() -> Option<VmRequirement> {
    let host = GuestArch::host()?;
    if find_program(host.qemu()).is_none() {
        return Some(VmRequirement::Qemu(host));
    }
    if find_busybox().is_none() {
        return Some(VmRequirement::Busybox);
    }
    GuestKernel::find().is_none().then_some(VmRequirement::Kernel)
}

/// A family of Linux distributions with the same package manager.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Distribution {
    Debian,
    RedHat,
    Suse,
    Arch,
    Alpine,
    Other,
}

impl Distribution {
    fn of_host() -> Distribution {
        Distribution::of(&fs::read_to_string("/etc/os-release").unwrap_or_default())
    }

    /// Family of a distribution, by `ID` and `ID_LIKE` of os-release.
    fn of(release: &str) -> Distribution {
        let values = release
            .lines()
            .filter_map(|line| line.strip_prefix("ID=").or_else(|| line.strip_prefix("ID_LIKE=")));
        let mut words = values.flat_map(|value| value.trim_matches('"').split_whitespace());
        words
            .find_map(|word| match word {
                "debian" | "ubuntu" => Some(Distribution::Debian),
                "fedora" | "rhel" | "centos" => Some(Distribution::RedHat),
                "suse" | "opensuse" => Some(Distribution::Suse),
                "arch" => Some(Distribution::Arch),
                "alpine" => Some(Distribution::Alpine),
                _ => None,
            })
            .unwrap_or(Distribution::Other)
    }

    fn install(self) -> &'static str {
        match self {
            Distribution::Debian => "apt-get install --yes",
            Distribution::RedHat => "dnf install --assumeyes",
            Distribution::Suse => "zypper install --no-confirm",
            Distribution::Arch => "pacman --sync --noconfirm",
            Distribution::Alpine => "apk add",
            Distribution::Other => "PACKAGE_MANAGER install",
        }
    }

    /// Name of the package that contains QEMU.
    fn qemu(self, guest: GuestArch) -> &'static str {
        match (self, guest) {
            (Distribution::Debian | Distribution::Suse, GuestArch::X86_64) => "qemu-system-x86",
            (Distribution::Debian | Distribution::Suse, GuestArch::Aarch64) => "qemu-system-arm",
            (Distribution::RedHat, GuestArch::X86_64) => "qemu-system-x86-core",
            (Distribution::RedHat, GuestArch::Aarch64) => "qemu-system-aarch64-core",
            (Distribution::Arch, GuestArch::X86_64) => "qemu-system-x86",
            _ => guest.qemu(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_derived_system_has_the_package_manager_of_its_origin() {
        let of = Distribution::of;
        assert!(of("NAME=x\nID=debian\n") == Distribution::Debian);
        assert!(of("ID=linuxmint\nID_LIKE=\"ubuntu debian\"\n") == Distribution::Debian);
        assert!(of("ID=\"rocky\"\nID_LIKE=\"rhel centos fedora\"\n") == Distribution::RedHat);
        assert!(of("ID=\"opensuse-leap\"\nID_LIKE=\"suse opensuse\"\n") == Distribution::Suse);
        assert!(of("") == Distribution::Other);
    }

    #[test]
    fn a_missing_requirement_names_one_command() {
        for requirement in [
            VmRequirement::Qemu(GuestArch::X86_64),
            VmRequirement::Kernel,
            VmRequirement::Busybox,
            VmRequirement::Unpacker("xz"),
        ] {
            let words = requirement.to_string();
            assert_eq!(words.matches('`').count(), 2, "{words}");
        }
    }
}
