//! Requests of the guest for more or less memory, carried out by QEMU's monitor (QMP).
//!
//! The guest writes lines to a port of virtio-serial. Only the requests of [`GuestRequest`] exist:
//! the monitor itself, which can open files of the host, stays out of the guest's reach.

use std::fmt::{self, Display, Formatter};
use std::fs::{self, OpenOptions};
use std::io::{self, ErrorKind, Read, Write};
use std::os::fd::AsRawFd;
use std::os::unix::net::UnixStream;
use std::path::PathBuf;

use pagewise_model::Bytes;
use rustix::io::{FdFlags, fcntl_setfd};

use crate::VmError;
use crate::error::WhileDoing;

/// Name of the port for requests, and of the character device of the monitor.
const REQUESTS: &str = "requests";
const MONITOR: &str = "monitor";
/// Maximum number of memory modules (DIMMs) that can be plugged in.
pub(crate) const MAX_MODULES: u32 = 8;
/// A request is shorter than this.
const MAX_REQUEST: usize = 64;

/// A change of the memory of a running guest.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GuestRequest {
    /// Inflate or deflate the balloon until the guest has this memory.
    Balloon(Bytes),
    /// Plug in a module of memory.
    Plug(Bytes),
}

impl Display for GuestRequest {
    fn fmt(&self, to: &mut Formatter<'_>) -> fmt::Result {
        match self {
            GuestRequest::Balloon(bytes) => write!(to, "balloon {}", bytes.0),
            GuestRequest::Plug(bytes) => write!(to, "plug {}", bytes.0),
        }
    }
}

impl GuestRequest {
    fn parse(line: &str) -> Option<GuestRequest> {
        let (word, bytes) = line.trim().split_once(' ')?;
        let bytes = Bytes(bytes.parse().ok()?);
        match word {
            "balloon" => Some(GuestRequest::Balloon(bytes)),
            "plug" => Some(GuestRequest::Plug(bytes)),
            _ => None,
        }
    }

    /// Sends the request, in a guest. The guest sees the effect in its own memory.
    ///
    /// # Errors
    /// [`ErrorKind::NotFound`] if the machine has no memory to grow by; those of the port.
    pub fn send(self) -> io::Result<()> {
        let port = guest_port(REQUESTS).ok_or(ErrorKind::NotFound)?;
        OpenOptions::new().write(true).open(port)?.write_all(format!("{self}\n").as_bytes())
    }
}

/// The device of a port of virtio-serial, in a guest.
fn guest_port(name: &str) -> Option<PathBuf> {
    let ports = fs::read_dir("/sys/class/virtio-ports").ok()?.flatten();
    let is_it = |entry: &fs::DirEntry| {
        let text = fs::read_to_string(entry.path().join("name")).unwrap_or_default();
        text.trim().strip_prefix("pagewise.") == Some(name)
    };
    let port = ports.into_iter().find(is_it)?;
    Some(PathBuf::from("/dev").join(port.file_name()))
}

/// The host's ends of the connections to QEMU.
pub(crate) struct MemoryMonitor {
    requests: UnixStream,
    monitor: UnixStream,
    /// QEMU's ends, open until it has them.
    theirs: [UnixStream; 2],
    received: Vec<u8>,
    modules: u32,
}

impl MemoryMonitor {
    pub(crate) fn new() -> Result<MemoryMonitor, VmError> {
        let pair = || -> io::Result<(UnixStream, UnixStream)> {
            let (ours, theirs) = UnixStream::pair()?;
            ours.set_nonblocking(true)?;
            // QEMU finds the descriptor by its number.
            fcntl_setfd(&theirs, FdFlags::empty())?;
            Ok((ours, theirs))
        };
        let making = "cannot make a socket for QEMU";
        let (requests, their_requests) = pair().while_doing(making)?;
        let (mut monitor, their_monitor) = pair().while_doing(making)?;
        // QEMU reads this command after its start, and then leaves the capabilities negotiation of
        // QMP.
        monitor.write_all(b"{\"execute\":\"qmp_capabilities\"}\n").while_doing(making)?;
        let theirs = [their_requests, their_monitor];
        Ok(MemoryMonitor { requests, monitor, theirs, received: Vec::new(), modules: 0 })
    }

    /// Options of QEMU for both connections and the balloon.
    pub(crate) fn options(&self) -> Vec<(&'static str, String)> {
        let [requests, monitor] = [&self.theirs[0], &self.theirs[1]].map(AsRawFd::as_raw_fd);
        vec![
            ("-chardev", format!("socket,id={REQUESTS},fd={requests}")),
            ("-device", format!("virtserialport,chardev={REQUESTS},name=pagewise.{REQUESTS}")),
            ("-chardev", format!("socket,id={MONITOR},fd={monitor}")),
            ("-mon", format!("chardev={MONITOR},mode=control")),
            ("-device", "virtio-balloon-pci".to_owned()),
        ]
    }

    /// Carries out the requests that have arrived.
    pub(crate) fn poll(&mut self) {
        // Answers are not needed, but must not fill the socket.
        let mut answers = [0; 1 << 14];
        while matches!(self.monitor.read(&mut answers), Ok(1..)) {}
        let mut bytes = [0; MAX_REQUEST];
        while let Ok(length @ 1..) = self.requests.read(&mut bytes) {
            self.received.extend_from_slice(&bytes[..length]);
            while let Some(end) = self.received.iter().position(|byte| *byte == b'\n') {
                let line: Vec<u8> = self.received.drain(..=end).collect();
                if let Some(request) = GuestRequest::parse(&String::from_utf8_lossy(&line)) {
                    self.carry_out(request);
                }
            }
            // A line that is too long is cut, so it cannot fill the memory of the host.
            self.received.truncate(MAX_REQUEST);
        }
    }

    fn carry_out(&mut self, request: GuestRequest) {
        let commands = match request {
            GuestRequest::Balloon(Bytes(size)) => {
                format!("{{\"execute\":\"balloon\",\"arguments\":{{\"value\":{size}}}}}\n")
            }
            GuestRequest::Plug(_) if self.modules >= MAX_MODULES => return,
            GuestRequest::Plug(Bytes(size)) => {
                self.modules += 1;
                let at = self.modules;
                format!(
                    "{{\"execute\":\"object-add\",\"arguments\":{{\"qom-type\":\
                     \"memory-backend-ram\",\"id\":\"memory{at}\",\"size\":{size}}}}}\n\
                     {{\"execute\":\"device_add\",\"arguments\":{{\"driver\":\"pc-dimm\",\
                     \"id\":\"module{at}\",\"memdev\":\"memory{at}\"}}}}\n"
                )
            }
        };
        // A QEMU that does not read its monitor has ended or hangs; its time limit ends it.
        let _ = self.monitor.write_all(commands.as_bytes());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_reads_back_as_it_was_sent() {
        for request in [GuestRequest::Balloon(Bytes::mib(64)), GuestRequest::Plug(Bytes(1))] {
            assert_eq!(GuestRequest::parse(&request.to_string()), Some(request));
        }
        for line in ["", "balloon", "balloon x", "migrate exec:id", "plug -1"] {
            assert_eq!(GuestRequest::parse(line), None, "{line}");
        }
    }

    #[test]
    fn the_monitor_gets_the_commands_of_a_request_and_no_other_line() {
        let mut monitor = MemoryMonitor::new().unwrap();
        let mut guest = monitor.theirs[0].try_clone().unwrap();
        let mut qemu = monitor.theirs[1].try_clone().unwrap();
        guest.write_all(b"balloon 1048576\n{\"execute\":\"quit\"}\nplug 2").unwrap();
        monitor.poll();
        guest.write_all(b"5\n").unwrap();
        monitor.poll();
        let mut bytes = [0; 1000];
        let length = qemu.read(&mut bytes).unwrap();
        let text = String::from_utf8_lossy(&bytes[..length]).into_owned();
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(lines.len(), 4, "{text}");
        assert!(lines[1].contains("\"balloon\"") && lines[1].contains("1048576"), "{text}");
        assert!(lines[2].contains("\"size\":25"), "{text}");
        assert!(!text.contains("quit"), "{text}");
    }
}
