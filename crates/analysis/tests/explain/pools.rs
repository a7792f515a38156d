//! Every kind of pool is recognized by its evidence, and by nothing less.

use pagewise_analysis::pools::{ElfPart, PoolKind, classify};
use pagewise_model::object::ElfObject;
use pagewise_model::{AddrRange, Bytes, Mapping, Pid, Snapshot};
use proptest::prelude::*;

use crate::build::*;

const MIB: u64 = 1 << 20;
const HEAP: u64 = 64 * MIB;

/// PoolKind and name of each mapping's pool.
fn pools(snapshot: &Snapshot) -> Vec<(PoolKind, String)> {
    let pools = classify(snapshot);
    let count = snapshot.mappings.as_ref().map_or(0, Vec::len);
    (0..count)
        .map(|i| (pools.pool_of(i).kind, pools.pool_of(i).name.escaped().into_owned()))
        .collect()
}

fn kinds(snapshot: &Snapshot) -> Vec<PoolKind> {
    pools(snapshot).into_iter().map(|(kind, _)| kind).collect()
}

/// One mapping alone.
fn kind_of(mapping: Mapping) -> PoolKind {
    kinds(&snapshot(vec![mapping]))[0]
}

const BASE: u64 = 0x5555_5555_4000;

/// A program as gcc links it: four segments, and data whose page also holds the end of rodata.
fn program(base: u64, path: &str) -> (Vec<Mapping>, ElfObject) {
    let mappings = vec![
        map(base, 4, "r--p", path),
        map(base + 0x1000, 4, "r-xp", path).at_offset(0x1000),
        map(base + 0x2000, 4, "r--p", path).at_offset(0x2000),
        map(base + 0x3000, 4, "r--p", path).at_offset(0x2000),
        map(base + 0x4000, 4, "rw-p", path).at_offset(0x3000),
        map(base + 0x5000, 16, "rw-p", ""),
    ];
    let segments = vec![
        segment(0, 0, 0x628, 0x628, "r"),
        segment(0x1000, 0x1000, 0x1b1, 0x1b1, "rx"),
        segment(0x2000, 0x2000, 0x114, 0x114, "r"),
        segment(0x3db8, 0x2db8, 0x258, 0x4288, "rw"),
    ];
    let object = object(&mappings[0], segments);
    (mappings, object)
}

fn program_snapshot(path: &str) -> Snapshot {
    let (mappings, object) = program(BASE, path);
    Snapshot { objects: vec![object], ..snapshot(mappings) }
}

#[test]
fn the_parts_of_the_program_follow_from_its_segments() {
    let snapshot = program_snapshot("/usr/bin/prog");
    use PoolKind::*;
    let expected =
        [ProgramRodata, ProgramText, ProgramRodata, ProgramData, ProgramData, ProgramBss];
    assert_eq!(kinds(&snapshot), expected);
    assert!(pools(&snapshot).iter().all(|(_, name)| name == "/usr/bin/prog"));
}

#[test]
fn permissions_do_not_decide_the_part() {
    let mut snapshot = program_snapshot("/usr/bin/prog");
    for mapping in snapshot.mappings.as_mut().unwrap() {
        mapping.prot.write = true;
        mapping.prot.exec = true;
    }
    assert_eq!(kinds(&snapshot)[1..3], [PoolKind::ProgramText, PoolKind::ProgramRodata]);
}

#[test]
fn a_library_is_one_pool_with_parts() {
    let snapshot = program_snapshot("/usr/lib/libz.so.1");
    let other = Snapshot {
        process: pagewise_model::process::Process {
            exe: Ok("/usr/bin/prog".into()),
            ..snapshot.process.clone()
        },
        ..snapshot
    };
    // The program itself comes first, so that the library is not taken for it.
    let (mut mappings, object) = program(0x1000_0000, "/usr/bin/prog");
    mappings.extend(other.mappings.clone().unwrap());
    let mut both = Snapshot { mappings: Ok(mappings), ..other };
    both.objects.push(object);
    let pools = classify(&both);
    assert!((6..12).all(|i| pools.pool_of(i).kind == PoolKind::Library));
    assert!((6..12).all(|i| pools.index(i) == pools.index(6)));
    use ElfPart::*;
    let parts: Vec<_> = (6..12).filter_map(|i| pools.part(i)).collect();
    assert_eq!(parts, [Rodata, Text, Rodata, Data, Data, Bss]);
}

#[test]
fn a_hole_without_access_between_segments_belongs_to_the_library() {
    let path = "/usr/lib/old.so";
    let mappings = vec![
        map(BASE, 4, "r-xp", path),
        map(BASE + 0x1000, 2044, "---p", path).at_offset(0x1000),
        map(BASE + 0x20_0000, 4, "rw-p", path).at_offset(0x1000),
    ];
    let segments =
        vec![segment(0, 0, 0x800, 0x800, "rx"), segment(0x20_0000, 0x1000, 0x100, 0x100, "rw")];
    let object = object(&mappings[0], segments);
    let mut snapshot = Snapshot { objects: vec![object], ..snapshot(mappings) };
    library(&mut snapshot, 0x1000, "/usr/bin/prog");
    let pools = classify(&snapshot);
    assert_eq!(pools.part(2), Some(ElfPart::Padding));
    assert_eq!(pools.pool_of(2).kind, PoolKind::Library);
}

#[test]
fn bss_merged_with_other_anonymous_memory_is_not_bss_any_more() {
    let mut snapshot = program_snapshot("/usr/bin/prog");
    let bss = &mut snapshot.mappings.as_mut().unwrap()[5];
    bss.range.end += 16 * MIB;
    assert_eq!(kinds(&snapshot)[5], PoolKind::Anonymous);
}

#[test]
fn an_elf_file_that_is_only_read_is_a_file() {
    let mapping = map(BASE, 64, "r--p", "/usr/bin/other");
    let object = object(&mapping, vec![segment(0, 0, 0x800, 0x800, "rx")]);
    let snapshot = Snapshot { objects: vec![object], ..snapshot(vec![mapping]) };
    assert_eq!(kinds(&snapshot), [PoolKind::File]);
}

#[test]
fn a_library_whose_headers_cannot_be_read_has_no_parts() {
    let snapshot = snapshot(vec![map(BASE, 64, "r-xp", "/usr/lib/libz.so.1.2")]);
    let pools = classify(&snapshot);
    assert_eq!((pools.pool_of(0).kind, pools.part(0)), (PoolKind::Library, None));
}

#[test]
fn names_identify_most_kinds() {
    for (mode, name, kind) in [
        ("rw-p", "[heap]", PoolKind::Heap),
        ("rw-p", "[stack]", PoolKind::MainStack),
        ("rw-p", "[stack:77]", PoolKind::ThreadStack),
        ("r-xp", "[vdso]", PoolKind::Kernel),
        ("r--p", "[vvar_vclock]", PoolKind::Kernel),
        ("--xp", "[vsyscall]", PoolKind::Kernel),
        ("rw-s", "/SYSV00000000 (deleted)", PoolKind::SharedSysv),
        ("rw-s", "/dev/shm/sem.x", PoolKind::SharedPosix),
        ("rw-s", "/memfd:x (deleted)", PoolKind::Memfd),
        ("rw-s", "/dev/zero (deleted)", PoolKind::SharedAnonymous),
        ("rw-p", "/dev/zero", PoolKind::Anonymous),
        ("rw-s", "[anon_shmem:x]", PoolKind::SharedAnonymous),
        ("rw-p", "/anon_hugepage (deleted)", PoolKind::Hugetlb),
        ("rw-p", "[anon:mine]", PoolKind::Named),
        ("rw-p", "[anon:pagewise:frames]", PoolKind::Pagewise),
        ("rw-s", "/memfd:pagewise (deleted)", PoolKind::Pagewise),
        ("rw-p", "[anon:scudo:primary]", PoolKind::Allocator),
        ("rw-p", "[anon: Go: heap]", PoolKind::Go),
        ("rw-p", "[anon: glibc: malloc arena]", PoolKind::MallocArena),
        ("rw-p", "[later kernels' thing]", PoolKind::Named),
        ("r--s", "/var/cache/fonts", PoolKind::File),
        ("rw-s", "/dev/dri/card0", PoolKind::Device),
        ("rw-s", "anon_inode:[perf_event]", PoolKind::Device),
        ("rwxp", "", PoolKind::Jit),
        ("---p", "", PoolKind::Reserve),
        ("rw-p", "", PoolKind::Anonymous),
    ] {
        assert_eq!(kind_of(map(0x7000_0000_1000, 64, mode, name)), kind, "{name}");
    }
}

#[test]
fn named_memory_has_a_pool_for_each_name() {
    let snapshot = snapshot(vec![
        map(0x1000, 4, "rw-p", "[anon:a]"),
        map(0x3000, 4, "rw-p", "[anon:b]"),
        map(0x5000, 4, "rw-p", "[anon:a]"),
    ]);
    let names: Vec<_> = pools(&snapshot).into_iter().map(|(_, name)| name).collect();
    assert_eq!(names, ["a", "b", "a"]);
    assert_eq!(classify(&snapshot).list().len(), 2);
}

#[test]
fn a_file_on_tmpfs_is_memory() {
    let mapping = Mapping { on_tmpfs: true, ..map(0x1000, 4, "rw-s", "/run/state") };
    assert_eq!(kind_of(mapping), PoolKind::Tmpfs);
}

/// A snapshot with glibc and these mappings.
fn with_glibc(mappings: Vec<Mapping>) -> Snapshot {
    let mut snapshot = snapshot(mappings);
    library(&mut snapshot, 0x1000, "/usr/bin/prog");
    library(&mut snapshot, 0x10_0000, "/usr/lib/libc.so.6");
    snapshot
}

fn arena(heap: u64, used_kib: u64) -> Vec<Mapping> {
    let start = heap * HEAP;
    let rest = (HEAP >> 10) - used_kib;
    vec![map(start, used_kib, "rw-p", ""), map(start + (used_kib << 10), rest, "---p", "")]
}

#[test]
fn an_arena_is_aligned_and_fills_its_heap_with_the_rest_without_access() {
    assert_eq!(kinds(&with_glibc(arena(100, 132)))[2..], [PoolKind::MallocArena; 2]);
}

#[test]
fn the_same_shape_is_not_an_arena_without_glibc() {
    assert_eq!(kinds(&snapshot(arena(100, 132))), [PoolKind::Anonymous, PoolKind::Reserve]);
}

#[test]
fn aligned_memory_alone_is_not_an_arena() {
    assert_eq!(kinds(&with_glibc(vec![map(100 * HEAP, 132, "rw-p", "")]))[2], PoolKind::Anonymous);
}

#[test]
fn a_guard_that_merged_with_the_rest_of_a_heap_does_not_hide_it() {
    let mut mappings = arena(100, 132);
    mappings[1].range.end += PAGE;
    assert_eq!(kinds(&with_glibc(mappings))[2..], [PoolKind::MallocArena; 2]);
}

#[test]
fn the_first_words_of_a_heap_confirm_or_deny_it() {
    let start = 100 * HEAP;
    let full = || vec![map(start, HEAP >> 10, "rw-p", "")];
    let with_head = |words| {
        let mut snapshot = with_glibc(full());
        snapshot.heads = vec![head(start, words)];
        kinds(&snapshot)[2]
    };
    assert_eq!(with_head([start + 0x30, 0]), PoolKind::MallocArena);
    assert_eq!(with_head([99 * HEAP + 0x30, 99 * HEAP]), PoolKind::MallocArena);
    assert_eq!(with_head([0, 0]), PoolKind::Anonymous);
    assert_eq!(with_head([0x1234, 0x5678]), PoolKind::Anonymous);
}

#[test]
fn a_mapped_chunk_has_its_size_and_flag_in_the_second_word() {
    let start = 0x7000_0000_0000;
    let with_head = |words| {
        let mut snapshot = with_glibc(vec![map(start, 1024, "rw-p", "")]);
        snapshot.heads = vec![head(start, words)];
        kinds(&snapshot)[2]
    };
    assert_eq!(with_head([0, MIB | 2]), PoolKind::MallocChunk);
    assert_eq!(with_head([0, (MIB / 2) | 2]), PoolKind::MallocChunk, "chunks that merged");
    assert_eq!(with_head([1, MIB | 2]), PoolKind::Anonymous);
    assert_eq!(with_head([0, MIB]), PoolKind::Anonymous);
    assert_eq!(with_head([0, (MIB + 8) | 2]), PoolKind::Anonymous);
    assert_eq!(with_head([0, (2 * MIB) | 2]), PoolKind::Anonymous, "larger than its mapping");
    assert_eq!(with_head([0, 2]), PoolKind::Anonymous);
}

#[test]
fn a_library_that_replaces_malloc_names_unattributed_memory() {
    for (library_name, expected) in [
        ("/usr/lib/libjemalloc.so.2", "jemalloc, and mmap"),
        ("/usr/lib/libtcmalloc_minimal.so.4", "tcmalloc, and mmap"),
        ("/usr/lib/libmimalloc.so.2", "mimalloc, and mmap"),
        ("/lib/ld-musl-x86_64.so.1", "musl malloc, and mmap"),
        ("/usr/lib/x86_64-linux-musl/libc.so", "musl malloc, and mmap"),
    ] {
        let mut snapshot = snapshot(vec![map(0x7000_0000_0000, 64, "rw-p", "")]);
        library(&mut snapshot, 0x1000, "/usr/bin/prog");
        library(&mut snapshot, 0x10_0000, library_name);
        assert_eq!(pools(&snapshot)[2], (PoolKind::Allocator, expected.to_owned()));
    }
}

#[test]
fn an_allocator_linked_into_the_program_is_found_by_its_symbols() {
    let mut snapshot = program_snapshot("/usr/bin/prog");
    snapshot.objects[0].elf.as_mut().unwrap().allocator = Some("mi_malloc".into());
    snapshot.mappings.as_mut().unwrap().push(map(0x7000_0000_0000, 64, "rw-p", ""));
    assert_eq!(pools(&snapshot)[6], (PoolKind::Allocator, "mimalloc, and mmap".to_owned()));
}

const STACKS: u64 = 0x7000_0000_0000;

/// `count` stacks of 8 MiB with a guard of one page each.
fn stacks(count: u64) -> Vec<Mapping> {
    let each = |i| {
        let start = STACKS + i * 8 * MIB;
        [map(start, 4, "---p", ""), map(start + PAGE, 8188, "rw-p", "")]
    };
    (0..count).flat_map(each).collect()
}

fn top_of(stack: u64) -> u64 {
    STACKS + (stack + 1) * 8 * MIB - 64
}

#[test]
fn a_stack_is_recognized_by_its_pointer_and_includes_its_guard() {
    let mut snapshot = snapshot(stacks(2));
    snapshot.threads = Ok(vec![
        thread(1234, "prog", 0x7fff_0000_0000),
        thread(1235, "net", top_of(0)),
        thread(1236, "disk", top_of(1)),
    ]);
    let expected = ["net (1235)", "net (1235)", "disk (1236)", "disk (1236)"]
        .map(|n| (PoolKind::ThreadStack, n.to_owned()));
    assert_eq!(pools(&snapshot), expected);
}

#[test]
fn a_running_thread_gets_the_guarded_mapping_that_is_left_and_the_rest_is_cached() {
    let mut snapshot = snapshot(stacks(3));
    snapshot.threads =
        Ok(vec![running(1234, "prog"), thread(1235, "net", top_of(0)), running(1236, "disk")]);
    use PoolKind::*;
    let expected = [ThreadStack, ThreadStack, ThreadStack, ThreadStack, CachedStack, CachedStack];
    assert_eq!(kinds(&snapshot), expected);
}

#[test]
fn guarded_memory_of_an_unusual_size_is_not_a_stack_while_all_threads_have_one() {
    let guarded = vec![map(STACKS, 4, "---p", ""), map(STACKS + PAGE, 100, "rw-p", "")];
    let mut alone = snapshot(guarded);
    assert_eq!(kinds(&alone), [PoolKind::Reserve, PoolKind::Anonymous]);
    alone.threads = Ok(vec![thread(1234, "prog", 0), running(1235, "odd")]);
    assert_eq!(kinds(&alone), [PoolKind::ThreadStack; 2]);
}

#[test]
fn stacks_that_merged_into_one_mapping_are_counted() {
    let mut snapshot = snapshot(vec![map(STACKS, 16 << 10, "rw-p", "")]);
    snapshot.threads =
        Ok(vec![running(1234, "prog"), thread(1235, "a", top_of(0)), thread(1236, "b", top_of(1))]);
    assert_eq!(pools(&snapshot), [(PoolKind::ThreadStack, "a (1235) and 1 more".to_owned())]);
}

#[test]
fn a_stack_pointer_into_go_memory_does_not_make_it_a_stack() {
    let mut snapshot = snapshot(vec![
        map(0xc0_0000_0000, 4096, "rw-p", ""),
        map(0xc0_0040_0000, 60 << 10, "---p", ""),
    ]);
    snapshot.threads = Ok(vec![running(1234, "prog"), thread(1235, "m1", 0xc0_0000_2000)]);
    assert_eq!(kinds(&snapshot), [PoolKind::Go; 2]);
}

#[test]
fn go_memory_is_whole_arenas_wherever_go_puts_them() {
    let start = 0x1f79_f800_0000;
    let arenas = vec![
        map(start, 20 << 10, "---p", ""),
        map(start + 20 * MIB, 60 << 10, "rw-p", ""),
        map(start + 80 * MIB, 48 << 10, "---p", ""),
    ];
    use PoolKind::*;
    let mut other = snapshot(arenas);
    library(&mut other, 0x1000, "/usr/bin/prog");
    assert_eq!(kinds(&other)[1..], [Reserve, Anonymous, Reserve]);
    other.objects[0].elf.as_mut().unwrap().sections.push(pagewise_model::object::ObjectSection {
        name: ".gopclntab".into(),
        range: pagewise_model::AddrRange { start: 0, end: 8 },
        offset: 0,
        zero_filled: false,
        thread_local: false,
        write: false,
        exec: false,
    });
    assert_eq!(kinds(&other)[1..], [Go; 3]);
}

#[test]
fn a_sanitizer_is_recognized_by_its_huge_shadow() {
    let shadow = vec![
        map(0x7fff_7000, 256 << 10, "rw-p", ""),
        map(0x8fff_7000, 2 << 30, "---p", ""),
        map(0x0200_8fff_7000, 14 << 30, "rw-p", ""),
        map(0x7000_0000_0000, 64, "rw-p", ""),
    ];
    use PoolKind::*;
    assert_eq!(kinds(&snapshot(shadow.clone())), [Sanitizer, Sanitizer, Sanitizer, Anonymous]);
    let small: Vec<Mapping> = shadow
        .into_iter()
        .map(|mut m| {
            m.range.end = m.range.end.min(m.range.start + Bytes::gib(1).0);
            m
        })
        .collect();
    assert_eq!(kinds(&snapshot(small)), [Anonymous, Reserve, Anonymous, Anonymous]);
}

#[test]
fn a_mapping_belongs_to_the_pool_with_most_of_it() {
    let pool = |name: &str, ranges: &[(u64, u64)]| pagewise_model::pagewise_pools::RegisteredPool {
        kind: "tlsf".into(),
        name: name.into(),
        lives: true,
        ranges: ranges.iter().map(|&(start, end)| AddrRange { start, end }).collect(),
        ..Default::default()
    };
    let map = |start: u64, kib: u64| map(start, kib, "rw-p", "");
    let mappings = vec![map(0x10_0000, 64), map(0x20_0000, 64), map(0x30_0000, 64)];
    let ours = vec![
        pool("a", &[(0x20_0000, 0x20_9000), (0x10_0000, 0x11_0000)]),
        pool("b", &[(0x20_9000, 0x20_f000)]),
        pool("c", &[(0x30_0000, 0x30_8000)]),
    ];
    let ended =
        vec![pagewise_model::pagewise_pools::RegisteredPool { lives: false, ..ours[0].clone() }];
    let with = |pools| Snapshot { pools, ..snapshot(mappings.clone()) };
    let a = (PoolKind::Pagewise, "tlsf a".to_owned());
    let found = pools(&with(ours));
    assert_eq!(found[..2], [a.clone(), a]);
    assert_eq!(found[2].0, PoolKind::Anonymous, "half of it is not most of it");
    assert_eq!(kinds(&with(ended)), [PoolKind::Anonymous; 3]);
}

#[test]
fn a_kernel_thread_has_no_pools() {
    assert!(classify(&Snapshot { mappings: absent(), ..snapshot(vec![]) }).list().is_empty());
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn any_layout_is_sorted_without_panic(
        starts in proptest::collection::vec((any::<u64>(), any::<u64>(), 0..32usize), 0..40),
        pointers in proptest::collection::vec(any::<u64>(), 0..8),
    ) {
        let names = ["", "", "", "/usr/bin/prog", "/lib/libc.so.6", "[heap]", "[anon:.bss]", "[stack]"];
        let modes = ["rw-p", "---p", "r-xp", "rwxs"];
        let mut mappings: Vec<Mapping> = starts.iter().map(|&(start, end, kind)| {
            let mut mapping = map(0, 0, modes[kind / 8], names[kind % 8]).at_offset(end & !0xfff);
            mapping.range = pagewise_model::AddrRange { start, end };
            mapping
        }).collect();
        mappings.sort_by_key(|m| m.range);
        let objects = mappings.iter().filter(|m| m.inode != 0).map(|m| {
            object(m, vec![segment(m.range.start >> 1, m.offset, u64::MAX, m.range.end >> 2, "rx")])
        }).collect();
        let heads = mappings.iter().map(|m| head(m.range.start, [m.range.end, m.range.start])).collect();
        let threads = pointers.iter().zip(1u32..).map(|(&sp, tid)| {
            pagewise_model::process::Thread { tid: Pid(tid), name: "t".into(), stack_pointer: Ok(sp) }
        }).collect();
        let ranges = starts.iter().map(|&(end, start, _)| AddrRange { start, end }).collect();
        let pool = pagewise_model::pagewise_pools::RegisteredPool { lives: true, ranges, ..Default::default() };
        let pools = vec![pool.clone(), pool];
        let snapshot =
            Snapshot { objects, heads, pools, threads: Ok(threads), ..snapshot(mappings.clone()) };
        prop_assert_eq!(kinds(&snapshot).len(), mappings.len());
    }
}
