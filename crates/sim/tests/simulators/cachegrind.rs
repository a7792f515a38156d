//! L1D misses compared with valgrind's cachegrind: a C program runs under lackey and under
//! cachegrind, and both runs are deterministic.

use std::path::Path;
use std::process::Command;

use pagewise_sim::geometry::{CacheShape, CacheShapes};
use pagewise_sim::lackey::LackeyReader;
use pagewise_sim::{Levels, MemoryAccess, ReadWriteCounts, RecencyPolicy};
use pagewise_skip::{Lack, skip};

const PROGRAM: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../fixtures/programs/strides.c");

const LINE: u64 = 64;

/// Sizes in KiB and numbers of ways: direct-mapped, fully associative, and typical of CPUs.
/// cachegrind supports only powers of two.
const SHAPES: [(u64, usize); 5] = [(32, 8), (4, 1), (4, 64), (64, 2), (128, 16)];

/// Runs a tool of valgrind on a program. The environment is empty, because it would change the
/// addresses on the program's stack.
fn valgrind(tool: &str, options: &[String], program: &Path) -> bool {
    let mut command = Command::new("valgrind");
    command.arg(format!("--tool={tool}")).args(options).arg(program);
    command.env_clear().env("PATH", std::env::var_os("PATH").unwrap_or_default());
    command.output().is_ok_and(|output| output.status.success())
}

/// Accesses of the program, recorded by lackey.
fn trace(program: &Path, folder: &Path) -> Option<Vec<MemoryAccess>> {
    let file = folder.join("trace");
    let options = ["--trace-mem=yes".to_owned(), format!("--log-file={}", file.display())];
    if !valgrind("lackey", &options, program) {
        return None;
    }
    let text = std::fs::read_to_string(file).unwrap();
    // cachegrind treats an access that is larger than a line as an access of one line.
    let clamped: Vec<String> = text.lines().map(clamp).collect();
    let mut reader = LackeyReader::default();
    let accesses = reader.read(format!("{}\n", clamped.join("\n")).as_bytes()).to_vec();
    assert_eq!(reader.lines().unknown, 0);
    Some(accesses)
}

fn clamp(line: &str) -> String {
    match line.split_once(',').map(|(place, size)| (place, size.parse::<u64>())) {
        Some((place, Ok(size))) => format!("{place},{}", size.min(LINE)),
        _ => line.to_owned(),
    }
}

/// Numbers of accesses and of L1D misses that cachegrind reports.
fn cachegrind(
    kib: u64,
    ways: usize,
    program: &Path,
    folder: &Path,
) -> Option<[ReadWriteCounts; 2]> {
    let file = folder.join("counts");
    let options = [
        "--cache-sim=yes".to_owned(),
        format!("--D1={},{ways},{LINE}", kib << 10),
        format!("--LL={},16,{LINE}", 8 << 20),
        format!("--cachegrind-out-file={}", file.display()),
    ];
    if !valgrind("cachegrind", &options, program) {
        return None;
    }
    let text = std::fs::read_to_string(file).unwrap();
    let numbers = |line: &str| -> Vec<u64> {
        let found = text.lines().find_map(|l| l.strip_prefix(line)).unwrap();
        found.split_whitespace().map(|number| number.parse().unwrap()).collect()
    };
    let events = "events: Ir I1mr ILmr Dr D1mr DLmr Dw D1mw DLmw";
    assert!(text.lines().any(|line| line.trim() == events), "another cachegrind");
    let sums = numbers("summary:");
    Some(
        [(3, 6), (4, 7)]
            .map(|(reads, writes)| ReadWriteCounts { reads: sums[reads], writes: sums[writes] }),
    )
}

#[test]
fn l1d_misses_are_those_of_cachegrind_to_the_last() {
    let folder = tempfile::tempdir().unwrap();
    let program = folder.path().join("strides");
    let built = Command::new("cc").args(["-O1", "-o"]).arg(&program).arg(PROGRAM).status();
    if !built.is_ok_and(|status| status.success()) {
        return skip(&Lack::Tool("cc"));
    }
    let Some(accesses) = trace(&program, folder.path()) else {
        return skip(&Lack::Ability { of: "valgrind", what: "does not run lackey" });
    };
    for (kib, ways) in SHAPES {
        let Some([all, missed]) = cachegrind(kib, ways, &program, folder.path()) else {
            return skip(&Lack::Ability { of: "valgrind", what: "does not run cachegrind" });
        };
        let shapes =
            CacheShapes { l1d: CacheShape { size: kib << 10, ways, line: LINE }, l2: None };
        let mut caches = Levels::caches(&shapes, RecencyPolicy::Lru).unwrap();
        caches.play(&accesses);
        assert_eq!(ReadWriteCounts::count_block(&accesses), all);
        assert_eq!(caches.counts().first, missed, "{kib} KiB, {ways} ways");
        assert!(missed.total() > 1_000, "a program that misses: {missed:?}");
        println!("{kib} KiB, {ways} ways: {} misses of {}", missed.total(), all.total());
    }
}
