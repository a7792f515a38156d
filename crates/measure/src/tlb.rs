//! The CPU's TLBs for data, as `cpuid` describes them. A hypervisor may describe TLBs that the CPU
//! does not have.

use pagewise_model::{Absent, Bytes, Reading};
use pagewise_sys::cpuid;

/// A level of TLB, for pages of one size.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Tlb {
    /// 1 is the nearest to the CPU.
    pub level: u8,
    /// Page size.
    pub page: Bytes,
    /// Number of entries.
    pub entries: u32,
    /// Associativity; equal to `entries` for a fully associative TLB.
    pub ways: u32,
}

/// The TLBs for data of the CPU that we run on, level by level.
///
/// # Errors
/// Absent on other CPUs than x86, and where `cpuid` says nothing of them.
pub fn tlbs() -> Reading<Vec<Tlb>> {
    let found = described(&cpuid::leaf);
    if found.is_empty() {
        return Err(Absent::NotSupported("cpuid describes no TLB".into()));
    }
    Ok(found)
}

/// Result of cpuid for a leaf and a subleaf.
type Answers<'a> = &'a dyn Fn(u32, u32) -> Option<[u32; 4]>;

const BASE: Bytes = Bytes::kib(4);
const HUGE: Bytes = Bytes::mib(2);
const GIANT: Bytes = Bytes::mib(1 << 10);

/// Uses the first description that the CPU has: Intel's leaf 0x18, Intel's older leaf 2, AMD's
/// leaves.
fn described(answers: Answers<'_>) -> Vec<Tlb> {
    let mut found = [of_parameters, of_descriptors, of_amd]
        .iter()
        .map(|read| read(answers))
        .find(|found| !found.is_empty())
        .unwrap_or_default();
    found.sort_by_key(|tlb| (tlb.level, tlb.page));
    found
}

/// Leaf 0x18, "deterministic address translation parameters": one subleaf per TLB.
fn of_parameters(answers: Answers<'_>) -> Vec<Tlb> {
    /// Bits of EBX.
    const PAGES: [(u32, Bytes); 3] = [(0, BASE), (1, HUGE), (3, GIANT)];
    /// Types data (1), unified (3) and load-only (4). The store-only TLB (5) is at most as large as
    /// the load-only TLB.
    const TYPES: [u32; 3] = [1, 3, 4];
    /// Maximum number of subleaves: no CPU has more.
    const MAX_LEAVES: u32 = 32;
    let Some([last, ..]) = answers(0x18, 0) else { return Vec::new() };
    let subleaves = (0..=last.min(MAX_LEAVES)).filter_map(|subleaf| answers(0x18, subleaf));
    let data = subleaves.filter(|[.., edx]| TYPES.contains(&(edx & 0x1f)));
    let tlbs = data.flat_map(|[_, ebx, sets, edx]| {
        let ways = ebx >> 16;
        let level = u8::try_from(edx >> 5 & 7).unwrap_or(0);
        let held = PAGES.iter().filter(move |(bit, _)| ebx >> bit & 1 == 1);
        held.map(move |(_, page)| tlb(level, *page, sets.saturating_mul(ways), ways))
    });
    tlbs.flatten().collect()
}

/// Level, page, entries, ways.
type TlbRow = (u8, Bytes, u32, u32);

/// Bytes of leaf 2 and the TLBs that each byte describes.
const DESCRIPTORS: &[(u8, &[TlbRow])] = &[
    (0x03, &[(1, BASE, 64, 4)]),
    (0x57, &[(1, BASE, 16, 4)]),
    (0x5a, &[(1, HUGE, 32, 4)]),
    (0x63, &[(1, HUGE, 32, 4), (1, GIANT, 4, 4)]),
    (0xa0, &[(1, BASE, 32, 32)]),
    (0xb3, &[(1, BASE, 128, 4)]),
    (0xb4, &[(1, BASE, 256, 4)]),
    (0xc1, &[(2, BASE, 1024, 8), (2, HUGE, 1024, 8)]),
    (0xc3, &[(2, BASE, 1536, 6), (2, HUGE, 1536, 6), (2, GIANT, 16, 4)]),
    (0xca, &[(2, BASE, 512, 4)]),
];

/// Leaf 2: one byte per TLB or cache. The lowest byte of EAX, and registers whose top bit is set,
/// contain no such byte.
fn of_descriptors(answers: Answers<'_>) -> Vec<Tlb> {
    let Some(registers) = answers(2, 0) else { return Vec::new() };
    let valid = registers.iter().enumerate().filter(|(_, register)| *register >> 31 == 0);
    let bytes = valid.flat_map(|(number, register)| {
        register.to_le_bytes().into_iter().skip(usize::from(number == 0))
    });
    let rows = bytes.filter_map(|byte| DESCRIPTORS.iter().find(|(known, _)| *known == byte));
    let tlbs = rows.flat_map(|(_, tlbs)| tlbs.iter());
    tlbs.filter_map(|(level, page, entries, ways)| tlb(*level, *page, *entries, *ways)).collect()
}

/// AMD's leaves: the upper half of a register describes a data TLB, the lower half an instruction
/// TLB.
fn of_amd(answers: Answers<'_>) -> Vec<Tlb> {
    /// Leaf, register, encoding of the ways, level and page.
    const HALVES: [(u32, usize, Ways, u8, Bytes); 6] = [
        (0x8000_0005, 0, Ways::Plain, 1, HUGE),
        (0x8000_0005, 1, Ways::Plain, 1, BASE),
        (0x8000_0006, 0, Ways::Coded, 2, HUGE),
        (0x8000_0006, 1, Ways::Coded, 2, BASE),
        (0x8000_0019, 0, Ways::Coded, 1, GIANT),
        (0x8000_0019, 1, Ways::Coded, 2, GIANT),
    ];
    let half = |(leaf, register, ways, level, page): &(u32, usize, Ways, u8, Bytes)| {
        let half = answers(*leaf, 0)?[*register] >> 16;
        let (entries, ways) = ways.entries_and_ways(half)?;
        tlb(*level, *page, entries, ways)
    };
    HALVES.iter().filter_map(half).collect()
}

/// AMD's encoding of entries and ways in 16 bits.
enum Ways {
    /// 8 bits of entries, 8 of ways; ways of all ones mean fully associative.
    Plain,
    /// 12 bits of entries, 4 of a code.
    Coded,
}

impl Ways {
    /// Entries and ways.
    fn entries_and_ways(&self, half: u32) -> Option<(u32, u32)> {
        /// Ways by code; 0 for codes that state no number.
        const CODES: [u32; 16] = [0, 1, 2, 3, 4, 6, 8, 0, 16, 0, 32, 48, 64, 96, 128, u32::MAX];
        let (entries, ways) = match self {
            Ways::Plain => (half & 0xff, if half >> 8 == 0xff { u32::MAX } else { half >> 8 }),
            Ways::Coded => (half & 0xfff, CODES[half as usize >> 12 & 0xf]),
        };
        Some((entries, ways.min(entries))).filter(|(_, ways)| *ways > 0)
    }
}

/// `None` for impossible values: a TLB consists of one or more full sets.
fn tlb(level: u8, page: Bytes, entries: u32, ways: u32) -> Option<Tlb> {
    let can_be = level > 0 && ways > 0 && entries >= ways && entries.is_multiple_of(ways);
    can_be.then_some(Tlb { level, page, entries, ways })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn from_leaves(leaves: &[(u32, u32, [u32; 4])]) -> Vec<(u8, u64, u32, u32)> {
        let answers = |leaf, subleaf| {
            let found = leaves.iter().find(|(l, s, _)| (*l, *s) == (leaf, subleaf));
            found.map(|(.., registers)| *registers)
        };
        let found = described(&answers).into_iter();
        found.map(|tlb| (tlb.level, tlb.page.0 >> 10, tlb.entries, tlb.ways)).collect()
    }

    #[test]
    fn an_older_intel_cpu_names_its_tlbs_by_bytes() {
        let broadwell = [(2, 0, [0x7603_6301, 0x00f0_b5ff, 0, 0x00c3_0000])];
        let expected = [
            (1, 4, 64, 4),
            (1, 2048, 32, 4),
            (1, 1 << 20, 4, 4),
            (2, 4, 1536, 6),
            (2, 2048, 1536, 6),
            (2, 1 << 20, 16, 4),
        ];
        assert_eq!(from_leaves(&broadwell), expected);
    }

    #[test]
    fn a_newer_one_has_a_leaf_for_each() {
        let leaves = [
            (2, 0, [0x00fe_ff01, 0xf0, 0, 0]),
            (0x18, 0, [4, 0, 0, 0]),
            // Instructions: 4 KiB, 16 sets of 8 ways.
            (0x18, 1, [0, 0x0008_0001, 16, 0x0000_0022]),
            // Loads: 4 KiB, 16 sets of 6 ways.
            (0x18, 2, [0, 0x0006_0001, 16, 0x0000_0024]),
            // Stores, any size: 1 set of 16 ways.
            (0x18, 3, [0, 0x0010_000f, 1, 0x0000_0125]),
            // Both: 4 KiB and 2 MiB, 128 sets of 16 ways, second level.
            (0x18, 4, [0, 0x0010_0003, 128, 0x0000_0043]),
        ];
        assert_eq!(from_leaves(&leaves), [(1, 4, 96, 6), (2, 4, 2048, 16), (2, 2048, 2048, 16)]);
    }

    #[test]
    fn amd_has_halves_of_registers() {
        let zen = [
            (0x8000_0005, 0, [0xff48_ff40, 0xff48_ff40, 0, 0]),
            (0x8000_0006, 0, [0x5c00_2200, 0x6c00_4200, 0, 0]),
            (0x8000_0019, 0, [0xf048_f040, 0xf400_0000, 0, 0]),
        ];
        let expected = [
            (1, 4, 72, 72),
            (1, 2048, 72, 72),
            (1, 1 << 20, 72, 72),
            (2, 4, 3072, 8),
            (2, 2048, 3072, 6),
            (2, 1 << 20, 1024, 1024),
        ];
        assert_eq!(from_leaves(&zen), expected);
        assert_eq!(from_leaves(&[(0x8000_0005, 0, [0; 4]), (0x8000_0006, 0, [0; 4])]), []);
    }

    #[test]
    fn this_machine_has_tlbs_or_says_why_not() {
        match tlbs() {
            Ok(tlbs) => assert!(tlbs.iter().any(|tlb| tlb.level == 1 && tlb.entries > 0)),
            Err(absent) => assert!(!absent.to_string().is_empty()),
        }
    }

    proptest! {
        #[test]
        fn whatever_is_answered_can_be(registers in any::<[u32; 4]>()) {
            for tlb in described(&|_, _| Some(registers)) {
                prop_assert!(tlb.ways > 0 && tlb.entries.is_multiple_of(tlb.ways), "{:?}", tlb);
            }
        }
    }
}
