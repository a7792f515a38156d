//! Architectures without remote calls: the register layout is not implemented, and every function
//! returns `Unsupported`.

use std::io;

use pagewise_sys::ptrace::Tid;

use crate::thread::{RemoteFunction, StopPoint};

pub(crate) const SYSCALL_AND_RETURN: &[u8] = &[];
pub(crate) const RESTORE: [&[u8]; 2] = [&[], &[]];
pub(crate) const RED_ZONE: u64 = 0;

pub(crate) mod layout {
    pub(crate) const VECTORS: u64 = 0;
    pub(crate) const FIRST_ARGUMENT: u64 = 0;
    pub(crate) const ALIGNMENT: u64 = 64;
    pub(crate) const HEAD: u64 = 0;
}

/// Placeholder for registers on architectures without remote calls.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Registers;

fn unsupported<T>() -> io::Result<T> {
    Err(io::ErrorKind::Unsupported.into())
}

impl Registers {
    pub(crate) fn read_from(_: Tid) -> io::Result<Registers> {
        unsupported()
    }

    pub(crate) fn write(&self, _: Tid) -> io::Result<()> {
        unsupported()
    }

    pub(crate) fn may_move(&self, _: Tid) -> io::Result<bool> {
        unsupported()
    }

    pub(crate) fn for_call(&self, _: u64, _: libc::c_long, _: [u64; 6], _: u64) -> Registers {
        *self
    }

    pub(crate) fn for_start(&self, _: u64, _: u64, _: u64) -> Registers {
        *self
    }

    pub(crate) fn place(&self) -> StopPoint {
        StopPoint { instruction: 0, stack: 0, registers: [0; 17], thread_data: 0, call: None }
    }

    pub(crate) fn for_function(&self, _: &RemoteFunction, _: [u64; 5], _: u64) -> Registers {
        *self
    }

    pub(crate) fn context(&self, _: u64, _: u64, _: Option<i64>) -> Vec<u8> {
        Vec::new()
    }

    pub(crate) fn continued(&self, _: &dyn Fn(u64, usize) -> Vec<u8>) -> Option<i64> {
        None
    }

    pub(crate) fn result(&self) -> io::Result<u64> {
        unsupported()
    }
}

pub(crate) fn vector_image(_: Vec<u8>) -> io::Result<Vec<u8>> {
    unsupported()
}

pub(crate) fn extended_state(_: Tid) -> io::Result<Vec<u8>> {
    unsupported()
}

pub(crate) fn set_extended_state(_: Tid, _: &[u8]) -> io::Result<()> {
    unsupported()
}

pub(crate) fn signal_mask(_: Tid) -> io::Result<u64> {
    unsupported()
}

pub(crate) fn set_signal_mask(_: Tid, _: u64) -> io::Result<()> {
    unsupported()
}
