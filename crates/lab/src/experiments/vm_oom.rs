//! A virtual machine runs out of memory: the process that the kernel kills, the prediction of
//! `pagewise oom`, the modes of overcommit, and a kernel that panics instead.

use std::io::{PipeWriter, Read, Write};
use std::process::{Command, Stdio};

use pagewise_labmem::fork::fork;
use pagewise_labmem::mapping::{MapRequest, OwnedMapping};
use pagewise_model::lab::{ExperimentClaim, Plot};
use pagewise_model::report::{AxisUnit, Label};
use pagewise_model::{Absent, Bytes};

use super::RunExperiment;
use super::oom::{OomProcess, PROCESSES, adjusted, first_to_die, start};
use crate::bench::count;
use crate::error::While;
use crate::guest::{PANICKED, host_memory};
use crate::guest_system::{VmCounters, available, memory, set};
use crate::{
    Bench, ExperimentAbout, ExperimentResults, GuestSetup, LabError, Need, ParameterAbout,
    Parameters, QuantityAbout,
};

/// See [`ABOUT`].
pub(super) struct VmOom;

const LARGEST: &str = "as they are";
const SMALL: &str = "small one +500";
const OTHERS: &str = "others +300";
const HEURISTIC: &str = "overcommit 0";
const ALWAYS: &str = "overcommit 1";
const NEVER: &str = "overcommit 2";
const PANIC: &str = "panic_on_oom";

static ABOUT: ExperimentAbout = ExperimentAbout {
    name: "vm-oom",
    question: "Which process does the kernel kill if a whole machine runs out of memory, and does `pagewise oom` predict it?",
    expectation: "The kernel kills the process with the most resident memory, swap and page tables; each point of oom_score_adj counts as \
        a thousandth of RAM and swap. `pagewise oom` computes the same from /proc. Overcommit mode 0 refuses one mapping that is larger \
        than RAM and swap, but not many small ones, and mode 1 refuses none: a program that uses the memory is killed in both. \
        Mode 2 refuses mappings beyond the commit limit, so the program gets an error and the kernel kills no process. \
        With panic_on_oom the kernel panics instead.",
    figures: "",
    needs: &[Need::VirtualMachine],
    parameters: &[ParameterAbout {
        name: "mib",
        meaning: "memory of the machine in MiB",
        values: [320, 384, 1024],
    }],
    quantities: &[
        QuantityAbout {
            name: "died",
            unit: AxisUnit::Number,
            meaning: "process that was killed: 1 the large one, 2 the medium one, 3 the small one that allocates",
        },
        QuantityAbout {
            name: "predicted",
            unit: AxisUnit::Number,
            meaning: "process that `pagewise oom` names before the small one allocates more",
        },
        QuantityAbout {
            name: "one_mapping",
            unit: AxisUnit::Count,
            meaning: "1 if one mapping of twice the RAM succeeds",
        },
        QuantityAbout {
            name: "mapped",
            unit: AxisUnit::Share,
            meaning: "mapped memory as a share of RAM, if a program maps up to twice the RAM in pieces of 4 MiB",
        },
        QuantityAbout { name: "kills", unit: AxisUnit::Count, meaning: "OOM kills by the kernel" },
        QuantityAbout {
            name: PANICKED,
            unit: AxisUnit::Count,
            meaning: "1 if the kernel panicked",
        },
    ],
    arms: &[LARGEST, SMALL, OTHERS, HEURISTIC, ALWAYS, NEVER, PANIC],
    runs: [1, 1, 3],
    timed: false,
    memory: |parameters| host_memory(Bytes::mib(parameters.get("mib"))),
};

/// Size of each mapping of a program.
const PIECE: Bytes = Bytes::mib(4);

impl RunExperiment for VmOom {
    fn about(&self) -> &'static ExperimentAbout {
        &ABOUT
    }

    fn guest(&self, arm: &str, parameters: &Parameters) -> Option<GuestSetup> {
        let may_panic = arm == PANIC;
        let kernel_options = if may_panic { "sysctl.vm.panic_on_oom=1" } else { "" };
        let memory = Bytes::mib(parameters.get("mib"));
        Some(GuestSetup { memory, kernel_options, may_panic, ..GuestSetup::default() })
    }

    fn run(&self, arm: &str, bench: &mut Bench) -> Result<(), LabError> {
        match arm {
            HEURISTIC => overcommit(0, bench),
            ALWAYS | PANIC => overcommit(1, bench),
            NEVER => overcommit(2, bench),
            _ => kill_one(arm, bench),
        }
    }

    fn judge(&self, results: &ExperimentResults<'_>) -> Vec<ExperimentClaim> {
        let who = |quantity: &'static str, arm| {
            let at = results.median(quantity, arm)?;
            PROCESSES
                .iter()
                .zip(1..)
                .find(|(_, number)| at == f64::from(*number))
                .map(|(row, _)| row.0)
        };
        let dies = |text: &'static str, arm: &'static str, expected: &'static str| {
            let found = who("died", arm).map(|name| (name == expected, Label::from(name)));
            results.claim(text, "oom_badness in mm/oom_kill.c").holds(expected, found)
        };
        let kills = [LARGEST, SMALL, OTHERS];
        let all = kills.iter().map(|arm| Some((who("died", arm)?, who("predicted", arm)?)));
        let right = all.collect::<Option<Vec<_>>>().map(|all| {
            let right = all.iter().filter(|(died, predicted)| died == predicted).count();
            (right == all.len(), format!("{right} of {}", all.len()).into())
        });
        let value = |quantity, arm| results.value(quantity, arm);
        vec![
            dies("The largest process dies, though the small one asked", LARGEST, "large"),
            dies("A small process with oom_score_adj +500 dies before it", SMALL, "small"),
            dies("Raised by +300, the medium one dies before the large one", OTHERS, "medium"),
            results.claim("`pagewise oom` predicts the killed process", "").holds("3 of 3", right),
            results
                .claim("Overcommit 0 refuses one mapping of twice the RAM", "")
                .at_most(0.0, value("one_mapping", HEURISTIC)),
            results
                .claim("but maps as much in small pieces", "")
                .at_least(1.9, value("mapped", HEURISTIC)),
            results
                .claim("and the kernel kills the program that uses them", "")
                .at_least(1.0, value("kills", HEURISTIC)),
            results
                .claim("Overcommit 1 maps twice the RAM at once", "")
                .at_least(1.0, value("one_mapping", ALWAYS)),
            results.claim("and kills too", "").at_least(1.0, value("kills", ALWAYS)),
            results
                .claim("Overcommit 2 refuses mappings beyond the commit limit, half of RAM", "")
                .at_most(0.5, value("mapped", NEVER)),
            results
                .claim("and the kernel kills no process", "")
                .at_most(0.0, value("kills", NEVER)),
            results
                .claim("With panic_on_oom the kernel panics", "")
                .at_least(1.0, value(PANICKED, PANIC)),
        ]
    }

    fn plots(&self) -> Vec<Plot> {
        Vec::new()
    }
}

/// Three processes fill the machine; the small one asks for more.
fn kill_one(arm: &str, bench: &mut Bench) -> Result<(), LabError> {
    let limit = available()?;
    let adjusted = adjusted(arm);
    let start = |at: usize| start(at, limit, adjusted[at], bench.page());
    let mut processes = [start(0)?, start(1)?, start(2)?];
    for process in &mut processes {
        process.go_on()?;
    }
    match predicted(&processes) {
        Ok(at) => bench.record("predicted", count(at as u64 + 1)),
        Err(why) => bench.missing("predicted", why),
    }
    let before = VmCounters::read()?;
    processes[2].tell()?;
    let died = first_to_die(&processes);
    let died = died.ok_or_else(|| LabError::Failed("no process was killed".to_owned()))?;
    bench.record("died", count(died as u64 + 1));
    record_kills(&before, bench)
}

/// The process that `pagewise oom` names.
fn predicted(processes: &[OomProcess]) -> Result<usize, Absent> {
    let failed = |why: String| Absent::NotSupported(format!("pagewise oom: {why}").into());
    let program = std::env::current_exe().map_err(|error| failed(error.to_string()))?;
    let mut command = Command::new(program);
    command.args(["oom", "--json", "--for", "0s"]).stdin(Stdio::null()).stderr(Stdio::piped());
    let output = command.output().map_err(|error| failed(error.to_string()))?;
    let report: serde_json::Value = serde_json::from_slice(&output.stdout)
        .map_err(|_| failed(String::from_utf8_lossy(&output.stderr).into_owned()))?;
    let pid = report["next"]["pid"].as_u64();
    let pid = pid.ok_or_else(|| failed("it names no process".to_owned()))?;
    let at = processes.iter().position(|process| u64::from(process.pid()) == pid);
    at.ok_or_else(|| failed(format!("it names process {pid}, which this experiment did not start")))
}

/// A program maps twice the RAM and uses it.
fn overcommit(mode: u32, bench: &mut Bench) -> Result<(), LabError> {
    set("/proc/sys/vm/overcommit_memory", mode)?;
    let ram = memory("MemTotal")?;
    let page = bench.page();
    let whole = map(Bytes(ram.0 * 2), page).is_ok();
    bench.record("one_mapping", count(whole.into()));
    let before = VmCounters::read()?;
    let (mut pieces, report) = std::io::pipe().while_("cannot make a pipe")?;
    let child = fork(move || u8::from(use_twice(ram, page, report).is_err()));
    let child = child.while_("cannot start a process")?;
    let mut number = [0; 8];
    pieces.read_exact(&mut number).while_("the process ended before it had mapped memory")?;
    bench.record("mapped", count(PIECE.0 * u64::from_ne_bytes(number)) / count(ram.0));
    child.wait().while_("cannot wait for a process")?;
    record_kills(&before, bench)
}

/// Maps twice the RAM in pieces, or as much as the kernel permits, reports the number of pieces,
/// and uses all of them.
fn use_twice(ram: Bytes, page: usize, mut report: PipeWriter) -> Result<(), LabError> {
    set("/proc/self/oom_score_adj", 1000)?;
    let mut pieces = Vec::new();
    while PIECE.0 * (pieces.len() as u64) < 2 * ram.0 {
        let Ok(piece) = map(PIECE, page) else { break };
        pieces.push(piece);
    }
    let number = (pieces.len() as u64).to_ne_bytes();
    report.write_all(&number).while_("cannot report")?;
    pieces.iter().for_each(|piece| piece.touch(0..piece.len(), page));
    Ok(())
}

fn map(length: Bytes, page: usize) -> std::io::Result<OwnedMapping> {
    let length = usize::try_from(length.0).unwrap_or(usize::MAX).next_multiple_of(page);
    OwnedMapping::map(&MapRequest { length, ..MapRequest::default() })
}

fn record_kills(before: &VmCounters, bench: &mut Bench) -> Result<(), LabError> {
    let kills = before.growth("oom_kill")?.map(count);
    bench.record_or_missing("kills", kills, "the counter oom_kill");
    Ok(())
}
