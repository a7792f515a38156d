//! A real Prometheus scrapes the exporter, and answers the queries of dashboards and rules.

use std::collections::BTreeSet;
use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use pagewise_exporter::metric_catalogue;
use pagewise_skip::{Lack, is_root, skip};
use serde_json::Value;

use crate::dashboards::{dashboards, metrics, queries};
use crate::fixture::cgroup::{Actor, TestCgroup};
use crate::server::{NamedProcess, ServerProcess, free_address, get, url_encoded, wait};

pub(crate) fn deploy(path: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR"))
        .join("../../deploy")
        .join(path)
        .canonicalize()
        .unwrap()
}

#[test]
fn rules_are_accepted_and_their_alerts_fire_and_stop() {
    let test = deploy("prometheus/pagewise.rules.test.yml");
    let output = Command::new("promtool").args(["test", "rules"]).arg(test).output();
    let Ok(output) = output else { return skip(&Lack::Tool("promtool")) };
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stdout));
}

/// Runs `promtool check config` on a configuration beside the rules; returns `None` if promtool is
/// not installed.
fn check_config(text: &str) -> Option<()> {
    let folder = tempfile::tempdir().unwrap();
    let rules = deploy("prometheus/pagewise.rules.yml");
    fs::copy(rules, folder.path().join("pagewise.rules.yml")).unwrap();
    let path = folder.path().join("prometheus.yml");
    fs::write(&path, text).unwrap();
    let output = Command::new("promtool").args(["check", "config"]).arg(path).output().ok()?;
    assert!(output.status.success(), "{text}: {}", String::from_utf8_lossy(&output.stderr));
    Some(())
}

#[test]
fn prometheus_accepts_the_configuration_with_each_store_of_the_guide() {
    let text = fs::read_to_string(deploy("prometheus/scrape.yml")).unwrap();
    let guide = fs::read_to_string(deploy("../docs/export.md")).unwrap();
    let mut urls: Vec<&str> =
        text.split_whitespace().filter(|it| it.contains("/api/v1/")).collect();
    assert_eq!(urls.len(), 4);
    for url in urls.clone() {
        let path = url.split_once(".example").unwrap().1.replace("/0/", "/TENANT/");
        assert!(guide.contains(&format!("| `http://HOST{path}`")), "{path}");
    }
    let first = urls.remove(0);
    assert!(text.contains(&format!("- url: {first}\n")) && text.contains("external_labels:"));
    if check_config(&text).is_none() {
        return skip(&Lack::Tool("promtool"));
    }
    urls.iter().for_each(|url| check_config(&text.replace(first, url)).unwrap());
}

#[test]
fn remote_write_leaves_out_only_what_no_rule_and_no_dashboard_uses() {
    let text = fs::read_to_string(deploy("prometheus/scrape.yml")).unwrap();
    let filter = text.lines().find_map(|it| it.trim().strip_prefix("regex: ")).unwrap();
    let left_out: BTreeSet<&str> = filter.split('|').collect();
    let catalogue = metric_catalogue();
    assert!(
        left_out.iter().all(|it| catalogue.iter().any(|family| family.name == *it)),
        "{filter}"
    );
    let rules = fs::read_to_string(deploy("prometheus/pagewise.rules.yml")).unwrap();
    for query in dashboards().iter().flat_map(|it| queries(&it.1)).chain([rules]) {
        assert!(!metrics(&query).iter().any(|it| left_out.contains(it)), "{query}");
    }
}

/// Returns the result of an instant query.
fn ask(prometheus: &ServerProcess, query: &str) -> Vec<Value> {
    let path = format!("/api/v1/query?query={}", url_encoded(query));
    let (status, body) = get(prometheus.address, &path).unwrap();
    assert_eq!(status, 200, "{query}: {body}");
    let answer: Value = serde_json::from_str(&body).unwrap();
    assert_eq!(answer["status"], "success", "{query}: {body}");
    answer["data"]["result"].as_array().unwrap().clone()
}

/// Starts a Prometheus that scrapes an exporter each second; returns `None` if it is not installed.
fn start_prometheus(
    folder: &Path,
    exporter: &ServerProcess,
    rules: &Path,
) -> Option<ServerProcess> {
    let config = folder.join("prometheus.yml");
    let text = format!(
        "global: {{scrape_interval: 1s, evaluation_interval: 1s}}\nscrape_configs:\n  - job_name: pagewise\n    \
         static_configs: [{{targets: ['{}']}}]\nrule_files: ['{}']\n",
        exporter.address,
        rules.display()
    );
    fs::write(&config, text).unwrap();
    let address = free_address();
    let (data, listen) = (folder.join("data"), format!("--web.listen-address={address}"));
    let config = format!("--config.file={}", config.display());
    let data = format!("--storage.tsdb.path={}", data.display());
    let prometheus = ServerProcess::other("prometheus", &[&config, &data, &listen], address);
    match prometheus {
        Some(prometheus) => {
            prometheus.wait_for("/-/ready");
            Some(prometheus)
        }
        None => {
            skip(&Lack::Tool("prometheus"));
            None
        }
    }
}

/// Returns the names of the alerts that fire for a cgroup.
fn firing(prometheus: &ServerProcess, cgroup: &str) -> BTreeSet<String> {
    let answer: Value = serde_json::from_str(&prometheus.page("/api/v1/alerts")).unwrap();
    let alerts = answer["data"]["alerts"].as_array().unwrap();
    let own =
        alerts.iter().filter(|it| it["labels"]["cgroup"] == cgroup && it["state"] == "firing");
    own.map(|it| it["labels"]["alertname"].as_str().unwrap().to_owned()).collect()
}

#[test]
fn alerts_fire_for_a_cgroup_that_leaks_and_whose_process_is_killed() {
    if !is_root() {
        return;
    }
    let Some(cgroup) = TestCgroup::make("leak") else {
        return skip(&Lack::Machine("no memory cgroup can be made"));
    };
    let arguments = format!("anon=8 wait{}", " push=1 wait".repeat(80));
    let mut leaking = Actor::start(&cgroup.folder, &arguments);
    if cgroup.limit(56 << 20).is_none() {
        return skip(&Lack::Machine("no memory cgroup can be limited"));
    }
    let exporter = ServerProcess::export(&["--every", "500ms"]);
    let folder = tempfile::tempdir().unwrap();
    // The test shortens the times in the rules from minutes and hours to seconds.
    let rules = fs::read_to_string(deploy("prometheus/pagewise.rules.yml")).unwrap();
    let lines = rules.lines().filter(|line| !line.trim().starts_with("for: "));
    let times = ["[5m]", "[10m]", "[1h]"];
    let text = lines.collect::<Vec<_>>().join("\n");
    let text = times.iter().fold(text, |text, time| text.replace(time, "[6s]"));
    let short = folder.path().join("short.rules.yml");
    fs::write(&short, text + "\n").unwrap();
    let Some(prometheus) = start_prometheus(folder.path(), &exporter, &short) else { return };
    let path = cgroup.path();
    let mut seen = firing(&prometheus, &path);
    assert!(seen.is_empty(), "{seen:?}");
    // The program allocates until 60 of about 65 MiB are in use, which takes several times as long
    // as the time range of the rules.
    for _ in 0..52 {
        leaking.push();
        std::thread::sleep(Duration::from_millis(300));
        seen.extend(firing(&prometheus, &path));
    }
    wait("the alerts of the leak", || {
        seen.extend(firing(&prometheus, &path));
        seen.contains("PagewiseGrowthReachesLimit") && seen.contains("PagewiseOomRisk")
    });
    assert!(!seen.contains("PagewiseOomKill"), "{seen:?}");
    while leaking.child.try_wait().unwrap().is_none() {
        // The process that is killed answers no more.
        if leaking.stdin.write_all(b"\n").is_err() {
            break;
        }
        std::thread::sleep(Duration::from_millis(100));
    }
    wait("the alert of the kill", || firing(&prometheus, &path).contains("PagewiseOomKill"));
    wait("the end of the alerts", || firing(&prometheus, &path).is_empty());
}

/// Asks every query of the dashboards.
fn check_dashboards(prometheus: &ServerProcess, exporter: &ServerProcess) {
    let known: BTreeSet<String> = metric_catalogue()
        .iter()
        .flat_map(|it| [it.name.to_owned(), format!("{}_total", it.name)])
        .collect();
    for (file, dashboard) in dashboards() {
        for query in queries(&dashboard) {
            let metrics = metrics(&query);
            assert!(
                !metrics.is_empty() && metrics.iter().all(|it| known.contains(*it)),
                "{file}: {query}"
            );
            let query = ["instance", "groupname", "cgroup"]
                .iter()
                .fold(query.clone(), |query, name| query.replace(&format!("${name}"), ".*"))
                .replace("$__rate_interval", "5m");
            // A query has no result if the exporter lacks one of its metrics. Machines without PSI
            // or a memory cgroup lack some metrics, few machines have a limit, and findings appear
            // and disappear.
            wait(&format!("{file}: {query}"), || {
                let scraped = exporter.page("/metrics");
                let has =
                    |it: &str| ["{", " "].iter().any(|c| scraped.contains(&format!("\n{it}{c}")));
                let has_all = metrics.iter().all(|it| has(it));
                !ask(prometheus, &query).is_empty() || !has_all || query.contains("< Inf")
            });
        }
    }
}

#[test]
fn prometheus_scrapes_and_answers_every_query_of_dashboards_and_rules() {
    let exporter = ServerProcess::export(&["--every", "500ms", "--diagnose-every", "5s"]);
    let folder = tempfile::tempdir().unwrap();
    let rules = deploy("prometheus/pagewise.rules.yml");
    let Some(prometheus) = start_prometheus(folder.path(), &exporter, &rules) else { return };
    wait("five scrapes", || {
        let counts = ask(&prometheus, "count_over_time(pagewise_sweeps_total[5m])");
        counts
            .first()
            .is_some_and(|it| it["value"][1].as_str().unwrap().parse::<f64>().unwrap() >= 5.0)
    });
    wait("the slow cycle", || !ask(&prometheus, "pagewise_account_bytes").is_empty());
    // A scrape with an error stores none of its series.
    wait("a scrape in time", || ask(&prometheus, "up")[0]["value"][1] == "1");

    check_dashboards(&prometheus, &exporter);
    wait("an evaluation of the rules", || {
        let answer: Value = serde_json::from_str(&prometheus.page("/api/v1/rules")).unwrap();
        let groups = answer["data"]["groups"].as_array().unwrap();
        let rules: Vec<&Value> =
            groups.iter().flat_map(|it| it["rules"].as_array().unwrap()).collect();
        for rule in &rules {
            assert_ne!(rule["health"], "err", "{rule}");
        }
        rules.len() >= 15 && rules.iter().all(|it| it["health"] == "ok")
    });
    let mut groups = Vec::new();
    wait("the recorded groups", || {
        groups = ask(&prometheus, "pagewise:group_memory_bytes");
        !groups.is_empty()
    });
    assert!(groups.iter().all(|it| it["metric"]["groupname"].is_string()));
}

#[test]
fn a_process_name_cannot_add_labels_or_series() {
    let run = std::process::id();
    let _target = NamedProcess::start(&format!("a\"}} 1\nfake_metric{run}{{x=\"\\"));
    let folder = tempfile::tempdir().unwrap();
    let config = folder.path().join("groups.yml");
    let rule = format!(
        "process_names: [{{name: '{{{{.ExeFull}}}}', cmdline: ['^a.. 1.fake_metric{run}']}}]"
    );
    // `.` does not match a newline without the flag `s`.
    fs::write(&config, rule.replace("'^", "'(?s)^")).unwrap();
    let exporter = ServerProcess::export(&["--every", "1h", "--config", config.to_str().unwrap()]);
    let text = exporter.page("/metrics");
    assert!(!text.lines().any(|line| line.starts_with("fake_metric")), "{text}");
    let name = format!(r#"a\"}} 1\\nfake_metric{run}{{x=\"\\"#);
    assert!(
        text.contains(&format!("pagewise_group_processes{{groupname=\"{name}\"}} 1\n")),
        "{text}"
    );
}
