//! What each pool holds.

use pagewise_model::{Bytes, Mapping, Reading};

use super::Pools;
use crate::pss::Pss;
use crate::quadrants::counts_in_virt;

/// The numbers of one pool.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Sums {
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
    /// How many mappings.
    pub mappings: u64,
}

impl Sums {
    /// Nothing.
    pub const NONE: Sums = Sums {
        reserved: Bytes::ZERO,
        resident: Ok(Bytes::ZERO),
        pss: Ok(Bytes::ZERO),
        uss: Ok(Bytes::ZERO),
        swap: Ok(Bytes::ZERO),
        mappings: 0,
    };

    /// Adds another pool's numbers.
    pub fn add(&mut self, other: &Sums) {
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
pub fn total(sums: &[Sums]) -> Sums {
    let mut total = Sums::NONE;
    sums.iter().for_each(|sums| total.add(sums));
    total
}

/// The sums of each pool, in the order of [`Pools::list`]. Like VIRT they leave `[vsyscall]` out.
pub fn sums(pools: &Pools, mappings: &[Mapping], pss: &Pss) -> Vec<Sums> {
    let mut sums = vec![Sums::NONE; pools.list().len()];
    for (index, mapping) in mappings.iter().enumerate().filter(|(_, m)| counts_in_virt(m)) {
        sums[pools.index(index)].add(&Sums {
            reserved: mapping.size(),
            resident: mapping.rss(),
            pss: pss.of(index, mapping),
            uss: mapping.uss(),
            swap: mapping.swap(),
            mappings: 1,
        });
    }
    sums
}
