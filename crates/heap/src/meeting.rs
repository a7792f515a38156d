//! Where recorders in programs come to: a socket in a folder that nobody else can look into, and the recorder's file beside it.

use std::ffi::{OsStr, OsString};
use std::fs;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::DirBuilderExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};

use pagewise_heaplog::tables::greeting;
use rustix::fs::{StatVfsMountFlags, statvfs};

use crate::error::Error;
use crate::library::{Library, NAME};

/// The folder, which goes with this.
#[derive(Debug)]
pub(crate) struct Meeting {
    folder: PathBuf,
    recorder: PathBuf,
}

impl Meeting {
    /// Makes the folder, the socket and the recorder's file.
    pub(crate) fn open(library: &Library) -> Result<(Meeting, UnixListener), Error> {
        let folder = folder().map_err(Error::Socket)?;
        let mut meeting = Meeting { folder, recorder: PathBuf::new() };
        let listener = UnixListener::bind(meeting.socket()).map_err(Error::Socket)?;
        meeting.recorder = library.place(&meeting.folder).map_err(Error::Socket)?;
        Ok((meeting, listener))
    }

    /// The folder.
    pub(crate) fn folder(&self) -> &Path {
        &self.folder
    }

    /// The recorder's file.
    pub(crate) fn recorder(&self) -> &Path {
        &self.recorder
    }

    /// Where the socket is.
    pub(crate) fn socket(&self) -> PathBuf {
        self.folder.join("s")
    }

    /// What a recorder is told: how to record, and where to say so.
    pub(crate) fn settings(&self, words: &str) -> OsString {
        let mut settings = OsString::from(format!("{words},socket="));
        settings.push(self.socket());
        settings
    }

    /// The variables that a program is to have in its environment, beside ours.
    pub(crate) fn environment(&self, words: &str) -> Vec<(OsString, OsString)> {
        // What was to be loaded in any case still is, but for a recorder: two would stand before each other.
        let mut preload = self.recorder.clone().into_os_string();
        let others = std::env::var_os("LD_PRELOAD").unwrap_or_default();
        let others = others.as_bytes().split(|byte| matches!(byte, b':' | b' '));
        for other in others.map(|path| Path::new(OsStr::from_bytes(path))) {
            if other.file_name().is_some_and(|name| name != NAME) {
                preload.push(":");
                preload.push(other);
            }
        }
        vec![("LD_PRELOAD".into(), preload), (greeting::VARIABLE.into(), self.settings(words))]
    }
}

impl Drop for Meeting {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.folder);
    }
}

/// A meeting with a thread that answers who comes; it ends with this.
#[derive(Debug)]
pub(crate) struct Answered {
    meeting: Meeting,
    ends: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Answered {
    /// Begins to answer.
    pub(crate) fn open(
        library: &Library,
        mut answer: impl FnMut(UnixStream) + Send + 'static,
    ) -> Result<Answered, Error> {
        let (meeting, listener) = Meeting::open(library)?;
        let ends = Arc::<AtomicBool>::default();
        let ended = Arc::clone(&ends);
        let listen = move || {
            for stream in listener.incoming() {
                if ended.load(Ordering::Acquire) {
                    return;
                }
                if let Ok(stream) = stream {
                    answer(stream);
                }
            }
        };
        let named = thread::Builder::new().name("listener".to_owned());
        let thread = named.spawn(listen).map_err(Error::Socket)?;
        Ok(Answered { meeting, ends, thread: Some(thread) })
    }

    /// The variables that a program is to have in its environment, beside ours.
    pub(crate) fn environment(&self, words: &str) -> Vec<(OsString, OsString)> {
        self.meeting.environment(words)
    }
}

impl Drop for Answered {
    fn drop(&mut self) {
        self.ends.store(true, Ordering::Release);
        // It waits for somebody to connect.
        let _ = UnixStream::connect(self.meeting.socket());
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// A folder that nobody else can look into, where files can be executed, and whose path is plain: the loader separates paths
/// by colons and blanks.
fn folder() -> io::Result<PathBuf> {
    let runtime = std::env::var_os("XDG_RUNTIME_DIR").map(PathBuf::from);
    let bases =
        [Some(std::env::temp_dir()), runtime, Some("/dev/shm".into()), Some("/var/tmp".into())];
    let mut first = None;
    for base in bases.into_iter().flatten() {
        let plain = !base.as_os_str().as_bytes().iter().any(|byte| matches!(byte, b':' | b' '));
        let refuses = |mount: rustix::fs::StatVfs| mount.f_flag.contains(StatVfsMountFlags::NOEXEC);
        if !plain || !base.is_absolute() || statvfs(&base).is_ok_and(refuses) {
            continue;
        }
        match make(&base) {
            Ok(path) => return Ok(path),
            Err(error) => first = first.or(Some(error)),
        }
    }
    Err(first.unwrap_or_else(|| {
        io::Error::other("no folder for temporary files allows to execute them")
    }))
}

fn make(base: &Path) -> io::Result<PathBuf> {
    let pid = std::process::id();
    let mut number = 0_u32;
    loop {
        let path = base.join(format!("pagewise-heap-{pid}-{number}"));
        match fs::DirBuilder::new().mode(0o700).create(&path) {
            Ok(()) => return Ok(path),
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists && number < 1000 => {
                number += 1;
            }
            Err(error) => return Err(error),
        }
    }
}
