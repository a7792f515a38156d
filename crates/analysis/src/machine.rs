//! Reports about the machine and its settings.

pub(crate) mod cgroup_limit;
pub mod doctor;
pub mod events;
pub mod fragmentation;
pub mod top;
