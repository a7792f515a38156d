//! `/proc/PID/task/TID/schedstat`: time that threads ran, and that they waited for a CPU.

use std::collections::HashMap;

use pagewise_model::evidence::CpuWaits;
use pagewise_model::{Absent, Pid, Reading};

use crate::ProcRoot;
use crate::text::number;

/// Maximum number of threads that are read. The other threads of a process are likely to be
/// similar.
const MAX_THREADS: usize = 64;

/// Times of the threads of a process since the start of each thread.
#[derive(Clone, Debug, Default)]
pub struct RunQueueTimes(HashMap<Pid, CpuWaits>);

impl RunQueueTimes {
    /// Reads the times.
    ///
    /// # Errors
    /// [`Absent`] if the threads of the process cannot be listed, or none has its times.
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
        Ok(RunQueueTimes(times))
    }

    /// The times since an earlier reading, of the threads that are still there.
    pub fn since(&self, before: &RunQueueTimes) -> CpuWaits {
        let mut sum = CpuWaits::default();
        for (tid, now) in &self.0 {
            let before = before.0.get(tid).copied().unwrap_or_default();
            sum.ran_ns += now.ran_ns.saturating_sub(before.ran_ns);
            sum.waited_ns += now.waited_ns.saturating_sub(before.waited_ns);
        }
        sum
    }
}

/// Parses the first two numbers, in nanoseconds: the time of running and the time of waiting for a
/// CPU.
fn parse(text: &[u8]) -> Option<CpuWaits> {
    let mut words = text.trim_ascii().split(u8::is_ascii_whitespace);
    let mut next = || number(words.next()?);
    Some(CpuWaits { ran_ns: next()?, waited_ns: next()? })
}

#[cfg(test)]
mod tests {
    use pagewise_skip::{Lack, skip};

    use super::*;

    #[test]
    fn a_line_has_the_cpu_time_and_the_waits() {
        assert_eq!(parse(b"400 90 7\n"), Some(CpuWaits { ran_ns: 400, waited_ns: 90 }));
        assert_eq!(parse(b"400\n"), None);
        assert_eq!(parse(b"a b c\n"), None);
    }

    #[test]
    fn threads_that_ended_meanwhile_are_left_out() {
        let times = |of: &[(u32, u64, u64)]| {
            let each = of
                .iter()
                .map(|&(tid, ran_ns, waited_ns)| (Pid(tid), CpuWaits { ran_ns, waited_ns }));
            RunQueueTimes(each.collect())
        };
        let (before, now) = (times(&[(1, 10, 1), (2, 500, 500)]), times(&[(1, 30, 5), (3, 7, 2)]));
        assert_eq!(now.since(&before), CpuWaits { ran_ns: 27, waited_ns: 6 });
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
