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
use pagewise_diagnose::{Budget, DiagnosisRequest, ScanBounds, collect};
use pagewise_model::evidence::{EVIDENCE_VERSION, Evidence, Instrument};
use pagewise_model::heap_scan::HeapScan;
use pagewise_model::{Absent, Reading};
use pagewise_proc::{ProcRoot, stat, target};
use pagewise_sys::interrupt::NotedInterrupts;
use pagewise_view::html;
use pagewise_view::text::Units;

use super::heap::scan::{CopyMethod, PointerSearch, moving, running};
use crate::args::OutputArgs;
use crate::output::{emit_with_page, note, save};
use crate::terminal::TerminalLook;

#[derive(Debug, Args)]
pub(crate) struct DiagnoseArgs {
    /// A PID, a process name, or a part of a name that matches one process only
    #[arg(value_name = "TARGET", required_unless_present = "from")]
    pub(crate) target: Option<String>,
    /// Observe the process for TIME
    #[arg(long = "for", value_name = "TIME", default_value = "10s", value_parser = humantime::parse_duration)]
    pub(crate) during: Duration,
    /// Rank causes that explain this trouble first
    #[arg(long, value_name = "SYMPTOM")]
    pub(crate) symptom: Option<SymptomArg>,
    /// Stop the process for at most TIME at once
    #[arg(long, value_name = "TIME", default_value = "5ms", value_parser = humantime::parse_duration)]
    pub(crate) max_pause: Duration,
    /// Use at most PERCENT of the CPU time of the machine, or 0.5 s if that is more
    #[arg(long, value_name = "PERCENT", default_value = "1", value_parser = crate::args::percent_above_zero)]
    pub(crate) budget: f64,
    /// Show all causes, and the figure that rules out each other cause
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
    /// It or its neighbours are killed for lack of memory
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

/// CPU time that a diagnosis may take on a small machine, or of a short observation.
const MIN_CPU: Duration = Duration::from_millis(500);
/// Exit status if trouble was found.
const TROUBLE: u8 = 10;

/// Collects evidence about a process or opens saved evidence, and reports the causes.
pub(crate) fn run(args: &DiagnoseArgs, look: &TerminalLook) -> anyhow::Result<ExitCode> {
    let evidence = match (&args.from, &args.target) {
        (Some(path), _) => open(path)?,
        (None, Some(name)) => observe(name, args)?,
        (None, None) => bail!("no target was given"),
    };
    if let Some(path) = &args.save {
        save(path, |out| Ok(serde_json::to_writer(out, &evidence)?))?;
    }
    let diagnosis = diagnose::diagnose(&evidence, args.symptom.map(Symptom::from));
    let options = DiagnosisOptions { all: args.all };
    let report = diagnose::report(&evidence, &diagnosis, &options);
    emit_with_page(&report, &args.output, look, Units::Human, |out| {
        write_page(&evidence, &diagnosis, out)
    })?;
    let exit = if diagnosis.causes.is_empty() { 0 } else { TROUBLE };
    Ok(ExitCode::from(exit))
}

/// The HTML page: the diagnosis, the reports of the instruments, and the heap by retained bytes.
fn write_page(
    evidence: &Evidence,
    diagnosis: &Diagnosis,
    out: &mut dyn Write,
) -> std::io::Result<()> {
    let page = diagnose::page(evidence, diagnosis);
    let graph = evidence.scan.value().and_then(|scan| scan.graph.as_ref());
    let cells = graph.map(heap_graph::cells).unwrap_or_default();
    match cells.is_empty() {
        true => html::write(&page, out),
        false => html::write_retained(&page, &cells, out),
    }
}

fn open(path: &Path) -> anyhow::Result<Evidence> {
    let text = fs::read(path).with_context(|| format!("cannot read {}", path.display()))?;
    let evidence: Evidence = serde_json::from_slice(&text)
        .with_context(|| format!("{} is not saved evidence of a diagnosis", path.display()))?;
    if evidence.pagewise_evidence != EVIDENCE_VERSION {
        bail!("{} is of another version of pagewise", path.display());
    }
    Ok(evidence)
}

fn observe(name: &str, args: &DiagnoseArgs) -> anyhow::Result<Evidence> {
    let root = ProcRoot::live();
    if !root.has_our_ids() {
        bail!("/proc is of another pid namespace: its processes cannot be observed from here");
    }
    let (root, pid) = target::hold(&root, name)?;
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
    let share = args.budget / 100.0;
    let cpu = Budget::whole(args.during).mul_f64(share).max(MIN_CPU);
    let budget = Budget { cpu, pause: args.max_pause };
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
    let request = DiagnosisRequest {
        duration: args.during,
        budget,
        scan: &scan,
        progress: &progress,
        is_interrupted: &|| interrupts.came(),
    };
    Ok(collect(&root, pid, &request)?)
}
