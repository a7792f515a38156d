//! Changes of memory, which are of the whole process: one test alone in its program.

use pagewise_measure::events::choose;
use pagewise_measure::probe::{Cost, Options, Probe};
use pagewise_model::Counter;
use pagewise_sys::madvise::Advice;
use pagewise_sys::region::Region;

const PAGES: usize = 2_000;

/// What the probe itself and the test harness may hold more or less.
const SLACK: i64 = 512 << 10;

#[test]
fn memory_that_a_region_keeps_is_a_change_and_what_it_gives_back_is_a_negative_one() {
    let events = choose("none").unwrap();
    let options = Options { memory: true, events, ..Options::default() };
    let mut probe = Probe::open(&options).unwrap();
    let page = usize::try_from(pagewise_sys::system::page_size()).unwrap();
    let mut region = Region::map(PAGES * page, page).unwrap();
    region.advise(Advice::NoHugePage).unwrap();
    let bytes = i64::try_from(PAGES * page).unwrap();

    let touch = || region.bytes().iter_mut().step_by(page).for_each(|byte| *byte = 1);
    let ((), cost) = probe.measure(touch).unwrap();
    for counter in [Counter::Rss, Counter::Pss, Counter::PrivateDirty, Counter::Anonymous] {
        let grown = change(&cost, counter);
        assert!((bytes - SLACK..bytes + SLACK).contains(&grown), "{counter:?} {grown} {bytes}");
    }
    assert!(change(&cost, Counter::AnonHugePages) < bytes);

    let ((), cost) = probe.measure(|| drop(region)).unwrap();
    let grown = change(&cost, Counter::Rss);
    assert!((-bytes - SLACK..-bytes + SLACK).contains(&grown), "{grown} {bytes}");
}

fn change(cost: &Cost, wanted: Counter) -> i64 {
    let changes = cost.memory().as_ref().expect("they were asked for");
    let change = changes.iter().find(|(counter, _)| *counter == wanted);
    change.and_then(|(_, change)| change.clone().ok()).expect("every kernel has it")
}
