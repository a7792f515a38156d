//! Tests of the memory properties of sources, compared with the kernel's report on each mapping.

#![cfg(all(feature = "os", not(miri)))]

use std::alloc::Layout;
use std::fs;
use std::ptr::NonNull;

use pagewise_alloc::source::{MapRefused, MappedSource, UnnamedFile};
use pagewise_alloc::{Pages, Source, SourceBlock};
use pagewise_skip::{Lack, skip, skip_part};

const MIB: usize = 1 << 20;

fn layout(size: usize, align: usize) -> Layout {
    Layout::from_size_align(size, align).unwrap()
}

/// Takes a block, calls `look` with it, and returns it to the source.
fn with_block<T>(source: &impl Source, size: usize, look: impl FnOnce(SourceBlock) -> T) -> T {
    let block = source.take(layout(size, 1)).unwrap();
    let seen = look(block);
    // SAFETY: the block came from this source, and is not used any more.
    unsafe { source.give_back(block) };
    seen
}

fn fill(block: SourceBlock) {
    // SAFETY: the test owns the block, which has this size.
    unsafe { block.start.write_bytes(7, block.size) };
}

/// Returns the lines of smaps for the mapping that contains an address.
fn smaps(start: NonNull<u8>) -> Vec<String> {
    let smaps = fs::read_to_string("/proc/self/smaps").unwrap();
    let holds = |line: &str| {
        let (from, to) = line.split(' ').next()?.split_once('-')?;
        let from = usize::from_str_radix(from, 16).ok()?;
        Some((from..usize::from_str_radix(to, 16).ok()?).contains(&start.addr().get()))
    };
    let mut lines = smaps.lines().skip_while(|line| holds(line) != Some(true));
    let head = lines.next().into_iter();
    head.chain(lines.take_while(|line| holds(line).is_none())).map(str::to_owned).collect()
}

/// Returns the value of a field of smaps in bytes.
fn bytes(smaps: &[String], name: &str) -> usize {
    let line = smaps.iter().find_map(|line| line.strip_prefix(name)?.strip_prefix(':')).unwrap();
    line.trim().strip_suffix(" kB").unwrap().parse::<usize>().unwrap() * 1024
}

/// True if the system has memory with these properties. Otherwise records that a part of a test is
/// skipped.
fn has(kind: MappedSource) -> bool {
    let refused = kind.probe().err();
    if let Some(refused) = &refused {
        skip_part(&Lack::Machine(&refused.to_string()));
    }
    refused.is_none()
}

/// Number of resident bytes of the mapping of a new block before any access to it.
fn resident_untouched(kind: MappedSource) -> usize {
    with_block(&kind, 3 * MIB, |block| bytes(&smaps(block.start), "Rss"))
}

#[test]
fn populated_memory_is_there_before_anyone_touches_it_and_other_memory_is_not() {
    let resident = || {
        with_block(&MappedSource::ANONYMOUS, MIB, |block| {
            // `mincore` counts only the pages of this block; smaps would also count adjacent
            // mappings of other tests.
            MappedSource::ANONYMOUS.resident(block.start, block.size)
        })
    };
    // After the block is taken and before `resident` is called, another test may touch memory
    // behind the block, and the kernel may back both by one huge page. So the check is repeated.
    assert!((0..20).any(|_| resident() == 0));
    let populated = MappedSource::ANONYMOUS.populated();
    if has(populated) {
        assert!(resident_untouched(populated) >= 3 * MIB);
    }
}

#[test]
fn locked_memory_is_there_and_locked() {
    let locked = MappedSource::ANONYMOUS.locked();
    if has(locked) {
        let smaps = with_block(&locked, MIB, |block| smaps(block.start));
        assert!(bytes(&smaps, "Locked") >= MIB, "{smaps:?}");
        assert!(smaps.iter().any(|line| line.starts_with("VmFlags:") && line.contains(" lo")));
    }
}

#[test]
fn transparent_huge_pages_back_what_is_touched() {
    let never = fs::read_to_string("/sys/kernel/mm/transparent_hugepage/enabled");
    if never.is_ok_and(|enabled| enabled.contains("[never]")) {
        return skip(&Lack::Machine("transparent huge pages are switched off"));
    }
    let huge = MappedSource::ANONYMOUS.transparent_huge();
    // Number of page faults for which the kernel had no huge page, in all processes.
    let fallbacks = || {
        let text = fs::read_to_string("/proc/vmstat").unwrap();
        let count = text.lines().find_map(|line| line.strip_prefix("thp_fault_fallback "));
        count.unwrap().parse::<u64>().unwrap()
    };
    if has(huge) {
        let before = fallbacks();
        with_block(&huge, 8 * MIB, |block| {
            assert!(block.start.addr().get().is_multiple_of(2 * MIB));
            fill(block);
            let smaps = smaps(block.start);
            assert!(smaps.iter().any(|line| line.starts_with("VmFlags:") && line.contains(" hg")));
            let is_huge = bytes(&smaps, "AnonHugePages") > 0;
            if !is_huge && fallbacks() > before {
                return skip(&Lack::Chance("the kernel has no free huge page"));
            }
            assert!(is_huge, "{smaps:?}");
        });
    }
}

#[test]
fn reserved_huge_pages_are_used_or_reported_as_missing() {
    let huge = MappedSource::ANONYMOUS.reserved_huge(21);
    match huge.probe() {
        Ok(()) => with_block(&huge, MIB, |block| {
            fill(block);
            assert_eq!(bytes(&smaps(block.start), "KernelPageSize"), 2 * MIB);
        }),
        Err(refused) => assert!(refused.to_string().contains("nr_hugepages"), "{refused}"),
    }
    let no_such_size = MappedSource::ANONYMOUS.reserved_huge(22).probe();
    assert_eq!(no_such_size.map_err(|refused| refused.number()), Err(libc::EINVAL));
    assert_eq!(MappedSource::ANONYMOUS.reserved_huge(22).take(layout(1, 1)), None);
}

#[test]
fn memory_comes_from_the_nodes_that_were_asked_for() {
    let first = MappedSource::ANONYMOUS.on_nodes(1);
    if has(first) {
        with_block(&first, MIB, |block| {
            fill(block);
            let maps = fs::read_to_string("/proc/self/numa_maps").unwrap();
            let start = format!("{:08x} ", block.start.addr());
            let line = maps.lines().find(|line| line.starts_with(&start)).unwrap();
            assert!(line.contains(" bind:0 ") && line.contains(" N0="), "{line}");
        });
    }
    let refused = MappedSource::ANONYMOUS.on_nodes(1 << 63).probe().unwrap_err();
    assert!(refused.to_string().starts_with("mbind: "), "{refused}");
    assert!(refused.to_string().contains("NUMA") || refused.number() == libc::EPERM, "{refused}");
}

#[test]
fn a_file_is_behind_its_memory_and_loses_its_space_with_it() {
    let file = UnnamedFile::unnamed(c"/tmp").unwrap();
    with_block(&file, 100_000, |block| {
        fill(block);
        let smaps = smaps(block.start);
        assert!(smaps[0].contains("rw-s") && smaps[0].contains("/tmp/#"), "{}", smaps[0]);
    });
    with_block(&file, 100_000, |block| {
        // SAFETY: the test owns the block, and new space of a file is zero-filled.
        let bytes = unsafe { std::slice::from_raw_parts(block.start.as_ptr(), block.size) };
        assert!(block.zeroed && bytes.iter().all(|byte| *byte == 0));
    });
    let aligned = file.take(layout(MIB, 4 * MIB)).unwrap();
    assert!(aligned.start.addr().get().is_multiple_of(4 * MIB));
    fill(aligned);
    // SAFETY: the block came from this source, and is not used any more.
    unsafe { file.give_back(aligned) };
}

#[test]
fn a_folder_that_is_not_there_is_a_clear_error() {
    let refused: MapRefused = UnnamedFile::unnamed(c"/no/such/folder").unwrap_err();
    assert_eq!(refused.to_string(), "open: the folder does not exist");
}

#[test]
fn pages_of_every_kind_are_handed_out_and_come_back() {
    fn use_pages(pool: &Pages<impl Source>) {
        let runs: Vec<_> = (1..20).map(|n| (pool.allocate(layout(n * 10_000, 1)), n)).collect();
        for (run, n) in runs {
            let run = run.unwrap();
            // SAFETY: the test owns the run, which has at least this size.
            unsafe { run.write_bytes(1, n * 10_000) };
            // SAFETY: the run came from this pool with this size, and is not used any more.
            unsafe { pool.free(run, n * 10_000) };
        }
        pool.check();
        pool.trim();
        assert_eq!(pool.usage().held, 0);
    }
    let anonymous = MappedSource::ANONYMOUS;
    for kind in [anonymous, anonymous.transparent_huge(), anonymous.populated(), anonymous.locked()]
    {
        if has(kind) {
            use_pages(&Pages::new(kind));
        }
    }
    use_pages(&Pages::new(UnnamedFile::unnamed(c"/tmp").unwrap()));
}
