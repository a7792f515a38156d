//! `maps` of any bytes: the mappings are in order and hold something.
#![no_main]

use libfuzzer_sys::fuzz_target;
use pagewise_proc::maps::parse;

fuzz_target!(|text: &[u8]| {
    let mappings = parse(text).mappings;
    for pair in mappings.windows(2) {
        assert!(pair[0].range.end <= pair[1].range.start);
    }
    for mapping in &mappings {
        assert!(!mapping.range.is_empty());
        let _ = (mapping.declared(), mapping.is_deleted());
    }
});
