//! The settings of a machine. The caller lists the files with settings.

use std::time::{Duration, Instant};

use pagewise_model::settings::{
    Capabilities, EnvVariable, ProcessSettings, SettingFile, ShootdownCount, SizeSetting,
    SystemSettings,
};
use pagewise_model::units::nanoseconds;
use pagewise_model::{Absent, Name, Pid, Reading};
use pagewise_sys::system::{CapabilitySet, has_capability};

use crate::fragmentation::{huge_size, page_size, size_folders};
use crate::meminfo::{nodes_online, selected};
use crate::text::{field, lines};
use crate::{ProcRoot, capture, cgroup, interrupts, meminfo, pressure, swaps};

/// Parts to read in addition to the values that every reading contains.
#[derive(Clone, Copy, Debug)]
pub struct SettingsRequest<'a> {
    /// Files with one setting each, by their path on a live system: `/proc/sys/vm/swappiness`.
    pub files: &'a [&'a str],
    /// Process whose settings are read in addition; `None` to read no process.
    pub process: Option<Pid>,
    /// Time for which TLB shootdowns are counted.
    pub sample: Duration,
}

/// Reads the settings of a machine. A copied tree has files of `/proc/sys` in `DIR/sys`, and files
/// of `/sys` in `DIR/sysfs`.
pub fn read(root: &ProcRoot, request: &SettingsRequest<'_>) -> SystemSettings {
    let meminfo = root.machine("meminfo");
    let line =
        |name| meminfo.as_ref().map_err(Clone::clone).and_then(|text| meminfo::parse(text, name));
    let no_process = || Absent::NotCollected("name a process of the copied tree".into());
    SystemSettings {
        kernel: capture::kernel(root),
        page_size: page_size(root),
        huge_size: huge_size(root),
        files: request.files.iter().map(|path| file(root, path)).collect(),
        sizes: sizes(root),
        mem_total: line("MemTotal"),
        commit_limit: line("CommitLimit"),
        committed: line("Committed_AS"),
        swaps: root.machine("swaps").and_then(|text| {
            swaps::parse(&text).map_err(|error| Absent::NotSupported(error.to_string().into()))
        }),
        nodes: nodes_online(root),
        five_levels: root.machine("cpuinfo").and_then(|text| five_levels(&text)),
        pressure: root.machine("pressure/memory").and_then(|text| {
            pressure::parse(&text).ok_or(Absent::NotSupported("not in the form of PSI".into()))
        }),
        shootdowns: shootdowns(root, request.sample),
        ours: ours(root),
        process: request.process.map(|pid| process(root, pid)).ok_or_else(no_process),
    }
}

fn file(root: &ProcRoot, path: &str) -> SettingFile {
    let text = match (path.strip_prefix("/proc/"), path.strip_prefix("/sys/")) {
        (Some(name), _) => root.machine(name),
        (_, Some(name)) => root.sysfs(name),
        (None, None) => Err(Absent::NotSupported("it is not in /proc or /sys".into())),
    };
    let text = text.map_err(|absent| match path.starts_with(SECURITYFS) && is_empty(root) {
        true => Absent::NotSupported("securityfs is not mounted".into()),
        false => absent,
    });
    SettingFile { path: path.into(), value: text.map(|text| setting(&text)) }
}

/// Mount point of securityfs, which small systems do not mount.
const SECURITYFS: &str = "/sys/kernel/security/";

/// True if nothing is mounted on [`SECURITYFS`] of a live system.
fn is_empty(root: &ProcRoot) -> bool {
    let entries = std::fs::read_dir(root.sysfs_path("kernel/security"));
    root.is_live() && entries.is_ok_and(|mut entries| entries.next().is_none())
}

/// Returns the value of a setting: the word in brackets if the file lists alternatives, else the
/// text without its newline.
fn setting(text: &[u8]) -> Name {
    Name::new(selected(text).unwrap_or(text.trim_ascii()))
}

fn sizes(root: &ProcRoot) -> Reading<Vec<SizeSetting>> {
    let enabled = |folder: &str| root.sysfs(&format!("{folder}/enabled"));
    // The folder of a page size that only tmpfs supports does not contain `enabled`.
    let sizes = size_folders(root)?.into_iter().filter_map(|(size, folder)| {
        let enabled = enabled(&folder).ok()?;
        Some(SizeSetting { size, enabled: setting(&enabled) })
    });
    Ok(sizes.collect())
}

/// True if the flags of the first CPU have `la57`. The kernel clears the flag if it uses four
/// levels of page tables.
fn five_levels(cpuinfo: &[u8]) -> Reading<bool> {
    let rows = lines(cpuinfo).filter_map(|(_, line)| field(line));
    let flags = rows.into_iter().find(|(name, _)| name.trim_ascii() == b"flags");
    let (_, flags) = flags.ok_or(Absent::NotSupported("only known on x86-64".into()))?;
    Ok(flags.split(|&b| b == b' ').any(|flag| flag == b"la57"))
}

fn shootdowns(root: &ProcRoot, sample: Duration) -> Reading<ShootdownCount> {
    if !root.is_live() {
        return Err(Absent::NotCollected("a copied tree stands still".into()));
    }
    let count = || {
        let text = root.machine("interrupts")?;
        interrupts::parse(&text, "TLB")
            .ok_or(Absent::NotSupported("this machine does not count them".into()))
    };
    let (begin, before) = (Instant::now(), count()?);
    std::thread::sleep(sample);
    let count = count()?.saturating_sub(before);
    let interval_ns = nanoseconds(begin.elapsed());
    Ok(ShootdownCount { count, interval_ns })
}

fn ours(root: &ProcRoot) -> Reading<Capabilities> {
    if !root.is_live() {
        return Err(Absent::NotCollected("the settings are another machine's".into()));
    }
    let admin = has_capability(CapabilitySet::SYS_ADMIN);
    Ok(Capabilities {
        ptrace: has_capability(CapabilitySet::SYS_PTRACE),
        admin,
        nice: has_capability(CapabilitySet::SYS_NICE),
        perfmon: admin || has_capability(CapabilitySet::PERFMON),
    })
}

fn process(root: &ProcRoot, pid: Pid) -> ProcessSettings {
    ProcessSettings {
        pid,
        environment: root.reading(pid, "environ").map(|text| variables(&text)),
        cgroup: cgroup::settings(root, pid),
    }
}

/// Environment variables that configure malloc: full names, and prefixes.
const NAMES: [&[u8]; 2] = [b"GLIBC_TUNABLES", b"LD_PRELOAD"];
const STARTS: [&[u8]; 5] = [b"MALLOC_", b"TCMALLOC_", b"MIMALLOC_", b"JEMALLOC_", b"_RJEM_MALLOC_"];

/// Returns the variables of an `environ` that configure malloc. Other variables may contain secrets
/// and are not returned.
pub fn variables(environ: &[u8]) -> Vec<EnvVariable> {
    let pairs = environ.split(|&b| b == 0).filter_map(|pair| {
        let equals = memchr::memchr(b'=', pair)?;
        Some((&pair[..equals], &pair[equals + 1..]))
    });
    let steers =
        |name: &[u8]| NAMES.contains(&name) || STARTS.iter().any(|start| name.starts_with(start));
    pairs
        .filter(|(name, _)| steers(name))
        .map(|(name, value)| EnvVariable { name: Name::new(name), value: Name::new(value) })
        .collect()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn only_malloc_variables_of_an_environment_are_kept() {
        let environ = b"PATH=/bin\0MALLOC_ARENA_MAX=2\0TOKEN=MALLOC_X=1\0LD_PRELOAD=/lib/a=b.so\0MALLOC_PERTURB_\0";
        let variable =
            |name: &str, value: &str| EnvVariable { name: name.into(), value: value.into() };
        let kept = [variable("MALLOC_ARENA_MAX", "2"), variable("LD_PRELOAD", "/lib/a=b.so")];
        assert_eq!(variables(environ), kept);
    }

    #[test]
    fn five_levels_are_recognized_by_the_exact_flag_only() {
        assert_eq!(five_levels(b"processor\t: 0\nflags\t\t: fpu la57 avx\n"), Ok(true));
        assert_eq!(five_levels(b"model name\t: la57\nflags\t\t: fpu la57x\n"), Ok(false));
        assert!(five_levels(b"CPU part : 0xd0c\nFeatures : fp asimd\n").is_err());
    }

    #[test]
    fn a_copied_tree_gives_its_own_settings_and_none_of_this_machine() {
        let tree = tempfile::tempdir().unwrap();
        std::fs::create_dir_all(tree.path().join("sys/vm")).unwrap();
        std::fs::create_dir_all(tree.path().join("sysfs/kernel/mm/transparent_hugepage")).unwrap();
        std::fs::write(tree.path().join("sys/vm/swappiness"), "61\n").unwrap();
        let enabled = "sysfs/kernel/mm/transparent_hugepage/enabled";
        std::fs::write(tree.path().join(enabled), "[always] madvise never\n").unwrap();
        let files = [
            "/proc/sys/vm/swappiness",
            "/sys/kernel/mm/transparent_hugepage/enabled",
            "/proc/sys/vm/max_map_count",
        ];
        let request = SettingsRequest { files: &files, process: None, sample: Duration::ZERO };
        let settings = read(&ProcRoot::at(tree.path()), &request);
        let value = |path| settings.file(path).unwrap().clone();
        assert_eq!(value(files[0]), Ok("61".into()));
        assert_eq!(value(files[1]), Ok("always".into()));
        assert!(matches!(value(files[2]), Err(Absent::NotCollected(_))));
        assert!(
            settings.ours.is_err() && settings.shootdowns.is_err() && settings.mem_total.is_err()
        );
    }

    proptest! {
        #[test]
        fn no_bytes_make_it_panic(text: Vec<u8>, tail in "(flags\t: la57|MALLOC_=|[\0=\n:\\[\\] ]){0,30}") {
            let both = [&text[..], tail.as_bytes()].concat();
            let _ = (variables(&both), five_levels(&both), setting(&both));
        }
    }
}
