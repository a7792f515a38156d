//! Reports about the present memory of processes.

pub(crate) mod address_map;
pub mod diff;
pub mod explain;
pub mod filter;
pub mod heap_graph;
pub mod heap_scan;
pub mod invariants;
pub mod maps;
pub mod page_map;
pub mod pagewise_pools;
pub mod pools;
pub mod program_name;
pub mod ps;
pub mod pss;
pub mod quadrants;
pub mod sections;
pub(crate) mod swapped;
pub mod thp;
pub mod trim;
