//! Counters of `smaps` and `smaps_rollup`, one variant for each line, and the `VmFlags`.

use std::fmt;

use serde::de::{self, Deserializer, MapAccess, SeqAccess, Visitor};
use serde::ser::{SerializeMap, SerializeSeq, Serializer};
use serde::{Deserialize, Serialize};

use crate::{Absent, Bytes, Name, Reading};

macro_rules! counters {
    ($($variant:ident $name:literal $since:literal,)*) => {
        /// A line of `smaps` or `smaps_rollup` that contains a number. The variants are in the
        /// kernel's order.
        ///
        /// [`crate::fields::FIELDS`] has the meaning of each counter, under the same name.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        #[repr(u8)]
        pub enum SmapsCounter {
            $(#[doc = concat!("`", $name, "`, since Linux ", $since, ".")] $variant,)*
        }

        impl SmapsCounter {
            /// Every counter, in the kernel's order.
            pub const ALL: &'static [SmapsCounter] = &[$(SmapsCounter::$variant,)*];

            /// The kernel's name of the counter.
            pub const fn name(self) -> &'static str {
                match self { $(SmapsCounter::$variant => $name,)* }
            }

            /// The kernel release that introduced the line.
            pub const fn since(self) -> &'static str {
                match self { $(SmapsCounter::$variant => $since,)* }
            }
        }
    };
}

counters! {
    Size "Size" "2.6.14",
    KernelPageSize "KernelPageSize" "2.6.29",
    MmuPageSize "MMUPageSize" "2.6.29",
    Rss "Rss" "2.6.14",
    Pss "Pss" "2.6.25",
    PssDirty "Pss_Dirty" "6.0",
    PssAnon "Pss_Anon" "5.4",
    PssFile "Pss_File" "5.4",
    PssShmem "Pss_Shmem" "5.4",
    SharedClean "Shared_Clean" "2.6.14",
    SharedDirty "Shared_Dirty" "2.6.14",
    PrivateClean "Private_Clean" "2.6.14",
    PrivateDirty "Private_Dirty" "2.6.14",
    Referenced "Referenced" "2.6.22",
    Anonymous "Anonymous" "2.6.37",
    Ksm "KSM" "6.7",
    LazyFree "LazyFree" "4.12",
    AnonHugePages "AnonHugePages" "2.6.39",
    ShmemPmdMapped "ShmemPmdMapped" "4.8",
    FilePmdMapped "FilePmdMapped" "5.4",
    SharedHugetlb "Shared_Hugetlb" "4.4",
    PrivateHugetlb "Private_Hugetlb" "4.4",
    Swap "Swap" "2.6.26",
    SwapPss "SwapPss" "4.3",
    Locked "Locked" "2.6.38",
    ThpEligible "THPeligible" "5.0",
    ProtectionKey "ProtectionKey" "4.6",
}

/// Number of counters.
pub const COUNTERS: usize = SmapsCounter::ALL.len();

impl SmapsCounter {
    /// Returns the counter with the kernel's name `name`; `None` for other names.
    pub fn named(name: &[u8]) -> Option<SmapsCounter> {
        SmapsCounter::ALL.iter().copied().find(|c| c.name().as_bytes() == name)
    }

    /// True if the value is a size in bytes. `THPeligible` is 0 or 1; `ProtectionKey` is a key
    /// number.
    pub const fn is_bytes(self) -> bool {
        !matches!(self, SmapsCounter::ThpEligible | SmapsCounter::ProtectionKey)
    }
}

/// Content of one `smaps` entry or of `smaps_rollup`: the counters, the flags, and all lines that
/// this version does not recognize.
#[derive(Clone, PartialEq, Eq)]
pub struct Smaps {
    present: u32,
    values: [u64; COUNTERS],
    /// `VmFlags`; `None` for kernels before 3.8 and for `smaps_rollup`.
    pub flags: Option<VmFlags>,
    /// Lines without a [`SmapsCounter`]: name and text, unchanged.
    pub extra: Vec<(Name, Name)>,
}

const _: () = assert!(COUNTERS <= 32, "`present` has a bit for each counter");

impl Default for Smaps {
    fn default() -> Smaps {
        Smaps { present: 0, values: [0; COUNTERS], flags: None, extra: Vec::new() }
    }
}

impl Smaps {
    /// Sets a counter. Sizes are in bytes; the kernel's unit is kB.
    #[inline]
    pub fn set(&mut self, counter: SmapsCounter, value: u64) {
        self.present |= 1 << counter as u8;
        self.values[counter as usize] = value;
    }

    /// Returns the value of a counter; absent if this kernel does not print it.
    #[inline]
    pub fn get(&self, counter: SmapsCounter) -> Reading<u64> {
        if self.has(counter) {
            Ok(self.values[counter as usize])
        } else {
            Err(Absent::NotInThisKernel(counter.since().into()))
        }
    }

    /// Like [`Smaps::get`], for a counter that is a size in bytes.
    #[inline]
    pub fn bytes(&self, counter: SmapsCounter) -> Reading<Bytes> {
        self.get(counter).map(Bytes)
    }

    /// True if the kernel printed this counter.
    #[inline]
    pub const fn has(&self, counter: SmapsCounter) -> bool {
        self.present & (1 << counter as u8) != 0
    }

    /// The counters that are present, in the kernel's order.
    pub fn iter(&self) -> impl Iterator<Item = (SmapsCounter, u64)> {
        SmapsCounter::ALL.iter().filter(|c| self.has(**c)).map(|&c| (c, self.values[c as usize]))
    }
}

impl fmt::Debug for Smaps {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut map = f.debug_map();
        for (counter, value) in self.iter() {
            map.entry(&counter.name(), &value);
        }
        map.entry(&"VmFlags", &self.flags).entry(&"extra", &self.extra).finish()
    }
}

impl Serialize for Smaps {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut map = serializer.serialize_map(None)?;
        for (counter, value) in self.iter() {
            map.serialize_entry(counter.name(), &value)?;
        }
        if let Some(flags) = &self.flags {
            map.serialize_entry("VmFlags", flags)?;
        }
        if !self.extra.is_empty() {
            map.serialize_entry("extra", &self.extra)?;
        }
        map.end()
    }
}

impl<'de> Deserialize<'de> for Smaps {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Smaps, D::Error> {
        struct SmapsVisitor;
        impl<'de> Visitor<'de> for SmapsVisitor {
            type Value = Smaps;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object of smaps counters in bytes")
            }
            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Smaps, A::Error> {
                let mut smaps = Smaps::default();
                while let Some(key) = map.next_key::<String>()? {
                    match (key.as_str(), SmapsCounter::named(key.as_bytes())) {
                        (_, Some(counter)) => smaps.set(counter, map.next_value()?),
                        ("VmFlags", _) => smaps.flags = Some(map.next_value()?),
                        ("extra", _) => smaps.extra = map.next_value()?,
                        _ => return Err(de::Error::custom(format!("unknown counter {key:?}"))),
                    }
                }
                Ok(smaps)
            }
        }
        deserializer.deserialize_map(SmapsVisitor)
    }
}

/// Two-letter codes of `VmFlags` that have a bit in [`VmFlags`], with their meanings.
pub const VM_FLAGS: &[(&str, &str)] = &[
    ("rd", "readable"),
    ("wr", "writable"),
    ("ex", "executable"),
    ("sh", "shared"),
    ("mr", "may read"),
    ("mw", "may write"),
    ("me", "may execute"),
    ("ms", "may share"),
    ("gd", "stack that grows down"),
    ("pf", "pure page-frame range, no struct pages"),
    ("dw", "writes to the mapped file are disabled"),
    ("lo", "locked in memory (mlock)"),
    ("io", "memory-mapped I/O"),
    ("sr", "MADV_SEQUENTIAL"),
    ("rr", "MADV_RANDOM"),
    ("dc", "not copied on fork (MADV_DONTFORK)"),
    ("de", "not expanded by mremap"),
    ("ac", "counts towards the commit charge"),
    ("nr", "no swap space reserved (MAP_NORESERVE)"),
    ("ht", "huge TLB pages"),
    ("sf", "synchronous page faults (DAX)"),
    ("ar", "architecture-specific"),
    ("wf", "wiped on fork (MADV_WIPEONFORK)"),
    ("dd", "left out of core dumps (MADV_DONTDUMP)"),
    ("sd", "soft-dirty"),
    ("mm", "mixed map: page frames and struct pages"),
    ("hg", "MADV_HUGEPAGE"),
    ("nh", "MADV_NOHUGEPAGE"),
    ("mg", "merged by KSM (MADV_MERGEABLE)"),
    ("bt", "guarded by arm64 BTI"),
    ("mt", "arm64 memory tags"),
    ("um", "userfaultfd: missing pages"),
    ("uw", "userfaultfd: write-protected"),
    ("ui", "userfaultfd: minor faults"),
    ("ss", "shadow stack"),
    ("sl", "sealed (mseal)"),
    ("lf", "locked on fault (MLOCK_ONFAULT)"),
    ("dp", "droppable (MAP_DROPPABLE)"),
    ("gu", "may hold guard regions"),
];

const _: () = assert!(VM_FLAGS.len() <= 64, "a bit for each flag");

/// The `VmFlags` of one mapping: a set of two-letter codes.
#[derive(Clone, Default, Eq)]
pub struct VmFlags {
    known: u64,
    /// Codes that [`VM_FLAGS`] does not list.
    pub unknown: Vec<[u8; 2]>,
}

impl PartialEq for VmFlags {
    /// Compares the vectors only if one is not empty. For two empty vectors, glibc's `memcmp` does
    /// a masked load from their dangling address. The load takes a microcode assist of 150 ns
    /// (x86-64 with AVX-512), and a snapshot can have 65,000 mappings to compare.
    fn eq(&self, other: &VmFlags) -> bool {
        let no_unknown = self.unknown.is_empty() && other.unknown.is_empty();
        self.known == other.known && (no_unknown || self.unknown == other.unknown)
    }
}

impl VmFlags {
    /// Adds a code.
    #[inline]
    pub fn insert(&mut self, code: [u8; 2]) {
        match VM_FLAGS.iter().position(|(known, _)| known.as_bytes() == code) {
            Some(bit) => self.known |= 1 << bit,
            None if self.unknown.contains(&code) => {}
            None => self.unknown.push(code),
        }
    }

    /// True if a code is set.
    pub fn has(&self, code: &str) -> bool {
        match VM_FLAGS.iter().position(|(known, _)| *known == code) {
            Some(bit) => self.known & (1 << bit) != 0,
            None => self.unknown.iter().any(|u| u == code.as_bytes()),
        }
    }

    /// Iterates over the codes that are set: first those of [`VM_FLAGS`] in its order, then unknown
    /// codes.
    pub fn iter(&self) -> impl Iterator<Item = [u8; 2]> + '_ {
        let known = VM_FLAGS.iter().enumerate().filter(|(bit, _)| self.known & (1 << bit) != 0);
        known
            .map(|(_, (code, _))| [code.as_bytes()[0], code.as_bytes()[1]])
            .chain(self.unknown.iter().copied())
    }
}

impl fmt::Debug for VmFlags {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_set()
            .entries(self.iter().map(|code| crate::name::escape(&code).into_owned()))
            .finish()
    }
}

impl Serialize for VmFlags {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut seq = serializer.serialize_seq(None)?;
        for code in self.iter() {
            seq.serialize_element(&Name::new(&code))?;
        }
        seq.end()
    }
}

impl<'de> Deserialize<'de> for VmFlags {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<VmFlags, D::Error> {
        struct FlagsVisitor;
        impl<'de> Visitor<'de> for FlagsVisitor {
            type Value = VmFlags;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a list of two-letter codes")
            }
            fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<VmFlags, A::Error> {
                let mut flags = VmFlags::default();
                while let Some(code) = seq.next_element::<Name>()? {
                    let code = <[u8; 2]>::try_from(code.as_bytes())
                        .map_err(|_| de::Error::custom("a VmFlags code has two letters"))?;
                    flags.insert(code);
                }
                Ok(flags)
            }
        }
        deserializer.deserialize_seq(FlagsVisitor)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_counter_that_was_not_there_is_absent_not_zero() {
        let mut smaps = Smaps::default();
        smaps.set(SmapsCounter::Rss, 0);
        assert_eq!(smaps.bytes(SmapsCounter::Rss), Ok(Bytes(0)));
        assert_eq!(smaps.bytes(SmapsCounter::Pss), Err(Absent::NotInThisKernel("2.6.25".into())));
    }

    #[test]
    fn smaps_survive_json_unknown_lines_and_flags_included() {
        let mut smaps = Smaps::default();
        smaps.set(SmapsCounter::Rss, 8192);
        smaps.set(SmapsCounter::ThpEligible, 1);
        let mut flags = VmFlags::default();
        flags.insert(*b"rd");
        flags.insert(*b"zz");
        smaps.flags = Some(flags);
        smaps.extra.push(("NewField".into(), "12 kB".into()));
        let json = serde_json::to_string(&smaps).unwrap();
        assert_eq!(serde_json::from_str::<Smaps>(&json).unwrap(), smaps, "{json}");
    }
}
