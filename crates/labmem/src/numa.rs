//! NUMA: the policy by which the kernel chooses a node for new pages, and the migration of pages.

use std::ffi::{c_long, c_ulong};
use std::io;

/// Policy of a thread for its new pages. The numbers are those of `linux/mempolicy.h`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NodePolicy {
    /// The node of the CPU that touches the page first, or another one if that node is full.
    Local,
    /// Only these nodes; the kernel kills the process if they are full.
    Bind(u64),
    /// These nodes in turns, page by page.
    Interleave(u64),
}

/// Bits of a node set plus 1: the kernel ignores the last of the given number of bits.
const MAX_NODES: c_ulong = 65;

/// Sets the policy of this thread. Sets of nodes have a bit for each node.
///
/// # Errors
/// `EINVAL` for a node without memory, `ENOSYS` in kernels without NUMA.
pub fn set_policy(policy: NodePolicy) -> io::Result<()> {
    let (mode, nodes): (c_long, u64) = match policy {
        NodePolicy::Local => (0, 0),
        NodePolicy::Bind(nodes) => (2, nodes),
        NodePolicy::Interleave(nodes) => (3, nodes),
    };
    // SAFETY: the kernel reads the 64 bits of the set, and no other memory.
    let done = unsafe { libc::syscall(libc::SYS_set_mempolicy, mode, &raw const nodes, MAX_NODES) };
    if done == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// Moves the pages of this process from one set of nodes to another. Returns the number of pages
/// that could not be moved.
///
/// # Errors
/// `EINVAL` for a node without memory, `EPERM`, `ENOSYS` in kernels without NUMA.
pub fn migrate(from: u64, to: u64) -> io::Result<u64> {
    const THIS_PROCESS: c_long = 0;
    // SAFETY: the kernel reads the 64 bits of each set, and no other memory.
    let left = unsafe {
        libc::syscall(
            libc::SYS_migrate_pages,
            THIS_PROCESS,
            MAX_NODES,
            &raw const from,
            &raw const to,
        )
    };
    u64::try_from(left).map_err(|_| io::Error::last_os_error())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn node_0_is_accepted_and_a_node_without_memory_is_an_error() {
        match set_policy(NodePolicy::Interleave(1)) {
            Ok(()) => {
                assert!(set_policy(NodePolicy::Bind(1 << 63)).is_err());
                set_policy(NodePolicy::Local).unwrap();
            }
            Err(error) => assert_eq!(error.raw_os_error(), Some(libc::ENOSYS)),
        }
    }
}
