//! `heap scan` of programs that count their own live blocks, against these counts, `mallinfo2`,
//! `malloc_info` and the effect of `malloc_trim`; of programs that damage their own heap; and of
//! busy ones. With glibc, musl, mimalloc, jemalloc, tcmalloc and CPython.
//!
//! `PAGEWISE_GLIBC` names a folder with other C libraries. `PAGEWISE_RUNS` is the number of random
//! programs for each C library, the first of which has the seed `PAGEWISE_SEED`.

use crate::fixture;

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Read, Write};
use std::path::Path;
use std::process::{Child, ChildStdout, Command, Stdio};

use fixture::victim::Random;
use fixture::{FixtureLink, OtherGlibc, json, number, sum};
use pagewise_skip::{Lack, skip};
use serde_json::Value;

/// A program that allocates at random, one round after each request.
struct RandomProgram {
    child: Child,
    lines: BufReader<ChildStdout>,
}

/// Numbers of a line `key number key number ..`.
type ProgramFacts = BTreeMap<String, u64>;

impl RandomProgram {
    fn start(program: &Path, threads: u32, seed: u32, modes: &str, tunables: &str) -> Self {
        let mut command = Command::new(program);
        command.env("GLIBC_TUNABLES", tunables);
        RandomProgram::spawn(command, threads, seed, modes)
    }

    fn spawn(mut command: Command, threads: u32, seed: u32, modes: &str) -> Self {
        command.args([&threads.to_string(), &seed.to_string(), modes]);
        command.env_remove("MALLOC_ARENA_MAX");
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        let lines = BufReader::new(child.stdout.take().unwrap());
        RandomProgram { child, lines }
    }

    /// Starts a program with the library of another allocator.
    fn preloading(library: &str, threads: u32, seed: u32, modes: &str) -> Self {
        let mut command = Command::new(fixture::program("scanned"));
        command.env("LD_PRELOAD", library).env_remove("MALLOC_CONF");
        RandomProgram::spawn(command, threads, seed, modes)
    }

    fn answer(&mut self) -> ProgramFacts {
        let mut line = String::new();
        self.lines.read_line(&mut line).unwrap();
        let words: Vec<&str> = line.split_whitespace().collect();
        let pairs = words.chunks_exact(2);
        pairs.map(|pair| (pair[0].to_owned(), pair[1].parse().unwrap())).collect()
    }

    /// Returns the output of the program up to a line.
    fn text_until(&mut self, last: &str) -> String {
        let mut text = String::new();
        while !text.ends_with(&format!("{last}\n")) {
            assert!(self.lines.read_line(&mut text).unwrap() > 0, "{text}");
        }
        text
    }

    fn send(&mut self, letters: &str) {
        self.child.stdin.as_mut().unwrap().write_all(letters.as_bytes()).unwrap();
    }

    fn ask(&mut self, letters: &str) -> ProgramFacts {
        self.send(letters);
        self.answer()
    }

    fn scan(&self, more: &[&str]) -> Value {
        let pid = self.child.id().to_string();
        // A busy machine takes longer for a copy than users would wait.
        json(&[&["heap", "scan", &pid, "--json", "--max-pause", "60s"], more].concat())
    }

    fn end(mut self) {
        drop(self.child.stdin.take());
        self.lines.read_to_string(&mut String::new()).unwrap();
        assert!(self.child.wait().unwrap().success());
    }
}

impl Drop for RandomProgram {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

const JEMALLOC: &str = "/usr/lib/x86_64-linux-gnu/libjemalloc.so.2";
const TCMALLOC: &str = "/usr/lib/x86_64-linux-gnu/libtcmalloc_minimal.so.4";

/// Returns a library; `None`, after printing the reason, if it is not installed.
fn installed(library: &'static str) -> Option<&'static str> {
    if Path::new(library).exists() {
        return Some(library);
    }
    skip(&Lack::Tool(library));
    None
}

fn arenas(report: &Value, key: &str) -> u64 {
    sum(&report["arenas"], key)
}

/// Compares a scan with the counts of the program and of the C library. `before` are the blocks of
/// the C library itself, which the program does not count: those of its threads.
fn assert_equal(report: &Value, facts: &ProgramFacts, before: &Value, moves_brk: bool) {
    let live =
        |key: &str| number(report, &format!("live.{key}")) - number(before, &format!("live.{key}"));
    let counted = (facts["blocks"], facts["bytes"]);
    let [scan, unclear, gaps] = ["scan", "unclear", "gaps"].map(|key| &report[key]);
    assert_eq!((live("blocks"), live("bytes")), counted, "live: {scan} {unclear} {gaps}");
    let free = |key: &str| number(report, &format!("free.{key}"));
    assert_eq!(free("bytes") - free("tcache"), facts["fordblks"], "free");
    assert_eq!(free("fastbins"), facts["fsmblks"], "fastbins");
    assert_eq!(free("unlisted"), 0);
    assert_eq!(arenas(report, "held"), facts["arena"], "held");
    // The C library counts blocks in thread caches, and foreign memory in the heap, as used.
    let used = arenas(report, "live_chunks") + arenas(report, "own") + free("tcache");
    assert!(used == facts["uordblks"] || moves_brk && used < facts["uordblks"], "used: {used}");
    let mapped = |key: &str| number(report, &format!("mapped.{key}"));
    assert_eq!(mapped("blocks") + mapped("cached_blocks"), facts["hblks"], "mapped");
    let counted = (mapped("counted_blocks"), mapped("counted_bytes"));
    assert_eq!(counted, (facts["hblks"], facts["hblkhd"]), "counted");
    // Since 2.43, glibc counts 16 bytes too many at each `realloc` of a mapped block.
    let excess = facts["hblkhd"].checked_sub(mapped("held")).unwrap();
    let may_exceed = facts["glibc"] >= 43 && excess.is_multiple_of(16);
    assert!(excess == 0 || may_exceed, "mapped bytes: {excess}");
    let sizes = report["sizes"].as_array().unwrap();
    let by_size: u64 = sizes.iter().map(|it| number(it, "size") * number(it, "blocks")).sum();
    assert_eq!(by_size, number(report, "live.bytes"), "by size");
    for table in ["corruption", "gaps"] {
        assert_eq!(report[table].as_array().unwrap().len(), 0, "{}", report[table]);
    }
}

/// Returns the number of blocks by size in a report, without the blocks of `before`.
fn blocks_by_size(report: &Value, before: &Value) -> ProgramFacts {
    let sizes = |report: &Value| -> ProgramFacts {
        let rows = report["sizes"].as_array().unwrap().iter();
        rows.map(|row| (number(row, "size").to_string(), number(row, "blocks"))).collect()
    };
    let before = sizes(before);
    let rows = sizes(report).into_iter();
    let rows = rows.map(|(size, blocks)| {
        let others = before.get(&size).copied().unwrap_or(0);
        (size, blocks.checked_sub(others).unwrap())
    });
    rows.filter(|(_, blocks)| *blocks > 0).collect()
}

/// Numbers of bytes: those that an arena has from the system, those in fastbins, and those in `top`
/// and bins.
type ArenaSums = [u64; 3];

fn arena_sums(report: &Value) -> Vec<ArenaSums> {
    let sums = |arena: &Value| {
        let bins = ["unsorted", "small_bins", "large_bins", "unlisted", "top"];
        let free: u64 = bins.map(|bin| number(arena, bin)).iter().sum();
        [number(arena, "system"), number(arena, "fastbins"), free]
    };
    let mut all: Vec<ArenaSums> = report["arenas"].as_array().unwrap().iter().map(sums).collect();
    all.sort_unstable();
    all
}

/// Returns the [`ArenaSums`] of each arena in the text of `malloc_info`.
fn arena_sums_of_malloc_info(text: &str) -> Vec<ArenaSums> {
    let attribute = |heap: &str, element: &str, name: &str| -> Option<u64> {
        let element = heap.split_once(&format!("<{element} "))?.1.split_once('>')?.0;
        element.split_once(&format!("{name}=\""))?.1.split_once('"')?.0.parse().ok()
    };
    let sums = |heap: &str| {
        let rest = |name: &str| attribute(heap, "total type=\"rest\"", name).unwrap();
        // In each size except that of `top`, the lowest bit is set: it marks that the chunk before
        // is used.
        let free = rest("size") - (rest("count") - 1);
        let fastbins = attribute(heap, "total type=\"fast\"", "size").unwrap_or(0);
        [attribute(heap, "system type=\"current\"", "size").unwrap(), fastbins, free]
    };
    let heaps = text.split("<heap ").skip(1).map(|heap| heap.split("</heap>").next().unwrap());
    let mut all: Vec<ArenaSums> = heaps.map(sums).filter(|heap| heap[0] > 0).collect();
    all.sort_unstable();
    all
}

/// Runs a program through some rounds, and compares a scan after each.
fn rounds(program: &Path, threads: u32, seed: u32, modes: &str, tunables: &str, count: u32) {
    let mut target = RandomProgram::start(program, threads, seed, modes, tunables);
    target.answer();
    let before = target.scan(&["--top", "all"]);
    for round in 0..count {
        let facts = target.ask("r");
        let report = target.scan(&["--top", "all"]);
        eprintln!("{threads} threads, seed {seed}, {modes:?}, {tunables:?}, round {round}");
        assert_equal(&report, &facts, &before, modes.contains('s'));
        assert_eq!(blocks_by_size(&report, &before), target.ask("l"), "blocks by size");
        target.send("i");
        let text = target.text_until("</malloc>");
        assert_eq!(arena_sums(&report), arena_sums_of_malloc_info(&text), "{text}");
        let seen = arenas(&report, "threads");
        assert_eq!(seen, u64::from(threads) + 1, "each thread has an arena");
    }
    let scanned = number(&target.scan(&[]), "free.trimmable");
    let trimmed = target.ask("t")["trimmed"];
    // Reading the resident size can fault in a page of the program.
    assert!(scanned.abs_diff(trimmed) <= 64 << 10, "{scanned} and {trimmed}");
    // khugepaged may fill huge pages again.
    let is_trimmed = number(&target.scan(&[]), "free.trimmable") <= 64 << 10;
    assert!(is_trimmed || tunables.contains("hugetlb"), "a second time");
    target.end();
}

#[test]
fn live_blocks_of_one_thread_are_those_that_the_program_counts() {
    let program = fixture::program("scanned");
    for (seed, modes) in (0..).zip(["", "m", "a", "ma", "k", "kma", "s", "b", "bmk", "smak"]) {
        rounds(&program, 0, seed, modes, "", 4);
    }
}

#[test]
fn live_blocks_of_several_threads_are_those_that_the_program_counts() {
    let program = fixture::program("scanned");
    for (seed, modes) in (0..).zip(["", "m", "a", "ma", "k", "kma", "b", "bmak"]) {
        rounds(&program, 1 + seed % 4, seed, modes, "", 4);
    }
}

#[test]
fn blocks_of_a_thread_cache_that_cannot_be_read_are_free_or_unclear() {
    let program = fixture::program("scanned");
    for (threads, letter) in [(2, "h"), (0, "h"), (2, "H"), (0, "H")] {
        let tunables = "glibc.malloc.tcache_count=127";
        let mut target = RandomProgram::start(&program, threads, 25, "m", tunables);
        target.answer();
        let before = target.scan(&[]);
        let facts = target.ask("r");
        let whole = target.scan(&[]);
        assert_eq!(number(&whole, "unclear.threads") + number(&whole, "unclear.lists"), 0);
        let hidden = target.ask(letter)["hidden"];
        let report = target.scan(&[]);
        let unread = ["threads", "lists"].map(|key| number(&report, &format!("unclear.{key}")));
        match letter {
            "h" => assert_eq!(unread[0], 1, "{}", report["unclear"]),
            _ => assert!(unread[0] == 0 && unread[1] > 0, "{}", report["unclear"]),
        }
        assert_not_corrupted(&report);
        let live = number(&report, "live.blocks") - number(&before, "live.blocks");
        let known = facts["blocks"] - hidden;
        let cached = |report: &Value| number(report, "free.tcache");
        let (marked, unclear) =
            (number(&report, "unclear.marked_blocks"), number(&report, "unclear.blocks"));
        eprintln!("{threads} threads: {live} of {known} blocks, {}", report["unclear"]);
        if threads == 0 && letter == "h" {
            // glibc writes a key into each cached block. The only thread cache cannot be read, so
            // the scan does not find this key.
            assert!(marked == 0 && live >= known && live - known <= unclear, "{live} and {known}");
            assert!(live - known > 20, "the cache holds blocks");
        } else {
            // Blocks of the C library itself can begin in the first page. The last block of a
            // hidden page may reach into the next one, whose first header is known.
            assert!(live.abs_diff(known) <= 8, "{live} and {known}");
            assert!(marked > 20 && unclear < 20, "{}", report["unclear"]);
            // The scans differ only by the cached blocks of one hidden page.
            assert!(cached(&whole) - cached(&report) < 4096 + 1024);
        }
        // The request `r` also makes the page readable again.
        target.ask("r");
        assert_eq!(number(&target.scan(&[]), "unclear.threads"), 0);
        target.end();
    }
}

#[test]
fn a_statically_linked_program_is_scanned_alike() {
    let Some(program) = fixture::static_program("scanned") else { return };
    for (threads, modes) in [(0, ""), (1, "mak"), (0, "s"), (2, "b")] {
        rounds(&program, threads, 11, modes, "", 3);
    }
}

#[test]
fn settings_of_malloc_change_no_count() {
    let program = fixture::program("scanned");
    let all = [
        "glibc.malloc.tcache_count=0",
        "glibc.malloc.tcache_count=500",
        "glibc.malloc.arena_max=1",
        "glibc.malloc.mmap_threshold=20000",
        "glibc.malloc.mxfast=0",
        "glibc.malloc.hugetlb=1",
    ];
    for (seed, tunables) in (100..).zip(all) {
        rounds(&program, 2, seed, "mak", tunables, 2);
    }
}

/// Compares a scan of another allocator with the counts of the program. `before` are the blocks of
/// the C library itself.
fn assert_counted(report: &Value, facts: &ProgramFacts, before: &Value) {
    let live =
        |key: &str| number(report, &format!("live.{key}")) - number(before, &format!("live.{key}"));
    assert_eq!((live("blocks"), live("bytes")), (facts["blocks"], facts["bytes"]), "live");
    let sizes = report["sizes"].as_array().unwrap();
    let by_size: u64 = sizes.iter().map(|it| number(it, "size") * number(it, "blocks")).sum();
    assert_eq!(by_size, number(report, "live.bytes"), "by size");
    for arena in report["arenas"].as_array().unwrap() {
        let parts = ["live_chunks", "free", "own"].map(|key| number(arena, key));
        assert_eq!(parts.iter().sum::<u64>(), number(arena, "held"), "{arena}");
    }
    for table in ["corruption", "gaps"] {
        assert_eq!(report[table].as_array().unwrap().len(), 0, "{}", report[table]);
    }
}

/// Runs a program with another allocator through some rounds, ends its threads, and compares a scan
/// after each step.
fn counted_rounds(command: Command, allocator: &str, threads: u32, seed: u32, modes: &str) {
    let mut target = RandomProgram::spawn(command, threads, seed, modes);
    target.answer();
    let before = target.scan(&[]);
    for letter in ["r", "r", "e", "r"] {
        let facts = target.ask(letter);
        let report = target.scan(&["--top", "all"]);
        eprintln!("{allocator}, {threads} threads, seed {seed}, {modes:?}, {letter}");
        assert_counted(&report, &facts, &before);
        let names = report["allocators"].as_array().unwrap().iter().map(|it| &it["name"]);
        assert!(names.into_iter().any(|name| name == allocator), "{}", report["allocators"]);
    }
    target.end();
}

#[test]
fn live_blocks_of_musl_are_those_that_the_program_counts() {
    for link in [FixtureLink::Musl, FixtureLink::MuslStatic] {
        let Some(program) = fixture::musl_program(link, "scanned") else { return };
        for (seed, modes) in (0..).zip(["", "m", "a", "ma", "k", "ko", "o", "mako"]) {
            counted_rounds(Command::new(&program), "musl", seed % 4, seed, modes);
        }
    }
}

#[test]
fn live_blocks_of_mimalloc_are_those_that_the_program_counts() {
    let Some(library) = fixture::mimalloc() else { return };
    for (seed, modes) in (0..).zip(["", "m", "k", "mk", "", "ko", "o", "mko"]) {
        let mut command = Command::new(fixture::program("scanned"));
        command.env("LD_PRELOAD", &library);
        counted_rounds(command, "mimalloc", seed % 4, seed, modes);
    }
}

#[test]
fn a_damaged_heap_of_musl_is_reported_and_walked_on() {
    let Some(program) = fixture::musl_program(FixtureLink::Musl, "scanned") else { return };
    for way in "01234".chars() {
        let mut target = RandomProgram::start(&program, 0, 7, "m", "");
        target.answer();
        target.ask("r");
        let whole = target.scan(&[]);
        target.ask(&format!("x{way}"));
        let report = target.scan(&[]);
        let findings = report["findings"].as_array().unwrap();
        assert_eq!(findings.first().unwrap()["id"], "heap-corrupted", "way {way}");
        // musl records used slots outside of the heap, so the number of live blocks stays correct:
        // it grows by the 64 blocks that `damage` allocates.
        let blocks = number(&report, "live.blocks") - number(&whole, "live.blocks");
        assert_eq!(blocks, 64, "way {way}");
    }
}

fn assert_not_corrupted(report: &Value) {
    assert!(number(report, "live.blocks") > 0);
    for finding in report["findings"].as_array().unwrap() {
        assert_ne!(finding["id"], "heap-corrupted", "{finding}");
    }
}

#[test]
fn a_program_that_never_leaves_malloc_of_musl_is_not_corrupted() {
    for link in [FixtureLink::Musl, FixtureLink::MuslStatic] {
        let Some(program) = fixture::musl_program(link, "scanned") else { return };
        let mut target = RandomProgram::start(&program, 2, 3, "w", "");
        target.answer();
        target.ask("r");
        for _ in 0..3 {
            assert_not_corrupted(&target.scan(&[]));
        }
    }
}

#[test]
fn a_core_file_has_the_heaps_of_musl_and_mimalloc() {
    let mut commands = Vec::new();
    if let Some(program) = fixture::musl_program(FixtureLink::Musl, "scanned") {
        commands.push(Command::new(program));
    }
    if let Some(library) = fixture::mimalloc() {
        let mut command = Command::new(fixture::program("scanned"));
        command.env("LD_PRELOAD", library);
        commands.push(command);
    }
    for command in commands {
        let folder = tempfile::tempdir().unwrap();
        let mut program = RandomProgram::spawn(command, 1, 7, "m");
        program.answer();
        program.ask("r");
        let pid = program.child.id().to_string();
        let prefix = folder.path().join("core");
        let gcore = Command::new("gcore").arg("-o").arg(&prefix).arg(&pid).output();
        let Ok(made) = gcore else { return skip(&Lack::Tool("gcore")) };
        assert!(made.status.success(), "{made:?}");
        let core = format!("{}.{pid}", prefix.display());
        let core_scan = json(&["heap", "scan", "--core", &core, "--json"]);
        let process = program.scan(&[]);
        for key in ["live.blocks", "live.bytes", "free.bytes"] {
            assert_eq!(number(&core_scan, key), number(&process, key), "{key}");
        }
        program.end();
    }
}

#[test]
fn heaps_of_other_versions_of_glibc_are_walked_alike() {
    for library in OtherGlibc::all() {
        eprintln!("glibc {}", library.version);
        let program = library.program("scanned");
        for (seed, modes) in (0..).zip(["", "mak", "s", "bmk"]) {
            rounds(&program, 0, seed, modes, "", 2);
        }
        for (seed, modes) in (1..).zip(["mac", "kb"]) {
            rounds(&program, 2 * seed, seed, modes, "", 2);
        }
        // Since 2.42 thread caches hold large blocks, and since 2.43 mapped ones.
        let large = "glibc.malloc.tcache_max=65536:glibc.malloc.mmap_threshold=20000";
        rounds(&program, 2, 3, "mac", large, 2);
    }
}

/// Settings of malloc for random programs.
const RANDOM_TUNABLES: [&str; 13] = [
    "",
    "glibc.malloc.tcache_count=0",
    "glibc.malloc.tcache_count=3",
    "glibc.malloc.tcache_count=127",
    "glibc.malloc.tcache_max=200",
    "glibc.malloc.tcache_max=65536:glibc.malloc.mmap_threshold=20000",
    "glibc.malloc.arena_max=1",
    "glibc.malloc.arena_max=2",
    "glibc.malloc.mmap_threshold=20000",
    "glibc.malloc.mxfast=0",
    "glibc.malloc.hugetlb=1",
    "glibc.malloc.perturb=165",
    "glibc.malloc.trim_threshold=4096:glibc.malloc.top_pad=0",
];

/// Runs the random program of a seed for a few rounds.
fn random_rounds(program: &Path, seed: u32) {
    let mut random = Random::new(seed.into());
    let threads = u32::try_from(random.below(5)).unwrap();
    let mut modes: String = "makcb".chars().filter(|_| random.below(2) == 0).collect();
    let tunables = RANDOM_TUNABLES[usize::try_from(random.next() % 13).unwrap()];
    // sbrk is not safe if several threads call it. With huge pages, malloc fails if the program has
    // moved the end of the heap.
    if threads == 0 && !modes.contains('b') && !tunables.contains("hugetlb") {
        modes.push('s');
    }
    rounds(program, threads, seed, &modes, tunables, 2);
}

#[test]
fn random_programs_have_the_blocks_that_they_count() {
    let given = |name: &str| std::env::var(name).ok().map(|it| it.parse::<u32>().unwrap());
    let seed = given("PAGEWISE_SEED").unwrap_or_else(std::process::id);
    let others =
        if std::env::var_os("PAGEWISE_GLIBC").is_some() { OtherGlibc::all() } else { vec![] };
    let others = others.iter().map(|library| library.program("scanned"));
    for program in std::iter::once(fixture::program("scanned")).chain(others) {
        eprintln!("{}, PAGEWISE_SEED={seed}", program.display());
        for seed in (seed..).take(given("PAGEWISE_RUNS").map_or(3, |runs| runs as usize)) {
            random_rounds(&program, seed);
        }
    }
}

#[test]
fn a_damaged_heap_is_reported_and_walked_on() {
    let program = fixture::program("scanned");
    for way in "012345678".chars() {
        let mut target = RandomProgram::start(&program, 1, 7, "m", "");
        target.answer();
        let whole = {
            target.ask("r");
            target.scan(&[])
        };
        target.ask(&format!("x{way}"));
        let report = target.scan(&[]);
        let list = report["corruption"].as_array().unwrap();
        eprintln!("way {way}: {} contradictions, {}", list.len(), report["scan"]["corrupted"]);
        assert!(!list.is_empty(), "way {way}: nothing was noticed");
        let first = report["findings"].as_array().unwrap().first().unwrap();
        assert_eq!(first["id"], "heap-corrupted");
        // The damage is in one arena only.
        let other = |report: &Value| {
            let all = report["arenas"].as_array().unwrap().iter();
            all.filter(|it| it["kind"] == "thread").map(|it| number(it, "blocks")).sum::<u64>()
        };
        assert_eq!(other(&report), other(&whole));
        assert!(number(&report, "mapped.blocks") >= number(&whole, "mapped.blocks"));
        // Damage of one word costs few blocks.
        if "0123457".contains(way) {
            let blocks = number(&report, "live.blocks").abs_diff(number(&whole, "live.blocks"));
            assert!(blocks <= 100, "way {way}: {blocks} blocks");
        }
    }
}

#[test]
fn a_program_that_never_leaves_malloc_is_not_corrupted() {
    let program = fixture::program("scanned");
    for threads in [0, 3] {
        let mut target = RandomProgram::start(&program, threads, 3, "w", "");
        target.answer();
        target.ask("r");
        for _ in 0..5 {
            assert_not_corrupted(&target.scan(&[]));
        }
    }
}

#[test]
fn a_program_that_never_leaves_another_allocator_is_not_corrupted() {
    let mimalloc = fixture::mimalloc().map(|path| path.to_str().unwrap().to_owned());
    let others = [installed(JEMALLOC), installed(TCMALLOC)];
    let others = others.into_iter().flatten().map(str::to_owned);
    for library in others.chain(mimalloc) {
        for threads in [0, 3] {
            let mut target = RandomProgram::preloading(&library, threads, 3, "w");
            target.answer();
            target.ask("r");
            for method in [&[][..], &[], &["--fork"], &["--fork"]] {
                eprintln!("{library}, {threads} threads, {method:?}");
                assert_not_corrupted(&target.scan(method));
            }
        }
    }
}

/// Compares scans of programs that use the library of another allocator with the counts of these
/// programs.
fn assert_library_counted(library: &str, allocator: &str) {
    for (threads, seed, modes) in
        [(0, 1, ""), (0, 2, "ma"), (0, 3, "k"), (1, 4, "m"), (3, 5, "ma"), (4, 6, "mak")]
    {
        let mut target = RandomProgram::preloading(library, threads, seed, modes);
        target.answer();
        let before = target.scan(&[]);
        for round in 0..3 {
            let facts = target.ask("r");
            let report = target.scan(&["--top", "all"]);
            eprintln!("{threads} threads, seed {seed}, {modes:?}, round {round}");
            let live = |key: &str| number(&report, key) - number(&before, key);
            let counted = (live("live.blocks"), live("live.bytes"));
            assert_eq!(counted, (facts["blocks"], facts["bytes"]), "live");
            let sizes = report["sizes"].as_array().unwrap();
            let by_size: u64 =
                sizes.iter().map(|it| number(it, "size") * number(it, "blocks")).sum();
            assert_eq!(by_size, number(&report, "live.bytes"), "by size");
            let names = report["allocators"].as_array().unwrap();
            assert!(names.iter().any(|it| it["name"] == allocator), "{names:?}");
            for table in ["corruption", "gaps", "refused"] {
                assert_eq!(report[table].as_array().unwrap().len(), 0, "{}", report[table]);
            }
        }
        target.end();
    }
}

#[test]
fn live_blocks_of_jemalloc_are_those_that_the_program_counts() {
    let Some(library) = installed(JEMALLOC) else { return };
    assert_library_counted(library, "jemalloc");
}

#[test]
fn live_blocks_of_tcmalloc_are_those_that_the_program_counts() {
    let Some(library) = installed(TCMALLOC) else { return };
    assert_library_counted(library, "tcmalloc");
}

#[test]
fn free_memory_of_jemalloc_is_that_of_its_statistics() {
    let Some(library) = installed(JEMALLOC) else { return };
    for threads in [0, 2] {
        let mut target = RandomProgram::preloading(library, threads, 9, "m");
        target.answer();
        target.ask("r");
        let facts = target.ask("j");
        let report = target.scan(&[]);
        let free = |key: &str| number(&report, &format!("free.{key}"));
        let pages = facts["retained"] + facts["dirty"] + facts["muzzy"];
        assert_eq!(free("pages") + free("retained"), pages);
        // The allocator counts its own blocks and cached blocks as allocated.
        let allocated = number(&report, "live.bytes") + free("tcache");
        let own = u64::from(threads + 1) << 17;
        assert!(facts["allocated"].abs_diff(allocated) < own, "{facts:?} {allocated}");
        let all = arenas(&report, "live_chunks") + arenas(&report, "own") + free("bytes");
        assert_eq!(all, arenas(&report, "held"), "each byte has one use");
        assert!(free("trimmable") > 0 && free("trimmable") <= facts["dirty"] + facts["muzzy"]);
        target.ask("p");
        assert_eq!(number(&target.scan(&[]), "free.trimmable"), 0, "after a purge");
        target.end();
    }
}

/// Returns the children of a process, also zombies.
fn children(pid: u32) -> Vec<String> {
    let folders = std::fs::read_dir("/proc").unwrap().map_while(Result::ok);
    let stats = folders.filter_map(|it| std::fs::read_to_string(it.path().join("stat")).ok());
    let parent = pid.to_string();
    let is_child = |stat: &String| {
        stat.rsplit_once(") ").is_some_and(|(_, rest)| rest.split(' ').nth(1) == Some(&parent))
    };
    stats.filter(is_child).collect()
}

/// Ends a program that waits for the end of its input.
fn end(mut child: Child) -> std::process::ExitStatus {
    drop(child.stdin.take());
    child.wait().unwrap()
}

#[test]
fn a_forked_snapshot_has_the_same_heap_and_is_gone_afterwards() {
    let program = fixture::program("scanned");
    let fork = ["--fork", "--top", "all"];
    for (threads, modes) in [(0, "mak"), (3, "mak")] {
        let mut target = RandomProgram::start(&program, threads, 21, modes, "");
        target.answer();
        let before = target.scan(&fork);
        for _ in 0..3 {
            let facts = target.ask("r");
            let report = target.scan(&fork);
            assert_equal(&report, &facts, &before, false);
            assert_eq!(arenas(&report, "threads"), u64::from(threads) + 1);
            assert!(number(&report, "pause_us") > 0, "{report}");
            assert!(number(&report, "scan.snapshot_ns") > 0, "{report}");
            assert!(number(&report, "scan.expected_pause_ns") > 0, "{report}");
            assert_eq!(number(&report, "process.pid"), u64::from(target.child.id()));
            assert_eq!(children(target.child.id()), Vec::<String>::new());
        }
        // Stacks and registers are those of the process, and lead to the same blocks.
        let leaks = |options: &[&str]| {
            let report = target.scan(options);
            (number(&report, "leaked.blocks"), number(&report, "reachable.blocks"))
        };
        assert_eq!(leaks(&["--leaks", "--fork"]), leaks(&["--leaks"]));
        target.end();
    }
}

#[test]
fn a_busy_program_is_scanned_by_snapshots() {
    let program = fixture::program("scanned");
    let mut target = RandomProgram::start(&program, 3, 3, "w", "");
    target.answer();
    target.ask("r");
    for _ in 0..5 {
        assert_not_corrupted(&target.scan(&["--fork"]));
    }
}

#[test]
fn a_process_that_must_not_fork_is_not_made_to() {
    let program = fixture::program("unforkable");
    let reasons = [
        ("vfork", "waits for a child of vfork"),
        ("dontfork", "MADV_DONTFORK"),
        ("userfaultfd", "userfaultfd"),
        ("strict", "strict seccomp mode"),
        ("tasks", "RLIMIT_NPROC"),
    ];
    for (way, reason) in reasons {
        let mut child = Command::new(&program)
            .arg(way)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let lines = BufReader::new(child.stdout.take().unwrap()).lines();
        let said: Vec<String> =
            lines.map(Result::unwrap).take_while(|line| line != "ready").collect();
        if said.contains(&"way.made = 0".to_owned()) {
            end(child);
            pagewise_skip::skip_part(&Lack::Machine(&format!("it cannot be made here: {way}")));
            continue;
        }
        let pid = child.id();
        let is_ready = |path: &str, text: &str| {
            let path = format!("/proc/{pid}/{path}");
            std::fs::read_to_string(path).unwrap_or_default().contains(text)
        };
        while way == "vfork" && !is_ready("stat", ") D ")
            || way == "strict" && !is_ready("status", "Seccomp:\t1")
        {
            std::thread::sleep(std::time::Duration::from_millis(1));
        }
        let output =
            fixture::pagewise(&["heap", "scan", &pid.to_string(), "--fork", "--max-pause", "10s"]);
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(!output.status.success() && said.contains(reason), "{way}: {output:?}");
        // A child of vfork is the program's own.
        let own = usize::from(way == "vfork");
        assert_eq!(children(pid).len(), own, "{way}");
        let status = end(child);
        assert!(status.success(), "{way}: {status}");
    }
}

#[test]
fn growth_between_two_scans_is_by_size() {
    let program = fixture::program("scanned");
    let mut target = RandomProgram::start(&program, 0, 5, "", "");
    target.answer();
    let report = target.scan(&["--every", "10ms"]);
    assert_eq!(report["growth"]["live_bytes"], 0);
    assert_eq!(report["grown"].as_array().unwrap().len(), 0);
    assert!(number(&report, "growth.interval_ns") >= 10_000_000);
    target.end();
}

/// Waits until the first thread of a process has slept in `clock_nanosleep` for some time.
fn wait_until_asleep(pid: u32) {
    const CLOCK_NANOSLEEP: &str = "230 ";
    let is_asleep = || {
        let call = std::fs::read_to_string(format!("/proc/{pid}/syscall"));
        call.is_ok_and(|call| call.starts_with(CLOCK_NANOSLEEP))
    };
    let mut times = 0;
    for _ in 0..6000 {
        times = if is_asleep() { times + 1 } else { 0 };
        if times == 3 {
            return;
        }
        std::thread::sleep(std::time::Duration::from_millis(10));
    }
    panic!("{pid} does not wait for its second scan");
}

#[test]
fn the_growth_of_each_size_is_that_which_the_program_counts() {
    let program = fixture::program("scanned");
    let mut target = RandomProgram::start(&program, 2, 9, "mak", "");
    target.answer();
    let (facts, sizes) = (target.ask("r"), target.ask("l"));
    let pid = target.child.id().to_string();
    let words = ["heap", "scan", &pid, "--json", "--every", "4s", "--top", "all"];
    let mut command = Command::new(env!("CARGO_BIN_EXE_pagewise"));
    command.args(words).args(["--max-pause", "60s"]).stdout(Stdio::piped());
    let scan = command.spawn().unwrap();
    wait_until_asleep(scan.id());
    let (later_facts, later_sizes) = (target.ask("r"), target.ask("l"));
    let output = scan.wait_with_output().unwrap();
    let report: Value = serde_json::from_slice(&output.stdout).unwrap();
    let change = |before: u64, after: u64| after.cast_signed() - before.cast_signed();
    let grown = change(facts["bytes"], later_facts["bytes"]);
    assert_eq!(report["growth"]["live_bytes"].as_i64(), Some(grown));
    let count = |of: &ProgramFacts, size: &str| of.get(size).copied().unwrap_or(0);
    let all: std::collections::BTreeSet<&String> = sizes.keys().chain(later_sizes.keys()).collect();
    let changes = all.into_iter().map(|size| {
        (size.parse().unwrap(), change(count(&sizes, size), count(&later_sizes, size)))
    });
    let counted: BTreeMap<u64, i64> = changes.filter(|(_, change)| *change != 0).collect();
    let rows = report["grown"].as_array().unwrap().iter().map(|row| {
        (number(row, "size"), change(number(row, "blocks_before"), number(row, "blocks")))
    });
    assert_eq!(rows.collect::<BTreeMap<u64, i64>>(), counted);
    assert!(!counted.is_empty());
    target.end();
}

#[test]
fn a_saved_scan_gives_the_same_report() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("scan.json");
    let file = file.to_str().unwrap();
    let program = fixture::program("scanned");
    let mut target = RandomProgram::start(&program, 1, 5, "m", "");
    target.answer();
    target.ask("r");
    let live = target.scan(&["--save", file]);
    assert_eq!(json(&["heap", "scan", "--from", file, "--json"]), live);
    target.end();
}

#[test]
fn a_core_file_has_the_heap_of_the_process_that_it_was_made_of() {
    let folder = tempfile::tempdir().unwrap();
    let mut program = RandomProgram::start(&fixture::program("scanned"), 1, 7, "m", "");
    program.answer();
    let pid = program.child.id().to_string();
    let prefix = folder.path().join("core");
    let gcore = Command::new("gcore").arg("-o").arg(&prefix).arg(&pid).output();
    let Ok(made) = gcore else { return skip(&Lack::Tool("gcore")) };
    assert!(made.status.success(), "{made:?}");

    let core = format!("{}.{pid}", prefix.display());
    let (process, core_scan) =
        (program.scan(&[]), json(&["heap", "scan", "--core", &core, "--leaks", "--json"]));
    assert!(number(&process, "live.blocks") > 0, "{process}");
    for key in ["live.blocks", "live.bytes", "free.bytes"] {
        assert_eq!(number(&core_scan, key), number(&process, key), "{key}");
    }
    // A core file does not show which pages were resident, and the process may be gone.
    let page = fixture::pagewise(&["heap", "scan", "--core", &core]);
    let page = String::from_utf8(page.stdout).unwrap();
    assert!(page.contains("of heap are in the core file"), "{page}");
    assert!(!page.contains("malloc_trim(0)` would") && !page.contains("pagewise trim"), "{page}");
    program.end();
}

#[test]
fn a_command_is_scanned_at_its_exit() {
    let program = fixture::program("scanned");
    let (program, folder) = (program.to_str().unwrap(), tempfile::tempdir().unwrap());
    let path = folder.path().join("report.json");
    let mut child = Command::new(env!("CARGO_BIN_EXE_pagewise"))
        .args([
            "heap",
            "scan",
            "--json",
            "-o",
            path.to_str().unwrap(),
            "--",
            program,
            "2",
            "9",
            "m",
        ])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    child.stdin.take().unwrap().write_all(b"r").unwrap();
    let output = child.wait_with_output().unwrap();
    assert!(output.status.success());
    let said = String::from_utf8(output.stdout).unwrap();
    let words: Vec<&str> = said.lines().last().unwrap().split(' ').collect();
    let report: Value = serde_json::from_slice(&std::fs::read(&path).unwrap()).unwrap();
    let number_of = words.iter().position(|word| *word == "blocks").unwrap() + 1;
    let blocks: u64 = words[number_of].parse().unwrap();
    // Each thread has one block of the C library.
    assert_eq!(number(&report, "live.blocks"), blocks + 2);
    assert_eq!(number(&report, "pause_us"), 0);
}

/// Objects in memory, pointers of many kinds, and a pause in which the interpreter changes nothing.
const QUIET_SCRIPT: &str = r#"
import asyncio, json, random, signal, sqlite3, sys
class Thing:
    def __init__(self, i):
        self.i, self.name, self.parts = i, "thing %d" % i, [i, str(i)]
class Slotted:
    __slots__ = ("a", "b")
    def __init__(self, a):
        self.a, self.b = a, None
random.seed(1)
things = [Thing(i) for i in range(3000)]
slotted = [Slotted(i) for i in range(2000)]
parsed = {str(i): json.loads('{"a": [1, {"b": null}], "c": "%d"}' % i) for i in range(1000)}
db = sqlite3.connect(":memory:")
db.execute("create table t (a integer, b text)")
db.executemany("insert into t values (?, ?)", ((i, "x" * (i % 50)) for i in range(1000)))
rows = db.execute("select * from t").fetchall()
async def work(found):
    for i in range(100):
        await asyncio.sleep(0)
        found.append(i)
async def run():
    found = []
    await asyncio.gather(*(work(found) for _ in range(20)))
    return found
found = asyncio.run(run())
loop = asyncio.new_event_loop()
for i in range(0, 3000, 3):
    things[i] = None
bytes_of_all_sizes = [bytes(random.randrange(1, 600)) for i in range(5000)]
bytes_of_all_sizes = [it for i, it in enumerate(bytes_of_all_sizes) if i % 7]
import collections, gc
gc.collect()
gc.disable()
counts = collections.Counter()
for it in gc.get_objects():
    counts[type(it).__name__] += 1
for name in ("Thing", "function", "module", "type"):
    print("objects of type", name, counts[name], file=sys.stderr)
"#;

/// Counts of the interpreter on standard error, then a pause: neither allocates.
const COUNT_AND_PAUSE: &str = r#"
import signal, sys
pause, counts = signal.pause, sys._debugmallocstats
print("getallocatedblocks", sys.getallocatedblocks(), file=sys.stderr, flush=True)
counts()
pause()
"#;

/// Makes Python allocate arenas by `calloc` and never free them: the first half with mappings of
/// their own, the others inside of malloc's heap.
const NESTED_SCRIPT: &str = r#"
import ctypes
class ArenaAllocator(ctypes.Structure):
    _fields_ = [(name, ctypes.c_void_p) for name in ("context", "allocate", "free")]
libc = ctypes.CDLL(None)
address = lambda function: ctypes.cast(function, ctypes.c_void_p).value
allocator = ArenaAllocator(1, address(libc.calloc), address(libc.labs))
ctypes.pythonapi.PyObject_SetArenaAllocator(ctypes.byref(allocator))
texts = [str(i) * (i % 9) for i in range(60000)]
libc.mallopt(-3, 1 << 24)
texts += [str(i) * (i % 9) for i in range(60000)]
texts = [text for i, text in enumerate(texts) if i % 3]
"#;

/// Interpreters with a lock of their own, if this version has them.
const INTERPRETERS_SCRIPT: &str = r#"
import sys
try:
    import _interpreters as interpreters
except ImportError:
    import _xxsubinterpreters as interpreters
all = [interpreters.create() for _ in range(3)]
for one in all:
    interpreters.run_string(one, "texts = [str(i) * (i % 9) for i in range(20000)]")
for one in all:
    interpreters.run_string(one, "import sys; sys._debugmallocstats()")
"#;

/// Changes the number of live blocks of the pool that holds an object.
const DAMAGED_SCRIPT: &str = r#"
import ctypes, sys
class Thing:
    __slots__ = ("a",)
things = [Thing() for i in range(3000)]
pool = 16384 if sys.version_info >= (3, 10) else 4096
ctypes.c_uint32.from_address(id(things[1500]) & -pool).value += 40
"#;

/// A Python interpreter that waits.
struct QuietPython {
    child: Child,
    printed: std::path::PathBuf,
    _folder: tempfile::TempDir,
}

/// Returns the interpreters to test: those in `PAGEWISE_PYTHONS`, divided by colons, or `python3`.
fn pythons() -> Vec<String> {
    let named = std::env::var("PAGEWISE_PYTHONS").unwrap_or_else(|_| "python3".to_owned());
    let runs = |python: &&str| Command::new(python).arg("--version").output().is_ok();
    let found: Vec<String> = named.split(':').filter(runs).map(str::to_owned).collect();
    if found.is_empty() {
        skip(&Lack::Tool("python3"));
    }
    found
}

impl QuietPython {
    /// Runs a script, and then [`COUNT_AND_PAUSE`]. Returns `None` if the interpreter lacks a
    /// module.
    fn start(python: &str, script: &str) -> Option<QuietPython> {
        let folder = tempfile::tempdir().unwrap();
        let printed = folder.path().join("stderr");
        let mut command = Command::new(python);
        command.args(["-c", &format!("{script}\n{COUNT_AND_PAUSE}")]);
        command.stdin(Stdio::null()).stderr(std::fs::File::create(&printed).unwrap());
        for variable in ["PYTHONMALLOC", "PYTHONTRACEMALLOC", "PYTHONDEVMODE"] {
            command.env_remove(variable);
        }
        let mut python = QuietPython { child: command.spawn().unwrap(), printed, _folder: folder };
        while !python.is_paused() {
            if python.child.try_wait().unwrap().is_some() {
                let printed = python.printed();
                assert!(printed.contains("ModuleNotFoundError"), "{printed}");
                skip(&Lack::Machine("python3 lacks a module of the script"));
                return None;
            }
            std::thread::sleep(std::time::Duration::from_millis(10));
        }
        Some(python)
    }

    fn printed(&self) -> String {
        String::from_utf8_lossy(&std::fs::read(&self.printed).unwrap()).into_owned()
    }

    /// Returns true if the interpreter waits after it has printed its counts. Writing them to a
    /// file never makes it wait.
    fn is_paused(&self) -> bool {
        let status = format!("/proc/{}/status", self.child.id());
        let is_sleeping = std::fs::read_to_string(status).unwrap().contains("State:\tS");
        let printed = self.printed();
        is_sleeping
            && printed.split("getallocatedblocks ").nth(1).is_some_and(|counts| {
                counts.contains("# bytes in allocated blocks") && counts.contains("free Py")
            })
    }

    fn scan(&self, more: &[&str]) -> Value {
        let pid = self.child.id().to_string();
        let usual = ["heap", "scan", &pid, "--json", "--top", "all", "--max-pause", "60s"];
        json(&[&usual, more].concat())
    }

    /// Returns the numbers of live blocks by size, as the interpreter counts them, of all
    /// interpreters of the process.
    fn counted(&self) -> BTreeMap<u64, u64> {
        let mut sizes = BTreeMap::new();
        for line in self.printed().lines() {
            let numbers: Option<Vec<u64>> =
                line.split_whitespace().map(|word| word.parse().ok()).collect();
            if let Some([_, size, _, blocks, _]) = numbers.as_deref() {
                *sizes.entry(*size).or_default() += blocks;
            }
        }
        sizes.retain(|_, blocks| *blocks > 0);
        sizes
    }

    /// Returns `sys.getallocatedblocks()`.
    fn allocated(&self) -> u64 {
        let printed = self.printed();
        let line = printed.lines().find_map(|line| line.strip_prefix("getallocatedblocks "));
        line.unwrap().parse().unwrap()
    }
}

impl Drop for QuietPython {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn allocator<'r>(report: &'r Value, name: &str) -> &'r Value {
    let all = report["allocators"].as_array().unwrap();
    all.iter().find(|it| it["name"] == name).unwrap_or_else(|| panic!("no {name}: {all:?}"))
}

/// Compares the blocks of Python in a report with the interpreter's own counts.
fn assert_python_counts(report: &Value, python: &QuietPython) {
    let counted = python.counted();
    let sizes = report["sizes"].as_array().unwrap().iter();
    // Usable sizes of malloc's blocks below its mapping threshold are 8 more than a multiple of 16.
    let small =
        sizes.filter(|it| number(it, "size") <= 512 && number(it, "size").is_multiple_of(16));
    let found: BTreeMap<u64, u64> =
        small.map(|it| (number(it, "size"), number(it, "blocks"))).collect();
    assert!(counted.len() > 20, "{}", python.printed());
    assert_eq!(found, counted);
    let own = allocator(report, "CPython");
    assert_eq!(number(own, "blocks"), counted.values().sum::<u64>());
    let bytes: u64 = counted.iter().map(|(size, blocks)| size * blocks).sum();
    assert_eq!(number(own, "bytes"), bytes);
    for key in ["blocks", "bytes"] {
        let all = number(own, key) + number(allocator(report, "glibc"), key);
        assert_eq!(number(report, &format!("live.{key}")), all, "{key}");
    }
    for table in ["corruption", "gaps", "refused"] {
        assert_eq!(report[table].as_array().unwrap().len(), 0, "{}", report[table]);
    }
}

#[test]
fn blocks_of_python_are_those_that_the_interpreter_counts() {
    for python in pythons() {
        let Some(target) = QuietPython::start(&python, QUIET_SCRIPT) else { continue };
        let report = target.scan(&["--leaks"]);
        eprintln!("{python}");
        assert_python_counts(&report, &target);
        // Objects of more than 512 bytes, and other memory of the interpreter, are blocks of
        // malloc.
        let large = target.allocated() - number(allocator(&report, "CPython"), "blocks");
        assert!((1..=number(allocator(&report, "glibc"), "blocks")).contains(&large), "{large}");
        assert_eq!(number(&report, "leaked.blocks"), 0, "{}", report["leaks"]);
        let objects = |name: &str| {
            let all = report["objects"].as_array().unwrap().iter();
            all.filter(|it| it["type"] == name).map(|it| number(it, "objects")).sum::<u64>()
        };
        let printed = target.printed();
        let counted = printed.lines().filter_map(|line| line.strip_prefix("objects of type "));
        let counted: Vec<(&str, u64)> = counted
            .filter_map(|it| it.split_once(' '))
            .map(|it| (it.0, it.1.parse().unwrap()))
            .collect();
        assert!(counted.contains(&("Thing", 2000)) && counted.len() == 4, "{counted:?}");
        assert_eq!(counted.iter().map(|it| (it.0, objects(it.0))).collect::<Vec<_>>(), counted);
        assert_eq!(objects("Slotted"), 2000);
        let forked = target.scan(&["--fork"]);
        assert_eq!(forked["objects"], report["objects"]);
        // The garbage collector does not track objects without pointers.
        assert!(objects("dict") >= 2000 && objects("str") >= 5000 && objects("bytes") >= 4000);
    }
}

#[test]
fn a_core_file_of_python_has_the_blocks_of_the_process() {
    for python in pythons() {
        let Some(target) = QuietPython::start(&python, QUIET_SCRIPT) else { continue };
        let folder = tempfile::tempdir().unwrap();
        let pid = target.child.id().to_string();
        let prefix = folder.path().join("core");
        let gcore = Command::new("gcore").arg("-o").arg(&prefix).arg(&pid).output();
        let Ok(made) = gcore else { return skip(&Lack::Tool("gcore")) };
        assert!(made.status.success(), "{made:?}");
        let core = format!("{}.{pid}", prefix.display());
        let report = json(&["heap", "scan", "--core", &core, "--json", "--top", "all"]);
        assert_python_counts(&report, &target);
    }
}

#[test]
fn arenas_inside_of_blocks_of_malloc_count_once() {
    for python in pythons() {
        let Some(target) = QuietPython::start(&python, NESTED_SCRIPT) else { continue };
        let report = target.scan(&["--leaks"]);
        eprintln!("{python}");
        assert_python_counts(&report, &target);
        let own = allocator(&report, "CPython");
        let nested = |key: &str| number(own, &format!("nested_{key}"));
        assert!(nested("blocks") >= 4 && nested("bytes") >= 4 << 18, "{own}");
        let all = arenas(&report, "blocks") + number(&report, "mapped.blocks");
        assert_eq!(all - nested("blocks"), number(&report, "live.blocks"));
        assert_eq!(number(&report, "leaked.blocks"), 0, "{}", report["leaks"]);
    }
}

#[test]
fn each_interpreter_with_its_own_lock_has_arenas() {
    for python in pythons() {
        let Some(target) = QuietPython::start(&python, INTERPRETERS_SCRIPT) else { continue };
        let report = target.scan(&["--leaks"]);
        let all = report["arenas"].as_array().unwrap().iter();
        let interpreters = all.filter(|it| it["kind"] == "interpreter").count();
        eprintln!("{python}: {interpreters} with arenas of their own");
        assert!(matches!(interpreters, 1 | 4), "{}", report["arenas"]);
        assert_eq!(report["corruption"].as_array().unwrap().len(), 0);
        assert_eq!(number(&report, "leaked.blocks"), 0, "{}", report["leaks"]);
    }
}

#[test]
fn a_damaged_pool_of_python_is_reported() {
    for python in pythons() {
        let Some(target) = QuietPython::start(&python, DAMAGED_SCRIPT) else { continue };
        let report = target.scan(&[]);
        assert_eq!(report["corruption"].as_array().unwrap().len(), 1, "{}", report["corruption"]);
        assert_eq!(report["findings"][0]["id"], "heap-corrupted");
        // The free list of the pool shows its blocks.
        assert_eq!(report["gaps"].as_array().unwrap().len(), 0);
    }
}
