//! A thread that repeatedly reads the process whose page is open on the screen.

use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, Sender};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::bail;
use pagewise_analysis::diff::{self, SnapshotDiffOptions};
use pagewise_analysis::explain::{self, ExplainOptions, live};
use pagewise_model::sweep::ProcessKey;
use pagewise_model::{Absent, Report, Snapshot};
use pagewise_proc::capture::{CaptureRequest, Wish, capture};
use pagewise_proc::{ProcRoot, saved};
use pagewise_sys::system::thread_cpu_time;
use pagewise_tui::{LiveReports, PageSubject, TuiEvent};

use super::live::LiveEvent;
use crate::target::captured;

/// Time between two readings, unless the CPU time of a reading requires a longer time.
const INTERVAL: Duration = Duration::from_secs(2);
/// Time between two readings, as a multiple of the CPU time of a reading: 1 % of a core.
const COST_FACTOR: u32 = 100;
/// Maximum time between two readings, also of a large process.
const MAX_INTERVAL: Duration = Duration::from_secs(60);
/// Number of mappings that the explain pane shows.
const LARGEST: usize = 20;

/// The thread that reads the process of the open page.
#[derive(Debug)]
pub(super) struct PageReader {
    /// The process to read next; `None` stops reading.
    requests: Sender<Option<ProcessKey>>,
}

impl PageReader {
    pub(super) fn start(root: &ProcRoot, sender: Sender<LiveEvent>) -> io::Result<PageReader> {
        let (requests, receiver) = mpsc::channel();
        let root = root.clone();
        let run = move || read_pages(&root, &receiver, &sender);
        thread::Builder::new().name("page".into()).spawn(run)?;
        Ok(PageReader { requests })
    }

    /// Starts reading this process; with `None`, stops reading.
    pub(super) fn open(&self, subject: Option<&PageSubject>) {
        let process = subject.and_then(|subject| match subject {
            PageSubject::Process(key) => Some(*key),
            PageSubject::Cgroup(_) => None,
        });
        // `send` fails only if the thread has panicked, which ends the loop.
        let _ = self.requests.send(process);
    }
}

/// A process that is read.
struct ReadProcess {
    key: ProcessKey,
    root: ProcRoot,
    first: Option<Snapshot>,
}

fn read_pages(
    root: &ProcRoot,
    requests: &Receiver<Option<ProcessKey>>,
    sender: &Sender<LiveEvent>,
) {
    let mut process: Option<ReadProcess> = None;
    let mut next = Instant::now();
    loop {
        let wait = match &process {
            Some(_) => next.saturating_duration_since(Instant::now()),
            None => Duration::from_secs(3600),
        };
        match requests.recv_timeout(wait) {
            Ok(key) => {
                process = key.map(|key| ReadProcess { key, root: root.clone(), first: None });
                next = Instant::now();
            }
            Err(RecvTimeoutError::Disconnected) => return,
            Err(RecvTimeoutError::Timeout) => {
                let Some(reading) = &mut process else { continue };
                let cpu = thread_cpu_time();
                let subject = PageSubject::Process(reading.key);
                let event = match read(reading) {
                    Ok(reports) => TuiEvent::Reports(subject, Arc::new(reports)),
                    Err(error) => {
                        process = None;
                        TuiEvent::Unreadable(subject, format!("{error:#}"))
                    }
                };
                if sender.send(LiveEvent::Screen(event)).is_err() {
                    return;
                }
                let cost = thread_cpu_time().saturating_sub(cpu) * COST_FACTOR;
                next = Instant::now() + cost.clamp(INTERVAL, MAX_INTERVAL);
            }
        }
    }
}

fn read(process: &mut ReadProcess) -> anyhow::Result<LiveReports> {
    let pid = process.key.pid;
    if process.first.is_none() {
        process.root = process.root.holding(pid)?;
    }
    // `Auto` reads the page tables of a large process in pieces, so that the process never waits
    // long.
    let request = CaptureRequest { wish: Wish::Auto, sums: true, ..CaptureRequest::default() };
    let mut now = capture(&process.root, pid, &request)?;
    if now.process.start_ticks != process.key.start_ticks {
        bail!("the process has ended; another one has its PID");
    }
    now.heap_sample = Err(Absent::NotCollected("`h` scans the heap".into()));
    let first = process.first.get_or_insert_with(|| now.clone());
    Ok(reports(first, &now))
}

fn reports(first: &Snapshot, now: &Snapshot) -> LiveReports {
    let options = ExplainOptions { largest: LARGEST, ..ExplainOptions::default() };
    // The page has the name of the process above its panes, so the reports need no titles.
    let untitled = |report: Report| Report { title: Vec::new(), ..report };
    LiveReports {
        overview: live::overview(first, now),
        explain: untitled(explain::explain(now, &options)),
        growth: untitled(diff::diff(first, now, &SnapshotDiffOptions::default())),
        mappings: live::largest_mappings(now),
        threads: live::threads(now),
    }
}

/// Saves a snapshot of a process into the current folder; returns the name of the file.
pub(super) fn save(root: &ProcRoot, key: ProcessKey) -> anyhow::Result<PathBuf> {
    let pid = key.pid;
    let root = root.holding(pid)?;
    let snapshot = captured(&root, pid, &CaptureRequest::default())?;
    if snapshot.process.start_ticks != key.start_ticks {
        bail!("the process has ended; another one has its PID");
    }
    let path = PathBuf::from(format!("pagewise-{pid}-{}.json", snapshot.provenance.unix_seconds));
    saved::save(&snapshot, &path)?;
    Ok(path)
}
