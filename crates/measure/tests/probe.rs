//! Measures regions whose cost is known.

#![allow(clippy::unwrap_used, reason = "these are tests, their helpers too")]

use std::hint::black_box;
use std::time::{Duration, Instant};

use pagewise_measure::events::choose;
use pagewise_measure::probe::{CodeProbe, Cost, ProbeOptions, ProbeScope};
use pagewise_model::Absent;
use pagewise_skip::{Lack, skip};
use pagewise_sys::madvise::Advice;
use pagewise_sys::region::AlignedRegion;

const PAGES: usize = 300;

fn options(events: &str) -> ProbeOptions {
    ProbeOptions { events: choose(events).unwrap(), ..ProbeOptions::default() }
}

/// Mapped memory without resident pages, which never gets huge pages.
fn fresh(pages: usize) -> (AlignedRegion, usize) {
    let page = usize::try_from(pagewise_sys::system::page_size()).unwrap();
    let mut region = AlignedRegion::map(pages * page, page).unwrap();
    region.advise(Advice::NoHugePage).unwrap();
    (region, page)
}

fn touch((region, page): &mut (AlignedRegion, usize)) {
    region.bytes().iter_mut().step_by(*page).for_each(|byte| *byte = 1);
}

/// False if this user may count no events (`kernel.perf_event_paranoid` is 3 on Debian): the test
/// is then skipped.
fn may_count() -> bool {
    let mut probe = CodeProbe::open(&options("page_faults")).unwrap();
    let ((), cost) = probe.measure(|| ()).unwrap();
    let Err(Absent::NotPermitted(needs)) = cost.get("page_faults").unwrap() else { return true };
    skip(&Lack::Machine(&format!("this user may count no events: that needs {needs}")));
    false
}

fn value(cost: &Cost, name: &str) -> u64 {
    cost.get(name).unwrap().as_ref().unwrap().value
}

#[test]
fn touching_fresh_pages_is_exactly_as_many_minor_faults_by_every_count() {
    if !may_count() {
        return;
    }
    let mut probe = CodeProbe::open(&options("minor_faults,page_faults,major_faults")).unwrap();
    for _ in 0..5 {
        let mut memory = fresh(PAGES);
        let ((), cost) = probe.measure(|| touch(&mut memory)).unwrap();
        for name in ["minor_faults", "page_faults", "minflt"] {
            assert_eq!(value(&cost, name), PAGES as u64, "{name}");
        }
        assert_eq!((value(&cost, "major_faults"), value(&cost, "majflt")), (0, 0));
    }
}

#[test]
fn an_empty_region_has_no_faults_and_little_time_and_says_so() {
    if !may_count() {
        return;
    }
    let probe = CodeProbe::open(&options("page_faults")).unwrap();
    let overhead = probe.overhead();
    assert_eq!((value(overhead, "page_faults"), value(overhead, "minflt")), (0, 0));
    assert!(overhead.wall() < Duration::from_millis(1), "{:?}", overhead.wall());
}

#[test]
fn events_between_two_regions_count_for_neither() {
    if !may_count() {
        return;
    }
    let mut probe = CodeProbe::open(&options("page_faults")).unwrap();
    probe.start().unwrap();
    let first = probe.stop().unwrap();
    touch(&mut fresh(PAGES));
    probe.start().unwrap();
    let second = probe.stop().unwrap();
    assert_eq!((value(&first, "page_faults"), value(&second, "page_faults")), (0, 0));
}

#[test]
fn a_region_begun_anew_forgets_what_was_before_as_after_a_panic() {
    if !may_count() {
        return;
    }
    let mut probe = CodeProbe::open(&options("page_faults")).unwrap();
    let mut broken = fresh(PAGES);
    let region = std::panic::AssertUnwindSafe(|| {
        probe.measure(|| {
            touch(&mut broken);
            panic!("a region that fails");
        })
    });
    assert!(std::panic::catch_unwind(region).is_err());
    let mut memory = fresh(7);
    let ((), cost) = probe.measure(|| touch(&mut memory)).unwrap();
    assert_eq!((value(&cost, "page_faults"), value(&cost, "minflt")), (7, 7));
}

#[test]
fn an_end_without_a_beginning_is_an_error() {
    let mut probe = CodeProbe::open(&options("none")).unwrap();
    assert_eq!(probe.stop().unwrap_err().to_string(), "no region was begun");
    probe.start().unwrap();
    assert!(probe.stop().is_ok());
    assert!(probe.stop().is_err());
}

#[test]
fn an_uncountable_event_has_a_reason_and_is_never_0() {
    if !may_count() {
        return;
    }
    let mut probe = CodeProbe::open(&options("page_faults,r1ffffffffff")).unwrap();
    let ((), cost) = probe.measure(|| ()).unwrap();
    assert!(cost.get("page_faults").unwrap().is_ok());
    assert!(cost.get("r1ffffffffff").unwrap().is_err());
    assert!(cost.get("cycles").is_none(), "nobody asked");
}

#[test]
fn the_wall_time_is_that_of_the_region_and_the_cpu_time_follows() {
    if !may_count() {
        return;
    }
    let mut probe = CodeProbe::open(&options("task_clock,context_switches")).unwrap();
    let sleep = Duration::from_millis(200);
    let mut uses_cpu = || {
        let begin = Instant::now();
        let ((), cost) = probe.measure(|| std::thread::sleep(sleep)).unwrap();
        let outside = begin.elapsed();
        assert!((sleep..=outside).contains(&cost.wall()), "{:?} of {outside:?}", cost.wall());
        assert!(value(&cost, "nvcsw") >= 1, "{cost:?}");
        // The value is absent if this user may not count events in the kernel.
        if let Ok(count) = cost.get("context_switches").unwrap() {
            assert!(count.value >= 1, "{cost:?}");
        }
        Duration::from_nanos(value(&cost, "task_clock")) >= cost.wall() / 2
    };
    assert!((0..5).any(|_| !uses_cpu()), "a thread that sleeps uses its CPU");
    let begin = Instant::now();
    let (count, cost) = probe.measure(|| (0..3_000_000_u64).map(black_box).sum::<u64>()).unwrap();
    black_box(count);
    let outside = begin.elapsed();
    assert!(cost.wall() <= outside, "{:?} within {outside:?}", cost.wall());
    let clock = Duration::from_nanos(value(&cost, "task_clock"));
    assert!(clock <= outside && clock > Duration::from_micros(100), "{clock:?} of {outside:?}");
}

#[test]
fn threads_that_the_region_starts_count_for_the_process_and_not_for_the_thread() {
    if !may_count() {
        return;
    }
    let faults = |whose| {
        let mut probe =
            CodeProbe::open(&ProbeOptions { whose, ..options("minor_faults") }).unwrap();
        let region = || std::thread::spawn(|| touch(&mut fresh(PAGES))).join().unwrap();
        let ((), cost) = probe.measure(region).unwrap();
        (value(&cost, "minor_faults"), value(&cost, "minflt"))
    };
    // Starting a thread causes some faults of its own.
    let (counted, used) = faults(ProbeScope::Thread);
    assert!(counted < 50 && used < 50, "{counted} {used}");
    let (counted, used) = faults(ProbeScope::Process);
    assert!(counted >= PAGES as u64 && used >= PAGES as u64, "{counted} {used}");
}

#[test]
fn changes_of_memory_are_absent_unless_asked_for() {
    let mut probe = CodeProbe::open(&options("none")).unwrap();
    let ((), cost) = probe.measure(|| ()).unwrap();
    assert!(matches!(cost.memory(), Err(Absent::NotCollected(_))));
}

#[test]
fn the_overhead_is_taken_off_where_that_is_wanted_and_never_below_nothing() {
    if !may_count() {
        return;
    }
    let open =
        |subtract| CodeProbe::open(&ProbeOptions { subtract, ..options("task_clock") }).unwrap();
    let (mut plain, mut less) = (open(false), open(true));
    // The minimum of many regions is used: other programs on the machine make some regions more
    // expensive.
    let least = |probe: &mut CodeProbe| {
        let costs = (0..201).map(|_| probe.measure(|| ()).unwrap().1);
        costs.map(|cost| value(&cost, "task_clock")).min().unwrap()
    };
    let (whole, rest) = (least(&mut plain), least(&mut less));
    assert!(rest < whole, "{rest} of {whole}");
}

#[test]
fn more_events_than_fit_one_reading_are_all_counted() {
    if !may_count() {
        return;
    }
    let mut probe = CodeProbe::open(&options("software,tracepoints")).unwrap();
    let mut memory = fresh(PAGES);
    let ((), cost) = probe.measure(|| touch(&mut memory)).unwrap();
    assert!(cost.iter().count() > 20);
    assert_eq!(value(&cost, "minor_faults"), PAGES as u64);
    for name in ["page_fault_user", "mm_page_alloc"] {
        // The value is absent if this user may not read tracefs.
        if let Ok(count) = cost.get(name).unwrap() {
            assert!((PAGES as u64..2 * PAGES as u64).contains(&count.value), "{name}: {count:?}");
        }
    }
}
