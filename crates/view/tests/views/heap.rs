//! Tests of heap recordings in the formats of other tools, read by these tools if they are
//! installed, and by simple readers.

use crate::{profile, simulated};

use std::collections::BTreeMap;
use std::io::{Read, Write};
use std::process::Command;

use pagewise_model::Report;
use pagewise_model::heap::{HeapRecording, Of};
use pagewise_skip::{Lack, skip};
use pagewise_view::export::{collapsed, counters, flamegraph, heaptrack, massif, pprof};
use pagewise_view::html;
use proptest::prelude::*;
use simulated::{AllocationStep, CountedStack, run, steps, told};

fn bytes(write: impl FnOnce(&mut dyn Write) -> std::io::Result<()>) -> Vec<u8> {
    let mut out = Vec::new();
    write(&mut out).unwrap();
    out
}

fn text(write: impl FnOnce(&mut dyn Write) -> std::io::Result<()>) -> String {
    String::from_utf8(bytes(write)).unwrap()
}

/// Runs a tool on a file and returns its output; `None`, with a message, if the tool is not
/// installed.
fn tool(name: &str, args: &[&str], file: &std::path::Path) -> Option<String> {
    let mut command = Command::new(name);
    let Ok(output) = command.args(args).arg(file).env("LC_ALL", "C").output() else {
        skip(&Lack::Tool(name));
        return None;
    };
    assert!(output.status.success(), "{name}: {output:?}");
    Some(String::from_utf8_lossy(&output.stdout).into_owned())
}

#[test]
fn ms_print_shows_the_peak_and_its_tree() {
    let recording = run(&steps(3000, 1), 50);
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("massif.out");
    std::fs::write(&path, bytes(|out| massif::write(&recording, 1.0, out))).unwrap();
    let Some(shown) = tool("ms_print", &["--threshold=0"], &path) else { return };
    assert!(shown.contains("Command:            ./chance two words"), "{shown}");
    // The recorded snapshots, and the begin, the peak and the end.
    let expected = format!("Number of snapshots: {}\n", recording.moments.len() + 3);
    assert!(shown.contains(&expected), "{shown}");
    // Columns of a row: number, time, total, live, extra, stacks.
    let rows: Vec<Vec<u64>> = shown
        .lines()
        .filter_map(|line| {
            let words = line.split_whitespace().map(|word| word.replace(',', "").parse().ok());
            words.collect::<Option<Vec<u64>>>().filter(|row| row.len() == 6)
        })
        .collect();
    assert_eq!(rows.len(), recording.moments.len() + 3);
    let peak = rows.iter().max_by_key(|row| row[3]).unwrap();
    assert_eq!(peak[3], recording.totals.peak.bytes);
    assert_eq!(peak[1], recording.peak_at_ns.clone().unwrap() / 1_000_000);
    assert_eq!(rows.last().unwrap()[3], recording.totals.leaked.bytes);
    for (moment, row) in
        recording.moments.iter().zip(rows.iter().filter(|row| **row != *peak).skip(1))
    {
        let held = moment.held.as_ref().map_or(0, |held| held.0 - moment.live.bytes);
        assert_eq!((row[1], row[3], row[4]), (moment.time_ns / 1_000_000, moment.live.bytes, held));
    }
    // Functions below the root of the peak's tree, with the sum of their bytes by depth.
    let tree = shown.split(" (peak)").nth(1).unwrap();
    let at = format!("\n{:>3} ", peak[0]);
    let tree = &tree[tree.find(&at).unwrap()..];
    let root = tree.lines().find(|line| line.starts_with(|c: char| c.is_ascii_digit())).unwrap();
    let commas = |number: u64| {
        let digits = number.to_string();
        let parts = digits.as_bytes().rchunks(3).rev().map(|it| std::str::from_utf8(it).unwrap());
        parts.collect::<Vec<_>>().join(",")
    };
    assert!(root.contains(&format!("({}B)", commas(recording.totals.peak.bytes))), "{root}");
    let mut by_function: BTreeMap<&str, u64> = BTreeMap::new();
    for (stack, told) in told(&recording) {
        let innermost = simulated::FUNCTIONS.iter().find(|it| stack.ends_with(**it)).unwrap();
        *by_function.entry(innermost).or_default() += told.peak;
    }
    for (function, bytes) in by_function.into_iter().filter(|(_, bytes)| *bytes > 0) {
        let line = tree.lines().find(|line| line.starts_with("->") && line.contains(function));
        let line = line.unwrap_or_else(|| panic!("no {function} in {tree}"));
        assert!(line.contains(&format!("({}B)", commas(bytes))), "{line} {bytes}");
    }
}

/// Checks that the branches of a massif tree add up to their parent, and that no line contains a
/// comment.
fn adds_up(text: &str) {
    let mut lines = text.lines().filter(|line| !line.starts_with('#')).peekable();
    let mut heap = 0;
    while let Some(line) = lines.next() {
        assert!(!line.contains('#'), "{line}");
        if let Some(bytes) = line.strip_prefix("mem_heap_B=") {
            heap = bytes.parse().unwrap();
        }
        if line == "heap_tree=peak" || line == "heap_tree=detailed" {
            assert_eq!(branch(&mut lines, 0), heap);
        }
    }
}

fn branch<'a>(lines: &mut impl Iterator<Item = &'a str>, depth: usize) -> u64 {
    let line = lines.next().unwrap();
    let indent = line.len() - line.trim_start().len();
    assert_eq!(indent, depth, "{line}");
    let (children, rest) = line.trim_start().strip_prefix('n').unwrap().split_once(": ").unwrap();
    let bytes: u64 = rest.split(' ').next().unwrap().parse().unwrap();
    let children: usize = children.parse().unwrap();
    let sum: u64 = (0..children).map(|_| branch(lines, depth + 1)).sum();
    assert!(sum <= bytes && (sum == bytes || depth > 0), "{line}: {sum}");
    bytes
}

/// Reads heaptrack's format: the counts of each call stack, and the maximum of the live bytes.
fn read(text: &str) -> (BTreeMap<String, CountedStack>, u64) {
    let mut reader = PprofReader::default();
    // Like heaptrack: one pass finds the peak, another pass finds the blocks that are live at the
    // peak.
    reader.pass(text, u64::MAX);
    let (peak, at) = (reader.peak, reader.peak_at);
    let mut reader = PprofReader::default();
    reader.pass(text, at);
    let mut told: BTreeMap<String, CountedStack> = BTreeMap::new();
    for (trace, it) in reader.told {
        let told = told.entry(reader.stacks[trace].clone()).or_default();
        told.allocations += it.allocations;
        told.temporary += it.temporary;
        told.peak += it.peak;
        told.leaked = told.leaked.wrapping_add(it.leaked);
    }
    told.retain(|_, it| it.allocations > 0);
    (told, u64::try_from(peak).unwrap())
}

#[derive(Default)]
struct PprofReader {
    strings: Vec<String>,
    places: Vec<String>,
    stacks: Vec<String>,
    kinds: Vec<(u64, usize)>,
    told: BTreeMap<usize, CountedStack>,
    live: i64,
    peak: i64,
    peak_at: u64,
    last: usize,
    counted: usize,
}

impl PprofReader {
    fn pass(&mut self, text: &str, peak_at: u64) {
        self.stacks.push(String::new());
        for (number, line) in (0..).zip(text.lines()) {
            let mut words = line.split(' ');
            let mode = words.next().unwrap();
            let mut hex = || usize::from_str_radix(words.next().unwrap_or("0"), 16).unwrap();
            match mode {
                "s" => {
                    let length = hex();
                    let text = line.splitn(3, ' ').nth(2).unwrap();
                    assert_eq!(text.len(), length);
                    self.strings.push(text.to_owned());
                }
                "i" => {
                    let (_, _, function) = (hex(), hex(), hex());
                    self.places.push(self.strings[function - 1].clone());
                }
                "t" => {
                    let (place, parent) = (hex(), hex());
                    let name = &self.places[place - 1];
                    let above = &self.stacks[parent];
                    let stack = if parent == 0 { name.clone() } else { format!("{above};{name}") };
                    self.stacks.push(stack);
                }
                "a" => {
                    let (size, trace) = (hex(), hex());
                    self.kinds.push((size as u64, trace));
                }
                "+" => {
                    let kind = hex();
                    // heaptrack_gui crashes if a kind is used before a kind with a lower number.
                    assert!(
                        kind <= self.counted,
                        "kinds are numbered in the order of their first `+`"
                    );
                    self.counted += usize::from(kind == self.counted);
                    let (size, trace) = self.kinds[kind];
                    let told = self.told.entry(trace).or_default();
                    told.allocations += 1;
                    told.leaked = told.leaked.wrapping_add(size);
                    self.live += size.cast_signed();
                    self.last = kind;
                    if self.live > self.peak {
                        (self.peak, self.peak_at) = (self.live, number);
                    }
                }
                "-" => {
                    let kind = hex();
                    let (size, trace) = self.kinds[kind];
                    let told = self.told.entry(trace).or_default();
                    told.leaked = told.leaked.wrapping_sub(size);
                    told.temporary += u64::from(self.last == kind);
                    self.live -= size.cast_signed();
                    assert!(self.live >= 0);
                    self.last = 0;
                }
                "v" | "X" | "I" | "c" | "R" | "#" | "A" => {}
                other => panic!("{other}"),
            }
            if number == peak_at {
                self.told.values_mut().for_each(|told| told.peak = told.leaked);
            }
        }
    }
}

#[test]
fn heaptrack_print_finds_the_same_of_each_call_stack() {
    let recording = run(&steps(4000, 7), 40);
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("heaptrack.chance");
    let written = |out: &mut dyn Write| {
        let written = heaptrack::write(&recording, heaptrack::MAX_ALLOCATIONS, out)?;
        assert_eq!((written.each, written.not_temporary), (1, 0));
        Ok(())
    };
    std::fs::write(&path, bytes(written)).unwrap();
    let told = told(&recording);
    type PprofNumber = fn(&CountedStack) -> u64;
    let numbers: [(&str, PprofNumber); 4] = [
        ("allocations", |told| told.allocations),
        ("temporary", |told| told.temporary),
        ("leaked", |told| told.leaked),
        ("peak", |told| told.peak),
    ];
    for (name, number) in numbers {
        let stacks = folder.path().join(name);
        let args = ["--flamegraph-cost-type", name, "-F", stacks.to_str().unwrap(), "-f"];
        if tool("heaptrack_print", &args, &path).is_none() {
            return;
        }
        let read = std::fs::read_to_string(&stacks).unwrap();
        let read: BTreeMap<String, u64> = read
            .lines()
            .filter_map(|line| {
                let (stack, count) = line.rsplit_once(' ')?;
                Some((
                    stack.replace(" (chance.c)", "").trim_end_matches(';').to_owned(),
                    count.parse().unwrap(),
                ))
            })
            .filter(|(_, count)| *count > 0)
            .collect();
        let expected: BTreeMap<String, u64> = told
            .iter()
            .map(|(stack, told)| (stack.clone(), number(told)))
            .filter(|(_, count)| *count > 0)
            .collect();
        assert_eq!(read, expected, "{name}");
    }
    let totals = tool("heaptrack_print", &["-f"], &path).unwrap();
    let total = |of: fn(&CountedStack) -> u64| told.values().map(of).sum::<u64>();
    let line = format!("calls to allocation functions: {} ", total(|told| told.allocations));
    assert!(totals.contains(&line), "{totals}");
    let line = format!("temporary memory allocations: {} ", total(|told| told.temporary));
    assert!(totals.contains(&line), "{totals}");
    assert!(totals.contains("peak heap memory consumption: "), "{totals}");
    assert!(totals.contains("total runtime: 4.00s."), "{totals}");
}

#[test]
fn the_time_line_of_heaptrack_is_that_of_the_moments() {
    let recording = run(&steps(4000, 7), 40);
    let text = text(|out| heaptrack::write(&recording, heaptrack::MAX_ALLOCATIONS, out).map(drop));
    let mut kinds = Vec::new();
    let (mut now, mut live) = (0, 0_i64);
    let mut levels: BTreeMap<u64, i64> = BTreeMap::new();
    for line in text.lines() {
        let mut words = line.split(' ');
        let mode = words.next().unwrap();
        let mut hex = || usize::from_str_radix(words.next().unwrap(), 16).unwrap();
        match mode {
            "c" => now = hex() as u64,
            "a" => kinds.push(hex()),
            "+" => live += kinds[hex()] as i64,
            "-" => live -= kinds[hex()] as i64,
            _ => {}
        }
        levels.insert(now, live);
    }
    let near = recording.moments.iter().filter(|moment| {
        let shown = *levels.range(..=moment.time_ns / 1_000_000).next_back().unwrap().1;
        shown.unsigned_abs().abs_diff(moment.live.bytes) <= moment.live.bytes / 100
    });
    let (near, all) = (near.count(), recording.moments.len());
    assert!(near * 100 >= all * 95, "{near} of {all}");
}

#[test]
fn above_the_limit_each_allocation_stands_for_several() {
    let recording = run(&steps(4000, 7), 40);
    let mut each = 0;
    let text = text(|out| {
        each = heaptrack::write(&recording, 100, out)?.each;
        Ok(())
    });
    assert_eq!(each, recording.totals.allocated.blocks.div_ceil(100));
    assert!(text.contains(&format!("\n# Each allocation stands for {each}.\n")));
    let (read, peak) = read(&text);
    assert_eq!(peak, recording.totals.peak.bytes);
    let expected = told(&recording);
    for (stack, told) in &expected {
        assert_eq!((read[stack].peak, read[stack].leaked), (told.peak, told.leaked), "{stack}");
    }
    let count: u64 = read.values().map(|told| told.allocations).sum();
    assert!(count <= 100 + 2 * expected.len() as u64, "{count}");
}

#[test]
fn pprof_has_the_values_of_gos_heap_profiles() {
    let recording = run(&steps(3000, 3), 50);
    let gzip = bytes(|out| pprof::write_heap(&recording, out));
    let mut plain = Vec::new();
    flate2::read::GzDecoder::new(&gzip[..]).read_to_end(&mut plain).unwrap();
    let read = profile::ProtoProfile::decode(&plain[..]).unwrap();
    let string = |at: i64| read.string_table[usize::try_from(at).unwrap()].as_str();
    let types: Vec<_> =
        read.sample_type.iter().map(|it| (string(it.r#type), string(it.unit))).collect();
    assert_eq!(
        types,
        [
            ("alloc_objects", "count"),
            ("alloc_space", "bytes"),
            ("inuse_objects", "count"),
            ("inuse_space", "bytes"),
            ("peak_objects", "count"),
            ("peak_space", "bytes"),
        ]
    );
    assert_eq!(string(read.default_sample_type), "inuse_space");
    let sum =
        |at: usize| read.sample.iter().map(|sample| sample.value[at].cast_unsigned()).sum::<u64>();
    let totals = &recording.totals;
    let expected = [totals.allocated, totals.leaked, totals.peak];
    let expected = expected.map(|amount| [amount.blocks, amount.bytes]).concat();
    assert_eq!((0..6).map(sum).collect::<Vec<_>>(), expected);

    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("heap.pb.gz");
    std::fs::write(&path, gzip).unwrap();
    let Some(top) = tool("go", &["tool", "pprof", "-symbolize=none", "-unit=B", "-top"], &path)
    else {
        return;
    };
    assert!(top.starts_with("File: chance\n") && top.contains("Type: inuse_space"), "{top}");
    for (number, of) in [("alloc_space", Of::Allocated), ("peak_space", Of::Peak)] {
        let index = format!("-sample_index={number}");
        let args = ["tool", "pprof", "-symbolize=none", "-unit=B", &index, "-top"];
        let top = tool("go", &args, &path).unwrap();
        let all: u64 = recording.sites.iter().map(|site| of.number(site)).sum();
        assert!(top.contains(&format!("of {all}B total")), "{top}");
    }
}

#[test]
fn collapsed_stacks_have_the_requested_quantity() {
    let recording = run(&steps(3000, 3), 50);
    let told = told(&recording);
    for (of, number) in [
        (Of::Peak, (|told| told.peak) as fn(&CountedStack) -> u64),
        (Of::Leaked, |told| told.leaked),
        (Of::Allocations, |told| told.allocations),
        (Of::Temporary, |told| told.temporary),
    ] {
        let text = self::text(|out| collapsed::write_heap(&recording, of, out));
        let expected = told.iter().filter(|(_, told)| number(told) > 0);
        let expected: Vec<_> =
            expected.map(|(stack, told)| format!("{stack} {}", number(told))).collect();
        assert_eq!(text.lines().collect::<Vec<_>>(), expected, "{of:?}");
        let svg = self::text(|out| flamegraph::write_heap(&recording, of, "chance", out));
        let total: u64 = told.values().map(number).sum();
        assert!(svg.contains(&format!("total_samples=\"{total}\"")), "{of:?}");
        assert!(svg.contains(of.what()), "{of:?}");
    }
}

#[test]
fn counters_have_no_event_where_nothing_is_known() {
    let recording = run(&steps(400, 3), 50);
    let trace: serde_json::Value =
        serde_json::from_str(&text(|out| counters::write(&recording, out))).unwrap();
    let events = trace["traceEvents"].as_array().unwrap();
    let of = |name: &str| events.iter().filter(|event| event["name"] == name).collect::<Vec<_>>();
    let live: Vec<u64> =
        of("live bytes").iter().map(|event| event["args"]["value"].as_u64().unwrap()).collect();
    assert_eq!(live, recording.moments.iter().map(|it| it.live.bytes).collect::<Vec<_>>());
    assert_eq!(of("held bytes").len(), recording.moments.len() - 1);
    assert_eq!(of("live bytes")[0]["ts"].to_string(), "50000.0");
    assert_eq!(of("peak")[0]["args"]["live_bytes"], recording.totals.peak.bytes);
    assert_eq!(events[0]["args"]["name"], "./chance two words");
}

/// Run by hand: `cargo test --release -p pagewise-view --test views heap -- --ignored --nocapture`.
#[test]
#[ignore = "takes a while, and prints how long"]
fn time_for_the_number_of_stacks_of_a_compiler() {
    let recording = simulated::large(120_000, 40, 1000);
    type Writes<'r> = &'r dyn Fn(&mut dyn Write) -> std::io::Result<()>;
    let formats: [(&str, Writes<'_>); 6] = [
        ("massif", &|out| massif::write(&recording, 1.0, out)),
        ("heaptrack", &|out| {
            heaptrack::write(&recording, heaptrack::MAX_ALLOCATIONS, out).map(drop)
        }),
        ("pprof", &|out| pprof::write_heap(&recording, out)),
        ("collapsed", &|out| collapsed::write_heap(&recording, Of::Peak, out)),
        ("flamegraph", &|out| flamegraph::write_heap(&recording, Of::Peak, "", out)),
        ("counters", &|out| counters::write(&recording, out)),
    ];
    for (name, write) in formats {
        let begun = std::time::Instant::now();
        let written = bytes(write).len();
        let status = std::fs::read_to_string("/proc/self/status").unwrap();
        let highest = status.lines().find(|line| line.starts_with("VmHWM")).unwrap_or("");
        eprintln!("{name}: {:.2} s, {written} bytes, {highest}", begun.elapsed().as_secs_f64());
    }
}

fn any_step() -> impl Strategy<Value = AllocationStep> {
    prop_oneof![
        (0..2_u8, any::<u8>(), prop_oneof![Just(0_u16), 1..40_u16, any::<u16>()])
            .prop_map(|(thread, stack, bytes)| AllocationStep::Allocate { thread, stack, bytes }),
        (0..2_u8, prop_oneof![Just(u16::MAX), any::<u16>()])
            .prop_map(|(thread, which)| AllocationStep::Free { thread, which }),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(96))]

    #[test]
    fn a_synthetic_stream_has_the_counts_of_the_program(
        steps in prop::collection::vec(any_step(), 1..120),
        every in 1..20_usize,
    ) {
        let recording = run(&steps, every);
        let mut lost = 0;
        let stream = text(|out| {
            lost = heaptrack::write(&recording, heaptrack::MAX_ALLOCATIONS, out)?.not_temporary;
            Ok(())
        });
        let (read, peak) = read(&stream);
        prop_assert_eq!(peak, recording.totals.peak.bytes);
        let expected = told(&recording);
        prop_assert_eq!(read.keys().collect::<Vec<_>>(), expected.keys().collect::<Vec<_>>());
        let mut missing = 0;
        for (stack, told) in &expected {
            let it = read[stack];
            prop_assert_eq!((it.allocations, it.peak, it.leaked), (told.allocations, told.peak, told.leaked), "{}", stack);
            prop_assert!(it.temporary <= told.temporary);
            missing += told.temporary - it.temporary;
        }
        prop_assert_eq!(missing, lost);
        adds_up(&text(|out| massif::write(&recording, 1.0, out)));
    }

    /// Recordings with numbers that no recorder writes: the writers neither panic nor write numbers
    /// whose sum overflows in a reader.
    #[test]
    fn any_recording_is_written_or_refused(
        steps in prop::collection::vec(any_step(), 0..40),
        stack: u32,
        amounts in prop::collection::vec(any::<u64>(), 12),
        small: bool,
        times in prop::collection::vec(any::<u64>(), 3),
    ) {
        let mut recording: HeapRecording = run(&steps, 5);
        let cut = |at: usize| if small { amounts[at] % 1000 } else { amounts[at] };
        recording.sites[0].stack = stack;
        recording.sites[1].at_peak.bytes = cut(0);
        recording.sites[2].freed.bytes = cut(1);
        recording.sites[3].temporary = cut(2);
        recording.sites[4].allocated.blocks = cut(3) % 100_000;
        recording.sites[5].allocated.bytes = cut(4);
        recording.totals.allocated.blocks = cut(5);
        recording.totals.peak.bytes = cut(6);
        recording.took_ns = times[0];
        recording.peak_at_ns = Ok(times[1]);
        recording.stacks[1] = vec![7, stack, 0];
        if let Some(moment) = recording.moments.first_mut() {
            moment.time_ns = times[2];
            moment.live.bytes = cut(7);
            moment.allocated.blocks = cut(8);
            let tree = moment.tree.get_or_insert_default();
            tree.sites.push((stack % 9, pagewise_model::heap::HeapAmount { bytes: cut(9), blocks: 1 }));
            tree.others.bytes = cut(10);
        }
        let out = &mut Vec::new();
        let _ = heaptrack::write(&recording, 10_000, out);
        let _ = counters::write(&recording, out);
        let _ = pprof::write_heap(&recording, out);
        let report = Report { schema: "pagewise.heap/1", title: Vec::new(), blocks: Vec::new() };
        let page = text(|out| html::write_heap(&report, &recording, out));
        let data = page.split("id=\"heap-data\">").nth(1).unwrap().split("</script>").next().unwrap();
        let data: serde_json::Value = serde_json::from_str(data).unwrap();
        let nodes = data["parents"].as_array().unwrap().iter().zip(0_u64..);
        for (back, at) in nodes {
            prop_assert!(back.as_u64().unwrap() <= at, "a parent comes before its children");
        }
        let mut drawn = Vec::new();
        if massif::write(&recording, 1.0, &mut drawn).is_ok() {
            adds_up(std::str::from_utf8(&drawn).unwrap());
        }
    }
}
