//! Snapshots and diagnoses of the processes for which a trigger fires, each made by a process of
//! its own.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use pagewise_model::Name;
use pagewise_model::civil::CivilTime;
use pagewise_model::sweep::{PostMortemKind, ProcessKey, SweepEventKind};
use pagewise_sampler::FiredTrigger;
use rustix::fs::{MemfdFlags, memfd_create};
use rustix::process::{Signal, kill_process};

/// Maximum number of waiting snapshots. If more triggers fire in a short time, the first ones
/// matter most.
const MAX_SNAPSHOTS: usize = 64;
/// Maximum number of waiting diagnoses: each takes at least [`DIAGNOSIS`].
const MAX_DIAGNOSES: usize = 8;
/// Duration of a diagnosis.
const DIAGNOSIS: &str = "5s";
/// Time limit of a process that saves a file. A slower process gets SIGTERM, so that it undoes its
/// changes of the target.
const SAVING_LIMIT: Duration = Duration::from_secs(300);
/// Time between SIGTERM and SIGKILL.
const TIME_TO_END: Duration = Duration::from_secs(30);
/// Maximum length of the reason of a failure, in bytes.
const MAX_REASON: usize = 200;

/// A snapshot or a diagnosis that is to be saved.
#[derive(Clone, Debug, PartialEq, Eq)]
struct PostMortem {
    kind: PostMortemKind,
    process: ProcessKey,
    file: String,
}

impl PostMortem {
    fn failed(&self, reason: &[u8]) -> SweepEventKind {
        let (kind, process) = (self.kind, self.process);
        SweepEventKind::NotSaved { kind, process, reason: Name::new(reason) }
    }
}

/// A process that saves a snapshot or a diagnosis.
#[derive(Debug)]
struct SavingProcess {
    of: PostMortem,
    child: Child,
    /// Standard error of the child: a file in memory, so that the child never waits for a reader.
    messages: File,
    began: Instant,
    is_ending: bool,
}

impl SavingProcess {
    fn start(program: &Path, of: PostMortem, folder: &Path) -> std::io::Result<SavingProcess> {
        let messages = File::from(memfd_create("pagewise-messages", MemfdFlags::CLOEXEC)?);
        let pid = of.process.pid.to_string();
        let mut command = Command::new(program);
        match of.kind {
            PostMortemKind::Snapshot => command.args(["explain", &pid]),
            PostMortemKind::Diagnosis => {
                command.args(["diagnose", &pid, "--for", DIAGNOSIS, "--json"])
            }
        };
        command.arg("--save").arg(folder.join(&of.file));
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(messages.try_clone()?);
        let child = command.spawn()?;
        Ok(SavingProcess { of, child, messages, began: Instant::now(), is_ending: false })
    }

    fn signal(&self, signal: Signal) {
        if let Some(pid) = rustix::process::Pid::from_raw(self.child.id().cast_signed()) {
            let _ = kill_process(pid, signal);
        }
    }

    /// Returns the exit status if the process has ended. Sends SIGTERM after [`SAVING_LIMIT`], and
    /// SIGKILL after another [`TIME_TO_END`].
    fn poll(&mut self) -> Option<ExitStatus> {
        if let Ok(Some(status)) = self.child.try_wait() {
            return Some(status);
        }
        if self.began.elapsed() > SAVING_LIMIT + TIME_TO_END {
            self.signal(Signal::KILL);
        } else if self.began.elapsed() > SAVING_LIMIT && !self.is_ending {
            self.is_ending = true;
            self.signal(Signal::TERM);
        }
        None
    }

    /// Returns the reason why the process has saved no file.
    fn reason(&self, status: ExitStatus) -> Vec<u8> {
        if self.is_ending {
            return format!("it took longer than {} s", SAVING_LIMIT.as_secs()).into_bytes();
        }
        let mut text = vec![0; MAX_REASON];
        let read = self.messages.read_at(&mut text, 0).unwrap_or(0);
        let line = text[..read].split(|&byte| byte == b'\n').next().unwrap_or_default();
        match line.strip_prefix(b"pagewise: ").unwrap_or(line) {
            [] => status.to_string().into_bytes(),
            line => line.to_vec(),
        }
    }
}

/// Files that were saved since the last call, and events.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct PostMortemResults {
    /// Kind and name of each saved file.
    pub saved: Vec<(String, String)>,
    /// An event for each trigger, and one for each file that was not saved.
    pub events: Vec<SweepEventKind>,
}

impl PostMortemResults {
    /// Adds later results.
    pub(super) fn append(&mut self, mut later: PostMortemResults) {
        self.saved.append(&mut later.saved);
        self.events.append(&mut later.events);
    }
}

/// Saves snapshots and diagnoses, at most one of each kind at a time. Snapshots are saved first,
/// since they show the process at the time of the trigger.
#[derive(Debug)]
pub(super) struct PostMortems {
    /// Path of pagewise, which saves the files.
    program: PathBuf,
    running: Vec<SavingProcess>,
    waiting: Vec<PostMortem>,
    results: PostMortemResults,
}

impl PostMortems {
    /// Returns an empty queue. A new process that runs the executable of this process will make and
    /// save each snapshot or diagnosis.
    pub(super) fn new() -> PostMortems {
        PostMortems {
            program: "/proc/self/exe".into(),
            running: Vec::new(),
            waiting: Vec::new(),
            results: PostMortemResults::default(),
        }
    }

    /// Plans a snapshot and a diagnosis of the process for which a trigger fired.
    pub(super) fn plan(&mut self, fired: &FiredTrigger, unix_ns: u64) {
        let Some(process) = fired.process else { return };
        let seconds = i64::try_from(unix_ns / 1_000_000_000).unwrap_or(i64::MAX);
        // The time in the name of the file is in UTC, as in the names of the other files.
        let time = CivilTime::new(seconds, 0).to_string().replace(' ', "T").replace(':', "-");
        let limits =
            [(PostMortemKind::Snapshot, MAX_SNAPSHOTS), (PostMortemKind::Diagnosis, MAX_DIAGNOSES)];
        for (kind, limit) in limits {
            let trigger = fired.trigger.key();
            let file = format!("{time}-{trigger}-{}-{}.json", process.pid, kind.key());
            let planned = PostMortem { kind, process, file };
            let is_same = |it: &&PostMortem| it.kind == kind;
            let of_kind = || self.waiting.iter().filter(is_same);
            // Triggers may fire for several cgroups of one process: one file of each kind is
            // enough.
            if of_kind().any(|it| it.process == process) {
                continue;
            }
            if of_kind().count() == limit {
                let reason = format!("{limit} others wait for theirs");
                self.results.events.push(planned.failed(reason.as_bytes()));
                continue;
            }
            self.waiting.push(planned);
        }
        self.waiting.sort_by_key(|it| it.kind);
    }

    /// Ends each process that takes longer than [`SAVING_LIMIT`] to save a file, and starts the
    /// next process unless it must wait.
    pub(super) fn advance(&mut self, folder: &Path) {
        let mut running = std::mem::take(&mut self.running);
        running.retain_mut(|it| match it.poll() {
            Some(status) => {
                self.finish(it, status, folder);
                false
            }
            None => true,
        });
        self.running = running;
        let Some(next) = self.waiting.first() else { return };
        // A snapshot need not wait for a diagnosis, which takes many times longer.
        let is_before = |it: &SavingProcess| it.of.kind <= next.kind;
        if self.running.iter().any(is_before) {
            return;
        }
        let next = self.waiting.remove(0);
        match SavingProcess::start(&self.program, next.clone(), folder) {
            Ok(started) => self.running.push(started),
            Err(error) => self.results.events.push(next.failed(error.to_string().as_bytes())),
        }
    }

    fn finish(&mut self, ended: &SavingProcess, status: ExitStatus, folder: &Path) {
        match folder.join(&ended.of.file).exists() {
            true => {
                let kind = ended.of.kind.key().to_owned();
                self.results.saved.push((kind, ended.of.file.clone()));
            }
            false => self.results.events.push(ended.of.failed(&ended.reason(status))),
        }
    }

    /// Returns the results since the last call.
    pub(super) fn take_results(&mut self) -> PostMortemResults {
        std::mem::take(&mut self.results)
    }
}

impl Drop for PostMortems {
    fn drop(&mut self) {
        for running in &mut self.running {
            // On SIGTERM, the process undoes its changes of the target.
            running.signal(Signal::TERM);
            let _ = running.child.wait();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;
    use std::thread::sleep;

    use pagewise_model::Pid;
    use pagewise_model::sweep::{SweepTrigger, TriggerTarget};

    use super::*;

    fn fired(pid: u32) -> FiredTrigger {
        let process = ProcessKey { pid: Pid(pid), start_ticks: 1 };
        let (trigger, target) = (SweepTrigger::NearLimit, TriggerTarget::Machine);
        FiredTrigger { trigger, target, process: Some(process) }
    }

    /// Advances until no process runs and no file waits.
    fn all_results(post_mortems: &mut PostMortems, folder: &Path) -> PostMortemResults {
        let mut results = PostMortemResults::default();
        loop {
            post_mortems.advance(folder);
            results.append(post_mortems.take_results());
            if post_mortems.running.is_empty() && post_mortems.waiting.is_empty() {
                return results;
            }
            sleep(Duration::from_millis(2));
        }
    }

    /// Runs a script in place of pagewise: `$2` is the PID, the last argument is the file.
    fn with_program(folder: &Path, script: &str) -> PostMortems {
        let program = folder.join("program");
        std::fs::write(&program, format!("#!/bin/sh\n{script}\n")).unwrap();
        std::fs::set_permissions(&program, PermissionsExt::from_mode(0o755)).unwrap();
        let mut made = PostMortems::new();
        made.program = program;
        made
    }

    #[test]
    fn a_file_that_is_not_made_has_an_event_with_the_reason() {
        let folder = tempfile::tempdir().unwrap();
        let script = "case $1 in
            explain) echo 'pagewise: no process 7' >&2; echo more >&2; exit 1;;
            *) kill -KILL $$;;
        esac";
        let mut post_mortems = with_program(folder.path(), script);
        post_mortems.plan(&fired(7), 0);
        let results = all_results(&mut post_mortems, folder.path());
        let process = ProcessKey { pid: Pid(7), start_ticks: 1 };
        let failed =
            |kind, reason: &str| SweepEventKind::NotSaved { kind, process, reason: reason.into() };
        let expected = [
            failed(PostMortemKind::Snapshot, "no process 7"),
            failed(PostMortemKind::Diagnosis, "signal: 9 (SIGKILL)"),
        ];
        assert_eq!((results.saved, results.events), (Vec::new(), expected.to_vec()));
        post_mortems.program = folder.path().join("none");
        post_mortems.plan(&fired(7), 0);
        let results = all_results(&mut post_mortems, folder.path());
        assert!(format!("{:?}", results.events).contains("No such file"), "{results:?}");
    }

    #[test]
    fn all_snapshots_are_made_before_the_first_diagnosis_and_each_omitted_file_is_reported() {
        let folder = tempfile::tempdir().unwrap();
        let script = "echo $1 $2 >>\"${0%/*}/log\"; eval \": >\\\"\\${$#}\\\"\"";
        let mut post_mortems = with_program(folder.path(), script);
        for pid in 1..=70 {
            post_mortems.plan(&fired(pid), 0);
            post_mortems.plan(&fired(pid), 0);
        }
        let results = all_results(&mut post_mortems, folder.path());
        let log = std::fs::read_to_string(folder.path().join("log")).unwrap();
        let snapshots = (1..=64).map(|pid| format!("explain {pid}"));
        let diagnoses = (1..=8).map(|pid| format!("diagnose {pid}"));
        assert!(log.lines().eq(snapshots.chain(diagnoses)), "{log}");
        let files: Vec<_> = results.saved.iter().map(|(_, file)| file.as_str()).collect();
        assert_eq!(files.len(), 72);
        assert_eq!(files[0], "1970-01-01T00-00-00-near-limit-1-snapshot.json");
        let left_out = |wanted: PostMortemKind| {
            let is_it = |it: &&SweepEventKind| matches!(it, SweepEventKind::NotSaved { kind, .. } if *kind == wanted);
            results.events.iter().filter(is_it).count()
        };
        // Each process was planned twice, so each file beyond the limits is reported twice.
        let counts = [PostMortemKind::Snapshot, PostMortemKind::Diagnosis].map(left_out);
        assert_eq!(counts, [2 * 6, 2 * 62]);
    }

    #[test]
    fn a_diagnosis_that_takes_long_delays_no_snapshot() {
        let folder = tempfile::tempdir().unwrap();
        let script = "case $1 in diagnose) exec sleep 600;; esac
            eval \": >\\\"\\${$#}\\\"\"";
        let mut post_mortems = with_program(folder.path(), script);
        post_mortems.plan(&fired(1), 0);
        let snapshot_of = |post_mortems: &mut PostMortems| loop {
            post_mortems.advance(folder.path());
            if let Some((kind, _)) = post_mortems.take_results().saved.pop() {
                return kind;
            }
            sleep(Duration::from_millis(2));
        };
        assert_eq!(snapshot_of(&mut post_mortems), "snapshot");
        let kinds = |it: &PostMortems| it.running.iter().map(|it| it.of.kind).collect::<Vec<_>>();
        assert_eq!(kinds(&post_mortems), [PostMortemKind::Diagnosis]);
        post_mortems.plan(&fired(2), 0);
        assert_eq!(snapshot_of(&mut post_mortems), "snapshot");
        assert_eq!(kinds(&post_mortems), [PostMortemKind::Diagnosis]);
        assert_eq!(post_mortems.waiting.len(), 1);
        let diagnosis = &mut post_mortems.running[0];
        diagnosis.began -= SAVING_LIMIT + Duration::from_secs(1);
        diagnosis.signal(Signal::STOP);
        assert!(diagnosis.poll().is_none());
        diagnosis.began -= TIME_TO_END;
        let reason = loop {
            post_mortems.advance(folder.path());
            if let Some(event) = post_mortems.take_results().events.pop() {
                break format!("{event:?}");
            }
            sleep(Duration::from_millis(2));
        };
        assert!(reason.contains("it took longer than 300 s"), "{reason}");
    }
}
