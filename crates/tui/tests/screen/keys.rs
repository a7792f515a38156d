//! Keys and the mouse: what they change, and what they ask for.

use std::time::Duration;

use pagewise_model::Pid;
use pagewise_model::sweep::ProcessKey;
use pagewise_model::top::{TopColumn, TopGrouping, TopQuery, TopSubject};
use pagewise_tui::{
    InstrumentEnd, KEY_GROUPS, KeyPress, OutputStream, PageInstrument, PageSubject, PointerAction,
    ReplayStep, TuiAction, TuiEvent,
};

use crate::frames::{page, reports};
use crate::made::MadeScreen;

fn press(screen: &mut MadeScreen, keys: &str) {
    keys.chars().for_each(|key| screen.apply(TuiEvent::Key(KeyPress::Char(key))));
}

fn key(screen: &mut MadeScreen, key: KeyPress) {
    screen.apply(TuiEvent::Key(key));
}

fn subject(pid: u32) -> PageSubject {
    PageSubject::Process(ProcessKey { pid: Pid(pid), start_ticks: u64::from(pid) * 7 })
}

#[test]
fn the_selection_follows_its_process_but_the_top_stays_the_top() {
    let mut screen = MadeScreen::new(100, 24);
    assert!(screen.selected().contains("2042"));
    press(&mut screen, "jr");
    assert!(screen.selected().contains("1377"), "{}", screen.selected());
    key(&mut screen, KeyPress::Home);
    let first = screen.selected();
    press(&mut screen, "r");
    assert_ne!(screen.selected(), first);
    assert!(screen.selected().contains("2042"));
}

#[test]
fn a_long_table_scrolls_with_the_selection() {
    let mut screen = MadeScreen::new(80, 9);
    press(&mut screen, "G");
    assert!(screen.selected().contains("2980"), "{}", screen.frame());
    key(&mut screen, KeyPress::PageUp);
    key(&mut screen, KeyPress::PageUp);
    key(&mut screen, KeyPress::PageUp);
    assert!(screen.selected().contains("2042"), "{}", screen.frame());
}

#[test]
fn keys_change_the_query() {
    let mut screen = MadeScreen::new(100, 24);
    press(&mut screen, ">");
    assert_eq!(screen.state.query().sort, TopColumn::Uss);
    press(&mut screen, "<<");
    assert_eq!(screen.state.query().sort, TopColumn::User);
    press(&mut screen, "t");
    assert!(screen.state.query().tree);
    press(&mut screen, "g");
    assert_eq!(screen.state.query().grouping, Some(TopGrouping::User));
    press(&mut screen, "ggg");
    assert_eq!(screen.state.query().grouping, None);
    press(&mut screen, "v");
    assert_eq!(screen.state.query().subject, TopSubject::Cgroups);
    press(&mut screen, "v");
    assert_eq!(screen.state.query().subject, TopSubject::Processes);
    assert_eq!(screen.taken(), []);
}

#[test]
fn the_filter_applies_at_once_and_escape_clears_it() {
    let mut screen = MadeScreen::new(100, 24);
    press(&mut screen, "/rustcx");
    key(&mut screen, KeyPress::Backspace);
    assert_eq!(screen.state.query().filter, "rustc");
    assert!(screen.frame().contains("2 processes"));
    key(&mut screen, KeyPress::Enter);
    press(&mut screen, "j");
    assert_eq!(screen.state.query().filter, "rustc", "keys are commands again");
    key(&mut screen, KeyPress::Esc);
    assert_eq!(screen.state.query().filter, "");
    press(&mut screen, "/a\u{202e}\u{7}");
    assert_eq!(screen.state.query().filter, "a", "no invisible characters");
}

#[test]
fn escape_widens_the_rows_one_step_at_a_time_and_never_quits() {
    let mut screen = MadeScreen::new(100, 24);
    press(&mut screen, "v");
    press(&mut screen, "j");
    key(&mut screen, KeyPress::Enter);
    assert!(screen.state.query().cgroup.is_some());
    for _ in 0..5 {
        key(&mut screen, KeyPress::Esc);
    }
    assert_eq!(*screen.state.query(), TopQuery::default());
    assert_eq!(screen.taken(), []);
    press(&mut screen, "q");
    assert_eq!(screen.taken(), [TuiAction::Quit]);
}

#[test]
fn freeze_and_interval_are_actions() {
    let mut screen = MadeScreen::new(100, 24);
    press(&mut screen, " ");
    assert!(screen.frame().contains("FROZEN"));
    press(&mut screen, " -+++");
    let interval = |ms| TuiAction::Interval(Duration::from_millis(ms));
    let expected = [
        TuiAction::Freeze(true),
        TuiAction::Freeze(false),
        interval(2000),
        interval(1000),
        interval(500),
    ];
    assert_eq!(screen.taken(), expected);
}

#[test]
fn enter_opens_a_page_and_leaving_it_stops_its_commands() {
    let (mut screen, subject) = page(80, 24);
    assert_eq!(screen.taken(), [TuiAction::Open(subject.clone())]);
    press(&mut screen, "f");
    assert_eq!(screen.taken(), [TuiAction::Start(subject.clone(), PageInstrument::Faults, 80)]);
    press(&mut screen, "f");
    assert_eq!(screen.taken(), [], "it runs already");
    key(&mut screen, KeyPress::Esc);
    let stop = || TuiAction::Stop(subject.clone(), PageInstrument::Faults);
    assert_eq!(screen.taken(), [stop()]);
    press(&mut screen, "1q");
    assert_eq!(screen.taken(), [stop(), TuiAction::Close]);
    assert!(screen.frame().starts_with("pagewise top"));
}

#[test]
fn a_command_can_run_again_after_its_end() {
    let (mut screen, subject) = page(80, 24);
    press(&mut screen, "h");
    let output = |text: &str| {
        let text = text.as_bytes().to_vec();
        TuiEvent::Output(subject.clone(), PageInstrument::HeapScan, OutputStream::Messages, text)
    };
    screen.apply(output("first\n"));
    let end = TuiEvent::Ended(subject.clone(), PageInstrument::HeapScan, InstrumentEnd::Failed);
    screen.apply(end);
    assert!(screen.frame().contains("failed") && screen.frame().contains("first"));
    screen.taken();
    press(&mut screen, "h");
    assert!(!screen.frame().contains("first"));
    let start = TuiAction::Start(subject.clone(), PageInstrument::HeapScan, 80);
    assert_eq!(screen.taken(), [start]);
}

#[test]
fn output_for_another_page_is_ignored() {
    let (mut screen, _) = page(80, 24);
    press(&mut screen, "d");
    let other = subject(1);
    let (diagnose, report) = (PageInstrument::Diagnose, OutputStream::Report);
    screen.apply(TuiEvent::Output(other.clone(), diagnose, report, b"wrong".to_vec()));
    screen.apply(TuiEvent::Reports(other, reports()));
    assert!(!screen.frame().contains("wrong"));
    press(&mut screen, "1");
    assert!(screen.frame().contains("reading the process"));
}

#[test]
fn a_key_of_the_table_starts_a_command_for_the_selected_process() {
    let mut screen = MadeScreen::new(80, 24);
    press(&mut screen, "jd");
    let started = TuiAction::Start(subject(1377), PageInstrument::Diagnose, 80);
    assert_eq!(screen.taken(), [TuiAction::Open(subject(1377)), started]);
    let mut screen = MadeScreen::new(80, 24);
    press(&mut screen, "s");
    let key = ProcessKey { pid: Pid(2042), start_ticks: 2042 * 7 };
    assert_eq!(screen.taken(), [TuiAction::Save(key)]);
}

#[test]
fn a_cgroup_can_only_be_diagnosed() {
    let mut screen = MadeScreen::new(80, 24);
    press(&mut screen, "vhs");
    assert_eq!(screen.taken(), []);
    press(&mut screen, "d");
    assert!(matches!(screen.taken()[..], [TuiAction::Open(_), TuiAction::Start(..)]));
}

#[test]
fn the_mouse_sorts_selects_and_opens() {
    let mut screen = MadeScreen::new(80, 24);
    let click = |x, y| TuiEvent::Pointer(PointerAction::Press, x, y);
    let heading = screen.frame().lines().position(|line| line.contains("PID")).unwrap();
    let heading = u16::try_from(heading).unwrap();
    screen.apply(click(3, heading));
    assert_eq!(screen.state.query().sort, TopColumn::Pid);
    screen.apply(click(3, heading));
    assert!(screen.state.query().reversed);
    screen.apply(click(30, heading + 2));
    let selected = screen.selected();
    assert!(selected.contains("2977"), "{}", screen.frame());
    screen.apply(click(30, heading + 2));
    assert_eq!(screen.taken(), [TuiAction::Open(subject(2977))]);
    screen.apply(click(15, 1));
    assert!(screen.frame().contains("Explain"));
    screen.apply(click(0, 500));
    screen.apply(TuiEvent::Pointer(PointerAction::WheelDown, 3, 3));
}

#[test]
fn a_recording_steps_and_measures_nothing() {
    let mut screen = MadeScreen::with((80, 24), TopQuery::default(), Some((0, 1)));
    press(&mut screen, "[}");
    let steps = [TuiAction::Step(ReplayStep::Previous), TuiAction::Step(ReplayStep::NextEvent)];
    assert_eq!(screen.taken(), steps);
    press(&mut screen, "dhfs +");
    assert_eq!(screen.taken(), []);
    let mut live = MadeScreen::new(80, 24);
    press(&mut live, "[}");
    assert_eq!(live.taken(), []);
}

#[test]
fn the_help_scrolls_and_any_other_key_closes_it() {
    let mut screen = MadeScreen::new(60, 20);
    press(&mut screen, "?");
    let top = screen.frame();
    key(&mut screen, KeyPress::End);
    assert_ne!(screen.frame(), top);
    assert!(screen.frame().contains("NAME"));
    press(&mut screen, "x");
    assert!(screen.frame().starts_with("pagewise top"));
}

#[test]
fn the_manual_lists_every_key() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/top.md");
    let manual = std::fs::read_to_string(path).unwrap();
    for (_, _, keys) in KEY_GROUPS {
        for binding in *keys {
            let keys: Vec<String> =
                binding.shown.split(' ').map(|shown| format!("`{shown}`")).collect();
            let row = format!("| {} | {} |", keys.join(", "), binding.help);
            assert!(manual.lines().any(|line| line == row), "docs/top.md lacks: {row}");
        }
    }
}
