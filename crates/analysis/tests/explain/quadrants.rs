//! Quadrants and shares add up, and say where they cannot be known.

use pagewise_analysis::quadrants::{QuadrantCells, quadrants};
use pagewise_model::SmapsCounter::*;
use pagewise_model::{Absent, Bytes, Mapping, Quadrant, Reading};
use proptest::prelude::*;

use crate::build::*;

const PA: usize = Quadrant::PrivateAnonymous as usize;
const PF: usize = Quadrant::PrivateFile as usize;

fn kib(readings: [&Reading<Bytes>; 4]) -> [Option<u64>; 4] {
    readings.map(|r| r.as_ref().ok().map(|bytes| bytes.0 >> 10))
}

fn effective(mappings: Vec<Mapping>) -> QuadrantCells {
    quadrants(&snapshot(mappings)).expect("mappings are there").effective
}

fn resident(cells: &QuadrantCells) -> [Option<u64>; 4] {
    kib(cells.each_ref().map(|cell| &cell.resident))
}

fn known(kib: [u64; 4]) -> [Option<u64>; 4] {
    kib.map(Some)
}

#[test]
fn each_kind_of_page_falls_in_its_effective_quadrant() {
    for (mapping, expected) in [
        (map(0x1000, 64, "rw-p", "").anonymous(40), [40, 0, 0, 0]),
        // After fork: 24 of 40 KiB are still shared with the child.
        (
            map(0x1000, 64, "rw-p", "").using(&[
                (Rss, 40),
                (Pss, 28),
                (Anonymous, 40),
                (PrivateDirty, 16),
                (SharedDirty, 24),
            ]),
            [16, 24, 0, 0],
        ),
        (map(0x1000, 64, "rw-s", "/dev/zero (deleted)").file(40, 0, 40), [0, 40, 0, 0]),
        (map(0x1000, 64, "rw-p", "/memfd:x (deleted)").file(40, 0, 40), [0, 40, 0, 0]),
        (map(0x1000, 64, "r-xp", "/lib/a.so").file(8, 32, 12), [0, 0, 8, 32]),
        (map(0x1000, 64, "rw-s", "/data").file(8, 32, 12), [0, 0, 0, 40]),
        // A private file mapping, all of it written.
        (map(0x1000, 64, "rw-p", "/data").anonymous(40), [40, 0, 0, 0]),
    ] {
        let name = mapping.name.clone();
        assert_eq!(resident(&effective(vec![mapping])), known(expected), "{name:?}");
    }
}

#[test]
fn half_written_and_all_exclusive_is_known_without_page_tables() {
    let mapping = map(0x1000, 64, "rw-p", "/data").using(&[
        (Rss, 64),
        (Pss, 64),
        (Anonymous, 32),
        (PrivateClean, 32),
        (PrivateDirty, 32),
    ]);
    let cells = effective(vec![mapping]);
    assert_eq!(resident(&cells), known([32, 0, 32, 0]));
    assert_eq!(kib(cells.each_ref().map(|c| &c.dirty)), known([32, 0, 0, 0]));
}

#[test]
fn mixed_and_co_mapped_is_ambiguous_until_page_tables_are_read() {
    let mixed = map(0x1000, 64, "rw-p", "/data").using(&[
        (Rss, 48),
        (Pss, 40),
        (Anonymous, 16),
        (PrivateClean, 20),
        (SharedClean, 28),
    ]);
    let cells = effective(vec![mixed.clone()]);
    assert!(matches!(cells[PA].resident, Err(Absent::Ambiguous(_))), "{cells:?}");
    assert_eq!(resident(&cells), [None; 4]);

    let read = map(0x1000, 64, "rw-p", "/data").pages([12, 4], [8, 24], absent());
    let both = Mapping { pages: read.pages, ..mixed };
    assert_eq!(resident(&effective(vec![both])), known([12, 4, 8, 24]));
}

#[test]
fn bounds_that_meet_in_the_sum_of_anonymous_pages_alone_still_decide() {
    // The bounds of each mapping are equal: all pages of the first are anonymous, none of the
    // second.
    let pure = map(0x1000, 64, "rw-p", "").anonymous(40);
    let file = map(0x20000, 64, "r--p", "/data").file(4, 4, 6);
    assert_eq!(resident(&effective(vec![pure, file])), known([40, 0, 4, 4]));
}

#[test]
fn page_tables_that_disagree_with_smaps_do_not_decide() {
    let read = map(0x1000, 64, "rw-p", "").pages([12, 0], [0, 0], absent());
    let moved_on = Mapping { pages: read.pages, ..map(0x1000, 64, "rw-p", "").anonymous(40) };
    assert_eq!(resident(&effective(vec![moved_on])), known([40, 0, 0, 0]));
}

#[test]
fn untouched_address_space_stays_where_it_was_declared() {
    let mapping = map(0x1000, 64, "rw-p", "/data").using(&[
        (Rss, 16),
        (Pss, 16),
        (Anonymous, 16),
        (PrivateDirty, 16),
        (Swap, 8),
    ]);
    let cells = effective(vec![mapping]);
    assert_eq!(kib(cells.each_ref().map(|c| &c.reserved)), known([24, 0, 40, 0]));
    assert_eq!(kib(cells.each_ref().map(|c| &c.swapped)), known([8, 0, 0, 0]));
}

#[test]
fn vsyscall_is_in_no_cell_because_it_is_not_in_virt() {
    let cells = effective(vec![map(0xffff_ffff_ff60_0000, 4, "--xp", "[vsyscall]")]);
    assert_eq!(kib(cells.each_ref().map(|c| &c.reserved)), known([0; 4]));
}

#[test]
fn dirty_pages_need_smaps() {
    let cells =
        effective(vec![map(0x1000, 64, "rw-p", "").pages([12, 0], [0, 0], Ok(Bytes::kib(12)))]);
    assert!(matches!(&cells[PA].dirty, Err(Absent::NotCollected(how)) if how.contains("--full")));
    assert_eq!(resident(&cells), known([12, 0, 0, 0]));
}

#[test]
fn a_missing_share_spoils_only_the_cells_of_co_mapped_pages() {
    let denied = || Err(Absent::NotPermitted("CAP_SYS_ADMIN".into()));
    let library = map(0x1000, 64, "r-xp", "/lib/a.so").pages([0, 0], [8, 32], denied());
    let heap = map(0x20000, 64, "rw-p", "[heap]").pages([20, 0], [0, 0], Ok(Bytes::kib(20)));
    let cells = effective(vec![library, heap]);
    assert_eq!(kib(cells.each_ref().map(|c| &c.pss)), [Some(20), Some(0), Some(8), None]);
}

#[test]
fn rounding_losses_return_to_the_shares_that_lost() {
    let mut snapshot = snapshot(vec![
        map(0x1000, 64, "rw-p", "[heap]").anonymous(20),
        map(0x20000, 64, "r--p", "/lib/a.so").file(0, 12, 3),
        map(0x40000, 64, "r-xp", "/lib/a.so").file(0, 12, 3),
        map(0x60000, 64, "r--s", "/data").file(0, 12, 3),
    ]);
    rollup(&mut snapshot).set(Pss, (29 + 2) << 10);
    let quadrants = quadrants(&snapshot).expect("mappings are there");
    let pss = |cells: &QuadrantCells| cells.each_ref().map(|c| c.pss.clone().expect("known").0);
    // 2048 bytes over three mappings: 683, 683, 682.
    assert_eq!(pss(&quadrants.declared), [20 << 10, 0, (6 << 10) + 1366, (3 << 10) + 682]);
    assert_eq!(pss(&quadrants.effective), [20 << 10, 0, 0, (9 << 10) + 2048]);
}

#[test]
fn a_rollup_splits_the_share_of_mappings_with_both_kinds_of_co_mapped_pages() {
    // Known pages: 8 anonymous and 8 file KiB, half of each co-mapped; Pss is 4 + 4 + 5.
    let read = map(0x1000, 64, "rw-p", "/data").pages([4, 4], [4, 4], absent());
    let mapping = Mapping {
        pages: read.pages,
        ..map(0x1000, 64, "rw-p", "/data").using(&[
            (Rss, 16),
            (Pss, 13),
            (Anonymous, 8),
            (PrivateDirty, 8),
            (SharedClean, 8),
        ])
    };
    let mut snapshot = snapshot(vec![mapping]);
    let pss = |s: &_| {
        let cells = quadrants(s).expect("mappings are there").effective;
        kib(cells.each_ref().map(|c| &c.pss))
    };
    assert_eq!(pss(&snapshot), [Some(4), None, Some(4), None]);
    rollup(&mut snapshot).set(PssAnon, 7 << 10);
    rollup(&mut snapshot).set(PssShmem, 0);
    assert_eq!(pss(&snapshot), known([4, 3, 4, 2]));
}

#[test]
fn page_counts_split_the_share_of_a_mapping_with_both_kinds_of_co_mapped_pages() {
    let mut mapping = map(0x1000, 64, "rw-p", "/data").pages([4, 4], [4, 4], Ok(Bytes::kib(13)));
    let mut pages = (*mapping.pages.unwrap()).clone();
    pages.pss_anon = Ok(Bytes::kib(7));
    mapping.pages = Ok(pages.into());
    let cells = effective(vec![mapping]);
    assert_eq!(kib(cells.each_ref().map(|c| &c.pss)), known([4, 3, 4, 2]));
}

/// Any mapping, sane or not: numbers need not fit together.
fn any_mapping() -> impl Strategy<Value = Mapping> {
    let name = prop_oneof![
        Just(""),
        Just("[heap]"),
        Just("[stack]"),
        Just("[vdso]"),
        Just("[vsyscall]"),
        Just("[anon:x]"),
        Just("/lib/libc.so.6"),
        Just("/usr/bin/prog"),
        Just("/dev/zero (deleted)"),
        Just("/memfd:x (deleted)"),
        Just("/SYSV00000000 (deleted)"),
        Just("/dev/dri/card0"),
    ];
    let mode = prop_oneof![Just("rw-p"), Just("r-xp"), Just("---p"), Just("rwxs"), Just("r--s")];
    let number = || prop_oneof![4 => 0..300u64, 1 => Just(u64::MAX >> 10)];
    let counters = proptest::collection::vec(number(), 8);
    (0..1u64 << 30, 0..200u64, name, mode, counters, any::<bool>()).prop_map(
        |(start, kib, name, mode, n, from_pages)| {
            let mapping = map(start << 12, kib, mode, name);
            if from_pages {
                return mapping.pages([n[0], n[1]], [n[2], n[3]], Ok(Bytes::kib(n[4])));
            }
            mapping.using(&[
                (Rss, n[0]),
                (Pss, n[1]),
                (Anonymous, n[2]),
                (PrivateClean, n[3]),
                (PrivateDirty, n[4]),
                (SharedClean, n[5]),
                (SharedDirty, n[6]),
                (Swap, n[7]),
            ])
        },
    )
}

/// A mapping as a kernel may print it: the numbers fit together.
fn sound_mapping() -> impl Strategy<Value = Mapping> {
    let name =
        prop_oneof![Just(""), Just("/lib/libc.so.6"), Just("/memfd:x (deleted)"), Just("/data")];
    let mode = prop_oneof![Just("rw-p"), Just("rw-s")];
    let pages = || proptest::collection::vec(0..10u64, 6);
    (0..1000u64, name, mode, pages(), any::<bool>()).prop_map(|(at, name, mode, n, by_table)| {
        let mapping = map((at + 1) << 24, 4 * 64, mode, name);
        let n: Vec<u64> = n.iter().map(|pages| pages * 4).collect();
        let anonymous = mapping.sharing == pagewise_model::Sharing::Private;
        let is_file = !mapping.name.is_empty();
        let anon = if anonymous { [n[0], n[1]] } else { [0, 0] };
        let file = if is_file { [n[2], n[3]] } else { [0, 0] };
        let co_mapped = anon[1] + file[1];
        let pss = anon[0] + file[0] + co_mapped / 3;
        let read = mapping.clone().pages(anon, file, Ok(Bytes::kib(pss)));
        let smaps = mapping.using(&[
            (Rss, anon.iter().chain(&file).sum()),
            (Pss, pss),
            (Anonymous, anon[0] + anon[1]),
            (PrivateDirty, anon[0] + file[0]),
            (SharedClean, co_mapped),
            (Swap, n[4]),
        ]);
        Mapping { pages: if by_table { read.pages } else { absent() }, ..smaps }
    })
}

fn total(
    cells: &QuadrantCells,
    of: fn(&pagewise_analysis::quadrants::QuadrantCell) -> &Reading<Bytes>,
) -> Reading<Bytes> {
    cells.iter().map(|cell| of(cell).clone()).sum()
}

fn plain_sum(mappings: &[Mapping], of: impl Fn(&Mapping) -> Bytes) -> Bytes {
    mappings.iter().filter(|m| m.name.as_bytes() != b"[vsyscall]").map(of).sum()
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn any_mappings_add_up_to_virt_and_rss(mappings in proptest::collection::vec(any_mapping(), 0..12)) {
        let quadrants = quadrants(&snapshot(mappings.clone())).expect("mappings are there");
        let virt = plain_sum(&mappings, Mapping::size);
        let rss = plain_sum(&mappings, |m| m.rss().expect("built with numbers"));
        prop_assert_eq!(total(&quadrants.declared, |c| &c.reserved), Ok(virt));
        prop_assert_eq!(total(&quadrants.declared, |c| &c.resident), Ok(rss));
        if let Ok(reserved) = total(&quadrants.effective, |c| &c.reserved) {
            prop_assert_eq!(reserved, virt);
        }
        if let Ok(resident) = total(&quadrants.effective, |c| &c.resident) {
            prop_assert_eq!(resident, rss);
        }
    }

    #[test]
    fn sound_mappings_add_up_in_every_column(
        mappings in proptest::collection::vec(sound_mapping(), 1..12),
        lost in 0..12u64,
    ) {
        let mut snapshot = snapshot(mappings.clone());
        let holders = mappings.iter().filter(|m| m.counter(SharedClean) != Ok(Bytes::ZERO)).count() as u64;
        let lost = if holders > 0 { lost % holders } else { 0 };
        let pss = rollup(&mut snapshot).get(Pss).expect("built with Pss") + (lost << 10);
        rollup(&mut snapshot).set(Pss, pss);
        let quadrants = quadrants(&snapshot).expect("mappings are there");
        prop_assert_eq!(total(&quadrants.declared, |c| &c.pss), Ok(Bytes(pss)));
        for (of, name) in [
            ((|c| &c.reserved) as fn(&pagewise_analysis::quadrants::QuadrantCell) -> &Reading<Bytes>, "reserved"),
            (|c| &c.resident, "resident"),
            (|c| &c.pss, "pss"),
            (|c| &c.swapped, "swapped"),
            (|c| &c.dirty, "dirty"),
        ] {
            if let Ok(sum) = total(&quadrants.effective, of) {
                prop_assert_eq!(Ok(sum), total(&quadrants.declared, of), "{}", name);
            }
        }
        if mappings.iter().all(|m| m.pages.is_ok()) {
            prop_assert!(total(&quadrants.effective, |c| &c.resident).is_ok());
            prop_assert!(quadrants.effective[PA].pss.is_ok() && quadrants.effective[PF].pss.is_ok());
        }
    }
}
