//! Journal of the changes of an experiment to the system, with the previous values. Each change is
//! recorded before it is made, so that the lab can undo it after any end of the experiment. If the
//! lab itself is killed, its next start undoes the changes.
//!
//! A journal is a folder with a file for each change. The lab that owns the journal locks it until
//! the lab ends.

use std::fs::{self, File};
use std::io::{self, Write};
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::thread;
use std::time::Duration;

use rustix::fs::{FlockOperation, flock};
use serde::{Deserialize, Serialize};

use crate::LabError;
use crate::error::While;

/// A change, with the data to undo it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
enum JournalChange {
    /// A setting was changed; `before` is its previous value.
    Setting { path: PathBuf, before: String },
    /// A cgroup was created. To undo this, its processes are killed.
    Cgroup { path: PathBuf },
    /// A file was enabled as swap.
    Swap { path: PathBuf },
    /// A folder or file was created.
    Made { path: PathBuf },
}

/// Journal of the changes of one lab.
#[derive(Debug)]
pub struct Journal {
    folder: PathBuf,
    /// Lock of the owner; `None` in a run, which writes to the journal of the lab that started it.
    lock: Option<File>,
}

const LOCK: &str = "lock";

impl Journal {
    /// Begins a journal of this user. Before that, undoes the changes of journals whose owners have
    /// ended.
    ///
    /// # Errors
    /// [`LabError::System`]
    pub fn begin(base: &Path) -> Result<Journal, LabError> {
        fs::create_dir_all(base).while_(format!("cannot make {}", base.display()))?;
        check_owner(base)?;
        let _ = fs::set_permissions(base, fs::Permissions::from_mode(0o700));
        restore_orphans(base)?;
        let folder = base.join(std::process::id().to_string());
        fs::create_dir_all(&folder).while_(format!("cannot make {}", folder.display()))?;
        let lock = File::create(folder.join(LOCK)).while_("cannot make the lock of the journal")?;
        flock(&lock, FlockOperation::NonBlockingLockExclusive)
            .while_("another lab has this journal")?;
        Ok(Journal { folder, lock: Some(lock) })
    }

    /// The folder of this user's journals.
    pub fn base() -> PathBuf {
        let id = rustix::process::geteuid();
        if id.is_root() {
            "/run/pagewise-lab".into()
        } else {
            format!("/tmp/pagewise-lab-{}", id.as_raw()).into()
        }
    }

    /// The journal of the lab that started this run.
    pub(crate) fn join(folder: PathBuf) -> Journal {
        Journal { folder, lock: None }
    }

    /// Waits until no other lab of this user may change settings, and makes other labs wait until
    /// the returned lock is dropped: concurrent changes of two labs cannot be undone. `None` if the
    /// wait was interrupted.
    ///
    /// # Errors
    /// [`LabError::System`]
    pub(crate) fn have_settings_alone(
        &self,
        interrupted: &dyn Fn() -> bool,
    ) -> Result<Option<File>, LabError> {
        let base = self.folder.parent().unwrap_or(&self.folder);
        let lock = File::open(base).while_(format!("cannot open {}", base.display()))?;
        while flock(&lock, FlockOperation::NonBlockingLockExclusive).is_err() {
            if interrupted() {
                return Ok(None);
            }
            thread::sleep(APART);
        }
        Ok(Some(lock))
    }

    /// Folder of the journal.
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// Changes a setting. The value of a setting that shows a choice (`always [madvise] never`) is
    /// the word in brackets.
    ///
    /// # Errors
    /// [`LabError::System`]
    pub fn set(&self, path: &Path, value: &str) -> Result<(), LabError> {
        let before = fs::read_to_string(path).while_(format!("cannot read {}", path.display()))?;
        let before = chosen(&before).to_owned();
        self.note(&JournalChange::Setting { path: path.to_owned(), before })?;
        fs::write(path, value).while_(format!("cannot write {value} to {}", path.display()))
    }

    /// Creates a cgroup.
    ///
    /// # Errors
    /// [`LabError::System`]
    pub fn make_cgroup(&self, path: &Path) -> Result<(), LabError> {
        self.note(&JournalChange::Cgroup { path: path.to_owned() })?;
        fs::create_dir(path).while_(format!("cannot make {}", path.display()))
    }

    /// Creates an empty folder in the folder `within`.
    ///
    /// # Errors
    /// [`LabError::System`]
    pub fn make_folder(&self, within: &Path) -> Result<PathBuf, LabError> {
        let name = format!("pagewise-lab-{}-{}", std::process::id(), self.entries().len());
        let path = within.join(name);
        self.note(&JournalChange::Made { path: path.clone() })?;
        fs::create_dir(&path).while_(format!("cannot make {}", path.display()))?;
        Ok(path)
    }

    /// Enables an existing file without holes as swap.
    ///
    /// # Errors
    /// [`LabError::System`]
    pub fn swap_on(&self, path: &Path) -> Result<(), LabError> {
        self.note(&JournalChange::Swap { path: path.to_owned() })?;
        pagewise_labmem::swap::on(path).while_(format!("cannot swap to {}", path.display()))
    }

    /// Records a change that is about to be made.
    fn note(&self, change: &JournalChange) -> Result<(), LabError> {
        let text =
            serde_json::to_vec(change).map_err(io::Error::from).while_("a change is JSON")?;
        let path = self.folder.join(format!("{:06}", self.next()));
        let write = || {
            let mut file = File::create_new(&path)?;
            file.write_all(&text)
        };
        write().while_(format!("cannot write {}", path.display()))
    }

    /// All entries, from the first to the last.
    fn entries(&self) -> Vec<(u32, PathBuf)> {
        let files = fs::read_dir(&self.folder).into_iter().flatten().flatten();
        let numbered =
            files.filter_map(|file| Some((file.file_name().to_str()?.parse().ok()?, file.path())));
        let mut entries: Vec<(u32, PathBuf)> = numbered.collect();
        entries.sort();
        entries
    }

    /// The number of the next change.
    pub(crate) fn next(&self) -> u32 {
        self.entries().last().map_or(0, |(number, _)| number + 1)
    }

    /// Undoes all changes, the last change first.
    ///
    /// # Errors
    /// [`LabError::System`]. Changes that could not be undone stay in the journal.
    pub fn restore(&self) -> Result<(), LabError> {
        self.restore_from(0)
    }

    /// Undoes the change with the number `first` and all later changes, the last change first.
    ///
    /// # Errors
    /// [`LabError::System`]. Changes that could not be undone stay in the journal.
    pub(crate) fn restore_from(&self, first: u32) -> Result<(), LabError> {
        let mut failed = Ok(());
        let entries = self.entries().into_iter().filter(|(number, _)| *number >= first);
        for (_, path) in entries.rev() {
            let undone = fs::read(&path).while_("cannot read the journal").and_then(|text| {
                // A change whose entry is incomplete was not made.
                serde_json::from_slice(&text).map_or(Ok(()), |change| undo(&change))
            });
            match undone {
                Ok(()) => drop(fs::remove_file(&path)),
                Err(error) => failed = failed.and(Err(error)),
            }
        }
        failed
    }
}

impl Drop for Journal {
    fn drop(&mut self) {
        if self.lock.is_some() && self.restore().is_ok() {
            let _ = fs::remove_dir_all(&self.folder);
        }
    }
}

/// Returns an error if the folder belongs to another user: this process would otherwise write the
/// values that the other user has recorded in the folder.
fn check_owner(base: &Path) -> Result<(), LabError> {
    let what = fs::symlink_metadata(base).while_(format!("cannot read {}", base.display()))?;
    if what.is_dir() && what.uid() == rustix::process::geteuid().as_raw() {
        return Ok(());
    }
    Err(LabError::Failed(format!("{} is not a folder of this user", base.display())))
}

/// Undoes the changes of journals whose owners have ended: their locks are free.
fn restore_orphans(base: &Path) -> Result<(), LabError> {
    for folder in fs::read_dir(base).while_("cannot read the journals")?.flatten() {
        let journal = Journal::join(folder.path());
        let Ok(lock) = File::open(folder.path().join(LOCK)) else { continue };
        if flock(&lock, FlockOperation::NonBlockingLockExclusive).is_ok() {
            journal.restore()?;
            let _ = fs::remove_dir_all(folder.path());
        }
    }
    Ok(())
}

fn undo(change: &JournalChange) -> Result<(), LabError> {
    match change {
        JournalChange::Setting { path, before } => fs::write(path, before)
            .while_(format!("cannot put {before} back to {}", path.display())),
        JournalChange::Cgroup { path } => remove_cgroup(path),
        JournalChange::Swap { path } => {
            // A file that is not used as swap any more, or never was, is not an error.
            let off = pagewise_labmem::swap::off(path);
            let is_gone = |error: &io::Error| {
                matches!(error.raw_os_error(), Some(libc::EINVAL | libc::ENOENT))
            };
            off.or_else(|error| if is_gone(&error) { Ok(()) } else { Err(error) })
                .while_(format!("cannot stop swapping to {}", path.display()))
        }
        JournalChange::Made { path } => {
            let gone = if path.is_dir() { fs::remove_dir_all(path) } else { fs::remove_file(path) };
            or_missing(gone).while_(format!("cannot remove {}", path.display()))
        }
    }
}

fn or_missing(done: io::Result<()>) -> io::Result<()> {
    done.or_else(|error| if error.kind() == io::ErrorKind::NotFound { Ok(()) } else { Err(error) })
}

/// Number of attempts, and the time between them, to remove a cgroup whose processes are ending.
const TRIES: u32 = 200;
const APART: Duration = Duration::from_millis(10);

/// Kills the processes of a cgroup, and removes it when they have ended.
fn remove_cgroup(path: &Path) -> Result<(), LabError> {
    for _ in 0..TRIES {
        let ids = fs::read_to_string(path.join("cgroup.procs")).unwrap_or_default();
        for id in ids.lines().filter_map(|id| rustix::process::Pid::from_raw(id.parse().ok()?)) {
            let _ = rustix::process::kill_process(id, rustix::process::Signal::KILL);
        }
        if or_missing(fs::remove_dir(path)).is_ok() {
            return Ok(());
        }
        thread::sleep(APART);
    }
    or_missing(fs::remove_dir(path)).while_(format!("cannot remove {}", path.display()))
}

/// The value of a setting in the form for writing: the word in brackets if the file shows a choice.
fn chosen(text: &str) -> &str {
    let inside = text.split_once('[').and_then(|(_, rest)| rest.split_once(']'));
    inside.map_or(text.trim_end(), |(chosen, _)| chosen)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn changes_are_undone_in_reverse_order() {
        let base = tempfile::tempdir().unwrap();
        let setting = base.path().join("setting");
        fs::write(&setting, "always [madvise] never\n").unwrap();
        let journals = base.path().join("journals");
        let journal = Journal::begin(&journals).unwrap();
        journal.set(&setting, "never").unwrap();
        journal.set(&setting, "always").unwrap();
        let made = journal.make_folder(base.path()).unwrap();
        fs::write(made.join("file"), "x").unwrap();
        drop(journal);
        assert_eq!(fs::read_to_string(&setting).unwrap(), "madvise");
        assert!(!made.exists());
        assert_eq!(fs::read_dir(&journals).unwrap().count(), 0);
    }

    #[test]
    fn settings_of_a_run_are_restored_before_the_next() {
        let base = tempfile::tempdir().unwrap();
        let journal = Journal::begin(&base.path().join("journals")).unwrap();
        let kept = journal.make_folder(base.path()).unwrap();
        let setting = base.path().join("setting");
        fs::write(&setting, "0").unwrap();
        for value in ["1", "2"] {
            let first = journal.next();
            journal.set(&setting, value).unwrap();
            journal.restore_from(first).unwrap();
            assert_eq!(fs::read_to_string(&setting).unwrap(), "0");
        }
        assert!(kept.exists());
    }

    #[test]
    fn the_next_start_puts_back_what_a_killed_lab_left() {
        let base = tempfile::tempdir().unwrap();
        let setting = base.path().join("setting");
        fs::write(&setting, "1\n").unwrap();
        let journals = base.path().join("journals");
        let killed = Journal::begin(&journals).unwrap();
        killed.set(&setting, "2").unwrap();
        let Journal { folder, lock } = &killed;
        // When a process is killed, the kernel releases its lock, but the folder stays.
        flock(lock.as_ref().unwrap(), FlockOperation::Unlock).unwrap();
        let moved = journals.join("1");
        fs::rename(folder, &moved).unwrap();
        let next = Journal::begin(&journals).unwrap();
        assert_eq!(fs::read_to_string(&setting).unwrap(), "1");
        assert!(!moved.exists() && next.folder().exists());
    }

    #[test]
    fn notes_of_another_user_are_not_carried_out() {
        let base = tempfile::tempdir().unwrap();
        let link = base.path().join("link");
        std::os::unix::fs::symlink(base.path(), &link).unwrap();
        assert!(matches!(Journal::begin(&link), Err(LabError::Failed(_))));
    }

    #[test]
    fn a_journal_of_a_lab_that_lives_is_left_alone() {
        let base = tempfile::tempdir().unwrap();
        let setting = base.path().join("setting");
        fs::write(&setting, "1").unwrap();
        let journals = base.path().join("journals");
        let living = Journal::begin(&journals).unwrap();
        living.set(&setting, "2").unwrap();
        restore_orphans(&journals).unwrap();
        assert_eq!(fs::read_to_string(&setting).unwrap(), "2");
    }
}
