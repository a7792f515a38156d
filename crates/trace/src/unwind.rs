//! Call stacks of programs that keep no frame pointers: by the unwind tables of their files, from
//! registers and a copy of the stack.
//!
//! Compilers write these tables for exceptions (`.eh_frame`, DWARF call frame information), and
//! write them for all code on x86-64. Code of a just-in-time compiler has no tables, and is unwound
//! by its frame pointer.
//!
//! **Limits.** The kernel copies the requested number of stack bytes: callers beyond them are
//! missing. All callers of 32-bit code are missing too, as are all callers on machines other than
//! x86-64.
//!
//! **Cost.** About 50 ns a frame, 0.45 µs for a stack of ten (Linux 6.18 in a virtual machine of 2
//! CPUs, `cargo test --release -p pagewise-trace --test unwind -- --ignored --nocapture`), besides
//! the copy that the kernel makes.
//!
//! Tables and stacks are untrusted. Unwinding always ends: each caller must lie higher on the
//! stack, the computations of tables are bounded, and addresses must be mapped.

use std::collections::BTreeMap;
use std::ops::Range;
use std::rc::Rc;

use gimli::{
    BaseAddresses, CfaRule, EhFrame, Encoding, EndianSlice, EvaluationResult, LittleEndian,
    Location, Register, RegisterRule, RunTimeEndian, UnwindContext, UnwindExpression,
    UnwindSection, Value,
};
use pagewise_model::Name;
use pagewise_proc::target_file::FileId;
use pagewise_sys::perf_ring::Carries;

use crate::elf::{FileLayout, FileSource, Segments};
use crate::files::{self, VDSO};
use crate::record::PerfSample;
use crate::spaces::{SpaceRegion, Spaces};

/// Maximum number of frames of a stack.
const DEPTH: usize = 256;
/// Maximum bytes of the tables of one file, and by default of all files. Tables beyond the limit
/// count as missing.
const LARGEST: u64 = 64 << 20;
const TOGETHER: u64 = 64 << 20;
/// Maximum number of files that are remembered, by inode and name, with tables or without.
const FILES: usize = 1 << 14;
/// Number of entries of the cache of rules: a power of two.
const ROWS: usize = 1 << 14;
/// Maximum number of operations of one expression: the expressions of compilers have fewer than
/// ten.
const OPERATIONS: u32 = 200;

/// Number of registers, indexed by their numbers in DWARF. The last register is the instruction
/// pointer.
const REGISTERS: usize = 17;
const STACK_POINTER: usize = 7;
const FRAME_POINTER: usize = 6;
const INSTRUCTION: usize = 16;

/// DWARF numbers of the registers of a sample: ax, bx, cx, dx, si, di, bp, sp, ip and r8 to r15,
/// which have the numbers 0 to 8 and 16 to 23 in `asm/perf_regs.h`.
#[cfg(target_arch = "x86_64")]
mod carried {
    pub(super) const MASK: u64 = 0xff_01ff;
    pub(super) const NUMBERS: &[usize] =
        &[0, 3, 2, 1, 4, 5, 6, 7, 16, 8, 9, 10, 11, 12, 13, 14, 15];
}

/// Stack pointer of the program at a sample; `None` if the sample has no registers.
pub(crate) fn stack_pointer(sample: &PerfSample<'_>) -> Option<u64> {
    let index = carried::NUMBERS.iter().position(|number| *number == STACK_POINTER)?;
    sample.registers().nth(index)
}

/// On other machines, samples contain callers by frame pointers only.
#[cfg(not(target_arch = "x86_64"))]
mod carried {
    pub(super) const MASK: u64 = 0;
    pub(super) const NUMBERS: &[usize] = &[];
}

/// The registers of a frame. `None` if a table marks a register as lost, or the location that it
/// was saved to is unknown.
type FrameRegisters = [Option<u64>; REGISTERS];

/// A copy of the stack.
#[derive(Clone, Copy, Debug)]
struct StackCopy<'a> {
    start: u64,
    bytes: &'a [u8],
}

impl StackCopy<'_> {
    fn word(&self, address: u64) -> Option<u64> {
        let at = usize::try_from(address.checked_sub(self.start)?).ok()?;
        self.bytes.get(at..)?.first_chunk().map(|word| u64::from_le_bytes(*word))
    }
}

/// Rules that compute the registers of the caller at an address.
#[derive(Debug)]
struct CallerRules {
    frame: CfaRule<usize>,
    rules: Vec<(usize, RegisterRule<usize>)>,
    encoding: Encoding,
    /// True for the trampoline that signal handlers return to: its caller was interrupted and made
    /// no call.
    signal: bool,
}

/// A stack was followed to the first function of its thread, which has no caller.
struct Outermost;

/// A caller.
struct FoundCaller {
    registers: FrameRegisters,
    /// True if the caller was interrupted and made no call.
    signal: bool,
}

/// The tables of a file.
#[derive(Debug, Default)]
struct UnwindModule {
    segments: Segments,
    build_id: Option<Vec<u8>>,
    /// Address of the index. The field `entries` contains its entries: start of a function and
    /// location of its table, relative to the index.
    index: u64,
    entries: Vec<u8>,
    tables: Vec<u8>,
    /// The address of the tables.
    address: u64,
}

/// Follows stacks, and keeps tables of files and rules.
#[derive(Debug)]
pub struct Unwinder {
    /// Modules by file and name; `None` for a file without tables.
    by_file: BTreeMap<FileId, Vec<(Name, Option<usize>)>>,
    /// Number of files.
    files: usize,
    modules: Vec<UnwindModule>,
    /// Bytes of tables that may still be read.
    left: u64,
    rows: KnownRows,
    context: Context,
    found: Vec<u64>,
    /// Stack pointer of each function that was found.
    pointers: Vec<u64>,
    /// Files that were opened by the caller, by name: files of a core file have no inodes.
    opened: BTreeMap<Name, Option<Rc<FileSource>>>,
    cut: u64,
}

/// Row of the tables for an address; `None` if the tables do not cover it.
#[derive(Clone, Debug)]
struct KnownRow {
    /// Index of a module, and an address in it.
    of: (usize, u64),
    row: Option<Rc<CallerRules>>,
}

/// Cache of rows, indexed by address. If two rows have the same cache entry, the later row is kept.
/// A target that chooses addresses can reduce the hits of the cache. But the target cannot enlarge
/// the cache, nor make unwinding slower than without a cache.
#[derive(Debug, Default)]
struct KnownRows(Vec<Option<KnownRow>>);

impl KnownRows {
    /// The cache entry of an address, which may be in use for another one.
    fn at(&mut self, module: usize, address: u64) -> &mut Option<KnownRow> {
        /// 2^64 divided by the golden ratio: spreads neighboring addresses.
        const SPREAD: u64 = 0x9e37_79b9_7f4a_7c15;
        if self.0.is_empty() {
            self.0.resize(ROWS, None);
        }
        let mixed = (address ^ (module as u64).rotate_right(16)).wrapping_mul(SPREAD);
        let place = mixed >> (u64::BITS - ROWS.trailing_zeros());
        &mut self.0[usize::try_from(place).expect("it is below ROWS")]
    }
}

#[derive(Debug, Default)]
struct Context(UnwindContext<usize>);

impl Default for Unwinder {
    fn default() -> Unwinder {
        Unwinder::within(TOGETHER)
    }
}

impl Unwinder {
    /// An unwinder that keeps this number of bytes of tables.
    pub fn within(bytes: u64) -> Unwinder {
        Unwinder {
            by_file: BTreeMap::new(),
            files: 0,
            modules: Vec::new(),
            left: bytes,
            rows: KnownRows::default(),
            context: Context::default(),
            found: Vec::new(),
            pointers: Vec::new(),
            opened: BTreeMap::new(),
            cut: 0,
        }
    }

    /// Contents that samples must have, with this number of stack bytes (at most 65528). Empty on
    /// machines without support for unwind tables.
    pub fn carries(stack: u16) -> Carries {
        let stack = if carried::MASK == 0 { 0 } else { u32::from(stack) & !7 };
        Carries { registers: carried::MASK, stack, ..Carries::default() }
    }

    /// Instruction pointer of a sample, then the return addresses of its callers. Empty if the
    /// thread has no user mode or samples contain no registers.
    ///
    /// # Complexity
    /// For each caller, a search for the mapping and a lookup in the cache of rules. A new address
    /// adds a search in the index of its file; a new file adds the reading of its tables.
    pub fn unwind(&mut self, spaces: &Spaces, sample: &PerfSample<'_>) -> &[u64] {
        self.found.clear();
        if let Some(registers) = registers(sample) {
            let whole = self.follow(spaces, sample.pid, registers, sample.stack);
            self.cut += u64::from(whole.is_none());
        }
        &self.found
    }

    /// Returns the return addresses of the callers of a function, from a sample at its first
    /// instruction. The tables of the function itself, which a library may lack, are not needed.
    /// The result is empty if samples contain no registers.
    pub fn unwind_callers(&mut self, spaces: &Spaces, sample: &PerfSample<'_>) -> &[u64] {
        const WORD: u64 = 8;
        self.found.clear();
        let back = sample.stack.first_chunk().map(|word| u64::from_le_bytes(*word));
        if let Some((mut registers, back)) = registers(sample).zip(back) {
            let stack = registers[STACK_POINTER].and_then(|stack| stack.checked_add(WORD));
            registers[STACK_POINTER] = stack;
            // The call instruction is before its return address.
            registers[INSTRUCTION] = back.checked_sub(1);
            let whole = self.follow(spaces, sample.pid, registers, &sample.stack[8..]);
            self.cut += u64::from(whole.is_none());
            if let Some(first) = self.found.first_mut() {
                *first = back;
            }
        }
        &self.found
    }

    /// Instruction pointer of a stopped thread, then the return addresses of its callers, from its
    /// registers in the order of samples. `None` if the stack cannot be followed to the start of
    /// the thread.
    pub fn unwind_stopped(
        &mut self,
        spaces: &Spaces,
        pid: u32,
        values: &[u64],
        stack: &[u8],
    ) -> Option<&[u64]> {
        self.found.clear();
        let mut registers = [None; REGISTERS];
        for (number, value) in carried::NUMBERS.iter().zip(values) {
            registers[*number] = Some(*value);
        }
        self.follow(spaces, pid, registers, stack)?;
        Some(&self.found)
    }

    /// Sets the source of the tables of the file with a name.
    pub(crate) fn know_file(&mut self, name: Name, source: Option<Rc<FileSource>>) {
        self.opened.insert(name, source);
    }

    /// The functions of a stopped thread, innermost first, as far as its stack can be followed:
    /// instruction pointer or return address, and the stack pointer.
    pub(crate) fn unwind_frames(
        &mut self,
        spaces: &Spaces,
        pid: u32,
        values: &[u64],
        stack: &[u8],
    ) -> Vec<(u64, u64)> {
        let _ = self.unwind_stopped(spaces, pid, values, stack);
        self.found.iter().copied().zip(self.pointers.iter().copied()).collect()
    }

    /// Returns data of the file that is mapped at an address: the difference between the addresses
    /// in the process and those in the file, and the build ID. `None` if the file has no unwind
    /// tables.
    pub fn file_at(
        &mut self,
        spaces: &Spaces,
        pid: u32,
        address: u64,
    ) -> Option<(u64, Option<&[u8]>)> {
        let region = spaces.find(pid, address)?;
        let module = self.module(pid, region)?;
        let module = &self.modules[module];
        let own = module.segments.address(region.offset.checked_add(address - region.start)?)?;
        Some((address.wrapping_sub(own), module.build_id.as_deref()))
    }

    /// Number of stacks that were not followed to the start of their thread: the stack copy ended,
    /// or a file is missing.
    pub fn cut(&self) -> u64 {
        self.cut
    }

    /// True if the code that returns at an address has no caller according to the tables of its
    /// file: a thread begins there.
    pub fn is_outermost(&mut self, spaces: &Spaces, pid: u32, address: u64) -> bool {
        let place = address.saturating_sub(1);
        let Some(region) = spaces.find(pid, place) else { return false };
        self.row(pid, region, place).is_some_and(|(_, row)| row.is_outermost())
    }

    /// Follows a stack to where its thread began, or as far as it can be followed.
    fn follow(
        &mut self,
        spaces: &Spaces,
        pid: u32,
        mut registers: FrameRegisters,
        stack: &[u8],
    ) -> Option<Outermost> {
        let (start, first) = (registers[STACK_POINTER]?, registers[INSTRUCTION]?);
        let stack = StackCopy { start, bytes: stack };
        self.found.push(first);
        self.pointers.clear();
        self.pointers.push(start);
        let (mut place, mut region) = (first, spaces.find(pid, first)?);
        while self.found.len() < DEPTH {
            let Some(caller) = self.caller(pid, region, place, &registers, stack)? else {
                return Some(Outermost);
            };
            let FoundCaller { registers: next, signal } = caller;
            // For a return address, look up the call before it. For an interrupted instruction,
            // look up its own address.
            place = next[INSTRUCTION]?.checked_sub((!signal).into())?;
            region = spaces.find(pid, place)?;
            if next[STACK_POINTER]? <= registers[STACK_POINTER]? {
                return None;
            }
            // Users of `found` treat each address as a return address, and subtract 1.
            self.found.push(place.saturating_add(1));
            self.pointers.extend(next[STACK_POINTER]);
            registers = next;
        }
        None
    }

    /// Returns the caller, or `Some(None)` if the function has no caller. `None` if the caller
    /// cannot be determined.
    fn caller(
        &mut self,
        pid: u32,
        region: &SpaceRegion,
        place: u64,
        registers: &FrameRegisters,
        stack: StackCopy<'_>,
    ) -> Option<Option<FoundCaller>> {
        let row = self.row(pid, region, place);
        match row {
            Some((_, row)) if row.is_outermost() => Some(None),
            Some((module, row)) => {
                let registers = row.caller(&self.modules[module], registers, stack)?;
                Some(Some(FoundCaller { registers, signal: row.signal }))
            }
            None if registers[FRAME_POINTER] == Some(0) => Some(None),
            None => {
                let registers = by_frame_pointer(registers, stack)?;
                Some(Some(FoundCaller { registers, signal: false }))
            }
        }
    }

    /// Row of the tables for an address, and the file of the tables.
    fn row(
        &mut self,
        pid: u32,
        region: &SpaceRegion,
        place: u64,
    ) -> Option<(usize, Rc<CallerRules>)> {
        let module = self.module(pid, region)?;
        let offset = region.offset.checked_add(place - region.start)?;
        let address = self.modules[module].segments.address(offset)?;
        let known = self.rows.at(module, address);
        if let Some(known) = known.as_ref().filter(|it| it.of == (module, address)) {
            return known.row.clone().map(|row| (module, row));
        }
        let row = self.modules[module].row(address, &mut self.context).map(Rc::new);
        *known = Some(KnownRow { of: (module, address), row: row.clone() });
        row.map(|row| (module, row))
    }

    /// Returns the number of a mapping's file. The file is read at its first use.
    fn module(&mut self, pid: u32, region: &SpaceRegion) -> Option<usize> {
        let opened = self.opened.get(&region.name);
        if region.inode == 0 && region.name.as_bytes() != VDSO && opened.is_none() {
            return None;
        }
        let known = self.by_file.entry(region.id()).or_default();
        if let Some((_, module)) = known.iter().find(|(name, _)| *name == region.name) {
            return *module;
        }
        if self.files == FILES {
            return None;
        }
        self.files += 1;
        let bytes = match (opened, region.inode) {
            (Some(opened), _) => opened.clone(),
            (None, 0) => files::vdso().map(FileSource::Memory).map(Rc::new),
            (None, _) => {
                files::open(pid, &region.name, region.id()).map(FileSource::from).map(Rc::new)
            }
        };
        let module = bytes.and_then(|bytes| UnwindModule::read(&bytes, self.left));
        let module = module.map(|module| {
            self.left -= (module.entries.len() + module.tables.len()) as u64;
            self.modules.push(module);
            self.modules.len() - 1
        });
        known.push((region.name.clone(), module));
        module
    }
}

/// The registers that a sample carries.
fn registers(sample: &PerfSample<'_>) -> Option<FrameRegisters> {
    let mut registers = [None; REGISTERS];
    let mut values = sample.registers();
    for number in carried::NUMBERS {
        registers[*number] = Some(values.next()?);
    }
    registers[STACK_POINTER].map(|_| registers)
}

/// Returns the caller of a function that begins by pushing the frame pointer, as code without
/// tables usually does.
fn by_frame_pointer(registers: &FrameRegisters, stack: StackCopy<'_>) -> Option<FrameRegisters> {
    const WORD: u64 = 8;
    let frame = registers[FRAME_POINTER].filter(|frame| frame % WORD == 0)?;
    let mut caller = *registers;
    caller[FRAME_POINTER] = stack.word(frame);
    caller[INSTRUCTION] = Some(stack.word(frame.checked_add(WORD)?)?);
    caller[STACK_POINTER] = frame.checked_add(2 * WORD);
    Some(caller)
}

type TableSlice<'a> = EndianSlice<'a, LittleEndian>;

/// Returns a little-endian number at an offset.
fn u32_at(bytes: &[u8], at: usize) -> Option<u32> {
    bytes.get(at..)?.first_chunk().copied().map(u32::from_le_bytes)
}

impl UnwindModule {
    /// Reads the tables of a file, at most `at_most` bytes.
    fn read(bytes: &FileSource, at_most: u64) -> Option<UnwindModule> {
        /// `.eh_frame_hdr` of version 1: the address of the tables is PC-relative, the number of
        /// entries is absolute, and entries are two offsets from the index; all have four bytes.
        /// Linkers write no other form.
        const LAYOUT: &[u8] = &[1, 0x1b, 0x03, 0x3b];
        const ENTRIES: usize = 12;
        let layout = FileLayout::parse(bytes)?;
        if !layout.is_wide || layout.endian != RunTimeEndian::Little {
            return None;
        }
        let Some(Range { start: index, end }) = layout.unwind_index.clone() else {
            return UnwindModule::without_index(layout, bytes, at_most);
        };
        // Tables that exceed the limit are not read.
        let fits = |length: u64, before: usize| {
            let length = length.min(LARGEST);
            (length.saturating_add(before as u64) <= at_most).then_some(length)
        };
        let entries = bytes.read(layout.segments.offset(index)?.start, fits(end - index, 0)?)?;
        if !entries.starts_with(LAYOUT) {
            return None;
        }
        let from_field = u32_at(&entries, LAYOUT.len())?.cast_signed();
        let address =
            index.checked_add(LAYOUT.len() as u64)?.checked_add_signed(from_field.into())?;
        let Range { start, end } = layout.segments.offset(address)?;
        let tables = bytes.read(start, fits(end - start, entries.len())?)?;
        let count = usize::try_from(u32_at(&entries, 8)?).ok()?;
        let entries = entries.get(ENTRIES..)?.chunks_exact(8).take(count).flatten().copied();
        let entries: Vec<u8> = entries.collect();
        let FileLayout { segments, build_id, .. } = layout;
        Some(UnwindModule { segments, build_id, index, entries, tables, address })
    }

    /// Builds the index from the tables, for statically linked programs that have no index.
    fn without_index(layout: FileLayout, bytes: &FileSource, at_most: u64) -> Option<UnwindModule> {
        let section = layout.find(b".eh_frame")?.clone();
        let length = Some(section.size.min(LARGEST)).filter(|length| *length <= at_most)?;
        let tables = bytes.read(section.offset, length)?;
        let mut eh_frame = EhFrame::new(&tables, LittleEndian);
        eh_frame.set_address_size(8);
        let bases = BaseAddresses::default().set_eh_frame(section.address);
        let mut found: Vec<(i32, i32)> = Vec::new();
        let mut all = eh_frame.entries(&bases);
        while let Ok(Some(entry)) = all.next() {
            let gimli::CieOrFde::Fde(table) = entry else { continue };
            let table = table.parse(EhFrame::cie_from_offset).ok()?;
            let start = table.initial_address().wrapping_sub(section.address).cast_signed();
            let (start, at) = (i32::try_from(start).ok()?, i32::try_from(table.offset()).ok()?);
            found.push((start, at));
        }
        found.sort_unstable();
        let fits = (tables.len() + found.len() * 8) as u64 <= at_most;
        let entries = found.iter().flat_map(|(start, at)| [start.to_le_bytes(), at.to_le_bytes()]);
        let entries = entries.flatten().collect();
        let (index, address) = (section.address, section.address);
        let FileLayout { segments, build_id, .. } = layout;
        fits.then_some(UnwindModule { segments, build_id, index, entries, tables, address })
    }

    /// Row of the tables for an address.
    fn row(&self, address: u64, context: &mut Context) -> Option<CallerRules> {
        let section = self.section();
        let bases = BaseAddresses::default().set_eh_frame(self.address);
        let table = gimli::EhFrameOffset(self.table(address)?);
        let table = section.fde_from_offset(&bases, table, EhFrame::cie_from_offset).ok()?;
        let row = table.unwind_info_for_address(&section, &bases, &mut context.0, address).ok()?;
        let rules = row.registers().filter_map(|(register, rule)| {
            let number = usize::from(register.0);
            (number < REGISTERS).then_some((number, rule.clone()))
        });
        Some(CallerRules {
            frame: row.cfa().clone(),
            rules: rules.collect(),
            encoding: table.cie().encoding(),
            signal: table.is_signal_trampoline(),
        })
    }

    fn section(&self) -> EhFrame<TableSlice<'_>> {
        let mut section = EhFrame::new(&self.tables, LittleEndian);
        section.set_address_size(8);
        section
    }

    /// Offset of the function's table: that of the last function that begins at or before an
    /// address.
    fn table(&self, address: u64) -> Option<usize> {
        let (entries, _) = self.entries.as_chunks::<8>();
        let place = |at: usize, field: usize| {
            let offset = u32_at(entries.get(at)?, field)?.cast_signed();
            self.index.checked_add_signed(offset.into())
        };
        let all: Range<usize> = 0..entries.len();
        let (mut low, mut high) = (all.start, all.end);
        while low < high {
            let middle = low.midpoint(high);
            match place(middle, 0)? <= address {
                true => low = middle + 1,
                false => high = middle,
            }
        }
        let table = place(low.checked_sub(1)?, 4)?;
        usize::try_from(table.checked_sub(self.address)?).ok()
    }
}

impl CallerRules {
    /// True if the function has no caller according to the tables: the return address is undefined.
    fn is_outermost(&self) -> bool {
        let known = self.rules.iter().find(|(number, _)| *number == INSTRUCTION);
        known.is_none_or(|(_, rule)| *rule == RegisterRule::Undefined)
    }

    /// The registers of the caller, from those of the callee.
    fn caller(
        &self,
        module: &UnwindModule,
        callee: &FrameRegisters,
        stack: StackCopy<'_>,
    ) -> Option<FrameRegisters> {
        let compute = |expression: &UnwindExpression<usize>, first| {
            compute(module, expression, self.encoding, callee, stack, first)
        };
        let frame = match &self.frame {
            CfaRule::RegisterAndOffset { register, offset } => {
                get(callee, *register)?.checked_add_signed(*offset)?
            }
            CfaRule::Expression(expression) => compute(expression, None)?,
        };
        // A register that a function does not save is unchanged, or undefined and never needed.
        let mut caller = *callee;
        caller[STACK_POINTER] = Some(frame);
        caller[INSTRUCTION] = None;
        for (number, rule) in &self.rules {
            caller[*number] = match rule {
                RegisterRule::SameValue => callee[*number],
                RegisterRule::Offset(offset) => {
                    frame.checked_add_signed(*offset).and_then(|at| stack.word(at))
                }
                RegisterRule::ValOffset(offset) => frame.checked_add_signed(*offset),
                RegisterRule::Register(register) => get(callee, *register),
                RegisterRule::Expression(expression) => {
                    compute(expression, Some(frame)).and_then(|at| stack.word(at))
                }
                RegisterRule::ValExpression(expression) => compute(expression, Some(frame)),
                RegisterRule::Constant(value) => Some(*value),
                _ => None,
            };
        }
        Some(caller)
    }
}

fn get(registers: &FrameRegisters, register: Register) -> Option<u64> {
    registers.get(usize::from(register.0)).copied().flatten()
}

/// Value of an expression of a table.
fn compute(
    module: &UnwindModule,
    expression: &UnwindExpression<usize>,
    encoding: Encoding,
    registers: &FrameRegisters,
    stack: StackCopy<'_>,
    first: Option<u64>,
) -> Option<u64> {
    let mut evaluation = expression.get(&module.section()).ok()?.evaluation(encoding);
    evaluation.set_max_iterations(OPERATIONS);
    if let Some(first) = first {
        evaluation.set_initial_value(first);
    }
    let mut result = evaluation.evaluate().ok()?;
    loop {
        result = match result {
            EvaluationResult::Complete => break,
            EvaluationResult::RequiresRegister { register, .. } => {
                let value = Value::Generic(get(registers, register)?);
                evaluation.resume_with_register(value).ok()?
            }
            EvaluationResult::RequiresMemory { address, size: 8, space: None, .. } => {
                let value = Value::Generic(stack.word(address)?);
                evaluation.resume_with_memory(value).ok()?
            }
            _ => return None,
        };
    }
    match evaluation.as_result().first()?.location {
        Location::Address { address } => Some(address),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use std::fs::File;

    use proptest::prelude::*;

    use super::*;
    use crate::record::{MmapRecord, PerfRecord};

    const START: u64 = 0x5555_0000_0000;

    /// The test itself, mapped as one piece.
    fn own() -> (Spaces, FileSource) {
        let path = std::env::current_exe().unwrap();
        let file = File::open(&path).unwrap();
        let metadata = file.metadata().unwrap();
        let id = FileId::of_metadata(&metadata);
        let mapped = MmapRecord {
            pid: std::process::id(),
            start: START,
            length: metadata.len(),
            inode: id.inode,
            device: (id.device.major, id.device.minor),
            name: path.to_str().unwrap().as_bytes(),
            ..MmapRecord::default()
        };
        let mut spaces = Spaces::default();
        spaces.note(&PerfRecord::Mapped(mapped));
        (spaces, FileSource::from(file))
    }

    /// Addresses: many are in the file, and many are on the stack.
    fn word() -> impl Strategy<Value = u64> {
        prop_oneof![
            (0_u64..1 << 22).prop_map(|at| START + at),
            (0_u64..600).prop_map(|at| STACK + at),
            Just(0),
            Just(u64::MAX),
            any::<u64>(),
        ]
    }

    const STACK: u64 = 0x7fff_0000_0000;

    fn registers() -> impl Strategy<Value = FrameRegisters> {
        let other = prop::collection::vec(prop::option::weighted(0.9, word()), REGISTERS);
        (other, prop_oneof![Just(STACK), word()]).prop_map(|(other, stack)| {
            let mut registers = [None; REGISTERS];
            registers.copy_from_slice(&other);
            registers[STACK_POINTER] = Some(stack);
            registers
        })
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(200))]

        #[test]
        fn any_stack_is_followed_to_an_end(
            start in registers(),
            words in prop::collection::vec(word(), 0..64),
            odd in 0_usize..8,
        ) {
            let (spaces, _) = own();
            let mut unwinder = Unwinder::default();
            let mut stack: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
            stack.truncate(stack.len().saturating_sub(odd));
            let _ = unwinder.follow(&spaces, std::process::id(), start, &stack);
            prop_assert!(unwinder.found.len() <= DEPTH);
        }

        /// Unwinds every function of this test program by tables that a compiler has not written.
        #[test]
        fn any_tables_are_used_or_refused(
            start in registers(),
            changes in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..200),
            places in prop::collection::vec(any::<prop::sample::Index>(), 50),
            cut in prop::option::of(any::<prop::sample::Index>()),
        ) {
            let (_, bytes) = own();
            let mut module = UnwindModule::read(&bytes, TOGETHER).unwrap();
            let addresses: Vec<u64> = places.iter().map(|place| {
                let (entries, _) = module.entries.as_chunks::<8>();
                let entry = place.get(entries);
                module.index.wrapping_add_signed(u32_at(entry, 0).unwrap().cast_signed().into())
            }).collect();
            // Changes bytes of the tables of these functions: a change at a random position among
            // megabytes would rarely affect them.
            for (at, byte) in changes {
                let near = module.table(*at.get(&addresses)).unwrap();
                let near = (near + usize::from(byte) % 40).min(module.tables.len() - 1);
                module.tables[near] = byte.wrapping_mul(31);
            }
            if let Some(cut) = cut {
                module.tables.truncate(cut.index(module.tables.len()));
            }
            let stack = StackCopy { start: STACK, bytes: &[7; 600] };
            let mut context = Context::default();
            for address in addresses {
                if let Some(row) = module.row(address + 3, &mut context) {
                    let _ = row.caller(&module, &start, stack);
                }
            }
        }
    }

    #[test]
    fn an_expression_that_goes_round_for_ever_comes_to_nothing() {
        // DW_OP_skip, back to itself.
        let module = UnwindModule { tables: vec![0x2f, 0xfd, 0xff], ..UnwindModule::default() };
        let expression = UnwindExpression { offset: 0, length: 3 };
        let encoding = Encoding { format: gimli::Format::Dwarf32, version: 4, address_size: 8 };
        let stack = StackCopy { start: 0, bytes: &[] };
        let result = compute(&module, &expression, encoding, &[None; REGISTERS], stack, None);
        assert_eq!(result, None);
    }

    #[test]
    fn code_without_tables_is_left_by_its_frame_pointer() {
        let mut spaces = Spaces::default();
        spaces.note(&PerfRecord::Mapped(MmapRecord {
            pid: 1,
            start: 0x1000,
            length: 0x1000,
            ..MmapRecord::default()
        }));
        let words = [0, STACK + 24, 0x1200, 0, 0, 0x1300];
        let stack: Vec<u8> = words.iter().flat_map(|word: &u64| word.to_le_bytes()).collect();
        let mut registers = [None; REGISTERS];
        registers[STACK_POINTER] = Some(STACK);
        registers[FRAME_POINTER] = Some(STACK + 8);
        registers[INSTRUCTION] = Some(0x1100);
        let mut unwinder = Unwinder::default();
        assert!(unwinder.follow(&spaces, 1, registers, &stack).is_none(), "who called is nowhere");
        assert_eq!(unwinder.found, [0x1100, 0x1200]);
        let stack = StackCopy { start: STACK, bytes: &stack };
        registers[FRAME_POINTER] = Some(0);
        let region = spaces.find(1, 0x1100).unwrap();
        assert!(matches!(unwinder.caller(1, region, 0x1100, &registers, stack), Some(None)));
    }
}
