//! A real Prometheus scrapes the exporter, and is asked the queries of dashboards and rules.

use std::collections::BTreeSet;
use std::fs;
use std::path::PathBuf;
use std::process::Command;

use pagewise_exporter::metric_catalogue;
use pagewise_skip::{Lack, skip};
use serde_json::Value;

use crate::server::{NamedProcess, ServerProcess, free_address, get, url_encoded, wait};

fn deploy(path: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR"))
        .join("../../deploy")
        .join(path)
        .canonicalize()
        .unwrap()
}

/// The dashboards with their file names.
fn dashboards() -> Vec<(String, Value)> {
    let files = fs::read_dir(deploy("grafana")).unwrap().map(|it| it.unwrap().path());
    let read = |path: PathBuf| {
        let name = path.file_name().unwrap().to_string_lossy().into_owned();
        (name, serde_json::from_slice(&fs::read(&path).unwrap()).unwrap())
    };
    files.map(read).collect()
}

/// The queries of a dashboard.
fn queries(dashboard: &Value) -> Vec<String> {
    let panels = dashboard["panels"].as_array().unwrap();
    let targets = panels.iter().flat_map(|it| it["targets"].as_array().unwrap());
    targets.map(|it| it["expr"].as_str().unwrap().to_owned()).collect()
}

/// The metrics in a query.
fn metrics(query: &str) -> Vec<&str> {
    let parts = query.split(|c: char| !(c.is_ascii_alphanumeric() || c == '_' || c == ':'));
    parts.filter(|it| it.starts_with("pagewise_")).collect()
}

#[test]
fn dashboards_have_the_form_that_grafana_loads() {
    let dashboards = dashboards();
    assert_eq!(dashboards.len(), 4);
    let mut uids = BTreeSet::new();
    for (file, dashboard) in &dashboards {
        assert!(uids.insert(dashboard["uid"].as_str().unwrap().to_owned()), "{file}: uid");
        assert!(!dashboard["title"].as_str().unwrap().is_empty());
        assert!(dashboard["schemaVersion"].as_u64().unwrap() >= 36);
        let variables = dashboard["templating"]["list"].as_array().unwrap();
        let variables: BTreeSet<&str> =
            variables.iter().map(|it| it["name"].as_str().unwrap()).collect();
        let mut cells = BTreeSet::new();
        let mut ids = BTreeSet::new();
        for panel in dashboard["panels"].as_array().unwrap() {
            let title = panel["title"].as_str().unwrap();
            assert!(ids.insert(panel["id"].as_u64().unwrap()), "{file}: {title}: id");
            assert!(!panel["description"].as_str().unwrap().is_empty(), "{file}: {title}");
            assert!(panel["fieldConfig"]["defaults"]["unit"].is_string(), "{file}: {title}: unit");
            let side = |key: &str| panel["gridPos"][key].as_u64().unwrap();
            assert!(side("x") + side("w") <= 24, "{file}: {title}: width");
            for x in side("x")..side("x") + side("w") {
                for y in side("y")..side("y") + side("h") {
                    assert!(cells.insert((x, y)), "{file}: {title} overlaps another panel");
                }
            }
            for target in panel["targets"].as_array().unwrap() {
                assert_eq!(target["datasource"]["uid"], "${datasource}", "{file}: {title}");
                let query = target["expr"].as_str().unwrap();
                let used = query.split('$').skip(1).map(|it| it.trim_start_matches("__"));
                for name in used {
                    let end = name.find(|c: char| !c.is_ascii_alphanumeric() && c != '_');
                    let name = &name[..end.unwrap_or(name.len())];
                    assert!(name == "rate_interval" || variables.contains(name), "{file}: ${name}");
                }
            }
        }
    }
}

#[test]
fn rules_are_accepted_and_their_alerts_fire_and_stop() {
    let test = deploy("prometheus/pagewise.rules.test.yml");
    let output = Command::new("promtool").args(["test", "rules"]).arg(test).output();
    let Ok(output) = output else { return skip(&Lack::Tool("promtool")) };
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stdout));
}

/// The result of an instant query.
fn ask(prometheus: &ServerProcess, query: &str) -> Vec<Value> {
    let path = format!("/api/v1/query?query={}", url_encoded(query));
    let (status, body) = get(prometheus.address, &path).unwrap();
    assert_eq!(status, 200, "{query}: {body}");
    let answer: Value = serde_json::from_str(&body).unwrap();
    assert_eq!(answer["status"], "success", "{query}: {body}");
    answer["data"]["result"].as_array().unwrap().clone()
}

#[test]
fn prometheus_scrapes_and_answers_every_query_of_dashboards_and_rules() {
    let exporter = ServerProcess::export(&["--every", "500ms"]);
    let folder = tempfile::tempdir().unwrap();
    let config = folder.path().join("prometheus.yml");
    let rules = deploy("prometheus/pagewise.rules.yml");
    let text = format!(
        "global: {{scrape_interval: 1s, evaluation_interval: 1s}}\nscrape_configs:\n  - job_name: pagewise\n    \
         static_configs: [{{targets: ['{}']}}]\nrule_files: ['{}']\n",
        exporter.address,
        rules.display()
    );
    fs::write(&config, text).unwrap();
    let address = free_address();
    let (data, listen) = (folder.path().join("data"), format!("--web.listen-address={address}"));
    let config = format!("--config.file={}", config.display());
    let data = format!("--storage.tsdb.path={}", data.display());
    let Some(prometheus) = ServerProcess::other("prometheus", &[&config, &data, &listen], address)
    else {
        return skip(&Lack::Tool("prometheus"));
    };
    prometheus.wait_for("/-/ready");
    wait("five scrapes", || {
        let counts = ask(&prometheus, "count_over_time(pagewise_sweeps_total[5m])");
        counts
            .first()
            .is_some_and(|it| it["value"][1].as_str().unwrap().parse::<f64>().unwrap() >= 5.0)
    });
    // A scrape with an error has none of its series.
    assert_eq!(ask(&prometheus, "up")[0]["value"][1], "1");

    let scraped = exporter.page("/metrics");
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
            let result = ask(&prometheus, &query);
            // Machines without PSI or a memory cgroup lack some metrics; few have a limit.
            let has_all = metrics.iter().all(|it| scraped.contains(&format!("\n{it}{{")));
            assert!(!result.is_empty() || !has_all || query.contains("< Inf"), "{file}: {query}");
        }
    }
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
    let groups = ask(&prometheus, "pagewise:group_memory_bytes");
    assert!(!groups.is_empty());
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
