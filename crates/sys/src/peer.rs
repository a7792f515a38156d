//! Credentials of the peer of a Unix socket (`SO_PEERCRED`).

use std::io;
use std::os::fd::{AsFd, AsRawFd};

/// The process that connected, as it was then.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Peer {
    /// Its PID in our PID namespace; `None` if the process is not visible there.
    pub pid: Option<u32>,
    /// Its effective user.
    pub uid: u32,
}

/// Reads the credentials of the process at the other end.
///
/// # Errors
/// `ENOTSOCK` if it is not a socket.
pub fn peer_of(stream: impl AsFd) -> io::Result<Peer> {
    let mut peer = libc::ucred { pid: 0, uid: 0, gid: 0 };
    let mut length = libc::socklen_t::try_from(size_of::<libc::ucred>()).expect("it is small");
    let (socket, option) = (stream.as_fd().as_raw_fd(), libc::SO_PEERCRED);
    // SAFETY: the kernel writes no more than `length` bytes into `peer`, any of which are valid.
    let got = unsafe {
        libc::getsockopt(socket, libc::SOL_SOCKET, option, (&raw mut peer).cast(), &raw mut length)
    };
    if got != 0 {
        return Err(io::Error::last_os_error());
    }
    let pid = u32::try_from(peer.pid).ok().filter(|&pid| pid != 0);
    Ok(Peer { pid, uid: peer.uid })
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixStream;

    use super::*;

    #[test]
    fn a_pair_of_sockets_is_connected_by_this_process() {
        let (stream, _other) = UnixStream::pair().unwrap();
        let us = Peer { pid: Some(std::process::id()), uid: rustix::process::geteuid().as_raw() };
        assert_eq!(peer_of(&stream).unwrap(), us);
    }
}
