//! Heaps in core files of any bytes: the walk and the search of pointers end, and the header of
//! each block lies in a mapping.
#![no_main]

use libfuzzer_sys::fuzz_target;
use pagewise_heaplog::glibc_chunk::HEADER;
use pagewise_model::heap_graph::not_recorded;
use pagewise_proc::core_file::{CoreFile, ImageFiles};
use pagewise_proc::data_symbols::NamedVariables;
use pagewise_scan::core_image::CoreImage;
use pagewise_scan::glibc::walk;
use pagewise_scan::memory::Memory;
use pagewise_scan::reachability::{GraphRequest, heap_graph};

fuzz_target!(|bytes: &[u8]| {
    let Ok(core) = CoreFile::from_bytes(bytes.to_vec()) else { return };
    let image = CoreImage::new(core, ImageFiles::default());
    let Some(found) = walk(&image, image.page_size()) else { return };
    for block in (0..found.blocks.len()).filter_map(|index| found.blocks.get(index)) {
        let header = block.start - HEADER;
        assert!(image.mappings().iter().any(|it| it.range.contains(header)), "{block:?}");
    }
    let request = GraphRequest {
        retained: true,
        why: found.blocks.last().map(|block| block.start),
        variables: &|_| NamedVariables::default(),
        allocations: &|_| Err(not_recorded()),
        recorder: &[],
        demangle: &str::to_owned,
    };
    let graph = heap_graph(&image, &found.blocks, &found.managed, &request);
    let graph = graph.expect("it has fewer blocks than can be numbered");
    assert_eq!(graph.reachable.blocks + graph.leaked.blocks, found.blocks.len() as u64);
});
