//! `smaps` of any bytes: the mappings are in order, and pieces say what the whole says.
#![no_main]

use libfuzzer_sys::fuzz_target;
use pagewise_proc::smaps::{SmapsParser, parse, parse_rollup};

fuzz_target!(|text: &[u8]| {
    let whole = parse(text);
    for pair in whole.mappings.windows(2) {
        assert!(pair[0].range.end <= pair[1].range.start);
    }
    let mut parser = SmapsParser::default();
    text.chunks(7).for_each(|piece| parser.push(piece));
    let pieces = parser.finish();
    assert_eq!(pieces.mappings, whole.mappings);
    assert_eq!(pieces.torn.is_some(), whole.torn.is_some());
    let _ = parse_rollup(text);
});
