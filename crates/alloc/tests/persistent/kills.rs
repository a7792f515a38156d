//! A process is killed at random times, again and again. Each commit that it has reported must
//! persist, and no uncommitted change may.

use std::time::{Duration, Instant};

use pagewise_alloc::persistent::{Durability, PersistentOptions};

use crate::child::{HeapChild, SharedNumber};
use crate::ledger::{Expected, HeapLedger};
use crate::{HeapPath, SMALL};

/// Maximum number of words of a block: the largest blocks are runs of chunks.
const MAX_WORDS: usize = 6000;

/// Commits steps until the process is killed, and stores their number in `committed`. The number of
/// committed steps in the file equals `committed`, or exceeds it by one.
fn work(place: &HeapPath, options: &PersistentOptions, committed: &SharedNumber) -> i32 {
    let Ok(mut ledger) = place.open(options).and_then(|heap| HeapLedger::new(heap, MAX_WORDS))
    else {
        return 1;
    };
    loop {
        committed.set(ledger.done());
        if ledger.step().is_err() {
            return 2;
        }
    }
}

/// Waits by spinning, since the shortest sleep takes as long as about a dozen steps.
fn spin(most: Duration, is_over: impl Fn() -> bool) {
    let begin = Instant::now();
    while begin.elapsed() < most && !is_over() {
        std::hint::spin_loop();
    }
}

fn kill(times: u64, options: PersistentOptions) {
    let (place, committed) = (HeapPath::new(), SharedNumber::new());
    let wait = PersistentOptions { wait: true, ..options };
    let mut expected = Expected::NEW;
    let mut dice = 0x9e37_79b9_u64;
    for _ in 0..times {
        dice ^= dice << 13;
        dice ^= dice >> 7;
        dice ^= dice << 17;
        let said = committed.get();
        let child = HeapChild::run(|| work(&place, &options, &committed));
        // Kills one in four children while it opens the heap, and the others after a commit.
        if !dice.is_multiple_of(4) {
            spin(Duration::from_secs(50), || committed.get() > said);
        }
        spin(Duration::from_micros(dice % 1000), || false);
        child.kill();
        // Checks the heap after three of four kills. Otherwise the next child recovers the heap,
        // and may be killed meanwhile.
        if dice >> 60 < 12 {
            let ledger = HeapLedger::new(place.open(&wait).unwrap(), MAX_WORDS).unwrap();
            let (done, said) = (ledger.done(), committed.get());
            assert!(done == said || done == said + 1, "{said} were committed, {done} are there");
            expected.advance(done);
            ledger.check(&expected);
        }
    }
    let ledger = HeapLedger::new(place.open(&wait).unwrap(), MAX_WORDS).unwrap();
    assert!(ledger.done() > times / 2, "{} steps were done", ledger.done());
}

#[test]
fn a_process_that_is_killed_fifty_times_loses_nothing_that_it_committed() {
    kill(50, SMALL);
}

#[test]
fn a_process_that_is_killed_between_flushes_loses_nothing_that_it_committed() {
    kill(20, PersistentOptions { durability: Durability::Power, ..SMALL });
}

#[test]
#[ignore = "takes a minute or two"]
fn a_process_that_is_killed_ten_thousand_times_loses_nothing_that_it_committed() {
    kill(10_000, SMALL);
}
