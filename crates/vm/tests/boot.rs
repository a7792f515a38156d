//! A machine boots, returns the results of its command, and leaves no process and no file on the
//! host.

#![expect(clippy::unwrap_used, reason = "what fails here fails a test")]

use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use pagewise_model::Bytes;
use pagewise_skip::{Lack, skip};
use pagewise_vm::{
    GuestFile, GuestKernel, GuestProgram, VirtualMachine, VmEnd, VmRequirement, missing_requirement,
};

/// Environment variable that marks a process that only boots a machine, for the test that kills
/// this process.
const ONLY_BOOTS: &str = "PAGEWISE_TEST_ONLY_BOOTS";

/// Time limit of a machine: an idle host boots it in seconds, a busy host needs longer.
const MAX_TIME: Duration = Duration::from_secs(400);

/// A machine that runs a script; `None`, with a message, if the host cannot boot one.
fn machine(script: &str) -> Option<VirtualMachine> {
    match missing_requirement() {
        None => {}
        Some(VmRequirement::Qemu(_)) => {
            skip(&Lack::Tool("qemu-system-x86_64"));
            return None;
        }
        Some(VmRequirement::Busybox) => {
            skip(&Lack::Ability { of: "busybox", what: "it is not linked statically" });
            return None;
        }
        Some(other) => {
            skip(&Lack::Machine(&other.to_string()));
            return None;
        }
    }
    let command = ["sh", "-c", script].map(str::to_owned);
    let machine = VirtualMachine::new(GuestKernel::find().unwrap(), command.to_vec());
    Some(VirtualMachine { time_limit: MAX_TIME, memory: Bytes::mib(256), ..machine })
}

#[test]
fn a_machine_returns_output_status_and_files() {
    let script = "cat /given; echo error >&2
        mkdir $PAGEWISE_RESULTS/folder; echo result >$PAGEWISE_RESULTS/folder/file
        ls -d /sys/devices/system/node/node* | wc -l; nproc
        cat /sys/fs/cgroup/cgroup.controllers; cat /sys/block/vda/size
        /bin/own --list | grep a_machine_returns; cat /proc/cmdline; exit 3";
    let Some(machine) = machine(script) else { return };
    let own = std::env::current_exe().unwrap();
    let machine = VirtualMachine {
        cpus: 2,
        nodes: 2,
        disks: vec![Bytes::mib(1)],
        kernel_options: "thp_anything=1".to_owned(),
        files: vec![GuestFile::new("/given", 0o644, "content\n")],
        programs: vec![GuestProgram { host: own, guest: "/bin/own".to_owned(), symbols: false }],
        ..machine
    };
    let result = machine.run(&|| false).unwrap();
    let stdout = String::from_utf8_lossy(&result.stdout).into_owned();
    assert_eq!(result.end, VmEnd::Exited(3), "{}", result.failure());
    let lines: Vec<&str> = stdout.lines().collect();
    assert_eq!(lines[..3], ["content", "2", "2"], "{stdout}");
    assert!(lines[3].contains("memory"), "{stdout}");
    assert_eq!(lines[4], "2048", "{stdout}");
    assert!(lines[5].contains("a_machine_returns_output_status_and_files"), "{stdout}");
    assert!(lines[6].contains("thp_anything=1"), "{stdout}");
    assert_eq!(result.stderr, b"error\n");
    assert_eq!(result.file("folder/file"), Some(&b"result\n"[..]));
}

#[test]
fn a_panic_of_the_kernel_is_a_result() {
    let Some(machine) = machine("echo before; echo c >/proc/sysrq-trigger; sleep 9") else {
        return;
    };
    let result = machine.run(&|| false).unwrap();
    assert!(
        matches!(&result.end, VmEnd::Panicked(message) if message.contains("sysrq")),
        "{result:?}"
    );
    assert_eq!(result.stdout, b"before\n");
}

#[test]
fn a_machine_ends_at_its_time_limit_and_when_interrupted() {
    let Some(machine) = machine("sleep 1000") else { return };
    let machine = VirtualMachine { time_limit: Duration::from_millis(300), ..machine };
    assert_eq!(machine.run(&|| false).unwrap().end, VmEnd::TimedOut);
    assert_eq!(machine.run(&|| true).unwrap().end, VmEnd::Interrupted);
}

#[test]
fn a_machine_ends_with_the_process_that_booted_it() {
    if std::env::var_os(ONLY_BOOTS).is_some() {
        machine("sleep 1000").unwrap().run(&|| false).unwrap();
        return;
    }
    if machine("").is_none() {
        return;
    }
    let own = std::env::current_exe().unwrap();
    let mut command = Command::new(own);
    command.args(["--exact", "a_machine_ends_with_the_process_that_booted_it"]);
    command.env(ONLY_BOOTS, "1").stdin(Stdio::null()).stdout(Stdio::null());
    let mut booting = command.spawn().unwrap();
    let deadline = Instant::now() + MAX_TIME;
    let qemu = loop {
        if let Some(qemu) = qemu_of(booting.id()) {
            break qemu;
        }
        assert!(Instant::now() < deadline, "QEMU does not start");
        thread::sleep(Duration::from_millis(5));
    };
    booting.kill().unwrap();
    booting.wait().unwrap();
    while stat(qemu).is_some() {
        assert!(Instant::now() < deadline, "QEMU {qemu} is still there");
        thread::sleep(Duration::from_millis(5));
    }
}

/// PID of a QEMU that a process has started.
fn qemu_of(parent: u32) -> Option<u32> {
    let processes = fs::read_dir("/proc").unwrap().flatten();
    let pids = processes.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    pids.into_iter().find(|pid| {
        stat(*pid).is_some_and(|(name, ppid)| ppid == parent && name.starts_with("qemu"))
    })
}

/// Name and parent of a process. `None` if the process has ended, or is a zombie.
fn stat(pid: u32) -> Option<(String, u32)> {
    let stat = fs::read_to_string(Path::new("/proc").join(pid.to_string()).join("stat")).ok()?;
    let (name, rest) = stat.split_once('(')?.1.rsplit_once(") ")?;
    let mut fields = rest.split(' ');
    let is_zombie = fields.next()? == "Z";
    let parent = fields.next()?.parse().ok()?;
    (!is_zombie).then(|| (name.to_owned(), parent))
}
