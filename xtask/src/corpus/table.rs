//! The results as text and as JSON. Runs nothing.

use std::collections::BTreeMap;
use std::fmt::Write;

use serde_json::{Value, json};

use super::judge::{JudgedRun, Verdict};

/// Returns the line about one run, which is printed as soon as the run is judged.
pub(crate) fn line(run: &JudgedRun) -> String {
    let verdict = match &run.verdict {
        Verdict::Right { line_too: true } => "right, line too".to_owned(),
        Verdict::Right { .. } | Verdict::Quiet => run.verdict.word().to_owned(),
        Verdict::WrongObject { named } => format!("right cause, but object `{named}`"),
        Verdict::LaterCause { rank, first } => format!("rank {rank}, after {first}"),
        Verdict::Missed { first } if first.is_empty() => "missed: no cause named".to_owned(),
        Verdict::Missed { first } => format!("missed: named {first}"),
        Verdict::FalseAlarm { named } => format!("false alarm: {named}"),
        Verdict::NoAnswer(reason) => format!("no answer: {reason}"),
        Verdict::Skipped(reason) => format!("skipped: {reason}"),
    };
    let seconds = run.wall.as_secs_f64();
    format!("{:<22} {:<32} {verdict} ({seconds:.1} s)", run.subject, run.name)
}

/// Counts of the verdicts.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Totals {
    pub(crate) sick: usize,
    pub(crate) right: usize,
    pub(crate) right_cause: usize,
    pub(crate) right_line: usize,
    pub(crate) healthy: usize,
    pub(crate) false_alarms: usize,
    pub(crate) no_answer: usize,
    pub(crate) skipped: usize,
}

/// Counts the verdicts. A sick program without an answer counts as not right.
pub(crate) fn totals(runs: &[JudgedRun]) -> Totals {
    let mut totals = Totals::default();
    for run in runs {
        if let Verdict::Skipped(_) = run.verdict {
            totals.skipped += 1;
            continue;
        }
        if run.is_sick {
            totals.sick += 1;
        } else {
            totals.healthy += 1;
        }
        match &run.verdict {
            Verdict::Right { line_too } => {
                totals.right += 1;
                totals.right_cause += 1;
                totals.right_line += usize::from(*line_too);
            }
            Verdict::WrongObject { .. } => totals.right_cause += 1,
            Verdict::FalseAlarm { .. } => totals.false_alarms += 1,
            Verdict::NoAnswer(_) => totals.no_answer += 1,
            _ => {}
        }
    }
    totals
}

/// Returns the summary: confusion matrix, shares, and costs.
pub(crate) fn summary(runs: &[JudgedRun]) -> String {
    let mut text = String::new();
    let totals = totals(runs);
    push(&mut text, format_args!("\nExpected cause         programs  right  first cause named\n"));
    for (subject, named) in confusion(runs, true) {
        push_row(&mut text, &subject, &named, runs, true);
    }
    push(&mut text, format_args!("\nHealthy program like   programs  quiet  first cause named\n"));
    for (subject, named) in confusion(runs, false) {
        push_row(&mut text, &subject, &named, runs, false);
    }
    push_share(&mut text, "Right first cause and object", totals.right, totals.sick);
    push_share(&mut text, "Right first cause", totals.right_cause, totals.sick);
    push_share(&mut text, "Right line of the source", totals.right_line, totals.sick);
    push_share(&mut text, "False alarms", totals.false_alarms, totals.healthy);
    push(&mut text, format_args!("No answer: {}; skipped: {}\n", totals.no_answer, totals.skipped));
    let wall = judged(runs).map(|run| u64::try_from(run.wall.as_millis()).unwrap_or(u64::MAX));
    push_cost(&mut text, "Time of a diagnosis, ms", wall.collect());
    push_cost(
        &mut text,
        "CPU time of the tool, ms",
        judged(runs).filter_map(|run| run.cpu_ms).collect(),
    );
    let pauses = judged(runs).filter_map(|run| run.answer.longest_pause_us).collect();
    push_cost(&mut text, "Longest pause of the target, µs", pauses);
    text
}

fn judged(runs: &[JudgedRun]) -> impl Iterator<Item = &JudgedRun> {
    runs.iter().filter(|run| !matches!(run.verdict, Verdict::Skipped(_)))
}

fn push(text: &mut String, line: std::fmt::Arguments<'_>) {
    text.write_fmt(line).expect("writing to a string does not fail");
}

/// Returns, for each cause in a label, the causes that the tool named first, each with the number
/// of runs.
fn confusion(runs: &[JudgedRun], is_sick: bool) -> BTreeMap<String, BTreeMap<String, usize>> {
    let mut matrix: BTreeMap<String, BTreeMap<String, usize>> = BTreeMap::new();
    for run in judged(runs).filter(|run| run.is_sick == is_sick) {
        let named = match (&run.verdict, run.answer.causes.first()) {
            (Verdict::NoAnswer(_), _) => "(no answer)",
            (_, None) => "(none)",
            (_, Some(first)) => &first.id,
        };
        *matrix.entry(run.subject.clone()).or_default().entry(named.to_owned()).or_default() += 1;
    }
    matrix
}

fn push_row(
    text: &mut String,
    subject: &str,
    named: &BTreeMap<String, usize>,
    runs: &[JudgedRun],
    is_sick: bool,
) {
    let programs: usize = named.values().sum();
    let is_good = |run: &&JudgedRun| matches!(run.verdict, Verdict::Right { .. } | Verdict::Quiet);
    let good = judged(runs)
        .filter(|run| run.is_sick == is_sick && run.subject == subject)
        .filter(is_good)
        .count();
    let named: Vec<String> = named.iter().map(|(id, count)| format!("{id} {count}")).collect();
    push(text, format_args!("{subject:<22} {programs:>8} {good:>6}  {}\n", named.join(", ")));
}

fn push_share(text: &mut String, name: &str, part: usize, whole: usize) {
    if whole > 0 {
        let percent = part as f64 * 100.0 / whole as f64;
        push(text, format_args!("{name}: {part} of {whole} ({percent:.0} %)\n"));
    }
}

fn push_cost(text: &mut String, name: &str, mut values: Vec<u64>) {
    values.sort_unstable();
    if let (Some(median), Some(last)) = (values.get(values.len() / 2), values.last()) {
        push(text, format_args!("{name}: median {median}, maximum {last} (of {})\n", values.len()));
    }
}

/// Returns all results as JSON, for other programs.
pub(crate) fn json(runs: &[JudgedRun]) -> Value {
    let totals = totals(runs);
    json!({
        "programs": runs.iter().map(run_json).collect::<Vec<_>>(),
        "sick": totals.sick,
        "right": totals.right,
        "right_cause": totals.right_cause,
        "right_line": totals.right_line,
        "healthy": totals.healthy,
        "false_alarms": totals.false_alarms,
        "no_answer": totals.no_answer,
        "skipped": totals.skipped,
    })
}

fn run_json(run: &JudgedRun) -> Value {
    let reason = match &run.verdict {
        Verdict::NoAnswer(reason) | Verdict::Skipped(reason) => Some(reason),
        _ => None,
    };
    let causes: Vec<Value> = run
        .answer
        .causes
        .iter()
        .map(|cause| {
            json!({"id": cause.id, "object": cause.object, "function": cause.function,
                   "file": cause.file, "line": cause.line})
        })
        .collect();
    json!({
        "name": run.name,
        "sick": run.is_sick,
        "subject": run.subject,
        "verdict": run.verdict.word(),
        "reason": reason,
        "causes": causes,
        "wall_ms": u64::try_from(run.wall.as_millis()).unwrap_or(u64::MAX),
        "cpu_ms": run.cpu_ms,
        "longest_pause_us": run.answer.longest_pause_us,
    })
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::corpus::judge::{NamedCause, ToolAnswer};

    fn run(subject: &str, is_sick: bool, named: &str, verdict: Verdict) -> JudgedRun {
        let cause = NamedCause { id: named.to_owned(), ..NamedCause::default() };
        let causes = if named.is_empty() { vec![] } else { vec![cause] };
        JudgedRun {
            name: "x".to_owned(),
            subject: subject.to_owned(),
            is_sick,
            verdict,
            answer: ToolAnswer { causes, ..ToolAnswer::default() },
            wall: Duration::from_millis(1500),
            cpu_ms: Some(30),
        }
    }

    fn five() -> Vec<JudgedRun> {
        vec![
            run("leak", true, "leak", Verdict::Right { line_too: true }),
            run("leak", true, "leak", Verdict::WrongObject { named: "main".to_owned() }),
            run("leak", true, "", Verdict::Missed { first: String::new() }),
            run("leak", false, "", Verdict::Quiet),
            run("leak", true, "", Verdict::Skipped("needs root".to_owned())),
        ]
    }

    #[test]
    fn a_skipped_program_is_in_no_share() {
        let totals = totals(&five());
        assert_eq!((totals.sick, totals.right, totals.right_cause), (3, 1, 2));
        assert_eq!((totals.healthy, totals.false_alarms, totals.skipped), (1, 0, 1));
    }

    #[test]
    fn the_matrix_has_a_row_for_each_expected_cause() {
        let text = summary(&five());
        assert!(
            text.contains("leak                          3      1  (none) 1, leak 2\n"),
            "{text}"
        );
        assert!(text.contains("Right first cause and object: 1 of 3 (33 %)\n"), "{text}");
        assert!(
            text.contains("CPU time of the tool, ms: median 30, maximum 30 (of 4)\n"),
            "{text}"
        );
    }

    #[test]
    fn a_tool_without_an_answer_is_not_right() {
        let runs = [run("leak", true, "", Verdict::NoAnswer("exit status 2".to_owned()))];
        assert_eq!((totals(&runs).sick, totals(&runs).right, totals(&runs).no_answer), (1, 0, 1));
        assert_eq!(json(&runs)["programs"][0]["reason"], "exit status 2");
    }
}
