//! Address space layout randomization: the same program is started again and again, and prints its
//! mappings.

use std::collections::BTreeSet;
use std::process::Command;

use pagewise_model::lab::{ExperimentClaim, Plot};
use pagewise_model::mapping::Mapping;
use pagewise_model::report::{Scale, AxisUnit};
use pagewise_model::{Absent, Bytes};
use pagewise_proc::maps;
use pagewise_sys::system::do_not_randomize;

use super::RunExperiment;
use crate::bench::count;
use crate::error::While;
use crate::results::Explained;
use crate::{ExperimentAbout, Bench, LabError, Need, ParameterAbout, QuantityAbout, ExperimentResults};

/// See [`ABOUT`].
pub(super) struct Aslr;

static ABOUT: ExperimentAbout = ExperimentAbout {
    name: "aslr",
    question: "What of a program lies elsewhere each time that it is started?",
    expectation: "Each exec draws anew where the stack, the area of mappings with its libraries, the vdso and the heap begin, \
        and the program itself where it is position-independent. The kernel says how many bits it draws for mappings \
        (vm.mmap_rnd_bits), 22 for the stack, and up to 1 GiB between the program and its heap (32 MiB before Linux 6.9). Only \
        the old vsyscall page \
        stays where it always was. A process that asks for it (personality) has its children at the same places each time.",
    figures: "on each exec stack, mmap base, vdso, heap and PIE text move; vsyscall stays at ffffffffff600000",
    needs: &[Need::Program("cat")],
    parameters: &[ParameterAbout {
        name: "starts",
        meaning: "number of starts of the program",
        values: [100, 300, 1000],
    }],
    quantities: &[
        QuantityAbout { name: "stack", unit: AxisUnit::Count, meaning: "different addresses of the stack" },
        QuantityAbout { name: "library", unit: AxisUnit::Count, meaning: "different addresses of a library" },
        QuantityAbout { name: "vdso", unit: AxisUnit::Count, meaning: "different addresses of the vdso" },
        QuantityAbout { name: "heap", unit: AxisUnit::Count, meaning: "different addresses of the heap" },
        QuantityAbout { name: "text", unit: AxisUnit::Count, meaning: "different addresses of the program" },
        QuantityAbout { name: "vsyscall", unit: AxisUnit::Count, meaning: "different addresses of the vsyscall page" },
        QuantityAbout { name: "stack_bits", unit: AxisUnit::Number, meaning: "bits in which stacks differ, in pages" },
        QuantityAbout { name: "library_bits", unit: AxisUnit::Number, meaning: "bits in which libraries differ, in pages" },
        QuantityAbout { name: "gap", unit: AxisUnit::Bytes, meaning: "the largest gap between the program and its heap" },
        QuantityAbout { name: "setting", unit: AxisUnit::Number, meaning: "vm.mmap_rnd_bits" },
    ],
    arms: &["randomized", "not randomized"],
    runs: [2, 3, 3],
    timed: false,
    memory: |_| Bytes::mib(16),
};

const SETTING: &str = "/proc/sys/vm/mmap_rnd_bits";

/// Start address of an area of one process. `None` if it has no such area.
type FindStart = fn(&[Mapping]) -> Option<u64>;

const AREAS: &[(&str, FindStart)] = &[
    ("stack", |maps| named(maps, b"[stack]")),
    ("library", library),
    ("vdso", |maps| named(maps, b"[vdso]")),
    ("heap", |maps| named(maps, b"[heap]")),
    ("text", |maps| Some(maps.first()?.range.start)),
    ("vsyscall", |maps| named(maps, b"[vsyscall]")),
];

fn named(maps: &[Mapping], name: &[u8]) -> Option<u64> {
    Some(maps.iter().find(|mapping| mapping.name.as_bytes() == name)?.range.start)
}

/// The first file that is not the program.
fn library(maps: &[Mapping]) -> Option<u64> {
    let program = &maps.first()?.name;
    let is_other = |mapping: &&Mapping| mapping.inode != 0 && mapping.name != *program;
    Some(maps.iter().find(is_other)?.range.start)
}

/// Bytes from the end of the program, including its `.bss`, to the heap.
fn gap(maps: &[Mapping]) -> Option<u64> {
    let heap = named(maps, b"[heap]")?;
    let below = maps.iter().take_while(|mapping| mapping.range.start < heap).last()?;
    heap.checked_sub(below.range.end)
}

impl RunExperiment for Aslr {
    fn about(&self) -> &'static ExperimentAbout {
        &ABOUT
    }

    fn run(&self, arm: &str, bench: &mut Bench) -> Result<(), LabError> {
        if arm == "not randomized" {
            do_not_randomize().while_("personality(ADDR_NO_RANDOMIZE)")?;
        }
        let start = |_| {
            let said = Command::new("cat").arg("/proc/self/maps").output().while_("cannot run cat")?;
            Ok(maps::parse(&said.stdout).mappings)
        };
        let started = (0..bench.size("starts")).map(start).collect::<Result<Vec<_>, LabError>>()?;
        for (name, area) in AREAS {
            let addresses: BTreeSet<u64> = started.iter().filter_map(|maps| area(maps)).collect();
            let has = started.iter().all(|maps| area(maps).is_some());
            if !has {
                bench.missing(name, Absent::NotSupported(format!("cat has no {name}").into()));
                continue;
            }
            bench.record(name, count(addresses.len() as u64));
            let page = count(bench.page() as u64);
            match *name {
                "stack" => bench.record("stack_bits", bits(&addresses, page)),
                "library" => bench.record("library_bits", bits(&addresses, page)),
                _ => {}
            }
        }
        if let Some(gap) = started.iter().filter_map(|maps| gap(maps)).max() {
            bench.record("gap", count(gap));
        }
        let setting = std::fs::read_to_string(SETTING).ok().and_then(|text| text.trim().parse().ok());
        match setting {
            Some(bits) => bench.record("setting", bits),
            None => bench.missing("setting", Absent::NotPermitted(format!("root, to read {SETTING}").into())),
        }
        Ok(())
    }

    fn judge(&self, results: &ExperimentResults<'_>) -> Vec<ExperimentClaim> {
        let starts = results.parameter("starts");
        let moving = AREAS.iter().map(|(name, _)| *name).filter(|name| *name != "vsyscall");
        let moves = moving.clone().map(|name| {
            results
                .claim(format!("Each start has its {name} elsewhere"), "all of them move")
                .at_least(0.98 * starts, results.value(name, "randomized"))
                .because(
                    "a program that is not position-independent stays, kernel.randomize_va_space may be less than 2, and \
                     few bits may be drawn twice",
                )
        });
        let stays = moving.map(|name| {
            results
                .claim(format!("Not randomized, the {name} stays"), "one address")
                .at_most(1.0, results.value(name, "not randomized"))
        });
        let setting = results.median("setting", "randomized");
        let asked = results.claim("Addresses of libraries differ in as many bits as vm.mmap_rnd_bits", "28 on x86-64");
        let as_set = match setting {
            Some(bits) => asked.near(bits, 0.02, results.value("library_bits", "randomized")),
            None => asked.holds("as many", None).because("only root may read the setting"),
        };
        let amounts = [
            results
                .claim("vsyscall stays in any case", "ffffffffff600000")
                .at_most(1.0, results.value("vsyscall", "randomized"))
                .because("the kernel was started without it (vsyscall=none), or is of another architecture"),
            as_set,
            results
                .claim("The heap begins within 1 GiB of the program", "a random gap")
                .at_most(f64::from(1 << 30), results.value("gap", "randomized"))
                .because("other architectures have another gap"),
        ];
        moves.chain(stays).chain(amounts).collect()
    }

    fn plots(&self) -> Vec<Plot> {
        vec![Plot::Bars { quantity: "library_bits".into(), scale: Scale::Linear }]
    }
}

/// Number of bits in which addresses differ: the logarithm of their range in pages, which is close
/// to that of all possible addresses.
fn bits(addresses: &BTreeSet<u64>, page: f64) -> f64 {
    let ends = addresses.first().zip(addresses.last());
    ends.map_or(0.0, |(first, last)| (count(last - first) / page).max(1.0).log2())
}

#[cfg(test)]
mod tests {
    use super::*;

    const MAPS: &[u8] = b"\
55d0c0a00000-55d0c0a02000 r--p 00000000 08:01 7 /bin/cat
55d0c0a02000-55d0c0a05000 rw-p 00002000 08:01 7 /bin/cat
55d0c0a05000-55d0c0a06000 rw-p 00000000 00:00 0
55d0c1a06000-55d0c1a27000 rw-p 00000000 00:00 0 [heap]
7f0000000000-7f0000001000 r--p 00000000 08:01 8 /lib/libc.so.6
7ffc00000000-7ffc00021000 rw-p 00000000 00:00 0 [stack]
";

    #[test]
    fn addresses_are_read_from_maps() {
        let maps = maps::parse(MAPS).mappings;
        let found: Vec<_> = AREAS.iter().map(|(_, area)| area(&maps)).collect();
        let [stack, library, heap, text] =
            [0x7ffc_0000_0000, 0x7f00_0000_0000, 0x55d0_c1a0_6000, 0x55d0_c0a0_0000].map(Some);
        assert_eq!(found, [stack, library, None, heap, text, None]);
        assert_eq!(gap(&maps), Some(16 << 20), "the gap is behind .bss");
    }

    #[test]
    fn addresses_differ_in_the_bits_of_their_range() {
        let page = 4096.0;
        assert_eq!(bits(&[0x7000_0000].into(), page), 0.0);
        assert_eq!(bits(&[0, 16 << 12].into(), page), 4.0);
    }
}
