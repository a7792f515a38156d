//! The small files of `/proc/<pid>` and of the machine, of any bytes.
#![no_main]

use libfuzzer_sys::fuzz_target;
use pagewise_model::PageSize;
use pagewise_proc::{
    cgroup, ksm, limits, meminfo, mountinfo, numa, oom_log, slabinfo, stat, status, threads, zoneinfo,
};

fuzz_target!(|text: &[u8]| {
    let page_size = PageSize::new(1 << 16).expect("64 KiB is a page size");
    let _ = stat::parse(text);
    let _ = stat::parse_statm(text, page_size);
    let _ = status::parse(text);
    let _ = limits::parse(text);
    let _ = meminfo::parse(text, "MemTotal");
    let _ = mountinfo::parse(text);
    let _ = cgroup::parse(text);
    let _ = ksm::parse(text);
    let _ = numa::parse(text, page_size);
    let _ = threads::stack_pointer(text);
    let _ = zoneinfo::parse(text);
    let _ = slabinfo::parse(text, page_size);
    let _ = oom_log::parse(text);
});
