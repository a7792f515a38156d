//! The bound on what a pool of pages keeps, against a second account: a source that knows which
//! pages its user touched, and which it discarded.

use std::alloc::Layout;
use std::cell::RefCell;
use std::collections::VecDeque;
use std::ptr::NonNull;
use std::rc::Rc;

use pagewise_alloc::pages::{PAGE, run_size};
use pagewise_alloc::source::MappedSource;
use pagewise_alloc::{Pages, Source, SourceBlock};
use proptest::prelude::*;

/// Operations of a window, as docs/allocators.md says.
const WINDOW: usize = 1 << 14;
/// Kept whatever the bound says.
const ALWAYS: usize = 2 << 20;
/// Memory of the cache of a thread, which counts as in use.
const CACHE: usize = 32 << 10;

/// Resident pages of one block, as the kernel would back them without huge pages.
#[derive(Default)]
struct TouchedPages {
    start: usize,
    pages: Vec<bool>,
    count: usize,
}

impl TouchedPages {
    fn set(&mut self, start: NonNull<u8>, size: usize, touched: bool) {
        let first = (start.addr().get() - self.start) / PAGE;
        for page in &mut self.pages[first..first + size / PAGE] {
            match (std::mem::replace(page, touched), touched) {
                (false, true) => self.count += 1,
                (true, false) => self.count -= 1,
                _ => {}
            }
        }
    }

    fn count(&self, start: NonNull<u8>, size: usize) -> usize {
        let first = (start.addr().get() - self.start) / PAGE;
        self.pages[first..first + size / PAGE].iter().filter(|page| **page).count() * PAGE
    }

    fn bytes(&self) -> usize {
        self.count * PAGE
    }
}

/// A source with one block, and an account of it.
#[derive(Clone, Default)]
struct AccountedSource(Rc<RefCell<TouchedPages>>);

// SAFETY: its memory is that of mappings, and it gives one block.
unsafe impl Source for AccountedSource {
    fn take(&self, layout: Layout) -> Option<SourceBlock> {
        let mut account = self.0.borrow_mut();
        if !account.pages.is_empty() {
            return None;
        }
        let larger = Layout::from_size_align(layout.size().max(512 << 20), layout.align()).ok()?;
        let block = MappedSource::ANONYMOUS.take(larger)?;
        account.start = block.start.addr().get();
        account.pages = vec![false; block.size / PAGE];
        Some(block)
    }

    unsafe fn give_back(&self, block: SourceBlock) {
        self.0.borrow_mut().pages.clear();
        // SAFETY: the block is a mapping.
        unsafe { MappedSource::ANONYMOUS.give_back(block) }
    }

    fn ahead(&self, _: usize) -> usize {
        256 << 20
    }

    fn discards(&self) -> bool {
        true
    }

    unsafe fn discard(&self, start: NonNull<u8>, size: usize) -> bool {
        self.0.borrow_mut().set(start, size, false);
        true
    }

    fn resident(&self, start: NonNull<u8>, size: usize) -> usize {
        self.0.borrow().count(start, size)
    }
}

/// A pool, its live runs, and the most bytes in use at the end of each operation of two windows.
struct AccountedPool {
    account: AccountedSource,
    pool: Pages<AccountedSource>,
    live: Vec<(NonNull<u8>, usize)>,
    bytes: usize,
    /// Operation and bytes in use, falling: the first is the maximum.
    most: VecDeque<(usize, usize)>,
    operation: usize,
}

impl AccountedPool {
    fn new() -> AccountedPool {
        let account = AccountedSource::default();
        let pool = Pages::unguarded(account.clone());
        let (live, most) = (Vec::new(), VecDeque::new());
        AccountedPool { account, pool, live, bytes: 0, most, operation: 0 }
    }

    fn allocate(&mut self, size: usize) {
        let run = self.pool.allocate(Layout::from_size_align(size, 1).unwrap()).unwrap();
        let size = run_size(size).unwrap();
        self.account.0.borrow_mut().set(run, size, true);
        self.live.push((run, size));
        self.bytes += size;
        self.passed();
    }

    fn free(&mut self, at: usize) {
        let (run, size) = self.live.swap_remove(at);
        // SAFETY: the run is live, and of this size.
        unsafe { self.pool.free(run, size) };
        self.bytes -= size;
        self.passed();
    }

    /// Records an operation.
    fn passed(&mut self) {
        self.operation += 1;
        while self.most.back().is_some_and(|(_, bytes)| *bytes <= self.bytes) {
            self.most.pop_back();
        }
        self.most.push_back((self.operation, self.bytes));
        while self.most.front().is_some_and(|(at, _)| at + 2 * WINDOW < self.operation) {
            self.most.pop_front();
        }
    }

    /// Resident bytes, without those of descriptors, which are not touched here.
    fn resident(&self) -> usize {
        self.account.0.borrow().bytes()
    }

    fn assert_bound(&self) {
        let most = self.most.front().map_or(0, |(_, bytes)| *bytes);
        let bound = (most / 100 * 120).max(most + ALWAYS) + CACHE;
        let (resident, usage) = (self.resident(), self.pool.usage());
        assert!(resident <= bound, "{resident} resident, {most} at most in use, {usage:?}");
    }
}

/// Number of live runs, the longest of them in pages, and the number of operations.
fn phases() -> impl Strategy<Value = Vec<(usize, usize, usize)>> {
    prop::collection::vec((0..400_usize, 1..128_usize, 1..20_000_usize), 1..5)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(if cfg!(miri) { 1 } else { 12 }))]

    #[test]
    #[cfg_attr(miri, ignore = "takes long")]
    fn resident_memory_is_bounded_by_the_most_in_use_lately(phases in phases(), seed in 1..u64::MAX) {
        let mut pool = AccountedPool::new();
        let mut seed = seed;
        let mut below = |n: usize| {
            seed ^= seed << 13;
            seed ^= seed >> 7;
            seed ^= seed << 17;
            usize::try_from(seed >> 33).unwrap() % n
        };
        for (live, longest, steps) in phases {
            for step in 0..steps {
                if pool.live.len() < live.max(1) {
                    pool.allocate((1 + below(longest)) * PAGE);
                } else {
                    pool.free(below(pool.live.len()));
                }
                if step % 64 == 0 {
                    pool.assert_bound();
                }
            }
        }
        // Steady: one run is replaced again and again, and nothing else happens.
        for _ in 0..3 * WINDOW {
            pool.allocate(PAGE);
            pool.free(pool.live.len() - 1);
        }
        let most = (pool.bytes / 100 * 110).max(pool.bytes + ALWAYS) + CACHE;
        let (resident, usage) = (pool.resident(), pool.pool.usage());
        assert!(resident <= most, "{resident} resident, {} in use, {usage:?}", pool.bytes);
        pool.pool.check();
    }
}
