//! HTTP server with `/metrics`, `/healthz` and a landing page, with limited memory and time.
//!
//! One thread serves all connections with non-blocking sockets. If the maximum number of
//! connections is reached, a new connection replaces the one whose current request began first. So
//! clients that send or read slowly lose their connections, and scrapes are still answered.

mod auth;
mod client_certificate;
mod connection;
mod request;
mod response;
mod tls;
mod web_config;

use std::io;
use std::net::TcpListener;
use std::os::fd::AsFd;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};

use crate::exporter::{ExportedSweep, scrape_tail};
use crate::exposition::ExpositionFormat;
use connection::{Connection, ConnectionState};
pub(crate) use tls::read_certificates;
pub use web_config::{WebConfig, WebConfigError};

/// Maximum number of simultaneous connections. A TLS connection has additional buffers.
const MAX_CONNECTIONS: usize = 128;
const MAX_TLS_CONNECTIONS: usize = 48;
/// Maximum number of connections that are accepted at once, before existing connections are served
/// again.
const MAX_ACCEPTED: usize = 64;
/// Maximum time of one wait, after which the server checks if it must end.
const TURN: Duration = Duration::from_millis(250);
/// Maximum time to complete responses when the server ends.
const MAX_END: Duration = Duration::from_secs(5);
/// Number of intervals without a sweep after which `/healthz` reports an error.
const UNHEALTHY_INTERVALS: u32 = 4;

/// The text of the last sweep, from which scrapes are answered.
#[derive(Debug)]
pub struct PublishedScrape {
    current: Mutex<Option<Arc<ScrapeText>>>,
    interval: Duration,
    scrapes: AtomicU64,
}

/// The text of a sweep in both formats.
#[derive(Debug)]
pub(crate) struct ScrapeText {
    open_metrics: Arc<str>,
    prometheus: Arc<str>,
    since: Instant,
}

impl PublishedScrape {
    /// Creates an object without text, for sweeps at this interval.
    pub fn new(interval: Duration) -> PublishedScrape {
        PublishedScrape { current: Mutex::new(None), interval, scrapes: AtomicU64::new(0) }
    }

    /// Replaces the text by that of a new sweep. `age` is the time since the sweep began.
    pub fn publish(&self, sweep: &ExportedSweep, age: Duration) {
        let now = Instant::now();
        let text = Arc::new(ScrapeText {
            open_metrics: sweep.text(ExpositionFormat::OpenMetrics).into(),
            prometheus: sweep.text(ExpositionFormat::Prometheus).into(),
            since: now.checked_sub(age).unwrap_or(now),
        });
        *self.current.lock().unwrap_or_else(PoisonError::into_inner) = Some(text);
    }

    fn current(&self) -> Option<Arc<ScrapeText>> {
        self.current.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Body of a scrape in two parts: the text that all scrapes share, and the text of this scrape.
    /// `None` before the first sweep.
    pub(crate) fn scrape(&self, format: ExpositionFormat) -> Option<(Arc<str>, String)> {
        let text = self.current()?;
        let scrapes = self.scrapes.fetch_add(1, Ordering::Relaxed) + 1;
        let age_ns = u64::try_from(text.since.elapsed().as_nanos()).unwrap_or(u64::MAX);
        let shared = match format {
            ExpositionFormat::OpenMetrics => &text.open_metrics,
            ExpositionFormat::Prometheus => &text.prometheus,
        };
        Some((Arc::clone(shared), scrape_tail(format, age_ns, scrapes)))
    }

    /// True if the last sweep began less than [`UNHEALTHY_INTERVALS`] intervals ago, or less than
    /// 10 s ago.
    pub(crate) fn is_healthy(&self) -> bool {
        let limit = self.interval.saturating_mul(UNHEALTHY_INTERVALS).max(Duration::from_secs(10));
        self.current().is_some_and(|it| it.since.elapsed() < limit)
    }
}

/// HTTP server for scrapes.
#[derive(Debug)]
pub struct ScrapeServer {
    listeners: Vec<TcpListener>,
    published: Arc<PublishedScrape>,
    web: WebConfig,
    connections: Vec<Connection>,
}

impl ScrapeServer {
    /// Creates a server that accepts connections on these sockets.
    ///
    /// # Errors
    /// [`io::Error`] if a socket cannot be made non-blocking.
    pub fn new(
        listeners: Vec<TcpListener>,
        published: Arc<PublishedScrape>,
        web: WebConfig,
    ) -> io::Result<ScrapeServer> {
        for listener in &listeners {
            listener.set_nonblocking(true)?;
        }
        Ok(ScrapeServer { listeners, published, web, connections: Vec::new() })
    }

    /// Serves connections until `is_over` returns true. Then completes responses that have begun,
    /// and answers requests that have already arrived.
    ///
    /// # Errors
    /// [`io::Error`] if waiting for the sockets fails.
    pub fn run(&mut self, mut is_over: impl FnMut() -> bool) -> io::Result<()> {
        while !is_over() {
            self.turn(true, TURN)?;
        }
        // The first turn accepts the connections that have arrived; the second turn reads their
        // requests.
        for _ in 0..2 {
            self.turn(true, Duration::ZERO)?;
        }
        let end = Instant::now() + MAX_END;
        self.connections.retain(Connection::is_answering);
        while !self.connections.is_empty() && Instant::now() < end {
            self.turn(false, TURN)?;
            self.connections.retain(Connection::is_answering);
        }
        Ok(())
    }

    /// Waits until sockets are ready, and serves the ready ones.
    fn turn(&mut self, accepts: bool, longest: Duration) -> io::Result<()> {
        let ready = self.wait(accepts, longest)?;
        let now = Instant::now();
        for (connection, ready) in self.connections.iter_mut().zip(&ready) {
            if *ready || connection.has_work() {
                connection.step(now, &self.published, &self.web);
            }
        }
        // Only one password is verified in each turn, so that wrong passwords cannot block all
        // other connections.
        let oldest = self.connections.iter_mut().filter(|it| it.state() == ConnectionState::Verify);
        if let Some(connection) = oldest.min_by_key(|it| it.since()) {
            connection.verify(&mut self.web);
            connection.step(now, &self.published, &self.web);
        }
        self.connections.retain(|it| it.state() != ConnectionState::Closed && !it.is_late(now));
        if accepts {
            self.accept(now);
            self.web.reload_if_changed(now);
        }
        Ok(())
    }

    /// Waits until a socket is ready, `longest` at most. Returns for each connection if it is
    /// ready.
    fn wait(&self, accepts: bool, longest: Duration) -> io::Result<Vec<bool>> {
        let mut fds: Vec<PollFd<'_>> = self
            .connections
            .iter()
            .map(|it| PollFd::from_borrowed_fd(it.as_fd(), it.interest()))
            .collect();
        let count = fds.len();
        if accepts {
            fds.extend(
                self.listeners.iter().map(|it| PollFd::from_borrowed_fd(it.as_fd(), PollFlags::IN)),
            );
        }
        let has_work = self.connections.iter().any(Connection::has_work);
        let wait = if has_work { Duration::ZERO } else { longest };
        let wait = Timespec::try_from(wait).expect("less than a second");
        match poll(&mut fds, Some(&wait)) {
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
        Ok(fds[..count].iter().map(|it| !it.revents().is_empty()).collect())
    }

    fn accept(&mut self, now: Instant) {
        let limit = if self.web.has_tls() { MAX_TLS_CONNECTIONS } else { MAX_CONNECTIONS };
        for listener in &self.listeners {
            for _ in 0..MAX_ACCEPTED {
                // The connection failed (ECONNABORTED), or no descriptor is free. Other connections
                // are served.
                let Ok((stream, _)) = listener.accept() else { break };
                if self.connections.len() >= limit {
                    let oldest =
                        self.connections.iter().enumerate().min_by_key(|(_, it)| it.since());
                    if let Some((at, _)) = oldest {
                        self.connections.swap_remove(at);
                    }
                }
                self.connections.extend(Connection::new(stream, &self.web, now));
            }
        }
    }
}
