//! The memory system calls of some processes in order of time, and the process events between them:
//! fork, `execve`, exit.

use serde::{Deserialize, Serialize};

use crate::ending::ProgramEnding;
use crate::reading::plain;
use crate::{AddrRange, Bytes, Name, PageSize, Pid, Reading};

/// Memory calls of a command or of a running process, and of all its descendants.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CallRecording {
    /// The command, or the process that was running.
    pub pid: Pid,
    /// The command's words; empty for a process that was already running.
    pub command: Vec<Name>,
    /// The base page size.
    pub page_size: PageSize,
    /// The size of a huge page if the arguments of a call do not select one (`Hugepagesize` of
    /// `meminfo`).
    #[serde(with = "plain")]
    pub huge_page: Reading<Bytes>,
    /// System calls at which the processes were stopped.
    pub stops: CallStops,
    /// Duration in nanoseconds.
    pub took_ns: u64,
    /// The longest time for which all threads of an already running process were stopped at once,
    /// in nanoseconds.
    #[serde(default)]
    pub paused_ns: Option<u64>,
    /// Ending of the command or process; `None` if it is still running.
    pub ending: Option<ProgramEnding>,
    /// Processes that still ran at the end.
    pub left: Vec<Pid>,
    /// Events in order of time.
    pub events: Vec<CallEvent>,
    /// Number of further calls that were not stored, because the memory limit was reached.
    #[serde(default)]
    pub lost: u64,
    /// Number of further processes that were not stored, for the same reason.
    #[serde(default)]
    pub lost_processes: u64,
}

/// System calls at which processes are stopped.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum CallStops {
    /// Memory system calls, selected by a seccomp filter.
    MemoryCalls,
    /// All system calls: a running process cannot be given a filter, and some commands should not
    /// get one.
    EveryCall,
}

/// A system call, or an event of a process.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CallEvent {
    /// Nanoseconds since the start; for a call, the time at which it began.
    pub time_ns: u64,
    /// The process.
    pub pid: Pid,
    /// The thread.
    pub tid: Pid,
    /// Content of the event.
    pub what: CallEventKind,
}

/// Content of an event.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum CallEventKind {
    /// A process was created, with a copy of its creator's memory or with the same memory.
    Born {
        /// The process that created it.
        by: Pid,
        /// True if both use the same memory: `vfork`, `clone(CLONE_VM)`.
        shares_memory: bool,
    },
    /// A program image: after `execve`, or found in a process that was already running.
    Image(Box<ProgramImage>),
    /// The program reached its entry point: the dynamic linker has finished.
    Begun,
    /// A memory call was done.
    Call(MemoryCall),
    /// The process ended.
    Ended {
        /// Exit status or signal.
        ending: ProgramEnding,
        /// VIRT just before the end, as the kernel counts it; `None` if the memory was already
        /// released.
        virt: Option<Bytes>,
    },
    /// The recording ended and the process runs on.
    Left {
        /// VIRT at the end of the recording, as the kernel counts it.
        virt: Option<Bytes>,
    },
}

/// A program image of a recorded process.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ProgramImage {
    /// True after `execve`; false for a program that was already running.
    pub executed: bool,
    /// The program's file.
    #[serde(with = "plain")]
    pub exe: Reading<Name>,
    /// True if its calls are recorded; false for a 32-bit program on a 64-bit kernel.
    pub is_native: bool,
    /// True if [`CallEventKind::Begun`] will mark its beginning.
    pub begin_is_told: bool,
    /// The dynamic linker's file; `None` for a static program.
    pub interpreter: Option<Name>,
    /// The program break.
    #[serde(with = "plain")]
    pub brk: Reading<u64>,
    /// Mappings by address, without the kernel's own page outside of user space.
    #[serde(with = "plain")]
    pub mapped: Reading<Vec<NamedMapping>>,
}

/// Address range and name of a mapping.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct NamedMapping {
    /// Address range.
    pub range: AddrRange,
    /// The name as `maps` prints it; empty if the mapping has no name.
    pub name: Name,
}

/// A memory call and its result.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct MemoryCall {
    /// Kind of the call.
    pub kind: MemoryCallKind,
    /// Argument registers. Registers that the call does not use have arbitrary contents.
    pub arguments: [u64; 6],
    /// Return value, or the error number.
    pub result: Result<u64, i32>,
    /// Time at which the recorder saw the end of the call, in nanoseconds since the start. Calls of
    /// other threads that overlap may have taken effect before or after it.
    pub done_ns: u64,
    /// Duration in nanoseconds, the ptrace stops included.
    pub took_ns: u64,
    /// Program counter of the system call.
    pub caller: u64,
    /// Details that the numbers do not contain.
    pub about: CallDetail,
}

/// Details of a call that its numbers do not contain.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum CallDetail {
    /// Nothing.
    Nothing,
    /// The file behind the descriptor that was passed.
    File(Name),
    /// The string that a pointer argument points to.
    Text(Name),
    /// Ranges that `shmat` attached, or that `shmdt` detaches.
    Pieces(Vec<AddrRange>),
}

macro_rules! kinds {
    ($($kind:ident $name:literal)*) => {
        /// Memory system calls.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
        #[serde(rename_all = "snake_case")]
        pub enum MemoryCallKind {
            $(#[doc = concat!("`", $name, "`")] $kind,)*
        }

        impl MemoryCallKind {
            /// All of them.
            pub const ALL: &'static [MemoryCallKind] = &[$(MemoryCallKind::$kind),*];

            /// The kernel's name.
            pub const fn name(self) -> &'static str {
                match self {
                    $(MemoryCallKind::$kind => $name,)*
                }
            }
        }
    };
}

kinds! {
    Brk "brk"
    Mmap "mmap"
    Munmap "munmap"
    Mremap "mremap"
    Mprotect "mprotect"
    PkeyMprotect "pkey_mprotect"
    Madvise "madvise"
    ProcessMadvise "process_madvise"
    Msync "msync"
    Mlock "mlock"
    Mlock2 "mlock2"
    Munlock "munlock"
    Mlockall "mlockall"
    Munlockall "munlockall"
    Mincore "mincore"
    Mseal "mseal"
    RemapFilePages "remap_file_pages"
    Shmget "shmget"
    Shmat "shmat"
    Shmdt "shmdt"
    Shmctl "shmctl"
    MemfdCreate "memfd_create"
    MemfdSecret "memfd_secret"
    Userfaultfd "userfaultfd"
    ArchPrctl "arch_prctl"
    SetMempolicy "set_mempolicy"
    Mbind "mbind"
    MigratePages "migrate_pages"
    MovePages "move_pages"
    MapShadowStack "map_shadow_stack"
}

impl MemoryCallKind {
    /// The call of that name.
    pub fn named(name: &str) -> Option<MemoryCallKind> {
        MemoryCallKind::ALL.iter().copied().find(|kind| kind.name() == name)
    }
}

/// `MAP_ANONYMOUS` of `linux/mman.h`.
pub const MAP_ANONYMOUS: u64 = 0x20;

/// The file descriptor among the arguments of a call, if the call maps a file.
pub fn descriptor(kind: MemoryCallKind, arguments: &[u64; 6]) -> Option<i32> {
    let [_, _, _, flags, fd, _] = *arguments;
    // The kernel looks at the lower half of the register.
    let fd = u32::try_from(fd & u64::from(u32::MAX)).ok()?.cast_signed();
    (kind == MemoryCallKind::Mmap && flags & MAP_ANONYMOUS == 0 && fd >= 0).then_some(fd)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_call_is_found_by_its_name() {
        for &kind in MemoryCallKind::ALL {
            assert_eq!(MemoryCallKind::named(kind.name()), Some(kind));
        }
        assert_eq!(MemoryCallKind::named("read"), None);
    }
}
