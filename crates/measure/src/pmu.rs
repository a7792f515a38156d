//! `/sys/bus/event_source/devices`: the performance monitoring units (PMUs) of the machine, and the
//! names of their events.

use std::fs;
use std::path::{Path, PathBuf};

use pagewise_model::{Absent, Reading};
use pagewise_sys::perf_event::{PerfEvent, PerfType};

use crate::events::Operation;

const DEVICES: &str = "/sys/bus/event_source/devices";

/// Terms that select an event of a PMU: `event=0xd0,umask=0x11`, or the name of an event,
/// `mem-loads`. A term without a value is 1.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Terms(Vec<(String, Option<u64>)>);

impl Terms {
    /// Parses terms, separated by commas. `None` if the text is invalid.
    pub fn parse(text: &str) -> Option<Terms> {
        let terms: Option<Vec<_>> = text.split(',').map(term).collect();
        terms.map(Terms)
    }
}

fn term(text: &str) -> Option<(String, Option<u64>)> {
    let (name, value) = match text.split_once('=') {
        Some((name, value)) => (name, Some(value)),
        None => (text, None),
    };
    let is_name = name.bytes().all(|b| b.is_ascii_alphanumeric() || b"-_".contains(&b));
    let value = match value {
        None => None,
        Some(value) => Some(number(value)?),
    };
    (is_name && !name.is_empty()).then(|| (name.to_owned(), value))
}

fn number(text: &str) -> Option<u64> {
    let digits = |text: &str| !text.starts_with('+');
    match text.strip_prefix("0x") {
        Some(hex) => u64::from_str_radix(hex, 16).ok().filter(|_| digits(hex)),
        None => text.parse().ok().filter(|_| digits(text)),
    }
}

/// Bits of `config`, `config1` or `config2` for a term, from the lowest: `config:0-7,32-35`.
#[derive(Debug, PartialEq, Eq)]
struct Format {
    word: usize,
    bits: Vec<u32>,
}

impl Format {
    fn parse(text: &str) -> Option<Format> {
        let (word, ranges) = text.trim().split_once(':')?;
        let word = ["config", "config1", "config2"].iter().position(|name| *name == word)?;
        let mut bits = Vec::new();
        for range in ranges.split(',') {
            let (first, last) = range.split_once('-').unwrap_or((range, range));
            let (first, last) = (first.parse::<u32>().ok()?, last.parse::<u32>().ok()?);
            if first > last || last > 63 {
                return None;
            }
            bits.extend(first..=last);
        }
        Some(Format { word, bits })
    }

    /// Writes a value to these bits; `None` if the value has more bits than the term.
    fn put(&self, words: &mut [u64; 3], value: u64) -> Option<()> {
        let room = u32::try_from(self.bits.len()).ok()?;
        if room < 64 && value >> room != 0 {
            return None;
        }
        for (from, to) in self.bits.iter().enumerate().take(64) {
            words[self.word] |= (value >> from & 1) << to;
        }
        Some(())
    }
}

/// The machine's PMUs.
#[derive(Debug)]
pub(crate) struct Pmus {
    folder: PathBuf,
    virtual_machine: bool,
}

/// Events of completed page walks after loads and after stores, as `umask << 8 | event`, by the
/// kernel's name of the CPU's PMU.
const PAGE_WALKS: &[(&str, u64, u64)] = &[
    ("haswell", 0x0e08, 0x0e49),
    ("broadwell", 0x0e08, 0x0e49),
    ("skylake", 0x0e08, 0x0e49),
    ("icelake", 0x0e08, 0x0e49),
    ("sapphire_rapids", 0x0e12, 0x0e13),
    ("granite_rapids", 0x0e12, 0x0e13),
];

impl Pmus {
    pub(crate) fn of_this_machine() -> Pmus {
        let cpu = fs::read("/proc/cpuinfo").unwrap_or_default();
        Pmus { folder: DEVICES.into(), virtual_machine: runs_in_a_vm(&cpu) }
    }

    /// Reason why no event of the CPU can be counted; `None` if the kernel has a PMU for the CPU.
    pub(crate) fn no_cpu_pmu(&self) -> Option<Absent> {
        let there_is_one = self.names().iter().any(|name| is_of_a_cpu(name));
        let why = if self.virtual_machine {
            "this VM has no PMU"
        } else {
            "the kernel has no driver for this CPU's PMU"
        };
        (!there_is_one).then(|| Absent::NotSupported(why.into()))
    }

    /// The PMUs by name.
    pub(crate) fn names(&self) -> Vec<String> {
        names(&self.folder)
    }

    /// The events to which a PMU gives a name.
    pub(crate) fn events(&self, pmu: &str) -> Vec<String> {
        let mut events = names(&self.folder.join(pmu).join("events"));
        // `EVENT.unit` and `EVENT.scale` lie beside `EVENT`.
        events.retain(|name| !name.contains('.'));
        events
    }

    /// Names of the terms that a PMU accepts.
    pub(crate) fn terms(&self, pmu: &str) -> Vec<String> {
        names(&self.folder.join(pmu).join("format"))
    }

    pub(crate) fn page_walks(&self, operation: Operation) -> Reading<u64> {
        if let Some(absent) = self.no_cpu_pmu() {
            return Err(absent);
        }
        let name = read(&self.folder.join("cpu/caps/pmu_name")).unwrap_or_default();
        let row = PAGE_WALKS.iter().find(|(pmu, ..)| *pmu == name.trim());
        let (_, reads, writes) = row.ok_or_else(|| {
            let why = "the number of this event is not known for this CPU: \
                       choose one of its manual with --events cpu/event=...,umask=.../";
            Absent::NotSupported(why.into())
        })?;
        Ok(if operation == Operation::Write { *writes } else { *reads })
    }

    /// The event that terms choose.
    pub(crate) fn event(&self, pmu: &str, terms: &Terms) -> Reading<PerfEvent> {
        let unknown = |what: String| Absent::NotSupported(what.into());
        let folder = self.folder.join(pmu);
        let kind = read(&folder.join("type")).and_then(|text| text.trim().parse().ok());
        let kind = kind.ok_or_else(|| unknown(format!("this machine has no PMU {pmu}")))?;
        let mut words = [0; 3];
        for (name, value) in &terms.0 {
            let named = read(&folder.join("events").join(name)).filter(|_| value.is_none());
            let terms = match named {
                Some(text) => Terms::parse(text.trim()),
                None => Some(Terms(vec![(name.clone(), Some(value.unwrap_or(1)))])),
            };
            let terms = terms.ok_or_else(|| {
                unknown(format!("the event {name} of {pmu} has an unknown format"))
            })?;
            for (name, value) in terms.0 {
                put(&folder, &mut words, &name, value.unwrap_or(1)).ok_or_else(|| {
                    unknown(format!("{pmu} has no event or term {name}, or not of this value"))
                })?;
            }
        }
        let [config, config1, config2] = words;
        Ok(PerfEvent { kind: PerfType(kind), config, config1, config2, accesses: 0 })
    }
}

/// Writes the value of a term to the bits that the format of its PMU states. `config`, `config1`
/// and `config2` need no format: they are whole words.
fn put(folder: &Path, words: &mut [u64; 3], name: &str, value: u64) -> Option<()> {
    match read(&folder.join("format").join(name)) {
        Some(format) => Format::parse(&format)?.put(words, value),
        None => Format::parse(&format!("{name}:0-63"))?.put(words, value),
    }
}

fn read(path: &Path) -> Option<String> {
    fs::read_to_string(path).ok()
}

fn names(folder: &Path) -> Vec<String> {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    let mut names: Vec<String> =
        entries.filter_map(|entry| entry.file_name().into_string().ok()).collect();
    names.sort();
    names
}

/// True for PMUs that count `PERF_TYPE_HARDWARE` events: `cpu`, `cpu_core`, `armv8_pmuv3_0`.
fn is_of_a_cpu(name: &str) -> bool {
    ["cpu", "armv", "apple_", "riscv"].iter().any(|start| name.starts_with(start))
}

/// True if `/proc/cpuinfo` has the flag that a hypervisor sets for its guests.
fn runs_in_a_vm(cpuinfo: &[u8]) -> bool {
    let text = String::from_utf8_lossy(cpuinfo);
    let flags = text.lines().find(|line| line.starts_with("flags"));
    flags.is_some_and(|line| line.split_ascii_whitespace().any(|flag| flag == "hypervisor"))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn file(folder: &Path, name: &str, text: &str) {
        let path = folder.join(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    }

    fn skylake() -> (tempfile::TempDir, Pmus) {
        let tree = tempfile::tempdir().unwrap();
        for (name, text) in [
            ("cpu/type", "4\n"),
            ("cpu/caps/pmu_name", "skylake\n"),
            ("cpu/format/event", "config:0-7\n"),
            ("cpu/format/umask", "config:8-15\n"),
            ("cpu/format/cmask", "config:24-31\n"),
            ("cpu/format/edge", "config:18\n"),
            ("cpu/format/ldlat", "config1:0-15\n"),
            ("cpu/format/split", "config:0-3,32-35\n"),
            ("cpu/events/mem-loads", "event=0xcd,umask=0x1,ldlat=3\n"),
            ("cpu/events/mem-loads.scale", "1\n"),
        ] {
            file(tree.path(), name, text);
        }
        let pmus = Pmus { folder: tree.path().into(), virtual_machine: false };
        (tree, pmus)
    }

    #[test]
    fn terms_and_named_events_become_words() {
        let (_tree, pmus) = skylake();
        let event = |terms: &str| {
            let event = pmus.event("cpu", &Terms::parse(terms).unwrap())?;
            assert_eq!(event.kind, PerfType(4));
            Ok((event.config, event.config1))
        };
        assert_eq!(event("event=0xd0,umask=0x11"), Ok((0x11d0, 0)));
        assert_eq!(event("event=0xd0,umask=17,edge,cmask=1"), Ok((0x0104_11d0, 0)));
        assert_eq!(event("mem-loads"), Ok((0x01cd, 3)));
        assert_eq!(event("split=0xab"), Ok((0xa_0000_000b, 0)));
        assert_eq!(event("config=0x1234,config1=5"), Ok((0x1234, 5)));
        assert_eq!(pmus.events("cpu"), ["mem-loads"]);
        assert_eq!(pmus.terms("cpu"), ["cmask", "edge", "event", "ldlat", "split", "umask"]);
        for wrong in ["event=0x100", "no-such-event", "edge=2"] {
            let why: Absent = event(wrong).unwrap_err();
            assert!(why.to_string().contains("cpu has no event or term"), "{why}");
        }
        let nowhere = pmus.event("gpu", &Terms::parse("event=1").unwrap());
        assert!(nowhere.unwrap_err().to_string().contains("no PMU gpu"));
    }

    #[test]
    fn page_walks_have_the_number_of_their_cpu() {
        let (tree, pmus) = skylake();
        assert_eq!(pmus.page_walks(Operation::Read), Ok(0x0e08));
        assert_eq!(pmus.page_walks(Operation::Write), Ok(0x0e49));
        file(tree.path(), "cpu/caps/pmu_name", "future\n");
        assert!(pmus.page_walks(Operation::Read).unwrap_err().to_string().contains("--events"));
    }

    #[test]
    fn a_machine_without_a_pmu_says_whether_it_is_a_vm() {
        let tree = tempfile::tempdir().unwrap();
        file(tree.path(), "software/type", "1\n");
        let why =
            |virtual_machine| Pmus { folder: tree.path().into(), virtual_machine }.no_cpu_pmu();
        assert_eq!(why(true).unwrap().to_string(), "not supported: this VM has no PMU");
        assert!(why(false).unwrap().to_string().contains("no driver"));
        assert_eq!(skylake().1.no_cpu_pmu(), None);
        assert!(runs_in_a_vm(b"processor: 0\nflags\t\t: fpu hypervisor lahf_lm\n"));
        assert!(!runs_in_a_vm(b"flags: fpu hypervisor_x\nmodel name: hypervisor\n"));
    }

    proptest! {
        #[test]
        fn no_words_make_it_panic(terms in ".*", format in "(config[12]?:)?[0-9,-]{0,12}", value: u64) {
            let _ = Terms::parse(&terms);
            if let Some(format) = Format::parse(&format) {
                let mut words = [0; 3];
                let _ = format.put(&mut words, value);
            }
        }

        #[test]
        fn a_value_lies_where_its_format_says(first in 0..60u32, value: u8) {
            let format = Format::parse(&format!("config1:{first}-{}", first + 3)).unwrap();
            let mut words = [0; 3];
            let put = format.put(&mut words, value.into());
            prop_assert_eq!(put.is_some(), value < 16);
            if put.is_some() {
                prop_assert_eq!(words, [0, u64::from(value) << first, 0]);
            }
        }
    }
}
