//! The HTTP server: `/metrics`, `/healthz` and a landing page, within fixed bounds of memory and
//! time.
//!
//! One thread serves all connections with non-blocking sockets. When all connections are in use, a
//! new one takes the place of the one whose present request is the oldest: clients that send or
//! read slowly lose their connection, and a scrape is still answered.

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

/// Connections at a time. A connection with TLS has buffers of its own.
const MAX_CONNECTIONS: usize = 128;
const MAX_TLS_CONNECTIONS: usize = 48;
/// Connections that are accepted before the others are served again.
const MAX_ACCEPTED: usize = 64;
/// Longest wait, after which the server checks if it must end.
const TURN: Duration = Duration::from_millis(250);
/// Time for answers that have begun when the server ends.
const MAX_END: Duration = Duration::from_secs(5);
/// Number of intervals without a sweep after which `/healthz` reports an error.
const UNHEALTHY_INTERVALS: u32 = 4;

/// The text of the last sweep, which scrapes are answered with.
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
    /// Nothing yet; sweeps come at this interval.
    pub fn new(interval: Duration) -> PublishedScrape {
        PublishedScrape { current: Mutex::new(None), interval, scrapes: AtomicU64::new(0) }
    }

    /// Replaces the text. `age` is the time since the sweep began.
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

    /// The body of a scrape in two parts: the shared text, and what is made for this scrape.
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

    /// True if the last sweep is recent.
    pub(crate) fn is_healthy(&self) -> bool {
        let limit = self.interval.saturating_mul(UNHEALTHY_INTERVALS).max(Duration::from_secs(10));
        self.current().is_some_and(|it| it.since.elapsed() < limit)
    }
}

/// A server of scrapes.
#[derive(Debug)]
pub struct ScrapeServer {
    listeners: Vec<TcpListener>,
    published: Arc<PublishedScrape>,
    web: WebConfig,
    connections: Vec<Connection>,
}

impl ScrapeServer {
    /// A server for connections to these sockets.
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

    /// Serves until `is_over` returns true. Then completes the answers that have begun, and those
    /// to requests that have arrived.
    ///
    /// # Errors
    /// [`io::Error`] if the sockets cannot be waited for.
    pub fn run(&mut self, mut is_over: impl FnMut() -> bool) -> io::Result<()> {
        while !is_over() {
            self.turn(true, TURN)?;
        }
        // The first turn accepts the connections that have come, the second one reads the requests.
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

    /// Waits for sockets, and serves those that are ready.
    fn turn(&mut self, accepts: bool, longest: Duration) -> io::Result<()> {
        let ready = self.wait(accepts, longest)?;
        let now = Instant::now();
        for (connection, ready) in self.connections.iter_mut().zip(&ready) {
            if *ready || connection.has_work() {
                connection.step(now, &self.published, &self.web);
            }
        }
        // One password at a time, so that wrong ones cannot hold up all other connections.
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

    /// Readiness of each connection.
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
                // An error of one connection (ECONNABORTED), or no descriptor left: others go on.
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
