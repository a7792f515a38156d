//! `/proc/meminfo`, and the settings of the machine that findings need.

use pagewise_model::fragmentation::BootCounter;
use pagewise_model::machine::MachineSettings;
use pagewise_model::{Absent, Bytes, Name, Reading};

use crate::ProcRoot;
use crate::text::{field, kilobytes, lines, number};

/// Returns the value of one line of `meminfo`, in bytes.
pub fn parse(text: &[u8], name: &str) -> Reading<Bytes> {
    let value = lines(text).filter_map(|(_, l)| field(l)).find(|(n, _)| *n == name.as_bytes());
    let (_, value) = value.ok_or_else(|| Absent::NotInThisKernel("".into()))?;
    kilobytes(value).map(Bytes).ok_or_else(|| Absent::NotSupported("not a size in kB".into()))
}

/// All lines of `meminfo`. Sizes are in bytes; a line without a unit is a count.
pub fn all(text: &[u8]) -> Vec<BootCounter> {
    let line = |(name, value): (&[u8], &[u8])| {
        let count = kilobytes(value).or_else(|| number(value))?;
        Some(BootCounter { name: Name::new(name), count })
    };
    lines(text).filter_map(|(_, it)| field(it)).filter_map(line).collect()
}

/// Reads the settings of the machine that a snapshot contains.
pub fn machine(root: &ProcRoot) -> MachineSettings {
    let meminfo = root.machine("meminfo");
    let line = |name| meminfo.as_ref().map_err(Clone::clone).and_then(|text| parse(text, name));
    MachineSettings {
        mem_total: line("MemTotal"),
        mem_available: line("MemAvailable"),
        swap_total: line("SwapTotal"),
        swap_free: line("SwapFree"),
        max_map_count: root
            .machine("sys/vm/max_map_count")
            .and_then(|text| number(&text).ok_or(Absent::NotSupported("not a number".into()))),
        nodes: nodes_online(root),
        thp_enabled: root
            .sysfs("kernel/mm/transparent_hugepage/enabled")
            .map(|text| Name::new(selected(&text).unwrap_or_default())),
    }
}

/// Number of NUMA nodes online.
pub(crate) fn nodes_online(root: &ProcRoot) -> Reading<u64> {
    root.sysfs("devices/system/node/online").map(|text| nodes(&text))
}

/// Number of elements of a list like `0-1,4`.
fn nodes(text: &[u8]) -> u64 {
    let ranges = text.trim_ascii().split(|&b| b == b',');
    let count = |range: &[u8]| {
        let mut ends = range.split(|&b| b == b'-').map(number);
        let first = ends.next()??;
        Some(ends.next().flatten().unwrap_or(first).saturating_sub(first) + 1)
    };
    ranges.filter_map(count).sum()
}

/// The word in brackets of `always [madvise] never`.
pub(crate) fn selected(text: &[u8]) -> Option<&[u8]> {
    let mut words = text.trim_ascii().split(|&b| b == b' ');
    words.find_map(|word| word.strip_prefix(b"[")?.strip_suffix(b"]"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_of_nodes_are_counted() {
        assert_eq!(nodes(b"0\n"), 1);
        assert_eq!(nodes(b"0-1,4\n"), 3);
    }

    #[test]
    fn the_selected_word_is_the_one_in_brackets() {
        assert_eq!(selected(b"always [madvise] never\n"), Some(&b"madvise"[..]));
        assert_eq!(selected(b"60\n"), None);
    }
}
