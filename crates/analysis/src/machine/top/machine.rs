//! Values of the machine above the table of `pagewise top`.

use pagewise_model::report::{CellValue, Fact};
use pagewise_model::settings::PressureFigures;
use pagewise_model::sweep::Sweep;
use pagewise_model::{Bytes, Reading};

use super::TopHistory;
use crate::cells::{float, text};
use crate::explain::fact;

/// Returns facts for memory, swap, pressure and processes, the most important first.
pub(super) fn facts(history: &TopHistory, sweep: &Sweep) -> Vec<Fact> {
    let machine = &sweep.machine;
    let total = machine.memory("MemTotal");
    let available = machine.memory("MemAvailable");
    let pss: Bytes = sweep.processes.iter().filter_map(|it| it.pss_total().ok()).sum();
    let mut facts = vec![
        fact("total", "RAM", CellValue::bytes(total.clone()), ""),
        fact("available", "available", with_share(available, &total), ""),
        fact(
            "pss",
            "PSS",
            CellValue::Bytes(pss.0),
            "Sum over the processes whose memory was read.",
        ),
    ];
    facts.extend(swap(sweep));
    facts.push(pressure("memory_pressure", "PSI", &machine.memory_pressure));
    facts.push(fact("processes", "processes", count(sweep.processes.len()), ""));
    let rate = |name: &str| {
        let rates = &history.delta()?.machine.vmstat;
        rates.iter().find(|it| it.name.as_bytes() == name.as_bytes()).map(|it| it.per_second)
    };
    let rates = [("pgmajfault", "major faults"), ("pswpin", "swap in"), ("pswpout", "swap out")];
    facts.extend(rates.into_iter().filter_map(|(name, label)| {
        let value = rate(name)?;
        Some(fact(name, label, CellValue::Rate(value), ""))
    }));
    facts.push(pressure("io_pressure", "I/O PSI", &machine.io_pressure));
    facts
}

fn count(count: usize) -> CellValue {
    CellValue::Count(u64::try_from(count).unwrap_or(u64::MAX))
}

fn with_share(part: Reading<Bytes>, whole: &Reading<Bytes>) -> CellValue {
    let share = match (&part, whole) {
        (Ok(part), Ok(whole)) => part.fraction_of(*whole),
        _ => None,
    };
    match share {
        Some(share) => {
            CellValue::Sentence(vec![CellValue::bytes(part), text(" "), CellValue::Share(share)])
        }
        None => CellValue::bytes(part),
    }
}

/// Returns used swap and its size; `None` on a machine without swap.
fn swap(sweep: &Sweep) -> Option<Fact> {
    let total = sweep.machine.memory("SwapTotal").ok().filter(|total| !total.is_zero())?;
    let free = sweep.machine.memory("SwapFree").ok()?;
    let used = total.saturating_sub(free);
    let pieces = vec![CellValue::Bytes(used.0), text(" of "), CellValue::Bytes(total.0)];
    Some(fact("swap", "swap", CellValue::Sentence(pieces), ""))
}

/// Returns the share of the last ten seconds in which some task waited, and the share in which all
/// tasks waited.
fn pressure(key: &'static str, label: &'static str, reading: &Reading<PressureFigures>) -> Fact {
    let value = CellValue::from_reading(reading.clone(), |pressure| {
        let share = |hundredths: u64| CellValue::Share(float(hundredths) / 10_000.0);
        let PressureFigures { avg10, .. } = pressure;
        CellValue::Sentence(vec![share(avg10.some), text("/"), share(avg10.full)])
    });
    fact(key, label, value, "Some tasks waited / all tasks waited, over the last 10 s.")
}
