//! Permitted dependencies between crates: the table of ARCHITECTURE.md, checked with
//! `cargo metadata`.

use std::path::Path;

use anyhow::{Context, Result, bail, ensure};
use serde_json::Value;

/// Each crate, by its folder, and the crates of this workspace that it may use.
///
/// The table applies to the dependencies with which a crate is built. The tests of a crate may use
/// more crates: they compare the results of two crates without adding a dependency to either crate.
const GRAPH: &[(&str, &[&str])] = &[
    ("model", &[]),
    ("sys", &[]),
    ("heaplog", &[]),
    ("stats", &[]),
    ("sim", &[]),
    ("alloc", &[]),
    ("proc", &["model", "sys"]),
    ("measure", &["model", "sys", "proc", "stats"]),
    ("remote", &["model", "sys", "proc"]),
    ("vm", &["model", "sys"]),
    ("repair", &["model", "sys", "proc", "remote", "heap"]),
    ("scan", &["model", "sys", "proc", "remote", "heaplog"]),
    ("analysis", &["model", "stats"]),
    ("view", &["model"]),
    ("tui", &["model", "view"]),
    ("capi", &["alloc", "measure", "model"]),
    ("malloc", &["alloc"]),
    ("preload", &["heaplog"]),
    ("labmem", &["sys"]),
    ("lab", &["model", "sys", "labmem", "proc", "measure", "stats", "sim", "alloc", "vm"]),
    ("trace", &["model", "sys", "proc"]),
    ("sampler", &["model", "sys", "proc"]),
    ("store", &["model"]),
    ("exporter", &["model"]),
    ("diagnose", &["model", "sys", "proc", "scan", "trace"]),
    ("heapread", &["model", "trace", "heaplog"]),
    ("heap", &["model", "sys", "proc", "trace", "heaplog", "heapread", "remote"]),
    (
        "cli",
        &[
            "model", "sys", "heaplog", "stats", "sim", "alloc", "proc", "repair", "measure",
            "analysis", "view", "lab", "trace", "heap", "heapread", "remote", "scan", "diagnose",
            "sampler", "store", "tui", "exporter", "vm",
        ],
    ),
    ("skip", &[]),
    ("corpus", &[]),
    ("xtask", &["corpus", "model", "vm"]),
];

/// One crate of the workspace and the crates of the workspace that it uses, by folder.
#[derive(Debug)]
pub(crate) struct Crate {
    name: String,
    manifest: String,
    uses: Vec<String>,
}

/// Returns the crates of the workspace at `root`.
pub(crate) fn crates(root: &Path) -> Result<Vec<Crate>> {
    let output = crate::cargo()
        .args(["metadata", "--format-version=1", "--no-deps", "--offline"])
        .current_dir(root)
        .output()
        .context("cargo metadata")?;
    if !output.status.success() {
        bail!("cargo metadata: {}", String::from_utf8_lossy(&output.stderr));
    }
    parse(&output.stdout)
}

/// Reads the output of `cargo metadata`.
fn parse(metadata: &[u8]) -> Result<Vec<Crate>> {
    let metadata: Value = serde_json::from_slice(metadata).context("cargo metadata")?;
    let packages = metadata["packages"].as_array().context("cargo metadata lists no packages")?;
    ensure!(!packages.is_empty(), "cargo metadata lists no packages");
    Ok(packages.iter().map(krate).collect())
}

fn krate(package: &Value) -> Crate {
    let dependencies = package["dependencies"].as_array().map_or(&[][..], Vec::as_slice);
    let ours = dependencies.iter().filter(|d| d["path"].is_string() && d["kind"] != "dev");
    Crate {
        name: folder(&package["name"]),
        manifest: text(&package["manifest_path"]),
        uses: ours.map(|dependency| folder(&dependency["name"])).collect(),
    }
}

/// Returns the folder of a package: `pagewise-proc` is in `proc`, `pagewise` in `cli`.
fn folder(package: &Value) -> String {
    match text(package).as_str() {
        "pagewise" => "cli".to_owned(),
        name => name.strip_prefix("pagewise-").unwrap_or(name).to_owned(),
    }
}

fn text(value: &Value) -> String {
    value.as_str().unwrap_or_default().to_owned()
}

/// Returns the problems of the crates, as `(manifest, message)`.
pub(crate) fn check(crates: &[Crate]) -> Vec<(String, String)> {
    let mut problems = Vec::new();
    for krate in crates {
        let name = &krate.name;
        let Some((_, allowed)) = GRAPH.iter().find(|(known, _)| known == name) else {
            let message = format!("{name} has no row in GRAPH of xtask/src/graph.rs");
            problems.push((krate.manifest.clone(), message));
            continue;
        };
        for used in krate.uses.iter().filter(|used| !allowed.contains(&used.as_str())) {
            problems.push((krate.manifest.clone(), format!("{name} may not use {used}")));
        }
    }
    problems
}

#[cfg(test)]
mod tests {
    use super::*;

    fn messages(package: &str, dependencies: &str) -> Vec<String> {
        let json = format!(
            r#"{{"packages": [{{"name": "{package}", "manifest_path": "Cargo.toml",
                 "dependencies": [{dependencies}]}}]}}"#
        );
        check(&parse(json.as_bytes()).unwrap()).into_iter().map(|(_, message)| message).collect()
    }

    #[test]
    fn an_extra_edge_is_named() {
        let lab = r#"{"name": "pagewise-lab", "path": "/x", "kind": null}"#;
        assert_eq!(messages("pagewise-proc", lab), ["proc may not use lab"]);
    }

    #[test]
    fn a_drawn_edge_a_test_dependency_and_a_foreign_crate_are_fine() {
        let model = r#"{"name": "pagewise-model", "path": "/x", "kind": null}"#;
        let proc = r#"{"name": "pagewise-proc", "path": "/x", "kind": "dev"}"#;
        let serde = r#"{"name": "serde", "kind": null}"#;
        let dependencies = [model, proc, serde].join(",");
        assert!(messages("pagewise-analysis", &dependencies).is_empty());
    }

    #[test]
    fn a_crate_without_a_row_is_named() {
        assert_eq!(messages("pagewise-new", ""), ["new has no row in GRAPH of xtask/src/graph.rs"]);
    }

    #[test]
    fn no_row_allows_a_crate_to_use_itself_or_one_that_has_no_row() {
        for (name, allowed) in GRAPH {
            assert!(!allowed.contains(name), "{name}");
            for used in *allowed {
                assert!(GRAPH.iter().any(|(known, _)| known == used), "{name} uses {used}");
            }
        }
    }
}
