//! Reports about the machine and its settings.

pub mod account;
pub(crate) mod cgroup_limit;
pub mod cgroup_report;
pub mod doctor;
pub mod events;
pub mod fragmentation;
pub mod headroom;
pub mod oom;
pub mod system;
pub mod top;
