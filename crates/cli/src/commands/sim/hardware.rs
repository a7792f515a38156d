//! The simulated caches and TLBs: those of this machine, or those of the Intel Core i7-6800K, whose
//! data are part of pagewise.

use pagewise_measure::{cache, tlb};
use pagewise_model::simulated::{self, TlbResult};
use pagewise_model::{Absent, Bytes, Reading};
use pagewise_sim::geometry::{
    self, CacheShape, CacheShapes, CpuShape, I7_6800K, TlbPageSize, TlbShape, Unfit,
};
use pagewise_sim::{Levels, NextPagePrefetcher, RecencyPolicy};

use crate::commands::sim::args::{CpuArg, Hardware, PolicyArg};

/// Simulated machine.
#[derive(Debug)]
pub(super) struct SimulatedMachine {
    name: String,
    pub(super) caches: CacheShapes,
    tlbs: Vec<TlbShape>,
    next_page: Option<NextPagePrefetcher>,
    /// All replacement policies, the policy of the report's headline first.
    pub(super) policies: Vec<RecencyPolicy>,
}

impl SimulatedMachine {
    /// Returns the machine that the options describe.
    pub(super) fn from_args(args: &Hardware) -> SimulatedMachine {
        let known = match args.cpu {
            CpuArg::Machine => this_machine(),
            CpuArg::I7_6800K => SimulatedMachine::from_data(&I7_6800K, ""),
        };
        let first = policy(args.policy);
        let others = RecencyPolicy::ALL.into_iter().filter(|other| other.name() != first.name());
        let caches = CacheShapes {
            l1d: args.l1d.unwrap_or(known.caches.l1d),
            l2: args.l2.or(known.caches.l2),
        };
        SimulatedMachine {
            caches,
            next_page: args.prefetch.map_or(known.next_page, |prefetch| prefetch.0),
            policies: std::iter::once(first).chain(others).collect(),
            name: match caches == known.caches {
                true => known.name,
                false => format!("{}, with changed caches", known.name),
            },
            ..known
        }
    }

    fn from_data(cpu: &CpuShape<'_>, why: &str) -> SimulatedMachine {
        SimulatedMachine {
            name: format!("{}{why}", cpu.name),
            caches: cpu.caches,
            tlbs: cpu.tlbs.to_vec(),
            next_page: cpu.next_page,
            policies: Vec::new(),
        }
    }

    fn shape(&self, page: TlbPageSize) -> Reading<TlbShape> {
        let found = self.tlbs.iter().find(|shape| shape.page == page.bytes());
        found.copied().ok_or_else(|| unknown("the TLB for pages of this size is unknown"))
    }

    /// Returns an empty TLB for pages of this size.
    pub(super) fn tlb(&self, page: TlbPageSize) -> Reading<Levels> {
        let unfit = |unfit: Unfit| Absent::NotSupported(unfit.to_string().into());
        let levels = Levels::tlb(&self.shape(page)?, self.policies[0]).map_err(unfit)?;
        Ok(match self.prefetcher(page) {
            Some(model) => levels.prefetching(model),
            None => levels,
        })
    }

    /// Returns the prefetcher for pages of this size. Prefetchers are known for base pages only.
    pub(super) fn prefetcher(&self, page: TlbPageSize) -> Option<NextPagePrefetcher> {
        self.next_page.filter(|_| page == TlbPageSize::Base)
    }

    /// Returns both TLB levels for pages of this size.
    pub(super) fn levels(&self, page: TlbPageSize) -> Reading<(TlbResult, Reading<TlbResult>)> {
        let level = |level: geometry::TlbShapeLevel| TlbResult {
            entries: level.entries as u64,
            ways: level.ways as u64,
        };
        let shape = self.shape(page)?;
        let second = shape.second.map(level).ok_or_else(|| unknown("the second level is unknown"));
        Ok((level(shape.first), second))
    }

    /// Returns the description of the machine in reports.
    pub(super) fn model(&self) -> simulated::SimulatedCpu {
        let level = |shape: CacheShape| simulated::CacheResult {
            size: Bytes(shape.size),
            ways: shape.ways as u64,
            line: Bytes(shape.line),
        };
        simulated::SimulatedCpu {
            name: self.name.clone(),
            policy: self.policies[0].name().to_owned(),
            l1d: level(self.caches.l1d),
            l2: self.caches.l2.map(level).ok_or_else(|| unknown("the second level is unknown")),
        }
    }
}

fn unknown(why: &'static str) -> Absent {
    Absent::NotSupported(why.into())
}

pub(super) fn next_page(model: NextPagePrefetcher) -> simulated::NextPageResult {
    simulated::NextPageResult { after: model.after.into(), share: model.share }
}

fn policy(policy: PolicyArg) -> RecencyPolicy {
    match policy {
        PolicyArg::Lru => RecencyPolicy::Lru,
        PolicyArg::Plru => RecencyPolicy::TreePlru,
        PolicyArg::Fifo => RecencyPolicy::Fifo,
        PolicyArg::Random => RecencyPolicy::Random { seed: 0 },
    }
}

/// Returns this machine if its caches and TLBs are known; otherwise the i7-6800K. Its name in the
/// report then has the reason.
fn this_machine() -> SimulatedMachine {
    match (caches(), tlb::tlbs()) {
        (Ok(caches), Ok(tlbs)) => SimulatedMachine {
            name: "this machine (sysfs, cpuid)".to_owned(),
            caches,
            tlbs: TlbPageSize::ALL.iter().filter_map(|page| of_page(*page, &tlbs)).collect(),
            next_page: None,
            policies: Vec::new(),
        },
        (Err(why), _) | (_, Err(why)) => {
            SimulatedMachine::from_data(&I7_6800K, &format!(", for want of this machine's: {why}"))
        }
    }
}

fn caches() -> Reading<CacheShapes> {
    let caches = cache::caches()?;
    let level = |level| caches.iter().find(|cache| cache.level == level).and_then(shape);
    let l1d = level(1).ok_or_else(|| unknown("the ways of the first level are unknown"))?;
    Ok(CacheShapes { l1d, l2: level(2) })
}

fn shape(cache: &cache::DataCache) -> Option<CacheShape> {
    Some(CacheShape { size: cache.size.0, ways: cache.ways?, line: cache.line.0 })
}

fn of_page(page: TlbPageSize, tlbs: &[tlb::Tlb]) -> Option<TlbShape> {
    let level = |level| {
        let found = tlbs.iter().find(|tlb| tlb.level == level && tlb.page.0 == page.bytes())?;
        let [entries, ways] = [found.entries, found.ways].map(usize::try_from);
        Some(geometry::TlbShapeLevel { entries: entries.ok()?, ways: ways.ok()? })
    };
    Some(TlbShape { page: page.bytes(), first: level(1)?, second: level(2) })
}
