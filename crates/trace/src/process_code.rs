//! Code and data of one process at one time, live or in a core file: call stacks of its threads,
//! the functions in them, and types of its data.

use std::collections::HashMap;
use std::fmt;
use std::path::PathBuf;
use std::rc::Rc;
use std::time::Instant;

use pagewise_model::data_types::{DataTypes, TypeLack};
use pagewise_model::traced::Frame;
use pagewise_model::{Backing, Mapping, Name, Pid};
use pagewise_proc::target_file::FileId;

use crate::data_types::{CodeFrame, MAX_TIME, TypeRequest, add_types, code_frames, thread_storage};
use crate::elf::FileSource;
use crate::file_symbols::{FileSymbols, MappedModule};
use crate::files::{self, CodeFiles, VDSO};
use crate::spaces::Spaces;
use crate::symbolizer::SymbolModule;
use crate::symbols;
use crate::unwind::Unwinder;

/// Maximum number of files of a process that are opened.
const MAX_FILES: usize = 512;

/// A function that a thread is in, or one of its callers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StackFrame {
    /// Address of the instruction; for a caller, the return address.
    pub address: u64,
    /// True if `address` is a return address.
    pub returns: bool,
    /// The stack pointer of the function.
    pub stack_pointer: u64,
}

/// Data whose types are wanted.
#[derive(Clone, Copy, Debug, Default)]
pub struct TypedData<'a> {
    /// Addresses in global and static variables, in order.
    pub addresses: &'a [u64],
    /// Names of classes whose types are wanted.
    pub classes: &'a [Name],
    /// Call stacks of threads, whose local variables are wanted; innermost functions first.
    pub stacks: &'a [Vec<StackFrame>],
}

/// A file that a core file names.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RecordedFile {
    /// Name of the file in the core file.
    pub name: Name,
    /// Path of the file on this machine.
    pub path: PathBuf,
    /// Build ID of the file; a file without one cannot be identified.
    pub build_id: Vec<u8>,
}

/// Source of the files that a process has mapped.
#[derive(Debug)]
enum ProcessFiles {
    Live(Pid, CodeFiles),
    Recorded(Vec<RecordedFile>, FileSymbols),
}

/// A mapped file.
struct MappedFile {
    /// Sources of symbols and debug information, best first.
    modules: Vec<SymbolModule>,
    /// Difference between addresses in the process and addresses in the file.
    bias: u64,
}

/// The files that a process has mapped, with functions, types and unwind tables.
pub struct ProcessCode {
    mappings: Vec<Mapping>,
    spaces: Spaces,
    unwinder: Unwinder,
    files: ProcessFiles,
    known: HashMap<Name, Option<Rc<MappedFile>>>,
    vdso: Option<Rc<MappedFile>>,
}

impl fmt::Debug for ProcessCode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ProcessCode").field("files", &self.known.len()).finish_non_exhaustive()
    }
}

/// PID of the only process in `spaces` and in the unwinder.
const ONLY: u32 = 1;

impl ProcessCode {
    /// Returns the code of a live process.
    pub fn of_process(pid: Pid, mappings: &[Mapping]) -> ProcessCode {
        ProcessCode::new(mappings, ProcessFiles::Live(pid, CodeFiles::default()))
    }

    /// Returns the code of the process of a core file. `files` are the files of its mappings.
    pub fn of_core(mappings: &[Mapping], files: Vec<RecordedFile>) -> ProcessCode {
        ProcessCode::new(mappings, ProcessFiles::Recorded(files, FileSymbols::default()))
    }

    fn new(mappings: &[Mapping], files: ProcessFiles) -> ProcessCode {
        let mut spaces = Spaces::default();
        spaces.place(ONLY, mappings);
        ProcessCode {
            mappings: mappings.to_vec(),
            spaces,
            unwinder: Unwinder::default(),
            files,
            known: HashMap::new(),
            vdso: None,
        }
    }

    /// Returns the functions that a thread is in, innermost first. `registers` are in the order of
    /// perf samples, and `stack` begins at the stack pointer. The result is empty on machines other
    /// than x86-64.
    pub fn frames(&mut self, registers: &[u64; 17], stack: &[u8]) -> Vec<StackFrame> {
        let code: Vec<Name> = self.code_files();
        for name in code {
            let file = self.file(&name);
            let source = file.and_then(|it| it.modules.last().map(|it| Rc::clone(&it.source)));
            self.unwinder.know_file(name, source);
        }
        let frames = self.unwinder.unwind_frames(&self.spaces, ONLY, registers, stack);
        (0..)
            .zip(frames)
            .map(|(at, (address, stack_pointer))| StackFrame {
                address,
                returns: at > 0,
                stack_pointer,
            })
            .collect()
    }

    /// The functions at an address: inlined ones first, from the innermost outward.
    pub fn functions(&mut self, frame: &StackFrame) -> Vec<Frame> {
        let instruction = frame.address.saturating_sub(frame.returns.into());
        let region = self.spaces.find(ONLY, instruction);
        let Some(name) = region.map(|region| region.name.clone()) else { return Vec::new() };
        let start = region.map_or(0, |region| region.start);
        let file = match name.as_bytes() {
            VDSO => self.vdso(start),
            _ => self.file(&name),
        };
        let Some(file) = file else { return Vec::new() };
        let own = instruction.wrapping_sub(file.bias);
        let unknown =
            Frame { function: None, module: Some(name), offset: own, line: None, inlined: false };
        symbols::frames(files::calls(&file.modules, own), &unknown)
    }

    /// Returns the types of the variables that contain the addresses, of thread-local and local
    /// variables, and of the objects that these variables point to. Also returns the types of
    /// classes by name.
    pub fn data_types(&mut self, wanted: &TypedData<'_>) -> DataTypes {
        let mut found = DataTypes::default();
        let deadline = Instant::now() + MAX_TIME;
        let frames = code_frames(wanted.stacks);
        let mut names = self.data_files(wanted.addresses);
        self.add_files_of_frames(&frames, &mut names);
        let reported = names.len();
        self.add_files_with_thread_storage(&mut names);
        for (at, name) in names.into_iter().enumerate() {
            let why = match self.file(&name) {
                Some(file) => {
                    let request = TypeRequest {
                        module: &name,
                        bias: file.bias,
                        addresses: wanted.addresses,
                        classes: wanted.classes,
                        storage: thread_storage(&file.modules, file.bias),
                        frames: &frames,
                        deadline,
                    };
                    add_types(&mut found, &file.modules, &request).err()
                }
                None => Some("the file cannot be read, or is another build"),
            };
            // Missing types of files that only have thread-local variables are not reported: in
            // most libraries, these variables point to no block.
            if let Some(why) = why.filter(|_| at < reported) {
                found.lacks.push(TypeLack { module: name, why: why.to_owned() });
            }
        }
        found.variables.sort_by_key(|it| (it.range.start, std::cmp::Reverse(it.range.end)));
        let mut end = 0;
        found.variables.retain(|it| {
            let is_behind = it.range.start >= end;
            end = if is_behind { it.range.end } else { end };
            is_behind
        });
        found
    }

    /// Files that contain code.
    fn code_files(&self) -> Vec<Name> {
        let mut names: Vec<Name> = self
            .mappings
            .iter()
            .filter(|it| is_of_file(it) && it.prot.exec)
            .map(|it| it.name.clone())
            .collect();
        names.sort();
        names.dedup();
        names.retain(|name| !self.known.contains_key(name));
        names
    }

    /// Files whose data contains one of `addresses`, in order of address.
    fn data_files(&self, addresses: &[u64]) -> Vec<Name> {
        let mut names: Vec<Name> = Vec::new();
        let mut last: Option<&Mapping> = None;
        for mapping in &self.mappings {
            let of = match last {
                // The end of `.bss` is an anonymous mapping behind the mapping of the file.
                Some(last) if mapping.name.is_empty() && last.range.end == mapping.range.start => {
                    last
                }
                _ => mapping,
            };
            last = is_of_file(of).then_some(of).filter(|_| of == mapping);
            let next = addresses.partition_point(|&address| address < mapping.range.start);
            let is_wanted = addresses.get(next).is_some_and(|&it| mapping.range.contains(it));
            if is_wanted && is_of_file(of) && !names.contains(&of.name) {
                names.push(of.name.clone());
            }
        }
        names
    }

    /// Adds the files whose code contains the instructions of frames.
    fn add_files_of_frames(&self, frames: &[CodeFrame], names: &mut Vec<Name>) {
        let mut frames = frames.iter().peekable();
        for mapping in self.mappings.iter().filter(|it| is_of_file(it)) {
            while frames.next_if(|it| it.instruction < mapping.range.start).is_some() {}
            let is_in = frames.peek().is_some_and(|it| mapping.range.contains(it.instruction));
            if is_in && !names.contains(&mapping.name) {
                names.push(mapping.name.clone());
            }
        }
    }

    /// Adds the files that have thread-local variables.
    fn add_files_with_thread_storage(&mut self, names: &mut Vec<Name>) {
        let mut all: Vec<Name> =
            self.mappings.iter().filter(|it| is_of_file(it)).map(|it| it.name.clone()).collect();
        all.dedup();
        for name in all {
            let file = if names.contains(&name) { None } else { self.file(&name) };
            let has_storage =
                |file: Rc<MappedFile>| thread_storage(&file.modules, file.bias).is_some();
            if file.is_some_and(has_storage) {
                names.push(name);
            }
        }
    }

    /// A mapped file, opened at its first use.
    fn file(&mut self, name: &Name) -> Option<Rc<MappedFile>> {
        if let Some(known) = self.known.get(name) {
            return known.clone();
        }
        if self.known.len() >= MAX_FILES {
            return None;
        }
        let first = self.mappings.iter().find(|it| is_of_file(it) && it.name == *name)?.clone();
        let modules = self.modules(&first);
        let file = modules.and_then(|modules| {
            let segments = &modules.last()?.layout.segments;
            let bias = first.range.start.wrapping_sub(segments.address(first.offset)?);
            Some(Rc::new(MappedFile { modules, bias }))
        });
        self.known.insert(name.clone(), file.clone());
        file
    }

    fn modules(&mut self, first: &Mapping) -> Option<Vec<SymbolModule>> {
        match &mut self.files {
            ProcessFiles::Live(pid, files) => {
                files.modules(pid.0, &first.name, FileId::of_mapping(first))
            }
            ProcessFiles::Recorded(recorded, files) => {
                let file = recorded.iter().find(|it| it.name == first.name)?;
                let path = file.path.as_os_str().as_encoded_bytes();
                let module = MappedModule { path, build_id: &file.build_id, ran_ns: 0 };
                files.modules(&module).ok()
            }
        }
    }

    fn vdso(&mut self, start: u64) -> Option<Rc<MappedFile>> {
        if self.vdso.is_none() {
            let source = Rc::new(FileSource::Memory(files::vdso()?));
            let layout = crate::elf::FileLayout::parse(&source)?;
            let bias = start.wrapping_sub(layout.segments.address(0)?);
            let modules = vec![SymbolModule::new(source, layout, None)];
            self.vdso = Some(Rc::new(MappedFile { modules, bias }));
        }
        self.vdso.clone()
    }
}

fn is_of_file(mapping: &Mapping) -> bool {
    mapping.backing() == Backing::File && mapping.name.as_bytes().starts_with(b"/")
}
