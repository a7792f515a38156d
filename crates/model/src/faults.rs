//! Page faults of some processes: how many of which kind, where in the program, and in which memory.

use serde::{Deserialize, Serialize};

use crate::bounds::Folded;
use crate::calls::Ending;
use crate::histogram::Histogram;
use crate::mapping::{AddrRange, Quadrant};
use crate::reading::plain;
use crate::traced::{Counted, Frame, Profile};
use crate::{Absent, Bytes, Name, PageSize, Pid, Reading};

/// The form of a saved [`Recording`].
pub const VERSION: u32 = 1;

/// The page faults of a command or of a running process and of all that they made, added up where they are alike.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Recording {
    /// [`VERSION`], where it was saved.
    pub version: u32,
    /// The command, or the process that was running.
    pub pid: Pid,
    /// The command's words; none of a process that was running.
    pub command: Vec<Name>,
    /// The base page size.
    pub page_size: PageSize,
    /// The size of a transparent huge page.
    #[serde(with = "plain")]
    pub huge_page: Reading<Bytes>,
    /// When it began, in nanoseconds since 1970; none where that is not known.
    pub began_ns: Option<u64>,
    /// How long it took, in nanoseconds.
    pub took_ns: u64,
    /// How the command ended, or the process; `None` where it runs on.
    pub ending: Option<Ending>,
    /// What told of the faults.
    pub source: Source,
    /// Each of so many faults was recorded; every count is a multiple of it.
    pub every: u64,
    /// How many events are missing, since the kernel found no room to write them down.
    pub lost: u64,
    /// How many faults in user mode the kernel counted, recorded or not; none where it could not be asked.
    pub counted: Option<u64>,
    /// So many bytes of the stack were copied with each fault, to find callers by unwind tables; 0 where only frame pointers
    /// told of them.
    #[serde(default)]
    pub stack_bytes: u32,
    /// How many faults have call stacks that are known not to be whole; none where that is not known.
    #[serde(default)]
    pub cut: Option<u64>,
    /// What the kernel counted for the command and its children that it waited for: minor and major faults. With them are
    /// those that no event tells, of calls that fill memory at once.
    #[serde(with = "plain")]
    pub usage: Reading<(u64, u64)>,
    /// The calls that stacks are made of.
    pub frames: Vec<Frame>,
    /// Call stacks: numbers of frames, where it happened first, then its callers. None twice.
    pub stacks: Vec<Vec<u32>>,
    /// The mappings.
    pub mappings: Vec<Mapped>,
    /// The threads.
    pub threads: Vec<Thread>,
    /// What the recorder of the heap told; none where it was not asked for, or told nothing.
    #[serde(default)]
    pub heap: Option<Heap>,
    /// What happened.
    pub rows: Vec<Row>,
    /// How long faults took, by kind; empty where that was not asked for.
    pub latencies: Vec<(Kind, Histogram)>,
    /// When they happened.
    pub time_line: TimeLine,
    /// What was not kept apart, for want of memory.
    #[serde(default)]
    pub folded: Folded,
    /// What could not be learned, and what it takes.
    pub lacks: Vec<Absent>,
}

/// What told of the faults.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Source {
    /// The tracepoints `exceptions:page_fault_user` and `exceptions:page_fault_kernel`: with what the program wanted to do.
    Tracepoints,
    /// The events of the kernel for minor and major faults. Whether a fault wrote is not known.
    Counters,
}

/// What a fault was.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Kind {
    /// A page of memory of no file was touched first.
    Anonymous,
    /// A page of private memory of no file was read that was never written: it is the kernel's zero page.
    Zero,
    /// A page of a file was mapped that was in memory already.
    File,
    /// A page was written that is private and was somebody else's too, or the file's: it was copied.
    CopyOnWrite,
    /// A page of shared memory was written that was there, read-only until then: the kernel notes that it is dirty.
    WriteProtect,
    /// A huge page was made, or mapped.
    Huge,
    /// It had to wait for I/O.
    Major,
    /// What it was for cannot be told.
    Unknown,
}

impl Kind {
    /// All, in the order in which they are shown.
    pub const ALL: [Kind; 8] = [
        Kind::Anonymous,
        Kind::Zero,
        Kind::File,
        Kind::CopyOnWrite,
        Kind::WriteProtect,
        Kind::Huge,
        Kind::Major,
        Kind::Unknown,
    ];

    /// The name used as a key.
    pub const fn key(self) -> &'static str {
        match self {
            Kind::Anonymous => "anonymous",
            Kind::Zero => "zero_page",
            Kind::File => "file",
            Kind::CopyOnWrite => "copy_on_write",
            Kind::WriteProtect => "write_protect",
            Kind::Huge => "huge",
            Kind::Major => "major",
            Kind::Unknown => "unknown",
        }
    }

    /// The name in words.
    pub const fn label(self) -> &'static str {
        match self {
            Kind::Anonymous => "minor anonymous",
            Kind::Zero => "zero page",
            Kind::File => "minor file",
            Kind::CopyOnWrite => "copy-on-write",
            Kind::WriteProtect => "write-protect",
            Kind::Huge => "huge",
            Kind::Major => "major",
            Kind::Unknown => "unknown",
        }
    }

    /// What it is, in a sentence.
    pub const fn meaning(self) -> &'static str {
        match self {
            Kind::Anonymous => "Memory of no file was touched first: the kernel zeroed a page.",
            Kind::Zero => {
                "Private memory of no file was read before it was written: the kernel's zero page is there now."
            }
            Kind::File => {
                "A page of a file that was in memory already was mapped, and its neighbours with it."
            }
            Kind::CopyOnWrite => {
                "A page that is private was written first: it was copied, unless nobody else had it."
            }
            Kind::WriteProtect => {
                "A page of shared memory that could only be read was written: it is dirty from now on."
            }
            Kind::Huge => "A huge page was made or mapped.",
            Kind::Major => {
                "The page came from a disk, or the fault waited for a lock or for another that read it."
            }
            Kind::Unknown => "In no mapping that is known, or an access that is not allowed.",
        }
    }

    /// As an index.
    pub const fn index(self) -> usize {
        self as usize
    }
}

/// A mapping in which there were faults. Neighbours of no file that the kernel made one are one here.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Mapped {
    /// The process in which it was seen first; its children may have it too.
    pub pid: Pid,
    /// Where it was.
    pub range: AddrRange,
    /// The name as `maps` prints it; empty where there is none.
    pub name: Name,
    /// The quadrant by what was asked of `mmap`; none where the address was in no mapping that is known.
    pub quadrant: Option<Quadrant>,
}

/// A thread.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Thread {
    /// Its process.
    pub pid: Pid,
    /// Its number.
    pub tid: Pid,
    /// Its name: the last that it had.
    pub name: Name,
}

/// What the recorder of the heap told of the process that the recording is of.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Heap {
    /// Blocks of fewer bytes are not told of.
    pub least: u64,
    /// How often what was live came to be unknown, since nobody had read the log in time.
    pub lost: u64,
    /// Processes that the command made which loaded the recorder, and were not recorded.
    pub refused: u64,
    /// Who allocated.
    pub allocations: Vec<Allocation<u32>>,
}

/// What a call stack allocated.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Allocation<F> {
    /// Blocks that are told of; 0 where only the allocator faulted.
    pub blocks: u64,
    /// Their bytes, as asked for.
    pub bytes: u64,
    /// Who asked for them, then its callers.
    pub frames: Vec<F>,
}

impl Heap {
    /// The allocation that memory is of; none where it is of none that is known.
    pub fn allocation(&self, owner: Owner) -> Option<&Allocation<u32>> {
        let (Owner::Block(number) | Owner::Allocator(number)) = owner else { return None };
        self.allocations.get(number as usize)
    }
}

/// Whose the memory is that faulted.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
)]
#[serde(rename_all = "snake_case")]
pub enum Owner {
    /// Nobody was asked: the heap of the process was not recorded, or not yet.
    #[default]
    Unrecorded,
    /// It is in a block that was live, of this of the allocations.
    Block(u32),
    /// The allocator touched it while it served this of the allocations, or freed something there.
    Allocator(u32),
    /// It is the recorder's own.
    Recorder,
    /// It is in no block that is told of: a small one, a stack, a file, what was mapped.
    Elsewhere,
}

impl Owner {
    /// The name used as a key.
    pub const fn key(self) -> &'static str {
        match self {
            Owner::Unrecorded => "unrecorded",
            Owner::Block(_) => "block",
            Owner::Allocator(_) => "allocator",
            Owner::Recorder => "recorder",
            Owner::Elsewhere => "elsewhere",
        }
    }
}

/// Faults that are alike.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Row {
    /// Which of the call stacks.
    pub stack: u32,
    /// Which of the mappings.
    pub mapping: u32,
    /// Which of the threads.
    pub thread: u32,
    /// What they were.
    pub kind: Kind,
    /// Whether the kernel touched the memory in a system call of the program.
    pub by_kernel: bool,
    /// Whose memory it was.
    #[serde(default)]
    pub owner: Owner,
    /// How many.
    pub count: u64,
    /// How long they took together, in nanoseconds, where that was asked for.
    pub took_ns: Option<u64>,
}

/// How many faults there were, by kind, in spans of the same length.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct TimeLine {
    /// The length of a span in nanoseconds.
    pub span_ns: u64,
    /// The spans, from the beginning.
    pub spans: Vec<[u64; Kind::ALL.len()]>,
}

impl Recording {
    /// By call stack, for pictures and other tools.
    pub fn profile(&self) -> Profile {
        let stack = |stack: &Vec<u32>| {
            stack.iter().filter_map(|frame| self.frames.get(*frame as usize).cloned()).collect()
        };
        let sample = |row: &Row| {
            let thread = self.threads.get(row.thread as usize);
            let mapping = self.mappings.get(row.mapping as usize);
            let mapping = mapping.map(|it| it.name.escaped().into_owned()).unwrap_or_default();
            let quadrant = self.mappings.get(row.mapping as usize).and_then(|it| it.quadrant);
            let mut labels = vec![("kind".to_owned(), row.kind.key().to_owned())];
            labels.extend((!mapping.is_empty()).then(|| ("mapping".to_owned(), mapping)));
            labels.extend(quadrant.map(|it| ("quadrant".to_owned(), it.key().to_owned())));
            if let Some(heap) = &self.heap {
                labels.push(("owner".to_owned(), row.owner.key().to_owned()));
                let name = heap.allocation(row.owner).and_then(|it| self.asked_for(it));
                labels.extend(name.map(|name| ("allocation".to_owned(), name)));
            }
            Counted {
                stack: row.stack,
                count: row.count,
                took_ns: row.took_ns,
                // Threads that are not kept apart have no number.
                thread: thread.filter(|it| it.tid.0 != 0).map(|it| (it.pid.0, it.tid.0)),
                labels,
            }
        };
        Profile {
            what: "page faults".to_owned(),
            began_ns: self.began_ns,
            took_ns: self.took_ns,
            stacks: self.stacks.iter().map(stack).collect(),
            samples: self.rows.iter().map(sample).collect(),
        }
    }

    /// Who asked for memory, in a word.
    fn asked_for(&self, allocation: &Allocation<u32>) -> Option<String> {
        let frame = self.frames.get(*allocation.frames.first()? as usize)?;
        let base = |module: &Name| Name::new(module.base()).escaped().into_owned();
        frame.function.clone().or_else(|| frame.module.as_ref().map(base))
    }

    /// All faults that were recorded, those that the samples stand for among them.
    pub fn count(&self) -> u64 {
        self.rows.iter().map(|row| row.count).sum()
    }
}
