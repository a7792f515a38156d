//! Memory that can still be allocated: before reclaim, before swap, before an OOM kill.

use pagewise_model::account::ZoneFigures;
use pagewise_model::evidence::counter;
use pagewise_model::fragmentation::BootCounter;
use pagewise_model::{Absent, Bytes, PageSize, Reading};

/// Memory that programs can still allocate.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Headroom {
    /// Until kswapd begins to reclaim: free pages above the `low` watermarks.
    pub before_reclaim: Reading<Bytes>,
    /// Until pages are swapped out: the kernel's own estimate, `MemAvailable`.
    pub before_swap: Reading<Bytes>,
    /// Upper bound until the OOM killer is invoked: free pages above the `min` watermarks, all page
    /// cache of files, all reclaimable kernel memory, and free swap.
    pub before_oom: Reading<Bytes>,
}

/// Computes the headroom of a machine from `meminfo` and `zoneinfo`.
pub fn headroom(
    meminfo: &[BootCounter],
    zones: &Reading<Vec<ZoneFigures>>,
    page_size: PageSize,
) -> Headroom {
    let absent = || Absent::NotInThisKernel("".into());
    let line = |name: &str| counter(meminfo, name).map(Bytes).ok_or_else(absent);
    let above = |mark: fn(&ZoneFigures) -> u64| -> Reading<Bytes> {
        let zones = zones.as_ref().map_err(Clone::clone)?;
        Ok(above_watermark(zones, line("MemFree")?, page_size, mark))
    };
    Headroom {
        before_reclaim: above(|zone| zone.low),
        before_swap: line("MemAvailable"),
        before_oom: above(|zone| zone.min).and_then(|free| {
            let file = line("Active(file)")? + line("Inactive(file)")?;
            let kernel = line("KReclaimable").or_else(|_| line("SReclaimable"))?;
            Ok(free + file + kernel + line("SwapFree")?)
        }),
    }
}

/// Sums the free pages of each zone above a watermark and above the zone's protection from requests
/// for the highest zone.
fn above_watermark(
    zones: &[ZoneFigures],
    free: Bytes,
    page_size: PageSize,
    mark: fn(&ZoneFigures) -> u64,
) -> Bytes {
    let usable = |zone: &ZoneFigures| {
        let kept = mark(zone).saturating_add(zone.protection.last().copied().unwrap_or(0));
        zone.free.saturating_sub(kept)
    };
    let in_zones = zones.iter().fold(0_u64, |sum, zone| sum.saturating_add(zone.free));
    let usable = zones.iter().fold(0_u64, |sum, zone| sum.saturating_add(usable(zone)));
    // With deferred page initialization, the machine's free memory includes pages that are not yet
    // in the free count of any zone.
    let outside = free - page_size.pages(in_zones);
    page_size.pages(usable) + outside
}

#[cfg(test)]
mod tests {
    use super::*;

    const PAGE: PageSize = PageSize::new(4096).expect("a power of two");

    fn zone(free: u64, min: u64, low: u64, protection: u64) -> ZoneFigures {
        ZoneFigures { free, min, low, protection: vec![0, protection], ..ZoneFigures::default() }
    }

    fn meminfo(lines: &[(&str, u64)]) -> Vec<BootCounter> {
        lines
            .iter()
            .map(|(name, pages)| BootCounter { name: (*name).into(), count: pages * 4096 })
            .collect()
    }

    #[test]
    fn low_zones_keep_their_reserve_and_late_memory_is_free() {
        let zones = Ok(vec![zone(100, 1, 2, 500), zone(1000, 30, 40, 0)]);
        let lines = meminfo(&[
            ("MemFree", 1600),
            ("MemAvailable", 1700),
            ("Active(file)", 10),
            ("Inactive(file)", 20),
            ("KReclaimable", 5),
            ("SwapFree", 7),
        ]);
        let room = headroom(&lines, &zones, PAGE);
        assert_eq!(room.before_reclaim, Ok(PAGE.pages(960 + 500)));
        assert_eq!(room.before_swap, Ok(PAGE.pages(1700)));
        assert_eq!(room.before_oom, Ok(PAGE.pages(970 + 500 + 30 + 5 + 7)));
    }

    #[test]
    fn an_unreadable_zone_leaves_no_headroom_but_that_of_the_kernel() {
        let hidden = Err(Absent::NotPermitted("root".into()));
        let room = headroom(&meminfo(&[("MemAvailable", 3)]), &hidden, PAGE);
        assert!(room.before_reclaim.is_err() && room.before_oom.is_err());
        assert_eq!(room.before_swap, Ok(PAGE.pages(3)));
    }
}
