//! A copied process and the walk of its heap as one value.

use std::time::{Instant, SystemTime};

use pagewise_model::PageSize;
use pagewise_model::heap_scan::{HEAP_SCAN_VERSION, HeapScan, MemoryCopy};
use pagewise_model::machine::ProcessMoment;
use pagewise_model::process::Process;
use pagewise_model::units::nanoseconds;

use crate::ScanError;
use crate::blocks::BlockTable;
use crate::core_image::CoreImage;
use crate::glibc::{self, GlibcWalk};
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
    let walk = glibc::walk(copy, copy.page_size)?;
    let source = ScanSource {
        process: copy.process.clone(),
        moment,
        page_size: copy.page_size,
        copy: copy.measured,
    };
    Ok(source.scanned(walk, began))
}

/// Walks the heap in a core file. `began` is the time at which it was opened.
///
/// # Errors
/// [`ScanError::NoHeap`]
pub fn scan_core(image: &CoreImage, began: Instant) -> Result<ScannedHeap, ScanError> {
    let walk = glibc::walk(image, image.page_size())?;
    let source = ScanSource {
        process: image.snapshot().process.clone(),
        moment: ProcessMoment::CoreDumped,
        page_size: image.page_size(),
        // No process is copied or stopped.
        copy: MemoryCopy::default(),
    };
    Ok(source.scanned(walk, began))
}

/// The process of a scan.
struct ScanSource {
    process: Process,
    moment: ProcessMoment,
    page_size: PageSize,
    copy: MemoryCopy,
}

impl ScanSource {
    fn scanned(self, walk: GlibcWalk, began: Instant) -> ScannedHeap {
        let time = SystemTime::now() - began.elapsed();
        let scan = HeapScan {
            pagewise_heap_scan: HEAP_SCAN_VERSION,
            process: self.process,
            moment: self.moment,
            time_ns: time.duration_since(SystemTime::UNIX_EPOCH).map_or(0, nanoseconds),
            page_size: self.page_size,
            copy: self.copy,
            took_ns: nanoseconds(began.elapsed()),
            heap: walk.heap,
        };
        ScannedHeap { scan, blocks: walk.blocks }
    }
}
