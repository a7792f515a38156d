//! The counters of the machine that a sweep contains. A sweep is one reading of all processes and
//! memory cgroups of a machine.

use pagewise_model::Name;
use pagewise_model::fragmentation::BootCounter;
use pagewise_model::settings::PressureFigures;
use pagewise_model::sweep::SweepMachine;
use pagewise_model::{Absent, Reading};

use crate::quick_reader::QuickReader;
use crate::text::{lines, number};
use crate::{meminfo, pressure};

/// First bytes of the lines of `vmstat` that a sweep contains: paging, reclaim, swap, compaction,
/// huge pages, dropped caches and OOM kills.
const VMSTAT: [&[u8]; 13] = [
    b"pgfault ",
    b"pgmajfault ",
    b"pswp",
    b"pgscan_",
    b"pgsteal_",
    b"oom_kill ",
    b"allocstall_",
    b"compact_stall ",
    b"thp_fault_",
    b"thp_split_page ",
    b"workingset_refault_",
    b"zswp",
    b"drop_",
];

/// Reads the counters of the machine.
pub fn read(reader: &mut QuickReader) -> SweepMachine {
    SweepMachine {
        meminfo: reader.machine("meminfo").map(meminfo::all),
        vmstat: reader.machine("vmstat").map(selected),
        memory_pressure: pressure_of(reader, "pressure/memory"),
        io_pressure: pressure_of(reader, "pressure/io"),
        forks: reader.machine("stat").and_then(|text| {
            let line = lines(text).find_map(|(_, line)| line.strip_prefix(b"processes "));
            line.and_then(number).ok_or_else(|| Absent::NotInThisKernel("".into()))
        }),
    }
}

fn selected(text: &[u8]) -> Vec<BootCounter> {
    let counters = lines(text).filter_map(|(_, line)| {
        VMSTAT.iter().any(|start| line.starts_with(start)).then_some(())?;
        let blank = memchr::memchr(b' ', line)?;
        Some(BootCounter { name: Name::new(&line[..blank]), count: number(&line[blank + 1..])? })
    });
    counters.collect()
}

fn pressure_of(reader: &mut QuickReader, file: &str) -> Reading<PressureFigures> {
    match reader.machine(file) {
        Ok(text) => pressure::parse_totals(text)
            .ok_or_else(|| Absent::NotSupported("not a pressure file".into())),
        Err(Absent::NotInThisKernel(_)) => Err(Absent::NotInThisKernel("4.20".into())),
        // The boot parameter `psi=0` has disabled PSI: the files exist but cannot be read.
        Err(why) => Err(why),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ProcRoot;

    #[test]
    fn counters_of_this_machine_agree_with_the_whole_files() {
        let root = ProcRoot::live();
        let machine = read(&mut QuickReader::new(&root).unwrap());
        let text = std::fs::read("/proc/meminfo").unwrap();
        assert_eq!(machine.memory("MemTotal"), meminfo::parse(&text, "MemTotal"));
        assert!(machine.counter("pgfault").unwrap() > 0);
        assert!(machine.forks.unwrap() > 0);
        assert!(machine.vmstat.unwrap().iter().all(|it| !it.name.as_bytes().starts_with(b"nr_")));
    }
}
