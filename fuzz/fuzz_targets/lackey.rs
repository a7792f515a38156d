//! Traces of any bytes, and what simulators make of them.
#![no_main]

use libfuzzer_sys::fuzz_target;
use pagewise_sim::geometry::{I7_6800K, PageSize};
use pagewise_sim::lackey::Reader;
use pagewise_sim::replacement::{Memory, Replacement};
use pagewise_sim::{Levels, Policy};

fuzz_target!(|bytes: &[u8]| {
    let mut reader = Reader::default();
    let accesses = reader.read(bytes).to_vec();
    let shape = I7_6800K.tlb(PageSize::Base).expect("it has one");
    let mut tlb = Levels::tlb(&shape, Policy::TreePlru).expect("a CPU that exists");
    tlb.play(&accesses);
    assert!(tlb.counts().first.total() <= accesses.len() as u64);
    for policy in Replacement::ALL {
        Memory::new(3, PageSize::Base.bytes(), policy).expect("three frames").play(&accesses);
    }
});
