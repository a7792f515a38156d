//! A seccomp filter that stops a process at chosen system calls and lets the kernel execute all
//! other system calls at full speed.
//!
//! A process and its descendants never lose the filter, and without a tracer the chosen calls fail
//! with ENOSYS. So the tracer must stay until all of these processes have ended.

use std::io;

use crate::system::{CapabilitySet, has_capability};

/// Offsets of the system call number and of the `AUDIT_ARCH_*` in `struct seccomp_data` of
/// `linux/seccomp.h`.
const NUMBER: u32 = 0;
const ARCHITECTURE: u32 = 4;

/// Instructions: load a word of `struct seccomp_data`, jump if it equals a constant, return an
/// action.
const LOAD: u32 = libc::BPF_LD | libc::BPF_W | libc::BPF_ABS;
const IF_EQUAL: u32 = libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K;
const ANSWER: u32 = libc::BPF_RET | libc::BPF_K;

/// A filter that a child installs before it executes its program.
#[derive(Debug)]
pub(super) struct SeccompFilter {
    program: Vec<libc::sock_filter>,
    no_new_privs: bool,
}

impl SeccompFilter {
    /// Returns a filter that selects system calls of one architecture by number. Without
    /// CAP_SYS_ADMIN, the kernel installs a filter only with `no_new_privs`, and set-user-ID
    /// programs then gain no privileges. A tracer without CAP_SYS_PTRACE prevents the same gain, so
    /// `no_new_privs` then changes nothing. With CAP_SYS_PTRACE it would change the behavior of the
    /// program, and the function returns `None`.
    pub(super) fn picking(
        architecture: u32,
        numbers: impl Iterator<Item = u32>,
    ) -> Option<SeccompFilter> {
        let is_free = has_capability(CapabilitySet::SYS_ADMIN)
            || rustix::thread::no_new_privs().unwrap_or(false);
        let costs_nothing_more = !has_capability(CapabilitySet::SYS_PTRACE);
        (is_free || costs_nothing_more).then(|| SeccompFilter {
            program: program(architecture, numbers),
            no_new_privs: !is_free,
        })
    }

    /// Installs the filter in this process. This function is async-signal-safe.
    ///
    /// # Errors
    /// `EINVAL`, `ENOSYS` if the kernel has no seccomp filters; `EACCES` without permission.
    pub(super) fn install(&self) -> io::Result<()> {
        if self.no_new_privs {
            // SAFETY: this option takes numbers only.
            let done = unsafe { libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) };
            if done == -1 {
                return Err(io::Error::last_os_error());
            }
        }
        let program = libc::sock_fprog {
            len: u16::try_from(self.program.len()).unwrap_or(0),
            filter: self.program.as_ptr().cast_mut(),
        };
        // Without SPEC_ALLOW some kernels slow the whole program down by mitigations for sandboxes.
        // SAFETY: `program` points to `len` instructions, which the kernel copies and checks.
        let done = unsafe {
            libc::syscall(
                libc::SYS_seccomp,
                libc::SECCOMP_SET_MODE_FILTER,
                libc::SECCOMP_FILTER_FLAG_SPEC_ALLOW,
                &raw const program,
            )
        };
        if done == -1 { Err(io::Error::last_os_error()) } else { Ok(()) }
    }
}

/// Program of the filter: `if architecture matches and number is in numbers: stop; else: allow`.
fn program(architecture: u32, numbers: impl Iterator<Item = u32>) -> Vec<libc::sock_filter> {
    let step = |code: u32, k, jt, jf| libc::sock_filter {
        code: u16::try_from(code).expect("codes are small"),
        jt,
        jf,
        k,
    };
    let numbers: Vec<u32> = numbers.collect();
    let count = u8::try_from(numbers.len()).expect("a jump reaches over 255 instructions");
    let mut program = vec![
        step(LOAD, ARCHITECTURE, 0, 0),
        // If the architecture matches, jumps to the load of the number, else over the load and all
        // comparisons.
        step(IF_EQUAL, architecture, 0, count.saturating_add(1)),
        step(LOAD, NUMBER, 0, 0),
    ];
    // A comparison that matches jumps over the following comparisons and the first return. If it
    // does not match, the next comparison follows.
    let comparisons = numbers.iter().zip((1..=count).rev());
    program.extend(comparisons.map(|(&number, left)| step(IF_EQUAL, number, left, 0)));
    program.push(step(ANSWER, libc::SECCOMP_RET_ALLOW, 0, 0));
    program.push(step(ANSWER, libc::SECCOMP_RET_TRACE, 0, 0));
    program
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the result of the filter program, by an interpreter of its instructions.
    fn answer(program: &[libc::sock_filter], architecture: u32, number: u32) -> u32 {
        let (mut at, mut word) = (0_usize, 0);
        loop {
            let step = program[at];
            at += 1;
            match u32::from(step.code) {
                LOAD if step.k == NUMBER => word = number,
                LOAD => word = architecture,
                IF_EQUAL if word == step.k => at += usize::from(step.jt),
                IF_EQUAL => at += usize::from(step.jf),
                _ => return step.k,
            }
        }
    }

    #[test]
    fn only_the_chosen_calls_of_the_architecture_are_picked() {
        let chosen = [9, 12, 500];
        let program = program(7, chosen.into_iter());
        for number in 0..600 {
            let wanted = chosen.contains(&number);
            let expected = if wanted { libc::SECCOMP_RET_TRACE } else { libc::SECCOMP_RET_ALLOW };
            assert_eq!(answer(&program, 7, number), expected, "{number}");
            assert_eq!(answer(&program, 8, number), libc::SECCOMP_RET_ALLOW, "{number}");
        }
    }
}
