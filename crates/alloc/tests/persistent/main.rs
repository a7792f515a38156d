//! Tests of the persistent heap through its public interface: errors, persistence, and the state
//! that a killed process leaves.

#![cfg(feature = "os")]
#![allow(clippy::unwrap_used, reason = "these are tests, their helpers too")]

mod api;
mod child;
mod instructions;
mod kills;
mod ledger;

use std::ffi::{CStr, CString};
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};

use pagewise_alloc::persistent::{Persistent, PersistentError, PersistentOptions};

/// Options for a small heap, so that the tests read the whole file in a short time.
const SMALL: PersistentOptions = {
    let mut options = PersistentOptions::DEFAULT;
    options.capacity = Some(1 << 22);
    options.log = 1;
    options
};

/// Path of a file for a heap. Dropping this value deletes the file.
#[derive(Debug)]
struct HeapPath {
    path: PathBuf,
    name: CString,
}

impl HeapPath {
    /// Chooses a path in a file system in memory, if one exists, so that the tests do not wait for
    /// a disk.
    fn new() -> HeapPath {
        static PLACES: AtomicUsize = AtomicUsize::new(0);
        let number = PLACES.fetch_add(1, Ordering::Relaxed);
        let shared = Path::new("/dev/shm");
        let folder = if shared.is_dir() { shared.to_owned() } else { std::env::temp_dir() };
        let path = folder.join(format!("pagewise-test-{}-{number}.heap", std::process::id()));
        let _ = fs::remove_file(&path);
        let name = CString::new(path.to_str().unwrap()).unwrap();
        HeapPath { path, name }
    }

    /// Returns the folder that contains the file.
    fn folder(&self) -> CString {
        CString::new(self.path.parent().unwrap().to_str().unwrap()).unwrap()
    }

    fn last_name(&self) -> &CStr {
        let slash = self.name.to_bytes().iter().rposition(|byte| *byte == b'/').unwrap();
        CStr::from_bytes_with_nul(&self.name.as_bytes_with_nul()[slash + 1..]).unwrap()
    }

    fn open(&self, options: &PersistentOptions) -> Result<Persistent, PersistentError> {
        open(&self.name, options)
    }
}

impl Drop for HeapPath {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.path);
    }
}

fn open(name: &CStr, options: &PersistentOptions) -> Result<Persistent, PersistentError> {
    // SAFETY: while a file of these tests is open, only this library changes it.
    unsafe { Persistent::open(name, options) }
}
