//! Socket to which recorders in programs connect, in a folder that pagewise creates.

use std::ffi::{OsStr, OsString};
use std::fs::{self, Permissions};
use std::io::{self, IoSliceMut, Write};
use std::mem::MaybeUninit;
use std::net::Shutdown;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{MetadataExt, PermissionsExt, chown};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use pagewise_heaplog::tables::greeting;
use pagewise_model::Pid;
use pagewise_proc::{ProcRoot, stat};
use pagewise_sys::peer;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::net::{RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, recvmsg};

use crate::error::HeapError;
use crate::guest_dir::GuestDir;
use crate::library::{NAME, RecorderLibrary};
use crate::run_dir::{RunDir, SECRET, random_name};

/// Folder of a rendezvous socket.
#[derive(Debug)]
enum MeetingFolder {
    Own(RunDir),
    /// In the root directory of a process that does not see the root directory of pagewise.
    Guest(GuestDir),
    /// The folder is removed, since the only expected process has connected.
    Removed,
}

/// A rendezvous socket. Dropping the value removes its folder.
#[derive(Debug)]
pub(crate) struct Meeting {
    folder: MeetingFolder,
    socket: PathBuf,
    recorder: PathBuf,
    uid: u32,
    /// ID of another user whose processes may connect.
    guest: Option<u32>,
}

impl Meeting {
    /// Creates the folder and the socket, and makes the recorder's file available.
    pub(crate) fn open(library: &RecorderLibrary) -> Result<(Meeting, UnixListener), HeapError> {
        Meeting::make(library).map_err(HeapError::Socket)
    }

    fn make(library: &RecorderLibrary) -> io::Result<(Meeting, UnixListener)> {
        let folder = RunDir::make()?;
        let recorder = library.place(folder.path())?;
        let uid = rustix::process::geteuid().as_raw();
        let path = folder.path();
        let (first, socket) = (path.join("socket"), path.join(random_name(SECRET)?));
        let listener = UnixListener::bind(&first)?;
        listener.set_nonblocking(true)?;
        // `/proc/net/unix` shows the name to which a socket was bound, but not its current name.
        // Other users cannot list the folder, so only a process that knows the name can connect.
        fs::rename(&first, &socket)?;
        if uid == 0 {
            // A program started by root may change its user; other clients are rejected by their
            // credentials.
            fs::set_permissions(&socket, Permissions::from_mode(0o666))?;
            fs::set_permissions(path, Permissions::from_mode(0o711))?;
        } else {
            fs::set_permissions(&socket, Permissions::from_mode(0o600))?;
        }
        let folder = MeetingFolder::Own(folder);
        Ok((Meeting { folder, socket, recorder, uid, guest: None }, listener))
    }

    /// Creates the folder and the socket like [`Meeting::open`], but in the root directory of a
    /// process. The paths are valid in that root.
    pub(crate) fn open_in_root(
        library: &RecorderLibrary,
        root: &ProcRoot,
        pid: u32,
    ) -> io::Result<(Meeting, UnixListener)> {
        let (folder, listener) = GuestDir::make(root, pid, &library.contents()?)?;
        let (socket, recorder) = (folder.socket(), folder.recorder());
        let uid = rustix::process::geteuid().as_raw();
        let folder = MeetingFolder::Guest(folder);
        Ok((Meeting { folder, socket, recorder, uid, guest: None }, listener))
    }

    /// Removes the folder in a target's root. Called only if no further process is expected.
    pub(crate) fn clear_guest(&mut self) {
        if matches!(self.folder, MeetingFolder::Guest(_)) {
            self.folder = MeetingFolder::Removed;
        }
    }

    /// Path of the socket.
    pub(crate) fn socket(&self) -> &Path {
        &self.socket
    }

    /// User ID of the owner of the folder.
    pub(crate) fn owner(&self) -> io::Result<u32> {
        match &self.folder {
            MeetingFolder::Own(folder) => Ok(fs::metadata(folder.path())?.uid()),
            MeetingFolder::Guest(folder) => folder.owner(),
            MeetingFolder::Removed => Ok(self.uid),
        }
    }

    /// Path of the recorder's file.
    pub(crate) fn recorder(&self) -> &Path {
        &self.recorder
    }

    /// Permits another user's processes to connect.
    pub(crate) fn invite(&mut self, uid: u32) -> Result<(), HeapError> {
        // Every process that knows the name can connect to root's socket.
        if self.uid != 0 {
            let is_given = match &self.folder {
                MeetingFolder::Own(folder) => [&self.socket, folder.path()]
                    .into_iter()
                    .try_for_each(|path| chown(path, Some(uid), None)),
                MeetingFolder::Guest(folder) => folder.give_to(uid),
                MeetingFolder::Removed => Ok(()),
            };
            is_given.map_err(HeapError::Socket)?;
        }
        self.guest = Some(uid);
        Ok(())
    }

    /// Accepts clients for a bounded time: processes of this user and of the invited user, and, for
    /// any user, descendants of pagewise and of the first process. Other connections are dropped.
    /// Returns false if no connection can be accepted now.
    ///
    /// `first` is the PID of the expected process, if there is one.
    pub(crate) fn accept(
        &self,
        listener: &UnixListener,
        first: Option<u32>,
        clients: &mut Clients,
    ) -> bool {
        let until = Instant::now() + MAX_ACCEPTING;
        for _ in 0..MAX_ACCEPTED {
            match listener.accept() {
                Ok((stream, _)) => {
                    if let Some(client) = self.admitted(stream, first) {
                        clients.add(client);
                    }
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return true,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                // `accept` fails while this process has too many open files.
                Err(_) => return false,
            }
            if Instant::now() >= until {
                break;
            }
        }
        true
    }

    /// Accepts a connection if its client may be recorded.
    fn admitted(&self, stream: UnixStream, first: Option<u32>) -> Option<Client> {
        let peer = peer::peer_of(&stream).ok()?;
        // A client without a PID in this namespace cannot be recorded.
        let pid = peer.pid?;
        let is_first = first == Some(pid);
        let is_ours = is_first || descends_from(pid, &[std::process::id(), first.unwrap_or(0)]);
        if !is_ours && peer.uid != self.uid && self.guest != Some(peer.uid) {
            return None;
        }
        stream.set_nonblocking(true).ok()?;
        let rank = match () {
            () if is_first => Rank::First,
            () if is_ours => Rank::Ours,
            () => Rank::Stranger,
        };
        let (bytes, file) = (Vec::new(), None);
        Some(Client { stream, pid, rank, since: Instant::now(), bytes, file })
    }

    /// Settings for a recorder: parameters of the recording, and the path of the socket.
    pub(crate) fn settings(&self, words: &str) -> OsString {
        let mut settings = OsString::from(format!("{words},socket="));
        settings.push(&self.socket);
        settings
    }

    /// Environment variables for the program, in addition to those of this process.
    pub(crate) fn environment(&self, words: &str) -> Vec<(OsString, OsString)> {
        // Other preloaded libraries stay in the list, but another recorder is removed, because two
        // recorders would hook each other.
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

/// Maximum number of connections that are accepted at a time, and maximum time for accepting.
/// Further connections wait in the kernel.
const MAX_ACCEPTED: usize = 256;
const MAX_ACCEPTING: Duration = Duration::from_millis(5);
/// Maximum number of clients with incomplete requests, and maximum number of such clients from one
/// process.
const MAX_CLIENTS: usize = 64;
const MAX_CLIENTS_OF_A_PROCESS: usize = 4;

/// Rank of a client. Among clients with incomplete requests, those of the lowest rank are dropped
/// first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Rank {
    /// Any process of a user that may connect.
    Stranger,
    /// A descendant of pagewise or of the first process.
    Ours,
    /// The expected process.
    First,
}

impl Rank {
    /// Time limit for a client's request. A recorder connects before it creates its tables.
    /// Creating them takes long on a busy machine if signals interrupt the process constantly.
    const fn limit(self) -> Duration {
        match self {
            Rank::Stranger => Duration::from_secs(1),
            Rank::Ours | Rank::First => Duration::from_secs(10),
        }
    }
}

/// A client whose request is not complete.
#[derive(Debug)]
pub(crate) struct Client {
    stream: UnixStream,
    /// PID from the kernel's credentials of the connection.
    pub(crate) pid: u32,
    rank: Rank,
    since: Instant,
    /// Bytes received so far.
    pub(crate) bytes: Vec<u8>,
    /// File descriptor that was sent with the request.
    pub(crate) file: Option<OwnedFd>,
}

/// Result of receiving from a client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Heard {
    /// The request is not complete.
    More,
    /// The request is complete, but cannot be served now.
    Later,
    /// The client has been answered, or is not a recorder of this run.
    Done,
}

impl Client {
    /// Receives the available bytes without waiting, until the request has `length` bytes. Returns
    /// false if the client has gone or the connection is broken.
    pub(crate) fn receive(&mut self, length: usize) -> bool {
        while self.bytes.len() < length {
            let mut piece = [0; 4 << 10];
            let room = piece.len().min(length - self.bytes.len());
            match receive(&self.stream, &mut piece[..room]) {
                Ok((0, _)) => return false,
                Ok((count, file)) => {
                    self.bytes.extend_from_slice(&piece[..count]);
                    // Only the first file of a client is kept.
                    self.file = self.file.take().or(file);
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return error.kind() == io::ErrorKind::WouldBlock,
            }
        }
        true
    }

    /// Sends the answer of one byte, which always fits into the socket's buffer.
    pub(crate) fn answer(&self, byte: u8) {
        let _ = (&self.stream).write_all(&[byte]);
    }

    fn is_late(&self) -> bool {
        self.since.elapsed() >= self.rank.limit()
    }
}

/// Clients without a complete request. Their number is limited, so that silent clients cannot block
/// other clients for long.
#[derive(Debug, Default)]
pub(crate) struct Clients(Vec<Client>);

impl Clients {
    /// Adds a client. Drops the oldest client of its process if this process has too many clients;
    /// otherwise, if there are too many clients, drops the oldest client of the lowest rank.
    fn add(&mut self, client: Client) {
        let of_it = |it: &Client| it.pid == client.pid;
        let oldest = if self.0.iter().filter(|it| of_it(it)).count() >= MAX_CLIENTS_OF_A_PROCESS {
            self.0.iter().position(of_it)
        } else if self.0.len() >= MAX_CLIENTS {
            let lowest = self.0.iter().map(|it| it.rank).min();
            self.0.iter().position(|it| Some(it.rank) == lowest)
        } else {
            None
        };
        if let Some(oldest) = oldest {
            self.0.remove(oldest);
        }
        self.0.push(client);
    }

    /// Removes and returns all clients, sorted by rank (highest first) and age (oldest first). The
    /// caller puts clients with incomplete requests [`back`](Clients::back).
    pub(crate) fn all(&mut self) -> Vec<Client> {
        let mut all = std::mem::take(&mut self.0);
        all.sort_by_key(|client| std::cmp::Reverse(client.rank));
        all
    }

    /// Keeps a client whose request is not answered yet, unless an incomplete request exceeds its
    /// time limit.
    pub(crate) fn back(&mut self, client: Client, heard: Heard) {
        if heard == Heard::Later || heard == Heard::More && !client.is_late() {
            self.0.push(client);
        }
    }

    /// True if the list of clients is empty.
    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

/// Receives bytes and the file descriptor sent with them. Returns the number of bytes and the
/// descriptor.
fn receive(stream: &UnixStream, bytes: &mut [u8]) -> io::Result<(usize, Option<OwnedFd>)> {
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

/// True if a process is one of `ancestors` or descends from one of them.
fn descends_from(mut pid: u32, ancestors: &[u32]) -> bool {
    /// Maximum length of the chain of parents. If a parent ends meanwhile, the kernel may reuse its
    /// PID, even for a descendant, and the chain then has a loop.
    const MAX_ANCESTORS: usize = 64;
    let root = ProcRoot::live();
    for _ in 0..MAX_ANCESTORS {
        if ancestors.contains(&pid) {
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

/// A rendezvous socket with a thread that answers the clients. Dropping the value ends the thread.
#[derive(Debug)]
pub(crate) struct Answered {
    meeting: Arc<Meeting>,
    /// Socket that is shut down to end the thread.
    ends: UnixStream,
    thread: Option<JoinHandle<()>>,
}

impl Answered {
    /// Starts the thread, which calls `answer` with each client. `answer` receives the available
    /// bytes of the client's request, and must not wait.
    pub(crate) fn open(
        library: &RecorderLibrary,
        mut answer: impl FnMut(&mut Client) -> Heard + Send + 'static,
    ) -> Result<Answered, HeapError> {
        let (meeting, listener) = Meeting::open(library)?;
        let (ends, ended) = UnixStream::pair().map_err(HeapError::Socket)?;
        let meeting = Arc::new(meeting);
        let door = Arc::clone(&meeting);
        let listen = move || {
            let mut clients = Clients::default();
            let mut can_accept = true;
            while wait(&ended, &listener, can_accept, &clients) {
                can_accept = door.accept(&listener, None, &mut clients);
                for mut client in clients.all() {
                    let heard = answer(&mut client);
                    clients.back(client, heard);
                }
            }
        };
        let named = thread::Builder::new().name("listener".to_owned());
        let thread = named.spawn(listen).map_err(HeapError::Socket)?;
        Ok(Answered { meeting, ends, thread: Some(thread) })
    }

    /// Environment variables for the program, in addition to those of this process.
    pub(crate) fn environment(&self, words: &str) -> Vec<(OsString, OsString)> {
        self.meeting.environment(words)
    }
}

/// Waits for a connection or for bytes of a client. Returns false if the thread is to end.
fn wait(ended: &UnixStream, listener: &UnixListener, can_accept: bool, clients: &Clients) -> bool {
    /// Interval of the polls while requests are incomplete or not answered, or while no connection
    /// can be accepted.
    const POLL_NANOS: i64 = 20_000_000;
    let mut wanted = vec![PollFd::new(ended, PollFlags::IN)];
    let mut is_soon = !can_accept;
    if can_accept {
        wanted.push(PollFd::new(listener, PollFlags::IN));
    }
    for client in &clients.0 {
        is_soon |= !client.bytes.is_empty();
        if client.bytes.is_empty() {
            wanted.push(PollFd::new(&client.stream, PollFlags::IN));
        }
    }
    let timeout = match is_soon {
        true => Timespec { tv_sec: 0, tv_nsec: POLL_NANOS },
        // Clients that send nothing are dropped at their time limit.
        false => Timespec { tv_sec: 1, tv_nsec: 0 },
    };
    let _ = poll(&mut wanted, Some(&timeout));
    wanted[0].revents().is_empty()
}

impl Drop for Answered {
    fn drop(&mut self) {
        // A forked process may have the descriptor open, too, so closing the descriptor would not
        // end the thread.
        let _ = self.ends.shutdown(Shutdown::Both);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io::{IoSlice, Read};
    use std::os::fd::AsFd;

    use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags, sendmsg};

    use super::*;

    /// A client, and the other end of its connection.
    fn client(pid: u32, rank: Rank) -> (Client, UnixStream) {
        let (stream, other) = UnixStream::pair().unwrap();
        stream.set_nonblocking(true).unwrap();
        let since = Instant::now();
        (Client { stream, pid, rank, since, bytes: Vec::new(), file: None }, other)
    }

    #[test]
    fn the_name_of_the_socket_is_secret() {
        let recorder = tempfile::NamedTempFile::new().unwrap();
        let library = RecorderLibrary::File(recorder.path().to_owned());
        let (meeting, listener) = Meeting::open(&library).unwrap();
        let name = meeting.socket.file_name().unwrap().to_str().unwrap().to_owned();
        assert_eq!(name.len(), SECRET);
        let told = fs::read_to_string("/proc/net/unix").unwrap();
        assert!(told.contains("pagewise-heap-") && !told.contains(&name));
        let (other, _) = Meeting::open(&library).unwrap();
        assert_ne!(other.socket.file_name(), meeting.socket.file_name());
        let connected = UnixStream::connect(&meeting.socket).unwrap();
        let mut clients = Clients::default();
        assert!(meeting.accept(&listener, None, &mut clients));
        assert_eq!(clients.0.len(), 1);
        assert_eq!((clients.0[0].pid, clients.0[0].rank), (std::process::id(), Rank::Ours));
        drop(connected);
    }

    #[test]
    fn silent_clients_do_not_displace_others() {
        let mut clients = Clients::default();
        let (first, _first) = client(7, Rank::First);
        let (ours, _ours) = client(8, Rank::Ours);
        clients.add(first);
        clients.add(ours);
        for pid in 100..10_000 {
            clients.add(client(pid, Rank::Stranger).0);
        }
        assert_eq!(clients.0.len(), MAX_CLIENTS);
        let all: Vec<u32> = clients.all().iter().map(|client| client.pid).collect();
        assert_eq!(all[..2], [7, 8], "who is waited for comes first");
        assert_eq!(all.last(), Some(&9999), "the oldest strangers have gone");
        // One process, even the expected process, has only a limited number of clients.
        for _ in 0..100 {
            clients.add(client(7, Rank::First).0);
        }
        assert_eq!(clients.0.len(), MAX_CLIENTS_OF_A_PROCESS);
    }

    #[test]
    fn answering_ends_even_if_its_descriptors_were_inherited() {
        let library = RecorderLibrary::File("/dev/null".into());
        let answered = Answered::open(&library, |_| Heard::Done).unwrap();
        let inherited = answered.ends.try_clone().unwrap();
        drop(answered);
        drop(inherited);
    }

    #[test]
    fn late_clients_are_dropped() {
        let mut clients = Clients::default();
        let (mut late, _late) = client(7, Rank::First);
        late.since = Instant::now().checked_sub(late.rank.limit() * 2).unwrap();
        clients.back(late, Heard::More);
        assert!(clients.is_empty());
        clients.back(client(7, Rank::First).0, Heard::More);
        assert!(!clients.is_empty());
    }

    #[test]
    fn a_message_in_pieces_is_assembled_without_waiting() {
        let (mut it, mut other) = client(7, Rank::First);
        assert!(it.receive(10) && it.bytes.is_empty());
        for piece in [&b"abc"[..], b"defg"] {
            other.write_all(piece).unwrap();
            assert!(it.receive(10));
        }
        assert_eq!(it.bytes, b"abcdefg");
        other.write_all(b"hijklmno").unwrap();
        assert!(it.receive(10));
        assert_eq!(it.bytes, b"abcdefghij", "no more than was asked for");
        drop(other);
        assert!(!it.receive(100));
    }

    #[test]
    fn files_that_were_not_requested_are_closed() {
        let (mut it, other) = client(7, Rank::First);
        let (mut reader, writer) = io::pipe().unwrap();
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(5))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        let file = writer.as_fd();
        let files = [file, file, file, file, file];
        assert!(control.push(SendAncillaryMessage::ScmRights(&files)));
        sendmsg(&other, &[IoSlice::new(b"hello")], &mut control, SendFlags::empty()).unwrap();
        drop(writer);
        assert!(it.receive(5) && it.file.is_some());
        drop(it);
        drop(other);
        // The stream ends when all descriptors of the other end are closed.
        assert_eq!(reader.read(&mut [0]).unwrap(), 0);
    }
}
