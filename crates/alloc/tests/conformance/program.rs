//! Random programs: steps that mean something for any pool, since they name blocks by their place
//! among the live.

use std::alloc::Layout;

use pagewise_alloc::Discipline;
use proptest::prelude::*;
use proptest::sample::Index;

/// Next step of a program. Steps on a block do nothing if no block is live.
#[derive(Clone, Debug)]
pub(crate) enum ProgramStep {
    Allocate(Layout),
    Free(Index),
    Resize(Index, usize),
}

const STEPS: usize = if cfg!(miri) { 24 } else { 160 };
const LARGE: usize = if cfg!(miri) { 3000 } else { 100_000 };

/// Programs with a maximum number of steps, in which more is allocated than freed.
pub(crate) fn programs() -> impl Strategy<Value = Vec<ProgramStep>> {
    prop::collection::vec(step(), 1..STEPS)
}

fn step() -> impl Strategy<Value = ProgramStep> {
    prop_oneof![
        6 => (size(), align()).prop_map(|(size, align)| {
            ProgramStep::Allocate(Layout::from_size_align(size, align).unwrap())
        }),
        4 => any::<Index>().prop_map(ProgramStep::Free),
        2 => (any::<Index>(), size()).prop_map(|(which, size)| ProgramStep::Resize(which, size)),
    ]
}

fn size() -> impl Strategy<Value = usize> {
    prop_oneof![
        1 => Just(0),
        12 => 1..64_usize,
        6 => 64..2000_usize,
        2 => 2000..LARGE,
    ]
}

fn align() -> impl Strategy<Value = usize> {
    let log = prop_oneof![8 => 0..4_u32, 2 => 4..7_u32, 1 => 7..14_u32];
    log.prop_map(|log| 1 << log)
}

/// Index of the block, in order of age, to which a step applies, so that the program stays legal.
pub(crate) fn which(frees: Discipline, index: &Index, live: usize) -> usize {
    let any = index.index(live);
    match frees {
        Discipline::Lifo => live - 1,
        // Mostly the oldest.
        Discipline::Fifo if !index.index(4).is_multiple_of(4) => 0,
        Discipline::Fifo | Discipline::Any => any,
    }
}
