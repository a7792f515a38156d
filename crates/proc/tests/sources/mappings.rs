//! `maps` and `smaps` as text: the parser returns the values that a kernel printed, also from cut
//! text, and never panics.

use std::sync::Arc;

use pagewise_model::mapping::{AddrRange, Device, Mapping, Prot, Sharing};
use pagewise_model::{Absent, Name, Smaps, SmapsCounter, VmFlags};
use pagewise_proc::maps::ParsedMappings;
use pagewise_proc::{maps, smaps};
use proptest::collection::vec;
use proptest::prelude::*;

const UNREAD: Absent = Absent::Vanished;

/// One line of `maps`, printed as fs/proc/task_mmu.c does it: the name starts in column 73 or after
/// two blanks.
fn print_header(mapping: &Mapping, out: &mut Vec<u8>) {
    let letter = |set: bool, letter: char| if set { letter } else { '-' };
    let Mapping { range, prot, sharing, offset, device, inode, .. } = mapping;
    let head = format!(
        "{:08x}-{:08x} {}{}{}{} {offset:08x} {:02x}:{:02x} {inode} ",
        range.start,
        range.end,
        letter(prot.read, 'r'),
        letter(prot.write, 'w'),
        letter(prot.exec, 'x'),
        if *sharing == Sharing::Shared { 's' } else { 'p' },
        device.major,
        device.minor,
    );
    out.extend_from_slice(head.as_bytes());
    if !mapping.name.is_empty() {
        out.extend_from_slice(
            format!("{:1$} ", "", 72_usize.saturating_sub(head.len())).as_bytes(),
        );
        out.extend_from_slice(mapping.name.as_bytes());
    }
    out.push(b'\n');
}

/// One entry of `smaps`; `width` is 16 in the kernel.
fn print_entry(mapping: &Mapping, width: usize, out: &mut Vec<u8>) {
    print_header(mapping, out);
    let smaps = mapping.smaps.as_ref().expect("each entry has its counters");
    for (counter, value) in smaps.iter() {
        let name = format!("{}:", counter.name());
        let line = match counter.is_bytes() {
            true => format!("{name:width$}{:8} kB\n", value >> 10),
            false => format!("{name:width$}{value:8}\n"),
        };
        out.extend_from_slice(line.as_bytes());
    }
    for (name, value) in &smaps.extra {
        let line = [name.as_bytes(), b":   ", value.as_bytes(), b"\n"].concat();
        out.extend_from_slice(&line);
    }
    if let Some(flags) = &smaps.flags {
        let codes: Vec<u8> = flags.iter().flat_map(|code| [code[0], code[1], b' ']).collect();
        out.extend_from_slice(&[b"VmFlags: ", codes.as_slice(), b"\n"].concat());
    }
}

/// The whole text, and where each entry ends.
fn print(mappings: &[Mapping], width: usize) -> (Vec<u8>, Vec<usize>) {
    let mut text = Vec::new();
    let mut ends = Vec::new();
    for mapping in mappings {
        match &mapping.smaps {
            Ok(_) => print_entry(mapping, width, &mut text),
            Err(_) => print_header(mapping, &mut text),
        }
        ends.push(text.len());
    }
    (text, ends)
}

fn read_smaps(text: &[u8]) -> ParsedMappings {
    read_pieces(text, text.len().max(1))
}

fn read_pieces(text: &[u8], size: usize) -> ParsedMappings {
    let mut parser = smaps::SmapsParser::new(UNREAD);
    text.chunks(size).for_each(|piece| parser.push(piece));
    parser.finish()
}

fn read_maps(text: &[u8]) -> ParsedMappings {
    let mut parser = maps::MapsParser::new(UNREAD);
    parser.push(text);
    parser.finish()
}

/// Names of any bytes except the newline, which the kernel writes as `\012`. One name in five has
/// about 4 KiB.
fn names() -> impl Strategy<Value = Name> {
    let byte = any::<u8>().prop_map(|b| if b == b'\n' { b'\\' } else { b });
    let hostile = prop_oneof![4 => vec(byte.clone(), 0..40), 1 => vec(byte, 4090..4100)];
    let usual = prop::sample::select(vec![
        "",
        "",
        "",
        "[heap]",
        "[stack]",
        "/usr/lib/libc.so.6",
        "/a b (deleted)",
        "/x\\012y",
        "  /blanks first",
        "Rss:                   4 kB",
        "7f00-7f01 rw-p",
        "/dev/zero (deleted)",
    ]);
    prop_oneof![usual.prop_map(Name::from), hostile.prop_map(|bytes| Name::new(&bytes))]
}

prop_compose! {
    /// A mapping whose address range holds two other numbers until `address_space` sets it: the gap
    /// before the mapping, and its length.
    fn mapping()(
        (gap, len) in (0_u64..1 << 40, 1_u64..1 << 30),
        prot in any::<(bool, bool, bool)>(),
        shared in any::<bool>(),
        offset in prop_oneof![Just(0), any::<u64>()],
        (major, minor) in prop_oneof![Just((0, 0)), any::<(u32, u32)>()],
        inode in prop_oneof![Just(0), any::<u64>()],
        name in names(),
    ) -> Mapping {
        Mapping {
            range: AddrRange { start: gap, end: len },
            prot: Prot { read: prot.0, write: prot.1, exec: prot.2 },
            sharing: if shared { Sharing::Shared } else { Sharing::Private },
            offset,
            device: Device { major, minor },
            inode,
            name,
            on_tmpfs: false,
            smaps: Err(UNREAD),
            pages: Err(UNREAD),
        }
    }
}

/// Mappings one after the other, as `maps` has them.
fn address_space() -> impl Strategy<Value = Vec<Mapping>> {
    vec(mapping(), 0..12).prop_map(|mut mappings| {
        let mut end = 0;
        for mapping in &mut mappings {
            let start = end + mapping.range.start;
            end = start + mapping.range.end;
            mapping.range = AddrRange { start, end };
        }
        mappings
    })
}

/// Lines of a kernel: some counters with `Rss`, an optional line of a future kernel, and optional
/// flags.
fn kernels() -> impl Strategy<Value = (Vec<SmapsCounter>, bool, bool)> {
    let some = prop::sample::subsequence(SmapsCounter::ALL.to_vec(), 0..=SmapsCounter::ALL.len());
    (some, any::<bool>(), any::<bool>())
}

/// Mappings with the counters of one kernel; half of them have the entry of an earlier one.
fn smaps_of_a_kernel() -> impl Strategy<Value = Vec<Mapping>> {
    let numbers = vec((any::<u64>(), 0_u32..64), 12 * 27);
    let earlier = vec(prop::option::of(any::<prop::sample::Index>()), 12);
    (address_space(), kernels(), numbers, earlier).prop_map(
        |(mut mappings, (counters, has_extra, has_flags), numbers, earlier)| {
            let mut numbers = numbers.into_iter().map(|(number, shift)| number >> shift);
            for mapping in &mut mappings {
                let mut smaps = Smaps::default();
                for &counter in &counters {
                    let number = numbers.next().unwrap_or(1);
                    smaps
                        .set(counter, if counter.is_bytes() { number >> 10 << 10 } else { number });
                }
                if has_extra {
                    smaps.extra.push(("Later_Field".into(), "12 kB of it".into()));
                }
                if has_flags {
                    let mut flags = VmFlags::default();
                    [*b"rd", *b"mr", *b"qq"].into_iter().for_each(|code| flags.insert(code));
                    smaps.flags = Some(flags);
                }
                mapping.smaps = Ok(Arc::new(smaps));
            }
            for (at, earlier) in (0..mappings.len()).zip(earlier) {
                if let Some(earlier) = earlier.filter(|_| at > 0) {
                    mappings[at].smaps = mappings[earlier.index(at)].smaps.clone();
                }
            }
            mappings
        },
    )
}

/// Text that partly looks like `smaps`.
fn nearly_smaps() -> impl Strategy<Value = Vec<u8>> {
    let pieces = prop::sample::select(vec![
        "7f00-7f01 rw-p 00000000 00:00 0 \n",
        "7f01-7f00 ",
        "rw-p ",
        "00:00 0",
        "Rss:                   4 kB\n",
        "Rss:            99999999 kB\n",
        "Rss: ",
        "VmFlags: rd zz \n",
        "VmFlags:",
        "THPeligible:           0\n",
        " kB\n",
        "\n",
        ":",
        "-",
        "ffffffffffffffff",
        "\0",
        "18446744073709551615",
        "[stack]",
    ]);
    let piece =
        prop_oneof![pieces.prop_map(|text| text.as_bytes().to_vec()), vec(any::<u8>(), 0..9)];
    vec(piece, 0..40).prop_map(|pieces| pieces.concat())
}

proptest! {
    #[test]
    fn maps_that_a_kernel_prints_are_read_back(mappings in address_space()) {
        let parsed = read_maps(&print(&mappings, 16).0);
        prop_assert!(parsed.torn.is_none(), "{:?}", parsed.torn);
        prop_assert_eq!(parsed.mappings, mappings);
    }

    #[test]
    fn smaps_that_a_kernel_prints_is_read_back(mut mappings in smaps_of_a_kernel()) {
        let has_flags = |m: &Mapping| m.smaps.as_ref().is_ok_and(|smaps| smaps.flags.is_some());
        let parsed = read_smaps(&print(&mappings, 16).0);
        if mappings.len() == 1 && !has_flags(&mappings[0]) {
            // Before Linux 3.8 a single entry cannot be proven complete, so it is not accepted.
            mappings.clear();
        } else {
            prop_assert!(parsed.torn.is_none(), "{:?}", parsed.torn);
        }
        prop_assert_eq!(parsed.mappings, mappings);
    }

    #[test]
    fn lines_that_are_padded_otherwise_say_the_same(mappings in smaps_of_a_kernel(), width in 0_usize..20) {
        let (kernels, ours) = (print(&mappings, 16).0, print(&mappings, width).0);
        prop_assert_eq!(read_smaps(&kernels).mappings, read_smaps(&ours).mappings);
    }

    #[test]
    fn pieces_of_any_size_say_the_same_as_the_whole(mappings in smaps_of_a_kernel(), size in 1_usize..100) {
        let text = print(&mappings, 16).0;
        let (pieces, whole) = (read_pieces(&text, size), read_smaps(&text));
        prop_assert_eq!(pieces.mappings, whole.mappings);
        prop_assert_eq!(pieces.torn.is_some(), whole.torn.is_some());
    }

    #[test]
    fn a_cut_smaps_gives_whole_entries_and_says_that_it_is_cut(
        mappings in smaps_of_a_kernel(),
        at in any::<prop::sample::Index>(),
    ) {
        let (text, ends) = print(&mappings, 16);
        let at = at.index(text.len() + 1);
        let parsed = read_smaps(&text[..at]);
        let whole = ends.iter().filter(|&&end| end <= at).count();
        let found = parsed.mappings.len();
        prop_assert_eq!(&parsed.mappings[..], &mappings[..found]);
        let is_at_an_end = at == 0 || ends.contains(&at);
        prop_assert!(found == whole || found == 0 && whole == 1, "{} of {}", found, whole);
        prop_assert!(parsed.torn.is_some() || is_at_an_end && found == whole);
    }

    #[test]
    fn a_cut_maps_gives_whole_lines_and_says_that_it_is_cut(
        mappings in address_space(),
        at in any::<prop::sample::Index>(),
    ) {
        let (text, ends) = print(&mappings, 16);
        let at = at.index(text.len() + 1);
        let parsed = read_maps(&text[..at]);
        let whole = ends.iter().filter(|&&end| end <= at).count();
        prop_assert_eq!(&parsed.mappings[..], &mappings[..whole]);
        prop_assert_eq!(parsed.torn.is_none(), at == 0 || ends.contains(&at));
    }

    #[test]
    fn whatever_is_read_the_mappings_are_in_order(text in nearly_smaps(), size in 1_usize..64) {
        for parsed in [read_pieces(&text, size), read_maps(&text)] {
            for pair in parsed.mappings.windows(2) {
                prop_assert!(pair[0].range.end <= pair[1].range.start);
            }
            prop_assert!(parsed.mappings.iter().all(|mapping| !mapping.range.is_empty()));
        }
    }

    #[test]
    fn any_bytes_at_all_can_be_a_rollup(text in nearly_smaps()) {
        if let Some(smaps) = smaps::parse_rollup(&text) {
            prop_assert!(smaps.has(SmapsCounter::Locked));
        }
    }
}

#[test]
fn an_old_kernel_has_fewer_lines_and_they_are_absent() {
    let entry = |start: &str| {
        format!(
            "{start} rw-p 00000000 00:00 0 \nSize:                 8 kB\nRss:                  4 kB\n"
        )
    };
    let text = entry("00400000-00402000") + &entry("00402000-00404000");
    let parsed = smaps::parse(text.as_bytes());
    assert!(parsed.torn.is_none());
    let [first, _] = parsed.mappings.as_slice() else { panic!("{parsed:?}") };
    assert_eq!(first.rss().map(|rss| rss.0), Ok(4096));
    assert_eq!(first.pss(), Err(Absent::NotInThisKernel("2.6.25".into())));
}

#[test]
fn an_entry_that_begins_like_an_earlier_one_keeps_its_other_lines() {
    let entry =
        |page: u32, lines: &str| format!("{page}000-{page}800 rw-p 00000000 00:00 0 \n{lines}");
    let (rss, swap) = ("Rss:                  4 kB\n", "Swap:                 8 kB\n");
    let locked = "Locked:              12 kB\n";
    let both = format!("{rss}{swap}");
    let lines = [rss, rss, &both, rss, &both, &format!("{both}{locked}"), swap, rss, swap];
    let text: String = (1..).zip(lines).map(|(page, lines)| entry(page, lines)).collect();
    let read = |text: &str| -> Vec<Mapping> { smaps::parse(text.as_bytes()).mappings };
    let all = read(&text);
    assert_eq!(all.len(), lines.len());
    for ((page, lines), mapping) in (1..).zip(lines).zip(&all) {
        // The flags show that a single entry is complete.
        let alone = read(&entry(page, &format!("{lines}VmFlags: rd \n")));
        let mut expected = alone[0].smaps.clone().unwrap();
        Arc::make_mut(&mut expected).flags = None;
        assert_eq!(mapping.smaps.as_ref().unwrap(), &expected, "{lines}");
    }
}

#[test]
fn a_number_too_wide_for_its_column_is_read_whole() {
    let text = "00400000-00402000 rw-p 00000000 00:00 0 \nRss:                  4 kB\nVmFlags: rd \n\
                00402000-00404000 rw-p 00000000 00:00 0 \nRss:           17179869184 kB\nVmFlags: rd \n\
                00404000-00406000 rw-p 00000000 00:00 0 \nRss:                 12 kB\nVmFlags: rd \n";
    let rss: Vec<u64> = smaps::parse(text.as_bytes())
        .mappings
        .iter()
        .map(|m| m.rss().unwrap_or_default().0)
        .collect();
    assert_eq!(rss, [4 << 10, 16 << 40, 12 << 10]);
}

#[test]
fn a_mapping_that_is_seen_twice_counts_once() {
    // Between two reads of the file the first mapping grew over the second.
    let text = "1000-2000 rw-p 00000000 00:00 0 \n2000-3000 r--p 00000000 00:00 0 \n\
                1000-4000 rw-p 00000000 00:00 0 \n5000-6000 rw-p 00000000 00:00 0 \n";
    let parsed = maps::parse(text.as_bytes());
    let starts: Vec<u64> = parsed.mappings.iter().map(|m| m.range.start).collect();
    assert_eq!((starts, parsed.repeated), (vec![0x1000, 0x2000, 0x5000], 1));
}

#[test]
fn an_error_names_the_line_and_shows_no_escape_sequence() {
    let text = b"1000-2000 rw-p 00000000 00:00 0 \n\x1b[2Jnonsense\n";
    let torn = maps::parse(text).torn.expect("the second line is no mapping").to_string();
    assert_eq!(torn, "maps:2: expected a mapping, found \"\\x1b[2Jnonsense\"");
}

#[test]
fn neighbors_with_one_name_share_it() {
    let line = |start: u32| {
        format!("{start:x}000-{start:x}fff r--p 00000000 08:01 7      /usr/lib/libc.so.6\n")
    };
    let parsed = maps::parse((line(1) + &line(2)).as_bytes());
    let [first, second] = [0, 1].map(|at: usize| parsed.mappings[at].name.as_bytes().as_ptr());
    assert_eq!(first, second);
}
