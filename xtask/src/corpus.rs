//! `cargo xtask corpus`: runs a diagnosing tool on programs whose memory problem is known, and
//! counts its right answers. docs/corpus.md describes the programs and their labels.

mod healthy;
mod judge;
mod machines;
mod table;
mod tool;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};
use std::sync::Mutex;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};

use judge::{JudgedRun, ToolAnswer, Verdict};
use pagewise_corpus::{Label, ProgramForm, RemediedForm, Running, figures};
use tool::DiagnosingTool;

pub(crate) const USAGE: &str = "\
Usage: cargo xtask corpus [OPTIONS]

  --only NAME        only the programs of this cause, or the program of this name (repeatable)
  --command COMMAND  the tool; {pid} is the process ID [pagewise diagnose {pid} --json --for 10s]
  --jobs N           run N programs at the same time [1]
  --json FILE        write all answers and counts to FILE
  --healthy          run the tool at real programs under load instead of the corpus
  --remedied         run the tool at the remedied forms of the sick programs
  --vm               run pagewise at the programs that need a small machine, in virtual machines
  --remedies         no tool: check that each remedy lowers the figure of its label
  --check            no tool: check that each program compiles and gets ready
  --list             no tool: print the programs and their labels
  --change-settings  let programs that need it change THP, KSM, the hugetlb pool and swap (restored)
";

/// Time over which rates are measured.
const FIGURE_TIME: Duration = Duration::from_secs(4);

/// Time in which a remedied program reaches its steady state.
const SETTLE_TIME: Duration = Duration::from_secs(1);

/// The work of one call of `cargo xtask corpus`.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
enum CorpusTask {
    #[default]
    Diagnose,
    DiagnoseRemedied,
    DiagnoseHealthy,
    MeasureRemedies,
    Check,
    List,
}

#[derive(Debug, Default, PartialEq, Eq)]
struct CorpusOptions {
    task: CorpusTask,
    only: Vec<String>,
    command: Option<String>,
    json: Option<PathBuf>,
    jobs: usize,
    may_change: bool,
    in_machines: bool,
}

/// Runs the task that `arguments` select.
pub(crate) fn run(arguments: &[&str]) -> Result<ExitCode> {
    let options = parse_options(arguments)?;
    if options.task == CorpusTask::DiagnoseHealthy {
        let tool = DiagnosingTool::new(options.command.as_deref())?;
        return report(&options, &healthy::diagnose_all(&tool, &options.only)?);
    }
    let labels = chosen_labels(&options.only)?;
    match options.task {
        CorpusTask::List => list(&labels),
        CorpusTask::Check => for_each(&labels, &options, check),
        CorpusTask::MeasureRemedies => for_each(&labels, &options, measure_remedy),
        _ => report(&options, &diagnose_all(&labels, &options)?),
    }
}

fn parse_options(arguments: &[&str]) -> Result<CorpusOptions> {
    let mut options = CorpusOptions { jobs: 1, ..CorpusOptions::default() };
    let mut arguments = arguments.iter();
    while let Some(&argument) = arguments.next() {
        let mut value = || arguments.next().with_context(|| format!("{argument} needs a value"));
        match argument {
            "--only" => options.only.push((*value()?).to_owned()),
            "--command" => options.command = Some((*value()?).to_owned()),
            "--json" => options.json = Some(value()?.into()),
            "--jobs" => options.jobs = value()?.parse().context("--jobs: expected a number")?,
            "--healthy" => options.task = CorpusTask::DiagnoseHealthy,
            "--remedied" => options.task = CorpusTask::DiagnoseRemedied,
            "--remedies" => options.task = CorpusTask::MeasureRemedies,
            "--vm" => options.in_machines = true,
            "--check" => options.task = CorpusTask::Check,
            "--list" => options.task = CorpusTask::List,
            "--change-settings" => options.may_change = true,
            _ => bail!("unknown option {argument}\n{USAGE}"),
        }
    }
    ensure!(options.jobs > 0, "--jobs: expected 1 or more");
    Ok(options)
}

fn chosen_labels(only: &[String]) -> Result<Vec<Label>> {
    let mut labels = pagewise_corpus::labels()?;
    if !only.is_empty() {
        labels
            .retain(|label| only.iter().any(|name| *name == label.name || name == label.subject()));
        ensure!(!labels.is_empty(), "no program and no cause is named {}", only.join(" or "));
    }
    Ok(labels)
}

fn list(labels: &[Label]) -> Result<ExitCode> {
    for label in labels {
        let kind = if label.is_sick() { "sick" } else { "like" };
        let objects = [&label.functions[..], &label.objects[..]].concat().join(" | ");
        println!("{kind} {:<22} {:<32} {objects}", label.subject(), label.name);
        for (title, text) in [("now", &label.now), ("code", &label.remedy)] {
            if let Some(text) = text {
                println!("     {title}: {text}");
            }
        }
    }
    let sick = labels.iter().filter(|label| label.is_sick()).count();
    println!("{sick} sick programs, {} healthy ones", labels.len() - sick);
    Ok(ExitCode::SUCCESS)
}

/// Builds the program of `label` and starts it in its environment. The inner error is the reason
/// why it cannot run here.
fn start(
    label: &Label,
    is_remedied: bool,
    options: &CorpusOptions,
) -> Result<std::result::Result<Running, String>> {
    let remedied = label.remedied.as_ref().filter(|_| is_remedied);
    let form = match remedied {
        Some(RemediedForm::Argument) => ProgramForm::Remedied,
        Some(RemediedForm::Environment(variable)) => ProgramForm::Variables(vec![variable]),
        Some(RemediedForm::Command(_)) | None => ProgramForm::Sick,
    };
    let running = label.start(form, options.may_change)?;
    if let (Ok(running), Some(RemediedForm::Command(command))) = (&running, remedied) {
        run_remedy(command, running.pid)?;
    }
    Ok(running)
}

fn run_remedy(command: &str, pid: u32) -> Result<()> {
    let command = command.replace("{pid}", &pid.to_string());
    let output = Command::new("sh")
        .args(["-c", &command])
        .env("PATH", tool::search_path()?)
        .output()
        .context("sh")?;
    let messages = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "`{command}` failed: {messages}");
    Ok(())
}

/// Calls `work` for each label in several threads. Programs that must run alone follow at the end.
/// Fails after all calls if one call failed.
fn for_each(
    labels: &[Label],
    options: &CorpusOptions,
    work: fn(&Label, &CorpusOptions) -> Result<String>,
) -> Result<ExitCode> {
    let failures = Mutex::new(0);
    in_threads(labels, options.jobs, |label| {
        let message = work(label, options).unwrap_or_else(|error| {
            *failures.lock().expect("no thread panics while it counts") += 1;
            format!("FAILED: {error:#}")
        });
        println!("{:<22} {:<32} {message}", label.subject(), label.name);
    });
    let failures = failures.into_inner().expect("no thread panicked");
    println!("{} programs, {failures} failed", labels.len());
    Ok(if failures == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

fn in_threads(labels: &[Label], jobs: usize, work: impl Fn(&Label) + Sync) {
    let (alone, together): (Vec<&Label>, Vec<&Label>) =
        labels.iter().partition(|label| label.alone || jobs == 1);
    let queue = Mutex::new(together.into_iter());
    thread::scope(|scope| {
        for _ in 0..jobs {
            scope.spawn(|| {
                loop {
                    let next = queue.lock().map(|mut queue| queue.next());
                    let Ok(Some(label)) = next else { break };
                    work(label);
                }
            });
        }
    });
    for label in alone {
        work(label);
    }
}

/// Checks that the sick and the remedied form of the program compile and become ready.
fn check(label: &Label, options: &CorpusOptions) -> Result<String> {
    for is_remedied in [false, true] {
        if is_remedied && label.remedied.is_none() {
            continue;
        }
        match start(label, is_remedied, options)? {
            Err(reason) => return Ok(format!("skipped: {reason}")),
            Ok(mut running) => {
                thread::sleep(SETTLE_TIME);
                ensure!(running.is_alive(), "the program ended after it was ready");
            }
        }
    }
    Ok("ready".to_owned())
}

/// Measures the label's figure in the sick and in the remedied form of the program.
fn measure_remedy(label: &Label, options: &CorpusOptions) -> Result<String> {
    let Some(figure) = &label.improves else { return Ok("no figure".to_owned()) };
    let mut values = [0.0; 2];
    for (is_remedied, value) in [(false, 0), (true, 1)] {
        match start(label, is_remedied, options)? {
            Err(reason) => return Ok(format!("skipped: {reason}")),
            Ok(running) => {
                thread::sleep(SETTLE_TIME);
                values[value] = figures::measure(figure, &running, FIGURE_TIME)?;
            }
        }
    }
    let [sick, remedied] = values;
    ensure!(
        figures::is_improved(sick, remedied),
        "{figure} is {sick:.0}, and {remedied:.0} after the remedy"
    );
    Ok(format!("{figure} {sick:.0} -> {remedied:.0}"))
}

fn diagnose_all(labels: &[Label], options: &CorpusOptions) -> Result<Vec<JudgedRun>> {
    let tool = DiagnosingTool::new(options.command.as_deref())?;
    let is_remedied = options.task == CorpusTask::DiagnoseRemedied;
    let is_wanted = |label: &&Label| {
        (!is_remedied || label.remedied.is_some())
            && (!options.in_machines || machines::is_needed(label))
    };
    let labels: Vec<Label> = labels.iter().filter(is_wanted).cloned().collect();
    let runs = Mutex::new(Vec::new());
    in_threads(&labels, options.jobs, |label| {
        let run = diagnose(label, is_remedied, &tool, options);
        println!("{}", table::line(&run));
        runs.lock().expect("no thread panics while it adds a run").push(run);
    });
    let mut runs = runs.into_inner().expect("no thread panicked");
    runs.sort_by(|a, b| (&a.subject, &a.name).cmp(&(&b.subject, &b.name)));
    Ok(runs)
}

/// Runs the tool on one program and judges the answer. A failure of the runner counts as a missing
/// answer, so that the other programs are still run.
fn diagnose(
    label: &Label,
    is_remedied: bool,
    tool: &DiagnosingTool,
    options: &CorpusOptions,
) -> JudgedRun {
    let mut run = JudgedRun {
        name: label.name.clone(),
        subject: label.subject().to_owned(),
        is_sick: label.is_sick() && !is_remedied,
        verdict: Verdict::NoAnswer(String::new()),
        answer: ToolAnswer::default(),
        wall: Duration::ZERO,
        cpu_ms: None,
    };
    let verdict = |answer: &ToolAnswer| match is_remedied {
        true => judge::judge_remedied(label, answer),
        false => judge::judge(label, answer),
    };
    if options.in_machines {
        let began = Instant::now();
        machines::examine(label, is_remedied, tool.command(), &mut run, verdict);
        run.wall = began.elapsed();
        return run;
    }
    match start(label, is_remedied, options) {
        Err(error) => run.verdict = Verdict::NoAnswer(format!("{error:#}")),
        Ok(Err(reason)) => run.verdict = Verdict::Skipped(reason),
        Ok(Ok(mut running)) => {
            tool.examine(running.pid, &mut run, options.jobs == 1, verdict);
            if !running.is_alive() {
                run.verdict = Verdict::NoAnswer("the program ended meanwhile".to_owned());
            }
        }
    }
    run
}

fn report(options: &CorpusOptions, runs: &[JudgedRun]) -> Result<ExitCode> {
    print!("{}", table::summary(runs));
    if let Some(path) = &options.json {
        write_json(path, runs)?;
    }
    Ok(ExitCode::SUCCESS)
}

fn write_json(path: &Path, runs: &[JudgedRun]) -> Result<()> {
    let text = serde_json::to_string_pretty(&table::json(runs))?;
    fs::write(path, text + "\n").with_context(|| path.display().to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn options_are_read_in_any_order() {
        let options = parse_options(&["--jobs", "3", "--only", "leak", "--remedied"]).unwrap();
        assert_eq!((options.jobs, options.task), (3, CorpusTask::DiagnoseRemedied));
        assert_eq!(options.only, ["leak"]);
        for wrong in [&["--jobs"][..], &["--jobs", "0"], &["--jobs", "x"], &["--unknown", "leak"]] {
            assert!(parse_options(wrong).is_err(), "{wrong:?}");
        }
    }

    #[test]
    fn programs_are_chosen_by_cause_and_by_name() {
        let leaks = chosen_labels(&["leak".to_owned()]).unwrap();
        assert!(leaks.len() > 1 && leaks.iter().all(|label| label.subject() == "leak"));
        let one = chosen_labels(&[leaks[0].name.clone()]).unwrap();
        assert_eq!(one, leaks[..1]);
        assert!(chosen_labels(&["leek".to_owned()]).is_err());
    }

    /// Starts a sick program in C, a healthy one, and a sick one in a cgroup.
    #[test]
    fn programs_compile_get_ready_and_end_with_their_environment() {
        for name in ["leak_session_table", "like_leak_full_cache", "cgroup_mapped_index"] {
            let label = &chosen_labels(&[name.to_owned()]).unwrap()[0];
            let options = CorpusOptions { jobs: 1, ..CorpusOptions::default() };
            let running = match start(label, false, &options).unwrap() {
                Ok(running) => running,
                // The machine has no cgroups or no compiler.
                Err(reason) => {
                    println!("{name}: {reason}");
                    continue;
                }
            };
            let (pid, cgroup) = (running.pid, running.cgroup.clone());
            let process = PathBuf::from(format!("/proc/{pid}"));
            assert!(process.exists(), "{name}");
            drop(running);
            assert!(!process.exists(), "{name}");
            assert!(cgroup.is_none_or(|group| !group.exists()), "{name}");
        }
    }

    #[test]
    fn a_tool_that_always_answers_the_same_is_judged_by_the_label() {
        let labels = chosen_labels(&["leak_session_table".to_owned()]).unwrap();
        let answer = r#"{"causes": [{"id": "leak", "function": "copy_attributes"}]}"#;
        let options = CorpusOptions {
            jobs: 1,
            command: Some(format!("kill -0 {{pid}} && echo '{answer}'")),
            ..CorpusOptions::default()
        };
        let runs = diagnose_all(&labels, &options).unwrap();
        assert_eq!(runs[0].verdict, Verdict::Right { line_too: false });
    }
}
