//! Predictions of `pagewise oom` against real OOM kills of whole machines: a kernel under QEMU, in
//! which pagewise itself runs.
//!
//! Runs if `PAGEWISE_OOM` is `all`. The kernel is the file that `PAGEWISE_KERNEL` names, or the one
//! in `/boot`; see CONTRIBUTING.md.

use std::fmt::Write;

use pagewise_model::Bytes;
use pagewise_vm::GuestProgram;
use serde_json::Value;

use super::fixture::machine::machine;
use super::fixture::static_program;
use super::kills::SCENARIOS;

/// Marks in the output of the machine, each at the beginning of a line: a report can have the
/// script in it, as the command line of a process.
const BEGIN: &str = "=== scenario ";
const KILLED: &str = "=== killed";

/// Functions of the script of the machine. The shell has the lowest badness, so the kernel would
/// kill it last. `push` allocates memory in a process that is not killed. The last pushes are
/// small, so that one kill frees enough memory for them.
const HEAD: &str = "\
cd /tmp
echo -500 >/proc/$$/oom_score_adj
actor() {
    tail -f /dev/null | {
        echo 0 >/proc/self/oom_score_adj
        exec oomed $2
    } >/tmp/said.$1 2>&1 &
    until grep -q ready /tmp/said.$1; do sleep 0.05; done
}
push() {
    tail -f /dev/null | oomed adj=-1000 push=$1 wait >/tmp/pushed 2>&1 &
    tries=0
    until grep -q ready /tmp/pushed || [ $tries -ge 40 ]; do sleep 0.05; tries=$((tries + 1)); done
}
fill() {
    for step in $(seq $(awk '/MemAvailable/ { print int($2 / 16384 - 2) }' /proc/meminfo)); do
        push 16
    done
}
finish() {
    dmesg -c | grep -E 'Killed process|] [[][ 0-9]*] '
    killall -9 oomed tail
    sleep 0.3
    rm -f /tmp/said.* /tmp/oomed.file
}
";

/// Returns the script of all scenarios that need no cgroup.
fn script() -> String {
    let mut script = HEAD.to_owned();
    // The first run loads pagewise into the page cache.
    let _ = writeln!(script, "pagewise system --json --for 0s >/dev/null");
    let _ = writeln!(script, "pagewise system --json --for 0s >/tmp/account");
    let _ = writeln!(script, "tr -d '\\n' </tmp/account; echo");
    for (at, scenario) in SCENARIOS.iter().enumerate() {
        if scenario.processes.iter().any(|(path, _)| !path.is_empty()) {
            continue;
        }
        let _ = writeln!(script, "dmesg -c >/dev/null");
        for (number, (_, arguments)) in scenario.processes.iter().enumerate() {
            let _ = writeln!(script, "actor {number} '{arguments}'");
        }
        let _ = writeln!(script, "echo '{BEGIN}{at}'");
        let _ = writeln!(script, "pagewise oom --json --for 0s --limit all >/tmp/forecast");
        let _ = writeln!(script, "tr -d '\\n' </tmp/forecast; echo");
        let _ = writeln!(script, "fill");
        let _ = writeln!(script, "for step in $(seq 120); do");
        let _ = writeln!(script, "    push 1; dmesg | grep -q 'Killed process' && break");
        let _ = writeln!(script, "done");
        let _ = writeln!(script, "echo '{KILLED}'");
        let _ = writeln!(script, "finish");
    }
    script
}

/// Boots the machine and returns its output; `None`, after recording a skip, without QEMU, a kernel
/// or a static C library.
fn output_of_machine() -> Option<String> {
    let oomed = static_program("oomed")?;
    let mut machine = machine(&script())?;
    machine.memory = Bytes::mib(448);
    machine.cpus = 2;
    machine.programs.push(GuestProgram::new(&oomed, "/bin/oomed"));
    let result = machine.run(&|| false).unwrap();
    assert!(result.success(), "{}", result.failure());
    Some(String::from_utf8_lossy(&result.stdout).into_owned())
}

/// Returns the process of the first kill in a text. If the first thread of a process has ended, the
/// kernel names another thread; the table of processes has the process.
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
    let Some(sent) = output_of_machine() else { return };
    let account = sent.lines().next().unwrap_or_default();
    let account: Value = serde_json::from_str(account).unwrap_or_else(|_| panic!("{sent}"));
    let lost = account["unaccounted"].as_i64().unwrap().unsigned_abs();
    let total = account["total"].as_u64().unwrap();
    eprintln!("Linux {}: {lost} of {total} bytes unaccounted", account["kernel"]);
    assert!(lost <= total / 100, "{account}");
    let (mut right, mut wrong) = (0, Vec::new());
    for part in sent.split(&format!("\n{BEGIN}")).skip(1) {
        let (number, rest) = part.split_once('\n').unwrap_or_else(|| panic!("{sent}"));
        let name = SCENARIOS[number.trim().parse::<usize>().unwrap()].name;
        let (forecast, log) = rest.split_once(&format!("\n{KILLED}")).unwrap_or((rest, ""));
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
