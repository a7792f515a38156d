//! Files: a written recording is read back, and a file that is cut, changed or invalid is read up
//! to the first error.

#![expect(clippy::unwrap_used, reason = "what fails here fails the test")]

use std::collections::BTreeMap;
use std::io::Cursor;
use std::sync::LazyLock;

use pagewise_heaplog::LogWriter;
use pagewise_heaplog::reader::{self, LogError, SnapshotIndex};
use pagewise_heaplog::recording::{
    Begin, LogAddress, LogAmount, LogArea, LogAreaKind, LogBlock, LogCallNode, LogCounts, LogEnd,
    LogEnding, LogKind, LogLayout, LogLiveTree, LogModule, LogPageDensity, LogPinned, LogRecording,
    LogResident, LogSite, LogSiteCounts, LogSnapshot, LogThread, ROOT,
};
use proptest::prelude::*;
use proptest::sample::Index as Pick;
use proptest::strategy::ValueTree;

/// Writes a recording as a collector does: new entries before each snapshot, and a checkpoint now
/// and then.
fn write(recording: &LogRecording, checkpoints: bool) -> Vec<u8> {
    let mut writer = LogWriter::create(Vec::new(), &recording.begin).unwrap();
    writer.modules(&recording.modules).unwrap();
    writer.places(&recording.places).unwrap();
    let middle = recording.nodes.len() / 2;
    writer.nodes(&recording.nodes[..middle]).unwrap();
    writer.nodes(&recording.nodes[middle..]).unwrap();
    writer.sites(&recording.sites).unwrap();
    for moment in &recording.moments {
        writer.moment(moment).unwrap();
        if checkpoints {
            let mut counts = recording.counts.clone();
            counts.sites.iter_mut().for_each(|site| site.allocated.bytes /= 2);
            counts.sites.truncate(recording.sites.len() / 2);
            writer.counts(&counts).unwrap();
        }
    }
    for layout in &recording.layouts {
        writer.layout(layout).unwrap();
    }
    // Several frames.
    for blocks in recording.blocks.chunks(7) {
        writer.blocks(blocks).unwrap();
    }
    writer.counts(&recording.counts).unwrap();
    match &recording.end {
        Some(end) => writer.end(end).unwrap(),
        None => panic!("recordings here have an end"),
    }
}

fn number() -> impl Strategy<Value = u64> {
    prop_oneof![4 => 0_u64..100, 2 => any::<u32>().prop_map(u64::from), 1 => any::<u64>()]
}

fn amount() -> impl Strategy<Value = LogAmount> {
    (number(), number()).prop_map(|(bytes, blocks)| LogAmount { bytes, blocks })
}

fn text() -> impl Strategy<Value = Vec<u8>> {
    prop::collection::vec(any::<u8>(), 0..12)
}

fn begin() -> impl Strategy<Value = Begin> {
    let numbers = (any::<u32>(), any::<u32>(), any::<u64>(), number(), number(), any::<u32>());
    let words = (prop::collection::vec(text(), 0..4), text(), text(), any::<bool>());
    (numbers, words).prop_map(|(numbers, (command, program, allocator, attached))| {
        let (pid, parent, began_ns, page_size, every_bytes, lifetimes_every) = numbers;
        Begin {
            pid,
            parent,
            began_ns,
            page_size,
            every_bytes,
            command,
            program,
            allocator,
            lifetimes_every,
            attached,
        }
    })
}

fn module() -> impl Strategy<Value = LogModule> {
    (text(), text(), any::<u64>(), any::<u64>(), any::<u64>()).prop_map(
        |(path, build_id, start, end, bias)| LogModule { path, build_id, start, end, bias },
    )
}

fn counted() -> impl Strategy<Value = LogSiteCounts> {
    (amount(), amount(), number(), amount(), 0.0..1e9, 0.0..1e9).prop_map(
        |(allocated, freed, temporary, at_peak, a, b)| LogSiteCounts {
            allocated,
            freed,
            temporary,
            at_peak,
            errors: (a, b),
        },
    )
}

fn thread() -> impl Strategy<Value = LogThread> {
    (any::<u32>(), text(), amount(), amount()).prop_map(|(tid, name, allocated, freed)| LogThread {
        tid,
        name,
        allocated,
        freed,
    })
}

fn counts(sites: usize) -> impl Strategy<Value = LogCounts> {
    let numbers = (number(), amount(), number(), any::<Option<u64>>(), number(), number());
    let lists = (
        prop::collection::vec(counted(), 0..=sites),
        prop::collection::vec(number(), 0..65),
        prop::collection::vec(number(), 0..65),
        prop::collection::vec(thread(), 0..4),
        any::<bool>(),
    );
    (numbers, lists).prop_map(|(numbers, (mut sites, sizes, lifetimes, threads, sampled))| {
        let (time_ns, peak, peak_within, peak_at_ns, unknown_frees, cut_stacks) = numbers;
        if !sampled {
            sites.iter_mut().for_each(|site| site.errors = (0.0, 0.0));
        }
        LogCounts {
            time_ns,
            sites,
            peak,
            peak_within,
            peak_at_ns,
            unknown_frees,
            cut_stacks,
            sizes,
            lifetimes,
            threads,
        }
    })
}

fn resident() -> impl Strategy<Value = LogResident> {
    (number(), number(), number(), number(), prop::option::of(number())).prop_map(
        |(anonymous, file, shmem, swap, recorder)| LogResident {
            anonymous,
            file,
            shmem,
            swap,
            recorder,
        },
    )
}

fn moment(sites: u32) -> impl Strategy<Value = LogSnapshot> {
    let tree = (prop::collection::btree_map(0..sites, amount(), 0..20), amount());
    let tree = tree.prop_map(|(sites, others)| {
        let mut sites: Vec<(u32, LogAmount)> = sites.into_iter().collect();
        sites.sort_by_key(|(site, amount)| {
            (u64::MAX - amount.bytes, u64::MAX - amount.blocks, *site)
        });
        LogLiveTree { sites, others }
    });
    let sums = (any::<u32>(), amount(), amount(), prop::option::of(number()));
    let options = (prop::option::of(tree), prop::option::of(amount()));
    (sums, prop::option::of(resident()), options).prop_map(
        |((time, live, allocated, held), resident, (tree, older_freed))| LogSnapshot {
            time_ns: time.into(),
            live,
            allocated,
            held,
            resident,
            tree,
            older_freed,
        },
    )
}

fn area() -> impl Strategy<Value = LogArea> {
    let sums = (0..4_usize, any::<u32>(), any::<u32>(), number());
    let known = || prop::option::of(number());
    (sums, known(), prop::option::of(amount()), (known(), known(), known(), known())).prop_map(
        |((kind, number, parts, held), resident, live, (empty, top, gap, threads))| LogArea {
            kind: [
                LogAreaKind::Main,
                LogAreaKind::Arena,
                LogAreaKind::Mapped,
                LogAreaKind::Mappings,
            ][kind],
            number,
            parts,
            held,
            resident,
            live,
            empty,
            top,
            gap,
            threads,
        },
    )
}

fn layout(sites: u32) -> impl Strategy<Value = LogLayout> {
    let pinned = prop::collection::btree_map(0..sites, (number(), amount()), 0..6);
    let pinned = pinned.prop_map(|all| {
        let each = all.into_iter().map(|(site, (bytes, live))| LogPinned { site, bytes, live });
        each.collect::<Vec<_>>()
    });
    let others = (number(), amount()).prop_map(|(bytes, live)| LogPinned { site: 0, bytes, live });
    let pages = (prop::array::uniform9(number()), pinned, others);
    let pages = pages.prop_map(|(cells, pinned, others)| LogPageDensity { cells, pinned, others });
    let areas = prop::collection::vec(area(), 0..6);
    (any::<u32>(), areas, prop::option::of(pages), number()).prop_map(
        |(time, areas, pages, unclear)| LogLayout { time_ns: time.into(), areas, pages, unclear },
    )
}

/// Any valid recording: all references are to existing entries.
fn recording() -> impl Strategy<Value = LogRecording> {
    let parts = (
        begin(),
        prop::collection::vec(module(), 1..4),
        prop::collection::vec((any::<u64>(), any::<Option<Pick>>(), any::<bool>()), 1..20),
        prop::collection::vec((any::<Option<Pick>>(), any::<Pick>(), any::<bool>()), 1..60),
        prop::collection::vec((any::<Option<Pick>>(), 0..3_u8), 1..40),
    );
    parts
        .prop_flat_map(|(begin, modules, places, nodes, sites)| {
            let count = u32::try_from(sites.len()).unwrap();
            let index = |pick: Pick, length: usize| u32::try_from(pick.index(length)).unwrap();
            let places: Vec<LogAddress> = places
                .into_iter()
                .map(|(address, pick, exact)| LogAddress {
                    address,
                    exact,
                    module: pick.map(|pick| index(pick, modules.len())),
                })
                .collect();
            let mut tree: Vec<LogCallNode> = Vec::new();
            for (parent, place, follows) in nodes {
                let last = tree.len().checked_sub(1);
                let parent = match (parent, last) {
                    (_, Some(last)) if follows => u32::try_from(last).unwrap(),
                    (Some(pick), Some(last)) => index(pick, last + 1),
                    _ => ROOT,
                };
                tree.push(LogCallNode { parent, place: index(place, places.len()) });
            }
            let sites: Vec<LogSite> = sites
                .into_iter()
                .map(|(pick, kind)| LogSite {
                    node: pick.map_or(ROOT, |pick| index(pick, tree.len())),
                    kind: [LogKind::Heap, LogKind::Mapping, LogKind::Pool][usize::from(kind)],
                })
                .collect();
            let end = (any::<u64>(), any::<i32>(), 0..5_u8).prop_map(|(time_ns, status, how)| {
                let how = match how {
                    0 => LogEnding::Exited(status),
                    1 => LogEnding::Killed(status),
                    2 => LogEnding::Replaced,
                    3 => LogEnding::Detached,
                    _ => LogEnding::Gone,
                };
                LogEnd { time_ns, how }
            });
            let moments = prop::collection::vec(moment(count), 0..50);
            let layouts = prop::collection::vec(layout(count), 0..4);
            let blocks = prop::collection::btree_map(number(), 0..count.max(1), 0..20);
            let blocks =
                blocks.prop_map(move |blocks| if count == 0 { vec![] } else { all(blocks) });
            let named = (Just((begin, modules, places, tree, sites)), moments, layouts, blocks);
            (named, counts(sites_of(count)), end)
        })
        .prop_map(|((said, mut moments, mut layouts, blocks), counts, end)| {
            let (begin, modules, places, nodes, sites) = said;
            moments.sort_by_key(|moment| moment.time_ns);
            layouts.sort_by_key(|layout| layout.time_ns);
            let end = Some(end);
            LogRecording {
                begin,
                modules,
                places,
                nodes,
                sites,
                moments,
                layouts,
                counts,
                blocks,
                end,
            }
        })
}

fn all(blocks: BTreeMap<u64, u32>) -> Vec<LogBlock> {
    blocks.into_iter().map(|(address, site)| LogBlock { address, site }).collect()
}

fn sites_of(count: u32) -> usize {
    usize::try_from(count).unwrap()
}

/// A recording with entries of every kind.
static SAMPLE: LazyLock<LogRecording> = LazyLock::new(|| {
    let mut runner = proptest::test_runner::TestRunner::deterministic();
    loop {
        let found = recording().new_tree(&mut runner).unwrap().current();
        let trees = found.moments.iter().filter(|moment| moment.tree.is_some()).count();
        let pinned = found.layouts.iter().filter_map(|it| it.pages.as_ref());
        if pinned.count() > 1 && trees > 3 && found.nodes.len() > 20 && found.counts.sites.len() > 5
        {
            return found;
        }
    }
});

/// Checks that all references are to existing entries.
fn check(recording: &LogRecording) {
    let is_in = |at: u32, length: usize| (at as usize) < length;
    let LogRecording { modules, places, nodes, sites, moments, layouts, counts, blocks, .. } =
        recording;
    assert!(blocks.iter().all(|it| is_in(it.site, sites.len())));
    assert!(blocks.is_sorted_by(|one, other| one.address < other.address));
    assert!(places.iter().all(|it| it.module.is_none_or(|module| is_in(module, modules.len()))));
    for (at, node) in nodes.iter().enumerate() {
        assert!(node.parent == ROOT || is_in(node.parent, at));
        assert!(is_in(node.place, places.len()));
    }
    assert!(sites.iter().all(|site| site.node == ROOT || is_in(site.node, nodes.len())));
    let trees = moments.iter().filter_map(|moment| moment.tree.as_ref());
    assert!(trees.flat_map(|tree| &tree.sites).all(|(site, _)| is_in(*site, sites.len())));
    let pages = layouts.iter().filter_map(|layout| layout.pages.as_ref());
    assert!(pages.flat_map(|pages| &pages.pinned).all(|it| is_in(it.site, sites.len())));
    assert!(layouts.is_sorted_by_key(|layout| layout.time_ns));
    assert!(counts.sites.len() <= sites.len());
    assert!(moments.is_sorted_by_key(|moment| moment.time_ns));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    #[test]
    fn written_records_are_read_back(recording in recording(), checkpoints: bool) {
        let file = reader::read(&write(&recording, checkpoints)[..]).unwrap();
        prop_assert_eq!(file.cut, None);
        prop_assert_eq!(file.recording, recording);
    }

    #[test]
    fn the_index_finds_the_tree_of_each_time(recording in recording(), times in prop::collection::vec(any::<u32>(), 8)) {
        let mut file = Cursor::new(write(&recording, false));
        let index = SnapshotIndex::read(&mut file).unwrap().unwrap();
        prop_assert_eq!(index.moments(), recording.moments.len() as u64);
        for time in times.into_iter().map(u64::from).chain([0, u64::MAX]) {
            let mut upto = recording.moments.iter().filter(|moment| moment.time_ns <= time);
            let expected = upto.rfind(|moment| moment.tree.is_some()).cloned();
            prop_assert_eq!(index.tree_at(&mut file, time).unwrap(), expected);
        }
    }

    #[test]
    fn any_change_is_noticed_or_is_of_the_index(at: Pick, bit in 0..8_u32) {
        let recording = &*SAMPLE;
        let mut bytes = write(recording, true);
        let at = at.index(bytes.len());
        bytes[at] ^= 1 << bit;
        if let Ok(file) = reader::read(&bytes[..]) {
            check(&file.recording);
            // Up to the change, the recording is the original one.
            prop_assert!(file.cut.is_some());
            let length = file.recording.nodes.len();
            prop_assert_eq!(&file.recording.nodes[..], &recording.nodes[..length]);
            prop_assert!(file.cut.unwrap().offset <= at as u64);
        }
        let _ = SnapshotIndex::read(&mut Cursor::new(&bytes)).map(|index| index.map(|index| index.tree_at(&mut Cursor::new(&bytes), 7)));
    }
}

#[test]
fn each_beginning_of_a_file_is_read() {
    let recording = &*SAMPLE;
    let bytes = write(recording, true);
    let mut seen = (0, 0);
    for cut in 0..bytes.len() {
        match reader::read(&bytes[..cut]) {
            Ok(file) => {
                check(&file.recording);
                let now = (file.recording.nodes.len(), file.recording.moments.len());
                assert!(now >= seen, "more bytes say less");
                assert_eq!(file.recording.moments[..], recording.moments[..now.1]);
                seen = now;
            }
            Err(error) => {
                assert!(matches!(error, LogError::Other | LogError::Broken(_)), "{error}")
            }
        }
    }
    assert_eq!(seen, (recording.nodes.len(), recording.moments.len()));
}

#[test]
fn the_last_complete_checkpoint_is_valid() {
    let mut writer = LogWriter::create(Vec::new(), &Begin::default()).unwrap();
    writer.sites(&[LogSite { node: ROOT, kind: LogKind::Heap }]).unwrap();
    let counts = |bytes| LogCounts {
        sites: vec![LogSiteCounts {
            allocated: LogAmount { bytes, blocks: 1 },
            ..LogSiteCounts::default()
        }],
        ..LogCounts::default()
    };
    let mut lengths = Vec::new();
    for bytes in [7, 8, 9] {
        writer.counts(&counts(bytes)).unwrap();
        lengths.push(usize::try_from(writer.written()).unwrap());
    }
    let bytes = writer.end(&LogEnd { time_ns: 0, how: LogEnding::Gone }).unwrap();
    let read = |length: usize| reader::read(&bytes[..length]).unwrap();
    assert_eq!(read(lengths[1]).recording.counts, counts(8));
    assert_eq!(read(lengths[1] + 1).recording.counts, counts(8));
    assert_eq!(read(lengths[2] - 1).recording.counts, counts(8));
    assert_eq!(read(lengths[2]).recording.counts, counts(9));
    assert!(read(lengths[2]).cut.is_some());
    assert_eq!(read(bytes.len()).cut, None);
}

#[test]
fn a_kind_of_frame_that_is_not_known_is_passed_over() {
    let recording = &*SAMPLE;
    let bytes = write(recording, false);
    let head = 9;
    // Kind 200, two bytes that are stored unpacked, and their checksum from another implementation.
    let (start, stored) = ([200, 2, 0], [1, 2]);
    let sum = crc32(&[start.as_slice(), &stored].concat()).to_le_bytes();
    let frame = [start.as_slice(), &sum, &stored].concat();
    let first = 9 + frame_length(&bytes[head..]);
    let with = [&bytes[..first], &frame, &bytes[first..]].concat();
    assert_eq!(reader::read(&with[..]).unwrap().recording, *recording);
}

/// CRC-32 as its definition has it, bit by bit.
fn crc32(bytes: &[u8]) -> u32 {
    let mut sum = u32::MAX;
    for byte in bytes {
        sum ^= u32::from(*byte);
        for _ in 0..8 {
            sum = if sum & 1 == 1 { sum >> 1 ^ 0xedb8_8320 } else { sum >> 1 };
        }
    }
    !sum
}

/// Length of a frame, computed by its description in FORMAT.md.
fn frame_length(bytes: &[u8]) -> usize {
    let number = |at: usize| {
        let length = bytes[at..].iter().position(|byte| *byte < 0x80).unwrap() + 1;
        let bits = bytes[at..at + length].iter().rev();
        (bits.fold(0, |sum, byte| sum << 7 | usize::from(byte & 0x7f)), at + length)
    };
    let (stored, at) = number(1);
    number(at).1 + 4 + stored
}

#[test]
fn a_file_that_is_not_a_recording_is_refused() {
    let refused = |bytes: &[u8]| reader::read(bytes).unwrap_err();
    assert!(matches!(refused(b""), LogError::Other));
    assert!(matches!(refused(b"\x7fELF\x02\x01\x01\0\0\0\0\0\0\0\0\0"), LogError::Other));
    let mut bytes = write(&SAMPLE, false);
    bytes[8] = 2;
    assert!(matches!(refused(&bytes), LogError::Later(2)));
    assert!(matches!(refused(&bytes[..8]), LogError::Other));
    bytes[8] = 1;
    assert!(matches!(refused(&bytes[..9]), LogError::Broken(_)));
}
