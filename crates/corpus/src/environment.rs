//! Sets up what a program of the corpus needs, and restores the machine afterwards.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};

use anyhow::{Context, Result};

use crate::build::is_installed;
use crate::labels::Need;
use crate::undo::Undo;

const THP_ENABLED: &str = "/sys/kernel/mm/transparent_hugepage/enabled";
const KSM_RUN: &str = "/sys/kernel/mm/ksm/run";
const HUGETLB_PAGES: &str = "/proc/sys/vm/nr_hugepages";

/// Number that makes the name of the next folder unique within this process.
static NEXT_ENVIRONMENT: AtomicUsize = AtomicUsize::new(0);

/// The environment of one run. When this value is dropped, all its changes of the machine are
/// undone.
#[derive(Debug)]
pub struct Environment {
    /// Current folder of the program.
    pub folder: PathBuf,
    /// Folder of the program's memory cgroup, if it has one.
    pub cgroup: Option<PathBuf>,
    /// The commands that run at the end.
    pub undo: Undo,
}

/// An environment, or the reason why this machine cannot provide it.
pub type Prepared = Result<Environment, String>;

/// Prepares a folder below `work`, and the conditions in `needs`. Settings of the machine are
/// changed only if `may_change` allows it.
///
/// # Errors
///
/// If a file or process of the environment cannot be made. A condition that this machine does not
/// meet is the inner error.
pub fn prepare(work: &Path, needs: &[Need], may_change: bool) -> Result<Prepared> {
    let number = NEXT_ENVIRONMENT.fetch_add(1, Ordering::Relaxed);
    let name = format!("pagewise-corpus-{}-{number}", std::process::id());
    let folder = work.join("run").join(&name);
    fs::create_dir_all(&folder).with_context(|| folder.display().to_string())?;
    let mut undo = Undo::new()?;
    undo.later(&format!("rm -rf '{}'", folder.display()))?;
    let mut environment = Environment { folder, cgroup: None, undo };
    for need in needs {
        if let Err(reason) = provide(need, &name, &mut environment, may_change)? {
            return Ok(Err(reason));
        }
    }
    Ok(Ok(environment))
}

/// Provides one condition; the inner error is the reason why this machine cannot meet it.
fn provide(
    need: &Need,
    name: &str,
    environment: &mut Environment,
    may_change: bool,
) -> Result<Result<(), String>> {
    let unmet = match need {
        Need::Root => (!is_root()?).then(|| "needs root".to_owned()),
        Need::Program(program) => {
            (!is_installed(program)).then(|| format!("{program} is not installed"))
        }
        Need::MemoryBelow(limit) => (meminfo("MemTotal")? > *limit)
            .then(|| format!("needs a machine with less than {} MiB", limit >> 20)),
        Need::MemoryCgroup(limit) => return memory_cgroup(name, *limit, environment),
        Need::Swap => match (meminfo("SwapTotal")?, may_change) {
            (0, true) => return swap_on(environment).map(Ok),
            (0, false) => Some("needs swap (--change-settings switches it on)".to_owned()),
            _ => None,
        },
        Need::ThpMode(mode) => return setting(THP_ENABLED, mode, environment, may_change),
        Need::Ksm => return setting(KSM_RUN, "1", environment, may_change),
        Need::HugetlbPages(pages) => {
            return setting(HUGETLB_PAGES, &pages.to_string(), environment, may_change);
        }
    };
    Ok(unmet.map_or(Ok(()), Err))
}

fn is_root() -> Result<bool> {
    let status = fs::read_to_string("/proc/self/status").context("/proc/self/status")?;
    let ids = status.lines().find_map(|line| line.strip_prefix("Uid:")).context("no Uid")?;
    Ok(ids.split_whitespace().nth(1) == Some("0"))
}

/// Returns a line of /proc/meminfo, in bytes.
///
/// # Errors
///
/// If the file has no such line.
pub fn meminfo(field: &str) -> Result<u64> {
    let text = fs::read_to_string("/proc/meminfo").context("/proc/meminfo")?;
    let kib = text
        .lines()
        .find_map(|line| line.strip_prefix(field)?.strip_prefix(':'))
        .and_then(|value| value.trim().trim_end_matches(" kB").parse::<u64>().ok())
        .with_context(|| format!("/proc/meminfo has no {field}"))?;
    Ok(kib << 10)
}

/// Makes a cgroup of the memory controller, of version 1 or 2.
fn memory_cgroup(
    name: &str,
    limit: Option<u64>,
    environment: &mut Environment,
) -> Result<Result<(), String>> {
    let mounts = fs::read_to_string("/proc/self/mounts").context("/proc/self/mounts")?;
    let Some((mount, limit_file)) = memory_controller(&mounts) else {
        return Ok(Err("no memory controller of cgroups is mounted".to_owned()));
    };
    let group = mount.join(name);
    if let Err(error) = fs::create_dir(&group) {
        return Ok(Err(format!("cannot create {}: {error}", group.display())));
    }
    // The kernel removes a cgroup only after its last process has ended, so `rmdir` is retried for
    // 2 s.
    environment.undo.later(&format!(
        "for i in 1 2 3 4 5 6 7 8 9 10; do find '{0}' -depth -type d -exec rmdir {{}} \\; ; \
         [ -e '{0}' ] || break; sleep 0.2; done",
        group.display()
    ))?;
    if let Some(limit) = limit
        && let Err(error) = fs::write(group.join(limit_file), limit.to_string())
    {
        return Ok(Err(format!("cannot set the limit of {}: {error}", group.display())));
    }
    environment.cgroup = Some(group);
    Ok(Ok(()))
}

/// Returns the folder of the memory controller and its file for the limit, from the text of
/// `/proc/mounts`.
fn memory_controller(mounts: &str) -> Option<(PathBuf, &'static str)> {
    let mut unified = None;
    for line in mounts.lines() {
        let fields: Vec<&str> = line.split(' ').collect();
        let [_, folder, filesystem, options, ..] = fields[..] else { continue };
        if filesystem == "cgroup" && options.split(',').any(|option| option == "memory") {
            return Some((folder.into(), "memory.limit_in_bytes"));
        }
        if filesystem == "cgroup2" {
            unified = Some((folder.into(), "memory.max"));
        }
    }
    unified
}

/// Gives a setting of the kernel a value, and restores it at the end.
fn setting(
    path: &str,
    value: &str,
    environment: &mut Environment,
    may_change: bool,
) -> Result<Result<(), String>> {
    let Ok(text) = fs::read_to_string(path) else {
        return Ok(Err(format!("this kernel has no {path}")));
    };
    let present = chosen(&text);
    if present == value {
        return Ok(Ok(()));
    }
    if !may_change {
        return Ok(Err(format!("needs `{value}` in {path} (--change-settings sets it)")));
    }
    environment.undo.later(&format!("echo {present} >{path}"))?;
    fs::write(path, value).with_context(|| path.to_owned())?;
    Ok(Ok(()))
}

/// Returns the value of a setting: the word in brackets, or the whole text.
fn chosen(text: &str) -> &str {
    let bracketed = text.split_once('[').and_then(|(_, rest)| rest.split_once(']'));
    bracketed.map_or(text.trim(), |(word, _)| word)
}

/// Switches on 512 MiB of swap in a file.
fn swap_on(environment: &mut Environment) -> Result<()> {
    let file = environment.folder.join("swap").display().to_string();
    environment.undo.later(&format!("swapoff '{file}'"))?;
    let script = "dd if=/dev/zero of=\"$1\" bs=1M count=512 status=none && chmod 600 \"$1\" && \
                  mkswap -q \"$1\" && swapon \"$1\"";
    let status = std::process::Command::new("sh").args(["-c", script, "sh", &file]).status()?;
    anyhow::ensure!(status.success(), "cannot switch on swap in {file}");
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_memory_controller_of_version_1_is_preferred() {
        let unified = "cgroup2 /sys/fs/cgroup/unified cgroup2 rw 0 0\n";
        let memory = "cgroup /sys/fs/cgroup/memory cgroup rw,relatime,memory 0 0\n";
        let cpu = "cgroup /sys/fs/cgroup/cpu cgroup rw,cpu 0 0\n";
        let both = format!("{unified}{cpu}{memory}");
        let found = memory_controller(&both).unwrap();
        assert_eq!(found, ("/sys/fs/cgroup/memory".into(), "memory.limit_in_bytes"));
        assert_eq!(memory_controller(unified).unwrap().1, "memory.max");
        assert_eq!(memory_controller(cpu), None);
    }

    #[test]
    fn the_word_in_brackets_is_the_present_value() {
        assert_eq!(chosen("always [madvise] never\n"), "madvise");
        assert_eq!(chosen("0\n"), "0");
    }
}
