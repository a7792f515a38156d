//! Choice of the accelerator: KVM if the host has it, else TCG, which is QEMU's translation of
//! instructions.

use std::fs;

use rustix::fs::{Access, access};

use crate::GuestArch;

/// Method by which QEMU runs the instructions of the guest.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Accelerator {
    /// The virtualization of the host's CPU, by `/dev/kvm`.
    Kvm,
    /// Translation by QEMU, which works on every host but is 10 to 30 times slower than KVM.
    Tcg,
    /// TCG on one CPU, with a clock that advances one nanosecond for each instruction of the guest.
    /// Times in the guest are then the same on every host.
    CountingTcg,
}

impl Accelerator {
    /// The fastest accelerator of this host for a guest.
    pub fn detect(guest: GuestArch) -> Accelerator {
        let usable = guest.is_host() && has_virtualization(guest) && may_use_kvm();
        if usable { Accelerator::Kvm } else { Accelerator::Tcg }
    }

    /// Value of QEMU's option `-accel`.
    pub(crate) fn option(self) -> &'static str {
        match self {
            Accelerator::Kvm => "kvm",
            // By default, QEMU's cache of translated code takes up to 1 GiB of host memory.
            Accelerator::Tcg => "tcg,tb-size=64",
            Accelerator::CountingTcg => "tcg,tb-size=64,thread=single",
        }
    }
}

fn may_use_kvm() -> bool {
    access("/dev/kvm", Access::READ_OK | Access::WRITE_OK).is_ok()
}

/// True if the CPU supports virtualization. Some hypervisors offer a `/dev/kvm` without this
/// support, which runs only modified kernels.
fn has_virtualization(guest: GuestArch) -> bool {
    match guest {
        GuestArch::Aarch64 => true,
        GuestArch::X86_64 => {
            let info = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
            let flags = info.lines().find(|line| line.starts_with("flags")).unwrap_or_default();
            flags.split_whitespace().any(|flag| flag == "vmx" || flag == "svm")
        }
    }
}
