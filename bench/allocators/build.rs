//! Compiles the races in C.

fn main() {
    println!("cargo::rerun-if-changed=c");
    println!("cargo::rerun-if-changed=../../crates/capi/include");
    #[cfg(feature = "c")]
    cc::Build::new()
        .file("c/stack.c")
        .include("../../crates/capi/include")
        .std("gnu11")
        .opt_level(3)
        .compile("races");
}
