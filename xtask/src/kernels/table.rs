//! Results of features and tests in virtual machines as tables of `docs/kernels.md`.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write;
use std::fs;
use std::path::Path;

use anyhow::{Context, Result};
use serde_json::Value;

/// Lines of the document before and after the tables.
const BEGIN: &str = "<!-- Written by `cargo xtask kernels`. -->";
const END: &str = "<!-- End of the tables. -->";

/// Users that run the command, each with the heading of their table.
const READERS: [(&str, &str); 3] =
    [("root", "Root"), ("user", "Owner of the target"), ("nobody", "Another user")];

/// Records of one machine.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct MachineResults {
    release: String,
    machine: String,
    features: Vec<FeatureRun>,
    tests: Vec<TestRun>,
}

/// One run of a feature.
#[derive(Clone, Debug, PartialEq, Eq)]
struct FeatureRun {
    feature: String,
    reader: String,
    outcome: Outcome,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Outcome {
    Works,
    /// The command works, but values are absent for these reasons.
    Without(BTreeSet<String>),
    /// The command ended with this message.
    Refused(String),
}

/// One run of a test program.
#[derive(Clone, Debug, PartialEq, Eq)]
struct TestRun {
    reader: String,
    passed: u64,
    skipped: u64,
    /// Names of the failed tests; the reason of the program's end if it printed no summary.
    failed: Vec<String>,
}

impl MachineResults {
    /// Names of the files of records in the folder of a machine.
    const FILES: [&'static str; 2] = ["features", "tests"];

    /// Returns the results in `RELEASE/MACHINE` below a folder, the oldest kernel first.
    pub(super) fn read_all(folder: &Path, machines: &[&str]) -> Result<Vec<MachineResults>> {
        let entries = fs::read_dir(folder).with_context(|| folder.display().to_string())?;
        let mut releases: Vec<_> = entries.flatten().map(|entry| entry.path()).collect();
        releases.sort_by_key(|path| version(&path.to_string_lossy()));
        let mut all = Vec::new();
        for (release, machine) in
            releases.iter().flat_map(|release| machines.iter().map(move |it| (release, it)))
        {
            let folder = release.join(machine);
            let files = MachineResults::FILES.map(|name| fs::read(folder.join(name)).ok());
            let records = files.into_iter().flatten().collect::<Vec<_>>().join(&b'\n');
            if !records.is_empty() {
                all.push(MachineResults::parse(&String::from_utf8_lossy(&records), machine));
            }
        }
        Ok(all)
    }

    /// Parses the records that a machine has sent. The last line of a machine that was ended may be
    /// cut off.
    fn parse(records: &str, machine: &str) -> MachineResults {
        let mut results =
            MachineResults { machine: machine.to_owned(), ..MachineResults::default() };
        let mut ended: Vec<[&str; 4]> = Vec::new();
        let mut reports: BTreeMap<(&str, &str), Value> = BTreeMap::new();
        for line in records.lines() {
            match line.split('\t').collect::<Vec<_>>()[..] {
                ["release", release] => results.release = release.to_owned(),
                ["feature", name, reader, status, _, said] => {
                    ended.push([name, reader, status, said]);
                }
                ["report", name, reader, json] => {
                    let report = serde_json::from_str(json);
                    report.into_iter().for_each(|it| drop(reports.insert((name, reader), it)));
                }
                ["test", program, reader, status, _, skipped, summary, failed] => {
                    let run = TestRun::of(program, reader, status, skipped, summary, failed);
                    results.tests.push(run);
                }
                _ => {}
            }
        }
        let run = |[name, reader, status, said]: [&str; 4]| FeatureRun {
            feature: name.to_owned(),
            reader: reader.to_owned(),
            outcome: Outcome::of(status, said, reports.get(&(name, reader))),
        };
        results.features = ended.into_iter().map(run).collect();
        results
    }
}

/// Returns the numbers in the name of a kernel, which order kernels by age.
fn version(release: &str) -> Vec<u64> {
    let name = release.rsplit('/').next().unwrap_or_default();
    name.split(|sign: char| !sign.is_ascii_digit()).map_while(|part| part.parse().ok()).collect()
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
            // With these statuses, `timeout` reports that it ended the command.
            "143" | "124" => Outcome::Refused(format!("no end after 200 s: {}", clean(said))),
            _ => Outcome::Refused(clean(said)),
        }
    }
}

/// Returns a message without the numbers and addresses that differ from run to run.
fn clean(said: &str) -> String {
    let said = said.trim().trim_start_matches("pagewise: ");
    let words = said.split_whitespace().map(|word| {
        if let Some(address) = word.strip_prefix("0x") {
            let end = address.trim_start_matches(|sign: char| sign.is_ascii_hexdigit());
            return format!("ADDRESS{end}");
        }
        let digits = word.trim_matches(|sign: char| !sign.is_ascii_digit());
        if digits.len() > 1 && digits.bytes().all(|digit| digit.is_ascii_digit()) {
            word.replace(digits, "N")
        } else {
            word.to_owned()
        }
    });
    words.collect::<Vec<_>>().join(" ").replace('`', "'")
}

/// Collects each reason of an absent value. Leaves out values that other options of the command
/// collect, and values that depend on the target and not on the kernel.
fn absences(value: &Value, reasons: &mut BTreeSet<String>) {
    match value {
        Value::Object(object) => {
            if let Some(Value::String(reason)) = object.get("absent") {
                let is_other =
                    ["not collected", "ambiguous"].iter().any(|it| reason.starts_with(it));
                reasons.extend((!is_other).then(|| clean(reason)));
            }
            object.values().for_each(|value| absences(value, reasons));
        }
        Value::Array(array) => array.iter().for_each(|value| absences(value, reasons)),
        _ => {}
    }
}

impl TestRun {
    fn of(
        program: &str,
        reader: &str,
        status: &str,
        skipped: &str,
        summary: &str,
        failed: &str,
    ) -> TestRun {
        let passed = summary.split(". ").nth(1).and_then(|counts| counts.split(' ').next());
        let passed: u64 = passed.and_then(|it| it.parse().ok()).unwrap_or(0);
        let skipped = skipped.parse().unwrap_or(0);
        let named = failed.split_whitespace().map(|name| format!("{program}: {name}"));
        let mut failed: Vec<String> = named.collect();
        if status != "0" && failed.is_empty() {
            failed.push(format!("{program} ends with {status}"));
        }
        TestRun {
            reader: reader.to_owned(),
            // libtest counts a skipped test as passed.
            passed: passed.saturating_sub(skipped),
            skipped,
            failed,
        }
    }
}

/// Returns the document with new tables.
pub(super) fn update(before: &str, results: &[MachineResults]) -> Result<String> {
    let (head, rest) =
        before.split_once(BEGIN).context("docs/kernels.md has no place for tables")?;
    let (_, tail) = rest.split_once(END).context("docs/kernels.md has no end of the tables")?;
    let mut out = format!("{head}{BEGIN}\n");
    let mut notes = Notes::default();
    for (reader, heading) in READERS {
        write!(out, "\n### {heading}\n\n")?;
        feature_table(&mut out, reader, results, &mut notes)?;
    }
    out += "\nReasons, in the words of pagewise (N is a number, ADDRESS an address):\n\n";
    for (number, note) in notes.texts.iter().enumerate() {
        writeln!(out, "{}. `{note}`", number + 1)?;
    }
    if results.iter().any(|machine| !machine.tests.is_empty()) {
        out += "\n### Tests\n\n";
        test_table(&mut out, results)?;
    }
    Ok(format!("{out}\n{END}{tail}"))
}

/// Reasons in notes below the tables, each with a number.
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

/// Returns the elements in the order of their first occurrence.
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
    results: &[MachineResults],
    notes: &mut Notes,
) -> Result<()> {
    let releases = distinct(results.iter().map(|machine| machine.release.as_str()));
    let features = results.iter().flat_map(|machine| &machine.features);
    writeln!(out, "| feature | {} |", releases.join(" | "))?;
    writeln!(out, "|---|{}", "---|".repeat(releases.len()))?;
    for feature in distinct(features.map(|run| run.feature.as_str())) {
        write!(out, "| `{feature}` |")?;
        for release in &releases {
            let of_release: Vec<&MachineResults> =
                results.iter().filter(|machine| machine.release == *release).collect();
            // Machines with the same outcome share an entry of the cell.
            let mut cells: BTreeMap<String, Vec<&str>> = BTreeMap::new();
            for machine in of_release {
                let is_it = |run: &&FeatureRun| run.feature == feature && run.reader == reader;
                let run = machine.features.iter().find(is_it);
                let mark = run.map_or("not run".to_owned(), |run| notes.mark(&run.outcome));
                cells.entry(mark).or_default().push(&machine.machine);
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

fn test_table(out: &mut String, results: &[MachineResults]) -> Result<()> {
    out.push_str(
        "| kernel | machine | user | programs | passed | skipped | failed |\n|---|---|---|---|---|---|---|\n",
    );
    for machine in results {
        for reader in distinct(machine.tests.iter().map(|run| run.reader.as_str())) {
            let runs = || machine.tests.iter().filter(|run| run.reader == reader);
            let passed: u64 = runs().map(|run| run.passed).sum();
            let skipped: u64 = runs().map(|run| run.skipped).sum();
            let failed: Vec<String> =
                runs().flat_map(|run| &run.failed).map(|name| format!("`{name}`")).collect();
            let failed = if failed.is_empty() { "0".to_owned() } else { failed.join(", ") };
            let (release, name, programs) = (&machine.release, &machine.machine, runs().count());
            writeln!(
                out,
                "| {release} | {name} | {reader} | {programs} | {passed} | {skipped} | {failed} |"
            )?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn machine(name: &str, record: &str) -> MachineResults {
        MachineResults::parse(&format!("release\t6.1\n{record}"), name)
    }

    #[test]
    fn machines_with_the_same_outcome_share_a_cell() {
        let works = "feature\texplain\troot\t0\t1\t\n";
        let refused = "feature\texplain\troot\t1\t1\tpagewise: process 1234 cannot be read\n";
        let all = [machine("a", works), machine("b", works), machine("c", refused)];
        let (mut out, mut notes) = (String::new(), Notes::default());
        feature_table(&mut out, "root", &all, &mut notes).unwrap();
        assert!(out.contains("| `explain` | c: no (1); a, b: yes |"), "{out}");
        assert_eq!(notes.texts, ["process N cannot be read"]);
    }

    #[test]
    fn messages_of_two_runs_are_equal() {
        let said = |at, pid| clean(&format!("pagewise: 8 bytes at {at}: process {pid} of `a`\n"));
        assert_eq!(said("0x55ef1830bc80", 1234), "8 bytes at ADDRESS: process N of 'a'");
        assert_eq!(said("0x7f00", 99), said("0x55ef1830bc80", 1234));
    }

    #[test]
    fn reasons_of_absent_values_are_kept() {
        let records = "feature\tps\troot\t0\t1\t\nreport\tps\troot\t\
                       {\"a\": [{\"absent\": \"needs root\"}], \"b\": {\"absent\": \"needs root\"}, \
                       \"c\": {\"absent\": \"not collected: use --full\"}, \
                       \"d\": {\"absent\": \"ambiguous: it has two\"}}\n";
        let results = machine("a", records);
        assert_eq!(results.features[0].outcome, Outcome::Without(["needs root".to_owned()].into()));
    }

    #[test]
    fn a_machine_that_was_ended_early_has_the_results_that_it_sent() {
        let records = "feature\tps\troot\t0\t1\t\nfeature\tmaps\tro";
        let all = [machine("a", records), machine("b", "feature\tmaps\troot\t0\t1\t\n")];
        let (mut out, mut notes) = (String::new(), Notes::default());
        feature_table(&mut out, "root", &all, &mut notes).unwrap();
        assert!(out.contains("| `maps` | a: not run; b: yes |"), "{out}");
    }

    #[test]
    fn a_test_program_without_a_summary_counts_as_failed() {
        let records = "test\tprobe\troot\t0\t3\t1\ttest result: ok. 5 passed; 0 failed\t\n\
                       test\tpages\troot\t143\t3\t0\t\t\n";
        let mut out = String::new();
        test_table(&mut out, &[machine("a", records)]).unwrap();
        assert!(out.contains("| 6.1 | a | root | 2 | 4 | 1 | `pages ends with 143` |"), "{out}");
    }

    #[test]
    fn kernels_are_in_the_order_of_their_versions() {
        assert!(version("/x/6.12.1-a") > version("/x/6.1.0-56-cloud-amd64"));
        assert!(version("/x/6.1.0") > version("/x/5.10.0"));
    }

    #[test]
    fn only_the_tables_change() {
        let before = format!("head\n{BEGIN}\nold\n{END}\ntail\n");
        let results = [machine("a", "feature\tps\troot\t0\t1\t\n")];
        let after = update(&before, &results).unwrap();
        assert!(after.starts_with("head\n") && after.ends_with("tail\n") && !after.contains("old"));
        assert_eq!(update(&after, &results).unwrap(), after);
    }
}
