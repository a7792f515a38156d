//! Profiles in the formats of other tools, read by other readers.

use crate::profile;

use std::collections::BTreeMap;
use std::io::{Read, Write};
use std::process::{Command, Stdio};

use pagewise_model::name::escape;
use pagewise_model::traced::{Frame, SourcePosition, StackCount, StackProfile};
use pagewise_skip::{Lack, skip};
use pagewise_view::export::{collapsed, flamegraph, perfetto, pprof};
use proptest::prelude::*;

fn frame(function: &str, offset: u64, line: u32, inlined: bool) -> Frame {
    let line = SourcePosition { file: "/src/grow.c".into(), number: line };
    let function = Some(function.to_owned());
    Frame { function, module: Some("/usr/bin/grow".into()), offset, line: Some(line), inlined }
}

/// Two threads, one with frames without names; an inlined function; a label; one unknown duration.
fn sample() -> StackProfile {
    let touch = [frame("touch", 0x1100, 7, true), frame("fill", 0x1100, 12, false)];
    let nameless = |offset| Frame {
        function: None,
        module: Some("/usr/lib/libc.so.6".into()),
        offset,
        line: None,
        inlined: false,
    };
    let main = frame("main", 0x1200, 30, false);
    let counted = |stack, count, took_ns, tid, kind: &str| StackCount {
        stack,
        count,
        took_ns,
        thread: Some((70, tid)),
        labels: vec![("kind".to_owned(), kind.to_owned())],
    };
    StackProfile {
        what: "page faults".into(),
        began_ns: Some(1_700_000_000_000_000_000),
        took_ns: 2_000_000_000,
        stacks: vec![
            touch.iter().chain([&main]).cloned().collect(),
            vec![nameless(0x9_8765), main.clone()],
            vec![main],
        ],
        samples: vec![
            counted(0, 300, Some(90_000), 70, "minor anonymous"),
            counted(0, 5, Some(40_000), 70, "huge"),
            counted(1, 95, None, 71, "minor file"),
            counted(2, 1, Some(8_000_000), 70, "major"),
        ],
    }
}

fn bytes(write: impl Fn(&mut dyn Write) -> std::io::Result<()>) -> Vec<u8> {
    let mut out = Vec::new();
    write(&mut out).unwrap();
    out
}

fn text(write: impl Fn(&mut dyn Write) -> std::io::Result<()>) -> String {
    String::from_utf8(bytes(write)).unwrap()
}

fn svg(profile: &StackProfile) -> String {
    text(|out| flamegraph::write(profile, "pagewise faults", out))
}

/// An SVG names its document type.
fn document(svg: &str) -> roxmltree::Document<'_> {
    let options = roxmltree::ParsingOptions { allow_dtd: true, ..Default::default() };
    roxmltree::Document::parse_with_options(svg, options).unwrap()
}

fn protobuf(profile: &StackProfile) -> profile::ProtoProfile {
    let gzip = bytes(|out| pprof::write(profile, out));
    let mut plain = Vec::new();
    flate2::read::GzDecoder::new(&gzip[..]).read_to_end(&mut plain).unwrap();
    profile::ProtoProfile::decode(&plain[..]).unwrap()
}

#[test]
fn collapsed_stacks_add_up_by_function() {
    insta::assert_snapshot!(text(|out| collapsed::write(&sample(), out)));
}

#[test]
fn a_trace_has_a_track_for_each_thread() {
    insta::assert_snapshot!(text(|out| perfetto::write(&sample(), out)));
}

#[test]
fn a_flame_graph_shows_each_function_with_its_count() {
    let svg = svg(&sample());
    let document = document(&svg);
    let titles = document.descendants().filter(|node| node.has_tag_name("title"));
    let titles: Vec<&str> = titles.filter_map(|title| title.text()).collect();
    insta::assert_snapshot!(titles.join("\n"));
    assert_eq!(svg, self::svg(&sample()), "the same profile makes the same picture");
}

#[test]
fn pprof_reads_the_recorded_values() {
    same_in_protobuf(&sample());
    let read = protobuf(&sample());
    let string = |at: i64| read.string_table[usize::try_from(at).unwrap()].as_str();
    let types = read.sample_type.iter().map(|it| (string(it.r#type), string(it.unit)));
    assert!(types.eq([("page_faults", "count"), ("time", "nanoseconds")]));
    assert_eq!(string(read.default_sample_type), "page_faults");
    assert_eq!((read.time_nanos, read.duration_nanos), (1_700_000_000_000_000_000, 2_000_000_000));
    assert_eq!(read.string_table[0], "");
    let [main, library] = [&read.mapping[0], &read.mapping[1]];
    assert_eq!((string(main.filename), main.memory_limit), ("/usr/bin/grow", 0x1201));
    assert_eq!((string(library.filename), library.memory_limit), ("/usr/lib/libc.so.6", 0x9_8766));
}

#[test]
fn a_profile_of_nothing_is_one_in_every_format() {
    let nothing = StackProfile { what: "page <faults>".into(), ..StackProfile::default() };
    assert_eq!(text(|out| collapsed::write(&nothing, out)), "");
    let svg = svg(&nothing);
    let document = document(&svg);
    assert!(document.descendants().any(|node| node.text() == Some("No page <faults>.")));
    let trace: serde_json::Value =
        serde_json::from_str(&text(|out| perfetto::write(&nothing, out))).unwrap();
    assert_eq!(trace["traceEvents"], serde_json::json!([]));
    assert_eq!(protobuf(&nothing).sample.len(), 0);
}

#[test]
fn counts_that_no_reader_can_add_up_are_refused() {
    let mut profile = sample();
    profile.samples[0].count = i64::MAX.unsigned_abs();
    let out = &mut Vec::new();
    let refused = [
        collapsed::write(&profile, out),
        flamegraph::write(&profile, "", out),
        perfetto::write(&profile, out),
        pprof::write(&profile, out),
    ];
    let refused = refused.map(|it| it.unwrap_err().kind());
    assert_eq!(refused, [std::io::ErrorKind::InvalidData; 4]);
}

/// `go tool pprof` is the reader that the format was made for.
#[test]
fn go_tool_pprof_counts_the_same() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("faults.pb.gz");
    std::fs::write(&path, bytes(|out| pprof::write(&sample(), out))).unwrap();
    let read = |options: &[&str]| {
        let pprof = ["tool", "pprof", "-symbolize=none"];
        let mut command = Command::new("go");
        command.args(pprof).args(options).arg(&path).env("PPROF_TMPDIR", folder.path());
        let output = command.stderr(Stdio::null()).output().ok()?;
        output.status.success().then(|| String::from_utf8_lossy(&output.stdout).into_owned())
    };
    let Some(top) = read(&["-top"]) else {
        return skip(&Lack::Ability { of: "go", what: "there is no `go tool pprof`" });
    };
    assert!(top.starts_with("File: grow\n"), "{top}");
    let flat = |line: &str| {
        let words: Vec<&str> = line.split_whitespace().collect();
        Some((words.get(5..)?.join(" "), (words.first()?.to_string(), words.get(3)?.to_string())))
    };
    let table = top.lines().skip_while(|line| !line.contains("flat%")).skip(1);
    let table: BTreeMap<String, (String, String)> = table.filter_map(flat).collect();
    let expected = [
        ("touch (inline)", "305", "305"),
        ("[libc.so.6]", "95", "95"),
        ("main", "1", "401"),
        ("fill", "0", "305"),
    ];
    for (name, flat, cumulative) in expected {
        assert_eq!(table.get(name), Some(&(flat.to_owned(), cumulative.to_owned())), "{top}");
    }
    let times = read(&["-top", "-sample_index=time", "-unit=ns"]).unwrap();
    assert!(times.contains("8130000ns total"), "{times}");
    let traces = read(&["-traces", "-tagfocus=kind=major"]).unwrap();
    assert!(traces.contains("main") && !traces.contains("fill"), "{traces}");
}

/// Everything that was in a profile is in the messages of pprof, word for word but for what cannot
/// be printed.
fn same_in_protobuf(profile: &StackProfile) {
    let read = protobuf(profile);
    let string = |at: i64| read.string_table[usize::try_from(at).unwrap()].clone();
    let shown = |text: &str| escape(text.as_bytes()).replace(['\u{fffe}', '\u{ffff}'], "\u{fffd}");
    let timed = profile.samples.iter().any(|counted| counted.took_ns.is_some());
    let mut samples = read.sample.iter();
    for counted in profile.samples.iter().filter(|counted| counted.count > 0) {
        let sample = samples.next().unwrap();
        assert_eq!(sample.value[0], counted.count.cast_signed());
        assert_eq!(sample.value.len(), if timed { 2 } else { 1 });
        let (mut words, mut numbers) = (Vec::new(), Vec::new());
        for label in &sample.label {
            match string(label.key).as_str() {
                key @ ("pid" | "tid") if label.str == 0 => {
                    numbers.push((key.to_owned(), label.num))
                }
                key => words.push((key.to_owned(), string(label.str))),
            }
        }
        let mut expected: Vec<(String, String)> =
            counted.labels.iter().map(|(key, value)| (shown(key), shown(value))).collect();
        match counted.took_ns {
            Some(took) => assert_eq!(sample.value[1], took.cast_signed()),
            None if timed => expected.push(("time".into(), "unknown".into())),
            None => {}
        }
        assert_eq!(words, expected);
        let numbers_expected = counted.thread.map_or(vec![], |(pid, tid)| {
            vec![("pid".to_owned(), i64::from(pid)), ("tid".to_owned(), i64::from(tid))]
        });
        assert_eq!(numbers, numbers_expected);
        let stack = profile.stacks.get(counted.stack as usize).map_or(&[][..], Vec::as_slice);
        let places: Vec<&[Frame]> = stack.split_inclusive(|frame| !frame.inlined).collect();
        assert_eq!(sample.location_id.len(), places.len());
        for (id, place) in sample.location_id.iter().zip(places) {
            let location = read.location.iter().find(|location| location.id == *id).unwrap();
            let outermost = place.last().unwrap();
            assert_eq!(location.address, outermost.offset);
            let module = read.mapping.iter().find(|mapping| mapping.id == location.mapping_id);
            let module = module.map(|mapping| string(mapping.filename));
            assert_eq!(module, outermost.module.as_ref().map(|name| shown(&name.escaped())));
            let lines = location.line.iter().map(|line| {
                let function = read.function.iter().find(|it| it.id == line.function_id).unwrap();
                (string(function.name), string(function.filename), line.line)
            });
            let expected = place.iter().filter_map(|frame| {
                let line = frame.line.as_ref();
                let file = line.map_or(String::new(), |line| shown(&line.file));
                let number = line.map_or(0, |line| line.number.into());
                Some((shown(frame.function.as_ref()?), file, number))
            });
            assert!(lines.eq(expected), "{place:?}");
        }
    }
    assert_eq!(samples.next(), None);
}

/// Names that mean something to some format, and any other.
fn names() -> impl Strategy<Value = String> {
    const HOSTILE: &[&str] = &[
        "",
        " ",
        ";",
        "a;b",
        "f 12",
        "f 1.5 3",
        "# comment",
        "\n",
        "a\nb 7",
        "\"",
        "<g>&amp;",
        "]]>",
        "\u{1b}[31m",
        "\0",
        "\u{202e}",
        "\u{fffe}",
        "\\xff",
        "_[k]",
        "f(int, char) const",
        "--",
        "12",
        "é",
        "'",
        "\r",
        "\u{85}",
        "!x",
        "a !x",
    ];
    prop_oneof![
        prop::sample::select(HOSTILE).prop_map(str::to_owned),
        any::<String>(),
        "[a-c]{1,2}",
    ]
}

prop_compose! {
    fn any_frame()(
        function in prop::option::of(names()),
        module in prop::option::of(prop::collection::vec(any::<u8>(), 0..6)),
        offset in prop_oneof![0_u64..3, any::<u64>()],
        line in prop::option::of((names(), any::<u32>())),
        inlined: bool,
    ) -> Frame {
        Frame {
            function,
            module: module.map(|bytes| pagewise_model::Name::new(bytes.as_slice())),
            offset,
            line: line.map(|(file, number)| SourcePosition { file, number }),
            inlined,
        }
    }
}

prop_compose! {
    fn any_counted()(
        stack in 0_u32..6,
        count in prop_oneof![0_u64..5, 0_u64..1 << 50],
        took_ns in prop::option::of(0_u64..1 << 50),
        thread in prop::option::of((0_u32..3, 0_u32..3)),
        labels in prop::collection::vec((names(), names()), 0..3),
    ) -> StackCount {
        StackCount { stack, count, took_ns, thread, labels }
    }
}

prop_compose! {
    fn any_profile()(
        what in names(),
        began_ns in prop::option::of(any::<u64>()),
        took_ns: u64,
        stacks in prop::collection::vec(prop::collection::vec(any_frame(), 0..5), 0..6),
        samples in prop::collection::vec(any_counted(), 0..8),
    ) -> StackProfile {
        StackProfile { what, began_ns, took_ns, stacks, samples }
    }
}

/// The sum of the counts.
fn total(profile: &StackProfile) -> u64 {
    profile.samples.iter().map(|counted| counted.count).sum()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn each_line_of_collapsed_stacks_is_a_stack_and_a_count(profile in any_profile()) {
        let text = text(|out| collapsed::write(&profile, out));
        let mut sum = 0;
        let depths: Vec<usize> = profile.stacks.iter().map(|stack| stack.len().max(1)).collect();
        for line in text.lines() {
            prop_assert!(!line.starts_with("# ") && line == line.trim());
            prop_assert!(!line.contains(|c: char| c.is_control()));
            let (stack, count) = line.rsplit_once(' ').unwrap();
            sum += count.parse::<u64>().unwrap();
            prop_assert!(stack.split(';').all(|name| !name.is_empty()));
            let depth = stack.split(';').count();
            prop_assert!(depth == 1 || depths.contains(&depth));
        }
        prop_assert_eq!(sum, total(&profile));
        // As a reader of differences sees it: no second number.
        for line in text.lines() {
            let (stack, _) = line.rsplit_once(' ').unwrap();
            let second = stack.rsplit_once(' ').map(|(_, word)| word);
            prop_assert!(second.is_none_or(|word| word.parse::<f64>().is_err()
                || !word.bytes().all(|byte| byte.is_ascii_digit() || byte == b'.')));
        }
    }

    #[test]
    fn inferno_reads_collapsed_stacks_and_finds_the_same_total(profile in any_profile()) {
        let text = text(|out| collapsed::write(&profile, out));
        prop_assume!(!text.is_empty());
        let mut options = inferno::flamegraph::Options::default();
        // It sorts lines and then refuses its own order where a name holds what sorts before a
        // space or `;`.
        options.flame_chart = true;
        let mut svg = Vec::new();
        inferno::flamegraph::from_lines(&mut options, text.lines(), &mut svg).unwrap();
        let svg = String::from_utf8(svg).unwrap();
        let expected = format!("total_samples=\"{}\"", total(&profile));
        prop_assert!(svg.contains(&expected), "{}", expected);
    }

    #[test]
    fn a_flame_graph_is_well_formed_and_whole(profile in any_profile()) {
        let svg = svg(&profile);
        let document = document(&svg);
        let frames = document.descendants().find_map(|node| node.attribute("total_samples"));
        let expected = Some(total(&profile)).filter(|total| *total > 0);
        prop_assert_eq!(frames.map(|count| count.parse::<u64>().unwrap()), expected);
    }

    #[test]
    fn pprof_keeps_all_of_a_profile(profile in any_profile()) {
        same_in_protobuf(&profile);
    }

    #[test]
    fn slices_of_a_trace_lie_in_each_other_and_add_up(profile in any_profile()) {
        let trace: serde_json::Value =
            serde_json::from_str(&text(|out| perfetto::write(&profile, out))).unwrap();
        let mut open: BTreeMap<(u64, u64), Vec<(u64, u64)>> = BTreeMap::new();
        let (mut sum, mut took) = (0, 0);
        for event in trace["traceEvents"].as_array().unwrap() {
            if event["ph"] == "M" {
                continue;
            }
            let number = |key: &str| event[key].as_u64().unwrap();
            let (start, end) = (number("ts"), number("ts") + number("dur"));
            let stack = open.entry((number("pid"), number("tid"))).or_default();
            while stack.last().is_some_and(|(_, last)| *last <= start) {
                stack.pop();
            }
            match stack.last() {
                Some((first, last)) => prop_assert!(*first <= start && end <= *last),
                None => sum += number("dur"),
            }
            stack.push((start, end));
            took += event["args"]["took_ns"].as_u64().unwrap_or(0);
        }
        prop_assert_eq!(sum, total(&profile));
        let counted = profile.samples.iter().filter(|counted| counted.count > 0);
        prop_assert_eq!(took, counted.filter_map(|counted| counted.took_ns).sum::<u64>());
    }
}
