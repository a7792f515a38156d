//! Results of features and tests in virtual machines as tables of `docs/kernels.md`.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write;

use anyhow::{Context, Result};
use pagewise_vm::VmResult;
use serde_json::Value;

use super::text;

/// The tables are between these lines.
const BEGIN: &str = "<!-- Written by `cargo xtask kernels`. -->";
const END: &str = "<!-- End of the tables. -->";

/// Readers, by the user that runs the command, and the heading of their table.
const READERS: [(&str, &str); 3] =
    [("root", "Root"), ("user", "Owner of the target"), ("nobody", "Another user")];

/// One run of a feature.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct FeatureRun {
    release: String,
    machine: String,
    feature: String,
    reader: String,
    outcome: Outcome,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Outcome {
    Works,
    /// It works without values that are absent for these reasons.
    Without(BTreeSet<String>),
    /// It ended with this message.
    Refused(String),
}

impl FeatureRun {
    /// The runs that a machine reports.
    pub(super) fn parse(
        result: &VmResult,
        release: &str,
        machine: &str,
    ) -> Result<Vec<FeatureRun>> {
        let lines = text(result, "features.tsv")?;
        let run = |line: &str| {
            let [feature, reader, status, said] = line.split('\t').collect::<Vec<_>>()[..] else {
                return None;
            };
            let json = result.file(&format!("json/{feature}-{reader}.json"));
            let report = json.and_then(|json| serde_json::from_slice(json).ok());
            Some(FeatureRun {
                release: release.to_owned(),
                machine: machine.to_owned(),
                feature: feature.to_owned(),
                reader: reader.to_owned(),
                outcome: Outcome::of(status, said, report.as_ref()),
            })
        };
        Ok(lines.lines().filter_map(run).collect())
    }
}

impl Outcome {
    fn of(status: &str, said: &str, report: Option<&Value>) -> Outcome {
        match status {
            "0" => {
                let mut reasons = BTreeSet::new();
                if let Some(report) = report {
                    absences(report, &mut reasons);
                }
                if reasons.is_empty() { Outcome::Works } else { Outcome::Without(reasons) }
            }
            // The status of `timeout`.
            "143" | "124" => Outcome::Refused(format!("no end after 90 s: {}", clean(said))),
            _ => Outcome::Refused(clean(said)),
        }
    }
}

/// Messages without numbers that differ from run to run.
fn clean(said: &str) -> String {
    let said = said.trim().trim_start_matches("pagewise: ");
    let words = said.split_whitespace().map(|word| {
        let digits = word.trim_matches(|sign: char| !sign.is_ascii_digit());
        if digits.len() > 1 && digits.bytes().all(|digit| digit.is_ascii_digit()) {
            word.replace(digits, "N")
        } else {
            word.to_owned()
        }
    });
    words.collect::<Vec<_>>().join(" ").replace('|', "\\|")
}

/// Each reason of an absent value, with the first keys that lead to it.
fn absences(value: &Value, reasons: &mut BTreeSet<String>) {
    match value {
        Value::Object(object) => {
            if let Some(Value::String(reason)) = object.get("absent") {
                reasons.insert(clean(reason));
            }
            object.values().for_each(|value| absences(value, reasons));
        }
        Value::Array(array) => array.iter().for_each(|value| absences(value, reasons)),
        _ => {}
    }
}

/// One run of a test program.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct TestRun {
    release: String,
    machine: String,
    program: String,
    reader: String,
    passed: u64,
    skipped: u64,
    /// Names of the tests that failed; what ended the program if it had no summary.
    failed: Vec<String>,
}

impl TestRun {
    pub(super) fn parse(result: &VmResult, release: &str, machine: &str) -> Result<Vec<TestRun>> {
        let lines = text(result, "tests.tsv")?;
        let run = |line: &str| {
            let fields: Vec<&str> = line.split('\t').collect();
            let [program, reader, status, summary, skipped, failed] = fields[..] else {
                return None;
            };
            let passed = summary.split(". ").nth(1).and_then(|counts| counts.split(' ').next());
            let skipped = skipped.parse().unwrap_or(0);
            let mut failed: Vec<String> = failed.split_whitespace().map(str::to_owned).collect();
            if status != "0" && failed.is_empty() {
                failed.push(format!("{program} ends with {status}"));
            }
            Some(TestRun {
                release: release.to_owned(),
                machine: machine.to_owned(),
                program: program.to_owned(),
                reader: reader.to_owned(),
                // libtest counts a skipped test as passed.
                passed: passed
                    .and_then(|it| it.parse::<u64>().ok())
                    .unwrap_or(0)
                    .saturating_sub(skipped),
                skipped,
                failed,
            })
        };
        Ok(lines.lines().filter_map(run).collect())
    }
}

/// The document with new tables.
pub(super) fn update(before: &str, features: &[FeatureRun], tests: &[TestRun]) -> Result<String> {
    let (head, rest) =
        before.split_once(BEGIN).context("docs/kernels.md has no place for tables")?;
    let (_, tail) = rest.split_once(END).context("docs/kernels.md has no end of the tables")?;
    let mut out = format!("{head}{BEGIN}\n");
    let mut notes = Notes::default();
    for (reader, heading) in READERS {
        write!(out, "\n### {heading}\n\n")?;
        feature_table(&mut out, reader, features, &mut notes)?;
    }
    out += "\nReasons:\n\n";
    for (number, note) in notes.texts.iter().enumerate() {
        writeln!(out, "{}. {note}", number + 1)?;
    }
    if !tests.is_empty() {
        out += "\n### Tests\n\n";
        test_table(&mut out, tests)?;
    }
    Ok(format!("{out}\n{END}{tail}"))
}

/// Reasons, each with a number.
#[derive(Default)]
struct Notes {
    texts: Vec<String>,
}

impl Notes {
    fn number(&mut self, text: &str) -> usize {
        let known = self.texts.iter().position(|it| it == text);
        known.unwrap_or_else(|| {
            self.texts.push(text.to_owned());
            self.texts.len() - 1
        }) + 1
    }

    fn mark(&mut self, outcome: &Outcome) -> String {
        let mut list = |texts: &mut dyn Iterator<Item = &String>| {
            let numbers: Vec<String> = texts.map(|text| self.number(text).to_string()).collect();
            numbers.join(", ")
        };
        match outcome {
            Outcome::Works => "yes".to_owned(),
            Outcome::Without(reasons) => format!("yes, without ({})", list(&mut reasons.iter())),
            Outcome::Refused(why) => format!("no ({})", list(&mut [why].into_iter())),
        }
    }
}

/// Elements in the order of their first occurrence.
fn distinct<'a>(all: impl Iterator<Item = &'a str>) -> Vec<&'a str> {
    let mut list = Vec::new();
    for one in all {
        if !list.contains(&one) {
            list.push(one);
        }
    }
    list
}

fn feature_table(
    out: &mut String,
    reader: &str,
    runs: &[FeatureRun],
    notes: &mut Notes,
) -> Result<()> {
    let releases = distinct(runs.iter().map(|run| run.release.as_str()));
    writeln!(out, "| feature | {} |", releases.join(" | "))?;
    writeln!(out, "|---|{}", "---|".repeat(releases.len()))?;
    for feature in distinct(runs.iter().map(|run| run.feature.as_str())) {
        write!(out, "| `{feature}` |")?;
        for release in &releases {
            let of = |run: &&FeatureRun| {
                run.feature == feature && run.reader == reader && run.release == *release
            };
            // Machines with the same outcome share an entry of the cell.
            let mut cells: BTreeMap<String, Vec<&str>> = BTreeMap::new();
            for run in runs.iter().filter(of) {
                cells.entry(notes.mark(&run.outcome)).or_default().push(&run.machine);
            }
            let cells: Vec<String> = match cells.len() {
                1 => cells.into_keys().collect(),
                _ => cells.iter().map(|(mark, of)| format!("{}: {mark}", of.join(", "))).collect(),
            };
            write!(out, " {} |", cells.join("; "))?;
        }
        out.push('\n');
    }
    Ok(())
}

fn test_table(out: &mut String, runs: &[TestRun]) -> Result<()> {
    out.push_str(
        "| kernel | machine | user | passed | skipped | failed |\n|---|---|---|---|---|---|\n",
    );
    let mut sums: Vec<(String, u64, u64, Vec<String>)> = Vec::new();
    for run in runs {
        let key = format!("{} | {} | {}", run.release, run.machine, run.reader);
        let at = sums.iter().position(|(known, ..)| *known == key).unwrap_or_else(|| {
            sums.push((key, 0, 0, Vec::new()));
            sums.len() - 1
        });
        sums[at].1 += run.passed;
        sums[at].2 += run.skipped;
        sums[at].3.extend(run.failed.iter().map(|name| format!("`{name}`")));
    }
    for (key, passed, skipped, failed) in sums {
        let failed = if failed.is_empty() { "0".to_owned() } else { failed.join(", ") };
        writeln!(out, "| {key} | {passed} | {skipped} | {failed} |")?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run(machine: &str, outcome: Outcome) -> FeatureRun {
        FeatureRun {
            release: "6.1".to_owned(),
            machine: machine.to_owned(),
            feature: "explain".to_owned(),
            reader: "root".to_owned(),
            outcome,
        }
    }

    #[test]
    fn machines_with_the_same_outcome_share_a_cell() {
        let refused = Outcome::of("1", "pagewise: process 1234 cannot be read", None);
        let runs = [run("a", Outcome::Works), run("b", Outcome::Works), run("c", refused)];
        let (mut out, mut notes) = (String::new(), Notes::default());
        feature_table(&mut out, "root", &runs, &mut notes).unwrap();
        assert!(out.contains("| `explain` | c: no (1); a, b: yes |"), "{out}");
        assert_eq!(notes.texts, ["process N cannot be read"]);
    }

    #[test]
    fn reasons_of_absent_values_are_kept() {
        let report =
            serde_json::json!({"a": [{"absent": "needs root"}], "b": {"absent": "needs root"}});
        let outcome = Outcome::of("0", "", Some(&report));
        assert_eq!(outcome, Outcome::Without(["needs root".to_owned()].into()));
    }

    #[test]
    fn only_the_tables_change() {
        let before = format!("head\n{BEGIN}\nold\n{END}\ntail\n");
        let after = update(&before, &[run("a", Outcome::Works)], &[]).unwrap();
        assert!(after.starts_with("head\n") && after.ends_with("tail\n") && !after.contains("old"));
        assert_eq!(update(&after, &[run("a", Outcome::Works)], &[]).unwrap(), after);
    }
}
