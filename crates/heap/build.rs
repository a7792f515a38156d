//! Builds the recorder that programs load, so that it can be part of this crate: a program that
//! records needs no second file.
//!
//! A separate cargo run builds the recorder, in a separate target folder and always optimized,
//! since the recorder runs inside the `malloc` of other programs.

#![forbid(unsafe_code)]
#![allow(clippy::print_stdout, reason = "this is how a build script talks to cargo")]

use std::env;
use std::path::{Path, PathBuf};
use std::process::Command;

const NAME: &str = "libpagewise_preload.so";

fn main() {
    let crates = PathBuf::from(variable("CARGO_MANIFEST_DIR")).join("..");
    for part in [
        "preload/src",
        "preload/build.rs",
        "preload/Cargo.toml",
        "heaplog/src",
        "heaplog/Cargo.toml",
    ] {
        println!("cargo::rerun-if-changed={}", crates.join(part).display());
    }
    let out = PathBuf::from(variable("OUT_DIR"));
    let place = |name: &str| variable(&format!("CARGO_CFG_TARGET_{name}"));
    let known = [place("ARCH"), place("OS"), place("ENV")] == ["x86_64", "linux", "gnu"];
    // Other architectures have no recorder: `library` in `src/library.rs` then returns `None`.
    let recorder = if known { build(&crates, &out) } else { Vec::new() };
    println!("cargo::rustc-env=PAGEWISE_RECORDER_CONTENTS={}", digits(&recorder));
    std::fs::write(out.join(NAME), recorder).expect("OUT_DIR is there to be written to");
}

fn build(crates: &Path, out: &Path) -> Vec<u8> {
    let folder = out.join("preload");
    let mut cargo = Command::new(variable("CARGO"));
    // Environment variables about the compiler of this build do not apply to the separate build.
    for (name, _) in env::vars_os() {
        let name = name.to_string_lossy().into_owned();
        let of_cargo = name.starts_with("CARGO") && name != "CARGO_HOME";
        if of_cargo || name.starts_with("RUSTC") || name == "RUSTFLAGS" || name == "RUSTDOCFLAGS" {
            cargo.env_remove(name);
        }
    }
    let manifest = crates.join("preload/Cargo.toml");
    cargo
        .args(["build", "--quiet", "--release", "--offline", "--lib"])
        .args(["--config", "profile.release.strip=\"symbols\""])
        .arg("--manifest-path")
        .arg(manifest)
        .arg("--target-dir")
        .arg(&folder);
    let target = variable("TARGET");
    cargo.args(["--target", &target]);
    let status = cargo.status().expect("cargo runs this, so it can be run");
    assert!(status.success(), "the recorder (crates/preload) could not be built");
    let built = folder.join(target).join("release").join(NAME);
    std::fs::read(&built).unwrap_or_else(|error| panic!("{}: {error}", built.display()))
}

/// Hash of the contents (FNV-1a of 128 bits) in hexadecimal, for the name of the file. The file is
/// compared before use, so a collision is harmless.
fn digits(contents: &[u8]) -> String {
    const BASIS: u128 = 0x6c62_272e_07bb_0142_62b8_2175_6295_c58d;
    const PRIME: u128 = 0x0000_0000_0100_0000_0000_0000_0000_013b;
    let mix = |hash: u128, byte: &u8| (hash ^ u128::from(*byte)).wrapping_mul(PRIME);
    format!("{:032x}", contents.iter().fold(BASIS, mix))
}

fn variable(name: &str) -> String {
    env::var(name).unwrap_or_else(|_| panic!("cargo sets {name} for build scripts"))
}
