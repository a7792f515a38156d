//! Saved snapshots of any bytes: one that opens is the same after it is saved again.
#![no_main]

use libfuzzer_sys::fuzz_target;
use pagewise_proc::saved::parse;

fuzz_target!(|bytes: &[u8]| {
    if let Ok(snapshot) = parse(bytes) {
        let again = serde_json::to_vec(&snapshot).expect("a snapshot has a saved form");
        assert_eq!(parse(&again), Ok(snapshot));
    }
});
