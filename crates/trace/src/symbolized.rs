//! Recorded call stacks as lists of frames, each frame once.

use std::collections::HashMap;

use pagewise_model::bounds::{Folded, MemoryLimit};
use pagewise_model::traced::Frame;

use crate::stacks::{RecordedStacks, StackId};
use crate::symbols::{CodePlace, Symbols, bytes_of};

/// Numbers of frames: equal ones have the same.
#[derive(Default)]
struct FrameNumbers(HashMap<Frame, u32>);

impl FrameNumbers {
    fn number(&mut self, frame: Frame) -> u32 {
        let next = u32::try_from(self.0.len()).unwrap_or(u32::MAX);
        *self.0.entry(frame).or_insert(next)
    }

    /// The frames in the order of their numbers.
    fn into_frames(self) -> Vec<Frame> {
        let mut frames: Vec<(u32, Frame)> = self.0.into_iter().map(|(it, at)| (at, it)).collect();
        frames.sort_unstable_by_key(|(at, _)| *at);
        frames.into_iter().map(|(_, frame)| frame).collect()
    }
}

/// The frames, the stacks as lists of frame indices, and the list of each stack. Stacks with the
/// largest counts come first. Once there are too many indices, the remaining stacks are merged;
/// once names take too much memory, frames have no names.
pub(crate) fn symbolize(
    stacks: &RecordedStacks,
    symbols: &mut Symbols,
    counted: HashMap<StackId, u64>,
    limit: MemoryLimit,
    folded: &mut Folded,
) -> (Vec<Frame>, Vec<Vec<u32>>, HashMap<StackId, u32>) {
    /// Divisors of the memory limit: for bytes of names; and for the number of frame indices, each
    /// of which exists three times while a report is made.
    const NAMES: u64 = 16;
    const NUMBERS: u64 = 512;
    let mut names = limit.part(NAMES);
    let mut numbers_left = limit.part(NUMBERS);
    let mut frames_of: HashMap<*const CodePlace, Vec<u32>> = HashMap::new();
    let mut numbers = FrameNumbers::default();
    let (mut lists, mut list_of): (Vec<Vec<u32>>, HashMap<Vec<u32>, u32>) = Default::default();
    let mut stack_of = HashMap::new();
    let mut order: Vec<(StackId, u64)> = counted.into_iter().collect();
    order.sort_unstable_by_key(|(id, count)| (std::cmp::Reverse(*count), *id));
    let mut error = 0;
    for (id, count) in order {
        let is_summed = id == StackId::OTHER || numbers_left == 0;
        let mut list = Vec::new();
        if is_summed {
            list.push(numbers.number(Folded::frame()));
            if id != StackId::OTHER {
                error = error.max(count);
                folded.stacks += 1;
            }
        }
        let places = stacks.places().get(id.index()).filter(|_| !is_summed);
        for place in places.into_iter().flat_map(|stack| stack.iter()) {
            let of_place = frames_of.entry(std::rc::Rc::as_ptr(place)).or_insert_with(|| {
                if names == 0 {
                    folded.unresolved_places += 1;
                    return vec![numbers.number(place.unresolved())];
                }
                let frames = symbols.frames(place);
                names = names.saturating_sub(frames.iter().map(bytes_of).sum());
                frames.iter().map(|frame| numbers.number(frame.clone())).collect()
            });
            list.extend_from_slice(of_place);
        }
        let stack = *list_of.entry(list).or_insert_with_key(|list| {
            numbers_left = numbers_left.saturating_sub(list.len());
            lists.push(list.clone());
            u32::try_from(lists.len() - 1).unwrap_or(u32::MAX)
        });
        stack_of.insert(id, stack);
        if is_summed {
            stack_of.insert(StackId::OTHER, stack);
        }
    }
    folded.stack_error += error;
    (numbers.into_frames(), lists, stack_of)
}
