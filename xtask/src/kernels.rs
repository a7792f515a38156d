//! `cargo xtask kernels`: the features that work on each kernel. Boots each kernel in several
//! virtual machines, runs every feature of pagewise and those tests that read the kernel, captures
//! fixtures, and writes the tables of `docs/kernels.md`.
//!
//! Each machine's results are a folder below `target/kernels`, written when the machine has ended.
//! The tables are made from all of these folders after each machine, so that a run that is cut
//! short loses one machine, and kernels can be run one at a time.

mod table;

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use pagewise_model::Bytes;
use pagewise_vm::{
    CgroupVersion, GuestFile, GuestKernel, GuestProgram, VirtualMachine, VmResult, fetched_images,
    kernels_folder,
};

use crate::capture::{
    CAPTURED, COPIES, WORK, add_captured_programs, compile, compile_source, guest_command,
    keep_copies, start_afresh,
};
use crate::{ci, portable};
use table::MachineResults;

const FEATURES: &str = include_str!("kernels/features.sh");
const TESTS: &str = include_str!("kernels/tests.sh");

/// One machine. Each value of a property in which machines differ occurs in some machine, but not
/// each combination of values.
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

/// Test programs that read the kernel and need no files of the project except the files of their
/// package.
const TESTED: &[TestedProgram] = &[
    TestedProgram { package: "pagewise-sys", target: "pagewise_sys", options: "" },
    // The tests of `files` parse ELF and core files, and do not depend on the kernel.
    TestedProgram { package: "pagewise-proc", target: "pagewise_proc", options: "--skip files::" },
    TestedProgram { package: "pagewise-proc", target: "pages", options: "" },
    TestedProgram { package: "pagewise-measure", target: "pagewise_measure", options: "" },
    TestedProgram { package: "pagewise-measure", target: "probe", options: "" },
    TestedProgram { package: "pagewise-measure", target: "probe_memory", options: "" },
    TestedProgram { package: "pagewise-labmem", target: "pagewise_labmem", options: "" },
    TestedProgram { package: "pagewise-remote", target: "pagewise_remote", options: "" },
    TestedProgram { package: "pagewise-remote", target: "remote_calls", options: "" },
];

/// C programs that these tests start.
const TEST_SOURCES: &[&str] =
    &["crates/proc/tests/programs/kinds.c", "crates/remote/tests/remote_calls/loops.c"];

/// A test program, and its options besides the usual ones.
struct TestedProgram {
    package: &'static str,
    target: &'static str,
    options: &'static str,
}

/// Programs that the features inspect and run.
const TARGETS: &[&str] = &["steady", "heap_known"];

const MEMORY: Bytes = Bytes(2 << 30);
/// Time limit of a machine. An emulated machine that shares its CPU is slow.
const TIME_LIMIT: Duration = Duration::from_secs(1800);

/// Boots the kernels of these images, or all that can be found.
pub(crate) fn run(words: &[&str]) -> Result<()> {
    let (options, images): (Vec<&str>, Vec<&str>) =
        words.iter().partition(|word| word.starts_with("--"));
    let folder = results_folder()?;
    if options.contains(&"--table") {
        return write_tables(&folder);
    }
    let only = options.iter().find_map(|option| option.strip_prefix("--machine="));
    let kernels = kernels(&images)?;
    ensure!(!kernels.is_empty(), "no kernel: pagewise lab vm fetch-kernel, or name a bzImage");
    let works: Vec<GuestWork> = [GuestWork::Features, GuestWork::Tests]
        .into_iter()
        .filter(|work| !options.contains(&format!("--no-{}", work.name()).as_str()))
        .collect();
    let scratch = Path::new(WORK);
    start_afresh(scratch)?;
    let contents = GuestContents::collect(scratch, works.contains(&GuestWork::Tests))?;
    let is_wanted = |machine: &MachineKind| only.is_none_or(|name| machine.name == name);
    let mut failures = Vec::new();
    // Every kernel boots in the first machine before any kernel boots in the next one. So a run
    // that is cut short in a later machine has booted every kernel.
    for (number, machine) in MACHINES.iter().enumerate().filter(|(_, it)| is_wanted(it)) {
        for (kernel, work) in kernels.iter().flat_map(|it| works.iter().map(move |work| (it, work)))
        {
            let release = kernel.release.clone().unwrap_or_else(|| "kernel".to_owned());
            let capture = number == 0 && !is_captured(&release)?;
            let result = contents.boot(kernel, machine, *work, capture)?;
            let title = format!("{release}, {}, {}", machine.name, work.name());
            println!("{title}: {} s", result.elapsed.as_secs());
            if !result.success() {
                failures.push(format!("{title}: {}", result.failure()));
                println!("{}", failures[failures.len() - 1]);
            }
            keep_results(&result, &folder.join(&release).join(machine.name), *work)?;
            write_tables(&folder)?;
            if result.file(COPIES).is_some() {
                keep_copies(&result, scratch)?;
            }
        }
    }
    fs::remove_dir_all(scratch).with_context(|| WORK.to_owned())?;
    ensure!(failures.is_empty(), "machines that did not end as they should: {failures:#?}");
    Ok(())
}

/// Returns true if there are fixtures of a kernel. New fixtures would differ only in their PIDs and
/// addresses.
fn is_captured(release: &str) -> Result<bool> {
    let folder = crate::root()?.join("fixtures/kernels");
    let entries = fs::read_dir(&folder).with_context(|| folder.display().to_string())?;
    let mut names = entries.flatten().map(|entry| entry.file_name());
    let prefix = format!("{release}-");
    Ok(names.any(|name| name.to_string_lossy().starts_with(&prefix)))
}

/// The work of one boot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum GuestWork {
    Features,
    Tests,
}

impl GuestWork {
    /// Returns the name of the work, which is also the name of its file of records. The option
    /// `--no-NAME` leaves the work out.
    const fn name(self) -> &'static str {
        match self {
            GuestWork::Features => "features",
            GuestWork::Tests => "tests",
        }
    }
}

/// Returns the folder of the results: it has a folder for each kernel, which has a folder for each
/// machine.
fn results_folder() -> Result<PathBuf> {
    let target = std::env::var_os("CARGO_TARGET_DIR").map(PathBuf::from);
    Ok(target.unwrap_or(crate::root()?.join("target")).join("kernels"))
}

fn kernels(images: &[&str]) -> Result<Vec<GuestKernel>> {
    let mut paths: Vec<PathBuf> = images.iter().map(PathBuf::from).collect();
    if paths.is_empty() {
        paths = kernels_folder().map(|folder| fetched_images(&folder)).unwrap_or_default();
    }
    let kernels = paths.iter().map(|path| GuestKernel::open(path));
    Ok(kernels.collect::<Result<_, _>>()?)
}

/// Writes the files that a machine sent: the records for the tables, and the files that explain
/// failures.
fn keep_results(result: &VmResult, folder: &Path, work: GuestWork) -> Result<()> {
    fs::create_dir_all(folder).with_context(|| folder.display().to_string())?;
    let name = work.name();
    fs::write(folder.join(name), &result.stdout)?;
    fs::write(folder.join(format!("{name}.errors")), &result.stderr)?;
    fs::write(folder.join(format!("{name}.console")), &result.console)?;
    Ok(())
}

/// Makes the tables from the results of all machines.
fn write_tables(results: &Path) -> Result<()> {
    let machines = MACHINES.iter().map(|machine| machine.name);
    let results = MachineResults::read_all(results, &machines.collect::<Vec<_>>())?;
    let file = crate::root()?.join("docs/kernels.md");
    let before = fs::read_to_string(&file).with_context(|| file.display().to_string())?;
    fs::write(&file, table::update(&before, &results)?)?;
    println!("wrote {}", file.display());
    Ok(())
}

/// Programs and files of all machines.
struct GuestContents {
    pagewise: PathBuf,
    programs: PathBuf,
    tests: Vec<(ci::TestProgram, &'static str)>,
}

impl GuestContents {
    fn collect(work: &Path, with_tests: bool) -> Result<GuestContents> {
        let programs = work.join("bin");
        compile(&programs, CAPTURED)?;
        compile(&programs, TARGETS)?;
        let pagewise = match std::env::var_os("PAGEWISE_STATIC") {
            Some(file) => file.into(),
            None => portable::build(true)?,
        };
        let tests = if with_tests { tests()? } else { Vec::new() };
        for source in TEST_SOURCES.iter().filter(|_| with_tests) {
            compile_source(&programs, &crate::root()?.join(source))?;
        }
        Ok(GuestContents { pagewise, programs, tests })
    }

    fn boot(
        &self,
        kernel: &GuestKernel,
        kind: &MachineKind,
        work: GuestWork,
        capture: bool,
    ) -> Result<VmResult> {
        let hidepid = kind.hidepid.to_string();
        let script = match work {
            GuestWork::Features if capture => {
                format!("sh /kernels/features.sh $1; {}", guest_command())
            }
            GuestWork::Features => "sh /kernels/features.sh $1".to_owned(),
            GuestWork::Tests => "sh /kernels/tests.sh $1".to_owned(),
        };
        let command = ["sh", "-c", &script, "sh", &hidepid].map(str::to_owned);
        let mut machine = VirtualMachine::new(kernel.clone(), command.to_vec());
        machine.memory = MEMORY;
        machine.cpus = kind.cpus;
        machine.nodes = kind.nodes;
        machine.cgroups = kind.cgroups;
        machine.kernel_options = kind.options.to_owned();
        machine.time_limit = TIME_LIMIT;
        // Remote calls save the registers of a target with XSAVE, which the usual emulated CPU
        // lacks.
        machine.full_cpu = true;
        match work {
            GuestWork::Features => self.add_features(&mut machine)?,
            GuestWork::Tests => self.add_tests(&mut machine)?,
        }
        Ok(machine.run(&|| false)?)
    }

    fn add_features(&self, machine: &mut VirtualMachine) -> Result<()> {
        machine.programs.push(GuestProgram::new(&self.pagewise, "/bin/pagewise"));
        for name in TARGETS {
            let program = GuestProgram::new(&self.programs.join(name), format!("/bin/{name}"));
            machine.programs.push(GuestProgram { symbols: true, ..program });
        }
        machine.files.push(GuestFile::new("/kernels/features.sh", 0o644, FEATURES));
        add_captured_programs(machine, &self.programs)
    }

    fn add_tests(&self, machine: &mut VirtualMachine) -> Result<()> {
        let mut list = String::new();
        for (test, options) in &self.tests {
            machine.programs.push(GuestProgram::new(&test.path, format!("/tests/{}", test.target)));
            list += &format!("{} {} {options}\n", test.target, test.folder.display());
            for file in files_below(&test.folder)? {
                let content = fs::read(&file)?;
                machine.files.push(GuestFile::new(file.display().to_string(), 0o644, content));
            }
        }
        for source in TEST_SOURCES {
            let name = Path::new(source).file_stem().context(*source)?;
            let guest = Path::new("/tests/programs").join(name).display().to_string();
            let program = GuestProgram::new(&self.programs.join(name), guest);
            machine.programs.push(GuestProgram { symbols: true, ..program });
        }
        machine.files.push(GuestFile::new("/kernels/tests", 0o644, list));
        machine.files.push(GuestFile::new("/kernels/tests.sh", 0o644, TESTS));
        Ok(())
    }
}

/// Builds the test programs of [`TESTED`], with their options.
fn tests() -> Result<Vec<(ci::TestProgram, &'static str)>> {
    let packages: BTreeSet<&str> = TESTED.iter().map(|row| row.package).collect();
    let mut built = ci::test_programs_of(&packages.into_iter().collect::<Vec<_>>())?;
    let find = |row: &TestedProgram| {
        let at = built.iter().position(|test| test.target == row.target);
        Ok((built.remove(at.with_context(|| row.target)?), row.options))
    };
    TESTED.iter().map(find).collect()
}

/// Returns the files that tests of a package read.
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
