//! The counters of the Java virtual machine in the file `/tmp/hsperfdata_USER/PID`, which the
//! process maps (HotSpot, `perfMemory.hpp`). `jstat` prints the same counters.

use pagewise_model::evidence::CollectorPoint;
use pagewise_model::{AddrRange, Bytes, Mapping, Snapshot};

/// Maximum plausible size of the file in bytes; its default size is 32 KiB
/// (`-XX:PerfDataMemorySize`).
const MAX_BYTES: u64 = 128 << 10;
const MAGIC: [u8; 4] = [0xca, 0xfe, 0xc0, 0xc0];
/// Maximum number of counters that are read; version 17 of the virtual machine has about 190.
const MAX_ENTRIES: u32 = 5000;
/// Names of the numbers of loaded classes: from jar files, and from the archive of the runtime.
const LOADED: [&[u8]; 2] = [b"java.cls.loadedClasses", b"java.cls.sharedLoadedClasses"];
/// Names of the numbers of unloaded classes, from the same two origins as in [`LOADED`].
const UNLOADED: [&[u8]; 2] = [b"java.cls.unloadedClasses", b"java.cls.sharedUnloadedClasses"];
/// Name of the number of full collections of the collectors Serial, Parallel and G1.
const FULL: &[u8] = b"sun.gc.collector.1.invocations";
/// Type code of an entry with 64-bit integers.
const LONG: u8 = b'J';

/// Finds the mapping of the file with the counters.
pub(super) fn counters(mappings: &[Mapping]) -> Option<AddrRange> {
    let is_file = |it: &&Mapping| {
        let mut folders = it.path().rsplit(|byte| *byte == b'/').skip(1);
        folders.next().is_some_and(|folder| folder.starts_with(b"hsperfdata_"))
            && it.range.len().0 <= MAX_BYTES
    };
    mappings.iter().find(is_file).map(|mapping| mapping.range)
}

/// True if the process has loaded a Java virtual machine.
pub(super) fn is_loaded(snapshot: &Snapshot) -> bool {
    snapshot.objects.iter().any(|object| object.name.base() == b"libjvm.so")
}

/// Reads the number of collections by all collectors, the number of full collections, the used
/// bytes of the old generation, and the number of loaded classes. `None` if the file has an unknown
/// form or no number of collections.
pub(super) fn point(file: &[u8]) -> Option<CollectorPoint> {
    // The fourth byte after the magic number is 1 as soon as the counters are valid.
    let is_little = file.get(4) == Some(&1);
    if file.get(..4) != Some(&MAGIC) || !is_little || file.get(7) != Some(&1) {
        return None;
    }
    let (mut collections, mut full, mut old) = (None, None, None);
    let (mut loaded, mut unloaded) = (None, 0_u64);
    let mut at = number(file, 24)?;
    for _ in 0..number(file, 28)?.min(MAX_ENTRIES) {
        let entry = file.get(index(at)?..)?;
        if let Some((name, value)) = long_entry(entry) {
            let is_count =
                name.starts_with(b"sun.gc.collector.") && name.ends_with(b".invocations");
            if is_count {
                collections = Some(collections.unwrap_or(0_u64).saturating_add(value));
                full = if name == FULL { Some(value) } else { full };
            } else if name == b"sun.gc.generation.1.space.0.used" {
                old = Some(Bytes(value));
            } else if LOADED.contains(&name) {
                loaded = Some(loaded.unwrap_or(0_u64).saturating_add(value));
            } else if UNLOADED.contains(&name) {
                unloaded = unloaded.saturating_add(value);
            }
        }
        at = at.checked_add(number(entry, 0)?.max(1))?;
    }
    let classes = loaded.map(|loaded| loaded.saturating_sub(unloaded));
    collections.is_some().then_some(CollectorPoint { at_ns: 0, collections, old, classes, full })
}

/// Returns the name and the value of an entry with one 64-bit integer; `None` for other entries.
fn long_entry(entry: &[u8]) -> Option<(&[u8], u64)> {
    if number(entry, 8)? != 0 || *entry.get(12)? != LONG {
        return None;
    }
    let name = entry.get(index(number(entry, 4)?)?..)?;
    let name = name.split(|byte| *byte == 0).next()?;
    let value = entry.get(index(number(entry, 16)?)?..)?.first_chunk()?;
    Some((name, u64::from_le_bytes(*value)))
}

fn number(bytes: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_le_bytes(*bytes.get(at..)?.first_chunk()?))
}

fn index(offset: u32) -> Option<usize> {
    usize::try_from(offset).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns a synthetic file with counters of these names and values.
    fn file(numbers: &[(&str, u64)]) -> Vec<u8> {
        let mut file = [&MAGIC[..], &[1, 2, 0, 1]].concat();
        file.resize(24, 0);
        file.extend(32_u32.to_le_bytes());
        file.extend(u32::try_from(numbers.len()).unwrap().to_le_bytes());
        for (name, value) in numbers {
            let offset = (20 + name.len() + 1).next_multiple_of(8);
            let mut entry = u32::try_from(offset + 8).unwrap().to_le_bytes().to_vec();
            entry.extend([20_u32.to_le_bytes(), [0; 4]].concat());
            entry.extend([LONG, 0, 0, 0]);
            entry.extend(u32::try_from(offset).unwrap().to_le_bytes());
            entry.extend(name.as_bytes());
            entry.resize(offset, 0);
            entry.extend(value.to_le_bytes());
            file.extend(entry);
        }
        file
    }

    #[test]
    fn collections_are_summed_and_the_old_generation_is_found() {
        let file = file(&[
            ("sun.gc.collector.0.invocations", 18),
            ("sun.gc.collector.1.invocations", 2),
            ("sun.gc.generation.0.space.0.used", 99),
            ("sun.gc.generation.1.space.0.used", 1 << 20),
            ("java.cls.loadedClasses", 900),
            ("java.cls.sharedLoadedClasses", 400),
            ("java.cls.unloadedClasses", 30),
        ]);
        let found = point(&file).unwrap();
        assert_eq!((found.collections, found.old), (Some(20), Some(Bytes::mib(1))));
        assert_eq!(found.full, Some(2));
        assert_eq!(found.classes, Some(1270));
        for cut in 0..file.len() {
            // A truncated file causes neither a panic nor a wrong number.
            let cut = point(&file[..cut]);
            assert!(cut.is_none_or(|cut| cut.collections == Some(20)), "{cut:?}");
        }
    }

    #[test]
    fn other_files_have_no_counters() {
        assert_eq!(point(&[0; 5000]), None);
        let mut endless = file(&[("sun.gc.collector.0.invocations", 1)]);
        endless[28..32].fill(0xff);
        assert!(point(&endless).is_none());
    }
}
