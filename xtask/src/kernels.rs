//! `cargo xtask kernels`: what works on which kernel. Boots each kernel in several virtual
//! machines, runs every feature of pagewise and those tests that read the kernel, captures
//! fixtures, and writes the tables of `docs/kernels.md`.

mod table;

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use pagewise_model::Bytes;
use pagewise_vm::{
    Accelerator, CgroupVersion, GuestFile, GuestKernel, GuestProgram, VirtualMachine, VmResult,
    fetched_images, kernels_folder,
};

use crate::capture::{CAPTURED, WORK, call, compile, keep, start_afresh};
use crate::{ci, portable};
use table::{FeatureRun, TestRun};

const FEATURES: &str = include_str!("kernels/features.sh");
const TESTS: &str = include_str!("kernels/tests.sh");

/// One machine: the dimensions in which machines differ are combined so that each value occurs,
/// not each combination.
struct MachineKind {
    name: &'static str,
    cgroups: CgroupVersion,
    cpus: u32,
    nodes: u32,
    options: &'static str,
    hidepid: u32,
}

const MACHINES: &[MachineKind] = &[
    MachineKind {
        name: "plain",
        cgroups: CgroupVersion::V2,
        cpus: 1,
        nodes: 1,
        options: "transparent_hugepage=always",
        hidepid: 0,
    },
    MachineKind {
        name: "numa",
        cgroups: CgroupVersion::V1,
        cpus: 4,
        nodes: 2,
        options: "transparent_hugepage=never",
        hidepid: 0,
    },
    MachineKind {
        name: "locked",
        cgroups: CgroupVersion::V2,
        cpus: 4,
        nodes: 1,
        options: "transparent_hugepage=madvise lsm=lockdown,capability,yama lockdown=confidentiality",
        hidepid: 2,
    },
];

/// Packages whose tests read the kernel and start no compiler. The tests of the command need one.
const TESTED: &[&str] =
    &["pagewise-sys", "pagewise-proc", "pagewise-measure", "pagewise-labmem", "pagewise-remote"];

/// Programs that the features inspect and run.
const TARGETS: &[&str] = &["steady", "heap_known"];

const MEMORY: Bytes = Bytes(2 << 30);
/// An emulated machine that shares its CPU is slow.
const TIME_LIMIT: Duration = Duration::from_secs(3600);

/// Boots the kernels of these images, or all that can be found.
pub(crate) fn run(words: &[&str]) -> Result<()> {
    let (options, images): (Vec<&str>, Vec<&str>) =
        words.iter().partition(|word| word.starts_with("--"));
    let with_tests = !options.contains(&"--no-tests");
    let kernels = kernels(&images)?;
    ensure!(!kernels.is_empty(), "no kernel: pagewise lab vm fetch-kernel, or name a bzImage");
    let work = Path::new(WORK);
    start_afresh(work)?;
    let contents = GuestContents::collect(work, with_tests)?;
    let (mut features, mut tests) = (Vec::new(), Vec::new());
    for kernel in &kernels {
        for (number, machine) in MACHINES.iter().enumerate() {
            let release = kernel.release.clone().unwrap_or_else(|| "kernel".to_owned());
            println!("{release}, {}", machine.name);
            let result = contents.features(kernel, machine, number == 0)?;
            let release = text(&result, "release")?.trim().to_owned();
            features.extend(FeatureRun::parse(&result, &release, machine.name)?);
            if number == 0 {
                keep_copies(&result, work)?;
            }
            if with_tests {
                let result = contents.tests(kernel, machine)?;
                tests.extend(TestRun::parse(&result, &release, machine.name)?);
            }
        }
    }
    let file = crate::root()?.join("docs/kernels.md");
    let before = fs::read_to_string(&file).with_context(|| file.display().to_string())?;
    fs::write(&file, table::update(&before, &features, &tests)?)?;
    println!("wrote {}", file.display());
    fs::remove_dir_all(work).with_context(|| WORK.to_owned())
}

fn kernels(images: &[&str]) -> Result<Vec<GuestKernel>> {
    let mut paths: Vec<PathBuf> = images.iter().map(PathBuf::from).collect();
    if paths.is_empty() {
        paths = kernels_folder().map(|folder| fetched_images(&folder)).unwrap_or_default();
    }
    let kernels = paths.iter().map(|path| GuestKernel::open(path));
    Ok(kernels.collect::<Result<_, _>>()?)
}

fn text(result: &VmResult, name: &str) -> Result<String> {
    let bytes = result.file(name).with_context(|| {
        format!("{}\n{}", result.failure(), String::from_utf8_lossy(&result.console))
    })?;
    Ok(String::from_utf8_lossy(bytes).into_owned())
}

/// Puts the copies of `/proc` into the folder of fixtures.
fn keep_copies(result: &VmResult, work: &Path) -> Result<()> {
    let Some(packed) = result.file("copies.tar.gz") else { return Ok(()) };
    let (archive, out) = (work.join("copies.tar.gz"), work.join("out"));
    start_afresh(&out)?;
    fs::write(&archive, packed)?;
    call(Command::new("tar").arg("-C").arg(&out).arg("-xzf").arg(&archive))?;
    keep(&out)
}

/// Programs and files of all machines.
struct GuestContents {
    pagewise: PathBuf,
    programs: PathBuf,
    tests: Vec<ci::TestProgram>,
}

impl GuestContents {
    fn collect(work: &Path, with_tests: bool) -> Result<GuestContents> {
        let programs = work.join("bin");
        compile(&programs, CAPTURED)?;
        compile(&programs, TARGETS)?;
        let pagewise = match std::env::var_os("PAGEWISE_STATIC") {
            Some(file) => file.into(),
            None => portable::build(false)?,
        };
        let tests = if with_tests { ci::test_programs_of(TESTED)? } else { Vec::new() };
        Ok(GuestContents { pagewise, programs, tests })
    }

    fn machine(
        &self,
        kernel: &GuestKernel,
        kind: &MachineKind,
        command: &[&str],
    ) -> VirtualMachine {
        let command = command.iter().map(|word| (*word).to_owned()).collect();
        let mut machine = VirtualMachine::new(kernel.clone(), command);
        machine.memory = MEMORY;
        machine.cpus = kind.cpus;
        machine.nodes = kind.nodes;
        machine.cgroups = kind.cgroups;
        machine.kernel_options = kind.options.to_owned();
        machine.time_limit = TIME_LIMIT;
        if machine.accelerator == Accelerator::Tcg {
            // Timeouts of the guest then do not depend on the load of the host.
            machine.accelerator = Accelerator::CountingTcg;
        }
        machine
    }

    fn features(
        &self,
        kernel: &GuestKernel,
        kind: &MachineKind,
        capture: bool,
    ) -> Result<VmResult> {
        let hidepid = kind.hidepid.to_string();
        let capture = if capture { "1" } else { "0" };
        let command = ["sh", "/kernels/features.sh", &hidepid, capture];
        let mut machine = self.machine(kernel, kind, &command);
        machine.programs.push(program(&self.pagewise, "/bin/pagewise", false));
        for name in TARGETS {
            machine.programs.push(program(
                &self.programs.join(name),
                &format!("/bin/{name}"),
                true,
            ));
        }
        for name in CAPTURED {
            // The path is part of what is captured.
            let guest = format!("{WORK}/bin/{name}");
            machine.programs.push(program(&self.programs.join(name), &guest, false));
        }
        let script = fs::read(crate::capture::script()?)?;
        let script = String::from_utf8_lossy(&script).into_owned();
        machine.files.push(GuestFile::new("/kernels/features.sh", 0o644, FEATURES));
        machine.files.push(GuestFile::new("/kernels/capture.sh", 0o644, script));
        Ok(machine.run(&|| false)?)
    }

    fn tests(&self, kernel: &GuestKernel, kind: &MachineKind) -> Result<VmResult> {
        let mut machine = self.machine(kernel, kind, &["sh", "/kernels/tests.sh"]);
        let mut names = BTreeSet::new();
        let mut list = String::new();
        for test in &self.tests {
            if !names.insert(&test.target) {
                continue;
            }
            machine.programs.push(program(&test.path, &format!("/tests/{}", test.target), false));
            list += &format!("{} {}\n", test.target, test.folder.display());
            for file in files_below(&test.folder)? {
                let content = fs::read(&file)?;
                machine.files.push(GuestFile::new(file.display().to_string(), 0o644, content));
            }
        }
        machine.files.push(GuestFile::new("/kernels/tests", 0o644, list));
        machine.files.push(GuestFile::new("/kernels/tests.sh", 0o644, TESTS));
        Ok(machine.run(&|| false)?)
    }
}

fn program(host: &Path, guest: &str, symbols: bool) -> GuestProgram {
    GuestProgram { host: host.to_owned(), guest: guest.to_owned(), symbols }
}

/// The files that tests of a package read.
fn files_below(package: &Path) -> Result<Vec<PathBuf>> {
    let mut files = vec![package.join("Cargo.toml")];
    let mut folders = vec![package.join("tests")];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(&folder).into_iter().flatten() {
            let path = entry?.path();
            match path.is_dir() {
                true => folders.push(path),
                false => files.push(path),
            }
        }
    }
    Ok(files)
}
