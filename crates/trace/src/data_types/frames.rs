//! Local variables in the frames of functions that threads are in.

use super::scopes::FrameBase;
use super::walk::SeenLocal;
use crate::process_code::StackFrame;

/// Maximum number of frames whose variables are searched.
const MAX_FRAMES: usize = 1 << 14;

/// A function that a thread is in.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct CodeFrame {
    /// Address in the function: within its current call instruction, or of its next instruction.
    pub(crate) instruction: u64,
    stack_pointer: u64,
    /// Stack pointer of the caller before its call: the base of the call frame.
    caller: u64,
}

/// The frames of call stacks, in order of their instructions. The outermost frame of each stack is
/// omitted, because its end is unknown.
pub(crate) fn code_frames(stacks: &[Vec<StackFrame>]) -> Vec<CodeFrame> {
    let pairs = stacks.iter().flat_map(|stack| stack.windows(2));
    let frames = pairs.map(|pair| CodeFrame {
        instruction: pair[0].address.saturating_sub(pair[0].returns.into()),
        stack_pointer: pair[0].stack_pointer,
        caller: pair[1].stack_pointer,
    });
    let mut frames: Vec<CodeFrame> = frames.take(MAX_FRAMES).collect();
    frames.sort_unstable();
    frames
}

/// Returns the instruction addresses of frames as addresses in the file, in order, each once.
pub(super) fn instructions(frames: &[CodeFrame], bias: u64) -> Vec<u64> {
    let mut all: Vec<u64> = frames.iter().map(|it| it.instruction.wrapping_sub(bias)).collect();
    all.sort_unstable();
    all.dedup();
    all
}

/// The addresses of a local variable, one for each frame that has it.
pub(super) fn starts(
    frames: &[CodeFrame],
    bias: u64,
    local: &SeenLocal,
) -> impl Iterator<Item = u64> {
    let (code, offset) = (local.code, local.offset);
    let first = frames.partition_point(|it| it.instruction < code.low.wrapping_add(bias));
    let of_code = frames[first..].iter();
    let of_code = of_code.take_while(move |it| code.contains(it.instruction.wrapping_sub(bias)));
    of_code.map(move |frame| frame.base(code.base).wrapping_add_signed(offset))
}

impl CodeFrame {
    fn base(&self, base: FrameBase) -> u64 {
        match base {
            FrameBase::CallFrame => self.caller,
            // A function with a frame pointer first pushes its caller's frame pointer, below the
            // return address.
            FrameBase::FramePointer => self.caller.wrapping_sub(16),
            FrameBase::StackPointer => self.stack_pointer,
        }
    }

    /// Frames of one call each, at every eighth instruction.
    #[cfg(test)]
    pub(crate) fn at(instructions: std::ops::Range<u64>) -> Vec<CodeFrame> {
        let frame = |instruction| CodeFrame { instruction, stack_pointer: 0x7000, caller: 0x7100 };
        instructions.step_by(8).map(frame).collect()
    }
}
