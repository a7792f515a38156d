//! Predictions of `pagewise oom` against real OOM kills of whole machines: a kernel under QEMU, in
//! which pagewise itself runs.
//!
//! Runs if `PAGEWISE_OOM` is `all`. The kernel is the file that `PAGEWISE_KERNEL` names, or the one
//! in `/boot`; see CONTRIBUTING.md.

use std::fmt::Write;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use pagewise_skip::{Lack, skip};
use serde_json::Value;

use super::fixture::{disk, static_program, tool};
use super::kills::SCENARIOS;

/// A machine that is not done after this has a defect; an emulated one is slow.
const MAX_SECONDS: &str = "560";
/// Marks in the output of the machine.
const BEGIN: &str = "=== scenario ";
const KILLED: &str = "=== killed";

/// Start of the first process of the machine.
const HEAD: &str = "\
#!/bin/busybox sh
/bin/busybox --install -s /bin
mount -t proc proc /proc
mount -t sysfs sysfs /sys
mount -t devtmpfs devtmpfs /dev
stty -F /dev/ttyS1 raw
cd /tmp
actor() {
    tail -f /dev/null | oomed $2 >/tmp/said.$1 2>&1 &
    until grep -q ready /tmp/said.$1; do sleep 0.05; done
}
push() {
    tail -f /dev/null | oomed adj=-1000 push=6 wait >/tmp/pushed 2>&1 &
    tries=0
    until grep -q ready /tmp/pushed || [ $tries -ge 40 ]; do sleep 0.05; tries=$((tries + 1)); done
}
finish() {
    dmesg -c | grep -E 'Killed process|] [[][ 0-9]*] ' >/dev/ttyS1
    killall -9 oomed tail
    sleep 0.3
    rm -f /tmp/said.* /tmp/oomed.file
}
";

/// The script of all scenarios that need no cgroup.
fn script() -> String {
    let mut script = HEAD.to_owned();
    // The first run reads pagewise into memory.
    let _ = writeln!(script, "pagewise system --json --for 0s >/dev/null");
    let _ = writeln!(script, "pagewise system --json --for 0s >/tmp/account");
    let _ = writeln!(script, "tr -d '\\n' </tmp/account >/dev/ttyS1; echo >/dev/ttyS1");
    for (at, scenario) in SCENARIOS.iter().enumerate() {
        if scenario.processes.iter().any(|(path, _)| !path.is_empty()) {
            continue;
        }
        let _ = writeln!(script, "dmesg -c >/dev/null");
        for (number, (_, arguments)) in scenario.processes.iter().enumerate() {
            let _ = writeln!(script, "actor {number} '{arguments}'");
        }
        let _ = writeln!(script, "echo '{BEGIN}{at}' >/dev/ttyS1");
        let _ = writeln!(script, "pagewise oom --json --for 0s --limit all >/tmp/forecast");
        let _ = writeln!(script, "tr -d '\\n' </tmp/forecast >/dev/ttyS1; echo >/dev/ttyS1");
        let _ = writeln!(script, "for step in $(seq 80); do");
        let _ = writeln!(script, "    push; dmesg | grep -q 'Killed process' && break");
        let _ = writeln!(script, "done");
        let _ = writeln!(script, "echo '{KILLED}' >/dev/ttyS1");
        let _ = writeln!(script, "finish");
    }
    script.push_str("sync\npoweroff -f\n");
    script
}

/// A kernel to boot.
fn kernel() -> Option<PathBuf> {
    if let Some(path) = std::env::var_os("PAGEWISE_KERNEL") {
        return Some(path.into());
    }
    let entries = fs::read_dir("/boot").into_iter().flatten().flatten();
    let mut kernels: Vec<PathBuf> = entries
        .map(|entry| entry.path())
        .filter(|path| {
            path.file_name().is_some_and(|it| it.to_string_lossy().starts_with("vmlinuz-"))
        })
        .collect();
    kernels.sort();
    kernels.pop()
}

/// Copies a program of this machine, and the libraries that it loads, into the machine.
fn install(root: &Path, program: &Path, name: &str) {
    let target = root.join("bin").join(name);
    let stripped = Command::new("strip").arg("-o").arg(&target).arg(program).status();
    if !stripped.is_ok_and(|status| status.success()) {
        fs::copy(program, &target).unwrap();
    }
    let listed = Command::new("ldd").arg(program).output().unwrap();
    for word in
        String::from_utf8_lossy(&listed.stdout).split_whitespace().filter(|it| it.starts_with('/'))
    {
        let inside = root.join(word.trim_start_matches('/'));
        fs::create_dir_all(inside.parent().unwrap()).unwrap();
        fs::copy(word, inside).unwrap();
    }
}

/// Packs an initramfs; `None`, with a message, if a tool is missing.
fn initramfs(folder: &Path) -> Option<PathBuf> {
    let root = folder.join("root");
    for name in ["bin", "dev", "proc", "sys", "tmp"] {
        fs::create_dir_all(root.join(name)).unwrap();
    }
    let Some(busybox) =
        ["/bin/busybox", "/usr/bin/busybox"].into_iter().find(|it| Path::new(it).exists())
    else {
        skip(&Lack::Tool("busybox"));
        return None;
    };
    fs::copy(busybox, root.join("bin/busybox")).unwrap();
    fs::copy(static_program("oomed")?, root.join("bin/oomed")).unwrap();
    install(&root, Path::new(env!("CARGO_BIN_EXE_pagewise")), "pagewise");
    fs::write(root.join("init"), script()).unwrap();
    fs::set_permissions(root.join("init"), fs::Permissions::from_mode(0o755)).unwrap();
    let packed = folder.join("initramfs");
    let pack = "find . | busybox cpio -o -H newc 2>/dev/null | gzip -1 >../initramfs";
    let done = Command::new("sh").args(["-c", pack]).current_dir(&root).status().unwrap();
    assert!(done.success());
    Some(packed)
}

/// Boots the machine and returns what it sent.
fn boot(kernel: &Path, initramfs: &Path, folder: &Path) -> String {
    let (console, sent) = (folder.join("console"), folder.join("sent"));
    let serial = |path: &Path| format!("file:{}", path.display());
    let status = Command::new("timeout")
        .args([MAX_SECONDS, "qemu-system-x86_64", "-accel", "tcg", "-m", "320M", "-smp", "2"])
        .args(["-nodefaults", "-display", "none", "-no-reboot"])
        .args(["-serial", &serial(&console), "-serial", &serial(&sent)])
        .args(["-append", "console=ttyS0 quiet panic=-1 rdinit=/init"])
        .arg("-kernel")
        .arg(kernel)
        .arg("-initrd")
        .arg(initramfs)
        .stdin(Stdio::null())
        .status()
        .unwrap();
    let said = fs::read(&console).unwrap_or_default();
    assert!(status.success(), "{status}: {}", String::from_utf8_lossy(&said));
    String::from_utf8_lossy(&fs::read(&sent).unwrap_or_default()).into_owned()
}

/// The process of the first kill of a text. If the first thread of a process has ended, the kernel
/// names another thread; the table of processes has the process.
fn killed(text: &str) -> Option<u64> {
    let id: u64 = text.split_once("Killed process ")?.1.split(' ').next()?.parse().ok()?;
    let group = |line: &str| {
        let (_, row) = line.split_once("] [")?;
        let (thread, rest) = row.split_once(']')?;
        let is_it = thread.trim().parse() == Ok(id);
        is_it.then(|| rest.split_whitespace().nth(1)?.parse().ok())?
    };
    text.lines().find_map(group).or(Some(id))
}

#[test]
fn whole_machines_kill_the_predicted_process() {
    if std::env::var_os("PAGEWISE_OOM").is_none_or(|it| it != "all") {
        return;
    }
    if tool("qemu-system-x86_64", &["--version"]).is_none() {
        return;
    }
    let Some(kernel) = kernel() else {
        return skip(&Lack::Machine("PAGEWISE_KERNEL is not set, and /boot has no kernel"));
    };
    let folder = tempfile::tempdir_in(disk()).unwrap();
    let Some(initramfs) = initramfs(folder.path()) else { return };
    let sent = boot(&kernel, &initramfs, folder.path());
    let account = sent.lines().next().unwrap_or_default();
    let account: Value = serde_json::from_str(account).unwrap_or_else(|_| panic!("{sent}"));
    let lost = account["unaccounted"].as_i64().unwrap().unsigned_abs();
    let total = account["total"].as_u64().unwrap();
    eprintln!("Linux {}: {lost} of {total} bytes unaccounted", account["kernel"]);
    assert!(lost <= total / 100, "{account}");
    let (mut right, mut wrong) = (0, Vec::new());
    for part in sent.split(BEGIN).skip(1) {
        let (number, rest) = part.split_once('\n').unwrap();
        let name = SCENARIOS[number.trim().parse::<usize>().unwrap()].name;
        let (forecast, log) = rest.split_once(KILLED).unwrap_or((rest, ""));
        let forecast: Value = serde_json::from_str(forecast.trim()).unwrap_or_default();
        let predicted = forecast["next"]["pid"].as_u64();
        let killed = killed(log);
        eprintln!("{name}: predicted {predicted:?}, killed {killed:?}");
        if predicted.is_some() && predicted == killed {
            right += 1;
        } else {
            wrong.push(format!("{name}: predicted {predicted:?}, killed {killed:?}: {log}"));
        }
    }
    eprintln!("{right} of {} predictions were right", right + wrong.len());
    assert!(right >= 10 && wrong.is_empty(), "{wrong:#?}\n{sent}");
}
