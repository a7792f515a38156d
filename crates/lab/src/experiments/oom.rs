//! Three processes in a cgroup that is too small for them: the smallest asks for more. Which one
//! does the kernel kill?

use std::fs;
use std::io::{PipeReader, PipeWriter, Read, Write};
use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

use pagewise_model::lab::{ExperimentClaim, Plot};
use pagewise_model::process::ProcessStatus;
use pagewise_model::report::{Label, AxisUnit};
use pagewise_model::{Absent, Bytes, Pid};
use pagewise_proc::{ProcRoot, status};
use pagewise_labmem::fork::{ForkedChild, fork};
use pagewise_labmem::mapping::{OwnedMapping, MapRequest};

use super::RunExperiment;
use crate::bench::{count, join};
use crate::error::While;
use crate::{ExperimentAbout, Bench, LabError, Need, ParameterAbout, QuantityAbout, ExperimentResults};

/// See [`ABOUT`].
pub(super) struct Oom;

static ABOUT: ExperimentAbout = ExperimentAbout {
    name: "oom",
    question: "Who dies when memory runs out?",
    expectation: "Not who asks, but who is worst: the kernel adds up the resident memory, swap and page tables of each process, and \
        for each point of its oom_score_adj a thousandth of all there is; here of what the cgroup may have. The largest dies. \
        A small process with +500 is worse than a large one; where others have +300, one of them dies before it. (Who has -1000, which \
        takes CAP_SYS_RESOURCE, is never chosen.)",
    figures: "",
    needs: &[Need::Root, Need::Cgroup],
    parameters: &[ParameterAbout {
        name: "mib",
        meaning: "the memory of the cgroup, in MiB",
        values: [64, 256, 1024],
    }],
    quantities: &[
        QuantityAbout { name: "died", unit: AxisUnit::Number, meaning: "process that was killed: 1 the large one, 2 the medium one, 3 the small one that allocates" },
        QuantityAbout { name: "predicted", unit: AxisUnit::Number, meaning: "process with the highest badness before the small one allocated more" },
        QuantityAbout { name: "large", unit: AxisUnit::Bytes, meaning: "badness of the large process: its memory as `oom_badness` counts it" },
        QuantityAbout { name: "medium", unit: AxisUnit::Bytes, meaning: "badness of the medium process" },
        QuantityAbout { name: "small", unit: AxisUnit::Bytes, meaning: "badness of the small process" },
    ],
    arms: &["as they are", "small one +500", "others +300"],
    runs: [3, 5, 10],
    timed: false,
    memory: |parameters| Bytes::mib(parameters.get("mib")),
};

/// The processes, and how much of the memory each has.
pub(super) const PROCESSES: [(&str, f64); 3] = [("large", 0.5), ("medium", 0.3), ("small", 0.1)];
/// Share that the small process allocates: together more than available.
const ASKED: f64 = 0.2;

/// A process that is not killed within this time survives.
const PATIENCE: Duration = Duration::from_secs(20);

impl RunExperiment for Oom {
    fn about(&self) -> &'static ExperimentAbout {
        &ABOUT
    }

    fn run(&self, arm: &str, bench: &mut Bench) -> Result<(), LabError> {
        let limit = Bytes::mib(bench.parameter("mib"));
        let cgroup = bench.make_cgroup(limit, false)?;
        let cgroup = cgroup.ok_or_else(|| LabError::Failed("no cgroup".to_owned()))?;
        let adjusted = adjusted(arm);
        let start = |at: usize| start(at, limit, adjusted[at], bench.page());
        let mut processes = [start(0)?, start(1)?, start(2)?];
        for process in &mut processes {
            join(&cgroup, process.child.pid())?;
            process.go_on()?;
        }
        let mut worst = Vec::new();
        for ((process, adjusted), (name, _)) in processes.iter().zip(adjusted).zip(PROCESSES) {
            let badness = badness(status_of(process.child.pid())?, adjusted, limit)?;
            bench.record(name, count(badness));
            worst.push(badness);
        }
        let predicted = (0..worst.len()).max_by_key(|at| worst[*at]);
        processes[2].tell()?;
        let died = first_to_die(&processes);
        let died = died.ok_or_else(|| LabError::Failed("no process was killed".to_owned()))?;
        bench.record("died", count(died as u64 + 1));
        bench.record("predicted", count(predicted.unwrap_or_default() as u64 + 1));
        Ok(())
    }

    fn judge(&self, results: &ExperimentResults<'_>) -> Vec<ExperimentClaim> {
        let who = |quantity: &'static str, arm| {
            let at = results.median(quantity, arm)?;
            PROCESSES.iter().zip(1..).find(|(_, number)| at == f64::from(*number)).map(|(row, _)| row.0)
        };
        let dies = |text: &'static str, arm: &'static str, expected: &'static str| {
            let found = who("died", arm).map(|name| (name == expected, the(name)));
            results.claim(text, "").holds(the(expected), found)
        };
        let mut claims = vec![
            dies("The largest dies, though the small one asked", "as they are", "large"),
            dies("A small one with oom_score_adj +500 dies before", "small one +500", "small"),
            dies("Raised by +300, the medium one dies before the large one", "others +300", "medium"),
        ];
        let all = ABOUT.arms.iter().map(|arm| Some((who("died", arm)?, who("predicted", arm)?)));
        let right = all.collect::<Option<Vec<_>>>().map(|all| {
            let right = all.iter().filter(|(died, predicted)| died == predicted).count();
            (right == all.len(), format!("{right} of {}", all.len()).into())
        });
        let text = "Memory, swap, page tables and the adjustment predict which process is killed";
        claims.push(results.claim(text, "").holds("in each condition", right));
        claims
    }

    fn plots(&self) -> Vec<Plot> {
        Vec::new()
    }
}

fn the(name: &str) -> Label {
    format!("the {name} one").into()
}

/// The `oom_score_adj` of each process in a condition.
pub(super) fn adjusted(arm: &str) -> [i64; 3] {
    match arm {
        "small one +500" => [0, 0, 500],
        "others +300" => [0, 300, 300],
        _ => [0; 3],
    }
}

/// A process that waits for messages.
pub(super) struct OomProcess {
    child: ForkedChild,
    ready: PipeReader,
    go: PipeWriter,
}

/// Starts one of the processes. On the first message it allocates its memory; on the second, it
/// asks for more.
pub(super) fn start(at: usize, limit: Bytes, adjusted: i64, page: usize) -> Result<OomProcess, LabError> {
    let (ready, done) = std::io::pipe().while_("cannot make a pipe")?;
    let (told, go) = std::io::pipe().while_("cannot make a pipe")?;
    let child = fork(move || {
        let live = || {
            fs::write("/proc/self/oom_score_adj", adjusted.to_string())?;
            let _first = when_told(&told, &done, part(limit, PROCESSES[at].1), page)?;
            let _more = when_told(&told, &done, part(limit, ASKED), page)?;
            thread::sleep(PATIENCE);
            Ok(())
        };
        u8::from(live().is_err_and(|_: std::io::Error| true))
    });
    Ok(OomProcess { child: child.while_("cannot start a process")?, ready, go })
}

/// Waits for a message, then touches memory and answers.
fn when_told(mut told: &PipeReader, mut done: &PipeWriter, length: usize, page: usize) -> std::io::Result<OwnedMapping> {
    told.read_exact(&mut [0])?;
    let length = length.next_multiple_of(page);
    let mapping = OwnedMapping::map(&MapRequest { length, ..MapRequest::default() })?;
    mapping.touch(0..length, page);
    done.write_all(&[0])?;
    Ok(mapping)
}

#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a part of a size is one")]
fn part(whole: Bytes, share: f64) -> usize {
    (count(whole.0) * share) as usize
}

/// A process that waits for a message must not outlive its parent.
impl Drop for OomProcess {
    fn drop(&mut self) {
        self.child.kill();
    }
}

impl OomProcess {
    pub(super) fn pid(&self) -> u32 {
        self.child.pid()
    }

    pub(super) fn tell(&mut self) -> Result<(), LabError> {
        self.go.write_all(&[0]).while_("cannot continue a process")
    }

    /// Sends a message, and waits until the process has its memory.
    pub(super) fn go_on(&mut self) -> Result<(), LabError> {
        self.tell()?;
        self.ready.read_exact(&mut [0]).while_("a process did not get its memory")
    }
}

/// Content of `/proc/PID/status`.
fn status_of(pid: u32) -> Result<ProcessStatus, LabError> {
    let text = ProcRoot::live().read(Pid(pid), "status");
    Ok(status::parse(&text.map_err(|error| LabError::Failed(error.to_string()))?).status)
}

/// Badness in the kernel, in bytes: `oom_badness` of `mm/oom_kill.c`.
fn badness(status: ProcessStatus, adjusted: i64, limit: Bytes) -> Result<u64, LabError> {
    let parts = [status.rss_anon, status.rss_file, status.rss_shmem, status.vm_swap, status.vm_pte];
    let sum: Result<Bytes, Absent> = parts.into_iter().sum();
    let sum = sum.map_err(|absent| LabError::Failed(absent.to_string()))?.0;
    let points = i64::try_from(limit.0).unwrap_or(i64::MAX) / 1000 * adjusted;
    Ok(sum.saturating_add_signed(points))
}

/// Index of the process that is killed first.
pub(super) fn first_to_die(processes: &[OomProcess]) -> Option<usize> {
    let deadline = Instant::now() + PATIENCE;
    while Instant::now() < deadline {
        let died = processes.iter().position(|process| is_dead(process.child.pid()));
        if died.is_some() {
            return died;
        }
        thread::sleep(Duration::from_millis(1));
    }
    None
}

/// True if nothing is left of a process but its exit status: no memory.
fn is_dead(pid: u32) -> bool {
    let path = Path::new("/proc").join(pid.to_string()).join("statm");
    fs::read_to_string(path).map_or(true, |text| text.starts_with("0 "))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_adjustment_is_a_share_of_the_limit() {
        let status = status_of(std::process::id()).unwrap();
        let own = |adjusted| badness(status.clone(), adjusted, Bytes::mib(1000)).unwrap();
        assert!(own(500) - own(0) > 490 << 20);
    }
}
