//! Servers that a test starts, and requests to them.

use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};

/// A server process that is killed when this value is dropped, with its address.
pub(crate) struct ServerProcess {
    child: Child,
    pub(crate) address: SocketAddr,
}

impl ServerProcess {
    /// Starts `pagewise export` at a free port.
    pub(crate) fn export(args: &[&str]) -> ServerProcess {
        let mut child = Command::new(env!("CARGO_BIN_EXE_pagewise"))
            .args(["export", "--listen", "127.0.0.1:0"])
            .args(args)
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let mut lines = BufReader::new(child.stderr.take().unwrap()).lines();
        let line = lines.next().unwrap().unwrap();
        let address = line.rsplit(' ').next().unwrap().parse().unwrap();
        // A thread reads later messages, so that they do not fill the pipe.
        std::thread::spawn(move || lines.for_each(drop));
        let server = ServerProcess { child, address };
        server.wait_for("/healthz");
        server
    }

    /// Starts another server at the address in `args`. Returns `None` if the server is not
    /// installed.
    pub(crate) fn other(
        program: &str,
        args: &[&str],
        address: SocketAddr,
    ) -> Option<ServerProcess> {
        let mut command = Command::new(program);
        command.args(args).stdout(Stdio::null()).stderr(Stdio::null());
        Some(ServerProcess { child: command.spawn().ok()?, address })
    }

    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Waits until the server answers with a page.
    pub(crate) fn wait_for(&self, path: &str) {
        wait("the server", || get(self.address, path).is_some_and(|(status, _)| status == 200));
    }

    /// Returns the body of a page.
    pub(crate) fn page(&self, path: &str) -> String {
        let (status, body) = get(self.address, path).unwrap();
        assert_eq!(status, 200, "{path}: {body}");
        body
    }

    /// Ends the server as a service manager does.
    pub(crate) fn terminate(mut self) -> ExitStatus {
        let pid = Pid::from_raw(self.child.id().cast_signed()).unwrap();
        kill_process(pid, Signal::TERM).unwrap();
        self.child.wait().unwrap()
    }
}

impl Drop for ServerProcess {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A `sleep` whose command line begins with a name, which ends with the test.
pub(crate) struct NamedProcess(Child);

impl NamedProcess {
    pub(crate) fn start(name: &str) -> NamedProcess {
        let process = NamedProcess(Command::new("sleep").arg0(name).arg("1000").spawn().unwrap());
        // The child may not have executed the program yet.
        let path = format!("/proc/{}/cmdline", process.pid());
        wait("execve", || fs::read(&path).is_ok_and(|it| it.starts_with(name.as_bytes())));
        process
    }

    pub(crate) fn pid(&self) -> u32 {
        self.0.id()
    }
}

impl Drop for NamedProcess {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Returns an address that is free now.
pub(crate) fn free_address() -> SocketAddr {
    TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap()
}

/// Returns the status and the body of a page; `None` if the server does not answer.
pub(crate) fn get(address: SocketAddr, path: &str) -> Option<(u16, String)> {
    let mut stream = TcpStream::connect(address).ok()?;
    stream.set_read_timeout(Some(Duration::from_secs(30))).ok()?;
    let request = format!("GET {path} HTTP/1.0\r\nHost: {address}\r\n\r\n");
    stream.write_all(request.as_bytes()).ok()?;
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer).ok()?;
    let answer = String::from_utf8_lossy(&answer);
    let (head, body) = answer.split_once("\r\n\r\n")?;
    Some((head.split(' ').nth(1)?.parse().ok()?, body.to_owned()))
}

/// Waits until a condition is true, for a long time on a busy machine.
pub(crate) fn wait(what: &str, mut is_true: impl FnMut() -> bool) {
    let began = Instant::now();
    while !is_true() {
        assert!(began.elapsed() < Duration::from_secs(90), "waited too long for {what}");
        std::thread::sleep(Duration::from_millis(100));
    }
}

/// Encodes the text of a query for a URL.
pub(crate) fn url_encoded(text: &str) -> String {
    let encode = |b: u8| match b {
        b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' => char::from(b).to_string(),
        b => format!("%{b:02X}"),
    };
    text.bytes().map(encode).collect()
}
