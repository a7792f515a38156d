//! The thread that makes sweeps: readings of all processes.

use std::io;
use std::sync::Arc;
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, Sender};
use std::thread;
use std::time::{Duration, Instant};

use pagewise_proc::ProcRoot;
use pagewise_sampler::{Sampler, SamplerOptions, SweepOutcome};

use super::live::LiveEvent;

/// Share of the CPU time of one core for reading the pages of processes: the remaining budget is
/// for counters, tables and frames.
pub(super) const PAGE_SHARE: f64 = 0.004;

/// A request to the thread that reads all processes.
#[derive(Clone, Copy, Debug)]
enum SamplingRequest {
    Interval(Duration),
    Pause(bool),
}

/// The thread that reads all processes.
#[derive(Debug)]
pub(super) struct SamplingThread {
    requests: Sender<SamplingRequest>,
}

impl SamplingThread {
    /// Starts the thread.
    pub(super) fn start(
        root: &ProcRoot,
        interval: Duration,
        sender: Sender<LiveEvent>,
    ) -> anyhow::Result<SamplingThread> {
        let options =
            SamplerOptions { interval, page_share: PAGE_SHARE, ..SamplerOptions::default() };
        let sampler = Sampler::new(root, options)?;
        let (requests, receiver) = mpsc::channel();
        spawn(sampler, interval, receiver, sender)?;
        Ok(SamplingThread { requests })
    }

    /// Changes the time between two sweeps.
    pub(super) fn set_interval(&self, interval: Duration) {
        // `send` fails only if the thread has ended, which the loop learns from the last event of
        // the thread.
        let _ = self.requests.send(SamplingRequest::Interval(interval));
    }

    /// Stops or continues the sweeps.
    pub(super) fn pause(&self, is_paused: bool) {
        let _ = self.requests.send(SamplingRequest::Pause(is_paused));
    }
}

fn spawn(
    mut sampler: Sampler,
    mut interval: Duration,
    requests: Receiver<SamplingRequest>,
    sender: Sender<LiveEvent>,
) -> io::Result<()> {
    let run = move || {
        let mut is_paused = false;
        let mut next = Instant::now();
        loop {
            let wait = match is_paused {
                true => Duration::MAX,
                false => next.saturating_duration_since(Instant::now()),
            };
            match requests.recv_timeout(wait.min(Duration::from_secs(3600))) {
                Ok(SamplingRequest::Interval(new)) => {
                    next = (next + new).checked_sub(interval).unwrap_or(next);
                    interval = new;
                }
                Ok(SamplingRequest::Pause(pause)) => {
                    is_paused = pause;
                    next = Instant::now();
                }
                Err(RecvTimeoutError::Disconnected) => return,
                Err(RecvTimeoutError::Timeout) if is_paused => {}
                Err(RecvTimeoutError::Timeout) => {
                    let event = match sampler.sweep() {
                        Ok(SweepOutcome { sweep, events }) => {
                            let pages_cpu = sampler.pages_cpu();
                            LiveEvent::Sweep { sweep: Arc::new(sweep), events, pages_cpu }
                        }
                        Err(error) => LiveEvent::SweepFailed(error.to_string()),
                    };
                    if sender.send(event).is_err() {
                        return;
                    }
                    next = (next + interval).max(Instant::now());
                }
            }
        }
    };
    thread::Builder::new().name("sampler".into()).spawn(run).map(|_| ())
}
