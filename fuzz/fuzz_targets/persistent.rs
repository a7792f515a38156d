//! Heaps in files: whatever bytes of one are changed, opening it says what is wrong, or it can be
//! used.
#![no_main]

use std::alloc::Layout;
use std::ffi::CString;
use std::fs;
use std::path::PathBuf;
use std::sync::OnceLock;

use libfuzzer_sys::fuzz_target;
use pagewise_alloc::persistent::{Persistent, PersistentError, PersistentOptions, Rel};

fn path() -> PathBuf {
    std::env::temp_dir().join(format!("pagewise-fuzz-{}.heap", std::process::id()))
}

fn open() -> Result<Persistent, PersistentError> {
    let name = CString::new(path().into_os_string().into_encoded_bytes()).expect("no NUL");
    let small = PersistentOptions { capacity: Some(1 << 20), log: 1, ..PersistentOptions::DEFAULT };
    // SAFETY: no other code has the file open.
    unsafe { Persistent::open(&name, &small) }
}

/// A heap with blocks of some sizes, two of which have names: as it was closed, and as a kill left
/// it.
fn images() -> &'static [Vec<u8>; 2] {
    static IMAGES: OnceLock<[Vec<u8>; 2]> = OnceLock::new();
    IMAGES.get_or_init(|| {
        let mut heap = open().expect("a new heap");
        use_all(&mut heap).expect("it has room");
        let killed = fs::read(path()).expect("it is open");
        heap.close().expect("it is whole");
        [fs::read(path()).expect("it was closed"), killed]
    })
}

fn use_all(heap: &mut Persistent) -> Result<(), PersistentError> {
    let mut tx = heap.begin();
    for (size, name) in [(40, "one"), (300, ""), (9000, "two"), (40, ""), (50_000, "")] {
        let block = tx.alloc(Layout::from_size_align(size, 8).expect("8 is a power of 2"))?;
        tx.fill(block, size)?.fill(1);
        if !name.is_empty() {
            tx.set_root(name, block)?;
        }
    }
    tx.commit()
}

/// Each four bytes: where, and what.
fn change(image: &mut [u8], data: &[u8]) {
    for edit in data.chunks_exact(4) {
        let place = usize::from_le_bytes([edit[0], edit[1], edit[2], 0, 0, 0, 0, 0]);
        if let Some(byte) = image.get_mut(place) {
            *byte = edit[3];
        }
    }
}

fuzz_target!(|data: &[u8]| {
    let Some((which, data)) = data.split_first() else { return };
    let mut image = images()[usize::from(which & 1)].clone();
    change(&mut image, data);
    fs::write(path(), &image).expect("it was there");
    let Ok(mut heap) = open() else { return };
    heap.check().expect("what was opened was checked");
    let _ = use_all(&mut heap);
    for place in (0..image.len() as u64).step_by(16) {
        let _ = heap.begin().free(Rel::<u8>::from_offset(place));
    }
    heap.check().expect("it was used as it should be");
});
