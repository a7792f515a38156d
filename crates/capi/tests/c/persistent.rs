//! A program in C and one in Rust create heaps by the same calls. The bytes of their files must be
//! equal.

use std::alloc::Layout;
use std::ffi::CString;
use std::fs;
use std::path::Path;

use pagewise_alloc::persistent::{Persistent, PersistentError, PersistentOptions, Rel};

use crate::build::{C, CLinkage, api, compile, run};

/// Executes the same steps as `run_program` of `ctests/persistent.c`.
fn run_program(file: &Path) -> Result<(), PersistentError> {
    let path = CString::new(file.to_str().unwrap()).unwrap();
    let small = PersistentOptions { capacity: Some(4 << 20), log: 1, ..PersistentOptions::DEFAULT };
    // SAFETY: no other code has the file open.
    let mut heap = unsafe { Persistent::open(&path, &small) }?;
    let mut blocks = [Rel::<u8>::NULL; 64];
    let mut dice = 88_172_645_463_325_252_u64;
    let number = |number: u64| usize::try_from(number).unwrap();
    for step in 0..5000_u64 {
        dice ^= dice << 13;
        dice ^= dice >> 7;
        dice ^= dice << 17;
        let byte = step.to_le_bytes()[0];
        let block = &mut blocks[number(dice % 64)];
        let size = 8 + number((dice >> 8) % if dice >> 30 & 7 != 0 { 600 } else { 40_000 });
        let mut tx = heap.resume();
        if block.is_null() {
            *block = tx.alloc(Layout::from_size_align(size, 16).unwrap())?;
            tx.fill(*block, size)?.fill(byte);
        } else if dice >> 40 & 1 == 1 {
            tx.free(*block)?;
            *block = Rel::NULL;
        } else {
            let size = tx.block_size(*block)? / 4;
            let place = Rel::<u8>::from_offset(block.offset() + size as u64);
            tx.change_slice(place, size)?.fill(byte);
        }
        if (dice >> 50).is_multiple_of(3) { tx.commit()? } else { tx.pause() }
    }
    heap.resume().commit()?;
    heap.close()
}

#[test]
fn a_heap_made_in_c_and_one_made_in_rust_are_the_same_byte_for_byte() {
    let source = api().join("ctests/persistent.c");
    let Some(mut program) = compile("cc", &[C, &["-O2"]].concat(), &source, CLinkage::Shared)
    else {
        return;
    };
    let folder = tempfile::tempdir().unwrap();
    let (from_c, from_rust) = (folder.path().join("c.heap"), folder.path().join("rust.heap"));
    run(program.arg("program").arg(&from_c));
    run_program(&from_rust).unwrap();
    assert!(fs::read(from_c).unwrap() == fs::read(from_rust).unwrap(), "the files differ");
}
