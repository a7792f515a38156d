//! Heaps of real programs with damaged words: each walk ends, reads a bounded number of bytes, and
//! finds blocks in mapped memory only.
#![expect(
    clippy::unwrap_used,
    clippy::print_stderr,
    reason = "a test that cannot go on may panic anywhere, and reports its counts"
)]

use std::cell::Cell;
use std::collections::BTreeMap;
use std::fs;
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use pagewise_model::heap_graph::not_recorded;
use pagewise_model::{AddrRange, Mapping, PageSize, Pid};
use pagewise_proc::ProcRoot;
use pagewise_proc::data_symbols::NamedVariables;
use pagewise_scan::ScanError;
use pagewise_scan::graph::BlockRounding;
use pagewise_scan::live::{CopyRequest, CopyScope, ProcessCopy, copy_running};
use pagewise_scan::memory::{Memory, ScannedThread};
use pagewise_scan::reachability::{GraphRequest, ThreadFrames, heap_graph};
use pagewise_scan::walk::{AllocatorWalk, walk_heap};
use pagewise_skip::{Lack, skip};
use proptest::prelude::*;
use proptest::test_runner::TestRunner;

const SOURCE: &str = r#"
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { BLOCKS = 3000 };
static char *blocks[2][BLOCKS];
static pthread_barrier_t made;

static void fill(char **kept) {
    unsigned random = 12345;
    for (int round = 0; round < 2; round++)
        for (int at = 0; at < BLOCKS; at++) {
            random = random * 1103515245 + 12345;
            size_t size = 1 + (random >> 16) % (at % 500 == 0 ? 400000 : 600);
            if (round == 1 && at % 3 == 0) {
                free(kept[at]);
                kept[at] = NULL;
            } else if (round == 0) {
                kept[at] = memset(malloc(size), 0, size);
                if (at > 0 && size >= sizeof(char *))
                    memcpy(kept[at], &kept[at - 1], sizeof(char *));
            }
        }
}

static void *thread(void *unused) {
    fill(blocks[1]);
    pthread_barrier_wait(&made);
    for (;;)
        pause();
    return unused;
}

int main(void) {
    pthread_t other;
    pthread_barrier_init(&made, NULL, 2);
    pthread_create(&other, NULL, thread, NULL);
    fill(blocks[0]);
    pthread_barrier_wait(&made);
    puts("ready");
    fflush(stdout);
    while (getchar() != EOF)
        ;
    return 0;
}
"#;

const PYTHON: &str = "
import sys
kept = [{str(at): [at, float(at), (at, 'text' * (at % 9))]} for at in range(3000)]
del kept[::3]
print('ready', flush=True)
sys.stdin.read()
";

/// Bytes that a call of [`Memory`] counts for, besides those that it reads.
const CALL_COST: u64 = 64;
/// Damaged heaps of each allocator.
const CASES: u32 = 40;

/// A program that is killed when the value is dropped.
struct WaitingProgram(Child);

impl Drop for WaitingProgram {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// The memory of a program that has filled its heap.
fn copied(command: &mut Command) -> Option<ProcessCopy> {
    let command = command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null());
    let mut program = WaitingProgram(command.spawn().ok()?);
    let mut line = String::new();
    BufReader::new(program.0.stdout.as_mut()?).read_line(&mut line).unwrap();
    assert_eq!(line, "ready\n");
    let request = CopyRequest {
        scope: CopyScope::HeapAndRoots,
        max_pause: Duration::from_secs(60),
        busy_code: &[],
        announce: &|_| {},
    };
    Some(copy_running(&ProcRoot::live(), Pid(program.0.id()), &request).unwrap())
}

/// A change of a word.
#[derive(Clone, Debug)]
enum WordChange {
    Value(u64),
    /// The address of another word.
    PointTo(prop::sample::Index),
    /// The value of another word.
    CopyOf(prop::sample::Index),
    Add(i8),
    Flip(u32),
}

fn word_change() -> impl Strategy<Value = WordChange> {
    use WordChange::{Add, CopyOf, Flip, PointTo, Value};
    prop_oneof![
        prop_oneof![Just(0), Just(u64::MAX), 0..0x1_0000_u64, any::<u64>()].prop_map(Value),
        any::<prop::sample::Index>().prop_map(PointTo),
        any::<prop::sample::Index>().prop_map(CopyOf),
        any::<i8>().prop_map(Add),
        (0..64_u32).prop_map(Flip),
    ]
}

/// Memory with changed words. Counts what is read.
struct DamagedMemory<'a> {
    whole: &'a ProcessCopy,
    changed: BTreeMap<u64, u64>,
    cost: AtomicU64,
}

impl<'a> DamagedMemory<'a> {
    /// `words` are the addresses of words that are not zero.
    fn new(
        whole: &'a ProcessCopy,
        words: &[u64],
        changes: &[(prop::sample::Index, WordChange)],
    ) -> DamagedMemory<'a> {
        let old = |address: u64| whole.word(address).unwrap();
        let changed = changes.iter().map(|(at, change)| {
            let address = *at.get(words);
            let new = match change {
                WordChange::Value(value) => *value,
                WordChange::PointTo(other) => *other.get(words),
                WordChange::CopyOf(other) => old(*other.get(words)),
                WordChange::Add(difference) => {
                    old(address).wrapping_add_signed(8 * i64::from(*difference))
                }
                WordChange::Flip(bit) => old(address) ^ 1 << bit,
            };
            (address, new)
        });
        DamagedMemory { whole, changed: changed.collect(), cost: AtomicU64::new(0) }
    }

    fn patch(&self, start: u64, bytes: &mut [u8]) {
        let end = start + bytes.len() as u64;
        for (address, word) in self.changed.range(start.saturating_sub(7)..end) {
            for (byte, at) in word.to_le_bytes().into_iter().zip(*address..) {
                let at = at.checked_sub(start).and_then(|at| usize::try_from(at).ok());
                if let Some(old) = at.and_then(|at| bytes.get_mut(at)) {
                    *old = byte;
                }
            }
        }
    }

    fn add_cost(&self, bytes: usize) {
        self.cost.fetch_add(CALL_COST + bytes as u64, Ordering::Relaxed);
    }
}

impl Memory for DamagedMemory<'_> {
    fn mappings(&self) -> &[Mapping] {
        self.whole.mappings()
    }

    fn threads(&self) -> &[ScannedThread] {
        self.whole.threads()
    }

    fn visit(&self, range: AddrRange, each: &mut dyn FnMut(u64, &[u8])) {
        self.whole.visit(range, &mut |start, bytes| {
            self.add_cost(bytes.len());
            if self.changed.range(start..start + bytes.len() as u64).next().is_none() {
                return each(start, bytes);
            }
            let mut bytes = bytes.to_vec();
            self.patch(start, &mut bytes);
            each(start, &bytes);
        });
    }

    fn read(&self, address: u64, into: &mut [u8]) -> bool {
        self.add_cost(into.len());
        let is_read = self.whole.read(address, into);
        if is_read {
            self.patch(address, into);
        }
        is_read
    }

    fn read_constant(&self, address: u64, into: &mut [u8]) -> bool {
        self.add_cost(into.len());
        self.whole.read_constant(address, into) && {
            self.patch(address, into);
            true
        }
    }
}

/// Walks a heap, and searches its pointers.
fn scanned(memory: &DamagedMemory<'_>, page_size: PageSize) -> Result<AllocatorWalk, ScanError> {
    let walk = walk_heap(memory, page_size)?;
    let request = GraphRequest {
        retained: true,
        why: walk.blocks.last().map(|block| block.start),
        variables: &|_| NamedVariables::default(),
        frames: &|_| ThreadFrames::default(),
        types: None,
        allocations: &|_| Err(not_recorded()),
        recorder: &[],
        demangle: &str::to_owned,
    };
    let rounding = BlockRounding::of(&walk.heap.allocators);
    let graph = heap_graph(memory, &walk.blocks, &walk.managed, rounding, &request)?;
    assert_eq!(graph.reachable.blocks + graph.leaked.blocks, walk.blocks.len() as u64);
    Ok(walk)
}

/// Addresses of the words that are not zero.
fn words(copy: &ProcessCopy) -> Vec<u64> {
    let mut words = Vec::new();
    copy.visit(AddrRange { start: 0, end: u64::MAX }, &mut |start, bytes| {
        let all = bytes.as_chunks::<8>().0.iter().zip((start..).step_by(8));
        words.extend(all.filter(|(word, _)| **word != [0; 8]).map(|(_, address)| address));
    });
    words
}

/// Scans damaged copies of a heap of an allocator.
fn walks_of_damaged_heaps_end(allocator: &str, copy: &ProcessCopy) {
    let words = words(copy);
    let whole = DamagedMemory::new(copy, &words, &[]);
    let walk = scanned(&whole, copy.page_size).unwrap();
    let names: Vec<&str> = walk.heap.allocators.iter().map(|it| it.name.as_str()).collect();
    assert!(names.contains(&allocator), "{allocator}: {names:?}");
    assert!(walk.blocks.len() > 1500, "{allocator}: {} blocks", walk.blocks.len());
    let usual = whole.cost.into_inner();
    let changes = prop::collection::vec((any::<prop::sample::Index>(), word_change()), 1..200);
    let mut runner = TestRunner::new(ProptestConfig {
        cases: CASES,
        failure_persistence: None,
        max_shrink_iters: 200,
        ..ProptestConfig::default()
    });
    let (walked, most) = (Cell::new(0), Cell::new(0));
    let result = runner.run(&changes, |changes| {
        let damaged = DamagedMemory::new(copy, &words, &changes);
        match scanned(&damaged, copy.page_size) {
            Ok(walk) => {
                walked.set(walked.get() + 1);
                prop_assert!(walk.blocks.len() as u64 <= 8 * words.len() as u64);
                for at in 0..walk.blocks.len() {
                    let block = walk.blocks.get(at).unwrap();
                    let is_in = copy.mappings().iter().any(|it| it.range.contains(block.start));
                    prop_assert!(is_in, "{:?}", block);
                }
            }
            Err(ScanError::NoHeap(_) | ScanError::NotWalked { .. }) => {}
            Err(other) => return Err(TestCaseError::fail(format!("{other}"))),
        }
        let cost = damaged.cost.into_inner();
        most.set(cost.max(most.get()));
        prop_assert!(cost < 20 * usual + (64 << 20), "{cost} instead of {usual}");
        Ok(())
    });
    let (walked, most) = (walked.get(), most.get());
    eprintln!("{allocator}: {walked} of {CASES} walked; cost {usual}, at most {most}");
    result.unwrap_or_else(|error| panic!("{allocator}: {error}"));
    assert!(walked > 0, "{allocator}: no damaged heap was walked");
}

/// Compiles the program. `None`, after recording a skip, without the compiler.
fn compiled(compiler: &'static str, folder: &Path) -> Option<std::path::PathBuf> {
    let (source, program) = (folder.join("filled.c"), folder.join(compiler));
    fs::write(&source, SOURCE).unwrap();
    let output =
        Command::new(compiler).args(["-O1", "-pthread", "-o"]).arg(&program).arg(source).output();
    let Ok(output) = output else {
        skip(&Lack::Tool(compiler));
        return None;
    };
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    Some(program)
}

#[test]
fn walks_of_damaged_heaps_of_glibc_and_musl_end() {
    let folder = tempfile::tempdir().unwrap();
    for (allocator, compiler) in [("glibc", "cc"), ("musl", "musl-gcc")] {
        let Some(program) = compiled(compiler, folder.path()) else { continue };
        walks_of_damaged_heaps_end(allocator, &copied(&mut Command::new(program)).unwrap());
    }
}

fn walks_with_library_end(allocator: &str, library: &'static str) {
    if !fs::exists(library).unwrap() {
        return skip(&Lack::Tool(library));
    }
    let folder = tempfile::tempdir().unwrap();
    let Some(program) = compiled("cc", folder.path()) else { return };
    let copy = copied(Command::new(program).env("LD_PRELOAD", library)).unwrap();
    walks_of_damaged_heaps_end(allocator, &copy);
}

#[test]
fn walks_of_damaged_heaps_of_jemalloc_end() {
    walks_with_library_end("jemalloc", "/usr/lib/x86_64-linux-gnu/libjemalloc.so.2");
}

#[test]
fn walks_of_damaged_heaps_of_tcmalloc_end() {
    walks_with_library_end("tcmalloc", "/usr/lib/x86_64-linux-gnu/libtcmalloc_minimal.so.4");
}

#[test]
fn walks_of_damaged_heaps_of_mimalloc_end() {
    walks_with_library_end("mimalloc", "/usr/lib/x86_64-linux-gnu/libmimalloc.so.2");
}

#[test]
fn walks_of_damaged_heaps_of_cpython_end() {
    match copied(Command::new("python3").args(["-c", PYTHON])) {
        Some(copy) => walks_of_damaged_heaps_end("CPython", &copy),
        None => skip(&Lack::Tool("python3")),
    }
}
