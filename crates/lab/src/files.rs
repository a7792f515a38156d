//! Files to map: with allocated disk blocks or written contents, and dropped from the page cache if
//! required.

use std::fs::{self, File, OpenOptions};
use std::io::{BufWriter, Write};
use std::path::Path;

use rustix::fs::{Advice, FallocateFlags, fadvise, fallocate, statfs};

use crate::LabError;
use crate::error::While;

/// A file of zeros without a name, so that no other process can open it. Its disk blocks are
/// allocated, so that touching its mapping cannot fail (SIGBUS).
pub(crate) fn allocated(folder: &Path, bytes: usize) -> Result<File, LabError> {
    let path = folder.join(format!("allocated-{}", std::process::id()));
    let mut options = OpenOptions::new();
    let file = options.read(true).write(true).create_new(true).open(&path);
    let file = file.while_(format!("cannot make {}", path.display()))?;
    fs::remove_file(&path).while_("cannot remove a file")?;
    fallocate(&file, FallocateFlags::empty(), 0, bytes as u64)
        .while_(format!("less than {bytes} bytes free in {}", folder.display()))?;
    Ok(file)
}

/// A file whose every page begins with 1 and lies on the disk: made once, for all runs of an
/// experiment.
pub(crate) fn written(folder: &Path, bytes: usize, page: usize) -> Result<File, LabError> {
    let path = folder.join("written");
    let open = || OpenOptions::new().read(true).write(true).open(&path);
    if fs::metadata(&path).is_ok_and(|there| there.len() == bytes as u64) {
        return open().while_(format!("cannot open {}", path.display()));
    }
    let mut content = vec![0; page];
    content[0] = 1;
    let write = || {
        let mut file = BufWriter::new(File::create(&path)?);
        (0..bytes / page).try_for_each(|_| file.write_all(&content))?;
        file.flush()?;
        open()
    };
    write().while_(format!("cannot write {}", path.display()))
}

/// Checks that a folder is not in memory (tmpfs), whose files are never written to a disk.
pub(crate) fn on_a_disk(folder: &Path) -> Result<(), LabError> {
    let found = statfs(folder).while_(format!("cannot read {}", folder.display()))?;
    if found.f_type != libc::TMPFS_MAGIC {
        return Ok(());
    }
    let folder = folder.display();
    Err(LabError::Failed(format!(
        "{folder} is in memory (tmpfs): name a folder on a disk by --disk"
    )))
}

/// Drops the pages of one file from the page cache. Dirty pages are written first, since the kernel
/// drops only clean ones.
pub(crate) fn drop_cached(file: &File) -> Result<(), LabError> {
    file.sync_all().while_("cannot sync a file")?;
    fadvise(file, 0, None, Advice::DontNeed).while_("POSIX_FADV_DONTNEED")
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::MetadataExt;

    use super::*;

    #[test]
    fn an_allocated_file_has_room_and_no_name() {
        let folder = tempfile::tempdir().unwrap();
        let file = allocated(folder.path(), 1 << 20).unwrap();
        let found = file.metadata().unwrap();
        assert_eq!((found.len(), found.nlink()), (1 << 20, 0));
        assert!(found.blocks() * 512 >= 1 << 20);
    }

    #[test]
    fn a_folder_in_memory_is_not_on_a_disk() {
        let shm = Path::new("/dev/shm");
        let in_memory = shm.exists() && statfs(shm).unwrap().f_type == libc::TMPFS_MAGIC;
        assert_eq!(on_a_disk(shm).is_err(), in_memory || !shm.exists());
        assert!(on_a_disk(Path::new("/proc")).is_ok());
    }

    #[test]
    fn a_file_is_written_once_and_again_if_its_size_differs() {
        let folder = tempfile::tempdir().unwrap();
        let changed = |bytes| {
            let file = written(folder.path(), bytes, 1 << 10).unwrap();
            drop_cached(&file).unwrap();
            let content = fs::read(folder.path().join("written")).unwrap();
            assert!(content.len() == bytes && content.chunks(1 << 10).all(|page| page[0] == 1));
            file.metadata().unwrap().modified().unwrap()
        };
        let first = changed(8 << 10);
        assert_eq!(first, changed(8 << 10));
        changed(16 << 10);
    }
}
