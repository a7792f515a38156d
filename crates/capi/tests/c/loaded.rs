//! Programs in C that are compiled and loaded into the process of a test.

use std::ffi::{CStr, CString, c_void};
use std::mem::transmute_copy;
use std::process::Command;

use crate::build::{C, api as folder, has, run};

/// A compiled file of `ctests/same` that is loaded into this process.
pub(crate) struct LoadedC {
    handle: *mut c_void,
}

impl LoadedC {
    /// Loads a program, and sets its `struct library`, the addresses of the library functions that
    /// it calls. If no compiler is installed, records that a test is skipped and returns `None`.
    pub(crate) fn load<L>(source: &str, library: &L) -> Option<LoadedC> {
        has("cc").then_some(())?;
        let folder_of_it = tempfile::tempdir().unwrap();
        let compiled = folder_of_it.path().join("same.so");
        let mut cc = Command::new("cc");
        cc.args(C).args(["-O2", "-shared", "-fPIC", "-o"]).arg(&compiled);
        cc.arg("-I").arg(folder().join("include"));
        run(cc.arg(folder().join("ctests/same").join(source)));
        let path = CString::new(compiled.to_str().unwrap()).unwrap();
        // SAFETY: the loaded file has no initialization functions.
        let handle = unsafe { libc::dlopen(path.as_ptr(), libc::RTLD_NOW | libc::RTLD_LOCAL) };
        assert!(!handle.is_null(), "{path:?} cannot be loaded");
        let loaded = LoadedC { handle };
        // SAFETY: each loaded program defines `connect_to`, which takes a pointer to its `struct
        // library`.
        let connect: extern "C" fn(&L) = unsafe { loaded.function(c"connect_to") };
        connect(library);
        Some(loaded)
    }

    /// # Safety
    /// The function with this name has the type `F`.
    pub(crate) unsafe fn function<F: Copy>(&self, name: &CStr) -> F {
        // SAFETY: the library stays loaded.
        let found = unsafe { libc::dlsym(self.handle, name.as_ptr()) };
        assert!(!found.is_null() && size_of::<F>() == size_of_val(&found), "{name:?}");
        // SAFETY: the caller guarantees that the symbol has this type; the sizes were compared.
        unsafe { transmute_copy(&found) }
    }
}
