//! Reports of small recordings, whose numbers are known.

use pagewise_model::ending::ProgramEnding;
use pagewise_model::heap::{
    AllocationKind, AllocationSite, AllocatorArea, AllocatorAreaKind, AllocatorLayout, HeapAmount,
    HeapEnding, HeapRecording, HeapSnapshot, HeapThread, LiveTree, PageDensity, PinnedPages,
    ResidentBytes, Totals,
};
use pagewise_model::report::{Audience, CellValue, NamedFacts, Report, ReportBlock};
use pagewise_model::traced::{Frame, SourcePosition};
use pagewise_model::{Absent, Bytes, PageSize, Pid};
use proptest::prelude::*;

use super::{
    DiffOptions, Direction, GrownQuantity, HeapOptions, TreeMoment, TreeQuantity, diff, report,
};
use crate::sample::{column, table};

const MIB: u64 = 1 << 20;

fn frame(function: &str, line: u32) -> Frame {
    Frame {
        function: Some(function.to_owned()),
        module: Some("/bin/a".into()),
        offset: line.into(),
        line: Some(SourcePosition { file: "/src/a.c".to_owned(), number: line }),
        inlined: false,
    }
}

fn amount(bytes: u64, blocks: u64) -> HeapAmount {
    HeapAmount { bytes, blocks }
}

/// A site that allocated and freed these bytes, in blocks of ten, with all allocated bytes live at
/// the peak.
fn site(stack: u32, allocated: u64, freed: u64) -> AllocationSite {
    AllocationSite {
        stack,
        kind: AllocationKind::Heap,
        allocated: amount(allocated, allocated / 10),
        freed: amount(freed, freed / 10),
        temporary: freed / 20,
        at_peak: amount(allocated, allocated / 10),
        errors: None,
    }
}

fn absent() -> Absent {
    Absent::NotCollected("".into())
}

fn moment(time_ns: u64, live: u64, held: Option<u64>, resident: Option<u64>) -> HeapSnapshot {
    HeapSnapshot {
        time_ns,
        live: amount(live, 1),
        allocated: amount(live, 1),
        held: held.map(Bytes).ok_or_else(absent),
        resident: resident
            .map(|anonymous| ResidentBytes { anonymous, ..ResidentBytes::default() })
            .ok_or_else(absent),
        tree: None,
        older_freed: None,
    }
}

/// `main` calls `read`, which allocates by `new`, and `keep`, which `read` calls, too.
fn recording(sites: Vec<AllocationSite>) -> HeapRecording {
    let sum = |pick: &dyn Fn(&AllocationSite) -> HeapAmount| {
        let each = sites.iter().map(pick);
        each.fold(amount(0, 0), |sum, it| amount(sum.bytes + it.bytes, sum.blocks + it.blocks))
    };
    let totals = Totals {
        allocated: sum(&|it| it.allocated),
        freed: sum(&|it| it.freed),
        peak: sum(&|it| it.at_peak),
        leaked: sum(&AllocationSite::leaked),
        temporary: sites.iter().map(|it| it.temporary).sum(),
        ..Totals::default()
    };
    let new = Frame { line: None, ..frame("operator new(unsigned long)", 0) };
    HeapRecording {
        pid: Pid(7),
        command: vec!["/bin/a".into()],
        program: "/bin/a".into(),
        allocator: "glibc 2.36".into(),
        page_size: PageSize::new(4096).unwrap(),
        began_ns: 0,
        took_ns: 1_000_000_000,
        every_bytes: None,
        attached: false,
        ending: HeapEnding::Ended(ProgramEnding::Exited(0)),
        totals,
        peak_at_ns: Ok(500_000_000),
        frames: vec![new, frame("read", 10), frame("keep", 20), frame("main", 30)],
        stacks: vec![vec![0, 1, 3], vec![2, 3], vec![2, 1, 3], vec![]],
        sites,
        moments: Vec::new(),
        layouts: Vec::new(),
        sizes: Vec::new(),
        lifetimes: Vec::new(),
        lifetimes_every: 0,
        threads: Vec::new(),
        lacks: Vec::new(),
    }
}

fn usual(sites: Vec<AllocationSite>) -> Report {
    report(&recording(sites), &HeapOptions::default())
}

fn facts<'r>(report: &'r Report, key: &str) -> &'r NamedFacts {
    let is_it = |block: &'r ReportBlock| match block {
        ReportBlock::Facts(facts) if facts.key == key => Some(facts),
        _ => None,
    };
    report.blocks.iter().find_map(is_it).unwrap()
}

fn fact(report: &Report, block: &str, key: &str) -> CellValue {
    let found = facts(report, block).facts.iter().find(|fact| fact.key == key);
    found.unwrap().value.clone()
}

/// The members of a tree's node.
fn member(node: &CellValue, key: &str) -> Option<CellValue> {
    let CellValue::Record(members) = node else { panic!("{node:?}") };
    members.iter().find(|(name, _)| name == key).map(|(_, value)| value.clone())
}

fn children(node: &CellValue) -> Vec<CellValue> {
    match member(node, "children") {
        Some(CellValue::List(children)) => children,
        other => panic!("{other:?}"),
    }
}

/// Functions and bytes of a tree, indented by depth.
fn shape(node: &CellValue, depth: usize) -> Vec<String> {
    let mut lines = Vec::new();
    for child in children(node) {
        let (function, bytes) = (member(&child, "function"), member(&child, "bytes"));
        lines.push(match (function, bytes) {
            (Some(CellValue::Name(name)), Some(CellValue::Bytes(bytes))) => {
                format!("{}{} {bytes}", " ".repeat(depth), name.escaped())
            }
            other => panic!("{other:?}"),
        });
        lines.extend(shape(&child, depth + 1));
    }
    lines
}

fn findings(report: &Report) -> Vec<&'static str> {
    let list = |block: &ReportBlock| match block {
        ReportBlock::Findings(findings) => findings.list.iter().map(|it| it.id).collect(),
        _ => Vec::new(),
    };
    report.blocks.iter().flat_map(list).collect()
}

/// Text for people, without its layout.
fn report_text(report: &Report) -> String {
    let one = |value: &CellValue| match value {
        CellValue::Text(text) => text.to_string(),
        CellValue::Name(name) => name.escaped().into_owned(),
        other => format!("{other:?}"),
    };
    let text = |block: &ReportBlock| match block {
        ReportBlock::Text(text) => text.pieces.iter().map(one).collect(),
        _ => String::new(),
    };
    report.blocks.iter().map(text).collect::<Vec<_>>().join("\n")
}

#[test]
fn totals_are_those_of_the_recording() {
    let report = usual(vec![site(0, 1000, 400), site(1, 50, 50)]);
    let total = |key| fact(&report, "totals", key);
    assert_eq!(total("allocations"), CellValue::Count(105));
    assert_eq!(total("frees"), CellValue::Count(45));
    assert_eq!(total("allocated_bytes"), CellValue::Bytes(1050));
    assert_eq!(total("peak_bytes"), CellValue::Bytes(1050));
    assert_eq!(total("leaked_bytes"), CellValue::Bytes(600));
    assert_eq!(total("leaked_blocks"), CellValue::Count(60));
    assert_eq!(total("temporary"), CellValue::Count(22));
    assert_eq!(total("estimated"), CellValue::Flag(false));
}

#[test]
fn unfreed_blocks_are_listed_by_call_stack_with_all_calls() {
    let report = usual(vec![site(1, 50, 50), site(0, 1000, 400), site(2, 700, 0)]);
    let leaks = table(&report, "leaks");
    assert_eq!(column(leaks, "bytes"), [CellValue::Bytes(700), CellValue::Bytes(600)]);
    assert_eq!(column(leaks, "blocks"), [CellValue::Count(70), CellValue::Count(60)]);
    let names = |names: &[&str]| {
        CellValue::List(names.iter().map(|name| CellValue::Name((*name).into())).collect())
    };
    let stacks = [
        names(&["keep (/src/a.c:20)", "read (/src/a.c:10)", "main (/src/a.c:30)"]),
        names(&["operator new(unsigned long)", "read (/src/a.c:10)", "main (/src/a.c:30)"]),
    ];
    assert_eq!(column(leaks, "stack"), stacks);
    // The text for people begins with the allocating function, not with wrappers.
    assert_eq!(column(leaks, "where")[1], CellValue::Name("read (a.c:10) ← main".into()));
}

#[test]
fn hidden_rows_of_leaks_are_summed() {
    let recording = recording(vec![site(0, 1000, 0), site(1, 500, 0), site(2, 70, 0)]);
    let report = report(&recording, &HeapOptions { limit: Some(1), ..HeapOptions::default() });
    assert_eq!(table(&report, "leaks").rows(), 1);
    let left_out = |key| fact(&report, "leaks_left_out", key);
    assert_eq!(left_out("stacks"), CellValue::Count(2));
    assert_eq!(left_out("bytes"), CellValue::Bytes(570));
    assert_eq!(left_out("blocks"), CellValue::Count(57));
}

#[test]
fn the_tree_of_the_peak_grows_from_the_allocating_function_to_main() {
    let report = usual(vec![site(0, 600, 0), site(1, 300, 0), site(2, 100, 0)]);
    let tree = fact(&report, "peak", "tree");
    assert_eq!(member(&tree, "bytes"), Some(CellValue::Bytes(1000)));
    let expected = ["read 600", " main 600", "keep 400", " main 300", " read 100", "  main 100"];
    assert_eq!(shape(&tree, 0), expected);
}

#[test]
fn a_top_down_tree_grows_from_main_to_the_allocating_function() {
    let recording = recording(vec![site(0, 600, 0), site(1, 300, 0), site(2, 100, 0)]);
    let options = HeapOptions { tree: Direction::TopDown, ..HeapOptions::default() };
    let tree = fact(&report(&recording, &options), "peak", "tree");
    assert_eq!(shape(&tree, 0), ["main 1000", " read 700", "  keep 100", " keep 300"]);
}

#[test]
fn branches_below_the_threshold_are_added_up() {
    let recording = recording(vec![site(0, 9800, 0), site(1, 110, 0), site(2, 90, 0)]);
    let tree = |threshold| {
        fact(
            &report(&recording, &HeapOptions { threshold, ..HeapOptions::default() }),
            "peak",
            "tree",
        )
    };
    assert_eq!(shape(&tree(0.1), 0), ["read 9800", " main 9800"]);
    let left_out = member(&tree(0.1), "left_out").unwrap();
    assert_eq!(member(&left_out, "bytes"), Some(CellValue::Bytes(200)));
    assert_eq!(member(&left_out, "places"), Some(CellValue::Count(1)));
    let keep = &children(&tree(0.01))[1];
    let left_out = member(keep, "left_out").unwrap();
    assert_eq!(member(&left_out, "bytes"), Some(CellValue::Bytes(90)));
    assert_eq!(shape(&tree(0.0), 0).len(), 6);
}

#[test]
fn bytes_without_a_site_are_reported_beside_the_tree() {
    let mut recording = recording(vec![site(0, 600, 0)]);
    recording.totals.peak.bytes = 1000;
    let tree = fact(&report(&recording, &HeapOptions::default()), "peak", "tree");
    assert_eq!(member(&tree, "bytes"), Some(CellValue::Bytes(1000)));
    assert_eq!(member(&member(&tree, "left_out").unwrap(), "bytes"), Some(CellValue::Bytes(400)));
}

#[test]
fn memory_of_other_kinds_is_apart_from_that_of_malloc() {
    let mapping = AllocationSite { kind: AllocationKind::Mapping, ..site(1, 300, 0) };
    let tree = fact(&usual(vec![site(1, 200, 0), mapping]), "peak", "tree");
    let expected = ["[mmap, brk] 300", " keep 300", "  main 300", "keep 200", " main 200"];
    assert_eq!(shape(&tree, 0), expected);
}

#[test]
fn stacks_without_calls_are_of_unknown_callers() {
    let tree = fact(&usual(vec![site(3, 200, 0)]), "peak", "tree");
    assert_eq!(shape(&tree, 0), ["[unknown callers] 200"]);
}

#[test]
fn trees_have_the_requested_time_point_and_quantity() {
    let mut recording = recording(vec![site(0, 600, 100), site(1, 300, 300)]);
    recording.moments = vec![
        HeapSnapshot {
            tree: Some(LiveTree { sites: vec![(1, amount(80, 8))], others: amount(20, 2) }),
            older_freed: None,
            ..moment(10, 100, None, None)
        },
        moment(20, 300, None, None),
    ];
    let tree = |at, by| {
        let options = HeapOptions { at, by, ..HeapOptions::default() };
        fact(&report(&recording, &options), "selected", "tree")
    };
    assert_eq!(shape(&tree(TreeMoment::End, TreeQuantity::Live), 0), ["read 500", " main 500"]);
    let then = tree(TreeMoment::Time(25), TreeQuantity::Live);
    assert_eq!(shape(&then, 0), ["keep 80", " main 80"]);
    assert_eq!(member(&then, "bytes"), Some(CellValue::Bytes(100)));
    assert!(matches!(tree(TreeMoment::Time(5), TreeQuantity::Live), CellValue::Absent(_)));
    assert_eq!(shape(&tree(TreeMoment::Peak, TreeQuantity::Calls), 0)[0], "read 60");
    assert_eq!(shape(&tree(TreeMoment::Peak, TreeQuantity::Temporary), 0)[0], "keep 15");
    assert_eq!(shape(&tree(TreeMoment::Peak, TreeQuantity::Allocated), 0)[0], "read 600");
}

#[test]
fn call_sites_and_libraries_add_up_their_stacks() {
    let report = usual(vec![site(0, 600, 100), site(1, 300, 300), site(2, 400, 0)]);
    let places = table(&report, "places");
    assert_eq!(column(places, "allocated_bytes"), [CellValue::Bytes(700), CellValue::Bytes(600)]);
    assert_eq!(column(places, "allocations"), [CellValue::Count(70), CellValue::Count(60)]);
    assert_eq!(column(places, "leaked_bytes"), [CellValue::Bytes(400), CellValue::Bytes(500)]);
    assert_eq!(column(places, "function"), ["keep", "read"].map(|it| CellValue::Name(it.into())));
    assert_eq!(column(places, "line"), [CellValue::Count(20), CellValue::Count(10)]);
    let libraries = table(&report, "libraries");
    assert_eq!(column(libraries, "allocated_bytes"), [CellValue::Bytes(1300)]);
    assert_eq!(column(libraries, "module"), [CellValue::Name("/bin/a".into())]);
}

#[test]
fn the_time_line_says_what_is_not_known() {
    let mut recording = recording(vec![site(0, 600, 0)]);
    recording.moments =
        vec![moment(1_000_000_000, 7, Some(9), None), moment(2_000_000_000, 8, None, Some(5))];
    let report = report(&recording, &HeapOptions::default());
    let line = table(&report, "timeline");
    assert_eq!(column(line, "time"), [1_000_000_000, 2_000_000_000].map(CellValue::Seconds));
    assert_eq!(column(line, "live"), [7, 8].map(CellValue::Bytes));
    assert_eq!(column(line, "held")[0], CellValue::Bytes(9));
    assert!(matches!(column(line, "held")[1], CellValue::Absent(_)));
    assert!(matches!(column(line, "resident")[0], CellValue::Absent(_)));
    assert_eq!(column(line, "resident")[1], CellValue::Bytes(5));
}

#[test]
fn estimates_are_labeled_as_such() {
    let mut recording = recording(vec![
        AllocationSite { errors: Some((30.0, 3.0)), ..site(0, 600, 0) },
        AllocationSite { errors: Some((40.0, 4.0)), ..site(0, 600, 0) },
    ]);
    recording.every_bytes = Some(512 << 10);
    recording.totals.errors = Some((50.0, 5.0));
    let report = report(&recording, &HeapOptions::default());
    assert_eq!(fact(&report, "totals", "estimated"), CellValue::Flag(true));
    // 1.96 standard errors on either side.
    assert_eq!(fact(&report, "totals", "allocated_within"), CellValue::Bytes(98));
    assert_eq!(fact(&report, "totals", "leaked_within"), CellValue::Bytes(10));
    assert_eq!(column(table(&report, "leaks"), "within"), [6, 8].map(CellValue::Bytes));
    assert_eq!(column(table(&report, "places"), "allocated_within"), [CellValue::Bytes(98)]);
    assert!(report_text(&report).contains("At most about"), "{}", report_text(&report));
    assert!(report_text(&report).contains("estimates"));
}

#[test]
fn lifetimes_show_the_fraction_of_blocks_that_was_measured() {
    let mut recording = recording(vec![site(0, 600, 0)]);
    recording.sizes = vec![0, 0, 0, 5, 0, 7];
    recording.lifetimes = vec![3];
    let without = report(&recording, &HeapOptions::default());
    let is_sizes = |block: &&ReportBlock| match block {
        ReportBlock::Table(it) => it.key == "sizes" && it.audience == Audience::Programs,
        _ => false,
    };
    let Some(ReportBlock::Table(sizes)) = without.blocks.iter().find(is_sizes) else {
        panic!("none")
    };
    assert_eq!(column(sizes, "from"), [4, 8, 16].map(CellValue::Bytes));
    assert_eq!(column(sizes, "to"), [7, 15, 31].map(CellValue::Bytes));
    assert_eq!(column(sizes, "allocations"), [5, 0, 7].map(CellValue::Count));
    let is_lifetimes =
        |block: &ReportBlock| matches!(block, ReportBlock::Table(it) if it.key == "lifetimes");
    assert!(!without.blocks.iter().any(is_lifetimes), "nothing was measured");
    recording.lifetimes_every = 64;
    let with = report(&recording, &HeapOptions::default());
    assert!(table(&with, "lifetimes").note.contains("1 in 64"));
}

#[test]
fn memory_that_is_held_and_not_used_is_found() {
    let mut recording = recording(vec![site(0, 600, 600)]);
    let held = |live, held, last| {
        vec![moment(1, live, Some(held), Some(held)), moment(2, live, Some(last), Some(last))]
    };
    recording.moments = held(120 * MIB, 480 * MIB, 480 * MIB);
    assert_eq!(findings(&report(&recording, &HeapOptions::default())), ["held-unused"]);
    recording.moments = held(120 * MIB, 130 * MIB, 130 * MIB);
    assert_eq!(findings(&report(&recording, &HeapOptions::default())), [""; 0]);
    recording.moments = vec![moment(1, 120 * MIB, None, Some(30 * MIB))];
    assert_eq!(findings(&report(&recording, &HeapOptions::default())), ["untouched"]);
}

/// An arena with these MiB live, held and in empty pages.
fn arena(number: u32, live: u64, held: u64, empty: u64) -> AllocatorArea {
    AllocatorArea {
        kind: if number == 0 { AllocatorAreaKind::Main } else { AllocatorAreaKind::Arena(number) },
        parts: 1,
        held: Bytes(held * MIB),
        resident: Ok(Bytes(held * MIB)),
        live: Ok(amount(live * MIB, 10)),
        empty: Ok(Bytes(empty * MIB)),
        top: Err(absent()),
        gap: Err(absent()),
        threads: Ok(1),
    }
}

fn next_steps(report: &Report, id: &str) -> String {
    let all = report.blocks.iter().find_map(|block| match block {
        ReportBlock::Findings(findings) => Some(&findings.list),
        _ => None,
    });
    let found = all.unwrap().iter().find(|finding| finding.id == id).unwrap();
    let words = found.claim.iter().chain(&found.next_step).map(|piece| match piece {
        CellValue::Text(text) => text.to_string(),
        CellValue::Name(name) => name.escaped().into_owned(),
        CellValue::Bytes(bytes) => format!("{}M", bytes / MIB),
        _ => String::new(),
    });
    words.collect()
}

#[test]
fn the_location_of_unused_memory_is_reported_with_a_remedy() {
    let mut recording = recording(vec![site(0, 600, 600), site(1, 600, 600)]);
    recording.moments = vec![moment(1, 120 * MIB, Some(480 * MIB), Some(480 * MIB)); 2];
    let pinned = |site, bytes| PinnedPages { site, bytes, live: amount(1, 1) };
    let pages = |sparse: u64, pinned| {
        let cells = vec![0, sparse * MIB / 4096, 0, 0, 0, 0, 0, 0, 30720];
        Ok(PageDensity { cells, pinned, others: PinnedPages::default() })
    };
    let mut layout = AllocatorLayout {
        time_ns: 1,
        areas: (0..4)
            .map(|number| arena(number, 30, if number == 0 { 30 } else { 150 }, 1))
            .collect(),
        pages: pages(300, vec![pinned(1, 290 * MIB), pinned(0, 10 * MIB), pinned(99, MIB)]),
        unclear: 0,
    };
    recording.layouts = vec![layout.clone()];
    let said = next_steps(&report(&recording, &HeapOptions::default()), "held-unused");
    assert!(said.contains("fragmentation, arenas 1-3."), "{said}");
    assert!(said.contains("300M are in pages of which at most a quarter"), "{said}");
    assert!(said.contains("290M, by what was allocated in keep"), "{said}");
    assert!(said.contains("MALLOC_ARENA_MAX"), "{said}");
    assert!(!said.contains("malloc_trim"), "{said}");
    layout.areas = vec![arena(0, 120, 480, 350)];
    layout.pages = pages(1, vec![]);
    recording.layouts = vec![layout.clone()];
    let said = next_steps(&report(&recording, &HeapOptions::default()), "held-unused");
    assert!(said.contains("the main arena (brk)") && said.contains("malloc_trim(0)"), "{said}");
    assert!(!said.contains("MALLOC_ARENA_MAX") && !said.contains("quarter"), "{said}");
    // Another allocator.
    recording.moments = vec![moment(1, 120 * MIB, None, Some(480 * MIB)); 2];
    layout.areas[0].kind = AllocatorAreaKind::Mappings;
    recording.layouts = vec![layout.clone()];
    let said = next_steps(&report(&recording, &HeapOptions::default()), "held-unused");
    assert!(said.contains("dirty_decay_ms") && !said.contains("malloc_trim"), "{said}");
    // Unknown values are not printed.
    layout.pages = Err(absent());
    layout.areas[0].live = Err(absent());
    recording.layouts = vec![layout];
    let report = report(&recording, &HeapOptions::default());
    assert_eq!(findings(&report), [""; 0]);
    assert!(matches!(fact(&report, "layout", "live"), CellValue::Absent(_)));
}

#[test]
fn constant_growth_is_found_and_steady_memory_is_not() {
    let all = amount(40 * MIB, 1);
    let mut recording =
        recording(vec![AllocationSite { allocated: all, at_peak: all, ..site(0, 0, 0) }]);
    let step = recording.took_ns / 40;
    let live = |size: &dyn Fn(u64) -> u64| -> Vec<HeapSnapshot> {
        (0..40).map(|at| moment(at * step, size(at), None, None)).collect()
    };
    recording.moments = live(&|at| at * MIB);
    assert_eq!(findings(&report(&recording, &HeapOptions::default())), ["grows"]);
    recording.moments = live(&|_| 40 * MIB);
    assert_eq!(findings(&report(&recording, &HeapOptions::default())), ["not-freed"]);
    recording.moments = live(&|at| if at == 20 { 40 * MIB } else { 10 * MIB });
    recording.totals.leaked = amount(0, 0);
    assert_eq!(findings(&report(&recording, &HeapOptions::default())), ["spike"]);
}

/// A recording of a process that was already running: bytes that were allocated since and are live,
/// and freed bytes of older blocks.
fn attached(live: &dyn Fn(u64) -> u64, older: &dyn Fn(u64) -> Option<u64>) -> HeapRecording {
    let all = amount(40 * MIB, 1);
    let mut recording =
        recording(vec![AllocationSite { allocated: all, at_peak: all, ..site(0, 0, 0) }]);
    (recording.attached, recording.ending) = (true, HeapEnding::Detached);
    let step = recording.took_ns / 40;
    recording.moments = (0..40)
        .map(|at| HeapSnapshot {
            older_freed: older(at).map(|bytes| amount(bytes, 1)),
            ..moment(at * step, live(at), Some(96 * MIB), Some(100 * MIB))
        })
        .collect();
    recording
}

#[test]
fn a_process_that_ran_already_is_not_judged_by_blocks_that_are_unknown() {
    let said = |recording: &HeapRecording| {
        let report = report(recording, &HeapOptions::default());
        (
            findings(&report).iter().map(ToString::to_string).collect::<Vec<_>>(),
            report_text(&report),
        )
    };
    // New blocks replace older ones.
    let steady = attached(&|at| at * MIB, &|at| Some(at * MIB));
    let (found, words) = said(&steady);
    assert_eq!(found, [""; 0]);
    assert!(words.contains("its live bytes and fragmentation are not known"), "{words}");
    assert!(
        words.contains("Of the blocks allocated since the recording began, at most"),
        "{words}"
    );
    // A third of the new bytes does not replace older ones.
    let leaks = attached(&|at| at * MIB, &|at| Some(at * MIB * 2 / 3));
    assert_eq!(said(&leaks).0, ["grows"]);
    // Growth that is followed by a decrease.
    let comes_and_goes = attached(&|at| at * MIB, &|at| Some(at * MIB - at % 10 * MIB / 4));
    assert_eq!(said(&comes_and_goes).0, [""; 0]);
    // If frees of older blocks are unknown, the memory of the process and its allocator is the
    // evidence.
    let unknown = attached(&|at| at * MIB, &|_| None);
    assert_eq!(said(&unknown).0, [""; 0]);
    let mut grows = unknown;
    for (at, moment) in (0..).zip(&mut grows.moments) {
        moment.resident.as_mut().unwrap().anonymous += at * MIB;
    }
    assert_eq!(said(&grows).0, [""; 0], "not of the heap");
    for (at, moment) in (0..).zip(&mut grows.moments) {
        moment.held.as_mut().unwrap().0 += at * MIB;
    }
    assert_eq!(said(&grows).0, ["grows"]);
    // The same numbers of a process that was recorded from its beginning on.
    let mut whole = steady;
    whole.attached = false;
    assert_eq!(said(&whole).0, ["grows", "held-unused"]);
}

#[test]
fn memory_held_during_an_exit_does_not_count_as_released() {
    let mut recording = recording(vec![site(0, 600, 600)]);
    let held = |time, held| moment(time, 120 * MIB, Some(held), Some(held));
    // Earlier versions recorded a last footprint without the mappings, which were already gone.
    recording.moments = vec![held(1, 480 * MIB), held(2, 480 * MIB), held(3, MIB)];
    let said = next_steps(&report(&recording, &HeapOptions::default()), "held-unused");
    assert!(!said.contains("At the end it had been released"), "{said}");
    recording.moments[2] = held(3, 125 * MIB);
    let said = next_steps(&report(&recording, &HeapOptions::default()), "held-unused");
    assert!(said.contains("At the end it had been released."), "{said}");
}

/// A sampled program: the chance that a block is sampled grows with its size, as in the recorder.
struct Sampled {
    every: f64,
    state: u64,
    live: Vec<(u64, usize, Option<f64>)>,
    /// For each site: estimates of the allocated bytes, their variance, and the live bytes.
    sites: [[f64; 3]; 2],
    truth: [u64; 2],
    estimate: [f64; 2],
    is_highest: bool,
    at_peak: [f64; 2],
}

impl Sampled {
    fn new(every: u64, seed: u64) -> Sampled {
        Sampled {
            every: every as f64,
            state: seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1,
            live: Vec::new(),
            sites: [[0.0; 3]; 2],
            truth: [0; 2],
            estimate: [0.0; 2],
            is_highest: false,
            at_peak: [0.0; 2],
        }
    }

    fn draw(&mut self, below: u64) -> u64 {
        self.state ^= self.state << 13;
        self.state ^= self.state >> 7;
        self.state ^= self.state << 17;
        (self.state.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 16) % below
    }

    fn allocate(&mut self) {
        let site = usize::from(self.draw(10) < 3);
        let size = if site == 0 { 16 + self.draw(2000) } else { 4000 + self.draw(5000) };
        let chance = -(-(size as f64) / self.every).exp_m1();
        let taken = (self.draw(1 << 40) as f64) < chance * (1_u64 << 40) as f64;
        let weight = size as f64 / chance;
        self.truth[0] += size;
        self.truth[1] = self.truth[1].max(self.truth[0]);
        if taken {
            let sums = &mut self.sites[site];
            sums[0] += weight;
            sums[1] += weight * weight * (1.0 - chance);
            sums[2] += weight;
            self.estimate[0] += weight;
            if self.estimate[0] > self.estimate[1] {
                self.estimate[1] = self.estimate[0];
                self.is_highest = true;
            }
        }
        self.live.push((size, site, taken.then_some(weight)));
    }

    fn keep(&mut self) {
        if std::mem::take(&mut self.is_highest) {
            self.at_peak = self.sites.map(|sums| sums[2]);
        }
    }

    fn free(&mut self) {
        let at = usize::try_from(self.draw(self.live.len() as u64)).unwrap();
        let (size, site, weight) = self.live.swap_remove(at);
        self.truth[0] -= size;
        if let Some(weight) = weight {
            self.keep();
            self.sites[site][2] -= weight;
            self.estimate[0] -= weight;
        }
    }

    /// The true peak; and its lower bound, its estimate and its upper bound from the recording.
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "estimates are above 0 and far below 2^64"
    )]
    fn bounds(mut self) -> (u64, [u64; 3]) {
        self.keep();
        let at_peak = self.at_peak;
        let sites = (0..).zip(self.sites.iter().zip(at_peak)).map(|(stack, (sums, at_peak))| {
            AllocationSite {
                allocated: amount(sums[0] as u64, 1),
                at_peak: amount(at_peak as u64, 1),
                errors: Some((sums[1].sqrt(), 0.0)),
                ..site(stack, 0, 0)
            }
        });
        let mut recording = recording(sites.collect());
        recording.every_bytes = Some(self.every as u64);
        recording.totals.errors = Some((0.0, 0.0));
        let report = report(&recording, &HeapOptions::default());
        let bounds = ["peak_at_least", "peak_bytes", "peak_at_most"].map(|key| {
            let CellValue::Bytes(bytes) = fact(&report, "totals", key) else { panic!("{key}") };
            bytes
        });
        (self.truth[1], bounds)
    }
}

#[test]
fn the_peak_of_samples_lies_between_its_bounds_as_often_as_said() {
    const RUNS: u32 = 300;
    // Kept blocks, and number of blocks; the first row frees none, the others replace all
    // repeatedly.
    for (kept, blocks, every) in [
        (usize::MAX, 3000, 100_000),
        (300, 3000, 20_000),
        (300, 3000, 100_000),
        (1000, 20_000, 100_000),
    ] {
        let (mut below, mut above, mut too_high) = (0, 0, 0);
        for run in 0..RUNS {
            let mut program = Sampled::new(every, u64::from(run) * 1_000_003 + every + blocks);
            for _ in 0..blocks {
                program.allocate();
                if program.live.len() > kept {
                    program.free();
                }
            }
            let (truth, [least, peak, most]) = program.bounds();
            below += u32::from(truth < least);
            above += u32::from(truth > most);
            too_high += u32::from(peak > truth);
            assert!(least <= peak && peak <= most, "{least} {peak} {most}");
        }
        // 7.5 of 300 are expected on either side at most: 3 standard deviations more.
        assert!(
            below <= 16 && above <= 16,
            "{kept} {every}: {below} below, {above} above of {RUNS}"
        );
        // If blocks are replaced, almost no estimate is too low.
        assert!(kept == usize::MAX || too_high > RUNS * 8 / 10, "{kept} {every}: {too_high}");
    }
}

#[test]
fn two_builds_are_compared_by_functions() {
    let before = recording(vec![site(0, 1000, 1000), site(1, 500, 0)]);
    let mut after = recording(vec![site(1, 500, 0), site(0, 1500, 1200), site(2, 40, 0)]);
    // Another build: other lines, other offsets, the same functions.
    for frame in &mut after.frames {
        frame.offset += 100;
        if let Some(line) = &mut frame.line {
            line.number += 7;
        }
    }
    let options = |by| DiffOptions { limit: None, by };
    let report = diff(&before, &after, &options(GrownQuantity::Peak));
    let stacks = table(&report, "stacks");
    assert_eq!(column(stacks, "peak_change"), [500, 40].map(CellValue::Change));
    assert_eq!(column(stacks, "leaked_change"), [300, 40].map(CellValue::Change));
    assert_eq!(column(stacks, "allocated_before"), [1000, 0].map(CellValue::Bytes));
    assert_eq!(column(stacks, "allocated_after"), [1500, 40].map(CellValue::Bytes));
    assert_eq!(column(stacks, "allocations_change"), [50.0, 4.0].map(CellValue::Number));
    let read = ["read", "main"].map(|name| CellValue::Name(name.into())).to_vec();
    assert_eq!(column(stacks, "stack")[0], CellValue::List(read));
    // The other way round everything shrank.
    let report = diff(&after, &before, &options(GrownQuantity::Leaked));
    assert_eq!(
        column(table(&report, "stacks"), "leaked_change"),
        [-40, -300].map(CellValue::Change)
    );
    let same = diff(&before, &before, &options(GrownQuantity::Peak));
    assert_eq!(table(&same, "stacks").rows(), 0);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    /// For any recording, also with invalid indices, a tree has all of its children, and nothing
    /// panics.
    #[test]
    fn any_recording_has_a_report(
        stacks in prop::collection::vec(prop::collection::vec(0_u32..6, 0..80), 0..8),
        sites in prop::collection::vec((0_u32..10, any::<u64>(), any::<u64>(), 0_u64..1000), 0..20),
        times in prop::collection::vec(any::<u64>(), 0..30),
        threshold in 0.0..1.0,
        limit in prop::option::of(0_usize..20),
        top_down: bool,
    ) {
        let sites = sites.into_iter().map(|(stack, allocated, freed, at_peak)| AllocationSite {
            allocated: amount(allocated, 1),
            freed: amount(freed, 2),
            at_peak: amount(at_peak, 1),
            ..site(stack, 0, 0)
        });
        let mut recording = recording(Vec::new());
        recording.sites = sites.collect();
        recording.stacks = stacks;
        recording.totals.peak.bytes = recording.sites.iter().map(|it| it.at_peak.bytes).sum();
        recording.moments = times
            .iter()
            .map(|time| HeapSnapshot {
                tree: Some(LiveTree { sites: vec![(3, amount(*time, 1))], others: amount(*time, 1) }),
                older_freed: None,
                ..moment(*time, *time, Some(!*time), Some(*time / 2))
            })
            .collect();
        recording.moments.sort_by_key(|moment| moment.time_ns);
        recording.sizes = times.clone();
        recording.threads = vec![HeapThread {
            tid: 0,
            name: "".into(),
            allocated: amount(1, 1),
            freed: amount(1, 1),
        }];
        let tree = if top_down { Direction::TopDown } else { Direction::BottomUp };
        for at in [TreeMoment::Peak, TreeMoment::End, TreeMoment::Time(u64::MAX / 2)] {
            let options = HeapOptions { limit, threshold, at, tree, ..HeapOptions::default() };
            let found = report(&recording, &options);
            add_up(&fact(&found, "peak", "tree"))?;
        }
        diff(&recording, &recording, &DiffOptions { limit, by: GrownQuantity::Calls });
    }
}

/// Checks that children and omitted branches have at most the bytes of their node, and all bytes of
/// the root.
fn add_up(node: &CellValue) -> Result<(), TestCaseError> {
    let bytes = |node: &CellValue| match member(node, "bytes") {
        Some(CellValue::Bytes(bytes)) => bytes,
        other => panic!("{other:?}"),
    };
    let parts: u64 = children(node).iter().map(bytes).sum();
    let left_out = member(node, "left_out").map_or(0, |it| bytes(&it));
    prop_assert!(parts + left_out <= bytes(node));
    if member(node, "function").is_none() && member(node, "offset").is_none() {
        prop_assert_eq!(parts + left_out, bytes(node));
    }
    children(node).iter().try_for_each(add_up)
}
