//! The examples run.

#[path = "../examples/stack.rs"]
mod stack;

#[test]
fn the_example_of_the_stack_runs() {
    stack::main();
}
