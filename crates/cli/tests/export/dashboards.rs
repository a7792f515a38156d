//! The dashboards have the form that the schema of Grafana and further rules require.

use std::collections::BTreeSet;
use std::fs;
use std::path::PathBuf;

use serde_json::Value;

use crate::prometheus::deploy;

/// Returns the dashboards with their file names.
pub(crate) fn dashboards() -> Vec<(String, Value)> {
    let files = fs::read_dir(deploy("grafana")).unwrap().map(|it| it.unwrap().path());
    let read = |path: PathBuf| {
        let name = path.file_name().unwrap().to_string_lossy().into_owned();
        (name, serde_json::from_slice(&fs::read(&path).unwrap()).unwrap())
    };
    files.map(read).collect()
}

/// Returns the queries of a dashboard.
pub(crate) fn queries(dashboard: &Value) -> Vec<String> {
    let panels = dashboard["panels"].as_array().unwrap();
    let targets = panels.iter().flat_map(|it| it["targets"].as_array().unwrap());
    targets.map(|it| it["expr"].as_str().unwrap().to_owned()).collect()
}

/// Returns the metrics in a query.
pub(crate) fn metrics(query: &str) -> Vec<&str> {
    let parts = query.split(|c: char| !(c.is_ascii_alphanumeric() || c == '_' || c == ':'));
    parts.filter(|it| it.starts_with("pagewise_")).collect()
}

#[test]
fn dashboards_have_the_form_that_grafana_loads() {
    let dashboards = dashboards();
    assert_eq!(dashboards.len(), 5);
    let mut uids = BTreeSet::new();
    for (file, dashboard) in &dashboards {
        assert!(uids.insert(dashboard["uid"].as_str().unwrap().to_owned()), "{file}: uid");
        assert!(!dashboard["title"].as_str().unwrap().is_empty());
        assert!(dashboard["schemaVersion"].as_u64().unwrap() >= 36);
        // A dashboard keeps the viewer's theme, light or dark: it sets neither a style nor a color
        // that fits only one theme.
        assert!(dashboard["style"].is_null(), "{file}: style");
        assert!(!dashboard.to_string().contains("\"#"), "{file}: a color as hexadecimal digits");
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

/// Keys of an object in the JSON schema that Grafana publishes with its Foundation SDK
/// (`dashboard`, `prometheus`, `timeseries`, `table`): the required keys, and the optional keys.
/// The schema allows no other keys.
struct ObjectKeys {
    needed: &'static [&'static str],
    allowed: &'static [&'static str],
}

const DASHBOARD: ObjectKeys = ObjectKeys {
    needed: &["schemaVersion", "templating", "annotations"],
    allowed: &[
        "id",
        "uid",
        "title",
        "description",
        "tags",
        "timezone",
        "editable",
        "graphTooltip",
        "time",
        "timepicker",
        "fiscalYearStartMonth",
        "liveNow",
        "weekStart",
        "refresh",
        "version",
        "panels",
        "links",
        "revision",
        "gnetId",
        "snapshot",
    ],
};
const LINK: ObjectKeys = ObjectKeys {
    needed: &[
        "title",
        "type",
        "icon",
        "tooltip",
        "tags",
        "asDropdown",
        "targetBlank",
        "includeVars",
        "keepTime",
    ],
    allowed: &["url"],
};
const VARIABLE: ObjectKeys = ObjectKeys {
    needed: &["type", "name"],
    allowed: &[
        "label",
        "hide",
        "skipUrlSync",
        "description",
        "query",
        "datasource",
        "multi",
        "options",
        "refresh",
        "sort",
        "includeAll",
        "allValue",
        "regex",
    ],
};
const PANEL: ObjectKeys = ObjectKeys {
    needed: &["type"],
    allowed: &[
        "id",
        "targets",
        "title",
        "description",
        "transparent",
        "datasource",
        "gridPos",
        "links",
        "repeat",
        "repeatDirection",
        "maxPerRow",
        "maxDataPoints",
        "transformations",
        "interval",
        "timeFrom",
        "timeShift",
        "hideTimeOverride",
        "options",
        "fieldConfig",
        "pluginVersion",
    ],
};
const FIELDS: ObjectKeys = ObjectKeys {
    needed: &[],
    allowed: &[
        "displayName",
        "description",
        "unit",
        "decimals",
        "min",
        "max",
        "mappings",
        "thresholds",
        "color",
        "links",
        "noValue",
        "custom",
    ],
};
const TARGET: ObjectKeys = ObjectKeys {
    needed: &["expr"],
    allowed: &[
        "instant",
        "range",
        "exemplar",
        "editorMode",
        "format",
        "legendFormat",
        "refId",
        "hide",
        "datasource",
        "interval",
        "queryType",
        "scope",
        "intervalFactor",
    ],
};
const SOURCE: ObjectKeys = ObjectKeys { needed: &[], allowed: &["type", "uid"] };
const POSITION: ObjectKeys = ObjectKeys { needed: &["h", "w", "x", "y"], allowed: &["static"] };
const TRANSFORMATION: ObjectKeys =
    ObjectKeys { needed: &["id", "options"], allowed: &["disabled", "filter"] };
/// Options of a panel, and settings of its fields, by the kind of the panel.
const PLUGINS: [(&str, ObjectKeys, ObjectKeys); 2] = [
    (
        "timeseries",
        ObjectKeys { needed: &["legend", "tooltip"], allowed: &["timezone"] },
        ObjectKeys {
            needed: &[],
            allowed: &[
                "stacking",
                "fillOpacity",
                "drawStyle",
                "lineWidth",
                "axisLabel",
                "showPoints",
            ],
        },
    ),
    (
        "table",
        ObjectKeys {
            needed: &["frameIndex", "showHeader"],
            allowed: &["showTypeIcons", "sortBy", "footer", "cellHeight"],
        },
        ObjectKeys {
            needed: &["align", "inspect"],
            allowed: &["width", "minWidth", "cellOptions", "hidden", "filterable", "hideHeader"],
        },
    ),
];

impl ObjectKeys {
    fn check(&self, object: &Value, of: &str) {
        let keys = object.as_object().unwrap_or_else(|| panic!("{of}: an object"));
        for key in self.needed {
            assert!(keys.contains_key(*key), "{of}: lacks {key}");
        }
        for key in keys.keys() {
            let key = key.as_str();
            assert!(self.needed.contains(&key) || self.allowed.contains(&key), "{of}: {key}");
        }
    }

    fn check_each(&self, list: &Value, of: &str) {
        list.as_array().unwrap().iter().for_each(|it| self.check(it, of));
    }
}

/// Checks that a value is one of the words that the schema allows.
fn is_one_of(value: &Value, words: &[&str], of: &str) {
    assert!(words.contains(&value.as_str().unwrap()), "{of}: {value}");
}

fn check_panel(panel: &Value, file: &str) {
    let of = &format!("{file}: {}", panel["title"]);
    PANEL.check(panel, of);
    POSITION.check(&panel["gridPos"], of);
    SOURCE.check(&panel["datasource"], of);
    TARGET.check_each(&panel["targets"], of);
    for target in panel["targets"].as_array().unwrap() {
        is_one_of(&target["editorMode"], &["code", "builder"], of);
        if let Some(format) = target.get("format") {
            is_one_of(format, &["time_series", "table", "heatmap"], of);
        }
    }
    if let Some(list) = panel.get("transformations") {
        TRANSFORMATION.check_each(list, of);
    }
    let (fields, overrides) =
        (&panel["fieldConfig"]["defaults"], &panel["fieldConfig"]["overrides"]);
    FIELDS.check(fields, of);
    assert!(overrides.is_array(), "{of}");
    let kind = panel["type"].as_str().unwrap();
    if let Some((_, options, custom)) = PLUGINS.iter().find(|it| it.0 == kind) {
        options.check(&panel["options"], of);
        if custom.needed.is_empty() && fields.get("custom").is_none() {
            return;
        }
        custom.check(&fields["custom"], of);
    }
}

#[test]
fn dashboards_follow_the_schema_that_grafana_publishes() {
    for (file, dashboard) in &dashboards() {
        DASHBOARD.check(dashboard, file);
        assert!([0, 1, 2].contains(&dashboard["graphTooltip"].as_u64().unwrap()), "{file}");
        LINK.check_each(&dashboard["links"], file);
        let variables = &dashboard["templating"]["list"];
        VARIABLE.check_each(variables, file);
        for variable in variables.as_array().unwrap() {
            is_one_of(&variable["type"], &["query", "datasource", "custom", "textbox"], file);
            assert!(variable["query"].is_string(), "{file}: {variable}");
        }
        dashboard["panels"].as_array().unwrap().iter().for_each(|it| check_panel(it, file));
    }
}

#[test]
fn dashboards_show_the_results_of_the_slow_cycle() {
    let all: Vec<String> = dashboards().iter().flat_map(|it| queries(&it.1)).collect();
    let used: BTreeSet<&str> = all.iter().flat_map(|it| metrics(it)).collect();
    let of_diagnosis = ["account_bytes", "headroom_bytes", "finding", "free_huge_bytes"];
    for name in of_diagnosis.iter().chain(&["free_unusable_ratio", "account_unaccounted_bytes"]) {
        assert!(used.contains(&*format!("pagewise_{name}")), "{name}");
    }
}
