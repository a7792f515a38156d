//! Resources that a process, its control groups and the machine have left for one more child.
//! Decides nothing.

use std::fs;
use std::os::unix::ffi::OsStrExt;

use pagewise_model::{Bytes, Pid, Reading};

use crate::text::{lines, number};
use crate::{ProcRoot, cgroup, limits, meminfo, status};

/// Limits for one more child. A limit that cannot be read counts as no limit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ForkRoom {
    /// `MemAvailable`.
    pub available: Reading<Bytes>,
    /// Bytes that the memory cgroups of the process may still be charged with: the least of all up
    /// to the root.
    pub cgroup: Option<Bytes>,
    /// Number of tasks that the pids cgroups of the process may still get.
    pub cgroup_tasks: Option<u64>,
    /// Number of tasks that the user of the process may still have (`RLIMIT_NPROC`).
    pub user_tasks: Option<u64>,
    /// Bytes that may still be committed, if `vm.overcommit_memory` is 2.
    pub commit: Option<Bytes>,
    /// A thread that waits for its child of `vfork`, which uses the memory of the process.
    pub in_vfork: Option<Pid>,
    /// True if the process handles page faults itself (userfaultfd).
    pub handles_faults: bool,
}

impl ForkRoom {
    /// Reads all of it.
    pub fn read(root: &ProcRoot, pid: Pid) -> ForkRoom {
        let meminfo = root.machine("meminfo");
        let line =
            |name| meminfo.as_ref().map_err(Clone::clone).and_then(|it| meminfo::parse(it, name));
        let overcommit = root.machine("sys/vm/overcommit_memory").ok().and_then(|it| number(&it));
        let commit = line("CommitLimit").ok().zip(line("Committed_AS").ok());
        ForkRoom {
            available: line("MemAvailable"),
            cgroup: cgroup::memory_left(root, pid),
            cgroup_tasks: cgroup::tasks_left(root, pid),
            user_tasks: user_tasks(root, pid),
            commit: commit
                .filter(|_| overcommit == Some(2))
                .map(|(limit, committed)| limit.saturating_sub(committed)),
            in_vfork: in_vfork(root, pid),
            handles_faults: handles_faults(root, pid),
        }
    }
}

/// Number of tasks that the user of a process may still have; `None` without a limit.
fn user_tasks(root: &ProcRoot, pid: Pid) -> Option<u64> {
    let limit = limits::max_processes(&root.read(pid, "limits").ok()?)?;
    let of = |pid: Pid| Some(status::parse(&root.read(pid, "status").ok()?));
    let text = root.read(pid, "status").ok()?;
    let user = status::parse(&text).uid?;
    // The kernel exempts root, and these two capabilities (kernel/fork.c).
    if user == 0 || has_right_to_fork(&text) {
        return None;
    }
    let all = root.pids().ok()?.into_iter().filter_map(of);
    let tasks: u64 = all.filter(|it| it.uid == Some(user)).filter_map(|it| it.threads).sum();
    Some(limit.saturating_sub(tasks))
}

/// True if the `CapEff` of a `status` has CAP_SYS_ADMIN or CAP_SYS_RESOURCE.
fn has_right_to_fork(status: &[u8]) -> bool {
    const RIGHTS: u64 = 1 << 21 | 1 << 24;
    let line = lines(status).find_map(|(_, line)| line.strip_prefix(b"CapEff:"));
    let mask = line.and_then(|mask| std::str::from_utf8(mask.trim_ascii()).ok());
    mask.and_then(|mask| u64::from_str_radix(mask, 16).ok()).is_some_and(|it| it & RIGHTS != 0)
}

/// A thread that sleeps uninterruptibly in a call that creates a task: `vfork` sleeps in this state
/// until the child executes a program or ends.
fn in_vfork(root: &ProcRoot, pid: Pid) -> Option<Pid> {
    /// `clone`, `vfork` and `clone3` on x86-64.
    const CALLS: [&[u8]; 3] = [b"56", b"58", b"435"];
    let tids = root.tids(pid).ok()?;
    tids.into_iter().find(|tid| {
        let state = root.read(pid, &format!("task/{tid}/stat")).unwrap_or_default();
        let is_waiting = crate::stat::parse(&state).is_ok_and(|stat| stat.state == 'D');
        let call = || root.read(pid, &format!("task/{tid}/syscall")).unwrap_or_default();
        is_waiting
            && call().split(|&byte| byte == b' ').next().is_some_and(|it| CALLS.contains(&it))
    })
}

fn handles_faults(root: &ProcRoot, pid: Pid) -> bool {
    let links = fs::read_dir(root.file(pid, "fd")).into_iter().flatten();
    let mut targets = links.filter_map(|entry| fs::read_link(entry.ok()?.path()).ok());
    targets.any(|target| target.as_os_str().as_bytes() == b"anon_inode:[userfaultfd]")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn two_rights_except_a_process_from_the_limit_of_its_user() {
        assert!(has_right_to_fork(b"Name:\tx\nCapEff:\t0000000000200000\n"));
        assert!(has_right_to_fork(b"CapEff:\t000001ffffffffff\n"));
        assert!(!has_right_to_fork(b"CapEff:\t00000000a80425fb\n"));
        assert!(!has_right_to_fork(b""));
    }

    #[test]
    fn this_process_has_room_for_a_child() {
        let root = ProcRoot::live();
        let room = ForkRoom::read(&root, Pid(std::process::id()));
        assert!(room.available.is_ok());
        assert_eq!((room.in_vfork, room.handles_faults), (None, false));
    }
}
