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

/// By default, the linker binds each symbol to its newest version in this machine's C library,
/// which an older C library lacks. Empty linker scripts in place of the C library leave the symbols
/// without a version: glibc resolves them to the oldest version, musl to its only one. The program
/// has loaded the C library already. `src/linker.rs` has the functions that older ones lack.
fn without_versions() {
    let Some(out) = std::env::var_os("OUT_DIR") else { return };
    let folder = PathBuf::from(out).join("no-libc");
    let script = "/* The program has it. */\n";
    let is_written = std::fs::create_dir_all(&folder).is_ok()
        && ["libc.so", "libdl.so", "libpthread.so", "libm.so", "librt.so", "libutil.so"]
            .iter()
            .all(|name| std::fs::write(folder.join(name), script).is_ok());
    if is_written {
        // Only for the library: the tests of this crate are an executable, which needs the C
        // library.
        println!("cargo::rustc-cdylib-link-arg=-L{}", folder.display());
    }
}

/// Rust's standard library links `libgcc_s.so` for panics, which each program would then load at
/// its start. A linker script of that name leads the linker to the archive with the same functions.
fn without_libgcc() -> Option<()> {
    let output = Command::new("cc").arg("-print-file-name=libgcc_eh.a").output().ok()?;
    let archive = PathBuf::from(str::from_utf8(&output.stdout).ok()?.trim());
    // If the file is missing, `cc` prints the bare name.
    if !archive.is_absolute() || !archive.exists() {
        return None;
    }
    let out = PathBuf::from(std::env::var_os("OUT_DIR")?);
    let words = format!("INPUT(\"{}\" -lgcc)\n", archive.display());
    std::fs::write(out.join("libgcc_s.so"), words).ok()?;
    println!("cargo::rustc-link-search=native={}", out.display());
    Some(())
}
