//! `pools` and `explain` on pools of this test process itself, whose numbers are known.

use crate::fixture;

use std::alloc::Layout;
use std::collections::VecDeque;
use std::ffi::CString;
use std::mem::MaybeUninit;
use std::process::{Command, Stdio};
use std::ptr::NonNull;
use std::sync::{Mutex, MutexGuard, PoisonError};

use pagewise_alloc::persistent::{Persistent, PersistentOptions, Rel};
use pagewise_alloc::source::FixedBuffer;
use pagewise_alloc::{Fifo, Os, Ring, Stack, Tlsf};
use serde_json::Value;

use fixture::{json, number, pagewise};

/// Returns a lock that one test at a time holds: all tests of this process share its table of
/// pools.
fn alone() -> MutexGuard<'static, ()> {
    static TURN: Mutex<()> = Mutex::new(());
    TURN.lock().unwrap_or_else(PoisonError::into_inner)
}

fn report(command: &str) -> Value {
    report_of(&[command])
}

fn report_of(command: &[&str]) -> Value {
    let pid = std::process::id().to_string();
    json(&[command, &[pid.as_str(), "--json"]].concat())
}

/// Returns the one live pool.
fn living(report: &Value) -> &Value {
    let pools = report["pools"].as_array().unwrap();
    let living: Vec<&Value> = pools.iter().filter(|pool| pool["lives"] == true).collect();
    assert_eq!(living.len(), 1, "{report}");
    living[0]
}

fn fill(pool: &mut Tlsf<Os>, layout: Layout, count: usize) -> Vec<NonNull<u8>> {
    let take = |_| {
        let block = pool.allocate(layout).unwrap();
        // SAFETY: the pool allocated the block with this size, and no other code uses the block.
        unsafe { block.write_bytes(7, layout.size()) };
        block
    };
    (0..count).map(take).collect()
}

#[test]
fn a_running_pool_reports_allocated_and_freed_bytes() {
    let _turn = alone();
    let mut pool = Tlsf::<Os>::unguarded(Os);
    let layout = Layout::from_size_align(100, 8).unwrap();
    let blocks = fill(&mut pool, layout, 1000);
    for block in &blocks[..400] {
        // SAFETY: `pool` allocated the block with this layout, and the block is not used again.
        unsafe { pool.free(*block, layout) };
    }
    let report = report("pools");
    let found = living(&report);
    assert_eq!(found["kind"], "tlsf");
    // TLSF reports in slow paths, and it reports the usable sizes of its blocks.
    let expected = [
        ("pool_live", 60_000..=68_000),
        ("requested", 98_000..=112_000),
        ("returned", 36_000..=46_000),
        ("requests", 960..=1000),
        ("mean_size", 100..=112),
        ("pool_held", pool.held() as u64..=pool.held() as u64),
    ];
    for (key, range) in expected {
        assert!(range.contains(&number(found, key)), "{key}: {found}");
    }
    for key in ["pool_live", "pool_held"] {
        assert_eq!(number(&report, &format!("totals.{key}")), number(found, key), "{key}");
    }
    let ranges = found["ranges"].as_array().unwrap();
    let holds = |block: &NonNull<u8>| {
        let address = block.addr().get() as u64;
        ranges.iter().any(|r| (number(r, "start")..number(r, "end")).contains(&address))
    };
    assert!(blocks.iter().all(holds), "{ranges:?}");
    let sizes = found["size_classes"].as_array().unwrap();
    assert_eq!(sizes.len(), 1, "all are of one class: {sizes:?}");
    assert_eq!(number(&sizes[0], "up_to"), 128);
    let peak = number(found, "pool_peak");
    assert!((90_000..=112_000).contains(&peak), "{peak}");
    let points = found["series"].as_array().unwrap();
    assert!(points.len() > 10 && points.len() <= 65, "{points:?}");
    assert!(points.is_sorted_by_key(|point| number(point, "requests")));
    assert!(points.iter().all(|point| number(point, "live") <= number(point, "held")));
}

/// A stack pool reports its progress at the ends of its blocks only; a stack pool with canaries
/// reports it after each 32 KiB.
#[test]
fn a_running_stack_is_read_to_a_block() {
    let _turn = alone();
    let layout = Layout::from_size_align(100, 4).unwrap();
    for (mut stack, block) in [(Stack::unguarded(Os), 70_000), (Stack::guarded(Os), 64 << 10)] {
        stack.set_name("frames");
        stack.scope(|outer| {
            (0..50_000).for_each(|_| _ = outer.allocate(layout).unwrap());
            outer.scope(|inner| (0..30_000).for_each(|_| _ = inner.allocate(layout).unwrap()));
            let report = report("pools");
            let found = living(&report);
            assert_eq!(
                (found["kind"].as_str(), found["name"].as_str()),
                (Some("stack"), Some("frames"))
            );
            let about = |key: &str, expected: u64, within: u64| {
                let value = number(found, key);
                assert!(value.abs_diff(expected) <= within, "{key}: {value}, not {expected}");
            };
            about("pool_live", 5_000_000, block);
            about("pool_peak", 8_000_000, 70_000);
            about("requested", 8_000_000, block);
            about("returned", 3_000_000, block);
            about("requests", 80_000, block / 100);
            about("mean_size", 100, 0);
        });
    }
}

/// A persistent heap counts the sizes of its blocks exactly. Up to an eighth of its transactions
/// may be unreported, and up to 4 KiB of the log of a large transaction.
#[test]
fn a_running_persistent_heap_is_read_to_an_eighth_of_its_transactions() {
    let _turn = alone();
    let folder = tempfile::tempdir().unwrap();
    let name = CString::new(folder.path().join("heap").to_str().unwrap()).unwrap();
    // SAFETY: no other code has the file open.
    let mut heap = unsafe { Persistent::open(&name, &PersistentOptions::DEFAULT) }.unwrap();
    let layout = Layout::from_size_align(64, 8).unwrap();
    let told = || {
        let report = report("pools");
        let found = living(&report);
        assert_eq!(found["kind"], "persistent");
        ["requests", "requested", "returned"].map(|key| number(found, key))
    };
    let mut blocks: Vec<Rel<u8>> = Vec::new();
    for transactions in [1, 4, 100, 4000] {
        while blocks.len() < transactions {
            let mut tx = heap.begin();
            blocks.push(tx.alloc(layout).unwrap());
            tx.commit().unwrap();
        }
        let ([requests, requested, returned], most) = (told(), transactions as u64);
        assert!((most - most / 8..=most).contains(&requests), "{requests} of {most}");
        assert_eq!((requested, returned), (64 * requests, 0));
    }
    let mut tx = heap.begin();
    (0..10_000).for_each(|_| blocks.push(tx.alloc(layout).unwrap()));
    tx.commit().unwrap();
    let [requests, ..] = told();
    assert!((13_800..=14_000).contains(&requests), "{requests}");
    let mut tx = heap.begin();
    blocks.iter().for_each(|block| tx.free(*block).unwrap());
    tx.commit().unwrap();
    assert_eq!(told(), [14_000, 14_000 * 64, 14_000 * 64]);
}

#[test]
fn explain_shows_the_memory_of_a_pool_as_its_own() {
    let _turn = alone();
    let mut pool = Tlsf::<Os>::unguarded(Os);
    let layout = Layout::from_size_align(1 << 20, 8).unwrap();
    let _blocks = fill(&mut pool, layout, 64);
    let report = report("explain");
    let pools = report["pools"].as_array().unwrap();
    let ours = |pool: &&Value| pool["pool"] == "pagewise" && pool["name"] == "tlsf";
    let resident = pools.iter().find(ours).map_or(0, |pool| number(pool, "resident"));
    let held = pool.held() as u64;
    // The kernel merges neighboring mappings: a part of the pool may be in a mapping that is mostly
    // other memory.
    assert!((60 << 20..held + (8 << 20)).contains(&resident), "{resident} of {held}");
}

#[test]
fn an_ended_pool_is_reported() {
    let _turn = alone();
    let mut pool = Tlsf::<Os>::unguarded(Os);
    fill(&mut pool, Layout::new::<[u64; 4]>(), 10);
    drop(pool);
    let report = report("pools");
    let pools = report["pools"].as_array().unwrap();
    assert!(!pools.is_empty() && pools.iter().all(|pool| pool["lives"] == false), "{pools:?}");
    assert_eq!(number(&report, "totals.count"), 0);
}

#[test]
fn a_process_without_pools_is_reported() {
    let mut sleep = Command::new("sleep").arg("60").stdout(Stdio::null()).spawn().unwrap();
    let output = pagewise(&["pools", &sleep.id().to_string()]);
    sleep.kill().unwrap();
    sleep.wait().unwrap();
    assert_eq!(output.status.code(), Some(1));
    let error = String::from_utf8(output.stderr).unwrap();
    assert!(error.contains("no pools of pagewise's"), "{error}");
}

/// Asserts that a number of the one live pool differs from `expected` by at most `within`.
fn assert_about(report: &Value, key: &str, expected: u64, within: u64) {
    let value = number(living(report), key);
    assert!(value.abs_diff(expected) <= within, "{key}: {value}, not {expected}");
}

/// A FIFO pool reports its progress when it leaves a page; a pool with canaries reports it after
/// each 32 KiB.
#[test]
fn a_running_queue_is_read_to_two_pages() {
    let _turn = alone();
    let layout = Layout::from_size_align(104, 8).unwrap();
    for (pool, within) in [(Fifo::unguarded(Os), 2 << 16), (Fifo::guarded(Os), 64 << 10)] {
        let pool = pool.unwrap();
        pool.set_name("queue");
        let mut queue = VecDeque::new();
        for _ in 0..50_000 {
            queue.push_back(pool.allocate(layout).unwrap());
            if queue.len() > 5000 {
                // SAFETY: `pool` allocated the block with this layout, and the block is not used
                // again.
                unsafe { pool.free(queue.pop_front().unwrap(), layout) };
            }
        }
        let report = report("pools");
        assert_eq!(living(&report)["kind"], "fifo");
        assert_eq!(living(&report)["name"], "queue");
        assert_about(&report, "requested", 50_000 * 104, within);
        assert_about(&report, "returned", 45_000 * 104, within);
        assert_about(&report, "pool_live", 5000 * 104, within);
        assert_about(&report, "requests", 50_000, within / 104);
        for block in queue {
            // SAFETY: `pool` allocated the block with this layout, and the block is not used again.
            unsafe { pool.free(block, layout) };
        }
    }
}

/// A ring pool reports its progress when it leaves a block. If its frames are shorter than a block,
/// its number of requests is the number of frames.
#[test]
fn a_running_ring_is_read_to_two_blocks() {
    let _turn = alone();
    let mut ring = Ring::unguarded(Os).unwrap();
    ring.set_name("jobs");
    let kept: Vec<_> =
        (0..10_000).map(|_| ring.message(|frame| frame.alloc([0_u8; 640]))).collect();
    for _ in 0..10_000 {
        ring.message(|frame| frame.alloc([0_u8; 640]));
    }
    let report = report("pools");
    assert_eq!(living(&report)["name"], "jobs");
    // Blocks have 64 KiB to 1 MiB. Blocks are longer if the ring has more of them.
    assert_about(&report, "requested", 20_000 * 640, 2 << 20);
    assert_about(&report, "pool_live", 10_000 * 640, 2 << 20);
    assert_about(&report, "requests", 20_000, (2 << 20) / 640);
    drop(kept);
}

#[test]
fn heap_scan_walks_pools_and_counts_nested_memory_once() {
    let _turn = alone();
    let mut pool = Tlsf::<Os>::unguarded(Os);
    let layout = Layout::from_size_align(100, 8).unwrap();
    let blocks = fill(&mut pool, layout, 1000);
    for block in &blocks[..400] {
        // SAFETY: `pool` allocated the block with this layout, and the block is not used again.
        unsafe { pool.free(*block, layout) };
    }
    // Memory from malloc, which a stack pool divides into blocks.
    let mut buffer = vec![MaybeUninit::<u8>::uninit(); 1 << 20];
    let mut stack = Stack::unguarded(FixedBuffer::new(&mut buffer));
    stack.set_name("frames");
    stack.scope(|frame| {
        (0..1000).for_each(|_| _ = frame.allocate(layout).unwrap());
        let report = report_of(&["heap", "scan", "--leaks", "--max-pause", "10s"]);
        let arenas = report["arenas"].as_array().unwrap();
        let of = |kind: &str| arenas.iter().find(|it| it["kind"] == kind).unwrap();
        let tlsf = of("tlsf");
        assert_eq!(number(tlsf, "held"), pool.held() as u64);
        // The pool keeps 32 freed blocks of a size for its next requests, and merges these blocks
        // later.
        assert!((600..=634).contains(&number(tlsf, "blocks")), "{tlsf}");
        // Each block has a header word, and 16 bytes more if the free bytes behind it are too few
        // for a block.
        let sizes = number(tlsf, "blocks") * 112..=number(tlsf, "blocks") * 128;
        assert!(sizes.contains(&number(tlsf, "live")), "{tlsf}");
        assert_eq!(
            number(tlsf, "held"),
            number(tlsf, "live") + number(tlsf, "free") + number(tlsf, "own")
        );
        let frames = of("stack frames");
        assert!(number(frames, "live") >= 100_000 && number(frames, "blocks") >= 1, "{frames}");
        let pools = report["allocators"].as_array().unwrap();
        let pools = pools.iter().find(|it| it["name"] == "pagewise pools").unwrap();
        assert_eq!((number(pools, "nested_blocks"), number(pools, "nested_bytes") >> 20), (1, 1));
        let all = arenas.iter().map(|it| number(it, "blocks")).sum::<u64>();
        assert_eq!(
            all + number(&report, "mapped.blocks") - 1,
            number(&report, "live.blocks"),
            "{report}"
        );
        assert_eq!(report["corruption"].as_array().unwrap().len(), 0);
        let leaks = report["leaks"].as_array().unwrap();
        let of_pool = |leak: &&Value| number(leak, "size") == 112;
        assert_eq!(leaks.iter().filter(of_pool).count(), 0, "{leaks:?}");
    });
}
