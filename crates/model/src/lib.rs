//! Data types of pagewise: plain values with public fields and `serde` implementations, without I/O
//! and without clocks.
//!
//! Sources (`pagewise-proc`) create a [`Snapshot`], analyses turn the snapshot into a [`Report`],
//! and views draw the report. The meaning of a value does not depend on the machine, so values can
//! be saved, sent and read elsewhere.
#![forbid(unsafe_code)]

pub mod account;
pub mod bounds;
pub mod calls;
pub mod cause;
pub mod cgroup_tree;
pub mod civil;
pub mod core_dump;
pub mod counters;
pub mod data_types;
pub mod ending;
pub mod evidence;
pub mod faults;
pub mod fields;
pub mod fragmentation;
pub mod guard;
pub mod heap;
pub mod heap_graph;
pub mod heap_sample;
pub mod heap_scan;
pub mod histogram;
pub mod lab;
pub mod listing;
pub mod machine;
pub mod machine_evidence;
pub mod mapping;
pub mod measured;
pub mod name;
pub mod object;
pub mod oom;
pub mod page_map;
pub mod pagewise_pools;
pub mod parallel;
pub mod process;
pub mod reading;
pub mod report;
pub mod settings;
pub mod shootdowns;
pub mod simulated;
pub mod snapshot;
pub mod sweep;
pub mod sweep_source;
pub mod thp;
pub mod top;
pub mod traced;
pub mod trim;
pub mod units;
pub mod watched;

pub use counters::{Smaps, SmapsCounter, VmFlags};
pub use mapping::{AddrRange, Backing, Breakdown, Device, Mapping, Prot, Quadrant, Sharing};
pub use name::Name;
pub use reading::{Absent, Reading};
pub use report::Report;
pub use snapshot::Snapshot;
pub use units::{Bytes, PageSize, Pid};
