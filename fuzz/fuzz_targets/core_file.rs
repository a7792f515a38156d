//! Core files of any bytes: the mappings are in order, and no more bytes are read than there are.
#![no_main]

use libfuzzer_sys::fuzz_target;
use pagewise_model::{AddrRange, Bytes};
use pagewise_proc::core_file::{CoreFile, ImageFiles, snapshot};

fuzz_target!(|bytes: &[u8]| {
    let Ok(core) = CoreFile::from_bytes(bytes.to_vec()) else { return };
    let snapshot = snapshot(&core, &ImageFiles::default());
    let mappings = snapshot.mappings.expect("a core has mappings");
    for pair in mappings.windows(2) {
        assert!(pair[0].range.end <= pair[1].range.start);
    }
    let mut word = [0; 8];
    for segment in core.segments() {
        assert!(segment.held <= segment.dumped && segment.held <= core.size());
        core.read(segment.range.start, &mut word);
        core.read(segment.range.end.wrapping_sub(3), &mut word);
        let held: Bytes = core.held(segment.range).map(AddrRange::len).sum();
        assert_eq!(held, segment.held);
    }
});
