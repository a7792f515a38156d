//! Heaps in core files of any bytes: the walks of all allocators and the search of pointers end,
//! and each block begins in a mapping.
#![no_main]

use libfuzzer_sys::fuzz_target;
use pagewise_model::heap_graph::not_recorded;
use pagewise_proc::core_file::{CoreFile, ImageFiles};
use pagewise_proc::data_symbols::NamedVariables;
use pagewise_scan::core_image::CoreImage;
use pagewise_scan::graph::BlockRounding;
use pagewise_scan::memory::Memory;
use pagewise_scan::reachability::{GraphRequest, ThreadFrames, heap_graph};
use pagewise_scan::walk::walk_heap;

fuzz_target!(|bytes: &[u8]| {
    let Ok(core) = CoreFile::from_bytes(bytes.to_vec()) else { return };
    let image = CoreImage::new(core, ImageFiles::default());
    let Ok(found) = walk_heap(&image, image.page_size()) else { return };
    for block in (0..found.blocks.len()).filter_map(|index| found.blocks.get(index)) {
        assert!(image.mappings().iter().any(|it| it.range.contains(block.start)), "{block:?}");
    }
    let request = GraphRequest {
        retained: true,
        why: found.blocks.last().map(|block| block.start),
        variables: &|_| NamedVariables::default(),
        frames: &|_| ThreadFrames::default(),
        types: None,
        allocations: &|_| Err(not_recorded()),
        recorder: &[],
        demangle: &str::to_owned,
    };
    let rounding = BlockRounding::of(&found.heap.allocators);
    let graph = heap_graph(&image, &found.blocks, &found.managed, rounding, &request);
    let graph = graph.expect("it has fewer blocks than can be numbered");
    assert_eq!(graph.reachable.blocks + graph.leaked.blocks, found.blocks.len() as u64);
});
