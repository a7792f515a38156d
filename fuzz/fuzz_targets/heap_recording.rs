//! Recordings of heaps of any bytes: whole files, and payloads of frames whose checksums are right.
#![no_main]

use std::io::Cursor;

use libfuzzer_sys::fuzz_target;
use pagewise_heaplog::reader::{self, SnapshotIndex};

fuzz_target!(|bytes: &[u8]| {
    let _ = reader::read(bytes);
    // Checksums keep out nearly all that is made by chance: so kinds, lengths and payloads are
    // taken from the bytes.
    let mut file = b"\x89pwheap\n\x01".to_vec();
    file.extend(frame(1, &[0; 13]));
    let mut rest = bytes;
    while let [kind, length, tail @ ..] = rest {
        let (payload, after) = tail.split_at(tail.len().min(usize::from(*length)));
        file.extend(frame(kind % 13, payload));
        rest = after;
    }
    if let Ok(read) = reader::read(&file[..]) {
        let recording = &read.recording;
        for (at, node) in recording.nodes.iter().enumerate() {
            assert!(node.parent == u32::MAX || (node.parent as usize) < at);
            assert!((node.place as usize) < recording.places.len());
        }
        assert!(recording.counts.sites.len() <= recording.sites.len());
    }
    let mut file = Cursor::new(file);
    if let Ok(Some(index)) = SnapshotIndex::read(&mut file) {
        let _ = index.tree_at(&mut file, u64::MAX);
    }
});

/// A frame that is stored as it is.
fn frame(kind: u8, payload: &[u8]) -> Vec<u8> {
    let mut head = vec![kind];
    let mut length = payload.len();
    while length >= 0x80 {
        head.push(u8::try_from(length & 0x7f).expect("seven bits") | 0x80);
        length >>= 7;
    }
    head.push(u8::try_from(length).expect("seven bits"));
    head.push(0);
    let sum = crc32(head.iter().chain(payload));
    head.extend(sum.to_le_bytes());
    head.extend(payload);
    head
}

fn crc32<'a>(bytes: impl Iterator<Item = &'a u8>) -> u32 {
    let mut sum = u32::MAX;
    for byte in bytes {
        sum ^= u32::from(*byte);
        for _ in 0..8 {
            sum = if sum & 1 == 1 { (sum >> 1) ^ 0xedb8_8320 } else { sum >> 1 };
        }
    }
    !sum
}
