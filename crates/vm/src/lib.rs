//! Virtual machines for experiments and tests: QEMU boots a kernel with an initramfs created in
//! memory, runs one command and ends.
//!
//! ```text
//!   caller ── VirtualMachine::run ──> QEMU (KVM, or TCG where the host has none)
//!                                       │ -kernel, -initrd: busybox, modules, programs, files
//!                                       │ ttyS0: console of the kernel
//!   VmResult <── memory files <─────────┤ virtio-serial: standard output, standard error,
//!                                       │                archive of exit status and result files
//! ```
//!
//! The initramfs, the output and the disks of a machine are memory files, so a machine leaves
//! nothing on the host. The kernel ends QEMU when the thread that started it ends.
#![forbid(unsafe_code)]

mod accelerator;
mod archive;
mod build;
mod elf;
mod error;
mod fetch;
mod initramfs;
mod kernel;
mod machine;
mod modules;
mod monitor;
mod programs;
mod qemu;
mod requirement;

pub use accelerator::Accelerator;
pub use archive::{ArchiveEntry, ArchiveWriter, read_archive};
pub use build::{BuildProgress, KernelBuild, build_kernel, built_kernel};
pub use elf::is_static_program;
pub use error::VmError;
pub use fetch::fetch_kernel;
pub use initramfs::GuestFile;
pub use kernel::{GuestArch, GuestKernel, KERNEL_VARIABLE, fetched_images, kernels_folder};
pub use machine::{CgroupVersion, VirtualMachine, VmEnd, VmResult};
pub use monitor::GuestRequest;
pub use programs::GuestProgram;
pub use qemu::GUEST_OPTION;
pub use requirement::{VmRequirement, missing_requirement};
