//! Heap scans in files.

use std::fs;
use std::io;
use std::path::Path;

use pagewise_model::heap_scan::{HEAP_SCAN_VERSION, HeapScan};
use pagewise_model::name::escape;
use pagewise_sys::output_file::{self, FileReaders};

use crate::ScanError;

/// Writes a scan to a file that only its owner can read.
///
/// # Errors
/// An error if the file cannot be written.
pub fn save(scan: &HeapScan, path: &Path) -> io::Result<()> {
    output_file::write(path, FileReaders::Owner, |out| {
        serde_json::to_writer(&mut *out, scan)?;
        out.write_all(b"\n")
    })
}

/// Opens a saved scan.
///
/// # Errors
/// [`ScanError::NotAScan`] if the file cannot be read, is not a scan, or has a newer version.
pub fn open(path: &Path) -> Result<HeapScan, ScanError> {
    let named = |why: String| {
        let path = escape(path.as_os_str().as_encoded_bytes()).into_owned();
        ScanError::NotAScan(path, escape(why.as_bytes()).into_owned())
    };
    let bytes = fs::read(path).map_err(|error| named(error.to_string()))?;
    let scan: HeapScan =
        serde_json::from_slice(&bytes).map_err(|error| named(error.to_string()))?;
    match scan.pagewise_heap_scan {
        0..=HEAP_SCAN_VERSION => Ok(scan),
        newer => Err(named(format!(
            "it has version {newer}, this program reads versions up to {HEAP_SCAN_VERSION}"
        ))),
    }
}
