//! Memory that a function needs until it returns, and memory that it returns to its caller.

#![expect(clippy::print_stdout, reason = "an example prints")]

use pagewise_alloc::{TScope, t_scope};

/// Allocates in its caller's frame.
fn t_path<'s>(scope: &TScope<'s>, folder: &str, name: &str) -> &'s str {
    scope.alloc_fmt(format_args!("{folder}/{name}"))
}

pub(crate) fn main() {
    t_scope(|scope| println!("{}", t_path(scope, t_path(scope, "usr", "share"), "man")));
}
