//! Compares the answer of a tool with the label of a program. Reads no files and starts nothing.

use std::time::Duration;

use anyhow::{Context, Result};
use pagewise_corpus::labels::{Diagnosis, Label};
use serde_json::Value;

/// Maximum distance of a right line from a marked line: debug information may give a neighboring
/// line.
const LINE_TOLERANCE: u64 = 2;

/// One cause that a tool named.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct NamedCause {
    pub(crate) id: String,
    pub(crate) object: String,
    pub(crate) function: Option<String>,
    pub(crate) file: Option<String>,
    pub(crate) line: Option<u64>,
}

/// The answer of a tool about one process.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct ToolAnswer {
    pub(crate) causes: Vec<NamedCause>,
    pub(crate) cpu_ms: Option<u64>,
    pub(crate) longest_pause_us: Option<u64>,
}

/// The result of the comparison.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Verdict {
    /// The first cause and its object are right.
    Right { line_too: bool },
    /// The first cause is right, its object is not.
    WrongObject { named: String },
    /// The right cause has this rank, counted from 1.
    LaterCause { rank: usize, first: String },
    /// The right cause is missing. `first` is empty if the tool named none.
    Missed { first: String },
    /// The program is healthy, and the tool named no cause.
    Quiet,
    /// The program is healthy, and the tool named this cause first.
    FalseAlarm { named: String },
    /// The tool gave no answer that could be read.
    NoAnswer(String),
    /// The program could not be run here.
    Skipped(String),
}

impl Verdict {
    /// Returns the verdict as one word, for tables and JSON.
    pub(crate) fn word(&self) -> &'static str {
        match self {
            Verdict::Right { .. } => "right",
            Verdict::WrongObject { .. } => "wrong-object",
            Verdict::LaterCause { .. } => "later",
            Verdict::Missed { .. } => "missed",
            Verdict::Quiet => "quiet",
            Verdict::FalseAlarm { .. } => "false-alarm",
            Verdict::NoAnswer(_) => "no-answer",
            Verdict::Skipped(_) => "skipped",
        }
    }
}

/// The verdict and the costs of one run.
#[derive(Debug)]
pub(crate) struct JudgedRun {
    pub(crate) name: String,
    /// The cause that the label names or resembles; `healthy` for a real program.
    pub(crate) subject: String,
    pub(crate) is_sick: bool,
    pub(crate) verdict: Verdict,
    pub(crate) answer: ToolAnswer,
    pub(crate) wall: Duration,
    /// CPU time of the tool: the figure in its answer, or the CPU time of its process.
    pub(crate) cpu_ms: Option<u64>,
}

/// Reads the JSON that a tool printed. Missing keys give absent values; only `causes` is required.
pub(crate) fn read_answer(text: &str) -> Result<ToolAnswer> {
    let json: Value = serde_json::from_str(text).context("the answer is not JSON")?;
    let causes = json["causes"].as_array().context("the answer has no array `causes`")?;
    Ok(ToolAnswer {
        causes: causes.iter().map(named_cause).collect::<Result<_>>()?,
        cpu_ms: rounded(&json["cost"]["cpu_ms"]),
        longest_pause_us: rounded(&json["cost"]["longest_pause_us"]),
    })
}

fn named_cause(cause: &Value) -> Result<NamedCause> {
    let text = |key: &str| cause[key].as_str().map(str::to_owned);
    Ok(NamedCause {
        id: text("id").context("a cause has no `id`")?,
        object: text("object").unwrap_or_default(),
        function: text("function"),
        file: text("file"),
        line: cause["line"].as_u64(),
    })
}

fn rounded(number: &Value) -> Option<u64> {
    let number = number.as_f64()?;
    #[allow(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "clamped to 0 and above; a cost is far below the limit of u64"
    )]
    let number = number.max(0.0).round() as u64;
    Some(number)
}

/// Returns the verdict about `answer` of a tool that examined the sick form of a program.
pub(crate) fn judge(label: &Label, answer: &ToolAnswer) -> Verdict {
    match &label.diagnosis {
        Diagnosis::Resembles(_) => judge_healthy(answer),
        Diagnosis::Sick { cause, also } => {
            let is_right = |named: &NamedCause| named.id == *cause || also.contains(&named.id);
            let first = answer.causes.first().map(|named| named.id.clone()).unwrap_or_default();
            match answer.causes.iter().position(is_right) {
                None => Verdict::Missed { first },
                Some(0) => judge_object(label, &answer.causes[0]),
                Some(rank) => Verdict::LaterCause { rank: rank + 1, first },
            }
        }
    }
}

/// Returns the verdict about a program that has no memory problem.
pub(crate) fn judge_healthy(answer: &ToolAnswer) -> Verdict {
    match answer.causes.first() {
        None => Verdict::Quiet,
        Some(first) => Verdict::FalseAlarm { named: first.id.clone() },
    }
}

/// Returns the verdict about the remedied form of a sick program. This form must not have the cause
/// of the label. Other causes are accepted, because a remedy may leave some.
pub(crate) fn judge_remedied(label: &Label, answer: &ToolAnswer) -> Verdict {
    match answer.causes.iter().find(|named| named.id == label.subject()) {
        None => Verdict::Quiet,
        Some(named) => Verdict::FalseAlarm { named: named.id.clone() },
    }
}

fn judge_object(label: &Label, named: &NamedCause) -> Verdict {
    let line_too = has_right_line(label, named);
    if has_right_function(label, named) || has_right_text(label, named) || line_too {
        Verdict::Right { line_too }
    } else {
        let object = named.function.as_ref().unwrap_or(&named.object);
        Verdict::WrongObject { named: object.clone() }
    }
}

fn has_right_function(label: &Label, named: &NamedCause) -> bool {
    let texts = [named.function.as_deref().unwrap_or_default(), &named.object];
    label.functions.iter().any(|function| texts.iter().any(|text| has_word(text, function)))
}

fn has_right_text(label: &Label, named: &NamedCause) -> bool {
    let function = named.function.as_deref().unwrap_or_default();
    let file = named.file.as_deref().unwrap_or_default();
    let texts = [named.object.to_lowercase(), function.to_lowercase(), file.to_lowercase()];
    label.objects.iter().any(|object| {
        let object = object.to_lowercase();
        texts.iter().any(|text| text.contains(&object))
    })
}

fn has_right_line(label: &Label, named: &NamedCause) -> bool {
    let (Some(file), Some(line)) = (&named.file, named.line) else { return false };
    let source = label.source.file_name().unwrap_or_default().to_string_lossy();
    let is_near = |culprit: &usize| line.abs_diff(*culprit as u64) <= LINE_TOLERANCE;
    file.rsplit('/').next() == Some(&*source) && label.lines.iter().any(is_near)
}

/// Returns true if `text` contains `word` with no letter, digit or underscore next to it.
fn has_word(text: &str, word: &str) -> bool {
    let is_part = |c: char| c.is_alphanumeric() || c == '_';
    text.match_indices(word).any(|(at, _)| {
        !text[..at].ends_with(is_part) && !text[at + word.len()..].starts_with(is_part)
    })
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use pagewise_corpus::labels;

    use super::*;

    fn sick() -> Label {
        let text = "/* A.\n * @cause: leak\n * @also: unbounded-cache\n * @function: add\n \
                    * @object: arena\n * @remedy: free\n */\nadd(); /* culprit */\n";
        labels::parse(Path::new("table.c"), text).unwrap()
    }

    fn healthy() -> Label {
        labels::parse(Path::new("full.c"), "/* A.\n * @resembles: leak\n */\n").unwrap()
    }

    fn answer(causes: &str) -> ToolAnswer {
        read_answer(&format!("{{\"healthy\": false, \"causes\": [{causes}]}}")).unwrap()
    }

    #[test]
    fn the_first_cause_with_its_function_is_right() {
        for function in ["add", "Table::add(int)", "add [inlined]"] {
            let answer = answer(&format!("{{\"id\": \"leak\", \"function\": \"{function}\"}}"));
            assert_eq!(judge(&sick(), &answer), Verdict::Right { line_too: false }, "{function}");
        }
    }

    #[test]
    fn a_line_beside_the_marked_one_is_right() {
        let near = answer(r#"{"id": "leak", "file": "/src/table.c", "line": 9}"#);
        assert_eq!(judge(&sick(), &near), Verdict::Right { line_too: true });
        for far in [
            r#"{"id": "leak", "file": "/src/table.c", "line": 20}"#,
            r#"{"id": "leak", "file": "/src/other.c", "line": 8}"#,
        ] {
            assert_eq!(judge(&sick(), &answer(far)).word(), "wrong-object", "{far}");
        }
    }

    #[test]
    fn a_function_whose_name_contains_the_right_one_is_wrong() {
        for function in ["add_all", "readd", "main"] {
            let answer = answer(&format!("{{\"id\": \"leak\", \"function\": \"{function}\"}}"));
            assert_eq!(judge(&sick(), &answer), Verdict::WrongObject { named: function.into() });
        }
    }

    #[test]
    fn an_object_in_words_and_an_accepted_cause_are_right() {
        let answer = answer(r#"{"id": "unbounded-cache", "object": "the main Arena"}"#);
        assert_eq!(judge(&sick(), &answer), Verdict::Right { line_too: false });
    }

    #[test]
    fn a_later_or_missing_cause_is_distinguished() {
        let later = answer(r#"{"id": "fragmented-heap"}, {"id": "leak", "function": "add"}"#);
        let first = "fragmented-heap".to_owned();
        assert_eq!(judge(&sick(), &later), Verdict::LaterCause { rank: 2, first: first.clone() });
        let missed = answer(r#"{"id": "fragmented-heap"}"#);
        assert_eq!(judge(&sick(), &missed), Verdict::Missed { first });
        assert_eq!(judge(&sick(), &answer("")), Verdict::Missed { first: String::new() });
    }

    #[test]
    fn any_cause_of_a_healthy_program_is_a_false_alarm() {
        assert_eq!(judge(&healthy(), &answer("")), Verdict::Quiet);
        let named = answer(r#"{"id": "thp-missing"}"#);
        assert_eq!(judge(&healthy(), &named), Verdict::FalseAlarm { named: "thp-missing".into() });
    }

    #[test]
    fn a_remedied_program_must_only_be_free_of_its_own_trouble() {
        assert_eq!(judge_remedied(&sick(), &answer(r#"{"id": "peak-only"}"#)), Verdict::Quiet);
        let same = answer(r#"{"id": "peak-only"}, {"id": "leak"}"#);
        assert_eq!(judge_remedied(&sick(), &same), Verdict::FalseAlarm { named: "leak".into() });
    }

    #[test]
    fn an_answer_without_causes_is_an_error_and_missing_keys_are_not() {
        assert!(read_answer("pagewise: no such process").is_err());
        assert!(read_answer("{\"healthy\": true}").is_err());
        assert!(read_answer("{\"causes\": [{\"sentence\": \"x\"}]}").is_err());
        let read = read_answer("{\"causes\": [], \"cost\": {\"cpu_ms\": 12.6}}").unwrap();
        assert_eq!((read.cpu_ms, read.longest_pause_us), (Some(13), None));
    }
}
