//! `cargo xtask static`: the command as one file that runs on any Linux of this architecture,
//! whatever its C library.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};
use pagewise_vm::is_static_program;

use crate::capture::call;
use crate::features::FEATURES_OF_TESTS;

/// Builds `pagewise` and copies it to `target/static/pagewise`.
pub(crate) fn run(optimized: bool) -> Result<()> {
    let file = build(optimized)?;
    println!("built {}", file.display());
    Ok(())
}

/// The static C library is missing on machines without its package.
pub(crate) fn has_static_libc() -> bool {
    let answer = Command::new("cc").arg("-print-file-name=libc.a").output();
    // Without the file it prints the name alone.
    answer.is_ok_and(|answer| Path::new(String::from_utf8_lossy(&answer.stdout).trim()).is_file())
}

/// Builds the command and returns its path.
pub(crate) fn build(optimized: bool) -> Result<PathBuf> {
    ensure!(
        has_static_libc(),
        "the static C library is missing: install libc6-dev (Debian, Ubuntu) or glibc-static (Fedora, RHEL)"
    );
    let root = crate::root()?;
    // `cargo rustc` passes `crt-static` only to the last step: all libraries are those of any other
    // build.
    let mut cargo = crate::cargo();
    cargo.args(["rustc", "-p", "pagewise", "--bin", "pagewise"]);
    if optimized {
        cargo.arg("--release");
    } else {
        cargo.args(["--features", FEATURES_OF_TESTS]);
    }
    call(cargo.args(["--", "-C", "target-feature=+crt-static"]).current_dir(&root))?;
    let target = std::env::var_os("CARGO_TARGET_DIR").map_or(root.join("target"), PathBuf::from);
    let built = target.join(if optimized { "release" } else { "debug" }).join("pagewise");
    let kept = target.join("static").join("pagewise");
    fs::create_dir_all(kept.parent().context("it is in a folder")?)?;
    // Removed, not overwritten: the file may be executed now.
    let _ = fs::remove_file(&kept);
    fs::copy(&built, &kept).with_context(|| built.display().to_string())?;
    ensure!(is_static_program(&fs::read(&kept)?), "{} still needs a loader", kept.display());
    Ok(kept)
}
