//! The account of RAM against independent counts.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{BufRead, BufReader, Write};
use std::os::fd::AsRawFd;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use pagewise_skip::{Lack, has_all_rights, is_root, skip};
use serde_json::Value;

use super::fixture::cgroup::TestCgroup;
use super::fixture::{Fixture, disk, json, number, pagewise, program, tool};

/// Reads `/proc/meminfo`. Returns values in bytes.
fn meminfo() -> BTreeMap<String, u64> {
    let text = fs::read_to_string("/proc/meminfo").unwrap();
    let line = |line: &str| {
        let (name, value) = line.split_once(':')?;
        let number: u64 = value.trim().trim_end_matches(" kB").parse().ok()?;
        Some((name.to_owned(), number << 10))
    };
    text.lines().filter_map(line).collect()
}

fn system() -> Value {
    json(&["system", "--json", "--for", "0s", "--limit", "all"])
}

fn owner(report: &Value, id: &str) -> u64 {
    let owners = report["owners"].as_array().unwrap();
    owners.iter().find(|it| it["id"] == id).map_or(0, |it| it["bytes"].as_u64().unwrap())
}

/// Repeats a comparison, since other programs allocate and release memory meanwhile.
fn repeat(mut attempt: impl FnMut() -> Result<(), String>) {
    let begin = Instant::now();
    while let Err(difference) = attempt() {
        assert!(begin.elapsed() < Duration::from_secs(60), "{difference}");
    }
}

/// Asserts that our count lies between two counts of the kernel, one before and one after it.
fn agrees(within: u64, mut ours: impl FnMut() -> u64, mut kernel: impl FnMut() -> u64) {
    repeat(|| {
        let (before, ours, after) = (kernel(), ours(), kernel());
        let range = before.min(after).saturating_sub(within)..=before.max(after) + within;
        if range.contains(&ours) { Ok(()) } else { Err(format!("{ours} is not in {range:?}")) }
    });
}

#[test]
fn owners_add_up_to_the_total_exactly() {
    let report = system();
    let total = number(&report, "total");
    assert_eq!(total, meminfo()["MemTotal"]);
    let owners = report["owners"].as_array().unwrap();
    let sum: u64 = owners.iter().map(|it| it["bytes"].as_u64().unwrap()).sum();
    let unaccounted = report["unaccounted"].as_i64().unwrap();
    assert_eq!(i64::try_from(sum).unwrap() + unaccounted, i64::try_from(total).unwrap());
    for owner in owners {
        assert!(owner["id"].is_string() && owner["detail"].is_array(), "{owner}");
        let parts: u64 = owner["detail"]
            .as_array()
            .unwrap()
            .iter()
            .map(|it| it["bytes"].as_u64().unwrap())
            .sum();
        // The parts of tmpfs overlap, because a file may be mapped, swapped, or counted by several
        // readings. Their sum is not compared.
        let is_bounded = !owner["id"].as_str().unwrap().starts_with("shmem");
        assert!(!is_bounded || parts <= owner["bytes"].as_u64().unwrap() + (64 << 20), "{owner}");
    }
}

#[test]
fn at_most_one_percent_of_ram_is_unaccounted() {
    let share = || {
        let report = system();
        let lost = report["unaccounted"].as_i64().unwrap().unsigned_abs();
        let unread = owner(&report, "anonymous.unread");
        let total = number(&report, "total");
        // Root can read all processes, so unread memory counts as lost.
        (lost + if has_all_rights() { unread } else { 0 }, total / 100)
    };
    let tries: Vec<(u64, u64)> = (0..3).map(|_| share()).collect();
    assert!(tries.iter().any(|(lost, allowed)| lost <= allowed), "{tries:?}");
}

#[test]
fn memory_of_processes_is_the_sum_of_smaps() {
    if !is_root() {
        return;
    }
    let summed = |name: &str| -> u64 {
        let pids = fs::read_dir("/proc")
            .unwrap()
            .filter_map(|it| it.unwrap().file_name().into_string().ok());
        let texts = pids
            .filter(|it| it.parse::<u32>().is_ok())
            .filter_map(|it| fs::read_to_string(format!("/proc/{it}/smaps_rollup")).ok());
        texts
            .flat_map(|text| text.lines().map(str::to_owned).collect::<Vec<_>>())
            .filter_map(|line| {
                let rest = line
                    .strip_prefix(name)?
                    .strip_prefix(':')?
                    .trim()
                    .trim_end_matches(" kB")
                    .to_owned();
                rest.parse::<u64>().ok().map(|it| it << 10)
            })
            .sum()
    };
    for (id, name) in [("processes.anonymous", "Pss_Anon"), ("processes.shmem", "Pss_Shmem")] {
        agrees(24 << 20, || owner(&system(), id), || summed(name));
    }
    // While it reads the processes, pagewise itself maps files, which `summed` does not count.
    agrees(48 << 20, || owner(&system(), "processes.file"), || summed("Pss_File"));
}

#[test]
fn anonymous_memory_is_that_of_the_kernel_and_of_smem() {
    let anonymous = || {
        let report = system();
        owner(&report, "processes.anonymous") + owner(&report, "anonymous.unread")
    };
    agrees(24 << 20, anonymous, || meminfo()["AnonPages"]);
    let Some(text) = tool("smem", &["-w", "-k", "-c", "area used"]) else { return };
    assert!(text.contains("userspace"), "{text}");
    // smem subtracts mapped files from the userspace memory that it counts as not cached.
    let free_of_smem = || {
        let text = tool("smem", &["-w", "-c", "area used cache noncache"]).unwrap();
        let line = text.lines().find(|line| line.starts_with("free memory")).unwrap();
        line.split_whitespace().rev().nth(2).unwrap().parse::<u64>().unwrap() << 10
    };
    agrees(64 << 20, || owner(&system(), "free"), || meminfo()["MemFree"]);
    agrees(64 << 20, || owner(&system(), "free"), free_of_smem);
}

#[test]
fn caches_are_those_of_free() {
    /// Returns the columns of the line of memory: total, used, free, shared, buffers, cache,
    /// available.
    fn free() -> Option<Vec<u64>> {
        let text = tool("free", &["-b", "-w"])?;
        let line = text.lines().find(|line| line.starts_with("Mem:")).unwrap();
        Some(line.split_whitespace().skip(1).map(|it| it.parse().unwrap()).collect())
    }
    // Other programs allocate during the test: the value in the report lies between the values of
    // two calls of `free`.
    if free().is_none() {
        return;
    }
    repeat(|| {
        let before = free().unwrap();
        let report = system();
        let after = free().unwrap();
        let sum = |ids: &[&str]| ids.iter().map(|id| owner(&report, id)).sum::<u64>();
        // `free` counts reclaimable slab, and all mapped files and tmpfs, as cache.
        let cached = [
            "cache.files",
            // Files that processes of other users map.
            "cache.mapped_unread",
            "processes.file",
            "shmem.unmapped",
            "processes.shmem",
            "slab.reclaimable",
        ];
        let ours = [
            (0, number(&report, "total"), 0),
            (2, owner(&report, "free"), 96 << 20),
            (3, sum(&["shmem.unmapped", "processes.shmem"]), 96 << 20),
            (4, owner(&report, "cache.devices"), 96 << 20),
            (5, sum(&cached), 96 << 20),
        ];
        let differing: Vec<_> = ours
            .into_iter()
            .map(|(column, ours, tolerance)| {
                (column, ours, tolerance, before[column], after[column])
            })
            .filter(|&(_, ours, tolerance, before, after)| {
                ours + tolerance < before.min(after) || ours > before.max(after) + tolerance
            })
            .collect();
        if differing.is_empty() {
            return Ok(());
        }
        Err(format!("column, ours, tolerance, `free` before and after: {differing:?}"))
    });
}

#[test]
fn slabs_are_those_of_slabinfo() {
    if !is_root() {
        return;
    }
    if fs::read_to_string("/proc/slabinfo").is_err() {
        return skip(&Lack::KernelFile("/proc/slabinfo"));
    }
    repeat(compare_slabs);
}

fn compare_slabs() -> Result<(), String> {
    let text = fs::read_to_string("/proc/slabinfo").unwrap();
    let report = system();
    let page = number(&report, "page_size");
    let mut differ = 0;
    let rows = report["slabs"].as_array().unwrap();
    for line in text.lines().skip(2) {
        let words: Vec<&str> = line.split_whitespace().collect();
        let pages: u64 = words[5].parse().unwrap();
        let slabs: u64 = words[14].parse().unwrap();
        let row = rows.iter().find(|row| row["name"] == words[0]).ok_or(line)?;
        differ +=
            u64::from(row["bytes"].as_u64().unwrap().abs_diff(pages * slabs * page) > 1 << 20);
    }
    if differ > 8 {
        return Err(format!("{differ} caches changed by more than 1 MiB"));
    }
    let sum: u64 = rows.iter().map(|row| row["bytes"].as_u64().unwrap()).sum();
    let kernel = owner(&report, "slab.reclaimable") + owner(&report, "slab.unreclaimable");
    // Large blocks of slab memory, of several pages each, are in no cache.
    assert!(sum <= kernel + (16 << 20), "{sum} {kernel}");
    Ok(())
}

#[test]
fn kernel_memory_is_that_of_vmallocinfo_and_zoneinfo() {
    if !is_root() {
        return;
    }
    let page = number(&system(), "page_size");
    let areas = || {
        let text = fs::read_to_string("/proc/vmallocinfo").unwrap();
        let areas = text.lines().map(str::split_whitespace);
        let mapped = areas.filter(|words| words.clone().any(|word| word == "vmalloc"));
        let pages = mapped.flat_map(|mut words| words.find_map(|it| it.strip_prefix("pages=")));
        pages.map(|it| it.parse::<u64>().unwrap()).sum::<u64>() * page
    };
    if fs::read_to_string("/proc/vmallocinfo").is_ok() {
        let ours = || {
            let report = system();
            owner(&report, "vmalloc") + owner(&report, "kernel.stacks")
        };
        agrees(8 << 20, ours, areas);
    }
    let per_cpu_lists = || {
        let text = fs::read_to_string("/proc/zoneinfo").unwrap();
        let counts = text.lines().filter_map(|line| line.trim().strip_prefix("count:"));
        counts.map(|it| it.trim().parse::<u64>().unwrap()).sum::<u64>() * page
    };
    agrees(64 << 20, || owner(&system(), "free.per_cpu"), per_cpu_lists);
}

/// Returns the growth of the owner `page_tables` by a process with 2,000 page tables, and the size
/// of these tables by the status of the process.
fn growth_by_page_tables() -> (u64, u64) {
    let before = owner(&system(), "page_tables");
    // The program touches a page in each of 2,000 ranges, each of which has a page table of its
    // own.
    let mut child = Command::new(program("oomed"))
        .args(["tables=2000", "wait"])
        .current_dir(disk())
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut line = String::new();
    BufReader::new(child.stdout.as_mut().unwrap()).read_line(&mut line).unwrap();
    let status = fs::read_to_string(format!("/proc/{}/status", child.id())).unwrap();
    let tables = status.lines().find_map(|line| line.strip_prefix("VmPTE:")).unwrap();
    let tables: u64 = tables.trim().trim_end_matches(" kB").parse().unwrap();
    let after = owner(&system(), "page_tables");
    child.kill().unwrap();
    child.wait().unwrap();
    assert!(tables >= 2000 * 4, "{status}");
    (after.saturating_sub(before), tables << 10)
}

#[test]
fn page_tables_of_a_process_are_owned_as_its_status_has_them() {
    repeat(|| {
        let (ours, kernels) = growth_by_page_tables();
        if ours.abs_diff(kernels) <= 2 << 20 { Ok(()) } else { Err(format!("{ours} {kernels}")) }
    });
}

#[test]
fn stacks_of_the_kernel_are_those_of_all_threads() {
    // The first PID namespace has this inode in all kernels.
    if fs::read_link("/proc/self/ns/pid").is_ok_and(|it| it != Path::new("pid:[4026531836]")) {
        return skip(&Lack::Machine("processes of other PID namespaces are not seen"));
    }
    if !cfg!(target_arch = "x86_64") {
        return skip(&Lack::Machine("the size of a stack depends on the kernel"));
    }
    let threads = || -> u64 {
        let processes = fs::read_dir("/proc").unwrap().flatten();
        let statuses = processes.map(|it| fs::read_to_string(it.path().join("status")));
        let threads = statuses.flatten().filter_map(|status| {
            let line = status.lines().find_map(|line| line.strip_prefix("Threads:"))?;
            line.trim().parse::<u64>().ok()
        });
        threads.sum()
    };
    agrees(2 << 20, || owner(&system(), "kernel.stacks"), || threads() * (16 << 10));
}

#[test]
fn a_process_a_memfd_and_a_cached_file_are_found_with_their_sizes() {
    const SIZE: usize = 48 << 20;
    repeat(|| {
        let before = system();
        let flags = rustix::fs::MemfdFlags::CLOEXEC;
        let memfd = rustix::fs::memfd_create("pagewise-test-system", flags).unwrap();
        let mut file = file_of(&memfd);
        file.write_all(&vec![7; SIZE]).unwrap();
        let after = system();
        let rows = after["shmem"].as_array().unwrap();
        let is_ours =
            |it: &&Value| it["name"].as_str().unwrap().starts_with("pagewise-test-system of");
        assert_eq!(rows.iter().find(is_ours).unwrap()["bytes"], SIZE as u64);
        // Other programs may release shared memory during the test.
        let [before, after] = [before, after].map(|it| owner(&it, "shmem.unmapped"));
        if after + (4 << 20) >= before + SIZE as u64 {
            return Ok(());
        }
        Err(format!("{before} bytes before, {after} after"))
    });
}

/// Opens a descriptor again as a file.
fn file_of(descriptor: &impl AsRawFd) -> File {
    fs::OpenOptions::new()
        .write(true)
        .open(format!("/proc/self/fd/{}", descriptor.as_raw_fd()))
        .unwrap()
}

#[test]
fn a_file_in_the_page_cache_is_found_with_the_cgroup_that_pays_for_it() {
    let folder = tempfile::tempdir_in(disk()).unwrap();
    let path = folder.path().join("cached");
    let cgroup = TestCgroup::make("files");
    let enter = cgroup.as_ref().map(|it| format!("echo $$ >{}/cgroup.procs", it.folder.display()));
    let enter = enter.unwrap_or_else(|| "true".into());
    let script = format!("{enter} && head -c {} /dev/zero >{}", 40 << 20, path.display());
    assert!(Command::new("sh").args(["-c", &script]).status().unwrap().success());
    // The kernel reclaims pages that it has written to the disk.
    let cached = || -> Option<u64> {
        let text = tool("fincore", &["-b", "-n", "-o", "RES", path.to_str()?])?;
        Some(text.trim().parse().unwrap())
    };
    let options = ["--cgroup", "--json", "--for", "0s", "--files", "60s", "--limit", "all"];
    let Some(before) = cached() else { return };
    let report = json(&[&["system"], &options[..]].concat());
    let Some(after) = cached() else { return };
    let files = &report["files"];
    if files["absent"].is_string() {
        return skip(&Lack::Root);
    }
    if files["incomplete"] == true {
        return skip(&Lack::Chance("the file systems are too large for a test"));
    }
    let largest = files["largest"].as_array().unwrap();
    let Some(row) = largest.iter().find(|it| it["path"] == path.to_str().unwrap()) else {
        return skip(&Lack::Machine(
            "the folder of the tests is on no device, or many files are larger",
        ));
    };
    let found = row["cached"].as_u64().unwrap();
    assert!((before.min(after)..=before.max(after)).contains(&found), "{before}, {found}, {after}");
    if found == 0 {
        return skip(&Lack::Chance("the kernel reclaimed the file"));
    }
    if let Some(cgroup) = cgroup.filter(|_| Path::new("/proc/kpagecgroup").exists()) {
        let charged = row["charged"].to_string();
        assert!(charged.contains(&cgroup.path()), "{charged}");
    }
}

#[test]
fn a_process_with_much_memory_is_among_the_parts() {
    // Up to 64 MiB, `smaps` is read, which needs no rights that an ordinary user lacks.
    let fixture = Fixture::start("big", &["56"]);
    let report = system();
    let owners = report["owners"].as_array().unwrap();
    let parts = owners.iter().flat_map(|it| it["detail"].as_array().unwrap().clone());
    let name = format!("({})", fixture.pid);
    assert!(
        parts.clone().any(|part| part["name"].as_str().unwrap().ends_with(&name)),
        "{owners:?}"
    );
}

#[test]
fn headroom_is_in_order_and_available_is_the_kernels() {
    let report = system();
    let room = |key: &str| number(&report, &format!("headroom.{key}"));
    assert!(room("before_reclaim") <= room("before_oom"));
    let before_swap = || number(&system(), "headroom.before_swap");
    agrees(96 << 20, before_swap, || meminfo()["MemAvailable"]);
    let total = number(&report, "total");
    assert!(room("before_oom") <= total + meminfo()["SwapTotal"]);
    for key in ["pid", "name", "badness", "frees"] {
        assert!(!report["oom"]["next"][key].is_null(), "{key}");
    }
}

/// Creates a tree with these files.
fn tree(files: &[(&str, &str)]) -> tempfile::TempDir {
    let tree = tempfile::tempdir().unwrap();
    for (name, text) in files {
        let path = tree.path().join(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    }
    tree
}

fn of_tree(command: &[&str], tree: &Path) -> Value {
    json(&[command, &["--json", "--root", tree.to_str().unwrap()]].concat())
}

#[test]
fn a_copied_tree_has_its_own_account() {
    let copied = tree(&[
        (
            "meminfo",
            "MemTotal: 1000 kB\nMemFree: 400 kB\nMemAvailable: 500 kB\nBuffers: 10 kB\nCached: 200 kB\nShmem: 50 kB\nAnonPages: 100 kB\nMapped: 30 kB\nSUnreclaim: 60 kB\nPercpu: 20 kB\n",
        ),
        (
            "kmsg",
            "[    0.1] setup_percpu: NR_CPUS:8 nr_cpumask_bits:2 nr_cpu_ids:2 nr_node_ids:1\n[    0.1] percpu: Embedded 1 pages/cpu s1 r0 d0 u4096\n",
        ),
        ("sysfs/page_size", "4096\n"),
        ("vmstat", "pswpin 1\npswpout 2\noom_kill 3\n"),
        (
            "7/status",
            "Name:\ta\nState:\tS (sleeping)\nUid:\t0\t0\t0\t0\nVmRSS:\t 90 kB\nThreads:\t1\n",
        ),
        (
            "7/smaps_rollup",
            "00400000-00500000 ---p 00000000 00:00 0 [rollup]\nRss: 90 kB\nPss: 85 kB\nPss_Anon: 70 kB\nPss_File: 15 kB\nPss_Shmem: 0 kB\nPrivate_Clean: 0 kB\nPrivate_Dirty: 70 kB\nAnonymous: 70 kB\nSwap: 0 kB\nLocked: 0 kB\n",
        ),
    ]);
    let report = of_tree(&["system"], copied.path());
    let kib = |id: &str| owner(&report, id) >> 10;
    assert_eq!((kib("processes.anonymous"), kib("processes.file")), (70, 15));
    assert_eq!((kib("anonymous.unread"), kib("percpu")), (30, 12));
    assert_eq!((kib("cache.files"), kib("shmem.unmapped")), (135, 50));
    assert_eq!(report["unaccounted"], (1000 - 400 - 10 - 200 - 100 - 60 - 12) << 10);
    assert_eq!(number(&report, "reclaim.oom_kills"), 3);
    assert!(report["headroom"]["before_reclaim"]["absent"].is_string(), "no zoneinfo");
    assert!(report["files"]["absent"].is_string() && report["pressure"]["absent"].is_string());
}

#[test]
fn a_tree_that_is_not_there_is_an_error() {
    for command in [&["system"][..], &["system", "--cgroup"], &["oom"]] {
        let out = pagewise(&[command, &["--root", "/nowhere"]].concat());
        assert_eq!(out.status.code(), Some(1), "{command:?}");
        assert!(String::from_utf8_lossy(&out.stderr).contains("/nowhere"), "{out:?}");
    }
}

#[test]
fn cgroups_are_those_of_the_kernel() {
    let report = pagewise(&["system", "--cgroup", "--json"]);
    if report.status.code() == Some(1) {
        let said = String::from_utf8_lossy(&report.stderr).into_owned();
        assert!(said.contains("cgroup"), "{said}");
        return skip(&Lack::Machine("no memory cgroup is mounted here"));
    }
    repeat(compare_cgroups);
}

fn compare_cgroups() -> Result<(), String> {
    let report = json(&["system", "--cgroup", "--json"]);
    let rows = report["cgroups"].as_array().unwrap();
    assert_eq!(rows[0]["path"], "/");
    let roots =
        [("/sys/fs/cgroup/memory", "memory.usage_in_bytes"), ("/sys/fs/cgroup", "memory.current")];
    for row in rows.iter().take(20) {
        let path = row["path"].as_str().unwrap();
        let Some(current) = row["current"].as_u64() else { continue };
        let read =
            |(root, name): &(&str, &str)| fs::read_to_string(format!("{root}{path}/{name}")).ok();
        let Some(text) = roots.iter().find_map(read) else { continue };
        let kernels: u64 = text.trim().parse().unwrap();
        if current.abs_diff(kernels) > 128 << 20 {
            return Err(format!("{path}: {current} {kernels}"));
        }
    }
    Ok(())
}

#[test]
fn a_copied_tree_of_version_2_is_a_tree_with_events_and_pressure() {
    let base = "sysfs/fs/cgroup";
    let file = |name: &str| format!("{base}/{name}");
    let pressure = "some avg10=1.00 avg60=2.50 avg300=0.10 total=9\nfull avg10=0.50 avg60=0.00 avg300=0.00 total=3\n";
    let files = [
        (file("cgroup.controllers"), "cpu memory\n"),
        (file("app/cgroup.procs"), "7\n"),
        (file("app/memory.current"), "1048576\n"),
        (file("app/memory.max"), "1048576\n"),
        (
            file("app/memory.stat"),
            "anon 900000\nfile 100000\nshmem 0\ninactive_file 4096\nkernel 48576\n",
        ),
        (file("app/memory.events"), "low 0\nhigh 0\nmax 12\noom 3\noom_kill 2\n"),
        (file("app/memory.pressure"), pressure),
        (file("app/memory.swap.current"), "8192\n"),
        (file("empty/memory.current"), "0\n"),
    ];
    let files: Vec<(&str, &str)> =
        files.iter().map(|(name, text)| (name.as_str(), *text)).collect();
    let copied = tree(&files);
    fs::create_dir_all(copied.path().join("7")).unwrap();
    let report = of_tree(&["system", "--cgroup"], copied.path());
    assert_eq!(report["version"], 2);
    let rows = report["cgroups"].as_array().unwrap();
    assert_eq!(rows.len(), 2, "the empty one is left out: {rows:?}");
    let app = &rows[1];
    assert_eq!(app["path"], "/app");
    assert_eq!((&app["limit_hits"], &app["oom_kills"]), (&12.into(), &2.into()));
    assert_eq!(app["working_set"], 1_048_576 - 4096);
    assert_eq!(app["pressure_some_avg60"], 0.025);
    assert_eq!((&app["swap"], &app["kernel"]), (&8192.into(), &48576.into()));
    assert_eq!(report["findings"][0]["id"], "near-limit");
}
