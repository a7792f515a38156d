//! Page faults of this very process, which touches pages that it counts.

mod common;

use std::collections::BTreeMap;
use std::sync::Mutex;
use std::time::Duration;

use pagewise_proc::ProcRoot;
use pagewise_sys::madvise::Advice;
use pagewise_sys::perf_event::{Mode, PerfEvent, PerfType};
use pagewise_sys::perf_ring::{Carries, Sampling};
use pagewise_sys::region::AlignedRegion;
use pagewise_trace::{
    PerfRecord, RecordedStacks, SessionEvent, Spaces, StackId, Symbols, TraceSession, TraceTarget,
};

/// `PERF_COUNT_SW_PAGE_FAULTS`.
const FAULTS: PerfEvent = PerfEvent::new(PerfType::SOFTWARE, 2);
const PAGES: usize = 5000;
/// Serializes the tests: each test records the faults of all threads of this process.
static ALONE: Mutex<()> = Mutex::new(());

#[inline(never)]
fn touches_each_page(bytes: &mut [u8], page: usize) {
    let mut at = 0;
    while at < bytes.len() {
        bytes[at] = 1;
        at += page;
    }
}

fn faults() -> SessionEvent {
    let carries = Carries { address: true, callers: 32, ..Carries::default() };
    let mode = Mode { exclude_kernel: true, ..Mode::default() };
    let sampling =
        Sampling { event: FAULTS, every: 1, carries, mode, tasks: true, wake_at: 1 << 16 };
    SessionEvent { name: "page faults".into(), sampling }
}

#[test]
fn each_fault_of_each_thread_comes_once_in_order_with_its_function_and_mapping() {
    let _alone = ALONE.lock();
    let pid = std::process::id();
    let mut session = match TraceSession::open(TraceTarget::Process(pid), &[faults()], 1 << 20) {
        Ok(session) => session,
        Err(_) => return common::skip_without_events(),
    };
    let (mut spaces, mut stacks) = (Spaces::default(), RecordedStacks::default());
    spaces.read(&ProcRoot::live(), pid);
    session.enable().unwrap();
    let page = usize::try_from(pagewise_sys::system::page_size()).unwrap();
    // A new thread inherits the events, so it needs no synchronization with their start.
    let child = std::thread::spawn(move || {
        let mut region = AlignedRegion::map(PAGES * page, page).unwrap();
        region.advise(Advice::NoHugePage).unwrap();
        touches_each_page(region.bytes(), page);
        region.bytes().as_ptr().addr() as u64
    });
    let (mut last, mut found) = (0, BTreeMap::new());
    let mut take = |record: PerfRecord<'_>| {
        spaces.note(&record);
        let PerfRecord::Sample(sample) = record else { return };
        assert!(sample.time >= last, "out of order");
        last = sample.time;
        let region =
            spaces.find(sample.pid, sample.address).map(|it| (it.start, it.end, it.is_file()));
        let stack = stacks.number(&spaces, sample.pid, sample.callers());
        *found.entry((stack, region)).or_insert(0) += 1;
    };
    while !child.is_finished() {
        session.wait(Duration::from_millis(10));
        session.drain(&mut take);
    }
    let start = child.join().unwrap();
    session.finish(&mut take);
    assert_eq!(session.lost(), 0);
    let mut symbols = Symbols::default();
    let mut is_ours = |stack: StackId| {
        let places = &stacks.places()[stack.index()];
        let frames = places.iter().flat_map(|place| symbols.frames(place).to_vec());
        let mut names = frames.filter_map(|frame| Some((frame.function?, frame.line?)));
        names.any(|(name, line)| {
            name.contains("touches_each_page") && line.file.ends_with("session.rs")
        })
    };
    // The kernel reports a mapping that it has merged with its neighbors.
    let ours = found.iter().filter(|((stack, region), _)| {
        region.is_some_and(|(first, end, is_file)| (first..end).contains(&start) && !is_file)
            && is_ours(*stack)
    });
    assert_eq!(ours.map(|(_, count)| count).sum::<usize>(), PAGES, "{found:?}");
}

#[test]
fn events_of_several_batches_arrive_complete_and_in_order() {
    const THREADS: usize = 4;
    const EACH: usize = 30_000;
    let _alone = ALONE.lock();
    let pid = std::process::id();
    // Each fault has about 300 bytes. All faults together take more bytes than are read from a ring
    // at a time, but fit into the ring.
    let mut wanted = faults();
    wanted.sampling.carries = Carries { stack: 160, ..wanted.sampling.carries };
    let mut session = match TraceSession::open(TraceTarget::Process(pid), &[wanted], 64 << 20) {
        Ok(session) => session,
        Err(_) => return common::skip_without_events(),
    };
    session.enable().unwrap();
    let page = usize::try_from(pagewise_sys::system::page_size()).unwrap();
    let threads: Vec<_> = (0..THREADS)
        .map(|_| {
            std::thread::spawn(move || {
                let mut region = AlignedRegion::map(EACH * page, page).unwrap();
                region.advise(Advice::NoHugePage).unwrap();
                touches_each_page(region.bytes(), page);
                let start = region.bytes().as_ptr().addr() as u64;
                start..start + (EACH * page) as u64
            })
        })
        .collect();
    let ranges: Vec<_> = threads.into_iter().map(|it| it.join().unwrap()).collect();
    let (mut last, mut found) = (0, 0);
    let mut take = |record: PerfRecord<'_>| {
        let PerfRecord::Sample(sample) = record else { return };
        assert!(sample.time >= last, "out of order");
        last = sample.time;
        // A thread may get the addresses that another thread has unmapped, so one address can be in
        // two ranges.
        found += usize::from(ranges.iter().any(|range| range.contains(&sample.address)));
    };
    session.drain(&mut take);
    session.finish(&mut take);
    assert_eq!(session.lost(), 0);
    assert!(found >= THREADS * EACH, "{found}");
}
