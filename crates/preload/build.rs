//! Linker options of the recorder: the loader initializes it first of all, before constructors that
//! allocate (`DF_1_INITFIRST`), loads no other library for it, and binds its symbols to any version
//! of the C library.
#![expect(
    clippy::disallowed_macros,
    reason = "what cargo is told is printed, and this runs in no program"
)]

use std::path::PathBuf;
use std::process::Command;

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rustc-cdylib-link-arg=-Wl,-z,initfirst");
    let target = std::env::var("TARGET").unwrap_or_default();
    let is_native = std::env::var("HOST").is_ok_and(|host| host == target);
    if is_native && target.ends_with("linux-gnu") {
        without_libgcc();
        without_versions();
    }
}

/// The linker would write the newest versions of all symbols of this machine's C library into the
/// recorder, which an older one lacks. In place of the C library the linker finds nothing, so the
/// symbols have no version: glibc takes the oldest, musl its only one. The program has loaded the
/// C library already. `src/linker.rs` has what older ones lack.
fn without_versions() {
    let Some(out) = std::env::var_os("OUT_DIR") else { return };
    let folder = PathBuf::from(out).join("no-libc");
    let script = "/* The program has it. */\n";
    let is_written = std::fs::create_dir_all(&folder).is_ok()
        && ["libc.so", "libdl.so", "libpthread.so", "libm.so", "librt.so", "libutil.so"]
            .iter()
            .all(|name| std::fs::write(folder.join(name), script).is_ok());
    if is_written {
        // The option is for the library alone: the tests of this crate are a program.
        println!("cargo::rustc-cdylib-link-arg=-L{}", folder.display());
    }
}

/// Rust's library wants `libgcc_s.so`, for panics, which each program would load at its start. In
/// its place the linker finds words that lead to the archive with the same functions.
fn without_libgcc() -> Option<()> {
    let output = Command::new("cc").arg("-print-file-name=libgcc_eh.a").output().ok()?;
    let archive = PathBuf::from(str::from_utf8(&output.stdout).ok()?.trim());
    // Without the file it prints the name alone.
    if !archive.is_absolute() || !archive.exists() {
        return None;
    }
    let out = PathBuf::from(std::env::var_os("OUT_DIR")?);
    let words = format!("INPUT(\"{}\" -lgcc)\n", archive.display());
    std::fs::write(out.join("libgcc_s.so"), words).ok()?;
    println!("cargo::rustc-link-search=native={}", out.display());
    Some(())
}
