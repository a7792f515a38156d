//! Checks that each dependency has the same features in the command and in the tests, so that both
//! are built from the same libraries.
//!
//! Cargo enables each feature that any of the selected packages requests, and the dependencies of
//! tests request additional features. A library with other features is compiled again, and so are
//! all crates that use it.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use anyhow::{Context, Result, bail};

/// Features of a package of the workspace that its tests and other packages enable. The command
/// itself is built without these features: counters of pools would slow down its experiments.
pub(crate) const FEATURES_OF_TESTS: &str = "pagewise-alloc/stats,pagewise-alloc/tests";

/// Options of `cargo tree` for the packages that `cargo test` builds.
const TESTS: &[&str] = &["--workspace", "--edges", "normal,build,dev"];

/// Other builds, which must use the same libraries, and their options of `cargo tree`.
const OTHERS: &[(&str, &[&str])] = &[
    (
        "the command",
        &["--package", "pagewise", "--edges", "normal,build", "--features", FEATURES_OF_TESTS],
    ),
    (
        "the documentation",
        &["--workspace", "--edges", "normal,build", "--features", FEATURES_OF_TESTS],
    ),
];

/// The features of each package, by the name and version of the package. Build scripts and macros
/// may use another variant of a package than the libraries.
type FeatureSets = BTreeMap<String, BTreeSet<String>>;

/// Returns a message for each package whose features differ.
pub(crate) fn check(root: &Path) -> Result<Vec<String>> {
    let tests = features(root, TESTS)?;
    let mut messages = Vec::new();
    for (name, options) in OTHERS {
        let others = features(root, options)?;
        messages.extend(differences(name, &others, &tests));
    }
    Ok(messages)
}

fn features(root: &Path, options: &[&str]) -> Result<FeatureSets> {
    let output = crate::cargo()
        .args(["tree", "--offline", "--prefix", "none", "--format", "{p}\t{f}"])
        .args(options)
        .current_dir(root)
        .output()
        .context("cargo tree")?;
    if !output.status.success() {
        bail!("cargo tree: {}", String::from_utf8_lossy(&output.stderr));
    }
    Ok(parse(&String::from_utf8_lossy(&output.stdout)))
}

/// Reads lines such as `regex v1.13.1<TAB>std,unicode-perl (*)`.
fn parse(tree: &str) -> FeatureSets {
    let mut sets = FeatureSets::new();
    for (package, features) in tree.lines().filter_map(|line| line.split_once('\t')) {
        let name: Vec<&str> = package.split_whitespace().take(2).collect();
        let features = features.trim_end_matches("(*)").trim_end();
        sets.entry(name.join(" ")).or_default().insert(features.to_owned());
    }
    sets
}

fn differences(name: &str, others: &FeatureSets, tests: &FeatureSets) -> Vec<String> {
    let mut messages = Vec::new();
    for (package, sets) in others {
        let Some(of_tests) = tests.get(package) else { continue };
        for features in sets.difference(of_tests) {
            let of_tests: Vec<&str> = of_tests.iter().map(String::as_str).collect();
            let of_tests = of_tests.join("] or [");
            messages.push(format!(
                "{package} has the features [{features}] in {name} and [{of_tests}] in the tests"
            ));
        }
    }
    messages
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_feature_that_only_tests_turn_on_is_named() {
        let tests = parse("a v1.0.0\tstd,x\nb v1.0.0 (/b)\t\n");
        let same = parse("a v1.0.0\tstd,x (*)\n");
        assert!(differences("c", &same, &tests).is_empty());
        let other = parse("a v1.0.0\tstd\nb v1.0.0 (/b)\t (*)\n");
        let message = "a v1.0.0 has the features [std] in c and [std,x] in the tests";
        assert_eq!(differences("c", &other, &tests), [message]);
    }
}
