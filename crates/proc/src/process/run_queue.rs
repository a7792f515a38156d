//! `/proc/PID/task/TID/schedstat`: the time for which a thread ran, and the time for which it
//! waited for a CPU.

use std::collections::HashMap;
use std::time::Instant;

use pagewise_model::evidence::CpuWaits;
use pagewise_model::{Absent, Pid, Reading};

use crate::ProcRoot;
use crate::text::number;

/// Maximum number of threads that are read. The other threads of a process are likely to be
/// similar.
const MAX_THREADS: usize = 64;

/// Times of the threads of a process since the start of each thread.
#[derive(Clone, Debug)]
pub struct RunQueueTimes {
    threads: HashMap<Pid, CpuWaits>,
    read_at: Instant,
}

impl RunQueueTimes {
    /// Reads the times.
    ///
    /// # Errors
    /// [`Absent`] if the threads of the process cannot be listed, or if the times of no thread can
    /// be read.
    pub fn read(root: &ProcRoot, pid: Pid) -> Reading<RunQueueTimes> {
        let threads = root.tids(pid)?.into_iter().take(MAX_THREADS);
        let times = threads.filter_map(|tid| {
            let text = root.read(pid, &format!("task/{tid}/schedstat")).ok()?;
            Some((tid, parse(&text)?))
        });
        let times: HashMap<Pid, CpuWaits> = times.collect();
        if times.is_empty() {
            return Err(Absent::NotSupported(
                "no thread has a schedstat (CONFIG_SCHED_INFO)".into(),
            ));
        }
        Ok(RunQueueTimes { threads: times, read_at: Instant::now() })
    }

    /// Returns the sum over all threads of this reading of the times since the reading `before`, or
    /// since the start of a thread that is new.
    pub fn since(&self, before: &RunQueueTimes) -> CpuWaits {
        let span = self.read_at.saturating_duration_since(before.read_at).as_nanos();
        let span_ns = u64::try_from(span).unwrap_or(u64::MAX);
        let mut sum = CpuWaits::default();
        let mut undelayed = 0_u64;
        for (tid, now) in &self.threads {
            let before = before.threads.get(tid).copied().unwrap_or_default();
            let ran = now.ran_ns.saturating_sub(before.ran_ns);
            let waited = now.waited_ns.saturating_sub(before.waited_ns);
            sum.ran_ns = sum.ran_ns.saturating_add(ran);
            sum.waited_ns = sum.waited_ns.saturating_add(waited);
            undelayed = undelayed.saturating_add(CpuWaits::undelayed(ran, waited, span_ns));
        }
        sum.undelayed_ns = Some(undelayed);
        sum
    }
}

/// Parses the first two numbers, in nanoseconds: the time of running and the time of waiting for a
/// CPU.
fn parse(text: &[u8]) -> Option<CpuWaits> {
    let mut words = text.trim_ascii().split(u8::is_ascii_whitespace);
    let mut next = || number(words.next()?);
    Some(CpuWaits { ran_ns: next()?, waited_ns: next()?, undelayed_ns: None })
}

#[cfg(test)]
mod tests {
    use pagewise_skip::{Lack, skip};

    use super::*;

    #[test]
    fn a_line_has_the_cpu_time_and_the_waits() {
        let times = parse(b"400 90 7\n").map(|it| (it.ran_ns, it.waited_ns));
        assert_eq!(times, Some((400, 90)));
        assert_eq!(parse(b"400\n"), None);
        assert_eq!(parse(b"a b c\n"), None);
    }

    #[test]
    fn threads_that_ended_meanwhile_are_left_out() {
        let (before, now) =
            (times(&[(1, 10, 1), (2, 500, 500)], 0), times(&[(1, 30, 5), (3, 7, 2)], 100));
        let since = now.since(&before);
        assert_eq!((since.ran_ns, since.waited_ns), (27, 6));
    }

    /// Times of threads: their TID, their CPU time and their waits.
    fn times(of: &[(u32, u64, u64)], at_ns: u64) -> RunQueueTimes {
        static START: std::sync::LazyLock<Instant> = std::sync::LazyLock::new(Instant::now);
        let waits = |ran_ns, waited_ns| CpuWaits { ran_ns, waited_ns, undelayed_ns: None };
        RunQueueTimes {
            threads: of.iter().map(|&(tid, ran, waited)| (Pid(tid), waits(ran, waited))).collect(),
            read_at: *START + std::time::Duration::from_nanos(at_ns),
        }
    }

    #[test]
    fn waits_of_a_thread_that_sleeps_between_its_work_delay_it_little() {
        const SECOND: u64 = 1_000_000_000;
        let demand = |ran, waited| {
            let before = times(&[(1, 0, 0)], 0);
            times(&[(1, ran, waited)], 10 * SECOND).since(&before).demand()
        };
        assert!((demand(SECOND, 9 * SECOND) - 10.0).abs() < 0.01, "it never sleeps");
        assert!((demand(SECOND / 100, 2 * SECOND) - 1.25).abs() < 0.01, "it mostly sleeps");
        assert!((demand(SECOND, 11 * SECOND) - 10.0).abs() < 0.01, "a wait that began before");
    }

    #[test]
    fn the_cpu_time_of_this_process_grows_with_its_work() {
        let root = ProcRoot::live();
        let pid = root.ourselves().unwrap();
        let Ok(before) = RunQueueTimes::read(&root, pid) else {
            return skip(&Lack::KernelFile("/proc/self/schedstat"));
        };
        let mut sum = 0_u64;
        let since = loop {
            sum = (0..1_000_000).fold(sum, |sum, at| std::hint::black_box(sum ^ at));
            let since = RunQueueTimes::read(&root, pid).unwrap().since(&before);
            if since.ran_ns > 5_000_000 {
                break since;
            }
        };
        assert!(since.demand() >= 1.0, "{since:?}");
    }
}
