//! Inline hooks: determines the instructions at a function's entry that a jump overwrites, and
//! relocates them.

use std::fmt;
use std::io;
use std::slice;

use iced_x86::{
    BlockEncoder, BlockEncoderOptions, Code, Decoder, DecoderOptions, FlowControl, IcedError,
    Instruction, InstructionBlock, MemoryOperand, Register,
};
use pagewise_heaplog::tables::hooks;
use pagewise_heaplog::tables::named::{self, row};
use pagewise_model::{Mapping, Name, Pid};
use pagewise_proc::{ProcRoot, maps};
use pagewise_sys::remote;

use crate::names::{self, FileAllocator, NamedFunction, Nameless};
use crate::tables::SharedTables;

/// Number of bytes of a jump with a 32-bit displacement.
const JUMP: usize = 5;
/// Number of bytes of a function that are searched for jumps back to its beginning.
const SCANNED_BYTES: usize = 1 << 10;

/// Reason why a function is not hooked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Why {
    /// The code of the function could not be read.
    Unreadable,
    /// The function is shorter than a jump.
    Short,
    /// One of its first instructions is a call that cannot be relocated.
    Calls,
    /// The function jumps back into its first instructions.
    Loops,
    /// The first instructions cannot be decoded or relocated.
    Strange,
    /// The process has several threads already.
    Threads,
    /// The relocated instructions need memory near the function, and none is free.
    NoRoom,
    /// There are more functions than the recorder's tables can hold.
    Many,
}

/// An allocator that is not recorded, although other allocators of the program are recorded.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LeftOut {
    /// File that contains the allocator.
    pub file: Name,
    /// Function that cannot be hooked.
    pub function: String,
    /// Reason why the function cannot be hooked.
    pub why: Why,
}

impl fmt::Display for LeftOut {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let LeftOut { file, function, why } = self;
        let function = pagewise_model::name::escape(function.as_bytes());
        let why = why.to_string().replace("its malloc", &format!("its {function}"));
        write!(f, "allocations of the allocator of {} are not recorded: {why}", file.escaped())
    }
}

/// Functions that are hooked in addition to `malloc` and related functions, and functions that
/// cannot be hooked.
#[derive(Clone, Debug, Default)]
pub(crate) struct Hooked {
    /// For each allocator: the name of one of its functions, and its file.
    pub allocators: Vec<(String, Name)>,
    /// True if the functions include an `operator new`.
    pub has_new: bool,
    pub left_out: Vec<LeftOut>,
    pub nameless: Vec<Nameless>,
}

impl fmt::Display for Why {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Why::Unreadable => "the code of its malloc cannot be read",
            Why::Short => "its malloc is too short for a jump",
            Why::Calls => "its malloc calls a function in its first instructions",
            Why::Loops => "its malloc jumps back to its first instructions",
            Why::Strange => "its malloc begins with instructions that cannot be moved",
            Why::Threads => "it had threads before its recorder was ready",
            Why::NoRoom => "no memory near its malloc is free",
            Why::Many => "it has too many functions",
        })
    }
}

/// The relocated first instructions of a function.
#[derive(Clone, Debug, PartialEq, Eq)]
struct RelocatedPrologue {
    /// Number of bytes of the original instructions.
    length: usize,
    /// The relocated instructions, and a jump to the instruction after the original instructions.
    code: Vec<u8>,
}

/// Answers a recorder with the code for inline hooks of the functions that it requests, and of
/// allocators under other names.
///
/// # Errors
/// Returns an error if the tables cannot be read or written.
pub(crate) fn answer(
    tables: &SharedTables,
    pid: u32,
    root: &ProcRoot,
    attached: bool,
) -> io::Result<Result<Hooked, Why>> {
    let threads = std::fs::read_dir(root.file(Pid(pid), "task"));
    let has_threads = !attached && threads.map_or(0, Iterator::count) > 1;
    if let Err(why) = asked(tables, pid, has_threads)? {
        return Ok(Err(why));
    }
    if tables.head(named::READY)? != 0 {
        return ready(tables, pid, root).map(Ok);
    }
    let mut taken = Vec::new();
    for index in 0..hooks::FUNCTIONS {
        taken.push(tables.head(hooks::AT + index)?);
    }
    let names = names::find(root, Pid(pid));
    let mut hooked = Hooked { nameless: names.nameless, ..Hooked::default() };
    let mut rooms = Rooms::new(root, pid);
    let mut count = 0;
    for mut allocator in names.allocators {
        allocator.functions.retain(|function| !taken.contains(&function.at));
        if allocator.functions.is_empty() {
            continue;
        }
        let file = allocator.file.clone();
        let first = allocator.functions.first().map(|it| it.name.clone()).unwrap_or_default();
        let left_out = |(function, why)| LeftOut { file, function, why };
        let rows = if has_threads {
            Err((first, Why::Threads))
        } else if count + allocator.functions.len() > named::MAX_CHUNKS {
            Err((first, Why::Many))
        } else {
            rows(pid, &allocator, &mut rooms, tables.head(named::ENTRY)?, count)
        };
        match rows.map_err(left_out) {
            Ok(rows) => {
                for row in rows {
                    tables.answer(named::ROWS + count * row::WORDS, &row)?;
                    count += 1;
                }
                taken.extend(allocator.functions.iter().map(|it| it.at));
                hooked.has_new |= allocator.has_new;
                hooked.allocators.push((allocator.name, allocator.file));
            }
            Err(left_out) => hooked.left_out.push(left_out),
        }
    }
    let made: Vec<u64> = rooms.made.iter().flatten().copied().collect();
    tables.answer(named::ROOMS, &made)?;
    tables.answer(named::ROOM_COUNT, &[rooms.made.len() as u64])?;
    tables.answer(named::COUNT, &[count as u64])?;
    Ok(Ok(hooked))
}

/// Keeps the hooks of an earlier recording, except hooks of files that have been unmapped.
fn ready(tables: &SharedTables, pid: u32, root: &ProcRoot) -> io::Result<Hooked> {
    let names = names::find(root, Pid(pid));
    let mut hooked = Hooked::default();
    let mut is_hooked = vec![false; names.allocators.len()];
    let count = usize::try_from(tables.head(named::COUNT)?).unwrap_or(0).min(named::MAX_CHUNKS);
    for number in 0..count {
        let word = named::ROWS + number * row::WORDS + row::AT;
        let at = tables.head(word)?;
        let has = |it: &FileAllocator| it.functions.iter().any(|function| function.at == at);
        match names.allocators.iter().position(has) {
            Some(allocator) => is_hooked[allocator] = true,
            None => tables.answer(word, &[0])?,
        }
    }
    for (allocator, _) in names.allocators.into_iter().zip(is_hooked).filter(|(_, it)| *it) {
        hooked.has_new |= allocator.has_new;
        hooked.allocators.push((allocator.name, allocator.file));
    }
    Ok(hooked)
}

/// Returns the table rows (`named::ROWS`) for an allocator's functions, or the function that cannot
/// be hooked.
fn rows(
    pid: u32,
    allocator: &FileAllocator,
    rooms: &mut Rooms,
    entry: u64,
    first: usize,
) -> Result<Vec<[u64; row::WORDS]>, (String, Why)> {
    let name = || allocator.name.clone();
    let length = allocator.functions.len() * named::STRIDE;
    let room = rooms.near(allocator.start, length as u64).ok_or_else(|| (name(), Why::NoRoom))?;
    let mut rows = Vec::new();
    for (number, function) in (first..).zip(&allocator.functions) {
        let place = room + (rows.len() * named::STRIDE) as u64;
        let row = row_of(pid, function, place, entry, number);
        rows.push(row.map_err(|why| (function.name.clone(), why))?);
    }
    rooms.add_range(room, length as u64);
    Ok(rows)
}

fn row_of(
    pid: u32,
    function: &NamedFunction,
    place: u64,
    entry: u64,
    number: usize,
) -> Result<[u64; row::WORDS], Why> {
    let mut code = read(pid, function.at)?;
    let before = code.first_chunk().map_or(0, |bytes| u64::from_le_bytes(*bytes));
    // Code after the function's end belongs to another function, except for padding.
    let size = usize::try_from(function.size).unwrap_or(usize::MAX);
    if size != 0 {
        code.truncate(size.max(2 * JUMP));
    }
    let moved = moved(&code, function.at, place + named::MOVED as u64)?;
    if moved.code.len() > named::STRIDE - named::MOVED {
        return Err(Why::Strange);
    }
    let number = u32::try_from(number).map_err(|_| Why::Many)?;
    let mut part = [0xcc; named::STRIDE];
    // `mov r11d, number`, `jmp [rip]`, and the target of the jump.
    let head = [&[0x41, 0xbb], &number.to_le_bytes()[..], &[0xff, 0x25, 0, 0, 0, 0]].concat();
    let head = [head, entry.to_le_bytes().to_vec()].concat();
    part[..head.len()].copy_from_slice(&head);
    part[named::MOVED..][..moved.code.len()].copy_from_slice(&moved.code);
    let mut row = [0; row::WORDS];
    row[row::AT] = function.at;
    row[row::LENGTH] = moved.length as u64;
    row[row::ROLE] = function.role;
    row[row::INSTEAD] = function.instead;
    row[row::PLACE] = place;
    row[row::BEFORE] = before;
    for (to, word) in row[row::CODE..].iter_mut().zip(part.as_chunks::<8>().0) {
        *to = u64::from_ne_bytes(*word);
    }
    Ok(row)
}

/// Free memory near code, which the recorder is to map.
#[derive(Debug)]
struct Rooms {
    /// Mapped ranges.
    used: Vec<(u64, u64)>,
    /// Start and length of the code areas that were assigned so far.
    made: Vec<[u64; 2]>,
}

impl Rooms {
    fn new(root: &ProcRoot, pid: u32) -> Rooms {
        let text = root.read(Pid(pid), "maps").unwrap_or_default();
        let range = |it: &Mapping| (it.range.start, it.range.end);
        let used = maps::parse(&text).mappings.iter().map(range).collect();
        Rooms { used, made: Vec::new() }
    }

    /// Address of a free range of `length` bytes that 32-bit jumps reach from `address`.
    fn near(&self, address: u64, length: u64) -> Option<u64> {
        const STEP: u64 = 1 << 20;
        const FARTHEST: u64 = 1 << 30;
        /// The kernel forbids mappings below this address (`vm.mmap_min_addr`).
        const LOWEST: u64 = 1 << 16;
        let is_free = |at: u64| {
            at >= LOWEST && self.used.iter().all(|&(start, end)| at + length <= start || at >= end)
        };
        let base = address & !(STEP - 1);
        if self.made.len() == named::MAX_ROOMS || self.used.is_empty() {
            return None;
        }
        (1..FARTHEST / STEP).find_map(|step| {
            let both = [base.checked_sub(step * STEP), base.checked_add(step * STEP)];
            both.into_iter().flatten().find(|at| is_free(*at))
        })
    }

    fn add_range(&mut self, at: u64, length: u64) {
        let length = length.next_multiple_of(rustix::param::page_size() as u64);
        self.used.push((at, at + length));
        self.made.push([at, length]);
    }
}

/// Relocates the prologues of the functions that the recorder requests: `malloc` and related
/// functions.
fn asked(tables: &SharedTables, pid: u32, has_threads: bool) -> io::Result<Result<(), Why>> {
    let near = tables.head(hooks::NEAR)?;
    if near == 0 {
        return Ok(Ok(()));
    }
    // The code areas of an earlier recording are kept: a thread may execute them, and functions may
    // begin with jumps to them.
    if tables.head(hooks::READY)? != 0 {
        return Ok(Ok(()));
    }
    if has_threads {
        return Ok(Err(Why::Threads));
    }
    let others = tables.head(hooks::NEAR_OTHERS)?;
    let mut lengths = [0; hooks::FUNCTIONS];
    let mut room = vec![0xcc; hooks::CODE_WORDS * 8];
    for (index, length) in lengths.iter_mut().enumerate() {
        let at = tables.head(hooks::AT + index)?;
        if at == 0 {
            continue;
        }
        let entry = tables.head(hooks::ENTRIES + index)?;
        let begin = index * hooks::STRIDE;
        let near = if index < hooks::FAMILY || others == 0 { near } else { others };
        let place = near.wrapping_add((begin + hooks::MOVED) as u64);
        let moved = match read(pid, at).and_then(|code| moved(&code, at, place)) {
            Ok(moved) => moved,
            Err(why) if index < hooks::FAMILY => return Ok(Err(why)),
            // If one of the other functions cannot be hooked, the recording continues without it.
            Err(_) => continue,
        };
        *length = moved.length as u64;
        // `jmp [rip]`, and the target of the jump.
        let jump = [&[0xff, 0x25, 0, 0, 0, 0], &entry.to_le_bytes()[..]].concat();
        room[begin..begin + jump.len()].copy_from_slice(&jump);
        let begin = begin + hooks::MOVED;
        room[begin..begin + moved.code.len()].copy_from_slice(&moved.code);
    }
    let words = room.as_chunks::<8>().0.iter().map(|word| u64::from_ne_bytes(*word));
    tables.answer(hooks::CODE, &words.collect::<Vec<_>>())?;
    tables.answer(hooks::LENGTHS, &lengths)?;
    Ok(Ok(()))
}

fn read(pid: u32, at: u64) -> Result<Vec<u8>, Why> {
    let mut code = vec![0; SCANNED_BYTES];
    let range = at..at.saturating_add(SCANNED_BYTES as u64);
    let read = remote::read(pid, slice::from_ref(&range), &mut code).unwrap_or(0);
    code.truncate(read);
    if code.len() < JUMP { Err(Why::Unreadable) } else { Ok(code) }
}

/// Relocates the first instructions of the function at `at` to `place`, which a jump must reach.
fn moved(code: &[u8], at: u64, place: u64) -> Result<RelocatedPrologue, Why> {
    let mut decoder = Decoder::with_ip(64, code, at, DecoderOptions::NONE);
    let mut covered: Vec<Instruction> = Vec::new();
    let mut length = 0;
    let mut ends = false;
    while length < JUMP {
        let instruction = decoder.decode();
        // Only padding may follow the function's end.
        if ends && !fills(&instruction) {
            return Err(Why::Short);
        }
        match instruction.flow_control() {
            _ if ends => {}
            FlowControl::Next | FlowControl::ConditionalBranch => covered.push(instruction),
            FlowControl::UnconditionalBranch
            | FlowControl::Return
            | FlowControl::IndirectBranch => {
                ends = true;
                covered.push(instruction);
            }
            // If the last replaced instruction is a call, the called function returns to the
            // original instruction after this call.
            FlowControl::Call | FlowControl::IndirectCall if length + instruction.len() >= JUMP => {
                ends = true;
                let behind = instruction.next_ip();
                covered.extend(call(&instruction, behind)?);
            }
            FlowControl::Call | FlowControl::IndirectCall => return Err(Why::Calls),
            _ => return Err(Why::Strange),
        }
        length += instruction.len();
    }
    let behind = at + length as u64;
    let into = |target: u64| target > at && target < behind;
    while decoder.can_decode() {
        let instruction = decoder.decode();
        let is_branch = instruction.is_jcc_short_or_near() || instruction.is_jmp_short_or_near();
        if is_branch && into(instruction.near_branch_target()) {
            return Err(Why::Loops);
        }
    }
    if covered.iter().any(|it| into(it.near_branch_target())) {
        return Err(Why::Loops);
    }
    if !ends {
        let jump = Instruction::with_branch(Code::Jmp_rel32_64, behind);
        covered.push(jump.map_err(|_| Why::Strange)?);
    }
    let block = InstructionBlock::new(&covered, place);
    let encoded = BlockEncoder::encode(64, block, BlockEncoderOptions::NONE);
    let code = encoded.map_err(|_| Why::Strange)?.code_buffer;
    if code.len() > hooks::STRIDE - hooks::MOVED {
        return Err(Why::Strange);
    }
    Ok(RelocatedPrologue { length, code })
}

/// Replaces a call by instructions that push the return address `back` and jump to the called
/// function.
fn call(call: &Instruction, back: u64) -> Result<[Instruction; 4], Why> {
    let halves = [back & u64::from(u32::MAX), back >> 32].map(|it| u32::try_from(it).unwrap_or(0));
    let stack = |displacement| MemoryOperand::with_base_displ(Register::RSP, displacement);
    let to = match call.flow_control() {
        FlowControl::Call => {
            Instruction::with_branch(Code::Jmp_rel32_64, call.near_branch_target())
        }
        // An operand relative to the stack pointer would be wrong after the push.
        _ if call.code() != Code::Call_rm64 || call.memory_base() == Register::RSP => {
            return Err(Why::Calls);
        }
        _ => {
            let mut to = *call;
            to.set_code(Code::Jmp_rm64);
            Ok(to)
        }
    };
    let moved = || -> Result<[Instruction; 4], IcedError> {
        Ok([
            Instruction::with2(Code::Lea_r64_m, Register::RSP, stack(-8))?,
            Instruction::with2(Code::Mov_rm32_imm32, stack(0), halves[0])?,
            Instruction::with2(Code::Mov_rm32_imm32, stack(4), halves[1])?,
            to?,
        ])
    };
    moved().map_err(|_| Why::Strange)
}

/// True for instructions that compilers use as padding between functions.
fn fills(instruction: &Instruction) -> bool {
    matches!(
        instruction.code(),
        Code::Int3 | Code::Nopw | Code::Nopd | Code::Nopq | Code::Nop_rm16 | Code::Nop_rm32
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    const AT: u64 = 0x40_0000;
    const PLACE: u64 = 0x30_0000;

    #[test]
    fn whole_instructions_are_moved_and_go_on_behind() {
        // push rbp; mov rbp, rsp; sub rsp, 16; ret
        let code = [0x55, 0x48, 0x89, 0xe5, 0x48, 0x83, 0xec, 0x10, 0xc3];
        let moved = moved(&code, AT, PLACE).unwrap();
        assert_eq!(moved.length, 8);
        assert_eq!(moved.code[..8], code[..8]);
        let distance = i32::from_le_bytes(moved.code[9..13].try_into().unwrap());
        assert_eq!(moved.code[8], 0xe9);
        assert_eq!((PLACE + 13).wrapping_add_signed(distance.into()), AT + 8);
    }

    #[test]
    fn targets_relative_to_the_instruction_stay_the_same() {
        // mov rax, [rip + 0x1000]; ret
        let code = [0x48, 0x8b, 0x05, 0, 0x10, 0, 0, 0xc3];
        let moved = moved(&code, AT, PLACE).unwrap();
        let distance = i32::from_le_bytes(moved.code[3..7].try_into().unwrap());
        assert_eq!((PLACE + 7).wrapping_add_signed(distance.into()), AT + 7 + 0x1000);
    }

    #[test]
    fn short_jumps_reach_from_far() {
        // test rdi, rdi; je +0x20; ret
        let code = [0x48, 0x85, 0xff, 0x74, 0x20, 0xc3];
        let moved = moved(&code, AT, PLACE).unwrap();
        assert_eq!(moved.length, 5);
        // je rel32 has six bytes.
        assert_eq!(moved.code[3..5], [0x0f, 0x84]);
        let distance = i32::from_le_bytes(moved.code[5..9].try_into().unwrap());
        assert_eq!((PLACE + 9).wrapping_add_signed(distance.into()), AT + 5 + 0x20);
    }

    #[test]
    fn calls_return_behind_what_was_moved() {
        // sub rsp, 8; call +0x100; add rsp, 8; ret
        let code = [0x48, 0x83, 0xec, 8, 0xe8, 0, 1, 0, 0, 0x48, 0x83, 0xc4, 8, 0xc3];
        let moved = moved(&code, AT, PLACE).unwrap();
        assert_eq!(moved.length, 9);
        let instructions: Vec<Instruction> =
            Decoder::with_ip(64, &moved.code, PLACE, DecoderOptions::NONE).into_iter().collect();
        let text: Vec<String> = instructions.iter().map(ToString::to_string).collect();
        let expected = [
            "sub $8,%rsp",
            "lea -8(%rsp),%rsp",
            "movl $0x400009,(%rsp)",
            "movl $0,4(%rsp)",
            "jmp 0x0000000000400109",
        ];
        assert_eq!(text, expected);
    }

    #[test]
    fn instructions_that_cannot_be_moved_are_refused() {
        let refused = |code: &[u8]| moved(code, AT, PLACE).unwrap_err();
        // ret, then another function.
        assert_eq!(refused(&[0xc3, 0x55, 0x48, 0x89, 0xe5, 0xc3]), Why::Short);
        // call rax; call rax; ret
        assert_eq!(refused(&[0xff, 0xd0, 0xff, 0xd0, 0xc3, 0xc3]), Why::Calls);
        // call [rsp + 0x1000]
        assert_eq!(refused(&[0xff, 0x94, 0x24, 0, 0x10, 0, 0, 0xc3]), Why::Calls);
        // push rbp; mov rbp, rsp; mov rax, rdi; jmp back to the second instruction
        assert_eq!(refused(&[0x55, 0x48, 0x89, 0xe5, 0x48, 0x89, 0xf8, 0xeb, 0xf8]), Why::Loops);
        // The code ends early.
        assert_eq!(refused(&[0x55]), Why::Strange);
    }

    #[test]
    fn a_function_that_only_jumps_on_can_be_moved() {
        let moved = moved(&[0xe9, 0, 1, 0, 0, 0xcc], AT, PLACE).unwrap();
        assert_eq!((moved.length, moved.code.len()), (5, 5));
    }
}
