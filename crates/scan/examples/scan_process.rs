//! Scans the heap of a process, and prints the durations and sums.
#![expect(clippy::unwrap_used, clippy::print_stdout, reason = "an example")]

use std::time::{Duration, Instant};

use pagewise_model::Pid;
use pagewise_model::machine::ProcessMoment;
use pagewise_proc::ProcRoot;
use pagewise_proc::capture::outline;
use pagewise_scan::glibc::malloc_code;
use pagewise_scan::live::{CopyRequest, CopyScope, copy_running};
use pagewise_scan::scan::scan;

fn main() {
    let root = ProcRoot::live();
    let pid = Pid(std::env::args().nth(1).unwrap().parse().unwrap());
    let mappings = outline(&root, pid).unwrap().1.unwrap();
    let code = malloc_code(&root, pid, &mappings);
    let request = CopyRequest {
        scope: CopyScope::HeapAndRoots,
        max_pause: Duration::from_secs(5),
        busy_code: &code,
        announce: &|expected| println!("expected {expected:?}"),
    };
    let began = Instant::now();
    let copy = copy_running(&root, pid, &request).unwrap();
    let copied = began.elapsed();
    let scanned = scan(&copy, ProcessMoment::Running, began, None).unwrap();
    let all = began.elapsed();
    println!("copy {copied:?} {:?}", copy.measured);
    println!("walk {:?}", all.checked_sub(copied).unwrap());
    println!("live {:?} free {:?}", scanned.scan.heap.live(), scanned.scan.heap.free());
    println!("trimmable {}", scanned.scan.heap.trimmable());
    println!("corrupted {} gaps {:?}", scanned.scan.heap.corrupted, scanned.scan.heap.gaps);
    for entry in scanned.scan.heap.corruption.iter().take(5) {
        println!("{:x} {:x} {} {:x}", entry.block, entry.address, entry.expected, entry.found);
    }
}
