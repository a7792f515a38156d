//! Tests that run the examples.

#[path = "../../examples/fifo.rs"]
mod fifo;
#[path = "../../examples/pages.rs"]
mod pages;
#[path = "../../examples/persistent.rs"]
mod persistent;
#[path = "../../examples/ring.rs"]
mod ring;
#[path = "../../examples/stack.rs"]
mod stack;
#[path = "../../examples/tlsf.rs"]
mod tlsf;

#[test]
fn the_example_of_pages_runs() {
    pages::main();
}

#[test]
fn the_example_of_the_persistent_heap_runs() {
    assert_eq!(persistent::main(), Ok(()));
}

#[test]
fn the_example_of_the_fifo_pool_runs() {
    fifo::main();
}

#[test]
fn the_example_of_the_ring_runs() {
    ring::main();
}

#[test]
fn the_example_of_the_stack_runs() {
    stack::main();
}

#[test]
fn the_example_of_tlsf_runs() {
    tlsf::main();
}
