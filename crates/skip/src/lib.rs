//! A test that this machine cannot run calls [`skip`] with the missing requirement. The function
//! checks that this machine lacks the requirement.
//!
//! libtest counts a skipped test as passed. So each skip is printed, and appended to the file that
//! `PAGEWISE_SKIPS` names; `cargo xtask ci` counts the lines and prints them. A skip whose reason
//! does not hold on this machine fails the test: a defect of the program under test cannot make a
//! test skip itself.
#![forbid(unsafe_code)]
#![allow(clippy::print_stderr, reason = "tests print why they are skipped")]

use std::fmt::{self, Display, Formatter};
use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::thread;

use rustix::thread::CapabilitySet;

/// Requirement of a test that is missing.
#[derive(Debug)]
pub enum Lack<'a> {
    /// A program in `PATH`, or a file if the name has a slash, that a package installs. Fails the
    /// test if `PAGEWISE_REQUIRE_TOOLS` is 1.
    Tool(&'a str),
    /// An ability that some builds or configurations of an installed tool have. Fails the test if
    /// `PAGEWISE_REQUIRE_TOOLS` is 1.
    Ability {
        /// The tool.
        of: &'a str,
        /// Missing ability, or output.
        what: &'a str,
    },
    /// User ID 0 with `CAP_SYS_ADMIN`, which root lacks in most containers.
    Root,
    /// A kernel of this version or later.
    Kernel(u32, u32),
    /// At least this number of CPUs for this process.
    Cpus(usize),
    /// An instruction set, by its name in Rust.
    Architecture(&'a str),
    /// A file of the kernel, in `/proc`, `/sys` or a tracefs.
    KernelFile(&'a str),
    /// A call that the kernel refused when the test itself made it.
    Refused {
        /// The call, and its purpose.
        call: &'a str,
        /// The kernel's answer.
        error: &'a io::Error,
    },
    /// A property of this machine that the test itself read from the kernel.
    Machine(&'a str),
    /// Disturbance by other work on this machine.
    Chance(&'a str),
}

impl Lack<'_> {
    /// Returns the reason why the test must not be skipped; `None` if it may be skipped.
    fn objection(&self, tools_required: bool) -> Option<String> {
        let tools = || tools_required.then(|| "PAGEWISE_REQUIRE_TOOLS is set".to_owned());
        match self {
            Lack::Tool(name) => {
                tools().or_else(|| find(name).map(|path| format!("{} exists", path.display())))
            }
            Lack::Ability { .. } => tools(),
            Lack::Root => has_all_rights().then(|| "the user is root".into()),
            Lack::Kernel(major, minor) => {
                (kernel()? >= (*major, *minor)).then(|| "this one is as new".into())
            }
            Lack::Cpus(count) => {
                let here = thread::available_parallelism().map_or(1, usize::from);
                (here >= *count).then(|| format!("there are {here}"))
            }
            Lack::Architecture(name) => {
                (*name == std::env::consts::ARCH).then(|| "it is the one of this machine".into())
            }
            Lack::KernelFile(path) => File::open(path).is_ok().then(|| "it can be opened".into()),
            Lack::Refused { .. } | Lack::Machine(_) | Lack::Chance(_) => None,
        }
    }
}

impl Display for Lack<'_> {
    fn fmt(&self, to: &mut Formatter<'_>) -> fmt::Result {
        match self {
            Lack::Tool(name) => write!(to, "{name} is not installed"),
            Lack::Ability { of, what } => write!(to, "{of}: {what}"),
            Lack::Root => write!(to, "needs root with CAP_SYS_ADMIN"),
            Lack::Kernel(major, minor) => write!(to, "needs Linux {major}.{minor}"),
            Lack::Cpus(count) => write!(to, "needs {count} CPUs"),
            Lack::Architecture(name) => write!(to, "needs a CPU of {name}"),
            Lack::KernelFile(path) => write!(to, "the kernel has no {path} for this user"),
            Lack::Refused { call, error } => write!(to, "the kernel refuses {call}: {error}"),
            Lack::Machine(what) => write!(to, "{what}"),
            Lack::Chance(what) => write!(to, "other work on this machine: {what}"),
        }
    }
}

/// Records that the calling test ends without having tested anything.
///
/// # Panics
/// Panics if the machine does not confirm the reason.
pub fn skip(lack: &Lack<'_>) {
    note("test", lack);
}

/// Records that the calling test leaves out one of its cases.
///
/// # Panics
/// Panics if the machine does not confirm the reason.
pub fn skip_part(lack: &Lack<'_>) {
    note("part", lack);
}

/// Returns true if the user is root, with `CAP_SYS_ADMIN`; records a skipped test if not.
pub fn is_root() -> bool {
    let is_root = has_all_rights();
    if !is_root {
        skip(&Lack::Root);
    }
    is_root
}

/// Returns true if the user is root, with `CAP_SYS_ADMIN`.
pub fn has_all_rights() -> bool {
    let has_capability = rustix::thread::capabilities(None)
        .is_ok_and(|sets| sets.effective.contains(CapabilitySet::SYS_ADMIN));
    rustix::process::geteuid().is_root() && has_capability
}

/// Returns the kernel's version; `None` if its name begins with no version.
fn kernel() -> Option<(u32, u32)> {
    let name = rustix::system::uname();
    let release = name.release().to_str().ok()?;
    let mut numbers = release.split(|digit: char| !digit.is_ascii_digit());
    Some((numbers.next()?.parse().ok()?, numbers.next()?.parse().ok()?))
}

fn note(what: &str, lack: &Lack<'_>) {
    let tools_required = std::env::var_os("PAGEWISE_REQUIRE_TOOLS").is_some_and(|it| it == "1");
    if let Some(objection) = lack.objection(tools_required) {
        panic!("skipped without need ({lack}): {objection}");
    }
    eprintln!("skipped: {lack}");
    let Some(path) = std::env::var_os("PAGEWISE_SKIPS") else { return };
    let line = line(what, &test(), &lack.to_string());
    let file = OpenOptions::new().append(true).create(true).open(path);
    // The line is written by one call: other test programs may append lines at the same time.
    let written = file.and_then(|mut file| file.write_all(line.as_bytes()));
    written.expect("the file that PAGEWISE_SKIPS names can be written");
}

/// Returns the test that runs on this thread, by program and name.
fn test() -> String {
    let program = std::env::current_exe().ok();
    let program = program.as_deref().and_then(Path::file_stem).unwrap_or_default();
    // Cargo appends a hash to the name.
    let program = program.to_string_lossy();
    let program = program.rsplit_once('-').map_or(&*program, |(name, _)| name);
    format!("{program}::{}", thread::current().name().unwrap_or("a thread of a test"))
}

/// Returns one line of the file. Tabs separate the fields, and no field contains a tab.
fn line(what: &str, test: &str, reason: &str) -> String {
    let clean = |text: &str| text.replace(['\t', '\n', '\r'], " ");
    format!("{what}\t{}\t{}\n", clean(test), clean(reason))
}

/// Returns the path of a program in `PATH`, or of a file.
fn find(name: &str) -> Option<PathBuf> {
    if name.contains('/') {
        return Some(PathBuf::from(name)).filter(|path| path.exists());
    }
    let folders = std::env::var_os("PATH")?;
    std::env::split_paths(&folders).map(|folder| folder.join(name)).find(|path| path.is_file())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn holds(lack: &Lack<'_>) -> bool {
        lack.objection(false).is_none()
    }

    #[test]
    fn a_wrong_reason_is_refused() {
        assert!(!holds(&Lack::Tool("sh")));
        assert!(!holds(&Lack::Tool("/bin/sh")));
        assert!(!holds(&Lack::Cpus(1)));
        assert!(!holds(&Lack::Kernel(2, 6)));
        assert!(!holds(&Lack::Architecture(std::env::consts::ARCH)));
        assert!(!holds(&Lack::KernelFile("/proc/self/stat")));
        assert_eq!(holds(&Lack::Root), !has_all_rights());
    }

    #[test]
    fn a_reason_that_holds_is_one() {
        assert!(holds(&Lack::Tool("pagewise-has-no-such-tool")));
        assert!(holds(&Lack::Cpus(usize::MAX)));
        assert!(holds(&Lack::Kernel(u32::MAX, 0)));
        assert!(holds(&Lack::Architecture("pdp11")));
        assert!(holds(&Lack::KernelFile("/proc/self/no-such-file")));
        assert!(holds(&Lack::Refused {
            call: "it",
            error: &io::ErrorKind::PermissionDenied.into()
        }));
    }

    #[test]
    fn a_tool_that_is_required_must_be_there() {
        assert!(Lack::Tool("pagewise-has-no-such-tool").objection(true).is_some());
        assert!(Lack::Ability { of: "perf", what: "counts nothing" }.objection(true).is_some());
        assert!(Lack::KernelFile("/proc/self/no-such-file").objection(true).is_none());
    }

    #[test]
    fn a_reason_of_several_lines_is_one_line_of_the_file() {
        assert_eq!(
            line("test", "a::b", "two\nlines\tand a tab"),
            "test\ta::b\ttwo lines and a tab\n"
        );
        let name = test();
        assert!(name.starts_with("pagewise_skip::"), "{name}");
        assert!(name.ends_with("a_reason_of_several_lines_is_one_line_of_the_file"), "{name}");
    }
}
