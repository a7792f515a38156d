//! Where a stopped thread may be made to load a library: where it holds no lock that loading takes.
//!
//! Loading takes locks of the loader and of `malloc`. Who holds one is within the C library or the loader: so the whole call
//! stack is followed, and but for where threads begin, no call of these may be on it. A thread that waits in the kernel on behalf
//! of such a function, as most do most of the time, is let off where it waits for what is no lock of theirs.

use std::ops::Range;

use pagewise_model::{Name, Pid};
use pagewise_proc::ProcRoot;
use pagewise_remote::Place;
use pagewise_trace::{Spaces, Unwinder};

/// Judges places.
#[derive(Debug)]
pub(super) struct Judge {
    spaces: Spaces,
    unwinder: Unwinder,
    /// Where the program begins.
    entry: Range<u64>,
}

/// Numbers of system calls.
mod call {
    pub(super) const FUTEX: u64 = 202;
    /// `read write poll select pause nanosleep accept recvfrom recvmsg wait4 semop msgrcv rt_sigtimedwait rt_sigsuspend
    /// io_getevents restart_syscall clock_nanosleep epoll_wait waitid pselect6 ppoll epoll_pwait accept4 recvmmsg`: neither
    /// `malloc` nor the loader waits in them but in `read`, whose callers tell. What is restarted has a time limit, as none of
    /// their locks has.
    pub(super) const WAITS: &[u64] = &[
        0, 1, 7, 23, 34, 35, 43, 45, 47, 61, 65, 70, 128, 130, 208, 219, 230, 232, 247, 270, 271,
        281, 288, 299,
    ];
}

/// The code with which programs begin is no longer than this.
const BEGINNING: u64 = 64;

/// Heaps of further arenas begin at multiples of this; their lock is in the first bytes.
const ARENA: u64 = 64 << 20;
const HEAD: u64 = 1 << 10;

impl Judge {
    pub(super) fn new(root: &ProcRoot, pid: u32) -> Judge {
        let mut spaces = Spaces::default();
        spaces.read(root, pid);
        let entry = entry(root, pid).unwrap_or(0);
        Judge { spaces, unwinder: Unwinder::default(), entry: entry..entry + BEGINNING }
    }

    /// Whether a thread may load a library where it is.
    pub(super) fn is_safe(
        &mut self,
        root: &ProcRoot,
        pid: u32,
        place: &Place,
        stack: &[u8],
    ) -> bool {
        if self.spaces.find(pid, place.instruction).is_none() {
            self.spaces.read(root, pid);
        }
        let spaces = &self.spaces;
        let calls = self.unwinder.unwind_stopped(spaces, pid, &place.registers, stack);
        let Some(calls) = calls else { return false };
        let name = |address: u64| spaces.find(pid, address).map(|region| &region.name);
        // A return address may lie behind its function, but not behind its file.
        let is_system = |address: &u64| name(address.wrapping_sub(1)).is_none_or(is_of_system);
        // Where the first thread begins is the program's own: the C library comes above it.
        let (_, calls) = match calls.split_last() {
            Some((last, rest)) if self.entry.contains(last) => (last, rest),
            _ => (&0, calls),
        };
        // From where the thread began on.
        let theirs = calls.iter().rposition(|call| !is_system(call)).map_or(0, |last| last + 1);
        let inner = calls[..theirs].iter().position(|call| !is_system(call)).unwrap_or(theirs);
        if theirs == 0 || calls[inner..theirs].iter().any(is_system) {
            return false;
        }
        if inner == 0 {
            return true;
        }
        // The loader may be waiting for a file.
        let in_loader =
            calls[..inner].iter().any(|call| name(call.wrapping_sub(1)).is_none_or(is_loader));
        match place.call {
            Some((call::FUTEX, word)) if !in_loader => is_nobodys_lock(spaces, pid, word),
            Some((number, _)) => !in_loader && call::WAITS.contains(&number),
            None => false,
        }
    }
}

/// Whether a word may be waited for that is in none of the C library's locks.
fn is_nobodys_lock(spaces: &Spaces, pid: u32, word: u64) -> bool {
    let Some(region) = spaces.find(pid, word) else { return false };
    // Variables without a value lie behind the file's.
    let before = spaces.find(pid, region.start.wrapping_sub(1));
    let is_behind = region.inode == 0 && before.is_some_and(|it| is_of_system(&it.name));
    !is_of_system(&region.name) && !is_behind && word % ARENA > HEAD
}

/// Where the program begins, as the kernel told it.
fn entry(root: &ProcRoot, pid: u32) -> Option<u64> {
    const ENTRY: u64 = 9;
    let vector = root.read(Pid(pid), "auxv").ok()?;
    let words = vector.as_chunks::<8>().0;
    let pair = words.as_chunks::<2>().0.iter().find(|[key, _]| u64::from_ne_bytes(*key) == ENTRY);
    pair.map(|[_, value]| u64::from_ne_bytes(*value))
}

/// Whether a file is the loader.
pub(super) fn is_loader(name: &Name) -> bool {
    let file = name.base();
    file.starts_with(b"ld-linux") || file.starts_with(b"ld-2.") || file.starts_with(b"ld.so")
}

/// Whether a file is the loader, a part of the C library, or the recorder.
fn is_of_system(name: &Name) -> bool {
    const FILES: [&[u8]; 6] =
        [b"libc.so", b"libc-2.", b"libpthread", b"libdl", b"librt", b"libpagewise_preload"];
    let file = name.base();
    is_loader(name) || FILES.iter().any(|start| file.starts_with(start))
}
