//! Has the loader initialise the recorder first of all, before constructors that allocate (`DF_1_INITFIRST`).
#![expect(
    clippy::disallowed_macros,
    reason = "what cargo is told is printed, and this runs in no program"
)]

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rustc-cdylib-link-arg=-Wl,-z,initfirst");
}
