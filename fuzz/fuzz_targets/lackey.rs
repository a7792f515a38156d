//! Traces of any bytes, and what simulators make of them.
#![no_main]

use libfuzzer_sys::fuzz_target;
use pagewise_sim::geometry::{I7_6800K, TlbPageSize};
use pagewise_sim::lackey::LackeyReader;
use pagewise_sim::replacement::{PageReplacement, SimulatedMemory};
use pagewise_sim::{Levels, RecencyPolicy};

fuzz_target!(|bytes: &[u8]| {
    let mut reader = LackeyReader::default();
    let accesses = reader.read(bytes).to_vec();
    let shape = I7_6800K.tlb(TlbPageSize::Base).expect("it has one");
    let mut tlb = Levels::tlb(&shape, RecencyPolicy::TreePlru).expect("a CPU that exists");
    tlb.play(&accesses);
    assert!(tlb.counts().first.total() <= accesses.len() as u64);
    for policy in PageReplacement::ALL {
        SimulatedMemory::new(3, TlbPageSize::Base.bytes(), policy)
            .expect("three frames")
            .play(&accesses);
    }
});
