//! The text of sweeps.

use std::io::{Read, Write};
use std::os::unix::net::UnixListener;
use std::process::{Command, Stdio};

use pagewise_exporter::ExpositionFormat::{OpenMetrics, Prometheus};
use pagewise_exporter::{
    ContainerSources, ExportedDiagnosis, ExportedFinding, ExportedFreeMemory, Exporter,
    ExporterOptions, FindingObject, GroupRules, SeriesLimits, anonymous, otlp_json, write_textfile,
};
use pagewise_model::report::Severity;
use pagewise_model::{Absent, Bytes};
use pagewise_skip::{Lack, skip};
use proptest::prelude::*;

use crate::parser::{ParsedSeries, parse};
use crate::sweeps::{cgroup, export, exporter, named, process, sweep};

/// A value by its name and labels.
fn value(series: &ParsedSeries, name: &str, labels: &[(&str, &str)]) -> Option<f64> {
    let labels = labels.iter().map(|(a, b)| ((*a).to_owned(), (*b).to_owned())).collect();
    series.get(&(name.to_owned(), labels)).copied()
}

fn group(series: &ParsedSeries, name: &str, of: &str) -> Option<f64> {
    value(series, name, &[("groupname", of)])
}

fn series_of(exported: &pagewise_exporter::ExportedSweep) -> ParsedSeries {
    parse(&exported.scrape(OpenMetrics, 1, 1), true).unwrap()
}

#[test]
fn a_sweep_is_written_as_in_the_golden_files() {
    let web = process(10, 1, &["/usr/bin/web"], 30);
    let processes = vec![process(1, 0, &["/sbin/init"], 4), web];
    let cgroups =
        vec![cgroup("/system.slice", 40, None), cgroup("/system.slice/web.service", 30, Some(64))];
    let exported = export(sweep(60, processes, cgroups));
    for (format, file) in [(OpenMetrics, "open_metrics.txt"), (Prometheus, "prometheus.txt")] {
        let text = exported.scrape(format, 2_500_000_000, 3);
        let path = format!("{}/tests/export/golden/{file}", env!("CARGO_MANIFEST_DIR"));
        if std::env::var_os("PAGEWISE_BLESS").is_some() {
            std::fs::write(&path, &text).unwrap();
        }
        assert_eq!(text, std::fs::read_to_string(&path).unwrap(), "{file}");
    }
}

#[test]
fn promtool_and_the_python_client_accept_the_text() {
    let processes = vec![
        process(1, 0, &["/sbin/init"], 4),
        named(process(2, 1, &["x"], 1), b"a\"b\\c\nd\x1b\xff"),
    ];
    let exported = export(sweep(60, processes, vec![cgroup("/a b\"\\", 1, Some(2))]));
    check("promtool", &["check", "metrics"], &exported.scrape(Prometheus, 1, 1));
    let python = "import sys\nfrom prometheus_client.openmetrics.parser import \
        text_string_to_metric_families as parse\nlist(parse(sys.stdin.read()))";
    // The package of the distribution is for its own Python.
    let has_client = Command::new(PYTHON)
        .args(["-c", "import prometheus_client"])
        .stderr(Stdio::null())
        .status()
        .is_ok_and(|it| it.success());
    if has_client {
        check(PYTHON, &["-c", python], &exported.scrape(OpenMetrics, 1, 1));
    } else {
        skip(&Lack::Ability { of: PYTHON, what: "prometheus_client" });
    }
}

const PYTHON: &str = "/usr/bin/python3";

/// Gives a text to a program, which must accept it without output.
fn check(program: &str, args: &[&str], text: &str) {
    let child = Command::new(program)
        .args(args)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn();
    let Ok(mut child) = child else { return skip(&Lack::Tool(program)) };
    child.stdin.take().unwrap().write_all(text.as_bytes()).unwrap();
    let output = child.wait_with_output().unwrap();
    let said = [&output.stdout[..], &output.stderr].concat();
    assert!(output.status.success() && said.is_empty(), "{}", String::from_utf8_lossy(&said));
}

#[test]
fn an_absent_value_makes_no_series() {
    let mut hidden = process(7, 1, &["hidden"], 5);
    hidden.pss = Err(Absent::NotPermitted("CAP_SYS_PTRACE".into()));
    hidden.uss = Err(Absent::NotPermitted("CAP_SYS_PTRACE".into()));
    let series = series_of(&export(sweep(1, vec![hidden], Vec::new())));
    assert_eq!(group(&series, "pagewise_group_uss_bytes", "hidden"), None);
    assert_eq!(group(&series, "pagewise_group_processes_without_pss", "hidden"), Some(1.0));
    assert!(!series.keys().any(|(name, _)| name.starts_with("pagewise_io_")));
    // The first sweep shows no growth.
    assert_eq!(group(&series, "pagewise_group_growth_bytes_per_second", "hidden"), None);
}

#[test]
fn a_sum_is_of_processes_with_memory_and_the_others_are_counted() {
    let unknown = || Err(Absent::Ambiguous("swap".into()));
    let mut shell = process(7, 1, &["bash"], 2);
    shell.uss_anonymous = unknown();
    // A process that has ended has zeros only.
    let mut ended = process(8, 7, &["bash"], 0);
    ended.state = 'Z';
    let series = series_of(&export(sweep(1, vec![shell.clone(), ended.clone()], Vec::new())));
    let name = "pagewise_group_uss_anonymous_bytes";
    assert_eq!(group(&series, name, "bash"), None);
    assert_eq!(group(&series, "pagewise_group_uss_bytes", "bash"), Some((2 << 20) as f64));
    assert_eq!(group(&series, "pagewise_group_processes", "bash"), Some(2.0));
    let without = |series: &ParsedSeries, of: &str| {
        let labels = [("groupname", "bash"), ("value", of)];
        value(series, "pagewise_group_processes_without_value", &labels)
    };
    assert_eq!(without(&series, "uss_anonymous"), Some(1.0));
    assert_eq!(without(&series, "uss"), None);
    let known = process(9, 1, &["bash"], 3);
    let series = series_of(&export(sweep(1, vec![shell, ended.clone(), known], Vec::new())));
    assert_eq!(group(&series, name, "bash"), Some((3 << 20) as f64));
    assert_eq!(without(&series, "uss_anonymous"), Some(1.0));
    // No process of the group has memory.
    ended.pss = Err(Absent::Vanished);
    let series = series_of(&export(sweep(1, vec![ended], Vec::new())));
    assert_eq!(group(&series, "pagewise_group_uss_bytes", "bash"), None);
    assert_eq!(group(&series, "pagewise_group_processes_without_pss", "bash"), Some(0.0));
}

#[test]
fn counters_of_a_group_do_not_fall_when_a_process_ends() {
    let mut exporter = exporter(GroupRules::by_comm(), SeriesLimits::default());
    let at = |faults: u64, pid: u32| {
        let mut process = process(pid, 1, &["job"], 1);
        process.minor_faults = faults;
        process
    };
    let faults =
        |exported: &_| group(&series_of(exported), "pagewise_group_minor_faults_total", "job");
    let first = exporter.export(sweep(1, vec![at(100, 5), at(50, 6)], Vec::new()));
    assert_eq!(faults(&first), Some(150.0));
    let second = exporter.export(sweep(2, vec![at(110, 5)], Vec::new()));
    assert_eq!(faults(&second), Some(160.0));
    let third = exporter.export(sweep(3, vec![at(110, 5), at(7, 8)], Vec::new()));
    assert_eq!(faults(&third), Some(167.0));
}

#[test]
fn growth_is_that_of_processes_of_both_sweeps() {
    let mut exporter = exporter(GroupRules::by_comm(), SeriesLimits::default());
    exporter.export(sweep(0, vec![process(5, 1, &["job"], 10)], Vec::new()));
    let processes = vec![process(5, 1, &["job"], 20), process(6, 1, &["job"], 100)];
    let series = series_of(&exporter.export(sweep(10, processes, Vec::new())));
    let growth = group(&series, "pagewise_group_growth_bytes_per_second", "job");
    assert_eq!(growth, Some((1 << 20) as f64));
}

#[test]
fn the_headroom_is_that_of_the_nearest_limit_of_any_ancestor() {
    let cgroups = vec![
        cgroup("/system.slice", 90, Some(100)),
        cgroup("/system.slice/web.service", 30, Some(64)),
        cgroup("/user.slice", 1, None),
    ];
    let series = series_of(&export(sweep(1, vec![process(5, 1, &["job"], 10)], cgroups)));
    let headroom = group(&series, "pagewise_group_limit_headroom_bytes", "job");
    assert_eq!(headroom, Some((10 << 20) as f64));
    let name = "pagewise_cgroup_limit_headroom_bytes";
    assert_eq!(value(&series, name, &[("cgroup", "/user.slice")]), Some(f64::INFINITY));
}

#[test]
fn the_number_of_series_has_a_bound_and_the_rest_is_stated() {
    let processes: Vec<_> = (1..=400)
        .map(|pid| named(process(pid, 1, &["x"], u64::from(pid)), format!("p{pid}").as_bytes()))
        .collect();
    let cgroups: Vec<_> = (100..400).map(|at| cgroup(&format!("/g{at}"), at, Some(1000))).collect();
    let total: f64 = (1..=400).map(|mib: u32| f64::from(mib) * f64::from(1 << 20)).sum();
    for max_series in [100, 500, 1000, 100_000] {
        let limits = SeriesLimits { max_series, max_groups: 150, max_cgroups: 1000 };
        let mut exporter = exporter(GroupRules::by_comm(), limits);
        let series = series_of(&exporter.export(sweep(1, processes.clone(), cgroups.clone())));
        assert!(series.len() <= max_series, "{} of {max_series}", series.len());
        let groups = || series.iter().filter(|((name, _), _)| name == "pagewise_group_uss_bytes");
        let sum: f64 = groups().map(|(_, value)| *value).sum();
        // The others are part of the sum.
        assert_eq!(sum, total);
        let merged = value(&series, "pagewise_merged_groups", &[]);
        assert_eq!(merged, Some((400 - (groups().count() - 1)) as f64));
        let left_out = value(&series, "pagewise_left_out_cgroups", &[]).unwrap();
        let info = series.keys().filter(|(name, _)| name == "pagewise_cgroup_info").count();
        assert_eq!(info as f64 + left_out, 300.0);
    }
}

#[test]
fn a_bundle_without_names_has_none_of_them() {
    let processes = vec![process(5, 1, &["/opt/secret/daemon", "--token=hunter2"], 10)];
    let mut sweep = sweep(1, processes, vec![cgroup("/system.slice/web.service", 1, None)]);
    let path = || "/system.slice/web.service".into();
    let finding = |object| ExportedFinding { id: "growth", severity: Severity::Warning, object };
    let mut findings = [
        finding(FindingObject::Machine),
        finding(FindingObject::Process("daemon".into())),
        finding(FindingObject::Cgroup(path())),
    ];
    anonymous(&mut sweep, &mut findings);
    let text = serde_json::to_string(&sweep).unwrap();
    let objects = findings.each_ref().map(|it| it.object.label().escaped().into_owned());
    for word in ["secret", "daemon", "hunter2", "ann", "web", "system.slice"] {
        assert!(
            !text.contains(&format!("{word}\"")) && !text.contains(&format!("/{word}")),
            "{word}: {text}"
        );
        assert!(!objects.iter().any(|it| it.contains(word)), "{word}: {objects:?}");
    }
    let identity = &sweep.processes[0].identity;
    let cgroup = identity.cgroup.as_ref().unwrap();
    assert!(sweep.cgroup(cgroup).is_some(), "the process is still in its cgroup");
    // Findings have the same replacements.
    assert_eq!(findings[0].object, FindingObject::Machine);
    assert_eq!(findings[1].object, FindingObject::Process(identity.name.clone()));
    assert_eq!(findings[2].object, FindingObject::Cgroup(cgroup.clone()));
}

/// A diagnosis with a number of warnings and one critical finding.
fn diagnosis(warnings: usize) -> ExportedDiagnosis {
    let of = |severity, name: String| ExportedFinding {
        id: "growth",
        severity,
        object: FindingObject::Process(name.as_str().into()),
    };
    let mut findings: Vec<ExportedFinding> =
        (0..warnings).map(|at| of(Severity::Warning, format!("p{at}"))).collect();
    findings.push(of(Severity::Critical, "worst".into()));
    ExportedDiagnosis {
        unix_ns: 5_000_000_000,
        free: ExportedFreeMemory {
            allocatable_huge: Some(Bytes::mib(6)),
            unusable_index: Some(0.25),
        },
        findings: Some(findings),
        ..ExportedDiagnosis::default()
    }
}

#[test]
fn a_container_has_the_names_that_its_runtime_gives() {
    let folder = tempfile::tempdir().unwrap();
    let socket = folder.path().join("docker.sock");
    let runtime = UnixListener::bind(&socket).unwrap();
    let id = "0123456789abcdef".repeat(4);
    let list = format!(r#"[{{"Id": "{id}", "Names": ["/web\"1"], "Image": "nginx:1.27"}}]"#);
    // The second time, it does not answer as the interface does.
    let answers = [format!("200 OK\r\n\r\n{list}"), "500 Oops\r\n\r\n".to_owned()];
    let serving = std::thread::spawn(move || {
        answers.map(|answer| {
            let mut stream = runtime.accept().unwrap().0;
            let mut request = [0; 256];
            let length = stream.read(&mut request).unwrap();
            stream.write_all(format!("HTTP/1.0 {answer}").as_bytes()).unwrap();
            String::from_utf8_lossy(&request[..length]).into_owned()
        })
    });
    let containers = ContainerSources { logs: None, socket: Some(socket) };
    let options = ExporterOptions {
        rules: GroupRules::by_comm(),
        limits: SeriesLimits::default(),
        containers: containers.clone(),
    };
    let mut exporter = Exporter::new(options);
    assert!(containers.check().unwrap_err().to_string().contains("500"));
    let requests = serving.join().unwrap();
    assert!(requests.iter().all(|it| it.starts_with("GET /containers/json HTTP/1.0\r\n")));
    let path = format!("/system.slice/docker-{id}.scope");
    let series = series_of(&exporter.export(sweep(1, Vec::new(), vec![cgroup(&path, 9, None)])));
    let labels = [("cgroup", path.as_str()), ("container", r#"web"1"#)];
    assert_eq!(value(&series, "pagewise_cgroup_memory_bytes", &labels), Some((9 << 20) as f64));
    let info = series.keys().find(|(name, _)| name == "pagewise_cgroup_info").unwrap();
    assert!(info.1.contains(&("image".to_owned(), "nginx:1.27".to_owned())), "{info:?}");
}

#[test]
fn findings_that_do_not_fit_are_counted_and_the_most_severe_stay() {
    for (max_series, warnings) in [(10_000, 3), (10_000, 250), (100, 250)] {
        let limits = SeriesLimits { max_series, ..SeriesLimits::default() };
        let mut exporter = exporter(GroupRules::by_comm(), limits);
        exporter.set_diagnosis(diagnosis(warnings));
        let processes = vec![process(5, 1, &["job"], 10)];
        let series = series_of(&exporter.export(sweep(1, processes, Vec::new())));
        assert!(series.len() <= max_series, "{} of {max_series}", series.len());
        let found = series.keys().filter(|(name, _)| name == "pagewise_finding").count();
        let dropped = value(&series, "pagewise_dropped_series", &[("of", "findings")]);
        assert_eq!(dropped, Some((warnings + 1 - found) as f64));
        let worst = [("id", "growth"), ("severity", "critical"), ("object", "worst")];
        assert_eq!(value(&series, "pagewise_finding", &worst), Some(1.0));
        assert_eq!(value(&series, "pagewise_free_unusable_ratio", &[]), Some(0.25));
    }
}

#[test]
fn the_textfile_is_whole_and_has_no_end_mark() {
    let folder = tempfile::tempdir().unwrap();
    let exported = export(sweep(1, vec![process(5, 1, &["job"], 10)], Vec::new()));
    write_textfile(folder.path(), &exported).unwrap();
    let text = std::fs::read_to_string(folder.path().join("pagewise.prom")).unwrap();
    parse(&text, false).unwrap();
    let files = std::fs::read_dir(folder.path()).unwrap().count();
    assert_eq!(files, 1, "no unfinished file is left");
}

#[test]
fn the_push_has_the_same_values_as_the_text() {
    let exported = export(sweep(1, vec![process(5, 1, &["job"], 10)], Vec::new()));
    let pushed = otlp_json(&exported, 5);
    let metrics = pushed["resourceMetrics"][0]["scopeMetrics"][0]["metrics"].as_array().unwrap();
    let uss = metrics.iter().find(|it| it["name"] == "pagewise_group_uss_bytes").unwrap();
    assert_eq!(uss["unit"], "By");
    assert_eq!(uss["gauge"]["dataPoints"][0]["asInt"], Bytes::mib(10).0.to_string());
    let faults = metrics.iter().find(|it| it["name"] == "pagewise_group_minor_faults").unwrap();
    let sum = &faults["sum"];
    assert_eq!((&sum["isMonotonic"], &sum["aggregationTemporality"]), (&true.into(), &2.into()));
    assert_eq!(sum["dataPoints"][0]["startTimeUnixNano"], "5");
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn any_names_make_a_text_that_the_parser_reads(
        names in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..40), 1..12),
        limit in any::<u64>(),
    ) {
        let processes: Vec<_> = names
            .iter()
            .zip(1..)
            .map(|(name, pid)| named(process(pid, 1, &["x"], u64::from(pid)), name))
            .collect();
        let cgroups = vec![cgroup("/\"},\\{x=\"", limit >> 40, Some(limit >> 20))];
        let exported = export(sweep(1, processes, cgroups));
        let open_metrics = parse(&exported.scrape(OpenMetrics, 1, 1), true);
        let prometheus = parse(&exported.scrape(Prometheus, 1, 1), false);
        prop_assert_eq!(open_metrics.as_ref().map_err(Clone::clone), prometheus.as_ref().map_err(Clone::clone));
        let series = open_metrics.unwrap();
        let processes: f64 = series
            .iter()
            .filter(|((name, _), _)| name == "pagewise_group_processes")
            .map(|(_, value)| *value)
            .sum();
        prop_assert_eq!(processes, names.len() as f64);
    }
}
