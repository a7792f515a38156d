//! The heap walk of a copied process or of a core file, as one value.

use std::time::{Instant, SystemTime};

use pagewise_model::heap_graph::HeapGraph;
use pagewise_model::heap_scan::{HEAP_SCAN_VERSION, HeapScan, MemoryCopy};
use pagewise_model::machine::ProcessMoment;
use pagewise_model::process::Process;
use pagewise_model::units::nanoseconds;
use pagewise_model::{Bytes, PageSize};

use crate::ScanError;
use crate::blocks::BlockTable;
use crate::core_image::CoreImage;
use crate::graph::BlockRounding;
use crate::live::ProcessCopy;
use crate::memory::Memory;
use crate::reachability::{GraphRequest, heap_graph};
use crate::walk::walk_heap;

/// A scan together with the live blocks of the heap.
#[derive(Clone, Debug, PartialEq)]
pub struct ScannedHeap {
    /// The scan, without single blocks.
    pub scan: HeapScan,
    /// All live blocks.
    pub blocks: BlockTable,
}

/// Walks the heap of a copied process, and analyzes its pointers if there is a `request`. `began`
/// is the time at which the copy began.
///
/// # Errors
/// [`ScanError::NoHeap`] or [`ScanError::NotWalked`]
pub fn scan(
    copy: &ProcessCopy,
    moment: ProcessMoment,
    began: Instant,
    request: Option<&GraphRequest<'_>>,
) -> Result<ScannedHeap, ScanError> {
    let source = ScanSource {
        process: copy.process.clone(),
        moment,
        page_size: copy.page_size,
        copy: copy.measured,
        unseen: copy.measured.swapped + copy.measured.unread,
    };
    source.scanned(copy, began, request)
}

/// Walks the heap in a core file, and analyzes its pointers if there is a `request`. `began` is the
/// time at which the file was opened.
///
/// # Errors
/// [`ScanError::NoHeap`] or [`ScanError::NotWalked`]
pub fn scan_core(
    image: &CoreImage,
    began: Instant,
    request: Option<&GraphRequest<'_>>,
) -> Result<ScannedHeap, ScanError> {
    let source = ScanSource {
        process: image.snapshot().process.clone(),
        moment: ProcessMoment::CoreDumped,
        page_size: image.page_size(),
        // A core file needs no copy and no stop.
        copy: MemoryCopy::default(),
        unseen: Bytes::ZERO,
    };
    source.scanned(image, began, request)
}

/// Process and measurements of a scan.
struct ScanSource {
    process: Process,
    moment: ProcessMoment,
    page_size: PageSize,
    copy: MemoryCopy,
    unseen: Bytes,
}

impl ScanSource {
    fn scanned(
        self,
        memory: &dyn Memory,
        began: Instant,
        request: Option<&GraphRequest<'_>>,
    ) -> Result<ScannedHeap, ScanError> {
        let time = SystemTime::now() - began.elapsed();
        let walk = walk_heap(memory, self.page_size)?;
        let graph = request.map(|request| {
            let rounding = BlockRounding::of(&walk.heap.allocators);
            let graph = heap_graph(memory, &walk.blocks, &walk.managed, rounding, request)?;
            Ok::<_, ScanError>(HeapGraph { unseen: self.unseen, ..graph })
        });
        let scan = HeapScan {
            pagewise_heap_scan: HEAP_SCAN_VERSION,
            process: self.process,
            moment: self.moment,
            time_ns: time.duration_since(SystemTime::UNIX_EPOCH).map_or(0, nanoseconds),
            page_size: self.page_size,
            copy: self.copy,
            took_ns: nanoseconds(began.elapsed()),
            heap: walk.heap,
            graph: graph.transpose()?,
        };
        Ok(ScannedHeap { scan, blocks: walk.blocks })
    }
}
