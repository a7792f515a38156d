//! Every console block of the README, and every transcript of `tests/cmd`, shows what pagewise
//! prints.
//!
//! Blocks that start a program or look at a live process differ from run to run and are not among
//! them: they are written without a `$`.

use std::path::Path;

#[test]
fn documents_show_what_pagewise_prints() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    std::env::set_current_dir(root).expect("the workspace is there");
    trycmd::TestCases::new()
        .env("NO_COLOR", "1")
        .case("README.md")
        .case("crates/cli/tests/cmd/*.trycmd");
}
