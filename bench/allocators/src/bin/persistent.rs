//! Persistent heaps, random replace: free a block, take one of another size, store its pointer
//! where the other's was.
//!
//! `cargo run --release --features c --bin persistent [FOLDER]`: the heaps are in FOLDER, or in
//! /dev/shm. The cost of a flush is that of the folder's disk, so the comparison under
//! power-failure safety means little in /dev/shm. Boost.Interprocess and PMDK are included with the
//! feature `c` if they are installed.

use std::alloc::{GlobalAlloc, Layout, System};
use std::ffi::CString;
use std::fs::{self, File, OpenOptions};
use std::os::fd::AsRawFd;
use std::path::{Path, PathBuf};
use std::ptr::{self, NonNull};

use pagewise_alloc::persistent::{Durability, Persistent, PersistentOptions, Rel};
use pagewise_alloc::{DisciplinedAllocator, Source, SourceBlock, Tlsf};
use pagewise_bench_allocators::{BenchRunner, black_box, race};

/// Goal with safety against kills, if caches hold all blocks: 80 ns, where glibc needs 38.
const GOAL: f64 = 2.1;
/// Replacements in a round.
const UNITS: usize = 500_000;
/// Replacements in a round where each waits for a disk.
const FLUSHED: usize = 50;
/// Live blocks where each replacement waits for a disk.
const FEW: usize = 100;
/// Rounds of each benchmark.
const ROUNDS: usize = 9;
/// Number of live blocks: one that fits into caches, and one that does not.
const LIVE: [usize; 2] = [10_000, 1_000_000];

/// Sizes and slots from one generator, the same for all.
struct Dice(u64);

impl Dice {
    fn roll(&mut self) -> (usize, usize) {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        let number = self.0 as usize;
        (number >> 20, 16 + (number & 511) % 497)
    }
}

/// Something whose blocks can be replaced.
trait ReplaceBlock {
    fn replace(&mut self, slot: usize, size: usize);
}

/// A heap, filled, that replaces a number of its `live` blocks in a round.
fn runner(
    name: &str,
    live: usize,
    units: usize,
    mut subject: impl ReplaceBlock + 'static,
) -> BenchRunner<'static> {
    (0..live).for_each(|slot| subject.replace(slot, 16 + slot % 497));
    let mut dice = Dice(0x9e37_79b9);
    BenchRunner::new(name, units, move || {
        for _ in 0..units {
            let (slot, size) = dice.roll();
            subject.replace(slot % live, size);
        }
    })
}

fn layout(size: usize) -> Layout {
    Layout::from_size_align(size, 16).expect("16 is a power of 2")
}

/// A general allocator: nothing of it is in a file.
struct VolatileMalloc(Vec<(*mut u64, usize)>);

impl ReplaceBlock for VolatileMalloc {
    fn replace(&mut self, slot: usize, size: usize) {
        let (old, was) = self.0[slot];
        if !old.is_null() {
            // SAFETY: it came from there with that size, and was not freed.
            unsafe { System.dealloc(old.cast(), layout(was)) };
        }
        // SAFETY: the size is not 0.
        let new = black_box(unsafe { System.alloc(layout(size)) }).cast::<u64>();
        // SAFETY: the block has 16 bytes at least.
        unsafe { new.write(slot as u64) };
        self.0[slot] = (new, size);
    }
}

/// A file that is mapped and forgets its name: it is gone with the process.
struct UnlinkedMapping {
    file: File,
}

impl UnlinkedMapping {
    fn new(folder: &Path) -> UnlinkedMapping {
        let path = path(folder);
        let file = OpenOptions::new().read(true).write(true).create_new(true).open(&path);
        fs::remove_file(path).expect("it was just made");
        UnlinkedMapping { file: file.expect("the folder can be written") }
    }
}

// SAFETY: every block is a new part at the end of the file, mapped for its taker alone.
unsafe impl Source for UnlinkedMapping {
    fn take(&self, layout: Layout) -> Option<SourceBlock> {
        let size = layout.size().next_multiple_of(1 << 16);
        let end = self.file.metadata().ok()?.len();
        self.file.set_len(end + size as u64).ok()?;
        let (prot, fd) = (libc::PROT_READ | libc::PROT_WRITE, self.file.as_raw_fd());
        // SAFETY: a new mapping where the kernel likes touches no memory that there is.
        let start =
            unsafe { libc::mmap(ptr::null_mut(), size, prot, libc::MAP_SHARED, fd, end as i64) };
        let start = NonNull::new(start.cast()).filter(|_| start != libc::MAP_FAILED)?;
        Some(SourceBlock { start, size, zeroed: true })
    }

    unsafe fn give_back(&self, block: SourceBlock) {
        // SAFETY: it was mapped above, and is not used any more.
        unsafe { libc::munmap(block.start.as_ptr().cast(), block.size) };
    }
}

/// A plain allocator on a mapped file: what is safe against nothing.
struct PlainFileAllocator {
    pool: Tlsf<UnlinkedMapping>,
    slots: Vec<Option<(NonNull<u8>, usize)>>,
}

impl ReplaceBlock for PlainFileAllocator {
    fn replace(&mut self, slot: usize, size: usize) {
        if let Some((old, was)) = self.slots[slot] {
            // SAFETY: it came from there with that size, and was not freed.
            unsafe { DisciplinedAllocator::free(&mut self.pool, old, layout(was)) };
        }
        let new = DisciplinedAllocator::allocate(&mut self.pool, layout(size))
            .expect("the disk has room");
        // SAFETY: the block has 16 bytes at least.
        unsafe { new.cast::<u64>().write(slot as u64) };
        self.slots[slot] = Some((new, size));
    }
}

/// Ours.
struct PagewiseHeap {
    heap: Persistent,
    slots: Rel<Rel<u64>>,
}

impl PagewiseHeap {
    fn new(folder: &Path, live: usize, durability: Durability) -> PagewiseHeap {
        let path = path(folder);
        let name = CString::new(path.to_str().expect("UTF-8")).expect("no NUL");
        let options = PersistentOptions { durability, ..PersistentOptions::default() };
        // SAFETY: the file is ours alone.
        let mut heap = unsafe { Persistent::open(&name, &options) }.expect("a new heap");
        fs::remove_file(path).expect("it was just made");
        let mut tx = heap.begin();
        let table = Layout::array::<u64>(live).expect("small");
        let slots = tx.alloc(table).expect("room").cast::<Rel<u64>>();
        tx.fill(slots, live).expect("as large").fill(Rel::NULL);
        tx.set_root("slots", slots).expect("the first root");
        tx.commit().expect("no flush, or a disk that works");
        PagewiseHeap { heap, slots }
    }

    fn try_replace(
        &mut self,
        slot: usize,
        size: usize,
    ) -> Result<(), pagewise_alloc::persistent::PersistentError> {
        let place = Rel::from_offset(self.slots.offset() + slot as u64 * 8);
        let mut tx = self.heap.begin();
        let old = *tx.get::<Rel<u64>>(place)?;
        if !old.is_null() {
            tx.free(old)?;
        }
        let new = tx.alloc(layout(size))?.cast::<u64>();
        tx.fill(new, 1)?[0] = slot as u64;
        *tx.change(place)? = new;
        tx.commit()
    }
}

impl ReplaceBlock for PagewiseHeap {
    fn replace(&mut self, slot: usize, size: usize) {
        self.try_replace(slot, size).expect("the heap has room");
    }
}

/// A unique name.
fn path(folder: &Path) -> PathBuf {
    folder.join(format!("pagewise-race-{}.heap", std::process::id()))
}

/// A heap of a C or C++ library.
#[cfg(any(boost, pmemobj))]
mod foreign {
    use std::ffi::{CString, c_char, c_void};
    use std::fs;
    use std::path::Path;

    use super::{Replace, path};

    type New = unsafe extern "C" fn(*const c_char, usize, usize) -> *mut c_void;
    type Act = unsafe extern "C" fn(*mut c_void, usize, usize);
    type Delete = unsafe extern "C" fn(*mut c_void);

    /// A library's functions.
    pub struct HeapLibrary {
        new: New,
        replace: Act,
        delete: Delete,
    }

    macro_rules! library {
        ($name:ident: $new:ident, $replace:ident, $delete:ident) => {
            unsafe extern "C" {
                fn $new(path: *const c_char, size: usize, live: usize) -> *mut c_void;
                fn $replace(heap: *mut c_void, slot: usize, size: usize);
                fn $delete(heap: *mut c_void);
            }
            pub const $name: HeapLibrary =
                HeapLibrary { new: $new, replace: $replace, delete: $delete };
        };
    }

    #[cfg(boost)]
    library!(BOOST: boost_heap_new, boost_heap_replace, boost_heap_delete);
    #[cfg(pmemobj)]
    library!(PMEMOBJ: pmemobj_heap_new, pmemobj_heap_replace, pmemobj_heap_delete);

    /// A heap of a library.
    pub struct Heap {
        library: HeapLibrary,
        heap: *mut c_void,
    }

    impl PagewiseHeap {
        pub fn new(library: HeapLibrary, folder: &Path, live: usize) -> PagewiseHeap {
            let path = path(folder);
            let name = CString::new(path.to_str().expect("UTF-8")).expect("no NUL");
            // SAFETY: the name is a string; the size is ample.
            let heap = unsafe { (library.new)(name.as_ptr(), (64 << 20) + live * 1200, live) };
            fs::remove_file(path).expect("it was just made");
            PagewiseHeap { library, heap }
        }
    }

    impl ReplaceBlock for PagewiseHeap {
        fn replace(&mut self, slot: usize, size: usize) {
            // SAFETY: the heap is open, and was made for more slots.
            unsafe { (self.library.replace)(self.heap, slot, size) };
        }
    }

    impl Drop for PagewiseHeap {
        fn drop(&mut self) {
            // SAFETY: the heap is open, and used no more.
            unsafe { (self.library.delete)(self.heap) };
        }
    }
}

/// Compared heaps that are missing, and the reason.
fn left_out() {
    println!("left out: Metall: its headers are no package of this system");
    #[cfg(not(boost))]
    println!("left out: Boost.Interprocess: no feature `c`, or its headers are not installed");
    #[cfg(not(pmemobj))]
    println!("left out: PMDK: no feature `c`, or libpmemobj is not installed");
}

fn process_crash(folder: &Path, live: usize) {
    let plain = PlainFileAllocator {
        pool: Tlsf::new(UnlinkedMapping::new(folder)),
        slots: vec![None; live],
    };
    let ours = PagewiseHeap::new(folder, live, Durability::Process);
    let runners = vec![
        runner("floor: Tlsf on a mapped file, unsafe", live, UNITS, plain),
        runner("glibc, in no file", live, UNITS, VolatileMalloc(vec![(ptr::null_mut(), 0); live])),
        #[cfg(boost)]
        runner(
            "Boost.Interprocess, unsafe",
            live,
            UNITS,
            foreign::Heap::new(foreign::BOOST, folder, live),
        ),
        #[cfg(pmemobj)]
        runner("PMDK", live, UNITS, foreign::Heap::new(foreign::PMEMOBJ, folder, live)),
        runner("pagewise", live, UNITS, ours),
    ];
    let title = format!("random replace, {live} live, 16-512 B, safe against a kill");
    let results = race(&title, ROUNDS, runners);
    if live == LIVE[0] {
        results.goal("pagewise", GOAL, "glibc, in no file");
    }
    #[cfg(pmemobj)]
    results.goal_of_best("pagewise", 0.5, &["floor", "glibc", "Boost"]);
}

fn power_loss(folder: &Path) {
    let ours = PagewiseHeap::new(folder, FEW, Durability::Power);
    let runners = vec![
        runner("pagewise", FEW, FLUSHED, ours),
        #[cfg(pmemobj)]
        BenchRunner::timed("PMDK", || in_another_process(folder)),
    ];
    let title = format!("random replace, {FEW} live, safe against a loss of power");
    race(&title, ROUNDS, runners);
}

/// PMDK decides once in a process how it flushes.
#[cfg(pmemobj)]
fn in_another_process(folder: &Path) -> f64 {
    let program = std::env::current_exe().expect("it is running");
    let mut command = std::process::Command::new(program);
    command.arg(folder).arg("PMDK").env("PMEM_IS_PMEM_FORCE", "0");
    let output = command.output().expect("it is there");
    String::from_utf8_lossy(&output.stdout).trim().parse().expect("it prints a number")
}

/// Child side of `in_another_process`.
#[cfg(pmemobj)]
fn flushed_by_pmdk(folder: &Path) {
    let heap = foreign::Heap::new(foreign::PMEMOBJ, folder, FEW);
    println!("{}", runner("PMDK", FEW, FLUSHED, heap).round());
}

/// Restarts itself if PMDK would not flush as the first benchmark requires.
#[cfg(pmemobj)]
fn with_pmdk_safe_against_kills() {
    use std::os::unix::process::CommandExt;
    if std::env::var_os("PMEM_IS_PMEM_FORCE").is_none() {
        let program = std::env::current_exe().expect("it is running");
        let mut command = std::process::Command::new(program);
        let error = command.args(std::env::args().skip(1)).env("PMEM_IS_PMEM_FORCE", "1").exec();
        panic!("{error}");
    }
}

fn main() {
    #[cfg(pmemobj)]
    with_pmdk_safe_against_kills();
    let folder = std::env::args().nth(1).unwrap_or_else(|| "/dev/shm".to_owned());
    let folder = Path::new(&folder);
    #[cfg(pmemobj)]
    if std::env::args().nth(2).is_some() {
        return flushed_by_pmdk(folder);
    }
    left_out();
    LIVE.into_iter().for_each(|live| process_crash(folder, live));
    power_loss(folder);
}
