//! A copied process and the walk of its heap as one value.

use std::time::{Instant, SystemTime};

use pagewise_model::heap_scan::{HEAP_SCAN_VERSION, HeapScan};
use pagewise_model::machine::ProcessMoment;
use pagewise_model::units::nanoseconds;

use crate::ScanError;
use crate::blocks::BlockTable;
use crate::glibc;
use crate::live::ProcessCopy;

/// A scan, and the live blocks of the heap.
#[derive(Clone, Debug, PartialEq)]
pub struct ScannedHeap {
    /// Sums.
    pub scan: HeapScan,
    /// All live blocks.
    pub blocks: BlockTable,
}

/// Walks the heap of a copied process. `began` is the time at which the copy was begun.
///
/// # Errors
/// [`ScanError::NoHeap`]
pub fn scan(
    copy: &ProcessCopy,
    moment: ProcessMoment,
    began: Instant,
) -> Result<ScannedHeap, ScanError> {
    let time = SystemTime::now() - began.elapsed();
    let walk = glibc::walk(copy, copy.page_size)?;
    let scan = HeapScan {
        pagewise_heap_scan: HEAP_SCAN_VERSION,
        process: copy.process.clone(),
        moment,
        time_ns: time.duration_since(SystemTime::UNIX_EPOCH).map_or(0, nanoseconds),
        page_size: copy.page_size,
        copy: copy.measured,
        took_ns: nanoseconds(began.elapsed()),
        heap: walk.heap,
    };
    Ok(ScannedHeap { scan, blocks: walk.blocks })
}
