//! The command line and the outputs of `pagewise export`.

use std::collections::BTreeSet;
use std::fs;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::path::Path;
use std::process::{Command, Stdio};

use pagewise_exporter::metric_catalogue;
use pagewise_skip::{Lack, skip};

use crate::fixture::{ProcessGroup, pagewise};
use crate::server::{NamedProcess, ServerProcess};

fn once(args: &[&str]) -> String {
    let output = pagewise(&[&["export", "--once"], args].concat());
    assert!(output.status.success(), "{output:?}");
    String::from_utf8(output.stdout).unwrap()
}

/// Returns the value of a series in the text format.
fn value(text: &str, series: &str) -> Option<f64> {
    let line = text.lines().find_map(|line| line.strip_prefix(series)?.strip_prefix(' '))?;
    line.parse().ok()
}

#[test]
fn one_scrape_is_accepted_by_promtool() {
    let text = once(&[]);
    let child = Command::new("promtool")
        .args(["check", "metrics"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn();
    let Ok(mut child) = child else { return skip(&Lack::Tool("promtool")) };
    child.stdin.take().unwrap().write_all(text.as_bytes()).unwrap();
    let output = child.wait_with_output().unwrap();
    assert!(output.status.success() && output.stderr.is_empty(), "{output:?}");
    assert!(once(&["--format", "openmetrics"]).ends_with("# EOF\n"));
}

#[test]
fn the_values_of_a_process_are_those_of_the_kernel() {
    // Another run of this test may be in progress, so the name contains the PID.
    let name = &format!("pwexported{}", std::process::id());
    let target = NamedProcess::start(name);
    let folder = tempfile::tempdir().unwrap();
    let config = folder.path().join("groups.yml");
    fs::write(&config, format!("process_names: [{{exe: [{name}]}}]\n")).unwrap();
    let read = || fs::read_to_string(format!("/proc/{}/smaps_rollup", target.pid())).unwrap();
    let field = |rollup: &str, name: &str| {
        let line = rollup.lines().find_map(|line| line.strip_prefix(name)).unwrap();
        line.trim().trim_end_matches(" kB").parse::<f64>().unwrap() * 1024.0
    };
    let of = |text: &str, metric: &str| {
        value(text, &format!("{metric}{{groupname=\"{name}\"}}")).unwrap()
    };
    // Another process can map or unmap a page of the target at any time, also between two equal
    // readings. That changes the USS.
    let mut seen = Vec::new();
    let (text, rollup) = (0..100)
        .find_map(|_| {
            let before = read();
            let text = once(&["--config", config.to_str().unwrap()]);
            let uss = field(&before, "Private_Clean:") + field(&before, "Private_Dirty:");
            let ours = of(&text, "pagewise_group_uss_bytes");
            seen.push((ours, uss));
            (read() == before && ours == uss).then_some((text, before))
        })
        .unwrap_or_else(|| panic!("{seen:?}"));
    assert_eq!(of(&text, "pagewise_group_processes"), 1.0);
    let anonymous = format!("pagewise_group_swap_bytes{{groupname=\"{name}\",kind=\"anonymous\"}}");
    assert_eq!(value(&text, &anonymous).unwrap(), field(&rollup, "Swap:"));
    let score = fs::read_to_string(format!("/proc/{}/oom_score", target.pid())).unwrap();
    assert_eq!(of(&text, "pagewise_group_oom_score"), score.trim().parse::<f64>().unwrap());
}

#[test]
fn a_scrape_never_starts_a_sweep_and_sigterm_ends_cleanly() {
    let server = ServerProcess::export(&["--every", "1h"]);
    let sweeps = |text: &str| value(text, "pagewise_sweeps_total").unwrap();
    for _ in 0..3 {
        assert_eq!(sweeps(&server.page("/metrics")), 1.0);
    }
    let text = server.page("/metrics");
    assert_eq!(value(&text, "pagewise_scrapes_total"), Some(4.0));
    assert!(server.terminate().success());
}

#[test]
fn a_scrape_under_way_is_completed_after_sigterm() {
    let folder = tempfile::tempdir().unwrap();
    let config = folder.path().join("groups.yml");
    // Each process is a group with a long name: the metrics are larger than the buffers of the
    // sockets.
    let name = "x".repeat(900);
    let rule = format!("process_names: [{{name: '{name}{{{{.PID}}}}', cmdline: ['.']}}]");
    fs::write(&config, rule).unwrap();
    let script = "for i in $(seq 400); do sleep 1000 & done; touch started; wait";
    let mut shell = Command::new("sh");
    let _targets = ProcessGroup::start(shell.args(["-c", script]).current_dir(folder.path()));
    crate::server::wait("the processes", || folder.path().join("started").exists());
    let config = config.to_str().unwrap();
    let limits = ["--max-groups", "10000", "--max-series", "100000"];
    let server =
        ServerProcess::export(&[&["--every", "1h", "--config", config], &limits[..]].concat());
    let mut stream = TcpStream::connect(server.address).unwrap();
    stream.write_all(b"GET /metrics HTTP/1.1\r\nConnection: close\r\n\r\n").unwrap();
    let mut begin = [0; 1];
    stream.read_exact(&mut begin).unwrap();
    let ended = std::thread::spawn(|| server.terminate());
    std::thread::sleep(std::time::Duration::from_millis(500));
    let mut rest = String::new();
    stream.read_to_string(&mut rest).unwrap();
    let (head, body) = rest.split_once("\r\n\r\n").unwrap();
    assert!(head.contains(&format!("\r\nContent-Length: {}\r\n", body.len())), "{head}");
    assert!(body.len() > 5 << 20 && body.contains("\npagewise_scrapes_total 1\n"), "{head}");
    assert!(ended.join().unwrap().success());
}

#[test]
fn sweeps_go_on_between_scrapes() {
    let server = ServerProcess::export(&["--every", "200ms"]);
    crate::server::wait("three sweeps", || {
        value(&server.page("/metrics"), "pagewise_sweeps_total").unwrap() >= 3.0
    });
    let text = server.page("/metrics");
    assert!(text.contains("pagewise_group_growth_bytes_per_second{"), "{text}");
}

/// Returns the resident anonymous bytes of a process.
fn anonymous_bytes(pid: u32) -> u64 {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("RssAnon:")).unwrap();
    line.trim().trim_end_matches(" kB").parse::<u64>().unwrap() << 10
}

#[test]
fn a_thousand_clients_with_huge_requests_take_little_memory() {
    let server = ServerProcess::export(&["--every", "1h", "--diagnose-every", "0s"]);
    server.page("/metrics");
    let before = anonymous_bytes(server.pid());
    let huge = format!("GET /metrics HTTP/1.1\r\nX: {}", "x".repeat(64 << 10));
    let mut highest = 0;
    for _ in 0..10 {
        // Each client sends more bytes than the exporter reads of a request, and reads no answer.
        let clients: Vec<TcpStream> = (0..100)
            .filter_map(|_| {
                let mut stream = TcpStream::connect(server.address).ok()?;
                stream.set_nonblocking(true).ok()?;
                let _ = stream.write(huge.as_bytes());
                Some(stream)
            })
            .collect();
        highest = highest.max(anonymous_bytes(server.pid()));
        drop(clients);
    }
    assert!(value(&server.page("/metrics"), "pagewise_sweeps_total") == Some(1.0));
    let grown = highest.saturating_sub(before);
    assert!(grown < 8 << 20, "{grown} bytes for 128 connections of 8 KiB");
}

#[test]
fn the_account_of_the_slow_cycle_adds_up_and_a_growing_process_is_a_finding() {
    let name = format!("pwgrows{}", std::process::id());
    let folder = tempfile::tempdir().unwrap();
    let program = folder.path().join(&name);
    std::os::unix::fs::symlink("/bin/bash", &program).unwrap();
    // A string grows by 2.5 MiB each second.
    let script = "s=''; p=$(printf '%262144s'); while :; do s=$s$p; sleep 0.1; done";
    let target = ProcessGroup::start(Command::new(&program).args(["-c", script]));
    let server = ServerProcess::export(&["--every", "500ms", "--diagnose-every", "3s"]);
    let finding =
        format!("pagewise_finding{{id=\"growth\",severity=\"warning\",object=\"{name}\"}}");
    crate::server::wait("the finding", || value(&server.page("/metrics"), &finding).is_some());
    let text = server.page("/metrics");
    drop(target);
    let owners = text.lines().filter(|line| line.starts_with("pagewise_account_bytes{"));
    let sum: f64 = owners.map(|it| it.rsplit(' ').next().unwrap().parse::<f64>().unwrap()).sum();
    let unaccounted = value(&text, "pagewise_account_unaccounted_bytes").unwrap();
    let total = value(&text, "pagewise_meminfo_bytes{field=\"MemTotal\"}").unwrap();
    assert_eq!(sum + unaccounted, total);
    let before = |what: &str| {
        value(&text, &format!("pagewise_headroom_bytes{{before=\"{what}\"}}")).unwrap()
    };
    assert!(before("reclaim") <= before("oom"));
    let without = ServerProcess::export(&["--every", "300ms", "--diagnose-every", "0s"]);
    assert!(!without.page("/metrics").contains("pagewise_account_bytes{"));
}

#[test]
fn one_scrape_has_the_account_and_on_request_the_findings() {
    let series = |text: &str, name: &str| {
        let begins = |line: &&str| line.starts_with(&format!("pagewise_{name}"));
        text.lines().filter(begins).count()
    };
    let text = once(&[]);
    assert!(series(&text, "account_bytes{") > 5, "{text}");
    let before_oom = "pagewise_headroom_bytes{before=\"oom\"}";
    assert!(value(&text, before_oom).is_some(), "{text}");
    assert_eq!(series(&text, "diagnosis_timestamp_seconds"), 0);
    assert_eq!(series(&text, "finding{"), 0);
    let folder = tempfile::tempdir().unwrap();
    once(&["--diagnose-every", "1s", "--textfile", folder.path().to_str().unwrap()]);
    let text = fs::read_to_string(folder.path().join("pagewise.prom")).unwrap();
    assert!(value(&text, "pagewise_diagnosis_timestamp_seconds").is_some(), "{text}");
    assert!(series(&text, "account_bytes{") > 5 && value(&text, before_oom).is_some());
    let text = once(&["--diagnose-every", "0s"]);
    assert_eq!(series(&text, "account_bytes{") + series(&text, "headroom_bytes{"), 0);
}

#[test]
fn a_textfile_is_written_and_nothing_is_served() {
    let folder = tempfile::tempdir().unwrap();
    let text = once(&["--textfile", folder.path().to_str().unwrap()]);
    assert!(text.is_empty());
    let written = fs::read_to_string(folder.path().join("pagewise.prom")).unwrap();
    assert!(value(&written, "pagewise_sweeps_total") == Some(1.0), "{written}");
}

#[test]
fn wrong_files_and_addresses_are_named() {
    let fails = |args: &[&str]| {
        let output = pagewise(&[&["export", "--every", "1h"], args].concat());
        assert!(!output.status.success());
        String::from_utf8(output.stderr).unwrap()
    };
    assert!(fails(&["--config", "/nonexistent"]).contains("/nonexistent"));
    assert!(fails(&["--web-config", "/nonexistent"]).contains("/nonexistent"));
    assert!(fails(&["--listen", "127.0.0.1:x"]).contains("127.0.0.1:x"));
    assert!(fails(&["--otlp", "ftp://x"]).contains("ftp://x"));
    assert!(fails(&["--otlp", "http://x", "--otlp-header", "a"]).contains("NAME=VALUE"));
    assert!(
        fails(&["--otlp", "http://x", "--otlp-header", "a=@/nonexistent"]).contains("/nonexistent")
    );
    assert!(fails(&["--otlp", "https://x", "--otlp-ca", "/nonexistent"]).contains("/nonexistent"));
    assert!(fails(&["--container-socket", "/nonexistent"]).contains("/nonexistent"));
    let folder = tempfile::tempdir().unwrap();
    let config = folder.path().join("groups.yml");
    fs::write(&config, "process_names: [{name: x}]").unwrap();
    let error = fails(&["--config", config.to_str().unwrap()]);
    assert!(error.contains("groups.yml") && error.contains("process_names[0]"), "{error}");
}

#[test]
fn a_bundle_is_json_and_keeps_names_to_itself_on_request() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("bundle.json");
    let output = pagewise(&["export", "bundle", "--anonymous", "-o", file.to_str().unwrap()]);
    assert!(output.status.success(), "{output:?}");
    let bundle: serde_json::Value = serde_json::from_slice(&fs::read(&file).unwrap()).unwrap();
    assert_eq!(bundle["schema"], "pagewise.bundle/1");
    let processes = bundle["sweep"]["processes"].as_array().unwrap();
    let names = processes.iter().map(|it| it["identity"]["name"].as_str().unwrap());
    assert!(names.into_iter().all(|it| it.starts_with("process-")));
    assert!(
        processes.iter().all(|it| it["identity"]["command"].as_array().is_none_or(Vec::is_empty))
    );
    let account = &bundle["account"];
    let owners = account["owners"].as_array().unwrap().iter();
    let sum: i64 = owners.map(|it| it["bytes"].as_i64().unwrap()).sum();
    assert_eq!(sum + account["unaccounted"].as_i64().unwrap(), account["total"].as_i64().unwrap());
    for finding in bundle["findings"].as_array().unwrap() {
        let object = finding["object"].as_str().unwrap();
        let is_replaced = |it: &str| it.starts_with("process-") || it.starts_with("/");
        assert!(object == "machine" || is_replaced(object), "{finding}");
        assert!(finding["id"].is_string() && finding["severity"].is_string());
    }
}

/// Returns the text of a file of the repository.
fn file(path: &str) -> String {
    fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").join(path)).unwrap()
}

#[test]
fn the_guide_lists_every_metric_and_no_other() {
    let guide = file("docs/export.md");
    let listed: BTreeSet<&str> = guide
        .lines()
        .filter_map(|line| line.strip_prefix("| `pagewise_")?.split_once('`'))
        .map(|(name, _)| name)
        .collect();
    let catalogue = metric_catalogue();
    let suffix = |kind| if kind == pagewise_exporter::MetricKind::Counter { "_total" } else { "" };
    let metrics: BTreeSet<String> = catalogue
        .iter()
        .map(|it| format!("{}{}", it.name.strip_prefix("pagewise_").unwrap(), suffix(it.kind)))
        .collect();
    assert_eq!(listed, metrics.iter().map(String::as_str).collect());
}

#[test]
fn each_alert_has_a_runbook_that_ends_with_a_command() {
    let guide = file("docs/alerts.md");
    let rules = file("deploy/prometheus/pagewise.rules.yml");
    let tests = file("deploy/prometheus/pagewise.rules.test.yml");
    let alerts: Vec<&str> =
        rules.lines().filter_map(|line| line.trim().strip_prefix("- alert: ")).collect();
    assert!(alerts.len() >= 10);
    for alert in alerts {
        let anchor = format!("runbook_url: docs/alerts.md#{}\n", alert.to_lowercase());
        assert!(rules.contains(&anchor), "{anchor}");
        assert!(tests.contains(&format!("alertname: {alert}\n")), "no test of {alert}");
        let section = guide.split("\n## ").find(|it| it.starts_with(&format!("{alert}\n")));
        let section = section.unwrap_or_else(|| panic!("no section {alert}"));
        let last = section.trim_end().lines().last().unwrap();
        let command =
            last.strip_prefix("    pagewise ").unwrap_or_else(|| panic!("{alert}: {last}"));
        has_options(command);
        // The OOM killer has already killed the process when this alert fires, so the command must
        // not need a PID.
        assert!(alert != "PagewiseOomKill" || !command.contains("PID"), "{command}");
    }
    for command in ["oom", "system"] {
        assert!(guide.contains(&format!("\n    pagewise {command}\n")), "{command}");
    }
}

/// Checks that a command of the guide and its options exist.
fn has_options(command: &str) {
    let words: Vec<&str> = command.split(' ').collect();
    let is_name = |it: &&str| it.bytes().all(|b| b.is_ascii_lowercase());
    let name = words.iter().copied().take_while(is_name);
    let output = pagewise(&name.chain(["--help"]).collect::<Vec<_>>());
    assert!(output.status.success(), "{command}: {output:?}");
    let help = String::from_utf8(output.stdout).unwrap();
    let known: BTreeSet<&str> = help.split([' ', '\n', ',', '[']).collect();
    for option in words.iter().filter(|it| it.starts_with("--")) {
        assert!(known.contains(option), "{command}: {option}");
    }
}

#[test]
fn systemd_accepts_the_service() {
    let folder = tempfile::tempdir().unwrap();
    let unit = folder.path().join("pagewise-export.service");
    let program = format!("ExecStart={} export", env!("CARGO_BIN_EXE_pagewise"));
    let text = file("deploy/systemd/pagewise-export.service");
    fs::write(&unit, text.replace("ExecStart=/usr/local/bin/pagewise export", &program)).unwrap();
    let Ok(checked) = Command::new("systemd-analyze").arg("verify").arg(&unit).output() else {
        return skip(&Lack::Tool("systemd-analyze"));
    };
    // systemd-analyze also reports problems of other units of this machine.
    let said = String::from_utf8_lossy(&checked.stderr);
    let ours: Vec<&str> = said.lines().filter(|it| it.contains("pagewise-export")).collect();
    assert!(ours.iter().all(|it| it.contains("Man page") || it.contains("man ")), "{ours:?}");
}

#[test]
fn the_service_allows_every_kind_of_socket_that_the_exporter_opens() {
    let text = file("deploy/systemd/pagewise-export.service");
    let families = between(&text, "\nRestrictAddressFamilies=", "\n");
    let families: BTreeSet<&str> = families.split(' ').collect();
    assert_eq!(families, BTreeSet::from(["AF_INET", "AF_INET6", "AF_UNIX"]));
    // A unit of type `simple` sends no state to systemd. Sending it would also need AF_UNIX.
    assert!(!text.contains("Type=") && !text.contains("WatchdogSec="));
    let help = String::from_utf8(pagewise(&["export", "--help"]).stdout).unwrap();
    for option in text.lines().filter_map(|it| it.strip_prefix("#   --")) {
        let option = option.split(' ').next().unwrap();
        assert!(help.contains(&format!("--{option} <")), "{option}");
    }
}

/// Returns the instructions of a container file, each with its name and its text.
fn instructions(text: &str) -> Vec<(&str, &str)> {
    let lines = text.lines().filter(|line| !line.starts_with('#') && !line.trim().is_empty());
    lines.map(|line| line.split_once(' ').unwrap()).collect()
}

/// Parses the strings of a list such as `["export", "--listen"]`.
fn words(list: &str) -> Vec<String> {
    serde_json::from_str(list).unwrap()
}

/// Returns the text between `begin` and `end`.
fn between<'t>(text: &'t str, begin: &str, end: &str) -> &'t str {
    let (_, rest) = text.split_once(begin).unwrap_or_else(|| panic!("{begin}"));
    rest.split_once(end).unwrap_or_else(|| panic!("{end}")).0
}

/// Checks that `pagewise` accepts the options: its only error is the wrong address.
fn accepts(args: &[&str]) {
    let output = pagewise(args);
    let error = String::from_utf8_lossy(&output.stderr);
    assert!(error.contains("cannot listen on nowhere"), "{args:?}: {error}");
}

#[test]
fn the_container_file_builds_and_starts_what_the_repository_has() {
    let text = file("deploy/container/Containerfile");
    let all = instructions(&text);
    let of = |name: &str| all.iter().filter(|it| it.0 == name).map(|it| it.1).collect::<Vec<_>>();
    // The package and the features of the build command are those of the manifest.
    let manifest = file("crates/cli/Cargo.toml");
    let build = of("RUN").join(" ");
    assert!(manifest.contains(&format!("name = \"{}\"", between(&build, "-p ", " "))), "{build}");
    let (_, features) = build.split_once("--features ").unwrap();
    for feature in features.split(',') {
        assert!(manifest.contains(&format!("\n{feature} = [")), "no feature {feature}");
    }
    // The release of Rust is at least the one that the workspace needs.
    let needed = file("Cargo.toml");
    let needed = between(&needed, "rust-version = \"1.", "\"").parse::<u32>().unwrap();
    let [build_image, image] = of("FROM")[..] else { panic!("two stages: {text}") };
    let tag = between(build_image, "rust:", " AS build");
    let minor = tag.split(['.', '-']).nth(1).and_then(|it| it.parse::<u32>().ok());
    assert!(tag.starts_with("1") && minor.is_none_or(|minor| minor >= needed), "{tag}");
    // Both stages have the same Debian release, whose C library the program needs.
    let release = tag.split('-').next_back().unwrap();
    assert!(image.contains(&format!("debian:{release}")), "{image}");
    // The image has the built program at the path that the container starts.
    let copies = of("COPY");
    assert_eq!(copies[0], ". .");
    let program = "/usr/local/bin/pagewise";
    let folder = of("WORKDIR")[0];
    assert_eq!(copies[1], format!("--from=build {folder}/target/release/pagewise {program}"));
    assert_eq!(words(of("ENTRYPOINT")[0]), [program]);
    let command = words(of("CMD")[0]);
    let port = format!(":{}", of("EXPOSE")[0]);
    assert!(command.iter().any(|it| it.ends_with(&port)), "{command:?}");
    let address = command.iter().find(|it| it.ends_with(&port)).unwrap();
    let args: Vec<&str> =
        command.iter().map(|it| if it == address { "nowhere" } else { it.as_str() }).collect();
    accepts(&args);
    // Docker does not copy the folder of build results into the build.
    let ignored = file(".dockerignore");
    assert!(ignored.lines().any(|line| line == "target"));
    assert!(ignored.lines().all(|line| !line.starts_with("crates")));
}

#[test]
fn the_daemon_set_starts_the_image_with_options_that_exist() {
    let text = file("deploy/kubernetes/daemonset.yaml");
    let args = between(&text, "args: [", "]");
    let args: Vec<&str> = args.split(", ").map(|it| it.trim_matches('\'')).collect();
    let port = between(&text, "containerPort: ", "\n");
    assert_eq!(args[..2], ["export", "--listen"]);
    assert!(args[2].ends_with(&format!(":{port}")), "{args:?}");
    assert!(text.contains(&format!("prometheus.io/port: '{port}'")));
    accepts(&[&args[..2], &["nowhere"], &args[3..]].concat());
    // The manifest mounts the folders of the node that the exporter reads by default.
    let help = String::from_utf8(pagewise(&["export", "--help"]).stdout).unwrap();
    assert!(text.contains("mountPath: /var/log/containers\n"));
    assert!(help.contains("[default: /var/log/containers]"), "{help}");
    for hardened in ["readOnlyRootFilesystem: true", "drop: [ALL]", "hostNetwork: false"] {
        assert!(text.contains(hardened), "{hardened}");
    }
}
