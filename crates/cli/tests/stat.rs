//! `pagewise stat`: its numbers against perf, GNU time and programs with known costs. The measured
//! command runs as without pagewise.

#![expect(clippy::unwrap_used, reason = "what fails here fails a test")]

mod fixture;

use std::io::Write;
use std::process::{Command, Output, Stdio};

use pagewise_skip::{Lack, is_root, skip};
use serde_json::Value;

use fixture::{disk, json, pagewise, program, tool};

/// Tolerance in page faults for the difference of two runs: the loader places libraries differently
/// each time, which changes the count slightly.
const SLACK: f64 = 6.0;

fn costs(words: &[&str]) -> Vec<String> {
    let program = program("costs");
    let words = words.iter().map(|word| (*word).to_owned());
    std::iter::once(program.to_str().unwrap().to_owned()).chain(words).collect()
}

fn stat(options: &[&str], command: &[String]) -> Value {
    let mut words = vec!["stat", "--json"];
    words.extend(options);
    words.push("--");
    words.extend(command.iter().map(String::as_str));
    json(&words)
}

fn metric<'v>(report: &'v Value, name: &str) -> &'v Value {
    let metrics = report["metrics"].as_array().unwrap();
    let found = metrics.iter().find(|metric| metric["name"] == name);
    found.unwrap_or_else(|| panic!("no metric {name}"))
}

fn number(report: &Value, name: &str, key: &str) -> f64 {
    let metric = metric(report, name);
    metric[key].as_f64().unwrap_or_else(|| panic!("{key} of {metric}"))
}

fn is_near(a: f64, b: f64) -> bool {
    (a - b).abs() <= SLACK
}

#[test]
fn touching_n_pages_costs_n_faults_in_children_too() {
    let faults = |words: &[&str]| {
        let report = stat(&["-n", "5"], &costs(words));
        ["minflt", "page_faults"].map(|name| number(&report, name, "min"))
    };
    let [none, some, in_children] = [&["0"][..], &["3000"], &["0", "1000"]].map(faults);
    for at in 0..2 {
        assert!(is_near(some[at] - none[at], 3000.0), "{none:?} {some:?}");
        // Each of two children touches 1,000 pages, and copies the other pages that it writes.
        let added = in_children[at] - none[at];
        assert!((2000.0..2200.0).contains(&added), "{none:?} {in_children:?}");
    }
}

#[test]
fn peak_res_is_the_programs_and_has_the_floor_of_a_small_process() {
    let report = stat(&[], &costs(&["20000"]));
    let peak = number(&report, "peak_res", "median");
    let touched = 20_000.0 * rustix::param::page_size() as f64;
    assert!((touched..touched + 8e6).contains(&peak), "{peak}");
    // The floor is the RES of pagewise itself. At a fault, the kernel maps the pages of the file
    // around it: more of them if the page cache has this file in large folios.
    let floor = report["peak_res_floor"].as_f64().unwrap();
    assert!(floor < touched / 4.0, "{floor}");
}

#[test]
fn rusage_equals_what_gnu_time_says() {
    let command = costs(&["5000", "0", "4096"]);
    let words: Vec<&str> =
        ["-f", "%R %F %O %I %M %x"].into_iter().chain(command.iter().map(String::as_str)).collect();
    let run = || {
        let output = Command::new("/usr/bin/time").args(&words).current_dir(disk()).output();
        let Ok(output) = output else {
            skip(&Lack::Tool("/usr/bin/time"));
            return None;
        };
        let said = String::from_utf8(output.stderr).unwrap();
        Some(said.split_whitespace().map(|word| word.parse::<f64>().unwrap()).collect::<Vec<_>>())
    };
    // The first run reads the program from disk.
    let Some(theirs) = run().and_then(|_| run()) else { return };
    let output = in_folder(&["stat", "-n", "3", "--json", "--"], &command);
    let report: Value = serde_json::from_slice(&output.stdout).unwrap();
    let ours =
        ["minflt", "majflt", "oublock", "inblock"].map(|name| number(&report, name, "median"));
    // GNU time also counts the faults of its forked copy before execve.
    assert!((0.0..60.0).contains(&(theirs[0] - ours[0])), "{ours:?} {theirs:?}");
    assert_eq!(ours[1..], theirs[1..4], "{ours:?} {theirs:?}");
    assert!(ours[2] >= 4096.0 || ours[2] == 0.0, "{ours:?}");
    let peak = number(&report, "peak_res", "median") / 1024.0;
    assert!((peak - theirs[4]).abs() < 1024.0, "{peak} {theirs:?}");
}

/// Runs pagewise in a folder on a disk.
fn in_folder(options: &[&str], command: &[String]) -> Output {
    let output = Command::new(env!("CARGO_BIN_EXE_pagewise"))
        .args(options)
        .args(command)
        .current_dir(disk())
        .stdin(Stdio::null())
        .output()
        .unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    output
}

#[test]
fn software_events_equal_what_perf_counts() {
    let command = costs(&["4000", "500"]);
    let events = "page-faults,minor-faults,major-faults,alignment-faults,emulation-faults";
    let mut words = vec!["stat", "-x,", "-r", "1", "-e", events, "--"];
    words.extend(command.iter().map(String::as_str));
    let mut theirs = [f64::INFINITY; 5];
    // The number of faults depends on where the loader puts libraries: the fewest of six runs are
    // compared.
    for _ in 0..6 {
        let Ok(output) = Command::new("perf").args(&words).output() else {
            return skip(&Lack::Tool("perf"));
        };
        let said = String::from_utf8(output.stderr).unwrap();
        let counts: Vec<f64> =
            said.lines().filter_map(|line| line.split(',').next()?.parse().ok()).collect();
        let Ok(counts) = <[f64; 5]>::try_from(counts) else {
            return skip(&Lack::Ability { of: "perf", what: &said });
        };
        theirs = std::array::from_fn(|event| theirs[event].min(counts[event]));
    }
    let names =
        ["page_faults", "minor_faults", "major_faults", "alignment_faults", "emulation_faults"];
    let report = stat(&["--events", &names.join(","), "-n", "6"], &command);
    for (name, theirs) in names.iter().zip(theirs) {
        let ours = number(&report, name, "min");
        assert!(is_near(ours, theirs), "{name}: {ours}, perf {theirs}");
    }
}

#[test]
fn tracepoints_are_counted_by_field_and_add_up() {
    if !is_root() {
        return;
    }
    let events = "page_faults,page_fault_user,page_fault_kernel,tlb_flush_local_mm,tlb_flush_local,\
                  tlb_flush_remote_sent,tlb_flush_task_switch,tlb_flush_remote_received,tlb_flush_wrong_cpu,tlb:tlb_flush,kmem:mm_page_alloc,mm_page_alloc";
    let report = stat(&["--events", events], &costs(&["2000"]));
    let of = |name: &str| number(&report, name, "median");
    assert_eq!(of("page_fault_user") + of("page_fault_kernel"), of("page_faults"));
    assert!(of("mm_page_alloc") >= 2000.0 && of("mm_page_alloc") == of("kmem:mm_page_alloc"));
    let reasons =
        ["local_mm", "local", "remote_sent", "task_switch", "remote_received", "wrong_cpu"];
    let sum: f64 = reasons.iter().map(|reason| of(&format!("tlb_flush_{reason}"))).sum();
    // The counters start one after the other during `execve`, which also flushes the TLB.
    assert!((sum - of("tlb:tlb_flush")).abs() <= 2.0, "filters split what is counted: {sum}");
    assert!(sum > 0.0);
}

#[test]
fn shootdowns_are_the_commands_and_the_machines_row_has_them() {
    if std::thread::available_parallelism().unwrap().get() < 2 {
        return skip(&Lack::Cpus(2));
    }
    if !is_root() {
        return;
    }
    let times = 20_000.0;
    let command = ["env".to_owned(), format!("SHOOTDOWNS={times}")];
    let report = stat(&["-n", "3"], &[&command[..], &costs(&["0"])].concat());
    let caused = number(&report, "tlb_flush_remote_sent", "max");
    // If the other thread does not run, as on a busy machine, no CPU needs to be interrupted. A
    // count is scaled if the kernel counted for a part of the time only.
    let scaled = metric(&report, "tlb_flush_remote_sent")["scaled"].as_f64().unwrap_or(1.0);
    assert!((times * 0.05..times * 1.1 * scaled).contains(&caused), "{caused} {scaled}");
    let on_the_machine = number(&report, "tlb_shootdowns", "max");
    // Under KVM a CPU that its host has taken away is not interrupted: the host flushes for it.
    assert!(on_the_machine >= caused * 0.05, "{caused} {on_the_machine}");
    assert_eq!(metric(&report, "tlb_shootdowns")["scope"], "machine");
    let rate = number(&report, "shootdowns_per_s", "max");
    // One run may have the largest value of all three, so that only rounding separates the two.
    assert!(rate * 1.001 >= caused / number(&report, "wall", "max"), "{rate}");
}

#[test]
fn a_single_run_does_without_tracepoints_unless_asked() {
    let report = stat(&[], &costs(&[]));
    let why = metric(&report, "page_fault_user")["absent"].as_str().unwrap();
    assert!(why.contains("--events all"), "{why}");
    if is_root() {
        let asked = stat(&["--events", "usual"], &costs(&[]));
        assert!(number(&asked, "page_fault_user", "median") > 0.0);
        let twice = stat(&["-n", "2"], &costs(&[]));
        assert!(number(&twice, "page_fault_user", "median") > 0.0);
    }
}

#[test]
fn an_uncountable_event_has_a_reason_and_is_never_zero() {
    let report = stat(&["--events", "cycles,gpu/event=1/"], &costs(&[]));
    let metric_of_no_pmu = metric(&report, "gpu/event=1/");
    let why = metric_of_no_pmu["absent"].as_str().unwrap();
    assert!(why.len() > 10 && metric_of_no_pmu["median"].is_null(), "{metric_of_no_pmu}");
    let cycles = metric(&report, "cycles");
    match cycles["absent"].as_str() {
        Some(why) => assert!(why.contains("PMU") || why.contains("CPU"), "{why}"),
        None => assert!(cycles["median"].as_f64().unwrap() > 0.0, "{cycles}"),
    }
}

#[test]
fn an_event_of_a_pmu_is_the_same_by_name_and_by_terms() {
    const TSC: &str = "/sys/bus/event_source/devices/msr/events/tsc";
    if !is_root() {
        return;
    }
    let Ok(terms) = std::fs::read_to_string(TSC) else { return skip(&Lack::KernelFile(TSC)) };
    let by_terms = format!("msr/{}/", terms.trim());
    let command =
        ["sh", "-c", "i=0; while [ $i -lt 20000 ]; do i=$((i+1)); done"].map(str::to_owned);
    let events = format!("msr/tsc/,{by_terms},task_clock");
    let report = stat(&["--events", &events, "-n", "3"], &command);
    let [name, terms] = ["msr/tsc/", &by_terms].map(|name| number(&report, name, "median"));
    assert!(name > 1e6 && (name / terms - 1.0).abs() < 0.1, "{name} {terms}");
    // The TSC counts at a constant rate, between 0.5 and 10 GHz.
    let rate = name / number(&report, "task_clock", "median");
    assert!((5e8..1e10).contains(&rate), "{rate} a second");
}

#[test]
fn a_command_can_be_kept_on_one_cpu() {
    let script = "grep -q '^Cpus_allowed_list:\t0$' /proc/self/status";
    let report = json(&["stat", "--cpu", "0", "--json", "--", "sh", "-c", script]);
    assert_eq!((&report["cpu"], &report["exit_status"]), (&0.into(), &0.into()));
    let nowhere = pagewise(&["stat", "--cpu", "1023", "true"]);
    assert_eq!(nowhere.status.code(), Some(1));
    assert!(String::from_utf8_lossy(&nowhere.stderr).contains("CPU 1023"));
}

#[test]
fn every_failure_is_reported_and_the_status_returned() {
    for (script, status) in [("exit 0", 0), ("exit 3", 3), ("kill -TERM $$", 143)] {
        let output = pagewise(&["stat", "--json", "-n", "2", "--", "sh", "-c", script]);
        assert_eq!(output.status.code(), Some(status), "{script}");
        let report: Value = serde_json::from_slice(&output.stdout).unwrap();
        assert_eq!((&report["runs"], &report["exit_status"]), (&2.into(), &status.into()));
        let told = report["findings"].as_array().unwrap().iter().any(|f| f["id"] == "failed-runs");
        assert_eq!(told, status != 0, "{report}");
    }
    for (command, code) in [("/no/such/program", 127), ("no-such-program", 127), ("/", 126)] {
        let output = pagewise(&["stat", "--json", command]);
        let said = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(code), "{said}");
        assert!(said.contains(command) && output.stdout.is_empty(), "{said}");
    }
    for wrong in [
        &["stat"][..],
        &["stat", "-n", "0", "true"],
        &["stat", "-n", "x", "true"],
        &["stat", "--vs", "'", "true"],
    ] {
        assert_eq!(pagewise(wrong).status.code(), Some(2), "{wrong:?}");
    }
    let unknown = pagewise(&["stat", "--events", "no_such_event", "true"]);
    assert_eq!(unknown.status.code(), Some(1));
    assert!(String::from_utf8_lossy(&unknown.stderr).contains("pagewise events"));
}

#[test]
fn a_tracepoint_that_the_kernel_does_not_have_is_an_error_and_nothing_runs() {
    if !is_root() {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let ran = folder.path().join("ran");
    let (file, both) = (ran.to_str().unwrap(), "software,foo:bar");
    for events in ["foo:bar", "tlb:no_such_event", both] {
        let output = pagewise(&["stat", "-e", events, "--", "touch", file]);
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        if said.contains("tracefs") {
            return skip(&Lack::KernelFile("/sys/kernel/tracing/events"));
        }
        assert_eq!(output.status.code(), Some(1), "{events}: {said}");
        let name = events.rsplit(',').next().unwrap();
        assert!(said.contains(&format!("no event is called {name}\n")), "{events}: {said}");
        assert!(!ran.exists(), "{events}");
    }
    // An event in the table of pagewise is known, also if this machine cannot count it.
    for known in ["cycles", "dtlb_read_misses"] {
        let output = pagewise(&["stat", "-e", known, "--", "true"]);
        assert!(output.status.success(), "{known}: {output:?}");
    }
}

#[test]
fn standard_streams_are_the_commands() {
    let mut child = Command::new(env!("CARGO_BIN_EXE_pagewise"))
        .args(["stat", "--", "sh", "-c", "cat; echo to-stderr >&2"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    child.stdin.take().unwrap().write_all(b"through\0it\n").unwrap();
    let output = child.wait_with_output().unwrap();
    assert_eq!(output.stdout, b"through\0it\n");
    let said = String::from_utf8(output.stderr).unwrap();
    assert!(said.starts_with("to-stderr\n1 run of sh -c"), "{said}");
}

#[test]
fn a_command_needs_no_dashes_before_it_and_keeps_its_own() {
    let output =
        pagewise(&["stat", "--json", "-o", "/dev/null", "printf", "%s|", "-n", "--", "--json"]);
    assert_eq!(output.stdout, b"-n|--|--json|");
}

#[test]
fn two_interleaved_commands_are_distinguished() {
    let folder = tempfile::tempdir().unwrap();
    let log = folder.path().join("log");
    let script =
        |word: &str, pause: &str| format!("echo {word} >>{}; sleep {pause}", log.display());
    let (ours, other) = (script("A", "0.01"), script("B", "0.15"));
    let vs = format!("sh -c '{other}'");
    let words =
        ["stat", "-n", "9", "--warmup", "1", "--json", "--vs", &vs, "--", "sh", "-c", &ours];
    let report = json(&words);
    let order = std::fs::read_to_string(log).unwrap().replace('\n', "");
    assert_eq!(order, "AB".repeat(10));
    let ratio = &report["ratio"];
    assert_eq!((&ratio["name"], &ratio["verdict"]), (&"wall".into(), &"faster".into()), "{ratio}");
    let [low, median, high] = ["low", "median", "high"].map(|key| ratio[key].as_f64().unwrap());
    assert!(low <= median && median <= high && high < 1.0 && low > 0.01, "{ratio}");
    assert_eq!(report["other"]["exit_status"], 0);
    assert!(report["ratios"].as_array().unwrap().len() > 5);
}

#[test]
fn runs_go_on_until_the_median_is_known_or_time_is_up() {
    let report =
        json(&["stat", "-n", "auto", "--precision", "100", "--json", "--", "sleep", "0.005"]);
    let runs = report["runs"].as_u64().unwrap();
    assert!((10..100).contains(&runs), "the median is known after few runs: {runs}");
    let report = json(&[
        "stat",
        "-n",
        "auto",
        "--precision",
        "0.0001",
        "--for",
        "300ms",
        "--json",
        "--",
        "sleep",
        "0.01",
    ]);
    let runs = report["runs"].as_u64().unwrap();
    assert!((2..=30).contains(&runs), "{runs}");
}

#[test]
fn memory_is_sampled_over_the_whole_tree() {
    // Two programs run at the same time, also if the second one starts late.
    let peak = program("peak").display().to_string();
    let run = |script: String| {
        let output = pagewise(&["stat", "--sample=2ms", "--json", "--", "sh", "-c", &script]);
        serde_json::from_slice::<Value>(&output.stdout).unwrap()
    };
    let mib = f64::from(1 << 20);
    let report = run(format!("{peak} 64 2000 & {peak} 64 2000; wait"));
    let [pss, anon] = ["peak_pss", "peak_pss_anon"].map(|name| number(&report, name, "median"));
    assert!((128.0 * mib..140.0 * mib).contains(&pss) && anon >= 128.0 * mib, "{pss} {anon}");
    let report = run(format!("exec {peak} 64 2000"));
    let alone = number(&report, "peak_private_anon", "median");
    assert!((32.0 * mib..70.0 * mib).contains(&alone), "{alone}");
    let resident = &report["at_peak"]["private_anonymous"]["resident"];
    assert_eq!(resident.as_f64(), Some(alone), "{}", report["at_peak"]);
    let never = json(&["stat", "--sample=10s", "--json", "true"]);
    assert!(metric(&never, "peak_pss")["absent"].as_str().unwrap().contains("--sample"));
}

#[test]
fn csv_has_a_row_a_metric() {
    let output = pagewise(&["stat", "--csv", "-n", "2", "true"]);
    let text = String::from_utf8(output.stdout).unwrap();
    let rows: Vec<Vec<&str>> = text.lines().map(|line| line.split(',').collect()).collect();
    assert_eq!(rows[0][..5], ["arm", "name", "unit", "scope", "median"]);
    let wall = rows.iter().find(|row| row[1] == "wall").unwrap();
    assert!(wall[4].parse::<f64>().unwrap() > 0.0 && wall[10] == "2", "{wall:?}");
}

#[test]
fn every_metric_is_defined() {
    let report = stat(&["--events", "all", "--sample=1ms"], &costs(&[]));
    for metric in report["metrics"].as_array().unwrap() {
        let name = metric["name"].as_str().unwrap();
        if metric["scope"] == "machine" {
            // The kernel may lack this line of vmstat.
            continue;
        }
        assert!(pagewise(&["define", name]).status.success(), "{name}");
    }
}

#[test]
fn events_reports_for_each_event_if_it_is_counted() {
    let report = json(&["events", "--json"]);
    let events = report["events"].as_array().unwrap();
    let faults = events.iter().find(|event| event["name"] == "page_faults").unwrap();
    assert!(faults["scope"].is_string() || faults["scope"]["absent"].is_string(), "{faults}");
    if is_root() {
        assert_eq!(faults["scope"], "process");
        let some = json(&["events", "compaction:", "--json"]);
        let names = some["events"].as_array().unwrap();
        assert!(names.iter().any(|event| event["name"] == "compaction:mm_compaction_begin"));
        let listed =
            tool("find", &["/sys/bus/event_source/devices", "-mindepth", "1", "-maxdepth", "1"]);
        let units = report["pmus"].as_array().unwrap().len();
        assert_eq!(listed.map(|text| text.lines().count()), Some(units));
    }
}
