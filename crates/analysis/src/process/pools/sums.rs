//! Sums over each pool.

use pagewise_model::{Bytes, Mapping, Reading};

use super::PoolMap;
use crate::pss::Pss;
use crate::quadrants::counts_in_virt;

/// The numbers of one pool.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PoolSums {
    /// Address space.
    pub reserved: Bytes,
    /// Resident pages.
    pub resident: Reading<Bytes>,
    /// Their proportional share; the pools' shares add up to the process's.
    pub pss: Reading<Bytes>,
    /// Resident pages that only this process maps.
    pub uss: Reading<Bytes>,
    /// Pages in swap.
    pub swap: Reading<Bytes>,
    /// Number of mappings.
    pub mappings: u64,
}

impl PoolSums {
    /// The sums of a pool without mappings.
    pub const NONE: PoolSums = PoolSums {
        reserved: Bytes::ZERO,
        resident: Ok(Bytes::ZERO),
        pss: Ok(Bytes::ZERO),
        uss: Ok(Bytes::ZERO),
        swap: Ok(Bytes::ZERO),
        mappings: 0,
    };

    /// Adds another pool's numbers.
    pub fn add(&mut self, other: &PoolSums) {
        self.reserved += other.reserved;
        add(&mut self.resident, &other.resident);
        add(&mut self.pss, &other.pss);
        add(&mut self.uss, &other.uss);
        add(&mut self.swap, &other.swap);
        self.mappings += other.mappings;
    }
}

fn add(sum: &mut Reading<Bytes>, part: &Reading<Bytes>) {
    match (&mut *sum, part) {
        (Ok(sum), Ok(part)) => *sum += *part,
        (Ok(_), Err(absent)) => *sum = Err(absent.clone()),
        (Err(_), _) => {}
    }
}

/// All pools together.
pub fn total(sums: &[PoolSums]) -> PoolSums {
    let mut total = PoolSums::NONE;
    sums.iter().for_each(|sums| total.add(sums));
    total
}

/// The sums of each pool, in the order of [`PoolMap::list`]. Like VIRT they leave `[vsyscall]` out.
pub fn sums(pools: &PoolMap, mappings: &[Mapping], pss: &Pss) -> Vec<PoolSums> {
    let mut sums = vec![PoolSums::NONE; pools.list().len()];
    for (index, mapping) in mappings.iter().enumerate().filter(|(_, m)| counts_in_virt(m)) {
        sums[pools.index(index)].add(&PoolSums {
            reserved: mapping.size(),
            resident: mapping.rss(),
            pss: pss.pss_of(index, mapping),
            uss: mapping.uss(),
            swap: mapping.swap(),
            mappings: 1,
        });
    }
    sums
}
