//! The loop of the recorder, which makes sweeps: readings of all processes.

use std::process::ExitCode;
use std::thread::sleep;
use std::time::{Duration, Instant};

use anyhow::bail;
use pagewise_model::Bytes;
use pagewise_model::sweep::{SweepEventKind, TriggerTarget};
use pagewise_model::units::nanoseconds;
use pagewise_proc::{ProcRoot, target_file};
use pagewise_sampler::{Sampler, SamplerOptions, SweepOutcome, TriggerLimits, TriggerWatch};
use pagewise_store::{RecordWriter, RetentionLimits, WriterOptions, apply_retention};
use pagewise_sys::interrupt::NotedInterrupts;
use pagewise_sys::{own_memory, system};

use super::args::{RecorderArgs, TriggerArgs};
use super::category_round::CategoryRound;
use super::oom_reports::OomReports;
use super::post_mortems::{PostMortemResults, PostMortems};
use super::times;
use crate::output::{note, note_begin};

/// Time between two checks for a signal.
const TURN: Duration = Duration::from_millis(250);
/// Time between two checks of the sizes of files.
const RETENTION_EVERY: Duration = Duration::from_secs(600);
/// Minimum time between two sweeps.
const MIN_INTERVAL: Duration = Duration::from_millis(100);
/// Maximum number of trigger events that are kept while the disk is full.
const MAX_UNWRITTEN: usize = 4000;
/// Minimum time between two messages about the same failure.
const MESSAGE_EVERY: Duration = Duration::from_secs(3600);

/// Records until a signal arrives.
pub(super) fn run(args: &RecorderArgs) -> anyhow::Result<ExitCode> {
    if args.every < MIN_INTERVAL {
        bail!("--every needs at least {}", humantime::format_duration(MIN_INTERVAL));
    }
    let root = ProcRoot::live();
    if !root.has_our_ids() {
        bail!("/proc is of another pid namespace: its processes cannot be recorded from here");
    }
    let interrupts = NotedInterrupts::note_all();
    system::open_more_files();
    let mut recorder = Recorder::new(&root, args)?;
    note_begin(
        format_args!(
            "all processes every {} in {}",
            humantime::format_duration(args.every),
            recorder.writer.folder().display()
        ),
        args.during,
    );
    let began = Instant::now();
    let is_over =
        || interrupts.came() || args.during.is_some_and(|during| began.elapsed() >= during);
    let mut due = Instant::now();
    // The code that parses options and opens the recording is not needed again.
    own_memory::release_unused();
    let mut is_first = true;
    while !is_over() {
        recorder.sweep(&root)?;
        if std::mem::take(&mut is_first) {
            // The memory of the first sweep, in which all processes are new, is not needed again.
            own_memory::release_unused();
        }
        due += args.every;
        // After a delay, for example a suspend of the machine, missed sweeps are skipped.
        due = due.max(Instant::now());
        while !is_over() && Instant::now() < due {
            sleep(TURN.min(due.saturating_duration_since(Instant::now())));
            recorder.post_mortems.advance(recorder.writer.folder());
        }
    }
    recorder.writer.close()?;
    Ok(ExitCode::SUCCESS)
}

struct Recorder {
    sampler: Sampler,
    writer: RecordWriter,
    triggers: Option<TriggerWatch>,
    categories: CategoryRound,
    post_mortems: PostMortems,
    oom_reports: OomReports,
    /// Events of triggers that are not in the recording yet, because the disk was full.
    unwritten: PostMortemResults,
    retention: RetentionLimits,
    retained: Option<Instant>,
    complained: Option<Instant>,
    interval_ns: u64,
}

impl Recorder {
    fn new(root: &ProcRoot, args: &RecorderArgs) -> anyhow::Result<Recorder> {
        let options = SamplerOptions {
            interval: args.every,
            page_share: args.budget / 100.0,
            ..SamplerOptions::default()
        };
        let max_size = Bytes(args.max_size);
        // The retention deletes whole files. Small parts keep the recording close to its maximum
        // size.
        let part_size = Bytes((args.max_size / 8).clamp(1 << 20, 1 << 28));
        let options_of_writer = WriterOptions { part_size, ..WriterOptions::default() };
        let mut writer = RecordWriter::open(&times::folder(&args.folder), options_of_writer)?;
        // The recorder reads the categories of this process, and of readers of the recording. Both
        // map a file on which this process has POSIX locks: opening and closing the file would
        // release them.
        writer.on_open(|file| target_file::keep_locks_of(file.paths().into()));
        Ok(Recorder {
            writer,
            sampler: Sampler::new(root, options)?,
            triggers: limits(&args.triggers).map(TriggerWatch::new),
            categories: CategoryRound::default(),
            post_mortems: PostMortems::new(),
            oom_reports: OomReports::new(root),
            unwritten: PostMortemResults::default(),
            retention: RetentionLimits { days: args.keep.into(), size: max_size },
            retained: None,
            complained: None,
            interval_ns: nanoseconds(args.every),
        })
    }

    /// Reads all processes once, and writes the result. A full disk does not end the recorder.
    fn sweep(&mut self, root: &ProcRoot) -> anyhow::Result<()> {
        let SweepOutcome { sweep, events } = self.sampler.sweep()?;
        let written = self.writer.append(&sweep, &events);
        let is_written = written.is_ok();
        self.complain(written.err());
        let samples = self.categories.read(root, &sweep, self.interval_ns);
        let unwritten = &mut self.unwritten;
        if events.iter().any(|it| matches!(it.event, SweepEventKind::OomKill { .. })) {
            unwritten.events.extend(self.oom_reports.take(root));
        }
        if let Some(triggers) = &mut self.triggers {
            for fired in triggers.check(&sweep) {
                self.post_mortems.plan(&fired, sweep.time.unix_ns);
                note(format_args!("trigger {}: {}", fired.trigger.key(), shown(&fired.target)));
                let (trigger, target) = (fired.trigger, fired.target);
                unwritten.events.push(SweepEventKind::Triggered { trigger, target });
            }
        }
        self.post_mortems.advance(self.writer.folder());
        unwritten.append(self.post_mortems.take_results());
        if is_written {
            let PostMortemResults { saved, events } = unwritten;
            if !(samples.is_empty() && events.is_empty() && saved.is_empty()) {
                let written = self.writer.append_to_last(&samples, events, saved);
                match written {
                    Ok(()) => *unwritten = PostMortemResults::default(),
                    Err(error) => self.complain(Some(error)),
                }
            }
        }
        self.unwritten.events.truncate(MAX_UNWRITTEN);
        self.retain();
        Ok(())
    }

    fn retain(&mut self) {
        if self.retained.is_some_and(|at| at.elapsed() < RETENTION_EVERY) {
            return;
        }
        self.retained = Some(Instant::now());
        let folder = self.writer.folder();
        if let Err(error) = apply_retention(folder, self.retention, self.writer.current()) {
            note(error);
        }
    }

    fn complain(&mut self, error: Option<pagewise_store::StoreError>) {
        let Some(error) = error else { return };
        if self.complained.is_none_or(|at| at.elapsed() >= MESSAGE_EVERY) {
            note(format_args!("cannot write the sweep: {error}"));
            self.complained = Some(Instant::now());
        }
    }
}

fn limits(args: &TriggerArgs) -> Option<TriggerLimits> {
    let limits = TriggerLimits {
        growth: Bytes(args.growth),
        pressure: args.pressure / 100.0,
        near_limit: args.near_limit / 100.0,
        ..TriggerLimits::default()
    };
    (!args.no_triggers).then_some(limits)
}

fn shown(target: &TriggerTarget) -> String {
    match target {
        TriggerTarget::Process(key) => format!("process {}", key.pid),
        TriggerTarget::Cgroup(path) => format!("cgroup {}", path.escaped()),
        TriggerTarget::Machine => "the machine".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::MetadataExt;

    use clap::{Args as _, Command, FromArgMatches as _};

    use super::super::category_round::read_process;
    use super::*;

    /// Returns the number of locks of this process on each file of the recording.
    fn locks(recorder: &Recorder) -> Vec<usize> {
        let text = fs::read_to_string("/proc/locks").unwrap();
        let pid = std::process::id().to_string();
        let paths = recorder.writer.current().unwrap().paths();
        let count = |path| {
            let inode = format!(":{}", fs::metadata(path).unwrap().ino());
            let is_of_it = |line: &&str| {
                let words: Vec<&str> = line.split_whitespace().collect();
                words.get(4) == Some(&pid.as_str()) && words[5].ends_with(&inode)
            };
            text.lines().filter(is_of_it).count()
        };
        paths.map(count).to_vec()
    }

    #[test]
    fn a_recorder_that_reads_its_own_process_keeps_its_locks() {
        let folder = tempfile::tempdir().unwrap();
        let command = RecorderArgs::augment_args(Command::new("record"));
        let words = ["record", "--no-triggers", "--dir", folder.path().to_str().unwrap()];
        let args = RecorderArgs::from_arg_matches(&command.get_matches_from(words)).unwrap();
        let root = ProcRoot::live();
        let mut recorder = Recorder::new(&root, &args).unwrap();
        recorder.sweep(&root).unwrap();
        let before = locks(&recorder);
        // One lock on the database, and one on the shared memory of the database.
        assert_eq!(before, [1, 0, 1]);
        let sweep = recorder.sampler.sweep().unwrap().sweep;
        let own = sweep.processes.iter().find(|it| it.key.pid.0 == std::process::id()).unwrap();
        let categories = read_process(&root, own.key).unwrap();
        assert!(!categories.is_empty());
        assert_eq!(locks(&recorder), before);
    }
}
