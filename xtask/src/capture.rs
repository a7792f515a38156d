//! `cargo xtask capture`: runs the fixture programs on this kernel and keeps copies of their
//! `/proc`.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};

/// Folder in which programs run, on every machine: their paths appear in captured files.
pub(crate) const WORK: &str = "/tmp/pagewise-fixtures";

/// Captures on this kernel.
pub(crate) fn run() -> Result<()> {
    let work = Path::new(WORK);
    start_afresh(work)?;
    let programs = work.join("bin");
    compile(&programs, CAPTURED)?;
    let out = work.join("out");
    call(Command::new("sh").arg(script()?).arg(&programs).arg(&out))?;
    keep(&out)?;
    fs::remove_dir_all(work).with_context(|| WORK.to_owned())
}

/// An empty folder, whatever was there before.
pub(crate) fn start_afresh(folder: &Path) -> Result<()> {
    if folder.exists() {
        fs::remove_dir_all(folder).with_context(|| folder.display().to_string())?;
    }
    fs::create_dir_all(folder).with_context(|| folder.display().to_string())
}

/// The script that runs the programs and copies their `/proc`.
pub(crate) fn script() -> Result<PathBuf> {
    Ok(crate::root()?.join("fixtures/capture.sh"))
}

/// The programs that `capture.sh` runs.
pub(crate) const CAPTURED: &[&str] =
    &["forked", "names", "quadrants", "reserve", "stackheap", "threads"];

/// Compiles fixture programs into `folder`.
pub(crate) fn compile(folder: &Path, programs: &[&str]) -> Result<()> {
    fs::create_dir_all(folder)?;
    let sources = crate::root()?.join("fixtures/programs");
    for name in programs {
        let source = sources.join(name).with_extension("c");
        let flags = ["-O1", "-Wall", "-Wextra", "-Werror", "-pthread", "-o"];
        call(Command::new("cc").args(flags).arg(folder.join(name)).arg(&source))?;
    }
    Ok(())
}

/// Moves the captures in `out` to `fixtures/kernels/RELEASE-MACHINE-PAGE`, in place of older ones.
pub(crate) fn keep(out: &Path) -> Result<()> {
    let meta =
        fs::read_to_string(out.join("quadrants-root/meta.toml")).context("no capture was made")?;
    let field = |key: &str| {
        meta.lines()
            .find_map(|line| line.strip_prefix(key)?.strip_prefix(" = "))
            .map(|value| value.trim_matches('"').to_owned())
            .with_context(|| format!("meta.toml has no {key}"))
    };
    let page_kib = field("page_size")?.parse::<u64>()? >> 10;
    let name = format!("{}-{}-{page_kib}k", field("kernel")?, field("machine")?);
    let kept = crate::root()?.join("fixtures/kernels").join(&name);
    start_afresh(&kept)?;
    call(Command::new("cp").arg("-R").arg(out.join(".")).arg(&kept))?;
    println!("captured fixtures/kernels/{name}");
    Ok(())
}

/// Runs a command that must succeed.
pub(crate) fn call(command: &mut Command) -> Result<()> {
    let name = command.get_program().to_string_lossy().into_owned();
    let status = command.status().with_context(|| name.clone())?;
    ensure!(status.success(), "{name}: {status}");
    Ok(())
}
