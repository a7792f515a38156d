//! Tests changes of memory. They include the memory of the whole process, so this program has only
//! one test.

use pagewise_measure::events::choose;
use pagewise_measure::probe::{CodeProbe, Cost, ProbeOptions};
use pagewise_model::SmapsCounter;
use pagewise_sys::madvise::Advice;
use pagewise_sys::region::AlignedRegion;

const PAGES: usize = 2_000;

/// Tolerance for the memory of the probe itself and of the test harness.
const SLACK: i64 = 512 << 10;

#[test]
fn kept_memory_of_a_region_is_a_change_and_released_memory_a_negative_one() {
    let events = choose("none").unwrap();
    let options = ProbeOptions { memory: true, events, ..ProbeOptions::default() };
    let mut probe = CodeProbe::open(&options).unwrap();
    let page = usize::try_from(pagewise_sys::system::page_size()).unwrap();
    let mut region = AlignedRegion::map(PAGES * page, page).unwrap();
    region.advise(Advice::NoHugePage).unwrap();
    let bytes = i64::try_from(PAGES * page).unwrap();

    let touch = || region.bytes().iter_mut().step_by(page).for_each(|byte| *byte = 1);
    let ((), cost) = probe.measure(touch).unwrap();
    for counter in
        [SmapsCounter::Rss, SmapsCounter::Pss, SmapsCounter::PrivateDirty, SmapsCounter::Anonymous]
    {
        let grown = change(&cost, counter);
        assert!((bytes - SLACK..bytes + SLACK).contains(&grown), "{counter:?} {grown} {bytes}");
    }
    assert!(change(&cost, SmapsCounter::AnonHugePages) < bytes);

    let ((), cost) = probe.measure(|| drop(region)).unwrap();
    let grown = change(&cost, SmapsCounter::Rss);
    assert!((-bytes - SLACK..-bytes + SLACK).contains(&grown), "{grown} {bytes}");
}

fn change(cost: &Cost, wanted: SmapsCounter) -> i64 {
    let changes = cost.memory().as_ref().expect("they were asked for");
    let change = changes.iter().find(|(counter, _)| *counter == wanted);
    change.and_then(|(_, change)| change.clone().ok()).expect("every kernel has it")
}
