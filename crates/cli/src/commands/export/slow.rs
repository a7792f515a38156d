//! The slow cycle of `pagewise export`: signs of trouble, and the account of the machine's RAM.

use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use pagewise_analysis::account::account;
use pagewise_analysis::diagnose::{TroubleSign, diagnose_machine};
use pagewise_analysis::fragmentation::{FreeForHugePages, huge_of_free};
use pagewise_analysis::headroom::headroom;
use pagewise_diagnose::{Budget, MachineObservation, ObservationRequest};
use pagewise_exporter::{
    ExportedDiagnosis, ExportedFinding, ExportedFreeMemory, ExportedHeadroom, FindingObject,
};
use pagewise_model::Name;
use pagewise_model::account::SystemReading;
use pagewise_model::machine_evidence::MachineEvidence;
use pagewise_proc::ProcRoot;
use pagewise_proc::capture::Wish;
use pagewise_proc::system_reading::{SystemRequest, read};
use pagewise_sys::own_memory;

use super::{TURN, now_ns};

/// Time over which rates are observed.
pub(super) const OBSERVED: Duration = Duration::from_secs(5);
/// The budget of an observation, which only reads counters.
const BUDGET: Budget = Budget { cpu: Duration::from_millis(500), pause: Duration::ZERO };

/// Diagnoses the machine again and again, until the exporter ends.
pub(super) fn run(
    every: Duration,
    latest: &Mutex<Option<ExportedDiagnosis>>,
    is_over: &AtomicBool,
) {
    let ends = || is_over.load(Ordering::Relaxed);
    while !ends() {
        let due = Instant::now() + every;
        let Some(found) = diagnosis(OBSERVED.min(every), &ends) else { return };
        *latest.lock().expect("no thread panics with the lock") = Some(found);
        // A diagnosis uses far more code and memory than a sweep. This memory is not needed until
        // the next diagnosis, so it is released.
        own_memory::release_unused();
        while Instant::now() < due && !ends() {
            std::thread::sleep(TURN.min(due.saturating_duration_since(Instant::now())));
        }
    }
}

/// Makes one diagnosis. Returns `None` if `ends` returns true during the observation.
pub(super) fn diagnosis(observed: Duration, ends: &dyn Fn() -> bool) -> Option<ExportedDiagnosis> {
    let root = ProcRoot::live();
    let request = ObservationRequest {
        duration: observed,
        budget: BUDGET,
        cgroup: None,
        is_interrupted: ends,
    };
    let evidence = MachineObservation::begin(&root, &request).map(|it| it.finish(&root, &request));
    if ends() {
        return None;
    }
    Some(ExportedDiagnosis { findings: evidence.as_ref().map(findings), ..reading() })
}

/// Makes the part of a diagnosis that needs only one reading: the account, the headroom, and the
/// free memory.
pub(super) fn reading() -> ExportedDiagnosis {
    let request =
        SystemRequest { wish: Wish::Auto, sample: Duration::ZERO, largest: 0, files: None };
    let reading = read(&ProcRoot::live(), &request).ok();
    ExportedDiagnosis {
        unix_ns: now_ns(),
        account: reading.as_ref().map(account),
        headroom: reading.as_ref().map(exported_headroom).unwrap_or_default(),
        free: reading.as_ref().map(free_memory).unwrap_or_default(),
        findings: None,
    }
}

fn exported_headroom(reading: &SystemReading) -> ExportedHeadroom {
    let room = headroom(&reading.meminfo, &reading.zones, reading.page_size);
    ExportedHeadroom {
        before_reclaim: room.before_reclaim.ok(),
        before_swap: room.before_swap.ok(),
        before_oom: room.before_oom.ok(),
    }
}

fn free_memory(reading: &SystemReading) -> ExportedFreeMemory {
    let blocks = huge_of_free(reading).ok();
    ExportedFreeMemory {
        allocatable_huge: blocks.map(|it| it.allocatable),
        unusable_index: blocks.and_then(FreeForHugePages::unusable_index),
    }
}

fn findings(evidence: &MachineEvidence) -> Vec<ExportedFinding> {
    let found = diagnose_machine(evidence);
    let of = |object: FindingObject| {
        move |sign: &TroubleSign| ExportedFinding {
            id: sign.id,
            severity: sign.severity(),
            object: object.clone(),
        }
    };
    let process = |name: &Name| of(FindingObject::Process(name.clone()));
    let cgroup = |path: &Name| of(FindingObject::Cgroup(path.clone()));
    let machine = found.machine.iter().map(of(FindingObject::Machine));
    let processes =
        found.processes.iter().flat_map(|it| it.signs.iter().map(process(&it.subject.name)));
    let cgroups = found.cgroups.iter().flat_map(|it| it.signs.iter().map(cgroup(&it.subject.path)));
    machine.chain(processes).chain(cgroups).collect()
}
