//! Tests of pools of pages, in addition to the tests that every pool passes.

use std::alloc::Layout;
use std::fs;
use std::mem::MaybeUninit;
use std::os::unix::fs::FileExt;
use std::ptr::NonNull;
use std::sync::mpsc;

use pagewise_alloc::pages::{PAGE, run_size};
use pagewise_alloc::source::{FailAfter, FixedBuffer, Os};
use pagewise_alloc::{Pages, Source, Tlsf};

const MIB: usize = 1 << 20;

fn layout(size: usize, align: usize) -> Layout {
    Layout::from_size_align(size, align).unwrap()
}

fn allocate_pages<S: Source>(pool: &Pages<S>, size: usize) -> NonNull<u8> {
    pool.allocate(layout(size, 1)).unwrap()
}

fn free<S: Source>(pool: &Pages<S>, run: NonNull<u8>, size: usize) {
    // SAFETY: tests pass each run of this pool once with its size; a test that violates this rule
    // expects a panic.
    unsafe { pool.free(run, size) };
}

fn free_part<S: Source>(pool: &Pages<S>, start: NonNull<u8>, size: usize) {
    // SAFETY: the caller passes pages of a run of this pool.
    unsafe { pool.free_part(start, size) };
}

fn fill(run: NonNull<u8>, size: usize, byte: u8) {
    // SAFETY: tests pass runs of at least this size.
    unsafe { run.write_bytes(byte, size) };
}

fn bytes<'a>(run: NonNull<u8>, size: usize) -> &'a [u8] {
    // SAFETY: tests pass runs of at least this size, whose bytes were written or are zero-filled.
    unsafe { std::slice::from_raw_parts(run.as_ptr(), size) }
}

fn at(run: NonNull<u8>, offset: usize) -> NonNull<u8> {
    // SAFETY: tests pass offsets that are at most the size of the run.
    unsafe { run.add(offset) }
}

/// Allocates runs until the pool is exhausted.
fn fill_pool<S: Source>(pool: &Pages<S>, size: usize) -> Vec<NonNull<u8>> {
    std::iter::from_fn(|| pool.allocate(layout(size, 1))).collect()
}

/// Creates a pool whose source provides at most `n` regions.
fn regions(n: usize) -> Pages<FailAfter<Os>> {
    Pages::unguarded(FailAfter::new(Os, n))
}

#[test]
fn a_run_is_whole_pages_and_a_sixteenth_longer_than_asked_at_most() {
    for (size, run) in [(0, 1), (1, 1), (PAGE, 1), (PAGE + 1, 2), (33 * PAGE, 34), (MIB - 1, 256)] {
        assert_eq!(run_size(size), Some(run * PAGE), "{size}");
    }
    assert_eq!(run_size(MIB + 1), Some(MIB + PAGE));
    assert_eq!(run_size(usize::MAX), None);
    let pool = Pages::unguarded(Os);
    assert_eq!(pool.allocate(layout(isize::MAX as usize, 1)), None);
    let run = allocate_pages(&pool, 33 * PAGE);
    assert!(run.addr().get().is_multiple_of(PAGE));
    fill(run, 34 * PAGE, 1);
    assert_eq!(pool.usage().live, 34 * PAGE);
    free(&pool, run, 33 * PAGE);
    assert_eq!(pool.usage().live, 0);
    pool.check();
}

#[test]
fn freed_parts_of_a_run_are_reused_and_the_rest_keeps_its_contents() {
    let mut buffer = vec![MaybeUninit::uninit(); 64 * PAGE];
    let pool = Pages::unguarded(FixedBuffer::new(&mut buffer));
    let run = allocate_pages(&pool, 12 * PAGE);
    fill(run, 12 * PAGE, 7);
    free_part(&pool, at(run, 4 * PAGE), 4 * PAGE);
    pool.check();
    let again = allocate_pages(&pool, 4 * PAGE);
    assert_eq!(again, at(run, 4 * PAGE));
    fill(again, 4 * PAGE, 9);
    for part in [0, 8 * PAGE] {
        assert!(bytes(at(run, part), 4 * PAGE).iter().all(|byte| *byte == 7));
        free_part(&pool, at(run, part), 4 * PAGE);
    }
    free(&pool, again, 4 * PAGE);
    pool.check();
    assert_eq!(pool.usage().live, 0);
}

#[test]
fn a_fixed_buffer_becomes_one_region_of_which_descriptors_take_a_page_in_a_hundred() {
    let mut buffer = vec![MaybeUninit::uninit(); 1000 * PAGE];
    let pool = Pages::unguarded(FixedBuffer::new(&mut buffer));
    let whole = allocate_pages(&pool, 900 * PAGE);
    free(&pool, whole, 900 * PAGE);
    let pages = fill_pool(&pool, PAGE);
    assert!((985..=995).contains(&pages.len()), "{}", pages.len());
    pages.into_iter().rev().for_each(|page| free(&pool, page, PAGE));
    pool.check();
    assert_eq!(allocate_pages(&pool, 900 * PAGE), whole);
}

#[test]
fn any_alignment_is_obeyed_and_costs_no_pages() {
    let pool = regions(1);
    let mut runs = Vec::new();
    for log in 0..24 {
        let layout = layout(3 * PAGE, 1 << log);
        let run = pool.allocate(layout).unwrap();
        assert!(run.addr().get().is_multiple_of(layout.align()), "{layout:?}");
        pool.check();
        runs.push(run);
    }
    assert_eq!(pool.usage().live, 24 * 3 * PAGE);
    runs.into_iter().for_each(|run| free(&pool, run, 3 * PAGE));
    pool.check();
    assert_eq!(pool.usage().live, 0);
}

#[test]
fn a_run_grows_over_free_pages_behind_it_and_moves_with_its_contents_otherwise() {
    let mut buffer = vec![MaybeUninit::uninit(); 64 * PAGE];
    let pool = Pages::unguarded(FixedBuffer::new(&mut buffer));
    let (run, wall) = (allocate_pages(&pool, 4 * PAGE), allocate_pages(&pool, PAGE));
    fill(run, 4 * PAGE, 5);
    // SAFETY: the run has this layout, and is used only with its new size afterwards.
    let same = unsafe { pool.reallocate(run, layout(4 * PAGE, 1), 2 * PAGE) };
    assert_eq!(same, Some(run));
    // SAFETY: the run is of this pool and has this layout.
    let same = unsafe { pool.reallocate(run, layout(2 * PAGE, 1), 3 * PAGE) };
    assert_eq!(same, Some(run));
    // SAFETY: the run is of this pool and has this layout.
    let moved = unsafe { pool.reallocate(run, layout(3 * PAGE, 1), 8 * PAGE) }.unwrap();
    assert_ne!(moved, run);
    assert!(bytes(moved, 2 * PAGE).iter().all(|byte| *byte == 5));
    // SAFETY: the run is of this pool and has this layout.
    assert_eq!(unsafe { pool.reallocate(moved, layout(8 * PAGE, 1), MIB) }, None);
    free(&pool, wall, PAGE);
    free(&pool, moved, 8 * PAGE);
    pool.check();
    assert_eq!(pool.usage().live, 0);
}

#[test]
fn before_memory_is_exhausted_all_free_pages_become_one_run() {
    let pool = regions(1);
    let runs = fill_pool(&pool, 100 * PAGE);
    assert!(runs.len() > 150, "{}", runs.len());
    for run in &runs {
        fill(*run, PAGE, 1);
        free(&pool, *run, 100 * PAGE);
    }
    pool.check();
    let whole = allocate_pages(&pool, 60 * MIB);
    free(&pool, whole, 60 * MIB);
    pool.check();
}

#[test]
fn zeroed_runs_are_zero_whatever_was_in_them() {
    let pool = regions(1);
    let run = allocate_pages(&pool, 8 * PAGE);
    fill(run, 8 * PAGE, 0xff);
    free(&pool, run, 8 * PAGE);
    let zeroed = pool.allocate_zeroed(layout(8 * PAGE, 1)).unwrap();
    assert_eq!(zeroed, run);
    assert!(bytes(zeroed, 8 * PAGE).iter().all(|byte| *byte == 0));
    free(&pool, zeroed, 8 * PAGE);
    pool.trim();
    let clean = pool.take(layout(8 * PAGE, 1));
    assert!(clean.is_none(), "the one region was given back");
}

#[test]
fn other_pools_take_their_memory_of_pages_and_give_it_back() {
    let pages = Pages::unguarded(Os);
    let mut pool: Tlsf<&Pages<Os>> = Tlsf::new(&pages);
    assert!(pool.allocate(layout(100_000, 8)).is_some());
    assert!(pages.usage().live >= 100_000);
    drop(pool);
    assert_eq!(pages.usage().live, 0);
    pages.trim();
    assert_eq!(pages.usage().held, 0);
}

/// Work of a test thread: allocates, fills, checks and frees runs, and sends some to other threads.
fn use_runs(pool: &Pages<Os>, seed: u8, give: &mpsc::Sender<(usize, usize)>) {
    let mut live: Vec<(NonNull<u8>, usize)> = Vec::new();
    for step in 0..5_000_usize {
        let size = 1 + step * 37 % (20 * PAGE);
        let run = allocate_pages(pool, size);
        fill(run, size, seed);
        live.push((run, size));
        if live.len() > 40 {
            let (run, size) = live.swap_remove(step * 31 % live.len());
            assert!(bytes(run, size).iter().all(|byte| *byte == seed));
            if step % 4 == 0 {
                give.send((run.as_ptr().expose_provenance(), size)).unwrap();
            } else {
                free(pool, run, size);
            }
        }
    }
    live.into_iter().for_each(|(run, size)| free(pool, run, size));
}

#[test]
#[cfg_attr(miri, ignore = "many threads and runs")]
fn threads_take_runs_and_free_those_of_each_other() {
    let pool = Pages::unguarded(Os);
    let (give, get) = mpsc::channel();
    std::thread::scope(|scope| {
        for seed in 1..=4 {
            let (pool, give) = (&pool, give.clone());
            scope.spawn(move || use_runs(pool, seed, &give));
        }
        drop(give);
        for (run, size) in get {
            let run = NonNull::new(std::ptr::with_exposed_provenance_mut(run)).unwrap();
            free(&pool, run, size);
        }
    });
    pool.check();
    assert_eq!(pool.usage().live, 0);
}

const PRESENT: u64 = 1 << 63;
const SWAPPED: u64 = 1 << 62;

/// Number of resident bytes of a range, from `/proc/self/pagemap`.
fn resident(start: NonNull<u8>, size: usize) -> usize {
    bytes_with(PRESENT, start, size)
}

/// Number of bytes of a range that are resident or in swap.
fn resident_or_swapped(start: NonNull<u8>, size: usize) -> usize {
    bytes_with(PRESENT | SWAPPED, start, size)
}

fn bytes_with(flags: u64, start: NonNull<u8>, size: usize) -> usize {
    let mut entries = vec![0; size / PAGE * 8];
    let pagemap = fs::File::open("/proc/self/pagemap").unwrap();
    pagemap.read_exact_at(&mut entries, (start.addr().get() / PAGE * 8) as u64).unwrap();
    let entries = entries.chunks(8).map(|entry| u64::from_ne_bytes(entry.try_into().unwrap()));
    entries.filter(|entry| entry & flags != 0).count() * PAGE
}

/// Number of huge pages that the kernel has collapsed from small pages since boot, in all
/// processes.
fn collapsed() -> usize {
    let text = fs::read_to_string("/proc/vmstat").unwrap_or_default();
    let count = text.lines().find_map(|line| line.strip_prefix("thp_collapse_alloc "));
    count.map_or(0, |count| count.parse().unwrap())
}

/// Upper bound of the bytes that khugepaged has added to a range since `collapsed` returned
/// `before`.
fn added_by_khugepaged(before: usize) -> usize {
    (collapsed() - before) * 2 * MIB
}

fn is_thp_always() -> bool {
    let setting = fs::read_to_string("/sys/kernel/mm/transparent_hugepage/enabled");
    setting.is_ok_and(|setting| setting.contains("[always]"))
}

#[test]
#[cfg_attr(miri, ignore = "asks the kernel")]
fn untouched_runs_have_no_memory_and_freed_runs_lose_theirs_in_time() {
    let before = collapsed();
    let pool = Pages::unguarded(Os);
    let mut runs: Vec<_> = (0..48).map(|_| allocate_pages(&pool, MIB)).collect();
    runs.sort_unstable();
    let (first, size) = (runs[0], runs[47].addr().get() - runs[0].addr().get() + MIB);
    let untouched = resident(first, size);
    // With THP `always`, the kernel backs the first write to a run in the thread cache by a huge
    // page.
    let most = if is_thp_always() { 4 * MIB } else { 8 * PAGE };
    let most = most + added_by_khugepaged(before);
    assert!(untouched <= most, "{untouched} bytes are resident before anything is written");
    runs.iter().for_each(|run| fill(*run, MIB, 1));
    assert!(resident_or_swapped(first, size) >= 48 * MIB);
    runs.iter().skip(1).for_each(|run| free(&pool, *run, MIB));
    // The pool releases memory that was not needed during two windows of 16,384 allocations and
    // frees.
    for _ in 0..2 << 14 {
        let page = allocate_pages(&pool, PAGE);
        free(&pool, page, PAGE);
    }
    let left = resident(first, size);
    assert!(
        left <= 4 * MIB + added_by_khugepaged(before),
        "{left} bytes are resident, and {MIB} live"
    );
    assert!(bytes(first, MIB).iter().all(|byte| *byte == 1));
    pool.check();
}

#[test]
#[cfg_attr(miri, ignore = "asks the kernel")]
fn trimming_leaves_nothing_but_what_is_in_use() {
    let before = collapsed();
    let pool = Pages::unguarded(Os);
    let (kept, freed) = (allocate_pages(&pool, 4 * PAGE), allocate_pages(&pool, MIB / 2));
    fill(kept, 4 * PAGE, 3);
    fill(freed, MIB / 2, 3);
    free(&pool, freed, MIB / 2);
    let kept_bytes = resident_or_swapped(freed, MIB / 2);
    assert_eq!(kept_bytes, MIB / 2, "so little is kept for the next who asks");
    pool.trim();
    assert_eq!(pool.usage().idle, 0);
    assert!(resident(freed, MIB / 2) <= added_by_khugepaged(before));
    assert!(bytes(kept, 4 * PAGE).iter().all(|byte| *byte == 3));
    free(&pool, kept, 4 * PAGE);
    pool.trim();
    assert_eq!(pool.usage().held, 0);
    pool.check();
}

#[test]
fn freed_pages_of_a_guarded_pool_are_filled_if_they_were_written() {
    let mut buffer = vec![MaybeUninit::uninit(); 64 * PAGE];
    let pool = Pages::guarded(FixedBuffer::new(&mut buffer));
    let run = allocate_pages(&pool, 2 * PAGE);
    fill(run, 2 * PAGE, 7);
    free(&pool, run, 2 * PAGE);
    let again = allocate_pages(&pool, 2 * PAGE);
    assert_eq!(again, run);
    assert!(bytes(again, 2 * PAGE).iter().all(|byte| *byte == 0xdd));
}

#[test]
#[cfg_attr(miri, ignore = "asks the kernel")]
fn an_untouched_run_of_a_guarded_pool_has_no_memory_also_after_its_free() {
    let collapsed = collapsed();
    let pool = Pages::guarded(Os);
    let run = allocate_pages(&pool, 32 * MIB);
    let before = resident(run, 32 * MIB);
    free(&pool, run, 32 * MIB);
    let after = resident(run, 32 * MIB);
    assert!(after <= before.max(4 * MIB) + added_by_khugepaged(collapsed), "{after}");
}

#[test]
fn a_guard_stays_behind_the_rest_of_a_run() {
    let mut buffer = vec![MaybeUninit::uninit(); 64 * PAGE];
    let pool = Pages::guarded(FixedBuffer::new(&mut buffer));
    let run = allocate_pages(&pool, 10 * PAGE);
    assert_eq!(pool.usage().live, 10 * PAGE, "guards do not count");
    free_part(&pool, at(run, 8 * PAGE), 2 * PAGE);
    pool.check();
    free_part(&pool, run, PAGE);
    pool.check();
    // SAFETY: the run has this size.
    let shorter = unsafe { pool.reallocate(at(run, PAGE), layout(7 * PAGE, 1), 3 * PAGE) };
    assert_eq!(shorter, Some(at(run, PAGE)));
    assert_eq!(pool.usage().live, 3 * PAGE);
    free_part(&pool, at(run, PAGE), 3 * PAGE);
    pool.check();
    assert_eq!(pool.usage().live, 0);
    let whole = allocate_pages(&pool, 50 * PAGE);
    free(&pool, whole, 50 * PAGE);
}

mod misuse {
    use super::*;

    #[test]
    #[should_panic(expected = "was freed before")]
    fn a_run_that_is_freed_twice_is_caught() {
        let pool = Pages::unguarded(Os);
        let run = allocate_pages(&pool, 10 * PAGE);
        free(&pool, run, 10 * PAGE);
        free(&pool, run, 10 * PAGE);
    }

    #[test]
    #[should_panic(expected = "was freed before")]
    fn a_run_that_is_freed_twice_while_it_is_cached_is_caught() {
        let pool = Pages::unguarded(Os);
        let runs: Vec<_> = (0..100).map(|_| allocate_pages(&pool, 10 * PAGE)).collect();
        free(&pool, runs[50], 10 * PAGE);
        free(&pool, runs[51], 10 * PAGE);
        free(&pool, runs[50], 10 * PAGE);
    }

    #[test]
    #[cfg(debug_assertions)]
    #[should_panic(expected = "was freed before")]
    fn a_run_of_which_a_part_was_freed_is_caught() {
        let pool = Pages::unguarded(Os);
        let run = allocate_pages(&pool, 10 * PAGE);
        free_part(&pool, at(run, 5 * PAGE), PAGE);
        free(&pool, run, 10 * PAGE);
    }

    #[test]
    #[should_panic(expected = "is not a block of this pool")]
    fn a_pointer_from_elsewhere_is_caught() {
        let pool = Pages::unguarded(Os);
        let _ = allocate_pages(&pool, PAGE);
        free(&pool, NonNull::from(&mut [0_u8; 64]).cast(), PAGE);
    }
}
