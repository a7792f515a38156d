//! `pagewise diagnose`: the cause of a process's trouble, its cost, and the remedy.

use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context, bail};
use clap::{Args, ValueEnum};
use pagewise_analysis::diagnose::{self, Diagnosis, DiagnosisOptions, Symptom};
use pagewise_analysis::heap_graph;
use pagewise_diagnose::{
    Budget, DiagnosisRequest, MachineObservation, ObservationRequest, RecorderConsent, ScanBounds,
    collect,
};
use pagewise_heap::PauseMeter;
use pagewise_model::evidence::{AllocationProfile, EVIDENCE_VERSION, Evidence, Instrument};
use pagewise_model::heap_scan::HeapScan;
use pagewise_model::machine_evidence::{MACHINE_EVIDENCE_VERSION, MachineEvidence, SavedDiagnosis};
use pagewise_model::report::Report;
use pagewise_model::{Absent, Pid, Reading};
use pagewise_proc::cgroup::hierarchy;
use pagewise_proc::{ProcRoot, stat, target};
use pagewise_sys::interrupt::NotedInterrupts;
use pagewise_view::html;
use pagewise_view::text::Units;

use super::heap::attach;
use super::heap::scan::{CopyMethod, PointerSearch, moving, running};
use crate::args::OutputArgs;
use crate::output::{emit_with_page, note, save};
use crate::terminal::{self, TerminalLook};

#[derive(Debug, Args)]
pub(crate) struct DiagnoseArgs {
    /// A PID, a process name, a part of a name that matches one process only, or the path of a
    /// memory cgroup; without TARGET, all processes and cgroups of the machine
    #[arg(value_name = "TARGET")]
    pub(crate) target: Option<String>,
    /// Observe all processes and cgroups of the machine, and name those with signs of trouble
    #[arg(long, conflicts_with_all = ["target", "from"])]
    pub(crate) system: bool,
    /// Observe the process for TIME
    #[arg(long = "for", value_name = "TIME", default_value = "10s", value_parser = humantime::parse_duration)]
    pub(crate) during: Duration,
    /// Rank causes that explain this trouble first
    #[arg(long, value_name = "SYMPTOM")]
    pub(crate) symptom: Option<SymptomArg>,
    /// Stop the process for at most TIME at a time
    #[arg(long, value_name = "TIME", default_value = "5ms", value_parser = humantime::parse_duration)]
    pub(crate) max_pause: Duration,
    /// Use at most PERCENT of the CPU time of the machine, or 0.5 s if that is more
    #[arg(long, value_name = "PERCENT", default_value = "1", value_parser = crate::args::percent_above_zero)]
    pub(crate) budget: f64,
    /// Load the sampled heap recorder into the process for 3 s, to find the functions that allocate
    /// the memory that grows. Without this option, diagnose asks for permission on the terminal
    #[arg(long, conflicts_with_all = ["from", "system"])]
    pub(crate) attach: bool,
    /// Show every cause that was found, and the figure that rules out each excluded cause
    #[arg(long)]
    pub(crate) all: bool,
    /// Read saved evidence instead of a process
    #[arg(long, value_name = "FILE", conflicts_with = "target")]
    pub(crate) from: Option<PathBuf>,
    /// Save the evidence to FILE, which `--from` opens on any machine
    #[arg(long, value_name = "FILE", help_heading = "Output")]
    pub(crate) save: Option<PathBuf>,
    #[command(flatten)]
    pub(crate) output: OutputArgs,
}

/// The complaint about a process.
#[derive(Clone, Copy, Debug, ValueEnum)]
pub(crate) enum SymptomArg {
    /// It takes too much memory
    Memory,
    /// Its memory grows
    Growth,
    /// It is slow, or pauses
    Latency,
    /// It or other processes are killed for lack of memory
    Oom,
    /// It starts slowly
    Start,
}

impl From<SymptomArg> for Symptom {
    fn from(symptom: SymptomArg) -> Symptom {
        match symptom {
            SymptomArg::Memory => Symptom::Memory,
            SymptomArg::Growth => Symptom::Growth,
            SymptomArg::Latency => Symptom::Latency,
            SymptomArg::Oom => Symptom::Oom,
            SymptomArg::Start => Symptom::Start,
        }
    }
}

/// Minimum CPU time of a diagnosis, if --budget allows less: on a small machine or in a short
/// observation.
const MIN_CPU: Duration = Duration::from_millis(500);
/// Exit status if trouble was found.
const TROUBLE: u8 = 10;

/// Collects evidence about a process or opens saved evidence, and reports the causes.
pub(crate) fn run(args: &DiagnoseArgs, look: &TerminalLook) -> anyhow::Result<ExitCode> {
    let evidence = match (&args.from, &args.target) {
        (Some(path), _) => open(path)?,
        (None, Some(path)) if hierarchy::is_path(path) => observe_group(Some(path), args)?,
        (None, Some(name)) => SavedDiagnosis::Process(Box::new(observe(name, args)?)),
        (None, None) => observe_group(None, args)?,
    };
    if let Some(path) = &args.save {
        save(path, |out| Ok(serde_json::to_writer(out, &evidence)?))?;
    }
    let conclusion = conclude(&evidence, args);
    emit_with_page(&conclusion.report, &args.output, look, Units::Human, |out| {
        write_page(&evidence, &conclusion, out)
    })?;
    Ok(ExitCode::from(if conclusion.is_healthy { 0 } else { TROUBLE }))
}

/// The result of a diagnosis.
struct Conclusion {
    report: Report,
    is_healthy: bool,
    /// The causes, if one process alone was observed.
    of_process: Option<Diagnosis>,
}

/// Writes the HTML page. The page of a process also has the reports of the instruments, and the
/// heap by retained bytes.
fn write_page(
    evidence: &SavedDiagnosis,
    conclusion: &Conclusion,
    out: &mut dyn Write,
) -> std::io::Result<()> {
    let (SavedDiagnosis::Process(evidence), Some(found)) = (evidence, &conclusion.of_process)
    else {
        return html::write(&conclusion.report, out);
    };
    let page = diagnose::page(evidence, found);
    let graph = evidence.scan.value().and_then(|scan| scan.graph.as_ref());
    let cells = graph.map(heap_graph::cells).unwrap_or_default();
    match cells.is_empty() {
        true => html::write(&page, out),
        false => html::write_retained(&page, &cells, out),
    }
}

fn conclude(evidence: &SavedDiagnosis, args: &DiagnoseArgs) -> Conclusion {
    let options = DiagnosisOptions { all: args.all };
    let symptom = args.symptom.map(Symptom::from);
    match evidence {
        SavedDiagnosis::Process(evidence) => {
            let found = diagnose::diagnose(evidence, symptom);
            Conclusion {
                report: diagnose::report(evidence, &found, &options),
                is_healthy: found.causes.is_empty(),
                of_process: Some(found),
            }
        }
        SavedDiagnosis::Machine(machine) => {
            let found = diagnose::diagnose_machine(machine);
            Conclusion {
                report: diagnose::machine_report(machine, &found),
                is_healthy: found.is_healthy(),
                of_process: None,
            }
        }
        SavedDiagnosis::Group { machine, largest } => {
            let signs = diagnose::diagnose_machine(machine);
            let found = diagnose::diagnose(largest, symptom);
            Conclusion {
                report: diagnose::cgroup_report(machine, &signs, (largest, &found), &options),
                is_healthy: signs.is_healthy() && found.causes.is_empty(),
                of_process: None,
            }
        }
    }
}

fn open(path: &Path) -> anyhow::Result<SavedDiagnosis> {
    let text = fs::read(path).with_context(|| format!("cannot read {}", path.display()))?;
    let saved: SavedDiagnosis = serde_json::from_slice(&text)
        .with_context(|| format!("{} is not saved evidence of a diagnosis", path.display()))?;
    let of_process = |it: &Evidence| it.pagewise_evidence == EVIDENCE_VERSION;
    let of_machine =
        |it: &MachineEvidence| it.pagewise_machine_evidence == MACHINE_EVIDENCE_VERSION;
    let is_ours = match &saved {
        SavedDiagnosis::Process(evidence) => of_process(evidence),
        SavedDiagnosis::Machine(machine) => of_machine(machine),
        SavedDiagnosis::Group { machine, largest } => of_machine(machine) && of_process(largest),
    };
    if !is_ours {
        bail!("{} is of another version of pagewise", path.display());
    }
    Ok(saved)
}

/// `/proc`, which must show the PID namespace of this process.
fn live_root() -> anyhow::Result<ProcRoot> {
    let root = ProcRoot::live();
    if !root.has_our_ids() {
        bail!("/proc is of another pid namespace: its processes cannot be observed from here");
    }
    Ok(root)
}

fn budget_of(args: &DiagnoseArgs) -> Budget {
    let share = args.budget / 100.0;
    let cpu = Budget::whole(args.during).mul_f64(share).max(MIN_CPU);
    Budget { cpu, pause: args.max_pause }
}

/// Observes all processes and cgroups of the machine, or of one cgroup. The largest process of the
/// cgroup is also observed with all instruments.
fn observe_group(cgroup: Option<&str>, args: &DiagnoseArgs) -> anyhow::Result<SavedDiagnosis> {
    let root = live_root()?;
    let interrupts = NotedInterrupts::note();
    let request = ObservationRequest {
        duration: args.during,
        budget: budget_of(args),
        cgroup,
        is_interrupted: &|| interrupts.came(),
    };
    let observation = MachineObservation::begin(&root, &request)
        .with_context(|| format!("no memory cgroup {}", cgroup.unwrap_or_default()))?;
    if !args.output.json {
        let seconds = args.during.as_secs_f64();
        note(format_args!("counters of all processes and cgroups, twice within {seconds:.1} s"));
    }
    let largest = cgroup.and_then(|_| observation.largest(&|pid| root.check_access(pid).is_ok()));
    let largest = largest.and_then(|pid| {
        // The process may have ended. The report then has only the counters.
        let observed = observe(&pid.to_string(), args);
        observed.map_err(|error| note(format_args!("process {pid}: {error:#}"))).ok()
    });
    let mut machine = Box::new(observation.finish(&root, &request));
    Ok(match largest {
        Some(largest) => {
            machine.cost.longest_pause_ns = largest.cost.longest_pause_ns;
            SavedDiagnosis::Group { machine, largest: Box::new(largest) }
        }
        None => SavedDiagnosis::Machine(machine),
    })
}

/// The question before the recorder is loaded without --attach.
fn recorder_question(pid: Pid, args: &DiagnoseArgs) -> String {
    format!(
        "the memory of process {pid} grows. Load the sampled heap recorder into it for 3 s, to find the function that allocates? \
         It stops all threads several times, at the beginning for at most {} each time.",
        humantime::format_duration(args.max_pause)
    )
}

fn observe(name: &str, args: &DiagnoseArgs) -> anyhow::Result<Evidence> {
    let (root, pid) = target::hold(&live_root()?, name)?;
    if root.ourselves() == Some(pid) {
        bail!("pagewise cannot diagnose itself");
    }
    let stat = stat::parse(&root.read(pid, "stat")?)?;
    if stat.has_ended() {
        bail!("process {pid} has ended and waits for its parent: it has no memory");
    }
    if stat.is_kernel_thread() {
        bail!("process {pid} is a kernel thread: it has no memory of its own");
    }
    root.check_access(pid)?;
    let interrupts = NotedInterrupts::note();
    let is_quiet = args.output.json;
    let progress = |instrument: Instrument| {
        if !is_quiet {
            note(format_args!("{}: {}", instrument.label(), instrument.cost()));
        }
    };
    let scan = |bounds: ScanBounds| -> Reading<HeapScan> {
        let scanned = match bounds {
            ScanBounds::Stopped(pause) => {
                running(&root, pid, CopyMethod::Stop, pause, Some(PointerSearch::LEAKS))
            }
            ScanBounds::Running(bytes) => moving(&root, pid, bytes),
        };
        scanned.map_err(|error| Absent::NotCollected(format!("{error:#}").into()))
    };
    let record = |duration: Duration| -> (Reading<AllocationProfile>, Duration) {
        let pauses = PauseMeter::default();
        let profile = attach::profile(pid, duration, args.max_pause, &pauses)
            .map_err(|error| Absent::NotCollected(format!("{error:#}").into()));
        (profile, pauses.longest())
    };
    let ask = || terminal::confirm(&recorder_question(pid, args), &|| interrupts.came());
    let request = DiagnosisRequest {
        duration: args.during,
        budget: budget_of(args),
        scan: &scan,
        record: &record,
        recorder: match args.attach {
            true => RecorderConsent::Given,
            false if terminal::can_ask() && !is_quiet => RecorderConsent::Asked(&ask),
            false => RecorderConsent::Refused,
        },
        progress: &progress,
        is_interrupted: &|| interrupts.came(),
    };
    Ok(collect(&root, pid, &request)?)
}
