//! State machine of one connection: it receives requests and sends responses without blocking.

use std::io::{self, Read, Write};
use std::net::{Shutdown, TcpStream};
use std::os::fd::{AsFd, BorrowedFd};
use std::time::{Duration, Instant};

use rustix::event::PollFlags;
use rustls::ServerConnection;

use super::auth::Credentials;
use super::request::{HttpRequest, MAX_HEAD_BYTES, RequestParse};
use super::response::{HttpResponse, answer, refuse, unauthorized};
use super::{PublishedScrape, WebConfig};

/// Maximum time to receive a complete request, from its first byte or from the start of the
/// connection.
const MAX_REQUEST: Duration = Duration::from_secs(10);
/// Maximum time for a client to read a response.
const MAX_ANSWER: Duration = Duration::from_secs(30);
/// Maximum time until the next request of an open connection. Prometheus scrapes once a minute by
/// default.
const MAX_IDLE: Duration = Duration::from_secs(90);
/// Maximum time for a client to close its side after an error.
const MAX_DRAIN: Duration = Duration::from_secs(1);
/// Maximum number of bytes of plain text that wait for encryption.
const TLS_BUFFER: usize = 16 << 10;
/// Maximum number of bytes that one connection reads or writes before other connections are served.
const MAX_TURN_BYTES: usize = 256 << 10;
/// Maximum number of bytes of one `read`.
const READ_BYTES: usize = 4 << 10;

/// State of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ConnectionState {
    /// The connection waits for the next request.
    Idle,
    /// The first request of the connection is expected, or a part of a request was received.
    Reading,
    /// The password of a request must be verified.
    Verify,
    /// A response is being sent.
    Writing,
    /// The last response was sent. Bytes that the client still sends are discarded.
    Draining,
    /// The connection must be dropped.
    Closed,
}

/// A connection of a client.
#[derive(Debug)]
pub(super) struct Connection {
    stream: TcpStream,
    tls: Option<Box<ServerConnection>>,
    state: ConnectionState,
    input: Vec<u8>,
    request: Option<HttpRequest>,
    response: HttpResponse,
    /// Time at which the current state began; while a request is read, the time of its first byte.
    since: Instant,
}

impl Connection {
    /// Creates a connection; `None` if the socket or TLS cannot be set up.
    pub(super) fn new(stream: TcpStream, web: &WebConfig, now: Instant) -> Option<Connection> {
        stream.set_nonblocking(true).ok()?;
        let _ = stream.set_nodelay(true);
        let tls = match web.tls() {
            None => None,
            Some(config) => {
                let mut tls = ServerConnection::new(config).ok()?;
                tls.set_buffer_limit(Some(TLS_BUFFER));
                Some(Box::new(tls))
            }
        };
        Some(Connection {
            stream,
            tls,
            // In this state, a new connection that sends nothing is closed after MAX_REQUEST.
            state: ConnectionState::Reading,
            input: Vec::new(),
            request: None,
            response: HttpResponse::default(),
            since: now,
        })
    }

    pub(super) fn state(&self) -> ConnectionState {
        self.state
    }

    pub(super) fn since(&self) -> Instant {
        self.since
    }

    /// True if a complete request was received and its response was not sent completely.
    pub(super) fn is_answering(&self) -> bool {
        matches!(self.state, ConnectionState::Writing | ConnectionState::Verify)
    }

    /// True if the connection can continue without waiting for the socket.
    pub(super) fn has_work(&self) -> bool {
        self.state == ConnectionState::Verify
    }

    pub(super) fn is_late(&self, now: Instant) -> bool {
        let limit = match self.state {
            ConnectionState::Idle => MAX_IDLE,
            ConnectionState::Reading | ConnectionState::Verify => MAX_REQUEST,
            ConnectionState::Writing => MAX_ANSWER,
            ConnectionState::Draining => MAX_DRAIN,
            ConnectionState::Closed => return true,
        };
        now.saturating_duration_since(self.since) > limit
    }

    pub(super) fn interest(&self) -> PollFlags {
        let wants_write = self.tls.as_ref().is_some_and(|it| it.wants_write());
        match self.state {
            ConnectionState::Writing => PollFlags::OUT,
            ConnectionState::Verify | ConnectionState::Closed => PollFlags::empty(),
            _ if wants_write => PollFlags::IN | PollFlags::OUT,
            _ => PollFlags::IN,
        }
    }

    /// Does everything that is possible without waiting.
    pub(super) fn step(&mut self, now: Instant, published: &PublishedScrape, web: &WebConfig) {
        if self.advance(now, published, web).is_err() {
            self.state = ConnectionState::Closed;
        }
    }

    /// Verifies the password of the request. If it is wrong or missing, prepares the response.
    pub(super) fn verify(&mut self, web: &mut WebConfig) {
        let Some(request) = &self.request else { return };
        if !request.credentials().is_some_and(|it| web.verify(&it)) {
            self.response = unauthorized(request);
            self.response.add_headers(web.headers());
            self.state = ConnectionState::Writing;
            self.request = None;
        }
    }

    fn advance(
        &mut self,
        now: Instant,
        published: &PublishedScrape,
        web: &WebConfig,
    ) -> io::Result<()> {
        loop {
            match self.state {
                ConnectionState::Idle | ConnectionState::Reading => {
                    let has_ended = self.receive(now)?;
                    if !self.parse(now, published, web) {
                        self.flush_tls()?;
                        return if has_ended {
                            Err(io::ErrorKind::UnexpectedEof.into())
                        } else {
                            Ok(())
                        };
                    }
                }
                ConnectionState::Verify => {
                    let Some(request) = &self.request else { return Ok(()) };
                    let known = request.credentials().is_some_and(|it| web.is_verified(&it));
                    if !known {
                        return Ok(());
                    }
                    self.respond(now, published, web);
                }
                ConnectionState::Writing => {
                    if !self.send()? {
                        return Ok(());
                    }
                    self.end_response(now)?;
                }
                ConnectionState::Draining => return self.drain(),
                ConnectionState::Closed => return Ok(()),
            }
        }
    }

    /// Reads the bytes that have arrived, at most the maximum size of a request. Returns true if
    /// the client has closed its side.
    fn receive(&mut self, now: Instant) -> io::Result<bool> {
        let mut buffer = [0; READ_BYTES];
        while self.input.len() < MAX_HEAD_BYTES {
            let room = buffer.len().min(MAX_HEAD_BYTES - self.input.len());
            match self.read(&mut buffer[..room]) {
                Ok(0) => return Ok(true),
                Ok(count) => {
                    if self.state == ConnectionState::Idle {
                        (self.state, self.since) = (ConnectionState::Reading, now);
                    }
                    self.input.extend_from_slice(&buffer[..count]);
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(false),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        Ok(false)
    }

    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let Some(tls) = &mut self.tls else { return self.stream.read(buffer) };
        loop {
            match tls.reader().read(buffer) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                done => return done,
            }
            // An end of file without a TLS alert also ends the connection.
            if tls.read_tls(&mut self.stream)? == 0 {
                return Ok(0);
            }
            let state = tls.process_new_packets();
            if let Err(error) = state {
                // Sends the alert if the socket accepts it.
                let _ = tls.write_tls(&mut self.stream);
                return Err(io::Error::new(io::ErrorKind::InvalidData, error));
            }
        }
    }

    /// Parses a request from the received bytes. Returns false if it is incomplete.
    fn parse(&mut self, now: Instant, published: &PublishedScrape, web: &WebConfig) -> bool {
        match HttpRequest::parse(&self.input) {
            RequestParse::Partial if self.input.len() < MAX_HEAD_BYTES => return false,
            RequestParse::Partial => self.start(now, refuse(431), web),
            RequestParse::Refused(status) => self.start(now, refuse(status), web),
            RequestParse::Whole(request, length) => {
                self.input.drain(..length);
                self.input.shrink_to(READ_BYTES);
                self.request = Some(request);
                if web.has_users() {
                    // `since` is unchanged, because the oldest request is verified first.
                    self.state = ConnectionState::Verify;
                } else {
                    self.respond(now, published, web);
                }
            }
        }
        true
    }

    fn respond(&mut self, now: Instant, published: &PublishedScrape, web: &WebConfig) {
        if let Some(request) = self.request.take() {
            self.start(now, answer(&request, published), web);
        }
    }

    fn start(&mut self, now: Instant, mut response: HttpResponse, web: &WebConfig) {
        response.add_headers(web.headers());
        self.response = response;
        (self.state, self.since) = (ConnectionState::Writing, now);
    }

    /// Sends as much as the socket accepts. Returns true if everything was sent.
    fn send(&mut self) -> io::Result<bool> {
        let mut turn = 0;
        while turn < MAX_TURN_BYTES {
            let part = self.response.rest();
            if part.is_empty() {
                return self.flush_tls();
            }
            let sent = match &mut self.tls {
                None => self.stream.write(part),
                Some(tls) => match tls.writer().write(part) {
                    Ok(0) => {
                        if !self.flush_tls()? {
                            return Ok(false);
                        }
                        continue;
                    }
                    done => done,
                },
            };
            match sent {
                Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
                Ok(count) => {
                    self.response.advance(count);
                    turn += count;
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(false),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        Ok(false)
    }

    /// Sends encrypted bytes. Returns true if none are left.
    fn flush_tls(&mut self) -> io::Result<bool> {
        let Some(tls) = &mut self.tls else { return Ok(true) };
        while tls.wants_write() {
            match tls.write_tls(&mut self.stream) {
                Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
                Ok(_) => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(false),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        Ok(true)
    }

    fn end_response(&mut self, now: Instant) -> io::Result<()> {
        self.since = now;
        let closes = self.response.closes();
        self.response = HttpResponse::default();
        if !closes {
            self.state = if self.input.is_empty() {
                ConnectionState::Idle
            } else {
                ConnectionState::Reading
            };
            return Ok(());
        }
        if let Some(tls) = &mut self.tls {
            tls.send_close_notify();
            self.flush_tls()?;
        }
        self.stream.shutdown(Shutdown::Write)?;
        self.state = ConnectionState::Draining;
        Ok(())
    }

    /// Discards bytes that the client still sends. Closing a socket with unread bytes would reset
    /// the connection, and the client could lose the response.
    fn drain(&mut self) -> io::Result<()> {
        let mut buffer = [0; READ_BYTES];
        for _ in 0..16 {
            match self.stream.read(&mut buffer) {
                Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
                Ok(_) => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(()),
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }
}

impl HttpRequest {
    fn credentials(&self) -> Option<Credentials> {
        Credentials::parse(self.authorization.as_deref()?)
    }
}

impl AsFd for Connection {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.stream.as_fd()
    }
}
