//! Damaged and hostile core files: an error or gaps, never a panic, and bounded memory.
#![allow(clippy::cast_possible_truncation, reason = "the numbers of small files fit")]

use std::io::Write;

use pagewise_model::core_dump::{CoreWriter, SignalCause};
use proptest::prelude::*;

use super::*;

const PAGE: u64 = 4096;
const HEADER: u64 = 64;
const PROGRAM_HEADER: u64 = 56;

/// A small core file as the kernel writes it: two threads, a program, bss, heap, stack, vdso.
struct SmallCore {
    bytes: Vec<u8>,
    /// Offset of each program header.
    programs: Vec<u64>,
    notes: std::ops::Range<u64>,
}

struct Segment {
    start: u64,
    flags: u32,
    pages: u64,
    dumped: u64,
    fill: u8,
}

const TEXT: u64 = 0x40_0000;
const HEAP: u64 = 0x60_0000;
const STACK: u64 = 0x7ffc_0000_0000;
const VDSO: u64 = 0x7ffd_0000_0000;

const SEGMENTS: &[Segment] = &[
    Segment { start: TEXT, flags: 5, pages: 2, dumped: 1, fill: 1 },
    Segment { start: TEXT + 2 * PAGE, flags: 6, pages: 1, dumped: 1, fill: 2 },
    Segment { start: TEXT + 3 * PAGE, flags: 6, pages: 1, dumped: 1, fill: 3 },
    Segment { start: HEAP, flags: 6, pages: 3, dumped: 3, fill: 4 },
    Segment { start: STACK, flags: 6, pages: 2, dumped: 2, fill: 5 },
    Segment { start: VDSO, flags: 5, pages: 1, dumped: 1, fill: 6 },
];

fn words(words: &[u64]) -> Vec<u8> {
    words.iter().flat_map(|word| word.to_le_bytes()).collect()
}

fn note(name: &[u8], kind: u32, description: &[u8]) -> Vec<u8> {
    let sizes = [name.len() as u32, description.len() as u32, kind];
    let mut note: Vec<u8> = sizes.iter().flat_map(|word| word.to_le_bytes()).collect();
    for part in [name, description] {
        note.extend(part);
        note.resize(note.len().next_multiple_of(4), 0);
    }
    note
}

fn thread(tid: u32, signal: u16) -> Vec<u8> {
    let mut status = vec![0; 336];
    status[12..14].copy_from_slice(&signal.to_le_bytes());
    status[32..36].copy_from_slice(&tid.to_le_bytes());
    status[36..40].copy_from_slice(&1_u32.to_le_bytes());
    let registers: Vec<u64> = (0..27).map(|register| 1000 + register).collect();
    status[112..328].copy_from_slice(&words(&registers));
    note(b"CORE\0", 1, &status)
}

fn small_notes() -> Vec<u8> {
    let mut process = vec![0; 136];
    process[1] = b'R';
    process[24..28].copy_from_slice(&7_u32.to_le_bytes());
    process[28..32].copy_from_slice(&1_u32.to_le_bytes());
    process[40..45].copy_from_slice(b"small");
    process[56..66].copy_from_slice(b"./small -x");
    let mut signal = vec![0; 128];
    signal[..12].copy_from_slice(&[11_u32, 0, 1].map(u32::to_le_bytes).concat());
    signal[16..24].copy_from_slice(&0xdead_u64.to_le_bytes());
    let auxiliary = [(33, VDSO), (6, PAGE), (9, TEXT), (3, TEXT), (25, STACK + 100), (0, 0)];
    let auxiliary: Vec<u64> = auxiliary.iter().flat_map(|(a, b)| [*a, *b]).collect();
    let mut files =
        words(&[2, PAGE, TEXT, TEXT + 2 * PAGE, 0, TEXT + 2 * PAGE, TEXT + 3 * PAGE, 2]);
    files.extend(b"/bin/small\0/bin/small\0");
    [
        thread(7, 11),
        note(b"CORE\0", 3, &process),
        note(b"CORE\0", 0x5349_4749, &signal),
        note(b"CORE\0", 6, &words(&auxiliary)),
        note(b"CORE\0", 0x4649_4c45, &files),
        note(b"LINUX\0", 0x202, &[0; 100]),
        thread(8, 0),
    ]
    .concat()
}

fn program_header(kind: u32, flags: u32, words_of: [u64; 6]) -> Vec<u8> {
    [&kind.to_le_bytes()[..], &flags.to_le_bytes(), &words(&words_of)].concat()
}

fn small_core() -> SmallCore {
    let notes = small_notes();
    let count = SEGMENTS.len() as u64 + 1;
    let start = HEADER + count * PROGRAM_HEADER;
    let mut bytes = [0x7f, b'E', b'L', b'F', 2, 1, 1].to_vec();
    bytes.resize(16, 0);
    bytes.extend([4_u16, 62].map(u16::to_le_bytes).concat());
    bytes.extend(1_u32.to_le_bytes());
    bytes.extend(words(&[0, HEADER, 0]));
    bytes.extend(0_u32.to_le_bytes());
    bytes.extend([64, 56, count as u16, 0, 0, 0].map(u16::to_le_bytes).concat());
    let note_len = notes.len() as u64;
    bytes.extend(program_header(4, 0, [start, 0, 0, note_len, 0, 4]));
    let mut offset = (start + note_len).next_multiple_of(PAGE);
    for segment in SEGMENTS {
        let sizes = [segment.dumped * PAGE, segment.pages * PAGE, PAGE];
        let words_of = [offset, segment.start, 0, sizes[0], sizes[1], sizes[2]];
        bytes.extend(program_header(1, segment.flags, words_of));
        offset += sizes[0];
    }
    bytes.extend(notes);
    bytes.resize(bytes.len().next_multiple_of(PAGE as usize), 0);
    for segment in SEGMENTS {
        bytes.extend(vec![segment.fill; (segment.dumped * PAGE) as usize]);
    }
    let programs = (0..count).map(|index| HEADER + index * PROGRAM_HEADER).collect();
    SmallCore { bytes, programs, notes: start..start + note_len }
}

/// Calls the functions that a report and a scan of a core call.
fn use_all(bytes: Vec<u8>) -> Result<(), ProcError> {
    let len = bytes.len() as u64;
    let core = CoreFile::from_bytes(bytes)?;
    let images = ImageFiles::default();
    let snapshot = snapshot(&core, &images);
    let mappings = snapshot.mappings.expect("a core has mappings");
    for pair in mappings.windows(2) {
        assert!(pair[0].range.end <= pair[1].range.start, "{pair:?}");
    }
    let mut word = [0; 8];
    for segment in core.segments() {
        assert!(segment.held <= segment.dumped && segment.dumped <= segment.range.len());
        assert!(segment.held.0 <= len, "{segment:?}");
        let has_any = core.read(segment.range.start, &mut word[..1]);
        assert_eq!(has_any, !segment.held.is_zero(), "{segment:?}");
        core.read(segment.range.end.wrapping_sub(3), &mut word);
        let held: Bytes = core.held(segment.range).map(AddrRange::len).sum();
        assert_eq!(held, segment.held);
    }
    core.read(u64::MAX - 2, &mut word);
    let dump = snapshot.core.expect("it is a core");
    assert!(dump.threads.len() as u64 * 64 <= len && mappings.len() as u64 * 24 <= len);
    Ok(())
}

#[test]
fn a_core_gives_its_mappings_threads_and_signal() {
    let core = CoreFile::from_bytes(small_core().bytes).unwrap();
    let snapshot = snapshot(&core, &ImageFiles::default());
    let mappings = snapshot.mappings.unwrap();
    let shown: Vec<(u64, &[u8])> =
        mappings.iter().map(|m| (m.range.start, m.name.as_bytes())).collect();
    let expected: Vec<(u64, &[u8])> = vec![
        (TEXT, b"/bin/small"),
        (TEXT + 2 * PAGE, b"/bin/small"),
        (TEXT + 3 * PAGE, b""),
        (HEAP, b"[heap]"),
        (STACK, b"[stack]"),
        (VDSO, b"[vdso]"),
    ];
    // Without the ELF headers of the program, its bss can be mistaken for the heap, so the two rows
    // of the bss and the heap are not compared.
    assert_eq!(shown[..2], expected[..2]);
    assert_eq!(shown[4..], expected[4..]);
    let named_heap = shown.iter().filter(|(_, name)| *name == b"[heap]").count();
    assert_eq!(named_heap, 1);
    assert_eq!(mappings[1].offset, 2 * PAGE);
    assert!(mappings[0].prot.exec && !mappings[0].prot.write && mappings[3].prot.write);
    assert!(mappings.iter().all(|m| m.rss() == Err(Absent::NotRecorded("a core file".into()))));

    assert_eq!((snapshot.process.pid.0, snapshot.process.name.as_bytes()), (7, &b"small"[..]));
    assert_eq!(snapshot.process.command.unwrap()[0].as_bytes(), b"./small -x");
    let threads = snapshot.threads.unwrap();
    let tids: Vec<u32> = threads.iter().map(|thread| thread.tid.0).collect();
    assert_eq!(tids, [7, 8]);
    let dump = snapshot.core.unwrap();
    assert_eq!(dump.writer, CoreWriter::Kernel);
    assert_eq!((dump.threads[0].instruction, dump.threads[0].stack_pointer), (1016, 1019));
    assert_eq!(dump.threads[0].thread_pointer, 1021);
    let signal = dump.signal.unwrap();
    assert_eq!((signal.number, signal.tid.0, signal.code), (11, 7, Some(1)));
    assert_eq!(signal.cause, SignalCause::Address(0xdead));
}

#[test]
fn bytes_are_read_across_segments_and_not_beyond_what_was_dumped() {
    let core = CoreFile::from_bytes(small_core().bytes).unwrap();
    let mut two = [0; 2];
    assert!(core.read(TEXT + 3 * PAGE - 1, &mut two));
    assert_eq!(two, [2, 3]);
    // The second page of the text was not dumped.
    assert!(core.read(TEXT + PAGE - 1, &mut two[..1]) && two[0] == 1);
    assert!(!core.read(TEXT + PAGE - 1, &mut two));
    assert!(!core.read(TEXT + PAGE, &mut two));
    assert!(!core.read(HEAP + 3 * PAGE - 1, &mut two));
    let all = AddrRange { start: 0, end: u64::MAX };
    let held: Vec<u64> = core.held(all).map(|range| range.len().0 / PAGE).collect();
    assert_eq!(held, [1, 1, 1, 3, 2, 1]);
}

#[test]
fn a_core_cut_off_anywhere_gives_an_error_or_says_what_is_missing() {
    let whole = small_core();
    let parsed = CoreFile::from_bytes(whole.bytes.clone()).unwrap();
    assert!(parsed.gaps().is_empty(), "{:?}", parsed.gaps());
    let headers_end = HEADER as usize + whole.programs.len() * PROGRAM_HEADER as usize;
    let contents = whole.notes.end as usize;
    for len in (0..contents).chain((contents..whole.bytes.len()).step_by(61)) {
        let cut = whole.bytes[..len].to_vec();
        use_all(cut.clone()).map_or_else(
            |error| {
                assert!(len < (HEADER + PROGRAM_HEADER) as usize, "{len}: {error}");
                assert!(error.to_string().contains("core: offset 0x"), "{error}");
            },
            |()| {
                let core = CoreFile::from_bytes(cut).unwrap();
                let missing = core.segments().iter().any(|segment| segment.held < segment.dumped);
                assert!(missing || !core.gaps().is_empty(), "{len} of {headers_end}");
            },
        );
    }
}

#[test]
fn every_header_field_and_every_word_of_the_notes_may_be_anything() {
    let whole = small_core();
    let headers = 0..HEADER as usize + whole.programs.len() * PROGRAM_HEADER as usize;
    let notes = whole.notes.start as usize..whole.notes.end as usize;
    let values = [0, 1, 7, 0xff, 0xffff, PAGE - 1, 1 << 31, u64::from(u32::MAX), 1 << 47, u64::MAX];
    for range in [headers, notes] {
        for at in range.clone().step_by(2) {
            for value in values {
                for width in [2, 4, 8] {
                    let mut bytes = whole.bytes.clone();
                    let end = (at + width).min(range.end);
                    bytes[at..end].copy_from_slice(&value.to_le_bytes()[..end - at]);
                    let _ = use_all(bytes);
                }
            }
        }
    }
}

#[test]
fn files_of_other_kinds_are_errors_that_name_the_kind() {
    let problem = |bytes: &[u8]| CoreFile::from_bytes(bytes.to_vec()).unwrap_err().to_string();
    let mut bytes = small_core().bytes;
    bytes[16] = 3;
    assert!(
        problem(&bytes)
            .contains("offset 0x10: expected a core file (ELF type 4), found ELF type 3")
    );
    bytes[4] = 1;
    assert!(problem(&bytes).contains("a 32-bit core file"));
    bytes[4] = 2;
    bytes[5] = 2;
    assert!(problem(&bytes).contains("big-endian"));
    assert!(problem(&[b'x'; 100]).contains("expected an ELF core file"));
    assert!(problem(b"").contains("found the end"));
}

#[test]
fn more_program_headers_than_16_bits_hold_are_counted_in_the_first_section() {
    let mut core = small_core().bytes;
    let count = u32::from(core[56]);
    let section = core.len() as u64;
    core[56..58].copy_from_slice(&0xffff_u16.to_le_bytes());
    core[40..48].copy_from_slice(&section.to_le_bytes());
    let mut header = [0; 64];
    header[44..48].copy_from_slice(&count.to_le_bytes());
    core.extend(header);
    let parsed = CoreFile::from_bytes(core.clone()).unwrap();
    assert_eq!(parsed.segments().len(), SEGMENTS.len());
    let at = section as usize + 44;
    core[at..at + 4].copy_from_slice(&u32::MAX.to_le_bytes());
    let error = CoreFile::from_bytes(core).unwrap_err().to_string();
    assert!(error.contains("4294967295 program headers"), "{error}");
}

#[test]
fn a_compressed_core_larger_than_the_bounds_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("core.lz4");
    let mut encoder = lz4_flex::frame::FrameEncoder::new(Vec::new());
    encoder.write_all(&vec![0; 1 << 20]).unwrap();
    encoder.write_all(&vec![1; 1 << 20]).unwrap();
    std::fs::write(&path, encoder.finish().unwrap()).unwrap();
    let bounds = |size, disk| DecompressBounds {
        folder: folder.path().into(),
        size: Bytes(size),
        disk: Bytes(disk),
    };
    let error = |size, disk| CoreFile::open(&path, &bounds(size, disk)).unwrap_err().to_string();
    assert!(error(1 << 20, 1 << 30).contains("the decompressed core exceeds 1048576 bytes"));
    assert!(error(1 << 30, 1 << 19).contains("takes more than 524288 bytes of disk space"));
    // The zeros take no disk space, so decompression succeeds. The result is not a core file.
    assert!(error(1 << 30, 1 << 20).contains("expected an ELF core file"));
    assert_eq!(
        std::fs::read_dir(folder.path()).unwrap().count(),
        1,
        "temporary files have no name"
    );
}

proptest! {
    #[test]
    fn random_bytes_do_not_panic(bytes in proptest::collection::vec(any::<u8>(), 0..4000)) {
        let _ = use_all(bytes);
    }

    #[test]
    fn random_bytes_behind_a_header_do_not_panic(
        tail in proptest::collection::vec(any::<u8>(), 0..4000),
        count in 1_u16..70,
    ) {
        let mut bytes = small_core().bytes[..HEADER as usize].to_vec();
        bytes[56..58].copy_from_slice(&count.to_le_bytes());
        bytes.extend(tail);
        let _ = use_all(bytes);
    }

    #[test]
    fn damaged_cores_do_not_panic(
        damage in proptest::collection::vec((0..3000_usize, any::<u8>()), 1..40),
        cut in any::<prop::sample::Index>(),
    ) {
        let mut bytes = small_core().bytes;
        bytes.truncate(cut.index(bytes.len() + 1));
        for (at, byte) in damage {
            if let Some(place) = bytes.get_mut(at) {
                *place = byte;
            }
        }
        let _ = use_all(bytes);
    }
}
