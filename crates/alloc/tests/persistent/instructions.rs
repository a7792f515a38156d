//! Stops a process after every instruction of its transactions: at each stop, the file opens as a
//! heap with the committed data and nothing else. This test would show that the compiler moves
//! stores.

use std::fs::{self, File};
use std::os::fd::AsRawFd;

use pagewise_alloc::persistent::PersistentError;

use crate::child::{HeapChild, SharedNumber};
use crate::ledger::{Expected, HeapLedger};
use crate::{HeapPath, SMALL};

/// Number of observed steps.
const STEPS: u64 = 2;
/// The words of a block: few, since each is some instructions.
const MAX_WORDS: usize = 3;

fn work(place: &HeapPath, committed: &SharedNumber) -> Result<(), PersistentError> {
    let mut ledger = HeapLedger::new(place.open(&SMALL)?, MAX_WORDS)?;
    // SAFETY: the call uses numbers only; the parent waits for each stop.
    unsafe { libc::ptrace(libc::PTRACE_TRACEME, 0, 0, 0) };
    stop();
    for _ in 0..STEPS {
        ledger.step()?;
        committed.set(ledger.done());
    }
    stop();
    Ok(())
}

fn stop() {
    // SAFETY: the call takes a number.
    unsafe { libc::raise(libc::SIGSTOP) };
}

/// A file, to be read while the child is stopped.
struct SteppedFile {
    start: *const u8,
    len: usize,
}

impl SteppedFile {
    fn new(place: &HeapPath) -> SteppedFile {
        let file = File::open(&place.path).unwrap();
        let len = usize::try_from(file.metadata().unwrap().len()).unwrap();
        let (null, fd) = (std::ptr::null_mut(), file.as_raw_fd());
        // SAFETY: the kernel chooses the address, so the call changes no existing mapping.
        let start = unsafe { libc::mmap(null, len, libc::PROT_READ, libc::MAP_SHARED, fd, 0) };
        assert_ne!(start, libc::MAP_FAILED);
        SteppedFile { start: start.cast(), len }
    }

    fn bytes(&self) -> &[u8] {
        // SAFETY: it was mapped with this length; the process that changes it is stopped.
        unsafe { std::slice::from_raw_parts(self.start, self.len) }
    }
}

impl Drop for SteppedFile {
    fn drop(&mut self) {
        // SAFETY: it was mapped with this length, and references into it do not live on.
        unsafe { libc::munmap(self.start.cast_mut().cast(), self.len) };
    }
}

/// Runs one instruction of a child that is stopped. Returns true if there are more.
fn step(child: &HeapChild) -> bool {
    // SAFETY: the child is ours, traced and stopped; the call touches no memory of ours.
    let stepped = unsafe { libc::ptrace(libc::PTRACE_SINGLESTEP, child.pid(), 0, 0) };
    assert_eq!(stepped, 0);
    let status = child.wait();
    assert!(libc::WIFSTOPPED(status), "the child ended with status {status:#x}");
    libc::WSTOPSIG(status) == libc::SIGTRAP
}

#[test]
fn behind_every_instruction_the_file_is_a_heap_with_what_was_committed_and_nothing_else() {
    let (place, copy, committed) = (HeapPath::new(), HeapPath::new(), SharedNumber::new());
    let mut ledger = HeapLedger::new(place.open(&SMALL).unwrap(), MAX_WORDS).unwrap();
    (0..STEPS).for_each(|_| ledger.step().unwrap());
    committed.set(ledger.done());
    drop(ledger);
    let child = HeapChild::run(|| work(&place, &committed).map_or(1, |()| 0));
    assert!(libc::WIFSTOPPED(child.wait()));
    let (file, mut seen) = (SteppedFile::new(&place), Vec::new());
    let (mut images, mut instructions) = (0, 0);
    while step(&child) {
        instructions += 1;
        if file.bytes() == seen {
            continue;
        }
        seen = file.bytes().to_vec();
        fs::write(&copy.path, &seen).unwrap();
        images += 1;
        let ledger = HeapLedger::new(copy.open(&SMALL).unwrap(), MAX_WORDS).unwrap();
        let (done, said) = (ledger.done(), committed.get());
        assert!(done == said || done == said + 1, "{said} were committed, {done} are there");
        let mut expected = Expected::NEW;
        expected.advance(done);
        ledger.check(&expected);
    }
    assert_eq!(committed.get(), 2 * STEPS);
    assert!(images > 40 && instructions > 10 * images, "{images} of {instructions}");
}
