//! Owners of the memory that faulted, at the end of the recording: call stacks show which faults
//! belong to the allocator and which to the recorder.

use std::collections::HashMap;

use pagewise_model::Absent;
use pagewise_model::faults::{Allocation, FaultHeap, FaultRow, Owner};
use pagewise_model::traced::{Frame, SourcePosition};

use crate::faults::{FaultsOutcome, HeapBlocks};

/// Functions and source positions of the frames whose functions are known. The stack of a fault and
/// the stack of its allocation have these frames in common.
type CommonFrames = Vec<(String, Option<SourcePosition>)>;

/// Owners of the memory, by call stack.
#[derive(Debug, Default)]
pub(super) struct Owners {
    heap: Option<FaultHeap>,
    lacks: Vec<Absent>,
    /// Owner of faults outside of blocks, by call stack.
    of_stacks: Vec<Owner>,
}

impl Owners {
    /// Finds the owners by the call stacks of all faults. Appends the frames of allocations to
    /// `frames`.
    pub(super) fn from_stacks(
        blocks: Option<Box<dyn HeapBlocks>>,
        frames: &mut Vec<Frame>,
        stacks: &[Vec<u32>],
    ) -> Owners {
        let Some(mut blocks) = blocks else { return Owners::default() };
        let FaultsOutcome { is_known, least, lost, refused, allocations, lacks } = blocks.finish();
        if !is_known {
            return Owners { lacks, ..Owners::default() };
        }
        let is_recorder: Vec<bool> = frames.iter().map(|frame| blocks.is_recorder(frame)).collect();
        let is_recorder = |frame: &u32| is_recorder.get(*frame as usize).copied().unwrap_or(false);
        let mut numbers: HashMap<Frame, u32> = HashMap::new();
        let mut number = |frame: Frame| {
            *numbers.entry(frame).or_insert_with_key(|frame| {
                frames.push(frame.clone());
                u32::try_from(frames.len() - 1).unwrap_or(u32::MAX)
            })
        };
        let mut alike: HashMap<CommonFrames, u32> = HashMap::new();
        let mut nameless: HashMap<&[u32], u32> = HashMap::new();
        let mut all: Vec<Allocation<u32>> = Vec::new();
        for Allocation { blocks, bytes, frames } in allocations {
            let next = u32::try_from(all.len()).unwrap_or(u32::MAX);
            alike.entry(alike_of(frames.iter())).or_insert(next);
            all.push(Allocation {
                blocks,
                bytes,
                frames: frames.into_iter().map(&mut number).collect(),
            });
        }
        let mut of_stacks = Vec::new();
        for stack in stacks {
            of_stacks.push(match stack.iter().rposition(is_recorder) {
                None => Owner::Elsewhere,
                Some(last) if stack[..=last].iter().all(is_recorder) => Owner::Recorder,
                Some(last) => {
                    let callers = &stack[last + 1..];
                    let next = u32::try_from(all.len()).unwrap_or(u32::MAX);
                    let key = alike_of(callers.iter().filter_map(|at| frames.get(*at as usize)));
                    let number = match key.is_empty() {
                        true => *nameless.entry(callers).or_insert(next),
                        false => *alike.entry(key).or_insert(next),
                    };
                    if number == next {
                        all.push(Allocation { frames: callers.to_vec(), ..Allocation::default() });
                    }
                    Owner::Allocator(number)
                }
            });
        }
        let heap = Some(FaultHeap { least, lost, refused, allocations: all });
        Owners { heap, lacks, of_stacks }
    }

    /// Final owner of memory that faulted: outside of blocks, it follows from the call stack.
    pub(super) fn settled(&self, owner: Owner, stack: u32) -> Owner {
        match (owner, &self.heap) {
            (_, None) => Owner::Unrecorded,
            (Owner::Elsewhere, _) => {
                self.of_stacks.get(stack as usize).copied().unwrap_or(Owner::Elsewhere)
            }
            (owner, _) => owner,
        }
    }

    /// The heap with only the allocations whose memory faulted. Renumbers the owners in `rows`.
    pub(super) fn finish(self, rows: &mut [FaultRow]) -> (Option<FaultHeap>, Vec<Absent>) {
        let Owners { heap, lacks, .. } = self;
        let Some(mut heap) = heap else { return (None, lacks) };
        let mut kept: Vec<Allocation<u32>> = Vec::new();
        let mut numbers: HashMap<u32, u32> = HashMap::new();
        for row in rows {
            let (Owner::Block(number) | Owner::Allocator(number)) = &mut row.owner else {
                continue;
            };
            let next = u32::try_from(kept.len()).unwrap_or(u32::MAX);
            *number = *numbers.entry(*number).or_insert_with_key(|number| {
                kept.push(heap.allocations.get(*number as usize).cloned().unwrap_or_default());
                next
            });
        }
        heap.allocations = kept;
        (Some(heap), lacks)
    }
}

fn alike_of<'a>(frames: impl Iterator<Item = &'a Frame>) -> CommonFrames {
    let known = |frame: &Frame| Some((frame.function.clone()?, frame.line.clone()));
    frames.filter_map(known).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Two allocations with known call stacks; frames without a name belong to the recorder.
    #[derive(Debug)]
    struct TwoAllocations;

    fn frame(name: &str, offset: u64) -> Frame {
        let function = Some(name.to_owned()).filter(|name| !name.is_empty());
        Frame { function, module: None, offset, line: None, inlined: false }
    }

    impl HeapBlocks for TwoAllocations {
        fn drain(&mut self, _now: u64) {}

        fn find(&mut self, _pid: u32, _time: u64, _address: u64) -> Owner {
            Owner::Elsewhere
        }

        fn replaced(&mut self, _pid: u32) {}

        fn is_recorder(&self, frame: &Frame) -> bool {
            frame.function.is_none()
        }

        fn finish(&mut self) -> FaultsOutcome {
            let allocation = |names: &[&str]| Allocation {
                blocks: 1,
                bytes: 1,
                frames: names.iter().map(|name| frame(name, 1)).collect(),
            };
            let allocations = vec![allocation(&["idle"]), allocation(&["make", "main"])];
            FaultsOutcome { is_known: true, allocations, ..FaultsOutcome::default() }
        }
    }

    #[test]
    fn call_stacks_show_what_the_allocator_touched_and_for_which_allocation() {
        // The frames of faults and the frames of allocations have equal functions at different
        // offsets.
        let names = ["sbrk", "", "make", "main", "other"];
        let mut frames: Vec<Frame> = names.iter().map(|name| frame(name, 2)).collect();
        let stacks =
            [vec![2, 3], vec![1, 2, 3], vec![0, 1, 1, 2, 3], vec![0, 1, 4, 3], vec![0, 1], vec![]];
        let owners = Owners::from_stacks(Some(Box::new(TwoAllocations)), &mut frames, &stacks);
        let settled = |stack| owners.settled(Owner::Elsewhere, stack);
        let found: Vec<Owner> = (0..6).map(settled).collect();
        let (allocator, elsewhere) = (Owner::Allocator, Owner::Elsewhere);
        assert_eq!(
            found,
            [elsewhere, Owner::Recorder, allocator(1), allocator(2), allocator(3), elsewhere]
        );
        assert_eq!(owners.settled(Owner::Block(1), 2), Owner::Block(1), "what is known stays");
        assert_eq!(owners.settled(Owner::Unrecorded, 2), Owner::Unrecorded);
        let row = |owner| FaultRow {
            stack: 0,
            mapping: 0,
            thread: 0,
            kind: pagewise_model::faults::FaultKind::Anonymous,
            by_kernel: false,
            on_stack: false,
            owner,
            count: 1,
            took_ns: None,
        };
        let mut rows = [row(Owner::Block(1)), row(allocator(2)), row(allocator(1))];
        let (heap, _) = owners.finish(&mut rows);
        let kept = heap.unwrap().allocations;
        assert_eq!(rows.map(|row| row.owner), [Owner::Block(0), allocator(1), allocator(0)]);
        let first = |at: usize| frames[kept[at].frames[0] as usize].function.clone().unwrap();
        assert_eq!((first(0), first(1)), ("make".to_owned(), "other".to_owned()));
        assert_eq!((kept.len(), kept[0].blocks, kept[1].blocks), (2, 1, 0));
    }

    #[test]
    fn without_a_recorder_nothing_is_said() {
        let owners = Owners::from_stacks(None, &mut Vec::new(), &[vec![]]);
        assert_eq!(owners.settled(Owner::Elsewhere, 0), Owner::Unrecorded);
        assert_eq!(owners.finish(&mut []).0, None);
    }
}
