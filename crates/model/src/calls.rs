//! The memory system calls of some processes in order of time, and the process events between them:
//! fork, `execve`, exit.

use serde::{Deserialize, Serialize};

use crate::ending::ProgramEnding;
use crate::reading::plain;
use crate::{AddrRange, Bytes, Name, PageSize, Pid, Reading};

/// Memory calls of a command or of a running process, and of all its descendants.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CallRecording {
    /// PID of the command, or of the process that was already running.
    pub pid: Pid,
    /// Words of the command line; empty for a process that was already running.
    pub command: Vec<Name>,
    /// The base page size.
    pub page_size: PageSize,
    /// The size of a huge page if the arguments of a call do not select one (`Hugepagesize` of
    /// `meminfo`).
    #[serde(with = "plain")]
    pub huge_page: Reading<Bytes>,
    /// System calls at which the processes were stopped.
    pub stops: CallStops,
    /// Duration of the recording in nanoseconds.
    pub took_ns: u64,
    /// The longest time for which all threads of an already running process were stopped at once,
    /// in nanoseconds.
    #[serde(default)]
    pub paused_ns: Option<u64>,
    /// Ending of the command or process; `None` if it is still running.
    pub ending: Option<ProgramEnding>,
    /// PIDs of the processes that were still running at the end.
    pub left: Vec<Pid>,
    /// Events in order of time.
    pub events: Vec<CallEvent>,
    /// Number of further calls that were not stored, because the memory limit was reached.
    #[serde(default)]
    pub lost: u64,
    /// Number of further processes that were not stored, because the memory limit was reached.
    #[serde(default)]
    pub lost_processes: u64,
}

/// System calls at which processes are stopped.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum CallStops {
    /// Memory system calls, selected by a seccomp filter.
    MemoryCalls,
    /// All system calls. The recorder did not use a seccomp filter, for example because the process
    /// was already running.
    EveryCall,
}

/// A system call, or an event of a process.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CallEvent {
    /// Nanoseconds since the start; for a call, the time at which it began.
    pub time_ns: u64,
    /// The process that made the call or that the event is about.
    pub pid: Pid,
    /// The thread that made the call or that the event is about.
    pub tid: Pid,
    /// Content of the event.
    pub what: CallEventKind,
}

/// Content of an event.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum CallEventKind {
    /// A process was created. It has a copy of its creator's memory, or shares that memory.
    Born {
        /// PID of the process that created it with `fork` or `clone`.
        by: Pid,
        /// True if both processes share one address space: `vfork`, `clone(CLONE_VM)`.
        shares_memory: bool,
    },
    /// A program image: the result of `execve`, or the image of a process that was already running.
    Image(Box<ProgramImage>),
    /// The program reached its entry point, so the dynamic linker has finished.
    Begun,
    /// A memory call returned.
    Call(MemoryCall),
    /// The process ended.
    Ended {
        /// Exit status or signal.
        ending: ProgramEnding,
        /// VIRT just before the end, as the kernel counts it; `None` if the kernel had already
        /// released the memory.
        virt: Option<Bytes>,
    },
    /// The recording ended while the process was running.
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
    /// Path of the program's file.
    #[serde(with = "plain")]
    pub exe: Reading<Name>,
    /// True if the program's calls are recorded; false for a 32-bit program on a 64-bit kernel.
    pub is_native: bool,
    /// True if [`CallEventKind::Begun`] will follow when the program reaches its entry point.
    pub begin_is_told: bool,
    /// Path of the dynamic linker; `None` for a statically linked program.
    pub interpreter: Option<Name>,
    /// The program break (an address).
    #[serde(with = "plain")]
    pub brk: Reading<u64>,
    /// Mappings by address, without the kernel's `[vsyscall]` page.
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
    /// Time at which the recorder saw the end of the call, in nanoseconds since the start.
    /// Overlapping calls of other threads may have taken effect before or after this call.
    pub done_ns: u64,
    /// Duration in nanoseconds, the ptrace stops included.
    pub took_ns: u64,
    /// Address after the instruction that made the system call.
    pub caller: u64,
    /// Details that the argument registers and the result do not contain.
    pub about: CallDetail,
}

/// Details of a call that its argument registers and its result do not contain.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum CallDetail {
    /// The argument registers and the result contain all details.
    Nothing,
    /// Path of the file of the descriptor that was passed.
    File(Name),
    /// The string that a pointer argument points to.
    Text(Name),
    /// Address ranges that `shmat` attached, or that `shmdt` detaches.
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
            /// All memory system calls.
            pub const ALL: &'static [MemoryCallKind] = &[$(MemoryCallKind::$kind),*];

            /// The kernel's name of the system call.
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
    /// Returns the system call with this name; `None` for other names.
    pub fn named(name: &str) -> Option<MemoryCallKind> {
        MemoryCallKind::ALL.iter().copied().find(|kind| kind.name() == name)
    }
}

/// `MAP_ANONYMOUS` of `linux/mman.h`.
pub const MAP_ANONYMOUS: u64 = 0x20;

/// Returns the file descriptor among the arguments of a call; `None` if the call does not map a
/// file.
pub fn descriptor(kind: MemoryCallKind, arguments: &[u64; 6]) -> Option<i32> {
    let [_, _, _, flags, fd, _] = *arguments;
    // The kernel reads only the lower 32 bits of the register.
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
