//! `heap report` and `heap diff`: files written by a simulated program, which counts its
//! allocations twice: as a recorder, and directly.

use crate::fixture;

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use flate2::Compression;
use flate2::write::DeflateEncoder;
use pagewise_heaplog::LogWriter;
use pagewise_heaplog::recording::{
    Begin, LogAddress, LogAmount, LogCallNode, LogCounts, LogEnd, LogEnding, LogKind, LogLiveTree,
    LogResident, LogSite, LogSiteCounts, LogSnapshot, LogThread, ROOT,
};
use pagewise_skip::{Lack, skip};
use serde_json::Value;
use tempfile::TempDir;

use fixture::{number, pagewise};

/// Pseudorandom numbers that are the same each time (xorshift).
struct ReportRandom(u64);

impl ReportRandom {
    fn below(&mut self, end: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % end
    }
}

/// Call stacks of code in no file: number of callers, and number of functions below each caller
/// that allocate.
const CALLERS: u32 = 5;
const BELOW: u32 = 8;

/// A program that allocates and frees at random, with the file of its recorder and its own counts.
#[derive(Default)]
struct RandomProgram {
    file: Vec<u8>,
    allocated: BTreeMap<u32, Vec<u64>>,
    freed: BTreeMap<u32, Vec<u64>>,
    live_at_peak: BTreeMap<u32, u64>,
    peak: u64,
    temporary: u64,
    /// Time, live bytes, and live bytes by site.
    moments: Vec<(u64, u64, BTreeMap<u32, u64>)>,
}

fn amount(bytes: u64, blocks: u64) -> LogAmount {
    LogAmount { bytes, blocks }
}

fn sum(sizes: &BTreeMap<u32, Vec<u64>>) -> u64 {
    sizes.values().flatten().sum()
}

fn count(sizes: &BTreeMap<u32, Vec<u64>>) -> u64 {
    sizes.values().map(|sizes| sizes.len() as u64).sum()
}

fn address_of_caller(caller: u32) -> u64 {
    0x1000 * (u64::from(caller) + 1)
}

fn address(site: u32) -> u64 {
    address_of_caller(site / BELOW) + u64::from(site % BELOW) + 1
}

/// Distance of a return address from its call, in bytes.
const BEHIND: u64 = 1;

impl RandomProgram {
    fn run(seed: u64, steps: u64, command: &[u8]) -> RandomProgram {
        let mut chance = ReportRandom(seed);
        let sites = CALLERS * BELOW;
        let begin = Begin {
            pid: 77,
            page_size: 4096,
            command: vec![command.to_vec()],
            allocator: b"glibc 2.36".to_vec(),
            ..Begin::default()
        };
        let mut writer = LogWriter::create(Vec::new(), &begin).unwrap();
        let place =
            |address: u64| LogAddress { address: address + BEHIND, exact: false, module: None };
        let callers = (0..CALLERS).map(|caller| place(address_of_caller(caller)));
        let places: Vec<LogAddress> =
            callers.chain((0..sites).map(|site| place(address(site)))).collect();
        writer.places(&places).unwrap();
        let callers = (0..CALLERS).map(|place| LogCallNode { parent: ROOT, place });
        let below =
            (0..sites).map(|site| LogCallNode { parent: site / BELOW, place: CALLERS + site });
        writer.nodes(&callers.chain(below).collect::<Vec<_>>()).unwrap();
        let all: Vec<LogSite> =
            (0..sites).map(|site| LogSite { node: CALLERS + site, kind: LogKind::Heap }).collect();
        writer.sites(&all).unwrap();

        let mut program = RandomProgram::default();
        let mut blocks: Vec<(u32, u64)> = Vec::new();
        let mut live: BTreeMap<u32, u64> = BTreeMap::new();
        let mut last = None;
        let mut temporary: BTreeMap<u32, u64> = BTreeMap::new();
        let mut peak_blocks = 0;
        let mut at_peak: BTreeMap<u32, (u64, u64)> = BTreeMap::new();
        for step in 0..steps {
            if blocks.is_empty() || chance.below(100) < 53 {
                let site = u32::try_from(chance.below(u64::from(sites))).unwrap();
                let size = chance.below(100_000);
                program.allocated.entry(site).or_default().push(size);
                *live.entry(site).or_default() += size;
                blocks.push((site, size));
                last = Some(blocks.len() - 1);
            } else {
                let at = usize::try_from(chance.below(blocks.len() as u64)).unwrap();
                let (site, size) = blocks.swap_remove(at);
                if last == Some(at) {
                    *temporary.entry(site).or_default() += 1;
                    program.temporary += 1;
                }
                last = None;
                program.freed.entry(site).or_default().push(size);
                *live.get_mut(&site).unwrap() -= size;
            }
            let now: u64 = blocks.iter().map(|(_, size)| size).sum();
            if now > program.peak {
                program.peak = now;
                program.live_at_peak.clone_from(&live);
                peak_blocks = blocks.len() as u64;
                at_peak.clear();
                for (site, size) in &blocks {
                    let it = at_peak.entry(*site).or_default();
                    *it = (it.0 + size, it.1 + 1);
                }
            }
            if step % 100 == 99 {
                let time_ns = step * 1_000_000;
                let mut tree: Vec<(u32, LogAmount)> = Vec::new();
                for (site, bytes) in &live {
                    let count = blocks.iter().filter(|(other, _)| other == site).count() as u64;
                    tree.push((*site, amount(*bytes, count)));
                }
                let moment = LogSnapshot {
                    time_ns,
                    live: amount(now, blocks.len() as u64),
                    allocated: amount(sum(&program.allocated), count(&program.allocated)),
                    held: Some(now + 4096),
                    resident: Some(LogResident {
                        anonymous: now,
                        file: 8192,
                        ..LogResident::default()
                    }),
                    tree: (step % 300 == 299)
                        .then(|| LogLiveTree { sites: tree, others: LogAmount::default() }),
                    older_freed: None,
                };
                writer.moment(&moment).unwrap();
                program.moments.push((time_ns, now, live.clone()));
            }
        }
        let of = |sizes: &BTreeMap<u32, Vec<u64>>, site: u32| {
            sizes
                .get(&site)
                .map_or(LogAmount::default(), |it| amount(it.iter().sum(), it.len() as u64))
        };
        let counted = |site: u32| {
            let (bytes, blocks) = at_peak.get(&site).copied().unwrap_or_default();
            LogSiteCounts {
                allocated: of(&program.allocated, site),
                freed: of(&program.freed, site),
                temporary: temporary.get(&site).copied().unwrap_or(0),
                at_peak: amount(bytes, blocks),
                errors: (0.0, 0.0),
            }
        };
        let counts = LogCounts {
            time_ns: steps * 1_000_000,
            sites: (0..sites).map(counted).collect(),
            peak: amount(program.peak, peak_blocks),
            peak_at_ns: Some(5_000_000),
            threads: vec![LogThread {
                tid: 77,
                name: b"one".to_vec(),
                allocated: amount(sum(&program.allocated), count(&program.allocated)),
                freed: amount(sum(&program.freed), count(&program.freed)),
            }],
            ..LogCounts::default()
        };
        writer.counts(&counts).unwrap();
        let end = LogEnd { time_ns: steps * 1_000_000, how: LogEnding::Exited(0) };
        program.file = writer.end(&end).unwrap();
        program
    }

    fn leaked(&self, site: u32) -> (u64, u64) {
        let of = |sizes: &BTreeMap<u32, Vec<u64>>| {
            sizes.get(&site).map_or((0, 0), |it| (it.iter().sum::<u64>(), it.len() as u64))
        };
        let (all, freed) = (of(&self.allocated), of(&self.freed));
        (all.0 - freed.0, all.1 - freed.1)
    }
}

fn save(folder: &TempDir, name: &str, bytes: &[u8]) -> PathBuf {
    let path = folder.path().join(name);
    fs::write(&path, bytes).unwrap();
    path
}

fn heap(words: &[&str], files: &[&Path]) -> Output {
    let mut all: Vec<&str> = vec!["heap"];
    all.extend(words);
    all.extend(files.iter().map(|path| path.to_str().unwrap()));
    pagewise(&all)
}

fn json(words: &[&str], files: &[&Path]) -> Value {
    let output = heap(&[words, &["--json"]].concat(), files);
    assert!(output.status.success(), "{output:?}");
    serde_json::from_slice(&output.stdout).unwrap()
}

fn text(output: &Output) -> String {
    String::from_utf8(output.stdout.clone()).unwrap()
}

/// Returns the site of a call stack of two calls.
fn site(stack: &Value) -> u32 {
    let address = stack[0].as_str().unwrap().strip_prefix("?? at 0x").unwrap();
    let found = u64::from_str_radix(address, 16).unwrap();
    (0..CALLERS * BELOW).find(|site| address_of(*site) == found).unwrap()
}

/// Returns the address in reports: for code in no file, the return address.
fn address_of(site: u32) -> u64 {
    address(site) + BEHIND
}

#[test]
fn totals_leaks_peak_and_time_line_are_what_the_program_did() {
    let folder = tempfile::tempdir().unwrap();
    let program = RandomProgram::run(7, 3000, b"./random");
    let report = json(&["report"], &[&save(&folder, "a.pwh", &program.file)]);
    let total = |key: &str| number(&report["totals"], key);
    assert_eq!(total("allocations"), count(&program.allocated));
    assert_eq!(total("frees"), count(&program.freed));
    assert_eq!(total("allocated_bytes"), sum(&program.allocated));
    assert_eq!(total("freed_bytes"), sum(&program.freed));
    assert_eq!(total("peak_bytes"), program.peak);
    assert_eq!(total("leaked_bytes"), sum(&program.allocated) - sum(&program.freed));
    assert_eq!(total("leaked_blocks"), count(&program.allocated) - count(&program.freed));
    assert_eq!(total("temporary"), program.temporary);
    let mut seen = 0;
    for leak in report["leaks"].as_array().unwrap() {
        let site = site(&leak["stack"]);
        assert_eq!((number(leak, "bytes"), number(leak, "blocks")), program.leaked(site));
        let caller = format!("?? at {:#x}", address_of_caller(site / BELOW) + BEHIND);
        assert_eq!(leak["stack"][1].as_str().unwrap(), caller);
        seen += number(leak, "bytes");
    }
    assert_eq!(seen, total("leaked_bytes"));
    for row in report["sites"].as_array().unwrap() {
        let sizes = &program.allocated[&site(&row["stack"])];
        assert_eq!(number(row, "allocated_bytes"), sizes.iter().sum::<u64>());
        assert_eq!(number(row, "allocations"), sizes.len() as u64);
        assert_eq!(number(row, "peak_bytes"), program.live_at_peak[&site(&row["stack"])]);
    }
    let line = report["timeline"].as_array().unwrap();
    assert_eq!(line.len(), program.moments.len());
    for (moment, (time, live, _)) in line.iter().zip(&program.moments) {
        let nanos = (moment["time"].as_f64().unwrap() * 1e9).round();
        assert!((nanos - f64::from(u32::try_from(*time).unwrap())).abs() < 1.0);
        assert_eq!(number(moment, "live"), *live);
        assert_eq!(
            (number(moment, "held"), number(moment, "resident")),
            (live + 4096, live + 8192)
        );
    }
}

#[test]
fn trees_have_what_was_live_both_ways() {
    let folder = tempfile::tempdir().unwrap();
    let program = RandomProgram::run(8, 3000, b"./random");
    let path = save(&folder, "a.pwh", &program.file);
    let tree = json(&["report", "--tree", "top-down", "--threshold", "0"], &[&path]);
    let tree = &tree["peak"]["tree"];
    assert_eq!(number(tree, "bytes"), program.peak);
    let of_caller = |live: &BTreeMap<u32, u64>, caller: u32| -> u64 {
        live.iter().filter(|(site, _)| *site / BELOW == caller).map(|(_, bytes)| bytes).sum()
    };
    let callers = tree["children"].as_array().unwrap();
    for caller in 0..CALLERS {
        let is_it = |it: &&Value| number(it, "offset") == address_of_caller(caller) + BEHIND;
        let found = callers.iter().find(is_it).unwrap();
        assert_eq!(number(found, "bytes"), of_caller(&program.live_at_peak, caller));
    }
    let mut sites = Vec::new();
    let tree = json(&["report", "--threshold", "0"], &[&path]);
    for child in tree["peak"]["tree"]["children"].as_array().unwrap() {
        sites.push((number(child, "offset"), number(child, "bytes")));
        // Each function has one caller.
        assert_eq!(child["children"][0]["bytes"], child["bytes"]);
    }
    sites.sort_unstable();
    let expected = program.live_at_peak.iter().filter(|(_, bytes)| **bytes > 0);
    assert_eq!(
        sites,
        expected.map(|(site, bytes)| (address_of(*site), *bytes)).collect::<Vec<_>>()
    );

    // At a time in the middle, the report has the last tree that was recorded before this time.
    let (time, live, by_site) = &program.moments[program.moments.len() / 2 / 3 * 3 + 2];
    let at = format!("{}ns", time + 1);
    let then = json(&["report", "--at", &at, "--threshold", "0"], &[&path]);
    let then = &then["selected"]["tree"];
    assert_eq!(number(then, "bytes"), *live);
    let used = by_site.values().filter(|bytes| **bytes > 0).count();
    assert_eq!(then["children"].as_array().unwrap().len(), used);
}

#[test]
fn the_difference_of_two_runs_has_all_changes() {
    let folder = tempfile::tempdir().unwrap();
    let (before, after) =
        (RandomProgram::run(3, 2000, b"./a"), RandomProgram::run(4, 2600, b"./b"));
    let files = [save(&folder, "a.pwh", &before.file), save(&folder, "b.pwh", &after.file)];
    let report = json(&["diff", "--by", "allocated"], &[&files[0], &files[1]]);
    let change = |key: &str| report["totals"][key]["change"].as_i64().unwrap();
    let minus =
        |after: u64, before: u64| i64::try_from(after).unwrap() - i64::try_from(before).unwrap();
    assert_eq!(change("peak_bytes"), minus(after.peak, before.peak));
    assert_eq!(change("allocations"), minus(count(&after.allocated), count(&before.allocated)));
    // Code in no file has no functions, so all stacks are merged.
    let rows = report["stacks"].as_array().unwrap();
    assert_eq!(rows.len(), 1);
    assert_eq!(
        rows[0]["allocated_change"].as_i64().unwrap(),
        minus(sum(&after.allocated), sum(&before.allocated))
    );
    let same = heap(&["diff"], &[&files[0], &files[0]]);
    assert!(text(&same).contains("Live at the peak: as much as before"), "{}", text(&same));
}

#[test]
fn a_file_that_was_cut_off_is_read_up_to_there_and_this_is_said() {
    let folder = tempfile::tempdir().unwrap();
    let program = RandomProgram::run(5, 2000, b"./random");
    let length = program.file.len();
    for cut in [length - 16, length * 3 / 4, length / 2, length / 4] {
        let path = save(&folder, "cut.pwh", &program.file[..cut]);
        let said = text(&heap(&["report"], &[&path]));
        // The first cut is in the index, which follows the end of the recording: nothing else is
        // missing.
        assert!(said.contains("Unknown: the rest after byte"), "{said}");
        let report = json(&["report"], &[&path]);
        let moments = report["timeline"].as_array().unwrap();
        let last = moments.last().unwrap();
        let known = &program.moments[moments.len() - 1];
        assert_eq!(number(last, "live"), known.1, "cut at {cut} of {length}");
        if cut < length / 2 {
            assert_eq!(report["recording"]["ending"], "recording cut off");
            assert_eq!(number(&report["totals"], "leaked_bytes"), known.1);
        }
    }
    for bytes in [&b""[..], b"{\"pid\": 7}", &program.file[..9]] {
        let output = heap(&["report"], &[&save(&folder, "none.pwh", bytes)]);
        assert_eq!(output.status.code(), Some(1));
        assert!(String::from_utf8_lossy(&output.stderr).contains("cannot read"), "{output:?}");
    }
}

#[test]
fn words_of_the_program_do_not_steer_the_terminal() {
    let folder = tempfile::tempdir().unwrap();
    let program = RandomProgram::run(6, 200, b"./a\x1b[2J\n\xff");
    let path = save(&folder, "a.pwh", &program.file);
    for words in [&["report"][..], &["report", "--html", "/dev/stdout"], &["report", "--json"]] {
        let output = heap(words, &[&path]);
        assert!(output.status.success(), "{output:?}");
        assert!(!output.stdout.contains(&0x1b), "{words:?}");
    }
}

#[test]
fn options_that_make_no_sense_are_refused() {
    let folder = tempfile::tempdir().unwrap();
    let path = save(&folder, "a.pwh", &RandomProgram::run(6, 200, b"./a").file);
    let options =
        [&["--at", "1s", "--by", "calls"][..], &["--threshold", "101"], &["--at", "soon"]];
    for words in options {
        let output = heap(&[&["report"], words].concat(), &[&path]);
        assert_eq!(output.status.code(), Some(2), "{output:?}");
    }
}

/// Returns the peak memory of a report in KiB, without the memory that the program itself needs.
/// Returns `None`, after recording a skip, if GNU time is not installed.
fn peak_kib(words: &[&str], path: &Path) -> Option<u64> {
    let report = [&["heap", "report"], words, &[path.to_str().unwrap()]].concat();
    Some(resident_kib(&report)?.saturating_sub(resident_kib(&["define", "Rss"])?))
}

/// Returns the peak RSS of a command of pagewise in KiB.
fn resident_kib(words: &[&str]) -> Option<u64> {
    let mut command = Command::new("/usr/bin/time");
    command.args(["-f", "%M", env!("CARGO_BIN_EXE_pagewise")]).args(words);
    let Ok(output) = command.output() else {
        skip(&Lack::Tool("/usr/bin/time"));
        return None;
    };
    assert!(output.status.success(), "{output:?}");
    let said = String::from_utf8(output.stderr).unwrap();
    Some(said.trim().parse().unwrap_or_else(|_| panic!("{said}")))
}

#[test]
fn many_stacks_of_many_sizes_take_little_memory() {
    const STACKS: u32 = 4000;
    const SIZES: u64 = 500;
    const DEEP: u32 = 30;
    let begin = Begin { page_size: 4096, ..Begin::default() };
    let mut writer = LogWriter::create(Vec::new(), &begin).unwrap();
    for stack in 0..STACKS {
        let first = stack * DEEP;
        let calls = || first..first + DEEP;
        let place = |call: u32| LogAddress {
            address: 0x40_0000 + u64::from(call) * 16,
            exact: false,
            module: None,
        };
        writer.places(&calls().map(place).collect::<Vec<_>>()).unwrap();
        let parent = |call: u32| if call == first { ROOT } else { call - 1 };
        let node = |call: u32| LogCallNode { parent: parent(call), place: call };
        writer.nodes(&calls().map(node).collect::<Vec<_>>()).unwrap();
        writer.sites(&[LogSite { node: first + DEEP - 1, kind: LogKind::Heap }]).unwrap();
    }
    let all = amount((1..=SIZES).sum(), SIZES);
    let counted = LogSiteCounts { allocated: all, at_peak: all, ..LogSiteCounts::default() };
    let mut counts = LogCounts { sites: vec![counted; STACKS as usize], ..LogCounts::default() };
    counts.peak = amount(all.bytes * u64::from(STACKS), all.blocks * u64::from(STACKS));
    for at in 0..150 {
        let tree = |site| (site, amount(all.bytes * (at + 1) / 150, all.blocks));
        let tree = LogLiveTree { sites: (0..1000).map(tree).collect(), others: all };
        let moment =
            LogSnapshot { time_ns: at * 1_000_000, tree: Some(tree), ..LogSnapshot::default() };
        writer.moment(&moment).unwrap();
    }
    writer.counts(&counts).unwrap();
    let file = writer.end(&LogEnd { time_ns: 1, how: LogEnding::Exited(0) }).unwrap();
    let folder = tempfile::tempdir().unwrap();
    let path = save(&folder, "many.pwh", &file);
    for words in [&["--output", "/dev/null"][..], &["--json", "--output", "/dev/null"]] {
        let Some(peak) = peak_kib(words, &path) else { return };
        assert!(peak <= 48 << 10, "{words:?}: {peak} KiB");
    }
    let report = json(&["report"], &[&path]);
    assert_eq!(report["leaks"].as_array().unwrap().len(), STACKS as usize);
    assert_eq!(number(&report["totals"], "allocations"), u64::from(STACKS) * SIZES);
}

#[test]
fn a_small_file_that_unpacks_to_very_much_takes_little_memory() {
    let begin = Begin { page_size: 4096, ..Begin::default() };
    let mut file = LogWriter::create(Vec::new(), &begin).unwrap();
    file.moment(&LogSnapshot::default()).unwrap();
    let mut file = file.end(&LogEnd { time_ns: 0, how: LogEnding::Gone }).unwrap();
    // More sites than any program has, each without allocations. Frames after the end are read too.
    const SITES: usize = 2_000_000;
    let mut sites = varint(SITES);
    sites.resize(sites.len() + 2 * SITES, 0);
    file.extend(packed(5, &sites));
    let mut counts = vec![0; 10];
    counts.extend(varint(SITES));
    counts.resize(counts.len() + 7 * SITES, 0);
    for _ in 0..3 {
        file.extend(packed(7, &counts));
    }
    assert!(file.len() < 100 << 10, "{}", file.len());
    let folder = tempfile::tempdir().unwrap();
    let path = save(&folder, "bomb.pwh", &file);
    let Some(peak) = peak_kib(&["--output", "/dev/null"], &path) else { return };
    assert!(peak <= 1 << 20, "{peak} KiB");
}

fn varint(mut number: usize) -> Vec<u8> {
    let mut bytes = Vec::new();
    while number >= 0x80 {
        bytes.push(u8::try_from(number & 0x7f).unwrap() | 0x80);
        number >>= 7;
    }
    bytes.push(u8::try_from(number).unwrap());
    bytes
}

/// Returns a frame in the format that FORMAT.md describes.
fn packed(kind: u8, payload: &[u8]) -> Vec<u8> {
    let mut encoder = DeflateEncoder::new(Vec::new(), Compression::best());
    std::io::Write::write_all(&mut encoder, payload).unwrap();
    let stored = encoder.finish().unwrap();
    let head = [vec![kind], varint(stored.len()), varint(payload.len())].concat();
    let mut sum = flate2::Crc::new();
    sum.update(&head);
    sum.update(&stored);
    [head, sum.sum().to_le_bytes().to_vec(), stored].concat()
}
