//! A list that persists when its file is closed and opened again.

#![expect(clippy::print_stdout, reason = "an example prints")]

use std::ffi::CString;

use pagewise_alloc::persistent::{Persistent, PersistentError, PersistentOptions, Rel};

/// A link: a number, and the offset of the next link.
type ListLink = [u64; 2];

/// Adds a link at the head of the list, in one transaction.
fn push(heap: &mut Persistent, number: u64) -> Result<(), PersistentError> {
    let mut tx = heap.begin();
    let next = tx.root::<ListLink>("list")?.unwrap_or(Rel::NULL);
    let link = tx.make([number, next.offset()])?;
    tx.set_root("list", link)?;
    tx.commit()
}

pub(crate) fn main() -> Result<(), PersistentError> {
    let path = std::env::temp_dir().join(format!("pagewise-example-{}.heap", std::process::id()));
    let name = CString::new(path.as_os_str().as_encoded_bytes()).unwrap_or_default();
    for run in 1..=3 {
        // SAFETY: the file is changed through this library only.
        let mut heap = unsafe { Persistent::open(&name, &PersistentOptions::DEFAULT) }?;
        push(&mut heap, run)?;
        let mut link = heap.root::<ListLink>("list")?.unwrap_or(Rel::NULL);
        while !link.is_null() {
            let [number, next] = *heap.get(link)?;
            println!("{number}");
            link = Rel::from_offset(next);
        }
    }
    let _ = std::fs::remove_file(path);
    Ok(())
}
