//! Memory, mappings and threads of a process at one time, from any source.

use pagewise_model::{AddrRange, Mapping};

/// A thread at the time of the scan.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ScannedThread {
    /// Its ID.
    pub tid: u32,
    /// Its name (`comm`); empty if unknown.
    pub name: Vec<u8>,
    /// The stack pointer.
    pub stack_pointer: u64,
    /// The base of thread-local storage (`fs` on x86-64).
    pub thread_pointer: u64,
    /// General registers, the stack pointer included. On x86-64 these are 17 in the order of perf
    /// samples: ax, bx, cx, dx, si, di, bp, sp, ip, r8 to r15. Elsewhere their order is arbitrary.
    pub registers: Vec<u64>,
}

/// The memory of a process at one time. Its contents are hostile: every value that is read may be
/// anything.
pub trait Memory: Sync {
    /// All mappings, in order of address.
    fn mappings(&self) -> &[Mapping];

    /// All threads.
    fn threads(&self) -> &[ScannedThread];

    /// Calls `each(address, bytes)` for the known bytes of `range`, in order of address. Pieces
    /// start at multiples of 8 and do not overlap. Pages that are not resident, and bytes that the
    /// source lacks, are left out: a page that was never touched holds no pointer.
    fn visit(&self, range: AddrRange, each: &mut dyn FnMut(u64, &[u8]));

    /// Fills `into` with the bytes at `address`. Returns false if any of them is not known.
    fn read(&self, address: u64, into: &mut [u8]) -> bool;

    /// The word at `address`, if it is known.
    fn word(&self, address: u64) -> Option<u64> {
        let mut bytes = [0; 8];
        self.read(address, &mut bytes).then(|| u64::from_le_bytes(bytes))
    }
}
