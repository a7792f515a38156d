//! Where nobody has written down which registers a system call takes.

use std::io;

use super::{Function, Place};
use crate::ptrace::Tid;

/// Of no machine of ours.
#[derive(Clone, Copy, Debug)]
pub(super) struct Registers;

fn unsupported<T>() -> io::Result<T> {
    Err(io::ErrorKind::Unsupported.into())
}

impl Registers {
    /// Found nowhere.
    pub(super) const SYSCALL: &'static [u8] = &[];

    pub(super) fn of(_: Tid) -> io::Result<Registers> {
        unsupported()
    }

    pub(super) fn write(&self, _: Tid) -> io::Result<()> {
        unsupported()
    }

    pub(super) fn check(&self, _: Tid) -> io::Result<bool> {
        unsupported()
    }

    pub(super) fn for_call(&self, _: u64, _: libc::c_long, _: [u64; 6]) -> Registers {
        *self
    }

    pub(super) fn place(&self) -> Place {
        Place {
            instruction: 0,
            stack: 0,
            registers: [0; 17],
            thread_data: 0,
            call: None,
            returned: 0,
        }
    }

    pub(super) fn for_function(&self, _: &Function, _: [u64; 3]) -> Registers {
        *self
    }

    pub(super) fn way_back(&self, _: u64, _: u64, _: Vec<u8>) -> io::Result<Vec<u8>> {
        unsupported()
    }

    pub(super) fn result(&self) -> io::Result<u64> {
        unsupported()
    }
}

pub(super) fn extended_state(_: Tid) -> io::Result<Vec<u8>> {
    unsupported()
}

pub(super) fn set_extended_state(_: Tid, _: &[u8]) -> io::Result<()> {
    unsupported()
}

pub(super) fn ptrace_mask(_: Tid) -> io::Result<u64> {
    unsupported()
}

pub(super) fn set_ptrace_mask(_: Tid, _: u64) -> io::Result<()> {
    unsupported()
}
