//! Registers and system calls on x86-64.

use std::io;

use super::{Function, Place};
use crate::ptrace::{self, Tid};
use crate::remote;

/// The code segment of 64-bit programs.
const USER_64: u64 = 0x33;

/// What a stopped thread has in its registers.
#[derive(Clone, Copy, Debug)]
pub(super) struct Registers(libc::user_regs_struct);

impl Registers {
    /// The instruction that makes a system call.
    pub(super) const SYSCALL: &'static [u8] = &[0x0f, 0x05];

    pub(super) fn of(tid: Tid) -> io::Result<Registers> {
        ptrace::registers(tid).map(Registers)
    }

    pub(super) fn write(&self, tid: Tid) -> io::Result<()> {
        ptrace::set_registers(tid, &self.0)
    }

    /// Whether the thread may be taken elsewhere now: not from the middle of a restartable sequence, which the kernel
    /// would not know to abort any more.
    ///
    /// # Errors
    /// `Unsupported` where it runs 32-bit code.
    pub(super) fn check(&self, tid: Tid) -> io::Result<bool> {
        if self.0.cs != USER_64 {
            return Err(io::ErrorKind::Unsupported.into());
        }
        Ok(!ptrace::rseq(tid).is_some_and(|rseq| self.is_inside(tid, rseq).unwrap_or(false)))
    }

    /// Whether the thread is between the first and the last instruction of the sequence that its `struct rseq` names.
    fn is_inside(&self, tid: Tid, rseq: u64) -> Option<bool> {
        /// Of `rseq_cs` in `struct rseq`.
        const SEQUENCE: u64 = 8;
        /// Of `start_ip` and `post_commit_offset` in `struct rseq_cs`.
        const START: u64 = 8;
        const LENGTH: u64 = 16;
        let word = |address: u64| {
            let words = remote::read_each::<8>(tid.unsigned_abs(), &[address]).ok()?;
            words[0].map(u64::from_ne_bytes)
        };
        let sequence = word(rseq.checked_add(SEQUENCE)?)?;
        if sequence == 0 {
            return Some(false);
        }
        let start = word(sequence.checked_add(START)?)?;
        let length = word(sequence.checked_add(LENGTH)?)?;
        Some(self.0.rip.wrapping_sub(start) < length)
    }

    /// The same with a system call to be made at `instruction`.
    pub(super) fn for_call(
        &self,
        instruction: u64,
        number: libc::c_long,
        arguments: [u64; 6],
    ) -> Registers {
        let [rdi, rsi, rdx, r10, r8, r9] = arguments;
        Registers(libc::user_regs_struct {
            rip: instruction,
            rax: number.cast_unsigned(),
            // In no system call: the kernel must not restart one with these registers.
            orig_rax: u64::MAX,
            rdi,
            rsi,
            rdx,
            r10,
            r8,
            r9,
            ..self.0
        })
    }

    /// Where it is.
    pub(super) fn place(&self) -> Place {
        let of = &self.0;
        let registers = [
            of.rax, of.rbx, of.rcx, of.rdx, of.rsi, of.rdi, of.rbp, of.rsp, of.rip, of.r8, of.r9,
            of.r10, of.r11, of.r12, of.r13, of.r14, of.r15,
        ];
        let call = (of.orig_rax.cast_signed() >= 0).then_some((of.orig_rax, of.rdi));
        Place {
            instruction: of.rip,
            stack: of.rsp,
            registers,
            thread_data: of.fs_base,
            call,
            returned: of.rdi,
        }
    }

    /// The same with a function to be called.
    pub(super) fn for_function(&self, function: &Function, arguments: [u64; 3]) -> Registers {
        let [rdi, rsi, rdx] = arguments;
        /// No direction, no trap: as functions expect it.
        const FLAGS: u64 = 0x202;
        Registers(libc::user_regs_struct {
            rip: function.code,
            rax: function.address,
            orig_rax: u64::MAX,
            // Calls are made where the stack is aligned so.
            rsp: function.stack & !63,
            rbp: 0,
            eflags: FLAGS,
            rdi,
            rsi,
            rdx,
            ..self.0
        })
    }

    /// What a system call returned.
    pub(super) fn result(&self) -> io::Result<u64> {
        /// Minus the largest error number.
        const FIRST: i64 = -4095;
        match self.0.rax.cast_signed() {
            error @ FIRST..=-1 => Err(io::Error::from_raw_os_error(
                i32::try_from(-error).expect("error numbers are small"),
            )),
            _ => Ok(self.0.rax),
        }
    }
}
