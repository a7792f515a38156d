//! The keeper: a process that undoes the changes of pagewise in targets if pagewise is killed
//! before pagewise undoes them.
//!
//! Each change is noted before it is made, and struck out after it is undone. Each note goes to the
//! keeper's standard input and to a file that only this user can access. The keeper is in a session
//! of its own, and ignores the signals by which people and supervisors end processes. When its
//! input is closed, the keeper undoes the noted changes. If the last line is not [`DONE`], the
//! keeper first ends the noted heap recordings. If the keeper is killed too, targets still work;
//! the next run of pagewise that changes a process, or `pagewise keep`, finds the file and acts.

use std::ffi::{OsStr, OsString};
use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io::{self, BufRead, Read, Write};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ExitCode};
use std::thread::sleep;
use std::time::{Duration, Instant};

use clap::Args;
use pagewise_heap::{AttachRefused, Attached, LeftBehind};
use pagewise_model::Pid;
use pagewise_proc::{ProcRoot, stat, status};
use pagewise_remote::{Keeper, Undo, on_tracer_thread};
use rustix::fs::{FlockOperation, OFlags, flock};

use crate::helper;

/// The arguments of the keeper process.
#[derive(Debug, Args)]
pub(crate) struct Keep {
    /// The process that changes others; notes of what it changes come on standard input
    #[arg(value_name = "PID")]
    pub(crate) pid: Option<u32>,
    /// The file with the same notes
    #[arg(long, value_name = "FILE", requires = "pid")]
    pub(crate) notes: Option<PathBuf>,
}

/// The last line of notes: pagewise has ended its recordings, and only noted mappings remain.
const DONE: &str = "done";
/// First words of notes: a change to undo (`NOTE`), a change that was undone (`STRIKE`), a process
/// whose heap is recorded (`HEAP`).
const NOTE: &str = "note ";
const STRIKE: &str = "strike ";
const HEAP: &str = "heap ";
/// Time for which the keeper waits for the end of pagewise after pagewise has closed the keeper's
/// input.
const PATIENCE: Duration = Duration::from_secs(10);
/// Time for which the keeper waits for threads of a target that use a mapping of pagewise in the
/// target: longer than a function in such a mapping runs.
const KEEPER_PATIENCE: Duration = Duration::from_secs(90);
/// Times for which the next run of pagewise (`NEXT_PATIENCE`) and `pagewise keep` (`KEEP_PATIENCE`)
/// wait for threads of a target that use a mapping of pagewise in the target.
const NEXT_PATIENCE: Duration = Duration::from_millis(500);
const KEEP_PATIENCE: Duration = Duration::from_secs(30);
/// Maximum pause of a target for an undo: a pause does less harm than a change that stays.
const PAUSE: Duration = Duration::from_secs(2);
/// Maximum number of bytes that are read from a file of notes.
const MAX_NOTES: u64 = 1 << 20;

/// Changes to be undone.
#[derive(Debug, Default)]
struct Notes {
    heaps: Vec<u32>,
    undos: Vec<Undo>,
    /// The file of the notes. The process that carries out an undo may be killed too, so each undo
    /// writes its own changes of the target to this file.
    file: Option<File>,
}

impl Notes {
    /// Applies a line of notes. A line that is cut off is ignored: the change of this line was not
    /// made yet.
    fn apply_line(&mut self, line: &str) {
        if let Some(pid) = line.strip_prefix(HEAP) {
            self.heaps.extend(pid.parse::<u32>());
        } else if let Some(undo) = line.strip_prefix(NOTE) {
            self.undos.extend(undo.parse::<Undo>());
        } else if let Some(undo) = line.strip_prefix(STRIKE).and_then(|it| it.parse().ok()) {
            self.undos.retain(|noted: &Undo| *noted != undo);
        }
    }

    /// Undoes all changes. Returns false if a change could not be undone yet.
    fn carry_out(mut self, with_heaps: bool, patience: Duration) -> bool {
        let root = ProcRoot::live();
        let heaps = if with_heaps { std::mem::take(&mut self.heaps) } else { Vec::new() };
        let mut is_done = true;
        for pid in &heaps {
            is_done &= end_recording(&root, *pid, &mut self, patience);
        }
        for undo in std::mem::take(&mut self.undos) {
            // If the undo fails, the target still works with the change.
            match on_tracer_thread(|| undo.carry_out(patience)) {
                Ok(_) => self.strike(&undo),
                Err(_) => is_done = false,
            }
        }
        // A thread of the target may have been in memory that is unmapped above, and may have
        // loaded the recorder before it left this memory. So the recordings are ended once more.
        for pid in &heaps {
            is_done &= end_recording(&root, *pid, &mut self, patience);
        }
        is_done
    }
}

impl Notes {
    /// Appends a line to the file. If the disk is full, only the memory of this process has the
    /// line.
    fn write(&mut self, line: &str) {
        if let Some(file) = &mut self.file {
            let _ = file.write_all(format!("{line}\n").as_bytes());
        }
    }
}

impl Keeper for Notes {
    fn note(&mut self, undo: &Undo) {
        self.undos.push(*undo);
        self.write(&format!("{NOTE}{undo}"));
    }

    fn strike(&mut self, undo: &Undo) {
        self.undos.retain(|noted| noted != undo);
        self.write(&format!("{STRIKE}{undo}"));
    }
}

/// Ends a heap recording that a killed run of pagewise left in a process. Tries again for
/// `patience`: a thread may still be in the recorder, and on a busy machine threads take time to
/// stop.
fn end_recording(root: &ProcRoot, pid: u32, notes: &mut Notes, patience: Duration) -> bool {
    let begin = Instant::now();
    loop {
        if has_ended(root, pid) {
            return true;
        }
        match Attached::left_behind(pid, PAUSE)
            .and_then(|left| left.map(|it| it.end(notes)).transpose())
        {
            // No recorder is left, or another run of pagewise records the process and will end that
            // recording.
            Ok(None | Some(LeftBehind::Whole | LeftBehind::NotThere))
            | Err(AttachRefused::Recorded { .. }) => {
                return true;
            }
            Ok(Some(LeftBehind::MemoryStays)) | Err(_) => {}
        }
        if begin.elapsed() > patience {
            return false;
        }
        sleep(Duration::from_millis(100));
    }
}

/// The keeper of this process.
#[derive(Debug)]
pub(crate) struct KeeperProcess {
    child: Option<(Child, ChildStdin)>,
    notes: Notes,
    /// The path of the file that has the notes.
    path: Option<PathBuf>,
}

impl KeeperProcess {
    /// Undoes changes of killed runs, then starts the keeper, and returns when the keeper is ready.
    /// If no process can be started, only the file has the notes; if no file can be written, only
    /// the keeper has them.
    pub(crate) fn start() -> KeeperProcess {
        undo_left_behind(Duration::ZERO, NEXT_PATIENCE);
        let (file, path) = folder().and_then(|folder| new_file(&folder)).ok().unzip();
        let notes = Notes { file, ..Notes::default() };
        KeeperProcess { child: start(path.as_deref()).ok(), notes, path }
    }

    /// Notes processes whose heap is recorded.
    pub(crate) fn note_heaps(&mut self, pids: &[u32]) {
        for pid in pids {
            if !self.notes.heaps.contains(pid) {
                let line = format!("{HEAP}{pid}");
                self.notes.heaps.push(*pid);
                self.notes.write(&line);
                self.send(&line);
            }
        }
    }

    /// Ends the keeper. Called when all noted changes are undone, except mappings in targets. The
    /// keeper unmaps each mapping when no thread uses it, and then ends.
    pub(crate) fn dismiss(mut self) {
        let is_done = self.notes.undos.is_empty();
        if is_done && let Some(path) = &self.path {
            // If changes remain, the file stays, since it lists them.
            let _ = fs::remove_file(path);
        }
        let Some((mut child, mut input)) = self.child.take() else { return };
        let was_killed = writeln!(input, "{DONE}").is_err();
        drop(input);
        if is_done {
            let _ = child.wait();
        } else if was_killed {
            self.undo_without_keeper();
        }
    }

    /// Leaves all noted changes, recordings too, to the keeper, which acts after the end of this
    /// process.
    pub(crate) fn leave_the_rest(mut self) {
        // This closes the input of the keeper without `DONE`.
        self.child = None;
    }

    /// Undoes the noted changes from this process, without the keeper. Called only if the keeper
    /// was killed.
    fn undo_without_keeper(self) {
        if self.notes.carry_out(false, KEEPER_PATIENCE)
            && let Some(path) = self.path
        {
            let _ = fs::remove_file(path);
        }
    }

    /// Sends a line to the keeper. If the keeper was killed, only the file has the line.
    fn send(&mut self, line: &str) {
        if let Some((_, input)) = &mut self.child {
            let _ = input.write_all(format!("{line}\n").as_bytes());
        }
    }
}

impl Keeper for KeeperProcess {
    fn note(&mut self, undo: &Undo) {
        self.notes.note(undo);
        self.send(&format!("{NOTE}{undo}"));
    }

    fn strike(&mut self, undo: &Undo) {
        self.notes.strike(undo);
        self.send(&format!("{STRIKE}{undo}"));
    }
}

fn start(notes: Option<&Path>) -> io::Result<(Child, ChildStdin)> {
    let mut args: Vec<OsString> = vec!["keep".into(), std::process::id().to_string().into()];
    if let Some(path) = notes {
        args.extend(["--notes".into(), path.into()]);
    }
    helper::start(&args)
}

/// Runs as the keeper of a process, or undoes the changes that killed runs have left.
pub(crate) fn run(args: &Keep) -> ExitCode {
    let Some(pid) = args.pid else {
        let is_done = undo_left_behind(KEEP_PATIENCE, KEEP_PATIENCE);
        return if is_done { ExitCode::SUCCESS } else { ExitCode::FAILURE };
    };
    helper::leave_session();
    // While the keeper or its parent holds a lock on the file, other runs do not use it.
    let file = args.notes.as_ref().and_then(|path| Some((open(path).ok()?, path)));
    let file = file.filter(|(file, _)| flock(file, FlockOperation::LockShared).is_ok());
    if helper::tell_ready().is_err() {
        return ExitCode::FAILURE;
    }
    let (mut notes, mut is_done) = (Notes::default(), false);
    for line in io::stdin().lock().lines().map_while(Result::ok) {
        is_done = line == DONE;
        notes.apply_line(&line);
    }
    let root = ProcRoot::live();
    let since = Instant::now();
    while !is_done && !has_ended(&root, pid) && since.elapsed() < PATIENCE {
        sleep(Duration::from_millis(5));
    }
    notes.file = file.as_ref().and_then(|(file, _)| file.try_clone().ok());
    if notes.carry_out(!is_done, KEEPER_PATIENCE)
        && let Some((_, path)) = file
    {
        // The file may have been removed already.
        let _ = fs::remove_file(path);
    }
    ExitCode::SUCCESS
}

/// Undoes the changes that killed runs of this user have left. Returns false if a change could not
/// be undone, or if another process that undoes it now has not finished after `wait`. Each undo is
/// tried for `patience`.
fn undo_left_behind(wait: Duration, patience: Duration) -> bool {
    let Ok(folder) = folder() else { return true };
    let Ok(entries) = fs::read_dir(folder) else { return true };
    let root = ProcRoot::live();
    let mut is_done = true;
    for entry in entries.filter_map(Result::ok) {
        // The process that writes the notes undoes the listed changes, unless it is killed.
        if NoteWriter::of_file(&entry.file_name()).is_some_and(|writer| writer.lives(&root)) {
            continue;
        }
        let path = entry.path();
        let Ok(mut file) = open(&path) else { continue };
        if !lock(&file, wait) {
            is_done = false;
            continue;
        }
        let mut text = String::new();
        let read = Read::by_ref(&mut file).take(MAX_NOTES).read_to_string(&mut text);
        let mut notes = Notes::default();
        text.lines().for_each(|line| notes.apply_line(line));
        notes.file = file.try_clone().ok();
        match read.is_ok() && notes.carry_out(true, patience) {
            true => drop(fs::remove_file(&path)),
            false => is_done = false,
        }
    }
    is_done
}

/// The process that writes a file of notes. The name of the file contains its PID and start time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct NoteWriter {
    pid: u32,
    start_ticks: u64,
}

impl NoteWriter {
    /// Returns this process.
    fn this(root: &ProcRoot) -> io::Result<NoteWriter> {
        let pid = std::process::id();
        let stat = stat_of(root, pid).ok_or(io::ErrorKind::NotFound)?;
        Ok(NoteWriter { pid, start_ticks: stat.start_ticks })
    }

    /// Returns the writer of a file with this name; `None` if [`NoteWriter::name`] does not make
    /// such names.
    fn of_file(name: &OsStr) -> Option<NoteWriter> {
        let mut words = name.to_str()?.split('-');
        let (pid, start_ticks) = (words.next()?.parse().ok()?, words.next()?.parse().ok()?);
        words.next()?;
        Some(NoteWriter { pid, start_ticks })
    }

    /// Returns the name of the writer's file with this number.
    fn name(self, number: u32) -> String {
        format!("{}-{}-{number}", self.pid, self.start_ticks)
    }

    /// Returns true if the process runs and has no pending SIGKILL. On a busy machine a killed
    /// process takes some time to end.
    fn lives(self, root: &ProcRoot) -> bool {
        let is_killed =
            || root.read(Pid(self.pid), "status").is_ok_and(|text| status::is_killed(&text));
        stat_of(root, self.pid).is_some_and(|stat| {
            stat.start_ticks == self.start_ticks && !stat.is_dying() && !is_killed()
        })
    }
}

/// Locks a file of notes for this process. If a keeper or another run of pagewise holds the lock,
/// that process undoes the changes: returns false if it has not finished after `patience`.
fn lock(file: &File, patience: Duration) -> bool {
    let begin = Instant::now();
    loop {
        if flock(file, FlockOperation::NonBlockingLockExclusive).is_ok() {
            return true;
        }
        if begin.elapsed() >= patience {
            return false;
        }
        sleep(Duration::from_millis(5));
    }
}

/// Returns the folder of files of notes, which only this user can access.
fn folder() -> io::Result<PathBuf> {
    let uid = rustix::process::geteuid().as_raw();
    let runtime = std::env::var_os("XDG_RUNTIME_DIR").map(PathBuf::from);
    let base = runtime.filter(|path| path.is_absolute() && path.is_dir());
    let base = base.unwrap_or_else(|| match uid {
        0 if Path::new("/run").is_dir() => "/run".into(),
        _ => std::env::temp_dir(),
    });
    let folder = base.join(format!("pagewise-{uid}"));
    match DirBuilder::new().mode(0o700).create(&folder) {
        Err(error) if error.kind() != io::ErrorKind::AlreadyExists => return Err(error),
        _ => {}
    }
    let found = fs::symlink_metadata(&folder)?;
    match found.is_dir() && found.uid() == uid && found.mode() & 0o077 == 0 {
        true => Ok(folder),
        false => Err(io::ErrorKind::PermissionDenied.into()),
    }
}

/// Creates a file in the folder, and locks it.
fn new_file(folder: &Path) -> io::Result<(File, PathBuf)> {
    let writer = NoteWriter::this(&ProcRoot::live())?;
    for number in 0..1000 {
        let path = folder.join(writer.name(number));
        let mut options = OpenOptions::new();
        match options.append(true).create_new(true).mode(0o600).open(&path) {
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
            Err(error) => return Err(error),
            Ok(file) => {
                flock(&file, FlockOperation::LockShared)?;
                return Ok((file, path));
            }
        }
    }
    Err(io::ErrorKind::AlreadyExists.into())
}

fn open(path: &Path) -> io::Result<File> {
    let flags = OFlags::NOFOLLOW.union(OFlags::NONBLOCK).bits().cast_signed();
    OpenOptions::new().read(true).append(true).custom_flags(flags).open(path)
}

/// Returns true if a process has ended.
pub(crate) fn has_ended(root: &ProcRoot, pid: u32) -> bool {
    stat_of(root, pid).is_none_or(|stat| stat.has_ended())
}

fn stat_of(root: &ProcRoot, pid: u32) -> Option<stat::PidStat> {
    root.read(Pid(pid), "stat").ok().and_then(|text| stat::parse(&text).ok())
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use super::*;

    #[test]
    fn a_file_is_waited_for_while_another_process_undoes_what_it_notes() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("notes");
        let [ours, theirs] = [(); 2]
            .map(|()| OpenOptions::new().create(true).append(true).read(true).open(&path).unwrap());
        for operation in [FlockOperation::LockShared, FlockOperation::LockExclusive] {
            flock(&theirs, operation).unwrap();
            assert!(!lock(&ours, Duration::from_millis(20)));
        }
        std::thread::scope(|scope| {
            scope.spawn(|| {
                sleep(Duration::from_millis(20));
                flock(&theirs, FlockOperation::Unlock).unwrap();
            });
            assert!(lock(&ours, PATIENCE));
        });
    }

    #[test]
    fn the_writer_of_a_file_lives_until_it_is_killed() {
        let root = ProcRoot::live();
        let writer = NoteWriter::this(&root).unwrap();
        assert_eq!(NoteWriter::of_file(writer.name(7).as_ref()), Some(writer));
        assert!(writer.lives(&root));
        assert!(!NoteWriter { start_ticks: writer.start_ticks + 1, ..writer }.lives(&root));
        for name in ["", "7", "7-0", "x-1-0", "7-x-0"] {
            assert_eq!(NoteWriter::of_file(name.as_ref()), None, "{name}");
        }
        let mut child = Command::new("sleep").arg("60").spawn().unwrap();
        let start_ticks = stat_of(&root, child.id()).unwrap().start_ticks;
        let writer = NoteWriter { pid: child.id(), start_ticks };
        assert!(writer.lives(&root));
        child.kill().unwrap();
        // A killed process counts as ended at once, even if it has not run since the signal.
        assert!(!writer.lives(&root));
        child.wait().unwrap();
        assert!(!writer.lives(&root));
    }

    #[test]
    fn changes_of_an_undo_are_noted_in_the_file() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("notes");
        fs::write(&path, "heap 7\n").unwrap();
        let mut notes = Notes { file: open(&path).ok(), ..Notes::default() };
        let [first, second] = ["7 1 1000-2000", "7 1 3000-4000"].map(|it| it.parse().unwrap());
        notes.note(&first);
        notes.note(&second);
        notes.strike(&first);
        let mut next = Notes::default();
        fs::read_to_string(&path).unwrap().lines().for_each(|line| next.apply_line(line));
        assert_eq!((next.heaps, next.undos), (vec![7], vec![second]));
    }

    #[test]
    fn notes_are_what_was_written_and_not_struck_out() {
        let mut notes = Notes::default();
        for line in ["heap 7", "note 7 1 1000-2000", "note 8 2 3000-4000", "strike 7 1 1000-2000"] {
            notes.apply_line(line);
        }
        for line in ["note 9 1 10", "heap", "heap x", "", "done"] {
            notes.apply_line(line);
        }
        assert_eq!(notes.heaps, [7]);
        let left: Vec<String> = notes.undos.iter().map(ToString::to_string).collect();
        assert_eq!(left, ["8 2 3000-4000"]);
    }
}
