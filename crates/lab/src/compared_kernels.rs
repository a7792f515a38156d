//! Two kernels that an experiment compares: an unchanged kernel, and the same kernel with a patch.

use std::ffi::OsString;
use std::path::PathBuf;

use pagewise_vm::built_kernel;

/// The lab's own patch: pages that were accessed are reclaimed, not activated.
pub const RECLAIM_PATCH: &[u8] = include_bytes!("../patches/reclaim-accessed.patch");

/// Environment variables of a run that contain the paths of the kernel images.
const VARIABLES: [&str; 2] = ["PAGEWISE_KERNEL_PLAIN", "PAGEWISE_KERNEL_PATCHED"];

/// Images of two kernels.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ComparedKernels {
    /// Image of the unchanged kernel.
    pub plain: PathBuf,
    /// Image of the kernel with a patch.
    pub patched: PathBuf,
}

impl ComparedKernels {
    /// Finds the kernels that the environment names, or the kernels that were built with the lab's
    /// own patch.
    pub(crate) fn find() -> Option<ComparedKernels> {
        let [plain, patched] = VARIABLES.map(|name| std::env::var_os(name).map(PathBuf::from));
        let named = plain.zip(patched);
        let built = || {
            let [plain, patched] = [None, Some(RECLAIM_PATCH)].map(built_kernel);
            Some((plain?.image, patched?.image))
        };
        let (plain, patched) = named.or_else(built)?;
        Some(ComparedKernels { plain, patched })
    }

    /// The environment of a run that compares these kernels.
    pub(crate) fn variables(&self) -> [(&'static str, OsString); 2] {
        let [plain, patched] = VARIABLES;
        [(plain, self.plain.clone().into()), (patched, self.patched.clone().into())]
    }
}
