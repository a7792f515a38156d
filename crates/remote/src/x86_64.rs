//! Registers, system calls and saved contexts on x86-64.

use std::io;

use pagewise_sys::ptrace::{self, Tid};
use pagewise_sys::{cpuid, remote};

use crate::thread::{RemoteFunction, StopPoint};

pub(crate) use pagewise_sys::ptrace::{
    extended_state, set_extended_state, set_signal_mask, signal_mask,
};

/// Segment selector (`cs`) of 64-bit programs.
const USER_64: u64 = 0x33;
/// System call number of `restart_syscall`.
const RESTART: u64 = 219;
/// Number of bytes of the `syscall` instruction.
const SYSCALL_LENGTH: u64 = 2;

/// Machine code of `syscall; ret`.
pub(crate) const SYSCALL_AND_RETURN: &[u8] = &[0x0f, 0x05, 0xc3];
/// Machine code of `mov $15, %rax; syscall` and `mov $15, %eax; syscall`: the calls of
/// `rt_sigreturn` to which C libraries make signal handlers return.
pub(crate) const RESTORE: [&[u8]; 2] =
    [&[0x48, 0xc7, 0xc0, 0x0f, 0, 0, 0, 0x0f, 0x05], &[0xb8, 0x0f, 0, 0, 0, 0x0f, 0x05]];

/// Number of bytes below the stack pointer that a function may use without changing the stack
/// pointer (System V ABI, 3.2.2).
pub(crate) const RED_ZONE: u64 = 128;

/// The saved context in target memory, from its lowest address on:
///
/// ```text
///   at - 8    address of the code that calls rt_sigreturn   <- stack pointer of remote calls
///   at        struct ucontext: registers and signal mask
///   at + 320  vector registers (XSAVE), a multiple of 64
/// ```
pub(crate) mod layout {
    /// Offset of the vector registers from the start of `struct ucontext`.
    pub(crate) const VECTORS: u64 = 320;
    /// Offset of `rdi`, the first argument of a system call, from the start of `struct ucontext`:
    /// after the flags, the next context, a stack of three words, and r8 to r15.
    pub(crate) const FIRST_ARGUMENT: u64 = 13 * 8;
    /// Alignment of saved contexts in bytes.
    pub(crate) const ALIGNMENT: u64 = 64;
    /// Number of bytes of a saved context without its vector registers: the return address with its
    /// padding, and `struct ucontext`.
    pub(crate) const HEAD: u64 = ALIGNMENT + VECTORS;
}

/// Value of `eflags` for functions: direction flag and trap flag are clear.
const FLAGS: u64 = 0x202;

/// Registers of a stopped thread.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Registers(libc::user_regs_struct);

impl Registers {
    pub(crate) fn read_from(tid: Tid) -> io::Result<Registers> {
        ptrace::registers(tid).map(Registers)
    }

    pub(crate) fn write(&self, tid: Tid) -> io::Result<()> {
        ptrace::set_registers(tid, &self.0)
    }

    /// False if the thread is inside a restartable sequence: with another program counter, the
    /// kernel would not abort the sequence.
    ///
    /// # Errors
    /// `Unsupported` if the thread runs 32-bit code.
    pub(crate) fn may_move(&self, tid: Tid) -> io::Result<bool> {
        if self.0.cs != USER_64 {
            return Err(io::ErrorKind::Unsupported.into());
        }
        Ok(!ptrace::rseq(tid).is_some_and(|rseq| self.is_inside(tid, rseq).unwrap_or(false)))
    }

    /// True if the thread is between the first and the last instruction of the sequence that its
    /// `struct rseq` refers to.
    fn is_inside(&self, tid: Tid, rseq: u64) -> Option<bool> {
        /// Offset of `rseq_cs` in `struct rseq`.
        const SEQUENCE: u64 = 8;
        /// Offsets of `start_ip` and `post_commit_offset` in `struct rseq_cs`.
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

    /// Returns these registers, changed so that the thread makes a system call at `instruction` and
    /// returns to the address at `stack`.
    pub(crate) fn for_call(
        &self,
        instruction: u64,
        number: libc::c_long,
        arguments: [u64; 6],
        stack: u64,
    ) -> Registers {
        let [rdi, rsi, rdx, r10, r8, r9] = arguments;
        Registers(libc::user_regs_struct {
            rip: instruction,
            rsp: stack,
            rax: number.cast_unsigned(),
            // -1 means that the thread is in no system call, so the kernel does not restart a call
            // with these registers.
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

    /// Returns the registers of a thread whose first instruction is the start of a function.
    /// `stack` is the address of the return address.
    pub(crate) fn for_start(&self, function: u64, argument: u64, stack: u64) -> Registers {
        let call = self.for_call(function, 0, [argument, 0, 0, 0, 0, 0], stack);
        Registers(libc::user_regs_struct { rbp: 0, eflags: FLAGS, ..call.0 })
    }

    /// Position of the thread.
    pub(crate) fn place(&self) -> StopPoint {
        let of = &self.0;
        let registers = [
            of.rax, of.rbx, of.rcx, of.rdx, of.rsi, of.rdi, of.rbp, of.rsp, of.rip, of.r8, of.r9,
            of.r10, of.r11, of.r12, of.r13, of.r14, of.r15,
        ];
        let call = (of.orig_rax.cast_signed() >= 0).then_some((of.orig_rax, of.rdi));
        StopPoint { instruction: of.rip, stack: of.rsp, registers, thread_data: of.fs_base, call }
    }

    /// Returns these registers, changed so that the thread calls a function. `number` distinguishes
    /// this call from other calls.
    pub(crate) fn for_function(
        &self,
        function: &RemoteFunction,
        arguments: [u64; 5],
        number: u64,
    ) -> Registers {
        let [rdi, rsi, rdx, rcx, r8] = arguments;
        Registers(libc::user_regs_struct {
            rip: function.code,
            rax: function.address,
            orig_rax: u64::MAX,
            // The ABI requires a stack pointer that is a multiple of 16 at a call.
            rsp: function.stack & !63,
            rbp: 0,
            eflags: FLAGS,
            rdi,
            rsi,
            rdx,
            rcx,
            r8,
            // `r12` is a register that functions preserve.
            r12: number,
            ..self.0
        })
    }

    /// Returns the kernel's `struct ucontext` with these registers and a signal mask; its pointer
    /// to the vector registers is `vectors`.
    ///
    /// A system call that was interrupted starts again with its original arguments, as after a
    /// signal without handler. If its timeout is a duration, the whole duration starts again.
    /// `continued` is the result of [`Registers::continued`].
    pub(crate) fn context(&self, blocked: u64, vectors: u64, continued: Option<i64>) -> Vec<u8> {
        /// Flags `UC_FP_XSTATE`, `UC_SIGCONTEXT_SS` and `UC_STRICT_RESTORE_SS` of
        /// `<asm/ucontext.h>`.
        const ALL_IS_THERE: u64 = 7;
        /// Invalid flags of a signal stack, so that the kernel ignores the field and the thread
        /// keeps its signal stack.
        const NO_STACK: u64 = 7;
        let of = &self.0;
        let (mut rax, mut rip) = (of.rax, of.rip);
        // The negative error numbers `ERESTARTSYS`, `ERESTARTNOINTR`, `ERESTARTNOHAND`,
        // `ERESTART_RESTARTBLOCK`.
        let restarts = matches!(of.rax.cast_signed(), -514..=-512 | -516);
        if of.orig_rax.cast_signed() >= 0 && restarts {
            let number = match of.orig_rax {
                RESTART => continued.map(i64::cast_unsigned),
                number => Some(number),
            };
            match number {
                Some(number) => {
                    rax = number;
                    rip = rip.wrapping_sub(SYSCALL_LENGTH);
                }
                // The call fails with EINTR, as after a signal with a handler.
                None => rax = i64::from(-libc::EINTR).cast_unsigned(),
            }
        } else if of.rax == RESTART {
            rax = continued.map_or(rax, i64::cast_unsigned);
        }
        let segments = of.cs & 0xffff | (of.ss & 0xffff) << 48;
        let words = [
            // The flags, the next context, and the signal stack.
            [ALL_IS_THERE, 0, 0, NO_STACK, 0].as_slice(),
            &[of.r8, of.r9, of.r10, of.r11, of.r12, of.r13, of.r14, of.r15, of.rdi, of.rsi],
            &[of.rbp, of.rbx, of.rdx, rax, of.rcx, of.rsp, rip, of.eflags, segments],
            // Error code, trap number, mask and address of the last fault; the pointer to the
            // vector registers; eight reserved words follow.
            &[0, 0, 0, 0, vectors],
            &[0; 8],
            &[blocked],
        ];
        words.into_iter().flatten().flat_map(|word| word.to_le_bytes()).collect()
    }

    /// If the thread is in `restart_syscall` or about to call it, returns the number of the system
    /// call that `restart_syscall` continues. This call has a timeout. `rt_sigreturn` discards the
    /// thread's restart state, so the thread must make the call again, by its number. No register
    /// contains the number, so it is searched in the program's code: `read` returns the bytes at an
    /// address, or fewer bytes at the end of a mapping.
    pub(crate) fn continued(&self, read: &dyn Fn(u64, usize) -> Vec<u8>) -> Option<i64> {
        let next = match self.0.rax {
            RESTART => self.0.rip.wrapping_add(SYSCALL_LENGTH),
            _ => Some(self.0.rip).filter(|_| self.0.orig_rax == RESTART)?,
        };
        number_before(next, self.0.rsp, read)
    }

    /// Result of a system call that has returned.
    pub(crate) fn result(&self) -> io::Result<u64> {
        /// The negated largest error number.
        const FIRST: i64 = -4095;
        match self.0.rax.cast_signed() {
            error @ FIRST..=-1 => Err(io::Error::from_raw_os_error(
                i32::try_from(-error).expect("error numbers are small"),
            )),
            _ => Ok(self.0.rax),
        }
    }
}

/// Number of code bytes before a system call, or before a return address, in which the call's
/// number is searched.
const CODE_BEFORE: usize = 64;
/// The opcodes of `mov $NUMBER, %eax`, which precedes `syscall`, and of `mov $NUMBER, %edi`, which
/// precedes a call of libc's `syscall()`.
const MOV_EAX: u8 = 0xb8;
const MOV_EDI: u8 = 0xbf;
/// Machine code of `mov 8(%rsp), %r9; syscall`: the end of the function `syscall()` of glibc, which
/// has pushed nothing on the stack.
const CALL_BY_NUMBER: &[u8] = &[0x4c, 0x8b, 0x4c, 0x24, 0x08, 0x0f, 0x05];

/// Returns the number of a system call with a timeout that is made just before the address `next`,
/// with the stack pointer `stack`.
fn number_before(next: u64, stack: u64, read: &dyn Fn(u64, usize) -> Vec<u8>) -> Option<i64> {
    let before = |end: u64| read(end.saturating_sub(CODE_BEFORE as u64), CODE_BEFORE);
    let code = before(next);
    if !code.ends_with(CALL_BY_NUMBER) {
        return number_in(code.strip_suffix(&SYSCALL_AND_RETURN[..2])?, MOV_EAX);
    }
    let caller = u64::from_le_bytes(read(stack, 8).try_into().ok()?);
    number_in(&before(caller), MOV_EDI)
}

/// Returns the last number of a system call with a timeout that a `mov` instruction moves into a
/// register.
fn number_in(code: &[u8], mov: u8) -> Option<i64> {
    const CALLS: [libc::c_long; 4] =
        [libc::SYS_poll, libc::SYS_nanosleep, libc::SYS_futex, libc::SYS_clock_nanosleep];
    code.windows(5).rev().filter(|window| window[0] == mov).find_map(|window| {
        let number = i64::from(i32::from_le_bytes(window[1..].try_into().ok()?));
        CALLS.contains(&number).then_some(number)
    })
}

/// Converts vector registers from the format of PTRACE_GETREGSET to the format of `rt_sigreturn`.
///
/// Only the components in use are kept. Other components have their initial values before and after
/// the restore. The kernel refuses an image with a component that the thread may not use (AMX, for
/// which a thread must request permission).
///
/// # Errors
/// `InvalidData` if the image is too short or this CPU does not report the offsets of its
/// components.
pub(crate) fn vector_image(mut state: Vec<u8>) -> io::Result<Vec<u8>> {
    /// Offset of `struct _fpx_sw_bytes`: a magic word, the size including the second magic word,
    /// the saved components, and their size. The second magic word follows the components.
    const SOFTWARE: usize = 464;
    const SOFTWARE_END: usize = 512;
    /// Offset of the bit mask of components in use, and end of the header that begins with this
    /// mask.
    const IN_USE: usize = 512;
    const HEADER_END: usize = 576;
    /// Bits of the x87 and SSE components, which lie before the header.
    const LEGACY: u64 = 3;
    const MAGIC: [u32; 2] = [0x4650_5853, 0x4650_5845];
    let invalid = || io::Error::from(io::ErrorKind::InvalidData);
    let mask = state.get(IN_USE..IN_USE + 8).and_then(|bytes| bytes.try_into().ok());
    let in_use = mask.map(u64::from_le_bytes).ok_or_else(invalid)?;
    let mut length = HEADER_END;
    for component in (2..63_u32).filter(|component| in_use >> component & 1 != 0) {
        /// `cpuid` leaf with the size and offset of each component.
        const LEAF: u32 = 0xd;
        let [size, offset, ..] = cpuid::leaf(LEAF, component).ok_or_else(invalid)?;
        length = length.max(offset as usize + size as usize);
    }
    if length > state.len() {
        return Err(invalid());
    }
    state.truncate(length);
    let length = u32::try_from(length).map_err(|_| invalid())?;
    let [first, second] = MAGIC.map(u32::to_le_bytes);
    let told = [
        &first[..],
        &(length + 4).to_le_bytes(),
        &(in_use | LEGACY).to_le_bytes(),
        &length.to_le_bytes(),
    ]
    .concat();
    let software = state.get_mut(SOFTWARE..SOFTWARE_END).ok_or_else(invalid)?;
    software.fill(0);
    software[..told.len()].copy_from_slice(&told);
    state.extend(second);
    Ok(state)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the number that is found in memory, given as pieces with their addresses.
    fn found(next: u64, stack: u64, memory: &[(u64, &[u8])]) -> Option<i64> {
        number_before(next, stack, &|at, length| {
            let byte = |address: u64| {
                memory.iter().find_map(|(start, piece)| {
                    piece.get(usize::try_from(address.checked_sub(*start)?).ok()?)
                })
            };
            (at..at + length as u64).map(|address| *byte(address).unwrap_or(&0x90)).collect()
        })
    }

    #[test]
    fn the_number_of_a_continued_call_is_read_from_its_code() {
        // mov $230, %eax; mov %r8, %r10; syscall
        let sleep = [0x90, 0xb8, 0xe6, 0, 0, 0, 0x4d, 0x89, 0xc2, 0x0f, 0x05];
        assert_eq!(found(0x1000, 0, &[(0x1000 - 11, &sleep)]), Some(230));
        assert_eq!(found(0xfff, 0, &[(0x1000 - 11, &sleep)]), None, "no system call");
        let read = [0x90, 0xb8, 0, 0, 0, 0, 0x0f, 0x05];
        assert_eq!(found(0x1000, 0, &[(0x1000 - 8, &read)]), None, "read has no time to wait");
        assert_eq!(found(0x1000, 0, &[]), None);
    }

    #[test]
    fn the_number_of_a_continued_call_is_read_from_the_caller_of_a_call_by_number() {
        // mov $202, %edi; xor %eax, %eax; call syscall
        let caller = [0xbf, 0xca, 0, 0, 0, 0x31, 0xc0, 0xe8, 1, 2, 3, 4];
        let back = 0x2000_u64.to_le_bytes();
        let memory: &[(u64, &[u8])] =
            &[(0x1000 - 7, CALL_BY_NUMBER), (0x7000, &back), (0x2000 - 12, &caller)];
        assert_eq!(found(0x1000, 0x7000, memory), Some(202));
        assert_eq!(found(0x1000, 0x7000, &memory[..2]), None);
        assert_eq!(found(0x1000, 0x8000, memory), None);
    }

    #[test]
    fn the_first_argument_lies_where_a_saved_context_has_it() {
        let zero = libc::user_regs_struct {
            r15: 0,
            r14: 0,
            r13: 0,
            r12: 0,
            rbp: 0,
            rbx: 0,
            r11: 0,
            r10: 0,
            r9: 0,
            r8: 0,
            rax: 0,
            rcx: 0,
            rdx: 0,
            rsi: 0,
            rdi: 0,
            orig_rax: 0,
            rip: 0,
            cs: 0,
            eflags: 0,
            rsp: 0,
            ss: 0,
            fs_base: 0,
            gs_base: 0,
            ds: 0,
            es: 0,
            fs: 0,
            gs: 0,
        };
        let registers = Registers(libc::user_regs_struct { rdi: 0x1234_5678_9abc, ..zero });
        let context = registers.context(0, 0, None);
        let at = usize::try_from(layout::FIRST_ARGUMENT).unwrap();
        assert_eq!(context[at..at + 8], 0x1234_5678_9abc_u64.to_le_bytes());
    }

    #[test]
    fn a_vector_image_of_a_bad_length_is_an_error() {
        assert!(vector_image(vec![0; 100]).is_err());
        let mut all = vec![0; 600];
        all[512..520].fill(0xff);
        assert!(vector_image(all).is_err(), "components that do not fit");
        let image = vector_image(vec![0; 600]).unwrap();
        assert_eq!(image.len(), 580);
        assert_eq!(image[464..468], 0x4650_5853_u32.to_le_bytes());
        assert_eq!(image[576..], 0x4650_5845_u32.to_le_bytes());
    }
}
