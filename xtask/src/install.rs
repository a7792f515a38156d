//! `cargo xtask install`: the C libraries, their headers and their pkg-config file, below a prefix;
//! with `--command` the command too, which takes some ten times as long to build.
//!
//! ```text
//! bin/pagewise                        with --command
//! include/pagewise/*.h
//! lib/libpagewise.a
//! lib/libpagewise.so -> libpagewise.so.0.1 -> libpagewise.so.0.1.0
//! lib/libpagewise_malloc.so
//! lib/pkgconfig/pagewise.pc
//! ```

use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};
use serde_json::Value;

use crate::capture::call;

const VERSION: &str = env!("CARGO_PKG_VERSION");

/// Libraries that the static library needs.
const SYSTEM: &[&str] = &["-lgcc_s", "-lpthread", "-ldl", "-lm", "-lc"];

/// Origin of installed files.
#[derive(Clone, Copy, Debug)]
pub(crate) enum InstallFrom<'a> {
    /// The libraries are built.
    Libraries,
    /// The libraries and the command are built.
    WithCommand,
    /// Built files in this folder. The command and libpagewise_malloc.so may be missing.
    Folder(&'a Path),
}

/// Installs below `prefix`.
pub(crate) fn run(prefix: &Path, from: InstallFrom<'_>) -> Result<()> {
    let built = match from {
        InstallFrom::Folder(folder) => folder.to_owned(),
        InstallFrom::Libraries => build(&[])?,
        InstallFrom::WithCommand => build(&["-p", "pagewise"])?,
    };
    let api = crate::root()?.join("crates/capi");
    for folder in ["bin", "include/pagewise", "lib/pkgconfig"] {
        let folder = prefix.join(folder);
        fs::create_dir_all(&folder).with_context(|| folder.display().to_string())?;
    }
    let is_folder = matches!(from, InstallFrom::Folder(_));
    let command = built.join("pagewise");
    if matches!(from, InstallFrom::WithCommand) || (is_folder && command.is_file()) {
        copy(&command, &prefix.join("bin/pagewise"))?;
    }
    let malloc = built.join("libpagewise_malloc.so");
    if !is_folder || malloc.is_file() {
        copy(&malloc, &prefix.join("lib/libpagewise_malloc.so"))?;
    }
    for entry in fs::read_dir(api.join("include/pagewise"))? {
        let header = entry?;
        copy(&header.path(), &prefix.join("include/pagewise").join(header.file_name()))?;
    }
    let archive = prefix.join("lib/libpagewise.a");
    copy(&built.join("libpagewise.a"), &archive)?;
    link(&archive, &api.join("pagewise.map"), &prefix.join("lib"))?;
    let pc = fs::read_to_string(api.join("pagewise.pc.in"))?.replace("@VERSION@", VERSION);
    fs::write(prefix.join("lib/pkgconfig/pagewise.pc"), pc)?;
    println!("installed pagewise {VERSION} below {}", prefix.display());
    Ok(())
}

/// Builds with optimization, and returns the folder of the built files.
fn build(more: &[&str]) -> Result<PathBuf> {
    let mut cargo = crate::cargo();
    cargo.args(["build", "--release", "-p", "pagewise-capi", "-p", "pagewise-malloc"]).args(more);
    call(cargo.current_dir(crate::root()?))?;
    let metadata = crate::cargo()
        .args(["metadata", "--format-version=1", "--no-deps", "--offline"])
        .current_dir(crate::root()?)
        .output()
        .context("cargo metadata")?;
    ensure!(metadata.status.success(), "cargo metadata failed");
    let metadata: Value = serde_json::from_slice(&metadata.stdout).context("cargo metadata")?;
    let target = metadata["target_directory"].as_str().context("cargo metadata has no folder")?;
    Ok(Path::new(target).join("release"))
}

fn copy(from: &Path, to: &Path) -> Result<()> {
    // Removed, not overwritten: the file may be executed or mapped now.
    let _ = fs::remove_file(to);
    fs::copy(from, to).with_context(|| from.display().to_string())?;
    Ok(())
}

/// Links the shared library from the static one. It exports only the symbols in `map`, each with
/// the version that introduced the symbol. Before 1.0, a minor version may break the ABI, so the
/// soname has the minor version.
fn link(archive: &Path, map: &Path, folder: &Path) -> Result<()> {
    let (breaking, _) = VERSION.rsplit_once('.').context("a version has three parts")?;
    let soname = format!("libpagewise.so.{breaking}");
    let file = format!("libpagewise.so.{VERSION}");
    let _ = fs::remove_file(folder.join(&file));
    let mut cc = Command::new(std::env::var_os("CC").unwrap_or_else(|| "cc".into()));
    cc.args([
        "-shared",
        "-Wl,--gc-sections",
        "-Wl,--strip-debug",
        "-Wl,-z,defs",
        "-Wl,-z,relro,-z,now",
    ])
    .arg(format!("-Wl,-soname,{soname}"))
    .arg(format!("-Wl,--version-script={}", map.display()))
    .arg("-o")
    .arg(folder.join(&file))
    .arg("-Wl,--whole-archive")
    .arg(archive)
    .arg("-Wl,--no-whole-archive")
    .args(SYSTEM);
    call(&mut cc)?;
    for (name, to) in [(soname.as_str(), file.as_str()), ("libpagewise.so", soname.as_str())] {
        let _ = fs::remove_file(folder.join(name));
        symlink(to, folder.join(name)).with_context(|| name.to_owned())?;
    }
    Ok(())
}
