//! Pins a thread to one CPU, so that a measured region does not move to a CPU with cold caches.

use std::io;
use std::marker::PhantomData;

use rustix::thread::{CpuSet, sched_getaffinity, sched_getcpu, sched_setaffinity};

use crate::error::MeasureError;

/// Keeps the calling thread on one CPU. Dropping the value restores the former affinity.
///
/// Threads that the pinned thread starts inherit its affinity and keep it for life.
#[derive(Debug)]
pub struct PinnedThread {
    before: CpuSet,
    cpu: u32,
    /// The value must be dropped on the thread that it pinned.
    not_send: PhantomData<*const ()>,
}

impl PinnedThread {
    /// Pins the calling thread to a CPU by its number.
    ///
    /// # Errors
    /// [`MeasureError::NotPinned`] for a CPU that does not exist or that this thread may not use.
    pub fn to(cpu: u32) -> Result<PinnedThread, MeasureError> {
        let failed = |error: io::Error| MeasureError::NotPinned { cpu, error };
        let number = usize::try_from(cpu).ok().filter(|cpu| *cpu < CpuSet::MAX_CPU);
        let number = number.ok_or_else(|| failed(io::ErrorKind::InvalidInput.into()))?;
        let before = sched_getaffinity(None).map_err(|error| failed(error.into()))?;
        let mut only = CpuSet::new();
        only.set(number);
        sched_setaffinity(None, &only).map_err(|error| failed(error.into()))?;
        Ok(PinnedThread { before, cpu, not_send: PhantomData })
    }

    /// Pins the calling thread to its present CPU.
    ///
    /// # Errors
    /// As [`PinnedThread::to`].
    pub fn here() -> Result<PinnedThread, MeasureError> {
        PinnedThread::to(u32::try_from(sched_getcpu()).unwrap_or(u32::MAX))
    }

    /// Number of the CPU.
    pub fn cpu(&self) -> u32 {
        self.cpu
    }
}

impl Drop for PinnedThread {
    fn drop(&mut self) {
        // Fails only if none of the former CPUs is allowed any more: then the kernel has chosen
        // others.
        let _ = sched_setaffinity(None, &self.before);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn allowed() -> Vec<usize> {
        let set = sched_getaffinity(None).unwrap();
        (0..CpuSet::MAX_CPU).filter(|cpu| set.is_set(*cpu)).collect()
    }

    #[test]
    fn a_thread_stays_on_its_cpu_and_may_leave_it_afterwards() {
        let before = allowed();
        for cpu in &before {
            let pinned = PinnedThread::to(u32::try_from(*cpu).unwrap()).unwrap();
            assert_eq!(allowed(), [*cpu]);
            assert_eq!(sched_getcpu(), usize::try_from(pinned.cpu()).unwrap());
        }
        assert_eq!(allowed(), before);
        let here = PinnedThread::here().unwrap();
        assert!(before.contains(&usize::try_from(here.cpu()).unwrap()));
    }

    #[test]
    fn a_cpu_that_is_not_there_is_an_error_and_changes_nothing() {
        let before = allowed();
        for cpu in [1023, 1024, u32::MAX] {
            let error = PinnedThread::to(cpu).unwrap_err();
            assert!(error.to_string().contains(&cpu.to_string()), "{error}");
        }
        assert_eq!(allowed(), before);
    }
}
