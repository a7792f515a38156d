//! Jumps over the first instructions of functions: which instructions a jump covers, and the same instructions elsewhere.

use std::fmt;
use std::io;
use std::slice;

use iced_x86::{
    BlockEncoder, BlockEncoderOptions, Code, Decoder, DecoderOptions, FlowControl, Instruction,
    InstructionBlock,
};
use pagewise_heaplog::tables::hooks;
use pagewise_model::Pid;
use pagewise_proc::ProcRoot;
use pagewise_sys::remote;

use crate::tables::Tables;

/// Bytes of a jump.
const JUMP: usize = 5;
/// How much of a function is looked at for jumps back to its beginning.
const LOOK: usize = 1 << 10;

/// Why a function is not hooked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Why {
    /// Its code could not be read.
    Unreadable,
    /// It ends before a jump would.
    Short,
    /// It calls somebody in its first instructions.
    Calls,
    /// It jumps back into its first instructions.
    Loops,
    /// Its first instructions do nothing known, or cannot be moved.
    Strange,
    /// Threads run already.
    Threads,
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
        })
    }
}

/// The first instructions of a function, moved.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Moved {
    /// How many bytes of the function they were.
    length: usize,
    /// The instructions, and a jump behind those that they were.
    code: Vec<u8>,
}

/// Answers a recorder that asks for hooks; one that asks for none is left alone.
///
/// # Errors
/// Where the tables cannot be read or written.
pub(crate) fn answer(
    tables: &Tables,
    pid: u32,
    root: &ProcRoot,
    attached: bool,
) -> io::Result<Result<(), Why>> {
    let near = tables.head(hooks::NEAR)?;
    if near == 0 {
        return Ok(Ok(()));
    }
    // Code that is there may be running, and its functions may begin with jumps.
    if tables.head(hooks::READY)? != 0 {
        return Ok(Ok(()));
    }
    let threads = std::fs::read_dir(root.file(Pid(pid), "task"));
    if !attached && threads.map_or(0, Iterator::count) > 1 {
        return Ok(Err(Why::Threads));
    }
    let mut lengths = [0; hooks::FUNCTIONS];
    let mut room = vec![0xcc; hooks::CODE_WORDS * 8];
    for (index, length) in lengths.iter_mut().enumerate() {
        let at = tables.head(hooks::AT + index)?;
        if at == 0 {
            continue;
        }
        let entry = tables.head(hooks::ENTRIES + index)?;
        let begin = index * hooks::STRIDE;
        let place = near.wrapping_add((begin + hooks::MOVED) as u64);
        let moved = match read(pid, at).and_then(|code| moved(&code, at, place)) {
            Ok(moved) => moved,
            Err(why) if index < hooks::FAMILY => return Ok(Err(why)),
            // Without one of the others less is known.
            Err(_) => continue,
        };
        *length = moved.length as u64;
        // `jmp [rip]`, and where to.
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
    let mut code = vec![0; LOOK];
    let range = at..at.saturating_add(LOOK as u64);
    let read = remote::read(pid, slice::from_ref(&range), &mut code).unwrap_or(0);
    code.truncate(read);
    if code.len() < JUMP { Err(Why::Unreadable) } else { Ok(code) }
}

/// The first instructions of the function at `at`, moved to `place`, which is no farther than jumps reach.
fn moved(code: &[u8], at: u64, place: u64) -> Result<Moved, Why> {
    let mut decoder = Decoder::with_ip(64, code, at, DecoderOptions::NONE);
    let mut covered: Vec<Instruction> = Vec::new();
    let mut length = 0;
    let mut ends = false;
    while length < JUMP {
        let instruction = decoder.decode();
        // What is behind its end is nobody's, if it only fills up.
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
    Ok(Moved { length, code })
}

/// What compilers put between functions.
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
    fn what_is_named_by_its_distance_stays_the_same() {
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
    fn what_cannot_be_moved_is_refused() {
        let refused = |code: &[u8]| moved(code, AT, PLACE).unwrap_err();
        // ret, and another function behind.
        assert_eq!(refused(&[0xc3, 0x55, 0x48, 0x89, 0xe5, 0xc3]), Why::Short);
        // call
        assert_eq!(refused(&[0xe8, 0, 0, 0, 0, 0xc3]), Why::Calls);
        // push rbp; mov rbp, rsp; mov rax, rdi; jmp back to the second
        assert_eq!(refused(&[0x55, 0x48, 0x89, 0xe5, 0x48, 0x89, 0xf8, 0xeb, 0xf8]), Why::Loops);
        // The end of what can be read.
        assert_eq!(refused(&[0x55]), Why::Strange);
    }

    #[test]
    fn a_function_that_only_jumps_on_can_be_moved() {
        let moved = moved(&[0xe9, 0, 1, 0, 0, 0xcc], AT, PLACE).unwrap();
        assert_eq!((moved.length, moved.code.len()), (5, 5));
    }
}
