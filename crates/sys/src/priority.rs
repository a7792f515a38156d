//! Short pieces of work that threads of normal priority do not preempt.
//!
//! A thread that is preempted inside a system call keeps its kernel locks. On a busy machine the
//! thread waits for tens of milliseconds until it runs again. A program whose `mmap` lock the
//! thread holds waits as long.

use std::cell::RefCell;
use std::io;
use std::marker::PhantomData;

/// The lowest real-time priority: every other real-time thread preempts this thread.
const LOWEST: libc::c_int = 1;

/// Permission of this thread to run at real-time priority, for which it needs `CAP_SYS_NICE` or an
/// `RLIMIT_RTPRIO`.
#[derive(Debug)]
pub struct Priority {
    /// Makes the type `!Send`: the policy belongs to a thread, so the value must stay on that
    /// thread.
    _on_this_thread: PhantomData<*const ()>,
}

impl Priority {
    /// Checks that this thread may run at real-time priority. `None` if it may not, or if its
    /// scheduling policy is not `SCHED_OTHER`.
    pub fn of_this_thread() -> Option<Priority> {
        // SAFETY: the call takes a thread ID, where 0 is this thread, and no pointer.
        let policy = unsafe { libc::sched_getscheduler(0) };
        if policy != libc::SCHED_OTHER {
            return None;
        }
        let priority = Priority { _on_this_thread: PhantomData };
        set(libc::SCHED_FIFO, LOWEST).ok()?;
        priority.lower();
        Some(priority)
    }

    /// Runs a short piece of work at real-time priority; if that is refused, at the previous
    /// priority.
    pub fn raised<T>(&self, work: impl FnOnce() -> T) -> T {
        /// Lowers the priority when dropped, also if the work panics.
        struct Lower<'a>(&'a Priority);
        impl Drop for Lower<'_> {
            fn drop(&mut self) {
                self.0.lower();
            }
        }
        let _lower = set(libc::SCHED_FIFO, LOWEST).is_ok().then_some(Lower(self));
        work()
    }

    /// Restores `SCHED_OTHER`. Every thread may lower its priority.
    fn lower(&self) {
        let lowered = set(libc::SCHED_OTHER, 0);
        debug_assert!(lowered.is_ok(), "{lowered:?}");
    }
}

/// Runs a short piece of work at real-time priority, if this thread may run at that priority. A
/// nested call in `work` does not change the priority.
pub fn briefly_raised<T>(work: impl FnOnce() -> T) -> T {
    /// Permission of a thread to run at real-time priority. The cell stays borrowed while the
    /// priority is raised, so that a nested call detects this.
    enum Permission {
        Unknown,
        Refused,
        Given(Priority),
    }
    thread_local! {
        static PERMISSION: RefCell<Permission> = const { RefCell::new(Permission::Unknown) };
    }
    PERMISSION.with(|permission| {
        let Ok(mut permission) = permission.try_borrow_mut() else { return work() };
        if matches!(*permission, Permission::Unknown) {
            let given = Priority::of_this_thread();
            *permission = given.map_or(Permission::Refused, Permission::Given);
        }
        match &*permission {
            Permission::Given(priority) => priority.raised(work),
            Permission::Refused | Permission::Unknown => work(),
        }
    })
}

/// Runs a piece of work that is too long for [`briefly_raised`] at the lowest niceness, if this
/// thread may lower its niceness: other threads of normal priority then get little CPU time, but
/// real-time threads still preempt the work. Threads that the work starts inherit the niceness.
pub fn favored<T>(work: impl FnOnce() -> T) -> T {
    /// Restores the niceness when dropped, also if the work panics.
    struct Restore(libc::c_int);
    impl Drop for Restore {
        fn drop(&mut self) {
            let _ = set_niceness(self.0);
        }
    }
    const LOWEST_NICENESS: libc::c_int = -20;
    let before = niceness();
    let _restore = set_niceness(LOWEST_NICENESS).is_ok().then_some(Restore(before));
    work()
}

/// Niceness of this thread.
fn niceness() -> libc::c_int {
    // SAFETY: the call takes a thread ID, where 0 is this thread, and no pointer.
    unsafe { libc::getpriority(libc::PRIO_PROCESS, 0) }
}

/// Sets the niceness of this thread. Every thread may increase its niceness.
fn set_niceness(niceness: libc::c_int) -> io::Result<()> {
    // SAFETY: the call takes a thread ID, where 0 is this thread, and no pointer.
    match unsafe { libc::setpriority(libc::PRIO_PROCESS, 0, niceness) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Sets the scheduling policy and the real-time priority of this thread.
fn set(policy: libc::c_int, priority: libc::c_int) -> io::Result<()> {
    let parameter = libc::sched_param { sched_priority: priority };
    // SAFETY: `parameter` outlives the call, which only reads it; thread ID 0 is this thread.
    match unsafe { libc::sched_setscheduler(0, policy, &raw const parameter) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

#[cfg(test)]
mod tests {
    use pagewise_skip::{Lack, skip};

    use super::*;

    /// The policy of this thread, as the kernel prints it: the 41st field of its `stat`.
    fn policy() -> i32 {
        let text = std::fs::read_to_string("/proc/thread-self/stat").unwrap();
        text.rsplit(") ").next().unwrap().split(' ').nth(38).unwrap().parse().unwrap()
    }

    #[test]
    fn the_priority_is_raised_for_the_work_alone() {
        // The tests may be started with another policy, such as SCHED_IDLE.
        let _ = set(libc::SCHED_OTHER, 0);
        let before = policy();
        let Some(priority) = Priority::of_this_thread() else {
            let error = set(libc::SCHED_FIFO, LOWEST).unwrap_err();
            return skip(&Lack::Refused { call: "sched_setscheduler", error: &error });
        };
        assert_eq!(policy(), before);
        assert_eq!(priority.raised(policy), libc::SCHED_FIFO);
        assert_eq!(policy(), before);
        let nested = briefly_raised(|| (briefly_raised(policy), policy()));
        assert_eq!(nested, (libc::SCHED_FIFO, libc::SCHED_FIFO));
        assert_eq!(policy(), before);
        let panics = std::panic::AssertUnwindSafe(|| priority.raised(|| panic!("on purpose")));
        assert!(std::panic::catch_unwind(panics).is_err());
        assert_eq!(policy(), before);
    }

    #[test]
    fn long_work_and_its_threads_have_the_lowest_niceness_if_permitted() {
        let before = niceness();
        let found = favored(|| {
            let of_thread = std::thread::spawn(niceness).join().unwrap();
            (niceness(), of_thread)
        });
        assert_eq!(niceness(), before);
        if found == (before, before) && before > -20 {
            let error = set_niceness(-20).unwrap_err();
            return skip(&Lack::Refused { call: "setpriority", error: &error });
        }
        assert_eq!(found, (-20, -20));
        let panics = std::panic::AssertUnwindSafe(|| favored(|| panic!("on purpose")));
        assert!(std::panic::catch_unwind(panics).is_err());
        assert_eq!(niceness(), before);
    }
}
