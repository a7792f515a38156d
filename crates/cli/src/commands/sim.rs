//! `pagewise sim`: passes the memory accesses of a command, a trace or a workload to simulators,
//! and reports the results.

pub(crate) mod args;
mod feed;
mod hardware;

use std::process::ExitCode;

use hardware::SimulatedMachine;
use pagewise_analysis::simulated;
use pagewise_model::simulated::{
    AccessSplit, CacheRun, ReplacementResult, ReplacementRun, Simulation, TlbRun, Translation,
};
use pagewise_model::{Absent, Bytes, Reading};
use pagewise_sim::geometry::TlbPageSize;
use pagewise_sim::lackey::ModifyAs;
use pagewise_sim::replacement::{self, SimulatedMemory};
use pagewise_sim::{Levels, RecencyPolicy, Unfit};
use pagewise_view::text::Units;

use crate::commands::sim::args::{PagesKept, Sim, Simulate};
use crate::output::emit;
use crate::target::UsageError;
use crate::terminal::TerminalLook;

/// Simulates, reports, and passes on the exit code of a command that was run to its end.
pub(crate) fn run(args: Sim, look: &TerminalLook) -> anyhow::Result<ExitCode> {
    match args {
        Sim::Tlb(args) => {
            let machine = SimulatedMachine::from_args(&args.hardware);
            let simulators = Simulators::new(&machine, &machine.policies[..1], &TlbPageSize::ALL)?;
            simulate(args, &machine, simulators, simulated::tlb, look)
        }
        Sim::Cache(args) => {
            let machine = SimulatedMachine::from_args(&args.hardware);
            let simulators = Simulators::new(&machine, &machine.policies, &[TlbPageSize::Base])?;
            simulate(args, &machine, simulators, simulated::cache, look)
        }
        Sim::Pages(args) => keep_pages(args, look),
    }
}

fn simulate(
    args: Simulate,
    machine: &SimulatedMachine,
    mut simulators: Simulators,
    report: fn(&Simulation) -> pagewise_model::Report,
    look: &TerminalLook,
) -> anyhow::Result<ExitCode> {
    let fed = feed::run(args.feed, ModifyAs::Read, &mut |block| simulators.play(block))?;
    let simulation = Simulation {
        stream: fed.stream,
        cpu: machine.model(),
        caches: simulators.caches(),
        translations: simulators.translations(machine),
    };
    emit(&report(&simulation), &args.output, look, Units::Human)?;
    Ok(fed.exit)
}

/// Caches by policy, and TLBs by size of page.
struct Simulators {
    caches: Vec<(RecencyPolicy, Levels)>,
    tlbs: Vec<(TlbPageSize, Reading<Levels>)>,
}

impl Simulators {
    fn new(
        machine: &SimulatedMachine,
        policies: &[RecencyPolicy],
        pages: &[TlbPageSize],
    ) -> anyhow::Result<Simulators> {
        let caches =
            |policy: &RecencyPolicy| Ok((*policy, Levels::caches(&machine.caches, *policy)?));
        let caches: Result<_, Unfit> = policies.iter().map(caches).collect();
        let tlbs = pages.iter().map(|page| (*page, machine.tlb(*page))).collect();
        Ok(Simulators { caches: caches.map_err(|unfit| UsageError(unfit.to_string()))?, tlbs })
    }

    fn play(&mut self, block: &[pagewise_sim::MemoryAccess]) {
        self.caches.iter_mut().for_each(|(_, levels)| levels.play(block));
        self.tlbs
            .iter_mut()
            .filter_map(|(_, tlb)| tlb.as_mut().ok())
            .for_each(|tlb| tlb.play(block));
    }

    fn caches(&self) -> Vec<CacheRun> {
        let run = |(policy, levels): &(RecencyPolicy, Levels)| CacheRun {
            policy: policy.name().to_owned(),
            l1d: split(levels.counts().first),
            l2: if levels.has_second() {
                Ok(split(levels.counts().last))
            } else {
                Err(Absent::NotCollected("no second level was simulated".into()))
            },
        };
        self.caches.iter().map(run).collect()
    }

    fn translations(&self, machine: &SimulatedMachine) -> Vec<Translation> {
        let run = |(page, tlb): &(TlbPageSize, Reading<Levels>)| Translation {
            page: Bytes(page.bytes()),
            tlb: tlb.as_ref().map_err(Clone::clone).and_then(|levels| {
                let counts = levels.counts();
                let (first, second) = machine.levels(*page)?;
                Ok(TlbRun {
                    first,
                    second,
                    dtlb: split(counts.first),
                    stlb: split(counts.last),
                    prefetcher: machine
                        .prefetcher(*page)
                        .map(|model| (hardware::next_page(model), counts.prefetched)),
                })
            }),
        };
        self.tlbs.iter().map(run).collect()
    }
}

fn keep_pages(args: PagesKept, look: &TerminalLook) -> anyhow::Result<ExitCode> {
    let frames = usize::try_from(args.memory / args.page.max(1)).unwrap_or(usize::MAX);
    let memory =
        |policy: &replacement::PageReplacement| SimulatedMemory::new(frames, args.page, *policy);
    let memories: Result<Vec<SimulatedMemory>, Unfit> =
        replacement::PageReplacement::ALL.iter().map(memory).collect();
    let mut memories = memories.map_err(|unfit| UsageError(unfit.to_string()))?;
    let fed = feed::run(args.feed, ModifyAs::Write, &mut |block| {
        memories.iter_mut().for_each(|memory| memory.play(block));
    })?;
    let run =
        |(policy, memory): (&replacement::PageReplacement, &SimulatedMemory)| ReplacementRun {
            policy: policy.name().to_owned(),
            back: split(memory.counts().back),
            written: memory.counts().written,
        };
    let kept = ReplacementResult {
        stream: fed.stream,
        memory: Bytes(args.memory),
        page: Bytes(args.page),
        pages: memories.first().map_or(0, |memory| memory.counts().first),
        policies: replacement::PageReplacement::ALL.iter().zip(&memories).map(run).collect(),
    };
    emit(&simulated::pages_kept(&kept), &args.output, look, Units::Human)?;
    Ok(fed.exit)
}

fn split(counts: pagewise_sim::ReadWriteCounts) -> AccessSplit {
    AccessSplit { reads: counts.reads, writes: counts.writes }
}
