//! Labels of the corpus: the `@key: value` lines in the header comment of each program.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail, ensure};

/// Maximum number of lines of the header comment.
const MAX_HEADER_LINES: usize = 40;

/// The causes that a label may name, as `pagewise diagnose` prints them.
pub const CAUSES: &[&str] = &[
    "leak",
    "unbounded-cache",
    "mapping-growth",
    "fragmented-heap",
    "trimmable-heap",
    "many-arenas",
    "foreign-heap",
    "thp-bloat-requested",
    "thp-bloat-system",
    "thp-missing",
    "deep-stack",
    "oversized-stacks",
    "locked-memory",
    "cow-storm",
    "fork-exec-copy",
    "swap-thrash",
    "cgroup-limit",
    "machine-short",
    "file-refaults",
    "fault-churn",
    "tlb-shootdowns",
    "memory-calls",
    "near-max-map-count",
    "near-rlimit-as",
    "near-rlimit-data",
    "near-rlimit-stack",
    "near-rlimit-memlock",
    "stale-files",
    "writable-code",
    "shm-growth",
    "large-page-tables",
    "hugetlb-unused",
    "ksm-cost",
    "numa-imbalance",
    "zombie-cgroups",
    "page-cache-charged",
    "peak-only",
];

/// Programming language of a program of the corpus, given by the extension of the source file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SourceLanguage {
    /// C.
    C,
    /// C++.
    Cpp,
    /// Rust.
    Rust,
    /// Go.
    Go,
    /// Java.
    Java,
    /// Python.
    Python,
    /// JavaScript for Node.js.
    Node,
    /// Shell scripts for bash.
    Shell,
}

impl SourceLanguage {
    fn of(path: &Path) -> Option<SourceLanguage> {
        Some(match path.extension()?.to_str()? {
            "c" => SourceLanguage::C,
            "cpp" => SourceLanguage::Cpp,
            "rs" => SourceLanguage::Rust,
            "go" => SourceLanguage::Go,
            "java" => SourceLanguage::Java,
            "py" => SourceLanguage::Python,
            "js" => SourceLanguage::Node,
            "sh" => SourceLanguage::Shell,
            _ => return None,
        })
    }
}

/// The right answer about a program.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Diagnosis {
    /// The program has this memory problem. A diagnosis is also right if its first cause is one of
    /// `also`.
    Sick {
        /// The ID of the cause.
        cause: String,
        /// IDs of other causes.
        also: Vec<String>,
    },
    /// The program is healthy, and resembles programs with this memory problem.
    Resembles(String),
}

/// A condition of the environment, which the runner sets up and restores.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Need {
    /// The user is root.
    Root,
    /// A program on the search path.
    Program(String),
    /// A memory cgroup of its own, with this limit in bytes if there is one.
    MemoryCgroup(Option<u64>),
    /// `/sys/kernel/mm/transparent_hugepage/enabled` has this value.
    ThpMode(String),
    /// Swap space is on.
    Swap,
    /// The hugetlb pool has this number of pages.
    HugetlbPages(u64),
    /// The kernel's daemon for same-page merging runs.
    Ksm,
    /// The machine has less memory than this number of bytes.
    MemoryBelow(u64),
}

/// Method of getting the remedied form of a program, which does not have the memory problem.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum RemediedForm {
    /// The program takes the argument `--remedied`.
    Argument,
    /// A variable of the environment, `NAME=VALUE`.
    Environment(String),
    /// A shell command that changes the running sick program; `{pid}` is its process ID.
    Command(String),
}

/// One program of the corpus, and the right answer about it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Label {
    /// The name of the source file without its extension.
    pub name: String,
    /// The source file.
    pub source: PathBuf,
    /// The language of the source.
    pub language: SourceLanguage,
    /// The right answer.
    pub diagnosis: Diagnosis,
    /// Names of functions. A right diagnosis names one of them, or one of `objects`, or one of
    /// `lines`.
    pub functions: Vec<String>,
    /// Texts, one of which occurs in the object, function or file of a right diagnosis.
    pub objects: Vec<String>,
    /// The change of the program that removes the memory problem, in words.
    pub remedy: Option<String>,
    /// The command that helps the running program at once, in words.
    pub now: Option<String>,
    /// Method of getting the remedied form.
    pub remedied: Option<RemediedForm>,
    /// The figure of `figures` that the remedy lowers.
    pub improves: Option<String>,
    /// Conditions of the environment.
    pub needs: Vec<Need>,
    /// A variable of the environment of the sick form, `NAME=VALUE`.
    pub environment: Option<String>,
    /// Further arguments of the compiler or interpreter.
    pub build: Vec<String>,
    /// The program keeps the CPUs busy or changes the machine, so no other program runs beside it.
    pub alone: bool,
    /// Lines of the source that are marked `culprit`, counted from 1.
    pub lines: Vec<usize>,
}

impl Label {
    /// Returns the cause that the program has or resembles.
    pub fn subject(&self) -> &str {
        match &self.diagnosis {
            Diagnosis::Sick { cause, .. } | Diagnosis::Resembles(cause) => cause,
        }
    }

    /// Returns true if the program has a memory problem.
    pub fn is_sick(&self) -> bool {
        matches!(self.diagnosis, Diagnosis::Sick { .. })
    }
}

/// Reads the labels of all programs in `folder` and the folders below it, in the order of their
/// names.
///
/// # Errors
///
/// A folder or file cannot be read, a label is invalid or incomplete, or two programs have the same
/// name.
pub fn read_all(folder: &Path) -> Result<Vec<Label>> {
    let mut labels = Vec::new();
    let mut folders = vec![folder.to_owned()];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(&folder).with_context(|| folder.display().to_string())? {
            let path = entry?.path();
            if path.is_dir() {
                folders.push(path);
            } else if SourceLanguage::of(&path).is_some() {
                let text = fs::read_to_string(&path).with_context(|| path.display().to_string())?;
                labels.push(parse(&path, &text).with_context(|| path.display().to_string())?);
            }
        }
    }
    labels.sort_by(|a, b| a.name.cmp(&b.name));
    for pair in labels.windows(2) {
        ensure!(pair[0].name != pair[1].name, "two programs have the name {}", pair[0].name);
    }
    Ok(labels)
}

/// Reads the label in the header of the program `text`.
///
/// # Errors
///
/// If a key or value is unknown, or a required key is missing.
pub fn parse(path: &Path, text: &str) -> Result<Label> {
    let language = SourceLanguage::of(path).context("the extension names no known language")?;
    let stem = path.file_stem().context("the file has no name")?;
    let mut fields = LabelFields::default();
    for (key, value) in header(text) {
        fields.set(key, value).with_context(|| format!("@{key}: {value}"))?;
    }
    let label = Label {
        name: stem.to_string_lossy().into_owned(),
        source: path.to_owned(),
        language,
        diagnosis: fields.diagnosis()?,
        remedied: fields.remedied(),
        functions: fields.functions,
        objects: fields.objects,
        remedy: fields.remedy,
        now: fields.now,
        improves: fields.improves,
        needs: fields.needs,
        environment: fields.environment,
        build: fields.build,
        alone: fields.alone,
        lines: culprits(text),
    };
    check(&label)?;
    Ok(label)
}

/// Checks that a label has the data to judge an answer: without this data, every answer about its
/// program would be right.
fn check(label: &Label) -> Result<()> {
    if label.is_sick() {
        ensure!(
            !(label.functions.is_empty() && label.objects.is_empty()),
            "no @function, no @object"
        );
        ensure!(label.remedy.is_some() || label.now.is_some(), "no @remedy, no @now");
        ensure!(
            label.functions.is_empty() || !label.lines.is_empty(),
            "no line is marked `culprit`"
        );
        ensure!(
            label.remedied.is_none() || label.improves.is_some(),
            "a remedied form, but no @improves"
        );
    }
    Ok(())
}

/// Returns the `@key: value` lines of the header.
fn header(text: &str) -> impl Iterator<Item = (&str, &str)> {
    text.lines().take(MAX_HEADER_LINES).filter_map(|line| {
        let line = line.trim_start_matches(|c: char| "/*#! ".contains(c));
        let (key, value) = line.strip_prefix('@')?.split_once(": ")?;
        Some((key, value.trim_end_matches("*/").trim()))
    })
}

fn culprits(text: &str) -> Vec<usize> {
    let marks = ["/* culprit */", "// culprit", "# culprit"];
    let is_marked = |line: &str| marks.iter().any(|mark| line.trim_end().ends_with(mark));
    text.lines().zip(1..).filter(|(line, _)| is_marked(line)).map(|(_, number)| number).collect()
}

/// The fields of a label while it is read.
#[derive(Default)]
struct LabelFields {
    cause: Option<String>,
    also: Vec<String>,
    resembles: Option<String>,
    functions: Vec<String>,
    objects: Vec<String>,
    remedy: Option<String>,
    now: Option<String>,
    form: Option<RemediedForm>,
    improves: Option<String>,
    needs: Vec<Need>,
    environment: Option<String>,
    build: Vec<String>,
    alone: bool,
}

impl LabelFields {
    fn set(&mut self, key: &str, value: &str) -> Result<()> {
        match key {
            "cause" => self.cause = Some(cause(value)?),
            "also" => self.also = value.split_whitespace().map(cause).collect::<Result<_>>()?,
            "resembles" => self.resembles = Some(cause(value)?),
            "function" => self.functions = alternatives(value),
            "object" => self.objects = alternatives(value),
            "remedy" => self.remedy = Some(value.to_owned()),
            "now" => self.now = Some(value.to_owned()),
            "remedied" => self.form = Some(remedied_form(value)?),
            "improves" => {
                ensure!(crate::figures::NAMES.contains(&value), "unknown figure");
                self.improves = Some(value.to_owned());
            }
            "needs" => self.needs.push(need(value)?),
            "environment" => {
                ensure!(value.contains('='), "expected NAME=VALUE");
                self.environment = Some(value.to_owned());
            }
            "build" => self.build = value.split_whitespace().map(str::to_owned).collect(),
            "alone" => self.alone = value == "yes",
            _ => bail!("unknown key"),
        }
        Ok(())
    }

    fn diagnosis(&self) -> Result<Diagnosis> {
        match (&self.cause, &self.resembles) {
            (Some(cause), None) => {
                Ok(Diagnosis::Sick { cause: cause.clone(), also: self.also.clone() })
            }
            (None, Some(resembled)) => Ok(Diagnosis::Resembles(resembled.clone())),
            _ => bail!("a label has either @cause or @resembles"),
        }
    }

    /// Returns the method of getting the remedied form. A program with a figure to improve takes
    /// the argument `--remedied`, if the label names no other method.
    fn remedied(&self) -> Option<RemediedForm> {
        self.improves.as_ref()?;
        Some(self.form.clone().unwrap_or(RemediedForm::Argument))
    }
}

fn cause(id: &str) -> Result<String> {
    ensure!(CAUSES.contains(&id), "{id} is an unknown cause");
    Ok(id.to_owned())
}

fn alternatives(value: &str) -> Vec<String> {
    value.split('|').map(|text| text.trim().to_owned()).filter(|text| !text.is_empty()).collect()
}

fn remedied_form(value: &str) -> Result<RemediedForm> {
    let (form, rest) = value.split_once(' ').unwrap_or((value, ""));
    match form {
        "argument" => Ok(RemediedForm::Argument),
        "environment" if rest.contains('=') => Ok(RemediedForm::Environment(rest.to_owned())),
        "command" if !rest.is_empty() => Ok(RemediedForm::Command(rest.to_owned())),
        _ => bail!("expected `argument`, `environment NAME=VALUE` or `command COMMAND`"),
    }
}

fn need(value: &str) -> Result<Need> {
    let (name, argument) = value.split_once(' ').unwrap_or((value, ""));
    Ok(match name {
        "root" => Need::Root,
        "program" => Need::Program(argument.to_owned()),
        "memory-cgroup" if argument == "unlimited" => Need::MemoryCgroup(None),
        "memory-cgroup" => Need::MemoryCgroup(Some(bytes(argument)?)),
        "thp" => Need::ThpMode(argument.to_owned()),
        "swap" => Need::Swap,
        "hugetlb" => Need::HugetlbPages(argument.parse()?),
        "ksm" => Need::Ksm,
        "memory-below" => Need::MemoryBelow(bytes(argument)?),
        _ => bail!("unknown condition"),
    })
}

/// Parses a number of bytes such as `64M`.
fn bytes(text: &str) -> Result<u64> {
    let (digits, unit) = text.split_at(text.trim_end_matches(char::is_alphabetic).len());
    let unit: u64 = match unit {
        "K" => 1 << 10,
        "M" => 1 << 20,
        "G" => 1 << 30,
        _ => bail!("expected a size with K, M or G"),
    };
    Ok(digits.parse::<u64>()? * unit)
}

#[cfg(test)]
mod tests {
    use super::*;

    const LEAK: &str = "\
/* A session table.
 * @cause: leak
 * @also: unbounded-cache
 * @function: add_session | insert
 * @remedy: free the old session
 * @improves: growth
 * @needs: memory-cgroup 64M
 */
int x;
void f(void) { malloc(1); } /* culprit */
";

    fn label(path: &str, text: &str) -> Result<Label> {
        parse(Path::new(path), text)
    }

    #[test]
    fn a_label_is_read_from_the_header() {
        let label = label("a/leak_sessions.c", LEAK).unwrap();
        assert_eq!(label.name, "leak_sessions");
        assert_eq!(label.language, SourceLanguage::C);
        assert_eq!(
            label.diagnosis,
            Diagnosis::Sick { cause: "leak".into(), also: vec!["unbounded-cache".into()] }
        );
        assert_eq!(label.functions, ["add_session", "insert"]);
        assert_eq!(label.needs, [Need::MemoryCgroup(Some(64 << 20))]);
        assert_eq!(label.remedied, Some(RemediedForm::Argument));
        assert_eq!(label.lines, [10]);
    }

    #[test]
    fn comments_of_every_language_hold_a_label() {
        let object = "@cause: foreign-heap\n@object: heap\n@now: restart";
        for (path, mark) in
            [("a.py", "# "), ("a.sh", "# "), ("a.js", "// "), ("a.go", "// "), ("a.rs", "//! ")]
        {
            let text: String = object.lines().map(|line| format!("{mark}{line}\n")).collect();
            assert_eq!(label(path, &text).unwrap().subject(), "foreign-heap", "{path}");
        }
    }

    #[test]
    fn a_label_that_cannot_be_judged_is_an_error() {
        let cases = [
            ("@cause: leak", "@cause: leek"),
            ("@function: add_session | insert", "@remark: x"),
            ("@function: add_session | insert", ""),
            ("/* culprit */", ""),
            ("@remedy: free the old session", ""),
            ("@improves: growth", "@improves: mood"),
            ("memory-cgroup 64M", "memory-cgroup much"),
            ("@cause: leak", "@resembles: leak\n * @cause: leak"),
        ];
        for (from, to) in cases {
            assert!(LEAK.contains(from));
            assert!(label("a.c", &LEAK.replace(from, to)).is_err(), "{from} -> {to}");
        }
    }

    #[test]
    fn every_program_of_the_corpus_has_a_label() {
        let labels = read_all(&crate::root().join("fixtures/sick")).unwrap();
        assert!(labels.iter().any(Label::is_sick));
        assert!(labels.iter().any(|label| !label.is_sick()));
    }
}
