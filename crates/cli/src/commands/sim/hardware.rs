//! Which caches and TLBs are simulated: those of a CPU that we have data of, or of this machine.

use pagewise_measure::{cache, tlb};
use pagewise_model::simulated::{self, TlbLevel};
use pagewise_model::{Absent, Bytes, Reading};
use pagewise_sim::geometry::{
    self, CacheShape, CacheShapes, Cpu, I7_6800K, PageSize, TlbShape, Unfit,
};
use pagewise_sim::{Levels, NextPage, Policy};

use crate::args::{CpuArg, Hardware, PolicyArg};

/// What is simulated.
#[derive(Debug)]
pub(super) struct Machine {
    name: String,
    pub(super) caches: CacheShapes,
    tlbs: Vec<TlbShape>,
    next_page: Option<NextPage>,
    /// All of them, that of the headline first.
    pub(super) policies: Vec<Policy>,
}

impl Machine {
    /// As the options have it.
    pub(super) fn of(args: &Hardware) -> Machine {
        let known = match args.cpu {
            CpuArg::Machine => this_machine(),
            CpuArg::I7_6800K => Machine::from_data(&I7_6800K, ""),
        };
        let first = policy(args.policy);
        let others = Policy::ALL.into_iter().filter(|other| other.name() != first.name());
        let caches = CacheShapes {
            l1d: args.l1d.unwrap_or(known.caches.l1d),
            l2: args.l2.or(known.caches.l2),
        };
        Machine {
            caches,
            next_page: args.prefetch.map_or(known.next_page, |prefetch| prefetch.0),
            policies: std::iter::once(first).chain(others).collect(),
            name: match caches == known.caches {
                true => known.name,
                false => format!("{}, other caches", known.name),
            },
            ..known
        }
    }

    fn from_data(cpu: &Cpu<'_>, why: &str) -> Machine {
        Machine {
            name: format!("{}{why}", cpu.name),
            caches: cpu.caches,
            tlbs: cpu.tlbs.to_vec(),
            next_page: cpu.next_page,
            policies: Vec::new(),
        }
    }

    fn shape(&self, page: PageSize) -> Reading<TlbShape> {
        let found = self.tlbs.iter().find(|shape| shape.page == page.bytes());
        found.copied().ok_or_else(|| unknown("no TLB for pages of this size is known"))
    }

    /// An empty TLB for pages of this size.
    pub(super) fn tlb(&self, page: PageSize) -> Reading<Levels> {
        let unfit = |unfit: Unfit| Absent::NotSupported(unfit.to_string().into());
        let levels = Levels::tlb(&self.shape(page)?, self.policies[0]).map_err(unfit)?;
        Ok(match self.prefetcher(page) {
            Some(model) => levels.prefetching(model),
            None => levels,
        })
    }

    /// The prefetcher for pages of this size: what is known of any is of base pages.
    pub(super) fn prefetcher(&self, page: PageSize) -> Option<NextPage> {
        self.next_page.filter(|_| page == PageSize::Base)
    }

    /// Both levels for pages of this size.
    pub(super) fn levels(&self, page: PageSize) -> Reading<(TlbLevel, Reading<TlbLevel>)> {
        let level = |level: geometry::TlbLevel| TlbLevel {
            entries: level.entries as u64,
            ways: level.ways as u64,
        };
        let shape = self.shape(page)?;
        let second = shape.second.map(level).ok_or_else(|| unknown("no second level is known"));
        Ok((level(shape.first), second))
    }

    /// What reports say of it.
    pub(super) fn model(&self) -> simulated::Cpu {
        let level = |shape: CacheShape| simulated::Cache {
            size: Bytes(shape.size),
            ways: shape.ways as u64,
            line: Bytes(shape.line),
        };
        simulated::Cpu {
            name: self.name.clone(),
            policy: self.policies[0].name().to_owned(),
            l1d: level(self.caches.l1d),
            l2: self.caches.l2.map(level).ok_or_else(|| unknown("no second level is known")),
        }
    }
}

fn unknown(why: &'static str) -> Absent {
    Absent::NotSupported(why.into())
}

pub(super) fn next_page(model: NextPage) -> simulated::NextPage {
    simulated::NextPage { after: model.after.into(), share: model.share }
}

fn policy(policy: PolicyArg) -> Policy {
    match policy {
        PolicyArg::Lru => Policy::Lru,
        PolicyArg::Plru => Policy::TreePlru,
        PolicyArg::Fifo => Policy::Fifo,
        PolicyArg::Random => Policy::Random { seed: 0 },
    }
}

/// This machine, as far as it tells; what it does not tell is taken from the CPU that we have data of, and said so.
fn this_machine() -> Machine {
    match (caches(), tlb::tlbs()) {
        (Ok(caches), Ok(tlbs)) => Machine {
            name: "this machine (sysfs, cpuid)".to_owned(),
            caches,
            tlbs: PageSize::ALL.iter().filter_map(|page| of_page(*page, &tlbs)).collect(),
            next_page: None,
            policies: Vec::new(),
        },
        (Err(why), _) | (_, Err(why)) => {
            Machine::from_data(&I7_6800K, &format!(", for want of this machine's: {why}"))
        }
    }
}

fn caches() -> Reading<CacheShapes> {
    let caches = cache::caches()?;
    let level = |level| caches.iter().find(|cache| cache.level == level).and_then(shape);
    let l1d = level(1).ok_or_else(|| unknown("the ways of the first level are not known"))?;
    Ok(CacheShapes { l1d, l2: level(2) })
}

fn shape(cache: &cache::Cache) -> Option<CacheShape> {
    Some(CacheShape { size: cache.size.0, ways: cache.ways?, line: cache.line.0 })
}

fn of_page(page: PageSize, tlbs: &[tlb::Tlb]) -> Option<TlbShape> {
    let level = |level| {
        let found = tlbs.iter().find(|tlb| tlb.level == level && tlb.page.0 == page.bytes())?;
        let [entries, ways] = [found.entries, found.ways].map(usize::try_from);
        Some(geometry::TlbLevel { entries: entries.ok()?, ways: ways.ok()? })
    };
    Some(TlbShape { page: page.bytes(), first: level(1)?, second: level(2) })
}
