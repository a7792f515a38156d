//! `pages` on programs whose pages are known one by one, and against `smaps`.

#![expect(clippy::unwrap_used, reason = "what fails here fails a test")]

mod fixture;

use std::process::{Command, Stdio};

use pagewise_skip::{Lack, is_root, skip};
use serde_json::Value;

use fixture::{Fixture, json, number, pagewise, program};

const PAGE: u64 = 4096;

fn pages(fixture: &Fixture, options: &[&str]) -> Value {
    json(&[&["pages", &fixture.pid.to_string(), "--json"], options].concat())
}

/// Returns the state of each page from an address on, according to the runs in a report.
fn states(report: &Value, start: u64, count: u64) -> Vec<String> {
    let runs = report["runs"].as_array().unwrap();
    let state = |page: u64| {
        let address = start + page * PAGE;
        let run = runs
            .iter()
            .find(|run| number(run, "start") <= address && address < number(run, "end"))
            .unwrap_or_else(|| panic!("no run holds {address:x}"));
        run["state"].as_str().unwrap().to_owned()
    };
    (0..count).map(state).collect()
}

/// Returns one state for each page: `[("anonymous", 2), ("zero", 1)]` gives two states `anonymous`
/// and one state `zero`.
fn expected(runs: &[(&str, usize)]) -> Vec<String> {
    runs.iter().flat_map(|(state, count)| vec![(*state).to_owned(); *count]).collect()
}

fn run_at(report: &Value, address: u64) -> &Value {
    let runs = report["runs"].as_array().unwrap();
    let holds = |run: &&Value| number(run, "start") <= address && address < number(run, "end");
    runs.iter().find(holds).unwrap()
}

#[test]
fn each_page_has_the_state_that_its_program_gave_it() {
    let fixture = Fixture::start("pages", &[]);
    let guards = fixture.fact("mixed.guards") == 1;
    for options in [&[][..], &["--fast"], &["--by=scan"], &["--by=pagemap"], &["--detail"]] {
        let report = pages(&fixture, options);
        // The entries of pagemap do not distinguish the zero page from other pages.
        let zero = if options == ["--by=pagemap"] { "anonymous" } else { "zero" };
        let guard = if guards { "guard" } else { "untouched" };
        let mixed = [("anonymous", 16), (zero, 16), (guard, 8), ("untouched", 24)];
        let found = states(&report, fixture.fact("mixed.start"), 64);
        assert_eq!(found, expected(&mixed), "{options:?}");
        let shared = states(&report, fixture.fact("shared.start"), 32);
        assert_eq!(shared, expected(&[("shmem", 8), ("untouched", 24)]), "{options:?}");
        let copied = states(&report, fixture.fact("copied.start"), 32);
        assert_eq!(copied[..4], expected(&[("anonymous", 4)]), "{options:?}");
        let rest = ["file".to_owned(), "untouched".to_owned()];
        assert!(copied[4..].iter().all(|state| rest.contains(state)), "{options:?}: {copied:?}");
    }
}

#[test]
fn both_ways_of_reading_agree_on_every_run() {
    let fixture = Fixture::start("pages", &[]);
    let merged = |options: &[&str]| -> Vec<(u64, u64, String)> {
        let report = pages(&fixture, options);
        let mut runs: Vec<(u64, u64, String)> = Vec::new();
        for run in report["runs"].as_array().unwrap() {
            // A detail that only one interface reports is removed, so that neighbors merge.
            let state = run["state"].as_str().unwrap().replace("zero", "anonymous");
            let (start, end) = (number(run, "start"), number(run, "end"));
            match runs.last_mut() {
                Some(last) if last.1 == start && last.2 == state => last.1 = end,
                _ => runs.push((start, end, state)),
            }
        }
        runs
    };
    assert_eq!(merged(&["--by=scan"]), merged(&["--by=pagemap"]));
    assert_eq!(merged(&["--by=scan"]), merged(&[]));
    // The default and PAGEMAP_SCAN show huge entries and the zero page. Only the entries of pagemap
    // show if a page is mapped once.
    let told = |options: &[&str]| -> Vec<(u64, u64, String, Value)> {
        let report = pages(&fixture, options);
        let runs = report["runs"].as_array().unwrap().iter();
        let run = |run: &Value| {
            let state = run["state"].as_str().unwrap().to_owned();
            (number(run, "start"), number(run, "end"), state, run["huge"].clone())
        };
        let mut joined: Vec<(u64, u64, String, Value)> = Vec::new();
        for run in runs.map(run) {
            match joined.last_mut() {
                Some(last) if last.1 == run.0 && (&last.2, &last.3) == (&run.2, &run.3) => {
                    last.1 = run.1;
                }
                _ => joined.push(run),
            }
        }
        joined
    };
    assert_eq!(told(&["--by=scan"]), told(&[]));
}

#[test]
fn runs_cover_each_mapping_and_add_up_to_smaps() {
    let fixture = Fixture::start("pages", &[]);
    for options in [&[][..], &["--by=scan"], &["--by=pagemap"]] {
        let report = pages(&fixture, options);
        let runs = report["runs"].as_array().unwrap();
        for entry in fixture.smaps().iter().filter(|entry| entry.name != "[vsyscall]") {
            let inside: Vec<&Value> = runs
                .iter()
                .filter(|run| (entry.start..entry.end).contains(&number(run, "start")))
                .collect();
            assert_eq!(number(inside[0], "start"), entry.start, "{}", entry.name);
            assert_eq!(number(inside[inside.len() - 1], "end"), entry.end, "{}", entry.name);
            for pair in inside.windows(2) {
                assert_eq!(pair[0]["end"], pair[1]["start"]);
            }
            let resident = ["anonymous", "file", "shmem"];
            let sum: u64 = inside
                .iter()
                .filter(|run| resident.contains(&run["state"].as_str().unwrap()))
                .map(|run| number(run, "size"))
                .sum();
            // pagemap shows the zero page as anonymous memory; smaps counts no page of [vvar].
            let by_words = options == ["--by=pagemap"];
            let zero = if by_words { entry.end - entry.start } else { 0 };
            if !entry.is_kernels() {
                assert!(
                    (entry.counter("Rss")..=entry.counter("Rss") + zero).contains(&sum),
                    "{}: {sum}",
                    entry.name
                );
            }
        }
    }
}

#[test]
fn frames_show_other_mappers_of_a_page() {
    let fixture = Fixture::start("pages", &[]);
    if !is_root() {
        return;
    }
    let report = pages(&fixture, &["--detail"]);
    let forked = fixture.fact("forked.start");
    let shared = run_at(&report, forked);
    assert_eq!((&shared["exclusive"], &shared["mappers"]), (&Value::from(false), &Value::from(2)));
    assert_eq!(number(shared, "end"), forked + 24 * PAGE);
    let own = run_at(&report, forked + 24 * PAGE);
    assert_eq!((&own["exclusive"], &own["mappers"]), (&Value::from(true), &Value::from(1)));
    assert_eq!(own["ksm"], false);
    assert_eq!(own["folio_pages"], 1);
    // Without --detail, page frames are not read. The entries of pagemap show that another process
    // maps the page.
    let report = pages(&fixture, &[]);
    assert!(run_at(&report, forked)["mappers"].is_null());
    assert_eq!(run_at(&report, forked)["exclusive"], false);
    assert!(report["total"]["ksm"]["absent"].as_str().unwrap().contains("--detail"));
}

#[test]
fn writes_are_reported_if_the_process_has_them_tracked() {
    let fixture = Fixture::start("pages", &[]);
    let report = pages(&fixture, &["--by=scan"]);
    let start = fixture.fact("tracked.start");
    if fixture.fact("tracked.on") == 0 {
        assert!(run_at(&report, start)["written"].is_null());
        return skip(&Lack::Machine("the kernel cannot track writes"));
    }
    let written = run_at(&report, start);
    assert_eq!(
        (&written["written"], number(written, "end")),
        (&Value::from(true), start + 8 * PAGE)
    );
    assert_eq!(run_at(&report, start + 8 * PAGE)["written"], false);
    assert!(run_at(&report, fixture.fact("mixed.start"))["written"].is_null(), "nobody tracks it");
}

#[test]
fn a_huge_page_is_one_run() {
    let fixture = Fixture::start("pages", &[]);
    let start = fixture.fact("huge.start");
    let entry = fixture.smaps().into_iter().find(|e| (e.start..e.end).contains(&start)).unwrap();
    if entry.counter("AnonHugePages") == 0 {
        return skip(&Lack::Chance("no huge page is free"));
    }
    let report = pages(&fixture, &["--detail"]);
    let run = run_at(&report, start);
    assert_eq!((&run["huge"], &run["state"]), (&Value::from(true), &Value::from("anonymous")));
    assert_eq!((number(run, "start"), number(run, "size")), (start, 2 << 20));
    if is_root() {
        assert_eq!(run["folio_pages"], 512);
    }
}

#[test]
fn a_part_of_the_address_space_can_be_named() {
    let fixture = Fixture::start("pages", &[]);
    let mixed = fixture.fact("mixed.start");
    let runs = |place: &str| pages(&fixture, &[place])["runs"].as_array().unwrap().clone();
    for place in [format!("{mixed:x}+64K"), format!("0x{mixed:x}-0x{:x}", mixed + 16 * PAGE)] {
        let runs = runs(&place);
        assert_eq!(runs.len(), 1, "{place}: {runs:?}");
        assert_eq!((number(&runs[0], "start"), number(&runs[0], "size")), (mixed, 16 * PAGE));
    }
    let whole = runs(&format!("{:x}", mixed + 5 * PAGE));
    assert_eq!(whole.iter().map(|run| number(run, "size")).sum::<u64>(), 64 * PAGE);
    let stack = pages(&fixture, &["[stack]"]);
    assert_eq!(stack["mappings"].as_array().unwrap().len(), 1);
    assert!(pages(&fixture, &["libc"])["mappings"].as_array().unwrap().len() > 1);
    let pid = fixture.pid.to_string();
    let code = |place: &str| pagewise(&["pages", &pid, place]).status.code();
    assert_eq!((code("2000-1000"), code("no such mapping")), (Some(2), Some(1)));
}

#[test]
fn a_strip_is_drawn_for_each_mapping_and_fits_the_terminal() {
    let fixture = Fixture::start("pages", &[]);
    for width in ["80", "140"] {
        let pid = fixture.pid.to_string();
        let output = pagewise(&["pages", &pid, "--width", width]);
        let text = String::from_utf8(output.stdout).unwrap();
        assert!(text.contains('█') && text.contains('·'), "{text}");
        let widest = text.lines().map(|line| line.chars().count()).max().unwrap();
        assert!(widest <= width.parse().unwrap(), "{widest} of {width}:\n{text}");
    }
    // The 64 pages are 16 resident, 16 zero, 8 guarded and 24 untouched ones, shown in 24 cells.
    let guards = fixture.fact("mixed.guards") == 1;
    let output = pagewise(&["pages", &fixture.pid.to_string(), "--width", "200"]);
    let text = String::from_utf8(output.stdout).unwrap();
    let line = format!("{:x}", fixture.fact("mixed.start"));
    let line = text.lines().find(|found| found.contains(&line)).unwrap();
    let strip = if guards {
        "██████zzzzzzggg·········"
    } else {
        "██████zzzzzz············"
    };
    assert!(line.contains(strip), "{line}");
}

#[test]
fn memory_touched_in_an_interval_is_reported_by_mapping() {
    // The program must run, not be stopped: it reads four pages every 5 ms.
    let mut command = Command::new(program("pages"));
    let folder = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    command.arg("5").current_dir(folder.path()).stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut child = command.spawn().unwrap();
    let mut lines = std::io::BufRead::lines(std::io::BufReader::new(child.stdout.take().unwrap()));
    let mut mixed = 0_u64;
    while let Some(Ok(line)) = lines.next()
        && line != "ready"
    {
        if let Some(start) = line.strip_prefix("mixed.start = ") {
            mixed = start.parse().unwrap();
        }
    }
    let read = || json(&["pages", &child.id().to_string(), "--touched", "500ms", "--json"]);
    let touched_of = |report: &Value| {
        let rows = report["mappings"].as_array().unwrap();
        let row = rows.iter().find(|row| row["start"] == mixed);
        row.map(|row| number(row, "touched"))
    };
    let (mut report, begin) = (read(), std::time::Instant::now());
    // On a busy machine, the program may get no CPU for this time.
    while touched_of(&report) < Some(4 * PAGE) && begin.elapsed().as_secs() < 60 {
        report = read();
    }
    let touched = touched_of(&report);
    child.kill().unwrap();
    child.wait().unwrap();
    assert_eq!(touched, Some(4 * PAGE), "{report:#}");
    assert!(number(&report, "interval.interval_ns") >= 500_000_000);
    assert!(number(&report, "interval.clear_ns") > 0);
    let written = &report["total"]["written"];
    assert!(written.is_u64() || written["absent"].as_str().unwrap().contains("soft-dirty"));
}

#[test]
fn an_ended_process_is_an_error() {
    let mut child = Command::new("true").spawn().unwrap();
    let pid = child.id().to_string();
    child.wait().unwrap();
    let output = pagewise(&["pages", &pid]);
    assert_eq!(output.status.code(), Some(1));
    assert!(output.stdout.is_empty());
}
