//! Conditions under which a stopped thread may load a library or call an allocator: it holds no
//! lock that loading or the allocator needs.
//!
//! Loading takes locks of the loader and of `malloc`. A thread that holds such a lock is inside the
//! C library or the loader. So the whole call stack is read, and except for the start of the
//! thread, no frame may be in the C library or the loader. A thread that waits in the kernel inside
//! a function of the C library, as most threads usually do, is accepted if it does not wait for a
//! lock.
//!
//! An allocator that replaces the allocator of the C library ([`Mallocs`]) has locks of its own.
//! None of its functions may be on the call stack. If the code of the allocator cannot be
//! distinguished from other code of the program, the thread must wait in a system call in which no
//! allocator waits, for example for a connection, a child or a signal. The allocator is then not on
//! the call stack: it does not make such a system call, and it calls no function of the program.

use std::fs;
use std::ops::Range;
use std::os::unix::fs::{FileTypeExt, MetadataExt};

use pagewise_model::{Name, Pid};
use pagewise_proc::{ProcRoot, maps};
use pagewise_remote::{RemoteProcess, StopPoint};

use pagewise_trace::{SpaceRegion, Spaces, Unwinder};

use super::mallocs::Mallocs;

/// Decides if stopped threads may make calls at their current points.
#[derive(Debug)]
pub(crate) struct Judge {
    spaces: Spaces,
    unwinder: Unwinder,
    /// Address range of the program's entry code.
    entry: Range<u64>,
    /// Allocators that replace the allocator of the C library.
    mallocs: Mallocs,
    /// True if the process has no dynamic loader.
    is_static: bool,
}

/// System call numbers.
mod call {
    pub(crate) const FUTEX: u64 = 202;
    /// `read write poll select pause nanosleep accept recvfrom recvmsg wait4 semop msgrcv
    /// rt_sigtimedwait rt_sigsuspend io_getevents restart_syscall clock_nanosleep epoll_wait waitid
    /// pselect6 ppoll epoll_pwait accept4 recvmmsg`: `malloc` and the loader wait in none of these
    /// calls except `read`; the callers on the stack reveal a `read` by the loader.
    /// `restart_syscall` resumes only a wait that has a time limit, and waits for locks of `malloc`
    /// and the loader have no time limit.
    pub(crate) const WAITS: &[u64] = &[
        0, 1, 7, 23, 34, 35, 43, 45, 47, 61, 65, 70, 128, 130, 208, 219, 230, 232, 247, 270, 271,
        281, 288, 299,
    ];
    pub(crate) const READ: u64 = 0;
    pub(crate) const RESTART: u64 = 219;
    /// `poll select pause accept recvfrom recvmsg wait4 rt_sigtimedwait rt_sigsuspend io_getevents
    /// epoll_wait waitid pselect6 ppoll epoll_pwait accept4 recvmmsg`: allocators may sleep between
    /// attempts to take a lock, and read files of `/proc`, but wait in none of these calls.
    pub(crate) const WAITS_FOR_EVENTS: &[u64] =
        &[7, 23, 34, 43, 45, 47, 61, 128, 130, 208, 232, 247, 270, 271, 281, 288, 299];
    /// `poll select pselect6 ppoll restart_syscall`: without files (first argument 0 or a file
    /// count of 0), these calls only sleep.
    pub(crate) const SLEEPS_WITHOUT_FILES: &[u64] = &[7, 23, 270, 271, 219];
}

/// Maximum number of bytes of a program's entry code.
const BEGINNING: u64 = 64;

/// `mov %rax, %rdi; mov $60, %eax; syscall`: the code after the call of a thread's first function,
/// in `clone` and `clone3` of glibc. Older versions move `%eax` to `%edi`, without the first byte.
const ENDS_THREAD: [u8; 10] = [0x48, 0x89, 0xc7, 0xb8, 0x3c, 0, 0, 0, 0x0f, 0x05];

/// `mov $15, %rax; syscall`: the code to which signal handlers return, in the C library.
const RETURNS_FROM_SIGNAL: [u8; 9] = [0x48, 0xc7, 0xc0, 0x0f, 0, 0, 0, 0x0f, 0x05];

/// Alignment of the heaps of thread arenas in bytes. The lock of an arena is in the first `HEAD`
/// bytes of its heap.
const ARENA: u64 = 64 << 20;
const HEAD: u64 = 1 << 10;

impl Judge {
    pub(crate) fn new(root: &ProcRoot, pid: u32, mallocs: Mallocs) -> Judge {
        let mut spaces = Spaces::default();
        spaces.read(root, pid);
        let entry = entry(root, pid).unwrap_or(0);
        let entry = entry..entry.saturating_add(BEGINNING);
        let is_static = root.read(Pid(pid), "maps").is_ok_and(|text| {
            maps::parse(&text).mappings.iter().all(|it| !(it.prot.exec && is_loader(&it.name)))
        });
        Judge { spaces, unwinder: Unwinder::default(), entry, mallocs, is_static }
    }

    /// Allocators that replace the allocator of the C library.
    pub(crate) fn mallocs(&self) -> &Mallocs {
        &self.mallocs
    }

    /// True if a thread may load a library, or call an allocator, at its current point.
    pub(crate) fn is_safe(
        &mut self,
        root: &ProcRoot,
        target: &RemoteProcess,
        place: &StopPoint,
        stack: &[u8],
    ) -> bool {
        if self.is_static {
            return self.is_outside_static(root, target, place, stack);
        }
        let pid = target.pid();
        let Some(calls) = self.call_stack(root, pid, place, stack) else { return false };
        let spaces = &self.spaces;
        let name = |address: u64| spaces.find(pid, address).map(|region| &region.name);
        // The next instruction of the thread is inside its function, but a return address may be
        // just after the end of its function.
        let is_in_malloc = |address: u64| {
            let file = spaces.find(pid, address).filter(|region| region.is_file());
            file.is_some_and(|region| self.mallocs.contain(address, region.id()))
        };
        if calls.iter().any(|&call| is_in_malloc(call) || is_in_malloc(call.wrapping_sub(1))) {
            return false;
        }
        // The byte before a return address belongs to the call instruction, so it is in the file of
        // the caller.
        let is_system = |address: &u64| name(address.wrapping_sub(1)).is_none_or(is_of_system);
        // The main thread begins in the program's entry code, which calls the C library.
        let (_, calls) = match calls.split_last() {
            Some((last, rest)) if self.entry.contains(last) => (last, rest),
            _ => (&0, &calls[..]),
        };
        // The frames at the start of the thread are excluded.
        let theirs = calls.iter().rposition(|call| !is_system(call)).map_or(0, |last| last + 1);
        let inner = calls[..theirs].iter().position(|call| !is_system(call)).unwrap_or(theirs);
        if theirs == 0 || calls[inner..theirs].iter().any(is_system) {
            return false;
        }
        let may_be_in_malloc = self.mallocs.scattered().is_some();
        if inner == 0 {
            return !may_be_in_malloc;
        }
        // The loader may be waiting for a file.
        let in_loader =
            calls[..inner].iter().any(|call| name(call.wrapping_sub(1)).is_none_or(is_loader));
        if in_loader || calls[..inner].iter().any(|&call| returns_from_signal(target, call)) {
            // The C library has signal handlers of its own. The handler for a `setuid` in another
            // thread runs while that thread holds a lock of the loader, until each thread has left
            // the handler.
            return false;
        }
        let is_in_poll = || calls[..inner].iter().any(|call| self.mallocs.poll.contains(call));
        match place.call {
            None => false,
            Some((call::READ, file)) if may_be_in_malloc => is_stream(root, pid, file),
            Some((number, 0))
                if may_be_in_malloc && call::SLEEPS_WITHOUT_FILES.contains(&number) =>
            {
                false
            }
            Some((call::RESTART, _)) if may_be_in_malloc => is_in_poll(),
            Some((number, _)) if may_be_in_malloc => call::WAITS_FOR_EVENTS.contains(&number),
            // A futex word in a frame of the C library belongs to a wait inside a function of the C
            // library, which may hold a lock, for example while `setuid` waits for other threads.
            Some((call::FUTEX, word)) => {
                let length = inner_frames(stack, calls[inner]);
                let inner_frames = place.stack..place.stack.saturating_add(length);
                !inner_frames.contains(&word) && self.is_nobodys_lock(pid, word)
            }
            Some((number, _)) => call::WAITS.contains(&number),
        }
    }

    /// True if the call stack leads from the stack pointer to the start of the thread, only through
    /// memory above the stack pointer. The thread then uses no memory below its stack pointer: it
    /// is on no stack that lies within another stack (of a coroutine, of a signal handler).
    pub(crate) fn reaches_start(
        &mut self,
        root: &ProcRoot,
        target: &RemoteProcess,
        place: &StopPoint,
        stack: &[u8],
    ) -> bool {
        let calls = self.call_stack(root, target.pid(), place, stack);
        let Some(start) = calls.and_then(|calls| calls.last().copied()) else { return false };
        if self.entry.contains(&start) {
            return true;
        }
        let mut code = [0; ENDS_THREAD.len()];
        let is_read = target.memory().read(start, &mut code).is_ok();
        is_read && (code == ENDS_THREAD || code.starts_with(&ENDS_THREAD[1..]))
    }

    /// Returns the calls of a stopped thread, innermost first. Mappings that are new since the last
    /// call are read first.
    fn call_stack(
        &mut self,
        root: &ProcRoot,
        pid: u32,
        place: &StopPoint,
        stack: &[u8],
    ) -> Option<Vec<u64>> {
        if self.spaces.find(pid, place.instruction).is_none() {
            self.spaces.read(root, pid);
        }
        let calls = self.unwinder.unwind_stopped(&self.spaces, pid, &place.registers, stack);
        calls.map(<[u64]>::to_vec)
    }

    /// Rule for a statically linked program, whose allocator cannot be distinguished from the
    /// program: the thread must wait for an event, and must not be in a signal handler.
    fn is_outside_static(
        &mut self,
        root: &ProcRoot,
        target: &RemoteProcess,
        place: &StopPoint,
        stack: &[u8],
    ) -> bool {
        let waits = match place.call {
            Some((call::READ, file)) => is_stream(root, target.pid(), file),
            Some((number, 0)) if call::SLEEPS_WITHOUT_FILES.contains(&number) => false,
            Some((number, _)) => call::WAITS_FOR_EVENTS.contains(&number),
            None => false,
        };
        if !waits {
            return false;
        }
        let calls = self.call_stack(root, target.pid(), place, stack);
        calls.is_some_and(|calls| !calls.iter().any(|&call| returns_from_signal(target, call)))
    }

    /// True if a futex word cannot belong to a lock of the C library or of an allocator.
    fn is_nobodys_lock(&self, pid: u32, word: u64) -> bool {
        let Some(region) = self.spaces.find(pid, word) else { return false };
        let has_locks = |it: &SpaceRegion| {
            is_of_system(&it.name) || it.is_file() && self.mallocs.has_file(it.id())
        };
        // A file's `.bss` begins at the end of the mappings of the file.
        let before = self.spaces.find(pid, region.start.wrapping_sub(1));
        let is_behind = region.inode == 0 && before.is_some_and(has_locks);
        !has_locks(region) && !is_behind && word % ARENA > HEAD
    }
}

/// Number of bytes of `stack` below the word that contains `return_address`: the frames of the
/// function that returns to this address, and of the functions that it called.
fn inner_frames(stack: &[u8], return_address: u64) -> u64 {
    let words = stack.as_chunks::<8>().0.iter().map(|word| u64::from_ne_bytes(*word));
    words.take_while(|&word| word != return_address).count() as u64 * 8
}

/// True if a call on a call stack is the return from a signal handler.
fn returns_from_signal(target: &RemoteProcess, call: u64) -> bool {
    let mut code = [0; RETURNS_FROM_SIGNAL.len()];
    // The unwinder treats an interrupted address as a return address, so the address is also tried
    // one byte lower.
    let read = [call, call.wrapping_sub(1)]
        .map(|from| target.memory().read(from, &mut code).is_ok().then_some(code));
    read.contains(&Some(RETURNS_FROM_SIGNAL))
}

/// True if a file descriptor is a pipe, a socket or a terminal. Allocators read only regular files
/// and other devices.
fn is_stream(root: &ProcRoot, pid: u32, file: u64) -> bool {
    /// Major numbers of terminals and pseudo-terminals (Documentation/admin-guide/devices.txt).
    const TERMINALS: &[u32] = &[4, 5, 136, 137, 138, 139, 140, 141, 142, 143];
    // The file is not opened; only the metadata of the link's target is read.
    let Ok(file) = fs::metadata(root.file(Pid(pid), &format!("fd/{file}"))) else { return false };
    let kind = file.file_type();
    let is_terminal = || TERMINALS.contains(&rustix::fs::major(file.rdev()));
    kind.is_fifo() || kind.is_socket() || kind.is_char_device() && is_terminal()
}

/// Entry address of the program, from the kernel's auxiliary vector.
pub(crate) fn entry(root: &ProcRoot, pid: u32) -> Option<u64> {
    const ENTRY: u64 = 9;
    let vector = root.read(Pid(pid), "auxv").ok()?;
    let words = vector.as_chunks::<8>().0;
    let pair = words.as_chunks::<2>().0.iter().find(|[key, _]| u64::from_ne_bytes(*key) == ENTRY);
    pair.map(|[_, value]| u64::from_ne_bytes(*value))
}

/// True if a file is the loader.
pub(crate) fn is_loader(name: &Name) -> bool {
    let file = name.base();
    file.starts_with(b"ld-linux") || file.starts_with(b"ld-2.") || file.starts_with(b"ld.so")
}

/// True if a file is the loader, a part of the C library, or the recorder.
fn is_of_system(name: &Name) -> bool {
    const FILES: [&[u8]; 6] =
        [b"libc.so", b"libc-2.", b"libpthread", b"libdl", b"librt", b"libpagewise_preload"];
    let file = name.base();
    is_loader(name) || FILES.iter().any(|start| file.starts_with(start))
}
