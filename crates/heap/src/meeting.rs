//! Where recorders in programs come to: a socket in a folder of ours.

use std::ffi::{OsStr, OsString};
use std::fs::{self, Permissions};
use std::io::{self, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{PermissionsExt, chown};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};

use crate::error::Error;
use crate::folder::{Folder, SOCKET};
use crate::library::{Library, NAME};
use pagewise_heaplog::tables::greeting;
use pagewise_model::Pid;
use pagewise_proc::{ProcRoot, stat};
use rustix::net::sockopt::socket_peercred;
use rustix::net::{RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, recvmsg};

/// The folder, which goes with this, and the recorder's file.
#[derive(Debug)]
pub(crate) struct Meeting {
    folder: Folder,
    recorder: PathBuf,
    uid: u32,
    /// A user whose processes may come, too.
    guest: Option<u32>,
}

impl Meeting {
    /// Makes the folder and the socket, and sees that the recorder's file is somewhere.
    pub(crate) fn open(library: &Library) -> Result<(Meeting, UnixListener), Error> {
        let folder = Folder::make().map_err(Error::Socket)?;
        let recorder = library.place(folder.path()).map_err(Error::Socket)?;
        let uid = rustix::process::geteuid().as_raw();
        let meeting = Meeting { folder, recorder, uid, guest: None };
        let listener = UnixListener::bind(meeting.socket()).map_err(Error::Socket)?;
        if uid == 0 {
            // What root runs may become another user's process; who else comes is told by where it comes from.
            let open = |path: &Path, mode| fs::set_permissions(path, Permissions::from_mode(mode));
            open(meeting.folder(), 0o711).map_err(Error::Socket)?;
            open(&meeting.socket(), 0o666).map_err(Error::Socket)?;
        }
        Ok((meeting, listener))
    }

    /// The folder.
    pub(crate) fn folder(&self) -> &Path {
        self.folder.path()
    }

    /// The recorder's file.
    pub(crate) fn recorder(&self) -> &Path {
        &self.recorder
    }

    /// Where the socket is.
    pub(crate) fn socket(&self) -> PathBuf {
        self.folder.path().join(SOCKET)
    }

    /// Lets another user's processes come.
    pub(crate) fn invite(&mut self, uid: u32) -> Result<(), Error> {
        for path in [self.socket(), self.folder().to_owned()] {
            chown(&path, Some(uid), None).map_err(Error::Socket)?;
        }
        self.guest = Some(uid);
        Ok(())
    }

    /// Whether who has connected is heard: processes of our user and of one that was let in, and what we have started, whoever it
    /// has become.
    pub(crate) fn admits(&self, stream: &UnixStream) -> bool {
        let Ok(peer) = socket_peercred(stream) else { return false };
        let uid = peer.uid.as_raw();
        let pid = u32::try_from(peer.pid.as_raw_nonzero().get()).unwrap_or(0);
        uid == self.uid || self.guest == Some(uid) || descends_from_us(pid)
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

/// Receives bytes, and the file that comes with them; how many bytes came.
pub(crate) fn receive(
    stream: &UnixStream,
    bytes: &mut [u8],
) -> io::Result<(usize, Option<OwnedFd>)> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let flags = RecvFlags::CMSG_CLOEXEC;
    let received = recvmsg(stream, &mut [IoSliceMut::new(bytes)], &mut control, flags)?;
    let files = control.drain().filter_map(|message| match message {
        RecvAncillaryMessage::ScmRights(files) => Some(files),
        _ => None,
    });
    Ok((received.bytes, files.flatten().next()))
}

/// Whether we have started a process, or what started it.
fn descends_from_us(mut pid: u32) -> bool {
    /// A parent that ends meanwhile leaves its number to others: no chain is followed for ever.
    const MOST: usize = 256;
    let root = ProcRoot::live();
    let us = std::process::id();
    for _ in 0..MOST {
        if pid == us {
            return true;
        }
        let stat = root.read(Pid(pid), "stat").ok().and_then(|text| stat::parse(&text).ok());
        match stat {
            Some(stat) if stat.parent.0 > 1 => pid = stat.parent.0,
            _ => return false,
        }
    }
    false
}

/// A meeting with a thread that answers who comes; it ends with this.
#[derive(Debug)]
pub(crate) struct Answered {
    meeting: Arc<Meeting>,
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
        let meeting = Arc::new(meeting);
        let door = Arc::clone(&meeting);
        let ends = Arc::<AtomicBool>::default();
        let ended = Arc::clone(&ends);
        let listen = move || {
            for stream in listener.incoming() {
                if ended.load(Ordering::Acquire) {
                    return;
                }
                if let Ok(stream) = stream
                    && door.admits(&stream)
                {
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
