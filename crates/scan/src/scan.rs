//! A copied process and the walk of its heap as one value.

use std::time::{Instant, SystemTime};

use pagewise_model::heap_graph::HeapGraph;
use pagewise_model::heap_scan::{HEAP_SCAN_VERSION, HeapScan};
use pagewise_model::machine::ProcessMoment;
use pagewise_model::units::nanoseconds;

use crate::ScanError;
use crate::blocks::BlockTable;
use crate::glibc;
use crate::live::ProcessCopy;
use crate::reachability::{GraphRequest, heap_graph};

/// A scan, and the live blocks of the heap.
#[derive(Clone, Debug, PartialEq)]
pub struct ScannedHeap {
    /// Sums.
    pub scan: HeapScan,
    /// All live blocks.
    pub blocks: BlockTable,
}

/// Walks the heap of a copied process, and searches its pointers for a `request`. `began` is the
/// time at which the copy was begun.
///
/// # Errors
/// [`ScanError::NoHeap`]
pub fn scan(
    copy: &ProcessCopy,
    moment: ProcessMoment,
    began: Instant,
    request: Option<&GraphRequest<'_>>,
) -> Result<ScannedHeap, ScanError> {
    let time = SystemTime::now() - began.elapsed();
    let walk = glibc::walk(copy, copy.page_size)?;
    let graph = request.map(|request| {
        let graph = heap_graph(copy, &walk.blocks, &walk.managed, request)?;
        Ok::<_, ScanError>(HeapGraph {
            unseen: copy.measured.swapped + copy.measured.unread,
            ..graph
        })
    });
    let scan = HeapScan {
        pagewise_heap_scan: HEAP_SCAN_VERSION,
        process: copy.process.clone(),
        moment,
        time_ns: time.duration_since(SystemTime::UNIX_EPOCH).map_or(0, nanoseconds),
        page_size: copy.page_size,
        copy: copy.measured,
        took_ns: nanoseconds(began.elapsed()),
        heap: walk.heap,
        graph: graph.transpose()?,
    };
    Ok(ScannedHeap { scan, blocks: walk.blocks })
}
