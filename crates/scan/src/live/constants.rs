//! Bytes of mapped files, which are read from the files instead of the process, because the process
//! has not changed these pages.

use std::collections::HashMap;
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::sync::{Mutex, PoisonError};

use pagewise_model::mapping::Sharing;
use pagewise_model::{Mapping, Pid};
use pagewise_proc::{ProcRoot, target_file};

/// The mapped files of a process, each opened when one of its bytes is needed.
#[derive(Debug)]
pub(super) struct MappedFiles {
    root: ProcRoot,
    pid: Pid,
    /// Files by the start of their mappings; `None` if the file cannot be opened or was replaced.
    opened: Mutex<HashMap<u64, Option<File>>>,
}

impl MappedFiles {
    pub(super) fn new(root: &ProcRoot, pid: Pid) -> MappedFiles {
        MappedFiles { root: root.clone(), pid, opened: Mutex::default() }
    }

    /// Fills `into` with bytes of the mapped file of a mapping that contains `address`. Returns
    /// false if the process may have changed these bytes.
    pub(super) fn read(&self, mapping: &Mapping, address: u64, into: &mut [u8]) -> bool {
        let end = address.checked_add(into.len() as u64);
        let is_inside = end.is_some_and(|end| end <= mapping.range.end);
        if !is_inside || mapping.inode == 0 || mapping.sharing != Sharing::Private {
            return false;
        }
        let mut opened = self.opened.lock().unwrap_or_else(PoisonError::into_inner);
        let file = opened
            .entry(mapping.range.start)
            .or_insert_with(|| target_file::open_mapped(&self.root, self.pid, mapping).ok());
        let offset = mapping.offset.checked_add(address - mapping.range.start);
        let read = file.as_ref().zip(offset).map(|(file, offset)| file.read_exact_at(into, offset));
        read.is_some_and(|read| read.is_ok())
    }
}
