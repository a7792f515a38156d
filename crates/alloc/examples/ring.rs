//! One thread creates two messages. Another thread prints and frees them.

#![expect(clippy::print_stdout, reason = "an example prints")]

use pagewise_alloc::{Os, Ring};

pub(crate) fn main() {
    let mut ring = Ring::new(Os).expect("there is memory");
    let numbers = ring.message(|frame| frame.alloc_slice_with(100, |at| at * at));
    let word = ring.message(|frame| frame.alloc_str("the last is"));
    drop(ring); // The messages stay until they are dropped, anywhere.
    let worker = std::thread::spawn(move || println!("{} {}", &*word, numbers[99]));
    worker.join().expect("the worker does not panic");
}
