//! The notes of a core file: threads, the process, mapped files, auxiliary vector, signal.
//!
//! ```text
//! | name size | description size | type | name, padded to 4 | description, padded to 4 |
//! ```
//! The notes of a thread begin with its NT_PRSTATUS.

use pagewise_model::core_dump::CoreWriter;
use pagewise_model::machine::Gap;
use pagewise_model::mapping::AddrRange;
use pagewise_model::{Name, Pid};

use super::bytes::{CoreBytes, u32_at, u64_at};
use super::gap;
use super::headers::CoreMachine;

/// Maximum number of threads: more than `kernel.threads-max` allows on most machines.
const MAX_THREADS: usize = 1 << 18;
/// Maximum number of mapped files: more than the number of mappings that a process can have.
const MAX_FILES: usize = 1 << 20;
/// Maximum size in bytes of NT_FILE. The kernel limits this note to 16 MiB.
const MAX_FILE_NOTE: u64 = 32 << 20;
/// Maximum number of notes. Each thread has about ten.
const MAX_NOTES: u64 = 1 << 22;
/// Maximum size in bytes of the auxiliary vector. Linux passes about 25 pairs of 16 bytes.
const MAX_AUXILIARY: u64 = 4000;
/// Maximum size in bytes of the descriptions of all other notes that are read.
const MAX_SMALL_NOTE: u64 = 1 << 10;

const NT_PRSTATUS: u32 = 1;
const NT_PRPSINFO: u32 = 3;
const NT_AUXV: u32 = 6;
const NT_SIGINFO: u32 = 0x5349_4749;
const NT_FILE: u32 = 0x4649_4c45;
const NT_ARM_TLS: u32 = 0x401;

/// Types of the auxiliary vector, `linux/auxvec.h`.
pub(super) const AT_PHDR: u64 = 3;
pub(super) const AT_PAGESZ: u64 = 6;
pub(super) const AT_ENTRY: u64 = 9;
pub(super) const AT_RANDOM: u64 = 25;
pub(super) const AT_EXECFN: u64 = 31;
pub(super) const AT_SYSINFO_EHDR: u64 = 33;

/// All notes.
#[derive(Debug)]
pub struct CoreNotes {
    /// The threads, in the order of the file. The kernel writes the thread that received the signal
    /// first.
    pub threads: Vec<ThreadNote>,
    /// The process (NT_PRPSINFO).
    pub process: Option<ProcessNote>,
    /// The auxiliary vector: types and values.
    pub auxiliary: Vec<(u64, u64)>,
    /// Mapped files (NT_FILE), by address; they do not overlap. `None` without the note.
    pub files: Option<Vec<MappedFileNote>>,
    /// Unit of the offsets in NT_FILE, in bytes.
    pub file_page_size: u64,
    /// The first NT_SIGINFO.
    pub signal: Option<SignalNote>,
    /// The writer of the file.
    pub writer: CoreWriter,
}

/// One thread (NT_PRSTATUS).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ThreadNote {
    /// Thread ID.
    pub tid: Pid,
    /// Process ID of the parent process.
    pub parent: Pid,
    /// Signal number (`pr_cursig`); 0 for none. The kernel writes the signal that ended the process
    /// into the notes of all threads.
    pub signal: u32,
    /// The instruction pointer.
    pub instruction: u64,
    /// The stack pointer.
    pub stack_pointer: u64,
    /// The base of thread-local storage.
    pub thread_pointer: u64,
    /// General registers, instruction pointer and stack pointer included. Empty for a machine whose
    /// registers are unknown.
    pub registers: Vec<u64>,
}

/// The process (NT_PRPSINFO).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ProcessNote {
    /// State letter.
    pub state: char,
    /// Real user id.
    pub uid: u32,
    /// Process ID.
    pub pid: Pid,
    /// Process ID of the parent process.
    pub parent: Pid,
    /// `comm` of the first thread.
    pub name: Name,
    /// First 79 bytes of the command line, with blanks between the arguments.
    pub arguments: Name,
}

/// One mapped file (an entry of NT_FILE).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MappedFileNote {
    /// Address range of the mapping.
    pub range: AddrRange,
    /// Offset in the file, in bytes.
    pub offset: u64,
    /// Path of the file, as `maps` prints it.
    pub name: Name,
}

/// A signal (NT_SIGINFO).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SignalNote {
    /// `si_signo`
    pub number: u32,
    /// `si_code`
    pub code: i32,
    /// First word of the fields that depend on the signal: for a fault, the address.
    pub word: u64,
}

impl CoreNotes {
    /// Returns the value of an entry of the auxiliary vector; `None` without an entry of this type,
    /// or if the value is 0.
    pub fn auxiliary(&self, wanted: u64) -> Option<u64> {
        let found = self.auxiliary.iter().find(|(kind, _)| *kind == wanted);
        found.map(|(_, value)| *value).filter(|value| *value != 0)
    }

    /// The mapped file at an address.
    pub fn file_at(&self, address: u64) -> Option<&MappedFileNote> {
        let files = self.files.as_deref()?;
        let after = files.partition_point(|file| file.range.start <= address);
        files.get(after.checked_sub(1)?).filter(|file| file.range.contains(address))
    }
}

/// Layout of NT_PRSTATUS of a machine. The registers are 8-byte words from offset 112 on; the
/// fields count and index these words.
struct RegisterLayout {
    count: usize,
    instruction: usize,
    stack_pointer: usize,
    /// Index of the thread pointer; `None` if another note contains the thread pointer.
    thread_pointer: Option<usize>,
    /// Indices of the registers that hold no addresses: flags and segment selectors.
    skipped: &'static [usize],
}

const REGISTERS: usize = 112;

/// `struct user_regs_struct` of x86-64: r15 ... rdi, orig_rax, rip, cs, eflags, rsp, ss, fs_base,
/// gs_base, ds, es, fs, gs.
const X86_REGISTERS: RegisterLayout = RegisterLayout {
    count: 27,
    instruction: 16,
    stack_pointer: 19,
    thread_pointer: Some(21),
    skipped: &[15, 17, 18, 20, 21, 22, 23, 24, 25, 26],
};

/// `struct user_pt_regs` of arm64: x0 ... x30, sp, pc, pstate.
const ARM_REGISTERS: RegisterLayout = RegisterLayout {
    count: 34,
    instruction: 32,
    stack_pointer: 31,
    thread_pointer: None,
    skipped: &[33],
};

impl RegisterLayout {
    const fn of(machine: CoreMachine) -> Option<&'static RegisterLayout> {
        match machine {
            CoreMachine::X86 => Some(&X86_REGISTERS),
            CoreMachine::Arm => Some(&ARM_REGISTERS),
            CoreMachine::Other(_) => None,
        }
    }
}

/// Reads all notes. Damaged notes, and notes beyond a bound, become gaps.
pub(super) fn read(
    bytes: &CoreBytes,
    machine: CoreMachine,
    segments: &[(u64, u64)],
    gaps: &mut Vec<Gap>,
) -> CoreNotes {
    let mut reader = NoteReader {
        bytes,
        layout: RegisterLayout::of(machine),
        notes: CoreNotes {
            threads: Vec::new(),
            process: None,
            auxiliary: Vec::new(),
            files: None,
            file_page_size: 0,
            signal: None,
            writer: CoreWriter::Unknown,
        },
        left: MAX_NOTES,
        first: None,
        gaps,
    };
    for &(offset, len) in segments {
        reader.segment(offset, len);
    }
    reader.finish(machine)
}

struct NoteReader<'a> {
    bytes: &'a CoreBytes,
    layout: Option<&'static RegisterLayout>,
    notes: CoreNotes,
    /// Number of notes that may still be read.
    left: u64,
    /// Type of the first note: gdb writes NT_PRPSINFO first, the kernel NT_PRSTATUS.
    first: Option<u32>,
    gaps: &'a mut Vec<Gap>,
}

/// Offset and length of the description of a note in the file.
#[derive(Clone, Copy)]
struct NoteDescription {
    offset: u64,
    len: u64,
}

impl NoteReader<'_> {
    fn segment(&mut self, start: u64, len: u64) {
        let end = start.saturating_add(len);
        let held = end.min(self.bytes.len());
        if held < end {
            let reason = format!(
                "the file is truncated: {} of {len} bytes are there",
                held.saturating_sub(start)
            );
            self.gaps.push(gap("notes", reason));
        }
        let mut at = start;
        while at < held {
            let next = self.note(at, held);
            match next {
                Some(next) if self.left > 0 => at = next,
                // The missing part of a truncated segment is already reported as a gap.
                _ if held < end => return,
                Some(_) => {
                    let reason = format!("at most {MAX_NOTES} are read, up to offset {at:#x}");
                    self.gaps.push(gap("notes", reason));
                    return;
                }
                None => {
                    self.gaps.push(gap("notes", format!("damaged from offset {at:#x} on")));
                    return;
                }
            }
        }
    }

    /// Reads one note. Returns the offset of the next note, or `None` if the segment ends within
    /// this note.
    fn note(&mut self, at: u64, end: u64) -> Option<u64> {
        self.left = self.left.saturating_sub(1);
        let header = self.bytes.array::<12>(at)?;
        let [name_len, len, kind] = [0, 4, 8].map(|at| u32_at(&header, at).unwrap_or(0));
        let name_at = at + header.len() as u64;
        let offset = name_at + u64::from(name_len).next_multiple_of(4);
        let description = NoteDescription { offset, len: len.into() };
        let next = offset + description.len.next_multiple_of(4);
        // The padding of the last note may be missing.
        if offset + description.len > end {
            return None;
        }
        let name = match name_len {
            4..=6 => self.bytes.vec(name_at, name_len as usize)?,
            _ => Vec::new(),
        };
        match name.strip_suffix(b"\0").unwrap_or(&name) {
            b"CORE" => self.core_note(kind, description),
            b"LINUX" if kind == NT_ARM_TLS => self.thread_pointer(description),
            b"GDB" => self.notes.writer = CoreWriter::Gdb,
            _ => {}
        }
        Some(next)
    }

    fn core_note(&mut self, kind: u32, description: NoteDescription) {
        self.first.get_or_insert(kind);
        match kind {
            NT_PRSTATUS => self.thread(description),
            NT_PRPSINFO => self.process(description),
            NT_AUXV => self.auxiliary(description),
            NT_SIGINFO => self.signal(description),
            NT_FILE => self.files(description),
            _ => {}
        }
    }

    /// Reads the description of a note. A description of more than `bound` bytes becomes a gap.
    fn description(&mut self, note: NoteDescription, bound: u64, part: &str) -> Option<Vec<u8>> {
        let len = usize::try_from(note.len).ok().filter(|_| note.len <= bound);
        let Some(len) = len else {
            let reason = format!("{} bytes at {:#x}: too large", note.len, note.offset);
            self.gaps.push(gap(part, reason));
            return None;
        };
        self.bytes.vec(note.offset, len)
    }

    fn thread(&mut self, note: NoteDescription) {
        if self.notes.threads.len() >= MAX_THREADS {
            return;
        }
        let thread = self
            .description(note, MAX_SMALL_NOTE, "thread")
            .and_then(|bytes| parse_thread(&bytes, self.layout));
        match thread {
            Some(thread) => self.notes.threads.push(thread),
            None => {
                let reason = format!("its status at {:#x} has an unknown layout", note.offset);
                self.gaps.push(gap("a thread", reason));
            }
        }
    }

    fn thread_pointer(&mut self, note: NoteDescription) {
        let word = (note.len >= 8).then(|| self.bytes.array::<8>(note.offset)).flatten();
        if let (Some(thread), Some(word)) = (self.notes.threads.last_mut(), word) {
            thread.thread_pointer = u64::from_le_bytes(word);
        }
    }

    fn process(&mut self, note: NoteDescription) {
        let bytes = self.description(note, MAX_SMALL_NOTE, "process");
        let process = bytes.as_deref().and_then(parse_process);
        self.notes.process = self.notes.process.take().or(process);
    }

    fn auxiliary(&mut self, note: NoteDescription) {
        let Some(bytes) = self.description(note, MAX_AUXILIARY, "auxiliary vector") else { return };
        let (words, _) = bytes.as_chunks::<8>();
        let words: Vec<u64> = words.iter().map(|word| u64::from_le_bytes(*word)).collect();
        let (pairs, _) = words.as_chunks::<2>();
        self.notes.auxiliary = pairs.iter().map(|[kind, value]| (*kind, *value)).collect();
    }

    fn signal(&mut self, note: NoteDescription) {
        let bytes = self.description(note, MAX_SMALL_NOTE, "signal");
        let signal = bytes.as_deref().and_then(parse_signal);
        self.notes.signal = self.notes.signal.take().or(signal);
    }

    fn files(&mut self, note: NoteDescription) {
        let Some(bytes) = self.description(note, MAX_FILE_NOTE, "mapped files") else { return };
        // The kernel of some distributions writes the note twice.
        if self.notes.files.is_some() {
            return;
        }
        let Some(parsed) = parse_files(&bytes) else {
            let reason = format!("the note at {:#x} is damaged", note.offset);
            self.gaps.push(gap("mapped files", reason));
            return;
        };
        if parsed.dropped > 0 {
            let reason = format!("{} entries are damaged", parsed.dropped);
            self.gaps.push(gap("mapped files", reason));
        }
        self.notes.file_page_size = parsed.page_size;
        self.notes.files = Some(parsed.files);
    }

    fn finish(mut self, machine: CoreMachine) -> CoreNotes {
        if self.notes.writer == CoreWriter::Unknown {
            self.notes.writer = match self.first {
                Some(NT_PRSTATUS) => CoreWriter::Kernel,
                Some(NT_PRPSINFO) => CoreWriter::Gdb,
                _ => CoreWriter::Unknown,
            };
        }
        if let CoreMachine::Other(number) = machine {
            let reason = format!("their layout on ELF machine {number} is unknown");
            self.gaps.push(gap("registers", reason));
        }
        if self.notes.threads.len() >= MAX_THREADS {
            let reason = format!("at most {MAX_THREADS} are read");
            self.gaps.push(gap("threads", reason));
        }
        let missing = [
            (self.notes.threads.is_empty(), "threads", "NT_PRSTATUS"),
            (self.notes.process.is_none(), "name and owner of the process", "NT_PRPSINFO"),
            (self.notes.files.is_none(), "names of mapped files", "NT_FILE"),
            (self.notes.auxiliary.is_empty(), "auxiliary vector", "NT_AUXV"),
        ];
        let missing = missing.iter().filter(|(is_missing, ..)| *is_missing);
        self.gaps.extend(missing.map(|(_, part, note)| gap(part, format!("no {note} note"))));
        self.notes
    }
}

fn parse_thread(bytes: &[u8], layout: Option<&RegisterLayout>) -> Option<ThreadNote> {
    let id = |at| u32_at(bytes, at).map(Pid);
    let word = |index: usize| u64_at(bytes, REGISTERS + 8 * index);
    let mut thread = ThreadNote {
        tid: id(32)?,
        parent: id(36)?,
        // `pr_cursig` is a short.
        signal: u32_at(bytes, 12)? & 0xffff,
        instruction: 0,
        stack_pointer: 0,
        thread_pointer: 0,
        registers: Vec::new(),
    };
    if let Some(layout) = layout {
        thread.instruction = word(layout.instruction)?;
        thread.stack_pointer = word(layout.stack_pointer)?;
        thread.thread_pointer = layout.thread_pointer.map_or(Some(0), word)?;
        let general = (0..layout.count).filter(|index| !layout.skipped.contains(index));
        thread.registers = general.map(word).collect::<Option<_>>()?;
    }
    Some(thread)
}

fn parse_process(bytes: &[u8]) -> Option<ProcessNote> {
    let id = |at| u32_at(bytes, at).map(Pid);
    Some(ProcessNote {
        state: match bytes.get(1)? {
            letter @ (b'A'..=b'Z' | b'a'..=b'z') => char::from(*letter),
            _ => '?',
        },
        uid: u32_at(bytes, 16)?,
        pid: id(24)?,
        parent: id(28)?,
        name: until_nul(bytes.get(40..56)?),
        arguments: Name::new(until_nul(bytes.get(56..136)?).as_bytes().trim_ascii_end()),
    })
}

fn until_nul(bytes: &[u8]) -> Name {
    Name::new(&bytes[..memchr::memchr(0, bytes).unwrap_or(bytes.len())])
}

fn parse_signal(bytes: &[u8]) -> Option<SignalNote> {
    let code = u32_at(bytes, 8)?;
    Some(SignalNote {
        number: u32_at(bytes, 0)?,
        code: i32::from_ne_bytes(code.to_ne_bytes()),
        word: u64_at(bytes, 16)?,
    })
}

struct ParsedFiles {
    page_size: u64,
    files: Vec<MappedFileNote>,
    dropped: usize,
}

/// `| count | page size | start, end, offset in pages | ... | names with NUL |`
fn parse_files(bytes: &[u8]) -> Option<ParsedFiles> {
    const ENTRY: usize = 24;
    let count = usize::try_from(u64_at(bytes, 0)?).ok().filter(|&count| count <= MAX_FILES)?;
    let page_size = u64_at(bytes, 8)?;
    let table = bytes.get(16..)?.get(..count.checked_mul(ENTRY)?)?;
    let mut names = &bytes[16 + table.len()..];
    let mut files: Vec<MappedFileNote> = Vec::new();
    let mut dropped = 0;
    for entry in table.chunks_exact(ENTRY) {
        let [start, end, offset] = [0, 8, 16].map(|at| u64_at(entry, at).unwrap_or(0));
        let Some(len) = memchr::memchr(0, names) else {
            dropped = count - files.len();
            break;
        };
        let name = &names[..len];
        names = &names[len + 1..];
        // The kernel writes the mapped files in order of address.
        let last = files.last();
        let is_valid = start < end && last.is_none_or(|last| last.range.end <= start);
        if !is_valid {
            dropped += 1;
            continue;
        }
        let shared = last.filter(|last| last.name.as_bytes() == name);
        files.push(MappedFileNote {
            range: AddrRange { start, end },
            offset: offset.saturating_mul(page_size),
            name: shared.map_or_else(|| Name::new(name), |last| last.name.clone()),
        });
    }
    Some(ParsedFiles { page_size, files, dropped })
}
