//! Builds small kernels from Debian's sources, unchanged or with a patch. Nothing is installed on
//! the host.
//!
//! ```text
//!   cache/pagewise/sources/linux-source-6.1_VERSION     the package, unpacked
//!   cache/pagewise/trees/VERSION-CONFIGURATION          sources and object files; with a file
//!                                                       `clean` while no patch is applied
//!   cache/pagewise/built/VERSION-CONFIGURATION-PATCH    boot/vmlinuz, config, patch
//! ```
//!
//! A build with a patch applies it to the tree, compiles the changed files and reverts the patch. A
//! tree that a killed build left without `clean` is unpacked again.

use std::fs::{self, File, OpenOptions};
use std::io::Read;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use pagewise_sys::parent_death::end_with_parent;
use rustix::fs::{FlockOperation, flock};
use rustix::process::{Pid, Signal, kill_process_group};

use crate::error::WhileDoing;
use crate::fetch::{output, unpack_package};
use crate::kernel::cache_folder;
use crate::programs::find_program;
use crate::{GuestArch, GuestKernel, VmError};

/// Debian package with the kernel sources.
const SOURCE_PACKAGE: &str = "linux-source-6.1";
/// Kernel options that are set, in the format of `.config`.
const CONFIGURATION: &str = include_str!("small.config");
/// Name of the file that marks a tree without an applied patch.
const CLEAN: &str = "clean";
/// Name of the folder of the sources in a tree.
const SOURCES: &str = "linux";
/// Name of the file with the output of the last command in a tree.
const LOG: &str = "log";
/// Number of last lines of the output that an error contains.
const LOG_TAIL: usize = 20;
/// Large parts of the sources that small kernels do not use, so they are not unpacked.
const LEFT_OUT: [&str; 3] =
    ["*/drivers/gpu/drm/amd/include/*", "*/arch/*/boot/dts/*", "*/tools/testing/*"];

/// Programs that the build calls, each with its Debian package.
const TOOLS: [(&str, &str); 10] = [
    ("make", "make"),
    ("gcc", "gcc"),
    ("ld", "binutils"),
    ("flex", "flex"),
    ("bison", "bison"),
    ("bc", "bc"),
    ("perl", "perl"),
    ("patch", "patch"),
    ("tar", "tar"),
    ("xz", "xz-utils"),
];
/// Header that the build includes, and its Debian package.
const HEADER: (&str, &str) = ("/usr/include/gelf.h", "libelf-dev");

/// A kernel to build.
#[derive(Clone, Copy, Debug)]
pub struct KernelBuild<'a> {
    /// A patch in the format of `diff -u`, with paths one folder below the root; `None` for the
    /// unchanged kernel.
    pub patch: Option<&'a [u8]>,
    /// Number of parallel compiler processes.
    pub jobs: usize,
    /// Time after which the build is stopped.
    pub time_limit: Duration,
}

/// Progress of a build.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BuildProgress {
    /// The step: `download`, `unpack`, `patch`, `configure` or `compile`.
    pub step: &'static str,
    /// Number of files compiled so far.
    pub files: usize,
}

/// Returns the newest kernel that was built with a patch, or without a patch.
pub fn built_kernel(patch: Option<&[u8]>) -> Option<GuestKernel> {
    let mut folders: Vec<PathBuf> =
        fs::read_dir(built_folder().ok()?).ok()?.flatten().map(|entry| entry.path()).collect();
    folders.sort();
    folders.iter().rev().find_map(|folder| kernel_in(folder, patch))
}

/// Builds a kernel, or returns it if it was built before.
///
/// # Errors
/// [`VmError::MissingTools`] if a program for the build is not installed, [`VmError::Build`] if the
/// sources cannot be downloaded, the patch does not apply or the compiler fails.
pub fn build_kernel(
    build: &KernelBuild<'_>,
    progress: &mut dyn FnMut(BuildProgress),
    interrupted: &dyn Fn() -> bool,
) -> Result<GuestKernel, VmError> {
    if GuestArch::host() != Some(GuestArch::X86_64) {
        return Err(wrong("kernels can be built on x86-64 only"));
    }
    let version = source_version()?;
    let tree = format!("{version}-{:016x}", hash(CONFIGURATION.as_bytes()));
    let patch = build.patch.map_or(0, hash);
    let folder = built_folder()?.join(format!("{tree}-{patch:016x}"));
    if let Some(kernel) = kernel_in(&folder, build.patch) {
        return Ok(kernel);
    }
    check_tools()?;
    progress(BuildProgress { step: "download", files: 0 });
    let sources = sources(&version)?;
    let deadline = Instant::now() + build.time_limit;
    let trees = cache_folder("trees").ok_or_else(|| wrong(NO_CACHE))?;
    let mut tree = BuildTree::open(trees.join(tree), build.jobs, deadline, progress, interrupted)?;
    tree.prepare(&sources)?;
    // The name of a patched kernel contains the hash of the patch.
    let name = if build.patch.is_some() { format!("-{patch:016x}") } else { String::new() };
    let built = tree.image(build.patch, &format!("-pagewise{name}"));
    let kept = built.and_then(|image| keep(&image, build.patch, &folder));
    let taken_back = tree.take_back();
    kept.and(taken_back)?;
    kernel_in(&folder, build.patch).ok_or_else(|| wrong("the built kernel cannot be read"))
}

const NO_CACHE: &str = "neither HOME nor XDG_CACHE_HOME is set";

fn built_folder() -> Result<PathBuf, VmError> {
    cache_folder("built").ok_or_else(|| wrong(NO_CACHE))
}

/// Returns the kernel in a folder, if it was built with this configuration and patch.
fn kernel_in(folder: &Path, patch: Option<&[u8]>) -> Option<GuestKernel> {
    let is_same = |name: &str, expected: &[u8]| {
        fs::read(folder.join(name)).is_ok_and(|content| content == expected)
    };
    let is_it =
        is_same("config", CONFIGURATION.as_bytes()) && is_same("patch", patch.unwrap_or_default());
    is_it.then(|| GuestKernel::open(&folder.join("boot/vmlinuz")).ok())?
}

/// Copies a built image to its folder. The folder gets its final name only when it is complete.
fn keep(image: &Path, patch: Option<&[u8]>, folder: &Path) -> Result<(), VmError> {
    let part = folder.with_extension(format!("part{}", std::process::id()));
    let keep = || {
        fs::create_dir_all(part.join("boot"))?;
        fs::copy(image, part.join("boot/vmlinuz"))?;
        fs::write(part.join("config"), CONFIGURATION)?;
        fs::write(part.join("patch"), patch.unwrap_or_default())?;
        fs::rename(&part, folder)
    };
    keep().while_doing(format!("cannot write {}", folder.display()))
}

/// Returns the version of the source package that apt would install; if apt knows no version, the
/// newest downloaded version.
fn source_version() -> Result<String, VmError> {
    let shown =
        output(Command::new("apt-cache").args(["show", "--no-all-versions", SOURCE_PACKAGE]));
    let version = shown.and_then(|text| {
        let version = text.lines().find_map(|line| line.strip_prefix("Version: "));
        version.map(str::to_owned).ok_or_else(|| wrong(format!("apt has no {SOURCE_PACKAGE}")))
    });
    version.or_else(|error| downloaded_version().ok_or(error))
}

fn downloaded_version() -> Option<String> {
    let entries = fs::read_dir(cache_folder("sources")?).ok()?.flatten();
    let names = entries.filter_map(|entry| entry.file_name().into_string().ok());
    let prefix = format!("{SOURCE_PACKAGE}_");
    names.filter_map(|name| name.strip_prefix(&prefix).map(str::to_owned)).max()
}

/// Returns the archive of the sources of a version, and downloads it if necessary.
fn sources(version: &str) -> Result<PathBuf, VmError> {
    let folder = cache_folder("sources").ok_or_else(|| wrong(NO_CACHE))?;
    let package = folder.join(format!("{SOURCE_PACKAGE}_{version}"));
    let archive = package.join(format!("usr/src/{SOURCE_PACKAGE}.tar.xz"));
    if !archive.exists() {
        fs::create_dir_all(&folder).while_doing(format!("cannot make {}", folder.display()))?;
        unpack_package(&format!("{SOURCE_PACKAGE}={version}"), &package)?;
    }
    Ok(archive)
}

/// Returns an error that names the packages of all missing tools.
fn check_tools() -> Result<(), VmError> {
    let programs = TOOLS.iter().filter(|(program, _)| find_program(program).is_none());
    let mut missing: Vec<(&str, &str)> = programs.copied().collect();
    missing.extend(Some(HEADER).filter(|(path, _)| !Path::new(path).exists()));
    if missing.is_empty() {
        return Ok(());
    }
    let (names, packages): (Vec<&str>, Vec<&str>) = missing.into_iter().unzip();
    Err(VmError::MissingTools { names: names.join(", "), packages: packages.join(" ") })
}

/// FNV-1a hash, for folder names. [`kernel_in`] also compares the full contents, because two
/// contents may have the same hash.
fn hash(content: &[u8]) -> u64 {
    let step = |hash: u64, byte: &u8| (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3);
    content.iter().fold(0xcbf2_9ce4_8422_2325, step)
}

/// Sources and object files of a version and a configuration.
struct BuildTree<'a> {
    folder: PathBuf,
    jobs: usize,
    deadline: Instant,
    progress: &'a mut dyn FnMut(BuildProgress),
    interrupted: &'a dyn Fn() -> bool,
    _lock: File,
}

impl<'a> BuildTree<'a> {
    /// Opens a tree, and waits until no other process builds in it.
    fn open(
        folder: PathBuf,
        jobs: usize,
        deadline: Instant,
        progress: &'a mut dyn FnMut(BuildProgress),
        interrupted: &'a dyn Fn() -> bool,
    ) -> Result<BuildTree<'a>, VmError> {
        let making = format!("cannot make {}", folder.display());
        let parent = folder.parent().unwrap_or(Path::new("/"));
        fs::create_dir_all(parent).while_doing(making.clone())?;
        let lock = OpenOptions::new().create(true).append(true).open(folder.with_extension("lock"));
        let lock = lock.while_doing(making)?;
        while flock(&lock, FlockOperation::NonBlockingLockExclusive).is_err() {
            if interrupted() || Instant::now() > deadline {
                return Err(wrong("another process builds a kernel"));
            }
            thread::sleep(POLL);
        }
        Ok(BuildTree { folder, jobs, deadline, progress, interrupted, _lock: lock })
    }

    /// Unpacks and configures the sources, unless an earlier build has done so.
    fn prepare(&mut self, archive: &Path) -> Result<(), VmError> {
        if self.folder.join(CLEAN).exists() {
            return Ok(());
        }
        let making = format!("cannot make {}", self.folder.display());
        if self.folder.exists() {
            fs::remove_dir_all(&self.folder).while_doing(making.clone())?;
        }
        let sources = self.folder.join(SOURCES);
        fs::create_dir_all(&sources).while_doing(making.clone())?;
        let mut unpack = Command::new("tar");
        unpack.args(["--extract", "--xz", "--strip-components=1", "--file"]).arg(archive);
        unpack.args(LEFT_OUT.map(|pattern| format!("--exclude={pattern}")));
        self.call("unpack", &mut unpack)?;
        let wanted = self.folder.join("small.config");
        fs::write(&wanted, CONFIGURATION).while_doing(making.clone())?;
        let mut configure = Command::new("make");
        configure.arg("allnoconfig").env("KCONFIG_ALLCONFIG", &wanted);
        self.call("configure", &mut configure)?;
        let config = fs::read_to_string(sources.join(".config")).while_doing(making.clone())?;
        check_configuration(&config)?;
        fs::write(self.folder.join(CLEAN), "").while_doing(making)
    }

    /// Builds the image, with a patch if there is one.
    fn image(&mut self, patch: Option<&[u8]>, name: &str) -> Result<PathBuf, VmError> {
        if let Some(patch) = patch {
            let making = format!("cannot write to {}", self.folder.display());
            let file = self.folder.join("patch");
            fs::write(&file, patch).while_doing(making.clone())?;
            // The dry run fails for a patch that applies only in part, before any file is changed.
            self.patch(&["--dry-run"])?;
            fs::remove_file(self.folder.join(CLEAN)).while_doing(making)?;
            self.patch(&[])?;
        }
        let mut compile = Command::new("make");
        compile.arg(format!("-j{}", self.jobs)).arg("bzImage").arg(format!("LOCALVERSION={name}"));
        compile.env("KBUILD_BUILD_USER", "pagewise").env("KBUILD_BUILD_HOST", "pagewise");
        self.call("compile", &mut compile)?;
        Ok(self.folder.join(SOURCES).join("arch/x86/boot/bzImage"))
    }

    /// Reverts the applied patch, so that the tree can be used for the next build.
    fn take_back(&mut self) -> Result<(), VmError> {
        if self.folder.join(CLEAN).exists() {
            return Ok(());
        }
        self.patch(&["--reverse"])?;
        let marking = format!("cannot write to {}", self.folder.display());
        fs::write(self.folder.join(CLEAN), "").while_doing(marking)
    }

    fn patch(&mut self, options: &[&str]) -> Result<(), VmError> {
        let mut patch = Command::new("patch");
        // `--force` is used because `--batch` with `--reverse` would apply a patch that is not
        // applied.
        patch.args(["-p1", "--force", "--no-backup-if-mismatch", "--fuzz=0", "--input=../patch"]);
        self.call("patch", patch.args(options))
    }

    /// Runs a command in the folder of the sources.
    fn call(&mut self, step: &'static str, command: &mut Command) -> Result<(), VmError> {
        let path = self.folder.join(LOG);
        let running = format!("cannot run {}", command.get_program().to_string_lossy());
        let log = File::create(&path).while_doing(running.clone())?;
        let errors = log.try_clone().while_doing(running.clone())?;
        command.current_dir(self.folder.join(SOURCES)).stdin(Stdio::null());
        command.stdout(log).stderr(errors).process_group(0);
        end_with_parent(command);
        let mut child = command.spawn().while_doing(running.clone())?;
        let status = loop {
            (self.progress)(BuildProgress { step, files: compiled_files(&path) });
            match child.try_wait().while_doing(running.clone())? {
                Some(status) => break Ok(status),
                None if (self.interrupted)() => break Err("the build was interrupted".to_owned()),
                None if Instant::now() > self.deadline => {
                    break Err(format!(
                        "the build exceeded its time limit in the step {step}; the next one keeps \
                         the files that are compiled"
                    ));
                }
                None => thread::sleep(POLL),
            }
        };
        // The whole process group is killed, because compilers continue after the end of `make`.
        let group = i32::try_from(child.id()).ok().and_then(Pid::from_raw);
        let _ = group.map(|group| kill_process_group(group, Signal::KILL));
        let _ = child.wait();
        match status {
            Ok(status) if status.success() => Ok(()),
            Ok(_) => Err(wrong(format!("the step {step} failed: {}", tail(&path)))),
            Err(why) => Err(wrong(why)),
        }
    }
}

/// Interval at which a command is polled.
const POLL: Duration = Duration::from_millis(100);

/// Counts the compiler calls in the output of `make`.
fn compiled_files(log: &Path) -> usize {
    let text = fs::read(log).unwrap_or_default();
    text.split(|byte| *byte == b'\n').filter(|line| line.starts_with(b"  CC ")).count()
}

/// Returns the last lines of a log.
fn tail(log: &Path) -> String {
    let mut text = Vec::new();
    let _ = File::open(log).map(|mut file| file.read_to_end(&mut text));
    let text = String::from_utf8_lossy(&text).into_owned();
    let lines: Vec<&str> = text.lines().collect();
    lines[lines.len().saturating_sub(LOG_TAIL)..].join("\n")
}

/// Returns an error that names the required options that the configuration lacks.
fn check_configuration(config: &str) -> Result<(), VmError> {
    let wanted = CONFIGURATION.lines().filter(|line| line.starts_with("CONFIG_"));
    let missing: Vec<&str> =
        wanted.filter(|wanted| !config.lines().any(|line| line == *wanted)).collect();
    if missing.is_empty() {
        return Ok(());
    }
    Err(wrong(format!("these sources have no {}", missing.join(", "))))
}

fn wrong(message: impl Into<String>) -> VmError {
    VmError::Build(message.into())
}

#[cfg(test)]
mod tests {
    use pagewise_skip::{Lack, skip};

    use super::*;

    #[test]
    fn a_kernel_is_found_by_its_patch_and_configuration() {
        let folder = tempfile::tempdir().unwrap();
        let built = folder.path().join("built");
        let image = folder.path().join("bzImage");
        let mut content = vec![0; 0x1000];
        content[0x202..0x206].copy_from_slice(b"HdrS");
        fs::write(&image, content).unwrap();
        keep(&image, Some(b"patch"), &built).unwrap();
        assert!(kernel_in(&built, Some(b"patch")).is_some());
        assert_eq!(kernel_in(&built, Some(b"other")), None);
        assert_eq!(kernel_in(&built, None), None);
        fs::write(built.join("config"), "CONFIG_64BIT=n").unwrap();
        assert_eq!(kernel_in(&built, Some(b"patch")), None);
    }

    #[test]
    fn a_missing_option_is_named() {
        assert!(check_configuration(CONFIGURATION).is_ok());
        let without = CONFIGURATION.replace("CONFIG_PSI=y", "# CONFIG_PSI is not set");
        let error = check_configuration(&without).unwrap_err().to_string();
        assert!(error.ends_with("CONFIG_PSI=y"), "{error}");
    }

    #[test]
    fn compiled_files_are_counted() {
        let log = tempfile::NamedTempFile::new().unwrap();
        fs::write(log.path(), "  CC      a.o\n  LD      b\n  CC      c.o\nwarning: CC\n").unwrap();
        assert_eq!(compiled_files(log.path()), 2);
    }

    #[test]
    fn a_command_that_fails_ends_the_build_with_its_output() {
        let folder = tempfile::tempdir().unwrap();
        let tree = folder.path().join("tree");
        fs::create_dir_all(tree.join(SOURCES)).unwrap();
        let deadline = Instant::now() + Duration::from_secs(60);
        let mut steps = Vec::new();
        let mut progress = |progress: BuildProgress| steps.push(progress.step);
        let mut tree = BuildTree::open(tree, 1, deadline, &mut progress, &|| false).unwrap();
        let mut failing = Command::new("sh");
        let error = tree.call("compile", failing.args(["-c", "echo no such header; exit 2"]));
        assert_eq!(error.unwrap_err().to_string(), "the step compile failed: no such header");
        tree.deadline = Instant::now();
        let mut slow = Command::new("sleep");
        let error = tree.call("compile", slow.arg("100")).unwrap_err().to_string();
        assert!(error.contains("time limit"), "{error}");
        assert!(steps.contains(&"compile"));
    }

    /// Archive of sources whose `make` copies a file instead of compiling.
    fn archive_of_sources(folder: &Path) -> PathBuf {
        let sources = folder.join("linux-source");
        fs::create_dir_all(sources.join("mm")).unwrap();
        let makefile = "allnoconfig:\n\tcp $(KCONFIG_ALLCONFIG) .config\nbzImage:\n\
            \tmkdir -p arch/x86/boot && cp mm/vmscan.c arch/x86/boot/bzImage\n";
        fs::write(sources.join("Makefile"), makefile).unwrap();
        fs::write(sources.join("mm/vmscan.c"), "one\ntwo\nthree\n").unwrap();
        let archive = folder.join("linux-source.tar.xz");
        let mut tar = Command::new("tar");
        tar.args(["--create", "--xz", "--file"]).arg(&archive).arg("linux-source");
        assert!(tar.current_dir(folder).status().unwrap().success());
        archive
    }

    #[test]
    fn a_patch_is_taken_back_after_the_build_and_a_wrong_one_is_not_applied() {
        for tool in ["make", "patch", "xz"] {
            if find_program(tool).is_none() {
                return skip(&Lack::Tool(tool));
            }
        }
        let folder = tempfile::tempdir().unwrap();
        let archive = archive_of_sources(folder.path());
        let deadline = Instant::now() + Duration::from_secs(300);
        let path = folder.path().join("tree");
        let mut progress = |_| {};
        let mut tree =
            BuildTree::open(path.clone(), 1, deadline, &mut progress, &|| false).unwrap();
        tree.prepare(&archive).unwrap();
        let source = path.join(SOURCES).join("mm/vmscan.c");
        let before = fs::read(&source).unwrap();
        let patch =
            b"--- a/mm/vmscan.c\n+++ b/mm/vmscan.c\n@@ -1,3 +1,3 @@\n one\n-two\n+2\n three\n";
        let image = tree.image(Some(patch), "-test").unwrap();
        assert_eq!(fs::read(&image).unwrap(), b"one\n2\nthree\n");
        tree.take_back().unwrap();
        assert_eq!(fs::read(&source).unwrap(), before);
        let wrong =
            b"--- a/mm/vmscan.c\n+++ b/mm/vmscan.c\n@@ -1,3 +1,3 @@\n one\n-four\n+4\n three\n";
        let error = tree.image(Some(wrong), "-test").unwrap_err().to_string();
        assert!(error.starts_with("the step patch failed"), "{error}");
        tree.take_back().unwrap();
        assert_eq!(fs::read(&source).unwrap(), before);
        let image = tree.image(None, "-test").unwrap();
        assert_eq!(fs::read(&image).unwrap(), before);
    }
}
