//! The nouns of pagewise: plain values with public fields, `serde`, no I/O and no clock.
//!
//! Sources (`pagewise-proc`) make a [`Snapshot`], analyses turn it into a [`Report`], views
//! draw the report. A value here means the same on every machine, so it can be saved,
//! sent and opened again.
#![forbid(unsafe_code)]

pub mod bounds;
pub mod calls;
pub mod cause;
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
pub mod thp;
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
