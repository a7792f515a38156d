//! The page of a heap, as a browser shows it.

use crate::simulated;

use std::path::PathBuf;
use std::process::Command;
use std::time::{Duration, Instant};

use pagewise_model::heap::HeapRecording;
use pagewise_model::report::CellValue;
use pagewise_model::traced::SourcePosition;
use pagewise_model::{Name, Report};
use pagewise_skip::{Lack, skip};
use pagewise_view::html;
use simulated::{run, steps};

fn page(recording: &HeapRecording) -> String {
    let title = vec![CellValue::text("Heap of "), CellValue::Name(recording.command[0].clone())];
    let report = Report { schema: "pagewise.heap/1", title, blocks: Vec::new() };
    let mut out = Vec::new();
    html::write_heap(&report, recording, &mut out).unwrap();
    String::from_utf8(out).unwrap()
}

/// Writes a page where it can be looked at after the test.
fn kept(name: &str, page: &str) -> PathBuf {
    let path = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(name);
    std::fs::write(&path, page).unwrap();
    path
}

/// Content of the page after its script has run; `None`, with a message, without a browser.
fn shown(path: &std::path::Path, hash: &str) -> Option<String> {
    let folder = tempfile::tempdir().unwrap();
    let url = format!("file://{}{hash}", path.display());
    let browser = ["chromium", "chromium-browser", "google-chrome"].into_iter().find(|name| {
        Command::new(name).arg("--version").output().is_ok_and(|output| output.status.success())
    });
    let Some(browser) = browser else {
        skip(&Lack::Tool("chromium"));
        return None;
    };
    let output = Command::new(browser)
        .args(["--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"])
        .arg(format!("--user-data-dir={}", folder.path().display()))
        .args(["--window-size=1200,900", "--virtual-time-budget=5000", "--dump-dom", &url])
        .output()
        .unwrap();
    Some(String::from_utf8_lossy(&output.stdout).into_owned())
}

/// The text of the elements of a class.
fn texts(dom: &str, class: &str) -> Vec<String> {
    let mark = format!("class=\"{class}\"");
    let parts = dom.split(&mark).skip(1).map(|part| {
        let inside = part.split_once('>').unwrap().1;
        let mut text = String::new();
        let mut depth = 0_i32;
        for piece in inside.split('<') {
            let (tag, words) = piece.split_once('>').unwrap_or(("", piece));
            if tag.starts_with('/') {
                depth -= 1;
            } else if !tag.is_empty() {
                depth += 1;
            }
            if depth < 0 {
                break;
            }
            text.push_str(words);
        }
        text
    });
    parts.collect()
}

#[test]
fn a_moment_is_shown_with_its_call_stacks() {
    let recording = run(&steps(4000, 7), 40);
    let path = kept("heap.html", &page(&recording));
    let at = recording.moments.iter().rposition(|moment| moment.tree.is_some()).unwrap();
    let Some(dom) = shown(&path, &format!("#moment={at}&way=up")) else { return };
    let moment = &recording.moments[at];
    let says = &texts(&dom, "says")[0];
    let kib = format!(": {:.1}K", moment.live.bytes as f64 / 1024.0);
    assert!(says.contains(&kib), "{says}, not {kib}");
    assert!(says.contains(&format!("in {} blocks", moment.live.blocks)), "{says}");
    // The sites of the tree by the function that allocated.
    let mut by_function: std::collections::BTreeMap<&str, u64> = Default::default();
    for (site, amount) in &moment.tree.as_ref().unwrap().sites {
        let stack = &recording.stacks[recording.sites[*site as usize].stack as usize];
        *by_function.entry(simulated::FUNCTIONS[stack[0] as usize]).or_default() += amount.bytes;
    }
    let roots: Vec<&str> = dom.split("role=\"treeitem\" aria-level=\"1\"").skip(1).collect();
    assert!(roots.len() >= by_function.len(), "{dom}");
    for (function, bytes) in by_function {
        let is_it = |row: &&&str| {
            row.split("role=\"treeitem\"").next().unwrap().contains(&format!("\">{function} <"))
        };
        let row = roots.iter().find(is_it);
        let row = row.unwrap_or_else(|| panic!("no {function} in {roots:?}"));
        let digits = bytes.to_string();
        let exact = digits.as_bytes().rchunks(3).rev().map(|it| std::str::from_utf8(it).unwrap());
        let exact = exact.collect::<Vec<_>>().join(",");
        assert!(row.contains(&format!("title=\"{exact} bytes\"")), "{function} {bytes}: {row}");
    }
    let Some(dom) = shown(&path, "#moment=peak&way=down") else { return };
    let says = &texts(&dom, "says")[0];
    assert!(says.starts_with("The peak, at"), "{says}");
    let cells = dom.matches("role=\"group\"").count();
    assert!(cells == 1 && dom.contains("aria-label=\"main: "), "no flame graph");
}

/// Actions of a reader, as a script that writes its results into an element of its own.
const ACTS: &str = r##"<script>
const says = [];
const key = (key) => document.activeElement.dispatchEvent(new KeyboardEvent("keydown", { key, bubbles: true, cancelable: true }));
const rows = () => document.querySelectorAll("[role=treeitem]");
const svg = document.querySelector("#heap svg");
const box = svg.getBoundingClientRect();
svg.dispatchEvent(new MouseEvent("click", { clientX: box.left + box.width * 0.3, clientY: box.top + 40, bubbles: true }));
says.push(location.hash);
rows()[0].focus();
const all = rows().length;
key("ArrowLeft");
says.push("closed " + (rows().length < all));
key("ArrowRight");
key("ArrowDown");
says.push("below " + document.activeElement.getAttribute("aria-level"));
document.querySelector("#heap .flame button").focus();
key("ArrowRight");
const second = document.activeElement.getAttribute("aria-label");
document.activeElement.click();
says.push("zoomed " + (document.querySelector("#heap .flame button").getAttribute("aria-label") === second));
says.push("width " + document.querySelector("#heap .flame button").style.width);
key("Escape");
says.push("whole " + (document.querySelector("#heap .flame button").style.width !== "100%"));
const find = document.querySelector("#heap input[type=search]");
find.value = "LEAF";
find.dispatchEvent(new Event("input"));
says.push(document.querySelectorAll("#heap .says")[1].textContent.match(/\S+ found/));
const what = document.createElement("pre");
what.className = "told";
what.textContent = says.join("|");
document.body.append(what);
</script></body>"##;

#[test]
fn moments_are_picked_by_click_and_calls_opened_by_keyboard() {
    let recording = run(&steps(4000, 7), 40);
    let path = kept("heap-acts.html", &page(&recording).replace("</body>", ACTS));
    let Some(dom) = shown(&path, "#moment=peak") else { return };
    let told = texts(&dom, "told");
    let told: Vec<&str> = told.first().expect("the script ran").split('|').collect();
    let time = |at: usize| recording.moments[at].time_ns;
    let picked: Option<usize> =
        told[0].strip_prefix("#moment=").and_then(|rest| rest.split('&').next()?.parse().ok());
    let picked = picked.unwrap_or_else(|| panic!("{told:?}"));
    assert!(recording.moments[picked].tree.is_some(), "{told:?}");
    // Three tenths of the width, of which a margin is left of the line.
    assert!((1_000_000_000..1_300_000_000).contains(&time(picked)), "{told:?}");
    let expected = ["closed true", "below 2", "zoomed true", "width 100%", "whole true"];
    assert_eq!(told[1..6], expected);
    let share: f64 = told[6].trim_end_matches("% found").parse().unwrap();
    assert!(share > 10.0 && share < 90.0, "{told:?}");
}

#[test]
fn names_that_end_scripts_are_only_names() {
    let mut recording = run(&steps(400, 7), 40);
    let evil = "</script><img src=x onerror=\"document.title='evil'\"><!--<script>";
    recording.frames[0].function = Some(evil.to_owned());
    recording.frames[2].function = Some("\u{1b}[2J\u{202e}\0\u{2028}".to_owned());
    recording.frames[1].module = Some(Name::new(b"/tmp/\xff<b>\n"));
    recording.frames[3].line = Some(SourcePosition { file: evil.to_owned(), number: 3 });
    recording.command[0] = Name::new(evil.as_bytes());
    let page = page(&recording);
    assert_eq!(page.matches("</script>").count(), 3, "one of the data, two of scripts");
    assert!(!page.contains("<img") && !page.contains('\u{1b}') && !page.contains('\u{202e}'));
    let path = kept("heap-evil.html", &page);
    let Some(dom) = shown(&path, "#moment=peak&way=down") else { return };
    assert!(!dom.contains("<img") && !dom.contains("<title>evil"), "{dom}");
    assert!(
        dom.contains("aria-label=\"&lt;/script&gt;&lt;img")
            || dom.contains("</script><img src=x onerror=&quot;")
    );
    assert!(texts(&dom, "says")[0].starts_with("The peak"), "{dom}");
}

#[test]
fn a_recording_of_nothing_is_a_page() {
    let path = kept("heap-empty.html", &page(&simulated::empty()));
    let Some(dom) = shown(&path, "") else { return };
    assert!(texts(&dom, "says")[0].contains("0 B"), "{dom}");
}

/// As large as cc1plus: a hundred thousand calls.
#[test]
fn a_hundred_thousand_nodes_are_drawn_at_once() {
    let recording = simulated::large(30_000, 20, 100);
    let page = page(&recording);
    let nodes = page.split("\"parents\":[").nth(1).unwrap().split(']').next().unwrap();
    assert!(nodes.split(',').count() > 100_000, "{}", nodes.split(',').count());
    assert!(page.len() < 8 << 20, "{}", page.len());
    let path = kept("heap-large.html", &page);
    let begun = Instant::now();
    let Some(dom) = shown(&path, "#moment=19&way=down") else { return };
    // A bound for what hangs, not for what is slow.
    assert!(begun.elapsed() < Duration::from_secs(120));
    assert!(texts(&dom, "says")[0].starts_with("At "), "{}", texts(&dom, "says")[0]);
    let cells = dom.matches("aria-label=\"function_").count();
    assert!((30..3000).contains(&cells), "{cells}");
}
