//! `cargo xtask capture`: runs the fixture programs and copies their files in `/proc`, on the
//! running kernel or on Debian's kernel in a virtual machine.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use pagewise_model::Bytes;
use pagewise_vm::{GuestFile, GuestProgram, VirtualMachine, VmResult, fetch_kernel};

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

/// Memory size of a virtual machine; the programs use little of it.
const MEMORY: Bytes = Bytes(1 << 30);
/// Time limit of a virtual machine. Booting takes seconds; an emulated machine on a busy host takes
/// minutes for all programs.
const TIME_LIMIT: Duration = Duration::from_secs(900);
/// Path of the script in a virtual machine, and name of the result file with the copies that the
/// script makes.
const GUEST_SCRIPT: &str = "/capture.sh";
pub(crate) const COPIES: &str = "copies.tar.gz";

/// Captures on Debian's kernel for virtual machines, which is downloaded.
pub(crate) fn run_in_machine() -> Result<()> {
    let work = Path::new(WORK);
    start_afresh(work)?;
    let programs = work.join("bin");
    compile(&programs, CAPTURED)?;
    let command = ["sh", "-c", &guest_command()].map(str::to_owned);
    let mut machine = VirtualMachine::new(fetch_kernel(None)?, command.to_vec());
    machine.memory = MEMORY;
    machine.cpus = 2;
    machine.time_limit = TIME_LIMIT;
    add_captured_programs(&mut machine, &programs)?;
    let result = machine.run(&|| false)?;
    ensure!(result.success(), "{}", result.failure());
    keep_copies(&result, work)?;
    fs::remove_dir_all(work).with_context(|| WORK.to_owned())
}

/// Returns a shell command that captures in a virtual machine and packs the copies.
pub(crate) fn guest_command() -> String {
    format!(
        "mkdir -p /copies && sh {GUEST_SCRIPT} {WORK}/bin /copies && \
         tar -C /copies -czf $PAGEWISE_RESULTS/{COPIES} ."
    )
}

/// Adds the capture script and the captured programs to a virtual machine.
pub(crate) fn add_captured_programs(machine: &mut VirtualMachine, programs: &Path) -> Result<()> {
    for name in CAPTURED {
        // The captured files contain this path.
        let guest = format!("{WORK}/bin/{name}");
        machine.programs.push(GuestProgram::new(&programs.join(name), guest));
    }
    let script = script()?;
    let content = fs::read(&script).with_context(|| script.display().to_string())?;
    machine.files.push(GuestFile::new(GUEST_SCRIPT, 0o644, content));
    Ok(())
}

/// Unpacks the copies that a virtual machine sent into the folder of fixtures.
pub(crate) fn keep_copies(result: &VmResult, work: &Path) -> Result<()> {
    let packed = result.file(COPIES).context("the machine sent no copies")?;
    let (archive, out) = (work.join(COPIES), work.join("out"));
    start_afresh(&out)?;
    fs::write(&archive, packed)?;
    call(Command::new("tar").arg("-C").arg(&out).arg("-xzf").arg(&archive))?;
    keep(&out)
}

/// Creates an empty folder. Deletes an existing folder first.
pub(crate) fn start_afresh(folder: &Path) -> Result<()> {
    if folder.exists() {
        fs::remove_dir_all(folder).with_context(|| folder.display().to_string())?;
    }
    fs::create_dir_all(folder).with_context(|| folder.display().to_string())
}

/// Returns the path of the script that runs the programs and copies their `/proc`.
pub(crate) fn script() -> Result<PathBuf> {
    Ok(crate::root()?.join("fixtures/capture.sh"))
}

/// The programs that `capture.sh` runs.
pub(crate) const CAPTURED: &[&str] =
    &["forked", "names", "quadrants", "reserve", "stackheap", "threads"];

/// Compiles fixture programs into `folder`.
pub(crate) fn compile(folder: &Path, programs: &[&str]) -> Result<()> {
    let sources = crate::root()?.join("fixtures/programs");
    fs::create_dir_all(folder)?;
    programs.iter().try_for_each(|it| compile_source(folder, &sources.join(it).with_extension("c")))
}

/// Compiles a C program into `folder`, under the name of its source.
pub(crate) fn compile_source(folder: &Path, source: &Path) -> Result<()> {
    let name = source.file_stem().context("a source has a name")?;
    let flags = ["-O1", "-Wall", "-Wextra", "-Werror", "-pthread", "-o"];
    call(Command::new("cc").args(flags).arg(folder.join(name)).arg(source))
}

/// Moves the captures in `out` to `fixtures/kernels/RELEASE-MACHINE-PAGE`, and replaces older
/// captures.
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
