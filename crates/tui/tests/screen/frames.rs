//! Tests of frames at common widths of terminals.

use std::sync::Arc;

use insta::assert_snapshot;
use pagewise_model::report::{
    CellValue, ColumnCells, Report, ReportBlock, ReportTable, TableColumn,
};
use pagewise_model::sweep::ProcessKey;
use pagewise_model::top::{TopColumn, TopGrouping, TopQuery, TopSubject};
use pagewise_model::{Name, Pid};
use pagewise_tui::{
    InstrumentEnd, KeyPress, LiveReports, OutputStream, PageInstrument, PageSubject, TuiEvent,
};

use crate::made::MadeScreen;

#[test]
fn the_table_fits_60_columns() {
    assert_snapshot!(MadeScreen::new(60, 20).frame());
}

#[test]
fn the_table_fits_80_columns() {
    assert_snapshot!(MadeScreen::new(80, 24).frame());
}

#[test]
fn the_table_fits_140_columns() {
    assert_snapshot!(MadeScreen::new(140, 24).frame());
}

#[test]
fn values_of_an_earlier_sample_have_a_mark_and_their_age() {
    let frame = MadeScreen::outdated(80, 10).frame();
    assert_snapshot!(frame);
    let screen = MadeScreen::outdated(60, 16);
    let has_mark = |pid: &str| {
        let frame = screen.frame();
        frame.lines().any(|line| line.trim_start().starts_with(pid) && line.contains('~'))
    };
    assert!(has_mark("2042") && has_mark("1377") && !has_mark("733"), "{}", screen.frame());
}

#[test]
fn the_tree_shows_children_below_parents() {
    let query = TopQuery { tree: true, sort: TopColumn::Growth, ..TopQuery::default() };
    assert_snapshot!(MadeScreen::with((100, 20), query, None).frame());
}

#[test]
fn groups_have_sums() {
    let query = TopQuery { grouping: Some(TopGrouping::User), ..TopQuery::default() };
    assert_snapshot!(MadeScreen::with((80, 16), query, None).frame());
}

#[test]
fn cgroups_have_charge_limit_and_pressure() {
    let query = TopQuery {
        subject: TopSubject::Cgroups,
        sort: TopColumn::Current,
        tree: true,
        ..TopQuery::default()
    };
    assert_snapshot!(MadeScreen::with((100, 18), query, None).frame());
}

#[test]
fn the_filter_is_edited_in_the_bottom_line() {
    let mut screen = MadeScreen::new(80, 14);
    for letter in "/rust".chars() {
        screen.apply(TuiEvent::Key(KeyPress::Char(letter)));
    }
    assert_snapshot!(screen.frame());
}

#[test]
fn a_recording_has_its_time_in_the_title() {
    let begin = 1_795_486_385_000_000_000;
    let span = Some((begin, begin + 60_000_000_000));
    let screen = MadeScreen::with((80, 10), TopQuery::default(), span);
    assert_snapshot!(screen.frame());
}

#[test]
fn the_help_has_all_keys_and_columns() {
    let mut screen = MadeScreen::new(60, 70);
    screen.apply(TuiEvent::Key(KeyPress::Char('?')));
    assert_snapshot!(screen.frame());
}

#[test]
fn a_small_terminal_gets_a_message() {
    assert_snapshot!(MadeScreen::new(39, 5).frame());
}

fn report(rows: u64) -> Report {
    let names = (0..rows).map(|row| Name::from(format!("row {row}").as_str())).collect();
    let bars = (0..rows).map(|row| CellValue::Bar(1.0 / (row + 1) as f64)).collect();
    let table = ReportTable {
        key: "rows".into(),
        title: "Memory by category".into(),
        audience: Default::default(),
        columns: vec![
            TableColumn::new("name", "Name", ColumnCells::Names(names)),
            TableColumn::new("bar", "", ColumnCells::Values(bars)),
        ],
        row_keys: None,
        total: None,
        note: "".into(),
    };
    Report { schema: "test/1", title: Vec::new(), blocks: vec![ReportBlock::Table(table)] }
}

/// Opens the page of the largest process of the constructed machine.
pub(crate) fn page(columns: u16, lines: u16) -> (MadeScreen, PageSubject) {
    let mut screen = MadeScreen::new(columns, lines);
    screen.apply(TuiEvent::Key(KeyPress::Enter));
    let subject = PageSubject::Process(ProcessKey { pid: Pid(2042), start_ticks: 2042 * 7 });
    (screen, subject)
}

pub(crate) fn reports() -> Arc<LiveReports> {
    Arc::new(LiveReports {
        overview: report(4),
        explain: report(30),
        growth: report(1),
        mappings: report(100),
        threads: report(2),
    })
}

#[test]
fn the_page_of_a_process_has_panes() {
    let (mut screen, subject) = page(80, 14);
    assert!(screen.frame().contains("reading the process"));
    screen.apply(TuiEvent::Reports(subject, reports()));
    assert_snapshot!(screen.frame());
}

#[test]
fn a_long_pane_says_which_lines_are_visible() {
    let (mut screen, subject) = page(60, 12);
    screen.apply(TuiEvent::Reports(subject, reports()));
    screen.apply(TuiEvent::Key(KeyPress::Char('4')));
    screen.apply(TuiEvent::Key(KeyPress::PageDown));
    assert_snapshot!(screen.frame());
}

#[test]
fn a_command_has_a_pane_of_its_own() {
    let (mut screen, subject) = page(80, 12);
    screen.apply(TuiEvent::Key(KeyPress::Char('d')));
    let output = |stream, text: &[u8]| {
        TuiEvent::Output(subject.clone(), PageInstrument::Diagnose, stream, text.to_vec())
    };
    screen.apply(output(OutputStream::Messages, b"pagewise: snapshot\n"));
    screen.apply(output(OutputStream::Report, b"\x1b[1mDiagnosis\x1b[0m of x\x1b[2J\n"));
    assert_snapshot!(screen.frame());
    screen.apply(TuiEvent::Ended(subject.clone(), PageInstrument::Diagnose, InstrumentEnd::Done));
    let frame = screen.frame();
    assert!(frame.contains("Diagnosis"), "{frame}");
    assert!(!frame.contains("running") && !frame.contains("pagewise: snapshot"), "{frame}");
}

#[test]
fn panes_that_do_not_fit_have_short_names() {
    let (mut screen, _) = page(60, 10);
    for key in "fhd2".chars() {
        screen.apply(TuiEvent::Key(KeyPress::Char(key)));
    }
    assert_snapshot!(screen.frame());
}

#[test]
fn no_control_character_of_a_name_reaches_the_terminal() {
    for columns in [60, 80, 140] {
        let screen = MadeScreen::new(columns, 24);
        assert!(screen.frame().contains(r"evil\x1b[2J\x07\n"), "{}", screen.frame());
        assert!(!screen.has_control_characters());
    }
}
