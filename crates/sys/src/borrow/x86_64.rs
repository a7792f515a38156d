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

    /// A `struct ucontext` of the kernel, and the vector registers behind it, as a signal's handler has them on its stack.
    pub(super) fn way_back(
        &self,
        at: u64,
        blocked: u64,
        mut vectors: Vec<u8>,
    ) -> io::Result<Vec<u8>> {
        /// `UC_FP_XSTATE`, `UC_SIGCONTEXT_SS` and `UC_STRICT_RESTORE_SS` of `<asm/ucontext.h>`.
        const ALL_IS_THERE: u64 = 7;
        /// What the kernel does not take for a signal's stack: the thread keeps its own.
        const NO_STACK: u64 = 7;
        /// Where the vector registers are, behind the rest.
        const VECTORS: usize = 320;
        /// `struct _fpx_sw_bytes` in their first part: two words that say so, around what was saved.
        const SAVED: usize = 464;
        const MAGIC: [u32; 2] = [0x4650_5853, 0x4650_5845];
        let length = u32::try_from(vectors.len()).map_err(|_| io::ErrorKind::InvalidData)?;
        let too_short = || io::Error::from(io::ErrorKind::InvalidData);
        let place = vectors.get_mut(SAVED..SAVED + 48).ok_or_else(too_short)?;
        // There the kernel says which registers it has saved.
        let features: Vec<u8> = place[..8].to_vec();
        let [first, second] = MAGIC.map(u32::to_le_bytes);
        let sizes = [(length + 4).to_le_bytes(), length.to_le_bytes()];
        let told = [&first[..], &sizes[0], &features, &sizes[1]].concat();
        place.fill(0);
        place[..told.len()].copy_from_slice(&told);
        vectors.extend(second);

        let of = &self.0;
        let (mut rax, mut rip) = (of.rax, of.rip);
        if of.orig_rax.cast_signed() >= 0 {
            match of.rax.cast_signed() {
                // `ERESTARTSYS`, `ERESTARTNOINTR`, `ERESTARTNOHAND`: it begins anew.
                -514..=-512 => {
                    rax = of.orig_rax;
                    rip = rip.wrapping_sub(Registers::SYSCALL.len() as u64);
                }
                // `ERESTART_RESTARTBLOCK`: what it has yet to wait for is lost by now.
                -516 => rax = i64::from(-libc::EINTR).cast_unsigned(),
                _ => {}
            }
        }
        let segments = of.cs & 0xffff | (of.ss & 0xffff) << 48;
        let words = [
            // Of the context: flags, the next one, and a stack for signals.
            [ALL_IS_THERE, 0, 0, NO_STACK, 0].as_slice(),
            &[of.r8, of.r9, of.r10, of.r11, of.r12, of.r13, of.r14, of.r15, of.rdi, of.rsi],
            &[of.rbp, of.rbx, of.rdx, rax, of.rcx, of.rsp, rip, of.eflags, segments],
            // The last fault's: error, number, mask and address; then the vector registers, and eight words for later.
            &[0, 0, 0, 0, at + VECTORS as u64],
            &[0; 8],
            &[blocked],
        ];
        let mut bytes: Vec<u8> =
            words.into_iter().flatten().flat_map(|word| word.to_le_bytes()).collect();
        debug_assert!(bytes.len() <= VECTORS, "{}", bytes.len());
        bytes.resize(VECTORS, 0);
        bytes.extend(vectors);
        Ok(bytes)
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
