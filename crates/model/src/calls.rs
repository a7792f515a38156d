//! The memory system calls of some processes, in the order in which they were done, and what happened between them.

use serde::{Deserialize, Serialize};

use crate::reading::plain;
use crate::{AddrRange, Bytes, Name, PageSize, Pid, Reading};

/// What was recorded of a command or of a running process, and of all that they made.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Recording {
    /// The command, or the process that was running.
    pub pid: Pid,
    /// The command's words; none of a process that was running.
    pub command: Vec<Name>,
    /// The base page size.
    pub page_size: PageSize,
    /// The size of a huge page where a call does not say which (`Hugepagesize` of `meminfo`).
    #[serde(with = "plain")]
    pub huge_page: Reading<Bytes>,
    /// At which system calls the processes were stopped.
    pub stops: Stops,
    /// How long it took, in nanoseconds.
    pub took_ns: u64,
    /// The longest time for which all threads of a process that was running were stopped at once, in nanoseconds.
    #[serde(default)]
    pub paused_ns: Option<u64>,
    /// How the command ended, or the process; `None` where it runs on.
    pub ending: Option<Ending>,
    /// The processes that were there at the end.
    pub left: Vec<Pid>,
    /// What happened, in order.
    pub events: Vec<Event>,
    /// How many calls were made that are not among them, since the recording had taken its memory.
    #[serde(default)]
    pub lost: u64,
    /// How many processes were made that are not among them, for the same reason.
    #[serde(default)]
    pub lost_processes: u64,
}

/// At which system calls processes are stopped.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Stops {
    /// At those about memory: a seccomp filter picks them out.
    MemoryCalls,
    /// At all: a process that runs cannot be given a filter, and some commands should not.
    EveryCall,
}

/// How a process ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Ending {
    /// By itself, with this status.
    Exited(i32),
    /// By this signal.
    Killed(i32),
}

/// Something that happened.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Event {
    /// Nanoseconds since the start; of a call, when it was made.
    pub time_ns: u64,
    /// The process.
    pub pid: Pid,
    /// The thread.
    pub tid: Pid,
    /// What.
    pub what: What,
}

/// What happened.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum What {
    /// A process was made, with a copy of the maker's memory or with the same.
    Born {
        /// The process that made it.
        by: Pid,
        /// Whether it is the same: `vfork`, `clone(CLONE_VM)`.
        shares_memory: bool,
    },
    /// A program is there: it was executed, or it ran already.
    Image(Box<Image>),
    /// The program itself begins: its entry point is reached, the dynamic linker is done.
    Begun,
    /// A memory call was done.
    Call(Call),
    /// The process ended.
    Ended {
        /// How.
        ending: Ending,
        /// VIRT just before, as the kernel counts it; `None` where it was gone already.
        virt: Option<Bytes>,
    },
    /// The recording ended and the process runs on.
    Left {
        /// VIRT then, as the kernel counts it.
        virt: Option<Bytes>,
    },
}

/// A program as a recording finds it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Image {
    /// Whether it was executed just now.
    pub executed: bool,
    /// The program's file.
    #[serde(with = "plain")]
    pub exe: Reading<Name>,
    /// Whether its calls are recorded: not those of a 32-bit program on a 64-bit kernel.
    pub is_native: bool,
    /// Whether [`What::Begun`] will tell when it begins.
    pub begin_is_told: bool,
    /// The dynamic linker's file; `None` of a static program.
    pub interpreter: Option<Name>,
    /// The program break.
    #[serde(with = "plain")]
    pub brk: Reading<u64>,
    /// What is mapped, by address, but for the kernel's own page outside of user space.
    #[serde(with = "plain")]
    pub mapped: Reading<Vec<Mapped>>,
}

/// A mapping's place and name.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Mapped {
    /// Where.
    pub range: AddrRange,
    /// The name as `maps` prints it; empty where there is none.
    pub name: Name,
}

/// A memory call and its result.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Call {
    /// Which.
    pub kind: Kind,
    /// What was passed; those that the call does not take are what was in the registers.
    pub arguments: [u64; 6],
    /// What it returned, or the error number.
    pub result: Result<u64, i32>,
    /// When it was seen to be done, in nanoseconds since the start. What other threads did meanwhile may have been
    /// done before or after it.
    pub done_ns: u64,
    /// From its start to its end, in nanoseconds; the cost of a stop is in it.
    pub took_ns: u64,
    /// The address of the code that made it.
    pub caller: u64,
    /// What the numbers alone do not tell.
    pub about: About,
}

/// What the numbers of a call do not tell.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum About {
    /// Nothing.
    Nothing,
    /// The file behind the descriptor that was passed.
    File(Name),
    /// The text that a pointer was to.
    Text(Name),
    /// What `shmat` attached, or `shmdt` detaches.
    Pieces(Vec<AddrRange>),
}

macro_rules! kinds {
    ($($kind:ident $name:literal)*) => {
        /// Which memory call.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
        #[serde(rename_all = "snake_case")]
        pub enum Kind {
            $(#[doc = concat!("`", $name, "`")] $kind,)*
        }

        impl Kind {
            /// All of them.
            pub const ALL: &'static [Kind] = &[$(Kind::$kind),*];

            /// The kernel's name.
            pub const fn name(self) -> &'static str {
                match self {
                    $(Kind::$kind => $name,)*
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

impl Kind {
    /// The call of that name.
    pub fn named(name: &str) -> Option<Kind> {
        Kind::ALL.iter().copied().find(|kind| kind.name() == name)
    }
}

/// `MAP_ANONYMOUS` of `linux/mman.h`.
pub const MAP_ANONYMOUS: u64 = 0x20;

/// The file descriptor among the arguments of a call, where it names a file.
pub fn descriptor(kind: Kind, arguments: &[u64; 6]) -> Option<i32> {
    let [_, _, _, flags, fd, _] = *arguments;
    // The kernel looks at the lower half of the register.
    let fd = u32::try_from(fd & u64::from(u32::MAX)).ok()?.cast_signed();
    (kind == Kind::Mmap && flags & MAP_ANONYMOUS == 0 && fd >= 0).then_some(fd)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_call_is_found_by_its_name() {
        for &kind in Kind::ALL {
            assert_eq!(Kind::named(kind.name()), Some(kind));
        }
        assert_eq!(Kind::named("read"), None);
    }
}
